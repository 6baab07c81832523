//! The part of the protobuf wire format that a message of plain fields needs.

use super::super::text::{Fill, TextError, read_bytes};
use crate::error::{Error, Result};
use std::ops::Range;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Value {
    Varint(u64),
    /// The range of 4 or 8 bytes.
    Fixed(Range<usize>),
    /// The range of a length-delimited field's bytes.
    Bytes(Range<usize>),
}

fn corrupt(what: &str) -> Error {
    Error::new(format!("is not a protobuf message: {what}"))
}

/// Reads a varint byte by byte; `None` if it does not end.
fn read_varint(mut next: impl FnMut() -> Result<u8>) -> Result<Option<u64>> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

pub(super) fn take_varint(bytes: &mut &[u8]) -> Result<u64> {
    let next = || bytes.split_off_first().copied().ok_or_else(|| corrupt("a number is cut short"));
    read_varint(next)?.ok_or_else(|| corrupt("a number does not end"))
}

/// The fields of a message in order, up to an error.
#[derive(Clone, Debug)]
pub(in super::super) struct MessageFields<'a> {
    end: usize,
    rest: &'a [u8],
}

impl<'a> MessageFields<'a> {
    /// The fields of the complete message in `range`.
    pub(in super::super) fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        Self { end: range.end, rest: &bytes[range] }
    }

    /// The fields with their ranges, which include the tags.
    pub(super) fn with_ranges(mut self) -> impl Iterator<Item = Result<(Range<usize>, u64, Value)>> {
        std::iter::from_fn(move || {
            let start = self.offset();
            let field = self.next()?;
            Some(field.map(|(field, value)| (start..self.offset(), field, value)))
        })
    }

    /// Returns the ranges of the last fields of bytes with these numbers; empty ranges if there are none.
    pub(super) fn last<const N: usize>(self, numbers: [u64; N]) -> Result<[Range<usize>; N]> {
        let mut ranges = [const { 0..0 }; N];
        for field in self {
            let (field, Value::Bytes(range)) = field? else { continue };
            if let Some(at) = numbers.iter().position(|number| *number == field) {
                ranges[at] = range;
            }
        }
        Ok(ranges)
    }

    /// Offset of the next field.
    fn offset(&self) -> usize {
        self.end - self.rest.len()
    }

    fn read(&mut self) -> Result<(u64, Value)> {
        /// Largest number of a field.
        const MAX_FIELD: u64 = (1 << 29) - 1;
        let tag = take_varint(&mut self.rest)?;
        let number = tag >> 3;
        if number == 0 || number > MAX_FIELD {
            return Err(corrupt(&format!("there is no field {number}")));
        }
        let value = match tag & 7 {
            0 => Value::Varint(take_varint(&mut self.rest)?),
            1 => Value::Fixed(self.take(8)?),
            2 => {
                let length = take_varint(&mut self.rest)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed(self.take(4)?),
            kind => return Err(corrupt(&format!("field {number} is of kind {kind}"))), // groups are obsolete
        };
        Ok((number, value))
    }

    fn take(&mut self, length: u64) -> Result<Range<usize>> {
        let left = self.rest.len();
        if length > left as u64 {
            let what = format!("a field is to be {length} bytes long, {left} follow; was the file cut short?");
            return Err(corrupt(&what));
        }
        let start = self.offset();
        self.rest = &self.rest[length as usize..];
        Ok(start..start + length as usize)
    }
}

impl Iterator for MessageFields<'_> {
    type Item = Result<(u64, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Returns a protobuf varint and the number of bytes that it takes.
fn varint(mut value: u64) -> ([u8; 10], u8) {
    let mut bytes = [0; 10];
    let mut length = 0;
    loop {
        bytes[length] = value as u8 & 0x7f;
        value >>= 7;
        length += 1;
        if value == 0 {
            return (bytes, length as u8);
        }
        bytes[length - 1] |= 0x80;
    }
}

pub(super) fn write_varint(output: &mut Vec<u8>, value: u64) {
    let (bytes, length) = varint(value);
    output.extend_from_slice(&bytes[..length.into()]);
}

fn varints(values: [u64; 2]) -> Vec<u8> {
    let mut output = Vec::new();
    for value in values {
        write_varint(&mut output, value);
    }
    output
}

/// Serializes a field that is a number.
pub(super) fn number(field: u64, value: u64) -> Vec<u8> {
    varints([field << 3, value])
}

/// Serializes the tag and the length of a field; the bytes follow.
pub(super) fn head(field: u64, length: u64) -> Vec<u8> {
    varints([field << 3 | 2, length])
}

pub(super) fn bytes(field: u64, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&head(field, bytes.len() as u64), bytes].concat()
}

/// Serializes a `StringStringEntryProto`.
pub(super) fn pair(field: u64, key: &str, value: &str) -> Vec<u8> {
    bytes(field, [bytes(1, key), bytes(2, value)].concat())
}

/// Size in bytes of a text as a separate field, whose tag takes one byte.
pub(in super::super) fn text_bytes(length: u64) -> u64 {
    1 + u64::from(varint(length).1) + length
}

pub(in super::super) fn write_text(tag: u8, text: &[u8], output: &mut Vec<u8>) {
    output.push(tag);
    write_varint(output, text.len() as u64);
    output.extend_from_slice(text);
}

/// Reads a text as a separate field, with a tag of one byte.
pub(in super::super) fn read_text(fill: &mut Fill, text: &mut Vec<u8>) -> Result<(), TextError> {
    fill(&mut [0])?; // the tag
    let mut byte = [0];
    let length = read_varint(|| fill(&mut byte).map(|()| byte[0]))?;
    let length = length.ok_or_else(|| TextError::Malformed("its length does not end".to_owned()))?;
    read_bytes(length, fill, text)
}
