//! Changes of a checkpoint and the way back, over all fixtures that are not malformed.

use crate::common::{Bench, fixture};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Files without a tensor to rename, or with one that cannot be read or has no name, and a folder of pieces of tensors.
const OTHERS: [&str; 9] = [
    "corpus/npz/bzip2.npz",
    "corpus/npz/empty.npz",
    "corpus/npz/lzma.npz",
    "corpus/safetensors/names.safetensors",
    "corpus/safetensors/no_tensors.safetensors",
    "corpus/safetensors/no_tensors_no_metadata.safetensors",
    "gguf/imatrix.gguf",
    "lora/h-empty/adapter/adapter_model.safetensors",
    "pytorch/distributed/shards",
];

/// Returns the files with this extension in a folder and in the folders in it, in order.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns the fixtures with this extension that are not malformed.
fn fixtures(extension: &str) -> Vec<PathBuf> {
    let all = files(&fixture(""), extension);
    let is_good = |path: &PathBuf| {
        let own = path.strip_prefix(fixture("")).unwrap();
        !own.starts_with("bad") && !own.starts_with("fuzz") && !OTHERS.iter().any(|other| own.starts_with(other))
    };
    all.into_iter().filter(is_good).collect()
}

#[test]
fn tensors_that_are_renamed_and_get_their_names_back_are_in_the_same_file() {
    let bench = Bench::new();
    let mut count = 0;
    for extension in ["safetensors", "npz", "gguf"] {
        let [same, renamed, back] = ["same", "renamed", "back"].map(|name| format!("{name}.{extension}"));
        for path in fixtures(extension) {
            let lines = [
                format!("cast {} --rename *=* -o {same} -q -f", path.display()), // with tcast's header
                format!("cast {} --rename *=other.* -o {renamed} -q -f", path.display()),
                format!("cast {renamed} --rename other.*=* -o {back} -q -f"),
            ];
            for line in lines {
                let outcome = bench.run(&line);
                assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}");
            }
            assert!(bench.read(&same) == bench.read(&back), "{}", path.display());
            count += 1;
        }
    }
    assert!(count > 150, "{count}");
}

#[test]
fn a_tensor_that_is_dropped_and_added_back_is_the_same() {
    let bench = Bench::new();
    let mut count = 0;
    for path in fixtures("safetensors") {
        // Some weights are recognized with their config only.
        let config = fs::read(path.with_file_name("config.json")).unwrap_or_else(|_| b"{}".to_vec());
        bench.write("config.json", &config);
        let path = path.display();
        let listed: Value = serde_json::from_str(&bench.run(&format!("inspect {path} --json")).stdout).unwrap();
        let names: Vec<&str> =
            listed["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
        let is_plain =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        let [first, _, ..] = names[..] else { continue };
        if !is_plain(first) {
            continue;
        }
        bench.run(&format!("cast {path} --drop {first} -o less.safetensors -q -f")).expect(0, "", "");
        bench.run(&format!("cast less.safetensors --add {path} -o back.safetensors -q -f")).expect(0, "", "");
        let outcome = bench.run(&format!("diff {path} back.safetensors --json"));
        let compared: Value = serde_json::from_str(&outcome.stdout).unwrap();
        // Types that tcast only copies cannot be compared.
        let mut counts = compared["counts"].as_object().unwrap().iter();
        let is_same = counts.all(|(status, count)| ["equal", "unreadable"].contains(&&**status) || count == 0);
        assert!(is_same && compared["counts"]["equal"] != 0, "{path}: {outcome:?}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
