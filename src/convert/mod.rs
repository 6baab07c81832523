//! Conversion of files and folders of shards: the calls of the library, and what the program shares with them.

#[cfg(feature = "cli")]
mod budget;
#[cfg(feature = "cli")]
mod measured;
mod promote;

#[cfg(feature = "cli")]
pub(crate) use budget::{Budget, Unreachable};
#[cfg(feature = "cli")]
pub(crate) use measured::measure;
pub use promote::{PromoteReport, PromotedTensor, common_type, promote};

use crate::container::checkpoint::Checkpoint;
use crate::error::{Error, Opt, Result};
use crate::io::identity::Files;
use crate::job::{self, IfExists, Job, Publish, Written};
use crate::measure::compare::{self, DiffOptions, DiffReport};
use crate::options::{BitcastOptions, CastOptions, DequantizeOptions, QuantizeOptions, Task};
use crate::plan::{PlanFindings, matchable_names};
use crate::progress::{Cancel, Never, Observer, PartOf, Progress, Reading, Silent};
use crate::quant::Arithmetic;
use crate::read::Model;
use crate::report::Report;
use crate::select::Selection;
use crate::text::{first_few, is, shorten};
use crate::threads::cores;
use std::fmt::Display;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

/// Settings of a run: how it works, and what happens to an output that exists. They change no byte of the output.
///
/// The functions of the crate, such as [`cast`], work with the default settings; the methods work with other ones.
#[non_exhaustive]
pub struct Settings<'a> {
    /// Action if the output exists; [`IfExists::Refuse`] by default.
    pub existing: IfExists,
    /// Flush the output to the disk before it takes its name; true by default.
    pub sync: bool,
    /// Threads to use; `None` for all cores.
    pub threads: Option<NonZeroUsize>,
    /// Receives progress in input bytes; nothing by default.
    pub progress: &'a dyn Progress,
    /// Polled to stop the conversion early.
    pub cancel: &'a dyn Cancel,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self { existing: IfExists::Refuse, sync: true, threads: None, progress: &Silent, cancel: &Never }
    }
}

/// Converts the values of a tensor file, or of a folder of shards, to another type, as `tcast cast` does.
///
/// The extension of an output file selects its format. The output is complete or absent. As in the program, an output named
/// `-` is standard output; `./-` is a file.
///
/// ```
/// use tcast::{dtype::Dtype, options::CastOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let output = folder.path().join("model.bf16.safetensors");
/// # let input = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model.safetensors");
/// let report = tcast::cast(input, &output, &CastOptions::to(Dtype::Bfloat16))?;
/// for tensor in report.tensors() {
///     println!("{}: {} -> {}", tensor.name, tensor.from, tensor.to);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the input is not a tensor file, the output cannot hold a type or exists, reading or writing fails, or a value breaks
/// a rule. If a value meets a condition of `fail_on`, no output is written, and [`Error::report`] returns the report.
pub fn cast(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &CastOptions) -> Result<Report> {
    Settings::default().cast(input, output, options)
}

/// Reinterprets the bits of tensors as another type of the same width, as `tcast bitcast` and ONNX `BitCast` do.
///
/// ```
/// use tcast::{dtype::Dtype, options::BitcastOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let output = folder.path().join("bits.npy");
/// # let input = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/weights_f32.npy");
/// tcast::bitcast(input, &output, &BitcastOptions::to(Dtype::Int32))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As for [`cast`](cast()), and if the width of a tensor's type is another one.
pub fn bitcast(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &BitcastOptions) -> Result<Report> {
    Settings::default().bitcast(input, output, options)
}

/// Decodes the quantized weights of a model to bfloat16, float16 or float32, and copies all other tensors, as `tcast
/// dequantize` does. `config.json` no longer describes the weights as quantized.
///
/// # Errors
/// As for [`cast`](cast()), and if there are no weights to decode.
pub fn dequantize(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &DequantizeOptions) -> Result<Report> {
    Settings::default().dequantize(input, output, options)
}

/// Quantizes the weights of a model, copies all other tensors, and writes the `config.json` that engines need, as `tcast
/// quantize` does.
///
/// # Errors
/// As for [`cast`](cast()), and if no weight can be quantized.
pub fn quantize(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &QuantizeOptions) -> Result<Report> {
    Settings::default().quantize(input, output, options)
}

/// Compares the tensors of two files or folders of shards, in any formats, types and shards. Tensors are matched by name;
/// two files of one tensor each are compared even if the names differ. This is `tcast diff`.
///
/// ```
/// use tcast::{DiffOptions, cast, diff, dtype::Dtype, options::CastOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let half = folder.path().join("model.f16.safetensors");
/// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model.safetensors");
/// cast(model, &half, &CastOptions::to(Dtype::Float16))?;
/// let mut options = DiffOptions::default();
/// options.rtol = Some(1e-2);
/// for tensor in diff(model, &half, &options)?.tensors {
///     println!("{}: {:?}", tensor.name, tensor.comparison.status);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When an input cannot be read or changes meanwhile, or the selection leaves no tensor. A tensor that cannot be read is no
/// error: its status is [`DiffStatus::Unreadable`](compare::DiffStatus::Unreadable).
pub fn diff(a: impl AsRef<Path>, b: impl AsRef<Path>, options: &DiffOptions) -> Result<DiffReport> {
    Settings::default().diff(a, b, options)
}

impl<'a> Settings<'a> {
    /// Does the same as [`cast`](cast()) with these settings.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    /// use tcast::{Settings, dtype::Dtype, options::CastOptions, progress::Progress};
    ///
    /// #[derive(Default)]
    /// struct Bytes(AtomicU64);
    ///
    /// impl Progress for Bytes {
    ///     fn advance(&self, bytes: u64) {
    ///         self.0.fetch_add(bytes, Ordering::Relaxed);
    ///     }
    /// }
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let output = folder.path().join("model.bf16.safetensors");
    /// # let input = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model.safetensors");
    /// let (done, stop) = (Bytes::default(), AtomicBool::new(false));
    /// let mut settings = Settings::default();
    /// (settings.progress, settings.cancel) = (&done, &stop);
    /// settings.cast(input, &output, &CastOptions::to(Dtype::Bfloat16))?;
    /// assert!(done.0.into_inner() > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn cast(&self, input: impl AsRef<Path>, output: impl AsRef<Path>, options: &CastOptions) -> Result<Report> {
        options.attributes.check()?;
        self.convert_values(input.as_ref(), output.as_ref(), Task::Cast(options))
    }

    /// Does the same as [`bitcast`](bitcast()) with these settings.
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn bitcast(
        &self,
        input: impl AsRef<Path>,
        output: impl AsRef<Path>,
        options: &BitcastOptions,
    ) -> Result<Report> {
        self.convert_values(input.as_ref(), output.as_ref(), Task::BitCast(options))
    }

    fn convert_values(&self, input: &Path, output: &Path, task: Task) -> Result<Report> {
        let begin = Instant::now();
        let source = &self.open(input, task)?;
        let names = || source.all_names().collect::<Vec<_>>();
        check_matched(&task.selection(source), task.tensors().allow_unmatched, names)
            .map_err(|error| error.in_file(input))?;
        self.run(&self.job(task, Some(output)), &Model::of_values(source), begin)
    }

    /// Does the same as [`dequantize`](dequantize()) with these settings.
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn dequantize(
        &self,
        input: impl AsRef<Path>,
        output: impl AsRef<Path>,
        options: &DequantizeOptions,
    ) -> Result<Report> {
        let begin = Instant::now();
        check_target(options)?;
        let source = &self.open(input.as_ref(), Task::Dequantize(options))?;
        let model = Model::open(source)?;
        check_matched(&options.tensors.selection(), options.tensors.allow_unmatched, || model.decodable_names())
            .map_err(|error| error.in_file(&source.path))?;
        let (options, label) = in_effect(options, &model);
        let job = Job { label: Some(label), ..self.job(Task::Dequantize(&options), Some(output.as_ref())) };
        self.run(&job, &model, begin)
    }

    /// Does the same as [`quantize`](quantize()) with these settings.
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn quantize(
        &self,
        input: impl AsRef<Path>,
        output: impl AsRef<Path>,
        options: &QuantizeOptions,
    ) -> Result<Report> {
        let begin = Instant::now();
        if options.layout_in_effect().is_none() && options.contents.lora.is_empty() {
            return Err(Error::usage("there is no scheme and no layout to quantize to"));
        }
        let source = &self.open(input.as_ref(), Task::Quantize(options))?;
        let model = open_to_quantize(source, options)?;
        let options = &in_own_layout(options, &model)?;
        check_rules(options, &model).map_err(|error| error.in_file(&source.path))?;
        let job = self.job(Task::Quantize(options), Some(output.as_ref()));
        self.run(&job, &model, begin)
    }

    /// Does the same as [`diff`](diff()) with these settings. The progress has the bytes of both sides.
    ///
    /// # Errors
    /// As for the function, and if the work is cancelled.
    pub fn diff(&self, a: impl AsRef<Path>, b: impl AsRef<Path>, options: &DiffOptions) -> Result<DiffReport> {
        compare::diff([a.as_ref(), b.as_ref()], options, self.reading(), |_, _| Ok(()))
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(cores, Into::into)
    }

    pub(crate) fn reading(&self) -> Reading<'a> {
        Reading { threads: self.threads(), progress: self.progress, cancel: self.cancel }
    }

    pub(crate) fn job<'j>(&self, task: Task<'j>, output: Option<&'j Path>) -> Job<'j>
    where
        'a: 'j,
    {
        let (existing, sync, cancel) = (self.existing, self.sync, self.cancel);
        Job { output, existing, sync, cancel, ..Job::new(task, self.threads()) }
    }

    fn open(&self, input: &Path, task: Task) -> Result<Checkpoint> {
        let sources = job::open(&[input.to_owned()], task, (Publish::Each, self.threads()), self, |error, _| error)?;
        Ok(sources.into_iter().next().expect("there is one input"))
    }

    fn run(&self, job: &Job, model: &Model, begin: Instant) -> Result<Report> {
        let reports = run(job, std::slice::from_ref(model), self, begin)?;
        Ok(reports.into_iter().next().expect("there is one input"))
    }
}

/// Plans all outputs, writes them, and returns a report on each. Promotions, which alone have several, have no findings.
fn run(job: &Job, models: &[Model], observer: &dyn Observer, begin: Instant) -> Result<Vec<Report>> {
    let (mut files, mut reports) = (Files::default(), Vec::new());
    let mut outputs = job::prepare(job, models, &mut files, observer)?;
    let findings = outputs.first_mut().map(|output| std::mem::take(&mut output.findings)).unwrap_or_default();
    job::write(job, outputs, observer, |source, output, written| {
        let report = reported(job, &findings, (source, output), written?, begin);
        reports.push(report.unless_refused(&job.fail_on)?);
        Ok(())
    })?;
    Ok(reports)
}

/// Refuses patterns that match none of some names, unless that is allowed.
fn check_matched<N: AsRef<str> + Display>(
    selection: &Selection,
    is_allowed: bool,
    names: impl FnOnce() -> Vec<N>,
) -> Result<()> {
    /// Maximum number of names in the advice.
    const FEW: usize = 3;
    if is_allowed || !selection.has_patterns() {
        return Ok(()); // there may be a million names
    }
    let names = names();
    let mut patterns = selection.patterns().filter(|_| !names.is_empty()); // none could match
    match patterns.find(|(_, pattern, _)| !pattern.matches_one(&names)) {
        Some((option, pattern, _)) => {
            let error = Error::usage(format!("{option} '{}' matches no tensor", shorten(pattern.text())));
            let error = error.remedy(format!("there {} {}", is(names.len() as u64), first_few(&names, FEW)));
            Err(error.with(Opt::ALLOW_UNMATCHED, "{} accepts it"))
        }
        None => Ok(()),
    }
}

/// Refuses patterns and rules that match no tensor of a model to quantize.
fn check_rules(options: &QuantizeOptions, model: &Model) -> Result<()> {
    let (tensors, selection) = (&options.tensors, options.tensors.selection());
    let layout = options.layout_in_effect().filter(|_| !options.is_gguf()); // the plan knows the names in a GGUF
    let (Some(layout), false) = (layout, tensors.allow_unmatched) else { return Ok(()) };
    if !selection.has_patterns() && options.rule.is_empty() {
        return Ok(());
    }
    let names = matchable_names(model, layout)?;
    check_matched(&selection, false, || names.iter().chain(&model.source.left_out).collect::<Vec<_>>())?;
    match options.rule.iter().find(|rule| !rule.pattern.matches_one(&names)) {
        Some(rule) => {
            let error = Error::usage(format!("{} '{rule}' matches no tensor", Opt::RULE));
            Err(error.with(Opt::ALLOW_UNMATCHED, "{} accepts it"))
        }
        None => Ok(()),
    }
}

/// Reports on an input that was converted, or whose output exists and is kept.
pub(crate) fn reported(
    job: &Job,
    findings: &PlanFindings,
    (source, output): (&Checkpoint, &Path),
    written: Option<Written>,
    begin: Instant,
) -> Report {
    let dropped = findings.dropped.iter().map(String::as_str).chain(source.dropped.names());
    let kept = Report {
        options: job.task.recorded(source),
        config: findings.config.clone(),
        adapters: findings.adapters.clone(),
        left_out: dropped.map(str::to_owned).collect(),
        ..Report::empty(job.operator().name(), &source.path, output)
    };
    let Some(Written { files, before, .. }) = written else { return kept };
    let bytes_in = match job.partition {
        Some(_) => files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.bytes_in).sum(),
        None => source.bytes(),
    };
    let time = (!job.dry_run).then(|| begin.elapsed());
    let is_published = time.is_some() && !files.iter().any(|file| file.meets(&job.fail_on));
    Report { bytes_in, files, before, time, is_published, ..kept }
}

/// Refuses a type that weights are not decoded to.
pub(crate) fn check_target(options: &DequantizeOptions) -> Result<()> {
    match options.to.filter(|to| !to.is_weight()) {
        Some(to) => {
            let error = Error::usage(format!("weights are decoded to bfloat16, float16 or float32, not to {to}"));
            Err(error.with(Opt::TO, "decode to one of these, and cast the result"))
        }
        None => Ok(()),
    }
}

/// Returns the options with the type to which a model is decoded, and the word that names the output. The weights of an
/// ONNX model keep the types of their scales.
pub(crate) fn in_effect(options: &DequantizeOptions, model: &Model) -> (DequantizeOptions, &'static str) {
    let to = options.to.or_else(|| (!model.is_onnx_model()).then(|| model.default_target()));
    let first = model.found.weights.first().map(|weight| model.target_of(weight));
    let label = to.or(first).unwrap_or_else(|| model.default_target());
    (DequantizeOptions { to, ..options.clone() }, label.name())
}

/// Opens a model whose weights are quantized. With `force_codes`, a quantization that tcast does not decode is ignored.
/// Refuses an adapter: loaders read its tensors as values, without scales.
pub(crate) fn open_to_quantize<'a>(source: &'a Checkpoint, options: &QuantizeOptions) -> Result<Model<'a>> {
    let is_for_gguf = options.is_gguf() && !source.is_gguf(); // whose planner names another remedy
    if let Some(tensor) = source.update_of_other_model().filter(|_| !is_for_gguf) {
        let error = Error::new("is an adapter of another model, and loaders take its tensors for values");
        return Err(error.in_file(&source.path).in_tensor(tensor).run(
            "cast",
            None,
            &[(Opt::TO, "bfloat16")],
            "cast it: {}",
        ));
    }
    let probed = Model::probe(source);
    match probed.found.is_undecoded {
        true if options.force_codes => Ok(probed.into_values()),
        is_undecoded => probed.checked().map_err(|error| if is_undecoded { error.forcing_codes() } else { error }),
    }
}

/// Returns the options with the layout of a quantized model, if they name neither a scheme nor a layout.
///
/// # Errors
/// When the model is not quantized, or its weights are in several layouts, or in one that is not written.
pub(crate) fn in_own_layout(options: &QuantizeOptions, model: &Model) -> Result<QuantizeOptions> {
    if options.layout_in_effect().is_some() {
        return Ok(options.clone());
    }
    let mut layouts = Vec::new();
    for weight in &model.found.weights {
        let group = model.decoder(weight, model.own_type(weight), Arithmetic::Exact)?.grid().group;
        let layout = weight.layout.for_users(group).ok_or_else(|| {
            let error = Error::usage(format!("is in the layout {}, which tcast only reads", weight.layout.name));
            error.in_file(&model.source.path).in_tensor(&weight.name)
        })?;
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    match layouts[..] {
        [layout] => Ok(QuantizeOptions { layout: Some(layout), ..options.clone() }),
        [] => Err(Error::usage("is not quantized: it has no scheme to keep")),
        _ => Err(Error::usage(format!("has weights in several layouts: {}", layouts.join(", ")))),
    }
    .map_err(|error: Error| error.in_file(&model.source.path))
}

/// Only the progress of the conversion reaches the caller.
impl Observer for Settings<'_> {
    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // Steps with a name come before or after the conversion.
        if !what.is_empty() {
            return Box::new(Silent);
        }
        self.progress.begin(bytes);
        Box::new(PartOf(self.progress))
    }
}
