//! Finds the intended input if the given one does not exist or holds no shards: a similar name, an existing alternative,
//! or a download.

use super::names::{ShardFolder, described_shards, file_names, folders_of_shards, has_shards, is_index};
use super::read_text;
use super::side_files::{CONFIG, descriptions};
use crate::container::gguf::{EXTENSION as GGUF, stem_of_part};
use crate::container::{ReadOptions, as_json, by_extension, known_formats, probe_with};
use crate::error::{Advice, Error, Kind};
use crate::io::advice::{give_described, give_whole, list};
use crate::io::listing::entries;
use crate::io::open::is_missing;
use crate::io::output::{directory_of, in_home};
use crate::text::{expanded, quoted};
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Maximum number of folder entries that are considered.
const MOST: usize = 2_000;

/// Adds to an error about an input the remedy that follows from its path alone: the place of a missing input, or the
/// folder that a JSON file describes.
pub(super) fn explain(error: Error, path: &Path) -> Error {
    if !is_missing(path) {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let is_unread = !matches!(error.cause(), Kind::Unfinished | Kind::Interrupted(_));
        let is_index = path.file_name().and_then(OsStr::to_str).is_some_and(is_index); // whose error has advice of its own
        let describes = is_unread && is_json && !is_index && path.is_file() && has_shards(directory_of(path));
        return if describes { error.unadvised().remedy(give_described(directory_of(path))) } else { error };
    }
    let text = path.to_str().unwrap_or_default();
    if text.contains("://") {
        let error = Error::new("is an address, and tcast reads only files of this machine").of(Kind::System);
        return error.in_file(path).advise(Advice::Download(text.into()));
    }
    if let Some(home) = in_home(path) {
        return error.unadvised().remedy(format!("a shell expands ~ only outside of quotes: {}", quoted(&home)));
    }
    if cfg!(unix) && has_matches(path) {
        return error.unadvised().remedy(format!("a shell expands * and ? only outside of quotes: {}", expanded(path)));
    }
    match near(path) {
        Some(existing) => error.unadvised().remedy(format!("is it {}?", quoted(&existing))),
        None if is_shard_name(path) && has_shards(directory_of(path)) => {
            error.unadvised().remedy(give_whole(directory_of(path)))
        }
        None if is_repository(path) => error.advised([Advice::Download(text.into())]),
        None => error,
    }
}

fn is_shard_name(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "model" || stem == "pytorch_model")
}

/// True if a path is a pattern for files, such as `*.npy`, and some match it.
fn has_matches(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).filter(|name| name.contains(['*', '?']));
    let Some(glob) = name.and_then(|name| globset::Glob::new(name).ok()) else { return false };
    let matcher = glob.compile_matcher();
    entries(directory_of(path)).is_ok_and(|found| found.iter().any(|entry| matcher.is_match(&entry.name)))
}

/// True if a path may be the name of a model on Hugging Face: `OWNER/NAME`, if there is no folder `OWNER`.
fn is_repository(path: &Path) -> bool {
    let mut parts = path.components();
    let is_name = |part: Option<Component>| matches!(part, Some(Component::Normal(name)) if !name.as_encoded_bytes().starts_with(b"~"));
    let is_pair = is_name(parts.next()) && is_name(parts.next()) && parts.next().is_none();
    is_pair && by_extension(path).is_none() && !directory_of(path).exists()
}

/// Returns the path of the existing file or folder with the most similar name, in the same folder or in a folder with a
/// similar name.
fn near(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folder = directory_of(path);
    let other = if folder.is_dir() { None } else { Some(near(folder)?) };
    if let Some(exact) = other.as_ref().map(|folder| folder.join(name)).filter(|exact| exact.exists()) {
        return Some(exact);
    }
    let entries = entries(other.as_deref().unwrap_or(folder)).ok()?.into_iter().take(MOST);
    let names = entries.filter_map(|entry| entry.name.into_string().ok());
    let near = names.filter_map(|found| Some((distance(name, &found)?, found)));
    let (_, found) = near.min()?;
    Some(other.map_or_else(|| path.with_file_name(&found), |folder| folder.join(&found)))
}

/// Returns the distance of an existing name from a typed one; `None` if it is not similar. The stems decide, because
/// most files of a folder have the same extension, and then the extensions. Files with another number are other shards.
fn distance(typed: &str, found: &str) -> Option<(usize, usize)> {
    let parts = |name: &str| match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && extension.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            (stem.to_lowercase(), Some(extension.to_lowercase()))
        }
        _ => (name.to_lowercase(), None),
    };
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let ((typed_stem, typed_end), (found_stem, found_end)) = (parts(typed), parts(found));
    let changes = strsim::osa_distance(&typed_stem, &found_stem);
    let length = typed_stem.chars().count();
    let most = if length < 3 { 0 } else { 1 + length / 8 };
    let ends = [&typed_end, &found_end].map(|end| end.as_deref().unwrap_or_default());
    let changes_of_end = strsim::osa_distance(ends[0], ends[1]);
    let is_same_end = typed_end.is_some() == found_end.is_some() && changes_of_end <= 2;
    // Another format with the same name, or an omitted extension.
    let is_other_format = changes == 0 && found_end.is_some() && by_extension(found.as_ref()).is_some();
    let is_similar = changes <= most && digits(&typed_stem) == digits(&found_stem) && (is_same_end || is_other_format);
    is_similar.then_some((changes, changes_of_end))
}

/// True if an index belongs to the original of a model that MLX quantized: none of the shards that it names exists, and
/// the folder has others.
pub(super) fn is_of_original(files: &ShardFolder, named: &BTreeSet<&str>) -> bool {
    let is_of_mlx = |config: &str| descriptions(&as_json(config)).iter().any(|(key, _)| key.ends_with("quantization"));
    let config = || read_text(&files.folder.join(CONFIG)).ok();
    !files.shards.is_empty()
        && !named.is_empty()
        && named.iter().all(|name| is_missing(&files.folder.join(name)))
        && config().is_some_and(|config| is_of_mlx(&config))
}

/// Returns the error for a folder without shards, with the usable contents of the folder as the remedy.
pub(super) fn without_shards(folder: &Path) -> Error {
    /// Maximum number of files that are tried and named.
    const FEW: usize = 8;
    /// Extensions of files that hold tensors in formats of other programs.
    const OTHERS: [&str; 11] = ["bin", "ckpt", "gguf", "ggml", "h5", "hdf5", "keras", "msgpack", "pickle", "pt", "pth"];
    let what = &*format!("is a folder without {} files", described_shards());
    let error = |what: &str| Error::new(what).in_file(folder);
    let inner = folders_of_shards(folder);
    if !inner.is_empty() {
        return error(what).remedy(format!("give a folder in it that has such files: {}", list(&inner, ", ")));
    }
    let is_other = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
        extension.is_some_and(|extension| OTHERS.contains(&&*extension))
    };
    let paths = file_names(folder).unwrap_or_default().into_iter().map(|name| folder.join(name));
    let paths = paths.filter(|path| path.is_file() && (by_extension(path).is_some() || is_other(path)));
    let mut models = HashSet::new();
    let is_first = |path: &PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        path.extension() != Some(OsStr::new(GGUF)) || models.insert(stem_of_part(&stem).to_owned())
    };
    let (mut readable, mut refused) = (Vec::new(), None);
    for path in paths.filter(is_first).take(FEW) {
        match probe_with(&ReadOptions::on(1), &path) {
            Ok(_) => readable.push(path),
            Err(error) => refused = refused.or(Some((path, error))),
        }
    }
    match (&readable[..], refused) {
        ([], None) => error(what).remedy(format!("give a {} file, or a folder of shards", known_formats())),
        ([], Some((path, other))) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let colon = if other.message().starts_with("is ") { "" } else { ":" };
            let error = error(&format!("{what}; {name}{colon} {}", other.message()));
            match other.advice() {
                [] => error.remedy("download the model in the safetensors format"),
                advice => error.advised(advice),
            }
        }
        ([file], _) => error(what).remedy(format!("give the file in it: {}", quoted(file))),
        (files, _) => error(what).remedy(format!("give files in it: {}", list(files, " "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_similar_if_its_stem_is_and_its_numbers_are_the_same() {
        for (typed, found) in [
            ("wieghts.npy", "weights.npy"),
            ("llma", "llama"),
            ("LLAMA", "llama"),
            ("model.safetensor", "model.safetensors"),
            ("model", "model.safetensors"),
            ("model.bin", "model.safetensors"),
            ("x.npz", "x.npy"),
        ] {
            assert!(distance(typed, found).is_some(), "{typed} {found}");
        }
        for (typed, found) in [
            ("model.safetensor", "gg.safetensors"),
            ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
            ("llama-3.1", "llama-3.2"),
            ("y.npy", "x.npy"),
            ("model.bin", "model.json"),
        ] {
            assert_eq!(distance(typed, found), None, "{typed} {found}");
        }
        for farther in ["modal.safetensors", "model.pt", "model.npz"] {
            assert!(distance("model.safetensor", "model.safetensors") < distance("model.safetensor", farther));
        }
    }
}
