//! Claims of a checkpoint's config about its weights.

use super::block::{Claim, ConfigObject};
use super::found::CheckpointInfo;
use super::groups::{self, ClaimRule};
use super::modules::{Listed, MatchStyle, ModuleList, pattern};
use super::statements::Statement;
use crate::container::checkpoint::{CONFIG, QUANTIZE_CONFIG};
use crate::container::{as_json, members};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::method::{MLX, QuantMethod, undecoded_method};
use crate::quant::{Group, Parameters, Role};
use crate::text::shorten;
use regex::Regex;
use serde_json::Value;
use std::collections::HashMap;

/// All claims of the configs of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// The method, if a config names one.
    pub(super) method: Option<String>,
    /// Modules that are not quantized.
    ignored: ModuleList,
    /// Modules that are not quantized according to other descriptions, with the names of these descriptions.
    also_ignored: Vec<(String, ModuleList)>,
    /// All claims, which the other fields refer to by index.
    all: Vec<Claim>,
    /// Claims about single modules; `None` if a module is not quantized.
    named: HashMap<String, Option<usize>>,
    patterned: Vec<(Regex, Option<usize>)>,
    /// Claims about all other modules.
    others: Vec<usize>,
}

/// Claims about one module.
pub(super) struct Said<'a> {
    /// The entry that lists it as not quantized.
    pub(super) ignored: Option<Listed>,
    /// The claims that may apply if it is quantized.
    pub(super) claims: Vec<&'a Claim>,
}

/// Characters that make a name in `extra_config` of auto-round a regular expression (vLLM `inc.py`).
const SPECIAL: &[char] = &['*', '+', '?', '^', '$', '(', ')', '[', ']', '{', '}', '|', '\\'];

impl Claims {
    pub(super) fn read(source: &CheckpointInfo) -> Result<Self> {
        let mut statements = Statement::read(source)?;
        let Some(first) = statements.first_mut() else { return Ok(Self::default()) };
        let path = source.folder.join(first.file);
        let in_file = |error: Error| error.in_file(&path);
        if first.file == CONFIG
            && let Some(outer) = source.config.and_then(expert_dtype)
        {
            let own = first.block.entry("expert_dtype").or_insert_with(|| outer.clone());
            if *own != outer {
                let [own, outer] = [&*own, &outer].map(|dtype| shorten(&dtype.to_string()));
                let message = format!("its expert_dtype is {outer}, and that of its quantization_config is {own}");
                return Err(in_file(Error::new(message)));
            }
        }
        let [first, others @ ..] = &statements[..] else { return Ok(Self::default()) };
        others.iter().try_for_each(|other| first.check_agrees(other)).map_err(in_file)?;
        let mut claims = Self::of(&ConfigObject(&first.block), &first.patterns, first.file).map_err(in_file)?;
        for other in others {
            let block = ConfigObject(&other.block);
            let method = method_of(&block, other.file).unwrap_or_default();
            let in_other = |error: Error| error.in_file(&source.folder.join(other.file));
            let known = QuantMethod::find(&method);
            if !method.is_empty() && known.is_none() {
                return Err(in_other(undecoded_method(&method)));
            }
            let ignored = ignored(&block, &method).map_err(in_other)?;
            let both_of_modelopt =
                known == Some(QuantMethod::ModelOpt) && claims.method.as_deref().and_then(QuantMethod::find) == known;
            if both_of_modelopt {
                groups::modelopt(&block).map_err(in_other)?;
            }
            claims.also_ignored.push((other.name(), ignored));
        }
        Ok(claims)
    }

    fn of(block: &ConfigObject, patterns: &[String], file: &str) -> Result<Self> {
        let method = method_of(block, file)?;
        let ignored = ignored(block, &method)?;
        let mut claims = Self { method: Some(method.clone()), ignored, ..Self::default() };
        match QuantMethod::find(&method).ok_or_else(|| undecoded_method(&method))? {
            QuantMethod::FineGrained => {
                let claim = fine_grained(block, &method)?;
                let no_exponents = claim.no_exponents;
                claims.add(claim);
                if block.text(&["expert_dtype"])? == Some("fp4") {
                    let claim = Claim::new(&["hf-fp4"], "the config says expert_dtype 'fp4'");
                    claims.add(Claim { no_exponents, ..claim });
                }
            }
            QuantMethod::CompressedTensors => claims.rules(groups::compressed_tensors(block)?),
            QuantMethod::Mxfp4 => {
                claims.add(Claim::new(&["gptoss-mxfp4", "gptoss-openai"], "the config says quant_method 'mxfp4'"));
            }
            QuantMethod::Gptq => claims.rules(packed(block, patterns, "gptq", gptq(block)?)?),
            QuantMethod::Awq => claims.rules(packed(block, patterns, "awq", awq(block)?)?),
            QuantMethod::AutoRound => claims.rules(auto_round(block, patterns)?),
            QuantMethod::BitsAndBytes => {
                let layout = if block.is_true("load_in_8bit")? { "bnb-int8" } else { "bnb-4bit" };
                let width = if layout == "bnb-int8" { "load_in_8bit" } else { "load_in_4bit" };
                let claim = Claim::new(&[layout], &format!("the config says quant_method 'bitsandbytes', {width}"));
                let quant_type = block.text(&["bnb_4bit_quant_type"])?.map(str::to_lowercase);
                claims.add(Claim { quant_type, ..claim });
            }
            QuantMethod::Quanto => claims.add(quanto(block)?),
            QuantMethod::ModelOpt => claims.rules(groups::modelopt(block)?),
        }
        Ok(claims)
    }

    fn add(&mut self, claim: Claim) {
        self.others.push(self.all.len());
        self.all.push(claim);
    }

    fn rules(&mut self, rules: Vec<ClaimRule>) {
        for rule in rules {
            let place = rule.claim.map(|claim| {
                self.all.push(claim);
                self.all.len() - 1
            });
            self.named.extend(rule.names.into_iter().map(|name| (name, place)));
            self.patterned.extend(rule.patterns.into_iter().map(|pattern| (pattern, place)));
            if rule.is_for_others {
                self.others.extend(place);
            }
        }
    }

    /// Returns another description that lists a module as not quantized, with its entry.
    pub(super) fn also_ignored(&self, module: &str) -> Option<(&str, String)> {
        self.also_ignored.iter().find_map(|(name, list)| match list.find(module) {
            Some(Listed::Firmly(entry)) => Some((&**name, entry)),
            _ => None,
        })
    }

    /// Returns the claims about a module; none if there is no config.
    pub(super) fn on(&self, module: &str) -> Said<'_> {
        let around = module.match_indices('.').rev().map(|(at, _)| &module[..at]);
        let named = std::iter::once(module).chain(around).find_map(|name| self.named.get_key_value(name));
        let single = named.map(|(name, place)| (name.clone(), *place)).or_else(|| {
            let found = self.patterned.iter().find(|(pattern, _)| pattern.is_match(module));
            found.map(|(pattern, place)| (pattern.as_str().to_owned(), *place))
        });
        let mut ignored = self.ignored.find(module);
        let places = match single {
            Some((_, Some(place))) => vec![place],
            Some((entry, None)) => {
                ignored.get_or_insert(Listed::Firmly(entry));
                self.others.clone()
            }
            None => self.others.clone(),
        };
        Said { ignored, claims: places.into_iter().map(|place| &self.all[place]).collect() }
    }
}

/// Returns the quantization method that a description names or implies.
fn method_of(block: &ConfigObject, file: &str) -> Result<String> {
    Ok(match block.text(&["quant_method"])? {
        Some(method) => method.to_lowercase(),
        None if block.has("quant_algo") || block.has("quantized_layers") => "modelopt".to_owned(),
        None if block.has("config_groups") => "compressed-tensors".to_owned(),
        None if block.is_true("load_in_4bit")? || block.is_true("load_in_8bit")? => "bitsandbytes".to_owned(),
        None if block.has("zero_point") || block.has("w_bit") => "awq".to_owned(),
        None if file == QUANTIZE_CONFIG => "gptq".to_owned(),
        None if block.has("group_size") && block.has("bits") && !block.has("desc_act") => MLX.to_owned(),
        None => return Err(Error::new("its quantization_config does not name a quant_method")),
    })
}

/// Returns the modules that a description lists as not quantized.
fn ignored(block: &ConfigObject, method: &str) -> Result<ModuleList> {
    let Some(method) = QuantMethod::find(method) else { return Ok(ModuleList::default()) };
    let style = match method {
        QuantMethod::CompressedTensors => MatchStyle::Prefixed,
        QuantMethod::ModelOpt => MatchStyle::Globs,
        _ => MatchStyle::Transformers,
    };
    Ok(ModuleList::new(&block.texts(method.ignored_keys())?, style))
}

/// Returns the type of experts that `config.json` names outside its `quantization_config`, where vLLM reads it.
fn expert_dtype(config: &str) -> Option<Value> {
    let json = as_json(config);
    let value = members(&json)?.get("expert_dtype").and_then(|value| serde_json::from_str(value.get()).ok());
    value.filter(|value: &Value| !value.is_null())
}

/// Reads the claim of `fp8` or `mxfp8` of transformers.
fn fine_grained(block: &ConfigObject, method: &str) -> Result<Claim> {
    let group = match block.get("weight_block_size") {
        None => None,
        Some(Value::Null) => Some(Group::Tensor),
        Some(size) => {
            let size: Option<Vec<u64>> = size.as_array().and_then(|size| size.iter().map(Value::as_u64).collect());
            let Some([rows, columns]) = size.as_deref() else {
                return Err(Error::new("its weight_block_size is not two numbers"));
            };
            Some(Group::Block([*rows, *columns]))
        }
    };
    let mut said = match group {
        Some(Group::Block(size)) => format!("the config says quant_method '{method}', weight_block_size {size:?}"),
        _ => format!("the config says quant_method '{method}'"),
    };
    // 'e4m3', or 'float8_e4m3fn'; no library depends on other values.
    let format = block.text(&["fmt"])?.unwrap_or_default();
    let codes: Vec<Dtype> = format.parse().into_iter().collect();
    if codes.iter().any(|dtype| *dtype != Dtype::Float8E4M3FN) {
        said = format!("{said}, fmt '{}'", shorten(format));
    }
    let parameters = Parameters { group, ..Parameters::default() };
    let no_exponents = block.text(&["scale_fmt"])? == Some("float");
    Ok(Claim { parameters, codes, no_exponents, ..Claim::new(&["hf-fp8"], &said) })
}

/// Reads the claim of quanto, of transformers ('int8') or of optimum ('qint8').
fn quanto(block: &ConfigObject) -> Result<Claim> {
    let said = "the config says quant_method 'quanto'";
    let Some(weights) = block.text(&["weights"])? else { return Ok(Claim::new(&["quanto"], said)) };
    let said = format!("{said}, weights '{}'", shorten(weights));
    let codes = match weights.strip_prefix('q').unwrap_or(weights) {
        "float8" => vec![Dtype::Float8E4M3FN, Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2],
        "int2" | "int4" => return Err(Error::new(format!("{said}, which tcast does not decode"))),
        name => match name.parse() {
            Ok(dtype) => vec![dtype],
            Err(_) => return Err(Error::new(format!("{said}, which tcast does not know"))),
        },
    };
    Ok(Claim { codes, ..Claim::new(&["quanto"], &said) })
}

/// Reads the width and the groups of codes in int32 words.
fn integers(block: &ConfigObject, layout: &'static str, said: &str) -> Result<Claim> {
    let Some(bits) = block.number(&["bits", "w_bit"])? else {
        return Err(Error::new(format!("{said}, and not how many bits")));
    };
    let group = block.integer(&["group_size", "q_group_size"])?.map(Group::of_size);
    let parameters = Parameters { bits: u32::try_from(bits).ok(), group, ..Parameters::default() };
    Ok(Claim { parameters, ..Claim::new(&[layout], &format!("{said}, bits {bits}")) })
}

fn gptq(block: &ConfigObject) -> Result<Claim> {
    let said = "the config says quant_method 'gptq'";
    let form = block.text(&["checkpoint_format", "format"])?.unwrap_or("gptq");
    let form = if block.is_true("is_marlin_format")? { "marlin" } else { form };
    if !matches!(form, "gptq" | "gptq_v2") {
        let message = format!("its checkpoint_format is '{}', and tcast knows 'gptq' and 'gptq_v2'", shorten(form));
        return Err(Error::new(message));
    }
    let mut claim = integers(block, "gptq", &format!("{said}, checkpoint_format '{form}'"))?;
    claim.parameters.zeros_are_one_less = form == "gptq";
    claim.parameters.is_symmetric = block.is_true("sym")?;
    set_order(&mut claim, block.flag("desc_act")?);
    Ok(claim)
}

/// Sets the order of the columns: by default in the order of their activations, as in `AutoGPTQ`, which requires a
/// group index; as stored if `desc_act` is false.
fn set_order(claim: &mut Claim, desc_act: Option<bool>) {
    claim.parameters.is_in_order = desc_act == Some(false);
    claim.needs = if claim.parameters.is_in_order { Vec::new() } else { vec![Role::GroupIndex] };
}

fn awq(block: &ConfigObject) -> Result<Claim> {
    let version = block.text(&["version", "checkpoint_format", "format"])?.unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        let message = format!(
            "its AWQ version is '{}', whose codes lie in another order than those of 'gemm', which tcast does not decode",
            shorten(version)
        );
        return Err(Error::new(message));
    }
    let mut claim = integers(block, "awq", "the config says quant_method 'awq', version 'gemm'")?;
    claim.parameters.is_symmetric = block.flag("zero_point")? == Some(false);
    Ok(claim)
}

/// Returns the claim about all modules, and the claims of `GPTQModel`'s `dynamic` about some of them.
fn packed(block: &ConfigObject, patterns: &[String], layout: &'static str, claim: Claim) -> Result<Vec<ClaimRule>> {
    let mut rules = Vec::new();
    for (entry, own) in block.ordered("dynamic", patterns)? {
        let (is_out, text) = match (entry.strip_prefix("-:"), entry.strip_prefix("+:")) {
            (Some(text), _) => (true, text),
            (None, text) => (false, text.unwrap_or(entry)),
        };
        let found = pattern(text, ("dynamic", entry, rules.len() + 1))?;
        let claim = if is_out { None } else { Some(overridden(&claim, &own, layout, entry)?) };
        rules.push(ClaimRule { patterns: vec![found], claim, ..ClaimRule::default() });
    }
    rules.push(ClaimRule { is_for_others: true, claim: Some(claim), ..ClaimRule::default() });
    Ok(rules)
}

/// Copies a claim, with the values that an entry overrides.
fn overridden(claim: &Claim, own: &ConfigObject, layout: &'static str, entry: &str) -> Result<Claim> {
    let mut changed = claim.clone();
    if let Some(bits) = own.number(&["bits"])? {
        changed.parameters.bits = u32::try_from(bits).ok();
    }
    if let Some(size) = own.integer(&["group_size"])? {
        changed.parameters.group = Some(Group::of_size(size));
    }
    if let Some(is_symmetric) = own.flag("sym")? {
        changed.parameters.is_symmetric = is_symmetric;
    }
    if let Some(desc_act) = own.flag("desc_act")? {
        set_order(&mut changed, Some(desc_act));
    }
    changed.said = format!("the config says of '{}' that it is {layout}", shorten(entry));
    Ok(changed)
}

/// Reads the claims of `auto-round`, which uses the formats of other libraries. The keys of its `extra_config` are
/// names or, with one of the characters of [`SPECIAL`], regular expressions that engines search for.
fn auto_round(block: &ConfigObject, patterns: &[String]) -> Result<Vec<ClaimRule>> {
    let packing = block.text(&["packing_format"])?.unwrap_or("auto_round:auto_gptq");
    let (layout, mut claim) = match packing.rsplit(':').next().unwrap_or_default() {
        "auto_gptq" => ("gptq", integers(block, "gptq", &format!("the config says packing_format '{packing}'"))?),
        "auto_awq" => ("awq", integers(block, "awq", &format!("the config says packing_format '{packing}'"))?),
        _ => {
            let message = format!("its packing_format is '{}', which tcast does not know", shorten(packing));
            return Err(Error::new(message));
        }
    };
    claim.parameters.zeros_are_one_less = layout == "gptq";
    claim.parameters.is_symmetric = block.is_true("sym")?;
    let mut rules = Vec::new();
    let mut count = 0;
    for (module, own) in block.ordered("extra_config", patterns)? {
        let is_out = own.number(&["bits"])?.is_some_and(|bits| bits >= 16);
        let claim = if is_out { None } else { Some(overridden(&claim, &own, layout, module)?) };
        let mut rule = ClaimRule { claim, ..ClaimRule::default() };
        if module.contains(SPECIAL) {
            count += 1;
            rule.patterns.push(pattern(&format!(".*(?:{module})"), ("extra_config", module, count))?);
        } else {
            rule.names.push(module.clone());
        }
        rules.push(rule);
    }
    rules.push(ClaimRule { is_for_others: true, claim: Some(claim), ..ClaimRule::default() });
    Ok(rules)
}
