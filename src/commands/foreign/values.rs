//! Values of other tools for schemes, layouts and types.

use super::{has_word, plain};
use crate::quant::{CodeType, Group, TargetGrid};

/// Values of other tools for values of a flag; an empty value of tcast says that a scheme needs no such flag.
const VALUES: &[(&str, &str, &[&str])] = &[
    (
        "--scheme",
        "float8 float8e4m3fn float8-e4m3fn fp8-e4m3 fp8-e4m3fn f8-e4m3 e4m3 fp8e4m3 fp8e4m3fn w8a8-fp8 qfloat8",
        &["fp8"],
    ),
    ("--scheme", "4", &["int4", "nvfp4"]),
    ("--scheme", "6", &["mxfp6"]),
    ("--scheme", "8", &["int8", "int8a16"]),
    ("--scheme", "fp8-static fp8-per-tensor", &["fp8-tensor"]),
    ("--scheme", "fp8-blockwise block-fp8 deepseek fp8-128", &["fp8-block"]),
    ("--scheme", "w8a8-int8 8bit 8-bit q8 smoothquant qint8 i8 s8 bnb-8bit", &["int8"]),
    ("--scheme", "gptq 4bit 4-bit w4 q4 qint4 i4 s4", &["int4"]),
    ("--scheme", "awq uint4 u4 quint4", &["int4-asym"]),
    ("--scheme", "fp4 float4 w4a4 fp4-e2m1 float4e2m1", &["nvfp4", "mxfp4"]),
    // The nearest number of bits of llama.cpp's schemes that need an importance matrix.
    ("--scheme", "iq2-xxs iq2-xs iq2-s iq2-m", &["q2_k_s", "q2_k"]),
    ("--scheme", "iq3-xxs iq3-xs iq3-s iq3-m", &["q3_k_s", "q3_k_m"]),
    ("--scheme", "fp16 float16 half", &["f16"]),
    ("--scheme", "bfloat16", &["bf16"]),
    ("--scheme", "fp32 float32 float", &["f32"]),
    ("--layout", "vllm sglang transformers hf hugging-face safetensors auto default", &["", "compressed-tensors"]),
    ("--layout", "llm-compressor llmcompressor ct compressed compressed-tensor neuralmagic", &["compressed-tensors"]),
    (
        "--layout",
        "tensorrt tensorrt-llm tensorrtllm trt trt-llm trtllm nvidia model-optimizer model-opt",
        &["modelopt"],
    ),
    ("--layout", "comfy comfy-ui", &["comfyui"]),
    ("--layout", "deepseek", &["huggingface"]),
    ("--layout", "gptoss openai", &["gpt-oss"]),
    ("--out-of-range", "clamp clip", &["saturate"]),
    ("--to", "fp8 float8", &["float8e4m3fn"]),
    ("--fail-on", "inf infinity", &["infinite"]),
    ("--fail-on", "overflow overflowed overflows", &["saturated,infinite", "clipped"]),
    ("--fail-on", "underflow underflows", &["flushed", "underflowed"]),
];

/// Returns the possible meanings of a value of a flag.
pub(in crate::commands) fn values(flag: &str, typed: &str) -> &'static [&'static str] {
    let typed = plain(typed);
    let row = VALUES.iter().find(|(of, words, _)| *of == flag && has_word(words, &typed));
    row.map_or(&[], |(_, _, ours)| ours)
}

/// True for the grids that have an ending.
type FitsGrid = fn(TargetGrid) -> bool;

/// Endings of the name of a scheme, and the grids that have them.
const ENDINGS: &[(&str, FitsGrid)] = &[
    ("scaled dynamic awq gptq wo weight-only", |_| true),
    ("channel channelwise per-channel row rowwise per-row", |grid| grid.group == Group::Channel),
    ("block blockwise", |grid| matches!(grid.group, Group::Block(_))),
    ("sym symmetric", |grid| !matches!(grid.codes, CodeType::Int { symmetric: false, .. })),
    ("asym asymmetric zp", |grid| matches!(grid.codes, CodeType::Int { symmetric: false, .. })),
];

/// Divides a name in lower case with hyphens into that of a scheme and what its ending says of the grid.
pub(in crate::commands) fn ending(typed: &str) -> Option<(&str, FitsGrid)> {
    let mut divided = typed.match_indices('-').map(|(at, _)| (&typed[..at], &typed[at + 1..]));
    divided.find_map(|(base, end)| match ENDINGS.iter().find(|(words, _)| has_word(words, end)) {
        Some((_, fits)) => Some((base, *fits)),
        None => group_size(typed).filter(|size| end.strip_prefix('g') == Some(*size)).map(|_| (base, ENDINGS[0].1)),
    })
}

/// Returns the size of groups in a name such as `int4-g32`.
pub(in crate::commands) fn group_size(typed: &str) -> Option<&str> {
    let (_, size) = typed.rsplit_once(['-', '_'])?;
    size.strip_prefix('g').filter(|size| size.parse::<u32>().is_ok())
}

/// Returns the scheme of MLX for a number of bits: `affine4` for `affine`, and for `4`, `4bit` and `q4` if the layout is
/// MLX's.
pub(in crate::commands) fn affine(typed: &str, is_mlx: bool) -> Option<String> {
    let (bits, letters): (String, String) = plain(typed).replace('-', "").chars().partition(char::is_ascii_digit);
    let is_width = letters == "affine" || is_mlx && ["", "b", "bit", "bits", "int", "q", "w"].contains(&&*letters);
    match &*bits {
        "" => (letters == "affine").then(|| "affine4".to_owned()),
        bits => is_width.then(|| format!("affine{bits}")),
    }
}

/// Returns the scheme of GGUF files for a number of bits, as `q4` and `8bit`.
pub(in crate::commands) fn blocks(typed: &str) -> Option<&'static str> {
    const SCHEMES: [(&str, &str); 6] =
        [("2", "q2_k"), ("3", "q3_k_m"), ("4", "q4_k_m"), ("5", "q5_k_m"), ("6", "q6_k"), ("8", "q8_0")];
    let (bits, letters): (String, String) = plain(typed).replace('-', "").chars().partition(char::is_ascii_digit);
    let is_width = ["", "b", "bit", "bits", "int", "q"].contains(&&*letters);
    SCHEMES.iter().find(|(width, _)| is_width && *width == bits).map(|(_, scheme)| *scheme)
}

/// True if the target of a rule, in lower case with hyphens, means that weights are not quantized.
pub(in crate::commands) fn means_keep(target: &str) -> bool {
    const WORDS: &str = "none null no false off skip ignore original unquantized copy same full fp16 float16 half bfloat16 \
                         fp32 float32 float";
    has_word(WORDS, target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::Command;

    #[test]
    fn every_value_of_the_tables_is_one_of_its_flag() {
        let command = cli::command();
        for (flag, _, ours) in VALUES {
            let arg = |subcommand: &Command| {
                subcommand.get_arguments().find(|arg| arg.get_long() == flag.strip_prefix("--")).cloned()
            };
            let known: Vec<_> =
                command.get_subcommands().filter_map(arg).flat_map(|arg| arg.get_possible_values()).collect();
            for value in ours.iter().flat_map(|value| value.split(',')).filter(|value| !value.is_empty()) {
                let is_known = known.iter().any(|known| known.matches(value, true));
                assert!(is_known || value.parse::<crate::dtype::Dtype>().is_ok(), "{flag} {value}");
            }
        }
    }
}
