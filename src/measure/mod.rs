//! Measurements, which read elements and write none: accuracy, distribution, comparison, digests, and the bits of each
//! element.

pub(crate) mod accuracy;
pub mod bits;
pub(crate) mod compare;
pub mod distribution;
pub(crate) mod hash;
pub mod number;
pub(crate) mod pairs;
pub(crate) mod quantized;
