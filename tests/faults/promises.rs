//! SECURITY.md: the table is the one that the tests made, and every test in it exists.

use crate::common::promises::{PROMISES, is_fresh};
use std::fs;
use std::path::Path;

#[test]
fn every_promise_is_held_by_tests_that_exist() {
    for promise in PROMISES {
        assert!(!promise.tests.is_empty());
        for (file, test) in promise.tests {
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
            let at = text.find(&format!("\nfn {test}() {{")).unwrap_or_else(|| panic!("{file} has no {test}"));
            assert!(text[..at].lines().rev().take(3).any(|line| line == "#[test]"), "{test} is no test");
        }
    }
}

#[test]
fn the_table_of_promises_is_fresh() {
    assert!(is_fresh(), "SECURITY.md is stale: TCAST_REFRESH=1 cargo test --test faults");
}
