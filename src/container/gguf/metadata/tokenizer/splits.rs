//! The pre-tokenizers of the library tokenizers, which divide a text into pieces.

use super::file::TokenizerFile;
use regex::{Regex, RegexBuilder};
use serde_json::Value;
use std::ops::Range;
use std::sync::LazyLock;

/// The pattern of GPT-2, which the pre-tokenizer `ByteLevel` has.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The only lookahead of the patterns: spaces up to the last one in front of another character.
const SPACES: &str = r"\s+(?!\S)";
/// A possessive repetition; the braces of a class, such as `\\p{L}`, have letters.
static POSSESSIVE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"([?+]|\{\d+(?:,\d*)?\})\+").expect("a valid pattern"));
/// Bounds of hostile patterns: bytes of a pattern, bytes of its program, and the number of steps.
const MAX_PATTERN: usize = 1 << 14;
const MAX_PROGRAM: usize = 4 << 20;
const MAX_STEPS: usize = 24;

/// A piece of a text.
pub(super) struct TextPiece {
    pub text: String,
    /// True if its characters stand for bytes.
    pub is_mapped: bool,
}

/// The characters that stand for bytes: themselves if they are visible, or else those after 255.
pub(super) static BYTES: LazyLock<ByteCharacters> = LazyLock::new(ByteCharacters::new);

/// A character for each byte.
pub(super) struct ByteCharacters([char; 256]);

impl ByteCharacters {
    fn new() -> Self {
        let mut next = (256..).filter_map(char::from_u32);
        let character = |byte: usize| {
            let byte = byte as u8;
            let is_visible = matches!(byte, 33..=126 | 161..=172 | 174..=255);
            if is_visible { byte.into() } else { next.next().unwrap_or_default() }
        };
        Self(std::array::from_fn(character))
    }

    /// Returns the byte that a character stands for.
    pub(super) fn byte(&self, character: char) -> Option<u8> {
        self.0.iter().position(|known| *known == character).map(|byte| byte as u8)
    }
}

/// Divides a text by a pre-tokenizer; `None` if it does something that this module does not know.
pub(super) fn split(text: String, pre_tokenizer: &Value) -> Option<Vec<TextPiece>> {
    let mut pieces = vec![TextPiece { text, is_mapped: false }];
    let list = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
    let steps = list.map_or(std::slice::from_ref(pre_tokenizer), Vec::as_slice);
    if steps.len() > MAX_STEPS {
        return None;
    }
    for step in steps.iter().filter(|step| !step.is_null()) {
        pieces = apply(step, pieces)?;
    }
    Some(pieces)
}

fn apply(step: &Value, pieces: Vec<TextPiece>) -> Option<Vec<TextPiece>> {
    let flag = |name: &str, default: bool| step.get(name).map_or(Some(default), Value::as_bool);
    let by = |pieces: Vec<TextPiece>, pattern: &SplitPattern, behavior: &str, is_inverted: bool| {
        let mut all = Vec::new();
        for piece in pieces {
            let parts = divided(&piece.text, pattern.find(&piece.text), behavior, is_inverted)?;
            all.extend(parts.into_iter().map(|text| TextPiece { text, is_mapped: piece.is_mapped }));
        }
        Some(all)
    };
    match TokenizerFile::kind(step) {
        "Split" => {
            let pattern = step.get("pattern")?;
            let pattern = match (pattern.get("Regex"), pattern.get("String")) {
                (Some(pattern), _) => SplitPattern::new(pattern.as_str()?)?,
                (None, Some(text)) => SplitPattern::new(&regex::escape(text.as_str()?))?,
                _ => return None,
            };
            by(pieces, &pattern, step.get("behavior")?.as_str()?, flag("invert", false)?)
        }
        "Digits" => {
            let behavior = if flag("individual_digits", false)? { "Isolated" } else { "Contiguous" };
            by(pieces, &SplitPattern::new(r"\p{N}")?, behavior, false)
        }
        "Punctuation" => {
            let behavior = step.get("behavior").map_or(Some("Isolated"), Value::as_str)?;
            by(pieces, &SplitPattern::new(r"[\p{P}$+<=>^`|~]")?, behavior, false)
        }
        "Whitespace" => by(pieces, &SplitPattern::new(r"\w+|[^\w\s]+")?, "Removed", true),
        "WhitespaceSplit" => by(pieces, &SplitPattern::new(r"\s")?, "Removed", false),
        "ByteLevel" => {
            let has_prefix = flag("add_prefix_space", true)?;
            let prefixed = |piece: TextPiece| {
                let lacks_prefix = has_prefix && !piece.text.starts_with(char::is_whitespace);
                TextPiece { text: if lacks_prefix { format!(" {}", piece.text) } else { piece.text }, ..piece }
            };
            let pieces: Vec<TextPiece> = pieces.into_iter().map(prefixed).collect();
            let pieces = if flag("use_regex", true)? {
                by(pieces, &SplitPattern::new(GPT2)?, "Isolated", false)?
            } else {
                pieces
            };
            let mapped = |piece: TextPiece| {
                let text = piece.text.bytes().map(|byte| BYTES.0[usize::from(byte)]).collect();
                TextPiece { text, is_mapped: true }
            };
            Some(pieces.into_iter().map(mapped).collect())
        }
        _ => None,
    }
}

/// Divides a text at matches (`SplitDelimiterBehavior` of tokenizers).
fn divided(text: &str, matches: Vec<Range<usize>>, behavior: &str, is_inverted: bool) -> Option<Vec<String>> {
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    let mut end = 0;
    for found in matches {
        if found.start > end {
            parts.push((end..found.start, is_inverted));
        }
        end = found.end;
        parts.push((found, !is_inverted));
    }
    if end < text.len() {
        parts.push((end..text.len(), is_inverted));
    }
    let mut joined: Vec<(Range<usize>, bool)> = Vec::new();
    let mut was_match = false;
    for (range, is_match) in parts {
        let is_joined = match behavior {
            "Removed" if is_match => continue,
            "Isolated" | "Removed" => false,
            "Contiguous" => was_match == is_match,
            "MergedWithPrevious" => is_match && !was_match,
            "MergedWithNext" => was_match && !is_match,
            _ => return None,
        };
        was_match = is_match;
        match joined.last_mut().filter(|_| is_joined) {
            Some(last) => last.0.end = range.end,
            None => joined.push((range, is_match)),
        }
    }
    Some(joined.into_iter().map(|(range, _)| text[range].to_owned()).collect())
}

/// A regular expression, with the lookahead for spaces that the library regex lacks.
struct SplitPattern {
    /// Groups named `spaces0` and so on stand for [`SPACES`] without its lookahead.
    whole: Regex,
    /// The pattern without [`SPACES`].
    others: Regex,
    groups: usize,
}

impl SplitPattern {
    fn new(pattern: &str) -> Option<Self> {
        if pattern.len() > MAX_PATTERN {
            return None;
        }
        // Possessive repetitions match as the greedy ones do in all patterns of known tokenizers.
        let pattern = POSSESSIVE.replace_all(pattern, "$1");
        let mut parts = pattern.split(SPACES);
        let mut whole = parts.next()?.to_owned();
        let mut groups = 0;
        for part in parts {
            whole = format!(r"{whole}(?P<spaces{groups}>\s+){part}");
            groups += 1;
        }
        // In the syntax of Oniguruma, `$` is the end of a line.
        let build =
            |text: &str| RegexBuilder::new(text).multi_line(true).size_limit(MAX_PROGRAM).nest_limit(50).build().ok();
        Some(Self { whole: build(&whole)?, others: build(&pattern.replace(SPACES, r"[^\s\S]"))?, groups })
    }

    /// Returns the matches, which are not empty.
    fn find(&self, text: &str) -> Vec<Range<usize>> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let Some(groups) = self.whole.captures_at(text, at) else { break };
            let Some(all) = groups.get(0) else { break };
            let is_spaces = (0..self.groups)
                .any(|group| groups.name(&format!("spaces{group}")).is_some_and(|it| it.range() == all.range()));
            let is_followed = text[all.end()..].chars().next().is_some_and(|next| !next.is_whitespace());
            let last = all.as_str().chars().next_back().map_or(0, char::len_utf8);
            let range = match all.range() {
                range if !is_spaces || !is_followed => range,
                range if range.len() > last => range.start..range.end - last,
                // One space does not match here, but another part of the pattern may.
                range => match self.others.find_at(text, range.start).filter(|other| other.start() == range.start) {
                    Some(other) => other.range(),
                    None => range.start..range.start,
                },
            };
            at = range.end;
            if range.is_empty() {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
            } else {
                found.push(range);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parts(text: &str, step: &Value) -> Option<Vec<String>> {
        Some(split(text.to_owned(), step)?.into_iter().map(|piece| piece.text).collect())
    }

    #[test]
    fn spaces_leave_the_last_one_to_the_next_piece() {
        let gpt2 = json!({"type": "Split", "pattern": {"Regex": GPT2}, "behavior": "Isolated"});
        assert_eq!(parts("a  b c\n\n\td  ", &gpt2).unwrap(), ["a", " ", " b", " c", "\n\n", "\t", "d", "  "]);
        let without = json!({"type": "Split", "pattern": {"Regex": r"\s+(?!\S)|\p{L}+"}, "behavior": "Removed"});
        assert_eq!(parts("a b  c", &without).unwrap(), [" ", " "]);
    }

    #[test]
    fn matches_are_joined_as_the_behavior_says() {
        for (behavior, wanted) in [
            ("Isolated", &["a", "-", "-", "b"][..]),
            ("Removed", &["a", "b"]),
            ("Contiguous", &["a", "--", "b"]),
            ("MergedWithPrevious", &["a-", "-", "b"]),
            ("MergedWithNext", &["a", "-", "-b"]),
        ] {
            let step = json!({"type": "Split", "pattern": {"String": "-"}, "behavior": behavior});
            assert_eq!(parts("a--b", &step).unwrap(), wanted, "{behavior}");
        }
        assert!(parts("a", &json!({"type": "Metaspace"})).is_none());
        assert!(parts("a", &json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})).is_none());
    }

    #[test]
    fn bytes_have_the_characters_of_gpt_2() {
        let mapped = parts("é \n", &json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": false}));
        assert_eq!(mapped.unwrap(), ["ĠÃ©ĠĊ"]);
        assert_eq!((BYTES.byte('Ġ'), BYTES.byte('é'), BYTES.byte('▁')), (Some(32), Some(0xe9), None));
    }
}
