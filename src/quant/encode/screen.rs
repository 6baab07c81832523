//! Screens many scales for those that may have the least squared error in a group.
//!
//! The errors are computed in float32, for [`BATCH`] scales side by side. They are so near to the exact errors that the
//! error of the best scale is hardly above the least. Only scales with such errors need exact errors.

use super::encoder::Encoder;
use super::lanes::{self, CodeRounding, RAISED};
use super::rounding::{WeightType, power_of_two};
use super::scale::GroupScale;
use crate::kernel::Minifloat;
use crate::kernel::half::{to_bfloat16, to_float16};

/// Number of scales that are tried at a time.
const BATCH: usize = 16;
/// Number of values that are widened at a time.
const PIECE: usize = 16;
/// Largest number of scales of a group.
const MOST: usize = 128;
/// Largest number of values of a screened group: longer sums of squares are not precise in float32.
const LONGEST: usize = 1024;

/// One group, and the encoder of its values.
#[derive(Clone, Copy)]
pub(super) struct SearchGroup<'a> {
    pub(super) encoder: &'a Encoder,
    pub(super) bytes: &'a [u8],
    pub(super) amax: f32,
    /// The lowest and the highest value, if the codes have zero points.
    pub(super) bounds: [f32; 2],
    pub(super) global: f32,
}

/// The result for some scales.
pub(super) struct Screened {
    errors: [f32; MOST],
    /// The largest error that the best scale can have here.
    limit: f32,
}

/// Scales, and the reciprocals that values are multiplied by.
#[derive(Clone, Copy)]
struct Batch {
    scales: [f32; BATCH],
    inverses: [f32; BATCH],
    zeros: [f32; BATCH],
}

impl Screened {
    /// Screens the scales that `candidate` returns for the numbers below `count`. `is_last` is true if the error of
    /// clipped values grows with each scale after this one.
    #[inline(always)]
    pub(super) fn new(
        group: &SearchGroup,
        count: usize,
        candidate: impl Fn(usize) -> GroupScale,
        is_last: impl Fn(&GroupScale) -> bool,
    ) -> Self {
        let width = group.encoder.weight.bytes();
        let values = group.bytes.len() / width;
        let is_ordinary = group.amax > power_of_two(-40) && group.amax < power_of_two(40);
        let mut this = Self { errors: [0.0; MOST], limit: f32::INFINITY };
        if !(BATCH..=MOST).contains(&count) || !is_ordinary || values > LONGEST || group.encoder.chooser.is_exact {
            return this;
        }
        this.errors = [f32::INFINITY; MOST];
        // The largest deviation of the norm of the errors: each value or product is at most twice the largest
        // magnitude, and rounding moves it by at most 2^-24 of that.
        let slack = (values as f32).sqrt() * group.amax * power_of_two(-20);
        let (mut least, mut first) = (f32::INFINITY, 0);
        while first < count {
            let mut batch = Batch { scales: [1.0; BATCH], inverses: [0.0; BATCH], zeros: [0.0; BATCH] };
            let here = BATCH.min(count - first);
            for at in 0..here {
                let scale = candidate(first + at);
                batch.scales[at] = scale.scale;
                batch.inverses[at] = 1.0 / scale.factor;
                batch.zeros[at] = scale.zero;
            }
            let errors = batch.errors(group);
            for (at, &error) in errors.iter().take(here).enumerate() {
                if batch.scales[at] > 0.0 {
                    this.errors[first + at] = error;
                    least = least.min(error);
                }
            }
            first += BATCH;
            let next = candidate(first.min(count - 1));
            let clipped = group.amax - 6.0 * next.scale;
            if is_last(&next) && clipped > least.sqrt() * 1.001 + slack {
                break;
            }
        }
        let norm = least.sqrt() * 1.0001 + 2.0 * slack;
        this.limit = norm * norm * 1.0001;
        this
    }

    /// True if the scale with this number may be the best.
    #[inline(always)]
    pub(super) fn is_likely(&self, step: usize) -> bool {
        self.errors[step] <= self.limit
    }
}

impl Batch {
    /// Computes the squared error of a group with each scale.
    #[inline(always)]
    fn errors(&self, group: &SearchGroup) -> [f32; BATCH] {
        match (group.encoder.rounding, group.encoder.division.rounding) {
            (CodeRounding::Float { float, .. }, _) => {
                self.sums(group, move |value, inverse, _| float_of(float, value * inverse))
            }
            (CodeRounding::Int { low, high, .. }, WeightType::Float32) => {
                self.sums(group, move |value, inverse, zero| integer_of(value * inverse + zero, [low, high]) - zero)
            }
            (CodeRounding::Int { low, high, .. }, WeightType::Bfloat16) => {
                self.sums(group, move |value, inverse, zero| {
                    integer_of(to_bfloat16(to_bfloat16(value * inverse) + zero), [low, high]) - zero
                })
            }
            (CodeRounding::Int { low, high, .. }, WeightType::Float16) => {
                self.sums(group, move |value, inverse, zero| {
                    integer_of(to_float16(to_float16(value * inverse) + zero), [low, high]) - zero
                })
            }
        }
    }

    #[inline(always)]
    fn sums(&self, group: &SearchGroup, multiple: impl Fn(f32, f32, f32) -> f32) -> [f32; BATCH] {
        let Self { scales, inverses, zeros } = *self;
        let width = group.encoder.weight.bytes();
        let mut sums = [0.0; BATCH];
        for bytes in group.bytes.chunks(PIECE * width) {
            let mut values = [0.0; PIECE];
            lanes::widen(group.encoder.weight, bytes, &mut values[..bytes.len() / width]);
            for value in values {
                for at in 0..BATCH {
                    let error = value - multiple(value, inverses[at], zeros[at]) * scales[at];
                    sums[at] += error * error;
                }
            }
        }
        sums
    }
}

/// Returns the number of the nearest code.
#[inline(always)]
fn float_of(float: Minifloat, number: f32) -> f32 {
    float.round(number.abs()).1.copysign(number)
}

#[inline(always)]
fn integer_of(number: f32, [low, high]: [f32; 2]) -> f32 {
    let above = if number > low { number } else { low };
    (if above < high { above } else { high }) + RAISED - RAISED
}
