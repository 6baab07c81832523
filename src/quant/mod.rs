//! Quantized weights: how libraries store them, and the values that they represent.
//!
//! A quantized weight is stored as several tensors, its *parts*: codes, the scales that codes are multiplied by, and
//! sometimes a global scale, zero points or tables. A [`Layout`], a row in a file of `libraries`, describes how one
//! library stores and computes them. Four folders use it:
//!
//! * `recognize` finds the weights of a checkpoint, by the names of tensors, configs and shapes ([`probe`]);
//! * `decode` turns parts into values ([`Decoder`]);
//! * `encode` turns values into parts, in a [`Scheme`] that the user chooses ([`Encoder`]);
//! * `transcode` moves codes and scales to another layout if no value changes ([`Transcoder`]), and in ONNX models to
//!   the transpose ([`Transposer`]).
//!
//! `libraries` has a file for each library: its layouts, and its config, which is made of the parts in `config`. No other
//! folder knows a library. [`gguf`] chooses the types of the tensors in a GGUF file. The steps of decoding:
//!
//! 1. [`Decoder::new`] takes the layout, the parameters from its config ([`Parameters`]) and the [`Part`]s from the
//!    headers, and checks all shapes and dtypes against each other.
//! 2. [`Decoder::decode`] converts the stored bytes of the parts to any range of rows of the weight. It is a pure
//!    function: the rows of a weight are the same however they are split among calls, threads and machines.
//!
//! The weight has the orientation that its model needs, [out, in] for a linear layer: layouts that store the transpose
//! (GPTQ, AWQ) or whose library returns it (gpt-oss) are transposed.

#![allow(
    clippy::float_cmp,
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    reason = "a loop vectorises when all of it is inlined and without branches; equality of floats is meant exactly"
)]

mod config;
mod decode;
mod encode;
pub mod gguf;
mod in_memory;
mod layout;
mod libraries;
mod parts;
mod recognize;
mod rotation;
mod rules;
mod scheme;
mod transcode;

pub use config::{EngineConfig, KeptModules, Modules, QuantizedGroup, is_composite};
pub use decode::{Arithmetic, CodeKind, DecodeTally, Decoder, Explanation, Grid, Occurrences};
pub use encode::{
    BlockWeightEncoder, EncodeArithmetic, EncodeOptions, EncodeTally, EncodedPart, Encoder, Extremes, PlainWeight,
    Recoverer, ScaleChoice, ScaleMatch, SharedScale, Unfit, WeightEncoder,
};
pub(crate) use encode::{Dither, Neighbours, count_special};
pub use in_memory::{EncodedTensor, EncodedWeight, StoredPart, WeightElement};
pub use layout::{
    CodeNodes, CodeStorage, CodeValues, Combination, Exponents, Group, Layout, Names, Packing, Precision, Role,
    RotationUse, ScaleOrder, Zeros, codes_in_words,
};
pub use libraries::{
    COMFYUI, COMPRESSED_TENSORS, GATHER, GGUF, MATMUL_NBITS, MATMUL_NBITS_SCALED, MATMULNBITS, MLX, ONNX, SCHEMES,
    SIGNED_GATHER, comfy_metadata_of, config_of, default_target, find, hf_quant_config_of, layouts, metadata_of,
    named_dtype, quantize_config_of,
};
pub use parts::{BlockParameters, LinearAxis, Parameters, Part};
pub use recognize::{
    CheckpointInfo, FoundWeight, Problem, Recognized, StoredTensor, can_be_part, check_renamed, described,
    is_activation_scale, is_named_as_part, may_be_quantized, probe, scale_names,
};
pub(crate) use recognize::{contradictions, decoded_name};
pub use rotation::Rotation;
pub use rules::{
    Apply, Away, Divide, Encoding, Extreme, GlobalScale, Integers, Least, Power, ScaleRule, ScaleShape, SignRule, Ties,
};
pub use scheme::{CodeType, Scheme, SchemeLayout, TargetGrid};
pub use transcode::{Fidelity, RowMap, SharedTables, Transcoder, TransposeObstacle, Transposer};
