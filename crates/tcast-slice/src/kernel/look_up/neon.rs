//! Look-ups with NEON, which looks up bytes: those of the lower and of the upper halves of entries apart.

use super::table::{Derivation, Table, each_table, entry_of, float_of};
use std::arch::aarch64::{
    uint8x16_t, uint8x16x2_t, vaddq_u16, vandq_u8, vandq_u16, vdupq_n_u8, vdupq_n_u16, vdupq_n_u32, vld1q_u8,
    vld1q_u16, vld2q_u8, vminq_u8, vorrq_u8, vqtbl1q_u8, vreinterpretq_s16_u8, vreinterpretq_u8_u16,
    vreinterpretq_u8_u32, vreinterpretq_u16_s16, vreinterpretq_u16_u8, vshrq_n_s16, vst1q_u8, vst1q_u16, vst2q_u8,
    vzip1q_u8, vzip2q_u8,
};

/// Looks up the entry of each code by its lowest four bits.
pub(super) fn look_up(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    let look_up = |codes: &[u8; 16], uint8x16x2_t(lower, upper): uint8x16x2_t, out: &mut [[u8; 2]; 16]| {
        // SAFETY: `codes` has the 16 bytes that are read, and `out` the 32 that are written. All machines have NEON.
        unsafe {
            let index = vandq_u8(vld1q_u8(codes.as_ptr()), vdupq_n_u8(15));
            let found = uint8x16x2_t(vqtbl1q_u8(lower, index), vqtbl1q_u8(upper, index));
            vst2q_u8(out.as_mut_ptr().cast(), found);
        }
    };
    each_table(codes, tables, size, out, load, look_up, entry_of);
}

/// Looks up finite float8e4m3fn codes.
pub(super) fn look_up_floats(codes: &[u8], tables: &[Table], size: usize, out: &mut [[u8; 2]]) {
    let look_up = |codes: &[u8; 16], uint8x16x2_t(lower, upper): uint8x16x2_t, out: &mut [[u8; 2]; 16]| {
        // SAFETY: `codes` has the 16 bytes that are read, and `out` the 32 that are written. All machines have NEON.
        unsafe {
            let codes = vld1q_u8(codes.as_ptr());
            let normal = vorrq_u8(vandq_u8(codes, vdupq_n_u8(7)), vdupq_n_u8(8));
            let index = vminq_u8(vandq_u8(codes, vdupq_n_u8(0x7f)), normal);
            let (lower, upper) = (vqtbl1q_u8(lower, index), vqtbl1q_u8(upper, index));
            let zero = vdupq_n_u8(0);
            // The exponent field of the code moves from bit 11 of a word to bit 7; the sign stays.
            let sum = |entries: uint8x16_t, codes: uint8x16_t| {
                let moved = vreinterpretq_u16_s16(vshrq_n_s16::<4>(vreinterpretq_s16_u8(codes)));
                let added = vandq_u16(moved, vdupq_n_u16(0x8780));
                vreinterpretq_u8_u16(vaddq_u16(vreinterpretq_u16_u8(entries), added))
            };
            let out: *mut u8 = out.as_mut_ptr().cast();
            vst1q_u8(out, sum(vzip1q_u8(lower, upper), vzip1q_u8(zero, codes)));
            vst1q_u8(out.add(16), sum(vzip2q_u8(lower, upper), vzip2q_u8(zero, codes)));
        }
    };
    each_table(codes, tables, size, out, load, look_up, float_of);
}

/// Writes the table of each pair of numbers.
pub(super) fn derive(pairs: &[[u16; 2]], derivation: &Derivation, tables: &mut [Table]) {
    let Derivation { chosen, added, kept } = derivation;
    for ([first, second], table) in pairs.iter().zip(tables) {
        let pair = u32::from(*second) << 16 | u32::from(*first);
        for half in [0, 8] {
            // SAFETY: each array has 16 bytes from that element on. All machines have NEON.
            unsafe {
                let words = vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(pair)), vld1q_u8(chosen[2 * half..].as_ptr()));
                let sums = vaddq_u16(vreinterpretq_u16_u8(words), vld1q_u16(added[half..].as_ptr()));
                vst1q_u16(table[half..].as_mut_ptr(), vandq_u16(sums, vld1q_u16(kept[half..].as_ptr())));
            }
        }
    }
}

/// Returns the lower bytes of all entries, and the upper bytes.
fn load(table: &Table) -> uint8x16x2_t {
    // SAFETY: `table` has the 32 bytes that are read. All machines have NEON.
    unsafe { vld2q_u8(table.as_ptr().cast()) }
}
