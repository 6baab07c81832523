//! The libraries whose configs tcast reads, by the names in `quant_method`.

/// Whose description of quantized weights a config has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuantMethod {
    /// transformers and `DeepSeek`.
    FineGrained,
    CompressedTensors,
    /// gpt-oss.
    Mxfp4,
    Gptq,
    Awq,
    AutoRound,
    BitsAndBytes,
    Quanto,
    ModelOpt,
}

impl QuantMethod {
    /// The method of this name, which is in lower case; `None` if tcast does not decode its weights.
    pub(super) fn find(name: &str) -> Option<Self> {
        Some(match name {
            "fp8" | "mxfp8" => Self::FineGrained,
            "compressed-tensors" | "compressed_tensors" => Self::CompressedTensors,
            "mxfp4" => Self::Mxfp4,
            "gptq" => Self::Gptq,
            "awq" => Self::Awq,
            "auto-round" | "intel/auto-round" => Self::AutoRound,
            "bitsandbytes" => Self::BitsAndBytes,
            "quanto" => Self::Quanto,
            name if name.starts_with("modelopt") => Self::ModelOpt,
            _ => return None,
        })
    }

    /// The keys of lists of modules that are not quantized.
    pub(super) fn ignored_keys(self) -> &'static [&'static str] {
        match self {
            Self::FineGrained | Self::Mxfp4 | Self::Awq | Self::Quanto => &["modules_to_not_convert", "ignored_layers"],
            Self::CompressedTensors => &["ignore"],
            Self::BitsAndBytes => &["llm_int8_skip_modules"],
            Self::ModelOpt => &["ignore", "exclude_modules"],
            Self::Gptq | Self::AutoRound => &[], // `dynamic` and `extra_config` say more than a list
        }
    }
}
