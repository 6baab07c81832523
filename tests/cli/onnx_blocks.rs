//! Weights of ONNX Runtime's operators that compute with codes, `MatMulNBits` and `GatherBlockQuantized`.

use crate::common::onnx::{field, fields, initializer, model, number};
use crate::common::{Bench, fixture};
use std::collections::BTreeMap;
use std::fs;

pub(crate) const FLOAT: u8 = 1;
pub(crate) const UINT8: u8 = 2;
pub(crate) const INT32: u8 = 6;
pub(crate) const UINT4: u8 = 21;

pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The initializers of a model by name: their bytes.
pub(crate) fn initializers(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let graph = fields(file, 7).remove(0);
    let text = |tensor: &[u8]| String::from_utf8(fields(tensor, 8).remove(0)).unwrap();
    fields(&graph, 5).iter().map(|tensor| (text(tensor), fields(tensor, 9).remove(0))).collect()
}

/// The nodes of a model: operator, domain, name, and inputs.
pub(crate) fn nodes(file: &[u8]) -> Vec<String> {
    let texts = |node: &[u8], number| {
        let all = fields(node, number).into_iter().map(|text| String::from_utf8(text).unwrap());
        all.collect::<Vec<_>>().join(" ")
    };
    let graph = fields(file, 7).remove(0);
    let show = |node: &Vec<u8>| [4, 7, 3, 1].map(|number| texts(node, number)).join("|");
    fields(&graph, 1).iter().map(show).collect()
}

/// The code of a stream at an index, low bits first.
fn code(bytes: &[u8], bits: usize, at: usize) -> u8 {
    bytes[at * bits / 8] >> (at * bits % 8) & (u8::MAX >> (8 - bits))
}

/// A float of the type of the model.
fn float(bytes: &[u8], is_half: bool, at: usize) -> f32 {
    if is_half {
        half::f16::from_le_bytes(*bytes.as_chunks().0.get(at).unwrap()).to_f32()
    } else {
        f32::from_le_bytes(*bytes.as_chunks().0.get(at).unwrap())
    }
}

/// The values of a weight [k, n] in blocks of 16, one by one.
fn product_weight(parts: &BTreeMap<String, Vec<u8>>, name: &str, [k, n]: [usize; 2], bits: usize) -> Vec<f32> {
    let (codes, scales) = (&parts[&format!("{name}_Q{bits}")], &parts[&format!("{name}_scales")]);
    let zeros = parts.get(&format!("{name}_zero_points"));
    let blocks = k.div_ceil(16);
    let value = |row: usize, column: usize| {
        let (block, line) = (row / 16, (blocks * bits).div_ceil(8));
        let zero = zeros.map_or(1 << (bits - 1), |zeros| i32::from(code(&zeros[column * line..], bits, block)));
        let code = i32::from(code(codes, bits, column * blocks * 16 + row));
        (code - zero) as f32 * float(scales, scales.len() == 2 * n * blocks, column * blocks + block)
    };
    (0..k * n).map(|at| value(at / n, at % n)).collect()
}

/// The values of the table [5, 40] in blocks of 16, one by one.
fn table(parts: &BTreeMap<String, Vec<u8>>) -> Vec<f32> {
    let (codes, scales, zeros) = (&parts["emb_Q4"], &parts["emb_scales"], parts.get("emb_zero_points"));
    let value = |at: usize| {
        let (group, code) = (at / 40 * 3 + at % 40 / 16, code(codes, 4, at));
        let number = match zeros {
            Some(zeros) => i32::from(code) - i32::from(self::code(zeros, 4, group)),
            None => i32::from((code << 4).cast_signed() >> 4),
        };
        number as f32 * float(scales, scales.len() == 2 * 15, group)
    };
    (0..200).map(value).collect()
}

#[test]
fn values_come_in_the_place_of_codes_that_nodes_multiply() {
    let bench = Bench::new();
    let mut count = 0;
    for (name, bits) in [
        ("f32.int2", 2),
        ("f32.int2-asym", 2),
        ("f32.int4", 4),
        ("f32.int4-asym", 4),
        ("f32.int8", 8),
        ("f32.int8-asym", 8),
        ("f16.int4", 4),
        ("f16.int4-asym", 4),
    ] {
        let path = fixture(&format!("onnx_models/matmulnbits/{name}.onnx"));
        let parts = initializers(&fs::read(&path).unwrap());
        fs::copy(&path, bench.path("in.onnx")).unwrap();
        bench.run("dequantize in.onnx -o out.onnx -q -f").expect(0, "", "");
        let out = bench.read("out.onnx");
        let values = initializers(&out);
        assert_eq!(values.keys().map(String::as_str).collect::<Vec<_>>(), ["emb", "tail", "w"], "{name}");
        let is_half = name.starts_with("f16");
        let mut check = |weight: &str, wanted: &[f32]| {
            count += wanted.len();
            for (at, wanted) in wanted.iter().enumerate() {
                let rounded = if is_half { half::f16::from_f32(*wanted).to_f32() } else { *wanted };
                let value = float(&values[weight], is_half, at);
                assert_eq!(value.to_bits(), rounded.to_bits(), "{name}: {weight} {at}");
            }
        };
        check("w", &product_weight(&parts, "w", [40, 8], bits));
        check("tail", &product_weight(&parts, "tail", [8, 3], bits));
        if bits == 4 {
            check("emb", &table(&parts));
        }
        assert_eq!(
            nodes(&out),
            ["Gather||gather|emb ids", "MatMul||first|x w", "Relu|||h", "MatMul|||r tail"],
            "{name}"
        );
        // The weights are the same to all commands.
        bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
        bench.run("dequantize in.onnx -o out.safetensors -q -f").expect(0, "", "");
        bench.run("diff out.onnx out.safetensors -q").expect(0, "", "");
    }
    assert_eq!(count, 8 * (320 + 24) + 4 * 200);
}

#[test]
fn inspect_shows_the_weights_and_single_codes() {
    let bench = Bench::new();
    fs::copy(fixture("onnx_models/matmulnbits/f32.int4-asym.onnx"), bench.path("in.onnx")).unwrap();
    let outcome = bench.run("inspect in.onnx");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for line in [
        "  emb   uint4, 1 x 16  [5, 40]  168 B  onnx-gather, 6.72 bits per weight\n",
        "  w     uint4, 16 x 1  [40, 8]  304 B  onnx-matmulnbits, 7.60 bits per weight\n",
    ] {
        assert!(outcome.stdout.contains(line), "{}", outcome.stdout);
    }
    bench.run("bitcast in.onnx --bits --tensor w --range 1..4").expect(
        0,
        "1  0011  (3 - 0) * 1.3897166 = 4.16915\n2  1000  (8 - 4) * 0.009649407 = 0.03859763\n\
         3  0000  (0 - 15) * 0.06666667 = -1\n",
        "",
    );
}

/// An attribute that is a small number.
fn attribute(name: &str, value: u8) -> Vec<u8> {
    field(5, &[field(1, name.as_bytes()), number(3, value), vec![0xa0, 1, 2]].concat())
}

/// A node of ONNX Runtime.
pub(crate) fn node(op: &str, inputs: &[&str], attributes: &[(&str, u8)]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    let attributes: Vec<u8> = attributes.iter().flat_map(|(name, value)| attribute(name, *value)).collect();
    let names = [field(2, b"y"), field(3, b"n"), field(4, op.as_bytes()), field(7, b"com.microsoft")].concat();
    field(1, &[inputs, names, attributes].concat())
}

/// A product with a weight of 17 rows and 2 columns, in blocks of 16 codes of 4 bits: code 9, and 10 in the last row.
fn product(inputs: &[&str], others: &[Vec<u8>]) -> Vec<u8> {
    let codes: Vec<u8> = [&[0x99; 8][..], &[0x0a, 0, 0, 0, 0, 0, 0, 0]].concat().repeat(2);
    let codes = initializer("c", UINT8, &[2, 2, 8], &codes);
    let attributes = [("K", 17), ("N", 2), ("bits", 4), ("block_size", 16)];
    model(&[node("MatMulNBits", inputs, &attributes), codes, others.concat()].concat())
}

#[test]
fn optional_inputs_of_a_product_are_followed() {
    let bench = Bench::new();
    let scales = initializer("s", FLOAT, &[4], &floats(&[0.1, 10.0, 0.3, -1.0]));
    let zeros = initializer("z", FLOAT, &[2, 2], &floats(&[8.5, 9.0, 7.0, 8.0]));
    let packed = initializer("z", UINT8, &[2], &[0x97, 0x68]);
    let groups = |last: u8| {
        let index: Vec<u8> = (0..17_u8).flat_map(|row| [if row == 16 { last } else { 1 - row % 2 }, 0, 0, 0]).collect();
        initializer("g", INT32, &[17], &index)
    };
    let bias = initializer("b", FLOAT, &[2], &floats(&[1.0, 2.0]));
    let sums = |code: f32, scale: f32, zero: f32| code * scale - zero * scale;
    let run = |inputs: &[&str], others: &[Vec<u8>]| {
        bench.write("in.onnx", &product(inputs, others));
        bench.run("dequantize in.onnx -o out.onnx -q -f").expect(0, "", "");
        let out = bench.read("out.onnx");
        (initializers(&out).remove("c_float32").unwrap(), nodes(&out), initializers(&out).len())
    };
    // Flat scales, and a block that ends early.
    let rows = |row: [f32; 2], last: [f32; 2]| floats(&[row.repeat(16), last.to_vec()].concat());
    let (values, _, count) = run(&["x", "c", "s"], std::slice::from_ref(&scales));
    assert_eq!((values, count), (rows([0.1, 0.3], [20.0, -2.0]), 1));
    let (values, ..) = run(&["x", "c", "s", "z"], &[scales.clone(), packed.clone()]);
    assert_eq!(values, rows([0.1 * 2.0, 0.3], [10.0, -4.0]));
    // Zero points that are floats, and a bias.
    let (values, nodes, count) = run(&["x", "c", "s", "z", "", "b"], &[scales.clone(), zeros.clone(), bias]);
    let of_sums = rows([sums(9.0, 0.1, 8.5), sums(9.0, 0.3, 7.0)], [sums(10.0, 10.0, 9.0), sums(10.0, -1.0, 8.0)]);
    assert_eq!((values, count), (of_sums, 2));
    assert_eq!(nodes, ["MatMul||n|x c_float32", "Add||y_float32|y_float32 b"]);
    // A group for each row.
    let (values, ..) = run(&["x", "c", "s", "", "g"], &[scales.clone(), groups(0)]);
    let pair = [[sums(9.0, 10.0, 8.0), sums(9.0, -1.0, 8.0)], [sums(9.0, 0.1, 8.0), sums(9.0, 0.3, 8.0)]].concat();
    let last = [sums(10.0, 0.1, 8.0), sums(10.0, 0.3, 8.0)];
    assert_eq!(values, floats(&[pair.repeat(8), last.to_vec()].concat()));
    bench.run("bitcast in.onnx --bits --tensor c_float32 --range 1..3").expect(
        0,
        "1  1001  (9 - 8) * -1 = -1\n2  1001  (9 - 8) * 0.1 = 0.100000024\n",
        "",
    );
    assert_ne!(sums(9.0, 0.1, 8.0).to_bits(), 0.1_f32.to_bits(), "the sum of two products is not the product");
    // A group that does not exist.
    bench.write("in.onnx", &product(&["x", "c", "s", "", "g"], &[scales.clone(), groups(2)]));
    bench.run("dequantize in.onnx -o out.onnx -q -f").says(1, "", "group");
    // ONNX Runtime computes other values than these inputs describe.
    bench.write("in.onnx", &product(&["x", "c", "s", "z", "g"], &[scales, groups(0), packed]));
    bench.run("dequantize in.onnx -o out.onnx -q -f").says(1, "", "MatMulNBits");
}

#[test]
fn tables_of_bytes_are_packed_along_the_last_axis() {
    let bench = Bench::new();
    let attributes = [("block_size", 16), ("bits", 4), ("gather_axis", 1), ("quantize_axis", 1)];
    let scales = initializer("s", FLOAT, &[1, 2], &floats(&[0.5, 2.0]));
    let codes: Vec<u8> = [[0x98; 8], [0x0f; 8]].concat();
    let run = |attributes: &[(&str, u8)], dtype: u8, dims: &[u8], inputs: &[&str], others: &[u8]| {
        let codes = initializer("t_Q4", dtype, dims, &codes);
        let graph = [&node("GatherBlockQuantized", inputs, attributes)[..], &codes, &scales, others].concat();
        bench.write("in.onnx", &model(&graph));
        bench.run("dequantize in.onnx -o out.onnx -q -f").expect(0, "", "");
        initializers(&bench.read("out.onnx")).remove("t").unwrap()
    };
    let values = |first: [f32; 2], second: [f32; 2]| floats(&[first.repeat(8), second.repeat(8)].concat());
    let middle = values([0.0, 0.5], [14.0, -16.0]);
    assert_eq!(run(&attributes, UINT8, &[1, 16], &["t_Q4", "i", "s"], &[]), middle);
    assert_eq!(run(&attributes, UINT4, &[1, 32], &["t_Q4", "i", "s"], &[]), middle);
    assert_eq!(nodes(&bench.read("out.onnx")), ["Gather||n|t i"]);
    let zeros = initializer("z", UINT8, &[1, 1], &[0x1f]);
    let shifted = values([-3.5, -3.0], [28.0, -2.0]);
    assert_eq!(run(&attributes, UINT8, &[1, 16], &["t_Q4", "i", "s", "z"], &zeros), shifted);
}

#[test]
fn nodes_whose_blocks_are_not_described_stay() {
    let bench = Bench::new();
    let scales = initializer("s", FLOAT, &[4], &floats(&[0.1, 10.0, 0.3, -1.0]));
    for attributes in [
        &[("K", 17), ("N", 2), ("bits", 3), ("block_size", 16)][..],
        &[("K", 17), ("N", 2), ("bits", 4), ("block_size", 24)],
        &[("K", 17), ("N", 2), ("bits", 4), ("block_size", 16), ("weight_prepacked", 1)],
    ] {
        let codes = initializer("c", UINT8, &[2, 2, 8], &[0; 32]);
        bench.write(
            "in.onnx",
            &model(&[node("MatMulNBits", &["x", "c", "s"], attributes), codes, scales.clone()].concat()),
        );
        bench.run("dequantize in.onnx -o out.onnx").says(1, "", "MatMulNBits");
    }
    // A table of no rows, each of 2^63 - 1 bytes.
    let dims = [&[0x08, 0, 0x08][..], &[0xff; 8], &[0x7f]].concat();
    let codes = field(5, &[dims, number(2, UINT8), field(8, b"c"), field(9, &[])].concat());
    let table = node("GatherBlockQuantized", &["c", "i", "s"], &[("block_size", 16), ("bits", 2)]);
    bench.write("in.onnx", &model(&[table, codes, scales.clone()].concat()));
    bench.run("dequantize in.onnx -o out.onnx").says(1, "", "GatherBlockQuantized");
    // Shapes that contradict the attributes.
    let codes = initializer("c", UINT8, &[2, 1, 8], &[0; 16]);
    let attributes = [("K", 17), ("N", 2), ("bits", 4), ("block_size", 16)];
    bench.write("in.onnx", &model(&[node("MatMulNBits", &["x", "c", "s"], &attributes), codes, scales].concat()));
    bench.run("dequantize in.onnx -o out.onnx").says(1, "", "weight");
}

#[test]
fn codes_and_nodes_are_those_of_onnx_runtimes_quantizer() {
    let bench = Bench::new();
    for (source, scheme) in [
        ("f32", "int2"),
        ("f32", "int2-asym"),
        ("f32", "int4"),
        ("f32", "int4-asym"),
        ("f32", "int8"),
        ("f32", "int8-asym"),
        ("f16", "int4"),
        ("f16", "int4-asym"),
    ] {
        let fixture = |name: &str| fixture(&format!("onnx_models/matmulnbits/{name}.onnx"));
        fs::copy(fixture(source), bench.path("in.onnx")).unwrap();
        let tables = if scheme.starts_with("int4") { "--include-embeddings" } else { "" };
        let options = format!("--layout matmulnbits --block-size 16 --accuracy-level 4 --min-elements 1 {tables}");
        bench.run(&format!("quantize in.onnx --scheme {scheme} {options} -o out.onnx -f -q")).expect(0, "", "");
        let theirs = fs::read(fixture(&format!("{source}.{scheme}"))).unwrap();
        let ours = bench.read("out.onnx");
        assert!(initializers(&ours) == initializers(&theirs), "{source} {scheme}");
        assert_eq!(nodes(&ours), nodes(&theirs), "{source} {scheme}");
        let graph = |file: &[u8]| fields(file, 7).remove(0);
        let attributes = |file: &[u8]| {
            let of_node = |node: &Vec<u8>| {
                let mut all = fields(node, 5);
                all.sort();
                all
            };
            fields(&graph(file), 1).iter().map(of_node).collect::<Vec<_>>()
        };
        assert_eq!(attributes(&ours), attributes(&theirs), "{source} {scheme}");
        let imports = fields(&ours, 8);
        assert_eq!(imports[1], [field(1, b"com.microsoft"), number(2, 1)].concat(), "{source} {scheme}");
        bench.run("dequantize out.onnx -o back.onnx -f -q").expect(0, "", "");
        bench.run("diff out.onnx back.onnx -q").expect(0, "", "");
    }
}

#[test]
fn only_matrices_of_products_become_blocks() {
    let bench = Bench::new();
    let values: Vec<f32> = (0..34_u8).map(|at| f32::from(at) - 17.0).collect();
    let weight = |name: &str| initializer(name, FLOAT, &[17, 2], &floats(&values));
    let plain = |op: &str, weight: &str, output: &str| crate::common::onnx::node(op, &["x", weight], output);
    let nodes_of =
        [plain("MatMul", "w", "y"), plain("Gemm", "v", "z"), plain("MatMul", "u", "a"), plain("Gemm", "u", "b")];
    let weights = [weight("w"), weight("v"), weight("u")].concat();
    let quantize = "quantize in.onnx --scheme int4 --layout matmulnbits --min-elements 1 -o out.onnx -f";
    bench.write("in.onnx", &model(&[nodes_of.concat(), weights.clone()].concat()));
    let outcome = bench.run(quantize);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.check_message("MatMul nodes only");
    let out = bench.read("out.onnx");
    assert_eq!(nodes(&out)[0], "MatMulNBits|com.microsoft||x w_Q4 w_scales");
    assert_eq!(nodes(&out)[1..], ["Gemm|||x v", "MatMul|||x u", "Gemm|||x u"]);
    // The default is blocks of 32. Rows beyond the last are codes 0.
    let parts = initializers(&out);
    assert_eq!(parts["w_scales"], floats(&[17.0 / 8.0, 16.0 / 8.0]));
    assert_eq!((parts["w_Q4"].len(), &parts["w_Q4"][8..16]), (32, &[0x0f, 0, 0, 0, 0, 0, 0, 0][..]));
    let attributes = fields(&fields(&fields(&out, 7)[0], 1)[0], 5);
    assert_eq!(attributes.len(), 4, "there is no accuracy_level");
    // Names of ONNX Runtime that are taken are left to their values.
    let other = plain("Neg", "x", "w_scales");
    bench.write("in.onnx", &model(&[nodes_of.concat(), weights, other].concat()));
    bench.run(&format!("{quantize} -q")).expect(0, "", "");
    assert_eq!(nodes(&bench.read("out.onnx"))[0], "MatMulNBits|com.microsoft||x w_uint8 w_uint8_scale");
    bench.run("dequantize out.onnx -o back.onnx -q").expect(0, "", "");
    assert_eq!(nodes(&bench.read("back.onnx"))[0], "MatMul|||x w_uint8_float32_1");
}

#[test]
fn only_tables_that_nothing_else_uses_become_blocks() {
    let bench = Bench::new();
    let table = |name: &str| initializer(name, FLOAT, &[2, 17], &floats(&[1.0; 34]));
    let plain = crate::common::onnx::node;
    let nodes_of =
        [plain("Gather", &["t", "i"], "y"), plain("Gather", &["tied", "i"], "z"), plain("MatMul", &["x", "tied"], "a")];
    bench.write("in.onnx", &model(&[nodes_of.concat(), table("t"), table("tied")].concat()));
    let quantize = "quantize in.onnx --scheme int4-asym --layout matmulnbits --include-embeddings --block-size 16 --min-elements 1 -o out.onnx -f";
    bench.run(&format!("{quantize} --raise-opset -q")).expect(0, "", "");
    let out = bench.read("out.onnx");
    assert_eq!(nodes(&out)[0], "GatherBlockQuantized|com.microsoft||t_Q4 i t_scales t_zero_points");
    assert_eq!(nodes(&out)[1..], ["Gather|||tied i", "MatMul|||x tied"]);
    // The last block of a row has one value, and each row a scale and a zero point of its own.
    let parts = initializers(&out);
    assert_eq!((parts["t_Q4"].len(), parts["t_scales"].len(), parts["t_zero_points"].len()), (17, 16, 2));
    let quantize = quantize.replace(" --include-embeddings", "");
    bench.run(&format!("{quantize} --rule t=int4")).says(1, "", "--include-embeddings");
    // Tables have codes of 4 bits alone, and a table that is multiplied too has none.
    for rule in ["t=int8", "tied=int4"] {
        bench.run(&format!("{quantize} --rule {rule}")).says(1, "", "MatMul");
    }
}

#[test]
fn options_of_blocks_need_the_layout() {
    let bench = Bench::new();
    fs::copy(fixture("onnx_models/matmulnbits/f32.onnx"), bench.path("in.onnx")).unwrap();
    for (arguments, message) in [
        ("--scheme int4 --accuracy-level 4", "--accuracy-level"),
        ("--scheme int8 --layout matmulnbits --include-embeddings", "--include-embeddings"),
        ("--scheme fp8 --layout matmulnbits", "ONNX"),
    ] {
        bench.run(&format!("quantize in.onnx {arguments} -o out.onnx")).says(2, "", message);
    }
    let outcome =
        bench.run("quantize in.onnx --scheme int4 --layout matmulnbits --block-size 24 --min-elements 1 -o out.onnx");
    outcome.says(1, "", "quantized");
}
