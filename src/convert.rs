//! One call that converts a file.

use crate::container;
use crate::dtype::Dtype;
use crate::engine;
use crate::error::{Error, Result};
use crate::io::output::Destination;
use crate::io::sink::Sink;
use crate::kernel::Counts;
use crate::operator::{Operator, cast::CastAttributes};
use crate::plan::{self, Request, Spread};
use crate::progress::{Progress, Silent};
use crate::select::Selection;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// How [`convert`] works.
#[non_exhaustive]
pub struct Options<'a> {
    /// Which tensors are converted, and to what; the others are copied.
    pub selection: Selection,
    /// The attributes of ONNX Cast.
    pub attributes: CastAttributes,
    /// Replace an existing output.
    pub replace: bool,
    /// Flush the output to the disk before it takes its name.
    pub sync: bool,
    /// Threads to use; as many as there are cores where this is `None`.
    pub threads: Option<NonZeroUsize>,
    /// Is called with the bytes that are done.
    pub progress: &'a dyn Progress,
    /// Is asked whether to go on.
    pub cancel: &'a dyn Cancel,
}

impl Options<'_> {
    /// Converts every tensor of floats to `dtype`, as `tcast cast INPUT --to DTYPE` does.
    #[must_use]
    pub fn to(dtype: Dtype) -> Self {
        Self {
            selection: Selection { to: Some(dtype), ..Selection::default() },
            attributes: CastAttributes::default(),
            replace: false,
            sync: true,
            threads: None,
            progress: &Silent,
            cancel: &Never,
        }
    }
}

/// Says whether work is to end early. Threads ask before each piece that they write.
pub trait Cancel: Sync {
    /// Whether it is.
    fn is_cancelled(&self) -> bool;
}

impl Cancel for AtomicBool {
    fn is_cancelled(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

/// Nothing ends early.
struct Never;

impl Cancel for Never {
    fn is_cancelled(&self) -> bool {
        false
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

/// Converts a tensor file into another, on all cores and without holding a tensor in memory. The output's extension
/// chooses its format. The output is there as a whole or not at all.
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
/// # Errors
/// When the input is no tensor file, the output cannot hold a type or exists, reading or writing fails, a value breaks a
/// rule, or the work is cancelled.
pub fn convert(input: impl AsRef<Path>, output: impl AsRef<Path>, options: &Options) -> Result<Vec<Converted>> {
    let (input, output) = (input.as_ref(), output.as_ref());
    options.attributes.check()?;
    let inputs = [container::open(input)?];
    let container = container::by_extension(output)
        .ok_or_else(|| Error::new("the extension names no format of tensors").in_file(output))?;
    let request = Request::new(Operator::Cast(options.attributes), &options.selection, container);
    // One input and one output: one plan.
    let plan = plan::build(&request, &inputs, Spread::One, &|_| {})?.swap_remove(0);
    let destination = Destination::new(output, options.replace, &[input])?;
    destination.check_room(plan.len)?;
    let file = destination.create()?;
    let threads =
        options.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), Into::into);
    options.progress.begin(plan.source_bytes());
    let sink = Cancellable { sink: &file, cancel: options.cancel };
    let outcomes = engine::run(&plan, &sink, threads, false, options.progress)?;
    sink.check()?;
    file.publish(options.sync, None)?;
    let tensors = plan.steps.iter().zip(outcomes).map(|(tensor, outcome)| {
        let (from, to) = tensor.dtypes();
        Converted { name: tensor.name().to_owned(), from, to, counts: *outcome.counts }
    });
    Ok(tensors.collect())
}

/// Refuses to write when the work is cancelled, which ends it.
struct Cancellable<'a> {
    sink: &'a dyn Sink,
    cancel: &'a dyn Cancel,
}

impl Cancellable<'_> {
    fn check(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::new("cancelled").in_file(self.sink.path())) } else { Ok(()) }
    }
}

impl Sink for Cancellable<'_> {
    fn path(&self) -> &Path {
        self.sink.path()
    }

    fn is_seekable(&self) -> bool {
        self.sink.is_seekable()
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.sink.reserve(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check()?;
        self.sink.write_at(offset, bytes)
    }
}
