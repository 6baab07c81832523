//! Files of an older checkpoint that a new one replaces. The folder itself shows which files these are: a record on the
//! disk can forbid to replace a file, but never cause it.

use super::Manifest;
use super::files::{exists, stray_above};
use crate::container::checkpoint::{is_index, is_plain, is_shard_name, is_written_shard, weight_map};
use crate::container::model_of_part;
use crate::error::{Error, OTHER_FOLDER, Opt, Result};
use crate::io::advice::take_out;
use crate::io::listing::{Entry, entries};
use crate::io::open::{is_absent, unreadable};
use crate::io::output::{WORK, is_own};
use crate::io::temporaries::OLD;
use crate::text::path_text;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns the files that a new checkpoint would replace in a folder: its indexes and their shards in any format, or its
/// only shard, and all files with the name of a new file. Refuses other shards: they would stay, and be mistaken for shards of the
/// new checkpoint.
pub(crate) fn replaced(folder: &Path, manifest: &Manifest) -> Result<Vec<String>> {
    let places = [folder.join(WORK).join(OLD), folder.to_owned()];
    let mut there = find(&places, manifest, |_| false)?;
    add_named(&mut there, &places, |_| false)?;
    check_shards(&there, manifest)?;
    Ok(there.into_keys().collect())
}

/// Returns the files in a folder that a new checkpoint does not replace, as sorted paths relative to it. Skips hidden
/// folders, which belong to tools.
pub(crate) fn staying(folder: &Path, manifest: &Manifest) -> Result<Vec<String>> {
    let gone: HashSet<&Path> = manifest.files().chain(&manifest.replaced).map(Path::new).collect();
    let mut staying = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(inner) = folders.pop() {
        let path = folder.join(&inner);
        let entries = match entries(&path) {
            Err(error) if is_absent(&error) => continue,
            entries => entries.map_err(unreadable(&path))?,
        };
        for Entry { name, is_folder, .. } in entries {
            let inside = inner.join(&name);
            if is_own(&name.to_string_lossy()) || is_folder && name.as_encoded_bytes().starts_with(b".") {
                // It belongs to this program or to a tool.
            } else if is_folder {
                folders.push(inside);
            } else if !gone.contains(&*inside) {
                staying.push(path_text(inside));
            }
        }
    }
    staying.sort();
    Ok(staying)
}

/// Returns the same files with their paths, for a folder whose new files may partly be in their places. Refuses a file
/// that was not there when the work began.
pub(super) fn known(
    places: &[PathBuf],
    manifest: &Manifest,
    is_new: impl Fn(&Path) -> bool,
) -> Result<BTreeMap<String, PathBuf>> {
    let mut there = find(places, manifest, &is_new)?;
    // A later index may be anything.
    check_known(&there, manifest)?;
    add_named(&mut there, places, &is_new)?;
    check_known(&there, manifest)?;
    check_shards(&there, manifest)?;
    Ok(there)
}

/// Refuses files that were not there when the work began.
fn check_known(there: &BTreeMap<String, PathBuf>, manifest: &Manifest) -> Result<()> {
    let Some((_, path)) = there.iter().find(|(name, _)| !manifest.replaced.contains(name)) else { return Ok(()) };
    let what = "was not in the folder when the conversion began, and would be replaced, or be mistaken for a new file";
    Err(Error::new(what).in_file(path).remedy("move it elsewhere, and run the same command again"))
}

/// Finds indexes, shards, and files with the names of new ones, each in the first of the folders that has it.
fn find(places: &[PathBuf], manifest: &Manifest, is_new: impl Fn(&Path) -> bool) -> Result<BTreeMap<String, PathBuf>> {
    let mut there = BTreeMap::new();
    for place in places {
        let failed = unreadable(place);
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        match entries(place) {
            Err(error) if is_absent(&error) => continue,
            // tcast writes only names in UTF-8
            entries => found.extend(entries.map_err(failed)?.into_iter().map(|entry| (entry.text(), entry.path))),
        }
        found.retain(|(name, _)| is_index(name) || is_written_shard(name));
        for file in manifest.files() {
            let path = place.join(file);
            if exists(&path)? && stray_above(place, &path).is_none() {
                found.push((file.clone(), path));
            }
        }
        for (name, path) in found {
            if !is_new(&path) {
                there.entry(name).or_insert(path);
            }
        }
    }
    Ok(there)
}

/// Adds the shards that the indexes among some files name.
fn add_named(there: &mut BTreeMap<String, PathBuf>, places: &[PathBuf], is_new: impl Fn(&Path) -> bool) -> Result<()> {
    for shard in named_shards(there)?.iter().filter(|name| is_plain(name) && is_shard_name(name)) {
        for path in places.iter().map(|place| place.join(&**shard)) {
            if exists(&path)? && !path.is_dir() && !is_new(&path) {
                there.entry(shard.to_string()).or_insert(path);
            }
        }
    }
    Ok(())
}

/// Returns the shards that the indexes among some files name.
fn named_shards(there: &BTreeMap<String, PathBuf>) -> Result<BTreeSet<Arc<str>>> {
    let mut named = BTreeSet::new();
    for (_, index) in there.iter().filter(|(name, _)| is_plain(name) && is_index(name)) {
        let in_the_way = |error: Error| {
            let what = format!("{}; it may name shards of the checkpoint that is to be replaced", error.message());
            let error = Error::new(what).in_file(index);
            error.remedy(take_out("it", &[index])).with(Opt::OUTPUT, OTHER_FOLDER)
        };
        named.extend(weight_map(index).map_err(in_the_way)?.into_values());
    }
    Ok(named)
}

/// Refuses shards that belong to neither the older checkpoint nor the new one.
fn check_shards(there: &BTreeMap<String, PathBuf>, manifest: &Manifest) -> Result<()> {
    let named = named_shards(there)?;
    // Modules of a model have shards of their own, in subfolders.
    let is_shard = |name: &str| is_plain(name) && is_written_shard(name);
    let mut shards = there.iter().filter(|(name, _)| is_shard(name));
    // Without an index, loaders read one file.
    let is_only = there.keys().filter(|name| is_index(name) || is_shard(name)).count() == 1;
    // Parts of a GGUF model have no index, and the number of parts in their names.
    let is_part = |name: &str| {
        let model = model_of_part(name);
        model.is_some() && manifest.shards.iter().any(|shard| model_of_part(&shard.file) == model)
    };
    let is_known = |name: &str| {
        is_only && ["model.safetensors", "diffusion_pytorch_model.safetensors"].contains(&name)
            || is_part(name)
            || named.iter().any(|shard| **shard == *name)
            || manifest.shards.iter().any(|shard| shard.file == name)
    };
    let Some((_, path)) = shards.find(|(name, _)| !is_known(name)) else { return Ok(()) };
    let error = Error::new("is not a shard of the checkpoint that is to be replaced, and would stay").in_file(path);
    Err(error.remedy(take_out("it", &[path])).with(Opt::OUTPUT, OTHER_FOLDER))
}
