//! `tcast diff`: compares two files or folders of shards.

mod report;

use super::messages::{print, print_json, warn};
use super::{check_matched, threads};
use crate::cli::DiffArgs;
use crate::container::Form;
use crate::container::checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::measure::compare::{self, CompareOptions, Comparison, Difference, Status};
use crate::plan;
use crate::progress;
use crate::read::{LogicalCheckpoint, Membership, ModelTensor};
use crate::report::schema;
use crate::text::{brief, columns, counted, is, path_text, shorten, stdout_columns};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Compares two inputs. The exit code is 0 when everything is equal, otherwise 1.
pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    diff(args).map(|is_equal| ExitCode::from(u8::from(!is_equal)))
}

fn diff(args: &DiffArgs) -> Result<bool> {
    if let Some(report) = &args.report {
        return report::check(report, args);
    }
    let Some(b) = &args.b else { return Err(Error::usage("name what to compare with")) };
    let [a, b] = [&args.a, b].map(|path| checkpoint::open(path, threads(args.view.threads)));
    let (a, b) = (a?, b?);
    plan::check_from(a.tensors().chain(b.tensors()).map(|(_, tensor)| tensor), args.from)?;
    let models = [&a, &b].map(LogicalCheckpoint::probe_parts);
    if !args.quiet {
        models.iter().for_each(print_problems);
    }
    let rows = matched(&models, args)?;
    let comparison = DiffResult::new(args, rows);
    a.check_unchanged()?;
    b.check_unchanged()?;
    if args.view.json {
        print_json(&comparison.json())?;
    } else if !args.quiet {
        print(&comparison.text())?;
    }
    let is_equal = comparison.is_equal();
    // Everything that could be read is shown before an error.
    comparison.outcomes.into_iter().find_map(Result::err).map_or(Ok(is_equal), Err)
}

/// Returns the tolerance for differences of values; `None` if not given.
fn tolerance(args: &DiffArgs) -> Option<compare::Tolerance> {
    let given = args.tolerance.or(args.rtol);
    given.map(|_| compare::Tolerance {
        absolute: args.tolerance.map_or(0.0, |tolerance| tolerance.0),
        relative: args.rtol.map_or(0.0, |rtol| rtol.0),
    })
}

/// A tensor of A, of B, or of both.
struct DiffRow<'a> {
    name: &'a str,
    sides: [Option<ModelTensor<'a>>; 2],
}

/// Warns if it is unclear which tensors are quantized weights.
fn print_problems(model: &LogicalCheckpoint) {
    let Some(problem) = model.found.problems.first() else { return };
    let more = match model.found.problems.len() - 1 {
        0 => String::new(),
        more => format!(" (and {} more like this)", counted(more as u64, "problem")),
    };
    let path = path_text(&model.source.path);
    warn(&format!("{path}: {}{more}: such tensors are compared as they are stored", problem.error));
}

#[derive(Clone, Copy)]
struct SideTensor<'a> {
    tensor: ModelTensor<'a>,
    /// True if the other side may lack it: scales of activations are not values of the model.
    is_optional: bool,
    /// Names of the outputs of Cast nodes that convert it, in an ONNX model.
    cast_names: &'a [String],
}

fn tensors_of<'a>(model: &'a LogicalCheckpoint<'a>) -> Vec<SideTensor<'a>> {
    let side = |(at, membership, tensor)| {
        let is_optional = matches!(membership, Membership::ActivationScale { .. });
        let cast_names = model.found.cast_names.get(&at).filter(|_| membership == Membership::Plain);
        SideTensor { tensor, is_optional, cast_names: cast_names.map_or(&[], Vec::as_slice) }
    };
    model.model_tensors().filter(|(_, membership, _)| *membership != Membership::Marker).map(side).collect()
}

/// Returns the chosen tensors, in the order of A; then the tensors that only B has.
fn matched<'a>(models: &'a [LogicalCheckpoint<'a>; 2], args: &DiffArgs) -> Result<Vec<DiffRow<'a>>> {
    let rows = pairs(models.each_ref().map(tensors_of));
    let selection = args.view.selection();
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    check_matched(&selection, &names, args.view.allow_unmatched, args.quiet)?;
    let (chosen, left): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| selection.selects(row.name));
    if chosen.is_empty() && !left.is_empty() {
        let error = Error::usage("--include and --exclude leave no tensor");
        return Err(error.remedy("tcast inspect lists the names"));
    }
    Ok(chosen)
}

/// Pairs the tensors of both sides by their names. `tcast cast` stores the `w` of a model as `w_float16`, and a Cast
/// node converts it to `w`, so the remaining tensors are paired by such names.
fn pairs<'a>([in_a, in_b]: [Vec<SideTensor<'a>>; 2]) -> Vec<DiffRow<'a>> {
    let only = |tensors: &[SideTensor<'a>]| {
        let mut needed = tensors.iter().filter(|one| !one.is_optional).map(|one| one.tensor);
        needed.next().filter(|_| needed.next().is_none())
    };
    if let (Some(a), Some(b)) = (only(&in_a), only(&in_b)) {
        return vec![DiffRow { name: a.name(), sides: [Some(a), Some(b)] }];
    }
    let mut left: Vec<_> = in_b.into_iter().map(Some).collect();
    let mut others: Vec<Option<ModelTensor>> = vec![None; in_a.len()];
    for with_casts in [false, true] {
        let names = |one: &SideTensor<'a>| {
            let cast_names: &'a [String] = if with_casts { one.cast_names } else { &[] };
            std::iter::once(one.tensor.name()).chain(cast_names.iter().map(String::as_str))
        };
        let mut by_name: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (at, one) in left.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_ref()?))) {
            names(one).for_each(|name| by_name.entry(name).or_default().push_back(at));
        }
        for (one, other) in in_a.iter().zip(&mut others).filter(|(_, other)| other.is_none()) {
            let mut found = names(one).filter_map(|name| left[by_name.get_mut(name)?.pop_front()?].take());
            *other = found.next().map(|found| found.tensor);
        }
    }
    let rows = in_a.iter().zip(others).filter(|(one, other)| other.is_some() || !one.is_optional);
    let rows = rows.map(|(one, other)| DiffRow { name: one.tensor.name(), sides: [Some(one.tensor), other] });
    let rest = left.into_iter().flatten().filter(|one| !one.is_optional);
    rows.chain(rest.map(|one| DiffRow { name: one.tensor.name(), sides: [None, Some(one.tensor)] })).collect()
}

struct DiffResult<'a> {
    args: &'a DiffArgs,
    rows: Vec<DiffRow<'a>>,
    /// Result for each row.
    outcomes: Vec<Result<Comparison>>,
}

impl<'a> DiffResult<'a> {
    /// Reads and compares all values.
    fn new(args: &'a DiffArgs, rows: Vec<DiffRow<'a>>) -> Self {
        let bytes = rows.iter().filter_map(|row| match row.sides {
            [Some(a), Some(b)] if a.shape() == b.shape() => Some(a.stored_len() + b.stored_len()),
            _ => None,
        });
        let progress = progress::shown("comparing", bytes.sum(), args.quiet);
        let options = CompareOptions {
            from: args.from,
            tolerance: tolerance(args),
            threads: threads(args.view.threads),
            progress: &*progress,
        };
        let outcomes = rows.iter().map(|row| match row.sides {
            [Some(a), Some(b)] => compare::of([a, b], &options),
            [_, None] => Ok(Comparison::of(Status::OnlyInA)),
            [None, _] => Ok(Comparison::of(Status::OnlyInB)),
        });
        let outcomes = outcomes.collect();
        Self { args, rows, outcomes }
    }

    fn is_equal(&self) -> bool {
        self.outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|outcome| outcome.status.is_equal()))
    }

    fn count(&self, wanted: impl Fn(Status) -> bool) -> usize {
        self.outcomes.iter().flatten().filter(|outcome| wanted(outcome.status)).count()
    }

    fn json(&self) -> Value {
        let counts = Status::ALL.map(|status| (status, self.count(|one| one == status)));
        let mut counts = json!(BTreeMap::from(counts));
        counts["unreadable"] = json!(self.outcomes.iter().filter(|outcome| outcome.is_err()).count());
        let tensors = self.rows.iter().zip(&self.outcomes).map(|(row, outcome)| self.tensor_json(row, outcome));
        json!({
            "schema": schema::DIFFERENCES,
            "tcast": env!("CARGO_PKG_VERSION"),
            "a": self.args.a.to_string_lossy(),
            "b": self.args.b.as_ref().map(|b| b.to_string_lossy()),
            "tolerance": self.args.tolerance.map(|tolerance| tolerance.0),
            "rtol": self.args.rtol.map(|rtol| rtol.0),
            "is_equal": self.is_equal(),
            "counts": counts,
            "tensors": tensors.collect::<Vec<_>>(),
        })
    }

    fn tensor_json(&self, row: &DiffRow, outcome: &Result<Comparison>) -> Value {
        let [a, b] = row.sides;
        let dtype = |side: Option<ModelTensor>| side.and_then(|tensor| self.dtype(row, tensor)).map(Dtype::name);
        let outcome_or_none = outcome.as_ref().ok();
        let first = outcome_or_none.and_then(|outcome| outcome.first.as_ref()).map(|Difference { index, elements }| {
            let [a, b] = elements;
            json!({ "index": index, "a": a.value, "b": b.value, "bits_a": a.bits, "bits_b": b.bits })
        });
        let mut value = json!({
            "name": row.name,
            "status": outcome_or_none.map_or(json!("unreadable"), |outcome| json!(outcome.status)),
            "shape_a": a.map(ModelTensor::shape),
            "shape_b": b.map(ModelTensor::shape),
            "dtype_a": dtype(a),
            "dtype_b": dtype(b),
            "differing": outcome_or_none.map(|outcome| outcome.differing),
            "first_difference": first,
            "figures": outcome_or_none.and_then(accuracy_json),
        });
        if let Some(tensor) = b.filter(|tensor| tensor.name() != row.name) {
            value["in_b"] = json!(tensor.name());
        }
        for (key, side) in [("layout_a", a), ("layout_b", b)] {
            if let Some(ModelTensor::Weight(_, weight)) = side {
                value[key] = json!(weight.layout.name);
            }
        }
        if let Err(error) = outcome {
            value["error"] = json!(error.to_string());
        }
        value
    }

    /// Returns the type of a tensor, considering `--from`, or the type that a weight is decoded to; `None` if unknown.
    fn dtype(&self, row: &DiffRow, tensor: ModelTensor) -> Option<Dtype> {
        match tensor {
            ModelTensor::Stored(_, tensor) => plan::source_form(tensor, self.args.from).ok().map(Form::dtype),
            ModelTensor::Weight(..) => {
                let [a, b] = row.sides.map(|side| side.unwrap_or(tensor));
                Some(compare::decoding([a, b], self.args.from).0)
            }
        }
    }

    /// Returns the name of a tensor's type, or the layout of a quantized weight.
    fn type_name(&self, tensor: ModelTensor) -> String {
        match tensor {
            ModelTensor::Weight(_, weight) => weight.layout.name.to_owned(),
            ModelTensor::Stored(_, stored) => {
                let form = plan::source_form(stored, self.args.from);
                form.map_or_else(|_| stored.type_name(), |form| form.dtype().name().into()).into_owned()
            }
        }
    }

    /// Lists the differences, one line each, and a summary.
    fn text(&self) -> String {
        let rows = self.rows.iter().zip(&self.outcomes).filter_map(|(row, outcome)| {
            let [word, more] = match outcome {
                Ok(outcome) if outcome.status.is_equal() => return None,
                Ok(outcome) => self.difference(row, outcome),
                Err(error) => ["unreadable".to_owned(), error.to_string()],
            };
            Some([shorten(row.name), word, more])
        });
        let rows: Vec<[String; 3]> = rows.collect();
        columns(&rows, &[], stdout_columns()).map(|line| line + "\n").collect::<String>() + &self.summary()
    }

    /// Describes a difference in a word or two, and details.
    fn difference(&self, row: &DiffRow, outcome: &Comparison) -> [String; 2] {
        let [a, b] = row.sides;
        let described = |tensor: Option<ModelTensor>| {
            tensor.map_or(String::new(), |tensor| format!("{} {:?}", self.type_name(tensor), tensor.shape()))
        };
        let types = [a, b].map(|side| side.map_or(String::new(), |tensor| self.type_name(tensor)));
        let both = types.join(", ");
        let is_text = [a, b].into_iter().flatten().any(|tensor| self.dtype(row, tensor) == Some(Dtype::String));
        let (what, more) = match outcome.status {
            Status::BitsDiffer => ("bits differ", told(outcome, row, true)),
            Status::ValuesDiffer if types[0] == types[1] => ("values differ", told(outcome, row, false)),
            Status::ValuesDiffer => ("values differ", format!("{} ({both})", told(outcome, row, false))),
            Status::TypesDiffer if is_text => ("types differ", both),
            Status::TypesDiffer => ("values equal,", format!("types differ: {both}")),
            Status::ShapesDiffer => ("shapes differ", format!("{}, {}", described(a), described(b))),
            Status::OnlyInA => ("only in A", described(a)),
            Status::OnlyInB => ("only in B", described(b)),
            Status::Equal | Status::WithinTolerance => ("", String::new()),
        };
        [what.to_owned(), more]
    }

    fn summary(&self) -> String {
        let all = self.rows.len();
        let tensors = counted(all as u64, "tensor");
        let within = match (self.args.tolerance, self.args.rtol) {
            (None, None) => String::new(),
            (Some(tolerance), None) => format!(" within {tolerance}"),
            (None, Some(rtol)) => format!(" within {rtol} of A"),
            (Some(tolerance), Some(rtol)) => format!(" within {tolerance} + {rtol} of A"),
        };
        if self.is_equal() {
            let is_exact = self.count(|status| status == Status::Equal) == all;
            let within = if is_exact { String::new() } else { within };
            return format!("{tensors} {} equal{within}", is(all as u64));
        }
        let equal = self.count(Status::is_equal);
        let only_in = [Status::OnlyInA, Status::OnlyInB].map(|side| self.count(|status| status == side));
        let unreadable = self.outcomes.iter().filter(|outcome| outcome.is_err()).count();
        let differ = all - equal - only_in.iter().sum::<usize>() - unreadable;
        let errors = self.rows.iter().zip(&self.outcomes).filter_map(|(row, outcome)| {
            let outcome = outcome.as_ref().ok().filter(|outcome| outcome.status == Status::ValuesDiffer)?;
            Some((outcome.accuracy.as_ref()?.max_abs_error, row.name))
        });
        let largest = errors.reduce(|largest, next| if next.0 > largest.0 { next } else { largest });
        let largest = largest.filter(|(error, _)| *error > 0.0).map_or(String::new(), |(error, name)| {
            format!(" (largest absolute error {} in '{}')", brief(error), shorten(name))
        });
        let unreadable = if unreadable > 0 { format!(", {unreadable} unreadable") } else { String::new() };
        let [in_a, in_b] = only_in;
        let verb = if differ == 1 { "differs" } else { "differ" };
        format!(
            "{tensors}: {equal} equal{within}, {differ} {verb}{largest}, {in_a} only in A, {in_b} only in B{unreadable}"
        )
    }
}

/// Returns the accuracy, with coordinates in addition to every position.
fn accuracy_json(outcome: &Comparison) -> Option<Value> {
    let mut accuracy = json!(outcome.accuracy.as_ref()?);
    let [absolute, relative] = &outcome.largest_at;
    accuracy["max_abs_error_index"] = json!(absolute);
    accuracy["max_rel_error_index"] = json!(relative);
    Some(accuracy)
}

/// Describes the number of differing elements, the first one, and the largest errors.
fn told(outcome: &Comparison, row: &DiffRow, with_bits: bool) -> String {
    let count = row.sides[0].map_or(0, |tensor| tensor.shape().iter().product());
    let mut text = format!("{} of {count}", outcome.differing);
    if let Some(Difference { index, elements }) = &outcome.first {
        let shown = elements.each_ref().map(|element| match &element.bits {
            Some(bits) if with_bits => format!("{} ({bits})", element.value),
            Some(_) => element.value.clone(),
            None => format!("\"{}\"", shorten(&element.value)),
        });
        let _ = write!(text, ", first at {index:?}: {}", shown.join(", "));
    }
    if let (Some(accuracy), [Some(at), _]) = (&outcome.accuracy, &outcome.largest_at)
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
