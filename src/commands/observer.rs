//! Reports of a running job on standard error: warnings and progress bars.

use super::messages::{note, print_error, print_message, warn, warn_of_abandoned, warn_of_activation_scales};
use crate::container::{PickleFacts, RootInfo};
use crate::io::temporaries::{Kept, Start};
use crate::operator::Operator;
use crate::progress::{self, Notice, Observer, PartOf, Progress, ShardProgress, Shards};
use crate::text::{as_glob, counted, first_few, flag_with, path_text, shorten, size};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Observer that shows everything, or only errors.
pub(super) struct Console {
    pub(super) is_quiet: bool,
}

impl Observer for Console {
    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Refused(error) => print_error(error),
            Notice::Kept(kept) => print_message(&format!("tcast: {}", describe(kept))),
            _ if self.is_quiet => {}
            Notice::Begins(folder) => warn_of_abandoned(folder),
            Notice::Disagreement(disagreement) => warn(&disagreement.text),
            Notice::NoArray(name) => warn(&format!("'{}' is not an array and is left out", shorten(name))),
            Notice::Pickle(path, facts) => say_what_is_read(path, facts),
            Notice::Unreadable(name) => warn(&format!("tensor '{}' cannot be read and is left out", shorten(name))),
            Notice::NoMetadata(extension) => {
                warn(&format!("the metadata is left out: a .{extension} file has no place for it"));
            }
            Notice::NoLists(lists) => {
                let names = first_few(lists.iter().map(|(key, _)| key), 3);
                note(&format!("{} of the metadata left out: {names}", counted(lists.len() as u64, "list")));
            }
            Notice::ScalesLeftOut(names, operator) => {
                let is_decoded = operator == Operator::Dequantize;
                warn_of_activation_scales(names, if is_decoded { ": --keep-activation-scales keeps them" } else { "" });
            }
            Notice::Fact(fact) => note(fact),
            Notice::Note(text) => warn(text),
            Notice::ScalesCast(names) => warn_of_scales(names),
            Notice::LeftOut(paths) => warn_of_left_out(paths),
            Notice::DoneAgain(error) => warn(&format!("{error}; converting the shard again")),
        }
    }

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        progress::shown(what, bytes, self.is_quiet)
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        Box::new(Shards::new(bytes, self.is_quiet))
    }
}

/// Observer that shows two passes over an input as one bar.
pub(super) struct OneBar<'o> {
    observer: &'o dyn Observer,
    /// The bytes of the second pass.
    rest: u64,
    bar: OnceCell<Box<dyn Progress + 'o>>,
}

impl<'o> OneBar<'o> {
    pub(super) fn new(observer: &'o dyn Observer, rest: u64) -> Self {
        Self { observer, rest, bar: OnceCell::new() }
    }

    /// Returns the bar, which begins with a pass over this many bytes.
    fn bar(&self, bytes: u64) -> &(dyn Progress + 'o) {
        &**self.bar.get_or_init(|| self.observer.progress("", bytes + self.rest))
    }
}

impl Observer for OneBar<'_> {
    fn notice(&self, notice: Notice) {
        self.observer.notice(notice);
    }

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        // Other activities are not passes over the input.
        match what {
            "" | "measuring" => Box::new(PartOf(self.bar(bytes))),
            other => self.observer.progress(other, bytes),
        }
    }
}

/// Says which tensors of a checkpoint of PyTorch are read, if the file contains others too, and warns of code.
fn say_what_is_read(path: &Path, facts: &PickleFacts) {
    warn_of_code(path, facts);
    if !facts.arrays.is_empty() {
        let (count, names) = (counted(facts.arrays.len() as u64, "array"), first_few(&facts.arrays, 3));
        warn(&format!("{}: {count} of numpy left out: {names}", path_text(path)));
    }
    let path = path_text(path);
    let names = |roots: &[&RootInfo]| first_few(roots.iter().map(|root| &root.key), 5);
    match &facts.chosen {
        _ if facts.is_requested => {}
        Some(chosen) => {
            let others: Vec<&RootInfo> = facts.roots.iter().filter(|root| root.key != *chosen).collect();
            let rest = match others.iter().map(|root| root.bytes).sum() {
                _ if others.is_empty() => String::new(),
                bytes => format!(", and not {} ({})", names(&others), size(bytes)),
            };
            note(&format!("{path}: tcast reads the tensors under '{chosen}'{rest}; --root . reads all"));
        }
        None => {
            let weights: Vec<&RootInfo> = facts.roots.iter().filter(|root| root.is_weights).collect();
            if let [first, _, ..] = &weights[..] {
                let one = flag_with("--root", &first.key);
                note(&format!("{path}: tcast reads all tensors under {}; {one} reads only some", names(&weights)));
            }
        }
    }
}

/// Warns of names of code that may do harm, if the file has some.
pub(super) fn warn_of_code(path: &Path, facts: &PickleFacts) {
    if facts.suspicious.is_empty() {
        return;
    }
    let names = first_few(facts.suspicious.iter().cloned().collect::<Vec<_>>(), 5);
    let path = path_text(path);
    warn(&format!("{path} names {names}: tcast runs no code, but programs that unpickle the file would call it"));
}

/// Describes what remains of a run that ended early, and how to continue.
pub(super) fn describe(kept: &Kept) -> String {
    match kept {
        Kept::Outputs(what) => what.clone(),
        Kept::Shards { what, start } => {
            let how = match start {
                Start::Part => "", // a part continues its own work
                Start::Anew | Start::Resume => " with --resume",
                Start::Replace => " with --resume instead of --force",
            };
            format!("{what}: the same command{how} continues it")
        }
    }
}

fn warn_of_scales(names: &[&str]) {
    let name = shorten(names[0]);
    let flags: Vec<String> = endings(names).iter().map(|ending| flag_with("--exclude", ending)).collect();
    let flags = flags.join(" ");
    warn(&match names.len() {
        1 => format!("a scale of codes is cast too, '{name}': {flags} keeps it"),
        count if flags.is_empty() => {
            format!("{count} scales of codes are cast too, '{name}' is one: name them with --exclude to keep them")
        }
        count => format!("{count} scales of codes are cast too, '{name}' is one: {flags} keeps them"),
    });
}

/// Returns a few patterns that match all names by their ends; none if many would be needed.
fn endings(names: &[&str]) -> Vec<String> {
    const FEW: usize = 3;
    let parts: BTreeSet<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    let glob = |ending: &str| format!("*{}", as_glob(ending));
    if parts.len() <= FEW {
        return parts.into_iter().map(glob).collect();
    }
    let shared = names.iter().fold(names[0], |shared, name| {
        let same = shared.chars().rev().zip(name.chars().rev()).take_while(|(one, other)| one == other);
        &shared[shared.len() - same.map(|(one, _)| one.len_utf8()).sum::<usize>()..]
    });
    shared.find(['.', '_']).map(|start| glob(&shared[start..])).into_iter().collect()
}

/// Warns about files in the folder of the input that will not be in the output.
fn warn_of_left_out(paths: &[PathBuf]) {
    let paths = first_few(paths.iter().map(path_text), 5);
    warn(&format!("left out, because they hold other weights or are not regular files: {paths}"));
}

#[cfg(test)]
mod tests {
    use super::endings;

    #[test]
    fn the_patterns_match_all_names() {
        assert_eq!(endings(&["l.0.q.weight_scale", "l.1.k.weight_scale"]), ["*weight_scale"]);
        assert_eq!(endings(&["u_int8_scale", "v_int8_scale"]), ["*u_int8_scale", "*v_int8_scale"]);
        let names = ["u_int8_scale", "v_int8_scale", "w_int8_scale", "x_fp8_scale"];
        assert_eq!(endings(&names), ["*_scale"]);
        assert_eq!(endings(&["u_int8_scale", "v_int8_scale", "w_int8_scale", "x"]), [""; 0]);
    }
}
