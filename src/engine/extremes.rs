//! The first pass over weights whose scale depends on the largest magnitude of whole tensors.

use super::pieces::PIECE;
use crate::error::Result;
use crate::plan::{Operation, Plan, SharedExtremes};
use crate::progress::Progress;
use crate::quant::Extremes;
use crate::threads::in_order;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Some rows of a member of a set.
struct MemberRows {
    set: usize,
    member: usize,
    rows: Range<u64>,
}

/// Finds the largest magnitudes that the steps of a plan need and that no earlier plan has found. Progress counts half
/// of the bytes, because encoding reads them a second time.
///
/// # Errors
/// When a tensor cannot be read, or an element is infinite or NaN. The error names the first one, for any number of
/// threads.
pub(super) fn find(plan: &Plan, threads: u64, progress: &dyn Progress) -> Result<()> {
    let mut sets: Vec<&Arc<SharedExtremes>> = Vec::new();
    for step in &plan.steps {
        let Operation::Encode(weight) = &step.how else { continue };
        if let Some(set) = weight.extremes.as_ref().filter(|set| set.get().is_none()) {
            // The weights of a set are mostly close together, so the search starts at the last set.
            if !sets.iter().rev().any(|known| Arc::ptr_eq(known, set)) {
                sets.push(set);
            }
        }
    }
    let pieces = sets.iter().enumerate().flat_map(|(set, extremes)| {
        extremes.members.iter().enumerate().flat_map(move |(member, weight)| {
            let (all, count) = (weight.encoder.rows(), (PIECE / weight.encoder.row_bytes().max(1)).max(1));
            let rows = (0..all).step_by(count as usize).map(move |start| start..all.min(start + count));
            rows.map(move |rows| MemberRows { set, member, rows })
        })
    });
    let work = |room: &mut Vec<u8>, MemberRows { set, member, rows }: MemberRows| {
        let weight = &sets[set].members[member];
        let columns = weight.encoder.shape().last().copied().unwrap_or(1);
        let first = rows.start * columns;
        let bytes = weight.read(rows.clone(), room)?;
        let found = if weight.encoder.has_column_scales() {
            Extremes::of_columns(weight.dtype(), bytes, first, columns)
        } else {
            Extremes::of(weight.dtype(), bytes, first)
        };
        progress.advance(weight.bytes(&rows) / 2);
        match found.first_special {
            Some(element) => Err(weight.special(element)),
            None => Ok((set, found)),
        }
    };
    let mut found = vec![Extremes::default(); sets.len()];
    in_order(threads, pieces, Vec::new, work, |(set, next)| {
        found[set].merge(&next);
        ControlFlow::Continue(())
    })?;
    for (set, found) in sets.into_iter().zip(found) {
        set.set(found);
    }
    Ok(())
}
