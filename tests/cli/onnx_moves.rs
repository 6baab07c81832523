//! Weights of ONNX models that are quantized already move between `DequantizeLinear` and `MatMulNBits`.

use crate::common::onnx::{field, fields, initializer, model, node_with, number};
use crate::common::{Bench, fixture};
use crate::onnx_blocks::{FLOAT, INT32, UINT4, UINT8, floats, initializers, node, nodes};
use std::fs;

const INT8: u8 = 3;
const INT4: u8 = 22;

/// A model of opset 21 with this graph.
fn of_opset_21(graph: &[u8]) -> Vec<u8> {
    [&number(1, 10)[..], &field(7, graph), &field(8, &number(2, 21))].concat()
}

/// The nodes that decode the codes `c` along an axis, and multiply them.
fn product(inputs: &[&str], attributes: &[(&str, u8)]) -> Vec<u8> {
    let decode = node_with("DequantizeLinear", inputs, "w", attributes);
    [decode, node_with("MatMul", &["x", "w"], "y", &[])].concat()
}

/// Packs codes of this many bits, low bits first.
fn pack(codes: &[u8], bits: usize) -> Vec<u8> {
    let byte = |codes: &[u8]| codes.iter().rev().fold(0, |byte, code| byte << (bits % 8) | code);
    codes.chunks(8 / bits).map(byte).collect()
}

const TO_PRODUCT: &str = "quantize in.onnx --layout matmulnbits -o out.onnx -f -q --scheme";
const TO_DECODING: &str = "quantize in.onnx -o out.onnx -f -q --scheme";

#[test]
fn codes_of_onnx_runtimes_quantizer_come_through_both_nodes() {
    let bench = Bench::new();
    for (source, scheme) in [("f32", "int4"), ("f32", "int4-asym"), ("f16", "int4"), ("f16", "int4-asym")] {
        let path = fixture(&format!("onnx_models/matmulnbits/{source}.{scheme}.onnx"));
        fs::copy(&path, bench.path("in.onnx")).unwrap();
        let before = initializers(&bench.read("in.onnx"));
        bench.run(&format!("{TO_DECODING} {scheme}")).expect(0, "", "");
        let decoding = bench.read("out.onnx");
        let operators: Vec<String> =
            nodes(&decoding).iter().map(|node| node.split('|').next().unwrap().into()).collect();
        let wanted = ["DequantizeLinear", "DequantizeLinear", "GatherBlockQuantized", "MatMul", "Relu", "MatMul"];
        assert_eq!(operators, wanted, "{source} {scheme}");
        bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
        fs::rename(bench.path("out.onnx"), bench.path("in.onnx")).unwrap();
        bench.run(&format!("{TO_PRODUCT} {scheme}")).expect(0, "", "");
        let after = initializers(&bench.read("out.onnx"));
        // Rows beyond the last are codes 0.
        assert!(before == after, "{source} {scheme}");
        bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
    }
}

#[test]
fn every_integer_that_fits_moves_with_its_zero_point() {
    const K: usize = 17;
    const N: usize = 3;
    let bench = Bench::new();
    // The type and the bits of codes, their zero points, and the scheme. All are in blocks of 16, or of the column.
    for (dtype, bits, zero, scheme) in [
        (INT4, 4, None, "int4"),
        (INT4, 4, Some(3_i32), "int4-asym"),
        (UINT4, 4, Some(8), "int4"),
        (UINT4, 4, None, "int4-asym"),
        (INT8, 8, None, "int8"),
        (INT8, 8, Some(-5), "int8-asym"),
        (UINT8, 8, Some(128), "int8"),
        (UINT8, 8, Some(7), "int8-asym"),
        (INT4, 4, None, "int8"),
        (UINT4, 4, Some(2), "int8-asym"),
    ] {
        let is_signed = [INT4, INT8].contains(&dtype);
        let half = if is_signed { 0 } else { 1 << (bits - 1) };
        let new_bits: usize = if scheme.starts_with("int8") { 8 } else { 4 };
        // Codes as they are stored, and as numbers whose middle is 0.
        let stored: Vec<u8> = (0..K * N).map(|at| (at * 37 % (1 << bits)) as u8).collect();
        let spare = 32 - bits as u32;
        let number = |code: u8| {
            let wide = i32::from(code);
            if is_signed { wide << spare >> spare } else { wide - half }
        };
        for block in [16, 0] {
            let groups = if block == 0 { 1 } else { K.div_ceil(block) };
            let scales: Vec<f32> = (0..groups * N).map(|at| 0.1 + at as f32).collect();
            let (dims, attributes) = match block {
                0 => (vec![N as u8], vec![("axis", 1)]),
                _ => (vec![groups as u8, N as u8], vec![("block_size", block as u8), ("axis", 0)]),
            };
            let zeros = vec![zero.unwrap_or_default() as u8 & (u8::MAX >> (8 - bits)); groups * N];
            let inputs = ["c", "s", "z"];
            let mut graph = product(&inputs[..if zero.is_some() { 3 } else { 2 }], &attributes);
            graph.extend(initializer("c", dtype, &[K as u8, N as u8], &pack(&stored, bits)));
            graph.extend(initializer("s", FLOAT, &dims, &floats(&scales)));
            graph.extend(zero.iter().flat_map(|_| initializer("z", dtype, &dims, &pack(&zeros, bits))));
            bench.write("in.onnx", &of_opset_21(&graph));
            bench.run(&format!("{TO_PRODUCT} {scheme}")).expect(0, "", "");
            let out = bench.read("out.onnx");
            let parts = initializers(&out);
            let label = format!("{dtype} {scheme} {block}");
            // A scale of a whole column belongs to each of its blocks, of 32 inputs.
            let (block, blocks) = if block == 0 { (32, 1) } else { (16, 2) };
            let new_half = 1 << (new_bits - 1);
            for column in 0..N {
                let new = |row: usize| if row < K { number(stored[row * N + column]) + new_half } else { 0 };
                let wanted: Vec<u8> = (0..blocks * block).map(|row| new(row) as u8).collect();
                let line = blocks * block * new_bits / 8;
                let codes = &parts[&format!("w_Q{new_bits}")][column * line..][..line];
                assert_eq!(codes, pack(&wanted, new_bits), "{label}: column {column}");
                let scale = |block: usize| scales[block.min(groups - 1) * N + column];
                let wanted: Vec<f32> = (0..blocks).map(scale).collect();
                assert_eq!(parts["w_scales"][column * blocks * 4..][..blocks * 4], floats(&wanted), "{label}");
                if scheme.ends_with("asym") {
                    let new = (zero.unwrap_or_default() - half + new_half) as u8;
                    let line = (blocks * new_bits).div_ceil(8);
                    // An unused half of the last byte is the middle.
                    let mut wanted = vec![new; blocks];
                    wanted.resize(line * 8 / new_bits, new_half as u8);
                    let zeros = &parts["w_zero_points"][column * line..][..line];
                    assert_eq!(zeros, pack(&wanted, new_bits), "{label}: zero points");
                }
            }
            assert_eq!(parts.len(), if scheme.ends_with("asym") { 3 } else { 2 }, "{label}");
            bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
        }
    }
}

#[test]
fn blocks_are_divided_and_never_joined() {
    let bench = Bench::new();
    let codes: Vec<u8> = (0..64).collect();
    let scales = initializer("s", FLOAT, &[2, 2], &floats(&[0.5, 2.0, -1.0, 3.0]));
    let graph =
        [product(&["c", "s"], &[("block_size", 32)]), initializer("c", INT4, &[64, 2], &codes), scales].concat();
    // The axis is 1 unless an attribute says otherwise.
    let of_axis = |axis: u8| {
        let attribute = field(5, &[field(1, b"axis"), number(3, axis), vec![0xa0, 1, 2]].concat());
        let mut nodes = fields(&field(7, &graph), 7).remove(0);
        let decode = fields(&nodes, 1).remove(0);
        nodes = nodes[field(1, &decode).len()..].to_vec();
        of_opset_21(&[field(1, &[decode, attribute].concat()), nodes].concat())
    };
    bench.write("in.onnx", &of_axis(0));
    for (size, scales) in
        [("", &[0.5, -1.0, 2.0, 3.0][..]), (" --block-size 16", &[0.5, 0.5, -1.0, -1.0, 2.0, 2.0, 3.0, 3.0])]
    {
        bench.run(&format!("{TO_PRODUCT} int4{size}")).expect(0, "", "");
        assert_eq!(initializers(&bench.read("out.onnx"))["w_scales"], floats(scales));
        bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
    }
    bench.run(&format!("{TO_PRODUCT} int4 --block-size 64")).says(1, "", "--group-size");
    // The way back joins no blocks either.
    fs::rename(bench.path("out.onnx"), bench.path("in.onnx")).unwrap();
    bench.run(&format!("{TO_DECODING} int4 --group-size 32")).says(1, "", "--group-size");
    bench.run(&format!("{TO_DECODING} int8")).says(1, "", "in.onnx");
    bench.run(&format!("{TO_DECODING} int4 --group-size 8")).expect(0, "", "");
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
}

#[test]
fn weights_that_cannot_move_are_named() {
    let bench = Bench::new();
    let codes = initializer("c", UINT4, &[16, 2], &[0x31; 16]);
    let scales = |values: [f32; 2]| initializer("s", FLOAT, &[1, 2], &floats(&values));
    let zeros = initializer("z", UINT4, &[1, 2], &[0x83]);
    let blocks = [("axis", 0), ("block_size", 16)];
    let decode = |inputs: &[&str]| node_with("DequantizeLinear", inputs, "w", &blocks);
    let plain = scales([1.0, 2.0]);
    let again = node_with("DequantizeLinear", &["c", "s2"], "w2", &blocks);
    let other = initializer("s2", FLOAT, &[1, 2], &floats(&[3.0, 4.0]));
    let output = field(12, &field(1, b"w"));
    let uses = "its values are not weights of MatMul alone";
    for (graph, scheme, why) in [
        ([product(&["c", "s", "z"], &blocks), zeros.clone(), plain.clone()].concat(), "int4", "scheme"),
        ([product(&["c", "s", "z"], &blocks), zeros, plain.clone()].concat(), "int2-asym", "uint4"),
        ([decode(&["c", "s"]), node_with("Gemm", &["x", "w"], "y", &[]), plain.clone()].concat(), "int4-asym", uses),
        (
            [product(&["c", "s"], &blocks), node_with("Neg", &["w"], "v", &[]), plain.clone()].concat(),
            "int4-asym",
            uses,
        ),
        ([decode(&["c", "s"]), node_with("MatMul", &["w", "x"], "y", &[]), plain.clone()].concat(), "int4-asym", uses),
        ([product(&["c", "s"], &blocks), plain.clone(), output].concat(), "int4-asym", uses),
        ([product(&["c", "s"], &blocks), scales([1.0, f32::NAN])].concat(), "int4-asym", "a scale is NaN or infinite"),
        ([product(&["c", "s"], &blocks), again, plain.clone(), other].concat(), "int4-asym", "different"),
        (
            [
                product(&["c", "s"], &[("axis", 1), ("block_size", 16)]),
                initializer("s", FLOAT, &[16, 1], &floats(&[1.0; 16])),
            ]
            .concat(),
            "int4-asym",
            "scales",
        ),
    ] {
        bench.write("in.onnx", &of_opset_21(&[graph, codes.clone()].concat()));
        let outcome = bench.run(&format!("{TO_PRODUCT} {scheme}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{why}");
        outcome.check_message("quantized");
        // A rule that names the weight is refused.
        bench.run(&format!("{TO_PRODUCT} int8 --rule w={scheme}")).says(1, "", why);
    }
}

#[test]
fn products_that_cannot_move_are_named() {
    let bench = Bench::new();
    let attributes = [("K", 17), ("N", 2), ("bits", 4), ("block_size", 16)];
    let codes = initializer("w_Q4", UINT8, &[2, 2, 8], &[0x99; 32]);
    let scales = initializer("s", FLOAT, &[4], &floats(&[0.1, 10.0, 0.3, -1.0]));
    let zeros = initializer("z", FLOAT, &[2, 2], &floats(&[8.0; 4]));
    let packed = initializer("p", UINT8, &[2], &[0x88, 0x68]);
    let groups = initializer("g", INT32, &[17], &[0; 68]);
    for (inputs, scheme, why) in [
        (&["x", "w_Q4", "s", "z"][..], "int4-asym", "its zero points are not integers"),
        (&["x", "w_Q4", "s", "", "g"], "int4", "it has a group index"),
        (&["x", "w_Q4", "s", "p"], "int4", "it has the zero point 6, and the scheme has none"),
        (&["x", "w_Q4", "s"], "fp8", "its codes of uint8 do not fit those of the scheme"),
    ] {
        // A column of one block has a scale for an output.
        let (attributes, codes, scales) = if scheme == "fp8" {
            let codes = initializer("w_Q4", UINT8, &[2, 1, 16], &[0x99; 32]);
            let scales = initializer("s", FLOAT, &[2], &floats(&[0.1, 10.0]));
            ([("K", 17), ("N", 2), ("bits", 4), ("block_size", 32)], codes, scales)
        } else {
            (attributes, codes.clone(), scales.clone())
        };
        let parts = [codes, scales, zeros.clone(), packed.clone(), groups.clone()].concat();
        bench.write("in.onnx", &of_opset_21(&[node("MatMulNBits", inputs, &attributes), parts].concat()));
        let outcome = bench.run(&format!("{TO_DECODING} {scheme}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{why}");
        outcome.check_message("tensor");
    }
    // ONNX Runtime ignores these zero points: nothing computes the values that they describe.
    let inputs = ["x", "w_Q4", "s", "p", "g"];
    let parts = [codes.clone(), scales.clone(), packed.clone(), groups].concat();
    bench.write("in.onnx", &of_opset_21(&[node("MatMulNBits", &inputs, &attributes), parts].concat()));
    bench.run(&format!("{TO_DECODING} int4-asym")).says(1, "", "MatMulNBits");
    // The scheme needs a later opset.
    bench.write("in.onnx", &model(&[node("MatMulNBits", &["x", "w_Q4", "s"], &attributes), codes, scales].concat()));
    bench.run(&format!("{TO_DECODING} int4")).says(1, "", "--raise-opset");
}

#[test]
fn nodes_and_parts_that_weights_share_are_followed() {
    let bench = Bench::new();
    let blocks = [("axis", 0), ("block_size", 16)];
    let decode = |codes: &str, output: &str| node_with("DequantizeLinear", &[codes, "s"], output, &blocks);
    let multiply = |weight: &str, output: &str| node_with("MatMul", &["x", weight], output, &[]);
    let graph = [
        decode("c", "w"),
        multiply("w", "y"),
        decode("c", "w2"),
        multiply("w2", "y2"),
        decode("d", "v"),
        node_with("Gemm", &["x", "v"], "y3", &[]),
        initializer("c", INT4, &[16, 2], &[0x31; 16]),
        initializer("d", INT4, &[16, 2], &[0x31; 16]),
        initializer("s", FLOAT, &[1, 2], &floats(&[0.5, 2.0])),
    ];
    bench.write("in.onnx", &of_opset_21(&graph.concat()));
    bench
        .run("quantize in.onnx --scheme int4 --layout matmulnbits --accuracy-level 4 -o out.onnx")
        .says(0, "", "scales");
    let out = bench.read("out.onnx");
    let product = "MatMulNBits|com.microsoft||x w_Q4 w_scales";
    assert_eq!(nodes(&out), [product, product, "DequantizeLinear|||d s", "Gemm|||x v"]);
    // The scale stays for the other weight.
    assert_eq!(initializers(&out).into_keys().collect::<Vec<_>>(), ["d", "s", "w_Q4", "w_scales"]);
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
    // Each product has a node of its own to decode the codes.
    fs::rename(bench.path("out.onnx"), bench.path("in.onnx")).unwrap();
    bench.run(&format!("{TO_DECODING} int4")).expect(0, "", "");
    assert_eq!(
        nodes(&bench.read("out.onnx")),
        [
            "DequantizeLinear||w_int4|w_int4 w_int4_scale",
            "DequantizeLinear||w_int4_copy_2|w_int4 w_int4_scale",
            "MatMul|||x w",
            "MatMul|||x w_int4_copy_2",
            "DequantizeLinear|||d s",
            "Gemm|||x v"
        ]
    );
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
    // A bias is added to the product.
    let attributes = [("K", 16), ("N", 2), ("bits", 4), ("block_size", 16)];
    let parts = [
        initializer("w_Q4", UINT8, &[2, 1, 8], &[0x99; 16]),
        initializer("s", FLOAT, &[2], &floats(&[0.1, 10.0])),
        initializer("b", FLOAT, &[2], &floats(&[1.0, 2.0])),
    ];
    let product = node("MatMulNBits", &["x", "w_Q4", "s", "", "", "b"], &attributes);
    bench.write("in.onnx", &of_opset_21(&[product, parts.concat()].concat()));
    bench.run(&format!("{TO_DECODING} int4")).expect(0, "", "");
    let out = nodes(&bench.read("out.onnx"));
    let wanted = ["DequantizeLinear||w_int4|w_int4 w_int4_scale", "MatMul||n|x w", "Add||y_float32|y_float32 b"];
    assert_eq!(out, wanted);
    bench.run("diff in.onnx out.onnx -q").expect(0, "", "");
}
