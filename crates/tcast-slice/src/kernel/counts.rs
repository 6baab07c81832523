//! Counts of the losses of a conversion.

use std::mem;
use std::ops::{AddAssign, Index, IndexMut};

/// A way in which a result can differ from its source.
///
/// Here x is the source value and y the result; "beyond the range" follows the standards: a float target tests x after
/// rounding it, E8M0 tests x itself. Losing the sign of a zero or a NaN, or a NaN's payload, does not count as a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// x, which may be Inf, lies beyond the target's range and y is the nearest end of that range.
    Saturated,
    /// x is finite and y is infinite.
    Infinite,
    /// x is a number and y is NaN.
    Nan,
    /// x is NaN and y is zero, since the target has no NaN: a float of 4 or 6 bits, or an integer with
    /// [`OutOfRange::Saturate`](super::OutOfRange). Where integers wrap, NaN counts as wrapped.
    NanLost,
    /// x is a number other than zero, y is zero, and x was in range: too small for a float, below 1 for an integer.
    Flushed,
    /// x, which may be NaN or Inf, lies beyond the range of an integer type and y consists of its low bits.
    Wrapped,
    /// y differs from x: every kind above, and every rounded value. For bools, a byte other than 0 and 1 that became 1.
    Inexact,
}

impl Loss {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 7] =
        [Self::Saturated, Self::Infinite, Self::Nan, Self::NanLost, Self::Flushed, Self::Wrapped, Self::Inexact];

    /// The name in JSON reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["saturated", "infinite", "nan", "nan_lost", "flushed", "wrapped", "inexact"][self as usize]
    }

    /// Description of the loss, as words that follow a number of values.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Saturated => "saturated",
            Self::Infinite => "became infinite",
            Self::Nan => "became NaN",
            Self::NanLost => "were NaN and became zero",
            Self::Flushed => "flushed to zero",
            Self::Wrapped => "wrapped",
            Self::Inexact => "rounded or otherwise changed",
        }
    }
}

/// Number of values with each [`Loss`], and number of source values that were not finite. The sum does not depend on
/// the order, so each thread counts separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    lost: [u64; Loss::ALL.len()],
    /// Number of NaNs in the source; their results are counted separately.
    pub input_nan: u64,
    /// Number of infinite values in the source; their results are counted separately.
    pub input_infinite: u64,
}

impl Counts {
    /// True if every value stayed the same.
    #[must_use]
    pub fn is_lossless(&self) -> bool {
        self.lost.iter().all(|&count| count == 0)
    }
}

impl Index<Loss> for Counts {
    type Output = u64;
    fn index(&self, loss: Loss) -> &u64 {
        &self.lost[loss as usize]
    }
}

#[doc(hidden)] // for what counts
impl IndexMut<Loss> for Counts {
    fn index_mut(&mut self, loss: Loss) -> &mut u64 {
        &mut self.lost[loss as usize]
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        for (sum, count) in self.lost.iter_mut().zip(other.lost) {
            *sum += count;
        }
        self.input_nan += other.input_nan;
        self.input_infinite += other.input_infinite;
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// A countable condition: a loss, or a special source value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A way in which results differ from their sources.
    Lost(Loss),
    /// The source was NaN.
    InputNan,
    /// The source was infinite.
    InputInfinite,
}

impl Condition {
    /// All conditions, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Lost(Loss::Saturated),
        Self::Lost(Loss::Infinite),
        Self::Lost(Loss::Nan),
        Self::Lost(Loss::NanLost),
        Self::Lost(Loss::Flushed),
        Self::Lost(Loss::Wrapped),
        Self::Lost(Loss::Inexact),
        Self::InputNan,
        Self::InputInfinite,
    ];

    /// The name in JSON reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost(loss) => loss.name(),
            Self::InputNan => "input_nan",
            Self::InputInfinite => "input_infinite",
        }
    }

    /// Description of the condition, as words that follow a number of values.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Lost(loss) => loss.describe(),
            Self::InputNan => "were NaN in the input",
            Self::InputInfinite => "were infinite in the input",
        }
    }
}

#[doc(hidden)]
impl Index<Condition> for Counts {
    type Output = u64;
    fn index(&self, condition: Condition) -> &u64 {
        match condition {
            Condition::Lost(loss) => &self[loss],
            Condition::InputNan => &self.input_nan,
            Condition::InputInfinite => &self.input_infinite,
        }
    }
}

#[doc(hidden)]
impl IndexMut<Condition> for Counts {
    fn index_mut(&mut self, condition: Condition) -> &mut u64 {
        match condition {
            Condition::Lost(loss) => &mut self[loss],
            Condition::InputNan => &mut self.input_nan,
            Condition::InputInfinite => &mut self.input_infinite,
        }
    }
}

/// An element that met a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// Index of the element in row-major order.
    pub at: u64,
    /// Source value and result, as text; empty in a report read from a file.
    pub values: [String; 2],
}

/// The first element that met each watched condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Firsts(pub(crate) Box<[(Condition, First)]>);

impl Firsts {
    /// The first element that met a condition.
    #[must_use]
    pub fn of(&self, condition: Condition) -> Option<&First> {
        self.0.iter().find(|(known, _)| *known == condition).map(|(_, first)| first)
    }

    /// True if there is no such element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an element, unless an earlier element for the condition is present.
    pub fn add(&mut self, condition: Condition, first: First) {
        match self.0.iter_mut().find(|(known, _)| *known == condition) {
            Some((_, known)) if known.at <= first.at => {}
            Some((_, known)) => *known = first,
            None => self.0 = mem::take(&mut self.0).into_iter().chain([(condition, first)]).collect(),
        }
    }

    /// Adds the first elements of another range.
    pub fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|(condition, first)| self.add(condition, first));
    }

    /// Changes the indices of all elements.
    pub fn renumber(&mut self, number: impl Fn(u64) -> u64) {
        self.0.iter_mut().for_each(|(_, first)| first.at = number(first.at));
    }
}
