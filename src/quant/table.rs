//! The table of layouts.
//!
//! A new layout is a new row. If the fields cannot express it, it adds a variant of [`Packing`], [`ScaleOrder`],
//! [`Exponents`] or [`Zeros`], with one small function.
//!
//! The rules follow compressed-tensors 0.20.0, transformers 5.23.0, nvidia-modelopt 0.47.0, comfy-kitchen 0.2.40, torchao
//! 0.18.0, amd-quark 0.13 and the CPU backend of MLX 0.32.4, and were compared with these libraries byte for byte. The
//! rules of `ComfyUI`'s int8, optimum-quanto 0.2.7, `AutoGPTQ`, `AutoAWQ` and bitsandbytes come from their source code.

use super::layout::{
    CodeStorage, CodeValues, Combination, Exponents, Group, GroupKind, Groups, Layout, Packing, Precision, Role,
    ScaleOrder, Zeros,
};
use super::method::QuantMethod;
use super::rules::{Encoding, ScaleRule, ScaleShape, SignRule, Ties};
use crate::dtype::Dtype::{
    self, Bfloat16, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ, Float8E8M0,
    Float16, Float32, Int2, Int4, Int8, Int16, Int32, Uint2, Uint4, Uint8, Uint16, Uint32,
};

/// Returns the layout of this name.
pub const fn find(name: &str) -> Option<&'static Layout> {
    let mut at = 0;
    while at < LAYOUTS.len() {
        if is_same(LAYOUTS[at].name, name) {
            return Some(&LAYOUTS[at]);
        }
        at += 1;
    }
    if is_same(ONNX.name, name) {
        return Some(&ONNX);
    }
    if is_same(GGUF.name, name) { Some(&GGUF) } else { None }
}

/// Compares texts in a constant, where `==` does not work yet.
pub(super) const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

const FLOATS: &[Dtype] = &[Float32, Bfloat16, Float16];
const EXPONENTS: &[Dtype] = &[Uint8, Float8E8M0];

/// Storage of codes as numbers of the tensor's dtype.
const fn bytes(dtypes: &'static [Dtype]) -> CodeStorage {
    CodeStorage { values: CodeValues::Stored, packing: Packing::Rows(1), dtypes, padding: 1 }
}

/// Storage of unsigned codes, packed into words of 32 bits.
const fn words(packing: Packing) -> CodeStorage {
    CodeStorage { values: CodeValues::Unsigned, packing, dtypes: &[Int32], padding: 1 }
}

/// Pairs of E2M1, the low four bits first.
const NIBBLES: CodeStorage = CodeStorage {
    values: CodeValues::Float(Float4E2M1),
    packing: Packing::Rows(1),
    dtypes: &[Uint8, Int8, Float4E2M1],
    padding: 1,
};

/// The base of most rows, which differ from it in only a few fields: float8 with float32 products.
const BASE: Layout = Layout {
    name: "",
    library: "",
    tensor_classes: &[],
    method: QuantMethod::Onnx,
    formats: &[],
    needs_config: false,
    names: &[],
    codes: bytes(&[Float8E4M3FN]),
    groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Channel, GroupKind::Neighbours, GroupKind::Block]),
    scale_dtypes: FLOATS,
    exponents: Exponents::Infinity,
    scale_order: ScaleOrder::Rows,
    global: Combination::Nothing,
    zeros: Zeros::None,
    scale_precision: Precision::Float32,
    product_precision: Precision::Float32,
    encoding: None,
    needs: None,
    shares_names: false,
    partial_groups: false,
    kept_scales: None,
    is_in_graph: false,
    stacks_experts: false,
    interleaves_experts: false,
    mark: "pt",
};

/// Encoding that keeps the sign of zero and rounds ties to even.
const fn encoding(scale: ScaleRule, scale_shape: ScaleShape) -> Encoding {
    Encoding { scale, sign: SignRule::Kept, ties: Ties::Even, scale_shape }
}

/// Like [`encoding`], but -0 becomes 0.
const fn unsigned_zero(scale: ScaleRule, scale_shape: ScaleShape) -> Encoding {
    Encoding { sign: SignRule::Negative, ..encoding(scale, scale_shape) }
}

/// The encoding of MLX to float4, which takes the first of the nearest codes.
const fn nearest_float4(scale: ScaleRule) -> Encoding {
    Encoding { sign: SignRule::Nonzero, ties: Ties::TowardZero, ..encoding(scale, ScaleShape::Matrix) }
}

const COMPRESSED_TENSORS: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::Activation, ".input_scale"),
    (Role::Activation, ".input_zero_point"),
];

const COMPRESSED_TENSORS_PACKED: &[(Role, &str)] = &[
    (Role::Codes, ".weight_packed"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::GroupIndex, ".weight_g_idx"),
    (Role::Shape, ".weight_shape"),
    (Role::GlobalScale, ".weight_global_scale"),
    (Role::Activation, ".input_global_scale"),
];

const MODELOPT: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::GlobalScale, ".weight_scale_2"),
    (Role::Activation, ".input_scale"),
];

const COMFY: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::GlobalScale, ".weight_scale_2"),
    (Role::Description, ".comfy_quant"),
    (Role::Activation, ".input_scale"),
];

const TORCHAO: &[(Role, &str)] = &[
    (Role::Codes, "_qdata"),
    (Role::Scale, "_scale"),
    (Role::ZeroPoint, "_zero_point"),
    (Role::Activation, "_act_quant_scale"),
    (Role::Activation, "_act_quant_zero_point"),
];

const QUARK: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::Activation, ".input_scale"),
    (Role::Activation, ".input_zero_point"),
    (Role::Activation, ".output_scale"),
    (Role::Activation, ".output_zero_point"),
];

/// A layout of compressed-tensors whose codes are packed.
const PACKED: Layout = Layout { method: QuantMethod::CompressedTensors, names: &[COMPRESSED_TENSORS_PACKED], ..BASE };

/// A layout of compressed-tensors whose codes are numbers.
const PLAIN: Layout = Layout { names: &[COMPRESSED_TENSORS], ..PACKED };

/// A layout of transformers and `DeepSeek`, which have partial blocks at the edges. Both read scales of two types.
const FINE_GRAINED: Layout = Layout {
    method: QuantMethod::FineGrained,
    shares_names: true,
    partial_groups: true,
    kept_scales: Some(Bfloat16),
    ..BASE
};

const OF_QUARK: Layout = Layout { method: QuantMethod::Quark, names: &[QUARK], shares_names: true, ..BASE };

const OF_MODELOPT: Layout = Layout { method: QuantMethod::ModelOpt, names: &[MODELOPT], ..BASE };

const OF_COMFY: Layout = Layout { method: QuantMethod::ComfyUi, names: &[COMFY], ..BASE };

const MLX: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".scales"),
    (Role::Offset, ".biases"), // not the bias of the layer, which is `.bias`
    (Role::GlobalScale, ".global_scale"),
];

/// A layout of MLX for floats, whose rows are streams of bits in words.
const MLX_FLOATS: Layout = Layout {
    method: QuantMethod::Mlx,
    names: &[MLX],
    codes: CodeStorage { packing: Packing::Rows(4), dtypes: &[Uint32], ..NIBBLES },
    groups: Groups::Fixed(Group::Neighbours(32)),
    scale_dtypes: &[Uint8],
    stacks_experts: true,
    mark: "mlx",
    ..BASE
};

/// transformers `integrations/mxfp4.py`, `convert_moe_packed_tensors`
const GPT_OSS: Layout = Layout {
    name: "gptoss-mxfp4",
    library: "gpt-oss, quant_method mxfp4",
    method: QuantMethod::GptOss,
    names: &[&[(Role::Codes, "_blocks"), (Role::Scale, "_scales")]],
    codes: CodeStorage { packing: Packing::TransposedBlocks, dtypes: &[Uint8], ..NIBBLES },
    groups: Groups::Fixed(Group::Block([32, 1])),
    scale_dtypes: EXPONENTS,
    exponents: Exponents::Ldexp,
    scale_order: ScaleOrder::Transposed,
    encoding: Some(encoding(ScaleRule::Floor, ScaleShape::Mixed)),
    interleaves_experts: true,
    ..BASE
};

/// Layout of ONNX initializers that a `DequantizeLinear` node decodes. The graph identifies them; their names do not.
pub static ONNX: Layout = Layout {
    name: "onnx",
    library: "ONNX: DequantizeLinear",
    names: &[&[(Role::Codes, ""), (Role::Scale, "_scale"), (Role::ZeroPoint, "_zero_point")]],
    codes: CodeStorage {
        values: CodeValues::Stored,
        packing: Packing::Stream,
        dtypes: &[
            Int8,
            Uint8,
            Int4,
            Uint4,
            Int2,
            Uint2,
            Int16,
            Uint16,
            Int32,
            Float8E4M3FN,
            Float8E4M3FNUZ,
            Float8E5M2,
            Float8E5M2FNUZ,
            Float4E2M1,
        ],
        padding: 1,
    },
    zeros: Zeros::Stream,
    product_precision: Precision::Scale,
    encoding: Some(encoding(ScaleRule::Linear, ScaleShape::Matrix)),
    is_in_graph: true,
    ..BASE
};

/// Layout of weights in blocks, which hold their scales. The type of a tensor in a GGUF file identifies it.
pub static GGUF: Layout = Layout {
    name: "gguf",
    library: "llama.cpp: ggml",
    method: QuantMethod::Gguf,
    names: &[&[(Role::Codes, ".weight"), (Role::GlobalScale, ".scale"), (Role::Activation, ".input_scale")]],
    codes: CodeStorage { values: CodeValues::Blocks, ..bytes(&[Uint8]) },
    scale_dtypes: &[],
    global: Combination::Multiplier,
    ..BASE
};

/// Layout of gpt-oss weights as stored, without transposing them: [.., out, in], as in other layouts.
pub(super) const GPT_OSS_ROWS: Layout = Layout {
    codes: CodeStorage { packing: Packing::Rows(16), ..GPT_OSS.codes },
    groups: Groups::Fixed(Group::Neighbours(32)),
    scale_order: ScaleOrder::Rows,
    encoding: None,
    ..GPT_OSS
};

pub static LAYOUTS: &[Layout] = &[
    // transformers `integrations/finegrained_fp8.py`; DeepSeek-V3 `inference/fp8_cast_bf16.py`, which has partial blocks.
    Layout {
        name: "hf-fp8",
        library: "transformers and DeepSeek, quant_method fp8 or mxfp8",
        formats: &["fp8", "mxfp8"],
        names: &[
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale_inv"), (Role::Activation, ".activation_scale")],
            &[(Role::Codes, ""), (Role::Scale, "_scale_inv"), (Role::Activation, "_activation_scale")], // 3-D experts
            &[(Role::Codes, ""), (Role::Scale, "_scales_inv")],
            &[(Role::Codes, ".weight"), (Role::Scale, ".scale")], // DeepSeek-V4
            &[(Role::Codes, ".weight"), (Role::Scale, ".qscale_weight"), (Role::Activation, ".qscale_act")], // Mistral
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale"), (Role::Activation, ".input_scale")], // vLLM
        ],
        groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Block]),
        scale_dtypes: &[Float32, Bfloat16, Float16, Float8E8M0, Uint8],
        exponents: Exponents::ByDtype,
        encoding: Some(encoding(ScaleRule::Reciprocal, ScaleShape::Matrix)),
        ..FINE_GRAINED
    },
    Layout {
        name: "hf-fp4",
        library: "DeepSeek-V4, expert_dtype fp4",
        formats: &["fp4"],
        names: &[
            &[(Role::Codes, ".weight"), (Role::Scale, ".scale")],
            &[(Role::Codes, ".weight"), (Role::Scale, ".weight_scale_inv")],
        ],
        codes: NIBBLES,
        // transformers derives the size of a group from the shape of the scales.
        groups: Groups::Any(&[GroupKind::Neighbours]),
        scale_dtypes: EXPONENTS,
        exponents: Exponents::ByDtype,
        ..FINE_GRAINED
    },
    // compressed-tensors `quantization/lifecycle/forward_helpers.py`: (codes - zero point) * scale, in the scale's dtype.
    // `oneshot` of llm-compressor adds a zero point of 0 to all quotients, so that -0 becomes 0; `model_free_ptq` does not.
    Layout {
        name: "ct-fp8",
        library: "compressed-tensors, format float-quantized or naive-quantized",
        formats: &["float-quantized", "naive-quantized"],
        zeros: Zeros::Plain,
        product_precision: Precision::Scale,
        encoding: Some(unsigned_zero(ScaleRule::Epsilon, ScaleShape::Matrix)),
        ..PLAIN
    },
    Layout {
        name: "ct-int8",
        library: "compressed-tensors, format int-quantized or naive-quantized",
        formats: &["int-quantized", "naive-quantized"],
        needs_config: true,
        codes: bytes(&[Int8]),
        zeros: Zeros::Plain,
        product_precision: Precision::Scale,
        encoding: Some(encoding(ScaleRule::Epsilon, ScaleShape::Matrix)),
        ..PLAIN
    },
    // `compressors/pack_quantized/`
    Layout {
        name: "ct-pack",
        library: "compressed-tensors, format pack-quantized",
        formats: &["pack-quantized"],
        needs_config: true,
        codes: words(Packing::Rows(4)),
        zeros: Zeros::PackedDown,
        product_precision: Precision::Scale,
        encoding: Some(encoding(ScaleRule::Epsilon, ScaleShape::Matrix)),
        needs: Some(Role::Shape),
        ..PACKED
    },
    // `compressors/nvfp4/`: the product is bfloat16 for every target.
    Layout {
        name: "ct-nvfp4",
        library: "compressed-tensors, format nvfp4-pack-quantized",
        formats: &["nvfp4-pack-quantized"],
        codes: NIBBLES,
        groups: Groups::Fixed(Group::Neighbours(16)),
        scale_dtypes: &[Float8E4M3FN],
        global: Combination::Divisor,
        product_precision: Precision::Bfloat16,
        encoding: Some(unsigned_zero(ScaleRule::GlobalDivisor, ScaleShape::Matrix)),
        ..PACKED
    },
    Layout {
        name: "ct-mxfp4",
        library: "compressed-tensors, format mxfp4-pack-quantized",
        formats: &["mxfp4-pack-quantized"],
        codes: NIBBLES,
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        product_precision: Precision::Bfloat16,
        encoding: Some(unsigned_zero(ScaleRule::HalfStep, ScaleShape::Matrix)),
        ..PACKED
    },
    Layout {
        name: "ct-mxfp6",
        library: "compressed-tensors, format mxfp6-pack-quantized",
        formats: &["mxfp6-pack-quantized"],
        codes: CodeStorage { values: CodeValues::Float(Float6E2M3), ..bytes(&[Uint8]) },
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        product_precision: Precision::Bfloat16,
        encoding: Some(encoding(ScaleRule::HalfStep, ScaleShape::Matrix)),
        ..PACKED
    },
    Layout {
        name: "ct-mxfp8",
        library: "compressed-tensors, format mxfp8-quantized",
        formats: &["mxfp8-quantized"],
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        product_precision: Precision::Bfloat16,
        encoding: Some(unsigned_zero(ScaleRule::HalfStep, ScaleShape::Matrix)),
        ..PLAIN
    },
    // modelopt `torch/quantization/qtensor/fp8_tensor.py`: codes and scales become the target's type first.
    Layout {
        name: "modelopt-fp8",
        library: "ModelOpt, quant_algo FP8, FP8_PER_CHANNEL_PER_TOKEN or FP8_PB_WO",
        formats: &["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"],
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule::Bounded, ScaleShape::Squeezed)),
        ..OF_MODELOPT
    },
    // `nvfp4_tensor.py`
    Layout {
        name: "modelopt-nvfp4",
        library: "ModelOpt, quant_algo NVFP4 or W4A16_NVFP4",
        formats: &["W4A16_NVFP4", "NVFP4", "W4A8_NVFP4_FP8"],
        codes: CodeStorage { values: CodeValues::FloatWithoutNegativeZero(Float4E2M1), ..NIBBLES },
        groups: Groups::Fixed(Group::Neighbours(16)),
        scale_dtypes: &[Float8E4M3FN],
        global: Combination::Multiplier,
        encoding: Some(unsigned_zero(ScaleRule::GlobalMultiplier, ScaleShape::Squeezed)),
        ..OF_MODELOPT
    },
    // `mxfp4_tensor.py`, `mxfp8_tensor.py`
    Layout {
        name: "modelopt-mxfp4",
        library: "ModelOpt, quant_algo mxfp4",
        formats: &["mxfp4", "W4A8_MXFP4_FP8", "W4A16_MXFP4"],
        codes: NIBBLES,
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        encoding: Some(Encoding {
            sign: SignRule::NotPositive,
            ties: Ties::TowardZero,
            ..encoding(ScaleRule::Ceiling, ScaleShape::Squeezed)
        }),
        ..OF_MODELOPT
    },
    Layout {
        name: "modelopt-mxfp8",
        library: "ModelOpt, quant_algo MXFP8",
        formats: &["MXFP8"],
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        encoding: Some(encoding(ScaleRule::Ceiling, ScaleShape::Squeezed)),
        ..OF_MODELOPT
    },
    // comfy-kitchen `backends/eager/quantization.py`
    Layout {
        name: "comfy-fp8",
        library: "ComfyUI, format float8_e4m3fn or float8_e5m2",
        formats: &["float8_e4m3fn", "float8_e5m2"],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        groups: Groups::Fixed(Group::Tensor),
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule::Inverse, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    Layout {
        name: "comfy-scaled-fp8",
        library: "ComfyUI, files with a tensor scaled_fp8",
        names: &[&[(Role::Codes, ".weight"), (Role::Scale, ".scale_weight"), (Role::Activation, ".scale_input")]],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        groups: Groups::Fixed(Group::Tensor),
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule::Inverse, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    // `dequantize_int8_simple` and, with a rotation, `dequantize_int8_convrot_weight`.
    Layout {
        name: "comfy-int8",
        library: "ComfyUI, format int8_tensorwise",
        formats: &["int8_tensorwise"],
        codes: bytes(&[Int8]),
        groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Channel]),
        encoding: Some(encoding(ScaleRule::Plain, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    Layout {
        name: "comfy-nvfp4",
        library: "ComfyUI, format nvfp4",
        formats: &["nvfp4"],
        codes: CodeStorage { packing: Packing::RowsHighFirst, dtypes: &[Uint8], padding: 16, ..NIBBLES },
        groups: Groups::Fixed(Group::Neighbours(16)),
        scale_dtypes: &[Float8E4M3FN, Uint8],
        scale_order: ScaleOrder::Swizzled,
        global: Combination::Multiplier,
        scale_precision: Precision::Target,
        product_precision: Precision::Target,
        encoding: Some(encoding(ScaleRule::GlobalPadded, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    Layout {
        name: "comfy-mxfp8",
        library: "ComfyUI, format mxfp8",
        formats: &["mxfp8"],
        codes: CodeStorage { padding: 32, ..bytes(&[Float8E4M3FN]) },
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        exponents: Exponents::Zero,
        scale_order: ScaleOrder::Swizzled,
        encoding: Some(encoding(ScaleRule::CeilingOrZero, ScaleShape::Mixed)),
        ..OF_COMFY
    },
    GPT_OSS,
    // gpt-oss `gpt_oss/torch/weights.py`, `_get_mxfp4_tensor`
    Layout {
        name: "gptoss-openai",
        library: "gpt-oss with the names of OpenAI, which are not transposed",
        names: &[&[(Role::Codes, ".blocks"), (Role::Scale, ".scales")]],
        ..GPT_OSS_ROWS
    },
    // AutoGPTQ `qlinear_cuda_old.py`, GPTQModel `dequantize_weight`: scale * (code - zero), in the scale's dtype.
    Layout {
        name: "gptq",
        library: "GPTQ, quant_method gptq, checkpoint_format gptq or gptq_v2",
        method: QuantMethod::Gptq,
        needs_config: true,
        names: &[&[
            (Role::Codes, ".qweight"),
            (Role::Scale, ".scales"),
            (Role::ZeroPoint, ".qzeros"),
            (Role::GroupIndex, ".g_idx"),
        ]],
        codes: words(Packing::TransposedWords),
        groups: Groups::Any(&[GroupKind::Channel, GroupKind::Neighbours]),
        scale_order: ScaleOrder::Transposed,
        zeros: Zeros::PackedTransposed,
        product_precision: Precision::Scale,
        ..BASE
    },
    // AutoAWQ `awq/utils/packing_utils.py`, `dequantize_gemm`
    Layout {
        name: "awq",
        library: "AWQ, quant_method awq, version gemm",
        method: QuantMethod::Awq,
        needs_config: true,
        names: &[&[(Role::Codes, ".qweight"), (Role::Scale, ".scales"), (Role::ZeroPoint, ".qzeros")]],
        codes: words(Packing::AwqWords),
        groups: Groups::Any(&[GroupKind::Channel, GroupKind::Neighbours]),
        scale_order: ScaleOrder::Transposed,
        zeros: Zeros::Awq,
        product_precision: Precision::Scale,
        ..BASE
    },
    // bitsandbytes `functional.py`, `dequantize_4bit` and `int8_vectorwise_dequant`
    Layout {
        name: "bnb-4bit",
        library: "bitsandbytes, load_in_4bit, quant_type nf4 or fp4",
        method: QuantMethod::BitsAndBytes,
        formats: &["load_in_4bit"],
        names: &[&[
            (Role::Codes, ".weight"),
            (Role::Scale, ".weight.absmax"),
            (Role::CodeMap, ".weight.quant_map"),
            (Role::NestedScale, ".weight.nested_absmax"),
            (Role::NestedMap, ".weight.nested_quant_map"),
            (Role::Description, ".weight.quant_state.bitsandbytes__nf4"),
            (Role::Description, ".weight.quant_state.bitsandbytes__fp4"),
        ]],
        codes: CodeStorage {
            values: CodeValues::Map,
            packing: Packing::Flat,
            dtypes: &[Uint8, Int8, Bfloat16, Float16, Float32], // set by `bnb_4bit_quant_storage`; read as bytes
            padding: 1,
        },
        groups: Groups::Any(&[GroupKind::Neighbours]),
        scale_dtypes: &[Float32, Uint8],
        scale_order: ScaleOrder::Flat,
        product_precision: Precision::Weight,
        needs: Some(Role::Description),
        ..BASE
    },
    Layout {
        name: "bnb-int8",
        library: "bitsandbytes, load_in_8bit",
        method: QuantMethod::BitsAndBytes,
        formats: &["load_in_8bit"],
        names: &[&[(Role::Codes, ".weight"), (Role::Scale, ".SCB"), (Role::Description, ".weight_format")]],
        codes: bytes(&[Int8]),
        groups: Groups::Fixed(Group::Channel),
        scale_dtypes: &[Float32],
        global: Combination::Over127,
        ..BASE
    },
    // optimum-quanto `tensor/qbytes.py`: weights of 8 bits; weights of 2 and 4 bits have another form.
    Layout {
        name: "quanto",
        library: "quanto, weights qint8 or qfloat8",
        method: QuantMethod::Quanto,
        names: &[&[
            (Role::Codes, ".weight._data"),
            (Role::Scale, ".weight._scale"),
            (Role::Activation, ".input_scale"),
            (Role::Activation, ".output_scale"),
        ]],
        codes: bytes(&[Int8, Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2]),
        groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Channel]),
        product_precision: Precision::Scale,
        ..BASE
    },
    // torchao `quantization/quant_primitives.py`, `_dequantize_affine_no_dtype_check` and `_dequantize_affine_float8`.
    // The product of two types is of float32; of two numbers of bfloat16 or float16, it has that type, which is the
    // target's.
    Layout {
        name: "torchao-int8",
        library: "torchao, Int8Tensor or IntxUnpackedToInt8Tensor",
        tensor_classes: &["Int8Tensor", "IntxUnpackedToInt8Tensor"],
        method: QuantMethod::TorchAo,
        formats: &[
            "Int8WeightOnlyConfig",
            "Int8DynamicActivationInt8WeightConfig",
            "Int8StaticActivationInt8WeightConfig",
            "IntxWeightOnlyConfig",
            "Int8DynamicActivationIntxWeightConfig",
        ],
        names: &[TORCHAO],
        codes: bytes(&[Int8]),
        zeros: Zeros::Plain,
        ..BASE
    },
    Layout {
        name: "torchao-fp8",
        library: "torchao, Float8Tensor",
        tensor_classes: &["Float8Tensor"],
        method: QuantMethod::TorchAo,
        formats: &["Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig"],
        names: &[TORCHAO],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        ..BASE
    },
    // quark `torch/kernel/hw_emulation/hw_emulation_interface.py`, `dequantize_fp8`, `dequantize_int` and
    // `dequantize_fp4_fp6_per_group`. Exponents become numbers of the target's type.
    Layout {
        name: "quark-fp8",
        library: "AMD Quark, dtype fp8_e4m3 or fp8_e5m2",
        formats: &["fp8_e4m3", "fp8_e5m2"],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Channel, GroupKind::Block]),
        ..OF_QUARK
    },
    Layout {
        name: "quark-int8",
        library: "AMD Quark, dtype int8",
        formats: &["int8"],
        needs_config: true,
        codes: bytes(&[Int8]),
        groups: Groups::Any(&[GroupKind::Tensor, GroupKind::Channel]),
        zeros: Zeros::Plain,
        ..OF_QUARK
    },
    Layout {
        name: "quark-uint4",
        library: "AMD Quark, dtype uint4 with pack_method reorder",
        formats: &["uint4"],
        needs_config: true,
        codes: words(Packing::AwqWords),
        groups: Groups::Any(&[GroupKind::Neighbours]),
        scale_order: ScaleOrder::Transposed,
        zeros: Zeros::Awq,
        ..OF_QUARK
    },
    Layout {
        name: "quark-mxfp4",
        library: "AMD Quark, dtype fp4 with scale_format e8m0",
        formats: &["fp4"],
        codes: NIBBLES,
        groups: Groups::Fixed(Group::Neighbours(32)),
        scale_dtypes: EXPONENTS,
        scale_precision: Precision::Target,
        ..OF_QUARK
    },
    // MLX `mlx/ops.cpp`, `affine_dequantize` and `fp_dequantize`, as computed on CPUs.
    Layout {
        name: "mlx-affine",
        library: "MLX, mode affine",
        formats: &["affine"],
        needs_config: true,
        codes: CodeStorage { values: CodeValues::Unsigned, ..MLX_FLOATS.codes },
        groups: Groups::Any(&[GroupKind::Neighbours]),
        scale_dtypes: FLOATS,
        zeros: Zeros::Offset,
        product_precision: Precision::Scale,
        encoding: Some(encoding(ScaleRule::Affine, ScaleShape::Matrix)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-mxfp4",
        library: "MLX, mode mxfp4",
        formats: &["mxfp4"],
        encoding: Some(nearest_float4(ScaleRule::CeilingOrOne)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-mxfp8",
        library: "MLX, mode mxfp8",
        formats: &["mxfp8"],
        codes: CodeStorage { values: CodeValues::Float(Float8E4M3FN), ..MLX_FLOATS.codes },
        encoding: Some(encoding(ScaleRule::CeilingOrOne, ScaleShape::Matrix)),
        ..MLX_FLOATS
    },
    Layout {
        name: "mlx-nvfp4",
        library: "MLX, mode nvfp4",
        formats: &["nvfp4"],
        groups: Groups::Fixed(Group::Neighbours(16)),
        scale_dtypes: &[Uint8, Float8E4M3FN], // bytes of E4M3
        global: Combination::OverLargest,
        encoding: Some(nearest_float4(ScaleRule::BlockOnly)),
        ..MLX_FLOATS
    },
];
