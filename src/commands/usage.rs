//! Help, version and usage errors: clap's, in the style and with the words of this program.

use super::correct::{advice, corrected, is_similar, similar_flag, word};
use super::fail;
use super::messages::{print_alternative, print_line, print_message, printed};
use super::schemes::{near, offered, scheme_in, similar};
use super::typed::{TypedLine, is_quantized, several_types};
use crate::cli::{self, OVERVIEW};
use crate::container::{ReadOptions, by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::operator::cast::{self, CastAttributes};
use crate::quant::{GGUF, SCHEMES, Scheme};
use crate::text::{command_line, shorten, visible};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Prints help and version on standard output, and usage errors in the program's own style: with the corrected command,
/// if that is clear.
#[must_use]
pub fn usage(mut error: clap::Error, arguments: &[OsString]) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        print_message(OVERVIEW); // nothing was requested, so nothing goes to standard output
        return ExitCode::from(error.exit_code() as u8);
    }
    if !error.use_stderr() {
        return printed(error.print()).map_or_else(|full| fail(&full.into()), |()| ExitCode::SUCCESS);
    }
    let lines = corrected(&error, arguments);
    // A folder that is no model needs no type.
    let folder = arguments.get(2).map(Path::new).filter(|word| word.is_dir());
    let folder = folder.filter(|_| error.kind() == ErrorKind::MissingRequiredArgument);
    if let Some(Err(unreadable)) = folder.map(|folder| checkpoint::probe(folder, &ReadOptions::on(1))) {
        return fail(&unreadable.into());
    }
    let diagnosis = diagnosis(&error, arguments);
    let advice = advice(&error, arguments);
    leave_bad_tips(&mut error, arguments);
    // Typed words are shown, but must not be commands to the terminal.
    let words = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(word) => Some((kind, ContextValue::String(visible(word)))),
        _ => None,
    });
    for (kind, word) in words.collect::<Vec<_>>() {
        error.insert(kind, word);
    }
    let commands: Vec<String> = lines.iter().map(|line| command(line)).collect();
    let Some(remedy) =
        commands.first().map(String::as_str).or(advice).or(diagnosis.as_ref().map(|diagnosis| &*diagnosis.remedy))
    else {
        print_line(format!("tcast: {}", error.render().ansi()).trim_end());
        return ExitCode::from(error.exit_code() as u8);
    };
    let text = error.render().to_string();
    let (head, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut head = head.strip_prefix("error: ").unwrap_or(head).lines().map(|line| line.trim().to_owned());
    let (first, details) = (head.next().unwrap_or_default(), head.collect());
    let described = match diagnosis.as_ref().map(|diagnosis| &diagnosis.message) {
        Some(message) => Error::usage(message.clone()),
        None => Error::usage(first).with_details(details),
    };
    let code = fail(&described.remedy(remedy).into());
    match (&commands[..], diagnosis.as_ref().and_then(|diagnosis| diagnosis.more.as_ref())) {
        (_, Some(more)) => print_alternative(more),
        ([_, second, ..], None) => {
            let is_for_engines = second.starts_with("tcast quantize") && !remedy.starts_with("tcast quantize");
            print_alternative(&format!(
                "or{} {second}",
                if is_for_engines { ", with scales, for engines:" } else { "" }
            ));
        }
        _ => {}
    }
    code
}

fn command(line: &[OsString]) -> String {
    command_line([OsString::from("tcast")].iter().chain(line.iter().skip(1)))
}

/// Better description of an error than clap's.
struct Diagnosis {
    message: String,
    /// Remedy if there is no command.
    remedy: String,
    /// Another possibility.
    more: Option<String>,
}

/// Describes a missing flag, or a value that is not a type.
fn diagnosis(error: &clap::Error, arguments: &[OsString]) -> Option<Diagnosis> {
    let subcommand = arguments.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) if error.kind() == ErrorKind::MissingRequiredArgument => &missing[..],
        _ => &[],
    };
    let of = |message: &str, remedy: &str, more| {
        Some(Diagnosis { message: message.to_owned(), remedy: remedy.to_owned(), more })
    };
    match (subcommand, missing) {
        ("quantize", [scheme]) if scheme.starts_with("--scheme") => {
            let model = arguments.iter().skip(2).map(Path::new).find(|word| word.exists());
            let schemes = offered(model.unwrap_or(Path::new("")));
            let schemes = format!("the schemes are {}", schemes.join(", "));
            if arguments.iter().skip(2).any(|word| Path::new(word).exists() && is_quantized(word.as_ref())) {
                let remedy =
                    "add --layout LAYOUT to keep its values in another layout, or --scheme to quantize it again";
                return of("the model is quantized already: --layout or --scheme is missing", remedy, Some(schemes));
            }
            let of_gguf = ["--metadata-from", "--architecture", "--pre-tokenizer", "--imatrix"];
            let is_of_gguf =
                |word: &OsString| word.to_str().is_some_and(|word| of_gguf.iter().any(|flag| word.starts_with(flag)));
            if arguments.iter().any(is_of_gguf) {
                let has = |scheme: &&Scheme| scheme.layout_names().any(|name| name == GGUF.name);
                let names: Vec<&str> = SCHEMES.iter().filter(has).map(|scheme| scheme.name).collect();
                let more = format!("the schemes of GGUF files are {}", names.join(", "));
                return of("missing --scheme, the type of the quantized weights", "add --scheme q4_k_m", Some(more));
            }
            let more = format!("{schemes}; --layout without --scheme changes the layout of a quantized model");
            let more = Some(more);
            of("missing --scheme, the type of the quantized weights", "add --scheme SCHEME", more)
        }
        ("cast", [to]) if to.starts_with("--to") => {
            let has_type = arguments.iter().any(|word| word.to_str().is_some_and(|word| word.parse::<Dtype>().is_ok()));
            let is_there =
                |word: &OsString| Path::new(word).exists() || word.to_str().is_some_and(|word| word.starts_with('-'));
            if arguments.iter().any(|word| word.to_str().is_some_and(|word| word.starts_with("--opset"))) {
                let remedy =
                    "add --to DTYPE; onnx.version_converter of the Python package onnx changes a model's opset";
                return of("--to <DTYPE> is missing: --opset only chooses the rules of the cast", remedy, None);
            }
            if TypedLine::new(arguments).changes_contents() {
                let remedy = "add -o OUT, or --to DTYPE";
                return of("--to <DTYPE> or -o <OUT> is missing: a type, or the name of the output", remedy, None);
            }
            let more = (!has_type && arguments.iter().skip(2).all(is_there)).then(|| {
                "tcast cast --help lists the types; to change only the format, name the output with -o".to_owned()
            });
            of("--to <DTYPE> is missing: the type to convert to", "add --to DTYPE", more)
        }
        _ => {
            let argument = word(error, ContextKind::InvalidArg)?;
            let value = word(error, ContextKind::InvalidValue)?;
            let unknown = || {
                let unknown = value.parse::<Dtype>().err().filter(|_| subcommand == "cast")?;
                Some((unknown.among(&targets())?, LISTED.to_owned()))
            };
            let alike = || Some(("no type or scheme has this name".to_owned(), similar(value)?));
            let near = || match &near(value)[..] {
                [] => "tcast quantize --help describes the schemes".to_owned(),
                names => format!("similar: {}", names.join(", ")),
            };
            let (what, remedy) = match argument.split_once(' ')?.0 {
                "--to" => {
                    let known = no_type(subcommand, value).map(|(what, remedy)| (what.to_owned(), remedy.to_owned()));
                    known.or_else(alike).or_else(unknown)?
                }
                "--scheme" => ("no scheme has this name".to_owned(), near()),
                _ => return None,
            };
            of(&format!("invalid value '{}' for '{argument}': {what}", shorten(value)), &remedy, None)
        }
    }
}

/// The remedy for a spelling that no type has.
const LISTED: &str = "tcast cast --help describes other spellings";

/// Returns the types that a cast has as its target.
fn targets() -> Vec<Dtype> {
    let is_target = |dtype: &Dtype| cast::check(Dtype::Float32, *dtype, &CastAttributes::default()).is_ok();
    Dtype::all().filter(is_target).collect()
}

/// Describes a value that is not a type, and the remedy if there is no command.
fn no_type(subcommand: &str, value: &str) -> Option<(&'static str, &'static str)> {
    let is_ambiguous = value.parse::<Dtype>().is_err_and(|unknown| unknown.is_ambiguous());
    if subcommand == "dequantize" {
        let remedy = "decode to one of these; tcast cast converts the result";
        Some(("weights are decoded to bfloat16, float16 or float32", remedy))
    } else if several_types(value).is_some() {
        Some(("tcast casts to one type at a time", "run a command for each type, with an output of its own"))
    } else if by_extension(value.as_ref()).is_some() {
        Some(("it is a file, not a type", "name the output with -o"))
    } else if by_extension(format!("x.{value}").as_ref()).is_some() {
        Some(("it is a file format, not a type", "the extension of the output selects the format: -o"))
    } else {
        let what = "it is a scheme of quantization, not a type";
        let remedy = "tcast quantize writes such weights with their scales";
        scheme_in(value).filter(|_| !is_ambiguous).map(|_| (what, remedy))
    }
}

/// Removes clap's tips that could lead astray: flags and values that only look a little alike, and flags that destroy.
fn leave_bad_tips(error: &mut clap::Error, arguments: &[OsString]) {
    let command = cli::command();
    let subcommand = arguments.iter().skip(1).find_map(|word| command.find_subcommand(word.to_str()?));
    let near = word(error, ContextKind::InvalidArg).zip(subcommand);
    let near = near.and_then(|(typed, subcommand)| similar_flag(subcommand, typed));
    if error.remove(ContextKind::SuggestedArg).is_some()
        && let Some(near) = near
    {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(near));
    }
    let typed = word(error, ContextKind::InvalidValue).map(str::to_owned);
    if let (Some(typed), Some(ContextValue::String(value))) = (typed, error.get(ContextKind::SuggestedValue))
        && !is_similar(&typed, value)
    {
        error.remove(ContextKind::SuggestedValue);
    }
    // clap proposes to pass an unknown flag as a value: no value begins with a dash.
    if let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) {
        tips.retain(|tip| !tip.to_string().starts_with("to pass '"));
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
}
