//! Diffusion models, whose tensors keep their names without their prefix.

use super::architecture::{named, undetected};
use super::keys;
use super::model::{GgufModel, NewWeight, OldTensor, TensorOrder, TypeRules, tensors_of};
use crate::container::gguf::names::check_known;
use crate::container::{ARCHITECTURE, GgufKey};
use crate::error::{Error, Result};
use crate::options::GgufOptions;
use crate::progress::GgufNote;
use crate::quant::gguf::diffusion;
use crate::quant::gguf::{Architecture, Undetected};
use crate::read::Model;
use crate::text::shorten;
use serde_json::Value;
use std::collections::HashSet;

/// Keys of the metadata of safetensors files that `ComfyUI-GGUF` reads from a GGUF file: the config of LTX-Video.
const KEPT: &[&str] = &["config"];

impl<'m> GgufModel<'m> {
    /// A diffusion model, whose tensors keep their names.
    pub(super) fn of_diffusion_model(input: &'m Model, options: &GgufOptions) -> Result<Self> {
        let old = tensors_of(input)?;
        let names: Vec<&str> = old.iter().map(|tensor| tensor.name).collect();
        let prefix = diffusion::prefix_of(&names);
        let new_name = |name: &str| match prefix {
            Some(prefix) => diffusion::without_prefix(name, prefix),
            None => Some(name.to_owned()),
        };
        let renamed: Vec<(String, OldTensor)> =
            old.into_iter().filter_map(|tensor| Some((new_name(tensor.name)?, tensor))).collect();
        let all: HashSet<&str> = renamed.iter().map(|(name, _)| name.as_str()).collect();
        let mut notes = Vec::new();
        let architecture = if let Some(name) = &options.architecture {
            named(name, &all)?
        } else {
            let found = match (Architecture::detect(&all), model_type_of(input)?) {
                (Err(Undetected::Unknown), Some(model_type)) => {
                    check_known(&model_type)?;
                    let what = format!(
                        "a GGUF of this language model (type '{}') needs metadata that the folder does not contain",
                        shorten(&model_type)
                    );
                    return Err(Error::new(what).with_metadata());
                }
                (found, _) => found.map_err(undetected)?,
            };
            notes.push(GgufNote::Architecture(found.name));
            found
        };
        if let Some(prefix) = prefix {
            notes.push(GgufNote::PrefixLost(prefix.to_owned()));
        }
        if let Some(name) = all.iter().find(|name| diffusion::refused_part(name).is_some()) {
            let error = Error::new("has a name that ComfyUI does not load in a diffusion model").in_tensor(name);
            return Err(error.remedy("give the diffusion model alone, with its original names"));
        }
        let value = |key: &str| input.source.shards.iter().find_map(|shard| shard.contents.value(key));
        let kept = KEPT.iter().filter_map(|key| Some(GgufKey::text(key, value(key)?)));
        let mut keys: Vec<GgufKey> = [GgufKey::text(ARCHITECTURE, architecture.name)].into_iter().chain(kept).collect();
        let mut tensors = Vec::new();
        for (name, OldTensor { shape, origin, dtype, .. }) in renamed {
            if architecture.drops(&name) {
                continue;
            }
            if shape.len() >= 5 && !architecture.has_five_dimensions {
                let message =
                    format!("has {} dimensions, which models of {} do not have", shape.len(), architecture.name);
                return Err(Error::new(message).in_tensor(&name));
            }
            let unquantized =
                dtype.filter(|dtype| dtype.is_floating()).map(|dtype| architecture.unquantized(&name, shape, dtype));
            let stored = match architecture.reshaped(shape) {
                Some(stored) => {
                    keys.push(keys::original_shape(&name, shape));
                    stored.to_vec()
                }
                None if shape.len() >= 5 => {
                    keys.push(keys::original_shape(&name, shape));
                    shape.to_vec()
                }
                None => architecture.table_shape(&name, shape).to_vec(),
            };
            tensors.push(NewWeight { name, shape: stored, origin, dtype, unquantized });
        }
        let shapes: Vec<(&str, &[u64])> = tensors.iter().map(|tensor| (&*tensor.name, &*tensor.shape)).collect();
        let order = diffusion::file_order(&shapes);
        let names = order.iter().map(|at| tensors[*at].name.clone()).collect();
        let mut tensors: Vec<Option<NewWeight>> = tensors.into_iter().map(Some).collect();
        let tensors = order.into_iter().filter_map(|at| tensors[at].take()).collect();
        let rules = TypeRules::Diffusion(architecture);
        Ok(Self { tensors, computed: Vec::new(), keys, rules, order: Some(TensorOrder::Listed(names)), notes })
    }
}

/// Returns the `model_type` of the config of a model.
fn model_type_of(input: &Model) -> Result<Option<String>> {
    let config = input.config()?.and_then(|text| serde_json::from_str::<Value>(text).ok());
    Ok(config.and_then(|config| Some(config.get("model_type")?.as_str()?.to_owned())))
}
