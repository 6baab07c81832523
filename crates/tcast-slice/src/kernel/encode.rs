//! Elements out of a lane: every target type from float32, float64 or 64-bit integers, with counts.
//!
//! Targets of 2, 4 and 6 bits are written one per byte; [`super::pack`] packs them.

use super::counts::{Counts, Loss};
use super::float::{FloatTarget, MAGNITUDE, Overflow};
use super::integer::IntTarget;
use super::lane::narrow_nan;
use super::rules::{OutOfRange, RoundMode, Rules};
use super::tally::{COUNTED, LossTally, count_float32_specials, count_float64_specials, count_zeros, store};
use crate::dtype::{Class, Dtype, Specials};

/// Conversion of a number to the bytes of a target element.
pub(super) enum Encode {
    Bool,
    Int(IntTarget),
    /// Floats of 8 bits and fewer.
    Narrow(FloatTarget),
    /// float16 and bfloat16.
    Half(FloatTarget),
    Scale(ScaleTarget),
    Float32,
    Float64,
}

#[derive(Clone, Copy)]
pub(super) struct ScaleTarget {
    saturate: bool,
    /// Number added below the exponent before truncation; it implements rounding up and to nearest.
    bump: u32,
}

impl Encode {
    /// Creates the conversion from `source` to `dtype`. `None` for complex, string, and types that ONNX lacks, because
    /// it has no rules for them.
    pub(super) fn new(source: Dtype, dtype: Dtype, rules: Rules) -> Option<Self> {
        dtype.onnx_number()?;
        Some(match dtype.class() {
            Class::Bool => Self::Bool,
            Class::Int { signed } => {
                let saturate = rules.out_of_range == OutOfRange::Saturate;
                Self::Int(IntTarget::new(dtype.bits(), signed, saturate))
            }
            Class::Scale => {
                let bump = match rules.round_mode {
                    RoundMode::Up => 0x007f_ffff,
                    RoundMode::Nearest => 0x0040_0000, // ties go up: 1.5 -> 2, 3 -> 4
                    RoundMode::Down => 0,
                };
                Self::Scale(ScaleTarget { saturate: rules.saturate, bump })
            }
            Class::Float(format) => match dtype {
                Dtype::Float32 => Self::Float32,
                Dtype::Float64 => Self::Float64,
                _ => {
                    let saturates = dtype.bits() < 8 || (dtype.bits() == 8 && rules.saturate);
                    let beyond = match (saturates, format.specials) {
                        (true, _) => Overflow::Saturate,
                        (false, Specials::Ieee) => Overflow::Infinity,
                        (false, _) => Overflow::Nan,
                    };
                    let on_infinity = match format.specials {
                        Specials::Fnuz if !rules.infinity_saturates_fnuz => Overflow::Nan,
                        _ => beyond,
                    };
                    let is_exact = matches!(source.class(), Class::Float(source) if source.is_within(&format));
                    let target = FloatTarget::new(&format, beyond, on_infinity, is_exact);
                    if dtype.bits() == 16 { Self::Half(target) } else { Self::Narrow(target) }
                }
            },
            Class::Complex | Class::String => return None,
        })
    }

    /// Encodes the float32 lane. Integer targets of up to 32 bits can use this lane; wider ones cannot.
    #[inline(always)]
    pub(super) fn encode_float32(&self, lane: &[[u8; 4]], bytes: &mut [u8]) -> Counts {
        let mut counts = match self {
            Self::Narrow(target) => return narrow(lane, bytes, target, |code| [code as u8]),
            Self::Half(target) => return narrow(lane, bytes, target, |code| (code as u16).to_le_bytes()),
            Self::Scale(target) => scale(lane, bytes, *target),
            Self::Bool => store(lane, bytes, u32::from_le_bytes, |bits, tally| {
                let is_true = bits & 0x7fff_ffff != 0;
                tally.inexact += u32::from(is_true & (bits != 1.0_f32.to_bits()));
                [u8::from(is_true)]
            })
            .counts(),
            Self::Int(target) => return target.encode_float32(lane, bytes),
            Self::Float32 => unreachable!("the lane is the result"),
            Self::Float64 => unreachable!("float64 has its own lane"),
        };
        count_float32_specials(lane, &mut counts);
        counts
    }

    #[inline(always)]
    pub(super) fn encode_float64(&self, lane: &[[u8; 8]], bytes: &mut [u8]) -> Counts {
        match self {
            Self::Float32 => float32_from_float64(lane, bytes),
            // Only sources that are exact in float64 reach this.
            Self::Float64 => {
                let mut counts = store(lane, bytes, u64::from_le_bytes, |bits, _| bits.to_le_bytes()).counts();
                count_float64_specials(lane, &mut counts);
                counts
            }
            Self::Int(target) => target.encode_float64(lane, bytes),
            Self::Bool | Self::Narrow(_) | Self::Half(_) | Self::Scale(_) => {
                unreachable!("these come from the float32 lane")
            }
        }
    }

    /// Encodes integers, `signed` or not: to integers, which keep the low bits, to bool and to float64.
    #[inline(always)]
    pub(super) fn encode_integer(&self, lane: &[[u8; 8]], signed: bool, bytes: &mut [u8]) -> Counts {
        match self {
            Self::Bool => store(lane, bytes, u64::from_le_bytes, |value, tally| {
                tally.inexact += u32::from(value > 1);
                [u8::from(value != 0)]
            })
            .counts(),
            Self::Float64 => store(lane, bytes, u64::from_le_bytes, |value, tally| {
                let (nearest, exact) = if signed {
                    let nearest = value as i64 as f64;
                    (nearest, (nearest as i64 == value as i64) & (nearest < 9_223_372_036_854_775_808.0))
                } else {
                    let nearest = value as f64;
                    (nearest, (nearest as u64 == value) & (nearest < 18_446_744_073_709_551_616.0))
                };
                tally.inexact += u32::from(!exact);
                nearest.to_bits().to_le_bytes()
            })
            .counts(),
            Self::Int(target) => {
                let differs = signed != target.signed;
                let check = |value: u64, tally: &mut LossTally| {
                    let shift = 64 - target.bits;
                    let kept = if target.signed {
                        (((value << shift) as i64) >> shift) as u64
                    } else {
                        (value << shift) >> shift
                    };
                    // Equal bits are a different number if only one side reads the top bit as a sign.
                    let wrapped = u32::from((kept != value) | (differs & (value >> 63 != 0)));
                    tally.over += wrapped;
                    tally.inexact += wrapped;
                    value
                };
                let mask = target.mask as u8;
                let tally = match target.bits {
                    64 => store(lane, bytes, u64::from_le_bytes, |value, tally| check(value, tally).to_le_bytes()),
                    32 => store(lane, bytes, u64::from_le_bytes, |value, tally| {
                        (check(value, tally) as u32).to_le_bytes()
                    }),
                    16 => store(lane, bytes, u64::from_le_bytes, |value, tally| {
                        (check(value, tally) as u16).to_le_bytes()
                    }),
                    _ => store(lane, bytes, u64::from_le_bytes, |value, tally| [check(value, tally) as u8 & mask]),
                };
                let mut counts = tally.counts();
                counts[Loss::Wrapped] = tally.over.into(); // in every policy: ONNX Cast defines int -> int
                counts
            }
            Self::Narrow(_) | Self::Half(_) | Self::Scale(_) | Self::Float32 => {
                unreachable!("these come from a float lane")
            }
        }
    }
}

/// bool -> bool: 0 or 1, by the rule for bool targets. A byte that was neither counts as changed.
#[inline(always)]
pub(super) fn bools(input: &[u8], bytes: &mut [u8]) -> Counts {
    let (mut tally, mut largest) = (LossTally::EMPTY, 0);
    for (byte, result) in input.iter().zip(bytes) {
        largest = largest.max(*byte);
        *result = u8::from(*byte != 0);
    }
    if COUNTED && largest > 1 {
        tally.inexact = input.iter().filter(|byte| **byte > 1).count() as u32;
    }
    tally.counts()
}

/// float32 -> a float of 16 bits or fewer. Nearly all blocks are entirely in range, and take half the time.
#[inline(always)]
fn narrow<const N: usize>(
    lane: &[[u8; 4]],
    bytes: &mut [u8],
    target: &FloatTarget,
    code: impl Fn(u32) -> [u8; N] + Copy,
) -> Counts {
    // The loops own copies of the constants, which then stay in registers.
    let float = target.float;
    let mut tally = if target.is_exact {
        store(lane, bytes, u32::from_le_bytes, move |bits, tally| {
            tally.largest = bits & MAGNITUDE;
            code(float.round_bits(bits).0)
        })
    } else {
        store(lane, bytes, u32::from_le_bytes, move |bits, tally| {
            let magnitude = bits & MAGNITUDE;
            tally.largest = magnitude;
            let (result, is_exact) = float.round_bits(bits);
            tally.inexact += u32::from(!is_exact);
            if N == 1 {
                tally.flushed += u32::from(magnitude.wrapping_sub(1) < float.zero);
            } else {
                tally.smallest = magnitude;
            }
            code(result)
        })
    };
    if tally.largest > float.limit {
        return narrow_any(lane, bytes, target, code);
    }
    // For targets of 8 bits, nearly every block of weights has numbers that become zero; for wider targets, none has.
    if tally.smallest <= float.zero {
        tally.flushed = count_zeros(lane, float.zero);
    }
    if let Some(negative_zero) = float.lacks {
        for byte in bytes {
            *byte = if *byte == negative_zero { 0 } else { *byte };
        }
    }
    tally.counts()
}

#[inline(always)]
fn narrow_any<const N: usize>(
    lane: &[[u8; 4]],
    bytes: &mut [u8],
    target: &FloatTarget,
    code: impl Fn(u32) -> [u8; N],
) -> Counts {
    let tally = store(lane, bytes, u32::from_le_bytes, |bits, tally| code(target.round(bits, tally)));
    let mut counts = tally.counts();
    (counts.input_nan, counts.input_infinite) = (tally.was_nan.into(), tally.was_infinite.into());
    let loss = |overflow| match overflow {
        Overflow::Saturate => Loss::Saturated,
        Overflow::Infinity => Loss::Infinite,
        Overflow::Nan => Loss::Nan,
    };
    counts[loss(target.overflow)] += u64::from(tally.over);
    if target.on_infinity != Overflow::Infinity {
        counts[loss(target.on_infinity)] += u64::from(tally.was_infinite);
        counts[Loss::Inexact] += u64::from(tally.was_infinite);
    }
    if !target.has_nan {
        counts[Loss::NanLost] += u64::from(tally.was_nan);
        counts[Loss::Inexact] += u64::from(tally.was_nan);
    }
    counts
}

/// float64 -> float32, to nearest even (IEEE 754-2019, 5.4.2).
#[inline(always)]
fn float32_from_float64(lane: &[[u8; 8]], bytes: &mut [u8]) -> Counts {
    let mut tally = store(lane, bytes, u64::from_le_bytes, |bits, tally| {
        let value = f64::from_bits(bits);
        let nearest = value as f32;
        tally.largest = nearest.abs().to_bits();
        tally.flushed += u32::from((nearest == 0.0) & (value != 0.0));
        tally.inexact += u32::from(f64::from(nearest) != value);
        nearest.to_bits().to_le_bytes()
    });
    if tally.largest < f32::INFINITY.to_bits() {
        return tally.counts();
    }
    tally = store(lane, bytes, u64::from_le_bytes, |bits, tally| {
        let value = f64::from_bits(bits);
        let nearest = value as f32;
        tally.over += u32::from(nearest.is_infinite() & value.is_finite());
        tally.flushed += u32::from((nearest == 0.0) & (value != 0.0));
        tally.inexact += u32::from(!value.is_nan() & (f64::from(nearest) != value));
        (if value.is_nan() { narrow_nan(bits) } else { nearest.to_bits() }).to_le_bytes()
    });
    let mut counts = tally.counts();
    counts[Loss::Infinite] = tally.over.into();
    count_float64_specials(lane, &mut counts);
    counts
}

/// float32 -> E8M0 (ONNX Cast-24's table): the exponent, rounded by the mantissa; a negative number becomes NaN.
#[inline(always)]
fn scale(lane: &[[u8; 4]], bytes: &mut [u8], target: ScaleTarget) -> Counts {
    const MAX: u32 = 254 << 23; // 2^127
    const MIN: u32 = 1 << 22; // 2^-127, a float32 subnormal
    let beyond = |end| if target.saturate { end } else { 255 };
    let tally = store(lane, bytes, u32::from_le_bytes, |bits, tally| {
        let magnitude = bits & 0x7fff_ffff;
        let is_nan = magnitude > 0x7f80_0000;
        let is_negative = (bits >> 31 != 0) & (magnitude != 0);
        let is_above = magnitude > MAX;
        let is_below = magnitude < MIN;
        // Below 2^-126 there is no hidden bit. 2^-127 is half of the exponent step, so the mantissa counts from there;
        // doubling gives it the weight that it has in the other binades.
        let is_subnormal = magnitude < 1 << 23;
        let aligned = if is_subnormal { (magnitude << 1) & 0x007f_ffff } else { magnitude };
        let code = (aligned + target.bump) >> 23;
        let code = if is_above { beyond(254) } else { code };
        let code = if is_below { beyond(0) } else { code };
        let is_nan_now = is_nan | is_negative;
        tally.was_nan += u32::from(is_negative & !is_nan);
        tally.over += u32::from((is_above | is_below) & !is_nan_now);
        let is_exact = ((magnitude & 0x007f_ffff) == 0) | (magnitude == MIN);
        tally.inexact += u32::from(!is_nan & (!is_exact | is_negative | is_above | is_below));
        [if is_nan_now { 255 } else { code as u8 }]
    });
    let mut counts = tally.counts();
    counts[Loss::Nan] = tally.was_nan.into();
    counts[if target.saturate { Loss::Saturated } else { Loss::Nan }] += u64::from(tally.over);
    counts
}
