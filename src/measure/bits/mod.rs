//! Bits of an element and their meaning: the text of `tcast bitcast --hex` and `--bits`.
//!
//! An element is given as its code: the low [`Dtype::bits`] bits of a number of 128, with a complex number's real part
//! in the lower half, as in little-endian memory. Higher bits are ignored. A complex number is two floats, not one
//! number of twice the width, so its real part is always written first. Texts have no code: callers exclude them.

#[cfg(feature = "cli")]
mod render;
#[cfg(feature = "cli")]
mod weight;

#[cfg(feature = "cli")]
pub use render::{RenderStyle, bits_json, bits_row, hex_json, hex_row};
#[cfg(feature = "cli")]
pub use weight::{explanation_json, explanation_row};

use crate::dtype::{Class, Dtype, FloatFormat, Specials};
use crate::kernel::shortest;
use crate::measure::number::power_of_two;
use serde::Serialize;

/// A field of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BitField {
    /// One bit, set for negative numbers.
    Sign,
    /// A float's power of two, with its bias.
    Exponent,
    /// A float's digits after the hidden first one.
    Mantissa,
    /// The digits of an integer or a bool, without a signed integer's sign bit.
    Integer,
}

/// Kind of value that a code represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A float's zero, of either sign.
    Zero,
    /// A float that has no hidden bit.
    Subnormal,
    /// Any other finite float.
    Normal,
    /// Infinity of either sign.
    Infinite,
    /// The NaN of a format that has only one kind.
    Nan,
    /// An IEEE NaN whose first mantissa bit is set (IEEE 754-2019, 6.2.1).
    QuietNan,
    /// An IEEE NaN whose first mantissa bit is clear.
    SignallingNan,
    Integer,
    Bool,
    /// Two floats, each with its own kind.
    Complex,
}

impl ValueKind {
    /// Returns the name in rows and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Subnormal => "subnormal",
            Self::Normal => "normal",
            Self::Infinite => "infinite",
            Self::Nan => "NaN",
            Self::QuietNan => "quiet NaN",
            Self::SignallingNan => "signalling NaN",
            Self::Integer => "integer",
            Self::Bool => "bool",
            Self::Complex => "complex",
        }
    }
}

/// Meaning of a code, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub kind: ValueKind,
    /// The number as [`crate::kernel::Printer`] writes it; `true` and `false`; `1.5-2i`.
    pub value: String,
    /// A finite float as an odd integer times a power of two, `-3*2^-1`; `None` if `value` is an integer and exact.
    pub exact: Option<String>,
    /// The mantissa of an IEEE NaN below its quiet bit, if not zero.
    pub payload: Option<u64>,
}

/// Returns the codes of elements stored as [`crate::kernel::Storage::per_byte`].
pub fn codes(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = u128> {
    bytes.chunks_exact(bytes_of(dtype)).map(move |bytes| {
        let code = bytes.iter().rev().fold(0, |code, byte| code << 8 | u128::from(*byte));
        low_bits(dtype, code)
    })
}

/// Formats the code in hexadecimal, as wide as its type, highest digit first. A complex number's real part comes first.
pub fn hex(dtype: Dtype, code: u128) -> String {
    let digit = |(dtype, code): (Dtype, u128)| format!("{code:0width$x}", width = dtype.bits().div_ceil(4) as usize);
    numbers(dtype, code).into_iter().map(digit).collect()
}

/// Returns the number of elements in a row of `--hex`: 16 bytes of them, or 16 elements if several would fit in a byte.
pub fn per_row(dtype: Dtype) -> usize {
    16 / bytes_of(dtype)
}

/// Returns the binary digits of a code by field, most significant first; a complex number's real part first.
pub fn parts(dtype: Dtype, code: u128) -> Vec<(BitField, String)> {
    numbers(dtype, code).into_iter().flat_map(|(dtype, code)| parts_of_number(dtype, code)).collect()
}

fn parts_of_number(dtype: Dtype, code: u128) -> Vec<(BitField, String)> {
    let bits = dtype.bits();
    let widths = match dtype.class() {
        // The single bit of an integer is its sign.
        Class::Int { signed: true } if bits == 1 => vec![(BitField::Sign, 1)],
        Class::Int { signed: true } => vec![(BitField::Sign, 1), (BitField::Integer, bits - 1)],
        Class::Int { signed: false } | Class::Bool => vec![(BitField::Integer, bits)],
        Class::Float(FloatFormat { exponent_bits, mantissa_bits, .. }) => {
            vec![(BitField::Sign, 1), (BitField::Exponent, exponent_bits), (BitField::Mantissa, mantissa_bits)]
        }
        Class::Scale => vec![(BitField::Exponent, bits)],
        Class::Complex | Class::String => unreachable!("{dtype} is not one number"),
    };
    let digits = format!("{code:0width$b}", width = bits as usize);
    let mut rest = digits.as_str();
    let parts = widths.into_iter().map(|(part, width)| {
        let (digits, behind) = rest.split_at(width as usize);
        rest = behind;
        (part, digits.to_owned())
    });
    parts.collect()
}

pub fn meaning(dtype: Dtype, code: u128) -> Meaning {
    if let Some(halves) = halves(dtype, code) {
        return complex(&halves.map(|(dtype, code)| meaning(dtype, code)));
    }
    let bits = dtype.bits();
    let code = low_bits(dtype, code);
    match dtype.class() {
        Class::Bool => plain(ValueKind::Bool, (code != 0).to_string()),
        Class::Int { signed: false } => plain(ValueKind::Integer, code.to_string()),
        Class::Int { signed: true } => {
            let extended = (code << (128 - bits)) as i128 >> (128 - bits);
            plain(ValueKind::Integer, extended.to_string())
        }
        Class::Float(format) => float(dtype, &format, code as u64),
        Class::Scale if code == 0xff => plain(ValueKind::Nan, "NaN"),
        // 2^-127 has a code like all others here, although it is subnormal in float32.
        Class::Scale => finite(dtype, ValueKind::Normal, power_of_two(code as i32 - 127), 1, code as i32 - 127),
        Class::Complex | Class::String => unreachable!("{dtype} is not one number"),
    }
}

fn float(dtype: Dtype, format: &FloatFormat, code: u64) -> Meaning {
    let magnitude = code & (format.sign() - 1);
    let is_negative = code != magnitude;
    let field = magnitude >> format.mantissa_bits;
    let mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
    if format.specials == Specials::Ieee && magnitude == format.infinity() {
        return plain(ValueKind::Infinite, if is_negative { "-INF" } else { "INF" });
    }
    if format.specials == Specials::Ieee && magnitude > format.infinity() {
        let quiet = 1 << (format.mantissa_bits - 1);
        let kind = if mantissa & quiet == 0 { ValueKind::SignallingNan } else { ValueKind::QuietNan };
        let payload = Some(mantissa & !quiet).filter(|&payload| payload != 0);
        return Meaning { payload, ..plain(kind, "NaN") };
    }
    // In a format without NaN, this is the code of negative zero.
    if format.specials != Specials::Finite && (magnitude > format.max_finite() || code == format.nan()) {
        return plain(ValueKind::Nan, "NaN");
    }
    let kind = match (field, mantissa) {
        (0, 0) => ValueKind::Zero,
        (0, _) => ValueKind::Subnormal,
        _ => ValueKind::Normal,
    };
    let integer = if field == 0 { mantissa } else { mantissa | 1 << format.mantissa_bits };
    let exponent = format.min_subnormal_exponent() + (field as i32 - 1).max(0);
    let number = match dtype {
        Dtype::Float64 => f64::from_bits(code),
        _ if is_negative => -(integer as f64 * power_of_two(exponent)),
        _ => integer as f64 * power_of_two(exponent),
    };
    finite(dtype, kind, number, integer, exponent)
}

/// Returns the meaning of `number`, whose magnitude is `integer` times 2 to the `exponent`; digits as in
/// [`crate::kernel::Printer`].
fn finite(dtype: Dtype, kind: ValueKind, number: f64, integer: u64, exponent: i32) -> Meaning {
    let value = if dtype == Dtype::Float64 { shortest(number) } else { shortest(number as f32) };
    let (zeros, sign) = (integer.trailing_zeros(), if number < 0.0 { "-" } else { "" });
    let (odd, exponent) = (integer.unbounded_shr(zeros), exponent + zeros as i32);
    // The shortest digits of a large integer end in zeros that it does not have; `.0` prints it completely.
    let is_told = kind == ValueKind::Zero || exponent >= 0 && value == format!("{number:.0}");
    let exact = (!is_told).then(|| format!("{sign}{odd}*2^{exponent}"));
    Meaning { exact, ..plain(kind, value) }
}

fn complex(parts: &[Meaning; 2]) -> Meaning {
    let join = |[real, imaginary]: [&str; 2]| {
        let plus = if imaginary.starts_with('-') { "" } else { "+" };
        format!("{real}{plus}{imaginary}i")
    };
    let is_finite = |part: &Meaning| matches!(part.kind, ValueKind::Zero | ValueKind::Subnormal | ValueKind::Normal);
    let is_told = parts.iter().all(|part| part.exact.is_none());
    let exact = (parts.iter().all(is_finite) && !is_told)
        .then(|| join(parts.each_ref().map(|part| part.exact.as_ref().unwrap_or(&part.value).as_str())));
    Meaning { exact, ..plain(ValueKind::Complex, join(parts.each_ref().map(|part| part.value.as_str()))) }
}

fn plain(kind: ValueKind, value: impl Into<String>) -> Meaning {
    Meaning { kind, value: value.into(), exact: None, payload: None }
}

/// Returns the real and the imaginary part of a complex number; `None` for other types.
fn halves(dtype: Dtype, code: u128) -> Option<[(Dtype, u128); 2]> {
    let part = dtype.part();
    if part == dtype {
        return None;
    }
    Some([code, code >> part.bits()].map(|code| (part, low_bits(part, code))))
}

/// Returns the one or two numbers that an element consists of.
fn numbers(dtype: Dtype, code: u128) -> Vec<(Dtype, u128)> {
    halves(dtype, code).map_or_else(|| vec![(dtype, low_bits(dtype, code))], Vec::from)
}

fn low_bits(dtype: Dtype, code: u128) -> u128 {
    code & (u128::MAX >> (128 - dtype.bits()))
}

fn bytes_of(dtype: Dtype) -> usize {
    dtype.bits().div_ceil(8) as usize
}
