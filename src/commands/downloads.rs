//! Commands that download an input.

use crate::container::by_extension;
use crate::text::{CURL, quoted};
use std::path::Path;

/// Returns the command that downloads an address.
pub(super) fn download(address: &str) -> String {
    let whole = quoted(Path::new(address));
    let (kind, address) = address.split_once("://").unwrap_or_default();
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
pub(super) fn from_hub(repository: &str, file: Option<&str>) -> String {
    let file = file.map(|file| format!(" {}", quoted(file.as_ref()))).unwrap_or_default();
    format!("hf download {}{file}", quoted(repository.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(download(address), command, "{address}");
        }
    }
}
