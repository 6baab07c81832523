//! A command line with a mistake: its subcommand, flags, values and inputs, and lines with other words.

use super::foreign;
use super::schemes::schemes_in;
use crate::cli;
use crate::container::{Container, Input, ReadOptions, SHARDS, WrittenFiles, by_extension, checkpoint};
use crate::dtype::Dtype;
use crate::quant::{GGUF, Scheme};
use crate::text::flag_with;
use clap::parser::ValueSource;
use clap::{Command, CommandFactory};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(super) type Words = Vec<OsString>;

/// True if no file has this name.
pub(super) fn is_new(word: &str) -> bool {
    !Path::new(word).exists()
}

/// Returns a path, or the first with a number at the end, or before the extension of a file, that no file has.
pub(super) fn free(path: &Path) -> PathBuf {
    let end = path.extension().filter(|_| !path.is_dir()).map(|end| end.to_string_lossy().into_owned());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let numbered = (2..).map(|number: u32| match &end {
        Some(end) => path.with_extension(format!("{number}.{end}")),
        None => path.with_file_name(format!("{name}-{number}")),
    });
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    std::iter::once(path.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
}

/// Returns the types in a list such as `f16,bf16`.
pub(super) fn several_types(value: &str) -> Option<Vec<&str>> {
    let types: Vec<&str> = value.split([',', '/', ';', '+', ' ']).filter(|part| !part.is_empty()).collect();
    (types.len() > 1 && types.iter().all(|part| part.parse::<Dtype>().is_ok())).then_some(types)
}

/// True if the config of a model says that it is quantized.
pub(super) fn is_quantized(model: &Path) -> bool {
    checkpoint::probe(model, &ReadOptions::on(1))
        .is_ok_and(|found| found.quantization().is_ok_and(|method| method.is_some()))
}

/// Returns the typed flags that another subcommand has too, with their values, but for some: each after a space. `None` if it
/// lacks a flag that changes tensors. Flags that change no byte of the output are left out.
pub(super) fn carried(subcommand: &str, except: &[&str]) -> Option<String> {
    const NEUTRAL: [&str; 4] = ["quiet", "threads", "no-sync", "color"];
    // Only about the types that a cast makes.
    const OF_CASTS: [&str; 6] = ["saturate", "no-saturate", "round-mode", "out-of-range", "protect", "stats"];
    let command = cli::command();
    let line = cli::join_saturate(std::env::args_os());
    let matches = cli::Cli::command().try_get_matches_from(line).ok()?; // the other one is built already
    let (name, matches) = matches.subcommand()?;
    let (own, other) = (command.find_subcommand(name)?, command.find_subcommand(subcommand)?);
    let mut flags = String::new();
    for arg in own.get_arguments() {
        let (id, Some(long)) = (arg.get_id().as_str(), arg.get_long()) else { continue };
        let is_typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_typed || except.contains(&long) || NEUTRAL.contains(&long) {
            continue;
        }
        match other.get_arguments().any(|arg| arg.get_long() == Some(long)) {
            true if arg.get_action().takes_values() => {
                for value in matches.get_raw(id).into_iter().flatten() {
                    flags += &flag_with(&format!(" --{long}"), &value.to_string_lossy());
                }
            }
            true => flags += &[" --", long].concat(),
            false if OF_CASTS.contains(&long) => {}
            false => return None,
        }
    }
    Some(flags)
}

/// Command line with its subcommand.
pub(super) struct TypedLine<'a> {
    pub(super) line: &'a [OsString],
    /// Position and definition of the subcommand.
    pub(super) subcommand: Option<(usize, Command)>,
}

impl<'a> TypedLine<'a> {
    pub(super) fn new(line: &'a [OsString]) -> Self {
        let command = cli::command();
        let find = |word: &OsString| word.to_str().and_then(|word| command.find_subcommand(word)).cloned();
        let subcommand = line.iter().enumerate().skip(1).find_map(|(at, word)| Some((at, find(word)?)));
        Self { line, subcommand }
    }

    pub(super) fn name(&self) -> &str {
        self.subcommand.as_ref().map_or("", |(_, command)| command.get_name())
    }

    pub(super) fn has_flag(&self, long: &str) -> bool {
        let is_it = |arg: &clap::Arg| arg.get_long() == long.strip_prefix("--");
        self.subcommand.as_ref().is_some_and(|(_, command)| command.get_arguments().any(is_it))
    }

    /// True if the subcommand has a flag that was not typed; its spellings, the long one first.
    pub(super) fn lacks(&self, flags: &[&str]) -> bool {
        self.has_flag(flags[0]) && !self.has_typed(flags)
    }

    /// True if one of these flags was typed.
    pub(super) fn has_typed(&self, flags: &[&str]) -> bool {
        let name = |word: &'a OsString| word.to_str().and_then(|word| word.split('=').next());
        self.line.iter().filter_map(name).any(|name| flags.contains(&name))
    }

    /// Returns the line with other words in place of `count` words.
    pub(super) fn replaced<W: Into<OsString>>(
        &self,
        at: usize,
        count: usize,
        words: impl IntoIterator<Item = W>,
    ) -> Words {
        let after = &self.line[(at + count).min(self.line.len())..];
        let words = words.into_iter().map(Into::into);
        self.line[..at].iter().cloned().chain(words).chain(after.iter().cloned()).collect()
    }

    pub(super) fn with<const N: usize>(&self, words: [&str; N]) -> Words {
        self.replaced(self.line.len(), 0, words)
    }

    pub(super) fn without(&self, at: usize, count: usize) -> Words {
        self.replaced(at, count, [""; 0])
    }

    /// Returns the words after the subcommand that are neither flags nor their values, with their places.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (usize, &str)> {
        self.words().filter(|(at, _)| !self.is_value(*at))
    }

    /// True if the word is the value of the flag before it.
    fn is_value(&self, at: usize) -> bool {
        let Some(flag) = self.line[at - 1].to_str().filter(|flag| !flag.contains('=')) else { return false };
        let is_it = |arg: &clap::Arg| match flag.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => flag.starts_with('-') && arg.get_short() == flag.chars().last(),
        };
        let mut flags = self.subcommand.iter().flat_map(|(_, command)| command.get_arguments());
        flags.any(|arg| is_it(arg) && arg.get_action().takes_values())
    }

    /// Returns the words after the subcommand that are not flags, with their places.
    pub(super) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        let first = self.subcommand.as_ref().map_or(1, |(at, _)| at + 1);
        let words = self.line.iter().enumerate().skip(first);
        words.filter_map(|(at, word)| Some((at, word.to_str()?))).filter(|(_, word)| !word.starts_with('-'))
    }

    /// True if the line has these words one after the other.
    pub(super) fn has_words(&self, words: &str) -> bool {
        let words: Vec<&str> = words.split(' ').collect();
        self.line.windows(words.len()).any(|some| some.iter().zip(&words).all(|(word, wanted)| word == wanted))
    }

    /// True if one of the files that the line names is a GGUF file.
    pub(super) fn is_of_gguf(&self) -> bool {
        self.line.iter().any(|word| Path::new(word).extension().is_some_and(|end| end == GGUF.name))
    }

    /// Returns the scheme of GGUF files for a number of bits, if the line is about one.
    pub(super) fn blocks(&self, word: &str) -> Option<&'static Scheme> {
        Scheme::find(foreign::blocks(word)?).filter(|_| self.is_of_gguf())
    }

    /// Returns the schemes that a word can stand for.
    pub(super) fn schemes(&self, word: &str) -> Vec<&'static Scheme> {
        self.blocks(word).map_or_else(|| schemes_in(word), |scheme| vec![scheme])
    }

    /// Returns the line with an output, if a cast of the only input needs no type: in safetensors, if tcast reads the format
    /// of the input and does not write it; in the same format, if the line changes the contents.
    pub(super) fn copy(&self) -> Option<Words> {
        let mut inputs = self.inputs().map(|(_, input)| Path::new(input));
        let (input, others) = (inputs.next()?, inputs.count());
        let format = by_extension(input).filter(|_| !input.is_dir()).map(Container::format_info);
        let is_other = format.is_some_and(|info| info.writing == WrittenFiles::Never);
        let is_copied = (is_other || self.changes_contents()) && others == 0 && self.lacks(&["--output", "-o"]);
        let output = match format {
            Some(_) if self.has_typed(&["--max-shard-size"]) => input.with_extension(""),
            Some(_) if is_other => input.with_extension(SHARDS.format_info().extension),
            _ => input.to_owned(),
        };
        is_copied.then(|| self.replaced(self.line.len(), 0, ["-o".into(), free(&output).into_os_string()]))
    }

    /// True if a flag changes the contents of the output: then a cast needs no type.
    pub(super) fn changes_contents(&self) -> bool {
        const FLAGS: [&str; 10] = [
            "--only",
            "--drop",
            "--add",
            "--replace",
            "--experts",
            "--lora",
            "--set",
            "--unset",
            "--rename",
            "--max-shard-size",
        ];
        self.has_typed(&FLAGS)
    }

    /// True if the output has another format than the input, or is a file and the input a folder. Then a cast needs no
    /// type.
    pub(super) fn changes_format(&self) -> bool {
        let extension = |path: &str| by_extension(path.as_ref()).map(|found| found.format_info().extension);
        let output = (1..self.line.len()).find(|at| ["-o", "--output"].iter().any(|flag| self.line[*at] == *flag));
        let output = output.and_then(|at| extension(self.line.get(at + 1)?.to_str()?));
        let input = self.inputs().next().map(|(_, input)| extension(input));
        output.is_some() && input.is_some_and(|input| input != output) || self.has_output() && self.has_pickled_shards()
    }

    pub(super) fn has_output(&self) -> bool {
        self.has_typed(&["-o", "--output"])
    }

    /// True if the first input is a folder whose shards become safetensors.
    fn has_pickled_shards(&self) -> bool {
        let folder = self.inputs().next().map(|(_, input)| Path::new(input)).filter(|input| input.is_dir());
        let found = folder.and_then(|folder| checkpoint::probe(folder, &ReadOptions::on(1)).ok());
        let is_other = |shard: &Input| shard.container.format_info().writing == WrittenFiles::Never;
        found.is_some_and(|found| found.shards.first().is_some_and(is_other))
    }

    /// Returns the last of some flags that stands before a word.
    pub(super) fn last_of(&self, flags: &[&'static str], before: usize) -> Option<&'static str> {
        let name = |word: &OsString| {
            let name = word.to_str()?.split('=').next()?;
            flags.iter().copied().find(|flag| *flag == name)
        };
        self.line[..before].iter().rev().find_map(name)
    }

    /// Returns the place of the value of a flag, alone or joined.
    pub(super) fn value_at(&self, flag: &str) -> Option<usize> {
        let value = |at: usize| self.line[at].to_str().and_then(|word| word.strip_prefix(flag)?.strip_prefix('='));
        (2..self.line.len()).find(|at| self.line[at - 1] == flag || value(*at).is_some())
    }

    pub(super) fn find(&self, is_wanted: impl Fn(&str) -> bool) -> Option<usize> {
        (1..self.line.len()).find(|at| self.line[*at].to_str().is_some_and(&is_wanted))
    }
}
