//! The configs of quantized checkpoints, against those that the libraries write: `fixtures/quantized/configs.json`.

use serde_json::{Value, json};
use std::fs;
use tcast::dtype::Dtype;
use tcast::quant::{CodeType, EngineConfig, Group, KeptModules, QuantizedGroup, TargetGrid, find};

/// A block that a library has written.
fn written(name: &str) -> Value {
    let all: Value = serde_json::from_slice(&fs::read("fixtures/quantized/configs.json").unwrap()).unwrap();
    all.get(name).unwrap_or_else(|| panic!("{name}")).clone()
}

fn group(layout: &str, group: Group, bits: u32) -> QuantizedGroup<'static> {
    let codes = match (layout, bits) {
        ("ct-int8" | "ct-pack", _) => CodeType::Int { bits, symmetric: true },
        (_, 4) => CodeType::Float(Dtype::Float4E2M1),
        _ => CodeType::Float(Dtype::Float8E4M3FN),
    };
    let scale = layout.contains("-mx").then_some(Dtype::Uint8);
    QuantizedGroup {
        layout: find(layout).unwrap_or_else(|| panic!("{layout}")),
        grid: TargetGrid { codes, group, scale },
        has_input_scale: false,
        preset: None,
        unlike_linear: Vec::new(),
        modules: vec!["a.q_proj"],
    }
}

fn config(groups: &[QuantizedGroup], kept: &[&str]) -> EngineConfig {
    EngineConfig::new(groups, &KeptModules { modules: kept.to_vec(), ..KeptModules::default() }).unwrap()
}

fn block(group: &QuantizedGroup, kept: &[&str]) -> Value {
    config(std::slice::from_ref(group), kept).block.unwrap()
}

#[test]
fn blocks_of_compressed_tensors_are_those_that_it_writes() {
    for (name, layout, of, bits) in [
        ("fp8-dynamic", "ct-fp8", Group::Channel, 8),
        ("fp8-block", "ct-fp8", Group::Block([128, 128]), 8),
        ("nvfp4a16", "ct-nvfp4", Group::Neighbours(16), 4),
        ("mxfp4a16", "ct-mxfp4", Group::Neighbours(32), 4),
        ("mxfp8", "ct-mxfp8", Group::Neighbours(32), 8),
        ("w4a16", "ct-pack", Group::Neighbours(128), 4),
        ("w8a8", "ct-int8", Group::Channel, 8),
    ] {
        let preset = Some("group_0".to_owned());
        let group = QuantizedGroup { preset, ..group(layout, of, bits) };
        assert_eq!(block(&group, &["lm_head"]), written(&format!("compressed-tensors-{name}")), "{name}");
    }
    let with_activations = QuantizedGroup {
        has_input_scale: true,
        preset: Some("group_0".to_owned()),
        ..group("ct-nvfp4", Group::Neighbours(16), 4)
    };
    assert_eq!(block(&with_activations, &["lm_head"]), written("compressed-tensors-nvfp4"));
}

#[test]
fn blocks_of_whole_checkpoints_are_those_of_llmcompressor() {
    for (name, preset, layout, of, bits) in [
        ("llmcompressor-nvfp4a16", "NVFP4A16", "ct-nvfp4", Group::Neighbours(16), 4),
        ("llmcompressor-fp8-block", "FP8_BLOCK", "ct-fp8", Group::Block([128, 128]), 8),
    ] {
        let group = QuantizedGroup { preset: Some(preset.to_owned()), ..group(layout, of, bits) };
        assert_eq!(block(&group, &["model.embed_tokens", "lm_head"]), written(name));
    }
}

#[test]
fn blocks_of_float8_are_those_of_deepseek_and_mean_the_same_to_transformers() {
    let fp8 = group("hf-fp8", Group::Block([128, 128]), 8);
    let kept = ["model.layers.0.mlp.gate", "lm_head"];
    assert_eq!(block(&fp8, &kept), written("deepseek-fp8-block"));
    // The other members that transformers writes are defaults.
    let defaults =
        json!({"dequantize": false, "expert_dtype": "fp8", "modules_to_convert": null, "scale_fmt": "float"});
    let mut wanted = written("transformers-fp8-block");
    for (key, value) in defaults.as_object().unwrap() {
        assert_eq!(wanted.as_object_mut().unwrap().remove(key).as_ref(), Some(value), "{key}");
    }
    wanted["fmt"] = json!("e4m3");
    assert_eq!(block(&fp8, &["lm_head"]), wanted);
    let exponents = QuantizedGroup { grid: TargetGrid { scale: Some(Dtype::Float8E8M0), ..fp8.grid }, ..fp8 };
    assert_eq!(block(&exponents, &[])["scale_fmt"], "ue8m0");
    assert_eq!(block(&group("hf-fp8", Group::Block([1, 32]), 8), &["lm_head"]), written("mxfp8"));
}

#[test]
fn modelopt_gets_both_of_its_files() {
    let nvfp4 = QuantizedGroup { has_input_scale: true, ..group("modelopt-nvfp4", Group::Neighbours(16), 4) };
    let both = config(&[nvfp4], &["lm_head"]);
    assert_eq!(both.block.unwrap(), written("modelopt-nvfp4"));
    assert_eq!(both.hf_quant_config.unwrap(), written("modelopt-nvfp4-hf_quant_config"));
    let weights = config(&[group("modelopt-nvfp4", Group::Neighbours(16), 4)], &["lm_head"]).block.unwrap();
    assert_eq!(weights["quant_algo"], "W4A16_NVFP4");
    assert_eq!(weights["config_groups"]["group_0"].get("input_activations"), None);
    for (layout, of, bits, algorithm) in [
        ("modelopt-fp8", Group::Channel, 8, "FP8_PER_CHANNEL_PER_TOKEN"),
        ("modelopt-fp8", Group::Block([128, 128]), 8, "FP8_PB_WO"),
        ("modelopt-mxfp8", Group::Neighbours(32), 8, "MXFP8"),
        ("modelopt-mxfp4", Group::Neighbours(32), 4, "mxfp4"),
    ] {
        let config = config(&[group(layout, of, bits)], &[]);
        let (block, older) = (config.block.unwrap(), config.hf_quant_config.unwrap());
        assert_eq!((&block["quant_algo"], block.get("config_groups")), (&json!(algorithm), None));
        let quantization = &older["quantization"];
        assert_eq!(quantization["quant_algo"], algorithm);
        // vLLM looks for these keys, whatever they say.
        assert!(["kv_cache_quant_algo", "exclude_modules"].iter().all(|key| quantization.get(key).is_some()));
    }
}

#[test]
fn gpt_oss_lists_patterns_of_layers() {
    let kept = ["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj", "model.layers.11.mlp.router"];
    let kept = [&kept[..], &["model.embed_tokens", "lm_head"]].concat();
    let found = block(&group("gptoss-mxfp4", Group::Block([32, 1]), 4), &kept);
    let sorted = |block: &Value| {
        let mut names: Vec<String> = serde_json::from_value(block["modules_to_not_convert"].clone()).unwrap();
        names.sort();
        names
    };
    let wanted = written("gpt-oss-mxfp4");
    assert_eq!((sorted(&found), &found["quant_method"]), (sorted(&wanted), &wanted["quant_method"]));
}

#[test]
fn several_schemes_name_their_modules_and_one_library_has_no_place_for_them() {
    let fp8 = QuantizedGroup { modules: vec!["a.down_proj", "b.down_proj"], ..group("ct-fp8", Group::Channel, 8) };
    let mixed = config(&[fp8.clone(), group("ct-nvfp4", Group::Neighbours(16), 4)], &["lm_head"]).block.unwrap();
    assert_eq!(mixed["format"], "mixed-precision");
    assert_eq!(mixed["config_groups"]["group_0"]["targets"], json!(["a.down_proj", "b.down_proj"]));
    assert_eq!(mixed["config_groups"]["group_1"]["targets"], json!(["a.q_proj"]));
    let modelopt = QuantizedGroup { layout: find("modelopt-fp8").unwrap(), ..fp8 };
    let mixed = config(&[modelopt, group("modelopt-nvfp4", Group::Neighbours(16), 4)], &[]);
    let layers = &mixed.block.unwrap()["quantized_layers"];
    assert_eq!(layers["b.down_proj"], json!({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}));
    assert_eq!(layers["a.q_proj"], json!({"quant_algo": "W4A16_NVFP4", "group_size": 16}));
    let block = group("hf-fp8", Group::Block([128, 128]), 8);
    let refused = EngineConfig::new(&[block.clone(), block], &KeptModules::default()).unwrap_err();
    assert_eq!(refused.to_string(), "the config of the layout hf-fp8 has no place for several schemes");
}

#[test]
fn banks_of_experts_that_are_kept_are_named_as_each_engine_looks_for_them() {
    let kept = KeptModules {
        modules: vec!["lm_head"],
        banks: vec!["model.layers.0.mlp.experts".into()],
        ..KeptModules::default()
    };
    let of = |layout: &str, key: &str| {
        let block = EngineConfig::new(&[group(layout, Group::Block([128, 128]), 8)], &kept).unwrap().block.unwrap();
        block[key].clone()
    };
    assert_eq!(of("ct-fp8", "ignore"), json!(["lm_head", r"re:^model\.layers\.0\.mlp\.experts\..*"]));
    assert_eq!(of("hf-fp8", "modules_to_not_convert"), json!(["lm_head", "model.layers.0.mlp.experts"]));
    assert_eq!(of("modelopt-fp8", "ignore"), json!(["lm_head", "model.layers.0.mlp.experts.*"]));
}

#[test]
fn modules_of_models_with_a_vision_tower_are_found_under_each_of_their_names() {
    let layers = |from: u64, own: &str| {
        (from..2).map(|layer| format!("language_model.model.layers.{layer}.{own}")).collect::<Vec<_>>()
    };
    let kept = layers(0, "mlp.gate");
    let kept = kept.iter().map(String::as_str).chain(["language_model.lm_head", "vision_tower.encoder.layers.0.fc1"]);
    let kept = KeptModules {
        modules: kept.collect(),
        banks: vec!["language_model.model.layers.1.mlp.experts".into()],
        is_composite: true,
        ..KeptModules::default()
    };
    let [down, experts] = [layers(0, "mlp.down_proj"), layers(0, "mlp.experts.3.w1")];
    let names = |names: &[String]| names.iter().map(|name| name.clone().leak() as &str).collect::<Vec<_>>();
    let fp8 = QuantizedGroup { modules: names(&down), ..group("ct-fp8", Group::Channel, 8) };
    // transformers may call another part so, of which a module is quantized.
    let beside = QuantizedGroup { modules: vec!["vit.layers.0.fc1"], ..fp8.clone() };
    let block = EngineConfig::new(&[fp8.clone(), beside], &kept).unwrap().block.unwrap();
    assert_eq!(block["ignore"].as_array().map(Vec::len), Some(10));
    let int8 = QuantizedGroup { modules: names(&experts[..1]), ..group("ct-int8", Group::Channel, 8) };
    let block = EngineConfig::new(&[fp8, int8], &kept).unwrap().block.unwrap();
    let list = |value: &Value| serde_json::from_value::<Vec<String>>(value.clone()).unwrap();
    let [ignore, first, second] = [
        &block["ignore"],
        &block["config_groups"]["group_0"]["targets"],
        &block["config_groups"]["group_1"]["targets"],
    ]
    .map(list);
    assert_eq!([ignore.len(), first.len(), second.len()], [12, 2, 1], "{ignore:?}");
    let matches = |entries: &[String], name: &str| {
        let by = |entry: &String| match entry.strip_prefix("re:") {
            Some(pattern) => regex::Regex::new(&format!("^(?:{pattern})")).unwrap().is_match(name),
            None => entry == name,
        };
        entries.iter().any(by)
    };
    assert!(matches(&ignore, "model.vision_tower.blocks.0.fc1") && matches(&ignore, "model.multi_modal_projector"));
    assert!(matches(&ignore, "model.projector"));
    for before in ["language_model.model.", "model.language_model.", "model.", ""] {
        let found = |own: &str| [&ignore, &first, &second].map(|entries| matches(entries, &format!("{before}{own}")));
        assert_eq!(found("layers.1.mlp.gate"), [true, false, false], "{before}");
        assert_eq!(found("layers.1.mlp.experts.5.up_proj"), [true, false, false], "{before}");
        assert_eq!(found("lm_head"), [true, false, false], "{before}");
        assert_eq!(found("vision_tower.vision_model.encoder.layers.0.fc1"), [true, false, false], "{before}");
        assert_eq!(found("layers.1.mlp.down_proj"), [false, true, false], "{before}");
        assert_eq!(found("layers.0.mlp.experts.5.gate_proj"), [false, false, true], "{before}");
        assert_eq!(found("layers.1.self_attn.q_proj"), [false; 3], "{before}");
    }
}

#[test]
fn a_config_gets_the_block_as_its_last_member_and_keeps_all_else() {
    let config = EngineConfig { block: Some(json!({"b": [1], "a": {}})), hf_quant_config: None, second_key: None };
    assert_eq!(
        config.write_into("{\n  \"eps\": 1.0e-5,\n  \"x\": NaN\n}\n").unwrap(),
        "{\n  \"eps\": 1.0e-5,\n  \"x\": NaN,\n  \"quantization_config\": {\n    \"a\": {},\n    \"b\": [\n      1\n    ]\n  }\n}\n"
    );
    assert!(config.write_into("{\"quantization_config\": null, \"x\": 1}").unwrap().starts_with("{\"x\": 1, \"quant"));
    assert!(config.write_into("{\"quantization_config\": {}}").unwrap().contains("\"b\": ["));
}

#[test]
fn experts_that_are_stored_one_by_one_are_listed_by_the_names_that_engines_look_up() {
    let kept = ["l.0.experts.0.w1", "l.0.experts.1.w3", "l.0.gate", "lm_head"];
    let fp8 = block(&group("hf-fp8", Group::Block([128, 128]), 8), &kept);
    let wanted = ["l.0.experts", "l.0.experts.0.w1", "l.0.experts.1.w3", "l.0.gate", "lm_head"];
    assert_eq!(fp8["modules_to_not_convert"], json!(wanted));
    let fp8 = group("ct-fp8", Group::Channel, 8);
    assert_eq!(block(&fp8, &kept)["ignore"], json!(["l.0.gate", "lm_head", "re:^l\\.0\\.experts\\..*"]));
    let of_experts =
        QuantizedGroup { modules: vec![kept[0], "l.0.q", kept[1]], ..group("ct-pack", Group::Neighbours(128), 4) };
    let both = config(&[fp8.clone(), of_experts], &[]).block.unwrap();
    assert_eq!(both["config_groups"]["group_1"]["targets"], json!(["re:^l\\.0\\.experts\\..*", "l.0.q"]));
    // The files of most models have the names that engines look up.
    let names = ["l.0.experts.0.gate_proj", "l.0.shared_experts.w1"];
    assert_eq!(block(&fp8, &names)["ignore"], json!(names));
}
