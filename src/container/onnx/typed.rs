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
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The elements of a typed field.
#[derive(Clone, Debug)]
struct Typed {
    field: u64,
    label: &'static str,
    /// Floats have a fixed width, so the file has them in their final form.
    is_float: bool,
    dtype: Dtype,
    /// Size of a decoded value in bytes; 0 for text.
    width: u8,
    message: Range<usize>,
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
    if field != right {
        let (field, right) = (name_of(field), name_of(right));
        return Err(Error::new(format!("its elements are in {field}; those of {dtype} belong in {right}")));
    }
    let is_float = matches!(field, FLOAT_DATA | DOUBLE_DATA);
    let typed = Typed { field, label: name_of(field), is_float, dtype, width, message };
    // Each value of 6 bits is one number; values of 4 and 2 bits share one of 8 bits.
    let storage = if dtype.bits() == 6 { Storage::per_byte(dtype) } else { Storage::packed(dtype) };
    let (form, wanted) = match dtype {
        Dtype::String => (Form::Texts(TextForm::Fields { tag: TEXT_TAG }), Some(count)),
        _ => (Form::Numbers(storage), storage.bytes(count).map(|bytes| bytes / u64::from(width))),
    };
    let (held, range) = typed.count(file)?;
    if Some(held) != wanted {
        let wanted = wanted.unwrap_or(u64::MAX);
        return Err(Error::new(format!("its {} has {held} values, its shape asks for {wanted}", name_of(field))));
    }
    Ok((Elements::Typed(form), typed.data(range)))
}

/// Returns the count, the form and the location of the numbers in a field of an attribute.
pub(super) fn numbers(
    (file, message): (&MappedFile, Range<usize>),
    (field, label): (u64, &'static str),
    dtype: Dtype,
) -> Result<(u64, Elements, Data)> {
    let width = (dtype.bits() / 8) as u8;
    let typed = Typed { field, label, is_float: dtype.is_floating(), dtype, width, message };
    let (count, range) = typed.count(file)?;
    Ok((count, Elements::Typed(Form::Numbers(Storage::packed(dtype))), typed.data(range)))
}

/// Returns the typed field of a dtype, and the size in bytes of one of its decoded values.
fn field_of(dtype: Dtype) -> (u64, u8) {
    match dtype {
        Dtype::Float32 | Dtype::Complex64 => (FLOAT_DATA, 4),
        Dtype::Float64 | Dtype::Complex128 => (DOUBLE_DATA, 8),
        Dtype::Int64 => (INT64_DATA, 8),
        Dtype::Uint64 => (UINT64_DATA, 8),
        Dtype::Uint32 => (UINT64_DATA, 4),
        Dtype::String => (STRING_DATA, 0),
        _ => (INT32_DATA, dtype.bits().div_ceil(8) as u8),
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
    /// Returns the location of the values; `range` is the range of contiguous floats.
    fn data(self, range: Option<Range<usize>>) -> Data {
        match range {
            Some(range) => Data::Mapped { file: 0, range, checksum: None },
            None => Data::Streamed(Arc::new(TypedField { typed: self, unpacked: OnceLock::new() })),
        }
    }

    /// Returns the number of values in the field, and their range if they are contiguous floats.
    fn count(&self, file: &[u8]) -> Result<(u64, Option<Range<usize>>)> {
        let wrong = |what: &str| Err(Error::new(format!("its {} {what}", self.label)));
        let mut count = 0_u64;
        let (mut range, mut times) = (None, 0);
        for field in MessageFields::new(file, self.message.clone()) {
            let (number, value) = field?;
            if number != self.field {
                continue;
            }
            times += 1;
            range = match &value {
                Value::Bytes(range) if self.is_float && times == 1 => Some(range.clone()),
                _ => None,
            };
            count += match value {
                Value::Bytes(_) if self.field == STRING_DATA => 1,
                Value::Bytes(range) if self.is_float => {
                    if !range.len().is_multiple_of(self.width.into()) {
                        return wrong("ends inside a value");
                    }
                    (range.len() / usize::from(self.width)) as u64
                }
                // Every number ends in a byte below 0x80.
                Value::Bytes(range) => file[range].iter().filter(|&&byte| byte < 0x80).count() as u64,
                Value::Varint(_) if !self.is_float && self.field != STRING_DATA => 1,
                Value::Fixed32(_) if self.is_float && self.width == 4 => 1,
                Value::Fixed64(_) if self.is_float && self.width == 8 => 1,
                _ => return wrong("is of the wrong kind"),
            };
        }
        Ok((count, range))
    }
}

/// A typed field that is read in sequence, or unpacked.
#[derive(Debug)]
struct TypedField {
    typed: Typed,
    unpacked: OnceLock<MappedFile>,
}

impl Streamed for TypedField {
    fn open<'a>(&self, file: &'a MappedFile) -> Result<Box<dyn Stream + 'a>> {
        let (typed, fields) = (self.typed.clone(), MessageFields::new(file, self.typed.message.clone()));
        Ok(Box::new(TypedValues { typed, file, fields, numbers: &[], head: Vec::new(), rest: &[], index: 0 }))
    }

    fn stored_len(&self) -> u64 {
        self.typed.message.len() as u64
    }

    fn unpacked(&self) -> Option<&OnceLock<MappedFile>> {
        Some(&self.unpacked)
    }
}

/// The values of a typed field: little endian numbers, or texts as fields.
struct TypedValues<'a> {
    typed: Typed,
    file: &'a [u8],
    fields: MessageFields<'a>,
    /// Varints that are not decoded yet.
    numbers: &'a [u8],
    /// Bytes to return, in reverse order; then the bytes of `rest`, which need no conversion.
    head: Vec<u8>,
    rest: &'a [u8],
    /// Number of numbers so far.
    index: u64,
}

impl TypedValues<'_> {
    /// Loads the next value or values into `head` and `rest`.
    fn advance(&mut self) -> Result<()> {
        loop {
            if !self.numbers.is_empty() {
                let value = take_varint(&mut self.numbers)?;
                return self.accept(value);
            }
            let (number, value) = self.fields.next().ok_or_else(|| Error::new("the data ends too early"))??;
            match value {
                _ if number != self.typed.field => {}
                Value::Varint(value) => return self.accept(value),
                Value::Bytes(range) if self.typed.field == STRING_DATA => {
                    self.head.push(TEXT_TAG);
                    write_varint(&mut self.head, range.len() as u64);
                    self.head.reverse();
                    self.rest = &self.file[range];
                    return Ok(());
                }
                Value::Bytes(range) if !self.typed.is_float => self.numbers = &self.file[range],
                Value::Bytes(range) | Value::Fixed32(range) | Value::Fixed64(range) => {
                    self.rest = &self.file[range];
                    return Ok(());
                }
            }
        }
    }

    /// Adds a varint as a value of the field's type.
    fn accept(&mut self, value: u64) -> Result<()> {
        let Typed { field, label, dtype, width, .. } = self.typed;
        // protobuf's int32 is the low half of the varint.
        let value = if field == INT32_DATA { value as i32 as i64 } else { value as i64 };
        let spare = 64 - 8 * u32::from(width);
        let is_signed = matches!(dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
        let kept = if is_signed { value << spare >> spare } else { ((value as u64) << spare >> spare) as i64 };
        if kept != value {
            return Err(Error::new(format!("value {} of {label}: {value} is no {dtype}", self.index)));
        }
        self.index += 1;
        self.head.extend(value.to_le_bytes()[..width.into()].iter().rev());
        Ok(())
    }
}

impl Stream for TypedValues<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            if let Some(byte) = self.head.pop() {
                buffer[filled] = byte;
                filled += 1;
            } else if self.rest.is_empty() {
                self.advance()?;
            } else {
                let (now, later) = self.rest.split_at(self.rest.len().min(buffer.len() - filled));
                buffer[filled..filled + now.len()].copy_from_slice(now);
                filled += now.len();
                self.rest = later;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        // The values were counted when the header was read; bytes that end within a value were not.
        let left = self.fields.by_ref().filter_map(Result::ok);
        let is_left =
            |(number, value)| number == self.typed.field && !matches!(value, Value::Bytes(range) if range.is_empty());
        let mut left = left.map(is_left);
        if self.numbers.is_empty() && !left.any(|is_left| is_left) {
            return Ok(());
        }
        Err(Error::new(format!("its {} ends inside a value", self.typed.label)))
    }
}
