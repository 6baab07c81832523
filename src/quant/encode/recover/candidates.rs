//! The scales that values may have been decoded with, the most likely first, judging by their largest magnitude.
//!
//! A library computed the scale from the largest magnitude of the original values, which is unknown. The value of the
//! largest code is known, so the scale is among the few numbers near that value divided by the largest code.

use super::super::super::layout::Exponents;
use super::super::super::rules::{Least, Power};
use super::super::choose::Chooser;
use super::super::rounding::WeightType;
use crate::dtype::Dtype;
use crate::kernel::half::{FLOAT16, bfloat16, bfloat16_bits, float16};

/// The stored scale of a group (see `GroupScale::stored`), and its zero point.
pub(super) type StoredScale = (u32, f32);

/// Number of candidates on either side of a quotient.
const AROUND: i32 = 3;

/// Candidates for the scales of groups.
pub(super) struct ScaleCandidates {
    /// Computes scales from a largest magnitude, as the library does. Its `weight` is the type of the original values.
    pub(super) chooser: Chooser,
    pub(super) exponents: Exponents,
    kind: CandidateKind,
}

/// The source of candidates.
enum CandidateKind {
    /// The scale of the rule for each number around the largest magnitude of the values, as the largest magnitude of
    /// the original; then the numbers around the quotient with the largest code.
    RuleAndQuotients,
    /// The numbers around the quotients with these codes.
    Quotients(Vec<f32>),
    /// The power of two of the rule and its neighbours.
    Exponents,
    /// The E4M3 number nearest to the quotient with each code other than 0.
    Blocks,
}

impl CandidateKind {
    fn of_quotients(codes: &[f32]) -> Self {
        Self::Quotients(codes.iter().copied().filter(|code| *code > 0.0).collect())
    }
}

impl ScaleCandidates {
    /// Creates candidates for scales that a rule chose. `half` is half the number of codes if these are integers.
    pub(super) fn new(chooser: Chooser, exponents: Exponents, half: Option<f32>) -> Self {
        let kind = match (chooser.rule.least, half) {
            _ if chooser.power().is_some() => CandidateKind::Exponents,
            _ if chooser.rule.global.is_some() => CandidateKind::Blocks,
            // The distance between the lowest and the highest code, or the magnitude of one of them.
            (Least::Epsilon, Some(half)) if chooser.has_zero_points => {
                let all = 2.0 * half;
                CandidateKind::of_quotients(&[all - 1.0, all - 2.0, all, all - 3.0])
            }
            (Least::Epsilon, Some(half)) => CandidateKind::of_quotients(&[half, half - 1.0, half - 2.0]),
            (Least::Epsilon, None) => CandidateKind::of_quotients(&[chooser.largest]),
            _ => CandidateKind::RuleAndQuotients,
        };
        Self { chooser, exponents, kind }
    }

    /// Returns the scale as the decoder reads it.
    #[inline(always)]
    pub(super) fn number(&self, stored: u32) -> f32 {
        match self.chooser.stored {
            Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 => f32::from_bits(stored),
            Dtype::Float8E4M3FN => self.chooser.e4m3.number(stored),
            _ if stored == 0 && self.exponents == Exponents::Zero => 0.0,
            _ if stored == 0 => f32::from_bits(0x0040_0000),
            _ => f32::from_bits(stored << 23),
        }
    }

    /// Returns the first scale that passes the test for a group with this largest magnitude, or these bounds with zero
    /// points.
    #[inline(always)]
    pub(super) fn find(
        &self,
        top: f32,
        bounds: [f32; 2],
        global: f32,
        mut test: impl FnMut(StoredScale) -> bool,
    ) -> Option<StoredScale> {
        let mut first = |scale: StoredScale| test(scale).then_some(scale);
        if top == 0.0 {
            return first(self.by_rule(0.0, global));
        }
        match &self.kind {
            CandidateKind::RuleAndQuotients => {
                let mut rules = self.around(top).map(|top| self.by_rule(top, global));
                rules
                    .find_map(&mut first)
                    .or_else(|| self.around(top / self.chooser.largest).find_map(|scale| first((scale.to_bits(), 0.0))))
            }
            CandidateKind::Quotients(codes) => {
                let [low, high] = [bounds[0].min(0.0), bounds[1].max(0.0)];
                let span = if self.chooser.zero_bits().is_some() { high - low } else { top };
                let scales = codes.iter().flat_map(|code| self.around(span / code));
                let mut scales = scales.filter(|scale| *scale > 0.0 && scale.is_finite());
                scales.find_map(|scale| first((scale.to_bits(), self.zero_point(low, scale))))
            }
            CandidateKind::Exponents => {
                let (rule, _) = self.by_rule(top, global);
                // The scales of ModelOpt's MXFP4 are large enough for codes above 3. If the largest code is 3, the rule
                // finds half of the scale, and all codes are doubled, which hardly happens by chance.
                let is_three = self.chooser.rule.power == Some(Power::Ceiling)
                    && self.chooser.largest == 6.0
                    && top.to_bits() & 0x7f_ffff == 0x40_0000;
                let moves = if is_three { [1, 0, -1] } else { [0, 1, -1] };
                let exponents = moves.into_iter().filter_map(|by| rule.checked_add_signed(by));
                exponents.filter(|exponent| *exponent < 255).find_map(|exponent| first((exponent, 0.0)))
            }
            CandidateKind::Blocks => {
                let unit = self.chooser.of_block(0x38, 1.0, global).scale;
                // A library chooses scales for which the largest code is 6, or 4 if the scale was rounded up.
                [6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.5].into_iter().find_map(|code: f32| {
                    let (block, _) = self.chooser.e4m3.round(top / code / unit);
                    if block == 0 { None } else { first((block, 0.0)) }
                })
            }
        }
    }

    /// Returns candidates for the global scale of weights with this largest magnitude.
    pub(super) fn globals(&self, top: f32) -> Vec<f32> {
        let mut globals: Vec<f32> = Vec::new();
        let by_rule = self.around(top).map(|top| self.chooser.global(top.into()));
        for global in by_rule.chain(self.around(self.chooser.global(top.into()))) {
            if global > 0.0 && global.is_finite() && !globals.contains(&global) {
                globals.push(global);
            }
        }
        // If all values are 0, the library uses the first.
        globals.truncate(if top == 0.0 { 1 } else { usize::MAX });
        globals
    }

    /// Returns the library's zero point for a group with this scale and lowest value; 0 if there is none.
    #[inline(always)]
    fn zero_point(&self, low: f32, scale: f32) -> f32 {
        let Some(bits) = self.chooser.zero_bits() else { return 0.0 };
        let (round, half) = (|value: f32| self.chooser.weight.round(value), (1_u32 << (bits - 1)) as f32);
        Chooser::bounded_zero(round(-half - round(low / scale)), -half, half - 1.0)
    }

    /// Returns the scale that the library chooses.
    #[inline(always)]
    fn by_rule(&self, top: f32, global: f32) -> StoredScale {
        let scale = self.chooser.one(top, [0.0, top], global);
        (scale.stored, scale.zero)
    }

    /// Returns the numbers around a number in the type of the original values, the nearest first.
    #[inline(always)]
    fn around(&self, number: f32) -> impl Iterator<Item = f32> + use<> {
        let origin = self.chooser.weight;
        let steps = (0..=2 * AROUND).map(|at| if at % 2 == 1 { (at + 1) / 2 } else { -at / 2 });
        steps.map(move |step| {
            let moved = |bits: u32| bits.saturating_add_signed(step);
            match origin {
                WeightType::Float32 => f32::from_bits(moved(number.to_bits())),
                WeightType::Bfloat16 => bfloat16(moved(bfloat16_bits(origin.round(number)).into()) as u16),
                WeightType::Float16 => float16(moved(FLOAT16.round(number).0) as u16),
            }
        })
    }
}
