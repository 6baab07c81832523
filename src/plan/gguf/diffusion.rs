//! Diffusion models, whose tensors keep their names without their prefix.

use super::keys;
use super::model::{GgufModel, NewWeight, TypeRules, architecture_of, tensors_of, undetected};
use crate::container::gguf::names::check_known;
use crate::container::{ARCHITECTURE, GgufKey};
use crate::error::{Error, Result};
use crate::options::GgufOptions;
use crate::progress::GgufNote;
use crate::quant::gguf::diffusion;
use crate::quant::gguf::{Architecture, Undetected};
use crate::read::Model;
use crate::select::experts::ModelFacts;
use crate::text::shorten;
use std::collections::HashSet;

/// Keys of the metadata of safetensors files that `ComfyUI-GGUF` reads from a GGUF file: the config of LTX-Video.
const KEPT: &[&str] = &["config"];

impl<'m> GgufModel<'m> {
    /// A diffusion model, whose tensors keep their names.
    pub(super) fn of_diffusion_model(input: &'m Model, options: &GgufOptions) -> Result<Self> {
        let old = tensors_of(input)?;
        let names: Vec<&str> = old.iter().map(|tensor| &*tensor.name).collect();
        let prefix = diffusion::prefix_of(&names);
        let tensors = old.into_iter().filter_map(|tensor| {
            let Some(prefix) = prefix else { return Some(tensor) };
            Some(NewWeight { name: diffusion::without_prefix(&tensor.name, prefix)?, ..tensor })
        });
        let mut tensors: Vec<NewWeight> = tensors.collect();
        let all: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        let mut notes = Vec::new();
        let architecture = if let Some(name) = &options.architecture {
            architecture_of(name, &all)?
        } else {
            let found = match (Architecture::detect(&all), ModelFacts::read(input.config()?).whole) {
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
        tensors.retain(|tensor| !architecture.drops(&tensor.name));
        for NewWeight { name, shape, dtype, unquantized, .. } in &mut tensors {
            if shape.len() >= 5 && !architecture.has_five_dimensions {
                let message =
                    format!("has {} dimensions, which models of {} do not have", shape.len(), architecture.name);
                return Err(Error::new(message).in_tensor(name));
            }
            let floats = dtype.filter(|dtype| dtype.is_floating());
            *unquantized = floats.map(|dtype| architecture.unquantized(name, shape, dtype));
            let reshaped = architecture.reshaped(shape);
            if reshaped.is_some() || shape.len() >= 5 {
                keys.push(keys::original_shape(name, shape));
            }
            *shape = reshaped.map_or_else(|| architecture.table_shape(name, shape).to_vec(), Vec::from);
        }
        let shapes: Vec<(&str, &[u64])> = tensors.iter().map(|tensor| (&*tensor.name, &*tensor.shape)).collect();
        let order = diffusion::file_order(&shapes);
        let mut tensors: Vec<Option<NewWeight>> = tensors.into_iter().map(Some).collect();
        let tensors = order.into_iter().filter_map(|at| tensors[at].take()).collect();
        let rules = TypeRules::Diffusion(architecture);
        Ok(Self { tensors, computed: Vec::new(), keys, rules, notes })
    }
}
