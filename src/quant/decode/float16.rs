//! Numbers of float16 in float32 arithmetic.

/// Returns the product of an integer of up to 9 bits and a positive float16, rounded to the nearest float16, ties to
/// even, if that is normal.
///
/// 1. The product p has at most 20 significant bits. Both factors, 2^13 and 2^13 + 1 times the scale, are exact.
/// 2. The sum of p and p * 2^13 is rounded to 24 bits, so p loses all but 11 bits. If the sum reaches the next power of
///    two, p is so near to a power of two that rounding it to 11 bits gives that power too.
/// 3. In a tie, the last bit of the sum is the bit of p at this position, because p * 2^13 has zeros there.
/// 4. The difference is exact.
#[inline(always)]
pub(super) fn float16(number: f32, scale: f32) -> f32 {
    number * (scale * 8193.0) - number * (scale * 8192.0)
}

/// Rounds to float16, ties to even, and returns its bits. The number must be in the range of float16.
#[inline(always)]
pub(super) fn half_bits(value: f32) -> u16 {
    const LEAST_NORMAL: u32 = 113 << 23; // 2^-14
    let (sign, magnitude) = (value.to_bits() >> 16 & 0x8000, value.abs().to_bits());
    let normal = (magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + (magnitude >> 13 & 1))) >> 13;
    // A sum with 0.5, whose last bit is 2^-24, rounds to the unit of subnormal numbers.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5_f32.to_bits();
    (sign | if magnitude < LEAST_NORMAL { subnormal } else { normal }) as u16
}

/// Returns the number of float16 bits that are finite.
#[inline(always)]
pub(super) fn from_half(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let subnormal = (magnitude as f32) * f32::from_bits(103 << 23); // 2^-24
    let normal = f32::from_bits((magnitude << 13) + (112 << 23));
    let value = if magnitude < 0x400 { subnormal } else { normal };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// Returns the bytes of a normal float16 or 0.
#[inline(always)]
pub(super) fn narrow(value: f32) -> [u8; 2] {
    const REBIAS: u32 = 112 << 23;
    let (bits, magnitude) = (value.to_bits(), value.abs().to_bits());
    ((bits >> 16 & 0x8000 | (magnitude.max(REBIAS) - REBIAS) >> 13) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::casts::{cast, run};
    use super::*;
    use crate::dtype::Dtype;

    #[test]
    fn products_are_rounded_to_float16_as_by_the_kernel() {
        let kernel = cast(Dtype::Float32, Dtype::Float16).unwrap();
        // All significands, with the least exponent, a usual one and the largest.
        for scale in [0x0401..0x0800, 0x1c00..0x2000, 0x5000..0x5240].into_iter().flatten() {
            let scale = half::f16::from_bits(scale).to_f32();
            let numbers: Vec<f32> = (-255..=255_i16).map(f32::from).collect();
            let products: Vec<u8> = numbers.iter().flat_map(|number| (number * scale).to_le_bytes()).collect();
            let mut expected = vec![0; 2 * numbers.len()];
            run(&kernel, &products, &mut expected, numbers.len());
            let found: Vec<u8> = numbers.iter().flat_map(|number| narrow(float16(*number, scale))).collect();
            assert!(found == expected, "{scale}");
        }
    }

    #[test]
    fn sums_are_rounded_to_float16_as_by_the_kernel() {
        let [narrow, widen] = [(Dtype::Float32, Dtype::Float16), (Dtype::Float16, Dtype::Float32)]
            .map(|(from, to)| cast(from, to).unwrap());
        // Numbers with one bit more than a float16, and their neighbours, of both signs.
        let halves = (0..0x7bff_u16).map(|bits| half::f16::from_bits(bits).to_f32());
        let numbers = halves.flat_map(|number| {
            let next = half::f16::from_bits(half::f16::from_f32(number).to_bits() + 1).to_f32();
            let tie = f32::midpoint(number, next);
            [number, tie, tie.next_down(), tie.next_up()].into_iter().flat_map(|number| [number, -number])
        });
        let numbers: Vec<f32> = numbers.collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let (mut halves, mut widened) = (vec![0; 2 * numbers.len()], vec![0; 4 * numbers.len()]);
        run(&narrow, &bytes, &mut halves, numbers.len());
        run(&widen, &halves, &mut widened, numbers.len());
        let found: Vec<u8> = numbers.iter().flat_map(|number| half_bits(*number).to_le_bytes()).collect();
        assert!(found == halves);
        let found: Vec<u8> = numbers.iter().flat_map(|number| from_half(half_bits(*number)).to_le_bytes()).collect();
        assert!(found == widened);
    }
}
