//! Commands that download an input.

use crate::container::by_extension;
use crate::text::{CURL, quoted};
use std::path::Path;

/// Returns the command that downloads an address.
pub(super) fn download(address: &str) -> String {
    let whole = quoted(Path::new(address));
    let (kind, address) = address.split_once("://").unwrap_or_default();
    let parts: Vec<&str> = address.split('/').filter(|part| !part.is_empty()).collect();
    let is_model = |owner: &str| !["datasets", "spaces", "buckets", "api", "docs", "models", "blog"].contains(&owner);
    let is_view = |part: &str| ["resolve", "blob", "tree", "raw"].contains(&part);
    match (kind, &parts[..]) {
        ("hf", path) | ("http" | "https", ["huggingface.co" | "hf.co", path @ ..])
            if path.first().is_some_and(|owner| is_model(owner)) =>
        {
            // The first models have no owner.
            let length = path.iter().position(|part| is_view(part)).unwrap_or(path.len()).min(2);
            let (repository, rest) = path.split_at(length);
            let (revision, file) = match rest {
                [_, revision, file @ ..] => (Some(*revision), file.join("/")),
                _ => (None, String::new()),
            };
            let file = file.split('?').next().filter(|file| !file.is_empty());
            let revision = revision.filter(|revision| *revision != "main");
            let revision = revision.map(|name| format!(" --revision {}", quoted(name.as_ref())));
            format!("{}{}", from_hub(&repository.join("/"), file), revision.unwrap_or_default())
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
pub(super) fn from_hub(repository: &str, file: Option<&str>) -> String {
    let file = file.map(|file| format!(" {}", quoted(file.as_ref()))).unwrap_or_default();
    format!("hf download {}{file}", quoted(repository.as_ref()))
}

#[cfg(all(test, unix))] // with the quotes of its shells
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_with_the_command_that_downloads_it() {
        for (address, command) in [
            ("hf://org/x", "hf download 'org/x'"),
            ("hf://gpt2", "hf download 'gpt2'"),
            ("https://huggingface.co/gpt2", "hf download 'gpt2'"),
            ("https://huggingface.co/gpt2/resolve/main/a.safetensors", "hf download 'gpt2' 'a.safetensors'"),
            ("https://huggingface.co/org/x/tree/v1", "hf download 'org/x' --revision 'v1'"),
            ("https://huggingface.co/org/x/blob/v1/a.pt", "hf download 'org/x' 'a.pt' --revision 'v1'"),
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
            assert_eq!(download(address), command, "{address}");
        }
    }
}
