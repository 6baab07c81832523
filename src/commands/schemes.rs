//! Schemes to name in messages: the schemes that fit an input, and the scheme that a word of another tool stands for.

use super::foreign;
use crate::container::by_extension;
use crate::quant::{GGUF, SCHEMES, Scheme};
use std::path::Path;

/// True if the format of an input can store a scheme: an ONNX model has a few.
pub(super) fn fits(scheme: &Scheme, input: &Path) -> bool {
    let is_model = by_extension(input).is_some_and(|format| format.format_info().is_changed_only());
    input.is_dir() || !is_model || scheme.in_model.is_some()
}

/// Returns the names of the schemes that a message lists for an input: all that fit, or those of GGUF files for one.
pub(super) fn offered(input: &Path) -> Vec<&'static str> {
    let is_gguf = input.extension().is_some_and(|extension| extension == GGUF.name);
    let is_offered = |scheme: &&Scheme| {
        if is_gguf { scheme.layout_names().any(|name| name == GGUF.name) } else { fits(scheme, input) }
    };
    SCHEMES.iter().filter(is_offered).map(|scheme| scheme.name).collect()
}

/// Returns a scheme for an input that every engine of its format runs.
pub(super) fn example(input: &Path) -> &'static str {
    let extension = by_extension(input).filter(|_| !input.is_dir()).map(|format| format.format_info().extension);
    match extension {
        Some("onnx") => "int8",                              // of any opset
        Some(extension) if extension == GGUF.name => "q8_0", // of any shape
        _ => "fp8",
    }
}

/// Returns the scheme that a value for a type stands for.
pub(super) fn scheme_in(value: &str) -> Option<&'static Scheme> {
    let value = foreign::plain(value);
    let foreign = || foreign::values("--scheme", &value).first().and_then(|name| Scheme::find(name));
    Scheme::find(&value).or_else(|| Scheme::find(&value.replace('-', "_"))).or_else(foreign)
}
