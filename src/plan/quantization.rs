//! Quantization of a weight in a plan: where its values come from, and how its codes and scales are made.

use super::weight_rows::{SharedExtremes, WeightRows};
use crate::conversion::{Conversion, NamedElements};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::kernel::{Counts, Loss};
use crate::options::StochasticRounding;
use crate::quant::{
    BlockWeightEncoder, Dither, EncodeTally, EncodedPart, Extremes, Neighbours, Recoverer, ScaleMatch, SharedScale,
    Transcoder, Transposer, WeightEncoder,
};
use std::ops::Range;
use std::sync::Arc;

/// Quantization of a weight in a step.
pub(crate) struct Quantization<'a> {
    /// The name of the weight in the output: `x.weight`.
    pub name: String,
    pub rows: WeightRows<'a>,
    /// The name of its scheme.
    pub scheme: &'static str,
    pub codes: CodesSource<'a>,
    /// The random numbers with which its values are rounded; `None` rounds them to the nearest.
    pub dither: Option<Dither>,
}

/// Source of the codes and scales of a weight.
#[derive(Clone)]
pub(crate) enum CodesSource<'a> {
    /// They are computed from the values.
    Values {
        /// The largest magnitude of whole tensors, if the scale depends on it.
        extremes: Option<Arc<SharedExtremes<'a>>>,
        /// The result of the search for the codes from which the values were decoded; `None` without a search.
        unrecovered: Option<Unrecovered>,
    },
    /// They are found in the values, which were decoded from them.
    Recovered(Arc<Recoverer>, SharedScale, ScaleMatch),
    /// The same, in blocks.
    RecoveredBlocks(Arc<BlockWeightEncoder>),
    /// They are moved from the layout of the input.
    Moved(Arc<Transcoder>),
    /// They are moved to the transpose, in a model.
    Transposed(Arc<Transposer>),
    /// They are the blocks of the input, which has them in the same format.
    Copied,
    /// There are none: the values become plain numbers.
    Cast(Arc<Conversion>),
}

/// Reason why no codes and scales were found from which the values of a weight were decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unrecovered {
    /// No codes and scales exist for this element, counted in row-major order; `None` if the first values have more
    /// distinct magnitudes than there are codes.
    NotFound(Option<u64>),
    /// Codes and scales exist, but not for all weights that share its scale.
    NotShared,
}

impl CodesSource<'_> {
    /// Codes and scales that are computed from values, with a scale for each weight.
    pub(crate) const COMPUTED: Self = Self::Values { extremes: None, unrecovered: None };
}

impl Quantization<'_> {
    /// Returns the names of the parts, in the order of [`WeightEncoder::parts`].
    pub(crate) fn part_names(&self) -> impl Iterator<Item = String> {
        let has_suffixes = self.rows.encoder.grid().is_some();
        let stem = self.name.strip_suffix(".weight").filter(|_| has_suffixes).unwrap_or(&self.name);
        self.rows.encoder.parts().iter().map(move |part| format!("{stem}{}", part.suffix))
    }

    /// Returns the conversion of values that become plain numbers.
    pub(crate) fn cast(&self) -> Option<&Conversion> {
        if let CodesSource::Cast(conversion) = &self.codes { Some(conversion) } else { None }
    }

    /// The elements of the weight, for messages that name one.
    pub(crate) fn elements(&self) -> NamedElements<'_> {
        let encoder = &self.rows.encoder;
        NamedElements { count: encoder.rows() * encoder.columns(), shape: encoder.shape(), fortran_order: false }
    }

    /// Lets the values that adapters change be rounded at random, by its final name. Others stay as near as they can be.
    pub(super) fn round_at_random(&mut self, rounding: StochasticRounding) -> Result<()> {
        if self.rows.merges().next().is_none() {
            return Ok(());
        }
        let refused = match (&self.codes, &self.rows.encoder) {
            (CodesSource::Cast(conversion), _) => {
                let to = conversion.to.dtype();
                (to != Dtype::Float64 && Neighbours::of(to).is_none()).then(|| format!("values of {to}"))
            }
            (_, WeightEncoder::Grid(encoder)) => (!encoder.has_dither()).then(|| "rotated values".to_owned()),
            (_, encoder) => Some(format!("the blocks of {}", encoder.parts()[0].format.map_or("GGUF", |it| it.name))),
        };
        if let Some(what) = refused {
            let error = Error::usage(format!("{what} cannot be rounded at random")).in_tensor(&self.name);
            return Err(error.without(Opt::ROUNDING));
        }
        self.dither = Some(Dither::new(rounding.seed, &self.name));
        Ok(())
    }

    /// Rounds values to plain numbers at random, as float64, from an element on. Adds to the counts what the conversion of
    /// the result does not show. `None` if they are rounded to nearest.
    pub(crate) fn rounded(&self, first: u64, values: &[u8], counts: &mut Counts) -> Option<Vec<u8>> {
        let (dither, neighbours) = (self.dither?, Neighbours::of(self.cast()?.to.dtype())?);
        let mut rounded = values.to_vec();
        for (element, bytes) in (first..).zip(rounded.as_chunks_mut().0) {
            let value = f64::from_le_bytes(*bytes);
            let new = dither.round(element, value, &neighbours);
            counts[Loss::Inexact] += u64::from((new - value).abs() > 0.0);
            counts[Loss::Flushed] += u64::from(new == 0.0 && value != 0.0);
            *bytes = new.to_le_bytes();
        }
        Some(rounded)
    }

    /// True if a first pass has to find the largest magnitude of whole tensors.
    pub(crate) fn has_first_pass(&self) -> bool {
        matches!(self.codes, CodesSource::Values { extremes: Some(_), .. })
    }

    /// Returns the bytes of a row: of its values, or if none are computed, of its codes and scales in the input or in the
    /// output, whichever are more.
    pub(crate) fn row_bytes(&self) -> u64 {
        let encoder = &self.rows.encoder;
        match &self.codes {
            CodesSource::Moved(_) | CodesSource::Transposed(_) | CodesSource::Copied => {
                let output: u64 = encoder.parts().iter().map(EncodedPart::byte_len).sum();
                self.rows.bytes(&(0..encoder.rows())).max(output).div_ceil(encoder.rows().max(1))
            }
            CodesSource::Values { .. }
            | CodesSource::Recovered(..)
            | CodesSource::RecoveredBlocks(_)
            | CodesSource::Cast(_) => encoder.row_bytes(),
        }
    }

    /// Encodes some rows into the buffers of [`WeightEncoder::part_ranges`]. `buffer` is for values.
    pub(crate) fn encode(
        &self,
        rows: Range<u64>,
        buffer: &mut Vec<u8>,
        outputs: &mut [&mut [u8]],
        tally: &mut EncodeTally,
    ) -> Result<()> {
        let first = rows.start * self.rows.encoder.columns();
        let count = (rows.end - rows.start) * self.rows.encoder.columns();
        match (&self.codes, &self.rows.encoder) {
            (CodesSource::Moved(transcoder), _) => {
                let parts = self.rows.parts(&rows)?;
                transcoder.transcode(rows, &parts, outputs, tally);
            }
            (CodesSource::Transposed(transposer), encoder) => {
                // A new row consists of codes of all rows.
                let parts = self.rows.parts(&(0..encoder.rows()))?;
                transposer.transpose(rows, &parts, outputs, tally);
            }
            (CodesSource::Recovered(recoverer, shared, _), _) => {
                let values = self.rows.read(rows.clone(), buffer)?;
                let encoded = recoverer.encode(rows, values, shared, outputs, tally);
                encoded.map_err(|_| self.rows.changed())?;
            }
            (CodesSource::RecoveredBlocks(encoder), _) => {
                let values = self.rows.read(rows.clone(), buffer)?;
                encoder.recover(&rows, values, outputs[0]).map_err(|_| self.rows.changed())?;
                tally.values += count;
            }
            (CodesSource::Copied, encoder) => {
                let range = &encoder.part_ranges(rows)[0];
                outputs[0].copy_from_slice(self.rows.stored(range.start as usize..range.end as usize)?);
                tally.values += count;
            }
            (CodesSource::Values { extremes, .. }, WeightEncoder::Grid(encoder)) => {
                let values = self.rows.read(rows.clone(), buffer)?;
                let unneeded = Extremes::default();
                let extremes = extremes.as_ref().map_or(&unneeded, |set| set.get().expect("the first pass is over"));
                tally.dither = self.dither;
                encoder.encode(rows.clone(), values, extremes, outputs, tally);
                if tally.first_special.is_none() && !tally.skips_errors {
                    encoder.count_infinite(&rows, values, extremes, outputs, tally)?;
                }
            }
            (CodesSource::Values { .. }, WeightEncoder::Blocks(encoder)) => {
                let values = self.rows.read(rows.clone(), buffer)?;
                let refused = |refusal| self.rows.refusal(refusal, first);
                encoder.encode(rows, values, outputs[0], tally).map_err(refused)?;
            }
            (CodesSource::Cast(_), _) | (_, WeightEncoder::Plain(_)) => {
                unreachable!("plain numbers are cast, not encoded")
            }
        }
        tally.first_special.map_or(Ok(()), |element| Err(self.rows.special(element)))
    }
}
