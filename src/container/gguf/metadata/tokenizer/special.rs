//! Special tokens, flags of the tokenizer, and chat templates, in the order in which llama.cpp's converter finds them
//! (`SpecialVocab` of gguf-py).

use super::super::config::Config;
use super::super::keys::{KeyValue, Keys};
use super::file::{AddedToken, TokenizerFile};
use super::files::{ChatTemplate, TokenizerFiles};
use crate::container::gguf::GgufKey;
use crate::container::gguf::write::KeyList;
use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// The kinds of special tokens, and the names of their keys. Some have none.
const KINDS: [(&str, Option<&str>); 7] = [
    ("bos", Some("bos")),
    ("eos", Some("eos")),
    ("unk", Some("unknown")),
    ("sep", Some("seperator")),
    ("pad", Some("padding")),
    ("cls", None),
    ("mask", Some("mask")),
];
/// Kinds of tokens behind another end of a text.
const OTHER_ENDS: [(&str, Option<&str>); 2] = [("eot", Some("eot")), ("eom", Some("eom"))];
/// The flags that llama.cpp knows.
const FLAGS: [&str; 3] = ["bos", "eos", "sep"];

/// The special tokens of a tokenizer, and the flags about them.
pub(super) struct SpecialTokens {
    kinds: Vec<(&'static str, Option<&'static str>)>,
    numbers: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
    /// Numbers from here on are no tokens.
    end: u32,
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
}

impl SpecialTokens {
    /// Finds them in the files of a folder. `end` is the number of tokens, if larger numbers are ignored.
    pub(super) fn find(files: &TokenizerFiles, config: &Config, end: Option<u32>) -> Result<Self> {
        let mut found = Self {
            kinds: KINDS.to_vec(),
            numbers: Vec::new(),
            flags: Vec::new(),
            end: end.unwrap_or(u32::MAX),
            lowercase: None,
            strip_accents: None,
        };
        let mut own = files.config.clone().unwrap_or_default();
        if let Some(file) = &files.tokenizer {
            found.normalizer(&file.normalizer);
            found.post_processor(
                &file.post_processor,
                &mut own,
                files.config.as_ref().is_some_and(|own| !own.is_empty()),
            );
        }
        if !own.is_empty() {
            let added = files.tokenizer.as_ref().map_or(&[][..], TokenizerFile::added_tokens);
            found.tokenizer_config(&own, added);
        }
        for (kind, _) in found.kinds.clone() {
            match config.raw_field(&format!("{kind}_token_id")) {
                Some(value) if value.as_i64().is_some_and(|number| number < 0) => {
                    return Err(Error::new(format!("config.json has a negative {kind}_token_id")));
                }
                Some(value) => found.set(kind, value.as_u64().and_then(|number| u32::try_from(number).ok())),
                None => {}
            }
        }
        Ok(found)
    }

    /// Sets the number of a special token, if it has none.
    pub(super) fn set(&mut self, kind: &'static str, number: Option<u32>) {
        let number = number.filter(|number| *number < self.end);
        if let Some(number) = number.filter(|_| self.numbers.iter().all(|(known, _)| *known != kind)) {
            self.numbers.push((kind, number));
        }
    }

    fn flag(&mut self, kind: &'static str, value: bool, replaces: bool) {
        match self.flags.iter_mut().find(|(known, _)| *known == kind) {
            Some(known) if replaces => known.1 = value,
            Some(_) => {}
            None => self.flags.push((kind, value)),
        }
    }

    fn normalizer(&mut self, normalizer: &Value) {
        match TokenizerFile::kind(normalizer) {
            "Lowercase" => self.lowercase = Some(true),
            "StripAccents" => self.strip_accents = Some(true),
            "BertNormalizer" => {
                let flag = |name: &str| normalizer.get(name).and_then(Value::as_bool);
                self.lowercase = flag("lowercase").or(self.lowercase);
                self.strip_accents = flag("strip_accents").or(self.strip_accents);
            }
            "Sequence" => {
                let list = normalizer.get("normalizers").and_then(Value::as_array);
                list.into_iter().flatten().for_each(|normalizer| self.normalizer(normalizer));
            }
            _ => {}
        }
    }

    /// Reads the tokens that are set before and behind a text. `own` is `tokenizer_config.json`, which gets the tokens that
    /// it lacks; without one, the tokens of the post-processor are those of the model.
    fn post_processor(&mut self, processor: &Value, own: &mut Map<String, Value>, has_config: bool) {
        let mut names = OwnTokens { own, has_config };
        names.fill("bos_token", "cls_token");
        names.fill("eos_token", "sep_token");
        let list = processor.get("processors").and_then(Value::as_array);
        for processor in list.map_or(std::slice::from_ref(processor), Vec::as_slice) {
            match TokenizerFile::kind(processor) {
                "ByteLevel" => {
                    self.flag("bos", false, false);
                    self.flag("eos", false, false);
                }
                "RobertaProcessing" => {
                    for kind in FLAGS {
                        self.flag(kind, true, true);
                    }
                    names.fill_with("cls_token", processor.get("cls").and_then(|token| token.get(0)));
                    names.fill_with("sep_token", processor.get("sep").and_then(|token| token.get(0)));
                }
                "TemplateProcessing" => self.template(processor, &mut names),
                _ => {}
            }
        }
    }

    fn template(&mut self, processor: &Value, names: &mut OwnTokens) {
        let parts = |name: &str| processor.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let special = |part: Option<&Value>| Some(part?.get("SpecialToken")?.get("id")?.as_str()?.to_owned());
        let (single, mut pair) = (parts("single"), parts("pair"));
        let is_long = single.len() > 1;
        let first = special(single.first().filter(|_| is_long));
        let last = special(single.last().filter(|_| is_long));
        if let Some(first) = &first {
            if names.has_config && ![names.get("bos_token"), names.get("cls_token")].contains(&Some(first)) {
                names.fill_with("bos_token", Some(&Value::from(&**first)));
                names.fill_with("cls_token", Some(&Value::from(&**first)));
            }
            let is_set = !names.has_config || [names.get("bos_token"), names.get("cls_token")].contains(&Some(first));
            self.flag("bos", is_set, true);
        }
        if let Some(last) = &last {
            if names.has_config && names.get("eos_token") != Some(last) {
                let free = OTHER_ENDS.into_iter().find(|end| !self.kinds.contains(end));
                if let Some((kind, key)) = free {
                    self.kinds.push((kind, key));
                    let old = names.own.get("eos_token").cloned().unwrap_or_default();
                    names.own.insert(format!("{kind}_token"), old);
                }
                names.own.insert("eos_token".to_owned(), Value::from(&**last));
            }
            self.flag("eos", true, true);
        }
        if first.is_some() && special(pair.first()) == first {
            pair = &pair[1..];
        }
        if last.is_some() && special(pair.last()) == last {
            pair = &pair[..pair.len() - 1];
        }
        let sequence = |part: &Value| Some(part.get("Sequence")?.get("id")?.as_str()?.to_owned());
        if let [one, between @ .., other] = pair
            && (sequence(one).as_deref(), sequence(other).as_deref()) == (Some("A"), Some("B"))
            && let Some(token) = between.first()
        {
            let ends = [names.get("sep_token").cloned(), names.get("eos_token").cloned()];
            let is_end = |part: Option<&Value>| special(part).is_some_and(|id| ends.contains(&Some(id)));
            let is_separated = is_end(Some(token)) && last.is_none() || between.len() == 2 && is_end(between.get(1));
            self.flag("sep", is_separated, true);
            if is_separated {
                names.fill("sep_token", "eos_token");
            }
        }
    }

    fn tokenizer_config(&mut self, own: &Map<String, Value>, added: &[AddedToken]) {
        for (kind, _) in self.kinds.clone() {
            if let Some(Value::Bool(value)) = own.get(&format!("add_{kind}_token")) {
                self.flag(kind, *value, false);
            }
            let token = own.get(&format!("{kind}_token"));
            let text = token.and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
            let number = text.and_then(|text| Some(added.iter().find(|token| token.content == text)?.id));
            self.set(kind, number);
        }
    }

    /// Adds the keys, with those of the chat template.
    pub(super) fn write(&self, files: &TokenizerFiles, keys: &mut Keys) {
        for (kind, number) in &self.numbers {
            let kinds = self.kinds.iter().chain(&OTHER_ENDS);
            if let Some(name) = kinds.into_iter().find(|(known, _)| known == kind).and_then(|(_, name)| *name) {
                keys.set(&format!("tokenizer.ggml.{name}_token_id"), KeyValue::Count(*number));
            }
        }
        for (kind, value) in self.flags.iter().filter(|(kind, _)| FLAGS.contains(kind)) {
            keys.set(&format!("tokenizer.ggml.add_{kind}_token"), KeyValue::Flag(*value));
        }
        template(files.template.as_ref(), keys);
        for (name, value) in [("lowercase", self.lowercase), ("strip_accents", self.strip_accents)] {
            if let Some(value) = value {
                keys.set(&format!("tokenizer.ggml.normalizer.{name}"), KeyValue::Flag(value));
            }
        }
    }
}

/// The special tokens of `tokenizer_config.json`.
struct OwnTokens<'t> {
    own: &'t mut Map<String, Value>,
    has_config: bool,
}

impl OwnTokens<'_> {
    /// Returns a token that is a text.
    fn get(&self, name: &str) -> Option<&String> {
        match self.own.get(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    fn is_empty(&self, name: &str) -> bool {
        match self.own.get(name) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        }
    }

    /// Gives a token that is missing the text of another one.
    fn fill(&mut self, name: &str, other: &str) {
        if !self.is_empty(other) {
            let other = self.own.get(other).cloned();
            self.fill_with(name, other.as_ref());
        }
    }

    fn fill_with(&mut self, name: &str, token: Option<&Value>) {
        if let Some(token) = token.filter(|_| self.has_config && self.is_empty(name)) {
            self.own.insert(name.to_owned(), token.clone());
        }
    }
}

/// Adds the keys of chat templates.
fn template(found: Option<&ChatTemplate>, keys: &mut Keys) {
    let default = match found {
        None => None,
        Some(ChatTemplate::One(text)) => Some(text),
        Some(ChatTemplate::Several(templates)) => {
            let mut names: Vec<Vec<u8>> = Vec::new();
            let mut default = None;
            for (name, text) in templates {
                let is_plain = |character: char| character.is_ascii_alphanumeric();
                let name: String = name.chars().map(|it| if is_plain(it) { it } else { '_' }).collect();
                if name == "default" {
                    default = Some(text);
                } else if !name.is_empty() {
                    keys.set(&format!("tokenizer.chat_template.{name}"), KeyValue::Text(text.clone()));
                    if !names.contains(&name.clone().into_bytes()) {
                        names.push(name.into_bytes());
                    }
                }
            }
            if !names.is_empty() {
                keys.put(GgufKey::list("tokenizer.chat_templates", KeyList::Texts(&names)));
            }
            default
        }
    };
    if let Some(text) = default {
        keys.set("tokenizer.chat_template", KeyValue::Text(text.clone()));
    }
}
