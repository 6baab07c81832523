//! The config of torchao, as transformers writes it, and torchao's descriptions of tensors in the metadata of files.

use super::base::{BASE, bytes};
use super::transformers::TRANSFORMERS;
use super::undecoded::undecoded;
use crate::dtype::Dtype::{Float8E4M3FN, Float8E5M2, Int8};
use crate::error::{Error, Result};
use crate::quant::config::{
    CheckpointConfig, ConfigObject, Library, MetadataChanges, Modules, WeightDescription, named,
};
use crate::quant::layout::{Layout, Role, Zeros};
use crate::quant::recognize::CheckpointInfo;
use crate::text::shorten;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

pub(super) static LIBRARY: Library =
    Library { layouts: LAYOUTS, names: &["torchao"], metadata: metadata_of, read, ..TRANSFORMERS };

const TORCHAO: &[(Role, &str)] = &[
    (Role::Codes, "_qdata"),
    (Role::Scale, "_scale"),
    (Role::ZeroPoint, "_zero_point"),
    (Role::Activation, "_act_quant_scale"),
    (Role::Activation, "_act_quant_zero_point"),
];

static LAYOUTS: &[Layout] = &[
    // torchao `quantization/quant_primitives.py`, `_dequantize_affine_no_dtype_check` and `_dequantize_affine_float8`.
    // The product of two types is of float32; of two numbers of bfloat16 or float16, it has that type, which is the
    // target's.
    Layout {
        name: "torchao-int8",
        library: "torchao, Int8Tensor or IntxUnpackedToInt8Tensor",
        tensor_classes: &["Int8Tensor", "IntxUnpackedToInt8Tensor"],
        formats: &[
            "Int8WeightOnlyConfig",
            "Int8DynamicActivationInt8WeightConfig",
            "Int8StaticActivationInt8WeightConfig",
            "IntxWeightOnlyConfig",
            "Int8DynamicActivationIntxWeightConfig",
        ],
        names: &[TORCHAO],
        codes: bytes(&[Int8]),
        zeros: Zeros::Plain,
        ..BASE
    },
    Layout {
        name: "torchao-fp8",
        library: "torchao, Float8Tensor",
        tensor_classes: &["Float8Tensor"],
        formats: &["Float8WeightOnlyConfig", "Float8DynamicActivationFloat8WeightConfig"],
        names: &[TORCHAO],
        codes: bytes(&[Float8E4M3FN, Float8E5M2]),
        ..BASE
    },
];

/// The metadata key of the list of tensors. Each tensor of the list has a key, with JSON.
const TENSOR_NAMES: &str = "tensor_names";

/// The description of a tensor that is not quantized.
const PLAIN: &str = r#"{"_type": "Tensor"}"#;

/// Reads the class of the config. The shapes of the scales show the groups.
fn read(block: &ConfigObject, config: &mut CheckpointConfig) -> Result<()> {
    let class = |value: &Value| value.get("_type").and_then(Value::as_str).map(str::to_owned);
    let Some(quant_type) = block.get("quant_type").map(|all| all.get("default").unwrap_or(all)) else {
        return Err(Error::new("its quantization_config does not say its quant_type"));
    };
    let is_old = quant_type.get("_version").and_then(Value::as_u64) == Some(1);
    let classes = match class(quant_type).as_deref() {
        Some("FqnToConfig" | "ModuleFqnToConfig") => {
            let data = quant_type.get("_data").and_then(Value::as_object);
            let modules =
                data.and_then(|data| data.get("fqn_to_config").or(data.get("module_fqn_to_config"))?.as_object());
            let Some(modules) = modules else {
                return Err(Error::new("its quant_type does not hold an object of modules"));
            };
            let configs = modules.values().filter(|value| !value.is_null());
            configs.map(|value| class(value).unwrap_or_default()).collect()
        }
        class => vec![class.or(quant_type.as_str()).unwrap_or_default().to_owned()],
    };
    for class in classes.iter().collect::<HashSet<_>>() {
        let layouts = named(LAYOUTS, Some(class));
        if layouts.is_empty() {
            return Err(refused(&format!("quant_type '{}'", shorten(class))));
        }
        let version = if is_old { " of version 1" } else { "" };
        config.add_others(WeightDescription::new(layouts, format!("the config says quant_type '{class}'{version}")));
    }
    Ok(())
}

/// Reads the descriptions of tensors in the metadata of files, by the names of the tensors.
fn entries<'m>(metadata: impl Iterator<Item = (&'m str, &'m str)> + Clone) -> HashMap<&'m str, Map<String, Value>> {
    let lists = metadata.clone().filter(|(key, _)| *key == TENSOR_NAMES);
    let listed: HashSet<String> =
        lists.flat_map(|(_, list)| serde_json::from_str::<Vec<String>>(list).unwrap_or_default()).collect();
    let listed = metadata.filter(|(key, _)| listed.contains(*key));
    let entries = listed.filter_map(|(key, text)| Some((key, serde_json::from_str::<Map<_, _>>(text).ok()?)));
    entries.filter(|(_, entry)| entry.contains_key("_type")).collect()
}

/// The descriptions of the tensors of a checkpoint.
pub(in crate::quant) struct TensorDescriptions<'a> {
    entries: HashMap<&'a str, Map<String, Value>>,
}

impl<'a> TensorDescriptions<'a> {
    pub(in crate::quant) fn read(source: &CheckpointInfo<'a>) -> Self {
        Self { entries: entries(source.metadata.iter().copied()) }
    }

    /// Refuses a weight of another class, or without a part that its description names. Without a description, codes
    /// need zero points if the layout has any. `stem` is the name of the codes without their suffix.
    pub(in crate::quant) fn check(
        &self,
        layout: &Layout,
        name: &str,
        stem: &str,
        exists: impl Fn(&str) -> bool,
    ) -> Result<()> {
        if layout.tensor_classes.is_empty() {
            return Ok(());
        }
        let check = |part: &str, wording: &str| {
            let part = format!("{stem}_{part}");
            let error = || Error::new(format!("it has no '{}', which it needs: {wording}", shorten(&part)));
            exists(&part).then_some(()).ok_or_else(error)
        };
        let Some(entry) = self.entries.get(name) else {
            let wording = "its file has no metadata of torchao";
            return if layout.zeros == Zeros::None { Ok(()) } else { check("zero_point", wording) };
        };
        let class = entry.get("_type").and_then(Value::as_str).unwrap_or_default();
        let has_class = |layout: &Layout| layout.tensor_classes.contains(&class);
        if !has_class(layout) {
            let wording = format!("the metadata says _type '{}'", shorten(class));
            let known = LAYOUTS.iter().find(|layout| has_class(layout));
            return Err(match known {
                Some(other) => {
                    Error::new(format!("{wording}, and its dtypes fit {} and not {}", layout.name, other.name))
                }
                None => refused(&format!("_type '{}'", shorten(class))),
            });
        }
        let wording = format!("the metadata says _type '{class}'");
        let parts = entry.get("_tensor_data_names").and_then(Value::as_array).into_iter().flatten();
        parts.filter_map(Value::as_str).try_for_each(|part| check(part, &wording))
    }
}

fn refused(what: &str) -> Error {
    undecoded("torchao", what)
}

/// Returns the changes to the metadata of files after weights were decoded. Nothing of torchao remains, unless some
/// weights stay quantized.
fn metadata_of(metadata: &[&(String, String)], modules: &Modules) -> MetadataChanges {
    let entries = entries(metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())));
    let mut names: Vec<&str> = entries.into_keys().collect();
    names.sort_unstable();
    if names.is_empty() {
        return Vec::new();
    }
    if modules.left.is_empty() {
        return names.into_iter().chain([TENSOR_NAMES]).map(|key| (key.to_owned(), None)).collect();
    }
    let is_decoded = |key: &&str| {
        let module = key.strip_suffix(".weight").unwrap_or(key);
        modules.decoded.contains(modules.renamed.get(module).copied().unwrap_or(module))
    };
    names.into_iter().filter(is_decoded).map(|key| (key.to_owned(), Some(PLAIN.to_owned()))).collect()
}
