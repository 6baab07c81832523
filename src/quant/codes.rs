//! Unpacks codes of every packing to one per byte.

use super::layout::Packing;

/// Codes of rows and columns of one matrix.
pub(super) struct CodeWindow<'a> {
    /// The stored bytes of the matrix; for [`Packing::Flat`] and [`Packing::Stream`], of the tensor.
    pub(super) bytes: &'a [u8],
    /// Bytes from one stored row to the next.
    pub(super) stride: usize,
    pub(super) bits: usize,
    /// The first row; the output determines how many.
    pub(super) row: usize,
    /// The first column, a multiple of 32, and how many.
    pub(super) column: usize,
    pub(super) columns: usize,
    /// Columns of the matrix.
    pub(super) width: usize,
}

/// The nibble of a word with the code of each of its eight columns (AWQ).
pub(super) const AWQ_NIBBLES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl CodeWindow<'_> {
    /// The codes of the first row, which are stored as they are: see [`Packing::has_plain_codes`].
    #[inline(always)]
    pub(super) fn plain(&self) -> &[u8] {
        let bytes = self.bits / 8;
        &self.bytes[self.row * self.stride + self.column * bytes..][..self.columns * bytes]
    }
}

impl Packing {
    /// Whether codes are stored as they are, so that they need not be unpacked.
    pub(super) fn has_plain_codes(self, bits: u32) -> bool {
        match self {
            Self::Rows(_) => bits == 8,
            Self::Stream => bits >= 8,
            _ => false,
        }
    }

    /// How many rows to unpack at a time: those whose codes share bytes or cache lines.
    pub(super) fn tile(self) -> usize {
        match self {
            Self::Rows(_) | Self::RowsHighFirst | Self::Flat | Self::Stream => 1,
            Self::TransposedBlocks | Self::TransposedWords | Self::AwqWords => 32,
        }
    }

    /// Writes the codes of a window, each row `columns` bytes long.
    #[inline(always)]
    pub(super) fn unpack(self, window: &CodeWindow, out: &mut [u8]) {
        match self {
            Self::Rows(_) => rows(window, out, false),
            Self::RowsHighFirst => rows(window, out, true),
            Self::Flat => flat(window, out),
            Self::Stream => through_rows(window, out),
            Self::TransposedBlocks => blocks(window, out),
            Self::TransposedWords if window.bits == 3 => triples(window, out),
            Self::TransposedWords => words(window, out),
            Self::AwqWords => awq(window, out),
        }
    }
}

#[inline(always)]
fn rows(window: &CodeWindow, out: &mut [u8], high_first: bool) {
    for (row, out) in (window.row..).zip(out.chunks_exact_mut(window.columns)) {
        let start = row * window.stride + window.column * window.bits / 8;
        let bytes = &window.bytes[start..(row + 1) * window.stride];
        match window.bits {
            4 => nibbles(bytes, out, high_first),
            bits => stream(bytes, out, bits),
        }
    }
}

/// Pairs of codes; the last byte may hold one.
#[inline(always)]
fn nibbles(bytes: &[u8], out: &mut [u8], high_first: bool) {
    let (pairs, last) = out.as_chunks_mut::<2>();
    let (even, odd) = if high_first { (4, 0) } else { (0, 4) };
    for (pair, byte) in pairs.iter_mut().zip(bytes) {
        *pair = [byte >> even & 15, byte >> odd & 15];
    }
    if let [last] = last {
        *last = bytes[pairs.len()] >> even & 15;
    }
}

/// A stream of bits, low bits of a byte first: eight codes take as many bytes as a code has bits.
#[inline(always)]
fn stream(bytes: &[u8], out: &mut [u8], bits: usize) {
    let mask = ((1_u16 << bits) - 1) as u8;
    for (codes, bytes) in out.chunks_mut(8).zip(bytes.chunks(bits)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        for (at, code) in codes.iter_mut().enumerate() {
            *code = (word >> (at * bits)) as u8 & mask;
        }
    }
}

#[inline(always)]
fn flat(window: &CodeWindow, out: &mut [u8]) {
    for (row, out) in (window.row..).zip(out.chunks_exact_mut(window.columns)) {
        let start = row * window.width + window.column;
        let (first, out) = out.split_at_mut(start % 2);
        if let [first] = first {
            *first = window.bytes[start / 2] & 15;
        }
        nibbles(&window.bytes[start.div_ceil(2)..], out, true);
    }
}

/// A row may start within a byte.
#[inline(always)]
fn through_rows(window: &CodeWindow, out: &mut [u8]) {
    let mask = ((1_u16 << window.bits) - 1) as u8;
    for (row, out) in (window.row..).zip(out.chunks_exact_mut(window.columns)) {
        let start = (row * window.width + window.column) * window.bits;
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
}

/// A stored row is a column: each of its bytes holds two rows. 16 columns are processed at a time, so that each row
/// gets 16 codes at once.
#[inline(always)]
fn blocks(window: &CodeWindow, out: &mut [u8]) {
    let rows = window.row..window.row + out.len() / window.columns;
    let byte = |column: usize, at: usize| window.bytes[(window.column + column) * window.stride + at];
    for column in (0..window.columns).step_by(16) {
        if column + 16 > window.columns {
            for (row, out) in rows.clone().zip(out.chunks_exact_mut(window.columns)) {
                for (column, out) in (column..).zip(&mut out[column..]) {
                    *out = byte(column, row / 2) >> (4 * (row % 2)) & 15;
                }
            }
            continue;
        }
        for at in rows.start / 2..rows.end.div_ceil(2) {
            let pairs: [u8; 16] = std::array::from_fn(|beside| byte(column + beside, at));
            for row in (2 * at).max(rows.start)..(2 * at + 2).min(rows.end) {
                let codes = pairs.map(|pair| pair >> (4 * (row % 2)) & 15);
                out[(row - rows.start) * window.columns + column..][..16].copy_from_slice(&codes);
            }
        }
    }
}

/// int32 words that each hold codes of one row.
#[inline(always)]
fn words(window: &CodeWindow, out: &mut [u8]) {
    let (bits, codes) = (window.bits, 32 / window.bits);
    let mask = ((1_u16 << bits) - 1) as u8;
    for at in 0..window.columns / codes {
        let words = &window.bytes[(window.column / codes + at) * window.stride..][4 * window.row..];
        for (word, out) in words.as_chunks().0.iter().zip(out.chunks_exact_mut(window.columns)) {
            let word = u32::from_le_bytes(*word);
            let out = &mut out[at * codes..][..codes];
            if let ([eight], 4) = (out.as_chunks_mut().0, bits) {
                *eight = spread(word).to_le_bytes();
                continue;
            }
            for (at, code) in out.iter_mut().enumerate() {
                *code = (word >> (at * bits)) as u8 & mask;
            }
        }
    }
}

/// Eight nibbles as eight bytes.
#[inline(always)]
fn spread(word: u32) -> u64 {
    let word = u64::from(word);
    let word = (word | word << 16) & 0x0000_ffff_0000_ffff;
    let word = (word | word << 8) & 0x00ff_00ff_00ff_00ff;
    (word | word << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// [`words`] for codes of three bits, 32 of which take three words.
#[inline(always)]
fn triples(window: &CodeWindow, out: &mut [u8]) {
    for at in 0..window.columns / 32 {
        for (row, out) in (window.row..).zip(out.chunks_exact_mut(window.columns)) {
            let mut bits = 0_u128;
            for word in 0..3 {
                let start = (3 * (window.column / 32 + at) + word) * window.stride + 4 * row;
                let word_bytes = [0, 1, 2, 3].map(|byte| window.bytes[start + byte]);
                bits |= u128::from(u32::from_le_bytes(word_bytes)) << (32 * word);
            }
            for (at, code) in out[32 * at..][..32].iter_mut().enumerate() {
                *code = (bits >> (3 * at)) as u8 & 7;
            }
        }
    }
}

/// A stored row is a column, and a word holds eight rows in AWQ's order. 16 columns are processed at a time, as in
/// [`blocks`].
#[inline(always)]
fn awq(window: &CodeWindow, out: &mut [u8]) {
    let rows = window.row..window.row + out.len() / window.columns;
    let word = |column: usize, at: usize| {
        let bytes = &window.bytes[(window.column + column) * window.stride..][..window.stride];
        u32::from_le_bytes(bytes.as_chunks().0[at])
    };
    for column in (0..window.columns).step_by(16) {
        let beside = 16.min(window.columns - column);
        for at in rows.start / 8..rows.end.div_ceil(8) {
            let mut words = [0; 16];
            for (beside, slot) in words[..beside].iter_mut().enumerate() {
                *slot = word(column + beside, at);
            }
            for row in (8 * at).max(rows.start)..(8 * at + 8).min(rows.end) {
                let codes = words.map(|word| (word >> (4 * AWQ_NIBBLES[row % 8])) as u8 & 15);
                out[(row - rows.start) * window.columns + column..][..beside].copy_from_slice(&codes[..beside]);
            }
        }
    }
}
