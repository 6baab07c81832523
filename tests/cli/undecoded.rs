//! Quantized checkpoints that tcast does not decode, and the flags that it proposes for those that it does.
#![cfg_attr(not(unix), allow(dead_code, unused_imports, reason = "some tests need a shell"))]

use crate::common::{Bench, fixture};
use crate::dequantize::shard;
use ::safetensors::SafeTensors;
use std::fs;
use std::path::Path;

type Tensor = (&'static str, &'static str, &'static [u64]);

/// A method as messages call it, its config, and the tensors of a module: names and types as the libraries write them.
const METHODS: &[(&str, &str, &[Tensor])] = &[
    (
        "Metal of transformers",
        r#""quant_method":"metal""#,
        &[("q.weight", "U32", &[2, 8]), ("q.scales", "BF16", &[2, 1]), ("q.qbiases", "BF16", &[2, 1])],
    ),
    (
        "torchao",
        r#""quant_method":"torchao","quant_type":{"default":{"_type":"Int4WeightOnlyConfig","_data":{"group_size":32}}}"#,
        &[("q._weight_qdata", "I32", &[1, 1, 32, 4]), ("q._weight_scale_and_zero", "BF16", &[1, 8, 2])],
    ),
    (
        "torchao",
        r#""quant_method":"torchao","quant_type":"int4_weight_only""#,
        &[("q._weight_qdata", "I32", &[2, 8]), ("q._weight_scale", "BF16", &[2, 1])],
    ),
    (
        "torchao",
        r#""quant_method":"torchao","quant_type":{"default":{"_type":"FqnToConfig","_data":{"fqn_to_config":{"_default":{"_type":"NVFP4WeightOnlyConfig"}}}}}"#,
        &[("q._weight_qdata", "U8", &[2, 8]), ("q._weight_scale", "F8_E4M3", &[128, 4])],
    ),
    (
        "quanto",
        r#""quant_method":"quanto","weights":"int4""#,
        &[
            ("q.weight._data._data", "U8", &[64, 4]),
            ("q.weight._scale", "BF16", &[4, 1]),
            ("q.weight._shift", "BF16", &[4, 1]),
        ],
    ),
    (
        "quanto",
        r#""quant_method":"quanto","weights":"qint2""#,
        &[
            ("q.weight._data._data", "U8", &[32, 4]),
            ("q.weight._scale", "BF16", &[4, 1]),
            ("q.weight._shift", "BF16", &[4, 1]),
        ],
    ),
    (
        "sparse-24-bitmask",
        r#""quant_method":"compressed-tensors","format":"dense","sparsity_config":{"format":"sparse-24-bitmask"}"#,
        &[("q.bitmask", "U8", &[2, 1]), ("q.compressed", "BF16", &[2, 4]), ("q.shape", "I64", &[2])],
    ),
    (
        "EXL2",
        r#""quant_method":"exl2""#,
        &[("q.q_weight", "I32", &[2, 8]), ("q.q_scale", "I32", &[1, 1]), ("q.q_scale_max", "F16", &[1])],
    ),
    (
        "EXL3",
        r#""quant_method":"exl3""#,
        &[("q.trellis", "I16", &[1, 1, 16]), ("q.suh", "F16", &[8]), ("q.svh", "F16", &[2])],
    ),
    (
        "AQLM",
        r#""quant_method":"aqlm""#,
        &[("q.codes", "I16", &[2, 1, 1]), ("q.codebooks", "F16", &[1, 2, 1, 8]), ("q.scales", "F16", &[2])],
    ),
    ("VPTQ", r#""quant_method":"vptq""#, &[("q.indices", "I32", &[1, 2]), ("q.centroids.weight", "F16", &[1, 8])]),
    (
        "HQQ",
        r#""quant_method":"hqq""#,
        &[("q.W_q", "U8", &[2, 8]), ("q.scale", "BF16", &[2, 1]), ("q.zero", "BF16", &[2, 1])],
    ),
    (
        "Nunchaku",
        r#""quant_method":"svdquant""#,
        &[("q.qweight", "I8", &[2, 8]), ("q.wscales", "BF16", &[1, 2]), ("q.smooth_factor", "BF16", &[16])],
    ),
    ("QuIP", r#""quant_method":"quip""#, &[("q.Qidxs", "I64", &[2, 1]), ("q.SU", "F16", &[8]), ("q.SV", "F16", &[2])]),
    (
        "SpQR",
        r#""quant_method":"spqr""#,
        &[("q.dense_weights", "I64", &[2]), ("q.row_offsets", "I32", &[3]), ("q.col_vals", "I32", &[2])],
    ),
    (
        "FP-Quant",
        r#""quant_method":"fp_quant""#,
        &[("q.qweight", "U8", &[2, 4]), ("q.scales", "U8", &[2, 1]), ("q.forward_hadamard_matrix", "BF16", &[2, 2])],
    ),
    (
        "FourOverSix",
        r#""quant_method":"fouroversix","dtype":"nvfp4""#,
        &[
            ("q.quantized_weight_values", "U8", &[2, 8]),
            ("q.quantized_weight_scale_factors", "F8_E4M3", &[128, 4]),
            ("q.quantized_weight_amax", "F32", &[1]),
        ],
    ),
];

const COMMANDS: [&str; 5] = [
    "cast q --to f16",
    "cast q --to int8",
    "cast q --to f32 --rule *=f32",
    "bitcast q --to float16 --include *norm*",
    "quantize q --scheme fp8",
];

/// A checkpoint `q` of these tensors and two plain ones.
fn checkpoint(config: Option<&str>, tensors: &[Tensor]) -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let plain: [Tensor; 2] = [("norm.weight", "BF16", &[8]), ("m.weight", "BF16", &[8, 8])];
    let tensors = [tensors, &plain].concat();
    let width = |dtype: &str| {
        dtype.trim_end_matches("_E4M3").trim_start_matches(|c: char| c.is_alphabetic()).parse::<u64>().unwrap() / 8
    };
    let bytes = |(_, dtype, shape): &Tensor| vec![0x38; (shape.iter().product::<u64>() * width(dtype)) as usize];
    let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let tensors = tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| (*name, *dtype, *shape, &bytes[..]));
    bench.write("q/model.safetensors", &shard(&tensors.collect::<Vec<_>>()));
    if let Some(config) = config {
        bench.write("q/config.json", config.as_bytes());
    }
    bench
}

#[test]
fn what_tcast_does_not_decode_is_converted_by_no_command_unless_forced() {
    for &(method, block, tensors) in METHODS {
        let config = format!(r#"{{"quantization_config":{{{block}}}}}"#);
        for config in [Some(config), None] {
            let bench = checkpoint(config.as_deref(), tensors);
            let refused = format!("the model is quantized with {method} (");
            let place = if config.is_some() { "q/config.json" } else { "q" };
            for line in COMMANDS.iter().chain(&["dequantize q"]) {
                let outcome = bench.run(&format!("{line} -o out"));
                let is_named =
                    outcome.stderr.starts_with(&format!("tcast: error: {place}")) && outcome.stderr.contains(&refused);
                assert!(
                    outcome.code == Some(1) && outcome.stdout.is_empty() && is_named,
                    "{line}: {config:?}: {outcome:?}"
                );
                assert_eq!(
                    outcome.stderr.contains("--force-codes treats all"),
                    !line.starts_with("deq"),
                    "{outcome:?}"
                );
                assert_eq!(bench.files(), ["q"]);
            }
            for line in COMMANDS {
                let outcome = bench.run(&format!("{line} -o out --force-codes -q -f"));
                assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}: {config:?}");
            }
            let written = fs::read_to_string(bench.path("out/config.json")).unwrap_or_default();
            assert!(!written.contains("\"quantization\"") && !written.contains(block), "{written}");
            // Nothing is cast here.
            bench.run("cast q --to f16 --exclude * -o one.safetensors -q").expect(0, "", "");
            let outcome = bench.run("inspect q");
            assert!(outcome.code == Some(0) && outcome.stdout.contains(&refused), "{outcome:?}");
            let outcome = bench.run("diff q one.safetensors");
            assert!(outcome.code == Some(0) && outcome.stdout.contains("are equal"), "{outcome:?}");
        }
    }
}

#[test]
fn codes_that_two_methods_store_alike_are_refused_with_both_names() {
    let tensors: &[Tensor] = &[("q.W_q", "U8", &[2, 8]), ("q.meta", "U8", &[16])];
    for config in [
        None,
        Some(r#"{"quantization_config":{"quant_method":"sinq"}}"#),
        Some(r#"{"quantization_config":{"quant_method":"hqq"}}"#),
    ] {
        let outcome = checkpoint(config, tensors).run("dequantize q -o out");
        outcome.says(1, "", "quantized");
    }
}

#[test]
fn an_empty_config_says_nothing_of_a_quantization() {
    let bench = checkpoint(Some(r#"{"quantization_config":{}}"#), &[]);
    bench.run("quantize q --scheme fp8 -o out -q").expect(0, "", "");
    let written = fs::read_to_string(bench.path("out/config.json")).unwrap();
    assert_eq!(written.matches("quantization_config").count(), 1, "{written}");
    assert!(written.contains("\"quant_method\": \"compressed-tensors\""), "{written}");
}

#[test]
fn the_quantization_of_the_language_model_of_a_multimodal_one_counts_too() {
    let config = r#"{"text_config":{"quantization_config":{"quant_method":"exl2"}}}"#;
    let outcome = checkpoint(Some(config), &[]).run("cast q --to f16 -o out");
    outcome.says(1, "", "EXL2");
}

#[test]
fn a_config_of_an_unknown_method_is_enough_whatever_the_tensors_are() {
    for config in [
        r#"{"quant_method":"novel"}"#,
        r#"{"x":1}"#,
        "[1]",
        r#"{"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"}"#,
    ] {
        let bench = checkpoint(Some(&format!(r#"{{"quantization_config":{config}}}"#)), &[]);
        for line in COMMANDS {
            let outcome = bench.run(&format!("{line} -o out"));
            let is_named = outcome.stderr.starts_with("tcast: error: q/config.json: ");
            assert!(outcome.code == Some(1) && is_named, "{line}: {config}: {outcome:?}");
        }
        // A file of floats that no index names may have been put there.
        bench.run("cast q/model.safetensors --to f16 -o out.safetensors -q").expect(0, "", "");
    }
}

#[test]
fn plain_models_are_never_refused() {
    for config in [
        r#"{"quantization_config":{}}"#,
        r#"{"quantization_config":null,"quantization":{ }}"#,
        r#"{"quantization":false}"#,
    ] {
        checkpoint(Some(config), &[]).run("cast q --to f16 -o out -q").expect(0, "", "");
    }
    // Names that also occur in plain models.
    let tensors: &[Tensor] = &[
        ("a.weight", "F32", &[2, 2]),
        ("a.scales", "F32", &[2]),
        ("b.indices", "I64", &[2]),
        ("b.codebooks", "F32", &[2]),
        ("c.scale", "F32", &[1]),
        ("c.ids", "U32", &[2]),
        ("d.codes", "I32", &[2]),
        ("d.trellis", "F32", &[2]),
        ("e.B", "F32", &[2, 2]),
        ("e.s", "F32", &[1]),
        ("f.weight", "U32", &[2]),
        ("g.zero", "U8", &[2]),
        ("position_ids", "I64", &[1, 4]),
    ];
    for line in
        ["cast q --to f16 -o out -q", "bitcast q/model.safetensors --to float16 --include m.weight -o b.safetensors -q"]
    {
        checkpoint(None, tensors).run(line).expect(0, "", "");
        checkpoint(Some("{}"), tensors).run(line).expect(0, "", "");
    }
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("cast m --to f16 -o out -q").expect(0, "", "");
    bench.run("quantize m --scheme fp8 -o q -q").expect(0, "", "");
}

#[test]
fn what_amd_quark_stores_in_a_form_that_tcast_does_not_decode_is_refused_by_name() {
    let weight = |fields: &str| format!(r#""global_quant_config":{{"weight":{{{fields}}}}}"#);
    for block in [
        weight(r#""dtype":"int4","qscheme":"per_group","ch_axis":-1"#),
        weight(r#""dtype":"int8","qscheme":"per_group","ch_axis":-1"#),
        weight(r#""dtype":"int8","qscheme":"per_channel","ch_axis":1"#),
        weight(r#""dtype":"fp4","qscheme":"per_group","group_size":16"#),
        weight(r#""dtype":"mx6""#),
        r#""global_quant_config":{"weight":[{}, {}]}"#.to_owned(),
        r#""layer_quant_config":{"*q":{"bias":{"dtype":"int8"}}}"#.to_owned(),
        r#""export":{"weight_format":"fake_quantized"}"#.to_owned(),
    ] {
        let bench = checkpoint(Some(&format!(r#"{{"quantization_config":{{"quant_method":"quark",{block}}}}}"#)), &[]);
        for line in COMMANDS.iter().chain(&["dequantize q"]) {
            bench.run(&format!("{line} -o out")).says(1, "", "AMD");
        }
    }
}

/// A cast to floats leaves integers as they are, but the model would be neither quantized nor cast.
#[test]
fn a_cast_that_would_only_reach_the_tensors_beside_integer_codes_is_refused() {
    let weights: [&[Tensor]; 4] = [
        &[("m.0.experts.down_proj_blocks", "U8", &[2, 8, 1, 16]), ("m.0.experts.down_proj_scales", "U8", &[2, 8, 1])],
        &[("m.0.q.weight_packed", "U8", &[8, 16]), ("m.0.q.weight_scale", "U8", &[8, 1])],
        &[("m.0.q.weight", "U8", &[8, 16]), ("m.0.q.weight_scale", "U8", &[8, 1])],
        &[("m.0.q.weight_packed", "I32", &[8, 4]), ("m.0.q.weight_scale", "F16", &[8, 1])],
    ];
    for tensors in weights {
        let bench = checkpoint(None, tensors);
        let outcome = bench.run("cast q --to f16 -o out");
        let message = format!("tcast: error: q/model.safetensors: tensor '{}': ", tensors[0].0);
        let is_refused = outcome.stderr.starts_with(&message)
            && outcome.stderr.contains("; a cast would change other tensors and leave them\n");
        assert!((outcome.code, &*outcome.stdout) == (Some(1), "") && is_refused, "{outcome:?}");
        assert_eq!(bench.files(), ["q"]);
        // Whoever says so casts the others, or none.
        bench.run("cast q --to f16 -o out -q --exclude m.0.*").expect(0, "", "");
        bench.run("cast q --to f16 -o out -q -f --include norm*").expect(0, "", "");
        bench.run("cast q --to bf16 -o out -q -f --exclude m.0.*").expect(0, "", "");
        bench.run("cast q --to bf16 -o out -q -f --exclude *_scale*").expect(0, "", "");
    }
}

#[test]
fn a_cast_to_the_type_of_the_codes_is_refused() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let outcome = bench.run("cast q --to float8e4m3fn -o out");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    // Other weights would be float8 without scales among those with scales.
    outcome.check_message("--force-codes");
}

#[test]
fn promotion_of_codes_proposes_no_flags_that_it_lacks() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let names = "--tensor model.layers.0.mlp.down_proj.weight --tensor model.embed_tokens.weight";
    bench.run(&format!("promote q {names} -o p")).says(1, "", "corrupt");
}

/// The tensors of all shards of a folder, or of a file: types, shapes and bytes.
fn tensors(path: &Path) -> Vec<(String, String)> {
    let files = if path.is_dir() {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
    } else {
        vec![path.to_owned()]
    };
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "safetensors")) {
        let bytes = fs::read(file).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            found.push((name, format!("{:?} {:?} {:?}", view.dtype(), view.shape(), view.data())));
        }
    }
    found.sort();
    found
}

/// The names of the quantized weights, and whether all can be decoded.
#[cfg(unix)]
fn weights(bench: &Bench, path: &str) -> (Vec<String>, bool) {
    let found: serde_json::Value = serde_json::from_str(&bench.run(&format!("inspect {path} --json")).stdout).unwrap();
    let weights = found["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["layout"].is_string());
    let names = weights.map(|tensor| tensor["name"].as_str().unwrap().to_owned());
    (names.collect(), found["problems"].is_null())
}

/// Pastes what tcast proposes against the refusal of a cast of `q`, and compares.
#[cfg(unix)]
fn paste(bench: &Bench, to: &str, dtype: &str) {
    use assert_cmd::cargo::cargo_bin;
    let is_part = |name: &str| name.contains("proj") || name == "scaled_fp8" || name.starts_with("m.");
    let line = format!("cast q --to {to} -o out");
    let outcome = bench.run(&line);
    let (_, proposed) = outcome.stderr.split_once("leave the quantized weights as they are with ").expect("a proposal");
    let (flags, _) = proposed.split_once(", or cast their codes").expect("the end of the flags");
    let command = format!("{} {line} {flags} -q", cargo_bin!("tcast").display());
    let pasted = std::process::Command::new("sh").args(["-c", &command]).current_dir(bench.path("")).output().unwrap();
    assert!(pasted.status.success() && pasted.stderr.is_empty(), "{command}: {pasted:?}");
    let (before, after) = (tensors(&bench.path("q")), tensors(&bench.path("out")));
    for ((name, old), (_, new)) in before.iter().zip(&after) {
        assert!(if is_part(name) { old == new } else { new.starts_with(dtype) }, "{command}: {name}");
    }
    // The same weights are found in the output, with the same values.
    let (names, is_right) = weights(bench, "q");
    assert_eq!(weights(bench, "out"), (names.clone(), is_right), "{command}");
    if is_right {
        let included = names.join(" --include ");
        let outcome = bench.run(&format!("diff q out -q --include {included}"));
        assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{command}: {outcome:?}");
        assert_eq!(bench.run("dequantize out -o values -n -q").code, Some(0), "{command}");
    }
}

#[cfg(unix)]
#[test]
fn pasting_what_is_proposed_leaves_all_quantized_weights_of_a_checkpoint() {
    for name in ["llama-fp8", "llama-nvfp4a16"] {
        for (to, dtype) in [("float16", "F16 "), ("float32", "F32 ")] {
            paste(&Bench::with_checkpoint(name, "q"), to, dtype);
        }
    }
}

#[cfg(unix)]
#[test]
fn pasting_what_is_proposed_leaves_weights_of_all_libraries() {
    let types = [("float16", "F16 "), ("bfloat16", "BF16 ")];
    let mut pasted = 0;
    for folder in ["quantized", "quantized/libraries"] {
        for entry in fs::read_dir(fixture(folder)).unwrap().map(Result::unwrap) {
            let Some((parts, config)) = fs::read(entry.path()).ok().and_then(|bytes| parts_of(&bytes)) else {
                continue;
            };
            let bench = Bench::new();
            fs::create_dir(bench.path("q")).unwrap();
            bench.write("q/model.safetensors", &parts);
            if config != "null" {
                bench.write("q/config.json", config.as_bytes());
            }
            let (to, dtype) = types[pasted % 2];
            paste(&bench, to, dtype);
            pasted += 1;
        }
    }
    assert!(pasted > 50, "{pasted} fixtures with quantized weights");
}

/// The parts of the weight in a fixture, beside plain tensors, and the config: see `fixtures/README.md`.
#[cfg(unix)]
fn parts_of(file: &[u8]) -> Option<(Vec<u8>, String)> {
    use safetensors::tensor::{Dtype, TensorView};
    let read = SafeTensors::deserialize(file).ok()?;
    let metadata = SafeTensors::read_metadata(file).unwrap().1.metadata().clone().unwrap_or_default();
    let plain = [("model.norm.weight", vec![8]), ("model.a.weight", vec![2, 4]), ("vision.weight", vec![4, 2])];
    let mut tensors: Vec<(String, TensorView)> = Vec::new();
    let bytes = 1.2345_f64.to_le_bytes().repeat(8);
    for (name, shape) in plain {
        tensors.push((name.to_owned(), TensorView::new(Dtype::F64, shape, &bytes).unwrap()));
    }
    for (name, view) in read.tensors() {
        let is_library = metadata.contains_key("config");
        let name = match name.strip_prefix("encoded.") {
            Some("scaled_fp8") => "scaled_fp8".to_owned(),
            Some(part) => format!("model.layers.0.q_proj.{part}"),
            None if is_library && !name.starts_with("decoded.") && name != "input.weight" => name,
            None => continue,
        };
        tensors.push((name, view));
    }
    let config = metadata.get("config").cloned().unwrap_or("null".to_owned());
    (tensors.len() > 3).then(|| (safetensors::serialize(tensors, None).unwrap(), config))
}
