//! The table of schemes, with their names in vLLM and llm-compressor, and the layouts that can store each.

use super::{GATHER, GGUF, MATMUL_NBITS, ONNX, SIGNED_GATHER, find};
use crate::dtype::Dtype::{self, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E8M0, Float32, Uint8};
use crate::quant::gguf::{self, GgufScheme, mix, mixes, pure};
use crate::quant::layout::{Group, Layout};
use crate::quant::scheme::{CodeType, Scheme, SchemeLayout, TargetGrid};

impl Scheme {
    /// Finds the scheme with this name or alias, in upper or lower case. Schemes of GGUF files can have other separators.
    pub fn find(name: &str) -> Option<&'static Self> {
        let is_named = |scheme: &&Self| {
            let mut names = std::iter::once(&scheme.name).chain(scheme.aliases);
            names.any(|known| known.eq_ignore_ascii_case(name))
        };
        SCHEMES.iter().find(is_named).or_else(|| Self::find_in_gguf(name))
    }

    /// Finds the scheme of GGUF files with this name, in upper or lower case, with or without `-` and `_`.
    fn find_in_gguf(name: &str) -> Option<&'static Self> {
        let letters = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        let wanted = letters(name);
        SCHEMES.iter().find(|scheme| scheme.gguf.is_some() && letters(scheme.name) == wanted)
    }

    /// Returns the name of the preset of compressed-tensors that describes weights of this layout and grid
    /// (`quantization/quant_scheme.py`); `None` if no preset does. `has_input_scale` is true if a scale for the
    /// activations is stored too.
    pub fn preset(row: &Layout, grid: TargetGrid, has_input_scale: bool) -> Option<String> {
        let is_own = |layout: &SchemeLayout| layout.row == row && layout.grid == grid;
        let scheme = SCHEMES.iter().find(|scheme| scheme.layouts.iter().any(is_own))?;
        let name = if has_input_scale { Some(&scheme.name) } else { scheme.aliases.first() };
        name.map(|name| name.to_ascii_uppercase())
    }

    /// Adds its names in vLLM and llm-compressor.
    const fn called(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// The names of the layouts that can store it, the default first.
    pub fn layout_names(&self) -> impl Iterator<Item = &'static str> {
        let of_blocks = self.gguf.as_ref().map(|_| GGUF.name);
        self.layouts.iter().map(|layout| layout.name).chain(of_blocks)
    }

    /// The layout that stores it by default.
    pub fn default_layout(&self) -> &'static str {
        self.layout_names().next().expect("every scheme has a layout")
    }
}

impl Layout {
    /// Returns its name for users, who may know its weights with other groups by another name; `None` if no scheme is stored
    /// in it.
    pub(crate) fn for_users(&self, group: Option<Group>) -> Option<&'static str> {
        let stored = || SCHEMES.iter().flat_map(|scheme| scheme.layouts.iter().chain(scheme.in_model));
        let mut own = stored().filter(|stored| stored.row == self);
        let first = own.clone().next().map(|stored| stored.name);
        let same = own.find(|stored| Some(stored.grid.group) == group).map(|stored| stored.name);
        same.or(first).or((*self == GGUF).then_some(GGUF.name))
    }
}

impl GgufScheme {
    /// Finds the types of a scheme of GGUF files by its name, in upper or lower case, with or without `-` and `_`.
    pub fn find(name: &str) -> Option<&'static Self> {
        Scheme::find_in_gguf(name)?.gguf.as_ref()
    }
}

const fn float(codes: Dtype, group: Group, scale: Option<Dtype>) -> TargetGrid {
    TargetGrid { codes: CodeType::Float(codes), group, scale }
}

const fn symmetric(bits: u32, group: Group) -> TargetGrid {
    TargetGrid { codes: CodeType::Int { bits, symmetric: true }, group, scale: None }
}

const fn asymmetric(bits: u32, group: Group) -> TargetGrid {
    TargetGrid { codes: CodeType::Int { bits, symmetric: false }, group, scale: None }
}

/// Returns codes for the levels of groups.
const fn levels(bits: u32) -> TargetGrid {
    TargetGrid { scale: Some(Float8E4M3FN), ..symmetric(bits, Group::Neighbours(16)) }
}

/// Returns a scheme in the layout of the row called `row`.
const fn layout(name: &'static str, row: &str, grid: TargetGrid) -> SchemeLayout {
    match find(row) {
        Some(row) => SchemeLayout { name, row, grid, limits: None },
        None => panic!("no layout has this name"),
    }
}

/// Returns a scheme in ONNX models. A channel is an output of a layer, and neighbours are its inputs.
const fn onnx(grid: TargetGrid) -> SchemeLayout {
    SchemeLayout { name: ONNX.name, row: &ONNX, grid, limits: None }
}

/// Returns a scheme in the blocks of `MatMulNBits`.
const fn nbits(grid: TargetGrid) -> SchemeLayout {
    SchemeLayout { name: MATMULNBITS, row: &MATMUL_NBITS, grid, limits: None }
}

/// Returns a scheme in the tables of `GatherBlockQuantized`, beside the blocks of `MatMulNBits`.
const fn table(row: &'static Layout, grid: TargetGrid) -> SchemeLayout {
    SchemeLayout { row, ..nbits(grid) }
}

/// The base of all rows.
const BASE: Scheme = Scheme { name: "", aliases: &[], summary: "", layouts: &[], gguf: None, in_model: &[] };

/// Returns a scheme without aliases.
const fn scheme(name: &'static str, summary: &'static str, layouts: &'static [SchemeLayout]) -> Scheme {
    Scheme { name, summary, layouts, ..BASE }
}

const GROUP: Group = Group::Neighbours(128);

/// The blocks of ONNX Runtime's command line.
const BLOCKS: Group = Group::Neighbours(32);

/// Returns integers in the words of compressed-tensors, of a width that few engines load.
const fn words(grid: TargetGrid) -> SchemeLayout {
    SchemeLayout { limits: Some(FEW_ENGINES), ..layout(COMPRESSED_TENSORS, "ct-pack", grid) }
}

const FEW_ENGINES: &str = "vLLM runs integers of 2, 3, 5, 6 and 7 bits only with its humming kernels, and SGLang does not load \
                           them; transformers decodes them";

const fn mlx(bits: u32) -> SchemeLayout {
    layout(MLX, "mlx-affine", asymmetric(bits, Group::Neighbours(64)))
}

/// Returns a scheme that only GGUF files store.
const fn blocks(gguf: GgufScheme, summary: &'static str) -> Scheme {
    Scheme { name: gguf.name, summary, gguf: Some(gguf), ..BASE }
}

pub const COMPRESSED_TENSORS: &str = "compressed-tensors";
const HUGGINGFACE: &str = "huggingface";
const MODELOPT: &str = "modelopt";
/// The layout of MLX.
pub const MLX: &str = "mlx";
/// The layout of the operator `MatMulNBits` of ONNX Runtime.
pub const MATMULNBITS: &str = "matmulnbits";
/// The layout of `ComfyUI`.
pub const COMFYUI: &str = "comfyui";

const BLOCK: Group = Group::Block([128, 128]);
const NVFP4: TargetGrid = float(Float4E2M1, Group::Neighbours(16), Some(Float8E4M3FN));
const MXFP4: TargetGrid = float(Float4E2M1, Group::Neighbours(32), Some(Uint8));
const MXFP8: TargetGrid = float(Float8E4M3FN, Group::Neighbours(32), Some(Uint8));

/// All schemes. The types of GGUF files are numbers of `llama_ftype` (llama.cpp, `include/llama.h`).
pub static SCHEMES: &[Scheme] = &[
    Scheme {
        name: "fp8",
        aliases: &["FP8_DYNAMIC"],
        summary: "float8e4m3fn, a scale for each row",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, Group::Channel, None)),
            layout(MODELOPT, "modelopt-fp8", float(Float8E4M3FN, Group::Channel, Some(Float32))),
            layout(COMFYUI, "comfy-fp8", float(Float8E4M3FN, Group::Tensor, Some(Float32))),
        ],
        in_model: &[onnx(float(Float8E4M3FN, Group::Channel, None))],
        ..BASE
    },
    Scheme {
        name: "fp8-tensor",
        summary: "float8e4m3fn, one scale for the tensor",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, Group::Tensor, None)),
            layout(COMFYUI, "comfy-fp8", float(Float8E4M3FN, Group::Tensor, Some(Float32))),
        ],
        ..BASE
    },
    Scheme {
        name: "fp8-block",
        aliases: &["FP8_BLOCK"],
        summary: "float8e4m3fn, a scale for each block of 128 x 128",
        layouts: &[
            layout(HUGGINGFACE, "hf-fp8", float(Float8E4M3FN, BLOCK, Some(Float32))),
            layout(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, BLOCK, None)),
            layout(MODELOPT, "modelopt-fp8", float(Float8E4M3FN, BLOCK, Some(Float32))),
        ],
        ..BASE
    },
    Scheme {
        name: "fp8-block-ue8m0",
        summary: "float8e4m3fn, a power of two for each block of 128 x 128",
        layouts: &[layout(HUGGINGFACE, "hf-fp8", float(Float8E4M3FN, BLOCK, Some(Float8E8M0)))],
        ..BASE
    },
    Scheme {
        name: "int8",
        aliases: &["W8A8"],
        summary: "int8, a scale for each row",
        layouts: &[
            SchemeLayout {
                limits: Some("vLLM does not run int8 on GPUs of compute capability 10 and higher"),
                ..layout(COMPRESSED_TENSORS, "ct-int8", symmetric(8, Group::Channel))
            },
            layout(COMFYUI, "comfy-int8", TargetGrid { scale: Some(Float32), ..symmetric(8, Group::Channel) }),
        ],
        in_model: &[onnx(symmetric(8, Group::Channel)), nbits(symmetric(8, BLOCKS))],
        ..BASE
    },
    Scheme {
        name: "int8a16",
        aliases: &["W8A16"],
        summary: "int8 in words, a scale for each 128 values",
        layouts: &[layout(COMPRESSED_TENSORS, "ct-pack", symmetric(8, GROUP))],
        ..BASE
    },
    Scheme {
        name: "int4",
        aliases: &["W4A16"],
        summary: "int4 in words, a scale for each 128 values",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-pack", symmetric(4, GROUP)),
            layout(COMFYUI, "comfy-int4", TargetGrid { scale: Some(Float32), ..symmetric(4, Group::Channel) }),
        ],
        in_model: &[
            onnx(symmetric(4, GROUP)),
            nbits(symmetric(4, BLOCKS)),
            table(&SIGNED_GATHER, symmetric(4, BLOCKS)),
        ],
        ..BASE
    },
    Scheme {
        name: "int4-asym",
        aliases: &["W4A16_ASYM"],
        summary: "int4 in words, a scale and a zero point for each 128 values",
        layouts: &[layout(COMPRESSED_TENSORS, "ct-pack", asymmetric(4, GROUP))],
        in_model: &[onnx(asymmetric(4, GROUP)), nbits(asymmetric(4, BLOCKS)), table(&GATHER, asymmetric(4, BLOCKS))],
        ..BASE
    },
    Scheme {
        name: "nvfp4",
        aliases: &["NVFP4A16"],
        summary: "float4e2m1, a float8e4m3fn scale for each 16 values, one global scale",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-nvfp4", NVFP4),
            layout(MODELOPT, "modelopt-nvfp4", NVFP4),
            layout(COMFYUI, "comfy-nvfp4", NVFP4),
            layout(MLX, "mlx-nvfp4", TargetGrid { scale: Some(Uint8), ..NVFP4 }),
        ],
        gguf: Some(pure("nvfp4", None, gguf::NVFP4)),
        ..BASE
    },
    Scheme {
        name: "mxfp4",
        aliases: &["MXFP4A16"],
        summary: "float4e2m1, a power of two for each 32 values",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-mxfp4", MXFP4),
            layout(MODELOPT, "modelopt-mxfp4", MXFP4),
            layout("gpt-oss", "gptoss-mxfp4", MXFP4),
            layout(MLX, "mlx-mxfp4", MXFP4),
        ],
        gguf: Some(pure("mxfp4", Some(38), gguf::MXFP4)),
        ..BASE
    },
    Scheme {
        name: "mxfp6",
        aliases: &["MXFP6A16"],
        summary: "float6e2m3, a power of two for each 32 values",
        layouts: &[SchemeLayout {
            limits: Some("mxfp6 needs compressed-tensors 0.20; vLLM 0.33 and SGLang 0.5.23 have older versions"),
            ..layout(COMPRESSED_TENSORS, "ct-mxfp6", float(Float6E2M3, Group::Neighbours(32), Some(Uint8)))
        }],
        ..BASE
    },
    Scheme {
        name: "mxfp8",
        // Not MXFP8A16, which leaves activations unquantized.
        aliases: &["MXFP8"],
        summary: "float8e4m3fn, a power of two for each 32 values",
        layouts: &[
            layout(COMPRESSED_TENSORS, "ct-mxfp8", MXFP8),
            // The quant_method of config.json in SGLang, TensorRT-LLM and transformers.
            layout("mxfp8", "hf-fp8", float(Float8E4M3FN, Group::Block([1, 32]), Some(Uint8))),
            layout(MODELOPT, "modelopt-mxfp8", MXFP8),
            // ComfyUI's reader of safetensors fails on float8e8m0.
            layout(COMFYUI, "comfy-mxfp8", MXFP8),
            layout(MLX, "mlx-mxfp8", MXFP8),
        ],
        ..BASE
    },
    Scheme {
        in_model: &[nbits(symmetric(2, BLOCKS))],
        ..scheme("int2", "int2 in words, a scale for each 128 values", &[words(symmetric(2, GROUP))]).called(&["W2A16"])
    },
    Scheme {
        in_model: &[nbits(asymmetric(2, BLOCKS))],
        ..scheme(
            "int2-asym",
            "int2 in words, a scale and a zero point for each 128 values",
            &[words(asymmetric(2, GROUP))],
        )
    },
    scheme("int3", "int3 in words, a scale for each 128 values", &[words(symmetric(3, GROUP))]).called(&["W3A16"]),
    scheme("int3-asym", "int3 in words, a scale and a zero point for each 128 values", &[words(asymmetric(3, GROUP))]),
    scheme("int5", "int5 in words, a scale for each 128 values", &[words(symmetric(5, GROUP))]).called(&["W5A16"]),
    scheme("int5-asym", "int5 in words, a scale and a zero point for each 128 values", &[words(asymmetric(5, GROUP))]),
    scheme("int6", "int6 in words, a scale for each 128 values", &[words(symmetric(6, GROUP))]).called(&["W6A16"]),
    scheme("int6-asym", "int6 in words, a scale and a zero point for each 128 values", &[words(asymmetric(6, GROUP))]),
    scheme("int7", "int7 in words, a scale for each 128 values", &[words(symmetric(7, GROUP))]).called(&["W7A16"]),
    scheme("int7-asym", "int7 in words, a scale and a zero point for each 128 values", &[words(asymmetric(7, GROUP))]),
    Scheme {
        in_model: &[nbits(asymmetric(8, BLOCKS))],
        ..scheme(
            "int8-asym",
            "int8 in words, a scale and a zero point for each 128 values",
            &[layout(COMPRESSED_TENSORS, "ct-pack", asymmetric(8, GROUP))],
        )
    },
    Scheme {
        name: "w4a8",
        summary: "16 levels of int8 for each 16 values, a float8e4m3fn scale for them and one for each row",
        layouts: &[layout(COMFYUI, "comfy-w4a8", levels(4))],
        ..BASE
    },
    Scheme {
        name: "w6a8",
        summary: "63 levels of int8 for each 16 values, a float8e4m3fn scale for them and one for each row",
        layouts: &[SchemeLayout {
            limits: Some("w6a8 needs a comfy-kitchen that is newer than 0.2.31"),
            ..layout(COMFYUI, "comfy-w4a8", levels(6))
        }],
        ..BASE
    },
    scheme("affine2", "uint2 in words, a scale and an offset for each 64 values", &[mlx(2)]),
    scheme("affine3", "uint3 in words, a scale and an offset for each 64 values", &[mlx(3)]),
    scheme("affine4", "uint4 in words, a scale and an offset for each 64 values", &[mlx(4)]),
    scheme("affine5", "uint5 in words, a scale and an offset for each 64 values", &[mlx(5)]),
    scheme("affine6", "uint6 in words, a scale and an offset for each 64 values", &[mlx(6)]),
    scheme("affine8", "uint8, a scale and an offset for each 64 values", &[mlx(8)]),
    blocks(pure("f32", Some(0), gguf::F32), "float32"),
    blocks(pure("f16", Some(1), gguf::F16), "float16"),
    blocks(pure("bf16", Some(32), gguf::BF16), "bfloat16"),
    blocks(pure("q8_0", Some(7), gguf::Q8_0), "int8, a float16 scale for each 32 values"),
    blocks(pure("q4_0", Some(2), gguf::Q4_0), "int4, a float16 scale for each 32 values"),
    blocks(pure("q4_1", Some(3), gguf::Q4_1), "int4, a float16 scale and minimum for each 32 values"),
    blocks(pure("q5_0", Some(8), gguf::Q5_0), "int5, a float16 scale for each 32 values"),
    blocks(pure("q5_1", Some(9), gguf::Q5_1), "int5, a float16 scale and minimum for each 32 values"),
    blocks(pure("q2_k", Some(10), gguf::Q2_K), "int2, scales and minima of 4 bits for each 16 values"),
    blocks(pure("q3_k", Some(12), gguf::Q3_K), "int3, a scale of 6 bits for each 16 values"),
    blocks(pure("q4_k", Some(15), gguf::Q4_K), "int4, scales and minima of 6 bits for each 32 values"),
    blocks(pure("q5_k", Some(17), gguf::Q5_K), "int5, scales and minima of 6 bits for each 32 values"),
    blocks(pure("q6_k", Some(18), gguf::Q6_K), "int6, a scale of 8 bits for each 16 values"),
    blocks(
        pure("iq4_nl", Some(25), gguf::IQ4_NL),
        "4 bits, 16 values that are not evenly spaced, a float16 scale for each 32 values",
    ),
    blocks(pure("iq4_xs", Some(30), gguf::IQ4_XS), "the values of iq4_nl, a scale of 6 bits for each 32 values"),
    blocks(pure("tq1_0", Some(36), gguf::TQ1_0), "-1, 0 and 1 in 1.6 bits, a float16 scale for each 256 values"),
    blocks(pure("tq2_0", Some(37), gguf::TQ2_0), "-1, 0 and 1 in 2 bits, a float16 scale for each 256 values"),
    blocks(
        mix("q2_k_s", 21, gguf::Q2_K, &mixes::Q2_K_S),
        "q2_k, and q4_k for some weights; needs an importance matrix",
    ),
    blocks(mix("q3_k_s", 11, gguf::Q3_K, &mixes::Q3_K_S), "q3_k, and q6_k for the output"),
    blocks(mix("q3_k_m", 12, gguf::Q3_K, &mixes::Q3_K_M), "q3_k, and q4_k to q6_k for some weights"),
    blocks(mix("q3_k_l", 13, gguf::Q3_K, &mixes::Q3_K_L), "q3_k, and q5_k and q6_k for some weights"),
    blocks(mix("q4_k_s", 14, gguf::Q4_K, &mixes::Q4_K_S), "q4_k, and q5_k and q6_k for some weights"),
    blocks(mix("q4_k_m", 15, gguf::Q4_K, &mixes::Q4_K_M), "q4_k, and q6_k for some weights"),
    blocks(mix("q5_k_s", 16, gguf::Q5_K, &mixes::Q5_K_S), "q5_k, and q6_k for the output"),
    blocks(mix("q5_k_m", 17, gguf::Q5_K, &mixes::Q5_K_M), "q5_k, and q6_k for some weights"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_layout_and_in_gguf_files_the_same_name() {
        for scheme in SCHEMES {
            assert!(scheme.layout_names().next().is_some(), "{}", scheme.name);
            assert!(scheme.gguf.as_ref().is_none_or(|own| own.name == scheme.name), "{}", scheme.name);
        }
    }

    #[test]
    fn only_names_of_gguf_files_are_free_in_their_separators() {
        let found = |name| Scheme::find(name).map(|scheme| scheme.name);
        assert_eq!(
            ["Q4-K-M", "q4_k_m", "Q4KM", "FP8_dynamic"].map(found),
            ["q4_k_m", "q4_k_m", "q4_k_m", "fp8"].map(Some)
        );
        assert_eq!(["FP8-dynamic", "fp8_block2", "q4_k_l", ""].map(found), [None; 4]);
    }

    #[test]
    fn only_one_scheme_has_a_scale_of_activations() {
        let names = SCHEMES.iter().filter(|scheme| scheme.has_activation_scale()).map(|scheme| scheme.name);
        assert!(names.eq(["nvfp4"]));
    }
}
