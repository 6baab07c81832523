//! The choice of mlx-lm 0.32.2: weights that MLX quantizes although other engines keep them, weights that get 8 bits in
//! every scheme (`quant_predicate` of the models), and tensors that MLX does not load (`sanitize`).

use super::planner::{Planner, SchemeTarget};
use crate::error::{Error, Result};
use crate::quant::Scheme;
use crate::select::KeptReason;
use crate::select::experts::ModelFacts;
use crate::select::policy::module_of;

pub(super) use crate::quant::MLX as NAME;

/// Types of models whose routers are linear layers, which MLX can quantize.
const LINEAR_ROUTERS: &[&str] = &[
    "Klear",
    "afmoe",
    "bailing_moe",
    "bailing_moe_linear",
    "ernie4_5_moe",
    "hunyuan",
    "jamba",
    "kimi_linear",
    "laguna",
    "lfm2_moe",
    "longcat_flash",
    "mellum",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "mistral4",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
];

/// Ends of the modules that get 8 bits, by type of model.
const EIGHT_BITS: &[(&[&str], &[&str])] = &[
    (&["granite"], &["self_attn.o_proj", "mlp.down_proj", "lm_head"]),
    (&["kimi_linear", "minimax", "minimax_m2", "minimax_m3_vl_text"], &["block_sparse_moe.gate"]),
    (&["Klear", "bailing_moe", "bailing_moe_linear", "laguna", "mellum", "qwen3_moe"], &["mlp.gate"]),
    (&["afmoe"], &["router.gate"]),
    (&["jamba"], &["router"]),
    (&["lfm2_moe"], &["feed_forward.gate"]),
    (&["longcat_flash"], &["classifier"]),
    (&["qwen3_next"], &["mlp.gate", "shared_expert_gate"]),
];

/// Types of models whose `kv_b_proj` mlx-lm divides and transposes when it loads a model. It would quantize codes again.
const ABSORBED: &[&str] = &[
    "bailing_hybrid",
    "deepseek_v3",
    "deepseek_v32",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "joyai_llm_flash",
    "kimi_k2",
    "kimi_linear",
    "longcat_flash",
    "mistral4",
];

/// Types of models whose head mlx-lm normalizes while it loads it, if it is plain.
const PLAIN_HEADS: &[&str] = &["baichuan_m1", "bailing_moe", "bailing_moe_linear"];

/// True if MLX quantizes a weight of a model of this type that other engines keep for this reason.
pub(super) fn quantizes(reason: KeptReason, kind: Option<&str>) -> bool {
    match reason {
        KeptReason::Embedding => true,
        KeptReason::Head => !kind.is_some_and(|kind| PLAIN_HEADS.contains(&kind)),
        KeptReason::Router => kind.is_some_and(|kind| LINEAR_ROUTERS.contains(&kind)),
        KeptReason::Absorbed => !kind.is_some_and(|kind| ABSORBED.contains(&kind)),
        _ => false,
    }
}

/// True if MLX does not load a plain tensor that Hugging Face stores: the head of a model whose head is its embeddings,
/// and frequencies that follow from the config.
pub(super) fn leaves_out(layout: &str, name: &str, facts: &ModelFacts) -> bool {
    layout == NAME && (facts.ties_head == Some(true) && name == HEAD || name.ends_with("rotary_emb.inv_freq"))
}

const HEAD: &str = "lm_head.weight";

impl Planner<'_, '_> {
    /// Returns the target for a weight that gets another scheme in MLX than the other weights of its model.
    pub(super) fn scheme_of_mlx(&self, name: &str) -> Option<SchemeTarget> {
        let module = module_of(self.new_name(name)).filter(|_| self.layout == NAME)?;
        let (_, ends) = EIGHT_BITS
            .iter()
            .find(|(kinds, _)| self.facts.kind.as_deref().is_some_and(|kind| kinds.contains(&kind)))?;
        let scheme = ends.iter().any(|end| module.ends_with(end)).then(|| Scheme::find("affine8"))??;
        Some(SchemeTarget { scheme, layout: *scheme.in_layout(Some(NAME))?, encoder: None })
    }

    /// Refuses to leave out a head whose values are not the values of the embeddings. Reads both.
    pub(super) fn check_dropped(&self, dropped: &[usize]) -> Result<()> {
        let name_at = |at: usize| self.model.tensors[at].name;
        let Some(&at) = dropped.iter().find(|at| self.new_name(name_at(**at)) == HEAD) else { return Ok(()) };
        let stored = |at: usize| {
            let tensor = self.model.stored(at);
            Some((tensor.elements, &tensor.tensor.shape, tensor.mapped()?))
        };
        let in_head = |error: Error| error.in_tensor(name_at(at)).in_file(self.model.stored(at).files[0].path());
        let is_embedding =
            |at: &usize| self.policy.reason(self.new_name(name_at(*at)), false) == Some(KeptReason::Embedding);
        let is_same = |other: usize| -> Result<bool> {
            let (Some((one, shape, head)), Some((two, other, embeddings))) = (stored(at), stored(other)) else {
                return Ok(false);
            };
            Ok(one == two && shape == other && head.is_equal(&embeddings).map_err(in_head)?)
        };
        for embeddings in (0..self.model.tensors.len()).filter(is_embedding) {
            if is_same(embeddings)? {
                return Ok(());
            }
        }
        let error = Error::new(
            "is left out, because config.json says with tie_word_embeddings that the embeddings are the head too, and has \
             other values than these",
        );
        Err(in_head(error).remedy("set tie_word_embeddings to false in config.json"))
    }
}
