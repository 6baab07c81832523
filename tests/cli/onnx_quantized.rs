//! Quantized weights of ONNX models: how `dequantize` puts values in the place of `DequantizeLinear` nodes, and how they are
//! shown.

use crate::common::onnx::{field, fields, initializer, model, node, node_with, number};
use crate::common::{Bench, fixture};
use std::fs;
use std::path::Path;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// `DequantizeLinear` with integer attributes, of which none is negative.
fn dequantize(inputs: &[&str], output: &str, attributes: &[(&str, u8)]) -> Vec<u8> {
    node_with("DequantizeLinear", inputs, output, attributes)
}

/// ONNX's numbers of types.
const FLOAT: u8 = 1;
const UINT8: u8 = 2;
const INT8: u8 = 3;
const INT32: u8 = 6;
const FLOAT16: u8 = 10;
const UINT4: u8 = 21;
const INT4: u8 = 22;

#[test]
fn values_come_in_the_place_of_codes_and_of_the_nodes_that_decode_them() {
    let bench = Bench::new();
    let unknown = vec![0xa2, 0x7d, 3, 7, 8, 9];
    let matmul = node("MatMul", &["x", "w"], "y");
    let scale = initializer("s", FLOAT, &[3], &floats(&[0.5, 2.0, -1.0]));
    let zero = initializer("z", INT8, &[3], &[1, 0, 0xff]);
    let codes = initializer("q", INT8, &[2, 3], &[3, 4, 5, 0x80, 0x7f, 0xff]);
    let graph = [
        field(2, b"g"),
        codes,
        scale,
        unknown.clone(),
        zero,
        dequantize(&["q", "s", "z"], "w", &[("axis", 1)]),
        matmul.clone(),
        unknown.clone(),
    ];
    bench.write("in.onnx", &model(&graph.concat()));
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
    let values = initializer("w", FLOAT, &[2, 3], &floats(&[1.0, 8.0, -6.0, -64.5, 254.0, -0.0]));
    let wanted = [field(2, b"g"), values, unknown.clone(), matmul, unknown].concat();
    assert_eq!(bench.read("out.onnx"), model(&wanted));
    // The same values, taken out.
    bench.run("dequantize in.onnx -o out.safetensors -q").expect(0, "", "");
    bench.run("diff out.onnx out.safetensors -q").expect(0, "", "");
    // Without a name of its own, the output has the type of the values.
    bench.run("dequantize in.onnx -q").expect(0, "", "");
    assert_eq!(bench.read("in.float32.onnx"), bench.read("out.onnx"));
}

/// What it is, codes and scales by type, shape and bytes, the attributes, and the values.
type Case<'a> = (&'a str, (u8, &'a [u8], &'a [u8]), (u8, &'a [u8], &'a [u8]), &'a [(&'a str, u8)], &'a [f32]);

#[test]
fn scales_of_activations_are_not_an_option_of_models() {
    let bench = Bench::new();
    let scale = initializer("s", FLOAT, &[], &floats(&[0.5]));
    let codes = initializer("c", INT4, &[2], &[0x21]);
    let graph = [node("DequantizeLinear", &["c", "s"], "w"), node("Add", &["x", "w"], "y"), codes, scale].concat();
    bench.write("in.onnx", &[&number(1, 10)[..], &field(7, &graph), &field(8, &number(2, 21))].concat());
    bench.run("dequantize in.onnx --keep-activation-scales -o out.onnx").says(2, "", "--keep-activation-scales");
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
}

#[test]
fn every_form_of_scales_and_codes_is_decoded() {
    let bench = Bench::new();
    let [half, two] = [0.5_f32, 2.0];
    let f16 = [0x00, 0x38, 0x00, 0x40]; // 0.5 and 2
    let one = floats(&[half]);
    let pair = floats(&[half, two]);
    let cases: [Case; 9] = [
        ("int4 for the tensor", (INT4, &[3], &[0x8f, 0x07]), (FLOAT, &[], &one), &[], &[-0.5, -4.0, 3.5]),
        (
            "uint4 whose rows end within bytes",
            (UINT4, &[2, 3], &[0x21, 0x43, 0xf5]),
            (FLOAT, &[2], &pair),
            &[("axis", 0)],
            &[0.5, 1.0, 1.5, 8.0, 10.0, 30.0],
        ),
        (
            "int4 in blocks of 2 along the first axis",
            (INT4, &[3, 2], &[0x21, 0x43, 0x65]),
            (FLOAT, &[2, 2], &floats(&[1.0, 2.0, 4.0, 8.0])),
            &[("axis", 0), ("block_size", 2)],
            &[1.0, 4.0, 3.0, 8.0, 20.0, 48.0],
        ),
        (
            "int8 in blocks of 2 along the last",
            (INT8, &[1, 3], &[1, 2, 3]),
            (FLOAT, &[1, 2], &pair),
            &[("axis", 1), ("block_size", 2)],
            &[0.5, 1.0, 6.0],
        ),
        (
            "uint8 along an axis in the middle",
            (UINT8, &[2, 2, 1], &[1, 2, 3, 200]),
            (FLOAT, &[2], &pair),
            &[("axis", 1)],
            &[0.5, 4.0, 1.5, 400.0],
        ),
        (
            "int32 of a bias",
            (INT32, &[2], &[1, 0, 0, 0, 0, 0, 0, 0x80]),
            (FLOAT, &[1], &one),
            &[],
            &[0.5, -1_073_741_824.0],
        ),
        ("int16", (5, &[2], &[0xff, 0xff, 0, 0x80]), (FLOAT, &[], &one), &[], &[-0.5, -16384.0]),
        ("float8e4m3fn", (17, &[2], &[0x38, 0xc8]), (FLOAT, &[], &one), &[], &[0.5, -2.0]),
        ("float16 scales", (INT8, &[2], &[3, 0xfd]), (FLOAT16, &[2], &f16), &[("axis", 0)], &[1.5, -6.0]),
    ];
    for (what, (code_type, dims, codes), (scale_type, scale_dims, scale), attributes, values) in cases {
        let parts = [initializer("q", code_type, dims, codes), initializer("s", scale_type, scale_dims, scale)];
        let nodes = [dequantize(&["q", "s"], "w", attributes), node("Relu", &["w"], "y")];
        bench.write("in.onnx", &model(&[parts.concat(), nodes.concat()].concat()));
        bench.run("dequantize in.onnx -o out.safetensors --to f32 -f -q").expect(0, "", "");
        let file = bench.read("out.safetensors");
        assert_eq!(file[file.len() - 4 * values.len()..], floats(values), "{what}");
        bench.run("dequantize in.onnx -o out.onnx -f -q").expect(0, "", "");
        let shown = bench.run("inspect out.onnx").stdout;
        let dtype = if scale_type == FLOAT { "float32" } else { "float16" };
        assert!(shown.contains(&format!("  w  {dtype}  ")), "{what}: {shown}");
    }
}

#[test]
fn zero_points_of_floats_are_subtracted() {
    const FLOAT8E4M3FN: u8 = 17;
    const FLOAT8E4M3FNUZ: u8 = 18;
    const FLOAT8E5M2: u8 = 19;
    const FLOAT4E2M1: u8 = 23;
    let bench = Bench::new();
    for (dtype, codes, zero, values) in [
        (FLOAT8E4M3FN, &[0x38, 0x40, 0xb8, 0x00][..], 0x38, [0.0, 0.5, -1.0, -0.5]), // 1, 2, -1, 0 less 1
        (FLOAT8E4M3FN, &[0x38, 0x40, 0xb8, 0x00], 0x00, [0.5, 1.0, -0.5, 0.0]),
        (FLOAT4E2M1, &[0x42, 0x0a], 0x02, [0.0, 0.5, -1.0, -0.5]),
        (FLOAT8E4M3FN, &[0x38; 4], 0x7f, [f32::NAN; 4]),
        (FLOAT8E4M3FNUZ, &[0x38; 4], 0x80, [f32::NAN; 4]),
        (FLOAT8E5M2, &[0x38; 4], 0x7d, [f32::NAN; 4]),
        (FLOAT8E5M2, &[0x38; 4], 0x7c, [f32::NEG_INFINITY; 4]),
        (FLOAT8E5M2, &[0x38; 4], 0xfc, [f32::INFINITY; 4]),
    ] {
        let parts = [
            initializer("q", dtype, &[4], codes),
            initializer("s", FLOAT, &[1], &floats(&[0.5])),
            initializer("z", dtype, &[1], &[zero]),
            dequantize(&["q", "s", "z"], "w", &[]),
            node("Relu", &["w"], "y"),
        ];
        bench.write("in.onnx", &model(&parts.concat()));
        bench.run("dequantize in.onnx -o out.safetensors --to f32 -f -q").expect(0, "", "");
        let found = bench.read("out.safetensors");
        let found = found[found.len() - 16..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let is_same =
            |(found, wanted): (f32, f32)| found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
        assert!(found.zip(values).all(is_same), "{dtype} {zero:#x}");
    }
}

#[test]
fn several_nodes_that_decode_the_same_codes_become_one_tensor() {
    let bench = Bench::new();
    let parts = [
        initializer("q", INT8, &[2], &[1, 2]),
        initializer("s", FLOAT, &[], &floats(&[0.5])),
        dequantize(&["q", "s"], "w", &[]),
        dequantize(&["q", "s"], "w_2", &[]),
    ];
    let rest = |second: &str| [node("Add", &["x", "w"], "a"), node("Mul", &[second, "a"], "b")].concat();
    bench.write("in.onnx", &model(&[parts.concat(), rest("w_2")].concat()));
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
    let values = initializer("w", FLOAT, &[2], &floats(&[0.5, 1.0]));
    assert_eq!(bench.read("out.onnx"), model(&[values, rest("w")].concat()));
}

#[test]
fn codes_with_several_scales_become_several_tensors() {
    let bench = Bench::new();
    let parts = [
        initializer("q", INT8, &[2], &[1, 2]),
        initializer("s", FLOAT, &[], &floats(&[0.5])),
        initializer("t", FLOAT16, &[], &[0x00, 0x40]), // 2
    ];
    let nodes = [dequantize(&["q", "s"], "a", &[]), dequantize(&["q", "t"], "b", &[])];
    let users = [node("Neg", &["a"], "y"), node("Neg", &["b"], "z")].concat();
    bench.write("in.onnx", &model(&[parts.concat(), nodes.concat(), users.clone()].concat()));
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
    let [a, b] = [
        initializer("a", FLOAT, &[2], &floats(&[0.5, 1.0])),
        initializer("b", FLOAT16, &[2], &[0x00, 0x40, 0x00, 0x44]),
    ];
    assert_eq!(bench.read("out.onnx"), model(&[a, b, users].concat()));
    bench.run("dequantize in.onnx --to f32 -o out.safetensors -q").expect(0, "", "");
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
    bench.run("diff in.onnx out.safetensors --tolerance 0 -q").expect(0, "", "");
    let listed = bench.run("inspect in.onnx").stdout;
    assert!(listed.contains("  a  int8, tensor") && listed.contains("  b  int8, tensor"), "{listed}");
    assert_eq!(bench.run("bitcast in.onnx --bits --tensor b --range 1..2").stdout, "1  0 0000010  2 * 2 = 4\n");
    bench.run("dequantize in.onnx --include b -o some.onnx").says(2, "", "quantized");
    // The branches of an If decode codes of the outer graph.
    let inner = |name: &str, scale: &str| {
        let nodes = [dequantize(&["q", scale], "w", &[]), node("Neg", &["w"], name)].concat();
        field(
            5,
            &[field(1, name.as_bytes()), field(6, &[nodes, field(12, &field(1, name.as_bytes()))].concat())].concat(),
        )
    };
    let choice =
        |branches: &[u8]| field(1, &[field(1, b"c"), field(2, b"y"), field(4, b"If"), branches.to_vec()].concat());
    let branches = [inner("then_branch", "s"), inner("else_branch", "t")].concat();
    bench.write("if.onnx", &model(&[parts.concat(), choice(&branches)].concat()));
    bench.run("dequantize if.onnx -o out.onnx -f -q").expect(0, "", "");
    let user = |name: &str, value: &str| {
        let nodes = node("Neg", &[value], name);
        field(
            5,
            &[field(1, name.as_bytes()), field(6, &[nodes, field(12, &field(1, name.as_bytes()))].concat())].concat(),
        )
    };
    let [first, second] = [
        initializer("q", FLOAT, &[2], &floats(&[0.5, 1.0])),
        initializer("q_float16_copy_2", FLOAT16, &[2], &[0x00, 0x40, 0x00, 0x44]),
    ];
    let branches = [user("then_branch", "q"), user("else_branch", "q_float16_copy_2")].concat();
    assert_eq!(bench.read("out.onnx"), model(&[first, second, choice(&branches)].concat()));
}

#[test]
fn a_scale_that_other_nodes_use_stays() {
    let bench = Bench::new();
    let scale = initializer("s", FLOAT, &[], &floats(&[0.5]));
    let others = [node("QuantizeLinear", &["x", "s"], "xq"), dequantize(&["xq", "s"], "x8", &[])].concat();
    let parts = [initializer("q", INT8, &[2], &[1, 2]), scale.clone(), others.clone()];
    bench.write("in.onnx", &model(&[parts.concat(), dequantize(&["q", "s"], "w", &[])].concat()));
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
    let values = initializer("w", FLOAT, &[2], &floats(&[0.5, 1.0]));
    assert_eq!(bench.read("out.onnx"), model(&[values, scale, others].concat()));
    // Weights that stay quantized keep their parts.
    let second = [initializer("r", INT8, &[2], &[1, 2]), dequantize(&["r", "s"], "v", &[])].concat();
    bench.write("two.onnx", &model(&[parts.concat(), dequantize(&["q", "s"], "w", &[]), second].concat()));
    bench.run("dequantize two.onnx --include w -o some.onnx -q").expect(0, "", "");
    let listed = bench.run("inspect some.onnx");
    assert!(
        listed.stdout.contains("  w  float32       [2]  8 B") && listed.stdout.contains("  v  int8, tensor"),
        "{}",
        listed.stdout
    );
}

#[test]
fn codes_in_constant_nodes_typed_fields_and_inner_graphs_are_decoded() {
    let bench = Bench::new();
    let constant = |name: &str, tensor: &[u8]| {
        let attribute = [field(1, b"value"), field(5, tensor), vec![0xa0, 1, 4]].concat();
        field(1, &[field(2, name.as_bytes()), field(4, b"Constant"), field(5, &attribute)].concat())
    };
    // int32_data and float_data, packed.
    let typed = |name: &str, data_type: u8, data: &[u8]| {
        [number(1, 2), number(2, data_type), field(8, name.as_bytes()), data.to_vec()].concat()
    };
    let codes = typed("t", INT8, &field(5, &[5, 6]));
    let scale = typed("t", FLOAT, &field(4, &floats(&[0.5, 4.0])));
    let inner = |nodes: &[u8]| {
        field(5, &[field(1, b"then_branch"), field(6, &[field(2, b"b"), nodes.to_vec()].concat())].concat())
    };
    let branch = |nodes: &[u8]| field(1, &[field(1, b"c"), field(2, b"y"), field(4, b"If"), inner(nodes)].concat());
    let user = node("Neg", &["w"], "y");
    let nodes =
        [constant("q", &codes), constant("s", &scale), dequantize(&["q", "s"], "w", &[("axis", 0)]), user.clone()];
    bench.write("in.onnx", &model(&branch(&nodes.concat())));
    bench.run("dequantize in.onnx -o out.onnx -q").expect(0, "", "");
    let values = [number(1, 2), number(2, FLOAT), field(8, b"t"), field(9, &floats(&[2.5, 24.0]))].concat();
    assert_eq!(bench.read("out.onnx"), model(&branch(&[constant("w", &values), user].concat())));
    let shown = bench.run("inspect in.onnx --parts --stats");
    assert!(
        shown.code == Some(0)
            && shown.stdout.contains("  w            int8, 1 x 1  [2]  10 B  onnx, 40.00 bits per weight"),
        "{}",
        shown.stdout
    );
    let bits = bench.run("bitcast in.onnx --bits --tensor w");
    assert_eq!(bits.stdout, "0  0 0000101  5 * 0.5 = 2.5\n1  0 0000110  6 * 4 = 24\n");
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
}

#[test]
fn what_cannot_be_decoded_stays_and_is_named() {
    let bench = Bench::new();
    let scale = initializer("s", FLOAT, &[], &floats(&[0.5]));
    let codes = initializer("q", INT8, &[2], &[1, 2]);
    // The scale is computed, or an input that callers may give; somebody else uses the codes.
    let input = field(11, &field(1, b"s"));
    let decode = dequantize(&["q", "s"], "w", &[]);
    let float16 = [field(1, b"output_dtype"), number(3, FLOAT16), vec![0xa0, 1, 2]].concat();
    let inputs = [field(1, b"q"), field(1, b"s"), field(2, b"w"), field(4, b"DequantizeLinear")].concat();
    let typed = field(1, &[inputs, field(5, &float16)].concat());
    let others = [
        ([codes.clone(), node("Neg", &["t"], "s"), decode.clone()].concat(), "its scale is not a constant"),
        ([codes.clone(), scale.clone(), input, decode.clone()].concat(), "its scale is not a constant"),
        (
            [codes.clone(), scale.clone(), decode.clone(), node("Neg", &["q"], "v")].concat(),
            "its codes have other uses",
        ),
        (
            [codes.clone(), scale.clone(), decode.clone(), field(12, &field(1, b"q"))].concat(),
            "its codes are an output of a graph",
        ),
        (
            [codes.clone(), scale.clone(), decode.clone(), field(11, &field(1, b"q"))].concat(),
            "its codes are an input of the graph",
        ),
        ([codes.clone(), scale.clone(), typed].concat(), "its output_dtype is not the type of its scale"),
    ];
    for (graph, reason) in others {
        bench.write("in.onnx", &model(&graph));
        bench.run("dequantize in.onnx -o out.onnx").says(1, "", "DequantizeLinear");
        // Beside a weight that is decoded, a note names it.
        let other = [initializer("p", INT8, &[2], &[1, 2]), initializer("t", FLOAT, &[], &floats(&[2.0]))];
        let graph = [graph, other.concat(), dequantize(&["p", "t"], "z", &[])].concat();
        bench.write("in.onnx", &model(&graph));
        let outcome = bench.run("dequantize in.onnx -o beside.onnx -f --json");
        outcome.check_message(reason);
        assert!(outcome.stdout.contains("\"kept\":\"codes\""), "{}", outcome.stdout);
    }
    // An output without a name is none.
    bench.write("in.onnx", &model(&[codes.clone(), scale.clone(), dequantize(&["q", "s"], "", &[])].concat()));
    bench.run("dequantize in.onnx -o out.onnx").says(1, "", "decode");
    let contrib =
        field(1, &[field(1, b"x"), field(1, b"q"), field(4, b"MatMulNBits"), field(7, b"com.microsoft")].concat());
    bench.write(
        "in.onnx",
        &model(
            &[initializer("p", INT8, &[2], &[1, 2]), scale.clone(), contrib, dequantize(&["p", "s"], "w", &[])]
                .concat(),
        ),
    );
    bench.run("dequantize in.onnx -o out.onnx").says(0, "", "MatMulNBits");
    // A model has the types that its nodes compute with.
    bench.run("dequantize in.onnx --to f16 -o half.onnx").says(1, "", "--to");
}

#[test]
fn models_of_onnx_runtimes_quantizers_are_decoded() {
    let bench = Bench::new();
    for (name, nodes) in [("ort_static.onnx", 22 - 5), ("ort_nbits.onnx", 7 - 1)] {
        fs::copy(fixture("onnx_models").join(name), bench.path(name)).unwrap();
        bench.run(&format!("dequantize {name} -o out.onnx -f")).says(0, "", "float32");
        // GraphProto is field 7, and its nodes are field 1.
        let count = |file: &[u8]| fields(file, 7).iter().flat_map(|graph| fields(graph, 1)).count();
        assert_eq!(
            (count(&bench.read("out.onnx")), bench.run(&format!("diff {name} out.onnx -q")).code),
            (nodes, Some(0))
        );
    }
}

#[test]
fn malformed_dequantize_nodes_are_refused() {
    let bench = Bench::new();
    let refused = |parts: &[Vec<u8>], attributes: &[(&str, u8)], message: &str| {
        let names: Vec<&str> = ["q", "s", "z"][..parts.len()].to_vec();
        bench.write("in.onnx", &model(&[parts.concat(), dequantize(&names, "w", attributes)].concat()));
        bench.run("dequantize in.onnx -o out.onnx").says(1, "", message);
        // It can be listed all the same.
        assert_eq!(bench.run("inspect in.onnx").code, Some(0));
    };
    let codes = initializer("q", INT8, &[2, 3], &[0; 6]);
    let scale = |dims: &[u8], count: usize| initializer("s", FLOAT, dims, &vec![0; 4 * count]);
    refused(&[codes.clone(), scale(&[2], 2)], &[("axis", 1)], "shape");
    refused(&[codes.clone(), scale(&[3], 3)], &[("axis", 2)], "scales");
    refused(&[codes.clone(), scale(&[2, 2], 4)], &[("axis", 1), ("block_size", 1)], "shape");
    let zero = initializer("z", UINT8, &[3], &[0; 3]);
    refused(&[codes.clone(), scale(&[3], 3), zero], &[("axis", 1)], "uint8");
    let zero = initializer("z", INT8, &[2], &[0; 2]);
    refused(&[codes, scale(&[3], 3), zero], &[("axis", 1)], "shape");
}

#[test]
fn a_model_that_defines_a_value_twice_is_not_changed() {
    let bench = Bench::new();
    let parts = [initializer("q", INT8, &[2], &[1, 2]), initializer("s", FLOAT, &[], &floats(&[0.5]))].concat();
    let decode = dequantize(&["q", "s"], "w", &[]);
    let values = initializer("w", FLOAT, &[2], &floats(&[0.5, 1.0]));
    let commands = ["dequantize", "cast --to f16 --min-elements 0", "quantize --scheme int8 --min-elements 0"];
    for second in [decode.clone(), values, node("Neg", &["x"], "w")] {
        let user = node("MatMul", &["x", "w"], "y");
        bench.write("in.onnx", &model(&[&parts[..], &second, &decode, &user].concat()));
        for command in commands {
            bench.run(&format!("{command} in.onnx -o out.onnx")).says(1, "", "onnx.checker.check_model");
            assert!(!bench.path("out.onnx").exists());
        }
        assert_eq!(bench.run("inspect in.onnx").code, Some(0));
    }
}

#[test]
fn a_quantized_model_is_compared_with_its_values() {
    let bench = Bench::new();
    // A weight and its codes: the same name, and other values.
    let plain = [initializer("w", FLOAT, &[2], &floats(&[0.5, 1.25])), node("Neg", &["w"], "y")].concat();
    let parts = [initializer("q", INT8, &[2], &[1, 2]), initializer("s", FLOAT, &[], &floats(&[0.5]))];
    let quantized = [parts.concat(), dequantize(&["q", "s"], "w", &[]), node("Neg", &["w"], "y")].concat();
    bench.write("a.onnx", &model(&plain));
    bench.write("b.onnx", &model(&quantized));
    let outcome = bench.run("diff a.onnx b.onnx");
    assert!(outcome.code == Some(1) && outcome.stdout.starts_with("  w  values differ  1 of 2"), "{}", outcome.stdout);
    // A cast leaves codes alone.
    bench.run("cast b.onnx --to f16 -o c.onnx --min-elements 0 -q").expect(0, "", "");
    assert_eq!(bench.read("c.onnx"), bench.read("b.onnx"));
}

#[test]
fn no_command_panics_on_a_malformed_model_or_leaves_a_part_of_an_output() {
    let folder = fixture("bad/onnx_models");
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "onnx")).collect();
    assert!(models.len() > 25, "{}", models.len());
    let bench = Bench::new();
    let run = |line: &str, path: &Path, allowed: &[i32]| {
        let mut args: Vec<&str> = line.split(' ').collect();
        args.insert(1, path.to_str().unwrap());
        let outcome = bench.run_args(&args);
        let code = outcome.code.filter(|code| allowed.contains(code));
        assert!(code.is_some(), "{line}: {}: {outcome:?}", path.display());
        if line.starts_with("diff") {
            return; // it shows what it can read
        }
        if code == Some(1) {
            let errors = outcome.stderr.lines().filter(|line| line.starts_with("tcast: error: ")).count();
            assert_eq!(errors, 1, "{line}: {}: {outcome:?}", path.display());
            assert!(bench.files().is_empty(), "{line}: {}: {outcome:?}", path.display());
        } else if bench.path("out.onnx").exists() {
            fs::remove_file(bench.path("out.onnx")).unwrap();
        }
    };
    for path in models {
        run("dequantize -o out.onnx", &path, &[1]);
        run("dequantize -o out.npz", &path, &[1]);
        run("quantize --scheme int8 -o out.onnx --min-elements 0", &path, &[1]);
        run("quantize --scheme int4 --layout matmulnbits -o out.onnx", &path, &[0, 1]);
        run("quantize --scheme int4-asym -o out.onnx --raise-opset", &path, &[0, 1]);
        run("cast --to f16 -o out.onnx --min-elements 0", &path, &[0, 1]);
        run("inspect --stats", &path, &[0, 1]);
        run(&format!("diff {}", fixture("onnx_models/ort_nbits.onnx").display()), &path, &[1, 2]);
    }
}
