//! GGUF files of language models that get the metadata of another GGUF: what is compared, computed, copied and left out.

use super::gguf::tiny;
use super::gguf_out_models::model;
use crate::common::gguf::{F32, Gguf};
use crate::common::gguf_reader::parts_of_gguf;
use crate::common::{Bench, fixture};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Changes the config of the model in a folder.
fn configure(bench: &Bench, folder: &str, changes: &Value) {
    let path = format!("{folder}/config.json");
    let mut config: Value = serde_json::from_slice(&bench.read(&path)).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    bench.write(&path, config.to_string().as_bytes());
}

/// The scaling of Llama 3.1, and its factors for heads of 16 dimensions as llama.cpp's converter writes them.
fn llama3() -> Value {
    json!({"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})
}

/// The values of a vector of a file.
fn floats(file: &[u8], name: &str) -> Option<Vec<f32>> {
    let (_, kind, shape, bytes) = parts_of_gguf(file).1.into_iter().find(|(other, ..)| other == name)?;
    assert_eq!((kind, shape.len()), (F32, 1), "{name}");
    Some(bytes.as_chunks().0.iter().take(shape[0] as usize).map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// A donor of the tiny model with more tensors.
fn donor(more: &[(&str, &[f32])]) -> Vec<u8> {
    let words: Vec<String> = (0..64).map(|word| format!("t{word}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let file = Gguf::of("llama").number("llama.block_count", 2).texts("tokenizer.ggml.tokens", &words);
    more.iter()
        .fold(file, |file, (name, values)| file.floats(name, &[values.len() as u64], values.iter().copied()))
        .bytes()
}

#[test]
fn factors_of_rotary_embeddings_are_computed_or_copied() {
    let bench = tiny();
    configure(&bench, "base", &llama3());
    bench.run("quantize base --scheme q8_0 --metadata-from tiny.gguf -o o.gguf").says(0, "", "rope_freqs.weight");
    let file = bench.read("o.gguf");
    let found = floats(&file, "rope_freqs.weight").unwrap();
    // The converter's bytes for these numbers.
    let sum = "57ff17b2f9eafc5d5d2eec41368e906cc9357958e5572017f9753fdfda685dbb";
    let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
    let digest = Sha256::digest(&bytes).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    assert_eq!(digest, sum, "{found:?}");
    // The other tensors have their values.
    bench.run("dequantize o.gguf --names huggingface --config base --to f32 -o back -q").expect(0, "", "");
    assert_eq!(parts_of_gguf(&file).1.len(), 22);
    bench.run("diff o.gguf base --names huggingface --tolerance 0.02 -q").expect(0, "", "");
    // A donor with the same factors up to roundings gives its own.
    let near: Vec<f32> = found.iter().map(|value| value * 1.000_001).collect();
    bench.write("near.gguf", &donor(&[("rope_freqs.weight", &near)]));
    let outcome = bench.run("cast base --to bf16 --metadata-from near.gguf -o o.gguf -f");
    outcome.check_message("rope_freqs.weight");
    assert_eq!((outcome.code, floats(&bench.read("o.gguf"), "rope_freqs.weight")), (Some(0), Some(near)));
    bench.write("far.gguf", &donor(&[("rope_freqs.weight", &[1.0; 8])]));
    bench.run("cast base --to bf16 --metadata-from far.gguf -o x.gguf").says(1, "", "rope_freqs.weight");
    // A config that does not describe them.
    configure(&bench, "base", &json!({"rope_scaling": null}));
    let outcome = bench.run("cast base --to bf16 --metadata-from far.gguf -o o.gguf -f");
    outcome.check_message("rope_freqs.weight");
    assert_eq!((outcome.code, floats(&bench.read("o.gguf"), "rope_freqs.weight")), (Some(0), Some(vec![1.0; 8])));
}

#[test]
fn the_factors_are_in_the_first_part_of_a_divided_model() {
    let bench = tiny();
    configure(&bench, "base", &llama3());
    let line = "quantize base --scheme q8_0 --metadata-from tiny.gguf --max-shard-size 20KB -o out";
    bench.run(&format!("{line} -q")).expect(0, "", "");
    bench.run(&format!("{line} --resume")).says(0, "", "complete");
    let outcome = bench.run("inspect out/out-00001-of-00004.gguf");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    assert!(
        outcome.stdout.contains("22 tensors") && outcome.stdout.contains("rope_freqs.weight"),
        "{}",
        outcome.stdout
    );
    assert!(floats(&bench.read("out/out-00001-of-00004.gguf"), "rope_freqs.weight").is_some());
    assert!(floats(&bench.read("out/out-00002-of-00004.gguf"), "rope_freqs.weight").is_none());
}

#[test]
fn long_rope_gets_both_lists_of_factors() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("phi")).unwrap();
    let config = json!({"model_type": "phi3", "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 512,
        "original_max_position_embeddings": 128, "rope_scaling": {"type": "longrope",
        "long_factor": [1.0, 2.1, 3.2, 4.3, 5.4, 6.5, 7.6, 8.7], "short_factor": [1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]}});
    bench.write("phi/config.json", config.to_string().as_bytes());
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let names = [
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.qkv_proj",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
        "mlp.down_proj",
    ]
    .map(layer);
    bench.write(
        "phi/model.safetensors",
        &model(&[
            ("model.embed_tokens.weight", "F32", &[40, 32]),
            ("model.norm.weight", "F32", &[32]),
            ("lm_head.weight", "F32", &[40, 32]),
            (&names[0], "F32", &[32]),
            (&names[1], "F32", &[32]),
            (&names[2], "F32", &[96, 32]),
            (&names[3], "F32", &[32, 32]),
            (&names[4], "F32", &[128, 32]),
            (&names[5], "F32", &[32, 64]),
        ]),
    );
    bench.write("donor.gguf", &Gguf::of("phi3").bytes());
    let outcome = bench.run("quantize phi --scheme q8_0 --metadata-from donor.gguf -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("rope_factors_short.weight");
    let file = bench.read("o.gguf");
    assert_eq!(floats(&file, "rope_factors_long.weight").unwrap(), [1.0, 2.1, 3.2, 4.3, 5.4, 6.5, 7.6, 8.7]);
    assert_eq!(floats(&file, "rope_factors_short.weight").unwrap(), [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]);
    configure(&bench, "phi", &json!({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}));
    bench.run("quantize phi --scheme q8_0 --metadata-from donor.gguf -o x.gguf").says(1, "", "long_factor");
}

#[test]
fn tensors_of_the_donor_that_the_model_lacks_are_named() {
    let bench = tiny();
    let more: [(&str, &[f32]); 3] =
        [("blk.0.attn_q.bias", &[0.0; 64]), ("blk.1.attn_q.bias", &[0.0; 64]), ("v.x", &[1.0])];
    bench.write("donor.gguf", &donor(&more));
    let outcome = bench.run("quantize base --scheme q8_0 --metadata-from donor.gguf -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("attn_q.bias");
}

#[test]
fn the_metadata_of_a_model_with_other_shapes_or_tokens_is_refused() {
    let bench = tiny();
    let words: Vec<String> = (0..64).map(|word| format!("t{word}")).collect();
    let few: Vec<&str> = words[..62].iter().map(String::as_str).collect();
    let llama = || Gguf::of("llama").number("llama.block_count", 2);
    bench.write("few.gguf", &llama().texts("tokenizer.ggml.tokens", &few).bytes());
    bench.write("wide.gguf", &llama().floats("blk.0.ffn_up.weight", &[96, 65], vec![0.0; 96 * 65]).bytes());
    for (file, error) in [("few.gguf", "tokens"), ("wide.gguf", "blk.0.ffn_up.weight")] {
        for command in ["quantize base --scheme q8_0", "cast base --to bf16"] {
            bench.run(&format!("{command} --metadata-from {file} -o o.gguf")).says(1, "", error);
        }
    }
    assert!(!bench.path("o.gguf").exists());
}

#[test]
fn resuming_into_another_checkpoint_says_what_is_there() {
    let bench = tiny();
    let line = "quantize tiny.gguf --scheme q8_0 --max-shard-size 20KB -o base";
    bench.run(&format!("{line} --resume")).says(4, "", "--force");
    assert!(bench.read("base/config.json") == std::fs::read(fixture("gguf/tiny-llama/config.json")).unwrap());
}

#[test]
fn more_parts_than_their_keys_can_count_are_refused_before_anything_is_written() {
    let bench = Bench::new();
    let file = (0..=65_535).fold(Gguf::of("llama"), |file, at| file.floats(&format!("t{at}"), &[1], [0.0]));
    bench.write("m.gguf", &file.bytes());
    bench.run("quantize m.gguf --scheme f16 --max-shard-size 1B -o out").says(1, "", "65536");
    assert_eq!(bench.files(), ["m.gguf"]);
}
