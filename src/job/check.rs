//! Plans an output, and reports problems before it is written: codes that are not values, names and metadata that the
//! format cannot hold, weights without scales.

use super::recognized::check_recognized;
use super::{Job, place};
use crate::container::WrittenFiles;
use crate::container::checkpoint::Checkpoint;
use crate::container::{self, Container, FormatInfo, Metadata};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Opt, Result};
use crate::lora::Merges;
use crate::operator::Operator;
use crate::plan::{Codes, GgufTask, Plan, Planned, Request, Spread, Step, check_from};
use crate::progress::{Note, Observer};
use crate::read::Model;
use crate::select::{Renames, Selection};
use crate::text::first_few;
use std::cell::LazyCell;
use std::ffi::OsStr;
use std::path::Path;

/// Plans an output, with progress if texts have to be read, and reports losses. `output` is its path; `None` for a module
/// beside the model, whose tensors get no new names. `refusal` is the error of its place: it comes after errors that no
/// other place avoids.
pub(super) fn plans<'a>(
    job: &Job,
    gguf: Option<&GgufTask>,
    model: &Model<'a>,
    output: Option<&Path>,
    (container, spread): (&dyn Container, Spread),
    refusal: Option<Error>,
    observer: &dyn Observer,
) -> Result<(Vec<Plan<'a>>, Planned<'a>)> {
    check_model_options(job, model.source, output, container)?;
    let (operator, source) = (job.operator(), model.source);
    let mut selection = job.task.selection(source);
    if output.is_none() {
        selection.renames.clear();
    }
    let may_hold_codes = LazyCell::new(|| Codes::may_be_in(source)); // it looks at all tensors
    let adapters = job.task.adapters();
    let has_adapters = !adapters.is_empty() && output.is_some();
    // Other names of a model can move values, which a cast decodes.
    let is_decoded = matches!(operator, Operator::Cast(_))
        && (gguf.is_some() || source.base.is_some() || !source.assembled.is_empty());
    // ONNX models keep integers and scales, so their codes are never cast.
    let has_codes = !(job.task.forces_codes() || container.format_info().is_changed_only());
    let is_recognized_here = match operator {
        Operator::Quantize | Operator::Dequantize => false, // the model is
        Operator::Cast(_) if is_decoded || has_adapters => true,
        _ => has_codes && *may_hold_codes || changes_weights(job, source, &selection, &may_hold_codes),
    };
    let mut recognized = is_recognized_here.then(|| Model::probe(source));
    let weights = recognized.as_ref().unwrap_or(model);
    let codes = match operator {
        Operator::Quantize | Operator::Dequantize => None, // their planners search for codes
        _ if !has_codes => None,
        Operator::Cast(_) if *may_hold_codes => Some(Codes::of(weights)?),
        Operator::Promote(_) if *may_hold_codes => Some(Codes::of(weights)?.without_patterns()),
        Operator::Cast(_) | Operator::Promote(_) | Operator::BitCast => Some(Codes::undecoded_of(weights)),
    };
    let data_file = output.and_then(place::data_file);
    // Tensors whose type is known do not matter to a common type, or in a module.
    let is_optional = matches!(operator, Operator::Promote(_)) || output.is_none();
    let is_untyped = |from: &Dtype| check_from(source.tensors().map(|(_, tensor)| tensor), Some(*from)).is_ok();
    let mut merges = Merges::default();
    if has_adapters {
        check_adapters(source, container)?;
        merges = Merges::open(adapters, job.task.tensors().allow_unmatched, weights)?;
    }
    let (notes, summaries) = (std::mem::take(&mut merges.notes), std::mem::take(&mut merges.adapters));
    let request = Request {
        operator,
        selection: &selection,
        from: job.task.from().filter(|from| !is_optional || is_untyped(from)),
        container,
        codes: codes.as_ref(),
        fail_on: &job.fail_on.conditions,
        model: job.task.model_options(),
        accuracy_level: job.task.accuracy_level(),
        data_file: data_file.as_deref().and_then(Path::file_name).and_then(OsStr::to_str),
        merges: (!merges.is_empty()).then_some(&merges),
        rounding: job.task.contents().and_then(|contents| contents.rounding),
        threads: job.threads,
    };
    let in_file = |error: Error| error.in_file(&source.path);
    check_renames(source, container, &selection).map_err(in_file)?;
    if is_decoded {
        recognized = recognized.map(Model::checked).transpose().map_err(in_file)?;
    }
    let weights = recognized.as_ref().unwrap_or(model);
    let mut planned = Planned::new((job.task, gguf), &request, weights, job.partition, observer).map_err(in_file)?;
    merges.check_used().map_err(in_file)?;
    planned.findings.adapters = summaries;
    planned.findings.notes.extend(notes.into_iter().map(Note::Lora));
    if let Some(contents) = job.task.contents().filter(|_| output.is_some()) {
        planned.set_metadata(contents, container).map_err(in_file)?;
    }
    drop(recognized); // for many tensors it takes as much memory as the steps
    planned.tell(observer, |note| matches!(note, Note::ScalesLeftOut(..)));
    refusal.map_or(Ok(()), Err)?;
    if matches!(operator, Operator::Quantize) && has_codes && gguf.is_none() {
        check_recognized(source, &planned).map_err(in_file)?;
    }
    // Created only if there are texts, because a bar is drawn as soon as it exists.
    let measuring = LazyCell::new(|| observer.progress("measuring the texts", source.bytes()));
    let plans = planned.lay_out(&request, spread, &|bytes| measuring.advance(bytes)).map_err(in_file)?;
    drop(measuring);
    if output.is_some_and(|output| !job.names(output)) {
        check_own_name(job, &plans).map_err(in_file)?;
    }
    report_losses(source, container, observer);
    planned.tell(observer, |note| !matches!(note, Note::Use(_)));
    if matches!(operator, Operator::Cast(_)) {
        report_scales(&plans, request.codes, &selection, observer);
    }
    Ok((plans, planned))
}

/// True if other names, tensors or forms of experts change the parts of quantized weights, which have to be recognized then.
fn changes_weights(
    job: &Job,
    source: &Checkpoint,
    selection: &Selection,
    may_hold_codes: &LazyCell<bool, impl FnOnce() -> bool>,
) -> bool {
    let has_experts = job.task.contents().is_some_and(|contents| contents.experts.is_some());
    let was_quantized = source.dropped.was_quantized;
    let has_changes = !selection.renames.is_empty() || was_quantized || !source.added.is_empty() || has_experts;
    // The new names and the lists of a model without codes need no weights.
    let needs_weights = || has_experts || was_quantized || !source.added_weights.is_empty() || **may_hold_codes;
    has_changes && !source.is_onnx_model() && needs_weights()
}

/// Refuses adapters for models and outputs of other formats.
fn check_adapters(source: &Checkpoint, output: &dyn Container) -> Result<()> {
    let wrong = source.shards.iter().find(|shard| shard.container.format_info().is_changed_only());
    if let Some(shard) = wrong {
        let error = Error::usage("is an ONNX model, into which no adapters are merged").in_file(shard.path());
        return Err(error.without(Opt::LORA));
    }
    if !output.is(container::SHARDS) && !output.is(container::GGUF) {
        let extension = output.format_info().extension;
        let error = Error::usage(format!("no adapters are merged into .{extension} files"));
        return Err(error.with(Opt::OUTPUT, "name a .safetensors file, a .gguf file or a folder").without(Opt::LORA));
    }
    Ok(())
}

/// Refuses options for ONNX models if a model becomes something else.
fn check_model_options(job: &Job, source: &Checkpoint, output: Option<&Path>, container: &dyn Container) -> Result<()> {
    let is_possible = !matches!(job.operator(), Operator::Quantize); // the plan says why it is not
    match job.task.model_options().first_given().filter(|_| is_possible) {
        Some(option) if source.is_onnx_model() && !container.format_info().is_changed_only() => {
            let error = Error::usage("the output is not an ONNX model: an option has no effect");
            Err(error.in_file(output.unwrap_or(&source.path)).without(option))
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
    Err(error.of(Kind::Usage).with(Opt::OUTPUT, "name the output with {}"))
}

/// Refuses a new name for a tensor in a format without names.
fn check_renames(source: &Checkpoint, target: &dyn Container, selection: &Selection) -> Result<()> {
    let FormatInfo { extension, has_names, .. } = target.format_info();
    if has_names || selection.renames.is_empty() {
        return Ok(()); // there may be a million tensors
    }
    let renames = Renames::new(&selection.renames);
    let is_renamed = |name: &&str| renames.new_name(name).is_some();
    let Some(name) = source.names().find(is_renamed) else { return Ok(()) };
    let error = Error::usage(format!("cannot be renamed: a .{extension} file has no place for a name"));
    let formats = container::formats(|format| format.format_info().has_names && format.format_info().can_be_made());
    Err(error.in_tensor(name).with(Opt::OUTPUT, format!("name an output that ends in {formats}")).without(Opt::RENAME))
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
