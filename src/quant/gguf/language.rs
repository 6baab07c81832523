//! Types of the tensors of language models, as llama-quantize chooses them (llama.cpp, `src/llama-quant.cpp`, ggml
//! 0.26.0).
//!
//! A type can depend on how many weights of the same role come before, so the order of the tensors matters: see
//! [`place`].

use super::mixes::{Exceptions, Mix, RolePosition, exception};
use super::{
    GgufScheme, IQ4_NL, IQ4_XS, KeptRule, Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
    TypeChoice, part_of, table_shape,
};
use crate::blocks::BlockFormat;
use crate::error::{Error, Result};

/// The properties of a model that its types depend on.
#[derive(Clone, Copy, Debug)]
pub struct LanguageModel<'a> {
    /// The value of `general.architecture`.
    pub architecture: &'a str,
    /// Number of layers: `block_count`.
    pub layers: u64,
    /// Number of experts: `expert_count`; 0 without experts.
    pub experts: u64,
    /// Number of query heads in layer 0: `attention.head_count`.
    pub heads: u64,
    /// Number of key heads in layer 0: `attention.head_count_kv`.
    pub key_heads: u64,
}

/// Names of tensors that keep their types.
const KEPT_NAMES: &[&str] = &["position_embd.weight", "token_types.weight"];

/// Parts of the names of tensors that keep their types.
const KEPT_PARTS: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
];

/// The architecture that has other rules.
const GLM5: &str = "glm5-next";

/// Parts of names that keep their types in [`GLM5`] only.
const KEPT_PARTS_OF_GLM5: &[&str] = &[
    "hc_",
    "indexer.attn_q_b",
    "indexer.attn_k",
    "indexer.proj",
    "indexer_compressor_gate",
    "indexer_compressor_ape",
    "ssm_f_a.weight",
    "ssm_f_b.weight",
    "ssm_g_a.weight",
    "ssm_g_b.weight",
    "ssm_beta.weight",
    "attn_kv_a_mqa.weight",
    "attn_k_b.weight",
    "attn_v_b.weight",
];

/// Parts of the names of weights that have `Q8_0` in every mix of [`GLM5`].
const Q8_0_OF_GLM5: &[&str] = &["attn_q_a", "attn_q_b", "nextn.eh_proj"];

/// Models whose attention values have at least `Q5_K`: architecture and layers. Llama must also have grouped heads, and
/// must not be a mixture of 8 experts.
const SEVENTY_BILLION: &[(&str, u64)] = &[("llama", 80), ("deci", 80), ("olmo", 80), ("qwen2", 80), ("jais2", 68)];

/// The role of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LlamaRole {
    Output,
    Embedding,
    Value,
    Key,
    Attention,
    Down,
    UpOrGate,
    Other,
}

/// The output head.
pub const OUTPUT: &str = "output.weight";
/// The embeddings of tokens.
pub const EMBEDDING: &str = "token_embd.weight";
/// Tensors with a row or an element for each token.
pub const OF_TOKENS: [&str; 3] = [EMBEDDING, OUTPUT, "output.bias"];
const EMBEDDINGS: [&str; 2] = [EMBEDDING, "per_layer_token_embd.weight"];

/// Ends of the names of weights that llama.cpp's converter stores as F32 (`convert_hf_to_gguf.py`, `prepare_tensors`).
const FLOAT32_ENDS: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "position_embd.weight",
    "token_types.weight",
    "ssm_conv1d.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "shortconv.conv.weight",
    "time_mix_first.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "indexer.proj.weight",
    "altup_correct_coef.weight",
    "altup_predict_coef.weight",
];

/// True if a tensor of this many dimensions is stored as F32 when it is not quantized, because llama.cpp computes with it in
/// this type.
pub fn is_float32(name: &str, rank: usize) -> bool {
    rank < 2 || !name.ends_with(".weight") || FLOAT32_ENDS.iter().any(|end| name.ends_with(end))
}

/// True if the tensor has the embeddings of tokens, which importance matrices lack.
pub fn is_embedding(name: &str) -> bool {
    EMBEDDINGS.contains(&name)
}

/// Parts of names and the roles that they mean; the first one counts.
const ROLES: &[(&str, LlamaRole)] = &[
    ("attn_qkv.weight", LlamaRole::Value),
    ("attn_kv_b.weight", LlamaRole::Value),
    ("attn_v.weight", LlamaRole::Value),
    ("attn_k.weight", LlamaRole::Key),
    ("attn_q.weight", LlamaRole::Other),
    ("attn_output.weight", LlamaRole::Attention),
    ("ffn_up", LlamaRole::UpOrGate),
    ("ffn_gate", LlamaRole::UpOrGate),
    ("ffn_down", LlamaRole::Down),
];

impl LlamaRole {
    fn of(name: &str) -> Self {
        if name == OUTPUT {
            return Self::Output;
        }
        if is_embedding(name) {
            return Self::Embedding;
        }
        ROLES.iter().find(|(part, _)| name.contains(part)).map_or(Self::Other, |(_, role)| *role)
    }
}

/// Types for rows that are no whole blocks of 256; if a row is no whole blocks of 32 either, it gets F16.
const FALLBACKS: &[(&BlockFormat, &BlockFormat)] = &[
    (Q2_K, Q4_0),
    (Q3_K, Q4_0),
    (TQ1_0, Q4_0),
    (TQ2_0, Q4_0),
    (Q4_K, Q5_0),
    (Q5_K, Q5_1),
    (Q6_K, Q8_0),
    (IQ4_XS, IQ4_NL),
];

/// Returns the position of a tensor in the file: by layer, then by name. Tensors outside layers come first.
///
/// llama.cpp counts weights in this order (`llama_model_loader`, `weight_name_comparer`).
pub fn place(name: &str) -> (Option<u64>, &str) {
    (layer_of(name), name)
}

/// Returns the number after a leading `blk.`.
fn layer_of(name: &str) -> Option<u64> {
    let rest = name.strip_prefix("blk.")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns the type that is stored for a wanted one, in rows of this many columns.
pub fn fit(wanted: &'static BlockFormat, columns: u64) -> TypeChoice {
    let second = FALLBACKS.iter().find(|(format, _)| *format == wanted).map(|(_, second)| *second);
    TypeChoice::fitting(wanted, second, columns)
}

/// True if llama-quantize refuses to quantize a tensor to this type without importance weights. It does not
/// require them for embeddings and output, which importance matrices lack.
pub fn needs_importance(scheme: &GgufScheme, name: &str, format: &BlockFormat) -> bool {
    scheme.needs_importance() && format == scheme.format && name != OUTPUT && !is_embedding(name)
}

/// Chooses the types of all tensors of a model. Tensors are names and shapes in the order of [`place`].
///
/// # Errors
/// When the type of an expert depends on its layer, and the name gives no layer of the model.
pub fn choose(scheme: &GgufScheme, model: &LanguageModel, tensors: &[(&str, &[u64])]) -> Result<Vec<TypeChoice>> {
    let mut chooser = scheme.mix.map(|mix| MixChooser::new(mix, scheme.format, *model, tensors));
    let choose = |&(name, shape): &(&str, &[u64])| {
        if let Some(rule) = model.keeping_rule(name, shape) {
            return Ok(TypeChoice::Kept(rule));
        }
        let columns = *shape.last().expect("a weight with two dimensions or more");
        let wanted = match &mut chooser {
            Some(chooser) => chooser.next(name, columns)?,
            None => scheme.format,
        };
        Ok(fit(wanted, columns))
    };
    tensors.iter().map(choose).collect()
}

impl LanguageModel<'_> {
    /// Returns the rule by which a tensor is not quantized (`tensor_allows_quantization`).
    pub fn keeping_rule(&self, name: &str, shape: &[u64]) -> Option<KeptRule> {
        if !name.ends_with("weight") {
            return Some(KeptRule::NotAWeight);
        }
        if table_shape(shape, 1).len() < 2 {
            return Some(KeptRule::Dimensions);
        }
        let own: &[_] = if self.architecture == GLM5 { KEPT_PARTS_OF_GLM5 } else { &[] };
        let part = KEPT_NAMES.iter().copied().find(|kept| *kept == name);
        part.or_else(|| part_of(name, KEPT_PARTS)).or_else(|| part_of(name, own)).map(KeptRule::Name)
    }

    fn is_seventy_billion(&self) -> bool {
        let is_grouped = self.heads != self.key_heads && self.experts != 8;
        SEVENTY_BILLION.contains(&(self.architecture, self.layers)) && (self.architecture != "llama" || is_grouped)
    }
}

/// Chooses the types of the weights of a mix, one after the other.
struct MixChooser<'a> {
    mix: &'static Mix,
    default: &'static BlockFormat,
    model: LanguageModel<'a>,
    /// True if the model has an output weight, and does not use the embeddings as output.
    has_output: bool,
    /// Number of attention values in the model.
    values: u64,
    /// Number of attention values so far.
    value: u64,
    /// Number of `ffn_down` so far.
    down: u64,
}

impl<'a> MixChooser<'a> {
    fn new(
        mix: &'static Mix,
        default: &'static BlockFormat,
        model: LanguageModel<'a>,
        tensors: &[(&str, &[u64])],
    ) -> Self {
        let count = |role| tensors.iter().filter(|(name, _)| LlamaRole::of(name) == role).count() as u64;
        let (has_output, values) = (count(LlamaRole::Output) > 0, count(LlamaRole::Value));
        Self { mix, default, model, has_output, values, value: 0, down: 0 }
    }

    /// Returns the type of the next weight, whether it fits or not.
    fn next(&mut self, name: &str, columns: u64) -> Result<&'static BlockFormat> {
        if self.model.architecture == GLM5 && part_of(name, Q8_0_OF_GLM5).is_some() {
            return Ok(Q8_0);
        }
        Ok(match LlamaRole::of(name) {
            LlamaRole::Output => self.output(columns),
            LlamaRole::Embedding if !self.has_output => self.output(columns),
            LlamaRole::Value => self.next_value(),
            LlamaRole::Key if self.model.experts == 8 => Q8_0,
            LlamaRole::Attention => self.attention().unwrap_or(self.default),
            LlamaRole::Down => self.next_down(name)?,
            LlamaRole::UpOrGate => {
                self.layer_of_expert(name)?; // llama.cpp checks it, and does not use it
                self.default
            }
            LlamaRole::Embedding | LlamaRole::Key | LlamaRole::Other => self.default,
        })
    }

    fn is_falcon(&self) -> bool {
        self.model.architecture == "falcon"
    }

    fn output(&self, columns: u64) -> &'static BlockFormat {
        if self.is_falcon() || !columns.is_multiple_of(self.default.elements) { Q8_0 } else { Q6_K }
    }

    fn next_value(&mut self) -> &'static BlockFormat {
        let format = self.exception(self.mix.value, self.value, self.values);
        self.value += 1;
        match format {
            _ if self.model.experts == 8 => Q8_0,
            format if self.model.is_seventy_billion() && (format == Q3_K || format == Q4_K) => Q5_K,
            format => format,
        }
    }

    fn attention(&self) -> Option<&'static BlockFormat> {
        match self.model.experts {
            _ if self.is_falcon() => self.mix.attention_of_falcon,
            8 => self.mix.attention_of_eight,
            _ => self.mix.attention,
        }
    }

    fn next_down(&mut self, name: &str) -> Result<&'static BlockFormat> {
        let index = self.layer_of_expert(name)?.unwrap_or(self.down);
        self.down += 1;
        let exceptions = if self.is_falcon() { self.mix.down_of_falcon } else { self.mix.down };
        Ok(self.exception(exceptions, index, self.model.layers))
    }

    fn exception(&self, exceptions: Exceptions, index: u64, count: u64) -> &'static BlockFormat {
        let heads_per_key = self.model.heads.checked_div(self.model.key_heads).unwrap_or(0);
        exception(exceptions, RolePosition { index, count, heads_per_key }).unwrap_or(self.default)
    }

    /// Returns the layer in a name, which counts instead of the order if the model has experts.
    fn layer_of_expert(&self, name: &str) -> Result<Option<u64>> {
        let layers = self.model.layers;
        if self.model.experts <= 1 {
            return Ok(None);
        }
        let layer = layer_of(name).filter(|layer| *layer < layers);
        let error = || Error::new(format!("its name gives none of the {layers} layers, on which its type depends"));
        layer.map(Some).ok_or_else(|| error().in_tensor(name))
    }
}

#[cfg(test)]
mod tests;
