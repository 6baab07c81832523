//! A list that usually has one item.

use std::ops::{Deref, DerefMut};
use std::slice;

/// One item or several. A single item is stored inline, which matters with a million tensors.
#[derive(Clone)]
pub(crate) enum Few<T> {
    One(T),
    Several(Vec<T>),
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
