//! `inspect --fail-on`: checks of values and of the files of a checkpoint.

use super::quantize::bench_with;
use crate::common::{Bench, fixture};
use serde_json::Value;
use std::fs;

/// A file with a tensor of each kind of values, as float32.
fn values(bench: &Bench) {
    let tensors: [(&str, [f32; 2]); 4] =
        [("huge", [2e4, 1.0]), ("infinite", [1.0, f32::NEG_INFINITY]), ("nan", [f32::NAN, 1.0]), ("zero", [0.0, -0.0])];
    let entry = |(at, (name, _)): (usize, &(&str, [f32; 2]))| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}"#, at * 8, at * 8 + 8)
    };
    let mut header = format!("{{{}}}", tensors.iter().enumerate().map(entry).collect::<Vec<_>>().join(","));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(tensors.iter().flat_map(|(_, values)| values).flat_map(|value| value.to_le_bytes()));
    bench.write("x.safetensors", &file);
}

fn fails(bench: &Bench, line: &str, findings: &[&str]) {
    let outcome = bench.run(line);
    assert_eq!(outcome.code, Some(3), "{line}: {}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("  ")).map(str::trim_start).collect();
    assert_eq!(lines, findings, "{line}");
}

#[test]
fn values_are_found_by_name_and_exit_with_3() {
    let bench = Bench::new();
    values(&bench);
    let line = "inspect x.safetensors -q --fail-on";
    fails(&bench, &format!("{line} nan"), &["nan: nan: 1 of 2 values"]);
    fails(
        &bench,
        &format!("{line} infinite,zero"),
        &["infinite: infinite: 1 of 2 values", "zero: zero: all values are 0"],
    );
    fails(&bench, &format!("{line} huge=1e4"), &["huge: huge: the largest magnitude is 20000.0"]);
    assert_eq!(bench.run(&format!("{line} huge=2e4")).code, Some(0));
    assert_eq!(bench.run(&format!("{line} nan --exclude nan")).code, Some(0));
    let outcome = bench.run(&format!("{line} nan,zero --json"));
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(document["findings"][1]["name"], "zero");
    assert_eq!((document["findings"][0]["condition"].as_str(), outcome.code), (Some("nan"), Some(3)));
    assert!(document["tensors"][0].get("stats").is_none());
    for wrong in ["huge", "huge=x", "losses"] {
        assert_eq!(bench.run(&format!("{line} {wrong}")).code, Some(2), "{wrong}");
    }
}

#[test]
fn values_that_cannot_be_checked_are_findings() {
    let bench = Bench::new();
    let header = r#"{"x":{"dtype":"F99","shape":[4],"data_offsets":[0,4]}}  "#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"abcd"].concat();
    bench.write("x.safetensors", &file);
    fails(
        &bench,
        "inspect x.safetensors -q --fail-on nan",
        &["nan: x: its type is unknown: its values are not checked"],
    );
    assert_eq!(bench.run("inspect x.safetensors -q --fail-on parts,index").code, Some(0));
    // Codes of GPTQ without a config.
    let gptq = fixture("checkpoints/gptq-v2-named-gptq");
    let copied = fs::read_dir(gptq).unwrap().map(|entry| entry.unwrap().path());
    let weights = copied.into_iter().find(|path| path.extension().is_some_and(|name| name == "safetensors")).unwrap();
    fs::copy(weights, bench.path("codes.safetensors")).unwrap();
    bench.run("inspect codes.safetensors -q --fail-on nan").check_message("checked");
}

#[test]
fn quantized_weights_and_gguf_files_are_decoded() {
    let bench = bench_with(&[("a.o_proj.weight", &[128, 128])], "{\"dtype\": \"bfloat16\"}");
    bench.run("quantize m --scheme fp8 -q -o q").expect(0, "", "");
    let all = "nan,infinite,zero,huge=1e4,index,parts,duplicate,code";
    assert_eq!(bench.run(&format!("inspect q --fail-on {all}")).code, Some(0));
    let path = bench.path("q/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let scale = header["a.o_proj.weight_scale"].clone();
    assert_eq!(scale["dtype"], "BF16");
    let start = 8 + length + scale["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[start..start + 2].copy_from_slice(&0x7f80_u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    bench.run("inspect q --fail-on infinite,nan").check_message("a.o_proj.weight");
    let gguf = fixture("gguf/tiny.gguf");
    let outcome = bench.run_args(&["inspect", gguf.to_str().unwrap(), "--fail-on", all]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

#[test]
fn the_index_parts_and_duplicates_are_compared() {
    let bench = Bench::with_checkpoint("llama-fp8", "m");
    let index = bench.path("m/model.safetensors.index.json");
    let text = fs::read_to_string(&index).unwrap();
    let renamed = text.replace("\"lm_head.weight\"", "\"head.weight\"");
    fs::write(&index, renamed).unwrap();
    fs::copy(bench.path("m/model-00002-of-00002.safetensors"), bench.path("m/stray.safetensors")).unwrap();
    fails(
        &bench,
        "inspect m -q --fail-on index",
        &[
            "index: head.weight: is in the index, and not in model-00002-of-00002.safetensors",
            "index: lm_head.weight: is in model-00002-of-00002.safetensors, and not in the index",
            "index: stray.safetensors: is a shard that is not in the index",
        ],
    );
    fs::remove_file(&index).unwrap();
    let outcome = bench.run("inspect m -q --fail-on duplicate");
    assert_eq!(outcome.code, Some(3));
    outcome.check_message("lm_head.weight");
    fs::remove_file(bench.path("m/stray.safetensors")).unwrap();
    fs::remove_file(bench.path("m/model-00002-of-00002.safetensors")).unwrap();
    bench.run("inspect m -q --fail-on parts").check_message("layers");
    fs::write(&index, text).unwrap();
    let outcome = bench.run("inspect m -q --fail-on index");
    outcome.check_message("model-00002-of-00002.safetensors");
    assert_eq!(outcome.code, Some(3));
}
