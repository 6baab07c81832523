//! Selects the tensors under a root, by the paths that a distributed checkpoint records.

use super::super::code::{RootInfo, no_such_root};
use super::super::tree::is_key_of_weights;
use crate::error::Result;

/// Keys of the state of a training, which is no weight.
const TRAINING: [&str; 10] = [
    "optimizer",
    "optimizers",
    "optim",
    "lr_scheduler",
    "scheduler",
    "dataloader",
    "train_state",
    "rng",
    "rng_state",
    "extra_state",
];

/// The root that is everything.
const ALL: &str = ".";

/// A tensor of a checkpoint for the choice: the keys that lead to it, and its size.
pub(super) struct LocatedTensor {
    pub(super) path: Vec<String>,
    pub(super) bytes: u64,
}

impl LocatedTensor {
    fn top(&self) -> &str {
        &self.path[0]
    }

    /// The name under a root that has so many keys.
    fn name(&self, root: usize) -> String {
        self.path[root..].join(".")
    }
}

/// A choice of tensors.
pub(super) struct RootChoice {
    /// The new name of each tensor that is read; `None` for the others.
    pub(super) names: Vec<Option<String>>,
    pub(super) roots: Vec<RootInfo>,
    /// The root whose tensors are read; `None` if there is none.
    pub(super) chosen: Option<String>,
}

/// Chooses the tensors under the requested root. Without a request, those under the only key that training programs use for
/// weights, at the top or one level below; if there is none, all except the state of the training.
///
/// # Errors
/// When no tensor is under the requested root.
pub(super) fn choose(tensors: &[LocatedTensor], requested: Option<&str>) -> Result<RootChoice> {
    let root = if requested.is_none() { usual_root(tensors) } else { None };
    let names: Vec<Option<String>> = match (requested, &root) {
        (Some(ALL), _) => tensors.iter().map(|tensor| Some(tensor.name(0))).collect(),
        (Some(wanted), _) => tensors.iter().map(|tensor| under(tensor, wanted)).collect(),
        (None, Some(root)) => {
            let name = |tensor: &LocatedTensor| {
                (tensor.path.len() > root.len() && tensor.path.starts_with(root)).then(|| tensor.name(root.len()))
            };
            tensors.iter().map(name).collect()
        }
        (None, None) => {
            let is_read = |tensor: &LocatedTensor| !TRAINING.contains(&tensor.top());
            tensors.iter().map(|tensor| is_read(tensor).then(|| tensor.name(0))).collect()
        }
    };
    let mut roots: Vec<RootInfo> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (tensor, name) in tensors.iter().zip(&names) {
        let depth = match &root {
            Some(root) if root.len() == 2 && tensor.path.len() > 2 && root[0] == tensor.path[0] => 2,
            _ => 1,
        };
        // A tensor at the top is an entry of its own if it stays out.
        if tensor.path.len() == 1 && name.is_some() {
            continue;
        }
        let key = tensor.path[..depth].join(".");
        let at = *places.entry(key.clone()).or_insert_with(|| {
            let is_weights = tensor.path.len() > depth && is_key_of_weights(&tensor.path[depth - 1]);
            roots.push(RootInfo { key, tensors: 0, bytes: 0, is_weights, is_read: false });
            roots.len() - 1
        });
        let entry = &mut roots[at];
        (entry.tensors, entry.bytes) = (entry.tensors + 1, entry.bytes.saturating_add(tensor.bytes));
        entry.is_read |= name.is_some();
    }
    let chosen = root.map(|root| root.join(".")).or_else(|| requested.filter(|root| *root != ALL).map(str::to_owned));
    match &chosen {
        Some(root) if names.iter().all(Option::is_none) => Err(no_such_root(root, &roots)),
        _ => Ok(RootChoice { names, roots, chosen }),
    }
}

/// Returns the name of a tensor under a root that is given as text: the keys decide where it ends.
fn under(tensor: &LocatedTensor, root: &str) -> Option<String> {
    let is_root = |keys: &usize| tensor.path[..*keys].join(".") == root;
    match (1..=tensor.path.len()).find(is_root)? {
        keys if keys == tensor.path.len() => tensor.path.last().cloned(),
        keys => Some(tensor.name(keys)),
    }
}

/// Returns the keys of the only usual root.
fn usual_root(tensors: &[LocatedTensor]) -> Option<Vec<String>> {
    let mut found: Vec<&[String]> = Vec::new();
    for depth in 1..=2 {
        let is_in_root = |tensor: &&LocatedTensor| {
            let path = &tensor.path;
            path.len() > depth && is_key_of_weights(&path[depth - 1]) && !TRAINING.contains(&tensor.top())
        };
        for tensor in tensors.iter().filter(is_in_root) {
            let root = &tensor.path[..depth];
            if !found.contains(&root) {
                found.push(root);
            }
            if found.len() > 1 {
                return None;
            }
        }
        if let [root] = found[..] {
            return Some(root.to_vec());
        }
    }
    None
}
