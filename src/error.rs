//! The error type of the crate, which names the file, the tensor and the problem.

mod kind;

pub use kind::{Blocker, Intended, Kind, OutputRole, Wanted};

use crate::text::{path_text, shorten, visible};
use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation that was refused or that failed.
///
/// Displayed as `PATH: tensor 'NAME': MESSAGE`. The [`Kind`] classifies the problem, so that callers can add their own
/// advice; the remedy is advice for every caller.
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
    pub fn of(self, kind: Kind) -> Self {
        Self { kind: Some(Box::new(kind)), ..self }
    }

    /// Returns the kind of problem, as far as a remedy depends on it.
    #[must_use]
    pub fn kind(&self) -> &Kind {
        self.kind.as_deref().unwrap_or(&Kind::Refused)
    }

    /// True if the error says that the output exists.
    #[must_use]
    pub fn is_existing(&self) -> bool {
        matches!(self.kind(), Kind::Exists { .. })
    }

    /// Creates the error for an operating system error while doing `what`.
    #[must_use]
    pub fn io(what: &str, error: &io::Error) -> Self {
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

    /// True if the system refused an operation that may succeed the next time.
    #[must_use]
    pub fn is_io(&self) -> bool {
        matches!(self.kind(), Kind::System | Kind::NoMemory | Kind::NoSpace | Kind::Unwritable | Kind::InUse)
    }

    /// Names the file, unless one is named already; an empty path (a file without a name) is ignored.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        if !path.as_os_str().is_empty() {
            self.path.get_or_insert_with(|| path.into());
        }
        self
    }

    /// Names the tensor, unless one is named already; an empty name (the one tensor of a .npy) is ignored.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
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
    pub fn blocker(&self) -> Option<&Blocker> {
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
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
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
