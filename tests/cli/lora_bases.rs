//! Adapters on bases that store, tie or transpose a weight in their own way: PEFT defines the result.

use super::gguf_out_folders;
use super::lora::{values, write};
use crate::common::Bench;
use std::fs;

#[test]
fn a_gguf_that_divides_a_weight_is_not_made_with_a_part_of_its_delta() {
    let bench = Bench::new();
    gguf_out_folders::add(&bench, "deepseek-v3", "m");
    let module = "model.layers.0.self_attn.kv_b_proj";
    let (down, up) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    write(&bench, "a.safetensors", &[(&down, &[1, 32], &[1.0; 32]), (&up, &[128, 1], &[1.0; 128])]);
    for (line, first) in [("quantize", "--scheme"), ("cast", "--to")] {
        let line = format!("{line} m --lora a.safetensors {first} f32 --pre-tokenizer gpt-2 -o out.gguf");
        let what = "adapters change it, and this conversion does not merge them into such a weight";
        let remedy = "merge the adapters first with tcast cast --lora, and convert the result";
        bench.run(&line).expect(1, "", &format!("tcast: error: m: tensor '{module}.weight': {what}\n  {remedy}\n"));
    }
    bench.run("cast m --lora a.safetensors --to f32 -o merged -q").expect(0, "", "");
    bench.run("cast merged --pre-tokenizer gpt-2 -o out.gguf -q").expect(0, "", "");
}

#[test]
fn a_head_that_is_tied_to_the_embeddings_changes_with_them() {
    let (table, head) = ("model.embed_tokens.weight", "lm_head.weight");
    let tied = "\"tie_word_embeddings\": true";
    let (config, outer) = ("{\"text_config\": {\"a\": NaN, TIED}}", "{TIED}");
    // The values of both, what config.json says, and whether both change.
    let cases = [
        ([2.0, 2.0], outer, tied, true),
        ([2.0, 2.0], config, tied, true),
        ([2.0, 3.0], outer, tied, false),
        ([2.0, 2.0], outer, "\"tie_word_embeddings\": false", false),
    ];
    for (values_before, config, ties, are_one) in cases {
        let bench = Bench::new();
        fs::create_dir(bench.path("m")).unwrap();
        let [one, two] = values_before;
        write(&bench, "m/model.safetensors", &[(head, &[1, 1], &[two]), (table, &[1, 1], &[one])]);
        bench.write("m/config.json", config.replace("TIED", ties).as_bytes());
        let lora: [(&str, &[u64], &[f32]); 2] =
            [("lm_head.lora_A.weight", &[1, 1], &[4.0]), ("lm_head.lora_B.weight", &[1, 1], &[8.0])];
        write(&bench, "a.safetensors", &lora);
        let outcome = bench.run("cast m --lora a.safetensors -o out");
        let note = format!("tcast: note: '{head}' is tied to '{table}', which changes too\n");
        assert_eq!((outcome.code, outcome.stderr.contains(&note)), (Some(0), are_one), "{}", outcome.stderr);
        let wanted = [two + 32.0, if are_one { one + 32.0 } else { one }];
        assert_eq!(values(&bench, "out/model.safetensors"), wanted, "{config} {ties}");
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    write(&bench, "m/model.safetensors", &[(head, &[1, 1], &[1.0]), (table, &[1, 1], &[1.0])]);
    bench.write("m/config.json", b"{}");
    let lora: [(&str, &[u64], &[f32]); 2] =
        [("model.embed_tokens.lora_A.weight", &[1, 1], &[4.0]), ("model.embed_tokens.lora_B.weight", &[1, 1], &[8.0])];
    write(&bench, "a.safetensors", &lora);
    let what = "has the values of 'lm_head.weight', and config.json does not say whether they are one weight";
    let text = format!("a.safetensors: tensor '{table}': {what}\n  set tie_word_embeddings in config.json\n");
    bench.run("cast m --lora a.safetensors -o out").expect(1, "", &format!("tcast: error: {text}"));
    // Without a tensor of its own, the head is the embeddings.
    write(&bench, "m/model.safetensors", &[(table, &[1, 1], &[1.0])]);
    let outcome = bench.run("cast m --lora a.safetensors -o out");
    let note = format!("tcast: note: '{table}' is tied to the output head, which changes too\n");
    assert!(outcome.code == Some(0) && outcome.stderr.contains(&note), "{}", outcome.stderr);
}
