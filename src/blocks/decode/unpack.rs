//! Codes and scales out of the bytes that hold several of them, in loops that the compiler vectorizes: they take
//! and write copies, so that it knows that source and result do not overlap.

use crate::kernel::half::float16;
use zerocopy::little_endian::U16;

/// Widens a float16.
#[inline(always)]
pub(in crate::blocks) fn half(half: U16) -> f32 {
    float16(half.get())
}

/// Writes the low half of each byte, then the high half of each.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(bytes: [u8; N], codes: &mut [u8]) {
    let [mut low, mut high] = [[0; N]; 2];
    for at in 0..N {
        (low[at], high[at]) = (bytes[at] & 15, bytes[at] >> 4);
    }
    codes[..N].copy_from_slice(&low);
    codes[N..].copy_from_slice(&high);
}

/// Writes the low half of each byte, followed by its high half.
#[inline(always)]
pub(super) fn pairs<const N: usize, const M: usize>(bytes: &[u8; N]) -> [u8; M] {
    let mut codes = [0; M];
    for (byte, pair) in bytes.iter().zip(codes.as_chunks_mut().0) {
        *pair = [byte & 15, byte >> 4];
    }
    codes
}

/// Adds codes of `BITS` bits, shifted left by `by`: from 32 bytes, the lowest bits of each byte, then the next bits of
/// each, and so on.
#[inline(always)]
pub(super) fn add_planes<const BITS: u32>(bytes: [u8; 32], by: u32, codes: &mut [u8]) {
    for (plane, codes) in (0..).zip(codes.as_chunks_mut::<32>().0) {
        let mut sums = *codes;
        for at in 0..32 {
            sums[at] |= (bytes[at] >> (BITS * plane) & ((1 << BITS) - 1)) << by;
        }
        *codes = sums;
    }
}

/// Spreads eight bits: byte i of the result is bit i.
#[inline(always)]
pub(super) fn spread(bits: u8) -> u64 {
    // Byte i of the first product has no bit but bit i, and the sum carries it to the highest bit.
    let selected = (u64::from(bits) * ONES) & 0x8040_2010_0804_0201;
    (selected + 0x7f * ONES) >> 7 & ONES
}

/// The number 1 in each byte.
pub(super) const ONES: u64 = 0x0101_0101_0101_0101;

/// Returns eight numbers with signs: where a bit of `negative` is set, the number is negated. No number is 0.
#[inline(always)]
pub(super) fn negate(numbers: u64, negative: u8) -> [u8; 8] {
    let negative = spread(negative);
    ((numbers ^ (negative * 0xff)) + negative).to_le_bytes()
}

/// Returns eight signs from seven: the highest bit makes their number even.
#[inline(always)]
pub(super) fn signs(seven: u32) -> u8 {
    let signs = seven as u8 & 0x7f;
    let folded = signs ^ signs >> 4;
    // Bit i of the constant is the parity of i.
    signs | ((0x6996_u16 >> (folded & 15)) as u8 & 1) << 7
}
