//! Weights of a model that are kept by default, because engines build their modules without quantization, and modules
//! that an engine fuses into one.
//!
//! The name alone identifies a tensor; vLLM, SGLang, transformers and TensorRT-LLM use nothing else.

use super::heads::is_head;
use super::kept::glob_set;
use super::{GROUPS, KeptReason};
#[cfg(feature = "cli")]
use crate::text::as_glob;
use globset::GlobSet;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::LazyLock;

/// Modules that engines build without quantization, in addition to [`GROUPS`].
const KEPT: &[(KeptReason, &[&str])] = &[
    // Multi-token prediction heads, which vLLM loads as a separate model.
    (KeptReason::Draft, &["*mtp*", "*eh_proj*", "*nextn*", "*eagle*", "*medusa*"]),
    (
        KeptReason::Tower,
        &[
            "*visual*",
            "*vision_tower*",
            "*vision_model*",
            "*vision_encoder*",
            "*vision_embed*",
            "*vision_proj*",
            "*vision_language_adapter*",
            "*image_tower*",
            "*video_tower*",
            "*sam_model*",
            // Modules that connect a tower to the language model, or project images and text into a common space.
            "*projector*",
            "*connector*",
            "*resampler*",
            "*text_projection*",
            "*language_projection*",
            "*vision_adapter*",
            "*merger.*",
            "*patch_merge*",
            "*aligner*",
            "*mlp_AR*",
            "*qformer*",
            "*image_newline*",
            "*audio*",
            "*speech*",
        ],
    ),
    (
        KeptReason::Router,
        &["*router*", "*feed_forward.gate.*", "*gate.wg.*", "*mixer.gate.*", "layers.?.gate.*", "layers.??.gate.*"],
    ),
    (
        KeptReason::LinearAttention,
        &[
            "*linear_attn.in_proj_[ab].*",
            "*linear_attn.in_proj_ba.*",
            "*conv1d*",
            "*mixer.x_proj.*",
            "*mixer.dt_proj.*",
            "*mamba.x_proj.*",
            "*mamba.dt_proj.*",
        ],
    ),
    (KeptReason::Indexer, &["*indexer.weights_proj.*"]),
    (KeptReason::Shared, &["*.shared_transf.*", "*.shared_transformer.*"]),
];

/// Blocks of Zamba and Zamba2 that several layers share. The file contains each once, as a part of its first layer.
/// transformers gives their weights to the other layers, but not the scales.
const SHARED: [&str; 2] = ["shared_transf", "shared_transformer"];

/// Layers of diffusion models that `ComfyUI` and related tools keep: input, output and modulation layers, and the text
/// encoders and autoencoders stored with the model.
const KEPT_IN_DIFFUSION: &[(KeptReason, &[&str])] = &[
    (
        KeptReason::Edge,
        &[
            "*img_in.*",
            "*txt_in.*",
            "*time_in.*",
            "*vector_in.*",
            "*guidance_in.*",
            "*x_embedder*",
            "*t_embedder*",
            "*y_embedder*",
            "*context_embedder*",
            "*time_embed*",
            "*time_projection*",
            "*time_text_embed*",
            "*patch_embed*",
            "*final_layer*",
            "*proj_out.*",
            "*head.head.*",
            "*modulation*",
            "*_mod.*",
        ],
    ),
    (KeptReason::Encoder, &["first_stage_model.*", "cond_stage_model.*", "conditioner.*", "text_encoder*", "vae.*"]),
];

/// Sibling modules that vLLM and SGLang fuse: quantized in the same way or not at all, with the same scalar scales.
const FUSED: &[&[&str]] = &[
    &["q_proj", "k_proj", "v_proj"],
    &["wq", "wk", "wv"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
    &["wq_a", "wkv_a_with_mqa", "wkv_a", "wkv"],
    &["in_proj_qkv", "in_proj_z"],
    &["in_proj_b", "in_proj_a"],
];

/// Patterns of modules to keep, with the reason for each.
struct Keepers {
    set: GlobSet,
    reasons: Vec<KeptReason>,
}

impl Keepers {
    fn new(lists: &[&[(KeptReason, &[&str])]]) -> Self {
        let pairs = || lists.iter().copied().flatten();
        let reasons = pairs().flat_map(|(kept, patterns)| patterns.iter().map(|_| *kept)).collect();
        Self { set: glob_set(pairs().flat_map(|(_, patterns)| patterns.iter())), reasons }
    }

    /// Returns the first reason in the order of the lists.
    fn reason(&self, name: &str) -> Option<KeptReason> {
        self.set.matches(name).into_iter().min().map(|at| self.reasons[at])
    }
}

static KEEPERS: LazyLock<Keepers> = LazyLock::new(|| Keepers::new(&[KEPT, GROUPS]));
static DIFFUSION: LazyLock<Keepers> = LazyLock::new(|| Keepers::new(&[KEPT_IN_DIFFUSION, KEPT, GROUPS]));

/// Properties of the model and of the engine that will load it, which determine the kept weights.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    /// `num_hidden_layers` of config.json. Layers from this index on are multi-token prediction heads.
    pub layers: Option<u64>,
    /// True if the layout is one of `ComfyUI`, which does not fuse modules.
    pub is_diffusion: bool,
    /// The modules of output heads in this kind of model.
    pub heads: &'static [&'static str],
}

impl Policy {
    /// Returns the reason for keeping a weight, based on its name alone; `None` if it can be quantized. `has_four_bits`
    /// is true if its codes have 4 bits or fewer.
    pub(crate) fn reason(&self, name: &str, has_four_bits: bool) -> Option<KeptReason> {
        let keepers = if self.is_diffusion { &DIFFUSION } else { &KEEPERS };
        if let Some(reason) = keepers.reason(name) {
            return Some(reason);
        }
        if module_of(name).is_some_and(|module| is_head(self.heads, module)) {
            return Some(KeptReason::Head);
        }
        if let (Some(layers), Some(layer)) = (self.layers, layer_of(name))
            && layer >= layers
        {
            return Some(KeptReason::Draft);
        }
        // SGLang folds its values into other weights, and cannot unpack 4-bit codes to do so.
        (has_four_bits && module_of(name).is_some_and(|module| module.ends_with("kv_b_proj")))
            .then_some(KeptReason::Absorbed)
    }

    /// Returns a key that all modules fused with this one have in common; `None` if it is not fused.
    pub(crate) fn fused_set(&self, module: &str) -> Option<String> {
        let (parent, own) = module.rsplit_once('.').unwrap_or(("", module));
        let set = FUSED.iter().find(|set| !self.is_diffusion && set.contains(&own))?;
        Some(format!("{parent}.{}", set.join("+")))
    }
}

/// Returns the name of the module of a weight: the part before `.weight`.
pub(crate) fn module_of(name: &str) -> Option<&str> {
    name.strip_suffix(".weight")
}

/// Returns the block that several layers share and that contains a module.
pub(crate) fn shared_block(module: &str) -> Option<&'static str> {
    SHARED.into_iter().find(|block| module.split('.').any(|part| part == *block))
}

/// Returns the layer number in a name. Names in checkpoints of `DeepSeek` and Mistral begin with `layers.`.
fn layer_of(name: &str) -> Option<u64> {
    let in_model = || name.split_once("model.layers.").map(|(_, rest)| rest);
    let rest = name.strip_prefix("layers.").or_else(in_model)?;
    rest.split('.').next()?.parse().ok()
}

/// Returns the indices of the names that belong to the experts of each layer, which engines load as one module. Layers
/// with a single name are left out.
pub(crate) fn expert_sets<'a>(policy: &Policy, names: impl Iterator<Item = &'a str>) -> Vec<Vec<usize>> {
    let layer = |name: &'a str| name.split_once(".experts.").filter(|_| !policy.is_diffusion).map(|(layer, _)| layer);
    sets_of(names.map(layer))
}

/// Returns the indices of the modules in each fused set, ordered by the first member. Modules that are not fused are
/// left out, and so are sets with a single member.
pub(crate) fn fused_sets<'a>(policy: &Policy, modules: impl Iterator<Item = &'a str>) -> Vec<Vec<usize>> {
    sets_of(modules.map(|module| policy.fused_set(module)))
}

/// Returns the indices of the items with the same key, ordered by the first of them, if there are several.
fn sets_of<K: Eq + Hash>(keys: impl Iterator<Item = Option<K>>) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    let mut places = HashMap::new();
    for (at, key) in keys.enumerate() {
        let Some(key) = key else { continue };
        let place = *places.entry(key).or_insert_with(|| {
            sets.push(Vec::new());
            sets.len() - 1
        });
        sets[place].push(at);
    }
    sets.retain(|set| set.len() > 1);
    sets
}

/// Weights that engines load as one module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum LoadedSet {
    /// All experts of the layer with this name.
    Experts(String),
    Fused(String),
}

impl Policy {
    /// Returns the set of weights that engines load as one module with this one, and that are quantized alike or not at
    /// all.
    pub(crate) fn loaded_together(&self, name: &str) -> Option<LoadedSet> {
        match name.split_once(".experts.").filter(|_| !self.is_diffusion) {
            Some((layer, _)) => Some(LoadedSet::Experts(layer.to_owned())),
            None => self.fused_set(module_of(name)?).map(LoadedSet::Fused),
        }
    }

    /// Returns patterns for a weight and for the given names that engines load with it: they can only be left out
    /// together.
    #[cfg(feature = "cli")]
    pub(crate) fn globs_together<'n>(&self, name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
        match self.loaded_together(name) {
            None => vec![as_glob(name)],
            Some(LoadedSet::Experts(layer)) => vec![as_glob(&layer) + ".experts.*"],
            set => names.filter(|name| self.loaded_together(name) == set).map(as_glob).collect(),
        }
    }
}

/// True if a tensor is named as in a diffusion model: in files of its authors, of `ComfyUI`, or of diffusers.
pub(crate) fn is_of_diffusion(name: &str) -> bool {
    const PARTS: [&str; 6] = [
        "double_blocks.",
        "single_blocks.",
        "joint_blocks.",
        "transformer_blocks.",
        "single_transformer_blocks.",
        "down_blocks.",
    ];
    name.contains("diffusion_model.") || PARTS.iter().any(|part| name.starts_with(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { layers: Some(61), is_diffusion: false, heads: &[] };

    #[test]
    fn what_engines_build_without_quantization_is_kept_and_says_why() {
        for (name, reason) in [
            ("lm_head.weight", KeptReason::Head),
            ("model.embed_tokens.weight", KeptReason::Embedding),
            ("model.layers.0.input_layernorm.weight", KeptReason::Norm),
            ("model.layers.3.mlp.gate.weight", KeptReason::Router),
            ("model.layers.3.block_sparse_moe.gate.weight", KeptReason::Router),
            ("model.layers.3.mlp.shared_expert_gate.weight", KeptReason::Router),
            ("model.layers.3.feed_forward.router.weight", KeptReason::Router),
            ("model.layers.3.mlp.router.proj.weight", KeptReason::Router),
            ("model.mtp.layers.0.mlp.up_proj.weight", KeptReason::Draft),
            ("mtp.fc.weight", KeptReason::Draft),
            ("model.layers.61.eh_proj.weight", KeptReason::Draft),
            ("model.layers.61.mlp.experts.3.up_proj.weight", KeptReason::Draft),
            ("model.language_model.layers.61.mlp.up_proj.weight", KeptReason::Draft),
            ("layers.61.ffn.experts.3.w1.weight", KeptReason::Draft),
            ("layers.3.ffn.gate.weight", KeptReason::Router),
            ("model.visual.blocks.0.attn.qkv.weight", KeptReason::Tower),
            ("vision_tower.encoder.layers.0.self_attn.q_proj.weight", KeptReason::Tower),
            ("model.vision_model.layers.0.fc1.weight", KeptReason::Tower),
            ("multi_modal_projector.linear_1.weight", KeptReason::Tower),
            ("model.audio_tower.layers.0.fc1.weight", KeptReason::Tower),
            ("model.sam_model.blocks.0.attn.qkv.weight", KeptReason::Tower),
            ("model.projector.layers.weight", KeptReason::Tower),
            ("visual_projection.weight", KeptReason::Tower),
            ("text_projection.weight", KeptReason::Tower),
            ("language_projection.weight", KeptReason::Tower),
            ("image_to_text_projection.dense.weight", KeptReason::Tower),
            ("model.connector.modality_projection.proj.weight", KeptReason::Tower),
            ("model.resampler_model.mlp.weight", KeptReason::Tower),
            ("model.vision_adapter.fc1.weight", KeptReason::Tower),
            ("model.merger.mlp.0.linear_1.weight", KeptReason::Tower),
            ("model.layers.5.shared_transf.self_attn.q_proj.weight", KeptReason::Shared),
            ("model.layers.5.shared_transformer.feed_forward.gate_up_proj.weight", KeptReason::Shared),
            ("transformer.w.weight", KeptReason::Embedding),
            ("led.shared.weight", KeptReason::Embedding),
            ("backbone.layers.2.mixer.gate.weight", KeptReason::Router),
            ("layers.12.gate.weight", KeptReason::Router),
            ("model.layers.0.mamba.x_proj.weight", KeptReason::LinearAttention),
            ("model.layers.0.linear_attn.in_proj_a.weight", KeptReason::LinearAttention),
            ("model.layers.0.linear_attn.in_proj_ba.weight", KeptReason::LinearAttention),
            ("model.layers.0.linear_attn.conv1d.weight", KeptReason::LinearAttention),
            ("model.layers.0.self_attn.indexer.weights_proj.weight", KeptReason::Indexer),
        ] {
            assert_eq!(POLICY.reason(name, false), Some(reason), "{name}");
        }
        for name in [
            "model.layers.3.mlp.gate_proj.weight",
            "model.layers.60.mlp.experts.3.up_proj.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.linear_attn.in_proj_qkv.weight",
            "model.layers.0.linear_attn.out_proj.weight",
            "model.layers.0.self_attn.indexer.wq_b.weight",
            "model.language_model.layers.0.mlp.down_proj.weight",
            "layers.60.ffn.experts.3.w1.weight",
            "transformer.h.0.attn.c_attn.weight",
        ] {
            assert_eq!(POLICY.reason(name, true), None, "{name}");
        }
    }

    #[test]
    fn the_kind_of_model_says_which_other_modules_are_output_heads() {
        let policy = Policy { heads: &["output_projection"], ..POLICY };
        let name = "biogpt.output_projection.weight";
        assert_eq!((policy.reason(name, false), POLICY.reason(name, false)), (Some(KeptReason::Head), None));
        assert_eq!(policy.reason("layers.0.my_output_projection.weight", false), None);
    }

    #[test]
    fn blocks_that_layers_share_are_told_by_whole_parts_of_names() {
        assert_eq!(shared_block("model.layers.5.shared_transformer.self_attn.q_proj"), Some("shared_transformer"));
        assert_eq!(shared_block("model.layers.5.shared_transf.self_attn.q_proj"), Some("shared_transf"));
        assert_eq!(shared_block("model.layers.5.mlp.shared_expert.up_proj"), None);
    }

    #[test]
    fn kv_b_proj_is_kept_for_codes_of_four_bits_only() {
        let name = "model.layers.0.self_attn.kv_b_proj.weight";
        assert_eq!(POLICY.reason(name, true), Some(KeptReason::Absorbed));
        assert_eq!(POLICY.reason(name, false), None);
    }

    #[test]
    fn diffusion_models_keep_their_edges_and_their_encoders() {
        let policy = Policy { is_diffusion: true, ..Policy::default() };
        for (name, reason) in [
            ("model.diffusion_model.img_in.weight", KeptReason::Edge),
            ("model.diffusion_model.final_layer.linear.weight", KeptReason::Edge),
            ("model.diffusion_model.double_blocks.0.img_mod.lin.weight", KeptReason::Edge),
            ("model.diffusion_model.time_embed.0.weight", KeptReason::Edge),
            ("first_stage_model.decoder.mid.attn_1.q.weight", KeptReason::Encoder),
            ("conditioner.embedders.0.transformer.text_model.encoder.layers.0.mlp.fc1.weight", KeptReason::Encoder),
        ] {
            assert_eq!(policy.reason(name, false), Some(reason), "{name}");
        }
        let name = "model.diffusion_model.double_blocks.0.img_attn.qkv.weight";
        assert_eq!(policy.reason(name, true), None);
        assert_eq!(policy.fused_set("a.q_proj"), None);
    }

    #[test]
    fn modules_beside_each_other_are_fused() {
        let modules = [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.o_proj",
            "model.layers.1.self_attn.q_proj",
            "model.layers.0.self_attn.v_proj",
            "model.layers.0.mlp.shared_experts.up_proj",
            "model.layers.0.mlp.experts.0.gate_proj",
            "model.layers.0.mlp.shared_experts.gate_proj",
            "model.layers.0.mlp.experts.0.up_proj",
            "model.layers.0.self_attn.kv_a_proj_with_mqa",
            "model.layers.0.self_attn.q_a_proj",
            "w1",
            "w3",
            "layers.0.attention.wq",
            "layers.0.attention.wv",
            "layers.0.attention.wk",
            "layers.0.attn.wkv_a",
            "layers.0.attn.wq_a",
        ];
        let sets = fused_sets(&POLICY, modules.into_iter());
        assert_eq!(
            sets,
            [vec![0, 3], vec![4, 6], vec![5, 7], vec![8, 9], vec![10, 11], vec![12, 13, 14], vec![15, 16]]
        );
    }
}
