//! Types of the tensors in a GGUF file, chosen by names and shapes.
//!
//! A user names a [`GgufScheme`]: one type for all weights, or a mix, which chooses by the role of a weight. Two programs
//! define which tensors are quantized, and to which types:
//!
//! * llama.cpp for language models ([`language`]);
//! * `ComfyUI-GGUF` for diffusion models ([`diffusion`]); [`Architecture`] is a row of the table of these models.
//!
//! The functions read and write nothing. They return a [`TypeChoice`] for each tensor, which a caller can replace.
//! Shapes are row-major: their last number is `ne0` of ggml.

mod architectures;
pub mod diffusion;
pub mod language;
pub(super) mod mixes;
mod schemes;

pub use architectures::{Architecture, Undetected};
pub use schemes::GgufScheme;
pub(super) use schemes::{mix, pure};

use super::layout::is_same;
use crate::blocks::{BlockFormat, FORMATS};

/// The type of a tensor in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeChoice {
    /// The tensor is not quantized, and keeps the type that it has.
    Kept(KeptRule),
    /// The tensor gets this type.
    Wanted(&'static BlockFormat),
    /// The tensor gets another type than the rules want, because its rows are no whole blocks of that type.
    Fallback { wanted: &'static BlockFormat, format: &'static BlockFormat },
}

impl TypeChoice {
    /// Returns the new type; `None` if the tensor keeps its type.
    pub fn format(self) -> Option<&'static BlockFormat> {
        match self {
            Self::Kept(_) => None,
            Self::Wanted(format) | Self::Fallback { format, .. } => Some(format),
        }
    }

    /// Returns the wanted type if a row of `columns` elements consists of whole blocks, or else the second type, or F16.
    fn fitting(wanted: &'static BlockFormat, second: Option<&'static BlockFormat>, columns: u64) -> Self {
        let fits = |format: &BlockFormat| columns.is_multiple_of(format.elements);
        if fits(wanted) {
            return Self::Wanted(wanted);
        }
        Self::Fallback { wanted, format: second.filter(|format| fits(format)).unwrap_or(F16) }
    }
}

/// The rule by which a tensor keeps its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptRule {
    /// The name does not end in `weight`.
    NotAWeight,
    /// The number of dimensions: one, and in a diffusion model any other than two.
    Dimensions,
    /// The name contains this text.
    Name(&'static str),
}

/// Returns the dimensions that ggml writes to the table of tensors. It drops outermost dimensions of length 1 as long as
/// more than `least` dimensions are left.
pub fn table_shape(mut shape: &[u64], least: usize) -> &[u64] {
    while shape.len() > least.max(1)
        && let [1, inner @ ..] = shape
    {
        shape = inner;
    }
    shape
}

/// Returns the first of some texts that a name contains.
fn part_of(name: &str, parts: &[&'static str]) -> Option<&'static str> {
    parts.iter().copied().find(|part| name.contains(part))
}

/// Returns the format of this name, at compile time.
const fn named(name: &str) -> &'static BlockFormat {
    let mut at = 0;
    while at < FORMATS.len() {
        if is_same(FORMATS[at].name, name) {
            return &FORMATS[at];
        }
        at += 1;
    }
    panic!("no format has this name")
}

macro_rules! formats {
    ($($name:ident)*) => {
        $(pub(super) const $name: &BlockFormat = named(stringify!($name));)*
    };
}

formats! {
    F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_does_not_fit_falls_back_to_the_second_and_then_to_f16() {
        assert_eq!(TypeChoice::fitting(Q4_K, Some(Q5_0), 512), TypeChoice::Wanted(Q4_K));
        assert_eq!(TypeChoice::fitting(Q4_K, Some(Q5_0), 96), TypeChoice::Fallback { wanted: Q4_K, format: Q5_0 });
        assert_eq!(TypeChoice::fitting(Q4_K, Some(Q5_0), 100), TypeChoice::Fallback { wanted: Q4_K, format: F16 });
        assert_eq!(TypeChoice::fitting(Q4_K, None, 96).format(), Some(F16));
        assert_eq!(TypeChoice::Kept(KeptRule::NotAWeight).format(), None);
    }

    #[test]
    fn outermost_dimensions_of_length_1_are_dropped() {
        assert_eq!(table_shape(&[1, 1, 6, 1], 1), [6, 1]);
        assert_eq!(table_shape(&[1, 6, 4], 3), [1, 6, 4]);
        assert_eq!(table_shape(&[1, 1, 6, 4], 3), [1, 6, 4]);
        assert_eq!(table_shape(&[1, 1], 1), [1]);
        assert_eq!(table_shape(&[4], 3), [4]);
        assert!(table_shape(&[], 1).is_empty());
    }

    #[test]
    fn formats_have_the_names_of_their_constants() {
        assert_eq!([F16.id, Q3_K.id, IQ4_NL.id, NVFP4.id], [1, 11, 20, 40]);
    }
}
