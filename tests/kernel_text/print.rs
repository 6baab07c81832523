//! Numbers as text, and the same numbers read back.

use super::decimals::{self, Random};
use super::reference::{self, NUMERIC};
use super::{RULES, UNBOUND, parse, parse_bytes, print};
use tcast::dtype::Dtype;
use tcast::kernel::{Malformed, Printer, RoundMode, Rules, Storage, Texts};

#[track_caller]
fn assert_reads_back(source: Storage, codes: &[u64]) {
    let texts = print(source, codes);
    // The shortest digits lie beside the number, and E8M0 in its other modes rounds all that does the same way.
    let rules = Rules { round_mode: RoundMode::Nearest, ..UNBOUND };
    let (bytes, _) = parse_bytes(source, rules, &texts).unwrap();
    for (index, (&code, text)) in codes.iter().zip(&texts).enumerate() {
        let is_nan = reference::decode(source.dtype, code).is_nan();
        assert_eq!(is_nan, text == "NaN", "{} {code:x}: {text}", source.dtype);
        let expected = reference::element(&reference::to_bytes([code], source), source, 0);
        assert!(is_nan || reference::element(&bytes, source, index) == expected, "{} {code:x}: {text}", source.dtype);
    }
}

#[test]
fn every_code_of_16_bits_and_fewer_reads_back_from_its_text() {
    for dtype in NUMERIC.into_iter().filter(|&dtype| reference::bits(dtype) <= 16) {
        let codes = if dtype == Dtype::Bool { 2 } else { 1 << reference::bits(dtype) };
        // More than two blocks, and a last byte that is not full.
        let codes: Vec<u64> = (0..codes.max(2501)).map(|index| index % codes).collect();
        assert_reads_back(Storage::packed(dtype), &codes);
        assert_reads_back(Storage::per_byte(dtype), &codes);
    }
}

#[test]
fn a_million_random_floats_and_integers_read_back_from_their_text() {
    let mut random = Random(1);
    let codes: Vec<u64> = (0..1_000_000).map(|_| random.next()).collect();
    assert_reads_back(Storage::packed(Dtype::Float64), &codes);
    let halves: Vec<u64> = codes.iter().map(|code| code >> 32).collect();
    for dtype in [Dtype::Float32, Dtype::Int32, Dtype::Uint32] {
        assert_reads_back(Storage::packed(dtype), &halves);
    }
    // Every length of 64-bit integers, and the ends.
    let mut integers: Vec<u64> = codes.iter().take(100_000).map(|code| code >> (code % 64)).collect();
    integers.extend([0, 1, u64::MAX, i64::MAX as u64, i64::MIN as u64, 1 << 53, (1 << 53) + 1]);
    assert_reads_back(Storage::packed(Dtype::Uint64), &integers);
    assert_reads_back(Storage::packed(Dtype::Int64), &integers);
}

#[test]
fn numbers_are_written_as_the_shortest_digits_without_exponent() {
    let table = [
        (Dtype::Float32, 0x3f80_0000, "1"),
        (Dtype::Float32, 0, "0"),
        (Dtype::Float32, 0x8000_0000, "-0"),
        (Dtype::Float32, 0x3dcc_cccd, "0.1"),
        (Dtype::Float32, 0x38d1_b717, "0.0001"),
        (Dtype::Float32, 0x33d6_bf95, "0.0000001"),
        (Dtype::Float32, 0x60ad_78ec, "100000000000000000000"),
        (Dtype::Float32, 0x4ceb_79a3, "123456790"),
        (Dtype::Float32, 0x4b80_0000, "16777216"),
        (Dtype::Float32, 0x3f1a_d728, "0.6048455"),
        (Dtype::Float32, 0x7f80_0000, "INF"),
        (Dtype::Float32, 0xff80_0000, "-INF"),
        (Dtype::Float32, 0x7fc0_0000, "NaN"),
        (Dtype::Float32, 0xffc0_0001, "NaN"),
        (Dtype::Float64, 0x3fd5_5555_5555_5555, "0.3333333333333333"),
        (Dtype::Float64, 0xfff0_0000_0000_0000, "-INF"),
        (Dtype::Float64, 0xfff8_0000_0000_0000, "NaN"),
        (Dtype::Float64, 0x4415_af1d_78b5_8c40, "100000000000000000000"),
        (Dtype::Float16, 0x2e66, "0.099975586"),
        (Dtype::Float16, 0x47e5, "7.8945312"), // 7.8945313 is as short and as near
        (Dtype::Float32, 0x3980_0000, "0.00024414062"),
        (Dtype::Float32, 0x4818_b4e8, "156371.62"),
        (Dtype::Float32, 0x4818_b4f8, "156371.88"),
        (Dtype::Float64, 0x430c_6bf5_2634_0002, "1000000000000000.2"),
        (Dtype::Float16, 0xfbff, "-65504"),
        (Dtype::Bfloat16, 0x3dcd, "0.100097656"),
        (Dtype::Float8E4M3FN, 0x1d, "0.1015625"),
        (Dtype::Float8E4M3FNUZ, 0x80, "NaN"),
        (Dtype::Float8E8M0, 0x00, "0.000000000000000000000000000000000000005877472"),
        (Dtype::Float8E8M0, 0xff, "NaN"),
        (Dtype::Float6E3M2, 0x3f, "-28"),
        (Dtype::Float4E2M1, 0x8, "-0"),
        (Dtype::Bool, 0, "0"),
        (Dtype::Bool, 2, "1"),
        (Dtype::Int2, 2, "-2"),
        (Dtype::Uint4, 15, "15"),
        (Dtype::Int64, 1 << 63, "-9223372036854775808"),
        (Dtype::Uint64, u64::MAX, "18446744073709551615"),
    ];
    for (dtype, code, text) in table {
        assert_eq!(print(Storage::per_byte(dtype), &[code]), [text], "{dtype} {code:x}");
    }
    let big_endian = Storage { big_endian: true, ..Storage::packed(Dtype::Float64) };
    assert_eq!(print(big_endian, &[1.5_f64.to_bits()]), ["1.5"]);
}

#[test]
fn no_number_can_be_written_with_fewer_digits() {
    let mut random = Random(2);
    for _ in 0..50_000 {
        let bits = random.next();
        let float = f32::from_bits(bits as u32);
        let wide = f64::from_bits(bits);
        let [text] = &print(Storage::packed(Dtype::Float32), &[bits & 0xffff_ffff])[..] else { unreachable!() };
        let digits = decimals::significant(text);
        if float.is_finite() && digits > 1 {
            assert_ne!(format!("{float:.*e}", digits - 2).parse(), Ok(float), "{text}");
        }
        let [text] = &print(Storage::packed(Dtype::Float64), &[bits])[..] else { unreachable!() };
        let digits = decimals::significant(text);
        if wide.is_finite() && digits > 1 {
            assert_ne!(format!("{wide:.*e}", digits - 2).parse(), Ok(wide), "{text}");
        }
    }
}

/// All floats that lie halfway between two decimals of so many digits, more or less.
fn ties(mantissas: impl Iterator<Item = u64> + Clone, places: std::ops::Range<i32>) -> impl Iterator<Item = f64> {
    places.flat_map(move |places| mantissas.clone().map(move |mantissa| (2 * mantissa + 1) as f64 / 2_f64.powi(places)))
}

#[test]
fn of_two_shortest_texts_as_near_the_one_with_the_even_digit_is_written() {
    /// The same digits by the standard library's exact decimals, which are rounded to even.
    #[track_caller]
    fn assert_nearest<T: std::fmt::LowerExp + std::str::FromStr + PartialEq>(float: &T, text: &str) -> bool {
        let nearest = format!("{float:.*e}", decimals::significant(text).max(1) - 1);
        // Beside a power of two the nearest can be the text of another float.
        let is_told = nearest.parse().is_ok_and(|read: T| read == *float);
        assert!(!is_told || nearest.parse::<f64>() == text.parse::<f64>(), "{text}, not {nearest}");
        is_told
    }
    let mut random = Random(3);
    let some: Vec<u64> = (0..4000).map(|_| random.next()).collect();
    let mut floats: Vec<f32> = (0..1 << 16).map(|upper| f32::from_bits(upper << 16)).collect();
    floats.extend(some.iter().map(|bits| f32::from_bits(*bits as u32)));
    floats.extend(ties(0..1 << 12, 1..24).chain(ties((1 << 22)..(1 << 22) + 4096, 1..24)).map(|float| float as f32));
    floats.retain(|float| float.is_finite());
    let texts =
        print(Storage::packed(Dtype::Float32), &floats.iter().map(|float| float.to_bits().into()).collect::<Vec<_>>());
    let told = floats.iter().zip(&texts).filter(|(float, text)| assert_nearest(*float, text)).count();
    assert!(told > floats.len() * 9 / 10);
    let mantissas = some.iter().map(|bits| bits >> 12);
    let wide = ties(mantissas.clone(), 1..30).chain(ties(0..512, 1..60)).chain(mantissas.map(f64::from_bits));
    let wide: Vec<f64> = wide.chain((-1074..1023).map(|exponent| 2_f64.powi(exponent))).collect();
    let texts = print(Storage::packed(Dtype::Float64), &wide.iter().map(|float| float.to_bits()).collect::<Vec<_>>());
    let told = wide.iter().zip(&texts).filter(|(float, text)| assert_nearest(*float, text)).count();
    assert!(told > wide.len() * 9 / 10);
}

#[test]
fn bits_above_a_narrow_float_are_refused() {
    let printer = Printer::new(Storage::per_byte(Dtype::Float4E2M1)).unwrap();
    assert_eq!(printer.print(&[0x01, 0x10], 2, &mut Texts::default()), Err(Malformed));
}

#[test]
fn shortest_digits_of_a_scale_may_be_rounded_up_to_the_next() {
    let codes: Vec<u64> = (0..255).collect();
    let texts = print(Storage::packed(Dtype::Float8E8M0), &codes);
    let (up, _) = parse(Dtype::Float8E8M0, RULES, &texts);
    assert_eq!(up[0], 1); // 5.877472e-39 is more than 2^-127
    assert!(up.iter().zip(&codes).all(|(up, code)| up == code || *up == code + 1 || *code == 254));
    assert_eq!(up[116..150], codes[116..150]); // 2^-11 to 2^22 are written out in full
}
