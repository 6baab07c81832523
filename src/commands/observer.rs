//! What a job reports on its way, on standard error: warnings and progress bars.

use super::messages::{tell, tell_error, warn, warn_of_abandoned};
use crate::io::temporaries::{Kept, NextRun};
use crate::job::{Notice, Observer, ShardProgress};
use crate::progress::{self, Progress, Shards};
use crate::text::{as_glob, first_few, flag_with, path_text, shorten};
use std::path::PathBuf;

/// Shows everything, or only errors.
pub(super) struct Console {
    pub(super) is_quiet: bool,
}

impl Observer for Console {
    fn notice(&self, notice: Notice) {
        match notice {
            Notice::Refused(error) => return tell_error(error),
            Notice::Kept(kept) => return tell(&format!("tcast: {}", describe(kept))),
            _ if self.is_quiet => return,
            _ => {}
        }
        match notice {
            Notice::Begins(folder) => warn_of_abandoned(folder),
            Notice::Disagreement(disagreement) => warn(&disagreement.text),
            Notice::NoArray(name) => warn(&format!("'{}' is not an array and is left out", shorten(name))),
            Notice::NoMetadata(extension) => {
                warn(&format!("the metadata is left out: a .{extension} file has no place for it"));
            }
            Notice::Note(note) => warn(note),
            Notice::ScalesCast { count, first } => warn_of_scales(count, first),
            Notice::LeftOut(paths) => warn_of_left_out(paths),
            Notice::DoneAgain(error) => warn(&format!("{error}; it is done again")),
            Notice::Refused(_) | Notice::Kept(_) => {}
        }
    }

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        progress::shown(what, bytes, self.is_quiet)
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        Box::new(Shards::new(bytes, self.is_quiet))
    }
}

impl ShardProgress for Shards {
    fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_> {
        self.shard(what, bytes)
    }
}

/// What is kept of a run that ended early, and how to continue.
pub(super) fn describe(kept: &Kept) -> String {
    match kept {
        Kept::Outputs(what) => what.clone(),
        Kept::Shards { what, next } => {
            let how = match next {
                NextRun::Same => "",
                NextRun::Resumed => " with --resume",
                NextRun::ResumedWithoutReplacing => " with --resume instead of --force",
            };
            format!("{what}: the same command{how} continues it")
        }
    }
}

fn warn_of_scales(count: usize, first: &str) {
    let ending = first.rsplit('.').next().unwrap_or_default();
    let exclude = flag_with("--exclude", &format!("*{}", as_glob(ending)));
    let name = shorten(first);
    warn(&match count {
        1 => format!("a scale of codes is cast too, '{name}': {exclude} keeps it"),
        _ => format!("{count} scales of codes are cast too, '{name}' is one: {exclude} keeps them"),
    });
}

/// Lists what is in the folder of the input and will not be in the output.
fn warn_of_left_out(paths: &[PathBuf]) {
    let paths = first_few(paths.iter().map(path_text), 5);
    warn(&format!("left out, because they are weights in other formats or not regular files: {paths}"));
}
