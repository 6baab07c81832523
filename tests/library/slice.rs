//! `tcast::slice::cast` on slices of typed elements.

use tcast::dtype::Dtype;
use tcast::kernel::{Kernel, Loss, OutOfRange, Rules, Storage};
use tcast::operator::cast::CastAttributes;
use tcast::slice::cast_by as cast;
use tcast::slice::{
    CastError, Element, Float4E2M1, Float6E2M3, Float6E3M2, Float8E3M4, Float8E4M3, Float8E4M3B11FNUZ, Float8E4M3FN,
    Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0, Int1, Int2, Int4, StoredBytes, StoredBytesMut, Uint1,
    Uint2, Uint4,
};

/// An element type, and its elements from and to little endian bytes.
struct Bytes<E> {
    read: fn(&[u8]) -> E,
    write: fn(&E) -> Vec<u8>,
}

impl<E: Element> Bytes<E> {
    /// Codes of every kind; elements of a byte have no more bits than their type.
    fn elements(&self) -> Vec<E> {
        let width = size_of::<E>();
        let mask = if E::DTYPE.bits() < 8 { (1 << E::DTYPE.bits()) - 1 } else { 255 };
        let byte = |at: usize| (at * 37 + at / 8 * 11) as u8 & mask;
        (0..61).map(|at| (self.read)(&(0..width).map(|part| byte(at * width + part)).collect::<Vec<u8>>())).collect()
    }

    fn of(&self, elements: &[E]) -> Vec<u8> {
        elements.iter().flat_map(self.write).collect()
    }
}

/// Compares `cast` with the kernel on the same elements as bytes.
fn check<S: Element, T: Element>(from: &Bytes<S>, to: &Bytes<T>) {
    let (source, mut target) = (&from.elements()[..], vec![to.elements()[0]; 61]);
    let (source_bytes, pair) = (from.of(source), format!("{} to {}", S::DTYPE, T::DTYPE));
    let rules = CastAttributes::default().rules();
    assert_eq!(rules, Rules::default());
    let run = |to: Storage| {
        let kernel = Kernel::cast(Storage::per_byte(S::DTYPE), to, &rules)?;
        let mut made = vec![0; to.bytes(61).unwrap() as usize];
        let counts = kernel.run(&source_bytes, &mut made, 61).unwrap();
        Some((counts, made))
    };
    let Some((counts, made)) = run(Storage::per_byte(T::DTYPE)) else {
        let refused = Err(CastError::Unsupported { source: S::DTYPE, target: T::DTYPE });
        return assert_eq!(cast(source, &mut target, &rules), refused);
    };
    assert_eq!(cast(source, &mut target, &rules), Ok(counts), "{pair}");
    assert_eq!(to.of(&target), made, "{pair}");
    let [stored, big_endian] = [false, true].map(|big_endian| Storage { big_endian, ..Storage::packed(T::DTYPE) });
    let bytes = StoredBytes::new(&source_bytes, Storage::per_byte(S::DTYPE), 61).unwrap();
    let [mut plain, mut turned] = [(); 2].map(|()| vec![0; stored.bytes(61).unwrap() as usize]);
    for (storage, output) in [(stored, &mut plain), (big_endian, &mut turned)] {
        let done = cast(&bytes, &mut StoredBytesMut::new(output, storage, 61).unwrap(), &rules);
        assert_eq!(done, Ok(counts), "{pair}");
    }
    turned.chunks_exact_mut(size_of::<T>()).for_each(<[u8]>::reverse);
    assert_eq!(run(stored), Some((counts, plain)), "{pair}");
    assert_eq!(run(stored), Some((counts, turned)), "{pair}");
}

macro_rules! for_each_element {
    ($then:ident $(, $argument:expr)*) => {
        $then!($($argument,)* bool, |bytes| bytes[0] & 1 == 1, |element| vec![u8::from(*element)]);
        for_each_element!(@numbers $then [$($argument),*] i8 i16 i32 i64 u8 u16 u32 u64 half::f16 half::bf16 f32 f64);
        for_each_element!(@codes $then [$($argument),*] Float8E4M3FN Float8E4M3FNUZ Float8E5M2 Float8E5M2FNUZ Float8E8M0
            Float8E3M4 Float8E4M3 Float8E4M3B11FNUZ Float6E2M3 Float6E3M2 Float4E2M1 Int4 Uint4 Int2 Uint2 Int1 Uint1);
    };
    (@numbers $then:ident $arguments:tt $($element:ty)*) => {
        $(for_each_element!(@one $then $arguments $element,
            |bytes| <$element>::from_le_bytes(bytes.try_into().unwrap()), |element| element.to_le_bytes().to_vec());)*
    };
    (@codes $then:ident $arguments:tt $($element:ty)*) => {
        $(for_each_element!(@one $then $arguments $element,
            |bytes| <$element>::from_bits(bytes[0]), |element| vec![element.to_bits()]);)*
    };
    (@one $then:ident [$($argument:expr),*] $element:ty, $read:expr, $write:expr) => {
        $then!($($argument,)* $element, $read, $write);
    };
}

#[test]
fn every_pair_of_element_types_is_what_the_kernel_makes_of_their_bytes() {
    let mut seen = Vec::new();
    macro_rules! to {
        ($source:expr, $element:ty, $read:expr, $write:expr) => {
            check($source, &Bytes::<$element> { read: $read, write: $write });
        };
    }
    macro_rules! from {
        ($element:ty, $read:expr, $write:expr) => {
            let source = &Bytes::<$element> { read: $read, write: $write };
            for_each_element!(to, source);
            seen.push(<$element as Element>::DTYPE);
        };
    }
    for_each_element!(from);
    let numbers = Dtype::all().filter(|dtype| {
        Kernel::cast(Storage::packed(*dtype), Storage::per_byte(Dtype::Float32), &Rules::default()).is_some()
    });
    seen.sort_unstable();
    assert_eq!(seen, numbers.collect::<Vec<_>>(), "every type that can be cast is an element");
}

/// Elements that `cast` converts at a time.
const CHUNK: usize = 1 << 16;

#[test]
fn packed_elements_are_those_of_a_slice_over_several_chunks() {
    let source: Vec<f32> = (0..CHUNK + 13).map(|at| (at % 97) as f32 / 8.0 - 6.0).collect();
    let mut codes = vec![Float4E2M1::default(); source.len()];
    let counts = cast(&source, &mut codes, &Rules::default()).unwrap();
    let mut bytes = vec![0xff; source.len().div_ceil(2)];
    let mut stored = StoredBytesMut::new(&mut bytes, Storage::packed(Dtype::Float4E2M1), source.len()).unwrap();
    assert_eq!(cast(&source, &mut stored, &Rules::default()), Ok(counts));
    let pair = |at: usize| codes.get(at).map_or(0, |code| code.to_bits());
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == pair(2 * at) | pair(2 * at + 1) << 4));
    let [mut one, mut other] = [vec![0_u8; source.len()], vec![0_u8; source.len()]];
    let stored = StoredBytes::new(&bytes, Storage::packed(Dtype::Float4E2M1), source.len()).unwrap();
    assert_eq!(cast(&stored, &mut one, &Rules::default()), cast(&codes, &mut other, &Rules::default()));
    assert_eq!(one, other);
    for (dtype, bytes, len) in [(Dtype::Uint32, 11, 3), (Dtype::Int2, 2, 9), (Dtype::Float6E2M3, 0, usize::MAX)] {
        let mut bytes = vec![0; bytes];
        assert!(StoredBytes::new(&bytes, Storage::packed(dtype), len).is_none());
        assert!(StoredBytesMut::new(&mut bytes, Storage::packed(dtype), len).is_none());
    }
}

#[test]
fn what_is_refused_is_named_by_its_place() {
    let rules = Rules { out_of_range: OutOfRange::Error, ..Rules::default() };
    let mut source = vec![1.5_f32; CHUNK + 30];
    let mut target = vec![0_i8; CHUNK + 30];
    assert_eq!(cast(&source, &mut target, &rules).unwrap()[Loss::Inexact], CHUNK as u64 + 30);
    source[CHUNK + 21] = 1000.0;
    let error = cast(&source, &mut target, &rules).unwrap_err();
    assert_eq!(error, CastError::OutOfRange { index: CHUNK + 21, target: Dtype::Int8 });
    assert_eq!(error.to_string(), format!("element {} is out of range for int8", CHUNK + 21));
    let mut codes = [Float4E2M1::default(); 20];
    codes[11] = Float4E2M1::from_bits(0x10);
    let error = cast(&codes, &mut [0.0_f32; 20], &rules).unwrap_err();
    assert_eq!(error, CastError::Malformed { index: 11 });
    assert!(std::error::Error::source(&error).is_some());
    let error = cast(&[1.0_f32], &mut [0_u8; 2], &rules).unwrap_err();
    assert_eq!(error.to_string(), "the source has 1 elements and the target has 2");
}
