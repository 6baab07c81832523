//! Folders in which the processes of a training wrote one checkpoint together: of torch.distributed.checkpoint ([`dcp`]), or
//! with a file for each rank ([`ranks`]), or with pieces in `.safetensors` files ([`shards`]).
//!
//! The tensors of such a folder consist of pieces in several files ([`pieces`]), which are read as one input: its first file
//! describes the folder.

mod attributes;
mod dcp;
mod folder;
mod mesh;
mod pieces;
mod ranks;
mod roots;
mod shards;

use super::TorchFile;
use super::code::PickleFacts;
use crate::container::{Input, ReadOptions, has_extension};
use crate::error::{Error, Result};
use crate::io::listing::{Entry, entries};
use crate::io::map::MappedFile;
use crate::io::open::unreadable;
use crate::text::shorten;
use folder::FolderFiles;
use std::collections::BTreeSet;
use std::path::Path;

const METADATA: &str = ".metadata";

/// True for the names of files that are parts of such a folder, and not files beside a model.
pub(in crate::container) fn is_part_of_folder(name: &str) -> bool {
    let is_of_rank = |kind: &&str| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with("_world_size_"));
    let is_rank = has_extension("pt", name) && ["model", "optim", "extra_state"].iter().any(is_of_rank);
    name == METADATA || is_of_dcp(name) || is_rank || name == ranks::CONFIG
}

fn is_of_dcp(name: &str) -> bool {
    has_extension("distcp", name)
}

/// True for the names of `.safetensors` files that hold pieces of tensors.
pub(in crate::container) fn is_shard_of_pieces(name: &str) -> bool {
    shards::parse(name).is_some()
}

/// Opens a folder that processes wrote together; `None` if it is none.
///
/// # Errors
/// When the folder is incomplete, or a file cannot be read.
pub(in crate::container) fn open_folder(folder: &Path, options: &ReadOptions) -> Result<Option<Input>> {
    let mut names: Vec<String> = entries(folder).map_err(unreadable(folder))?.iter().map(Entry::text).collect();
    names.sort_unstable();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if let Some(error) = refusal(&names) {
        return Err(error.in_file(folder));
    }
    let is_dcp = has(METADATA) && names.iter().any(|name| is_of_dcp(name));
    let mut files = FolderFiles::new(folder, u32::from(is_dcp));
    let opened = if is_dcp {
        let metadata = MappedFile::open(&folder.join(METADATA))?;
        let opened = dcp::read(&metadata, &mut files, options.root).map_err(|error| error.in_file(metadata.path()))?;
        files.files.insert(0, metadata);
        opened
    } else if names.iter().any(|name| shards::parse(name).is_some()) {
        shards::read(folder, &names, &mut files, options)?
    } else if names.iter().any(|name| ranks::parse(name).is_some()) {
        ranks::read(folder, &names, &mut files, options)?
    } else {
        return Ok(None);
    };
    Ok(Some(opened.into_input(files.files)))
}

/// Searches the archives of a folder that were not read. Returns suspicious names of code.
///
/// # Errors
/// When an archive cannot be searched.
pub(in crate::container) fn search_unread(facts: &PickleFacts, folder: &Path) -> Result<BTreeSet<String>> {
    let mut files = FolderFiles::new(folder, 0);
    let mut found = PickleFacts::default();
    for (name, place) in &facts.unread {
        let number = files.open(name)?;
        let bytes = usize::try_from(place.start)
            .ok()
            .zip(usize::try_from(place.end).ok())
            .and_then(|(start, end)| files.get(number).get(start..end));
        let in_file = |error: Error| error.in_file(&folder.join(name));
        let bytes = bytes.ok_or_else(|| in_file(Error::new("ends before the place of a pickle")))?;
        found.merge(&TorchFile::in_archive(bytes).map_err(in_file)?.facts)?;
    }
    Ok(found.suspicious)
}

/// Returns the error for a folder that processes wrote in a way that is not read, by the names in it.
fn refusal(names: &[String]) -> Option<Error> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let find = |is_meant: &dyn Fn(&str) -> bool| names.iter().map(String::as_str).find(|name| is_meant(name));
    let is_of_zero = |name: &str| name.contains("zero_pp_rank_") && name.ends_with("_model_states.pt");
    if has("common.pt") && has("metadata.json") && find(&is_of_dcp).is_some() {
        let what = "is a checkpoint of Megatron (torch_dist), whose tensors have other names and shapes than those of \
                    Hugging Face: layers are stacked, and heads are merged";
        return Some(Error::new(what).remedy("convert it with Megatron Bridge, which knows the model"));
    }
    if let Some(part) = find(&is_of_zero) {
        let what = format!(
            "holds the partitions of DeepSpeed ZeRO-3, such as {}: their pieces have neither names nor shapes, and tcast \
             does not join them",
            shorten(part)
        );
        return Some(Error::new(what).remedy("join them with zero_to_fp32.py, which DeepSpeed wrote beside them"));
    }
    if find(&is_of_dcp).is_some() && !has(METADATA) {
        let own = find(&|name| name.starts_with("__") && name.ends_with(METADATA));
        let error = Error::new(match own {
            Some(own) => format!(
                "holds a checkpoint that each process saved on its own (use_collectives=False), such as {}: nothing says \
                 how the tensors continue in the others",
                shorten(own)
            ),
            None => "holds a checkpoint of torch.distributed.checkpoint without its .metadata: it was not saved \
                     completely"
                .to_owned(),
        });
        return Some(error.remedy("save it again, or download the whole folder"));
    }
    None
}
