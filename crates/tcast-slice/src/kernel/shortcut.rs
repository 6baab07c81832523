//! Faster conversions than through float32, for blocks without special values, in lanes of 16 bits: twice as many
//! elements in a vector.

use super::counts::Counts;
use super::decode::{Decode, load};
use super::encode::Encode;
use super::float::Minifloat;
use super::half::Half;
use super::isa::Isa;
use super::narrow::Narrowing;
use crate::dtype::Dtype;

#[derive(Clone, Copy)]
pub(super) enum Shortcut {
    /// bfloat16, float16 and float32 to floats of 8 bits and fewer.
    Narrow(Narrowing),
    /// bfloat16 and float16 to each other.
    Half(Half),
    /// Floats of 8 bits and fewer to bfloat16.
    Widen(&'static Minifloat),
}

impl Shortcut {
    pub(super) fn new(source: Dtype, target: Dtype, decode: &Decode, encode: &Encode) -> Option<Self> {
        match (decode, encode) {
            (_, Encode::Narrow(narrow)) => Narrowing::new(source, target, &narrow.float).map(Self::Narrow),
            (Decode::Narrow(_, float), _) if target == Dtype::Bfloat16 => Some(Self::Widen(float)),
            _ => Half::new(source, target).map(Self::Half),
        }
    }

    /// Writes all results. `None` if the block needs the complete rules; `result` may then hold anything.
    #[inline(always)]
    pub(super) fn convert(self, bytes: &[u8], result: &mut [u8], isa: Isa) -> Option<Counts> {
        match self {
            Self::Narrow(narrowing) => narrowing.encode(bytes, result, isa),
            Self::Half(half) => half.encode(bytes, result),
            Self::Widen(float) => fill_bfloat16(*float, bytes, result),
        }
    }
}

/// Writes floats of 8 bits or fewer as bfloat16, if all of them are finite: the upper half of their float32 bits, because
/// the lower half is zero. Nothing is lost.
#[inline(always)]
fn fill_bfloat16(float: Minifloat, bytes: &[u8], result: &mut [u8]) -> Option<Counts> {
    if float.has_special(bytes, |[code]| code.into()) {
        return None;
    }
    let result = result.as_chunks_mut().0;
    // A format of four mantissa bits would need another line.
    if float.has_three_digits() {
        load(bytes, result, |[code]| float.widen_to_bfloat16(code.into()).to_le_bytes());
    } else {
        load(bytes, result, |[code]| ((float.widen(code.into()) >> 16) as u16).to_le_bytes());
    }
    Some(Counts::default())
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Loss, Rules, Storage};
    use super::*;

    #[test]
    fn every_code_becomes_what_it_becomes_through_float32() {
        let mut pairs = [0; 3];
        let types = || Dtype::all().filter(|dtype| dtype.bits() <= 16);
        for (source, target) in types().flat_map(|source| types().map(move |target| (source, target))) {
            for saturate in [true, false] {
                let rules = Rules { saturate, infinity_saturates_fnuz: saturate, ..Rules::default() };
                let [from, to] = [source, target].map(Storage::per_byte);
                let [Some(fast), Some(mut plain)] = [(); 2].map(|()| Kernel::cast(from, to, &rules)) else { continue };
                let Some(shortcut) = plain.shortcut.take() else { continue };
                let (is_partial, kind) = match shortcut {
                    Shortcut::Narrow(_) => (false, 0),
                    Shortcut::Half(_) => (true, 1),
                    Shortcut::Widen(_) => (false, 2),
                };
                pairs[kind] += 1;
                let [width, result_width] = [source, target].map(|dtype| dtype.bits().div_ceil(8) as usize);
                let mut taken = Vec::new();
                for code in 0..1_u32 << source.bits() {
                    let bytes = &code.to_le_bytes()[..width];
                    let (mut result, mut expected) = ([0xee; 2], [0xee; 2]);
                    let counts = plain.run_on(Isa::Baseline, bytes, &mut expected, 1).unwrap();
                    let is_plain = [Loss::Saturated, Loss::Infinite, Loss::Nan, Loss::NanLost]
                        .iter()
                        .all(|loss| counts[*loss] == 0)
                        && counts.input_nan + counts.input_infinite == 0;
                    let found = Isa::available().into_iter().map(|isa| {
                        let found = shortcut.convert(bytes, &mut result[..result_width], isa);
                        assert!(found.is_none() || result == expected, "{source} {code:#x} -> {target}");
                        found
                    });
                    let found: Vec<_> = found.collect();
                    let is_expected =
                        |found: Option<Counts>| found == is_plain.then_some(counts) || is_partial && found.is_none();
                    assert!(found.iter().copied().all(is_expected), "{source} {code:#x} -> {target}: {found:?}");
                    if found[0].is_some() {
                        taken.extend(bytes);
                    }
                }
                // Runs the complete loops: vectors, and the remaining elements.
                let count = taken.len() / width;
                assert!(!is_partial || count > if source == Dtype::Float16 { 63_000 } else { 8_000 }, "{count}");
                let (mut results, mut expected) = (vec![0xee; count * result_width], vec![0xee; count * result_width]);
                let counts = plain.run_on(Isa::Baseline, &taken, &mut expected, count);
                for isa in Isa::available() {
                    assert_eq!(fast.run_on(isa, &taken, &mut results, count), counts, "{source} -> {target}, {isa:?}");
                    assert!(results == expected, "{source} -> {target} on {isa:?}");
                }
            }
        }
        assert_eq!(pairs, [2 * (7 + 6), 2 * 2, 2 * 10]);
    }

    #[test]
    fn float32_becomes_what_it_becomes_in_its_lane() {
        let isas: Vec<Isa> = Isa::available().into_iter().filter(|isa| *isa == Isa::Avx2).collect();
        // Around each tie between codes, and between neighbours of 16 bits.
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let bytes: Vec<u8> = (0..1_u32 << 16)
            .flat_map(|upper| lower.map(|lower| (upper << 16 | lower).to_le_bytes()))
            .flatten()
            .collect();
        for target in Dtype::all().filter(|dtype| dtype.bits() <= 8) {
            for saturate in [true, false] {
                let rules = Rules { saturate, infinity_saturates_fnuz: saturate, ..Rules::default() };
                let [from, to] = [Dtype::Float32, target].map(Storage::per_byte);
                let [Some(fast), Some(mut plain)] = [(); 2].map(|()| Kernel::cast(from, to, &rules)) else { continue };
                if plain.shortcut.take().is_none() {
                    continue;
                }
                for isa in &isas {
                    // All numbers of one upper half and of one sign are in a block or are beyond the range.
                    for bytes in bytes.chunks(4 * 6 * 7) {
                        let count = bytes.len() / 4;
                        let (mut results, mut expected) = (vec![0xee; count], vec![0xee; count]);
                        let counts = plain.run_on(Isa::Baseline, bytes, &mut expected, count);
                        assert_eq!(fast.run_on(*isa, bytes, &mut results, count), counts, "{target}: {bytes:x?}");
                        assert!(results == expected, "{target}: {bytes:x?}");
                    }
                }
            }
        }
    }
}
