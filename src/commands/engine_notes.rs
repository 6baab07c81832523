//! Notes about engines that do not run a quantized model, as documented or shown by a trial.
//!
//! The notes about transformers hold for 5.23.0 with compressed-tensors 0.20.0. They depend on names and on the layout,
//! so files that compressed-tensors itself writes are affected too. `tests/interop/transformers_quantizes.py` tries them.

use crate::dtype::Dtype;
use crate::plan::QuantizePlan;
use crate::quant::{CodeValues, Layout, Precision, QuantMethod, Scheme};
use std::collections::BTreeSet;

/// A reason why transformers does not load a kind of model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadProblem {
    /// It initializes `weight` of each linear layer, which a layer of packed codes does not have.
    NoWeight,
    /// It divides or joins weights while it loads them, which packed codes do not allow.
    Divided,
    /// It has rules for weights of this model that exclude each other for every quantized model.
    Conversion,
    /// It has other names for the modules than the file, and config.json has the names in the file.
    Renamed,
}

/// Kinds of models (`model_type`) that transformers does not load in some schemes, separated by spaces.
const MODELS: &[(LoadProblem, &str)] = &[
    (
        LoadProblem::NoWeight,
        "bridgetower clap clipseg data2vec-audio dinov3_vit falcon falcon_mamba gpt_bigcode groupvit ijepa kosmos-2 longt5 \
         mamba mgp-str mlcd_vision_model modernbert modernbert-decoder modernvbert mt5 nanochat neomme owlv2 owlvit \
         pix2struct pop2piano pvt pvt_v2 recurrent_gemma rwkv siglip siglip2 switch_transformers t5 timesformer udop umt5 \
         unispeech vitdet vjepa2 wav2vec2 wavlm xclip xlstm",
    ),
    (LoadProblem::Divided, "bailing_hybrid gte hrm_text jina_embeddings_v3 kimi_linear nomic_bert olmo_hybrid"),
    (LoadProblem::Conversion, "dinov2 dinov2_with_registers"),
    (
        LoadProblem::Renamed,
        "audio-spectrogram-transformer axk2 beit cohere_asr deepseek_v4 deit hy_v3 hy_v4 ijepa laguna nemotron_h segformer \
         swin ultrabert vit vit_msn",
    ),
];

/// Argument with which transformers decodes all weights while it loads them.
const DECODES: &str = "quantization_config=CompressedTensorsConfig(dequantize=True)";

/// The name of a scheme, and the layout that stores it.
type StoredScheme = (&'static str, &'static Layout);

/// Returns notes about weights that engines may not load or run.
pub(super) fn engine_notes(plan: &QuantizePlan) -> Vec<String> {
    let resolved = |pairs: &BTreeSet<(&'static str, &'static str)>| -> Vec<StoredScheme> {
        let stored = |&(scheme, name)| Some((scheme, Scheme::find(scheme)?.in_layout(Some(name))?.row));
        pairs.iter().filter_map(stored).collect()
    };
    let stored = resolved(&plan.stored);
    let mut notes = Vec::new();
    for &(scheme, layout) in &stored {
        notes.extend(of_engines(scheme, layout).map(str::to_owned));
        notes.extend(of_dtype(scheme, layout, plan.computes_in));
    }
    notes.extend(resolved(&plan.experts).into_iter().filter_map(|(scheme, layout)| of_experts(scheme, layout)));
    if let [whole, language, ..] = &plan.kinds[..]
        && whole != language
        && stored.iter().any(|(_, layout)| layout.method == QuantMethod::Mlx)
    {
        notes.push(format!(
            "mlx-vlm has other names for modules of '{whole}', and transposed convolutions: tcast keeps those of Hugging Face"
        ));
    }
    for (problem, kinds) in MODELS {
        let kind = plan.kinds.iter().find(|kind| kinds.split(' ').any(|other| other == kind.as_str()));
        notes.extend(kind.and_then(|kind| of_model(*problem, kind, &stored, plan.has_kept_layers)));
    }
    notes
}

/// Returns the note about a scheme that engines do not run, by their documentation or their libraries.
fn of_engines(scheme: &str, layout: &Layout) -> Option<&'static str> {
    match scheme {
        _ if layout.method != QuantMethod::CompressedTensors => None,
        "mxfp6" => Some("mxfp6 needs compressed-tensors 0.20; vLLM 0.33 and SGLang 0.5.23 have older versions"),
        "int8" => Some("vLLM does not run int8 on GPUs of compute capability 10 and higher"),
        _ => None,
    }
}

/// Returns the note about layouts that compressed-tensors decodes to bfloat16, whatever the model computes in.
fn of_dtype(scheme: &str, layout: &Layout, computes_in: Option<Dtype>) -> Option<String> {
    let is_bfloat16 =
        layout.method == QuantMethod::CompressedTensors && layout.product_precision == Precision::Bfloat16;
    let dtype = computes_in.filter(|dtype| is_bfloat16 && *dtype != Dtype::Bfloat16)?;
    Some(format!(
        "transformers 5.23 decodes {scheme} to bfloat16, and fails to compute with it in {dtype}: load the model with \
         dtype=torch.bfloat16"
    ))
}

/// Returns the note about experts in a scheme that transformers does not decode to their values.
fn of_experts(scheme: &str, layout: &Layout) -> Option<String> {
    let instead = match scheme {
        _ if layout.method != QuantMethod::CompressedTensors => return None,
        "nvfp4" => {
            let what = "transformers 5.23 loads nvfp4 experts without their global scales, and computes wrong results";
            return Some(what.to_owned());
        }
        "fp8-block" => "; it loads --layout huggingface",
        "mxfp8" => "; it loads --layout mxfp8",
        "int8" => "; it loads --scheme int8a16",
        _ => return None,
    };
    Some(format!("transformers 5.23 does not load {scheme} experts in the layout compressed-tensors{instead}"))
}

/// Returns the note about a kind of model that transformers does not load.
fn of_model(problem: LoadProblem, kind: &str, stored: &[StoredScheme], has_kept_layers: bool) -> Option<String> {
    let is_of = |method: QuantMethod| stored.iter().any(|(_, layout)| layout.method == method);
    let (is_mixed, is_compressed) = (stored.len() > 1, is_of(QuantMethod::CompressedTensors));
    let packed = || {
        let is_packed = stored.iter().find(|(_, layout)| layout.codes.values != CodeValues::Stored);
        is_packed.filter(|_| is_compressed).map(|(scheme, _)| scheme)
    };
    let what = match problem {
        LoadProblem::NoWeight if is_mixed => format!("does not load {} of '{kind}'; it loads --scheme fp8", packed()?),
        LoadProblem::NoWeight => {
            format!("loads {} of '{kind}' only with {DECODES}; it loads --scheme fp8 without it", packed()?)
        }
        LoadProblem::Divided => format!("does not load {} of '{kind}'; it loads --scheme fp8", packed()?),
        LoadProblem::Conversion if is_compressed || is_of(QuantMethod::FineGrained) => {
            format!("loads no quantized '{kind}'; it loads what tcast dequantize makes of it")
        }
        LoadProblem::Renamed if is_compressed && is_mixed => {
            format!("has other names for the modules of '{kind}', and finds none of them: choose one scheme for all")
        }
        LoadProblem::Renamed if is_compressed && has_kept_layers => {
            format!("has other names for the modules of '{kind}', and loads those that are kept only with {DECODES}")
        }
        LoadProblem::Conversion | LoadProblem::Renamed => return None,
    };
    Some(format!("transformers 5.23 {what}"))
}
