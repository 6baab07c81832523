//! Counts of 16-bit words, for types so narrow that there are not many words.
//!
//! A word is one number of 16 bits, two of 8, or four of 4. The numbers in each word are determined once, at the end: a
//! number of 16 bits costs 0.5 ns on any instruction set, a number of 8 bits half of that, and the rest nothing.

use super::tally::Repeat;
use crate::kernel::{Kernel, Storage, SubByteLayout};
use std::ops::RangeInclusive;

/// Numbers of elements that make this faster than widening; not more, as 64-bit counters take a third longer.
const MANY: RangeInclusive<u64> = 1 << 18..=u32::MAX as u64;

/// Number of occurrences of each word.
pub(super) struct WordCounts(Vec<u32>);

impl Default for WordCounts {
    fn default() -> Self {
        Self(vec![0; 1 << 16])
    }
}

impl WordCounts {
    pub(super) fn add(&mut self, words: &[u8]) {
        let counts: &mut [u32; 1 << 16] = self.0.as_mut_slice().try_into().expect("a counter for each word");
        let (groups, rest) = words.as_chunks::<8>();
        for group in groups {
            // One load for four words: a processor has few load ports in addition to all its additions to memory.
            let group = u64::from_le_bytes(*group);
            for at in 0..4 {
                counts[(group >> (16 * at)) as usize & 0xffff] += 1;
            }
        }
        for word in rest.as_chunks().0 {
            counts[usize::from(u16::from_le_bytes(*word))] += 1;
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (count, other) in self.0.iter_mut().zip(&other.0) {
            *count += other;
        }
    }

    /// Passes the elements of all words to a tally, converted to its type by the kernel.
    pub(super) fn add_to<const WIDTH: usize>(&self, kernel: &Kernel, per_word: usize, tally: &mut impl Repeat<WIDTH>) {
        let mut lane = vec![0; 256 * per_word * WIDTH];
        for (high, counts) in (0..=u8::MAX).zip(self.0.as_chunks::<256>().0) {
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            let words: Vec<u8> = (0..=u8::MAX).flat_map(|low| [low, high]).collect();
            kernel.run(&words, &mut lane, 256 * per_word).expect("a type of which every word is sound");
            let numbers = lane.as_chunks().0.chunks_exact(per_word);
            for (numbers, count) in numbers.zip(counts).filter(|(_, count)| **count > 0) {
                for number in numbers {
                    tally.add_times(*number, (*count).into());
                }
            }
        }
    }
}

/// Returns the number of elements in a word. `None` if words are not whole elements, not every word is valid, or there
/// are too few or too many elements.
pub(super) fn elements_per_word(storage: Storage, count: u64) -> Option<usize> {
    let bits = storage.dtype.bits() as usize;
    let is_whole = match storage.layout {
        SubByteLayout::Packed => matches!(bits, 1 | 2 | 4 | 8 | 16),
        SubByteLayout::PerByte | SubByteLayout::PerByteStrict => matches!(bits, 8 | 16),
    };
    (is_whole && MANY.contains(&count)).then(|| 16 / bits)
}
