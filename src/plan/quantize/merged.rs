//! Weights that adapters change: they are quantized from float64 values.

use super::mlx;
use super::planner::{Planner, WeightCandidate};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::lora::Merge;
use crate::plan::weight_rows::{WeightValues, changes};
use crate::quant::{Arithmetic, EncodeArithmetic, EncodeOptions};
use std::sync::Arc;

impl Planner<'_, '_> {
    /// Merges adapters into a weight of MLX that stays one as mlx-lm does, in the type of its scales. Returns false if the
    /// options ask for exact arithmetic, or mlx-lm has no such changes.
    fn fuse(&self, weight: &mut WeightCandidate, merge: &Merge) -> Result<bool> {
        let (WeightValues::Coded(_, rows), Ok(target), Some(found)) =
            (&weight.values, &mut weight.decision, weight.input_weight)
        else {
            return Ok(false);
        };
        let is_of_library =
            self.options.arithmetic == EncodeArithmetic::Library && self.options.contents.rounding.is_none();
        if !is_of_library || self.layout != mlx::NAME {
            return Ok(false);
        }
        let Some((decoder, merge)) = self.model.fused(found, merge)? else { return Ok(false) };
        let dtype = decoder.target();
        let scale = target.layout.grid.scale.or(Some(dtype));
        let encoder = self.encoder(target, scale, &weight.shape, dtype, self.encoding());
        let Ok(encoder) = encoder else { return Ok(false) };
        target.encoder = Some(Arc::new(encoder));
        weight.values = WeightValues::Coded(Arc::new(decoder), *rows);
        (weight.exact, weight.changes) = (None, Some(changes([Some(&Arc::new(merge))])));
        Ok(true)
    }

    /// Merges adapters into the weights to quantize. Weights that share a scale with one of them are quantized from float64
    /// values too, so that all find the same scale.
    pub(super) fn merge(&self, weights: &mut [WeightCandidate]) -> Result<()> {
        let Some(merges) = self.merges else { return Ok(()) };
        if self.options.only_exact {
            let error = Error::usage("adapters change values, and no value may change");
            return Err(error.without(Opt::ONLY_EXACT));
        }
        let of = |weight: &WeightCandidate| match weight.input_weight {
            Some(found) => merges.of(&found.name),
            None => merges.of(self.model.tensors[weight.at].name),
        };
        for set in self.scale_sets(weights) {
            if !set.iter().any(|at| weights[*at].decision.is_ok() && of(&weights[*at]).is_some()) {
                continue;
            }
            for at in set {
                let weight = &mut weights[at];
                let merge = of(weight);
                if let Some(merge) = merge
                    && self.fuse(weight, merge)?
                {
                    continue;
                }
                if matches!(weight.values, WeightValues::Gathered { .. }) {
                    let error = Error::new("is stored in another order, and adapters are not merged into it at once");
                    return Err(error
                        .in_tensor(&weight.name)
                        .remedy("merge the adapters first, and quantize the result"));
                }
                let Ok(target) = &mut weight.decision else { continue };
                // Scales that are stored in the type of the weight keep this type.
                let own = weight.input_weight.map(|found| self.model.own_type(found));
                let scale = target.layout.grid.scale.or(own).or(Some(weight.dtype));
                let has_full_precision = weight.input_weight.is_some_and(|found| found.parameters.has_full_precision);
                let arithmetic = Arithmetic::Exact;
                let rotation = self.rotation(target, None);
                let options = EncodeOptions { arithmetic, rotation, has_full_precision, ..self.encoding() };
                let encoder = self.encoder(target, scale, &weight.shape, Dtype::Float64, options);
                let encoder = encoder.map_err(|why| {
                    Error::new(format!("cannot be quantized after the merge: {why}")).in_tensor(&weight.name)
                })?;
                target.encoder = Some(Arc::new(encoder));
                (weight.exact, weight.changes) = (None, Some(changes([merge])));
            }
        }
        Ok(())
    }
}
