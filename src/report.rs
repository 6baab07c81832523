//! What a conversion did: as a summary for people and as JSON for scripts.

use crate::engine;
use crate::error::{shorten, size, visible};
use crate::kernel::{Counts, Loss};
use crate::operator::Operator;
use crate::plan::{Plan, PlannedTensor};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The version of the JSON document; it changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// A plan, and what came of it.
pub struct Report<'a> {
    /// What is done to the tensors that are converted.
    pub operator: Operator,
    /// What was to be done.
    pub plan: &'a Plan,
    /// The file read.
    pub input: &'a Path,
    /// The file written.
    pub output: &'a Path,
    /// The options that decide about values, as JSON.
    pub options: Value,
    /// Length of the input in bytes.
    pub bytes_in: u64,
    /// Counts of each tensor of the plan and the time it took; `None` for a dry run.
    pub done: Option<(Vec<Counts>, Duration)>,
}

impl Report<'_> {
    /// The tensors as JSON, with their counts if there are any.
    #[must_use]
    pub fn tensors(&self, counts: Option<&Vec<Counts>>) -> Vec<Value> {
        let tensors = self.plan.tensors.iter().enumerate();
        tensors.map(|(index, tensor)| tensor_json(tensor, counts.map(|counts| &counts[index]))).collect()
    }

    /// The JSON document.
    #[must_use]
    pub fn json(&self) -> Value {
        let tensors = self.tensors(self.done.as_ref().map(|(counts, _)| counts));
        let mut document = json!({
            "schema": SCHEMA,
            "tcast": env!("CARGO_PKG_VERSION"),
            "operator": self.operator.name(),
            "input": self.input.to_string_lossy(),
            "output": self.output.to_string_lossy(),
            "dry_run": self.done.is_none(),
            "options": self.options,
            "tensors": tensors,
            "tensors_cast": self.converted(),
            "tensors_copied": self.plan.tensors.len() - self.converted(),
            "bytes_in": self.bytes_in,
            "bytes_out": self.plan.len,
        });
        if let Some((_, time)) = &self.done {
            document["seconds"] = json!(time.as_secs_f64());
            document["counts"] = counts_json(&self.total());
        }
        document
    }

    /// The summary, several lines.
    #[must_use]
    pub fn summary(&self) -> String {
        let copied = self.plan.tensors.len() - self.converted();
        let verb = self.operator.name();
        let mut text = match self.converted() {
            0 => format!("{verb} no tensor"),
            count => format!("{verb} {} to {}", tensors(count), self.targets()),
        };
        if copied > 0 {
            let _ = write!(text, ", copied {copied}");
        }
        let (size_in, size_out) = (size(self.bytes_in), size(self.plan.len));
        let _ =
            write!(text, "\n{} -> {}", visible(&self.input.to_string_lossy()), visible(&self.output.to_string_lossy()));
        let _ = write!(text, "\n{size_in} -> {size_out}");
        if let Some((_, time)) = &self.done {
            let seconds = time.as_secs_f64();
            let _ = write!(text, " in {seconds:.2} s ({}/s)", size((self.bytes_in as f64 / seconds.max(1e-9)) as u64));
        }
        let total = self.total();
        let values: u64 =
            self.plan.tensors.iter().filter(|tensor| tensor.is_converted).map(|tensor| tensor.source.count).sum();
        // Rounding is what a cast is for: inexact values are in the JSON, and said here only by the others.
        for loss in Loss::ALL.into_iter().filter(|loss| *loss != Loss::Inexact && total[*loss] > 0) {
            let share = total[loss] as f64 / values as f64 * 100.0;
            let share = if share < 0.01 { "under 0.01%".to_owned() } else { format!("{share:.2}%") };
            let _ = write!(text, "\n  {} of {values} values {} ({share})", total[loss], loss.describe());
        }
        if self.done.is_some() && total.is_lossless() && values > 0 && self.operator != Operator::BitCast {
            text.push_str("\n  every value came through unchanged");
        }
        text
    }

    /// A table of what would become what.
    #[must_use]
    pub fn table(&self) -> String {
        let rows: Vec<[String; 4]> = self
            .plan
            .tensors
            .iter()
            .map(|tensor| {
                let to = if tensor.is_converted { tensor.conversion.to.dtype().name() } else { "kept" };
                let bytes = tensor.target.end - tensor.target.start;
                let shape = shorten(&format!("{:?}", tensor.source.shape));
                [shorten(&tensor.name), shape, format!("{} -> {to}", tensor.conversion.from.dtype()), size(bytes)]
            })
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [0, 1, 2, 3].map(width);
        let line = |row: &[String; 4]| {
            let [name, shape, types, bytes] = row;
            let [a, b, c, d] = widths;
            format!("{name:a$}  {shape:b$}  {types:c$}  {bytes:>d$}").trim_start().to_owned()
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn converted(&self) -> usize {
        self.plan.tensors.iter().filter(|tensor| tensor.is_converted).count()
    }

    fn total(&self) -> Counts {
        self.done.as_ref().map(|(counts, _)| engine::total(counts)).unwrap_or_default()
    }

    /// The types converted to, in the order of the tensors.
    fn targets(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for tensor in self.plan.tensors.iter().filter(|tensor| tensor.is_converted) {
            if !names.contains(&tensor.conversion.to.dtype().name()) {
                names.push(tensor.conversion.to.dtype().name());
            }
        }
        names.join(", ")
    }
}

fn tensor_json(tensor: &PlannedTensor, counts: Option<&Counts>) -> Value {
    let mut value = json!({
        "name": tensor.name,
        "shape": tensor.source.shape,
        "from": tensor.conversion.from.dtype().name(),
        "to": tensor.conversion.to.dtype().name(),
        "cast": tensor.is_converted,
        "bytes_in": tensor.source.data.stored_len(),
        "bytes_out": tensor.target.end - tensor.target.start,
    });
    if !tensor.source.name.is_empty() && tensor.source.name != tensor.name {
        value["renamed_from"] = json!(tensor.source.name);
    }
    if let Some(counts) = counts {
        value["counts"] = counts_json(counts);
    }
    value
}

/// Counts as JSON, each by its name.
#[must_use]
pub fn counts_json(counts: &Counts) -> Value {
    let pairs = Loss::ALL.into_iter().map(|loss| (loss.name().to_owned(), json!(counts[loss])));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn tensors(count: usize) -> String {
    if count == 1 { "1 tensor".to_owned() } else { format!("{count} tensors") }
}
