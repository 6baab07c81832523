//! Values that are computed of several fields of a config.

use super::super::config::{Config, as_count, lacks};
use super::super::keys::KeyValue;
use super::rows::counted;
use crate::error::{Error, Result};
use serde_json::Value;

/// Each of these layers has full attention.
pub(super) fn full_interval(config: &Config) -> Result<usize> {
    let every = config.count(&["full_attention_interval"])?.unwrap_or(4);
    if every == 0 { Err(lacks("full_attention_interval")) } else { Ok(every as usize) }
}

pub(super) fn sum(config: &Config, one: &str, other: &str) -> Result<Option<KeyValue>> {
    let both = config.need(one)?.checked_add(config.need(other)?);
    counted(both.ok_or_else(|| lacks(one))?)
}

pub(super) fn product(config: &Config, one: &str, other: &str) -> Result<Option<KeyValue>> {
    let product = config.need(one)?.checked_mul(config.need(other)?);
    counted(product.ok_or_else(|| lacks(one))?)
}

/// The dimensions that are rotated, of those of a head.
pub(super) fn rotated_of_head(config: &Config, share: Option<f64>) -> Result<Option<KeyValue>> {
    counted(config.rotated(config.head_dim()?, share)? as u32)
}

/// The same, without a field for the dimensions of a head.
pub(super) fn rotated_of_head_size(config: &Config) -> Result<Option<KeyValue>> {
    counted(config.rotated(width_of_heads(config)?, None)? as u32)
}

/// The width of the model for each head.
pub(super) fn width_of_heads(config: &Config) -> Result<u32> {
    let width = config.need("hidden_size")?.checked_div(config.need("num_attention_heads")?);
    width.ok_or_else(|| lacks("num_attention_heads"))
}

/// The same, rounded after the width of the model is multiplied.
pub(super) fn rotated_of_width(config: &Config, share: Option<f64>) -> Result<Option<KeyValue>> {
    let width = config.count(&["hidden_size", "n_embd"])?.ok_or_else(|| lacks("hidden_size"))?;
    let heads = config.count(&["num_attention_heads", "n_head"])?.unwrap_or_default();
    let rotated = (config.rotated(width, share)? as u32).checked_div(heads);
    counted(rotated.ok_or_else(|| lacks("num_attention_heads"))?)
}

/// The layers with a sliding window.
pub(super) fn sliding_layers(config: &Config) -> Result<Option<KeyValue>> {
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
pub(super) fn every_fourth_is_full(config: &Config) -> Result<Option<KeyValue>> {
    if config.list("layer_types").is_some() {
        return sliding_layers(config);
    }
    Ok(Some(KeyValue::Flags((1..=layer_count(config)?).map(|layer| layer % 4 != 0).collect())))
}

/// The number of layers, which has a bound because lists have an element for each.
pub(super) fn layer_count(config: &Config) -> Result<usize> {
    const MOST: u32 = 1 << 16;
    let layers = config.need("num_hidden_layers")?;
    if layers > MOST { Err(lacks("num_hidden_layers")) } else { Ok(layers as usize) }
}

/// The factor by which attention grows with the context of Phi 3.
pub(super) fn attention_factor(config: &Config) -> Result<Option<KeyValue>> {
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

pub(super) fn nemotron_factor(config: &Config) -> Result<Option<f64>> {
    let own = config.number(&["factor"])?.filter(|factor| *factor != 0.0);
    Ok(own.or(config.shared_rope("factor").and_then(Value::as_f64)))
}

/// The base of the angles of Hunyuan, which the config gives by a factor; `None` if it does not.
pub(super) fn hunyuan_base(config: &Config) -> Result<Option<KeyValue>> {
    if !["dynamic", "xdrope"].contains(&config.rope_type()) {
        return Ok(None);
    }
    let (theta, size) = (config.rope_number("rope_theta")?.unwrap_or(1e4), f64::from(config.need("head_dim")?));
    let factor = config.rope_number("alpha")?.unwrap_or(50.0);
    Ok(Some(KeyValue::Number((theta * factor.powf(size / (size - 2.0))) as f32)))
}

#[allow(clippy::unnecessary_wraps, reason = "it is the result of rules, which can fail")]
pub(super) fn hunyuan_context(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.rope_type() == "dynamic").then_some(KeyValue::Count(262_144)))
}

/// The key heads of each layer of LFM2; a convolution has none.
pub(super) fn heads_of_lfm2(config: &Config) -> Result<Option<KeyValue>> {
    let heads = config.need("num_key_value_heads")? as i32;
    let types = config.layers("layer_types")?.ok_or_else(|| lacks("layer_types"))?;
    let heads = |kind: &Value| if kind.as_str() == Some("conv") { 0 } else { heads };
    Ok(Some(KeyValue::Counts(types.iter().map(heads).collect())))
}

/// A kind of layers of Nemotron-H.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HybridLayer {
    StateSpace,
    Attention,
    Mlp,
    Experts,
}

impl HybridLayer {
    /// The kind with one of the names that configs have.
    fn of(name: &str) -> Option<Self> {
        match name {
            "M" | "mamba" | "linear_attention" => Some(Self::StateSpace),
            "*" | "attention" | "full_attention" => Some(Self::Attention),
            "-" | "mlp" => Some(Self::Mlp),
            "E" | "moe" => Some(Self::Experts),
            _ => None,
        }
    }
}

/// The kind of each layer of Nemotron-H. llama.cpp has models with MLPs, and models with experts.
fn blocks(config: &Config) -> Result<Vec<HybridLayer>> {
    let unknown = || Error::new("config.json has a kind of layers that llama.cpp's nemotron_h does not have");
    let pattern = config.find(&["hybrid_override_pattern"]);
    let blocks: Option<Vec<HybridLayer>> = if let Some(Value::String(kinds)) = pattern {
        kinds.split("").filter(|kind| !kind.is_empty()).map(HybridLayer::of).collect()
    } else {
        let kinds = config.list("layers_block_type").ok_or_else(|| lacks("layers_block_type"))?;
        kinds.iter().map(|kind| HybridLayer::of(kind.as_str()?)).collect()
    };
    let blocks = blocks.ok_or_else(|| unknown().not_in_gguf())?;
    if blocks.len() != layer_count(config)? {
        return Err(Error::new(format!(
            "config.json has {} kinds of layers for {} layers",
            blocks.len(),
            layer_count(config)?
        )));
    }
    if blocks.contains(&HybridLayer::Mlp) && blocks.contains(&HybridLayer::Experts) {
        let what = "has layers with experts and layers with one MLP, which llama.cpp's nemotron_h does not combine";
        return Err(Error::new(what).not_in_gguf());
    }
    Ok(blocks)
}

/// A number for each layer of Nemotron-H: that of a field for layers of a kind, and 0 for others.
pub(super) fn of_blocks(config: &Config, kind: HybridLayer, field: &str) -> Result<Option<KeyValue>> {
    let count = config.need(field)? as i32;
    let counts = blocks(config)?.into_iter().map(|block| if block == kind { count } else { 0 });
    Ok(Some(KeyValue::Counts(counts.collect())))
}

/// True if layers of Nemotron-H have experts. transformers 5 saves the fields of experts for all models.
pub(super) fn has_expert_blocks(config: &Config) -> Result<bool> {
    Ok(blocks(config)?.contains(&HybridLayer::Experts))
}

/// A number of models with experts.
pub(super) fn of_experts(config: &Config, field: &str) -> Result<Option<KeyValue>> {
    if has_expert_blocks(config)? { counted(config.need(field)?) } else { Ok(None) }
}

/// The key heads of each layer of Kimi Linear: one with latent attention, and none with linear attention.
pub(super) fn heads_of_kimi(config: &Config) -> Result<Option<KeyValue>> {
    let layers = kimi_field(config, "full_attn_layers").and_then(Value::as_array);
    let layers = layers.ok_or_else(|| lacks("linear_attn_config"))?;
    let is_full = |layer: &usize| layers.iter().any(|known| known.as_u64() == Some(*layer as u64));
    Ok(Some(KeyValue::Counts((1..=layer_count(config)?).map(|layer| i32::from(is_full(&layer))).collect())))
}

/// A number of the linear attention of Kimi Linear.
pub(super) fn kimi_attention(config: &Config, field: &str) -> Result<Option<KeyValue>> {
    counted(kimi_field(config, field).and_then(as_count).ok_or_else(|| lacks("linear_attn_config"))?)
}

fn kimi_field<'c>(config: &'c Config, field: &str) -> Option<&'c Value> {
    config.find(&["linear_attn_config"])?.get(field)
}

/// The width of the MLPs of LFM2, which the class adjusts.
pub(super) fn width_of_lfm2(config: &Config) -> Result<Option<KeyValue>> {
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
pub(super) fn no_bos_of_starcoder(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.count(&["vocab_size"])? == Some(49_152)).then_some(KeyValue::Flag(false)))
}

/// The end of a turn of Code Llama, whose number of tokens identifies it.
pub(super) fn code_llama_end(config: &Config) -> Result<Option<KeyValue>> {
    Ok((config.count(&["vocab_size"])? == Some(32_016)).then_some(KeyValue::Count(32_010)))
}
