//! Codes and scales of blocks: one element taken apart, and all of them for exact transcodes.

use super::BlockFormat;
use super::decode::Codec;
use crate::dtype::Dtype;
use crate::kernel::Isa;

/// An element of a block, whose value is `number * scale - offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockValue {
    /// The stored bits of the code. In formats with grids, the index of the point that contains the element. The lowest 32
    /// bits of a plain number.
    pub code: u32,
    /// Width of the code in bits.
    pub code_bits: u32,
    /// The number that the code stands for, with the offset of the format or the sign of the element.
    pub number: f32,
    /// The scale of the element: all stored scales, multiplied.
    pub scale: f64,
    /// The number that is subtracted at the end, in formats that store one.
    pub offset: Option<f64>,
}

/// The numbers of a format whose values are `number of the code * scale of the group`, with stored scales and codes of at
/// most 8 bits.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeNumbers {
    /// Number of adjacent elements with the same scale.
    pub group: usize,
    /// Width of a code in bits.
    pub code_bits: u32,
    /// The number of each code.
    pub numbers: Vec<f32>,
    /// True if all numbers are integers.
    pub is_integer: bool,
    /// True if each group has an offset.
    pub has_offsets: bool,
}

impl BlockFormat {
    /// Takes an element of a block apart.
    ///
    /// # Panics
    /// When `block` is not one block, or has no such element.
    #[must_use]
    pub fn explain(&self, block: &[u8], element: usize) -> BlockValue {
        assert!(
            block.len() as u64 == self.bytes && (element as u64) < self.elements,
            "no element {element} in a block"
        );
        if let Some(codec) = self.codec {
            return codec.explain(block, element);
        }
        let mut number = [0; 4];
        self.decode(Isa::chosen(), block, None, Dtype::Float32, &mut number);
        let code = block.iter().take(4).rev().fold(0, |code, byte| code << 8 | u32::from(*byte));
        let number = f32::from_le_bytes(number);
        BlockValue { code, code_bits: 8 * block.len() as u32, number, scale: 1.0, offset: None }
    }

    /// Returns the numbers of the codes; `None` if scales are products, or codes are points of several elements.
    #[must_use]
    pub fn grid(&self) -> Option<CodeNumbers> {
        self.codec?.grid()
    }

    /// Writes the code of each element into a byte: an index of [`CodeNumbers::numbers`].
    ///
    /// # Panics
    /// When the format has no grid, `blocks` is not a whole number of blocks, or `out` has another length than its
    /// elements.
    pub fn codes(&self, blocks: &[u8], out: &mut [u8]) {
        assert_eq!(out.len(), self.elements_in(blocks), "the output has another length");
        self.grid_codec().codes(Isa::chosen(), blocks, out);
    }

    /// Adds the scale of each group.
    ///
    /// # Panics
    /// When the format has no grid, or `blocks` is not a whole number of blocks.
    pub fn scales(&self, blocks: &[u8], out: &mut Vec<f64>) {
        self.grid_codec().scales(blocks, out);
    }

    /// Adds the number to subtract in each group; nothing if the format has no offsets.
    ///
    /// # Panics
    /// When the format has no grid, or `blocks` is not a whole number of blocks.
    pub fn offsets(&self, blocks: &[u8], out: &mut Vec<f64>) {
        self.grid_codec().offsets(blocks, out);
    }

    fn grid_codec(&self) -> &'static dyn Codec {
        self.codec.filter(|codec| codec.grid().is_some()).expect("a format with a grid")
    }
}
