//! The conversion of one tensor's elements from their stored form to the form in the output.
//!
//! A [`Kernel`] converts numbers to numbers, and any part of a tensor can be converted independently. If either side is
//! text, elements are converted in sequence, in batches.

mod elements;
mod text;

pub(crate) use elements::{Findings, NamedElements, PieceSink};
pub(crate) use text::measure;

use crate::container::{Form, Reader, TextForm};
use crate::error::Result;
use crate::kernel::{Condition, Counts, First, Firsts, Kernel, Loss, Malformed, Parser, Rules, Storage};
use elements::{dirty, first_bad, text_of};
use std::sync::Arc;
use text::{TextSource, parse, print};

/// Number of elements converted at a time from a stream: enough rows of a matrix that is being transposed.
const CHUNK: u64 = 1 << 20;

/// Conditions that every cast watches for: special values of the input, and values that become special or are lost
/// as such.
const SPECIAL: [Condition; 5] = [
    Condition::InputNan,
    Condition::InputInfinite,
    Condition::Lost(Loss::Infinite),
    Condition::Lost(Loss::Nan),
    Condition::Lost(Loss::NanLost),
];

/// A conversion of a tensor's elements. Clones share the kernel and its tables.
#[derive(Clone)]
pub(crate) struct Conversion {
    /// Stored form of the source's elements.
    pub from: Form,
    /// Stored form of the result's elements.
    pub to: Form,
    how: Arc<ConversionMethod>,
    /// Conditions for which the first element is recorded.
    watched: Arc<[Condition]>,
}

enum ConversionMethod {
    Numbers(Kernel),
    /// Conversion to complex numbers: the kernel converts the parts.
    Complex(Kernel),
    Parse(TextForm, Parser),
    Print(TextSource, TextForm),
}

impl Conversion {
    /// Returns the cast of values; `None` if ONNX Cast lacks this pair of types, or the target is big-endian.
    pub(crate) fn cast(from: Form, to: Form, rules: Rules) -> Option<Self> {
        let how = match (from, to) {
            (Form::Numbers(source), Form::Numbers(target)) => {
                ConversionMethod::Numbers(Kernel::cast(source, target, &rules)?)
            }
            (Form::Texts(source), Form::Numbers(target)) => {
                ConversionMethod::Parse(source, Parser::new(target, &rules)?)
            }
            (_, Form::Texts(target)) => ConversionMethod::Print(TextSource::new(from)?, target),
        };
        Some(Self { from, to, how: Arc::new(how), watched: Arc::new(SPECIAL) })
    }

    /// Returns the conversion to another form that keeps the bits of numbers, or the texts. `None` for types of
    /// different widths, between numbers and text, and for a big-endian target.
    pub(crate) fn copy(from: Form, to: Form) -> Option<Self> {
        let how = match (from, to) {
            (Form::Numbers(source), Form::Numbers(target)) => ConversionMethod::Numbers(Kernel::copy(source, target)?),
            (Form::Texts(source), Form::Texts(target)) => ConversionMethod::Print(TextSource::Texts(source), target),
            _ => return None,
        };
        Some(Self { from, to, how: Arc::new(how), watched: Arc::new([]) })
    }

    /// Returns the conversion to complex numbers, which ONNX Cast lacks: both parts of a complex source, or a real
    /// number and 0, by the rules of a cast. `None` if the target is not complex or the source is text.
    pub(crate) fn to_complex(from: Form, to: Form, rules: Rules) -> Option<Self> {
        let (Form::Numbers(source), Form::Numbers(target)) = (from, to) else { return None };
        if target.dtype.part() == target.dtype {
            return None;
        }
        let source = Storage { dtype: source.dtype.part(), ..source };
        let kernel = Kernel::cast(source, Storage::packed(target.dtype.part()), &rules)?;
        Some(Self { from, to, how: Arc::new(ConversionMethod::Complex(kernel)), watched: Arc::new(SPECIAL) })
    }

    /// Also finds the first element that meets each of these conditions, in addition to those of [`SPECIAL`].
    pub(crate) fn watch(self, conditions: &[Condition]) -> Self {
        let watched = SPECIAL.iter().chain(conditions.iter().filter(|condition| !SPECIAL.contains(condition)));
        Self { watched: watched.copied().collect(), ..self }
    }

    /// Returns the kernel, if any part can be converted independently.
    pub(crate) fn kernel(&self) -> Option<&Kernel> {
        if let ConversionMethod::Numbers(kernel) = &*self.how { Some(kernel) } else { None }
    }

    /// Converts `count` elements from index `start` on, numbers to numbers.
    pub(crate) fn convert(
        &self,
        elements: NamedElements,
        start: u64,
        input: &[u8],
        count: usize,
        output: &mut Vec<u8>,
    ) -> Result<Counts> {
        let kernel = self.kernel().expect("numbers to numbers");
        output.resize(self.to.bytes(count as u64).expect("a piece fits into memory") as usize, 0);
        run_kernel(kernel, self, elements, start, input, output, count)
    }

    /// Converts everything from `reader` and passes it to `sink`, piece by piece: for numbers the source, the result,
    /// and the number of elements so far; for text the source is empty.
    pub(crate) fn run(&self, elements: NamedElements, mut reader: Reader, sink: &mut PieceSink) -> Result<Findings> {
        let found = match &*self.how {
            ConversionMethod::Numbers(kernel) | ConversionMethod::Complex(kernel) => {
                self.numbers(kernel, elements, &mut reader, sink)
            }
            ConversionMethod::Parse(form, parser) => {
                parse((*form, parser, self.to), &self.watched, elements, &mut reader, sink)
            }
            ConversionMethod::Print(source, form) => print(source, *form, elements, &mut reader, sink),
        }?;
        reader.finish()?;
        Ok(found)
    }

    fn numbers(
        &self,
        kernel: &Kernel,
        elements: NamedElements,
        reader: &mut Reader,
        sink: &mut PieceSink,
    ) -> Result<Findings> {
        let (from, to) = (self.from.dtype(), self.to.dtype());
        let is_complex = matches!(*self.how, ConversionMethod::Complex(_));
        let is_real = is_complex && from.part() == from;
        let (mut input, mut output) = (Vec::new(), Vec::new());
        let mut found = Findings::default();
        for start in (0..elements.count).step_by(CHUNK as usize) {
            let count = CHUNK.min(elements.count - start);
            let bytes = |form: Form| form.bytes(count).unwrap_or_default() as usize;
            input.resize(bytes(self.from), 0);
            output.resize(bytes(self.to), 0);
            reader.fill(&mut input)?;
            let numbers = if is_complex && !is_real { 2 * count } else { count } as usize;
            let counts = run_kernel(kernel, self, elements, start, &input, &mut output, numbers)?;
            let mut firsts = self.firsts(kernel, &counts, &found.firsts, start, &input, numbers);
            firsts.renumber(|at| start + (at - start) / (numbers as u64 / count));
            found.firsts.merge(firsts);
            found.counts += counts;
            if is_real {
                let width = to.part().bits() as usize / 8;
                let real: Vec<u8> = output[..numbers * width].to_vec();
                for (number, part) in output.chunks_exact_mut(2 * width).zip(real.chunks_exact(width)) {
                    let (real, imaginary) = number.split_at_mut(width);
                    real.copy_from_slice(part);
                    imaginary.fill(0);
                }
            }
            sink(&input, &output, start + count)?;
        }
        Ok(found)
    }

    /// Returns the first of `count` elements that meets each watched condition, unless `known` has an earlier one;
    /// `start` is the index of the first element. Usually no condition is met, and there is nothing to do.
    pub(crate) fn firsts(
        &self,
        kernel: &Kernel,
        counts: &Counts,
        known: &Firsts,
        start: u64,
        input: &[u8],
        count: usize,
    ) -> Firsts {
        /// Number of elements converted again at a time; they fill whole bytes in every type.
        const STEP: usize = 1024;
        let is_open =
            |condition: &Condition| counts[*condition] > 0 && known.of(*condition).is_none_or(|first| first.at > start);
        let mut open: Vec<Condition> = self.watched.iter().copied().filter(is_open).collect();
        let mut firsts = Firsts::default();
        let [from, to] = kernel.storages();
        let bytes = |storage: Storage, count: usize| storage.bytes(count as u64).unwrap_or_default() as usize;
        let mut output = vec![0; if open.is_empty() { 0 } else { bytes(to, STEP) }];
        for first in (0..count).step_by(STEP) {
            if open.is_empty() {
                break;
            }
            let (input, count) = (&input[bytes(from, first)..], STEP.min(count - first));
            let mut counts = |count| kernel.run(input, &mut output, count).unwrap_or_default();
            let all = counts(count);
            let here: Vec<Condition> = open.iter().copied().filter(|condition| all[*condition] > 0).collect();
            open.retain(|condition| !here.contains(condition));
            let place = |condition| (condition, first_bad(count, |count| counts(count)[condition] > 0));
            let here: Vec<(Condition, usize)> = here.into_iter().map(place).collect();
            kernel.run(input, &mut output, count).unwrap_or_default();
            for (condition, good) in here {
                let values = [text_of(from, input, good), text_of(to, &output, good)];
                firsts.add(condition, First { at: start + (first + good) as u64, values });
            }
        }
        firsts
    }
}

/// Runs a kernel over elements from index `start` on. An error names the first element that is malformed or breaks a
/// rule.
pub(crate) fn run_kernel(
    kernel: &Kernel,
    conversion: &Conversion,
    elements: NamedElements,
    start: u64,
    input: &[u8],
    output: &mut [u8],
    count: usize,
) -> Result<Counts> {
    let loss = |counts: &Counts| kernel.refuses().is_some_and(|loss| counts[loss] > 0);
    let is_bad = |outcome: &Result<Counts, Malformed>| outcome.as_ref().map_or(true, loss);
    let outcome = kernel.run(input, output, count);
    if let Ok(lost) = &outcome
        && !loss(lost)
    {
        return Ok(*lost);
    }
    let good = first_bad(count, |count| is_bad(&kernel.run(input, output, count)));
    let index = start + good as u64;
    if kernel.run(input, output, good + 1).is_err() {
        return Err(elements.error(index, &dirty(conversion.from.dtype())));
    }
    Err(elements.out_of_range(index, &text_of(kernel.storages()[0], input, good), conversion.to.dtype()))
}
