//! Flags that make a GGUF file of a model, for remedies.

use super::typed::{TypedLine, Words};
use crate::cli::Command;
use crate::container::checkpoint::CONFIG;
use crate::container::gguf::metadata::TOKENIZERS;
use crate::dtype::Dtype;
use crate::io::open::is_missing;
use crate::io::output::directory_of;
use crate::options::QuantizeOptions;
use crate::quant::{GGUF, SCHEMES, Scheme};
use crate::text::quoted;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Returns the remedy that makes a GGUF file: flags to add, or to choose in place of the given ones.
pub(super) fn remedy(options: &QuantizeOptions, input: Option<&Path>) -> String {
    let is_of_gguf = |scheme: &Scheme| scheme.layout_names().any(|name| name == GGUF.name);
    let has_other = options.scheme.is_some_and(|scheme| !is_of_gguf(scheme))
        || options.layout.is_some_and(|name| name != GGUF.name);
    format!("{} {}", if has_other { "choose" } else { "add" }, flags(options, input))
}

/// Returns the flags for a scheme of GGUF files. It stands for the scheme of another layout, if there is one.
pub(super) fn flags(options: &QuantizeOptions, input: Option<&Path>) -> String {
    let scheme = match options.scheme {
        Some(scheme) if scheme.layout_names().any(|name| name == GGUF.name) => scheme.name,
        Some(scheme) if !scheme.name.contains('4') => "q8_0",
        _ => "q4_k_m",
    };
    let is_default = SCHEMES.iter().any(|row| row.name == scheme && row.default_layout() == GGUF.name);
    let layout = match options.layout {
        Some(given) if given == GGUF.name => "",
        None if is_default => "",
        _ => " --layout gguf",
    };
    let is_given = options.scheme.is_some_and(|given| given.name == scheme);
    let scheme = if is_given { String::new() } else { format!("--scheme {scheme}") };
    format!("{scheme}{layout}{}", metadata(options, input)).trim_start().to_owned()
}

/// Returns the flag for the layout of GGUF files.
pub(super) fn layout(options: &QuantizeOptions, input: Option<&Path>) -> String {
    format!("--layout {}{}", GGUF.name, metadata(options, input))
}

/// Returns the flag for the metadata that a language model needs, unless it is given.
fn metadata(options: &QuantizeOptions, input: Option<&Path>) -> &'static str {
    input.filter(|_| options.gguf.first_given().is_none()).map_or("", metadata_of)
}

/// True if a command makes a GGUF file of a language model without its metadata.
pub(super) fn lacks_metadata(command: &Command) -> bool {
    let (options, model, is_gguf) = match command {
        Command::Quantize(args) => (&args.options.gguf, args.model.as_ref(), args.options.is_gguf()),
        Command::Cast(args) => {
            let output = args.file.output.as_ref();
            let is_gguf = output.is_some_and(|output| output.extension().is_some_and(|end| end == GGUF.name));
            (&args.options.gguf, args.inputs.first(), is_gguf)
        }
        _ => return false,
    };
    is_gguf && options.first_given().is_none() && model.is_some_and(|model| needs_metadata(model))
}

/// Returns the cast for a scheme that is a type of values, unless the line is about GGUF files, which have these.
pub(super) fn as_cast(command: &Command, typed: &TypedLine) -> Option<Words> {
    let Command::Quantize(args) = command else { return None };
    let options = &args.options;
    let is_of_gguf = options.layout.is_some() || options.gguf.first_given().is_some() || typed.is_of_gguf();
    let to = options.scheme?.name.parse::<Dtype>().ok().filter(|to| to.is_weight() && !is_of_gguf)?;
    let at = typed.value_at("--scheme")?;
    let from = if typed.line[at - 1] == "--scheme" { at - 1 } else { at };
    let line = typed.replaced(from, at - from + 1, ["--to", to.name()]);
    Some(TypedLine::new(&line).replaced(typed.subcommand.as_ref()?.0, 1, ["cast"]))
}

/// Returns the flag for the metadata that a language model needs, after a space; nothing for other models.
fn metadata_of(input: &Path) -> &'static str {
    if needs_metadata(input) { " --metadata-from MODEL.gguf" } else { "" }
}

/// Returns the command that decodes the weights of a model into a GGUF file.
pub(super) fn decoding(model: &Path, to: Option<Dtype>, output: &Path) -> String {
    let scheme = match to {
        Some(Dtype::Float16) => "f16",
        Some(Dtype::Float32) => "f32",
        _ => "bf16",
    };
    format!("tcast quantize {} --scheme {scheme}{} -o {}", quoted(model), metadata_of(model), quoted(output))
}

/// True for a language model without a tokenizer, from which its metadata could be made.
fn needs_metadata(input: &Path) -> bool {
    let folder = if input.is_dir() { input } else { directory_of(input) };
    is_language_model(input) && TOKENIZERS.iter().all(|name| is_missing(&folder.join(name)))
}

/// True for a folder or a file with the config of a language model.
pub(super) fn is_language_model(input: &Path) -> bool {
    let folder = if input.is_dir() { input } else { directory_of(input) };
    let is_gguf = input.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(GGUF.name));
    let config = fs::read(folder.join(CONFIG)).ok().filter(|_| !is_gguf);
    let config = config.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    config.is_some_and(|config| config.get("model_type").is_some())
}
