//! Folders of `HuggingFaceStorageWriter` of torch.distributed.checkpoint whose pieces were not consolidated:
//! `shard-00001-model-00001-of-00002.safetensors`, with the place of each piece in the metadata.

use super::super::code::PickleFacts;
use super::super::types::TorchType;
use super::folder::{FolderFiles, Opened, Whole};
use super::pieces::{Span, TensorPiece};
use super::roots::{LocatedTensor, RootChoice, choose};
use crate::container::foreign::DIVIDED_TENSORS;
use crate::container::{Contents, ReadOptions, SHARDS};
use crate::error::{Error, Result};
use crate::text::{counted, first_few, shorten};
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// The place of a piece in its tensor.
#[derive(Deserialize)]
struct SavedPiece {
    saved_offsets: Vec<u64>,
}

/// Returns the number of the shard in the name of a file.
pub(super) fn parse(name: &str) -> Option<u64> {
    let (number, model) = name.strip_prefix("shard-")?.strip_suffix(".safetensors")?.split_once("-model-")?;
    let (file, count) = model.split_once("-of-")?;
    let numbers = [number, file, count];
    let is_number = |text: &&str| text.len() >= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers.iter().all(is_number).then(|| number.parse().ok())?
}

/// Reads the pieces of all shards. Their files do not say how large the tensors are: these end where the last pieces do.
pub(super) fn read(folder: &Path, names: &[String], files: &mut FolderFiles, options: &ReadOptions) -> Result<Opened> {
    let numbers: BTreeSet<u64> = names.iter().filter_map(|name| parse(name)).collect();
    let most = numbers.last().copied().unwrap_or_default();
    if numbers.len() as u64 != most {
        let missing: Vec<String> =
            (1..=most).filter(|number| !numbers.contains(number)).map(|number| number.to_string()).take(6).collect();
        let what = format!("lacks shards: {} of {most}", first_few(&missing, 5));
        return Err(Error::new(what).in_file(folder).remedy("copy or download the whole folder"));
    }
    let mut tensors: Vec<(String, &TorchType, Vec<TensorPiece>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for name in names.iter().filter(|name| parse(name).is_some()) {
        let in_file = |error: Error| error.in_file(&folder.join(name));
        let number = files.open(name)?;
        let contents = SHARDS.read(&files.files[number as usize], options).map_err(in_file)?;
        let saved = contents.value(DIVIDED_TENSORS).and_then(|text| serde_json::from_str(text).ok());
        let saved: HashMap<String, SavedPiece> = saved.ok_or_else(|| {
            in_file(Error::new(format!("malformed shard: its metadata has no places of pieces ({DIVIDED_TENSORS})")))
        })?;
        let Contents { tensors: stored, .. } = contents;
        for tensor in stored {
            let in_tensor = |error: Error| in_file(error.in_tensor(&tensor.name));
            let offsets = saved.get(&*tensor.name).map(|piece| &piece.saved_offsets);
            let offsets = offsets.filter(|offsets| offsets.len() == tensor.shape.len());
            let offsets = offsets.ok_or_else(|| in_tensor(Error::new("has no place in the metadata of its shard")))?;
            let torch_type = tensor.elements.dtype().and_then(TorchType::of_dtype);
            let torch_type = torch_type.ok_or_else(|| in_tensor(tensor.refusal()))?;
            let Some((_, range)) = tensor.mapped_range() else { continue };
            let mut stride = 1;
            let mut spans: Vec<Span> = Vec::new();
            for (start, len) in offsets.iter().zip(&*tensor.shape).rev() {
                spans.push(Span { start: *start, len: *len, stride });
                stride *= (*len).max(1); // the header was checked against the file
            }
            spans.reverse();
            let piece = TensorPiece { spans: spans.into(), file: number, start: range.start };
            let at = *places.entry(tensor.name.to_string()).or_insert(tensors.len());
            match tensors.get_mut(at) {
                None => tensors.push((tensor.name.to_string(), torch_type, vec![piece])),
                Some((_, other, pieces))
                    if other.name == torch_type.name && pieces[0].spans.len() == piece.spans.len() =>
                {
                    pieces.push(piece);
                }
                Some(_) => {
                    return Err(in_tensor(Error::new("has another type or number of dimensions in another shard")));
                }
            }
        }
    }
    let size = |pieces: &[TensorPiece]| -> Vec<u64> {
        let axes = 0..pieces[0].spans.len();
        axes.map(|axis| pieces.iter().map(|piece| piece.spans[axis].end()).max().unwrap_or_default()).collect()
    };
    let located = |(name, torch_type, pieces): &(String, &TorchType, Vec<TensorPiece>)| {
        let count = size(pieces).iter().fold(1, |count: u64, len| count.saturating_mul(*len));
        LocatedTensor { path: vec![name.clone()], bytes: count.saturating_mul(torch_type.width) }
    };
    let RootChoice { names: new, roots, chosen } =
        choose(&tensors.iter().map(located).collect::<Vec<_>>(), options.root)?;
    let (mut opened, is_requested) = (Opened::default(), options.root.is_some());
    for ((_, torch_type, pieces), name) in
        tensors.into_iter().zip(new).filter_map(|(tensor, name)| Some((tensor, name?)))
    {
        let (shape, how) = (size(&pieces), counted(pieces.len() as u64, "piece"));
        let where_is = |file: u32| shorten(&files.name(file));
        match (Whole { name: &name, torch_type, shape, how }).assemble(pieces, &where_is) {
            Ok(tensor) => opened.tensors.push(tensor),
            Err(error) => opened.unreadable.push(error.in_tensor(&name).in_file(folder)),
        }
    }
    opened.facts = PickleFacts { form: "hf", roots, chosen, is_requested, ..PickleFacts::default() };
    Ok(opened)
}
