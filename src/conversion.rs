//! One tensor's elements on their way: from the form that they are stored in to the form that they get.
//!
//! Numbers to numbers is a [`Kernel`], and any part of a tensor can be converted alone. Where text is involved, on
//! either side, elements come one after the other in batches.

use crate::container::{Form, Reader, TextError, TextExtent, TextForm, position};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::kernel::{
    Condition, Counts, First, Firsts, Kernel, Malformed, NotANumber, Parser, Printer, Rules, Storage, Texts,
};
use crate::text::shorten;
use std::sync::Arc;

/// Elements that are converted at a time where they come as a stream: enough rows of a matrix that is being transposed.
const CHUNK: u64 = 1 << 20;
/// Texts that are held at a time, and the bytes of them after which a batch ends.
const BATCH: u64 = 1024;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of texts that are written at a time.
const PIECE: usize = 1 << 20;

/// What is watched in every cast.
const INPUTS: [Condition; 2] = [Condition::InputNan, Condition::InputInfinite];

/// Takes a piece of a conversion: source, result, and elements so far.
pub(crate) type PieceSink<'a> = dyn FnMut(&[u8], &[u8], u64) -> Result<()> + 'a;

/// What makes a tensor's new elements of its old ones. Clones share the kernel and its tables.
#[derive(Clone)]
pub(crate) struct Conversion {
    /// How the source's elements are stored.
    pub from: Form,
    /// How the result's elements are stored.
    pub to: Form,
    how: Arc<Method>,
    /// Conditions of which the first element is to be found.
    watched: Arc<[Condition]>,
}

/// What was found of some elements.
#[derive(Default)]
pub(crate) struct Findings {
    pub counts: Counts,
    pub firsts: Firsts,
}

enum Method {
    Numbers(Kernel),
    /// To complex numbers: the kernel makes the parts.
    Complex(Kernel),
    Parse(TextForm, Parser),
    Print(TextSource, TextForm),
}

/// What texts are made of.
enum TextSource {
    Numbers(Storage, Printer),
    Texts(TextForm),
}

impl TextSource {
    /// `None` for complex numbers, which ONNX Cast lacks.
    fn new(form: Form) -> Option<Self> {
        Some(match form {
            Form::Numbers(storage) => Self::Numbers(storage, Printer::new(storage)?),
            Form::Texts(form) => Self::Texts(form),
        })
    }
}

/// The elements of a tensor as messages name them.
#[derive(Clone, Copy)]
pub(crate) struct NamedElements<'a> {
    /// How many there are.
    pub count: u64,
    /// Lengths of the dimensions.
    pub shape: &'a [u64],
    /// Whether they come in column-major order.
    pub fortran_order: bool,
}

impl NamedElements<'_> {
    fn error(&self, index: u64, what: &str) -> Error {
        Error::new(format!("element {}: {what}", position(index, self.shape, self.fortran_order)))
    }

    fn out_of_range(&self, index: u64, value: &str, to: Dtype) -> Error {
        self.error(index, &format!("{value} is out of range for {to}")).of(Kind::OutOfRange)
    }
}

impl Conversion {
    /// The cast of values. `None` where ONNX Cast has no such pair, or the target is big-endian.
    #[must_use]
    pub(crate) fn cast(from: Form, to: Form, rules: Rules) -> Option<Self> {
        let how = match (from, to) {
            (Form::Numbers(source), Form::Numbers(target)) => Method::Numbers(Kernel::cast(source, target, &rules)?),
            (Form::Texts(source), Form::Numbers(target)) => Method::Parse(source, Parser::new(target, &rules)?),
            (_, Form::Texts(target)) => Method::Print(TextSource::new(from)?, target),
        };
        Some(Self { from, to, how: Arc::new(how), watched: Arc::new(INPUTS) })
    }

    /// The same elements in another form. `None` for types of other widths, and for a big-endian target.
    #[must_use]
    pub(crate) fn copy(from: Form, to: Form) -> Option<Self> {
        let how = match (from, to) {
            (Form::Numbers(source), Form::Numbers(target)) => Method::Numbers(Kernel::copy(source, target)?),
            (Form::Texts(source), Form::Texts(target)) => Method::Print(TextSource::Texts(source), target),
            _ => return None,
        };
        Some(Self { from, to, how: Arc::new(how), watched: Arc::new([]) })
    }

    /// To complex numbers, which is no cast of ONNX: both parts of a complex source, or a real one and 0, by the rules
    /// of a cast. `None` where the target is not complex or the source is text.
    #[must_use]
    pub(crate) fn to_complex(from: Form, to: Form, rules: Rules) -> Option<Self> {
        let (Form::Numbers(source), Form::Numbers(target)) = (from, to) else { return None };
        if target.dtype.part() == target.dtype {
            return None;
        }
        let source = Storage { dtype: source.dtype.part(), ..source };
        let kernel = Kernel::cast(source, Storage::packed(target.dtype.part()), &rules)?;
        Some(Self { from, to, how: Arc::new(Method::Complex(kernel)), watched: Arc::new(INPUTS) })
    }

    /// The same, with the first element of each of these conditions found as well as those of the input's NaN and Inf.
    #[must_use]
    pub(crate) fn watch(self, conditions: &[Condition]) -> Self {
        let watched = INPUTS.iter().chain(conditions.iter().filter(|condition| !INPUTS.contains(condition)));
        Self { watched: watched.copied().collect(), ..self }
    }

    /// The kernel, where every element has its place and any part can be converted alone.
    #[must_use]
    pub(crate) fn kernel(&self) -> Option<&Kernel> {
        if let Method::Numbers(kernel) = &*self.how { Some(kernel) } else { None }
    }

    /// Converts `count` elements, of which `start` is the first, numbers to numbers.
    ///
    /// # Errors
    /// As [`run_kernel`].
    pub(crate) fn convert(
        &self,
        elements: NamedElements,
        start: u64,
        input: &[u8],
        count: usize,
        output: &mut Vec<u8>,
    ) -> Result<Counts> {
        let kernel = self.kernel().expect("numbers to numbers");
        output.resize(self.to.bytes(count as u64).expect("as many as are read at a time") as usize, 0);
        run_kernel(kernel, self, elements, start, input, output, count)
    }

    /// Converts everything that `reader` gives and hands it to `sink`, piece by piece: of numbers the source, the result,
    /// and the number of elements so far; of text there is no source to see.
    ///
    /// # Errors
    /// When an element cannot be converted, or `reader` or `sink` fails.
    pub(crate) fn run(&self, elements: NamedElements, mut reader: Reader, sink: &mut PieceSink) -> Result<Findings> {
        let found = match &*self.how {
            Method::Numbers(kernel) | Method::Complex(kernel) => self.numbers(kernel, elements, &mut reader, sink),
            Method::Parse(form, parser) => self.parse(*form, parser, elements, &mut reader, sink),
            Method::Print(source, form) => print(source, *form, elements, &mut reader, sink),
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
        let is_complex = matches!(*self.how, Method::Complex(_));
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

    /// The first of `count` elements that meet the conditions that are watched, where `known` has none before them;
    /// `start` is the first of them all. Most often there are none, and nothing is done.
    pub(crate) fn firsts(
        &self,
        kernel: &Kernel,
        counts: &Counts,
        known: &Firsts,
        start: u64,
        input: &[u8],
        count: usize,
    ) -> Firsts {
        /// Elements that are converted again at a time; whole bytes of every type.
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

/// Runs a kernel over some elements, of which `start` is the first.
///
/// # Errors
/// When an element is malformed or breaks a rule; the first such element is named.
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

/// One of some numbers as text; empty for complex ones.
fn text_of(storage: Storage, bytes: &[u8], index: usize) -> String {
    let Some(printer) = Printer::new(storage) else { return String::new() };
    let mut texts = Texts::default();
    // Malformed elements behind it are none of its business.
    let _ = printer.print(bytes, index + 1, &mut texts);
    if index < texts.len() { String::from_utf8_lossy(texts.get(index)).into_owned() } else { String::new() }
}

/// The first element for which something is so of all prefixes that hold it. Elements that are run together start on a
/// whole byte, so any prefix of them can be tried.
fn first_bad(count: usize, mut is_bad: impl FnMut(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if is_bad(middle) { bad = middle } else { good = middle }
    }
    good
}

/// The texts of a tensor's elements, batch by batch.
struct Batches<'a> {
    source: &'a TextSource,
    /// Elements before the batch.
    index: u64,
    texts: Texts,
    scratch: Vec<u8>,
}

impl<'a> Batches<'a> {
    fn new(source: &'a TextSource) -> Self {
        Self { source, index: 0, texts: Texts::default(), scratch: Vec::new() }
    }

    /// Reads the next batch, a multiple of 8 elements unless it is the last; false when none are left.
    fn next(&mut self, elements: NamedElements, reader: &mut Reader) -> Result<bool> {
        self.index += self.texts.len() as u64;
        self.texts.clear();
        let count = BATCH.min(elements.count - self.index);
        match self.source {
            TextSource::Numbers(storage, printer) => {
                self.scratch.resize(storage.bytes(count).unwrap_or_default() as usize, 0);
                reader.fill(&mut self.scratch)?;
                if printer.print(&self.scratch, count as usize, &mut self.texts).is_err() {
                    let is_bad = |count| printer.print(&self.scratch, count, &mut Texts::default()).is_err();
                    let index = self.index + first_bad(count as usize, is_bad) as u64;
                    return Err(elements.error(index, &dirty(storage.dtype)));
                }
            }
            TextSource::Texts(form) => {
                let mut bytes = 0;
                while (self.texts.len() as u64) < count && (bytes < BATCH_BYTES || !self.texts.len().is_multiple_of(8))
                {
                    let index = self.index + self.texts.len() as u64;
                    let read = form.read(&mut |buffer| reader.fill(buffer), &mut self.scratch, &mut self.texts);
                    read.map_err(|error| match error {
                        TextError::Malformed(what) => elements.error(index, &what),
                        TextError::Source(error) => error,
                    })?;
                    bytes += self.texts.get(self.texts.len() - 1).len();
                }
            }
        }
        Ok(!self.texts.is_empty())
    }
}

fn dirty(dtype: Dtype) -> String {
    format!("a byte that holds one {dtype} has bits above it")
}

/// Finds out how long the texts of a tensor are, be it numbers or text now; `progress` is told of elements so far.
///
/// # Errors
/// When an element has no text, or `reader` fails.
pub(crate) fn measure(
    from: Form,
    elements: NamedElements,
    mut reader: Reader,
    progress: &mut dyn FnMut(u64),
) -> Result<TextExtent> {
    let mut extent = TextExtent::default();
    let source = TextSource::new(from).ok_or_else(|| Error::new(format!("{} has no text", from.dtype())))?;
    let mut batches = Batches::new(&source);
    while batches.next(elements, &mut reader)? {
        for (index, text) in (batches.index..).zip(batches.texts.iter()) {
            extent.add(index, text);
        }
        progress(batches.index + batches.texts.len() as u64);
    }
    reader.finish()?;
    // A tensor of text that stays text keeps its width and its kind.
    match source {
        TextSource::Texts(TextForm::CodePoints { width, .. }) => extent.longest_chars = width,
        TextSource::Texts(TextForm::Bytes { width }) => {
            extent.longest_bytes = width;
            extent.is_binary = true;
        }
        _ => {}
    }
    Ok(extent)
}

/// Numbers or text -> text.
fn print(
    source: &TextSource,
    to: TextForm,
    elements: NamedElements,
    reader: &mut Reader,
    sink: &mut PieceSink,
) -> Result<Findings> {
    let mut batches = Batches::new(source);
    let mut output = Vec::new();
    let mut found = Findings::default();
    while batches.next(elements, reader)? {
        for (index, text) in (batches.index..).zip(batches.texts.iter()) {
            if let (TextSource::Numbers(..), b"NaN" | b"INF" | b"-INF") = (source, text) {
                let is_nan = text == b"NaN";
                *(if is_nan { &mut found.counts.input_nan } else { &mut found.counts.input_infinite }) += 1;
                let value = String::from_utf8_lossy(text).into_owned();
                let condition = if is_nan { Condition::InputNan } else { Condition::InputInfinite };
                found.firsts.add(condition, First { at: index, values: [value.clone(), value] });
            }
            to.write(text, &mut output);
            if output.len() >= PIECE {
                sink(&[], &output, index + 1)?;
                output.clear();
            }
        }
    }
    sink(&[], &output, elements.count)?;
    Ok(found)
}

impl Conversion {
    /// Text -> numbers.
    fn parse(
        &self,
        from: TextForm,
        parser: &Parser,
        elements: NamedElements,
        reader: &mut Reader,
        sink: &mut PieceSink,
    ) -> Result<Findings> {
        let to = self.to;
        let source = TextSource::Texts(from);
        let mut batches = Batches::new(&source);
        let mut output = Vec::new();
        let mut found = Findings::default();
        while batches.next(elements, reader)? {
            let (texts, start) = (&batches.texts, batches.index);
            output.resize(to.bytes(texts.len() as u64).unwrap_or_default() as usize, 0);
            let lost = parser.parse(texts, &mut output).map_err(|NotANumber(index)| {
                let text = shorten(&String::from_utf8_lossy(texts.get(index)));
                let what = if to.dtype() == Dtype::Bool { "neither a number nor true or false" } else { "no number" };
                elements.error(start + index as u64, &format!("'{text}' is {what}"))
            })?;
            let watched = self.watched.iter().copied();
            let open = watched.filter(|condition| lost[*condition] > 0 && found.firsts.of(*condition).is_none());
            let refused = parser.refuses().map(Condition::Lost).filter(|condition| lost[*condition] > 0);
            let wanted: Vec<Condition> = refused.into_iter().chain(open).collect();
            let firsts = first_texts(parser, texts, start, wanted, to);
            if let Some(First { at, values: [text, _] }) = refused.and_then(|condition| firsts.of(condition)) {
                return Err(elements.out_of_range(*at, text, to.dtype()));
            }
            found.firsts.merge(firsts);
            found.counts += lost;
            sink(&[], &output, start + texts.len() as u64)?;
        }
        Ok(found)
    }
}

/// The first of some texts that meets each condition; `start` is the first of them all.
fn first_texts(parser: &Parser, texts: &Texts, start: u64, mut wanted: Vec<Condition>, to: Form) -> Firsts {
    let mut firsts = Firsts::default();
    let mut output = vec![0; to.bytes(1).unwrap_or_default() as usize];
    for (index, text) in (start..).zip(texts.iter()) {
        if wanted.is_empty() {
            break;
        }
        let mut one = Texts::default();
        one.push(text);
        let Ok(counts) = parser.parse(&one, &mut output) else { continue };
        let result = if let Form::Numbers(storage) = to { text_of(storage, &output, 0) } else { String::new() };
        let (met, open) = wanted.into_iter().partition(|condition| counts[*condition] > 0);
        wanted = open;
        let met: Vec<Condition> = met;
        for condition in met {
            let value = format!("'{}'", shorten(&String::from_utf8_lossy(text)));
            firsts.add(condition, First { at: index, values: [value, result.clone()] });
        }
    }
    firsts
}
