//! Compares two models, and lists the tensors that differ by more than a relative tolerance.
//!
//! `cargo run --release --example diff fixtures/checkpoints/llama-tiny-bf16 llama-fp8 0.1`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use tcast::{DiffOptions, diff};

/// Returns the names of the tensors that differ by more than `rtol` times a value of A, and how.
///
/// # Errors
/// When an input cannot be read.
pub fn differing(a: &Path, b: &Path, rtol: f64) -> Result<Vec<String>, Box<dyn Error>> {
    let mut options = DiffOptions::default();
    options.rtol = Some(rtol);
    let report = diff(a, b, &options)?;
    let differing = report.tensors.into_iter().filter(|tensor| !tensor.comparison.status.is_equal());
    Ok(differing.map(|tensor| format!("{}: {:?}", tensor.name, tensor.comparison.status)).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, rtol] = &arguments[..] else { return Err("usage: diff A B RTOL".into()) };
    differing(a.as_ref(), b.as_ref(), rtol.parse()?)?.iter().for_each(|tensor| println!("{tensor}"));
    Ok(())
}
