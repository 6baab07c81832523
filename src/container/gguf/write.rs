//! Lays out a new file: keys, the table of tensors, and the places of their bytes.

use super::super::names::NameHashes;
use super::super::{FileLayout, Form, NewTensor, NewTensors, Placement};
use super::header::{LIST, MAX_RANK};
use super::split::NUMBER;
use super::{ARCHITECTURE, Gguf, MAGIC};
use crate::blocks::BlockFormat;
use crate::container::layout::too_long;
use crate::container::{Container, NewMetadata};
use crate::error::{Error, Result};

/// Version of the files that tcast writes.
const VERSION: u32 = 3;
/// Multiple at which tensors start, because no key names another.
const ALIGNMENT: u64 = 32;
/// The number of the type float32.
const F32: u32 = 0;
/// Maximum length of the name of a tensor in builds of ggml for `ComfyUI`; others have 63.
const MAX_NAME: usize = 127;

/// A key of a file, with its value as stored: the number of its type, then the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufKey {
    pub name: String,
    pub value: Vec<u8>,
}

impl GgufKey {
    fn new(name: &str, kind: u32, value: &[u8]) -> Self {
        Self { name: name.to_owned(), value: [&kind.to_le_bytes(), value].concat() }
    }

    pub(crate) fn uint16(name: &str, value: u16) -> Self {
        Self::new(name, 2, &value.to_le_bytes())
    }

    pub(crate) fn uint32(name: &str, value: u32) -> Self {
        Self::new(name, 4, &value.to_le_bytes())
    }

    pub(crate) fn int32(name: &str, value: i32) -> Self {
        Self::new(name, 5, &value.to_le_bytes())
    }

    pub(crate) fn float32(name: &str, value: f32) -> Self {
        Self::new(name, 6, &value.to_le_bytes())
    }

    pub(crate) fn boolean(name: &str, value: bool) -> Self {
        Self::new(name, 7, &[value.into()])
    }

    pub(crate) fn text(name: &str, value: &str) -> Self {
        Self::new(name, 8, &[&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat())
    }

    /// Returns a key whose value is a list of int32.
    pub(crate) fn int32s(name: &str, values: &[i32]) -> Self {
        Self::list(name, KeyList::Int32s(values))
    }

    /// Returns a key whose value is a list.
    pub(crate) fn list(name: &str, list: KeyList) -> Self {
        let (kind, count) = match list {
            KeyList::Int32s(values) => (5_u32, values.len()),
            KeyList::Float32s(values) => (6, values.len()),
            KeyList::Flags(values) => (7, values.len()),
            KeyList::Texts(values) => (8, values.len()),
        };
        let mut value = [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes()].concat();
        match list {
            KeyList::Int32s(values) => value.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            KeyList::Float32s(values) => value.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            KeyList::Flags(values) => value.extend(values.iter().map(|value| u8::from(*value))),
            KeyList::Texts(values) => {
                for text in values {
                    value.extend((text.len() as u64).to_le_bytes());
                    value.extend(text);
                }
            }
        }
        Self::new(name, LIST, &value)
    }
}

/// A list for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyList<'a> {
    Int32s(&'a [i32]),
    Float32s(&'a [f32]),
    Flags(&'a [bool]),
    /// Texts need not be UTF-8.
    Texts(&'a [Vec<u8>]),
}

/// A vector of float32 that is computed for a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ComputedTensor {
    pub name: &'static str,
    pub values: Vec<f32>,
}

/// Lays out a file with these tensors, in this order, after the computed ones.
pub(super) fn lay_out(tensors: &dyn NewTensors, metadata: &NewMetadata) -> Result<FileLayout> {
    let keys = &metadata.keys;
    // The other parts of a model have keys about parts only.
    if !keys.iter().any(|key| key.name == ARCHITECTURE || key.name == NUMBER) {
        return Err(Error::new(format!("a .gguf file needs the key {ARCHITECTURE}")));
    }
    let mut header = Vec::new();
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(((metadata.computed.len() + tensors.count()) as u64).to_le_bytes());
    header.extend((keys.len() as u64).to_le_bytes());
    for GgufKey { name, value } in keys {
        put_text(&mut header, name);
        header.extend(value);
    }
    let mut places = Vec::with_capacity(tensors.count());
    let mut names = NameHashes::with_capacity(tensors.count());
    let mut computed = Vec::new();
    for ComputedTensor { name, values } in &metadata.computed {
        put_entry(&mut header, name, &[values.len() as u64], (F32, computed.len() as u64));
        computed.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        computed.resize(computed.len().next_multiple_of(ALIGNMENT as usize), 0);
    }
    let mut end = computed.len() as u64;
    for tensor in tensors.iter() {
        names.add(&tensor.name);
        let (format, bytes) = stored(&tensor).map_err(|error| error.in_tensor(&tensor.name))?;
        let shape = if tensor.shape.is_empty() { &[1] } else { tensor.shape };
        put_entry(&mut header, &tensor.name, shape, (format.id, end));
        let form = Form::packed(tensor.dtype);
        let next = end.checked_add(bytes).ok_or_else(too_long)?;
        places.push(Placement { form, range: end..next, crc: None });
        end = next.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_long)?;
    }
    names.check_new(tensors)?;
    let start = (header.len() as u64).next_multiple_of(ALIGNMENT);
    header.resize(start as usize, 0);
    header.extend(computed);
    let len = start.checked_add(end).ok_or_else(too_long)?;
    let mut literals = vec![(0, header)];
    for Placement { range, .. } in &mut places {
        *range = start + range.start..start + range.end;
        let padding = (range.end - start).next_multiple_of(ALIGNMENT) - (range.end - start);
        if padding > 0 {
            literals.push((range.end, vec![0; padding as usize]));
        }
    }
    Ok(FileLayout { literals, entries: Vec::new(), places, len })
}

/// Returns the type and the size of a tensor.
fn stored(tensor: &NewTensor) -> Result<(&'static BlockFormat, u64)> {
    let refuse = |what: String| Err(Error::new(what));
    let shape = tensor.shape;
    if tensor.name.len() > MAX_NAME {
        return refuse(format!("the name has {} bytes; a .gguf file allows {MAX_NAME}", tensor.name.len()));
    }
    if shape.len() as u64 > u64::from(MAX_RANK) {
        return refuse(format!("{} dimensions; a .gguf file allows {MAX_RANK}", shape.len()));
    }
    if shape.contains(&0) {
        return refuse(format!("its shape {shape:?} has no elements, which a .gguf file does not allow"));
    }
    let format =
        tensor.blocks.or_else(|| BlockFormat::plain(tensor.dtype)).ok_or_else(|| Gguf.refusal(tensor.dtype, true))?;
    let columns = shape.last().copied().unwrap_or(1);
    let count = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length)).ok_or_else(too_long)?;
    match format.size(count).filter(|_| columns.is_multiple_of(format.elements)) {
        Some(bytes) => Ok((format, bytes)),
        None => refuse(format!("its rows of {columns} are not whole blocks of {}", format.name)),
    }
}

/// Adds a tensor to the table, with its type and its offset.
fn put_entry(header: &mut Vec<u8>, name: &str, shape: &[u64], (kind, offset): (u32, u64)) {
    put_text(header, name);
    header.extend((shape.len() as u32).to_le_bytes());
    shape.iter().rev().for_each(|length| header.extend(length.to_le_bytes()));
    header.extend(kind.to_le_bytes());
    header.extend(offset.to_le_bytes());
}

pub(super) fn put_text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}
