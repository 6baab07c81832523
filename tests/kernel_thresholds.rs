//! Where the results of a cast change, format by format, and the tables of ONNX Cast, written out.
//!
//! The numbers of a format are made here from its definition in float64, which holds each of them and the
//! midpoint of any two exactly.
#![allow(clippy::unwrap_used)]

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use tcast::dtype::Dtype;
use tcast::kernel::{Kernel, OutOfRange, RoundMode, Rules, Storage};

/// Cast-23 with its defaults.
const RULES: Rules =
    Rules { saturate: true, infinity_saturates_fnuz: false, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap };

/// Cast-24: FNUZ types saturate Inf too.
const CAST_24: Rules = Rules { infinity_saturates_fnuz: true, ..RULES };

const NO_SATURATION: Rules = Rules { saturate: false, ..RULES };

/// A float format as its definition has it.
struct Format {
    dtype: Dtype,
    bits: u32,
    mantissa_bits: u32,
    bias: i32,
    max: u16,
    /// Where numbers no longer round to the largest one.
    overflow: Limit,
    /// What a number beyond that becomes: with saturation, and without.
    beyond: [u16; 2],
}

enum Limit {
    /// This number is the first.
    From(f64),
    /// The first is next to this number, which itself still rounds to the largest.
    Above(f64),
}

#[rustfmt::skip]
const FORMATS: [Format; 9] = [
    Format { dtype: Dtype::Float4E2M1,     bits: 4,  mantissa_bits: 1,  bias: 1,   max: 0x7,    overflow: Limit::From(7.0),      beyond: [0x7, 0x7] },
    Format { dtype: Dtype::Float6E2M3,     bits: 6,  mantissa_bits: 3,  bias: 1,   max: 0x1f,   overflow: Limit::From(7.75),     beyond: [0x1f, 0x1f] },
    Format { dtype: Dtype::Float6E3M2,     bits: 6,  mantissa_bits: 2,  bias: 3,   max: 0x1f,   overflow: Limit::From(30.0),     beyond: [0x1f, 0x1f] },
    Format { dtype: Dtype::Float8E4M3FN,   bits: 8,  mantissa_bits: 3,  bias: 7,   max: 0x7e,   overflow: Limit::Above(464.0),   beyond: [0x7e, 0x7f] },
    Format { dtype: Dtype::Float8E4M3FNUZ, bits: 8,  mantissa_bits: 3,  bias: 8,   max: 0x7f,   overflow: Limit::From(248.0),    beyond: [0x7f, 0x80] },
    Format { dtype: Dtype::Float8E5M2,     bits: 8,  mantissa_bits: 2,  bias: 15,  max: 0x7b,   overflow: Limit::From(61440.0),  beyond: [0x7b, 0x7c] },
    Format { dtype: Dtype::Float8E5M2FNUZ, bits: 8,  mantissa_bits: 2,  bias: 16,  max: 0x7f,   overflow: Limit::From(61440.0),  beyond: [0x7f, 0x80] },
    Format { dtype: Dtype::Float16,        bits: 16, mantissa_bits: 10, bias: 15,  max: 0x7bff, overflow: Limit::From(65520.0),  beyond: [0x7c00, 0x7c00] },
    // The limit is 2^128 - 2^119.
    Format { dtype: Dtype::Bfloat16,       bits: 16, mantissa_bits: 7,  bias: 127, max: 0x7f7f, overflow: Limit::From(f64::from_bits(0x47eff00000000000)), beyond: [0x7f80, 0x7f80] },
];

impl Format {
    /// The number of a nonnegative code: `2^(1 - bias) * 0.mantissa` or `2^(exponent - bias) * 1.mantissa`.
    fn number(&self, code: u16) -> f64 {
        let exponent = i32::from(code >> self.mantissa_bits);
        let mantissa = f64::from(code % (1 << self.mantissa_bits)) / f64::from(1 << self.mantissa_bits);
        match exponent {
            0 => 2_f64.powi(1 - self.bias) * mantissa,
            _ => 2_f64.powi(exponent - self.bias) * (1.0 + mantissa),
        }
    }

    /// Positive numbers, each with its code.
    fn numbers(&self) -> Vec<(f64, u16)> {
        (0..=self.max).map(|code| (self.number(code), code)).collect()
    }

    /// What lies just below, at and just above each number and each midpoint of two, with the codes that they
    /// must become. `before` and `after` are the neighbours of a number in the source type.
    fn thresholds(&self, before: impl Fn(f64) -> f64, after: impl Fn(f64) -> f64) -> Vec<(f64, u16)> {
        let mut cases = Vec::new();
        for (number, code) in self.numbers() {
            cases.push((number, code));
            cases.push((after(number), code));
            if code > 0 {
                cases.push((before(number), code));
            }
            if code < self.max {
                let midpoint = f64::midpoint(number, self.number(code + 1));
                let even = if code % 2 == 0 { code } else { code + 1 };
                cases.extend([(before(midpoint), code), (midpoint, even), (after(midpoint), code + 1)]);
            }
        }
        cases
    }

    /// The code of the opposite number: FNUZ formats have one zero and one NaN, both without sign.
    fn negated(&self, code: u16) -> u16 {
        let sign = 1 << (self.bits - 1);
        let is_fnuz = matches!(self.dtype, Dtype::Float8E4M3FNUZ | Dtype::Float8E5M2FNUZ);
        if is_fnuz && code.is_multiple_of(sign) { code } else { code | sign }
    }

    /// Checks cases of either sign, with saturation and without.
    fn check_numbers(&self, source: Dtype, bits_of: impl Fn(f64) -> u64, cases: &[(f64, u16)]) {
        for rules in [RULES, NO_SATURATION] {
            self.check(source, &bits_of, cases.iter().copied(), rules);
        }
    }

    fn check(
        &self,
        source: Dtype,
        bits_of: impl Fn(f64) -> u64,
        cases: impl Iterator<Item = (f64, u16)>,
        rules: Rules,
    ) {
        let cases: Vec<(f64, u16)> =
            cases.flat_map(|(number, code)| [(number, code), (-number, self.negated(code))]).collect();
        let codes: Vec<u64> = cases.iter().map(|(number, _)| bits_of(*number)).collect();
        let results = cast(source, self.dtype, rules, &codes);
        for (((number, expected), code), got) in cases.iter().zip(codes).zip(results) {
            let expected = u64::from(*expected);
            assert!(
                expected == got,
                "{source} -> {} by {rules:?}: {number:e} ({code:x}) -> expected {expected:x}, got {got:x}",
                self.dtype
            );
        }
    }
}

/// Casts codes to codes. They lie one in a byte, so that this needs no packing.
fn cast(source: Dtype, target: Dtype, rules: Rules, codes: &[u64]) -> Vec<u64> {
    let bytes_of = |dtype: Dtype| dtype.bits().div_ceil(8) as usize;
    let (source_storage, target_storage) = (Storage::per_byte(source), Storage::per_byte(target));
    let input: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes().into_iter().take(bytes_of(source))).collect();
    let mut output = vec![0; codes.len() * bytes_of(target)];
    let kernel = Kernel::cast(source_storage, target_storage, &rules).unwrap();
    kernel.run(&input, &mut output, codes.len()).unwrap();
    let code_of = |bytes: &[u8]| bytes.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte));
    output.chunks_exact(bytes_of(target)).map(code_of).collect()
}

fn float32_bits(number: f64) -> u64 {
    let nearest = number as f32;
    assert_eq!(f64::from(nearest).to_bits(), number.to_bits(), "{number:e} is no float32");
    nearest.to_bits().into()
}

fn cast_one(source: Dtype, code: u64, target: Dtype, rules: Rules) -> u64 {
    cast(source, target, rules, &[code])[0]
}

/// One line of a table: float32 bits, and the code expected in each column.
fn check_row(bits: u32, columns: &[(Dtype, Rules)], expected: &[u64]) {
    assert_eq!(columns.len(), expected.len(), "row {bits:08x}");
    for ((target, rules), &expected) in columns.iter().copied().zip(expected) {
        let got = cast_one(Dtype::Float32, bits.into(), target, rules);
        assert!(expected == got, "float32 -> {target} by {rules:?}: {bits:08x} -> expected {expected:x}, got {got:x}");
    }
}

#[test]
fn every_number_of_a_format_stays_itself() {
    for format in &FORMATS {
        format.check_numbers(Dtype::Float32, float32_bits, &format.numbers());
        format.check_numbers(Dtype::Float64, f64::to_bits, &format.numbers());
    }
}

#[test]
fn ties_go_to_even_and_all_else_to_the_nearest_number_from_float32() {
    let before = |number: f64| (number as f32).next_down().into();
    let after = |number: f64| (number as f32).next_up().into();
    for format in &FORMATS {
        format.check_numbers(Dtype::Float32, float32_bits, &format.thresholds(before, after));
    }
}

#[test]
fn ties_go_to_even_and_all_else_to_the_nearest_number_from_float64() {
    for format in &FORMATS {
        format.check_numbers(Dtype::Float64, f64::to_bits, &format.thresholds(f64::next_down, f64::next_up));
    }
}

#[test]
fn the_range_is_tested_after_rounding() {
    for format in &FORMATS {
        let (last, first) = match format.overflow {
            Limit::From(first) => (first.next_down(), first),
            Limit::Above(last) => (last, last.next_up()),
        };
        for (rules, beyond) in [RULES, NO_SATURATION].into_iter().zip(format.beyond) {
            let cases = [(last, format.max), (first, beyond), (first * 2.0, beyond), (1e300, beyond)];
            format.check(Dtype::Float64, f64::to_bits, cases.into_iter(), rules);
        }
    }
}

#[test]
fn half_of_the_smallest_number_is_a_tie_to_zero() {
    for format in &FORMATS {
        let half = format.number(1) / 2.0;
        let cases = [(half, 0), (half.next_up(), 1), (half.next_down(), 0), (f64::from_bits(1), 0)];
        format.check_numbers(Dtype::Float64, f64::to_bits, &cases);
    }
}

#[test]
fn float64_overflows_float32_halfway_to_two_to_the_128() {
    let first = 2_f64.powi(128) - 2_f64.powi(103);
    let cases = [
        (first.next_down(), 0x7f7fffff),
        (first, 0x7f800000),
        (-first.next_down(), 0xff7fffff),
        (-first, 0xff800000),
        (2_f64.powi(-150), 0),
        (2_f64.powi(-150).next_up(), 1),
    ];
    for (number, expected) in cases {
        let got = cast_one(Dtype::Float64, number.to_bits(), Dtype::Float32, RULES);
        assert!(expected == got, "float64 -> float32: {number:e} -> expected {expected:x}, got {got:x}");
    }
}

#[test]
fn float8_table_of_onnx_cast() {
    const MINUS: u32 = 1 << 31;
    const NAN: u32 = 0x7fc00000;
    const INFINITY: u32 = 0x7f800000;
    let targets = [Dtype::Float8E4M3FN, Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2, Dtype::Float8E5M2FNUZ];
    let columns = |rules| targets.map(|target| (target, rules));
    let (saturated, unsaturated) = (columns(RULES), columns(NO_SATURATION));
    let both = [saturated, unsaturated].concat();
    let tiny = (-1e-7_f32).to_bits();
    let huge = 1e6_f32.to_bits();
    // Columns: E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ with saturation, then without.
    check_row(0, &both, &[0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00]);
    check_row(MINUS, &both, &[0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00]);
    check_row(tiny, &both, &[0x80, 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x00]);
    check_row(NAN, &both, &[0x7f, 0x80, 0x7e, 0x80, 0x7f, 0x80, 0x7e, 0x80]);
    check_row(NAN | MINUS, &both, &[0xff, 0x80, 0xfe, 0x80, 0xff, 0x80, 0xfe, 0x80]);
    check_row(INFINITY, &both, &[0x7e, 0x80, 0x7b, 0x80, 0x7f, 0x80, 0x7c, 0x80]);
    check_row(INFINITY | MINUS, &both, &[0xfe, 0x80, 0xfb, 0x80, 0xff, 0x80, 0xfc, 0x80]);
    check_row(huge, &both, &[0x7e, 0x7f, 0x7b, 0x7f, 0x7f, 0x80, 0x7c, 0x80]);
    check_row(huge | MINUS, &both, &[0xfe, 0xff, 0xfb, 0xff, 0xff, 0x80, 0xfc, 0x80]);
    check_row(464_f32.to_bits(), &both[..1], &[0x7e]);
    check_row(464_f32.to_bits(), &unsaturated[..1], &[0x7e]);
    check_row(464_f32.next_up().to_bits(), &unsaturated[..1], &[0x7f]);
    // Cast-24 differs in one thing: Inf saturates to FNUZ types too, where saturation is on.
    check_row(INFINITY, &columns(CAST_24), &[0x7e, 0x7f, 0x7b, 0x7f]);
    check_row(INFINITY | MINUS, &columns(CAST_24), &[0xfe, 0xff, 0xfb, 0xff]);
    let unsaturated_24 = columns(Rules { saturate: false, ..CAST_24 });
    check_row(INFINITY, &unsaturated_24, &[0x7f, 0x80, 0x7c, 0x80]);
    check_row(INFINITY | MINUS, &unsaturated_24, &[0xff, 0x80, 0xfc, 0x80]);
}

#[test]
fn float8_obeys_the_table_when_cast_to_itself() {
    let cases = [
        (Dtype::Float8E5M2, RULES, 0x7c, 0x7b),
        (Dtype::Float8E5M2, RULES, 0xfc, 0xfb),
        (Dtype::Float8E5M2, NO_SATURATION, 0x7c, 0x7c),
        (Dtype::Float8E5M2, RULES, 0x7d, 0x7e),
        (Dtype::Float8E5M2, RULES, 0xff, 0xfe),
        (Dtype::Float8E4M3FN, RULES, 0xff, 0xff),
        (Dtype::Float8E4M3FNUZ, RULES, 0x80, 0x80),
        (Dtype::Float8E5M2FNUZ, RULES, 0x80, 0x80),
    ];
    for (dtype, rules, code, expected) in cases {
        let got = cast_one(dtype, code, dtype, rules);
        assert!(expected == got, "{dtype} to itself by {rules:?}: {code:x} -> expected {expected:x}, got {got:x}");
    }
}

#[test]
fn scale_table_of_onnx_cast_24() {
    let modes = |saturate| {
        [RoundMode::Up, RoundMode::Down, RoundMode::Nearest]
            .map(|round_mode| (Dtype::Float8E8M0, Rules { saturate, round_mode, ..RULES }))
    };
    let both = [modes(true), modes(false)].concat();
    // Columns: up, down, nearest with saturation, then without.
    let rows: [(u32, [u64; 6]); 23] = [
        (0x00000000, [0x00, 0x00, 0x00, 0xff, 0xff, 0xff]), // 0
        (0x80000000, [0x00, 0x00, 0x00, 0xff, 0xff, 0xff]), // -0
        (0x00000001, [0x00, 0x00, 0x00, 0xff, 0xff, 0xff]), // below 2^-127
        (0x003fffff, [0x00, 0x00, 0x00, 0xff, 0xff, 0xff]),
        (0x00400000, [0x00, 0x00, 0x00, 0x00, 0x00, 0x00]), // 2^-127
        (0x00400001, [0x01, 0x00, 0x00, 0x01, 0x00, 0x00]),
        (0x005fffff, [0x01, 0x00, 0x00, 0x01, 0x00, 0x00]),
        (0x00600000, [0x01, 0x00, 0x01, 0x01, 0x00, 0x01]), // 1.5 * 2^-127
        (0x00800000, [0x01, 0x01, 0x01, 0x01, 0x01, 0x01]), // 2^-126
        (0x00800001, [0x02, 0x01, 0x01, 0x02, 0x01, 0x01]),
        (0x3f800000, [0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f]), // 1
        (0x3f800001, [0x80, 0x7f, 0x7f, 0x80, 0x7f, 0x7f]),
        (0x3fbfffff, [0x80, 0x7f, 0x7f, 0x80, 0x7f, 0x7f]),
        (0x3fc00000, [0x80, 0x7f, 0x80, 0x80, 0x7f, 0x80]), // 1.5
        (0x40400000, [0x81, 0x80, 0x81, 0x81, 0x80, 0x81]), // 3: a tie goes up whatever is even
        (0x7f000000, [0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe]), // 2^127
        (0x7f000001, [0xfe, 0xfe, 0xfe, 0xff, 0xff, 0xff]),
        (0x7f400000, [0xfe, 0xfe, 0xfe, 0xff, 0xff, 0xff]), // 1.5 * 2^127
        (0x7f800000, [0xfe, 0xfe, 0xfe, 0xff, 0xff, 0xff]), // Inf
        (0x7fc00000, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), // NaN
        (0xffc00000, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (0xbf800000, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), // -1
        (0xff800000, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), // -Inf
    ];
    for (bits, expected) in rows {
        check_row(bits, &both, &expected);
    }
}

#[test]
fn formats_without_nan_turn_it_into_a_zero_of_the_other_sign() {
    let columns = [Dtype::Float4E2M1, Dtype::Float6E2M3, Dtype::Float6E3M2].map(|target| (target, RULES));
    check_row(0x7fc00000, &columns, &[0x8, 0x20, 0x20]);
    check_row(0xffc00000, &columns, &[0x0, 0x00, 0x00]);
    check_row(0x7f800000, &columns, &[0x7, 0x1f, 0x1f]); // Inf
    check_row(0xff800000, &columns, &[0xf, 0x3f, 0x3f]);
    check_row(0x80000000, &columns, &[0x8, 0x20, 0x20]); // -0
}

#[test]
fn floats_beyond_an_integer_type_keep_their_low_bits_or_saturate() {
    const ALL: u64 = u64::MAX;
    const MAX: u64 = i64::MAX as u64;
    const MIN: u64 = 1 << 63;
    let columns = |out_of_range| {
        [Dtype::Int8, Dtype::Uint8, Dtype::Int16, Dtype::Int32, Dtype::Uint32, Dtype::Int64, Dtype::Uint64]
            .map(|target| (target, Rules { out_of_range, ..RULES }))
    };
    // Columns: int8, uint8, int16, int32, uint32, int64, uint64.
    let rows: [(f32, [u64; 7], [u64; 7]); 8] = [
        (300.0, [0x2c, 0x2c, 300, 300, 300, 300, 300], [0x7f, 0xff, 300, 300, 300, 300, 300]),
        (-1.0, [0xff, 0xff, 0xffff, 0xffffffff, 0xffffffff, ALL, ALL], [0xff, 0, 0xffff, 0xffffffff, 0, ALL, 0]),
        (
            2147483648.0,
            [0, 0, 0, 0x80000000, 0x80000000, 1 << 31, 1 << 31],
            [0x7f, 0xff, 0x7fff, 0x7fffffff, 0x80000000, 1 << 31, 1 << 31],
        ),
        (
            8589934592.0,
            [0, 0, 0, 0, 0, 1 << 33, 1 << 33],
            [0x7f, 0xff, 0x7fff, 0x7fffffff, 0xffffffff, 1 << 33, 1 << 33],
        ),
        // 1e20 is 100000002004087734272 in float32; the low 64 bits of that are not zero.
        (
            1e20,
            [0, 0, 0, 0, 0, 0x6bc7600000000000, 0x6bc7600000000000],
            [0x7f, 0xff, 0x7fff, 0x7fffffff, 0xffffffff, MAX, ALL],
        ),
        (f32::INFINITY, [0; 7], [0x7f, 0xff, 0x7fff, 0x7fffffff, 0xffffffff, MAX, ALL]),
        (f32::NEG_INFINITY, [0; 7], [0x80, 0, 0x8000, 0x80000000, 0, MIN, 0]),
        (f32::NAN, [0; 7], [0; 7]),
    ];
    for (number, wrapped, saturated) in rows {
        check_row(number.to_bits(), &columns(OutOfRange::Wrap), &wrapped);
        check_row(number.to_bits(), &columns(OutOfRange::Error), &wrapped);
        check_row(number.to_bits(), &columns(OutOfRange::Saturate), &saturated);
    }
}

#[test]
fn integers_of_8_bits_and_more_truncate_and_narrower_ones_round_to_even() {
    let columns = [Dtype::Int16, Dtype::Int8, Dtype::Int4, Dtype::Int2].map(|target| (target, RULES));
    // As one in a byte, so that the signs of int4 and int2 extend over it.
    let rows: [(f32, [u64; 4]); 9] = [
        (0.5, [0, 0, 0, 0]),
        (0.5_f32.next_up(), [0, 0, 1, 1]),
        (1.5, [1, 1, 2, 0xfe]),
        (1.5_f32.next_down(), [1, 1, 1, 1]),
        (2.5, [2, 2, 2, 0xfe]),
        (3.5, [3, 3, 4, 0]),
        (-0.5, [0, 0, 0, 0]),
        (-1.5, [0xffff, 0xff, 0xfe, 0xfe]),
        (-1.6, [0xffff, 0xff, 0xfe, 0xfe]),
    ];
    for (number, expected) in rows {
        check_row(number.to_bits(), &columns, &expected);
    }
}

#[test]
fn only_zeros_are_false() {
    let cases = [
        (Dtype::Float32, 0x00000000, 0),
        (Dtype::Float32, 0x80000000, 0),
        (Dtype::Float32, 0x00000001, 1),
        (Dtype::Float32, 0x7fc00000, 1),
        (Dtype::Float64, 0x0000000000000001, 1),
        (Dtype::Float64, 0x8000000000000000, 0),
        (Dtype::Float8E4M3FN, 0x80, 0),
        (Dtype::Float8E8M0, 0x00, 1),     // 2^-127
        (Dtype::Float8E4M3FNUZ, 0x80, 1), // NaN
        (Dtype::Int64, 0x0000000100000000, 1),
        (Dtype::Bool, 0x02, 1),
    ];
    for (source, code, expected) in cases {
        let got = cast_one(source, code, Dtype::Bool, RULES);
        assert!(expected == got, "{source} -> bool: {code:x} -> expected {expected}, got {got}");
    }
}

#[test]
fn nan_keeps_its_sign_and_leading_payload_among_wide_floats() {
    use Dtype as D;
    let cases = [
        (D::Float32, 0x7f800001, D::Float64, 0x7ff8000020000000), // a signalling NaN becomes quiet
        (D::Float32, 0xffabcdef, D::Float64, 0xfffd79bde0000000),
        (D::Float64, 0xfff4000000000001, D::Float32, 0xffe00000),
        (D::Float64, 0x7ff0000000000001, D::Float32, 0x7fc00000),
        (D::Float64, 0x7ff0000000000001, D::Float16, 0x7e00),
        (D::Float32, 0xff812345, D::Bfloat16, 0xffc1),
        (D::Float32, 0x7fffe000, D::Float16, 0x7fff),
        (D::Float16, 0xfc01, D::Bfloat16, 0xffc0),
        (D::Float16, 0x7d55, D::Float32, 0x7feaa000),
        (D::Bfloat16, 0x7f81, D::Float32, 0x7fc10000),
        // To and from 8 bits there is one NaN, of either sign where there is one.
        (D::Float32, 0xff812345, D::Float8E5M2, 0xfe),
        (D::Float8E5M2, 0xfd, D::Float32, 0xffc00000),
        (D::Float8E4M3FNUZ, 0x80, D::Float32, 0xffc00000),
        (D::Float8E8M0, 0xff, D::Bfloat16, 0x7fc0),
        // A type to itself is a copy.
        (D::Float32, 0x7f800001, D::Float32, 0x7f800001),
    ];
    for (source, code, target, expected) in cases {
        let got = cast_one(source, code, target, RULES);
        assert!(expected == got, "{source} -> {target}: {code:x} -> expected {expected:x}, got {got:x}");
    }
}

/// float32 numbers of all sizes: every 251st code, and the codes around every upper half.
fn many_float32() -> Vec<f32> {
    let spread = (0..=u32::MAX).step_by(251);
    let near_ties = (0..=u16::MAX).flat_map(|upper| {
        let code = u32::from(upper) << 16;
        [0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001].map(|lower| code | lower)
    });
    spread.chain(near_ties).map(f32::from_bits).filter(|number| !number.is_nan()).collect()
}

/// Compares casts of numbers to 16 bits with those of another implementation.
fn compare_with_half(target: Dtype, numbers: &[f32], expected: impl Iterator<Item = u16>) {
    let codes: Vec<u64> = numbers.iter().map(|number| number.to_bits().into()).collect();
    let results = cast(Dtype::Float32, target, RULES, &codes);
    for ((code, got), expected) in codes.iter().zip(results).zip(expected) {
        let expected = u64::from(expected);
        assert!(expected == got, "float32 -> {target}: {code:x} -> half has {expected:x}, got {got:x}");
    }
}

#[test]
fn float16_from_float32_is_that_of_the_half_crate() {
    let numbers = many_float32();
    let mut halves = vec![f16::ZERO; numbers.len()];
    halves.convert_from_f32_slice(&numbers);
    compare_with_half(Dtype::Float16, &numbers, halves.into_iter().map(f16::to_bits));
}

#[test]
fn bfloat16_from_float32_is_that_of_the_half_crate() {
    let numbers = many_float32();
    let mut halves = vec![bf16::ZERO; numbers.len()];
    halves.convert_from_f32_slice(&numbers);
    compare_with_half(Dtype::Bfloat16, &numbers, halves.into_iter().map(bf16::to_bits));
}

#[test]
fn float32_from_every_float16_and_bfloat16_is_that_of_the_half_crate() {
    let float16 = |code| f16::from_bits(code).to_f32();
    let bfloat16 = |code| bf16::from_bits(code).to_f32();
    for (source, widen) in [(Dtype::Float16, float16 as fn(u16) -> f32), (Dtype::Bfloat16, bfloat16)] {
        let codes: Vec<u16> = (0..=u16::MAX).filter(|&code| !widen(code).is_nan()).collect();
        let wide: Vec<u64> = codes.iter().map(|&code| code.into()).collect();
        for (code, got) in codes.into_iter().zip(cast(source, Dtype::Float32, RULES, &wide)) {
            let expected = u64::from(widen(code).to_bits());
            assert!(expected == got, "{source} -> float32: {code:x} -> half has {expected:x}, got {got:x}");
        }
    }
}
