//! A conversion in words: the summary, the table of a dry run, and a line for each of several inputs.

use super::{Report, TensorReport};
use crate::container::by_extension;
use crate::dtype::Dtype;
use crate::kernel::{Condition, Counts, Loss};
use crate::measure::accuracy::Accuracy;
use crate::operator::Operator;
use crate::select::KeptReason;
use crate::text::{brief, columns, counted, is_number, path_text, share, shorten, size, width};
use anstyle::{AnsiColor, Style};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Number of rows of the table that a summary shows; a dry run shows all.
const FEW_ROWS: usize = 30;

/// Losses after which a loader may compute NaN: a summary names their tensors.
const BROKEN: [Loss; 3] = [Loss::Infinite, Loss::Nan, Loss::NanLost];

pub(super) const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// Surroundings of a summary: the terminal, and the options that the summary refers to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings {
    /// Number of columns that tables must fit; `None` without a terminal.
    pub columns: Option<usize>,
    /// Option that shows all rows of the table.
    pub all_rows: &'static str,
    /// Option that prints the figures of all tensors.
    pub all_tensors: &'static str,
    /// Option that converts tensors of integers, too.
    pub integers: &'static str,
    /// Option with the size below which tensors are kept.
    pub smallest: &'static str,
}

impl Report {
    /// Returns the bytes that the outputs take on the disk while they are written.
    pub(crate) fn space(&self) -> u64 {
        self.files.iter().map(|file| if file.will_be_deflated { 2 * file.bytes } else { file.bytes }).sum()
    }

    /// True if most values that were converted became zero.
    pub(crate) fn flushes_most(&self) -> bool {
        let values: u64 = self.converted().map(TensorReport::elements).sum();
        self.total()[Loss::Flushed] > values / 2
    }

    /// Returns the number of values that were converted, including values that only got another type.
    fn count_converted(&self) -> u64 {
        let tensors = self.tensors().filter(|tensor| tensor.is_converted || tensor.has_new_type());
        tensors.map(TensorReport::elements).sum()
    }

    /// Returns the rate of a conversion that took this long, in bytes of the input.
    pub(super) fn bytes_per_second(&self, time: Duration) -> u64 {
        (self.bytes_in as f64 / time.as_secs_f64().max(1e-9)) as u64
    }

    /// Formats the size of the outputs.
    pub(super) fn size_out(&self) -> String {
        let is_deflated_later = self.files.iter().any(|file| file.will_be_deflated);
        let size = size(self.bytes_out());
        if is_deflated_later { format!("{size} before it is deflated") } else { size }
    }

    /// Describes the outcome for the tensors, in a few words.
    fn heading(&self, around: Surroundings) -> String {
        let copied = self.tensors().count() - self.converted().count();
        let mut text = self.action();
        if copied > 0 {
            let verb = if self.time.is_none() { "copy" } else { "copied" };
            let _ = write!(text, ", {verb} {copied}{}", self.reasons(around));
        }
        if let Some(first) = self.left_out.first() {
            let verb = if self.time.is_none() { "leave" } else { "left" };
            let which = if self.left_out.len() == 1 { ":" } else { ", such as" };
            let _ = write!(text, ", {verb} out {}{which} {}", self.left_out.len(), shorten(first));
        }
        text
    }

    /// Describes the conversion that was done, or would be.
    pub(super) fn action(&self) -> String {
        let would = if self.time.is_none() { "would " } else { "" };
        // Weights of a quantized input that are not quantized in the output.
        let (decoded, others): (Vec<_>, Vec<_>) =
            self.converted().partition(|tensor| self.is_quantized() && tensor.layout.is_some());
        if others.is_empty() && decoded.is_empty() {
            return format!("{would}{} no tensor", self.operator);
        }
        let action = |operator: &str, tensors: &[&TensorReport]| {
            let count = counted(tensors.len() as u64, "tensor");
            (!tensors.is_empty()).then(|| format!("{operator} {count} to {}", names(tensors.iter().copied())))
        };
        let actions = [action(&self.operator, &others), action(Operator::Dequantize.name(), &decoded)];
        would.to_owned() + &actions.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// Returns a line for one input of several, and one for each kind of loss.
    pub(crate) fn line(&self, around: Surroundings) -> String {
        let (input, output) = (path_text(&self.input), path_text(&self.output));
        let (size_in, size_out) = (size(self.bytes_in), self.size_out());
        let values = if self.time.is_some() || self.is_measured() { self.values(around) } else { String::new() };
        format!("{input} -> {output}: {}, {size_in} -> {size_out}{values}", self.heading(around))
    }

    /// Returns the summary, several lines.
    #[must_use]
    pub fn summary(&self, around: Surroundings) -> String {
        let (all, mut text) = (self.tensors().count(), self.heading(around));
        let (size_in, size_out) = (size(self.bytes_in), self.size_out());
        let _ = write!(text, "\n{} -> {}", path_text(&self.input), path_text(&self.output));
        if self.files.len() > 1 {
            let _ = write!(text, ", {} shards", self.files.len());
        }
        let _ = write!(text, "\n{size_in} -> {size_out}");
        if let Some(time) = &self.time {
            let seconds = time.as_secs_f64();
            let _ = write!(text, " in {seconds:.2} s");
            let _ = match self.before {
                0 => write!(text, " ({}/s)", size(self.bytes_per_second(*time))),
                before => write!(text, ", {} there before", counted(before as u64, "shard")),
            };
            if all > 1 {
                let mut rows = self.rows();
                if self.is_onnx_model() {
                    rows.retain(|row| row[3].contains("->")); // kept tensors follow by their reasons
                }
                for line in lines(&rows[..rows.len().min(FEW_ROWS)], around.columns) {
                    let _ = write!(text, "\n{line}");
                }
                if rows.len() > FEW_ROWS {
                    let more = counted((rows.len() - FEW_ROWS) as u64, "more row");
                    let _ = write!(text, "\n  ... and {more}, which {} shows", around.all_rows);
                }
            }
        }
        text += &self.merged();
        text += &self.unfit();
        if self.is_quantized() {
            text += &self.requantized();
        }
        if self.time.is_some() || self.is_measured() {
            text += &self.values(around);
        }
        text
    }

    /// Describes the losses, a line each, each after a line feed.
    fn values(&self, around: Surroundings) -> String {
        let mut text = String::new();
        if self.tensors().any(|tensor| tensor.accuracy.is_some()) {
            let _ = write!(text, "\n{}", self.accuracy_table(around));
        }
        let (total, values) = (self.total(), self.count_converted());
        for (loss, line) in self.losses() {
            if BROKEN.contains(&loss) {
                let _ = write!(text, "\n  {WARNING}{line}{WARNING:#}");
                text += &self.tensors_with(&[(Condition::Lost(loss), "")], around);
            } else {
                let _ = write!(text, "\n  {line}");
            }
        }
        let bools = self.converted().filter(|tensor| (tensor.from, tensor.to) == (Dtype::Bool, Dtype::Bool));
        let bytes: u64 = bools.filter_map(|tensor| tensor.counts.as_ref()).map(|counts| counts[Loss::Inexact]).sum();
        if bytes > 0 {
            let verb = if bytes == 1 { "was" } else { "were" };
            let _ = write!(text, "\n  {} of bools {verb} neither 0 nor 1 and became 1", counted(bytes, "byte"));
        }
        if total.input_nan + total.input_infinite > 0 {
            let _ = write!(text, "\n  {} came with the input", specials(&total, |count| count.to_string()));
            let conditions = [(Condition::InputNan, " NaN"), (Condition::InputInfinite, " Inf")];
            text += &self.tensors_with(&conditions, around);
        }
        if self.is_quantized() {
            text += &self.quantized_values();
        } else if let Some(outcome) = self.lossless_outcome(&total).filter(|_| values > 0) {
            let _ = write!(text, "\n  {outcome}");
        }
        text
    }

    /// Describes each kind of loss. Rounding is the purpose of a cast: inexact values are counted in the JSON, and not
    /// listed here.
    pub(super) fn losses(&self) -> Vec<(Loss, String)> {
        let (total, values) = (self.total(), self.count_converted());
        let line = |loss: Loss| {
            let infinite = self.tensors().filter(|tensor| tensor.count_of(Condition::Lost(loss)) > 0);
            let when = infinite.map(|tensor| tensor.when_met(Condition::Lost(loss))).max().unwrap_or_default();
            let (count, share) = (counted(values, "value"), share(total[loss], values));
            (loss, format!("{} of {count} {}{when} ({share})", total[loss], loss.describe()))
        };
        Loss::ALL.into_iter().filter(|loss| *loss != Loss::Inexact && total[*loss] > 0).map(line).collect()
    }

    /// True if the output is an ONNX model, whose nodes use integers as shapes and indices.
    fn is_onnx_model(&self) -> bool {
        by_extension(&self.output).is_some_and(|format| format.format_info().is_changed_only())
    }

    /// Lists the reasons for which tensors are copied that the user did not exclude.
    fn reasons(&self, around: Surroundings) -> String {
        if self.is_quantized() {
            return self.kept_reasons();
        }
        let of = |why| self.tensors().filter(move |tensor| tensor.kept == Some(why));
        let (already, others) = (of(KeptReason::Already).count(), of(KeptReason::NotFloating).count());
        let mut reasons = Vec::new();
        if already > 0 {
            reasons.push(format!("{already} already {}", names(of(KeptReason::Already))));
        }
        if others > 0 {
            let hint = if self.is_onnx_model() { String::new() } else { format!(" ({} casts them)", around.integers) };
            reasons.push(format!("{others} not floating{hint}"));
        }
        for reason in KeptReason::OF_MODELS {
            match of(reason).count() {
                0 => {}
                count if reason == KeptReason::Small => {
                    reasons.push(format!("{count} too small ({})", around.smallest));
                }
                1 => reasons.push(format!("1 {}", reason.describe_one())),
                count => reasons.push(format!("{count} {}", reason.describe())),
            }
        }
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) }
    }

    /// Lists the tensors with values that met one of these conditions, a line each, with a word after each number.
    fn tensors_with(&self, conditions: &[(Condition, &str)], around: Surroundings) -> String {
        let line = |tensor: &TensorReport| {
            let counts = tensor.counts.as_ref()?;
            let parts = conditions.iter().filter(|(condition, _)| counts[*condition] > 0).map(|(condition, word)| {
                let first = tensor.firsts.of(*condition).and_then(|first| tensor.place(first.at));
                format!("{}{word}{}", counts[*condition], first.map_or(String::new(), |at| format!(", first at {at}")))
            });
            let parts: Vec<String> = parts.collect();
            // The tensor of a format without names may have none.
            let name = if tensor.name.is_empty() { String::new() } else { format!("{}: ", shorten(&tensor.name)) };
            (!parts.is_empty()).then(|| format!("\n    {name}{}", parts.join("; ")))
        };
        let lines: Vec<String> = self.tensors().filter_map(line).collect();
        let more = lines.len().saturating_sub(FEW_ROWS);
        let more = if more > 0 {
            format!("\n    ... and {}; {} has all", counted(more as u64, "more tensor"), around.all_tensors)
        } else {
            String::new()
        };
        lines[..lines.len().min(FEW_ROWS)].concat() + &more
    }

    /// Returns a table of the types before and after. It fits a terminal of this many columns.
    #[must_use]
    pub fn table(&self, terminal: Option<usize>) -> String {
        const MARGIN: usize = 2;
        let lines = lines(&self.rows(), terminal.map(|columns| columns + MARGIN));
        lines.iter().flat_map(|row| row.lines()).map(|line| &line[MARGIN..]).collect::<Vec<_>>().join("\n")
    }

    /// Returns a row for each set of tensors whose names differ by numbers only, like names of layers.
    fn rows(&self) -> Vec<[String; 6]> {
        let mut groups: Vec<SummaryRow> = Vec::new();
        // There may be a million tensors of the same few patterns.
        let (mut pattern, mut places) = (String::new(), HashMap::<String, Vec<usize>>::new());
        for tensor in self.tensors() {
            set_pattern(&mut pattern, &tensor.name);
            let known = places.get(&pattern).into_iter().flatten().copied().find(|at| groups[*at].is_alike(tensor));
            let at = known.unwrap_or_else(|| {
                groups.push(SummaryRow { first: tensor, count: 0, same_shape: true, bytes_in: 0, bytes_out: 0 });
                places.entry(pattern.clone()).or_default().push(groups.len() - 1);
                groups.len() - 1
            });
            groups[at].add(tensor);
        }
        let row = |group: &SummaryRow| {
            let SummaryRow { first, count, same_shape, bytes_in, bytes_out } = *group;
            let (name, count) = match count {
                1 => (first.name.to_string(), String::new()),
                _ => (pattern_of(&first.name), format!("{count} tensors")),
            };
            let shape = if same_shape { shorten(&format!("{:?}", first.shape)) } else { "[...]".to_owned() };
            let to = match first.kept {
                None => format!("-> {}", first.new_type_name()),
                Some(reason) if first.has_new_type() => format!("-> {}: {}", first.new_type_name(), reason.describe()),
                Some(KeptReason::Already) => "already".to_owned(),
                Some(reason) if self.is_quantized() => format!("kept: {}", reason.describe()),
                Some(_) => "kept".to_owned(),
            };
            [shorten(&name), count, shape, format!("{} {to}", first.type_name()), size(bytes_in), size(bytes_out)]
        };
        groups.iter().map(row).collect()
    }
}

/// Counts NaN and Inf in the input; leaves out a count of 0.
pub(super) fn specials(total: &Counts, number: impl Fn(u64) -> String) -> String {
    let came = [(total.input_nan, "NaN"), (total.input_infinite, "Inf")].into_iter().filter(|(count, _)| *count > 0);
    came.map(|(count, what)| format!("{} {what}", number(count))).collect::<Vec<_>>().join(" and ")
}

/// Lists the new types of tensors, each once, in the order of the tensors.
pub(super) fn names<'a>(tensors: impl Iterator<Item = &'a TensorReport>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for tensor in tensors {
        if !names.contains(&tensor.new_type_name()) {
            names.push(tensor.new_type_name());
        }
    }
    names.join(", ")
}

struct SummaryRow<'r> {
    first: &'r TensorReport,
    count: u64,
    /// True if all have the shape of the first.
    same_shape: bool,
    bytes_in: u64,
    bytes_out: u64,
}

impl SummaryRow<'_> {
    /// True if a tensor whose name has the same pattern had the same outcome.
    fn is_alike(&self, tensor: &TensorReport) -> bool {
        let what = |tensor: &TensorReport| (tensor.from, tensor.kept);
        what(self.first) == what(tensor)
            && self.first.new_type_name() == tensor.new_type_name()
            && self.first.stored == tensor.stored
    }

    fn add(&mut self, tensor: &TensorReport) {
        self.count += 1;
        self.same_shape &= tensor.shape == self.first.shape;
        self.bytes_in += tensor.bytes_in;
        self.bytes_out += tensor.bytes_out;
    }
}

/// Returns a tensor's name with a star for each part that is a number.
fn pattern_of(name: &str) -> String {
    let mut pattern = String::new();
    set_pattern(&mut pattern, name);
    pattern
}

/// Does the same in place of an earlier pattern.
fn set_pattern(pattern: &mut String, name: &str) {
    pattern.clear();
    for (at, part) in name.split('.').enumerate() {
        if at > 0 {
            pattern.push('.');
        }
        pattern.push_str(if is_number(part) { "*" } else { part });
    }
}

/// Aligns rows in columns; the last two are sizes, before and after.
fn lines(rows: &[[String; 6]], terminal: Option<usize>) -> Vec<String> {
    let [wide_before, wide_after] = [4, 5].map(|column| width(rows.iter().map(|row| &*row[column])));
    let rows = rows.iter().map(|[name, count, shape, types, before, after]| {
        let sizes = format!("{before:>wide_before$} -> {after:>wide_after$}");
        [name, count, shape, types, &sizes].map(String::clone)
    });
    columns(&rows.collect::<Vec<_>>(), &[], terminal).collect()
}

impl Report {
    /// Returns the table of the accuracy, the noisiest tensors first. Rows of tensors with values that
    /// became infinite or NaN end with their numbers.
    pub(super) fn accuracy_table(&self, around: Surroundings) -> String {
        let mut measured: Vec<(&TensorReport, &Accuracy)> =
            self.tensors().filter_map(|tensor| Some((tensor, tensor.accuracy.as_deref()?))).collect();
        // Tensors without the figure come before tensors without noise.
        let sqnr = |accuracy: &Accuracy| accuracy.sqnr_db.unwrap_or(f64::MAX);
        measured.sort_by(|(_, left), (_, right)| sqnr(left).total_cmp(&sqnr(right)));
        let mark = |tensor: &TensorReport| {
            let counts = tensor.counts.as_deref();
            let broken = BROKEN.map(|loss| (loss, counts.map_or(0, |counts| counts[loss])));
            let broken = broken.into_iter().filter(|(_, count)| *count > 0);
            broken.map(|(loss, count)| format!("{count} {}", loss.describe())).collect::<Vec<_>>().join(", ")
        };
        let row = |(tensor, accuracy): &(&TensorReport, &Accuracy)| {
            let error = |error: f64, at: Option<u64>| match at.filter(|_| error > 0.0).and_then(|at| tensor.place(at)) {
                Some(place) => format!("{} at {place}", brief(error)),
                None => brief(error),
            };
            let number = |number: Option<f64>| number.map_or("-".to_owned(), brief);
            [
                shorten(&tensor.name),
                match accuracy.sqnr_db {
                    _ if accuracy.is_exact => "exact".to_owned(),
                    Some(sqnr) if sqnr.is_finite() => format!("{sqnr:.2} dB"),
                    Some(_) => "no noise".to_owned(), // but Inf or NaN became something else
                    None => "-".to_owned(),
                },
                error(accuracy.max_abs_error, accuracy.max_abs_error_at),
                error(accuracy.max_rel_error, accuracy.max_rel_error_at),
                number(accuracy.mean_error),
                number(accuracy.cosine),
                mark(tensor),
            ]
        };
        let head = ["", "SQNR", "largest error", "largest relative", "mean error", "cosine", ""].map(str::to_owned);
        let rows: Vec<[String; 7]> = std::iter::once(head).chain(measured.iter().take(FEW_ROWS).map(row)).collect();
        let more = measured.len().saturating_sub(FEW_ROWS);
        let more = match more {
            0 => String::new(),
            _ => format!("\n  ... and {more} more, less noisy; {} has all", around.all_tensors),
        };
        columns(&rows, &[], around.columns).collect::<Vec<_>>().join("\n") + &more
    }
}

#[cfg(test)]
mod tests {
    use super::pattern_of;

    #[test]
    fn layers_have_one_pattern() {
        assert_eq!(pattern_of("model.layers.12.mlp.experts.3.w1.weight"), "model.layers.*.mlp.experts.*.w1.weight");
        assert_eq!(pattern_of("conv1.0"), "conv1.*");
        assert_eq!(pattern_of(""), "");
    }
}
