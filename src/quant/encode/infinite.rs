//! Counts values of float16 weights whose codes decode to infinity in float16.

use super::super::decode::{Arithmetic, Decoder};
use super::super::layout::{Group, Layout, Packing};
use super::super::parts::{Parameters, Part};
use super::encoder::Encoder;
use super::extremes::Extremes;
use super::geometry::EncodedPart;
use super::tally::EncodeTally;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use memmap2::MmapMut;
use std::ops::Range;

/// A code decodes to less than 4 times the largest magnitude of its weight, so only a larger value decodes to infinity.
const LEAST: f64 = 16384.0;

/// The errors of all values of a rotated group can meet in one value.
const LEAST_ROTATED: f64 = 512.0;

impl Encoder {
    /// Counts the values of some rows that became infinite for a library that decodes to float16, the type of the
    /// weight. The arguments are those of [`Encoder::encode`], which wrote `outputs`.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(crate) fn count_infinite(
        &self,
        rows: &Range<u64>,
        source: &[u8],
        extremes: &Extremes,
        outputs: &[&mut [u8]],
        tally: &mut EncodeTally,
    ) -> Result<()> {
        let least = if self.rotation.is_some() { LEAST_ROTATED } else { LEAST };
        if self.source != Dtype::Float16 || Extremes::of(Dtype::Float16, source, 0).largest < least {
            return Ok(());
        }
        let (layout, parameters, parts) = self.description();
        let decoder = Decoder::new(layout, &parameters, &parts, Dtype::Float16, Arithmetic::Library)?;
        let outputs: Vec<&[u8]> = outputs.iter().map(|output| &**output).collect();
        let mut results = Vec::new();
        self.decode_with(&decoder, rows, extremes, &outputs, &mut results)?;
        for (at, bytes) in (rows.start * self.columns()..).zip(results.as_chunks().0) {
            if u16::from_le_bytes(*bytes) & 0x7fff == 0x7c00 {
                tally.infinite.add(at);
            }
        }
        Ok(())
    }

    /// Fills `out` with the exact values of encoded rows, as float64. The other arguments are those of [`Encoder::encode`],
    /// which wrote `outputs`.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(crate) fn decode(
        &self,
        rows: &Range<u64>,
        extremes: &Extremes,
        outputs: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let (layout, parameters, parts) = self.description();
        self.decode_with(&Decoder::of_rows(layout, &parameters, &parts)?, rows, extremes, outputs, out)
    }

    fn decode_with(
        &self,
        decoder: &Decoder,
        rows: &Range<u64>,
        extremes: &Extremes,
        outputs: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let parts = self.whole_parts(rows, extremes, outputs)?;
        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
        let width = decoder.target().bits() as usize / 8;
        let values = rows.start * self.columns()..rows.end * self.columns();
        let whole = decoder.around(values.clone());
        out.resize(width * (whole.end - whole.start) as usize, 0);
        decoder.decode_values(whole.clone(), &parts, out)?;
        out.truncate((values.end - whole.start) as usize * width);
        out.drain(..(values.start - whole.start) as usize * width);
        Ok(())
    }

    /// Describes the codes and scales for a decoder.
    fn description(&self) -> (&'static Layout, Parameters, Vec<Part<'_>>) {
        let geometry = &self.geometry;
        let of = |role, name, dtype, shape| Part { role, name, dtype, shape };
        let parts: Vec<Part> =
            geometry.parts.iter().map(|part| of(part.role, part.suffix, part.dtype, &part.shape[..])).collect();
        let is_of_rows = self.packing == Packing::TransposedBlocks;
        let block = geometry.block;
        let groups = [Group::Tensor, Group::Channel, Group::Neighbours(block[1]), Group::Block(block)];
        let is_own = |group: &Group| {
            (*group == Group::Tensor) == geometry.is_tensor
                && group.lengths([geometry.rows, geometry.columns]) == block
                && self.layout.has_group_like(*group)
        };
        let group = groups.into_iter().find(is_own).filter(|_| self.layout.fixed_group().is_none());
        let parameters = Parameters {
            shape: ((!is_of_rows || self.layout.partial_groups) && self.axis.is_none()).then(|| geometry.shape.clone()),
            bits: Some(geometry.bits),
            group,
            linear: self.axis,
            rotation: self.rotation(),
            ..Parameters::default()
        };
        (self.layout.untransposed.unwrap_or(self.layout), parameters, parts)
    }

    /// Returns parts of the length of the whole weight, with the bytes that some rows need. Other bytes are zeros, which
    /// take no memory as long as nothing reads them: an allocator would clear them if it has used their memory before.
    fn whole_parts(&self, rows: &Range<u64>, extremes: &Extremes, outputs: &[&[u8]]) -> Result<Vec<MmapMut>> {
        let zeros = |part: &EncodedPart| MmapMut::map_anon(part.byte_len() as usize);
        let parts: std::io::Result<Vec<MmapMut>> = self.parts().iter().map(zeros).collect();
        let mut parts = parts.map_err(|_| Error::new("not enough memory to decode a weight"))?;
        let ranges = self.part_ranges(rows.clone());
        for ((part, range), output) in parts.iter_mut().zip(&ranges).zip(outputs) {
            part[range.start as usize..range.end as usize].copy_from_slice(output);
        }
        // Scales of no particular row depend on the extremes only, and come with the first rows.
        if rows.start > 0 && ranges.iter().any(Range::is_empty) {
            let first = 0..self.row_alignment().min(self.rows());
            let zeros = vec![0; (first.end * self.row_bytes()) as usize];
            let mut written: Vec<Vec<u8>> = self
                .part_ranges(first.clone())
                .iter()
                .map(|range| vec![0; (range.end - range.start) as usize])
                .collect();
            let mut tally = EncodeTally { skips_errors: true, ..EncodeTally::default() };
            let mut outputs: Vec<&mut [u8]> = written.iter_mut().map(|bytes| &mut bytes[..]).collect();
            self.encode(first, &zeros, extremes, &mut outputs, &mut tally);
            for ((part, range), bytes) in parts.iter_mut().zip(&ranges).zip(written) {
                if range.is_empty() {
                    part.copy_from_slice(&bytes);
                }
            }
        }
        Ok(parts)
    }
}
