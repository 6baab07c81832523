//! The files of an adapter: their dialect, their config, and their tensors by module.

use super::matrix::{Matrix, is_plain};
use super::scale::Scales;
use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{Elements, Form, ReadOptions, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::open::{is_missing, read_text};
use crate::kernel::{Kernel, Rules, Storage};
use crate::read::SourceTensor;
use crate::text::{first_few, shorten};
use AdapterPart::{Alpha, Bias, Core, Diff, DiffBias, Down, Magnitude, Reshape, Set, Tokens, Up, Whole};
use FactorPair::{Embedding, Hada1, Hada2, Kron1, Kron2, Lora};
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Program or format that defines the names and the scale of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Peft,
    Mlx,
    /// Names of modules whose dots are underscores.
    Kohya,
    /// Names of modules with dots: diffusers and `ComfyUI`.
    Dotted,
    Gguf,
}

impl Dialect {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Peft => "peft",
            Self::Mlx => "mlx",
            Self::Kohya => "kohya",
            Self::Dotted => "dotted",
            Self::Gguf => "gguf",
        }
    }
}

/// Two matrices whose product is a delta or a factor of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FactorPair {
    Lora,
    /// Of an embedding: the product is transposed.
    Embedding,
    Hada1,
    Hada2,
    Kron1,
    Kron2,
}

/// Role of a tensor in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum AdapterPart {
    /// The right matrix, `[rank, in]`.
    Down(FactorPair),
    /// The left matrix, `[out, rank]`.
    Up(FactorPair),
    /// The core of a Tucker decomposition.
    Core(FactorPair),
    /// A matrix in place of the product.
    Whole(FactorPair),
    Bias,
    Alpha,
    Magnitude,
    Tokens,
    Diff,
    DiffBias,
    Set,
    /// The shape of a weight that the trainer changed.
    Reshape,
}

/// Ends of the names of the right and the left matrix of a pair.
const PAIRS: &[([&str; 2], FactorPair)] = &[
    ([".lora_A", ".lora_B"], Lora),
    ([".lora_A.weight", ".lora_B.weight"], Lora),
    ([".lora_A.default.weight", ".lora_B.default.weight"], Lora),
    ([".lora_down.weight", ".lora_up.weight"], Lora),
    ([".lora.down.weight", ".lora.up.weight"], Lora),
    (["_lora.down.weight", "_lora.up.weight"], Lora),
    ([".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"], Lora),
    ([".lora_embedding_A", ".lora_embedding_B"], Embedding),
    ([".hada_w1_b", ".hada_w1_a"], Hada1),
    ([".hada_w2_b", ".hada_w2_a"], Hada2),
    ([".lokr_w1_b", ".lokr_w1_a"], Kron1),
    ([".lokr_w2_b", ".lokr_w2_a"], Kron2),
];

/// Ends of other names, and what the tensors are.
const PARTS: &[(&str, AdapterPart)] = &[
    (".lora_mid.weight", Core(Lora)),
    (".hada_t1", Core(Hada1)),
    (".hada_t2", Core(Hada2)),
    (".lokr_t2", Core(Kron2)),
    (".lokr_w1", Whole(Kron1)),
    (".lokr_w2", Whole(Kron2)),
    (".lora_B.bias", Bias),
    (".lora_B.default.bias", Bias),
    (".lora_magnitude_vector.weight", Magnitude),
    (".lora_magnitude_vector", Magnitude),
    (".dora_scale", Magnitude),
    (".alpha", Alpha),
    (".token_adapter.trainable_tokens_delta", Tokens),
    (".diff", Diff),
    (".diff_b", DiffBias),
    (".set_weight", Set),
    (".reshape_weight", Reshape),
];

/// The same for MLX and GGUF.
const PAIRS_OF_ENGINES: &[([&str; 2], FactorPair)] = &[([".lora_a", ".lora_b"], Lora)];
const PARTS_OF_MLX: &[(&str, AdapterPart)] = &[(".m", Magnitude)];

/// Parts of names that only adapters of other methods have.
const OTHER_METHODS: &[(&str, &str)] = &[
    ("oft_blocks", "OFT"),
    ("oft_diag", "OFT"),
    ("oft_R", "OFT"),
    ("boft_", "BOFT"),
    ("ia3_l", "IA3"),
    (".on_input", "IA3"),
    ("vera_", "VeRA"),
    (".a1.weight", "GLoRA"),
    ("lora_E", "AdaLoRA"),
    ("prompt_embeddings", "prompt tuning"),
    ("lora_controlnet", "ControlLoRA"),
    ("hra_", "HRA"),
    ("shira", "SHiRA"),
    ("fourierft", "FourierFT"),
    ("randlora", "RandLoRA"),
];

/// Beginnings of the names of kohya's modules, and of programs that follow kohya.
pub(super) const KOHYA_PREFIXES: &[&str] = &[
    "lora_unet__",
    "lora_unet_",
    "lora_transformer_",
    "lycoris_",
    "lora_prior_unet_",
    "lora_te1_",
    "lora_te2_",
    "lora_te3_",
    "lora_te_",
];

/// Options of PEFT that change the meaning of the tensors.
const OTHER_OPTIONS: &[&str] = &[
    "use_qalora",
    "velora_config",
    "monteclora_config",
    "kasa_config",
    "use_bdlora",
    "arrow_config",
    "alora_invocation_tokens",
    "layer_replication",
    "megatron_config",
];

/// A tensor of an adapter.
#[derive(Clone)]
pub(super) struct AdapterTensor {
    pub name: String,
    pub shape: Vec<u64>,
    /// Its elements in row-major order: the first dimension, and all others.
    pub matrix: Matrix,
}

impl AdapterTensor {
    pub(super) fn count(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The tensors for one module.
pub(super) struct AdapterModule {
    pub name: String,
    pub parts: HashMap<AdapterPart, AdapterTensor>,
}

/// An adapter that was opened.
pub(super) struct Adapter {
    /// The path as given.
    pub path: PathBuf,
    pub dialect: Dialect,
    /// The file with its tensors.
    pub file: Arc<Checkpoint>,
    /// `adapter_config.json`; `Null` without one.
    pub config: Value,
    /// The scales that its config or its metadata gives to modules whose names begin so.
    pub scales: Vec<(String, Scales)>,
    pub modules: Vec<AdapterModule>,
    /// Whole tensors of the model.
    pub whole: Vec<AdapterTensor>,
}

impl Adapter {
    /// Opens a folder or a file. With `checks_values`, refuses values that are not finite.
    pub(super) fn open(path: &Path, checks_values: bool) -> Result<Self> {
        let (file, named) = find(path)?;
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        let in_file = |error: Error| error.in_file(path);
        let source = checkpoint::open(&file, &ReadOptions::on(1))?;
        let [input] = &source.shards[..] else {
            return Err(in_file(Error::new("is not one file, as an adapter must be")));
        };
        let dialect = if source.is_gguf() {
            let value = |key: &str| input.contents.value(key).unwrap_or_default();
            if value("general.type") != "adapter" || value("adapter.type") != "lora" {
                return Err(in_file(Error::new("is not an adapter: general.type and adapter.type say something else")));
            }
            Dialect::Gguf
        } else if let Some(dialect) = named {
            dialect
        } else if input.contents.tensors.iter().any(|it| KOHYA_PREFIXES.iter().any(|start| it.name.starts_with(start)))
        {
            Dialect::Kohya
        } else {
            Dialect::Dotted
        };
        let (text, config) = if matches!(dialect, Dialect::Peft | Dialect::Mlx) {
            read_config(&folder.join(CONFIG)).map_err(in_file)?
        } else {
            (String::new(), Value::Null)
        };
        let (path, file) = (path.to_owned(), Arc::new(source));
        let mut adapter =
            Self { path, dialect, file, config, scales: Vec::new(), modules: Vec::new(), whole: Vec::new() };
        adapter.check_method().map_err(in_file)?;
        adapter.sort_tensors(checks_values).map_err(in_file)?;
        adapter.scales = adapter.read_scales(&text)?;
        Ok(adapter)
    }

    /// Reads the scales that the text of its config or its metadata gives.
    fn read_scales(&self, config: &str) -> Result<Vec<(String, Scales)>> {
        match (self.dialect, self.metadata("lora_adapter_metadata")) {
            (Dialect::Peft, _) => Ok(vec![(String::new(), Scales::read(config, "")?)]),
            (Dialect::Kohya | Dialect::Dotted, Some(text)) => Scales::of_metadata(text),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the scales for a module, which those of another component are not. `None` if there are none at all, or the
    /// module has its own.
    pub(super) fn scales(&self, module: &AdapterModule) -> Result<Option<&Scales>> {
        if self.scales.is_empty() || module.has(Alpha) && self.dialect != Dialect::Peft {
            return Ok(None);
        }
        let own = self.scales.iter().rfind(|(component, _)| module.name.starts_with(component));
        own.map(|(_, scales)| Some(scales)).ok_or_else(|| {
            let components: Vec<&str> = self.scales.iter().map(|(name, _)| name.trim_end_matches('.')).collect();
            let what = format!("has no scale in lora_adapter_metadata, which is for {}", first_few(&components, 3));
            Error::new(what).remedy("remove lora_adapter_metadata from the file if the scale is 1")
        })
    }

    /// Returns the name of its method.
    pub(super) fn method(&self) -> String {
        let method = self.config["peft_type"].as_str().or(self.config["fine_tune_type"].as_str());
        method.unwrap_or("lora").to_lowercase()
    }

    /// Returns the parameters that its config lists, each with the end of the name of its module. PEFT wraps the parameters
    /// of a module that holds experts in this way.
    pub(super) fn target_parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let listed = self.config["target_parameters"].as_array().into_iter().flatten().filter_map(Value::as_str);
        listed.map(|parameter| parameter.rsplit_once('.').unwrap_or(("", parameter)))
    }

    /// Returns a value of the metadata of its file.
    pub(super) fn metadata(&self, key: &str) -> Option<&str> {
        self.file.shards[0].contents.value(key)
    }

    /// Refuses methods and options that are not merged.
    fn check_method(&self) -> Result<()> {
        let (key, known, remedy): (_, &[&str], _) = match self.dialect {
            Dialect::Peft => ("peft_type", &["LORA", "LOHA", "LOKR"], "merge it with peft"),
            Dialect::Mlx => {
                let remedy = "a full fine-tune is a model of its own, which needs no merge";
                ("fine_tune_type", &["", "lora", "dora"], remedy)
            }
            Dialect::Kohya | Dialect::Dotted | Dialect::Gguf => return Ok(()),
        };
        let method = self.config[key].as_str().unwrap_or_default();
        if !known.contains(&method) {
            return Err(Error::new(format!("{key} {} is not supported", shorten(method))).remedy(remedy));
        }
        let is_set = |option: &&&str| match &self.config[**option] {
            Value::Null | Value::Bool(false) => false,
            Value::Array(items) => !items.is_empty(),
            Value::Object(items) => !items.is_empty(),
            Value::Bool(true) | Value::Number(_) | Value::String(_) => true,
        };
        let set = OTHER_OPTIONS.iter().find(is_set).filter(|_| self.dialect == Dialect::Peft);
        set.map_or(Ok(()), |option| {
            Err(Error::new(format!("its config has {option}, which is not supported")).remedy(remedy))
        })
    }

    /// Assigns the tensors to modules. Refuses other methods, two tensors for one part, and values that are not finite.
    fn sort_tensors(&mut self, checks_values: bool) -> Result<()> {
        let (pairs, parts) = match self.dialect {
            Dialect::Mlx => (PAIRS_OF_ENGINES, PARTS_OF_MLX),
            Dialect::Gguf => (PAIRS_OF_ENGINES, &[][..]),
            Dialect::Peft | Dialect::Kohya | Dialect::Dotted => (PAIRS, PARTS),
        };
        let pairs = pairs.iter().flat_map(|([down, up], pair)| [(*down, Down(*pair)), (*up, Up(*pair))]);
        let suffixes: Vec<(&str, AdapterPart)> = pairs.chain(parts.iter().copied()).collect();
        let file = Arc::clone(&self.file);
        let mut places: HashMap<String, usize> = HashMap::new();
        for tensor in &file.shards[0].contents.tensors {
            let in_tensor = |error: Error| error.in_tensor(&tensor.name);
            if let Some((_, method)) = OTHER_METHODS.iter().find(|(part, _)| tensor.name.contains(part)) {
                return Err(in_tensor(Error::new(format!("{method} adapters are not supported"))));
            }
            let read = read(&file, tensor).map_err(in_tensor)?;
            if checks_values {
                check_finite(&read.matrix).map_err(in_tensor)?;
            }
            let fitting = suffixes.iter().filter(|(end, _)| tensor.name.ends_with(end));
            // The longest decides.
            let Some((end, part)) = fitting.max_by_key(|(end, _)| end.len()) else {
                self.whole.push(read);
                continue;
            };
            let module = &tensor.name[..tensor.name.len() - end.len()];
            let at = *places.entry(module.to_owned()).or_insert_with(|| {
                self.modules.push(AdapterModule { name: module.to_owned(), parts: HashMap::new() });
                self.modules.len() - 1
            });
            if self.modules[at].parts.insert(*part, read).is_some() {
                let what = format!("is the second tensor for one part of the module '{}'", shorten(module));
                return Err(in_tensor(Error::new(what)));
            }
        }
        if self.modules.is_empty() && self.whole.is_empty() {
            return Err(Error::new("is empty: the adapter has no tensors"));
        }
        if self.modules.is_empty() && matches!(self.dialect, Dialect::Dotted | Dialect::Kohya | Dialect::Gguf) {
            return Err(Error::new("is not an adapter: it has no tensors of LoRA, LoHa or LoKr"));
        }
        Ok(())
    }
}

const CONFIG: &str = "adapter_config.json";

/// Names of the files of adapters, and their dialects as far as the names show them.
const FILES: &[(&str, Option<Dialect>)] = &[
    ("adapter_model.safetensors", Some(Dialect::Peft)),
    ("adapter_model.bin", Some(Dialect::Peft)),
    ("adapters.safetensors", Some(Dialect::Mlx)),
    ("pytorch_lora_weights.safetensors", None),
];

/// Returns the file with the tensors of an adapter, and its dialect if its name shows it.
fn find(path: &Path) -> Result<(PathBuf, Option<Dialect>)> {
    if path.is_dir() {
        let found = FILES.iter().find(|(name, _)| !is_missing(&path.join(name)));
        let (name, dialect) = found.ok_or_else(|| {
            let names: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
            Error::new(format!("is not an adapter: the folder has none of {}", names.join(", "))).in_file(path)
        })?;
        return Ok((path.join(name), *dialect));
    }
    let name = path.file_name().unwrap_or_default();
    let dialect = FILES.iter().find(|(known, _)| name == *known).and_then(|(_, dialect)| *dialect);
    Ok((path.to_owned(), dialect))
}

/// Returns the files of an adapter, which no output may replace.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let names = FILES.iter().map(|(name, _)| *name).chain([CONFIG]);
    names.map(|name| path.join(name)).filter(|file| !is_missing(file)).collect()
}

fn read_config(path: &Path) -> Result<(String, Value)> {
    /// Maximum length in bytes; configs have a few KiB.
    const MOST: u64 = 4 << 20;
    if is_missing(path) {
        let error = Error::new(format!("{CONFIG} is missing: the scale is not known"));
        return Err(error.remedy("download the whole folder"));
    }
    let text = read_text(path, MOST)?;
    let config: Value =
        serde_json::from_str(&text).map_err(|error| Error::new(format!("is not JSON: {error}")).in_file(path))?;
    if !config.is_object() {
        return Err(Error::new("is not a JSON object").in_file(path));
    }
    Ok((text, config))
}

/// Finds the elements of a tensor. Refuses types that are not numbers.
fn read(file: &Arc<Checkpoint>, tensor: &Tensor) -> Result<AdapterTensor> {
    /// Maximum bytes of a tensor that is not stored as one piece, which is held in memory.
    const MOST: u64 = 1 << 28;
    let input = &file.shards[0];
    let is_transposed = tensor.fortran_order;
    let source = SourceTensor { files: &input.files, tensor, elements: tensor.elements, is_transposed };
    let Elements::Typed(Form::Numbers(storage)) = tensor.elements else {
        let what = format!("is stored as {}: adapters are read as floats only", shorten(&tensor.stored));
        return Err(Error::new(what).remedy("save the adapter in float32, bfloat16 or float16"));
    };
    let mapped = source.mapped().filter(|_| source.is_plain());
    let columns: u64 = tensor.shape.iter().skip(1).product();
    let shape = [tensor.shape.first().copied().unwrap_or(1), columns];
    let is_where_it_is = is_plain(storage.dtype) && storage == Storage::packed(storage.dtype);
    let matrix = if let Some(mapped) = mapped.as_ref().filter(|_| is_where_it_is) {
        let at = input.files.iter().position(|file| std::ptr::eq(file, mapped.file)).unwrap_or_default();
        Matrix::stored(file, (at, mapped.range.start), storage.dtype, shape)
    } else {
        let kernel = Kernel::cast(storage, Storage::packed(Dtype::Float64), &Rules::default())
            .ok_or_else(|| Error::new(format!("has the type {}, which has no values", storage.dtype)))?;
        let read;
        let stored = if let Some(mapped) = &mapped {
            mapped.read(0..mapped.range.len())?
        } else {
            // A transposed or expanded tensor of PyTorch, or a compressed one.
            read = source.all(MOST, "is too large for a tensor that is not stored row by row")?;
            &read
        };
        let mut widened = vec![0; 8 * tensor.count as usize];
        kernel
            .run(stored, &mut widened, tensor.count as usize)
            .map_err(|malformed| Error::new(malformed.to_string()))?;
        let values = widened.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        Matrix::computed(values, shape)
    };
    Ok(AdapterTensor { name: tensor.name.to_string(), shape: tensor.shape.to_vec(), matrix })
}

fn check_finite(matrix: &Matrix) -> Result<()> {
    if matrix.all_pieces(|_, values| Ok(values.iter().all(|value| value.is_finite())))? {
        return Ok(());
    }
    Err(Error::new("contains NaN or infinite values").remedy("the adapter is damaged: download it again"))
}
