//! Parsing of texts: numbers, types, patterns, sizes.

use super::trial::{MIB, within};
use tcast::cli::{ElementRange, Partition, Position, ToleranceArg};
use tcast::dtype::{Class, Dtype};
use tcast::kernel::{Loss, OutOfRange, Parser, Printer, RoundMode, Rules, Storage, Texts};
use tcast::operator::cast::Opset;
use tcast::options::Size;
use tcast::select::{Pattern, Rename, Rule, Selection, rule_to_keep};
use tcast::text::{flag_with, shorten, visible};

/// Maximum length of a pattern in bytes: patterns come from the command line, and not from files.
const PATTERN: usize = 256;

/// Checks texts as elements of tensors: the first byte chooses their type, the second the rules, and NULs divide the
/// rest. If the highest bit of the second byte is set, the rest is one argument.
pub fn string_parsing(bytes: &[u8]) {
    let Some((&[dtype, options], rest)) = bytes.split_first_chunk() else { return };
    let dtypes: Vec<Dtype> = Dtype::all().collect();
    let dtype = dtypes[usize::from(dtype) % dtypes.len()];
    let rules = Rules {
        saturate: options & 1 != 0,
        infinity_saturates_fnuz: options & 2 != 0,
        round_mode: [RoundMode::Up, RoundMode::Down, RoundMode::Nearest][usize::from(options >> 2 & 3) % 3],
        out_of_range: [OutOfRange::Wrap, OutOfRange::Saturate, OutOfRange::Error][usize::from(options >> 4 & 3) % 3],
    };
    within(8 * MIB + 64 * rest.len(), || {
        if options & 0x80 != 0 {
            return check_argument(&String::from_utf8_lossy(rest));
        }
        check_numbers(rest, dtype, rules);
        check_digits(rest, dtype);
    });
}

/// Checks that each text is a number or not, alone as among others, and that Rust's own library reads the same numbers.
fn check_numbers(bytes: &[u8], dtype: Dtype, rules: Rules) {
    let target = Storage::packed(dtype);
    let Some(parser) = Parser::new(target, &rules) else {
        let is_number = !matches!(dtype.class(), Class::Complex | Class::String);
        return assert!(!is_number || dtype.onnx_number().is_none(), "{dtype}");
    };
    let parse = |texts: &Texts| {
        let mut output = vec![0; target.bytes(texts.len() as u64).expect("few") as usize];
        parser.parse(texts, &mut output).map(|counts| (output, counts))
    };
    let (mut numbers, mut one_by_one) = (Texts::default(), Vec::new());
    for text in bytes.split(|byte| *byte == 0) {
        let mut texts = Texts::default();
        texts.push(text);
        match parse(&texts) {
            Ok((output, counts)) => {
                assert!(Loss::ALL.iter().all(|loss| counts[*loss] <= 1));
                check_number(text.trim_ascii(), dtype, rules, &output);
                numbers.push(text);
                one_by_one.push(output);
            }
            Err(error) => {
                assert_eq!(error.0, 0);
                assert!(plain_number(text.trim_ascii()).is_none(), "refused: {:?}", String::from_utf8_lossy(text));
            }
        }
    }
    let (together, _) = parse(&numbers).expect("each is a number");
    if dtype.bits() >= 8 {
        assert_eq!(together, one_by_one.concat());
    }
}

/// Parses a number with Rust's own library.
fn plain_number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn check_number(text: &[u8], dtype: Dtype, rules: Rules, output: &[u8]) {
    let is_word =
        dtype == Dtype::Bool && [b"true".as_slice(), b"false"].iter().any(|word| text.eq_ignore_ascii_case(word));
    let shown = String::from_utf8_lossy(text);
    let Some(value) = plain_number(text) else { return assert!(is_word, "taken: {shown:?}") };
    match dtype {
        Dtype::Float64 => {
            let found = f64::from_le_bytes(output.try_into().expect("8 bytes"));
            assert!(found.to_bits() == value.to_bits() || found.is_nan() && value.is_nan(), "{shown}: {found}");
        }
        Dtype::Float32 => {
            let (found, wanted) = (f32::from_le_bytes(output.try_into().expect("4 bytes")), shown.parse::<f32>());
            let wanted = wanted.expect("a float64 it is");
            assert!(found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(), "{shown}: {found}");
        }
        _ => {}
    }
    if let (Class::Int { signed }, Ok(whole)) = (dtype.class(), shown.parse::<i128>()) {
        let bits = dtype.bits();
        let (low, high) = if signed { (-1_i128 << (bits - 1), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
        let wanted = if rules.out_of_range == OutOfRange::Saturate { whole.clamp(low, high) } else { whole };
        let found = output.iter().rev().fold(0_i128, |sum, byte| sum << 8 | i128::from(*byte));
        assert_eq!(found & ((1 << bits) - 1), wanted & ((1 << bits) - 1), "{shown} as {dtype}");
    }
}

/// Checks that numbers become texts that are the same numbers.
fn check_digits(bytes: &[u8], dtype: Dtype) {
    let storage = Storage::packed(dtype);
    let rules = Rules {
        saturate: false,
        infinity_saturates_fnuz: false,
        round_mode: RoundMode::Nearest,
        out_of_range: OutOfRange::Error,
    };
    let (Some(printer), Some(parser)) = (Printer::new(storage), Parser::new(storage, &rules)) else { return };
    let bytes = &bytes[..bytes.len().min(1 << 10)];
    let count = bytes.len() * 8 / dtype.bits() as usize;
    let print = |bytes: &[u8]| {
        let mut texts = Texts::default();
        printer.print(bytes, count, &mut texts).expect("packed elements have no bits to spare");
        texts
    };
    let texts = print(bytes);
    let mut again = vec![0; bytes.len()];
    parser.parse(&texts, &mut again).expect("they are numbers");
    assert!(print(&again).iter().eq(texts.iter()), "{dtype}: {bytes:x?}");
}

/// Checks that an accepted argument is shown as text with the same meaning.
fn check_argument(text: &str) {
    assert!(!visible(text).contains(char::is_control));
    let short = shorten(text);
    assert!(short.len() <= 2 * 100 * 10 + 3 && !short.contains(char::is_control), "{short:?}");
    if text.len() > PATTERN {
        return;
    }
    match text.parse::<Dtype>() {
        Ok(dtype) => assert_eq!(dtype.name().parse(), Ok(dtype)),
        Err(error) => assert!(error.to_string().len() < 1 << 12 && !error.to_string().contains(char::is_control)),
    }
    if let Ok(opset) = text.parse::<Opset>() {
        assert!((1..=Opset::NEWEST).contains(&opset.number()) && opset.version() <= opset.number());
    }
    assert!(text.parse::<Size>().is_ok_and(|size| size.0 > 0) || text.parse::<Size>().is_err());
    assert!(
        text.parse::<Partition>().is_ok_and(|part| (1..=part.of).contains(&part.number))
            || text.parse::<Partition>().is_err()
    );
    if let Ok(ElementRange { start: Some(Position::Index(start)), end: Some(Position::Index(end)), .. }) = text.parse()
    {
        assert!(start <= end);
    }
    if let Ok(ToleranceArg(number)) = text.parse() {
        assert_eq!(ToleranceArg(number).to_string().parse(), Ok(ToleranceArg(number)));
    }
    if let Ok(rename) = text.parse::<Rename>() {
        assert_eq!(rename.to_string(), text);
    }
    if let Ok(pattern) = text.parse::<Pattern>() {
        let selection = Selection { include: vec![pattern.clone()], ..Selection::default() };
        let _ = selection.selects(text);
        assert_eq!(pattern.to_string(), text);
    }
    if let Ok(rule) = text.parse::<Rule>() {
        let again = rule.to_string();
        assert_eq!(again.parse::<Rule>().expect("it was one before").to_string(), again);
    }
    if cfg!(windows) {
        return; // its shells have other quotes
    }
    // The rule that messages propose must match the tensor that they name.
    let proposed = flag_with("--rule", &rule_to_keep(text));
    let word = proposed.strip_prefix("--rule").and_then(|word| word.strip_prefix([' ', '='])).expect("it has the flag");
    let rule: Rule = unquoted(word).parse().unwrap_or_else(|error| panic!("{proposed}: {error}"));
    let selection = Selection { rules: vec![rule], ..Selection::default() };
    assert!(selection.rule(text).is_some(), "{proposed} does not match");
}

/// Decodes a word in quotes, `'...'` or `$'...'`, like a POSIX shell.
fn unquoted(word: &str) -> String {
    let inside = |start: &str| word.strip_prefix(start).and_then(|word| word.strip_suffix('\''));
    let Some(escaped) = inside("$'") else { return inside("'").expect("it is quoted").replace(r"'\''", "'") };
    let (mut bytes, mut rest) = (Vec::new(), escaped.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b, c, after @ ..]) => {
                bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            (b'\\', [quoted, after @ ..]) => {
                bytes.push(*quoted);
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).expect("it was text")
}
