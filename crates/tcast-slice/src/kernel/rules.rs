//! Rules of a cast that its types leave open.

/// The rules that the types of a cast leave open, with the names of `cast.md` and ONNX Cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// ONNX's `saturate`: float8 and E8M0 targets clamp; otherwise they become infinite or NaN.
    pub saturate: bool,
    /// With `saturate`, Inf to a FNUZ type gives the largest number (Cast 24) and not NaN (Cast 19 to 23).
    pub infinity_saturates_fnuz: bool,
    /// ONNX's `round_mode`, for E8M0 targets.
    pub round_mode: RoundMode,
    /// Result for a float beyond an integer's range.
    pub out_of_range: OutOfRange,
}

impl Default for Rules {
    /// The rules of a cast without options: the defaults of Cast-23. A float beyond an integer's range wraps.
    fn default() -> Self {
        Self {
            saturate: true,
            infinity_saturates_fnuz: false,
            round_mode: RoundMode::default(),
            out_of_range: OutOfRange::default(),
        }
    }
}

impl Rules {
    /// Rules of casts that lose nothing, or as little as possible.
    #[doc(hidden)]
    pub const LOSSLESS: Self = Self {
        saturate: false,
        infinity_saturates_fnuz: false,
        round_mode: RoundMode::Nearest,
        out_of_range: OutOfRange::Wrap,
    };
}

/// Direction in which E8M0 rounds to a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum RoundMode {
    /// the next power of two
    #[default]
    Up,
    /// the power of two below
    Down,
    /// the nearest power of two; ties go up
    Nearest,
}

/// Result for a float beyond an integer type's range, including NaN and Inf. With `Error`, a kernel wraps, and the caller
/// must refuse: see [`Kernel::refuses`](super::Kernel::refuses).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum OutOfRange {
    /// the low bits; NaN and Inf give 0
    #[default]
    Wrap,
    /// the nearest number of the type; NaN gives 0
    Saturate,
    /// an error; nothing is written
    Error,
}
