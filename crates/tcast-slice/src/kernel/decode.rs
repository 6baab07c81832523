//! Elements into a lane: every source type into float32, float64 or 64-bit integers.
//!
//! The float32 lane is exact for floats of 32 bits and fewer and for integers of 16; wider sources enter it rounded to
//! odd. The float64 lane is exact except for 64-bit integers, which also enter rounded to odd. The integer lane takes
//! only integers and extends their sign.

use super::float::Minifloat;
use super::half::{FLOAT16, quiet_bfloat16, quiet_float16};
use super::lane::{grow, narrow_to_odd, signed_to_odd, unsigned_to_odd, widen};
use crate::dtype::{Class, Dtype};
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
    Narrow(&'static [u32; 256], &'static Minifloat),
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

/// The codes of a type of 8 bits or fewer as float32 bits, and the constants of a float.
type NarrowCodes = ([u32; 256], Option<Minifloat>);

/// All floats and scales of 8 bits and fewer. Kernels share them, because a model can need hundreds of thousands of
/// kernels.
static TABLES: LazyLock<HashMap<Dtype, NarrowCodes>> = LazyLock::new(|| {
    let decode = |dtype: Dtype| match dtype.class() {
        Class::Scale => Some((std::array::from_fn(|code| decode_scale(code as u8)), None)),
        Class::Float(format) if dtype.bits() <= 8 => {
            let (float, mask) = (Minifloat::new(&format), (1 << dtype.bits()) - 1);
            Some((std::array::from_fn(|code| float.number(code as u32 & mask).to_bits()), Some(float)))
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
            Class::Scale => Self::Scale(&TABLES.get(&dtype)?.0),
            Class::Float(_) => match dtype {
                Dtype::Float16 => Self::Float16,
                Dtype::Bfloat16 => Self::Bfloat16,
                Dtype::Float32 => Self::Float32,
                Dtype::Float64 => Self::Float64,
                _ => {
                    let (table, float) = TABLES.get(&dtype)?;
                    Self::Narrow(table, float.as_ref()?)
                }
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
            Self::Bool => load(bytes, lane, |[byte]| f32::from(u8::from(byte != 0)).to_le_bytes()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat32),
            Self::Narrow(_, float) if !float.has_special(bytes, |[code]| code.into()) => {
                let float = **float;
                load(bytes, lane, |[code]| float.widen(code.into()).to_le_bytes());
            }
            Self::Scale(table) | Self::Narrow(table, _) => {
                look_up(bytes, lane, |[code]| table[usize::from(code)].to_le_bytes());
            }
            Self::Float16 if !FLOAT16.has_special(bytes, u16::from_le_bytes) => {
                load(bytes, lane, |bytes| FLOAT16.widen(u16::from_le_bytes(bytes).into()).to_le_bytes());
            }
            Self::Float16 => load(bytes, lane, |bytes| quiet_float16(u16::from_le_bytes(bytes)).to_le_bytes()),
            Self::Bfloat16 => load(bytes, lane, |bytes| quiet_bfloat16(u16::from_le_bytes(bytes)).to_le_bytes()),
            Self::Float32 => lane.copy_from_slice(bytes.as_chunks().0),
            Self::Float64 => load(bytes, lane, |bytes| narrow_to_odd(u64::from_le_bytes(bytes)).to_le_bytes()),
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
            Self::Bool => load(bytes, lane, |[byte]| f64::from(u8::from(byte != 0)).to_le_bytes()),
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToFloat64),
            Self::Scale(table) | Self::Narrow(table, _) => {
                look_up(bytes, lane, |[code]| widen(table[usize::from(code)]).to_le_bytes());
            }
            Self::Float16 => load(bytes, lane, |bytes| widen(quiet_float16(u16::from_le_bytes(bytes))).to_le_bytes()),
            Self::Bfloat16 => load(bytes, lane, |bytes| widen(quiet_bfloat16(u16::from_le_bytes(bytes))).to_le_bytes()),
            Self::Float32 => load(bytes, lane, |bytes| widen(u32::from_le_bytes(bytes)).to_le_bytes()),
            Self::Float64 => {} // is the lane
        }
        lane
    }

    /// Decodes all elements of an integer source to 64 bits. Only integer sources use this lane.
    #[inline(always)]
    pub(super) fn to_integer(&self, bytes: &[u8], lane: &mut [[u8; 8]]) {
        match self {
            Self::Int { bits, signed } => load_integers(*bits, *signed, bytes, lane, &ToInteger),
            _ => load(bytes, lane, |[byte]| u64::from(byte != 0).to_le_bytes()),
        }
    }
}

/// Reads elements of `N` bytes, which need no alignment, into a lane of little endian numbers.
#[inline(always)]
pub(super) fn load<const N: usize, const M: usize>(
    bytes: &[u8],
    lane: &mut [[u8; M]],
    decode: impl Fn([u8; N]) -> [u8; M],
) {
    for (slot, bytes) in lane.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *slot = decode(*bytes);
    }
}

/// [`load`] from a table. It is not compiled for wider instruction sets, whose gathers are slower on many processors.
#[inline(never)]
fn look_up<const M: usize>(bytes: &[u8], lane: &mut [[u8; M]], decode: impl Fn([u8; 1]) -> [u8; M]) {
    load(bytes, lane, decode);
}

/// Conversion of all integer types, so that the list of widths appears once.
trait FromInteger<const M: usize> {
    fn signed(&self, value: i64) -> [u8; M];
    fn unsigned(&self, value: u64) -> [u8; M];
    /// Integers of 32 bits and fewer.
    fn short(&self, value: i32) -> [u8; M];
}

struct ToFloat32;
struct ToFloat64;
struct ToInteger;

impl FromInteger<4> for ToFloat32 {
    #[inline(always)]
    fn signed(&self, value: i64) -> [u8; 4] {
        narrow_to_odd(signed_to_odd(value)).to_le_bytes()
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> [u8; 4] {
        narrow_to_odd(unsigned_to_odd(value)).to_le_bytes()
    }
    #[inline(always)]
    fn short(&self, value: i32) -> [u8; 4] {
        (value as f32).to_le_bytes()
    }
}

impl FromInteger<8> for ToFloat64 {
    #[inline(always)]
    fn signed(&self, value: i64) -> [u8; 8] {
        signed_to_odd(value).to_le_bytes()
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> [u8; 8] {
        unsigned_to_odd(value).to_le_bytes()
    }
    #[inline(always)]
    fn short(&self, value: i32) -> [u8; 8] {
        f64::from(value).to_le_bytes()
    }
}

impl FromInteger<8> for ToInteger {
    #[inline(always)]
    fn signed(&self, value: i64) -> [u8; 8] {
        value.to_le_bytes()
    }
    #[inline(always)]
    fn unsigned(&self, value: u64) -> [u8; 8] {
        value.to_le_bytes()
    }
    #[inline(always)]
    fn short(&self, value: i32) -> [u8; 8] {
        i64::from(value).to_le_bytes()
    }
}

#[inline(always)]
fn load_integers<const M: usize>(
    bits: u32,
    signed: bool,
    bytes: &[u8],
    lane: &mut [[u8; M]],
    to: &impl FromInteger<M>,
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

/// E8M0 code -> float32 bits: 2^(code - 127). The smallest is a float32 subnormal.
fn decode_scale(code: u8) -> u32 {
    match code {
        0 => 0x0040_0000,
        255 => 0x7fc0_0000,
        _ => u32::from(code) << 23,
    }
}
