//! Bytes to bytes: one tensor's elements from a source type to a target type, with counts of what was lost.
//!
//! There are N decoders and N encoders, not N x N conversions. An element goes through one of three lanes:
//!
//! * **float32** to every float of 16 bits and fewer, E8M0 and bool; also to float32 and to integers of 32 bits
//!   and fewer where the source is exact in float32;
//! * **float64** to float32, float64 and all integers otherwise;
//! * **integer** from integers to integers, to bool, and from 64-bit integers to float64.
//!
//! Wider sources enter a float lane rounded to odd, so that the encoder's rounding is the only one that shows
//! (see `round.rs`). A block of 1024 elements is decoded into the lane and encoded out of it while it is in
//! the first-level cache. The code is written once; `isa.rs` compiles it for several instruction sets.
//!
//! Most blocks hold nothing special: no Inf and no NaN, nothing beyond the target's range. They are converted as if
//! that were known, in half the steps, and the smallest and largest magnitude show afterwards whether it was true; if
//! not, the block is converted again by the rules in full. Tests hold the two against the same twin, in blocks of
//! either kind.
//!
//! What was tried, in GB of float32 a second for one core with AVX-512 and all counts (`cargo bench --bench kernels`;
//! ratios hold, figures vary by half with the machine's other work):
//!
//! * Flags of all losses for every element, and two roundings of which one is chosen: 5. This is what is left of it in
//!   `Rounding::round`, for blocks with something special.
//! * One rounding by addition (`Rounding::round_in_range`), losses that are rare found by the block's span: 11.
//! * The source's own bytes as the lane, where it is float32, in place of a copy: 14. Without counts: 16 to 20.
//! * A format's constants behind a reference, in a choice between two results: a gather for each vector, a fifth of the
//!   speed. Loops have copies of them.
//! * Floats of 8 bits to bfloat16 as the upper half of float32, without the encoder: 2.5 times as fast.
//! * 256-entry tables for sources of 8 bits: half the speed of arithmetic in vectors, and with the gathers that the
//!   compiler makes of them a quarter.
//! * Saturating `f32 as i32`: not vectorised, a tenth of the speed of adding 2^23.
//! * SSE4.2 as one more instruction set: 1.4 times the baseline, for machines from before 2013; dropped.
//!
//! Text stands outside the lanes: [`Printer`] widens a block and writes its numbers out, [`Parser`] reads decimals
//! and hands the lanes float64 rounded to odd, so that there too a number is rounded once.

#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    clippy::float_cmp,
    reason = "a loop vectorises when all of it is inlined and without branches; equality of floats is meant exactly"
)]

mod counts;
mod decimal;
mod decode;
mod encode;
mod integer;
mod isa;
mod nearest;
mod pack;
mod parse;
mod print;
mod round;
mod text;
mod text_form;

pub use counts::{Condition, Counts, First, Firsts, Loss};
#[doc(hidden)] // for tests
pub use {
    isa::Isa, parse::NotANumber, parse::Parser, print::Printer, text::Texts, text_form::TextError, text_form::TextForm,
};

pub(crate) use isa::Loop;
pub(crate) use print::shortest;
pub(crate) use text_form::{MAX_TEXT, TextExtent, varint};

use crate::dtype::{Class, Dtype};
use decode::Decode;
use encode::{Encode, bools, count_float32_specials};

/// Elements that pass through the lane at a time: the lane, its source and its result fit in 32 KiB.
const BLOCK: usize = 1024;

/// How the elements of a tensor lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The type of the elements.
    pub dtype: Dtype,
    /// How types of fewer than 8 bits are laid out; nothing to types of whole bytes.
    pub layout: Layout,
    /// Most significant byte first (numpy's `>f4`); complex numbers swap their parts one by one. Of sources only:
    /// results are little endian.
    pub big_endian: bool,
}

/// What the elements of a tensor are, and how they lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Numbers, each of the same width.
    Numbers(Storage),
    /// Texts.
    Texts(TextForm),
}

impl Form {
    /// The type of the elements.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        match self {
            Self::Numbers(storage) => storage.dtype,
            Self::Texts(_) => Dtype::String,
        }
    }

    /// Bytes that `count` elements take. `None` when the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::Numbers(storage) => storage.bytes(count),
            Self::Texts(form) => form.bytes(count),
        }
    }
}

/// How elements of fewer than 8 bits are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Without gaps, least significant bits first, as ONNX and safetensors have it.
    Packed,
    /// One in a byte, as numpy has it; signed integers extend their sign.
    PerByte,
}

impl Storage {
    /// Little endian, without gaps.
    #[must_use]
    pub fn packed(dtype: Dtype) -> Self {
        Self { dtype, layout: Layout::Packed, big_endian: false }
    }

    /// Little endian, one element in a byte at the least.
    #[must_use]
    pub fn per_byte(dtype: Dtype) -> Self {
        Self { dtype, layout: Layout::PerByte, big_endian: false }
    }

    /// Bytes that `count` elements take. `None` when the number does not fit in 64 bits.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        if self.is_per_byte() { Some(count) } else { self.dtype.packed_bytes(count) }
    }

    fn is_per_byte(self) -> bool {
        self.layout == Layout::PerByte && self.dtype.bits() < 8
    }

    /// Whether one number's bytes are to be swapped, and how many they are.
    fn swapped_bytes(self) -> Option<usize> {
        let parts = if self.dtype.class() == Class::Complex { 2 } else { 1 };
        let bytes = self.dtype.bits() as usize / 8 / parts;
        (self.big_endian && bytes > 1).then_some(bytes)
    }

    /// Where element `index` starts; for packed elements a multiple of 8. Out of every slice where it cannot be told.
    fn offset(self, index: usize) -> usize {
        // In 64 bits, as the bits of a large slice are more than 32 can count.
        let bytes = self.bytes(index as u64).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.unwrap_or(usize::MAX)
    }
}

/// The rules of a cast that the types leave open, each as `cast.md` and ONNX Cast name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// ONNX's `saturate`: float8 and E8M0 targets clamp; otherwise they become infinite or NaN.
    pub saturate: bool,
    /// With `saturate`, Inf to a FNUZ type gives the largest number (Cast 24) and not NaN (Cast 19 to 23).
    pub infinity_saturates_fnuz: bool,
    /// ONNX's `round_mode`, for E8M0 targets.
    pub round_mode: RoundMode,
    /// What a float beyond an integer's range becomes.
    pub out_of_range: OutOfRange,
}

/// How E8M0 rounds to a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundMode {
    /// To the next power of two upwards.
    Up,
    /// To the power of two below.
    Down,
    /// To the nearest, a tie upwards.
    Nearest,
}

/// What a float beyond an integer type's range becomes, NaN and Inf among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// The low bits of the integer; 0 for NaN and Inf.
    Wrap,
    /// The nearest end of the range; 0 for NaN.
    Saturate,
    /// As [`OutOfRange::Wrap`], and the caller is told to refuse: see [`Kernel::refuses`].
    Error,
}

/// A byte that holds one FP4 or FP6 element has bits set above it, so what it means is anyone's guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a byte holds more than the one element")
    }
}

impl std::error::Error for Malformed {}

/// An element of a lane, which is held as little endian bytes: so a source that has the lane's type is the lane.
trait Bits: Copy {
    type Bytes: Copy;
    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;
}

macro_rules! bits {
    ($bits:ty) => {
        impl Bits for $bits {
            type Bytes = [u8; size_of::<$bits>()];
            #[inline(always)]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
    };
}

bits!(u16);
bits!(u32);
bits!(u64);

enum Lane {
    /// The bits themselves, repacked or swapped at the most.
    Codes,
    Float32(Decode, Encode),
    Float64(Decode, Encode),
    Integer(Decode, Encode),
}

/// A conversion from one storage to another.
pub struct Kernel {
    source: Storage,
    target: Storage,
    lane: Lane,
    refused: Option<Loss>,
}

impl Kernel {
    /// The cast from `source` to `target`.
    ///
    /// Returns `None` where ONNX Cast has no such pair (complex, and targets that ONNX lacks), elements have no width
    /// (string), or the target is big-endian.
    #[must_use]
    pub fn cast(source: Storage, target: Storage, rules: &Rules) -> Option<Self> {
        let decode = Decode::new(source.dtype)?;
        if target.swapped_bytes().is_some() {
            return None;
        }
        // A float8 obeys the table even where the types are equal, and a bool becomes 0 or 1.
        if source.dtype == target.dtype && !source.dtype.is_float8() && source.dtype != Dtype::Bool {
            return Self::copy(source, target);
        }
        let encode = Encode::new(source.dtype, target.dtype, *rules)?;
        let wide = target.dtype.bits() == 64;
        let exact = decode.is_exact_in_float32();
        let from_integer = decode.is_integer();
        let lane = match &encode {
            Encode::Int(_) | Encode::Bool if from_integer => Lane::Integer(decode, encode),
            Encode::Float64 if from_integer && !exact => Lane::Integer(decode, encode),
            Encode::Bool | Encode::Narrow(..) | Encode::Scale(_) => Lane::Float32(decode, encode),
            Encode::Float32 | Encode::Int(_) if exact && !wide => Lane::Float32(decode, encode),
            Encode::Float32 | Encode::Float64 | Encode::Int(_) => Lane::Float64(decode, encode),
        };
        let refuses = rules.out_of_range == OutOfRange::Error
            && matches!(&lane, Lane::Float32(_, Encode::Int(_)) | Lane::Float64(_, Encode::Int(_)));
        Some(Self { source, target, lane, refused: refuses.then_some(Loss::Wrapped) })
    }

    /// The same bits in another storage: equal dtypes, or dtypes of equal width.
    ///
    /// Returns `None` for unequal widths, for strings, and for a big-endian target.
    #[must_use]
    pub fn copy(source: Storage, target: Storage) -> Option<Self> {
        let bits = source.dtype.bits();
        let fits = bits != 0 && bits == target.dtype.bits() && target.swapped_bytes().is_none();
        fits.then_some(Self { source, target, lane: Lane::Codes, refused: None })
    }

    /// How the elements of the source and of the target are stored.
    pub(crate) fn storages(&self) -> [Storage; 2] {
        [self.source, self.target]
    }

    /// The loss that the rules forbid ([`OutOfRange::Error`]); the caller must discard a result that counts one.
    #[must_use]
    pub fn refuses(&self) -> Option<Loss> {
        self.refused
    }

    /// Whether the target's bytes are the source's, so that no kernel need run.
    #[must_use]
    pub fn is_plain_copy(&self) -> bool {
        let same = self.source.is_per_byte() == self.target.is_per_byte() && self.source.swapped_bytes().is_none();
        matches!(self.lane, Lane::Codes) && same && self.source.dtype.bits().is_multiple_of(8)
    }

    /// Converts `count` elements with [`Isa::chosen`].
    ///
    /// # Errors
    /// [`Malformed`] when a byte that holds one FP4 or FP6 element has other bits set; `output` is then partly
    /// written.
    ///
    /// # Panics
    /// When `input` or `output` is shorter than `count` elements take.
    pub fn run(&self, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
        self.run_on(Isa::chosen(), input, output, count)
    }

    /// As [`Kernel::run`], with one of the instruction sets of [`Isa::available`]: for tests.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    ///
    /// # Panics
    /// As [`Kernel::run`], and when the machine lacks the instruction set.
    #[doc(hidden)]
    pub fn run_on(&self, isa: Isa, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
        let (input, output) = (&input[..self.source.offset(count)], &mut output[..self.target.offset(count)]);
        isa.run(Blocks { kernel: self, input, output, count })
    }

    #[inline(always)]
    fn run_block(
        &self,
        input: &[u8],
        output: &mut [u8],
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<Counts, Malformed> {
        let Scratch { lane, bytes, codes } = scratch;
        let input = load(&self.source, input, bytes, count)?;
        let bits = self.target.dtype.bits();
        let result = if bits < 8 { room(codes, count) } else { &mut *output };
        let counts = match &self.lane {
            Lane::Codes => {
                result.copy_from_slice(input);
                Counts::default()
            }
            // Of sources that are exact in float32, and so the lane is the result.
            Lane::Float32(decode, Encode::Float32) => {
                let (lane, mut counts) = (result.as_chunks_mut().0, Counts::default());
                decode.fill_float32(input, lane);
                count_float32_specials(lane, &mut counts);
                counts
            }
            Lane::Float32(decode, encode) => {
                let is_upper_half = self.target.dtype == Dtype::Bfloat16;
                let short = if is_upper_half { decode.short_numbers(input) } else { None };
                if let Some(widening) = short {
                    widening.fill_bfloat16(input, result);
                    Counts::default()
                } else {
                    encode.encode_float32(decode.to_float32(input, count, lane), result)
                }
            }
            Lane::Float64(decode, encode) => encode.encode_float64(decode.to_float64(input, count, lane), result),
            Lane::Integer(Decode::Bool, Encode::Bool) => bools(input, result),
            Lane::Integer(decode, encode) => {
                let wide = room(lane, 8 * count).as_chunks_mut().0;
                decode.to_integer(input, wide);
                let signed = self.source.dtype.class() == Class::Int { signed: true };
                encode.encode_integer(wide, signed, result)
            }
        };
        if bits < 8 {
            let codes = &codes[..count];
            match (self.target.layout, self.target.dtype.class()) {
                (Layout::Packed, _) => pack::pack(codes, output, bits),
                (Layout::PerByte, Class::Int { signed: true }) => {
                    for (byte, code) in output.iter_mut().zip(codes) {
                        *byte = (((code << (8 - bits)) as i8) >> (8 - bits)) as u8;
                    }
                }
                (Layout::PerByte, _) => output.copy_from_slice(codes),
            }
        }
        Ok(counts)
    }
}

/// The blocks of a conversion.
struct Blocks<'a> {
    kernel: &'a Kernel,
    input: &'a [u8],
    output: &'a mut [u8],
    count: usize,
}

impl Loop for Blocks<'_> {
    type Result = Result<Counts, Malformed>;

    #[inline(always)]
    fn run(self) -> Self::Result {
        let Self { kernel: Kernel { source, target, .. }, count, .. } = self;
        let mut scratch = Scratch::default();
        let mut counts = Counts::default();
        for start in (0..count).step_by(BLOCK) {
            let end = count.min(start + BLOCK);
            let input = &self.input[source.offset(start)..source.offset(end)];
            let output = &mut self.output[target.offset(start)..target.offset(end)];
            counts += self.kernel.run_block(input, output, end - start, &mut scratch)?;
        }
        Ok(counts)
    }
}

/// Room for one block in every form that it takes; what is not needed stays empty, for tensors can be tiny.
#[derive(Default)]
struct Scratch {
    lane: Vec<u8>,
    /// Source bytes put in order.
    bytes: Vec<u8>,
    codes: Vec<u8>,
}

/// So many bytes of a buffer, which grows where it must.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// A block's source bytes as little endian elements of whole bytes, in `scratch` where they are not so already.
#[inline(always)]
fn load<'a>(source: &Storage, input: &'a [u8], scratch: &'a mut Vec<u8>, count: usize) -> Result<&'a [u8], Malformed> {
    let bits = source.dtype.bits();
    if bits < 8 {
        let codes = room(scratch, count);
        if source.layout == Layout::Packed {
            pack::unpack(input, codes, bits);
            return Ok(codes);
        }
        // ml_dtypes ignores the upper bits of its integers everywhere, and of its floats only in part.
        let mask = (1 << bits) - 1;
        let mut seen = 0;
        for (code, byte) in codes.iter_mut().zip(input) {
            seen |= byte;
            *code = byte & mask;
        }
        let is_float = matches!(source.dtype.class(), Class::Float(_));
        return if is_float && seen & !mask != 0 { Err(Malformed) } else { Ok(codes) };
    }
    let Some(width) = source.swapped_bytes() else { return Ok(input) };
    let swapped = room(scratch, input.len());
    for (swapped, bytes) in swapped.chunks_exact_mut(width).zip(input.chunks_exact(width)) {
        swapped.copy_from_slice(bytes);
        swapped.reverse();
    }
    Ok(swapped)
}

#[cfg(test)]
mod tests {
    use super::{Dtype, Storage};

    #[test]
    fn the_bits_of_a_large_slice_are_counted_where_addresses_have_32_bits() {
        assert_eq!(Storage::packed(Dtype::Float64).offset(1 << 26), 1 << 29);
        assert_eq!(Storage::packed(Dtype::Uint4).offset(1 << 31), 1 << 30);
    }
}
