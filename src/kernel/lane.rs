//! Lanes: the number types that conversions pass through, and buffers for them.

/// Number of text elements, or of source bytes, that pass through a lane at a time. No more bytes are prefetched at
/// once, because the processor waits for some 16 cache lines at a time. Loops that prefetch their own input take four
/// times as many.
pub(super) const BLOCK: usize = 1024;

/// Distance in bytes by which the source is prefetched before it is read. Distances of 4 to 16 KiB are equally good for
/// most types, and the fastest loops need 8.
pub(super) const AHEAD: usize = 8192;

/// An element of a lane, held as little endian bytes, so that a source of the lane's type can itself be the lane.
pub(super) trait LaneElement: Copy {
    type Bytes: Copy;
    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;
}

macro_rules! lane_element {
    ($bits:ty) => {
        impl LaneElement for $bits {
            type Bytes = [u8; size_of::<$bits>()];
            #[inline(always)]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
    };
}

lane_element!(u16);
lane_element!(u32);
lane_element!(u64);

/// Returns the first `len` bytes of a buffer, which grows if necessary.
pub(super) fn grow(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
