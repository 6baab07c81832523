//! Facts about a checkpoint of PyTorch besides its tensors: the entries of its root, and the names of code.

use super::tree::RootEntry;
use super::values::{CodeName, PickleValues};
use crate::container::Tensor;
use crate::error::{Error, Opt, Result};
use crate::text::shorten;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Maximum number of classes and functions that a file names. Checkpoints name a few dozen.
const MOST_NAMES: usize = 10_000;

/// Facts about a checkpoint of PyTorch.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) struct PickleFacts {
    /// `zip` or `legacy`; `dcp`, `ranks` or `hf` for a folder.
    pub(crate) form: &'static str,
    /// Protocol of the pickle.
    pub(crate) protocol: u8,
    /// Entries of the root that contain tensors.
    pub(crate) roots: Vec<RootInfo>,
    /// The entry whose tensors are read; `None` if all are.
    pub(crate) chosen: Option<String>,
    /// True if the caller chose it.
    pub(crate) is_requested: bool,
    /// Names of classes and functions, and how often the pickle names each.
    pub(crate) globals: BTreeMap<String, u64>,
    /// Names of arrays of numpy, which are not read.
    pub(crate) arrays: Vec<String>,
    /// Names in `globals` that may do harm to other programs that load the file.
    pub(crate) suspicious: BTreeSet<String>,
    /// Names of pickled objects that are no tensors.
    pub(crate) objects: Vec<String>,
    /// Archives with pickles that were not read: files beside this one, and places in them.
    pub(crate) unread: Vec<(String, Range<u64>)>,
}

/// An entry of the root, and its tensors.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) struct RootInfo {
    pub(crate) key: String,
    /// Number of tensors, with the ones that cannot be read.
    pub(crate) tensors: u64,
    /// Size of the tensors that can be read, in bytes.
    pub(crate) bytes: u64,
    /// True if it is a dict under one of the usual keys for weights.
    #[serde(skip)]
    pub(crate) is_weights: bool,
    /// True if its tensors are read, or some of them.
    #[serde(skip)]
    pub(crate) is_read: bool,
}

impl RootInfo {
    pub(super) fn of(entry: &RootEntry, found: &[Result<Tensor>], chosen: Option<&str>) -> Self {
        let found = &found[entry.tensors.clone()];
        let bytes = found.iter().flatten().filter_map(|tensor| tensor.elements.bytes(tensor.count)).sum();
        let is_read = chosen.is_none_or(|chosen| chosen == entry.key);
        Self { key: entry.key.clone(), tensors: found.len() as u64, bytes, is_weights: entry.is_weights(), is_read }
    }
}

impl PickleFacts {
    /// Adds the names of code in another pickle.
    pub(super) fn merge(&mut self, other: &Self) -> Result<()> {
        for (name, count) in &other.globals {
            *self.globals.entry(name.clone()).or_default() += count;
        }
        self.suspicious.extend(other.suspicious.iter().cloned());
        self.check_count()
    }

    fn check_count(&self) -> Result<()> {
        if self.globals.len() <= MOST_NAMES {
            return Ok(());
        }
        Err(Error::new(format!("malformed pickle: it names more than {MOST_NAMES} classes and functions")))
    }

    /// Adds the names of code in a pickle.
    pub(super) fn add_code(&mut self, values: &PickleValues) -> Result<()> {
        for name in 0..values.names.len() as u32 {
            let count = self.globals.entry(values.full_name(name)).or_default();
            *count += 1;
            let CodeName { harmless, is_misused, .. } = &values.names[name as usize];
            if harmless.is_none() || *is_misused {
                self.suspicious.insert(values.full_name(name));
            }
            self.check_count()?;
        }
        Ok(())
    }
}

/// Returns the error for a root that has no tensors.
pub(super) fn no_such_root(root: &str, roots: &[RootInfo]) -> Error {
    let error = Error::new(format!("has no tensors under '{}'", shorten(root)));
    if roots.is_empty() {
        return error.without(Opt::ROOT);
    }
    let names: Vec<String> = roots.iter().map(|root| format!("'{}'", shorten(&root.key))).collect();
    error.remedy(format!("these have some: {}", names.join(", "))).without(Opt::ROOT)
}
