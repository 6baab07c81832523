//! Tensors of a file that was read: their places, their elements, and writing them again.

use super::trial::{check_error, in_folder};
use std::fs;
use std::ops::Range;
use std::slice;
use tcast::container::{
    self, Data, Elements, Form, Input, Metadata, Reader, Tensor, TextError, element_count, row_major,
};
use tcast::dtype::Dtype;
use tcast::engine::{self, Detail, RunOptions};
use tcast::error::{Error, Result};
use tcast::io::output::Destination;
use tcast::kernel::{Kernel, Storage, Texts};
use tcast::operator::Operator;
use tcast::plan::{self, Plan, Request, Spread, Step};

use tcast::select::Selection;

/// Maximum number of bytes of a tensor that is read, or of an output that is written: a small file can unpack to many
/// more.
pub(crate) const MOST: u64 = 4 << 20;

/// Checks that every tensor has as many elements as its shape says, in bytes that the file has and no other tensor has.
pub(crate) fn check_places(input: &Input) {
    let mut taken: Vec<&Range<usize>> = Vec::new();
    for tensor in &input.contents.tensors {
        check_place(tensor, input);
        let Data::Mapped { file, range, .. } = &tensor.data else { continue };
        if *file == 0 && !range.is_empty() {
            taken.push(range);
        }
    }
    taken.sort_by_key(|range| range.start);
    assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "{taken:?}");
}

/// Checks that a tensor has as many elements as its shape says, in bytes that the file has.
pub(crate) fn check_place(tensor: &Tensor, input: &Input) {
    let count = element_count(&tensor.shape);
    assert!(count == Some(tensor.count) || count.is_some() && tensor.elements == Elements::Opaque);
    let Data::Mapped { file, range, .. } = &tensor.data else { return };
    assert!(range.start <= range.end && range.end <= input.files[*file as usize].len(), "{range:?}");
    assert!(tensor.elements.bytes(tensor.count).is_none_or(|bytes| bytes == range.len() as u64));
}

/// Elements of a tensor, in the order of the file.
#[derive(Debug, PartialEq)]
pub(crate) enum Values {
    /// Little endian, at least one byte for each element, without stray bits above it.
    Numbers(Dtype, Vec<u8>),
    Texts(Vec<Vec<u8>>),
    /// Elements without a type in the file: their width in bytes, and the bytes.
    Untyped(u32, Vec<u8>),
    /// Elements that can only be copied.
    Opaque(Vec<u8>),
    /// More elements than a trial can read.
    TooMany,
}

/// Reads a tensor to its end.
pub(crate) fn values(tensor: &Tensor, input: &Input) -> Result<Values> {
    if tensor.elements.bytes(tensor.count).unwrap_or(tensor.count) > MOST {
        return Ok(Values::TooMany);
    }
    let mut reader = Reader::open(tensor, &input.files)?;
    let values = match tensor.elements {
        Elements::Typed(Form::Texts(form)) => {
            let (mut texts, mut scratch) = (Texts::default(), Vec::new());
            for _ in 0..tensor.count {
                form.read(&mut |buffer| reader.fill(buffer), &mut scratch, &mut texts).map_err(
                    |error| match error {
                        TextError::Malformed(what) => Error::new(what),
                        TextError::Source(error) => error,
                    },
                )?;
            }
            Values::Texts(texts.iter().map(<[u8]>::to_vec).collect())
        }
        Elements::Typed(Form::Numbers(storage)) => {
            let bytes = fill(&mut reader, storage.bytes(tensor.count).expect("checked above"))?;
            check_transposed(tensor, input, &bytes);
            let target = Storage::per_byte(storage.dtype);
            let mut plain = vec![0; target.bytes(tensor.count).expect("no more than the source's") as usize];
            let kernel = Kernel::copy(storage, target).expect("to itself");
            let malformed = |_| Error::new("an element is malformed");
            kernel.run(&bytes, &mut plain, tensor.count as usize).map_err(malformed)?;
            Values::Numbers(storage.dtype, plain)
        }
        Elements::Opaque => Values::Opaque(fill(&mut reader, tensor.count)?),
        Elements::Blocks(format) => {
            Values::Opaque(fill(&mut reader, format.size(tensor.count).expect("checked above"))?)
        }
        Elements::Untyped(width) => Values::Untyped(width, fill(&mut reader, tensor.count * u64::from(width))?),
    };
    reader.finish()?;
    Ok(values)
}

/// Reads this many bytes in pieces of odd length, as no caller would.
fn fill(reader: &mut Reader, bytes: u64) -> Result<Vec<u8>> {
    let mut filled = vec![0; bytes as usize];
    filled.chunks_mut(4093).try_for_each(|piece| reader.fill(piece))?;
    Ok(filled)
}

/// Checks that a column-major tensor, read in row-major order, has each element in its place.
fn check_transposed(tensor: &Tensor, input: &Input, bytes: &[u8]) {
    if !tensor.fortran_order {
        return;
    }
    let width = bytes.len() / tensor.count as usize;
    let transposed = Reader::open_row_major(tensor, &input.files).and_then(|mut reader| {
        let bytes = fill(&mut reader, bytes.len() as u64)?;
        Ok((bytes, reader.finish()))
    });
    // The checksum of compressed data is checked at once, not at the end.
    let Ok((transposed, _)) = transposed else {
        assert!(matches!(tensor.data, Data::Streamed(_)));
        return;
    };
    for (index, element) in bytes.chunks_exact(width).enumerate() {
        let place = row_major(index as u64, &tensor.shape) as usize * width;
        assert_eq!(&transposed[place..place + width], element, "element {index} of {:?}", tensor.shape);
    }
}

/// Checks that a sound file can be written again in the same format with the same content, and that damage is refused.
pub(crate) fn check_written_again(input: &Input) {
    let before: Vec<_> = input.contents.tensors.iter().map(|tensor| values(tensor, input)).collect();
    before.iter().filter_map(|values| values.as_ref().err()).for_each(check_error);
    if before.iter().any(|values| matches!(values, Ok(Values::TooMany))) {
        return;
    }
    let is_sound =
        before.iter().all(|values| matches!(values, Ok(Values::Numbers(..) | Values::Texts(_) | Values::Opaque(_))));
    let (selection, container) = (Selection::default(), input.container);
    let request = Request::new(Operator::BitCast, &selection, container);
    let plans = match plan::build(&request, slice::from_ref(input), Spread::One, &|_| ()) {
        Ok(plans) => plans,
        Err(error) => {
            check_error(&error);
            // In an archive, a name of another character set takes more room.
            let has_long_name =
                input.contents.tensors.iter().any(|tensor| tensor.name.len() > usize::from(u16::MAX) - 4);
            assert!(!is_sound || has_long_name, "{error}");
            return;
        }
    };
    let [plan] = &plans[..] else { panic!("{} plans for one output", plans.len()) };
    check_plan(plan);
    if plan.len > MOST {
        return;
    }
    let again = match write(plan, slice::from_ref(input), 1, container.format_info().extension) {
        Ok((again, _)) => again,
        Err(error) => return assert!(!is_sound, "{error}"),
    };
    assert!(is_sound, "what could not be read was written");
    assert_eq!(again.contents.tensors.len(), input.contents.tensors.len());
    for ((tensor, before), after) in input.contents.tensors.iter().zip(before).zip(&again.contents.tensors) {
        assert_eq!((&after.name, &after.shape), (&tensor.name, &tensor.shape));
        assert_eq!(after.fortran_order, tensor.fortran_order);
        assert_eq!(values(after, &again).expect("it was just written"), before.expect("all are sound"));
    }
    // The fields of a message are in the order of their numbers.
    let sorted = |input: &Input| {
        let mut pairs = input.contents.metadata.clone().unwrap_or_default();
        pairs.sort();
        pairs
    };
    let added = match (&input.contents.metadata, container.format_info().metadata) {
        // A stored type is recorded in metadata, and readers need a mark in any metadata.
        (None, Metadata::Marked(name, value)) if again.contents.metadata.is_some() => {
            vec![(name.to_owned(), value.to_owned())]
        }
        _ => sorted(input),
    };
    assert_eq!(sorted(&again), added);
}

/// Checks that headers and tensors fill the output without gaps, and that each tensor has the room that it needs.
pub(crate) fn check_plan(plan: &Plan) {
    let literals = plan.literals.iter().map(|(start, bytes)| *start..start + bytes.len() as u64);
    let headers = literals.chain(plan.entries.iter().map(|entries| entries.range.clone()));
    let tensors = plan.steps.iter().map(Step::target);
    let mut places: Vec<Range<u64>> = headers.chain(tensors).filter(|place| !place.is_empty()).collect();
    places.sort_by_key(|place| place.start);
    let end = places.iter().fold(0, |end, place| {
        assert_eq!(place.start, end, "a gap, or an overlap");
        place.end
    });
    assert_eq!(end, plan.len);
    for step in &plan.steps {
        let (bytes, target) = (step.form().bytes(step.source().count), step.target());
        assert!(bytes.is_none_or(|bytes| bytes == target.end - target.start), "{}", step.name());
    }
}

/// Runs a plan. Returns the opened output, and the outcome for each tensor. Checks that a failure leaves no file.
pub(crate) fn write(
    plan: &Plan,
    inputs: &[Input],
    threads: usize,
    extension: &str,
) -> Result<(Input, Vec<engine::Outcome>)> {
    in_folder(|folder| {
        let path = folder.join(format!("out.{extension}"));
        let file = Destination::new(&path, &[inputs[0].path()]).and_then(Destination::create).expect("a new file");
        let outcomes = match engine::run(
            plan,
            &file,
            &RunOptions { threads, detail: Detail::Accuracy, ..RunOptions::default() },
        ) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                drop(file);
                check_error(&error);
                let names = fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("an entry"));
                let left = names.map(|entry| entry.file_name()).find(|name| name.to_string_lossy().starts_with('.'));
                assert_eq!(left, None, "left behind");
                return Err(error);
            }
        };
        assert_eq!(file.read_again().expect("it was just written").len() as u64, plan.len);
        file.publish().expect("the folder is there");
        let again = container::open(&path).unwrap_or_else(|error| panic!("what was written is refused: {error}"));
        fs::remove_file(&path).expect("it is there");
        Ok((again, outcomes))
    })
}
