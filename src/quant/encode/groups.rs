//! Chooses the scales of many groups.

use super::super::rules::ScaleRule;
use super::choose::Chooser;
use super::rounding::WeightType;
use super::scale::{ChosenScales, ScaleLanes, WIDTH};
use crate::kernel::Loop;

/// Chooses the scales of groups, of which `amax` are the largest magnitudes, and `bounds` the lowest and highest values,
/// which matter for groups with zero points.
pub(super) struct Choose<'a> {
    pub(super) chooser: &'a Chooser,
    /// For so many groups that they fill whole chunks of [`WIDTH`].
    pub(super) amax: &'a [u32],
    /// How many groups there are.
    pub(super) count: usize,
    pub(super) bounds: &'a [[f32; 2]],
    pub(super) global: f32,
    pub(super) out: &'a mut ChosenScales,
}

impl Loop for Choose<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { chooser, amax, count, bounds, global, out } = self;
        if chooser.is_exact || chooser.zero_bits.is_some() || chooser.rule == ScaleRule::Linear {
            for (at, amax) in amax[..count].iter().enumerate() {
                let bounds = bounds.get(at).copied().unwrap_or_default();
                out.set(at, &chooser.one(f32::from_bits(*amax), bounds, global));
            }
            return;
        }
        // A loop for each rule and type, as a macro: a closure might not be compiled for the chosen instruction set. Each
        // fills arrays, of which the compiler knows that they do not overlap.
        macro_rules! each {
            ($rule:ident) => {
                match chooser.weight {
                    WeightType::Float32 => each!($rule, Float32),
                    WeightType::Bfloat16 => each!($rule, Bfloat16),
                    WeightType::Float16 => each!($rule, Float16),
                }
            };
            ($rule:ident, $weight:ident) => {{
                let chooser = Chooser { rule: ScaleRule::$rule, weight: WeightType::$weight, ..*chooser };
                // The last groups come with others, whose scales nobody reads.
                for (chunk, bits) in amax.as_chunks::<WIDTH>().0.iter().enumerate() {
                    let (bits, mut lanes) = (*bits, ScaleLanes::default());
                    for at in 0..WIDTH {
                        lanes.set(at, &chooser.scale_of(f32::from_bits(bits[at]), global));
                    }
                    out.take(chunk, &lanes);
                }
            }};
        }
        match chooser.rule {
            ScaleRule::Epsilon => each!(Epsilon),
            ScaleRule::Reciprocal => each!(Reciprocal),
            ScaleRule::Bounded => each!(Bounded),
            ScaleRule::Inverse => each!(Inverse),
            ScaleRule::Plain | ScaleRule::Linear => each!(Plain, Float32),
            ScaleRule::GlobalDivisor => each!(GlobalDivisor),
            ScaleRule::GlobalMultiplier => each!(GlobalMultiplier, Float32),
            ScaleRule::GlobalPadded => each!(GlobalPadded, Float32),
            ScaleRule::HalfStep => each!(HalfStep),
            ScaleRule::Floor => each!(Floor, Float32),
            ScaleRule::Ceiling => each!(Ceiling, Float32),
            ScaleRule::CeilingOrZero => each!(CeilingOrZero, Float32),
        }
    }
}
