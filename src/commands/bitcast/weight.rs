//! `tcast bitcast --bits` of a quantized weight: explains the computation of each value.

use super::printer::{ElementPrinter, Failure};
use super::range_of;
use crate::cli::BitcastArgs;
use crate::error::{Error, Result};
use crate::measure::bits::{explanation_json, explanation_row};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{LogicalCheckpoint, Membership, read_values};

/// Number of values of a row that are explained at a time.
const AT_ONCE: u64 = 1 << 14;

/// Returns the quantized weight with this name, or the only one if there are no other tensors.
pub(super) fn find<'a>(model: &'a LogicalCheckpoint, name: Option<&str>) -> Option<&'a FoundWeight> {
    let memberships = model.memberships();
    let first = |membership: &Membership| if let Membership::Codes(number) = membership { Some(*number) } else { None };
    let mut weights = memberships.iter().filter_map(first).flat_map(|number| model.sharing(number));
    let is_unreadable = model.source.shards.iter().any(|shard| !shard.contents.unreadable.is_empty());
    match name {
        Some(name) => weights.find(|weight| weight.name == name),
        None if is_unreadable || memberships.contains(&Membership::Plain) => None,
        None => weights.next().filter(|_| weights.next().is_none()),
    }
}

pub(super) fn show(args: &BitcastArgs, model: &LogicalCheckpoint, weight: &FoundWeight) -> Result<()> {
    let in_tensor = |error: Error| error.in_tensor(&weight.name).in_file(&model.source.path);
    print(args, model, weight).or_else(|failure| failure.result(in_tensor))
}

fn print(args: &BitcastArgs, model: &LogicalCheckpoint, weight: &FoundWeight) -> Result<(), Failure> {
    let source = model.weight(weight, model.target_of(weight), Arithmetic::Library)?;
    let (decoder, codes) = (&source.decoder, weight.grid(&model.tensors)?.codes);
    let columns = decoder.columns();
    let range = range_of(args, decoder.rows() * columns, decoder.shape())?;
    let more = format!("\"layout\":\"{}\",\"codes\":\"{codes}\",", weight.layout.name);
    let tensor = (&*weight.name, decoder.target(), &weight.shape[..]);
    let mut printer = ElementPrinter::begin(args.file.json, tensor, &more, &range)?;
    let mut index = range.start;
    while index < range.end {
        let row = index / columns;
        let end = range.end.min((row + 1) * columns).min(index + AT_ONCE);
        let parts = read_values(decoder, &source.parts, index..end)?;
        for explanation in decoder.explain(row, index - row * columns..end - row * columns, &parts)? {
            if printer.is_json {
                printer.element(&explanation_json(codes, decoder.target(), index, &explanation))?;
            } else {
                printer.row(&explanation_row(codes, decoder.target(), index, &explanation, &printer.style))?;
            }
            index += 1;
        }
    }
    Ok(printer.end()?)
}
