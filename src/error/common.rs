//! Advice that several modules give.

use super::{Advice, Error, Kind, Opt};
use std::path::Path;

impl Error {
    /// Says that the output exists, which the caller may allow to be replaced; `elsewhere` has `{}` for the option that names
    /// another one.
    #[must_use]
    pub(crate) fn existing(self, elsewhere: &str) -> Self {
        self.of(Kind::Exists).with(Opt::FORCE, "add {} to replace it").with(Opt::OUTPUT, elsewhere)
    }

    /// Says that the disk has no space for the output.
    #[must_use]
    pub(crate) fn no_space(self) -> Self {
        self.of(Kind::System).remedy("free some space").with(Opt::OUTPUT, "name an output on another disk with {}")
    }

    /// Says that the tensor cannot be converted, but could be copied.
    #[must_use]
    pub(crate) fn unconvertible(self) -> Self {
        self.of(Kind::Unconvertible).with_value(Opt::EXCLUDE, Advice::TENSOR, "copy it as it is with {}")
    }

    /// Advises to leave out the weights that match some patterns: they are copied, or decoded if they are quantized.
    #[must_use]
    pub(crate) fn leaving_out(self, globs: &[String], are_coded: bool) -> Self {
        match (are_coded, globs.len()) {
            (false, _) => self.with_patterns(Opt::EXCLUDE, globs, "copy the weights as they are with {}"),
            (true, 1) => self.with_patterns(Opt::EXCLUDE, globs, "decode the weight with {}"),
            (true, _) => self.with_patterns(Opt::EXCLUDE, globs, "decode the weights with {}"),
        }
    }

    /// Advises to choose smaller groups, of the largest size that fits all weights. To exclude weights could hide the rule that
    /// names them.
    #[must_use]
    pub(crate) fn with_groups(self, size: u64) -> Self {
        self.with_value(Opt::GROUP_SIZE, size.to_string(), "choose {}")
    }

    /// Says that the layout cannot store the weights: another scheme or layout may.
    #[must_use]
    pub(crate) fn unstorable(self) -> Self {
        self.with(Opt::SCHEME, "choose a scheme with {}").with(Opt::LAYOUT, "choose another layout with {}")
    }

    /// Advises to rename the tensor, whose name readers of the output would misunderstand. Names with '=' cannot be renamed.
    #[must_use]
    pub(crate) fn renaming(self, old: &str, new: &str) -> Self {
        if old.contains('=') {
            return self;
        }
        self.with_value(Opt::RENAME, format!("{old}={new}"), "rename it with {}")
    }

    /// Says that the tensor holds codes, and advises to decode the model.
    #[must_use]
    pub(crate) fn decoding(self, model: &Path) -> Self {
        self.of(Kind::Codes).run("dequantize", Some(model), &[], "{}")
    }

    /// Says that the model is quantized in a way that tcast does not decode.
    #[must_use]
    pub(crate) fn forcing_codes(self) -> Self {
        self.with(Opt::FORCE_CODES, "{} treats all of its tensors as values")
    }

    /// Says that the tensor consists of blocks, which can only be decoded or quantized again. Any other type could round.
    #[must_use]
    pub(crate) fn in_blocks(self) -> Self {
        self.run("dequantize", None, &[(Opt::TO, "float32")], "to get their values: {}")
    }

    /// Says that the tensors cannot be named as in Hugging Face, but could keep the names of the file.
    #[must_use]
    pub(crate) fn keeping_names(self) -> Self {
        self.with_value(Opt::NAMES, "file", "keep the names of the file with {}")
    }

    /// Says that a model has no form in GGUF that tcast can write, but llama.cpp may have one.
    #[must_use]
    pub(crate) fn not_in_gguf(self) -> Self {
        let say = "make a GGUF with llama.cpp's convert_hf_to_gguf.py, and quantize it: {}";
        self.run("quantize", Some("MODEL.gguf".as_ref()), &[(Opt::SCHEME, "q8_0")], say)
    }

    /// Advises to take the metadata that a language model lacks from a GGUF file of it.
    #[must_use]
    pub(crate) fn with_metadata(self) -> Self {
        self.with_value(Opt::METADATA_FROM, "MODEL.gguf", "add {}, which is any GGUF of the same model")
    }

    /// Advises to add the metadata that a model lacks, which may be one of language or of diffusion.
    #[must_use]
    pub(crate) fn with_keys(self) -> Self {
        self.with(Opt::METADATA_FROM, "for a language model, {} takes the metadata of any GGUF of it")
            .with(Opt::ARCHITECTURE, "{} names the kind of a diffusion model")
    }
}
