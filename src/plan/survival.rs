//! Measures how much of the delta of adapters is in what a step writes.

use super::quantization::{CodesSource, Quantization};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::lora::{Merge, SurvivalTally, Survivors, narrow, widen};
use crate::quant::{EncodeTally, Extremes, WeightEncoder};
use std::ops::Range;

/// Number of values of a weight that are measured. Of more, some pieces are.
const ENOUGH: u64 = 1 << 20;

/// Number of values that are compared at a time, if rows are not longer: they stay in a cache, and their memory is used
/// again.
const FEW: u64 = 1 << 14;

/// Buffers for the values of a few rows, and for the errors of the rows of a piece.
#[derive(Default)]
pub(crate) struct FewRows {
    bytes: Vec<u8>,
    base: Vec<f64>,
    merged: Vec<f64>,
    stored_base: Vec<f64>,
    stored_merged: Vec<f64>,
    errors: Vec<f64>,
}

impl Quantization<'_> {
    /// Returns the changes of its values, if they are those of one tensor.
    pub(crate) fn merge(&self) -> Option<&Merge> {
        let mut merges = self.rows.merges();
        merges.next().filter(|_| merges.next().is_none())
    }

    /// Measures some rows that were encoded from `values` as `outputs`. `None` if adapters do not change them, or if enough
    /// others are measured.
    pub(crate) fn survival(
        &self,
        rows: &Range<u64>,
        values: &[u8],
        outputs: &[&mut [u8]],
        few: &mut FewRows,
    ) -> Result<Option<SurvivalTally>> {
        if self.rows.merges().next().is_none() {
            return Ok(None);
        }
        let encoder = &self.rows.encoder;
        let every = (encoder.rows() * encoder.columns()).div_ceil(ENOUGH).max(1);
        if !(rows.start / (rows.end - rows.start).max(1)).is_multiple_of(every) {
            return Ok(None);
        }
        let mut tally = SurvivalTally::default();
        few.errors.clear();
        let whole = encoder.part_ranges(rows.clone());
        let row_bytes = values.len() / (rows.end - rows.start).max(1) as usize;
        let step = (FEW / encoder.columns().max(1)).max(1).next_multiple_of(encoder.row_alignment());
        for start in rows.clone().step_by(step as usize) {
            let part = start..rows.end.min(start + step);
            let ranges = encoder.part_ranges(part.clone());
            let places = ranges.iter().zip(&whole).zip(outputs).map(|((range, whole), output)| {
                let start = range.start.saturating_sub(whole.start) as usize;
                &output[start..][..(range.end - range.start) as usize]
            });
            let [before, after] = [part.start, part.end].map(|row| (row - rows.start) as usize * row_bytes);
            if !self.compare(&part, &values[before..after], &places.collect::<Vec<_>>(), few)? {
                return Ok(None);
            }
            let FewRows { base, merged, stored_base, stored_merged, errors, .. } = &mut *few;
            tally.count(&Survivors { base, merged, stored_base, stored_merged }, errors);
        }
        if let (Some(merge), Some(first)) = (self.merge(), self.rows.first_element(rows)) {
            tally.project(merge, first, &few.errors);
        }
        Ok(Some(tally))
    }

    /// Finds the values of a few rows without and with the changes of adapters, and those that are stored for both. False if
    /// they cannot be compared.
    fn compare(&self, rows: &Range<u64>, values: &[u8], outputs: &[&[u8]], few: &mut FewRows) -> Result<bool> {
        let FewRows { bytes, base, merged, stored_base, stored_merged, .. } = few;
        widen(self.rows.base_dtype(), self.rows.read_base(&self.rows.values, rows.clone(), bytes)?, base);
        widen(self.rows.dtype(), values, merged);
        if !self.stored_values(rows, outputs, bytes, stored_merged)? {
            return Ok(false);
        }
        match (self.rows.decoder(), &self.codes) {
            // Its values are on the grid already.
            (Some(_), _) => stored_base.clone_from(base),
            (None, CodesSource::Cast(conversion)) if conversion.to.dtype() == self.rows.base_dtype() => {
                stored_base.clone_from(base);
            }
            (None, CodesSource::Cast(conversion)) => {
                let target = conversion.to.dtype();
                if narrow(base, target, bytes).is_none() {
                    return Ok(false);
                }
                widen(target, bytes, stored_base);
            }
            (None, _) => {
                narrow(base, self.rows.dtype(), bytes).expect("merged values are floats");
                let mut written: Vec<Vec<u8>> = outputs.iter().map(|output| vec![0; output.len()]).collect();
                let mut places: Vec<&mut [u8]> = written.iter_mut().map(|bytes| &mut bytes[..]).collect();
                let mut tally = EncodeTally::default();
                tally.skips_errors = true;
                let is_encoded = match &self.rows.encoder {
                    WeightEncoder::Grid(encoder) => {
                        encoder.encode(rows.clone(), bytes, self.extremes(), &mut places, &mut tally);
                        true
                    }
                    WeightEncoder::Blocks(encoder) => {
                        encoder.encode(rows.clone(), bytes, places[0], &mut tally).is_ok()
                    }
                    WeightEncoder::Plain(_) => false,
                };
                let outputs: Vec<&[u8]> = written.iter().map(|bytes| &bytes[..]).collect();
                if !is_encoded || !self.stored_values(rows, &outputs, bytes, stored_base)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn extremes(&self) -> &Extremes {
        static NONE: Extremes = Extremes::NONE;
        match &self.codes {
            CodesSource::Values { extremes: Some(set), .. } => set.get().unwrap_or(&NONE),
            _ => &NONE,
        }
    }

    /// Finds the values that outputs stand for; `bytes` is a buffer. False if they are of a type without values.
    fn stored_values(
        &self,
        rows: &Range<u64>,
        outputs: &[&[u8]],
        bytes: &mut Vec<u8>,
        values: &mut Vec<f64>,
    ) -> Result<bool> {
        match &self.rows.encoder {
            WeightEncoder::Plain(_) => {
                let dtype = self.rows.encoder.parts()[0].dtype;
                if !dtype.is_floating() || dtype.bits() < 8 {
                    return Ok(false);
                }
                widen(dtype, outputs[0], values);
            }
            WeightEncoder::Blocks(encoder) => widen(Dtype::Float32, &encoder.decoded(outputs[0]), values),
            WeightEncoder::Grid(encoder) => {
                encoder.decode(rows, self.extremes(), outputs, bytes)?;
                widen(Dtype::Float64, bytes, values);
            }
        }
        Ok(true)
    }
}
