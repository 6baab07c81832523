//! The pre-tokenizers that llama.cpp knows by name.

use super::bpe;
use super::file::TokenizerFile;
use crate::error::{Error, Opt, Result};
use crate::text::shorten;
use serde::Deserialize;
use serde_json::Value;

/// A line for each name, with the hashes of the tokenizers that have it (`get_vocab_base_pre` of llama.cpp's converter).
const NAMES: &str = include_str!("../data/pre_tokenizers.txt");
/// The parts of `tokenizer.json` that are known to belong to a name.
const SECTIONS: &str = include_str!("../data/sections.json");

/// The parts of a `tokenizer.json` that divide texts.
#[derive(Deserialize)]
struct Section {
    name: String,
    normalizer: Value,
    pre_tokenizer: Value,
}

/// A name of llama.cpp for a pre-tokenizer, and the hash by which it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreTokenizer {
    pub name: String,
    pub hash: Option<String>,
}

/// Returns the name of the pre-tokenizer of a file. A given name is not checked by the file: the user knows.
pub(super) fn find(file: &TokenizerFile, given: Option<&str>) -> Result<PreTokenizer> {
    let hash = bpe::hash(file);
    if let Some(name) = given {
        check(name)?;
        return Ok(PreTokenizer { name: name.to_owned(), hash });
    }
    let known = hash.as_deref().and_then(|hash| names().find(|(_, hashes)| hashes.contains(&hash)));
    if let Some((name, _)) = known {
        return Ok(PreTokenizer { name: name.to_owned(), hash });
    }
    let hash = hash.map(|hash| format!(" (sha256 {hash})")).unwrap_or_default();
    let what = format!("its pre-tokenizer is not one that llama.cpp knows{hash}");
    let error = Error::new(what);
    let error = match similar(file) {
        Some(name) => error.with_value(
            Opt::PRE_TOKENIZER,
            &name,
            format!("its pre_tokenizer section is that of {name}: add {{}}"),
        ),
        None => error.with_value(Opt::PRE_TOKENIZER, "NAME", "name one that divides texts alike with {}"),
    };
    Err(error.with_metadata())
}

/// Refuses a name that llama.cpp does not load.
pub(super) fn check(name: &str) -> Result<()> {
    if names().any(|(known, _)| known == name) {
        return Ok(());
    }
    let all: Vec<&str> = names().map(|(name, _)| name).collect();
    let what = format!("llama.cpp has no pre-tokenizer '{}', only {}", shorten(name), all.join(", "));
    Err(Error::usage(what))
}

/// Returns each name with its hashes.
fn names() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    NAMES.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((words.next()?, words.collect()))
    })
}

/// Returns the name whose parts a file has.
fn similar(file: &TokenizerFile) -> Option<String> {
    let sections: Vec<Section> = serde_json::from_str(SECTIONS).expect("valid JSON");
    let is_same =
        |section: &Section| section.normalizer == file.normalizer && section.pre_tokenizer == file.pre_tokenizer;
    sections.into_iter().find(is_same).map(|section| section.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_section_has_a_name_of_llama_cpp() {
        let sections: Vec<Section> = serde_json::from_str(SECTIONS).unwrap();
        assert_eq!(sections.len(), 9);
        for section in &sections {
            check(&section.name).unwrap();
            let file = json!({"normalizer": section.normalizer, "pre_tokenizer": section.pre_tokenizer, "model": {}});
            let file: TokenizerFile = serde_json::from_value(file).unwrap();
            assert_eq!(similar(&file).as_ref(), Some(&section.name));
        }
        assert!(names().all(|(_, hashes)| hashes.iter().all(|hash| hash.len() == 64)));
        assert_eq!((names().count(), names().map(|(_, hashes)| hashes.len()).sum::<usize>()), (91, 93));
    }
}
