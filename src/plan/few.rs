//! A list that usually has one item.

use std::ops::Deref;
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
