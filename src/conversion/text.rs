//! Conversions from and to text: in sequence, in batches.

use super::elements::{Findings, NamedElements, PieceSink, dirty, first_bad, text_of};
use crate::container::{Form, Reader, TextError, TextExtent, TextForm};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Condition, First, Firsts, NotANumber, Parser, Printer, Storage, Texts};
use crate::text::shorten;

/// Maximum number of texts in a batch. A batch also ends after `BATCH_BYTES` bytes.
const BATCH: u64 = 1024;

const BATCH_BYTES: usize = 1 << 20;

/// Number of bytes of texts written at a time.
const PIECE: usize = 1 << 20;

/// The source of texts.
pub(super) enum TextSource {
    Numbers(Storage, Printer),
    Texts(TextForm),
}

impl TextSource {
    /// Creates the source of texts for a form; `None` for complex numbers, which ONNX Cast lacks.
    pub(super) fn new(form: Form) -> Option<Self> {
        Some(match form {
            Form::Numbers(storage) => Self::Numbers(storage, Printer::new(storage)?),
            Form::Texts(form) => Self::Texts(form),
        })
    }
}

/// The texts of a tensor's elements, batch by batch.
struct Batches<'a> {
    source: &'a TextSource,
    /// Number of elements before the batch.
    index: u64,
    texts: Texts,
    scratch: Vec<u8>,
}

impl<'a> Batches<'a> {
    fn new(source: &'a TextSource) -> Self {
        Self { source, index: 0, texts: Texts::default(), scratch: Vec::new() }
    }

    /// Reads the next batch, a multiple of 8 elements except for the last; returns false at the end.
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

/// Determines the lengths of a tensor's texts, present or future; `progress` receives the number of elements so far.
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
    // A text tensor that stays text keeps its width and kind.
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

/// Converts numbers or text to text.
pub(super) fn print(
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

/// Converts text to numbers of the form `to`. Also finds the first element that meets each of the conditions.
pub(super) fn parse(
    (from, parser, to): (TextForm, &Parser, Form),
    watched: &[Condition],
    elements: NamedElements,
    reader: &mut Reader,
    sink: &mut PieceSink,
) -> Result<Findings> {
    let source = TextSource::Texts(from);
    let mut batches = Batches::new(&source);
    let mut output = Vec::new();
    let mut found = Findings::default();
    while batches.next(elements, reader)? {
        let (texts, start) = (&batches.texts, batches.index);
        output.resize(to.bytes(texts.len() as u64).unwrap_or_default() as usize, 0);
        let lost = parser.parse(texts, &mut output).map_err(|NotANumber(index)| {
            let text = shorten(&String::from_utf8_lossy(texts.get(index)));
            let what = if to.dtype() == Dtype::Bool { "neither a number nor true or false" } else { "not a number" };
            elements.error(start + index as u64, &format!("'{text}' is {what}")).unconvertible()
        })?;
        let watched = watched.iter().copied();
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

/// Returns the first text that meets each condition; `start` is the index of the first text.
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
