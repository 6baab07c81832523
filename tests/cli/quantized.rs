//! Quantized weights in the commands that look: a weight is one tensor, and its values are compared and measured.

use crate::common::Bench;
use crate::dequantize::{CONFIG, bytes_of, quantized, shard};
use serde_json::{Value, json};
use std::fs;

/// The config of `q` as compressed-tensors writes it.
const COMPRESSED: &str = r#"{"dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors",
    "format": "float-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8,
    "type": "float", "strategy": "block", "block_structure": [128, 128], "symmetric": true, "dynamic": false}}},
    "ignore": []}}"#;

/// The checkpoint `q` in a folder `name` as one shard, with scales called otherwise and more tensors.
fn in_one_shard(bench: &Bench, name: &str, scale: &str, config: &str, more: &[(&str, &str, &[u64], &[u8])]) {
    let [first, second] =
        [1, 2].map(|n| fs::read(bench.path(&format!("q/model-0000{n}-of-00002.safetensors"))).unwrap());
    let codes = bytes_of(&first, "m.weight");
    let mut tensors: Vec<(&str, &str, &[u64], &[u8])> = vec![
        ("m.weight", "F8_E4M3", &[130, 136], codes),
        ("norm.weight", "BF16", &[2], &[1, 2, 3, 4]),
        (scale, "F32", &[2, 2], bytes_of(&second, "m.weight_scale_inv")),
    ];
    tensors.extend(more);
    fs::create_dir(bench.path(name)).unwrap();
    bench.write(&format!("{name}/model.safetensors"), &shard(&tensors));
    bench.write(&format!("{name}/config.json"), config.as_bytes());
}

fn json_of(bench: &Bench, line: &str, code: i32) -> Value {
    let outcome = bench.run(line);
    assert_eq!((outcome.code, &*outcome.stderr), (Some(code), ""), "{line}: {}", outcome.stdout);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn a_quantized_side_equals_the_values_that_its_library_reads() {
    let bench = quantized();
    for (to, out) in [("bf16", "b"), ("f16", "h"), ("f32", "f")] {
        bench.run(&format!("dequantize q -q --to {to} -o {out}.safetensors")).expect(0, "", "");
        bench.run(&format!("diff q {out}.safetensors -q -j1 --include m.weight")).expect(0, "", "");
        bench.run(&format!("diff {out}.safetensors q -q -j4 --include m.weight")).expect(0, "", "");
    }
    bench.run("diff q b.safetensors").expect(0, "2 tensors are equal\n", "");
    bench.run("diff b.safetensors q --exclude norm.weight").expect(0, "1 tensor is equal\n", "");
}

#[test]
fn a_value_that_differs_from_the_decoded_one_is_shown() {
    let bench = quantized();
    bench.run("dequantize q -q -o b.safetensors").expect(0, "", "");
    let mut changed = fs::read(bench.path("b.safetensors")).unwrap();
    let place = bytes_of(&changed, "m.weight").as_ptr() as usize - changed.as_ptr() as usize + 2 * (129 * 136 + 135);
    changed[place..place + 2].copy_from_slice(&0x4080_u16.to_le_bytes());
    bench.write("b.safetensors", &changed);
    let outcome = bench.run("diff q b.safetensors");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), ""));
    let row = "  m.weight  values differ  1 of 17680, first at [129, 135]: ";
    assert!(outcome.stdout.starts_with(row), "{}", outcome.stdout);
    assert!(outcome.stdout.contains(" SQNR ") && outcome.stdout.contains("(hf-fp8, bfloat16)"), "{}", outcome.stdout);
    let json = json_of(&bench, "diff q b.safetensors --json", 1);
    let tensor = &json["tensors"][0];
    let wanted = [json!("m.weight"), json!("bfloat16"), json!("bfloat16"), json!("hf-fp8"), json!([130, 136])];
    let keys = ["name", "dtype_a", "dtype_b", "layout_a", "shape_a"];
    assert_eq!(keys.map(|key| tensor[key].clone()), wanted);
    assert!(tensor.get("layout_b").is_none() && tensor["figures"]["sqnr_db"].is_number(), "{tensor}");
    assert_eq!(json["tensors"][1].get("layout_a"), None);
}

#[test]
fn two_layouts_of_one_model_are_compared_by_value() {
    let bench = quantized();
    in_one_shard(&bench, "ct", "m.weight_scale", COMPRESSED, &[]);
    bench.run("diff q ct").expect(0, "2 tensors are equal\n", "");
    let other = COMPRESSED.replace("[128, 128]", "[128, 68]");
    bench.write("ct/config.json", other.as_bytes());
    let outcome = bench.run("diff q ct");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), ""), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("(hf-fp8, ct-fp8)"), "{}", outcome.stdout);
}

#[test]
fn parts_are_no_tensors_of_one_side_and_activation_scales_count_where_both_have_them() {
    let bench = quantized();
    let scale = |byte: u8| [0, 0, byte, 0x3f];
    in_one_shard(&bench, "one", "m.weight_scale_inv", CONFIG, &[("m.activation_scale", "F32", &[], &scale(0))]);
    in_one_shard(&bench, "two", "m.weight_scale_inv", CONFIG, &[("m.activation_scale", "F32", &[], &scale(1))]);
    bench.run("diff q one").expect(0, "2 tensors are equal\n", "");
    bench.run("diff one q").expect(0, "2 tensors are equal\n", "");
    let outcome = bench.run("diff one two");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(1), ""));
    assert!(outcome.stdout.contains("m.activation_scale") && outcome.stdout.contains("3 tensors: 2 equal"));
}

#[test]
fn weights_that_are_incomplete_are_compared_as_they_are_stored_with_a_warning() {
    let bench = quantized();
    let codes = vec![0x38; 130 * 136];
    for name in ["a.safetensors", "b.safetensors"] {
        bench.write(name, &shard(&[("m.weight_packed", "I32", &[130, 34], &codes)]));
    }
    let outcome = bench.run("diff a.safetensors b.safetensors");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "1 tensor is equal\n"), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("tcast: warning: a.safetensors: "), "{lines:?}");
    assert!(lines[0].ends_with(" are missing: such tensors are compared as they are stored"), "{lines:?}");
    bench.run("diff a.safetensors b.safetensors -q").expect(0, "", "");
}

#[test]
fn a_weight_is_one_row_with_layout_grid_and_bits() {
    let bench = quantized();
    let text = "q: 2 shards, index model.safetensors.index.json, 2 tensors (1 quantized), 17.52 KiB\n  \
                model-00001-of-00002.safetensors  2 tensors  17.42 KiB\n  \
                model-00002-of-00002.safetensors  1 tensor        99 B\n  \
                m.weight     float8e4m3fn, 128 x 128  [130, 136]  17.28 KiB  hf-fp8, 8.01 bits per weight, \
                model-00001-of-00002.safetensors, model-00002-of-00002.safetensors\n  \
                norm.weight  bfloat16                 [2]               4 B  BF16\n\
                totals\n  \
                bfloat16                 1 tensor  2 elements            4 B\n  \
                float8e4m3fn, 128 x 128  1 tensor  17680 elements  17.28 KiB  hf-fp8\n";
    bench.run("inspect q").expect(0, text, "");
    let outcome = bench.run("inspect q --parts --include m.weight");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let rows: Vec<&str> = outcome.stdout.lines().skip(2).map(str::trim_end).collect();
    let [codes, scales] = rows[..] else { panic!("{rows:?}") };
    assert!(
        codes.starts_with("    codes: m.weight ")
            && codes.ends_with("float8e4m3fn             [130, 136]  17.27 KiB  F8_E4M3")
    );
    assert!(
        scales.starts_with("    scales: m.weight_scale_inv  float32 ") && scales.ends_with("16 B  F32"),
        "{scales}"
    );
}

#[test]
fn the_parts_of_a_weight_are_in_the_json_with_their_roles_and_the_totals_are_whole() {
    let bench = quantized();
    let json = json_of(&bench, "inspect q --json", 0);
    let weight = &json["tensors"][0];
    assert_eq!(json["tensors"].as_array().unwrap().len(), 2);
    let grid = json!({ "codes": "float8e4m3fn", "group": [128, 128], "indexed": false, "scale": "float32",
                       "global_scale": null, "zero_points": false });
    assert_eq!(
        (&weight["layout"], &weight["grid"], &weight["dtype"]),
        (&json!("hf-fp8"), &grid, &json!("float8e4m3fn"))
    );
    assert_eq!((&weight["elements"], &weight["bytes"], &weight["file"]), (&json!(17680), &json!(17696), &json!(0)));
    let parts = json!([
        { "role": "codes", "name": "m.weight", "file": 0, "dtype": "float8e4m3fn", "shape": [130, 136], "bytes": 17680,
          "stored": "F8_E4M3" },
        { "role": "scales", "name": "m.weight_scale_inv", "file": 1, "dtype": "float32", "shape": [2, 2], "bytes": 16,
          "stored": "F32" },
    ]);
    assert_eq!(weight["parts"], parts);
    assert_eq!((&json["quant_method"], json.get("problems")), (&json!("fp8"), None));
    let sum = |list: &str| json[list].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("tensors"), sum("totals")), (17700, 17700));
}

#[test]
fn missing_and_orphaned_parts_are_named() {
    let bench = quantized();
    let text = |line: &str| {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}");
        outcome.stdout
    };
    let shown = text("inspect q/model-00001-of-00002.safetensors");
    let problems = "problems of quantized weights: the file is a shard, and missing parts may be in other shards\n  \
                    tensor 'm.weight': holds codes, and their scales ('m.weight_scale_inv') are missing";
    assert!(shown.contains(problems), "{shown}");
    assert!(shown.contains("  m.weight     float8e4m3fn  [130, 136]"), "{shown}");
    bench.write(
        "lone.safetensors",
        &shard(&[("x.qweight", "I32", &[8, 8], &[0; 256]), ("y.scales", "F16", &[1], &[0; 2])]),
    );
    let shown = text("inspect lone.safetensors");
    assert!(shown.contains("problems of quantized weights\n  tensor 'x.qweight': holds codes"), "{shown}");
    let json = json_of(&bench, "inspect lone.safetensors --json", 0);
    assert_eq!(json["problems"].as_array().unwrap().len(), 1, "{json}");
    // Scales without codes are named also where no tensor can be codes.
    bench.write("scales.safetensors", &shard(&[("z.weight_scale", "F32", &[1], &[0; 4])]));
    let problem = "tensor 'z.weight_scale': belongs to codes 'z.weight', which are missing";
    let shown = text("inspect scales.safetensors");
    assert!(shown.contains(&format!("problems of quantized weights\n  {problem}\n")), "{shown}");
    let outcome = bench.run("diff scales.safetensors scales.safetensors");
    let warned =
        format!("tcast: warning: scales.safetensors: {problem}: such tensors are compared as they are stored\n");
    outcome.expect(0, "1 tensor is equal\n", &warned.repeat(2));
    // A config that cannot be understood is a problem, and all tensors are shown.
    bench.write("q/config.json", b"{\"quantization_config\": {\"quant_method\": \"novel\"}}");
    let shown = text("inspect q");
    assert!(shown.contains("3 tensors") && shown.contains("the model is quantized with 'novel'"), "{shown}");
}

#[test]
fn statistics_are_those_of_the_values_that_dequantize_writes() {
    let bench = quantized();
    bench.run("dequantize q -q -o b.safetensors").expect(0, "", "");
    let stats = |line: &str| json_of(&bench, line, 0)["tensors"][0].clone();
    let wanted = stats("inspect b.safetensors --stats --json")["stats"].clone();
    for threads in [1, 3] {
        let found = stats(&format!("inspect q --stats --json -j{threads}"));
        assert_eq!((&found["stats"], &found["decoded_to"]), (&wanted, &json!("bfloat16")));
    }
    let outcome = bench.run("inspect q --stats");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert!(outcome.stdout.contains("\nm.weight decoded to bfloat16\n  min "), "{}", outcome.stdout);
}

#[test]
fn the_bits_of_a_weight_are_shown_with_what_makes_its_values() {
    let bench = Bench::new();
    let half = 0.5_f32.to_le_bytes();
    let codes = [0x38, 0x40, 0xb8, 0x7f];
    let file = shard(&[("w.weight", "F8_E4M3", &[2, 2], &codes), ("w.weight_scale_inv", "F32", &[1, 1], &half)]);
    bench.write("w.safetensors", &file);
    let all = "0  0 0111 000  1 * 0.5 = 0.5\n1  0 1000 000  2 * 0.5 = 1\n2  1 0111 000  -1 * 0.5 = -0.5\n\
               3  0 1111 111  NaN * 0.5 = NaN\n";
    // It is the only tensor that the model has.
    bench.run("bitcast w.safetensors --bits").expect(0, all, "");
    let range = "bitcast w.safetensors --bits --tensor w.weight --range";
    bench.run(&format!("{range} 1,0..1,2")).expect(0, &all[all.find("2  1").unwrap()..], "");
    bench.run(&format!("{range} 3")).expect(0, "3  0 1111 111  NaN * 0.5 = NaN\n", "");
    bench.run(&format!("{range} 2,0")).says(1, "", "--range");
    let json = json_of(&bench, &format!("{range} 2 --json"), 0);
    let element = json!({
        "index": 2, "bits": "b8", "parts": { "sign": "1", "exponent": "0111", "mantissa": "000" }, "code": "-1",
        "scale": "0.5", "value": "-0.5", "value_bits": "bf00",
    });
    let wanted = json!({
        "schema": 1, "tcast": env!("CARGO_PKG_VERSION"), "tensor": "w.weight", "dtype": "bfloat16", "layout": "hf-fp8",
        "codes": "float8e4m3fn", "shape": [2, 2], "range": [2, 3], "elements": [element],
    });
    assert_eq!(json, wanted);
    // The stored tensors themselves.
    bench.run("bitcast w.safetensors --hex --tensor w.weight").expect(0, "0  38 40 b8 7f\n", "");
    bench.run("bitcast w.safetensors --bits --tensor w.weight --to e4m3 --range 2").expect(
        0,
        "2  1 0111 000  -1  normal\n",
        "",
    );
    let scale = "0  0 01111110 00000000000000000000000  0.5 = 1*2^-1  normal\n";
    bench.run("bitcast w.safetensors --bits --tensor w.weight_scale_inv").expect(0, scale, "");
}

#[test]
fn zero_points_and_global_scales_are_part_of_the_bits() {
    let bench = Bench::new();
    fs::create_dir(bench.path("p")).unwrap();
    let config = r#"{"dtype": "float32", "quantization_config": {"quant_method": "compressed-tensors",
        "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4,
        "type": "int", "strategy": "channel", "symmetric": false, "dynamic": false}}}, "ignore": []}}"#;
    bench.write("p/config.json", config.as_bytes());
    let shape: Vec<u8> = [1_i64, 8].iter().flat_map(|length| length.to_le_bytes()).collect();
    let (words, scale, zero) = (0x7654_3210_u32.to_le_bytes(), 0.5_f32.to_le_bytes(), 3_i32.to_le_bytes());
    let file = shard(&[
        ("w.weight_packed", "I32", &[1, 1], &words),
        ("w.weight_scale", "F32", &[1, 1], &scale),
        ("w.weight_shape", "I64", &[2], &shape),
        ("w.weight_zero_point", "I32", &[1, 1], &zero),
    ]);
    bench.write("p/model.safetensors", &file);
    let rows = "1  0001  (1 - 3) * 0.5 = -1\n2  0010  (2 - 3) * 0.5 = -0.5\n";
    bench.run("bitcast p --bits --tensor w.weight --range 0,1..0,3").expect(0, rows, "");
    let json = json_of(&bench, "bitcast p --bits --tensor w.weight --range 7 --json", 0);
    let keys = ["bits", "code", "zero_point", "scale", "value"].map(|key| json["elements"][0][key].clone());
    assert_eq!((keys, &json["codes"]), (["7", "7", "3", "0.5", "2"].map(|text| json!(text)), &json!("uint4")));
    let inspected = json_of(&bench, "inspect p --json", 0);
    assert_eq!(inspected["tensors"][0]["name"], "w.weight");
    // A grid that is called symmetric.
    bench.write("p/config.json", config.replace("false, \"dynamic\"", "true, \"dynamic\"").as_bytes());
    let refused = "p/model.safetensors: tensor 'w.weight_zero_point': holds the zero point 3, and the config says that the \
                   grid is symmetric, where engines use 8\n  if the zero points are right, set \"symmetric\" to false in the config\n";
    for line in ["bitcast p --bits --tensor w.weight", "inspect p --stats", "quantize p --scheme fp8 -o out"] {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stderr.ends_with(refused)), (Some(1), true), "{line}: {outcome:?}");
    }
    let at = file.len() - 4;
    bench.write("p/model.safetensors", &[&file[..at], &8_i32.to_le_bytes()].concat());
    let rows = "1  0001  (1 - 8) * 0.5 = -3.5\n";
    bench.run("bitcast p --bits --tensor w.weight --range 0,1").expect(0, rows, "");
    // NVFP4 divides the scale by the global scale.
    let (codes, scales, global) = ([0x21; 8], [0x40], 8_f32.to_le_bytes());
    let file = shard(&[
        ("w.weight_packed", "U8", &[1, 8], &codes),
        ("w.weight_scale", "F8_E4M3", &[1, 1], &scales),
        ("w.weight_global_scale", "F32", &[1], &global),
    ]);
    bench.write("n.safetensors", &file);
    let rows = "0  0 00 1  0.5 * 2 / 8 = 0.125\n1  0 01 0  1 * 2 / 8 = 0.25\n";
    bench.run("bitcast n.safetensors --bits --range 0..2").expect(0, rows, "");
}

#[test]
fn a_cast_of_codes_is_refused_with_the_command_that_decodes_them() {
    let bench = quantized();
    bench.run("cast q --to bf16 -o out").says(1, "", "--to");
    // A shard alone: its scales are in another one, and the folder can be decoded.
    bench.run("cast q/model-00001-of-00002.safetensors --to bf16 -o out.safetensors").says(1, "", "dequantize");
    assert_eq!(bench.files(), ["q"]);
    bench.run("cast q --to f16 -o out --exclude m.weight -q").expect(0, "", "");
    // The command works as it is, whatever the folder is called.
    fs::rename(bench.path("q"), bench.path("it's")).unwrap();
    bench.run_args(&["cast", "it's", "--to", "bf16", "-o", "other"]).check_message("--to");
}

#[test]
fn codes_are_known_by_their_names_and_types_without_a_config() {
    let bench = Bench::new();
    for (codes, dtype, scales) in [
        ("l.0.q.weight", "F8_E4M3", "l.0.q.weight_scale_inv"),
        ("l.0.q.weight", "F8_E4M3", "l.0.q.weight_scale"),
        ("l.0.q.weight", "F8_E4M3", "l.0.q.scale_weight"),
        ("l.0.q.weight", "I8", "l.0.q.SCB"),
        ("l.0.q.weight_packed", "I32", "l.0.q.weight_scale"),
        ("l.0.q.weight", "F8_E4M3", "l.0.q.scale"),
        ("l.0.q.weight", "U8", "l.0.q.weight.absmax"),
        ("l.0.experts.gate_up_proj", "F8_E4M3", "l.0.experts.gate_up_proj_scale_inv"),
        ("l.0.experts.gate_up_proj", "F8_E4M3", "l.0.experts.gate_up_proj_scale"),
        ("l.0.q.weight._data", "I8", "l.0.q.weight._scale"),
        ("l.0.q.qweight", "I32", "l.0.q.scales"),
        ("l.0.q.qzeros", "I32", "l.0.q.scales"),
        ("m.gate_up_proj_blocks", "U8", "m.gate_up_proj_scales"),
    ] {
        let bytes = if dtype == "I32" { 16 } else { 4 };
        let tensors: [(&str, &str, &[u64], &[u8]); 2] =
            [(codes, dtype, &[2, 2], &vec![0x38; bytes]), (scales, "F32", &[1, 1], &[0; 4])];
        bench.write("m.safetensors", &shard(&tensors));
        let outcome = bench.run("cast m.safetensors --to bf16 --all -f");
        assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{codes}: {}", outcome.stderr);
        let refused = format!("tensor '{codes}': ");
        let is_refused = outcome.stderr.contains(&refused)
            && outcome.stderr.contains("; casting them as plain values would corrupt the weights");
        assert!(is_refused, "{}", outcome.stderr);
        // The same where the scales are in another shard.
        fs::create_dir_all(bench.path("two")).unwrap();
        bench.write("two/a.safetensors", &shard(&tensors[..1]));
        bench.write("two/b.safetensors", &shard(&tensors[1..]));
        let index = json!({ "weight_map": { codes: "a.safetensors", scales: "b.safetensors" } });
        bench.write("two/model.safetensors.index.json", index.to_string().as_bytes());
        for input in ["two", "two/a.safetensors"] {
            let outcome = bench.run(&format!("cast {input} --to bf16 --all -o out.safetensors -f"));
            assert!(outcome.code == Some(1) && outcome.stderr.contains(&refused), "{input}: {}", outcome.stderr);
        }
    }
}

#[test]
fn values_are_not_taken_for_codes() {
    let bench = Bench::new();
    let cast = |tensors: &[(&str, &str, &[u64], &[u8])]| {
        bench.write("m.safetensors", &shard(tensors));
        bench.run("cast m.safetensors --to f32 --all -q -f").expect(0, "", "");
    };
    cast(&[("l.q.weight", "F8_E4M3", &[2, 2], &[0; 4]), ("l.k.weight_scale", "F32", &[1], &[0; 4])]);
    cast(&[("l.q.weight", "BF16", &[2, 2], &[0; 8]), ("l.q.weight_scale", "F32", &[1], &[0; 4])]);
    cast(&[("mask", "U8", &[2, 2], &[0; 4]), ("x.weight", "F32", &[1], &[0; 4])]);
}

/// Tensors whose type is the target of a cast already, beside integer codes.
#[test]
fn a_cast_that_changes_nothing_and_leaves_integer_codes_is_refused() {
    type Tensor<'a> = (&'a str, &'a str, &'a [u64], &'a [u8]);
    let packed = r#"{"dtype":"bfloat16","quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized",
        "config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group",
        "group_size":32,"symmetric":true}}},"ignore":[]}}"#;
    let mlx = r#"{"dtype":"bfloat16","quantization":{"group_size":32,"bits":4}}"#;
    let shape = [32_u64, 32].map(u64::to_le_bytes).concat();
    let models: [(&str, &str, Vec<Tensor>); 2] = [
        (
            packed,
            "m.q_proj.weight_packed",
            vec![
                ("m.q_proj.weight_packed", "I32", &[32, 4], &[7; 512]),
                ("m.q_proj.weight_scale", "BF16", &[32, 1], &[0x38; 64]),
                ("m.q_proj.weight_shape", "I64", &[2], &shape),
            ],
        ),
        (
            mlx,
            "m.q_proj.weight",
            vec![
                ("m.q_proj.weight", "U32", &[32, 4], &[7; 512]),
                ("m.q_proj.scales", "BF16", &[32, 1], &[0x38; 64]),
                ("m.q_proj.biases", "BF16", &[32, 1], &[0x38; 64]),
            ],
        ),
    ];
    for (config, codes, mut tensors) in models {
        let bench = Bench::new();
        fs::create_dir(bench.path("p")).unwrap();
        tensors.push(("m.norm.weight", "BF16", &[2], &[0x38; 4]));
        bench.write("p/model.safetensors", &shard(&tensors));
        bench.write("p/config.json", config.as_bytes());
        for output in ["", " -o out.safetensors"] {
            bench.run(&format!("cast p --to bf16{output}")).says(1, "", codes);
        }
        assert_eq!(bench.files(), ["p"]);
        bench.run("dequantize p --to bf16 -q").expect(0, "", "");
        bench.run("cast p --to bf16 --exclude *.q_proj.* -o kept -q").expect(0, "", "");
        bench.run("cast p --to bf16 --force-codes -o forced -q").expect(0, "", "");
    }
    // Plain integers have no scales.
    let bench = Bench::new();
    bench.write("x.safetensors", &shard(&[("ids", "I64", &[1], &[7; 8]), ("w", "BF16", &[2, 2], &[0; 8])]));
    bench.run("cast x.safetensors --to bf16 -q").expect(0, "", "");
}

#[test]
fn dequantize_refuses_patterns_that_select_no_quantized_weight() {
    let bench = quantized();
    for patterns in ["--exclude *", "--exclude m.weight", "--include m.weight --exclude *.weight"] {
        bench.run(&format!("dequantize q {patterns} -o out")).says(2, "", "--exclude");
    }
    assert!(!bench.path("out").exists());
}

#[test]
fn codes_of_torchao_under_other_names_are_refused_with_the_name_of_torchao() {
    let bench = Bench::new();
    fs::create_dir(bench.path("t")).unwrap();
    let tensors: [(&str, &str, &[u64], &[u8]); 2] =
        [("m.q.weight", "I8", &[4, 4], &[7; 16]), ("m.q.weight_scale", "BF16", &[4, 1], &[0x38; 8])];
    bench.write("t/model.safetensors", &shard(&tensors));
    for version in [r#","_version":1"#, ""] {
        let config = format!(
            r#"{{"dtype":"bfloat16","quantization_config":{{"quant_method":"torchao","quant_type":{{"default":
            {{"_type":"Int8WeightOnlyConfig"{version}}}}}}}}}"#
        );
        bench.write("t/config.json", config.as_bytes());
        bench.run("dequantize t -o out").says(1, "", "m.q.weight");
    }
}
