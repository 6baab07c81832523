//! The tokens of one fixed text, whose hash identifies a pre-tokenizer.
//!
//! llama.cpp's converter finds the name of a pre-tokenizer by the SHA-256 of the numbers of these tokens
//! (`get_vocab_base_pre`). Byte-pair encoding is that of the library tokenizers; what this module does not have, such as
//! NFKC, gives no hash. A wrong hash is one that no table has, so it is safe to be strict.

use super::file::{TokenizerFile, TokenizerModel};
use super::splits::{BYTES, TextPiece, split};
use crate::text::hex_digits;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// The text of llama.cpp's converter.
const TEXT: &str = include_str!("../data/check_text.txt");

/// Maximum number of bytes of the normalized text. A replacement can make a text longer.
const MOST: usize = 1 << 13;

/// Returns the hash; `None` if the tokenizer does something that this module does not know.
pub(super) fn hash(file: &TokenizerFile) -> Option<String> {
    let encoder = TextEncoder::new(&file.model)?;
    let mut numbers = Vec::new();
    for (text, added) in by_added_tokens(TEXT, file) {
        if let Some(number) = added {
            numbers.push(number);
            continue;
        }
        let normalized = normalize(text.to_owned(), &file.normalizer)?;
        for piece in split(normalized, &file.pre_tokenizer)? {
            encoder.encode(&piece, &mut numbers);
        }
    }
    let (before, behind) = around(&file.post_processor)?;
    let all: Vec<String> = [before, numbers, behind].concat().iter().map(u32::to_string).collect();
    Some(hex_digits(&Sha256::digest(format!("[{}]", all.join(", ")))))
}

/// Divides a text at the added tokens: of those that begin at one place, the longest counts.
fn by_added_tokens<'t>(text: &'t str, file: &TokenizerFile) -> Vec<(&'t str, Option<u32>)> {
    let texts: HashMap<&str, u32> = file
        .added_tokens()
        .iter()
        .map(|token| (&*token.content, token.id))
        .filter(|(text, _)| !text.is_empty())
        .collect();
    let longest = texts.keys().map(|text| text.len()).max().unwrap_or_default();
    let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let ends =
            (at + 1..=text.len().min(at.saturating_add(longest))).rev().filter(|end| text.is_char_boundary(*end));
        let found = ends.map(|end| &text[at..end]).find_map(|part| Some((part, *texts.get(part)?)));
        let next = at + text[at..].chars().next().map_or(1, char::len_utf8);
        if let Some((part, number)) = found {
            parts.push((&text[start..at], None));
            parts.push((part, Some(number)));
            (at, start) = (at + part.len(), at + part.len());
        } else {
            at = next;
        }
    }
    parts.push((&text[start..], None));
    parts.retain(|(part, _)| !part.is_empty());
    parts
}

/// Returns the normalized text. The fixed text has no characters that NFC and NFD change.
fn normalize(text: String, normalizer: &Value) -> Option<String> {
    let field = |name: &str| normalizer.get(name).and_then(Value::as_str);
    let text = match TokenizerFile::kind(normalizer) {
        "" if normalizer.is_null() => text,
        "NFC" | "NFD" => text,
        "Lowercase" => text.to_lowercase(),
        "Prepend" => format!("{}{text}", field("prepend").filter(|prefix| prefix.len() < MOST)?),
        "Replace" => {
            let old = normalizer.get("pattern")?.get("String")?.as_str().filter(|old| !old.is_empty())?;
            let new = field("content")?;
            (text.matches(old).count().checked_mul(new.len())? < MOST).then(|| text.replace(old, new))?
        }
        "Sequence" => {
            return normalizer.get("normalizers")?.as_array()?.iter().try_fold(text, normalize);
        }
        _ => return None,
    };
    (text.len() <= MOST).then_some(text)
}

/// Returns the tokens that the post-processor sets before and behind a text.
fn around(processor: &Value) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut sides = (Vec::new(), Vec::new());
    let list = processor.get("processors").and_then(Value::as_array);
    for processor in list.map_or(std::slice::from_ref(processor), Vec::as_slice) {
        let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
        match TokenizerFile::kind(processor) {
            "" if processor.is_null() => {}
            "ByteLevel" => {}
            "RobertaProcessing" => {
                sides.0.insert(0, number(processor.get("cls")?.get(1)?)?);
                sides.1.push(number(processor.get("sep")?.get(1)?)?);
            }
            "TemplateProcessing" => {
                let (mut before, mut is_behind) = (Vec::new(), false);
                for part in processor.get("single")?.as_array()? {
                    let Some(special) = part.get("SpecialToken") else {
                        is_behind = true;
                        continue;
                    };
                    let token = processor.get("special_tokens")?.get(special.get("id")?.as_str()?)?;
                    let numbers = token.get("ids")?.as_array()?.iter().map(number).collect::<Option<Vec<u32>>>()?;
                    if is_behind { sides.1.extend(numbers) } else { before.extend(numbers) }
                }
                sides.0.splice(0..0, before);
            }
            _ => return None,
        }
    }
    Some(sides)
}

/// Byte-pair encoding.
struct TextEncoder<'f> {
    numbers: HashMap<&'f str, u32>,
    /// The place of each pair in the list of merges. The last of several equal pairs counts.
    ranks: HashMap<(&'f str, &'f str), usize>,
    ignores_merges: bool,
}

impl<'f> TextEncoder<'f> {
    fn new(model: &'f TokenizerModel) -> Option<Self> {
        if model.kind.as_deref() != Some("BPE") {
            return None;
        }
        let merges = model.merges.as_deref().unwrap_or_default();
        let ranks = merges.iter().enumerate().map(|(rank, merge)| Some((merge.parts()?, rank)));
        Some(Self {
            numbers: model.vocab.0.iter().map(|(text, number)| (&**text, *number)).collect(),
            ranks: ranks.collect::<Option<_>>()?,
            ignores_merges: model.ignore_merges == Some(true),
        })
    }

    /// Adds the tokens of a piece. Each pair that is merged is the one of the lowest rank, and the first of these.
    fn encode(&self, piece: &TextPiece, numbers: &mut Vec<u32>) {
        let text: String =
            if piece.is_mapped { piece.text.clone() } else { piece.text.chars().map(String::from).collect() };
        if let Some(number) = self.numbers.get(&*text).filter(|_| self.ignores_merges) {
            numbers.push(*number);
            return;
        }
        let mut starts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        while starts.len() > 2 {
            let pair = |at: usize| (&text[starts[at]..starts[at + 1]], &text[starts[at + 1]..starts[at + 2]]);
            let ranked = (0..starts.len() - 2).filter_map(|at| Some((*self.ranks.get(&pair(at))?, at)));
            let Some((_, at)) = ranked.min() else { break };
            starts.remove(at + 1);
        }
        let parts = starts.windows(2).map(|ends| &text[ends[0]..ends[1]]);
        numbers.extend(parts.filter_map(|part| self.numbers.get(part)));
    }
}

/// Returns the text that a token stands for on its own: its bytes if all of its characters stand for bytes.
pub(super) fn decoded(token: &str, decoder: &Value) -> String {
    let bytes = || token.chars().map(|character| BYTES.byte(character)).collect::<Option<Vec<u8>>>();
    match bytes().filter(|_| TokenizerFile::kind(decoder) == "ByteLevel") {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => token.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::known;
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn the_hashes_are_those_of_the_library_tokenizers() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf2gguf/hash");
        let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
        for row in expected.as_array().unwrap() {
            let text = fs::read_to_string(folder.join(row["file"].as_str().unwrap())).unwrap();
            let found = known::find(&TokenizerFile::of(&text).unwrap(), None).unwrap();
            assert_eq!((found.hash.as_deref(), &*found.name), (row["sha256"].as_str(), row["pre"].as_str().unwrap()));
        }
        assert_eq!(expected.as_array().unwrap().len(), 5);
    }

    #[test]
    fn merges_go_by_rank_and_then_from_the_left() {
        let text = r#"{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "aa": 3, "aab": 4},
            "merges": ["a a", ["aa", "b"], "a b"]}, "pre_tokenizer": {"type": "ByteLevel", "use_regex": false}}"#;
        let file = TokenizerFile::of(text).unwrap();
        let encoder = TextEncoder::new(&file.model).unwrap();
        let mut numbers = Vec::new();
        encoder.encode(&TextPiece { text: "aaabx".to_owned(), is_mapped: true }, &mut numbers);
        assert_eq!(numbers, [3, 2]);
    }
}
