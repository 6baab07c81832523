//! Comparison of texts, one after the other: equal texts are equal, however they are stored.

use super::{Comparison, DiffStatus, FirstDifference};
use crate::container::{Elements, Form, Reader, TextError, position};
use crate::error::{Error, Result};
use crate::kernel::Texts;
use crate::read::{LogicalTensor, SourceTensor, Zip};

/// Number of texts between two progress reports.
const BATCH: u64 = 1024;

/// One of the tensors, and its next text.
struct Side<'a> {
    source: SourceTensor<'a>,
    reader: Reader<'a>,
    texts: Texts,
    scratch: Vec<u8>,
}

impl<'a> Side<'a> {
    fn new(tensor: LogicalTensor<'a>) -> Result<Self> {
        let LogicalTensor::Stored(source) = tensor else { unreachable!("weights hold numbers") };
        Ok(Self { source, reader: source.open()?, texts: Texts::default(), scratch: Vec::new() })
    }

    fn read(&mut self, index: u64) -> Result<()> {
        let Self { source, reader, texts, scratch } = self;
        let Elements::Typed(Form::Texts(form)) = source.elements else { unreachable!("both are text") };
        texts.clear();
        form.read(&mut |buffer| reader.fill(buffer), scratch, texts).map_err(|error| {
            source.error(match error {
                TextError::Source(error) => error,
                TextError::Malformed(what) => {
                    let index = position(index, &source.tensor.shape, source.fortran_order());
                    Error::new(format!("element {index}: {what}"))
                }
            })
        })
    }
}

pub(super) fn compare(mut zip: Zip<2>) -> Result<Comparison> {
    let mut sides = [Side::new(zip.sources[0])?, Side::new(zip.sources[1])?];
    let (mut differing, mut first_difference) = (0, None);
    for index in 0..zip.count {
        sides.iter_mut().try_for_each(|side| side.read(index))?;
        let [a, b] = sides.each_ref().map(|side| side.texts.get(0));
        if a != b {
            differing += 1;
            first_difference.get_or_insert_with(|| {
                let [a, b] = [a, b].map(|text| String::from_utf8_lossy(text).into_owned());
                Box::new(FirstDifference { index: sides[0].source.indices(index), a, b, bits_a: None, bits_b: None })
            });
        }
        if (index + 1) % BATCH == 0 || index + 1 == zip.count {
            zip.advance(index + 1);
        }
    }
    for Side { source, reader, .. } in sides {
        reader.finish().map_err(|error| source.error(error))?;
    }
    let status = if differing == 0 { DiffStatus::Equal } else { DiffStatus::ValuesDiffer };
    Ok(Comparison { differing: Some(differing), first_difference, ..Comparison::of(status) })
}
