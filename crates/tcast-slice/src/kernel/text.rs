//! Elements of type string: the output of a printer and the input of a parser.

use std::fmt::Display;
use std::io::Write;

/// The texts of consecutive elements, concatenated: UTF-8, or any other bytes in the file.
#[derive(Debug, Default)]
pub struct Texts {
    bytes: Vec<u8>,
    /// End of each text, which is the start of the next.
    ends: Vec<usize>,
}

impl Texts {
    /// Removes all texts and keeps the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Appends a text.
    pub fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    /// Appends the output of a value's `Display`.
    pub(super) fn push_shown(&mut self, value: impl Display) {
        write!(self.bytes, "{value}").expect("a Vec takes all that is written");
        self.ends.push(self.bytes.len());
    }

    /// The last text. Its length must not change.
    pub(super) fn last_mut(&mut self) -> &mut [u8] {
        let start = self.ends.iter().nth_back(1).copied().unwrap_or(0);
        &mut self.bytes[start..]
    }

    /// Number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A text by its index.
    ///
    /// # Panics
    /// When `index` is not less than the number of texts.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    /// All texts in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }
}
