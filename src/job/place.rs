//! Places of outputs: the job's output, or next to their inputs; in a folder, under the names of their inputs.

use super::{Job, Publish};
use crate::container::WrittenFiles;
use crate::container::checkpoint::{Checkpoint, description};
use crate::container::{self, Container};
use crate::error::{A_FOLDER, ELSEWHERE, Error, ErrorKind, Kind, OTHER_FOLDER, Opt, Result};
use crate::io::advice::give_whole;
use crate::io::identity::Files;
use crate::io::output::{descriptor, directory_of, ends_in_separator, is_standard_output};
use crate::operator::Operator;
use crate::text::shorten;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folder in which outputs take the names of their inputs: with several inputs, the named output; with one
/// file, an existing folder or a name that ends in a slash. Refuses an output for several inputs that is a file, or is
/// named like one.
pub(super) fn folder_of_outputs<'a>(job: &Job<'a>, inputs: &[&Checkpoint]) -> Result<Option<&'a Path>> {
    let Some(output) = job.output else { return Ok(None) };
    if job.publish == Publish::Together {
        return folder_of_all(output, inputs);
    }
    if let [source] = inputs {
        return Ok((is_file(job, source) && is_named_as_folder(output)).then_some(output));
    }
    if output.exists() && !output.is_dir() || is_standard_output(output) {
        let error = Error::new("is not a folder, and the outputs of several inputs go into one").in_file(output);
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, A_FOLDER));
    }
    let is_known = !is_named_as_folder(output) && names_a_format(output);
    if is_known || is_named_as_file(output) {
        let error = Error::new("is named as a file, and the outputs of several inputs go into a folder");
        let error = error.in_file(output).of(Kind::Usage);
        let error = common_folder(inputs).map(give_whole).into_iter().fold(error, Error::remedy);
        return Err(error.with_value(Opt::OUTPUT, output.join(""), "for a folder of that name: {}"));
    }
    Ok(Some(output))
}

/// Returns the folder of which all inputs are shards.
fn common_folder<'i>(inputs: &[&'i Checkpoint]) -> Option<&'i Path> {
    let folder = |input: &&'i Checkpoint| input.folder.is_none().then(|| directory_of(&input.path));
    let first = folder(inputs.first()?)?;
    let is_common = description(first).is_some() && inputs.iter().all(|input| folder(input) == Some(first));
    is_common.then_some(first)
}

/// Returns this folder for outputs that belong together. With one input, the output is a file if its extension names a
/// format.
fn folder_of_all<'a>(output: &'a Path, inputs: &[&Checkpoint]) -> Result<Option<&'a Path>> {
    let is_stream = is_standard_output(output);
    match inputs {
        [source] => {
            let is_file = is_stream || !output.is_dir() && names_a_format(output);
            if is_file || source.is_folder() {
                return Ok(None);
            }
        }
        _ if is_stream => {
            let error = Error::new("several outputs cannot go to standard output").in_file(output);
            return Err(error.of(Kind::Usage).with(Opt::OUTPUT, A_FOLDER));
        }
        _ => {}
    }
    if output.exists() && !output.is_dir() {
        let error = Error::new("is not a folder, and the outputs go into one").in_file(output);
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, A_FOLDER));
    }
    Ok(Some(output))
}

/// `small.onnx` -> `small.onnx.data`: returns the file next to a model for the elements of its tensors; `None` for a
/// stream.
pub(super) fn data_file(output: &Path) -> Option<PathBuf> {
    let mut name = output.file_name().filter(|_| descriptor(output).is_none())?.to_owned();
    name.push(".data");
    Some(output.with_file_name(name))
}

/// Returns the output as named, or a path next to the input with the type in its name. `folder` is the folder of all
/// outputs; `is_only` is true if there is one input.
pub(super) fn output_path(job: &Job, source: &Checkpoint, folder: Option<&Path>, is_only: bool) -> Result<PathBuf> {
    if let Some(folder) = folder {
        return name_in(folder, job, source);
    }
    if let Some(output) = job.output {
        return Ok(output.to_owned());
    }
    let Some(label) = job.label.or(job.task.label()) else {
        let error = Error::new("without a type the output has no name of its own");
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, "name the output with {}"));
    };
    let (untyped, is_file) = (untyped(job, source)?, is_file(job, source));
    let output = if is_file { with_type(&untyped, label) } else { folder_with_type(&untyped, label)? };
    check_outside_cache(&output, label, is_only).map_err(|error| error.in_file(&source.path))?;
    let beside = if is_file { beside_input(&source.path, output) } else { return Ok(output) };
    // Several shards are converted together, in their folder.
    beside.map_err(|error| match error.kind() {
        ErrorKind::Refused if !is_only => {
            error.advised([]).of(Kind::System).remedy(give_whole(directory_of(&source.path)))
        }
        _ => error,
    })
}

/// True if an output is a file, unless its name says otherwise.
pub(super) fn is_file(job: &Job, source: &Checkpoint) -> bool {
    job.task.max_shard_size().is_none() && (!source.is_folder() || job.format().is_some())
}

/// Returns the path of an output next to its input, without the type in its name.
fn untyped(job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    let is_file = is_file(job, source);
    Ok(match &source.folder {
        Some(folder) if is_file => file_of(job, &named(folder)?),
        Some(folder) => named(folder)?,
        None if is_file => source.own_name(job.format()),
        None => source.own_name(job.format()).with_extension(""),
    })
}

/// Refuses an output in a cache of Hugging Face, whose libraries remove files that they did not download, and cannot
/// read a cache that has a file next to the snapshots.
fn check_outside_cache(output: &Path, label: &str, is_only: bool) -> Result<()> {
    let folder = fs::canonicalize(directory_of(output)).unwrap_or_default();
    let Some(repository) = cached_repository(&folder) else { return Ok(()) };
    let name = repository.file_name().unwrap_or_default().to_string_lossy();
    let mut name = OsString::from(name.rsplit("--").next().unwrap_or_default());
    name.push("-");
    // The name of a snapshot is its hash.
    let is_snapshot = folder == repository.join(SNAPSHOTS);
    name.push(if is_snapshot { label.as_ref() } else { output.file_name().unwrap_or_default() });
    let here = fs::canonicalize(".").unwrap_or_default();
    let elsewhere = if cached_repository(&here).is_some() { env::home_dir() } else { Some(".".into()) };
    let message = "the output would be in a cache of Hugging Face, which deletes files that it did not download";
    let error = Error::new(message);
    Err(match elsewhere {
        Some(folder) if is_only => error.with_value(Opt::OUTPUT, folder.join(name), ELSEWHERE),
        _ => error.with(Opt::OUTPUT, OTHER_FOLDER),
    })
}

/// Name of the folder in which a cache of Hugging Face keeps the revisions of a repository.
const SNAPSHOTS: &str = "snapshots";

/// Returns the folder of the repository, such as `models--org--llama`, if a folder is in such a cache.
fn cached_repository(folder: &Path) -> Option<&Path> {
    const KINDS: [&str; 3] = ["models--", "datasets--", "spaces--"];
    let is_repository = |folder: &&Path| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        KINDS.iter().any(|kind| name.starts_with(kind)) && folder.join(SNAPSHOTS).is_dir()
    };
    folder.ancestors().find(is_repository)
}

/// True if an output is a folder of shards. Refuses a folder that is named like a file.
pub(super) fn is_folder(job: &Job, source: &Checkpoint, output: &Path) -> Result<bool> {
    let is_file = is_standard_output(output) || !output.is_dir() && names_a_format(output);
    let is_folder = job.task.max_shard_size().is_some() || source.is_folder() && !is_file && job.format().is_none();
    if !is_folder && source.base.is_some() {
        let error = Error::new("is one file, which has no place for the config").in_file(output);
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, A_FOLDER));
    }
    if !is_folder {
        return Ok(false);
    }
    if job.names(output) && !is_file && is_named_as_file(output) {
        return Err(unknown_format(job, source, output));
    }
    if is_file {
        let error = Error::new("is one file, and shards of a limited size go into a folder").in_file(output);
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, A_FOLDER));
    }
    Ok(true)
}

/// Returns the format of an output that is one file: the format of its extension, or of the input.
pub(super) fn container(job: &Job, source: &Checkpoint, output: &Path) -> Result<&'static dyn Container> {
    let given = job.format().unwrap_or(source.format_of_output());
    let extension = |container: &dyn Container| container.format_info().extension;
    match container::by_extension(output) {
        _ if !job.names(output) => Ok(given),
        Some(target) if job.format().is_some_and(|format| extension(format) != extension(target)) => {
            let error = Error::new(format!("the output is a .{} file", extension(given))).in_file(output);
            Err(error.with(Opt::OUTPUT, format!("name an output that ends in .{}", extension(given))))
        }
        Some(target) if target.format_info().is_changed_only() && extension(target) != extension(given) => {
            let message =
                format!("a .{} file is only made from another one: it holds more than tensors", extension(target));
            Err(Error::new(message).in_file(output).with(Opt::OUTPUT, other_format(job, source)))
        }
        Some(target) if target.format_info().writing == WrittenFiles::Never => Err(unknown_format(job, source, output)),
        Some(target) if target.format_info().writing == WrittenFiles::OnRequest && job.format().is_none() => {
            let error = Error::new(format!("{} makes no .gguf files", job.operator().name())).in_file(output);
            Err(match job.operator() {
                Operator::Dequantize => error.run("quantize", Some("".as_ref()), &[], "{} makes .gguf files"),
                _ => error.with(Opt::OUTPUT, other_format(job, source)),
            })
        }
        Some(target) => Ok(target),
        None if output.extension().is_none() || output.extension() == source.path.extension() => Ok(given),
        None => Err(unknown_format(job, source, output)),
    }
}

/// Refuses an output that tcast named after its input, if that is a file of an input, or another output of the run.
pub(super) fn check_own_place(job: &Job, output: &Path, files: &Files) -> Result<()> {
    let (is_in_folder, has_typed_names) = (job.output.is_some(), job.publish == Publish::Each);
    files.check_unread(output).map_err(|error| match (is_in_folder, has_typed_names) {
        (false, _) => error.with(Opt::OUTPUT, "name the output, or a folder for several outputs, with {}"),
        (true, true) => {
            error.with(Opt::OUTPUT, OTHER_FOLDER).remedy("leave it out: then the type is in the names of the outputs")
        }
        (true, false) => error.with(Opt::OUTPUT, OTHER_FOLDER),
    })?;
    files.check_unwritten(output).map_err(|error| match job.publish {
        Publish::Each => error.remedy("convert one of these inputs in a run of its own, to another place"),
        Publish::Together => error.remedy("rename one of the inputs"),
    })
}

/// True if the extension of an output belongs to a format that tcast writes.
fn names_a_format(output: &Path) -> bool {
    container::by_extension(output).is_some_and(|format| format.format_info().writing != WrittenFiles::Never)
}

/// True if a new output is named like a file of weights, and not like a folder: `llama-3.1` is a folder in spite of its
/// dot.
fn is_named_as_file(output: &Path) -> bool {
    const FILES: [&str; 23] = [
        "7z", "bin", "bz2", "ckpt", "csv", "gguf", "ggml", "gz", "h5", "hdf5", "json", "keras", "mat", "msgpack",
        "pickle", "pkl", "pt", "pth", "tar", "tflite", "txt", "xz", "zip",
    ];
    let extension = output.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    !is_named_as_folder(output) && extension.is_some_and(|extension| FILES.contains(&&*extension))
}

/// True if an output is a folder, or named as one by a separator at its end.
fn is_named_as_folder(output: &Path) -> bool {
    let name = output.as_os_str().as_encoded_bytes();
    ends_in_separator(output) || name.ends_with(b"/.") || name.ends_with(br"\.") && cfg!(windows) || output.is_dir()
}

fn unknown_format(job: &Job, source: &Checkpoint, output: &Path) -> Error {
    Error::new("tcast writes no format of this extension").in_file(output).with(Opt::OUTPUT, other_format(job, source))
}

/// Returns the remedy for an output in a format that cannot hold the tensors of an input.
fn other_format(job: &Job, source: &Checkpoint) -> String {
    let are_several = source.names().nth(1).is_some();
    let is_model = source.is_onnx_model() && !matches!(job.operator(), Operator::Promote(_));
    let formats = match job.operator() {
        _ if job.format().is_some() => ".gguf".to_owned(),
        Operator::Quantize if is_model => ".onnx".to_owned(),
        Operator::Quantize => ".safetensors".to_owned(),
        _ => container::formats(|format| {
            let info = format.format_info();
            (info.can_be_made() || is_model && info.is_changed_only()) && !(are_several && info.holds_one)
        }),
    };
    format!("name an output that ends in {formats}")
}

/// Returns an output next to the input. Refuses it in a system folder, for an input that is a stream, and if a loader
/// would mistake the output for a part of the input's checkpoint.
fn beside_input(input: &Path, output: PathBuf) -> Result<PathBuf> {
    const SYSTEM: [&str; 3] = ["/dev", "/proc", "/sys"];
    let folder = directory_of(input);
    let whole = fs::canonicalize(folder).unwrap_or_default();
    let is_of_system = SYSTEM.iter().any(|system| whole.starts_with(system)) && !whole.starts_with("/dev/shm");
    if is_of_system || descriptor(input).is_some() {
        let error = Error::new("the output cannot be in the folder of the input").in_file(input);
        let error = error.of(Kind::Usage).with_value(Opt::OUTPUT, "FILE", "name the output: {}");
        return Err(error.with_value(Opt::OUTPUT, "-", "{} for standard output"));
    }
    check_joins_none(folder, &output).map_err(|error| error.in_file(input))?;
    Ok(output)
}

/// Refuses a file that a loader would mistake for a part of the checkpoint in its folder. The path that the error
/// proposes is free.
fn check_joins_none(folder: &Path, output: &Path) -> Result<()> {
    let is_shard = output.extension() == Some(container::SHARDS.format_info().extension.as_ref());
    let Some(other) = description(folder).filter(|_| is_shard && !output.exists()) else { return Ok(()) };
    let name = output.file_name().unwrap_or_default();
    let elsewhere = match folder.file_name() {
        Some(_) => folder.with_file_name(name),
        None => folder.join("..").join(name),
    };
    let numbered = (2..).map(|number: u32| with_type(&elsewhere, &number.to_string()));
    let is_free = |path: &PathBuf| fs::symlink_metadata(path).is_err();
    let elsewhere = std::iter::once(elsewhere.clone()).chain(numbered).find(is_free).unwrap_or_default();
    let message =
        format!("{} describes the folder, and a second .safetensors file would make it ambiguous", shorten(&other));
    Err(Error::new(message).with_value(Opt::OUTPUT, elsewhere, ELSEWHERE))
}

/// Returns the path with the input's own name in the folder of outputs.
fn name_in(folder: &Path, job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    let nameless = || Error::usage("has no name for its output").in_file(&source.path).remedy("give it by its name");
    let output = folder.join(untyped(job, source)?.file_name().ok_or_else(nameless)?);
    check_joins_none(folder, &output).map_err(|error| error.in_file(&source.path))?;
    Ok(output)
}

/// `model.safetensors` -> `model.TYPE.safetensors`.
fn with_type(input: &Path, dtype: &str) -> PathBuf {
    let mut name: OsString = input.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(dtype);
    if let Some(extension) = input.extension() {
        name.push(".");
        name.push(extension);
    }
    input.with_file_name(name)
}

/// Returns a folder by its own name, even if it is given as `.` or the like.
fn named(folder: &Path) -> Result<PathBuf> {
    match folder.file_name() {
        Some(_) => Ok(folder.to_owned()),
        None => fs::canonicalize(folder).map_err(|error| Error::io("cannot read", &error).in_file(folder)),
    }
}

/// `llama` -> `llama.gguf`, in the format of the job.
fn file_of(job: &Job, folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(job.format().unwrap_or(container::SHARDS).format_info().extension);
    folder.with_file_name(name)
}

/// `llama` -> `llama-TYPE`, next to it.
fn folder_with_type(folder: &Path, dtype: &str) -> Result<PathBuf> {
    let Some(name) = folder.file_name() else {
        let error = Error::new("the folder has no name for the output").in_file(folder);
        return Err(error.of(Kind::Usage).with(Opt::OUTPUT, "name the output with {}"));
    };
    let mut name = name.to_owned();
    name.push("-");
    name.push(dtype);
    Ok(folder.with_file_name(name))
}
