//! Encodes a segment step by step, for groups of any size, and for exact quotients.

use super::Encoder;
use super::buffers::EncodeBuffers;
use super::lanes::{self, Divisors, PartialSums};
use crate::kernel::Loop;

/// Computes codes and errors of a segment, step by step.
pub(super) struct SegmentInSteps<'a> {
    pub(super) encoder: &'a Encoder,
    pub(super) source: &'a [u8],
    pub(super) buffers: &'a mut EncodeBuffers,
    /// Number of values in a group.
    pub(super) size: usize,
    /// True if errors are summed; they then replace the multiples of scales that the codes stand for.
    pub(super) is_measured: bool,
}

impl Loop for SegmentInSteps<'_> {
    type Result = PartialSums;

    #[inline(always)]
    fn run(self) -> PartialSums {
        let Self { encoder, source, buffers, size, is_measured } = self;
        let Encoder { chooser, weight, width, division, rounding, .. } = encoder;
        let count = source.len() / width;
        let groups = count.div_ceil(size);
        let (values, numbers) = (&mut buffers.values[..count], &mut buffers.numbers[..count]);
        let (lane, multiples) = (&mut buffers.lane[..count], &mut buffers.multiples[..count]);
        lanes::widen(*weight, source, values);
        let divisors = Divisors {
            factors: &buffers.chosen.factor[..groups],
            wide: &buffers.chosen.wide[..groups],
            zeros: &buffers.chosen.zero[..groups],
            size,
        };
        lanes::divide(values, &divisors, *division, lane, numbers);
        let clipped = lanes::round(rounding, numbers, &mut buffers.codes[..count], multiples);
        if division.has_zeros {
            for (multiples, zero) in multiples.chunks_mut(size).zip(divisors.zeros) {
                for multiple in multiples {
                    *multiple -= zero;
                }
            }
        }
        if !is_measured {
            return PartialSums::default();
        }
        let over = 1.0 / buffers.unit;
        let mut offsets = Vec::new();
        if division.has_offsets {
            offsets.extend(divisors.zeros.iter().map(|zero| chooser.store(*zero)));
        }
        let scales = (&buffers.scales[..groups], size);
        let mut sums = PartialSums::of(values, over, scales, &offsets, lane, multiples);
        sums.clipped[0] += clipped;
        sums
    }
}
