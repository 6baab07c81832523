//! Names of an adapter's modules as tensors of the base. The base decides; where the dots were is never guessed.

use super::adapter::KOHYA_PREFIXES;
use crate::error::{Error, Result};
use crate::read::{Model, ModelTensor};
use crate::text::{first_few, shorten};
use regex::Regex;
use std::collections::{HashMap, HashSet};

/// The tensors of the base, and the names by which adapters may call them.
pub(super) struct BaseNames<'m> {
    pub tensors: Vec<ModelTensor<'m>>,
    by_name: HashMap<&'m str, usize>,
    /// A container that most names begin with.
    container: &'static str,
    /// Names without `.weight`, with and without the container.
    stems: HashMap<&'m str, usize>,
    /// The same with underscores in place of dots.
    underscored: HashMap<String, Vec<usize>>,
    /// Names of banks of experts, and the numbers of the experts that are stored one by one.
    banks: HashMap<&'m str, HashSet<u64>>,
    /// Parts of names, and their replacements, of the row of [`FAMILIES`].
    replacements: Vec<(Regex, &'static str)>,
}

/// A matrix of the base that a delta changes: a tensor, one of a stack, or some rows. Its elements follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MergePlace {
    /// The index of the tensor.
    pub tensor: usize,
    /// Its first element in the tensor.
    pub start: u64,
    pub rows: u64,
    pub columns: u64,
    /// True if the halves of its rows are those of the delta in the other order.
    pub swaps_halves: bool,
}

impl MergePlace {
    /// Returns some of its rows.
    pub(super) fn rows_from(self, first: u64, rows: u64) -> Self {
        Self { start: self.start + first * self.columns, rows, ..self }
    }
}

/// Parts of a module's name in diffusers, and their replacements, in this order. Behind a `/` are the rows.
type Replacements = &'static [(&'static str, &'static str)];

/// FLUX.1 of Black Forest Labs.
const FLUX: Replacements = &[
    (r"^single_transformer_blocks\.(.*)\.attn\.to_([qkv])$", "single_blocks.${1}.linear1/${2}"),
    (r"^single_transformer_blocks\.(.*)\.proj_mlp$", "single_blocks.${1}.linear1/mlp"),
    (r"^single_transformer_blocks\.(.*)\.proj_out$", "single_blocks.${1}.linear2"),
    (r"^single_transformer_blocks\.(.*)\.norm\.linear$", "single_blocks.${1}.modulation.lin"),
    (r"^transformer_blocks\.(.*)\.attn\.to_([qkv])$", "double_blocks.${1}.img_attn.qkv/${2}"),
    (r"^transformer_blocks\.(.*)\.attn\.add_([qkv])_proj$", "double_blocks.${1}.txt_attn.qkv/${2}"),
    (r"^transformer_blocks\.(.*)\.attn\.to_out\.0$", "double_blocks.${1}.img_attn.proj"),
    (r"^transformer_blocks\.(.*)\.attn\.to_add_out$", "double_blocks.${1}.txt_attn.proj"),
    (r"^transformer_blocks\.(.*)\.norm1\.linear$", "double_blocks.${1}.img_mod.lin"),
    (r"^transformer_blocks\.(.*)\.norm1_context\.linear$", "double_blocks.${1}.txt_mod.lin"),
    (r"^transformer_blocks\.(.*)\.ff\.net\.(0\.proj|2)$", "double_blocks.${1}.img_mlp.${2}"),
    (r"^transformer_blocks\.(.*)\.ff_context\.net\.(0\.proj|2)$", "double_blocks.${1}.txt_mlp.${2}"),
    (r"_mlp\.0\.proj$", "_mlp.0"),
    (r"^time_text_embed\.timestep_embedder\.", "time_in."),
    (r"^time_text_embed\.text_embedder\.", "vector_in."),
    (r"^time_text_embed\.guidance_embedder\.", "guidance_in."),
    (r"_in\.linear_1$", "_in.in_layer"),
    (r"_in\.linear_2$", "_in.out_layer"),
    ("^x_embedder$", "img_in"),
    ("^context_embedder$", "txt_in"),
    ("^proj_out$", "final_layer.linear"),
    (r"^norm_out\.linear$", "final_layer.adaLN_modulation.1/swapped"),
];

const WAN: Replacements = &[
    (r"condition_embedder\.(time|text)_embedder\.linear_2", "${1}_embedding.2"),
    (r"condition_embedder\.(time|text)_embedder\.linear_1", "${1}_embedding.0"),
    (r"condition_embedder\.time_proj", "time_projection.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.0\.proj", "img_emb.proj.1"),
    (r"condition_embedder\.image_embedder\.ff\.net\.2", "img_emb.proj.3"),
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_out\.0", ".o"),
    (r"\.to_([qkv])", ".${1}"),
    (r"\.add_([kv])_proj", ".${1}_img"),
    (r"\.ffn\.net\.0\.proj", ".ffn.0"),
    (r"\.ffn\.net\.2", ".ffn.2"),
    ("proj_out", "head.head"),
];

const Z_IMAGE: Replacements = &[
    (r"\.attention\.to_([qkv])$", ".attention.qkv/${1}"),
    (r"\.attention\.to_out\.0", ".attention.out"),
    (r"all_final_layer\.2-1\.", "final_layer."),
    (r"all_x_embedder\.2-1", "x_embedder"),
];

/// Families of diffusion models whose files have other names than diffusers, and rows of several modules in a tensor: names
/// that show the family.
const FAMILIES: [(&[&str], Replacements); 3] = [
    (&["double_blocks.0.img_attn.qkv"], FLUX),
    (&["blocks.0.self_attn.q", "head.head"], WAN),
    (&["layers.0.attention.qkv"], Z_IMAGE),
];

const CONTAINERS: &[&str] = &["model.diffusion_model.", "diffusion_model.", "transformer.", "unet."];

/// Prefixes that programs add to the names of modules.
const PREFIXES: &[&str] = &[
    "base_model.model.",
    "diffusion_model.",
    "transformer.",
    "unet.base_model.model.",
    "unet.",
    "text_encoder.",
    "text_encoder_2.",
    "model.diffusion_model.",
    "",
];

/// Prefixes of the language model: those that are removed, and those that are added.
const SUBSTITUTIONS: &[(&str, &str)] = &[
    ("", ""),
    ("", "model."),
    ("model.", ""),
    ("model.", "model.language_model."),
    ("model.language_model.", "model."),
    ("language_model.", ""),
];

/// The rule for all names of an adapter: a prefix to remove, another one to remove after it, and one to add.
#[derive(Clone, Copy)]
pub(super) struct NameRule {
    strip: &'static str,
    replaced: &'static str,
    added: &'static str,
}

impl NameRule {
    pub(super) fn apply(self, module: &str) -> Option<String> {
        let rest = module.strip_prefix(self.strip)?.strip_prefix(self.replaced)?;
        Some(format!("{}{rest}", self.added))
    }
}

impl<'m> BaseNames<'m> {
    pub(super) fn new(model: &'m Model) -> Self {
        let tensors: Vec<ModelTensor> = model.model_tensors(&[]).collect();
        let shared = |container: &&&str| 2 * tensors.iter().filter(|it| it.name().starts_with(**container)).count();
        let container = CONTAINERS.iter().find(|it| shared(it) > tensors.len()).copied().unwrap_or("");
        let by_name: HashMap<&str, usize> = tensors.iter().enumerate().map(|(at, it)| (it.name(), at)).collect();
        let mut stems: HashMap<&str, usize> = HashMap::new();
        for (start, (at, tensor)) in
            ["", container].iter().flat_map(|it| tensors.iter().enumerate().map(move |at| (it, at)))
        {
            let name = tensor.name().strip_prefix(start).unwrap_or(tensor.name());
            stems.entry(name.strip_suffix(".weight").unwrap_or(name)).or_insert(at);
        }
        let mut underscored: HashMap<String, Vec<usize>> = HashMap::new();
        for (stem, at) in &stems {
            underscored.entry(stem.replace('.', "_")).or_default().push(*at);
        }
        for places in underscored.values_mut() {
            places.sort_unstable();
        }
        let mut banks: HashMap<&str, HashSet<u64>> = HashMap::new();
        for tensor in &tensors {
            let name = tensor.name();
            for (at, _) in name.match_indices("experts.") {
                let (bank, rest) = (&name[..at + "experts".len()], &name[at + "experts.".len()..]);
                let number = rest.split('.').next().and_then(|number| number.parse::<u64>().ok());
                banks.entry(bank).or_default().extend(number);
            }
        }
        let family = FAMILIES.iter().find(|(shown_by, _)| shown_by.iter().all(|stem| stems.contains_key(stem)));
        let rows = family.map_or(&[][..], |(_, rows)| rows).iter();
        let replacements = rows.map(|(part, own)| (Regex::new(part).expect("the rows are patterns"), *own)).collect();
        Self { tensors, by_name, container, stems, underscored, banks, replacements }
    }

    /// Returns the place of a whole tensor: its first dimension, and all others.
    pub(super) fn whole(&self, tensor: usize) -> MergePlace {
        let shape = self.tensors[tensor].shape();
        let rows = shape.first().copied().unwrap_or(1);
        MergePlace { tensor, start: 0, rows, columns: shape.iter().skip(1).product(), swaps_halves: false }
    }

    /// Returns the place of a matrix of a stack.
    pub(super) fn matrix(&self, tensor: usize, at: u64) -> MergePlace {
        let stack = self.whole(tensor);
        let rows = self.tensors[tensor].shape().get(1).copied().unwrap_or(1);
        MergePlace { start: at * stack.columns, rows, columns: stack.columns / rows.max(1), ..stack }
    }

    /// Returns a tensor by its whole name, with or without the container.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let found = self.by_name.get(name).copied();
        found.or_else(|| self.by_name.get(format!("{}{name}", self.container).as_str()).copied())
    }

    /// Returns the bias of the layer of a weight.
    pub(super) fn bias_of(&self, weight: usize) -> Option<usize> {
        let stem = self.tensors[weight].name().strip_suffix("weight")?;
        self.by_name.get(format!("{stem}bias").as_str()).copied()
    }

    /// Returns the place that a module of kohya names.
    pub(super) fn underscored(&self, module: &str) -> Result<Option<MergePlace>> {
        for prefix in KOHYA_PREFIXES {
            let found = module.strip_prefix(prefix).and_then(|rest| self.underscored.get(rest));
            match found.map(Vec::as_slice) {
                Some([one]) => return Ok(Some(self.whole(*one))),
                Some(several) => {
                    let names = first_few(several.iter().map(|at| self.tensors[*at].name()), 3);
                    let what = format!("the module '{}' is ambiguous: it could be {names}", shorten(module));
                    return Err(Error::new(what).remedy("save the adapter with dots in its names"));
                }
                None => {}
            }
        }
        Ok(None)
    }

    /// Returns the place that a module with dots names.
    pub(super) fn dotted(&self, module: &str) -> Option<MergePlace> {
        let module = &*module.replace(".processor", "");
        let whole = |name: &str| self.find_stem(name).map(|at| self.whole(at));
        whole(module)
            .or_else(|| self.expert_in_stack(module))
            .or_else(|| whole(&moved(module)))
            .or_else(|| whole(&format!("{module}.0")).filter(|_| module.ends_with("to_out")))
            .or_else(|| self.of_family(module))
    }

    /// Returns the place of an expert that the base stores in a stack.
    fn expert_in_stack(&self, module: &str) -> Option<MergePlace> {
        let (expert, own) = module.rsplit_once('.')?;
        let (bank, number) = expert.rsplit_once('.')?;
        let number: u64 = number.parse().ok().filter(|_| bank.ends_with(".experts"))?;
        let (stack, half) = match own {
            "gate_proj" | "w1" => ("gate_up_proj", Some(0)),
            "up_proj" | "w3" => ("gate_up_proj", Some(1)),
            "down_proj" | "w2" => ("down_proj", None),
            _ => return None,
        };
        let tensor =
            [bank.to_owned(), moved(bank)].iter().find_map(|bank| self.find_stem(&format!("{bank}.{stack}")))?;
        let &[experts, _, _] = self.tensors[tensor].shape() else { return None };
        let matrix = (number < experts).then(|| self.matrix(tensor, number))?;
        Some(half.map_or(matrix, |half| matrix.rows_from(half * (matrix.rows / 2), matrix.rows / 2)))
    }

    /// Returns the place of a module that diffusers names otherwise.
    fn of_family(&self, module: &str) -> Option<MergePlace> {
        let replaced = |name: String, (part, own): &(Regex, &str)| part.replace_all(&name, *own).into_owned();
        let name = self.replacements.iter().fold(module.to_owned(), replaced);
        let (stem, rows) = name.split_once('/').filter(|_| !module.contains('/')).unwrap_or((&name, ""));
        let place = self.whole(self.find_stem(stem)?);
        match rows {
            "" => Some(place),
            "swapped" => Some(MergePlace { swaps_halves: true, ..place }),
            // Each has as many rows as its input has values; those of an MLP behind them are the rest.
            _ => {
                let at = ["q", "k", "v", "mlp"].iter().position(|it| *it == rows)? as u64;
                let rest = place.rows.checked_sub(at * place.columns)?;
                let rows = if rows == "mlp" { rest } else { place.columns };
                (rows <= rest).then(|| place.rows_from(at * place.columns, rows))
            }
        }
    }

    pub(super) fn find_stem(&self, stem: &str) -> Option<usize> {
        self.stems.get(stem).copied()
    }

    /// Returns the name of a bank of experts, as the base writes it.
    pub(super) fn bank(&self, module: &str) -> Option<String> {
        let is_bank = |name: &String| name.ends_with("experts") && self.banks.contains_key(name.as_str());
        [module.to_owned(), moved(module)].into_iter().find(is_bank)
    }

    /// Returns the numbers of the experts of a bank that are stored one by one.
    pub(super) fn singles(&self, bank: &str) -> Option<&HashSet<u64>> {
        self.banks.get(bank)
    }

    /// Returns the rule under which the most modules have a place.
    pub(super) fn rule<'n>(&self, modules: impl Iterator<Item = &'n str>) -> NameRule {
        /// Maximum number of modules that are tried; of more, some are.
        const MOST: usize = 1 << 14;
        let modules: Vec<&str> = modules.collect();
        let step = modules.len().div_ceil(MOST).max(1);
        let all = modules.len().div_ceil(step);
        let mut best: Option<(usize, NameRule)> = None;
        for strip in PREFIXES {
            for (replaced, added) in SUBSTITUTIONS {
                let rule = NameRule { strip, replaced, added };
                let has_place = |module: &&&str| {
                    rule.apply(module).is_some_and(|name| self.dotted(&name).is_some() || self.bank(&name).is_some())
                };
                let count = modules.iter().step_by(step).filter(has_place).count();
                if best.is_none_or(|(most, _)| count > most) {
                    best = Some((count, rule));
                }
                if count == all {
                    return rule;
                }
            }
        }
        best.expect("there are rules").1
    }

    /// Returns a name of the base that shows its family: a weight in the middle.
    pub(super) fn example(&self) -> Option<&str> {
        let matrices: Vec<&ModelTensor> = self.tensors.iter().filter(|it| it.shape().len() > 1).collect();
        matrices.get(matrices.len() / 2).map(|tensor| tensor.name())
    }
}

/// Exchanges the names of the block of experts that transformers 5 changed in its models but not in their files: mixtral,
/// minimax, phimoe and others.
fn moved(module: &str) -> String {
    if module.contains(".mlp.") {
        module.replace(".mlp.", ".block_sparse_moe.")
    } else {
        module.replace(".block_sparse_moe.", ".mlp.")
    }
}
