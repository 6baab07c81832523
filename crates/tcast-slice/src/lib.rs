//! Casts of slices between the number formats of machine learning, bit for bit as ONNX Cast defines them: floats of 4, 6
//! and 8 bits, bfloat16, float16, float32, float64, and integers of 1 to 64 bits. Each value is rounded once, and the losses
//! are counted. There is no I/O here.
//!
//! [`cast`] converts slices of typed elements, and this crate defines the element types that Rust lacks. If types are known
//! only at run time, it converts [`StoredBytes`] to [`StoredBytesMut`].
//!
//! ```
//! use tcast_slice::{StoredBytes, StoredBytesMut, dtype::Dtype, half::bf16, kernel::{Loss, Storage}};
//!
//! // To bfloat16, and from there to float4, two elements in a byte.
//! let mut halves = [bf16::ZERO; 4];
//! tcast_slice::cast(&[0.5_f32, -1.0, 2.25, 100.0], &mut halves)?;
//! assert_eq!(halves.map(bf16::to_f32), [0.5, -1.0, 2.25, 100.0]);
//!
//! let mut bytes = [0; 2];
//! let packed = Storage::packed(Dtype::Float4E2M1);
//! let mut codes = StoredBytesMut::new(&mut bytes, packed, 4).expect("two bytes hold four elements");
//! let counts = tcast_slice::cast(&halves, &mut codes)?;
//! assert_eq!(bytes, [0xa1, 0x74]);
//! assert_eq!((counts[Loss::Saturated], counts[Loss::Inexact]), (1, 2)); // 100 became 6, and 2.25 became 2
//!
//! let mut back = [0.0_f32; 4];
//! let codes = StoredBytes::new(&bytes, packed, 4).expect("as above");
//! tcast_slice::cast(&codes, &mut back)?;
//! assert_eq!(back, [0.5, -1.0, 2.0, 6.0]);
//! # Ok::<(), tcast_slice::CastError>(())
//! ```

#![warn(clippy::unwrap_used)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod codes;
pub mod dtype;
mod error;
pub mod kernel;
#[doc(hidden)] // for tests
pub mod random;
#[cfg(feature = "serde")]
mod serde;
mod stored;

/// The crate with the element types `f16` and `bf16`, in the version whose types [`cast`] converts.
pub use half;

#[doc(hidden)] // for the names of the types of codes
pub use codes::format;
pub use codes::{
    Code, Float4E2M1, Float6E2M3, Float6E3M2, Float8E3M4, Float8E4M3, Float8E4M3B11FNUZ, Float8E4M3FN, Float8E4M3FNUZ,
    Float8E5M2, Float8E5M2FNUZ, Float8E8M0, Int1, Int2, Int4, Uint1, Uint2, Uint4,
};
pub use error::CastError;
pub use stored::{StoredBytes, StoredBytesMut};

use crate::dtype::Dtype;
use crate::kernel::{Counts, Kernel, Malformed, Rules, Storage, SubByteLayout};
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Number of elements converted at a time; a multiple of 8, so that packed ones start on a whole byte.
const CHUNK: usize = 1 << 16;

/// Converts every element of `source` to the element of `target` with the same index, rounded once, as ONNX Cast
/// defines it.
///
/// This uses one thread: to use more, split both slices.
///
/// ```
/// use tcast_slice::{Float8E4M3FN, kernel::Loss};
///
/// let weights = [0.1_f32, -2.5, 1000.0];
/// let mut codes = [Float8E4M3FN::default(); 3];
/// let counts = tcast_slice::cast(&weights, &mut codes)?;
/// assert_eq!(codes.map(Float8E4M3FN::to_bits), [0x1d, 0xc2, 0x7e]);
/// assert_eq!(counts[Loss::Saturated], 1); // 1000 became 448
/// # Ok::<(), tcast_slice::CastError>(())
/// ```
///
/// # Errors
/// When the lengths differ, ONNX Cast lacks the target type, or a byte that holds one float4 or float6 has other bits set.
/// `target` is then partly written.
pub fn cast<S, T>(source: &S, target: &mut T) -> Result<Counts, CastError>
where
    S: Source + ?Sized,
    T: Target + ?Sized,
{
    cast_by(source, target, &Rules::default())
}

/// Does the same as [`cast`] by other rules than those of Cast-23 without attributes.
///
/// # Errors
/// As for [`cast`], and when a value is out of range and the rules forbid that.
pub fn cast_by<S, T>(source: &S, target: &mut T, rules: &Rules) -> Result<Counts, CastError>
where
    S: Source + ?Sized,
    T: Target + ?Sized,
{
    let ([from, to], [len, target_len]) = ([source.storage(), target.storage()], [source.len(), target.len()]);
    if len != target_len {
        return Err(CastError::Lengths { source: len, target: target_len });
    }
    // Results are made little endian, and their bytes reversed afterwards if necessary.
    let made = Storage { big_endian: false, ..to };
    let unsupported = || CastError::Unsupported { source: from.dtype, target: to.dtype };
    let kernel = Kernel::cast(from, made, rules).ok_or_else(unsupported)?;
    let mut counts = Counts::default();
    for start in (0..len).step_by(CHUNK) {
        let range = start..len.min(start + CHUNK);
        let (count, input) = (range.len(), source.bytes(range.clone()));
        let done = target.fill(range, &mut |output| kernel.run(input, output, count));
        let at = || start + first_refused(&kernel, input, count);
        let done = done.map_err(|Malformed| CastError::Malformed { index: at() })?;
        if kernel.refuses().is_some_and(|loss| done[loss] > 0) {
            return Err(CastError::OutOfRange { index: at(), target: to.dtype });
        }
        counts += done;
    }
    Ok(counts)
}

/// Returns the index of the first element that the kernel refuses; there is one.
fn first_refused(kernel: &Kernel, input: &[u8], count: usize) -> usize {
    let [from, to] = kernel.storages();
    let bytes = |storage: Storage, count: usize| storage.bytes(count as u64).unwrap_or_default() as usize;
    let mut output = vec![0; bytes(to, 8)];
    let mut is_refused = |start: usize, count: usize| match kernel.run(&input[bytes(from, start)..], &mut output, count)
    {
        Ok(counts) => kernel.refuses().is_some_and(|loss| counts[loss] > 0),
        Err(Malformed) => true,
    };
    let groups = (0..count).step_by(8).map(|start| (start, (count - start).min(8)));
    let (start, len) = groups.into_iter().find(|(start, len)| is_refused(*start, *len)).unwrap_or_default();
    start + (1..=len).find(|len| is_refused(start, *len)).map_or(0, |len| len - 1)
}

/// Type of elements in memory.
///
/// These are Rust's own numbers of 8 to 64 bits and `bool`, `f16` and `bf16` of the crate [`half`], and [`Code`]s of the
/// other formats, which are a byte with the element's bits at its low end.
pub trait Element: sealed::SealedElement {
    /// Data type of the elements.
    const DTYPE: Dtype;
}

impl<E: sealed::SealedElement> Element for E {
    const DTYPE: Dtype = E::TYPE;
}

/// Source of a conversion: a slice, an array or a `Vec` of an [`Element`], or [`StoredBytes`].
pub trait Source: sealed::SealedSource {}

/// Target of a conversion: a slice, an array or a `Vec` of an [`Element`], or [`StoredBytesMut`].
pub trait Target: sealed::SealedTarget {}

impl<S: sealed::SealedSource + ?Sized> Source for S {}
impl<T: sealed::SealedTarget + ?Sized> Target for T {}

mod sealed {
    use super::{Counts, Dtype, Malformed, Range, Storage};

    pub trait SealedElement: Copy + 'static {
        const TYPE: Dtype;
        fn bytes(elements: &[Self]) -> &[u8];
        fn fill(elements: &mut [Self], run: RunKernel) -> Result<Counts, Malformed>;
    }

    /// Writes results as little endian bytes.
    pub(super) type RunKernel<'a> = &'a mut dyn FnMut(&mut [u8]) -> Result<Counts, Malformed>;

    pub trait SealedSource {
        fn storage(&self) -> Storage;
        fn len(&self) -> usize;
        fn bytes(&self, range: Range<usize>) -> &[u8];
    }

    pub trait SealedTarget {
        fn storage(&self) -> Storage;
        fn len(&self) -> usize;
        fn fill(&mut self, range: Range<usize>, run: RunKernel) -> Result<Counts, Malformed>;
    }
}

use sealed::RunKernel;

/// Returns the storage of elements in a slice.
fn in_memory(dtype: Dtype) -> Storage {
    Storage { dtype, layout: SubByteLayout::PerByte, big_endian: cfg!(target_endian = "big") }
}

/// Fills elements of a type for which every bit pattern is valid.
fn fill_plain<E: IntoBytes + FromBytes>(elements: &mut [E], run: RunKernel) -> Result<Counts, Malformed> {
    let counts = run(elements.as_mut_bytes())?;
    if cfg!(target_endian = "big") && size_of::<E>() > 1 {
        elements.as_mut_bytes().chunks_exact_mut(size_of::<E>()).for_each(<[u8]>::reverse);
    }
    Ok(counts)
}

macro_rules! plain {
    ($($element:ty: $dtype:ident),* $(,)?) => {
        $(
            impl sealed::SealedElement for $element {
                const TYPE: Dtype = Dtype::$dtype;

                fn bytes(elements: &[Self]) -> &[u8] {
                    elements.as_bytes()
                }
                fn fill(elements: &mut [Self], run: RunKernel) -> Result<Counts, Malformed> {
                    fill_plain(elements, run)
                }
            }
        )*
    };
}

plain! {
    i8: Int8, i16: Int16, i32: Int32, i64: Int64, u8: Uint8, u16: Uint16, u32: Uint32, u64: Uint64,
    half::f16: Float16, half::bf16: Bfloat16, f32: Float32, f64: Float64,
}

impl sealed::SealedElement for bool {
    const TYPE: Dtype = Dtype::Bool;

    fn bytes(elements: &[Self]) -> &[u8] {
        elements.as_bytes()
    }

    /// Converts through a buffer of bytes, because not every byte is a valid bool.
    fn fill(elements: &mut [Self], run: RunKernel) -> Result<Counts, Malformed> {
        let mut bytes = vec![0; elements.len()];
        let counts = run(&mut bytes)?;
        elements.iter_mut().zip(bytes).for_each(|(element, byte)| *element = byte != 0);
        Ok(counts)
    }
}

macro_rules! slices {
    ($(($($generics:tt)*) $slice:ty),*) => {
        $(
            impl<E: Element, $($generics)*> sealed::SealedSource for $slice {
                fn storage(&self) -> Storage {
                    in_memory(E::DTYPE)
                }
                fn len(&self) -> usize {
                    self[..].len()
                }
                fn bytes(&self, range: Range<usize>) -> &[u8] {
                    E::bytes(&self[range])
                }
            }
            impl<E: Element, $($generics)*> sealed::SealedTarget for $slice {
                fn storage(&self) -> Storage {
                    in_memory(E::DTYPE)
                }
                fn len(&self) -> usize {
                    self[..].len()
                }
                fn fill(&mut self, range: Range<usize>, run: RunKernel) -> Result<Counts, Malformed> {
                    E::fill(&mut self[range], run)
                }
            }
        )*
    };
}

slices!(() [E], (const N: usize) [E; N], () Vec<E>);
