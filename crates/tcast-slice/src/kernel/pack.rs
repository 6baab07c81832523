//! Elements of 1, 2, 4 and 6 bits: packed as in ONNX, and one per byte as in numpy.
//!
//! Packed: least significant bits first, in the order of the elements, without gaps, the last byte padded with
//! zeros. For 6 bits that is `b0 = v0|v1<<6, b1 = v1>>2|v2<<4, b2 = v2>>4|v3<<2`.

/// Reads `codes.len()` packed elements of `bits` bits.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], codes: &mut [u8], bits: u32) {
    match bits {
        4 => unpack_groups(packed, codes, |[b]: [u8; 1]| [b & 15, b >> 4]),
        2 => unpack_groups(packed, codes, |[b]: [u8; 1]| [b & 3, b >> 2 & 3, b >> 4 & 3, b >> 6]),
        1 => unpack_groups(packed, codes, |[b]: [u8; 1]| [0, 1, 2, 3, 4, 5, 6, 7].map(|bit| b >> bit & 1)),
        _ => unpack_groups(packed, codes, |[a, b, c]: [u8; 3]| {
            [a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2]
        }),
    }
}

/// Packs elements of `bits` bits; the higher bits of a code must be zero.
#[inline(always)]
pub(super) fn pack(codes: &[u8], packed: &mut [u8], bits: u32) {
    match bits {
        4 => pack_groups(codes, packed, |pair: [u8; 2]| {
            // As one word: the compiler then narrows whole vectors.
            let pair = u16::from_le_bytes(pair);
            [(pair | pair >> 4) as u8]
        }),
        2 => pack_groups(codes, packed, |[a, b, c, d]: [u8; 4]| [a | b << 2 | c << 4 | d << 6]),
        1 => pack_groups(codes, packed, |bits: [u8; 8]| [bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit)]),
        _ => pack_groups(codes, packed, |[a, b, c, d]: [u8; 4]| [a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]),
    }
}

/// Unpacks groups of `P` bytes that hold `C` codes; a short last group is padded with zeros.
#[inline(always)]
fn unpack_groups<const P: usize, const C: usize>(packed: &[u8], codes: &mut [u8], split: impl Fn([u8; P]) -> [u8; C]) {
    let (groups, rest) = packed.as_chunks::<P>();
    let (whole, part) = codes.as_chunks_mut::<C>();
    for (group, codes) in groups.iter().zip(&mut *whole) {
        *codes = split(*group);
    }
    if !part.is_empty() {
        // A partial group can need all bytes of a whole one: 3 codes of 6 bits take all 3.
        let rest = groups.get(whole.len()).map_or(rest, |group| group);
        let mut group = [0; P];
        group[..rest.len()].copy_from_slice(rest);
        part.copy_from_slice(&split(group)[..part.len()]);
    }
}

#[inline(always)]
fn pack_groups<const C: usize, const P: usize>(codes: &[u8], packed: &mut [u8], join: impl Fn([u8; C]) -> [u8; P]) {
    let (whole, part) = codes.as_chunks::<C>();
    let (groups, rest) = packed.split_at_mut(whole.len() * P);
    for (codes, group) in whole.iter().zip(groups.as_chunks_mut::<P>().0) {
        *group = join(*codes);
    }
    if !part.is_empty() {
        let mut codes = [0; C];
        codes[..part.len()].copy_from_slice(part);
        rest.copy_from_slice(&join(codes)[..rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_onnx_examples() {
        let cases: [(u32, &[u8], &[u8]); 7] = [
            (4, &[0x8, 0x7, 0xf], &[0x78, 0x0f]),
            (4, &[15, 1, 2], &[0x1f, 0x02]),
            (4, &[7, 9, 3], &[0x97, 0x03]),
            (2, &[3, 1, 2, 0, 3], &[0x27, 0x03]),
            (2, &[2, 1, 3, 0, 1], &[0x36, 0x01]),
            (1, &[1, 0, 0, 1, 1, 0, 0, 0, 1, 1], &[0x19, 0x03]), // not from ONNX, but by the same rule
            (6, &[0x1f, 0x21, 0x08, 0x10, 0x14], &[0x5f, 0x88, 0x40, 0x14]),
        ];
        for (bits, codes, bytes) in cases {
            let mut packed = vec![0xee; bytes.len()];
            pack(codes, &mut packed, bits);
            assert_eq!(packed, bytes);
            let mut unpacked = vec![0xee; codes.len()];
            unpack(bytes, &mut unpacked, bits);
            assert_eq!(unpacked, codes);
        }
    }

    #[test]
    fn every_length_survives_a_round_trip() {
        for bits in [1, 2, 4, 6] {
            for count in 0..70_usize {
                let codes: Vec<u8> = (0..count).map(|i| (i as u8).wrapping_mul(37) & ((1 << bits) - 1)).collect();
                let mut packed = vec![0xee; (count * bits as usize).div_ceil(8)];
                pack(&codes, &mut packed, bits);
                let mut unpacked = vec![0xee; count];
                unpack(&packed, &mut unpacked, bits);
                assert_eq!(unpacked, codes, "{bits} bits, {count} elements");
            }
        }
    }
}
