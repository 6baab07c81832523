//! The names of model types in GGUF and in Hugging Face, as data.
//!
//! The rows are from llama.cpp's converter (`gguf-py/gguf/tensor_mapping.py` and `convert_hf_to_gguf.py` of ggml
//! 0.25.3), which was run on a small model of each type. They serve both directions. From GGUF, a tensor is found by
//! [`NameRow::stored`]. To GGUF, it is found by [`NameRow::name`], where `*` matches the number of an expert;
//! [`NameRow::values`] is then undone: rows return to the order of the stored tensors, matrices are transposed back, 1 is
//! added, and the experts are stacked. Of several rows with one name in Hugging Face or in GGUF,
//! the first is for new files.

use crate::blocks::{Assembly, RowOrder, ValueChange};

/// A type of model, by the `model_type` of its `config.json`.
#[derive(Debug)]
pub(super) struct ModelType {
    pub name: &'static str,
    /// `general.architecture`.
    pub architecture: &'static str,
    /// The same of models that have experts, if it is another.
    pub with_experts: Option<&'static str>,
    /// Start of the names of the tensors of a layer in Hugging Face, before the number.
    pub layers: &'static str,
    /// Tensors outside of the layers.
    pub model: &'static [NameRow],
    /// Tensors of each layer.
    pub layer: &'static [Alternatives],
    /// True if the rows of queries and keys have another order in GGUF, because llama.cpp rotates adjacent pairs where
    /// transformers rotates halves.
    pub permutes_heads: bool,
    /// True if GGUF stores the weights of norms plus one.
    pub adds_one_to_norms: bool,
    /// True if M-RoPE leaves the order of rows as it is.
    pub has_sections: bool,
}

/// Lists of rows, of which a layer has exactly one.
pub(super) type Alternatives = &'static [&'static [NameRow]];

/// A module with its tensors, or one tensor.
#[derive(Debug)]
pub(super) struct NameRow {
    /// One name in GGUF, or two for a tensor that is made of two. The names of modules have no suffix: each of
    /// [`SUFFIXES`] carries over. Other names have one, and belong to single tensors.
    pub stored: &'static [&'static str],
    /// The name in Hugging Face, with `*` for the number of an expert.
    pub name: &'static str,
    pub weight: Need,
    pub bias: Need,
    pub values: RowValues,
}

/// Suffixes of the tensors of a module. The last two are scales that ggml stores next to weights of type `NVFP4`.
pub(super) const SUFFIXES: [&str; 4] = [WEIGHT, BIAS, ".scale", ".input_scale"];
pub(super) const WEIGHT: &str = ".weight";
pub(super) const BIAS: &str = ".bias";

/// True if the model type has a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Always,
    /// All layers have the tensor, or none.
    Optional,
    Never,
}

/// Relation of the values of a tensor to the values of the stored tensors.
#[derive(Debug)]
pub(super) enum RowValues {
    Same,
    /// Rows of attention heads, which some model types permute.
    Heads(HeadCount),
    /// A norm, to which some model types add one.
    Norm,
    /// The same values, in a tensor of other dimensions.
    Reshaped(Dimensions),
    /// GGUF has `-exp` of each value.
    Logarithms(Dimensions),
    /// A matrix for each expert, stacked in GGUF.
    Experts,
    Assembled(Assembly),
    /// The same, and then the matrices are one: their rows follow each other.
    Flattened(Assembly),
    /// Rows of the heads of linear attention.
    LinearHeads(LinearPart),
}

/// The dimensions of a tensor in GGUF. ggml drops outermost lengths of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimensions {
    Same,
    /// A matrix of one row, of which GGUF has two dimensions or one.
    Row,
    /// A convolution of each channel, without the length of 1 in the middle.
    Channels,
    /// The same with this length, and with another one in front.
    Filters,
    /// Four dimensions, of which the outermost ones have a length of 1.
    Four,
    /// An element for each head: GGUF has a row of one element.
    Column,
    /// A vector, of which GGUF has a row for each group.
    Groups,
}

/// A tensor of linear attention. Each key head has several value heads, which Hugging Face stores next to each other. GGUF has
/// the first value head of every key head, then the second, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinearPart {
    /// Rows of value heads.
    Values,
    /// Rows of all queries, all keys, and then the values.
    KeysAndValues,
    /// The same, with a convolution of each row, which has a length of 1 in the middle in Hugging Face.
    Channels,
    /// Columns of value heads.
    Columns,
    /// An element for each value head.
    Elements,
    /// The same, and GGUF has `-exp` of each.
    Logarithms,
    /// Rows of queries, keys, values and gates for each key head, of which GGUF has the gates apart. Value heads keep their
    /// order.
    Projections,
}

/// Part of the names of stacks of experts in GGUF.
pub(super) const EXPERTS: &str = "_exps";

/// Names without a suffix that belong to single tensors.
const BARE: [&str; 2] = ["ssm_a", "ssm_d"];

/// Key of a number of attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadCount {
    Queries,
    Keys,
}

/// Tensors that llama.cpp computes from the config: Hugging Face has no such tensors.
pub(super) const GENERATED: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

impl NameRow {
    /// A linear layer, which may have a bias.
    const fn linear(stored: &'static [&'static str], name: &'static str) -> Self {
        Self { stored, name, weight: Need::Always, bias: Need::Optional, values: RowValues::Same }
    }

    /// A linear layer without a bias.
    const fn matrix(stored: &'static [&'static str], name: &'static str) -> Self {
        Self { bias: Need::Never, ..Self::linear(stored, name) }
    }

    /// A linear layer with one output and without a bias.
    const fn row(stored: &'static [&'static str], name: &'static str) -> Self {
        Self { values: RowValues::Reshaped(Dimensions::Row), ..Self::matrix(stored, name) }
    }

    /// A norm without a bias.
    const fn norm(stored: &'static [&'static str], name: &'static str) -> Self {
        Self { bias: Need::Never, values: RowValues::Norm, ..Self::linear(stored, name) }
    }

    /// A stack of linear layers, one for each expert.
    const fn experts(stored: &'static [&'static str], name: &'static str) -> Self {
        Self { bias: Need::Never, values: RowValues::Experts, ..Self::linear(stored, name) }
    }

    /// A single tensor, whose names have their suffixes.
    const fn tensor(stored: &'static [&'static str], name: &'static str, values: RowValues) -> Self {
        Self { bias: Need::Never, values, ..Self::linear(stored, name) }
    }

    /// A linear layer or a tensor of linear attention, without a bias.
    const fn of_linear(stored: &'static [&'static str], name: &'static str, part: LinearPart) -> Self {
        Self { values: RowValues::LinearHeads(part), ..Self::matrix(stored, name) }
    }

    const fn of_heads(self, count: HeadCount) -> Self {
        Self { values: RowValues::Heads(count), ..self }
    }

    const fn with_bias(self) -> Self {
        Self { bias: Need::Always, ..self }
    }

    const fn optional(self) -> Self {
        Self { weight: Need::Optional, ..self }
    }

    /// True if the row is a single tensor.
    pub(super) fn is_tensor(&self) -> bool {
        BARE.contains(&self.stored[0]) || SUFFIXES.iter().any(|suffix| self.stored[0].ends_with(suffix))
    }
}

const PLAIN: Assembly = Assembly {
    first_is_transposed: false,
    order: RowOrder::Stored,
    is_transposed: false,
    rows_are_elements: false,
    change: ValueChange::None,
};

/// Start of the names of most models.
const LAYERS: &str = "model.layers.";

// Tensors outside of the layers. Without a head, its weight is that of the embedding.

const EMBEDDING: NameRow = NameRow::matrix(&["token_embd"], "model.embed_tokens");
const LAST_NORM: NameRow = NameRow::norm(&["output_norm"], "model.norm");
const HEAD: NameRow = NameRow::matrix(&["output"], "lm_head").optional();
const MODEL: &[NameRow] = &[EMBEDDING, LAST_NORM, HEAD];
const MODEL_WITH_BIAS: &[NameRow] = &[EMBEDDING, LAST_NORM.with_bias(), HEAD];
const LFM2_MODEL: &[NameRow] = &[EMBEDDING, NameRow::norm(&["token_embd_norm"], "model.embedding_norm"), HEAD];
const GEMMA4_MODEL: &[NameRow] = &[
    EMBEDDING,
    LAST_NORM,
    HEAD,
    NameRow::matrix(&["per_layer_token_embd"], "model.embed_tokens_per_layer").optional(),
    NameRow::matrix(&["per_layer_model_proj"], "model.per_layer_model_projection").optional(),
    NameRow::norm(&["per_layer_proj_norm"], "model.per_layer_projection_norm").optional(),
];
const NEMOTRON_H_MODEL: &[NameRow] = &[
    NameRow::matrix(&["token_embd"], "backbone.embeddings"),
    NameRow::norm(&["output_norm"], "backbone.norm_f"),
    HEAD,
];
const PHI_MODEL: &[NameRow] =
    &[EMBEDDING, NameRow::norm(&["output_norm"], "model.final_layernorm").with_bias(), HEAD.with_bias()];

// Norms.

const INPUT_NORM: NameRow = NameRow::norm(&["attn_norm"], "input_layernorm");
const MLP_NORM: NameRow = NameRow::norm(&["ffn_norm"], "post_attention_layernorm");
const AFTER_ATTENTION: NameRow = NameRow::norm(&["post_attention_norm"], "post_attention_layernorm");
const AFTER_MLP: NameRow = NameRow::norm(&["post_ffw_norm"], "post_feedforward_layernorm");
const NORMS: Alternatives = &[&[INPUT_NORM, MLP_NORM]];
const NORMS_WITH_BIAS: Alternatives = &[&[INPUT_NORM.with_bias(), MLP_NORM.with_bias()]];
/// The same norms, with llama.cpp's other name for the second.
const RENAMED_NORMS: Alternatives = &[&[INPUT_NORM, AFTER_ATTENTION]];
const NORMS_BEHIND: Alternatives = &[&[AFTER_ATTENTION, AFTER_MLP]];
const GEMMA_NORMS: Alternatives =
    &[&[INPUT_NORM, AFTER_ATTENTION, NameRow::norm(&["ffn_norm"], "pre_feedforward_layernorm"), AFTER_MLP]];
const GLM_NORMS: Alternatives = &[&[
    INPUT_NORM,
    NameRow::norm(&["post_attention_norm"], "post_self_attn_layernorm"),
    MLP_NORM,
    NameRow::norm(&["post_ffw_norm"], "post_mlp_layernorm"),
]];
/// Models whose attention and MLP are parallel have no second norm.
const STABLELM_NORMS: Alternatives = &[&[INPUT_NORM.with_bias(), MLP_NORM.with_bias().optional()]];
const COHERE_NORMS: Alternatives = &[&[INPUT_NORM]];
const PHI_NORMS: Alternatives = &[&[INPUT_NORM.with_bias()]];

// Attention.

const Q: NameRow = NameRow::linear(&["attn_q"], "self_attn.q_proj").of_heads(HeadCount::Queries);
const K: NameRow = NameRow::linear(&["attn_k"], "self_attn.k_proj").of_heads(HeadCount::Keys);
const V: NameRow = NameRow::linear(&["attn_v"], "self_attn.v_proj");
const O: NameRow = NameRow::linear(&["attn_output"], "self_attn.o_proj");
const ATTENTION: Alternatives = &[&[Q, K, V, O]];
const ATTENTION_WITH_BIAS: Alternatives = &[&[Q.with_bias(), K.with_bias(), V.with_bias(), O]];
const FUSED_ATTENTION: Alternatives = &[&[NameRow::linear(&["attn_qkv"], "self_attn.qkv_proj"), O]];
const PHI_ATTENTION: Alternatives =
    &[&[Q.with_bias(), K.with_bias(), V.with_bias(), NameRow::linear(&["attn_output"], "self_attn.dense").with_bias()]];
const GPT_OSS_ATTENTION: Alternatives = &[&[
    Q.with_bias(),
    K.with_bias(),
    V.with_bias(),
    O.with_bias(),
    NameRow::tensor(&["attn_sinks.weight"], "self_attn.sinks", RowValues::Same),
]];
const Q_NORM: NameRow = NameRow::norm(&["attn_q_norm"], "self_attn.q_norm");
const K_NORM: NameRow = NameRow::norm(&["attn_k_norm"], "self_attn.k_norm");
const QK_NORMS: Alternatives = &[&[Q_NORM, K_NORM]];
const OPTIONAL_QK_NORMS: Alternatives = &[&[Q_NORM.optional(), K_NORM.optional()]];
/// Attention of `deepseek2` but for the two parts with alternatives.
const LATENT: NameRow = NameRow::linear(&["attn_kv_a_mqa"], "self_attn.kv_a_proj_with_mqa");
const LATENT_NORM: NameRow = NameRow::norm(&["attn_kv_a_norm"], "self_attn.kv_a_layernorm");
const LATENT_ATTENTION: Alternatives = &[&[LATENT, LATENT_NORM, O]];
const LATENT_QUERIES: Alternatives = &[
    &[
        NameRow::linear(&["attn_q_a"], "self_attn.q_a_proj"),
        NameRow::norm(&["attn_q_a_norm"], "self_attn.q_a_layernorm"),
        NameRow::matrix(&["attn_q_b"], "self_attn.q_b_proj"),
    ],
    &[NameRow::matrix(&["attn_q"], "self_attn.q_proj")],
];
/// `kv_b_proj` [heads * (nope + v), rank] has, for each head, the rows of the keys, and then the rows of the values. GGUF
/// stores the keys transposed, `attn_k_b` [heads, rank, nope], and the values as they are, `attn_v_b` [heads, v, rank].
/// Files from before April 2025 have `attn_kv_b` instead.
const KEYS_AND_VALUES_OF_HEADS: NameRow = NameRow::tensor(
    &["attn_k_b.weight", "attn_v_b.weight"],
    "self_attn.kv_b_proj.weight",
    RowValues::Flattened(Assembly { first_is_transposed: true, order: RowOrder::Concatenated, ..PLAIN }),
);
const LATENT_KEYS_AND_VALUES: Alternatives =
    &[&[KEYS_AND_VALUES_OF_HEADS], &[NameRow::matrix(&["attn_kv_b"], "self_attn.kv_b_proj")]];

/// Attention whose queries choose the tokens that count, in some layers.
const INDEXER: Alternatives = &[
    &[],
    &[
        NameRow::matrix(&["indexer.attn_q_b"], "self_attn.indexer.wq_b"),
        NameRow::matrix(&["indexer.attn_k"], "self_attn.indexer.wk"),
        NameRow::norm(&["indexer.k_norm"], "self_attn.indexer.k_norm").with_bias(),
        NameRow::matrix(&["indexer.proj"], "self_attn.indexer.weights_proj"),
    ],
];
const HUNYUAN_NORMS: Alternatives = &[&[
    NameRow::norm(&["attn_q_norm"], "self_attn.query_layernorm"),
    NameRow::norm(&["attn_k_norm"], "self_attn.key_layernorm"),
]];
/// Layers with a sliding window have sinks.
const SINKS: Alternatives =
    &[&[], &[NameRow::tensor(&["attn_sinks.weight"], "self_attn.attention_sink_bias", RowValues::Same)]];
const GEMMA4_QUERIES: Alternatives = &[&[Q, O, Q_NORM]];
/// Some layers have the keys and values of other ones, or no values of their own.
const GEMMA4_KEYS: Alternatives = &[&[], &[K, K_NORM]];
const GEMMA4_VALUES: Alternatives = &[&[], &[V]];
/// Layers of LFM2 have attention or a convolution.
const LFM2_LAYERS: Alternatives = &[
    &[
        NameRow::matrix(&["attn_q"], "self_attn.q_proj"),
        NameRow::matrix(&["attn_k"], "self_attn.k_proj"),
        NameRow::matrix(&["attn_v"], "self_attn.v_proj"),
        NameRow::matrix(&["attn_output"], "self_attn.out_proj"),
        NameRow::norm(&["attn_q_norm"], "self_attn.q_layernorm"),
        NameRow::norm(&["attn_k_norm"], "self_attn.k_layernorm"),
    ],
    &[
        NameRow::tensor(&["shortconv.conv.weight"], "conv.conv.weight", RowValues::Reshaped(Dimensions::Channels)),
        NameRow::linear(&["shortconv.in_proj"], "conv.in_proj"),
        NameRow::linear(&["shortconv.out_proj"], "conv.out_proj"),
    ],
];
const LFM2_NORMS: Alternatives =
    &[&[NameRow::norm(&["attn_norm"], "operator_norm"), NameRow::norm(&["ffn_norm"], "ffn_norm")]];

/// Attention with a gate in the rows of its queries.
const FULL_ATTENTION: &[NameRow] = &[Q, K, V, O, Q_NORM, K_NORM];
const CONVOLUTION: &str = "linear_attn.conv1d.weight";
/// Layers of Qwen 3.5 have full or linear attention. The norm of the latter is stored as it is.
const QWEN35_ATTENTION: Alternatives = &[
    FULL_ATTENTION,
    &[
        NameRow::of_linear(&["attn_qkv"], "linear_attn.in_proj_qkv", LinearPart::KeysAndValues),
        NameRow::of_linear(&["attn_gate"], "linear_attn.in_proj_z", LinearPart::Values),
        NameRow::of_linear(&["ssm_alpha"], "linear_attn.in_proj_a", LinearPart::Values),
        NameRow::of_linear(&["ssm_beta"], "linear_attn.in_proj_b", LinearPart::Values),
        NameRow::of_linear(&["ssm_conv1d.weight"], CONVOLUTION, LinearPart::Channels),
        NameRow::of_linear(&["ssm_a"], "linear_attn.A_log", LinearPart::Logarithms),
        NameRow::of_linear(&["ssm_dt.bias"], "linear_attn.dt_bias", LinearPart::Elements),
        NameRow::matrix(&["ssm_norm"], "linear_attn.norm"),
        NameRow::of_linear(&["ssm_out"], "linear_attn.out_proj", LinearPart::Columns),
    ],
];
/// The same of Qwen3-Next, whose value heads have the order of Hugging Face.
const QWEN3_NEXT_ATTENTION: Alternatives = &[
    FULL_ATTENTION,
    &[
        NameRow::of_linear(&["attn_qkv", "attn_gate"], "linear_attn.in_proj_qkvz", LinearPart::Projections),
        NameRow::matrix(&["ssm_ba"], "linear_attn.in_proj_ba"),
        NameRow::tensor(&["ssm_conv1d.weight"], CONVOLUTION, RowValues::Reshaped(Dimensions::Channels)),
        NameRow::tensor(&["ssm_a"], "linear_attn.A_log", RowValues::Logarithms(Dimensions::Same)),
        NameRow::tensor(&["ssm_dt.bias"], "linear_attn.dt_bias", RowValues::Same),
        NameRow::matrix(&["ssm_norm"], "linear_attn.norm"),
        NameRow::matrix(&["ssm_out"], "linear_attn.out_proj"),
    ],
];

/// Layers of Kimi Linear have latent attention, or linear attention whose keys, queries and values pass convolutions.
const KIMI_ATTENTION: Alternatives = &[
    &[LATENT, LATENT_NORM, KEYS_AND_VALUES_OF_HEADS],
    &[
        NameRow::matrix(&["attn_k"], "self_attn.k_proj"),
        NameRow::matrix(&["attn_v"], "self_attn.v_proj"),
        NameRow::tensor(&["ssm_conv1d_q.weight"], "self_attn.q_conv1d.weight", FILTERS),
        NameRow::tensor(&["ssm_conv1d_k.weight"], "self_attn.k_conv1d.weight", FILTERS),
        NameRow::tensor(&["ssm_conv1d_v.weight"], "self_attn.v_conv1d.weight", FILTERS),
        NameRow::tensor(&["ssm_a"], "self_attn.A_log", RowValues::Logarithms(Dimensions::Four)),
        NameRow::tensor(&["ssm_dt.bias"], "self_attn.dt_bias", RowValues::Same),
        NameRow::matrix(&["ssm_f_a"], "self_attn.f_a_proj"),
        NameRow::matrix(&["ssm_f_b"], "self_attn.f_b_proj"),
        NameRow::matrix(&["ssm_g_a"], "self_attn.g_a_proj"),
        NameRow::matrix(&["ssm_g_b"], "self_attn.g_b_proj"),
        NameRow::matrix(&["ssm_beta"], "self_attn.b_proj"),
        NameRow::matrix(&["ssm_norm"], "self_attn.o_norm"),
    ],
];
/// The queries of either kind of attention.
const KIMI_QUERIES: Alternatives = &[LATENT_QUERIES[1], LATENT_QUERIES[0]];
const KIMI_OUTPUT: Alternatives = &[&[NameRow::matrix(&["attn_output"], "self_attn.o_proj")]];
const FILTERS: RowValues = RowValues::Reshaped(Dimensions::Filters);
/// Layers of Nemotron-H have a state space model, attention, an MLP, or experts.
const NEMOTRON_H_LAYERS: Alternatives = &[
    &[
        NameRow::matrix(&["ssm_in"], "mixer.in_proj"),
        NameRow::tensor(&["ssm_conv1d.weight"], "mixer.conv1d.weight", RowValues::Reshaped(Dimensions::Channels)),
        NameRow::tensor(&["ssm_conv1d.bias"], "mixer.conv1d.bias", RowValues::Same).optional(),
        NameRow::tensor(&["ssm_dt.bias"], "mixer.dt_bias", RowValues::Same),
        NameRow::tensor(&["ssm_a"], "mixer.A_log", RowValues::Logarithms(Dimensions::Column)),
        NameRow::tensor(&["ssm_d"], "mixer.D", RowValues::Reshaped(Dimensions::Column)),
        NameRow::tensor(&["ssm_norm.weight"], "mixer.norm.weight", RowValues::Reshaped(Dimensions::Groups)),
        NameRow::matrix(&["ssm_out"], "mixer.out_proj"),
    ],
    &[
        NameRow::linear(&["attn_q"], "mixer.q_proj").of_heads(HeadCount::Queries),
        NameRow::linear(&["attn_k"], "mixer.k_proj").of_heads(HeadCount::Keys),
        NameRow::linear(&["attn_v"], "mixer.v_proj"),
        NameRow::linear(&["attn_output"], "mixer.o_proj"),
    ],
    &[NameRow::linear(&["ffn_up"], "mixer.up_proj"), NameRow::linear(&["ffn_down"], "mixer.down_proj")],
    &[
        NameRow::matrix(&["ffn_gate_inp"], "mixer.gate"),
        NameRow::tensor(&["exp_probs_b.bias"], "mixer.gate.e_score_correction_bias", RowValues::Same),
        NameRow::experts(&["ffn_up_exps"], "mixer.experts.*.up_proj"),
        NameRow::experts(&["ffn_down_exps"], "mixer.experts.*.down_proj"),
        NameRow::matrix(&["ffn_up_shexp"], "mixer.shared_experts.up_proj"),
        NameRow::matrix(&["ffn_down_shexp"], "mixer.shared_experts.down_proj"),
        NameRow::matrix(&["ffn_latent_down"], "mixer.fc1_latent_proj").optional(),
        NameRow::matrix(&["ffn_latent_up"], "mixer.fc2_latent_proj").optional(),
    ],
];
const NEMOTRON_H_NORMS: Alternatives = &[&[NameRow::norm(&["attn_norm"], "norm")]];

// MLPs.

const DOWN: NameRow = NameRow::linear(&["ffn_down"], "mlp.down_proj");
const UP: NameRow = NameRow::linear(&["ffn_up"], "mlp.up_proj");
const DENSE: &[NameRow] = &[NameRow::linear(&["ffn_gate"], "mlp.gate_proj"), UP, DOWN];
const MLP: Alternatives = &[DENSE];
const UNGATED_MLP: Alternatives = &[&[UP, DOWN]];
const FUSED_MLP: Alternatives = &[&[NameRow::linear(&["ffn_up"], "mlp.gate_up_proj"), DOWN]];
const STARCODER_MLP: Alternatives =
    &[&[NameRow::linear(&["ffn_up"], "mlp.c_fc"), NameRow::linear(&["ffn_down"], "mlp.c_proj")]];
const PHI_MLP: Alternatives =
    &[&[NameRow::linear(&["ffn_up"], "mlp.fc1").with_bias(), NameRow::linear(&["ffn_down"], "mlp.fc2").with_bias()]];

// Mixtures of experts. Some models have layers of either kind.

const ROUTER: NameRow = NameRow::matrix(&["ffn_gate_inp"], "mlp.gate");
const GATES: NameRow = NameRow::experts(&["ffn_gate_exps"], "mlp.experts.*.gate_proj");
const UPS: NameRow = NameRow::experts(&["ffn_up_exps"], "mlp.experts.*.up_proj");
const DOWNS: NameRow = NameRow::experts(&["ffn_down_exps"], "mlp.experts.*.down_proj");
const SHARED_GATE: NameRow = NameRow::matrix(&["ffn_gate_shexp"], "mlp.shared_experts.gate_proj");
const SHARED_UP: NameRow = NameRow::matrix(&["ffn_up_shexp"], "mlp.shared_experts.up_proj");
const SHARED_DOWN: NameRow = NameRow::matrix(&["ffn_down_shexp"], "mlp.shared_experts.down_proj");
const CORRECTION: NameRow = NameRow::tensor(&["exp_probs_b.bias"], "mlp.gate.e_score_correction_bias", RowValues::Same);
const SPARSE: &[NameRow] = &[ROUTER, GATES, UPS, DOWNS];
const SPARSE_MLP: Alternatives = &[SPARSE];
const QWEN3_MLP: Alternatives = &[SPARSE, DENSE];
const SHARED_ROUTER: NameRow = NameRow::row(&["ffn_gate_inp_shexp"], "mlp.shared_expert_gate");
const ONE_SHARED_GATE: NameRow = NameRow::matrix(&["ffn_gate_shexp"], "mlp.shared_expert.gate_proj");
const ONE_SHARED_UP: NameRow = NameRow::matrix(&["ffn_up_shexp"], "mlp.shared_expert.up_proj");
const ONE_SHARED_DOWN: NameRow = NameRow::matrix(&["ffn_down_shexp"], "mlp.shared_expert.down_proj");
const QWEN2_MLP: Alternatives =
    &[&[ROUTER, GATES, UPS, DOWNS, SHARED_ROUTER, ONE_SHARED_GATE, ONE_SHARED_UP, ONE_SHARED_DOWN], DENSE];
/// Some checkpoints have the experts as two tensors, in which the rows of the gate come before the rows of the up projection.
/// transformers saves single ones, whose rows are first.
const QWEN35_MLP: Alternatives = &[&[
    ROUTER,
    GATES,
    UPS,
    DOWNS,
    NameRow::tensor(
        &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        "mlp.experts.gate_up_proj",
        RowValues::Assembled(Assembly { order: RowOrder::Concatenated, ..PLAIN }),
    ),
    NameRow::tensor(&["ffn_down_exps.weight"], "mlp.experts.down_proj", RowValues::Same),
    SHARED_ROUTER,
    ONE_SHARED_GATE,
    ONE_SHARED_UP,
    ONE_SHARED_DOWN,
]];
const DEEPSEEK2_MLP: Alternatives = &[&[ROUTER, GATES, UPS, DOWNS, SHARED_GATE, SHARED_UP, SHARED_DOWN], DENSE];
const DEEPSEEK3_MLP: Alternatives =
    &[&[ROUTER, CORRECTION, GATES, UPS, DOWNS, SHARED_GATE, SHARED_UP, SHARED_DOWN], DENSE];
const MIXTRAL_EXPERTS: Alternatives = &[&[
    NameRow::matrix(&["ffn_gate_inp"], "block_sparse_moe.gate"),
    NameRow::experts(&["ffn_gate_exps"], "block_sparse_moe.experts.*.w1"),
    NameRow::experts(&["ffn_down_exps"], "block_sparse_moe.experts.*.w2"),
    NameRow::experts(&["ffn_up_exps"], "block_sparse_moe.experts.*.w3"),
]];
const MINIMAX_EXPERTS: Alternatives = &[&[
    NameRow::matrix(&["ffn_gate_inp"], "block_sparse_moe.gate"),
    NameRow::tensor(&["exp_probs_b.bias"], "block_sparse_moe.e_score_correction_bias", RowValues::Same),
    NameRow::experts(&["ffn_gate_exps"], "block_sparse_moe.experts.*.w1"),
    NameRow::experts(&["ffn_down_exps"], "block_sparse_moe.experts.*.w2"),
    NameRow::experts(&["ffn_up_exps"], "block_sparse_moe.experts.*.w3"),
]];
const KIMI_MLP: Alternatives = &[
    &[
        NameRow::matrix(&["ffn_gate_inp"], "block_sparse_moe.gate"),
        NameRow::tensor(&["exp_probs_b.bias"], "block_sparse_moe.gate.e_score_correction_bias", RowValues::Same),
        NameRow::experts(&["ffn_gate_exps"], "block_sparse_moe.experts.*.w1"),
        NameRow::experts(&["ffn_down_exps"], "block_sparse_moe.experts.*.w2"),
        NameRow::experts(&["ffn_up_exps"], "block_sparse_moe.experts.*.w3"),
        NameRow::matrix(&["ffn_gate_shexp"], "block_sparse_moe.shared_experts.gate_proj"),
        NameRow::matrix(&["ffn_up_shexp"], "block_sparse_moe.shared_experts.up_proj"),
        NameRow::matrix(&["ffn_down_shexp"], "block_sparse_moe.shared_experts.down_proj"),
    ],
    DENSE,
];
const MIMO_MLP: Alternatives = &[&[ROUTER, CORRECTION, GATES, UPS, DOWNS], DENSE];
const LFM2_DENSE: &[NameRow] = &[
    NameRow::matrix(&["ffn_gate"], "feed_forward.w1"),
    NameRow::matrix(&["ffn_down"], "feed_forward.w2"),
    NameRow::matrix(&["ffn_up"], "feed_forward.w3"),
];
const LFM2_MLP: Alternatives = &[LFM2_DENSE];
const LFM2_EXPERTS: Alternatives = &[
    &[
        NameRow::matrix(&["ffn_gate_inp"], "feed_forward.gate"),
        NameRow::tensor(&["exp_probs_b.bias"], "feed_forward.expert_bias", RowValues::Same).optional(),
        NameRow::experts(&["ffn_gate_exps"], "feed_forward.experts.*.w1"),
        NameRow::experts(&["ffn_down_exps"], "feed_forward.experts.*.w2"),
        NameRow::experts(&["ffn_up_exps"], "feed_forward.experts.*.w3"),
    ],
    LFM2_DENSE,
];
/// Embeddings of each layer, which small models of Gemma 4 have.
const GEMMA4_EMBEDDINGS: Alternatives = &[
    &[],
    &[
        NameRow::matrix(&["inp_gate"], "per_layer_input_gate"),
        NameRow::matrix(&["proj"], "per_layer_projection"),
        NameRow::norm(&["post_norm"], "post_per_layer_input_norm"),
    ],
];
const GEMMA4_SCALARS: Alternatives =
    &[&[], &[NameRow::tensor(&["layer_output_scale.weight"], "layer_scalar", RowValues::Same)]];
/// Experts next to the MLP of a layer. The gate and the up projection of all experts are one tensor, as in Hugging Face.
const GEMMA4_EXPERTS: Alternatives = &[
    &[],
    &[
        NameRow::tensor(&["ffn_gate_inp.scale"], "router.scale", RowValues::Same),
        NameRow::tensor(&["ffn_down_exps.scale"], "router.per_expert_scale", RowValues::Same),
        NameRow::matrix(&["ffn_gate_inp"], "router.proj"),
        NameRow::tensor(&["ffn_gate_up_exps.weight"], "experts.gate_up_proj", RowValues::Same),
        NameRow::tensor(&["ffn_down_exps.weight"], "experts.down_proj", RowValues::Same),
        NameRow::norm(&["pre_ffw_norm_2"], "pre_feedforward_layernorm_2"),
        NameRow::norm(&["post_ffw_norm_1"], "post_feedforward_layernorm_1"),
        NameRow::norm(&["post_ffw_norm_2"], "post_feedforward_layernorm_2"),
    ],
];
/// `input_linear` [E, 2 * f, in] has, for each expert, the rows of the gate, and then the rows of the up projection.
const GRANITE_EXPERTS: Alternatives = &[&[
    NameRow::matrix(&["ffn_gate_inp"], "block_sparse_moe.router.layer"),
    NameRow::tensor(
        &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        "block_sparse_moe.input_linear.weight",
        RowValues::Assembled(Assembly { order: RowOrder::Concatenated, ..PLAIN }),
    ),
    NameRow::matrix(&["ffn_down_exps"], "block_sparse_moe.output_linear"),
]];
/// `gate_up_proj` [E, in, 2 * f] has, for each expert, columns of the gate and the up projection in turn: the rows of the
/// stored matrices alternate, and then the matrix is transposed. Elements of the biases alternate, too. `down_proj`
/// [E, f, out] is transposed. The scales of these weights have no names, because two scales would belong to one tensor.
const GPT_OSS_EXPERTS: Alternatives = &[&[
    NameRow::linear(&["ffn_gate_inp"], "mlp.router").with_bias(),
    NameRow::tensor(
        &["ffn_gate_exps.weight", "ffn_up_exps.weight"],
        "mlp.experts.gate_up_proj",
        RowValues::Assembled(Assembly { order: RowOrder::Alternating, is_transposed: true, ..PLAIN }),
    ),
    NameRow::tensor(
        &["ffn_gate_exps.bias", "ffn_up_exps.bias"],
        "mlp.experts.gate_up_proj_bias",
        RowValues::Assembled(Assembly { order: RowOrder::Alternating, rows_are_elements: true, ..PLAIN }),
    ),
    NameRow::tensor(
        &["ffn_down_exps.weight"],
        "mlp.experts.down_proj",
        RowValues::Assembled(Assembly { is_transposed: true, ..PLAIN }),
    ),
    NameRow::tensor(&["ffn_down_exps.bias"], "mlp.experts.down_proj_bias", RowValues::Same),
]];

impl ModelType {
    const fn new(name: &'static str, architecture: &'static str, layer: &'static [Alternatives]) -> Self {
        Self {
            name,
            architecture,
            with_experts: None,
            layers: LAYERS,
            model: MODEL,
            layer,
            permutes_heads: false,
            adds_one_to_norms: false,
            has_sections: false,
        }
    }

    const fn with(self, model: &'static [NameRow]) -> Self {
        Self { model, ..self }
    }

    const fn with_experts(self, architecture: &'static str) -> Self {
        Self { with_experts: Some(architecture), ..self }
    }

    const fn in_layers(self, layers: &'static str) -> Self {
        Self { layers, ..self }
    }

    const fn permuted(self) -> Self {
        Self { permutes_heads: true, ..self }
    }

    const fn with_sections(self) -> Self {
        Self { has_sections: true, ..self }
    }

    const fn plus_one(self) -> Self {
        Self { adds_one_to_norms: true, ..self }
    }

    /// The names of the architecture in GGUF.
    pub(super) fn architectures(&self) -> impl Iterator<Item = &'static str> {
        [self.architecture].into_iter().chain(self.with_experts)
    }
}

/// Every model type, the plainest of an architecture first.
pub(super) static MODEL_TYPES: &[ModelType] = &[
    ModelType::new("llama", "llama", &[NORMS, ATTENTION, MLP]).permuted(),
    ModelType::new("mistral", "llama", &[NORMS, ATTENTION, MLP]).permuted(),
    ModelType::new("mixtral", "llama", &[NORMS, ATTENTION, MIXTRAL_EXPERTS]).permuted(),
    ModelType::new("qwen2", "qwen2", &[NORMS, ATTENTION_WITH_BIAS, MLP]),
    ModelType::new("qwen3", "qwen3", &[NORMS, ATTENTION, QK_NORMS, MLP]),
    ModelType::new("qwen2_moe", "qwen2moe", &[NORMS, ATTENTION_WITH_BIAS, QWEN2_MLP]),
    ModelType::new("qwen3_moe", "qwen3moe", &[NORMS, ATTENTION, QK_NORMS, QWEN3_MLP]),
    ModelType::new("gemma2", "gemma2", &[GEMMA_NORMS, ATTENTION, MLP]).plus_one(),
    ModelType::new("gemma3_text", "gemma3", &[GEMMA_NORMS, ATTENTION, QK_NORMS, MLP]).plus_one(),
    ModelType::new("phi3", "phi3", &[NORMS, FUSED_ATTENTION, FUSED_MLP]),
    ModelType::new("gpt_oss", "gpt-oss", &[RENAMED_NORMS, GPT_OSS_ATTENTION, GPT_OSS_EXPERTS]),
    ModelType::new(
        "deepseek_v2",
        "deepseek2",
        &[NORMS, LATENT_ATTENTION, LATENT_QUERIES, LATENT_KEYS_AND_VALUES, DEEPSEEK2_MLP],
    ),
    ModelType::new(
        "deepseek_v3",
        "deepseek2",
        &[NORMS, LATENT_ATTENTION, LATENT_QUERIES, LATENT_KEYS_AND_VALUES, DEEPSEEK3_MLP],
    ),
    ModelType::new(
        "glm4_moe_lite",
        "deepseek2",
        &[NORMS, LATENT_ATTENTION, LATENT_QUERIES, LATENT_KEYS_AND_VALUES, DEEPSEEK3_MLP],
    ),
    ModelType::new(
        "deepseek_v32",
        "deepseek32",
        &[NORMS, LATENT_ATTENTION, LATENT_QUERIES, LATENT_KEYS_AND_VALUES, INDEXER, DEEPSEEK3_MLP],
    ),
    ModelType::new(
        "glm_moe_dsa",
        "glm-dsa",
        &[NORMS, LATENT_ATTENTION, LATENT_QUERIES, LATENT_KEYS_AND_VALUES, INDEXER, DEEPSEEK3_MLP],
    ),
    ModelType::new("glm4", "glm4", &[GLM_NORMS, ATTENTION, FUSED_MLP]),
    ModelType::new("glm4_moe", "glm4moe", &[RENAMED_NORMS, ATTENTION, OPTIONAL_QK_NORMS, DEEPSEEK3_MLP]),
    ModelType::new("starcoder2", "starcoder2", &[NORMS_WITH_BIAS, ATTENTION, STARCODER_MLP]).with(MODEL_WITH_BIAS),
    ModelType::new("olmo2", "olmo2", &[NORMS_BEHIND, ATTENTION, QK_NORMS, MLP]),
    ModelType::new("olmo3", "olmo2", &[NORMS_BEHIND, ATTENTION, QK_NORMS, MLP]),
    ModelType::new("olmoe", "olmoe", &[NORMS, ATTENTION, QK_NORMS, SPARSE_MLP]),
    ModelType::new("granite", "granite", &[NORMS, ATTENTION, MLP]).permuted(),
    ModelType::new("granitemoe", "granitemoe", &[NORMS, ATTENTION, GRANITE_EXPERTS]).permuted(),
    ModelType::new("smollm3", "smollm3", &[NORMS, ATTENTION, MLP]).permuted(),
    ModelType::new("cohere2", "cohere2", &[COHERE_NORMS, ATTENTION, MLP]),
    ModelType::new("exaone4", "exaone4", &[NORMS_BEHIND, ATTENTION, QK_NORMS, MLP]),
    ModelType::new("seed_oss", "seed_oss", &[RENAMED_NORMS, ATTENTION, MLP]),
    ModelType::new("ernie4_5", "ernie4_5", &[NORMS, ATTENTION, MLP]),
    ModelType::new("nemotron", "nemotron", &[NORMS_WITH_BIAS, ATTENTION, UNGATED_MLP]).with(MODEL_WITH_BIAS).plus_one(),
    ModelType::new("phi", "phi2", &[PHI_NORMS, PHI_ATTENTION, PHI_MLP]).with(PHI_MODEL),
    ModelType::new("hunyuan_v1_dense", "hunyuan-dense", &[NORMS, ATTENTION, HUNYUAN_NORMS, MLP]),
    ModelType::new("minimax_m2", "minimax-m2", &[NORMS, ATTENTION, QK_NORMS, MINIMAX_EXPERTS]),
    ModelType::new("mimo_v2_flash", "mimo2", &[NORMS, ATTENTION, SINKS, MIMO_MLP]),
    ModelType::new(
        "gemma4_text",
        "gemma4",
        &[
            GEMMA_NORMS,
            GEMMA4_QUERIES,
            GEMMA4_KEYS,
            GEMMA4_VALUES,
            GEMMA4_EMBEDDINGS,
            GEMMA4_SCALARS,
            GEMMA4_EXPERTS,
            MLP,
        ],
    )
    .with(GEMMA4_MODEL),
    ModelType::new("lfm2", "lfm2", &[LFM2_NORMS, LFM2_LAYERS, LFM2_MLP]).with(LFM2_MODEL),
    ModelType::new("lfm2_moe", "lfm2moe", &[LFM2_NORMS, LFM2_LAYERS, LFM2_EXPERTS]).with(LFM2_MODEL),
    ModelType::new("qwen3_next", "qwen3next", &[RENAMED_NORMS, QWEN3_NEXT_ATTENTION, QWEN2_MLP]).plus_one(),
    ModelType::new("qwen3_5_text", "qwen35", &[RENAMED_NORMS, QWEN35_ATTENTION, MLP]).plus_one().with_sections(),
    ModelType::new("qwen3_5_moe_text", "qwen35moe", &[RENAMED_NORMS, QWEN35_ATTENTION, QWEN35_MLP])
        .plus_one()
        .with_sections(),
    ModelType::new("nemotron_h", "nemotron_h", &[NEMOTRON_H_NORMS, NEMOTRON_H_LAYERS])
        .with_experts("nemotron_h_moe")
        .in_layers("backbone.layers.")
        .with(NEMOTRON_H_MODEL)
        .permuted(),
    ModelType::new("kimi_linear", "kimi-linear", &[NORMS, KIMI_OUTPUT, KIMI_QUERIES, KIMI_ATTENTION, KIMI_MLP]),
    ModelType::new("stablelm", "stablelm", &[STABLELM_NORMS, ATTENTION, MLP]).with(MODEL_WITH_BIAS),
];
