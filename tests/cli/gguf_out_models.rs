//! GGUF files of language models of Hugging Face and of diffusion models.

use super::gguf::tiny;
use crate::common::gguf::{F16, F32, Gguf, Q4_0, Q8_0};
use crate::common::gguf_reader::parts_of_gguf;
use crate::common::{Bench, fixture, safetensors};
use std::collections::BTreeMap;

const BF16: u32 = 30;

#[test]
fn a_language_model_gets_the_metadata_of_another_gguf_of_it() {
    let bench = tiny();
    bench.run("cast base --to f32 --metadata-from tiny.gguf -o back.gguf -q").expect(0, "", "");
    bench.run("dequantize back.gguf --names huggingface --config base --to f32 -o again -q").expect(0, "", "");
    bench.run("cast base --to f32 -o wanted -q").expect(0, "", "");
    bench.run("diff again wanted").expect(0, "21 tensors are equal\n", "");
    bench.run("diff back.gguf base --names huggingface --tolerance 0 -q").expect(0, "", "");
    // The keys of the other file, and the types of the new one.
    let [donor, file] = ["tiny.gguf", "back.gguf"].map(|name| bench.read(name));
    let [mut expected, found] = [&donor, &file].map(|file| parts_of_gguf(file).0);
    expected.retain(|(name, _)| !["general.file_type", "general.quantization_version"].contains(&&**name));
    expected.push(("general.quantization_version".to_owned(), &[2, 0, 0, 0]));
    expected.push(("general.file_type".to_owned(), &[0, 0, 0, 0]));
    assert_eq!(found, expected);
    // The bytes are those that gguf-py made of the same values.
    bench.run("quantize base --scheme q8_0 --metadata-from tiny.gguf -q").expect(0, "", "");
    let file = bench.read("base.q8_0.gguf");
    let find = |file, wanted: &str| {
        let tensor = parts_of_gguf(file).1.into_iter().find(|(name, ..)| name == wanted).unwrap();
        assert_eq!((tensor.1, tensor.2), (Q8_0, vec![64, 64]), "{wanted}");
        tensor.3[..64 * 68].to_vec()
    };
    for name in ["token_embd.weight", "output.weight"] {
        assert!(find(&file, name) == find(&donor, name), "{name}");
    }
    let outcome = bench.run("quantize base --scheme q8_0 --metadata-from tiny.gguf -f");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""));
    for line in [
        "\nbase -> base.q8_0.gguf\n",
        "  output_norm.weight                   [64]      bfloat16 -> float32: norms      128 B ->     256 B\n",
        "  blk.*.attn_k.weight       2 tensors  [32, 64]  bfloat16 -> q8_0             8.00 KiB ->  4.25 KiB\n",
    ] {
        outcome.check_message(line);
    }
}

#[test]
fn patterns_match_names_of_both_kinds() {
    let bench = tiny();
    let line = "quantize base --metadata-from tiny.gguf --scheme q8_0 -o o.gguf -q \
        --rule model.layers.0.self_attn.q_proj.weight=f16 --rule blk.1.attn_q.*=q4_0 --rule *.attn_v.*=keep \
        --exclude lm_head.* --exclude blk.*.ffn_up.weight";
    bench.run(line).expect(0, "", "");
    let file = bench.read("o.gguf");
    let tensors = parts_of_gguf(&file).1;
    for (name, id) in [
        ("blk.0.attn_q.weight", F16),
        ("blk.1.attn_q.weight", Q4_0),
        ("blk.0.attn_v.weight", BF16),
        ("output.weight", BF16),
        ("blk.1.ffn_up.weight", BF16),
        ("blk.1.ffn_down.weight", Q8_0),
        ("output_norm.weight", F32),
    ] {
        assert_eq!(tensors.iter().find(|tensor| tensor.0 == name).unwrap().1, id, "{name}");
    }
}

#[test]
fn a_language_model_without_metadata_or_with_that_of_another_is_refused() {
    let bench = tiny();
    bench.run("quantize base --scheme q8_0").says(1, "", "--metadata-from");
    bench.run("cast tiny.gguf --names huggingface --to bf16 -o o.gguf").says(2, "", "--names");
    for (line, error) in [
        ("quantize base --layout gguf", "quantized"),
        ("quantize base --scheme int8 --layout gguf --metadata-from tiny.gguf", "int8"),
        ("quantize tiny.gguf --scheme fp8 --layout modelopt -o o.gguf", "modelopt"),
        ("quantize tiny.gguf --scheme nvfp4 --layout mlx -o o.gguf", "layout"),
        ("quantize tiny.gguf --scheme int4 -o o.gguf", "compressed"),
    ] {
        bench.run(line).says(2, "", error);
    }
    bench.write("config.json", br#"{"model_type": "bloom"}"#);
    bench.write("model.safetensors", &model(&[("w", "F32", &[2, 32])]));
    bench.run("quantize model.safetensors --scheme q8_0").check_message("tcast quantize MODEL.gguf --scheme q8_0");
    bench.write("qwen.gguf", &Gguf::of("qwen2").number("qwen2.block_count", 2).bytes());
    bench.write("deep.gguf", &Gguf::of("llama").number("llama.block_count", 3).bytes());
    let words: Vec<String> = (0..65).map(|word| format!("t{word}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let many = Gguf::of("llama").number("llama.block_count", 2).texts("tokenizer.ggml.tokens", &words);
    bench.write("words.gguf", &many.bytes());
    for donor in ["qwen.gguf", "deep.gguf", "words.gguf", "base/model.safetensors"] {
        for command in ["quantize base --scheme q8_0", "cast base --to bf16"] {
            bench.run(&format!("{command} --metadata-from {donor} -o o.gguf")).says(1, "", donor);
        }
    }
    bench.run("quantize base --scheme q8_0 --metadata-from none.gguf -o o.gguf").says(1, "", "directory");
    let donor = bench.read("tiny.gguf");
    for command in ["quantize base --scheme q8_0", "cast base --to bf16"] {
        bench.run(&format!("{command} --metadata-from tiny.gguf -o tiny.gguf -f")).says(1, "", "replaced");
    }
    assert!(bench.read("tiny.gguf") == donor);
    assert!(!bench.path("o.gguf").exists());
}

/// A file of tensors of float32, bfloat16 or float16, whose values are small whole numbers.
pub(crate) fn model(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape) in tensors {
        let start = data.len();
        for at in 0..shape.iter().product::<usize>() {
            let value = (at % 15) as f32 - 7.0;
            match *dtype {
                "F32" => data.extend(value.to_le_bytes()),
                "BF16" => data.extend(half::bf16::from_f32(value).to_le_bytes()),
                _ => data.extend(half::f16::from_f32(value).to_le_bytes()),
            }
        }
        let end = data.len();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// Names, types and row-major shapes of the tensors of a file.
pub(crate) fn tensors(file: &[u8]) -> Vec<(String, u32, Vec<u64>)> {
    parts_of_gguf(file).1.into_iter().map(|(name, id, shape, _)| (name, id, shape)).collect()
}

pub(crate) fn named(tensors: &[(&str, u32, &[u64])]) -> Vec<(String, u32, Vec<u64>)> {
    tensors.iter().map(|(name, id, shape)| ((*name).to_owned(), *id, shape.to_vec())).collect()
}

#[test]
fn latent_attention_takes_the_metadata_of_files_with_one_head_of_keys() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("deep")).unwrap();
    let config = r#"{"model_type": "deepseek_v2", "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4}"#;
    bench.write("deep/config.json", config.as_bytes());
    let models: serde_json::Value = serde_json::from_slice(&std::fs::read(fixture("gguf/maps.json")).unwrap()).unwrap();
    let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_value(models["deepseek_v2"]["hf"].clone()).unwrap();
    let all: Vec<(&str, &str, &[usize])> = shapes.iter().map(|(name, shape)| (&**name, "F32", &**shape)).collect();
    bench.write("deep/model.safetensors", &model(&all));
    let old = || Gguf::of("deepseek2").number("deepseek2.block_count", 2);
    bench.write("old.gguf", &old().number("deepseek2.attention.head_count_kv", 4).bytes());
    let new = old().number("deepseek2.attention.head_count_kv", 1).number("deepseek2.attention.key_length_mla", 24);
    bench.write("new.gguf", &new.bytes());
    for command in ["quantize deep --scheme q8_0", "cast deep --to f32"] {
        bench.run(&format!("{command} --metadata-from new.gguf -o o.gguf -q -f")).expect(0, "", "");
        let found = tensors(&bench.read("o.gguf"));
        let shape = |name: &str| &*found.iter().find(|tensor| tensor.0 == name).unwrap().2;
        assert_eq!(
            (shape("blk.1.attn_k_b.weight"), shape("blk.1.attn_v_b.weight")),
            (&[4, 16, 16][..], &[4, 16, 16][..])
        );
        // Without the key, llama.cpp expects keys and values in one tensor.
        bench.run(&format!("{command} --metadata-from old.gguf -o o.gguf -f")).says(1, "", "April");
    }
}

#[test]
fn rows_of_tokens_that_the_tokenizer_lacks_are_cut() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("gemma")).unwrap();
    let config = r#"{"model_type": "gemma3_text", "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "hidden_size": 32, "intermediate_size": 32}"#;
    bench.write("gemma/config.json", config.as_bytes());
    let norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"];
    let norms = norms.map(|norm| format!("model.layers.0.{norm}_layernorm.weight"));
    let attention = ["q", "k"].map(|norm| format!("model.layers.0.self_attn.{norm}_norm.weight"));
    let matrices = ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
        .map(|matrix| format!("model.layers.0.{matrix}_proj.weight"));
    let mut all: Vec<(&str, &str, &[usize])> = vec![("model.norm.weight", "F32", &[32])];
    all.extend(norms.iter().chain(&attention).map(|name| (&**name, "F32", &[32][..])));
    all.extend(matrices.iter().map(|name| (&**name, "F32", &[32, 32][..])));
    all.push(("model.embed_tokens.weight", "F32", &[40, 32]));
    bench.write("gemma/model.safetensors", &model(&all));
    let words: Vec<String> = (0..33).map(|word| format!("t{word}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    bench.write("donor.gguf", &Gguf::of("gemma3").texts("tokenizer.ggml.tokens", &words).bytes());
    for (command, id, bytes) in
        [("cast gemma --to f32", F32, 4 * 32 * 33), ("quantize gemma --scheme q8_0", Q8_0, 34 * 33)]
    {
        let outcome = bench.run(&format!("{command} --metadata-from donor.gguf -o o.gguf -f --json"));
        outcome.check_message("token_embd.weight");
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let rows = report["tensors"].as_array().unwrap();
        let embedding = rows.iter().find(|tensor| tensor["name"] == "token_embd.weight").unwrap();
        assert_eq!((&embedding["shape"], &embedding["bytes_out"]), (&serde_json::json!([33, 32]), &bytes.into()));
        let file = bench.read("o.gguf");
        let found = parts_of_gguf(&file).1.into_iter().find(|(name, ..)| name == "token_embd.weight").unwrap();
        assert_eq!((found.1, &found.2[..]), (id, &[33, 32][..]));
        if id == F32 {
            let values: Vec<u8> = (0..32 * 33).flat_map(|at| ((at % 15) as f32 - 7.0).to_le_bytes()).collect();
            assert!(found.3[..values.len()] == values);
        }
    }
}

/// The keys for original shapes, with their numbers.
fn shapes(file: &[u8]) -> Vec<(String, Vec<i32>)> {
    let found = parts_of_gguf(file).0.into_iter().filter_map(|(name, value)| {
        let tensor = name.strip_prefix("comfy.gguf.orig_shape.")?.to_owned();
        // The type of the elements and their count precede them.
        assert_eq!(value[..4], 5_u32.to_le_bytes());
        Some((tensor, value[12..].as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()))
    });
    found.collect()
}

fn flux() -> Vec<u8> {
    model(&[
        ("model.diffusion_model.double_blocks.0.img_attn.proj.weight", "BF16", &[8, 256]),
        ("model.diffusion_model.double_blocks.0.img_attn.proj.bias", "BF16", &[8]),
        ("model.diffusion_model.img_in.weight", "BF16", &[8, 256]),
        ("model.diffusion_model.double_blocks.0.img_attn.norm.query_norm.scale", "BF16", &[16]),
        ("model.diffusion_model.single_blocks.0.linear1.weight", "BF16", &[8, 256]),
        ("first_stage_model.decoder.weight", "BF16", &[8, 256]),
    ])
}

#[test]
fn a_diffusion_model_is_detected_and_loses_its_prefix() {
    let bench = Bench::new();
    bench.write("flux.safetensors", &flux());
    let outcome = bench.run("quantize flux.safetensors --layout gguf --scheme q8_0");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("model.diffusion_model");
    let file = bench.read("flux.q8_0.gguf");
    assert_eq!(
        tensors(&file),
        named(&[
            ("double_blocks.0.img_attn.proj.weight", Q8_0, &[8, 256]),
            ("double_blocks.0.img_attn.proj.bias", F32, &[8]),
            ("img_in.weight", BF16, &[8, 256]),
            ("double_blocks.0.img_attn.norm.query_norm.scale", F32, &[16]),
            ("single_blocks.0.linear1.weight", Q8_0, &[8, 256]),
        ])
    );
    let keys: Vec<String> = parts_of_gguf(&file).0.into_iter().map(|(name, _)| name).collect();
    assert_eq!(keys, ["general.architecture", "general.quantization_version", "general.file_type"]);
    bench
        .run("inspect flux.q8_0.gguf --json")
        .stdout
        .contains(r#""general.architecture":"flux""#)
        .then_some(())
        .unwrap();
    // Patterns match names with the prefix and without it.
    let line = "quantize flux.safetensors --scheme q4_0 --rule *.linear1.weight=q8_0 -o o.gguf -q \
        --exclude model.diffusion_model.double_blocks.0.img_attn.proj.weight";
    bench.run(line).expect(0, "", "");
    let types: Vec<u32> = tensors(&bench.read("o.gguf")).into_iter().map(|(_, id, _)| id).collect();
    assert_eq!(types, [BF16, F32, BF16, F32, Q8_0]);
    // The result is an input as well, with the same rules.
    bench.run("quantize flux.q8_0.gguf --scheme q8_0 -o again.gguf -q").expect(0, "", "");
    assert!(bench.read("again.gguf") == file);
    bench.run("cast flux.safetensors --to bf16 -o plain.gguf -q").expect(0, "", "");
    let types: Vec<u32> = tensors(&bench.read("plain.gguf")).into_iter().map(|(_, id, _)| id).collect();
    assert_eq!(types, [BF16, F32, BF16, F32, BF16]);
    bench.run("quantize plain.gguf --scheme q8_0 -o via.gguf -q").expect(0, "", "");
    assert!(bench.read("via.gguf") == file);
}

#[test]
fn five_dimensions_are_written_whole_and_float16_stays() {
    let bench = Bench::new();
    bench.write(
        "wan.safetensors",
        &model(&[
            ("patch_embedding.weight", "F16", &[256, 4, 1, 2, 2]),
            ("blocks.0.self_attn.norm_q.weight", "F16", &[256]),
            ("text_embedding.2.weight", "F16", &[8, 256]),
            ("head.modulation", "F16", &[1, 2, 256]),
            ("patch_embedding.bias", "F16", &[256]),
            ("blocks.0.self_attn.q.weight", "F16", &[8, 256]),
        ]),
    );
    let outcome = bench.run("quantize wan.safetensors --scheme q8_0 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("patch_embedding.weight");
    let file = bench.read("o.gguf");
    // Five dimensions follow the bias of the same module.
    assert_eq!(
        tensors(&file),
        named(&[
            ("blocks.0.self_attn.norm_q.weight", F16, &[256]),
            ("text_embedding.2.weight", F16, &[8, 256]),
            ("head.modulation", F16, &[1, 2, 256]),
            ("patch_embedding.bias", F16, &[256]),
            ("patch_embedding.weight", F32, &[256, 4, 1, 2, 2]),
            ("blocks.0.self_attn.q.weight", Q8_0, &[8, 256]),
        ])
    );
    assert_eq!(shapes(&file), [("patch_embedding.weight".to_owned(), vec![256, 4, 1, 2, 2])]);
    bench.run("diff o.gguf wan.safetensors --tolerance 0.1 -q").expect(0, "", "");
}

#[test]
fn convolutions_of_sdxl_are_stored_in_rows_of_256() {
    let bench = Bench::new();
    let prefix = "model.diffusion_model.";
    let names =
        ["label_emb.0.0.weight", "output_blocks.2.2.conv.weight", "output_blocks.5.2.conv.weight", "out.2.bias"];
    let [label, first, second, bias] = names.map(|name| format!("{prefix}{name}"));
    bench.write(
        "sdxl.safetensors",
        &model(&[
            (&label, "F16", &[8, 256]),
            (&first, "F16", &[32, 16, 3, 3]),
            (&second, "F16", &[32, 4, 3, 3]),
            (&bias, "F16", &[4]),
        ]),
    );
    bench.run("quantize sdxl.safetensors --scheme q4_0 -o o.gguf -q").expect(0, "", "");
    let file = bench.read("o.gguf");
    assert_eq!(
        tensors(&file),
        named(&[
            (names[0], F16, &[8, 256]),
            (names[1], Q4_0, &[18, 256]),
            (names[2], F16, &[32, 4, 3, 3]), // 1152 elements
            (names[3], F16, &[4]),
        ])
    );
    assert_eq!(shapes(&file), [(names[1].to_owned(), vec![32, 16, 3, 3])]);
    bench.run("quantize o.gguf --scheme q4_0 -o again.gguf -q").expect(0, "", "");
    assert!(bench.read("again.gguf") == file);
    bench.run("dequantize o.gguf -o values.safetensors -q").expect(0, "", "");
    let values = bench.read("values.safetensors");
    let values = ::safetensors::SafeTensors::deserialize(&values).unwrap();
    assert_eq!(values.tensor(names[1]).unwrap().shape(), [32, 16, 3, 3]);
}

#[test]
fn an_architecture_can_be_named_and_what_comfyui_does_not_load_is_refused() {
    let bench = Bench::new();
    bench.write("plain.safetensors", &model(&[("a.weight", "F32", &[8, 256]), ("a.bias", "F32", &[8])]));
    bench.run("quantize plain.safetensors --scheme q4_0 -o o.gguf").says(1, "", "--architecture");
    let names = ["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.bias"];
    bench.write("part.safetensors", &model(&[(names[0], "F32", &[8, 256]), (names[1], "F32", &[8])]));
    bench.run("quantize part.safetensors --scheme q4_0 --architecture flux -o o.gguf -q").expect(0, "", "");
    assert_eq!(tensors(&bench.read("o.gguf")), named(&[(names[0], Q4_0, &[8, 256]), (names[1], F32, &[8])]));
    bench.run("quantize plain.safetensors --scheme q4_0 --architecture llama -o x.gguf").says(2, "", "llama");
    bench.write("flux.safetensors", &flux());
    for (scheme, why) in [("iq4_nl", "ComfyUI"), ("iq4_xs", "ComfyUI"), ("q2_k_s", "importance")] {
        bench.run(&format!("quantize flux.safetensors --scheme {scheme} -o x.gguf")).says(2, "", why);
    }
    bench.write(
        "diffusers.safetensors",
        &model(&[
            ("transformer_blocks.0.attn.norm_added_k.weight", "F32", &[16]),
            ("transformer_blocks.0.attn.add_q_proj.weight", "F32", &[8, 256]),
        ]),
    );
    bench.run("quantize diffusers.safetensors --scheme q4_0 -o x.gguf").says(1, "", "Diffusers");
    assert!(!bench.path("x.gguf").exists());
}
