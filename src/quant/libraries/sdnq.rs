//! The plain grids of SDNQ 0.2.8 (`quant_method` sdnq), with which diffusion models are published.

use super::base::{BASE, FLOATS, bytes};
use super::transformers::TRANSFORMERS;
use super::undecoded::undecoded;
use crate::dtype::Dtype::{self, Float8E4M3FN, Float8E5M2, Int8, Int64, Uint8};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, Library, MatchStyle, Modules, PartEntry, PatternMap, WeightDescription, listed,
    named,
};
use crate::quant::layout::{CodeStorage, CodeValues, Group, Layout, Names, Packing, Precision, Role, Zeros};
use crate::text::shorten;
use std::rc::Rc;

pub(super) static LIBRARY: Library = Library {
    layouts: LAYOUTS,
    names: &["sdnq"],
    ignored: IGNORED,
    style: MatchStyle::Parts,
    read,
    exclude,
    ..TRANSFORMERS
};

const IGNORED: &[&str] = &["modules_to_not_convert"];

const SYMMETRIC: Names = &[(Role::Codes, ".weight"), (Role::Scale, ".scale"), (Role::ZeroPoint, ".zero_point")];
const ASYMMETRIC: Names = &[(Role::Codes, ".weight"), (Role::Scale, ".scale"), (Role::Offset, ".zero_point")];

const OF_SDNQ: Layout = Layout {
    needs_config: true,
    names: &[SYMMETRIC],
    codes: CodeStorage { packing: Packing::Units, values: CodeValues::Unsigned, ..bytes(&[Uint8]) },
    groups: &[Group::Tensor, Group::Channel, Group::ANY_NEIGHBOURS],
    scale_dtypes: FLOATS,
    product_precision: Precision::Scale,
    ..BASE
};

static LAYOUTS: &[Layout] = &[
    // `dequantizer.py`: `dequantize_symmetric`
    Layout {
        name: "sdnq-8bit",
        library: "SDNQ, weights_dtype int8, float8_e4m3fn or float8_e5m2",
        formats: &["int8", "float8_e4m3fn", "float8_e5m2"],
        codes: CodeStorage { packing: Packing::Units, ..bytes(&[Int8, Float8E4M3FN, Float8E5M2]) },
        ..OF_SDNQ
    },
    Layout {
        name: "sdnq-int",
        library: "SDNQ, weights_dtype int2 to int7",
        formats: &["int2", "int3", "int4", "int5", "int6", "int7"],
        ..OF_SDNQ
    },
    // `dequantize_asymmetric`
    Layout {
        name: "sdnq-uint",
        library: "SDNQ, weights_dtype uint1 to uint8",
        formats: &["uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "uint8"],
        names: &[ASYMMETRIC],
        codes: CodeStorage { dtypes: &[Uint8, Int64], ..OF_SDNQ.codes },
        zeros: Zeros::Fused,
        ..OF_SDNQ
    },
];

/// The part of a config that overrides the dtype of modules, the entry with their names, and their dtype.
type Override<'c> = (&'static str, &'c str, String);

fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    check(block)?;
    let dtype = dtype_of(block)?.unwrap_or_else(|| "int8".to_owned());
    let is_transposed = block.is_true("use_quantized_matmul")?;
    let (mut overrides, mut has_minimum): (Vec<Override>, bool) = (Vec::new(), false);
    for (key, _) in block.in_order_of_file("modules_dtype_dict")? {
        let (list, key) = (key, key.to_lowercase());
        let least = least(&key);
        has_minimum |= least.is_some();
        let dtype = least.map_or_else(|| Ok(key.clone()), |least| at_least(least, &dtype, &key))?;
        let modules = block.inner("modules_dtype_dict")?.expect("it has a key").texts(&[list])?;
        overrides.extend(modules.into_iter().map(|entry| ("modules_dtype_dict", entry, dtype.clone())));
    }
    for (entry, own) in block.objects("modules_quant_config")? {
        check(&own)?;
        if let Some(dtype) = dtype_of(&own)? {
            if has_minimum {
                let what = "its modules_dtype_dict has a minimum, and its modules_quant_config a weights_dtype";
                return Err(Error::new(format!("{what}; tcast does not combine them")));
            }
            overrides.push(("modules_quant_config", entry, dtype));
        }
    }
    // The first entry that matches a module decides. Most are whole names, which are many in a large model.
    let (mut patterns, mut modules) = (PatternMap::default(), Vec::new());
    for (at, (part, entry, dtype)) in overrides.iter().enumerate() {
        let description = || {
            let wording = format!("the config says of '{}' weights_dtype '{}'", shorten(entry), shorten(dtype));
            describe(dtype, is_transposed, wording).map(|description| Some(Rc::new(description)))
        };
        match PartEntry::of(entry) {
            PartEntry::Module(module) => modules.push((at, module, description()?)),
            PartEntry::Pattern(text) => {
                patterns.push(&text, part, entry, at)?;
                config.patterned.push(&text, part, entry, description()?)?;
            }
            PartEntry::Nothing => {}
        }
    }
    patterns.compile()?;
    for (at, module, description) in modules {
        let is_first = patterns.get(module).is_none_or(|(_, first)| at < *first);
        if is_first && config.named.get(module).is_none() {
            config.named.insert(module.to_owned(), description);
        }
    }
    let wording = format!("the config says quant_method 'sdnq', weights_dtype '{}'", shorten(&dtype));
    config.add_others(describe(&dtype, is_transposed, wording)?);
    Ok(())
}

fn dtype_of(block: &ConfigObject) -> Result<Option<String>> {
    Ok(block.text(&["weights_dtype"])?.map(str::to_lowercase))
}

/// Refuses what changes values or the storage of weights besides the grid.
fn check(block: &ConfigObject) -> Result<()> {
    for key in ["use_svd", "use_hadamard", "use_codebook", "quant_conv"] {
        if block.is_true(key)? {
            return Err(undecoded("SDNQ", key));
        }
    }
    for key in ["scale_dtype", "zero_point_dtype"] {
        if let Some(dtype) = block.text(&[key])?.filter(|dtype| *dtype != "none") {
            return Err(undecoded("SDNQ", &format!("{key} '{}'", shorten(dtype))));
        }
    }
    Ok(())
}

/// Returns the least width in a key of `modules_dtype_dict` that is not a dtype: `6` of `minimum_6bit`, or `uint4`.
fn least(key: &str) -> Option<&str> {
    let end = key.trim_end_matches('s').strip_suffix("bit");
    let start = end.unwrap_or(key).strip_prefix("minimum");
    start.or(end).map(|least| least.trim_matches(['_', '-']))
}

/// Returns a dtype of at least this width (`get_minimum_dtype`).
fn at_least(least: &str, dtype: &str, key: &str) -> Result<String> {
    let unsigned = least.strip_prefix("uint");
    let Ok(bits) = unsigned.or(least.strip_prefix("int")).unwrap_or(least).parse::<u32>() else {
        return Err(Error::new(format!("its modules_dtype_dict has the dtype '{}'", shorten(key))));
    };
    Ok(match width(dtype) {
        Some(own) if own >= bits => dtype.to_owned(),
        _ if unsigned.is_some() || bits <= 4 => format!("uint{bits}"),
        _ => format!("int{bits}"),
    })
}

/// Returns the bits of a dtype, by the first number in its name.
fn width(dtype: &str) -> Option<u32> {
    let digits = dtype.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len())].parse().ok()
}

fn describe(dtype: &str, is_transposed: bool, wording: String) -> Result<WeightDescription> {
    let dtype = match dtype {
        "int1" | "bool" => "uint1",
        "fp8" => "float8_e4m3fn",
        dtype => dtype,
    };
    let layouts = named(LAYOUTS, Some(dtype));
    if layouts.is_empty() {
        return Err(undecoded("SDNQ", &format!("weights_dtype '{}'", shorten(dtype))));
    }
    let bits = width(dtype);
    if is_transposed && bits == Some(8) {
        return Err(undecoded("SDNQ", &format!("use_quantized_matmul, which transposes codes of {dtype}")));
    }
    let mut description = WeightDescription::new(layouts, wording);
    description.parameters.bits = bits;
    description.codes.extend(dtype.parse().into_iter().filter(|dtype: &Dtype| dtype.bits() == 8));
    Ok(description)
}

/// Adds the decoded modules by the names of their weights, as the library does.
fn exclude(text: &str, modules: &Modules, _: bool) -> Result<Option<String>> {
    let entries: Vec<String> = modules.sorted().iter().map(|module| format!("{module}.weight")).collect();
    Ok(listed(text, IGNORED, &entries))
}
