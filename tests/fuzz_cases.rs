//! What fuzzing has found stays mended: every kept case goes through the checks of its target again.

#[path = "../fuzz/src/lib.rs"]
#[allow(unreachable_pub, reason = "it is a crate of its own where the fuzzers run")]
mod fuzz;

use std::fs;
use std::path::Path;

/// One test, because memory is counted for the whole process.
#[test]
fn all_that_fuzzing_found_and_all_sample_files_pass_the_checks_of_every_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fuzz");
    let mut names: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut known = fuzz::TARGETS.map(|(name, _)| name);
    known.sort_unstable();
    assert_eq!(names, known, "a folder of cases for each target, and no other");
    for (name, check) in fuzz::TARGETS {
        let mut cases = 0;
        for entry in fs::read_dir(folder.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let outcome = std::panic::catch_unwind(|| check(&bytes)); // what it says stands above
            assert!(outcome.is_ok(), "{}", path.display());
            cases += 1;
        }
        assert!(cases > 0, "{name}");
    }
}
