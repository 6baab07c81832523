//! `tcast bitcast --bits` of a quantized weight: how each value is computed.

use super::{Failure, SCHEMA, range_of};
use crate::cli::BitcastArgs;
use crate::error::{Error, Result};
use crate::measure::bits::{RenderStyle, explanation_json, explanation_row};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{LogicalCheckpoint, Membership, read_values};
use crate::text::json_text;
use serde_json::json;
use std::io::{self, BufWriter, IsTerminal, Write};

/// Values of a row that are explained at a time.
const AT_ONCE: u64 = 1 << 14;

/// The quantized weight with a name, or the only one if there are no other tensors.
pub(super) fn find<'a>(model: &'a LogicalCheckpoint, name: Option<&str>) -> Option<&'a FoundWeight> {
    let memberships = model.memberships();
    let weight = |membership: &Membership| match membership {
        Membership::Codes(number) => Some(&model.found.weights[*number]),
        _ => None,
    };
    let mut weights = memberships.iter().filter_map(weight);
    let is_unreadable = model.source.shards.iter().any(|shard| !shard.contents.unreadable.is_empty());
    match name {
        Some(name) => weights.find(|weight| weight.name == name),
        None if is_unreadable || memberships.contains(&Membership::Plain) => None,
        None => weights.next().filter(|_| weights.next().is_none()),
    }
}

/// Prints elements of a weight.
pub(super) fn show(args: &BitcastArgs, model: &LogicalCheckpoint, weight: &FoundWeight) -> Result<()> {
    let in_tensor = |error: Error| error.in_tensor(&weight.name).in_file(&model.source.path);
    match print(args, model, weight) {
        // The reader of a pipe may have seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Failure::Output(error)) => Err(Error::io("cannot write to standard output", &error)),
        Err(Failure::Input(error)) => Err(in_tensor(error)),
        Ok(()) => Ok(()),
    }
}

fn print(args: &BitcastArgs, model: &LogicalCheckpoint, weight: &FoundWeight) -> Result<(), Failure> {
    let source = model.weight(weight, model.target_of(weight), Arithmetic::Library)?;
    let (decoder, codes) = (&source.decoder, weight.grid(&model.tensors)?.codes);
    let columns = decoder.columns();
    let range = range_of(args, decoder.rows() * columns, decoder.shape())?;
    let is_terminal = io::stdout().is_terminal();
    let width = terminal_size::terminal_size().map_or(80, |(width, _)| width.0.into());
    let style = RenderStyle { is_terminal, index_width: range.end.saturating_sub(1).to_string().len(), width };
    let mut output = BufWriter::new(anstream::stdout().lock());
    if args.file.json {
        let (name, shape, layout) = (json_text(&weight.name), json!(weight.shape), weight.layout.name);
        let dtype = decoder.target();
        write!(output, "{{\"schema\":{SCHEMA},\"tensor\":{name},\"dtype\":\"{dtype}\",\"layout\":\"{layout}\",")?;
        write!(output, "\"codes\":\"{codes}\",\"shape\":{shape},")?;
        write!(output, "\"range\":[{},{}],\"elements\":[", range.start, range.end)?;
    }
    let mut index = range.start;
    while index < range.end {
        let row = index / columns;
        let end = range.end.min((row + 1) * columns).min(index + AT_ONCE);
        let parts = read_values(decoder, &source.parts, index..end)?;
        for explanation in decoder.explain(row, index - row * columns..end - row * columns, &parts)? {
            if args.file.json {
                let comma = if index == range.start { "" } else { "," };
                write!(output, "{comma}{}", explanation_json(codes, decoder.target(), index, &explanation))?;
            } else {
                writeln!(output, "{}", explanation_row(codes, decoder.target(), index, &explanation, &style))?;
            }
            index += 1;
        }
    }
    if args.file.json {
        writeln!(output, "]}}")?;
    }
    output.flush()?;
    Ok(())
}
