//! Methods that tcast does not decode, which it recognizes by their names and tensors.

use crate::dtype::Dtype::{self, Float4E2M1, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32};
use crate::error::{Error, Result};
use crate::quant::recognize::StoredTensor;
use crate::text::shorten;
use std::collections::HashSet;

/// A method whose weights tcast does not decode, and the names and tensors that identify it.
struct UndecodedMethod {
    /// Its name in messages.
    name: &'static str,
    /// Its names in `quant_method`, in lower case.
    methods: &'static [&'static str],
    /// Description of its codes.
    what: &'static str,
    codes: &'static [Signature],
}

/// Tensors of codes that no other method has: the suffix of their names, their dtypes, and the suffix of a companion
/// tensor.
type Signature = (&'static str, &'static [Dtype], &'static str);

const fn row(
    name: &'static str,
    methods: &'static [&'static str],
    what: &'static str,
    codes: &'static [Signature],
) -> UndecodedMethod {
    UndecodedMethod { name, methods, what, codes }
}

const WORDS: &[Dtype] = &[Int16, Uint16, Int32, Uint32];
const ANY: &[Dtype] = &[Int8, Uint8, Int16, Uint16, Int32, Uint32, Int64];

const OF_METAL: &str = "groups packed in words for the kernels of Apple's GPUs";
const OF_TORCHAO: &str = "packed codes; let torchao dequantize them";
const OF_QUANTO: &str = "groups of 2 or 4 bits; let optimum-quanto dequantize them";
const OF_BITMASK: &str = "values, and bits for their places; let compressed-tensors 0.11.0 decompress them";
const OF_GGUF: &str = "blocks of llama.cpp in safetensors; convert the .gguf file with llama.cpp's own tools";
const OF_NVFP4: &str = "made while a model is loaded; such checkpoints hold values";

/// The methods that tcast does not decode. The names come from the source code of each library.
static UNDECODED: &[UndecodedMethod] = &[
    row("Metal of transformers", &["metal"], OF_METAL, &[(".weight", &[Uint32], ".qbiases")]),
    row(
        "torchao",
        &[],
        OF_TORCHAO,
        &[
            ("_qdata", WORDS, "_scale_and_zero"),
            ("_qdata", WORDS, "_scale"),
            ("_qdata", &[Uint8, Float4E2M1], "_scale"),
        ],
    ),
    row("quanto", &[], OF_QUANTO, &[(".weight._data._data", &[Uint8], ".weight._shift")]),
    row("sparse-24-bitmask", &[], OF_BITMASK, &[(".bitmask", &[Uint8], ".compressed")]),
    row(
        "svdquant_w4a4 of comfy-kitchen",
        &[],
        "4 bits, factors of columns and a matrix of low rank",
        &[(".weight", &[Int8, Uint8], ".weight_proj_down")],
    ),
    row(
        "SDNQ",
        &[],
        "a matrix of low rank, or scales that are codes",
        &[(".weight", ANY, ".svd_up"), (".weight", ANY, ".scale_2"), (".weight", ANY, ".zero_point_scale")],
    ),
    row("EXL2", &["exl2"], "mixed widths of ExLlamaV2", &[(".q_weight", WORDS, ".q_scale")]),
    row("EXL3", &["exl3"], "trellis codes of ExLlamaV3", &[(".trellis", WORDS, ".suh"), (".trellis", WORDS, ".su")]),
    row("AQLM", &["aqlm"], "additive codebooks", &[(".codes", ANY, ".codebooks")]),
    row("VPTQ", &["vptq"], "vector codebooks", &[(".indices", ANY, ".centroids.weight")]),
    row(
        "HQQ",
        &["hqq"],
        "half-quadratic quantization, with zero points in floats",
        &[(".W_q", ANY, ".scale"), (".W_q", ANY, ".meta_scale")],
    ),
    row("HQQ or SINQ", &[], "groups with scales in a nested object", &[(".W_q", ANY, ".meta")]),
    row("SINQ", &["sinq"], "groups with a scale for each row and each column", &[]),
    row(
        "FourOverSix",
        &["fouroversix"],
        "NVFP4 with scales in the order of a CUDA kernel",
        &[(".quantized_weight_values", ANY, ".quantized_weight_scale_factors")],
    ),
    row(
        "Nunchaku",
        &["svdquant", "nunchaku"],
        "SVDQuant: 4 bits and a matrix of low rank",
        &[(".qweight", ANY, ".wscales")],
    ),
    row(
        "QuIP",
        &["quip", "quip#", "qtip"],
        "lattice codebooks and rotations",
        &[(".Qidxs", ANY, ".SU"), (".trellis", WORDS, ".SU")],
    ),
    row("SpQR", &["spqr"], "groups of 3 bits with sparse outliers", &[(".dense_weights", ANY, ".row_offsets")]),
    row("FP-Quant", &["fp_quant"], "Hadamard transforms and FP4", &[(".qweight", ANY, ".forward_hadamard_matrix")]),
    row("HIGGS", &["higgs"], "Hadamard transforms and grids", &[(".weight", WORDS, ".tables2")]),
    row("EETQ", &["eetq"], "int8 in the order of a CUDA kernel", &[(".weight", &[Int8], ".weight_scales")]),
    row(
        "Marlin",
        &["marlin", "qqq"],
        "int4 in the order of a CUDA kernel",
        &[(".B", WORDS, ".s"), (".B", WORDS, ".s_channel")],
    ),
    row(
        "SqueezeLLM",
        &["squeezellm"],
        "tables of each row, and sparse outliers",
        &[(".qweight", WORDS, ".lookup_table")],
    ),
    row("GGUF", &["gguf"], OF_GGUF, &[]),
    row("fbgemm", &["fbgemm_fp8"], "FP8 with a scale for each row and a bound of activations", &[]),
    row("BitNet", &["bitnet"], "ternary weights", &[]),
    row("NVFP4 of transformers", &["nvfp4"], OF_NVFP4, &[]),
];

/// Returns the error that refuses a method named in a config.
pub(in crate::quant) fn undecoded_method(name: &str) -> Error {
    match UNDECODED.iter().find(|method| method.methods.contains(&name)) {
        Some(method) => undecoded(method.name, method.what),
        None => Error::new(format!("the model is quantized with '{}', which tcast does not decode", shorten(name))),
    }
}

/// Returns the error that refuses codes of a library that tcast does not decode.
pub(in crate::quant) fn undecoded(library: &str, codes: &str) -> Error {
    Error::new(undecoded_message(library, codes))
}

fn undecoded_message(library: &str, codes: &str) -> String {
    format!("the model is quantized with {library} ({codes}), which tcast does not decode")
}

/// True if a tensor may be codes of a method that tcast does not decode, by its name and dtype.
pub(in crate::quant) fn may_be_undecoded(name: &str, dtype: Option<Dtype>) -> bool {
    signatures(name, dtype).next().is_some()
}

/// Finds the methods whose codes a tensor may hold, each with the name of the companion tensor that the method stores.
fn signatures(name: &str, dtype: Option<Dtype>) -> impl Iterator<Item = (&'static UndecodedMethod, String)> {
    // No method stores codes as floats of 16 or 32 bits, and a model may have a million such tensors.
    let methods = if dtype.is_some_and(Dtype::is_weight) { &[] } else { UNDECODED };
    let all = methods.iter().flat_map(|method| method.codes.iter().map(move |codes| (method, codes)));
    all.filter_map(move |(method, (end, dtypes, companion))| {
        dtype.filter(|dtype| dtypes.contains(dtype))?;
        let stem = name.strip_suffix(end)?;
        Some((method, format!("{stem}{companion}")))
    })
}

/// Refuses weights of undecoded methods, identified by the names and dtypes of their tensors, regardless of the config.
pub(in crate::quant) fn check_decoded(tensors: &[StoredTensor]) -> Result<()> {
    let mut names = None;
    for StoredTensor { name, dtype, .. } in tensors {
        for (method, companion) in signatures(name, *dtype) {
            let names: &HashSet<&str> = names.get_or_insert_with(|| tensors.iter().map(|tensor| tensor.name).collect());
            if names.contains(&*companion) {
                let [codes, companion] = [name, &*companion].map(shorten);
                let message = undecoded_message(method.name, method.what);
                return Err(Error::new(format!(
                    "{message}: '{codes}' and '{companion}' have the names of its tensors"
                )));
            }
        }
    }
    Ok(())
}
