//! Lanes: the number types that conversions pass through, buffers for them, and the ways from one lane to another.
//!
//! Sources wider than float32 arrive there *rounded to odd* ([`to_odd`]): truncated, with the last bit set when anything
//! was cut off. Rounding such a value to at most 22 significant bits gives the same result as rounding the original
//! once (Boldo & Melquiond, "When double rounding is odd", 2005), and a truncated value can no longer look exact.

/// Number of text elements, or of source bytes, that pass through a lane at a time. No more bytes are prefetched at
/// once, because the processor waits for some 16 cache lines at a time. Loops that prefetch their own input take four
/// times as many.
pub(super) const BLOCK: usize = 1024;

/// Distance in bytes by which the source is prefetched before it is read. Distances of 4 to 16 KiB are equally good for
/// most types, and the fastest loops need 8.
pub(super) const AHEAD: usize = 8192;

/// Returns the first `len` bytes of a buffer, which grows if necessary.
pub(super) fn grow(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Rounds a float64 to float32, to odd: truncated, with the last bit set if that changes the number. A nonzero number below
/// the smallest float32 becomes the smallest, not 0.
#[inline(always)]
pub fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    // If the nearest float32 is beyond the value, the one before it is the truncated value.
    let cut = nearest.to_bits().wrapping_sub(u32::from(back.abs() > value.abs()));
    f32::from_bits(cut | u32::from(back != value))
}

/// [`to_odd`] of bits. Inf stays, NaN keeps its sign and leading payload.
#[inline(always)]
pub(super) fn narrow_to_odd(bits: u64) -> u32 {
    let value = f64::from_bits(bits);
    if value.is_nan() { narrow_nan(bits) } else { to_odd(value).to_bits() }
}

/// Narrows a float64 NaN to a quiet float32 NaN; keeps the sign and the leading payload bits.
#[inline(always)]
pub(super) fn narrow_nan(bits: u64) -> u32 {
    ((bits >> 32) as u32 & 0x8000_0000) | 0x7fc0_0000 | ((bits >> 29) as u32 & 0x003f_ffff)
}

/// float32 bits -> float64 bits, exact. NaN keeps its sign and payload and becomes quiet.
#[inline(always)]
pub(super) fn widen(bits: u32) -> u64 {
    let value = f32::from_bits(bits);
    let nan = (u64::from(bits & 0x8000_0000) << 32) | 0x7ff8_0000_0000_0000 | (u64::from(bits & 0x003f_ffff) << 29);
    if value.is_nan() { nan } else { f64::from(value).to_bits() }
}

/// An integer of up to 64 bits -> float64 bits: exact below 2^53, from there on rounded to odd at 2^11, which leaves at
/// least 42 significant bits. That is more than enough for float32 and everything narrower; float64 targets do not use
/// this.
#[inline(always)]
pub(super) fn unsigned_to_odd(magnitude: u64) -> u64 {
    // The upper 53 bits always fit; the other 11 are folded into the last of them.
    let cut = magnitude & 0x7ff;
    let wide = ((magnitude >> 11) | u64::from(cut != 0)) as f64 * 2048.0;
    let is_wide = magnitude >> 53 != 0;
    (if is_wide { wide } else { magnitude as f64 }).to_bits()
}

/// [`unsigned_to_odd`] of a two's complement integer.
#[inline(always)]
pub(super) fn signed_to_odd(value: i64) -> u64 {
    unsigned_to_odd(value.unsigned_abs()) | (value as u64 & (1 << 63))
}
