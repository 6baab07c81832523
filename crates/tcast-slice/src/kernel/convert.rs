//! A conversion from one storage to another: the choice of its lane, and the loop over blocks.

use super::counts::{Counts, Loss};
use super::decode::Decode;
use super::encode::{Encode, bools};
use super::isa::{Isa, Loop, prefetch_behind};
use super::lane::{AHEAD, BLOCK, grow};
use super::pack;
use super::rules::{OutOfRange, Rules};
use super::shortcut::Shortcut;
use super::storage::{Storage, SubByteLayout};
use super::tally::count_float32_specials;
use crate::dtype::{Class, Dtype};

/// Error for a byte that holds one FP4 or FP6 element, or one integer of [`SubByteLayout::PerByteStrict`], and has
/// other bits above it, so that its meaning is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a byte holds more than the one element")
    }
}

impl std::error::Error for Malformed {}

enum Lane {
    /// The bits themselves, repacked or swapped if necessary.
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
    /// Only for a [`Lane::Float32`].
    pub(super) shortcut: Option<Shortcut>,
    refused: Option<Loss>,
}

impl Kernel {
    /// The cast from `source` to `target`.
    ///
    /// Returns `None` if ONNX Cast has no such pair (complex, and targets that ONNX lacks), if elements have no width
    /// (string), or if the target is big-endian.
    #[must_use]
    pub fn cast(source: Storage, target: Storage, rules: &Rules) -> Option<Self> {
        let decode = Decode::new(source.dtype)?;
        if target.swapped_bytes().is_some() {
            return None;
        }
        // A float8 follows the table even if the types are equal, and a bool becomes 0 or 1.
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
            Encode::Bool | Encode::Narrow(_) | Encode::Half(_) | Encode::Scale(_) => Lane::Float32(decode, encode),
            Encode::Float32 | Encode::Int(_) if exact && !wide => Lane::Float32(decode, encode),
            Encode::Float32 | Encode::Float64 | Encode::Int(_) => Lane::Float64(decode, encode),
        };
        let refuses = rules.out_of_range == OutOfRange::Error
            && matches!(&lane, Lane::Float32(_, Encode::Int(_)) | Lane::Float64(_, Encode::Int(_)));
        let shortcut = match &lane {
            Lane::Float32(decode, encode) => Shortcut::new(source.dtype, target.dtype, decode, encode),
            _ => None,
        };
        Some(Self { source, target, lane, shortcut, refused: refuses.then_some(Loss::Wrapped) })
    }

    /// The loss that the rules forbid ([`OutOfRange::Error`]); the caller must discard a result that counts one.
    #[must_use]
    pub fn refuses(&self) -> Option<Loss> {
        self.refused
    }

    /// Converts `count` elements with [`Isa::chosen`].
    ///
    /// # Errors
    /// [`Malformed`] when a byte that holds one element has other bits above it; `output` is then partly written.
    ///
    /// # Panics
    /// When `input` or `output` is too short for `count` elements.
    pub fn run(&self, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
        self.run_on(Isa::chosen(), input, output, count)
    }

    /// The copy of the bits to another storage: between equal dtypes, or dtypes of equal width.
    ///
    /// Returns `None` for unequal widths, for strings, and for a big-endian target.
    #[must_use]
    pub fn copy(source: Storage, target: Storage) -> Option<Self> {
        let bits = source.dtype.bits();
        let fits = bits != 0 && bits == target.dtype.bits() && target.swapped_bytes().is_none();
        fits.then_some(Self { source, target, lane: Lane::Codes, shortcut: None, refused: None })
    }

    /// Storage of the source and of the target.
    pub fn storages(&self) -> [Storage; 2] {
        [self.source, self.target]
    }

    /// True if the bytes of target and source are equal, so that no kernel is needed.
    #[must_use]
    pub fn is_plain_copy(&self) -> bool {
        let same = self.source.is_per_byte() == self.target.is_per_byte() && self.source.swapped_bytes().is_none();
        matches!(self.lane, Lane::Codes) && same && self.source.dtype.bits().is_multiple_of(8)
    }

    /// [`Kernel::run`] with one of the instruction sets of [`Isa::available`]: for tests.
    ///
    /// # Errors
    /// As [`Kernel::run`].
    ///
    /// # Panics
    /// As [`Kernel::run`], and when the machine lacks the instruction set.
    pub fn run_on(&self, isa: Isa, input: &[u8], output: &mut [u8], count: usize) -> Result<Counts, Malformed> {
        let (input, output) = (&input[..self.source.offset(count)], &mut output[..self.target.offset(count)]);
        isa.run(ConversionLoop { kernel: self, isa, input, output, count })
    }

    /// True if the loop that reads the source prefetches it. For other loops, [`ConversionLoop`] prefetches block by
    /// block.
    fn prefetches(&self) -> bool {
        let is_lane = matches!(self.lane, Lane::Float32(Decode::Float32, _) | Lane::Float64(Decode::Float64, _));
        is_lane || matches!(self.shortcut, Some(Shortcut::Narrow(_)))
    }

    /// Number of elements in a block: 1 KiB of the source, or 4 KiB if the loop itself prefetches it.
    fn block(&self) -> usize {
        let bytes = if self.prefetches() { 4 * BLOCK } else { BLOCK };
        bytes / (self.source.dtype.bits().div_ceil(8) as usize)
    }

    #[inline(always)]
    fn run_block(
        &self,
        isa: Isa,
        input: &[u8],
        output: &mut [u8],
        count: usize,
        scratch: &mut Scratch,
    ) -> Result<Counts, Malformed> {
        let Scratch { lane, bytes, codes } = scratch;
        let input = load(&self.source, input, bytes, count)?;
        let bits = self.target.dtype.bits();
        let result = if bits < 8 { grow(codes, count) } else { &mut *output };
        let counts = match &self.lane {
            Lane::Codes => {
                result.copy_from_slice(input);
                Counts::default()
            }
            // The source is exact in float32, so the lane is the result.
            Lane::Float32(decode, Encode::Float32) => {
                let (lane, mut counts) = (result.as_chunks_mut().0, Counts::default());
                decode.fill_float32(input, lane);
                count_float32_specials(lane, &mut counts);
                counts
            }
            Lane::Float32(decode, encode) => {
                // Not `and_then`: a closure might not be compiled for the instruction set.
                let short =
                    if let Some(shortcut) = self.shortcut { shortcut.convert(input, result, isa) } else { None };
                match short {
                    Some(counts) => counts,
                    None => encode.encode_float32(decode.to_float32(input, count, lane), result),
                }
            }
            Lane::Float64(decode, encode) => encode.encode_float64(decode.to_float64(input, count, lane), result),
            Lane::Integer(Decode::Bool, Encode::Bool) => bools(input, result),
            Lane::Integer(decode, encode) => {
                let wide = grow(lane, 8 * count).as_chunks_mut().0;
                decode.to_integer(input, wide);
                let signed = self.source.dtype.class() == Class::Int { signed: true };
                encode.encode_integer(wide, signed, result)
            }
        };
        if bits < 8 {
            let codes = &codes[..count];
            match (self.target.layout, self.target.dtype.class()) {
                (SubByteLayout::Packed, _) => pack::pack(codes, output, bits),
                (_, Class::Int { signed: true }) => {
                    for (byte, code) in output.iter_mut().zip(codes) {
                        *byte = (((code << (8 - bits)) as i8) >> (8 - bits)) as u8;
                    }
                }
                _ => output.copy_from_slice(codes),
            }
        }
        Ok(counts)
    }
}

/// The loop over the blocks of a conversion.
struct ConversionLoop<'a> {
    kernel: &'a Kernel,
    isa: Isa,
    input: &'a [u8],
    output: &'a mut [u8],
    count: usize,
}

impl Loop for ConversionLoop<'_> {
    type Result = Result<Counts, Malformed>;

    #[inline(always)]
    fn run(self) -> Self::Result {
        let Self { kernel, count, .. } = self;
        let Kernel { source, target, .. } = kernel;
        let mut scratch = Scratch::default();
        let mut counts = Counts::default();
        let block = kernel.block();
        for start in (0..count).step_by(block) {
            let end = count.min(start + block);
            let (from, to) = (source.offset(start), source.offset(end));
            // Each vector takes many steps, so the processor itself does not look far enough ahead.
            if !kernel.prefetches() {
                prefetch_behind(&self.input[from..to], AHEAD);
            }
            let input = &self.input[from..to];
            let output = &mut self.output[target.offset(start)..target.offset(end)];
            counts += kernel.run_block(self.isa, input, output, end - start, &mut scratch)?;
        }
        Ok(counts)
    }
}

/// Buffers for one block in every form that it takes; empty where not needed, because tensors can be tiny.
#[derive(Default)]
struct Scratch {
    lane: Vec<u8>,
    /// Source bytes in order: unpacked and little endian.
    bytes: Vec<u8>,
    codes: Vec<u8>,
}

/// Returns a block's source bytes as little endian elements of whole bytes, converted into `scratch` if necessary.
#[inline(always)]
fn load<'a>(source: &Storage, input: &'a [u8], scratch: &'a mut Vec<u8>, count: usize) -> Result<&'a [u8], Malformed> {
    let bits = source.dtype.bits();
    if bits < 8 {
        let codes = grow(scratch, count);
        if source.layout == SubByteLayout::Packed {
            pack::unpack(input, codes, bits);
            return Ok(codes);
        }
        // ml_dtypes ignores the upper bits of its integers everywhere, and of its floats only in part.
        let class = source.dtype.class();
        let is_strict = source.layout == SubByteLayout::PerByteStrict || matches!(class, Class::Float(_));
        let mask = (1 << bits) - 1;
        // The sign bit, if there is one. Flipping it and then subtracting it extends the sign.
        let sign = if class == (Class::Int { signed: true }) { 1 << (bits - 1) } else { 0 };
        let mut is_dirty = false;
        for (code, byte) in codes.iter_mut().zip(input) {
            *code = byte & mask;
            is_dirty |= (byte != code) & (*byte != (*code ^ sign).wrapping_sub(sign));
        }
        return if is_strict && is_dirty { Err(Malformed) } else { Ok(codes) };
    }
    let Some(width) = source.swapped_bytes() else { return Ok(input) };
    let swapped = grow(scratch, input.len());
    for (swapped, bytes) in swapped.chunks_exact_mut(width).zip(input.chunks_exact(width)) {
        swapped.copy_from_slice(bytes);
        swapped.reverse();
    }
    Ok(swapped)
}
