//! New names of weights in quantized checkpoints: the parts of a weight are renamed with it, and configs list the new
//! names.

use crate::container::checkpoint::layer_of_expert;
use crate::error::{Error, Kind, Opt, Result};
use crate::options::ExpertForm;
use crate::quant::{FoundWeight, Modules};
use crate::read::Model;
use crate::select::policy::module_of;
use crate::select::{Rename, Renames};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};

/// The new names of stored tensors, and of modules.
#[derive(Default)]
pub(super) struct Renaming {
    /// The new names of tensors that are stored in the input, and of weights that are decoded.
    pub(super) tensors: Vec<Rename>,
    /// The new names of modules by old name.
    modules: HashMap<String, String>,
    /// The new names of modules whose matrices were not quantized before.
    plain: Vec<String>,
    /// Modules and tensors that no longer exist.
    gone: HashSet<String>,
}

impl Renaming {
    /// Derives all new names from the requested ones, and from the form of the experts. `is_decoded` is true for a weight that
    /// becomes a plain tensor.
    pub(super) fn new(model: &Model, renames: &[Rename], is_decoded: impl Fn(&FoundWeight) -> bool) -> Result<Self> {
        let mut found = Self::of_options(model, renames, is_decoded)?;
        if model.source.experts == Some(ExpertForm::Stacked) {
            found.add_stacks(model)?;
        }
        for (old, moved) in &model.source.moved {
            let new = found.modules.get(moved).unwrap_or(moved).clone();
            found.modules.insert(old.clone(), new);
            if found.gone.contains(moved) {
                found.gone.insert(old.clone());
            }
        }
        Ok(found)
    }

    /// Lets the module of all experts of a layer take the place of their own modules in lists, unless it is there already.
    fn add_stacks(&mut self, model: &Model) -> Result<()> {
        let config = model.config()?.unwrap_or_default();
        let old_names: HashMap<&str, &str> = model.source.moved.iter().map(|(old, new)| (&**new, &**old)).collect();
        let mut banks = HashSet::new();
        for tensor in &model.tensors {
            let (Some(layer), Some(module)) = (layer_of_expert(tensor.name), module_of(tensor.name)) else { continue };
            let bank = &tensor.name[..layer.len() + ".experts".len()];
            let is_listed = || config.contains(&format!("\"{}\"", old_names.get(bank).unwrap_or(&bank)));
            if banks.insert(bank) && !is_listed() {
                let new = self.modules.get(bank).map_or(bank, String::as_str).to_owned();
                self.modules.insert(module.to_owned(), new);
            } else {
                self.gone.insert(module.to_owned());
            }
        }
        Ok(())
    }

    /// Derives all new names from the requested ones.
    fn of_options(model: &Model, renames: &[Rename], is_decoded: impl Fn(&FoundWeight) -> bool) -> Result<Self> {
        let mut found = Self { gone: gone(model), plain: added_matrices(model, renames), ..Self::default() };
        if renames.is_empty() || model.is_onnx_model() {
            found.tensors = renames.to_vec();
            return Ok(found);
        }
        let weights: HashMap<&str, &FoundWeight> =
            model.found.weights.iter().map(|weight| (&*weight.name, weight)).collect();
        let (given, new_names) = (new_names_in(model, renames), Renames::new(renames));
        let plain = model.found.plain.iter().map(|at| &model.tensors[*at]).filter(|tensor| tensor.shape.len() == 2);
        let matrices: HashSet<&str> = plain.map(|tensor| tensor.name).collect();
        for (at, rename) in renames.iter().enumerate() {
            if rename.is_pattern() && !given.keys().any(|name| rename.new_name(name).is_some()) {
                let names = model.tensors.iter().map(|tensor| tensor.name);
                return Err(no_tensor(rename, names.chain(weights.keys().copied())));
            }
            if !rename.is_pattern() && !weights.contains_key(&*rename.old) {
                if let (Some(old), Some(new)) = (module_of(&rename.old), module_of(&rename.new))
                    && matrices.contains(&*rename.old)
                {
                    found.modules.insert(old.to_owned(), new.to_owned());
                    found.plain.push(new.to_owned());
                }
                found.tensors.push(rename.clone());
                continue;
            }
            // An old name that is given twice is an error, unless an earlier pattern takes it.
            let is_of = |first: usize| first == at || !rename.is_pattern() && !renames[first].is_pattern();
            let is_renamed = |name: &str| new_names.first(name).is_some_and(|(first, _)| is_of(first));
            let exact = weights.get(&*rename.old).copied();
            let all = model.found.weights.iter().filter(|_| rename.is_pattern()).chain(exact);
            for weight in all.filter(|weight| is_renamed(&weight.name)) {
                found.add_weight(model, weight, &given, is_decoded(weight))?;
            }
            if rename.is_pattern() {
                found.tensors.push(rename.clone());
            }
        }
        for weight in model.found.weights.iter().filter(|weight| !is_decoded(weight)) {
            let module = found.modules.get(&weight.module).unwrap_or(&weight.module);
            let is_in_module = |name: &str| name.strip_prefix(&**module).is_some_and(|end| end.starts_with(['.', '_']));
            let parts = weight.parts.iter().map(|(_, at)| model.tensors[*at].name);
            let mut named = parts.filter_map(|part| Some((part, given.get(part)?)));
            if let Some((part, new)) = named.find(|(part, new)| *part != weight.name && !is_in_module(new)) {
                let (name, new, module) = (shorten(&weight.name), shorten(new), shorten(module));
                let message = format!("is a part of '{name}', and its new name '{new}' does not begin with '{module}'");
                let error = Error::new(message).in_tensor(part);
                return Err(error.remedy(format!("rename only '{name}': its parts follow it")));
            }
        }
        found.add_enclosing_modules(model);
        Ok(found)
    }

    /// Renames a weight: its module, and its parts that have no new names of their own.
    fn add_weight(
        &mut self,
        model: &Model,
        weight: &FoundWeight,
        given: &HashMap<&str, String>,
        is_decoded: bool,
    ) -> Result<()> {
        let new = &given[&*weight.name];
        let end = &weight.name[weight.module.len()..];
        let module = new.strip_suffix(end);
        self.modules.extend(module.map(|module| (weight.module.clone(), module.to_owned())));
        if is_decoded {
            self.tensors.push(Rename { old: weight.name.clone(), new: new.clone() });
            return Ok(());
        }
        let module = module.ok_or_else(|| {
            let error = Error::new(format!("its new name '{}' does not end in '{end}'", shorten(new)));
            error.in_tensor(&weight.name).remedy(format!("name it '{}{end}'", shorten(new)))
        })?;
        let names = weight.parts.iter().map(|(_, at)| model.tensors[*at].name);
        for old in names.filter(|name| *name == weight.name || !given.contains_key(name)) {
            let new = format!("{module}{}", &old[weight.module.len()..]);
            self.tensors.push(Rename { old: old.to_owned(), new });
        }
        Ok(())
    }

    /// Adds the modules of renamed tensors, and the modules that enclose them, if all of their tensors keep the rest of their
    /// names.
    fn add_enclosing_modules(&mut self, model: &Model) {
        let new_names = new_names_in(model, &self.tensors);
        let mut modules: HashMap<&str, Option<&str>> = HashMap::new();
        for tensor in &model.tensors {
            let new = new_names.get(tensor.name).map_or(tensor.name, String::as_str);
            for module in with_modules(tensor.name) {
                let new_module = new.strip_suffix(&tensor.name[module.len()..]);
                let known = modules.entry(module).or_insert(new_module);
                *known = known.filter(|known| Some(*known) == new_module);
            }
        }
        for (old, new) in modules.into_iter().filter_map(|(old, new)| Some((old, new.filter(|new| *new != old)?))) {
            self.modules.entry(old.to_owned()).or_insert_with(|| new.to_owned());
        }
    }

    /// Returns the modules of the output: the modules of decoded weights, and of weights that stay quantized.
    pub(super) fn modules<'n>(&'n self, decoded: &[&'n FoundWeight], left: &[&'n FoundWeight]) -> Modules<'n> {
        let new_name = |weight: &&'n FoundWeight| self.modules.get(&weight.module).unwrap_or(&weight.module).as_str();
        Modules {
            decoded: decoded.iter().map(new_name).chain(self.plain.iter().map(String::as_str)).collect(),
            left: left.iter().map(new_name).collect(),
            renamed: self.modules.iter().map(|(old, new)| (&**old, &**new)).collect(),
            gone: self.gone.iter().map(String::as_str).collect(),
        }
    }
}

/// Returns the error for a new name whose old name none of the tensors has.
pub(super) fn no_tensor<'n>(Rename { old, new }: &Rename, names: impl Iterator<Item = &'n str>) -> Error {
    let error = Error::usage(format!("there is no tensor '{}' to rename", shorten(old)));
    if new.contains('=') {
        error.remedy("the old name ends at the first '=': a tensor with '=' in its name cannot be renamed")
    } else {
        let names = names.map(str::to_owned).collect();
        error.of(Kind::Unmatched { option: Opt::RENAME, pattern: old.as_str().into(), names })
    }
}

/// Returns the new names of stored tensors and of weights.
pub(super) fn new_names_in<'m>(model: &'m Model, renames: &[Rename]) -> HashMap<&'m str, String> {
    if renames.is_empty() {
        return HashMap::new();
    }
    let weights = model.found.weights.iter().map(|weight| &*weight.name);
    let names = model.tensors.iter().map(|tensor| tensor.name).chain(weights);
    let renames = Renames::new(renames);
    names.filter_map(|name| Some((name, renames.new_name(name)?))).collect()
}

/// Returns the name of a tensor and the names of the modules that it is in.
fn with_modules(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(at, _)| &name[..at]).chain([name])
}

/// Returns the modules of matrices of values that come from another checkpoint, by their new names.
fn added_matrices(model: &Model, renames: &[Rename]) -> Vec<String> {
    let added: HashSet<&str> = model.source.added.iter().map(|name| &**name).collect();
    let plain = model.found.plain.iter().map(|at| &model.tensors[*at]).filter(|tensor| tensor.shape.len() == 2);
    let names = plain.map(|tensor| tensor.name).filter(|name| added.contains(name));
    let renames = Renames::new(renames);
    let new_names = names.map(|name| renames.new_name(name).unwrap_or_else(|| name.to_owned()));
    new_names.filter_map(|name| module_of(&name).map(str::to_owned)).collect()
}

/// Returns the modules and tensors that only dropped tensors have in their names.
fn gone(model: &Model) -> HashSet<String> {
    let mut gone: HashSet<&str> = model.source.dropped.names().flat_map(with_modules).collect();
    if !gone.is_empty() {
        model.tensors.iter().flat_map(|tensor| with_modules(tensor.name)).for_each(|name| _ = gone.remove(name));
    }
    gone.into_iter().map(str::to_owned).collect()
}
