//! Changes of a file of nested messages: replaces ranges of bytes, adjusts the lengths of the enclosing messages, and
//! copies everything else.

use super::super::protobuf::{MessageFields, Value, take_varint, write_bytes, write_number, write_varint};
use super::frames::Enclosed;
use super::parts::Frame;
use crate::error::Result;
use std::cmp::Reverse;
use std::ops::Range;

/// The replacement of some bytes.
#[derive(Clone, Debug)]
pub(super) enum New {
    Bytes(Vec<u8>),
    /// The elements at a place: the index of the place, and the length of the elements.
    Elements(usize, u64),
}

/// A part of the changed file.
#[derive(Debug)]
pub(super) enum FilePart {
    /// Bytes of the old file.
    Copied(Range<usize>),
    New(New),
}

/// Function that returns the replacement of a field; `None` to copy it.
pub(super) type FieldChange<'a> = dyn Fn(u64, &Value) -> Result<Option<Vec<u8>>> + 'a;

/// Returns the body of a small message with some fields replaced.
pub(super) fn rebuilt(file: &[u8], body: &Range<usize>, change: &FieldChange) -> Result<Vec<u8>> {
    let mut new = Vec::new();
    for field in MessageFields::new(file, body.clone()).with_ranges() {
        let (range, field, value) = field?;
        match change(field, &value)? {
            Some(changed) => new.extend(changed),
            None => new.extend_from_slice(&file[range]),
        }
    }
    Ok(new)
}

pub(super) fn bytes_field(field: u64, bytes: &[u8]) -> Vec<u8> {
    let mut new = Vec::new();
    write_bytes(&mut new, field, bytes);
    new
}

pub(super) fn number_field(field: u64, number: u64) -> Vec<u8> {
    let mut new = Vec::new();
    write_number(&mut new, field, number);
    new
}

/// A list of changes of a file.
pub(super) struct Edits<'a> {
    pub(super) file: &'a [u8],
    frames: &'a [Enclosed],
    /// The replaced range, the innermost enclosing message, and the replacement.
    all: Vec<(Range<usize>, Option<usize>, Vec<New>)>,
}

impl<'a> Edits<'a> {
    pub(super) fn new(file: &'a [u8], frames: &'a [Enclosed]) -> Self {
        Self { file, frames, all: Vec::new() }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &'a [u8] {
        &self.file[range]
    }

    /// Replaces a range within a message; `None` is the file itself.
    pub(super) fn replace(&mut self, range: Range<usize>, within: Option<usize>, new: Vec<New>) {
        // Adjacent fields that are removed form one range.
        if let Some((last, last_within, known)) = self.all.last_mut()
            && (known.is_empty() && new.is_empty() && *last_within == within && last.end == range.start)
        {
            last.end = range.end;
            return;
        }
        self.all.push((range, within, new));
    }

    pub(super) fn pieces(mut self) -> Result<Vec<FilePart>> {
        self.follow_lengths()?;
        let depth = |mut frame: Option<usize>| {
            let mut depth = 0;
            while let Some(inner) = frame {
                depth += 1;
                frame = self.frames[inner].parent;
            }
            depth
        };
        // At the same position, insertions into the innermost message come first.
        self.all.sort_by_cached_key(|(range, within, _)| (range.start, !range.is_empty(), Reverse(depth(*within))));
        let mut pieces = Vec::new();
        let mut copied = 0;
        for (range, _, new) in self.all {
            if copied < range.start {
                pieces.push(FilePart::Copied(copied..range.start));
            }
            copied = range.end;
            pieces.extend(new.into_iter().map(FilePart::New));
        }
        if copied < self.file.len() {
            pieces.push(FilePart::Copied(copied..self.file.len()));
        }
        Ok(pieces)
    }

    /// Rewrites the lengths of all messages with changes in them.
    fn follow_lengths(&mut self) -> Result<()> {
        let mut growth = vec![0_i64; self.frames.len()];
        let mut is_changed = vec![false; self.frames.len()];
        for (range, within, new) in &self.all {
            if let Some(within) = within {
                let len: u64 = new.iter().map(New::len).sum();
                growth[*within] += len as i64 - range.len() as i64;
                is_changed[*within] = true;
            }
        }
        // Inner messages come after outer ones.
        for (at, Enclosed { frame: Frame { start, body }, parent }) in self.frames.iter().enumerate().rev() {
            if !is_changed[at] {
                continue;
            }
            let mut head = &self.file[*start..body.start];
            let before = head;
            take_varint(&mut head)?;
            let mut new = before[..before.len() - head.len()].to_vec();
            if growth[at] != 0 {
                write_varint(&mut new, (body.len() as i64 + growth[at]) as u64);
                if let Some(parent) = parent {
                    growth[*parent] += growth[at] + new.len() as i64 - before.len() as i64;
                    is_changed[*parent] = true;
                }
                self.all.push((*start..body.start, *parent, vec![New::Bytes(new)]));
            }
        }
        Ok(())
    }
}

impl New {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Elements(_, len) => *len,
        }
    }
}
