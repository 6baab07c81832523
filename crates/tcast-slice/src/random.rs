//! Random numbers, for tests and for rounding.

/// The distance between the states of the generator: the state before a number is known without those before it.
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the `SplitMix64` generator for a seed (Steele, Lea and Flood, 2014).
#[inline]
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(STEP);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Returns floats that are not NaN: all upper halves with some lower bits, then random ones.
pub fn floats() -> impl Iterator<Item = f32> {
    let mut next = random(1);
    let specials = (0..1 << 16).map(|high: u32| f32::from_bits(high << 16 | (high & 3) << 14));
    let random = std::iter::repeat_with(move || f32::from_bits(next() as u32));
    specials.chain(random.take(1 << 20)).filter(|value| !value.is_nan())
}
