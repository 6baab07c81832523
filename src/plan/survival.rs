//! Measures how much of the delta of adapters is in what a step writes.

use super::quantization::{CodesSource, Quantization};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::kernel::{Kernel, Rules, Storage};
use crate::lora::{Merge, SurvivalTally, Survivors, narrow, widen};
use crate::quant::{EncodeTally, Extremes, WeightEncoder};
use std::ops::Range;

/// Number of values of a weight that are measured. Of more, some pieces are.
const ENOUGH: u64 = 1 << 20;

impl Quantization<'_> {
    /// Returns the only changes of its values, if adapters change them.
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
    ) -> Result<Option<SurvivalTally>> {
        let Some(merge) = self.merge() else { return Ok(None) };
        let every = (self.rows.encoder.rows() * self.rows.encoder.columns()).div_ceil(ENOUGH).max(1);
        if !(rows.start / (rows.end - rows.start).max(1)).is_multiple_of(every) {
            return Ok(None);
        }
        let Some((first, base)) = self.rows.base_values(rows)? else { return Ok(None) };
        let mut merged = Vec::new();
        widen(self.rows.dtype(), values, &mut merged);
        let Some(stored_merged) = self.stored_values(rows, outputs)? else { return Ok(None) };
        let is_same = |target: Dtype| self.rows.base_dtype() == target;
        let stored_base = match (self.rows.decoder(), &self.codes) {
            // Its values are on the grid already.
            (Some(_), _) => base.clone(),
            (None, CodesSource::Cast(conversion)) if is_same(conversion.to.dtype()) => base.clone(),
            (None, CodesSource::Cast(conversion)) => {
                let target = conversion.to.dtype();
                let [from, to] = [Dtype::Float64, target].map(Storage::packed);
                let Some(kernel) = Kernel::cast(from, to, &Rules::default()) else { return Ok(None) };
                let mut bytes = Vec::new();
                narrow(&base, Dtype::Float64, &mut bytes);
                let mut written = vec![0; base.len() * target.bits() as usize / 8];
                if kernel.run(&bytes, &mut written, base.len()).is_err() {
                    return Ok(None);
                }
                let mut stored = Vec::new();
                widen(target, &written, &mut stored);
                stored
            }
            (None, _) => {
                let mut bytes = Vec::new();
                narrow(&base, self.rows.dtype(), &mut bytes);
                let mut written: Vec<Vec<u8>> = outputs.iter().map(|output| vec![0; output.len()]).collect();
                let mut outputs: Vec<&mut [u8]> = written.iter_mut().map(|bytes| &mut bytes[..]).collect();
                let mut tally = EncodeTally::default();
                tally.skips_errors = true;
                let encoded = self.rows.encoder.encode(rows.clone(), &bytes, self.extremes(), &mut outputs, &mut tally);
                match encoded.ok().map(|()| self.stored_values(rows, &outputs)).transpose()?.flatten() {
                    Some(stored) => stored,
                    None => return Ok(None),
                }
            }
        };
        let mut tally = SurvivalTally::default();
        let (stored_base, stored_merged) = (&stored_base[..], &stored_merged[..]);
        tally.add(merge, &Survivors { first, base: &base, merged: &merged, stored_base, stored_merged });
        Ok(Some(tally))
    }

    fn extremes(&self) -> &Extremes {
        static NONE: Extremes = Extremes::NONE;
        match &self.codes {
            CodesSource::Values { extremes: Some(set), .. } => set.get().unwrap_or(&NONE),
            _ => &NONE,
        }
    }

    /// Returns the values that outputs stand for; `None` if they are of a type without values.
    fn stored_values(&self, rows: &Range<u64>, outputs: &[&mut [u8]]) -> Result<Option<Vec<f64>>> {
        let mut values = Vec::new();
        match &self.rows.encoder {
            WeightEncoder::Plain(_) => {
                let dtype = self.rows.encoder.parts()[0].dtype;
                if !dtype.is_floating() || dtype.bits() < 8 {
                    return Ok(None);
                }
                widen(dtype, outputs[0], &mut values);
            }
            WeightEncoder::Blocks(encoder) => widen(Dtype::Float32, &encoder.decoded(outputs[0]), &mut values),
            WeightEncoder::Grid(encoder) => {
                let bytes = encoder.decoded(rows, self.extremes(), outputs)?;
                widen(Dtype::Float64, &bytes, &mut values);
            }
        }
        Ok(Some(values))
    }
}
