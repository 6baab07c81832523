//! Kinds of diffusion models in GGUF files: how they are recognized, and what a new file keeps of them.

use super::gguf_out_models::{model, named, tensors};
use crate::common::gguf::{F32, Gguf, Q8_0};
use crate::common::gguf_reader::parts_of_gguf;
use crate::common::{Bench, fixture, safetensors};

const BF16: u32 = 30;

/// A file with a matrix of bfloat16 under each name.
fn matrices(names: &[&str]) -> Vec<u8> {
    model(&names.iter().map(|name| (*name, "BF16", &[32, 64][..])).collect::<Vec<_>>())
}

#[test]
fn a_model_without_the_key_tensors_of_the_named_architecture_is_refused() {
    let bench = Bench::new();
    for file in ["config.json", "model.safetensors"] {
        std::fs::create_dir_all(bench.path("llama")).unwrap();
        std::fs::copy(fixture("gguf/tiny-llama").join(file), bench.path("llama").join(file)).unwrap();
    }
    for architecture in ["flux", "sd3", "aura", "wan", "lumina2", "qwen_image"] {
        bench.run(&format!("quantize llama --layout gguf --scheme q8_0 --architecture {architecture} -o o.gguf")).says(
            2,
            "",
            architecture,
        );
    }
    // A file without an architecture.
    bench.write("sd.gguf", &Gguf::default().tensors_of(&["model.diffusion_model.a.weight"]).bytes());
    bench.run("quantize sd.gguf --scheme q8_0 --architecture flux -o o.gguf").says(2, "", "architecture");
    let key = "model.diffusion_model.double_blocks.0.img_attn.proj.weight";
    bench.write("flux.gguf", &Gguf::default().tensors_of(&[key]).bytes());
    bench.run("quantize flux.gguf --scheme q8_0 --architecture flux -o o.gguf -q").expect(0, "", "");
}

#[test]
fn the_layout_of_diffusers_is_refused_with_the_right_kind() {
    let bench = Bench::new();
    for (kind, names) in [
        (
            "flux",
            &["transformer_blocks.0.attn.norm_added_k.weight", "single_transformer_blocks.0.attn.to_q.weight"][..],
        ),
        (
            "sd3",
            &[
                "transformer_blocks.0.attn.norm_added_k.weight",
                "transformer_blocks.0.attn.add_q_proj.weight",
                "pos_embed.proj.weight",
            ],
        ),
        ("hyvid", &["transformer_blocks.0.attn.norm_added_k.weight", "context_embedder.proj_in.weight"]),
        (
            "wan",
            &[
                "blocks.0.attn1.to_q.weight",
                "condition_embedder.text_embedder.linear_1.weight",
                "patch_embedding.weight",
                "scale_shift_table",
            ],
        ),
        ("ltxv", &["time_embed.emb.timestep_embedder.linear_1.weight", "transformer_blocks.0.attn1.norm_q.weight"]),
        ("lumina2", &["time_caption_embed.caption_embedder.1.weight", "context_refiner.0.attn.to_q.weight"]),
        ("lumina2", &["cap_embedder.1.weight", "context_refiner.0.attention.to_q.weight"]),
    ] {
        bench.write("m.safetensors", &matrices(names));
        for option in [String::new(), format!(" --architecture {kind}")] {
            bench.run(&format!("quantize m.safetensors --scheme q8_0 -o o.gguf{option}")).says(1, "", "Diffusers");
        }
    }
    assert!(!bench.path("o.gguf").exists());
}

#[test]
fn qwen_image_is_recognized_although_its_names_are_those_of_diffusers() {
    let bench = Bench::new();
    let names = [
        "transformer_blocks.0.attn.norm_added_k.weight",
        "transformer_blocks.0.attn.add_q_proj.weight",
        "transformer_blocks.0.attn.to_q.weight",
        "transformer_blocks.0.img_mod.1.weight",
        "txt_norm.weight",
        "img_in.weight",
        "time_text_embed.timestep_embedder.linear_1.weight",
        "norm_out.linear.weight",
        "proj_out.weight",
    ];
    bench.write("m.safetensors", &matrices(&names));
    let outcome = bench.run("quantize m.safetensors --scheme q8_0 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("qwen_image");
    let file = bench.read("o.gguf");
    let (keys, found) = (parts_of_gguf(&file).0, tensors(&file));
    assert_eq!((&*keys[0].0, &keys[0].1[8..]), ("general.architecture", &b"qwen_image"[..]));
    let kinds: Vec<u32> = found.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds, names.map(kind_of));
    // A GGUF of it has the same rules.
    bench.run("quantize o.gguf --scheme q8_0 -o again.gguf -q").expect(0, "", "");
    assert!(bench.read("again.gguf") == file);
    bench.run("quantize m.safetensors --scheme q8_0 --architecture flux -o x.gguf").says(2, "", "--architecture");
}

/// The type of a tensor of Qwen-Image in `Q8_0`.
fn kind_of(name: &str) -> u32 {
    if name.starts_with("transformer_blocks.") { Q8_0 } else { BF16 }
}

#[test]
fn the_pad_tokens_of_z_image_keep_two_dimensions_in_float32() {
    let bench = Bench::new();
    bench.write(
        "z.safetensors",
        &model(&[
            ("cap_embedder.1.weight", "BF16", &[32, 64]),
            ("context_refiner.0.attention.qkv.weight", "BF16", &[96, 64]),
            ("layers.0.attention.qkv.weight", "BF16", &[96, 64]),
            ("x_pad_token", "BF16", &[1, 2048]),
            ("cap_pad_token", "BF16", &[1, 2048]),
        ]),
    );
    for command in ["quantize z.safetensors --scheme q8_0", "cast z.safetensors --to bf16"] {
        bench.run(&format!("{command} -o o.gguf -q -f")).expect(0, "", "");
        let found = tensors(&bench.read("o.gguf"));
        assert_eq!(
            found[3..],
            named(&[("x_pad_token", F32, &[1, 2048]), ("cap_pad_token", F32, &[1, 2048])]),
            "{command}"
        );
    }
    // They keep them in a second step too.
    bench.run("quantize o.gguf --scheme q8_0 -o again.gguf -q").expect(0, "", "");
    assert_eq!(tensors(&bench.read("again.gguf"))[3..], tensors(&bench.read("o.gguf"))[3..]);
}

#[test]
fn metadata_that_loaders_read_is_kept_and_other_metadata_is_named() {
    let bench = Bench::new();
    let config = r#"{\"transformer\": {\"_class_name\": \"AVTransformer3DModel\"}}"#;
    let names = ["adaln_single.linear.weight", "transformer_blocks.0.attn1.to_q.weight"];
    let entry = |at: usize| {
        format!(r#""{}":{{"dtype":"F32","shape":[2,32],"data_offsets":[{},{}]}}"#, names[at], at * 256, at * 256 + 256)
    };
    let metadata = format!(r#""__metadata__":{{"format":"pt","config":"{config}","modelspec.title":"x"}}"#);
    let header = format!("{{{metadata},{},{}}}", entry(0), entry(1));
    bench.write("ltx.safetensors", &safetensors(&header, &[0; 512]));
    let outcome = bench.run("quantize ltx.safetensors --scheme q8_0 --architecture ltxv -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("modelspec");
    let file = bench.read("o.gguf");
    let keys = parts_of_gguf(&file).0;
    let value = &keys.iter().find(|(name, _)| name == "config").unwrap().1;
    assert_eq!(value[8..], *config.replace('\\', "").as_bytes());
}

#[test]
fn every_tensor_that_is_left_out_is_named() {
    let bench = Bench::new();
    let prefix = "model.diffusion_model.";
    let mut names = vec![format!("{prefix}double_blocks.0.img_attn.proj.weight")];
    names.extend((0..3).map(|at| format!("first_stage_model.decoder.up.{at}.weight")));
    names.extend(["cond_stage_model.logit_scale".to_owned(), "lm_head.weight".to_owned()]);
    bench.write("m.safetensors", &matrices(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    let outcome = bench.run("quantize m.safetensors --scheme q8_0 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("first_stage_model.decoder.up");
}

#[test]
fn a_scale_with_another_name_than_llama_cpp_reads_is_refused() {
    let bench = Bench::new();
    let blocks = vec![0x38; 4 * 36];
    for scale in ["x.weight.scale", "x.weight.input_scale", "x.weight_scale", "x.weight_scale_2", "x.scale_weight"] {
        let file = Gguf::of("llama").tensor("x.weight", &[4, 64], crate::common::gguf::NVFP4, &blocks);
        bench.write("m.gguf", &file.floats(scale, &[1], [0.5]).bytes());
        for command in ["dequantize m.gguf --to f32 -o o.safetensors", "quantize m.gguf --scheme q8_0 -o o.gguf"] {
            bench.run(command).says(1, "", "x.weight");
        }
    }
    // llama.cpp's own name is applied.
    let file = Gguf::of("llama").tensor("x.weight", &[4, 64], crate::common::gguf::NVFP4, &blocks);
    bench.write("m.gguf", &file.floats("x.scale", &[1], [0.5]).bytes());
    bench.run("dequantize m.gguf --to f32 -o o.safetensors -q").expect(0, "", "");
}
