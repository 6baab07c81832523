//! The model card: the front matter of `README.md`, as far as its structure is flat.

use super::tokenizer::text_file;
use std::path::Path;

/// The texts and lists of a model card.
#[derive(Debug, Default)]
pub(super) struct Card(Vec<(String, Vec<String>)>);

impl Card {
    /// Reads `KEY: TEXT`, `KEY: [TEXT, TEXT]`, and lists with a line for each text; leaves out the rest.
    pub(super) fn read(folder: &Path) -> Self {
        text_file(folder, "README.md").ok().flatten().map(|text| Self::of(&text)).unwrap_or_default()
    }

    fn of(text: &str) -> Self {
        /// Maximum number of lines; cards have some dozens.
        const MOST: usize = 10_000;
        let mut lines = text.lines();
        let mut card = Self::default();
        if lines.next() != Some("---") {
            return card;
        }
        let plain = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
        for line in lines.take_while(|line| *line != "---").take(MOST) {
            let named = line.split_once(':').filter(|(name, _)| {
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_')
            });
            if let Some((name, value)) = named {
                let value = value.trim();
                let list = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let values = match list {
                    Some(list) => list.split(',').map(plain).filter(|text| !text.is_empty()).collect(),
                    None if value.is_empty() => Vec::new(),
                    None => vec![plain(value)],
                };
                card.0.push((name.to_owned(), values));
            } else if let Some(item) = line.trim_start().strip_prefix("- ")
                && let Some((_, values)) = card.0.last_mut()
            {
                values.push(plain(item));
            }
        }
        card
    }

    /// Returns the texts of a key.
    pub(super) fn list(&self, name: &str) -> &[String] {
        self.0.iter().rfind(|(known, _)| known == name).map_or(&[], |(_, values)| values)
    }

    /// Returns the text of the first of some keys that has one.
    pub(super) fn text(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.list(name).first()).map(String::as_str)
    }

    /// Returns the texts of a key in one; `None` if there are none.
    pub(super) fn joined(&self, name: &str) -> Option<String> {
        Some(self.list(name).join(",")).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_lists_are_read() {
        let text = "---\nlicense: \"mit\"\nlanguage: [en, 'de']\nbase_model:\n- a/b\n  - c/d\nother:\n  deep: 1\n---\nname: x\n";
        let card = Card::of(text);
        assert_eq!((card.text(&["name", "license"]), card.joined("language")), (Some("mit"), Some("en,de".into())));
        assert_eq!(card.list("base_model"), ["a/b", "c/d"]);
        assert!(card.text(&["deep"]).is_none() && Card::of("license: mit").0.is_empty());
    }
}
