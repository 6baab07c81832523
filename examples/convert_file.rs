//! Streams a tensor file into another, like `tcast cast INPUT --to DTYPE -o OUTPUT`, with its own display of progress.
//!
//! `cargo run --release --example convert_file fixtures/model.safetensors bf16 model.bf16.safetensors`
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tcast::container;
use tcast::dtype::Dtype;
use tcast::engine::{self, Outcome, RunOptions};
use tcast::io::output::Destination;
use tcast::kernel::Loss;
use tcast::operator::{Operator, cast::CastAttributes};
use tcast::plan::{self, Request, Spread};
use tcast::progress::Progress;
use tcast::select::Selection;

/// Progress that prints each 10 %; called from all worker threads.
#[derive(Debug, Default)]
pub struct Tenths {
    /// Number of input bytes converted so far.
    pub done: AtomicU64,
    total: u64,
}

impl Progress for Tenths {
    fn advance(&self, bytes: u64) {
        let before = self.done.fetch_add(bytes, Ordering::Relaxed);
        let tenths = |bytes| bytes * 10 / self.total.max(1);
        if tenths(before) < tenths(before + bytes) {
            eprintln!("{} %", tenths(before + bytes) * 10);
        }
    }
}

/// Converts the tensors of floats in a file; everything else in it is copied.
///
/// # Errors
/// When the input is not a tensor file, the output cannot hold the type or exists, or reading or writing fails. The
/// output is complete or absent.
pub fn convert(input: &Path, to: Dtype, output: &Path) -> Result<(Vec<Outcome>, Tenths), Box<dyn Error>> {
    // Reads the header; the elements stay in the file, which is mapped.
    let inputs = [container::open(input)?];
    let container = container::by_extension(output).ok_or("the output's extension names no format")?;
    let selection = Selection { to: Some(to), ..Selection::default() };
    let request = Request::new(Operator::Cast(CastAttributes::default()), &selection, container);
    // Refuses every unsupported conversion before anything is written. One input and one output: one plan.
    let plan = plan::build(&request, &inputs, Spread::One, &|_| {})?.swap_remove(0);
    let destination = Destination::new(output, false, &[input])?;
    destination.check_space(plan.len)?;
    let file = destination.create()?;
    let progress = Tenths { total: plan.source_bytes(), ..Tenths::default() };
    let options = RunOptions { progress: &progress, ..RunOptions::default() };
    let outcomes = engine::run(&plan, &file, &options)?;
    // Until now the output had a temporary name, under which it is removed when `file` is dropped.
    file.publish(true, None)?;
    for (tensor, outcome) in plan.steps.iter().zip(&outcomes) {
        let (before, after) = tensor.dtypes();
        println!("{}: {before} -> {after}, {} values changed", tensor.name(), outcome.counts[Loss::Inexact]);
    }
    Ok((outcomes, progress))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, to, output] = &arguments[..] else { return Err("usage: convert_file INPUT DTYPE OUTPUT".into()) };
    convert(input.as_ref(), to.parse()?, output.as_ref())?;
    Ok(())
}
