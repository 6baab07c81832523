//! Rounding at random: a number becomes one of its two neighbours, the one farther from 0 with the probability of its
//! distance from the other. On average, nothing is lost. The loops that round to nearest then find it on their grid.

use super::lanes::CodeRounding;
use crate::dtype::{Class, Dtype};
use crate::random::{STEP, random};
use sha2::{Digest, Sha256};

/// Random numbers for the elements of a weight. Each depends on a seed, the name of the weight, and the element alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dither {
    key: u64,
}

impl Dither {
    /// The key is the first 8 bytes of the SHA-256 of `SEED:NAME`, as a little-endian number.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let digest = Sha256::digest(format!("{seed}:{name}"));
        Self { key: digest.iter().take(8).rev().fold(0, |key, byte| key << 8 | u64::from(*byte)) }
    }

    /// Returns a number from 0 to below 1, for an element of the weight: the upper 53 bits of that number of the sequence of
    /// `SplitMix64` that starts with the key.
    #[inline(always)]
    fn random(self, element: u64) -> f64 {
        let before = self.key.wrapping_add(element.wrapping_mul(STEP));
        (random(before)() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Rounds the number of an element to one of its neighbours. Numbers beyond the ends are left to the rules of the type,
    /// and so are infinite values and NaN.
    #[inline(always)]
    pub(crate) fn round(self, element: u64, number: f64, neighbours: &Neighbours) -> f64 {
        let Neighbours { digits, least, low, high } = *neighbours;
        if !(number > low && number < high) {
            return number;
        }
        let magnitude = number.abs();
        let exponent = (magnitude.to_bits() >> 52) as i32 - 1023;
        let step = f64::from_bits((((exponent - digits).max(least) + 1023) as u64) << 52);
        // Exact: a step is a power of two, and there are fewer than 2^24 below the number.
        let steps = magnitude / step;
        let whole = f64::from(steps as u32);
        let is_up = steps - whole > self.random(element);
        ((whole + f64::from(u8::from(is_up))) * step).copysign(number)
    }
}

/// The distances between the numbers of a type: a power of two that grows with their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbours {
    /// The number of digits behind the leading one.
    digits: i32,
    /// The exponent of the smallest distance.
    least: i32,
    /// The lowest and the highest number.
    low: f64,
    high: f64,
}

impl Neighbours {
    /// Returns the distances of a type of floats; `None` for other types, and for floats that float64 does not hold with
    /// digits to spare.
    pub(crate) fn of(dtype: Dtype) -> Option<Self> {
        let Class::Float(format) = dtype.class() else { return None };
        let digits = format.mantissa_bits as i32;
        if digits > 23 {
            return None;
        }
        let (code, least) = (format.max_finite(), format.min_subnormal_exponent());
        let exponent = (code >> digits) as i32 - format.bias;
        let high = ((1 << digits) | code & ((1 << digits) - 1)) as f64 * 2_f64.powi(exponent - digits);
        Some(Self { digits, least, low: -high, high })
    }

    /// Returns the distances of the numbers that codes stand for.
    pub(super) fn of_codes(rounding: &CodeRounding) -> Self {
        match *rounding {
            CodeRounding::Float { float, .. } => {
                let high = f64::from(float.largest);
                Self { digits: float.mantissa_bits(), least: float.lowest_exponent(), low: -high, high }
            }
            CodeRounding::Int { low, high, .. } => Self { digits: 60, least: 0, low: low.into(), high: high.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Kernel, Rules, Storage};

    const TYPES: [Dtype; 7] = [
        Dtype::Float32,
        Dtype::Bfloat16,
        Dtype::Float16,
        Dtype::Float8E4M3FN,
        Dtype::Float8E5M2,
        Dtype::Float8E4M3FNUZ,
        Dtype::Float4E2M1,
    ];

    /// Casts a number to a type and back.
    fn nearest(number: f64, dtype: Dtype) -> f64 {
        let [wide, narrow] = [Dtype::Float64, dtype].map(Storage::packed);
        let (mut stored, mut back) = ([0; 8], [0; 8]);
        let there = Kernel::cast(wide, narrow, &Rules::default()).unwrap();
        there.run(&number.to_le_bytes(), &mut stored[..dtype.bits().div_ceil(8) as usize], 1).unwrap();
        let again = Kernel::cast(narrow, wide, &Rules::default()).unwrap();
        again.run(&stored[..dtype.bits().div_ceil(8) as usize], &mut back, 1).unwrap();
        f64::from_le_bytes(back)
    }

    #[test]
    fn a_number_becomes_one_of_its_two_neighbours_and_a_number_of_the_type_stays() {
        let mut next = random(3);
        for dtype in TYPES {
            let neighbours = Neighbours::of(dtype).unwrap();
            let dither = Dither::new(0, dtype.name());
            assert_eq!(nearest(neighbours.high, dtype), neighbours.high, "{dtype}");
            let mut sides = [0; 2];
            for element in 0..20_000 {
                // Of all sizes, subnormal ones too.
                let size = 2_f64.powi((next() % 30) as i32 - 15 + neighbours.least / 2);
                let number = (next() >> 11) as f64 / (1_u64 << 52) as f64 * size - size;
                let number = number.clamp(neighbours.low, neighbours.high);
                let rounded = dither.round(element, number, &neighbours);
                assert_eq!(nearest(rounded, dtype), rounded, "{dtype} {number}");
                let near = nearest(number, dtype);
                assert_eq!(dither.round(element, near, &neighbours).to_bits(), near.to_bits(), "{dtype} {near}");
                // No number of the type is between.
                let middle = f64::midpoint(number, rounded);
                let between = nearest(middle, dtype);
                assert!(between == rounded || between == near || middle == number, "{dtype} {number} {rounded}");
                sides[usize::from(rounded == near)] += 1;
            }
            assert!(sides[0] > 1000 && sides[1] > 1000, "{dtype} {sides:?}");
        }
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_number() {
        for (dtype, number) in
            [(Dtype::Bfloat16, 1.0 + 0.3 / 128.0), (Dtype::Float8E4M3FN, -0.31), (Dtype::Float16, 3e-8)]
        {
            let neighbours = Neighbours::of(dtype).unwrap();
            let dither = Dither::new(7, "w");
            let count = 100_000;
            let values = (0..count).map(|element| dither.round(element, number, &neighbours));
            let (sum, step) = values.fold((0.0, 0.0_f64), |(sum, step), it| (sum + it, step.max((it - number).abs())));
            // The standard deviation of the mean is at most half a step / sqrt(count).
            let error = (sum / count as f64 - number).abs();
            assert!(error < 4.0 * step / (count as f64).sqrt(), "{dtype} {error} {step}");
        }
    }

    #[test]
    fn numbers_beyond_the_ends_and_special_ones_stay() {
        let (dither, neighbours) = (Dither::new(0, "w"), Neighbours::of(Dtype::Float8E4M3FN).unwrap());
        for number in [448.0, 449.0, 470.0, -1e300, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, f64::NAN] {
            assert_eq!(dither.round(5, number, &neighbours).to_bits(), number.to_bits());
        }
    }

    #[test]
    fn random_numbers_are_those_of_the_documented_generator() {
        let dither = Dither::new(0, "w");
        let digest = Sha256::digest(b"0:w");
        let mut next = random(u64::from_le_bytes(*digest.first_chunk().unwrap()));
        for element in 0..100 {
            assert_eq!(dither.random(element), (next() >> 11) as f64 * 2_f64.powi(-53));
        }
        assert_ne!(Dither::new(1, "w"), dither);
        assert_ne!(Dither::new(0, "v"), dither);
    }
}
