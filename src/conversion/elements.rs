//! The elements of a tensor by their number, and what is found among them.

use crate::container::position;
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::kernel::{Counts, Firsts, Printer, Storage, Texts};

/// Receiver of a piece of a conversion: source, result, and number of elements so far.
pub(crate) type PieceSink<'a> = dyn FnMut(&[u8], &[u8], u64) -> Result<()> + 'a;

/// Conditions met by some elements: their counts, and the first element for each.
#[derive(Default)]
pub(crate) struct Findings {
    pub counts: Counts,
    pub firsts: Firsts,
}

/// Number and shape of a tensor's elements, for messages that name an element.
#[derive(Clone, Copy)]
pub(crate) struct NamedElements<'a> {
    pub count: u64,
    pub shape: &'a [u64],
    /// True if the elements are in column-major order.
    pub fortran_order: bool,
}

impl NamedElements<'_> {
    pub(super) fn error(&self, index: u64, what: &str) -> Error {
        Error::new(format!("element {}: {what}", position(index, self.shape, self.fortran_order)))
    }

    pub(super) fn out_of_range(&self, index: u64, value: &str, to: Dtype) -> Error {
        self.error(index, &format!("{value} is out of range for {to}"))
            .with_value(Opt::OUT_OF_RANGE, "saturate", "choose {}")
            .with_value(Opt::OUT_OF_RANGE, "wrap", "choose {} to convert such values")
    }
}

/// Returns the number at `index` as text; empty for complex numbers.
pub(super) fn text_of(storage: Storage, bytes: &[u8], index: usize) -> String {
    let Some(printer) = Printer::new(storage) else { return String::new() };
    let mut texts = Texts::default();
    // Malformed elements after it do not matter.
    let _ = printer.print(bytes, index + 1, &mut texts);
    if index < texts.len() { String::from_utf8_lossy(texts.get(index)).into_owned() } else { String::new() }
}

/// Returns the index of the first element for which `is_bad` holds in all prefixes that contain it. Elements that are
/// run together start on a whole byte, so any prefix of them can be tried.
pub(super) fn first_bad(count: usize, mut is_bad: impl FnMut(usize) -> bool) -> usize {
    let (mut good, mut bad) = (0, count);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if is_bad(middle) { bad = middle } else { good = middle }
    }
    good
}

pub(super) fn dirty(dtype: Dtype) -> String {
    format!("a byte that holds one {dtype} has bits above it")
}
