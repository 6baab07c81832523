//! Kinds of errors, by which a caller chooses its advice.

use std::path::{Path, PathBuf};

/// Kind of an error, with the details that a remedy depends on. The program turns each kind into an exit code, and into
/// flags that help; other callers can match on it.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Kind {
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
    /// A loss happened that the caller forbids. [`Error::report`](super::Error::report) returns the losses.
    Loss,
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
    /// The model has no quantized weights.
    Plain,
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
    Several(Box<[super::Error]>),
}

/// Something that prevents the work until the user changes it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Blocker {
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
#[non_exhaustive]
pub enum Intended {
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
#[non_exhaustive]
pub enum OutputRole {
    /// A file of tensors.
    File,
    /// A folder of shards, or for several outputs.
    Folder,
    /// A file for the report.
    Report,
}

/// Output that would be possible.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
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
