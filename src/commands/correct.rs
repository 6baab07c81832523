//! Corrections of a command line: arguments with mistakes, changed until clap accepts them.
//!
//! A mistake has few plausible corrections: a flag by its name in another tool, a value by another name, an output
//! without `-o`, a type without `--to`. Each is tried, and only a command line that parses is proposed. No correction
//! adds a flag that replaces or damages files, unless a typed word asks for this.

use super::foreign::{self, Ours};
use super::{dequantize, quantize};
use crate::cli::{self, Cli, Command as Subcommand};
use crate::container::{by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::quant::Scheme;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Parser};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Minimum similarity of a proposed name to the typed one, from 0 to 1.
const SIMILAR: f64 = 0.9;

/// Flags that replace files or damage weights: no typing error leads to them.
const DESTROYING: [&str; 2] = ["force", "force-codes"];

type Words = Vec<OsString>;

/// Returns the corrected command line, and a second one for a value that can mean two things; empty if that is not
/// clear.
pub(super) fn corrected(error: &clap::Error, arguments: &[OsString]) -> Vec<Words> {
    const MISTAKES: usize = 4;
    let most = if matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) { 2 } else { 1 };
    let lines = edits(error, arguments).into_iter().filter_map(|line| accepted(line, MISTAKES - 1));
    let mut lines: Vec<Words> = lines.take(most).collect();
    lines.dedup();
    lines
}

/// Returns the line without its other mistakes, of which there are at most `mistakes`.
fn accepted(line: Words, mistakes: usize) -> Option<Words> {
    match Cli::try_parse_from(cli::join_saturate(line.clone())) {
        Ok(cli) => is_possible(&cli).then_some(line),
        Err(error) if mistakes > 0 && error.use_stderr() => {
            edits(&error, &line).into_iter().find_map(|line| accepted(line, mistakes - 1))
        }
        Err(_) => None,
    }
}

/// True if the options fit together, as far as that is clear without the input.
fn is_possible(cli: &Cli) -> bool {
    match &cli.command {
        Subcommand::Quantize(args) => {
            args.model.as_deref().is_none_or(can_be_model) && quantize::check_options(args).is_ok()
        }
        Subcommand::Dequantize(args) => dequantize::check(args).is_ok(),
        _ => true,
    }
}

fn can_be_model(path: &Path) -> bool {
    let extension = by_extension(path).map(|container| container.format_info().extension);
    path.is_dir() || extension.is_none_or(|extension| ["safetensors", "onnx"].contains(&extension))
}

/// Returns the flag of a subcommand that is most similar to an unknown one, if it is very similar and destroys nothing.
pub(super) fn similar_flag(subcommand: &Command, typed: &str) -> Option<String> {
    let typed = typed.trim_start_matches('-');
    let longs = subcommand.get_arguments().filter_map(clap::Arg::get_long);
    let likeness = |long: &str| strsim::jaro_winkler(typed, long);
    let near = longs.filter(|long| !DESTROYING.contains(long) && likeness(long) > SIMILAR);
    near.max_by(|a, b| likeness(a).total_cmp(&likeness(b))).map(|long| format!("--{long}"))
}

pub(super) fn is_similar(typed: &str, known: &str) -> bool {
    strsim::jaro_winkler(&foreign::plain(typed), known) > SIMILAR
}

/// Returns a text in the context of an error.
pub(super) fn word(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

/// Command line with its subcommand.
struct TypedLine<'a> {
    line: &'a [OsString],
    /// Position and definition of the subcommand.
    subcommand: Option<(usize, Command)>,
}

impl<'a> TypedLine<'a> {
    fn new(line: &'a [OsString]) -> Self {
        let command = Cli::command();
        let find = |word: &OsString| word.to_str().and_then(|word| command.find_subcommand(word)).cloned();
        let subcommand = line.iter().enumerate().skip(1).find_map(|(at, word)| Some((at, find(word)?)));
        Self { line, subcommand }
    }

    fn name(&self) -> &str {
        self.subcommand.as_ref().map_or("", |(_, command)| command.get_name())
    }

    fn has_flag(&self, long: &str) -> bool {
        let is_it = |arg: &clap::Arg| arg.get_long() == long.strip_prefix("--");
        self.subcommand.as_ref().is_some_and(|(_, command)| command.get_arguments().any(is_it))
    }

    /// True if one of these flags was typed.
    fn has_typed(&self, flags: &[&str]) -> bool {
        let is_flag = |word: &str| {
            flags
                .iter()
                .any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
        };
        self.line.iter().any(|word| word.to_str().is_some_and(is_flag))
    }

    /// Returns the line with other words in place of `count` words.
    fn replaced<W: Into<OsString>>(&self, at: usize, count: usize, words: impl IntoIterator<Item = W>) -> Words {
        let after = &self.line[(at + count).min(self.line.len())..];
        let words = words.into_iter().map(Into::into);
        self.line[..at].iter().cloned().chain(words).chain(after.iter().cloned()).collect()
    }

    fn with<const N: usize>(&self, words: [&str; N]) -> Words {
        self.replaced(self.line.len(), 0, words)
    }

    /// Returns the words after the subcommand that are not flags, with their places.
    fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        let first = self.subcommand.as_ref().map_or(1, |(at, _)| at + 1);
        let words = self.line.iter().enumerate().skip(first);
        words.filter_map(|(at, word)| Some((at, word.to_str()?))).filter(|(_, word)| !word.starts_with('-'))
    }

    fn find(&self, wanted: &str) -> Option<usize> {
        self.line.iter().skip(1).position(|word| word == wanted).map(|at| at + 1)
    }
}

/// Returns the lines with one mistake less: the possible corrections of this error.
fn edits(error: &clap::Error, line: &[OsString]) -> Vec<Words> {
    let typed = TypedLine::new(line);
    let dashes = dashes(&typed);
    if !dashes.is_empty() {
        return dashes;
    }
    let found = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            word(error, ContextKind::InvalidSubcommand).map(|name| subcommand(&typed, name, error))
        }
        ErrorKind::UnknownArgument => {
            word(error, ContextKind::InvalidArg).map(|argument| match argument.strip_prefix('-') {
                Some(_) => flag(&typed, argument),
                None => stray(&typed, argument),
            })
        }
        ErrorKind::MissingRequiredArgument => Some(missing(&typed, error)),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let argument =
                word(error, ContextKind::InvalidArg).and_then(|argument| argument.split([' ', '[', '=']).next());
            argument.zip(word(error, ContextKind::InvalidValue)).map(|(flag, value)| values(&typed, flag, value, error))
        }
        _ => None,
    };
    found.unwrap_or_default()
}

/// Corrects the dash that word processors and web pages make of two hyphens.
fn dashes(typed: &TypedLine) -> Vec<Words> {
    let is_dash = |c| ['\u{2013}', '\u{2014}', '\u{2212}'].contains(&c);
    let dash = typed.words().find(|(_, word)| word.starts_with(is_dash) && !Path::new(word).exists());
    dash.map(|(at, word)| typed.replaced(at, 1, [format!("--{}", word.trim_start_matches(is_dash))]))
        .into_iter()
        .collect()
}

/// Corrects an unknown subcommand.
fn subcommand(typed: &TypedLine, name: &str, error: &clap::Error) -> Vec<Words> {
    let Some(at) = typed.find(name) else { return Vec::new() };
    if name == "tcast" {
        return vec![typed.replaced(at, 1, [""; 0])];
    }
    if let Some(ours) = foreign::subcommand(name) {
        return vec![typed.replaced(at, 1, [ours])];
    }
    if Path::new(name).exists() || by_extension(name.as_ref()).is_some() {
        return begun(typed);
    }
    match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().map(|name| typed.replaced(at, 1, [name])).collect(),
        _ => Vec::new(),
    }
}

/// Returns the line with a subcommand in front: one that needs no other change, or several if there is none.
fn begun(typed: &TypedLine) -> Vec<Words> {
    let lines = ["cast", "quantize", "inspect", "diff", "bitcast"].map(|name| typed.replaced(1, 0, [name]));
    let whole = lines.iter().find(|line| accepted((*line).clone(), 0).is_some()).cloned();
    whole.map_or_else(|| lines.into(), |line| vec![line])
}

/// Corrects a flag that the subcommand lacks.
fn flag(typed: &TypedLine, argument: &str) -> Vec<Words> {
    let is_it = |word: &str| {
        let flag = word.split('=').next().unwrap_or(word);
        flag == argument || !flag.starts_with("--") && flag.starts_with('-') && flag.contains(&argument[1..])
    };
    let Some(at) = typed.line.iter().skip(1).position(|word| word.to_str().is_some_and(is_it)).map(|at| at + 1) else {
        return Vec::new();
    };
    let Some((before, command)) = &typed.subcommand else { return begun(typed) };
    if at < *before {
        let mut line = typed.replaced(*before, 1, [""; 0]);
        line.insert(1, typed.line[*before].clone());
        return vec![line];
    }
    let word = typed.line[at].to_str().unwrap_or(argument);
    let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
    let flag = foreign::plain(flag);
    let long = format!("--{}", flag.trim_start_matches('-'));
    let named = |flag: &str| match value {
        Some(value) => vec![format!("{flag}={value}")],
        None => vec![flag.to_owned()],
    };
    if flag.len() > 2 && typed.has_flag(&long) {
        return vec![typed.replaced(at, 1, named(&long))];
    }
    let by = |ours| match ours {
        Ours::Flag(flag) => Some(typed.replaced(at, 1, named(flag))),
        Ours::Words(words) => Some(typed.replaced(at, 1, words.split(' '))),
        Ours::Pattern(flag) => {
            let name = value.or_else(|| typed.line.get(at + 1)?.to_str())?;
            let pattern = if name.contains('*') { name.to_owned() } else { format!("*{name}*") };
            Some(typed.replaced(at, if value.is_none() { 2 } else { 1 }, [flag, &pattern]))
        }
        Ours::Input => Some(typed.replaced(at, 1, value)),
        Ours::Nothing => Some(typed.replaced(at, 1, [""; 0])),
        Ours::NoValue => Some(typed.replaced(at, if value.is_none() { 2 } else { 1 }, [""; 0])),
        Ours::Advice(_) => None,
    };
    let name = command.get_name();
    let typed_flag = if flag.len() > 2 { &long } else { &flag };
    let mut found = foreign::flags(name, typed_flag).peekable();
    if found.peek().is_some() {
        return found.filter_map(by).collect();
    }
    similar_flag(command, &flag).map(|flag| typed.replaced(at, 1, named(&flag))).into_iter().collect()
}

/// Returns the advice on a flag that the subcommand lacks.
pub(super) fn advice(error: &clap::Error, line: &[OsString]) -> Option<&'static str> {
    let typed = TypedLine::new(line);
    let flag = foreign::plain(word(error, ContextKind::InvalidArg)?);
    if error.kind() == ErrorKind::UnknownArgument && !flag.starts_with('-') {
        let is_model = ["quantize", "dequantize"].contains(&typed.name());
        return is_model.then_some("give one model at a time; -o names the output");
    }
    foreign::flags(typed.name(), &flag).find_map(|ours| if let Ours::Advice(text) = ours { Some(text) } else { None })
}

/// Adds the flag for a word that the subcommand does not take without one.
fn stray(typed: &TypedLine, argument: &str) -> Vec<Words> {
    let Some((_, command)) = &typed.subcommand else { return begun(typed) };
    let last = typed.words().filter(|(_, word)| *word == argument).last();
    let Some((at, word)) = last.filter(|(_, word)| !Path::new(word).exists()) else { return Vec::new() };
    if typed.has_flag("--to") && !typed.has_typed(&["--to"]) && word.parse::<Dtype>().is_ok() {
        return vec![typed.replaced(at, 1, ["--to", word])];
    }
    if command.get_name() == "quantize" && !typed.has_typed(&["--scheme"]) && Scheme::find(word).is_some() {
        return vec![typed.replaced(at, 1, ["--scheme", word])];
    }
    if typed.has_flag("--output") && !typed.has_typed(&["--output", "-o"]) {
        return vec![typed.replaced(at, 1, ["-o", word])];
    }
    Vec::new()
}

/// Adds the flag of a missing argument, if its value was typed without one; otherwise an example.
fn missing(typed: &TypedLine, error: &clap::Error) -> Vec<Words> {
    let is_missing = |flag: &str| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|missing| missing.starts_with(flag)),
        _ => false,
    };
    let is_new = |word: &str| !Path::new(word).exists();
    if is_missing("--to") {
        let dtype = typed.words().skip(1).find(|(_, word)| word.parse::<Dtype>().is_ok() && is_new(word));
        let holds_one = |path: &str| by_extension(path.as_ref()).is_some_and(|found| found.format_info().holds_one);
        return match (dtype, typed.name()) {
            (Some((at, word)), _) => {
                // `to f16`
                let is_joint = |word: &OsString| ["to", "as", "into"].iter().any(|joint| word == joint);
                let joint = usize::from(is_joint(&typed.line[at - 1]) && !Path::new(&typed.line[at - 1]).exists());
                vec![typed.replaced(at - joint, 1 + joint, ["--to", word])]
            }
            (None, "cast") => {
                let is_output = |word: &str| is_new(word) && by_extension(word.as_ref()).is_some();
                let output = typed.words().skip(1).last().filter(|(_, word)| is_output(word));
                let output = output.filter(|_| !typed.has_typed(&["-o", "--output"]));
                let line = output.map_or_else(|| typed.line.to_vec(), |(at, word)| typed.replaced(at, 1, ["-o", word]));
                vec![TypedLine::new(&line).with(["--to", "bfloat16"])]
            }
            (None, "bitcast") if typed.words().all(|(_, word)| holds_one(word)) => vec![typed.with(["--bits"])],
            _ => Vec::new(),
        };
    }
    if is_missing("--output") {
        let output = typed.words().skip(1).last().filter(|(_, word)| is_new(word));
        return match output {
            Some((at, word)) => vec![typed.replaced(at, 1, ["-o", word])],
            None if is_new("common") => vec![typed.with(["-o", "common"])],
            None => Vec::new(),
        };
    }
    if is_missing("--scheme") && !typed.words().next().is_some_and(|(_, model)| is_quantized(model.as_ref())) {
        return vec![typed.with(["--scheme", "fp8"])];
    }
    Vec::new()
}

/// True if the config of a model says that it is quantized.
pub(super) fn is_quantized(model: &Path) -> bool {
    checkpoint::probe(model, 1).is_ok_and(|found| found.quantization().is_ok_and(|method| method.is_some()))
}

/// Corrects a value that a flag does not take.
fn values(typed: &TypedLine, flag: &str, value: &str, error: &clap::Error) -> Vec<Words> {
    let is_flag = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with('-') && !word.contains('='));
    let apart = (2..typed.line.len()).find(|at| typed.line[*at] == value && is_flag(&typed.line[at - 1]));
    let joined = format!("{flag}={value}");
    let joined = || typed.line.iter().position(|word| *word == *joined);
    let Some((at, count)) = apart.map(|at| (at - 1, 2)).or_else(|| Some((joined()?, 1))) else { return Vec::new() };
    let set = |value: &str| typed.replaced(at, count, [flag, value]);
    let without = || typed.replaced(at, count, [""; 0]);
    let mut lines: Vec<Words> = Vec::new();
    let ours = foreign::values(flag, value).iter();
    if ours.clone().any(|ours| ours.is_empty()) && typed.has_typed(&["--scheme"]) {
        return vec![without()];
    }
    lines.extend(ours.filter(|ours| !ours.is_empty()).map(|ours| set(ours)));
    let hyphens = [value.replace('_', "-"), value.replace('-', "_")];
    match flag {
        "--threads" => lines.push(without()),
        "--max-shard-size" if value.ends_with(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']) => {
            lines.push(set(&format!("{value}B")));
        }
        // A file, or a format.
        "--to" if by_extension(value.as_ref()).is_some() => lines.push(typed.replaced(at, count, ["-o", value])),
        "--to" if typed.name() == "cast" && by_extension(format!("x.{value}").as_ref()).is_some() => {
            let output = typed.words().next().map(|(_, input)| Path::new(input).with_extension(value.to_lowercase()));
            let output = output.filter(|output| !output.exists() && !typed.has_typed(&["-o", "--output"]));
            let words = |output: PathBuf| ["--rule".into(), "*=keep".into(), "-o".into(), output.into_os_string()];
            lines.extend(output.map(|output| typed.replaced(at, count, words(output))));
        }
        "--range" => lines.push(set(&value.replace(':', ".."))),
        "--scheme" => lines.extend(hyphens.iter().filter_map(|name| Scheme::find(name)).map(|scheme| set(scheme.name))),
        "--to" | "--from" => {
            let near = value.parse::<Dtype>().err().and_then(|unknown| unknown.only_candidate());
            lines.extend(near.map(|dtype| set(dtype.name())));
        }
        _ => {}
    }
    if flag == "--to"
        && typed.name() == "cast"
        && let Some(scheme) = scheme_in(value)
        && let Some((place, _)) = typed.subcommand
    {
        let mut line = typed.replaced(at, count, ["--scheme", scheme.name]);
        line[place] = "quantize".into();
        lines.push(line);
    }
    if lines.is_empty()
        && let Some(ContextValue::String(known)) = error.get(ContextKind::SuggestedValue)
        && is_similar(value, known)
    {
        lines.push(set(known));
    }
    lines
}

/// Returns the scheme that a value for a type stands for.
pub(super) fn scheme_in(value: &str) -> Option<&'static Scheme> {
    let value = foreign::plain(value);
    let foreign = || foreign::values("--scheme", &value).first().and_then(|name| Scheme::find(name));
    Scheme::find(&value).or_else(|| Scheme::find(&value.replace('-', "_"))).or_else(foreign)
}
