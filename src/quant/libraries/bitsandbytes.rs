//! bitsandbytes: its config in transformers, and the tensors that describe weights.

use super::base::{BASE, bytes};
use super::transformers::TRANSFORMERS;
use crate::dtype::Dtype::{self, Bfloat16, Float16, Float32, Int8, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{CheckpointConfig, ConfigObject, Library, WeightDescription, lengths, listed, named};
use crate::quant::layout::{CodeStorage, CodeValues, Combination, Group, Layout, Packing, Precision, Role, ScaleOrder};
use crate::quant::parts::Parameters;
use crate::text::shorten;
use serde_json::{Map, Value};

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["bitsandbytes"],
    ignored: &["llm_int8_skip_modules"],
    read,
    exclude: |text, modules, _| Ok(listed(text, LIBRARY.ignored, &modules.sorted())),
    ..TRANSFORMERS
};

static LAYOUTS: &[Layout] = &[
    // bitsandbytes `functional.py`, `dequantize_4bit` and `int8_vectorwise_dequant`
    Layout {
        name: "bnb-4bit",
        library: "bitsandbytes, load_in_4bit, quant_type nf4 or fp4",
        formats: &["load_in_4bit"],
        names: &[&[
            (Role::Codes, ".weight"),
            (Role::Scale, ".weight.absmax"),
            (Role::CodeMap, ".weight.quant_map"),
            (Role::NestedScale, ".weight.nested_absmax"),
            (Role::NestedMap, ".weight.nested_quant_map"),
            (Role::Description, ".weight.quant_state.bitsandbytes__nf4"),
            (Role::Description, ".weight.quant_state.bitsandbytes__fp4"),
        ]],
        codes: CodeStorage {
            values: CodeValues::Map,
            packing: Packing::Flat,
            dtypes: &[Uint8, Int8, Bfloat16, Float16, Float32], // set by `bnb_4bit_quant_storage`; read as bytes
            padding: 1,
        },
        groups: &[Group::ANY_NEIGHBOURS],
        scale_dtypes: &[Float32, Uint8],
        scale_order: ScaleOrder::Flat,
        product_precision: Precision::Weight,
        needs: Some(Role::Description),
        ..BASE
    },
    Layout {
        name: "bnb-int8",
        library: "bitsandbytes, load_in_8bit",
        formats: &["load_in_8bit"],
        names: &[&[(Role::Codes, ".weight"), (Role::Scale, ".SCB"), (Role::Description, ".weight_format")]],
        codes: bytes(&[Int8]),
        groups: &[Group::Channel],
        scale_dtypes: &[Float32],
        global: Combination::Over127,
        ..BASE
    },
];

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let width = if block.is_true("load_in_8bit")? { "load_in_8bit" } else { "load_in_4bit" };
    let wording = format!("the config says quant_method 'bitsandbytes', {width}");
    let description = WeightDescription::new(named(LAYOUTS, Some(width)), wording);
    let quant_type = block.text(&["bnb_4bit_quant_type"])?.map(str::to_lowercase);
    config.add_others(WeightDescription { quant_type, ..description });
    Ok(())
}

/// Reads the `quant_state` in a tensor of this name; `is_nested` if the scales are quantized too.
pub(in crate::quant) fn quant_state(state: &Map<String, Value>, name: &str, is_nested: bool) -> Result<Parameters> {
    let state = ConfigObject::new(state);
    let missing = |key: &str| Error::new(format!("it does not say its {key}"));
    let kind = state.text(&["quant_type"])?.ok_or_else(|| missing("quant_type"))?;
    if kind.is_empty() || !name.ends_with(&format!("__{kind}")) {
        let message = format!("its quant_type '{}' does not match the suffix of its name", shorten(kind));
        return Err(Error::new(message));
    }
    let shape = state.get("shape").and_then(lengths).ok_or_else(|| missing("shape"))?;
    let size = state.number(&["blocksize"])?.ok_or_else(|| missing("blocksize"))?;
    let dtype = state.text(&["dtype"])?.ok_or_else(|| missing("dtype"))?;
    let weight_dtype: Option<Dtype> = dtype.parse().ok();
    let weight_dtype = weight_dtype.filter(|dtype| matches!(dtype, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16));
    if weight_dtype.is_none() {
        let message = format!("it says dtype '{}', which is not float32, bfloat16 or float16", shorten(dtype));
        return Err(Error::new(message));
    }
    let plain =
        Parameters { shape: Some(shape), group: Some(Group::Neighbours(size)), weight_dtype, ..Parameters::default() };
    if !is_nested {
        return Ok(plain);
    }
    if state.text(&["nested_dtype"])?.ok_or_else(|| missing("nested_dtype"))? != "float32" {
        return Err(Error::new("it says a nested_dtype other than float32"));
    }
    let nested_group = state.number(&["nested_blocksize"])?.ok_or_else(|| missing("nested_blocksize"))?;
    let nested_offset = state.float("nested_offset")?.ok_or_else(|| missing("nested_offset"))? as f32;
    Ok(Parameters { nested_group: Some(nested_group), nested_offset, ..plain })
}
