//! Converts a tensor in memory, from float32 to float8e4m3fn and back, and prints the losses.
//!
//! `cargo run --example convert_in_memory`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use tcast::dtype::Dtype;
use tcast::kernel::{Counts, Loss, Storage};
use tcast::slice::{StoredBytes, StoredBytesMut, cast};

/// Converts `count` elements to another type. Returns their bytes, and the counts of losses.
///
/// # Errors
/// When ONNX Cast lacks this pair of types, or the input is malformed.
pub fn convert(input: &[u8], count: usize, from: Dtype, to: Dtype) -> Result<(Vec<u8>, Counts), Box<dyn Error>> {
    // Little endian, without gaps, like arrays of numpy and torch in memory, except types of fewer than 8 bits.
    let (stored, target) = (Storage::packed(from), Storage::packed(to));
    let source = StoredBytes::new(input, stored, count).ok_or("there are fewer elements")?;
    let mut output = vec![0; target.bytes(count as u64).ok_or("so many bytes cannot be counted")?.try_into()?];
    let counts = cast(&source, &mut StoredBytesMut::new(&mut output, target, count).ok_or("as above")?)?;
    Ok((output, counts))
}

fn main() -> Result<(), Box<dyn Error>> {
    let values = [0.1_f32, -2.5, 1000.0, 1e-9];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (codes, counts) = convert(&bytes, values.len(), Dtype::Float32, Dtype::Float8E4M3FN)?;
    let (back, _) = convert(&codes, values.len(), Dtype::Float8E4M3FN, Dtype::Float32)?;
    for ((value, code), back) in values.iter().zip(&codes).zip(back.as_chunks().0) {
        println!("{value:>10}  {code:02x}  {}", f32::from_le_bytes(*back));
    }
    for loss in Loss::ALL {
        println!("{} {}", counts[loss], loss.describe());
    }
    Ok(())
}
