//! Weights that engines load as one module, for advice about options.

use super::policy::{Policy, module_of};
#[cfg(feature = "cli")]
use crate::text::as_glob;

/// Weights that engines load as one module.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) enum LoadedSet {
    /// All experts of the layer with this name.
    Experts(String),
    Fused(String),
}

impl Policy {
    /// Returns the set of weights that engines load as one module with this one, and that are quantized alike or not at
    /// all.
    pub(crate) fn loaded_together(&self, name: &str) -> Option<LoadedSet> {
        match name.split_once(".experts.").filter(|_| !self.is_diffusion) {
            Some((layer, _)) => Some(LoadedSet::Experts(layer.to_owned())),
            None => self.fused_set(module_of(name)?).map(LoadedSet::Fused),
        }
    }

    /// Returns patterns for a weight and for the given names that engines load with it: they can only be left out
    /// together.
    #[cfg(feature = "cli")]
    pub(crate) fn globs_together<'n>(&self, name: &str, names: impl Iterator<Item = &'n str>) -> Vec<String> {
        match self.loaded_together(name) {
            None => vec![as_glob(name)],
            Some(LoadedSet::Experts(layer)) => vec![as_glob(&layer) + ".experts.*"],
            set => names.filter(|name| self.loaded_together(name) == set).map(as_glob).collect(),
        }
    }
}

/// True if a tensor is named as in a diffusion model: in files of its authors, of `ComfyUI`, or of diffusers.
#[cfg(feature = "cli")]
pub(crate) fn is_of_diffusion(name: &str) -> bool {
    const PARTS: [&str; 6] = [
        "double_blocks.",
        "single_blocks.",
        "joint_blocks.",
        "transformer_blocks.",
        "single_transformer_blocks.",
        "down_blocks.",
    ];
    name.contains("diffusion_model.") || PARTS.iter().any(|part| name.starts_with(part))
}
