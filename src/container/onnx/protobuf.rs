//! The protobuf wire format, as far as a message of plain fields needs it.

use crate::error::{Error, Result};
use std::ops::Range;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A number of variable length.
    Varint(u64),
    /// Where the 4 bytes lie.
    Fixed32(Range<usize>),
    /// Where the 8 bytes lie.
    Fixed64(Range<usize>),
    /// Where as many bytes lie as the field says.
    Bytes(Range<usize>),
}

fn corrupt(what: &str) -> Error {
    Error::new(format!("is no protobuf message: {what}"))
}

/// Takes a number of variable length off the front.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or_else(|| corrupt("a number is cut short"))?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(corrupt("a number does not end"))
}

/// The fields of a message in order; an error ends them.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    /// Where the message ends.
    end: usize,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of the message in `range`, which is whole.
    pub(super) fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        Self { end: range.end, rest: &bytes[range] }
    }

    fn read(&mut self) -> Result<(u64, Value)> {
        /// The largest number that a field can have.
        const MAX_FIELD: u64 = (1 << 29) - 1;
        let tag = take_varint(&mut self.rest)?;
        let number = tag >> 3;
        if number == 0 || number > MAX_FIELD {
            return Err(corrupt(&format!("there is no field {number}")));
        }
        let value = match tag & 7 {
            0 => Value::Varint(take_varint(&mut self.rest)?),
            1 => Value::Fixed64(self.take(8)?),
            2 => {
                let length = take_varint(&mut self.rest)?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.take(4)?),
            kind => return Err(corrupt(&format!("field {number} is of kind {kind}"))), // groups have long gone
        };
        Ok((number, value))
    }

    fn take(&mut self, length: u64) -> Result<Range<usize>> {
        let left = self.rest.len();
        if length > left as u64 {
            let what = format!("a field is to be {length} bytes long, {left} follow; was the file cut short?");
            return Err(corrupt(&what));
        }
        let start = self.end - left;
        self.rest = &self.rest[length as usize..];
        Ok(start..start + length as usize)
    }
}

impl Iterator for Fields<'_> {
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

/// Appends a number of variable length.
pub(super) fn write_varint(output: &mut Vec<u8>, value: u64) {
    let (bytes, length) = crate::kernel::varint(value);
    output.extend_from_slice(&bytes[..length.into()]);
}

/// Appends a field that is a number.
pub(super) fn write_number(output: &mut Vec<u8>, field: u64, value: u64) {
    write_varint(output, field << 3);
    write_varint(output, value);
}

/// Appends the start of a field of so many bytes, which are to follow.
pub(super) fn write_head(output: &mut Vec<u8>, field: u64, length: u64) {
    write_varint(output, field << 3 | 2);
    write_varint(output, length);
}

/// Appends a field of bytes.
pub(super) fn write_bytes(output: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    write_head(output, field, bytes.len() as u64);
    output.extend_from_slice(bytes);
}
