//! The input of a command: a tensor file, or a folder of shards, with or without an index that names them.
//!
//! The index is authoritative, in the format of `transformers`: `{"metadata": {...}, "weight_map": {tensor: shard}}`.
//! Names of shards are never computed, and none may lead out of the folder; a shard may be a link, as in the caches of
//! Hugging Face. Without an index, every file of the folder in the format of shards is a shard.

mod adapters;
mod disagreements;
mod dropped;
mod experts;
mod index;
mod missing;
mod models;
mod names;
mod naming;
mod side_files;

pub use disagreements::{Disagreement, check};
pub use experts::MlxStacks;
pub(crate) use experts::{
    ExpertNames, PLAIN_EXPERTS, PlaceInStack, layer_of_expert, name_of_expert, names_in_mlx, stack_of,
};
pub use index::{INDEX, Index, as_safetensors, index_in_place_of, index_text, shard_names, weight_map};
pub(crate) use names::has_written_shards;
pub use names::{description, is_index, is_plain, is_shard_name, is_written_shard};
pub(crate) use naming::model_type;
pub use naming::{AssembledTensor, Naming};
pub(crate) use side_files::describes;
pub use side_files::{
    BESIDE_CONFIG, CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG, SideFiles, descriptions, is_inside, with_dtype,
};

use super::gguf::{check_tensors, parts_of, remove_keys, stem_of_part};
use super::pytorch::{is_shard_of_pieces, open_folder};
use super::{Container, Input, ReadOptions, SHARDS, ShardNames, Tensor, probe_with};
use crate::error::{Error, Kind, Result};
use crate::io::advice::take_out;
use crate::io::map::MappedFile;
use crate::io::open::is_missing;
use crate::io::output::{WORK, directory_of};
use crate::io::temporaries::is_unfinished;
use crate::text::{counted, path_text, shorten};
use disagreements::Disagreements;
use missing::{explain, is_of_original, without_shards};
use names::{ShardFolder, file_names, is_complete_without, is_shard};
use side_files::DESCRIPTIONS;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Returns the error for a tensor that is not among those of these names.
pub(crate) fn no_tensor<'n>(names: impl IntoIterator<Item = &'n str>, name: &str) -> Error {
    let names = names.into_iter().map(str::to_owned).collect();
    Error::new(format!("there is no tensor '{}'", shorten(name))).of(Kind::NoTensor { name: name.into(), names })
}

/// Folder of the config and the tokenizer in a checkpoint of verl and others.
const BASE: &str = "huggingface";

/// The form in which files of Hugging Face store the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum ExpertForm {
    /// Each weight of all experts of a layer is one tensor, and gate and up are one weight
    Stacked,
    /// Each expert has its own tensors
    Single,
}

/// A file, or a folder of shards.
#[derive(Default)]
pub struct Checkpoint {
    /// The path as given.
    pub path: PathBuf,
    /// The folder of the shards; `None` for a single file.
    pub folder: Option<PathBuf>,
    pub index: Option<Index>,
    /// The shards in the order of their names, or the single file.
    pub shards: Vec<Input>,
    /// Errors of shards that could not be opened. A single file that cannot be opened is an error instead.
    pub broken: Vec<Error>,
    /// Names of tensors that cannot be read, and that the caller excludes.
    pub(crate) left_out: Vec<String>,
    /// Tensors that the caller leaves out of the outputs.
    pub(crate) dropped: Dropped,
    /// Names of tensors that outputs take from another checkpoint, whose shards are among these.
    pub(crate) added: Vec<Box<str>>,
    /// Names of the quantized weights of other checkpoints that are among these tensors, with the quantization method of the
    /// config there.
    pub(crate) added_weights: Vec<(String, Option<String>)>,
    /// The form that its experts get.
    pub(crate) experts: Option<ExpertForm>,
    /// New names of modules with experts, by the names that configs have.
    pub(crate) moved: HashMap<String, String>,
    /// Disagreements between the index and the shards, or among the shards.
    pub disagreements: Vec<Disagreement>,
    /// Tensors that are made of stored ones; only with [`Naming::HuggingFace`].
    pub assembled: Vec<AssembledTensor>,
    /// The kind of the names of its tensors.
    pub naming: Naming,
    /// Modules of sentence-transformers in subfolders, which are converted too; only after [`Self::open_modules`].
    pub(crate) modules: Vec<Checkpoint>,
    /// The folder of the original model, whose config and other files belong to the tensors.
    pub base: Option<PathBuf>,
    descriptions: side_files::Descriptions,
}

/// The tensors that are left out of a checkpoint.
#[derive(Default)]
pub(crate) struct Dropped {
    pub(super) names: Vec<Box<str>>,
    /// True if the checkpoint had quantized weights with them.
    pub(crate) was_quantized: bool,
    /// True if shards had no other tensors, and are gone.
    pub(crate) has_emptied_shards: bool,
}

impl Dropped {
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

impl Checkpoint {
    /// True if the checkpoint is an ONNX model.
    pub(crate) fn is_onnx_model(&self) -> bool {
        self.shards.iter().any(|shard| shard.container.format_info().is_changed_only())
    }

    /// True if the checkpoint is a folder that several processes wrote.
    pub(crate) fn is_distributed(&self) -> bool {
        self.shards.first().is_some_and(Input::is_distributed)
    }

    /// True if the checkpoint is a folder with a file for each rank.
    pub(crate) fn has_ranks(&self) -> bool {
        let facts = self.shards.first().and_then(|shard| shard.contents.pickle.as_ref());
        facts.is_some_and(|facts| facts.form == "ranks")
    }

    /// True if the checkpoint is a GGUF model.
    pub(crate) fn is_gguf(&self) -> bool {
        self.shards.first().is_some_and(Input::is_gguf)
    }

    /// Leaves out the tensors that cannot be read and whose names match.
    pub(crate) fn leave_out(&mut self, is_meant: impl Fn(&str) -> bool) {
        for shard in &mut self.shards {
            shard.contents.unreadable.retain(|error| {
                let name = error.tensor().filter(|name| is_meant(name));
                self.left_out.extend(name.map(str::to_owned));
                name.is_none()
            });
        }
    }

    /// Returns the metadata of all files.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = &(String, String)> {
        self.shards.iter().flat_map(|shard| shard.contents.metadata.iter().flatten())
    }

    pub fn tensors(&self) -> impl Iterator<Item = (&Input, &Tensor)> {
        self.shards.iter().flat_map(|shard| shard.contents.tensors.iter().map(move |tensor| (shard, tensor)))
    }

    /// Returns the error for an input of several tensors, of which one has to be chosen, or of none.
    pub(crate) fn say_which(&self) -> Error {
        let unreadable: usize = self.shards.iter().map(|shard| shard.contents.unreadable.len()).sum();
        let names: Box<[String]> = self.names().map(str::to_owned).collect();
        let count = names.len() + unreadable;
        let what = format!("contains {}; choose one", counted(count as u64, "tensor"));
        Error::new(what).of(Kind::SeveralTensors(names))
    }

    /// Returns the names that patterns can match: those of the model's tensors and modules, and of tensors that are left out.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        let left_out = self.left_out.iter().map(String::as_str);
        self.names().chain(left_out).chain(self.modules.iter().flat_map(Self::names))
    }

    /// The names of the model's tensors, without stored tensors that others are made of.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        fn of_shard((at, shard): (usize, &Input)) -> impl Iterator<Item = ((usize, usize), &str)> {
            let tensors = shard.contents.tensors.iter().enumerate();
            tensors.map(move |(number, tensor)| ((at, number), shard.name_of(tensor)))
        }
        let parts: HashSet<(usize, usize)> = self.assembled.iter().flat_map(|tensor| &tensor.parts).copied().collect();
        let stored = self.shards.iter().enumerate().flat_map(of_shard);
        let own = stored.filter(move |(place, _)| !parts.contains(place)).map(|(_, name)| name);
        own.chain(self.assembled.iter().map(|tensor| &*tensor.name))
    }

    /// All files that hold tensors, including external data.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().flat_map(|shard| &shard.files).map(MappedFile::path)
    }

    /// The path that the names of outputs derive from: if the input has another format, it has their extension,
    /// and the file may be a part of a model.
    pub(crate) fn own_name(&self, requested: Option<&dyn Container>) -> PathBuf {
        let is_kept = self.shards.first().is_none_or(|shard| shard.container.format_info().is_kept());
        let is_other = !is_kept || requested.is_some();
        let name = self.path.file_name().and_then(OsStr::to_str).filter(|_| is_other);
        let Some(name) = name else { return self.path.clone() };
        let extension = requested.unwrap_or(self.format_of_output()).format_info().extension;
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        self.path.with_file_name(format!("{}.{extension}", stem_of_part(stem)))
    }

    /// The format of an output that neither its name nor a request determines: the format of the input, or of shards.
    pub(crate) fn format_of_output(&self) -> &'static dyn Container {
        let own = self.shards[0].container;
        if own.format_info().is_kept() { own } else { SHARDS }
    }

    /// The folder of the `config.json`: the folder of the shards, or of the single file.
    pub(crate) fn config_folder(&self) -> &Path {
        self.side_folder().unwrap_or_else(|| directory_of(&self.path))
    }

    /// The folder of the files that belong to the model besides its tensors, if there is one.
    pub(crate) fn side_folder(&self) -> Option<&Path> {
        self.base.as_deref().or(self.folder.as_deref())
    }

    /// True if outputs without a name are folders of shards.
    pub(crate) fn is_folder(&self) -> bool {
        self.folder.is_some() || self.naming == Naming::HuggingFace
    }

    /// Returns every file that the conversion may read, and all other files in the folder: none of these may be an
    /// output.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut files = self.read_files();
        if let Some(folder) = self.side_folder() {
            let names = file_names(folder)?;
            let SideFiles { kept, left_out, .. } = SideFiles::of(folder, self.shard_names())?;
            let names = names.into_iter().map(PathBuf::from).chain(kept.into_iter().map(PathBuf::from)).chain(left_out);
            files.extend(names.map(|name| folder.join(name)));
        }
        Ok(files)
    }

    /// Returns every file with tensors, or with a description of them.
    pub(crate) fn read_files(&self) -> Vec<PathBuf> {
        // The descriptions determine whether the tensors of a shard are codes.
        let folder = self.config_folder();
        let names = file_names(folder).unwrap_or_else(|_| vec![CONFIG.into(), INDEX.into()]);
        let is_read =
            |name: &OsString| DESCRIPTIONS.iter().any(|file| name == file) || name.to_str().is_some_and(is_index);
        let descriptions = names.iter().filter(|name| is_read(name)).map(|name| folder.join(name));
        self.paths().map(Path::to_owned).chain(descriptions).collect()
    }

    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(Input::len).sum::<u64>() + self.modules.iter().map(Self::bytes).sum::<u64>()
    }

    /// Checks that no file was changed since it was read.
    pub fn check_unchanged(&self) -> Result<()> {
        self.shards.iter().try_for_each(Input::check_unchanged)?;
        self.modules.iter().try_for_each(Self::check_unchanged)
    }

    /// The names of its shards, or of the shards that tcast writes.
    pub(crate) fn shard_names(&self) -> ShardNames {
        let own = self.shards.first().and_then(|shard| shard.container.format_info().shards);
        own.or(SHARDS.format_info().shards).expect("it is a format of shards")
    }

    /// The name of a shard in its folder; for a single file, its path as given.
    pub fn shard_name(&self, shard: &Input) -> String {
        let path = shard.path();
        let name = if self.folder.is_some() { Path::new(path.file_name().unwrap_or_default()) } else { path };
        name.to_string_lossy().into_owned()
    }
}

/// Opens a checkpoint that can be converted: see [`check`].
pub fn open(path: &Path, options: &ReadOptions) -> Result<Checkpoint> {
    check(probe(path, options)?)
}

/// Opens a file, or every shard of a folder, given by its own path or by the path of an index in it. Fails if none of
/// the files can be read, an unfinished conversion is in the folder, the name of a shard is not text, or the index is
/// broken or names a shard outside the folder.
pub fn probe(path: &Path, options: &ReadOptions) -> Result<Checkpoint> {
    let found = find(path, options).map_err(|error| explain(error, path))?;
    Ok(Checkpoint { path: path.to_owned(), ..found })
}

fn find(path: &Path, options: &ReadOptions) -> Result<Checkpoint> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = match path.is_dir() {
        true => path,
        false if is_index(&name) => directory_of(path),
        false => return open_file(path, options),
    };
    refuse_unfinished(folder)?;
    let files = ShardFolder::read(folder, if folder == path { None } else { Some(&name) })?;
    if files.index.is_none()
        && files.shards.iter().all(|shard| is_shard_of_pieces(shard))
        && let Some(input) = open_folder(folder, options)?
    {
        let base = Some(folder.join(BASE)).filter(|base| base.join(CONFIG).is_file());
        return Ok(Checkpoint { folder: Some(folder.to_owned()), shards: vec![input], base, ..Checkpoint::default() });
    }
    let checkpoint = match &files.index {
        Some(index) => {
            open_indexed(&files, Index::read(&folder.join(index)).map_err(unusable(folder, index))?, options)
        }
        None => open_all_of(&files, options),
    }?;
    Ok(Checkpoint { folder: Some(folder.to_owned()), ..checkpoint })
}

/// Opens a file, and the other parts of its model if the file says that there are some.
fn open_file(path: &Path, options: &ReadOptions) -> Result<Checkpoint> {
    let file = probe_with(options, path)?;
    let Some(parts) = parts_of(&file)? else {
        return Ok(Checkpoint { shards: vec![file], ..Checkpoint::default() });
    };
    let mut shards = Vec::with_capacity(parts.len());
    for part in &parts {
        let with_remedy = |error: Error| error.remedy(format!("download all {} parts of the model", parts.len()));
        let shard =
            probe_with(options, part).map_err(|error| if is_missing(part) { with_remedy(error) } else { error })?;
        if parts_of(&shard)?.as_ref() != Some(&parts) {
            let error = Error::new(format!("is not of the same model as {}", path_text(path))).in_file(part);
            return Err(error.remedy("download all parts again"));
        }
        shards.push(shard);
    }
    check_tensors(&shards)?;
    shards.iter_mut().for_each(remove_keys);
    let disagreements = Disagreements::among(shards.iter()).into_list();
    Ok(Checkpoint { shards, disagreements, ..Checkpoint::default() })
}

/// Refuses a folder with an unfinished conversion in it, regardless of its other contents.
fn refuse_unfinished(folder: &Path) -> Result<()> {
    if !is_unfinished(folder)? {
        return Ok(());
    }
    let error = Error::new(format!("an unfinished conversion is in it, in {WORK}")).in_file(folder);
    Err(error.of(Kind::Interrupted(folder.to_owned())))
}

/// Reads a small file that describes others.
fn read_text(path: &Path) -> Result<String> {
    /// Maximum length; indexes of the largest models have a few MiB.
    const MOST: u64 = 100 << 20;
    crate::io::open::read_text(path, MOST)
}

/// Returns the text after the byte order mark with which some Windows editors begin a file.
fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Returns the remedy for an index that omits shards of its folder.
fn short_index(index: &Path) -> String {
    let take_out = take_out("the index", &[index]);
    format!("download the index again, or, to convert all .safetensors files, {take_out}")
}

/// Returns what adds the remedy to the error of an index that cannot be read.
fn unusable(folder: &Path, index: &str) -> impl FnOnce(Error) -> Error {
    move |error| {
        if is_complete_without(index, folder) {
            error.remedy(short_index(&folder.join(index)))
        } else {
            error.remedy("download the folder again")
        }
    }
}

/// Returns the names of all tensors in the indexes next to a shard that name the shard. Empty for a file without such
/// an index.
pub fn beside(shard: &Path) -> Result<Vec<String>> {
    let folder = directory_of(shard);
    let name = shard.file_name().unwrap_or_default().to_string_lossy();
    let mut tensors = Vec::new();
    if is_shard_name(&name) {
        let files = file_names(folder)?;
        for index in files.iter().filter_map(|file| file.to_str()).filter(|file| is_index(file)) {
            let map = weight_map(&folder.join(index)).map_err(unusable(folder, index))?;
            if map.values().any(|shard| **shard == *name) {
                tensors.extend(map.into_keys().map(String::from));
            }
        }
    }
    Ok(tensors)
}

fn open_all_of(files: &ShardFolder, options: &ReadOptions) -> Result<Checkpoint> {
    if files.shards.is_empty() {
        return Err(without_shards(files.folder));
    }
    let names = files.shards.iter().map(String::as_str);
    let (shards, broken) = open_shards(files.folder, names, options, |error, _| error)?;
    let mut disagreements: Vec<Disagreement> = Disagreement::among_names(&files.shards).into_iter().collect();
    disagreements.extend(Disagreements::among(shards.iter()).into_list());
    Ok(Checkpoint { shards, broken, disagreements, ..Checkpoint::default() })
}

fn open_indexed(files: &ShardFolder, index: Index, options: &ReadOptions) -> Result<Checkpoint> {
    let (folder, map) = (files.folder, &index.weight_map);
    let names: BTreeSet<&str> = map.values().map(|shard| &**shard).collect();
    let refusal = |message: &str, name: &str, remedy: &str| {
        let error = Error::new(format!("names the shard '{}', which is {message}", shorten(name)));
        error.in_file(&folder.join(&index.name)).remedy(remedy)
    };
    if let Some(outside) = names.iter().find(|name| !is_plain(name)) {
        return Err(refusal("not in the folder", outside, "shards must be in the folder of their index"));
    }
    if let Some(other) = names.iter().find(|name| !is_shard(folder, files.format, name)) {
        let what = format!("no .{} file", files.format.extension);
        return Err(refusal(&what, other, "download the folder in the safetensors format"));
    }
    if is_of_original(files, &names) {
        let mut found = open_all_of(files, options)?;
        found.disagreements.push(Disagreement::stale_index(&index.name));
        return Ok(found);
    }
    let missing = |error: Error, name: &str| {
        if !is_missing(&folder.join(name)) {
            return error;
        }
        let error = refusal("missing", name, "download the whole folder");
        if is_complete_without(&index.name, folder) {
            let command = take_out("the index", &[folder.join(&index.name)]);
            return error.remedy(format!("if the other shards are the model, {command}"));
        }
        error
    };
    let (shards, broken) = open_shards(folder, names.iter().copied(), options, missing)?;
    let mut found = Disagreements::default();
    if map.is_empty() {
        found.fatal("the index names no tensor".to_owned());
    }
    found.compare(map, &shards);
    for file in files.shards.iter().filter(|file| !names.contains(file.as_str())) {
        found.unnamed(folder, file, &names);
    }
    let disagreements = found.into_list();
    Ok(Checkpoint { index: Some(index), shards, broken, disagreements, ..Checkpoint::default() })
}

/// Opens shards: returns the readable ones, and the errors of the others, as worded by `explain`.
fn open_shards<'a>(
    folder: &Path,
    names: impl Iterator<Item = &'a str>,
    options: &ReadOptions,
    explain: impl Fn(Error, &str) -> Error,
) -> Result<(Vec<Input>, Vec<Error>)> {
    let (mut shards, mut broken) = (Vec::new(), Vec::new());
    for name in names {
        match probe_with(options, &folder.join(name)) {
            Ok(shard) => shards.push(shard),
            Err(error) => broken.push(explain(error, name)),
        }
    }
    if shards.is_empty() && !broken.is_empty() {
        return Err(broken.swap_remove(0));
    }
    Ok((shards, broken))
}
