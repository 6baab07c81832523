//! Names of output heads that share the weight of the embeddings, by kind of model.
//!
//! Files do not contain such a weight, so only the kind of the model tells its name. Engines must know that it is not
//! quantized, or they wait for its scales. `tests/interop/transformers_quantizes.py` compares the list with the classes of
//! transformers.

/// Modules of heads, and the kinds of models (`model_type`) that have them.
const HEADS: &[(&[&str], &[&str])] = &[
    (
        &["cls.predictions.decoder"],
        &[
            "bert",
            "big_bird",
            "deberta",
            "deberta-v2",
            "ernie",
            "fnet",
            "layoutlm",
            "lxmert",
            "megatron-bert",
            "mobilebert",
            "mra",
            "nomic_bert",
            "nystromformer",
            "roc_bert",
            "roformer",
            "squeezebert",
            "tapas",
            "visual_bert",
            "yoso",
        ],
    ),
    (&["cls.predictions.decoder", "text_decoder.cls.predictions.decoder"], &["blip_text_model"]),
    (
        &["lm_head.decoder"],
        &[
            "bert-generation",
            "camembert",
            "data2vec-text",
            "esm",
            "gte",
            "ibert",
            "jina_embeddings_v3",
            "longformer",
            "mpnet",
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
        ],
    ),
    (&["lm_head.decoder", "entity_predictions.decoder"], &["luke"]),
    (&["proj_out"], &["canary", "cohere_asr", "moonshine", "moonshine_streaming", "whisper"]),
    (&["decoder", "lm_head"], &["modernbert", "modernbert-decoder"]),
    (&["decoder.output_projection"], &["fsmt"]),
    (&["embed_out"], &["gpt_neox_japanese"]),
    (&["generator_lm_head"], &["convbert", "electra"]),
    (&["head"], &["rwkv"]),
    (&["head.decoder", "lm_head"], &["ultrabert"]),
    (&["lm_head", "unembedding_projection"], &["neomme"]),
    (&["lm_head.out_proj"], &["t5gemma", "t5gemma2"]),
    (&["lm_loss"], &["xlnet"]),
    (&["mlm_score.decoder"], &["bridgetower", "bridgetower_text_model", "vilt"]),
    (&["output"], &["git"]),
    (&["output_projection"], &["biogpt", "trocr"]),
    (&["pred_layer.proj"], &["flaubert", "xlm"]),
    (&["predictions.decoder"], &["albert"]),
    (&["text_decoder_postnet.lm_head"], &["speecht5"]),
    (&["lm_head", "text_model.lm_head"], &["kosmos_2_text_model", "kosmos_2_5_text_model"]),
    (&["vocab_projector"], &["distilbert"]),
];

/// Returns the modules of the output heads of a kind of model.
pub(crate) fn heads(kind: Option<&str>) -> &'static [&'static str] {
    let row = HEADS.iter().find(|(_, kinds)| kind.is_some_and(|kind| kinds.contains(&kind)));
    row.map_or(&["lm_head"], |(names, _)| names)
}

/// True if a module is one of these heads, whatever it is part of.
pub(crate) fn is_head(heads: &[&str], module: &str) -> bool {
    let is_part = |rest: &str| rest.is_empty() || rest.ends_with('.');
    heads.iter().any(|head| module.strip_suffix(head).is_some_and(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_have_other_names_in_some_models() {
        assert_eq!(heads(Some("biogpt")), ["output_projection"]);
        assert_eq!(heads(Some("llama")), ["lm_head"]);
        assert_eq!(heads(None), ["lm_head"]);
    }

    #[test]
    fn a_head_may_be_part_of_a_larger_model() {
        assert!(is_head(&["lm_head"], "lm_head") && is_head(&["lm_head"], "language_model.lm_head"));
        assert!(!is_head(&["decoder"], "cls.my_decoder") && !is_head(&["output"], "attention.output.dense"));
    }

    #[test]
    fn each_kind_of_model_is_listed_once() {
        let mut kinds: Vec<&str> = HEADS.iter().flat_map(|(_, kinds)| kinds.iter().copied()).collect();
        kinds.sort_unstable();
        let count = kinds.len();
        kinds.dedup();
        assert_eq!(kinds.len(), count);
    }
}
