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
    assert!(lines[0].ends_with("scales are missing: such tensors are compared as they are stored"), "{lines:?}");
    bench.run("diff a.safetensors b.safetensors -q").expect(0, "", "");
}
