//! Elements of text: their storage in each format, in which they are read and written one by one.

use super::onnx::protobuf;
use crate::error::Error;
use crate::kernel::Texts;

/// Maximum size of a stored text in bytes: a batch of texts is held in memory.
pub(super) const MAX_TEXT: u64 = 16 << 20;

/// Function that provides the next bytes of a source.
pub(super) type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<(), Error> + 'a;

/// Reason why a text could not be read.
#[derive(Debug)]
pub enum TextError {
    /// The text itself is malformed, for this reason.
    Malformed(String),
    /// The bytes of the text could not be read.
    Source(Error),
}

#[doc(hidden)] // otherwise listed with `Error`
impl From<Error> for TextError {
    fn from(error: Error) -> Self {
        Self::Source(error)
    }
}

/// Storage of the texts of a tensor in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextForm {
    /// numpy's `<U`: a fixed number of code points of 4 bytes each, padded with NULs.
    CodePoints {
        /// Number of code points in every element.
        width: u32,
        /// Most significant byte first; only in sources.
        big_endian: bool,
    },
    /// numpy's `|S`: a fixed number of bytes without an encoding, padded with NULs.
    Bytes {
        /// Number of bytes in every element.
        width: u32,
    },
    /// Fields of a protobuf message, each a tag of one byte, a length and the text.
    Fields {
        /// The field's tag.
        tag: u8,
    },
}

impl TextForm {
    /// Size of `count` elements in bytes. `None` if the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::CodePoints { width, .. } => count.checked_mul(4 * u64::from(width)),
            Self::Bytes { width } => count.checked_mul(width.into()),
            Self::Fields { .. } => None,
        }
    }

    /// Reads the next text; `fill` provides the source's next bytes.
    pub fn read(self, fill: &mut Fill, scratch: &mut Vec<u8>, texts: &mut Texts) -> Result<(), TextError> {
        scratch.clear();
        match self {
            Self::CodePoints { width, big_endian } => read_code_points(width, big_endian, fill, scratch)?,
            Self::Bytes { width } => {
                read_bytes(width.into(), fill, scratch)?;
                let end = scratch.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                scratch.truncate(end);
            }
            Self::Fields { .. } => protobuf::read_text(fill, scratch)?,
        }
        texts.push(scratch);
        Ok(())
    }

    /// Appends the bytes of one text. A fixed width must be sufficient, and a form of code points requires UTF-8.
    pub(crate) fn write(self, text: &[u8], output: &mut Vec<u8>) {
        let start = output.len();
        match self {
            Self::CodePoints { .. } => {
                output.extend(String::from_utf8_lossy(text).chars().flat_map(|char| u32::from(char).to_le_bytes()));
            }
            Self::Bytes { .. } => output.extend_from_slice(text),
            Self::Fields { tag } => protobuf::write_text(tag, text, output),
        }
        if let Some(bytes) = self.bytes(1) {
            output.resize(start + bytes as usize, 0);
        }
    }
}

/// Fills `text` with the next `length` bytes.
pub(super) fn read_bytes(length: u64, fill: &mut Fill, text: &mut Vec<u8>) -> Result<(), TextError> {
    if length > MAX_TEXT {
        return Err(TextError::Malformed(format!("a text of {length} bytes; at most {MAX_TEXT} are read")));
    }
    text.resize(length as usize, 0);
    Ok(fill(text)?)
}

/// Number of code points that are decoded at a time.
const CHUNK: usize = 256;

/// Reads a text of code points. NULs are appended only when another character follows them, so that memory depends on the text and not
/// on its width.
fn read_code_points(width: u32, big_endian: bool, fill: &mut Fill, text: &mut Vec<u8>) -> Result<(), TextError> {
    let mut left = width as usize;
    let mut nuls = 0;
    let mut chunk = [0; 4 * CHUNK];
    while left > 0 {
        let taken = left.min(CHUNK);
        fill(&mut chunk[..4 * taken])?;
        left -= taken;
        for bytes in chunk[..4 * taken].as_chunks().0 {
            let code = if big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
            if code == 0 {
                nuls += 1;
                continue;
            }
            let Some(char) = char::from_u32(code) else {
                return Err(TextError::Malformed(format!("{code:#x} is not a Unicode character")));
            };
            text.resize(text.len() + std::mem::take(&mut nuls), 0);
            text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(())
}

/// Measures of a tensor's texts, which the layout of a file requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextExtent {
    /// Number of code points in the longest text, if all texts are UTF-8.
    pub longest_chars: u32,
    pub longest_bytes: u32,
    /// Size in bytes of all texts as fields of a protobuf message.
    pub field_bytes: u64,
    /// True if the texts are bytes without an encoding: the source stores them in this way, or one of them is not
    /// UTF-8.
    pub is_binary: bool,
    /// The first element that ends in a NUL, which a fixed width cannot distinguish from padding.
    pub first_with_final_nul: Option<u64>,
}

impl TextExtent {
    /// Adds the text of element `index`.
    pub fn add(&mut self, index: u64, text: &[u8]) {
        match std::str::from_utf8(text) {
            Ok(text) => self.longest_chars = self.longest_chars.max(text.chars().count() as u32),
            Err(_) => self.is_binary = true,
        }
        self.longest_bytes = self.longest_bytes.max(text.len() as u32);
        self.field_bytes += protobuf::text_bytes(text.len() as u64);
        if text.last() == Some(&0) {
            self.first_with_final_nul.get_or_insert(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of characters that are decoded at a time.
    const LONG: usize = 256;

    fn read(form: TextForm, mut bytes: &[u8], count: usize) -> Result<Texts, TextError> {
        let (mut texts, mut scratch) = (Texts::default(), Vec::new());
        let mut fill = |buffer: &mut [u8]| -> Result<(), Error> {
            let (now, later) = bytes.split_at_checked(buffer.len()).ok_or_else(|| Error::new("ends"))?;
            buffer.copy_from_slice(now);
            bytes = later;
            Ok(())
        };
        for _ in 0..count {
            form.read(&mut fill, &mut scratch, &mut texts)?;
        }
        Ok(texts)
    }

    #[test]
    fn every_form_gives_back_what_was_written() {
        let words = ["", "a", "日本 😀", "inner\0nul"].map(str::as_bytes);
        let long = "é".repeat(LONG + 5);
        let forms = [
            TextForm::CodePoints { width: 300, big_endian: false },
            TextForm::Bytes { width: 600 },
            TextForm::Fields { tag: 0x32 },
        ];
        for form in forms {
            let mut bytes = Vec::new();
            let mut extent = TextExtent::default();
            let words: Vec<&[u8]> = words.into_iter().chain([long.as_bytes()]).collect();
            for (index, word) in words.iter().enumerate() {
                form.write(word, &mut bytes);
                extent.add(index as u64, word);
            }
            assert_eq!(bytes.len() as u64, form.bytes(5).unwrap_or(extent.field_bytes));
            let texts = read(form, &bytes, words.len()).unwrap();
            assert_eq!(texts.iter().collect::<Vec<_>>(), words);
            assert_eq!((extent.longest_chars, extent.longest_bytes), (LONG as u32 + 5, 2 * LONG as u32 + 10));
            assert!(!extent.is_binary && extent.first_with_final_nul.is_none());
        }
    }
}
