//! Options of comparisons.

use crate::container::checkpoint::Naming;
use crate::dtype::Dtype;
use crate::progress::{Progress, Silent};
use crate::select::Selection;
use crate::threads::cores;
use std::num::NonZeroUsize;

/// Options of [`diff()`](super::diff()).
#[derive(Clone)]
#[non_exhaustive]
pub struct DiffOptions<'a> {
    /// Selection of the tensors to compare.
    pub selection: Selection,
    /// Type of elements whose type the file does not name.
    pub from: Option<Dtype>,
    /// Names of the tensors of GGUF and MLX models.
    pub names: Option<Naming>,
    /// Divide stacks of experts, and compare single experts.
    pub single_experts: bool,
    /// Keys that lead to the tensors of PyTorch checkpoints: see [`ReadOptions`](crate::container::ReadOptions).
    pub root: Option<String>,
    /// The rank whose tensors are taken where ranks differ: see [`ReadOptions`](crate::container::ReadOptions).
    pub take_rank: Option<u64>,
    /// Maximum absolute difference of values. With this or `rtol`, only values count, not bits and types.
    pub tolerance: Option<f64>,
    /// Maximum difference of values in proportion to the value of A; it is added to `tolerance`.
    pub rtol: Option<f64>,
    /// Threads to use; `None` for all cores.
    pub threads: Option<NonZeroUsize>,
    /// Receives the bytes of both sides.
    pub progress: &'a dyn Progress,
}

impl Default for DiffOptions<'_> {
    fn default() -> Self {
        Self {
            selection: Selection::default(),
            from: None,
            names: None,
            single_experts: false,
            root: None,
            take_rank: None,
            tolerance: None,
            rtol: None,
            threads: None,
            progress: &Silent,
        }
    }
}

impl DiffOptions<'_> {
    pub(super) fn has_tolerance(&self) -> bool {
        self.tolerance.or(self.rtol).is_some()
    }

    /// Returns the absolute and the relative tolerance.
    pub(super) fn tolerances(&self) -> [f64; 2] {
        [self.tolerance, self.rtol].map(Option::unwrap_or_default)
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(cores, Into::into)
    }
}
