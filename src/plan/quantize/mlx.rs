//! The choice of mlx-lm: weights that MLX quantizes although other engines keep them, and weights that get 8 bits in
//! every scheme (mlx-lm 0.32.2, `quant_predicate` of the models).

use crate::quant::{Scheme, SchemeLayout};
use crate::select::KeptReason;

pub(super) use crate::quant::MLX as NAME;

/// Types of models whose routers are linear layers, which MLX can quantize.
const LINEAR_ROUTERS: &[&str] =
    &["ernie4_5_moe", "minimax", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "qwen3_next"];

/// Ends of the modules that get 8 bits, by type of model.
const EIGHT_BITS: &[(&str, &[&str])] = &[
    ("granite", &["self_attn.o_proj", "mlp.down_proj", "lm_head"]),
    ("minimax", &["block_sparse_moe.gate"]),
    ("qwen3_moe", &["mlp.gate"]),
    ("qwen3_next", &["mlp.gate", "shared_expert_gate"]),
];

/// True if MLX quantizes a weight of a model of this type that other engines keep for this reason.
pub(super) fn quantizes(reason: KeptReason, kind: Option<&str>) -> bool {
    match reason {
        KeptReason::Embedding | KeptReason::Head => true,
        KeptReason::Router => kind.is_some_and(|kind| LINEAR_ROUTERS.contains(&kind)),
        _ => false,
    }
}

/// Returns the scheme of a module of a model of this type, if it is not the scheme of the others.
pub(super) fn own_scheme(module: &str, kind: Option<&str>) -> Option<(&'static Scheme, &'static SchemeLayout)> {
    let (_, ends) = EIGHT_BITS.iter().find(|(known, _)| kind == Some(known))?;
    let scheme = ends.iter().any(|end| module.ends_with(end)).then(|| Scheme::find("affine8"))??;
    Some((scheme, scheme.in_layout(Some(NAME))?))
}

/// True if MLX does not load a tensor that Hugging Face stores: the head of a model whose head is its embeddings, and
/// frequencies that follow from the config.
pub(super) fn leaves_out(name: &str, has_tied_head: bool) -> bool {
    has_tied_head && name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq")
}
