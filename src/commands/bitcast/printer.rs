//! Chooses the elements of a tensor by `--range`, and prints them as they are read: as rows, or as a JSON document.

use crate::cli::{BitcastArgs, Position};
use crate::commands::messages;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::measure::bits::RenderStyle;
use crate::report::schema::ELEMENTS;
use crate::text::{json_text, stdout_columns};
use anstream::AutoStream;
use serde_json::{Value, json};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::ops::Range;

/// Printer of a tensor's elements on standard output.
pub(super) struct ElementPrinter {
    output: BufWriter<AutoStream<StdoutLock<'static>>>,
    style: RenderStyle,
    pub(super) is_json: bool,
    /// Separator before the next element of the document.
    comma: &'static str,
}

/// Returns the result of the command. An error of the input is wrapped in one of the output.
pub(super) fn finish(printed: io::Result<()>, in_tensor: impl FnOnce(Error) -> Error) -> Result<()> {
    let Err(error) = printed else { return Ok(()) };
    error.downcast().map_or_else(|error| messages::printed(Err(error)), |error| Err(in_tensor(error)))
}

impl ElementPrinter {
    /// Begins to print a range of elements. `more` are fields of the document that follow the type, each with a comma.
    pub(super) fn begin(
        is_json: bool,
        (name, dtype, shape): (&str, Dtype, &[u64]),
        more: &str,
        Range { start, end }: &Range<u64>,
    ) -> io::Result<Self> {
        let width = stdout_columns().unwrap_or(80);
        let index_width = end.saturating_sub(1).to_string().len();
        let style = RenderStyle { is_terminal: io::stdout().is_terminal(), index_width, width };
        let mut output = BufWriter::new(anstream::stdout().lock());
        if is_json {
            let (name, shape) = (json_text(&name), json!(shape));
            let version = env!("CARGO_PKG_VERSION");
            write!(output, "{{\"schema\":{ELEMENTS},\"tcast\":\"{version}\",\"tensor\":{name},")?;
            write!(output, "\"dtype\":\"{dtype}\",{more}\"shape\":{shape},")?;
            write!(output, "\"range\":[{start},{end}],\"elements\":[")?;
        }
        Ok(Self { output, style, is_json, comma: "" })
    }

    /// Prints an element in the document, or a row for people.
    pub(super) fn element(
        &mut self,
        json: impl FnOnce() -> Value,
        row: impl FnOnce(&RenderStyle) -> String,
    ) -> io::Result<()> {
        if self.is_json {
            return write!(self.output, "{}{}", std::mem::replace(&mut self.comma, ","), json());
        }
        writeln!(self.output, "{}", row(&self.style))
    }

    /// Ends the document, if it is one.
    pub(super) fn end(mut self) -> io::Result<()> {
        if self.is_json {
            writeln!(self.output, "]}}")?;
        }
        self.output.flush()
    }
}

pub(super) fn range_of(args: &BitcastArgs, count: u64, shape: &[u64]) -> Result<Range<u64>> {
    /// Number of elements that a message proposes to print.
    const FEW: u64 = 16;
    let Some(range) = &args.range else { return Ok(0..count) };
    let index = |position: &Position, is_end| index_of(position, shape, is_end);
    let start = range.start.as_ref().map_or(Ok(0), |start| index(start, false))?;
    let end = match &range.end {
        _ if range.is_single => start.saturating_add(1),
        Some(end) => index(end, true)?,
        None => count.max(start),
    };
    if start > count || end > count || start == count && range.end.is_none() && count > 0 {
        let what = if start < count { format!("ends at element {end}") } else { format!("begins at element {start}") };
        let error = Error::new(format!("--range {what}; there are {count}"));
        let start = if start < count { start } else { count.saturating_sub(FEW) };
        return Err(error.remedy(format!("--range {start}..{count}")));
    }
    if end < start {
        return Err(Error::usage("--range ends before it starts"));
    }
    Ok(start..end)
}

/// Returns the index of an element in row-major order. An end may be just after the last element of a row.
fn index_of(position: &Position, shape: &[u64], is_end: bool) -> Result<u64> {
    let coordinates = match position {
        Position::Index(index) => return Ok(*index),
        Position::Coordinates(coordinates) => coordinates,
    };
    if coordinates.len() != shape.len() {
        let (given, rank) = (coordinates.len(), shape.len());
        let error = Error::new(format!("--range has {given} coordinates, and the shape {shape:?} has {rank}"));
        return Err(error.remedy("give one for each dimension, or an index over all elements"));
    }
    let mut index = 0_u64;
    for (at, (&coordinate, &length)) in coordinates.iter().zip(shape).enumerate() {
        let may_be_behind = is_end && at + 1 == shape.len();
        if coordinate > length || coordinate == length && !may_be_behind {
            let error = Error::new(format!("--range goes to {coordinates:?}, and the shape is {shape:?}"));
            return Err(error.remedy("coordinates are counted from 0"));
        }
        index = index.saturating_mul(length).saturating_add(coordinate); // the product of the shape fits
    }
    Ok(index)
}
