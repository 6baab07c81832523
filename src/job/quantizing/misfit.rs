//! Weights that are kept because their shape does not fit the groups of the scheme.

use crate::quant::{Scheme, Unfit};

/// Weights of one shape that do not fit.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// Why not.
    pub(crate) why: Unfit,
    pub(crate) scheme: &'static Scheme,
    pub(crate) shape: Vec<u64>,
    /// The name of the first.
    pub(crate) first: String,
    /// How many there are.
    pub(crate) count: u64,
}

impl Misfit {
    /// Counts a weight with those that do not fit for the same reason.
    pub(super) fn count(all: &mut Vec<Self>, why: &Unfit, scheme: &'static Scheme, name: &str, shape: &[u64]) {
        match all.iter_mut().find(|known| known.why == *why && known.scheme == scheme && known.shape == shape) {
            Some(known) => known.count += 1,
            None => {
                let (shape, first) = (shape.to_vec(), name.to_owned());
                all.push(Self { why: why.clone(), scheme, shape, first, count: 1 });
            }
        }
    }
}
