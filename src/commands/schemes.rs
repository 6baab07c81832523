//! Schemes to name in messages: the schemes that fit an input, and the scheme that a word of another tool stands for.

use super::{foreign, unmatched};
use crate::container::by_extension;
use crate::quant::{CodeType, GGUF, SCHEMES, Scheme, TargetGrid};
use std::path::Path;

/// True if the format of an input can store a scheme: an ONNX model has a few.
pub(super) fn fits(scheme: &Scheme, input: &Path) -> bool {
    let is_model = by_extension(input).is_some_and(|format| format.format_info().is_changed_only());
    input.is_dir() || !is_model || !scheme.in_model.is_empty()
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
    schemes_in(value).first().copied()
}

/// Returns the schemes that a value can stand for: `int4-asym` for `int4_asym_g128`.
pub(super) fn schemes_in(value: &str) -> Vec<&'static Scheme> {
    let value = foreign::plain(value);
    if let Some(scheme) = Scheme::find(&value).or_else(|| Scheme::find(&value.replace('-', "_"))) {
        return vec![scheme];
    }
    let known: Vec<_> = foreign::values("--scheme", &value).iter().filter_map(|name| Scheme::find(name)).collect();
    let Some((base, fits)) = foreign::ending(&value).filter(|_| known.is_empty()) else { return known };
    let of_base = schemes_in(base);
    let fits = |scheme: &&'static Scheme| grid(scheme).is_some_and(fits);
    if of_base.iter().any(fits) {
        return of_base.into_iter().filter(fits).collect();
    }
    // The same with zero points, or without them.
    let other = |name: &str| name.strip_suffix("-asym").map_or_else(|| format!("{name}-asym"), str::to_owned);
    of_base.into_iter().filter_map(|scheme| Scheme::find(&other(scheme.name))).filter(fits).collect()
}

/// Returns the grid of a scheme in its default layout, unless that is of blocks.
fn grid(scheme: &Scheme) -> Option<TargetGrid> {
    scheme.layouts.first().map(|layout| layout.grid)
}

/// Returns the flags for a scheme, with the size of groups that the value names.
pub(super) fn flags(scheme: &Scheme, value: &str) -> Vec<String> {
    let size = foreign::group_size(value).filter(|_| scheme.has_group_size());
    let size = size.into_iter().flat_map(|size| ["--group-size".to_owned(), size.to_owned()]);
    ["--scheme", scheme.name].map(str::to_owned).into_iter().chain(size).collect()
}

/// Returns the names of schemes that are spelt almost like a value. Numbers of bits are no matter of spelling.
pub(super) fn near(value: &str) -> Vec<&'static str> {
    let digits = |word: &str| word.chars().filter(char::is_ascii_digit).collect::<String>();
    let (value, of_value) = (foreign::plain(value), digits(value));
    let is_possible = |name: &&str| of_value.is_empty() || digits(name) == of_value;
    let names: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.name).filter(is_possible).collect();
    unmatched::near(&value.replace('-', "_"), &names)
}

/// Describes the schemes that are similar to a name that begins with a scheme's: those with the same kind of codes.
pub(super) fn similar(value: &str) -> Option<String> {
    let value = foreign::plain(value);
    let base = value.rmatch_indices('-').find_map(|(at, _)| scheme_in(&value[..at]).and_then(grid))?;
    let kind = |grid: TargetGrid| (grid.codes.bits(), matches!(grid.codes, CodeType::Float(_)));
    let alike = SCHEMES.iter().filter(|scheme| grid(scheme).is_some_and(|grid| kind(grid) == kind(base)));
    let described: Vec<String> = alike.map(|scheme| format!("{} ({})", scheme.name, scheme.summary)).collect();
    Some(format!("tcast quantize has these schemes: {}", described.join(", ")))
}
