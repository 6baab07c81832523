//! The tensors of a folder that are no part of the language model.

use super::MetadataValue;
use std::borrow::Cow;

/// A part of a folder that llama.cpp's converter leaves out of the file of the language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OtherPart {
    /// The tower for images or sound, which llama.cpp reads from a file of its own.
    Tower,
    /// Layers that predict several tokens at once.
    Prediction,
}

/// Starts and parts of the names of towers (`ModelBase.filter_tensors` of llama.cpp's converter).
const TOWER_STARTS: &[&str] = &[
    "mlp",
    "vit.",
    "vpm.",
    "siglip2.",
    "conformer.",
    "merger.",
    "resampler.",
    "sound_encoder.",
    "sound_projection.",
    "speech_embeddings.",
];
const TOWER_PARTS: &[&str] = &[
    "visual.",
    "vision.",
    "audio.",
    "talker.",
    "vision_",
    "audio_",
    "token2wav.",
    "code2wav.",
    "projector.",
    "pre_mm_projector_norm",
    "image_newline",
    "view_seperator",
    "patch_embed",
    "patch_merger.",
    "patch_merge_mlp.",
    "model.connector.",
];
/// Starts of the names of layers that predict.
const PREDICTION_STARTS: &[&str] = &["mtp.", "model.mtp."];

/// Returns the part that a tensor belongs to besides the language model. `config` returns the value of a key.
pub(crate) fn other_part(name: &str, config: &dyn Fn(&str) -> Option<MetadataValue>) -> Option<OtherPart> {
    let starts = |all: &[&str]| all.iter().any(|start| name.starts_with(start));
    if starts(TOWER_STARTS) || TOWER_PARTS.iter().any(|part| name.contains(part)) {
        return Some(OtherPart::Tower);
    }
    let number = |key: &str| match config(key) {
        Some(MetadataValue::Integer(number)) => number,
        _ => 0,
    };
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')?.0.parse::<u64>().ok());
    let layers = number("num_hidden_layers");
    // More layers than the config has, but for those that predict, are a mistake.
    let predicting = layers..layers.saturating_add(number("num_nextn_predict_layers"));
    let is_prediction = starts(PREDICTION_STARTS) || layer.is_some_and(|layer| predicting.contains(&layer));
    is_prediction.then_some(OtherPart::Prediction)
}

/// Returns the name of a tensor in a folder of the language model alone.
pub(crate) fn language_name(name: &str) -> Cow<'_, str> {
    const PREFIX: &str = "language_model.";
    if name.contains(PREFIX) { name.replace(PREFIX, "").into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn towers_and_predicting_layers_are_other_parts() {
        let config = |key: &str| match key {
            "num_hidden_layers" => Some(MetadataValue::Integer(2)),
            "num_nextn_predict_layers" => Some(MetadataValue::Integer(1)),
            _ => None,
        };
        for (name, part) in [
            ("model.layers.1.mlp.up_proj.weight", None),
            ("model.layers.2.mlp.up_proj.weight", Some(OtherPart::Prediction)),
            ("model.layers.3.mlp.up_proj.weight", None),
            ("mtp.fc.weight", Some(OtherPart::Prediction)),
            ("model.visual.blocks.0.attn.qkv.weight", Some(OtherPart::Tower)),
            ("vision_tower.a.weight", Some(OtherPart::Tower)),
        ] {
            assert_eq!(other_part(name, &config), part, "{name}");
        }
        assert_eq!(language_name("model.language_model.norm.weight"), "model.norm.weight");
        assert_eq!(language_name("language_model.lm_head.weight"), "lm_head.weight");
    }
}
