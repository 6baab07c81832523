//! `tcast quantize --recover`: codes and scales of weights that were decoded. `tests/quant/recover.rs` checks the scales
//! of every layout.

use super::quantize::{assert_same, bench_with, config, tensors};
use crate::common::{Bench, fixture, tree};
use serde_json::Value;
use std::fs;

/// What a report says about the weights that were quantized: their names, and whether they are recovered.
fn recovered(bench: &Bench, line: &str) -> Vec<(String, bool)> {
    let outcome = bench.run(line);
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let quantized = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["quantized"].is_null());
    let recovered = |tensor: &Value| match tensor["quantized"]["codes"].as_str() {
        Some("recovered") => true,
        Some("quantized") => false,
        codes => panic!("{codes:?}"),
    };
    quantized.map(|tensor| (tensor["name"].as_str().unwrap().to_owned(), recovered(tensor))).collect()
}

/// The weights that a report says are quantized.
fn quantized(bench: &Bench, line: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(&bench.run(line).stdout).unwrap();
    let weights = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["quantized"].is_null());
    weights.map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_checkpoint_that_was_dequantized_becomes_the_first_one_again() {
    for (checkpoint, scheme, count) in [("llama-fp8", "fp8-block", 21), ("llama-nvfp4a16", "nvfp4", 21)] {
        let bench = Bench::with_checkpoint(checkpoint, "q");
        bench.run("dequantize q -q -o plain").expect(0, "", "");
        let outcome = bench.run(&format!("quantize plain --scheme {scheme} --recover -o out"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        let line = "\n  14 weights: recovered, codes and scales decode to the same bits\n";
        outcome.check_message("recovered");
        assert_same(&tensors(&bench.path("out")), &tensors(&fixture("checkpoints").join(checkpoint)));
        bench.run("diff q out").expect(0, &format!("{count} tensors are equal\n"), "");
        assert!(config(&bench, "out")["quantization_config"].is_object());
        // A dry run says the same.
        let outcome = bench.run(&format!("quantize plain --scheme {scheme} --recover -n"));
        assert!(outcome.stderr.contains(line) || outcome.stdout.contains(line), "{outcome:?}");
    }
}

#[test]
fn what_each_layout_decodes_to_is_recovered_with_the_same_values() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    // Whether the bytes are the same too: the decoder of others rounds scales to bfloat16, or several powers of two have codes
    // for the same values.
    for (scheme, layout, is_same) in [
        ("fp8", "compressed-tensors", true),
        ("fp8", "modelopt", false),
        ("fp8", "comfyui", false),
        ("fp8-tensor", "compressed-tensors", true),
        ("fp8-block", "huggingface", true),
        ("fp8-block", "modelopt", false),
        ("fp8-block-ue8m0", "huggingface", false),
        ("int8", "compressed-tensors", true),
        ("int8", "comfyui", true),
        ("int8a16", "compressed-tensors", true),
        ("int4", "compressed-tensors", true),
        ("int4-asym", "compressed-tensors", true),
        ("nvfp4", "compressed-tensors", true),
        ("nvfp4", "modelopt", false),
        ("nvfp4", "comfyui", true),
        ("mxfp4", "compressed-tensors", true),
        ("mxfp4", "modelopt", false),
        ("mxfp6", "compressed-tensors", true),
        ("mxfp8", "compressed-tensors", false),
        ("mxfp8", "modelopt", false),
        ("mxfp8", "mxfp8", false),
        ("mxfp8", "comfyui", false),
    ] {
        let name = format!("{scheme}-{layout}");
        let line = format!("--scheme {scheme} --layout {layout} --include *.0.self_attn.* -q");
        bench.run(&format!("quantize m {line} -o {name}")).expect(0, "", "");
        for to in ["bfloat16", "float32"].into_iter().take(if layout == "compressed-tensors" { 2 } else { 1 }) {
            let (plain, back) = (format!("{name}-{to}"), format!("{name}-{to}-back"));
            bench.run(&format!("dequantize {name} --to {to} -q -o {plain}")).expect(0, "", "");
            let weights =
                recovered(&bench, &format!("quantize {plain} {line} --recover --only-exact --json -o {back}"));
            assert!(!weights.is_empty() && weights.iter().all(|(_, is_recovered)| *is_recovered), "{back}");
            bench.run(&format!("dequantize {back} --to {to} -q -o {back}-plain")).expect(0, "", "");
            assert_same(&tensors(&bench.path(&format!("{back}-plain"))), &tensors(&bench.path(&plain)));
            if is_same && to == "bfloat16" {
                assert_same(&tensors(&bench.path(&back)), &tensors(&bench.path(&name)));
            }
        }
    }
}

#[test]
fn plain_weights_are_quantized_as_without_the_option() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for scheme in ["fp8", "nvfp4", "mxfp4", "int4", "int4-asym", "fp8-tensor"] {
        bench.run(&format!("quantize m --scheme {scheme} -q -o usual-{scheme}")).expect(0, "", "");
        let outcome = bench.run(&format!("quantize m --scheme {scheme} --recover -o {scheme}"));
        outcome.says(0, "", "recovered");
        assert!(!outcome.stderr.contains(": recovered"), "{}", outcome.stderr);
        assert!(tree(&bench.path(scheme)) == tree(&bench.path(&format!("usual-{scheme}"))), "{scheme}");
    }
}

/// Changes a value of a weight in a folder.
fn train(bench: &Bench, folder: &str, weight: &str) {
    for entry in fs::read_dir(bench.path(folder)).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension == "safetensors")
            && let Ok((size, header)) = safetensors::SafeTensors::read_metadata(&bytes)
            && let Some(info) = header.info(weight)
        {
            // The last value but one.
            let at = 8 + size + info.data_offsets.1 - 4;
            let value = half::bf16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32() * 1.07 + 1e-4;
            bytes[at..at + 2].copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
            fs::write(&path, &bytes).unwrap();
            return;
        }
    }
    panic!("{weight} is not in {folder}");
}

#[test]
fn weights_that_were_trained_since_are_quantized_and_the_others_recovered() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.run("dequantize q -q -o plain").expect(0, "", "");
    let trained = "model.layers.1.mlp.up_proj.weight";
    train(&bench, "plain", trained);
    let weights = recovered(&bench, "quantize plain --scheme fp8-block --recover --json -q -o out");
    let others: Vec<&str> = weights.iter().filter(|(_, is_recovered)| !is_recovered).map(|(name, _)| &**name).collect();
    assert_eq!((others, weights.len()), (vec![trained], 14));
    // It has the bytes that it gets without the option, and so do the recovered ones from the first checkpoint.
    bench.run("quantize plain --scheme fp8-block -q -o usual").expect(0, "", "");
    let (found, usual, first) = (tensors(&bench.path("out")), tensors(&bench.path("usual")), tensors(&bench.path("q")));
    for (name, tensor) in &found {
        let wanted = if name.contains("1.mlp.up_proj") { &usual } else { &first };
        assert!(*tensor == wanted[name], "{name}");
    }
    bench.run("quantize plain --scheme fp8-block --recover --only-exact -o exact").says(1, "", "--only-exact");
    assert!(!bench.path("exact").exists());
}

#[test]
fn weights_that_share_a_global_scale_are_recovered_together_or_not_at_all() {
    // Of two fused weights in different shards, one was trained since.
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    bench.run("dequantize q -q -o plain").expect(0, "", "");
    let trained = "model.layers.1.self_attn.q_proj.weight";
    train(&bench, "plain", trained);
    let weights = recovered(&bench, "quantize plain --scheme nvfp4 --recover --json -q -o out");
    for (name, is_recovered) in &weights {
        let is_in_set = ["1.self_attn.q_proj", "1.self_attn.k_proj", "1.self_attn.v_proj"].iter();
        assert_eq!(*is_recovered, !{ is_in_set }.any(|module| name.contains(module)), "{name}");
    }
    bench.run("quantize plain --scheme nvfp4 -q -o usual").expect(0, "", "");
    let (found, usual) = (tensors(&bench.path("out")), tensors(&bench.path("usual")));
    let global = |module: &str| &found[&format!("model.layers.1.self_attn.{module}_proj.weight_global_scale")].2;
    assert!(global("q") == global("k") && global("q") == global("v"));
    for (name, tensor) in found.iter().filter(|(name, _)| name.contains("1.self_attn.q_proj")) {
        assert!(*tensor == usual[name], "{name}");
    }
}

#[test]
fn scales_that_the_first_library_did_not_share_are_recovered_one_by_one() {
    // Not fused by their names, so each gets a scale of its own.
    let [old, new] = [["a", "b", "c"], ["q", "k", "v"]];
    let name = |module: &str| format!("model.layers.0.self_attn.{module}_proj.weight");
    let names = old.map(name);
    let shapes: Vec<(&str, &[u64])> = names.iter().map(|name| (&**name, &[8, 16][..])).collect();
    let bench = bench_with(&shapes, "{}");
    bench.run("quantize m --scheme fp8-tensor -q -o q").expect(0, "", "");
    let first = tensors(&bench.path("q"));
    let scale = |module: &str| &first[&format!("{}_scale", name(module))].2;
    assert!(scale("a") != scale("b") && scale("b") != scale("c"));
    let renames = old.iter().zip(new).map(|(old, new)| format!(" --rename {}={}", name(old), name(new)));
    bench.run(&format!("dequantize q -q -o plain{}", renames.collect::<String>())).expect(0, "", "");
    let weights = recovered(&bench, "quantize plain --scheme fp8-tensor --recover --json -q -o out");
    assert!(weights.len() == 3 && weights.iter().all(|(_, is_recovered)| *is_recovered), "{weights:?}");
    let found = tensors(&bench.path("out"));
    for (old, new) in old.into_iter().zip(new) {
        for suffix in ["", "_scale"] {
            assert!(found[&(name(new) + suffix)] == first[&(name(old) + suffix)], "{new}{suffix}");
        }
    }
}

#[test]
fn experts_in_banks_are_recovered() {
    // Transposed, in the layout that keeps banks.
    let names = ["gate_up_proj", "down_proj"].map(|own| format!("model.layers.0.mlp.experts.{own}"));
    let transposed: &[(&str, &[u64])] = &[(&names[0], &[3, 64, 160]), (&names[1], &[3, 96, 64])];
    let bench = bench_with(transposed, r#"{"model_type": "gpt_oss", "hidden_size": 64}"#);
    let line = "--scheme mxfp4 --layout gpt-oss -q";
    bench.run(&format!("quantize m {line} -o q")).expect(0, "", "");
    bench.run("dequantize q -q -o plain").expect(0, "", "");
    bench.run(&format!("quantize plain {line} --recover --only-exact -o again")).expect(0, "", "");
    assert_same(&tensors(&bench.path("again")), &tensors(&bench.path("q")));

    // As rows of a bank, of which each expert becomes a weight.
    let bank: &[(&str, &[u64])] = &[(&names[0], &[2, 96, 64]), (&names[1], &[2, 64, 48])];
    let config = r#"{"model_type": "qwen3_5_moe", "hidden_size": 64, "moe_intermediate_size": 48}"#;
    let bench = bench_with(bank, config);
    bench.run("quantize m --scheme nvfp4 -q -o q").expect(0, "", "");
    bench.run("dequantize q -q -o experts").expect(0, "", "");
    let experts = tensors(&bench.path("experts"));
    let rows = |modules: &[&str]| -> Vec<u8> {
        let all = (0..2).flat_map(|expert| modules.iter().map(move |module| format!("{expert}.{module}_proj.weight")));
        all.flat_map(|name| experts[&format!("model.layers.0.mlp.experts.{name}")].2.clone()).collect()
    };
    let [gate_up, down] = [rows(&["gate", "up"]), rows(&["down"])];
    let (middle, end) = (gate_up.len(), gate_up.len() + down.len());
    let header = format!(
        r#"{{"{}":{{"dtype":"BF16","shape":[2,96,64],"data_offsets":[0,{middle}]}},"{}":{{"dtype":"BF16","shape":[2,64,48],"data_offsets":[{middle},{end}]}}}}"#,
        names[0], names[1]
    );
    bench.write("m/model.safetensors", &crate::common::safetensors(&header, &[gate_up, down].concat()));
    bench.run("quantize m --scheme nvfp4 --recover --only-exact -q -o again").expect(0, "", "");
    assert_same(&tensors(&bench.path("again")), &tensors(&bench.path("q")));
}

#[test]
fn threads_parts_and_a_second_run_recover_the_same() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    bench.run("dequantize q -q -o m").expect(0, "", "");
    train(&bench, "m", "model.layers.0.mlp.gate_proj.weight");
    let line = "quantize m --scheme nvfp4 --recover -q";
    bench.run(&format!("{line} -j1 -o one")).expect(0, "", "");
    bench.run(&format!("{line} -j4 -o four")).expect(0, "", "");
    for part in ["2/3", "3/3", "1/3"] {
        bench.run(&format!("{line} -o parts --part {part}")).expect(0, "", "");
    }
    bench.run("quantize --finish parts -q").expect(0, "", "");
    bench.run(&format!("{line} -o one --resume")).expect(0, "", "");
    let one = tree(&bench.path("one"));
    assert!(one == tree(&bench.path("four")) && one == tree(&bench.path("parts")));
    // Without the option, the output would be another.
    bench.run("quantize m --scheme nvfp4 -q -o one --resume").says(4, "", "command");
}

#[test]
fn the_scales_of_weights_that_are_not_recovered_are_searched_if_asked() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    bench.run("dequantize q -q -o m").expect(0, "", "");
    let trained = "model.layers.0.mlp.down_proj.weight";
    train(&bench, "m", trained);
    bench.run("quantize m --scheme nvfp4 --recover --search mse -q -o out").expect(0, "", "");
    bench.run("quantize m --scheme nvfp4 --search mse -q -o searched").expect(0, "", "");
    let (found, searched, first) =
        (tensors(&bench.path("out")), tensors(&bench.path("searched")), tensors(&bench.path("q")));
    for (name, tensor) in &found {
        let wanted = if name.contains("0.mlp.down_proj") { &searched } else { &first };
        assert!(*tensor == wanted[name], "{name}");
    }
}

#[test]
fn options_that_recover_nothing_are_refused() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.add_checkpoint("llama-tiny-bf16", "m");
    for (line, message) in [
        ("quantize q --scheme fp8-block --recover -o out", "--recover"),
        ("quantize m --scheme fp8 --only-exact -o out", "--only-exact"),
    ] {
        bench.run(line).says(2, "", message);
    }
    bench.run("quantize m --layout modelopt --recover -o out").says(2, "", "--scheme");
    assert!(!bench.path("out").exists());
}

#[test]
fn a_part_searches_only_its_weights_and_those_that_share_a_scale_with_them() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    bench.run("dequantize q -q -o m --max-shard-size 33KB").expect(0, "", "");
    train(&bench, "m", "model.layers.1.self_attn.q_proj.weight");
    let line = "quantize m --scheme nvfp4 --recover --only-exact -q";
    let mut refused = 0;
    for part in 1..=12 {
        let names = quantized(&bench, &format!("quantize m --scheme nvfp4 --json -q -n --part {part}/12"));
        let shares = |name: &String| ["q_", "k_", "v_"].iter().any(|own| name.contains(&format!("1.self_attn.{own}")));
        let outcome = bench.run(&format!("{line} -n --part {part}/12"));
        let code = i32::from(names.iter().any(shares));
        assert_eq!((outcome.code, outcome.stdout.is_empty()), (Some(code), code == 1), "{part}: {outcome:?}");
        assert_eq!(
            outcome.stderr.contains("q_proj.weight: no codes and scales of nvfp4 decode to"),
            code == 1,
            "{part}"
        );
        refused += code;
    }
    assert!((2..12).contains(&refused), "{refused}"); // the fused weights are in different shards
}

#[test]
fn parts_agree_on_the_types_of_scales_that_depend_on_what_is_found() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme fp8 -q -o q").expect(0, "", "");
    bench.run("dequantize q --to float32 -q -o plain --max-shard-size 200KB").expect(0, "", "");
    let line = "quantize plain --scheme fp8 --recover --only-exact -q";
    bench.run(&format!("{line} -o one")).expect(0, "", "");
    for part in 1..=3 {
        bench.run(&format!("{line} -o parts --part {part}/3")).expect(0, "", "");
    }
    bench.run("quantize --finish parts -q").expect(0, "", "");
    assert!(tree(&bench.path("one")) == tree(&bench.path("parts")));
    assert!(tensors(&bench.path("one")).iter().all(|(name, tensor)| !name.ends_with("_scale") || tensor.0 == "BF16"));
}

#[test]
fn the_search_shows_its_progress() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    bench.run("dequantize q -q -o m").expect(0, "", "");
    let args = ["quantize", "m", "--scheme", "nvfp4", "--recover", "-o", "out", "-j1"];
    let output = bench.command().args(args).env("TCAST_PROGRESS_SECONDS", "0").output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b""[..]));
    let said = String::from_utf8(output.stderr).unwrap();
    for what in ["first pass", "recovering", "checkpoint"] {
        let mut lines = said.lines().filter(|line| line.starts_with(&format!("tcast: {what}: ")));
        assert!(lines.any(|line| line.contains(": 100%, ")), "{what}: {said}");
    }
    let quiet = bench.command().args(args).args(["-q", "-f"]).env("TCAST_PROGRESS_SECONDS", "0").output().unwrap();
    assert_eq!((quiet.status.code(), &*quiet.stderr), (Some(0), &b""[..]));
}
