//! Metadata of outputs that the caller sets or removes.

use super::Planned;
use crate::container::gguf::{ALIGNMENT, SPLIT, value_of_text};
use crate::container::{Container, GGUF, GgufKey, Metadata};
use crate::error::{Error, Opt, Result};
use crate::options::ContentOptions;
use crate::quant::CheckpointInfo;
use crate::text::shorten;

/// Metadata of ONNX models that are fields of their own.
const FIELDS: [&str; 7] =
    ["ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string", "opset_import"];

/// True if a format owns a key, so that it is neither set nor removed.
pub(crate) fn is_owned_key(container: &dyn Container, key: &str) -> bool {
    let is_of_gguf = container.is(GGUF) && (key == ALIGNMENT || key.starts_with(SPLIT));
    let is_of_model = container.format_info().is_changed_only() && FIELDS.contains(&key);
    is_of_gguf || is_of_model || key == "tcast" || key == CheckpointInfo::METADATA
}

impl Planned<'_> {
    /// Sets and removes metadata. Refuses keys that a format owns, and formats without metadata.
    pub(crate) fn set_metadata(&mut self, options: &ContentOptions, container: &dyn Container) -> Result<()> {
        let all = options
            .set
            .iter()
            .map(|set| (&*set.key, Opt::SET))
            .chain(options.unset.iter().map(|key| (&**key, Opt::UNSET)));
        for (key, option) in all.clone() {
            if container.format_info().metadata == Metadata::None && !container.is(GGUF) {
                let extension = container.format_info().extension;
                return Err(Error::usage(format!("a .{extension} file has no place for metadata")).without(option));
            }
            if is_owned_key(container, key) {
                return Err(
                    Error::usage(format!("the metadata key '{}' belongs to the format", shorten(key))).without(option)
                );
            }
        }
        let is_there = |planned: &Self, key: &str| {
            let is_of_input = || planned.inputs.iter().any(|input| input.contents.value(key).is_some());
            if container.is(GGUF) { planned.keys.iter().any(|known| known.name == key) } else { is_of_input() }
        };
        if let Some(key) = options.unset.iter().find(|key| !is_there(self, key)) {
            return Err(Error::usage(format!("there is no metadata key '{}'", shorten(key))).without(Opt::UNSET));
        }
        if !container.is(GGUF) {
            let typed = options.set.iter().find(|set| set.kind.is_some());
            if let Some(set) = typed {
                let what = format!(
                    "the metadata key '{}' has a type, and only keys of .gguf files have types",
                    shorten(&set.key)
                );
                return Err(Error::usage(what).without(Opt::SET));
            }
            self.set.extend(options.unset.iter().map(|key| (key.clone(), None)));
            self.set.extend(options.set.iter().map(|set| (set.key.clone(), Some(set.value.clone()))));
            return Ok(());
        }
        self.keys.retain(|key| !options.unset.contains(&key.name));
        for set in &options.set {
            let known = self.keys.iter().position(|key| key.name == set.key);
            let before = known.map(|at| &*self.keys[at].value);
            let value = value_of_text(&set.value, set.kind.as_deref(), before).map_err(|error| {
                Error::usage(format!("the metadata key '{}': {}", shorten(&set.key), error.message()))
            })?;
            match known {
                Some(at) => self.keys[at].value = value,
                None => self.keys.push(GgufKey { name: set.key.clone(), value }),
            }
        }
        Ok(())
    }
}
