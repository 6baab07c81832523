//! What fuzzing has found stays mended: every kept case, and every sample file, goes through the checks of its target.

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is a crate of its own where the fuzzers run")]
mod fuzz;

mod common;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Runs a check; what fails in it stands above the name of the file.
fn run(check: fuzz::Check, path: &Path) {
    let bytes = fs::read(path).unwrap();
    assert!(catch_unwind(|| check(&bytes)).is_ok(), "{}", path.display());
}

/// One test, because memory is counted for the whole process.
#[test]
fn kept_cases_and_sample_files_pass_the_checks_that_fuzzing_makes() {
    let folder = common::fixture("fuzz");
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut known = fuzz::TARGETS.map(|(name, _)| name);
    known.sort_unstable();
    assert_eq!(names, known, "a folder of cases for each target, and no other");
    for (name, check) in fuzz::TARGETS {
        let cases = files(&folder.join(name));
        assert!(!cases.is_empty(), "{name}");
        for case in cases {
            run(check, &case);
        }
    }
    let mut samples = 0;
    for path in files(&common::fixture("")) {
        let check = match path.extension().and_then(|extension| extension.to_str()) {
            _ if fs::metadata(&path).unwrap().len() > 1 << 16 => continue,
            Some("npy") => fuzz::npy_header,
            Some("npz") => fuzz::zip_members,
            Some("safetensors") => fuzz::safetensors_header,
            Some("pb") => fuzz::onnx_walk,
            Some("gguf") => fuzz::gguf_header,
            Some("pt") => fuzz::pytorch_pickle,
            Some("onnx") => fuzz::onnx_model,
            _ => continue,
        };
        run(check, &path);
        samples += 1;
    }
    assert!(samples > 500, "{samples}");
}
