//! Conversion of a file by one call.

use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::job::{
    self, Cancel, DecodeOptions, IfExists, Job, JobInput, Never, Notice, Observer, QuantizeRequest, Quantizing,
    Recoding, ShardProgress, TensorReport,
};
use crate::kernel::Counts;
use crate::operator::{Operator, cast::CastAttributes};
use crate::plan::ModelOptions;
use crate::progress::{Progress, Silent};
use crate::quant::{EncodeOptions, SCHEMES, Scheme};
use crate::read::LogicalCheckpoint;
use crate::select::Selection;
use crate::text::shorten;
use std::num::NonZeroUsize;
use std::path::Path;

/// Options of [`convert`].
#[non_exhaustive]
pub struct Options<'a> {
    /// Selection of the tensors to convert, with their new types; the other tensors are copied.
    pub selection: Selection,
    /// What happens to the selected tensors.
    pub action: Action,
    /// Replace an existing output.
    pub replace: bool,
    /// Flush the output to the disk before it takes its name.
    pub sync: bool,
    /// Threads to use; `None` for all cores.
    pub threads: Option<NonZeroUsize>,
    /// Receives progress in input bytes.
    pub progress: &'a dyn Progress,
    /// Polled to stop the conversion early.
    pub cancel: &'a dyn Cancel,
}

/// Treatment of the selected tensors by [`convert`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Casts values by the rules of ONNX Cast, and refuses to cast codes and scales of quantized weights: `tcast cast`.
    Cast(CastAttributes),
    /// Casts codes and scales of quantized weights, too, as if they were values: `tcast cast --force-codes`.
    CastCodes(CastAttributes),
    /// Decodes quantized weights to bfloat16, float16 or float32, and copies all other tensors: `tcast dequantize`.
    Dequantize,
    /// Quantizes weights, and copies all other tensors: `tcast quantize`.
    Quantize(Quantize),
}

/// Options of [`Action::Quantize`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quantize {
    /// Name of the scheme, such as `fp8` or `nvfp4`, or an alias of vLLM.
    pub scheme: String,
    /// Name of the layout, such as `compressed-tensors`; `None` for the default of the scheme.
    pub layout: Option<String>,
    /// Values that share a scale, for schemes whose groups can have other sizes.
    pub group_size: Option<u64>,
}

impl Options<'_> {
    /// Returns options that convert every tensor of floats to `dtype`, like `tcast cast INPUT --to DTYPE`.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        let selection = Selection { to: Some(dtype), ..Selection::default() };
        Self { selection, ..Self::of(Action::Cast(CastAttributes::default())) }
    }

    /// Returns options that decode quantized weights to `dtype`: bfloat16, float16 or float32. All other tensors are
    /// copied, and `config.json` no longer describes the weights as quantized. This is `tcast dequantize INPUT --to DTYPE`.
    #[must_use]
    pub fn dequantize(dtype: Dtype) -> Self {
        let selection = Selection { to: Some(dtype), ..Selection::default() };
        Self { selection, ..Self::of(Action::Dequantize) }
    }

    /// Returns options that quantize weights with a scheme in its default layout, and write the `config.json` that engines
    /// need. All other tensors are copied. This is `tcast quantize INPUT --scheme SCHEME`.
    #[must_use]
    pub fn quantize(scheme: &str) -> Self {
        Self::of(Action::Quantize(Quantize { scheme: scheme.to_owned(), layout: None, group_size: None }))
    }

    fn of(action: Action) -> Self {
        Self {
            selection: Selection::default(),
            action,
            replace: false,
            sync: true,
            threads: None,
            progress: &Silent,
            cancel: &Never,
        }
    }
}

/// Outcome of the conversion for one tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Converted {
    /// Name in the output.
    pub name: String,
    /// Type in the input.
    pub from: Dtype,
    /// Type in the output.
    pub to: Dtype,
    /// Counts of the losses of its values, and of source values that are not finite.
    pub counts: Counts,
}

/// Converts a tensor file, or a folder of shards, on all cores and without holding a tensor in memory, like the program.
/// The extension of an output file selects its format. The output is complete or absent.
///
/// ```
/// use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
/// use tcast::{Options, dtype::Dtype, progress::Progress};
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
/// let mut options = Options::to(Dtype::Bfloat16);
/// (options.progress, options.cancel) = (&done, &stop);
/// for tensor in tcast::convert(input, &output, &options)? {
///     println!("{}: {} -> {}", tensor.name, tensor.from, tensor.to);
/// }
/// assert!(done.0.into_inner() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// As in the program, an output named `-` is standard output; `./-` is a file.
///
/// # Errors
/// When the input is not a tensor file, the output cannot hold a type or exists, reading or writing fails, a value breaks a
/// rule, there are no weights to decode, or the work is cancelled.
pub fn convert(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &Options) -> Result<Vec<Converted>> {
    let operator = match &options.action {
        Action::Cast(attributes) | Action::CastCodes(attributes) => {
            attributes.check()?;
            Operator::Cast(*attributes)
        }
        Action::Dequantize => Operator::Dequantize,
        Action::Quantize(_) => Operator::Quantize,
    };
    let mut job = Job {
        output: Some(output.as_ref()),
        existing: if options.replace { IfExists::Replace } else { IfExists::Refuse },
        sync: options.sync,
        force_codes: matches!(options.action, Action::CastCodes(_)),
        cancel: options.cancel,
        ..Job::new(operator)
    };
    job.threads = options.threads.map_or(job.threads, Into::into);
    let caller = Caller(options.progress);
    let inputs = [input.as_ref().to_owned()];
    let sources = job::open(&inputs, job.publish, job.threads, &caller, |error, _| error)?;
    let mut recoding = match &options.action {
        Action::Cast(_) | Action::CastCodes(_) => Recoding::rename(&sources[0], &options.selection.renames)?,
        Action::Dequantize => Some(decoding(&sources[0], &options.selection)?),
        Action::Quantize(quantize) => Some(encoding(&sources[0], quantize, &options.selection, &job, &caller)?),
    };
    // The selection of weights to decode or quantize is part of the recoding; every other tensor is copied.
    let others = Selection { renames: options.selection.renames.clone(), ..Selection::default() };
    let selection = if matches!(operator, Operator::Cast(_)) { &options.selection } else { &others };
    let input = |source| JobInput { source, selection, from: None, recoding: recoding.take() };
    let inputs = sources.iter().map(input).collect();
    let mut converted = Vec::new();
    job::prepare(&job, inputs, &caller)?.run(&job, &caller, |_, _, written| {
        let files = written?.into_iter().flat_map(|written| written.files);
        converted.extend(files.flat_map(|file| file.tensors).map(Converted::from));
        Ok(())
    })?;
    Ok(converted)
}

fn decoding<'a>(source: &'a Checkpoint, selection: &Selection) -> Result<Recoding<'a>> {
    if let Some(to) = selection.to.filter(|to| !to.is_weight()) {
        return Err(Error::new(format!("weights are decoded to bfloat16, float16 or float32, not to {to}")));
    }
    let model = LogicalCheckpoint::open(source)?;
    Recoding::decode(&model, selection, DecodeOptions { target: selection.to, ..DecodeOptions::default() })
}

fn encoding<'a>(
    source: &'a Checkpoint,
    quantize: &Quantize,
    selection: &Selection,
    job: &Job,
    caller: &Caller,
) -> Result<Recoding<'a>> {
    let unknown = |what: &str, name: &str, known: Vec<&str>| {
        Error::usage(format!("unknown {what} '{}': it is one of {}", shorten(name), known.join(", ")))
    };
    let Quantize { scheme, layout, group_size } = quantize;
    let scheme = Scheme::find(scheme)
        .ok_or_else(|| unknown("scheme", scheme, SCHEMES.iter().map(|scheme| scheme.name).collect()))?;
    let layouts = || scheme.layouts.iter().map(|stored| stored.name);
    let layout = layout
        .as_ref()
        .map(|name| layouts().find(|known| known == name).ok_or_else(|| unknown("layout", name, layouts().collect())));
    let request = QuantizeRequest {
        scheme: Some(scheme),
        layout: layout.transpose()?,
        group_size: *group_size,
        options: EncodeOptions::default(),
        selection,
        rules: &[],
        renames: &selection.renames,
        with_partial_blocks: false,
        only_exact: false,
        recovers: false,
        partition: None,
        threads: job.threads,
    };
    let model = LogicalCheckpoint::open(source)?;
    let quantizing = if model.is_model() {
        Quantizing::of_model(&model, &request, ModelOptions::MIN_ELEMENTS)?
    } else {
        Quantizing::new(&model, &request, caller)?
    };
    Ok(quantizing.recoding)
}

impl From<TensorReport<'_>> for Converted {
    fn from(tensor: TensorReport) -> Self {
        let counts = tensor.counts.map(|counts| *counts).unwrap_or_default();
        Self { name: tensor.name.into_owned(), from: tensor.from, to: tensor.to, counts }
    }
}

/// Reports the progress of the conversion to the caller.
struct Caller<'a>(&'a dyn Progress);

impl Progress for Caller<'_> {
    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}

impl Observer for Caller<'_> {
    fn notice(&self, _notice: Notice) {}

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // Steps with a name come before or after the conversion.
        if !what.is_empty() {
            return Box::new(Silent);
        }
        self.0.begin(bytes);
        Box::new(Caller(self.0))
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        self.0.begin(bytes);
        Box::new(Caller(self.0))
    }
}

impl ShardProgress for Caller<'_> {
    fn shard(&self, _what: String, _bytes: u64) -> Box<dyn Progress + '_> {
        Box::new(Caller(self.0))
    }
}
