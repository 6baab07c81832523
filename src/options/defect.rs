//! Defects that no tensor of an output may have: the values of `fail_on`.

use crate::kernel::{Condition, Loss};
use serde::{Serialize, Serializer};

/// A reason to refuse an output. `Loss::Saturated.into()` refuses values that saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// Values that meet a condition. NaN that becomes zero counts as NaN.
    Value(Condition),
    /// Values of a quantized weight beyond the largest code of their group by more than half a step.
    Clipped,
    /// Groups of a quantized weight whose scale is too small for its type.
    Underflowed,
    /// Less than half of the delta of adapters is kept.
    Lost,
}

impl From<Loss> for Defect {
    fn from(loss: Loss) -> Self {
        Self::Value(Condition::Lost(loss))
    }
}

impl Defect {
    /// The name on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Value(Condition::InputNan) => "input-nan",
            Self::Value(Condition::InputInfinite) => "input-infinite",
            Self::Value(condition) => condition.name(),
            Self::Clipped => "clipped",
            Self::Underflowed => "underflowed",
            Self::Lost => "lost",
        }
    }
}

#[cfg(feature = "cli")]
impl Defect {
    /// Values that become infinite.
    pub(crate) const INFINITE: Self = Self::Value(Condition::Lost(Loss::Infinite));
    const LOST: (Self, &str) = (Self::Lost, "less than half of the delta of an adapter is kept");
    /// The defects of values that are cast or decoded, each with its description in the help.
    pub(crate) const OF_VALUES: &[(Self, &str)] = &[
        (Self::Value(Condition::Lost(Loss::Saturated)), "a value beyond the range became the largest number"),
        (Self::INFINITE, "a number became infinite"),
        (Self::Value(Condition::Lost(Loss::Nan)), "a number became NaN, or NaN became zero"),
        (Self::Value(Condition::Lost(Loss::Flushed)), "a number other than zero became zero"),
        (Self::Value(Condition::Lost(Loss::Wrapped)), "a number beyond the range of an integer type kept its low bits"),
        (Self::Value(Condition::Lost(Loss::Inexact)), "a value was rounded, or changed in another way"),
        (Self::Value(Condition::InputNan), "the input contains NaN"),
        (Self::Value(Condition::InputInfinite), "the input contains Inf"),
        Self::LOST,
    ];
    /// The defects of quantized weights, each with its description in the help.
    pub(crate) const OF_WEIGHTS: &[(Self, &str)] = &[
        (Self::Clipped, "values are beyond the largest code of their group by more than half a step"),
        (Self::Underflowed, "groups have a scale that is too small for its type"),
        (Self::INFINITE, "values become infinite in float16, the type of the weight in the input"),
        Self::LOST,
    ];

    /// True if a word is the name of a defect.
    pub(crate) fn is_name(word: &str) -> bool {
        Self::OF_VALUES.iter().chain(Self::OF_WEIGHTS).any(|(defect, _)| defect.name() == word)
    }

    /// Returns the parser of the names of some defects.
    pub(crate) fn parser(
        defects: &'static [(Self, &'static str)],
    ) -> impl clap::builder::TypedValueParser<Value = Self> {
        use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

        let names = defects.iter().map(|(defect, what)| PossibleValue::new(defect.name()).help(*what));
        let find = |name: String| defects.iter().map(|row| row.0).find(|defect| defect.name() == name);
        PossibleValuesParser::new(names).try_map(move |name| find(name).ok_or("no such defect"))
    }
}

impl Serialize for Defect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
