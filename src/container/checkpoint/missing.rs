//! Remedies for an input that does not exist or holds no shards: the intended name, the existing alternatives, or the
//! command that downloads it.

use super::names::{file_names, folders_of_shards, has_shards};
use crate::container::{by_extension, formats, known_formats, probe_on};
use crate::error::{Error, Kind};
use crate::io::output::{directory_of, in_home};
use crate::text::{CURL, quoted};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Maximum number of folder entries that are considered.
const MOST: usize = 2_000;

/// Adds to an error about an input the remedy that follows from its path alone: the place of a missing input, or the
/// folder that a JSON file describes.
pub(super) fn explain(error: Error, path: &Path) -> Error {
    let is_missing = matches!(fs::symlink_metadata(path), Err(error) if error.kind() == ErrorKind::NotFound);
    if !is_missing {
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let is_unread = !matches!(error.kind(), Kind::Unfinished { .. } | Kind::Interrupted(_));
        let describes = is_unread && is_json && path.is_file() && has_shards(directory_of(path));
        return if describes {
            error.remedy(format!("give its folder: {}", quoted(directory_of(path))))
        } else {
            error
        };
    }
    let text = path.to_str().unwrap_or_default();
    if let Some((kind, address)) = text.split_once("://") {
        let error = Error::new("is an address, and tcast reads only files of this machine").of(Kind::System);
        return error.in_file(path).remedy(download(text, kind, address));
    }
    if let Some(home) = in_home(path) {
        return error.remedy(format!("a shell expands ~ only outside of quotes: {}", quoted(&home)));
    }
    match near(path) {
        Some(found) => error.remedy(format!("is it {}?", quoted(&found))),
        None if is_repository(path) => {
            error.remedy(format!("if it is a model on Hugging Face: {}", from_hub(text, None)))
        }
        None => error,
    }
}

/// Returns the command that downloads an address.
fn download(text: &str, kind: &str, address: &str) -> String {
    let whole = quoted(Path::new(text));
    let parts: Vec<&str> = address.split('/').filter(|part| !part.is_empty()).collect();
    let is_model = |owner: &str| !["datasets", "spaces", "buckets", "api"].contains(&owner);
    match (kind, &parts[..]) {
        ("hf", [owner, name, ..]) if is_model(owner) => from_hub(&format!("{owner}/{name}"), None),
        ("http" | "https", ["huggingface.co" | "hf.co", owner, name, rest @ ..]) if is_model(owner) => {
            let file = match rest {
                ["resolve" | "blob", _, file @ ..] if !file.is_empty() => Some(file.join("/")),
                _ => None,
            };
            let file = file.as_deref().map(|file| file.split('?').next().unwrap_or(file));
            from_hub(&format!("{owner}/{name}"), file)
        }
        ("http" | "https", _) => format!("{CURL} -LO {whole}"),
        ("s3", [_, .., name]) if by_extension(name.as_ref()).is_some() => format!("aws s3 cp {whole} ."),
        ("s3", [_, .., name]) => format!("aws s3 sync {whole} {}", quoted(name.as_ref())),
        ("gs", _) => format!("gcloud storage cp -r {whole} ."),
        ("file", _) => format!("give the path alone: {}", quoted(address.as_ref())),
        _ => "download it first".to_owned(),
    }
}

/// Returns the command that downloads a model from Hugging Face, or one of its files, and prints the local path.
fn from_hub(repository: &str, file: Option<&str>) -> String {
    let file = file.map(|file| format!(" {}", quoted(file.as_ref()))).unwrap_or_default();
    format!("hf download {}{file}", quoted(repository.as_ref()))
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
    let entries = fs::read_dir(other.as_deref().unwrap_or(folder)).ok()?.flatten().take(MOST);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let near = names.filter_map(|found| Some((distance(name, &found)?, found)));
    let (_, found) = near.min()?;
    Some(other.map_or_else(|| path.with_file_name(&found), |folder| folder.join(&found)))
}

/// Returns the distance of an existing name from a typed one; `None` if it is not similar. The stems decide, because
/// most files of a folder have the same extension. Files with another number are other shards.
fn distance(typed: &str, found: &str) -> Option<usize> {
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
    let is_same_end = match (&typed_end, &found_end) {
        (Some(typed), Some(end)) => typed == end || strsim::osa_distance(typed, end) <= 2,
        (None, None) => true,
        _ => false,
    };
    // Another format with the same name, or an omitted extension.
    let is_other_format = changes == 0 && found_end.is_some() && by_extension(found.as_ref()).is_some();
    let is_similar = changes <= most && digits(&typed_stem) == digits(&found_stem) && (is_same_end || is_other_format);
    is_similar.then_some(2 * changes + usize::from(typed_end != found_end))
}

/// Returns the error for a folder without shards, with the usable contents of the folder as the remedy.
pub(super) fn without_shards(folder: &Path) -> Error {
    /// Maximum number of files that are tried and named.
    const FEW: usize = 8;
    /// Extensions of files that hold tensors in formats of other programs.
    const OTHERS: [&str; 11] = ["bin", "ckpt", "gguf", "ggml", "h5", "hdf5", "keras", "msgpack", "pickle", "pt", "pth"];
    let what = &*format!("is a folder without {} files", formats(|format| format.format_info().shards.is_some()));
    let error = |what: &str, remedy: String| Error::new(what).in_file(folder).remedy(remedy);
    let inner = folders_of_shards(folder);
    if !inner.is_empty() {
        return error(what, format!("give a folder in it that has such files: {}", inner.join(", ")));
    }
    let is_other = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
        extension.is_some_and(|extension| OTHERS.contains(&&*extension))
    };
    let paths = file_names(folder).unwrap_or_default().into_iter().map(|name| folder.join(name));
    let paths = paths.filter(|path| path.is_file() && (by_extension(path).is_some() || is_other(path)));
    let (mut readable, mut refused) = (Vec::new(), None);
    for path in paths.take(FEW) {
        match probe_on(1, &path) {
            Ok(_) => readable.push(quoted(&path)),
            Err(error) => refused = refused.or(Some((path, error))),
        }
    }
    match (&readable[..], refused) {
        ([], None) => error(what, format!("give a {} file, or a folder of shards", known_formats())),
        ([], Some((path, other))) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let remedy = other.remedy_text().map(str::to_owned);
            let remedy = remedy.unwrap_or_else(|| "download the model in the safetensors format".to_owned());
            error(&format!("{what}; {name} {}", other.message()), remedy)
        }
        ([one], _) => error(what, format!("give the file in it: {one}")),
        (several, _) => error(what, format!("give files in it: {}", several.join(" "))),
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
        assert!(distance("model.safetensor", "model.safetensors") < distance("model.safetensor", "modal.safetensors"));
    }

    #[test]
    #[cfg(unix)] // with the quotes of its shells
    fn an_address_comes_with_the_command_that_downloads_it() {
        for (address, command) in [
            ("hf://org/x", "hf download 'org/x'"),
            ("https://huggingface.co/org/x", "hf download 'org/x'"),
            (
                "https://huggingface.co/org/x/resolve/main/a/b.safetensors?download=true",
                "hf download 'org/x' 'a/b.safetensors'",
            ),
            ("https://example.org/it's.npy", r"curl -LO 'https://example.org/it'\''s.npy'"),
            ("s3://b/c/x.npy", "aws s3 cp 's3://b/c/x.npy' ."),
            ("s3://b/llama", "aws s3 sync 's3://b/llama' 'llama'"),
            ("gs://b/llama", "gcloud storage cp -r 'gs://b/llama' ."),
            ("ftp://b/llama", "download it first"),
            ("file:///tmp/x.npy", "give the path alone: '/tmp/x.npy'"),
        ] {
            let error = explain(Error::new("gone"), Path::new(address));
            assert_eq!(error.remedy_text(), Some(command), "{address}");
        }
    }
}
