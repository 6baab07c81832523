//! Integers of quantization-aware training in transformers (`quant_method` gemma, 5.24).

use super::base::{BASE, bytes};
use super::transformers::TRANSFORMERS;
use crate::dtype::Dtype::{Float32, Int8, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{CheckpointConfig, ConfigObject, Library, WeightDescription, named};
use crate::quant::layout::{CodeStorage, CodeValues, Group, Layout, Names, Precision, Role};
use crate::text::shorten;
use std::rc::Rc;

pub(super) static LIBRARY: Library = Library { layouts: LAYOUTS, names: &["gemma"], read, ..TRANSFORMERS };

/// The names of linear layers, and of embeddings.
const NAMES: [Names; 2] = [
    &[
        (Role::Codes, ".weight"),
        (Role::Scale, ".weight_scale"),
        (Role::Activation, ".input_activation_scale"),
        (Role::Activation, ".output_activation_scale"),
    ],
    &[
        (Role::Codes, ".embedding_quantized"),
        (Role::Scale, ".embedding_scale"),
        (Role::Activation, ".k_cache_scale"), // of attention, which has no weights
        (Role::Activation, ".v_cache_scale"),
    ],
];

/// The base of the layouts: scales are rounded to the target before they are multiplied.
const OF_GEMMA: Layout = Layout {
    needs_config: true,
    names: &NAMES,
    groups: &[Group::Channel, Group::ANY_NEIGHBOURS],
    scale_dtypes: &[Float32],
    scale_precision: Precision::Target,
    product_precision: Precision::Target,
    shares_names: true,
    ..BASE
};

static LAYOUTS: &[Layout] = &[
    // transformers `integrations/gemma_quant.py`
    Layout {
        name: "gemma-packed",
        library: "transformers, quant_method gemma, 2 or 4 bits",
        formats: &["packed"],
        codes: CodeStorage { values: CodeValues::Unsigned, ..bytes(&[Uint8]) },
        ..OF_GEMMA
    },
    Layout {
        name: "gemma-int8",
        library: "transformers, quant_method gemma, 8 bits",
        formats: &["int8"],
        codes: bytes(&[Int8]),
        ..OF_GEMMA
    },
];

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    // The pattern of transformers may match anywhere in the name of a module.
    for (pattern, own) in block.objects("module_quant_configs")? {
        let wording = format!("the config says of '{}' num_bits", shorten(pattern));
        let description = describe(own.number(&["num_bits"])?, &wording)?;
        let text = format!(".*(?:{pattern})");
        config.patterned.push(&text, "module_quant_configs", pattern, Some(Rc::new(description)))?;
    }
    config.add_others(describe(block.number(&["num_bits"])?, "the config says quant_method 'gemma', num_bits")?);
    Ok(())
}

fn describe(bits: Option<u64>, wording: &str) -> Result<WeightDescription> {
    let Some(bits) = bits else { return Err(Error::new("its quant_method is 'gemma', and it says no num_bits")) };
    let format = match bits {
        2 | 4 => "packed",
        8 => "int8",
        _ => return Err(Error::new(format!("{wording} {bits}, and such codes have 2, 4 or 8 bits"))),
    };
    let mut description = WeightDescription::new(named(LAYOUTS, Some(format)), format!("{wording} {bits}"));
    description.parameters.bits = u32::try_from(bits).ok();
    Ok(description)
}
