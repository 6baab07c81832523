//! What looks at elements and writes none: how near results are to their sources, how values are distributed, whether
//! two tensors are equal, digests, and the bits of each element.

pub(crate) mod accuracy;
#[cfg(feature = "cli")]
pub mod bits;
#[cfg(feature = "cli")]
pub(crate) mod compare;
#[cfg(feature = "cli")]
pub mod distribution;
pub(crate) mod hash;
pub mod number;
