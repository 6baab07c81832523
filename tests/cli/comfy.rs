//! The layouts of `ComfyUI` that rotate weights, or store levels: `fixtures/comfy` has layers that comfy-kitchen wrote.

use super::dequantize::shard;
use super::quantize::{bench_with, tensors};
use super::quantize_choices::expect_refused;
use crate::common::{Bench, fixture};

#[test]
fn rotated_weights_and_levels_are_decoded_as_by_comfy_kitchen() {
    let bench = Bench::with("comfy/quantized.safetensors", "q.safetensors");
    bench.run("dequantize q.safetensors -o d.safetensors -q").expect(0, "", "");
    let (found, wanted) = (tensors(&bench.path("d.safetensors")), tensors(&fixture("comfy/decoded.safetensors")));
    assert!(found.keys().eq(wanted.keys()));
    for (name, stored) in &wanted {
        assert!(found[name] == *stored, "{name}");
    }
    let listed = bench.run("inspect q.safetensors").stdout;
    for layout in ["comfy-int8", "comfy-int4", "comfy-w4a8", "comfy-awq"] {
        assert!(listed.contains(layout), "{listed}");
    }
}

#[test]
fn weights_are_rotated_and_encoded_as_by_comfy_kitchen() {
    let bench = Bench::with("comfy/source.safetensors", "s.safetensors");
    let [wanted, in_type] =
        ["quantized", "kitchen"].map(|file| tensors(&fixture(&format!("comfy/{file}.safetensors"))));
    for (layer, options) in [
        ("int8.plain", "--scheme int8 --rotation none"),
        ("int8.rotated", "--scheme int8 --rotation 64"),
        ("int8.edge", "--scheme int8"),
        ("int4.rotated", "--scheme W4A16 --rotation 64"),
        ("w4a8.rotated", "--scheme w4a8 --rotation 16 --group-size 8"),
        ("w6a8.rotated", "--scheme w6a8"),
    ] {
        let line = format!("quantize s.safetensors {options} --layout comfyui --include *{layer}* -o q.safetensors -f");
        let outcome = bench.run(&line);
        assert_eq!(outcome.code, Some(0), "{line}: {}", outcome.stderr);
        let found = tensors(&bench.path("q.safetensors"));
        let parts = wanted.iter().filter(|(name, _)| name.starts_with(&format!("m.{layer}.")));
        let mut count = 0;
        for (name, stored) in parts.filter(|(name, _)| !name.ends_with(".comfy_quant")) {
            assert!(found[name] == *stored, "{name}");
            count += 1;
        }
        assert!(count >= 2, "{layer}");
        let text = String::from_utf8(found[&format!("m.{layer}.comfy_quant")].2.clone()).unwrap();
        let description = match layer {
            "int8.plain" => r#"{"format":"int8_tensorwise"}"#,
            "int8.rotated" => r#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":64}"#,
            "int8.edge" => r#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256}"#,
            "int4.rotated" => r#"{"format":"convrot_w4a4","convrot_groupsize":64}"#,
            "w4a8.rotated" => r#"{"format":"asym_w4a8_int8","group_size":8,"convrot_groupsize":16}"#,
            _ => r#"{"format":"asym_w4a8_int8","group_size":16,"convrot_groupsize":256}"#,
        };
        assert_eq!(text, description);
        // One thread or four, in one piece or in many: the same bytes.
        bench.run(&format!("{line} -q -j1")).expect(0, "", "");
        assert!(tensors(&bench.path("q.safetensors")) == found, "{layer}");
        // In the type of the weight, as comfy-kitchen itself computes.
        bench.run(&format!("{line} -q --arithmetic kitchen")).expect(0, "", "");
        let found = tensors(&bench.path("q.safetensors"));
        for (name, stored) in in_type.iter().filter(|(name, _)| name.starts_with(&format!("m.{layer}."))) {
            assert!(found[name] == *stored, "kitchen: {name}");
        }
    }
}

#[test]
fn weights_whose_columns_do_not_fit_a_rotation_are_named() {
    let bench = bench_with(&[("a.o_proj.weight", &[16, 192]), ("a.down_proj.weight", &[16, 512])], "{}");
    let note = |line: &str, note: &str| {
        bench.run(&format!("quantize m {line} --layout comfyui -o q -f")).says(0, "", note);
    };
    note("--scheme int8", "a.o_proj.weight is not rotated: its 192 columns are not a multiple of 256\n");
    let found = tensors(&bench.path("q"));
    assert_eq!(found["a.o_proj.comfy_quant"].2, br#"{"format":"int8_tensorwise"}"#);
    assert_eq!(found["a.o_proj.weight_scale"].1, [16, 1]);
    for scheme in ["int4", "w4a8", "w6a8"] {
        let kept =
            "a.o_proj.weight of shape [16, 192] is not quantized: its rows of 192 values are not a multiple of 256";
        note(&format!("--scheme {scheme}"), kept);
        assert_eq!(tensors(&bench.path("q"))["a.o_proj.weight"].0, "BF16");
    }
    expect_refused(&bench, "quantize m --scheme int4 --layout comfyui --rotation none", 2, "--rotation");
    expect_refused(&bench, "quantize m --scheme int4 --rotation 64", 2, "int4");
    expect_refused(&bench, "quantize m --scheme int4 --layout comfyui --group-size 32", 2, "int4");
}

/// Weights of float32 are rounded to their own type in both ways, and sums beyond float16 are refused.
#[test]
fn the_type_of_the_weight_decides_about_the_arithmetic_of_comfy_kitchen() {
    let bench = bench_with(&[("a.o_proj.weight", &[16, 256])], "{}");
    bench.run("cast m --to f32 -o wide -q").expect(0, "", "");
    bench.run("cast m --to f16 -o half -q").expect(0, "", "");
    let codes = |folder: &str, options: &str| {
        bench.run(&format!("quantize {folder} --layout comfyui {options} -o q -f -q")).expect(0, "", "");
        tensors(&bench.path("q")).remove("a.o_proj.weight").unwrap()
    };
    for scheme in ["int8", "int8 --rotation none", "int4", "w4a8"] {
        let both = |folder: &str| {
            ["library", "kitchen"].map(|it| codes(folder, &format!("--scheme {scheme} --arithmetic {it}")))
        };
        let [library, kitchen] = both("wide");
        assert!(library == kitchen, "{scheme}");
        for folder in ["m", "half"] {
            let [library, kitchen] = both(folder);
            assert!(library != kitchen || scheme == "w4a8", "{scheme} {folder}");
        }
    }
    // The signs of the first row of the matrix, so that one sum is 16 times the largest float16.
    let is_negative = |at: u32| (0..4).filter(|digit| at >> (2 * digit) & 3 == 3).count() % 2 == 1;
    let large: Vec<u8> = (0..256).flat_map(|at| [0xff, if is_negative(at) { 0xfb } else { 0x7b }]).collect();
    bench.write("large.safetensors", &shard(&[("a.o_proj.weight", "F16", &[1, 256], &large)]));
    let outcome =
        bench.run("quantize large.safetensors --scheme int8 --layout comfyui --arithmetic kitchen -o x.safetensors");
    assert!(outcome.stderr.contains("infinite"), "{}", outcome.stderr);
    expect_refused(&bench, "quantize m --scheme int4 --arithmetic kitchen", 2, "int4");
}

#[test]
fn codes_of_rotated_weights_move_to_layers_with_the_same_rotation() {
    let bench = Bench::with("comfy/quantized.safetensors", "s.safetensors");
    let stored = tensors(&bench.path("s.safetensors"));
    let values = |file: &str, layer: &str| {
        bench.run(&format!("dequantize {file} --to float32 -o d.safetensors -f -q")).expect(0, "", "");
        tensors(&bench.path("d.safetensors")).remove(&format!("m.{layer}.weight")).unwrap()
    };
    for (layer, options, format) in [
        ("int4.rotated", "--scheme int8 --rotation 64", "int8_tensorwise"),
        ("int8.rotated", "--scheme int8 --rotation 64", "int8_tensorwise"),
        ("int8.plain", "--scheme int8 --rotation none", "int8_tensorwise"),
        ("int4.rotated", "--scheme int8", "int8_tensorwise"),
        ("int4.rotated", "", "convrot_w4a4"),
        ("int8.plain", "", "int8_tensorwise"),
    ] {
        let parts = stored.keys().filter(|name| !name.starts_with(&format!("m.{layer}.")));
        let dropped: Vec<String> = parts.map(|name| format!("--drop {name}")).collect();
        let dropped = dropped.join(" ");
        bench.run(&format!("cast s.safetensors {dropped} -o one.safetensors -f -q")).expect(0, "", "");
        let line = format!("quantize one.safetensors {options} --layout comfyui --only-exact -o q.safetensors -f -q");
        let outcome = bench.run(&line);
        assert_eq!(outcome.code, Some(0), "{line}: {}", outcome.stderr);
        let found = tensors(&bench.path("q.safetensors"));
        let description = String::from_utf8(found[&format!("m.{layer}.comfy_quant")].2.clone()).unwrap();
        assert!(description.contains(format), "{description}");
        assert!(values("one.safetensors", layer) == values("q.safetensors", layer), "{line}");
        let line = line.replace(" --rotation 64", "").replace(" --rotation none", "");
        bench.run(&format!("{line} --rotation 16")).says(1, "", "scales");
    }
}

/// Decodes a layer with this description, four rows of 256 columns: the message of the error.
fn decoded(description: &str, tensors: &[(&str, &str, &[u64])]) -> String {
    let bench = Bench::new();
    let width = |dtype: &str| match dtype {
        "F32" => 4,
        "BF16" => 2,
        _ => 1,
    };
    let bytes: Vec<Vec<u8>> = (tensors.iter())
        .map(|(_, dtype, shape)| vec![0; (width(dtype) * shape.iter().product::<u64>()) as usize])
        .collect();
    let length = [description.len() as u64];
    let mut all: Vec<(&str, &str, &[u64], &[u8])> = Vec::new();
    all.extend(tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| (*name, *dtype, *shape, &bytes[..])));
    all.push(("m.comfy_quant", "U8", &length, description.as_bytes()));
    bench.write("x.safetensors", &shard(&all));
    let outcome = bench.run("dequantize x.safetensors -o y.safetensors -q");
    assert_eq!(outcome.code, Some(i32::from(!outcome.stderr.is_empty())), "{description}");
    outcome.stderr
}

#[test]
fn descriptions_of_other_writers_are_read() {
    let int8: &[(&str, &str, &[u64])] = &[("m.weight", "I8", &[4, 256]), ("m.weight_scale", "F32", &[4, 1])];
    let int4: &[(&str, &str, &[u64])] = &[("m.weight", "I8", &[4, 128]), ("m.weight_scale", "F32", &[4])];
    let levels: &[(&str, &str, &[u64])] =
        &[("m.weight", "I8", &[4, 128]), ("m.weight_s_rel", "F8_E4M3", &[4, 16]), ("m.weight_s_channel", "F32", &[4])];
    let awq: &[(&str, &str, &[u64])] =
        &[("m.weight", "I8", &[4, 128]), ("m.weight_scale", "BF16", &[4, 4]), ("m.weight_zero", "BF16", &[4, 4])];
    for (description, tensors) in [
        (r#"{"format": "int8_tensorwise", "convrot": true}"#, int8),
        (r#"{"convrot": true, "convrot_groupsize": 256, "per_row": true}"#, int8), // INT8-Fast
        (r#"{"format": "int4_tensorwise"}"#, int4),                                // Forge
        (r#"{"format": "convrot_w4a4", "quant_group_size": 64, "linear_dtype": "int8"}"#, int4),
        (r#"{"format": "w4a8_int8"}"#, levels),
        (r#"{"format": "w4a8", "convrot": true, "params": {"group_size": 16}}"#, levels),
        (r#"{"format": "awq_w4a16"}"#, awq),
    ] {
        assert_eq!(decoded(description, tensors), "", "{description}");
    }
}

#[test]
fn what_comfyui_cannot_store_is_refused_by_name() {
    let int4: &[(&str, &str, &[u64])] = &[("m.weight", "I8", &[4, 128]), ("m.weight_scale", "F32", &[4])];
    let svdquant: &[(&str, &str, &[u64])] = &[
        ("m.weight", "I8", &[128, 64]),
        ("m.weight_scale", "BF16", &[2, 128]),
        ("m.weight_proj_down", "BF16", &[128, 8]),
    ];
    let half: &[(&str, &str, &[u64])] = &[("m.weight", "I8", &[4, 128]), ("m.weight_s_rel", "F8_E4M3", &[4, 16])];
    let odd: &[(&str, &str, &[u64])] =
        &[("m.weight", "I8", &[4, 160]), ("m.weight_s_rel", "F8_E4M3", &[4, 16]), ("m.weight_s_channel", "F32", &[4])];
    for (description, tensors, message) in [
        (r#"{"format": "svdquant_w4a4"}"#, svdquant, "quantized with svdquant_w4a4 of comfy-kitchen"),
        (
            r#"{"format": "convrot_w4a4", "quant_group_size": 32}"#,
            int4,
            "says quant_group_size 32, and the only one is 64",
        ),
        (
            r#"{"format": "convrot_w4a4", "convrot_groupsize": 512}"#,
            int4,
            "256 columns cannot be rotated in groups of 512",
        ),
        (r#"{"format": "asym_w4a8_int8"}"#, half, "the layout comfy-w4a8 needs"),
        (r#"{"format": "asym_w4a8_int8"}"#, odd, "the layout comfy-w4a8 has no codes of 5 bits"),
        (
            r#"{"format": "int8_tensorwise", "convrot": true, "params": {"convrot": false}}"#,
            int4,
            "it says two values of convrot",
        ),
    ] {
        let found = decoded(description, tensors);
        assert!(found.contains(message), "{description}: {found}");
    }
}
