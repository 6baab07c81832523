//! Adapters such as LoRA: their tensors are updates of weights of another model.

use crate::common::{Bench, shard};
use std::fs;

#[test]
fn an_adapter_is_cast_and_not_quantized() {
    for (down, up) in [
        ("base_model.model.l.0.q_proj.lora_A.weight", "base_model.model.l.0.q_proj.lora_B.weight"),
        ("l.0.q_proj.lora_A.default.weight", "l.0.q_proj.lora_B.default.weight"),
        ("l.0.q_proj.lora_a", "l.0.q_proj.lora_b"),
        ("lora_unet_mid_q.lora_down.weight", "lora_unet_mid_q.lora_up.weight"),
        ("lora_te1_l_0_q.hada_w1_a", "lora_te1_l_0_q.hada_w1_b"),
        ("lycoris_l_0_q.lokr_w1", "lycoris_l_0_q.lokr_w2"),
        ("diffusion_model.l.0.q.lora_down.weight", "diffusion_model.l.0.q.lora_up.weight"),
        ("transformer.l.0.attn.to_q.lora.down.weight", "transformer.l.0.attn.to_q.lora.up.weight"),
        ("unet.l.0.attn.processor.to_q_lora.down.weight", "unet.l.0.attn.processor.to_q_lora.up.weight"),
        (
            "text_encoder.l.0.q_proj.lora_linear_layer.down.weight",
            "text_encoder.l.0.q_proj.lora_linear_layer.up.weight",
        ),
        ("base_model.model.embed_tokens.lora_embedding_A", "base_model.model.embed_tokens.lora_embedding_B"),
    ] {
        let bench = Bench::new();
        bench.write("x.safetensors", &shard(&[(down, 1.5, 64), (up, 1.5, 64)]));
        for options in ["--scheme int8", "--scheme fp8 --layout comfyui", "--compare fp8,int8"] {
            bench.run(&format!("quantize x.safetensors {options}")).says(1, "", "--to");
        }
        bench.run("cast x.safetensors --to bfloat16 -q").expect(0, "", "");
    }
}

#[test]
fn a_folder_is_an_adapter_by_its_config_and_its_file() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/adapter_config.json", br#"{"peft_type": "PROMPT_TUNING"}"#);
    bench.write("in/adapter_model.safetensors", &shard(&[("prompt_embeddings", 1.5, 64)]));
    bench.run("quantize in --scheme int8").says(1, "", "--to");
    bench.run("cast in --to bfloat16 -q").expect(0, "", "");
    fs::rename(bench.path("in/adapter_model.safetensors"), bench.path("in/adapters.safetensors")).unwrap();
    bench.run("quantize in --scheme int8").says(1, "", "--to");
}

#[test]
fn a_model_with_adapters_of_its_own_is_quantized() {
    for names in [
        ["l.0.q_proj.weight", "l.0.q_proj.lora_A.weight"],
        ["l.0.q_proj.base_layer.weight", "l.0.q_proj.lora_A.speech.weight"],
        ["l.0.attn.w_lora.lora.0.weight", "l.0.attn.w_lora.lora.2.weight"],
    ] {
        let bench = Bench::new();
        bench.write("x.safetensors", &shard(&[(names[0], 1.5, 64), (names[1], 1.5, 64)]));
        let outcome = bench.run("quantize x.safetensors --scheme int8 -o out.safetensors");
        assert!(outcome.code == Some(0) && outcome.stdout.is_empty(), "{outcome:?}");
        assert!(outcome.stderr.starts_with("quantize "), "{}", outcome.stderr);
    }
}
