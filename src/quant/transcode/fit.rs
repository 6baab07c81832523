//! Finds scales for which the groups of the new grid represent the same numbers.

use super::super::encode::Encoder;
use super::source::{Line, SourceGroup, exponent_of, mantissa_of};
use super::{SEGMENT, Transcoder};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Largest number of powers of two by which codes can move.
const FARTHEST: i32 = 24;

/// The scale of a group of the new grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewScale {
    /// The stored bits, and the zero point or offset.
    pub(super) chosen: (u32, f32),
    /// The difference of the stored offset from the exact one.
    pub(super) change: f64,
    /// The number added to the codes of [`Tables`], if groups have offsets: otherwise 0.
    pub(super) shift: i32,
    /// The number that it represents, with the global scale if [`super::source::SourceGrid::keeps_blocks`] is false.
    pub(super) scale: f64,
}

impl NewScale {
    /// The stored byte of a block scale.
    pub(super) fn byte(&self) -> u8 {
        self.chosen.0 as u8
    }
}

/// The tables of a model's weights: weights with the same kinds of codes share them, because tables are larger than most
/// descriptions of a weight.
#[derive(Default)]
pub struct SharedTables(Mutex<Vec<Arc<Tables>>>);

impl SharedTables {
    /// Returns the tables for codes of these numbers.
    pub(super) fn get(&self, numbers: &[f32], is_integer: bool, encoder: &Arc<Encoder>) -> Arc<Tables> {
        let is_for = |tables: &&Arc<Tables>| {
            let same = tables.numbers.iter().map(|number| number.to_bits()).eq(numbers.iter().map(|it| it.to_bits()));
            same && tables.is_integer == is_integer && tables.encoder.has_codes_of(encoder)
        };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = known.iter().find(is_for) {
            return Arc::clone(tables);
        }
        let tables = Arc::new(Tables::new(numbers, is_integer, encoder));
        known.push(Arc::clone(&tables));
        tables
    }
}

/// Tables from old codes to new ones.
pub(super) struct Tables {
    /// The number that each old code represents.
    pub(super) numbers: Arc<[f32]>,
    is_integer: bool,
    /// An encoder that writes the new codes.
    encoder: Arc<Encoder>,
    /// For each power of two by which codes move, from -24 to 24; one for integers.
    moved: Vec<CodeTable>,
    /// For groups whose scale is 0: codes of 0, with the sign.
    nothing: CodeTable,
    /// The number whose code is 0 in `moved`, if groups have offsets, so that any number can have the code 0.
    least: Option<f32>,
    /// True if all codes that do not move have new codes.
    pub(super) is_total: bool,
    /// The largest number of the new codes.
    largest: f32,
    /// The exponent of their smallest digit.
    digit: i32,
}

/// The new code for each old code; `None` if there is none.
struct CodeTable {
    codes: [Option<u8>; 256],
    /// `codes`, with 0 for `None`.
    new: [u8; 256],
    /// True if all codes stay the same.
    is_identity: bool,
}

impl CodeTable {
    fn replace(&self, codes: &mut [u8]) {
        if !self.is_identity {
            for code in codes {
                *code = self.new[usize::from(*code)];
            }
        }
    }
}

/// New codes of a row.
pub(super) enum MovedCodes<'a> {
    /// The bytes of the whole row, as stored before: see [`Transcoder::keeps_packed_rows`].
    Packed(&'a [u8]),
    /// One code per byte.
    Unpacked(&'a [u8]),
}

/// The range of the numbers of the codes in a group.
struct CodeExtent {
    largest: f32,
    /// The exponent of the smallest digit that is not 0.
    digit: i32,
}

impl Tables {
    fn new(numbers: &[f32], is_integer: bool, encoder: &Arc<Encoder>) -> Self {
        let numbers_with_offsets = numbers.iter().copied().filter(|_| is_integer && encoder.has_offsets());
        let least = numbers_with_offsets.reduce(f32::min);
        let table = |factor: f64| {
            let mut codes = [None; 256];
            for (code, number) in codes.iter_mut().zip(numbers) {
                *code = match least {
                    Some(least) => Some(number - least).filter(|code| *code <= 255.0).map(|code| code as u8),
                    None => encoder.code_of((f64::from(*number) * factor) as f32, is_integer),
                };
            }
            let mut new = codes.iter().zip(0..=u8::MAX).take(numbers.len());
            CodeTable {
                is_identity: new.all(|(new, old)| *new == Some(old)),
                new: codes.map(Option::unwrap_or_default),
                codes,
            }
        };
        let shifts = if is_integer { 0..=0 } else { -FARTHEST..=FARTHEST };
        let moved: Vec<_> = shifts.map(|shift| table(2_f64.powi(shift))).collect();
        let (largest, digit) = encoder.range_of_codes();
        // With offsets, codes can be numbers that are far apart, such as those of IQ4_NL.
        let is_stored = |code: &Option<u8>| code.is_some_and(|code| least.is_none() || f32::from(code) <= largest);
        let is_total = moved[moved.len() / 2].codes[..numbers.len()].iter().all(is_stored);
        let (nothing, numbers, encoder) = (table(0.0), numbers.into(), Arc::clone(encoder));
        Self { numbers, is_integer, encoder, moved, nothing, least, is_total, largest, digit }
    }

    /// True if codes that do not move stay the same.
    pub(super) fn keeps_codes(&self) -> bool {
        self.shift(0).is_some_and(|table| table.is_identity)
    }

    /// Replaces codes of groups whose scales stay the same.
    pub(super) fn move_unscaled(&self, codes: &mut [u8]) {
        if let Some(table) = self.shift(0) {
            table.replace(codes);
        }
    }

    fn shift(&self, shift: i32) -> Option<&CodeTable> {
        self.moved.get(usize::try_from(shift + self.moved.len() as i32 / 2).ok()?)
    }

    /// Returns the table for a group and its new scale.
    fn between(&self, old: f64, new: f64) -> Option<&CodeTable> {
        if old == 0.0 && self.least.is_none() {
            return Some(&self.nothing); // the new scale may not be 0
        }
        if old == new {
            return self.shift(0);
        }
        self.shift(exponent_of(old)? - exponent_of(new)?)
    }
}

/// A part of a group of the new grid that lies in one group of the old grid.
struct GroupPart {
    rows: Range<usize>,
    columns: Range<usize>,
    old: SourceGroup,
}

impl Transcoder {
    /// Finds the scales of a row of groups; `None` if a group has none.
    pub(super) fn new_scales(&self, rows: Range<usize>, parts: &[&[u8]]) -> Option<Vec<NewScale>> {
        let (columns, width) = (self.source.columns(), self.encoder.block_width());
        let lines = self.source.lines(rows, parts);
        (0..columns)
            .step_by(width)
            .map(|start| self.scale_of_columns(&lines, start..(start + width).min(columns), parts))
            .collect()
    }

    /// Finds the scale of the whole weight; `None` if its groups differ.
    pub(super) fn only_scale(&self, parts: &[&[u8]]) -> Option<NewScale> {
        let rows = self.encoder.rows() as usize;
        let mut first: Option<SourceGroup> = None;
        for row in (0..rows).step_by(SEGMENT) {
            for line in self.source.lines(row..(row + SEGMENT).min(rows), parts) {
                let first = first.get_or_insert(line.groups[0]);
                if line.groups.iter().any(|group| group != first) {
                    return None;
                }
            }
        }
        let first = first.filter(|_| self.tables.is_total)?;
        self.new_scale(first.scale, first.offset)
    }

    /// Finds the scale of a group of the new grid in these columns of some lines.
    fn scale_of_columns(&self, lines: &[Line], columns: Range<usize>, parts: &[&[u8]]) -> Option<NewScale> {
        let width = self.source.width();
        let groups = columns.start / width..columns.end.div_ceil(width);
        let first = lines[0].groups[groups.start];
        let is_uniform = lines.iter().all(|line| line.groups[groups.clone()].iter().all(|group| *group == first));
        if is_uniform
            && self.tables.is_total
            && let Some(scale) = self.scale_of_group(first, None)
        {
            return Some(scale);
        }
        if self.source.is_integer && !is_uniform {
            return None;
        }
        let members = lines.iter().flat_map(|line| {
            groups.clone().map(|at| GroupPart {
                rows: line.rows.clone(),
                columns: columns.start.max(at * width)..columns.end.min((at + 1) * width),
                old: line.groups[at],
            })
        });
        self.scale_of_parts(&members.collect::<Vec<_>>(), parts)
    }

    /// Finds the scale of a group from the codes that occur in its parts.
    fn scale_of_parts(&self, members: &[GroupPart], parts: &[&[u8]]) -> Option<NewScale> {
        let mut seen = Vec::with_capacity(members.len());
        for member in members {
            let mut codes = [false; 256];
            member.rows.clone().for_each(|row| self.source.mark(row, member.columns.clone(), parts, &mut codes));
            seen.push(codes);
        }
        let serves = |new: &NewScale| {
            members.iter().zip(&seen).all(|(member, seen)| {
                let table = self.tables.between(member.old.scale, new.scale);
                let is_zero = |code: usize| self.source.numbers[code] == 0.0;
                (0..256).filter(|code| seen[*code]).all(|code| match table {
                    Some(table) => table.codes[code].is_some(),
                    None => is_zero(code) && self.tables.nothing.codes[code].is_some(),
                })
            })
        };
        if members.iter().any(|member| !member.old.scale.is_finite()) {
            return None;
        }
        if self.source.is_integer {
            return self.scale_of_group(members[0].old, Some(&seen)).filter(serves);
        }
        if members.iter().any(|member| member.old.offset != 0.0) {
            return None;
        }
        let extents = members.iter().zip(&seen).filter_map(|(member, seen)| {
            let extent = self.extent(seen)?;
            Some((member.old.scale, extent)).filter(|(scale, _)| *scale != 0.0)
        });
        let live: Vec<(f64, CodeExtent)> = extents.collect();
        let Some((first, _)) = live.first() else {
            let others = if self.encoder.has_global_scale() { [self.least(); 2] } else { [0.0, 1.0] };
            let mut scales = members.iter().map(|member| member.old.scale).chain(others);
            return scales.find_map(|scale| self.new_scale(scale, 0.0).filter(serves));
        };
        if live.iter().any(|(scale, _)| mantissa_of(*scale) != mantissa_of(*first)) {
            return None;
        }
        // The scale is `first` times a power of two that the largest number and the smallest digit allow.
        let mut range = [i32::MIN, i32::MAX];
        for (scale, extent) in &live {
            let exponent = exponent_of(*scale)?;
            let over = f64::from(extent.largest) / f64::from(self.tables.largest);
            let fits = exponent_of(over)? + i32::from(mantissa_of(over) > 1.0);
            range = [range[0].max(exponent + fits), range[1].min(exponent + extent.digit - self.tables.digit)];
        }
        let at = |exponent: i32| mantissa_of(*first) * 2_f64.powi(exponent);
        (range[0]..=range[1]).find_map(|exponent| self.new_scale(at(exponent), 0.0).filter(serves))
    }

    /// Returns the largest number and the smallest digit of some codes; `None` if all are 0 or NaN.
    fn extent(&self, seen: &[bool; 256]) -> Option<CodeExtent> {
        let numbers = self.source.numbers.iter().zip(seen);
        let numbers = numbers.filter(|(number, seen)| **seen && **number != 0.0 && !number.is_nan());
        let extents = numbers.map(|(number, _)| {
            let bits = number.abs().to_bits();
            CodeExtent {
                largest: number.abs(),
                digit: (bits >> 23) as i32 - 150 + (bits | 1 << 23).trailing_zeros() as i32,
            }
        });
        extents.reduce(|a, b| CodeExtent { largest: a.largest.max(b.largest), digit: a.digit.min(b.digit) })
    }

    /// Returns the scale whose stored form is this number and offset; `None` if the layout cannot store them.
    pub(super) fn new_scale(&self, scale: f64, offset: f64) -> Option<NewScale> {
        let global = if self.source.keeps_blocks { None } else { Some(self.global) };
        let (chosen, change) = self.encoder.stored_scale(scale, offset, global)?;
        Some(NewScale { chosen, change, shift: 0, scale })
    }

    /// Returns the stored form of a group of integers, whose codes are `seen`; `None` stands for all codes. If groups have
    /// offsets, a number can be added to all codes and subtracted from the offset: the one nearest to 0 is chosen among
    /// those that change the offset least.
    fn scale_of_group(&self, group: SourceGroup, seen: Option<&[[bool; 256]]>) -> Option<NewScale> {
        let SourceGroup { scale, offset } = group;
        let Some(lowest) = self.tables.least else { return self.new_scale(scale, offset) };
        // Exact, because an offset of numbers with a sign is a multiple of the scale.
        let offset = if lowest == 0.0 { offset } else { offset + scale * f64::from(lowest) };
        let count = self.source.numbers.len();
        let is_seen = |code: &usize| seen.is_none_or(|seen| seen.iter().any(|seen| seen[*code]));
        let codes = (0..count).filter(is_seen).filter_map(|code| self.tables.moved[0].codes[code]);
        let (first, last) =
            codes.map(i32::from).fold((i32::MAX, 0), |(first, last), code| (first.min(code), last.max(code)));
        let range = (-first, self.tables.largest as i32 - last);
        let mut best: Option<NewScale> = None;
        for shift in (range.0.max(0)..=range.1).chain((range.0..=range.1.min(-1)).rev()) {
            let product = f64::from(shift) * scale;
            let own = offset - product;
            if own + product != offset || offset - own != product {
                continue; // the difference is no float64
            }
            let Some(stored) = self.new_scale(scale, own) else { continue };
            if best.is_none_or(|best| stored.change.abs() < best.change.abs()) {
                best = Some(NewScale { shift, ..stored });
            }
            if stored.change == 0.0 {
                break;
            }
        }
        best
    }

    /// Returns the smallest block scale, 2^-9, times the global scale.
    fn least(&self) -> f64 {
        self.encoder.global_factor(self.global) / 512.0
    }

    /// Writes the new codes of some rows, row by row; `scales` are the scales of their groups.
    pub(super) fn move_codes(
        &self,
        rows: Range<usize>,
        scales: &[NewScale],
        parts: &[&[u8]],
        mut store: impl FnMut(usize, Range<usize>, MovedCodes),
    ) {
        let (columns, width) = (self.source.columns(), self.source.width());
        let new_width = if self.only.is_some() { columns } else { self.encoder.block_width() };
        let mut buffer = [0; SEGMENT];
        for line in self.source.lines(rows, parts) {
            let is_same =
                |(old, new): (&SourceGroup, &NewScale)| old.scale == new.scale && old.scale != 0.0 && new.shift == 0;
            let has_same_scales = || line.groups.iter().zip(scales).all(is_same);
            let is_kept = self.keeps_packed_rows
                && self.rescaling.is_none()
                && !self.rounds_offsets
                && width == new_width
                && has_same_scales();
            for row in line.rows {
                if is_kept {
                    store(row, 0..columns, MovedCodes::Packed(self.source.stored_codes(row, parts)));
                    continue;
                }
                for start in (0..columns).step_by(SEGMENT) {
                    let end = (start + SEGMENT).min(columns);
                    let codes = &mut buffer[..end - start];
                    self.source.codes(row, start..end, parts, codes);
                    let mut at = start;
                    while at < end {
                        let next = ((at / width + 1) * width).min((at / new_width + 1) * new_width).min(end);
                        let (old, new) = (line.groups[at / width].scale, scales[at / new_width]);
                        // Codes without a table are 0 in all groups.
                        let table = self.tables.between(old, new.scale).unwrap_or(&self.tables.nothing);
                        let codes = &mut codes[at - start..next - start];
                        table.replace(codes);
                        if new.shift != 0 {
                            for code in codes {
                                *code = code.wrapping_add(new.shift as u8);
                            }
                        }
                        at = next;
                    }
                    store(row, start..end, MovedCodes::Unpacked(codes));
                }
            }
        }
    }
}
