//! Elements in a typed field: floats as they are, integers as varints, texts one by one.
//!
//! Values can be packed or single, in one piece or in several: protobuf allows all of these, so a reader must accept
//! them.

use super::super::{Data, Elements, Form, Stream, Streamed, TextForm};
use super::protobuf::{MessageFields, Value, take_varint, write_varint};
use super::{DOUBLE_DATA, FLOAT_DATA, INT32_DATA, INT64_DATA, STRING_DATA, TEXT_TAG, UINT64_DATA};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use std::collections::VecDeque;
use std::io::Read;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A typed field.
#[derive(Clone, Copy, Debug)]
struct Typed {
    field: u64,
    label: &'static str,
    coding: Coding,
    dtype: Dtype,
    /// Size of a decoded value in bytes; 0 for text.
    width: usize,
}

/// Coding of the values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    /// Floats have a fixed width, so the file has them in their final form.
    Floats,
    Varints,
    Texts,
}

/// Returns the form and the location of the `count` elements in a typed field. Fails if it is not the field for the
/// type, or does not hold `count` elements.
pub(super) fn elements(
    (file, message): (&MappedFile, Range<usize>),
    dtype: Dtype,
    field: u64,
    count: u64,
) -> Result<(Elements, Data)> {
    let (right, width) = field_of(dtype);
    let label = name_of(field);
    if field != right {
        let right = name_of(right);
        return Err(Error::new(format!("its elements are in {label}; those of {dtype} belong in {right}")));
    }
    let coding = match field {
        FLOAT_DATA | DOUBLE_DATA => Coding::Floats,
        STRING_DATA => Coding::Texts,
        _ => Coding::Varints,
    };
    // Each value of 6 bits is one number; values of 4 and 2 bits share one of 8 bits.
    let storage = if dtype.bits() == 6 { Storage::per_byte(dtype) } else { Storage::packed(dtype) };
    let (form, wanted) = match dtype {
        Dtype::String => (Form::Texts(TextForm::Fields { tag: TEXT_TAG }), Some(count)),
        _ => (Form::Numbers(storage), storage.bytes(count).map(|bytes| bytes / width as u64)),
    };
    let (held, data) = Typed { field, label, coding, dtype, width }.locate(file, message)?;
    if Some(held) != wanted {
        let wanted = wanted.unwrap_or(u64::MAX);
        return Err(Error::new(format!("its {label} has {held} values, its shape asks for {wanted}")));
    }
    Ok((Elements::Typed(form), data))
}

/// Returns the count, the form and the location of the numbers in a field of an attribute.
pub(super) fn numbers(
    (file, message): (&MappedFile, Range<usize>),
    (field, label): (u64, &'static str),
    dtype: Dtype,
) -> Result<(u64, Elements, Data)> {
    let coding = if dtype.is_floating() { Coding::Floats } else { Coding::Varints };
    let width = dtype.bits() as usize / 8;
    let (count, data) = Typed { field, label, coding, dtype, width }.locate(file, message)?;
    Ok((count, Elements::numbers(Storage::packed(dtype)), data))
}

/// Returns the typed field of a dtype, and the size in bytes of one of its decoded values.
fn field_of(dtype: Dtype) -> (u64, usize) {
    match dtype {
        Dtype::Float32 | Dtype::Complex64 => (FLOAT_DATA, 4),
        Dtype::Float64 | Dtype::Complex128 => (DOUBLE_DATA, 8),
        Dtype::Int64 => (INT64_DATA, 8),
        Dtype::Uint64 => (UINT64_DATA, 8),
        Dtype::Uint32 => (UINT64_DATA, 4),
        Dtype::String => (STRING_DATA, 0),
        _ => (INT32_DATA, dtype.bits().div_ceil(8) as usize),
    }
}

pub(super) fn name_of(field: u64) -> &'static str {
    match field {
        FLOAT_DATA => "float_data",
        INT32_DATA => "int32_data",
        STRING_DATA => "string_data",
        INT64_DATA => "int64_data",
        DOUBLE_DATA => "double_data",
        _ => "uint64_data",
    }
}

impl Typed {
    /// Returns the ranges of the values: floats, varints, or one text each.
    fn ranges(self, file: &[u8], message: Range<usize>) -> impl Iterator<Item = Result<Range<usize>>> {
        MessageFields::new(file, message).with_ranges().filter_map(move |field| match field {
            Err(error) => Some(Err(error)),
            Ok((_, field, _)) if field != self.field => None,
            Ok((_, _, Value::Bytes(range))) => Some(Ok(range)),
            Ok((_, _, Value::Fixed(range))) if self.coding == Coding::Floats && range.len() == self.width => {
                Some(Ok(range))
            }
            Ok((range, _, Value::Varint(_))) if self.coding == Coding::Varints => {
                let mut value = &file[range.clone()];
                Some(take_varint(&mut value).map(|_| range.end - value.len()..range.end)) // without the tag
            }
            Ok(_) => Some(Err(Error::new(format!("its {} is of the wrong kind", self.label)))),
        })
    }

    /// Returns the number of values in a message, and their location.
    fn locate(self, file: &[u8], message: Range<usize>) -> Result<(u64, Data)> {
        let (mut count, mut pieces, mut last) = (0, 0, 0..0);
        for range in self.ranges(file, message.clone()) {
            let range = range?;
            count += match self.coding {
                Coding::Texts => 1,
                Coding::Floats if range.len().is_multiple_of(self.width) => range.len() / self.width,
                Coding::Floats => return Err(self.cut_short()),
                // Every number ends in a byte below 0x80.
                Coding::Varints => file[range.clone()].iter().filter(|&&byte| byte < 0x80).count(),
            };
            pieces += 1;
            last = range;
        }
        let data = if self.coding == Coding::Floats && pieces == 1 {
            Data::plain(last)
        } else {
            Data::Streamed(Arc::new(TypedField { typed: self, message, unpacked: OnceLock::new() }))
        };
        Ok((count as u64, data))
    }

    fn cut_short(self) -> Error {
        Error::new(format!("its {} ends inside a value", self.label))
    }
}

/// The values of a typed field, which are read in sequence or unpacked.
#[derive(Debug)]
struct TypedField {
    typed: Typed,
    message: Range<usize>,
    unpacked: OnceLock<MappedFile>,
}

impl Streamed for TypedField {
    fn open<'a>(&self, files: &'a [MappedFile]) -> Result<Box<dyn Stream + 'a>> {
        let file = &files[0];
        let ranges = Box::new(self.typed.ranges(file, self.message.clone()));
        Ok(Box::new(TypedValues { typed: self.typed, file, ranges, head: VecDeque::new(), rest: &[], count: 0 }))
    }

    fn stored_len(&self) -> u64 {
        self.message.len() as u64
    }

    fn unpacked(&self) -> Option<&OnceLock<MappedFile>> {
        Some(&self.unpacked)
    }
}

/// The values of a typed field in sequence: little endian numbers, or texts as fields.
struct TypedValues<'a> {
    typed: Typed,
    file: &'a [u8],
    ranges: Box<dyn Iterator<Item = Result<Range<usize>>> + 'a>,
    /// Bytes to return first.
    head: VecDeque<u8>,
    /// The rest of the last range.
    rest: &'a [u8],
    /// Number of numbers so far.
    count: u64,
}

impl TypedValues<'_> {
    /// Decodes varints, to at least `wanted` bytes if the last range has them.
    fn decode(&mut self, wanted: usize) -> Result<()> {
        let Typed { field, label, dtype, width, .. } = self.typed;
        while self.head.len() < wanted && !self.rest.is_empty() {
            let value = take_varint(&mut self.rest)?;
            // protobuf's int32 is the low half of the varint.
            let value = if field == INT32_DATA { value as i32 as i64 } else { value as i64 };
            let spare = 64 - 8 * width;
            let is_signed = matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
            let kept = if is_signed { value << spare >> spare } else { ((value as u64) << spare >> spare) as i64 };
            // Bits of narrow values and of floats are the same bits as a negative number.
            let is_bits = dtype.bits() < 8 || dtype.is_floating();
            let is_held = kept == value || is_bits && value << spare >> spare == value;
            if !is_held {
                return Err(Error::new(format!("value {} of {label}: {value} is not a valid {dtype}", self.count)));
            }
            self.count += 1;
            self.head.extend(&value.to_le_bytes()[..width]);
        }
        Ok(())
    }
}

impl Stream for TypedValues<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        const FEW: usize = 1 << 12;
        let mut filled = 0;
        while filled < buffer.len() {
            let left = &mut buffer[filled..];
            if self.typed.coding == Coding::Varints && self.head.is_empty() {
                self.decode(left.len().min(FEW))?;
            }
            let read = if self.head.is_empty() { self.rest.read(left) } else { self.head.read(left) };
            match read.unwrap_or_default() {
                0 => {
                    let range = self.ranges.next().ok_or_else(|| Error::new("the data ends too early"))??;
                    self.rest = &self.file[range];
                    if self.typed.coding == Coding::Texts {
                        let mut head = vec![TEXT_TAG];
                        write_varint(&mut head, self.rest.len() as u64);
                        self.head.extend(head);
                    }
                }
                read => filled += read,
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        // The values were counted when the header was read; bytes that end within a value were not.
        let is_text = self.typed.coding == Coding::Texts;
        let is_left = |range: Range<usize>| is_text || !range.is_empty();
        let is_done = self.rest.is_empty() && !self.ranges.by_ref().filter_map(Result::ok).any(is_left);
        if is_done { Ok(()) } else { Err(self.typed.cut_short()) }
    }
}
