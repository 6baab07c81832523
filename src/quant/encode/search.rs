//! Searches for the scale with the least squared error in its group.

use super::encoder::Encoder;
use super::lanes::{self, Divisors};
use super::scale::GroupScale;
use super::screen::{Screened, SearchGroup};
use crate::kernel::Loop;

/// Number of values that are encoded together.
const PIECE: usize = 16;
/// Number of partial sums that are kept side by side.
const LANES: usize = 8;

/// The search for the scale of one group.
pub(super) struct FindScale<'a> {
    pub(super) group: SearchGroup<'a>,
    pub(super) chosen: GroupScale,
}

impl Loop for FindScale<'_> {
    type Result = GroupScale;

    #[inline(always)]
    fn run(self) -> GroupScale {
        self.group.best(self.chosen)
    }
}

impl SearchGroup<'_> {
    /// Returns the scale with the least error; of two equally good scales, the larger. Returns `chosen` if all values
    /// are 0.
    #[inline(always)]
    pub(super) fn best(&self, chosen: GroupScale) -> GroupScale {
        self.best_of(chosen, true)
    }

    /// Like [`SearchGroup::best`], with or without screening; the result is the same.
    #[inline(always)]
    fn best_of(&self, chosen: GroupScale, is_screened: bool) -> GroupScale {
        let SearchGroup { encoder: Encoder { chooser, .. }, amax, bounds, global, .. } = *self;
        if amax == 0.0 || !amax.is_finite() {
            return chosen;
        }
        let block = |code: u32| chooser.of_block(code, chooser.e4m3.number(code), global);
        let (is_block, is_power) = (chooser.rule.global.is_some(), chooser.power().is_some());
        // The largest scales come first, so that the larger of two equally good scales wins.
        let count = if is_block {
            // E4M3 scales downwards, from the largest scale for which a code other than 0 is possible.
            let is_possible = |code: u32| f64::from(block(code).scale) <= 4.0 * f64::from(amax);
            let mut possible = 0;
            for codes in [64, 32, 16, 8, 4, 2, 1] {
                possible += if is_possible(possible + codes - 1) { codes } else { 0 };
            }
            possible.saturating_sub(1) as usize
        } else {
            // The candidates of llm-compressor's `memoryless_mse`: from amax down to 0.81 of it, in steps of 0.01.
            if is_power { 3 } else { 20 }
        };
        let candidate = |step: usize| {
            if is_block {
                block((count - step) as u32)
            } else if is_power {
                chooser.moved(&chosen, 1 - step as i32)
            } else {
                chooser.shrunk(amax, bounds, (100 - step) as f32 / 100.0)
            }
        };
        // The error of clipping the largest value alone; smaller scales have larger errors.
        let cut = |scale: &GroupScale| f64::from(amax) - 6.0 * f64::from(scale.scale);
        let screened = Screened::new(self, count, candidate, |scale| is_block && cut(scale) > 0.0);
        let (mut best, mut least) = (chosen, f64::INFINITY);
        for step in (0..count).filter(|step| !is_screened || screened.is_likely(*step)) {
            let scale = candidate(step);
            let cut = cut(&scale);
            if is_block && cut > 0.0 && cut * cut * (1.0 - 1e-9) > least {
                break;
            }
            if scale.scale > 0.0 {
                let error = error_of(self, &scale);
                if error < least {
                    (best, least) = (scale, error);
                }
            }
        }
        best
    }
}

/// Computes the squared error of a group in float64. Each value is always added to the same partial sum, so that the
/// result is the same for every instruction set.
#[inline(always)]
fn error_of(group: &SearchGroup, scale: &GroupScale) -> f64 {
    let Encoder { weight, chooser, division, rounding, .. } = group.encoder;
    let width = weight.bytes();
    let mut sums = [0.0; LANES];
    let multiplier = chooser.multiplier(group.global);
    let factor = if chooser.is_exact { scale.wide / multiplier } else { f64::from(scale.scale) };
    for bytes in group.bytes.chunks(PIECE * width) {
        // Loops of a fixed length; a missing value is 0, and so is its error.
        let mut stored = [0; 4 * PIECE];
        stored[..bytes.len()].copy_from_slice(bytes);
        let (mut values, mut numbers, mut multiples, mut codes) =
            ([0.0; PIECE], [0.0; PIECE], [0.0; PIECE], [0; PIECE]);
        lanes::widen(*weight, &stored, &mut values);
        let divisors =
            Divisors { factors: &[scale.factor], wide: &[scale.wide], multiplier, zeros: &[scale.zero], size: PIECE };
        lanes::divide(&values, &divisors, *division, &mut multiples, &mut numbers);
        lanes::round(rounding, &numbers, &mut codes, &mut multiples);
        for (values, multiples) in values.as_chunks::<LANES>().0.iter().zip(multiples.as_chunks::<LANES>().0) {
            for at in 0..LANES {
                let multiple = f64::from(multiples[at]) - f64::from(scale.zero);
                let error = f64::from(values[at]) - multiple * factor;
                sums[at] += error * error;
            }
        }
    }
    sums.into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::super::scale::ScaleLanes;
    use super::*;
    use crate::dtype::Dtype;
    use crate::quant::encode::{EncodeOptions, Encoder, ScaleChoice};
    use crate::quant::{Arithmetic, SCHEMES};
    use crate::random::random;
    use half::{bf16, f16};

    fn stored(source: Dtype, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let of = |value: &f32| match source {
            Dtype::Bfloat16 => (bf16::from_f32(*value).to_le_bytes().to_vec(), bf16::from_f32(*value).to_f32()),
            Dtype::Float16 => (f16::from_f32(*value).to_le_bytes().to_vec(), f16::from_f32(*value).to_f32()),
            _ => (value.to_le_bytes().to_vec(), *value),
        };
        let (bytes, values): (Vec<_>, Vec<_>) = values.iter().map(of).unzip();
        (bytes.concat(), values)
    }

    #[test]
    fn screening_finds_the_scale_that_trying_all_of_them_finds() {
        let mut next = random(1);
        let mut random = move |below: u64| next() % below;
        for (scheme, layout) in SCHEMES.iter().flat_map(|scheme| scheme.layouts.iter().map(move |row| (scheme, row))) {
            for source in [Dtype::Bfloat16, Dtype::Float16, Dtype::Float32] {
                for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
                    let options = EncodeOptions { arithmetic, scale: ScaleChoice::Mse, ..EncodeOptions::default() };
                    let encoder = Encoder::new(layout.row, &layout.grid, &[16, 256], source, options);
                    let Ok(encoder) = encoder else { continue };
                    let size = encoder.geometry.block[1] as usize;
                    for round in 0..300 {
                        // Values like weights, few distinct values, halves of a step, and a single large value.
                        let unit = [0.02, 1.0, 3.0e-4, 7.0][round % 4];
                        let value = |at: usize, random: &mut dyn FnMut(u64) -> u64| match round % 5 {
                            0 => random(25) as f32 * 0.25 - 3.0,
                            1 => random(13) as f32 - 6.0,
                            2 if at > 0 => (random(1 << 12) as f32 - 2048.0) * 1e-5,
                            _ => (0..4).map(|_| random(1 << 16) as f32 / 32768.0 - 1.0).sum(),
                        };
                        let values: Vec<f32> = (0..size).map(|at| unit * value(at, &mut random)).collect();
                        let (bytes, values) = stored(source, &values);
                        let amax = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
                        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let global = encoder.chooser.global(f64::from(amax) * 1.5);
                        let group = SearchGroup { encoder: &encoder, bytes: &bytes, amax, bounds: [low, high], global };
                        let chosen = ScaleLanes::of_exponents(&[-3]).group(0);
                        let [found, tried] = [true, false].map(|is_screened| group.best_of(chosen, is_screened));
                        let place = format!("{} {} {source} {arithmetic:?} {values:?}", scheme.name, layout.name);
                        assert_eq!((found.stored, found.scale), (tried.stored, tried.scale), "{place}");
                    }
                }
            }
        }
    }
}
