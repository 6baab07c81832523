//! The header of a .npy file: a Python dictionary of three values.

use super::MAGIC;
use crate::error::{Error, Result};
use crate::text::shorten;

/// Maximum length of a header; numpy's own default is 10,000 characters.
const MAX_HEADER: usize = 1 << 20;

/// Maximum number of literals in a header. Each takes 16 times the memory of its text, and an array in an archive can
/// have a header of a MiB that is compressed to almost nothing.
const MAX_LITERALS: usize = 1 << 14;

/// Reads the header. Returns its text and the offset of the data.
pub(super) fn header_text(file_len: u64, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<(String, usize)> {
    let cut_short = || Error::new("the file ends inside its header");
    let mut start = [0; 8];
    fill(&mut start).map_err(|_| cut_short())?;
    if !start.starts_with(MAGIC) {
        return Err(Error::new("does not start as a .npy file does"));
    }
    let [.., major, minor] = start;
    let width = match (major, minor) {
        (1, 0) => 2,
        (2 | 3, 0) => 4,
        _ => return Err(Error::new(format!("npy format version {major}.{minor}: there are 1.0, 2.0 and 3.0"))),
    };
    let mut length = [0; 4];
    fill(&mut length[..width]).map_err(|_| cut_short())?;
    let (length, start) = (u32::from_le_bytes(length) as usize, 8 + width);
    if start as u64 + length as u64 > file_len {
        return Err(cut_short());
    }
    if length > MAX_HEADER {
        return Err(Error::new(format!("a header of {length} bytes; at most {MAX_HEADER} are read")));
    }
    let mut text = vec![0; length];
    fill(&mut text)?;
    let text = if major == 3 {
        String::from_utf8(text).map_err(|_| Error::new("the header is not UTF-8"))?
    } else {
        text.into_iter().map(char::from).collect() // latin-1
    };
    // Newline translation damages a file by shifting its data by a byte: the header no longer ends in a newline.
    match text.strip_suffix('\n') {
        Some(text) if !text.ends_with('\r') => Ok((text.to_owned(), start + length)),
        _ => Err(Error::new("the header does not end in a newline: was the file copied in text mode?")),
    }
}

/// The three values of a header.
pub(super) struct NpyHeader {
    pub(super) descr: PythonLiteral,
    pub(super) fortran_order: bool,
    pub(super) shape: Vec<u64>,
}

impl NpyHeader {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let malformed = |what: &str| Error::new(format!("malformed header: {what}"));
        let mut parser = LiteralParser { rest: text, left: MAX_LITERALS };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        parser.expect('{')?;
        while !parser.accept('}') {
            let PythonLiteral::Text(key) = parser.literal(0)? else { return Err(malformed("a key is not a string")) };
            parser.expect(':')?;
            let value = parser.literal(0)?;
            let slot = match key.as_str() {
                "descr" => &mut descr,
                "fortran_order" => &mut fortran_order,
                "shape" => &mut shape,
                _ => return Err(malformed(&format!("unknown key '{}'", shorten(&key)))),
            };
            if slot.replace(value).is_some() {
                return Err(malformed(&format!("'{key}' appears twice")));
            }
            if !parser.accept(',') {
                parser.expect('}')?;
                break;
            }
        }
        if !parser.rest.trim().is_empty() {
            return Err(malformed("something follows the dictionary"));
        }
        let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
            return Err(malformed("one of 'descr', 'fortran_order' and 'shape' is missing"));
        };
        let PythonLiteral::Bool(fortran_order) = fortran_order else {
            return Err(malformed("'fortran_order' is neither True nor False"));
        };
        let PythonLiteral::Tuple(lengths) = shape else { return Err(malformed("'shape' is not a tuple")) };
        let shape = lengths.into_iter().map(|length| match length {
            PythonLiteral::Int(length) => Ok(length),
            _ => Err(malformed("a length in 'shape' is not a number")),
        });
        Ok(Self { descr, fortran_order, shape: shape.collect::<Result<_>>()? })
    }
}

/// The Python literals that occur in a header.
#[derive(Debug)]
pub(super) enum PythonLiteral {
    Text(String),
    Bool(bool),
    Int(u64),
    Tuple(Vec<PythonLiteral>),
    List(Vec<PythonLiteral>),
}

impl PythonLiteral {
    /// Returns the strings in the literal, separated by spaces; a supported `descr` contains nothing else.
    pub(super) fn text(&self) -> String {
        let join = |items: &[Self]| items.iter().map(Self::text).collect::<Vec<_>>().join(" ");
        match self {
            Self::Text(text) => text.clone(),
            Self::Tuple(items) | Self::List(items) => join(items),
            Self::Bool(_) | Self::Int(_) => String::new(),
        }
    }
}

struct LiteralParser<'a> {
    rest: &'a str,
    /// Number of literals that may still be read.
    left: usize,
}

impl LiteralParser<'_> {
    fn accept(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.accept(wanted) { Ok(()) } else { Err(self.unexpected(&format!("'{wanted}'"))) }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let found: String = self.rest.chars().take(20).collect();
        Error::new(format!("malformed header: {wanted} expected at '{}'", found.escape_debug()))
    }

    fn literal(&mut self, depth: u32) -> Result<PythonLiteral> {
        /// Maximum nesting: a record's field is a tuple in a list, and no supported literal is nested deeper.
        const MAX_DEPTH: u32 = 4;
        if depth > MAX_DEPTH {
            return Err(Error::new("malformed header: brackets are nested too deep"));
        }
        let Some(left) = self.left.checked_sub(1) else {
            return Err(Error::new(format!("malformed header: more than {MAX_LITERALS} values")));
        };
        self.left = left;
        if self.accept('(') {
            return self.items(')', depth).map(PythonLiteral::Tuple);
        }
        if self.accept('[') {
            return self.items(']', depth).map(PythonLiteral::List);
        }
        for quote in ['\'', '"'] {
            if self.accept(quote) {
                let end = self.rest.find(quote).ok_or_else(|| self.unexpected("a closing quote"))?;
                let text = &self.rest[..end];
                if text.contains('\\') {
                    return Err(self.unexpected("a string without escapes"));
                }
                self.rest = &self.rest[end + 1..];
                return Ok(PythonLiteral::Text(text.to_owned()));
            }
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word {
            "True" => PythonLiteral::Bool(true),
            "False" => PythonLiteral::Bool(false),
            _ => {
                let digits = word.strip_suffix('L').unwrap_or(word); // Python 2 wrote this suffix for long integers
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let is_plain = is_number && (digits == "0" || !digits.starts_with('0'));
                if !is_plain {
                    return Err(self.unexpected("a string, number, tuple, list, True or False"));
                }
                PythonLiteral::Int(digits.parse().map_err(|_| self.unexpected("a number of 64 bits"))?)
            }
        };
        self.rest = rest;
        Ok(value)
    }

    fn items(&mut self, close: char, depth: u32) -> Result<Vec<PythonLiteral>> {
        let mut items = Vec::new();
        while !self.accept(close) {
            items.push(self.literal(depth + 1)?);
            if !self.accept(',') {
                self.expect(close)?;
                // `(3)` is a number in Python, not a tuple.
                if close == ')' && items.len() == 1 {
                    return Err(self.unexpected("',' before the bracket"));
                }
                break;
            }
        }
        Ok(items)
    }
}

/// Returns the header exactly as numpy writes it: space for the first length to grow to 21 digits, then spaces (at
/// least one) up to a multiple of 64 bytes, then a newline.
pub(super) fn write_header(descr: &str, fortran_order: bool, shape: &[u64]) -> Vec<u8> {
    const ALIGNMENT: usize = 64;
    const GROWTH_DIGITS: usize = 21;
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if lengths.len() == 1 { "," } else { "" };
    let order = if fortran_order { "True" } else { "False" };
    let mut text =
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': ({}{comma}), }}", lengths.join(", "));
    let growing = if fortran_order { lengths.last() } else { lengths.first() };
    if let Some(growing) = growing {
        text.push_str(&" ".repeat(GROWTH_DIGITS - growing.len()));
    }
    let prefix = MAGIC.len() + 4;
    text.push_str(&" ".repeat(ALIGNMENT - (prefix + text.len() + 1) % ALIGNMENT));
    text.push('\n');
    // With 64 dimensions of 20 digits a header has 1500 bytes, so version 1.0, with 2 bytes for the length, suffices.
    [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}
