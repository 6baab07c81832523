#![allow(clippy::unnecessary_wraps, reason = "the functions of all libraries have the same types")]
//! The libraries and formats whose weights tcast decodes: a file for each, with its layouts and its config.
//!
//! A new layout is a row in the file of its library, which names only the fields that differ from the base of the rows. If
//! the fields cannot express it, it adds a variant of [`Packing`](super::Packing), [`ScaleOrder`](super::ScaleOrder),
//! [`Exponents`](super::Exponents) or [`Zeros`](super::Zeros), with one small function. A new library is a file and an
//! entry of [`LIBRARIES`]. [`schemes`] lists what users can choose, and [`undecoded`] the methods that tcast only recognizes.
//!
//! The rules follow compressed-tensors 0.20.0, transformers 5.23.0, nvidia-modelopt 0.47.0, comfy-kitchen 0.2.40, torchao
//! 0.18.0, amd-quark 0.13, SDNQ 0.2.8 and the CPU backend of MLX 0.32.4, and were compared with these libraries byte for byte. The
//! rules of optimum-quanto 0.2.7, `AutoGPTQ`, `AutoAWQ` and bitsandbytes come from their source code.

mod base;
mod bitsandbytes;
mod comfy;
mod compressed_tensors;
mod decoded;
mod gemma;
mod gguf;
mod gpt_oss;
mod gptq;
mod mlx;
mod modelopt;
mod onnx;
mod quanto;
mod quark;
mod schemes;
mod sdnq;
mod torchao;
mod transformers;
mod undecoded;

pub use comfy::comfy_metadata_of;
pub use decoded::{config_of, default_target, metadata_of, named_dtype, quantize_config_of};
pub use gguf::GGUF;
pub use modelopt::hf_quant_config_of;
pub use onnx::{GATHER, MATMUL_NBITS, MATMUL_NBITS_SCALED, ONNX, SIGNED_GATHER};
pub use schemes::{COMFYUI, COMPRESSED_TENSORS, MATMULNBITS, MLX, SCHEMES};

pub(super) use bitsandbytes::quant_state;
pub(super) use comfy::LayerDescriptions;
pub(super) use torchao::TensorDescriptions;
pub(super) use undecoded::{check_decoded, may_be_undecoded, undecoded_method};

use super::config::{ConfigObject, EngineConfig, KeptModules, Library, QuantizedGroup};
use super::layout::{Layout, is_same};
use crate::error::Result;

/// The libraries whose layouts names and configs show, in the order of documentation.
static LIBRARIES: &[&Library] = &[
    &transformers::LIBRARY,
    &compressed_tensors::LIBRARY,
    &modelopt::LIBRARY,
    &comfy::LIBRARY,
    &gpt_oss::LIBRARY,
    &gptq::GPTQ,
    &gptq::AWQ,
    &gptq::AUTO_ROUND,
    &bitsandbytes::LIBRARY,
    &quanto::LIBRARY,
    &gemma::LIBRARY,
    &sdnq::LIBRARY,
    &torchao::LIBRARY,
    &quark::LIBRARY,
    &mlx::LIBRARY,
];

/// Returns the layouts of checkpoints: all but those of ONNX models and GGUF files.
pub fn layouts() -> impl Iterator<Item = &'static Layout> + Clone {
    LIBRARIES.iter().flat_map(|library| library.layouts)
}

/// Returns the layout of this name.
pub const fn find(name: &str) -> Option<&'static Layout> {
    let mut library = 0;
    while library < LIBRARIES.len() {
        let layouts = LIBRARIES[library].layouts;
        let mut at = 0;
        while at < layouts.len() {
            if is_same(layouts[at].name, name) {
                return Some(&layouts[at]);
            }
            at += 1;
        }
        library += 1;
    }
    if is_same(ONNX.name, name) {
        return Some(&ONNX);
    }
    if is_same(GGUF.name, name) { Some(&GGUF) } else { None }
}

/// Finds the library with this name in configs, in lower case; `None` if tcast does not decode its weights.
pub(super) fn library_of(name: &str) -> Option<&'static Library> {
    let name = if name.starts_with("modelopt") { "modelopt" } else { name };
    LIBRARIES.iter().copied().find(|library| library.names.contains(&name))
}

/// Returns the library that a block without `quant_method` is of. `is_older` is true for `quantize_config.json`.
pub(super) fn implied_library(block: &ConfigObject, is_older: bool) -> Result<Option<&'static Library>> {
    Ok(Some(if block.has("quant_algo") || block.has("quantized_layers") {
        &modelopt::LIBRARY
    } else if block.has("config_groups") {
        &compressed_tensors::LIBRARY
    } else if block.is_true("load_in_4bit")? || block.is_true("load_in_8bit")? {
        &bitsandbytes::LIBRARY
    } else if block.has("zero_point") || block.has("w_bit") {
        &gptq::AWQ
    } else if is_older {
        &gptq::GPTQ
    } else if block.has("group_size") && block.has("bits") && !block.has("desc_act") {
        &mlx::LIBRARY
    } else {
        return Ok(None);
    }))
}

impl EngineConfig {
    /// Describes groups whose layouts all belong to the same library. Fails if the config of that library cannot
    /// describe several groups.
    pub fn new(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<Self> {
        let layout = groups.first().expect("something is quantized").layout;
        let library = LIBRARIES.iter().find(|library| library.layouts.contains(layout));
        library.and_then(|library| library.write).map_or_else(|| Ok(Self::default()), |write| write(groups, kept))
    }
}
