//! Text to floats, and to everything as the float or integer that it spells.

use super::decimals::{Random, above, below, exact, midpoint};
use super::reference::{self, NUMERIC};
use super::{RULES, UNBOUND, counts, parse, parse_bytes, print};
use tcast::dtype::Dtype;
use tcast::kernel::{Kernel, Loss, OutOfRange, RoundMode, Rules, Storage};

/// A text meets the same rules, with the same counts, as a float or an integer of the same value.
#[track_caller]
fn assert_as_cast(source: Dtype, codes: &[u64], texts: &[String], targets: &[Dtype]) {
    let base = [RULES, UNBOUND, Rules { infinity_saturates_fnuz: false, ..RULES }];
    let policies = [OutOfRange::Saturate, OutOfRange::Error].map(|out_of_range| Rules { out_of_range, ..RULES });
    let modes = [RoundMode::Down, RoundMode::Nearest].map(|round_mode| Rules { round_mode, ..UNBOUND });
    let bytes = reference::to_bytes(codes.iter().copied(), Storage::packed(source));
    for &target in targets {
        for rules in base.iter().chain(&policies).chain(&modes) {
            let storage = Storage::packed(target);
            let kernel = Kernel::cast(Storage::packed(source), storage, rules).unwrap();
            let mut expected = vec![0xaa; storage.bytes(codes.len() as u64).unwrap() as usize];
            let expected_counts = kernel.run(&bytes, &mut expected, codes.len()).unwrap();
            let (parsed, mut counts) = parse_bytes(storage, *rules, texts).unwrap();
            for (index, text) in texts.iter().enumerate() {
                let [left, right] = [&parsed, &expected].map(|bytes| reference::element(bytes, storage, index));
                assert_eq!(left, right, "{text:?} -> {target}, {rules:?}");
            }
            // A copy of float64 does not look at its values.
            if source == target {
                (counts.input_nan, counts.input_infinite) = (0, 0);
            }
            assert_eq!(counts, expected_counts, "{target}, {rules:?}");
        }
    }
}

fn spell(value: f64) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "+" };
    if value.is_nan() { format!("{sign}nAn") } else { exact(value, 1074) }
}

#[test]
fn a_text_is_cast_as_the_float_that_it_spells() {
    let mut random = Random(3);
    let mut values: Vec<f64> = (0..1000).map(|_| f64::from_bits(random.next())).filter(|x| !x.is_nan()).collect();
    // Around the integers' ranges, with and without a fraction; then around the narrow floats'.
    let near = |random: &mut Random, scale: i32| (random.next() as i64 as f64) * 2_f64.powi(-63 + scale);
    values.extend((0..1000).map(|index| near(&mut random, index % 70)));
    values.extend((0..1000).map(|index| near(&mut random, index % 70).round()));
    values.extend((0..1000).map(|index| near(&mut random, index % 300 - 150)));
    values.extend((0..1000).map(|index| f64::from(near(&mut random, index % 40 - 20) as f32)));
    values.extend((-1100..1100).map(|index| f64::from(index) / 8.0));
    values.extend([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, f64::MAX, f64::MIN]);
    let codes: Vec<u64> = values.iter().map(|value| value.to_bits()).collect();
    let texts: Vec<String> = values.iter().map(|&value| spell(value)).collect();
    assert_as_cast(Dtype::Float64, &codes, &texts, &NUMERIC);
}

#[test]
fn a_text_is_cast_as_the_integer_that_it_spells() {
    let mut random = Random(4);
    let codes: Vec<u64> = (0..20_000).map(|_| random.next()).map(|code| code >> (code % 64)).collect();
    let floats: Vec<Dtype> = NUMERIC.into_iter().filter(|dtype| dtype.is_floating()).collect();
    for source in [Dtype::Int64, Dtype::Uint64] {
        assert_as_cast(source, &codes, &print(Storage::packed(source), &codes), &floats);
    }
}

#[test]
fn a_text_beside_a_tie_goes_to_the_nearer_neighbour_and_a_tie_to_the_even_one() {
    // What 1.5 units beyond the largest number gives, without saturation; floats of fewer than 8 bits always saturate.
    let floats = [
        (Dtype::Float4E2M1, 0x7, Loss::Saturated),
        (Dtype::Float6E2M3, 0x1f, Loss::Saturated),
        (Dtype::Float6E3M2, 0x1f, Loss::Saturated),
        (Dtype::Float8E4M3FN, 0x7f, Loss::Nan),
        (Dtype::Float8E4M3FNUZ, 0x80, Loss::Nan),
        (Dtype::Float8E5M2, 0x7c, Loss::Infinite),
        (Dtype::Float8E5M2FNUZ, 0x80, Loss::Nan),
        (Dtype::Float16, 0x7c00, Loss::Infinite),
        (Dtype::Bfloat16, 0x7f80, Loss::Infinite),
    ];
    for (dtype, beyond, loss) in floats {
        let max = reference::max_finite(dtype);
        let mut exacts: Vec<f64> = (0..=max).map(|code| value(dtype, code)).collect();
        exacts.push(2.0 * value(dtype, max) - value(dtype, max - 1));
        let (mut texts, mut codes) = (Vec::new(), Vec::new());
        for code in 0..=max {
            let [low, high] = [exacts[code as usize], exacts[code as usize + 1]];
            let tie = exact(f64::midpoint(low, high), 160); // exact: float64 has more digits to spare
            let places = [0, 25, 300, 900][code as usize % 4];
            texts.extend([below(&tie, places), tie.clone(), above(&tie, places)]);
            codes.extend([code, code.next_multiple_of(2), code + 1]);
        }
        let overs = codes.iter().filter(|&&code| code > max).count() as u64;
        codes.iter_mut().filter(|code| **code > max).for_each(|code| *code = beyond);
        let (parsed, counted) = parse(dtype, UNBOUND, &texts);
        for ((text, parsed), code) in texts.iter().zip(parsed).zip(codes) {
            assert_eq!(parsed, code, "{dtype} {text}");
        }
        // Half of the smallest number, and all below it, is flushed.
        let all = texts.len() as u64;
        assert_eq!(counted, counts(&[(Loss::Flushed, 2), (loss, overs), (Loss::Inexact, all)]), "{dtype}");
    }
}

/// A number of a float type of 16 bits or fewer.
fn value(dtype: Dtype, code: u64) -> f64 {
    let mut bytes = [0; 8];
    let kernel = Kernel::cast(Storage::per_byte(dtype), Storage::packed(Dtype::Float64), &RULES).unwrap();
    kernel.run(&code.to_le_bytes(), &mut bytes, 1).unwrap();
    f64::from_le_bytes(bytes)
}

#[test]
fn wide_floats_round_once_beside_every_kind_of_tie() {
    let mut random = Random(5);
    let sample: Vec<u64> = (0..1500).map(|_| random.next() >> 1).collect();
    for (dtype, shift, infinity) in [(Dtype::Float32, 32, 0x7f80_0000), (Dtype::Float64, 0, 0x7ff0_0000_0000_0000)] {
        let mut low: Vec<u64> = sample.iter().map(|bits| bits >> shift).filter(|&bits| bits < infinity - 1).collect();
        low.extend((0..300).map(|code| code * code)); // subnormal numbers
        let (mut texts, mut codes) = (Vec::new(), Vec::new());
        for (index, code) in low.into_iter().enumerate() {
            let value = |code: u64| match dtype {
                Dtype::Float32 => f32::from_bits(code as u32).into(),
                _ => f64::from_bits(code),
            };
            let tie = midpoint(value(code), value(code + 1));
            let places = [0, 25, 300, 900][index % 4];
            texts.extend([below(&tie, places), tie.clone(), above(&tie, places)]);
            codes.extend([code, code.next_multiple_of(2), code + 1]);
        }
        let (parsed, counted) = parse(dtype, RULES, &texts);
        for ((text, parsed), code) in texts.iter().zip(parsed).zip(codes) {
            assert_eq!(parsed, code, "{dtype} {text}");
        }
        assert_eq!(counted, counts(&[(Loss::Flushed, 2), (Loss::Inexact, texts.len() as u64)]), "{dtype}");
    }
}

#[test]
fn known_counterexamples_of_double_rounding_are_rounded_once() {
    let max = format!("{:.0}", f64::MAX);
    let table: &[(Dtype, &str, u64)] = &[
        (Dtype::Bfloat16, "1.00390625000000000001", 0x3f81),
        (Dtype::Bfloat16, "1.00390625", 0x3f80),
        (Dtype::Float32, "1.00000005960464477539062501", 0x3f80_0001),
        (Dtype::Float32, "1.000000059604644775390625", 0x3f80_0000),
        (Dtype::Float8E4M3FN, "464", 0x7e),
        (Dtype::Float8E4M3FN, "464.0000000000000000001", 0x7f),
        (Dtype::Float8E4M3FN, "-464.0000000000000000001", 0xff),
        (Dtype::Float8E4M3FNUZ, "247.99999999999999999999", 0x7f),
        (Dtype::Float8E4M3FNUZ, "248", 0x80),
        (Dtype::Float8E8M0, "1.0000000000000000000000000000000001", 0x80),
        (Dtype::Float8E8M0, "1", 0x7f),
        (Dtype::Float8E8M0, "-1e-400", 0xff),
        (Dtype::Float16, "65519.99999999999999999999", 0x7bff),
        (Dtype::Float16, "65520", 0x7c00),
        (Dtype::Float16, "-1e999999999999999999999", 0xfc00),
        (Dtype::Float16, "-1e-999999999999999999999", 0x8000),
        (Dtype::Float32, "340282356779733661637539395458142568448", 0x7f80_0000),
        (Dtype::Float32, "340282356779733661637539395458142568447.9999", 0x7f7f_ffff),
        (Dtype::Float64, "4.9406564584124654e-324", 1),
        (Dtype::Float64, "2.4703282292062327e-324", 0),
        (Dtype::Float64, "2.4703282292062328e-324", 1),
        (Dtype::Float64, &max, 0x7fef_ffff_ffff_ffff),
        (Dtype::Float64, "17976931348623158079e289", 0x7fef_ffff_ffff_ffff),
        (Dtype::Float64, "17976931348623158080e289", 0x7ff0_0000_0000_0000),
        (Dtype::Float64, "-0", 1 << 63),
        (Dtype::Float64, "-nan", 0xfff8_0000_0000_0000),
        (Dtype::Float64, "NaN", 0x7ff8_0000_0000_0000),
    ];
    for &(dtype, text, code) in table {
        assert_eq!(parse(dtype, UNBOUND, &[text]).0, [code], "{dtype} {text}");
    }
}

#[test]
fn float64_losses_are_counted_against_the_exact_decimal() {
    let texts = ["0.1", "0.5", "1e400", "-1e-400", "inf", "nan", "0e5", "9007199254740993", "1e23", "1e22"];
    let (_, counted) = parse(Dtype::Float64, RULES, &texts);
    let specials = |losses: &[(Loss, u64)]| {
        let mut counts = counts(losses);
        (counts.input_nan, counts.input_infinite) = (1, 1);
        counts
    };
    assert_eq!(counted, specials(&[(Loss::Infinite, 1), (Loss::Flushed, 1), (Loss::Inexact, 5)]));
    // Beyond float64, and so close to one and to zero that float64 does not tell them apart.
    let texts = ["1e400", "1e-400", "1.00000000000000000000000001", "true", " FALSE ", "-0", "0.000e9", "inf", "nan"];
    let (codes, counted) = parse(Dtype::Bool, RULES, &texts);
    assert_eq!((codes, counted), (vec![1, 1, 1, 1, 0, 0, 0, 1, 1], specials(&[(Loss::Inexact, 5)])));
}
