//! Names of tensors in the output, and checks for names that would make tensors parts of quantized weights.

use super::mlx;
use super::planner::{GPT_OSS, Planner, WeightCandidate, WeightCandidates};
use crate::container::checkpoint::{MlxStacks, stack_of};
use crate::error::{Error, Opt, Result};
use crate::options::Naming;
use crate::plan::stacked::{ExpertStacks, StackForm};
use crate::quant::{Role, layouts};
use crate::select::policy::module_of;
use crate::text::shorten;
use std::collections::{BTreeSet, HashMap};

/// The remedy for a new name that readers would misunderstand.
pub(crate) const OTHER_NAME: &str = "choose another new name for it";

/// Returns an unambiguous name, for a tensor with a name that readers would misunderstand.
pub(crate) fn name_instead_of(name: &str) -> String {
    format!("{name}.kept")
}

impl Planner<'_, '_> {
    pub(super) fn new_name<'n>(&'n self, name: &'n str) -> &'n str {
        self.renames.get(name).map_or(name, String::as_str)
    }

    /// Returns the module of a weight in the output; empty if its name does not end in `.weight`.
    pub(super) fn module<'n>(&'n self, weight: &'n WeightCandidate) -> &'n str {
        module_of(self.new_name(&weight.name)).unwrap_or_default()
    }

    /// Returns the stacks of experts; `None` if experts are stored one by one. Refuses models whose stacks are not known.
    pub(super) fn new_stacks(&self, candidates: &WeightCandidates) -> Result<Option<ExpertStacks>> {
        if self.layout != mlx::NAME || self.options.tensors.naming.names == Some(Naming::File) {
            return Ok(None);
        }
        let form = MlxStacks::of_kind(self.facts.kind.as_deref());
        let is_expert = |weight: &WeightCandidate| stack_of(self.module(weight)).is_some();
        if !candidates.weights.iter().any(is_expert) && form.is_err() {
            return Ok(None);
        }
        if self.options.contents.experts.is_some() {
            return Err(Error::usage("MLX has its own form of stacks of experts").without(Opt::EXPERTS));
        }
        Ok(Some(ExpertStacks { form: StackForm::Mlx(form?), experts: self.facts.experts, are_requested: false }))
    }

    /// Refuses names that readers would misunderstand, of quantized weights and of tensors next to them.
    pub(super) fn check_names(&self, candidates: &WeightCandidates) -> Result<()> {
        let mut quantized: HashMap<&str, &WeightCandidate> = HashMap::new();
        for weight in candidates.weights.iter().filter(|weight| weight.decision.is_ok()) {
            let name = self.new_name(&weight.name);
            if self.layout == GPT_OSS {
                continue; // a bank is not a module
            }
            let module = module_of(name).ok_or_else(|| {
                let error = Error::new(format!("its new name '{}' does not end in '.weight'", shorten(name)));
                error.in_tensor(&weight.name).remedy(format!("name it '{}.weight'", shorten(name)))
            })?;
            quantized.insert(module, weight);
        }
        let names = layouts().flat_map(|layout| layout.names).copied().flatten();
        let parts: BTreeSet<&str> = names
            .filter(|(role, suffix)| *role != Role::Activation && *suffix != ".weight" && suffix.starts_with('.'))
            .map(|(_, suffix)| *suffix)
            .collect();
        for tensor in self.model.model_tensors(&[]) {
            let Some(stored) = tensor.stored() else { continue };
            let old = tensor.name();
            let name = self.new_name(old);
            let weight = parts.iter().find_map(|suffix| quantized.get(name.strip_suffix(suffix)?));
            if let Some(weight) = weight {
                let message = format!("has the name of a part of '{}', which is quantized", shorten(&weight.name));
                let error = Error::new(message).in_tensor(old).in_file(stored.files[0].path());
                // Next to a weight that is not quantized, readers would misunderstand the name too.
                return Err(if name == old {
                    error.renaming(name, &name_instead_of(name))
                } else {
                    error.remedy(OTHER_NAME)
                });
            }
        }
        Ok(())
    }
}
