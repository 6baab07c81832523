//! Quantized checkpoints that are malformed or contradict themselves: one error each, which names the tensors or both sides,
//! and nothing is written. `fixtures/generate_bad_quantized.py` makes them.

use crate::common::{Bench, fixture};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The cases, and what `dequantize` says of each: a line for a case, with `\n` for the ends of lines.
fn expected(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| line.split_once('\t').map(|(name, said)| (name.to_owned(), said.replace("\\n", "\n")));
    text.lines().filter_map(line).collect()
}

/// `TCAST_REFRESH=1 cargo test --test cli dequantize_malformed` writes what is said now; the diff is to be read.
#[test]
fn a_malformed_checkpoint_is_refused_before_anything_is_written() {
    let (folder, mut said) = (fixture("bad/quantized"), BTreeMap::new());
    let table = folder.join("expected.tsv");
    for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().into_string().unwrap();
        let bench = Bench::new();
        fs::create_dir(bench.path("q")).unwrap();
        for file in fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), bench.path("q").join(file.file_name())).unwrap();
        }
        for line in ["dequantize q -o out --part 1/1", "dequantize q -o out.safetensors", "dequantize q -o out"] {
            let outcome = bench.run(line);
            assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{name}: {line}: {outcome:?}");
            assert_eq!(bench.files(), ["q"], "{name}: {line}: {outcome:?}");
            let before = said.insert(name.clone(), outcome.stderr.clone());
            assert!(before.is_none_or(|before| before == outcome.stderr), "{name}: {line}: {outcome:?}");
        }
    }
    if std::env::var_os("TCAST_REFRESH").is_some() {
        let lines = said.iter().map(|(name, said)| format!("{name}\t{}\n", said.replace('\n', "\\n")));
        fs::write(&table, lines.collect::<String>()).unwrap();
    }
    let wanted = expected(&table);
    assert!(said.len() > 150, "{}", said.len());
    for (name, said) in &said {
        assert_eq!(wanted.get(name), Some(said), "{name}");
    }
    assert_eq!(wanted.len(), said.len(), "a line for each case");
}

/// What `dequantize` says of a checkpoint with another `quantization_config`.
#[track_caller]
fn expect_of_config(block: &str, wanted: &str) {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.write("q/config.json", format!("{{\"quantization_config\": {block}}}").as_bytes());
    bench.run("dequantize q -n").says(1, "", wanted);
}

#[test]
fn a_value_that_no_parser_takes_is_named() {
    let config = |size: &str| format!(r#"{{"quant_method": "fp8", "weight_block_size": {size}}}"#);
    let digits = "9".repeat(400);
    expect_of_config(&config(&format!("[{digits}, 128]")), "weight_block_size");
    let deep = format!("{}{}", "[".repeat(999), "]".repeat(999));
    expect_of_config(&config(&deep), "weight_block_size");
    expect_of_config("[1]", "quantization_config");
}

#[test]
fn more_patterns_than_are_tried_are_not_called_unreadable() {
    let listed = |count: usize, entry: &dyn Fn(usize) -> String| (0..count).map(entry).collect::<Vec<_>>().join(", ");
    let most = "has more than 1000 patterns of modules, the most that tcast reads";
    let group = |at| {
        let weights = r#"{"num_bits": 8, "type": "float", "strategy": "channel"}"#;
        format!(r#""group_{at}": {{"weights": {weights}, "targets": ["re:.*layers\\.{at}\\..*"]}}"#)
    };
    for (method, key) in [("compressed-tensors", "ignore"), ("fp8", "modules_to_not_convert"), ("quark", "exclude")] {
        let entries = listed(1001, &|at| format!(r#""re:.*layers\\.{at}\\..*""#));
        expect_of_config(&format!(r#"{{"quant_method": "{method}", "{key}": [{entries}]}}"#), most);
    }
    let config = format!(r#""format": "float-quantized", "config_groups": {{{}}}"#, listed(5000, &group));
    expect_of_config(&format!(r#"{{"quant_method": "compressed-tensors", {config}}}"#), most);
    let config = listed(1001, &|at| format!(r#""-:.*layers\\.{at}\\..*": {{}}"#));
    let config = format!(r#"{{"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {{{config}}}}}"#);
    expect_of_config(&config, most);
    let config = listed(1001, &|at| format!(r#"".*layers\\.{at}\\..*": {{"bits": 16}}"#));
    let config =
        format!(r#"{{"quant_method": "auto-round", "bits": 4, "group_size": 128, "extra_config": {{{config}}}}}"#);
    expect_of_config(&config, most);
}

/// Together, these patterns compile to several MiB.
#[test]
fn many_large_patterns_of_modules_are_all_compared_with_the_tensors() {
    for count in [0, 9, 10, 200] {
        let bench = Bench::with_checkpoint("llama-nvfp4a16", "m");
        let mut config: serde_json::Value = serde_json::from_slice(&bench.read("m/config.json")).unwrap();
        let others = (0..count).map(|at| format!(r"re:.*layers.{at}.\w+.\w+.bias"));
        let entries: Vec<String> = others.chain(["re:.*layers.0.*down_proj".to_owned()]).collect();
        config["quantization_config"]["ignore"] = serde_json::json!(entries);
        bench.write("m/config.json", config.to_string().as_bytes());
        bench.run("dequantize m -o out").says(1, "", "re:.*layers.0.*down_proj");
        assert_eq!(bench.files(), ["m"], "{count}");
    }
}

#[test]
fn zero_points_of_the_second_version_named_as_the_first_have_a_remedy_that_works() {
    let bench = Bench::with_checkpoint("gptq-v2-named-gptq", "q");
    bench.run("dequantize q -o out").says(1, "", "model.layers.0.mlp.up_proj.qzeros");
    let config = fs::read_to_string(bench.path("q/config.json")).unwrap();
    bench.write("q/config.json", config.replace("\"gptq\"}", "\"gptq_v2\"}").as_bytes());
    bench.run("dequantize q -o out -q").expect(0, "", "");
}
