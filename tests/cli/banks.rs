//! Banks of experts: `tcast dequantize` stacks experts where files of the kind of model store them so.

use super::quantize::{bench_with, tensors};
use crate::common::Bench;

const BANKS: &[(&str, &[u64])] = &[
    ("model.layers.0.experts.down_proj", &[2, 64, 48]),
    ("model.layers.0.experts.gate_up_proj", &[2, 96, 64]),
    ("model.layers.0.mlp.up_proj.weight", &[128, 64]),
];

fn of(kind: &str) -> Bench {
    let config = format!(
        r#"{{"model_type": "{kind}", "hidden_size": 64, "moe_intermediate_size": 48, "num_experts": 2, "dtype": "bfloat16"}}"#
    );
    bench_with(BANKS, &config)
}

#[test]
fn decoded_experts_are_stored_as_the_files_of_their_kind_store_them() {
    let bench = of("gemma4_text");
    bench.run("quantize m --scheme fp8 -q -o out").expect(0, "", "");
    assert_eq!(tensors(&bench.path("out")).len(), 2 * 6 + 2);
    bench.run("dequantize out -q -o back").expect(0, "", "");
    let (before, after) = (tensors(&bench.path("m")), tensors(&bench.path("back")));
    assert!(before.keys().eq(after.keys()), "{:?}", after.keys());
    // Each expert is at its place: the values are near those before.
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        let of_bits = |two: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
        bytes.chunks(2).map(of_bits).collect()
    };
    for (name, (dtype, shape, bytes)) in &before {
        let (found_dtype, found_shape, found) = &after[name];
        assert_eq!((dtype, shape), (found_dtype, found_shape), "{name}");
        let (wanted, found) = (numbers(bytes), numbers(found));
        let largest = wanted.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        assert!(wanted.iter().zip(&found).all(|(one, two)| (one - two).abs() <= largest / 15.0), "{name}");
    }
    // The names of the file are those of single experts.
    bench.run("dequantize out --names file -q -o single").expect(0, "", "");
    assert_eq!(tensors(&bench.path("single")).len(), 7);
    // What stays quantized keeps its names.
    bench.run("dequantize out --include *.mlp.* -q -o part").expect(0, "", "");
    assert!(tensors(&bench.path("part")).contains_key("model.layers.0.experts.1.up_proj.weight_scale"));
}

#[test]
fn experts_of_other_kinds_are_decoded_one_by_one() {
    let bench = of("mine");
    bench.run("quantize m --scheme fp8 -q -o out").expect(0, "", "");
    bench.run("dequantize out -q -o back").expect(0, "", "");
    assert_eq!(tensors(&bench.path("back")).len(), 7);
}

#[test]
fn a_bank_without_one_of_its_experts_is_refused() {
    let bench = of("gemma4_text");
    bench.run("quantize m --scheme fp8 -q -o out").expect(0, "", "");
    bench.write("out/config.json", config_of_three(&bench).as_bytes());
    bench.run("dequantize out -q -o back").says(1, "", "--names");
}

/// Returns the config.json of the quantized model, with one more expert than it has.
fn config_of_three(bench: &Bench) -> String {
    let config = std::fs::read_to_string(bench.path("out/config.json")).unwrap();
    config.replace(r#""num_experts": 2"#, r#""num_experts": 3"#)
}
