//! The description of a quantized checkpoint in `config.json` and `hf_quant_config.json`, from which engines learn how
//! to load it.
//!
//! The blocks match the output of compressed-tensors 0.20.0, transformers 5.23.0 and nvidia-modelopt 0.47.0, including
//! the sorted keys.

use super::json::with_member;
use crate::container::checkpoint::{MlxStacks, describes};
use crate::container::{as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::layout::Layout;
use crate::quant::scheme::TargetGrid;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Weights that are quantized in the same way.
#[derive(Clone, Debug)]
pub struct QuantizedGroup<'a> {
    pub layout: &'static Layout,
    /// Their codes, groups and scales.
    pub grid: TargetGrid,
    /// True if a scale for the activations is stored too.
    pub has_input_scale: bool,
    /// The name of their preset in compressed-tensors, if they have one: see
    /// [`Scheme::preset`](crate::quant::Scheme::preset).
    pub preset: Option<String>,
    /// The names of their modules in the checkpoint.
    pub modules: Vec<&'a str>,
    /// The subset of these modules that engines do not treat as linear layers: output heads and embeddings.
    pub unlike_linear: Vec<&'a str>,
}

impl QuantizedGroup<'_> {
    /// True if scales are powers of two.
    pub(in crate::quant) fn has_exponents(&self) -> bool {
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
    /// The form of the stacks of experts in MLX, which are one module.
    pub stacks: Option<&'static MlxStacks>,
}

impl KeptModules<'_> {
    /// Returns the entries for kept modules, sorted as the libraries sort them. `module`, `bank` and `block` make the
    /// entry of a module, of a bank of experts, and of a block that several layers share.
    pub(in crate::quant) fn entries(
        &self,
        module: impl Fn(&str) -> String,
        bank: impl Fn(&str) -> String,
        block: impl Fn(&str) -> String,
    ) -> BTreeSet<String> {
        let banks = self.banks.iter().map(|name| bank(name));
        let blocks = self.blocks.iter().map(|name| block(name));
        self.modules.iter().map(|name| module(name)).chain(banks).chain(blocks).collect()
    }
}

/// The description of a quantized checkpoint for engines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// `quantization_config` of config.json; `None` for layouts whose engine reads none (`ComfyUI`).
    pub block: Option<Value>,
    /// The key under which config.json has the block again (MLX).
    pub second_key: Option<&'static str>,
    /// `hf_quant_config.json`, which `ModelOpt` writes next to it.
    pub hf_quant_config: Option<Value>,
}

impl EngineConfig {
    /// Returns a description that consists of one block of config.json.
    pub(in crate::quant) fn of(block: Value) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    /// Returns the text of a config.json with the block added as its last member. All other bytes stay unchanged. Fails
    /// if `config` already has a `quantization_config` that describes something.
    pub fn write_into(&self, config: &str) -> Result<String> {
        let json = as_json(config);
        let not_object = || Error::new("is not a JSON object");
        let names = members(&json).ok_or_else(not_object)?;
        let Some(block) = &self.block else { return Ok(config.to_owned()) };
        if names.get("quantization_config").is_some_and(|value| describes(value.get())) {
            let error = Error::new("has a quantization_config, although no weight is quantized");
            return Err(error.remedy("remove its quantization_config, and try again"));
        }
        let text = serde_json::to_string_pretty(block).expect("a JSON value is always text");
        let text = text.replace('\n', "\n  ");
        let mut keys = self.second_key.into_iter().chain(["quantization_config"]);
        keys.try_fold(config.to_owned(), |config, key| with_member(&config, key, text.clone()).ok_or_else(not_object))
    }
}

/// Returns the only group, for configs that cannot describe several.
pub(in crate::quant) fn only<'g, 'a>(groups: &'g [QuantizedGroup<'a>]) -> Result<&'g QuantizedGroup<'a>> {
    let [only] = groups else {
        let name = groups[0].layout.name;
        let error = Error::new(format!("the config of the layout {name} has no place for several schemes"));
        return Err(error.remedy("choose one scheme for all weights, or a layout of compressed-tensors or ModelOpt"));
    };
    Ok(only)
}
