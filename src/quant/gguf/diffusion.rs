//! Types of the tensors of diffusion models, as `ComfyUI-GGUF` chooses them (city96/ComfyUI-GGUF 795e4515).
//!
//! Its tools work in three steps, which are one here: `tools/convert.py` writes a file of plain numbers, llama-quantize with
//! `tools/lcpp.patch` quantizes the weights, and `tools/fix_5d_tensors.py` adds the tensors with five dimensions, which
//! llama-quantize cannot read.

use super::mixes::{RolePosition, exception};
use super::{Architecture, BF16, F16, F32, GgufScheme, IQ4_NL, IQ4_XS, KeptRule, TypeChoice, part_of, table_shape};
use crate::blocks::BlockFormat;
use crate::dtype::Dtype;

/// Number of dimensions of the tensors that llama-quantize cannot read.
const FIVE: usize = 5;

/// Length of the rows that K types need.
const ROW: u64 = 256;

/// Parts of names that the patched llama-quantize refuses: they belong to other layouts.
const REFUSED_PARTS: &[&str] =
    &["model.diffusion_model.", "first_stage_model.", "single_transformer_blocks.", "joint_transformer_blocks."];

/// Names of attention values.
const VALUES: &[&str] =
    &["attn_v.weight", ".to_v.weight", ".v.weight", ".attn.w1v.weight", ".attn.w2v.weight", "_attn.v_proj.weight"];

/// Names of fused queries, keys and values.
const FUSED: &[&str] = &["attn_qkv.weight", "attn.qkv.weight", "attention.qkv.weight"];

/// Names of the last layers of feed-forward networks. A name contains all texts of a row.
const DOWN: &[&[&str]] = &[
    &["ffn_down"],
    &["experts.", ".w2.weight"],
    &[".ffn.2.weight"],
    &[".ff.net.2.weight"],
    &[".mlp.layer2.weight"],
    &[".adaln_modulation_mlp.2.weight"],
    &[".feed_forward.w2.weight"],
];

/// The reason why a scheme is not for diffusion models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiffusionRefusal {
    /// The mix needs an importance matrix, and no program makes one of a diffusion model.
    NeedsImportance,
    /// A type of the `IQ` family. `lcpp.patch` excludes all of them "for now", without another reason.
    IqType,
}

impl DiffusionRefusal {
    /// Returns the reason why a scheme is refused; `None` if it is not.
    pub fn of(scheme: &GgufScheme) -> Option<Self> {
        match scheme.mix {
            None if [IQ4_NL, IQ4_XS].contains(&scheme.format) => Some(Self::IqType),
            Some(mix) if mix.diffusion.is_none() => Some(Self::NeedsImportance),
            _ => None,
        }
    }
}

/// Returns the prefix of the names that belong to the diffusion model.
pub fn prefix_of(names: &[&str]) -> Option<&'static str> {
    let starts = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    let prefix = ["model.diffusion_model.", "model."].into_iter().find(|prefix| starts(prefix));
    prefix.or_else(|| names.iter().all(|name| name.starts_with("net.")).then_some("net."))
}

/// Returns a name without all occurrences of the prefix; `None` if the tensor does not belong to the diffusion model.
pub fn without_prefix(name: &str, prefix: &str) -> Option<String> {
    name.contains(prefix).then(|| name.replace(prefix, ""))
}

/// Returns the part of a name that is refused.
pub fn refused_part(name: &str) -> Option<&'static str> {
    part_of(name, REFUSED_PARTS)
}

/// Returns the order of the tensors in the file, as indexes: one with five dimensions follows the tensor whose name
/// becomes its own when `.bias` becomes `.weight`, or comes last.
pub fn file_order(tensors: &[(&str, &[u64])]) -> Vec<usize> {
    let is_five = |at: usize| tensors[at].1.len() >= FIVE;
    let comes_before = |at: usize, wanted| !is_five(at) && tensors[at].0.replace(".bias", ".weight") == wanted;
    let place = |at: usize| {
        let all = 0..tensors.len();
        let before = if is_five(at) { all.clone().find(|other| comes_before(*other, tensors[at].0)) } else { Some(at) };
        (before.unwrap_or(all.end), is_five(at))
    };
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_cached_key(|at| place(*at));
    order
}

impl Architecture {
    /// True if a tensor is left out.
    pub fn drops(&self, name: &str) -> bool {
        part_of(name, self.dropped).is_some()
    }

    /// Returns the type of a tensor that is not quantized.
    ///
    /// Sources in float16 stay float16, even with one dimension, and other sources than float32 and bfloat16 become float16.
    pub fn unquantized(&self, name: &str, shape: &[u64], source: Dtype) -> &'static BlockFormat {
        let is_small = || shape.len() == 1 || shape.iter().product::<u64>() <= 1024;
        let is_exact = || is_small() || part_of(name, self.float32).is_some();
        match source {
            _ if shape.len() >= FIVE => F32,
            Dtype::Float32 | Dtype::Bfloat16 if is_exact() => F32,
            Dtype::Bfloat16 => BF16,
            _ => F16,
        }
    }

    /// Returns the shape in which a tensor is stored, if it differs from its own: rows of 256 elements. The file then gives
    /// the original shape in `comfy.gguf.orig_shape.NAME`.
    pub fn reshaped(&self, shape: &[u64]) -> Option<[u64; 2]> {
        let [_, .., columns] = shape else { return None };
        let elements: u64 = shape.iter().product();
        let is_reshaped = elements >= 2 * ROW && elements.is_multiple_of(ROW) && !columns.is_multiple_of(ROW);
        (self.is_reshaped && is_reshaped).then_some([elements / ROW, ROW])
    }

    /// Returns the dimensions of a tensor that a file with quantized weights gives.
    pub fn table_shape<'a>(&self, name: &str, shape: &'a [u64]) -> &'a [u64] {
        let own = self.least_dimensions.iter().find(|(end, _)| name.ends_with(end)).map(|(_, least)| *least);
        table_shape(shape, if shape.len() >= FIVE { shape.len() } else { own.unwrap_or(1) })
    }

    /// Returns the rule by which a tensor is not quantized. The shape is the stored one.
    pub fn keeping_rule(&self, name: &str, shape: &[u64]) -> Option<KeptRule> {
        if !name.ends_with("weight") {
            return Some(KeptRule::NotAWeight);
        }
        if shape.len() >= FIVE || table_shape(shape, 1).len() != 2 {
            return Some(KeptRule::Dimensions);
        }
        let part = part_of(name, &["_norm.weight"]).or_else(|| part_of(name, self.kept_parts));
        part.or_else(|| self.kept_names.iter().copied().find(|kept| *kept == name)).map(KeptRule::Name)
    }

    /// Chooses the types of all tensors of a model. Tensors are names and stored shapes, in the order of the file.
    ///
    /// # Errors
    /// When the scheme is not for diffusion models.
    pub fn choose(&self, scheme: &GgufScheme, tensors: &[(&str, &[u64])]) -> Result<Vec<TypeChoice>, DiffusionRefusal> {
        if let Some(refusal) = DiffusionRefusal::of(scheme) {
            return Err(refusal);
        }
        let mut values = 0;
        let choose = |&(name, shape): &(&str, &[u64])| match self.keeping_rule(name, shape) {
            Some(rule) => TypeChoice::Kept(rule),
            None => fit(wanted(scheme, name, &mut values), *shape.last().expect("a weight with two dimensions")),
        };
        Ok(tensors.iter().map(choose).collect())
    }
}

/// Returns the type that is stored for a wanted one, in rows of this many columns: F16 if it does not fit.
///
/// lcpp.patch does so for K types. With other types, llama-quantize stops.
pub fn fit(wanted: &'static BlockFormat, columns: u64) -> TypeChoice {
    TypeChoice::fitting(wanted, None, columns)
}

/// Returns the type of the next weight, by its name and the number of attention values before it.
fn wanted(scheme: &GgufScheme, name: &str, values: &mut u64) -> &'static BlockFormat {
    let Some(mix) = scheme.mix.and_then(|mix| mix.diffusion.as_ref()) else { return scheme.format };
    let format = if part_of(name, VALUES).is_some() {
        let position = RolePosition { index: *values, ..RolePosition::default() };
        *values += 1;
        exception(mix.value, position)
    } else if part_of(name, FUSED).is_some() {
        mix.fused
    } else if DOWN.iter().any(|parts| parts.iter().all(|part| name.contains(part))) {
        mix.down
    } else {
        None
    };
    format.unwrap_or(scheme.format)
}

#[cfg(test)]
mod tests;
