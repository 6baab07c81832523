//! Promotion: decides on a common type for tensors of several files, or of one, and converts them to it.

use super::Settings;
use crate::container::checkpoint::{Checkpoint, no_tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::job::{self, Job, Publish};
use crate::operator::promote::{self, Decision, PromoteInput, PromoteRule};
use crate::options::{PromoteOptions, Task};
use crate::plan;
use crate::progress::Observer;
use crate::read::Model;
use crate::report::Report;
use crate::text::{path_text, shorten};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The common type of some tensors, and the files that were written with it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromoteReport {
    /// Type of all tensors that take part.
    pub dtype: Dtype,
    /// Rule that decided.
    pub rule: PromoteRule,
    /// The tensors that take part.
    pub inputs: Vec<PromotedTensor>,
    /// The outputs, one for each input file or folder; empty if only the type was decided. An output that existed and was kept
    /// is not published.
    pub outputs: Vec<Report>,
    /// Duration.
    pub time: Duration,
}

/// A tensor that takes part in a promotion.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PromotedTensor {
    /// The file or folder, as it was given.
    pub input: PathBuf,
    /// Name of the tensor, or of its file.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Lengths of its dimensions, outermost first.
    pub shape: Vec<u64>,
    /// True if the common type does not hold all values of its type.
    pub can_lose: bool,
}

/// Converts tensors to their common type, as `OpenVINO`'s ConvertPromoteTypes-14 and `tcast promote` do. The output is a
/// folder with a file for each input, under its name; for one input, it is a file or folder.
///
/// The only tensor of an input takes part. Of several, those that [`PromoteOptions::tensor`] names take part, and the
/// others are copied.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let output = folder.path().join("common");
/// # let fixture = |name| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
/// # let inputs = [fixture("weights_f32.npy"), fixture("bf16.npy")];
/// let promoted = tcast::promote(&inputs, &output, &tcast::options::PromoteOptions::default())?;
/// assert_eq!(promoted.dtype, tcast::dtype::Dtype::Float32);
/// # assert_eq!(promoted.outputs.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As for [`cast`](super::cast()), and if the tensors have no common type, or none that is safe, or it is not clear which
/// tensors take part. Either all outputs are written, or none.
pub fn promote(
    inputs: &[impl AsRef<Path>],
    output: impl AsRef<Path>,
    options: &PromoteOptions,
) -> Result<PromoteReport> {
    Settings::default().promote(inputs, output, options)
}

/// Decides on the common type of tensors as [`promote`](promote()) does, and writes nothing.
///
/// # Errors
/// As for [`promote`](promote()), except for outputs.
pub fn common_type(inputs: &[impl AsRef<Path>], options: &PromoteOptions) -> Result<PromoteReport> {
    let settings = Settings::default();
    settings.promoted(&settings, &paths(inputs), None, options, |_| Ok(()))
}

fn paths(inputs: &[impl AsRef<Path>]) -> Vec<PathBuf> {
    inputs.iter().map(|input| input.as_ref().to_owned()).collect()
}

impl Settings<'_> {
    /// Does the same as [`promote`](promote()) with these settings.
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn promote(
        &self,
        inputs: &[impl AsRef<Path>],
        output: impl AsRef<Path>,
        options: &PromoteOptions,
    ) -> Result<PromoteReport> {
        self.promoted(self, &paths(inputs), Some(output.as_ref()), options, |_| Ok(()))
    }

    /// Decides on the type and, if there is an output, converts. Calls `check` with the inputs before it decides.
    pub(crate) fn promoted(
        &self,
        observer: &dyn Observer,
        inputs: &[PathBuf],
        output: Option<&Path>,
        options: &PromoteOptions,
        check: impl FnOnce(&[Checkpoint]) -> Result<()>,
    ) -> Result<PromoteReport> {
        let begin = Instant::now();
        promote::check_u64_target(options.attributes.u64_target)?;
        let opening = (Publish::Together, self.threads());
        let sources = job::open(inputs, Task::Promote(options), opening, observer, |error, _| error)?;
        plan::check_from(sources.iter().flat_map(Checkpoint::tensors).map(|(_, tensor)| tensor), options.from)?;
        let folder = sources.iter().find(|source| source.folder.is_some());
        if let (Some(folder), 2.., Some(_)) = (folder, sources.len(), output) {
            let error = Error::usage("a folder of shards is promoted alone").in_file(&folder.path);
            return Err(
                error.with(Opt::TENSOR, "leave the other inputs out, and name the tensors of the folder with {}")
            );
        }
        check(&sources)?;
        let (inputs, Decision { dtype, rule }) = decide(operands(inputs, &sources, options)?, sources.len(), options)?;
        let outputs = match output {
            Some(output) => {
                let options = PromoteOptions { to: Some(dtype), ..options.clone() };
                let job = Job { publish: Publish::Together, ..self.job(Task::Promote(&options), Some(output)) };
                let models: Vec<Model> = sources.iter().map(Model::of_values).collect();
                super::run(&job, &models, observer, begin)?
            }
            None => Vec::new(),
        };
        Ok(PromoteReport { dtype, rule, inputs, outputs, time: begin.elapsed() })
    }
}

/// Finds the tensors that take part: the only one of an input, or the named ones.
fn operands(paths: &[PathBuf], sources: &[Checkpoint], options: &PromoteOptions) -> Result<Vec<PromotedTensor>> {
    let mut operands = Vec::new();
    let mut found = HashSet::new();
    for (source, path) in sources.iter().zip(paths) {
        let only = options.only(source);
        let before = operands.len();
        for (shard, tensor) in source.tensors() {
            let name = shard.name_of(tensor);
            if !only.is_empty() && !only.iter().any(|only| only == name) {
                continue;
            }
            let in_tensor = |error: Error| error.in_tensor(&tensor.name).in_file(shard.path());
            let dtype = plan::source_form(tensor, options.from).map_err(in_tensor)?.dtype();
            found.insert(name);
            let (input, name, shape) = (path.clone(), name.to_owned(), tensor.shape.to_vec());
            operands.push(PromotedTensor { input, name, dtype, shape, can_lose: false });
        }
        if source.tensors().count() != 1 && only.is_empty() {
            return Err(source.say_which().in_file(path));
        }
        if let (Some(name), true) = (only.first(), operands.len() == before) {
            return Err(no_tensor(source.names(), name).in_file(path));
        }
    }
    match options.tensor.iter().find(|name| !found.contains(name.as_str())) {
        Some(missing) => {
            let error = no_tensor(sources.iter().flat_map(Checkpoint::names), missing);
            Err(if let [only] = paths { error.in_file(only) } else { error })
        }
        None => Ok(operands),
    }
}

/// Finds the common type, and refuses an option that it has no use for.
fn decide(
    mut operands: Vec<PromotedTensor>,
    sources: usize,
    options: &PromoteOptions,
) -> Result<(Vec<PromotedTensor>, Decision)> {
    let name = |operand: &PromotedTensor| match sources {
        1 => shorten(&operand.name),
        _ => shorten(&path_text(&operand.input)),
    };
    let names: Vec<String> = operands.iter().map(name).collect();
    let inputs = operands.iter().zip(&names).map(|(operand, name)| {
        let (dtype, is_scalar) = (operand.dtype, operand.shape.is_empty());
        PromoteInput { name, dtype, is_scalar }
    });
    let decision = promote::promote(&inputs.collect::<Vec<_>>(), &options.attributes)?;
    if options.saturate.is_some() && !decision.dtype.is_float8() && decision.dtype != Dtype::Float8E8M0 {
        let what = format!("saturate is for float8 types, and the common one is {}", decision.dtype);
        return Err(Error::usage(what).without(Opt::SATURATE));
    }
    for operand in &mut operands {
        operand.can_lose = !decision.dtype.holds(operand.dtype);
    }
    Ok((operands, decision))
}
