//! One call that converts a file.

use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::job::{
    self, Cancel, DecodeOptions, IfExists, Job, JobInput, Never, Notice, Observer, Recoding, ShardProgress,
    TensorReport,
};
use crate::kernel::Counts;
use crate::operator::{Operator, cast::CastAttributes};
use crate::progress::{Progress, Silent};
use crate::read::LogicalCheckpoint;
use crate::select::Selection;
use std::num::NonZeroUsize;
use std::path::Path;

/// How [`convert`] works.
#[non_exhaustive]
pub struct Options<'a> {
    /// Which tensors are converted, and to what; the others are copied.
    pub selection: Selection,
    /// The attributes of ONNX Cast.
    pub attributes: CastAttributes,
    /// Replace an existing output.
    pub replace: bool,
    /// What happens to quantized weights.
    pub quantized: QuantizedInput,
    /// Flush the output to the disk before it takes its name.
    pub sync: bool,
    /// Threads to use; `None` for all cores.
    pub threads: Option<NonZeroUsize>,
    /// Is called with the bytes that are done.
    pub progress: &'a dyn Progress,
    /// Is asked whether to go on.
    pub cancel: &'a dyn Cancel,
}

/// What [`convert`] does with quantized weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuantizedInput {
    /// Refuses to cast their codes.
    #[default]
    Refuse,
    /// Decodes those that the selection includes, and copies all other tensors.
    Decode,
    /// Casts their codes as if they were values.
    CastCodes,
}

impl Options<'_> {
    /// Converts every tensor of floats to `dtype`, as `tcast cast INPUT --to DTYPE` does.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        Self {
            selection: Selection { to: Some(dtype), ..Selection::default() },
            attributes: CastAttributes::default(),
            replace: false,
            quantized: QuantizedInput::Refuse,
            sync: true,
            threads: None,
            progress: &Silent,
            cancel: &Never,
        }
    }

    /// Decodes quantized weights to `dtype`: bfloat16, float16 or float32. All other tensors are copied, and `config.json`
    /// no longer describes the weights as quantized. This is `tcast dequantize INPUT --to DTYPE`.
    #[must_use]
    pub fn dequantize(dtype: Dtype) -> Self {
        Self { quantized: QuantizedInput::Decode, ..Self::to(dtype) }
    }
}

/// What became of a tensor.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Converted {
    /// Its name in the output.
    pub name: String,
    /// The type that it had.
    pub from: Dtype,
    /// The type that it has.
    pub to: Dtype,
    /// What happened to its values.
    pub counts: Counts,
}

/// Converts a tensor file, or a folder of shards, on all cores and without holding a tensor in memory, as the program does.
/// The extension of an output file chooses its format. The output is there as a whole or not at all.
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
/// As for the program, an output named `-` is standard output; `./-` is a file.
///
/// # Errors
/// When the input is not a tensor file, the output cannot hold a type or exists, reading or writing fails, a value breaks a
/// rule, there are no weights to decode, or the work is cancelled.
pub fn convert(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &Options) -> Result<Vec<Converted>> {
    options.attributes.check()?;
    let is_decoded = options.quantized == QuantizedInput::Decode;
    let operator = if is_decoded { Operator::Dequantize } else { Operator::Cast(options.attributes) };
    let mut job = Job {
        output: Some(output.as_ref()),
        existing: if options.replace { IfExists::Replace } else { IfExists::Refuse },
        sync: options.sync,
        force_codes: options.quantized == QuantizedInput::CastCodes,
        cancel: options.cancel,
        ..Job::new(operator)
    };
    job.threads = options.threads.map_or(job.threads, Into::into);
    let caller = Caller(options.progress);
    let inputs = [input.as_ref().to_owned()];
    let sources = job::open(&inputs, job.publish, job.threads, &caller, |error, _| error)?;
    let recoding = if is_decoded {
        Some(decoding(&sources[0], &options.selection)?)
    } else {
        Recoding::rename(&sources[0], &options.selection.renames)?
    };
    // What is not a weight is copied.
    let others = Selection { renames: options.selection.renames.clone(), ..Selection::default() };
    let selection = if is_decoded { &others } else { &options.selection };
    let input = |source| JobInput { source, selection, from: None, recoding: recoding.as_ref() };
    let inputs: Vec<JobInput> = sources.iter().map(input).collect();
    let mut converted = Vec::new();
    job::prepare(&job, &inputs, &caller)?.run(&job, &caller, |_, _, written| {
        let files = written?.into_iter().flat_map(|written| written.files);
        converted.extend(files.flat_map(|file| file.tensors).map(Converted::from));
        Ok(())
    })?;
    Ok(converted)
}

fn decoding(source: &Checkpoint, selection: &Selection) -> Result<Recoding> {
    if let Some(to) = selection.to.filter(|to| !to.is_weight()) {
        return Err(Error::new(format!("weights are decoded to bfloat16, float16 or float32, not to {to}")));
    }
    let model = LogicalCheckpoint::open(source)?;
    Recoding::decode(&model, selection, DecodeOptions { target: selection.to, ..DecodeOptions::default() })
}

impl From<TensorReport<'_>> for Converted {
    fn from(tensor: TensorReport) -> Self {
        let counts = tensor.counts.map(|counts| *counts).unwrap_or_default();
        Self { name: tensor.name.into_owned(), from: tensor.from, to: tensor.to, counts }
    }
}

/// Tells the caller how far the conversion is.
struct Caller<'a>(&'a dyn Progress);

impl Progress for Caller<'_> {
    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}

impl Observer for Caller<'_> {
    fn notice(&self, _notice: Notice) {}

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // What has a name of its own comes before or after the conversion.
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
