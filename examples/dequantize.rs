//! Decodes the quantized weights of a model, and lists the layouts that they had.
//!
//! `cargo run --release --example dequantize fixtures/checkpoints/llama-fp8 bfloat16 llama-bf16`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use tcast::TensorFiles;
use tcast::options::DequantizeOptions;

/// Decodes the weights of a model to a type, and returns their names and layouts.
///
/// # Errors
/// When the type does not exist, the model has no quantized weights, the output exists, or reading or writing fails.
pub fn dequantize(input: &Path, to: &str, output: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    tcast::dequantize(input, output, &DequantizeOptions::to(to.parse()?))?;
    let weights = TensorFiles::open(input)?.tensors().list().into_iter();
    Ok(weights.filter_map(|weight| Some(format!("{} {}", weight.name, weight.layout?))).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, to, output] = &arguments[..] else { return Err("usage: dequantize MODEL DTYPE OUTPUT".into()) };
    dequantize(input.as_ref(), to, output.as_ref())?.iter().for_each(|weight| println!("{weight}"));
    Ok(())
}
