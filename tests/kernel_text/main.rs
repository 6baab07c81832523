//! Numbers to text and back, compared with exact decimals: from the standard library's `{:.N}`, which writes a float
//! out to its last digit, and from arithmetic on strings of digits and 128-bit integers.

mod decimals;
mod floats;
mod integers;
mod print;
#[path = "../common/reference.rs"]
mod reference;

use reference::NUMERIC;
use tcast::dtype::Dtype;
use tcast::kernel::{Counts, Loss, NotANumber, OutOfRange, Parser, Printer, RoundMode, Rules, Storage, Texts};

const RULES: Rules =
    Rules { saturate: true, infinity_saturates_fnuz: true, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap };
/// What lies beyond the range becomes Inf or NaN where the type has them.
const UNBOUND: Rules = Rules { saturate: false, ..RULES };

fn print(source: Storage, codes: &[u64]) -> Vec<String> {
    let mut texts = Texts::default();
    let bytes = reference::to_bytes(codes.iter().copied(), source);
    Printer::new(source).unwrap().print(&bytes, codes.len(), &mut texts).unwrap();
    texts.iter().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect()
}

fn parse_bytes(target: Storage, rules: Rules, texts: &[impl AsRef<[u8]>]) -> Result<(Vec<u8>, Counts), NotANumber> {
    let mut batch = Texts::default();
    for text in texts {
        batch.push(text.as_ref());
    }
    let mut bytes = vec![0xaa; target.bytes(texts.len() as u64).unwrap() as usize];
    let counts = Parser::new(target, &rules).unwrap().parse(&batch, &mut bytes)?;
    Ok((bytes, counts))
}

/// The codes of numbers, and what was lost.
fn parse(target: Dtype, rules: Rules, texts: &[impl AsRef<[u8]>]) -> (Vec<u64>, Counts) {
    let storage = Storage::packed(target);
    let (bytes, counts) = parse_bytes(storage, rules, texts).unwrap_or_else(|NotANumber(index)| {
        panic!("{target}: {:?}", String::from_utf8_lossy(texts[index].as_ref()));
    });
    ((0..texts.len()).map(|index| reference::element(&bytes, storage, index)).collect(), counts)
}

fn counts(losses: &[(Loss, u64)]) -> Counts {
    let mut counts = Counts::default();
    for &(loss, count) in losses {
        counts[loss] = count;
    }
    counts
}

const INTEGERS: [Dtype; 12] = [
    Dtype::Int2,
    Dtype::Int4,
    Dtype::Int8,
    Dtype::Int16,
    Dtype::Int32,
    Dtype::Int64,
    Dtype::Uint2,
    Dtype::Uint4,
    Dtype::Uint8,
    Dtype::Uint16,
    Dtype::Uint32,
    Dtype::Uint64,
];

#[test]
fn blanks_signs_points_and_exponents_are_read_as_people_write_them() {
    let one =
        ["1", "+1", " 1", "1\t", "\r\n1\x0c\n", "1.", "1.0", "01", "0.1e1", ".1E1", "10e-1", "1e0", "+1.e+00", "1e-0"];
    for dtype in NUMERIC.into_iter().filter(|&dtype| dtype != Dtype::Int2) {
        let expected = parse(dtype, RULES, &["1"]).0[0];
        let (codes, counts) = parse(dtype, RULES, &one);
        assert!(codes.iter().all(|&code| code == expected) && expected != 0, "{dtype}: {codes:x?}");
        assert!(counts.is_lossless(), "{dtype}");
    }
    let infinite = ["inf", "INF", "+Inf", "infinity", " InFiNiTy\n", "+INFINITY"];
    assert_eq!(parse(Dtype::Float16, RULES, &infinite).0, [0x7c00; 6]);
}

#[test]
fn all_else_is_no_number() {
    let texts: [&[u8]; 37] = [
        b"",
        b" ",
        b".",
        b"+",
        b"-",
        b"e5",
        b".e5",
        b"1e",
        b"1e+",
        b"1e-",
        b"1e1.5",
        b"1e 5",
        b"- 1",
        b"--1",
        b"+-1",
        b"1 2",
        b"1,5",
        b"1..2",
        b"1.2.3",
        b"0x10",
        b"1_000",
        b"1.5abc",
        b"1f",
        b"abc",
        b"in",
        b"infinit",
        b"infinity1",
        b"nan(1)",
        b"na",
        b"tru",
        b"yes",
        b"+true",
        b"\xff",
        b"1\xc2\xa0",
        "\u{661}".as_bytes(),
        b"1\0",
        b"\x0b1",
    ];
    for dtype in NUMERIC {
        for text in texts {
            let refused = parse_bytes(Storage::packed(dtype), RULES, &[&b"1"[..], text]);
            assert_eq!(refused, Err(NotANumber(1)), "{dtype} {:?}", String::from_utf8_lossy(text));
        }
        let word = parse_bytes(Storage::packed(dtype), RULES, &["true"]);
        assert_eq!(word.is_ok(), dtype == Dtype::Bool, "{dtype}");
    }
    let mut texts = vec!["1"; 3000];
    texts[2047] = "one";
    texts[2500] = "two";
    assert_eq!(parse_bytes(Storage::packed(Dtype::Uint2), RULES, &texts), Err(NotANumber(2047)));
}

/// In time that grows with the square of the length, this would take days.
#[test]
fn texts_of_any_length_take_linear_time() {
    const LENGTH: usize = 10_000_000;
    let zeros = "0".repeat(LENGTH);
    let texts = [
        format!("1{zeros}e-{LENGTH}"),
        format!("0.{zeros}1e{}", LENGTH + 1),
        format!("{zeros}1.{zeros}"),
        format!("1e-{zeros}"),
    ];
    for dtype in [Dtype::Float64, Dtype::Bfloat16, Dtype::Int64, Dtype::Uint2] {
        let one = parse(dtype, RULES, &["1"]).0[0];
        assert_eq!(parse(dtype, RULES, &texts), (vec![one; 4], Counts::default()), "{dtype}");
    }
    let nines = "9".repeat(LENGTH);
    let texts = [nines.clone(), format!("-.{nines}"), format!("1e{nines}"), format!("-1e-{nines}")];
    assert_eq!(parse(Dtype::Float32, RULES, &texts).0, [0x7f80_0000, 0xbf80_0000, 0x7f80_0000, 0x8000_0000]);
    assert_eq!(parse(Dtype::Int64, RULES, &texts).0, [u64::MAX, 0, 0, 0]);
    assert_eq!(parse(Dtype::Int4, RULES, &texts).0, [0xf, 0xf, 0, 0]);
}

#[test]
fn what_has_no_text_has_no_printer_and_no_parser() {
    for dtype in [Dtype::Complex64, Dtype::Complex128, Dtype::String] {
        assert!(Printer::new(Storage::packed(dtype)).is_none(), "{dtype}");
        assert!(Parser::new(Storage::packed(dtype), &RULES).is_none(), "{dtype}");
    }
    for dtype in NUMERIC {
        let big_endian = Storage { big_endian: true, ..Storage::packed(dtype) };
        assert!(Printer::new(big_endian).is_some());
        assert_eq!(Parser::new(big_endian, &RULES).is_none(), reference::bits(dtype) > 8, "{dtype}");
        let error = Rules { out_of_range: OutOfRange::Error, ..RULES };
        let refuses = Parser::new(Storage::packed(dtype), &error).unwrap().refuses();
        assert_eq!(refuses, INTEGERS.contains(&dtype).then_some(Loss::Wrapped), "{dtype}");
        assert_eq!(Parser::new(Storage::packed(dtype), &RULES).unwrap().refuses(), None);
    }
}

#[test]
fn texts_are_kept_apart_whatever_bytes_they_hold() {
    let mut texts = Texts::default();
    assert!(texts.is_empty());
    for text in [&b""[..], b"a\0b", b"", b"\xff"] {
        texts.push(text);
    }
    assert_eq!(texts.iter().collect::<Vec<_>>(), [&b""[..], b"a\0b", b"", b"\xff"]);
    assert_eq!((texts.len(), texts.get(1), texts.get(3)), (4, &b"a\0b"[..], &b"\xff"[..]));
    texts.clear();
    assert!(texts.is_empty() && texts.iter().next().is_none());
    texts.push(b"again");
    assert_eq!(texts.get(0), b"again");
}
