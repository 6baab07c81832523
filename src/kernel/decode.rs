//! Elements into a lane: every source type into float32, float64 or 64-bit integers.
//!
//! The float32 lane is exact for floats of 32 bits and fewer and for integers of 16; wider sources enter it
//! rounded to odd. The float64 lane is exact but for 64-bit integers, likewise rounded to odd. The integer
//! lane takes integers only, extended by their own sign.

use super::round::{narrow_to_odd, signed_to_odd, unsigned_to_odd, widen};
use crate::dtype::{Class, Dtype, FloatFormat, Specials};

/// How the bytes of a source element become a number.
pub(super) enum Decode {
    Bool,
    /// Two's complement or unsigned; 8 bits stand for fewer too, the rest of the byte is ignored.
    Int {
        bits: u32,
        signed: bool,
    },
    /// Floats of 8 bits and fewer, as float32 bits.
    Table(Box<[u32; 256]>),
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Decode {
    /// `None` for complex and string, which are no numbers in this sense.
    pub(super) fn new(dtype: Dtype) -> Option<Self> {
        Some(match dtype.class() {
            Class::Bool => Self::Bool,
            Class::Int { signed } => Self::Int { bits: dtype.bits(), signed },
            Class::Scale => Self::Table(Box::new(std::array::from_fn(|code| decode_scale(code as u8)))),
            Class::Float(format) => match dtype {
                Dtype::Float16 => Self::Float16,
                Dtype::Bfloat16 => Self::Bfloat16,
                Dtype::Float32 => Self::Float32,
                Dtype::Float64 => Self::Float64,
                _ => {
                    let mask = (1 << dtype.bits()) - 1;
                    Self::Table(Box::new(std::array::from_fn(|code| decode_narrow(code as u32 & mask, &format))))
                }
            },
            Class::Complex | Class::String => return None,
        })
    }

    /// Whether the float32 lane holds every value of this source exactly.
    pub(super) fn is_exact_in_float32(&self) -> bool {
        match self {
            Self::Int { bits, .. } => *bits <= 16,
            Self::Float64 => false,
            _ => true,
        }
    }

    pub(super) fn is_integer(&self) -> bool {
        matches!(self, Self::Bool | Self::Int { .. })
    }

    #[inline(always)]
    pub(super) fn to_float32(&self, bytes: &[u8], lane: &mut [u32]) {
        match self {
            Self::Bool => load(bytes, lane, |[byte]| f32::from(u8::from(byte != 0)).to_bits()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat32),
            Self::Table(table) => load(bytes, lane, |[code]| table[usize::from(code)]),
            Self::Float16 => load(bytes, lane, |bytes| decode_float16(u16::from_le_bytes(bytes))),
            Self::Bfloat16 => load(bytes, lane, |bytes| decode_bfloat16(u16::from_le_bytes(bytes))),
            Self::Float32 => load(bytes, lane, u32::from_le_bytes),
            Self::Float64 => load(bytes, lane, |bytes| narrow_to_odd(u64::from_le_bytes(bytes))),
        }
    }

    #[inline(always)]
    pub(super) fn to_float64(&self, bytes: &[u8], lane: &mut [u64]) {
        match self {
            Self::Bool => load(bytes, lane, |[byte]| f64::from(u8::from(byte != 0)).to_bits()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat64),
            Self::Table(table) => load(bytes, lane, |[code]| widen(table[usize::from(code)])),
            Self::Float16 => load(bytes, lane, |bytes| widen(decode_float16(u16::from_le_bytes(bytes)))),
            Self::Bfloat16 => load(bytes, lane, |bytes| widen(decode_bfloat16(u16::from_le_bytes(bytes)))),
            Self::Float32 => load(bytes, lane, |bytes| widen(u32::from_le_bytes(bytes))),
            Self::Float64 => load(bytes, lane, u64::from_le_bytes),
        }
    }

    /// Integer sources only: there is no other way into this lane.
    #[inline(always)]
    pub(super) fn to_integer(&self, bytes: &[u8], lane: &mut [u64]) {
        match self {
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToInteger),
            _ => load(bytes, lane, |[byte]| u64::from(byte != 0)),
        }
    }
}

/// Reads elements of `N` bytes; the bytes need no alignment.
#[inline(always)]
fn load<const N: usize, T>(bytes: &[u8], lane: &mut [T], decode: impl Fn([u8; N]) -> T) {
    for (slot, bytes) in lane.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *slot = decode(*bytes);
    }
}

/// One conversion of all integer types, so that the list of widths stands once.
trait FromInteger<T> {
    fn signed(&self, value: i64) -> T;
    fn unsigned(&self, value: u64) -> T;
    /// Integers of 32 bits and fewer.
    fn short(&self, value: i32) -> T;
}

struct ToFloat32;
struct ToFloat64;
struct ToInteger;

impl FromInteger<u32> for ToFloat32 {
    #[inline(always)]
    fn signed(&self, value: i64) -> u32 {
        narrow_to_odd(signed_to_odd(value))
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> u32 {
        narrow_to_odd(unsigned_to_odd(value))
    }
    #[inline(always)]
    fn short(&self, value: i32) -> u32 {
        (value as f32).to_bits()
    }
}

impl FromInteger<u64> for ToFloat64 {
    #[inline(always)]
    fn signed(&self, value: i64) -> u64 {
        signed_to_odd(value)
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> u64 {
        unsigned_to_odd(value)
    }
    #[inline(always)]
    fn short(&self, value: i32) -> u64 {
        f64::from(value).to_bits()
    }
}

impl FromInteger<u64> for ToInteger {
    #[inline(always)]
    fn signed(&self, value: i64) -> u64 {
        value as u64
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> u64 {
        value
    }
    #[inline(always)]
    fn short(&self, value: i32) -> u64 {
        value as i64 as u64
    }
}

#[inline(always)]
fn load_integers<T>(bits: u32, signed: bool, bytes: &[u8], lane: &mut [T], to: &impl FromInteger<T>) {
    match (bits, signed) {
        (64, true) => load(bytes, lane, |b| to.signed(i64::from_le_bytes(b))),
        (64, false) => load(bytes, lane, |b| to.unsigned(u64::from_le_bytes(b))),
        (32, true) => load(bytes, lane, |b| to.signed(i32::from_le_bytes(b).into())),
        (32, false) => load(bytes, lane, |b| to.unsigned(u32::from_le_bytes(b).into())),
        (16, true) => load(bytes, lane, |b| to.short(i16::from_le_bytes(b).into())),
        (16, false) => load(bytes, lane, |b| to.short(u16::from_le_bytes(b).into())),
        (bits, true) => load(bytes, lane, |[b]| to.short((((b << (8 - bits)) as i8) >> (8 - bits)).into())),
        (bits, false) => load(bytes, lane, |[b]| to.short(((b << (8 - bits)) >> (8 - bits)).into())),
    }
}

/// float16 bits -> float32 bits.
#[inline(always)]
fn decode_float16(half: u16) -> u32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    let is_nan = magnitude > 0x7c00;
    let is_special = magnitude >= 0x7c00;
    // A normal number only needs the other bias; Inf and NaN the top exponent instead.
    let rebias = if is_special { (255 - 31) << 23 } else { (127 - 15) << 23 };
    let normal = (magnitude << 13) + rebias;
    // A subnormal is its mantissa in units of 2^-24: 2^-14 with it in the low bits, less 2^-14.
    let unit = f32::from_bits((127 - 14) << 23);
    let subnormal = (f32::from_bits(unit.to_bits() + (magnitude << 13)) - unit).to_bits();
    let value = if magnitude < 0x0400 { subnormal } else { normal };
    value | sign | if is_nan { 0x0040_0000 } else { 0 }
}

/// bfloat16 bits -> float32 bits.
#[inline(always)]
fn decode_bfloat16(brain: u16) -> u32 {
    let quiet = if brain & 0x7fff > 0x7f80 { 0x0040_0000 } else { 0 };
    u32::from(brain) << 16 | quiet
}

/// E8M0 code -> float32 bits: 2^(code - 127), of which the first is a float32 subnormal.
fn decode_scale(code: u8) -> u32 {
    match code {
        0 => 0x0040_0000,
        255 => 0x7fc0_0000,
        _ => u32::from(code) << 23,
    }
}

/// Code of a float format of 8 bits or fewer -> float32 bits.
fn decode_narrow(code: u32, format: &FloatFormat) -> u32 {
    let sign = if u64::from(code) & format.sign() == 0 { 0 } else { 1 << 31 };
    let magnitude = u64::from(code) & (format.sign() - 1);
    let is_nan = match format.specials {
        Specials::Ieee => magnitude > format.infinity(),
        Specials::Fn => magnitude == format.nan(),
        Specials::Fnuz => u64::from(code) == format.nan(),
        Specials::Finite => false,
    };
    if is_nan {
        return sign | 0x7fc0_0000;
    }
    if format.specials == Specials::Ieee && magnitude == format.infinity() {
        return sign | 0x7f80_0000;
    }
    let exponent = (magnitude >> format.mantissa_bits) as i32;
    let mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
    let hidden = if exponent == 0 { 0 } else { 1 << format.mantissa_bits };
    // Every factor is a small integer or a power of two in float32's range: the product is exact.
    let unit = exponent.max(1) - 1 + format.min_subnormal_exponent();
    let value = (mantissa + hidden) as f32 * f32::from_bits(((unit + 127) as u32) << 23);
    sign | value.to_bits()
}
