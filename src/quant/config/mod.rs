#![allow(clippy::unnecessary_wraps, reason = "the functions of all formats have the same types")]
//! Configs of quantized checkpoints: tcast reads them to recognize weights, changes them after weights were decoded, and
//! writes them for engines.
//!
//! A [`ConfigFormat`] does all this for one method. A new method is a file with its format, and an entry of [`FORMATS`].

mod block;
mod comfy;
mod compressed_tensors;
mod decoded;
mod engine;
mod integers;
mod json;
mod mlx;
mod modelopt;
mod modules;
mod object;
mod patterns;
mod quark;
mod torchao;
mod transformers;

pub use comfy::comfy_metadata_of;
pub use decoded::{
    Modules, check_renamed, config_of, default_target, hf_quant_config_of, metadata_of, named_dtype, quantize_config_of,
};
pub use engine::{EngineConfig, KeptModules, QuantizedGroup};
pub use patterns::is_composite;

pub(super) use comfy::ComfyLayers;
pub(super) use torchao::TorchAoTensors;
pub(super) use transformers::quant_state;

use super::layout::{CodeValues, Layout, Role};
use super::method::{QuantMethod, undecoded_method};
use super::parts::Parameters;
use super::recognize::CheckpointInfo;
use super::table::LAYOUTS;
use crate::container::checkpoint::stack_of;
use crate::dtype::Dtype;
use crate::error::Result;
use block::ConfigBlock;
use modules::{MatchStyle, ModuleList, ModuleMap, PatternMap};
use object::ConfigObject;
use std::rc::Rc;

/// The config block of a method.
struct ConfigFormat {
    method: QuantMethod,
    /// Its names in `quant_method`, in lower case.
    names: &'static [&'static str],
    /// The keys of the lists of modules that are not quantized.
    ignored: &'static [&'static str],
    style: MatchStyle,
    read: ConfigReader,
    /// Adds decoded modules to those that are not quantized. The argument is true for a composite model. `None` if the
    /// text is not an object.
    exclude: fn(&str, &Modules, bool) -> Result<Option<String>>,
    /// Describes quantized weights; `None` if tcast does not quantize to the layouts of the method.
    write: Option<ConfigWriter>,
}

type ConfigReader = fn(&ConfigObject, &mut CheckpointConfig) -> Result<()>;
type ConfigWriter = fn(&[QuantizedGroup], &KeptModules) -> Result<EngineConfig>;

static FORMATS: &[&ConfigFormat] = &[
    &transformers::FP8,
    &transformers::GPT_OSS,
    &transformers::QUANTO,
    &transformers::BITSANDBYTES,
    &compressed_tensors::FORMAT,
    &integers::GPTQ,
    &integers::AWQ,
    &integers::AUTO_ROUND,
    &modelopt::FORMAT,
    &mlx::FORMAT,
    &torchao::FORMAT,
    &quark::FORMAT,
];

/// Finds the format of the method with this name, given in lower case; `None` if tcast does not decode its weights.
fn find(name: &str) -> Option<&'static ConfigFormat> {
    let name = if name.starts_with("modelopt") { "modelopt" } else { name };
    FORMATS.iter().copied().find(|format| format.names.contains(&name))
}

impl ConfigFormat {
    /// Returns the modules that a block lists as not quantized.
    fn ignored(&self, block: &ConfigObject) -> Result<ModuleList> {
        ModuleList::new(&block.texts(self.ignored)?, self.style)
    }
}

/// The description of a weight in a config, or in a tensor next to it.
#[derive(Clone, Debug, Default)]
pub(super) struct WeightDescription {
    /// The possible layouts.
    pub(super) layouts: Vec<&'static Layout>,
    pub(super) parameters: Parameters,
    /// Parts that the layout can omit but this weight needs.
    pub(super) needs: Vec<Role>,
    /// Possible dtypes of the codes, if the description names one.
    pub(super) codes: Vec<Dtype>,
    /// bitsandbytes' type of codes, if the config names it.
    pub(super) quant_type: Option<String>,
    /// True if scales are not exponents.
    pub(super) no_exponents: bool,
    /// Source and wording of the description: "the config says ...".
    pub(super) wording: String,
}

impl WeightDescription {
    fn new(layouts: Vec<&'static Layout>, wording: impl Into<String>) -> Self {
        Self { layouts, wording: wording.into(), ..Self::default() }
    }
}

/// Returns the layouts of a method that configs call by this name; all of them without a name.
fn layouts_of(method: QuantMethod, name: Option<&str>) -> Vec<&'static Layout> {
    let is_named = |layout: &&Layout| name.is_none_or(|name| layout.formats.contains(&name));
    LAYOUTS.iter().filter(|layout| layout.method == method).filter(is_named).collect()
}

/// True if a layout stores numbers of this type and width.
fn stores(layout: &Layout, kind: &str, bits: u64) -> bool {
    let dtype = match layout.codes.values {
        CodeValues::Unsigned => return kind == "int",
        CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) => dtype,
        _ => layout.codes.dtypes[0],
    };
    match dtype {
        Dtype::Int8 => kind == "int" && (1..=8).contains(&bits), // an int8 for each narrower code, too
        _ => (kind, bits) == ("float", dtype.bits().into()),
    }
}

/// The configs of a checkpoint: the method, and the descriptions of weights by module.
#[derive(Debug, Default)]
pub(super) struct CheckpointConfig {
    /// The method, if a config names one.
    pub(super) method: Option<String>,
    /// Modules that are not quantized.
    ignored: ModuleList,
    /// Modules that are not quantized according to other blocks, with the names of these blocks.
    also_ignored: Vec<(String, ModuleList)>,
    /// Descriptions of single modules; `None` if a module is not quantized.
    named: ModuleMap<Option<Rc<WeightDescription>>>,
    patterned: PatternMap<Option<Rc<WeightDescription>>>,
    /// Possible descriptions of all other modules.
    others: Vec<Rc<WeightDescription>>,
}

/// The descriptions of a module in the configs of a checkpoint.
pub(super) struct ModuleConfig<'c> {
    /// The config that lists the module as not quantized, and its entry.
    pub(super) ignored: Option<(&'c str, &'c str)>,
    /// The possible descriptions of its weight if it is quantized; none if there is no config.
    pub(super) descriptions: &'c [Rc<WeightDescription>],
}

impl CheckpointConfig {
    pub(super) fn read(source: &CheckpointInfo) -> Result<Self> {
        let blocks = ConfigBlock::read_all(source)?;
        let Some((first, others)) = blocks.split_first() else { return Ok(Self::default()) };
        let mut config = Self::of(first).map_err(|error| first.in_file(error))?;
        others.iter().try_for_each(|other| config.add(other).map_err(|error| other.in_file(error)))?;
        Ok(config)
    }

    fn of(block: &ConfigBlock) -> Result<Self> {
        let method = block.method()?;
        let format = find(&method).ok_or_else(|| undecoded_method(&method))?;
        let ignored = format.ignored(&block.object())?;
        let mut config = Self { method: Some(method), ignored, ..Self::default() };
        (format.read)(&block.object(), &mut config)?;
        config.patterned.compile()?;
        Ok(config)
    }

    /// Adds the ignored modules of another block.
    fn add(&mut self, block: &ConfigBlock) -> Result<()> {
        let method = block.method().unwrap_or_default();
        let ignored = match find(&method) {
            Some(format) => format.ignored(&block.object())?,
            None if method.is_empty() => ModuleList::default(),
            None => return Err(undecoded_method(&method)),
        };
        let is_of_modelopt = |name: &str| find(name).is_some_and(|format| format.method == QuantMethod::ModelOpt);
        if is_of_modelopt(&method) && self.method.as_deref().is_some_and(is_of_modelopt) {
            Self::of(block)?; // for its errors
        }
        self.also_ignored.push((block.name(), ignored));
        Ok(())
    }

    fn add_others(&mut self, description: WeightDescription) {
        self.others.push(Rc::new(description));
    }

    /// Returns the entry for a single module, or for one that encloses it, and its description.
    fn single(&self, module: &str) -> Option<(&str, &Option<Rc<WeightDescription>>)> {
        let outer = module.match_indices('.').rev().map(|(at, _)| &module[..at]);
        let stack = stack_of(module);
        let modules = std::iter::once(module).chain(stack.as_deref()).chain(outer);
        let named = modules.into_iter().find_map(|name| self.named.get(name));
        named.or_else(|| self.patterned.get(module))
    }

    /// Returns the descriptions of a module.
    pub(super) fn describe(&self, module: &str) -> ModuleConfig<'_> {
        let (excluded, descriptions) = match self.single(module) {
            Some((_, Some(description))) => (None, std::slice::from_ref(description)),
            Some((entry, None)) => (Some(entry), &*self.others),
            None => (None, &*self.others),
        };
        let others = || self.also_ignored.iter().find_map(|(name, list)| Some((&**name, list.find(module)?)));
        let own = self.ignored.find(module).or(excluded).map(|entry| ("the config", entry));
        ModuleConfig { ignored: own.or_else(others), descriptions }
    }

    /// Returns the entry that decides about a module, and whether it says that the module is not quantized.
    fn entry(&self, module: &str) -> Option<(bool, &str)> {
        let ignored = self.describe(module).ignored.map(|(_, entry)| (true, entry));
        ignored.or_else(|| self.single(module).map(|(entry, description)| (description.is_none(), entry)))
    }

    /// True if some engines take an entry for the name of this module, which is then not quantized.
    pub(super) fn may_ignore(&self, module: &str) -> bool {
        self.ignored.may_contain(module)
    }
}
