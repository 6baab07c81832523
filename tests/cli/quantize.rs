//! `tcast quantize` through the program: checkpoints, choices of weights, configs and messages. `tests/quant/encode.rs`
//! checks the bytes of every layout.

use crate::common::{Bench, fixture, safetensors};
use ::safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tensor: its dtype, shape and bytes.
pub(crate) type Stored = (String, Vec<usize>, Vec<u8>);

/// All tensors of a folder of shards, or of a file.
pub(crate) fn tensors(path: &Path) -> BTreeMap<String, Stored> {
    let files: Vec<_> = match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => vec![path.to_owned()],
    };
    let mut all = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "safetensors")) {
        let bytes = fs::read(file).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            all.insert(name, (view.dtype().to_string(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    all
}

/// Asserts that two sets of tensors are equal, without printing their bytes.
#[track_caller]
pub(crate) fn assert_same(found: &BTreeMap<String, Stored>, wanted: &BTreeMap<String, Stored>) {
    assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, tensor) in wanted {
        let (dtype, shape, bytes) = &found[name];
        assert_eq!((dtype, shape), (&tensor.0, &tensor.1), "{name}");
        assert!(*bytes == tensor.2, "{name}");
    }
}

pub(crate) fn config(bench: &Bench, folder: &str) -> Value {
    serde_json::from_slice(&bench.read(&format!("{folder}/config.json"))).unwrap()
}

/// A file of bfloat16 tensors, each with small numbers that differ.
pub(crate) fn model(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (at, (name, shape)) in tensors.iter().enumerate() {
        let (start, count) = (data.len(), shape.iter().product::<u64>());
        let value = |element: u64| {
            0x3c00 + ((element * 37 + at as u64 * 11) % 600) as u16 + u16::from(element.is_multiple_of(3)) * 0x8000
        };
        data.extend((0..count).flat_map(|element| value(element).to_le_bytes()));
        entries
            .push(format!(r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{start},{}]}}"#, data.len()));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// A folder `m` with a file of these tensors, and a config.json.
pub(crate) fn bench_with(tensors: &[(&str, &[u64])], config: &str) -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/model.safetensors", &model(tensors));
    bench.write("m/config.json", config.as_bytes());
    bench
}

#[test]
fn a_checkpoint_becomes_the_one_that_llmcompressor_writes() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    let outcome = bench.run("quantize m --scheme NVFP4A16 -o out");
    outcome.says(0, "", "nvfp4");
    outcome.check_message("SQNR");
    assert_same(&tensors(&bench.path("out")), &tensors(&fixture("checkpoints/llama-nvfp4a16")));
    let found = config(&bench, "out");
    let wanted: Value =
        serde_json::from_slice(&fs::read(fixture("checkpoints/llama-nvfp4a16/config.json")).unwrap()).unwrap();
    assert_eq!(found, wanted);
    let index: Value = serde_json::from_slice(&bench.read("out/model.safetensors.index.json")).unwrap();
    assert_eq!(index["weight_map"].as_object().unwrap().len(), 49);
    // Every decoded value equals the one in the checkpoint that the library wrote.
    let library = fixture("checkpoints/llama-nvfp4a16");
    let outcome = bench.run_args(&["diff", "out", library.to_str().unwrap()]);
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), "21 tensors are equal\n"), "{outcome:?}");
}

#[test]
fn what_was_decoded_becomes_the_codes_and_scales_of_transformers_again() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.run("dequantize q -q -o plain").expect(0, "", "");
    bench.run("quantize plain --scheme fp8-block -q -o out").expect(0, "", "");
    assert_same(&tensors(&bench.path("out")), &tensors(&fixture("checkpoints/llama-fp8")));
    let block = &config(&bench, "out")["quantization_config"];
    assert_eq!(block["modules_to_not_convert"], json!(["lm_head", "model.embed_tokens"]));
}

#[test]
fn the_command_that_continues_contains_no_defaults() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let line = "quantize m --scheme int4 --layout compressed-tensors --rule *.o_proj.*=keep -o out";
    bench.run(&format!("{line} -q --part 1/3")).expect(0, "", "");
    bench.run("inspect out").says(1, "", "unfinished");
}

#[test]
fn threads_parts_and_a_second_run_change_no_byte() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for scheme in ["fp8", "nvfp4", "int4-asym", "fp8-tensor"] {
        bench.run(&format!("quantize m --scheme {scheme} -q -j1 -o one-{scheme}")).expect(0, "", "");
        bench.run(&format!("quantize m --scheme {scheme} -q -j4 -o four-{scheme}")).expect(0, "", "");
        for part in ["2/3", "3/3", "1/3"] {
            bench.run(&format!("quantize m --scheme {scheme} -q -o parts-{scheme} --part {part}")).expect(0, "", "");
        }
        bench.run(&format!("quantize --finish parts-{scheme} -q")).expect(0, "", "");
        // Running the same command again with --resume finds the finished output.
        bench.run(&format!("quantize m --scheme {scheme} -q -o one-{scheme} --resume")).expect(0, "", "");
        let one = bench.path(&format!("one-{scheme}"));
        for entry in fs::read_dir(&one).unwrap() {
            let name = entry.unwrap().file_name();
            let read = |folder: &str| fs::read(bench.path(&format!("{folder}-{scheme}")).join(&name)).unwrap();
            assert!(read("one") == read("four") && read("one") == read("parts"), "{scheme}: {name:?}");
        }
    }
}

#[test]
fn each_layout_can_be_decoded_again() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    for (scheme, layout, least) in [
        ("fp8", "compressed-tensors", 30.0),
        ("fp8", "modelopt", 30.0),
        ("fp8", "comfyui", 29.0),
        ("fp8-tensor", "compressed-tensors", 29.0),
        ("fp8-block", "huggingface", 30.0),
        ("fp8-block", "modelopt", 30.0),
        ("fp8-block-ue8m0", "huggingface", 30.0),
        ("int8", "compressed-tensors", 35.0),
        ("int8", "comfyui", 35.0),
        ("int8a16", "compressed-tensors", 35.0),
        ("int4", "compressed-tensors", 12.0),
        ("int4-asym", "compressed-tensors", 14.0),
        ("nvfp4", "modelopt", 19.0),
        ("nvfp4", "comfyui", 19.0),
        ("mxfp4", "compressed-tensors", 16.0),
        ("mxfp4", "modelopt", 15.0),
        ("mxfp6", "compressed-tensors", 28.0),
        ("mxfp8", "compressed-tensors", 30.0),
        ("mxfp8", "modelopt", 30.0),
        ("mxfp8", "mxfp8", 30.0),
        ("mxfp8", "comfyui", 30.0),
    ] {
        let (out, back) = (format!("{scheme}-{layout}"), format!("{scheme}-{layout}-back"));
        let outcome = bench.run(&format!("quantize m --scheme {scheme} --layout {layout} -o {out} --json -q"));
        assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{out}");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        bench.run(&format!("dequantize {out} -q -o {back}")).expect(0, "", "");
        let outcome = bench.run(&format!("diff m {back} --json"));
        let diff: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let mut seen = 0;
        for tensor in report["tensors"].as_array().unwrap() {
            let Some(told) = tensor["quantized"]["sqnr_db"].as_f64() else { continue };
            let same = |other: &&Value| other["name"] == tensor["name"];
            let measured =
                diff["tensors"].as_array().unwrap().iter().find(same).unwrap()["figures"]["sqnr_db"].as_f64().unwrap();
            // Decoding also rounds to bfloat16.
            assert!((told - measured).abs() < 0.2, "{out} {}: {told} {measured}", tensor["name"]);
            assert!(told > least, "{out} {}: {told}", tensor["name"]);
            seen += 1;
        }
        assert_eq!(seen, if scheme.starts_with("fp8-block") { 8 } else { 14 }, "{out}");
    }
}

#[test]
fn patterns_and_rules_choose_and_the_config_names_each_group() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    let line =
        "quantize m --scheme fp8 --exclude *.o_proj.weight --rule *.mlp.*=nvfp4 --rule lm_head.weight=fp8 -q -o out";
    bench.run(line).expect(0, "", "");
    let found = tensors(&bench.path("out"));
    assert_eq!(found["model.layers.0.self_attn.o_proj.weight"].0, "BF16");
    assert_eq!(found["model.layers.0.self_attn.q_proj.weight"].0, "F8_E4M3");
    assert_eq!(found["model.layers.1.mlp.up_proj.weight_packed"].0, "U8");
    assert_eq!(found["lm_head.weight_scale"].1, [256, 1]);
    let block = &config(&bench, "out")["quantization_config"];
    assert_eq!(block["format"], "mixed-precision");
    let targets = |group: &str| block["config_groups"][group]["targets"].as_array().unwrap().len();
    assert_eq!([targets("group_0"), targets("group_1")], [6, 7]);
    let kept = ["model.embed_tokens", "model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"];
    assert_eq!(block["ignore"], json!(kept));
    bench.run("dequantize out -q -o back").expect(0, "", "");
}

#[test]
fn a_note_says_what_transformers_makes_of_experts() {
    let names = ["gate_proj", "up_proj", "down_proj"].map(|own| format!("model.layers.0.mlp.experts.0.{own}.weight"));
    let weights = names.each_ref().map(|name| (&**name, &[128, 128][..]));
    let bench = bench_with(&weights, r#"{"model_type": "qwen3_moe"}"#);
    for (flags, note) in [
        ("nvfp4", "loads nvfp4 of 'qwen3_moe' without an error, and computes wrong results; it loads --scheme fp8"),
        (
            "fp8-block --layout compressed-tensors",
            "does not load fp8-block of 'qwen3_moe'; it loads --layout huggingface",
        ),
        ("int8", "does not load int8 of 'qwen3_moe'; it loads --scheme fp8"),
        ("mxfp8 --layout compressed-tensors", "does not load mxfp8 of 'qwen3_moe'; it loads --layout mxfp8"),
        ("fp8", ""),
        ("fp8-block --layout huggingface", ""),
    ] {
        let outcome = bench.run(&format!("quantize m --scheme {flags} -o {}", &flags[..3]));
        let line = format!("tcast: note: transformers 5.24 {note}\n");
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        let is_right =
            if note.is_empty() { !outcome.stderr.contains("transformers") } else { outcome.stderr.contains(&line) };
        assert!(is_right, "{flags}: {outcome:?}");
        fs::remove_dir_all(bench.path(&flags[..3])).unwrap();
    }
}

#[test]
fn banks_of_experts_become_matrices_and_share_what_engines_fuse() {
    const EXPERTS: &str = r#"{"model_type": "qwen3_5_moe", "hidden_size": 64, "moe_intermediate_size": 48}"#;
    let bank: &[(&str, &[u64])] = &[
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 96, 64]),
        ("model.layers.0.mlp.experts.down_proj", &[2, 64, 48]),
        ("model.layers.0.mlp.gate.weight", &[2, 64]),
    ];
    let bench = bench_with(bank, EXPERTS);
    bench.run("quantize m --scheme nvfp4 -q -o out").expect(0, "", "");
    let (before, found) = (tensors(&bench.path("m")), tensors(&bench.path("out")));
    assert_eq!(found.len(), 6 * 3 + 1);
    let global = |module: &str| &found[&format!("model.layers.0.mlp.experts.{module}.weight_global_scale")].2;
    assert_eq!(global("0.gate_proj"), global("0.up_proj"));
    assert_eq!(found["model.layers.0.mlp.experts.1.up_proj.weight_packed"].1, [48, 32]);
    assert_eq!(found["model.layers.0.mlp.gate.weight"], before["model.layers.0.mlp.gate.weight"]);
    // Each expert has the same bytes as if it were stored alone.
    let rows = |name: &str, first: usize, shape: [u64; 2]| {
        let bytes = &before[name].2[first * shape[1] as usize * 2..][..(shape[0] * shape[1] * 2) as usize];
        let header =
            format!(r#"{{"w.weight":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[0,{}]}}}}"#, bytes.len());
        safetensors(&header, bytes)
    };
    bench.write("alone.safetensors", &rows("model.layers.0.mlp.experts.down_proj", 64, [64, 48]));
    bench.run("quantize alone.safetensors --scheme nvfp4 -q -o one.safetensors").expect(0, "", "");
    let alone = tensors(&bench.path("one.safetensors"));
    for part in ["weight_packed", "weight_scale", "weight_global_scale"] {
        let expert = &found[&format!("model.layers.0.mlp.experts.1.down_proj.{part}")];
        assert_eq!(expert, &alone[&format!("w.{part}")], "{part}");
    }
    // A bank whose orientation nothing proves is refused, but can be kept.
    bench.write("m/config.json", b"{}");
    bench.run("quantize m --scheme nvfp4 -q -o none").says(1, "", "hidden_size");
    assert!(!bench.path("none").exists());
}

#[test]
fn a_shape_that_does_not_fit_is_kept_and_so_is_what_is_fused_with_it() {
    let tensors: &[(&str, &[u64])] = &[
        ("a.mlp.gate_proj.weight", &[8, 128]),
        ("a.mlp.up_proj.weight", &[8, 100]),
        ("a.mlp.down_proj.weight", &[8, 128]),
    ];
    let bench = bench_with(tensors, "{}");
    bench.run("quantize m --scheme int4 -o out").says(0, "", "a.mlp.up_proj.weight");
    assert_eq!(
        config(&bench, "out")["quantization_config"]["ignore"],
        json!(["a.mlp.gate_proj", "a.mlp.up_proj", "lm_head"])
    );
    // An explicit request that cannot be met is an error.
    let refused = |line: &str, code: i32, message: &str| {
        bench.run(&format!("{line} -o none")).says(code, "", message);
        assert!(!bench.path("none").exists(), "{line}");
    };
    refused(
        "quantize m --scheme int4 --rule *.up_proj.weight=int4",
        1,
        "a rule quantizes it to int4, and its rows of 100",
    );
    refused(
        "quantize m --scheme fp8 --exclude *.up_proj.weight",
        1,
        "engines fuse a.mlp.gate_proj.weight, a.mlp.up_proj.weight",
    );
}

#[test]
fn the_remedy_for_weights_that_engines_fuse_spares_other_layers() {
    let name = |part| (0..3).map(move |layer| format!("l.{layer}.{part}_proj.weight"));
    let names: Vec<String> = ["q", "k", "v", "o"].into_iter().flat_map(name).collect();
    let shapes: Vec<(&str, &[u64])> = names.iter().map(|name| (&**name, &[32, 64][..])).collect();
    let bench = bench_with(&shapes, "{}");
    for layer in ["1", "*"] {
        let line = format!("quantize m --scheme int8 -o out -f --rule l.{layer}.q_proj.weight=keep");
        let outcome = bench.run(&line);
        let remedy = format!("--exclude 'l.{layer}.k_proj.weight' --exclude 'l.{layer}.v_proj.weight'");
        assert!(outcome.code == Some(1) && outcome.stderr.ends_with(&format!("{remedy}\n")), "{outcome:?}");
        let outcome = bench.run(&format!("{line} {}", remedy.replace('\'', "")));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}

#[test]
fn values_that_are_no_numbers_are_named_and_nothing_is_written() {
    for scheme in ["fp8", "nvfp4", "mxfp4"] {
        let bench = bench_with(&[("a.q_proj.weight", &[4, 64]), ("a.k_proj.weight", &[4, 64])], "{}");
        let mut bytes = bench.read("m/model.safetensors");
        let end = bytes.len();
        bytes[end - 2..].copy_from_slice(&0x7fc0_u16.to_le_bytes());
        bench.write("m/model.safetensors", &bytes);
        for threads in [1, 3] {
            let outcome = bench.run(&format!("quantize m --scheme {scheme} -o out -j{threads}"));
            assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
            outcome.check_message("a.k_proj.weight");
            assert!(!bench.path("out/config.json").exists());
            // The remedy names the weights that engines fuse with it too.
        }
    }
}

#[test]
fn threads_scan_each_tensor_before_they_encode_it_and_none_waits_for_a_scan_that_failed() {
    let shape: &[u64] = &[1024, 1024];
    let bench = bench_with(&[("a.o_proj.weight", shape), ("b.o_proj.weight", shape), ("c.o_proj.weight", shape)], "{}");
    let quantize = |threads: u32| bench.run(&format!("quantize m --scheme nvfp4 -q -f -o out -j{threads}"));
    assert_eq!(quantize(1).code, Some(0));
    let alone = tensors(&bench.path("out"));
    for threads in [2, 4] {
        assert_eq!(quantize(threads).code, Some(0));
        assert_same(&tensors(&bench.path("out")), &alone);
    }
    let mut bytes = bench.read("m/model.safetensors");
    let middle = bytes.len() / 4 * 2; // within the second tensor
    bytes[middle..middle + 2].copy_from_slice(&[0xff, 0xff]);
    bench.write("m/model.safetensors", &bytes);
    for threads in [1, 2, 4] {
        let outcome = quantize(threads);
        outcome.says(1, "", "b.o_proj.weight");
        assert_same(&tensors(&bench.path("out")), &alone);
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.add_checkpoint("llama-tiny-bf16", "m");
    let refused = |line: &str, code: i32, messages: &[&str]| {
        let outcome = bench.run(&format!("{line} -o out"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(code), ""), "{line}: {outcome:?}");
        for message in messages {
            outcome.check_message(message);
        }
        assert!(!bench.path("out").exists(), "{line}");
    };
    for line in ["fp8-block-ue8m0 --rule *=int4", "int4 --rule *=fp8-block-ue8m0"] {
        refused(&format!("quantize m --scheme {line}"), 2, &["choose other schemes: no layout has all of "]);
    }
    refused("quantize m --scheme nvfp4 --layout huggingface", 2, &["has no scheme nvfp4", "--layout modelopt"]);
    let measured = ["measured while the model runs", "add --input-global-scale VALUE"];
    refused("quantize m --scheme nvfp4 --activations", 2, &measured);
    refused("quantize m --scheme fp8 --activations --input-global-scale 2", 2, &["--input-global-scale has no effect"]);
    refused("quantize m --scheme nvfp4 --input-global-scale 0", 2, &["not a positive float32"]);
    refused("quantize m --scheme fp8 --group-size 32", 2, &["--group-size has no effect"]);
    refused("quantize m --scheme fp8 --search mse", 2, &["--search mse has no effect"]);
    refused("quantize m --scheme fp8 --from e4m3", 2, &["--from has no effect"]);
    refused("quantize m --scheme fp8 --include nothing", 2, &["--include 'nothing' matches no tensor"]);
    refused("quantize m --scheme fp8 --rule nothing=int8", 2, &["--rule 'nothing=int8' matches no tensor"]);
    refused("quantize m --scheme fp8 --include *norm*", 1, &["no weight would be quantized"]);
    refused("quantize m --scheme mxfp4 --layout gpt-oss", 1, &["no weight would be quantized", "not experts"]);
    refused("quantize m --scheme fp9", 2, &["invalid value 'fp9'"]);
    refused("quantize m --scheme fp8 --partial-blocks", 2, &["--partial-blocks has no effect"]);
    refused("quantize m --scheme fp8 --min-sqnr nan", 2, &["not a number of decibels"]);
    // In different shards.
    let scale = "model.norm.weight=model.layers.0.mlp.down_proj.weight_scale";
    refused(
        &format!("quantize m --scheme fp8 --rename {scale}"),
        1,
        &["has the name of a part of 'model.layers.0.mlp.down_proj.weight', which is quantized"],
    );
}

/// Readers take the parts of weights by their names, and look at all that config.json says.
#[test]
fn what_would_make_the_output_unreadable_is_refused_with_what_helps() {
    let (matrix, scale): (&[u64], _) = (&[128, 128], "model.embed_tokens.weight_scale");
    let weights = [("model.embed_tokens.weight", matrix), ("model.layers.0.self_attn.q_proj.weight", matrix)];
    let bench = bench_with(&[&weights[..], &[(scale, &[128, 1])]].concat(), "{}");
    let rename = format!("--rename {scale}={scale}.kept");
    for how in ["fp8", "int4 --dry-run", "nvfp4 --layout modelopt", "fp8 --layout comfyui", "mxfp8 -o out.safetensors"]
    {
        bench.run(&format!("quantize m --scheme {how}")).says(1, "", "--rename");
        assert_eq!(bench.files(), ["m"], "{how}");
    }
    bench.run(&format!("quantize m --scheme fp8 {rename} -o out -q")).expect(0, "", "");
    bench.run("dequantize out -o plain -q").expect(0, "", "");
    assert!(tensors(&bench.path("plain")).contains_key(&format!("{scale}.kept")));
    let bench = bench_with(&[&weights[..], &[("scale", &[128, 1])]].concat(), r#"{"expert_dtype": 9}"#);
    bench.run(&format!("quantize m --scheme fp8 --rename scale={scale}")).says(1, "", "another");
    bench.run("quantize m --scheme fp8-block").says(1, "", "expert_dtype");
    bench.run("quantize m --scheme fp8 -o out -q").expect(0, "", ""); // a config that no reader looks at
    bench.run("dequantize out -o plain -q").expect(0, "", "");
}

#[test]
fn a_given_scale_of_activations_is_stored_beside_each_weight() {
    let bench = bench_with(&[("a.q_proj.weight", &[16, 64])], "{}");
    for (layout, name, stored, shape) in [
        ("compressed-tensors", "a.q_proj.input_global_scale", 384.0_f32, &[1][..]),
        ("modelopt", "a.q_proj.input_scale", 1.0 / 384.0, &[]),
        ("comfyui", "a.q_proj.input_scale", 1.0 / 384.0, &[]),
    ] {
        let line =
            format!("quantize m --scheme nvfp4 --layout {layout} --activations --input-global-scale 384 -o {layout}");
        let outcome = bench.run(&line);
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        let found = tensors(&bench.path(layout));
        assert_eq!(found[name], ("F32".to_owned(), shape.to_vec(), stored.to_le_bytes().to_vec()), "{layout}");
    }
    let group = &config(&bench, "compressed-tensors")["quantization_config"]["config_groups"]["NVFP4"];
    assert_eq!(group["input_activations"]["dynamic"], "local");
    assert_eq!(config(&bench, "modelopt")["quantization_config"]["quant_algo"], "NVFP4");
    // Whatever its digits are, the record of the conversion has the same number.
    bench.run("quantize m --scheme nvfp4 --input-global-scale 13.4 -q -o digits").expect(0, "", "");
    // Without them, the weights are the same.
    bench.run("quantize m --scheme nvfp4 -q -o plain").expect(0, "", "");
    let (mut with, without) = (tensors(&bench.path("compressed-tensors")), tensors(&bench.path("plain")));
    with.remove("a.q_proj.input_global_scale");
    assert_same(&with, &without);
}

#[test]
fn banks_of_gpt_oss_are_transposed_and_stay_banks() {
    let names = ["gate_up_proj", "down_proj"].map(|own| format!("model.layers.0.mlp.experts.{own}"));
    let tensors: &[(&str, &[u64])] = &[
        (&names[0], &[3, 64, 160]),
        (&names[1], &[3, 96, 64]),
        ("model.layers.0.mlp.router.weight", &[3, 64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("lm_head.weight", &[32, 64]),
    ];
    let bench = bench_with(tensors, r#"{"model_type": "gpt_oss", "hidden_size": 64}"#);
    bench.run("quantize m --scheme mxfp4 --layout gpt-oss -o out").says(0, "", "mxfp4");
    let stored = self::tensors(&bench.path("out"));
    let shape = |name: String| (&*stored[&name].0, &*stored[&name].1);
    assert_eq!(shape(format!("{}_blocks", names[0])), ("U8", &[3, 160, 2, 16][..]));
    assert_eq!(shape(format!("{}_scales", names[0])), ("U8", &[3, 160, 2][..]));
    assert_eq!(shape(format!("{}_blocks", names[1])), ("U8", &[3, 64, 3, 16][..]));
    let kept = ["lm_head", "model.layers.*.mlp.router", "model.layers.*.self_attn"];
    let block = json!({ "quant_method": "mxfp4", "modules_to_not_convert": kept });
    assert_eq!(config(&bench, "out")["quantization_config"], block);
    // What is decoded has the shape of the model, and the same codes.
    bench.run("dequantize out -q -o plain").expect(0, "", "");
    assert_eq!(self::tensors(&bench.path("plain"))[&names[0]].1, [3, 64, 160]);
    bench.run("quantize plain --scheme mxfp4 --layout gpt-oss -q -o again").expect(0, "", "");
    assert_same(&self::tensors(&bench.path("again")), &stored);
    // Other layouts have a matrix for each expert, without the alternation of gate and up.
    bench.run("quantize out --layout compressed-tensors --only-exact -q -o split").expect(0, "", "");
    let split = self::tensors(&bench.path("split"));
    let codes = |name: &str, rows: &[usize], width: usize| -> Vec<u8> {
        rows.iter().flat_map(|row| stored[name].2[row * width..(row + 1) * width].to_vec()).collect()
    };
    let up: Vec<usize> = (0..80).map(|row| 160 + 2 * row + 1).collect();
    let blocks = format!("{}_blocks", names[0]);
    assert_eq!(split["model.layers.0.mlp.experts.1.up_proj.weight_packed"].2, codes(&blocks, &up, 32));
    // Nothing proves that banks of another model are transposed.
    bench.write("m/config.json", b"{}");
    bench.run("quantize m --scheme mxfp4 --layout gpt-oss -o none").says(1, "", "models");
}

#[test]
fn experts_without_elements_are_refused_however_many_there_are() {
    let bench = bench_with(&[], r#"{"hidden_size": 64, "moe_intermediate_size": 0}"#);
    let shape = [1_u64 << 44, 0, 64];
    let header = format!(r#"{{"a.experts.gate_up_proj":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[0,0]}}}}"#);
    bench.write("m/model.safetensors", &safetensors(&header, &[]));
    bench.run("quantize m --scheme fp8 -o out").says(1, "", "elements");
}

#[test]
fn values_far_below_their_scale_are_noise() {
    let bench = bench_with(&[], "{}");
    let header = r#"{"a.weight":{"dtype":"F32","shape":[16,16],"data_offsets":[0,1024]}}"#;
    bench.write("m/model.safetensors", &safetensors(header, &1e-38_f32.to_le_bytes().repeat(256)));
    let outcome = bench.run("quantize m --scheme nvfp4 -o out --json -q");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let figures = &report["tensors"][0]["quantized"];
    assert_eq!((&figures["is_exact"], &figures["sqnr_db"]), (&json!(false), &json!(0.0)), "{report}");
}

#[test]
fn what_described_the_old_or_the_plain_checkpoint_does_not_stay() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.write("m/hf_quant_config.json", b"{}");
    bench.run("quantize m --scheme nvfp4 --layout modelopt -o out -q").expect(0, "", "");
    bench.run("quantize m --scheme fp8 -o out -q -f").says(1, "", "checkpoint");
    bench.run("quantize m --scheme fp8 -o new -q").expect(0, "", "");
    assert!(!bench.path("new/hf_quant_config.json").exists());
}

#[test]
fn too_much_noise_is_refused_and_the_weights_are_named() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme nvfp4 -o out --min-sqnr 25").says(3, "", "model.layers.0.mlp.down_proj.weight");
    assert!(!bench.path("out/config.json").exists());
    bench
        .run("quantize m --scheme nvfp4 -o other --min-sqnr 10 --fail-on clipped --fail-on underflowed -q")
        .expect(0, "", "");
}

#[test]
fn searched_scales_have_less_noise() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    for (scheme, gain) in [("nvfp4", 0.2), ("mxfp4", 0.02), ("int4 --group-size 32", 0.05), ("int4-asym", 0.05)] {
        let noise = |search: &str| {
            let outcome = bench.run(&format!("quantize m --scheme {scheme} {search} -o out --force --json -q"));
            assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{scheme} {search}");
            let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
            let all = report["tensors"].as_array().unwrap().clone();
            all.iter().filter_map(|tensor| tensor["quantized"]["sqnr_db"].as_f64()).collect::<Vec<_>>()
        };
        let (plain, searched) = (noise(""), noise("--search mse"));
        for (plain, searched) in plain.iter().zip(&searched) {
            assert!(searched >= plain, "{scheme}: {searched} {plain}");
        }
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        assert!(mean(&searched) > mean(&plain) + gain, "{scheme}: {} {}", mean(&searched), mean(&plain));
    }
}

#[test]
fn a_file_without_a_config_gets_its_block_in_the_report() {
    let bench = Bench::new();
    bench.write("w.safetensors", &model(&[("a.q_proj.weight", &[8, 128]), ("a.norm.weight", &[128])]));
    let outcome = bench.run("quantize w.safetensors --scheme fp8 --json");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["quantization_config"]["config_groups"]["FP8_DYNAMIC"]["format"], "float-quantized");
    let weight = &report["tensors"][0];
    assert_eq!((&weight["name"], &weight["cast"]), (&json!("a.q_proj.weight"), &json!(true)));
    let quantized = &weight["quantized"];
    assert_eq!((&quantized["scheme"], &quantized["layout"]), (&json!("fp8"), &json!("ct-fp8")));
    assert_eq!(quantized["parts"][1], json!({"name": "a.q_proj.weight_scale", "dtype": "bfloat16", "shape": [8, 1]}));
    assert_eq!(quantized["bits_per_weight"], 8.125);
    assert_eq!(report["tensors"][1]["kept"], "norm");
    outcome.check_message("quantization_config");
    assert_eq!(tensors(&bench.path("w.fp8.safetensors")).len(), 3);
}

#[test]
fn hashes_of_all_parts_are_in_the_report_and_the_page_has_the_noise() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme nvfp4 --hash --report r.json -q -o out").expect(0, "", "");
    bench.run("diff --report r.json out").expect(0, "94 tensors are as the report says\n", "");
    bench.run("quantize m --scheme nvfp4 --report r.html -q -o other").expect(0, "", "");
    let page = String::from_utf8(bench.read("r.html")).unwrap();
    for text in ["bfloat16 → nvfp4", "per weight", "4.50"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn a_dry_run_says_what_would_become_of_each_tensor() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let outcome = bench.run("quantize m --scheme mxfp4 --dry-run");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("bfloat16 -> mxfp4"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("bfloat16 kept: embeddings"), "{}", outcome.stdout);
    outcome.check_message("mxfp4");
    assert_eq!(bench.files(), ["m"]);
}

#[test]
fn integers_of_every_width_have_the_config_of_their_preset() {
    let bench = Bench::with_checkpoint("llama-nvfp4a16-source", "m");
    for (scheme, option, bits) in [
        ("int2", "--group-size 32", 2),
        ("W3A16", "--group-size channel", 3),
        ("int5-asym", "--group-size 64", 5),
        ("int6", "--group-size CHANNEL", 6),
        ("int7-asym", "--group-size channel", 7),
        ("int8-asym", "--group-size 32", 8),
    ] {
        let outcome = bench.run(&format!("quantize m --scheme {scheme} {option} -o q -f"));
        assert_eq!(outcome.code, Some(0), "{scheme}: {}", outcome.stderr);
        let note = "vLLM runs integers of 2, 3, 5, 6 and 7 bits only with its humming kernels";
        assert_eq!(outcome.stderr.contains(note), bits != 8, "{scheme}");
        let config: Value = serde_json::from_str(&fs::read_to_string(bench.path("q/config.json")).unwrap()).unwrap();
        let group = &config["quantization_config"]["config_groups"]["config_group_0"];
        let weights = &group["weights"];
        let size = option.rsplit(' ').next().unwrap().parse::<u64>().ok();
        assert_eq!((&group["format"], &group["input_activations"]), (&"pack-quantized".into(), &Value::Null));
        assert_eq!((&weights["num_bits"], &weights["type"]), (&bits.into(), &"int".into()), "{scheme}");
        let strategy = if size.is_some() { "group" } else { "channel" };
        assert_eq!((&weights["group_size"], &weights["strategy"]), (&size.into(), &strategy.into()), "{scheme}");
        assert_eq!(weights["symmetric"], !scheme.ends_with("-asym"), "{scheme}");
        bench.run("dequantize q -o back -f -q").expect(0, "", "");
        let diff: Value = serde_json::from_str(&bench.run("diff m back --json").stdout).unwrap();
        let sqnr = diff["tensors"].as_array().unwrap().iter().filter_map(|it| it["figures"]["sqnr_db"].as_f64());
        let least = sqnr.fold(f64::INFINITY, f64::min);
        assert!(least > 6.0 * f64::from(bits) - 13.0, "{scheme}: {least}");
    }
    bench.run("quantize m --scheme int4 --group-size row -o q -f").says(2, "", "65536");
}
