//! Finds the blocks from which plain weights were decoded.
//!
//! The decision covers whole weights, so it is made before anything is written. A weight that was never in blocks of its
//! type fails within the first of them; a recovered one is read once more.

use crate::error::{Error, Result};
use crate::plan::quantization::{CodesSource, Quantization, Unrecovered};
use crate::plan::quantize::refuse_unrecovered;
use crate::plan::step::{Operation, Step};
use crate::progress::Observer;
use crate::quant::{BlockWeightEncoder, WeightEncoder};
use crate::text::shorten;
use crate::threads::in_order;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of values that a thread takes at a time.
const PIECE: u64 = 1 << 20;

/// A search for the blocks of all weights.
pub(super) struct BlockSearch<'r> {
    /// True if weights without such blocks are refused.
    pub must_find: bool,
    pub observer: &'r dyn Observer,
}

impl BlockSearch<'_> {
    /// Searches the blocks of plain weights. Fails if a weight must be recovered and is not.
    pub(super) fn run(&self, steps: &mut [Step], threads: usize) -> Result<()> {
        let encoded = steps.iter_mut().filter_map(|step| match &mut step.how {
            Operation::Encode(weight) => Some((encoder_of(weight)?, &mut **weight)),
            _ => None,
        });
        let mut searched: Vec<(Arc<BlockWeightEncoder>, &mut Quantization)> = encoded.collect();
        let misfits = self.misfits(&searched, threads)?;
        let mut failed = Vec::new();
        for ((encoder, weight), misfit) in searched.iter_mut().zip(misfits) {
            weight.codes = match misfit {
                None => CodesSource::RecoveredBlocks(Arc::clone(encoder)),
                Some(at) => {
                    let (columns, format) = (weight.rows.encoder.columns(), encoder.format().name);
                    let (name, place) = (shorten(&weight.name), [at / columns, at % columns]);
                    failed
                        .push(format!("{name}: no blocks of {format} decode to its values, from element {place:?} on"));
                    CodesSource::Values { extremes: None, unrecovered: Some(Unrecovered::NotFound(misfit)) }
                }
            };
        }
        if self.must_find { refuse_unrecovered(failed) } else { Ok(()) }
    }

    /// Returns the first element without a block, for each weight.
    fn misfits(
        &self,
        searched: &[(Arc<BlockWeightEncoder>, &mut Quantization)],
        threads: usize,
    ) -> Result<Vec<Option<u64>>> {
        let rows: Vec<_> = searched.iter().map(|(_, weight)| &weight.rows).collect();
        let failed: Vec<AtomicBool> = rows.iter().map(|_| AtomicBool::new(false)).collect();
        let bytes = rows.iter().map(|rows| rows.encoder.rows() * rows.encoder.row_bytes()).sum();
        let progress = self.observer.progress("recovering", bytes);
        let all = rows.iter().enumerate();
        let pieces = all.flat_map(|(at, weight)| weight.row_pieces(PIECE).map(move |rows| (at, rows)));
        let work = |(values, blocks): &mut (Vec<u8>, Vec<u8>), (at, piece): (usize, Range<u64>)| {
            progress.advance((piece.end - piece.start) * rows[at].encoder.row_bytes());
            if failed[at].load(Ordering::Relaxed) {
                return Ok((at, Ok(())));
            }
            let range = &rows[at].encoder.part_ranges(piece.clone())[0];
            blocks.resize((range.end - range.start) as usize, 0);
            let source = rows[at].read(piece.clone(), values)?;
            let found = searched[at].0.recover(&piece, source, blocks);
            failed[at].fetch_or(found.is_err(), Ordering::Relaxed);
            Ok::<_, Error>((at, found))
        };
        let mut misfits = vec![None; rows.len()];
        in_order(threads as u64, pieces, Default::default, work, |(at, found)| {
            // All pieces before the first failure are searched; later ones may be skipped.
            misfits[at] = misfits[at].or(found.err());
            ControlFlow::Continue(())
        })?;
        Ok(misfits)
    }
}

/// Returns the encoder of a weight, if blocks can be found in its values.
fn encoder_of(weight: &Quantization) -> Option<Arc<BlockWeightEncoder>> {
    let WeightEncoder::Blocks(encoder) = &weight.rows.encoder else { return None };
    let is_plain = weight.rows.decoder().is_none();
    (is_plain && encoder.can_recover()).then(|| Arc::clone(encoder))
}
