//! The distribution of a tensor's values: extremes, mean, special values, and a histogram of exponents.
//!
//! A tensor is read once, in pieces that threads take from one counter. The kernels widen floats except float64 to
//! float32, and integers to 64 bits, so that one loop serves each of the three; large tensors of types of 16 bits and
//! fewer are counted word by word and widened afterwards. Only counts and exact sums are kept, which do not depend on
//! the order: all results are identical to the bit for any number of threads and any instruction set.

#[cfg(feature = "cli")]
mod draw;
mod float32;
mod histogram;
mod integers;
mod sum;
mod tally;
mod words;

#[cfg(feature = "cli")]
pub use draw::draw;
pub use histogram::{Distribution, Histogram};

use crate::container::{Elements, Form, Tensor, row_major};
use crate::conversion::{Conversion, NamedElements};
use crate::dtype::{Class, Dtype};
use crate::error::Result;
use crate::io::map::MappedFile;
use crate::kernel::{Kernel, Storage};
use crate::operator::cast::CastAttributes;
use crate::progress::{Never, Progress, Reading, Silent};
use crate::quant::Arithmetic;
use crate::read::{LogicalTensor, ModelTensor, Piece, SourceTensor, Zip};
use float32::Float32Tally;
use integers::IntegerTally;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use tally::{BLOCK, Float64Tally, Repeat, Tally};
use words::{WordCounts, elements_per_word};

/// Number of bytes of input that a thread takes at a time, whole [`BLOCK`]s of every type.
const PIECE: u64 = 1 << 20;

/// Computes the distribution of a stored tensor of this form. `None` for text. An error names the first malformed element.
#[doc(hidden)] // for tests
pub fn of(
    tensor: &Tensor,
    form: Form,
    files: &[MappedFile],
    threads: usize,
    progress: &dyn Progress,
) -> Result<Option<Distribution>> {
    of_stored(tensor, form, files, Reading { threads, progress, cancel: &Never })
}

/// Computes the distribution of a tensor or a weight of a model. `form` is the form of a stored tensor's elements. `None`
/// for text, and without a form.
pub(crate) fn of_model(tensor: ModelTensor, form: Option<Form>, reading: Reading) -> Result<Option<Distribution>> {
    if let ModelTensor { model, weight: Some(weight), .. } = tensor {
        let target = model.target_of(weight);
        let source = model.weight(weight, target, Arithmetic::Library)?;
        return measure(LogicalTensor::Weight(&source), Storage::packed(target), 1, reading).map(Some);
    }
    let (Some(form), SourceTensor { tensor, files, .. }) = (form, tensor.model.stored(tensor.at)) else {
        return Ok(None);
    };
    of_stored(tensor, form, files, reading).map_err(|error| error.in_file(files[0].path()))
}

fn of_stored(tensor: &Tensor, form: Form, files: &[MappedFile], reading: Reading) -> Result<Option<Distribution>> {
    let Form::Numbers(stored) = form else { return Ok(None) };
    let dtype = stored.dtype.part();
    let parts = if dtype == stored.dtype { 1 } else { 2 };
    let from = Storage { dtype, ..stored };
    let source = SourceTensor { files, tensor, elements: Elements::Typed(Form::Numbers(from)), is_transposed: false };
    measure(LogicalTensor::Stored(source), from, parts, reading).map(Some)
}

/// Computes the distribution of a tensor whose elements have `parts` real numbers each.
fn measure(source: LogicalTensor, from: Storage, parts: u64, reading: Reading) -> Result<Distribution> {
    let (dtype, NamedElements { count, shape, fortran_order }) = (from.dtype, source.named());
    let work = Work { source, from, count: count * parts, reading };
    let mut stats = match dtype.class() {
        Class::Int { signed: true } => work.run_narrow::<8, IntegerTally<true>>(Dtype::Int64),
        Class::Int { signed: false } | Class::Bool => work.run_narrow::<8, IntegerTally<false>>(Dtype::Uint64),
        _ if dtype != Dtype::Float64 => work.run_narrow::<4, Float32Tally>(Dtype::Float32),
        _ => work.run::<Float64Tally>(dtype),
    }?;
    if let Class::Float(format) = dtype.class() {
        stats.subnormals = stats.exponents.within(i32::MIN..format.min_normal_exponent());
    }
    if stats.nan + stats.plus_infinite + stats.minus_infinite > 0 {
        let wanted = [stats.nan > 0, stats.plus_infinite + stats.minus_infinite > 0];
        let again = Reading { progress: &Silent, ..reading };
        let firsts = Work { reading: again, ..work }.first_specials(wanted)?;
        [stats.first_nan, stats.first_infinite] = firsts.map(|first| {
            let element = first? / parts;
            Some(if fortran_order { row_major(element, shape) } else { element })
        });
    }
    Ok(stats)
}

/// A tensor to be read as real numbers.
struct Work<'a> {
    source: LogicalTensor<'a>,
    from: Storage,
    count: u64,
    reading: Reading<'a>,
}

impl Work<'_> {
    /// Does the same as [`Work::run`] for narrow types, counting words if there are many.
    fn run_narrow<const WIDTH: usize, T: Repeat<WIDTH>>(&self, lane: Dtype) -> Result<Distribution> {
        let Some(per_word) = elements_per_word(self.from, self.count) else {
            return self.run::<T>(lane);
        };
        let conversion = self.conversion(lane);
        let done = self.read(|(words, rest): &mut (WordCounts, BufferedTally<T>), piece: &Piece<1>| {
            let whole = piece.count / per_word;
            let (bytes, last) = piece.bytes[0].split_at(2 * whole);
            words.add(bytes);
            let (start, count) = (piece.start + (whole * per_word) as u64, piece.count % per_word);
            self.widen(&conversion, rest, &Piece { start, count, bytes: [last] })
        })?;
        let (mut words, mut tally) = (WordCounts::default(), T::default());
        for (other, rest) in done {
            words.merge(&other);
            tally.merge(rest.tally);
        }
        let kernel = conversion.kernel().expect("numbers to numbers");
        words.add_to(kernel, per_word, &mut tally);
        Ok(tally.distribution())
    }

    /// Reads everything, widened to the type that `T` takes.
    fn run<T: Tally>(&self, lane: Dtype) -> Result<Distribution> {
        let conversion = self.conversion(lane);
        let mut tally = T::default();
        for lane in self.read(|lane: &mut BufferedTally<T>, piece: &Piece<1>| self.widen(&conversion, lane, piece))? {
            tally.merge(lane.tally);
        }
        Ok(tally.distribution())
    }

    /// Finds the first NaN and the first Inf, if wanted. Few tensors have any, and only such tensors are read once
    /// more.
    fn first_specials(&self, wanted: [bool; 2]) -> Result<[Option<u64>; 2]> {
        let conversion = self.conversion(Dtype::Float64);
        let firsts = [0, 1].map(|at| AtomicU64::new(if wanted[at] { u64::MAX } else { 0 }));
        let is_open = |start: u64| firsts.iter().any(|first| first.load(Ordering::Relaxed) > start);
        self.read(|buffer: &mut Vec<u8>, piece: &Piece<1>| {
            for block in piece.blocks(&[self.source], BLOCK).take_while(|block| is_open(block.start)) {
                self.convert(&conversion, &block, buffer)?;
                let numbers = buffer.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
                for (at, number) in (block.start..).zip(numbers) {
                    match () {
                        () if number.is_nan() => drop(firsts[0].fetch_min(at, Ordering::Relaxed)),
                        () if number.is_infinite() => drop(firsts[1].fetch_min(at, Ordering::Relaxed)),
                        () => {}
                    }
                }
            }
            Ok(())
        })?;
        let firsts = firsts.map(AtomicU64::into_inner);
        Ok([0, 1].map(|at| wanted[at].then_some(firsts[at])))
    }

    fn conversion(&self, lane: Dtype) -> Conversion {
        let (from, to) = (Form::Numbers(self.from), Form::Numbers(Storage::packed(lane)));
        Conversion::cast(from, to, CastAttributes::default().rules()).expect("every real number can be widened")
    }

    /// Adds the elements of a piece.
    fn widen<T: Tally>(&self, conversion: &Conversion, lane: &mut BufferedTally<T>, piece: &Piece<1>) -> Result<()> {
        if conversion.kernel().is_some_and(Kernel::is_plain_copy) {
            lane.tally.add(piece.bytes[0]);
            return Ok(());
        }
        for block in piece.blocks(&[self.source], BLOCK) {
            self.convert(conversion, &block, &mut lane.bytes)?;
            lane.tally.add(&lane.bytes);
        }
        Ok(())
    }

    fn convert(&self, conversion: &Conversion, block: &Piece<1>, output: &mut Vec<u8>) -> Result<()> {
        let elements = NamedElements { count: self.count, ..self.source.named() };
        let converted = conversion.convert(elements, block.start, block.bytes[0], block.count, output);
        converted.map(drop).map_err(|error| self.source.error(error))
    }

    /// Makes threads read the pieces of the tensor, and returns the states of the threads.
    fn read<S: Default + Send>(&self, look: impl Fn(&mut S, &Piece<1>) -> Result<()> + Sync) -> Result<Vec<S>> {
        let piece = PIECE / u64::from(self.from.dtype.bits().div_ceil(8));
        let mut zip = Zip::new([self.source], self.count, self.reading);
        zip.read(piece, S::default, look, |()| ControlFlow::Continue(()))
    }
}

#[derive(Default)]
struct BufferedTally<T> {
    tally: T,
    bytes: Vec<u8>,
}
