//! The keys of each type of model, as data.
//!
//! The rows are from llama.cpp's converter (`conversion/` of llama-cpp-python 0.3.36), which was run on a small model of each
//! type. A key that is set twice keeps the last value, so a row can replace one of [`super::base`].

use super::config::{Config, lacks};
use super::keys::KeyValue;
use crate::error::Result;
use serde_json::Value;

/// The metadata of some types of models, besides the common keys.
pub(super) struct Recipe {
    pub model_types: &'static [&'static str],
    pub base: Base,
    /// Keys behind the common ones, with the name of the architecture in front.
    pub keys: &'static [KeyRow],
    pub tokenizer: TokenizerRule,
}

/// The common keys that a model has.
pub(super) enum Base {
    All,
    /// Before the common keys, those of another type of model count.
    With(&'static [KeyRow]),
    Without(&'static [&'static str]),
    None,
}

/// A key and the rule for its value. The name is that after the architecture, or after `tokenizer.ggml`.
#[derive(Clone, Copy)]
pub(super) struct KeyRow {
    pub key: &'static str,
    pub value: ValueRule,
}

/// The source of the value of a key.
#[derive(Clone, Copy)]
pub(super) enum ValueRule {
    /// A whole number: the first of these fields that is present.
    Count(&'static [&'static str], Absent),
    /// A number.
    Number(&'static [&'static str], Absent),
    /// A number that is left out if it is zero.
    Factor(&'static str),
    Flag(&'static str, Absent),
    FixedCount(u32),
    FixedNumber(f32),
    FixedFlag(bool),
    FixedText(&'static str),
    Computed(fn(&Config) -> Result<Option<KeyValue>>),
}

/// The treatment of a key without a field.
#[derive(Clone, Copy)]
pub(super) enum Absent {
    Refused,
    LeftOut,
    Is(u32),
}

/// The kinds and the keys of the tokenizer of some types of models.
pub(super) struct TokenizerRule {
    /// The kinds that the files of the folder may have. The first for which there are files counts.
    pub kinds: &'static [TokenizerKind],
    /// Special tokens by their texts, if no file names others.
    pub texts: &'static [(&'static str, &'static str)],
    /// Keys that are set first, and that the files of the tokenizer may set again.
    pub defaults: &'static [KeyRow],
    /// Keys that are set last.
    pub keys: &'static [KeyRow],
    /// The number of tokens is a multiple of this.
    pub padding: u32,
    /// The first of several ends of texts in `generation_config.json` is the end of a turn.
    pub has_ends_of_turns: bool,
    /// `tokenizer_config.json` says whether texts get a space in front.
    pub has_space_setting: bool,
}

/// A kind of tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenizerKind {
    /// `tokenizer.model`.
    SentencePiece,
    /// `tokenizer.model` of Phi 3, which keeps the texts of added tokens.
    SentencePieceOfPhi,
    /// A `tokenizer.json` whose tokens stand for characters, and for single bytes.
    ByteFallback,
    /// The same of Gemma 4.
    Gemma4,
    /// A `tokenizer.json` whose tokens stand for bytes.
    Bpe,
}

const BPE: TokenizerRule = TokenizerRule {
    kinds: &[TokenizerKind::Bpe],
    texts: &[],
    defaults: &[],
    keys: &[],
    padding: 1,
    has_ends_of_turns: false,
    has_space_setting: false,
};
const BPE_OR_PIECES: TokenizerRule =
    TokenizerRule { kinds: &[TokenizerKind::SentencePiece, TokenizerKind::Bpe], ..BPE };
const PIECES: TokenizerRule = TokenizerRule { kinds: &[TokenizerKind::SentencePiece], ..BPE };
const NO_SPACE: KeyRow = fixed("add_space_prefix", ValueRule::FixedFlag(false));
const OF_LLAMA: TokenizerRule = TokenizerRule {
    kinds: &[TokenizerKind::SentencePiece, TokenizerKind::ByteFallback, TokenizerKind::Bpe],
    keys: &[
        fixed("add_bos_token", ValueRule::Computed(no_bos_of_starcoder)),
        fixed("eot_token_id", ValueRule::Computed(code_llama_end)),
    ],
    has_space_setting: true,
    ..BPE
};
const OF_GLM_MOE: TokenizerRule = TokenizerRule {
    texts: &[("bos", "[gMASK]"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("eom", "<|observation|>")],
    ..BPE
};

const fn fixed(key: &'static str, value: ValueRule) -> KeyRow {
    KeyRow { key, value }
}

const fn computed(key: &'static str, value: fn(&Config) -> Result<Option<KeyValue>>) -> KeyRow {
    KeyRow { key, value: ValueRule::Computed(value) }
}

const fn count(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::Refused) }
}

const fn count_if(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::LeftOut) }
}

const fn count_or(key: &'static str, fields: &'static [&'static str], other: u32) -> KeyRow {
    KeyRow { key, value: ValueRule::Count(fields, Absent::Is(other)) }
}

const fn number(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Number(fields, Absent::Refused) }
}

const fn number_if(key: &'static str, fields: &'static [&'static str]) -> KeyRow {
    KeyRow { key, value: ValueRule::Number(fields, Absent::LeftOut) }
}

const fn factor(key: &'static str, field: &'static str) -> KeyRow {
    KeyRow { key, value: ValueRule::Factor(field) }
}

const VOCABULARY: KeyRow = count("vocab_size", &["vocab_size"]);
const ROTATED_HEAD: KeyRow = computed("rope.dimension_count", |config| counted(config.head_dim()?));
const WINDOW: KeyRow = count("attention.sliding_window", &["sliding_window"]);
const CONTEXT: KeyRow = count("context_length", &["n_positions", "max_position_embeddings"]);
const WIDTH: KeyRow = count("embedding_length", &["hidden_size", "n_embd"]);
const LAYERS: KeyRow = count("block_count", &["n_layers", "num_hidden_layers", "n_layer", "num_layers"]);
const HEADS: KeyRow = count("attention.head_count", &["num_attention_heads", "n_head"]);
const KEY_HEADS: KeyRow = count("attention.head_count_kv", &["num_key_value_heads", "num_attention_heads"]);
const FEED_FORWARD: KeyRow = count("feed_forward_length", &["intermediate_size"]);
const RMS_EPSILON: KeyRow = number("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]);
const EPSILON: &str = "attention.layer_norm_epsilon";
const HEAD_LENGTHS: &[&str] = &["attention.key_length", "attention.value_length"];

const GRANITE: &[KeyRow] = &[
    VOCABULARY,
    ROTATED_HEAD,
    factor("attention.scale", "attention_multiplier"),
    factor("embedding_scale", "embedding_multiplier"),
    factor("residual_scale", "residual_multiplier"),
    factor("logit_scale", "logits_scaling"),
    computed("expert_shared_feed_forward_length", |config| {
        Ok(config.count(&["shared_intermediate_size"])?.filter(|size| *size > 0).map(KeyValue::Count))
    }),
];
const QWEN_MOE: &[KeyRow] = &[
    count_if("expert_feed_forward_length", &["moe_intermediate_size"]),
    count_if("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
];
const DEEPSEEK2: &[KeyRow] = &[
    fixed("attention.head_count_kv", ValueRule::FixedCount(1)),
    computed("attention.layer_norm_rms_epsilon", |config| {
        Ok(Some(KeyValue::Number(config.number(&["rms_norm_eps"])?.unwrap_or(1e-6) as f32)))
    }),
    computed("leading_dense_block_count", |config| match config.count(&["first_k_dense_replace"])? {
        Some(count) => counted(count),
        None if config.count(&["n_routed_experts"])?.is_some() => counted(0),
        None => counted(config.need("num_hidden_layers")?),
    }),
    VOCABULARY,
    count_if("attention.q_lora_rank", &["q_lora_rank"]),
    count_or("attention.kv_lora_rank", &["kv_lora_rank"], 512),
    computed("attention.key_length", |config| sum(config, "kv_lora_rank", "qk_rope_head_dim")),
    count_or("attention.value_length", &["kv_lora_rank"], 512),
    computed("attention.key_length_mla", |config| sum(config, "qk_nope_head_dim", "qk_rope_head_dim")),
    count("attention.value_length_mla", &["v_head_dim"]),
    count_if("expert_feed_forward_length", &["moe_intermediate_size", "intermediate_size"]),
    count_if("expert_count", &["n_routed_experts"]),
    count_or("expert_shared_count", &["n_shared_experts"], 0),
    number_if("expert_weights_scale", &["routed_scaling_factor"]),
    computed("expert_weights_norm", |config| {
        Ok((config.flag("norm_topk_prob") == Some(true)).then_some(KeyValue::Flag(true)))
    }),
    count("rope.dimension_count", &["qk_rope_head_dim"]),
    computed("rope.scaling.yarn_log_multiplier", |config| {
        let scale = config.shared_rope("mscale_all_dim").and_then(Value::as_f64);
        Ok(scale.map(|scale| KeyValue::Number((0.1 * scale) as f32)))
    }),
];

/// Every type of model.
pub(super) static RECIPES: &[Recipe] = &[
    Recipe {
        model_types: &["llama", "mistral", "mixtral", "smollm3"],
        base: Base::All,
        keys: &[VOCABULARY, ROTATED_HEAD],
        tokenizer: OF_LLAMA,
    },
    Recipe {
        model_types: &["granite", "granitemoe"],
        base: Base::Without(HEAD_LENGTHS),
        keys: GRANITE,
        tokenizer: OF_LLAMA,
    },
    Recipe { model_types: &["qwen2", "qwen3"], base: Base::All, keys: &[], tokenizer: BPE_OR_PIECES },
    Recipe { model_types: &["qwen2_moe", "qwen3_moe"], base: Base::All, keys: QWEN_MOE, tokenizer: BPE },
    Recipe { model_types: &["seed_oss", "starcoder2"], base: Base::All, keys: &[], tokenizer: BPE },
    Recipe {
        model_types: &["olmoe"],
        base: Base::All,
        keys: &[fixed("attention.layer_norm_rms_epsilon", ValueRule::FixedNumber(1e-5))],
        tokenizer: BPE,
    },
    Recipe { model_types: &["olmo2", "olmo3"], base: Base::All, keys: WINDOWS_OF_OLMO, tokenizer: BPE },
    Recipe {
        model_types: &["exaone4"],
        base: Base::All,
        keys: &[
            VOCABULARY,
            count_if("attention.sliding_window", &["sliding_window"]),
            computed(PATTERN, |config| match config.find(&["sliding_window"]) {
                Some(_) => sliding_layers(config),
                None => Ok(None),
            }),
        ],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["cohere2"],
        base: Base::All,
        keys: &[
            number("logit_scale", &["logit_scale"]),
            WINDOW,
            VOCABULARY,
            // transformers 5 does not save `rotary_pct`.
            computed("rope.dimension_count", |config| {
                let size =
                    u64::from(config.need("hidden_size")?).checked_div(config.need("num_attention_heads")?.into());
                let share = config.number(&["rotary_pct"])?.unwrap_or(1.0);
                counted((share * size.ok_or_else(|| lacks("num_attention_heads"))? as f64) as u32)
            }),
            fixed("rope.scaling.type", ValueRule::FixedText("none")),
        ],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["gemma2"],
        base: Base::None,
        keys: &[
            count("context_length", &["max_position_embeddings"]),
            WIDTH,
            LAYERS,
            FEED_FORWARD,
            HEADS,
            KEY_HEADS,
            RMS_EPSILON,
            count("attention.key_length", &["head_dim"]),
            count("attention.value_length", &["head_dim"]),
            number("attn_logit_softcapping", &["attn_logit_softcapping"]),
            number("final_logit_softcapping", &["final_logit_softcapping"]),
            WINDOW,
        ],
        tokenizer: TokenizerRule { keys: &[NO_SPACE], ..PIECES },
    },
    Recipe {
        model_types: &["gemma3_text"],
        base: Base::All,
        keys: GEMMA3,
        tokenizer: TokenizerRule {
            kinds: &[TokenizerKind::SentencePiece, TokenizerKind::Bpe],
            keys: &[NO_SPACE],
            ..BPE
        },
    },
    Recipe {
        model_types: &["phi3"],
        base: Base::None,
        keys: &[
            CONTEXT,
            computed("rope.scaling.original_context_length", |config| {
                let length = config.shared_rope("original_max_position_embeddings").and_then(super::config::as_count);
                counted(length.ok_or_else(|| lacks("original_max_position_embeddings"))?)
            }),
            WIDTH,
            FEED_FORWARD,
            LAYERS,
            HEADS,
            count("attention.head_count_kv", &["num_key_value_heads", "n_head_kv"]),
            RMS_EPSILON,
            computed("rope.dimension_count", |config| rotated_of_width(config, Some(1.0))),
            computed("rope.freq_base", |config| {
                let theta = config.rope_number("rope_theta")?.ok_or_else(|| lacks("rope_theta"))?;
                Ok(Some(KeyValue::Number(theta as f32)))
            }),
            count_or("attention.sliding_window", &["sliding_window"], 0),
            computed("rope.scaling.attn_factor", attention_factor),
        ],
        tokenizer: TokenizerRule { kinds: &[TokenizerKind::SentencePieceOfPhi, TokenizerKind::Bpe], ..BPE },
    },
    Recipe {
        model_types: &["phi"],
        base: Base::None,
        keys: &[
            CONTEXT,
            WIDTH,
            computed("feed_forward_length", |config| {
                let width = config.count(&["hidden_size", "n_embd"])?.and_then(|width| width.checked_mul(4));
                counted(width.ok_or_else(|| lacks("hidden_size"))?)
            }),
            LAYERS,
            HEADS,
            count("attention.head_count_kv", &["num_attention_heads", "n_head"]),
            number(EPSILON, &["layer_norm_epsilon", "layer_norm_eps"]),
            computed("rope.dimension_count", |config| rotated_of_width(config, None)),
        ],
        tokenizer: TokenizerRule { defaults: &[fixed("add_bos_token", ValueRule::FixedFlag(false))], ..BPE },
    },
    Recipe {
        model_types: &["glm4"],
        base: Base::All,
        keys: &[computed("rope.dimension_count", |config| rotated_of_head(config, Some(0.5)))],
        tokenizer: TokenizerRule {
            texts: &[("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("bos", "<|endoftext|>")],
            ..BPE
        },
    },
    Recipe {
        model_types: &["glm4_moe"],
        base: Base::All,
        keys: &[
            computed("rope.dimension_count", |config| rotated_of_head(config, Some(0.5))),
            count_if("expert_count", &["n_routed_experts"]),
            count_if("expert_feed_forward_length", &["moe_intermediate_size"]),
            count_if("expert_shared_count", &["n_shared_experts"]),
            count_if("leading_dense_block_count", &["first_k_dense_replace"]),
            fixed("expert_gating_func", ValueRule::FixedCount(2)),
            number_if("expert_weights_scale", &["routed_scaling_factor"]),
            fixed("expert_weights_norm", ValueRule::Flag("norm_topk_prob", Absent::LeftOut)),
        ],
        tokenizer: OF_GLM_MOE,
    },
    Recipe { model_types: &["deepseek_v2", "deepseek_v3"], base: Base::All, keys: DEEPSEEK2, tokenizer: BPE_OR_PIECES },
    Recipe { model_types: &["glm4_moe_lite"], base: Base::All, keys: DEEPSEEK2, tokenizer: OF_GLM_MOE },
    Recipe { model_types: &["deepseek_v32"], base: Base::With(DEEPSEEK2), keys: INDEXER, tokenizer: BPE },
    Recipe {
        model_types: &["glm_moe_dsa"],
        base: Base::With(DEEPSEEK2),
        keys: &[
            computed("rope.dimension_count", |config| {
                counted(config.rotated(config.need("qk_rope_head_dim")?, Some(1.0))? as u32)
            }),
            INDEXER[0],
            INDEXER[1],
            INDEXER[2],
            computed("attention.indexer.types", |config| {
                let types = config.layers("indexer_types")?;
                Ok(types.map(|types| KeyValue::Flags(types.iter().map(|kind| kind.as_str() == Some("full")).collect())))
            }),
        ],
        tokenizer: OF_GLM_MOE,
    },
    Recipe {
        model_types: &["hunyuan_v1_dense"],
        base: Base::Without(&["expert_count"]),
        keys: &[
            computed("rope.freq_base", hunyuan_base),
            computed("rope.scaling.type", |config| {
                Ok(hunyuan_base(config)?.is_some().then(|| KeyValue::Text("none".to_owned())))
            }),
            computed("rope.scaling.factor", |config| {
                Ok(hunyuan_base(config)?.is_some().then_some(KeyValue::Number(1.0)))
            }),
            computed("rope.scaling.original_context_length", hunyuan_context),
            computed("context_length", hunyuan_context),
        ],
        tokenizer: TokenizerRule {
            keys: &[count_if("eos_token_id", &["eod_token_id"])],
            has_ends_of_turns: true,
            ..BPE
        },
    },
    Recipe {
        model_types: &["minimax_m2"],
        base: Base::All,
        keys: &[
            count("expert_feed_forward_length", &["intermediate_size"]),
            count("rope.dimension_count", &["rotary_dim"]),
        ],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["mimo_v2_flash"],
        base: Base::All,
        keys: &[
            computed("attention.head_count_kv", |config| {
                let heads = [config.need("num_key_value_heads")?, config.need("swa_num_key_value_heads")?];
                let kinds = config.layers("hybrid_layer_pattern")?.ok_or_else(|| lacks("hybrid_layer_pattern"))?;
                let heads = |kind: &Value| heads[usize::from(kind.as_u64() == Some(1))] as i32;
                Ok(Some(KeyValue::Counts(kinds.iter().map(heads).collect())))
            }),
            WINDOW,
            computed(PATTERN, |config| {
                let kinds = config.layers("hybrid_layer_pattern")?.unwrap_or_default();
                Ok(Some(KeyValue::Counts(kinds.iter().map(|kind| i32::from(kind.as_u64() == Some(1))).collect())))
            }),
            count("attention.value_length", &["v_head_dim"]),
            count("expert_count", &["n_routed_experts"]),
            EXPERT_WIDTH,
            computed("rope.dimension_count", |config| counted(config.rotated(config.need("head_dim")?, None)? as u32)),
            computed("attention.layer_norm_rms_epsilon", |config| {
                Ok(Some(KeyValue::Number(config.number(&["layernorm_epsilon"])?.unwrap_or(1e-5) as f32)))
            }),
            number_if("attention.value_scale", &["attention_value_scale"]),
        ],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["gemma4_text"],
        base: Base::With(GEMMA3),
        keys: GEMMA4,
        tokenizer: TokenizerRule {
            kinds: &[TokenizerKind::Gemma4],
            keys: &[NO_SPACE, fixed("add_bos_token", ValueRule::FixedFlag(true))],
            ..BPE
        },
    },
    Recipe {
        model_types: &["lfm2"],
        base: Base::All,
        keys: &[
            computed("attention.head_count_kv", heads_of_lfm2),
            VOCABULARY,
            count("shortconv.l_cache", &["conv_L_cache"]),
            number("attention.layer_norm_rms_epsilon", &["norm_eps"]),
            computed("feed_forward_length", width_of_lfm2),
        ],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["lfm2_moe"],
        base: Base::All,
        keys: &[
            computed("attention.head_count_kv", heads_of_lfm2),
            EXPERT_WIDTH,
            count("leading_dense_block_count", &["num_dense_layers"]),
            fixed("expert_gating_func", ValueRule::FixedCount(2)),
            VOCABULARY,
            count("shortconv.l_cache", &["conv_L_cache"]),
        ],
        tokenizer: BPE,
    },
    Recipe { model_types: &["qwen3_next"], base: Base::With(QWEN_MOE), keys: LINEAR_ATTENTION, tokenizer: BPE },
    Recipe {
        model_types: &["qwen3_5_text", "qwen3_5_moe_text"],
        base: Base::With(LINEAR_ATTENTION),
        keys: QWEN35,
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["gpt_oss"],
        base: Base::All,
        keys: &[WINDOW, count("expert_feed_forward_length", &["intermediate_size"])],
        tokenizer: BPE,
    },
    Recipe {
        model_types: &["nemotron"],
        base: Base::All,
        keys: &[
            VOCABULARY,
            number(EPSILON, &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"]),
            computed("rope.dimension_count", |config| rotated_of_width(config, None)),
            computed("rope.scaling.type", |config| {
                let is_scaled = nemotron_factor(config)?.is_some();
                Ok(Some(KeyValue::Text(if is_scaled { "linear" } else { "none" }.to_owned())))
            }),
            computed("rope.scaling.factor", |config| {
                Ok(nemotron_factor(config)?.map(|factor| KeyValue::Number(factor as f32)))
            }),
        ],
        tokenizer: TokenizerRule {
            keys: &[
                fixed("padding_token_id", ValueRule::FixedCount(0)),
                fixed("unknown_token_id", ValueRule::FixedCount(1)),
            ],
            ..PIECES
        },
    },
    Recipe {
        model_types: &["stablelm"],
        base: Base::None,
        keys: &[
            count("context_length", &["max_position_embeddings"]),
            WIDTH,
            LAYERS,
            FEED_FORWARD,
            computed("rope.dimension_count", rotated_of_head_size),
            HEADS,
            count("attention.head_count_kv", &["num_key_value_heads"]),
            computed("use_parallel_residual", |config| {
                Ok(Some(KeyValue::Flag(config.flag("use_parallel_residual").unwrap_or(true))))
            }),
            number(EPSILON, &["layer_norm_eps", "norm_eps"]),
        ],
        tokenizer: BPE,
    },
    Recipe { model_types: &["ernie4_5"], base: Base::All, keys: &[], tokenizer: PIECES_OF_ERNIE },
];

/// The keys of models with layers of full and of linear attention.
const LINEAR_ATTENTION: &[KeyRow] = &[
    count("ssm.conv_kernel", &["linear_conv_kernel_dim"]),
    count("ssm.state_size", &["linear_key_head_dim"]),
    count("ssm.group_count", &["linear_num_key_heads"]),
    count("ssm.time_step_rank", &["linear_num_value_heads"]),
    computed("ssm.inner_size", |config| {
        let rows = config.need("linear_value_head_dim")?.checked_mul(config.need("linear_num_value_heads")?);
        counted(rows.ok_or_else(|| lacks("linear_value_head_dim"))?)
    }),
    computed("attention.recurrent_layers", |config| {
        if let Some(types) = config.layers("layer_types")? {
            let is_linear = types.iter().map(|kind| kind.as_str() == Some("linear_attention"));
            return Ok(Some(KeyValue::Flags(is_linear.collect())));
        }
        let every = full_interval(config)?;
        Ok(Some(KeyValue::Flags((1..=layer_count(config)?).map(|layer| !layer.is_multiple_of(every)).collect())))
    }),
    computed("full_attention_interval", |config| counted(full_interval(config)? as u32)),
    computed("rope.dimension_count", |config| rotated_of_head(config, Some(0.25))),
];
const QWEN35: &[KeyRow] = &[
    QWEN_MOE[0],
    QWEN_MOE[1],
    computed("rope.dimension_sections", |config| {
        let is_given = config.shared_rope("mrope_section").is_some();
        Ok((!is_given).then(|| KeyValue::Counts(vec![11, 11, 10, 0])))
    }),
];
const PATTERN: &str = "attention.sliding_window_pattern";
const WINDOWS_OF_OLMO: &[KeyRow] = &[
    count_if("attention.sliding_window", &["sliding_window"]),
    computed(PATTERN, |config| match config.find(&["sliding_window"]) {
        Some(_) => every_fourth_is_full(config),
        None => Ok(None),
    }),
];
const GEMMA3: &[KeyRow] = &[
    count_or("context_length", &["max_position_embeddings"], 131_072),
    count_or("attention.head_count", &["num_attention_heads"], 8),
    count_or("attention.key_length", &["head_dim"], 256),
    count_or("attention.value_length", &["head_dim"], 256),
    computed("rope.freq_base", |config| {
        Ok(Some(KeyValue::Number(config.rope_number("rope_theta")?.unwrap_or(1e6) as f32)))
    }),
    factor("final_logit_softcapping", "final_logit_softcapping"),
    computed("attention.sliding_window", |config| {
        let is_full = config.count(&["sliding_window_pattern"]).ok().flatten() == Some(1);
        if is_full { Ok(None) } else { counted(config.need("sliding_window")?) }
    }),
    count_or("attention.head_count_kv", &["num_key_value_heads"], 4),
];
const INDEXER: &[KeyRow; 3] = &[
    count("attention.indexer.head_count", &["index_n_heads"]),
    count("attention.indexer.key_length", &["index_head_dim"]),
    count("attention.indexer.top_k", &["index_topk"]),
];
const EXPERT_WIDTH: KeyRow = count("expert_feed_forward_length", &["moe_intermediate_size"]);
/// Layers with full attention have heads of another size.
const GEMMA4: &[KeyRow] = &[
    count("attention.shared_kv_layers", &["num_kv_shared_layers"]),
    count_or("embedding_length_per_layer_input", &["hidden_size_per_layer_input"], 0),
    computed(PATTERN, |config| match sliding_layers(config)? {
        Some(layers) => Ok(Some(layers)),
        None => Err(lacks("layer_types")),
    }),
    count("attention.key_length", &["global_head_dim"]),
    count("attention.value_length", &["global_head_dim"]),
    count("attention.key_length_swa", &["head_dim"]),
    count("attention.value_length_swa", &["head_dim"]),
    count_if("expert_feed_forward_length", &["expert_intermediate_size", "moe_intermediate_size"]),
    computed("feed_forward_length", |config| {
        if config.flag("use_double_wide_mlp") != Some(true) {
            return Ok(None);
        }
        let (width, shared) = (config.need("intermediate_size")? as i32, config.need("num_kv_shared_layers")? as usize);
        let layers = layer_count(config)?;
        let width = |layer: usize| if layer + shared < layers { width } else { width.saturating_mul(2) };
        Ok(Some(KeyValue::Counts((0..layers).map(width).collect())))
    }),
    computed("attention.head_count_kv", |config| {
        let Some(heads) = config.count(&["num_global_key_value_heads"])? else { return Ok(None) };
        let (own, types) = (config.need("num_key_value_heads")?, config.layers("layer_types")?.unwrap_or_default());
        let heads = |kind: &Value| if kind.as_str() == Some("sliding_attention") { own } else { heads } as i32;
        Ok(Some(KeyValue::Counts(types.iter().map(heads).collect())))
    }),
    count("rope.dimension_count", &["global_head_dim"]),
    computed("rope.dimension_count_swa", |config| counted(config.rotated(config.need("head_dim")?, Some(1.0))? as u32)),
];
const PIECES_OF_ERNIE: TokenizerRule = TokenizerRule { has_space_setting: true, ..PIECES };

/// Each of these layers has full attention.
fn full_interval(config: &Config) -> Result<usize> {
    let every = config.count(&["full_attention_interval"])?.unwrap_or(4);
    if every == 0 { Err(lacks("full_attention_interval")) } else { Ok(every as usize) }
}

#[allow(clippy::unnecessary_wraps, reason = "it is the result of rules, which can fail")]
fn counted(count: u32) -> Result<Option<KeyValue>> {
    Ok(Some(KeyValue::Count(count)))
}

fn sum(config: &Config, one: &str, other: &str) -> Result<Option<KeyValue>> {
    let both = config.need(one)?.checked_add(config.need(other)?);
    counted(both.ok_or_else(|| lacks(one))?)
}

/// The dimensions that are rotated, of those of a head.
fn rotated_of_head(config: &Config, share: Option<f64>) -> Result<Option<KeyValue>> {
    counted(config.rotated(config.head_dim()?, share)? as u32)
}

/// The same, without a field for the dimensions of a head.
fn rotated_of_head_size(config: &Config) -> Result<Option<KeyValue>> {
    let size = config.need("hidden_size")?.checked_div(config.need("num_attention_heads")?);
    counted(config.rotated(size.ok_or_else(|| lacks("num_attention_heads"))?, None)? as u32)
}

/// The same, rounded after the width of the model is multiplied.
fn rotated_of_width(config: &Config, share: Option<f64>) -> Result<Option<KeyValue>> {
    let width = config.count(&["hidden_size", "n_embd"])?.ok_or_else(|| lacks("hidden_size"))?;
    let heads = config.count(&["num_attention_heads", "n_head"])?.unwrap_or_default();
    let rotated = (config.rotated(width, share)? as u32).checked_div(heads);
    counted(rotated.ok_or_else(|| lacks("num_attention_heads"))?)
}

/// The layers with a sliding window.
fn sliding_layers(config: &Config) -> Result<Option<KeyValue>> {
    if let Some(types) = config.layers("layer_types")? {
        let is_sliding = types.iter().map(|kind| kind.as_str() == Some("sliding_attention"));
        return Ok(Some(KeyValue::Flags(is_sliding.collect())));
    }
    let layers = layer_count(config)?;
    let flags = match config.find(&["sliding_window_pattern"]) {
        Some(Value::String(kinds)) if !kinds.is_empty() => {
            kinds.bytes().cycle().take(layers).map(|kind| kind == b'L').collect()
        }
        Some(every) => match every.as_u64().filter(|every| *every > 0) {
            Some(every) => (1..=layers as u64).map(|layer| !layer.is_multiple_of(every)).collect(),
            None => return Err(lacks("sliding_window_pattern")),
        },
        None => return Ok(None),
    };
    Ok(Some(KeyValue::Flags(flags)))
}

/// The layers with a sliding window: all but every fourth, if the config does not say.
fn every_fourth_is_full(config: &Config) -> Result<Option<KeyValue>> {
    if config.list("layer_types").is_some() {
        return sliding_layers(config);
    }
    Ok(Some(KeyValue::Flags((1..=layer_count(config)?).map(|layer| layer % 4 != 0).collect())))
}

/// The number of layers, which has a bound because lists have an element for each.
fn layer_count(config: &Config) -> Result<usize> {
    const MOST: u32 = 1 << 16;
    let layers = config.need("num_hidden_layers")?;
    if layers > MOST { Err(lacks("num_hidden_layers")) } else { Ok(layers as usize) }
}

/// The factor by which attention grows with the context of Phi 3.
fn attention_factor(config: &Config) -> Result<Option<KeyValue>> {
    if config.shared_rope("long_factor").is_none() {
        return Ok(None);
    }
    let original = config.shared_rope("original_max_position_embeddings").and_then(Value::as_f64);
    let original = original.ok_or_else(|| lacks("original_max_position_embeddings"))?;
    let length = config.count(&["n_positions", "max_position_embeddings"])?;
    let scale = f64::from(length.ok_or_else(|| lacks("max_position_embeddings"))?) / original;
    let factor = match config.rope_type().to_lowercase().as_str() {
        _ if scale <= 1.0 => 1.0,
        "su" | "longrope" => (1.0 + scale.ln() / original.ln()).sqrt(),
        "yarn" => 0.1 * scale.ln() + 1.0,
        _ => return Err(lacks("rope_type")),
    };
    Ok(Some(KeyValue::Number(factor as f32)))
}

fn nemotron_factor(config: &Config) -> Result<Option<f64>> {
    let own = config.number(&["factor"])?.filter(|factor| *factor != 0.0);
    Ok(own.or(config.shared_rope("factor").and_then(Value::as_f64)))
}

/// The base of the angles of Hunyuan, which the config gives by a factor; `None` if it does not.
fn hunyuan_base(config: &Config) -> Result<Option<KeyValue>> {
    if !["dynamic", "xdrope"].contains(&config.rope_type()) {
        return Ok(None);
    }
    let (theta, size) = (config.rope_number("rope_theta")?.unwrap_or(1e4), f64::from(config.need("head_dim")?));
    let factor = config.rope_number("alpha")?.unwrap_or(50.0);
    Ok(Some(KeyValue::Number((theta * factor.powf(size / (size - 2.0))) as f32)))
}

#[allow(clippy::unnecessary_wraps, reason = "it is the result of rules, which can fail")]
fn hunyuan_context(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.rope_type() == "dynamic").then_some(KeyValue::Count(262_144)))
}

/// The key heads of each layer of LFM2; a convolution has none.
fn heads_of_lfm2(config: &Config) -> Result<Option<KeyValue>> {
    let heads = config.need("num_key_value_heads")? as i32;
    let types = config.layers("layer_types")?.ok_or_else(|| lacks("layer_types"))?;
    let heads = |kind: &Value| if kind.as_str() == Some("conv") { 0 } else { heads };
    Ok(Some(KeyValue::Counts(types.iter().map(heads).collect())))
}

/// The width of the MLPs of LFM2, which the class adjusts.
fn width_of_lfm2(config: &Config) -> Result<Option<KeyValue>> {
    let mut width =
        u64::from(config.count(&["block_ff_dim", "intermediate_size"])?.ok_or_else(|| lacks("block_ff_dim"))?);
    if config.flag("block_auto_adjust_ff_dim") == Some(true) {
        width = (2 * width) / 3;
        if let Some(factor) = config.number(&["block_ffn_dim_multiplier"])? {
            width = (factor * width as f64) as u64;
        }
        let multiple = u64::from(config.need("block_multiple_of")?.max(1));
        width = width.checked_next_multiple_of(multiple).ok_or_else(|| lacks("block_multiple_of"))?;
    }
    counted(u32::try_from(width).map_err(|_| lacks("block_ff_dim"))?)
}

/// Models with the tokenizer of `StarCoder` have no token at the start.
fn no_bos_of_starcoder(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.count(&["vocab_size"])? == Some(49_152)).then_some(KeyValue::Flag(false)))
}

/// The end of a turn of Code Llama, whose number of tokens identifies it.
fn code_llama_end(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.count(&["vocab_size"])? == Some(32_016)).then_some(KeyValue::Count(32_010)))
}

impl Recipe {
    /// Finds the recipe of a type of model.
    pub(super) fn find(model_type: &str) -> Option<&'static Self> {
        RECIPES.iter().find(|recipe| recipe.model_types.contains(&model_type))
    }
}

impl KeyRow {
    /// Returns the value of the key; `None` if it is left out.
    pub(super) fn value(&self, config: &Config) -> Result<Option<KeyValue>> {
        let absent = |rule: Absent, field: &str| match rule {
            Absent::Refused => Err(lacks(field)),
            Absent::LeftOut => Ok(None),
            Absent::Is(count) => counted(count),
        };
        match self.value {
            ValueRule::Count(fields, rule) => match config.count(fields)? {
                Some(value) => counted(value),
                None => absent(rule, fields[0]),
            },
            ValueRule::Number(fields, rule) => match config.number(fields)? {
                Some(value) => Ok(Some(KeyValue::Number(value as f32))),
                None => absent(rule, fields[0]),
            },
            ValueRule::Factor(field) => {
                Ok(config.number(&[field])?.filter(|value| *value != 0.0).map(|value| KeyValue::Number(value as f32)))
            }
            ValueRule::Flag(field, rule) => match config.flag(field) {
                Some(value) => Ok(Some(KeyValue::Flag(value))),
                None => absent(rule, field),
            },
            ValueRule::FixedCount(value) => counted(value),
            ValueRule::FixedNumber(value) => Ok(Some(KeyValue::Number(value))),
            ValueRule::FixedFlag(value) => Ok(Some(KeyValue::Flag(value))),
            ValueRule::FixedText(value) => Ok(Some(KeyValue::Text(value.to_owned()))),
            ValueRule::Computed(rule) => rule(config),
        }
    }
}
