//! Converts a tensor file to another type, like `tcast cast INPUT --to DTYPE -o OUTPUT`, and displays the progress.
//!
//! `cargo run --release --example convert_file fixtures/model.safetensors bf16 model.bf16.safetensors`
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use tcast::{Settings, kernel::Loss, options::CastOptions, progress::Progress};

/// Progress that prints the number of bytes; called from all worker threads.
#[derive(Debug, Default)]
pub struct Bytes(pub AtomicU64);

impl Progress for Bytes {
    fn advance(&self, bytes: u64) {
        eprintln!("{} bytes", self.0.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, to, output] = &arguments[..] else { return Err("usage: convert_file INPUT DTYPE OUTPUT".into()) };
    let progress = Bytes::default();
    let mut settings = Settings::default();
    settings.progress = &progress;
    for tensor in settings.cast(input, output, &CastOptions::to(to.parse()?))?.tensors() {
        let changed = tensor.counts.as_ref().map_or(0, |counts| counts[Loss::Inexact]);
        println!("{}: {} -> {}, {changed} values changed", tensor.name, tensor.from, tensor.to);
    }
    Ok(())
}
