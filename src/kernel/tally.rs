//! Counts of a block of results, taken while it is stored.

use super::counts::{Counts, Loss};
use super::lane::LaneElement;

/// Off only in builds that measure what counting costs (`benches/counts.py`).
pub(super) const COUNTED: bool = cfg!(not(feature = "uncounted"));

/// Counts of one block, before the target's rules name them.
#[derive(Default)]
pub(super) struct BlockTally {
    pub(super) over: u32,
    pub(super) was_infinite: u32,
    pub(super) was_nan: u32,
    pub(super) flushed: u32,
    pub(super) inexact: u32,
}

impl BlockTally {
    /// The counts that need no rule: flushed and inexact.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        counts[Loss::Flushed] = self.flushed.into();
        counts[Loss::Inexact] = self.inexact.into();
        counts
    }
}

/// Writes elements of `N` bytes; the bytes need no alignment.
#[inline(always)]
pub(super) fn store<const N: usize, T: LaneElement>(
    lane: &[T::Bytes],
    bytes: &mut [u8],
    mut encode: impl FnMut(T, &mut BlockTally) -> [u8; N],
) -> BlockTally {
    let mut tally = BlockTally::default();
    for (value, bytes) in lane.iter().zip(bytes.as_chunks_mut::<N>().0) {
        let value = T::from_bytes(*value);
        *bytes = if COUNTED { encode(value, &mut tally) } else { encode(value, &mut BlockTally::default()) };
    }
    tally
}

/// The smallest and the largest magnitude of some float32, as bits; they show whether all are in range.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) smallest: u32,
    pub(super) largest: u32,
}

impl Span {
    pub(super) const EMPTY: Self = Self { smallest: u32::MAX, largest: 0 };

    #[inline(always)]
    pub(super) fn add(&mut self, bits: u32) {
        let magnitude = bits & (u32::MAX >> 1);
        self.smallest = self.smallest.min(magnitude);
        self.largest = self.largest.max(magnitude);
    }

    /// How many numbers of the lane are not zero and become zero, because their magnitude is at most `zero`.
    #[inline(always)]
    pub(super) fn count_zeros(self, lane: &[[u8; 4]], zero: u32) -> u32 {
        if !COUNTED || self.smallest > zero {
            return 0;
        }
        let magnitude = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & (u32::MAX >> 1);
        lane.iter().fold(0, |count, bytes| count + u32::from(magnitude(bytes).wrapping_sub(1) < zero))
    }
}

/// Counts the NaN and Inf of a lane of floats; without the sign, their bits are at least `infinity`. Most blocks have
/// none, and the largest magnitude shows that.
#[inline(always)]
pub(super) fn count_specials<T: LaneElement + Ord + std::ops::BitAnd<Output = T>>(
    lane: &[T::Bytes],
    without_sign: T,
    infinity: T,
    counts: &mut Counts,
) {
    let magnitude = |bytes: &T::Bytes| T::from_bytes(*bytes) & without_sign;
    let is_special = COUNTED && lane.iter().fold(false, |any, bits| any | (magnitude(bits) >= infinity));
    if is_special {
        counts.input_nan += lane.iter().filter(|bits| magnitude(bits) > infinity).count() as u64;
        counts.input_infinite += lane.iter().filter(|bits| magnitude(bits) == infinity).count() as u64;
    }
}

/// [`count_specials`] for float32.
#[inline(always)]
pub(super) fn count_float32_specials(lane: &[[u8; 4]], counts: &mut Counts) {
    count_specials(lane, u32::MAX >> 1, f32::INFINITY.to_bits(), counts);
}
