//! The description of a quantized checkpoint in `config.json` and `hf_quant_config.json`, from which engines learn how
//! to load it.
//!
//! The blocks match the output of compressed-tensors 0.20.0, transformers 5.23.0 and nvidia-modelopt 0.47.0, including
//! the sorted keys. Inside a group, compressed-tensors refuses any unknown key.

use super::config::add_member;
use super::layout::{CodeValues, Group, Layout, Owner};
use super::patterns::{ModulePatterns, all_experts, entry_of_compressed_tensors, expert_of, pattern_of};
use super::scheme::{CodeType, TargetGrid};
use crate::container::{as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

/// The version of compressed-tensors that writes the same blocks. Engines ignore it.
const COMPRESSED_TENSORS: &str = "0.20.0";

/// Weights that are quantized in the same way.
#[derive(Clone, Debug)]
pub struct QuantizedGroup<'a> {
    pub layout: &'static Layout,
    /// Their codes, groups and scales.
    pub grid: TargetGrid,
    /// True if a scale for the activations is stored too.
    pub has_input_scale: bool,
    /// The names of their modules in the checkpoint.
    pub modules: Vec<&'a str>,
    /// The subset of these modules that engines do not treat as linear layers: output heads and embeddings.
    pub unlike_linear: Vec<&'a str>,
}

impl QuantizedGroup<'_> {
    fn is_integer(&self) -> bool {
        matches!(self.grid.codes, CodeType::Int { .. })
    }

    /// True if there are no zero points.
    fn is_symmetric(&self) -> bool {
        !matches!(self.grid.codes, CodeType::Int { symmetric: false, .. })
    }

    /// True if scales are powers of two.
    fn has_exponents(&self) -> bool {
        matches!(self.grid.scale, Some(Dtype::Float8E8M0 | Dtype::Uint8))
    }
}

#[derive(Clone, Debug, Default)]
pub struct KeptModules<'a> {
    /// Modules with a weight matrix, by their names in the checkpoint.
    pub modules: Vec<&'a str>,
    /// Modules that hold a bank of experts, such as `x.experts`; engines call its experts `x.experts.0` and so on.
    pub banks: Vec<Cow<'a, str>>,
    /// Blocks that several layers share, by their names in a layer. `modules` lists only the blocks of the first layer.
    pub blocks: BTreeSet<&'a str>,
    /// True if the model consists of several models, so that engines use other names for modules: see
    /// [`is_composite`](super::is_composite).
    pub is_composite: bool,
}

/// The description of a quantized checkpoint for engines.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// `quantization_config` of config.json; `None` for layouts whose engine reads none (`ComfyUI`).
    pub block: Option<Value>,
    /// `hf_quant_config.json`, which `ModelOpt` writes next to it.
    pub hf_quant_config: Option<Value>,
}

impl EngineConfig {
    /// Describes groups whose layouts all belong to the same library. Fails if the config of that library cannot
    /// describe several groups.
    pub fn new(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<Self> {
        let first = groups.first().expect("something is quantized");
        let only = || match groups {
            [only] => Ok(only),
            _ => Err(Error::new(format!(
                "the config of the layout {} has no place for several schemes",
                first.layout.name
            ))
            .remedy("choose one scheme for all weights, or a layout of compressed-tensors or ModelOpt")),
        };
        Ok(match first.layout.owner {
            Owner::CompressedTensors => Self { block: Some(compressed_tensors(groups, kept)), hf_quant_config: None },
            Owner::FineGrained => Self { block: Some(fine_grained(only()?, kept)), hf_quant_config: None },
            Owner::GptOss => Self { block: Some(gpt_oss(kept)), hf_quant_config: None },
            Owner::ModelOpt => modelopt(groups, kept),
            Owner::ComfyUi | Owner::Other => Self { block: None, hf_quant_config: None },
        })
    }

    /// Returns the text of a config.json with the block added as its last member. All other bytes stay unchanged. Fails
    /// if `config` already has a `quantization_config`.
    pub fn write_into(&self, config: &str) -> Result<String> {
        let json = as_json(config);
        let found = members(&json).ok_or_else(|| Error::new("is not a JSON object"))?;
        let Some(block) = &self.block else { return Ok(config.to_owned()) };
        if found.get("quantization_config").is_some_and(|value| value.get() != "null") {
            let error = Error::new("has a quantization_config, although no weight is quantized");
            return Err(error.remedy("remove its quantization_config, and try again"));
        }
        let text = serde_json::to_string_pretty(block).expect("a JSON value is always text");
        add_member(config, "quantization_config", &text.replace('\n', "\n  "))
            .ok_or_else(|| Error::new("is not a JSON object"))
    }
}

/// Returns the entries for kept modules, sorted as the libraries sort them. `module`, `bank` and `block` make the entry
/// of a module, of a bank of experts, and of a block that several layers share.
fn sorted(
    kept: &KeptModules,
    module: impl Fn(&str) -> String,
    bank: impl Fn(&str) -> String,
    block: impl Fn(&str) -> String,
) -> BTreeSet<String> {
    let banks = kept.banks.iter().map(|name| bank(name));
    let blocks = kept.blocks.iter().map(|name| block(name));
    kept.modules.iter().map(|name| module(name)).chain(banks).chain(blocks).collect()
}

/// A `quantization_config` of compressed-tensors. A single group targets all linear layers that are not ignored.
/// Several groups list their modules, because `TensorRT-LLM` refuses class names if there are several groups.
fn compressed_tensors(groups: &[QuantizedGroup], kept: &KeptModules) -> Value {
    let format = |group: &QuantizedGroup| group.layout.formats[0];
    let mut config_groups = Map::new();
    for (at, group) in groups.iter().enumerate() {
        let (first, modules) =
            if groups.len() == 1 { (Some("Linear"), &group.unlike_linear) } else { (None, &group.modules) };
        let entry = if kept.is_composite { pattern_of } else { entry_of_compressed_tensors };
        let mut seen = HashSet::new();
        let targets = first.map(str::to_owned).into_iter().chain(modules.iter().map(|module| entry(module)));
        let targets: Vec<String> = targets.filter(|entry| seen.insert(entry.clone())).collect();
        let block = json!({
            "format": format(group),
            "input_activations": activations_of(group),
            "output_activations": null,
            "targets": targets,
            "weights": weights_of(group),
        });
        config_groups.insert(format!("group_{at}"), block);
    }
    let format = if let [only] = groups { format(only) } else { "mixed-precision" };
    let mut ignore = sorted(kept, entry_of_compressed_tensors, all_experts, |name| format!(r"re:.*\.{name}\..*"));
    if kept.is_composite {
        let patterns = ModulePatterns::new(groups.iter().flat_map(|group| group.modules.iter().copied()));
        ignore.extend(kept.modules.iter().filter_map(|module| patterns.ignored(module)));
        ignore.extend(kept.banks.iter().filter_map(|bank| patterns.ignored_bank(bank)));
        ignore.extend(patterns.towers());
    }
    json!({
        "config_groups": config_groups,
        "format": format,
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "moe_sparsity_config": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "transform_config": {},
        "version": COMPRESSED_TENSORS,
    })
}

/// `QuantizationArgs` of the weights.
fn weights_of(group: &QuantizedGroup) -> Value {
    let has_global = group.layout.global.is_global();
    let (strategy, group_size) = match group.grid.group {
        Group::Tensor => ("tensor", None),
        Group::Channel => ("channel", None),
        Group::Block(_) => ("block", None),
        Group::Neighbours(size) if has_global => ("tensor_group", Some(size)),
        Group::Neighbours(size) => ("group", Some(size)),
    };
    let mut weights = json!({
        "dynamic": false,
        "group_size": group_size,
        "num_bits": group.grid.codes.bits(),
        "strategy": strategy,
        "symmetric": group.is_symmetric(),
        "type": if group.is_integer() { "int" } else { "float" },
    });
    if let Group::Block(block) = group.grid.group {
        weights["block_structure"] = json!(block);
    }
    if has_global {
        weights["scale_dtype"] = json!("torch.float8_e4m3fn");
    } else if group.has_exponents() {
        weights["scale_dtype"] = json!("torch.uint8"); // vLLM does not recognize mxfp8 without it
    }
    if !group.is_symmetric() {
        weights["zp_dtype"] = json!("torch.int8");
    }
    weights
}

/// `QuantizationArgs` of the activations, which the engine quantizes at run time; null if it leaves them unquantized.
fn activations_of(group: &QuantizedGroup) -> Value {
    if group.has_input_scale {
        return json!({
            "dynamic": "local",
            "group_size": 16,
            "num_bits": 4,
            "observer": "static_minmax",
            "scale_dtype": "torch.float8_e4m3fn",
            "strategy": "tensor_group",
            "symmetric": true,
            "type": "float",
        });
    }
    if group.layout.codes.values != CodeValues::Stored {
        return Value::Null; // packed: engines decode the weights
    }
    let (strategy, group_size) = match group.grid.group {
        Group::Channel => ("token", None),
        Group::Tensor => ("tensor", None),
        Group::Block([_, size]) | Group::Neighbours(size) => ("group", Some(size)),
    };
    let mut arguments = json!({
        "dynamic": true,
        "group_size": group_size,
        "num_bits": 8,
        "strategy": strategy,
        "symmetric": true,
        "type": if group.is_integer() { "int" } else { "float" },
    });
    if group.has_exponents() {
        arguments["scale_dtype"] = json!("torch.uint8");
    }
    arguments
}

/// A `quantization_config` of transformers and `DeepSeek`: for blocks of float8, or groups of 32 with exponents.
fn fine_grained(group: &QuantizedGroup, kept: &KeptModules) -> Value {
    // transformers loads the experts of a bank as one module, regardless of their storage.
    let banks = kept.modules.iter().filter_map(|module| Some(expert_of(module)?.0.to_owned()));
    let kept: BTreeSet<String> =
        sorted(kept, str::to_owned, str::to_owned, |name| format!(r".*\.{name}")).into_iter().chain(banks).collect();
    if let Group::Neighbours(size) | Group::Block([1, size]) = group.grid.group {
        return json!({
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "ignored_layers": kept,
            "quant_method": "mxfp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [1, size],
        });
    }
    let block = if let Group::Block(block) = group.grid.group { json!(block) } else { Value::Null };
    let mut config = json!({
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": kept,
        "quant_method": "fp8",
        "weight_block_size": block,
    });
    if group.has_exponents() {
        config["scale_fmt"] = json!("ue8m0");
    }
    config
}

/// The `quantization_config` of gpt-oss, which quantizes experts only. Its entries have a `*` for the layer number.
fn gpt_oss(kept: &KeptModules) -> Value {
    let names = kept.modules.iter().map(|name| {
        let parts = name.split('.').map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part });
        let name = parts.collect::<Vec<_>>().join(".");
        name.split_once(".self_attn.").map_or(name.clone(), |(layer, _)| format!("{layer}.self_attn"))
    });
    json!({ "modules_to_not_convert": names.collect::<BTreeSet<_>>(), "quant_method": "mxfp4" })
}

/// The two descriptions that `ModelOpt` writes: the block of config.json, and the older `hf_quant_config.json`.
fn modelopt(groups: &[QuantizedGroup], kept: &KeptModules) -> EngineConfig {
    let producer = json!({ "name": "modelopt", "version": "0.47.0" });
    let ignore = sorted(kept, str::to_owned, |bank| format!("{bank}.*"), |name| format!("*.{name}.*"));
    let mut block = json!({ "ignore": ignore, "producer": producer, "quant_method": "modelopt" });
    let mut older = json!({ "exclude_modules": ignore, "kv_cache_quant_algo": null });
    if let [group] = groups {
        let algorithm = algorithm_of(group);
        let weights = json!({ "dynamic": false, "group_size": 16, "num_bits": 4, "type": "float" });
        let mut target = json!({ "targets": ["Linear"], "weights": weights });
        if algorithm == "NVFP4" {
            target["input_activations"] = weights;
        }
        if algorithm.ends_with("NVFP4") {
            block["config_groups"] = json!({ "group_0": target });
        }
        (block["quant_algo"], older["quant_algo"]) = (json!(algorithm), json!(algorithm));
        if let Some(size) = group_size_of(group) {
            older["group_size"] = json!(size);
        }
    } else {
        let layers = groups.iter().flat_map(|group| {
            let mut layer = json!({ "quant_algo": algorithm_of(group) });
            if let Some(size) = group_size_of(group) {
                layer["group_size"] = json!(size);
            }
            group.modules.iter().map(move |module| ((*module).to_owned(), layer.clone()))
        });
        let layers = Value::Object(layers.collect());
        for form in [&mut block, &mut older] {
            form["quant_algo"] = json!("MIXED_PRECISION");
            form["quantized_layers"] = layers.clone();
        }
    }
    let hf_quant_config = Some(json!({ "producer": producer, "quantization": older }));
    EngineConfig { block: Some(block), hf_quant_config }
}

fn algorithm_of(group: &QuantizedGroup) -> &'static str {
    match group.grid.group {
        Group::Neighbours(_) if group.has_input_scale => "NVFP4",
        Group::Neighbours(_) if group.layout.global.is_global() => "W4A16_NVFP4",
        Group::Neighbours(_) if group.grid.codes.bits() == 4 => "mxfp4",
        Group::Neighbours(_) => "MXFP8",
        Group::Channel => "FP8_PER_CHANNEL_PER_TOKEN",
        Group::Block(_) => "FP8_PB_WO",
        Group::Tensor => "FP8",
    }
}

fn group_size_of(group: &QuantizedGroup) -> Option<u64> {
    match group.grid.group {
        Group::Neighbours(size) => Some(size),
        Group::Block([_, columns]) => Some(columns),
        _ => None,
    }
}
