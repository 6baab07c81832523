//! The files next to the shards of a checkpoint: config, tokenizer, chat template and others.

use super::{Checkpoint, check, is_index, is_written_shard, probe, read_text, without_byte_order_mark};
use crate::container::json::{MapOnly, as_json, members};
use crate::container::pytorch::is_part_of_folder;
use crate::container::{ReadOptions, ShardNames};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::listing::entries;
use crate::io::open::{is_absent, is_missing, unreadable};
use crate::io::output::is_own;
use crate::text::{path_text, replace_by_copy, shorten};
use serde::de::IgnoredAny;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// The file that describes a model.
pub const CONFIG: &str = "config.json";
/// `ModelOpt`'s description of a quantized checkpoint, next to its config.
pub const HF_QUANT_CONFIG: &str = "hf_quant_config.json";
/// GPTQ's description of a quantized checkpoint.
pub const QUANTIZE_CONFIG: &str = "quantize_config.json";
/// The files that describe the storage of weights; the last is SDNQ's.
pub(super) const DESCRIPTIONS: [&str; 4] = [CONFIG, HF_QUANT_CONFIG, QUANTIZE_CONFIG, "quantization_config.json"];
/// The files of `DESCRIPTIONS` that libraries write next to the config of the model.
pub const BESIDE_CONFIG: &[&str] = DESCRIPTIONS.split_at(1).1;
/// Remedy for a file that cannot be read.
const READABLE: &str = "make it a file that can be read, or download it again";
/// Name endings of weight files. Such files hold the weights of the original model, not of the result.
const WEIGHTS: &[&str] = &[
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".ggml",
    ".onnx",
    ".onnx_data",
    ".h5",
    ".msgpack",
    ".tflite",
    ".ot",
    ".nemo",
    ".npz",
    ".bin.index.json",
];

/// The files of a folder that are not its shards, as sorted paths relative to it.
#[derive(Debug, Default)]
pub struct SideFiles {
    /// Files that belong to the model regardless of its types.
    pub kept: Vec<String>,
    /// Other weights, entries that are not files, and names that are not text.
    pub left_out: Vec<PathBuf>,
    /// Weights of other modules of the model, which are among the kept files.
    pub modules: Vec<PathBuf>,
}

impl SideFiles {
    /// Searches a folder and its subfolders; skips hidden folders, which belong to tools, and shards and indexes of the
    /// model's format.
    pub fn of(folder: &Path, shards: ShardNames) -> Result<Self> {
        let mut found = Self::default();
        let modules = modules_of(folder)?;
        let mut folders = vec![PathBuf::new()];
        while let Some(inner) = folders.pop() {
            let path = folder.join(&inner);
            let failed = unreadable(&path);
            for entry in entries(&path).map_err(failed)? {
                let name = entry.text();
                let inside = inner.join(&entry.name);
                // A link to a folder may lead anywhere; caches use links to files.
                if entry.is_folder {
                    if !name.starts_with('.') {
                        folders.push(inside);
                    }
                } else if shards.is_index(&name) && !modules.contains(&inner)
                    || inner.as_os_str().is_empty() && shards.is_shard(&name)
                {
                    // tcast writes a new one, or already reports that the index lacks it.
                } else if inner.as_os_str().is_empty() && is_part_of_folder(&name) {
                    // It is a part of a distributed checkpoint.
                } else if is_own(&name) {
                    // The entry belongs to an unfinished conversion into the folder.
                } else if let Some(path) = inside.to_str()
                    && is_plain_file(&entry.path)?
                    && (modules.contains(&inner) || !is_of_weights(&name))
                {
                    found.kept.push(path.to_owned());
                    if is_of_weights(&name) {
                        found.modules.push(inside);
                    }
                } else {
                    found.left_out.push(inside);
                }
            }
        }
        found.kept.sort();
        found.left_out.sort();
        found.modules.sort();
        Ok(found)
    }

    /// Leaves out the weights of a module, which are converted.
    pub(crate) fn leave_out_module(&mut self, file: &str) {
        self.kept.retain(|kept| kept != file);
        self.modules.retain(|kept| kept != Path::new(file));
    }

    /// Refuses links that lead out of the folder, because the output would get a copy of any file of the system. In
    /// caches of Hugging Face, shards and side files are links into one folder.
    pub fn check_links(&self, source: &Checkpoint) -> Result<()> {
        let folder = source.config_folder();
        let mut links =
            self.kept.iter().map(|file| (file, folder.join(file))).filter(|(_, path)| path.is_symlink()).peekable();
        if links.peek().is_none() {
            return Ok(()); // some folders of Windows have no canonical path
        }
        let folder_of = |path: &Path| fs::canonicalize(path).ok()?.parent().map(Path::to_owned);
        let own = fs::canonicalize(folder).map_err(unreadable(folder))?;
        // The folder of an original model may have no shards.
        let snapshots = own.parent().filter(|parent| parent.ends_with("snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
        for (file, path) in links {
            let target = fs::canonicalize(&path).map_err(unreadable(&path))?;
            let is_beside = |place: Option<&Path>| place.is_some() && place == target.parent();
            let is_of_cache = source.base.is_some() && is_beside(blobs.as_deref());
            let is_beside_weights = || source.shards.iter().any(|shard| is_beside(folder_of(shard.path()).as_deref()));
            if !target.starts_with(&own) && !is_of_cache && !is_beside_weights() {
                let copy = folder.join(format!("{file}.copy"));
                let error = Error::new("is a symbolic link that leads out of the checkpoint, and is not followed");
                return Err(error
                    .in_file(&path)
                    .remedy(format!("if the model needs its target: {}", replace_by_copy(&path, &copy))));
            }
        }
        Ok(())
    }
}

/// True if the name is the name of a weight file.
fn is_of_weights(name: &str) -> bool {
    WEIGHTS.iter().any(|end| name.to_ascii_lowercase().ends_with(end))
}

/// Returns the folders in a folder that belong to the model as modules with weights of their own, according to the
/// configs of sentence-transformers: `modules.json` lists modules with their paths, and `router_config.json` of a module
/// has the paths of further ones as keys.
fn modules_of(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let read = |inside: &Path| {
        let path = folder.join(inside);
        let text = if is_missing(&path) { return Ok(Value::Null) } else { read_text(&path) };
        let text = text.map_err(|error| error.remedy(READABLE))?;
        // A file that is not JSON does not describe modules.
        Ok(serde_json::from_str(without_byte_order_mark(&text)).unwrap_or_default())
    };
    let list: Value = read(Path::new("modules.json"))?;
    let listed = list.as_array().into_iter().flatten().filter_map(|module| module.get("path")?.as_str());
    let mut modules: BTreeSet<PathBuf> = listed.map(PathBuf::from).collect();
    for module in modules.clone() {
        let router: Value = read(&module.join("router_config.json"))?;
        let paths = router.get("types").and_then(Value::as_object).into_iter().flatten().map(|(path, _)| path);
        modules.extend(paths.map(|path| module.join(path)));
    }
    // Shards in the folder itself are converted.
    modules.retain(|module| module.to_str().is_some_and(is_inside));
    Ok(modules)
}

/// True if an entry is a file, or a link to one. A link may lead nowhere, and a file may have just been removed.
fn is_plain_file(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(unreadable(path)(error).remedy(READABLE)),
    }
}

/// True if a path can belong to a side file: it is in the folder, and no part is a name that this program creates for
/// itself.
pub fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.is_empty()
        && parts.all(|part| matches!(part, Component::Normal(name) if name.to_str().is_some_and(|name| !is_own(name))))
}

/// The texts of [`DESCRIPTIONS`]. Each file is read at most once, because a second read
/// could return another version.
#[derive(Default)]
pub(super) struct Descriptions([OnceLock<Option<String>>; DESCRIPTIONS.len()]);

impl Descriptions {
    fn get(&self, name: &str) -> Option<&OnceLock<Option<String>>> {
        DESCRIPTIONS.iter().position(|known| *known == name).map(|at| &self.0[at])
    }
}

impl Checkpoint {
    /// Opens the modules of sentence-transformers in subfolders, each one `.safetensors` file. The weights of other modules
    /// are side files.
    pub(crate) fn open_modules(&mut self, options: &ReadOptions) -> Result<()> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        if modules_of(&folder)?.is_empty() {
            return Ok(()); // most folders have none
        }
        let found = SideFiles::of(&folder, self.shard_names())?;
        found.check_links(self)?;
        let files = |inner: &Path| {
            let is_in_it = |path: &&PathBuf| path.parent() == Some(inner);
            found.modules.iter().filter(is_in_it).count()
        };
        let has_index =
            |inner: &Path| found.kept.iter().any(|file| Path::new(file).parent() == Some(inner) && is_index(file));
        for path in found.modules.iter().filter(|path| is_written_shard(&path_text(path))) {
            let inner = path.parent().unwrap_or(path);
            if files(inner) == 1 && !has_index(inner) {
                self.modules.push(check(probe(&folder.join(path), options)?)?);
            }
        }
        Ok(())
    }

    /// The text of one of [`DESCRIPTIONS`], if the folder has it. Refuses a text that is
    /// not a JSON object, because it does not describe the storage of weights.
    pub(crate) fn side_file(&self, name: &str) -> Result<Option<&str>> {
        let text = self.descriptions.get(name).expect("one of these files");
        if text.get().is_none() {
            let _ = text.set(read_side_file(self.config_folder(), name)?);
        }
        Ok(self.read_text_of(name))
    }

    /// The text of one of these files, if [`Self::side_file`] has read it.
    pub(crate) fn read_text_of(&self, name: &str) -> Option<&str> {
        self.whole_text_of(name).map(without_byte_order_mark)
    }

    /// The same text with its byte order mark, if it has one.
    pub(crate) fn whole_text_of(&self, name: &str) -> Option<&str> {
        self.descriptions.get(name)?.get()?.as_deref()
    }

    /// The quantization method of the weights according to the config; `None` if the config describes none.
    pub(crate) fn quantization(&self) -> Result<Option<String>> {
        Ok(self.side_file(CONFIG)?.and_then(|config| quantization_of(&as_json(config))))
    }
}

fn read_side_file(folder: &Path, name: &str) -> Result<Option<String>> {
    /// Maximum length; several copies of the text are held. Lists of all modules of a model take a few MiB.
    const MOST: u64 = 32 << 20;
    let path = folder.join(name);
    if is_missing(&path) {
        return Ok(None); // any other error recurs below
    }
    if let Some(len) = fs::metadata(&path).ok().map(|found| found.len()).filter(|len| *len > MOST) {
        let error = Error::new(format!("has {len} bytes; at most {MOST} are read")).in_file(&path);
        return Err(error.remedy("download it again: the config of a model has a few MiB at most"));
    }
    let text = read_text(&path).map_err(|error| error.remedy(READABLE))?;
    match serde_json::from_str::<MapOnly<IgnoredAny>>(&as_json(without_byte_order_mark(&text))) {
        Ok(_) => Ok(Some(text)),
        Err(error) => {
            let error = Error::new(format!("malformed JSON: {}", shorten(&error.to_string()))).in_file(&path);
            Err(error.remedy("correct it, or download it again: it says how the weights are stored"))
        }
    }
}

fn quantization_of(json: &str) -> Option<String> {
    let (_, found) = descriptions(json).into_iter().next()?;
    let method = members(found).and_then(|found| found.get("quant_method").map(|method| method.get()));
    let method = method.and_then(|method| serde_json::from_str::<String>(method).ok());
    Some(method.unwrap_or_else(|| "of an unnamed method".to_owned()))
}

/// Returns the descriptions of quantized weights in a config, each with its key. Multimodal models have one in the
/// section of the quantized part. A value that is null or empty is not a description; any other is.
pub fn descriptions(json: &str) -> Vec<(&'static str, &str)> {
    let outer = members(json).unwrap_or_default();
    let inner = outer.get("text_config").and_then(|text| members(text.get())).unwrap_or_default();
    let keys = [
        (&outer, "quantization_config"),
        (&outer, "compression_config"),
        (&outer, "quantization"),
        (&inner, "text_config.quantization_config"),
        (&inner, "text_config.compression_config"),
        (&inner, "text_config.quantization"),
    ];
    let found = keys.into_iter().filter_map(|(members, name)| {
        let key = name.strip_prefix("text_config.").unwrap_or(name);
        let text = members.get(key)?.get();
        // Under this key, only MLX has an object; some other configs have `false` or their own word.
        (describes(text) && (key != "quantization" || text.starts_with('{'))).then_some((name, text))
    });
    found.collect()
}

/// True if the value of such a key describes something.
pub(crate) fn describes(text: &str) -> bool {
    text != "null" && members(text).is_none_or(|members| !members.is_empty())
}

/// Changes the `dtype` of a config, or its former name `torch_dtype`, and no other byte. `None` if nothing changes: the
/// config names no dtype, or the same one.
///
/// torch computes in four types, and `transformers` cannot load a model whose config names another: `elements` is the
/// number of elements of each type, and the most frequent of the four types is chosen. If none of the four occurs, the
/// old dtype stays.
pub fn with_dtype(config: &str, elements: &BTreeMap<&'static str, u64>) -> Option<String> {
    const COMPUTED_IN: [Dtype; 4] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16, Dtype::Float64];
    let count = |dtype: &Dtype| elements.get(dtype.name()).copied().unwrap_or(0);
    let most = COMPUTED_IN.into_iter().rev().max_by_key(count).filter(|dtype| count(dtype) > 0)?;
    let json = as_json(config);
    let members = members(&json)?;
    let mut changed = config.to_owned();
    // Replaces from the end, so that earlier offsets stay valid.
    let mut values: Vec<&str> =
        ["dtype", "torch_dtype"].iter().filter_map(|key| Some(members.get(*key)?.get())).collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.as_ptr()));
    for value in values {
        let start = value.as_ptr() as usize - json.as_ptr() as usize;
        let old = serde_json::from_str::<Cow<str>>(value).unwrap_or_default();
        if old.parse::<Dtype>().is_ok() {
            changed.replace_range(start..start + value.len(), &format!("\"{most}\""));
        }
    }
    (changed != config).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_gets_another_type_and_keeps_the_rest() {
        let elements = BTreeMap::from([("float16", 7), ("float32", 5), ("float8e4m3fn", 100)]);
        let changed = |config: &str| with_dtype(config, &elements);
        let config =
            "{ \"a\": {\"dtype\": \"bfloat16\"},\t\"dtype\" : \"bfloat16\",\n\"x\": 1.0e0,\"torch_dtype\":\"float32\"}";
        let wanted =
            "{ \"a\": {\"dtype\": \"bfloat16\"},\t\"dtype\" : \"float16\",\n\"x\": 1.0e0,\"torch_dtype\":\"float16\"}";
        assert_eq!(changed(config).as_deref(), Some(wanted));
        let config = "{\"eps\": NaN, \"limits\": [-Infinity, Infinity], \"dtype\": \"bfloat16\", \"y\": NaN}";
        assert_eq!(changed(config), Some(config.replace("bfloat16", "float16")));
        for same in ["{\"dtype\": \"float16\"}", "{\"dtype\": null}", "{\"dtype\": \"auto\"}", "{}", "[1]", "not JSON"]
        {
            assert_eq!(changed(same), None, "{same}");
        }
        // torch has no float8 arithmetic: transformers fails on such a config.
        let elements = BTreeMap::from([("float8e4m3fn", 100), ("int8", 3)]);
        assert_eq!(with_dtype("{\"dtype\": \"bfloat16\"}", &elements), None);
    }

    #[test]
    fn the_method_is_found_where_python_finds_it() {
        let method = |config: &str| quantization_of(&as_json(config));
        for config in [
            r#"{"x": Infinity, "quantization_config": {"a": NaN, "quant_method": "fp8"}}"#,
            r#"{"x": 1e999, "quantization_config": 1, "quantization_config": {"quant_method": "fp8"}}"#,
            r#"{"text_config": {"quantization\u005fconfig": {"quant_method": "f\u00708"}}}"#,
        ] {
            assert_eq!(method(config).as_deref(), Some("fp8"), "{config}");
        }
        assert_eq!(method(r#"{"quantization_config": {"bits": 4}}"#).as_deref(), Some("of an unnamed method"));
        assert_eq!(method(r#"{"quantization": {"bits": 4}}"#).as_deref(), Some("of an unnamed method"));
        for config in [
            "[]",
            "{}",
            r#"{"quantization_config": null}"#,
            r#"{"quantization_config": {}, "quantization": { }}"#,
            r#"{"quantization": false}"#,
            r#"{"text_config": 1}"#,
        ] {
            assert_eq!(method(config), None, "{config}");
        }
    }
}
