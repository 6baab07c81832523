//! Unpacks codes of every packing to one code per byte.

use super::super::layout::{Packing, codes_in_bytes};
use crate::kernel::prefetch;
use std::ops::Range;

/// Codes of one row of a matrix.
#[derive(Clone, Copy)]
pub(in crate::quant) struct CodeWindow<'a> {
    /// The stored bytes of the matrix, or of the tensor for [`Packing::Flat`] and [`Packing::Stream`].
    pub(in crate::quant) bytes: &'a [u8],
    /// Bytes from one stored row to the next.
    pub(in crate::quant) stride: usize,
    pub(in crate::quant) bits: usize,
    pub(in crate::quant) row: usize,
    /// The first column, a multiple of 32, and the number of columns.
    pub(in crate::quant) column: usize,
    pub(in crate::quant) columns: usize,
    /// Columns of the matrix.
    pub(in crate::quant) width: usize,
}

/// For each of eight columns, the nibble of a word that holds its code (AWQ).
pub(super) const AWQ_NIBBLES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl<'a> CodeWindow<'a> {
    /// Returns the codes, which must be plain.
    #[inline(always)]
    pub(super) fn plain(&self) -> &'a [u8] {
        let bytes = self.bits / 8;
        &self.bytes[self.row * self.stride + self.column * bytes..][..self.columns * bytes]
    }
}

impl Packing {
    /// Returns the number of rows to which the codes of a 32-bit word belong, if the transpose is stored.
    fn rows_of_word(self, bits: usize) -> Option<usize> {
        match self {
            Self::TransposedWords => Some(1),
            Self::TransposedBlocks | Self::AwqWords => Some(32 / bits),
            _ => None,
        }
    }

    /// Returns the number of rows that share cache lines.
    pub(super) fn line_rows(self) -> usize {
        match self {
            Self::TransposedWords => 64,
            Self::TransposedBlocks | Self::AwqWords => 128,
            _ => 1,
        }
    }

    /// True if the codes of a window take whole bytes that follow each other, so that they need no unpacking.
    #[inline(always)]
    pub(super) fn is_plain(self, window: &CodeWindow) -> bool {
        window.bits >= 8 && self != Self::TransposedBlocks
    }

    /// Returns the largest number of rows to decode at a time. Stored rows of gpt-oss are short and on different pages.
    /// Reading two cache lines of each halves the number of page accesses.
    pub(super) fn tile_rows(self) -> usize {
        self.line_rows() * if self == Self::TransposedBlocks { 2 } else { 1 }
    }

    /// Returns the number of columns to decode at a time. A tile fits into the second-level cache, and has many
    /// columns, because scales are fetched once for each row of a tile. For gpt-oss, scales belong to columns and are
    /// fetched once for all rows.
    pub(super) fn tile_columns(self) -> usize {
        match self {
            Self::TransposedBlocks => 1 << 10,
            Self::TransposedWords | Self::AwqWords => 1 << 12,
            _ => usize::MAX,
        }
    }

    /// Writes the codes of a window of the tensor, even if its transpose is stored.
    pub(in crate::quant) fn unpack(self, window: &CodeWindow, out: &mut [u8]) {
        let mut tile = TransposedTile::default();
        let window = &tile.read(self, window, 1).unwrap_or(*window);
        if self.is_plain(window) {
            out.copy_from_slice(window.plain());
        } else {
            self.unpack_row(window, out);
        }
    }

    /// Like [`Packing::unpack`], for codes that are not plain. If the transpose is stored, the window refers to a
    /// [`TransposedTile`].
    #[inline(always)]
    pub(super) fn unpack_row(self, window: &CodeWindow, out: &mut [u8]) {
        let row = || &window.bytes[window.row * window.stride..][window.column * window.bits / 8..window.stride];
        match self {
            Self::Rows(_) | Self::Blocks | Self::TransposedWords if window.bits == 4 => nibbles(row(), out, false),
            Self::Rows(_) | Self::Blocks | Self::TransposedWords => stream(row(), out, window.bits),
            Self::RowsHighFirst => nibbles(row(), out, true),
            Self::Planes => planes(window, out),
            Self::Flat => flat(window, out),
            Self::Stream => through_rows(window, out),
            Self::Units => units(window, out),
            Self::TransposedBlocks => codes_of_planes(window, window.row * window.bits % 32, out),
            Self::AwqWords => codes_of_planes(window, 4 * AWQ_NIBBLES[window.row % 8] as usize, out),
        }
    }
}

/// Codes of some rows and columns of a matrix whose transpose is stored. A line holds either the words of a row, as in
/// [`Packing::Rows`], or words of one column each with codes of several rows, whose bytes are [`split`].
#[derive(Default)]
pub(super) struct TransposedTile {
    lines: Vec<u8>,
    /// Lines that are not split yet.
    words: Vec<u8>,
    /// The words of four stored rows, side by side.
    fours: Vec<[[u8; 4]; 4]>,
}

impl TransposedTile {
    /// Transposes the words of a window and of the rows that follow. Returns the window of the same codes in the tile;
    /// `None` if the transpose is not stored.
    #[inline(always)]
    pub(super) fn read(&mut self, packing: Packing, window: &CodeWindow, rows: usize) -> Option<CodeWindow<'_>> {
        let rows_of_word = packing.rows_of_word(window.bits)?;
        let lines = window.row / rows_of_word..(window.row + rows).div_ceil(rows_of_word);
        let bits = if rows_of_word == 1 { window.bits } else { 32 };
        let words = window.column * bits / 32..(window.column + window.columns) * bits / 32;
        // An odd number of cache lines, so that the lines of a column can be in the first-level cache together.
        let stride = 64 * ((4 * words.len()).div_ceil(64) | 1);
        let len = stride * lines.len();
        self.lines.resize(self.lines.len().max(len), 0);
        if rows_of_word == 1 {
            transpose(window, words, lines.clone(), stride, &mut self.fours, &mut self.lines);
        } else {
            self.words.resize(self.words.len().max(len), 0);
            transpose(window, words, lines.clone(), stride, &mut self.fours, &mut self.words);
            let pairs = self.words.chunks_exact(stride).zip(self.lines.chunks_exact_mut(stride));
            for (words, line) in pairs.take(lines.len()) {
                split(words, line);
            }
        }
        Some(CodeWindow {
            bytes: &self.lines,
            stride,
            row: window.row - lines.start * rows_of_word,
            column: 0,
            ..*window
        })
    }
}

/// Writes words of 32 bits of some stored rows as lines of the transpose, four rows at a time. Their words are interleaved
/// in `fours` first: a loop that stores adjacent bytes becomes shuffles, and one that scatters words does not.
#[inline(always)]
fn transpose(
    window: &CodeWindow,
    rows: Range<usize>,
    words: Range<usize>,
    stride: usize,
    fours: &mut Vec<[[u8; 4]; 4]>,
    out: &mut [u8],
) {
    /// Stored rows are often pages apart, so the processor does not prefetch the next one.
    const AHEAD: usize = 8;
    let stored = |row: usize| window.bytes[row * window.stride..][4 * words.start..4 * words.end].as_chunks::<4>().0;
    let ahead = |row: usize| prefetch(stored((row + AHEAD).min(rows.end - 1)).as_flattened());
    fours.resize(words.len(), Default::default());
    let whole = rows.end - rows.len() % 4;
    for row in (rows.start..whole).step_by(4) {
        let place = 4 * (row - rows.start);
        (row..row + 4).for_each(ahead);
        let [a, b, c, d] = [row, row + 1, row + 2, row + 3].map(stored);
        for ((((four, a), b), c), d) in fours.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *four = [*a, *b, *c, *d];
        }
        for (line, four) in out.chunks_exact_mut(stride).zip(&*fours) {
            line[place..][..16].copy_from_slice(four.as_flattened());
        }
    }
    for row in whole..rows.end {
        ahead(row);
        for (line, word) in out.chunks_exact_mut(stride).zip(stored(row)) {
            line[4 * (row - rows.start)..][..4].copy_from_slice(word);
        }
    }
}

/// Sorts the bytes of words by their position in the word, so that the codes of a row are in adjacent bytes.
#[inline(always)]
fn split(words: &[u8], line: &mut [u8]) {
    for (at, plane) in line.chunks_exact_mut(words.len() / 4).enumerate() {
        for (byte, word) in plane.iter_mut().zip(words.as_chunks::<4>().0) {
            *byte = (u32::from_le_bytes(*word) >> (8 * at)) as u8;
        }
    }
}

/// Unpacks pairs of codes; the last byte may hold one. Words of 16 bits take fewer instructions than bytes.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8], high_first: bool) {
    let (pairs, last) = out.as_chunks_mut::<2>();
    let pair = |byte: u8| {
        let word = u16::from(byte);
        let apart = if high_first { word >> 4 | word << 8 } else { word | word << 4 };
        (apart & 0x0f0f).to_le_bytes()
    };
    for (codes, byte) in pairs.iter_mut().zip(bytes) {
        *codes = pair(*byte);
    }
    if let [last] = last {
        [*last, _] = pair(bytes[pairs.len()]);
    }
}

/// Unpacks a stream of bits, low bits of a byte first: eight codes of n bits take n bytes.
#[inline(always)]
fn stream(bytes: &[u8], out: &mut [u8], bits: usize) {
    match bits {
        1 => stream_of::<1>(bytes, out),
        2 => stream_of::<2>(bytes, out),
        3 => stream_of::<3>(bytes, out),
        5 => stream_of::<5>(bytes, out),
        6 => stream_of::<6>(bytes, out),
        _ => stream_of::<7>(bytes, out),
    }
}

#[inline(always)]
fn stream_of<const BITS: usize>(bytes: &[u8], out: &mut [u8]) {
    let (eights, last) = out.as_chunks_mut::<8>();
    let (whole, rest) = bytes.split_at(eights.len() * BITS);
    for (codes, bytes) in eights.iter_mut().zip(whole.as_chunks::<BITS>().0) {
        *codes = spread(bytes);
    }
    if !last.is_empty() {
        let mut bytes = [0; BITS];
        let len = rest.len().min(BITS);
        bytes[..len].copy_from_slice(&rest[..len]);
        last.copy_from_slice(&spread(&bytes)[..last.len()]);
    }
}

/// Unpacks eight codes: the upper half of the bits moves to the upper half of the result, and so do the halves of each
/// half.
#[inline(always)]
fn spread<const BITS: usize>(bytes: &[u8; BITS]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..BITS].copy_from_slice(bytes);
    let mut word = u64::from_le_bytes(word);
    for half in [32, 16, 8] {
        let used = half / 8 * BITS;
        let lower = u64::MAX / (u64::MAX >> (64 - 2 * half)) * ((1 << used) - 1);
        word = word & lower | word << (half - used) & lower << half;
    }
    word.to_le_bytes()
}

/// Unpacks codes of [`Packing::Planes`].
#[inline(always)]
fn planes(window: &CodeWindow, out: &mut [u8]) {
    let row = &window.bytes[window.row * window.stride..][..window.stride];
    nibbles(&row[window.column / 2..], out, false);
    if window.bits == 6 {
        let upper = &row[window.stride / 3 * 2 + window.column / 4..];
        for (codes, byte) in out.chunks_mut(4).zip(upper) {
            for (at, code) in codes.iter_mut().enumerate() {
                *code |= (byte >> (2 * at) & 3) << 4;
            }
        }
    }
}

#[inline(always)]
fn flat(window: &CodeWindow, out: &mut [u8]) {
    let start = window.row * window.width + window.column;
    let (first, out) = out.split_at_mut(start % 2);
    if let [first] = first {
        *first = window.bytes[start / 2] & 15;
    }
    nibbles(&window.bytes[start.div_ceil(2)..], out, true);
}

/// Unpacks codes of [`Packing::Stream`], where a row may start within a byte.
#[inline(always)]
fn through_rows(window: &CodeWindow, out: &mut [u8]) {
    let mask = ((1_u16 << window.bits) - 1) as u8;
    let start = (window.row * window.width + window.column) * window.bits;
    let bytes = &window.bytes[start / 8..];
    match (start % 8, window.bits) {
        (0, 4) => nibbles(bytes, out, false),
        (0, bits) => stream(bytes, out, bits),
        (skip, bits) => {
            for (at, code) in out.iter_mut().enumerate() {
                let bit = skip + at * bits;
                *code = bytes[bit / 8] >> (bit % 8) & mask;
            }
        }
    }
}

/// Unpacks codes of [`Packing::Units`], whose stored rows are units.
#[inline(always)]
fn units(window: &CodeWindow, out: &mut [u8]) {
    let size = codes_in_bytes(window.bits as u32) as usize;
    let start = window.row * window.width + window.column;
    let (mut skip, mut rest) = (start % size, out);
    for unit in window.bytes[start / size * window.stride..].chunks_exact(window.stride) {
        if rest.is_empty() {
            break;
        }
        let (codes, after) = rest.split_at_mut((size - skip).min(rest.len()));
        codes.copy_from_slice(&unit_codes(window.bits, unit)[skip..][..codes.len()]);
        (skip, rest) = (0, after);
    }
}

/// Returns the codes of a unit (SDNQ, `packed_int/unpack.py`).
#[inline(always)]
fn unit_codes(bits: usize, unit: &[u8]) -> [u8; 8] {
    let low = |at: usize| unit[at] & ((1 << bits) - 1);
    match bits {
        3 => {
            let last = |at: usize| unit[at] >> 6 | unit[2] >> (4 + at) & 4;
            let second = |at: usize| unit[at] >> 3 & 7;
            [low(0), low(1), low(2), second(0), second(1), second(2), last(0), last(1)]
        }
        5 => {
            let last = unit[2] >> 5 | unit[3] >> 3 & 16 | unit[4] >> 4 & 8;
            let other = |at: usize| unit[at] >> 5 | unit[3 + at] >> 2 & 0x18;
            [low(0), low(1), low(2), low(3), low(4), other(0), other(1), last]
        }
        6 => {
            let last = unit[0] >> 6 << 4 | unit[1] >> 6 << 2 | unit[2] >> 6;
            [low(0), low(1), low(2), last, 0, 0, 0, 0]
        }
        7 => std::array::from_fn(|at| match at {
            7 => unit.iter().fold(0, |last, byte| last << 1 | byte >> 7),
            at => low(at),
        }),
        // Fields, the first in the lowest bits.
        _ => std::array::from_fn(|at| if at * bits < 8 { unit[0] >> (at * bits) & ((1 << bits) - 1) } else { 0 }),
    }
}

/// Unpacks the codes of one of the rows of a line of [`split`] words, which begin at this bit of the words.
#[inline(always)]
fn codes_of_planes(window: &CodeWindow, bit: usize, out: &mut [u8]) {
    let line = &window.bytes[window.row * window.bits / 32 * window.stride..];
    let (shift, mask) = (bit % 8, u8::MAX >> (8 - window.bits));
    for (code, byte) in out.iter_mut().zip(&line[bit / 8 * (window.stride / 4) + window.column..]) {
        *code = byte >> shift & mask;
    }
}
