//! A folder of shards that a job writes: this module plans its contents, and [`mod@write`] writes it.

#[cfg(feature = "cli")]
mod finish;
mod write;

#[cfg(feature = "cli")]
pub(crate) use finish::{Finished, finish};
pub(super) use write::write;

use super::check::plans;
use super::output::{OutputPlace, PlannedOutput};
use super::{IfExists, Job};
use crate::container::checkpoint::{
    BESIDE_CONFIG, CONFIG, Checkpoint, INDEX, SideFiles, as_safetensors, index_in_place_of, index_text, shard_names,
    with_dtype,
};
use crate::container::{self, Input, part_names};
use crate::error::{Error, OTHER_FOLDER, Opt, Result};
use crate::io::identity::{Files, is_within};
use crate::operator::Operator;
use crate::options::ExpertForm;
use crate::plan::{GgufTask, Plan, Planned, Spread, Step, chosen_shards, shard_sizes};
use crate::progress::{Note, Observer};
use crate::quant::{can_be_part, is_named_as_part};
use crate::read::Model;
use crate::staging::{self, Manifest, ManifestShard, ManifestSource, Start, StoredPath};
use crate::text::{path_text, remove_files};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Number of side files above which the job reports that they are copied; no usual checkpoint has so many.
const MANY: usize = 1000;

/// Plans the contents of a folder. Refuses a folder that is not empty, is the input's own folder, or is in it.
pub(super) fn plan<'a>(
    job: &Job,
    gguf: Option<&GgufTask>,
    model: &Model<'a>,
    path: &Path,
    files: &mut Files,
    observer: &dyn Observer,
) -> Result<PlannedOutput<'a>> {
    let (source, container, spread) =
        (model.source, job.format().unwrap_or(container::SHARDS), spread(job, model.source));
    let (mut plans, planned) = plans(job, gguf, model, Some(path), (container, spread), None, observer)?;
    let start = match (job.partition, job.resume, job.existing) {
        (Some(_), ..) => Start::Part,
        (None, true, _) => Start::Resume,
        (None, false, IfExists::Replace) => Start::Replace,
        (None, false, _) => Start::Anew,
    };
    if let Some(folder) = source.side_folder() {
        check_apart(path, folder)?;
    }
    check_names(&plans)?;
    let mut sizes = match spread {
        Spread::AsInputs => shard_sizes(source),
        Spread::One | Spread::UpTo(_) => plans.iter().map(|plan| plan.source_bytes() + plan.len).collect(),
    };
    let mut side_files = match source.side_folder() {
        Some(folder) if job.format().is_none() => SideFiles::of(folder, source.shard_names())?,
        _ => SideFiles::default(), // a GGUF stores this in its own metadata
    };
    side_files.check_links(source)?;
    let (mut shards, index) = match job.format() {
        None => shards_and_index(source, &plans, spread),
        Some(_) => (parts(path, &plans), None),
    };
    let index_text = index.clone().map(|name| (name, index_of(source, &plans, &shards)));
    let changed = changed_side_files(job, source, &planned, &plans)?;
    side_files.kept.retain(|name| changed.get(&**name) != Some(&None));
    let changed = changed.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?)));
    let mut texts: BTreeMap<String, String> = index_text.into_iter().chain(changed).collect();
    let modules: &'a [Checkpoint] = if job.format().is_none() { &source.modules } else { &[] };
    if !modules.is_empty() {
        let plans_of_modules = plans_of_modules(job, modules, observer)?;
        for (module, plan) in modules.iter().zip(&plans_of_modules) {
            let (shard, config) = module_shard(source, module, plan)?;
            side_files.leave_out_module(&shard.file);
            texts.extend(config);
            sizes.push(plan.source_bytes());
            shards.push(shard);
        }
        let cast = shards[plans.len()..].iter().map(|shard| &*shard.file);
        observer.notice(Note::ModulesCast(cast.collect()));
        plans.extend(plans_of_modules);
    }
    let side_file = |name: String| {
        let path = source.side_folder().unwrap_or(path).join(&name);
        ManifestSource::side_file(&path, source.whole_text_of(&name), name)
    };
    let others = gguf.into_iter().flat_map(GgufTask::files).map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ManifestSource::side_file(path, None, name)
    });
    let mut manifest = Manifest {
        tcast: env!("CARGO_PKG_VERSION").to_owned(),
        operator: job.operator().name().to_owned(),
        options: job.task.recorded(source),
        input: source.path.to_string_lossy().into_owned(),
        input_at: StoredPath::absolute(&source.path),
        inputs: source
            .shards
            .iter()
            .chain(modules.iter().flat_map(|module| &module.shards))
            .map(fingerprint)
            .chain(others)
            .collect::<Result<_>>()?,
        side_files: side_files.kept.iter().cloned().map(side_file).collect::<Result<_>>()?,
        texts,
        shards,
        index,
        replaced: Vec::new(),
    };
    if start == Start::Replace {
        let replaced = staging::replaced(path, &manifest)
            .and_then(|replaced| check_descriptions(path, &manifest).map(|()| replaced));
        manifest.replaced = replaced.map_err(|error| unless_input(error, files))?;
    }
    let is_there = staging::check(path, start, &manifest)?;
    check_files(path, &manifest, files).map_err(|error| error.with(Opt::OUTPUT, OTHER_FOLDER))?;
    if start == Start::Replace {
        report_staying(path, &manifest, observer)?;
    }
    report_side_files(&side_files, &manifest, source, observer);
    let (chosen, findings) = (chosen_shards(&sizes, job.partition), planned.findings);
    let place = OutputPlace::Folder { start, manifest: Box::new(manifest), is_there };
    Ok(PlannedOutput { source, path: path.to_owned(), place, container, plans, chosen, findings })
}

/// Maximum bytes of a shard by default, as in transformers, if the input is not a folder of shards.
const USUAL: u64 = 5_000_000_000;

/// Returns how the tensors of a folder are distributed over its shards.
pub(super) fn spread(job: &Job, source: &Checkpoint) -> Spread {
    match job.task.max_shard_size() {
        Some(most) => Spread::UpTo(most),
        None if source.folder.is_none() || source.is_distributed() => Spread::UpTo(USUAL),
        // The stack of a layer can have the experts of several shards, which would be left without tensors.
        None if source.experts == Some(ExpertForm::Stacked) && source.shards.len() > 1 => {
            Spread::UpTo(source.shards.iter().map(Input::len).max().unwrap_or(USUAL))
        }
        None => Spread::AsInputs,
    }
}

/// Plans the modules of a model, each in a file.
fn plans_of_modules<'a>(job: &Job, modules: &'a [Checkpoint], observer: &dyn Observer) -> Result<Vec<Plan<'a>>> {
    let mut plans_of = Vec::new();
    for module in modules {
        let model = Model::of_values(module);
        plans_of.extend(plans(job, None, &model, None, (container::SHARDS, Spread::One), None, observer)?.0);
    }
    Ok(plans_of)
}

/// Names the files that stay in a folder that is replaced.
fn report_staying(folder: &Path, manifest: &Manifest, observer: &dyn Observer) -> Result<()> {
    let staying = staging::staying(folder, manifest)?;
    if !staying.is_empty() {
        observer.notice(Note::Staying { folder, files: &staying });
    }
    Ok(())
}

/// Reports files of the input's folder that are left out or copied unexpectedly.
fn report_side_files(side_files: &SideFiles, manifest: &Manifest, source: &Checkpoint, observer: &dyn Observer) {
    if !side_files.left_out.is_empty() {
        observer.notice(Note::LeftOut(&side_files.left_out));
    }
    if !side_files.modules.is_empty() {
        observer.notice(Note::ModulesCopied(&side_files.modules));
    }
    let count = manifest.side_files.len();
    if count > MANY {
        let bytes = manifest.side_files.iter().map(|side| side.bytes).sum();
        observer.notice(Note::ManySideFiles { folder: &source.path, count, bytes });
    }
}

/// Returns the shards that the folder will have, and the name of their index, if there is one.
fn shards_and_index(source: &Checkpoint, plans: &[Plan], spread: Spread) -> (Vec<ManifestShard>, Option<String>) {
    // diffusers and transformers use different names for the file of a model.
    let own_index = match (&source.folder, &source.shards[..]) {
        (Some(_), [first, rest @ ..]) if !first.is_distributed() && (rest.is_empty() || !source.added.is_empty()) => {
            Some(source.shard_name(first)).filter(|name| !name.contains("-of-"))
        }
        _ => None,
    };
    let own_index = own_index.map(|name| index_in_place_of(&as_safetensors(&name)));
    let index = source.index.as_ref().map(|index| as_safetensors(&index.name)).or(own_index);
    let index = index.unwrap_or_else(|| INDEX.to_owned());
    let names = match spread {
        Spread::AsInputs if source.added.is_empty() => {
            source.new_shard_names().iter().map(|name| as_safetensors(name)).collect::<Vec<_>>()
        }
        Spread::AsInputs | Spread::One | Spread::UpTo(_) => shard_names(&index, plans.len()),
    };
    // Loaders look for the only shard by its name.
    let is_alone = source.dropped.has_emptied_shards && names == shard_names(&index, 1);
    let has_index = plans.len() > 1 || spread == Spread::AsInputs && source.index.is_some() && !is_alone;
    let shard = |(file, plan): (String, &Plan)| ManifestShard { file, bytes: plan.len };
    (names.into_iter().zip(plans).map(shard).collect(), has_index.then_some(index))
}

/// Returns the shard of a module, by its path in the folder of the model, and the new text of the config beside it.
fn module_shard(
    source: &Checkpoint,
    module: &Checkpoint,
    plan: &Plan,
) -> Result<(ManifestShard, Option<(String, String)>)> {
    let folder = source.folder.as_deref().unwrap_or(&source.path);
    let file = path_text(module.path.strip_prefix(folder).unwrap_or(&module.path));
    let text = module.side_file(CONFIG)?.and_then(|text| with_most_used_dtype(text, std::slice::from_ref(plan)));
    let config = text.map(|text| (path_text(Path::new(&file).with_file_name(CONFIG)), text));
    Ok((ManifestShard { file, bytes: plan.len }, config))
}

/// Returns the parts of a GGUF model, which have the name of their folder.
fn parts(folder: &Path, plans: &[Plan]) -> Vec<ManifestShard> {
    let model = folder.file_name().unwrap_or_default().to_string_lossy();
    let names = part_names(&model, plans.len());
    names.into_iter().zip(plans).map(|(file, plan)| ManifestShard { file, bytes: plan.len }).collect()
}

/// Returns the side files that are not copied unchanged: their new texts, or `None` if a file is left out.
fn changed_side_files(
    job: &Job,
    source: &Checkpoint,
    planned: &Planned,
    plans: &[Plan],
) -> Result<BTreeMap<&'static str, Option<String>>> {
    if source.side_folder().is_none() || job.format().is_some() {
        return Ok(BTreeMap::new());
    }
    let mut changed: BTreeMap<_, _> = planned.side_files.iter().cloned().collect();
    if !matches!(job.operator(), Operator::Dequantize | Operator::Quantize) {
        let text = match changed.get(CONFIG) {
            Some(Some(text)) => with_most_used_dtype(text, plans),
            _ => source.side_file(CONFIG)?.and_then(|text| with_most_used_dtype(text, plans)),
        };
        changed.extend(text.map(|text| (CONFIG, Some(text))));
    }
    Ok(changed)
}

/// Refuses duplicate names of tensors in the output, across all shards.
fn check_names(plans: &[Plan]) -> Result<()> {
    let mut seen = HashSet::new();
    match plans.iter().flat_map(Plan::names).find(|name| !seen.insert(*name)) {
        Some(name) => Err(Error::new("two tensors of the output would have this name").in_tensor(name)),
        None => Ok(()),
    }
}

/// Refuses descriptions of quantized weights that would stay next to a new checkpoint, because readers would apply them
/// to it.
fn check_descriptions(folder: &Path, manifest: &Manifest) -> Result<()> {
    for name in BESIDE_CONFIG {
        let path = folder.join(name);
        if manifest.files().all(|file| file != *name) && path.try_exists().is_ok_and(|is_there| is_there) {
            let error = Error::new("describes the checkpoint that is to be replaced, and would stay").in_file(&path);
            return Err(error.remedy(remove_files(&[path])).with(Opt::OUTPUT, OTHER_FOLDER));
        }
    }
    Ok(())
}

/// Returns another error if a file in the way is an input of the run: the user must not remove it.
fn unless_input(error: Error, files: &Files) -> Error {
    match error.path() {
        Some(path) if !error.advice().is_empty() && files.is_read(path) => {
            let what = "the output folder contains this input, and readers would take it for a part of the output";
            Error::new(what).in_file(path).with(Opt::OUTPUT, OTHER_FOLDER)
        }
        _ => error,
    }
}

/// Refuses an output that is the folder of the input or in it: side files would be copied onto themselves.
fn check_apart(output: &Path, input: &Path) -> Result<()> {
    if !is_within(output, input) {
        return Ok(());
    }
    let what = if is_within(input, output) { "is the folder of the input" } else { "is in the folder of the input" };
    Err(Error::new(format!("the output {what}")).in_file(output).with(Opt::OUTPUT, OTHER_FOLDER))
}

fn index_of(source: &Checkpoint, plans: &[Plan], shards: &[ManifestShard]) -> String {
    let mut weight_map = BTreeMap::new();
    for (plan, shard) in plans.iter().zip(shards) {
        weight_map.extend(plan.names().map(|name| (name, shard.file.as_str())));
    }
    let metadata = source.index.as_ref().map(|index| index.metadata.clone()).unwrap_or_default();
    let bytes = plans.iter().map(Plan::tensor_bytes).sum();
    let elements = plans.iter().flat_map(|plan| &plan.steps).map(Step::count).sum();
    index_text(&metadata, &weight_map, bytes, elements)
}

/// Returns the config with the type that most elements have now, without scales and zero points; `None` if that changes
/// nothing.
fn with_most_used_dtype(config: &str, plans: &[Plan]) -> Option<String> {
    let mut elements: BTreeMap<&'static str, u64> = BTreeMap::new();
    let steps = || plans.iter().flat_map(|plan| &plan.steps);
    // Names are compared only beside codes: there may be a million.
    let has_codes = steps().any(|tensor| can_be_part(Some(tensor.dtypes().1)));
    for tensor in steps().filter(|tensor| !has_codes || !is_named_as_part(tensor.name())) {
        *elements.entry(tensor.dtypes().1.name()).or_default() += tensor.count();
    }
    with_dtype(config, &elements)
}

/// Returns the fingerprint of an input file, for later runs to compare.
fn fingerprint(shard: &Input) -> Result<ManifestSource> {
    let name = shard.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    ManifestSource::shard(shard.path(), name, shard.header())
}

/// Refuses a folder that is another output of the run, or in which a file of the input would be replaced or removed.
fn check_files(folder: &Path, manifest: &Manifest, run: &mut Files) -> Result<()> {
    run.write(folder)?;
    manifest.files().chain(&manifest.replaced).try_for_each(|name| run.check_unread(&folder.join(name)))
}
