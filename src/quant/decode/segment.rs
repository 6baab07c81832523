//! A segment of a row: its codes, and their groups.

use super::lanes::Float32Lane;

/// Scales fetched together, for several segments.
#[derive(Clone, Copy)]
pub(super) struct FetchedScales<'a> {
    pub(super) scales: &'a Float32Lane,
    /// The position of the first scale of the segment.
    pub(super) first: usize,
    /// The number of this fetch, from 1.
    pub(super) fetch: u64,
    /// True if all of them are ordinary: see [`Fused::are_ordinary`](super::fused::Fused::are_ordinary).
    pub(super) are_ordinary: bool,
}

/// The codes of a segment, one for each byte, and the numbers of their groups, as float32.
pub(super) struct CodeSegment<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a Float32Lane,
    /// `None` if the scales are not in the order of their groups.
    pub(super) fetched: Option<FetchedScales<'a>>,
    /// Zero points; empty if there are none.
    pub(super) zeros: &'a Float32Lane,
    /// Numbers added to the products; empty if there are none.
    pub(super) offsets: &'a Float32Lane,
    /// Elements of a group, and the number of elements of the first group before the segment.
    pub(super) size: usize,
    pub(super) skip: usize,
    /// The factor of floats: see [`ScaleReader::factor`](super::scales::ScaleReader::factor).
    pub(super) factor: f32,
    /// The numbers of the codes of [`FusedCodes::Map`](super::fused::FusedCodes::Map).
    pub(super) map: &'a [[u8; 4]; 16],
}

/// The numbers that turn the codes of a group into values.
#[derive(Clone, Copy, Default)]
pub(super) struct CodeFactors {
    pub(super) scale: f32,
    pub(super) zero: f32,
    pub(super) offset: f32,
}

impl CodeSegment<'_> {
    /// Returns the factors of each group, with `zero` if there are no zero points.
    #[inline(always)]
    pub(super) fn factors(&self, zero: f32) -> impl Iterator<Item = CodeFactors> {
        let zeros = self.zeros.iter().map(|zero| f32::from_le_bytes(*zero)).chain(std::iter::repeat(zero));
        let offsets = self.offsets.iter().map(|offset| f32::from_le_bytes(*offset)).chain(std::iter::repeat(0.0));
        let scales = self.scales.iter().map(|scale| f32::from_le_bytes(*scale));
        scales.zip(zeros).zip(offsets).map(|((scale, zero), offset)| CodeFactors { scale, zero, offset })
    }
}
