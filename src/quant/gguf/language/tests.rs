use super::super::{MXFP4, NVFP4};
use super::*;
use crate::quant::{SCHEMES, gguf};
use serde_json::Value as Json;
use std::path::Path;

fn scheme(name: &str) -> &'static GgufScheme {
    GgufScheme::find(name).unwrap()
}

const LLAMA: LanguageModel = LanguageModel { architecture: "llama", layers: 32, experts: 0, heads: 32, key_heads: 8 };

/// Returns the names of the types that tensors get, in order; an empty name for tensors that are kept.
fn types(scheme: &GgufScheme, model: &LanguageModel, tensors: &[(&str, &[u64])]) -> Vec<&'static str> {
    let choices = choose(scheme, model, tensors).unwrap();
    choices.into_iter().map(|choice| choice.format().map_or("", |format| format.name)).collect()
}

/// A tensor of the fixture, and the names of its types in all mixes; no names for a tensor that is kept.
struct MixedTensor {
    name: String,
    shape: Vec<u64>,
    types: Vec<&'static str>,
}

/// Returns the tensors of a model in the order of the file.
fn tensors_of(model: &Json, letters: &Json) -> Vec<MixedTensor> {
    let layers = model["layers"].as_u64().unwrap() as usize;
    let type_of = |letter: char| {
        let name = letters[letter.to_string()].as_str().unwrap();
        gguf::FORMATS.iter().find(|format| format.name == name).unwrap().name
    };
    let mut tensors = Vec::new();
    for (name, row) in model["tensors"].as_object().unwrap() {
        let shape: Vec<u64> = serde_json::from_value(row[0].clone()).unwrap();
        let words: Vec<&str> = row[1].as_str().unwrap_or_default().split_whitespace().collect();
        for layer in 0..if name.contains('*') { layers } else { 1 } {
            let letter = |word: &&str| word.chars().cycle().nth(layer).unwrap();
            let types = words.iter().map(|word| type_of(letter(word))).collect();
            tensors.push(MixedTensor { name: name.replace('*', &layer.to_string()), shape: shape.clone(), types });
        }
    }
    tensors.sort_by(|one, other| place(&one.name).cmp(&place(&other.name)));
    tensors
}

#[test]
fn mixes_give_ten_models_the_types_of_llama_quantize() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf/mixes.json");
    let fixture: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mixes: Vec<String> = serde_json::from_value(fixture["mixes"].clone()).unwrap();
    let mut seen = 0;
    for (name, model) in fixture["models"].as_object().unwrap() {
        let number = |key: &str| model[key].as_u64().unwrap();
        let facts = LanguageModel {
            architecture: model["architecture"].as_str().unwrap(),
            layers: number("layers"),
            experts: number("experts"),
            heads: number("heads_per_key"),
            key_heads: 1,
        };
        assert_eq!(facts.is_seventy_billion(), model["is_seventy_billion"].as_bool().unwrap(), "{name}");
        let tensors = tensors_of(model, &fixture["letters"]);
        let pairs: Vec<(&str, &[u64])> =
            tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
        for (index, mix) in mixes.iter().enumerate() {
            for (tensor, found) in tensors.iter().zip(types(scheme(mix), &facts, &pairs)) {
                let expected = tensor.types.get(index).copied().unwrap_or_default();
                assert_eq!(found, expected, "{name}, {mix}: {}", tensor.name);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 8 * 3258);
}

#[test]
fn a_pure_scheme_gives_all_weights_its_type() {
    let names = ["output.weight", "token_embd.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight"];
    let tensors: Vec<(&str, &[u64])> = names.into_iter().map(|name| (name, &[64, 512][..])).collect();
    let model = LanguageModel { experts: 8, ..LLAMA };
    for scheme in SCHEMES.iter().filter_map(|scheme| scheme.gguf.as_ref()).filter(|scheme| !scheme.is_mix()) {
        assert_eq!(types(scheme, &model, &tensors), [scheme.format.name; 4]);
    }
}

#[test]
fn norms_biases_routers_and_vectors_are_kept() {
    let kept = |name, shape: &[u64]| LLAMA.keeping_rule(name, shape);
    assert_eq!(kept("blk.0.attn_q.weight", &[8, 256]), None);
    assert_eq!(kept("blk.0.attn_q.bias", &[8, 256]), Some(KeptRule::NotAWeight));
    assert_eq!(kept("blk.0.attn_q.weight", &[1, 256]), Some(KeptRule::Dimensions));
    assert_eq!(kept("blk.0.attn_q.weight", &[]), Some(KeptRule::Dimensions));
    assert_eq!(kept("blk.0.attn_q.weight", &[256, 1]), None);
    assert_eq!(kept("blk.0.attn_q_norm.weight", &[8, 256]), Some(KeptRule::Name("_norm.weight")));
    assert_eq!(kept("blk.0.ffn_gate_inp.weight", &[8, 256]), Some(KeptRule::Name("ffn_gate_inp.weight")));
    assert_eq!(kept("position_embd.weight", &[8, 256]), Some(KeptRule::Name("position_embd.weight")));
    assert_eq!(kept("v.position_embd.weight", &[8, 256]), Some(KeptRule::Name(".position_embd")));
    assert_eq!(kept("blk.0.attn_k_b.weight", &[8, 256]), None);
    let glm = LanguageModel { architecture: "glm5-next", ..LLAMA };
    assert_eq!(glm.keeping_rule("blk.0.attn_k_b.weight", &[8, 256]), Some(KeptRule::Name("attn_k_b.weight")));
}

#[test]
fn glm5_has_weights_of_8_bits_in_mixes_only() {
    let glm = LanguageModel { architecture: "glm5-next", ..LLAMA };
    let tensors: [(&str, &[u64]); 2] = [("blk.0.attn_q_a.weight", &[8, 256]), ("blk.0.attn_q.weight", &[8, 256])];
    assert_eq!(types(scheme("q4_k_m"), &glm, &tensors), ["Q8_0", "Q4_K"]);
    assert_eq!(types(scheme("q4_k"), &glm, &tensors), ["Q4_K", "Q4_K"]);
    assert_eq!(types(scheme("q4_k_m"), &LLAMA, &tensors), ["Q4_K", "Q4_K"]);
}

#[test]
fn layers_are_in_the_order_of_their_numbers_after_all_other_tensors() {
    let mut names = ["blk.10.a.weight", "v.blk.0.a", "blk.2.b.weight", "blk.2.B.weight", "output.weight", "blk.x"];
    names.sort_by(|one, other| place(one).cmp(&place(other)));
    assert_eq!(names, ["blk.x", "output.weight", "v.blk.0.a", "blk.2.B.weight", "blk.2.b.weight", "blk.10.a.weight"]);
}

#[test]
fn embeddings_are_an_output_if_there_is_no_other() {
    let tied: [(&str, &[u64]); 1] = [("token_embd.weight", &[100, 256])];
    assert_eq!(types(scheme("q4_k_m"), &LLAMA, &tied), ["Q6_K"]);
    let both: [(&str, &[u64]); 2] = [("output.weight", &[100, 256]), ("token_embd.weight", &[100, 256])];
    assert_eq!(types(scheme("q4_k_m"), &LLAMA, &both), ["Q6_K", "Q4_K"]);
    let falcon = LanguageModel { architecture: "falcon", ..LLAMA };
    assert_eq!(types(scheme("q4_k_m"), &falcon, &tied), ["Q8_0"]);
}

#[test]
fn models_of_seventy_billion_have_grouped_heads_or_another_architecture() {
    let model = |architecture, layers, key_heads, experts| LanguageModel {
        architecture,
        layers,
        experts,
        heads: 64,
        key_heads,
    };
    assert!(model("llama", 80, 8, 0).is_seventy_billion());
    assert!(!model("llama", 80, 64, 0).is_seventy_billion());
    assert!(!model("llama", 80, 8, 8).is_seventy_billion());
    assert!(!model("llama", 68, 8, 0).is_seventy_billion());
    assert!(model("qwen2", 80, 64, 0).is_seventy_billion());
    assert!(model("jais2", 68, 64, 0).is_seventy_billion());
}

#[test]
fn a_model_without_key_heads_has_no_groups() {
    let tensors: [(&str, &[u64]); 1] = [("blk.0.attn_v.weight", &[8, 256])];
    let model = |key_heads| LanguageModel { key_heads, ..LLAMA };
    assert_eq!(types(scheme("q2_k_s"), &model(8), &tensors), ["Q4_K"]);
    assert_eq!(types(scheme("q2_k_s"), &model(0), &tensors), ["Q2_K"]);
}

#[test]
fn an_expert_outside_the_layers_is_refused_only_by_a_mix() {
    let model = LanguageModel { experts: 4, ..LLAMA };
    for name in ["blk.32.ffn_down_exps.weight", "blk.32.ffn_up_exps.weight", "ffn_down.weight"] {
        let tensors: [(&str, &[u64]); 1] = [(name, &[4, 8, 256])];
        let error = choose(scheme("q4_k_m"), &model, &tensors).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor '{name}'")), "{error}");
        assert!(choose(scheme("q4_k"), &model, &tensors).is_ok());
        assert!(choose(scheme("q4_k_m"), &LLAMA, &tensors).is_ok());
    }
}

#[test]
fn every_type_falls_back_as_in_llama_quantize() {
    let stored = |wanted, columns| fit(wanted, columns).format().unwrap();
    let pairs = [(Q2_K, Q4_0), (Q4_K, Q5_0), (Q5_K, Q5_1), (Q6_K, Q8_0), (IQ4_XS, IQ4_NL), (TQ2_0, Q4_0)];
    for (wanted, second) in pairs {
        assert_eq!([256, 288, 300].map(|columns| stored(wanted, columns).name), [wanted.name, second.name, "F16"]);
    }
    for wanted in [Q4_0, Q8_0, IQ4_NL, MXFP4, NVFP4] {
        assert_eq!(fit(wanted, 48), TypeChoice::Fallback { wanted, format: gguf::F16 });
    }
}

#[test]
fn importance_is_needed_for_weights_of_two_bits_in_their_small_mix() {
    let small = scheme("q2_k_s");
    assert!(needs_importance(small, "blk.0.attn_q.weight", Q2_K));
    assert!(!needs_importance(small, "blk.0.attn_v.weight", Q4_K));
    assert!(!needs_importance(small, "token_embd.weight", Q2_K));
    assert!(!needs_importance(scheme("q2_k"), "blk.0.attn_q.weight", Q2_K));
}
