//! Numbers to text: the shortest decimal digits that read back to the same number, without exponent.
//!
//! If two texts are equally short and equally near to the number, the result is the one with the even last digit, as in
//! numpy, Python and ONNX; Rust rounds such a number up.

use super::convert::{Kernel, Malformed};
use super::lane::BLOCK;
use super::rules::Rules;
use super::storage::Storage;
use super::text::Texts;
use crate::dtype::{Class, Dtype};
use std::fmt::Display;
use std::str::FromStr;

/// A conversion of numbers to text.
///
/// A float is written as the shortest digits that read back to the same float32 (float64 if that is the source;
/// narrower types are widened to float32, `cast.md`, rule 8), never with an exponent, and without `.0`. The special
/// values are `-0`, `INF`, `-INF`, and `NaN` without a sign. Integers are decimal; bool is `1` or `0`.
pub struct Printer {
    source: Storage,
    widen: Kernel,
    /// The result of `widen`: Float32, Float64, Int64 or Uint64.
    wide: Dtype,
}

impl Printer {
    /// Creates the printer for one type. `None` for complex and string.
    #[must_use]
    pub fn new(source: Storage) -> Option<Self> {
        let wide = match source.dtype.class() {
            Class::Bool | Class::Int { signed: false } => Dtype::Uint64,
            Class::Int { signed: true } => Dtype::Int64,
            Class::Float(_) if source.dtype == Dtype::Float64 => Dtype::Float64,
            Class::Float(_) | Class::Scale => Dtype::Float32,
            Class::Complex | Class::String => return None,
        };
        let widen = Kernel::cast(source, Storage::packed(wide), &Rules::LOSSLESS)?;
        Some(Self { source, widen, wide })
    }

    /// Appends the texts of `count` elements.
    ///
    /// # Errors
    /// [`Malformed`], as for [`Kernel::run`]; some texts may have been appended before.
    ///
    /// # Panics
    /// When `input` is too short for `count` elements.
    pub fn print(&self, input: &[u8], count: usize, texts: &mut Texts) -> Result<(), Malformed> {
        let mut wide = [0; BLOCK * 8];
        for start in (0..count).step_by(BLOCK) {
            let end = count.min(start + BLOCK);
            let input = &input[self.source.offset(start)..self.source.offset(end)];
            let wide = &mut wide[..(end - start) * self.wide.bits() as usize / 8];
            self.widen.run(input, wide, end - start)?;
            match self.wide {
                Dtype::Float32 => each(wide, |bytes| push_float(texts, f32::from_le_bytes(bytes))),
                Dtype::Float64 => each(wide, |bytes| push_float(texts, f64::from_le_bytes(bytes))),
                Dtype::Int64 => each(wide, |bytes| texts.push_shown(i64::from_le_bytes(bytes))),
                _ => each(wide, |bytes| texts.push_shown(u64::from_le_bytes(bytes))),
            }
        }
        Ok(())
    }
}

fn each<const N: usize>(bytes: &[u8], print: impl FnMut([u8; N])) {
    bytes.as_chunks().0.iter().copied().for_each(print);
}

/// A float type, whose precision determines the shortest digits.
pub trait Float: Copy + Display + FromStr + PartialEq + Into<f64> {}
impl Float for f32 {}
impl Float for f64 {}

fn push_float(texts: &mut Texts, float: impl Float) {
    let value: f64 = float.into();
    if value.is_finite() {
        texts.push_shown(float);
        let last = texts.last_mut();
        if let Some(digit) = even_digit(last, float) {
            last[last.len() - 1] = digit;
        }
    } else if value.is_nan() {
        texts.push(b"NaN");
    } else {
        texts.push(if value < 0.0 { b"-INF" } else { b"INF" });
    }
}

/// Formats a finite float as [`Printer`] does.
pub fn shortest(float: impl Float) -> String {
    let mut text = float.to_string();
    if let Some(digit) = even_digit(text.as_bytes(), float) {
        text.pop();
        text.push(digit.into());
    }
    text
}

/// Returns the even last digit of another text that is as short and as near as `shown`, if there is one. `shown` is
/// Rust's text of the float: the shortest digits that read back, without exponent.
///
/// A float with n binary places has n decimal places, and ends in 25 or 75 if n is at least 2. It lies halfway between
/// two texts if they lack only its last place; the even text ends in 2 or 8. This cannot happen to an integer: its
/// neighbours would be too far away.
fn even_digit<T: Float>(shown: &[u8], float: T) -> Option<u8> {
    let even = match shown.last()? {
        b'3' => b'2',
        b'7' => b'8',
        _ => return None,
    };
    let point = shown.iter().rposition(|byte| *byte == b'.')?;
    if shown.len() - point != binary_places(float.into()) {
        return None;
    }
    // Below a power of two floats are closer together: the other text may belong to the next float.
    let other = [&shown[..shown.len() - 1], &[even]].concat();
    let reads_back = std::str::from_utf8(&other).ok()?.parse().is_ok_and(|other: T| other == float);
    reads_back.then_some(even)
}

/// Number of bits after the binary point of a finite number.
fn binary_places(value: f64) -> usize {
    const MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
    let field = (value.abs().to_bits() >> MANTISSA) as u32;
    let zeros = value.to_bits().trailing_zeros().min(MANTISSA);
    (f64::MAX_EXP as u32 - 1 + MANTISSA).saturating_sub(field.max(1) + zeros) as usize
}
