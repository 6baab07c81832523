//! Adapters such as `LoRA`, merged into the weights of their base: `W + strength * scale * delta` in float64, rounded once.
//!
//! Each concept is made from the one before, and is a file:
//!
//! | concept | file | what it is |
//! |---|---|---|
//! | adapter, module | `adapter` | the files of a dialect; the tensors for one layer, by their part |
//! | factors, delta | `deltas`, `matrix` | matrices of a module; what they make together, element by element, before its scale |
//! | scale | `scale` | a number for each module, of a config or of metadata |
//! | place | `names` | the matrix of the base that a module names: a tensor, one of a stack, or some rows |
//! | change | `modules` | a delta times its scale at its place, or values that replace those of the base |
//! | tied weights | `tied` | tensors of the base that are one weight in memory, and change together |
//! | merge | `merge` | all changes of a weight, in order, for some of its values: no weight is held in memory |
//! | survival | `survival` | how much of the deltas is in what is written |
//! | summary | `summary`, `describe` | what reports say |
//!
//! Arithmetic: each sum adds its terms in the order of the rank; products of factors of 24 bits and fewer are exact. The
//! result is the same on every machine.

mod adapter;
mod deltas;
#[cfg(feature = "cli")]
mod describe;
mod matrix;
mod merge;
mod modules;
mod names;
mod scale;
mod summary;
mod survival;
mod tied;

pub(crate) use adapter::files;
#[cfg(feature = "cli")]
pub(crate) use describe::AdapterDescription;
pub(crate) use merge::Merge;
pub(crate) use summary::AdapterSummary;
#[cfg(feature = "cli")]
pub(crate) use summary::{MappedModule, changed};
pub(crate) use survival::{DeltaFigures, SurvivalTally, Survivors};

use crate::error::{Error, Kind, Opt, Result};
use crate::options::AdapterOption;
use crate::progress::LoraNote;
use crate::read::Model;
use crate::select::experts::ModelFacts;
use adapter::Adapter;
pub(crate) use matrix::{narrow, widen, widen_to};
use modules::{AdapterChanges, unmatched};
use names::BaseNames;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tied::TiedWeights;

/// The adapters of a conversion, and the changes that they make.
#[derive(Default)]
pub(crate) struct Merges {
    /// The changes of each weight, by its name in the base.
    by_name: HashMap<Box<str>, Arc<Merge>>,
    pub adapters: Vec<AdapterSummary>,
    pub notes: Vec<LoraNote>,
}

impl Merges {
    /// Opens adapters, and finds the weights of a model that they change.
    ///
    /// # Errors
    /// When an adapter is damaged or of a method that is not merged, its scale is not known, it does not fit the model,
    /// or a tensor of it matches nothing and that is not allowed.
    pub(crate) fn open(options: &[AdapterOption], allows_unmatched: bool, model: &Model) -> Result<Self> {
        if options.is_empty() {
            return Ok(Self::default());
        }
        let base = BaseNames::new(model);
        let facts = ModelFacts::read(model.config()?);
        let tied = TiedWeights::new(&base, &facts);
        let (mut of, mut notes, mut summaries) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (number, AdapterOption { path, strength }) in options.iter().enumerate() {
            if !strength.is_finite() {
                return Err(Error::usage(format!("the strength {strength} is not a number")).in_file(path));
            }
            if options[..number].iter().any(|other| other.path == *path) {
                notes.push(LoraNote::Twice(path.clone()));
            }
            let adapter = Adapter::open(path, true).map_err(|error| error.in_file(path))?;
            let (adapter, strength, base, facts, tied) = (&adapter, *strength, &base, &facts, &tied);
            let (of, summary) = (&mut of, AdapterSummary::new(adapter, strength));
            let (rule, notes) = (None, &mut notes);
            let changes = AdapterChanges { adapter, strength, base, facts, tied, rule, of, notes, summary };
            let summary = changes.add().map_err(|error| error.in_file(path))?;
            if !summary.unmatched.is_empty() {
                let all = adapter.whole.len() + adapter.modules.iter().map(|module| module.parts.len()).sum::<usize>();
                if !allows_unmatched || summary.unmatched.len() == all {
                    return Err(unmatched(all, &summary.unmatched, adapter, base));
                }
                notes.push(LoraNote::Unmatched(path.clone(), summary.unmatched.clone()));
            }
            summaries.push(summary);
        }
        let is_tied = |at: &&usize| tied.is_head_too(**at, &base);
        let note = |at: &usize| LoraNote::Tied(base.tensors[*at].name().to_owned(), None);
        notes.extend(of.keys().filter(is_tied).map(note));
        let by_name =
            of.into_iter().map(|(at, changes)| (base.tensors[at].name().into(), Arc::new(Merge::new(changes))));
        Ok(Self { by_name: by_name.collect(), adapters: summaries, notes })
    }

    /// Returns the changes of a weight, given by its name in the base.
    pub(crate) fn of(&self, name: &str) -> Option<&Arc<Merge>> {
        self.by_name.get(name)
    }

    /// Refuses a plan that leaves out changes of a weight.
    pub(crate) fn check_used(&self) -> Result<()> {
        let unused = self.by_name.iter().filter(|(_, merge)| !merge.is_used()).map(|(name, _)| &**name);
        unused.min().map_or(Ok(()), |name| Err(unmerged().in_tensor(name)))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// Returns the error for a weight whose changes a conversion cannot make.
pub(crate) fn unmerged() -> Error {
    let error = Error::new("adapters change it, and this conversion does not merge them into such a weight");
    let say = "merge the adapters first with {}, and convert the result";
    error.of(Kind::UnusedAdapter).run("cast", None, &[(Opt::LORA, "ADAPTER")], say)
}
