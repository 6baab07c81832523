//! Advice on inputs and on files in the way, with commands that move or remove them.

use super::path::directory_of;
use crate::text::{move_file, quoted, remove_files};
use std::path::Path;

/// Proposes the folder of all shards, of which the input is one.
pub(crate) fn give_whole(folder: &Path) -> String {
    format!("give the folder of all shards: {}", quoted(folder))
}

/// Proposes the folder that the input describes.
pub(crate) fn give_described(folder: &Path) -> String {
    format!("give its folder: {}", quoted(folder))
}

/// Quotes and joins paths.
pub(crate) fn list(paths: &[impl AsRef<Path>], between: &str) -> String {
    paths.iter().map(|path| quoted(path.as_ref())).collect::<Vec<_>>().join(between)
}

/// Returns the command that moves a file out of its folder, to a free name: folders of a pipeline have files of the same
/// names.
pub(crate) fn move_out(path: &Path) -> String {
    let folder = directory_of(path);
    let above = folder.join("..");
    let (Some(name), Ok(real)) = (path.file_name(), folder.canonicalize()) else { return move_file(path, &above) };
    if above.join(name).symlink_metadata().is_err() {
        return move_file(path, &above);
    }
    let name = name.to_string_lossy();
    let prefix = real.file_name().unwrap_or_default().to_string_lossy();
    let free = |number: u32| {
        above.join(format!("{prefix}-{}{name}", if number == 1 { String::new() } else { format!("{number}-") }))
    };
    let free = (1..1000).map(free).find(|path| path.symlink_metadata().is_err()).unwrap_or(above);
    move_file(path, &free)
}

/// Proposes to take files out of their folder, with a command if it is short enough to paste. Links are removed: a relative
/// one leads nowhere elsewhere, and in a cache of Hugging Face the files stay.
pub(crate) fn take_out(what: &str, files: &[impl AsRef<Path>]) -> String {
    /// Maximum number of files.
    const FEW: usize = 8;
    let are_links = files.iter().all(|file| file.as_ref().is_symlink());
    let (verb, command) = if are_links {
        (format!("remove the link{} to {what}", if files.len() == 1 { "" } else { "s" }), remove_files(files))
    } else {
        let commands: Vec<String> = files.iter().map(|file| move_out(file.as_ref())).collect();
        (format!("move {what} out of the folder"), commands.join(" && "))
    };
    if files.len() > FEW { verb } else { format!("{verb}: {command}") }
}
