//! Chooses the scales of many groups.

use super::choose::Chooser;
use super::formula::{BlockFormula, BoundsFormula, Formula, NumberFormula, PowerFormula};
use super::rounding::WeightType;
use super::scale::{ChosenScales, ScaleLanes, WIDTH};
use crate::kernel::Loop;

/// Chooses the scales of groups. `amax` holds their largest magnitudes, and `bounds` their lowest and highest values,
/// which only zero points need.
pub(super) struct Choose<'a> {
    pub(super) chooser: &'a Chooser,
    /// One for each group, padded to whole chunks of [`WIDTH`].
    pub(super) amax: &'a [u32],
    /// Number of groups.
    pub(super) count: usize,
    /// For rules with bounds, with the length of `amax`.
    pub(super) bounds: &'a [[f32; 2]],
    pub(super) global: f32,
    pub(super) out: &'a mut ChosenScales,
}

impl Loop for Choose<'_> {
    type Result = ();

    #[inline(always)]
    fn run(self) {
        let Self { chooser, amax, count, bounds, global, out } = self;
        out.multiplier = chooser.multiplier(global);
        let has_number = matches!(
            chooser.formula,
            Formula::Bounds(
                BoundsFormula::ZeroPoint(_)
                    | BoundsFormula::Centered(_)
                    | BoundsFormula::Unsigned(_)
                    | BoundsFormula::SignedTable
                    | BoundsFormula::ShiftedTable
            ) | Formula::Number(
                NumberFormula::Floored(_) | NumberFormula::FlooredInType(_) | NumberFormula::FlooredBesideType(_)
            )
        );
        if chooser.is_exact || has_number {
            for (at, amax) in amax[..count].iter().enumerate() {
                let bounds = bounds.get(at).copied().unwrap_or_default();
                out.set(at, &chooser.one(f32::from_bits(*amax), bounds, global));
            }
            return;
        }
        // A loop for each formula and type, as macros: a closure might not be compiled for the chosen instruction set.
        // Each fills arrays, which the compiler knows do not overlap.
        macro_rules! fill {
            ($groups:expr, $group:ident => $scale:expr) => {
                // The last chunk is padded with groups whose scales are never read.
                for (chunk, groups) in $groups.as_chunks::<WIDTH>().0.iter().enumerate() {
                    let (groups, mut lanes) = (*groups, ScaleLanes::default());
                    for at in 0..WIDTH {
                        let $group = groups[at];
                        lanes.set(at, &$scale);
                    }
                    out.take(chunk, &lanes);
                }
            };
        }
        macro_rules! each {
            ($family:ident, $case:path, $weight:ident) => {{
                let formula = Formula::$family($case);
                let chooser = Chooser { formula, weight: WeightType::$weight, ..*chooser };
                if formula.has_bounds() {
                    fill!(bounds, bounds => chooser.scale_of(0.0, bounds, global))
                } else {
                    fill!(amax, bits => chooser.scale_of(f32::from_bits(bits), [0.0; 2], global))
                }
            }};
            ($family:ident, $case:path) => {
                match chooser.weight {
                    WeightType::Float32 => each!($family, $case, Float32),
                    WeightType::Bfloat16 => each!($family, $case, Bfloat16),
                    WeightType::Float16 => each!($family, $case, Float16),
                }
            };
        }
        // Formulas that do not depend on the dtype of the weight have one loop.
        match chooser.formula {
            Formula::Number(NumberFormula::Epsilon) => each!(Number, NumberFormula::Epsilon),
            Formula::Number(NumberFormula::Reciprocal) => each!(Number, NumberFormula::Reciprocal, Float32),
            Formula::Number(NumberFormula::Bounded) => each!(Number, NumberFormula::Bounded),
            Formula::Number(NumberFormula::Inverse) => each!(Number, NumberFormula::Inverse),
            Formula::Number(NumberFormula::Plain) => each!(Number, NumberFormula::Plain, Float32),
            Formula::Number(NumberFormula::Bfloat16) => each!(Number, NumberFormula::Bfloat16, Float32),
            Formula::Number(NumberFormula::Linear) => each!(Number, NumberFormula::Linear, Float32),
            Formula::Power(PowerFormula::HalfStep) => each!(Power, PowerFormula::HalfStep),
            Formula::Power(PowerFormula::Floor) => each!(Power, PowerFormula::Floor, Float32),
            Formula::Power(PowerFormula::Ceiling) => each!(Power, PowerFormula::Ceiling, Float32),
            Formula::Power(PowerFormula::CeilingOrZero) => each!(Power, PowerFormula::CeilingOrZero, Float32),
            Formula::Power(PowerFormula::CeilingOrOne) => each!(Power, PowerFormula::CeilingOrOne),
            Formula::Power(PowerFormula::Reciprocal) => each!(Power, PowerFormula::Reciprocal, Float32),
            Formula::Block(BlockFormula::Divisor) => each!(Block, BlockFormula::Divisor),
            Formula::Block(BlockFormula::Multiplier) => each!(Block, BlockFormula::Multiplier, Float32),
            Formula::Block(BlockFormula::Padded) => each!(Block, BlockFormula::Padded, Float32),
            Formula::Block(BlockFormula::Alone) => each!(Block, BlockFormula::Alone),
            Formula::Bounds(BoundsFormula::Affine) => each!(Bounds, BoundsFormula::Affine),
            Formula::Bounds(BoundsFormula::Signed) => each!(Bounds, BoundsFormula::Signed, Float32),
            Formula::Bounds(BoundsFormula::Shifted) => each!(Bounds, BoundsFormula::Shifted, Float32),
            Formula::Bounds(
                BoundsFormula::ZeroPoint(_)
                | BoundsFormula::Centered(_)
                | BoundsFormula::Unsigned(_)
                | BoundsFormula::SignedTable
                | BoundsFormula::ShiftedTable,
            )
            | Formula::Number(
                NumberFormula::Floored(_) | NumberFormula::FlooredInType(_) | NumberFormula::FlooredBesideType(_),
            ) => {
                unreachable!("done above")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::Group;
    use super::super::super::libraries::SCHEMES;
    use super::super::super::parts::LinearAxis;
    use super::super::scale::GroupScale;
    use super::super::{EncodeOptions, Encoder};
    use super::*;
    use crate::dtype::Dtype;
    use crate::kernel::Isa;

    #[test]
    fn scales_of_onnx_are_the_same_side_by_side_and_one_by_one() {
        // Zeros, tiny, ordinary and large numbers, of both signs.
        let numbers = [0.0_f32, -0.0, 1e-45, 3e-39, 1e-7, 0.3, 1.0, 7.5, 8.0, 65504.0, 3e38];
        let bounds: Vec<[f32; 2]> = numbers
            .iter()
            .flat_map(|low| numbers.iter().flat_map(|high| [[-*low, *high], [low.min(*high), low.max(*high)]]))
            .collect();
        let amax: Vec<u32> = bounds.iter().map(|[low, high]| low.abs().max(high.abs()).to_bits()).collect();
        let (bounds, amax) = (&bounds[..240], &amax[..240]);
        for stored in SCHEMES.iter().filter_map(|scheme| scheme.in_model(Some("onnx"))) {
            for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
                let block_size = if let Group::Neighbours(size) = stored.grid.group { size } else { 0 };
                let along = (&[64, 64][..], LinearAxis { axis: 0, block_size });
                let encoder =
                    Encoder::linear(stored.row, &stored.grid, along.0, along.1, dtype, EncodeOptions::default())
                        .unwrap();
                let chooser = &encoder.chooser;
                for isa in Isa::available() {
                    let mut out = ChosenScales::new(amax.len());
                    isa.run(Choose { chooser, amax, count: amax.len(), bounds, global: 1.0, out: &mut out });
                    for (at, (amax, bounds)) in amax.iter().zip(bounds).enumerate() {
                        let one = chooser.one(f32::from_bits(*amax), *bounds, 1.0);
                        let fields = |scale: &GroupScale| {
                            (scale.scale.to_bits(), scale.stored, scale.factor, scale.zero, scale.is_underflow)
                        };
                        assert_eq!(fields(&out.get(at)), fields(&one), "{} {dtype} {isa:?} {bounds:?}", stored.name);
                    }
                }
            }
        }
    }
}
