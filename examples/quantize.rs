//! Quantizes a model, and lists the weights that have become codes and scales.
//!
//! `cargo run --release --example quantize fixtures/checkpoints/llama-tiny-bf16 fp8 llama-fp8`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use tcast::TensorFiles;
use tcast::options::QuantizeOptions;

/// Quantizes a model, and returns the names of the quantized weights.
///
/// # Errors
/// When the scheme does not exist, the input is not a model, the output exists, or reading or writing fails.
pub fn quantize(input: &Path, scheme: &str, output: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    tcast::quantize(input, output, &QuantizeOptions::scheme(scheme)?)?;
    let weights = TensorFiles::open(output)?.tensors().list().into_iter().filter(|tensor| tensor.layout.is_some());
    Ok(weights.map(|tensor| format!("{} {:?}", tensor.name, tensor.shape)).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, scheme, output] = &arguments[..] else { return Err("usage: quantize MODEL SCHEME OUTPUT".into()) };
    quantize(input.as_ref(), scheme, output.as_ref())?.iter().for_each(|weight| println!("{weight}"));
    Ok(())
}
