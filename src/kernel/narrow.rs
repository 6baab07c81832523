//! bfloat16 and float16 to floats of 8 bits and fewer, in lanes of 16 bits: twice as many elements in a vector as in
//! the float32 lane.
//!
//! A block in which a magnitude is beyond the range, infinite or NaN is left to the float32 lane.

use super::counts::{Counts, Loss};
use super::round::Rounding;
use super::tally::COUNTED;
use crate::dtype::{Class, Dtype, FloatFormat};

/// Bits below the last bit of a code, while it is rounded.
const BELOW: u32 = 9;

/// What a narrow source becomes, as the constants of the loop. With M mantissa bits of the target, `steps` is M + 2, and
/// E is the exponent field of the target's smallest normal number in the source.
#[derive(Clone, Copy)]
pub(super) struct Narrowing {
    is_float16: bool,
    /// Whether the target has the exponents of the source, so that a code is the upper half of it.
    is_upper_half: bool,
    steps: u16,
    /// E - `steps`.
    first: u16,
    /// E, at its place in the source.
    min_normal: u16,
    /// The largest source magnitude that stays in range.
    limit: i16,
    sign: u16,
    /// How far left the source's sign bit lies of the target's.
    sign_shift: u32,
    /// The source magnitudes from which on a mantissa is doubled once more.
    doublings: [i16; 5],
    /// The code of -0, in formats that have none.
    lacks: Option<u8>,
}

impl Narrowing {
    /// `None` for other types, and where the exponents of the source do not reach far enough below those of the target.
    pub(super) fn new(source: Dtype, target: Dtype, rounding: &Rounding) -> Option<Self> {
        let is_float16 = source == Dtype::Float16;
        let Class::Float(FloatFormat { mantissa_bits, bias, .. }) = target.class() else { return None };
        if target.bits() > 8 || !(is_float16 || source == Dtype::Bfloat16) {
            return None;
        }
        let steps = mantissa_bits as u16 + 2;
        let source_bias = if is_float16 { 15 } else { 127 };
        let is_upper_half = is_float16 && (mantissa_bits, bias) == (2, source_bias);
        let exponent = u16::try_from(source_bias + 1 - bias).ok();
        let exponent = if is_upper_half { steps } else { exponent.filter(|exponent| *exponent >= steps)? };
        // From float32; the limit is a normal number of the source.
        let limit = if is_float16 {
            (rounding.limit.saturating_sub(112 << 23) >> 13).min(0x7bff)
        } else {
            (rounding.limit >> 16).min(0x7f7f)
        };
        let sign = 1 << (target.bits() - 1);
        Some(Self {
            is_float16,
            is_upper_half,
            steps,
            first: exponent - steps,
            min_normal: if is_upper_half { u16::MAX } else { exponent << 7 },
            limit: limit as i16,
            sign,
            sign_shift: 15 - sign.trailing_zeros(),
            // More steps than the target needs begin beyond every number.
            doublings: [1, 2, 3, 4, 5]
                .map(|step| if step <= steps { ((exponent - steps + step) << 7) as i16 } else { i16::MAX }),
            lacks: rounding.lacks,
        })
    }

    /// Writes a code per byte. `None` where the block needs the rules in full; `codes` may then hold anything.
    /// `has_shifts` says whether the processor shifts each lane by a distance of its own.
    #[inline(always)]
    pub(super) fn encode(self, bytes: &[u8], codes: &mut [u8], has_shifts: bool) -> Option<Counts> {
        let bfloat16 = |magnitude: u16| magnitude;
        // Of float16's ten mantissa bits, three are rounded to odd: what is left decides every tie as before.
        let float16 = |magnitude: u16| magnitude >> 3 | u16::from(magnitude & 7 != 0);
        match (self.is_float16, has_shifts) {
            _ if self.is_upper_half => self.run(bytes, codes, bfloat16, |_, number, _| number << (BELOW - 8)),
            (false, true) => self.run(bytes, codes, bfloat16, Self::shifted),
            (false, false) => self.run(bytes, codes, bfloat16, Self::doubled),
            (true, true) => self.run(bytes, codes, float16, Self::shifted),
            (true, false) => self.run(bytes, codes, float16, Self::doubled),
        }
    }

    #[inline(always)]
    fn run(
        self,
        bytes: &[u8],
        codes: &mut [u8],
        source: impl Fn(u16) -> u16,
        align: impl Fn(Self, u16, u16) -> u16,
    ) -> Option<Counts> {
        // A block has no more elements than a u16 counts.
        let (mut largest, mut inexact, mut flushed) = (0_i16, 0_u16, 0_u16);
        for (bytes, result) in bytes.as_chunks().0.iter().zip(&mut *codes) {
            let bits = u16::from_le_bytes(*bytes);
            let magnitude = bits & 0x7fff;
            // Only signed numbers have a maximum in all instruction sets.
            largest = if magnitude as i16 > largest { magnitude as i16 } else { largest };
            // 1. Exponent and seven mantissa bits, as in bfloat16.
            let number = source(magnitude);
            let field = number & 0x7f80;
            // 2. The mantissa with its hidden bit, which zeros and subnormal numbers lack.
            let hidden = if (field as i16) < 0x80 { field } else { 0x80 };
            // 3. The code, with BELOW bits below it. Subnormal results are shifted less, and no bit is lost.
            let above = field.saturating_sub(self.min_normal) << self.steps;
            let code = align(self, number, number & 0x7f | hidden).wrapping_add(above);
            inexact = inexact.wrapping_add(u16::from(code & ((1 << BELOW) - 1) != 0));
            flushed = flushed.wrapping_add(u16::from(code.wrapping_sub(1) < 1 << (BELOW - 1)));
            // 4. To nearest, ties to even; a carry runs into the exponent.
            let rounded = code.wrapping_add((1 << (BELOW - 1)) - 1 + (code >> BELOW & 1)) >> BELOW;
            *result = (rounded | bits >> self.sign_shift & self.sign) as u8;
        }
        if largest > self.limit {
            return None;
        }
        if let Some(negative_zero) = self.lacks {
            for code in codes {
                *code = if *code == negative_zero { 0 } else { *code };
            }
        }
        let mut counts = Counts::default();
        if COUNTED {
            (counts[Loss::Inexact], counts[Loss::Flushed]) = (inexact.into(), flushed.into());
        }
        Some(counts)
    }

    /// A mantissa shifted left by `steps`, and by one less for each exponent below that of the smallest normal number.
    #[inline(always)]
    fn shifted(self, number: u16, mantissa: u16) -> u16 {
        let distance = (number >> 7).saturating_sub(self.first);
        mantissa << (if (distance as i16) < self.steps as i16 { distance } else { self.steps })
    }

    /// [`Self::shifted`] for processors that shift all lanes by the same distance: it doubles up to five times.
    #[inline(always)]
    fn doubled(self, number: u16, mantissa: u16) -> u16 {
        let [one, two, three, four, five] = self.doublings;
        let double = |mantissa: u16, from: i16| mantissa.wrapping_add(if number as i16 >= from { mantissa } else { 0 });
        double(double(double(double(double(mantissa, one), two), three), four), five)
    }
}
