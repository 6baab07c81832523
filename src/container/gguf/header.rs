//! The header of a GGUF file: keys with values, and the table of tensors, read from bytes that nothing has checked.
//!
//! `ggml/docs/gguf.md` describes the format. Nothing is allocated by a count: every element of a list takes at least one
//! byte of the file, so a list that is longer than the file is refused before it is read.

use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::{counted, shorten};
use std::collections::HashSet;
use std::ops::Range;

/// Number of bytes that are read from the disk at a time.
const WINDOW: usize = 1 << 20;
/// Maximum depth of lists in lists.
const MAX_DEPTH: u32 = 4;
/// Maximum number of dimensions: ggml has 4, and files for `ComfyUI` hold convolutions with 5.
pub(super) const MAX_RANK: u32 = 5;
/// Number of elements of a list that are shown.
const FEW: u64 = 4;
const MAX_KEYS: u64 = 1 << 16;
const MAX_TENSORS: u64 = 1 << 20;
/// Maximum length of a text that is a value; chat templates have a few KiB.
const MAX_TEXT: usize = 1 << 20;
/// Maximum length of the name of a key, according to the format, and of a tensor.
const MAX_NAME: usize = u16::MAX as usize;
/// Maximum length of all names and of all texts that are values.
const MAX_KEPT: usize = 32 << 20;

/// The contents of a header.
pub(super) struct GgufHeader {
    pub(super) keys: Vec<HeaderKey>,
    pub(super) tensors: Vec<TableEntry>,
    /// Length of the header in bytes.
    pub(super) len: usize,
}

/// A key with its value.
pub(super) struct HeaderKey {
    pub(super) name: String,
    pub(super) value: GgufValue,
    /// The bytes of the value, with the number of its type.
    pub(super) range: Range<usize>,
}

/// A value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GgufValue {
    Integer(i128),
    /// Another number or a bool, as text.
    Number(String),
    Text(String),
    /// A list of whole numbers that is short enough to be a shape.
    Integers(Vec<i64>),
    /// Another list, or a very long text: the number of its elements, and the first ones.
    List(String),
}

/// A tensor, as the table describes it.
pub(super) struct TableEntry {
    pub(super) name: String,
    /// Lengths of the dimensions, outermost first.
    pub(super) shape: Vec<u64>,
    /// The number of its type.
    pub(super) id: u32,
    /// The position of its bytes after the header.
    pub(super) offset: u64,
}

impl GgufHeader {
    /// Reads the header of a whole file.
    pub(super) fn read(file: &MappedFile) -> Result<Self> {
        let mut bytes = HeaderCursor { file, at: super::MAGIC.len(), ready: 0, kept: 0 };
        match bytes.u32()? {
            2 | 3 => {}
            1 => return Err(Error::new("is GGUF of version 1, a format of 2023; versions 2 and 3 are read")),
            0x0200_0000 | 0x0300_0000 => {
                return Err(Error::new("is a big-endian GGUF file; little-endian files are read"));
            }
            other => return Err(Error::new(format!("is GGUF of version {other}; versions 2 and 3 are read"))),
        }
        let (tensors, keys) = (bytes.u64()?, bytes.u64()?);
        // A tensor without a name takes 32 bytes, and a key 13.
        bytes.check_count(tensors, 32, "tensor")?;
        bytes.check_count(keys, 13, "key")?;
        for (count, most, what) in [(keys, MAX_KEYS, "keys"), (tensors, MAX_TENSORS, "tensors")] {
            if count > most {
                return Err(Error::new(format!("has {count} {what}; at most {most} are read")));
            }
        }
        let keys = (0..keys).map(|_| bytes.key()).collect::<Result<Vec<HeaderKey>>>()?;
        let mut names = HashSet::new();
        if let Some(HeaderKey { name, .. }) = keys.iter().find(|key| !names.insert(&*key.name)) {
            return Err(Error::new(format!("the key '{}' appears twice", shorten(name))));
        }
        let tensors = (0..tensors).map(|_| bytes.entry()).collect::<Result<Vec<TableEntry>>>()?;
        Ok(Self { keys, tensors, len: bytes.at })
    }
}

/// A position in the file.
struct HeaderCursor<'a> {
    file: &'a MappedFile,
    at: usize,
    /// The end of the bytes that were read from the disk.
    ready: usize,
    /// The length of the names and texts that were kept.
    kept: usize,
}

impl<'a> HeaderCursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.file.len()).ok_or_else(too_short)?;
        if end > self.ready {
            let ready = end.saturating_add(WINDOW).min(self.file.len());
            self.file.prefetch(self.ready.max(self.at)..ready)?;
            self.ready = ready;
        }
        let taken = &self.file[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(*self.take(N)?.first_chunk().expect("as many bytes were taken"))
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Refuses a count of items of at least `least` bytes each that the file cannot hold.
    fn check_count(&self, count: u64, least: u64, item: &str) -> Result<()> {
        let left = (self.file.len() - self.at) as u64;
        if count > left / least {
            let what = format!("malformed header: it has {}, in {left} bytes", counted(count, item));
            return Err(Error::new(what));
        }
        Ok(())
    }

    fn length_of_text(&mut self) -> Result<usize> {
        let len = self.u64()?;
        let left = self.file.len() - self.at;
        if len > left as u64 {
            return Err(Error::new(format!("malformed header: it has a text of {len} bytes, in {left} bytes")));
        }
        Ok(len as usize)
    }

    fn bytes_of_text(&mut self) -> Result<&'a [u8]> {
        let len = self.length_of_text()?;
        self.take(len)
    }

    /// Copies a text, unless all texts of the header together take too much memory.
    fn keep(&mut self, text: &str) -> Result<String> {
        self.kept += text.len();
        if self.kept > MAX_KEPT {
            let most = MAX_KEPT >> 20;
            return Err(Error::new(format!(
                "the names and texts of the header take more than {most} MiB, the most that tcast reads"
            )));
        }
        Ok(text.to_owned())
    }

    /// Reads the name of something.
    fn name(&mut self, of: &str) -> Result<String> {
        let len = self.length_of_text()?;
        if len > MAX_NAME {
            return Err(Error::new(format!("the name of {of} has {len} bytes; at most {MAX_NAME} are read")));
        }
        match std::str::from_utf8(self.take(len)?) {
            Ok(name) => self.keep(name),
            Err(_) => Err(Error::new(format!("malformed header: the name of {of} is not UTF-8 text"))),
        }
    }

    fn key(&mut self) -> Result<HeaderKey> {
        let name = self.name("a key")?;
        let start = self.at;
        let kind = self.u32()?;
        let value = self.value(kind).map_err(|error| Error::new(format!("key '{}': {error}", shorten(&name))))?;
        Ok(HeaderKey { name, value, range: start..self.at })
    }

    /// Reads a value of the type with this number.
    fn value(&mut self, kind: u32) -> Result<GgufValue> {
        Ok(match kind {
            STRING => match self.bytes_of_text()? {
                long if long.len() > MAX_TEXT => GgufValue::List(counted(long.len() as u64, "byte")),
                text => match std::str::from_utf8(text) {
                    Ok(text) => GgufValue::Text(self.keep(text)?),
                    Err(_) => GgufValue::List(format!("{}, not UTF-8 text", counted(text.len() as u64, "byte"))),
                },
            },
            LIST => self.list()?,
            _ => self.number(kind)?,
        })
    }

    fn number(&mut self, kind: u32) -> Result<GgufValue> {
        let integer = |number: i128| GgufValue::Integer(number);
        Ok(match kind {
            0 => integer(self.array::<1>()?[0].into()),
            1 => integer(i8::from_le_bytes(self.array()?).into()),
            2 => integer(u16::from_le_bytes(self.array()?).into()),
            3 => integer(i16::from_le_bytes(self.array()?).into()),
            4 => integer(self.u32()?.into()),
            5 => integer(i32::from_le_bytes(self.array()?).into()),
            6 => GgufValue::Number(f32::from_le_bytes(self.array()?).to_string()),
            7 => match self.array()? {
                [0] => GgufValue::Number("false".to_owned()),
                [1] => GgufValue::Number("true".to_owned()),
                [other] => return Err(Error::new(format!("has the bool {other}"))),
            },
            10 => integer(self.u64()?.into()),
            11 => integer(i64::from_le_bytes(self.array()?).into()),
            12 => GgufValue::Number(f64::from_le_bytes(self.array()?).to_string()),
            other => return Err(unknown(other)),
        })
    }

    /// Reads a list, and keeps its first elements.
    fn list(&mut self) -> Result<GgufValue> {
        let (kind, count) = (self.u32()?, self.u64()?);
        self.check_count(count, width(kind).map_or(8, |width| width as u64), "element")?;
        if (1..=u64::from(MAX_RANK)).contains(&count) && kind == 5 {
            let numbers = self.take(4 * count as usize)?.as_chunks().0.iter();
            return Ok(GgufValue::Integers(numbers.map(|bytes| i32::from_le_bytes(*bytes).into()).collect()));
        }
        let start = self.at;
        let mut first = Vec::new();
        for _ in 0..count.min(FEW) {
            if kind == LIST {
                break;
            }
            match self.value(kind)? {
                GgufValue::Integer(number) => first.push(number.to_string()),
                GgufValue::Number(number) => first.push(number),
                GgufValue::Text(text) => first.push(format!("'{}'", shorten(&text))),
                GgufValue::Integers(_) | GgufValue::List(_) => {}
            }
        }
        self.at = start;
        self.skip_elements(kind, count, 1)?;
        let items = counted(count, name(kind).unwrap_or("element"));
        let more = if count > first.len() as u64 { ", ..." } else { "" };
        Ok(GgufValue::List(if first.is_empty() { items } else { format!("{items}: {}{more}", first.join(", ")) }))
    }

    /// Skips elements of a list at this depth.
    fn skip_elements(&mut self, kind: u32, count: u64, depth: u32) -> Result<()> {
        if let Some(width) = width(kind) {
            self.check_count(count, width as u64, "element")?;
            let end = self.at + count as usize * width;
            // Nothing of it is read, not even ahead.
            self.at = end;
            self.ready = self.ready.max(end.min(self.file.len()));
            return Ok(());
        }
        if kind == LIST && depth >= MAX_DEPTH {
            return Err(Error::new(format!("has lists in lists deeper than {MAX_DEPTH}")));
        }
        for _ in 0..count {
            match kind {
                STRING => {
                    self.bytes_of_text()?;
                }
                LIST => {
                    let (kind, count) = (self.u32()?, self.u64()?);
                    self.check_count(count, width(kind).map_or(8, |width| width as u64), "element")?;
                    self.skip_elements(kind, count, depth + 1)?;
                }
                other => return Err(unknown(other)),
            }
        }
        Ok(())
    }

    fn entry(&mut self) -> Result<TableEntry> {
        let name = self.name("a tensor")?;
        let in_tensor = |error: Error| error.in_tensor(&name);
        let rank = self.u32()?;
        if !(1..=MAX_RANK).contains(&rank) {
            return Err(in_tensor(Error::new(format!("has {rank} dimensions; 1 to {MAX_RANK} are possible"))));
        }
        let mut shape = (0..rank).map(|_| self.u64()).collect::<Result<Vec<u64>>>()?;
        shape.reverse();
        if shape.contains(&0) {
            return Err(in_tensor(Error::new(format!("has the shape {shape:?}, and no dimension can be 0"))));
        }
        let (id, offset) = (self.u32()?, self.u64()?);
        Ok(TableEntry { name, shape, id, offset })
    }
}

pub(super) const STRING: u32 = 8;
pub(super) const LIST: u32 = 9;

/// Returns the bytes of a number of this type; `None` for texts, lists and unknown types.
fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// Returns the name of a type of values.
fn name(kind: u32) -> Option<&'static str> {
    Some(match kind {
        0..=5 | 10 | 11 => "integer",
        6 | 12 => "float",
        7 => "bool",
        STRING => "text",
        LIST => "list",
        _ => return None,
    })
}

fn unknown(kind: u32) -> Error {
    Error::new(format!("has a value of the unknown type {kind}"))
}

fn too_short() -> Error {
    Error::new("is cut short within its header; was the download complete?")
}
