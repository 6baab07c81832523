//! The element types that Rust lacks, each a byte with the bits of an element.

// `zerocopy` would do this with safe code, but its derives make public implementations, so that each of its versions would
// be one of this crate's interface.
#![allow(unsafe_code, reason = "a slice of codes is seen as the bytes that it is")]

use super::sealed::{RunKernel, SealedElement};
use crate::dtype::Dtype;
use crate::kernel::{Counts, Malformed};
use std::fmt;
use std::marker::PhantomData;

/// An element of a format that Rust lacks, such as [`Float8E4M3FN`], as its bits. Two elements are equal when their bits are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Code<F>(u8, PhantomData<F>);

impl<F: Copy> Code<F> {
    /// Returns the element with these bits. Excess bits are ignored for integers; for floats, the conversion refuses them.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits, PhantomData)
    }

    /// Returns the bits. A conversion extends the sign of negative integers below 8 bits, `from_bits` does not.
    #[must_use]
    pub const fn to_bits(self) -> u8 {
        self.0
    }
}

impl<F: Format> fmt::Debug for Code<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({:#04x})", F::DTYPE, self.0)
    }
}

impl<F: Format> SealedElement for Code<F> {
    const TYPE: Dtype = F::DTYPE;

    fn bytes(elements: &[Self]) -> &[u8] {
        // SAFETY: a code is a transparent byte, so the slice is one of initialized bytes, and of the same length.
        unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
    }

    fn fill(elements: &mut [Self], run: RunKernel) -> Result<Counts, Malformed> {
        // SAFETY: as above; every byte is a code, and the slice is borrowed for the call.
        run(unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) })
    }
}

/// The format of a [`Code`].
pub trait Format: Copy + 'static {
    /// Data type of the elements.
    const DTYPE: Dtype;
}

macro_rules! formats {
    ($($name:ident),* $(,)?) => {
        /// The formats of codes.
        pub mod format {
            $(
                #[doc = concat!("The format of [`Dtype::", stringify!($name), "`](super::Dtype).")]
                #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
                pub struct $name;

                impl super::Format for $name {
                    const DTYPE: super::Dtype = super::Dtype::$name;
                }
            )*
        }

        $(
            #[doc = concat!("An element of type [`Dtype::", stringify!($name), "`].")]
            pub type $name = Code<format::$name>;
        )*
    };
}

formats! {
    Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0, Float8E3M4, Float8E4M3, Float8E4M3B11FNUZ,
    Float6E2M3, Float6E3M2, Float4E2M1, Int4, Uint4, Int2, Uint2, Int1, Uint1,
}
