//! `tcast quantize` of ONNX models: which weights become codes, how nodes decode them, and what is refused.

use crate::common::onnx::{field, fields, initializer, model, node, node_with, number};
use crate::common::{Bench, fixture};
use serde_json::Value;
use std::fs;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A model of IR 8 and this opset.
fn of_opset(opset: u8, graph: &[u8]) -> Vec<u8> {
    [&number(1, 8)[..], &field(7, graph), &field(8, &number(2, opset))].concat()
}

/// The node that decodes a weight.
fn decode(stored: &str, inputs: usize, output: &str, attributes: &[(&str, u8)]) -> Vec<u8> {
    let ends = ["", "_scale", "_zero_point"];
    let inputs: Vec<u8> = ends[..inputs].iter().flat_map(|end| field(1, format!("{stored}{end}").as_bytes())).collect();
    let attribute = |(name, value): &(&str, u8)| {
        field(5, &[field(1, name.as_bytes()), number(3, *value), vec![0xa0, 1, 2]].concat())
    };
    let attributes: Vec<u8> = attributes.iter().flat_map(attribute).collect();
    let label = if output.contains("_copy_") { output } else { stored };
    let names = [field(2, output.as_bytes()), field(3, label.as_bytes()), field(4, b"DequantizeLinear")].concat();
    field(1, &[inputs, names, attributes].concat())
}

const FLOAT: u8 = 1;
const INT8: u8 = 3;
const FLOAT8E4M3FN: u8 = 17;
const UINT4: u8 = 21;
const INT4: u8 = 22;

#[test]
fn a_weight_becomes_codes_and_scales_for_each_output() {
    let bench = Bench::new();
    let matmul = node("MatMul", &["x", "w"], "y");
    let weight = initializer("w", FLOAT, &[2, 3], &floats(&[1.27, 0.0, -1.0, -0.5, 0.0, 2.54]));
    bench.write("in.onnx", &of_opset(13, &[weight, matmul.clone()].concat()));
    bench.run("quantize in.onnx --scheme int8 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let wanted = [
        initializer("w_int8", INT8, &[2, 3], &[127, 0, 0xce, 0xce, 0, 127]),
        decode("w_int8", 2, "w", &[("axis", 1)]),
        // A scale of 0 is 1.
        initializer("w_int8_scale", FLOAT, &[3], &floats(&[1.27 / 127.0, 1.0, 2.54 / 127.0])),
        matmul.clone(),
    ]
    .concat();
    assert_eq!(bench.read("out.onnx"), of_opset(13, &wanted));
    // Decoded, the model has the nodes that it had.
    bench.run("dequantize out.onnx -o plain.onnx -q").expect(0, "", "");
    let values = [127, 0, -50, -50, 0, 127].iter().zip([1.27 / 127.0, 1.0, 2.54 / 127.0].iter().cycle());
    let values: Vec<f32> = values.map(|(code, scale)| *code as f32 * scale).collect();
    let plain = [initializer("w", FLOAT, &[2, 3], &floats(&values)), matmul].concat();
    assert_eq!(bench.read("plain.onnx"), of_opset(13, &plain));
    // A quantized weight is an integer, and its scale one of quantized values.
    let again = bench.run("quantize out.onnx --scheme int8 -o again.onnx --min-elements 0");
    assert_eq!(again.code, Some(1), "{}", again.stderr);
    again.check_message("quantized");
}

#[test]
fn the_matrices_of_a_batch_share_a_scale_for_each_output() {
    let bench = Bench::new();
    let matmul = node("MatMul", &["x", "w"], "y");
    let values = [1.27, 0.0, -0.01, 0.5, 0.02, 0.25, 0.0, -0.127];
    let weight = initializer("w", FLOAT, &[2, 2, 2], &floats(&values));
    bench.write("in.onnx", &of_opset(19, &[weight, matmul.clone()].concat()));
    bench.run("quantize in.onnx --scheme int8 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let wanted = [
        initializer("w_int8", INT8, &[2, 2, 2], &[127, 0, 0xff, 127, 2, 64, 0, 0xe0]),
        decode("w_int8", 2, "w", &[("axis", 2)]),
        initializer("w_int8_scale", FLOAT, &[2], &floats(&[1.27 / 127.0, 0.5 / 127.0])),
        matmul,
    ]
    .concat();
    assert_eq!(bench.read("out.onnx"), of_opset(19, &wanted));
    bench.run("quantize in.onnx --scheme fp8 -o fp8.onnx -q --min-elements 0").expect(0, "", "");
    let compared = bench.run("diff in.onnx fp8.onnx");
    assert!(compared.stdout.contains("  w  values differ  "), "{}", compared.stdout);
}

#[test]
fn integers_of_4_bits_are_those_of_onnx_runtimes_tool() {
    let bench = Bench::new();
    let gemm = |weight: &str| node_with("Gemm", &["x", weight], "y", &[("transB", 1)]);
    // Blocks of 8 along the inputs, of which the last has one value: scales have the sign of -value.
    let weight = initializer("w", FLOAT, &[1, 9], &floats(&[4.0, -1.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -8.0]));
    bench.write("in.onnx", &of_opset(21, &[weight, gemm("w")].concat()));
    bench.run("quantize in.onnx --scheme int4 --group-size 8 -o out.onnx -q --min-elements 0").expect(0, "", "");
    // -1.25 / -0.5 = 2.5, and halves go away from zero.
    let parts = [
        initializer("w_int4", INT4, &[1, 9], &[0x38, 0, 0, 0, 0x08]),
        initializer("w_int4_scale", FLOAT, &[1, 2], &floats(&[-0.5, 1.0])),
    ];
    let attributes = [("axis", 1), ("block_size", 8)];
    let wanted = |parts: &[Vec<u8>], stored: &str, inputs: usize| {
        // The IR version of 4 bits is 10.
        let decode = decode(stored, inputs, "w", &attributes);
        let graph = [parts[0].clone(), decode, parts[1..].concat(), gemm("w")].concat();
        [&number(1, 10)[..], &field(7, &graph), &field(8, &number(2, 21))].concat()
    };
    assert_eq!(bench.read("out.onnx"), wanted(&parts, "w_int4", 2));
    // The layout may be named.
    bench
        .run("quantize in.onnx --scheme int4 --layout onnx --group-size 8 -o out.onnx -f -q --min-elements 0")
        .expect(0, "", "");
    assert_eq!(bench.read("out.onnx"), wanted(&parts, "w_int4", 2));
    bench
        .run("quantize in.onnx --scheme int4-asym --group-size 8 -o out.onnx -f -q --min-elements 0")
        .expect(0, "", "");
    // (4 + 1.25) / 15 = 0.35 and zero point 4; -8 to 0 and zero point 15.
    let parts = [
        initializer("w_uint4", UINT4, &[1, 9], &[0x0f, 0x44, 0x44, 0x44, 0x00]),
        initializer("w_uint4_scale", FLOAT, &[1, 2], &floats(&[5.25 / 15.0, 8.0 / 15.0])),
        initializer("w_uint4_zero_point", UINT4, &[1, 2], &[0xf4]),
    ];
    assert_eq!(bench.read("out.onnx"), wanted(&parts, "w_uint4", 3));
}

#[test]
fn every_user_of_a_weight_gets_a_node_of_its_own() {
    let bench = Bench::new();
    let weight = initializer("w", FLOAT, &[1, 2], &floats(&[448.0, -1.0]));
    let users = |second: &str| [node("MatMul", &["x", "w"], "y"), node("MatMul", &["z", second], "v")].concat();
    bench.write("in.onnx", &of_opset(19, &[weight, users("w")].concat()));
    bench.run("quantize in.onnx --scheme fp8 -o out.onnx -q --min-elements 0").expect(0, "", "");
    let stored = "w_float8e4m3fn";
    let graph = [
        initializer("w_float8e4m3fn", FLOAT8E4M3FN, &[1, 2], &[0x7e, 0xfe]),
        decode(stored, 2, "w", &[("axis", 1)]),
        decode(stored, 2, "w_float8e4m3fn_copy_2", &[("axis", 1)]),
        initializer("w_float8e4m3fn_scale", FLOAT, &[2], &floats(&[1.0, 1.0 / 448.0])),
        users("w_float8e4m3fn_copy_2"),
    ]
    .concat();
    assert_eq!(bench.read("out.onnx"), [&number(1, 9)[..], &field(7, &graph), &field(8, &number(2, 19))].concat());
    bench.run("dequantize out.onnx -o plain.onnx -q").expect(0, "", "");
    assert!(bench.read("plain.onnx").windows(users("w").len()).any(|bytes| bytes == users("w")));
}

#[test]
fn tensors_that_are_no_weights_alone_are_kept_with_the_reason() {
    let bench = Bench::new();
    let tensor = |name: &str, dims: &[u8]| {
        initializer(name, FLOAT, dims, &floats(&vec![1.0; dims.iter().map(|length| usize::from(*length)).product()]))
    };
    let graph = [
        tensor("weight", &[4, 2]),
        tensor("kernel", &[2, 1, 3]),
        tensor("tied", &[4, 2]),
        tensor("batched", &[2, 4, 2]),
        tensor("bias", &[2]),
        tensor("given", &[4, 2]),
        tensor("left", &[4, 2]),
        node("MatMul", &["x", "weight"], "a"),
        node("Conv", &["i", "kernel", "bias"], "b"),
        node("MatMul", &["x", "tied"], "c"),
        node("Gather", &["tied", "j"], "d"),
        node("MatMul", &["x", "batched"], "e"),
        node("MatMul", &["x", "given"], "f"),
        node("MatMul", &["x", "left"], "g"),
        field(11, &field(1, b"given")),
    ];
    bench.write("in.onnx", &of_opset(21, &graph.concat()));
    let fates = |flags: &str| {
        let outcome = bench.run(&format!("quantize in.onnx -o out.onnx -f --json {flags}"));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(report["options"]["layout"], "onnx");
        let fate = |tensor: &Value| {
            let fate = tensor["kept"].as_str().or(tensor["quantized"]["scheme"].as_str()).unwrap_or_default();
            format!("{}={fate}", tensor["name"].as_str().unwrap())
        };
        report["tensors"].as_array().unwrap().iter().map(fate).collect::<Vec<_>>().join(" ")
    };
    let kept = "bias=no_weight given=graph_input left=left_out";
    let found = fates("--scheme int8 --min-elements 0 --exclude left");
    assert_eq!(found, format!("weight=int8 kernel=int8 tied=no_weight batched=int8 {kept}"));
    // Blocks of 4 bits are for matrices.
    let found = fates("--scheme int4 --min-elements 7 --exclude left --rule kernel=fp8");
    assert_eq!(found, format!("weight=int4 kernel=fp8 tied=no_weight batched=shape {kept}"));
    let refused = |flags: &str, code: i32, message: &str| {
        bench.run(&format!("quantize in.onnx -o no.onnx {flags}")).expect(
            code,
            "",
            &format!("tcast: error: {message}\n"),
        );
    };
    refused(
        "--scheme int8 --rule tied=int8",
        1,
        "in.onnx: tensor 'tied': a rule would quantize it, but it must be kept: not weights of MatMul, Gemm and Conv \
         alone\n  leave it out of the rule",
    );
    refused(
        "--scheme nvfp4",
        2,
        "in.onnx: ONNX models have no scheme nvfp4\n  choose one of fp8, int8, int4, int4-asym, int2, int2-asym, int8-asym",
    );
    refused(
        "--scheme int4 --search mse",
        2,
        "in.onnx: is an ONNX model, for which an option has no effect\n  leave --search out",
    );
    bench.run("quantize in.onnx --scheme int8 -o out.safetensors --min-elements 0").says(1, "", "weight");
    // An infinite value has no code.
    let infinite = initializer("w", FLOAT, &[1, 2], &floats(&[1.0, f32::INFINITY]));
    bench.write("inf.onnx", &of_opset(21, &[infinite, node("MatMul", &["x", "w"], "y")].concat()));
    for scheme in ["int8", "int4"] {
        bench.run(&format!("quantize inf.onnx --scheme {scheme} -o no.onnx --min-elements 0")).says(1, "", "NaN");
    }
    assert!(!bench.files().contains(&"no.onnx".to_owned()));
}

#[test]
fn a_scheme_that_the_opset_lacks_is_refused_unless_it_can_be_raised() {
    let bench = Bench::new();
    let weight = initializer("w", FLOAT, &[1, 2], &floats(&[1.0, 2.0]));
    let graph = [weight, node("MatMul", &["x", "w"], "y")].concat();
    bench.write("in.onnx", &model(&graph));
    bench.run("quantize in.onnx --scheme int8 --layout modelopt -o no.onnx").says(2, "", "--layout");
    for (scheme, dtype, opset) in [("fp8", "float8e4m3fn", 19), ("int4", "int4", 21), ("int4-asym", "uint4", 21)] {
        bench.run(&format!("quantize in.onnx --scheme {scheme} -o no.onnx --min-elements 0")).says(1, "", dtype);
        bench
            .run(&format!("quantize in.onnx --scheme {scheme} -o out.onnx --min-elements 0 --raise-opset -q -f"))
            .expect(0, "", "");
        assert!(bench.read("out.onnx").ends_with(&field(8, &number(2, opset))));
    }
    bench.run("quantize in.onnx --scheme int8 -o out.onnx --min-elements 0 -q -f").expect(0, "", "");
    let half = [initializer("w", 10, &[1, 2], &[0, 0x3c, 0, 0x40]), node("MatMul", &["x", "w"], "y")].concat();
    bench.write("half.onnx", &of_opset(13, &half));
    bench.run("quantize half.onnx --scheme int8 -o no.onnx --min-elements 0").says(1, "", "--raise-opset");
    let ir_3 = [&number(1, 3)[..], &field(7, &[&graph[..], &field(11, &field(1, b"w"))].concat())].concat();
    bench.write("ir_3.onnx", &[ir_3, field(8, &number(2, 16))].concat());
    bench.run("quantize ir_3.onnx --scheme int8 -o no.onnx --min-elements 0").says(1, "", "ir_3.onnx");
    let softmax = node("Softmax", &["a"], "b");
    bench.write("old.onnx", &of_opset(12, &[graph, softmax].concat()));
    bench.run("quantize old.onnx --scheme int8 -o out.onnx --min-elements 0 --raise-opset -f").says(1, "", "Softmax_1");
}

#[test]
fn a_real_model_is_quantized_into_two_files_with_the_same_bytes_for_any_number_of_threads() {
    let bench = Bench::new();
    fs::copy(fixture("onnx_models/ort_nbits.onnx"), bench.path("q.onnx")).unwrap();
    bench.run("dequantize q.onnx -o in.onnx -q").expect(0, "", "");
    for scheme in ["int8", "fp8", "int4", "int4-asym"] {
        let run = |out: &str, threads: u32| {
            let outcome = bench.run(&format!(
                "quantize in.onnx --scheme {scheme} -o {out} -f -q --min-elements 0 --external-data --hash --report r.json -j {threads}"
            ));
            outcome.expect(0, "", "");
            (bench.read(out), bench.read(&format!("{out}.data")))
        };
        let (one, many) = (run("a.onnx", 1), run("a.onnx", 7));
        assert!(one == many, "{scheme}");
        assert_eq!(bench.run("diff --report r.json a.onnx -q").code, Some(0), "{scheme}");
        // Initializers are field 5 of the graph.
        let count = |file: &[u8]| fields(file, 7).iter().flat_map(|graph| fields(graph, 5)).count();
        assert!(count(&one.0) > count(&bench.read("in.onnx")), "{scheme}");
        let compared = bench.run("diff in.onnx a.onnx");
        assert!(compared.stdout.contains(" w2  ") && !compared.stdout.contains("only in A\n"), "{}", compared.stdout);
    }
}

#[test]
fn a_weight_whose_shape_fits_no_group_is_shown_with_the_reason() {
    let bench = Bench::new();
    for (file, shape, scheme) in [("vector", &[4][..], "int8"), ("batch", &[2, 2, 2], "int4")] {
        let count = shape.iter().map(|length| usize::from(*length)).product();
        let weight = initializer("w", FLOAT, shape, &floats(&vec![1.0; count]));
        bench.write(&format!("{file}.onnx"), &of_opset(21, &[weight, node("MatMul", &["x", "w"], "y")].concat()));
        bench.run(&format!("quantize {file}.onnx --scheme {scheme} --min-elements 0 -o out.onnx")).says(
            1,
            "",
            "quantized",
        );
    }
}

#[test]
fn weights_in_typed_fields_become_the_same_codes() {
    let varint = |mut value: u32| {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    };
    let bench = Bench::new();
    let values = (0..128_u8).map(|number| f32::from(number) - 60.5);
    let floats: Vec<[u8; 4]> = values.clone().map(f32::to_le_bytes).collect();
    let halves: Vec<u16> = values.clone().map(|value| half::f16::from_f32(value).to_bits()).collect();
    let shorts: Vec<u16> = values.map(|value| half::bf16::from_f32(value).to_bits()).collect();
    let raw = |bits: &[u16]| field(9, &bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>());
    let packed = |bits: &[u16]| field(5, &bits.iter().flat_map(|bits| varint((*bits).into())).collect::<Vec<u8>>());
    let single = |bits: &[u16]| {
        bits.iter().flat_map(|bits| [number(5, 0)[..1].to_vec(), varint((*bits).into())].concat()).collect()
    };
    let [first, second] = [&floats[..50], &floats[50..]].map(|part| field(4, part.as_flattened()));
    let unpacked: Vec<u8> = floats.iter().flat_map(|value| [&[4 << 3 | 5], &value[..]].concat()).collect();
    for (dtype, forms) in [
        (1, vec![field(9, floats.as_flattened()), [first, second].concat(), unpacked]),
        (10, vec![raw(&halves), packed(&halves), single(&halves)]),
        (16, vec![raw(&shorts), packed(&shorts), single(&shorts)]),
    ] {
        for scheme in ["int8", "int4", "fp8"] {
            let mut wanted = Vec::new();
            for elements in &forms {
                let dims = [number(1, 32), number(1, 4)].concat();
                let weight = [dims, number(2, dtype), field(8, b"w"), elements.clone()].concat();
                let graph = [field(5, &weight), node("MatMul", &["x", "w"], "y")].concat();
                bench.write("in.onnx", &[&number(1, 10)[..], &field(7, &graph), &field(8, &number(2, 21))].concat());
                let line =
                    format!("quantize in.onnx --scheme {scheme} --group-size 16 --min-elements 0 -o out.onnx -f -q");
                let line = if scheme == "int4" { line } else { line.replace("--group-size 16 ", "") };
                bench.run(&format!("{line} --hash --report r.json")).expect(0, "", "");
                let out = bench.read("out.onnx");
                if wanted.is_empty() {
                    wanted = out;
                } else {
                    assert!(out == wanted, "{dtype} {scheme}");
                }
            }
        }
    }
    // A number that is no element is found before anything is written.
    let weight = [number(1, 1), number(1, 4), number(2, 10), field(8, b"w")].concat();
    let elements = field(5, &[1, 0x80, 0x80, 4, 0, 0]);
    let graph = [field(5, &[weight, elements].concat()), node("MatMul", &["x", "w"], "y")].concat();
    bench.write("in.onnx", &[&number(1, 10)[..], &field(7, &graph), &field(8, &number(2, 21))].concat());
    bench.run("quantize in.onnx --scheme int8 --min-elements 0 -o none.onnx -q").says(1, "", "int32_data");
}
