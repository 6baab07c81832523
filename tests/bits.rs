//! What the bits of elements mean, compared with what the kernels make of the same bytes; and the rows that say it.

use std::collections::BTreeMap;
use tcast::dtype::{Class, Dtype};
use tcast::kernel::{Kernel, OutOfRange, Printer, RoundMode, Rules, Storage, Texts};
use tcast::measure::bits::{self, BitField, Meaning, RenderStyle, ValueKind};

const RULES: Rules =
    Rules { saturate: true, infinity_saturates_fnuz: true, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap };
const PIPE: RenderStyle = RenderStyle { is_terminal: false, index_width: 3, width: 80 };
const TERMINAL: RenderStyle = RenderStyle { is_terminal: true, ..PIPE };

fn is_number(dtype: Dtype) -> bool {
    !matches!(dtype.class(), Class::Complex | Class::String)
}

fn every_type() -> impl Iterator<Item = Dtype> {
    Dtype::all().filter(|&dtype| dtype != Dtype::String)
}

/// Elements as they lie in bytes of their own, signed integers without their sign extended.
fn to_bytes(dtype: Dtype, codes: &[u128]) -> Vec<u8> {
    let width = dtype.bits().div_ceil(8) as usize;
    codes.iter().flat_map(|code| code.to_le_bytes()[..width].to_vec()).collect()
}

/// The number of a float's meaning, by arithmetic that rounds nothing.
fn number(meaning: &Meaning) -> f64 {
    let Some(exact) = &meaning.exact else { return meaning.value.parse().unwrap() };
    let (odd, exponent) = exact.split_once("*2^").unwrap();
    let (odd, exponent): (i64, i32) = (odd.parse().unwrap(), exponent.parse().unwrap());
    assert!(odd % 2 != 0 && odd.unsigned_abs() < 1 << 53, "{exact}");
    // 2^-1074 in one step is too small for the arithmetic of a power.
    let power = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
    odd as f64 * power(exponent / 2) * power(exponent - exponent / 2)
}

#[track_caller]
fn assert_means_what_kernels_make_of_it(dtype: Dtype, codes: &[u128]) {
    let bytes = to_bytes(dtype, codes);
    let (mut texts, mut wide) = (Texts::default(), vec![0; codes.len() * 8]);
    let per_byte = Storage::per_byte(dtype);
    Printer::new(per_byte).unwrap().print(&bytes, codes.len(), &mut texts).unwrap();
    let widen = Kernel::cast(per_byte, Storage::packed(Dtype::Float64), &RULES).unwrap();
    widen.run(&bytes, &mut wide, codes.len()).unwrap();
    assert!(bits::codes(dtype, &bytes).eq(codes.iter().copied()), "{dtype}");
    for ((&code, text), wide) in codes.iter().zip(texts.iter()).zip(wide.as_chunks().0) {
        let meaning = bits::meaning(dtype, code);
        let wide = f64::from_le_bytes(*wide);
        let case = format!("{dtype} {code:x}: {meaning:?}, {wide}");
        if dtype == Dtype::Bool {
            assert_eq!(
                (meaning.kind, meaning.value.as_str()),
                (ValueKind::Bool, if wide == 0.0 { "false" } else { "true" })
            );
            continue;
        }
        assert_eq!(meaning.value.as_bytes(), text, "{case}");
        let is_finite = match meaning.kind {
            ValueKind::Integer => continue,
            ValueKind::Infinite => false,
            ValueKind::Nan | ValueKind::QuietNan | ValueKind::SignallingNan => {
                assert!(wide.is_nan(), "{case}");
                false
            }
            ValueKind::Zero => wide == 0.0,
            _ => wide.is_finite() && wide != 0.0,
        };
        assert_eq!(is_finite, wide.is_finite(), "{case}");
        if wide.is_finite() {
            assert_eq!(number(&meaning).to_bits(), wide.to_bits(), "{case}");
        } else {
            assert_eq!(meaning.exact, None, "{case}");
        }
        assert_eq!(meaning.kind == ValueKind::Infinite, wide.is_infinite(), "{case}");
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[test]
fn every_code_of_16_bits_and_fewer_means_what_kernels_make_of_it() {
    for dtype in every_type().filter(|dtype| dtype.bits() <= 16) {
        assert_means_what_kernels_make_of_it(dtype, &(0..1 << dtype.bits()).collect::<Vec<_>>());
    }
}

#[test]
fn random_codes_of_wide_types_mean_what_kernels_make_of_them() {
    let mut random = Random(1);
    // Shifted to the right: the small integers, and the floats next to zero.
    let mut codes: Vec<u64> =
        (0..50_000).flat_map(|_| [random.next(), random.next() >> (random.next() % 64)]).collect();
    for dtype in [Dtype::Float32, Dtype::Float64] {
        let Class::Float(format) = dtype.class() else { unreachable!() };
        let ends = [0, 1, 1 << format.mantissa_bits, format.max_finite(), format.infinity(), format.nan()];
        codes.extend(ends.into_iter().flat_map(|code| [code, code + 1, code | format.sign(), code ^ 1]));
    }
    codes.extend([0x60ad_78ec, 0x4b80_0000, 0x4415_af1d_78b5_8c40, i64::MAX as u64, i64::MIN as u64, u64::MAX]);
    for dtype in every_type().filter(|&dtype| dtype.bits() > 16 && is_number(dtype)) {
        let mask = u64::MAX >> (64 - dtype.bits());
        let codes: Vec<u128> = codes.iter().map(|code| u128::from(code & mask)).collect();
        assert_means_what_kernels_make_of_it(dtype, &codes);
    }
}

#[test]
fn each_format_has_the_zeros_subnormals_infinities_and_nans_of_its_standard() {
    let counts = |dtype: Dtype| {
        let mut counts = BTreeMap::new();
        for code in 0..1_u128 << dtype.bits() {
            *counts.entry(bits::meaning(dtype, code).kind.name()).or_insert(0) += 1;
        }
        ["zero", "subnormal", "normal", "infinite", "NaN", "quiet NaN", "signalling NaN"]
            .map(|kind| counts.remove(kind).unwrap_or(0))
    };
    let table = [
        (Dtype::Float4E2M1, [2, 2, 12, 0, 0, 0, 0]),
        (Dtype::Float6E2M3, [2, 14, 48, 0, 0, 0, 0]),
        (Dtype::Float6E3M2, [2, 6, 56, 0, 0, 0, 0]),
        (Dtype::Float8E4M3FN, [2, 14, 238, 0, 2, 0, 0]),
        (Dtype::Float8E4M3FNUZ, [1, 14, 240, 0, 1, 0, 0]),
        (Dtype::Float8E4M3B11FNUZ, [1, 14, 240, 0, 1, 0, 0]),
        (Dtype::Float8E4M3, [2, 14, 224, 2, 0, 8, 6]),
        (Dtype::Float8E3M4, [2, 30, 192, 2, 0, 16, 14]),
        (Dtype::Float8E5M2, [2, 6, 240, 2, 0, 4, 2]),
        (Dtype::Float8E5M2FNUZ, [1, 6, 248, 0, 1, 0, 0]),
        (Dtype::Float8E8M0, [0, 0, 255, 0, 1, 0, 0]),
        (Dtype::Float16, [2, 2046, 61440, 2, 0, 1024, 1022]),
        (Dtype::Bfloat16, [2, 254, 65024, 2, 0, 128, 126]),
    ];
    for (dtype, expected) in table {
        assert_eq!(counts(dtype), expected, "{dtype}");
    }
}

#[test]
fn exact_values_are_odd_integers_times_powers_of_two() {
    let table = [
        (Dtype::Float32, 0x3dcc_cccd, "0.1", Some("13421773*2^-27")),
        (Dtype::Float32, 0xbfc0_0000, "-1.5", Some("-3*2^-1")),
        (Dtype::Float32, 0x4080_0000, "4", None),
        (Dtype::Float32, 0x8000_0000, "-0", None),
        (Dtype::Float32, 0x0000_0001, "0.000000000000000000000000000000000000000000001", Some("1*2^-149")),
        (Dtype::Float32, 0x4b80_0000, "16777216", None),
        // Not these integers, though they read back.
        (Dtype::Float32, 0x4ceb_79a3, "123456790", Some("15432099*2^3")),
        (Dtype::Float32, 0x60ad_78ec, "100000000000000000000", Some("2842171*2^45")),
        (Dtype::Float64, 0x4415_af1d_78b5_8c40, "100000000000000000000", None),
        (Dtype::Float16, 0x2e66, "0.099975586", Some("819*2^-13")),
        (Dtype::Float8E8M0, 0x00, "0.000000000000000000000000000000000000005877472", Some("1*2^-127")),
        (Dtype::Float8E8M0, 0x81, "4", None),
        (Dtype::Float8E8M0, 0xfe, "170141180000000000000000000000000000000", Some("1*2^127")),
        (Dtype::Complex64, 0xc000_0000_3fc0_0000, "1.5-2i", Some("3*2^-1-2i")),
        (Dtype::Complex64, 0x7fc0_0000_8000_0000, "-0+NaNi", None),
        (Dtype::Complex64, 0xff80_0000_3fc0_0000, "1.5-INFi", None),
        (Dtype::Complex128, 0x3ff0_0000_0000_0000_4000_0000_0000_0000, "2+1i", None),
    ];
    for (dtype, code, value, exact) in table {
        let meaning = bits::meaning(dtype, code);
        assert_eq!((meaning.value.as_str(), meaning.exact.as_deref()), (value, exact), "{dtype} {code:x}");
    }
}

#[test]
fn an_ieee_nan_tells_its_payload() {
    let table = [
        (Dtype::Float32, 0x7fc0_0000, ValueKind::QuietNan, None),
        (Dtype::Float32, 0xffff_ffff, ValueKind::QuietNan, Some(0x3f_ffff)),
        (Dtype::Float32, 0x7f80_0001, ValueKind::SignallingNan, Some(1)),
        (Dtype::Float64, 0x7ff0_0000_dead_beef, ValueKind::SignallingNan, Some(0xdead_beef)),
        (Dtype::Float8E5M2, 0x7f, ValueKind::QuietNan, Some(1)),
        (Dtype::Float8E4M3FN, 0xff, ValueKind::Nan, None),
        (Dtype::Float8E4M3FNUZ, 0x80, ValueKind::Nan, None),
        (Dtype::Float8E8M0, 0xff, ValueKind::Nan, None),
    ];
    for (dtype, code, kind, payload) in table {
        let expected = Meaning { kind, value: "NaN".to_owned(), exact: None, payload };
        assert_eq!(bits::meaning(dtype, code), expected, "{dtype} {code:x}");
    }
}

#[test]
fn hexadecimal_digits_and_parts_are_those_of_the_code() {
    let mut random = Random(2);
    for dtype in every_type() {
        for _ in 0..1000 {
            let code = u128::from(random.next()) << 64 | u128::from(random.next());
            let hex = bits::hex(dtype, code);
            let parts = bits::parts(dtype, code);
            let digits: String = parts.iter().map(|(_, digits)| digits.as_str()).collect();
            assert_eq!(hex.len() as u32, dtype.bits().div_ceil(4), "{dtype}");
            assert_eq!(digits.len() as u32, dtype.bits(), "{dtype}");
            assert_eq!(u128::from_str_radix(&hex, 16), u128::from_str_radix(&digits, 2), "{dtype}");
            // The real part of a complex number stands first, though it is the lower half.
            let (mask, half) = (u128::MAX >> (128 - dtype.bits()), dtype.bits() / 2);
            let is_complex = dtype.class() == Class::Complex;
            let turned = if is_complex { code << half | (code & mask) >> half } else { code };
            assert_eq!(u128::from_str_radix(&hex, 16), Ok(turned & mask), "{dtype}");
        }
    }
    let named = |dtype, code| bits::parts(dtype, code).into_iter().map(|(part, digits)| (part, digits.len()));
    assert!(named(Dtype::Bfloat16, 0).eq([(BitField::Sign, 1), (BitField::Exponent, 8), (BitField::Mantissa, 7)]));
    assert!(named(Dtype::Int4, 0).eq([(BitField::Sign, 1), (BitField::Integer, 3)]));
    assert!(named(Dtype::Int1, 0).eq([(BitField::Sign, 1)]));
    assert!(named(Dtype::Uint1, 0).eq([(BitField::Integer, 1)]));
    assert!(named(Dtype::Bool, 0).eq([(BitField::Integer, 8)]));
    assert!(named(Dtype::Float8E8M0, 0).eq([(BitField::Exponent, 8)]));
    assert_eq!(bits::parts(Dtype::Complex64, 1)[2], (BitField::Mantissa, "00000000000000000000001".to_owned()));
}

#[test]
fn bytes_are_split_into_codes_whose_upper_bits_do_not_count() {
    let codes = |dtype, bytes: &[u8]| bits::codes(dtype, bytes).collect::<Vec<_>>();
    assert_eq!(codes(Dtype::Int4, &[0xff, 0x0f, 0x71]), [0xf, 0xf, 0x1]);
    assert_eq!(codes(Dtype::Float16, &[0x00, 0x3c, 0x01, 0x80]), [0x3c00, 0x8001]);
    assert_eq!(codes(Dtype::Complex64, &[0, 0, 0xc0, 0x3f, 0, 0, 0, 0xc0]), [0xc000_0000_3fc0_0000]);
    assert_eq!(codes(Dtype::Float64, &[]), []);
    assert_eq!(bits::meaning(Dtype::Int4, 0xf5).value, "5");
    assert_eq!(bits::meaning(Dtype::Float4E2M1, 0xf2).value, "1");
}

#[test]
fn a_row_of_hex_is_bare_in_a_pipe() {
    let codes = [1.5_f32, -0.0, f32::INFINITY, std::f32::consts::PI].map(|value| value.to_bits().into());
    assert_eq!(bits::hex_row(Dtype::Float32, 0, &codes, &PIPE), "0  3fc00000 80000000 7f800000 40490fdb");
    assert_eq!(bits::hex_row(Dtype::Uint2, 128, &[0, 3, 1], &PIPE), "128  0 3 1");
    assert_eq!(bits::hex_row(Dtype::Float6E2M3, 16, &[0x3f], &PIPE), "16  3f");
    assert_eq!(bits::hex_row(Dtype::Complex64, 2, &[0xc000_0000_3fc0_0000], &PIPE), "2  3fc00000c0000000");
    let per_row =
        [(Dtype::Int1, 16), (Dtype::Int8, 16), (Dtype::Float16, 8), (Dtype::Int64, 2), (Dtype::Complex128, 1)];
    for (dtype, elements) in per_row {
        assert_eq!(bits::per_row(dtype), elements, "{dtype}");
    }
}

fn without_colors(row: &str) -> String {
    anstream::adapter::strip_str(row).to_string()
}

#[test]
fn a_row_of_hex_shows_values_on_a_terminal_where_they_fit() {
    let codes = [1.5_f32, -0.0, f32::INFINITY, std::f32::consts::PI].map(|value| value.to_bits().into());
    let row = bits::hex_row(Dtype::Float32, 0, &codes, &TERMINAL);
    assert!(row.starts_with("\u{1b}[2m  0\u{1b}[0m  3fc00000"), "{row:?}");
    let whole = "  0  3fc00000 80000000 7f800000 40490fdb  |1.5 -0 INF 3.14159|";
    assert_eq!(without_colors(&row), whole);
    let last = bits::hex_row(Dtype::Float32, 4, &codes[..1], &TERMINAL);
    assert_eq!(without_colors(&last), "  4  3fc00000                             |1.5|");
    let width = |width| without_colors(&bits::hex_row(Dtype::Float32, 0, &codes, &RenderStyle { width, ..TERMINAL }));
    let widest = "  0  bdfcd35b bdfcd35b bdfcd35b bdfcd35b  |-0.12345 -0.12345 -0.12345 -0.12345|".len();
    assert_eq!(width(widest), whole);
    assert_eq!(width(widest - 1), "  0  3fc00000 80000000 7f800000 40490fdb");
    let complex = bits::hex_row(Dtype::Complex64, 0, &[0x3eaa_aaab_bfc0_0000], &TERMINAL);
    assert_eq!(without_colors(&complex), "  0  bfc000003eaaaaab                   |-1.5+0.33333i|");
}

#[test]
fn a_short_row_of_hex_has_values_only_where_full_ones_have() {
    let mut random = Random(4);
    for dtype in every_type() {
        let mut number = || match dtype {
            // Others are longer than is common.
            Dtype::Int32 | Dtype::Uint32 | Dtype::Int64 | Dtype::Uint64 => random.next() % 100_000_000,
            Dtype::Float64 | Dtype::Complex128 => 0xbfe0_0000_0000_0000 | random.next() >> 12,
            _ => random.next() | u64::from(dtype == Dtype::Bool),
        };
        let mut code = || u128::from(number()) << 64 | u128::from(number());
        let codes: Vec<u128> = (0..2000).map(|_| code()).collect();
        for width in [60, 80, 100, 120, 160, 200] {
            let style = RenderStyle { width, ..TERMINAL };
            let row = |codes: &[u128]| without_colors(&bits::hex_row(dtype, 0, codes, &style));
            let has_values = row(&codes[..1]).contains('|');
            for codes in codes.chunks(bits::per_row(dtype)) {
                assert_eq!(row(codes).contains('|'), has_values, "{dtype} in {width}: {}", row(codes));
                assert!(!has_values || row(codes).len() <= width, "{}", row(codes));
            }
        }
    }
}

#[test]
fn a_row_of_bits_says_the_parts_the_value_and_the_kind() {
    let rows = [
        (Dtype::Float32, 0x3fc0_0000, "7  0 01111111 10000000000000000000000  1.5 = 3*2^-1  normal"),
        (Dtype::Float32, 0x8000_0000, "7  1 00000000 00000000000000000000000  -0  zero"),
        (Dtype::Float32, 0xff80_0000, "7  1 11111111 00000000000000000000000  -INF  infinite"),
        (Dtype::Float32, 0x7f80_0001, "7  0 11111111 00000000000000000000001  NaN, payload 0x1  signalling NaN"),
        (Dtype::Float16, 0x03ff, "7  0 00000 1111111111  0.00006097555 = 1023*2^-24  subnormal"),
        (Dtype::Float8E4M3FN, 0x7f, "7  0 1111 111  NaN  NaN"),
        (Dtype::Float8E4M3FNUZ, 0x80, "7  1 0000 000  NaN  NaN"),
        (Dtype::Float8E5M2, 0x7e, "7  0 11111 10  NaN  quiet NaN"),
        (Dtype::Float4E2M1, 0xf, "7  1 11 1  -6  normal"),
        (Dtype::Float8E8M0, 0x7e, "7  01111110  0.5 = 1*2^-1  normal"),
        (Dtype::Int4, 0x8, "7  1 000  -8  integer"),
        (Dtype::Uint2, 0x3, "7  11  3  integer"),
        (Dtype::Bool, 0x00, "7  00000000  false  bool"),
        (Dtype::Bool, 0x02, "7  00000010  true (2 counts as true)  bool"),
        (
            Dtype::Complex64,
            0xc000_0000_3fc0_0000,
            "7  0 01111111 10000000000000000000000 1 10000000 00000000000000000000000  1.5-2i = 3*2^-1-2i  normal, normal",
        ),
    ];
    for (dtype, code, row) in rows {
        assert_eq!(bits::bits_row(dtype, 7, code, &PIPE), row);
    }
}

#[test]
fn rows_of_bits_stand_in_columns_on_a_terminal() {
    let row = bits::bits_row(Dtype::Float16, 7, 0xbe00, &TERMINAL);
    let (red, green, cyan, dim, off) = ("\u{1b}[31m", "\u{1b}[32m", "\u{1b}[36m", "\u{1b}[2m", "\u{1b}[0m");
    let parts = format!("{dim}  7{off}  {red}1{off} {green}01111{off} {cyan}1000000000{off}  -1.5 = -3*2^-1");
    assert!(row.starts_with(&parts), "{row:?}");

    for dtype in every_type().filter(|&dtype| dtype != Dtype::Float8E8M0) {
        let mut random = Random(3);
        let mut columns = BTreeMap::new();
        for index in 0..1000 {
            let code = u128::from(random.next()) << 64 | u128::from(random.next());
            // Numbers near 1, as weights are, of every type that can have others.
            let code = match dtype {
                Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => {
                    let Class::Float(format) = dtype.class() else { unreachable!() };
                    let near = (format.bias as u128 - 1 - code % 3) << format.mantissa_bits;
                    near | ((code >> 64) % (1 << format.mantissa_bits))
                }
                Dtype::Bool => index % 2,
                Dtype::Complex64 | Dtype::Complex128 => 0,
                _ if dtype.bits() <= 8 => index,
                _ => code,
            };
            let row = without_colors(&bits::bits_row(dtype, index as u64, code, &TERMINAL));
            assert!(dtype.bits() > 32 || row.len() <= 80, "{row}");
            let signalling = row.ends_with("signalling NaN");
            let kind = row.rfind("  ").unwrap();
            columns.entry(kind).or_insert(row);
            assert!(signalling || columns.len() == 1, "{columns:#?}");
        }
    }
}

#[test]
fn no_color_gets_into_a_pipe_or_a_document() {
    for dtype in every_type() {
        let rows = bits::bits_row(dtype, 0, 1, &PIPE) + &bits::hex_row(dtype, 0, &[1], &PIPE);
        assert!(!(rows + &bits::bits_json(dtype, 0, 1).to_string()).contains('\u{1b}'), "{dtype}");
    }
}

#[test]
fn documents_say_what_rows_say() {
    let json = |text: &str| text.parse::<serde_json::Value>().unwrap();
    assert_eq!(bits::hex_json(Dtype::Float32, 4, 0x3fc0_0000), json(r#"{"index": 4, "bits": "3fc00000"}"#));
    assert_eq!(
        bits::bits_json(Dtype::Float8E5M2, 0, 0x3e),
        json(
            r#"{"index": 0, "bits": "3e", "parts": {"sign": "0", "exponent": "01111", "mantissa": "10"},
                "kind": "normal", "value": "1.5", "exact": "3*2^-1"}"#
        )
    );
    assert_eq!(
        bits::bits_json(Dtype::Float8E5M2, 1, 0xfd),
        json(
            r#"{"index": 1, "bits": "fd", "parts": {"sign": "1", "exponent": "11111", "mantissa": "01"},
                "kind": "signalling NaN", "value": "NaN", "payload": 1}"#
        )
    );
    let complex = bits::bits_json(Dtype::Complex64, 2, 0xc000_0000_3fc0_0000);
    assert_eq!(complex["value"], "1.5-2i");
    assert_eq!(complex["bits"], "3fc00000c0000000");
    assert_eq!((&complex["real"]["value"], &complex["imaginary"]["value"]), (&json("\"1.5\""), &json("\"-2\"")));
    assert_eq!(complex["imaginary"]["parts"]["exponent"], "10000000");
}
