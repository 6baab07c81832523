//! Tensors whose elements are in several files: boxes that together cover the tensor.

use crate::container::{Stream, Streamed, indices};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use std::cmp::Ordering;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Maximum number of pairs of boxes that are compared for one tensor. Real layouts have few boxes side by side.
const MOST_PAIRS: u64 = 1 << 30;
/// Number of bytes of a file that are prefetched at a time.
const WINDOW: usize = 1 << 20;

/// A box along one axis: its first index in the tensor, its length, and the distance of its elements in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) len: u64,
    /// In elements.
    pub(super) stride: u64,
}

impl Span {
    pub(super) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn contains(&self, index: u64) -> bool {
        (self.start..self.end()).contains(&index)
    }
}

/// A box of elements in a file.
#[derive(Clone, Debug)]
pub(super) struct TensorPiece {
    /// One span for each axis of the tensor.
    pub(super) spans: Box<[Span]>,
    /// Number of the file.
    pub(super) file: u32,
    /// The first byte of the first element.
    pub(super) start: usize,
}

impl TensorPiece {
    pub(super) fn is_empty(&self) -> bool {
        self.spans.iter().any(|span| span.len == 0)
    }

    /// Compares places in the tensor.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let place = |piece: &Self| piece.spans.iter().map(|span| (span.start, span.len)).collect::<Vec<_>>();
        place(self).cmp(&place(other))
    }

    /// Describes the place in the tensor: `[0..4, 2..3]`.
    pub(super) fn place(&self) -> String {
        let ranges: Vec<String> = self.spans.iter().map(|span| format!("{}..{}", span.start, span.end())).collect();
        format!("[{}]", ranges.join(", "))
    }

    fn volume(&self) -> u128 {
        self.spans.iter().fold(1, |volume: u128, span| volume.saturating_mul(span.len.into()))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.spans.iter().zip(&other.spans).all(|(a, b)| a.start < b.end() && b.start < a.end())
    }
}

/// Checks that pieces cover a tensor, and each element once. Drops empty pieces. `where_is` describes a file.
///
/// # Errors
/// When a piece is outside of the tensor, two overlap, or an element is in none.
pub(super) fn check_cover(
    shape: &[u64],
    pieces: &mut Vec<TensorPiece>,
    where_is: &dyn Fn(u32) -> String,
) -> Result<()> {
    let mut volume = 0_u128;
    for piece in &*pieces {
        let is_inside = piece.spans.len() == shape.len()
            && piece.spans.iter().zip(shape).all(|(span, len)| span.len <= *len && span.start <= *len - span.len);
        if !is_inside {
            let what = format!("its piece {} in {} is outside of {shape:?}", piece.place(), where_is(piece.file));
            return Err(Error::new(what));
        }
        volume = volume.saturating_add(piece.volume());
    }
    pieces.retain(|piece| !piece.is_empty());
    // The axis along which most pieces begin at different places has the fewest side by side.
    let starts = |axis: usize| {
        let mut starts: Vec<u64> = pieces.iter().map(|piece| piece.spans[axis].start).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.len()
    };
    let axis = (0..shape.len()).max_by_key(|axis| (starts(*axis), shape.len() - axis));
    pieces.sort_by_key(|piece| axis.map_or(0, |axis| piece.spans[axis].start));
    let (mut active, mut pairs): (Vec<usize>, u64) = (Vec::new(), 0);
    for (at, piece) in pieces.iter().enumerate() {
        if let Some(axis) = axis {
            active.retain(|before| pieces[*before].spans[axis].end() > piece.spans[axis].start);
        }
        pairs += active.len() as u64;
        if pairs > MOST_PAIRS {
            return Err(Error::new(format!("its {} pieces lie side by side as in no checkpoint", pieces.len())));
        }
        if let Some(other) = active.iter().map(|before| &pieces[*before]).find(|other| other.overlaps(piece)) {
            let [a, b] = [other, piece].map(|piece| format!("{} in {}", piece.place(), where_is(piece.file)));
            return Err(Error::new(format!("its pieces {a} and {b} overlap")));
        }
        active.push(at);
    }
    let whole = shape.iter().try_fold(1_u128, |whole, len| whole.checked_mul((*len).into()));
    if whole != Some(volume) {
        let whole = whole.map_or_else(|| "more than 2^128".to_owned(), |whole| whole.to_string());
        return Err(Error::new(format!("its pieces hold {volume} of {whole} elements")));
    }
    pieces.sort_by(TensorPiece::compare);
    Ok(())
}

/// Pieces that cover a tensor, sorted by their places, with the axes that are not divided merged into one.
#[derive(Debug)]
struct PieceCover {
    /// Bytes of an element.
    width: usize,
    /// Lengths of the axes. Rows, which are read in one go, are the last.
    shape: Box<[u64]>,
    pieces: Box<[TensorPiece]>,
    /// Maximum length of a piece along the first axis.
    longest: u64,
}

impl PieceCover {
    fn new(width: usize, shape: &[u64], mut pieces: Vec<TensorPiece>) -> Self {
        // A scalar is a row of one element.
        let (mut shape, scalar) = (shape.to_vec(), Span { start: 0, len: 1, stride: 1 });
        if shape.is_empty() {
            shape.push(1);
            for piece in &mut pieces {
                piece.spans = [scalar].into();
            }
        }
        while let [.., before, last] = shape[..] {
            let is_whole = |piece: &TensorPiece| match piece.spans[..] {
                [.., outer, inner] => {
                    inner.len == last && (inner.stride == 1 || last == 1) && (outer.stride == last || outer.len == 1)
                }
                _ => false,
            };
            if last == 0 || !pieces.iter().all(is_whole) {
                break;
            }
            shape.truncate(shape.len() - 2);
            shape.push(before * last);
            for piece in &mut pieces {
                let mut spans = std::mem::take(&mut piece.spans).into_vec();
                let outer = spans[spans.len() - 2];
                spans.truncate(spans.len() - 2);
                spans.push(Span { start: outer.start * last, len: outer.len * last, stride: 1 });
                piece.spans = spans.into();
            }
        }
        let longest = pieces.iter().map(|piece| piece.spans[0].len).max().unwrap_or_default();
        Self { width, shape: shape.into(), pieces: pieces.into(), longest }
    }

    /// Finds the pieces with elements of a row, in the order of these elements.
    fn of_row(&self, outer: &[u64], found: &mut Vec<Active>) {
        found.clear();
        let candidates = match outer.first() {
            None => 0..self.pieces.len(),
            Some(index) => {
                let place = |limit: u64| self.pieces.partition_point(|piece| piece.spans[0].start < limit);
                place((index + 1).saturating_sub(self.longest))..place(index + 1)
            }
        };
        let has_row = |at: &usize| self.pieces[*at].spans.iter().zip(outer).all(|(span, index)| span.contains(*index));
        found.extend(candidates.filter(has_row).map(|piece| Active { piece, ready: 0..0 }));
        found.sort_by_key(|active| self.row_of(active).start);
    }

    fn row_of(&self, active: &Active) -> Span {
        *self.pieces[active.piece].spans.last().expect("there is an axis")
    }
}

/// A piece that is being read.
struct Active {
    piece: usize,
    /// Bytes of its file that have been prefetched.
    ready: Range<usize>,
}

/// The elements of a tensor in several files.
#[derive(Debug)]
pub(super) struct Assembled {
    cover: Arc<PieceCover>,
    bytes: u64,
    unpacked: OnceLock<MappedFile>,
}

impl Assembled {
    /// Elements of `width` bytes. [`check_cover`] must have checked the pieces.
    pub(super) fn new(width: usize, shape: &[u64], pieces: Vec<TensorPiece>) -> Self {
        let bytes = shape.iter().product::<u64>() * width as u64;
        Self { cover: Arc::new(PieceCover::new(width, shape, pieces)), bytes, unpacked: OnceLock::new() }
    }

    /// Returns the file and the range of its bytes if they are in one piece and in row-major order.
    pub(super) fn contiguous(&self) -> Option<(u32, Range<usize>)> {
        match (&self.cover.shape[..], &self.cover.pieces[..]) {
            ([_], [piece]) if piece.spans[0].stride == 1 || piece.spans[0].len == 1 => {
                Some((piece.file, piece.start..piece.start + self.bytes as usize))
            }
            _ => None,
        }
    }
}

impl Streamed for Assembled {
    fn open<'a>(&self, files: &'a [MappedFile]) -> Result<Box<dyn Stream + 'a>> {
        let cover = Arc::clone(&self.cover);
        let outer = Vec::with_capacity(cover.shape.len());
        Ok(Box::new(AssembledStream { cover, files, next: 0, row: None, outer, active: Vec::new(), at: 0 }))
    }

    fn stored_len(&self) -> u64 {
        self.bytes
    }

    fn is_divisible(&self) -> bool {
        true
    }

    fn unpacked(&self) -> Option<&OnceLock<MappedFile>> {
        Some(&self.unpacked)
    }
}

struct AssembledStream<'a> {
    cover: Arc<PieceCover>,
    files: &'a [MappedFile],
    /// Number of bytes read so far.
    next: u64,
    /// The row whose pieces are active.
    row: Option<u64>,
    /// Its indices along the other axes.
    outer: Vec<u64>,
    active: Vec<Active>,
    /// The active piece that was read last.
    at: usize,
}

impl AssembledStream<'_> {
    /// Makes the pieces of a row active.
    fn enter(&mut self, row: u64) {
        if self.row == Some(row) {
            return;
        }
        let (_, lengths) = self.cover.shape.split_last().expect("there is an axis");
        if self.row.is_some_and(|before| before + 1 == row) {
            for (index, len) in self.outer.iter_mut().zip(lengths).rev() {
                *index = (*index + 1) % len;
                if *index > 0 {
                    break;
                }
            }
        } else {
            self.outer = indices(row, lengths, false);
        }
        let has_row = |active: &Active| {
            self.cover.pieces[active.piece].spans.iter().zip(&self.outer).all(|(span, index)| span.contains(*index))
        };
        if self.row.is_none() || !self.active.iter().all(has_row) {
            self.cover.of_row(&self.outer, &mut self.active);
        }
        self.at = 0;
        self.row = Some(row);
    }

    /// Copies whole elements from the next one on, as far as one piece has them in a row. Returns their number.
    fn copy(&mut self, element: u64, buffer: &mut [u8]) -> Result<usize> {
        let columns = *self.cover.shape.last().expect("there is an axis");
        self.enter(element / columns);
        let (cover, column, width) = (&*self.cover, element % columns, self.cover.width);
        let is_before = |active: &Active| cover.row_of(active).end() <= column;
        if self.active.get(self.at).is_none_or(|active| !cover.row_of(active).contains(column)) {
            self.at = self.active.partition_point(is_before);
        }
        let active = &mut self.active[self.at];
        let (piece, span) = (&cover.pieces[active.piece], cover.row_of(active));
        let before = piece.spans.iter().zip(&self.outer).map(|(span, index)| (index - span.start) * span.stride);
        let first = before.sum::<u64>() + (column - span.start) * span.stride;
        let count = (span.end() - column).min((buffer.len() / width) as u64);
        let start = piece.start + first as usize * width;
        let end = start + ((count - 1) * span.stride + 1) as usize * width;
        let file = &self.files[piece.file as usize];
        if start < active.ready.start || end > active.ready.end {
            // Its next rows follow, as far as the buffer has place.
            let rows = self.outer.last().map_or(0, |index| {
                let rows = &piece.spans[self.outer.len() - 1];
                let left = (buffer.len() / width) as u64 / columns + 1;
                left.min(rows.end() - index - 1).saturating_mul(rows.stride)
            });
            let more = (rows as usize).saturating_mul(width).min(WINDOW);
            active.ready = start..file.len().min(end + more);
            file.prefetch(active.ready.clone())?;
        }
        let (source, out) = (&file[start..end], &mut buffer[..count as usize * width]);
        if span.stride == 1 || count == 1 {
            out.copy_from_slice(source);
        } else if span.stride == 0 {
            out.chunks_exact_mut(width).for_each(|out| out.copy_from_slice(source));
        } else {
            let elements = source.chunks(span.stride as usize * width);
            out.chunks_exact_mut(width).zip(elements).for_each(|(out, element)| out.copy_from_slice(&element[..width]));
        }
        Ok(count as usize)
    }
}

impl Stream for AssembledStream<'_> {
    fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let (mut buffer, width) = (buffer, self.cover.width);
        while !buffer.is_empty() {
            let (element, inside) = (self.next / width as u64, (self.next % width as u64) as usize);
            let taken = if inside == 0 && buffer.len() >= width {
                self.copy(element, buffer)? * width
            } else {
                let mut whole = [0; 16];
                self.copy(element, &mut whole[..width])?;
                let taken = buffer.len().min(width - inside);
                buffer[..taken].copy_from_slice(&whole[inside..inside + taken]);
                taken
            };
            self.next += taken as u64;
            buffer = &mut std::mem::take(&mut buffer)[taken..];
        }
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.next += bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An element in which two pieces differ: its indices, and its bytes in each.
pub(super) type Difference = (Vec<u64>, [Vec<u8>; 2]);

/// Returns the first element in which two pieces of the same shape differ.
pub(super) fn difference(pieces: [&TensorPiece; 2], width: usize, files: &[MappedFile]) -> Result<Option<Difference>> {
    let shape: Vec<u64> = pieces[0].spans.iter().map(|span| span.len).collect();
    let [a, b] = pieces.map(|piece| {
        let spans = piece.spans.iter().map(|span| Span { start: 0, ..*span }).collect();
        Assembled::new(width, &shape, vec![TensorPiece { spans, ..*piece }])
    });
    let mut streams = [a.open(files)?, b.open(files)?];
    let (mut left, mut done) = (a.bytes, 0);
    let mut buffers = [const { Vec::new() }; 2];
    while left > 0 {
        let len = left.min(WINDOW as u64);
        for (stream, buffer) in streams.iter_mut().zip(&mut buffers) {
            buffer.resize(len as usize, 0);
            stream.fill(buffer)?;
        }
        let [a, b] = &buffers;
        if a != b {
            let at = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let element = (done + at as u64) / width as u64;
            let start = (element * width as u64 - done) as usize;
            let bytes = buffers.each_ref().map(|buffer| buffer[start..start + width].to_vec());
            return Ok(Some((indices(element, &shape, false), bytes)));
        }
        (left, done) = (left - len, done + len);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;
    use std::io::Write as _;

    fn piece(spans: &[(u64, u64, u64)], start: usize) -> TensorPiece {
        let spans = spans.iter().map(|&(start, len, stride)| Span { start, len, stride }).collect();
        TensorPiece { spans, file: 0, start }
    }

    fn cover(shape: &[u64], pieces: &[TensorPiece]) -> Result<usize, String> {
        let mut pieces = pieces.to_vec();
        check_cover(shape, &mut pieces, &|file| format!("file {file}")).map_err(|error| error.message().to_owned())?;
        Ok(pieces.len())
    }

    #[test]
    fn every_element_must_be_in_one_piece() {
        let (a, b) = (piece(&[(0, 2, 3), (0, 3, 1)], 0), piece(&[(2, 1, 3), (0, 3, 1)], 0));
        let empty = piece(&[(3, 0, 3), (0, 3, 1)], 0);
        assert_eq!(cover(&[3, 3], &[b.clone(), empty, a.clone()]), Ok(2));
        let wrong = |shape: &[u64], pieces: &[TensorPiece], message: &str| {
            assert_eq!(cover(shape, pieces), Err(message.to_owned()));
        };
        wrong(&[3, 3], std::slice::from_ref(&a), "its pieces hold 6 of 9 elements");
        wrong(
            &[3, 3],
            &[a.clone(), a.clone(), b],
            "its pieces [0..2, 0..3] in file 0 and [0..2, 0..3] in file 0 overlap",
        );
        let outside = piece(&[(u64::MAX, 2, 3), (0, 3, 1)], 0);
        assert!(cover(&[3, 3], &[outside]).unwrap_err().ends_with("is outside of [3, 3]"));
        wrong(&[1 << 40, 1 << 40, 1 << 60], &[], "its pieces hold 0 of more than 2^128 elements");
        wrong(&[], &[], "its pieces hold 0 of 1 elements");
        assert_eq!(cover(&[], &[piece(&[], 0)]), Ok(1));
        assert_eq!(cover(&[0, 5], &[]), Ok(0));
    }

    /// Divides a box at random along random axes; stores the parts one after the other, some of them transposed.
    fn divide(random: &mut dyn FnMut(u64) -> u64, shape: &[u64], file: &mut Vec<u8>) -> Vec<TensorPiece> {
        let mut boxes = vec![shape.iter().map(|len| (0, *len)).collect::<Vec<_>>()];
        for _ in 0..random(6) {
            let at = random(boxes.len() as u64) as usize;
            let axis = random(shape.len() as u64) as usize;
            let (start, len) = boxes[at][axis];
            let first = random(len + 1);
            let mut rest = boxes[at].clone();
            (boxes[at][axis], rest[axis]) = ((start, first), (start + first, len - first));
            boxes.push(rest);
        }
        let mut pieces = Vec::new();
        for place in boxes.iter().filter(|place| place.iter().all(|(_, len)| *len > 0)) {
            let is_transposed = random(3) == 0;
            let mut strides = vec![0; place.len()];
            let mut count = 1;
            let order: Vec<usize> =
                if is_transposed { (0..place.len()).collect() } else { (0..place.len()).rev().collect() };
            for axis in order {
                strides[axis] = count;
                count *= place[axis].1;
            }
            file.extend([0xff; 3]);
            let start = file.len();
            for local in 0..count {
                // The element of the whole tensor that is stored here.
                let index = place.iter().zip(&strides).map(|((start, len), stride)| start + local / stride % len);
                let number = index.zip(shape).fold(0, |number, (index, len)| number * len + index);
                file.extend((number as u16).to_le_bytes());
            }
            let spans: Vec<_> =
                place.iter().zip(strides).map(|((start, len), stride)| (*start, *len, stride)).collect();
            pieces.push(piece(&spans, start));
        }
        pieces
    }

    #[test]
    fn elements_come_in_row_major_order_whatever_the_pieces_are() {
        let mut next = random(7);
        let mut random = move |limit: u64| next() % limit;
        for round in 0..400 {
            let shape: Vec<u64> = (0..=random(4)).map(|_| 1 + random(6)).collect();
            let mut bytes = vec![0];
            let mut pieces = divide(&mut random, &shape, &mut bytes);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            let files = [MappedFile::open(file.path()).unwrap()];
            check_cover(&shape, &mut pieces, &|_| String::new()).unwrap();
            let count = shape.iter().product::<u64>();
            let assembled = Assembled::new(2, &shape, pieces);
            let expected: Vec<u8> = (0..count as u16).flat_map(u16::to_le_bytes).collect();
            let mut stream = assembled.open(&files).unwrap();
            let (skipped, mut at) = (random(2 * count), 0);
            stream.skip(skipped).unwrap();
            let mut read = Vec::new();
            while at < 2 * count - skipped {
                let len = (1 + random(9)).min(2 * count - skipped - at);
                let mut buffer = vec![0; len as usize];
                stream.fill(&mut buffer).unwrap();
                read.extend(buffer);
                at += len;
            }
            assert_eq!(read, expected[skipped as usize..], "round {round}: {shape:?} {assembled:?}");
        }
    }
}
