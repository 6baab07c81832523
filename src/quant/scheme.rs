//! Schemes that users choose, with their names in vLLM and llm-compressor, and the layouts that can store each.

use super::gguf::GgufScheme;
use super::layout::{CodeValues, Group, GroupKind, Layout};
use super::rules::ScaleRule;
use super::table::{GGUF, find};
use crate::dtype::Dtype::{self, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E8M0, Float32, Uint8};

/// The values that a quantized weight can have: its codes, and the groups of elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetGrid {
    pub codes: CodeType,
    /// The elements that share a scale.
    pub group: Group,
    /// The dtype of stored scales; `None` for the dtype of the weight.
    pub scale: Option<Dtype>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeType {
    /// A float of 8 bits or fewer.
    Float(Dtype),
    Int {
        bits: u32,
        /// True if there are no zero points.
        symmetric: bool,
    },
}

impl CodeType {
    pub fn bits(self) -> u32 {
        match self {
            Self::Float(dtype) => dtype.bits(),
            Self::Int { bits, .. } => bits,
        }
    }
}

/// A scheme in one of its layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemeLayout {
    /// The name of the layout for users: the library or engine that reads it.
    pub name: &'static str,
    row: &'static str,
    pub grid: TargetGrid,
}

impl SchemeLayout {
    /// The row of the table of layouts.
    pub fn row(&self) -> &'static Layout {
        find(self.row).expect("schemes name rows of the table")
    }

    fn rule(&self) -> ScaleRule {
        self.row().encoding.expect("schemes name layouts that can be written").scale
    }
}

/// A way to quantize weights that users can choose.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheme {
    pub name: &'static str,
    /// Its names in vLLM and llm-compressor.
    pub aliases: &'static [&'static str],
    /// Description of its grid.
    pub summary: &'static str,
    /// The layouts with separate codes and scales that can store it, the default first. If there is none, GGUF files
    /// store it: see [`GgufScheme`].
    pub layouts: &'static [SchemeLayout],
}

impl serde::Serialize for Scheme {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl Scheme {
    /// Finds the scheme with this name or alias, in upper or lower case; those of GGUF files also with other separators.
    pub fn find(name: &str) -> Option<&'static Self> {
        let is_named = |scheme: &&Self, name: &str| {
            let mut names = std::iter::once(&scheme.name).chain(scheme.aliases);
            names.any(|known| known.eq_ignore_ascii_case(name))
        };
        let in_gguf = || GgufScheme::find(name).and_then(|own| SCHEMES.iter().find(|scheme| scheme.name == own.name));
        SCHEMES.iter().find(|scheme| is_named(scheme, name)).or_else(in_gguf)
    }

    /// The types of GGUF files that store it; `None` if they cannot.
    pub fn in_gguf(&self) -> Option<&'static GgufScheme> {
        GgufScheme::find(self.name)
    }

    /// The names of the layouts that can store it, the default first.
    pub fn layout_names(&self) -> impl Iterator<Item = &'static str> {
        let of_blocks = self.in_gguf().map(|_| GGUF.name);
        self.layouts.iter().map(|layout| layout.name).chain(of_blocks)
    }

    /// The layout that stores it by default.
    pub fn default_layout(&self) -> &'static str {
        self.layout_names().next().expect("every scheme has a layout")
    }

    /// True if `--group-size` may change the groups: groups of integers packed into words can have any size.
    pub fn has_group_size(&self) -> bool {
        self.layouts.iter().any(|stored| stored.row().codes.values == CodeValues::Unsigned)
    }

    /// True if scales can be searched for its codes.
    pub fn has_search(&self) -> bool {
        let has_search = |stored: &SchemeLayout| stored.rule().has_search(stored.grid.codes.bits());
        self.layouts.iter().any(has_search)
    }

    /// True if it can have partial blocks in the layout of this name.
    pub fn has_partial_blocks(&self, layout: &str) -> bool {
        let stored = self.in_layout(Some(layout));
        stored.is_some_and(|stored| stored.grid.group.kind() == GroupKind::Block && stored.rule().has_partial_blocks())
    }

    /// Returns the scheme as stored in ONNX models.
    pub fn in_model(&self) -> Option<&'static SchemeLayout> {
        IN_MODELS.iter().find(|(scheme, _)| *scheme == self.name).map(|(_, stored)| stored)
    }

    /// Returns the scheme in the layout of this name, or in the default layout if the name is `None`; `None` if the
    /// layout cannot store the scheme.
    pub fn in_layout(&self, name: Option<&str>) -> Option<&'static SchemeLayout> {
        let mut layouts = self.layouts.iter();
        layouts.find(|layout| name.is_none_or(|name| layout.name == name))
    }
}

const fn float(codes: Dtype, group: Group, scale: Option<Dtype>) -> TargetGrid {
    TargetGrid { codes: CodeType::Float(codes), group, scale }
}

const fn symmetric(bits: u32, group: Group, scale: Option<Dtype>) -> TargetGrid {
    TargetGrid { codes: CodeType::Int { bits, symmetric: true }, group, scale }
}

const fn asymmetric(bits: u32, group: Group, scale: Option<Dtype>) -> TargetGrid {
    TargetGrid { codes: CodeType::Int { bits, symmetric: false }, group, scale }
}

const fn stored(name: &'static str, row: &'static str, grid: TargetGrid) -> SchemeLayout {
    SchemeLayout { name, row, grid }
}

/// Returns a scheme of MLX with offsets.
const fn affine(name: &'static str, summary: &'static str, layouts: &'static [SchemeLayout]) -> Scheme {
    Scheme { name, aliases: &[], summary, layouts }
}

const fn in_mlx(bits: u32) -> SchemeLayout {
    stored(MLX, "mlx-affine", asymmetric(bits, Group::Neighbours(64), None))
}

/// Returns a scheme that only the layout [`GGUF`](super::GGUF) stores.
const fn of_blocks(name: &'static str, summary: &'static str) -> Scheme {
    Scheme { name, aliases: &[], summary, layouts: &[] }
}

const COMPRESSED_TENSORS: &str = "compressed-tensors";
const HUGGINGFACE: &str = "huggingface";
const MODELOPT: &str = "modelopt";
/// The layout of MLX.
pub const MLX: &str = "mlx";
/// The sizes of groups with offsets that MLX has.
pub const MLX_GROUPS: [u64; 3] = [32, 64, 128];
/// The layout of `ComfyUI`.
pub const COMFYUI: &str = "comfyui";
const BLOCK: Group = Group::Block([128, 128]);

/// Schemes in ONNX models, by name. A channel is an output of a layer, and neighbours are its inputs.
static IN_MODELS: &[(&str, SchemeLayout)] = &[
    ("fp8", stored("onnx", "onnx", float(Float8E4M3FN, Group::Channel, None))),
    ("int8", stored("onnx", "onnx", symmetric(8, Group::Channel, None))),
    ("int4", stored("onnx", "onnx", symmetric(4, Group::Neighbours(128), None))),
    ("int4-asym", stored("onnx", "onnx", asymmetric(4, Group::Neighbours(128), None))),
];

pub static SCHEMES: &[Scheme] = &[
    Scheme {
        name: "fp8",
        aliases: &["FP8_DYNAMIC"],
        summary: "float8e4m3fn, a scale for each row",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, Group::Channel, None)),
            stored(MODELOPT, "modelopt-fp8", float(Float8E4M3FN, Group::Channel, Some(Float32))),
            stored(COMFYUI, "comfy-fp8", float(Float8E4M3FN, Group::Tensor, Some(Float32))),
        ],
    },
    Scheme {
        name: "fp8-tensor",
        aliases: &[],
        summary: "float8e4m3fn, one scale for the tensor",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, Group::Tensor, None)),
            stored(COMFYUI, "comfy-fp8", float(Float8E4M3FN, Group::Tensor, Some(Float32))),
        ],
    },
    Scheme {
        name: "fp8-block",
        aliases: &["FP8_BLOCK"],
        summary: "float8e4m3fn, a scale for each block of 128 x 128",
        layouts: &[
            stored(HUGGINGFACE, "hf-fp8", float(Float8E4M3FN, BLOCK, Some(Float32))),
            stored(COMPRESSED_TENSORS, "ct-fp8", float(Float8E4M3FN, BLOCK, None)),
            stored(MODELOPT, "modelopt-fp8", float(Float8E4M3FN, BLOCK, Some(Float32))),
        ],
    },
    Scheme {
        name: "fp8-block-ue8m0",
        aliases: &[],
        summary: "float8e4m3fn, a power of two for each block of 128 x 128",
        layouts: &[stored(HUGGINGFACE, "hf-fp8", float(Float8E4M3FN, BLOCK, Some(Float8E8M0)))],
    },
    Scheme {
        name: "int8",
        aliases: &["W8A8"],
        summary: "int8, a scale for each row",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-int8", symmetric(8, Group::Channel, None)),
            stored(COMFYUI, "comfy-int8", symmetric(8, Group::Tensor, Some(Float32))),
        ],
    },
    Scheme {
        name: "int8a16",
        aliases: &["W8A16"],
        summary: "int8 in words, a scale for each 128 values",
        layouts: &[stored(COMPRESSED_TENSORS, "ct-pack", symmetric(8, Group::Neighbours(128), None))],
    },
    Scheme {
        name: "int4",
        aliases: &["W4A16"],
        summary: "int4 in words, a scale for each 128 values",
        layouts: &[stored(COMPRESSED_TENSORS, "ct-pack", symmetric(4, Group::Neighbours(128), None))],
    },
    Scheme {
        name: "int4-asym",
        aliases: &["W4A16_ASYM"],
        summary: "int4 in words, a scale and a zero point for each 128 values",
        layouts: &[stored(COMPRESSED_TENSORS, "ct-pack", asymmetric(4, Group::Neighbours(128), None))],
    },
    Scheme {
        name: "nvfp4",
        aliases: &["NVFP4A16"],
        summary: "float4e2m1, a float8e4m3fn scale for each 16 values, one global scale",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-nvfp4", float(Float4E2M1, Group::Neighbours(16), Some(Float8E4M3FN))),
            stored(MODELOPT, "modelopt-nvfp4", float(Float4E2M1, Group::Neighbours(16), Some(Float8E4M3FN))),
            stored(COMFYUI, "comfy-nvfp4", float(Float4E2M1, Group::Neighbours(16), Some(Float8E4M3FN))),
            stored(MLX, "mlx-nvfp4", float(Float4E2M1, Group::Neighbours(16), Some(Uint8))),
        ],
    },
    Scheme {
        name: "mxfp4",
        aliases: &["MXFP4A16"],
        summary: "float4e2m1, a power of two for each 32 values",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-mxfp4", float(Float4E2M1, Group::Neighbours(32), Some(Uint8))),
            stored(MODELOPT, "modelopt-mxfp4", float(Float4E2M1, Group::Neighbours(32), Some(Uint8))),
            stored("gpt-oss", "gptoss-mxfp4", float(Float4E2M1, Group::Neighbours(32), Some(Uint8))),
            stored(MLX, "mlx-mxfp4", float(Float4E2M1, Group::Neighbours(32), Some(Uint8))),
        ],
    },
    Scheme {
        name: "mxfp6",
        aliases: &["MXFP6A16"],
        summary: "float6e2m3, a power of two for each 32 values",
        layouts: &[stored(COMPRESSED_TENSORS, "ct-mxfp6", float(Float6E2M3, Group::Neighbours(32), Some(Uint8)))],
    },
    Scheme {
        name: "mxfp8",
        aliases: &[], // not MXFP8A16, which leaves activations unquantized
        summary: "float8e4m3fn, a power of two for each 32 values",
        layouts: &[
            stored(COMPRESSED_TENSORS, "ct-mxfp8", float(Float8E4M3FN, Group::Neighbours(32), Some(Uint8))),
            // The quant_method of config.json in SGLang, TensorRT-LLM and transformers.
            stored("mxfp8", "hf-fp8", float(Float8E4M3FN, Group::Block([1, 32]), Some(Uint8))),
            stored(MODELOPT, "modelopt-mxfp8", float(Float8E4M3FN, Group::Neighbours(32), Some(Uint8))),
            stored(COMFYUI, "comfy-mxfp8", float(Float8E4M3FN, Group::Neighbours(32), Some(Float8E8M0))),
            stored(MLX, "mlx-mxfp8", float(Float8E4M3FN, Group::Neighbours(32), Some(Uint8))),
        ],
    },
    affine("affine2", "uint2 in words, a scale and an offset for each 64 values", &[in_mlx(2)]),
    affine("affine3", "uint3 in words, a scale and an offset for each 64 values", &[in_mlx(3)]),
    affine("affine4", "uint4 in words, a scale and an offset for each 64 values", &[in_mlx(4)]),
    affine("affine5", "uint5 in words, a scale and an offset for each 64 values", &[in_mlx(5)]),
    affine("affine6", "uint6 in words, a scale and an offset for each 64 values", &[in_mlx(6)]),
    affine("affine8", "uint8, a scale and an offset for each 64 values", &[in_mlx(8)]),
    of_blocks("f32", "float32"),
    of_blocks("f16", "float16"),
    of_blocks("bf16", "bfloat16"),
    of_blocks("q8_0", "int8, a float16 scale for each 32 values"),
    of_blocks("q4_0", "int4, a float16 scale for each 32 values"),
    of_blocks("q4_1", "int4, a float16 scale and minimum for each 32 values"),
    of_blocks("q5_0", "int5, a float16 scale for each 32 values"),
    of_blocks("q5_1", "int5, a float16 scale and minimum for each 32 values"),
    of_blocks("q2_k", "int2, scales and minima of 4 bits for each 16 values"),
    of_blocks("q3_k", "int3, a scale of 6 bits for each 16 values"),
    of_blocks("q4_k", "int4, scales and minima of 6 bits for each 32 values"),
    of_blocks("q5_k", "int5, scales and minima of 6 bits for each 32 values"),
    of_blocks("q6_k", "int6, a scale of 8 bits for each 16 values"),
    of_blocks("iq4_nl", "4 bits, 16 values that are not evenly spaced, a float16 scale for each 32 values"),
    of_blocks("iq4_xs", "the values of iq4_nl, a scale of 6 bits for each 32 values"),
    of_blocks("tq1_0", "-1, 0 and 1 in 1.6 bits, a float16 scale for each 256 values"),
    of_blocks("tq2_0", "-1, 0 and 1 in 2 bits, a float16 scale for each 256 values"),
    of_blocks("q2_k_s", "q2_k, and q4_k for some weights; needs an importance matrix"),
    of_blocks("q3_k_s", "q3_k, and q6_k for the output"),
    of_blocks("q3_k_m", "q3_k, and q4_k to q6_k for some weights"),
    of_blocks("q3_k_l", "q3_k, and q5_k and q6_k for some weights"),
    of_blocks("q4_k_s", "q4_k, and q5_k and q6_k for some weights"),
    of_blocks("q4_k_m", "q4_k, and q6_k for some weights"),
    of_blocks("q5_k_s", "q5_k, and q6_k for the output"),
    of_blocks("q5_k_m", "q5_k, and q6_k for some weights"),
];

#[cfg(test)]
mod tests {
    use super::super::gguf::GGUF_SCHEMES;
    use super::*;

    #[test]
    fn every_scheme_has_a_layout_and_every_type_of_gguf_files_has_a_scheme() {
        for scheme in SCHEMES {
            assert!(scheme.layout_names().next().is_some(), "{}", scheme.name);
        }
        for own in GGUF_SCHEMES {
            assert!(Scheme::find(own.name).is_some_and(|scheme| scheme.name == own.name), "{}", own.name);
        }
    }

    #[test]
    fn only_names_of_gguf_files_are_free_in_their_separators() {
        let found = |name| Scheme::find(name).map(|scheme| scheme.name);
        assert_eq!(["Q4-K-M", "q4_k_m", "FP8_dynamic"].map(found), [Some("q4_k_m"), Some("q4_k_m"), Some("fp8")]);
        assert_eq!(["FP8-dynamic", "fp8_block2"].map(found), [None, None]);
    }
}
