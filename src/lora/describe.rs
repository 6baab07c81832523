//! Describes an adapter without its base.

use super::adapter::{Adapter, AdapterModule, AdapterPart, Dialect};
use super::scale::Scales;
use super::{AdapterSummary, Merges};
use crate::error::Result;
use crate::options::AdapterOption;
use crate::read::Model;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Facts about an adapter for people and JSON.
pub(crate) struct AdapterDescription {
    pub dialect: &'static str,
    pub method: String,
    /// The smallest and the largest rank and scale of its modules, if they have any.
    pub rank: Option<[f64; 2]>,
    pub scale: Option<[f64; 2]>,
    pub modules: usize,
    /// The number of whole weights that it contains.
    pub whole: usize,
    /// The last parts of the names of its modules, and their numbers.
    pub targets: BTreeMap<String, usize>,
    /// Names the weights of the base that it changes, if a base is given.
    pub merge: Option<AdapterSummary>,
}

impl AdapterDescription {
    /// Opens an adapter, with its base if one is given.
    ///
    /// # Errors
    /// When it could not be merged into the base, or into any base.
    pub(crate) fn open(path: &Path, base: Option<&Model>) -> Result<Self> {
        let option = AdapterOption { path: path.to_owned(), strength: 1.0 };
        let merges = base.map(|base| Merges::open(&[option], true, base)).transpose()?;
        let adapter = Adapter::open(path, false)?;
        let scales = Scales::of(&adapter)?;
        let (mut rank, mut scale, mut targets) = (None, None, BTreeMap::new());
        for module in &adapter.modules {
            let own = adapter.rank(module)?;
            let widen = |range: &mut Option<[f64; 2]>, value: Option<f64>| {
                if let Some(value) = value {
                    let [least, most] = range.unwrap_or([value; 2]);
                    *range = Some([least.min(value), most.max(value)]);
                }
            };
            widen(&mut rank, own);
            widen(&mut scale, adapter.scale(module, own, scales.as_ref())?);
            let name = module.name.strip_suffix(".weight").unwrap_or(&module.name);
            let name = name.rsplit('.').find(|part| part.parse::<u64>().is_err()).unwrap_or_default();
            if adapter.dialect != Dialect::Kohya {
                *targets.entry(name.to_owned()).or_default() += 1;
            }
        }
        let method = adapter.config["peft_type"].as_str().or(adapter.config["fine_tune_type"].as_str());
        Ok(Self {
            dialect: adapter.dialect.name(),
            method: method.unwrap_or("lora").to_lowercase(),
            rank,
            scale,
            modules: adapter.modules.len(),
            whole: adapter.whole.len(),
            targets,
            merge: merges.and_then(|mut merges| merges.adapters.pop()),
        })
    }

    pub(crate) fn json(&self) -> Value {
        let range = |[least, most]: [f64; 2]| json!({ "min": least, "max": most });
        let mut document = json!({
            "dialect": self.dialect,
            "method": self.method,
            "rank": self.rank.map(range),
            "scale": self.scale.map(range),
            "modules": self.modules,
            "whole": self.whole,
            "targets": self.targets,
        });
        if let Some(merge) = &self.merge {
            (document["mapping"], document["unmatched"]) = (json!(merge.mapping), json!(merge.unmatched));
        }
        document
    }
}

impl Adapter {
    fn rank(&self, module: &AdapterModule) -> Result<Option<f64>> {
        let of_up = |at: fn(&[u64]) -> Option<u64>| module.part(AdapterPart::Up).and_then(|up| at(&up.shape));
        let rank = match self.dialect {
            Dialect::Gguf => of_up(|shape| shape.last().copied()),
            // [rank, out] of a linear layer, [experts, out, rank] of experts.
            Dialect::Mlx => {
                of_up(|shape| if shape.len() == 3 { shape.last().copied() } else { shape.first().copied() })
            }
            Dialect::Peft | Dialect::Kohya | Dialect::Dotted => module.delta()?.and_then(|delta| delta.rank),
        };
        Ok(rank.map(|rank| rank as f64))
    }

    fn scale(&self, module: &AdapterModule, rank: Option<f64>, scales: Option<&Scales>) -> Result<Option<f64>> {
        let by_rank = |alpha: f64| rank.map_or(1.0, |rank| alpha / rank);
        Ok(match (self.dialect, scales, module.part(AdapterPart::Alpha)) {
            (Dialect::Mlx, ..) => self.config["lora_parameters"]["scale"].as_f64(),
            (Dialect::Gguf, ..) => {
                let alpha = self.metadata("adapter.lora.alpha").and_then(|text| text.parse().ok());
                Some(alpha.filter(|alpha| *alpha != 0.0).map_or(1.0, by_rank))
            }
            (_, _, Some(alpha)) if alpha.count() == 1 => Some(by_rank(alpha.matrix.scalar())),
            (_, Some(scales), _) => {
                let name = module.name.strip_prefix("base_model.model.").unwrap_or(&module.name);
                Some(scales.get(&name.replace(".base_layer", ""))?.0)
            }
            (_, None, _) => rank.map(|_| 1.0),
        })
    }
}
