//! The error type of the crate, which names the file, the tensor and the problem.

mod advice;
mod common;

pub(crate) use advice::{A_FOLDER, ELSEWHERE, OTHER_FILE, OTHER_FOLDER};
pub use advice::{Advice, Opt};

use crate::text::{path_text, shorten, visible};
use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation that was refused or that failed.
///
/// Displayed as `PATH: tensor 'NAME': MESSAGE`. [`details`](Self::details) and [`advice`](Self::advice) have more lines.
#[derive(Debug)]
pub struct Error {
    path: Option<Box<Path>>,
    tensor: Option<Box<str>>,
    message: Box<str>,
    /// Boxed, because every result contains an error.
    kind: Option<Box<Kind>>,
    /// More details, one per line.
    details: Box<[String]>,
    /// Alternatives, the best one first.
    advice: Box<[Advice]>,
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
            message: message.into().into(),
            kind: None,
            details: Box::default(),
            advice: Box::default(),
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
            Kind::System => ErrorKind::Io,
            Kind::Usage | Kind::SeveralTensors(_) | Kind::Unmatched { .. } => ErrorKind::Usage,
            Kind::Loss => ErrorKind::Loss,
            Kind::Exists => ErrorKind::Exists,
            Kind::Unfinished | Kind::Interrupted(_) => ErrorKind::Unfinished,
            Kind::Cancelled => ErrorKind::Cancelled,
            Kind::Several(errors) => {
                let mut kinds = errors.iter().map(Self::kind);
                let first = kinds.next().unwrap_or(ErrorKind::Refused);
                if kinds.all(|kind| kind == first) { first } else { ErrorKind::Refused }
            }
            _ => ErrorKind::Refused,
        }
    }

    /// Returns the problem.
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
        let failure = Self::new(format!("{what}: {}", describe(error))).of(Kind::System).with_source(source);
        if is_in_use(error) {
            failure.remedy("close the program that uses it, and run the same command again")
        } else {
            failure
        }
    }

    /// Creates the error for an operating system error while making an output; `verb` names the failed action.
    #[must_use]
    pub(crate) fn cannot(verb: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{InvalidFilename, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        let failure = Self::io(&format!("cannot {verb}"), error);
        match error.kind() {
            _ if is_in_use(error) => failure,
            StorageFull | QuotaExceeded => failure.no_space(),
            PermissionDenied | ReadOnlyFilesystem => {
                failure.with(Opt::OUTPUT, "name an output in a folder that you can write to, with {}")
            }
            InvalidFilename => failure.of(Kind::Refused).with(Opt::OUTPUT, "name another output with {}"),
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
        self.complete()
    }

    /// Names the tensor, unless one is named already; an empty name (the one tensor of a .npy) is ignored.
    #[must_use]
    pub(crate) fn in_tensor(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.tensor.get_or_insert_with(|| name.into());
        }
        self.complete()
    }

    /// Adds an alternative to the advice.
    #[must_use]
    pub(crate) fn advise(mut self, advice: Advice) -> Self {
        if !self.advice.contains(&advice) {
            self.advice = self.advice.into_iter().chain([advice]).collect();
        }
        self.complete()
    }

    /// Puts the file and the tensor into advice about them.
    fn complete(mut self) -> Self {
        self.advice.iter_mut().for_each(|advice| advice.complete(self.path.as_deref(), self.tensor.as_deref()));
        self
    }

    /// Adds advice in words.
    #[must_use]
    pub(crate) fn remedy(self, words: impl Into<String>) -> Self {
        self.advise(Advice::Say(words.into().into()))
    }

    /// Advises to leave out an option that is not needed and prevents the work.
    #[must_use]
    pub(crate) fn without(self, option: Opt) -> Self {
        self.advise(Advice::Without(option))
    }

    /// Advises to set an option; `say` has `{}` in its place.
    #[must_use]
    pub(crate) fn with(self, option: Opt, say: impl Into<String>) -> Self {
        self.with_value(option, "", say)
    }

    /// Advises to set an option to a value, which is a word in capitals for a value to choose.
    #[must_use]
    pub(crate) fn with_value(self, option: Opt, value: impl AsRef<OsStr>, say: impl Into<String>) -> Self {
        self.advise(Advice::With { options: advice::given(&[(option, &value)]), say: say.into().into() })
    }

    /// Advises to set an option to some patterns.
    #[must_use]
    pub(crate) fn with_patterns(self, option: Opt, globs: &[String], say: impl Into<String>) -> Self {
        let globs: Vec<(Opt, &String)> = globs.iter().map(|glob| (option, glob)).collect();
        self.advise(Advice::With { options: advice::given(&globs), say: say.into().into() })
    }

    /// Advises to run another operation on a file, or on the file of the error if `input` is `None`.
    #[must_use]
    pub(crate) fn run(
        self,
        operator: &'static str,
        input: Option<&Path>,
        options: &[(Opt, &str)],
        say: impl Into<String>,
    ) -> Self {
        let input = input.unwrap_or(Path::new(Advice::FILE)).to_owned();
        self.advise(Advice::Run { operator, input, options: advice::given(options), say: say.into().into() })
    }

    /// Replaces all advice.
    #[must_use]
    pub(crate) fn advised(self, advice: impl Into<Box<[Advice]>>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// Drops all advice.
    #[must_use]
    pub(crate) fn unadvised(self) -> Self {
        self.advised([])
    }

    /// Returns ways to proceed: alternatives, the best one first.
    #[must_use]
    pub fn advice(&self) -> &[Advice] {
        &self.advice
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

/// A problem, as far as callers handle it. The program turns each into an exit code.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Kind {
    /// A file is malformed, or a rule forbids the conversion.
    #[default]
    Refused,
    /// The system refused something that may succeed the next time.
    System,
    /// The arguments contradict each other or the input.
    Usage,
    /// A loss happened that the caller forbids.
    Loss,
    /// The caller ended the work.
    Cancelled,
    /// The output exists already.
    Exists,
    /// The folder of the output has an unfinished conversion, whose parts may be missing or damaged.
    Unfinished,
    /// An unfinished conversion is in this folder, which should be a checkpoint.
    Interrupted(PathBuf),
    /// A pattern matches no tensor.
    Unmatched {
        /// The option with the pattern.
        option: Opt,
        /// The pattern.
        pattern: Box<str>,
        /// The names that it could match.
        names: Box<[String]>,
    },
    /// The tensor cannot be converted, but could be copied.
    Unconvertible,
    /// The tensor holds the codes of a quantized weight, which are not values.
    Codes,
    /// Adapters change a weight that the conversion copies, such as the codes of a quantized weight in a cast.
    UnusedAdapter,
    /// There is no tensor of this name.
    NoTensor {
        /// The name.
        name: Box<str>,
        /// The names of the tensors.
        names: Box<[String]>,
    },
    /// One of these tensors has to be chosen.
    SeveralTensors(Box<[String]>),
    /// Several inputs failed, each with its own error.
    Several(Box<[Error]>),
}
