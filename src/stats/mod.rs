//! Figures of one tensor: its extremes, its mean, what is not a number, and how its exponents are spread.
//!
//! A tensor is read once, in pieces that threads take from one counter. The kernels widen floats to float32, but for
//! float64, and integers to 64 bits, so that one loop serves for each of the three; large tensors of types of 16 bits and
//! fewer are counted word by word and widened afterwards. All that is kept are counts and exact sums, which are the same
//! in any order: the figures are equal to the bit for any number of threads and any instruction set.

mod draw;
mod float32;
mod integers;
mod tally;
mod words;

pub use draw::draw;

use crate::container::{Checksum, Data, Form, Reader, Tensor, row_major, sum_of};
use crate::conversion::{Conversion, Elements, run_kernel};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::{Kernel, Storage};
use crate::operator::cast::Attributes;
use crate::plan::Share;
use crate::progress::{Progress, Silent};
use crate::threads::on_threads;
use crc32fast::Hasher;
use float32::Float32s;
use integers::Integers;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use tally::{BLOCK, FEW, FewFloats, Floats, Repeat, Tally};
use words::{Words, elements_per_word};

/// Bytes of input that a thread takes at a time, whole [`BLOCK`]s of every type.
const PIECE: u64 = 1 << 20;

/// A number of a tensor, exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Of an integer type or bool.
    Integer(i128),
    /// Of a float type, all of which float64 holds.
    Float(f64),
}

impl Number {
    fn abs(self) -> Self {
        match self {
            Self::Integer(number) => Self::Integer(number.abs()),
            Self::Float(number) => Self::Float(number.abs()),
        }
    }
}

/// Figures of one tensor. A complex number counts as two numbers, its real and its imaginary part.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// How many numbers there are, NaN and Inf included.
    pub count: u64,
    /// The smallest of those that are finite, as are the next three; `None` where none is. -0 shows as 0.
    pub min: Option<Number>,
    /// The largest.
    pub max: Option<Number>,
    /// The largest absolute value.
    pub abs_max: Option<Number>,
    /// The mean, right to the last bit or the one before it whatever the number of values and their order.
    pub mean: Option<f64>,
    /// Zeros of either sign.
    pub zeros: u64,
    /// Numbers with fewer digits than the tensor's own type has elsewhere, being so small.
    pub subnormals: u64,
    /// Values that are not a number.
    pub nan: u64,
    /// Inf.
    pub plus_infinite: u64,
    /// -Inf.
    pub minus_infinite: u64,
    /// The first element that is not a number, counted in row-major order.
    pub first_nan: Option<u64>,
    /// The first that is infinite.
    pub first_infinite: Option<u64>,
    /// How all others are spread: finite, and not zero.
    pub exponents: Histogram,
}

/// How many finite numbers that are not zero have each binary exponent, which is floor(log2|x|).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram(BTreeMap<i32, u64>);

impl Histogram {
    /// The exponents that occur, ascending, and how many numbers have each.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i32, u64)> {
        self.0.iter().map(|(&exponent, &count)| (exponent, count))
    }

    /// How many numbers have an exponent of a range.
    #[must_use]
    pub fn within(&self, exponents: Range<i32>) -> u64 {
        if exponents.is_empty() { 0 } else { self.0.range(exponents).map(|(_, count)| count).sum() }
    }

    /// How many numbers there are in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Counts of the same exponent add up, so that the histograms of several tensors make one.
impl FromIterator<(i32, u64)> for Histogram {
    fn from_iter<T: IntoIterator<Item = (i32, u64)>>(counts: T) -> Self {
        let mut histogram = Self::default();
        for (exponent, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            *histogram.0.entry(exponent).or_default() += count;
        }
        histogram
    }
}

/// The figures of a tensor whose elements have this form. `None` for text.
///
/// # Errors
/// When the tensor is damaged, or an element malformed; of several such elements the first is named.
///
/// # Panics
/// When a thread of it has panicked.
pub fn of(
    tensor: &Tensor,
    form: Form,
    files: &[MappedFile],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Option<Stats>> {
    let Form::Numbers(stored) = form else { return Ok(None) };
    let dtype = stored.dtype.part();
    let parts = if dtype == stored.dtype { 1 } else { 2 };
    let work = Work {
        tensor,
        from: Storage { dtype, ..stored },
        count: tensor.count * parts,
        files,
        threads: threads as u64,
        progress,
    };
    let stats = match dtype.class() {
        Class::Int { signed: true } => work.run_narrow::<8, Integers<true>>(Dtype::Int64),
        Class::Int { signed: false } | Class::Bool => work.run_narrow::<8, Integers<false>>(Dtype::Uint64),
        _ if dtype != Dtype::Float64 => work.run_narrow::<4, Float32s>(Dtype::Float32),
        _ if work.count <= FEW => work.run::<FewFloats>(dtype),
        _ => work.run::<Floats>(dtype),
    };
    let mut stats = stats.map_err(|error| error.in_tensor(&tensor.name))?;
    if let Class::Float(format) = dtype.class() {
        stats.subnormals = stats.exponents.within(i32::MIN..format.min_normal_exponent());
    }
    if stats.nan + stats.plus_infinite + stats.minus_infinite > 0 {
        let wanted = [stats.nan > 0, stats.plus_infinite + stats.minus_infinite > 0];
        let firsts = Work { progress: &Silent, ..work }.first_specials(wanted);
        let firsts = firsts.map_err(|error| error.in_tensor(&tensor.name))?;
        [stats.first_nan, stats.first_infinite] = firsts.map(|first| {
            let element = first? / parts;
            Some(if tensor.fortran_order { row_major(element, &tensor.shape) } else { element })
        });
    }
    Ok(Some(stats))
}

/// A tensor that is to be read, as real numbers.
struct Work<'a> {
    tensor: &'a Tensor,
    from: Storage,
    count: u64,
    files: &'a [MappedFile],
    threads: u64,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    /// As [`Work::run`], of words where there are many.
    fn run_narrow<const WIDTH: usize, T: Repeat<WIDTH>>(&self, lane: Dtype) -> Result<Stats> {
        let Some(per_word) = elements_per_word(self.from, self.count) else {
            return self.run::<T>(lane);
        };
        let Data::Mapped { file, range, checksum } = &self.tensor.data else { return self.run::<T>(lane) };
        let conversion = self.conversion(lane);
        let read = |(words, rest): &mut (Words, Lane<T>), elements: Range<u64>, bytes: &[u8]| {
            let whole = (elements.end - elements.start) / per_word as u64;
            let (bytes, last) = bytes.split_at(2 * whole as usize);
            words.add(bytes);
            self.widen(&conversion, rest, elements.start + whole * per_word as u64..elements.end, last)
        };
        let done = self.pieces(&self.files[*file], range, checksum.as_deref(), read)?;
        let (mut words, mut tally) = (Words::default(), T::default());
        for (other, rest) in done {
            words.merge(&other);
            tally.merge(rest.tally);
        }
        words.tell(kernel(&conversion), per_word, &mut tally);
        Ok(tally.stats())
    }

    /// Reads everything, widened to the type that `T` takes.
    fn run<T: Tally>(&self, lane: Dtype) -> Result<Stats> {
        let conversion = self.conversion(lane);
        let mut tally = T::default();
        match &self.tensor.data {
            Data::Mapped { file, range, checksum } => {
                let read = |lane: &mut Lane<T>, elements, bytes: &[u8]| self.widen(&conversion, lane, elements, bytes);
                let done = self.pieces(&self.files[*file], range, checksum.as_deref(), read)?;
                for lane in done {
                    tally.merge(lane.tally);
                }
            }
            Data::Streamed(_) => {
                let mut share = Share::new(self.tensor);
                let parts = self.count / self.tensor.count.max(1);
                let mut sink = |_: &[u8], bytes: &[u8], elements: u64| {
                    tally.add(bytes);
                    self.progress.advance(share.up_to(elements / parts));
                    Ok(())
                };
                let reader = Reader::open(self.tensor, self.files, false)?;
                conversion.run(self.elements(), reader, &mut sink)?;
            }
        }
        Ok(tally.stats())
    }

    /// The first NaN and the first Inf, as far as they are wanted. Few tensors have any, so they are read once more: no
    /// other tensor pays for it.
    fn first_specials(&self, wanted: [bool; 2]) -> Result<[Option<u64>; 2]> {
        let lane = if self.from.dtype == Dtype::Float64 { Dtype::Float64 } else { Dtype::Float32 };
        let conversion = self.conversion(lane);
        let firsts = [0, 1].map(|at| AtomicU64::new(if wanted[at] { u64::MAX } else { 0 }));
        let is_open = |start: u64| firsts.iter().any(|first| first.load(Ordering::Relaxed) > start);
        let look = |start: u64, bytes: &[u8]| {
            let note = |(at, number): (u64, f64)| match () {
                () if number.is_nan() => drop(firsts[0].fetch_min(at, Ordering::Relaxed)),
                () if number.is_infinite() => drop(firsts[1].fetch_min(at, Ordering::Relaxed)),
                () => {}
            };
            match lane {
                Dtype::Float64 => {
                    (start..).zip(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes))).for_each(note);
                }
                _ => (start..)
                    .zip(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()))
                    .for_each(note),
            }
        };
        match &self.tensor.data {
            Data::Mapped { file, range, .. } => {
                let read = |buffer: &mut Vec<u8>, elements: Range<u64>, bytes: &[u8]| {
                    for start in elements.clone().step_by(BLOCK) {
                        if !is_open(start) {
                            break;
                        }
                        let count = (elements.end - start).min(BLOCK as u64);
                        let input = &bytes[self.bytes(start) - self.bytes(elements.start)..];
                        buffer.resize(conversion.to.bytes(count).expect("a small size") as usize, 0);
                        run_kernel(
                            kernel(&conversion),
                            &conversion,
                            self.elements(),
                            start,
                            input,
                            buffer,
                            count as usize,
                        )?;
                        look(start, buffer);
                    }
                    Ok(())
                };
                self.pieces(&self.files[*file], range, None, read)?;
            }
            Data::Streamed(_) => {
                let (parts, mut done) = (self.count / self.tensor.count.max(1), 0);
                let mut sink = |_: &[u8], bytes: &[u8], elements: u64| {
                    look(done * parts, bytes);
                    done = elements;
                    Ok(())
                };
                conversion.run(self.elements(), Reader::open(self.tensor, self.files, false)?, &mut sink)?;
            }
        }
        let firsts = firsts.map(AtomicU64::into_inner);
        Ok([0, 1].map(|at| wanted[at].then_some(firsts[at])))
    }

    fn conversion(&self, lane: Dtype) -> Conversion {
        let (from, to) = (Form::Numbers(self.from), Form::Numbers(Storage::packed(lane)));
        Conversion::cast(from, to, Attributes::default().rules()).expect("every real number can be widened")
    }

    fn elements(&self) -> Elements<'_> {
        Elements { count: self.count, shape: &self.tensor.shape, fortran_order: self.tensor.fortran_order }
    }

    fn bytes(&self, elements: u64) -> usize {
        self.from.bytes(elements).expect("a part of what is in the file") as usize
    }

    /// Takes some elements of a piece, with the bytes that they are.
    fn widen<T: Tally>(
        &self,
        conversion: &Conversion,
        lane: &mut Lane<T>,
        elements: Range<u64>,
        bytes: &[u8],
    ) -> Result<()> {
        let kernel = kernel(conversion);
        if kernel.is_plain_copy() {
            lane.tally.add(bytes);
            return Ok(());
        }
        for start in elements.clone().step_by(BLOCK) {
            let count = (elements.end - start).min(BLOCK as u64);
            let input = &bytes[self.bytes(start) - self.bytes(elements.start)..];
            lane.bytes.resize(conversion.to.bytes(count).expect("a small size") as usize, 0);
            run_kernel(kernel, conversion, self.elements(), start, input, &mut lane.bytes, count as usize)?;
            lane.tally.add(&lane.bytes);
        }
        Ok(())
    }

    /// Has threads read the pieces of a tensor, and gives what each of them has done.
    fn pieces<D: Default + Send>(
        &self,
        file: &MappedFile,
        range: &Range<usize>,
        checksum: Option<&Checksum>,
        read: impl Fn(&mut D, Range<u64>, &[u8]) -> Result<()> + Sync,
    ) -> Result<Vec<D>> {
        let piece = PIECE / u64::from(self.from.dtype.bits().div_ceil(8));
        let next = AtomicU64::new(0);
        // Sums of pieces, with where they start, where there is a checksum.
        let read_piece = |start: u64, (done, sums): &mut (D, Vec<(u64, Hasher)>)| -> Result<()> {
            let end = self.count.min(start + piece);
            let source = range.start + self.bytes(start)..range.start + self.bytes(end);
            file.prefetch(source.clone())?;
            if checksum.is_some() {
                sums.push((start, sum_of(&file[source.clone()])));
            }
            read(done, start..end, &file[source.clone()])?;
            self.progress.advance(source.len() as u64);
            Ok(())
        };
        let worker = || -> Result<_, Box<(u64, Error)>> {
            let mut done = <(D, Vec<(u64, Hasher)>)>::default();
            loop {
                let start = next.fetch_add(piece, Ordering::Relaxed);
                if start >= self.count {
                    return Ok(done);
                }
                read_piece(start, &mut done).map_err(|error| {
                    next.store(self.count, Ordering::Relaxed);
                    Box::new((start, error))
                })?;
            }
        };
        let threads = self.threads.min(self.count.div_ceil(piece));
        let (mut all, mut sums, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for result in on_threads(threads, worker) {
            match result {
                Ok((done, of_pieces)) => {
                    all.push(done);
                    sums.extend(of_pieces);
                }
                Err(failure) => failures.push(failure),
            }
        }
        // Pieces are handed out in order, and those under way are finished: the first failure is always among them.
        let first = failures.into_iter().min_by_key(|failure| failure.0);
        first.map_or(Ok(()), |failure| Err(failure.1))?;
        if let Some(checksum) = checksum {
            sums.sort_by_key(|(start, _)| *start);
            let mut whole = Hasher::new();
            for (_, sum) in &sums {
                whole.combine(sum);
            }
            checksum.check(&whole)?;
        }
        Ok(all)
    }
}

/// A tally, and room for what it takes.
#[derive(Default)]
struct Lane<T> {
    tally: T,
    bytes: Vec<u8>,
}

fn kernel(conversion: &Conversion) -> &Kernel {
    conversion.kernel().expect("numbers to numbers")
}
