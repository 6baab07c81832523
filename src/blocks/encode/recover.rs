//! Values to the blocks that they were decoded from.
//!
//! The first try for each block is the block that ggml writes for its values. Formats with a stored scale for each group
//! then search: the largest value of a group is one of the numbers times the scale, which leaves few scales, and a wrong
//! one fails within a few values. Formats with offsets, or with scales of scales, have no search.

use super::super::decode::half;
use super::lanes::{largest_magnitude, stored};
use super::{BlockEncode, BlockFormat, EncodeRefusal};
use crate::dtype::Dtype;
use crate::kernel::half::to_bfloat16;
use crate::kernel::{Isa, Loop};
use std::marker::PhantomData;
use zerocopy::little_endian::U16;

/// A block whose values are numbers times the scale of their group. Unless an implementation says otherwise, scales are
/// stored as float16.
pub(in crate::blocks) trait GridBlock<const E: usize, const G: usize>: BlockEncode<E, G> {
    /// The largest finite scale, as stored.
    const LARGEST_SCALE: u16 = 0x7bff;
    /// The bit of the sign of a stored scale, if scales can be negative.
    const SCALE_SIGN: Option<u16> = Some(0x8000);

    /// Returns the value of a unit for a stored scale. It grows with the bits of the scale, without the sign.
    #[inline(always)]
    fn scale(stored: u16) -> f32 {
        half(U16::new(stored))
    }

    /// Returns the code whose number is nearest. The code for +0 stands for a number that is not negative.
    fn nearest(number: f32) -> u8;

    /// Packs scales and codes.
    fn assemble(scales: [u16; G], codes: &[u8; E]) -> Self;
}

/// Finds a block that decodes to values after rounding to a type: [`BlockEncoder::find`](super::BlockEncoder).
pub(super) fn find_block<B: GridBlock<E, G>, const E: usize, const G: usize>(
    isa: Isa,
    values: &[f32],
    dtype: Dtype,
    block: &mut [u8],
) -> bool {
    let values = values.try_into().expect("the values of a block");
    match isa.run(SearchBlock::<B, E, G> { values, dtype, block: PhantomData }) {
        Some(found) => {
            *B::mut_from_bytes(block).expect("a block") = found;
            true
        }
        None => false,
    }
}

/// Number of values that are compared at a time: all groups are multiples of it.
const PIECE: usize = 16;

/// Number of values that are encoded at a time: a multiple of every block. Few, because the first block that is not found
/// ends the search.
const LANE: usize = 1024;

impl BlockFormat {
    /// Finds blocks that decode to values, bit for bit. `stored` holds the values in their type: float32, bfloat16 or
    /// float16, in little endian. The result depends on nothing but the values of each block.
    ///
    /// # Errors
    /// If a block is not found: the index of its first value, or of a value that is infinite or NaN. `out` then holds
    /// anything.
    ///
    /// # Panics
    /// When the format has no encoder, the values are not whole blocks, or an argument has another length.
    pub fn recover(
        &self,
        isa: Isa,
        values: &[f32],
        (dtype, stored): (Dtype, &[u8]),
        out: &mut [u8],
    ) -> Result<(), usize> {
        let [elements, bytes, width] = [self.elements as usize, self.bytes as usize, dtype.bits() as usize / 8];
        let lengths = [stored.len() / width, self.elements_in(out)];
        assert_eq!(lengths, [values.len(); 2], "an argument has another length than the values");
        let mut decoded = [0; 4 * LANE];
        for start in (0..values.len()).step_by(LANE) {
            let range = start..values.len().min(start + LANE);
            let (values, stored) = (&values[range.clone()], &stored[range.start * width..range.end * width]);
            let blocks = &mut out[range.start / elements * bytes..range.end / elements * bytes];
            self.encode_finite(isa, values, blocks).map_err(|element| start + element)?;
            let decoded = &mut decoded[..stored.len()];
            self.decode(isa, blocks, None, dtype, decoded);
            if decoded == stored {
                continue;
            }
            let pairs = decoded.chunks(elements * width).zip(stored.chunks(elements * width));
            let different = pairs.enumerate().filter(|(_, (decoded, stored))| decoded != stored);
            for (at, _) in different {
                let block = &mut blocks[at * bytes..][..bytes];
                let values = &values[at * elements..][..elements];
                let find = self.encoder.and_then(|encoder| encoder.find);
                if !find.is_some_and(|find| find(isa, values, dtype, block)) {
                    return Err(start + at * elements);
                }
            }
        }
        Ok(())
    }

    /// Encodes values. Blocks whose scale is not finite become zeros. The error is the index of a value that is infinite or
    /// NaN.
    fn encode_finite(&self, isa: Isa, values: &[f32], out: &mut [u8]) -> Result<(), usize> {
        let [elements, bytes] = [self.elements as usize, self.bytes as usize];
        let mut start = 0;
        while start < values.len() {
            let blocks = &mut out[start / elements * bytes..];
            match self.encode(isa, &values[start..], elements, None, blocks) {
                Ok(()) => break,
                Err(EncodeRefusal::Scale { element }) => {
                    blocks[element / elements * bytes..][..bytes].fill(0);
                    start += element + elements;
                }
                Err(EncodeRefusal::Value { element, .. }) => return Err(start + element),
                Err(EncodeRefusal::Importance { .. }) => unreachable!("there is no importance"),
            }
        }
        Ok(())
    }
}

/// The loop that searches a block.
struct SearchBlock<'a, B, const E: usize, const G: usize> {
    values: &'a [f32; E],
    dtype: Dtype,
    block: PhantomData<B>,
}

impl<B: GridBlock<E, G>, const E: usize, const G: usize> Loop for SearchBlock<'_, B, E, G> {
    type Result = Option<B>;

    #[inline(always)]
    fn run(self) -> Option<B> {
        match self.dtype {
            Dtype::Bfloat16 => self.find(to_bfloat16),
            Dtype::Float16 => self.find(|value| half(stored(value))),
            _ => self.find(|value| value),
        }
    }
}

impl<B: GridBlock<E, G>, const E: usize, const G: usize> SearchBlock<'_, B, E, G> {
    #[inline(always)]
    fn find(self, round: impl Fn(f32) -> f32 + Copy) -> Option<B> {
        let (mut scales, mut codes) = ([0; G], [0; E]);
        let groups = self.values.chunks_exact(E / G).zip(codes.chunks_exact_mut(E / G));
        for (scale, (values, codes)) in scales.iter_mut().zip(groups) {
            *scale = Self::scale(values, codes, round)?;
        }
        Some(B::assemble(scales, &codes))
    }

    /// Returns the scale of a group, and writes its codes.
    #[inline(always)]
    fn scale(values: &[f32], codes: &mut [u8], round: impl Fn(f32) -> f32 + Copy) -> Option<u16> {
        let top = largest_magnitude(values);
        if top == 0.0 {
            return Self::fit(B::scale(0), true, values, codes, round).then_some(0);
        }
        let is_negative = values.iter().any(|value| *value == -top);
        let number = |wanted: f32| f32::from(B::number(B::nearest(wanted)));
        let mut level = number(127.0).max(-number(-128.0));
        // The largest number first, and the positive one of two.
        while level > 0.0 {
            for signed in [level, -level] {
                let sign = if is_negative == (signed < 0.0) { Some(0) } else { B::SCALE_SIGN };
                let Some(sign) = sign.filter(|_| number(signed) == signed) else { continue };
                let product = |stored: u16| round(B::scale(stored) * level);
                let (mut stored, mut end) = (0, B::LARGEST_SCALE + 1);
                while stored < end {
                    let middle = u16::midpoint(stored, end);
                    if product(middle) < top { stored = middle + 1 } else { end = middle }
                }
                while stored <= B::LARGEST_SCALE && product(stored) == top {
                    let value = B::scale(stored);
                    let scale = if sign == 0 { value } else { -value };
                    if Self::fit(scale, false, values, codes, round) {
                        return Some(stored | sign);
                    }
                    stored += 1;
                }
            }
            level -= 1.0;
        }
        None
    }

    /// Writes the nearest codes for a scale. Returns false, perhaps early, if they decode to other bits. If all values are
    /// 0 (`is_zero`), products of negative numbers and the least scale are the negative ones.
    #[inline(always)]
    fn fit(scale: f32, is_zero: bool, values: &[f32], codes: &mut [u8], round: impl Fn(f32) -> f32 + Copy) -> bool {
        for (values, codes) in values.as_chunks::<PIECE>().0.iter().zip(codes.as_chunks_mut::<PIECE>().0) {
            let mut different = 0;
            for at in 0..PIECE {
                let value = values[at];
                let number = if scale == 0.0 { value } else { value / scale };
                codes[at] = B::nearest(if is_zero && value.is_sign_negative() { -128.0 } else { number });
                let product = round(f32::from(B::number(codes[at])) * scale);
                different |= product.to_bits() ^ value.to_bits();
            }
            if different != 0 {
                return false;
            }
        }
        true
    }
}
