//! Adapters: small updates of the weights of another model, such as LoRA.

use super::Checkpoint;
use crate::container::Input;
use crate::io::open::is_missing;
use std::collections::HashSet;
use std::path::Path;

/// The config of an adapter of PEFT or MLX.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Parts of names that only tensors of adapters have, without the end of each: PEFT and MLX, kohya and ComfyUI, LyCORIS,
/// and other methods of PEFT.
const PARTS: &[&str] = &[
    "lora_A",
    "lora_B",
    "lora_a",
    "lora_b",
    "lora_down",
    "lora_up",
    "lora_mid",
    "lora_embedding_A",
    "lora_embedding_B",
    "lora_linear_layer",
    "lora_magnitude_vector",
    "dora_scale",
    "hada_w",
    "hada_t",
    "lokr_w",
    "lokr_t",
    "oft_R",
    "oft_blocks",
    "oft_diag",
    "boft_R",
    "boft_s",
    "ia3_l",
    "vera_lambda",
    "trainable_tokens_delta",
];

/// Beginnings of the names of all tensors of kohya's adapters and of programs that follow them.
const PREFIXES: &[&str] = &["lora_unet_", "lora_te", "lora_transformer_", "lora_prior_", "lycoris_"];

/// Returns the module of an adapter's tensor; `None` for any other name.
fn module(name: &str) -> Option<&str> {
    let mut at = 0;
    for part in name.split('.') {
        let rest = &name[at + part.len()..];
        let is_half = rest.starts_with(".down.") || rest.starts_with(".up.");
        // Models such as RWKV-7 have modules that are called lora.
        let is_lora = (part == "lora" || part.ends_with("_lora")) && is_half;
        if at > 0 && (is_lora || PARTS.iter().any(|start| part.starts_with(start))) {
            return Some(&name[..at - 1]);
        }
        at += part.len() + 1;
    }
    PREFIXES.iter().any(|start| name.starts_with(start)).then_some(name)
}

impl Checkpoint {
    /// Returns the name of a tensor that changes a weight that is not in the checkpoint; empty if only the files show that
    /// this is an adapter. `None` if this is a model, which may have adapters of its own.
    pub(crate) fn update_of_other_model(&self) -> Option<&str> {
        let names: HashSet<&str> = self.tensors().map(|(shard, tensor)| shard.name_of(tensor)).collect();
        let is_there = |name: &str| names.contains(name);
        let has_base = |module: &str| {
            is_there(module) || ["weight", "base_layer.weight"].iter().any(|end| is_there(&format!("{module}.{end}")))
        };
        let mut all = self.tensors().map(|(shard, tensor)| shard.name_of(tensor));
        let update = all.find(|name| module(name).is_some_and(|module| module == *name || !has_base(module)));
        let is_named_so =
            |shard: &Input| shard.path().file_name().is_some_and(|name| is_name_of_adapter(Path::new(name)));
        let has_config = || !is_missing(&self.config_folder().join(ADAPTER_CONFIG));
        update.or_else(|| (self.shards.iter().any(is_named_so) && has_config()).then_some(""))
    }
}

/// True if PEFT or MLX gives this name to the file of an adapter.
fn is_name_of_adapter(file: &Path) -> bool {
    let stem = file.to_string_lossy();
    ["adapter_model.", "adapters."].iter().any(|start| stem.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_of_adapters_name_their_module() {
        for (name, wanted) in [
            ("base_model.model.l.0.q_proj.lora_A.weight", Some("base_model.model.l.0.q_proj")),
            ("l.0.q_proj.lora_B.default.weight", Some("l.0.q_proj")),
            ("l.0.q_proj.lora_a", Some("l.0.q_proj")),
            ("blk.0.attn_q.weight.lora_b", Some("blk.0.attn_q.weight")),
            ("unet.down.attn1.processor.to_q_lora.down.weight", Some("unet.down.attn1.processor")),
            ("text.q_proj.lora_linear_layer.up.weight", Some("text.q_proj")),
            ("unet.q.lora.down.weight", Some("unet.q")),
            ("lora_unet_x.hada_w1_a", Some("lora_unet_x")),
            ("lora_te1_x.alpha", Some("lora_te1_x.alpha")),
            ("model.layers.0.attn.w_lora.lora.0.weight", None),
            ("model.lora_scale.weight", None),
            ("model.layers.0.q_a_proj.weight", None),
        ] {
            assert_eq!(module(name), wanted, "{name}");
        }
    }
}
