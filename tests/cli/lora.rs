//! Adapters that are merged into the weights of their base.

use crate::common::gguf::Gguf;
use crate::common::{Bench, fixture, safetensors};
use serde_json::{Value, json};
use std::fs;

/// A case of `fixtures/lora/cases.json`, and the arguments for its adapters.
fn cases() -> Vec<(Value, String)> {
    let text = fs::read_to_string(fixture("lora/cases.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let place = |name: &Value| fixture(&format!("lora/{}", name.as_str().unwrap())).display().to_string();
    let arguments = |case: &Value| {
        let adapters = case["adapters"].as_array().unwrap();
        let lora = adapters.iter().map(|adapter| format!(" --lora {}={}", place(&adapter[0]), adapter[1]));
        format!("{}{}", place(&case["base"]), lora.collect::<String>())
    };
    cases.into_iter().map(|case| (case.clone(), arguments(&case))).collect()
}

fn report(bench: &Bench, line: &str) -> Value {
    let outcome = bench.run(line);
    assert_eq!(outcome.code, Some(0), "{line}\n{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn every_merged_value_is_rounded_once() {
    let mut seen = 0;
    for (case, arguments) in cases().iter().filter(|(case, _)| case["refuse"].is_null()) {
        let bench = Bench::new();
        let base = case["base"].as_str().unwrap();
        let output = match base.rsplit_once('.') {
            Some((_, extension)) => format!("out.{extension}"),
            None => "out".to_owned(),
        };
        let report = report(&bench, &format!("cast {arguments} -o {output} --json --hash"));
        let wanted = case["sha256"].as_object().unwrap();
        for tensor in report["tensors"].as_array().unwrap() {
            let name = tensor["name"].as_str().unwrap();
            let expected = wanted.get(name).unwrap_or(&tensor["sha256_in"]);
            let hash = if tensor["sha256_out"].is_null() { &tensor["sha256_in"] } else { &tensor["sha256_out"] };
            assert_eq!(hash, expected, "{}: {name}", case["name"]);
            seen += 1;
        }
    }
    assert!(seen > 300, "{seen}");
}

#[test]
fn adapters_that_would_be_merged_wrongly_are_refused_and_nothing_is_written() {
    for (case, arguments) in cases().iter().filter(|(case, _)| !case["refuse"].is_null()) {
        let bench = Bench::new();
        let outcome = bench.run(&format!("cast {arguments} -o out.safetensors"));
        let wanted = case["refuse"].as_str().unwrap();
        assert!(outcome.stderr.contains(wanted), "{}: {}", case["name"], outcome.stderr);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}", case["name"]);
        assert!(bench.files().is_empty(), "{}", case["name"]);
    }
}

/// Writes tensors of float32.
pub(super) fn write(bench: &Bench, name: &str, tensors: &[(&str, &[u64], &[f32])]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        header.insert((*name).to_owned(), entry);
    }
    bench.write(name, &safetensors(&Value::Object(header).to_string(), &data));
}

/// The values of a tensor of float32, which is the only one of its file.
pub(super) fn values(bench: &Bench, name: &str) -> Vec<f32> {
    let bytes = bench.read(name);
    let start = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
    bytes[start..].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn the_delta_of_a_convolution_fills_its_kernel() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("conv.weight", &[2, 1, 1, 2], &[1.0, 2.0, 3.0, 4.0])]);
    let down: (&str, &[u64], &[f32]) = ("lora_unet_conv.lora_down.weight", &[1, 1, 1, 2], &[1.0, 10.0]);
    let up: (&str, &[u64], &[f32]) = ("lora_unet_conv.lora_up.weight", &[2, 1, 1, 1], &[1.0, 2.0]);
    write(&bench, "a.safetensors", &[down, up, ("lora_unet_conv.alpha", &[], &[0.5])]);
    bench.run("cast m.safetensors --lora a.safetensors=2 -o out.safetensors -q").expect(0, "", "");
    assert_eq!(values(&bench, "out.safetensors"), [2.0, 12.0, 5.0, 24.0]);
}

#[test]
fn a_core_of_a_tucker_decomposition_mixes_the_ranks() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("conv.weight", &[1, 2, 1, 2], &[0.0; 4])]);
    let tensors: [(&str, &[u64], &[f32]); 3] = [
        ("lora_unet_conv.lora_down.weight", &[2, 2, 1, 1], &[1.0, 2.0, 3.0, 4.0]),
        ("lora_unet_conv.lora_mid.weight", &[2, 2, 1, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        ("lora_unet_conv.lora_up.weight", &[1, 2, 1, 1], &[1.0, 10.0]),
    ];
    write(&bench, "a.safetensors", &tensors);
    bench.run("cast m.safetensors --lora a.safetensors -o out.safetensors -q").expect(0, "", "");
    // Input 0 at place 0: 1 * (1 * 1 + 3 * 3) + 10 * (5 * 1 + 7 * 3).
    assert_eq!(values(&bench, "out.safetensors"), [270.0, 314.0, 394.0, 460.0]);
}

#[test]
fn a_difference_and_a_new_weight_are_taken_as_they_are() {
    let bench = Bench::new();
    write(
        &bench,
        "m.safetensors",
        &[("a.weight", &[2], &[1.0, 2.0]), ("b.bias", &[1], &[3.0]), ("b.weight", &[1], &[4.0])],
    );
    let tensors: [(&str, &[u64], &[f32]); 3] =
        [("a.diff", &[2], &[1.0, -1.0]), ("b.diff_b", &[1], &[0.5]), ("b.set_weight", &[1], &[9.0])];
    write(&bench, "a.safetensors", &tensors);
    bench.run("cast m.safetensors --lora a.safetensors=0.5 -o out.safetensors -q").expect(0, "", "");
    assert_eq!(values(&bench, "out.safetensors"), [1.5, 1.5, 3.25, 9.0]);
}

#[test]
fn names_of_diffusers_stand_for_rows_of_the_original_flux() {
    let bench = Bench::new();
    let qkv: (&str, &[u64], &[f32]) = ("double_blocks.0.img_attn.qkv.weight", &[3, 1], &[1.0, 2.0, 3.0]);
    let bias: (&str, &[u64], &[f32]) = ("double_blocks.0.img_attn.qkv.bias", &[3], &[4.0, 5.0, 6.0]);
    let last: (&str, &[u64], &[f32]) = ("final_layer.adaLN_modulation.1.weight", &[2, 1], &[7.0, 8.0]);
    write(&bench, "m.safetensors", &[bias, qkv, last]);
    // The first rows of a weight have the first elements of its bias, and two halves change places.
    let tensors: [(&str, &[u64], &[f32]); 4] = [
        ("transformer.norm_out.linear.set_weight", &[2, 1], &[30.0, 40.0]),
        ("transformer.transformer_blocks.0.attn.to_q.diff_b", &[1], &[100.0]),
        ("transformer.transformer_blocks.0.attn.to_q.set_weight", &[1, 1], &[10.0]),
        ("transformer.transformer_blocks.0.attn.to_v.diff", &[1, 1], &[20.0]),
    ];
    write(&bench, "a.safetensors", &tensors);
    bench.run("cast m.safetensors --lora a.safetensors -o out.safetensors -q").expect(0, "", "");
    assert_eq!(values(&bench, "out.safetensors"), [104.0, 5.0, 6.0, 10.0, 2.0, 23.0, 40.0, 30.0]);
}

#[test]
fn stacks_of_different_numbers_of_experts_are_refused() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("fc.weight", &[2, 1, 1], &[1.0, 2.0])]);
    fs::create_dir(bench.path("a")).unwrap();
    bench
        .write("a/adapter_config.json", br#"{"fine_tune_type": "lora", "lora_parameters": {"rank": 1, "scale": 1.0}}"#);
    let tensors: [(&str, &[u64], &[f32]); 2] =
        [("fc.lora_a", &[1, 1, 1], &[1.0]), ("fc.lora_b", &[2, 1, 1], &[1.0, 2.0])];
    write(&bench, "a/adapters.safetensors", &tensors);
    bench.run("cast m.safetensors --lora a -o out.safetensors").says(1, "", "fc.lora_a");
}

#[test]
fn modules_of_which_some_tensors_would_be_ignored_are_refused() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("fc.weight", &[2, 1, 1], &[1.0, 2.0]), ("l.weight", &[1, 1], &[3.0])]);
    let (lora, hada) = (["lora_down.weight", "lora_up.weight"], ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"]);
    let (whole, core) = (["lokr_w1", "lokr_w2"], ["lokr_w1_a", "lokr_w1_b"]);
    for parts in [[&lora[..], &hada], [&lora, &whole], [&whole, &core]] {
        let names: Vec<String> = parts.concat().iter().map(|part| format!("lora_unet_l.{part}")).collect();
        let tensors: Vec<(&str, &[u64], &[f32])> = names.iter().map(|it| (&**it, &[1, 1][..], &[1.0][..])).collect();
        write(&bench, "a.safetensors", &tensors);
        bench.run("cast m.safetensors --lora a.safetensors -o out.safetensors").says(1, "", "safetensors");
    }
    fs::create_dir(bench.path("a")).unwrap();
    bench
        .write("a/adapter_config.json", br#"{"fine_tune_type": "dora", "lora_parameters": {"rank": 1, "scale": 1.0}}"#);
    let matrix: (&[u64], &[f32]) = (&[2, 1, 1], &[1.0, 2.0]);
    let [down, up] = ["fc.lora_a", "fc.lora_b"].map(|name| (name, matrix.0, matrix.1));
    write(&bench, "a/adapters.safetensors", &[down, up, ("fc.m", &[2, 1], &[1.0, 2.0])]);
    bench.run("cast m.safetensors --lora a -o out.safetensors").says(1, "", "fc.lora_a");
}

#[test]
fn the_summary_the_json_and_a_dry_run_say_what_is_merged() {
    let bench = Bench::new();
    let base = fixture("lora/bases/tiny.safetensors").display().to_string();
    let adapter = fixture("lora/h-no-prefix/adapter").display().to_string();
    let line = format!("cast {base} --lora {adapter}=0.5 -o out.safetensors");
    let summary = bench.run(&line).stderr;
    let wanted = format!("\nmerged 1 adapter into 1 weight\n  {adapter}=0.5: lora (peft), rank 2, scale 2, 1 weight\n");
    assert!(summary.starts_with("cast 1 tensor to bfloat16, copied 6\n") && summary.contains(&wanted), "{summary}");
    let report = report(&bench, &format!("{line} --force --json"));
    let facts = json!([{ "path": adapter, "dialect": "peft", "method": "lora", "strength": 0.5,
        "rank": { "min": 2, "max": 2 }, "scale": { "min": 2.0, "max": 2.0 }, "weights": 1, "replaced": 0 }]);
    assert_eq!(report["lora"], facts);
    assert_eq!(report["options"]["lora"], json!([format!("{adapter}=0.5")]));
    let outcome = bench.run(&format!("{line} --force -n"));
    let mapping = "\nmodel.layers.0.self_attn.q_proj -> model.layers.0.self_attn.q_proj.weight  rank 2, scale 2\n";
    assert!(outcome.stdout.ends_with(mapping), "{}", outcome.stdout);
    outcome.check_message("adapter");
}

#[test]
fn tensors_that_match_nothing_are_left_out_on_request() {
    let bench = Bench::new();
    let base = fixture("lora/bases/tiny.safetensors").display().to_string();
    let adapter = fixture("lora/h-unmatched-layer/adapter").display().to_string();
    let line = format!("cast {base} --lora {adapter} -o out.safetensors");
    bench.run(&line).says(1, "", "--allow-unmatched");
    let allowed = bench.run(&format!("{line} --allow-unmatched"));
    assert_eq!(allowed.code, Some(0), "{}", allowed.stderr);
    assert!(allowed.stderr.contains(": 2 tensors of ") || allowed.stderr.contains("warning: 2 tensors of "));
    // An adapter of which nothing matches belongs to another model.
    write(&bench, "other.safetensors", &[("x.weight", &[8, 8], &[0.0; 64])]);
    let line = format!("cast other.safetensors --lora {adapter} --allow-unmatched -o other-out.safetensors");
    assert_eq!(bench.run(&line).code, Some(1));
}

#[test]
fn adapters_are_not_merged_where_nothing_could_hold_the_result() {
    let bench = Bench::new();
    let base = fixture("lora/bases/tiny.safetensors").display().to_string();
    let adapter = fixture("lora/h-no-prefix/adapter").display().to_string();
    bench.run(&format!("cast {base} --lora {adapter} -o out.npz")).says(2, "", "adapters");
    let inside = fixture("lora/h-other-shape-of-scale/adapter.safetensors");
    fs::copy(inside, bench.path("a.safetensors")).unwrap();
    let outcome = bench.run(&format!("cast {base} --lora a.safetensors -o a.safetensors --force"));
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
}

#[test]
fn a_folder_is_continued_with_the_same_adapters_only() {
    let bench = Bench::new();
    let base = fixture("lora/bases/llama-b9f6d1").display().to_string();
    let adapter = fixture("lora/peft-dora-bf16/adapter").display().to_string();
    let line = |strength: &str| format!("cast {base} --lora {adapter}={strength} -o out --max-shard-size 20KB");
    assert_eq!(bench.run(&format!("{} --part 1/2", line("1"))).code, Some(0));
    let other = bench.run(&format!("{} --part 2/2", line("0.5")));
    assert_ne!(other.code, Some(0));
    other.check_message("lora");
    assert_eq!(bench.run(&format!("{} --part 2/2", line("1"))).code, Some(0));
}

/// The figures of all tensors that adapters change.
fn figures(report: &Value) -> Vec<&Value> {
    let tensors = report["tensors"].as_array().unwrap().iter();
    tensors.map(|tensor| &tensor["lora"]).filter(|figures| !figures.is_null()).collect()
}

#[test]
fn quantizing_takes_the_merged_values_without_a_rounding_between() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    // These sums are exact in float32.
    run(&bench, &format!("cast m --to f32 --lora {style} -o merged"));
    run(&bench, "cast m --to f32 -o plain");
    for scheme in ["nvfp4", "mxfp4", "fp8", "int8", "int4", "int4-asym"] {
        run(&bench, &format!("quantize merged --scheme {scheme} --arithmetic exact -o a --force"));
        run(&bench, &format!("quantize plain --lora {style} --scheme {scheme} --arithmetic exact -o b --force"));
        let equal = bench.run("diff a b");
        assert_eq!((equal.code, equal.stdout.as_str()), (Some(0), "38 tensors are equal\n"), "{scheme}");
    }
}

#[test]
fn a_quantized_base_keeps_its_codes_where_no_adapter_changes_them() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    run(&bench, "quantize m --scheme int4 -o base");
    let line = format!("quantize base --layout compressed-tensors --lora {style} -o out --json");
    let tuned = report(&bench, &line);
    let changed: Vec<&str> = tuned["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tensor| tensor["quantized"]["codes"] == "requantized")
        .map(|tensor| tensor["name"].as_str().unwrap())
        .collect();
    assert_eq!(changed.len(), 8, "{changed:?}");
    assert!(changed.iter().all(|name| name.contains("q_proj") || name.contains("v_proj")), "{changed:?}");
    let differences = report_of_diff(&bench, "diff base out --json");
    assert_eq!((&differences["counts"]["values_differ"], &differences["counts"]["equal"]), (&json!(8), &json!(30)));
    // The weights are on their grid, so rounding to the nearest code swallows the delta.
    let kept: Vec<f64> = figures(&tuned).iter().map(|it| it["kept"].as_f64().unwrap()).collect();
    assert!(kept.len() == 8 && kept.iter().all(|kept| *kept < 0.3), "{kept:?}");
    let decoded = report(&bench, &format!("dequantize base --to bf16 --lora {style} -o decoded --json"));
    let kept: Vec<f64> = figures(&decoded).iter().map(|it| it["kept"].as_f64().unwrap()).collect();
    assert!(kept.len() == 8 && kept.iter().all(|kept| *kept > 0.98), "{kept:?}");
    run(&bench, "dequantize base --to f32 --arithmetic exact -o wide");
    run(&bench, &format!("cast wide --lora {style} -o one"));
    run(&bench, &format!("dequantize base --to f32 --arithmetic exact --lora {style} -o other"));
    assert_eq!(bench.run("diff one other --tolerance 1e-6").code, Some(0));
}

#[test]
fn without_a_scheme_or_a_type_the_output_has_those_of_the_base() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    let layouts = [("int4", "compressed-tensors"), ("fp8-block", "huggingface"), ("mxfp8", "mxfp8"), ("nvfp4", "mlx")];
    for (scheme, layout) in layouts {
        run(&bench, &format!("quantize m --scheme {scheme} --layout {layout} -o base --force"));
        run(&bench, &format!("quantize base --lora {style} -o own --force"));
        run(&bench, &format!("quantize base --lora {style} --layout {layout} -o named --force"));
        assert_eq!(bench.run("diff own named").code, Some(0), "{scheme}");
        assert_eq!(bench.read("own/config.json"), bench.read("base/config.json"), "{scheme}");
        let counts = &report_of_diff(&bench, "diff base own --json")["counts"];
        assert_eq!((&counts["values_differ"], &counts["equal"]), (&json!(8), &json!(30)), "{scheme}");
    }
    let cast = report(&bench, &format!("cast m --lora {style} -o cast --json"));
    let tensors = cast["tensors"].as_array().unwrap();
    assert!(tensors.len() == 38 && tensors.iter().all(|tensor| tensor["from"] == tensor["to"]), "{cast}");
    assert_eq!(bench.read("cast/model.safetensors.index.json"), bench.read("m/model.safetensors.index.json"));
}

#[test]
fn blocks_of_a_gguf_keep_their_types() {
    let bench = Bench::new();
    let tiny = fixture("gguf/tiny.gguf").display().to_string();
    let values = |start: u16| (start..start + 64).map(|at| f32::from(at % 7) / 64.0);
    let adapter = Gguf::of("llama").text("general.type", "adapter").text("adapter.type", "lora");
    let adapter = adapter.floats("blk.0.attn_q.weight.lora_a", &[1, 64], values(0));
    bench.write("a.gguf", &adapter.floats("blk.0.attn_q.weight.lora_b", &[64, 1], values(3)).bytes());
    run(&bench, &format!("quantize {tiny} --lora a.gguf -o out.gguf"));
    let differences = report_of_diff(&bench, &format!("diff {tiny} out.gguf --json"));
    let counts = [&differences["counts"]["values_differ"], &differences["counts"]["equal"]];
    assert_eq!(counts, [&json!(1), &json!(20)], "{differences}");
}

#[test]
fn a_base_without_one_layout_of_its_own_needs_a_scheme_or_a_layout() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    let gptq = fixture("checkpoints/gptq-v2-named-gptq").display().to_string();
    for (base, why) in [("m", "scheme"), (&gptq, "layout")] {
        for rule in ["", "--rule *o_proj*=int4"] {
            bench.run(&format!("quantize {base} --lora {style} -o out {rule}")).says(2, "", why);
        }
    }
    bench.run("quantize m -o out").says(2, "", "--scheme");
    assert_eq!(bench.files(), ["m"]);
}

fn report_of_diff(bench: &Bench, line: &str) -> Value {
    serde_json::from_str(&bench.run(line).stdout).unwrap()
}

fn run(bench: &Bench, line: &str) {
    bench.run(&format!("{line} -q")).expect(0, "", "");
}

#[test]
fn the_report_says_how_much_of_the_delta_is_left_and_options_refuse_too_little() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    let cast = report(&bench, &format!("cast m --lora {style} -o a --json"));
    let figures = figures(&cast);
    assert_eq!(figures.len(), 8);
    for it in figures {
        let number = |key: &str| it[key].as_f64().unwrap();
        assert!((number("kept") - 1.0).abs() < 0.01 && number("cosine") > 0.99, "{it}");
        assert!(number("delta_snr") > number("full_snr") && (0.01..0.1).contains(&number("delta_norm")), "{it}");
    }
    let refused = bench.run(&format!("cast m --lora {style} -o b --min-delta-snr 90"));
    refused.says(3, "", "written");
    assert!(!refused.stderr.contains("--rule"), "{}", refused.stderr);
    run(&bench, "quantize m --scheme int4 -o base");
    let line = format!("quantize base --layout compressed-tensors --lora {style} -o out");
    let warned = bench.run(&line).stderr;
    assert!(warned.contains("little of the delta may be left"), "{warned}");
    for least in ["--min-kept 0.5", "--fail-on lost", "--fail-on clipped,lost --min-kept 0.3"] {
        bench.run(&format!("{line} --force {least}")).says(3, "", "delta");
    }
    bench.run(&format!("dequantize base --lora {style} -o lossless --fail-on nan,lost -q")).expect(0, "", "");
    let alone = bench.run("cast m --to e4m3 --fail-on lost");
    assert!(alone.code == Some(2) && alone.stderr.contains("--lora"), "{}", alone.stderr);
    bench.run(&format!("cast base --lora {style} -o cast")).says(1, "", "--lora");
}

#[test]
fn inspect_describes_an_adapter() {
    let bench = Bench::new();
    let path = |name: &str| fixture(&format!("lora/{name}")).display().to_string();
    for (name, line) in [
        ("style", "an adapter: lora (peft), rank 3, scale 2, 8 modules: q_proj (4), v_proj (4)"),
        ("kohya-flux-lokr/adapter.safetensors", "an adapter: lora (kohya), rank 2, scale 0.5 to 1, 4 modules"),
        ("peft-moe-one-parameter/adapter", "an adapter: lora (peft), rank 2, scale 3, 1 module: experts (1)"),
        ("h-vera/adapter", "an adapter that cannot be merged: "),
    ] {
        let outcome = bench.run(&format!("inspect {}", path(name)));
        assert!(outcome.stdout.contains(&format!("\n{line}")), "{}", outcome.stdout);
    }
    let report = report(&bench, &format!("inspect {} --json", path("style")));
    assert_eq!(report["adapter"]["targets"], json!({ "q_proj": 4, "v_proj": 4 }));
    assert_eq!(report["adapter"]["scale"], json!({ "min": 2.0, "max": 2.0 }));
}

#[test]
fn inspect_shows_what_an_adapter_changes_in_its_base() {
    let bench = Bench::new();
    let base = fixture("lora/bases/tiny.safetensors").display().to_string();
    let adapter = fixture("lora/h-unmatched-layer/adapter").display().to_string();
    let text = bench.run(&format!("inspect {adapter} --base {base}")).stdout;
    let report = report(&bench, &format!("inspect {adapter} --base {base} --json"));
    let (mapping, unmatched) = (&report["adapter"]["mapping"][0], &report["adapter"]["unmatched"][0]);
    let [module, weight, name] = [&mapping["module"], &mapping["weight"], unmatched].map(|it| it.as_str().unwrap());
    assert_eq!([&mapping["rank"], &mapping["scale"]], [&json!(2), &json!(2.0)]);
    assert!(text.contains(&format!("\n{module} -> {weight}  rank 2, scale 2\n")), "{text}");
    assert!(text.contains(&format!("\n{name} matches no weight\n")), "{text}");
    bench.run(&format!("inspect {base} --base {base}")).says(2, "", "adapter");
}

#[test]
fn a_gguf_gets_merged_rows_in_its_own_order() {
    let bench = Bench::new();
    let tiny = fixture("gguf/tiny-llama").display().to_string();
    let gguf = fixture("gguf/tiny.gguf").display().to_string();
    let down: Vec<f32> = (0..64_u8).map(|at| f32::from(at % 7) / 64.0).collect();
    let up: Vec<f32> = (0..64_u8).map(|at| f32::from(at % 11) / 64.0).collect();
    let mut tensors: Vec<(String, [u64; 2], &[f32])> = Vec::new();
    for module in ["self_attn.q_proj", "self_attn.o_proj"] {
        tensors.push((format!("model.layers.0.{module}.lora_A.weight"), [1, 64], &down));
        tensors.push((format!("model.layers.0.{module}.lora_B.weight"), [64, 1], &up));
    }
    let tensors: Vec<(&str, &[u64], &[f32])> =
        tensors.iter().map(|(name, shape, values)| (name.as_str(), &shape[..], *values)).collect();
    write(&bench, "a.safetensors", &tensors);
    // These sums are exact in float32.
    run(&bench, &format!("cast {tiny} --to f32 --lora a.safetensors -o merged"));
    for scheme in ["f32", "f16", "q8_0"] {
        run(&bench, &format!("quantize merged --scheme {scheme} --metadata-from {gguf} -o one.gguf --force"));
        let line = format!(
            "quantize {tiny} --lora a.safetensors --scheme {scheme} --metadata-from {gguf} -o two.gguf --force"
        );
        run(&bench, &line);
        assert_eq!(bench.run("diff one.gguf two.gguf").code, Some(0), "{scheme}");
    }
    run(&bench, &format!("quantize {tiny} --scheme f32 --metadata-from {gguf} -o plain.gguf"));
    assert_eq!(bench.run("diff plain.gguf two.gguf").code, Some(1));
    // Rows in another order have no projection, but tell how much is kept.
    let line =
        format!("quantize {tiny} --lora a.safetensors --scheme q8_0 --metadata-from {gguf} -o three.gguf --json");
    let report = report(&bench, &line);
    let figures = figures(&report);
    assert!(figures.len() == 2 && figures.iter().all(|it| it["kept"].as_f64().unwrap() > 0.9), "{figures:?}");
    assert_eq!(figures.iter().filter(|it| it["delta_snr"].is_null()).count(), 1, "{figures:?}");
}

#[test]
fn experts_that_a_gguf_stacks_tell_how_much_of_their_deltas_is_kept() {
    let bench = Bench::new();
    let moe = fixture("checkpoints/qwen3-moe-tiny").display().to_string();
    let donor = Gguf::of("qwen3moe").floats("output_norm.weight", &[32], (0..32_u8).map(f32::from));
    bench.write("donor.gguf", &donor.bytes());
    let down: Vec<f32> = (0..16_u8).map(|at| f32::from(at % 7) / 64.0).collect();
    let up: Vec<f32> = (0..32_u8).map(|at| f32::from(at % 11) / 64.0).collect();
    let name = |expert: u8, part: &str| format!("model.layers.0.mlp.experts.{expert}.down_proj.lora_{part}.weight");
    let names = [1, 3].map(|expert| ["A", "B"].map(|part| name(expert, part)));
    let mut tensors: Vec<(&str, &[u64], &[f32])> = Vec::new();
    for [a, b] in &names {
        tensors.extend([(a.as_str(), &[1, 16][..], &down[..]), (b, &[32, 1], &up)]);
    }
    write(&bench, "a.safetensors", &tensors);
    let line =
        format!("quantize {moe} --lora a.safetensors --scheme f16 --metadata-from donor.gguf -o out.gguf --json");
    let report = report(&bench, &line);
    let figures = figures(&report);
    assert!(figures.len() == 1 && figures[0]["measured"] == 2048, "{figures:?}");
    assert!((figures[0]["kept"].as_f64().unwrap() - 1.0).abs() < 0.01, "{figures:?}");
}
