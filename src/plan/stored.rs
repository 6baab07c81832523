//! Tensors of the output, and their places.

use crate::container::{PendingCrc, Placement, TextExtent};
use std::borrow::Cow;
use std::ops::{Deref, DerefMut, Range};
use std::slice;

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
    /// The lengths of the texts, if it becomes text.
    pub text: Option<Box<TextExtent>>,
}

/// The position of a tensor of an expert in a stack.
pub(crate) struct StackPart {
    /// The name of the stored tensor.
    pub name: Box<str>,
    /// The shape of the stored tensor: the number of experts, then the shape of each.
    pub shape: Box<[u64]>,
    /// The number of tensors in it: one or several for each expert.
    pub count: u64,
    /// The number of this tensor. Tensor 0 stands for the stored tensor.
    pub number: u64,
}

impl StackPart {
    /// Returns the place of the tensor, from the place of the stored tensor.
    pub(super) fn place_in(&self, whole: &Placement) -> Placement {
        let len = (whole.range.end - whole.range.start) / self.count;
        let start = whole.range.start + self.number * len;
        Placement { form: whole.form, range: start..start + len, crc: None }
    }
}

impl<'a> NewStored<'a> {
    /// Returns the name of the stored tensor.
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
        self.stack().is_none_or(|stack| stack.number == 0)
    }

    /// Returns the shape of the stored tensor, given its own shape.
    pub(crate) fn stored_shape<'s>(&'s self, own: &'s [u64]) -> &'s [u64] {
        self.stack().map_or(own, |stack| &stack.shape)
    }

    /// Returns the range of the stored tensor in the output; `None` if an earlier result begins it.
    pub(crate) fn stored_range(&self) -> Option<Range<u64>> {
        let Range { start, end } = self.range;
        let count = self.stack().map_or(1, |part| part.count);
        self.begins_tensor().then(|| start..start + (end - start) * count)
    }

    pub(super) fn unplaced(name: Cow<'a, str>) -> Self {
        Self { name, range: 0..0, extra: None }
    }
}

/// One item or several. A single item is stored inline, which matters with a million tensors.
#[derive(Clone)]
pub(crate) enum Few<T> {
    One(T),
    Several(Box<[T]>),
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => slice::from_mut(one),
            Self::Several(several) => several,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => Self::One(one),
            (one, other) => Self::Several(one.into_iter().chain(other).chain(items).collect()),
        }
    }
}
