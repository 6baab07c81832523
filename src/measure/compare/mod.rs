//! Compares two inputs tensor by tensor: equality of bits and values, the first difference, and the errors.
//!
//! Tensors of one type are compared byte by byte, at the speed of reading. Only if that finds a difference, or the
//! types differ, are values compared: widened to float64 block by block, and 64-bit integers exactly where float64
//! would round them. Threads take pieces, and their results are merged in the order of the elements, so the result is
//! identical to the bit for any number of threads.

mod matching;
mod numbers;
mod options;
mod report;
mod texts;

pub use options::DiffOptions;
pub use report::{Comparison, DiffFigures, DiffReport, DiffStatus, FirstDifference, TensorDiff};

use crate::container::checkpoint::{self, Checkpoint, ExpertForm};
use crate::container::{Elements, Form, ReadOptions};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result};
use crate::plan;
use crate::progress::{Reading, Silent};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{LogicalTensor, Model, ModelTensor, Zip};
use matching::{TensorPair, pairs};
use std::collections::BTreeMap;
use std::path::Path;

impl TensorDiff {
    fn new(pair: &TensorPair, options: &DiffOptions, reading: Reading) -> Result<Self> {
        let TensorPair { name, sides } = *pair;
        let outcome = match sides {
            [Some(a), Some(b)] => compare([a, b], options, reading),
            [_, None] => Ok(Comparison::of(DiffStatus::OnlyInA)),
            [None, _] => Ok(Comparison::of(DiffStatus::OnlyInB)),
        };
        let (comparison, error) = match outcome {
            Ok(comparison) => (comparison, None),
            Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
            Err(error) => (Comparison::of(DiffStatus::Unreadable), Some(Box::new(error))),
        };
        let side = |side: Option<ModelTensor>| {
            let Some(tensor) = side else { return (None, None, None, None) };
            let shape = Some(tensor.shape().to_vec());
            if let Some(weight) = tensor.weight {
                let dtype = decoding(sides.map(|side| side.unwrap_or(tensor)), options).0;
                return (shape, Some(dtype), Some(weight.layout.name), None);
            }
            let stored = tensor.model.stored(tensor.at).tensor;
            match plan::source_form(stored, options.from) {
                Ok(form) => (shape, Some(form.dtype()), None, None),
                Err(_) => (shape, None, None, Some(stored.type_name().into())),
            }
        };
        let [(shape_a, dtype_a, layout_a, unsupported_a), (shape_b, dtype_b, layout_b, unsupported_b)] =
            sides.map(side);
        let unsupported = [unsupported_a, unsupported_b];
        let in_b = sides[1].map(ModelTensor::name).filter(|other| *other != name).map(str::to_owned);
        let name = name.to_owned();
        Ok(Self { name, in_b, shape_a, shape_b, dtype_a, dtype_b, layout_a, layout_b, comparison, error, unsupported })
    }
}

/// Compares the tensors of two files or folders of shards. Calls `check` with the inputs and the names of all tensors before
/// it reads values.
pub(crate) fn diff(
    paths: [&Path; 2],
    options: &DiffOptions,
    reading: Reading,
    check: impl FnOnce(&[Model; 2], &[&str]) -> Result<()>,
) -> Result<DiffReport> {
    let opening = ReadOptions { threads: reading.threads, root: options.root.as_deref(), take_rank: options.take_rank };
    let open = |path: &Path| -> Result<Checkpoint> {
        let source = checkpoint::open(path, &opening)?.named(options.names, None)?;
        let mut source = source.with_single_experts(options.names)?;
        if options.single_experts {
            source.set_experts(ExpertForm::Single).map_err(|error| error.in_file(path))?;
        }
        Ok(source)
    };
    let sources = [open(paths[0])?, open(paths[1])?];
    let stored = sources.iter().flat_map(Checkpoint::tensors).map(|(_, tensor)| tensor);
    plan::check_from(stored, options.from)?;
    let models = sources.each_ref().map(Model::probe_parts);
    let mut pairs = pairs(&models);
    check(&models, &pairs.iter().map(|pair| pair.name).collect::<Vec<_>>())?;
    let is_empty = pairs.is_empty();
    pairs.retain(|pair| options.selection.selects(pair.name));
    if pairs.is_empty() && !is_empty {
        return Err(Error::usage("the selection leaves no tensor"));
    }
    let bytes = pairs.iter().filter_map(|pair| match pair.sides {
        [Some(a), Some(b)] if a.shape() == b.shape() => Some(a.stored_len() + b.stored_len()),
        _ => None,
    });
    reading.progress.begin(bytes.sum());
    let tensors = pairs.iter().map(|pair| TensorDiff::new(pair, options, reading));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    for source in &sources {
        source.check_unchanged()?;
    }
    let mut counts = BTreeMap::from(DiffStatus::ALL.map(|status| (status, 0)));
    for tensor in &tensors {
        *counts.entry(tensor.comparison.status).or_default() += 1;
    }
    let is_equal = tensors.iter().all(|tensor| tensor.comparison.status.is_equal());
    let [a, b] = paths.map(Path::to_owned);
    Ok(DiffReport { a, b, tolerance: options.tolerance, rtol: options.rtol, is_equal, counts, tensors })
}

/// Compares two tensors. A quantized weight is decoded: if the other is a tensor of floats of up to 32 bits, to that
/// type as its library does; otherwise to float32 without intermediate rounding. The error about a damaged tensor also
/// names the first difference from the other tensor.
fn compare<'a>(tensors: [ModelTensor<'a>; 2], options: &DiffOptions, reading: Reading) -> Result<Comparison> {
    if tensors[0].shape() != tensors[1].shape() {
        return Ok(Comparison::of(DiffStatus::ShapesDiffer));
    }
    if let [Some(a), Some(b)] = tensors.map(|tensor| tensor.weight)
        && are_same_parts([(tensors[0].model, a), (tensors[1].model, b)], reading)?
    {
        reading.progress.advance(tensors.iter().map(|tensor| tensor.stored_len()).sum());
        return Ok(Comparison::of(DiffStatus::Equal));
    }
    let (decoded_to, arithmetic) = decoding(tensors, options);
    let decoded = |ModelTensor { model, weight, .. }: ModelTensor<'a>| {
        weight.map(|weight| model.weight(weight, decoded_to, arithmetic)).transpose()
    };
    let decoded = [decoded(tensors[0])?, decoded(tensors[1])?];
    let stored = tensors.map(ModelTensor::stored);
    let is_column_major = stored.map(|stored| stored.is_some_and(|stored| stored.tensor.fortran_order));
    let untyped = stored.map(|stored| Some(stored?.elements).filter(|it| matches!(it, Elements::Untyped(_))));
    // Opaque bytes can be compared with the same kind of opaque bytes.
    let are_opaque = options.from.is_none() && untyped[0].is_some() && untyped[0] == untyped[1];
    let side = |at: usize| -> Result<LogicalTensor> {
        if let Some(weight) = &decoded[at] {
            return Ok(LogicalTensor::Weight(weight));
        }
        let mut stored = tensors[at].model.stored(tensors[at].at);
        if !are_opaque {
            let form = plan::source_form(stored.tensor, options.from);
            stored.elements = form.map(Elements::Typed).map_err(|error| stored.error(error))?;
        }
        stored.is_transposed = is_column_major[at] && !is_column_major[1 - at];
        Ok(LogicalTensor::Stored(stored))
    };
    let sides = [side(0)?, side(1)?];
    let zip = Zip::new(sides, sides[0].named().count, reading);
    match sides.map(|side| matches!(side.elements(), Elements::Typed(Form::Texts(_)))) {
        [true, true] => texts::compare(zip),
        [false, false] => numbers::compare(zip, options),
        _ => Ok(Comparison::of(DiffStatus::TypesDiffer)),
    }
}

/// Returns the type and arithmetic that quantized weights are decoded with.
fn decoding(tensors: [ModelTensor; 2], options: &DiffOptions) -> (Dtype, Arithmetic) {
    let mut stored = tensors.iter().filter_map(|tensor| tensor.stored());
    match stored.find_map(|stored| plan::source_form(stored.tensor, options.from).ok()).map(Form::dtype) {
        Some(dtype) if dtype.is_weight() => (dtype, Arithmetic::Library),
        _ => (Dtype::Float32, Arithmetic::Exact),
    }
}

/// True if two weights are stored identically, so that nothing has to be decoded.
fn are_same_parts(weights: [(&Model, &FoundWeight); 2], reading: Reading) -> Result<bool> {
    let [(_, a), (_, b)] = weights;
    let parts = weights.map(|(_, weight)| Model::value_parts(weight));
    if a.layout != b.layout || a.parameters != b.parameters || parts[0].len() != parts[1].len() {
        return Ok(false);
    }
    for ((role_a, a), (role_b, b)) in parts[0].iter().zip(&parts[1]) {
        let mut sources = [weights[0].0.stored(*a), weights[1].0.stored(*b)];
        let [tensor_a, tensor_b] = sources.map(|source| source.tensor);
        let are_alike = tensor_a.elements == tensor_b.elements && tensor_a.shape == tensor_b.shape;
        if role_a != role_b || !are_alike {
            return Ok(false);
        }
        let mut count = tensor_a.count;
        if let Elements::Blocks(_) = tensor_a.elements {
            // Elements of blocks have no bytes of their own.
            count = tensor_a.data.stored_len();
            for source in &mut sources {
                source.elements = Elements::Opaque;
            }
        }
        let reading = Reading { progress: &Silent, ..reading };
        let zip = Zip::new(sources.map(LogicalTensor::Stored), count, reading);
        if !numbers::are_equal(zip)? {
            return Ok(false);
        }
    }
    Ok(true)
}
