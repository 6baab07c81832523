//! What reports say about an adapter.

use serde_json::{Value, json};
use std::path::PathBuf;

/// Facts about an adapter for reports.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    pub path: PathBuf,
    pub dialect: &'static str,
    /// The method, such as `LORA`.
    pub method: String,
    pub strength: f64,
    /// The smallest and the largest rank, if the method has one.
    pub rank: Option<[u64; 2]>,
    /// The smallest and the largest scale.
    pub scale: Option<[f64; 2]>,
    /// The number of weights that get deltas.
    pub weights: usize,
    /// The number of weights that are replaced, or some rows of them.
    pub replaced: usize,
    /// The modules or tensors of the adapter, each with a weight that it changes and its scale; `None` replaces it.
    pub mapping: Vec<(String, String, Option<f64>)>,
}

impl AdapterSummary {
    /// Describes the adapter for JSON.
    pub(crate) fn json(&self) -> Value {
        let range = |name: [&str; 2], [least, most]: [Value; 2]| json!({ name[0]: least, name[1]: most });
        json!({
            "path": self.path.to_string_lossy(),
            "dialect": self.dialect,
            "method": self.method,
            "strength": self.strength,
            "rank": self.rank.map(|rank| range(["min", "max"], rank.map(Value::from))),
            "scale": self.scale.map(|scale| range(["min", "max"], scale.map(Value::from))),
            "weights": self.weights,
            "replaced": self.replaced,
        })
    }
}
