//! The way to GGUF, and back.

use super::{
    Error, FixtureModel, GgufSource, GgufTensor, MappedSource, MetadataValue, Result, found, keeps_names, may_lack,
    model, models, to_gguf,
};
use crate::blocks::RowOrder;
use std::collections::BTreeMap;

type FixtureTensors = BTreeMap<String, Vec<u64>>;

/// Maps the tensors of a model's checkpoint to GGUF.
fn convert(model: &FixtureModel, checkpoint: &FixtureTensors) -> Result<(&'static str, Vec<GgufTensor>)> {
    convert_with(model, checkpoint, &|_| None)
}

/// The same, with other values of the config.
fn convert_with(
    model: &FixtureModel,
    checkpoint: &FixtureTensors,
    other: &dyn Fn(&str) -> Option<MetadataValue>,
) -> Result<(&'static str, Vec<GgufTensor>)> {
    let tensors: Vec<(&str, &[u64])> =
        checkpoint.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let config = |key: &str| {
        let key = match key {
            "num_hidden_layers" => "block_count",
            "num_attention_heads" => "attention.head_count",
            "num_key_value_heads" => "attention.head_count_kv",
            // In the fixture, both are 16 in all models that have them.
            "qk_nope_head_dim" | "v_head_dim" => return Some(MetadataValue::Integer(16)),
            "n_groups" => return Some(MetadataValue::Integer(2)),
            "linear_num_key_heads" => "ssm.group_count",
            "linear_num_value_heads" => "ssm.time_step_rank",
            "linear_key_head_dim" => "ssm.state_size",
            // In the fixture, the heads of linear attention have 8 rows of values.
            "linear_value_head_dim" => return Some(MetadataValue::Integer(8)),
            _ => return other(key),
        };
        model.metadata.get(&format!("{}.{key}", model.architecture)).copied()
    };
    to_gguf(&model.model_type, &config, &tensors)
}

fn refusal(model: &FixtureModel, change: impl Fn(&mut FixtureTensors)) -> String {
    let mut checkpoint = model.wanted.clone();
    change(&mut checkpoint);
    let error = convert(model, &checkpoint).unwrap_err();
    assert!(keeps_names(&error) || error.advice() == Error::new("").not_in_gguf().advice(), "{error}");
    error.to_string()
}

#[test]
fn all_model_types_have_the_names_and_shapes_of_their_gguf() {
    for model in models() {
        let (architecture, named) = convert(&model, &model.wanted).unwrap();
        assert_eq!(architecture, model.architecture);
        let shapes: BTreeMap<_, _> = named.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
        assert_eq!(shapes, model.tensors.iter().cloned().collect(), "{}", model.model_type);
        assert_eq!(shapes.len(), named.len());
    }
}

#[test]
fn experts_of_qwen_are_single_or_in_two_tensors() {
    let model = model("qwen3_5_moe_text");
    let mut checkpoint = model.wanted.clone();
    let experts = "model.layers.0.mlp.experts.";
    checkpoint.insert(format!("{experts}gate_up_proj"), vec![4, 48, 32]);
    checkpoint.insert(format!("{experts}down_proj"), vec![4, 32, 24]);
    let error = convert(&model, &checkpoint).unwrap_err().to_string();
    assert!(error.ends_with("_exps.weight': is stored in two forms"), "{error}");
    checkpoint
        .retain(|name, _| name.strip_prefix(experts).is_none_or(|rest| !rest.starts_with(|c: char| c.is_numeric())));
    let (_, named) = convert(&model, &checkpoint).unwrap();
    let shapes: BTreeMap<_, _> = named.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    assert_eq!(shapes, model.tensors.iter().cloned().collect());
    let halves = named.iter().filter(|tensor| {
        matches!(tensor.source, GgufSource::Disassembled { assembly, .. }
        if assembly.order == RowOrder::Concatenated)
    });
    assert_eq!(halves.count(), 2);
}

#[test]
fn every_source_is_that_of_the_way_back() {
    for model in models() {
        let (_, named) = convert(&model, &model.wanted).unwrap();
        let checkpoint: Vec<&String> = model.wanted.keys().collect();
        let back = model.map();
        let source = |index: usize| &found(&back, checkpoint[index]).source;
        for tensor in &named {
            let stored = model.tensors.iter().position(|(name, _)| *name == tensor.name).unwrap();
            match &tensor.source {
                GgufSource::Stored(index) => {
                    assert_eq!(*source(*index), MappedSource::Stored { tensor: stored, matrix: None });
                }
                GgufSource::Stacked(experts) => {
                    for (number, index) in (0..).zip(experts) {
                        let matrix = Some((number, experts.len() as u64));
                        assert_eq!(*source(*index), MappedSource::Stored { tensor: stored, matrix });
                    }
                }
                GgufSource::Disassembled { tensor, assembly, at } => {
                    let MappedSource::Assembled { tensors, assembly: wanted } = source(*tensor) else { panic!() };
                    assert_eq!((assembly, tensors[*at]), (wanted, stored), "{}", model.model_type);
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_is_complete_or_refused() {
    for model in models() {
        for name in model.wanted.keys().filter(|name| !name.starts_with("lm_head")) {
            if may_lack(&model.model_type, name) {
                continue;
            }
            let error = refusal(&model, |checkpoint| _ = checkpoint.remove(name));
            assert!(error.contains("is missing") || error.contains(" experts, but "), "{name}: {error}");
        }
    }
}

#[test]
fn computed_tensors_are_left_out_and_others_refused() {
    let model = model("llama");
    let mut checkpoint = model.wanted.clone();
    checkpoint.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![4]);
    assert_eq!(convert(&model, &checkpoint).unwrap().1.len(), model.tensors.len());
    let refused = |name: &str| refusal(&model, |checkpoint| _ = checkpoint.insert(name.to_owned(), vec![32]));
    for name in ["model.layers.0.mlp.gate.weight", "model.layers.01.mlp.up_proj.weight", "lm_head", "lm_head.scale"] {
        assert_eq!(refused(name), format!("tensor '{name}': has no name in llama.cpp's llama"));
    }
    let name = "model.layers.2.mlp.up_proj.weight";
    assert_eq!(refused(name), format!("tensor '{name}': belongs to layer 2, but 'num_hidden_layers' is 2"));
    let error = to_gguf("bloom", &|_| None, &[]).unwrap_err().to_string();
    let start = "tcast has no GGUF names for the model type 'bloom', only for llama, mistral, ";
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn numbers_of_the_config_have_to_fit() {
    let refused = |name: &str, key: &str, value| {
        let (model, value) = (model(name), MetadataValue::Integer(value));
        convert_with(&model, &model.wanted, &|other| (other == key).then_some(value)).unwrap_err().to_string()
    };
    // The last expert of every layer is missing.
    let error = refused("mixtral", "num_local_experts", 5);
    assert_eq!(error, "tensor 'blk.0.ffn_gate_exps.weight': has 4 experts, but 'num_local_experts' is 5");
    assert!(refused("glm4_moe", "n_routed_experts", 3).ends_with("has 4 experts, but 'n_routed_experts' is 3"));
    assert!(refused("gpt_oss", "num_local_experts", 3).ends_with("has 4 experts, but 'num_local_experts' is 3"));
    let error = refused("glm4", "mrope_section", 0);
    assert_eq!(error, "the rows of heads in glm4 models with M-RoPE have another order");
    let error = to_gguf("llama", &|_| None, &[]).unwrap_err().to_string();
    assert_eq!(error, "config.json has no 'num_hidden_layers'");
}

#[test]
fn shapes_that_cannot_be_divided_are_refused() {
    for (name, tensor, shape) in [
        ("llama", "self_attn.q_proj.weight", vec![31, 32]),
        ("gpt_oss", "mlp.experts.gate_up_proj", vec![4, 32, 95]),
        ("gpt_oss", "mlp.experts.gate_up_proj_bias", vec![4]),
        ("gpt_oss", "mlp.experts.down_proj", vec![48, 32]),
        ("granitemoe", "block_sparse_moe.input_linear.weight", vec![4, 95, 32]),
        ("deepseek_v3", "self_attn.kv_b_proj.weight", vec![127, 16]),
        ("deepseek_v3", "self_attn.kv_b_proj.weight", vec![4, 32, 16]),
        ("mixtral", "block_sparse_moe.experts.1.w1.weight", vec![47, 32]),
        ("lfm2", "conv.conv.weight", vec![32, 3]),
        ("kimi_linear", "self_attn.A_log", vec![4]),
        ("kimi_linear", "self_attn.v_conv1d.weight", vec![32]),
        ("nemotron_h", "mixer.norm.weight", vec![63]),
        ("nemotron_h", "mixer.D", vec![4, 1]),
    ] {
        let start = if name == "nemotron_h" { "backbone.layers" } else { "model.layers" };
        let tensor = format!("{start}.0.{tensor}");
        let error = refusal(&model(name), |checkpoint| _ = checkpoint.insert(tensor.clone(), shape.clone()));
        assert!(error.starts_with(&format!("tensor '{tensor}': the shape {shape:?} is not that of ")), "{error}");
    }
    for (name, tensor, shape) in [
        ("llama", "self_attn.k_proj.weight", vec![32, 32]),
        ("granite", "self_attn.k_proj.bias", vec![32]),
        ("mixtral", "self_attn.q_proj.weight", vec![48, 32]),
    ] {
        let error = refusal(&model(name), |checkpoint| {
            _ = checkpoint.insert(format!("model.layers.1.{tensor}"), shape.clone());
        });
        assert!(error.contains(" rows do not fit those of 'model.layers.0.self_attn.k_proj.weight', "), "{error}");
    }
    let name = "model.layers.1.mlp.experts.down_proj";
    let error = refusal(&model("gpt_oss"), |checkpoint| _ = checkpoint.insert(name.to_owned(), vec![3, 48, 32]));
    let wanted = format!("tensor '{name}': has 3 experts, but 'model.layers.0.mlp.experts.down_proj' has 4");
    assert_eq!(error, wanted);
}
