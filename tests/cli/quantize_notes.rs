//! What `tcast quantize` says and does about models that transformers loads only in part: the names of heads, blocks that
//! layers share, and notes by kind of model.

use super::quantize::{bench_with, config};
use crate::common::{Bench, safetensors};
use serde_json::json;
use std::fs;

const LAYER: (&str, &[u64]) = ("model.layers.0.mlp.up_proj.weight", &[128, 128]);
const DECODES: &str = "quantization_config=CompressedTensorsConfig(dequantize=True)";

/// Runs `tcast quantize` with some flags and returns the notes about loaders.
#[track_caller]
fn notes(bench: &Bench, flags: &str) -> Vec<String> {
    let outcome = bench.run(&format!("quantize m {flags} -o out"));
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    fs::remove_dir_all(bench.path("out")).unwrap();
    let notes = outcome.stderr.lines().filter_map(|line| line.strip_prefix("tcast: note: "));
    notes.filter(|note| note.contains("transformers") || note.contains("mlx-lm")).map(str::to_owned).collect()
}

#[test]
fn heads_that_no_file_contains_are_listed_under_the_name_that_the_model_gives_them() {
    for (kind, heads) in [
        ("llama", json!(["lm_head"])),
        ("biogpt", json!(["output_projection"])),
        ("camembert", json!(["lm_head.decoder"])),
        ("xlm", json!(["pred_layer.proj"])),
        ("luke", json!(["entity_predictions.decoder", "lm_head.decoder"])),
    ] {
        let bench = bench_with(&[LAYER], &json!({ "model_type": kind }).to_string());
        bench.run("quantize m --scheme fp8 -o out -q").expect(0, "", "");
        assert_eq!(config(&bench, "out")["quantization_config"]["ignore"], heads, "{kind}");
    }
}

#[test]
fn a_head_in_the_file_is_kept_under_the_name_that_the_model_gives_it() {
    let bench = bench_with(&[LAYER, ("output_projection.weight", &[128, 128])], r#"{"model_type": "biogpt"}"#);
    bench.run("quantize m --scheme fp8 -o out").check_message("fp8");
    assert_eq!(config(&bench, "out")["quantization_config"]["ignore"], json!(["output_projection"]));
}

#[test]
fn blocks_that_layers_share_are_kept_in_all_layers() {
    let shared = ("model.layers.2.shared_transformer.self_attn.q_proj.weight", &[128, 128][..]);
    let bench = bench_with(&[LAYER, shared], r#"{"model_type": "zamba2"}"#);
    for (layout, key, pattern) in [
        ("compressed-tensors", "ignore", r"re:.*\.shared_transformer\..*"),
        ("huggingface", "modules_to_not_convert", r".*\.shared_transformer"),
        ("modelopt", "ignore", "*.shared_transformer.*"),
    ] {
        bench.run(&format!("quantize m --scheme fp8-block --layout {layout} -o out -f")).says(0, "", "fp8-block");
        let ignored = config(&bench, "out")["quantization_config"][key].clone();
        let ignored: Vec<&str> = ignored.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap()).collect();
        assert!(ignored.contains(&pattern) && ignored.contains(&shared.0.trim_end_matches(".weight")), "{ignored:?}");
    }
    // A rule quantizes them all the same, and then no pattern says otherwise.
    bench.run("quantize m --scheme fp8 --rule *shared_transf*=fp8 -o ruled -q").expect(0, "", "");
    assert_eq!(config(&bench, "ruled")["quantization_config"]["ignore"], json!(["lm_head"]));
}

#[test]
fn the_router_of_phimoe_has_both_of_its_names_in_the_config() {
    let router = ("model.layers.0.block_sparse_moe.gate.weight", &[4, 128][..]);
    for (kind, names) in [
        ("phimoe", json!(["lm_head", "model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.router"])),
        ("mixtral", json!(["lm_head", "model.layers.0.block_sparse_moe.gate"])),
    ] {
        let bench = bench_with(&[LAYER, router], &json!({ "model_type": kind }).to_string());
        bench.run("quantize m --scheme fp8 -o out -q").expect(0, "", "");
        assert_eq!(config(&bench, "out")["quantization_config"]["ignore"], names, "{kind}");
    }
}

#[test]
fn a_note_says_which_kinds_of_models_a_loader_does_not_take_in_a_scheme() {
    let only = |scheme: &str, kind: &str| {
        format!("transformers 5.24 loads {scheme} of '{kind}' only with {DECODES}; it loads --scheme fp8 without it")
    };
    for (kind, flags, note) in [
        ("falcon", "--scheme int4", Some(only("int4", "falcon"))),
        ("mamba2", "--scheme nvfp4", Some(only("nvfp4", "mamba2"))),
        ("falcon_mamba", "--scheme mxfp4", Some(only("mxfp4", "falcon_mamba"))),
        ("llama", "--scheme int4-asym", Some(only("int4-asym", "llama"))),
        ("falcon", "--scheme fp8", None),
        ("falcon", "--scheme nvfp4 --layout modelopt", None),
        ("llama", "--scheme int4", None),
        (
            "hrm_text",
            "--scheme fp8-block --layout huggingface",
            Some(
                "transformers 5.24 does not load fp8-block of 'hrm_text'; it loads --layout compressed-tensors".into(),
            ),
        ),
        ("dinov2", "--scheme fp8 --layout modelopt", None),
    ] {
        let bench = bench_with(&[LAYER], &json!({ "model_type": kind }).to_string());
        assert_eq!(notes(&bench, flags), Vec::from_iter(note), "{kind} {flags}");
    }
    // The language model of a larger one counts too.
    let config = r#"{"model_type": "fuyu", "text_config": {"model_type": "falcon"}}"#;
    assert_eq!(notes(&bench_with(&[LAYER], config), "--scheme int4"), [only("int4", "falcon")]);
}

#[test]
fn a_note_says_which_kinds_of_models_no_test_has_loaded() {
    let untried = |scheme: &str, loader: &str| format!("no test loads {scheme} of 'mine' into {loader}");
    let bench = bench_with(&[LAYER], r#"{"model_type": "mine"}"#);
    for (flags, note) in [
        ("--scheme fp8", Some(untried("fp8", "transformers 5.24"))),
        ("--scheme fp8-block --layout huggingface", Some(untried("fp8-block", "transformers 5.24"))),
        ("--scheme affine4", Some(untried("affine4", "mlx-lm 0.32.2"))),
        ("--scheme nvfp4 --layout modelopt", None),
        ("--scheme fp8 --layout comfyui", None),
    ] {
        assert_eq!(notes(&bench, flags), Vec::from_iter(note), "{flags}");
    }
    // Without a config, no kind of model is known.
    let bench = bench_with(&[LAYER], "{}");
    assert_eq!(notes(&bench, "--scheme fp8"), [""; 0]);
    // Of a larger model, the whole must have been tried.
    let config = r#"{"model_type": "mine", "text_config": {"model_type": "llama"}}"#;
    assert_eq!(notes(&bench_with(&[LAYER], config), "--scheme fp8"), [untried("fp8", "transformers 5.24")]);
    // A dense model says nothing about one with experts.
    let names = ["gate_proj", "up_proj", "down_proj"].map(|own| format!("model.layers.0.mlp.experts.0.{own}.weight"));
    let weights = names.each_ref().map(|name| (&**name, &[128, 128][..]));
    let bench = bench_with(&weights, r#"{"model_type": "llama"}"#);
    assert_eq!(notes(&bench, "--scheme fp8"), ["no test loads fp8 of 'llama' into transformers 5.24"]);
}

#[test]
fn a_note_says_which_experts_are_loaded_with_wrong_values() {
    const BANKS: &[(&str, &[u64])] = &[
        ("model.layers.0.experts.gate_up_proj", &[2, 96, 64]),
        ("model.layers.0.experts.down_proj", &[2, 64, 48]),
        ("model.layers.0.mlp.up_proj.weight", &[128, 64]),
    ];
    for kind in ["gemma4_text", "granitemoe_swa", "minimax_m3_vl_text"] {
        let config = json!({ "model_type": kind, "hidden_size": 64, "moe_intermediate_size": 48 }).to_string();
        let bench = bench_with(BANKS, &config);
        let note = format!(
            "transformers 5.24 loads fp8 of '{kind}' without an error, and computes wrong results; it loads what tcast \
             dequantize makes of it"
        );
        assert_eq!(notes(&bench, "--scheme fp8"), [note], "{kind}");
        assert_eq!(notes(&bench, "--scheme fp8 --exclude *experts*"), [""; 0], "{kind}");
    }
}

#[test]
fn a_note_says_where_transformers_does_not_find_modules_under_the_names_of_the_file() {
    let name = |at: u64| format!("transformer.h.{at}.attn.attention.q_proj.weight");
    let (first, second) = (name(0), name(1));
    let bench = bench_with(&[(&first, &[128, 128]), (&second, &[128, 128])], r#"{"model_type": "exaone"}"#);
    let note = |what: &str| format!("transformers 5.24 does not load 'exaone' with {what}");
    assert_eq!(notes(&bench, "--scheme fp8"), [""; 0]);
    assert_eq!(
        notes(&bench, "--scheme fp8 --exclude *.h.0.*"),
        [note(&format!("layers that are kept, except with {DECODES}"))]
    );
    assert_eq!(
        notes(&bench, "--scheme fp8 --rule *.h.0.*=int8"),
        [note(&format!("several schemes, except with {DECODES}: choose one scheme for all"))]
    );
    assert_eq!(notes(&bench, "--scheme fp8 --layout modelopt --exclude *.h.0.*"), [""; 0]);
}

#[test]
fn a_note_says_that_some_schemes_are_decoded_to_bfloat16_whatever_the_model_computes_in() {
    let of = |stored: &str, width: usize, config: &str| {
        let bench = Bench::new();
        fs::create_dir(bench.path("m")).unwrap();
        let end = 128 * 128 * width;
        let header = format!(r#"{{"{}":{{"dtype":"{stored}","shape":[128,128],"data_offsets":[0,{end}]}}}}"#, LAYER.0);
        bench.write("m/model.safetensors", &safetensors(&header, &[0x3c].repeat(end)));
        bench.write("m/config.json", config.as_bytes());
        bench
    };
    let note = |scheme: &str, dtype: &str| {
        format!(
            "transformers 5.24 decodes {scheme} to bfloat16, and fails to compute with it in {dtype}: load the model with dtype=torch.bfloat16"
        )
    };
    let half = of("F16", 2, "{}");
    for scheme in ["nvfp4", "mxfp4", "mxfp6", "mxfp8"] {
        let flags = format!("--scheme {scheme} --layout compressed-tensors");
        assert_eq!(notes(&half, &flags), [note(scheme, "float16")], "{scheme}");
    }
    for flags in ["--scheme fp8", "--scheme int4", "--scheme nvfp4 --layout modelopt"] {
        assert_eq!(notes(&half, flags), [""; 0], "{flags}");
    }
    assert_eq!(notes(&of("F32", 4, r#"{"dtype": "float32"}"#), "--scheme nvfp4"), [note("nvfp4", "float32")]);
    // config.json decides, not the type of the weights.
    assert_eq!(notes(&of("F32", 4, r#"{"dtype": "bfloat16"}"#), "--scheme nvfp4"), [""; 0]);
}

#[test]
fn a_head_that_mlx_lm_normalizes_is_kept() {
    for (kind, heading) in
        [("llama", "quantize 2 tensors to affine4\n"), ("baichuan_m1", "affine4"), ("bailing_moe", "affine4")]
    {
        let bench = bench_with(
            &[LAYER, ("lm_head.weight", &[128, 128])],
            &json!({ "model_type": kind, "tie_word_embeddings": false }).to_string(),
        );
        bench.run("quantize m --scheme affine4 -o out").says(0, "", heading);
    }
}
