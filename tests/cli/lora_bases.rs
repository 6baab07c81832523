//! Adapters on bases that store, tie or transpose a weight in their own way: PEFT defines the result.

use super::gguf_out_folders;
use super::lora::write;
use crate::common::Bench;

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
