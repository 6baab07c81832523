//! Which tensors of a checkpoint make a quantized weight, and of which layout it is.
//!
//! [`recognize`] looks at names, dtypes and shapes of all tensors, and at what config and descriptions say. All of them
//! have to agree: a contradiction is an error that names both sides. It is a pure function but for the few tensors whose
//! content it has to know, which it reads through [`Source::read`].

mod found;

pub use found::{FoundWeight, Problem, Recognized, Source, StoredTensor};

use crate::error::{Error, Result, counted};

/// Finds the quantized weights of a checkpoint, and everything that is wrong with them: for commands that show.
#[must_use]
pub fn survey(source: &Source) -> Recognized {
    Recognized { plain: (0..source.tensors.len()).collect(), ..Recognized::default() }
}

/// Finds the quantized weights of a checkpoint: for commands that convert.
///
/// # Errors
/// The first of the [`Recognized::problems`]; it counts the others.
pub fn recognize(source: &Source) -> Result<Recognized> {
    let mut found = survey(source);
    match found.problems.len() {
        0 => Ok(found),
        count => {
            let first = found.problems.swap_remove(0).error;
            let more = (count > 1).then(|| format!("{} more like this", counted(count as u64 - 1, "problem")));
            Err(Error::with_details(first, more.into_iter().collect()))
        }
    }
}
