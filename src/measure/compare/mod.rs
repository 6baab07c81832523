//! Compares two tensors: equality of bits and values, the first difference, and the errors.
//!
//! Tensors of one type are compared byte by byte, at the speed of reading. Only if that finds a difference, or the
//! types differ, are values compared: widened to float64 block by block, and 64-bit integers exactly where float64
//! would round them. Threads take pieces, and their results are merged in the order of the elements, so the result is
//! identical to the bit for any number of threads.

mod numbers;
mod texts;
mod values;

use crate::container::{Elements, Form, Input, Tensor};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::measure::accuracy::Accuracy;
use crate::plan;
use crate::progress::{Progress, Silent};
use crate::quant::{Arithmetic, FoundWeight};
use crate::read::{LogicalCheckpoint, LogicalTensor, ModelTensor, SourceTensor, Zip};
use serde::Serialize;

/// A tensor, and its file.
type FileTensor<'a> = (&'a Input, &'a Tensor);

pub(crate) struct CompareOptions<'a> {
    /// Type of untyped elements.
    pub from: Option<Dtype>,
    /// Maximum difference of values; `None` if bits and types count too.
    pub tolerance: Option<Tolerance>,
    pub threads: usize,
    /// Receives the bytes of both sides.
    pub progress: &'a dyn Progress,
}

/// Maximum difference of a value of B from the value of A: `absolute + relative * |A|`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

impl Tolerance {
    fn accepts(self, difference: f64, number: f64) -> bool {
        // NaN and Inf must be equal; a tolerance times Inf would allow any difference.
        difference == 0.0 || difference.is_finite() && difference.abs() <= self.absolute + self.relative * number.abs()
    }
}

/// The result for two tensors, or for one without a counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// Type, shape and bits are equal.
    Equal,
    /// All values and the types are equal, but not the bits.
    BitsDiffer,
    /// There is a tolerance that no value exceeds; or all values are equal, but not the types.
    WithinTolerance,
    ValuesDiffer,
    /// All values are equal, but not the types; or one holds text and the other numbers.
    TypesDiffer,
    ShapesDiffer,
    OnlyInA,
    OnlyInB,
}

impl Status {
    pub(crate) const ALL: [Self; 8] = [
        Self::Equal,
        Self::BitsDiffer,
        Self::WithinTolerance,
        Self::ValuesDiffer,
        Self::TypesDiffer,
        Self::ShapesDiffer,
        Self::OnlyInA,
        Self::OnlyInB,
    ];

    /// True if the tensors are equal, or equal within the tolerance.
    pub(crate) fn is_equal(self) -> bool {
        matches!(self, Self::Equal | Self::WithinTolerance)
    }
}

/// The result of comparing two tensors.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub status: Status,
    /// Number of elements that differ by more than the tolerance; if none does, of elements with different bits.
    pub differing: u64,
    /// First of these elements.
    pub first: Option<Difference>,
    /// Accuracy of B compared with A, if numbers differ. Sums of squares of 64-bit integers use the nearest float64.
    pub accuracy: Option<Accuracy>,
    /// Indices of the elements with the largest absolute and the largest relative error.
    pub largest_at: [Option<Vec<u64>>; 2],
}

impl Comparison {
    /// Creates a result without details.
    pub(crate) fn of(status: Status) -> Self {
        Self { status, differing: 0, first: None, accuracy: None, largest_at: [None, None] }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Difference {
    pub index: Vec<u64>,
    /// The element in A and in B.
    pub elements: [Shown; 2],
}

/// An element as text.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Value; for opaque bytes, the bytes.
    pub value: String,
    /// Bits in hexadecimal; text has none.
    pub bits: Option<String>,
}

/// Compares two tensors. A quantized weight is decoded: if the other is a tensor of floats of up to 32 bits, to that
/// type as its library does; otherwise to float32 without intermediate rounding. The error about a damaged tensor also
/// names the first difference from the other tensor.
pub(crate) fn of(tensors: [ModelTensor; 2], options: &CompareOptions) -> Result<Comparison> {
    if tensors[0].shape() != tensors[1].shape() {
        return Ok(Comparison::of(Status::ShapesDiffer));
    }
    let (decoded_to, arithmetic) = decoding(tensors, options.from);
    match tensors {
        [ModelTensor::Stored(input_a, a), ModelTensor::Stored(input_b, b)] => {
            of_stored([(input_a, a), (input_b, b)], options)
        }
        [ModelTensor::Weight(model_a, a), ModelTensor::Weight(model_b, b)]
            if are_same_parts([(model_a, a), (model_b, b)], options)? =>
        {
            options.progress.advance(tensors.iter().map(|tensor| tensor.stored_len()).sum());
            Ok(Comparison::of(Status::Equal))
        }
        _ => {
            let weight = |tensor| match tensor {
                ModelTensor::Weight(model, weight) => model.weight(weight, decoded_to, arithmetic).map(Some),
                ModelTensor::Stored(..) => Ok(None),
            };
            let weights = [weight(tensors[0])?, weight(tensors[1])?];
            let mut logical = Vec::with_capacity(2);
            for (tensor, weight) in tensors.into_iter().zip(&weights) {
                logical.push(match (tensor, weight) {
                    (ModelTensor::Stored(input, tensor), _) => {
                        let form = plan::source_form(tensor, options.from);
                        let form = form.map_err(|error| error.in_tensor(&tensor.name).in_file(input.path()))?;
                        let (files, elements) = (&input.files[..], Elements::Typed(form));
                        let is_transposed = tensor.fortran_order;
                        LogicalTensor::Stored(SourceTensor { files, tensor, elements, is_transposed })
                    }
                    (_, Some(weight)) => LogicalTensor::Weight(weight),
                    (_, None) => unreachable!("weights are made readable above"),
                });
            }
            let sides = [logical[0], logical[1]];
            if sides.iter().any(|side| matches!(side.elements(), Elements::Typed(Form::Texts(_)))) {
                return Ok(Comparison::of(Status::TypesDiffer));
            }
            let zip = Zip::new(sides, sides[0].named().count, options.threads, options.progress);
            numbers::compare(zip, options.tolerance)
        }
    }
}

/// Returns the type and arithmetic that quantized weights are decoded with.
pub(crate) fn decoding(tensors: [ModelTensor; 2], from: Option<Dtype>) -> (Dtype, Arithmetic) {
    let stored = tensors.into_iter().find_map(|tensor| match tensor {
        ModelTensor::Stored(_, tensor) => plan::source_form(tensor, from).ok().map(Form::dtype),
        ModelTensor::Weight(..) => None,
    });
    match stored {
        Some(dtype) if dtype.is_weight() => (dtype, Arithmetic::Library),
        _ => (Dtype::Float32, Arithmetic::Exact),
    }
}

/// True if two weights are stored identically, so that nothing has to be decoded.
fn are_same_parts(weights: [(&LogicalCheckpoint, &FoundWeight); 2], options: &CompareOptions) -> Result<bool> {
    let [(_, a), (_, b)] = weights;
    if a.layout != b.layout || a.parameters != b.parameters {
        return Ok(false);
    }
    let parts = weights.map(|(_, weight)| LogicalCheckpoint::value_parts(weight));
    if parts[0].len() != parts[1].len() {
        return Ok(false);
    }
    for ((role_a, a), (role_b, b)) in parts[0].iter().zip(&parts[1]) {
        let sources = [weights[0].0.stored(*a), weights[1].0.stored(*b)];
        let [tensor_a, tensor_b] = sources.map(|source| source.tensor);
        let are_alike = tensor_a.elements == tensor_b.elements && tensor_a.shape == tensor_b.shape;
        if role_a != role_b || !are_alike {
            return Ok(false);
        }
        let zip = Zip::new(sources.map(LogicalTensor::Stored), tensor_a.count, options.threads, &Silent);
        if !numbers::are_equal(zip)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn of_stored(tensors: [FileTensor; 2], options: &CompareOptions) -> Result<Comparison> {
    let [a, b] = tensors.map(|(_, tensor)| tensor);
    // Opaque bytes can be compared with the same kind of opaque bytes.
    let are_opaque = a.elements == b.elements && matches!(a.elements, Elements::Untyped(_));
    let side = |(input, tensor): FileTensor<'_>| -> Result<Elements> {
        if are_opaque && options.from.is_none() {
            return Ok(tensor.elements);
        }
        let form = plan::source_form(tensor, options.from);
        form.map(Elements::Typed).map_err(|error| error.in_tensor(&tensor.name).in_file(input.path()))
    };
    let elements = [side(tensors[0])?, side(tensors[1])?];
    let is_text = elements.map(|elements| matches!(elements, Elements::Typed(Form::Texts(_))));
    let sources = [0, 1].map(|at| SourceTensor {
        files: &tensors[at].0.files,
        tensor: tensors[at].1,
        elements: elements[at],
        is_transposed: tensors[at].1.fortran_order && !tensors[1 - at].1.fortran_order,
    });
    let zip = || Zip::new(sources.map(LogicalTensor::Stored), a.count, options.threads, options.progress);
    match is_text {
        [true, true] => texts::compare(zip(), sources),
        [false, false] => numbers::compare(zip(), options.tolerance),
        _ => Ok(Comparison::of(Status::TypesDiffer)),
    }
}
