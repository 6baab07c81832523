//! Models of `quant_method` gemma: `fixtures/gemma` has rows that transformers decoded.

use super::dequantize::shard;
use super::quantize::tensors;
use crate::common::{Bench, fixture};
use std::fs;

/// Rows of linear layers and embeddings of 2, 4 and 8 bits, under the names of the fixture.
fn bench() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    fs::copy(fixture("gemma/model.safetensors"), bench.path("q/model.safetensors")).unwrap();
    bench
}

fn config(more: &str) -> String {
    format!(r#"{{"model_type": "gemma4", "quantization_config": {{"quant_method": "gemma"{more}}}}}"#)
}

const WIDTHS: &str = r#", "num_bits": 4, "quantize_embeddings": true, "modules_to_not_convert": ["lm_head"],
    "module_quant_configs": {"w2": {"num_bits": 2}, "w8$": {"num_bits": 8}, "[.]w8": {"num_bits": 2}}"#;

#[test]
fn weights_and_embeddings_are_decoded_as_by_transformers() {
    let bench = bench();
    bench.write("q/config.json", config(WIDTHS).as_bytes());
    for (name, target) in [("bfloat16", "bf16"), ("float16", "f16")] {
        bench.run(&format!("dequantize q --to {target} -o d -f -q")).expect(0, "", "");
        let wanted = tensors(&fixture(&format!("gemma/decoded.{name}.safetensors")));
        let found = tensors(&bench.path("d"));
        for (name, stored) in &wanted {
            assert!(found[name] == *stored, "{name} {target}");
        }
        assert!(found.keys().all(|name| name.ends_with(".weight")), "{:?}", found.keys());
        let config = fs::read_to_string(bench.path("d/config.json")).unwrap();
        assert!(!config.contains("quantization_config"), "{config}");
    }
    bench.run("dequantize q -o d -f").check_message("input_activation_scale");
}

#[test]
fn widths_that_contradict_the_config_are_refused() {
    let bench = bench();
    let refused = |more: &str, message: &str| {
        bench.write("q/config.json", config(more).as_bytes());
        bench.run("dequantize q -o d -q").says(1, "", message);
    };
    refused("", "its quant_method is 'gemma', and it says no num_bits");
    refused(r#", "num_bits": 3"#, "num_bits 3, and such codes have 2, 4 or 8 bits");
    refused(
        r#", "num_bits": 4"#,
        "is int8, and the config says quant_method 'gemma', num_bits 4, whose codes are uint8",
    );
    let bytes = [0; 64];
    let parts: [(&str, &str, &[u64], &[u8]); 2] =
        [("m.weight", "U8", &[4, 16], &bytes), ("m.weight_scale", "F32", &[3, 1], &bytes[..12])];
    bench.write("q/model.safetensors", &shard(&parts));
    refused(r#", "num_bits": 4"#, "the shape [3, 1] of 'm.weight_scale' does not show it");
}
