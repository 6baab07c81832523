//! Quantization methods: methods whose configs tcast reads, and methods that it only recognizes by name and tensors.

use super::recognize::StoredTensor;
use crate::dtype::Dtype::{
    self, Float8E4M3FN, Float8E5M2, Int4, Int8, Int16, Int32, Int64, Uint4, Uint8, Uint16, Uint32,
};
use crate::error::{Error, Result};
use crate::text::shorten;
use std::collections::HashSet;

/// The quantization method that a config describes.
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
    /// Finds the method with this name, given in lower case; `None` if tcast does not decode its weights.
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

    /// Returns the config keys that list the modules left unquantized.
    pub(super) fn ignored_keys(self) -> &'static [&'static str] {
        match self {
            Self::FineGrained | Self::Mxfp4 | Self::Awq | Self::Quanto => &["modules_to_not_convert", "ignored_layers"],
            Self::CompressedTensors => &["ignore"],
            Self::BitsAndBytes => &["llm_int8_skip_modules"],
            Self::ModelOpt => &["ignore", "exclude_modules"],
            Self::Gptq | Self::AutoRound => &[], // `dynamic` and `extra_config` hold more than a list
        }
    }
}

/// A method whose weights tcast does not decode, and the names and tensors that identify it.
pub(super) struct UndecodedMethod {
    /// Its name in messages.
    name: &'static str,
    /// Its names in `quant_method`, in lower case.
    methods: &'static [&'static str],
    what: &'static str,
    /// Tensors of codes that no other method has: the suffix of their names, their dtypes, and the suffix of a
    /// companion tensor.
    codes: &'static [(&'static str, &'static [Dtype], &'static str)],
}

const fn undecoded(name: &'static str, methods: &'static [&'static str], what: &'static str) -> UndecodedMethod {
    UndecodedMethod { name, methods, what, codes: &[] }
}

/// The methods that tcast does not decode. The names come from the source code of each library.
static UNDECODED: &[UndecodedMethod] = &[
    UndecodedMethod {
        codes: &[(".weight", &[Uint32], ".scales")],
        ..undecoded("MLX", &[MLX, "metal"], "groups packed in words; let mlx_lm.convert dequantize them")
    },
    UndecodedMethod {
        codes: &[("._weight_qdata", BYTES, "._weight_scale")],
        ..undecoded("torchao", &["torchao"], "tensor subclasses of torchao; let torchao dequantize them")
    },
    UndecodedMethod {
        codes: &[(".q_weight", WORDS, ".q_scale")],
        ..undecoded("EXL2", &["exl2"], "mixed widths of ExLlamaV2")
    },
    UndecodedMethod {
        codes: &[(".trellis", WORDS, ".suh"), (".trellis", WORDS, ".su")],
        ..undecoded("EXL3", &["exl3"], "trellis codes of ExLlamaV3")
    },
    UndecodedMethod { codes: &[(".codes", ANY, ".codebooks")], ..undecoded("AQLM", &["aqlm"], "additive codebooks") },
    UndecodedMethod {
        codes: &[(".indices", ANY, ".centroids.weight")],
        ..undecoded("VPTQ", &["vptq"], "vector codebooks")
    },
    UndecodedMethod {
        codes: &[(".W_q", ANY, ".scale"), (".W_q", ANY, ".meta"), (".W_q", ANY, ".meta_scale")],
        ..undecoded("HQQ", &["hqq"], "half-quadratic quantization, with zero points in floats")
    },
    UndecodedMethod {
        codes: &[(".qweight", ANY, ".wscales")],
        ..undecoded("Nunchaku", &["svdquant", "nunchaku"], "SVDQuant: 4 bits and a matrix of low rank")
    },
    UndecodedMethod {
        codes: &[(".Qidxs", ANY, ".SU"), (".trellis", WORDS, ".SU")],
        ..undecoded("QuIP", &["quip", "quip#", "qtip"], "lattice codebooks and rotations")
    },
    UndecodedMethod {
        codes: &[(".dense_weights", ANY, ".row_offsets")],
        ..undecoded("SpQR", &["spqr"], "groups of 3 bits with sparse outliers")
    },
    UndecodedMethod {
        codes: &[(".qweight", ANY, ".forward_hadamard_matrix")],
        ..undecoded("FP-Quant", &["fp_quant"], "Hadamard transforms and FP4")
    },
    UndecodedMethod {
        codes: &[(".weight", WORDS, ".tables2")],
        ..undecoded("HIGGS", &["higgs"], "Hadamard transforms and grids")
    },
    UndecodedMethod {
        codes: &[(".weight", &[Int8], ".weight_scales")],
        ..undecoded("EETQ", &["eetq"], "int8 in the order of a CUDA kernel")
    },
    UndecodedMethod {
        codes: &[(".B", WORDS, ".s"), (".B", WORDS, ".s_channel")],
        ..undecoded("Marlin", &["marlin", "qqq"], "int4 in the order of a CUDA kernel")
    },
    UndecodedMethod {
        codes: &[(".qweight", WORDS, ".lookup_table")],
        ..undecoded("SqueezeLLM", &["squeezellm"], "tables of each row, and sparse outliers")
    },
    undecoded(
        "GGUF",
        &["gguf"],
        "blocks of llama.cpp in safetensors; convert the .gguf file with llama.cpp's own tools",
    ),
    undecoded("fbgemm", &["fbgemm_fp8"], "FP8 with a scale for each row and a bound of activations"),
    undecoded("BitNet", &["bitnet"], "ternary weights"),
    undecoded("NVFP4 of transformers", &["nvfp4"], "made while a model is loaded; such checkpoints hold values"),
];

/// Method name for configs that only MLX writes; they do not name their method.
pub(super) const MLX: &str = "mlx";

const WORDS: &[Dtype] = &[Int16, Uint16, Int32, Uint32];
const BYTES: &[Dtype] = &[Int8, Uint8, Uint4, Int4, Float8E4M3FN, Float8E5M2];
const ANY: &[Dtype] = &[Int8, Uint8, Int16, Uint16, Int32, Uint32, Int64];

/// Returns the error that refuses a method named in a config.
pub(super) fn undecoded_method(name: &str) -> Error {
    match UNDECODED.iter().find(|method| method.methods.contains(&name)) {
        Some(method) => method.refusal(""),
        None => Error::new(format!("the model is quantized with '{}', which tcast does not decode", shorten(name))),
    }
}

impl UndecodedMethod {
    fn refusal(&self, evidence: &str) -> Error {
        let Self { name, what, .. } = self;
        Error::new(format!("the model is quantized with {name} ({what}), which tcast does not decode{evidence}"))
    }
}

/// True if a tensor may be codes of a method that tcast does not decode, by its name and dtype.
pub(super) fn may_be_undecoded(name: &str, dtype: Option<Dtype>) -> bool {
    signatures(name, dtype).next().is_some()
}

/// Finds the methods whose codes a tensor may hold, each with the name of the companion tensor that the method stores.
fn signatures(name: &str, dtype: Option<Dtype>) -> impl Iterator<Item = (&'static UndecodedMethod, String)> {
    let all = UNDECODED.iter().flat_map(|method| method.codes.iter().map(move |codes| (method, codes)));
    all.filter_map(move |(method, (end, dtypes, beside))| {
        let stem = name.strip_suffix(end).filter(|_| dtype.is_some_and(|dtype| dtypes.contains(&dtype)))?;
        Some((method, format!("{stem}{beside}")))
    })
}

/// Refuses weights of undecoded methods, identified by the names and dtypes of their tensors, regardless of the config.
pub(super) fn check_decoded(tensors: &[StoredTensor]) -> Result<()> {
    let mut names = None;
    for StoredTensor { name, dtype, .. } in tensors {
        for (method, beside) in signatures(name, *dtype) {
            let names: &HashSet<&str> = names.get_or_insert_with(|| tensors.iter().map(|tensor| tensor.name).collect());
            if names.contains(&*beside) {
                let [codes, beside] = [name, &*beside].map(shorten);
                return Err(method.refusal(&format!(": '{codes}' and '{beside}' have the names of its tensors")));
            }
        }
    }
    Ok(())
}
