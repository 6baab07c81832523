//! Which weights `tcast quantize` quantizes, by which names engines know them, and what it says about the others.

use super::quantize::{bench_with, config, model, tensors};
use crate::common::{Bench, safetensors};
use serde_json::{Value, json};
use std::fs;

const ATTENTION: &[(&str, &[u64])] = &[
    ("a.q_proj.weight", &[16, 64]),
    ("a.k_proj.weight", &[16, 64]),
    ("a.v_proj.weight", &[16, 64]),
    ("a.o_proj.weight", &[16, 64]),
];

/// Asserts that a command is refused with a message that has this word, and that it writes nothing.
#[track_caller]
pub(crate) fn expect_refused(bench: &Bench, line: &str, code: i32, word: &str) {
    bench.run(&format!("{line} -o none")).says(code, "", word);
    assert!(!bench.path("none").exists(), "{line}");
}

/// A folder `m` of zeros in these tensors: name, type, bytes per element and shape.
fn bench_of(tensors: &[(&str, &str, u64, &[u64])], config: &str) -> Bench {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, dtype, width, shape) in tensors {
        let start = end;
        end += width * shape.iter().product::<u64>();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    let bench = bench_with(&[], config);
    let file = safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; end as usize]);
    bench.write("m/model.safetensors", &file);
    bench
}

#[test]
fn engines_find_renamed_modules_under_their_new_names() {
    let bench = bench_with(&[ATTENTION, &[("head.weight", &[8, 64])]].concat(), "{}");
    let names = "--rename a.q_proj.weight=b.q_proj.weight --rename a.k_proj.weight=b.k_proj.weight \
                 --rename a.v_proj.weight=b.v_proj.weight --rename head.weight=lm_head.weight";
    bench.run(&format!("quantize m --scheme nvfp4 {names} --rule *.o_proj.*=fp8 -q -o out")).expect(0, "", "");
    let found = tensors(&bench.path("out"));
    let block = &config(&bench, "out")["quantization_config"];
    assert_eq!(block["ignore"], json!(["lm_head"]));
    assert_eq!(block["config_groups"]["group_0"]["targets"], json!(["b.q_proj", "b.k_proj", "b.v_proj"]));
    assert_eq!(block["config_groups"]["group_1"]["targets"], json!(["a.o_proj"]));
    let global = |name: &str| &found[&format!("b.{name}.weight_global_scale")].2;
    assert!(global("q_proj") == global("k_proj") && global("q_proj") == global("v_proj"));
    assert!(found.contains_key("lm_head.weight") && !found.contains_key("a.q_proj.weight_packed"));
    bench.run("dequantize out -q -o back").expect(0, "", "");
    // A new name makes a weight one that engines fuse, or one that they do not quantize.
    bench.run("quantize m --scheme fp8 --rename a.o_proj.weight=a.router.weight -q -o routed").expect(0, "", "");
    assert_eq!(tensors(&bench.path("routed"))["a.router.weight"].0, "BF16");
    expect_refused(&bench, "quantize m --scheme fp8 --rename a.o_proj.weight=foo", 1, "a.o_proj.weight");
}

#[test]
fn kept_matrices_of_other_types_are_listed_and_named() {
    let bench = bench_of(
        &[
            ("a.gate_proj.weight", "F64", 8, &[16, 32]),
            ("a.up_proj.weight", "BF16", 2, &[16, 32]),
            ("a.down_proj.weight", "BF16", 2, &[16, 32]),
            ("a.table.weight", "I64", 8, &[4, 4]),
        ],
        "{}",
    );
    let outcome = bench.run("quantize m --scheme fp8 -o out");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    outcome.check_message("float32");
    let block = &config(&bench, "out")["quantization_config"];
    // The head may share the weight of the embeddings.
    assert_eq!(block["ignore"], json!(["a.gate_proj", "a.table", "a.up_proj", "lm_head"]));
    expect_refused(&bench, "quantize m --scheme int8 --rule a.gate_proj.weight=fp8", 1, "fp8");
}

#[test]
fn banks_of_granite_are_kept_and_engines_learn_of_it() {
    let bench = bench_with(
        &[
            ("model.layers.0.block_sparse_moe.input_linear.weight", &[2, 64, 32]),
            ("model.layers.0.block_sparse_moe.output_linear.weight", &[2, 32, 32]),
            ("model.layers.0.self_attn.o_proj.weight", &[32, 32]),
        ],
        "{}",
    );
    bench.run("quantize m --scheme fp8 -o out").says(0, "", "experts");
    let layer = "model.layers.0.block_sparse_moe";
    let ignored = json!([
        "lm_head",
        format!("{layer}.input_linear"),
        format!("{layer}.output_linear"),
        r"re:^model\.layers\.0\.block_sparse_moe\.experts\..*",
    ]);
    assert_eq!(config(&bench, "out")["quantization_config"]["ignore"], ignored);
}

#[test]
fn names_of_deepseek_itself_are_known() {
    let bench = bench_with(
        &[
            ("layers.0.attn.wq.weight", &[16, 64]),
            ("layers.0.attn.wk.weight", &[16, 64]),
            ("layers.0.attn.wv.weight", &[16, 64]),
            ("layers.2.attn.wo.weight", &[16, 64]),
        ],
        r#"{"num_hidden_layers": 2}"#,
    );
    bench.run("quantize m --scheme nvfp4 -q -o out").expect(0, "", "");
    let found = tensors(&bench.path("out"));
    let global = |name: &str| &found[&format!("layers.0.attn.{name}.weight_global_scale")].2;
    assert!(global("wq") == global("wk") && global("wq") == global("wv"));
    assert_eq!(config(&bench, "out")["quantization_config"]["ignore"], json!(["layers.2.attn.wo", "lm_head"]));
}

#[test]
fn a_tensor_named_like_a_part_of_a_quantized_weight_is_refused() {
    for part in ["weight_scale", "weight_packed", "weight_scale_inv", "weight_zero_point"] {
        let bench = bench_of(
            &[("a.o_proj.weight", "BF16", 2, &[16, 32]), (&format!("a.o_proj.{part}"), "F32", 4, &[16, 1])],
            "{}",
        );
        let message =
            format!("tensor 'a.o_proj.{part}': has the name of a part of 'a.o_proj.weight', which is quantized");
        expect_refused(&bench, "quantize m --scheme fp8", 1, &message);
    }
    // Scales of activations are not parts of weights.
    let bench = bench_of(&[("a.o_proj.weight", "BF16", 2, &[16, 32]), ("a.o_proj.input_scale", "F32", 4, &[1])], "{}");
    bench.run("quantize m --scheme fp8 -q -o out").expect(0, "", "");
}

#[test]
fn a_shape_that_does_not_fit_is_explained() {
    let noted = |shape: &[u64], options: &str, note: &str| {
        let bench = bench_with(&[("a.o_proj.weight", shape), ("a.down_proj.weight", &[128, 1024])], "{}");
        let outcome = bench.run(&format!("quantize m {options} -o out"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{options}: {outcome:?}");
        outcome.check_message(note);
        assert_eq!(config(&bench, "out")["quantization_config"].to_string().matches("a.o_proj").count(), 1);
    };
    let columns = "its rows of 192 values are not a multiple of 128";
    noted(&[128, 192], "--scheme int4", "--group-size");
    noted(&[128, 192], "--scheme fp8-block", columns);
    let partial = "--scheme fp8-block --layout compressed-tensors";
    noted(&[128, 192], partial, "--partial-blocks");
    noted(&[128, 100], "--scheme int4", "--scheme");
    noted(&[128, 40], "--scheme nvfp4", "--scheme");
    noted(&[0, 128], "--scheme int4", "elements");
    noted(&[128, 0], partial, "elements");
    // vLLM reads zero points in words of eight rows.
    noted(&[44, 128], "--scheme int4-asym", "--scheme");
    noted(&[42, 128], "--scheme int8-asym", "--scheme");
    // It does not read those of other widths, whose last words are padded.
    let bench = bench_with(&[("a.o_proj.weight", &[43, 128])], "{}");
    for scheme in ["int2-asym", "int3-asym", "int5-asym", "int6-asym", "int7-asym"] {
        let words = (43 * scheme[3..4].parse::<usize>().unwrap()).div_ceil(32);
        bench.run(&format!("quantize m --scheme {scheme} -o out -f -q")).expect(0, "", "");
        assert_eq!(tensors(&bench.path("out"))["a.o_proj.weight_zero_point"].1, [words, 1], "{scheme}");
        bench.run("dequantize out -o back -f -q").expect(0, "", "");
    }
}

#[test]
fn a_rule_may_also_match_tensors_that_are_no_matrices() {
    let bench = bench_with(&[ATTENTION, &[("a.q_proj.bias", &[16]), ("a.q_norm.weight", &[16])]].concat(), "{}");
    bench.run("quantize m --scheme fp8 --rule a.*=nvfp4 -q -o out").expect(0, "", "");
    let found = tensors(&bench.path("out"));
    assert_eq!((&*found["a.q_proj.bias"].0, &*found["a.q_norm.weight"].0), ("BF16", "BF16"));
    assert!(found.contains_key("a.o_proj.weight_packed"));
    expect_refused(&bench, "quantize m --scheme fp8 --rule *bias=nvfp4", 1, "a.q_proj.bias");
}

#[test]
fn heads_and_embeddings_that_a_rule_quantizes_are_targets_by_name() {
    let bench =
        bench_with(&[ATTENTION, &[("lm_head.weight", &[8, 64]), ("embed_tokens.weight", &[8, 64])]].concat(), "{}");
    let outcome = bench.run("quantize m --scheme fp8 --rule lm_head*=fp8 --rule embed*=fp8 -o out");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    outcome.check_message("embed_tokens.weight");
    let block = &config(&bench, "out")["quantization_config"];
    assert_eq!(block["config_groups"]["FP8_DYNAMIC"]["targets"], json!(["Linear", "lm_head", "embed_tokens"]));
    assert_eq!(block["ignore"], json!([]));
}

#[test]
fn errors_about_weights_say_how_to_go_on() {
    let bench = bench_with(ATTENTION, "{}");
    let fused = "engines fuse a.q_proj.weight, a.k_proj.weight, a.v_proj.weight: ";
    expect_refused(&bench, "quantize m --scheme fp8 --exclude a.q_proj.weight", 1, fused);
    // Nothing would be left to quantize.
    expect_refused(&bench, "quantize m --scheme fp8 --include a.v_proj.weight", 1, fused);
    let line = "quantize m --scheme fp8 --exclude a.q_proj.weight --exclude a.k_proj.weight --exclude a.v_proj.weight";
    bench.run(&format!("{line} -q -o out")).expect(0, "", "");
    expect_refused(&bench, "quantize m --scheme fp8 --rule o_proj=int8", 2, "matches");
    let line = "quantize m --scheme fp8-block --rule *o_proj*=fp8-block-ue8m0";
    let bench = bench_with(&[("a.o_proj.weight", &[128, 128]), ("a.down_proj.weight", &[128, 128])], "{}");
    expect_refused(&bench, line, 1, "hf-fp8");
    let outcome = bench.run("quantize m --scheme fp8 -o none.npz");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    outcome.check_message("safetensors");
    assert!(!bench.path("none.npz").exists(), "{}", outcome.stderr);
    // The rows of a bank are not known without a config.
    let bank: &[(&str, &[u64])] = &[("m.layers.0.experts.gate_up_proj", &[2, 64, 32]), ("m.o_proj.weight", &[16, 32])];
    let bench = bench_with(bank, "{}");
    expect_refused(&bench, "quantize m --scheme fp8", 1, "experts");
    // An infinite value.
    let bench = bench_with(&[("a.o_proj.weight", &[16, 32]), ("a.down_proj.weight", &[16, 32])], "{}");
    let mut bytes = bench.read("m/model.safetensors");
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&0x7f80_u16.to_le_bytes());
    bench.write("m/model.safetensors", &bytes);
    expect_refused(&bench, "quantize m --scheme fp8", 1, "512");
    bench.run("quantize m --scheme fp8 --exclude a.down_proj.weight -q -o out").expect(0, "", "");
}

#[test]
fn an_error_about_weights_of_which_none_fits_names_a_shape() {
    let bench = bench_with(&[("a.o_proj.weight", &[16, 100]), ("a.norm.weight", &[100])], "{}");
    let detail = "1 tensor: of shapes that do not fit the groups, such as a.o_proj.weight [16, 100]: its rows of 100 values \
                  are not a multiple of 128\n";
    expect_refused(&bench, "quantize m --scheme int4", 1, "quantized");
    expect_refused(&bench, "quantize m --scheme int4", 1, detail);
    let empty = bench_with(&[("a.o_proj.weight", &[0, 128])], "{}");
    empty.run("quantize m --scheme int4 -o none").check_message("a.o_proj.weight");
    bench.run("quantize m --scheme fp8 -o none.onnx").says(1, "", "safetensors");
}

#[test]
fn models_whose_layers_are_stored_transposed_are_refused() {
    let bench = bench_with(&[("h.0.attn.c_attn.weight", &[32, 96])], r#"{"model_type": "gpt2"}"#);
    let outcome = bench.run("quantize m --scheme fp8 -o none");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    outcome.check_message("gpt2");
    assert!(!bench.path("none").exists(), "{}", outcome.stderr);
}

#[test]
fn a_config_that_calls_plain_weights_quantized_is_refused() {
    let bench = bench_with(ATTENTION, r#"{"quantization_config": {"quant_method": "fp8"}}"#);
    let message = "m/config.json: has a quantization_config, although no weight is quantized";
    expect_refused(&bench, "quantize m --scheme fp8", 1, message);
}

#[test]
fn options_that_divide_the_experts_of_a_bank_are_refused() {
    let bank: &[(&str, &[u64])] =
        &[("m.layers.0.mlp.experts.down_proj", &[3, 64, 48]), ("m.layers.0.mlp.o_proj.weight", &[48, 64])];
    let bench = bench_with(bank, r#"{"hidden_size": 64, "moe_intermediate_size": 48}"#);
    let message = "engines load its experts together, and the options treat \
                   'm.layers.0.mlp.experts.1.down_proj.weight' differently";
    expect_refused(&bench, "quantize m --scheme fp8 --rule *.experts.1.*=int8", 1, message);
    expect_refused(&bench, "quantize m --scheme fp8 --exclude *.experts.1.*", 1, message);
    bench.run("quantize m --scheme fp8 --rule *.experts.*=int8 -q -o out").expect(0, "", "");
}

#[test]
fn the_remedy_for_the_name_of_a_part_is_another_name() {
    for (weight, shape, clash) in [
        ("a.0.experts.down_proj", &[3, 64, 48][..], "a.0.experts.1.down_proj"),
        ("a.k_proj.weight", &[16, 64], "a.k_proj"),
    ] {
        let part = format!("{clash}.weight_scale");
        let tensors: &[(&str, &[u64])] =
            &[(weight, shape), (&part, &[16, 1]), ("a.q_proj.weight", &[16, 64]), ("a.o_proj.weight", &[48, 64])];
        let bench = bench_with(tensors, r#"{"hidden_size": 64, "moe_intermediate_size": 48}"#);
        let message = format!("has the name of a part of '{clash}.weight', which is quantized");
        let rename = format!("--rename '{part}={part}.kept'");
        expect_refused(&bench, "quantize m --scheme fp8", 1, &message);
        let line = format!("quantize m --scheme fp8 {} -q -o out", rename.replace('\'', ""));
        bench.run(&line).expect(0, "", "");
        bench.run("dequantize out -o plain -q").expect(0, "", "");
    }
}

#[test]
fn the_remedy_for_noise_keeps_what_engines_fuse() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let attention = "model.layers.3.self_attn";
    let wanted = ["k_proj", "q_proj", "v_proj"].map(|name| format!("--rule '{attention}.{name}.weight=keep'"));
    // The first list is cut, but not within what engines fuse.
    for (limit, wanted, code) in [("20.6", &[][..], 3), ("20.545", &wanted, 0)] {
        let line = format!("quantize m --scheme nvfp4 -o out -q --min-sqnr {limit}");
        let outcome = bench.run(&line);
        assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""), "{outcome:?}");
        assert!(wanted.iter().all(|rule| outcome.stderr.contains(rule)), "{}", outcome.stderr);
        let (_, rules) = outcome.stderr.split_once("leave the tensors as they are with ").unwrap();
        let rules = rules.split(", or choose").next().unwrap().replace(" and one more for each", "").replace('\'', "");
        let outcome = bench.run(&format!("{line} {rules}"));
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
    }
}

#[test]
fn the_remedy_for_noise_of_all_weights_is_another_scheme() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme nvfp4 -o out --min-sqnr 99").says(3, "", "smaller");
}

#[test]
fn a_file_is_told_apart_from_a_folder_in_the_note_about_its_config() {
    let bench = bench_with(ATTENTION, "{}");
    let outcome = bench.run("quantize m/model.safetensors --scheme fp8 -o fp8.safetensors");
    let note = |what: &str, line: &str| {
        format!(
            "tcast: note: {what}. This command prints it, and writes nothing:\n  \
             tcast {line} --force --dry-run --json\n"
        )
    };
    outcome.says(0, "", "--scheme");
    fs::remove_file(bench.path("m/config.json")).unwrap();
    for (scheme, readers) in [("fp8", "engines"), ("nvfp4", "engines"), ("int8", "engines and tcast dequantize")] {
        let line = format!("quantize m --scheme {scheme} -o {scheme}");
        let outcome = bench.run(&line);
        let lacking = format!("there is no config.json: {readers} need one, with the quantization_config");
        let wanted = note(&lacking, &line);
        assert!(outcome.code == Some(0) && outcome.stderr.ends_with(&wanted), "{outcome:?}");
        let printed = bench.run(&format!("{line} --force --dry-run --json"));
        assert!(printed.code == Some(0) && printed.stdout.contains("\"quantization_config\":{"), "{printed:?}");
        let decoded = bench.run(&format!("dequantize {scheme} -o {scheme}-values -q"));
        assert_eq!(decoded.code == Some(0), readers == "engines", "{scheme}: {decoded:?}");
    }
}

#[test]
fn schemes_that_an_engine_does_not_run_are_noted() {
    let bench = bench_with(ATTENTION, "{}");
    for (scheme, note) in [
        ("mxfp6", "mxfp6 needs compressed-tensors 0.20; vLLM 0.33 and SGLang 0.5.23 have older versions"),
        ("int8", "vLLM does not run int8 on GPUs of compute capability 10 and higher"),
    ] {
        let outcome = bench.run(&format!("quantize m --scheme {scheme} -o {scheme}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        assert_eq!(outcome.stderr.matches(&format!("tcast: note: {note}\n")).count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn groups_for_which_vllm_has_no_fast_kernel_are_noted() {
    let bench = bench_with(ATTENTION, "{}");
    bench.run("quantize m --scheme int4 --group-size 16 -o out").says(0, "", "vLLM");
    bench.run("quantize m --scheme int4 --group-size 12 -o none").says(2, "", "65536");
}

#[test]
fn a_quiet_run_writes_the_same_bytes_and_still_measures_what_is_asked_for() {
    let bench = Bench::new();
    bench.write("m.safetensors", &model(&[("a.q_proj.weight", &[128, 256])]));
    for scheme in ["fp8", "fp8-block", "int8", "int4", "int4-asym", "nvfp4", "mxfp4", "mxfp8"] {
        let line = format!("quantize m.safetensors --scheme {scheme}");
        let report = bench.run(&format!("{line} --json -o loud.safetensors -f"));
        assert_eq!(report.code, Some(0), "{report:?}");
        let report: Value = serde_json::from_str(&report.stdout).unwrap();
        let sqnr = |report: &Value| report["tensors"][0]["quantized"]["sqnr_db"].as_f64().unwrap();
        bench.run(&format!("{line} -q -o quiet.safetensors -f")).expect(0, "", "");
        assert!(bench.read("quiet.safetensors") == bench.read("loud.safetensors"), "{scheme}");
        bench.run(&format!("{line} -q --report report.json -o quiet.safetensors -f")).expect(0, "", "");
        let written: Value = serde_json::from_slice(&bench.read("report.json")).unwrap();
        assert_eq!(sqnr(&written).to_bits(), sqnr(&report).to_bits(), "{scheme}");
        bench.run(&format!("{line} -q --min-sqnr 200 -o none.safetensors")).says(3, "", "200");
    }
}

#[test]
fn a_diffusion_model_gets_a_hint_at_the_layout_for_it() {
    let hinted = |name: &str, line: &str| {
        let outcome = bench_of(&[(name, "F16", 2, &[64, 128])], "{}").run(&format!("quantize m -n --scheme {line}"));
        assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
        outcome.stderr.split_once("ComfyUI loads such models ").map(|(_, hint)| hint.trim_end().to_owned())
    };
    let unet = "model.diffusion_model.input_blocks.1.1.attn1.to_q.weight";
    assert_eq!(hinted(unet, "fp8").as_deref(), Some("with --layout comfyui"));
    assert_eq!(hinted(unet, "int4-asym").as_deref(), Some("in other schemes, such as --scheme fp8 --layout comfyui"));
    assert_eq!(
        [hinted(unet, "fp8 --layout comfyui"), hinted("model.layers.0.mlp.up_proj.weight", "fp8")],
        [None, None]
    );
}
