//! `tcast bitcast --bits` of a quantized weight: explains the computation of each value.

use super::printer::{ElementPrinter, finish, range_of};
use crate::cli::BitcastArgs;
use crate::error::Result;
use crate::measure::bits::{explanation_json, explanation_row};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{Model, read_values};
use std::io;

/// Number of values of a row that are explained at a time.
const AT_ONCE: u64 = 1 << 14;

/// Returns the quantized weight with this name, or the only one if there are no other tensors.
pub(super) fn find<'a>(model: &'a Model<'a>, name: Option<&str>) -> Option<&'a FoundWeight> {
    let mut tensors = model.model_tensors(&[]);
    let is_unreadable = || model.source.shards.iter().any(|shard| !shard.contents.unreadable.is_empty());
    match name {
        Some(name) => tensors.find(|tensor| tensor.weight.is_some() && tensor.name() == name)?,
        None => tensors.next().filter(|_| tensors.next().is_none() && !is_unreadable())?,
    }
    .weight
}

pub(super) fn show(args: &BitcastArgs, model: &Model, weight: &FoundWeight) -> Result<()> {
    finish(print(args, model, weight), |error| error.in_tensor(&weight.name).in_file(&model.source.path))
}

fn print(args: &BitcastArgs, model: &Model, weight: &FoundWeight) -> io::Result<()> {
    let target = if weight.has_plain_blocks() { model.own_type(weight) } else { model.target_of(weight) };
    let source = model.weight(weight, target, Arithmetic::Library).map_err(io::Error::other)?;
    let decoder = &source.decoder;
    let codes = weight.grid(&model.tensors).map_err(io::Error::other)?.codes;
    let columns = decoder.columns();
    let range = range_of(args, decoder.rows() * columns, decoder.shape()).map_err(io::Error::other)?;
    let more = format!("\"layout\":\"{}\",\"codes\":\"{codes}\",", weight.layout.name);
    let target = decoder.target();
    let mut printer = ElementPrinter::begin(args.file.json, (&weight.name, target, &weight.shape), &more, &range)?;
    let mut index = range.start;
    while index < range.end {
        let row = index / columns;
        let end = range.end.min((row + 1) * columns).min(index + AT_ONCE);
        let explain = || -> Result<_> {
            let parts = read_values(decoder, &source.parts, index..end)?;
            decoder.explain(row, index - row * columns..end - row * columns, &parts)
        };
        for explanation in explain().map_err(io::Error::other)? {
            printer.element(
                || explanation_json(codes, target, index, &explanation),
                |style| explanation_row(codes, target, index, &explanation, style),
            )?;
            index += 1;
        }
    }
    printer.end()
}
