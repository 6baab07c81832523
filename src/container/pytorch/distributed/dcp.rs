//! Folders of torch.distributed.checkpoint: `.metadata`, a pickle that lists the chunks of each tensor, and `.distcp` files, in
//! which each chunk is an archive of `torch.save`.
//!
//! The classes are those of `torch/distributed/checkpoint/metadata.py` and `filesystem.py`, torch 2.2 to 2.15.

use super::super::code::PickleFacts;
use super::super::pickle::{self, Pickle};
use super::super::types::TorchType;
use super::super::values::{PickleValue, PickleValues};
use super::attributes::{Attributes, class_of, is_a, type_in_properties};
use super::folder::{FolderFiles, Opened, Whole, only_tensor, pieces_of, ranges_of, read_archive};
use super::pieces::TensorPiece;
use super::roots::{LocatedTensor, RootChoice, choose};
use crate::container::{Tensor, element_count};
use crate::error::{Error, Result};
use crate::text::{counted, shorten};
use std::collections::HashMap;
use std::ops::Range;

/// Minimum number of bytes that a chunk takes in `.metadata`. torch writes about 140.
const LEAST_CHUNK: usize = 40;
const MODULE: &[u8] = b"torch.distributed.checkpoint.metadata";

/// A tensor as `.metadata` lists it.
struct Listed<'v> {
    name: &'v str,
    value: PickleValue,
}

/// A place of bytes in a `.distcp` file.
struct StoredChunk<'v> {
    file: &'v str,
    offset: u64,
    len: u64,
    /// True if the bytes are compressed or encrypted.
    transform: Option<String>,
}

type Chunks<'v> = HashMap<(&'v [u8], Option<Vec<u64>>), Result<StoredChunk<'v>>>;

/// Reads a folder with its `.metadata`.
pub(super) fn read(metadata: &[u8], files: &mut FolderFiles, root: Option<&str>) -> Result<Opened> {
    let Pickle { values, root: object, len, protocol } = pickle::read(metadata)?;
    if len != metadata.len() {
        return Err(Error::new("malformed .metadata: bytes follow its pickle"));
    }
    if class_of(&values, object) != Some((MODULE, b"Metadata")) {
        return Err(Error::new("is not the .metadata of torch.distributed.checkpoint"));
    }
    let attributes = Attributes::of(&values, object)?;
    let (PickleValue::Dict(tensors), PickleValue::Dict(stored)) =
        (attributes.get("state_dict_metadata")?, attributes.get("storage_data")?)
    else {
        return Err(Error::new("malformed .metadata: it has no dicts of tensors and places"));
    };
    values.check_keys()?;
    let chunks = stored_chunks(&values, &values.dicts[stored as usize].entries)?;
    let (mut listed, mut objects) = (Vec::new(), Vec::new());
    for (name, value) in &values.dicts[tensors as usize].entries {
        let name = values.text(*name).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| Error::new("malformed .metadata: the name of a tensor is not text"))?;
        match class_of(&values, *value) {
            Some((MODULE, b"TensorStorageMetadata")) => listed.push(Listed { name, value: *value }),
            Some((MODULE, b"BytesStorageMetadata")) => objects.push(name.to_owned()),
            _ => return Err(Error::new("malformed .metadata: it lists another object").in_tensor(name)),
        }
    }
    if let (true, Some(first)) = (listed.is_empty(), objects.first()) {
        let more = if objects.len() > 1 { format!(" and {} more", objects.len() - 1) } else { String::new() };
        let what = format!("has no tensors: '{}'{more} is one pickled object of one rank", shorten(first));
        let error = Error::new(format!("{what}, so the parts of other ranks were not saved"));
        return Err(error.remedy("save it again with the planner that flattens the state dict, the default of torch"));
    }
    let paths = attributes.find("planner_data").and_then(|paths| match paths {
        PickleValue::Dict(paths) => Some(&values.dicts[paths as usize].entries),
        _ => None,
    });
    let paths: HashMap<&[u8], PickleValue> =
        paths.into_iter().flatten().filter_map(|(name, path)| Some((values.text(*name)?, *path))).collect();
    let located: Vec<LocatedTensor> = listed.iter().map(|tensor| located(&values, tensor, &paths)).collect();
    let RootChoice { names, roots, chosen } = choose(&located, root)?;

    let mut facts = PickleFacts { form: "dcp", protocol, roots, chosen, objects, ..PickleFacts::default() };
    facts.is_requested = root.is_some();
    facts.add_code(&values)?;
    let mut reader = ChunkReader { values: &values, chunks, files, facts, left: metadata.len() / LEAST_CHUNK + 1 };
    let mut opened = Opened::default();
    for (tensor, name) in listed.iter().zip(names).filter_map(|(tensor, name)| Some((tensor, name?))) {
        match reader.tensor(tensor, &name)? {
            Ok(whole) => opened.tensors.push(whole),
            Err(error) => opened.unreadable.push(error.in_tensor(&name)),
        }
    }
    let ChunkReader { chunks, facts, .. } = reader;
    let unread = chunks.into_values().flatten().filter(|chunk| chunk.transform.is_none());
    let mut places: Vec<(String, Range<u64>)> =
        unread.map(|chunk| (chunk.file.to_owned(), chunk.offset..chunk.offset.saturating_add(chunk.len))).collect();
    places.sort_by(|a, b| (&a.0, a.1.start).cmp(&(&b.0, b.1.start)));
    opened.facts = PickleFacts { unread: places, ..facts };
    Ok(opened)
}

/// Returns the place of each chunk by the name of its tensor and its offsets; an object has none.
fn stored_chunks<'v>(values: &PickleValues<'v>, entries: &[(PickleValue, PickleValue)]) -> Result<Chunks<'v>> {
    let mut chunks = Chunks::with_capacity(entries.len());
    for (key, value) in entries {
        if class_of(values, *key) != Some((MODULE, b"MetadataIndex")) || !is_a(values, *value, "_StorageInfo") {
            return Err(Error::new("malformed .metadata: it has a place of something else than a chunk"));
        }
        let key = Attributes::of(values, *key)?;
        let name = key.text("fqn")?;
        let offsets = match key.find("offset") {
            None | Some(PickleValue::None) => None,
            Some(_) => Some(key.numbers("offset").map_err(|error| error.in_tensor(name))?),
        };
        let chunk = stored_chunk(values, *value);
        if chunks.insert((name.as_bytes(), offsets), chunk).is_some() {
            return Err(Error::new("malformed .metadata: it has two places for one chunk").in_tensor(name));
        }
    }
    Ok(chunks)
}

fn stored_chunk<'v>(values: &PickleValues<'v>, info: PickleValue) -> Result<StoredChunk<'v>> {
    let info = Attributes::of(values, info)?;
    let file = info.text("relative_path")?;
    if file.contains(['/', '\\', ':', '\0']) || matches!(file, "" | "." | "..") {
        return Err(Error::new(format!("its chunk is in the file '{}', which is not in the folder", shorten(file))));
    }
    let transform = match info.find("transform_descriptors") {
        None | Some(PickleValue::None) => None,
        Some(names) => match values.sequence(names) {
            Some([]) => None,
            Some([first, ..]) => Some(shorten(&String::from_utf8_lossy(values.text(*first).unwrap_or_default()))),
            None => return Err(info.wrong("transform_descriptors")),
        },
    };
    Ok(StoredChunk { file, offset: info.number("offset")?, len: info.number("length")?, transform })
}

/// Returns the keys that lead to a tensor, and its size as far as it is known.
fn located(values: &PickleValues, tensor: &Listed, paths: &HashMap<&[u8], PickleValue>) -> LocatedTensor {
    /// Maximum number of keys.
    const DEEPEST: usize = 100;
    let path = paths.get(tensor.name.as_bytes()).filter(|path| matches!(path, PickleValue::Tuple(_)));
    let path = path.and_then(|path| values.sequence(*path)).filter(|path| (1..=DEEPEST).contains(&path.len()));
    let key = |key: &PickleValue| match values.text(*key) {
        Some(text) => String::from_utf8(text.to_vec()).ok(),
        None => values.integer(*key).map(|number| number.to_string()),
    };
    // A path that does not lead to the name says nothing. Its keys may be long, and repeated.
    let len = |key: &PickleValue| values.text(*key).map_or(1, <[u8]>::len);
    let is_short = |path: &&[PickleValue]| path.iter().map(len).sum::<usize>() <= tensor.name.len();
    let path = path.filter(is_short).and_then(|path| path.iter().map(key).collect::<Option<Vec<String>>>());
    let path = path.filter(|path| path.join(".") == tensor.name).unwrap_or_else(|| vec![tensor.name.to_owned()]);
    let bytes = || {
        let (torch_type, size) = description(values, tensor.value).ok()?;
        element_count(&size)?.checked_mul(torch_type.width)
    };
    LocatedTensor { path, bytes: bytes().unwrap_or_default() }
}

/// Returns the type and the shape of a tensor.
fn description(values: &PickleValues, tensor: PickleValue) -> Result<(&'static TorchType, Vec<u64>)> {
    let attributes = Attributes::of(values, tensor)?;
    let size = attributes.numbers("size")?;
    Ok((type_in_properties(values, attributes.get("properties")?)?, size))
}

struct ChunkReader<'v, 'f> {
    values: &'v PickleValues<'v>,
    chunks: Chunks<'v>,
    files: &'f mut FolderFiles,
    facts: PickleFacts,
    /// Number of chunks that there may still be.
    left: usize,
}

impl<'v> ChunkReader<'v, '_> {
    /// Reads the chunks of a tensor. The inner error concerns only this tensor.
    fn tensor(&mut self, listed: &Listed<'v>, name: &str) -> Result<Result<Tensor>> {
        let attributes = Attributes::of(self.values, listed.value)?;
        let chunks = attributes.elements("chunks").map_err(|error| error.in_tensor(name))?;
        self.left = self.left.checked_sub(chunks.len()).ok_or_else(|| {
            let what = "malformed .metadata: it lists more chunks than its length allows";
            Error::new(what).in_tensor(name)
        })?;
        Ok(self.whole(listed, chunks, name))
    }

    fn whole(&mut self, listed: &Listed<'v>, chunks: &[PickleValue], name: &str) -> Result<Tensor> {
        let (torch_type, shape) = description(self.values, listed.value)?;
        let mut pieces = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            if class_of(self.values, *chunk) != Some((MODULE, b"ChunkStorageMetadata")) {
                return Err(Error::new("malformed .metadata: it lists a chunk that is not one"));
            }
            let chunk = Attributes::of(self.values, *chunk)?;
            let (offsets, sizes) = (chunk.numbers("offsets")?, chunk.numbers("sizes")?);
            if offsets.len() != shape.len() || sizes.len() != shape.len() {
                return Err(Error::new(format!("its chunk at {offsets:?} does not have the dimensions of {shape:?}")));
            }
            if sizes.contains(&0) {
                continue; // nothing is read, so its pickle stays among those that were not
            }
            let key = (listed.name.as_bytes(), Some(offsets));
            let stored = self.chunks.remove(&key);
            let offsets = key.1.expect("it was put there");
            let stored = stored.ok_or_else(|| Error::new(format!("no file has its chunk at {offsets:?}")))??;
            pieces.push(self.piece(&stored, torch_type, (&offsets, &sizes))?);
        }
        let how = counted(pieces.len() as u64, "chunk");
        Whole { name, torch_type, shape, how }.assemble(pieces, &|file| self.files.name(file))
    }

    /// Reads the archive of a chunk, all but its elements.
    fn piece(
        &mut self,
        stored: &StoredChunk,
        torch_type: &TorchType,
        (offsets, sizes): (&[u64], &[u64]),
    ) -> Result<TensorPiece> {
        let StoredChunk { file, offset, len, ref transform } = *stored;
        let in_chunk = |what: String| Error::new(format!("its chunk at {offsets:?} in {} {what}", shorten(file)));
        if let Some(transform) = transform {
            return Err(in_chunk(format!("is stored as '{transform}', which tcast does not unpack")));
        }
        let number = self.files.open(file)?;
        let bytes = self.files.get(number);
        let place = offset.checked_add(len).filter(|end| *end <= bytes.len() as u64);
        let place = place.map(|end| offset as usize..end as usize);
        let place = place.ok_or_else(|| in_chunk(format!("ends after the {} bytes of the file", bytes.len())))?;
        let cannot_be_read = |error: Error| in_chunk(format!("cannot be read: {}", error.message()));
        let archive = read_archive(&bytes[place.clone()]).map_err(cannot_be_read)?;
        let view = only_tensor(&archive).map_err(cannot_be_read)?;
        self.facts.merge(&archive.facts)?;
        if view.torch_type.name != torch_type.name {
            return Err(in_chunk(format!("has elements of {}, and not {}", view.torch_type.name, torch_type.name)));
        }
        if *view.shape != *sizes {
            return Err(in_chunk(format!("has the shape {:?}, and not {sizes:?}", view.shape)));
        }
        let mut pieces = pieces_of(&view, &ranges_of(offsets, sizes), number, place.start)?;
        Ok(pieces.swap_remove(0))
    }
}
