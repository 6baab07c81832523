//! Options of comparisons.

use crate::container::checkpoint::Naming;
use crate::dtype::Dtype;
use crate::select::Selection;

/// Options of `diff`.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DiffOptions {
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
}

impl DiffOptions {
    pub(super) fn has_tolerance(&self) -> bool {
        self.tolerance.or(self.rtol).is_some()
    }

    /// Returns the absolute and the relative tolerance.
    pub(super) fn tolerances(&self) -> [f64; 2] {
        [self.tolerance, self.rtol].map(Option::unwrap_or_default)
    }
}
