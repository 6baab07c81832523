//! A comparison in words.

use crate::dtype::Dtype;
use crate::measure::compare::{DiffReport, DiffStatus, FirstDifference, TensorDiff};
use crate::text::{brief, columns, counted, is, shorten};
use std::fmt::Write as _;

/// Lists the differences, one line each, and a summary. The lines fit a terminal of this many columns.
pub(crate) fn text(report: &DiffReport, terminal: Option<usize>) -> String {
    let differing = report.tensors.iter().filter(|tensor| !tensor.comparison.status.is_equal());
    let rows: Vec<[String; 3]> = differing.map(row).collect();
    columns(&rows, &[], terminal).map(|line| line + "\n").collect::<String>() + &summary(report)
}

impl TensorDiff {
    /// Returns the layout or the type on each side, as far as they are known.
    pub(super) fn type_names(&self) -> [Option<&str>; 2] {
        let [unsupported_a, unsupported_b] = self.unsupported.each_ref().map(Option::as_deref);
        [
            self.layout_a.or(self.dtype_a.map(Dtype::name)).or(unsupported_a),
            self.layout_b.or(self.dtype_b.map(Dtype::name)).or(unsupported_b),
        ]
    }

    /// True if one side holds text.
    pub(super) fn holds_text(&self) -> bool {
        [self.dtype_a, self.dtype_b].contains(&Some(Dtype::String))
    }
}

/// Describes a result in a word or two.
pub(super) fn words_of(status: DiffStatus) -> &'static str {
    match status {
        DiffStatus::Equal => "equal",
        DiffStatus::BitsDiffer => "bits differ",
        DiffStatus::WithinTolerance => "within tolerance",
        DiffStatus::ValuesDiffer => "values differ",
        DiffStatus::TypesDiffer => "types differ",
        DiffStatus::ShapesDiffer => "shapes differ",
        DiffStatus::OnlyInA => "only in A",
        DiffStatus::OnlyInB => "only in B",
        DiffStatus::Unreadable => "unreadable",
    }
}

/// Describes a difference in a word or two, and details.
fn row(tensor: &TensorDiff) -> [String; 3] {
    let [a, b] = tensor.type_names().map(Option::unwrap_or_default);
    let with_shape =
        |name: &str, shape: &Option<Vec<u64>>| format!("{name} {:?}", shape.as_deref().unwrap_or_default());
    let [in_a, in_b] = [with_shape(a, &tensor.shape_a), with_shape(b, &tensor.shape_b)];
    let more = match tensor.comparison.status {
        DiffStatus::BitsDiffer => figures(tensor, true),
        DiffStatus::ValuesDiffer if a == b => figures(tensor, false),
        DiffStatus::ValuesDiffer => format!("{} ({a}, {b})", figures(tensor, false)),
        DiffStatus::TypesDiffer if tensor.holds_text() => format!("{a}, {b}"),
        DiffStatus::TypesDiffer => {
            return [shorten(&tensor.name), "values equal,".to_owned(), format!("types differ: {a}, {b}")];
        }
        DiffStatus::ShapesDiffer => format!("{in_a}, {in_b}"),
        DiffStatus::OnlyInA => in_a,
        DiffStatus::OnlyInB => in_b,
        DiffStatus::Unreadable => tensor.error.as_ref().map(ToString::to_string).unwrap_or_default(),
        DiffStatus::Equal | DiffStatus::WithinTolerance => String::new(),
    };
    [shorten(&tensor.name), words_of(tensor.comparison.status).to_owned(), more]
}

/// Describes the number of differing elements, the first one, and the largest errors.
fn figures(tensor: &TensorDiff, with_bits: bool) -> String {
    let count: u64 = tensor.shape_a.iter().flatten().product();
    let mut text = format!("{} of {count}", tensor.comparison.differing.unwrap_or_default());
    if let Some(first) = &tensor.comparison.first_difference {
        let FirstDifference { index, a, b, bits_a, bits_b } = &**first;
        let [a, b] = [(a, bits_a), (b, bits_b)].map(|(value, bits)| match bits {
            Some(bits) if with_bits => format!("{value} ({bits})"),
            Some(_) => value.clone(),
            None => format!("\"{}\"", shorten(value)),
        });
        let _ = write!(text, ", first at {index:?}: {a}, {b}");
    }
    if let Some(figures) = &tensor.comparison.figures
        && let (accuracy, Some(at)) = (&figures.accuracy, &figures.max_abs_error_index)
        && accuracy.max_abs_error > 0.0
    {
        let (absolute, relative) = (brief(accuracy.max_abs_error), brief(accuracy.max_rel_error));
        let _ = write!(text, "; largest absolute error {absolute} at {at:?}, relative {relative}");
        if let Some(sqnr) = accuracy.sqnr_db.filter(|sqnr| sqnr.is_finite()) {
            let _ = write!(text, ", SQNR {sqnr:.2} dB");
        }
    }
    text
}

fn summary(report: &DiffReport) -> String {
    let all = report.tensors.len();
    let count = |status| report.counts[&status];
    let tensors = counted(all as u64, "tensor");
    // With an exponent instead of many zeros.
    let number = |number: f64| format!("{number:?}").trim_end_matches(".0").to_owned();
    let within = match [report.tolerance, report.rtol].map(|tolerance| tolerance.map(number)) {
        [None, None] => String::new(),
        [Some(tolerance), None] => format!(" within {tolerance}"),
        [None, Some(rtol)] => format!(" within {rtol} of A"),
        [Some(tolerance), Some(rtol)] => format!(" within {tolerance} + {rtol} of A"),
    };
    if report.is_equal {
        let within = if count(DiffStatus::Equal) == all { String::new() } else { within };
        return format!("{tensors} {} equal{within}", is(all as u64));
    }
    let equal = count(DiffStatus::Equal) + count(DiffStatus::WithinTolerance);
    let [in_a, in_b, unreadable] = [DiffStatus::OnlyInA, DiffStatus::OnlyInB, DiffStatus::Unreadable].map(count);
    let differ = all - equal - in_a - in_b - unreadable;
    let differing = report.tensors.iter().filter(|tensor| tensor.comparison.status == DiffStatus::ValuesDiffer);
    let errors =
        differing.filter_map(|tensor| Some((tensor.comparison.figures.as_ref()?.accuracy.max_abs_error, &tensor.name)));
    let largest = errors.reduce(|largest, next| if next.0 > largest.0 { next } else { largest });
    let largest = largest.filter(|(error, _)| *error > 0.0).map_or(String::new(), |(error, name)| {
        format!(" (largest absolute error {} in '{}')", brief(error), shorten(name))
    });
    let unreadable = if unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
    let verb = if differ == 1 { "differs" } else { "differ" };
    format!(
        "{tensors}: {equal} equal{within}, {differ} {verb}{largest}, {in_a} only in A, {in_b} only in B{unreadable}"
    )
}
