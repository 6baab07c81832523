//! What a conversion did to values, counted where it happens.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::ops::{AddAssign, Index, IndexMut};

/// A way in which a result can differ from its source.
///
/// With x the source value and y the result, "beyond the range" as the standards judge it: a float target tests x
/// after rounding it, E8M0 tests x itself. A sign lost with a zero or a NaN, and a NaN's payload, are no loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// x, Inf included, lies beyond the target's range and y is the nearest end of that range.
    Saturated,
    /// x is finite and y is infinite.
    Infinite,
    /// x is a number and y is NaN.
    Nan,
    /// x is NaN and y is zero, since the target has no NaN: a float of 4 or 6 bits, or an integer with
    /// `--out-of-range saturate`. Where integers wrap, NaN counts as wrapped.
    NanLost,
    /// x is a number other than zero, y is zero, and x was in range: too small for a float, below 1 for an integer.
    Flushed,
    /// x, NaN and Inf included, lies beyond the range of an integer type and y is made of its low bits.
    Wrapped,
    /// y is not x: every kind above, and every value that was rounded. Of bools, a byte other than 0 and 1 that
    /// became 1.
    Inexact,
}

impl Loss {
    /// All kinds, in the order in which they are reported.
    pub const ALL: [Self; 7] =
        [Self::Saturated, Self::Infinite, Self::Nan, Self::NanLost, Self::Flushed, Self::Wrapped, Self::Inexact];

    /// The name in JSON reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["saturated", "infinite", "nan", "nan_lost", "flushed", "wrapped", "inexact"][self as usize]
    }

    /// What happened, in words that follow a number of values.
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

/// How many values met each [`Loss`], and how many were no finite numbers to begin with. Sums in any order are equal, so
/// threads add theirs up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    lost: [u64; Loss::ALL.len()],
    /// NaNs of the source, of a cast of numbers; what they become is counted apart.
    pub input_nan: u64,
    /// Infinite values of the source, likewise.
    pub input_infinite: u64,
}

impl Counts {
    /// Whether every value came through unchanged.
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

const INPUT_NAN: &str = "input_nan";
const INPUT_INFINITE: &str = "input_infinite";

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let lost = Loss::ALL.map(|loss| (loss.name(), self[loss]));
        serializer
            .collect_map(lost.into_iter().chain([(INPUT_NAN, self.input_nan), (INPUT_INFINITE, self.input_infinite)]))
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let count = |name| found.get(name).copied().unwrap_or(0);
        let lost = Loss::ALL.map(|loss| count(loss.name()));
        Ok(Self { lost, input_nan: count(INPUT_NAN), input_infinite: count(INPUT_INFINITE) })
    }
}
