//! `.safetensors`: a JSON header, then the tensors' bytes without gaps.
//!
//! Stricter than the reference reader where that one is silently wrong: a name that stands twice is refused.
//! Types that the format lacks are stored in ones it has, and named in one JSON string under the metadata key
//! [`KEY`]; the header's order and all other metadata are kept.

use super::json::{MapOnly, StringPairs};
use super::{
    Container, Contents, Data, Elements, FileLayout, Form, Format, FormatInfo, Metadata, NewTensor, Placement, Tensor,
    cannot_hold, element_count, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::shorten;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Write;
use std::ops::Range;

/// The longest header, by the format's own rule.
const MAX_HEADER: u64 = 100_000_000;
/// The name that is not a tensor's.
const METADATA: &str = "__metadata__";
/// The metadata key for the library whose tensors these are: loaders refuse metadata without it.
const FORMAT: &str = "format";
/// The metadata key for types that the format lacks.
const KEY: &str = "tcast";

/// The `.safetensors` format.
pub(super) struct Safetensors;

impl Container for Safetensors {
    fn format_info(&self) -> FormatInfo {
        FormatInfo {
            extension: "safetensors",
            holds_one: false,
            has_names: true,
            has_fortran_order: false,
            metadata: Metadata::Marked(FORMAT, "pt"),
        }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        let native = dtype.safetensors_name().map(str::to_owned);
        let other = substitute(dtype).map(|(name, store)| match store {
            Store::PackedLsb => format!("{name} packed"),
            Store::RealImag => format!("{name} [..., 2]"),
            Store::Raw8 => name.to_owned(),
        });
        match (native, other) {
            (Some(native), Some(other)) => Some(format!("{native}, else {other}")),
            (native, other) => native.or(other),
        }
    }
}

impl Format for Safetensors {
    fn recognises(&self, bytes: &[u8]) -> bool {
        let first = bytes.iter().skip(8).take(4096).find(|byte| !byte.is_ascii_whitespace());
        header_length(bytes).is_ok() && first == Some(&b'{')
    }

    fn read(&self, bytes: &MappedFile) -> Result<Contents> {
        let data_start = 8 + header_length(bytes)?;
        check_depth(&bytes[8..data_start])?;
        let header: SafetensorsHeader = serde_json::from_slice(&bytes[8..data_start])
            .map_err(|error| Error::new(format!("malformed header: {}", shorten(&error.to_string()))))?;
        let SafetensorsHeader { mut metadata, mut tensors, offsets, wrong } = header;
        wrong.map_or(Ok(()), Err)?;
        check_names(&tensors)?;
        check_coverage(&tensors, &offsets, (bytes.len() - data_start) as u64)?;
        let notes = take_notes(&mut metadata)?;
        for (tensor, (start, end)) in tensors.iter_mut().zip(offsets) {
            if let Some(note) = notes.get(&tensor.name) {
                note.apply(tensor, end - start).map_err(|error| error.in_tensor(&tensor.name))?;
            }
            let range = data_start + start as usize..data_start + end as usize;
            tensor.data = Data::Mapped { file: 0, range, checksum: None };
        }
        Ok(Contents { tensors, metadata, ..Contents::default() })
    }

    fn lay_out(&self, tensors: &[&NewTensor], metadata: Option<&[(String, String)]>) -> Result<FileLayout> {
        let mut notes = Notes { tensors: BTreeMap::new(), version: 1 };
        let mut stored = Vec::with_capacity(tensors.len());
        let mut names = HashSet::with_capacity(tensors.len());
        for tensor in tensors {
            let refuse = |message: &str| Err(Error::new(message).in_tensor(&tensor.name));
            if tensor.name == METADATA {
                return refuse("safetensors keeps this name for its metadata");
            }
            if !names.insert(&tensor.name) {
                return refuse("two tensors have this name");
            }
            let (entry, note) = store(tensor).map_err(|error| error.in_tensor(&tensor.name))?;
            notes.tensors.extend(note.map(|note| (tensor.name.to_string(), note)));
            stored.push(entry);
        }
        let offsets = place(&stored)?;
        let header = write_header(tensors, &stored, &offsets, with_notes(metadata, &notes)?.as_deref());
        if header.len() as u64 > MAX_HEADER {
            return Err(Error::new("the header would be longer than the format allows"));
        }
        let start = header.len() as u64;
        let len = offsets.iter().map(|range| range.end).max().unwrap_or(0).checked_add(start);
        let len = len.ok_or_else(too_long)?;
        let places = tensors.iter().zip(offsets).map(|(tensor, at)| Placement {
            form: Form::Numbers(Storage::packed(tensor.dtype)),
            range: start + at.start..start + at.end,
            crc: None,
        });
        Ok(FileLayout { places: places.collect(), literals: vec![(0, header)], len })
    }
}

/// Length of the JSON header, which the file is sure to hold.
fn header_length(bytes: &[u8]) -> Result<usize> {
    let length = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let length = length.ok_or_else(|| Error::new("the file is too short for a safetensors header"))?;
    let held = bytes.len() as u64 - 8;
    if length > held.min(MAX_HEADER) {
        return Err(Error::new(format!("the header is to be {length} bytes long, the file has {held} after that")));
    }
    Ok(length as usize)
}

/// Refuses JSON that nests deeper than readers of the format allow; serde sets no limit in what it skips.
fn check_depth(json: &[u8]) -> Result<()> {
    const MAX_DEPTH: u32 = 128;
    let mut depth = 0_u32;
    let mut rest = json.iter();
    while let Some(byte) = rest.next() {
        match byte {
            // Most of a header is names: a tight loop to the end of each.
            b'"' => while rest.find(|byte| matches!(byte, b'"' | b'\\')) == Some(&b'\\') && rest.next().is_some() {},
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(Error::new("malformed header: brackets are nested too deep"));
        }
    }
    Ok(())
}

/// The header as the file has it.
#[derive(Default)]
struct SafetensorsHeader {
    metadata: Option<Vec<(String, String)>>,
    /// As stored, at no place yet: there may be thousands, and they are not held twice.
    tensors: Vec<Tensor>,
    /// Where the bytes of each start and end, counted from the end of the header.
    offsets: Vec<(u64, u64)>,
    /// What is wrong with the first tensor that contradicts itself.
    wrong: Option<Error>,
}

/// A tensor as the header has it.
#[derive(Deserialize)]
struct HeaderEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for SafetensorsHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = SafetensorsHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that names tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SafetensorsHeader, A::Error> {
                let mut header = SafetensorsHeader::default();
                let mut has_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(de::Error::custom(format!("'{METADATA}' stands twice")));
                        }
                        header.metadata = map.next_value::<Option<StringPairs>>()?.map(|pairs| pairs.0);
                    } else {
                        let MapOnly(entry) = map.next_value::<MapOnly<HeaderEntry>>()?;
                        header.offsets.push(entry.data_offsets);
                        match entry.tensor(name) {
                            Ok(tensor) => header.tensors.push(tensor),
                            Err(error) => header.wrong = header.wrong.or(Some(error)),
                        }
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl HeaderEntry<'_> {
    /// The tensor that is stored, whose type and shape are checked against its size.
    fn tensor(self, name: String) -> Result<Tensor> {
        let stored = self.stored().map_err(|error| error.in_tensor(&name));
        let (elements, stored, count) = stored?;
        let data = Data::Mapped { file: 0, range: 0..0, checksum: None };
        Ok(Tensor { name, shape: self.shape, count, elements, fortran_order: false, data, stored })
    }

    /// The type, its name in the format, and the number of elements; of an unknown type that of bytes.
    fn stored(&self) -> Result<(Elements, Cow<'static, str>, u64)> {
        let (start, end) = self.data_offsets;
        let Some(held) = end.checked_sub(start) else {
            return Err(Error::new(format!("its data ends before it starts (data_offsets [{start}, {end}])")));
        };
        let count = element_count(&self.shape);
        let mut named = Dtype::all().filter_map(|dtype| Some((dtype, dtype.safetensors_name()?)));
        let Some((dtype, name)) = named.find(|(_, name)| *name == self.dtype) else {
            return match count {
                Some(_) => Ok((Elements::Opaque, self.dtype.to_string().into(), held)),
                None => Err(Error::new("the shape asks for more bytes than can be counted")),
            };
        };
        let bits = count.and_then(|count| count.checked_mul(dtype.bits().into()));
        let (Some(count), Some(bits)) = (count, bits) else {
            return Err(Error::new("the shape asks for more bytes than can be counted"));
        };
        if !bits.is_multiple_of(8) {
            return Err(Error::new(format!(
                "its shape, of {dtype}, does not fill whole bytes: {count} x {} bits",
                dtype.bits()
            )));
        }
        let wanted = bits / 8;
        if wanted != held {
            return Err(Error::new(format!("the shape asks for {wanted} bytes, data_offsets give {held}")));
        }
        Ok((Elements::Typed(Form::Numbers(Storage::packed(dtype))), name.into(), count))
    }
}

/// Checks that every name stands once.
fn check_names(tensors: &[Tensor]) -> Result<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(&*tensor.name)) {
        Some(tensor) => Err(Error::new(format!("malformed header: '{}' stands twice", shorten(&tensor.name)))),
        None => Ok(()),
    }
}

/// Checks that the tensors lie one behind the other and fill `held` bytes of data.
fn check_coverage(tensors: &[Tensor], offsets: &[(u64, u64)], held: u64) -> Result<()> {
    let mut order: Vec<usize> = (0..offsets.len()).collect();
    order.sort_by_key(|&at| offsets[at]);
    let mut end = 0;
    for at in order {
        let (start, next) = offsets[at];
        if start != end {
            let what = if start > end { "a gap lies before its data" } else { "its data overlaps another tensor's" };
            let error = Error::new(format!("{what} (data_offsets [{start}, {next}])"));
            return Err(error.in_tensor(&tensors[at].name));
        }
        end = next;
    }
    if end > held {
        return Err(Error::new(format!(
            "the file is cut short: its tensors take {end} bytes, {held} are there; was the download complete?"
        )));
    }
    if end < held {
        return Err(Error::new(format!("bytes follow the last tensor: {}", held - end)));
    }
    Ok(())
}

/// What the metadata under [`KEY`] says: the true types of tensors that are stored as something else.
#[derive(Serialize, Deserialize)]
struct Notes {
    tensors: BTreeMap<String, Note>,
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Note {
    dtype: String,
    shape: Vec<u64>,
    store: Store,
}

/// How a type that the format lacks is stored.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Store {
    /// As U8: elements of 1, 2, 4 and 6 bits, least significant bits first.
    PackedLsb,
    /// As U8, code by code: float8 types that the format has no name for.
    Raw8,
    /// As F64 with a last dimension of 2: complex128.
    RealImag,
}

/// Takes the notes out of the metadata: they are made anew for every file.
fn take_notes(metadata: &mut Option<Vec<(String, String)>>) -> Result<BTreeMap<String, Note>> {
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

/// The metadata with the notes, if there are any.
fn with_notes(metadata: Option<&[(String, String)]>, notes: &Notes) -> Result<Option<Vec<(String, String)>>> {
    let mut metadata = metadata.map(<[_]>::to_vec);
    let mut names = HashSet::from([KEY]);
    if let Some((name, _)) = metadata.iter().flatten().find(|(name, _)| !names.insert(name.as_str())) {
        let what = if name == KEY { "is a name that tcast keeps for itself here" } else { "stands twice" };
        return Err(Error::new(format!("metadata '{}' {what}", shorten(name))));
    }
    if !notes.tensors.is_empty() {
        let pairs = metadata.get_or_insert_with(|| vec![(FORMAT.to_owned(), "pt".to_owned())]);
        pairs.push((KEY.to_owned(), json(notes)));
    }
    Ok(metadata)
}

impl Note {
    /// Makes of a stored tensor of so many bytes what the note says. Tools that rewrite tensors keep old notes: one that
    /// does not fit what is stored is refused.
    fn apply(&self, tensor: &mut Tensor, bytes: u64) -> Result<()> {
        let stale = || {
            Error::new(format!("metadata '{KEY}' does not fit the stored tensor, which was changed since"))
                .remedy(format!("remove the metadata key '{KEY}' to read the tensor as {}", tensor.stored))
        };
        let dtype: Dtype = self.dtype.parse().map_err(|_| stale())?;
        let count = element_count(&self.shape).ok_or_else(stale)?;
        let (name, shape) = (Cow::default(), &self.shape[..]);
        let new = NewTensor { name, dtype, shape, count, fortran_order: false, text: None, opaque: None };
        let (expected, note) = store(&new).map_err(|_| stale())?;
        let fits = note.is_some_and(|note| note.store == self.store)
            && expected.dtype == tensor.stored
            && *expected.shape == tensor.shape
            && expected.bytes == bytes;
        if !fits {
            return Err(stale());
        }
        tensor.elements = Elements::Typed(Form::Numbers(Storage::packed(dtype)));
        (tensor.shape, tensor.count) = (self.shape.clone(), count);
        tensor.stored = format!("{}, noted as {}", tensor.stored, self.dtype).into();
        Ok(())
    }
}

/// A tensor as it is stored.
struct StoredForm<'a> {
    dtype: Cow<'a, str>,
    shape: Cow<'a, [u64]>,
    bytes: u64,
    /// What its offset should be a multiple of, for readers that view the bytes in place.
    alignment: u64,
}

/// How a tensor is stored, with a note where that hides its type.
fn store<'a>(tensor: &NewTensor<'a>) -> Result<(StoredForm<'a>, Option<Note>)> {
    let (dtype, shape) = (tensor.dtype, tensor.shape);
    if let Some(name) = tensor.opaque {
        let alignment = if tensor.count.is_multiple_of(8) { 8 } else { 1 };
        return Ok((StoredForm { dtype: name.into(), shape: shape.into(), bytes: tensor.count, alignment }, None));
    }
    let bytes = dtype.packed_bytes(tensor.count).ok_or_else(too_long)?;
    let bits = u64::from(dtype.bits());
    let note = |store| Some(Note { dtype: dtype.name().to_owned(), shape: shape.to_vec(), store });
    let last = shape.last().copied();
    // torch reads FP4 in pairs of the last dimension; the format itself asks for whole bytes in all.
    let fills_bytes = match dtype {
        Dtype::Float4E2M1 => last.is_some_and(|last| last.is_multiple_of(2)),
        _ => (tensor.count * bits).is_multiple_of(8),
    };
    if let Some(name) = dtype.safetensors_name().filter(|_| fills_bytes) {
        let stored = StoredForm { dtype: name.into(), shape: shape.into(), bytes, alignment: (bits / 8).max(1) };
        return Ok((stored, None));
    }
    let (dtype, store) = substitute(dtype).ok_or_else(|| cannot_hold("safetensors", dtype))?;
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

/// How a type is stored as another one: always, or where its elements do not fill bytes.
fn substitute(dtype: Dtype) -> Option<(&'static str, Store)> {
    match dtype.bits() {
        128 => Some(("F64", Store::RealImag)),
        1..8 => Some(("U8", Store::PackedLsb)),
        8 if dtype.safetensors_name().is_none() => Some(("U8", Store::Raw8)),
        _ => None,
    }
}

/// Where each tensor's bytes lie behind the header: in the order of the header, unless that would leave one
/// unaligned; then the wider types come first, as the reference writer has them.
fn place(stored: &[StoredForm]) -> Result<Vec<Range<u64>>> {
    let mut order: Vec<usize> = (0..stored.len()).collect();
    let mut offsets = vec![0..0; stored.len()];
    for attempt in 0..2 {
        let mut end = 0_u64;
        let mut aligned = true;
        for &index in &order {
            let start = end;
            end = start.checked_add(stored[index].bytes).ok_or_else(too_long)?;
            aligned &= start.is_multiple_of(stored[index].alignment);
            offsets[index] = start..end;
        }
        if aligned || attempt == 1 {
            break;
        }
        order.sort_by_key(|&index| std::cmp::Reverse(stored[index].alignment));
    }
    Ok(offsets)
}

/// The length and the JSON, padded with spaces to a multiple of 8.
fn write_header(
    tensors: &[&NewTensor],
    stored: &[StoredForm],
    offsets: &[Range<u64>],
    metadata: Option<&[(String, String)]>,
) -> Vec<u8> {
    let mut header = vec![0; 8];
    header.push(b'{');
    if let Some(pairs) = metadata {
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{}:{}", json(key), json(value))).collect();
        header.extend(format!("{}:{{{}}},", json(METADATA), pairs.join(",")).bytes());
    }
    for ((tensor, StoredForm { dtype, shape, .. }), at) in tensors.iter().zip(stored).zip(offsets) {
        let (name, dtype, shape, Range { start, end }) = (json(&tensor.name), json(dtype), json(shape), at);
        let entry = write!(header, r#"{name}:{{"dtype":{dtype},"shape":{shape},"data_offsets":[{start},{end}]}},"#);
        entry.expect("memory takes all");
    }
    header.pop_if(|last| *last == b',');
    header.push(b'}');
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64 - 8;
    header[..8].copy_from_slice(&length.to_le_bytes());
    header
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, numbers and maps with string keys are always JSON")
}
