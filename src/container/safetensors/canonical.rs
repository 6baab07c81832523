//! Headers as nearly all programs write them, read without a general parser of JSON: three times as fast, which counts
//! when there are a hundred thousand tensors.

use super::{HeaderEntry, METADATA, SafetensorsHeader};
use crate::container::json::StringPairs;
use std::borrow::Cow;

/// Reads a header whose entries look like `"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, with or without
/// a space after each comma and colon. `None` if anything looks different: then the header is valid JSON in
/// another form, or wrong, and the general parser tells which.
pub(super) fn read(json: &[u8]) -> Option<SafetensorsHeader> {
    let mut cursor = Cursor { rest: std::str::from_utf8(json).ok()? };
    let mut header = SafetensorsHeader::with_capacity(json.len() / ENTRY);
    let mut has_metadata = false;
    cursor.take(b"{")?;
    loop {
        let name = cursor.string()?;
        cursor.colon()?;
        if name == METADATA {
            if std::mem::replace(&mut has_metadata, true) {
                return None;
            }
            let mut values = serde_json::Deserializer::from_str(cursor.rest).into_iter::<Option<StringPairs>>();
            header.metadata = values.next()?.ok()?.map(|pairs| pairs.0);
            cursor.rest = &cursor.rest[values.byte_offset()..];
        } else {
            let entry = cursor.entry()?;
            header.add(name.to_owned(), entry);
        }
        if cursor.comma().is_none() {
            break;
        }
    }
    cursor.take(b"}")?;
    let is_padding = |byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    cursor.rest.bytes().all(is_padding).then_some(header)
}

/// About as many bytes as a usual entry has; there is room for so many tensors at first.
const ENTRY: usize = 90;

/// What is left of a header.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Takes ASCII text. Its length is known to the compiler, so that no function compares bytes.
    fn take<const N: usize>(&mut self, literal: &[u8; N]) -> Option<()> {
        if self.rest.as_bytes().first_chunk()? != literal {
            return None;
        }
        self.rest = &self.rest[N..];
        Some(())
    }

    fn colon(&mut self) -> Option<()> {
        self.take(b":")?;
        self.space();
        Some(())
    }

    fn comma(&mut self) -> Option<()> {
        self.take(b",")?;
        self.space();
        Some(())
    }

    /// Skips a space, if there is one.
    fn space(&mut self) {
        let _ = self.take(b" ");
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b"\"")?;
        let end = self.rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | ..0x20))?;
        let (text, after) = self.rest.split_at(end);
        self.rest = after;
        self.take(b"\"")?;
        Some(text)
    }

    fn number(&mut self) -> Option<u64> {
        let end = self.rest.bytes().position(|byte| !byte.is_ascii_digit())?;
        let (digits, after) = self.rest.split_at(end);
        self.rest = after;
        let has_leading_zero = digits.len() > 1 && digits.starts_with('0');
        if has_leading_zero { None } else { digits.parse().ok() }
    }

    fn numbers(&mut self) -> Option<Vec<u64>> {
        self.take(b"[")?;
        let (mut numbers, mut count) = ([0; 8], 0); // more dimensions than usual headers have
        if self.take(b"]").is_some() {
            return Some(Vec::new());
        }
        loop {
            *numbers.get_mut(count)? = self.number()?;
            count += 1;
            if self.comma().is_none() {
                break;
            }
        }
        self.take(b"]")?;
        Some(numbers[..count].to_vec()) // without room for more
    }

    fn entry(&mut self) -> Option<HeaderEntry<'a>> {
        self.take(b"{\"dtype\"")?;
        self.colon()?;
        let dtype = Cow::Borrowed(self.string()?);
        self.comma()?;
        self.take(b"\"shape\"")?;
        self.colon()?;
        let shape = self.numbers()?;
        self.comma()?;
        self.take(b"\"data_offsets\"")?;
        self.colon()?;
        self.take(b"[")?;
        let start = self.number()?;
        self.comma()?;
        let end = self.number()?;
        self.take(b"]}")?;
        Some(HeaderEntry { dtype, shape, data_offsets: (start, end) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPACT: &str = r#"{"__metadata__":{"format":"pt","x":"a\"\u00e9"},"a.0":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"é":{"dtype":"NEW","shape":[],"data_offsets":[24,28]}}  "#;

    /// Everything that a header holds, as text.
    fn held(header: &SafetensorsHeader) -> String {
        let SafetensorsHeader { metadata, tensors, offsets, wrong, names: _, known: _ } = header;
        format!("{metadata:?} {tensors:?} {offsets:?} {wrong:?}")
    }

    #[test]
    fn both_parsers_read_the_same_from_usual_headers() {
        let spaced = COMPACT.replace(':', ": ").replace(',', ", ");
        let late = r#"{"a":{"dtype":"F16","shape":[0],"data_offsets":[0,0]},"__metadata__":null}"#;
        let wrong = r#"{"a":{"dtype":"F32","shape":[18446744073709551615,9],"data_offsets":[9,1]},"b":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#;
        for json in [COMPACT, &spaced, late, wrong] {
            let general: SafetensorsHeader = serde_json::from_str(json).unwrap();
            assert_eq!(read(json.as_bytes()).map(|header| held(&header)), Some(held(&general)), "{json}");
        }
    }

    #[test]
    fn everything_unusual_is_left_to_the_general_parser() {
        let unusual = [
            "",
            "{}",
            " {}",
            "[]",
            &COMPACT.replace("a.0", r"a\u0030"),
            &COMPACT.replace("a.0", "a\t"),
            &COMPACT.replace("24]", "24.0]"),
            &COMPACT.replace("[0,24]", "[00,24]"),
            &COMPACT.replace("[0,24]", "[0,24,0]"),
            &COMPACT.replace("[0,24]", "[0,18446744073709551616]"),
            &COMPACT.replace("[0,24]", "[,24]"),
            &COMPACT.replace("[2,3]", "[2,-3]"),
            &COMPACT.replace("[2,3]", "[2,]"),
            &COMPACT.replace(r#""dtype":"F32","#, ""),
            &COMPACT.replace("[0,24]}", r#"[0,24],"more":[]}"#),
            &COMPACT.replace("}  ", "},  "),
            &COMPACT.replace("}  ", "}  0"),
            &COMPACT.replace(r#""x""#, "x"),
            &COMPACT.replace("}}  ", "}"),
        ];
        for json in unusual {
            assert!(read(json.as_bytes()).is_none(), "{json}");
        }
        assert!(read(b"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}").is_none());
        let twice = COMPACT.replace("\"a.0\":{", "\"__metadata__\":{},\"a.0\":{");
        assert!(read(twice.as_bytes()).is_none());
    }
}
