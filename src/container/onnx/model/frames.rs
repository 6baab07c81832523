//! The messages that enclose the items of a walk.

use super::parts::Frame;
use std::collections::HashMap;

/// A message, and the index of the enclosing message.
pub(super) struct Enclosed {
    pub frame: Frame,
    pub parent: Option<usize>,
}

/// The messages that enclose the items of a walk, the outer ones first.
#[derive(Default)]
pub(super) struct Frames {
    pub all: Vec<Enclosed>,
    /// The most recent enclosing messages from the outermost, as indices in `all`.
    stack: Vec<usize>,
    /// The messages of an earlier walk, by their starts.
    known: HashMap<usize, usize>,
}

impl Frames {
    /// Creates the collection for another walk over the same model.
    pub(super) fn reopened(all: Vec<Enclosed>) -> Self {
        let known = all.iter().enumerate().map(|(at, enclosed)| (enclosed.frame.start, at)).collect();
        Self { all, stack: Vec::new(), known }
    }

    /// Returns the index of the innermost of some messages, and adds the missing ones.
    pub(super) fn enclose(&mut self, enclosing: &[Frame]) -> usize {
        let is_same = |&(depth, frame): &(usize, &Frame)| {
            self.stack.get(depth).is_some_and(|&known| self.all[known].frame == *frame)
        };
        let same = enclosing.iter().enumerate().take_while(is_same).count();
        self.stack.truncate(same);
        for frame in &enclosing[same..] {
            let at = *self.known.get(&frame.start).unwrap_or(&self.all.len());
            if at == self.all.len() {
                self.all.push(Enclosed { frame: frame.clone(), parent: self.stack.last().copied() });
            }
            self.stack.push(at);
        }
        *self.stack.last().expect("a graph encloses every node")
    }
}
