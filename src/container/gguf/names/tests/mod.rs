mod reverse;
mod values;

use super::*;
use crate::blocks::{RowOrder, ValueChange};
use crate::error::{Error, Opt};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};

/// True if the remedy is to keep the names of the file.
fn keeps_names(error: &Error) -> bool {
    error.advice().iter().any(|advice| advice.sets(Opt::NAMES))
}
use std::path::Path;

/// A model of the fixture, which a test can change.
struct FixtureModel {
    model_type: String,
    architecture: String,
    metadata: BTreeMap<String, MetadataValue>,
    tensors: Vec<(String, Vec<u64>)>,
    wanted: BTreeMap<String, Vec<u64>>,
}

fn models() -> Vec<FixtureModel> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf/maps.json");
    let json: Json = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let shapes = |json: &Json| -> Vec<(String, Vec<u64>)> {
        let tensors = json.as_object().unwrap().iter();
        tensors.map(|(name, shape)| (name.clone(), serde_json::from_value(shape.clone()).unwrap())).collect()
    };
    let model = |(name, json): (&String, &Json)| {
        let architecture = json["architecture"].as_str().unwrap();
        let keys =
            [("block_count", "layers"), ("attention.head_count", "heads"), ("attention.head_count_kv", "key_heads")];
        let integer = |key| MetadataValue::Integer(json[key].as_u64().unwrap());
        // Key heads, value heads, and the rows of a head of either kind.
        let linear = json.get("linear").map(|numbers| {
            let [keys, values, key_size, value_size] = serde_json::from_value(numbers.clone()).unwrap();
            [
                ("ssm.group_count", keys),
                ("ssm.time_step_rank", values),
                ("ssm.state_size", key_size),
                ("ssm.inner_size", values * value_size),
            ]
            .map(|(key, value)| (key, MetadataValue::Integer(value)))
        });
        let linear = linear.into_iter().flatten();
        FixtureModel {
            model_type: json["type"].as_str().unwrap_or(name).to_owned(),
            architecture: architecture.to_owned(),
            metadata: (keys.into_iter().map(|(key, field)| (key, integer(field))).chain(linear))
                .map(|(key, value)| (format!("{architecture}.{key}"), value))
                .collect(),
            tensors: shapes(&json["gguf"]),
            wanted: shapes(&json["hf"]).into_iter().collect(),
        }
    };
    json.as_object().unwrap().iter().map(model).collect()
}

fn model(name: &str) -> FixtureModel {
    models().into_iter().find(|model| model.model_type == name).unwrap()
}

impl FixtureModel {
    fn map_as(&self, model_type: Option<&str>) -> Result<Vec<MappedTensor>> {
        let tensors: Vec<(&str, &[u64])> =
            self.tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
        to_hugging_face(&self.architecture, model_type, &|key| self.metadata.get(key).copied(), &tensors)
    }

    fn map(&self) -> Vec<MappedTensor> {
        self.map_as(Some(&self.model_type)).unwrap()
    }

    fn error(&self) -> String {
        let error = self.map_as(Some(&self.model_type)).unwrap_err();
        assert!(keeps_names(&error), "{error}");
        error.to_string()
    }

    fn set(mut self, key: &str, value: MetadataValue) -> Self {
        self.metadata.insert(format!("{}.{key}", self.architecture), value);
        self
    }

    fn without(mut self, names: &[&str]) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(name, _)| !names.contains(&name.as_str()));
        assert_eq!(self.tensors.len(), before - names.len());
        self
    }

    fn with(mut self, name: &str, shape: &[u64]) -> Self {
        self.tensors.retain(|(other, _)| other != name);
        self.tensors.push((name.to_owned(), shape.to_vec()));
        self
    }
}

fn found<'a>(mapped: &'a [MappedTensor], name: &str) -> &'a MappedTensor {
    mapped.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name} is missing"))
}

#[test]
fn all_model_types_have_the_names_and_shapes_of_their_checkpoints() {
    let models = models();
    let types = |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect::<BTreeSet<_>>();
    let known = types(&mut MODEL_TYPES.iter().map(|row| row.name));
    assert_eq!(types(&mut models.iter().map(|model| model.model_type.as_str())), known);
    for model in &models {
        let mapped = model.map();
        let named: BTreeMap<_, _> = mapped.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
        assert_eq!(named, model.wanted, "{}", model.model_type);
        assert_eq!(named.len(), mapped.len(), "{}", model.model_type);
        // Without a model type, the tensors decide.
        assert_eq!(model.map_as(None).unwrap(), mapped, "{}", model.model_type);
    }
}

#[test]
fn a_matrix_of_one_row_has_two_dimensions_in_hugging_face() {
    // llama.cpp's converter writes [1, 32], and its quantizer [32].
    for shape in [&[1, 32][..], &[32]] {
        let model = model("qwen2_moe").with("blk.0.ffn_gate_inp_shexp.weight", shape);
        let mapped = model.with("blk.0.ffn_gate_inp_shexp.scale", &[1]).map();
        let shape = |name: &str| &*found(&mapped, &format!("model.layers.0.mlp.shared_expert_gate.{name}")).shape;
        assert_eq!((shape("weight"), shape("scale")), (&[1, 32][..], &[1][..]));
    }
}

/// Tensors that some layers or models have, by model types and by the ends of their names in either form.
const NOT_IN_ALL: [(&str, &[&str]); 4] = [
    (
        "nemotron_h",
        &[
            "conv1d.bias",
            "ffn_latent_down.weight",
            "ffn_latent_up.weight",
            "fc1_latent_proj.weight",
            "fc2_latent_proj.weight",
        ],
    ),
    ("mimo_v2_flash", &["attn_sinks.weight", "attention_sink_bias"]),
    ("lfm2_moe", &["exp_probs_b.bias", "expert_bias"]),
    (
        "gemma4_text",
        &[
            "attn_v.weight",
            "v_proj.weight",
            "layer_output_scale.weight",
            "layer_scalar",
            "per_layer_token_embd.weight",
            "embed_tokens_per_layer.weight",
            "per_layer_model_proj.weight",
            "per_layer_model_projection.weight",
            "per_layer_proj_norm.weight",
            "per_layer_projection_norm.weight",
        ],
    ),
];

/// True if a model without the tensor may be complete.
fn may_lack(model_type: &str, name: &str) -> bool {
    NOT_IN_ALL.iter().any(|(known, ends)| *known == model_type && ends.iter().any(|end| name.ends_with(end)))
}

#[test]
fn a_model_lacks_no_required_tensor_unnoticed() {
    // The fixture has no model with such a tensor.
    const OPTIONAL: [&str; 2] = ["output.weight", "output.bias"];
    for mut model in models() {
        for at in 0..model.tensors.len() {
            let removed = model.tensors.remove(at);
            if !OPTIONAL.contains(&removed.0.as_str()) && !may_lack(&model.model_type, &removed.0) {
                let error = model.error();
                let is_named = error.contains(&format!("tensor '{}': is missing", removed.0));
                assert!(is_named, "{}: {} gives {error}", model.model_type, removed.0);
            }
            model.tensors.insert(at, removed);
        }
    }
}

#[test]
fn results_have_the_order_of_the_stored_tensors() {
    let mut model = model("mixtral");
    model.tensors.reverse();
    let mapped = model.map();
    let at = |name: &str| mapped.iter().position(|tensor| tensor.name == name).unwrap();
    assert_eq!(at("model.embed_tokens.weight"), 0);
    let expert = |number| at(&format!("model.layers.1.block_sparse_moe.experts.{number}.w1.weight"));
    assert!((1..4).all(|number| expert(number) == expert(0) + number));
    let index = model.tensors.iter().position(|(name, _)| name == "blk.1.ffn_gate_exps.weight").unwrap();
    assert_eq!(mapped[expert(2)].source, MappedSource::Stored { tensor: index, matrix: Some((2, 4)) });
}

#[test]
fn generated_tensors_are_left_out() {
    let plain = model("llama").map();
    let mut model = model("llama").with("rope_freqs.weight", &[8]).with("rope_factors_long.weight", &[8]);
    assert_eq!(model.map(), plain);
    model.tensors.rotate_right(2);
    let mapped = model.map();
    assert!(matches!(&mapped[0].source, MappedSource::Assembled { tensors, .. } if *tensors == [2]));
}

#[test]
fn a_head_and_tied_embeddings_are_both_accepted() {
    let mapped = model("llama").without(&["output.weight"]).map();
    assert!(mapped.iter().all(|tensor| tensor.name != "lm_head.weight"));
    let error = model("phi").without(&["output.weight"]).error();
    let wanted = "tensor 'output.weight': is missing, but 'output.bias' is there; in Hugging Face's phi it is \
                  'lm_head.weight'";
    assert_eq!(error, wanted);
}

#[test]
fn queries_and_keys_of_llama_are_permuted_by_their_numbers_of_heads() {
    let mapped = model("llama").with("blk.0.attn_q.bias", &[32]).with("blk.1.attn_q.bias", &[32]).map();
    let assembly = |name: &str| match &found(&mapped, name).source {
        MappedSource::Assembled { assembly, .. } => Some(*assembly),
        MappedSource::Stored { .. } => None,
    };
    let heads = |count| Assembly { order: RowOrder::Heads(count), ..Assembly::default() };
    assert_eq!(assembly("model.layers.0.self_attn.q_proj.weight"), Some(heads(4)));
    assert_eq!(assembly("model.layers.0.self_attn.k_proj.weight"), Some(heads(2)));
    assert_eq!(
        assembly("model.layers.1.self_attn.q_proj.bias"),
        Some(Assembly { rows_are_elements: true, ..heads(4) })
    );
    assert_eq!(assembly("model.layers.0.self_attn.v_proj.weight"), None);
}

#[test]
fn one_is_subtracted_from_weights_of_norms_only() {
    let less_one = |name: &str, tensor: &str| {
        let mapped = model(name).map();
        matches!(&found(&mapped, tensor).source, MappedSource::Assembled { assembly, .. } if assembly.change == ValueChange::LessOne)
    };
    for name in ["gemma2", "gemma3_text", "nemotron"] {
        assert!(less_one(name, "model.norm.weight"), "{name}");
        assert!(less_one(name, "model.layers.0.input_layernorm.weight"), "{name}");
        assert!(!less_one(name, "model.layers.0.self_attn.q_proj.weight"), "{name}");
    }
    assert!(less_one("gemma3_text", "model.layers.1.self_attn.k_norm.weight"));
    assert!(!less_one("nemotron", "model.norm.bias"));
    assert!(!less_one("qwen3", "model.norm.weight"));
}

#[test]
fn scales_are_renamed_along_with_their_weights() {
    let model = model("mixtral")
        .with("blk.0.attn_q.scale", &[1])
        .with("blk.0.attn_q.input_scale", &[1])
        .with("blk.1.ffn_up_exps.scale", &[4]);
    let mapped = model.map();
    let tensors = model.tensors.len();
    let scale = found(&mapped, "model.layers.0.self_attn.q_proj.scale");
    assert_eq!(scale.source, MappedSource::Stored { tensor: tensors - 3, matrix: None });
    assert_eq!(found(&mapped, "model.layers.0.self_attn.q_proj.input_scale").shape, [1]);
    let scale = found(&mapped, "model.layers.1.block_sparse_moe.experts.3.w3.scale");
    assert_eq!(scale.source, MappedSource::Stored { tensor: tensors - 1, matrix: Some((3, 4)) });
    assert_eq!(scale.shape, [1]);
    // Two scales cannot belong to one tensor.
    let error = self::model("gpt_oss").with("blk.0.ffn_up_exps.scale", &[4]).error();
    assert_eq!(error, "tensor 'blk.0.ffn_up_exps.scale': has no name in Hugging Face's gpt_oss");
    let error = self::model("llama").with("blk.0.attn_norm.scale", &[1]).error();
    assert_eq!(error, "tensor 'blk.0.attn_norm.scale': has no name in Hugging Face's llama");
}

#[test]
fn the_alternatives_of_deepseek_are_read() {
    let names = ["blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"];
    let model = model("deepseek_v2").without(&names).with("blk.0.attn_kv_b.weight", &[128, 16]);
    let mapped = model.map();
    let source = MappedSource::Stored { tensor: model.tensors.len() - 1, matrix: None };
    assert_eq!(found(&mapped, "model.layers.0.self_attn.kv_b_proj.weight").source, source);
    let wanted = "tensor 'blk.0.attn_kv_b.weight': cannot be in the same layer as 'blk.0.attn_k_b.weight'";
    assert_eq!(self::model("deepseek_v2").with("blk.0.attn_kv_b.weight", &[128, 16]).error(), wanted);

    let names = ["blk.1.attn_q_a.weight", "blk.1.attn_q_a_norm.weight", "blk.1.attn_q_b.weight"];
    let model = self::model("deepseek_v2").without(&names).with("blk.1.attn_q.weight", &[96, 32]);
    assert_eq!(found(&model.map(), "model.layers.1.self_attn.q_proj.weight").shape, [96, 32]);
}

#[test]
fn an_unknown_architecture_is_refused_with_the_others() {
    let mut model = model("llama");
    "bloom".clone_into(&mut model.architecture);
    for model_type in [None, Some("bloom")] {
        let error = model.map_as(model_type).unwrap_err().to_string();
        let start = "tcast has no Hugging Face names for the architecture 'bloom', only for llama, qwen2, qwen3, ";
        assert!(error.starts_with(start), "{error}");
        assert_eq!(error.matches("llama").count(), 1);
        assert_eq!(error.matches(", ").count(), 39);
    }
}

#[test]
fn a_model_type_of_another_architecture_is_refused() {
    let error = model("llama").map_as(Some("qwen3")).unwrap_err().to_string();
    let wanted = "the model type 'qwen3' does not fit the GGUF architecture 'llama' of llama, mistral, mixtral";
    assert_eq!(error, wanted);
    let error = model("mixtral").map_as(Some("mistral")).unwrap_err().to_string();
    assert_eq!(error, "tensor 'blk.0.ffn_down_exps.weight': has no name in Hugging Face's mistral");
}

#[test]
fn a_tensor_without_a_name_is_refused() {
    let unnamed =
        ["blk.0.nextn.eh_proj.weight", "blk.0.attn_q_norm.weight", "blk.00.attn_q.weight", "blk.+1.attn_q.bias"];
    let unnamed = [&unnamed[..], &["attn_q.weight", "blk.0.output.weight", "blk.0.attn_norm.bias", "blk.0.attn_q"]];
    for name in unnamed.concat() {
        let wanted = format!("tensor '{name}': has no name in Hugging Face's llama");
        assert_eq!(model("llama").with(name, &[32]).error(), wanted);
    }
}

#[test]
fn layers_are_those_of_the_metadata() {
    let error = model("glm4_moe").set("block_count", MetadataValue::Integer(1)).error();
    assert_eq!(error, "tensor 'blk.1.attn_k.weight': belongs to layer 1, but 'glm4moe.block_count' is 1");
    // A layer that is missing ends the check, so that a huge number is no problem.
    for layers in [3, u64::MAX] {
        let error = model("llama").set("block_count", MetadataValue::Integer(layers)).error();
        let wanted = "tensor 'blk.2.attn_norm.weight': is missing; in Hugging Face's llama it is \
                      'model.layers.2.input_layernorm.weight'";
        assert_eq!(error, wanted);
    }
    let mut model = model("llama");
    model.metadata.remove("llama.block_count");
    assert_eq!(model.error(), "the metadata has no 'llama.block_count'");
    let error = self::model("llama").set("block_count", MetadataValue::Other).error();
    assert_eq!(error, "'llama.block_count' of the metadata is not a single integer");
}

#[test]
fn an_optional_tensor_is_in_all_layers_or_none() {
    let complete = model("llama").with("blk.0.attn_o.bias", &[32]);
    assert!(complete.error().contains("has no name"));
    let error = model("llama").with("blk.1.attn_output.bias", &[32]).error();
    let wanted = "tensor 'blk.0.attn_output.bias': is missing, but 'blk.1.attn_output.bias' is there; in Hugging Face's \
                  llama it is 'model.layers.0.self_attn.o_proj.bias'";
    assert_eq!(error, wanted);
    model("llama").with("blk.0.attn_output.bias", &[32]).with("blk.1.attn_output.bias", &[32]).map();
}

#[test]
fn numbers_of_heads_that_do_not_fit_are_refused() {
    let integer = MetadataValue::Integer;
    for heads in [0, 3, 32, 33, u64::MAX] {
        let error = model("llama").set("attention.head_count", integer(heads)).error();
        assert!(error.contains("'blk.0.attn_"), "{error}");
        assert!(error.contains("is not that of") || error.contains("do not fit queries of"), "{error}");
    }
    let error = model("llama").set("attention.head_count_kv", integer(3)).error();
    let wanted = "tensor 'blk.0.attn_k.weight': the shape [16, 32] is not that of 3 heads with pairs of rows \
                  ('llama.attention.head_count_kv')";
    assert_eq!(error, wanted);
    let error = model("llama").set("attention.head_count_kv", integer(4)).error();
    let wanted = "tensor 'blk.0.attn_k.weight': heads of 16 / 4 rows do not fit queries of 32 / 4 rows";
    assert_eq!(error, wanted);
    let error = model("llama").set("attention.head_count_kv", MetadataValue::Other).error();
    assert!(error.ends_with("'llama.attention.head_count_kv' of the metadata is not a single integer"), "{error}");
    // A list has the number of each layer, which the rows have, too.
    let with_list = model("llama").set("attention.head_count_kv", MetadataValue::List);
    assert_eq!(with_list.map(), model("llama").map());
    let mut model = model("llama");
    model.metadata.remove("llama.attention.head_count");
    assert!(model.error().contains("the metadata has no 'llama.attention.head_count'"));
    // Where nothing depends on them, they do not matter.
    let mut model = self::model("qwen2");
    model.metadata.retain(|key, _| key.ends_with("block_count"));
    model.map();
}

#[test]
fn numbers_of_experts_that_differ_are_refused() {
    let error = model("mixtral").with("blk.0.ffn_up_exps.weight", &[3, 48, 32]).error();
    assert!(error.ends_with("has 3 experts, but 'blk.0.ffn_down_exps.weight' has 4"), "{error}");
    let error = model("qwen3_moe").set("expert_count", MetadataValue::Integer(8)).error();
    assert!(error.ends_with("has 4 experts, but 'qwen3moe.expert_count' is 8"), "{error}");
    let error = model("mixtral").with("blk.0.ffn_up_exps.scale", &[1]).error();
    assert!(error.contains("'blk.0.ffn_up_exps.scale': has 1 experts"), "{error}");
    let error = model("olmoe").with("blk.0.ffn_down_exps.weight", &[32, 48]).error();
    assert!(error.contains("experts"), "{error}");
    for count in [0, 4097, u64::MAX] {
        let mut model = model("mixtral");
        let stacks = model.tensors.iter_mut().filter(|(name, _)| name.contains("_exps"));
        stacks.for_each(|(_, shape)| shape[0] = count);
        let error = model.error();
        assert!(error.ends_with(&format!("has {count} experts; the supported number is 1 to 4096")), "{error}");
    }
}

#[test]
fn shapes_that_form_no_tensor_are_refused() {
    for (name, tensor, shape) in [
        ("granitemoe", "blk.0.ffn_up_exps.weight", &[4, 48, 31][..]),
        ("granitemoe", "blk.0.ffn_up_exps.weight", &[4, u64::MAX, 32]),
        ("gpt_oss", "blk.0.ffn_up_exps.weight", &[4, 47, 32]),
        ("gpt_oss", "blk.0.ffn_up_exps.bias", &[4, 47]),
        ("gpt_oss", "blk.0.ffn_down_exps.weight", &[4, 32]),
        ("deepseek_v3", "blk.0.attn_k_b.weight", &[64, 16]),
        ("deepseek_v3", "blk.0.attn_v_b.weight", &[3, 16, 16]),
        ("deepseek_v3", "blk.0.attn_v_b.weight", &[4, u64::MAX / 4, 16]),
    ] {
        let error = model(name).with(tensor, shape).error();
        assert!(error.contains(" do not form Hugging Face's 'model.layers.0."), "{error}");
    }
    let error = model("mixtral").with("blk.0.ffn_up_exps.weight", &[4, 48]).error();
    assert!(error.ends_with("the shape [4, 48] is not that of a stack of matrices"), "{error}");
}

#[test]
fn outermost_lengths_of_one_that_ggml_drops_return() {
    let kimi = model("kimi_linear");
    let short = kimi.with("blk.0.ssm_a", &[4, 1]).with("blk.0.ssm_conv1d_q.weight", &[32, 1, 4]);
    let mapped = short.map();
    assert_eq!(found(&mapped, "model.layers.0.self_attn.A_log").shape, [1, 1, 4, 1]);
    assert_eq!(found(&mapped, "model.layers.0.self_attn.q_conv1d.weight").shape, [32, 1, 4]);
}

#[test]
fn models_with_mrope_are_refused() {
    let error = model("glm4").set("rope.dimension_sections", MetadataValue::Other).error();
    assert_eq!(error, "the rows of heads in glm4 models with M-RoPE have another order");
}

#[test]
fn the_documentation_names_all_architectures_and_their_numbers() {
    let read = |name| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let (guide, changes) = (read("docs/gguf.md"), read("CHANGELOG.md"));
    for row in MODEL_TYPES {
        for architecture in row.architectures() {
            assert!(guide.contains(&format!("`{architecture}`")), "{architecture}");
        }
    }
    let formats = crate::blocks::FORMATS.iter().filter(|format| format.dtype.is_none()).count();
    let changes = changes.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(changes.contains(&format!("for {} kinds of models", MODEL_TYPES.len())));
    assert!(changes.contains(&format!("all {formats} block types")));
}
