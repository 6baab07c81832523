//! The one error type: where, which tensor, what is wrong, and the command that fixes it.

use crate::text::{path_text, shorten, visible};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something was refused or failed.
///
/// Shown as `PATH: tensor 'NAME': what is wrong`; the remedy, where there is one, is a line of its own.
#[derive(Debug)]
pub struct Error {
    path: Option<PathBuf>,
    tensor: Option<Box<str>>,
    message: Box<str>,
    /// More of what is wrong, a line each.
    details: Box<[String]>,
    remedy: Option<Box<str>>,
    exit_code: u8,
    is_io: bool,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The exit code where the output exists.
const EXISTS: u8 = 4;

impl Error {
    /// `message` in lower case, without full stop.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            path: None,
            tensor: None,
            message: message.into().into(),
            details: Box::default(),
            remedy: None,
            exit_code: 1,
            is_io: false,
            source: None,
        }
    }

    /// The arguments contradict each other or the input: exit code 2.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(message).into_usage()
    }

    /// The same error, as one of wrong usage.
    #[must_use]
    pub fn into_usage(self) -> Self {
        Self { exit_code: 2, ..self }
    }

    /// A loss happened that the arguments forbid: exit code 3.
    #[must_use]
    pub fn into_loss(self) -> Self {
        Self { exit_code: 3, ..self }
    }

    /// The output exists: exit code 4.
    #[must_use]
    pub fn into_existing(self) -> Self {
        Self { exit_code: EXISTS, ..self }
    }

    /// The same error with the exit code of another one.
    #[must_use]
    pub(crate) fn with_exit_code(self, exit_code: u8) -> Self {
        Self { exit_code, ..self }
    }

    /// Whether it says that the output exists.
    #[must_use]
    pub fn is_existing(&self) -> bool {
        self.exit_code == EXISTS
    }

    /// An operating system error while doing `what`.
    #[must_use]
    pub fn io(what: &str, error: &io::Error) -> Self {
        // What the system said, which many callers hold by reference only.
        let source = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Self { is_io: true, ..Self::new(format!("{what}: {}", describe(error))) }.with_source(source)
    }

    /// The error that caused this one, which [`std::error::Error::source`] gives.
    #[must_use]
    pub(crate) fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..self }
    }

    /// The same error, as one of the system.
    #[must_use]
    pub fn into_io(self) -> Self {
        Self { is_io: true, ..self }
    }

    /// Whether the system refused something, which it may not do the next time.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.is_io
    }

    /// Names the file, unless one is named already; an empty path (a file without a name) says nothing.
    #[must_use]
    pub fn in_file(mut self, path: &Path) -> Self {
        if !path.as_os_str().is_empty() {
            self.path.get_or_insert_with(|| path.to_owned());
        }
        self
    }

    /// Names the tensor, unless one is named already; an empty name (the one tensor of a .npy) says nothing.
    #[must_use]
    pub fn in_tensor(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.tensor.get_or_insert_with(|| name.into());
        }
        self
    }

    /// More of what is wrong, a line each.
    #[must_use]
    pub(crate) fn with_details(self, details: Vec<String>) -> Self {
        Self { details: details.into(), ..self }
    }

    /// The lines that follow the first.
    #[must_use]
    pub fn details(&self) -> &[String] {
        &self.details
    }

    /// What to do about it, as a command where one exists.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into().into());
        self
    }

    /// The remedy, if there is one.
    #[must_use]
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// 2 for wrong usage, 3 for a loss that is forbidden, 4 for an output that exists, 1 for everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path_text(path))?;
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

/// The system's words, without its "(os error 28)" and in lower case as all messages here.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}
