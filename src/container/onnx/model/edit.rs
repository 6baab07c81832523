//! Edits of a file of nested messages: ranges of bytes are replaced, the lengths of the enclosing messages follow, and
//! everything else is copied.

use super::super::super::{Placement, too_long};
use super::super::protobuf::{Value, take_varint, write_varint};
use super::graph::ModelGraph;
use super::messages::{FILE, Message};
use crate::error::Result;
use std::cmp::Reverse;
use std::ops::Range;

/// The replacement of some bytes.
#[derive(Debug)]
pub(super) enum New {
    Bytes(Vec<u8>),
    /// The elements at a place of the new file.
    Elements {
        place: usize,
        len: u64,
    },
}

impl New {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Elements { len, .. } => *len,
        }
    }
}

struct Edit {
    range: Range<usize>,
    /// The innermost message that encloses the range.
    message: usize,
    new: New,
}

/// The edits of a model.
pub(super) struct Edits<'g, 'a> {
    graph: &'g ModelGraph<'a>,
    all: Vec<Edit>,
}

/// The parts of the new file, with their offsets.
#[derive(Default)]
pub(super) struct EditedFile {
    pub literals: Vec<(u64, Vec<u8>)>,
    /// Ranges of the old file.
    pub copies: Vec<(u64, Range<usize>)>,
    pub len: u64,
}

impl<'g, 'a> Edits<'g, 'a> {
    pub(super) fn new(graph: &'g ModelGraph<'a>) -> Self {
        Self { graph, all: Vec::new() }
    }

    /// Replaces a range within a message.
    pub(super) fn replace(&mut self, range: Range<usize>, message: usize, new: Vec<u8>) {
        // Adjacent fields that are removed form one range.
        if let Some(Edit { range: last, message: last_message, new: New::Bytes(bytes) }) = self.all.last_mut()
            && (bytes.is_empty() && new.is_empty() && *last_message == message && last.end == range.start)
        {
            last.end = range.end;
            return;
        }
        self.all.push(Edit { range, message, new: New::Bytes(new) });
    }

    /// Inserts bytes and elements into a message, after earlier insertions at this position.
    pub(super) fn insert(&mut self, at: usize, message: usize, new: impl IntoIterator<Item = New>) {
        self.all.extend(new.into_iter().map(|new| Edit { range: at..at, message, new }));
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, message: usize) {
        let Message { start, body, parent, .. } = &self.graph.messages[message];
        self.replace(*start..body.end, *parent, Vec::new());
    }

    /// Replaces the fields of a message for which `change` returns new bytes.
    pub(super) fn replace_fields(
        &mut self,
        message: usize,
        mut change: impl FnMut(u64, Value) -> Option<Vec<u8>>,
    ) -> Result<()> {
        for field in self.graph.fields(message).with_ranges() {
            let (range, field, value) = field?;
            if let Some(new) = change(field, value) {
                self.replace(range, message, new);
            }
        }
        Ok(())
    }

    /// Lays out the new file, and sets the ranges of the places in it.
    pub(super) fn lay_out(mut self, places: &mut [Placement]) -> Result<EditedFile> {
        self.follow_lengths()?;
        // At the same position, insertions into the innermost message come first.
        self.all.sort_by_key(|edit| (edit.range.start, !edit.range.is_empty(), Reverse(edit.message)));
        let (mut parts, mut copied) = (EditedFile::default(), 0);
        let end = self.graph.file.len();
        let last = Edit { range: end..end, message: FILE, new: New::Bytes(Vec::new()) };
        for Edit { range, new, .. } in self.all.into_iter().chain([last]) {
            if copied < range.start {
                parts.copies.push((parts.len, copied..range.start));
                parts.advance((range.start - copied) as u64)?;
            }
            copied = range.end;
            let (start, len) = (parts.len, new.len());
            parts.advance(len)?;
            match new {
                New::Elements { place, .. } => places[place].range = start..parts.len,
                New::Bytes(bytes) => match parts.literals.last_mut() {
                    _ if bytes.is_empty() => {}
                    Some((offset, last)) if *offset + last.len() as u64 == start => last.extend(bytes),
                    _ => parts.literals.push((start, bytes)),
                },
            }
        }
        Ok(parts)
    }

    /// Rewrites the lengths of all messages whose contents grow or shrink.
    fn follow_lengths(&mut self) -> Result<()> {
        let messages = &self.graph.messages;
        let mut growth = vec![0_i64; messages.len()];
        for Edit { range, message, new } in &self.all {
            growth[*message] += new.len() as i64 - range.len() as i64;
        }
        // Inner messages come after outer ones.
        for (message, Message { start, body, parent, .. }) in messages.iter().enumerate().skip(1).rev() {
            if growth[message] == 0 {
                continue;
            }
            let head = &self.graph.file[*start..body.start];
            let mut length = head;
            take_varint(&mut length)?;
            let mut new = head[..head.len() - length.len()].to_vec();
            write_varint(&mut new, (body.len() as i64 + growth[message]) as u64);
            growth[*parent] += growth[message] + new.len() as i64 - head.len() as i64;
            self.all.push(Edit { range: *start..body.start, message: *parent, new: New::Bytes(new) });
        }
        Ok(())
    }
}

impl EditedFile {
    fn advance(&mut self, len: u64) -> Result<()> {
        self.len = self.len.checked_add(len).ok_or_else(too_long)?;
        Ok(())
    }
}
