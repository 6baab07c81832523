//! Describes an adapter, and the weights that it changes, for reports.

use super::adapter::Adapter;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A module or a tensor of an adapter, with a weight that it changes.
#[derive(Clone, Debug, Serialize)]
pub struct MappedModule {
    pub module: String,
    /// The name of the weight in the base.
    pub weight: String,
    pub rank: Option<u64>,
    /// The factor of its delta, without the strength; `None` if it replaces values.
    pub scale: Option<f64>,
}

/// Facts about an adapter for reports.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    pub path: PathBuf,
    pub dialect: &'static str,
    /// The method, such as `LORA`.
    pub method: String,
    pub strength: f64,
    pub mapping: Vec<MappedModule>,
    /// The names of its tensors that match nothing.
    pub unmatched: Vec<String>,
}

impl AdapterSummary {
    /// Begins the summary of an adapter.
    pub(super) fn new(adapter: &Adapter, strength: f64) -> Self {
        let (path, dialect, method) = (adapter.path.clone(), adapter.dialect.name(), adapter.method());
        Self { path, dialect, method, strength, mapping: Vec::new(), unmatched: Vec::new() }
    }

    /// Returns the smallest and the largest rank, if the method has one.
    pub(crate) fn rank(&self) -> Option<[u64; 2]> {
        range(self.mapping.iter().filter_map(|module| module.rank))
    }

    /// Returns the smallest and the largest scale.
    pub(crate) fn scale(&self) -> Option<[f64; 2]> {
        range(self.mapping.iter().filter_map(|module| module.scale))
    }

    /// Describes the adapter for JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "path": self.path.to_string_lossy(),
            "dialect": self.dialect,
            "method": self.method,
            "strength": self.strength,
            "rank": self.rank().map(|[min, max]| json!({ "min": min, "max": max })),
            "scale": self.scale().map(|[min, max]| json!({ "min": min, "max": max })),
            "weights": changed([self], false),
            "replaced": changed([self], true),
        })
    }
}

/// Returns the number of weights that get deltas from adapters, or that are replaced, in part or as a whole.
pub(crate) fn changed<'a>(adapters: impl IntoIterator<Item = &'a AdapterSummary>, are_replaced: bool) -> usize {
    let mapping = adapters.into_iter().flat_map(|adapter| &adapter.mapping);
    let weights = mapping.filter(|module| module.scale.is_none() == are_replaced).map(|module| &module.weight);
    weights.collect::<BTreeSet<_>>().len()
}

/// Returns the smallest and the largest value; `None` without values.
pub(super) fn range<T: Copy + PartialOrd>(mut values: impl Iterator<Item = T>) -> Option<[T; 2]> {
    let first = values.next()?;
    let wider = |[least, most]: [T; 2], value| {
        [if value < least { value } else { least }, if value > most { value } else { most }]
    };
    Some(values.fold([first; 2], wider))
}
