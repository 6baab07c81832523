//! Two tensors side by side: whether bits and values are equal, where they first differ, and how far they are apart.
//!
//! Tensors of one type are compared byte by byte, at the speed of reading. Only where that finds a difference, or the types
//! differ, are values looked at: widened to float64 block by block, and 64-bit integers exactly where float64 would round
//! them. Pieces go to threads, and what is found in them is put together in the order of the elements: the result is equal
//! to the bit for any number of threads.

mod numbers;
mod texts;
mod values;

use crate::container::{Elements, Form, Input, Tensor};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::measure::accuracy::Accuracy;
use crate::plan;
use crate::progress::Progress;
use crate::read::{SourceTensor, Zip};

/// A tensor, and the file that it is in.
pub(crate) type FileTensor<'a> = (&'a Input, &'a Tensor);

/// How tensors are compared.
pub(crate) struct CompareOptions<'a> {
    /// What untyped elements are.
    pub from: Option<Dtype>,
    /// How far values may be apart; `None` where bits and types count too.
    pub tolerance: Option<Tolerance>,
    /// Threads to use.
    pub threads: usize,
    /// Told of the bytes of both sides.
    pub progress: &'a dyn Progress,
}

/// How far a value of B may be from that of A: `absolute + relative * |A|`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

impl Tolerance {
    /// Whether the tolerance allows this difference from a number.
    fn accepts(self, difference: f64, number: f64) -> bool {
        // NaN and Inf must be the same; a product with Inf would be as large as any difference.
        difference == 0.0 || difference.is_finite() && difference.abs() <= self.absolute + self.relative * number.abs()
    }
}

/// What was found of two tensors, or of one that has no counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Status {
    /// Type, shape and bits are equal.
    Equal,
    /// All values are equal, and so are the types; bits are not.
    BitsDiffer,
    /// There is a tolerance, and no value differs by more; or all are equal, and the types are not.
    WithinTolerance,
    /// Values differ.
    ValuesDiffer,
    /// All values are equal, and the types are not; or one holds text and the other numbers.
    TypesDiffer,
    /// The shapes differ.
    ShapesDiffer,
    /// Only A has it.
    OnlyInA,
    /// Only B has it.
    OnlyInB,
}

impl Status {
    /// All of them.
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

    /// The name in JSON reports.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::BitsDiffer => "bits_differ",
            Self::WithinTolerance => "within_tolerance",
            Self::ValuesDiffer => "values_differ",
            Self::TypesDiffer => "types_differ",
            Self::ShapesDiffer => "shapes_differ",
            Self::OnlyInA => "only_in_a",
            Self::OnlyInB => "only_in_b",
        }
    }
}

/// What was found of two tensors.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// In a word.
    pub status: Status,
    /// Elements whose values differ by more than the tolerance; where none does, those whose bits differ.
    pub differing: u64,
    /// The first of them.
    pub first: Option<Difference>,
    /// How far B is from A, where numbers differ. Sums of squares of 64-bit integers are those of the nearest float64.
    pub accuracy: Option<Accuracy>,
    /// The indices of the elements with the largest absolute and the largest relative error.
    pub largest_at: [Option<Vec<u64>>; 2],
}

impl Comparison {
    /// Without more to say than that.
    #[must_use]
    pub(crate) fn of(status: Status) -> Self {
        Self { status, differing: 0, first: None, accuracy: None, largest_at: [None, None] }
    }
}

/// An element that differs.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// Where it is, an index for each dimension.
    pub index: Vec<u64>,
    /// What it is in A and in B.
    pub elements: [Shown; 2],
}

/// An element as text.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Its value; of opaque bytes, these.
    pub value: String,
    /// Its bits in hexadecimal; a text has none.
    pub bits: Option<String>,
}

/// Compares two tensors.
///
/// # Errors
/// When one cannot be read or is damaged, or nobody has said what its elements are; where a damaged one differs from the
/// other is told as well.
///
/// # Panics
/// When a thread of it has panicked.
pub(crate) fn of(tensors: [FileTensor; 2], options: &CompareOptions) -> Result<Comparison> {
    let [a, b] = tensors.map(|(_, tensor)| tensor);
    if a.shape != b.shape {
        return Ok(Comparison::of(Status::ShapesDiffer));
    }
    // Opaque bytes can be compared with their like.
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
    let zip = || Zip::new(sources, a.count, options.threads, options.progress);
    match is_text {
        [true, true] => texts::compare(zip()),
        [false, false] => numbers::compare(zip(), options.tolerance),
        _ => Ok(Comparison::of(Status::TypesDiffer)),
    }
}
