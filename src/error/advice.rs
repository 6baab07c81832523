//! Ways to proceed after an error, as facts. The program words them with its flags and commands.

use crate::text::{as_glob, first_few, path_text};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

/// Option of an operation, such as `exclude`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opt(&'static str);

macro_rules! options {
    ($($constant:ident = $name:literal)*) => {
        #[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program has more options"))]
        impl Opt {
            $(pub(crate) const $constant: Self = Self($name);)*
            #[cfg(all(test, feature = "cli"))]
            pub(crate) const ALL: &[Self] = &[$(Self::$constant),*];
        }
    };
}

options! {
    ACTIVATIONS = "activations"
    ALLOW_UNMATCHED = "allow_unmatched"
    ARCHITECTURE = "architecture"
    CONFIG = "config"
    DROP = "drop"
    EXCLUDE = "exclude"
    EXPERTS = "experts"
    EXTERNAL_DATA = "external_data"
    FAIL_ON = "fail_on"
    FINISH = "finish"
    FORCE = "force"
    FORCE_CODES = "force_codes"
    FROM = "from"
    GROUP_SIZE = "group_size"
    HASH = "hash"
    IMATRIX = "imatrix"
    INCLUDE = "include"
    INPUT_GLOBAL_SCALE = "input_global_scale"
    INCLUDE_EMBEDDINGS = "include_embeddings"
    JSON = "json"
    KEEP_ACTIVATION_SCALES = "keep_activation_scales"
    LAYOUT = "layout"
    LORA = "lora"
    MAX_SHARD_SIZE = "max_shard_size"
    METADATA_FROM = "metadata_from"
    MIN_ELEMENTS = "min_elements"
    NAMES = "names"
    ONLY = "only"
    ONLY_EXACT = "only_exact"
    OPSET = "opset"
    OUT_OF_RANGE = "out_of_range"
    OUTPUT = "output"
    PART = "part"
    PARTIAL_BLOCKS = "partial_blocks"
    PRE_TOKENIZER = "pre_tokenizer"
    PYTORCH_SCALAR = "pytorch_scalar"
    RAISE_OPSET = "raise_opset"
    RECOVER = "recover"
    RENAME = "rename"
    REPORT = "report"
    RESUME = "resume"
    ROOT = "root"
    ROUNDING = "rounding"
    ROTATION = "rotation"
    RTOL = "rtol"
    RULE = "rule"
    SATURATE = "saturate"
    SCHEME = "scheme"
    SEARCH = "search"
    SET = "set"
    TAKE_RANK = "take_rank"
    TARGET_BITS = "target_bits"
    TENSOR = "tensor"
    THREADS = "threads"
    TOLERANCE = "tolerance"
    TO = "to"
    U64_TARGET = "u64_target"
    UNSAFE = "unsafe"
    UNSET = "unset"
}

impl Opt {
    /// Returns the name, in `snake_case`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Way to proceed after an error. A value in capitals, such as `TYPE` or `MODEL.gguf`, stands for one to choose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// Does what these words say.
    Say(Box<str>),
    /// Leaves this option out.
    Without(Opt),
    /// Sets options.
    With {
        /// Each option and its value, which is empty for a switch and if any value may help.
        options: Vec<(Opt, OsString)>,
        /// Words for the effect; `{}` stands for the options, unless the words are clear without them.
        say: Box<str>,
    },
    /// Runs another operation.
    Run {
        /// Name of the operation.
        operator: &'static str,
        /// File or folder; empty if any.
        input: PathBuf,
        /// Each option and its value.
        options: Vec<(Opt, OsString)>,
        /// Words for the effect, with `{}` for the operation.
        say: Box<str>,
    },
    /// Downloads the input from this address, or the model of this name from Hugging Face.
    Download(Box<str>),
}

impl Advice {
    /// Stands for the name of the tensor until the error names one.
    pub(crate) const TENSOR: &str = "NAME";
    /// Stands for the file until the error names one.
    pub(super) const FILE: &str = "MODEL";

    /// True if the advice sets an option.
    pub(crate) fn sets(&self, wanted: Opt) -> bool {
        matches!(self, Self::With { options, .. } if options.iter().any(|(option, _)| *option == wanted))
    }

    /// Returns the advice for a report in place of an output.
    #[cfg(feature = "cli")]
    pub(crate) fn about_report(self) -> Self {
        match self {
            Self::With { options, say } if options[0].0 == Opt::OUTPUT => Self::With {
                options: options.into_iter().map(|(_, path)| (Opt::REPORT, path)).collect(),
                say: say.replace("an output", "a report").replace("another output", "another file").into(),
            },
            advice => advice,
        }
    }

    /// Fills in the file and the tensor of the error.
    pub(super) fn complete(&mut self, file: Option<&Path>, tensor: Option<&str>) {
        match (self, file, tensor) {
            (Self::Run { input, .. }, Some(file), _) if input.as_os_str() == Self::FILE => file.clone_into(input),
            (Self::With { options, .. }, _, Some(tensor)) => {
                let patterns =
                    options.iter_mut().filter(|(option, value)| *option == Opt::EXCLUDE && value == Self::TENSOR);
                patterns.for_each(|(_, value)| *value = as_glob(tensor).into());
            }
            _ => {}
        }
    }

    /// Words the advice, with a function for options and one for an operation.
    pub(crate) fn worded(
        &self,
        options_text: impl Fn(&[(Opt, OsString)]) -> String,
        operation: impl Fn(&str, &Path, &[(Opt, OsString)]) -> String,
    ) -> String {
        match self {
            Self::Say(text) => text.to_string(),
            Self::Without(option) => format!("leave {} out", options_text(&[(*option, OsString::new())])),
            Self::With { options, say } => say.replacen("{}", &options_text(options), 1),
            Self::Run { operator, input, options, say } => say.replacen("{}", &operation(operator, input, options), 1),
            Self::Download(address) => format!("download {address}"),
        }
    }
}

/// Words with the names of options: copy it as it is with `exclude` (x).
impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Maximum number of options and patterns.
        const FEW: usize = 8;
        let option = |(option, value): &(Opt, OsString)| match path_text(value) {
            value if value.is_empty() => format!("`{option}`"),
            value => format!("`{option}` ({value})"),
        };
        let options_text = |options: &[(Opt, OsString)]| first_few(options.iter().map(option), FEW);
        let operation = |operator: &str, input: &Path, options: &[(Opt, OsString)]| {
            let with = if options.is_empty() { String::new() } else { format!(" with {}", options_text(options)) };
            format!("{operator} {}", path_text(input)).trim_end().to_owned() + &with
        };
        f.write_str(&self.worded(options_text, operation))
    }
}

/// An output in the role of another folder, with `{}` for the option that names it.
pub(crate) const OTHER_FOLDER: &str = "name another folder with {}";
/// An output in the role of another file.
pub(crate) const OTHER_FILE: &str = "name another file with {}";
/// An output that is a folder.
pub(crate) const A_FOLDER: &str = "name a folder with {}";
/// An output in a free place, with `{}` for the option and the path.
pub(crate) const ELSEWHERE: &str = "name an output elsewhere: {}";

/// Returns options with values.
pub(super) fn given(options: &[(Opt, &(impl AsRef<OsStr> + ?Sized))]) -> Vec<(Opt, OsString)> {
    options.iter().map(|(option, value)| (*option, value.as_ref().to_owned())).collect()
}
