//! Elements of text, which containers read one by one.

use crate::error::Error;

/// Maximum size of a stored text in bytes: a batch of texts is held in memory.
pub(crate) const MAX_TEXT: u64 = 16 << 20;

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
