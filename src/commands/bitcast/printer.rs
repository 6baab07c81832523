//! Prints elements as they are read: as rows, or as a JSON document.

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
    pub(super) style: RenderStyle,
    pub(super) is_json: bool,
    /// Separator before the next element of the document.
    comma: &'static str,
}

/// Error that ended printing early.
pub(super) enum Failure {
    Input(Error),
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Input(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Failure {
    /// Returns the result of the command: a reader that closes the pipe early is not an error.
    pub(super) fn result(self, in_tensor: impl FnOnce(Error) -> Error) -> Result<()> {
        match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Self::Output(error) => Err(Error::io("cannot write to standard output", &error)),
            Self::Input(error) => Err(in_tensor(error)),
        }
    }
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
            write!(output, "{{\"schema\":{ELEMENTS},\"tensor\":{name},\"dtype\":\"{dtype}\",{more}\"shape\":{shape},")?;
            write!(output, "\"range\":[{start},{end}],\"elements\":[")?;
        }
        Ok(Self { output, style, is_json, comma: "" })
    }

    pub(super) fn element(&mut self, element: &Value) -> io::Result<()> {
        write!(self.output, "{}{element}", std::mem::replace(&mut self.comma, ","))
    }

    /// Prints a row for people.
    pub(super) fn row(&mut self, row: &str) -> io::Result<()> {
        writeln!(self.output, "{row}")
    }

    /// Ends the document, if it is one.
    pub(super) fn end(mut self) -> io::Result<()> {
        if self.is_json {
            writeln!(self.output, "]}}")?;
        }
        self.output.flush()
    }
}
