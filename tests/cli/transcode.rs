//! `tcast quantize` of models that are quantized already. `tests/quant/transcode.rs` checks the values of every pair of
//! layouts.

use super::dequantize::{bytes_of, shard};
use super::quantize::{assert_same, bench_with, config, tensors};
use super::quantize_choices::expect_refused;
use crate::common::Bench;
use serde_json::Value;
use std::fs;

fn json(bench: &Bench, line: &str) -> Value {
    let outcome = bench.run(line);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// The tensors of a report that were quantized.
fn quantized(report: &Value) -> Vec<&Value> {
    let tensors = report["tensors"].as_array().unwrap().iter();
    tensors.filter(|tensor| !tensor["quantized"].is_null()).collect()
}

#[test]
fn without_a_scheme_only_the_layout_changes() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.run("quantize q --layout compressed-tensors -o ct").says(0, "", "fp8-block");
    bench.run("diff q ct").expect(0, "21 tensors are equal\n", "");
    let block = &config(&bench, "ct")["quantization_config"];
    assert_eq!(block["quant_method"], "compressed-tensors");
    assert_eq!(block["config_groups"]["FP8_BLOCK"]["weights"]["strategy"], "block");
    assert_eq!(config(&bench, "ct")["dtype"], config(&bench, "q")["dtype"]);
    // And back: the same files.
    bench.run("quantize ct --layout huggingface -q -o back").expect(0, "", "");
    assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("q")));
}

#[test]
fn the_summary_says_where_libraries_round_the_same_products_to_other_bits() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    for (layout, name, decodes_other_bits) in
        [("modelopt", "modelopt-fp8", true), ("compressed-tensors", "ct-fp8", false)]
    {
        let outcome = bench.run(&format!("quantize q --layout {layout} -o {layout}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        let exact = "\n  14 weights: exact, codes and scales are those of the input";
        let rounded = format!(
            "{exact}; the libraries of hf-fp8 and {name} round their products differently, and may decode other bits\n"
        );
        let line = if decodes_other_bits { rounded } else { format!("{exact}\n") };
        assert!(outcome.stderr.contains(&line), "{outcome:?}");
        // The claim is true of this checkpoint: the products are equal, and the decoded bits are not.
        bench.run(&format!("diff q {layout}")).expect(0, "21 tensors are equal\n", "");
        for folder in ["q", layout] {
            bench.run(&format!("dequantize {folder} -o {folder}-values -f -q")).expect(0, "", "");
        }
        let outcome = bench.run(&format!("diff q-values {layout}-values"));
        assert_eq!((outcome.code, &*outcome.stderr), (Some(i32::from(decodes_other_bits)), ""), "{outcome:?}");
    }
}

#[test]
fn a_layout_may_be_written_in_any_case() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme nvfp4 --layout comfyui -o c -q").expect(0, "", "");
    for (layout, typed) in [("comfyui", "ComfyUI"), ("compressed-tensors", "Compressed-Tensors")] {
        for (input, more) in [("m", "--scheme nvfp4"), ("c", "--scheme fp8"), ("c", "")] {
            if (input, more, layout) == ("c", "", "compressed-tensors") {
                continue; // fused weights of `c` have different global scales
            }
            let run = |layout: &str| {
                json(&bench, &format!("quantize {input} {more} --layout {layout} -o {layout} -f --json -q"))
            };
            assert_eq!(run(typed)["options"], run(layout)["options"]);
            assert_same(&tensors(&bench.path(typed)), &tensors(&bench.path(layout)));
            assert_eq!(config(&bench, typed), config(&bench, layout));
        }
    }
}

#[test]
fn a_report_says_which_weights_are_exact_and_how_many_values_changed() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let report = json(&bench, "quantize q --layout modelopt -o exact --json -q");
    for tensor in quantized(&report) {
        let found = &tensor["quantized"];
        assert_eq!((&found["exact"], &found["changed"]), (&true.into(), &0.into()), "{tensor}");
        assert_eq!((&found["source_layout"], &found["layout"]), (&"hf-fp8".into(), &"modelopt-fp8".into()));
    }
    assert_eq!(quantized(&report).len(), 14);
    let report = json(&bench, "quantize q --scheme nvfp4 -o again --json -q");
    for tensor in quantized(&report) {
        let found = &tensor["quantized"];
        assert_eq!(found["exact"], false);
        assert!(found["changed"].as_u64().unwrap() > 1000 && found["sqnr_db"].as_f64().unwrap() > 15.0, "{tensor}");
    }
    bench.run("quantize q --scheme nvfp4 -o out").check_message("quantized");
}

#[test]
fn only_exact_refuses_weights_whose_values_would_change_and_names_them() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.add_checkpoint("llama-tiny-bf16", "m");
    let outcome = bench.run("quantize q --scheme fp8 --only-exact -o out");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    outcome.check_message("written");
    assert!(!bench.path("out").exists());
    bench.run("quantize q --layout modelopt --exclude *.down_proj.* --only-exact -o out").says(
        1,
        "",
        "down_proj.weight",
    );
    bench.run("quantize q --layout modelopt --only-exact -q -o out").expect(0, "", "");
    // Without a scheme, only the layout may change.
    bench.run("quantize q --layout modelopt --exclude *.down_proj.* -f -o out").says(1, "", "written");
    for (line, message) in [
        ("quantize m --layout modelopt -o none", "quantized"),
        ("quantize m --scheme fp8 --only-exact -o none", "--only-exact"),
    ] {
        bench.run(line).says(2, "", message);
    }
}

#[test]
fn a_scale_that_is_nan_is_the_reason_why_a_weight_cannot_be_moved() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("q")).unwrap();
    let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets":
        ["Linear"], "format": "float-quantized", "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}}"#;
    bench.write("q/config.json", config.as_bytes());
    let scales = [f32::NAN.to_le_bytes(), 1_f32.to_le_bytes()].concat();
    let parts = [("m.weight", "F8_E4M3", &[2, 16][..], &[0x38; 32][..]), ("m.weight_scale", "F32", &[2, 1], &scales)];
    bench.write("q/model.safetensors", &shard(&parts));
    let line = "tcast: error: q: not every weight can keep its codes and scales: no output was written\n  m.weight: a scale is \
                NaN or infinite\n";
    bench.run("quantize q --layout modelopt -o out").says(1, "", "NaN");
    let other = [
        ("n.weight", "F8_E4M3", &[2, 16][..], &[0x38; 32][..]),
        ("n.weight_scale", "F32", &[2, 1], &scales[4..].repeat(2)),
    ];
    bench.write("q/model.safetensors", &shard(&[&parts[..], &other].concat()));
    let remedy = "  choose a scheme, and leave out the weights whose scale is not finite: these are decoded\n";
    bench.run("quantize q --layout modelopt -o out").expect(1, "", &format!("{line}{remedy}"));
    bench.run("quantize q --layout modelopt --scheme fp8 --exclude m.weight -q -o out").expect(0, "", "");
}

#[test]
fn a_grid_that_no_scheme_of_the_layout_has_is_refused() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let message = "no scheme of the layout comfyui has its codes and groups (float8e4m3fn, 128 x 128)\n";
    expect_refused(&bench, "quantize q --layout comfyui", 1, message);
}

#[test]
fn weights_that_stay_plain_or_become_plain_are_in_the_config() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.run("quantize q --scheme nvfp4 --exclude *.o_proj.* -o out").says(0, "", "quantized");
    let ignored = &config(&bench, "out")["quantization_config"]["ignore"];
    let wanted =
        ["lm_head", "model.embed_tokens", "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"];
    assert_eq!(*ignored, serde_json::json!(wanted));
    // The decoded weights are those that dequantize writes.
    bench.run("dequantize q -q -o plain").expect(0, "", "");
    bench.run("diff plain out --include *.o_proj.*").expect(0, "2 tensors are equal\n", "");
}

#[test]
fn a_weight_is_moved_in_the_same_way_by_any_number_of_threads_and_in_parts() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    bench.run("quantize m --scheme mxfp4 -q -o q").expect(0, "", "");
    for scheme in ["nvfp4", "mxfp8", "fp8", "int4"] {
        bench.run(&format!("quantize q --scheme {scheme} -q -j1 -o one-{scheme}")).expect(0, "", "");
        bench.run(&format!("quantize q --scheme {scheme} -q -j4 -o four-{scheme}")).expect(0, "", "");
        for part in ["2/2", "1/2"] {
            bench.run(&format!("quantize q --scheme {scheme} -q --part {part} -o parts-{scheme}")).expect(0, "", "");
        }
        bench.run(&format!("quantize --finish parts-{scheme} -q")).expect(0, "", "");
        for entry in std::fs::read_dir(bench.path(&format!("one-{scheme}"))).unwrap() {
            let name = entry.unwrap().file_name();
            let read = |folder: &str| std::fs::read(bench.path(&format!("{folder}-{scheme}")).join(&name)).unwrap();
            assert!(read("one") == read("four") && read("one") == read("parts"), "{scheme}: {name:?}");
        }
    }
}

#[test]
fn a_global_scale_without_an_exact_reciprocal_is_rounded_and_the_report_counts_what_changes() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    let outcome = bench.run("quantize q --layout modelopt --report page.html -o mo");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    let line = "weights: codes and block scales unchanged, global scale rounded: ";
    outcome.check_message("unchanged");
    let page = String::from_utf8(bench.read("page.html")).unwrap();
    assert!(page.contains(line) && page.contains("rescaled") && !page.contains("came through unchanged"), "{page}");
    // The same with a scheme that is the same grid, and back: the codes and block scales never change.
    let report = json(&bench, "quantize mo --scheme nvfp4 -o ct --json -q");
    for tensor in quantized(&report) {
        let found = &tensor["quantized"];
        assert_eq!((&found["exact"], &found["codes"]), (&false.into(), &"rescaled".into()), "{tensor}");
        let (changed, visible) = (found["changed"].as_u64().unwrap(), found["changed_bfloat16"].as_u64().unwrap());
        assert!(changed > 1000 && visible < changed / 100, "{tensor}");
        assert!(found["sqnr_db"].as_f64().unwrap() > 140.0, "{tensor}");
    }
    let parts = |folder: &str| {
        let mut parts = tensors(&bench.path(folder));
        parts.retain(|name, _| !name.ends_with("global_scale"));
        parts
    };
    assert_same(&parts("ct"), &parts("q"));
    // --only-exact does not allow it.
    bench.run("quantize q --layout modelopt --only-exact -o no").says(1, "", "_proj.weight");
    assert!(!bench.path("no").exists());
}

#[test]
fn weights_that_engines_fuse_are_not_moved_with_different_global_scales() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme nvfp4 --layout comfyui -o c -q").expect(0, "", "");
    for layout in ["compressed-tensors", "modelopt"] {
        bench.run(&format!("quantize c --layout {layout} -o out")).says(1, "", "_proj.weight");
    }
    bench.run("quantize c --scheme nvfp4 -o out -q").expect(0, "", "");
    let found = tensors(&bench.path("out"));
    let global = |module: &str| &found[&format!("model.layers.0.self_attn.{module}_proj.weight_global_scale")].2;
    assert!(global("q") == global("k") && global("k") == global("v"));
}

#[test]
fn partial_blocks_are_moved_if_they_are_asked_for() {
    let bench = bench_with(&[("a.q_proj.weight", &[160, 256])], "{}");
    let line = "quantize m --scheme fp8-block --layout compressed-tensors --partial-blocks -o q -q";
    bench.run(line).expect(0, "", "");
    let what =
        |layout: &str| format!("cannot be stored as fp8-block in {layout}: its 160 rows are not a multiple of 128\n");
    let layout = "compressed-tensors";
    expect_refused(&bench, &format!("quantize q --layout {layout}"), 1, &what(layout));
    // Other layouts have no partial blocks, and a weight that is left out would be decoded.
    let layout = "modelopt";
    expect_refused(&bench, &format!("quantize q --layout {layout}"), 1, &what(layout));
    let line = format!("quantize q --scheme nvfp4 --layout {layout} --rule *.q_proj.*=fp8-block");
    expect_refused(&bench, &line, 1, &what(layout));
    bench.run("quantize q --layout compressed-tensors --partial-blocks -o out -q").expect(0, "", "");
    bench.run("diff q out").expect(0, "1 tensor is equal\n", "");
}

#[test]
fn a_summary_with_decoded_weights_does_not_call_every_value_unchanged() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let line = "quantize q --scheme fp8-block --layout modelopt";
    bench.run(&format!("{line} -o all")).check_message("unchanged");
    let outcome = bench.run(&format!("{line} --exclude *.0.mlp.down_proj.* -o some"));
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    outcome.check_message("quantized");
}

#[test]
fn the_page_says_for_each_weight_whether_its_codes_are_those_of_the_input() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.run("quantize q --layout modelopt --report exact.html -q -o exact").expect(0, "", "");
    let page = String::from_utf8(bench.read("exact.html")).unwrap();
    assert!(
        page.contains("<li>14 weights: exact, codes and scales are those of the input; the libraries of "),
        "{page}"
    );
    assert_eq!(page.matches(">exact</td>").count(), 2 * 14, "{page}");
    bench.run("quantize q --scheme nvfp4 --report again.html -q -o again").expect(0, "", "");
    let page = String::from_utf8(bench.read("again.html")).unwrap();
    assert!(
        page.contains("<li>14 weights: decoded and quantized again, ") && !page.contains("came through unchanged"),
        "{page}"
    );
    assert_eq!(page.matches(">requantized</td>").count(), 14, "{page}");
    assert!(page.contains("<dt>Lowest SQNR</dt>"), "{page}");
}

#[test]
fn a_weight_that_cannot_be_quantized_again_is_left_out_by_its_own_name_and_with_what_is_fused_with_it() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16", "q");
    let (file, module) = ("q/model-00001-of-00003.safetensors", "model.layers.0.self_attn");
    let mut content = bench.read(file);
    let start = 8 + u64::from_le_bytes(*content.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&content[8..start]).unwrap();
    let scale = &header[format!("{module}.q_proj.weight_scale")]["data_offsets"][0];
    content[start + scale.as_u64().unwrap() as usize] = 0x7f; // NaN
    bench.write(file, &content);
    let exclude = ["k", "q", "v"].map(|own| format!("--exclude '{module}.{own}_proj.weight'")).join(" ");
    bench.run("quantize q --scheme fp8 -o out").says(1, "", "weights");
    bench.run(&format!("quantize q --scheme fp8 {} -o out -q", exclude.replace('\'', ""))).expect(0, "", "");
    // The rules that the error of --min-sqnr suggests decode weights too.
    bench.run("quantize q --scheme int4 --min-sqnr 14.3 --include *.down_proj.* -o none").says(3, "", "--rule");
}

/// A folder `m` with a file that a library wrote, without the values that it decodes to, and its config.
fn of_library(bench: &Bench, name: &str) {
    std::fs::create_dir(bench.path("m")).unwrap();
    let file = std::fs::read(format!("fixtures/quantized/libraries/{name}.safetensors")).unwrap();
    let (_, header) = ::safetensors::SafeTensors::read_metadata(&file).unwrap();
    let mut metadata = header.metadata().clone().unwrap();
    let config = if metadata["config"] == "null" { "{}" } else { &metadata["config"] };
    bench.write("m/config.json", config.as_bytes());
    metadata.retain(|name, _| name != "config" && name != "layout");
    let tensors = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let parts = tensors.iter().filter(|(name, _)| !name.starts_with("decoded."));
    bench.write("m/model.safetensors", &::safetensors::serialize(parts, Some(metadata)).unwrap());
}

#[test]
fn weights_of_other_libraries_are_moved_where_no_value_changes() {
    for (name, line, scheme, codes) in [
        // Symmetric GPTQ stores zero points that are all 8.
        ("gptq.f16.32x128.w4", "--layout compressed-tensors", "int4", "exact"),
        ("gptq.f16.32x128.w4", "--scheme int4 --group-size 32", "int4", "exact"),
        ("gptq.f16.32x128.w4", "--scheme int8", "int8", "requantized"),
        ("gptq.f16.32x128.w4-asym-act-v2", "--scheme int4-asym --group-size 32", "int4-asym", "requantized"),
        ("awq.f16.32x128.w4-g64", "--layout compressed-tensors", "int4-asym", "exact"),
        ("awq.f16.32x128.w4-g64", "--scheme int4-asym --group-size 32", "int4-asym", "exact"),
        ("awq.f16.32x128.w4-g64", "--scheme int4 --group-size 64", "int4", "requantized"),
        ("comfy-int8.f16.32x128.channel", "--layout compressed-tensors", "int8", "exact"),
        ("comfy-int8.bf16.32x128.tensor", "--scheme int8", "int8", "exact"),
        ("quanto.bf16.32x128.qfloat8_e4m3fn", "--layout compressed-tensors", "fp8", "exact"),
        ("quanto.bf16.32x128.qfloat8_e5m2", "--scheme fp8", "fp8", "exact"),
        ("quanto.f16.32x128.qint8", "--layout compressed-tensors", "int8", "exact"),
        ("bnb-4bit.bf16.32x128.nf4", "--scheme nvfp4", "nvfp4", "requantized"),
        ("bnb-int8.f16.32x128", "--scheme int8", "int8", "requantized"),
    ] {
        let bench = Bench::new();
        of_library(&bench, name);
        let report = json(&bench, &format!("quantize m {line} -o out --json -q"));
        let [tensor] = quantized(&report)[..] else { panic!("{name} {line}: {report}") };
        let found = &tensor["quantized"];
        assert_eq!((&found["scheme"], &found["codes"]), (&scheme.into(), &codes.into()), "{name} {line}");
        let differs = bench.run("diff m out").code;
        assert_eq!(differs, Some(i32::from(codes != "exact")), "{name} {line}");
    }
}

#[test]
fn the_group_size_that_keeps_codes_is_named() {
    let bench = Bench::new();
    of_library(&bench, "awq.f16.32x128.w4-g64");
    let said = |line: &str| {
        bench.run(&format!("quantize m --scheme {line} -f -o out")).stderr.contains("--group-size 64 keeps")
    };
    let lines = ["int4-asym", "int4-asym --group-size 64", "int4-asym --group-size 128", "int4", "fp8"];
    assert_eq!(lines.map(said), [true, false, false, false, false]);
}

#[test]
fn experts_that_are_quantized_are_not_put_together_for_gpt_oss() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let outcome = bench.run("quantize q --scheme mxfp4 --layout gpt-oss -o out");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    outcome.check_message("quantized");
    assert!(!bench.path("out").exists());
}

/// Engines read the bias of gpt-oss as it is stored, with those of gate and up in turn, and only beside whole banks.
#[test]
fn experts_are_not_divided_if_their_biases_are_in_a_bank() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let config = r#"{"model_type": "gpt_oss", "hidden_size": 32, "quantization_config": {"quant_method": "mxfp4"}}"#;
    bench.write("q/config.json", config.as_bytes());
    let bank = "model.layers.0.mlp.experts.gate_up_proj";
    let [blocks, scales, bias] = ["blocks", "scales", "bias"].map(|part| format!("{bank}_{part}"));
    let mut tensors: Vec<(&str, &str, &[u64], &[u8])> =
        vec![(&blocks, "U8", &[1, 4, 1, 16], &[0x21; 64]), (&scales, "U8", &[1, 4, 1], &[127; 4])];
    bench.write("q/model.safetensors", &shard(&tensors));
    bench.run("quantize q --layout compressed-tensors -q -o whole").expect(0, "", "");
    tensors.push((&bias, "BF16", &[1, 4], &[0; 8]));
    bench.write("q/model.safetensors", &shard(&tensors));
    for options in ["--layout compressed-tensors", "--scheme fp8-block"] {
        bench.run(&format!("quantize q {options} -q -o out")).says(1, "", "experts");
    }
    bench.run("dequantize q -q -o out").expect(0, "", "");
}

#[test]
fn an_error_about_values_that_are_no_numbers_says_how_many_there_are_and_whether_codes_or_scales_cause_them() {
    let weight = "model.layers.0.mlp.down_proj.weight";
    let file = "q/model-00001-of-00002.safetensors";
    let refused = |part: &str, offset: usize, bytes: &[u8], scheme: &str, what: &str| {
        let bench = Bench::with_checkpoint("llama-fp8", "q");
        let mut content = bench.read(file);
        let start = 8 + u64::from_le_bytes(*content.first_chunk().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&content[8..start]).unwrap();
        let at = start + header[part]["data_offsets"][0].as_u64().unwrap() as usize + offset;
        content[at..at + bytes.len()].copy_from_slice(bytes);
        bench.write(file, &content);
        bench.run(&format!("quantize q --scheme {scheme} -o out")).says(1, "", what);
        assert!(!bench.path("out/config.json").exists());
    };
    let scale = format!("{weight}_scale_inv");
    for scheme in ["fp8", "nvfp4"] {
        let what = "infinite or NaN, which codes and scales cannot represent: the first is";
        refused(weight, 5, &[0x7f; 2], scheme, &format!("2 of 32768 elements are {what} [0, 5], whose code is NaN"));
        let cause = format!("whose scale in '{scale}' is");
        for (bits, state) in [(0x7fc0_0000_u32, "NaN"), (0x7f80_0000, "infinite or too large")] {
            let what = format!("16384 of 32768 elements are {what} [0, 0], {cause} {state}");
            refused(&scale, 0, &bits.to_le_bytes(), scheme, &what);
        }
    }
}

#[test]
fn an_error_about_values_that_are_no_numbers_names_the_weight_and_not_its_codes() {
    let bench = Bench::new();
    of_library(&bench, "quanto.bf16.32x128.qfloat8_e4m3fn");
    let mut file = bench.read("m/model.safetensors");
    let start = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
    let (_, entry) = header.as_object().unwrap().iter().find(|(name, _)| name.ends_with("._data")).unwrap();
    file[start + entry["data_offsets"][0].as_u64().unwrap() as usize] = 0x7f;
    bench.write("m/model.safetensors", &file);
    bench.run("quantize m --scheme nvfp4 -o out").says(1, "", "4096");
}

#[test]
fn comfyui_multiplies_in_full_precision_as_before() {
    let bench = Bench::new();
    let (codes, scale) = ([0x38; 256], 0.5_f32.to_le_bytes());
    let description = b"{\"format\": \"float8_e4m3fn\", \"full_precision_matrix_mult\": true}";
    let full = r#"{"format":"float8_e4m3fn","full_precision_matrix_mult":true}"#;
    let length = [description.len() as u64];
    let described = ("a.comfy_quant", "U8", &length[..], &description[..]);
    let marker = |length: &'static [u64], bytes: &'static [u8]| ("scaled_fp8", "F8_E4M3", length, bytes);
    for (scale_name, more, wanted) in [
        ("a.weight_scale", described, full),
        ("a.scale_weight", marker(&[2], &[0; 2]), full),
        ("a.scale_weight", marker(&[0], &[]), r#"{"format":"float8_e4m3fn"}"#),
    ] {
        let weight = [("a.weight", "F8_E4M3", &[16, 16][..], &codes[..]), (scale_name, "F32", &[], &scale), more];
        bench.write("s.safetensors", &shard(&weight));
        bench.run("quantize s.safetensors --layout comfyui -q -f -o o.safetensors").expect(0, "", "");
        let found = bench.read("o.safetensors");
        assert_eq!(bytes_of(&found, "a.comfy_quant"), wanted.as_bytes());
        assert_eq!(bytes_of(&found, "a.weight"), codes);
    }
}

/// Codes of compressed-tensors become codes of another width if all fit, with and without zero points.
#[test]
fn words_of_codes_move_to_wider_codes_and_back() {
    let bench = bench_with(&[("a.up_proj.weight", &[16, 256]), ("a.down_proj.weight", &[32, 128])], "{}");
    let move_to = |source: &str, scheme: &str, output: &str| {
        let line = format!("quantize {source} --scheme {scheme} --only-exact -o {output} -f -q");
        let outcome = bench.run(&line);
        (outcome.code, outcome.stderr)
    };
    for (narrow, wide) in [
        ("int2", "int3"),
        ("int4", "int5-asym"),
        ("int3-asym", "int7-asym"),
        ("int6", "int8a16"),
        ("int4-asym", "int8-asym"),
    ] {
        bench.run(&format!("quantize m --scheme {narrow} -o narrow -f -q")).expect(0, "", "");
        assert_eq!(move_to("narrow", wide, "wide"), (Some(0), String::new()), "{narrow} {wide}");
        bench.run("diff narrow wide -q").expect(0, "", "");
        assert_eq!(move_to("wide", narrow, "again"), (Some(0), String::new()), "{wide} {narrow}");
        assert_same(&tensors(&bench.path("again")), &tensors(&bench.path("narrow")));
        let [again, before] = ["again", "narrow"].map(|folder| config(&bench, folder)["quantization_config"].take());
        assert_eq!(again, before);
    }
    bench.run("quantize m --scheme int6 -o wide -f -q").expect(0, "", "");
    let (code, stderr) = move_to("wide", "int4", "narrow");
    assert!(code == Some(1) && stderr.contains("its codes and scales cannot be moved to int4"), "{stderr}");
}
