//! Searches for the scale with the least squared error in its group.

use super::super::rules::ScaleRule;
use super::choose::Chooser;
use super::lanes::{self, CodeRounding, Division, Divisors};
use super::rounding::{WeightType, power_of_two};
use super::scale::GroupScale;

/// Values that are encoded together.
const PIECE: usize = 128;
/// Partial sums that are kept side by side.
const LANES: usize = 8;

/// Tries scales for groups of values.
#[derive(Clone, Debug)]
pub(super) struct ScaleSearch {
    /// The numbers of the codes of E4M3 without sign: the block scales of NVFP4 before the global scale applies.
    blocks: [f32; 127],
}

/// One group, and how its values become codes.
#[derive(Clone, Copy)]
pub(super) struct SearchGroup<'a> {
    pub(super) weight: WeightType,
    /// The stored values.
    pub(super) bytes: &'a [u8],
    /// The largest magnitude.
    pub(super) amax: f32,
    /// The lowest and the highest value, if the codes have zero points.
    pub(super) bounds: [f32; 2],
    pub(super) chooser: &'a Chooser,
    pub(super) division: Division,
    pub(super) rounding: &'a CodeRounding,
    pub(super) global: f32,
}

impl ScaleSearch {
    /// `None` for rules whose scales are not searched.
    pub(super) fn new(chooser: &Chooser, code_bits: u32) -> Option<Self> {
        let is_known = match chooser.rule {
            ScaleRule::GlobalDivisor | ScaleRule::GlobalMultiplier | ScaleRule::GlobalPadded => true,
            ScaleRule::HalfStep | ScaleRule::Floor | ScaleRule::Ceiling => code_bits == 4,
            ScaleRule::Epsilon => code_bits < 8 && !chooser.is_tensor,
            _ => false,
        };
        let number = |code: usize| match code >> 3 {
            0 => code as f32 * power_of_two(-9),
            exponent => (8 + code % 8) as f32 * power_of_two(exponent as i32 - 10),
        };
        is_known.then(|| Self { blocks: std::array::from_fn(number) })
    }

    /// The scale with the least error; of two equally good scales, the larger. `chosen` if all values are 0.
    #[inline(always)]
    pub(super) fn best(&self, group: &SearchGroup, chosen: GroupScale) -> GroupScale {
        if group.amax == 0.0 || !group.amax.is_finite() {
            return chosen;
        }
        let mut best = Best { scale: chosen, error: f64::INFINITY };
        match group.chooser.rule {
            ScaleRule::GlobalDivisor | ScaleRule::GlobalMultiplier | ScaleRule::GlobalPadded => {
                self.blocks(group, &mut best);
            }
            ScaleRule::Epsilon => {
                // The candidates of llm-compressor's `memoryless_mse`: from amax down to 0.81 of it, in steps of 0.01.
                for step in 0..20_u8 {
                    let part = f32::from(100 - step) / 100.0;
                    best.take(group, group.chooser.shrunk(group.amax, group.bounds, part));
                }
            }
            _ => {
                for exponent in [1, 0, -1] {
                    best.take(group, group.chooser.moved(&chosen, exponent));
                }
            }
        }
        best.scale
    }

    /// Tries the E4M3 scales downwards, from the largest for which a code other than 0 is possible, until clipping the
    /// largest value alone costs more than the best scale.
    #[inline(always)]
    fn blocks(&self, group: &SearchGroup, best: &mut Best) {
        let amax = f64::from(group.amax);
        let scale_of = |code: usize| group.chooser.of_block(code as u32, self.blocks[code], group.global);
        let end = self.blocks.partition_point(|block| {
            let scale = group.chooser.of_block(0, *block, group.global).scale;
            f64::from(scale) <= 4.0 * amax
        });
        for code in (1..end).rev() {
            let scale = scale_of(code);
            let cut = amax - 6.0 * f64::from(scale.scale);
            if cut > 0.0 && cut * cut * (1.0 - 1e-9) > best.error {
                break;
            }
            best.take(group, scale);
        }
    }
}

/// The best scale so far.
struct Best {
    scale: GroupScale,
    error: f64,
}

impl Best {
    /// Takes a scale if its error is smaller. Callers try the largest scale first, so that it wins a tie.
    #[inline(always)]
    fn take(&mut self, group: &SearchGroup, scale: GroupScale) {
        if scale.scale > 0.0 {
            let error = error_of(group, &scale);
            if error < self.error {
                *self = Self { scale, error };
            }
        }
    }
}

/// The squared error of a group in float64. Each value is always added to the same partial sum, so that the result is
/// the same for every instruction set.
#[inline(always)]
fn error_of(group: &SearchGroup, scale: &GroupScale) -> f64 {
    let width = if group.weight == WeightType::Float32 { 4 } else { 2 };
    let (mut values, mut numbers, mut multiples, mut codes) = ([0.0; PIECE], [0.0; PIECE], [0.0; PIECE], [0; PIECE]);
    let mut sums = [0.0; LANES];
    let factor = if group.chooser.is_exact { scale.wide } else { f64::from(scale.scale) };
    for bytes in group.bytes.chunks(PIECE * width) {
        let count = bytes.len() / width;
        let values = &mut values[..count];
        lanes::widen(group.weight, bytes, values);
        let divisors = Divisors { factors: &[scale.factor], wide: &[scale.wide], zeros: &[scale.zero], size: count };
        lanes::divide(values, &divisors, group.division, &mut multiples[..count], &mut numbers[..count]);
        lanes::round(group.rounding, &numbers[..count], &mut codes[..count], &mut multiples[..count]);
        for (values, multiples) in values.chunks(LANES).zip(multiples[..count].chunks(LANES)) {
            for ((value, multiple), sum) in values.iter().zip(multiples).zip(&mut sums) {
                let error = f64::from(*value) - (f64::from(*multiple) - f64::from(scale.zero)) * factor;
                *sum += error * error;
            }
        }
    }
    sums.into_iter().sum()
}
