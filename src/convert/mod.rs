//! Conversion of files and folders of shards: the calls of the library, and what the program shares with them.

#[cfg(feature = "cli")]
mod budget;
mod decided;
#[cfg(feature = "cli")]
mod measured;

#[cfg(feature = "cli")]
pub(crate) use budget::{Budget, Unreachable};
pub(crate) use decided::{FileConversion, check_target, open_to_quantize, plan_quantization};
#[cfg(feature = "cli")]
pub(crate) use measured::measure;

use crate::container::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::job::{self, IfExists, Job, OpenOptions, Written};
use crate::operator::Operator;
use crate::options::{CastOptions, DequantizeOptions, QuantizeOptions, TensorOptions};
use crate::progress::{Cancel, Never, Notice, Observer, PartOf, Progress, ShardProgress, Silent};
use crate::read::LogicalCheckpoint;
use crate::report::Report;
use crate::threads::cores;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

/// Settings of a run: how it works, and what happens to an output that exists. They change no byte of the output.
///
/// The functions of the crate, such as [`cast`], work with the default settings; the methods work with other ones.
#[non_exhaustive]
pub struct Settings<'a> {
    /// Action if the output exists.
    pub existing: IfExists,
    /// Flush the output to the disk before it takes its name.
    pub sync: bool,
    /// Threads to use; `None` for all cores.
    pub threads: Option<NonZeroUsize>,
    /// Receives progress in input bytes.
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

impl Settings<'_> {
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
        let operator = Operator::Cast(options.attributes);
        self.convert(operator, &options.tensors, input.as_ref(), output.as_ref(), |source, job, _| {
            FileConversion::cast(job, [source], options)
        })
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
        check_target(options)?;
        self.convert(Operator::Dequantize, &options.tensors, input.as_ref(), output.as_ref(), |source, job, _| {
            FileConversion::dequantize(job, &LogicalCheckpoint::open(source)?, options)
        })
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
        if options.layout_in_effect().is_none() {
            return Err(Error::usage("there is no scheme and no layout to quantize to"));
        }
        self.convert(Operator::Quantize, &options.tensors, input.as_ref(), output.as_ref(), |source, job, caller| {
            let model = open_to_quantize(source, options)?;
            let plan = plan_quantization(&model, options, job, caller)?;
            Ok(FileConversion::quantize(job, &model, options, plan))
        })
    }

    fn convert(
        &self,
        operator: Operator,
        tensors: &TensorOptions,
        input: &Path,
        output: &Path,
        decide: impl for<'i> FnOnce(&'i Checkpoint, &Job<'i>, &Caller) -> Result<FileConversion<'i>>,
    ) -> Result<Report> {
        let begin = Instant::now();
        let job = Job {
            output: Some(output),
            existing: self.existing,
            sync: self.sync,
            cancel: self.cancel,
            ..Job::new(operator, self.threads.map_or_else(cores, Into::into))
        };
        let caller = Caller(self.progress);
        let inputs = [input.to_owned()];
        let divides_stacks = matches!(operator, Operator::Dequantize | Operator::Quantize);
        let options = OpenOptions {
            tensors,
            divides_stacks,
            has_modules: matches!(job.operator, Operator::Cast(_)),
            publish: job.publish,
            threads: job.threads,
        };
        let sources = job::open(&inputs, &options, &caller, |error, _| error)?;
        let mut conversion = decide(&sources[0], &job, &caller)?;
        let prepared = job::prepare(&conversion.job, &mut conversion.inputs, &caller)?;
        let mut report = None;
        prepared.run(&conversion.job, &caller, |source, output, written| {
            let result = match written? {
                Some(Written { files, before, .. }) => conversion.report(source, output, files, before, begin),
                None => conversion.unwritten(source, output),
            };
            report = Some(result.unless_refused(&conversion.job.fail_on)?);
            Ok(())
        })?;
        Ok(report.expect("there is one input"))
    }
}

/// Reports the progress of the conversion to the caller.
struct Caller<'a>(&'a dyn Progress);

impl Observer for Caller<'_> {
    fn notice(&self, _notice: Notice) {}

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // Steps with a name come before or after the conversion.
        if !what.is_empty() {
            return Box::new(Silent);
        }
        self.0.begin(bytes);
        Box::new(PartOf(self.0))
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        self.0.begin(bytes);
        Box::new(PartOf(self.0))
    }
}
