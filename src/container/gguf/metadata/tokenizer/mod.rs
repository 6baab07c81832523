//! The keys of a tokenizer, from the files of a folder.
//!
//! `files` reads them, `file` is `tokenizer.json` and `pieces` `tokenizer.model`. `bpe` encodes one text, whose hash names
//! the pre-tokenizer, with the pieces of `splits`; `known` has the names. `special` finds special tokens.

mod bpe;
mod file;
mod files;
mod known;
mod pieces;
mod special;
mod splits;

use super::config::Config;
use super::keys::{KeyValue, Keys};
use super::recipes::{KeyRow, TokenizerKind, TokenizerRule};
use crate::container::gguf::GgufKey;
use crate::container::gguf::write::KeyList;
use crate::error::{Error, ErrorKind, Kind, Opt, Result};
use crate::io::open::is_missing;
use crate::text::shorten;
use file::TokenizerFile;
use files::{MODEL, TOKENIZER, TokenizerFiles};
pub(crate) use known::PreTokenizer;
use special::SpecialTokens;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// The files that can have the tokens of a model.
#[cfg(feature = "cli")]
pub(crate) const TOKENIZERS: [&str; 2] = [TOKENIZER, MODEL];
/// The tokenizer of Mistral's own format.
const TEKKEN: &str = "tekken.json";
/// llama.cpp's numbers of the types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// The score of tokens without one.
const NO_SCORE: f32 = -1000.0;
/// The score of numbers without a token.
const NO_TOKEN: f32 = -10_000.0;
/// Fields of `tokenizer_config.json` with special tokens.
const SPECIAL_FIELDS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Tokens of Gemma 4 that its users see.
const VISIBLE: [&str; 7] =
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"];

/// Describes a tokenizer in reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenizerFacts {
    /// Its kind, in words.
    pub kind: &'static str,
    /// The number of its tokens.
    pub tokens: u64,
    pub pre_tokenizer: Option<PreTokenizer>,
    pub has_template: bool,
}

/// The tokens, by their numbers.
struct Tokens {
    texts: Vec<Vec<u8>>,
    kinds: Vec<i32>,
    /// Empty if tokens have no scores.
    scores: Vec<f32>,
}

impl Tokens {
    /// `count` tokens without texts.
    fn unused(count: u32, score: Option<f32>) -> Self {
        let text = |number: u32| format!("[PAD{number}]").into_bytes();
        let count_of_scores = if score.is_some() { count as usize } else { 0 };
        Self {
            texts: (0..count).map(text).collect(),
            kinds: vec![UNUSED; count as usize],
            scores: vec![score.unwrap_or_default(); count_of_scores],
        }
    }

    fn put(&mut self, number: usize, text: Vec<u8>, kind: i32, score: f32) {
        if let Some(place) = self.texts.get_mut(number) {
            *place = text;
            self.kinds[number] = kind;
            if let Some(place) = self.scores.get_mut(number) {
                *place = score;
            }
        }
    }

    fn write(&self, model: &str, pre: Option<&str>, keys: &mut Keys) {
        keys.set("tokenizer.ggml.model", KeyValue::Text(model.to_owned()));
        if let Some(pre) = pre {
            keys.set("tokenizer.ggml.pre", KeyValue::Text(pre.to_owned()));
        }
        keys.put(GgufKey::list("tokenizer.ggml.tokens", KeyList::Texts(&self.texts)));
        if !self.scores.is_empty() {
            keys.put(GgufKey::list("tokenizer.ggml.scores", KeyList::Float32s(&self.scores)));
        }
        keys.put(GgufKey::int32s("tokenizer.ggml.token_type", &self.kinds));
    }
}

/// The tokenizer of a model whose keys are being made.
struct TokenizerWriter<'a> {
    files: TokenizerFiles,
    folder: &'a Path,
    config: &'a Config,
    rule: &'static TokenizerRule,
    /// The number of rows of the embeddings.
    rows: u32,
}

/// Adds the keys of the tokenizer of a folder. `rows` is the number of rows of the embeddings, and `given` a name of the
/// pre-tokenizer.
///
/// # Errors
/// When there are no files of a kind that llama.cpp reads, they contradict each other, or the pre-tokenizer is not known.
pub(super) fn add(
    folder: &Path,
    config: &Config,
    rule: &'static TokenizerRule,
    (rows, given): (u32, Option<&str>),
    keys: &mut Keys,
) -> Result<TokenizerFacts> {
    if let Some(name) = given {
        known::check(name).map_err(|error| error.without(Opt::PRE_TOKENIZER))?;
    }
    let files = TokenizerFiles::read(folder)?;
    let writer = TokenizerWriter { files, folder, config, rule, rows };
    let kind = writer.kind()?;
    if given.is_some() && kind != TokenizerKind::Bpe {
        let what = "its tokenizer has no pre-tokenizer that could be named";
        return Err(Error::usage(what).in_file(folder).without(Opt::PRE_TOKENIZER));
    }
    set(rule.defaults.iter(), config, keys)?;
    if rule.has_space_setting
        && let Some(has_prefix) = writer.files.setting("add_prefix_space").and_then(serde_json::Value::as_bool)
    {
        keys.set("tokenizer.ggml.add_space_prefix", KeyValue::Flag(has_prefix));
    }
    let mut facts = match kind {
        TokenizerKind::Bpe => writer.bpe(given, keys)?,
        TokenizerKind::SentencePiece | TokenizerKind::SentencePieceOfPhi => {
            writer.pieces(kind == TokenizerKind::SentencePieceOfPhi, keys)?
        }
        TokenizerKind::ByteFallback | TokenizerKind::Gemma4 => writer.fallback(kind, keys)?,
    };
    // Tokens of bytes have no spaces in front.
    set(rule.keys.iter().filter(|row| kind != TokenizerKind::Bpe || row.key != "add_space_prefix"), config, keys)?;
    if rule.has_ends_of_turns {
        let settings: Option<serde_json::Value> = json_file(folder, "generation_config.json")?;
        let ends = settings.as_ref().and_then(|settings| settings.get("eos_token_id")?.as_array());
        let first = ends.filter(|ends| ends.len() > 1).and_then(|ends| u32::try_from(ends[0].as_u64()?).ok());
        if let Some(number) = first {
            keys.set("tokenizer.ggml.eot_token_id", KeyValue::Count(number));
        }
    }
    facts.has_template = writer.files.template.is_some();
    Ok(facts)
}

/// Sets keys of the tokenizer.
fn set(rows: impl Iterator<Item = &'static KeyRow>, config: &Config, keys: &mut Keys) -> Result<()> {
    for row in rows {
        if let Some(value) = row.value(config)? {
            keys.set(&format!("tokenizer.ggml.{}", row.key), value);
        }
    }
    Ok(())
}

impl TokenizerWriter<'_> {
    /// Returns the first kind of the rule for which there are files.
    fn kind(&self) -> Result<TokenizerKind> {
        let is_there = |kind: &TokenizerKind| match kind {
            TokenizerKind::SentencePiece | TokenizerKind::SentencePieceOfPhi => self.files.pieces.is_some(),
            TokenizerKind::Gemma4 => self.files.tokenizer.is_some(),
            TokenizerKind::ByteFallback => self.files.tokenizer.as_ref().is_some_and(has_byte_fallback),
            TokenizerKind::Bpe => {
                self.files.tokenizer.as_ref().is_some_and(|file| file.model.kind.as_deref() == Some("BPE"))
            }
        };
        if let Some(kind) = self.rule.kinds.iter().copied().find(is_there) {
            return Ok(kind);
        }
        let needs_model = self.rule.kinds == [TokenizerKind::SentencePiece];
        let what = match &self.files.tokenizer {
            _ if needs_model => {
                format!("has no {MODEL}, from which llama.cpp takes the tokenizer of this type of model")
            }
            Some(file) => {
                let kind = shorten(file.model.kind.as_deref().unwrap_or("unknown"));
                format!("has a {TOKENIZER} of the kind {kind}, which llama.cpp does not read for this type of model")
            }
            None if self.files.setting("auto_map").is_some() => {
                "has a tokenizer that is Python code, which tcast does not run".to_owned()
            }
            None if !is_missing(&self.folder.join(TEKKEN)) => {
                format!("has its tokenizer in {TEKKEN} alone, which tcast does not read")
            }
            None => format!("has no {TOKENIZER} and no {MODEL}"),
        };
        Err(self.refused(Error::new(what)))
    }

    /// Adds the remedy of all refusals of a tokenizer: the tokenizer of another file.
    fn refused(&self, error: Error) -> Error {
        let error = if error.path().is_none() { error.in_file(self.folder) } else { error };
        match error.kind() {
            ErrorKind::Usage => error,
            _ if error.advice().iter().any(|advice| advice.sets(Opt::PRE_TOKENIZER)) => error,
            _ => error.of(Kind::Refused).with_metadata(),
        }
    }

    /// Returns the number of tokens, which must not be more than rows of the embeddings. It bounds the work for a config
    /// that asks for many.
    fn count(&self, fields: &[&str], own: usize) -> Result<u32> {
        let count = self.config.count(fields)?.filter(|count| *count > 0);
        let count = count.map_or(own as u64, u64::from).next_multiple_of(u64::from(self.rule.padding));
        let fitting = u32::try_from(count).ok().filter(|count| *count <= self.rows);
        fitting.ok_or_else(|| {
            let what = format!("describes {count} tokens, and the embeddings have {} rows", self.rows);
            self.refused(Error::new(what))
        })
    }

    /// A tokenizer whose tokens stand for bytes.
    fn bpe(&self, given: Option<&str>, keys: &mut Keys) -> Result<TokenizerFacts> {
        let file = self.file()?;
        let mut added: HashMap<u32, &file::AddedToken> = HashMap::new();
        added.extend(file.added_tokens().iter().map(|token| (token.id, token)));
        let own: HashSet<&str> = file.model.vocab.0.iter().map(|(text, _)| &**text).collect();
        let mut texts: HashMap<u32, &str> =
            file.model.vocab.0.iter().map(|(text, number)| (*number, &**text)).collect();
        let mut next = file.model.vocab.0.len();
        for token in file.added_tokens() {
            // The library ignores another number.
            if !own.contains(&*token.content) && texts.insert(token.id, &token.content).is_none() {
                if token.id as usize != next {
                    let what = format!("the added token {} does not have the next free number, {next}", token.id);
                    return Err(self.refused(Error::new(what).in_file(&self.folder.join(TOKENIZER))));
                }
                next += 1;
            }
            texts.insert(token.id, &token.content);
        }
        // transformers appends a token that only its config names.
        let named = SPECIAL_FIELDS.iter().filter_map(|field| {
            let token = self.files.setting(field)?;
            Some((field, token.get("content").unwrap_or(token).as_str()?))
        });
        let is_known = |text: &str| own.contains(text) || file.added_tokens().iter().any(|token| token.content == text);
        for (field, text) in named {
            if !text.is_empty() && !is_known(text) {
                let what = format!("has the {field} {}, which {TOKENIZER} does not have", shorten(text));
                return Err(self.refused(Error::new(what).in_file(&self.folder.join(files::CONFIG))));
            }
        }
        let count = self.count(&["vocab_size"], texts.len())?;
        if let Some(number) = texts.keys().copied().filter(|number| *number >= count).max() {
            let what = format!("has a token {number}, and the config describes {count} tokens");
            return Err(self.refused(Error::new(what).in_file(&self.folder.join(TOKENIZER))));
        }
        let pre = known::find(file, given).map_err(|error| self.refused(error))?;
        let mut tokens = Tokens::unused(count, None);
        for (number, text) in texts {
            let (text, kind) = match added.get(&number) {
                Some(token) => {
                    let text = if token.is_normalized() { text.to_owned() } else { bpe::decoded(text, &file.decoder) };
                    if token.special || looks_special(&text) {
                        (text, CONTROL)
                    } else {
                        (text.replace('\u{2581}', " "), USER_DEFINED)
                    }
                }
                None => (text.to_owned(), NORMAL),
            };
            tokens.put(number as usize, text.into_bytes(), kind, 0.0);
        }
        tokens.write("gpt2", Some(&pre.name), keys);
        self.put_merges(file, keys);
        let mut special = SpecialTokens::find(&self.files, self.config, None)?;
        for (kind, text) in self.rule.texts {
            let token = file.added_tokens().iter().find(|token| token.content == *text);
            let token = token.ok_or_else(|| {
                let what = format!("has no token {text}, which this type of model needs");
                self.refused(Error::new(what).in_file(&self.folder.join(TOKENIZER)))
            })?;
            special.set(kind, Some(token.id));
        }
        special.write(&self.files, keys);
        Ok(TokenizerFacts { kind: "BPE", tokens: count.into(), pre_tokenizer: Some(pre), has_template: false })
    }

    /// Adds the merges, from `merges.txt` if the tokenizer has none.
    fn put_merges(&self, file: &TokenizerFile, keys: &mut Keys) {
        let mut merges: Vec<Vec<u8>> =
            file.model.merges.iter().flatten().map(|merge| merge.text().into_bytes()).collect();
        if merges.is_empty() {
            let text = self.files.merges.as_deref().unwrap_or_default();
            let start = usize::from(text.lines().next().is_some_and(|line| line.trim().starts_with('#')));
            let words = |line: &str| -> Vec<String> { line.split_whitespace().take(3).map(str::to_owned).collect() };
            let lines = text.split('\n').skip(start).map(words).filter(|words| words.len() == 2);
            merges = lines.map(|words| words.join(" ").into_bytes()).collect();
        }
        if !merges.is_empty() {
            keys.put(GgufKey::list("tokenizer.ggml.merges", KeyList::Texts(&merges)));
        }
    }

    fn file(&self) -> Result<&TokenizerFile> {
        let file = self.files.tokenizer.as_ref();
        file.ok_or_else(|| self.refused(Error::new(format!("has no {TOKENIZER}"))))
    }

    /// A tokenizer of `SentencePiece`. That of Phi 3 keeps the texts of its added tokens.
    fn pieces(&self, is_phi: bool, keys: &mut Keys) -> Result<TokenizerFacts> {
        let bytes = self.files.pieces.as_deref().unwrap_or_default();
        let found = pieces::pieces(bytes).map_err(|error| self.refused(error.in_file(&self.folder.join(MODEL))))?;
        let count = self.count(&["vocab_size_per_layer_input", "vocab_size"], found.len())?;
        let mut tokens = Tokens::unused(count, Some(NO_TOKEN));
        for (number, piece) in found.iter().enumerate() {
            tokens.put(number, piece.text.to_vec(), piece.kind, piece.score);
        }
        for (text, number) in &self.files.added {
            tokens.put(*number as usize, text.clone().into_bytes(), USER_DEFINED, NO_SCORE);
        }
        for (number, token) in &self.files.decoder {
            let text = token.get("content").and_then(serde_json::Value::as_str);
            let (Some(text), Ok(number)) = (text, number.parse::<usize>()) else {
                let error = Error::new("has a token without a number or a text in added_tokens_decoder");
                return Err(self.refused(error.in_file(&self.folder.join("tokenizer_config.json"))));
            };
            let is_special = token.get("special").and_then(serde_json::Value::as_bool) == Some(true);
            let (text, kind) = match is_special || !is_phi && looks_special(text) {
                true => (text.to_owned(), CONTROL),
                false if is_phi => (text.to_owned(), USER_DEFINED),
                false => (text.replace('\u{2581}', " "), USER_DEFINED),
            };
            tokens.put(number, text.into_bytes(), kind, NO_SCORE);
        }
        if let Some(file) = self.files.tokenizer.as_ref().filter(|_| is_phi) {
            for token in file.added_tokens() {
                let kind = if token.special { CONTROL } else { USER_DEFINED };
                tokens.put(token.id as usize, token.content.clone().into_bytes(), kind, NO_SCORE);
            }
        }
        tokens.write("llama", Some("default"), keys);
        SpecialTokens::find(&self.files, self.config, Some(count))?.write(&self.files, keys);
        Ok(TokenizerFacts { kind: "SentencePiece", tokens: count.into(), pre_tokenizer: None, has_template: false })
    }

    /// A `tokenizer.json` whose tokens stand for characters, and for single bytes.
    fn fallback(&self, kind: TokenizerKind, keys: &mut Keys) -> Result<TokenizerFacts> {
        let file = self.file()?;
        if !has_byte_fallback(file) {
            let error = Error::new("is not a tokenizer with byte fallback, as this type of model has");
            return Err(self.refused(error.in_file(&self.folder.join(TOKENIZER))));
        }
        let named = SPECIAL_FIELDS.iter().filter_map(|name| self.files.setting(name));
        let more = ["additional_special_tokens", "extra_special_tokens"]
            .into_iter()
            .find_map(|name| self.files.setting(name)?.as_array().filter(|list| !list.is_empty()));
        let text =
            |token: &serde_json::Value| token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned);
        let special: HashSet<String> = named.chain(more.into_iter().flatten()).filter_map(text).collect();
        let own = file.model.vocab.0.len();
        let mut later: Vec<&file::AddedToken> =
            file.added_tokens().iter().filter(|token| token.id as usize >= own).collect();
        later.sort_by_key(|token| token.id);
        let count = u32::try_from(own + later.len()).ok().filter(|count| *count <= self.rows);
        let count = count.ok_or_else(|| {
            let what = format!("has {} tokens, and the embeddings have {} rows", own + later.len(), self.rows);
            self.refused(Error::new(what).in_file(&self.folder.join(TOKENIZER)))
        })?;
        let mut tokens = Tokens::unused(count, Some(NO_SCORE));
        for (text, number) in &file.model.vocab.0 {
            let kind = if is_byte(text) {
                BYTE
            } else if special.contains(text) {
                CONTROL
            } else {
                NORMAL
            };
            tokens.put(*number as usize, text.clone().into_bytes(), kind, NO_SCORE);
        }
        if tokens.kinds[..own].contains(&UNUSED) {
            let error = Error::new("has a vocabulary in which numbers are missing");
            return Err(self.refused(error.in_file(&self.folder.join(TOKENIZER))));
        }
        for (number, token) in (own..).zip(later) {
            let kind = if special.contains(&token.content) { CONTROL } else { USER_DEFINED };
            tokens.put(number, token.content.clone().into_bytes(), kind, NO_SCORE);
        }
        let is_gemma4 = kind == TokenizerKind::Gemma4;
        if is_gemma4 {
            for (text, kind) in tokens.texts.iter().zip(&mut tokens.kinds) {
                if VISIBLE.iter().any(|visible| visible.as_bytes() == text) {
                    *kind = USER_DEFINED;
                }
            }
            tokens.write("gemma4", None, keys);
            self.put_merges(file, keys);
        } else {
            tokens.write("llama", Some("default"), keys);
        }
        let end = (!is_gemma4).then_some(count);
        SpecialTokens::find(&self.files, self.config, end)?.write(&self.files, keys);
        Ok(TokenizerFacts {
            kind: "BPE with byte fallback",
            tokens: count.into(),
            pre_tokenizer: None,
            has_template: false,
        })
    }
}

/// True if the tokens stand for characters, and for the bytes of others.
fn has_byte_fallback(file: &TokenizerFile) -> bool {
    file.model.kind.as_deref() == Some("BPE")
        && file.model.byte_fallback == Some(true)
        && TokenizerFile::kind(&file.decoder) == "Sequence"
}

/// True for `<0xNN>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// True if the text of a token is that of a special one, even if its file does not say so.
fn looks_special(text: &str) -> bool {
    let is_between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || is_between("<|", "|>")
        || is_between("<｜", "｜>")
        || is_between("<unused", ">")
}

/// Reads a text of a folder; `None` if there is none.
pub(super) fn text_file(folder: &Path, name: &str) -> Result<Option<String>> {
    files::text(folder, name)
}

/// Reads a JSON file of a folder; `None` if there is none.
pub(super) fn json_file<T: serde::de::DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>> {
    files::text(folder, name)?.map(|text| files::json(folder, name, &text)).transpose()
}
