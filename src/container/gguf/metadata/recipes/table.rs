//! The keys of each type of model, as data.
//!
//! The rows are from llama.cpp's converter (`conversion/` of llama-cpp-python 0.3.36), which was run on a small model of each
//! type. A key that is set twice keeps the last value, so a row can replace a common key.

use super::super::config::{as_count, lacks};
use super::super::keys::KeyValue;
use super::computed::{
    HybridLayer, attention_factor, code_llama_end, every_fourth_is_full, full_interval, has_expert_blocks,
    heads_of_kimi, heads_of_lfm2, hunyuan_base, hunyuan_context, kimi_attention, layer_count, nemotron_factor,
    no_bos_of_starcoder, of_blocks, of_experts, product, rotated_of_head, rotated_of_head_size, rotated_of_width,
    sliding_layers, sum, width_of_heads, width_of_lfm2,
};
use super::rows::{
    Absent, Base, KeyRow, Recipe, TokenizerKind, TokenizerRule, ValueRule, computed, count, count_if, count_or,
    counted, factor, fixed, number, number_if,
};
use serde_json::Value;

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
pub(in super::super) static RECIPES: &[Recipe] = &[
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
                let length = config.shared_rope("original_max_position_embeddings").and_then(as_count);
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
        model_types: &["nemotron_h"],
        base: Base::Without(&["expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count"]),
        keys: NEMOTRON_H,
        tokenizer: TokenizerRule { padding: 8, ..BPE },
    },
    Recipe { model_types: &["kimi_linear"], base: Base::All, keys: KIMI_LINEAR, tokenizer: BPE },
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
    computed("ssm.inner_size", |config| product(config, "linear_value_head_dim", "linear_num_value_heads")),
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
const NEMOTRON_H: &[KeyRow] = &[
    VOCABULARY,
    computed("rope.dimension_count", |config| counted(width_of_heads(config)?)),
    count("ssm.conv_kernel", &["conv_kernel"]),
    count("ssm.state_size", &["ssm_state_size"]),
    count("ssm.group_count", &["n_groups"]),
    computed("ssm.inner_size", |config| product(config, "mamba_num_heads", "mamba_head_dim")),
    count("ssm.time_step_rank", &["mamba_num_heads"]),
    computed("attention.head_count_kv", |config| of_blocks(config, HybridLayer::Attention, "num_key_value_heads")),
    fixed("rope.scaling.finetuned", ValueRule::FixedFlag(false)),
    // The model has no positions, so it has no limit.
    fixed("context_length", ValueRule::FixedCount(1 << 20)),
    count("attention.key_length", &["head_dim", "attention_head_dim"]),
    count("attention.value_length", &["head_dim", "attention_head_dim"]),
    computed("feed_forward_length", |config| {
        if has_expert_blocks(config)? {
            of_blocks(config, HybridLayer::Experts, "moe_intermediate_size")
        } else {
            of_blocks(config, HybridLayer::Mlp, "intermediate_size")
        }
    }),
    computed("expert_used_count", |config| of_experts(config, "num_experts_per_tok")),
    computed("expert_feed_forward_length", |config| of_experts(config, "moe_intermediate_size")),
    computed("expert_shared_feed_forward_length", |config| of_experts(config, "moe_shared_expert_intermediate_size")),
    computed("expert_count", |config| of_experts(config, "n_routed_experts")),
    computed("expert_shared_count", |config| of_experts(config, "n_shared_experts")),
    computed("expert_group_count", |config| of_experts(config, "n_group")),
    computed("expert_group_used_count", |config| of_experts(config, "topk_group")),
    computed("expert_weights_norm", |config| {
        let flag = config.flag("norm_topk_prob").filter(|_| has_expert_blocks(config).is_ok_and(|has| has));
        Ok(flag.map(KeyValue::Flag))
    }),
    computed("expert_weights_scale", |config| {
        let scale = if has_expert_blocks(config)? { config.number(&["routed_scaling_factor"])? } else { None };
        Ok(scale.map(|scale| KeyValue::Number(scale as f32)))
    }),
    computed("moe_latent_size", |config| match config.find(&["moe_latent_size"]) {
        Some(_) => of_experts(config, "moe_latent_size"),
        None => Ok(None),
    }),
];
const KIMI_LINEAR: &[KeyRow] = &[
    VOCABULARY,
    computed("attention.head_count_kv", heads_of_kimi),
    computed("ssm.conv_kernel", |config| kimi_attention(config, "short_conv_kernel_size")),
    computed("kda.head_dim", |config| kimi_attention(config, "head_dim")),
    count_if("attention.q_lora_rank", &["q_lora_rank"]),
    count("attention.kv_lora_rank", &["kv_lora_rank"]),
    count("rope.dimension_count", &["qk_rope_head_dim"]),
    computed("attention.key_length", |config| sum(config, "kv_lora_rank", "qk_rope_head_dim")),
    computed("attention.key_length_mla", |config| sum(config, "qk_nope_head_dim", "qk_rope_head_dim")),
    count("attention.value_length_mla", &["v_head_dim"]),
    EXPERT_WIDTH,
    count("expert_shared_count", &["num_shared_experts"]),
    count("leading_dense_block_count", &["first_k_dense_replace"]),
    number("expert_weights_scale", &["routed_scaling_factor"]),
];
const PIECES_OF_ERNIE: TokenizerRule = TokenizerRule { has_space_setting: true, ..PIECES };
