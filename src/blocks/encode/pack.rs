//! Codes and scales into the bytes that hold several of them.

/// Packs the first half of codes of 4 bits into low halves of bytes, and the second half into high halves. Higher bits of
/// codes are ignored.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(codes: &[u8]) -> [u8; N] {
    let (low, high) = (&codes[..N], &codes[N..2 * N]);
    let mut bytes = [0; N];
    for at in 0..N {
        bytes[at] = low[at] & 15 | high[at] << 4;
    }
    bytes
}

/// Packs `BITS` bits of each code, from bit `from` on, into 32 bytes: codes of 32 elements are in the lowest bits, codes of
/// the next 32 elements above them, and so on.
#[inline(always)]
pub(super) fn planes<const BITS: u32>(codes: &[u8], from: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (plane, codes) in (0..8 / BITS).zip(codes.as_chunks::<32>().0) {
        for at in 0..32 {
            bytes[at] |= (codes[at] >> from & ((1 << BITS) - 1)) << (BITS * plane);
        }
    }
    bytes
}

/// Packs bit 4 of each code.
#[inline(always)]
pub(super) fn high_bits(codes: &[u8; 32]) -> [u8; 4] {
    let mut bytes = [0; 4];
    for (byte, codes) in bytes.iter_mut().zip(codes.as_chunks().0) {
        // The product moves bit 0 of byte i to bit i of the highest byte.
        let bits = u64::from_le_bytes(*codes) >> 4 & 0x0101_0101_0101_0101;
        *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
    bytes
}

/// Packs eight scales and eight offsets of 6 bits, as in [`SixBitScales`](super::super::decode::SixBitScales). Bits above the sixth add to the bits
/// of other scales, as in ggml.
#[inline(always)]
pub(super) fn scales_of_6_bits(scales: &[u8; 8], offsets: &[u8; 8]) -> [u8; 12] {
    let mut bytes = [0; 12];
    for at in 0..4 {
        let (scale, offset) = (scales[at + 4], offsets[at + 4]);
        bytes[at] = scales[at] | scale >> 4 << 6;
        bytes[at + 4] = offsets[at] | offset >> 4 << 6;
        bytes[at + 8] = scale & 15 | offset << 4;
    }
    bytes
}
