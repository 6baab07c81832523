//! Types that the format lacks: their stored form, and the note in the metadata that names the type.

use super::{FORMAT, KEY, Safetensors};
use crate::container::{Container, Elements, NewTensor, Tensor, element_count, too_long};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Storage;
use crate::text::shorten;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

/// The value of the metadata key [`KEY`]: the true types of tensors that are stored in another form.
#[derive(Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) tensors: BTreeMap<String, StoredNote>,
    pub(super) version: u32,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredNote {
    dtype: String,
    shape: Vec<u64>,
    store: Store,
}

/// Stored form of a type that the format lacks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Store {
    /// As U8: elements of 1, 2, 4 and 6 bits, least significant bits first.
    PackedLsb,
    /// As U8, code by code: float8 types for which the format has no name.
    Raw8,
    /// As F64 with a last dimension of 2: complex128.
    RealImag,
}

/// Removes the notes from the metadata and returns them; every file gets new ones.
pub(super) fn take_notes(metadata: &mut Option<Vec<(String, String)>>) -> Result<BTreeMap<String, StoredNote>> {
    let Some(pairs) = metadata else { return Ok(BTreeMap::new()) };
    let Some(at) = pairs.iter().position(|(key, _)| key == KEY) else { return Ok(BTreeMap::new()) };
    let (_, text) = pairs.remove(at);
    let notes: Notes = serde_json::from_str(&text).map_err(|error| {
        let error = shorten(&error.to_string());
        Error::new(format!("malformed metadata '{KEY}': {error}")).remedy(format!("remove the metadata key '{KEY}'"))
    })?;
    if notes.version != 1 {
        return Err(Error::new(format!("metadata '{KEY}' is of version {}; this tcast knows 1", notes.version)));
    }
    Ok(notes.tensors)
}

/// Returns the metadata including the notes, if there are any.
pub(super) fn with_notes(
    metadata: Option<&[(String, String)]>,
    notes: &Notes,
) -> Result<Option<Vec<(String, String)>>> {
    let mut metadata = metadata.map(<[_]>::to_vec);
    let mut names = HashSet::from([KEY]);
    if let Some((name, _)) = metadata.iter().flatten().find(|(name, _)| !names.insert(name.as_str())) {
        let what = if name == KEY { "is a name that tcast keeps for itself here" } else { "appears twice" };
        return Err(Error::new(format!("metadata '{}' {what}", shorten(name))));
    }
    if !notes.tensors.is_empty() {
        let pairs = metadata.get_or_insert_with(|| vec![(FORMAT.to_owned(), "pt".to_owned())]);
        pairs.push((KEY.to_owned(), json(notes)));
    }
    Ok(metadata)
}

impl StoredNote {
    /// Gives a stored tensor of `bytes` bytes the type and shape of the note. Tools that rewrite tensors keep old
    /// notes, so a note that does not fit the stored tensor is refused.
    pub(super) fn apply(&self, tensor: &mut Tensor, bytes: u64) -> Result<()> {
        let stale = || {
            Error::new(format!("metadata '{KEY}' does not fit the stored tensor, which was changed since"))
                .remedy(format!("remove the metadata key '{KEY}' to read the tensor as {}", tensor.stored))
        };
        let dtype: Dtype = self.dtype.parse().map_err(|_| stale())?;
        let count = element_count(&self.shape).ok_or_else(stale)?;
        let (name, shape) = (Cow::default(), &self.shape[..]);
        let new = NewTensor { name, dtype, shape, count, fortran_order: false, text: None, opaque: None, blocks: None };
        let (expected, note) = store(&new).map_err(|_| stale())?;
        let fits = note.is_some_and(|note| note.store == self.store)
            && *expected.dtype == *tensor.stored
            && *expected.shape == *tensor.shape
            && expected.bytes == bytes;
        if !fits {
            return Err(stale());
        }
        tensor.elements = Elements::numbers(Storage::packed(dtype));
        (tensor.shape, tensor.count) = (self.shape[..].into(), count);
        tensor.stored = format!("{}, noted as {}", tensor.stored, self.dtype).into();
        Ok(())
    }
}

/// The stored form of a tensor.
pub(super) struct StoredForm<'a> {
    pub(super) dtype: Cow<'a, str>,
    pub(super) shape: Cow<'a, [u64]>,
    pub(super) bytes: u64,
    /// Alignment of the offset, for readers that view the bytes in place.
    pub(super) alignment: u64,
}

/// Returns the stored form of a tensor, with a note if the form hides the type.
pub(super) fn store<'a>(tensor: &NewTensor<'a>) -> Result<(StoredForm<'a>, Option<StoredNote>)> {
    let (dtype, shape) = (tensor.dtype, tensor.shape);
    if let Some(name) = tensor.opaque {
        let alignment = if tensor.count.is_multiple_of(8) { 8 } else { 1 };
        return Ok((StoredForm { dtype: name.into(), shape: shape.into(), bytes: tensor.count, alignment }, None));
    }
    let bytes = dtype.packed_bytes(tensor.count).ok_or_else(too_long)?;
    let bits = u64::from(dtype.bits());
    let note = |store| Some(StoredNote { dtype: dtype.name().to_owned(), shape: shape.to_vec(), store });
    let last = shape.last().copied();
    // torch reads FP4 in pairs along the last dimension; the format itself only requires whole bytes in total.
    let fills_bytes = match dtype {
        Dtype::Float4E2M1 => last.is_some_and(|last| last.is_multiple_of(2)),
        _ => (tensor.count * bits).is_multiple_of(8),
    };
    if let Some(name) = dtype.safetensors_name().filter(|_| fills_bytes) {
        let stored = StoredForm { dtype: name.into(), shape: shape.into(), bytes, alignment: (bits / 8).max(1) };
        return Ok((stored, None));
    }
    let (dtype, store) = substitute(dtype).ok_or_else(|| Safetensors.refusal(dtype, true))?;
    let stored = |shape: Cow<'a, [u64]>, alignment| StoredForm { dtype: dtype.into(), shape, bytes, alignment };
    match store {
        Store::RealImag => return Ok((stored([shape, &[2]].concat().into(), 8), note(store))),
        Store::Raw8 => return Ok((stored(shape.into(), 1), note(store))),
        Store::PackedLsb => {}
    }
    let packed = match last {
        Some(last) if last.checked_mul(bits).is_some_and(|bits| bits.is_multiple_of(8)) => {
            let mut packed = shape.to_vec();
            packed.pop();
            packed.push(last * bits / 8);
            packed
        }
        _ => vec![bytes],
    };
    Ok((stored(packed.into(), 1), note(store)))
}

/// Returns the substitute for a type, which applies always, or when the elements do not fill bytes.
pub(super) fn substitute(dtype: Dtype) -> Option<(&'static str, Store)> {
    match dtype.bits() {
        128 => Some(("F64", Store::RealImag)),
        1..8 => Some(("U8", Store::PackedLsb)),
        8 if dtype.safetensors_name().is_none() => Some(("U8", Store::Raw8)),
        _ => None,
    }
}

pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect(ALWAYS_JSON)
}

pub(super) const ALWAYS_JSON: &str = "strings, numbers and maps with string keys are always JSON";
