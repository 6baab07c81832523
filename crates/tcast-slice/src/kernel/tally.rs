//! Counts of a block of results, collected while the block is stored.

use super::counts::{Counts, Loss};
use super::isa::{hidden_one, prefetch_behind};
use super::lane::AHEAD;

/// False only in builds that measure the cost of counting (`benches/counts.py`).
pub(super) const COUNTED: bool = cfg!(not(feature = "uncounted"));

/// Counts of one block or of one element, before the target's rules classify them.
#[derive(Clone, Copy)]
pub(super) struct LossTally {
    pub(super) over: u32,
    pub(super) was_infinite: u32,
    pub(super) was_nan: u32,
    pub(super) flushed: u32,
    pub(super) inexact: u32,
    /// The smallest and the largest magnitude of float32, as bits; they show whether all elements are in range.
    pub(super) smallest: u32,
    pub(super) largest: u32,
    /// Bits that any element has set.
    pub(super) seen: u32,
}

impl LossTally {
    pub(super) const EMPTY: Self =
        Self { over: 0, was_infinite: 0, was_nan: 0, flushed: 0, inexact: 0, smallest: u32::MAX, largest: 0, seen: 0 };

    #[inline(always)]
    fn add(&mut self, other: Self) {
        self.over += other.over;
        self.was_infinite += other.was_infinite;
        self.was_nan += other.was_nan;
        self.flushed += other.flushed;
        self.inexact += other.inexact;
        self.smallest = self.smallest.min(other.smallest);
        self.largest = self.largest.max(other.largest);
        self.seen |= other.seen;
    }

    /// The counts that need no rule: flushed and inexact.
    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        counts[Loss::Flushed] = self.flushed.into();
        counts[Loss::Inexact] = self.inexact.into();
        counts
    }
}

/// Number of elements that are encoded in parallel: a vector of the widest instruction set.
const LANES: usize = 16;

/// Writes elements of `N` bytes; the bytes need no alignment. `read` converts a number of the lane from its little endian
/// bytes, so that a source of the lane's type can itself be the lane. `encode` receives an empty tally for each element.
#[inline(always)]
pub(super) fn store<const M: usize, const N: usize, T>(
    lane: &[[u8; M]],
    bytes: &mut [u8],
    read: impl Fn([u8; M]) -> T,
    encode: impl Fn(T, &mut LossTally) -> [u8; N],
) -> LossTally {
    let mut total = LossTally::EMPTY;
    let encode = |value: [u8; M]| {
        let mut tally = LossTally::EMPTY;
        (encode(read(value), &mut tally), tally)
    };
    let ((lane, last), (bytes, last_bytes)) = (lane.as_chunks::<LANES>(), bytes.as_chunks_mut::<N>().0.as_chunks_mut());
    for (value, bytes) in last.iter().zip(last_bytes) {
        let tally;
        (*bytes, tally) = encode(*value);
        total.add(tally);
    }
    // Arrays of sums, one per lane, that are added up only at the end.
    let [mut over, mut was_infinite, mut was_nan, mut flushed, mut inexact, mut largest, mut seen] =
        [[0_u32; LANES]; 7];
    let mut smallest = [u32::MAX; LANES];
    let one = hidden_one::<u32>();
    let count = |count: u32| if count == 0 { 0 } else { one };
    for (values, bytes) in lane.iter().zip(bytes) {
        prefetch_behind(values, AHEAD);
        // The compiler knows that copies do not overlap.
        let (values, mut codes) = (*values, [[0; N]; LANES]);
        for at in 0..LANES {
            let tally;
            (codes[at], tally) = encode(values[at]);
            if COUNTED {
                over[at] += count(tally.over);
                was_infinite[at] += count(tally.was_infinite);
                was_nan[at] += count(tally.was_nan);
                flushed[at] += count(tally.flushed);
                inexact[at] += count(tally.inexact);
            }
            largest[at] = largest[at].max(tally.largest);
            smallest[at] = smallest[at].min(tally.smallest);
            seen[at] |= tally.seen;
        }
        *bytes = codes;
    }
    for at in 0..LANES {
        total.add(LossTally {
            over: over[at],
            was_infinite: was_infinite[at],
            was_nan: was_nan[at],
            flushed: flushed[at],
            inexact: inexact[at],
            smallest: smallest[at],
            largest: largest[at],
            seen: seen[at],
        });
    }
    total
}

/// Counts the numbers of the lane that are not zero and become zero, because their magnitude is at most `zero`.
#[inline(always)]
pub(super) fn count_zeros(lane: &[[u8; 4]], zero: u32) -> u32 {
    if !COUNTED {
        return 0;
    }
    let magnitude = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) & (u32::MAX >> 1);
    lane.iter().fold(0, |count, bytes| count + u32::from(magnitude(bytes).wrapping_sub(1) < zero))
}

/// Counts the NaN and Inf of a lane of floats: `magnitude` returns bits without the sign, which are then at least
/// `infinity`. A first pass skips blocks without them, which most are.
#[inline(always)]
fn count_specials<const N: usize, T: Ord + Copy>(
    lane: &[[u8; N]],
    magnitude: impl Fn([u8; N]) -> T,
    infinity: T,
    counts: &mut Counts,
) {
    let is_special = COUNTED && lane.iter().fold(false, |any, bytes| any | (magnitude(*bytes) >= infinity));
    if is_special {
        counts.input_nan += lane.iter().filter(|bytes| magnitude(**bytes) > infinity).count() as u64;
        counts.input_infinite += lane.iter().filter(|bytes| magnitude(**bytes) == infinity).count() as u64;
    }
}

/// [`count_specials`] for float32.
#[inline(always)]
pub(super) fn count_float32_specials(lane: &[[u8; 4]], counts: &mut Counts) {
    let magnitude = |bytes| u32::from_le_bytes(bytes) & (u32::MAX >> 1);
    count_specials(lane, magnitude, f32::INFINITY.to_bits(), counts);
}

/// [`count_specials`] for float64.
#[inline(always)]
pub(super) fn count_float64_specials(lane: &[[u8; 8]], counts: &mut Counts) {
    let magnitude = |bytes| u64::from_le_bytes(bytes) & (u64::MAX >> 1);
    count_specials(lane, magnitude, f64::INFINITY.to_bits(), counts);
}
