//! The first pass over weights whose scale depends on the largest magnitude of whole tensors.
//!
//! It stays just ahead of the pieces that are encoded. The second pass over a tensor then finds its bytes in a cache of the
//! processor, or at least in memory: a file that does not fit there is read from the disk only once.

use super::pieces::PIECE;
use crate::error::{Error, Result};
use crate::plan::{CodesSource, SharedExtremes, Step};
use crate::progress::Progress;
use crate::quant::Extremes;
use std::collections::HashMap;
use std::iter::from_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Next work of a thread.
pub(super) enum WorkItem<P> {
    Scan(MemberRows),
    Convert(P),
}

/// Some rows of a member of a set, to scan.
#[derive(Clone)]
pub(super) struct MemberRows {
    set: usize,
    member: usize,
    rows: Range<u64>,
}

/// Sets of weights whose largest magnitudes some steps need and no earlier plan has found.
pub(super) struct FirstPass<'p, 'a> {
    sets: Vec<SetScan<'p, 'a>>,
    /// Index of each set, by its address.
    indices: HashMap<usize, usize>,
}

/// The scan of a set.
struct SetScan<'p, 'a> {
    set: &'p SharedExtremes<'a>,
    /// Sets of other plans with the same values.
    others: Vec<&'p SharedExtremes<'a>>,
    /// Extremes found so far, and the number of calls of [`FirstPass::scan`] still to come.
    found: Mutex<(Extremes, usize)>,
    /// Set when all rows are scanned, or a scan has failed.
    is_over: OnceLock<()>,
}

impl<'p, 'a> FirstPass<'p, 'a> {
    /// Finds the sets of these steps. Sets of several plans with the same values are scanned once.
    pub(super) fn new<'s: 'p>(steps: impl Iterator<Item = &'s Step<'a>>) -> Self
    where
        'a: 's,
    {
        let (mut sets, mut indices): (Vec<SetScan>, _) = (Vec::new(), HashMap::new());
        let mut by_first: HashMap<_, Vec<usize>> = HashMap::new();
        for set in steps.filter_map(extremes_of).filter(|set| set.get().is_none()) {
            let address = Arc::as_ptr(set).addr();
            if indices.contains_key(&address) {
                continue;
            }
            let alike = by_first.entry(set.first_source()).or_default();
            let index = if let Some(&same) = alike.iter().find(|at| sets[**at].set.is_same(set)) {
                sets[same].others.push(set);
                same
            } else {
                alike.push(sets.len());
                let count = rows_of(sets.len(), set).count();
                // No scan would wake a thread that waits for a set without rows.
                let is_over = if count == 0 { OnceLock::from(()) } else { OnceLock::new() };
                let found = Mutex::new((Extremes::default(), count));
                sets.push(SetScan { set, others: Vec::new(), found, is_over });
                sets.len() - 1
            };
            indices.insert(address, index);
        }
        Self { sets, indices }
    }

    /// Returns the pieces to convert. Before each of them come all scans that it needs, and a few of the next scans;
    /// `needed` is the last set that a piece needs.
    pub(super) fn work_items<P>(
        &self,
        pieces: impl Iterator<Item = P>,
        needed: impl Fn(&P) -> Option<usize>,
        threads: u64,
    ) -> impl Iterator<Item = WorkItem<P>> {
        let scans = self.sets.iter().enumerate().flat_map(|(at, scan)| rows_of(at, scan.set));
        interleave(scans, pieces.map(move |piece| (needed(&piece), piece)), 2 * threads)
    }

    /// Scans some rows. Progress counts half of the bytes, because encoding reads them a second time. Fails if an
    /// element is infinite or NaN.
    pub(super) fn scan(&self, rows: MemberRows, buffer: &mut Vec<u8>, progress: &dyn Progress) -> Result<()> {
        let MemberRows { set, member, rows } = rows;
        let scan = &self.sets[set];
        let mut end = EndOfWait { is_over: &scan.is_over, is_last: true };
        let weight = &scan.set.members[member];
        let columns = weight.encoder.shape().last().copied().unwrap_or(1);
        let first = rows.start * columns;
        let bytes = weight.read(rows.clone(), buffer)?;
        let next = if weight.encoder.has_column_scales() {
            Extremes::of_columns(weight.dtype(), bytes, first, columns)
        } else {
            Extremes::of(weight.dtype(), bytes, first)
        };
        progress.advance(weight.bytes(&rows) / 2);
        if let Some(element) = next.first_special {
            return Err(weight.special(element));
        }
        let (found, left) = &mut *scan.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.merge(&next);
        *left -= 1;
        end.is_last = *left == 0;
        if end.is_last {
            scan.others.iter().for_each(|other| other.set(found.clone()));
            scan.set.set(std::mem::take(found));
        }
        Ok(())
    }

    /// Waits until other threads have finished the scan that a step needs. The error of a failed scan comes first.
    pub(super) fn wait(&self, step: &Step) -> Result<()> {
        let Some(set) = self.needed(step) else { return Ok(()) };
        self.sets[set].is_over.wait();
        if self.sets[set].set.get().is_none() {
            return Err(Error::new("the largest magnitude of a tensor is not known"));
        }
        Ok(())
    }

    /// Returns the index of the set that a step needs.
    pub(super) fn needed(&self, step: &Step) -> Option<usize> {
        self.indices.get(&Arc::as_ptr(extremes_of(step)?).addr()).copied()
    }
}

/// Puts scans before the pieces that need sets up to the given one, and keeps about `lead` more scans ahead.
fn interleave<P>(
    scans: impl Iterator<Item = MemberRows>,
    mut pieces: impl Iterator<Item = (Option<usize>, P)>,
    lead: u64,
) -> impl Iterator<Item = WorkItem<P>> {
    let (mut scans, mut next, mut ahead) = (scans.peekable(), None, 0);
    from_fn(move || {
        next = next.take().or_else(|| pieces.next());
        let needed = next.as_ref().and_then(|(set, _)| *set);
        if let Some(scan) = scans.next_if(|scan| ahead < lead || Some(scan.set) <= needed) {
            ahead += 1;
            return Some(WorkItem::Scan(scan));
        }
        ahead = ahead.saturating_sub(1);
        next.take().map(|(_, piece)| WorkItem::Convert(piece))
    })
}

/// Returns the set whose largest magnitude a step needs.
fn extremes_of<'s, 'a>(step: &'s Step<'a>) -> Option<&'s Arc<SharedExtremes<'a>>> {
    if let CodesSource::Values { extremes, .. } = &step.quantization()?.codes { extremes.as_ref() } else { None }
}

/// Returns all rows of a set, in pieces of about [`PIECE`] bytes.
fn rows_of(set: usize, extremes: &SharedExtremes) -> impl Iterator<Item = MemberRows> {
    extremes
        .members
        .iter()
        .enumerate()
        .flat_map(move |(member, weight)| weight.row_pieces(PIECE).map(move |rows| MemberRows { set, member, rows }))
}

/// Guard that wakes the threads that wait for a scan when its last part ends, or any part fails.
struct EndOfWait<'s> {
    is_over: &'s OnceLock<()>,
    is_last: bool,
}

impl Drop for EndOfWait<'_> {
    fn drop(&mut self) {
        if self.is_last {
            let _ = self.is_over.set(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_scanned_just_before_it_is_written() {
        let scans = (0..50).map(|at| MemberRows { set: at / 10, member: 0, rows: 0..at as u64 });
        // A piece of the header, 10 of each set, and one of a tensor that is copied.
        let sets = [None].into_iter().chain((0..50).map(|at| Some(at / 10))).chain([None]);
        let pieces = sets.map(|set| (set, set.unwrap_or(9) as u64));
        let (mut scanned, mut written) = (0, 0);
        for task in interleave(scans, pieces, 4) {
            match task {
                WorkItem::Scan(rows) => {
                    assert_eq!(rows.rows.end, scanned, "scans stay in order");
                    scanned += 1;
                }
                WorkItem::Convert(set) => {
                    assert!(set == 9 || (10 * (set + 1)..=10 * (set + 2)).contains(&scanned), "set {set}, {scanned}");
                    written += 1;
                }
            }
        }
        assert_eq!((scanned, written), (50, 52));
    }

    #[test]
    fn all_scans_are_handed_out_before_a_piece_that_needs_the_last_set() {
        let scans = (0..9).map(|set| MemberRows { set, member: 0, rows: 0..1 });
        let order: Vec<bool> =
            interleave(scans, [(Some(8), ())].into_iter(), 1).map(|task| matches!(task, WorkItem::Scan(_))).collect();
        assert_eq!(order, [[true; 9].as_slice(), &[false]].concat());
    }
}
