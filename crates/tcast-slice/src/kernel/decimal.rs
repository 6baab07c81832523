//! The grammar of numbers in text, and their exact integer part.

use std::cmp::Ordering;

/// A text that is a number.
#[derive(Clone, Copy)]
pub(super) struct NumericLiteral<'a> {
    pub(super) negative: bool,
    pub(super) magnitude: Magnitude<'a>,
}

#[derive(Clone, Copy)]
pub(super) enum Magnitude<'a> {
    Finite(Decimal<'a>),
    Infinity,
    Nan,
}

impl<'a> NumericLiteral<'a> {
    /// Reads `[+-]`, then digits with at most one point, and optionally `[eE][+-]` and digits; or `inf`, `infinity` or
    /// `nan` in any case. Surrounding spaces, tabs, line feeds, form feeds and carriage returns are ignored. Returns
    /// `None` for everything else.
    pub(super) fn read(text: &'a [u8]) -> Option<Self> {
        let (negative, text) = signed(text.trim_ascii());
        let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
        let magnitude = match text.first()? {
            b'0'..=b'9' | b'.' => Magnitude::Finite(Decimal::read(text)?),
            _ if is("inf") || is("infinity") => Magnitude::Infinity,
            _ if is("nan") => Magnitude::Nan,
            _ => return None,
        };
        Some(Self { negative, magnitude })
    }
}

/// An exact non-negative number: 0.d₁d₂d₃... times ten to the power of `point`.
///
/// `head` and `tail` are the digits of the text before and after its point, without leading and trailing zeros; zero
/// has no digits.
#[derive(Clone, Copy)]
pub(super) struct Decimal<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    /// Number of digits before the point. It includes zeros beyond the last digit; if negative, it counts zeros before
    /// the first digit.
    pub(super) point: i64,
}

impl<'a> Decimal<'a> {
    fn read(text: &'a [u8]) -> Option<Self> {
        let (head, rest) = digits(text);
        let (tail, rest) = match rest {
            [b'.', rest @ ..] => digits(rest),
            _ => (&rest[..0], rest),
        };
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', rest @ ..] => exponent(rest)?,
            _ => return None,
        };
        if head.is_empty() && tail.is_empty() {
            return None;
        }
        let mut point = exponent.saturating_add(head.len() as i64);
        let (zeros, head) = without_leading_zeros(head);
        point = point.saturating_sub(zeros);
        let (zeros, tail) = if head.is_empty() { without_leading_zeros(tail) } else { (0, tail) };
        point = point.saturating_sub(zeros);
        let tail = without_trailing_zeros(tail);
        let head = if tail.is_empty() { without_trailing_zeros(head) } else { head };
        Some(Self { head, tail, point })
    }

    pub(super) fn is_zero(&self) -> bool {
        self.len() == 0
    }

    /// Number of digits.
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// The digits, as text.
    pub(super) fn digits(&self) -> impl Iterator<Item = u8> {
        self.head.iter().chain(self.tail).copied()
    }

    /// Truncates the number to an integer. The second result compares the rest to a half; `None` if there is no rest.
    pub(super) fn integer(&self) -> (Integer, Option<Ordering>) {
        let before = self.point.clamp(0, self.len() as i64) as usize;
        let mut integer = Integer::default();
        self.digits().take(before).for_each(|digit| integer.append(digit - b'0'));
        // Zeros between the digits and the point: 64 of them leave none of the low bits, because 2^64 divides 10^64.
        for _ in before as i64..self.point.min(before as i64 + 64) {
            integer.append(0);
        }
        let mut rest = self.digits().skip(before);
        let tenths = match rest.next() {
            None => return (integer, None),
            Some(_) if self.point < 0 => return (integer, Some(Ordering::Less)),
            Some(digit) => digit.cmp(&b'5'),
        };
        let more = if rest.next().is_some() { Ordering::Greater } else { Ordering::Equal };
        (integer, Some(tenths.then(more)))
    }
}

/// A non-negative integer of any size.
#[derive(Clone, Copy, Default)]
pub(super) struct Integer {
    /// The low 64 bits.
    pub(super) low: u64,
    /// True if there are more bits.
    pub(super) is_wide: bool,
}

impl Integer {
    fn append(&mut self, digit: u8) {
        let (tens, is_wide) = self.low.overflowing_mul(10);
        self.low = tens;
        self.is_wide |= is_wide;
        self.add(digit);
    }

    pub(super) fn add(&mut self, small: u8) {
        let (sum, is_wide) = self.low.overflowing_add(small.into());
        self.low = sum;
        self.is_wide |= is_wide;
    }
}

/// Splits off the sign, if any: returns true for a minus sign, and the text after the sign.
fn signed(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

/// Splits a text into its leading digits and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len()))
}

/// Parses the exponent after the `e`, clamped to 64 bits: no text has enough zeros to compensate for a larger number.
fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, text) = signed(text);
    let (number, rest) = digits(text);
    if number.is_empty() || !rest.is_empty() {
        return None;
    }
    let append = |sum: i64, digit: &u8| sum.saturating_mul(10).saturating_add((digit - b'0').into());
    let number = number.iter().fold(0, append);
    Some(if negative { -number } else { number })
}

/// Returns the number of leading zeros, and the rest.
fn without_leading_zeros(digits: &[u8]) -> (i64, &[u8]) {
    let zeros = digits.iter().position(|&digit| digit != b'0').unwrap_or(digits.len());
    (zeros as i64, &digits[zeros..])
}

fn without_trailing_zeros(digits: &[u8]) -> &[u8] {
    &digits[..digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1)]
}
