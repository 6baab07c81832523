//! Text to integers.

use super::decimals::Random;
use super::{INTEGERS, RULES, counts, parse, reference};
use tcast::dtype::Dtype;
use tcast::kernel::{Counts, Loss, OutOfRange, Rules};

/// `number / 10^places` as an integer of the type: by what `cast.md` says, in 128-bit integers.
fn integer_reference(target: Dtype, rules: Rules, number: i128, places: u32) -> (u64, Counts) {
    let bits = reference::bits(target);
    let is_signed = reference::kind(target).1 == reference::Kind::Signed;
    let (min, max) = if is_signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let unit = 10_i128.pow(places);
    let (cut, rest) = (number / unit, (number % unit).abs());
    let is_up = bits < 8 && (2 * rest > unit || (2 * rest == unit && cut % 2 != 0));
    let integer = if is_up { cut + number.signum() } else { cut };
    let is_over = !(min..=max).contains(&integer);
    let clamps = rules.out_of_range == OutOfRange::Saturate;
    let result = if clamps { integer.clamp(min, max) } else { integer };
    let losses = [
        (if clamps { Loss::Saturated } else { Loss::Wrapped }, is_over),
        (Loss::Flushed, integer == 0 && number != 0),
        (Loss::Inexact, is_over || rest != 0),
    ];
    (result as u64 & reference::mask(bits), counts(&losses.map(|(loss, is_met)| (loss, u64::from(is_met)))))
}

#[test]
fn integers_are_cut_rounded_and_wrapped_by_their_exact_digits() {
    let mut random = Random(6);
    for round in 0..30_000 {
        let places = (random.next() % 25) as u32;
        let wide = i128::from(random.next() as i64) * i128::from(random.next() >> 10);
        let mut number = wide >> (random.next() % 120);
        if round % 3 == 0 {
            // Ties, and their neighbours in the last place.
            let half = 10_i128.pow(places) / 2;
            number = (number % 600) * half + i128::from(random.next() % 3) - 1;
        }
        let sign = if number < 0 { "-" } else { ["", "+", "-"][if number == 0 { round % 3 } else { round % 2 }] };
        let digits = format!("{:0width$}", number.abs(), width = places as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places as usize);
        let text = match round % 4 {
            0 => format!("{sign}{whole}.{fraction}"),
            1 => format!("{sign}{digits}e-{places}"),
            2 => format!("{sign}{whole}{fraction}000.E-{:03}", places + 3),
            _ => format!("{sign}.000{digits}e+{}", digits.len() as u32 + 3 - places),
        };
        for target in INTEGERS {
            for rules in [RULES, Rules { out_of_range: OutOfRange::Saturate, ..RULES }] {
                let (code, counts) = integer_reference(target, rules, number, places);
                assert_eq!(parse(target, rules, &[&text]), (vec![code], counts), "{text} -> {target}, {rules:?}");
            }
        }
    }
}

#[test]
fn integers_of_any_size_keep_their_low_bits() {
    let low = |text: &str| parse(Dtype::Uint64, RULES, &[text]).0[0];
    assert_eq!(low("1e30"), 10_u128.pow(30) as u64);
    assert_eq!(low("-1e30"), 0_u64.wrapping_sub(10_u128.pow(30) as u64));
    assert_eq!(low("12345678901234567890123"), 12345678901234567890123_u128 as u64);
    assert_eq!(low("1e63"), 10_u64.wrapping_pow(63));
    assert_eq!(low("7e64"), 0);
    // 2^64 divides 10^64, so that all above those digits is cut off.
    let text = format!("{}{}{}", "7".repeat(2000), "0".repeat(44), 12345678901234567890_u64);
    assert_eq!(low(&text), 12345678901234567890);
    assert_eq!(low(&format!("0.{text}e{}", text.len())), 12345678901234567890);
    // Rounding can carry out of the low bits.
    let carried = parse(Dtype::Int4, RULES, &["18446744073709551615.5", "18446744073709551614.5"]);
    assert_eq!(carried, (vec![0, 14], counts(&[(Loss::Wrapped, 2), (Loss::Inexact, 2)])));
    let words = ["nan", "-nan", "inf", "-infinity", "1e99", "-1e99"];
    let (codes, counted) = parse(Dtype::Int8, Rules { out_of_range: OutOfRange::Saturate, ..RULES }, &words);
    assert_eq!(codes, [0, 0, 0x7f, 0x80, 0x7f, 0x80]);
    let specials = |losses: &[(Loss, u64)]| {
        let mut counts = counts(losses);
        (counts.input_nan, counts.input_infinite) = (2, 2);
        counts
    };
    assert_eq!(counted, specials(&[(Loss::Saturated, 4), (Loss::NanLost, 2), (Loss::Inexact, 6)]));
    let (codes, counted) = parse(Dtype::Int8, RULES, &words);
    assert_eq!((codes, counted), (vec![0; 6], specials(&[(Loss::Wrapped, 6), (Loss::Inexact, 6)])));
    let ends = ["9223372036854775807", "-9223372036854775808", "1e3", "-0", "-0.3"];
    let (codes, counted) = parse(Dtype::Int64, RULES, &ends);
    assert_eq!(codes, [i64::MAX as u64, 1 << 63, 1000, 0, 0]);
    assert_eq!(counted, counts(&[(Loss::Flushed, 1), (Loss::Inexact, 1)]));
}
