//! Moves weights whose codes stay the same and whose scales are bytes, with one table of new scales.

use super::{SEGMENT, Transcoder};
use crate::quant::encode::{EncodeTally, PartWriter};
use std::ops::RangeInclusive;

/// The new scale for each stored byte.
pub(super) struct ScaleBytes {
    new: [u8; 256],
    /// The longest run of bytes that have a new scale.
    fitting: RangeInclusive<u8>,
    /// True if all of them stay the same.
    is_identity: bool,
    /// Number of new groups in an old group.
    repeat: usize,
}

/// Buffers for the scales of a row.
#[derive(Default)]
pub(super) struct ScaleBuffers {
    raw: Vec<u8>,
    new: Vec<u8>,
}

impl Transcoder {
    /// Makes the table; `None` if scales are not bytes, or codes or groups do not stay the same.
    pub(super) fn scale_bytes(&self, parts: &[&[u8]]) -> Option<ScaleBytes> {
        let (width, new_width) = (self.source.width(), self.encoder.block_width());
        let numbers = self.source.numbers_of_bytes(parts)?;
        if !self.tables.is_total || !self.encoder.has_byte_scales() || self.encoder.has_one_scale() {
            return None;
        }
        if self.encoder.block_height() != 1 || !width.is_multiple_of(new_width) {
            return None;
        }
        // Codes of groups whose scale is 0 become 0.
        let scales = numbers.map(|number| self.new_scale(number, 0.0).filter(|_| number != 0.0));
        let mut longest = 0..0_usize;
        let mut start = 0;
        for (at, scale) in scales.iter().enumerate() {
            if scale.is_none() {
                start = at + 1;
            } else if at + 1 - start > longest.len() {
                longest = start..at + 1;
            }
        }
        let fitting = longest.start as u8..=longest.end.checked_sub(1)? as u8;
        let new = scales.map(|scale| scale.map_or(0, |scale| scale.byte()));
        let is_identity = fitting.clone().all(|byte| new[usize::from(byte)] == byte);
        Some(ScaleBytes { new, fitting, is_identity, repeat: width / new_width })
    }

    /// Returns the table, and the stored scales of a row, if all of them have new scales; `raw` is a buffer for them.
    pub(super) fn kept<'a>(
        &self,
        row: usize,
        parts: &[&'a [u8]],
        raw: &'a mut Vec<u8>,
    ) -> Option<(&ScaleBytes, &'a [u8])> {
        let bytes = self.bytes.as_ref()?;
        let scales = self.source.scale_bytes(row, parts, raw);
        // No closures, because the compiler would then not use vectors.
        let (mut least, mut most) = (u8::MAX, 0);
        for scale in scales {
            (least, most) = (least.min(*scale), most.max(*scale));
        }
        (least >= *bytes.fitting.start() && most <= *bytes.fitting.end()).then_some((bytes, scales))
    }

    /// Writes a row whose scales all have new scales, with the same codes. For other rows, returns false and writes
    /// nothing.
    pub(super) fn keep_row(
        &self,
        row: usize,
        parts: &[&[u8]],
        buffers: &mut ScaleBuffers,
        writer: &mut PartWriter,
        tally: &mut EncodeTally,
    ) -> bool {
        let Some((bytes, scales)) = self.kept(row, parts, &mut buffers.raw) else { return false };
        let (columns, all) = (self.source.columns(), self.encoder.matrix_rows());
        buffers.new.clear();
        if bytes.repeat == 1 && bytes.is_identity {
            buffers.new.extend_from_slice(scales);
        } else if bytes.repeat == 1 {
            buffers.new.extend(scales.iter().map(|byte| bytes.new[usize::from(*byte)]));
        } else {
            let scales =
                scales.iter().flat_map(|byte| std::iter::repeat_n(bytes.new[usize::from(*byte)], bytes.repeat));
            buffers.new.extend(scales);
        }
        buffers.new.truncate(columns.div_ceil(self.encoder.block_width()));
        writer.store_scales(row / all, row % all, 0, buffers.new.iter().map(|byte| (u32::from(*byte), 0.0)));
        if self.keeps_packed_rows {
            let stored = self.source.stored_codes(row, parts);
            writer.copy_codes(row / all, row % all, stored);
            if let Some(rescaling) = &self.rescaling {
                let first = row as u64 * columns as u64;
                let pieces = stored.chunks(SEGMENT / 2).zip(buffers.new.chunks(SEGMENT / 16));
                for (at, (codes, blocks)) in pieces.enumerate() {
                    rescaling.count_stored(codes, blocks, first + (at * SEGMENT) as u64, tally);
                }
            }
            return true;
        }
        let mut codes = [0; SEGMENT];
        for start in (0..columns).step_by(SEGMENT) {
            let end = (start + SEGMENT).min(columns);
            let codes = &mut codes[..end - start];
            self.source.codes(row, start..end, parts, codes);
            self.tables.move_unscaled(codes);
            if let Some(rescaling) = &self.rescaling {
                let blocks = &buffers.new[start / 16..end.div_ceil(16)];
                rescaling.count(codes, blocks, (row * columns + start) as u64, tally);
            }
            writer.store_codes(row / all, row % all, start..end, codes);
        }
        true
    }
}
