//! The config of AMD Quark, which can differ between modules.

use super::base::{BASE, EXPONENTS, NIBBLES, bytes, words};
use super::undecoded::undecoded;
use crate::dtype::Dtype::{self, Float8E4M3FN, Float8E5M2, Int8};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, Library, MatchStyle, WeightDescription, glob, listed, named, sides,
};
use crate::quant::layout::{Group, Layout, Packing, Precision, Role, ScaleOrder, Zeros};
use crate::quant::parts::Parameters;
use crate::text::shorten;
use serde_json::Value;
use std::rc::Rc;

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["quark"],
    ignored: &["exclude"],
    style: MatchStyle::Globs,
    read,
    exclude: |text, modules, _| Ok(listed(text, LIBRARY.ignored, &modules.sorted())),
    ..Library::BASE
};

const QUARK: &[(Role, &str)] = &[
    (Role::Codes, ".weight"),
    (Role::Scale, ".weight_scale"),
    (Role::ZeroPoint, ".weight_zero_point"),
    (Role::Activation, ".input_scale"),
    (Role::Activation, ".input_zero_point"),
    (Role::Activation, ".output_scale"),
    (Role::Activation, ".output_zero_point"),
];

const OF_QUARK: Layout = Layout { names: &[QUARK], shares_names: true, ..BASE };

static LAYOUTS: &[Layout] = &[
    // quark `torch/kernel/hw_emulation/hw_emulation_interface.py`, `dequantize_fp8`, `dequantize_int` and
    // `dequantize_fp4_fp6_per_group`. Exponents become numbers of the target's type.
    Layout {
        name: "quark-fp8",
        library: "AMD Quark, dtype fp8_e4m3 or fp8_e5m2",
        formats: &["fp8_e4m3", "fp8_e5m2"],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        groups: &[Group::Tensor, Group::Channel, Group::ANY_BLOCK],
        ..OF_QUARK
    },
    Layout {
        name: "quark-int8",
        library: "AMD Quark, dtype int8",
        formats: &["int8"],
        needs_config: true,
        codes: bytes(&[Int8]),
        groups: &[Group::Tensor, Group::Channel],
        zeros: Zeros::Plain,
        ..OF_QUARK
    },
    Layout {
        name: "quark-uint4",
        library: "AMD Quark, dtype uint4 with pack_method reorder",
        formats: &["uint4"],
        needs_config: true,
        codes: words(Packing::AwqWords),
        groups: &[Group::ANY_NEIGHBOURS],
        scale_order: ScaleOrder::Transposed,
        zeros: Zeros::Awq,
        ..OF_QUARK
    },
    Layout {
        name: "quark-mxfp4",
        library: "AMD Quark, dtype fp4 with scale_format e8m0",
        formats: &["fp4"],
        codes: NIBBLES,
        groups: &[Group::Neighbours(32)],
        scale_dtypes: EXPONENTS,
        scale_precision: Precision::Target,
        ..OF_QUARK
    },
];

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    const LAYERS: &str = "layer_quant_config";
    let export = block.inner("export")?;
    let export = |key: &str| export.map(|export| export.text(&[key])).transpose().map(Option::flatten);
    if let Some(form) = export("weight_format")?.filter(|form| *form != "real_quantized") {
        return Err(refused(&format!("weight_format '{}'", shorten(form))));
    }
    let packing = export("pack_method")?.unwrap_or("reorder");
    for (name, layer) in block.objects(LAYERS)? {
        let description = describe(&layer, packing)?.map(Rc::new);
        config.patterned.push(&glob(name), LAYERS, name, description)?;
    }
    // Tensors do not show the class of their module.
    let classes = block.objects("layer_type_quant_config")?.into_iter().map(|(_, layer)| layer);
    for layer in block.inner("global_quant_config")?.into_iter().chain(classes) {
        config.others.extend(describe(&layer, packing)?.map(Rc::new));
    }
    Ok(())
}

fn refused(what: &str) -> Error {
    undecoded("AMD Quark", what)
}

/// Returns the description of a module; `None` if its weight is not quantized.
fn describe(layer: &ConfigObject, packing: &str) -> Result<Option<WeightDescription>> {
    if layer.has("bias") {
        return Err(refused("biases are quantized too"));
    }
    if matches!(layer.get("weight"), Some(Value::Array(_))) {
        return Err(refused("weights are quantized in several steps"));
    }
    let Some(weight) = layer.inner("weight")? else { return Ok(None) };
    let dtype = weight.text(&["dtype"])?.unwrap_or_default();
    let scheme = weight.text(&["qscheme"])?.unwrap_or_default();
    let size = weight.number(&["group_size"])?;
    let kind = format!("dtype '{}', qscheme '{}'", shorten(dtype), shorten(scheme));
    let group = match (dtype, scheme, weight.integer(&["ch_axis"])?) {
        ("fp8_e4m3" | "fp8_e5m2" | "int8", "per_tensor", _) => Some(Group::Tensor),
        ("fp8_e4m3" | "fp8_e5m2" | "int8", "per_channel", None | Some(0)) => Some(Group::Channel),
        ("fp8_e4m3" | "fp8_e5m2", "per_block", _) => match weight.get("block_size").filter(|size| size.is_array()) {
            Some(size) => {
                let size = sides(size).ok_or_else(|| Error::new("its block_size is not two numbers"))?;
                Some(Group::Block(size))
            }
            None => None,
        },
        ("fp4", "per_group", None | Some(-1 | 1)) if weight.text(&["scale_format"])? == Some("e8m0") => {
            size.map(Group::Neighbours)
        }
        ("uint4", "per_group", None | Some(-1 | 1)) if packing == "reorder" => size.map(Group::Neighbours),
        _ => return Err(refused(&kind)),
    };
    // The library stores zero points even if all are 0.
    let needs = if dtype == "int8" { vec![Role::ZeroPoint] } else { Vec::new() };
    let codes = match dtype {
        "fp8_e4m3" => vec![Dtype::Float8E4M3FN],
        "fp8_e5m2" => vec![Dtype::Float8E5M2],
        _ => Vec::new(),
    };
    let bits = (dtype == "uint4").then_some(4);
    let parameters = Parameters { bits, group, ..Parameters::default() };
    let layouts = named(LAYOUTS, Some(dtype));
    Ok(Some(WeightDescription {
        parameters,
        needs,
        codes,
        ..WeightDescription::new(layouts, format!("the config says {kind}"))
    }))
}
