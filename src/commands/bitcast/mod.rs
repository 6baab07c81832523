//! `tcast bitcast`: writes a file with the same bits as another type, or prints the bits.

mod printer;
mod weight;

use super::arguments::{check_printing, threads};
use super::observer::Console;
use super::run::{JobRequest, convert, job, open};
use crate::cli::BitcastArgs;
use crate::container::checkpoint::{Checkpoint, no_tensor};
use crate::container::{Elements, Form, Input, Reader, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::kernel::{Kernel, Malformed, Storage};
use crate::measure::bits::{bits_json, bits_row, codes, hex_json, hex_row, per_row};
use crate::operator::bitcast;
use crate::options::Task;
use crate::plan;
use crate::read::Model;
use crate::select::patterns_of;
use crate::text::quoted;
use printer::{ElementPrinter, finish, range_of};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::time::Instant;

/// Number of elements read at a time: a multiple that lets packed types start on whole bytes.
const CHUNK: u64 = 1024;

pub(super) fn run(args: &BitcastArgs) -> Result<()> {
    if args.hex || args.bits {
        return show(args);
    }
    if args.tensor.is_some() || args.range.is_some() {
        return Err(
            Error::usage("--tensor and --range go with --hex and --bits").with(Opt::INCLUDE, "choose tensors with {}")
        );
    }
    let start = Instant::now();
    let (options, job) = (&args.options, &job(Task::BitCast(&args.options), &args.file));
    let sources = open(&args.inputs, job, &args.file, &options.selection())?;
    let models: Vec<Model> = sources.iter().map(Model::of_values).collect();
    let request =
        JobRequest { job, models: &models, paths: &args.inputs, file: &args.file, report: None, budget: None };
    let converted = convert(request, &Console { is_quiet: args.file.quiet }, start, |_| Ok(()));
    converted.map_err(|error| with_widths(error, args, &sources))
}

/// Replaces the remedy for a tensor of another width than the type, if the tensors have several widths: no type fits all.
fn with_widths(error: Error, args: &BitcastArgs, sources: &[Checkpoint]) -> Error {
    let Some(to) = args.options.to else { return error };
    let selection = args.options.selection();
    let bits = |tensor: &Tensor| tensor.elements.dtype().map(Dtype::bits);
    let selected = || {
        sources.iter().flat_map(Checkpoint::tensors).filter(|(shard, tensor)| selection.selects(shard.name_of(tensor)))
    };
    let is_other_width = |&(_, tensor): &(&Input, &Tensor)| bits(tensor).is_some_and(|bits| bits != to.bits());
    let has_refused = |(shard, tensor): (&Input, &Tensor)| error.tensor() == Some(shard.name_of(tensor));
    let widths: BTreeSet<u32> = selected().filter_map(|(_, tensor)| bits(tensor)).collect();
    if widths.len() < 2 || !selected().filter(is_other_width).any(has_refused) {
        return error;
    }
    let fitting: BTreeSet<&str> =
        selected().filter(|found| !is_other_width(found)).map(|(shard, tensor)| shard.name_of(tensor)).collect();
    let names: Vec<&str> = sources.iter().flat_map(Checkpoint::names).collect();
    let globs = patterns_of(&names, |name| fitting.contains(name));
    let error = error.unadvised();
    match &globs[..] {
        [_, ..] if !selection.has_patterns() => {
            error.with_patterns(Opt::INCLUDE, &globs, format!("choose the tensors of {} bits with {{}}", to.bits()))
        }
        _ => error.remedy("choose tensors of one width with --include, and a type of that width with --to"),
    }
}

fn show(args: &BitcastArgs) -> Result<()> {
    let [path] = &args.inputs[..] else {
        return Err(Error::usage("--hex and --bits print one file").remedy("name one input"));
    };
    let naming = &args.options.tensors.naming;
    let source = naming.probe(path, threads(args.file.threads))?;
    naming.check(&source)?;
    let source = naming.apply(source)?;
    let mut source = source.with_single_experts(naming.names)?;
    check_printing([&source])?;
    let is_there = |name: &String| source.names().any(|known| known == name);
    if !source.broken.is_empty() && !args.tensor.as_ref().is_some_and(is_there) {
        return Err(source.broken.swap_remove(0)); // the tensor may be in it
    }
    if args.bits && args.options.to.is_none() && args.options.tensors.from.is_none() {
        let model = Model::probe(&source);
        if let Some(weight) = weight::find(&model, args.tensor.as_deref()) {
            return weight::show(args, &model, weight);
        }
    }
    let in_file = |error: Error| error.in_file(path);
    let (input, tensor) = choose(&source, args.tensor.as_deref()).map_err(in_file)?;
    plan::check_from([tensor], args.options.tensors.from).map_err(in_file)?;
    let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(path);
    let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
    let form = plan::source_form(tensor, args.options.tensors.from.or(args.options.to.filter(|_| is_untyped)))
        .map_err(in_tensor)?;
    let Form::Numbers(storage) = form else {
        // Among several tensors, a cast to floats leaves text as it is.
        let all = if input.container.format_info().holds_one { "" } else { " --all" };
        return Err(in_tensor(
            Error::new("text has no bits of its own: elements have no fixed width")
                .remedy(format!("tcast cast {} --to DTYPE{all} reads numbers from text", quoted(path))),
        ));
    };
    let dtype = args.options.to.unwrap_or(storage.dtype);
    if dtype != storage.dtype {
        bitcast::check(storage.dtype, dtype).map_err(in_tensor)?;
    }
    let range = range_of(args, tensor.count, &tensor.shape).map_err(in_tensor)?;
    let mut elements = ElementReader::open(input, tensor, storage, &range).map_err(in_tensor)?;
    let name = input.name_of(tensor);
    finish(print(args, (name, dtype, &tensor.shape), &range, &mut elements), in_tensor)
}

/// Returns the named tensor, or the only one.
fn choose<'a>(source: &'a Checkpoint, name: Option<&str>) -> Result<(&'a Input, &'a Tensor)> {
    let tensors: Vec<_> = source.tensors().collect();
    match (name, &tensors[..]) {
        (None, [only]) if source.shards.iter().all(|shard| shard.contents.unreadable.is_empty()) => Ok(*only),
        (None, []) => Err(Error::new("holds no tensor that can be read")),
        (None, _) => Err(source.say_which()),
        (Some(name), _) => {
            let named = tensors.into_iter().find(|(shard, tensor)| shard.name_of(tensor) == name);
            named.ok_or_else(|| no_tensor(source.names(), name))
        }
    }
}

/// Prints a range of elements, row by row as they are read.
fn print(
    args: &BitcastArgs,
    (name, dtype, shape): (&str, Dtype, &[u64]),
    range: &Range<u64>,
    elements: &mut ElementReader,
) -> io::Result<()> {
    let mut printer = ElementPrinter::begin(args.file.json, (name, dtype, shape), "", range)?;
    let row_len = if args.hex && !args.file.json { per_row(dtype) } else { 1 };
    let json = if args.hex { hex_json } else { bits_json };
    let mut index = range.start;
    let mut pending = Vec::new();
    while let Some(bytes) = elements.next().map_err(io::Error::other)? {
        pending.extend(codes(dtype, bytes));
        let is_last = index + pending.len() as u64 == range.end;
        let whole = if is_last { pending.len() } else { pending.len() / row_len * row_len };
        for row in pending.drain(..whole).collect::<Vec<u128>>().chunks(row_len) {
            printer.element(
                || json(dtype, index, row[0]),
                |style| {
                    if args.hex { hex_row(dtype, index, row, style) } else { bits_row(dtype, index, row[0], style) }
                },
            )?;
            index += row.len() as u64;
        }
    }
    printer.end()
}

/// Reader of elements in row-major order, little endian, with at least one byte each.
struct ElementReader<'a> {
    /// `None` after everything was read.
    reader: Option<Reader<'a>>,
    /// True if all elements are read, so that a checksum can be checked.
    is_whole: bool,
    storage: Storage,
    kernel: Kernel,
    /// The next element to read, a multiple of [`CHUNK`].
    next: u64,
    range: Range<u64>,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl<'a> ElementReader<'a> {
    fn open(input: &'a Input, tensor: &Tensor, storage: Storage, range: &Range<u64>) -> Result<Self> {
        let target = Storage::per_byte(storage.dtype);
        let kernel = Kernel::copy(storage, target).ok_or_else(|| Error::new("has elements without a width"))?;
        let is_whole = *range == (0..tensor.count);
        let mut reader = Reader::open_at_once(tensor, &input.files)?;
        let next = range.start / CHUNK * CHUNK;
        reader.skip(storage.bytes(next).unwrap_or_default())?;
        let (input, output) = (Vec::new(), Vec::new());
        Ok(Self { reader: Some(reader), is_whole, storage, kernel, next, range: range.clone(), input, output })
    }

    fn next(&mut self) -> Result<Option<&[u8]>> {
        if self.next >= self.range.end || self.range.is_empty() {
            let whole = self.reader.take().filter(|_| self.is_whole);
            return whole.map_or(Ok(None), |reader| reader.finish().map(|()| None));
        }
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let count = CHUNK.min(self.range.end - self.next);
        let target = Storage::per_byte(self.storage.dtype);
        self.input.resize(self.storage.bytes(count).unwrap_or_default() as usize, 0);
        self.output.resize(target.bytes(count).unwrap_or_default() as usize, 0);
        reader.fill(&mut self.input)?;
        let outcome = self.kernel.run(&self.input, &mut self.output, count as usize);
        outcome.map_err(|Malformed| {
            let last = self.next + count - 1;
            let what = format!("one of elements {} to {last} has bits above those of its type", self.next);
            Error::new(what).with_value(Opt::TO, "uint8", "print the bytes as they are with {}")
        })?;
        let width = target.bytes(1).unwrap_or_default();
        let skipped = self.range.start.saturating_sub(self.next) * width;
        self.next += count;
        Ok(Some(&self.output[skipped as usize..]))
    }
}
