//! Models that are split over files, as `llama-gguf-split` names them: the table of each file has only the tensors in the
//! file.

use super::GgufKey;
use crate::container::Input;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The start of the keys of a part.
pub(crate) const SPLIT: &str = "split.";
/// The keys of a part: its number from 0, the number of parts, and the number of tensors in all parts.
pub(crate) const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Returns the paths of all parts of a split model, in order, given one of them; `None` for a model in one file.
///
/// # Errors
/// When the name of the file contradicts its keys.
pub(in crate::container) fn parts_of(input: &Input) -> Result<Option<Vec<PathBuf>>> {
    let Some(count) = key(input, COUNT).filter(|count| input.is_gguf() && *count > 1) else { return Ok(None) };
    let path = input.path();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = key(input, NUMBER).map_or(1, |number| number.saturating_add(1));
    if number > count {
        return Err(Error::new(format!("is part {number} of {count} by its keys")).in_file(path));
    }
    let Some(stem) = name.strip_suffix(&suffix(number, count)) else {
        let what =
            format!("is part {number} of {count} by its keys, and its name does not end in {}", suffix(number, count));
        return Err(Error::new(what).in_file(path).remedy("give it the name that it had when the model was split"));
    };
    if count > MAX_PARTS as u64 {
        return Err(Error::new(format!("is one of {count} parts; at most {MAX_PARTS} are read")).in_file(path));
    }
    Ok(Some((1..=count).map(|number| path.with_file_name(format!("{stem}{}", suffix(number, count)))).collect()))
}

/// Returns the paths of all parts of a split model, given the first one; only this path for a model in one file, or if its
/// name is not that of a part.
pub(crate) fn part_paths(first: &Input) -> Vec<PathBuf> {
    parts_of(first).ok().flatten().unwrap_or_else(|| vec![first.path().to_owned()])
}

/// Adds the keys of a part to its own, which the first part has. `tensors` is the number of tensors of the model.
pub(crate) fn keys_of_part(mut own: Vec<GgufKey>, (at, parts): (usize, usize), tensors: usize) -> Vec<GgufKey> {
    if parts < 2 {
        return own;
    }
    let [number, count] = [at, parts].map(|number| u16::try_from(number).unwrap_or(u16::MAX));
    own.extend([
        GgufKey::uint16(NUMBER, number),
        GgufKey::uint16(COUNT, count),
        GgufKey::int32(TENSORS, i32::try_from(tensors).unwrap_or(i32::MAX)),
    ]);
    own
}

/// Returns the names of the parts of a model.
pub(crate) fn part_names(model: &str, parts: usize) -> Vec<String> {
    (1..=parts as u64).map(|number| format!("{model}{}", suffix(number, parts as u64))).collect()
}

/// Returns a key that is a number.
fn key(input: &Input, name: &str) -> Option<u64> {
    input.contents.value(name)?.parse().ok()
}

/// Refuses parts that do not have all tensors of the model.
pub(in crate::container) fn check_tensors(parts: &[Input]) -> Result<()> {
    let Some(all) = parts.first().and_then(|part| key(part, TENSORS)) else { return Ok(()) };
    let count: usize = parts.iter().map(|part| part.contents.tensors.len() + part.contents.unreadable.len()).sum();
    if count as u64 == all {
        return Ok(());
    }
    let error = Error::new(format!("is of a model with {all} tensors by its keys, and the parts have {count}"));
    Err(error.in_file(parts[0].path()).remedy("download all parts again"))
}

/// Removes the keys of a part, which do not describe the model.
pub(in crate::container) fn remove_keys(part: &mut Input) {
    if let Some(metadata) = &mut part.contents.metadata {
        metadata.retain(|(key, _)| !key.starts_with(SPLIT));
    }
}

/// Maximum number of parts, which the type of their keys allows.
pub(crate) const MAX_PARTS: usize = u16::MAX as usize;

/// Returns the end of the name of a part.
fn suffix(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

/// Returns the name of a model, given the name of a part; `None` for other names.
pub(crate) fn model_of_part(file: &str) -> Option<&str> {
    let name = file.strip_suffix(".gguf")?;
    Some(stem_of_part(name)).filter(|stem| *stem != name)
}

/// Returns the path of the first part of a model, given the path of another; `None` for other names.
pub(crate) fn first_part(path: &Path) -> Option<PathBuf> {
    let file = path.file_name()?.to_str()?;
    let count = file.strip_suffix(".gguf")?.rsplit_once("-of-")?.1.parse().ok()?;
    Some(path.with_file_name(format!("{}{}", model_of_part(file)?, suffix(1, count))))
}

/// Returns the name of a model, given the name of a part without its extension.
pub(in crate::container) fn stem_of_part(name: &str) -> &str {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let stem = name.rsplit_once("-of-").filter(|(_, count)| digits(count)).and_then(|(rest, _)| rest.rsplit_once('-'));
    stem.filter(|(_, number)| digits(number)).map_or(name, |(stem, _)| stem)
}
