//! Finds the codes and scales that the values of a weight were decoded from.
//!
//! A weight is recovered if each of its groups has a scale with which the decoder makes the same bits from the nearest
//! codes, for all values of the group. There are few candidates for each group ([`candidates`]), and wrong ones fail
//! within a few values, so a weight that was never quantized costs almost nothing.

mod candidates;
mod redecode;

use super::super::decode::Arithmetic;
use super::super::layout::Combination;
use super::choose::Chooser;
use super::encoder::Encoder;
use super::extremes::{INFINITY, first_special, largest};
use super::geometry::Band;
use super::lanes::{self, CodeRounding};
use super::rounding::WeightType;
use super::store::PartWriter;
use super::tally::EncodeTally;
use crate::dtype::Dtype;
use crate::kernel::Loop;
use candidates::{ScaleCandidates, StoredScale};
use redecode::{Redecoding, SEGMENT, Segment};
use std::ops::Range;
use std::sync::Arc;

/// Finds codes and scales of one weight.
pub struct Recoverer {
    encoder: Arc<Encoder>,
    candidates: ScaleCandidates,
    redecoding: Redecoding,
}

/// The scale shared by all groups of a weight, and by weights that engines fuse with it: the global scale, or the only
/// scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedScale {
    global: f32,
    only: Option<StoredScale>,
}

/// Certainty of recovered scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleMatch {
    /// They follow from the values and the rule of the library.
    Derived,
    /// Some are among many float32 scales that decode to the same values.
    Equivalent,
}

impl Recoverer {
    /// Creates a recoverer for the weights that `encoder` takes. `origin` is the type of the quantized values: the type
    /// of the encoder's source, or bfloat16 if values were decoded to a wider type. `arithmetic` is the arithmetic of
    /// the decoder. Panics if the origin is not float32, bfloat16 or float16.
    #[must_use]
    pub fn new(encoder: Arc<Encoder>, origin: Dtype, arithmetic: Arithmetic) -> Self {
        let Encoder { layout, geometry, chooser, rounding, .. } = &*encoder;
        let origin = WeightType::new(origin).expect("weights are float32, bfloat16 or float16");
        let half = if let CodeRounding::Int { low, .. } = rounding { Some(-low) } else { None };
        let chooser = Chooser { weight: origin, is_exact: false, ..*chooser };
        let (stored, has_zeros) = (geometry.parts[1].dtype, chooser.zero_bits().is_some());
        Self {
            candidates: ScaleCandidates::new(chooser, layout.exponents, half),
            redecoding: Redecoding::new(layout, *rounding, has_zeros, stored, encoder.weight, arithmetic),
            encoder,
        }
    }

    #[must_use]
    pub fn encoder(&self) -> &Arc<Encoder> {
        &self.encoder
    }

    /// Returns candidates for the shared scale if the largest magnitude of all weights that share it is `largest`.
    /// `largest` matters only if [`Encoder::needs_extremes`].
    #[must_use]
    pub fn shared_scales(&self, largest: f32) -> Vec<SharedScale> {
        let is_global = self.encoder.layout.global != Combination::Nothing;
        if is_global {
            let globals = self.candidates.globals(largest).into_iter();
            return globals.map(|global| SharedScale { global, only: None }).collect();
        }
        let mut scales = vec![SharedScale { global: 1.0, only: None }];
        if self.encoder.geometry.is_tensor {
            scales.clear();
            let mut collect = |only: StoredScale| {
                let shared = SharedScale { global: 1.0, only: Some(only) };
                if !scales.contains(&shared) {
                    scales.push(shared);
                }
                false
            };
            self.candidates.find(largest, [-largest, largest], 1.0, &mut collect);
        }
        scales
    }

    /// True if the first values of a weight could come from codes, judging by the number of distinct magnitudes.
    /// Otherwise no pass over the whole weight is needed. `source` holds whole rows.
    #[must_use]
    pub fn may_fit(&self, source: &[u8]) -> bool {
        /// Enough to have more values than there are codes.
        const LOOKED_AT: usize = 4096;
        let Encoder { geometry, width, weight, .. } = &*self.encoder;
        let codes = 1_usize << (geometry.bits - 1);
        let size = if geometry.is_tensor { LOOKED_AT } else { geometry.block[1] as usize };
        let row = &source[..source.len().min(geometry.columns as usize * width)];
        let row = if geometry.is_tensor { source } else { row };
        row[..row.len().min(LOOKED_AT * width)].chunks(size * width).all(|group| {
            let mut magnitudes: Vec<u32> =
                group.chunks_exact(*width).map(|value| lanes::number(*weight, value).abs().to_bits()).collect();
            magnitudes.sort_unstable();
            magnitudes.dedup();
            magnitudes.len() <= codes + 1
        })
    }

    /// Checks that all groups of some rows have scales, and returns the kind of scales. `rows` and `source` are as in
    /// [`Encoder::encode`]. The error is the index of an element without a scale, in row-major order in the whole
    /// weight.
    pub fn check(&self, rows: Range<u64>, source: &[u8], shared: &SharedScale) -> Result<ScaleMatch, u64> {
        self.run(rows, source, shared, None)
    }

    /// Writes codes and scales of some rows, as [`Encoder::encode`] does.
    pub fn encode(
        &self,
        rows: Range<u64>,
        source: &[u8],
        shared: &SharedScale,
        outputs: &mut [&mut [u8]],
        tally: &mut EncodeTally,
    ) -> Result<(), u64> {
        let values = (rows.end - rows.start) * self.encoder.columns();
        let writer = PartWriter::new(&self.encoder, &rows, outputs, shared.global);
        self.run(rows, source, shared, Some(writer))?;
        tally.values += values;
        Ok(())
    }

    fn run(
        &self,
        rows: Range<u64>,
        source: &[u8],
        shared: &SharedScale,
        writer: Option<PartWriter>,
    ) -> Result<ScaleMatch, u64> {
        assert_eq!(
            source.len() as u64,
            (rows.end - rows.start) * self.encoder.row_bytes(),
            "the source is as long as the rows"
        );
        if rows.is_empty() {
            return Ok(ScaleMatch::Derived);
        }
        let (segment, matched) = (Segment::new(), ScaleMatch::Derived);
        self.encoder.isa.run(RecoverRows { recoverer: self, rows, source, shared: *shared, writer, segment, matched })
    }
}

/// The rows of one call.
struct RecoverRows<'a, 'o> {
    recoverer: &'a Recoverer,
    rows: Range<u64>,
    source: &'a [u8],
    shared: SharedScale,
    writer: Option<PartWriter<'a, 'o>>,
    segment: Segment,
    /// The kind of scales so far.
    matched: ScaleMatch,
}

/// The values of a group that are among the rows of the call.
struct RecoverGroup {
    matrix: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Loop for RecoverRows<'_, '_> {
    type Result = Result<ScaleMatch, u64>;

    #[inline(always)]
    fn run(mut self) -> Result<ScaleMatch, u64> {
        let geometry = &self.recoverer.encoder.geometry;
        let (width, beside) = (geometry.columns as usize, geometry.block[1] as usize);
        if let (Some(writer), Some(only), 0) = (&mut self.writer, self.shared.only, self.rows.start) {
            writer.store_only_scale(only);
        }
        for Band { matrix, rows } in geometry.bands(&self.rows) {
            for (at, column) in (0..width).step_by(beside).enumerate() {
                let columns = column..(column + beside).min(width);
                self.group(&RecoverGroup { matrix, rows: rows.clone(), columns }, at)?;
            }
        }
        Ok(self.matched)
    }
}

impl<'a> RecoverRows<'a, '_> {
    /// Finds the scale of the group with this index in its row of groups, and stores it and the codes.
    #[inline(always)]
    fn group(&mut self, group: &RecoverGroup, at: usize) -> Result<(), u64> {
        let found = match self.shared.only {
            Some(only) => self.fit(group, only, false).map(|()| only)?,
            None => self.find(group)?,
        };
        if let Some(writer) = &mut self.writer {
            if self.shared.only.is_none() {
                writer.store_scales(group.matrix, group.rows.start, at, std::iter::once(found));
            }
            self.fit(group, found, true)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn find(&mut self, group: &RecoverGroup) -> Result<StoredScale, u64> {
        let Recoverer { encoder, candidates, .. } = self.recoverer;
        let mut top = 0;
        let mut bounds = [f32::INFINITY, f32::NEG_INFINITY];
        for row in group.rows.clone() {
            let bytes = self.source_bytes(group, row, group.columns.clone());
            top = top.max(largest(encoder.weight, bytes));
            if candidates.chooser.zero_bits().is_some() {
                for bytes in bytes.chunks(SEGMENT * encoder.width) {
                    let values = &mut self.segment.values[..bytes.len() / encoder.width];
                    lanes::widen(encoder.weight, bytes, values);
                    let [low, high] = lanes::bounds(values);
                    bounds = [low.min(bounds[0]), high.max(bounds[1])];
                }
            }
            if top >= INFINITY {
                let at = first_special(encoder.weight, bytes).unwrap_or_default();
                return Err(encoder.geometry.element(group.matrix, row, group.columns.start + at / encoder.width));
            }
        }
        let (global, mut furthest) = (self.shared.global, 0);
        let test = |scale: StoredScale| match self.fit(group, scale, false) {
            Ok(()) => true,
            Err(element) => {
                furthest = furthest.max(element);
                false
            }
        };
        let found = candidates.find(f32::from_bits(top), bounds, global, test);
        found.or_else(|| self.equivalent(group, f32::from_bits(top))).ok_or(furthest)
    }

    /// Returns a float32 scale from the middle of a range: all scales in the range decode to the same values.
    #[inline(never)]
    fn equivalent(&mut self, group: &RecoverGroup, top: f32) -> Option<StoredScale> {
        let Recoverer { encoder, candidates, redecoding } = self.recoverer;
        let is_known = candidates.chooser.stored != Dtype::Float32 || candidates.chooser.zero_bits().is_some();
        if is_known || !redecoding.has_wide_scales() {
            return None;
        }
        let near = redecoding.factor(top / candidates.chooser.largest, 1.0, 0.0);
        let mut range = [0.0, f64::INFINITY];
        for row in group.rows.clone() {
            for column in group.columns.clone().step_by(SEGMENT) {
                let columns = column..(column + SEGMENT).min(group.columns.end);
                let (bytes, count) = (self.source_bytes(group, row, columns.clone()), columns.len());
                lanes::widen(encoder.weight, bytes, &mut self.segment.values[..count]);
                if !redecoding.narrow(&near, &mut self.segment, count, &mut range) {
                    return None;
                }
            }
        }
        let scale = (f64::midpoint(range[0], range[1]) as f32).to_bits();
        self.fit(group, (scale, 0.0), false).ok()?;
        self.matched = ScaleMatch::Equivalent;
        Some((scale, 0.0))
    }

    /// Checks that all values of a group are codes times this scale; stores the codes if wanted.
    #[inline(always)]
    fn fit(&mut self, group: &RecoverGroup, (stored, zero): StoredScale, is_stored: bool) -> Result<(), u64> {
        let Recoverer { encoder, candidates, redecoding } = self.recoverer;
        let factor = redecoding.factor(candidates.number(stored), self.shared.global, zero);
        for row in group.rows.clone() {
            for column in group.columns.clone().step_by(SEGMENT) {
                let columns = column..(column + SEGMENT).min(group.columns.end);
                let (bytes, count) = (self.source_bytes(group, row, columns.clone()), columns.len());
                lanes::widen(encoder.weight, bytes, &mut self.segment.values[..count]);
                if !redecoding.fit(&factor, &mut self.segment, count) {
                    return Err(encoder.geometry.element(
                        group.matrix,
                        row,
                        column + Redecoding::misfit(&self.segment),
                    ));
                }
                if let (Some(writer), true) = (&mut self.writer, is_stored) {
                    writer.store_codes(group.matrix, row, columns, &self.segment.codes[..count]);
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn source_bytes(&self, group: &RecoverGroup, row: usize, columns: Range<usize>) -> &'a [u8] {
        let Encoder { geometry, width, .. } = &*self.recoverer.encoder;
        let range = geometry.source_range(&self.rows, group.matrix, row, columns);
        &self.source[range.start * width..range.end * width]
    }
}
