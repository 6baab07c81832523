//! Elements into a lane: every source type into float32, float64 or 64-bit integers.
//!
//! The float32 lane is exact for floats of 32 bits and fewer and for integers of 16; wider sources enter it rounded to
//! odd. The float64 lane is exact except for 64-bit integers, which also enter rounded to odd. The integer lane takes
//! only integers and extends their sign.

use super::counts::Counts;
use super::lane::{LaneElement, grow};
use super::round::{narrow_to_odd, signed_to_odd, unsigned_to_odd, widen};
use crate::dtype::{Class, Dtype, FloatFormat, Specials};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Conversion of the bytes of a source element to a number.
pub(super) enum Decode {
    Bool,
    /// Two's complement or unsigned; types of fewer than 8 bits also use a byte, whose other bits are ignored.
    Int {
        bits: u32,
        signed: bool,
    },
    /// E8M0: each code as float32 bits.
    Scale(&'static [u32; 256]),
    /// Floats of 8 bits and fewer: likewise, and the constants that convert finite codes without a table.
    Narrow(&'static [u32; 256], Widening),
    Float16(Widening),
    Bfloat16,
    Float32,
    Float64,
}

/// The codes of all floats and scales of 8 bits and fewer as float32 bits. Kernels share them, because a model can need
/// hundreds of thousands of kernels.
static TABLES: LazyLock<HashMap<Dtype, [u32; 256]>> = LazyLock::new(|| {
    let decode = |dtype: Dtype| match dtype.class() {
        Class::Scale => Some(std::array::from_fn(|code| decode_scale(code as u8))),
        Class::Float(format) if dtype.bits() <= 8 => {
            let mask = (1 << dtype.bits()) - 1;
            Some(std::array::from_fn(|code| decode_narrow(code as u32 & mask, &format)))
        }
        _ => None,
    };
    Dtype::all().filter_map(|dtype| Some((dtype, decode(dtype)?))).collect()
});

impl Decode {
    /// Creates the decoder of a type. `None` for complex and string, which these lanes do not hold.
    pub(super) fn new(dtype: Dtype) -> Option<Self> {
        Some(match dtype.class() {
            Class::Bool => Self::Bool,
            Class::Int { signed } => Self::Int { bits: dtype.bits(), signed },
            Class::Scale => Self::Scale(TABLES.get(&dtype)?),
            Class::Float(format) => match dtype {
                Dtype::Float16 => Self::Float16(Widening::new(&format)),
                Dtype::Bfloat16 => Self::Bfloat16,
                Dtype::Float32 => Self::Float32,
                Dtype::Float64 => Self::Float64,
                _ => Self::Narrow(TABLES.get(&dtype)?, Widening::new(&format)),
            },
            Class::Complex | Class::String => return None,
        })
    }

    /// True if the float32 lane holds every value of this source exactly.
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

    /// Decodes all elements to float32. The lane is `scratch`, or the source itself if it already is float32.
    #[inline(always)]
    pub(super) fn to_float32<'a>(&self, bytes: &'a [u8], count: usize, scratch: &'a mut Vec<u8>) -> &'a [[u8; 4]] {
        if let Self::Float32 = self {
            return bytes.as_chunks().0;
        }
        let lane = grow(scratch, 4 * count).as_chunks_mut().0;
        self.fill_float32(bytes, lane);
        lane
    }

    /// Writes all elements as float32.
    #[inline(always)]
    pub(super) fn fill_float32(&self, bytes: &[u8], lane: &mut [[u8; 4]]) {
        match self {
            Self::Bool => load(bytes, lane, |[byte]| f32::from(u8::from(byte != 0)).to_bits()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat32),
            &Self::Narrow(_, widening) if !widening.has_special(bytes, |[code]| code.into()) => {
                load(bytes, lane, |[code]| widening.widen(code.into()));
            }
            Self::Scale(table) | Self::Narrow(table, _) => look_up(bytes, lane, |[code]| table[usize::from(code)]),
            &Self::Float16(widening) if !widening.has_special(bytes, u16::from_le_bytes) => {
                load(bytes, lane, |bytes| widening.widen(u16::from_le_bytes(bytes).into()));
            }
            &Self::Float16(widening) => load(bytes, lane, |bytes| decode_float16(u16::from_le_bytes(bytes), widening)),
            Self::Bfloat16 => load(bytes, lane, |bytes| decode_bfloat16(u16::from_le_bytes(bytes))),
            Self::Float32 => load(bytes, lane, u32::from_le_bytes),
            Self::Float64 => load(bytes, lane, |bytes| narrow_to_odd(u64::from_le_bytes(bytes))),
        }
    }

    /// Decodes all elements to float64, as [`Self::to_float32`] does to float32.
    #[inline(always)]
    pub(super) fn to_float64<'a>(&self, bytes: &'a [u8], count: usize, scratch: &'a mut Vec<u8>) -> &'a [[u8; 8]] {
        if let Self::Float64 = self {
            return bytes.as_chunks().0;
        }
        let lane = grow(scratch, 8 * count).as_chunks_mut().0;
        match self {
            Self::Bool => load(bytes, lane, |[byte]| f64::from(u8::from(byte != 0)).to_bits()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat64),
            Self::Scale(table) | Self::Narrow(table, _) => {
                look_up(bytes, lane, |[code]| widen(table[usize::from(code)]));
            }
            &Self::Float16(widening) => {
                load(bytes, lane, |bytes| widen(decode_float16(u16::from_le_bytes(bytes), widening)));
            }
            Self::Bfloat16 => load(bytes, lane, |bytes| widen(decode_bfloat16(u16::from_le_bytes(bytes)))),
            Self::Float32 => load(bytes, lane, |bytes| widen(u32::from_le_bytes(bytes))),
            Self::Float64 => {} // is the lane
        }
        lane
    }

    /// Decodes all elements of an integer source to 64 bits. Only integer sources use this lane.
    #[inline(always)]
    pub(super) fn to_integer(&self, bytes: &[u8], lane: &mut [[u8; 8]]) {
        match self {
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToInteger),
            _ => load(bytes, lane, |[byte]| u64::from(byte != 0)),
        }
    }
}

/// Reads elements of `N` bytes; the bytes need no alignment.
#[inline(always)]
fn load<const N: usize, T: LaneElement>(bytes: &[u8], lane: &mut [T::Bytes], decode: impl Fn([u8; N]) -> T) {
    for (slot, bytes) in lane.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *slot = decode(*bytes).to_bytes();
    }
}

/// [`load`] from a table. It is not compiled for wider instruction sets, whose gathers are slower on many processors.
#[inline(never)]
fn look_up<T: LaneElement>(bytes: &[u8], lane: &mut [T::Bytes], decode: impl Fn([u8; 1]) -> T) {
    load(bytes, lane, decode);
}

/// A source format of 16 bits or fewer, as the constants that [`Widening::widen`] needs. Loops copy it, because if a
/// constant is behind a reference and only some elements need it, the compiler emits a gather, at a fifth of the speed.
#[derive(Clone, Copy)]
pub(super) struct Widening {
    /// Mantissa bits of float32 that the source lacks.
    shift: u32,
    /// Difference of the exponent biases, at float32's exponent field.
    rebias: u32,
    /// The source's smallest normal number: as float32, and its code.
    unit: f32,
    min_normal: u32,
    sign: u32,
    /// Left shift that moves the sign bit to its place in the target.
    sign_shift: u32,
    /// A code that is infinite or NaN is at least `special` after xor with `flip` and masking with `mask`.
    mask: u16,
    flip: u16,
    special: u16,
}

impl Widening {
    /// Writes floats of 8 bits or fewer as bfloat16, if all of them are finite: the upper half of their float32 bits,
    /// because the lower half is zero. Nothing is lost.
    #[inline(always)]
    pub(super) fn fill_bfloat16(self, bytes: &[u8], result: &mut [u8]) -> Option<Counts> {
        if self.has_special(bytes, |[code]| code.into()) {
            return None;
        }
        let result = result.as_chunks_mut().0;
        // A format of four mantissa bits would need another line.
        if self.shift < 20 {
            load(bytes, result, |[code]| (self.widen(code.into()) >> 16) as u16);
        } else {
            load(bytes, result, |[code]| self.widen_to_bfloat16(code.into()));
        }
        Some(Counts::default())
    }

    /// Converts a finite code with at most three mantissa bits to bfloat16, in a lane of 16 bits.
    #[inline(always)]
    fn widen_to_bfloat16(self, code: u16) -> u16 {
        let magnitude = code & (self.sign as u16 - 1);
        // 1. With the exponent field in place, read as a fixed-point number: for normal numbers, this is the result.
        let once = (magnitude << (self.shift - 16)) as i16;
        // 2. The mantissa of a subnormal number of up to three bits reaches the hidden bit after some doublings; its
        //    exponent is smaller by their number. Lines through the powers of two have these values. They are pieces of
        //    a concave function, like the logarithm, so the least of them is right.
        let (twice, four_times, eight_times) = (once * 2, once * 4, once * 8);
        let least = once.min(twice - 0x80).min(four_times - 0x100).min(eight_times - 0x180);
        // 3. There is no line through zero.
        let value = if magnitude == 0 { 0 } else { (least + (self.rebias >> 16) as i16) as u16 };
        value | (code & self.sign as u16) << (self.sign_shift - 16)
    }

    fn new(format: &FloatFormat) -> Self {
        let shift = 23 - format.mantissa_bits;
        let sign = format.sign() as u32;
        let unit = ((format.min_normal_exponent() + 127) as u32) << 23;
        let magnitude = sign as u16 - 1;
        let (mask, flip, special) = match format.specials {
            Specials::Ieee => (magnitude, 0, format.infinity() as u16),
            Specials::Fn => (magnitude, 0, format.nan() as u16),
            Specials::Fnuz => (magnitude << 1 | 1, magnitude, magnitude << 1 | 1), // the sign alone
            Specials::Finite => (0, 0, u16::MAX),
        };
        Self {
            shift,
            rebias: ((127 - format.bias) as u32) << 23,
            unit: f32::from_bits(unit),
            min_normal: 1 << format.mantissa_bits,
            sign,
            sign_shift: 31 - sign.trailing_zeros(),
            mask,
            flip,
            special,
        }
    }

    /// True if any of the codes is infinite or NaN.
    #[inline(always)]
    fn has_special<const N: usize>(&self, bytes: &[u8], code: impl Fn([u8; N]) -> u16) -> bool {
        let is_special = |bytes: &[u8; N]| (code(*bytes) ^ self.flip) & self.mask >= self.special;
        bytes.as_chunks().0.iter().fold(false, |any, bytes| any | is_special(bytes))
    }

    /// Converts a finite code to the bits of a float32.
    #[inline(always)]
    fn widen(&self, code: u32) -> u32 {
        let magnitude = (code & (self.sign - 1)) << self.shift;
        // A subnormal is the smallest normal number with the mantissa in its low bits, minus the smallest normal
        // number.
        let subnormal = (f32::from_bits(self.unit.to_bits() + magnitude) - self.unit).to_bits();
        let is_subnormal = code & (self.sign - 1) < self.min_normal;
        let value = if is_subnormal { subnormal } else { magnitude + self.rebias };
        value | (code & self.sign) << self.sign_shift
    }
}

/// Conversion of all integer types, so that the list of widths appears once.
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
fn load_integers<T: LaneElement>(
    bits: u32,
    signed: bool,
    bytes: &[u8],
    lane: &mut [T::Bytes],
    to: &impl FromInteger<T>,
) {
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

/// float16 bits -> float32 bits, including Inf and NaN.
#[inline(always)]
fn decode_float16(half: u16, widening: Widening) -> u32 {
    let magnitude = half & 0x7fff;
    let value = widening.widen(half.into());
    // The top exponent of float16 becomes the top exponent of float32.
    let special = value + ((255 - 31 - (127 - 15)) << 23);
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    if magnitude < 0x7c00 { value } else { special | quiet }
}

/// bfloat16 bits -> float32 bits.
#[inline(always)]
fn decode_bfloat16(brain: u16) -> u32 {
    let bits = u32::from(brain) << 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 { bits | 0x0040_0000 } else { bits }
}

/// E8M0 code -> float32 bits: 2^(code - 127). The smallest is a float32 subnormal.
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
