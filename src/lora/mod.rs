//! Adapters such as `LoRA`, merged into the weights of their base: `W + strength * scale * delta` in float64, rounded once.
//!
//! `adapter` reads the files, `names` finds the weights that they change, `scale` reads scales, `deltas` and `modules` make
//! the changes of each weight, `matrix` computes deltas, and `merge` applies the changes to some values. Rows can be merged
//! in any order, so that no weight is held in memory.
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
mod survival;

pub(crate) use adapter::files;
#[cfg(feature = "cli")]
pub(crate) use describe::AdapterDescription;
pub(crate) use merge::Merge;
pub(crate) use survival::{DeltaFigures, SurvivalTally, Survivors};

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::{Isa, Kernel, Loop, Rules, Storage};
use crate::options::AdapterOption;
use crate::progress::LoraNote;
use crate::read::Model;
use adapter::Adapter;
use modules::{Changes, unmatched};
use names::BaseNames;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

/// The adapters of a conversion, and the changes that they make.
#[derive(Default)]
pub(crate) struct Merges {
    /// The changes of each weight, by its name in the base.
    by_name: HashMap<Box<str>, Arc<Merge>>,
    pub adapters: Vec<AdapterSummary>,
    pub notes: Vec<LoraNote>,
}

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
        let mut changes = Changes { base: &base, model, of: BTreeMap::new(), notes: Vec::new() };
        let mut summaries: Vec<AdapterSummary> = Vec::new();
        for (number, AdapterOption { path, strength }) in options.iter().enumerate() {
            if !strength.is_finite() {
                return Err(Error::usage(format!("the strength {strength} is not a number")).in_file(path));
            }
            if options[..number].iter().any(|other| other.path == *path) {
                changes.notes.push(LoraNote::Twice(path.clone()));
            }
            let adapter = Adapter::open(path, true)?;
            let mut summary = changes.add(&adapter, *strength).map_err(|error| error.in_file(path))?;
            if !summary.unmatched.is_empty() {
                let all = adapter.whole.len() + adapter.modules.iter().map(|module| module.parts.len()).sum::<usize>();
                if !allows_unmatched || summary.unmatched.len() == all {
                    return Err(unmatched(all, &summary.unmatched, &adapter, &base));
                }
                changes.notes.push(LoraNote::Unmatched(path.clone(), std::mem::take(&mut summary.unmatched)));
            }
            summaries.push(summary.finish(&adapter, *strength, &base));
        }
        let Changes { of, mut notes, .. } = changes;
        let is_tied = model.config()?.is_some_and(|text| {
            serde_json::from_str::<Value>(text).is_ok_and(|config| config["tie_word_embeddings"] == true)
        });
        let is_table = |name: &&str| name.ends_with("embed_tokens.weight") || name.ends_with("wte.weight");
        let names = of.keys().map(|at| base.tensors[*at].name);
        notes.extend(names.filter(is_table).filter(|_| is_tied).map(|name| LoraNote::Tied(name.to_owned())));
        let by_name = of.into_iter().map(|(at, changes)| (base.tensors[at].name.into(), Arc::new(Merge::new(changes))));
        Ok(Self { by_name: by_name.collect(), adapters: summaries, notes })
    }

    /// Returns the changes of a weight, given by its name in the base.
    pub(crate) fn of(&self, name: &str) -> Option<&Arc<Merge>> {
        self.by_name.get(name)
    }

    /// Refuses a plan that leaves out changes of a weight.
    pub(crate) fn check_used(&self) -> Result<()> {
        let mut unused = self.by_name.iter().filter(|(_, merge)| !merge.is_used()).map(|(name, _)| &**name);
        unused.next().map_or(Ok(()), |name| {
            let error = Error::new("adapters change it, and this conversion does not merge them into such a weight");
            Err(error.in_tensor(name).remedy("merge the adapters first, and convert the result"))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// Widens floats to float64.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    let count = bytes.len() / (dtype.bits() as usize / 8);
    values.resize(count, 0.0);
    if matrix::is_plain(dtype) {
        return Isa::chosen().run(Widen { dtype, bytes, values });
    }
    let [from, to] = [dtype, Dtype::Float64].map(Storage::packed);
    let kernel = Kernel::cast(from, to, &Rules::LOSSLESS).expect("floats become float64");
    let mut wide = vec![0; 8 * count];
    kernel.run(bytes, &mut wide, count).expect("floats of whole bytes are never malformed");
    widen(Dtype::Float64, &wide, values);
}

struct Widen<'w> {
    dtype: Dtype,
    bytes: &'w [u8],
    values: &'w mut [f64],
}

impl Loop for Widen<'_> {
    type Result = ();

    #[allow(clippy::inline_always, reason = "only inlined code is compiled for the instruction set")]
    #[inline(always)]
    fn run(self) {
        matrix::read_plain(self.dtype, self.bytes, 0, 1, self.values);
    }
}

/// Writes values as float64 or float32.
pub(crate) fn narrow(values: &[f64], dtype: Dtype, bytes: &mut Vec<u8>) {
    bytes.resize(values.len() * dtype.bits() as usize / 8, 0);
    if dtype == Dtype::Float32 {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = (*value as f32).to_le_bytes());
    } else {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
    }
}
