//! Texts, one after the other: whatever they are stored as, equal texts are equal.

use super::pieces::Pair;
use super::{Difference, Outcome, Shown, Side, Status};
use crate::container::{Elements, Form, Reader, TextError, TextForm, position};
use crate::error::{Error, Result};
use crate::kernel::Texts;

/// Texts after which the progress is told.
const BATCH: u64 = 1024;

pub(super) fn compare(mut pair: Pair) -> Result<Outcome> {
    let mut readers = pair.readers()?;
    let mut next = [Next::default(), Next::default()];
    let (mut differing, mut first) = (0, None);
    for index in 0..pair.count() {
        for ((side, reader), next) in pair.sides.iter().zip(&mut readers).zip(&mut next) {
            next.read(side, reader, index)?;
        }
        let [a, b] = next.each_ref().map(|next| next.texts.get(0));
        if a != b {
            differing += 1;
            first.get_or_insert_with(|| Difference {
                index: pair.indices(index),
                elements: [a, b].map(|text| Shown { value: String::from_utf8_lossy(text).into_owned(), bits: None }),
            });
        }
        if (index + 1) % BATCH == 0 || index + 1 == pair.count() {
            pair.tell(index + 1);
        }
    }
    pair.finish(readers)?;
    let status = if differing == 0 { Status::Equal } else { Status::ValuesDiffer };
    Ok(Outcome { differing, first, ..Outcome::of(status) })
}

/// One text, and room to read it.
#[derive(Default)]
struct Next {
    texts: Texts,
    scratch: Vec<u8>,
}

impl Next {
    fn read(&mut self, side: &Side, reader: &mut Reader, index: u64) -> Result<()> {
        self.texts.clear();
        let read = form(side).read(&mut |buffer| reader.fill(buffer), &mut self.scratch, &mut self.texts);
        read.map_err(|error| {
            side.error(match error {
                TextError::Source(error) => error,
                TextError::Malformed(what) => {
                    let index = position(index, &side.tensor.shape, side.fortran_order());
                    Error::new(format!("element {index}: {what}"))
                }
            })
        })
    }
}

fn form(side: &Side) -> TextForm {
    match side.elements {
        Elements::Typed(Form::Texts(form)) => form,
        _ => unreachable!("both are text"),
    }
}
