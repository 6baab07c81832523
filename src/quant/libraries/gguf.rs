//! Weights of GGUF files.

use super::base::{BASE, bytes};
use crate::dtype::Dtype::Uint8;
use crate::quant::layout::{CodeStorage, CodeValues, Combination, Layout, Role};

/// Layout of weights in blocks, which hold their scales. The type of a tensor in a GGUF file identifies it.
pub static GGUF: Layout = Layout {
    name: "gguf",
    library: "llama.cpp: ggml",
    names: &[&[(Role::Codes, ".weight"), (Role::GlobalScale, ".scale"), (Role::Activation, ".input_scale")]],
    codes: CodeStorage { values: CodeValues::Blocks, ..bytes(&[Uint8]) },
    scale_dtypes: &[],
    global: Combination::Multiplier,
    ..BASE
};
