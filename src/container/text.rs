//! Texts, which containers read one by one.

use crate::error::Error;

/// The most bytes that a stored text may have: a batch of texts is held in memory.
pub(crate) const MAX_TEXT: u64 = 16 << 20;

/// Provides the next bytes of a source.
pub(super) type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<(), Error> + 'a;

/// Why a text could not be read.
#[derive(Debug)]
pub enum TextError {
    /// What is wrong with the text itself.
    Malformed(String),
    /// Its bytes could not be read.
    Source(Error),
}

impl From<Error> for TextError {
    fn from(error: Error) -> Self {
        Self::Source(error)
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
