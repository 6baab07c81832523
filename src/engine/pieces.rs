//! Division of the output into pieces.

use crate::container::Form;
use crate::conversion::Conversion;
use crate::io::map::MappedFile;
use crate::plan::{Operation, PieceUnit, Plan, Step};
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes of input or output, whichever is more, that a thread takes at a time: enough to make a system call
/// for each worthwhile, few enough for the second-level cache.
pub(super) const PIECE: u64 = 1 << 20;

/// Component of the output: a literal, a part of a long header, copied bytes, or the results of a step.
#[derive(Clone, Copy)]
pub(super) enum Item {
    Literal(usize),
    Entries(usize),
    Copy(usize),
    Step(usize),
}

impl Item {
    fn offset(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(at) => plan.literals[at].0,
            Self::Entries(at) => plan.entries[at].range.start,
            Self::Copy(at) => plan.copies[at].0,
            Self::Step(at) => plan.steps[at].target().start,
        }
    }

    /// Returns the number of units: bytes of literals, headers and copies, rows of quantized weights, otherwise elements.
    fn count(self, plan: &Plan) -> u64 {
        match self {
            Self::Literal(at) => plan.literals[at].1.len() as u64,
            Self::Entries(at) => plan.entries[at].range.end - plan.entries[at].range.start,
            Self::Copy(at) => plan.copies[at].1.range.len() as u64,
            Self::Step(at) if plan.steps[at].stays => 0,
            Self::Step(at) => match &plan.steps[at].how {
                Operation::Convert(_) => plan.steps[at].source().count,
                Operation::Decode(decoder) => decoder.rows() * decoder.columns(),
                Operation::Encode(weight) => weight.rows.encoder.rows(),
            },
        }
    }
}

/// Some elements of a step, and possibly of the steps that follow it; or bytes of a literal or a copy.
#[derive(Clone, Copy)]
pub(super) struct PiecePart {
    pub item: Item,
    pub start: u64,
    pub end: u64,
}

impl PiecePart {
    pub(super) fn count(&self) -> usize {
        (self.end - self.start) as usize
    }

    pub(super) fn rows(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Returns its bytes in the output, which must be in one place.
    pub(super) fn target(&self, plan: &Plan) -> Range<u64> {
        let offset = self.item.offset(plan);
        let at = |unit| match self.item {
            Item::Literal(_) | Item::Entries(_) | Item::Copy(_) => offset + unit,
            Item::Step(at) => match &plan.steps[at].how {
                Operation::Convert(conversion) => offset + bytes(conversion.to, unit),
                Operation::Decode(decoder) => offset + unit * u64::from(decoder.target().bits() / 8),
                Operation::Encode(_) => unreachable!("results lie in several places"),
            },
        };
        at(self.start)..at(self.end)
    }
}

pub(super) fn bytes(form: Form, elements: u64) -> u64 {
    form.bytes(elements).expect("the plan has counted all bytes")
}

/// Divides the output into pieces, in the order of their offsets; each consists of adjacent parts.
pub(super) struct Pieces<'a> {
    plan: &'a Plan<'a>,
    /// Items with their numbers of units. A step may also stand for the steps that follow it.
    order: Vec<(Item, u64)>,
    next: usize,
    element: u64,
    /// True if pieces may begin at any whole byte; otherwise they begin at blocks of a tensor.
    is_free: bool,
}

impl<'a> Pieces<'a> {
    /// With `joins`, adjacent tensors that are converted alike become one item, without findings about each of them.
    pub(super) fn new(plan: &'a Plan<'a>, is_free: bool, joins: bool) -> Self {
        let headers = (0..plan.literals.len()).map(Item::Literal).chain((0..plan.entries.len()).map(Item::Entries));
        let others = headers.chain((0..plan.copies.len()).map(Item::Copy));
        let mut order: Vec<(Item, u64)> = others.map(|item| (item, item.count(plan))).collect();
        let mut end: Option<Neighbor> = None;
        for (at, step) in plan.steps.iter().enumerate() {
            let (item, next) = (Item::Step(at), if joins { Neighbor::new(step) } else { None });
            let count = item.count(plan);
            match (&end, order.last_mut()) {
                (Some(end), Some((_, joined))) if next.as_ref().is_some_and(|next| next.follows(end)) => {
                    *joined += count;
                }
                _ => order.push((item, count)),
            }
            end = next;
        }
        order.retain(|(_, count)| *count > 0);
        order.sort_by_key(|(item, _)| item.offset(plan));
        Self { plan, order, next: 0, element: 0, is_free }
    }
}

/// A step that can be joined with the next one.
struct Neighbor<'s> {
    conversion: &'s Arc<Conversion>,
    file: &'s MappedFile,
    source: Range<usize>,
    target: Range<u64>,
}

impl<'s> Neighbor<'s> {
    /// Creates a neighbor; `None` for a step without elements, with a checksum, that ends within a byte, or that has
    /// another way to its result.
    fn new(step: &'s Step) -> Option<Self> {
        let Operation::Convert(conversion) = &step.how else { return None };
        let mapped = step.sources[0].mapped().filter(|mapped| mapped.checksum.is_none() && !mapped.range.is_empty())?;
        let count = step.source().count;
        let fills_bytes = |form: Form| form.dtype().bits().is_multiple_of(8) || count.is_multiple_of(8);
        let can_join = conversion.kernel().is_some()
            && fills_bytes(conversion.from)
            && fills_bytes(conversion.to)
            && !step.stays
            && step.results[0].crc().is_none();
        can_join.then(|| Self { conversion, file: mapped.file, source: mapped.range, target: step.target() })
    }

    /// True if its bytes follow the bytes of another step, in the source and in the output, and are converted alike.
    fn follows(&self, other: &Self) -> bool {
        Arc::ptr_eq(self.conversion, other.conversion)
            && std::ptr::eq(self.file, other.file)
            && self.source.start == other.source.end
            && self.target.start == other.target.end
    }
}

impl Pieces<'_> {
    /// Returns `count`, or a few less if elements become narrower, so that an item's next elements end with a page of
    /// the output: no page is then written in two calls, and the next elements are aligned.
    fn cut_at_page(&self, item: Item, count: u64) -> u64 {
        let (end, bits, unit) = match item {
            Item::Literal(_) | Item::Entries(_) | Item::Copy(_) => return count,
            Item::Step(at) => match &self.plan.steps[at].how {
                Operation::Convert(conversion) => {
                    let [from, to] = [conversion.from, conversion.to].map(|form| u64::from(form.dtype().bits()));
                    if to >= from {
                        return count; // results of a MiB would get large pages again
                    }
                    let end = item.offset(self.plan) + bytes(conversion.to, self.element + count);
                    (end, to, if from.min(to) < 8 { 8 } else { 1 }) // eight elements fill whole bytes
                }
                Operation::Decode(_) | Operation::Encode(_) => return count,
            },
        };
        match elements_beyond_page(end, bits, unit) {
            Some(beyond) if self.is_free && beyond < count => count - beyond,
            _ => count,
        }
    }
}

/// Returns the number of elements of this width after the last whole page before this offset; `None` if that is not a
/// multiple of `unit`.
fn elements_beyond_page(end: u64, bits: u64, unit: u64) -> Option<u64> {
    const PAGE: u64 = 1 << 12;
    /// Size of large pages. If pieces ended on multiples of it, Linux would use large pages for them, which a virtual
    /// machine often has to request from its host first.
    const LARGE_PAGE: u64 = 1 << 16;
    let beyond = if (end / PAGE * PAGE).is_multiple_of(LARGE_PAGE) { end % PAGE + PAGE } else { end % PAGE };
    let elements = beyond * 8 / bits;
    (elements.is_multiple_of(unit) && elements * bits == beyond * 8).then_some(elements)
}

impl Iterator for Pieces<'_> {
    type Item = Vec<PiecePart>;

    fn next(&mut self) -> Option<Vec<PiecePart>> {
        let mut parts = Vec::new();
        let mut free = PIECE;
        while let Some(&(item, count)) = self.order.get(self.next) {
            let left = count - self.element;
            let PieceUnit { bits, alignment, decoder } = match item {
                Item::Literal(_) | Item::Copy(_) => PieceUnit { bits: 8, alignment: 1024, decoder: None },
                Item::Entries(_) => PieceUnit { bits: 8, alignment: count, decoder: None }, // undivided
                Item::Step(at) if self.plan.steps[at].is_divisible() => self.plan.steps[at].unit(),
                Item::Step(_) if parts.is_empty() => {
                    self.next += 1;
                    return Some(vec![PiecePart { item, start: 0, end: count }]);
                }
                Item::Step(_) => break,
            };
            let fitting = free * 8 / bits / alignment * alignment;
            if left > fitting && fitting == 0 && !parts.is_empty() {
                break; // the piece is full
            }
            let count = match decoder {
                Some(decoder) => decoder.cut(self.element, self.element + fitting) - self.element,
                None if left <= fitting => left,
                None => self.cut_at_page(item, fitting.max(alignment).min(left)),
            };
            if decoder.is_some() && count > fitting && !parts.is_empty() {
                break;
            }
            parts.push(PiecePart { item, start: self.element, end: self.element + count });
            free = free.saturating_sub(count.saturating_mul(bits).div_ceil(8));
            self.element += count;
            if count == left {
                self.next += 1;
                self.element = 0;
            }
            if free == 0 {
                break;
            }
        }
        (!parts.is_empty()).then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_pages_but_not_with_large_ones() {
        assert_eq!(elements_beyond_page((3 << 12) + 104, 8, 1), Some(104));
        assert_eq!(elements_beyond_page((3 << 12) + 104, 32, 1), Some(26));
        assert_eq!(elements_beyond_page((3 << 12) + 104, 32, 8), None);
        assert_eq!(elements_beyond_page((3 << 12) + 8, 4, 8), Some(16));
        assert_eq!(elements_beyond_page(3 << 12, 16, 1), Some(0));
        assert_eq!(elements_beyond_page(16 << 12, 16, 1), Some(2048)); // one page less
        assert_eq!(elements_beyond_page((3 << 12) + 1, 16, 1), None);
    }
}
