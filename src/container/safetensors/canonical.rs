//! A reader of headers as nearly all programs write them, without a general parser of JSON: three times as fast, which
//! matters for a hundred thousand tensors.

use super::{HeaderEntry, METADATA, SafetensorsHeader};
use crate::container::json::StringPairs;
use crate::container::names::NameHashes;
use crate::threads;

/// Reads a header whose entries look like `"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}`, with or without
/// a space after each comma and colon. `None` if anything looks different: then the header is valid JSON in another
/// form, or wrong, and the general parser determines which.
///
/// Several threads read one part each of a long header.
pub(super) fn read(json: &[u8], threads: usize) -> Option<SafetensorsHeader> {
    let parts = threads.min(json.len() / PART);
    // A name or the metadata may contain text that looks like the end of an entry.
    let in_parts = if parts > 1 { read_parts(json, parts) } else { None };
    in_parts.or_else(|| read_parts(json, 1))
}

/// Minimum number of header bytes for each thread.
const PART: usize = 1 << 20;

pub(super) fn read_parts(json: &[u8], count: usize) -> Option<SafetensorsHeader> {
    let (parts, names) = (divide(json.strip_prefix(b"{")?, count), NameHashes::default());
    let read = |at: usize| {
        // The other parts will be appended to the first.
        let len = if at == 0 { json.len() } else { parts[at].len() };
        read_part(parts[at], SafetensorsHeader::with_capacity(len / ENTRY, &names))
    };
    let mut read = threads::each(count, parts.len(), read).into_iter();
    let mut whole = read.next()??;
    for next in read {
        let next = next?;
        if !whole.rest.is_empty() || whole.has_metadata && next.has_metadata {
            return None;
        }
        whole.header.append(next.header);
        (whole.rest, whole.has_metadata) = (next.rest, whole.has_metadata || next.has_metadata);
    }
    let is_padding = |byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    whole.rest.strip_prefix('}')?.bytes().all(is_padding).then_some(whole.header)
}

/// Divides a header after text that looks like the end of an entry. Reading the part before shows whether it is one.
fn divide(json: &[u8], count: usize) -> Vec<&[u8]> {
    const END: &[u8] = b"]},";
    let (mut parts, mut rest) = (Vec::new(), json);
    for left in (2..=count).rev() {
        let middle = rest.len() / left;
        let Some(end) = rest[middle..].windows(END.len()).position(|bytes| bytes == END) else { break };
        let end = middle + end + END.len();
        let (part, others) = rest.split_at(end + usize::from(rest.get(end) == Some(&b' ')));
        parts.push(part);
        rest = others;
    }
    parts.push(rest);
    parts
}

/// Some entries of a header.
struct HeaderPart<'a> {
    header: SafetensorsHeader,
    has_metadata: bool,
    /// Text after the last entry and its comma.
    rest: &'a str,
}

fn read_part(json: &[u8], mut header: SafetensorsHeader) -> Option<HeaderPart<'_>> {
    let mut cursor = Cursor { rest: std::str::from_utf8(json).ok()? };
    let mut has_metadata = false;
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
            cursor.entry(|entry| header.add(name, &entry))?;
        }
        if cursor.comma().is_none() || cursor.rest.is_empty() {
            return Some(HeaderPart { header, has_metadata, rest: cursor.rest });
        }
    }
}

/// The approximate length of a usual entry, from which the number of tensors is estimated.
const ENTRY: usize = 90;

/// The unread rest of a header.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Takes ASCII text. The compiler knows its length, so that no function compares bytes.
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

    fn space(&mut self) {
        let _ = self.take(b" ");
    }

    /// Reads a string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        self.take(b"\"")?;
        let end = self.rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | ..0x20))?;
        let (text, after) = self.rest.split_at(end);
        self.rest = after;
        self.take(b"\"")?;
        Some(text)
    }

    fn number(&mut self) -> Option<u64> {
        let (mut number, mut len) = (0_u64, 0);
        for byte in self.rest.bytes() {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            number = number.checked_mul(10)?.checked_add(digit.into())?;
            len += 1;
        }
        let has_leading_zero = len > 1 && self.rest.as_bytes()[0] == b'0';
        self.rest = &self.rest[len..];
        if has_leading_zero || len == 0 { None } else { Some(number) }
    }

    /// Reads a list into the first of these numbers; returns its length.
    fn numbers(&mut self, numbers: &mut [u64]) -> Option<usize> {
        self.take(b"[")?;
        let mut count = 0;
        if self.take(b"]").is_some() {
            return Some(count);
        }
        loop {
            *numbers.get_mut(count)? = self.number()?;
            count += 1;
            if self.comma().is_none() {
                break;
            }
        }
        self.take(b"]")?;
        Some(count)
    }

    fn entry(&mut self, add: impl FnOnce(HeaderEntry)) -> Option<()> {
        self.take(b"{\"dtype\"")?;
        self.colon()?;
        let dtype = self.string()?;
        self.comma()?;
        self.take(b"\"shape\"")?;
        self.colon()?;
        let mut shape = [0; 8]; // more dimensions than usual headers have
        let rank = self.numbers(&mut shape)?;
        self.comma()?;
        self.take(b"\"data_offsets\"")?;
        self.colon()?;
        self.take(b"[")?;
        let start = self.number()?;
        self.comma()?;
        let end = self.number()?;
        self.take(b"]}")?;
        add(HeaderEntry { dtype, shape: &shape[..rank], data_offsets: (start, end) });
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPACT: &str = r#"{"__metadata__":{"format":"pt","x":"a\"\u00e9"},"a.0":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"é":{"dtype":"NEW","shape":[],"data_offsets":[24,28]}}  "#;

    #[test]
    fn both_parsers_read_the_same_from_usual_headers() {
        let spaced = COMPACT.replace(':', ": ").replace(',', ", ");
        let late = r#"{"a":{"dtype":"F16","shape":[0],"data_offsets":[0,0]},"__metadata__":null}"#;
        let wrong = r#"{"a":{"dtype":"F32","shape":[18446744073709551615,9],"data_offsets":[9,1]},"b":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#;
        for json in [COMPACT, &spaced, late, wrong] {
            let general: SafetensorsHeader = serde_json::from_str(json).unwrap();
            for parts in 1..6 {
                let read = read_parts(json.as_bytes(), parts).map(|header| header.describe());
                assert_eq!(read, Some(general.describe()), "{json} in {parts} parts");
            }
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
            assert!((1..6).all(|parts| read_parts(json.as_bytes(), parts).is_none()), "{json}");
        }
        assert!(read_parts(b"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1).is_none());
        let twice = COMPACT.replace("\"a.0\":{", "\"__metadata__\":{},\"a.0\":{");
        assert!((1..6).all(|parts| read_parts(twice.as_bytes(), parts).is_none()));
    }

    #[test]
    fn a_name_that_looks_like_the_end_of_an_entry_is_read_whole_by_any_number_of_threads() {
        let entry =
            |at: usize| format!(r#""]}},{at}]}}, ":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1);
        let json = format!("{{{}}}", (0..60_000).map(entry).collect::<Vec<_>>().join(","));
        assert!(json.len() > 3 * PART);
        for threads in [1, 2, 3, 8] {
            let header = read(json.as_bytes(), threads).unwrap();
            assert_eq!((header.tensors.len(), header.offsets.len()), (60_000, 60_000));
            assert!(header.tensors.iter().enumerate().all(|(at, tensor)| *tensor.name == *format!("]}},{at}]}}, ")));
        }
    }

    #[test]
    fn threads_read_the_same_as_one() {
        let entry = |at: usize| {
            let metadata = if at == 30_000 { r#""__metadata__":{"format":"pt"},"# } else { "" };
            format!(
                r#"{metadata}"layers.{at}.weight":{{"dtype":"F32","shape":[1,{at}],"data_offsets":[{},{}]}}"#,
                at * 4,
                at * 8
            )
        };
        for comma in [",", ", "] {
            let json = format!("{{{}}}  ", (0..60_000).map(entry).collect::<Vec<_>>().join(comma));
            let alone = read_parts(json.as_bytes(), 1).unwrap();
            for count in [2, 3, 8] {
                let header = read_parts(json.as_bytes(), count).unwrap();
                assert!(header.describe() == alone.describe());
                assert_eq!(divide(json.as_bytes(), count).len(), count);
            }
            assert_eq!(alone.names.repeated(alone.tensors.iter().map(|tensor| &*tensor.name)), None);
            let again = json.replace("layers.59000.weight", "layers.7.weight");
            let header = read_parts(again.as_bytes(), 2).unwrap();
            let repeated = header.names.repeated(header.tensors.iter().map(|tensor| &*tensor.name));
            assert_eq!(repeated, Some("layers.7.weight"));
            let metadata = json.replace(r#""layers.9.weight":"#, r#""__metadata__":{},"layers.9.weight":"#);
            assert!((1..4).all(|count| read_parts(metadata.as_bytes(), count).is_none()));
        }
    }
}
