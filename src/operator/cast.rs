//! ONNX Cast: which pairs of types it takes and what its attributes mean for the kernels.

use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::kernel::{OutOfRange, RoundMode, Rules};

/// The attributes of a cast, as ONNX names them, and one choice that ONNX leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// float8 targets: clamp values beyond the range (default) or let them become infinite or NaN.
    pub saturate: bool,
    /// float8e8m0 targets: where to round; the default is up.
    pub round_mode: RoundMode,
    /// Integer targets: what a float beyond the range becomes; ONNX calls it undefined.
    pub out_of_range: OutOfRange,
    /// The version of Cast whose float8 table applies; 23 unless chosen.
    pub version: u32,
}

impl Default for Attributes {
    fn default() -> Self {
        Self { saturate: true, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap, version: 23 }
    }
}

impl Attributes {
    /// The rules for the kernels.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            saturate: self.saturate,
            // Cast-24 changed one row of the float8 table: Inf to a FNUZ type gives FLT_MAX, no longer NaN.
            infinity_saturates_fnuz: self.saturate && self.version >= 24,
            round_mode: self.round_mode,
            out_of_range: self.out_of_range,
        }
    }
}

/// Refuses pairs that Cast does not have.
///
/// # Errors
/// When one of the types is complex or text.
pub fn check(source: Dtype, target: Dtype) -> Result<()> {
    for dtype in [source, target] {
        match dtype.class() {
            Class::Complex => {
                return Err(Error::new(format!("{dtype} cannot be cast: ONNX Cast has no complex types")));
            }
            Class::String => return Err(Error::new("text cannot be cast by this version of tcast")),
            _ => {}
        }
    }
    Ok(())
}
