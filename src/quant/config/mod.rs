//! Reads and writes the elements of all configs: objects, lists of modules, and descriptions of weights. A [`Library`] has
//! functions for its own config.

mod engine;
mod json;
mod modules;
mod object;
mod patterns;

pub use engine::{EngineConfig, KeptModules, QuantizedGroup};
pub use patterns::is_composite;

pub(super) use engine::only;
pub(super) use json::{ValueEdit, edited, listed, with_members, with_new, without_members};
pub(super) use modules::{MatchStyle, ModuleList, PartEntry, PatternMap, glob};
pub(super) use object::{ConfigObject, lengths, parse, sides};
pub(super) use patterns::{
    ModulePatterns, all_experts, entry_of_compressed_tensors, excluded_by_pattern, expert_of, pattern_of,
};

use super::layout::{CodeValues, Layout, Role};
use super::parts::Parameters;
use crate::container::MetadataChange;
use crate::container::checkpoint::names_in_mlx;
use crate::dtype::Dtype;
use crate::error::Result;
use json::without_names;
use modules::ModuleMap;
use patterns::named_by_pattern;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

pub(super) type MetadataChanges = Vec<MetadataChange>;

type ConfigWriter = fn(&[QuantizedGroup], &KeptModules) -> Result<EngineConfig>;

/// A library or a format: its layouts, and its block in configs.
pub(super) struct Library {
    pub(super) layouts: &'static [Layout],
    /// Its names in `quant_method`, in lower case, with the name in messages first; none if it has no block in configs.
    pub(super) names: &'static [&'static str],
    /// The keys of the lists of modules that are not quantized.
    pub(super) ignored: &'static [&'static str],
    pub(super) style: MatchStyle,
    /// True if `quant_algo` of another block may be any, because the names of these algorithms do not contain its own.
    pub(super) has_algorithms: bool,
    /// True if it writes its description to two files, each of which is read.
    pub(super) has_two_blocks: bool,
    pub(super) read: fn(&ConfigObject, &mut CheckpointConfig) -> Result<()>,
    /// Adds decoded modules to those that are not quantized. The argument is true for a composite model. `None` if the
    /// text is not an object.
    pub(super) exclude: fn(&str, &Modules, bool) -> Result<Option<String>>,
    /// Changes the metadata of files after weights were decoded.
    pub(super) metadata: fn(&[&(String, String)], &Modules) -> MetadataChanges,
    /// Describes quantized weights; `None` if tcast does not quantize to its layouts.
    pub(super) write: Option<ConfigWriter>,
}

impl Library {
    /// A library without layouts and without a config.
    pub(super) const BASE: Self = Self {
        layouts: &[],
        names: &[],
        ignored: &[],
        style: MatchStyle::Prefixed,
        has_algorithms: false,
        has_two_blocks: false,
        read: |_, _| Ok(()),
        exclude: |_, _, _| Ok(None),
        metadata: |_, _| Vec::new(),
        write: None,
    };

    /// Returns the modules that a block lists as not quantized.
    pub(super) fn ignored(&self, block: &ConfigObject) -> Result<ModuleList> {
        ModuleList::new(&block.texts(self.ignored)?, self.style)
    }
}

/// The modules of a checkpoint whose weights were quantized.
#[derive(Default)]
pub struct Modules<'a> {
    pub decoded: HashSet<&'a str>,
    /// Modules that stay quantized.
    pub left: HashSet<&'a str>,
    /// New names of modules by old name; the other fields contain new names.
    pub renamed: HashMap<&'a str, &'a str>,
    /// Names of modules, and of tensors, that no longer exist.
    pub gone: HashSet<&'a str>,
}

impl Modules<'_> {
    /// Returns the names of the decoded modules in order.
    pub(super) fn sorted(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.decoded.iter().copied().collect();
        names.sort_unstable();
        names
    }

    /// Removes modules that no longer exist from a description, and replaces the old names of modules by the new ones.
    pub(super) fn update<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.gone.is_empty() {
            return self.rename_in(text);
        }
        let is_gone =
            |name: &str| self.gone.contains(name) || named_by_pattern(name).is_some_and(|it| self.gone.contains(&*it));
        let text = without_names(text, &is_gone);
        Cow::Owned(self.rename_in(&text).into_owned())
    }

    fn rename_in<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.renamed.is_empty() {
            return Cow::Borrowed(text);
        }
        let new_name = |name: &str| {
            let own = named_by_pattern(name).and_then(|own| self.renamed.get(&*own));
            own.map(|new| excluded_by_pattern(new)).or_else(|| self.renamed.get(name).map(|new| (*new).to_owned()))
        };
        let (mut changed, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(start) = rest.find('"') {
            let mut strings = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<String>();
            let Some(Ok(name)) = strings.next() else { break };
            let (string, after) = rest[start..].split_at(strings.byte_offset());
            changed += &rest[..start];
            changed += &new_name(&name).map_or_else(|| string.to_owned(), |name| serde_json::json!(name).to_string());
            rest = after;
        }
        Cow::Owned(changed + rest)
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
    pub(super) fn new(layouts: Vec<&'static Layout>, wording: impl Into<String>) -> Self {
        Self { layouts, wording: wording.into(), ..Self::default() }
    }
}

/// Returns the layouts that configs call by this name; all of them without a name.
pub(super) fn named(layouts: &'static [Layout], name: Option<&str>) -> Vec<&'static Layout> {
    layouts.iter().filter(|layout| name.is_none_or(|name| layout.formats.contains(&name))).collect()
}

/// True if a layout stores numbers of this type and width.
pub(super) fn stores(layout: &Layout, kind: &str, bits: u64) -> bool {
    let dtype = match layout.codes.values {
        CodeValues::Unsigned => return kind == "int",
        CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) | CodeValues::Signed(dtype) => dtype,
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
    pub(super) ignored: ModuleList,
    /// Modules that are not quantized according to other blocks, with the names of these blocks.
    pub(super) also_ignored: Vec<(String, ModuleList)>,
    /// Descriptions of single modules; `None` if a module is not quantized.
    pub(super) named: ModuleMap<Option<Rc<WeightDescription>>>,
    pub(super) patterned: PatternMap<Option<Rc<WeightDescription>>>,
    /// Possible descriptions of all other modules.
    pub(super) others: Vec<Rc<WeightDescription>>,
}

/// The descriptions of a module in the configs of a checkpoint.
pub(super) struct ModuleConfig<'c> {
    /// The config that lists the module as not quantized, and its entry.
    pub(super) ignored: Option<(&'c str, &'c str)>,
    /// The possible descriptions of its weight if it is quantized; none if there is no config.
    pub(super) descriptions: &'c [Rc<WeightDescription>],
}

impl CheckpointConfig {
    pub(super) fn add_others(&mut self, description: WeightDescription) {
        self.others.push(Rc::new(description));
    }

    /// Returns the entry for a single module, or for one that encloses it, and its description.
    fn single(&self, module: &str) -> Option<(&str, &Option<Rc<WeightDescription>>)> {
        let outer = module.match_indices('.').rev().map(|(at, _)| &module[..at]);
        let own = self.named.get(module).or_else(|| names_in_mlx(module).find_map(|name| self.named.get(&name)));
        let named = own.or_else(|| outer.into_iter().find_map(|name| self.named.get(name)));
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
    pub(super) fn entry(&self, module: &str) -> Option<(bool, &str)> {
        let ignored = self.describe(module).ignored.map(|(_, entry)| (true, entry));
        ignored.or_else(|| self.single(module).map(|(entry, description)| (description.is_none(), entry)))
    }

    /// True if some engines take an entry for the name of this module, which is then not quantized.
    pub(super) fn may_ignore(&self, module: &str) -> bool {
        self.ignored.may_contain(module)
    }
}
