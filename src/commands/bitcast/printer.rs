//! Prints elements as they are read: as rows, or as a JSON document.

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
