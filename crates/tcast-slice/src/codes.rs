//! The element types that Rust lacks, each a byte with the bits of an element.

// `zerocopy` would do this with safe code, but its derives make public implementations, so that each of its versions would
// be one of this crate's interface.
#![allow(unsafe_code, reason = "a slice of codes is seen as the bytes that it is")]

use super::{Dtype, RunKernel, sealed};
use crate::kernel::{Counts, Malformed};

macro_rules! formats {
    ($($name:ident),* $(,)?) => {
        $(
            #[doc = concat!("An element of type [`Dtype::", stringify!($name), "`], as its bits. Two elements are equal when their bits are.")]
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            #[repr(transparent)]
            pub struct $name(u8);

            impl $name {
                /// Returns the element with these bits. Excess bits are ignored for integers; for floats, the
                /// conversion refuses them.
                #[must_use]
                pub const fn from_bits(bits: u8) -> Self {
                    Self(bits)
                }

                /// Returns the bits. A conversion extends the sign of negative integers below 8 bits, `from_bits` does
                /// not.
                #[must_use]
                pub const fn to_bits(self) -> u8 {
                    self.0
                }
            }

            impl sealed::SealedElement for $name {
                const TYPE: Dtype = Dtype::$name;

                fn bytes(elements: &[Self]) -> &[u8] {
                    // SAFETY: the type is transparent, so the slice is one of initialized bytes, and of the same length.
                    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), elements.len()) }
                }

                fn fill(elements: &mut [Self], run: RunKernel) -> Result<Counts, Malformed> {
                    // SAFETY: as above; every byte is a value of the type, and the slice is borrowed for the call.
                    run(unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), elements.len()) })
                }
            }
        )*
    };
}

formats! {
    Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0, Float8E3M4, Float8E4M3, Float8E4M3B11FNUZ,
    Float6E2M3, Float6E3M2, Float4E2M1, Int4, Uint4, Int2, Uint2, Int1, Uint1,
}
