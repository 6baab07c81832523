//! `tcast inspect`, as its users see it.

use crate::common::{Bench, fixture, npy, npy_f32, safetensors};
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
               bfloat16  1 tensor   1 element    2 B\n  \
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
    outcome.check_message("safetensors");
    fs::remove_file(bench.path("other.safetensors")).unwrap();
    let head = ".: 2 shards, index model.safetensors.index.json, 3 tensors, ";
    assert!(outcome.stdout.starts_with(head), "{}", outcome.stdout);
    let by_index = bench.run("inspect model.safetensors.index.json");
    assert_eq!(by_index.stdout.lines().skip(1).collect::<Vec<_>>(), outcome.stdout.lines().skip(1).collect::<Vec<_>>());
    // The index is the truth about what belongs to the model, and its word is checked.
    let moved = r#""a":"two.safetensors","b":"one.safetensors","c":"two.safetensors""#;
    bench.write("model.safetensors.index.json", index(moved).as_bytes());
    bench.run("inspect .").check_message("safetensors");
    let outside = "names the shard '../one.safetensors', which is not in the folder\n  shards must be in the folder";
    for (map, message) in [
        (r#""a":"three.safetensors""#, "three.safetensors"),
        (r#""a":"../one.safetensors""#, outside),
        (r#""a":7"#, "malformed index: "),
        (r#""a":7"#, "./model.safetensors.index.json"),
        (r#""a":"one.safetensors","a":"two.safetensors""#, "appears"),
    ] {
        bench.write("model.safetensors.index.json", index(map).as_bytes());
        bench.run("inspect .").says(1, "", message);
    }
    fs::remove_file(bench.path("model.safetensors.index.json")).unwrap();
    let outcome = bench.run("inspect .");
    assert!(outcome.stdout.starts_with(".: 2 shards, no index, 3 tensors, "), "{}", outcome.stdout);
    let empty = Bench::new();
    empty.run("inspect .").says(1, "", "pytorch_model");
}

#[test]
fn what_does_not_belong_together_in_a_folder_is_told() {
    let bench = Bench::new();
    bench.write("one.safetensors", &shard(&["a", "b"]));
    bench.write("two.safetensors", &shard(&["b"]));
    fs::create_dir(bench.path("three.safetensors")).unwrap();
    bench.run("inspect .").check_message("safetensors");
    bench.write("model.safetensors.index.json", br#"{"weight_map":{}}"#);
    bench.run("inspect model.safetensors.index.json").check_message("tensor");
    let map: Vec<String> = (10..25).map(|number| format!("\"x{number}\":\"two.safetensors\"")).collect();
    let index = format!("{{\"weight_map\":{{{}}}}}", map.join(","));
    bench.write("model.safetensors.index.json", index.as_bytes());
    let warnings = bench.run("inspect .").stderr;
    assert_eq!(warnings.lines().count(), 11, "{warnings}");
    assert!(warnings.ends_with("tcast: warning: ... and 7 more\n"), "{warnings}");
}

#[test]
fn an_index_that_cannot_be_one_is_refused_with_what_to_do() {
    let bench = Bench::new();
    bench.write("one.safetensors", &shard(&["a"]));
    for name in ["model.safetensors.index.fp16.json", "model.safetensors.index.fp32.json"] {
        bench.write(name, br#"{"weight_map":{"a":"one.safetensors"}}"#);
    }
    bench.run("inspect .").says(1, "", "safetensors");
    let path = bench.path("model.safetensors.index.json");
    fs::File::create(&path).unwrap().set_len((100 << 20) + 1).unwrap();
    bench.run("inspect .").says(1, "", "longer");
    #[cfg(unix)]
    {
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        bench.run("inspect .").says(1, "", "regular");
    }
}

#[test]
fn figures_are_those_of_the_values() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, -0.0, 1e-40, f32::INFINITY, f32::NAN, -3.25]));
    let stats = json(&bench, "inspect x.npy --stats --json")["tensors"][0]["stats"].clone();
    let wanted = serde_json::json!({
        "min": -3.25, "max": 1.5, "abs_max": 3.25, "mean": (1.5 - 3.25 + f64::from(1e-40_f32)) / 4.0, "zeros": 1,
        "subnormals": 1, "nan": 1, "plus_infinite": 1, "minus_infinite": 0, "first_nan_at": 4,
        "first_nan_index": [4], "first_infinite_at": 3, "first_infinite_index": [3], "exponents": [[-133, 1], [0, 1], [1, 1]],
    });
    assert_eq!(stats, wanted);
    let text = bench.run("inspect x.npy --stats").stdout;
    let line = "x\n  min -3.25  max 1.5  absmax 3.25  mean -0.4375\n  zeros 1  subnormal 1  NaN 1  Inf 1\n  first NaN at [4]  first Inf at [3]\n";
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

#[test]
fn what_is_stored_is_said_in_the_files_own_words() {
    let bench = Bench::new();
    let stored = |file: &str| {
        let line = format!("inspect {} --json", fixture("corpus").join(file).display());
        json(&bench, &line)["tensors"][0]["stored"].as_str().unwrap().to_owned()
    };
    assert_eq!(stored("npy/float32_be.npy"), ">f4");
    assert_eq!(stored("npy/ml_bfloat16_be.npy"), ">V2");
    assert_eq!(stored("npy/str_S5.npy"), "|S5");
    assert_eq!(stored("npy/tag_int4.npy"), "int4 |i1");
    assert_eq!(stored("onnx/int4_typed.pb"), "INT4 int32_data");
    assert_eq!(stored("onnx/external/tensor.pb"), "FLOAT external_data");
}

#[test]
fn a_damaged_tensor_is_told_beside_the_figures_of_the_others() {
    let bench = Bench::with("corpus/npz/ml.npz", "x.npz");
    let mut bytes = bench.read("x.npz");
    let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    bytes[directory - 3] ^= 0x40;
    bench.write("x.npz", &bytes);
    let outcome = bench.run("inspect x.npz --stats");
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stdout.contains("bf\n  x.npz: tensor 'bf': is damaged: its checksum is wrong\n"), "{outcome:?}");
    outcome.check_message("bf");
    bench.run("bitcast x.npz --hex").check_message("checksum");
    assert_eq!(bench.run("bitcast x.npz --hex --range 0..2").code, Some(0));
}

#[test]
fn from_says_what_opaque_bytes_are_or_is_refused() {
    let bench = Bench::with("untyped_e4m3fn.npy", "x.npy");
    let report = json(&bench, "inspect x.npy --stats --from e4m3 --json");
    assert_eq!(
        (&report["tensors"][0]["dtype"], &report["tensors"][0]["stats"]["max"]),
        (&"float8e4m3fn".into(), &448.0.into())
    );
    for line in ["inspect x.npy --stats --from f32", "bitcast x.npy --hex --from f32"] {
        bench.run(line).says(1, "", "float32");
    }
    assert_eq!(bench.run("inspect x.npy --from e4m3").code, Some(2));
    assert_eq!(bench.run("bitcast x.npy --hex --from e4m3 --rename a=b").code, Some(2));
}

#[test]
fn the_first_nan_and_inf_are_named_however_the_tensor_is_stored() {
    let bench = Bench::new();
    let at = |json: &str| {
        let report: serde_json::Value = serde_json::from_str(json).unwrap();
        let stats = &report["tensors"][0]["stats"];
        ["first_nan_at", "first_infinite_at"].map(|name| stats[name].as_u64())
    };
    let mut values = vec![1.0_f32; 600_000];
    (values[300_001], values[300_002], values[500_000]) = (f32::NEG_INFINITY, f32::NAN, f32::NAN);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.write("x.npy", &npy("'<f4'", "(600, 1000)", &bytes));
    // As float32, as float64, and counted word by word.
    for to in ["f32", "f64", "f16", "bf16", "e5m2 --no-saturate"] {
        bench.run(&format!("cast x.npy --to {to} -o y.npy -f -q")).expect(0, "", "");
        for threads in ["-j1", "-j3"] {
            let outcome = bench.run(&format!("inspect y.npy --stats --json {threads}"));
            assert_eq!(at(&outcome.stdout), [Some(300_002), Some(300_001)], "{to}");
        }
    }
    let told = bench.run("inspect x.npy --stats").stdout;
    assert!(told.contains("\n  first NaN at [300, 2]  first Inf at [300, 1]\n"), "{told}");
    // A complex number is one element, and columns are counted by rows.
    let parts = [1.0, 1.0, 1.0, f32::NAN, 1.0, 1.0, f32::INFINITY, 1.0].map(f32::to_le_bytes).concat();
    bench.write("c.npy", &npy("'<c8'", "(4,)", &parts));
    assert_eq!(at(&bench.run("inspect c.npy --stats --json").stdout), [Some(1), Some(3)]);
    let stats = json(&bench, "inspect x.npy --stats --json")["tensors"][0]["stats"].clone();
    assert_eq!(stats["first_nan_index"], serde_json::json!([300, 2]));
    assert_eq!(stats["first_infinite_index"], serde_json::json!([300, 1]));
    bench.write("none.npy", &npy("'<f4'", "(1,)", &1_f32.to_le_bytes()));
    assert_eq!(at(&bench.run("inspect none.npy --stats --json").stdout), [None, None]);
}

#[test]
fn several_inputs_are_listed_one_after_the_other() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0, 2.0]));
    bench.write("y.npy", &npy_f32(&[3.0]));
    let [x, y] = [("x", 136), ("y", 132)].map(|(name, size)| {
        let count = (size - 128) / 4;
        format!("{name}.npy: npy, 1 tensor, {size} B\n  {name}  float32  [{count}]  {} B  <f4\n", 4 * count)
    });
    bench.run("inspect x.npy y.npy").expect(0, &format!("{x}\n{y}"), "");
    // One that cannot be read does not hide the others.
    bench.run("inspect x.npy none.npy y.npy").says(1, &format!("{x}\n{y}"), "inputs");
    bench.run("inspect none.npy").says(1, "", "directory");
    let report = json(&bench, "inspect x.npy y.npy --json");
    assert_eq!((&report["schema"], &report["inputs"][1]), (&1.into(), &json(&bench, "inspect y.npy --json")));
    let outcome = bench.run("inspect x.npy none.npy --json");
    assert_eq!(outcome.code, Some(1));
    outcome.check_message("none.npy");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["inputs"][0]["tensors"][0]["name"], "x");
    let error = "none.npy: cannot read: no such file or directory";
    assert_eq!((&report["inputs"][1]["input"], &report["inputs"][1]["error"]), (&"none.npy".into(), &error.into()));
}

#[test]
fn a_tensor_is_chosen_by_its_name() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "a.weigh":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},
        "*":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}"#;
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    bench.write("m.safetensors", &safetensors(header, &[0; 12]));
    bench.write("x.npy", &npy_f32(&[1.0]));
    let size = bench.read("m.safetensors").len();
    // What concerns the whole file is left out, and no name is a pattern.
    let head = format!("m.safetensors: safetensors, 1 of 3 tensors, {size} B\n");
    let row = |name: &str| format!("  {name}  float32  [1]  4 B  F32\n");
    bench.run("inspect m.safetensors --tensor a.weight").expect(0, &format!("{head}{}", row("a.weight")), "");
    bench.run("inspect m.safetensors --tensor *").expect(0, &format!("{head}{}", row("*")), "");
    bench.run("inspect m.safetensors --include a.weigh").expect(0, &format!("{head}{}", row("a.weigh")), "");
    let said = "there is no tensor 'a.wieght'\n  similar: a.weight, a.weigh\n";
    bench.run("inspect m.safetensors --tensor a.wieght --tensor *").says(1, "", "safetensors");
    bench.run("inspect m.safetensors x.npy --tensor a.wieght").expect(1, "", &format!("tcast: error: {said}"));
    // A name in one of several inputs is enough.
    let outcome = bench.run("inspect m.safetensors x.npy --tensor a.weight");
    let x = "x.npy: npy, 0 of 1 tensor, 132 B\n";
    outcome.expect(0, &format!("{head}{}\n{x}", row("a.weight")), "");
    // The name of a part stands for its weight.
    let weight = "model.layers.0.self_attn.q_proj.weight";
    let [whole, part] = ["", "_scale_inv"].map(|part| bench.run(&format!("inspect q --tensor {weight}{part} --parts")));
    assert_eq!((part.code, &*part.stderr, &part.stdout), (Some(0), "", &whole.stdout));
    assert!(!whole.stdout.contains("\n  model-00001-of-00002.safetensors"), "{}", whole.stdout);
    assert_eq!(whole.stdout.lines().count(), 4, "{}", whole.stdout);
    let stats = json(&bench, &format!("inspect q --tensor {weight} --stats --json -q"));
    assert_eq!(stats["tensors"].as_array().unwrap().len(), 1);
    // Tensors refer to their files by number.
    assert_eq!(stats["files"].as_array().unwrap().len(), 2);
}

#[test]
fn every_field_of_the_document_is_described() {
    fn keys(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    found.insert(name.clone());
                    if name != "metadata" {
                        keys(value, found);
                    }
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }
    let page = include_str!("../../docs/report.md");
    let section = page.split("\n## Inspect\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let bench = Bench::with_checkpoint("llama-fp8", "quantized");
    let mut found = std::collections::BTreeSet::new();
    keys(&json(&bench, "inspect quantized --stats --json -q"), &mut found);
    assert!(found.contains("grid") && found.contains("exponents") && found.contains("quant_method"), "{found:?}");
    // Only malformed inputs have these.
    found.extend(["problems", "error"].map(str::to_owned));
    for name in found {
        assert!(section.contains(&format!("`{name}`")), "{name}");
    }
}
