//! The choice of the tensors that an output has, and new names by patterns.

use super::quantize::{bench_with, tensors};
use crate::common::{Bench, fixture};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Copies a folder of files.
fn copied(bench: &Bench, from: &Path, name: &str) {
    fs::create_dir(bench.path(name)).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), bench.path(name).join(entry.file_name())).unwrap();
    }
}

/// The files of a folder with their bytes.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap()))
        .collect();
    all.sort();
    all
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn names_in(folder: &Path) -> Vec<String> {
    tensors(folder).into_keys().collect()
}

fn run(bench: &Bench, line: &str) {
    bench.run(&format!("{line} -q")).expect(0, "", "");
}

fn refused(bench: &Bench, line: &str, code: i32, error: &str) {
    bench.run(line).expect(code, "", &format!("tcast: error: {error}\n"));
}

/// Folders of quantized and plain checkpoints, and files of all formats.
fn fixtures() -> Vec<PathBuf> {
    let folders =
        ["checkpoints/llama-fp8", "checkpoints/llama-nvfp4a16", "checkpoints/llama-tiny-bf16", "mlx/checkpoint"];
    let files = ["model.safetensors", "gguf/tiny.gguf", "pytorch/state_dict.zip.pt", "corpus/npz/deflated.npz"];
    folders.iter().chain(&files).map(|name| fixture(name)).collect()
}

#[test]
fn shards_that_become_empty_vanish_and_the_others_are_numbered_anew() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    run(&bench, "cast m --drop model.layers.* -o two");
    let index = json(&bench.path("two/model.safetensors.index.json"));
    assert_eq!(index["metadata"]["total_size"], (1024 * 128 + 128) * 2);
    assert_eq!(index["weight_map"]["model.norm.weight"], "model-00002-of-00002.safetensors");
    assert_eq!(names_in(&bench.path("two")), ["model.embed_tokens.weight", "model.norm.weight"]);
    run(&bench, "cast m --only model.norm.* -o one");
    let files: Vec<String> = contents(&bench.path("one")).into_iter().map(|(name, _)| name).collect();
    assert!(files.contains(&"model.safetensors".to_owned()) && !files.iter().any(|name| name.contains("index")));
    assert_eq!(names_in(&bench.path("one")), ["model.norm.weight"]);
}

#[test]
fn only_applies_before_drop_and_the_report_names_what_is_left_out() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let line = "cast m --to f16 --only *norm* --drop *layers* -n --json";
    let report: Value = serde_json::from_str(&bench.run(line).stdout).unwrap();
    assert_eq!(report["tensors"][0]["name"], "model.norm.weight");
    assert_eq!(report["tensors"].as_array().unwrap().len(), 1);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 37);
    assert_eq!(report["options"]["drop"], serde_json::json!(["*layers*"]));
    let outcome = bench.run("cast m --only *norm* -o out");
    assert!(outcome.stderr.starts_with("cast no tensor, copied 9, left out 29, such as model.embed_tokens.weight\n"));
}

#[test]
fn a_pattern_without_a_match_and_an_empty_output_are_errors() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let similar = "similar: model.norm.weight, model.embed_tokens.weight; --allow-unmatched accepts it";
    refused(
        &bench,
        "cast m --drop model.nrom.weight -o o",
        2,
        &format!("m: the pattern 'model.nrom.weight' matches no tensor\n  {similar}"),
    );
    let others = "there are model.embed_tokens.weight, model.layers.0.input_layernorm.weight, \
                  model.layers.0.mlp.down_proj.weight and 35 more; --allow-unmatched accepts it";
    refused(
        &bench,
        "cast m --only nothing.* -o o",
        2,
        &format!("m: the pattern 'nothing.*' matches no tensor\n  {others}"),
    );
    refused(&bench, "cast m --drop * -o o", 2, "m: no tensor would be left\n  leave --drop out");
    refused(&bench, "cast m --only x --allow-unmatched -o o", 2, "m: no tensor would be left\n  leave --only out");
    let outcome = bench.run("cast m --drop x --allow-unmatched -o o");
    assert_eq!(
        (outcome.code, outcome.stderr.lines().next()),
        (Some(0), Some("tcast: warning: the pattern 'x' matches no tensor"))
    );
    // As with other patterns, it is enough that a tensor of one input matches.
    fs::copy(fixture("model.safetensors"), bench.path("a.safetensors")).unwrap();
    run(
        &bench,
        "cast m a.safetensors --to f16 --drop lm_head* --drop model.embed_tokens.* --allow-unmatched -o several",
    );
}

#[test]
fn a_quantized_weight_moves_as_a_whole_and_lists_lose_it() {
    let bench = Bench::with_checkpoint("llama-fp8", "m");
    let error = "m: tensor 'model.layers.0.mlp.down_proj.weight': a quantized weight moves as a whole: the patterns keep \
                 model.layers.0.mlp.down_proj.weight, and leave out model.layers.0.mlp.down_proj.weight_scale_inv\n  \
                 choose the weight by its own name";
    refused(&bench, "cast m --drop *.weight_scale_inv -o o", 2, error);
    run(&bench, "cast m --drop *layers.0.*.weight --drop lm_head.weight -o half");
    let names = names_in(&bench.path("half"));
    assert!(!names.iter().any(|name| name.contains("layers.0") || name.contains("lm_head")), "{names:?}");
    assert!(names.contains(&"model.layers.1.mlp.up_proj.weight_scale_inv".to_owned()));
    let config = json(&bench.path("half/config.json"));
    assert_eq!(config["quantization_config"]["modules_to_not_convert"], serde_json::json!([]));
    run(&bench, "dequantize half -o decoded");
    run(&bench, "dequantize m --drop *layers.0* --drop lm_head.weight -o at_once");
    assert!(tensors(&bench.path("decoded")) == tensors(&bench.path("at_once")));
    // Nothing is quantized any more.
    run(&bench, "cast m --only *norm* -o norms");
    assert!(json(&bench.path("norms/config.json")).get("quantization_config").is_none());
}

#[test]
fn every_format_takes_the_choice() {
    for (file, pattern) in [
        ("model.safetensors", "model.norm.*"),
        ("gguf/tiny.gguf", "output_norm.*"),
        ("pytorch/state_dict.zip.pt", "*weight"),
        ("corpus/npz/deflated.npz", "*"),
    ] {
        let bench = Bench::new();
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        fs::copy(fixture(file), bench.path(name)).unwrap();
        let names = |path: &str| {
            let shown: Value = serde_json::from_str(&bench.run(&format!("inspect {path} --json")).stdout).unwrap();
            shown["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].to_string()).collect::<Vec<_>>()
        };
        let command = if name == "tiny.gguf" { "dequantize --to f32" } else { "cast" };
        run(&bench, &format!("{command} {name} --only {pattern} -o out.safetensors"));
        let wanted: Vec<String> = names(name);
        let kept = names("out.safetensors");
        assert!(!kept.is_empty() && kept.iter().all(|name| wanted.contains(name)), "{file}: {kept:?}");
        assert_eq!(kept.len() == wanted.len(), pattern == "*", "{file}");
    }
    let bench = Bench::with("gguf/tiny.gguf", "tiny.gguf");
    let error = "tiny.gguf: tensor 'output_norm.weight': cannot be left out: llama.cpp refuses a GGUF file without a tensor \
                 of its model\n  name an output in another format";
    refused(&bench, "quantize tiny.gguf --scheme q8_0 --drop output_norm.weight -o o.gguf", 1, error);
}

#[test]
fn an_onnx_model_loses_only_initializers_that_nothing_uses() {
    let bench = Bench::with("onnx_models/basic_pitch_nmp.onnx", "m.onnx");
    let shown: Value = serde_json::from_str(&bench.run("inspect m.onnx --json").stdout).unwrap();
    let name = shown["tensors"][0]["name"].as_str().unwrap().to_owned();
    let error = format!("m.onnx: tensor '{name}': cannot be left out of an ONNX model: its nodes or outputs use it");
    bench.run_args(&["cast", "m.onnx", "--to", "f16", "--drop", &name, "-o", "o.onnx"]).expect(
        1,
        "",
        &format!("tcast: error: {error}\n"),
    );
    let outcome = bench.run_args(&["cast", "m.onnx", "--only", &name, "-o", "o.safetensors", "-q"]);
    outcome.expect(0, "", "");
    let shown: Value = serde_json::from_str(&bench.run("inspect o.safetensors --json").stdout).unwrap();
    assert_eq!(shown["tensors"].as_array().unwrap().len(), 1);
}

#[test]
fn parts_and_resumed_runs_write_the_same_as_one_run() {
    let bench = Bench::with_checkpoint("llama-fp8", "m");
    let line = "dequantize m --drop *layers.0* --rename model.*=language.model.*";
    run(&bench, &format!("{line} -o whole"));
    for part in ["1/2", "2/2"] {
        run(&bench, &format!("{line} -o parts --part {part}"));
    }
    run(&bench, "dequantize --finish parts");
    assert!(contents(&bench.path("whole")) == contents(&bench.path("parts")));
    let other = bench.run("dequantize m --drop *layers.1* -o whole --resume");
    assert_eq!(other.code, Some(4), "{}", other.stderr);
}

#[test]
fn stars_stand_for_the_text_that_they_match_and_the_first_match_wins() {
    let bench = bench_with(&[("a.b.c.weight", &[2, 2]), ("a.d.weight", &[2, 2]), ("e.weight", &[2])], "{}");
    run(&bench, "cast m --rename a.b.*=x.* --rename *.weight=y.*.w -o o");
    assert_eq!(names_in(&bench.path("o")), ["x.c.weight", "y.a.d.w", "y.e.w"]);
    run(&bench, "cast m --rename a.*.c.*=*.a.* -o p");
    assert_eq!(names_in(&bench.path("p")), ["a.d.weight", "b.a.weight", "e.weight"]);
    refused(
        &bench,
        "cast m --rename z.*=* -o q",
        2,
        "m: there is no tensor 'z.*' to rename\n  there are a.b.c.weight, a.d.weight, e.weight",
    );
    refused(
        &bench,
        "cast m --rename a.b.*=a.* --rename a.d.*=a.c.* -o q",
        1,
        "m: tensor 'a.c.weight': two tensors would have this name: 'a.b.c.weight' and 'a.d.weight'",
    );
    refused(&bench, "cast m --rename e.weight*=* -o q", 1, "m: tensor 'e.weight': its new name would be empty");
    assert_eq!(bench.run("cast m --rename a.*=b -o q").code, Some(2));
}

#[test]
fn lists_of_modules_follow_new_names_and_names_that_go_back_give_the_same_bytes() {
    let bench = Bench::new();
    for (at, source) in fixtures().iter().enumerate() {
        let (input, there, back) = (format!("in{at}"), format!("there{at}"), format!("back{at}"));
        let end = source.extension().and_then(|end| end.to_str()).filter(|_| source.is_file()).unwrap_or_default();
        let (input, there, back) = if source.is_dir() {
            copied(&bench, source, &input);
            (input, there, back)
        } else {
            fs::copy(source, bench.path(&format!("{input}.{end}"))).unwrap();
            (format!("{input}.{end}"), format!("{there}.safetensors"), format!("{back}.safetensors"))
        };
        let plain = format!("plain{at}{}", if source.is_dir() { "" } else { ".safetensors" });
        // A GGUF becomes a file of values first.
        let first = if end == "gguf" { "dequantize --to f32" } else { "cast" };
        run(&bench, &format!("{first} {input} --rename *=* -o {plain}"));
        run(&bench, &format!("cast {plain} --rename *=other.prefix.* -o {there}"));
        run(&bench, &format!("cast {there} --rename other.prefix.*=* -o {back}"));
        if source.is_dir() {
            let (plain, back) = (contents(&bench.path(&plain)), contents(&bench.path(&back)));
            assert!(plain == back, "{}", source.display());
        } else {
            assert!(bench.read(&plain) == bench.read(&back), "{}", source.display());
        }
    }
}

#[test]
fn a_pattern_of_modules_that_does_not_follow_is_an_error_that_shows_it() {
    let shapes: &[(&str, &[u64])] = &[("model.a.o_proj.weight", &[128, 128]), ("model.lm_head.weight", &[8, 128])];
    let bench = bench_with(shapes, "{\"dtype\": \"bfloat16\"}");
    run(&bench, "quantize m --scheme fp8 -o q");
    run(&bench, "cast q --rename model.*=language.* -o renamed");
    let config = json(&bench.path("renamed/config.json"));
    assert_eq!(config["quantization_config"]["ignore"], serde_json::json!(["language.lm_head"]));
    run(&bench, "dequantize renamed -o decoded");
    assert_eq!(names_in(&bench.path("decoded")), ["language.a.o_proj.weight", "language.lm_head.weight"]);
    let path = bench.path("q/config.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"model.lm_head\"", "\"re:model.*head\"");
    fs::write(&path, text).unwrap();
    let error = "q/config.json: has the pattern 're:model.*head', which matches model.lm_head and not language.lm_head\n  \
                 correct the pattern first, or choose other names";
    refused(&bench, "cast q --rename model.*=language.* -o other", 1, error);
    run(&bench, "cast q --rename model.*=model.inner.* -o inner");
}

#[test]
fn a_state_dict_of_a_wrapped_model_gets_a_tip() {
    let bench = bench_with(&[("module.a.weight", &[2, 2]), ("module.b.weight", &[2])], "{}");
    let outcome = bench.run("cast m --to f16 -o o");
    let rename = if cfg!(windows) { "module.*=*" } else { "'module.*=*'" };
    let tip = format!(
        "tcast: note: all names in m begin with 'module.', which a wrapper adds: --rename {rename} removes it\n"
    );
    assert!(outcome.stderr.starts_with(&tip), "{}", outcome.stderr);
    run(&bench, "cast m --to f16 --rename module.*=* -o p");
    assert_eq!(names_in(&bench.path("p")), ["a.weight", "b.weight"]);
}

#[test]
fn tensors_of_another_model_come_back_in_shards_of_their_own() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    run(&bench, "cast m --drop *layers.3.* --drop model.norm.weight -o less");
    run(&bench, "cast less --add m -o all");
    bench.run("diff m all").expect(0, "38 tensors are equal\n", "");
    let index = json(&bench.path("all/model.safetensors.index.json"));
    assert_eq!(
        index["metadata"]["total_size"],
        json(&bench.path("m/model.safetensors.index.json"))["metadata"]["total_size"]
    );
    let files: Vec<String> = contents(&bench.path("all")).into_iter().map(|(name, _)| name).collect();
    let shards = files.iter().filter(|name| name.contains("-of-")).count();
    assert!(
        shards > 3 && files.iter().all(|name| !name.contains("-of-") || name.contains(&format!("-of-{shards:05}")))
    );
    run(&bench, "cast less --add m:model.norm.* --to f16 --max-shard-size 500KB -o sized");
    assert_eq!(tensors(&bench.path("sized"))["model.norm.weight"].0, "F16");
    assert!(!names_in(&bench.path("sized")).contains(&"model.layers.3.mlp.up_proj.weight".to_owned()));
    // A file gets them at its end.
    run(&bench, "cast m --drop model.norm.weight -o less.safetensors");
    run(&bench, "cast less.safetensors --add m:model.norm.* -o back.safetensors");
    run(&bench, "cast m -o whole.safetensors");
    bench.run("diff whole.safetensors back.safetensors").expect(0, "38 tensors are equal\n", "");
    refused(&bench, "cast m --add m -o o", 2, "m: has no tensor that the model lacks");
    refused(
        &bench,
        "cast m --add m:model.norm.* -o o",
        2,
        "m: tensor 'model.norm.weight': is in the model already\n  replace it instead",
    );
}

#[test]
fn tensors_are_replaced_by_others_of_the_same_shape() {
    let bench = bench_with(&[("a.weight", &[2, 2]), ("b.weight", &[4])], "{}");
    bench.write(
        "n.safetensors",
        &super::quantize::model(&[("b.weight", &[2]), ("a.weight", &[2, 2]), ("c.weight", &[1])]),
    );
    run(&bench, "cast m --replace n.safetensors:a.* -o o");
    let (new, old) = (tensors(&bench.path("o")), tensors(&bench.path("m")));
    assert_eq!(new["b.weight"], old["b.weight"]);
    assert_ne!(new["a.weight"].2, old["a.weight"].2);
    assert_eq!(new.len(), 2);
    refused(
        &bench,
        "cast m --replace n.safetensors -o p",
        2,
        "n.safetensors: tensor 'b.weight': has the shape [2], and [4] in the model\n  choose other tensors",
    );
    run(&bench, "cast m --replace n.safetensors --allow-reshape -o q");
    assert_eq!(tensors(&bench.path("q"))["b.weight"].1, [2]);
    refused(
        &bench,
        "cast m --replace n.safetensors:c.* -o p",
        2,
        "n.safetensors: tensor 'c.weight': is not in the model\n  choose other tensors",
    );
}

#[test]
fn a_plain_matrix_that_is_added_to_a_quantized_model_is_listed() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    run(&bench, "dequantize q -o plain");
    run(&bench, "cast q --drop lm_head.weight --drop *layers.1.self_attn.o_proj.weight -o less");
    run(&bench, "cast less --add plain -o all");
    let config = json(&bench.path("all/config.json"));
    let lists = &config["quantization_config"]["modules_to_not_convert"];
    assert_eq!(*lists, serde_json::json!(["lm_head", "model.layers.1.self_attn.o_proj"]));
    bench.run("diff q all").expect(0, "21 tensors are equal\n", "");
    // What is added is converted like the rest.
    run(&bench, "quantize less --add plain --scheme fp8-block -o again");
    bench.run("diff q again").expect(0, "21 tensors are equal\n", "");
}

#[test]
fn a_quantized_weight_that_the_config_does_not_describe_is_not_added() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    run(&bench, "dequantize q -o plain");
    run(&bench, "cast plain --drop *layers.1.self_attn.o_proj.weight -o less");
    let weight = "tensor 'model.layers.1.self_attn.o_proj.weight'";
    let undescribed = format!(
        "less: {weight}: stays quantized as in another model: the config of the model describes no quantization, and its own \
         the quantization 'fp8'\n  decode the other model first"
    );
    refused(&bench, "cast less --add q -o o", 1, &undescribed);
    // Decoded, it needs no description.
    run(&bench, "dequantize less --add q -o all");
    bench.run("diff plain all").expect(0, "21 tensors are equal\n", "");
    // The config lists its module as not quantized.
    run(&bench, "cast q --replace plain:*layers.1.self_attn.o_proj.weight -o mixed");
    let listed = format!(
        "mixed: {weight}: stays quantized as in another model: the config of the model describes another form of it\n  \
         decode the other model first"
    );
    refused(&bench, "cast mixed --replace q:*layers.1.self_attn.o_proj.weight -o o", 1, &listed);
    // A config still describes weights that come back in the same run.
    run(&bench, "cast q --drop *_proj.weight --add q -o same");
    bench.run("diff q same").expect(0, "21 tensors are equal\n", "");
    assert_eq!(json(&bench.path("same/config.json")), json(&bench.path("q/config.json")));
}
