//! Corrections of a command line without a flag: words that need one, and flags that are missing.

use super::foreign;
use super::schemes::{example, flags, scheme_in};
use super::typed::{TypedLine, Words, is_new, is_quantized};
use crate::container::{ReadOptions, by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::options::Defect;
use crate::quant::{SCHEMES, Scheme};
use clap::error::{ContextKind, ContextValue};
use std::path::Path;

/// The end of a line whose type is for the user to say.
pub(super) const ANY_TYPE: [&str; 2] = ["--to", "DTYPE"];

/// Adds the flag for a word that the subcommand does not take without one.
pub(super) fn stray(typed: &TypedLine, argument: &str) -> Option<Vec<Words>> {
    let (at, word) = typed.inputs().filter(|(_, word)| *word == argument).last()?;
    let (first_at, first) = typed.inputs().next()?;
    if !is_new(word) {
        // `quantize fp8 llama`
        let is_scheme = is_new(first) && typed.lacks(&["--scheme", "--compare"]) && scheme_in(first).is_some();
        return is_scheme.then(|| vec![typed.replaced(first_at, 1, ["--scheme", first])]);
    }
    // A name with a space, and without quotes.
    if let Some(joint) =
        typed.line[at - 1].to_str().map(|before| format!("{before} {word}")).filter(|joint| !is_new(joint))
    {
        return Some(vec![typed.replaced(at - 1, 2, [joint])]);
    }
    let follows_pattern = ["--exclude", "--include"].iter().any(|flag| at > 1 && typed.line[at - 2] == *flag);
    let is_pattern = word.contains('*') || follows_pattern && is_in_names(first.as_ref(), word);
    let pattern = is_pattern.then(|| typed.last_of(&["--exclude", "--include", "--rule"], at));
    let number = word.parse::<u32>().ok().filter(|_| typed.is_of_gguf() && typed.lacks(&["--scheme", "--compare"]));
    if typed.name() == "quantize" && number.is_some() {
        // llama-quantize takes the numbers of its types. Two have the numbers of mixes, which stand last.
        let is_it = |scheme: &&Scheme| scheme.gguf.as_ref().is_some_and(|gguf| gguf.file_type == number);
        return Some(vec![typed.replaced(at, 1, ["--scheme", SCHEMES.iter().rfind(is_it)?.name])]);
    }
    // `--compare fp8 int8`, `--fail-on infinite nan`
    let flag = &typed.line[at - 2];
    if flag == "--compare" && scheme_in(word).is_some() || flag == "--fail-on" && Defect::is_name(word) {
        return Some(vec![typed.replaced(at - 1, 2, [format!("{},{word}", typed.line[at - 1].to_str()?)])]);
    }
    let flag = if let Some(flag) = pattern {
        flag? // `--exclude A B`: a flag takes one pattern
    } else if typed.lacks(&["--to"]) && word.parse::<Dtype>().is_ok() {
        "--to"
    } else if typed.lacks(&["--scheme", "--compare"]) && !typed.schemes(word).is_empty() {
        "--scheme"
    } else if typed.lacks(&["--threads", "-j"]) && word.parse::<u16>().is_ok_and(|threads| threads > 0) {
        "--threads"
    } else if typed.lacks(&["--output", "-o"]) {
        "-o"
    } else {
        return None;
    };
    let words = match flag {
        "--scheme" => flags(typed.schemes(word).first()?, word),
        "--exclude" | "--include" => vec![flag.to_owned(), foreign::patterns(word).next()?],
        _ => vec![flag.to_owned(), word.to_owned()],
    };
    Some(vec![typed.replaced(at, 1, words)])
}

/// True if the name of a tensor contains a word.
fn is_in_names(model: &Path, word: &str) -> bool {
    checkpoint::probe(model, &ReadOptions::on(1)).is_ok_and(|found| found.names().any(|name| name.contains(word)))
}

/// Adds the flag of a missing argument, if its value was typed without one; otherwise an example.
pub(super) fn missing(typed: &TypedLine, error: &clap::Error) -> Option<Vec<Words>> {
    let is_missing = |flag: &str| match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing.iter().any(|missing| missing.starts_with(flag)),
        _ => false,
    };
    let last = typed.inputs().skip(1).last().filter(|(_, word)| is_new(word));
    let line = if is_missing("--to") {
        let dtype = typed.inputs().find(|(_, word)| word.parse::<Dtype>().is_ok() && is_new(word));
        let holds_one = |path: &str| by_extension(path.as_ref()).is_some_and(|found| found.format_info().holds_one);
        match (dtype, typed.name()) {
            (Some((at, word)), _) => {
                // `to f16`
                let before = typed.line[at - 1].to_str().filter(|word| ["to", "as", "into"].contains(word));
                let joint = usize::from(before.is_some_and(is_new));
                with_output(&TypedLine::new(&typed.replaced(at - joint, 1 + joint, ["--to", word])))
            }
            (None, "cast") => {
                let line = with_output(typed);
                let typed = TypedLine::new(&line);
                let is_complete = typed.changes_format() || typed.has_output() && typed.changes_contents();
                match (is_complete, typed.copy()) {
                    (true, _) => line,
                    (false, Some(line)) => line,
                    (false, None) if typed.inputs().next().is_none() => typed.with(["INPUT", "--to", "DTYPE"]),
                    (false, None) if typed.inputs().count() > 1 || typed.has_typed(&["--opset"]) => return None,
                    (false, None) => typed.with(ANY_TYPE),
                }
            }
            (None, "bitcast") if typed.inputs().all(|(_, word)| holds_one(word)) => typed.with(["--bits"]),
            _ => return None,
        }
    } else if is_missing("--output") {
        match last {
            Some((at, word)) => typed.replaced(at, 1, ["-o", word]),
            None if is_new("common") => typed.with(["-o", "common"]),
            None => return None,
        }
    } else if is_missing("--scheme") {
        let model = Path::new(typed.inputs().next()?.1);
        let has_weights =
            is_in_names(model, "weight") || by_extension(model).is_some_and(|it| it.format_info().is_changed_only());
        (has_weights && !is_quantized(model)).then(|| typed.with(["--scheme", example(model)]))?
    } else {
        return None;
    };
    Some(vec![line])
}

/// Returns the line with `-o` before the last input, if that does not exist and can be an output.
pub(super) fn with_output(typed: &TypedLine) -> Words {
    let is_folder = typed.inputs().next().is_some_and(|(_, input)| Path::new(input).is_dir());
    let can_be_output = |word: &str| is_new(word) && (is_folder || by_extension(word.as_ref()).is_some());
    let last = typed.inputs().skip(1).last().filter(|(_, word)| can_be_output(word));
    match last.filter(|_| typed.lacks(&["--output", "-o"])) {
        Some((at, word)) => {
            // `to out.safetensors`
            let joint = usize::from(["to", "as", "into"].iter().any(|joint| typed.line[at - 1] == *joint));
            typed.replaced(at - joint, 1 + joint, ["-o", word])
        }
        None => typed.line.to_vec(),
    }
}
