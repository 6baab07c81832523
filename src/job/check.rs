//! Plans an output, and reports problems before it is written: codes that are not values, names and metadata that the
//! format cannot hold, weights without scales.

use super::place::{self, Route};
use super::recognized::check_recognized;
use super::{Job, JobInput};
use crate::container::WrittenFiles;
use crate::container::checkpoint::Checkpoint;
use crate::container::{self, Container, FormatInfo, Metadata};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result, Wanted};
use crate::operator::Operator;
use crate::plan::{Codes, Plan, Planned, Request, Spread, Step, check_from};
use crate::progress::{Note, Observer};
use crate::select::Selection;
use crate::text::first_few;
use std::cell::LazyCell;
use std::ffi::OsStr;
use std::path::Path;

/// Plans the outputs, with progress if texts have to be read, and reports losses. Calls `check` after refusing what cannot
/// be converted, and before reading texts.
pub(super) fn plans<'a>(
    job: &Job,
    route: &Route<'_, 'a>,
    (container, spread): (&dyn Container, Spread),
    observer: &dyn Observer,
    check: impl FnOnce(&Planned) -> Result<()>,
) -> Result<(Vec<Plan<'a>>, Planned<'a>)> {
    check_model_options(job, route, container)?;
    let JobInput { source, model } = route.input;
    let operator = job.operator();
    // ONNX models keep integers and scales, so their codes are never cast.
    let codes = match operator {
        _ if job.task.forces_codes() || container.format_info().is_changed_only() => None,
        Operator::Cast(_) => Some(Codes::of(source)?),
        Operator::Promote(_) => Some(Codes::of(source)?.without_patterns()),
        Operator::BitCast => Some(Codes::undecoded_of(source)),
        // These operators search for codes themselves.
        Operator::Quantize | Operator::Dequantize => None,
    };
    let data_file = place::data_file(&route.output);
    let mut selection = job.task.selection(source);
    if route.is_module {
        selection.renames.clear(); // they are for the tensors of the model
    }
    // Tensors whose type is known do not matter to a common type.
    let is_promotion = matches!(operator, Operator::Promote(_));
    let is_untyped = |from: &Dtype| check_from(source.tensors().map(|(_, tensor)| tensor), Some(*from)).is_ok();
    let request = Request {
        operator,
        selection: &selection,
        from: job.task.from().filter(|from| !(is_promotion || route.is_module) || is_untyped(from)),
        container,
        codes: codes.as_ref(),
        fail_on: &job.fail_on.conditions,
        model: job.task.model_options(),
        data_file: data_file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str),
        threads: job.threads,
    };
    let in_file = |error: Error| error.in_file(&source.path);
    check_renames(source, container, &selection).map_err(in_file)?;
    let mut planned = Planned::new(job.task, &request, (source, model), job.partition, observer).map_err(in_file)?;
    planned.tell(observer, |note| matches!(note, Note::ScalesLeftOut(..)));
    check(&planned)?;
    if matches!(operator, Operator::Quantize)
        && !(job.task.forces_codes() || container.format_info().is_changed_only() || job.format().is_some())
    {
        check_recognized(source, &planned).map_err(in_file)?;
    }
    // Created only if there are texts, because a bar is drawn as soon as it exists.
    let measuring = LazyCell::new(|| observer.progress("measuring the texts", source.bytes()));
    let plans = planned.lay_out(&request, spread, &|bytes| measuring.advance(bytes)).map_err(in_file)?;
    drop(measuring);
    if !route.is_named {
        check_own_name(job, &plans).map_err(in_file)?;
    }
    report_losses(source, container, observer);
    planned.tell(observer, |note| !matches!(note, Note::Use(_)));
    if matches!(operator, Operator::Cast(_)) {
        report_scales(&plans, request.codes, &selection, observer);
    }
    Ok((plans, planned))
}

/// Maximum bytes of a shard by default, as in transformers, if the input is not a folder of shards.
const USUAL: u64 = 5_000_000_000;

/// Plans a folder of shards.
pub(super) fn plans_of_shards<'a>(
    job: &Job,
    route: &Route<'_, 'a>,
    observer: &dyn Observer,
) -> Result<(Vec<Plan<'a>>, Planned<'a>, Spread)> {
    let container = job.format().unwrap_or(container::SHARDS);
    let is_divided = route.input.source.folder.is_none();
    let spread = match job.task.max_shard_size() {
        Some(most) => Spread::UpTo(most),
        None if is_divided => Spread::UpTo(USUAL),
        None => Spread::AsInputs,
    };
    let (plans, planned) = plans(job, route, (container, spread), observer, |_| Ok(()))?;
    Ok((plans, planned, spread))
}

/// Plans the modules of a model, each in a file, without new names of tensors, which are those of the model.
pub(super) fn plans_of_modules<'a>(job: &Job, route: &Route<'_, 'a>, observer: &dyn Observer) -> Result<Vec<Plan<'a>>> {
    let mut plans_of = Vec::new();
    for source in &route.input.source.modules {
        let input = JobInput { source, model: None };
        let route = Route { input, output: route.output.clone(), is_named: true, is_module: true };
        plans_of.extend(plans(job, &route, (container::SHARDS, Spread::One), observer, |_| Ok(()))?.0);
    }
    Ok(plans_of)
}

/// Refuses options for ONNX models if a model becomes something else.
fn check_model_options(job: &Job, route: &Route, container: &dyn Container) -> Result<()> {
    let is_possible = !matches!(job.operator(), Operator::Quantize); // the plan says why it is not
    match job.task.model_options().first_given().filter(|_| is_possible) {
        Some(option) if route.input.source.is_model() && !container.format_info().is_changed_only() => {
            let error = Error::usage("the output is not an ONNX model: an option has no effect");
            Err(error.in_file(&route.output).without(option))
        }
        _ => Ok(()),
    }
}

/// Refuses to name an output after a type that none of its tensors gets.
fn check_own_name(job: &Job, plans: &[Plan]) -> Result<()> {
    let tensors = || plans.iter().flat_map(|plan| &plan.steps);
    let Some(to) = job.task.to().filter(|_| job.output.is_none() && tensors().next().is_some()) else { return Ok(()) };
    if tensors().any(|tensor| tensor.dtypes().1 == to) {
        return Ok(());
    }
    let copied = tensors().filter(|tensor| !tensor.is_converted());
    let copied = match &*first_few(copied.map(Step::source_name), 5) {
        "" => String::new(),
        names => format!("; copied: {names}"),
    };
    let error = Error::new(format!("no tensor becomes {to}, so the output has no name of its own{copied}"));
    Err(error.of(Kind::Unnamed(Wanted::Any)))
}

/// Refuses a new name for a tensor in a format without names.
fn check_renames(source: &Checkpoint, target: &dyn Container, selection: &Selection) -> Result<()> {
    let FormatInfo { extension, has_names, .. } = target.format_info();
    if has_names || selection.renames.is_empty() {
        return Ok(()); // there may be a million tensors
    }
    let is_renamed = |name| selection.renames.iter().any(|rename| rename.old == name);
    let Some(name) = source.names().find(|name| is_renamed(*name)) else { return Ok(()) };
    let error = Error::usage(format!("cannot be renamed: a .{extension} file has no place for a name"));
    let formats = container::formats(|format| format.format_info().has_names && format.format_info().can_be_made());
    Err(error.in_tensor(name).remedy(format!("name an output that ends in {formats}")).without("rename"))
}

/// Reports contents of the source that the output will lack.
fn report_losses(source: &Checkpoint, target: &dyn Container, observer: &dyn Observer) {
    let FormatInfo { extension, metadata, .. } = target.format_info();
    for input in &source.shards {
        input.contents.ignored.iter().for_each(|name| observer.notice(Note::NoArray(name)));
        if !input.contents.lists.is_empty() && !input.container.is(target) {
            observer.notice(Note::NoLists(&input.contents.lists));
        }
        // The mark of a format and the versions of a model mean nothing in other formats, so they are no loss.
        let pairs = input.contents.metadata.iter().flatten();
        let is_mark = |name: &str| match input.container.format_info() {
            FormatInfo { metadata: Metadata::Marked(mark, _), .. } => mark == name,
            FormatInfo { writing: WrittenFiles::Changed, .. } => ["ir_version", "opset_import"].contains(&name),
            _ => false,
        };
        if metadata == Metadata::None && pairs.into_iter().any(|(name, _)| !is_mark(name)) {
            observer.notice(Note::NoMetadata(extension));
        }
    }
}

/// Reports scales that lose precision while their codes stay the same.
fn report_scales(plans: &[Plan], codes: Option<&Codes>, selection: &Selection, observer: &dyn Observer) {
    let Some(codes) = codes.filter(|codes| codes.have_scales()) else { return };
    let tensors = plans.iter().flat_map(|plan| &plan.steps).filter(|tensor| tensor.is_converted());
    let is_cast = |name: &&str| codes.is_scale(name) && selection.rule(name).is_none();
    let cast: Vec<&str> = tensors.map(Step::source_name).filter(is_cast).collect();
    if !cast.is_empty() {
        observer.notice(Note::ScalesCast(&cast));
    }
}
