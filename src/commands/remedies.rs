//! Remedies for errors, in terms of the program's flags, and exit codes. Modules below `commands` only classify an
//! error by a [`Kind`].

use super::downloads::{download, from_hub};
use super::resume::{go_back, go_on};
use super::unmatched::{near, propose};
use crate::error::{Blocker, Error, ErrorKind, Intended, Kind, OutputRole, Wanted};
use crate::io::open::is_absent;
use crate::io::output::directory_of;
use crate::text::{
    as_glob, expanded, first_few, flag_with, is, make_folder, move_file, quoted, remove_files, remove_folder,
    replace_by_copy,
};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Context of errors of `diff`: exit code 1 says that both inputs could be read and are not equal.
#[derive(Debug)]
pub(super) struct Trouble;

impl Trouble {
    pub(super) const EXIT_CODE: u8 = 2;
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot compare")
    }
}

/// Returns the exit code for an error, by its context or its kind.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<Trouble>() { Trouble::EXIT_CODE } else { error.downcast_ref().map_or(1, code_of) }
}

fn code_of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::Usage => 2,
        ErrorKind::Loss => 3,
        ErrorKind::Exists => 4,
        _ => 1,
    }
}

/// Maximum number of names in a message.
const MOST_NAMES: usize = 8;

/// Lists the tensors that exist in place of one that does not.
fn others(name: &str, names: &[String]) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match &near(name, &names)[..] {
        [] => format!("there {}: {}", is(names.len() as u64), first_few(names, MOST_NAMES)),
        near => format!("similar: {}", first_few(near, MOST_NAMES)),
    }
}

/// Returns the flag that chooses a tensor.
fn one_of(names: &[String]) -> String {
    // Only this form accepts a name that begins with a dash.
    let joint = if names.iter().any(|name| name.starts_with('-')) { '=' } else { ' ' };
    format!("--tensor{joint}NAME, one of {}", first_few(names, MOST_NAMES))
}

/// Returns what chooses the values of a rank for a tensor, or leaves it out.
fn taking(rank: u64, tensor: &str) -> String {
    let without = flag_with("--exclude", &as_glob(tensor));
    format!("add --take-rank {rank} to take the values of this rank, or {without}")
}

/// Returns the remedy for an error, if there is one.
#[must_use]
pub fn remedy(error: &Error) -> Option<String> {
    if let (Some(again), Some(more)) = (error.remedy_text(), after(error)) {
        return Some(format!("{again}{more}"));
    }
    // The subcommands add commands with their arguments.
    let is_with_command =
        matches!(error.cause(), Kind::Codes { model: Some(_), .. } | Kind::NoGguf | Kind::UnusedAdapter);
    let flags = if is_with_command && error.remedy_text().is_some() { String::new() } else { of_kind(error)? };
    let own = error.remedy_text().unwrap_or_default();
    let clear = error.blocker().map(clear).unwrap_or_default();
    let is_option = matches!(error.blocker(), Some(Blocker::Option(_)));
    let remedies = if is_option { [own, &flags, &clear] } else { [own, &clear, &flags] };
    let mut remedies: Vec<&str> = remedies.into_iter().filter(|remedy| !remedy.is_empty()).collect();
    if matches!(error.cause(), Kind::Unsafe { .. }) {
        remedies.sort_by_key(|remedy| *remedy != flags); // the shorter way first
    }
    (!remedies.is_empty()).then(|| remedies.join(", or "))
}

/// Returns the remedy for the kind of an error, which may be empty.
fn of_kind(error: &Error) -> Option<String> {
    Some(match error.cause() {
        Kind::Exists { output, is_replaceable: true } => format!("add --force to replace it, or {}", another(*output)),
        Kind::Exists { output, is_replaceable: false } => another(*output),
        Kind::Several(errors) if errors.iter().all(is_about_output) => {
            "add --skip-existing to keep these outputs and convert the other inputs, or --force to replace them".to_owned()
        }
        Kind::Unfinished { can_resume: false } => {
            format!("add --force to replace it, or {}", another(OutputRole::Folder))
        }
        Kind::Unfinished { can_resume: true } => "add --resume to continue it, or --force to start again".to_owned(),
        Kind::Interrupted(work) => go_on(work),
        Kind::Stale => "start again with --force".to_owned(),
        Kind::Taken(wanted) => elsewhere(wanted),
        Kind::Collision { is_in_folder: false, .. } => {
            "name the output, or a folder for several outputs, with -o".to_owned()
        }
        Kind::Collision { has_typed_names: true, .. } => {
            "name another folder with -o, or leave -o out: then the type is in the names of the outputs".to_owned()
        }
        Kind::Collision { .. } => another(OutputRole::Folder),
        Kind::Unnamed(wanted) => named(wanted),
        Kind::Undivided => "add --max-shard-size, which divides the output into shards".to_owned(),
        Kind::InUse => "close the program that uses it, and run the same command again".to_owned(),
        Kind::NoMemory => "use fewer threads with -j, or end programs that take much memory".to_owned(),
        Kind::NoSpace => "free some space, or name an output on another disk with -o".to_owned(),
        Kind::Unwritable => "name an output in a folder that you can write to, with -o".to_owned(),
        Kind::Untyped(candidates) => format!("say it with --from DTYPE: {}", candidates.join(", ")),
        Kind::Unmatched { option, pattern, names } => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            pattern.parse().map_or_else(|_| String::new(), |pattern| propose(&format!("--{option}"), &pattern, "", &names))
        }
        Kind::NoTensor { name, names } => others(name, names),
        Kind::SeveralTensors(names) => one_of(names),
        Kind::RanksDiffer(rank) => taking(*rank, error.tensor()?),
        Kind::Unconvertible => {
            let exclude = error.tensor().map(|name| flag_with("--exclude", &as_glob(name)));
            format!("copy it as it is with {}", exclude.as_deref().unwrap_or("--exclude NAME"))
        }
        Kind::Misnamed(new) => {
            // A tensor with '=' in its name cannot be renamed.
            let old = error.tensor().filter(|old| !old.contains('='));
            let rename = |old: &str| format!("rename it with {}", flag_with("--rename", &format!("{old}={new}")));
            old.map(rename).unwrap_or_default()
        }
        Kind::Excludable(globs) => format!("copy the weights as they are with {}", excluding(globs)),
        // To exclude them could hide the rule that names them.
        Kind::Ungrouped { size } => format!("choose --group-size {size}"),
        Kind::Decodable(globs) => {
            let weights = if globs.len() == 1 { "the weight" } else { "the weights" };
            format!("decode {weights} with {}", excluding(globs))
        }
        Kind::Table => "add --include-embeddings".to_owned(),
        Kind::PartialBlocks => "add --partial-blocks; transformers and SGLang do not load such weights".to_owned(),
        Kind::Adapter => format!("cast it: tcast cast {} --to bfloat16", quoted(error.path()?)),
        Kind::Unmerged => {
            let adapter = quoted(error.path()?);
            format!(
                "merge it into its model: name the model in its place, and add --lora {adapter}; llama.cpp's \
                 convert_lora_to_gguf.py makes a GGUF of the adapter alone"
            )
        }
        Kind::UnmatchedAdapter => {
            "take the base of the adapter, or leave such tensors out with --allow-unmatched".to_owned()
        }
        Kind::UnusedAdapter => "merge the adapters first with tcast cast --lora, and convert the result".to_owned(),
        Kind::Plain => "tcast cast changes the type of plain weights, and tcast quantize quantizes them".to_owned(),
        Kind::Unstorable => "choose a scheme with --scheme, or another layout with --layout".to_owned(),
        Kind::Codes { model: Some(model), .. } => format!("tcast dequantize {}", quoted(model)),
        Kind::Codes { globs: Some(globs), model: None } => without_codes(globs),
        Kind::Undecoded => "--force-codes treats all of its tensors as values".to_owned(),
        // Any other type could round.
        Kind::InBlocks => format!("to get their values: tcast dequantize {} --to float32", quoted(error.path()?)),
        Kind::NoKeys { is_language: true } => {
            "add --metadata-from MODEL.gguf, which is any GGUF of the same model".to_owned()
        }
        Kind::NoKeys { is_language: false } => {
            "for a language model, --metadata-from takes the metadata of any GGUF of it; for a diffusion model, \
                         --architecture names its kind"
                .to_owned()
        }
        Kind::UnknownPreTokenizer(similar) => naming_pre_tokenizer(similar.as_deref()),
        Kind::NotInGguf => {
            "make a GGUF with llama.cpp's convert_hf_to_gguf.py, and quantize it: tcast quantize MODEL.gguf --scheme q8_0"
                .to_owned()
        }
        Kind::NoImportance => "choose another scheme, or give an importance matrix with --imatrix".to_owned(),
        Kind::NoGguf => "tcast quantize makes .gguf files".to_owned(),
        Kind::Unmapped => "keep the names of the file with --names file".to_owned(),
        Kind::OfModel => {
            let model = quoted(error.path().unwrap_or(Path::new("MODEL.onnx")));
            format!("take its tensors out first: tcast cast {model} --to float32 --exclude '*' -o FILE.safetensors")
        }
        Kind::OldOpset => "add --raise-opset: no operator of the model changes on the way".to_owned(),
        Kind::OutOfRange => "choose --out-of-range saturate or --out-of-range wrap to convert such values".to_owned(),
        Kind::Unsafe { conversion, has_u64_target } => {
            let choose = if *has_u64_target { ", or --unsafe --u64-target TYPE to choose the type" } else { "" };
            format!("use --unsafe to convert {conversion}{choose}")
        }
        Kind::System if error.path() == Some(Path::new("-")) && is_about_absence(error) => {
            "tcast does not read standard input: write it to a file, and name that".to_owned()
        }
        _ => String::new(),
    })
}

/// True if an error only says that an output exists, which could be replaced.
fn is_about_output(error: &Error) -> bool {
    matches!(error.cause(), Kind::Exists { is_replaceable: true, .. })
}

/// True if the system found no file of the name. Errors of standard output have the same path as a missing `-`.
fn is_about_absence(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(is_absent)
}

/// Describes how to change what prevents the work: with a command, or without an option.
fn clear(blocker: &Blocker) -> String {
    match blocker {
        Blocker::File(path) => remove_files(&[path]),
        Blocker::Foreign(path) => take_out("it", &[path]),
        Blocker::Folder(path) => remove_folder(path),
        Blocker::Remains(path) => format!("look into it, and then {}", remove_folder(path)),
        Blocker::NoFolder(path) => make_folder(path),
        Blocker::Option(option) => format!("leave --{} out", option.replace('_', "-")),
        Blocker::Input(intended) => give(intended),
        Blocker::Extension { file, name } => move_file(file, name),
        Blocker::Compressed(path) => format!("gunzip -k {}", quoted(path)),
        Blocker::Pointer(path) => format!("git -C {} lfs pull", quoted(directory_of(path))),
        Blocker::Link { link, copy } => format!("if the model needs its target: {}", replace_by_copy(link, copy)),
        Blocker::Referrer(path) => format!("copy or download the other file too: {} refers to it", quoted(path)),
        Blocker::ShortIndex(path) => {
            format!(
                "download the index again, or, to convert all .safetensors files, {}",
                take_out("the index", &[path])
            )
        }
        Blocker::StaleIndex(path) => {
            format!("if the other shards are the model, {}", take_out("the index", &[path]))
        }
        Blocker::OtherModels { model, others } => {
            let what = if others.len() == 1 { "the other model" } else { "the files of other models" };
            let given = model.iter().map(|model| give(&Intended::Files([model.clone()].into())));
            [take_out(what, others)].into_iter().chain(given).collect::<Vec<_>>().join(", or ")
        }
        Blocker::Surplus { shard, is_output: true } => {
            format!("tcast wrote one of them; move it: {}", move_out(shard))
        }
        Blocker::Surplus { shard, is_output: false } => {
            let command = move_out(shard);
            format!("if the newest one is an output, move it: {command}; if not, download the folder again")
        }
    }
}

/// Returns the command that moves a file out of its folder, to a free name: folders of a pipeline have files of the same
/// names.
fn move_out(path: &Path) -> String {
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
fn take_out(what: &str, files: &[impl AsRef<Path>]) -> String {
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

/// Proposes the intended input.
fn give(intended: &Intended) -> String {
    match intended {
        Intended::Described(folder) => format!("give its folder: {}", quoted(folder)),
        Intended::Whole(folder) => format!("give the folder of all shards: {}", quoted(folder)),
        Intended::Folders(folders) => format!("give a folder in it that has such files: {}", list(folders, ", ")),
        Intended::Files(files) if files.len() == 1 => format!("give the file in it: {}", list(files, " ")),
        Intended::Files(files) => format!("give files in it: {}", list(files, " ")),
        Intended::Home(path) => format!("a shell expands ~ only outside of quotes: {}", quoted(path)),
        Intended::Pattern(path) => format!("a shell expands * and ? only outside of quotes: {}", expanded(path)),
        Intended::Similar(path) => format!("is it {}?", quoted(path)),
        Intended::Repository(name) => format!("if it is a model on Hugging Face: {}", from_hub(name, None)),
        Intended::Address(address) => download(address),
    }
}

/// Quotes and joins paths.
fn list(paths: &[PathBuf], between: &str) -> String {
    paths.iter().map(|path| quoted(path)).collect::<Vec<_>>().join(between)
}

/// Returns the text that follows an error's own remedy.
fn after(error: &Error) -> Option<String> {
    match error.cause() {
        Kind::Incomplete => Some(", and then --finish".to_owned()),
        Kind::Inconsistent => Some(format!("; tcast inspect {} shows all that does not fit", quoted(error.path()?))),
        _ => None,
    }
}

/// Returns an alternative to the command of [`remedy`].
#[must_use]
pub fn alternative(error: &Error) -> Option<String> {
    match error.cause() {
        Kind::Codes { globs: Some(globs), model: Some(_) } => Some(format!("or {}", without_codes(globs))),
        Kind::Interrupted(work) => go_back(work),
        Kind::UnusedAdapter if error.remedy_text().is_some() => {
            Some("or decode the weights with the same arguments of tcast dequantize".to_owned())
        }
        _ => None,
    }
}

/// Describes how to cast in spite of codes.
fn without_codes(globs: &[String]) -> String {
    let force = "cast their codes as numbers with --force-codes";
    match globs {
        [] => force.replace("their codes", "the codes of quantized weights"),
        globs => format!("leave the quantized weights as they are with {}, or {force}", excluding(globs)),
    }
}

/// Returns the remedy for a pre-tokenizer that is not known, whose description may be that of a known one.
fn naming_pre_tokenizer(similar: Option<&str>) -> String {
    let name = match similar {
        Some(name) => format!("its pre_tokenizer section is that of {name}: add --pre-tokenizer {name}"),
        None => "name one that divides texts alike with --pre-tokenizer NAME".to_owned(),
    };
    format!("{name}, or add --metadata-from MODEL.gguf, which is any GGUF of the same model")
}

/// Returns the flags that exclude the matches of some patterns, if they are short enough to paste.
fn excluding(globs: &[String]) -> String {
    flags_for("--exclude", globs).unwrap_or_else(|| "--exclude".to_owned())
}

/// Returns a flag with each of some patterns; `None` if they are too long to paste.
pub(super) fn flags_for(flag: &str, globs: &[String]) -> Option<String> {
    /// Maximum length of these flags.
    const MOST: usize = 2048;
    let flags = globs.iter().map(|glob| flag_with(flag, glob)).collect::<Vec<_>>().join(" ");
    (flags.len() <= MOST).then_some(flags)
}

/// Proposes another output in the same role.
fn another(role: OutputRole) -> String {
    match role {
        OutputRole::File => "name another file with -o",
        OutputRole::Folder => "name another folder with -o",
        OutputRole::Report => "name another file with --report",
    }
    .to_owned()
}

/// Proposes another output.
fn elsewhere(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Role(role) => another(*role),
        Wanted::Stream => "write to standard output with -o -, and redirect that".to_owned(),
        Wanted::At(path) => format!("name an output elsewhere: -o {}", quoted(path)),
        Wanted::Any => "name another output with -o".to_owned(),
    }
}

/// Proposes to name an output.
fn named(wanted: &Wanted) -> String {
    match wanted {
        Wanted::Role(OutputRole::File) => "name a file with -o".to_owned(),
        Wanted::Role(OutputRole::Folder) => "name a folder with -o".to_owned(),
        Wanted::Role(OutputRole::Report) => "name a file with --report".to_owned(),
        Wanted::Stream => "name the output: -o FILE, or -o - for standard output".to_owned(),
        Wanted::At(path) => format!("for a folder of that name: -o {}", quoted(path)),
        Wanted::Any => "name the output with -o".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    fn of_codes(globs: &[String]) -> String {
        remedy(&Error::new("holds codes").of(Kind::Codes { globs: Some(globs.into()), model: None })).unwrap()
    }

    #[test]
    #[cfg(unix)] // in its quotes
    fn all_codes_are_left_out_by_flags_that_a_shell_takes() {
        let flags = of_codes(&["*.x[*]y.w".to_owned(), "it's; ls.w".to_owned()]);
        assert!(flags.contains(r"--exclude '*.x[*]y.w' --exclude 'it'\''s; ls.w',"), "{flags}");
        let many: Vec<String> = (0..1000).map(|number| format!("name{number}")).collect();
        let wanted = "leave the quantized weights as they are with --exclude, or cast their codes as numbers with \
                      --force-codes";
        assert_eq!(of_codes(&many), wanted);
        let model = Some(Path::new("it's").into());
        let error = Error::new("holds codes").of(Kind::Codes { globs: Some(["x".to_owned()].into()), model });
        assert_eq!(remedy(&error).unwrap(), r"tcast dequantize 'it'\''s'");
        assert!(
            alternative(&error).unwrap().starts_with("or leave the quantized weights as they are with --exclude 'x',")
        );
        // Some commands do not take patterns.
        let error = Error::new("holds codes").of(Kind::Codes { globs: None, model: None });
        assert_eq!((remedy(&error), alternative(&error)), (None, None));
    }

    #[test]
    fn only_a_missing_input_is_answered_with_a_word_on_standard_input() {
        let of = |kind: io::ErrorKind, what: &str| remedy(&Error::io(what, &kind.into()).in_file(Path::new("-")));
        assert!(of(io::ErrorKind::NotFound, "cannot read").is_some_and(|text| text.contains("standard input")));
        assert_eq!(of(io::ErrorKind::BrokenPipe, "cannot write"), None);
    }

    #[test]
    fn context_decides_on_the_exit_code_and_keeps_the_error() {
        let error = anyhow::Error::from(Error::new("no")).context("reading").context(Trouble);
        assert_eq!((exit_code(&error), error.is::<Error>()), (2, true));
        assert_eq!(exit_code(&anyhow::Error::from(Error::usage("no")).context("reading")), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("no error of ours")), 1);
    }

    #[test]
    fn several_errors_have_the_exit_code_that_they_have_in_common() {
        let (usage, exists) = (|| Error::usage("x"), || Error::new("y").of(Kind::exists(OutputRole::File)));
        for (errors, code) in [
            (vec![usage(), usage()], 2),
            (vec![exists(), exists()], 4),
            (vec![usage(), exists()], 1),
            (vec![Error::new("z")], 1),
        ] {
            assert_eq!(exit_code(&Error::new("several").of(Kind::Several(errors.into())).into()), code);
        }
    }
}
