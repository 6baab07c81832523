//! Comparison of texts, one after the other: equal texts are equal, however they are stored.

use super::{Comparison, Difference, Shown, Status};
use crate::container::{Elements, Form, Reader, TextError, TextForm, position};
use crate::error::{Error, Result};
use crate::kernel::Texts;
use crate::read::{SourceTensor, Zip};

/// Number of texts between two progress reports.
const BATCH: u64 = 1024;

pub(super) fn compare(mut zip: Zip<2>, sources: [SourceTensor; 2]) -> Result<Comparison> {
    let mut readers = [sources[0].open()?, sources[1].open()?];
    let mut next = [Next::default(), Next::default()];
    let (mut differing, mut first) = (0, None);
    for index in 0..zip.count {
        for ((source, reader), next) in sources.iter().zip(&mut readers).zip(&mut next) {
            next.read(source, reader, index)?;
        }
        let [a, b] = next.each_ref().map(|next| next.texts.get(0));
        if a != b {
            differing += 1;
            first.get_or_insert_with(|| Difference {
                index: sources[0].indices(index),
                elements: [a, b].map(|text| Shown { value: String::from_utf8_lossy(text).into_owned(), bits: None }),
            });
        }
        if (index + 1) % BATCH == 0 || index + 1 == zip.count {
            zip.advance(index + 1);
        }
    }
    for (source, reader) in sources.iter().zip(readers) {
        reader.finish().map_err(|error| source.error(error))?;
    }
    let status = if differing == 0 { Status::Equal } else { Status::ValuesDiffer };
    Ok(Comparison { differing, first, ..Comparison::of(status) })
}

/// One text, and a buffer to read it.
#[derive(Default)]
struct Next {
    texts: Texts,
    scratch: Vec<u8>,
}

impl Next {
    fn read(&mut self, source: &SourceTensor, reader: &mut Reader, index: u64) -> Result<()> {
        self.texts.clear();
        let read = form(source).read(&mut |buffer| reader.fill(buffer), &mut self.scratch, &mut self.texts);
        read.map_err(|error| {
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

fn form(source: &SourceTensor) -> TextForm {
    match source.elements {
        Elements::Typed(Form::Texts(form)) => form,
        _ => unreachable!("both are text"),
    }
}
