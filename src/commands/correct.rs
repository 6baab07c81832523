//! Corrections of a command line: arguments with mistakes, changed until clap accepts them.
//!
//! A mistake has few plausible corrections: a flag by its name in another tool, a value by another name, an output
//! without `-o`, a type without `--to`. Each is tried, and only a command line that parses is proposed. No correction
//! adds a flag that replaces or damages files, unless a typed word asks for this.

use super::foreign::{self, Ours};
use super::omitted::{ANY_TYPE, missing, stray, with_output};
use super::schemes::{fits, flags, near, schemes_in};
use super::typed::{TypedLine, Words, free, is_new, several_types};
use super::{dequantize, into_gguf, quantize};
use crate::cli::{self, Cli, Command as Subcommand};
use crate::container::{ReadOptions, WrittenFiles, by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::quant::{GGUF, MLX};
use crate::read::Model;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Minimum similarity of a proposed name to the typed one, from 0 to 1.
const SIMILAR: f64 = 0.9;

/// Flags that replace files or damage weights, and the question after a typing error: no command has them unasked.
const DESTROYING: [(&str, &str); 2] = [
    ("force", "did you mean '--force'? It replaces an output that exists"),
    ("force-codes", "did you mean '--force-codes'? It casts the codes of quantized weights as numbers"),
];

/// Returns the corrected command line, and a second one for a value that can mean two things; empty if that is not
/// clear.
pub(super) fn corrected(error: &clap::Error, arguments: &[OsString]) -> Vec<Words> {
    const MISTAKES: usize = 8;
    let most = if matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) { 2 } else { 1 };
    let lines = edits(error, arguments).into_iter().filter_map(|line| accepted(line, MISTAKES - 1));
    let mut lines: Vec<Words> = lines.take(most).collect();
    lines.dedup();
    lines
}

/// Returns the line without its other mistakes, of which there are at most `mistakes`.
fn accepted(line: Words, mistakes: usize) -> Option<Words> {
    match Cli::parsed(&cli::join_saturate(line.clone())).and_then(Cli::checked) {
        Ok(cli) => {
            let typed = TypedLine::new(&line);
            if let (Subcommand::Cast(args), Some((at, _)), true) = (&cli.command, &typed.subcommand, mistakes > 0) {
                let named = with_output(&typed);
                if named != line {
                    return accepted(named, mistakes - 1);
                }
                // A cast would take codes for values.
                let is_cast = args.options.targets().next().is_some();
                let is_gguf = |path: &PathBuf| path.extension().is_some_and(|end| end == GGUF.name);
                let is_copied = args.file.output.as_ref().is_some_and(is_gguf);
                let needs_values = |input: &PathBuf| is_cast || is_gguf(input) && !is_copied;
                if args.inputs.iter().any(|input| needs_values(input) && is_coded(input)) && !args.options.force_codes {
                    return accepted(typed.replaced(*at, 1, ["dequantize"]), mistakes - 1);
                }
            }
            if let (Some(cast), true) = (into_gguf::as_cast(&cli.command, &typed), mistakes > 0) {
                return accepted(cast, mistakes - 1);
            }
            let lacks_metadata = into_gguf::lacks_metadata(&cli.command);
            let whole = if lacks_metadata { typed.with(["--metadata-from", "MODEL.gguf"]) } else { line.clone() };
            is_possible(&cli).then_some(whole)
        }
        Err(_) if line.ends_with(&ANY_TYPE.map(OsString::from)) => Some(line),
        Err(error) if !error.use_stderr() => Some(line), // help, or the version
        Err(error) if mistakes > 0 => edits(&error, &line).into_iter().find_map(|line| accepted(line, mistakes - 1)),
        Err(_) => None,
    }
}

/// True if the options fit together, as far as that is clear without the input.
fn is_possible(cli: &Cli) -> bool {
    match &cli.command {
        Subcommand::Quantize(args) => {
            let is_stored = |model: &Path| args.schemes().all(|scheme| fits(scheme, model));
            args.model.as_deref().is_none_or(|model| can_be_model(model) && is_stored(model))
                && quantize::check_options(args).is_ok()
        }
        Subcommand::Dequantize(args) => dequantize::check(args).is_ok(),
        Subcommand::Cast(args) => {
            let are_there = args.inputs.len() < 2 || args.inputs.iter().all(|input| input.exists());
            are_there
                && args.file.output.as_deref().and_then(by_extension).is_none_or(|format| {
                    let writing = format.format_info().writing;
                    writing != WrittenFiles::Never
                })
        }
        _ => true,
    }
}

/// True if a file can hold several tensors.
fn can_be_model(path: &Path) -> bool {
    path.is_dir() || by_extension(path).is_none_or(|container| !container.format_info().holds_one)
}

/// Returns the flag of a subcommand that is most similar to an unknown one, if it is very similar and destroys nothing.
pub(super) fn similar_flag(subcommand: &Command, typed: &str) -> Option<String> {
    let longs = subcommand
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .filter(|long| DESTROYING.iter().all(|(destroying, _)| long != destroying));
    nearest(typed.trim_start_matches('-'), longs).map(|long| format!("--{long}"))
}

/// Returns the name that is most similar to a typed one, if it is very similar.
fn nearest<'n>(typed: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = names.map(|name| (strsim::jaro_winkler(typed, name), name)).filter(|(likeness, _)| *likeness > SIMILAR);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

/// True if a value is spelt almost like a known one. Numbers of bits are no matter of spelling.
pub(super) fn is_similar(typed: &str, known: &str) -> bool {
    let digits = |word: &str| word.chars().filter(char::is_ascii_digit).collect::<String>();
    digits(typed) == digits(known) && strsim::jaro_winkler(&foreign::plain(typed), known) > SIMILAR
}

/// Returns a text in the context of an error.
pub(super) fn word(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

/// Returns the lines with one mistake less: the possible corrections of this error.
fn edits(error: &clap::Error, line: &[OsString]) -> Vec<Words> {
    let typed = TypedLine::new(line);
    let of_kind = || match error.kind() {
        ErrorKind::InvalidSubcommand => subcommand(&typed, word(error, ContextKind::InvalidSubcommand)?),
        ErrorKind::UnknownArgument => match word(error, ContextKind::InvalidArg)? {
            argument if argument.starts_with('-') => flag(&typed, argument),
            _ if typed.subcommand.is_none() => Some(begun(&typed)),
            argument => stray(&typed, argument),
        },
        ErrorKind::MissingRequiredArgument => missing(&typed, error),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let flag = word(error, ContextKind::InvalidArg)?.split([' ', '[', '=']).next()?;
            values(&typed, flag, word(error, ContextKind::InvalidValue)?, error)
        }
        _ => None,
    };
    dash(&typed).or_else(|| file(&typed)).or_else(|| switch(&typed)).or_else(of_kind).unwrap_or_default()
}

/// Corrects the name of a file that begins with a dash.
fn file(typed: &TypedLine) -> Option<Vec<Words>> {
    let is_file = |word: &str| word.starts_with('-') && word.len() > 1 && !is_new(word);
    typed.find(is_file)?;
    let path = |word: &OsString| match word.to_str() {
        Some(text) if is_file(text) => format!("./{text}").into(),
        _ => word.clone(),
    };
    Some(vec![typed.line.iter().map(path).collect()])
}

/// Corrects the subcommand of another tool that a switch turns into another one.
fn switch(typed: &TypedLine) -> Option<Vec<Words>> {
    let (at, name) = (1, typed.line.get(1)?.to_str()?);
    let switch = foreign::SWITCHES.iter().find(|switch| {
        let has = |words: &str| typed.has_typed(&words.split(' ').collect::<Vec<_>>());
        has(switch.marks) && has(switch.switches) && switch.subcommands.split(' ').any(|word| word == name)
    })?;
    let mut line = typed.replaced(at, 1, [switch.subcommand]);
    let is_bare = |word: &OsString| word.to_str().is_some_and(|word| switch.bare.split(' ').any(|bare| bare == word));
    line.retain(|word| !is_bare(word));
    if !typed.has_typed(switch.schemes) {
        line.extend(switch.default.iter().map(OsString::from));
    }
    Some(vec![line])
}

/// Corrects the dash that word processors and web pages make of two hyphens.
fn dash(typed: &TypedLine) -> Option<Vec<Words>> {
    let is_dash = |c| ['\u{2013}', '\u{2014}', '\u{2212}'].contains(&c);
    let (at, word) = typed.words().find(|(_, word)| word.starts_with(is_dash) && is_new(word))?;
    Some(vec![typed.replaced(at, 1, [format!("--{}", word.trim_start_matches(is_dash))])])
}

/// Corrects an unknown subcommand.
fn subcommand(typed: &TypedLine, name: &str) -> Option<Vec<Words>> {
    let at = typed.find(|word| word == name)?;
    if name == "tcast" {
        return Some(vec![typed.without(at, 1)]);
    }
    match foreign::subcommand(name) {
        Some(Ours::Words(words)) => {
            let (ours, flags) = words.split_once(' ').unwrap_or((words, ""));
            let is_given = flags.split(' ').any(|flag| typed.has_typed(&[flag]));
            let flags = flags.split(' ').filter(|flag| !flag.is_empty() && !is_given);
            return Some(vec![typed.replaced(at, 1, [ours].into_iter().chain(flags))]);
        }
        Some(Ours::Adapter(flag)) => return Some(merging(typed, at, flag)),
        Some(_) => return None, // there is advice
        None => {}
    }
    if !is_new(name) || by_extension(name.as_ref()).is_some() {
        return Some(begun(typed));
    }
    // Only the nearest: `quantze` is not `dequantize`.
    let command = cli::command();
    let near = nearest(&foreign::plain(name), command.get_subcommands().map(Command::get_name));
    near.map(|near| vec![typed.replaced(at, 1, [near])])
}

/// Returns the line with `cast`, and with a flag before each adapter, or one file as the output of a folder of shards. A
/// cast does not merge several models.
fn merging(typed: &TypedLine, at: usize, flag: &str) -> Vec<Words> {
    let line = typed.replaced(at, 1, ["cast"]);
    let typed = TypedLine::new(&line);
    let (adapters, others): (Vec<_>, Vec<_>) = typed.inputs().partition(|(_, word)| is_adapter(word));
    match others[..] {
        [(_, folder)] if adapters.is_empty() && !typed.has_output() && Path::new(folder).is_dir() => {
            let file = free(Path::new(&format!("{}.safetensors", folder.trim_end_matches('/'))));
            return vec![typed.replaced(line.len(), 0, ["-o".into(), file.into_os_string()])];
        }
        _ if others.iter().filter(|(_, word)| !is_new(word)).count() > 1 => return Vec::new(),
        _ => {}
    }
    let with_flag = |(at, word): (usize, &OsString)| {
        let flag = adapters.iter().any(|(of, _)| *of == at).then(|| flag.into());
        flag.into_iter().chain([word.clone()]).collect::<Words>()
    };
    vec![line.iter().enumerate().flat_map(with_flag).collect()]
}

/// True if a file or a folder is an adapter, such as `LoRA`.
fn is_adapter(path: &str) -> bool {
    checkpoint::probe(path.as_ref(), &ReadOptions::on(1)).is_ok_and(|found| found.update_of_other_model().is_some())
}

/// Returns the line with a subcommand in front: one that needs no other change, or several if there is none.
fn begun(typed: &TypedLine) -> Vec<Words> {
    let lines = ["cast", "quantize", "inspect", "diff", "bitcast"].map(|name| typed.replaced(1, 0, [name]));
    let whole = lines.iter().find(|line| accepted((*line).clone(), 0).is_some()).cloned();
    whole.map_or_else(|| lines.into(), |line| vec![line])
}

/// Corrects a flag that the subcommand lacks.
fn flag(typed: &TypedLine, argument: &str) -> Option<Vec<Words>> {
    // Only alone, `-v` is not about messages.
    let is_alone = typed.line.len() == 2 && (argument == "-v" || is_similar(argument.trim_matches('-'), "version"));
    if is_alone || ["-V", "--version"].contains(&argument) {
        return Some(vec![vec![typed.line[0].clone(), "--version".into()]]);
    }
    let at = typed.find(|word| {
        let flag = word.split('=').next().unwrap_or(word);
        flag == argument || !flag.starts_with("--") && flag.starts_with('-') && flag.contains(&argument[1..])
    })?;
    let Some((before, command)) = &typed.subcommand else { return Some(begun(typed)) };
    if at < *before {
        let mut line = typed.without(*before, 1);
        line.insert(1, typed.line[*before].clone());
        return Some(vec![line]);
    }
    let word = typed.line[at].to_str()?;
    let (flag, value) = word.split_once('=').map_or((word, None), |(flag, value)| (flag, Some(value)));
    let count = if value.is_none() { 2 } else { 1 };
    let flag = foreign::plain(flag);
    let long = format!("--{}", flag.trim_start_matches('-'));
    let named = |flag: &str| {
        let word = value.map_or_else(|| flag.to_owned(), |value| format!("{flag}={value}"));
        typed.replaced(at, 1, [word])
    };
    if flag.len() > 2 && typed.has_flag(&long) {
        return Some(vec![named(&long)]);
    }
    let next = typed.line.get(at + 1).and_then(|word| word.to_str()).filter(|word| !word.starts_with('-'));
    let given = value.or(next);
    // `--sym false` is `--no-sym`.
    let row = |flag: &str| foreign::flags(command.get_name(), flag).next();
    match given.map(str::to_lowercase).as_deref() {
        Some("true") if row(&long).is_some() => return Some(vec![typed.replaced(at, count, [long])]),
        Some("false") if row(&long).is_some() => {
            let negative = long.replacen("--", "--no-", 1);
            return Some(vec![typed.replaced(at, count, row(&negative).map(|_| negative))]);
        }
        _ => {}
    }
    let is_file = |word: &str| !is_new(word) || by_extension(word.as_ref()).is_some();
    let by = |ours| match ours {
        Ours::Flag(flag) => Some(named(flag)),
        Ours::Prefixed(flag, prefix) => Some(typed.replaced(at, count, [flag, &format!("{prefix}{}", given?)])),
        Ours::Words(words) if typed.has_words(words) => Some(typed.without(at, 1)), // said twice
        Ours::Words(words) => Some(typed.replaced(at, 1, words.split(' '))),
        Ours::Rule(name) => Some(typed.replaced(at, count, ["--rule".to_owned(), format!("{name}={}", given?)])),
        Ours::Rules => {
            let (name, scheme) = given?.split_once('=')?;
            let rules = foreign::patterns(name).flat_map(|glob| ["--rule".to_owned(), format!("{glob}={scheme}")]);
            Some(typed.replaced(at, count, rules))
        }
        Ours::Pattern(flag) => {
            let flags = foreign::patterns(given?).flat_map(|pattern| [flag.to_owned(), pattern]);
            Some(typed.replaced(at, count, flags))
        }
        Ours::DryRun(name) => {
            let mut line = typed.with(["--dry-run"]);
            line[*before] = name.into();
            typed.words().any(|(_, word)| Path::new(word).extension().is_some_and(|end| end == "gguf")).then_some(line)
        }
        Ours::As(name) => Some(typed.replaced(*before, 1, [name])),
        // The ending of the scheme says the same.
        Ours::Ending(end) => match typed.value_at("--scheme") {
            Some(scheme) => {
                let mut line = typed.line.to_vec();
                line[scheme].push(format!("-{end}"));
                line.remove(at);
                Some(line)
            }
            None => (end == "sym").then(|| typed.without(at, 1)),
        },
        Ours::Input => Some(typed.replaced(at, 1, value)),
        // The next word is a value of the flag, unless it is a file.
        Ours::Nothing if next.is_some_and(|word| !is_file(word)) => Some(typed.without(at, count)),
        Ours::Nothing => Some(typed.without(at, 1)),
        Ours::NoValue if typed.lacks(&["--to"]) && given.is_some_and(|word| word.parse::<Dtype>().is_ok()) => {
            Some(typed.replaced(at, count, ["--to", given?]))
        }
        Ours::NoValue => Some(typed.without(at, count)),
        Ours::Default(words) => foreign::is_default(words, given?).then(|| typed.without(at, count)),
        Ours::Adapter(flag) => is_adapter(given?).then(|| named(flag)),
        Ours::Advice(_) => None,
    };
    let mut ours = foreign::flags(command.get_name(), if flag.len() > 2 { &long } else { &flag }).peekable();
    if ours.peek().is_some() {
        return Some(ours.filter_map(by).collect());
    }
    similar_flag(command, &flag).map(|flag| vec![named(&flag)])
}

/// Returns the advice on a subcommand of other tools, or on a flag that the subcommand lacks.
pub(super) fn advice(error: &clap::Error, line: &[OsString]) -> Option<&'static str> {
    let typed = TypedLine::new(line);
    let advice = |ours| if let Ours::Advice(text) = ours { Some(text) } else { None };
    if let Some(name) = word(error, ContextKind::InvalidSubcommand) {
        return foreign::subcommand(name).and_then(advice);
    }
    let flag = foreign::plain(word(error, ContextKind::InvalidArg)?);
    if error.kind() == ErrorKind::UnknownArgument && !flag.starts_with('-') {
        let is_model = ["quantize", "dequantize"].contains(&typed.name());
        let holds_one = |(_, input): (usize, &str)| {
            by_extension(input.as_ref()).is_some_and(|format| format.format_info().holds_one)
        };
        return match is_model {
            true if typed.inputs().next().is_some_and(holds_one) => Some("a file of one array is no model"),
            is_model => is_model.then_some("give one model at a time; -o names the output"),
        };
    }
    let question = || {
        let near = nearest(flag.trim_start_matches('-'), DESTROYING.iter().map(|(long, _)| *long))?;
        DESTROYING.iter().find(|(long, _)| *long == near && typed.has_flag(&format!("--{long}"))).map(|(_, text)| *text)
    };
    foreign::flags(typed.name(), &flag).find_map(advice).or_else(question)
}

/// True if a file or a model contains weights that are stored as codes.
fn is_coded(input: &Path) -> bool {
    let Ok(found) = checkpoint::probe(input, &ReadOptions::on(1)) else { return false };
    Model::open(&found).is_ok_and(|model| !model.found.weights.is_empty())
}

/// Returns the name of a format without a dot, in lower case.
fn bare(value: &str) -> String {
    value.trim_start_matches('.').to_lowercase()
}

/// Corrects a value that a flag does not take.
fn values(typed: &TypedLine, flag: &str, value: &str, error: &clap::Error) -> Option<Vec<Words>> {
    let is_flag = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with('-') && !word.contains('='));
    let apart = (2..typed.line.len()).find(|at| typed.line[*at] == value && is_flag(&typed.line[at - 1]));
    let joined = || typed.find(|word| word.split_once('=') == Some((flag, value)));
    let (at, count) = apart.map(|at| (at - 1, 2)).or_else(|| Some((joined()?, 1)))?;
    let set = |value: &str| typed.replaced(at, count, [flag, value]);
    let mut lines: Vec<Words> = Vec::new();
    let ours = foreign::values(flag, value).iter();
    if ours.clone().any(|ours| ours.is_empty()) && typed.has_typed(&["--scheme"]) {
        return Some(vec![typed.without(at, count)]);
    }
    if flag == "--scheme" {
        if let Some(scheme) = typed.blocks(value) {
            return Some(vec![set(scheme.name)]);
        }
        lines.extend(foreign::affine(value, typed.words().any(|(_, word)| word == MLX)).map(|scheme| set(&scheme)));
        lines.extend(schemes_in(value).into_iter().map(|scheme| typed.replaced(at, count, flags(scheme, value))));
    } else {
        lines.extend(ours.filter(|ours| !ours.is_empty()).map(|ours| set(ours)));
    }
    match flag {
        "--threads" => lines.push(typed.without(at, count)),
        "--max-shard-size" if value.ends_with(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']) => {
            lines.push(set(&format!("{value}B")));
        }
        // A file, or a format.
        "--to" if by_extension(value.as_ref()).is_some() && !value.starts_with('.') => {
            let line = typed.replaced(at, count, ["-o", value]);
            let typed = TypedLine::new(&line);
            let is_complete = typed.name() != "cast" || typed.changes_format();
            lines.push(if is_complete { line } else { typed.with(ANY_TYPE) });
        }
        "--to" if typed.name() == "cast" && by_extension(format!("x.{}", bare(value)).as_ref()).is_some() => {
            let output = typed.inputs().next().map(|(_, input)| Path::new(input).with_extension(bare(value)));
            let output = output.map(|output| free(&output)).filter(|_| !typed.has_typed(&["-o", "--output"]));
            let line = |output: PathBuf| typed.replaced(at, count, ["-o".into(), output.into_os_string()]);
            lines.extend(output.map(line).filter(|line| TypedLine::new(line).changes_format()));
        }
        "--rule" => {
            let means_keep = |target| foreign::means_keep(&foreign::plain(target)) || is_similar(target, "keep");
            let kept = value.rsplit_once('=').filter(|(_, target)| means_keep(target));
            lines.extend(kept.map(|(pattern, _)| set(&format!("{pattern}=keep"))));
        }
        // As other programs write it.
        "--lora" => {
            lines.extend(value.rsplit_once(':').map(|(adapter, strength)| set(&format!("{adapter}={strength}"))));
        }
        "--range" => lines.push(set(&value.replace(':', ".."))),
        "--to" | "--from" => {
            let near = value.parse::<Dtype>().err().and_then(|unknown| unknown.only_candidate());
            // A type of few bits needs scales: only its exact name is a wish to go without.
            let near = near.filter(|dtype| flag == "--from" || dtype.bits() > 8);
            lines.extend(near.map(|dtype| set(dtype.name())));
        }
        _ => {}
    }
    if flag == "--to" && ["cast", "dequantize"].contains(&typed.name()) {
        if let Some(types) = several_types(value) {
            // They would have one output.
            return (!typed.has_output()).then(|| types.into_iter().map(set).collect());
        }
        let model = typed.inputs().next().map(|(_, input)| Path::new(input));
        let is_of_gguf = typed.is_of_gguf() || model.is_some_and(into_gguf::is_language_model);
        for scheme in typed.schemes(value).into_iter().filter(|scheme| !scheme.layouts.is_empty() || is_of_gguf) {
            let mut line = typed.replaced(at, count, flags(scheme, value));
            line[typed.subcommand.as_ref()?.0] = "quantize".into();
            lines.push(line);
        }
    }
    // An ending such as `-asym` is no typing error.
    if let ("--scheme", [], [near], None) =
        (flag, &lines[..], &near(value)[..], foreign::ending(&foreign::plain(value)))
    {
        lines.push(set(near));
    }
    if lines.is_empty()
        && let Some(ContextValue::String(known)) = error.get(ContextKind::SuggestedValue)
        && is_similar(value, known)
    {
        lines.push(set(known));
    }
    Some(lines)
}
