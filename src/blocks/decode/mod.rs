//! Blocks to numbers: a layout of bytes for each format, and one loop for all of them.
//!
//! The value of an element is its number times the scale of its group, minus the offset of its group. Numbers are small
//! integers, in a fixed unit. In most formats, scales are products of a float16 and a small integer. So scales, offsets and
//! products are exact in float32, and only the subtraction is rounded, as in ggml. The scales of `MXFP4` and `NVFP4` have
//! fewer bits. `Q8_K` has a float32 scale, and its products are rounded. All of this is exact in float64.

mod float;
mod grid_tables;
mod iq;
mod k_quants;
mod lanes;
mod legacy;
mod real;
mod ternary;
mod unpack;

pub(super) use float::{Mxfp4, Nvfp4};
pub(super) use iq::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs};
pub(super) use k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K, Q8K, SixBitScales};
pub(super) use legacy::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
pub(super) use ternary::{Q1_0, Q2_0, Tq1_0, Tq2_0};
pub(super) use unpack::half;

use super::{BlockFormat, BlockValue, CodeNumbers};
use crate::dtype::Dtype;
use crate::kernel::half::{bfloat16_bits, to_bfloat16};
use crate::kernel::{Isa, Loop, Minifloat};
use real::Real;
use std::fmt::Debug;
use std::hint::black_box;
use std::marker::PhantomData;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Number of elements that are decoded at a time: a multiple of every block.
const LANE: usize = 1024;

/// A block of `E` elements, in `G` groups of adjacent elements. All methods are inlined into loops.
pub(super) trait BlockLayout<const E: usize, const G: usize>:
    FromBytes + Immutable + KnownLayout + Unaligned + Debug + Sync + 'static
{
    /// Width of a stored code, or of the index of a grid's point.
    const CODE_BITS: u32;
    /// The value of the number 1.
    const UNIT: f32 = 1.0;
    /// True if scales are stored as they are, and codes of at most 8 bits stand for numbers: see [`CodeNumbers`].
    const HAS_GRID: bool = false;

    /// The type of stored scales.
    const SCALE: Dtype = Dtype::Float16;
    /// The type of numbers that codes are, if there is one.
    const CODES: Option<Dtype> = None;
    /// True if a tensor of this format has a scale of its own.
    const HAS_GLOBAL_SCALE: bool = false;

    /// Writes the code of each element. In formats whose codes are points of several elements, it writes numbers.
    fn codes(&self, codes: &mut [u8; E]);

    /// Returns the number of a code, in units.
    #[inline(always)]
    fn number(code: u8) -> i8 {
        code as i8
    }

    /// Returns the value of a unit in each group.
    fn scales(&self) -> [f32; G];

    /// Returns the numbers to subtract in each group.
    #[inline(always)]
    fn offsets(&self) -> Option<[f32; G]> {
        None
    }

    /// Returns the code of one element as stored.
    fn code(&self, element: usize) -> u32 {
        let mut codes = [0; E];
        self.codes(&mut codes);
        codes[element].into()
    }
}

/// A format of blocks, for any number of whole blocks.
pub(super) trait Codec: Debug + Sync {
    /// Writes ggml's float32 values of at most [`LANE`] elements.
    fn decode_float32(&self, isa: Isa, blocks: &[u8], lane: &mut [[u8; 4]]);
    /// Writes the values of at most [`LANE`] elements as bfloat16, times a factor. Returns false if a result could be
    /// infinite or NaN, or is 0 although its value is not; all results are then unspecified.
    fn decode_bfloat16(&self, isa: Isa, blocks: &[u8], factor: f32, float: Minifloat, out: &mut [[u8; 2]]) -> bool;
    /// Writes the exact values of at most [`LANE`] elements.
    fn decode_float64(&self, isa: Isa, blocks: &[u8], lane: &mut [[u8; 8]]);
    /// Takes one element of a block apart.
    fn explain(&self, block: &[u8], element: usize) -> BlockValue;
    fn grid(&self) -> Option<CodeNumbers>;
    /// Writes the code of each element.
    fn codes(&self, isa: Isa, blocks: &[u8], codes: &mut [u8]);
    /// Adds the scale of each group.
    fn scales(&self, blocks: &[u8], scales: &mut Vec<f64>);
    /// Adds the number to subtract in each group; nothing if the format has no offsets.
    fn offsets(&self, blocks: &[u8], offsets: &mut Vec<f64>);
}

/// The codec of a type of blocks.
#[derive(Debug)]
pub(super) struct BlockCodec<B, const E: usize, const G: usize>(pub(super) PhantomData<B>);

/// Splits bytes into blocks.
fn blocks_of<B: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> &[B] {
    <[B]>::ref_from_bytes(bytes).expect("a whole number of blocks")
}

impl<B: BlockLayout<E, G>, const E: usize, const G: usize> Codec for BlockCodec<B, E, G> {
    fn decode_float32(&self, isa: Isa, blocks: &[u8], lane: &mut [[u8; 4]]) {
        isa.run(DecodeLoop::<B, f32, E, G> { blocks: blocks_of(blocks), lane: lane.as_chunks_mut().0 });
    }

    fn decode_bfloat16(&self, isa: Isa, blocks: &[u8], factor: f32, float: Minifloat, out: &mut [[u8; 2]]) -> bool {
        isa.run(Bfloat16Loop::<B, E, G> { blocks: blocks_of(blocks), factor, float, out: out.as_chunks_mut().0 })
    }

    fn decode_float64(&self, isa: Isa, blocks: &[u8], lane: &mut [[u8; 8]]) {
        isa.run(DecodeLoop::<B, f64, E, G> { blocks: blocks_of(blocks), lane: lane.as_chunks_mut().0 });
    }

    fn explain(&self, block: &[u8], element: usize) -> BlockValue {
        let block = &blocks_of::<B>(block)[0];
        let (mut codes, group) = ([0; E], element / (E / G));
        block.codes(&mut codes);
        BlockValue {
            code: block.code(element),
            code_bits: B::CODE_BITS,
            number: f32::from(B::number(codes[element])) * B::UNIT,
            scale: f64::from(block.scales()[group]) / f64::from(B::UNIT),
            offset: block.offsets().map(|offsets| offsets[group].into()),
        }
    }

    fn grid(&self) -> Option<CodeNumbers> {
        B::HAS_GRID.then(|| {
            let codes = 0..=u8::MAX >> (8 - B::CODE_BITS);
            CodeNumbers {
                group: E / G,
                code_bits: B::CODE_BITS,
                numbers: codes.map(|code| f32::from(B::number(code)) * B::UNIT).collect(),
                is_integer: B::UNIT == 1.0,
                has_offsets: B::new_zeroed().offsets().is_some(),
            }
        })
    }

    fn codes(&self, isa: Isa, blocks: &[u8], codes: &mut [u8]) {
        isa.run(CodeLoop::<B, E, G> { blocks: blocks_of(blocks), codes: codes.as_chunks_mut().0 });
    }

    fn scales(&self, blocks: &[u8], scales: &mut Vec<f64>) {
        for block in blocks_of::<B>(blocks) {
            scales.extend(block.scales().map(|scale| f64::from(scale) / f64::from(B::UNIT)));
        }
    }

    fn offsets(&self, blocks: &[u8], offsets: &mut Vec<f64>) {
        for block in blocks_of::<B>(blocks) {
            offsets.extend(block.offsets().into_iter().flatten().map(f64::from));
        }
    }
}

/// The loop that writes the values of at most [`LANE`] elements.
struct DecodeLoop<'a, B, N: Real, const E: usize, const G: usize> {
    blocks: &'a [B],
    lane: &'a mut [[N::Bytes; E]],
}

impl<B: BlockLayout<E, G>, N: Real, const E: usize, const G: usize> Loop for DecodeLoop<'_, B, N, E, G> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let mut numbers = [0; LANE];
        let numbers = numbers_of(self.blocks, &mut numbers);
        for ((block, values), numbers) in self.blocks.iter().zip(self.lane).zip(numbers.as_chunks::<E>().0) {
            let (scales, offsets) = (block.scales(), block.offsets());
            let pieces = numbers.as_chunks::<PIECE>().0.iter().zip(values.as_chunks_mut::<PIECE>().0);
            for (at, (numbers, values)) in pieces.enumerate() {
                let group = PIECE * at * G / E;
                let offset = offsets.as_ref().map(|offsets| offsets[group]);
                let results = values_of::<N>(numbers, scales[group], offset);
                for at in 0..PIECE {
                    values[at] = results[at].to_bytes();
                }
            }
        }
    }
}

/// Number of values that are computed together: all groups are multiples of it.
const PIECE: usize = 16;

/// Writes the numbers of all blocks, in one lane of bytes. A loop for each block would have to load bytes that it has just
/// stored in pieces of another size, which takes many cycles.
#[inline(always)]
fn numbers_of<'n, B: BlockLayout<E, G>, const E: usize, const G: usize>(
    blocks: &[B],
    numbers: &'n mut [u8; LANE],
) -> &'n [u8] {
    let numbers = &mut numbers[..blocks.len() * E];
    for (block, codes) in blocks.iter().zip(numbers.as_chunks_mut().0) {
        block.codes(codes);
    }
    for code in &mut *numbers {
        *code = B::number(*code) as u8;
    }
    numbers
}

/// Computes the values of adjacent numbers in a group.
#[inline(always)]
fn values_of<N: Real>(numbers: &[u8; PIECE], scale: f32, offset: Option<f32>) -> [N; PIECE] {
    // Without the black box, the compiler vectorizes the loop across its pieces, which is slower.
    let (scale, mut values) = (N::from(black_box(scale)), [N::ZERO; PIECE]);
    if let Some(offset) = offset {
        let offset = N::from(offset);
        for at in 0..PIECE {
            values[at] = N::from(numbers[at] as i8) * scale - offset;
        }
    } else {
        for at in 0..PIECE {
            values[at] = N::from(numbers[at] as i8) * scale;
        }
    }
    values
}

/// The loop that writes values as bfloat16, without a lane of float32 values between: see [`Codec::decode_bfloat16`].
struct Bfloat16Loop<'a, B, const E: usize, const G: usize> {
    blocks: &'a [B],
    factor: f32,
    float: Minifloat,
    out: &'a mut [[[u8; 2]; E]],
}

impl<B: BlockLayout<E, G>, const E: usize, const G: usize> Loop for Bfloat16Loop<'_, B, E, G> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut numbers = [0; LANE];
        let numbers = numbers_of(self.blocks, &mut numbers);
        let (mut largest, mut smallest) = ([0; PIECE], [u32::MAX; PIECE]);
        for ((block, out), numbers) in self.blocks.iter().zip(self.out).zip(numbers.as_chunks::<E>().0) {
            let (scales, offsets) = (block.scales(), block.offsets());
            let pieces = numbers.as_chunks::<PIECE>().0.iter().zip(out.as_chunks_mut::<PIECE>().0);
            for (at, (numbers, out)) in pieces.enumerate() {
                let group = PIECE * at * G / E;
                let offset = offsets.as_ref().map(|offsets| offsets[group]);
                let values = values_of::<f32>(numbers, scales[group], offset);
                for at in 0..PIECE {
                    let product = values[at] * self.factor;
                    let magnitude = product.to_bits() & 0x7fff_ffff;
                    largest[at] = largest[at].max(magnitude);
                    smallest[at] = smallest[at].min(if values[at] == 0.0 { u32::MAX } else { magnitude });
                    out[at] = bfloat16_bits(to_bfloat16(product)).to_le_bytes();
                }
            }
        }
        let (mut most, mut least) = (0, u32::MAX);
        for at in 0..PIECE {
            (most, least) = (most.max(largest[at]), least.min(smallest[at]));
        }
        most <= self.float.limit && least > self.float.zero
    }
}

/// The loop over blocks that writes codes.
struct CodeLoop<'a, B, const E: usize, const G: usize> {
    blocks: &'a [B],
    codes: &'a mut [[u8; E]],
}

impl<B: BlockLayout<E, G>, const E: usize, const G: usize> Loop for CodeLoop<'_, B, E, G> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        for (block, codes) in self.blocks.iter().zip(self.codes) {
            block.codes(codes);
        }
    }
}
