//! Finds the blocks from which plain weights were decoded.
//!
//! The decision covers whole weights, so it is made before anything is written. A weight that was never in blocks of its
//! type fails within the first of them; a recovered one is read once more.

use crate::error::Result;
use crate::plan::quantization::{CodesSource, Quantization, Unrecovered};
use crate::plan::quantize::refuse_unrecovered;
use crate::plan::step::{Operation, Step};
use crate::plan::weight_rows::in_pieces;
use crate::progress::Observer;
use crate::quant::{BlockWeightEncoder, WeightEncoder};
use crate::text::shorten;
use std::ops::Range;
use std::sync::Arc;

/// Searches the blocks of plain weights. Fails if a weight must be recovered and is not.
pub(super) fn search(steps: &mut [Step], must_find: bool, threads: usize, observer: &dyn Observer) -> Result<()> {
    let encoded = steps.iter_mut().filter_map(|step| match &mut step.how {
        Operation::Encode(weight) => match &weight.rows.encoder {
            WeightEncoder::Blocks(encoder) if encoder.can_recover() && weight.rows.decoder().is_none() => {
                Some((Arc::clone(encoder), &mut **weight))
            }
            _ => None,
        },
        _ => None,
    });
    let mut searched: Vec<(Arc<BlockWeightEncoder>, &mut Quantization)> = encoded.collect();
    let weights: Vec<_> = searched.iter().enumerate().map(|(at, (_, weight))| ((at, 0), &weight.rows)).collect();
    let check = |(at, _): (usize, usize), rows: Range<u64>, source: &[u8], blocks: &mut Vec<u8>| {
        let range = &weights[at].1.encoder.part_ranges(rows.clone())[0];
        blocks.resize((range.end - range.start) as usize, 0);
        searched[at].0.recover(&rows, source, blocks)
    };
    // The first element without a block, for each weight.
    let mut misfits = vec![None; weights.len()];
    in_pieces(threads, ("recovering", observer), &weights, check, |(at, _), found| {
        misfits[at] = misfits[at].or(found.err());
    })?;
    let mut failed = Vec::new();
    for ((encoder, weight), misfit) in searched.iter_mut().zip(misfits) {
        weight.codes = match misfit {
            None => CodesSource::RecoveredBlocks(Arc::clone(encoder)),
            Some(at) => {
                let (columns, format) = (weight.rows.encoder.columns(), encoder.format().name);
                let (name, place) = (shorten(&weight.name), [at / columns, at % columns]);
                failed.push(format!("{name}: no blocks of {format} decode to its values, from element {place:?} on"));
                CodesSource::Values { extremes: None, unrecovered: Some(Unrecovered::NotFound(misfit)) }
            }
        };
    }
    if must_find { refuse_unrecovered(failed) } else { Ok(()) }
}
