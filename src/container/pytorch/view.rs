//! Tensors as views of storages: an offset, and a stride for each dimension.

use super::super::gather::Gathered;
use super::super::reader::read_ahead;
use super::super::tensor::TensorError;
use super::super::{Data, Elements, Stream, Streamed, Tensor, element_count};
use super::meaning::CallMeaning;
use super::types::TorchType;
use super::values::{PickleValue, PickleValues, StorageUse, TensorCall};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::shorten;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Maximum number of dimensions.
const MOST_DIMENSIONS: usize = 64;
/// Maximum size of a tensor as a multiple of the size of its storage: strides of 0 repeat elements.
const MOST_EXPANSION: u64 = 16;

/// The storages of a file: where their bytes are.
#[derive(Default)]
pub(super) struct StorageTable {
    pub(super) ranges: HashMap<Box<[u8]>, Range<usize>>,
    pub(super) is_big_endian: bool,
}

fn unreadable(what: String) -> TensorError {
    TensorError::Unreadable(Error::new(what))
}

fn malformed(what: impl Into<String>) -> TensorError {
    TensorError::Malformed(Error::new(what))
}

/// Arguments of a call that rebuilds a tensor.
struct Arguments<'v> {
    storage: &'v StorageUse,
    /// In elements.
    offset: u64,
    shape: Vec<u64>,
    /// In elements.
    strides: Vec<u64>,
    /// The type, if the storage does not determine it.
    dtype: Option<u32>,
    is_conjugate: bool,
    is_negative: bool,
}

impl<'v> Arguments<'v> {
    fn of(values: &'v PickleValues, call: &TensorCall) -> Option<Self> {
        let numbers = |value: PickleValue| {
            // A list may have changed since.
            let is_tuple = matches!(value, PickleValue::Tuple(_));
            let numbers = values
                .sequence(value)
                .filter(|numbers| is_tuple && numbers.len() <= MOST_DIMENSIONS)?
                .iter()
                .map(|number| values.integer(*number)?.try_into().ok());
            numbers.collect::<Option<Vec<u64>>>()
        };
        let [PickleValue::Storage(storage), offset, shape, strides, rest @ ..] = values.sequence(call.arguments)?
        else {
            return None;
        };
        // The gradient and hooks come first.
        let dtype = if call.meaning == CallMeaning::TypedTensor { Some(*rest.get(2)?) } else { None };
        let dtype = match dtype {
            None => None,
            Some(PickleValue::Name(name)) => Some(name),
            Some(_) => return None,
        };
        let [is_conjugate, is_negative] = call.flags?;
        Some(Self {
            storage: &values.storages[*storage as usize],
            offset: values.integer(*offset)?.try_into().ok()?,
            shape: numbers(*shape)?,
            strides: numbers(*strides)?,
            dtype,
            is_conjugate,
            is_negative,
        })
    }
}

/// Estimates the memory for the description of a tensor, in bytes.
pub(super) fn memory(values: &PickleValues, call: &TensorCall) -> usize {
    let shape = values.sequence(call.arguments).and_then(|arguments| values.sequence(*arguments.get(2)?));
    512 + 32 * shape.map_or(0, |shape| shape.len().min(MOST_DIMENSIONS))
}

/// A tensor of torch as a part of its storage.
pub(super) struct View {
    pub(super) torch_type: &'static TorchType,
    pub(super) form: Storage,
    /// In elements of torch.
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
    /// Number of elements.
    pub(super) count: u64,
    /// The bytes from the first element to the end of the last.
    pub(super) range: Range<usize>,
    /// Bits of each element that change.
    pub(super) flipped: Option<[u8; 16]>,
}

impl View {
    /// Returns the tensor of this view.
    pub(super) fn into_tensor(self, name: &str) -> Tensor {
        let Self { torch_type, form, shape, strides, count, range, flipped } = self;
        let data = if flipped.is_none() && (count == 0 || is_row_major(&shape, &strides)) {
            Data::plain(range)
        } else {
            let dimensions = shape.iter().copied().zip(strides).collect();
            let width = torch_type.width as usize;
            Data::Streamed(Arc::new(StridedView { range, width, dimensions, flipped, unpacked: OnceLock::new() }))
        };
        Tensor {
            name: name.into(),
            shape: in_elements(shape, torch_type).into(),
            count,
            elements: Elements::numbers(form),
            fortran_order: false,
            data,
            stored: torch_type.name.into(),
        }
    }
}

/// Returns the view that a call rebuilds.
pub(super) fn view(values: &PickleValues, call: &TensorCall, storages: &StorageTable) -> Result<View, TensorError> {
    if call.meaning == CallMeaning::NotPlain {
        return Err(TensorError::Unreadable(not_plain(values, call.name)));
    }
    let arguments = Arguments::of(values, call);
    let arguments = arguments.ok_or_else(|| malformed("its storage, offset, shape or strides are malformed"))?;
    let Arguments { storage, offset, shape, strides, dtype, is_conjugate, is_negative } = arguments;
    let (module, class) = values.code(storage.class);
    let class = TorchType::of_storage(module, class).ok_or_else(|| {
        unreadable(format!("its storage has the unknown class {}", shorten(&values.full_name(storage.class))))
    })?;
    let torch_type = match dtype {
        None => class,
        Some(name) => {
            let (module, dtype) = values.code(name);
            let found = TorchType::named(module, dtype);
            found
                .ok_or_else(|| unreadable(format!("has the unsupported dtype {}", shorten(&values.full_name(name)))))?
        }
    };
    let (width, big_endian) = (torch_type.width, storages.is_big_endian && torch_type.width > 1);
    if storages.is_big_endian && torch_type.name != class.name {
        return Err(unreadable(format!(
            "has big endian elements of {} in a storage of {}",
            torch_type.name, class.name
        )));
    }
    let form = torch_type.form(big_endian);
    let form = form.ok_or_else(|| unreadable(torch_type.refusal()))?;
    if storage.is_meta {
        return Err(unreadable("is on the device 'meta', so the file has no elements of it".to_owned()));
    }
    let bytes = bytes_of(values, storage, class.width, storages)?;

    let count = element_count(&shape)
        .and_then(|count| count.checked_mul(torch_type.elements()))
        .filter(|count| *count < 1 << 56);
    let count = count.ok_or_else(|| malformed(format!("its shape {shape:?} is too large")))?;
    if shape.len() != strides.len() {
        return Err(malformed(format!("its shape {shape:?} does not have a stride for each dimension")));
    }
    let extent = shape.iter().zip(&strides).try_fold(1_u128, |extent, (length, stride)| {
        extent.checked_add(u128::from(length.saturating_sub(1)) * u128::from(*stride))
    });
    let extent = if count == 0 { Some(0) } else { extent };
    let place = extent.and_then(|extent| {
        let start = u128::from(offset) * u128::from(width);
        let end = start.checked_add(extent.checked_mul(width.into())?)?;
        (end <= bytes.len() as u128).then(|| bytes.start + start as usize..bytes.start + end as usize)
    });
    let place = if count == 0 { Some(bytes.start..bytes.start) } else { place };
    let place = place.ok_or_else(|| malformed(format!("it extends beyond its storage of {} bytes", bytes.len())))?;
    let len = form.bytes(count).expect("the number of elements is small");
    if len > MOST_EXPANSION.saturating_mul(bytes.len() as u64) {
        let what = format!("repeats the {} bytes of its storage, to {len} bytes", bytes.len());
        return Err(unreadable(format!("{what}; at most {MOST_EXPANSION} times as many are read")));
    }

    let flipped = flipped(form.dtype, big_endian, is_conjugate, is_negative).map_err(unreadable)?;
    Ok(View { torch_type, form, shape, strides, count, range: place, flipped })
}

/// Returns the error for a tensor that cannot be read, because a special function rebuilds it, or its class is not one of
/// torch.
fn not_plain(values: &PickleValues, name: u32) -> Error {
    let (module, function) = values.code(name);
    let kind = match function {
        b"DTensor" | b"ShardedTensor" if module.starts_with(b"torch.distributed.") => {
            let class = String::from_utf8_lossy(function);
            let error = Error::new(format!("is a {class}, of which the file has only the part of one rank"));
            return error.remedy("give the folder with the files of all ranks");
        }
        b"_rebuild_qtensor" => "a quantized tensor of torch",
        b"_rebuild_sparse_tensor" | b"_rebuild_sparse_csr_tensor" => "a sparse tensor",
        b"_rebuild_nested_tensor" => "a nested tensor",
        b"_rebuild_meta_tensor_no_storage" => "on the device 'meta', so the file has no elements of it",
        _ => {
            let class = shorten(&values.full_name(name));
            return Error::new(format!("is a tensor of {class}, which tcast does not read"));
        }
    };
    Error::new(format!("is {kind}, which tcast does not read"))
}

/// Returns the place of the bytes of a storage, which must be as many as its elements take.
fn bytes_of(
    values: &PickleValues,
    storage: &StorageUse,
    width: u64,
    storages: &StorageTable,
) -> Result<Range<usize>, TensorError> {
    let key = values.text_at(storage.key);
    let shown = shorten(&String::from_utf8_lossy(key));
    let bytes = storages.ranges.get(key).ok_or_else(|| malformed(format!("the file lacks its storage '{shown}'")))?;
    if storage.count.checked_mul(width) != Some(bytes.len() as u64) {
        let what = format!("its storage '{shown}' has {} bytes", bytes.len());
        return Err(malformed(format!("{what}, and should have {} elements of {width} bytes", storage.count)));
    }
    Ok(bytes.clone())
}

/// True if elements follow each other in row-major order. The stride of a dimension of length 1 does not matter.
fn is_row_major(shape: &[u64], strides: &[u64]) -> bool {
    let mut next = 1;
    shape.iter().zip(strides).rev().filter(|(length, _)| **length != 1).all(|(length, stride)| {
        let is_next = *stride == next;
        next = next.saturating_mul(*length);
        is_next
    })
}

/// Returns the shape in elements: two that torch counts as one are in the last dimension.
pub(super) fn in_elements(mut shape: Vec<u64>, torch_type: &TorchType) -> Vec<u64> {
    match (torch_type.elements(), shape.last_mut()) {
        (1, _) => {}
        (elements, Some(last)) => *last *= elements, // lengths have 63 bits
        (elements, None) => shape.push(elements),
    }
    shape
}

/// Returns the bits of an element that change because its tensor is the conjugate or the negative of what is stored:
/// the signs of its parts.
fn flipped(dtype: Dtype, big_endian: bool, is_conjugate: bool, is_negative: bool) -> Result<Option<[u8; 16]>, String> {
    let is_complex = dtype.class() == Class::Complex;
    let width = dtype.bits() as usize / 8;
    // A real number has one part, and conjugation changes none.
    let signs = [is_negative, is_complex && is_negative != is_conjugate];
    if signs == [false; 2] {
        return Ok(None);
    }
    // PyTorch has such views of complex numbers and their parts only.
    if !(is_complex || [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32, Dtype::Float64].contains(&dtype)) {
        return Err(format!("is the negative of a tensor of {dtype}, which tcast does not read"));
    }
    let part = if is_complex { width / 2 } else { width };
    let mut bits = [0; 16];
    for (at, _) in signs.iter().enumerate().filter(|(_, is_flipped)| **is_flipped) {
        bits[at * part + if big_endian { 0 } else { part - 1 }] = 0x80;
    }
    Ok(Some(bits))
}

/// A tensor whose elements are not in row-major order, or have other signs than the stored ones.
#[derive(Debug)]
struct StridedView {
    /// From the first element to the end of the last.
    range: Range<usize>,
    width: usize,
    /// Lengths and strides, in elements.
    dimensions: Box<[(u64, u64)]>,
    /// Bits of each element that change.
    flipped: Option<[u8; 16]>,
    unpacked: OnceLock<MappedFile>,
}

impl Streamed for StridedView {
    fn open<'a>(&self, files: &'a [MappedFile]) -> Result<Box<dyn Stream + 'a>> {
        let file = &files[0];
        read_ahead(file, &self.range)?;
        let gathered = Gathered::strided(&file[self.range.clone()], self.width, &self.dimensions);
        Ok(match self.flipped {
            None => Box::new(gathered),
            Some(bits) => Box::new(Flipped { gathered, bits, width: self.width, next: 0 }),
        })
    }

    fn stored_len(&self) -> u64 {
        self.range.len() as u64
    }

    fn unpacked(&self) -> Option<&OnceLock<MappedFile>> {
        Some(&self.unpacked)
    }
}

/// Elements of which some bits change.
struct Flipped<'a> {
    gathered: Gathered<'a>,
    bits: [u8; 16],
    width: usize,
    /// Number of bytes read so far.
    next: u64,
}

impl Stream for Flipped<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.gathered.fill(buffer)?;
        let start = (self.next % self.width as u64) as usize;
        let bits = self.bits[..self.width].iter().cycle().skip(start);
        buffer.iter_mut().zip(bits).for_each(|(byte, bits)| *byte ^= bits);
        self.next += buffer.len() as u64;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.next += bytes;
        self.gathered.skip(bytes)
    }

    fn finish(&mut self) -> Result<()> {
        self.gathered.finish()
    }
}
