//! Describes an adapter without its base.

use super::adapter::{Adapter, Dialect};
use super::summary::range;
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
        let (mut ranks, mut scales, mut targets) = (Vec::new(), Vec::new(), BTreeMap::new());
        for module in &adapter.modules {
            let name = module.name.strip_prefix("base_model.model.").unwrap_or(&module.name).replace(".base_layer", "");
            let mut parameters = adapter.target_parameters();
            if let Some(given) = adapter.scales(module).map_err(|error| module.explain(error))?
                && parameters.any(|(end, _)| !end.is_empty() && name.ends_with(end))
            {
                // The matrices of experts have the rank times their number.
                let (scale, rank) = given.get(&name)?;
                scales.push(scale);
                ranks.push(rank);
            } else if let Some(delta) = module.delta(adapter.dialect).map_err(|error| module.explain(error))? {
                scales.push(adapter.scale(module, &name, delta.rank)?);
                ranks.extend(delta.rank.map(|rank| rank as f64));
            }
            let name = module.name.strip_suffix(".weight").unwrap_or(&module.name);
            let name = name.rsplit('.').find(|part| part.parse::<u64>().is_err()).unwrap_or_default();
            if adapter.dialect != Dialect::Kohya {
                *targets.entry(name.to_owned()).or_default() += 1;
            }
        }
        Ok(Self {
            dialect: adapter.dialect.name(),
            method: adapter.method(),
            rank: range(ranks.into_iter()),
            scale: range(scales.into_iter()),
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
