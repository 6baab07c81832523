//! The keys that most architectures have, from the same fields of their configs.

use super::config::{Config, as_count, lacks};
use super::keys::KeyValue;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::Value;

/// The keys that count something: the key, and the fields of which the first present one counts.
const COUNTS: &[(&str, &[&str])] = &[
    ("block_count", LAYERS),
    (
        "context_length",
        &["max_position_embeddings", "n_ctx", "n_positions", "max_length", "max_sequence_length", "model_max_length"],
    ),
    ("embedding_length", &["hidden_size", "n_embd", "dim"]),
    (
        "feed_forward_length",
        &["prefix_dense_intermediate_size", "dense_intermediate_size", "intermediate_size", "n_inner", "hidden_dim"],
    ),
    ("attention.head_count", &["num_attention_heads", "n_head", "n_heads"]),
    ("attention.head_count_kv", &["num_key_value_heads", "n_kv_heads"]),
];
const LAYERS: &[&str] = &["n_layers", "num_hidden_layers", "n_layer", "num_layers"];
const EXPERT_COUNTS: &[(&str, &[&str])] = &[
    ("expert_count", &["num_local_experts", "num_experts", "n_routed_experts"]),
    ("expert_used_count", &["num_experts_per_tok", "num_experts_per_token", "top_k_experts"]),
    ("expert_group_count", &["n_group"]),
    ("expert_group_used_count", &["topk_group"]),
];
/// The fields that name the function of a router, and llama.cpp's numbers of these functions.
const ROUTERS: &[&str] = &[
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
];
const ROUTER_FUNCTIONS: [(&str, u32); 3] = [("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];

/// Returns the keys, without the name of the architecture in front.
pub(super) fn keys(config: &Config) -> Result<Vec<(&'static str, KeyValue)>> {
    let mut keys = Vec::new();
    for (key, fields) in COUNTS {
        keys.extend(count_or_counts(config, fields)?.map(|value| (*key, value)));
    }
    if config.flag("is_causal") == Some(false) {
        keys.push(("attention.causal", KeyValue::Flag(false)));
    }
    scaling(config, &mut keys)?;
    if let Some(sections) = config.shared_rope("mrope_section").and_then(Value::as_array) {
        let mut sections = integers(sections, "mrope_section")?;
        sections.resize(4, 0);
        keys.push(("rope.dimension_sections", KeyValue::Counts(sections)));
    }
    let theta = |value: Option<&Value>| value.and_then(Value::as_f64).map(|theta| KeyValue::Number(theta as f32));
    keys.extend(theta(config.rope("rope_theta")).map(|value| ("rope.freq_base", value)));
    keys.extend(theta(config.sliding_rope("rope_theta")).map(|value| ("rope.freq_base_swa", value)));
    for (key, fields) in [
        ("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"][..]),
        ("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"]),
    ] {
        keys.extend(config.number(fields)?.map(|value| (key, KeyValue::Number(value as f32))));
    }
    for (key, fields) in EXPERT_COUNTS {
        keys.extend(count_or_counts(config, fields)?.map(|value| (*key, value)));
    }
    if let Some(name) = config.text(ROUTERS) {
        let number = ROUTER_FUNCTIONS.iter().find(|(known, _)| *known == name);
        let Some((_, number)) = number else {
            let what = format!("the router function '{}' is not one of llama.cpp", shorten(name));
            return Err(Error::new(what).not_in_gguf());
        };
        keys.push(("expert_gating_func", KeyValue::Count(*number)));
    }
    if let Some(size) = config.count(&["head_dim"])? {
        keys.push(("attention.key_length", KeyValue::Count(size)));
        keys.push(("attention.value_length", KeyValue::Count(size)));
    }
    Ok(keys)
}

/// Adds the keys for the scaling of rotary embeddings. Other rules than these need tensors, or no key.
fn scaling(config: &Config, keys: &mut Vec<(&'static str, KeyValue)>) -> Result<()> {
    let name = |name: &str| KeyValue::Text(name.to_owned());
    let factor = config.rope_number("factor")?.map(|factor| KeyValue::Number(factor as f32));
    match (config.rope_type(), factor) {
        ("linear", Some(factor)) => {
            keys.extend([("rope.scaling.type", name("linear")), ("rope.scaling.factor", factor)]);
        }
        ("yarn", Some(factor)) => {
            let original = config.rope("original_max_position_embeddings").and_then(as_count);
            let original = KeyValue::Count(original.ok_or_else(|| lacks("original_max_position_embeddings"))?);
            keys.extend([("rope.scaling.type", name("yarn")), ("rope.scaling.factor", factor)]);
            keys.push(("rope.scaling.original_context_length", original));
            for (key, fields) in [
                ("rope.scaling.yarn_ext_factor", &["extrapolation_factor"][..]),
                ("rope.scaling.yarn_attn_factor", &["attention_factor", "attn_factor"]),
                ("rope.scaling.yarn_beta_fast", &["beta_fast"]),
                ("rope.scaling.yarn_beta_slow", &["beta_slow"]),
            ] {
                let value = fields.iter().find_map(|field| config.rope(field)?.as_f64());
                keys.extend(value.map(|value| (key, KeyValue::Number(value as f32))));
            }
        }
        ("su" | "longrope", _) => keys.push(("rope.scaling.type", name("longrope"))),
        _ => {}
    }
    Ok(())
}

/// Returns a whole number, or a list of them with one for each layer.
fn count_or_counts(config: &Config, fields: &[&str]) -> Result<Option<KeyValue>> {
    match config.find(fields) {
        Some(Value::Array(list)) => Ok(Some(KeyValue::Counts(integers(list, fields[0])?))),
        _ => Ok(config.count(fields)?.map(KeyValue::Count)),
    }
}

fn integers(list: &[Value], name: &str) -> Result<Vec<i32>> {
    let integer = |value: &Value| value.as_i64().and_then(|value| i32::try_from(value).ok());
    let values = list.iter().map(integer).collect::<Option<Vec<i32>>>();
    values.ok_or_else(|| Error::new(format!("config.json has a {name} that is not a list of whole numbers")))
}
