//! Tensors of the output, and their places.

use crate::container::PendingCrc;
use std::borrow::Cow;
use std::ops::Range;

/// A tensor of the output, and its place there. There may be a million, so rarely used fields are boxed.
pub(crate) struct NewStored<'a> {
    /// Its name; empty in a format without names.
    pub name: Cow<'a, str>,
    /// Its bytes in the output; empty before the layout.
    pub range: Range<u64>,
    pub extra: Option<Box<ExtraOfStored>>,
}

/// Properties that few tensors of an output have.
#[derive(Default)]
pub(crate) struct ExtraOfStored {
    /// A checksum of the tensor that has to be written as well.
    pub crc: Option<Box<PendingCrc>>,
    /// The tensor that holds it, with the tensors of other experts.
    pub stack: Option<StackPart>,
    /// Its shape, if a tensor that is converted has another one in the input.
    pub shape: Option<Box<[u64]>>,
}

/// The position of a tensor of an expert in a stack.
pub(crate) struct StackPart {
    /// The name of the stored tensor.
    pub name: Box<str>,
    /// True for the first expert, which stands for the stored tensor.
    pub is_first: bool,
    /// The number of experts.
    pub count: u64,
}

impl<'a> NewStored<'a> {
    /// The name of the stored tensor.
    pub(crate) fn stored_name(&self) -> &str {
        match self.stack() {
            Some(stack) => &stack.name,
            None => &self.name,
        }
    }

    pub(crate) fn crc(&self) -> Option<&PendingCrc> {
        self.extra.as_ref()?.crc.as_deref()
    }

    pub(crate) fn stack(&self) -> Option<&StackPart> {
        self.extra.as_ref()?.stack.as_ref()
    }

    /// True unless an earlier result begins the stored tensor.
    pub(super) fn begins_tensor(&self) -> bool {
        self.stack().is_none_or(|stack| stack.is_first)
    }

    /// Returns the shape of the stored tensor, from its own.
    pub(crate) fn stored_shape<'s>(&self, shape: &'s [u64]) -> Cow<'s, [u64]> {
        match self.stack() {
            Some(stack) => Cow::Owned([&[stack.count], shape].concat()),
            None => Cow::Borrowed(shape),
        }
    }

    /// Returns the range of the stored tensor in the output; `None` if an earlier result begins it.
    pub(crate) fn stored_range(&self) -> Option<Range<u64>> {
        let Range { start, end } = self.range;
        let count = self.stack().map_or(1, |stack| stack.count);
        self.begins_tensor().then(|| start..start + (end - start) * count)
    }

    pub(super) fn unplaced(name: Cow<'a, str>) -> Self {
        Self { name, range: 0..0, extra: None }
    }
}
