//! Text to numbers: the exact decimal, rounded once by the target's rule.

use super::convert::Kernel;
use super::counts::{Counts, Loss};
use super::decimal::{Magnitude, NumericLiteral};
use super::integer::IntTarget;
use super::lane::BLOCK;
use super::nearest::{Nearest, NearestScratch};
use super::rules::{OutOfRange, Rules};
use super::storage::Storage;
use super::text::Texts;
use crate::dtype::{Class, Dtype};
use std::cmp::Ordering;

/// A conversion of texts to numbers.
///
/// A number is a decimal with an optional sign, point and exponent, or `INF`, `INFINITY` or `NAN` in any case; bool
/// also accepts `true` and `false`. Surrounding ASCII blanks are ignored; everything else, including an empty text, is
/// not a number. NaN keeps its sign if the target has one.
pub struct Parser {
    target: Storage,
    staged: Staged,
    /// Conversion of staged elements to the target.
    finish: Kernel,
    refused: Option<Loss>,
}

/// Intermediate form of a number, written one element at a time to a buffer of one block.
enum Staged {
    /// The nearest float64, which is the result itself.
    Float64,
    /// A float64 rounded to odd, for the kernel to round (see `lane.rs`). It has 53 bits, and no other float type
    /// needs more than 24 and two. For bool, only 0 and 1 are special, and an inexact number is never one of them.
    Odd,
    /// An integer of the target type, at least one byte per element.
    Int(IntTarget),
}

/// The index of an element in the batch whose text is not a number of the target type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANumber(pub usize);

impl Parser {
    /// Creates the parser for one type. `None` for complex, string and a big-endian target.
    #[must_use]
    pub fn new(target: Storage, rules: &Rules) -> Option<Self> {
        let dtype = target.dtype;
        let (staged, finish) = match dtype.class() {
            Class::Int { signed } => {
                let int = IntTarget::new(dtype.bits(), signed, rules.out_of_range == OutOfRange::Saturate);
                (Staged::Int(int), Kernel::copy(Storage::per_byte(dtype), target)?)
            }
            Class::Bool | Class::Scale | Class::Float(_) => {
                let staged = if dtype == Dtype::Float64 { Staged::Float64 } else { Staged::Odd };
                (staged, Kernel::cast(Storage::packed(Dtype::Float64), target, rules)?)
            }
            Class::Complex | Class::String => return None,
        };
        let refuses = matches!(staged, Staged::Int(_)) && rules.out_of_range == OutOfRange::Error;
        Some(Self { target, staged, finish, refused: refuses.then_some(Loss::Wrapped) })
    }

    /// The loss that the rules forbid ([`OutOfRange::Error`]); the caller must discard a result that counts one.
    #[must_use]
    pub fn refuses(&self) -> Option<Loss> {
        self.refused
    }

    /// Converts all texts into the target's storage.
    ///
    /// # Errors
    /// [`NotANumber`] with the index of the first text that is not a number; `output` is then partly written.
    ///
    /// # Panics
    /// When `output` is too short for the elements.
    pub fn parse(&self, texts: &Texts, output: &mut [u8]) -> Result<Counts, NotANumber> {
        let mut counts = Counts::default();
        let mut scratch = NearestScratch::default();
        let mut staged = [0; BLOCK * 8];
        let width = match self.staged {
            Staged::Float64 | Staged::Odd => 8,
            Staged::Int(_) => self.target.dtype.bits().div_ceil(8) as usize,
        };
        for start in (0..texts.len()).step_by(BLOCK) {
            let end = texts.len().min(start + BLOCK);
            let staged = &mut staged[..(end - start) * width];
            for (index, element) in (start..end).zip(staged.chunks_exact_mut(width)) {
                let number = self.read(texts.get(index)).ok_or(NotANumber(index))?;
                let bits = self.convert(number, &mut scratch, &mut counts);
                element.copy_from_slice(&bits.to_le_bytes()[..width]);
            }
            let output = &mut output[self.target.offset(start)..self.target.offset(end)];
            let finished = self.finish.run(staged, output, end - start);
            let mut finished = finished.expect("neither float64 nor integers can be malformed");
            // An infinite value here may be a finite number that was too large.
            (finished.input_nan, finished.input_infinite) = (0, 0);
            counts += finished;
        }
        Ok(counts)
    }

    fn read<'a>(&self, text: &'a [u8]) -> Option<NumericLiteral<'a>> {
        let is = |word: &str| text.trim_ascii().eq_ignore_ascii_case(word.as_bytes());
        match self.target.dtype {
            Dtype::Bool if is("false") => NumericLiteral::read(b"0"),
            Dtype::Bool if is("true") => NumericLiteral::read(b"1"),
            _ => NumericLiteral::read(text),
        }
    }

    /// Returns the staged bits of one number, and counts the properties that the following kernel cannot see.
    fn convert(&self, number: NumericLiteral, scratch: &mut NearestScratch, counts: &mut Counts) -> u64 {
        counts.input_nan += u64::from(matches!(number.magnitude, Magnitude::Nan));
        counts.input_infinite += u64::from(matches!(number.magnitude, Magnitude::Infinity));
        let magnitude = match (&self.staged, number.magnitude) {
            (Staged::Int(target), magnitude) => return integer(number.negative, magnitude, *target, counts),
            (_, Magnitude::Infinity) => f64::INFINITY,
            (_, Magnitude::Nan) => f64::from_bits(0x7ff8_0000_0000_0000),
            (Staged::Odd, Magnitude::Finite(decimal)) => Nearest::new(&decimal, scratch).to_odd(),
            (Staged::Float64, Magnitude::Finite(decimal)) => {
                let Nearest { value, side } = Nearest::new(&decimal, scratch);
                counts[Loss::Infinite] += u64::from(value.is_infinite());
                counts[Loss::Flushed] += u64::from(value == 0.0 && side.is_ne());
                counts[Loss::Inexact] += u64::from(side.is_ne());
                value
            }
        };
        magnitude.to_bits() | u64::from(number.negative) << 63
    }
}

/// Returns the bits of an integer element, by the rules for floats of the same value.
fn integer(negative: bool, magnitude: Magnitude, target: IntTarget, counts: &mut Counts) -> u64 {
    let limit = if negative { target.negative_limit } else { target.positive_limit };
    let (low, is_over, end) = match magnitude {
        Magnitude::Nan => (0, true, 0),
        Magnitude::Infinity => (0, true, limit),
        Magnitude::Finite(decimal) => {
            let (mut whole, rest) = decimal.integer();
            let is_up = match rest {
                Some(Ordering::Greater) => target.to_nearest,
                Some(Ordering::Equal) => target.to_nearest && whole.low % 2 == 1,
                Some(Ordering::Less) | None => false,
            };
            whole.add(u8::from(is_up));
            let is_over = whole.is_wide || whole.low > limit;
            counts[Loss::Flushed] += u64::from(!is_over && whole.low == 0 && !decimal.is_zero());
            counts[Loss::Inexact] += u64::from(!is_over && rest.is_some());
            (whole.low, is_over, limit)
        }
    };
    counts[Loss::Inexact] += u64::from(is_over);
    let loss = match magnitude {
        _ if !target.saturate => Loss::Wrapped,
        Magnitude::Nan => Loss::NanLost,
        _ => Loss::Saturated,
    };
    counts[loss] += u64::from(is_over);
    let magnitude = if target.saturate && is_over { end } else { low };
    (if negative { magnitude.wrapping_neg() } else { magnitude }) & target.mask
}
