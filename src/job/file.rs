//! An output that is one file: its place, and the plan of its contents.

use super::check::plans;
use super::output::{OutputPlace, PlannedOutput};
use super::{IfExists, Job, Publish, place};
use crate::container;
use crate::container::checkpoint::Checkpoint;
use crate::error::{A_FOLDER, ELSEWHERE, Error, ErrorKind, Kind, OTHER_FILE, OTHER_FOLDER, Opt, Result};
use crate::io::identity::Files;
use crate::io::output::{Destination, elsewhere};
use crate::plan::{GgufTask, Plan, Spread};
use crate::progress::Observer;
use crate::read::Model;
use crate::text::remove_files;
use std::path::Path;

/// Finds the place of a file, and plans its contents.
pub(super) fn plan<'a>(
    job: &Job,
    gguf: Option<&GgufTask>,
    model: &Model<'a>,
    output: &Path,
    files: &mut Files,
    observer: &dyn Observer,
) -> Result<PlannedOutput<'a>> {
    let source = model.source;
    check_alone(job, source, output)?;
    let container = place::container(job, source, output)?;
    let (destination, refusal) = match find_place(job, output, files) {
        Ok(destination) => (destination, None),
        Err(error) => (None, Some(error)),
    };
    let (mut plans, planned) = plans(job, gguf, model, Some(output), (container, Spread::One), refusal, observer)?;
    let plan = &mut plans[0];
    // A pipe or device cannot be read again.
    let keeps = destination.as_ref().is_none_or(Destination::keeps);
    plan.is_deflated = keeps && container::is_deflated(&source.shards[0], container);
    let data = match (plan.data_start, place::data_file(output)) {
        (Some(_), Some(path)) => find_data_place(job, &path, destination.as_ref(), files)?,
        _ => None,
    };
    if let (Publish::Each, Some(destination)) = (job.publish, &destination) {
        destination.check_space(plan.space())?;
    }
    let (path, place, findings) = (output.to_owned(), OutputPlace::File { destination, data }, planned.findings);
    Ok(PlannedOutput { source, path, place, container, plans, chosen: vec![0], findings })
}

/// Refuses outputs that do not fit on the disk together. All of them go to one folder.
pub(super) fn check_space_of_all(outputs: &[PlannedOutput]) -> Result<()> {
    let files = || outputs.iter().filter(|output| matches!(output.place, OutputPlace::File { .. }));
    let needed = files().flat_map(|file| &file.plans).map(Plan::space).sum();
    match files().next().map(|file| &file.place) {
        Some(OutputPlace::File { destination: Some(first), .. }) => first.check_space(needed),
        _ => Ok(()),
    }
}

/// Returns the destination of the second file, next to the first.
fn find_data_place(
    job: &Job,
    path: &Path,
    first: Option<&Destination>,
    files: &mut Files,
) -> Result<Option<Destination>> {
    let Some(first) = first else { return Ok(None) };
    let refuse = |path: &Path| {
        let error = Error::new("the elements of the model go to a file beside it, and it is not a file itself");
        Err(error.in_file(path).with(Opt::OUTPUT, "name a file"))
    };
    if !first.keeps() {
        return refuse(first.path());
    }
    let leads_elsewhere = |path: &Path| {
        let what = "is a link to another folder, and the elements of the model go to a file beside the model";
        Error::new(what).in_file(path)
    };
    if let Some(file) = elsewhere(first.path()) {
        return Err(leads_elsewhere(first.path()).with_value(Opt::OUTPUT, file, ELSEWHERE));
    }
    if elsewhere(path).is_some() {
        return Err(leads_elsewhere(path).remedy(remove_files(&[path])).with(Opt::OUTPUT, OTHER_FILE));
    }
    let data = Destination::among(files, path, job.existing == IfExists::Replace).map_err(|error| {
        if job.existing != IfExists::Skip || error.kind() != ErrorKind::Exists {
            return error;
        }
        let error = Error::new("exists already, but the model that would refer to it does not").in_file(path);
        error.remedy("remove it").with(Opt::OUTPUT, OTHER_FILE)
    })?;
    if data.keeps() { Ok(Some(data)) } else { refuse(path) }
}

/// Refuses options that are only for folders of shards.
fn check_alone(job: &Job, source: &Checkpoint, output: &Path) -> Result<()> {
    let (option, what) = match (job.partition, job.resume) {
        (Some(_), _) => (Opt::PART, "only folders of shards are written in parts, and the output is one file"),
        (None, true) => (Opt::RESUME, "only folders of shards can be continued, and the output is one file"),
        (None, false) => return Ok(()),
    };
    let error = Error::usage(what).in_file(output);
    // Without a size, only the tensors of a folder are divided.
    Err(match place::container(job, source, output)?.format_info().extension {
        _ if source.folder.is_some() => error.with(Opt::OUTPUT, A_FOLDER),
        "safetensors" => error.with(Opt::MAX_SHARD_SIZE, "add {}, which divides the output into shards"),
        _ => error,
    }
    .without(option))
}

/// Returns the destination of the output, if it is possible; `None` in a dry run whose folder does not exist yet.
fn find_place(job: &Job, output: &Path, files: &mut Files) -> Result<Option<Destination>> {
    let is_named = job.names(output);
    if !is_named {
        place::check_own_place(job, output, files)?;
    }
    let has_folder = output.parent().is_none_or(|folder| folder == Path::new("") || folder.exists());
    if job.dry_run && !has_folder && !is_named {
        files.write(output).map_err(|error| error.with(Opt::OUTPUT, OTHER_FOLDER))?;
        return Ok(None);
    }
    let destination = Destination::among(files, output, job.existing == IfExists::Replace);
    let destination = destination.map_err(|error| match error.cause() {
        Kind::Exists if !is_named && job.output.is_some() => error.unadvised().existing(OTHER_FOLDER),
        _ => error,
    })?;
    if job.measures.hash && !destination.keeps() {
        let error = Error::new("cannot be read again for its hashes: it is not a file").in_file(output);
        return Err(error.with(Opt::OUTPUT, "name a file").without(Opt::HASH));
    }
    if !job.fail_on.is_empty() && !job.dry_run && !destination.keeps() {
        let what = "is not a file, so the output cannot be undone if a value is refused at the end";
        let error = Error::new(what).in_file(output).with(Opt::OUTPUT, "name a file");
        // A GGUF file never has values that became infinite, whatever the options are.
        return Err(if job.format().is_some() { error } else { error.without(Opt::FAIL_ON) });
    }
    Ok(Some(destination))
}
