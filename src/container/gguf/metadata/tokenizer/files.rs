//! The files of a folder that describe a tokenizer.

use super::file::TokenizerFile;
use crate::container::Members;
use crate::container::json::as_json;
use crate::error::{Error, Result};
use crate::io::listing::entries;
use crate::io::open::{Links, is_missing, read_regular, read_text, unreadable};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const MODEL: &str = "tokenizer.model";
pub(super) const CONFIG: &str = "tokenizer_config.json";
/// Maximum length of a file. The largest tokenizers have some 40 MiB.
const MOST: u64 = 256 << 20;
/// Maximum number of chat templates.
const MAX_TEMPLATES: usize = 64;

/// The files, read.
pub(super) struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Option<TokenizerFile>,
    /// `tokenizer.model`.
    pub pieces: Option<Vec<u8>>,
    /// `tokenizer_config.json`.
    pub config: Option<Map<String, Value>>,
    /// The tokens of `tokenizer_config.json`, by their numbers.
    pub decoder: Vec<(String, Value)>,
    /// `added_tokens.json`: texts and numbers.
    pub added: Vec<(String, u32)>,
    /// `merges.txt`.
    pub merges: Option<String>,
    pub template: Option<ChatTemplate>,
}

/// The chat templates of a model.
pub(super) enum ChatTemplate {
    One(String),
    /// Names and texts.
    Several(Vec<(String, String)>),
}

impl TokenizerFiles {
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let tokenizer = text(folder, TOKENIZER)?;
        let tokenizer =
            tokenizer.map(|text| TokenizerFile::of(&text).map_err(|error| error.in_file(&folder.join(TOKENIZER))));
        let own = text(folder, CONFIG)?;
        let config: Option<Map<String, Value>> = own.as_deref().map(|text| json(folder, CONFIG, text)).transpose()?;
        let decoder =
            if config.as_ref().is_some_and(|config| config.get("added_tokens_decoder").is_some_and(Value::is_object)) {
                // The order of the file counts where a number is there twice.
                let members: Members<Value> = json(folder, CONFIG, own.as_deref().unwrap_or_default())?;
                let found = members.0.into_iter().rfind(|(name, _)| name == "added_tokens_decoder");
                match found {
                    Some((_, Value::Object(tokens))) => tokens.into_iter().collect(),
                    _ => Vec::new(),
                }
            } else {
                Vec::new()
            };
        let added = text(folder, "added_tokens.json")?;
        let added = added.map(|text| json::<Members<u32>>(folder, "added_tokens.json", &text)).transpose()?;
        let template = match &config {
            Some(config) if !config.is_empty() => ChatTemplate::find(folder, config)?,
            _ => None,
        };
        Ok(Self {
            tokenizer: tokenizer.transpose()?,
            pieces: bytes(folder, MODEL)?,
            config,
            decoder,
            added: added.map(|members| members.0).unwrap_or_default(),
            merges: text(folder, "merges.txt")?,
            template,
        })
    }

    /// Returns a text of `tokenizer_config.json`.
    pub(super) fn setting(&self, name: &str) -> Option<&Value> {
        self.config.as_ref()?.get(name)
    }
}

impl ChatTemplate {
    fn find(folder: &Path, config: &Map<String, Value>) -> Result<Option<Self>> {
        if let Some(own) = config.get("chat_template") {
            return Ok(Self::of(own));
        }
        if let Some(default) = text(folder, "chat_template.jinja")? {
            let inner = folder.join("additional_chat_templates");
            let mut names: Vec<String> = if inner.is_dir() {
                let found = entries(&inner).map_err(unreadable(&inner))?;
                found.iter().filter_map(|entry| Some(entry.text().strip_suffix(".jinja")?.to_owned())).collect()
            } else {
                Vec::new()
            };
            names.sort_unstable();
            if names.is_empty() {
                return Ok(Some(Self::One(default)));
            }
            let mut all = vec![("default".to_owned(), default)];
            for name in names.into_iter().take(MAX_TEMPLATES) {
                let other = text(&inner, &format!("{name}.jinja"))?;
                all.extend(other.map(|text| (name, text)));
            }
            return Ok(Some(Self::Several(all)));
        }
        let Some(older) = text(folder, "chat_template.json")? else { return Ok(None) };
        let older: Map<String, Value> = json(folder, "chat_template.json", &older)?;
        Ok(older.get("chat_template").and_then(Self::of))
    }

    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::One(text.clone())),
            Value::Array(list) => {
                let entry = |entry: &Value| {
                    let field = |name: &str| entry.get(name)?.as_str().map(str::to_owned);
                    Some((field("name")?, field("template")?))
                };
                Some(Self::Several(list.iter().filter_map(entry).take(MAX_TEMPLATES).collect()))
            }
            _ => None,
        }
    }
}

/// Reads a file; `None` if there is none.
pub(super) fn bytes(folder: &Path, name: &str) -> Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    if is_missing(&path) {
        return Ok(None);
    }
    read_regular(&path, MOST, Links::Follow).map(Some).map_err(unreadable(&path))
}

pub(super) fn text(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    if is_missing(&path) { Ok(None) } else { read_text(&path, MOST).map(Some) }
}

pub(super) fn json<T: DeserializeOwned>(folder: &Path, name: &str, text: &str) -> Result<T> {
    let read = serde_json::from_str(&as_json(text));
    read.map_err(|error| Error::new(format!("cannot be read: {error}")).in_file(&folder.join(name)))
}
