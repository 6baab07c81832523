//! How texts lie in bytes: in numpy's fixed widths, or as the fields of a protobuf message.

use super::Texts;
use crate::error::Error;

/// The most bytes that a text may take, as it is stored: a batch of texts is held in memory.
pub(crate) const MAX_TEXT: u64 = 16 << 20;
/// Code points that are decoded at a time.
const CHUNK: usize = 256;

/// How the texts of a tensor lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextForm {
    /// numpy's `<U`: so many code points of 4 bytes each, filled up with NULs.
    CodePoints {
        /// Code points of every element.
        width: u32,
        /// Most significant byte first; of sources only.
        big_endian: bool,
    },
    /// numpy's `|S`: so many bytes without an encoding, filled up with NULs.
    Bytes {
        /// Bytes of every element.
        width: u32,
    },
    /// Fields of a protobuf message, each a tag of one byte, a length and the text.
    Fields {
        /// The field's tag.
        tag: u8,
    },
}

/// Why a text could not be read.
#[derive(Debug)]
pub enum TextError {
    /// What is wrong with the text itself.
    Malformed(String),
    /// Its bytes could not be had.
    Source(Error),
}

impl From<Error> for TextError {
    fn from(error: Error) -> Self {
        Self::Source(error)
    }
}

/// What is to be known of a tensor's texts before a file can be laid out for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextExtent {
    /// Code points of the longest, where all texts are UTF-8.
    pub longest_chars: u32,
    /// Bytes of the longest.
    pub longest_bytes: u32,
    /// Bytes of all texts as fields of a protobuf message.
    pub field_bytes: u64,
    /// The texts are bytes without an encoding: they were so in the source, or one of them is not UTF-8.
    pub is_binary: bool,
    /// The first element that ends in a NUL, which a fixed width cannot tell from its filling.
    pub first_with_final_nul: Option<u64>,
}

impl TextExtent {
    /// Takes one more text into account, which is element `index`.
    pub fn add(&mut self, index: u64, text: &[u8]) {
        match std::str::from_utf8(text) {
            Ok(text) => self.longest_chars = self.longest_chars.max(text.chars().count() as u32),
            Err(_) => self.is_binary = true,
        }
        self.longest_bytes = self.longest_bytes.max(text.len() as u32);
        self.field_bytes += 1 + u64::from(varint(text.len() as u64).1) + text.len() as u64;
        if text.last() == Some(&0) {
            self.first_with_final_nul.get_or_insert(index);
        }
    }
}

impl TextForm {
    /// Bytes that `count` elements take. `None` when the number does not fit in 64 bits, or depends on the texts.
    #[must_use]
    pub fn bytes(self, count: u64) -> Option<u64> {
        match self {
            Self::CodePoints { width, .. } => count.checked_mul(4 * u64::from(width)),
            Self::Bytes { width } => count.checked_mul(width.into()),
            Self::Fields { .. } => None,
        }
    }

    /// Reads the next text; `fill` gives the source's next bytes.
    ///
    /// # Errors
    /// When the bytes are no text, a text is longer than [`MAX_TEXT`], or `fill` fails.
    pub fn read(
        self,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
        scratch: &mut Vec<u8>,
        texts: &mut Texts,
    ) -> Result<(), TextError> {
        scratch.clear();
        let length = match self {
            Self::CodePoints { width, big_endian } => return read_code_points(width, big_endian, fill, scratch, texts),
            Self::Bytes { width } => width.into(),
            Self::Fields { .. } => {
                fill(&mut [0])?; // the tag
                read_varint(fill)?
            }
        };
        if length > MAX_TEXT {
            return Err(TextError::Malformed(format!("a text of {length} bytes; at most {MAX_TEXT} are read")));
        }
        scratch.resize(length as usize, 0);
        fill(scratch)?;
        if matches!(self, Self::Bytes { .. }) {
            let end = scratch.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            scratch.truncate(end);
        }
        texts.push(scratch);
        Ok(())
    }

    /// Appends the bytes of one text. A fixed width must be enough for it, and a form of code points wants UTF-8.
    pub fn write(self, text: &[u8], output: &mut Vec<u8>) {
        match self {
            Self::CodePoints { width, .. } => {
                let end = output.len() + 4 * width as usize;
                for char in String::from_utf8_lossy(text).chars() {
                    output.extend_from_slice(&u32::from(char).to_le_bytes());
                }
                output.resize(end, 0);
            }
            Self::Bytes { width } => {
                let end = output.len() + width as usize;
                output.extend_from_slice(text);
                output.resize(end, 0);
            }
            Self::Fields { tag } => {
                let (bytes, length) = varint(text.len() as u64);
                output.push(tag);
                output.extend_from_slice(&bytes[..length as usize]);
                output.extend_from_slice(text);
            }
        }
    }
}

/// NULs count only where something follows them, so that memory is that of the text and not of its width.
fn read_code_points(
    width: u32,
    big_endian: bool,
    fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>,
    text: &mut Vec<u8>,
    texts: &mut Texts,
) -> Result<(), TextError> {
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
                return Err(TextError::Malformed(format!("{code:#x} is no Unicode character")));
            };
            text.resize(text.len() + std::mem::take(&mut nuls), 0);
            text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    texts.push(text);
    Ok(())
}

/// A protobuf varint and how many of the bytes it takes.
#[must_use]
pub(crate) fn varint(mut value: u64) -> ([u8; 10], u8) {
    let mut bytes = [0; 10];
    let mut length = 0;
    loop {
        bytes[length] = value as u8 & 0x7f;
        value >>= 7;
        length += 1;
        if value == 0 {
            return (bytes, length as u8);
        }
        bytes[length - 1] |= 0x80;
    }
}

fn read_varint(fill: &mut dyn FnMut(&mut [u8]) -> Result<(), Error>) -> Result<u64, TextError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        fill(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(TextError::Malformed("its length does not end".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let long = "é".repeat(CHUNK + 5);
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
            assert_eq!((extent.longest_chars, extent.longest_bytes), (CHUNK as u32 + 5, 2 * CHUNK as u32 + 10));
            assert!(!extent.is_binary && extent.first_with_final_nul.is_none());
        }
    }

    #[test]
    fn code_points_are_read_in_both_byte_orders_and_checked() {
        let form = TextForm::CodePoints { width: 2, big_endian: true };
        assert_eq!(read(form, &[0, 0, 0x65, 0xe5, 0, 0, 0, 0], 1).unwrap().get(0), "日".as_bytes());
        let form = TextForm::CodePoints { width: 1, big_endian: false };
        for code in [0xd800_u32, 0x0011_0000] {
            assert!(matches!(read(form, &code.to_le_bytes(), 1), Err(TextError::Malformed(_))), "{code:#x}");
        }
    }

    #[test]
    fn final_nuls_are_noticed_where_they_would_be_lost() {
        let mut extent = TextExtent::default();
        for (index, text) in [b"a".as_slice(), b"a\0b", b"a\0", b"\0"].into_iter().enumerate() {
            extent.add(index as u64, text);
        }
        assert_eq!(extent.first_with_final_nul, Some(2));
        extent.add(4, b"\xff");
        assert!(extent.is_binary);
    }
}
