//! The experts of gpt-oss.

use super::base::{BASE, EXPONENTS, NIBBLES, encoding};
use super::transformers::TRANSFORMERS;
use crate::dtype::Dtype::Uint8;
use crate::error::Result;
use crate::quant::config::{
    CheckpointConfig, ConfigObject, EngineConfig, KeptModules, Library, QuantizedGroup, WeightDescription, named, only,
};
use crate::quant::layout::{CodeStorage, Exponents, Group, Layout, Packing, Role, ScaleOrder};
use crate::quant::rules::{Power, ScaleRule, ScaleShape};
use serde_json::json;
use std::collections::BTreeSet;

pub(super) static LIBRARY: Library =
    Library { layouts: LAYOUTS, names: &["mxfp4"], read, write: Some(write), ..TRANSFORMERS };

/// The weights as stored: [.., out, in], as in other layouts.
const ROWS: Layout = Layout {
    name: "gptoss-mxfp4",
    library: "gpt-oss, quant_method mxfp4",
    names: &[&[(Role::Codes, "_blocks"), (Role::Scale, "_scales")]],
    codes: CodeStorage { packing: Packing::Blocks, dtypes: &[Uint8], ..NIBBLES },
    groups: &[Group::Neighbours(32)],
    scale_dtypes: EXPONENTS,
    exponents: Exponents::Ldexp,
    interleaves_experts: true,
    ..BASE
};

static UNTRANSPOSED: Layout = ROWS;

static LAYOUTS: &[Layout] = &[
    // transformers `integrations/mxfp4.py`, `convert_moe_packed_tensors`
    Layout {
        codes: CodeStorage { packing: Packing::TransposedBlocks, ..ROWS.codes },
        groups: &[Group::Block([32, 1])],
        scale_order: ScaleOrder::Transposed,
        encoding: Some(encoding(
            ScaleRule { power: Some(Power::Floor), searched_bits: 4, ..ScaleRule::POWER },
            ScaleShape::Mixed,
        )),
        untransposed: Some(&UNTRANSPOSED),
        ..ROWS
    },
    // gpt-oss `gpt_oss/torch/weights.py`, `_get_mxfp4_tensor`
    Layout {
        name: "gptoss-openai",
        library: "gpt-oss with the names of OpenAI, which are not transposed",
        names: &[&[(Role::Codes, ".blocks"), (Role::Scale, ".scales")]],
        ..ROWS
    },
];

fn read(_: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let wording = "the config says quant_method 'mxfp4'";
    config.add_others(WeightDescription::new(named(LAYOUTS, None), wording));
    Ok(())
}

/// Describes quantized experts; nothing else is quantized. Entries have a `*` for the layer number.
fn write(groups: &[QuantizedGroup], kept: &KeptModules) -> Result<EngineConfig> {
    only(groups)?;
    let names = kept.modules.iter().map(|name| {
        let parts = name.split('.').map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part });
        let name = parts.collect::<Vec<_>>().join(".");
        name.split_once(".self_attn.").map_or(name.clone(), |(layer, _)| format!("{layer}.self_attn"))
    });
    let block = json!({ "modules_to_not_convert": names.collect::<BTreeSet<_>>(), "quant_method": "mxfp4" });
    Ok(EngineConfig::of(block))
}
