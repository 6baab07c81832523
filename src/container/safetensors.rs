//! `.safetensors`: a JSON header, then the tensors' bytes without gaps.
//!
//! Stricter than the reference reader where that one is silently wrong: a name that stands twice is refused.
//! Types that the format lacks are stored in ones it has, and named in one JSON string under the metadata key
//! [`KEY`]; the header's order and all other metadata are kept.

use super::json::{MapOnly, StringPairs};
use super::{
    Container, Contents, Data, Elements, Facts, FileLayout, Metadata, NewTensor, Place, Tensor, cannot_hold,
    element_count, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result, shorten};
use crate::io::map::MappedFile;
use crate::kernel::{Form, Storage, TextExtent};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
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
    fn facts(&self) -> Facts {
        Facts {
            extension: "safetensors",
            holds_one: false,
            has_names: true,
            has_fortran_order: false,
            metadata: Metadata::Marked(FORMAT, "pt"),
        }
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        let first = bytes.iter().skip(8).take(4096).find(|byte| !byte.is_ascii_whitespace());
        header_length(bytes).is_ok() && first == Some(&b'{')
    }

    fn read(&self, bytes: &MappedFile) -> Result<Contents> {
        let data_start = 8 + header_length(bytes)?;
        check_depth(&bytes[8..data_start])?;
        let header: Header = serde_json::from_slice(&bytes[8..data_start])
            .map_err(|error| Error::new(format!("malformed header: {}", shorten(&error.to_string()))))?;
        check_coverage(&header.tensors, (bytes.len() - data_start) as u64)?;
        let mut metadata = header.metadata;
        let notes = take_notes(&mut metadata)?;
        let tensors = header.tensors.into_iter().map(|(name, entry)| {
            let range = data_start + entry.data_offsets.0 as usize..data_start + entry.data_offsets.1 as usize;
            let (tensor, stored) = match notes.get(&name) {
                Some(note) => (note.apply(&entry), format!("{}, noted as {}", entry.dtype, note.dtype)),
                None => (entry.plain(), entry.dtype.clone()),
            };
            let (dtype, shape, count) = tensor.map_err(|error| error.in_tensor(&name))?;
            let elements = Elements::Typed(Form::Numbers(Storage::packed(dtype)));
            let data = Data::Mapped { file: 0, range, checksum: None };
            Ok(Tensor { name, shape, count, elements, fortran_order: false, data, stored })
        });
        Ok(Contents { tensors: tensors.collect::<Result<_>>()?, metadata, ..Contents::default() })
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

    fn lay_out(&self, tensors: &[NewTensor], metadata: Option<&[(String, String)]>) -> Result<FileLayout> {
        let mut notes = Notes { tensors: BTreeMap::new(), version: 1 };
        let mut stored = Vec::with_capacity(tensors.len());
        let mut names = HashSet::new();
        for tensor in tensors {
            let refuse = |message: &str| Err(Error::new(message).in_tensor(&tensor.name));
            if tensor.name == METADATA {
                return refuse("safetensors keeps this name for its metadata");
            }
            if !names.insert(&tensor.name) {
                return refuse("two tensors have this name");
            }
            let (entry, note) = store(tensor).map_err(|error| error.in_tensor(&tensor.name))?;
            notes.tensors.extend(note.map(|note| (tensor.name.clone(), note)));
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
        let places = tensors.iter().zip(offsets).map(|(tensor, at)| Place {
            form: Form::Numbers(Storage::packed(tensor.dtype)),
            range: start + at.start..start + at.end,
            seal: None,
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
    let (mut depth, mut in_string, mut escaped) = (0_u32, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(Error::new("malformed header: brackets are nested too deep"));
        }
    }
    Ok(())
}

/// The header as the file has it.
struct Header {
    metadata: Option<Vec<(String, String)>>,
    tensors: Vec<(String, Entry)>,
}

/// A tensor as the header has it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that names tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header { metadata: None, tensors: Vec::new() };
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(de::Error::custom(format!("'{}' stands twice", shorten(&name))));
                    }
                    if name == METADATA {
                        header.metadata = map.next_value::<Option<StringPairs>>()?.map(|pairs| pairs.0);
                    } else {
                        let MapOnly(entry) = map.next_value()?;
                        header.tensors.push((name, entry));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl Entry {
    /// The type that the header names, with the number of elements; checked against the size.
    fn plain(&self) -> Result<(Dtype, Vec<u64>, u64)> {
        let dtype = Dtype::all().find(|dtype| dtype.safetensors_name() == Some(&self.dtype));
        let dtype = dtype.ok_or_else(|| {
            let known: Vec<&str> = Dtype::all().filter_map(Dtype::safetensors_name).collect();
            let unknown = shorten(&self.dtype);
            Error::new(format!("unknown dtype '{unknown}'; safetensors has {}", known.join(", ")))
        })?;
        let count = element_count(&self.shape);
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
        let held = self.data_offsets.1 - self.data_offsets.0;
        if bits / 8 != held {
            let wanted = bits / 8;
            return Err(Error::new(format!("the shape asks for {wanted} bytes, data_offsets give {held}")));
        }
        Ok((dtype, self.shape.clone(), count))
    }
}

/// Checks that the tensors lie one behind the other and fill `held` bytes of data.
fn check_coverage(tensors: &[(String, Entry)], held: u64) -> Result<()> {
    let mut order: Vec<&(String, Entry)> = tensors.iter().collect();
    order.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    for (name, entry) in order {
        let (start, next) = entry.data_offsets;
        if start != end || next < start {
            let what = if start > end { "a gap lies before its data" } else { "its data overlaps another tensor's" };
            let what = if next < start { "its data ends before it starts" } else { what };
            return Err(Error::new(format!("{what} (data_offsets [{start}, {next}])")).in_tensor(name));
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
    /// The tensor as the note has it. Tools that rewrite tensors keep old notes: one that does not fit what is
    /// stored is refused.
    fn apply(&self, entry: &Entry) -> Result<(Dtype, Vec<u64>, u64)> {
        let stale = || {
            Error::new(format!("metadata '{KEY}' does not fit the stored tensor, which was changed since"))
                .remedy(format!("remove the metadata key '{KEY}' to read the tensor as {}", entry.dtype))
        };
        let dtype: Dtype = self.dtype.parse().map_err(|_| stale())?;
        let count = element_count(&self.shape).ok_or_else(stale)?;
        let (name, shape, text) = (String::new(), self.shape.clone(), TextExtent::default());
        let tensor = NewTensor { name, dtype, shape, count, fortran_order: false, text };
        let (expected, note) = store(&tensor).map_err(|_| stale())?;
        let fits = note.is_some_and(|note| note.store == self.store)
            && expected.dtype == entry.dtype
            && expected.shape == entry.shape
            && expected.bytes == entry.data_offsets.1 - entry.data_offsets.0;
        if fits { Ok((dtype, self.shape.clone(), count)) } else { Err(stale()) }
    }
}

/// A tensor as it is stored.
struct Stored {
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    /// What its offset should be a multiple of, for readers that view the bytes in place.
    alignment: u64,
}

/// How a tensor is stored, with a note where that hides its type.
fn store(tensor: &NewTensor) -> Result<(Stored, Option<Note>)> {
    let (dtype, shape) = (tensor.dtype, &tensor.shape);
    let bytes = dtype.packed_bytes(tensor.count).ok_or_else(too_long)?;
    let bits = u64::from(dtype.bits());
    let note = |store| Some(Note { dtype: dtype.name().to_owned(), shape: shape.clone(), store });
    let last = shape.last().copied();
    // torch reads FP4 in pairs of the last dimension; the format itself asks for whole bytes in all.
    let fills_bytes = match dtype {
        Dtype::Float4E2M1 => last.is_some_and(|last| last.is_multiple_of(2)),
        _ => (tensor.count * bits).is_multiple_of(8),
    };
    if let Some(name) = dtype.safetensors_name().filter(|_| fills_bytes) {
        let stored = Stored { dtype: name, shape: shape.clone(), bytes, alignment: (bits / 8).max(1) };
        return Ok((stored, None));
    }
    let (dtype, store) = substitute(dtype).ok_or_else(|| cannot_hold("safetensors", dtype))?;
    let stored = |shape, alignment| Stored { dtype, shape, bytes, alignment };
    match store {
        Store::RealImag => return Ok((stored([shape.as_slice(), &[2]].concat(), 8), note(store))),
        Store::Raw8 => return Ok((stored(shape.clone(), 1), note(store))),
        Store::PackedLsb => {}
    }
    let packed = match last {
        Some(last) if last.checked_mul(bits).is_some_and(|bits| bits.is_multiple_of(8)) => {
            let mut packed = shape.clone();
            packed.pop();
            packed.push(last * bits / 8);
            packed
        }
        _ => vec![bytes],
    };
    Ok((stored(packed, 1), note(store)))
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
fn place(stored: &[Stored]) -> Result<Vec<Range<u64>>> {
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
    tensors: &[NewTensor],
    stored: &[Stored],
    offsets: &[Range<u64>],
    metadata: Option<&[(String, String)]>,
) -> Vec<u8> {
    let mut parts = Vec::with_capacity(tensors.len() + 1);
    if let Some(pairs) = metadata {
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{}:{}", json(key), json(value))).collect();
        parts.push(format!("{}:{{{}}}", json(METADATA), pairs.join(",")));
    }
    for ((tensor, stored), at) in tensors.iter().zip(stored).zip(offsets) {
        let (name, shape) = (json(&tensor.name), json(&stored.shape));
        let Stored { dtype, .. } = stored;
        parts.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{},{}]}}"#, at.start, at.end));
    }
    let mut text = format!("{{{}}}", parts.join(","));
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("strings, numbers and maps with string keys are always JSON")
}
