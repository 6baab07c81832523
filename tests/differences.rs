//! The table of docs/differences.md: tcast's column, to the bit.
#![allow(clippy::unwrap_used)]

use clap::ValueEnum;
use tcast::dtype::Dtype;
use tcast::kernel::{Isa, Kernel, NotANumber, OutOfRange, Parser, Printer, RoundMode, Storage, Texts};
use tcast::operator::cast::CastAttributes;

const PAGE: &str = include_str!("../docs/differences.md");

/// More than fit in a vector register, and no multiple of one: other tools' results depend on the place.
const COPIES: usize = 37;

/// A value as the table writes it.
#[derive(Debug, PartialEq)]
enum Value {
    /// `3f80`, most significant digit first.
    Bits(u64),
    /// `"1.5"`.
    Text(String),
    /// A text that is not a number.
    Error,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    line: &'static str,
    source: Dtype,
    input: Value,
    target: Dtype,
    attributes: CastAttributes,
    result: Value,
}

impl Row {
    fn is_numeric(&self) -> bool {
        self.source != Dtype::String && self.target != Dtype::String
    }
}

fn code(cell: &'static str) -> Option<&'static str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

/// A value of a type: digits for all of its bits, or a quoted text.
fn value(dtype: Dtype, written: &str) -> Value {
    if dtype == Dtype::String {
        let text = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        return Value::Text(text.unwrap_or_else(|| panic!("{written} is no quoted text")).to_owned());
    }
    assert_eq!(written.len(), (dtype.bits() as usize).div_ceil(4), "{written}: digits for each bit of {dtype}");
    Value::Bits(u64::from_str_radix(written, 16).unwrap())
}

fn attributes(flags: &str) -> CastAttributes {
    let mut attributes = CastAttributes::default();
    let mut words = flags.split([' ', '=']);
    while let Some(flag) = words.next() {
        let setting = words.next().unwrap_or_else(|| panic!("{flag} of what?"));
        match flag {
            "--saturate" => attributes.saturate = Some(setting.parse().unwrap()),
            "--round-mode" => attributes.round_mode = Some(RoundMode::from_str(setting, false).unwrap()),
            "--out-of-range" => attributes.out_of_range = Some(OutOfRange::from_str(setting, false).unwrap()),
            "--opset" => attributes.opset = Some(setting.parse().unwrap()),
            _ => panic!("{flag}: give the flag a line here"),
        }
    }
    attributes
}

fn parse(line: &'static str) -> Row {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [input, to, result, others, why] = cells[..] else { panic!("{line}: five cells are needed") };
    assert!(!others.is_empty() && !why.is_empty(), "{line}");
    let (source, input) = code(input).unwrap().split_once(' ').unwrap();
    let (target, flags) = code(to).map(|to| to.split_once(' ').unwrap_or((to, ""))).unwrap();
    let (source, target): (Dtype, Dtype) = (source.parse().unwrap(), target.parse().unwrap());
    let result = if result == "error" { Value::Error } else { value(target, code(result).unwrap()) };
    let attributes = if flags.is_empty() { CastAttributes::default() } else { attributes(flags) };
    Row { line, source, input: value(source, input), target, attributes, result }
}

fn rows() -> Vec<Row> {
    PAGE.lines().filter(|line| line.starts_with("| `")).map(parse).collect()
}

/// The low `bits` of a little endian element.
fn low_bits(element: &[u8], bits: u32) -> u64 {
    let number = element.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    number & (u64::MAX >> (64 - bits))
}

#[test]
fn every_number_becomes_what_the_table_says_wherever_it_stands() {
    let mut seen = 0;
    for case in rows().iter().filter(|case| case.is_numeric()) {
        let Row { line, source, input, target, attributes, result } = case;
        let (Value::Bits(input), Value::Bits(result)) = (input, result) else { panic!("{line}: bits are needed") };
        let width = |dtype: &Dtype| (dtype.bits() as usize).div_ceil(8);
        let input = input.to_le_bytes()[..width(source)].repeat(COPIES);
        let (from, to) = (Storage::per_byte(*source), Storage::per_byte(*target));
        let kernel = Kernel::cast(from, to, &attributes.rules()).unwrap();
        for isa in Isa::available() {
            let mut output = vec![0; width(target) * COPIES];
            kernel.run_on(isa, &input, &mut output, COPIES).unwrap();
            for (place, element) in output.chunks_exact(width(target)).enumerate() {
                let got = low_bits(element, target.bits());
                assert_eq!(got, *result, "{line}\n{got:x} at place {place}, {isa:?}");
            }
        }
        seen += 1;
    }
    assert!(seen >= 80, "{seen} rows were read");
}

/// The sign, and the leading bits of the fraction with the first of them set: the rule above the table.
fn quiet(bits: u64, source: Dtype, target: Dtype) -> u64 {
    let fraction = |dtype: Dtype| match dtype {
        Dtype::Float16 => 10,
        Dtype::Bfloat16 => 7,
        Dtype::Float32 => 23,
        _ => 52,
    };
    let (sign, payload) = (bits >> (source.bits() - 1), bits << (64 - fraction(source)) | 1 << 63);
    let width = target.bits() - 1;
    sign << width | ((1 << width) - 1) & !0 << fraction(target) | payload >> (64 - fraction(target))
}

#[test]
fn a_nan_keeps_its_sign_and_leading_bits_and_becomes_quiet() {
    let wide = [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32, Dtype::Float64];
    for (source, infinite) in [(Dtype::Float16, 0x7c00_u16), (Dtype::Bfloat16, 0x7f80)] {
        let nans: Vec<u16> = (infinite + 1..0x8000).flat_map(|code| [code, code | 0x8000]).collect();
        let input: Vec<u8> = nans.iter().flat_map(|code| code.to_le_bytes()).collect();
        for target in wide.into_iter().filter(|target| *target != source) {
            let (from, to) = (Storage::per_byte(source), Storage::per_byte(target));
            let kernel = Kernel::cast(from, to, &CastAttributes::default().rules()).unwrap();
            for isa in Isa::available() {
                let width = target.bits() as usize / 8;
                let mut output = vec![0; width * nans.len()];
                kernel.run_on(isa, &input, &mut output, nans.len()).unwrap();
                for (code, element) in nans.iter().zip(output.chunks_exact(width)) {
                    let (got, wanted) = (low_bits(element, target.bits()), quiet((*code).into(), source, target));
                    assert_eq!(got, wanted, "{source} {code:04x} to {target}: {got:x} is not {wanted:x}, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn every_text_and_number_becomes_the_other_as_the_table_says() {
    let mut seen = 0;
    for case in rows().iter().filter(|case| !case.is_numeric()) {
        let Row { line, source, input, target, attributes, result } = case;
        let got = match input {
            Value::Text(text) => {
                let mut texts = Texts::default();
                texts.push(text.as_bytes());
                let mut output = [0; 8];
                let parser = Parser::new(Storage::per_byte(*target), &attributes.rules()).unwrap();
                match parser.parse(&texts, &mut output) {
                    Ok(_) => Value::Bits(low_bits(&output, target.bits())),
                    Err(NotANumber(place)) => {
                        assert_eq!(place, 0, "{line}");
                        Value::Error
                    }
                }
            }
            Value::Bits(bits) => {
                let mut texts = Texts::default();
                let printer = Printer::new(Storage::per_byte(*source)).unwrap();
                printer.print(&bits.to_le_bytes(), 1, &mut texts).unwrap();
                assert_eq!(texts.len(), 1, "{line}");
                Value::Text(String::from_utf8(texts.get(0).to_vec()).unwrap())
            }
            Value::Error => panic!("{line}: an error is no input"),
        };
        assert_eq!(got, *result, "{line}");
        seen += 1;
    }
    assert!(seen >= 15, "{seen} rows were read");
}

#[test]
fn no_row_is_a_duplicate() {
    let mut cases: Vec<String> = rows()
        .iter()
        .map(|case| format!("{} {:?} {} {:?}", case.source, case.input, case.target, case.attributes))
        .collect();
    cases.sort_unstable();
    for pair in cases.windows(2) {
        assert_ne!(pair[0], pair[1]);
    }
}
