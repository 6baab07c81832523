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
    /// The disk has no space for the output.
    NoSpace,
    /// The user may not write to the place of the output.
    Unwritable,
    /// The arguments contradict each other or the input.
    Usage,
    /// A loss happened that the caller forbids.
    Loss,
    /// The output exists already.
    Exists(Wanted),
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
    /// Something else is where the output would be.
    Taken(Wanted),
    /// The output has no name, or a name that it cannot have.
    Unnamed(Wanted),
    /// The file does not give the type of its elements. These types would be possible.
    Untyped(Box<[&'static str]>),
    /// The tensor cannot be converted, but could be copied.
    Unconvertible,
    /// Readers of the output would misunderstand the tensor, because of its name. With this name they would not.
    Misnamed(Box<str>),
    /// Tensors whose names match these patterns cannot be converted, but could be copied.
    Excludable(Box<[String]>),
    /// Weights whose names match these patterns cannot be quantized again, but could be decoded.
    Decodable(Box<[String]>),
    /// The blocks at the edges of a weight are partial, and that is not allowed.
    PartialBlocks,
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
    /// This folder is in the way.
    Folder(PathBuf),
    /// This folder is in the way, and may hold files that have no copy.
    Remains(PathBuf),
    /// This folder is missing.
    NoFolder(PathBuf),
    /// This option, in `snake_case`, is not needed.
    Option(&'static str),
}

/// Output that is needed instead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wanted {
    /// A file, or a folder.
    Any,
    /// A file.
    File,
    /// A folder.
    Folder,
    /// A file, or a folder for several outputs.
    FileOrFolder,
    /// A folder, or no name: an output next to its input has the type in its name.
    FolderOrBeside,
    /// Standard output, or a file.
    Stream,
    /// A file for the report.
    Report,
    /// Another folder, because this one holds files that cannot be replaced.
    OtherFolder,
    /// Another file for the report, because others may need this one.
    OtherReport,
    /// A folder of shards.
    Shards,
    /// This file or folder.
    At(PathBuf),
}
