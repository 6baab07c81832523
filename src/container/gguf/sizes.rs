//! The sizes of a language model, which both a `config.json` and the metadata of a GGUF contain.

use super::names::MetadataValue;

/// The sizes that are compared: the name in a `config.json`, and the key of a GGUF after its architecture.
const SIZES: [(&str, &str); 5] = [
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("intermediate_size", "feed_forward_length"),
];

/// A size that a `config.json` and a GGUF give differently.
pub(crate) struct SizeDifference {
    /// The name and the value in the `config.json`.
    pub config: (&'static str, u64),
    /// The key and the value in the GGUF.
    pub gguf: (String, u64),
}

/// True if a `config.json` describes multi-head latent attention. llama.cpp then caches the keys and values of one head,
/// which all heads share.
pub(crate) fn has_latent_attention(config: &dyn Fn(&str) -> Option<MetadataValue>) -> bool {
    config("kv_lora_rank").is_some()
}

/// Returns the first size that differs, of those that both files give as one number.
pub(crate) fn size_difference(
    architecture: &str,
    config: &dyn Fn(&str) -> Option<MetadataValue>,
    gguf: &dyn Fn(&str) -> Option<MetadataValue>,
) -> Option<SizeDifference> {
    let is_latent = has_latent_attention(config);
    let sizes = SIZES.into_iter().filter(|(name, _)| !is_latent || *name != "num_key_value_heads");
    sizes.map(|(name, key)| (name, format!("{architecture}.{key}"))).find_map(|(name, key)| {
        match (config(name), gguf(&key)) {
            (Some(MetadataValue::Integer(of_config)), Some(MetadataValue::Integer(of_gguf)))
                if of_config != of_gguf =>
            {
                Some(SizeDifference { config: (name, of_config), gguf: (key, of_gguf) })
            }
            _ => None,
        }
    })
}
