//! The figures of a distribution, and its histogram.

#[cfg(feature = "cli")]
use crate::container::indices;
use crate::measure::number::Number;
use serde::{Serialize, Serializer};
#[cfg(feature = "cli")]
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;

/// Distribution of one tensor's values. A complex number counts as two numbers, its real and its imaginary part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Distribution {
    /// Count of all numbers, including NaN and Inf.
    #[serde(skip)]
    pub count: u64,
    /// The smallest finite number; `None` if there is none. -0 is shown as 0.
    pub min: Option<Number>,
    /// The largest finite number.
    pub max: Option<Number>,
    /// The largest absolute value of finite numbers.
    pub abs_max: Option<Number>,
    /// The mean of finite numbers, right to the last bit or the one before it, whatever their number and order.
    pub mean: Option<f64>,
    /// Zeros of either sign.
    pub zeros: u64,
    /// Numbers so small that the tensor's type holds them with fewer digits.
    pub subnormals: u64,
    /// Values that are not a number.
    pub nan: u64,
    /// Positive infinities.
    pub plus_infinite: u64,
    /// Negative infinities.
    pub minus_infinite: u64,
    /// The first NaN, counted in row-major order.
    #[serde(rename = "first_nan_at")]
    pub first_nan: Option<u64>,
    /// The first infinity of either sign, counted in row-major order.
    #[serde(rename = "first_infinite_at")]
    pub first_infinite: Option<u64>,
    /// The exponents of all other numbers: finite, and not zero.
    pub exponents: Histogram,
}

#[cfg(feature = "cli")]
impl Distribution {
    /// Returns the distribution as JSON, with coordinates next to every position.
    pub(crate) fn json(&self, shape: &[u64]) -> Value {
        let mut value = json!(self);
        for (name, at) in [("first_nan_index", self.first_nan), ("first_infinite_index", self.first_infinite)] {
            value[name] = json!(at.map(|at| indices(at, shape, false)));
        }
        value
    }
}

/// Counts of finite nonzero numbers by binary exponent, floor(log2|x|).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<i32, u64>);

impl Histogram {
    /// Returns the exponents that occur, ascending, and the count of numbers for each.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i32, u64)> {
        self.0.iter().map(|(&exponent, &count)| (exponent, count))
    }

    /// Counts the numbers with an exponent in a range.
    pub fn within(&self, exponents: Range<i32>) -> u64 {
        if exponents.is_empty() { 0 } else { self.0.range(exponents).map(|(_, count)| count).sum() }
    }

    /// Counts all of its numbers.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// A histogram is a list of pairs: the exponent and the count.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

/// Counts of the same exponent are added, so the histograms of several tensors can be merged.
impl FromIterator<(i32, u64)> for Histogram {
    fn from_iter<T: IntoIterator<Item = (i32, u64)>>(counts: T) -> Self {
        let mut histogram = Self::default();
        for (exponent, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            *histogram.0.entry(exponent).or_default() += count;
        }
        histogram
    }
}
