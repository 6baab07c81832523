//! Encodes a segment step by step, for groups of any size, and for exact quotients.

use super::buffers::EncodeBuffers;
use super::encoder::Encoder;
use super::lanes::{self, Divisors, PartialSums};
use crate::kernel::Loop;

#[cfg(test)]
thread_local! {
    /// Counts the segments.
    pub(super) static RUNS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

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
        #[cfg(test)]
        RUNS.set(RUNS.get() + 1);
        let Encoder { chooser, weight, width, division, rounding, .. } = encoder;
        let count = source.len() / width;
        let groups = count.div_ceil(size);
        let (values, numbers) = (&mut buffers.values[..count], &mut buffers.numbers[..count]);
        let (lane, multiples) = (&mut buffers.lane[..count], &mut buffers.multiples[..count]);
        lanes::widen(*weight, source, values);
        let divisors = Divisors {
            factors: &buffers.chosen.factor[..groups],
            wide: &buffers.chosen.wide[..groups],
            multiplier: buffers.chosen.multiplier,
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

/// Sums over the errors of a segment in float64, for errors or squares too small or too large for float32. The segment
/// was encoded without sums, so that the multiples of its scales are there.
pub(super) struct Float64Errors<'a> {
    pub(super) encoder: &'a Encoder,
    pub(super) buffers: &'a EncodeBuffers,
    /// Number of values.
    pub(super) count: usize,
    /// Number of values in a group.
    pub(super) size: usize,
}

/// Number of partial sums that are kept side by side, so that the loop vectorizes.
const LANES: usize = 8;

/// The sums of all values.
pub(super) struct Float64Sums {
    pub(super) signal: f64,
    pub(super) noise: f64,
    /// The largest magnitude.
    pub(super) largest: f64,
}

impl Float64Errors<'_> {
    /// Returns the scale and the offset of a group.
    #[inline(always)]
    fn group(&self, at: usize) -> [f64; 2] {
        let Encoder { chooser, division, .. } = self.encoder;
        let chosen = &self.buffers.chosen;
        let offset = if division.has_offsets { chooser.store(chosen.zero[at]) } else { 0.0 };
        [chosen.scale[at], offset].map(f64::from)
    }

    /// Returns the index of the first value with an error of this size.
    pub(super) fn position(&self, largest: f64) -> Option<usize> {
        let (values, multiples) = (&self.buffers.values[..self.count], &self.buffers.multiples);
        let mut pairs = values.iter().zip(multiples).enumerate();
        pairs.position(|(at, (value, multiple))| error(*value, *multiple, self.group(at / self.size)).abs() == largest)
    }
}

#[inline(always)]
fn error(value: f32, multiple: f32, [scale, offset]: [f64; 2]) -> f64 {
    f64::from(value) - (f64::from(multiple) * scale + offset)
}

impl Loop for &Float64Errors<'_> {
    type Result = Float64Sums;

    #[inline(always)]
    fn run(self) -> Float64Sums {
        let (mut signal, mut noise, mut largest) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let (values, multiples) = (&self.buffers.values[..self.count], &self.buffers.multiples[..self.count]);
        for (at, (values, multiples)) in values.chunks(self.size).zip(multiples.chunks(self.size)).enumerate() {
            let group = self.group(at);
            let mut add = |lane: usize, value: f32, multiple: f32| {
                let (value, error) = (f64::from(value), error(value, multiple, group).abs());
                signal[lane] += value * value;
                noise[lane] += error * error;
                largest[lane] = if error > largest[lane] { error } else { largest[lane] };
            };
            let ((values, last), (multiples, last_multiples)) =
                (values.as_chunks::<LANES>(), multiples.as_chunks::<LANES>());
            for (values, multiples) in values.iter().zip(multiples) {
                for lane in 0..LANES {
                    add(lane, values[lane], multiples[lane]);
                }
            }
            for (lane, (value, multiple)) in last.iter().zip(last_multiples).enumerate() {
                add(lane, *value, *multiple);
            }
        }
        let largest = largest.into_iter().fold(0.0, f64::max);
        Float64Sums { signal: signal.into_iter().sum(), noise: noise.into_iter().sum(), largest }
    }
}
