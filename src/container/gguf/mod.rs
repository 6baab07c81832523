//! `.gguf`: keys with values, a table of tensors, then their bytes, as llama.cpp and `ComfyUI` use it.
//!
//! Tensors of plain numbers are as in any format. Others consist of blocks of codes and scales
//! ([`Elements::Blocks`]), which the names and dtypes of other formats cannot express, so they are decoded or quantized
//! again. A model may be split over files, `NAME-00001-of-00003.gguf`, which are shards.

mod header;
mod lists;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod sizes;
mod split;
mod typed;
mod write;

pub(crate) use lists::{first_number, first_text, list_length, number_or_first};
pub(crate) use split::{MAX_PARTS, NUMBER, SPLIT, first_part, keys_of_part, model_of_part, part_names, part_paths};
pub(super) use split::{check_tensors, parts_of, remove_keys, stem_of_part};
pub(crate) use typed::{is_kind, value_of_text};
pub(crate) use write::{ComputedTensor, GgufKey};

use super::names::NameHashes;
use super::tensor::TensorError;
use super::{
    Container, Contents, Data, Elements, FileLayout, FormatInfo, Metadata, NewMetadata, NewTensors, ReadOptions,
    Tensor, WrittenFiles,
};
use crate::blocks::{BlockFormat, REMOVED};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::shorten;
use header::{GgufHeader, GgufValue, HeaderKey, TableEntry};
use std::collections::HashMap;
use std::ops::Range;

/// The extension of the files.
pub(super) const EXTENSION: &str = "gguf";
/// The first bytes of a file.
const MAGIC: &[u8] = b"GGUF";
/// The key for the name of a model's architecture, which a file must have.
pub(crate) const ARCHITECTURE: &str = "general.architecture";
/// The key for the multiple at which tensors start.
pub(crate) const ALIGNMENT: &str = "general.alignment";
/// The start of a key for the shape of a tensor, if the table has another: tools for `ComfyUI` store convolutions as
/// matrices.
pub(crate) const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// The `.gguf` format.
pub(super) struct Gguf;

impl Container for Gguf {
    fn format_info(&self) -> FormatInfo {
        FormatInfo { metadata: Metadata::Plain, writing: WrittenFiles::OnRequest, ..FormatInfo::of(EXTENSION) }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        BlockFormat::plain(dtype).map(|format| format.name.to_owned())
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    fn read(&self, file: &MappedFile, _options: &ReadOptions) -> Result<Contents> {
        let header = GgufHeader::read(file)?;
        let mut contents = Contents::default();
        let (mut pairs, mut alignment, mut shapes) = (Vec::new(), 32, HashMap::new());
        for HeaderKey { name: key, value, range } in header.keys {
            contents.keys.push((key.clone(), range));
            if key == ALIGNMENT {
                alignment = alignment_of(&value)?;
            }
            match value {
                GgufValue::Integer(number) => pairs.push((key, number.to_string())),
                GgufValue::Number(text) | GgufValue::Text(text) => pairs.push((key, text)),
                GgufValue::Integers(numbers) => match key.strip_prefix(ORIGINAL_SHAPE) {
                    Some(name) => {
                        shapes.insert(name.to_owned(), numbers);
                    }
                    None => contents.lists.push((key, format!("{numbers:?}"))),
                },
                GgufValue::List(text) => contents.lists.push((key, text)),
            }
        }
        contents.metadata = Some(pairs);
        let start = header.len as u64;
        let start = start.checked_next_multiple_of(alignment).ok_or_else(|| malformed("its data begins nowhere"))?;
        let mut names = NameHashes::with_capacity(header.tensors.len());
        let mut ranges = Vec::with_capacity(header.tensors.len());
        for entry in header.tensors {
            names.add(&entry.name);
            let name = entry.name.clone();
            match tensor(entry, &shapes, (start, alignment), file.len() as u64) {
                Ok((tensor, range)) => {
                    ranges.push((range, contents.tensors.len()));
                    contents.tensors.push(tensor);
                }
                Err(error) => contents.unreadable.push(error.if_unreadable(&name)?),
            }
        }
        if let Some(name) = names.repeated(contents.tensors.iter().map(|tensor| &*tensor.name)) {
            return Err(malformed(&format!("the tensor '{}' appears twice", shorten(name))));
        }
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
            let [one, other] = [pair[0].1, pair[1].1].map(|at| shorten(&contents.tensors[at].name));
            return Err(malformed(&format!("'{one}' and '{other}' have bytes in common")));
        }
        Ok(contents)
    }

    fn lay_out(&self, tensors: &dyn NewTensors, metadata: &NewMetadata, _threads: usize) -> Result<FileLayout> {
        write::lay_out(tensors, metadata)
    }
}

fn malformed(what: &str) -> Error {
    Error::new(format!("malformed header: {what}"))
}

/// Returns the alignment, which ggml requires to be a power of two and a multiple of 8.
fn alignment_of(value: &GgufValue) -> Result<u64> {
    let GgufValue::Integer(number) = value else {
        return Err(malformed(&format!("{ALIGNMENT} is not a whole number")));
    };
    let alignment = u64::try_from(*number).ok().filter(|number| number.is_power_of_two() && *number >= 8);
    alignment.ok_or_else(|| malformed(&format!("{ALIGNMENT} is {number}, which is not a power of two of at least 8")))
}

/// Returns the tensor of an entry and the range of its bytes, which begin at a multiple of the alignment after `start`.
fn tensor(
    TableEntry { name, shape, id, offset }: TableEntry,
    shapes: &HashMap<String, Vec<i64>>,
    (start, alignment): (u64, u64),
    end: u64,
) -> Result<(Tensor, Range<usize>), TensorError> {
    let wrong = |what: String| TensorError::Malformed(Error::new(what));
    let Some(format) = BlockFormat::by_id(id) else {
        let removed = REMOVED.iter().find(|(removed, _)| *removed == id);
        let error = match removed {
            Some((_, name)) => Error::new(format!("has the type {name}, which ggml has removed"))
                .remedy("make the file again with a current llama.cpp"),
            None => Error::new(format!("has the unknown type {id}")),
        };
        return Err(TensorError::Unreadable(error));
    };
    let count = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    let count =
        count.filter(|count| *count < 1 << 56).ok_or_else(|| wrong(format!("its shape {shape:?} is too large")))?;
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(format.elements) {
        let BlockFormat { name, elements, .. } = format;
        return Err(wrong(format!("its rows of {columns} are not whole blocks of {elements}, which {name} needs")));
    }
    if !offset.is_multiple_of(alignment) {
        return Err(wrong(format!("its offset {offset} is not a multiple of the alignment {alignment}")));
    }
    let bytes = format.size(count).expect("rows are whole blocks, and their number is small");
    let first = start.checked_add(offset);
    let range = first.and_then(|first| Some(first..first.checked_add(bytes)?)).filter(|range| range.end <= end);
    let range = range.ok_or_else(|| {
        wrong(format!("the file is cut short: the tensor needs {bytes} bytes at {offset}; was the download complete?"))
    })?;
    let shape = match shapes.get(&name) {
        None => shape,
        Some(original) => original_shape(original, count).ok_or_else(|| {
            wrong(format!("its original shape {original:?} does not have the elements of its shape {shape:?}"))
        })?,
    };
    let elements = match format.dtype {
        Some(dtype) => Elements::numbers(Storage::packed(dtype)),
        None => Elements::Blocks(format),
    };
    let range = range.start as usize..range.end as usize;
    let (name, shape, stored) = (name.into(), shape.into(), format.name.into());
    let data = Data::plain(range.clone());
    Ok((Tensor { name, shape, count, elements, fortran_order: false, data, stored }, range))
}

/// Returns a shape of as many elements.
fn original_shape(numbers: &[i64], count: u64) -> Option<Vec<u64>> {
    let shape: Vec<u64> = numbers.iter().map(|number| u64::try_from(*number).ok()).collect::<Option<_>>()?;
    let own = shape.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    (own == Some(count)).then_some(shape)
}
