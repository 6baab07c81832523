//! The delta that the tensors of a module make, and its scale.

use super::adapter::AdapterPart::{Alpha, Core, Down, Tokens, Up, Whole};
use super::adapter::FactorPair::{Embedding, Hada1, Hada2, Kron1, Kron2, Lora};
use super::adapter::{Adapter, AdapterModule, AdapterPart, AdapterTensor, Dialect, FactorPair};
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

    pub(super) fn has_any(&self, pair: FactorPair) -> bool {
        [Down(pair), Up(pair), Core(pair), Whole(pair)].iter().any(|part| self.has(*part))
    }

    /// Names a tensor of this module in an error.
    pub(super) fn explain(&self, error: Error) -> Error {
        error.in_tensor(self.parts.values().map(|tensor| tensor.name.as_str()).min().unwrap_or_default())
    }

    /// Returns the error for parts that are missing.
    pub(super) fn incomplete(&self) -> Error {
        self.explain(Error::new("is incomplete: a tensor that belongs to it is missing or empty"))
    }

    /// Refuses a module with tensors of several methods: a merge would ignore all but one.
    pub(super) fn check_methods(&self) -> Result<()> {
        let methods = [&[Lora][..], &[Embedding], &[Hada1, Hada2], &[Kron1, Kron2]];
        let methods = methods.iter().filter(|pairs| pairs.iter().any(|pair| self.has_any(*pair))).count();
        let is_twice = |pair| self.has(Whole(pair)) && (self.has(Up(pair)) || self.has(Down(pair)));
        if methods > 1 || is_twice(Kron1) || is_twice(Kron2) || self.has(Tokens) && self.parts.len() > 1 {
            return Err(Error::new("has tensors of several methods, of which one would be merged"));
        }
        Ok(())
    }

    /// Returns a part that must be there.
    pub(super) fn need(&self, part: AdapterPart) -> Result<&AdapterTensor> {
        self.part(part).filter(|tensor| tensor.count() > 0).ok_or_else(|| self.incomplete())
    }

    /// Returns the number of experts, if its tensors are stacks of matrices, as those of MLX and GGUF can be.
    pub(super) fn experts(&self, dialect: Dialect) -> Option<u64> {
        let of_part = |part| self.part(part).filter(|tensor| tensor.shape.len() == 3);
        let is_stack = matches!(dialect, Dialect::Mlx | Dialect::Gguf) && of_part(Down(Lora)).is_some();
        of_part(Up(Lora)).filter(|_| is_stack).map(|up| up.shape[0])
    }

    /// Returns the left matrix, `[out, rank]`, and the right one, `[rank, in]`, of the product of `LoRA`; of a stack, those
    /// of an expert.
    pub(super) fn factors(&self, dialect: Dialect, expert: u64) -> Result<[Matrix; 2]> {
        let pair = if self.has_any(Embedding) { Embedding } else { Lora };
        let (down, up) = (self.need(Down(pair))?, self.need(Up(pair))?);
        if let Some(experts) = self.experts(dialect) {
            if down.shape[0] != experts {
                let what = format!("its matrices are for {} and {experts} experts", down.shape[0]);
                return Err(Error::new(what));
            }
            let of_expert = |tensor: &AdapterTensor| {
                let [rows, columns] = [tensor.shape[1], tensor.shape[2]];
                tensor.matrix.viewed([rows, columns], expert * rows * columns, [columns, 1])
            };
            return Ok([of_expert(up), of_expert(down)]);
        }
        let (down, up) = (&down.matrix, &up.matrix);
        Ok(match dialect {
            Dialect::Mlx if self.name.ends_with("embed_tokens") => [down.clone(), up.clone()],
            Dialect::Mlx => [up.transposed(), down.transposed()],
            Dialect::Gguf if self.name.starts_with("token_embd") => [up.clone(), down.transposed()],
            _ if pair == Embedding => [down.transposed(), up.transposed()],
            _ => [up.clone(), down.clone()],
        })
    }

    /// Returns the delta of `LoRA`, of a stack the first one, `LoHa` or `LoKr`; `None` if the module has neither.
    pub(super) fn delta(&self, dialect: Dialect) -> Result<Option<RawDelta>> {
        Ok(Some(if self.has_any(Lora) || self.has_any(Embedding) {
            let [left, right] = self.factors(dialect, 0)?;
            match self.part(Core(Lora)).filter(|_| !self.has_any(Embedding)) {
                // sum over m, n of up[o, m] * mid[m, n, k, l] * down[n, i]
                Some(core) => RawDelta { rank: Some(right.rows), ..product(left, core_of(core, &right)?)? },
                None => product(left, right)?,
            }
        } else if self.has_any(Hada1) || self.has_any(Hada2) {
            let [first, second] = [self.factor(Hada1)?, self.factor(Hada2)?];
            if first.delta.shape() != second.delta.shape() {
                return Err(Error::new("its two products have different shapes"));
            }
            RawDelta { delta: Delta::Elementwise(Box::new([first.delta, second.delta])), rank: first.rank }
        } else if self.has_any(Kron1) || self.has_any(Kron2) {
            let [first, second] = [self.factor(Kron1)?, self.factor(Kron2)?];
            if first.delta.shape().contains(&0) || second.delta.shape().contains(&0) {
                return Err(self.incomplete());
            }
            let rank = second.rank.or(first.rank);
            RawDelta { delta: Delta::Kronecker(Box::new([first.delta, second.delta])), rank }
        } else {
            return Ok(None);
        }))
    }

    /// Returns a factor of `LoHa` or `LoKr`: a matrix, or the product of two.
    fn factor(&self, pair: FactorPair) -> Result<RawDelta> {
        if self.has(Whole(pair)) {
            return Ok(RawDelta { delta: Delta::Whole(self.need(Whole(pair))?.matrix.clone()), rank: None });
        }
        let (left, right) = (&self.need(Up(pair))?.matrix, &self.need(Down(pair))?.matrix);
        match self.part(Core(pair)) {
            // The left matrix beside a core is stored transposed.
            Some(core) => Ok(RawDelta { rank: Some(right.rows), ..product(left.transposed(), core_of(core, right)?)? }),
            None => product(left.clone(), right.clone()),
        }
    }
}

impl Adapter {
    /// Returns the scale of a module, given by its name in configs and its rank.
    pub(super) fn scale(&self, module: &AdapterModule, name: &str, rank: Option<u64>) -> Result<f64> {
        let divided = |alpha: f64| rank.map_or(1.0, |rank| alpha / rank as f64);
        let scale = match (self.dialect, module.part(Alpha), self.scales(module)?) {
            (Dialect::Mlx, ..) => self.config["lora_parameters"]["scale"]
                .as_f64()
                .ok_or_else(|| Error::new("its config has no lora_parameters.scale"))?,
            // llama.cpp takes the scale 1 for an alpha of 0.
            (Dialect::Gguf, ..) => {
                let alpha = self.metadata("adapter.lora.alpha").and_then(|text| text.parse().ok());
                alpha.filter(|alpha| *alpha != 0.0).map_or(1.0, divided)
            }
            (Dialect::Kohya | Dialect::Dotted, Some(alpha), _) if alpha.count() == 1 => divided(alpha.matrix.scalar()),
            (Dialect::Kohya | Dialect::Dotted, Some(alpha), _) => {
                return Err(Error::new("has more than one value").in_tensor(&alpha.name));
            }
            (_, _, Some(scales)) => scales.get(name)?.0,
            (_, _, None) => 1.0,
        };
        match self.dialect {
            _ if scale.is_finite() => Ok(scale),
            Dialect::Gguf => Err(Error::new("adapter.lora.alpha is not finite")),
            _ => Err(Error::new(format!("its scale would be {scale}"))),
        }
    }
}

/// Returns the product of two matrices, whose inner dimension is the rank.
pub(super) fn product(left: Matrix, right: Matrix) -> Result<RawDelta> {
    let rank = right.rows;
    if left.columns != rank {
        return Err(Error::new(format!("its matrices have the ranks {rank} and {}", left.columns)));
    }
    if rank > MOST_RANK {
        return Err(Error::new(format!("has the rank {rank}, and at most {MOST_RANK} is supported")));
    }
    Ok(RawDelta { delta: Delta::Product(left, right), rank: Some(rank) })
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
    for (at, values) in (0..outer).zip(values.chunks_exact_mut((columns * area).max(1) as usize)) {
        let core = core.matrix.viewed([inner, area], at * inner * area, [area, 1]);
        Delta::Product(right.transposed(), core).fill(0..columns, 0..area, values);
    }
    Ok(Matrix::computed(values, [outer, columns * area]))
}
