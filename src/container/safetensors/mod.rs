//! `.safetensors`: a JSON header, then the tensors' bytes without gaps.
//!
//! This reader is stricter than the reference reader where the latter is silently wrong: it refuses a duplicate name.
//! Types that the format lacks are stored in others, and named in one JSON string under the metadata key [`KEY`]; the
//! header's order and all other metadata are kept.

mod canonical;
mod notes;
mod reread;
mod write;

use super::json::{MapOnly, StringPairs};
use super::names::NameHashes;
use super::{
    Container, Contents, Data, Elements, FileLayout, Form, FormatInfo, Metadata, NewMetadata, NewTensor, NewTensors,
    Placement, ReadOptions, Rereading, ShardNames, Tensor, element_count, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Opt, Result};
use crate::io::map::{MappedFile, large_buffer};
use crate::kernel::Storage;
use crate::text::shorten;
use notes::{Notes, Store, store, substitute, take_notes, with_notes};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use write::{DataRanges, PART, write_header};

/// Maximum length of a header, by the format's own rule.
const MAX_HEADER: u64 = 100_000_000;
/// The header key of the metadata, the only one that is not a tensor's name.
const METADATA: &str = "__metadata__";
/// The metadata key for the library that the tensors belong to: loaders refuse metadata without it.
const FORMAT: &str = "format";
/// The metadata key for types that the format lacks.
const KEY: &str = "tcast";

/// The `.safetensors` format.
pub(super) struct Safetensors;

impl Container for Safetensors {
    fn format_info(&self) -> FormatInfo {
        FormatInfo {
            metadata: Metadata::Marked(FORMAT, "pt"),
            shards: Some(ShardNames { extension: "safetensors", part_of_stem: "" }),
            ..FormatInfo::of("safetensors")
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

    fn recognises(&self, bytes: &[u8]) -> bool {
        let first = bytes.iter().skip(8).take(4096).find(|byte| !byte.is_ascii_whitespace());
        header_length(bytes).is_ok() && first == Some(&b'{')
    }

    fn read(&self, bytes: &MappedFile, options: &ReadOptions) -> Result<Contents> {
        let data_start = 8 + header_length(bytes)?;
        bytes.prefetch(0..data_start)?;
        let json = &bytes[8..data_start];
        let header = canonical::read(json, options.threads).map_or_else(|| read_general(json), Ok)?;
        let SafetensorsHeader { mut metadata, mut tensors, offsets, wrong, names, .. } = header;
        wrong.map_or(Ok(()), Err)?;
        if let Some(name) = names.repeated(tensors.iter().map(|tensor| &*tensor.name)) {
            return Err(Error::new(format!("malformed header: '{}' appears twice", shorten(name))));
        }
        check_coverage(&tensors, &offsets, (bytes.len() - data_start) as u64)?;
        let notes = take_notes(&mut metadata)?;
        for (tensor, (start, end)) in tensors.iter_mut().zip(offsets) {
            if let Some(note) = notes.get(&*tensor.name) {
                note.apply(tensor, end - start).map_err(|error| error.in_tensor(&tensor.name))?;
            }
            tensor.data = Data::plain(data_start + start as usize..data_start + end as usize);
        }
        Ok(Contents { tensors, metadata, ..Contents::default() })
    }

    fn reread(&self, file: &[u8], tensors: Rereading) -> Result<()> {
        reread::check(file, tensors)
    }

    fn lay_out(&self, tensors: &dyn NewTensors, metadata: &NewMetadata, threads: usize) -> Result<FileLayout> {
        let mut notes = Notes { tensors: BTreeMap::new(), version: 1 };
        let (mut starts, mut end, mut are_aligned) = (Vec::new(), 0_u64, true);
        let mut names = NameHashes::with_capacity(tensors.count());
        for (at, tensor) in tensors.iter().enumerate() {
            let refuse = |message: &str| Err(Error::new(message).in_tensor(&tensor.name));
            if tensor.name == METADATA {
                return refuse("safetensors keeps this name for its metadata");
            }
            names.add(&tensor.name);
            let (stored, note) = store(&tensor).map_err(|error| error.in_tensor(&tensor.name))?;
            notes.tensors.extend(note.map(|note| (tensor.name.to_string(), note)));
            let start = end;
            end = start.checked_add(stored.bytes).ok_or_else(too_long)?;
            are_aligned &= start.is_multiple_of(stored.alignment);
            if at.is_multiple_of(PART) {
                starts.push(start);
            }
        }
        names.check_new(tensors)?;
        let ranges = if are_aligned { DataRanges::InOrder(starts) } else { DataRanges::aligned(tensors)? };
        let metadata = with_notes(metadata.texts.as_deref(), &notes)?;
        let (literals, entries) = write_header(tensors, &ranges, metadata.as_deref(), threads)?;
        let start = literals.last().map_or(0, |(offset, last)| offset + last.len() as u64);
        check_length("the output would have", start.saturating_sub(8)).map_err(|error| {
            error.of(Kind::Usage).with(Opt::MAX_SHARD_SIZE, "add {}, which divides the output into shards")
        })?;
        let len = end.checked_add(start).ok_or_else(too_long)?;
        let place = |(tensor, range): (NewTensor, Range<u64>)| Placement {
            form: Form::packed(tensor.dtype),
            range: start + range.start..start + range.end,
            crc: None,
        };
        let places = match ranges {
            DataRanges::InOrder(_) => Vec::new(),
            DataRanges::Listed(ranges) => tensors.iter().zip(ranges).map(place).collect(),
        };
        Ok(FileLayout { literals, entries, places, len })
    }
}

/// Returns the length of the JSON header, after checking that the file is long enough for it.
fn header_length(bytes: &[u8]) -> Result<usize> {
    let length = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let length = length.ok_or_else(|| Error::new("the file is too short for a safetensors header"))?;
    check_length("the file has", length)?;
    let held = bytes.len() as u64 - 8;
    if length > held {
        return Err(Error::new(format!(
            "the file is cut short: its header takes {length} bytes, {held} are there; was the download complete?"
        )));
    }
    Ok(length as usize)
}

fn check_length(what: &str, header: u64) -> Result<()> {
    if header > MAX_HEADER {
        return Err(Error::new(format!("{what} a header of {header} bytes; safetensors allows at most {MAX_HEADER}")));
    }
    Ok(())
}

fn read_general(json: &[u8]) -> Result<SafetensorsHeader> {
    check_depth(json)?;
    if json.ends_with(b"\0") {
        let what =
            "its header ends with NUL bytes; safetensors allows only spaces there, and its readers refuse the file";
        return Err(Error::new(what).remedy("write it again with another program"));
    }
    serde_json::from_slice(json)
        .map_err(|error| Error::new(format!("malformed header: {}", shorten(&error.to_string()))))
}

/// Returns the results of both header readers for the same bytes, as text, so that fuzzing can compare them. The first
/// result is from the reader of usual headers, with `threads` threads. `None` if this reader leaves the header to the
/// general one, which may refuse it with an error.
#[must_use]
pub fn read_header_twice(json: &[u8], threads: usize) -> Option<(String, Result<String>)> {
    let usual = canonical::read_parts(json, threads)?.describe();
    Some((usual, read_general(json).map(|header| header.describe())))
}

/// Refuses JSON that is nested deeper than readers of the format allow; serde has no limit for skipped values.
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

/// The contents of a header.
#[derive(Default)]
struct SafetensorsHeader {
    metadata: Option<Vec<(String, String)>>,
    /// Tensors as stored, without offsets yet: there may be thousands, and they are kept only once.
    tensors: Vec<Tensor>,
    /// Start and end of each tensor's bytes, relative to the end of the header.
    offsets: Vec<(u64, u64)>,
    /// Error of the first tensor that contradicts itself.
    wrong: Option<Error>,
    names: NameHashes,
    /// Type of the last tensor; most tensors have the same.
    dtype: Option<StoredDtype>,
    /// Some shapes, which the next tensors may share.
    shapes: [Arc<[u64]>; 8],
}

impl SafetensorsHeader {
    /// Allocates memory for `count` tensors; unneeded memory is never touched. The names can be appended to `names`.
    fn with_capacity(count: usize, names: &NameHashes) -> Self {
        let (tensors, offsets) = (large_buffer(count), Vec::with_capacity(count));
        Self { tensors, offsets, names: names.beside(count), ..Self::default() }
    }

    /// Formats everything that a header holds, to compare the results of two readers.
    fn describe(&self) -> String {
        let Self { metadata, tensors, offsets, wrong, .. } = self;
        format!("{metadata:?} {tensors:?} {offsets:?} {wrong:?}")
    }

    /// Appends the entries that follow.
    fn append(&mut self, mut next: Self) {
        self.metadata = self.metadata.take().or(next.metadata);
        self.tensors.append(&mut next.tensors);
        self.offsets.append(&mut next.offsets);
        self.wrong = self.wrong.take().or(next.wrong);
        self.names.append(next.names);
    }

    fn add(&mut self, name: &str, entry: &HeaderEntry) {
        self.offsets.push(entry.data_offsets);
        self.names.add(name);
        match self.tensor(name, entry) {
            Ok(tensor) => self.tensors.push(tensor),
            Err(error) => self.wrong = self.wrong.take().or(Some(error.in_tensor(name))),
        }
    }

    /// Returns the stored tensor, after checking its type and shape against its size.
    fn tensor(&mut self, name: &str, entry: &HeaderEntry) -> Result<Tensor> {
        let (elements, stored, count) = entry.stored(&mut self.dtype)?;
        let known = self.shapes.iter().find(|shape| ***shape == *entry.shape).cloned();
        let shape = known.unwrap_or_else(|| {
            let place = &mut self.shapes[self.tensors.len() % 8];
            *place = entry.shape.into();
            Arc::clone(place)
        });
        let data = Data::plain(0..0); // until the end of the header is known
        Ok(Tensor { name: name.into(), shape, count, elements, fortran_order: false, data, stored })
    }
}

type StoredDtype = (Dtype, Arc<str>);

/// A tensor's entry in the header.
struct HeaderEntry<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

/// An entry as the general parser reads it.
#[derive(Deserialize)]
struct GeneralEntry<'a> {
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
                            return Err(de::Error::custom(format!("'{METADATA}' appears twice")));
                        }
                        header.metadata = map.next_value::<Option<StringPairs>>()?.map(|pairs| pairs.0);
                    } else {
                        let MapOnly(entry) = map.next_value::<MapOnly<GeneralEntry>>()?;
                        let GeneralEntry { dtype, shape, data_offsets } = &entry;
                        header.add(&name, &HeaderEntry { dtype, shape, data_offsets: *data_offsets });
                    }
                }
                header.tensors.shrink_to_fit(); // they stay in memory during all later steps
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl HeaderEntry<'_> {
    /// Returns the type, its name in the format, and the number of elements; for an unknown type, the number of bytes.
    /// `known` is the type of the last tensor.
    fn stored(&self, known: &mut Option<StoredDtype>) -> Result<(Elements, Arc<str>, u64)> {
        let (start, end) = self.data_offsets;
        let Some(held) = end.checked_sub(start) else {
            return Err(Error::new(format!("its data ends before it starts (data_offsets [{start}, {end}])")));
        };
        let count = element_count(self.shape);
        if known.as_ref().is_none_or(|(_, name)| **name != *self.dtype) {
            let dtype = Dtype::all().find(|dtype| dtype.safetensors_name() == Some(self.dtype));
            *known = dtype.map(|dtype| (dtype, self.dtype.into()));
        }
        let Some((dtype, name)) = known else {
            return match count {
                Some(_) => Ok((Elements::Opaque, self.dtype.into(), held)),
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
        Ok((Elements::numbers(Storage::packed(*dtype)), Arc::clone(name), count))
    }
}

/// Checks that the tensors are contiguous and fill `held` bytes of data.
fn check_coverage(tensors: &[Tensor], offsets: &[(u64, u64)], held: u64) -> Result<()> {
    let mut order: Vec<usize> = Vec::new();
    if !offsets.is_sorted() {
        order.extend(0..offsets.len());
        order.sort_by_key(|&at| offsets[at]);
    }
    let mut end = 0;
    for at in 0..offsets.len() {
        let at = order.get(at).copied().unwrap_or(at);
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
