//! The error type of the crate, which names the file, the tensor and the problem.

use crate::text::{path_text, shorten, visible};
use std::any::Any;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation that was refused or that failed.
///
/// Displayed as `PATH: tensor 'NAME': MESSAGE`.
#[derive(Debug)]
pub struct Error {
    path: Option<Box<Path>>,
    tensor: Option<Box<str>>,
    blocker: Option<Box<Blocker>>,
    message: Box<str>,
    /// Boxed, because every result contains an error.
    kind: Option<Box<Kind>>,
    /// More details, one per line.
    details: Box<[String]>,
    remedy: Option<Box<str>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// A result that was refused, of a type that only higher modules know. Boxed twice, because every result contains an error.
    payload: Option<Box<Box<dyn Any + Send + Sync>>>,
}

impl Error {
    /// Creates an error. `message` is in lower case and has no full stop.
    #[doc(hidden)] // for the program and for fuzzing
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: None,
            tensor: None,
            blocker: None,
            message: message.into().into(),
            kind: None,
            details: Box::default(),
            remedy: None,
            source: None,
            payload: None,
        }
    }

    /// Creates an error for arguments that contradict each other or the input.
    #[must_use]
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(message).of(Kind::Usage)
    }

    /// Returns the same error with another kind.
    #[must_use]
    pub(crate) fn of(self, kind: Kind) -> Self {
        Self { kind: Some(Box::new(kind)), ..self }
    }

    /// Returns the kind of problem.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self.cause() {
            Kind::System | Kind::NoMemory | Kind::NoSpace | Kind::Unwritable | Kind::InUse => ErrorKind::Io,
            Kind::Usage | Kind::SeveralTensors(_) | Kind::Unmatched { .. } | Kind::Unnamed(_) | Kind::Undivided => {
                ErrorKind::Usage
            }
            Kind::Loss => ErrorKind::Loss,
            Kind::Exists { .. } => ErrorKind::Exists,
            Kind::Unfinished { .. } | Kind::Interrupted(_) | Kind::Incomplete | Kind::Stale => ErrorKind::Unfinished,
            Kind::Cancelled => ErrorKind::Cancelled,
            Kind::Several(errors) => {
                let mut kinds = errors.iter().map(Self::kind);
                let first = kinds.next().unwrap_or(ErrorKind::Refused);
                if kinds.all(|kind| kind == first) { first } else { ErrorKind::Refused }
            }
            _ => ErrorKind::Refused,
        }
    }

    /// Returns the problem, with what a remedy depends on.
    pub(crate) fn cause(&self) -> &Kind {
        self.kind.as_deref().unwrap_or(&Kind::Refused)
    }

    /// Creates the error for an operating system error while doing `what`.
    #[must_use]
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        // Makes a copy of the system's error, because many callers only have a reference.
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        let kind = if is_in_use(error) { Kind::InUse } else { Kind::System };
        Self::new(format!("{what}: {}", describe(error))).of(kind).with_source(source)
    }

    /// Creates the error for an operating system error while making an output; `verb` names the failed action.
    #[must_use]
    pub(crate) fn cannot(verb: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{InvalidFilename, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let failure = Self::io(&format!("cannot {verb}"), error);
        match error.kind() {
            _ if is_in_use(error) => failure,
            StorageFull | QuotaExceeded => failure.of(Kind::NoSpace),
            PermissionDenied | ReadOnlyFilesystem => failure.of(Kind::Unwritable),
            InvalidFilename => failure.of(Kind::Taken(Wanted::Any)),
            _ => failure,
        }
    }

    /// Sets the error that caused this one, which [`std::error::Error::source`] returns.
    #[must_use]
    pub(crate) fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// Adds the result that was refused.
    #[must_use]
    pub(crate) fn with_payload(self, payload: impl Any + Send + Sync) -> Self {
        Self { payload: Some(Box::new(Box::new(payload))), ..self }
    }

    /// Returns the result that was refused, if the error contains one.
    pub(crate) fn payload(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.payload.as_ref().map(|payload| &***payload)
    }

    /// Names the file, unless one is named already; an empty path (a file without a name) is ignored.
    #[must_use]
    pub(crate) fn in_file(mut self, path: &Path) -> Self {
        if !path.as_os_str().is_empty() {
            self.path.get_or_insert_with(|| path.into());
        }
        self
    }

    /// Names the tensor, unless one is named already; an empty name (the one tensor of a .npy) is ignored.
    #[must_use]
    pub(crate) fn in_tensor(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.tensor.get_or_insert_with(|| name.into());
        }
        self
    }

    /// Names an option, in `snake_case`, that is not needed and prevents the work.
    #[must_use]
    pub(crate) fn without(self, option: &'static str) -> Self {
        self.with_blocker(Blocker::Option(option))
    }

    /// Sets what the user must change first.
    #[must_use]
    pub(crate) fn with_blocker(self, blocker: Blocker) -> Self {
        Self { blocker: Some(Box::new(blocker)), ..self }
    }

    /// Names the input that the user intended, which replaces other advice.
    #[must_use]
    pub(crate) fn intending(self, intended: Intended) -> Self {
        Self { remedy: None, ..self.with_blocker(Blocker::Input(intended)) }
    }

    /// Takes over the advice of another error.
    #[must_use]
    pub(crate) fn advised_by(self, other: Self) -> Self {
        Self { remedy: other.remedy, blocker: other.blocker, ..self }
    }

    /// True if the error contains advice of its own, in addition to its kind.
    #[must_use]
    pub(crate) fn has_advice(&self) -> bool {
        self.remedy.is_some() || self.blocker.is_some()
    }

    /// Returns what the user must change first, if there is such a thing.
    #[must_use]
    pub(crate) fn blocker(&self) -> Option<&Blocker> {
        self.blocker.as_deref()
    }

    #[must_use]
    pub(crate) fn with_details(self, details: Vec<String>) -> Self {
        Self { details: details.into(), ..self }
    }

    /// Returns the lines that follow the first.
    #[must_use]
    pub fn details(&self) -> &[String] {
        &self.details
    }

    /// Returns the file, if one is named.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the message, without file and tensor.
    #[must_use]
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Returns the tensor, if one is named.
    #[must_use]
    pub fn tensor(&self) -> Option<&str> {
        self.tensor.as_deref()
    }

    /// Sets the advice for every caller; the [`Kind`] covers advice that depends on the caller.
    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into().into());
        self
    }

    /// Returns the remedy, if there is one.
    #[must_use]
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path_text(&**path))?;
        }
        if let Some(tensor) = &self.tensor {
            write!(f, "tensor '{}': ", shorten(tensor))?;
        }
        f.write_str(&visible(&self.message))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// True if another program holds the file, according to the error. Windows then does not replace, move or remove it.
#[must_use]
pub(crate) fn is_in_use(error: &io::Error) -> bool {
    /// `ERROR_SHARING_VIOLATION`, `ERROR_LOCK_VIOLATION` and `ERROR_USER_MAPPED_FILE`.
    const HELD: [i32; 3] = [32, 33, 1224];
    cfg!(windows) && error.raw_os_error().is_some_and(|code| HELD.contains(&code))
}

/// Formats the system's message in the style of all messages: in lower case, and without a full stop and "(os error
/// 28)".
fn describe(error: &io::Error) -> String {
    if is_in_use(error) {
        return "it is in use by another program".to_owned();
    }
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default().trim_end_matches('.');
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

/// Kind of an error, for callers that handle some errors themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file is malformed, or a rule forbids the conversion.
    Refused,
    /// The options contradict each other or the input.
    Usage,
    /// The system refused something that may succeed the next time.
    Io,
    /// The output exists already.
    Exists,
    /// The folder has an unfinished conversion.
    Unfinished,
    /// A loss happened that the caller forbids. [`Error::report`] returns the losses.
    Loss,
    /// The caller ended the work.
    Cancelled,
}

/// A problem, with the details that a remedy depends on. The program turns each into an exit code, and into flags that help.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Kind {
    /// A file is malformed, or a rule forbids the conversion.
    #[default]
    Refused,
    /// The system refused something that may succeed the next time.
    System,
    /// Another program holds the file.
    InUse,
    /// The system has no memory for the work.
    NoMemory,
    /// The disk has no space for the output.
    NoSpace,
    /// The user may not write to the place of the output.
    Unwritable,
    /// The arguments contradict each other or the input.
    Usage,
    /// A loss happened that the caller forbids.
    Loss,
    /// The caller ended the work.
    Cancelled,
    /// The output exists already.
    Exists {
        /// Role of the output.
        output: OutputRole,
        /// True if this command may replace it.
        is_replaceable: bool,
    },
    /// An unfinished conversion is in the folder of the output.
    Unfinished {
        /// True if the same command can continue it.
        can_resume: bool,
    },
    /// An unfinished conversion is in this folder, which should be a checkpoint.
    Interrupted(PathBuf),
    /// Parts of a conversion are missing or damaged: it can be finished after they are converted again.
    Incomplete,
    /// The files of a checkpoint contradict each other.
    Inconsistent,
    /// The work in the output's folder cannot be continued.
    Stale,
    /// Something else is where the output would be. This output would be possible.
    Taken(Wanted),
    /// An output that is named after its input would replace a file of an input.
    Collision {
        /// True if the outputs go to a folder that the caller named.
        is_in_folder: bool,
        /// True if each output could also go next to its input, with the type in its name.
        has_typed_names: bool,
    },
    /// The output has no name, or a name that it cannot have. This output would be possible.
    Unnamed(Wanted),
    /// The output is one file, and must be divided into a folder of shards.
    Undivided,
    /// The file does not give the type of its elements. These types would be possible.
    Untyped(Box<[&'static str]>),
    /// A pattern matches no tensor.
    Unmatched {
        /// The option with the pattern, in `snake_case`.
        option: &'static str,
        /// The pattern.
        pattern: Box<str>,
        /// The names that it could match.
        names: Box<[String]>,
    },
    /// Ranks have other values of a whole tensor; this is one of them.
    RanksDiffer(u64),
    /// The tensor cannot be converted, but could be copied.
    Unconvertible,
    /// Readers of the output would misunderstand the tensor, because of its name. With this name they would not.
    Misnamed(Box<str>),
    /// Tensors whose names match these patterns cannot be converted, but could be copied.
    Excludable(Box<[String]>),
    /// Weights do not fit groups of the chosen size, but would fit smaller ones.
    Ungrouped {
        /// The largest size that fits all of them.
        size: u64,
    },
    /// Weights whose names match these patterns cannot be quantized again, but could be decoded.
    Decodable(Box<[String]>),
    /// The blocks at the edges of a weight are partial, and that is not allowed.
    PartialBlocks,
    /// The model is an adapter, which can be cast but not quantized.
    Adapter,
    /// The model is an adapter, and a GGUF file of it needs the model that it is for.
    Unmerged,
    /// Tensors of an adapter match no weight of the model, and could be left out.
    UnmatchedAdapter,
    /// Adapters change a weight that the conversion copies, such as the codes of a quantized weight in a cast.
    UnusedAdapter,
    /// The model has no quantized weights.
    Plain,
    /// The tensor is a table that nodes look up, which the layout stores if it is asked for.
    Table,
    /// There is no tensor of this name.
    NoTensor {
        /// The name.
        name: Box<str>,
        /// The names of the tensors.
        names: Box<[String]>,
    },
    /// One of these tensors has to be chosen.
    SeveralTensors(Box<[String]>),
    /// The layout cannot store the weights: another scheme or layout may.
    Unstorable,
    /// The tensor holds the codes of a quantized weight, which are not values.
    Codes {
        /// Patterns that match all parts of the input's quantized weights, and no other tensor; empty if tensors that are
        /// cast would look like codes. `None` if the operator can neither leave codes out nor convert them.
        globs: Option<Box<[String]>>,
        /// The file or folder whose weights can be decoded instead, if they can.
        model: Option<Box<Path>>,
    },
    /// The model is quantized in a way that tcast does not decode, and could be converted as if all tensors held values.
    Undecoded,
    /// The tensor consists of blocks with codes and scales, which can only be decoded or quantized again.
    InBlocks,
    /// A model has no metadata for a GGUF file, which another GGUF of it has.
    NoKeys {
        /// True for a language model; false if it could be another one.
        is_language: bool,
    },
    /// A model has no form in GGUF that tcast can write, but llama.cpp may have one.
    NotInGguf,
    /// llama.cpp does not know the pre-tokenizer of a tokenizer. Its description in the file is that of this one.
    UnknownPreTokenizer(Option<Box<str>>),
    /// A scheme needs an importance matrix.
    NoImportance,
    /// The output would be a GGUF file, and the operation writes none.
    NoGguf,
    /// The tensors of a model cannot be named as in Hugging Face, but could keep the names of the file.
    Unmapped,
    /// A value is out of the range of an integer type, and the rule for such values is to fail.
    OutOfRange,
    /// The operation is impossible for an ONNX model, and possible for its tensors.
    OfModel,
    /// An ONNX model imports too old a set of operators, and could import a later one.
    OldOpset,
    /// Inputs have no common type that is safe.
    Unsafe {
        /// Types that would be converted, in words.
        conversion: Box<str>,
        /// True if another type can be chosen for uint64 with a signed integer.
        has_u64_target: bool,
    },
    /// Several inputs failed, each with its own error.
    Several(Box<[Error]>),
}

/// Something that prevents the work until the user changes it.
#[derive(Debug)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Blocker {
    /// This file is in the way.
    File(PathBuf),
    /// This file is in the way, and may belong to something else.
    Foreign(PathBuf),
    /// This folder is in the way.
    Folder(PathBuf),
    /// This folder is in the way, and may hold files that have no copy.
    Remains(PathBuf),
    /// This folder is missing.
    NoFolder(PathBuf),
    /// This option, in `snake_case`, is not needed.
    Option(&'static str),
    /// The path of the input is wrong.
    Input(Intended),
    /// A file has the extension of another format.
    Extension {
        /// The file.
        file: PathBuf,
        /// Free name with the extension of the file's format.
        name: PathBuf,
    },
    /// This file is compressed with gzip.
    Compressed(PathBuf),
    /// This file is a pointer of git-lfs, and not the file itself.
    Pointer(PathBuf),
    /// A link leads out of the checkpoint.
    Link {
        /// The link.
        link: PathBuf,
        /// Name in the same folder for a copy of the link's target.
        copy: PathBuf,
    },
    /// The missing file belongs to this one, which refers to it.
    Referrer(PathBuf),
    /// This index omits shards that are in its folder.
    ShortIndex(PathBuf),
    /// This index names shards that are missing, and its folder holds a complete model without it.
    StaleIndex(PathBuf),
    /// A folder has files of other models.
    OtherModels {
        /// The model, if it is one file.
        model: Option<PathBuf>,
        /// The files of the others.
        others: Box<[PathBuf]>,
    },
    /// This shard repeats tensors of other shards.
    Surplus {
        /// The shard.
        shard: PathBuf,
        /// True if its name shows that it is an output; otherwise, it is only the newest shard.
        is_output: bool,
    },
}

/// Input that the user intended, in place of a path that cannot be read.
#[derive(Debug)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Intended {
    /// The folder that the given file describes.
    Described(PathBuf),
    /// The folder of all shards, of which the given file is one.
    Whole(PathBuf),
    /// One of these folders in the given folder.
    Folders(Box<[PathBuf]>),
    /// These files in the given folder.
    Files(Box<[PathBuf]>),
    /// This path in the home folder, for a `~` that no shell expanded.
    Home(PathBuf),
    /// The files that match this pattern, which no shell expanded.
    Pattern(PathBuf),
    /// An existing file or folder with a similar name.
    Similar(PathBuf),
    /// A model on Hugging Face, `OWNER/NAME`.
    Repository(Box<str>),
    /// The file or folder that this address leads to.
    Address(Box<str>),
}

/// Role of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum OutputRole {
    /// A file of tensors.
    File,
    /// A folder of shards, or for several outputs.
    Folder,
    /// A file for the report.
    Report,
}

/// Output that would be possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A file, or a folder.
    Any,
    /// An output in this role.
    Role(OutputRole),
    /// Standard output, or a file.
    Stream,
    /// This file or folder.
    At(PathBuf),
}

impl Kind {
    /// Returns the kind for an output that exists, and that the caller may allow to be replaced.
    pub(crate) fn exists(output: OutputRole) -> Self {
        Self::Exists { output, is_replaceable: true }
    }
}

impl Wanted {
    pub(crate) const FILE: Self = Self::Role(OutputRole::File);
    pub(crate) const FOLDER: Self = Self::Role(OutputRole::Folder);
}
