//! The delta that the tensors of a module make, before its scale.

use super::adapter::{AdapterModule, AdapterPart, AdapterTensor};
use super::matrix::{Delta, Matrix};
use crate::error::{Error, Result};

/// Maximum rank, which limits the memory that a delta needs.
const MOST_RANK: u64 = 4096;

/// Maximum number of float64 values that a core of a Tucker decomposition may become.
const MOST_VALUES: u64 = 1 << 27;

/// A delta, and the rank that its alpha is divided by; `None` if alpha does not count.
pub(super) struct RawDelta {
    pub delta: Delta,
    pub rank: Option<u64>,
}

impl AdapterModule {
    pub(super) fn part(&self, part: AdapterPart) -> Option<&AdapterTensor> {
        self.parts.get(&part)
    }

    pub(super) fn has(&self, part: AdapterPart) -> bool {
        self.parts.contains_key(&part)
    }

    /// Returns the error for parts that are missing.
    pub(super) fn incomplete(&self) -> Error {
        let names = self.parts.values().map(|tensor| tensor.name.as_str()).min().unwrap_or_default();
        Error::new("is incomplete: a tensor that belongs to it is missing or empty").in_tensor(names)
    }

    /// Returns a part that must be there.
    pub(super) fn need(&self, part: AdapterPart) -> Result<&AdapterTensor> {
        self.part(part).filter(|tensor| tensor.count() > 0).ok_or_else(|| self.incomplete())
    }

    /// Returns the delta of `LoRA`, `LoHa` or `LoKr`; `None` if the module has neither.
    pub(super) fn delta(&self) -> Result<Option<RawDelta>> {
        if self.has(AdapterPart::Down)
            || self.has(AdapterPart::Up)
            || self.has(AdapterPart::EmbeddingDown)
            || self.has(AdapterPart::EmbeddingUp)
        {
            return self.low_rank().map(Some);
        }
        if self.has(AdapterPart::Hada1A)
            || self.has(AdapterPart::Hada1B)
            || self.has(AdapterPart::Hada2A)
            || self.has(AdapterPart::Hada2B)
        {
            return self.elementwise().map(Some);
        }
        let of_kronecker = [
            AdapterPart::Kron1,
            AdapterPart::Kron1A,
            AdapterPart::Kron1B,
            AdapterPart::Kron2,
            AdapterPart::Kron2A,
            AdapterPart::Kron2B,
            AdapterPart::KronCore2,
        ];
        if of_kronecker.iter().any(|part| self.has(*part)) {
            return self.kronecker().map(Some);
        }
        Ok(None)
    }

    fn low_rank(&self) -> Result<RawDelta> {
        if self.has(AdapterPart::EmbeddingDown) || self.has(AdapterPart::EmbeddingUp) {
            // The table is stored transposed: (up * down)^T.
            let (down, up) = (self.need(AdapterPart::EmbeddingDown)?, self.need(AdapterPart::EmbeddingUp)?);
            return self.product(&down.matrix.transposed(), &up.matrix.transposed());
        }
        let (down, up) = (self.need(AdapterPart::Down)?, self.need(AdapterPart::Up)?);
        let Some(mid) = self.part(AdapterPart::Mid) else { return self.product(&up.matrix, &down.matrix) };
        // sum over m, n of up[o, m] * mid[m, n, k, l] * down[n, i]
        let rank = down.matrix.rows;
        let core = core_of(mid, &down.matrix)?;
        let RawDelta { delta, .. } = self.product(&up.matrix, &core)?;
        Ok(RawDelta { delta, rank: Some(rank) })
    }

    /// Returns the product of two matrices, whose inner dimension is the rank.
    pub(super) fn product(&self, left: &Matrix, right: &Matrix) -> Result<RawDelta> {
        let rank = right.rows;
        if left.columns != rank {
            let what = format!("its matrices have the ranks {rank} and {}", left.columns);
            return Err(self.explain(Error::new(what)));
        }
        if rank > MOST_RANK {
            return Err(self.explain(Error::new(format!("has the rank {rank}, and at most {MOST_RANK} is supported"))));
        }
        Ok(RawDelta { delta: Delta::Product(left.clone(), right.clone()), rank: Some(rank) })
    }

    /// Names a tensor of this module in an error.
    pub(super) fn explain(&self, error: Error) -> Error {
        let name = self.parts.values().map(|tensor| tensor.name.as_str()).min().unwrap_or_default();
        error.in_tensor(name)
    }

    fn elementwise(&self) -> Result<RawDelta> {
        let [first, second] = [
            (AdapterPart::Hada1A, AdapterPart::Hada1B, AdapterPart::HadaCore1),
            (AdapterPart::Hada2A, AdapterPart::Hada2B, AdapterPart::HadaCore2),
        ]
        .map(|(left, right, core)| {
            let (left, right) = (&self.need(left)?.matrix, &self.need(right)?.matrix);
            match self.part(core) {
                Some(core) => self.product(&left.transposed(), &core_of(core, right)?),
                None => self.product(left, right),
            }
        });
        let (first, second) = (first?.delta, second?.delta);
        if first.shape() != second.shape() {
            return Err(self.explain(Error::new("its two products have different shapes")));
        }
        let rank = self.need(AdapterPart::Hada1B)?.matrix.rows;
        Ok(RawDelta { delta: Delta::Elementwise(Box::new([first, second])), rank: Some(rank) })
    }

    fn kronecker(&self) -> Result<RawDelta> {
        let mut rank = None;
        let first = if self.has(AdapterPart::Kron1) {
            Delta::Whole(self.need(AdapterPart::Kron1)?.matrix.clone())
        } else {
            let (left, right) = (&self.need(AdapterPart::Kron1A)?.matrix, &self.need(AdapterPart::Kron1B)?.matrix);
            rank = Some(right.rows);
            self.product(left, right)?.delta
        };
        let second = if self.has(AdapterPart::Kron2) {
            Delta::Whole(self.need(AdapterPart::Kron2)?.matrix.clone())
        } else {
            let (left, right) = (&self.need(AdapterPart::Kron2A)?.matrix, &self.need(AdapterPart::Kron2B)?.matrix);
            rank = Some(right.rows);
            match self.part(AdapterPart::KronCore2) {
                Some(core) => self.product(&left.transposed(), &core_of(core, right)?)?.delta,
                None => self.product(left, right)?.delta,
            }
        };
        if first.shape().contains(&0) || second.shape().contains(&0) {
            return Err(self.incomplete());
        }
        Ok(RawDelta { delta: Delta::Kronecker(Box::new([first, second])), rank })
    }
}

/// Multiplies the second dimension of a core `[m, n, k, l]` with a matrix `[n, i]`; returns `[m, i * k * l]`.
fn core_of(core: &AdapterTensor, right: &Matrix) -> Result<Matrix> {
    let &[outer, inner, high, wide] = &core.shape[..] else {
        return Err(Error::new("is the core of a decomposition, and has not four dimensions").in_tensor(&core.name));
    };
    let (area, columns) = (high * wide, right.columns);
    let count = outer.checked_mul(columns).and_then(|count| count.checked_mul(area));
    let count = count.filter(|count| *count <= MOST_VALUES && inner == right.rows && inner <= MOST_RANK);
    let Some(count) = count else {
        return Err(Error::new("is a core that does not fit its matrices, or is too large").in_tensor(&core.name));
    };
    let mut values = vec![0.0; count as usize];
    let (mut row, mut core_row) = (vec![0.0; columns as usize], vec![0.0; core.matrix.columns as usize]);
    for (outer, values) in (0..outer).zip(values.chunks_exact_mut((columns * area).max(1) as usize)) {
        core.matrix.read(outer, 0..core.matrix.columns, &mut core_row);
        for (inner, core) in (0..inner).zip(core_row.chunks_exact(area.max(1) as usize)) {
            right.read(inner, 0..columns, &mut row);
            for (factor, values) in row.iter().zip(values.chunks_exact_mut(area as usize)) {
                values.iter_mut().zip(core).for_each(|(value, core)| *value += core * factor);
            }
        }
    }
    Ok(Matrix::computed(values, [outer, columns * area]))
}
