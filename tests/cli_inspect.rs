//! `tcast inspect`, as its users see it.

mod common;

use common::{Bench, fixture, npy, npy_f32, safetensors};
use std::collections::HashMap;
use std::fs;

fn json(bench: &Bench, line: &str) -> serde_json::Value {
    let outcome = bench.run(line);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn a_file_is_listed_with_totals_and_metadata() {
    let header = r#"{"__metadata__":{"format":"pt","note":"a\nb"},
        "w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "a much longer name":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},
        "b":{"dtype":"F32","shape":[1],"data_offsets":[26,30]}}"#;
    let bench = Bench::new();
    bench.write("m.safetensors", &safetensors(header, &[0; 30]));
    let size = bench.read("m.safetensors").len();
    bench.run("inspect m.safetensors").expect(
        0,
        &format!(
            "m.safetensors: safetensors, 3 tensors, {size} B\n  \
               w                   float32   [2, 3]  24 B  F32\n  \
               a much longer name  bfloat16  []       2 B  BF16\n  \
               b                   float32   [1]      4 B  F32\n\
             totals\n  \
               bfloat16  1 tensor   1 elements   2 B\n  \
               float32   2 tensors  7 elements  28 B\n\
             metadata\n  \
               format: pt\n  \
               note: a\\nb\n"
        ),
        "",
    );
    let report = json(&bench, "inspect m.safetensors --json --include w");
    let wanted = serde_json::json!([{
        "name": "w", "file": 0, "dtype": "float32", "shape": [2, 3], "elements": 6, "bytes": 24, "stored": "F32",
        "fortran_order": false,
    }]);
    assert_eq!(report["tensors"], wanted);
    assert_eq!(report["files"][0]["metadata"]["note"], "a\nb");
}

#[test]
fn the_whole_corpus_is_listed_without_a_refusal() {
    let table = fs::read_to_string(fixture("corpus/EXPECT.tsv")).unwrap();
    let mut wanted: HashMap<&str, usize> = HashMap::new();
    for row in table.lines().skip(1) {
        let cells: Vec<&str> = row.split('\t').collect();
        *wanted.entry(cells[0]).or_default() += usize::from(!cells[3].is_empty());
    }
    let bench = Bench::new();
    for (path, count) in wanted {
        let outcome = bench.run_args(&["inspect", fixture("corpus").join(path).to_str().unwrap(), "--json"]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{path}");
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let listed = report["tensors"].as_array().unwrap().len() + report["unreadable"].as_array().unwrap().len();
        // Of two of the files the table has some tensors only.
        let is_sampled = path.contains("many_300") || path.contains("huge_dim");
        assert!(listed == count || (is_sampled && listed > count), "{path}: {listed}");
    }
}

#[test]
fn what_cannot_be_read_is_listed_with_the_reason() {
    let bench = Bench::with("corpus/npz/bzip2.npz", "x.npz");
    bench.run("inspect x.npz").expect(
        0,
        "x.npz: npz, 0 tensors, 230 B\n  \
         tensor 'a': is compressed with bzip2; stored and deflated members are read\n",
        "",
    );
    let bench = Bench::with("untyped_e4m3fn.npy", "x.npy");
    assert!(
        bench.run("inspect x.npy").stdout.contains("x  1-byte opaque  [16, 16]"),
        "{:?}",
        bench.run("inspect x.npy")
    );
}

fn shard(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = (0..)
        .zip(names)
        .map(|(at, name)| {
            format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}", at * 4, at * 4 + 4)
        })
        .collect();
    safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; 4 * names.len()])
}

#[test]
fn a_folder_is_listed_by_its_index() {
    let bench = Bench::new();
    bench.write("one.safetensors", &shard(&["a", "b"]));
    bench.write("two.safetensors", &shard(&["c"]));
    bench.write("other.safetensors", &shard(&["z"]));
    let index = |map: &str| format!("{{\"metadata\":{{\"total_size\":12}},\"weight_map\":{{{map}}}}}");
    let map = r#""a":"one.safetensors","b":"one.safetensors","c":"two.safetensors""#;
    bench.write("model.safetensors.index.json", index(map).as_bytes());
    let outcome = bench.run("inspect .");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let head = ".: 2 shards, index model.safetensors.index.json, 3 tensors, ";
    assert!(outcome.stdout.starts_with(head), "{}", outcome.stdout);
    let by_index = bench.run("inspect model.safetensors.index.json");
    assert_eq!(by_index.stdout.lines().skip(1).collect::<Vec<_>>(), outcome.stdout.lines().skip(1).collect::<Vec<_>>());
    // The index is the truth about what belongs to the model, and its word is checked.
    let moved = r#""a":"two.safetensors","b":"one.safetensors","c":"two.safetensors""#;
    bench.write("model.safetensors.index.json", index(moved).as_bytes());
    let outcome = bench.run("inspect .");
    assert_eq!(
        outcome.stderr,
        "tcast: warning: the index has 'a' in two.safetensors, which does not hold it\n\
         tcast: warning: one.safetensors holds 'a', which the index does not have there\n"
    );
    for (map, message) in [
        (r#""a":"three.safetensors""#, "names the shard 'three.safetensors', which is missing"),
        (r#""a":"../one.safetensors""#, "names the shard '../one.safetensors', which is not in the folder"),
        (r#""a":7"#, "malformed index: "),
    ] {
        bench.write("model.safetensors.index.json", index(map).as_bytes());
        let outcome = bench.run("inspect .");
        assert!(outcome.code == Some(1) && outcome.stderr.contains(message), "{outcome:?}");
        assert!(outcome.stderr.starts_with("tcast: error: ./model.safetensors.index.json: "), "{outcome:?}");
    }
    fs::remove_file(bench.path("model.safetensors.index.json")).unwrap();
    let outcome = bench.run("inspect .");
    assert!(outcome.stdout.starts_with(".: 3 shards, no index, 4 tensors, "), "{}", outcome.stdout);
    let empty = Bench::new();
    let outcome = empty.run("inspect .");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("a folder without .safetensors files"), "{outcome:?}");
}

#[test]
fn figures_are_those_of_the_values() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, -0.0, 1e-40, f32::INFINITY, f32::NAN, -3.25]));
    let stats = json(&bench, "inspect x.npy --stats --json")["tensors"][0]["stats"].clone();
    let wanted = serde_json::json!({
        "min": -3.25, "max": 1.5, "abs_max": 3.25, "mean": (1.5 - 3.25 + f64::from(1e-40_f32)) / 4.0, "zeros": 1,
        "subnormals": 1, "nan": 1, "plus_infinite": 1, "minus_infinite": 0, "exponents": [[-133, 1], [0, 1], [1, 1]],
    });
    assert_eq!(stats, wanted);
    let text = bench.run("inspect x.npy --stats").stdout;
    let line = "x\n  min -3.25  max 1.5  absmax 3.25  mean -0.4375\n  zeros 1  subnormal 1  NaN 1  Inf 1\n";
    assert!(text.contains(line), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 85), "{text}");
    bench.write("i.npy", &npy("'<i8'", "(2,)", &[i64::MIN.to_le_bytes(), i64::MAX.to_le_bytes()].concat()));
    let stats = json(&bench, "inspect i.npy --stats --json")["tensors"][0]["stats"].clone();
    assert_eq!((stats["min"].as_i64(), stats["max"].as_i64()), (Some(i64::MIN), Some(i64::MAX)));
}

#[test]
fn what_the_histogram_says_becomes_zero_does_in_a_cast() {
    let bench = Bench::new();
    let values: Vec<f32> = (0..20_000_u32).map(|index| (index as f32 * 0.77).sin().powi(9)).collect();
    bench.write("x.npy", &npy_f32(&values));
    let text = bench.run("inspect x.npy --stats").stdout;
    let row = text.lines().find(|line| line.starts_with("float8e4m3fn")).unwrap();
    let told = row.split_whitespace().nth(4).unwrap().trim_end_matches('%').parse::<f64>().unwrap();
    let report: serde_json::Value = serde_json::from_str(&bench.run("cast x.npy --to e4m3 --json -q").stdout).unwrap();
    let nonzero = values.iter().filter(|value| **value != 0.0).count() as f64;
    let flushed = report["counts"]["flushed"].as_f64().unwrap() / nonzero * 100.0;
    assert!((told - flushed).abs() < 0.006, "{told} and {flushed}");
}
