//! Names of an adapter's modules as tensors of the base. The base decides; where the dots were is never guessed.

use super::adapter::KOHYA_PREFIXES;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::read::{Model, ModelTensor};
use crate::text::{first_few, shorten};
use std::collections::{HashMap, HashSet};

/// A tensor of the base: a stored one, or a quantized weight.
pub(super) struct BaseTensor<'m> {
    pub name: &'m str,
    pub shape: &'m [u64],
    /// The type of its values; `None` if it has codes.
    pub dtype: Option<Dtype>,
    /// The index of the stored tensor; `None` for a quantized weight.
    pub stored: Option<usize>,
}

/// The tensors of the base, and the names by which adapters may call them.
pub(super) struct BaseNames<'m> {
    pub tensors: Vec<BaseTensor<'m>>,
    by_name: HashMap<&'m str, usize>,
    /// A container that most names begin with.
    container: &'static str,
    /// Names without `.weight`, with and without the container.
    stems: HashMap<&'m str, usize>,
    /// The same with underscores in place of dots.
    underscored: HashMap<String, Vec<usize>>,
    /// Names of banks of experts.
    banks: HashSet<&'m str>,
    /// The number of experts that are stored one by one, by bank.
    singles: HashMap<&'m str, HashSet<u64>>,
    family: Option<DiffusionFamily>,
}

/// A place for a delta: a tensor or some rows of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeltaTarget {
    pub tensor: usize,
    /// The matrix of a stack of experts.
    pub expert: Option<u64>,
    /// The first row and the number of rows; `None` for all.
    pub rows: Option<(u64, u64)>,
    pub swaps_halves: bool,
}

impl DeltaTarget {
    pub(super) fn whole(tensor: usize) -> Self {
        Self { tensor, expert: None, rows: None, swaps_halves: false }
    }
}

/// A family of diffusion models whose files have other names and rows than diffusers.
#[derive(Clone, Copy)]
enum DiffusionFamily {
    Flux,
    Wan,
    ZImage,
}

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
        let tensors: Vec<BaseTensor> = model
            .model_tensors(&[])
            .map(|(at, tensor)| BaseTensor {
                name: tensor.name(),
                shape: tensor.shape(),
                dtype: match tensor {
                    ModelTensor::Stored(..) => model.tensors[at].dtype,
                    ModelTensor::Weight(..) => None,
                },
                stored: matches!(tensor, ModelTensor::Stored(..)).then_some(at),
            })
            .collect();
        let shared = |container: &&&str| 2 * tensors.iter().filter(|it| it.name.starts_with(**container)).count();
        let container = CONTAINERS.iter().find(|it| shared(it) > tensors.len()).copied().unwrap_or("");
        let by_name: HashMap<&str, usize> = tensors.iter().enumerate().map(|(at, it)| (it.name, at)).collect();
        let stem = |name: &'m str| name.strip_suffix(".weight").unwrap_or(name);
        let mut stems: HashMap<&str, usize> = HashMap::new();
        let full = tensors.iter().map(|it| it.name);
        let inner = tensors.iter().map(|it| it.name.strip_prefix(container).unwrap_or(it.name));
        for (at, name) in (0..tensors.len()).zip(full).chain((0..tensors.len()).zip(inner)) {
            stems.entry(stem(name)).or_insert(at);
        }
        let mut underscored: HashMap<String, Vec<usize>> = HashMap::new();
        for (stem, at) in &stems {
            underscored.entry(stem.replace('.', "_")).or_default().push(*at);
        }
        for places in underscored.values_mut() {
            places.sort_unstable();
        }
        let (mut banks, mut singles) = (HashSet::new(), HashMap::<&str, HashSet<u64>>::new());
        for tensor in &tensors {
            for (at, _) in tensor.name.match_indices("experts.") {
                let (bank, rest) = (&tensor.name[..at + "experts".len()], &tensor.name[at + "experts.".len()..]);
                banks.insert(bank);
                if let Some(number) = rest.split('.').next().and_then(|number| number.parse().ok()) {
                    singles.entry(bank).or_default().insert(number);
                }
            }
        }
        let has = |name: &str| stems.contains_key(name);
        let family = if has("double_blocks.0.img_attn.qkv") {
            Some(DiffusionFamily::Flux)
        } else if has("blocks.0.self_attn.q") && has("head.head") {
            Some(DiffusionFamily::Wan)
        } else {
            has("layers.0.attention.qkv").then_some(DiffusionFamily::ZImage)
        };
        Self { tensors, by_name, container, stems, underscored, banks, singles, family }
    }

    /// Returns a tensor by its whole name, with or without the container.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let found = self.by_name.get(name).copied();
        found.or_else(|| self.by_name.get(format!("{}{name}", self.container).as_str()).copied())
    }

    /// Returns the bias of the layer of a weight.
    pub(super) fn bias_of(&self, weight: usize) -> Option<usize> {
        let stem = self.tensors[weight].name.strip_suffix("weight")?;
        self.by_name.get(format!("{stem}bias").as_str()).copied()
    }

    /// Returns the place that a module of kohya names.
    pub(super) fn underscored(&self, module: &str) -> Result<Option<DeltaTarget>> {
        for prefix in KOHYA_PREFIXES {
            let found = module.strip_prefix(prefix).and_then(|rest| self.underscored.get(rest));
            match found.map(Vec::as_slice) {
                Some([one]) => return Ok(Some(DeltaTarget::whole(*one))),
                Some(several) => {
                    let names = first_few(several.iter().map(|at| self.tensors[*at].name), 3);
                    let what = format!("the module '{}' is ambiguous: it could be {names}", shorten(module));
                    return Err(Error::new(what).remedy("save the adapter with dots in its names"));
                }
                None => {}
            }
        }
        Ok(None)
    }

    /// Returns the place that a module with dots names.
    pub(super) fn dotted(&self, module: &str) -> Option<DeltaTarget> {
        let module = &*module.replace(".processor", "");
        let whole = |name: &str| self.stems.get(name).map(|at| DeltaTarget::whole(*at));
        whole(module)
            .or_else(|| self.expert_in_stack(module))
            .or_else(|| whole(&moved(module)))
            .or_else(|| whole(&format!("{module}.0")).filter(|_| module.ends_with("to_out")))
            .or_else(|| match self.family? {
                DiffusionFamily::Flux => self.of_flux(module),
                DiffusionFamily::Wan => whole(&of_wan(module)),
                DiffusionFamily::ZImage => self.of_z_image(module),
            })
    }

    /// Returns the place of an expert that the base stores in a stack.
    fn expert_in_stack(&self, module: &str) -> Option<DeltaTarget> {
        let (expert, own) = module.rsplit_once('.')?;
        let (bank, number) = expert.rsplit_once('.')?;
        let number: u64 = number.parse().ok().filter(|_| bank.ends_with(".experts"))?;
        let half = match own {
            "gate_proj" | "w1" => Some(0),
            "up_proj" | "w3" => Some(1),
            "down_proj" | "w2" => None,
            _ => return None,
        };
        let stack = if half.is_some() { "gate_up_proj" } else { "down_proj" };
        let tensor =
            [bank.to_owned(), moved(bank)].iter().find_map(|bank| self.find_stem(&format!("{bank}.{stack}")))?;
        let &[experts, rows, _] = self.tensors[tensor].shape else { return None };
        let rows = half.map(|half| (half * (rows / 2), rows / 2));
        (number < experts).then_some(DeltaTarget { tensor, expert: Some(number), rows, swaps_halves: false })
    }

    pub(super) fn find_stem(&self, stem: &str) -> Option<usize> {
        self.stems.get(stem).copied()
    }

    /// Returns the name of a bank of experts, as the base writes it.
    pub(super) fn bank(&self, module: &str) -> Option<String> {
        let is_bank = |name: &String| name.ends_with("experts") && self.banks.contains(name.as_str());
        [module.to_owned(), moved(module)].into_iter().find(is_bank)
    }

    /// Returns the numbers of the experts of a bank that are stored one by one.
    pub(super) fn singles(&self, bank: &str) -> Option<&HashSet<u64>> {
        self.singles.get(bank)
    }

    /// Returns equal parts of the rows of a tensor, counted from 0.
    fn part(&self, stem: &str, at: u64, parts: u64) -> Option<DeltaTarget> {
        let tensor = self.find_stem(stem)?;
        let rows = *self.tensors[tensor].shape.first()? / parts;
        Some(DeltaTarget { rows: Some((at * rows, rows)), ..DeltaTarget::whole(tensor) })
    }

    fn of_flux(&self, module: &str) -> Option<DeltaTarget> {
        let whole = |stem: String| self.find_stem(&stem).map(DeltaTarget::whole);
        let numbered = |prefix: &str| module.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
        if let Some((number, rest)) = numbered("transformer_blocks.") {
            let block = format!("double_blocks.{number}");
            let of_qkv = |own: &str| ["q", "k", "v"].iter().position(|it| *it == own).map(|at| at as u64);
            if let Some(at) = rest.strip_prefix("attn.to_").and_then(of_qkv) {
                return self.part(&format!("{block}.img_attn.qkv"), at, 3);
            }
            let added = rest.strip_prefix("attn.add_").and_then(|rest| rest.strip_suffix("_proj"));
            if let Some(at) = added.and_then(of_qkv) {
                return self.part(&format!("{block}.txt_attn.qkv"), at, 3);
            }
            let own = match rest {
                "attn.to_out.0" => "img_attn.proj",
                "attn.to_add_out" => "txt_attn.proj",
                "norm1.linear" => "img_mod.lin",
                "norm1_context.linear" => "txt_mod.lin",
                "ff.net.0.proj" => "img_mlp.0",
                "ff.net.2" => "img_mlp.2",
                "ff_context.net.0.proj" => "txt_mlp.0",
                "ff_context.net.2" => "txt_mlp.2",
                _ => return None,
            };
            return whole(format!("{block}.{own}"));
        }
        if let Some((number, rest)) = numbered("single_transformer_blocks.") {
            let block = format!("single_blocks.{number}");
            let part = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"].iter().position(|it| *it == rest);
            if let Some(part) = part {
                let tensor = self.find_stem(&format!("{block}.linear1"))?;
                let &[all, width] = self.tensors[tensor].shape else { return None };
                let first = part as u64 * width;
                let rows = if part < 3 { width } else { all.checked_sub(first)? };
                return Some(DeltaTarget { rows: Some((first, rows)), ..DeltaTarget::whole(tensor) });
            }
            let own = match rest {
                "proj_out" => "linear2",
                "norm.linear" => "modulation.lin",
                _ => return None,
            };
            return whole(format!("{block}.{own}"));
        }
        let own = match module {
            "norm_out.linear" => {
                let tensor = self.find_stem("final_layer.adaLN_modulation.1")?;
                return Some(DeltaTarget { swaps_halves: true, ..DeltaTarget::whole(tensor) });
            }
            "x_embedder" => "img_in",
            "context_embedder" => "txt_in",
            "proj_out" => "final_layer.linear",
            "time_text_embed.timestep_embedder.linear_1" => "time_in.in_layer",
            "time_text_embed.timestep_embedder.linear_2" => "time_in.out_layer",
            "time_text_embed.text_embedder.linear_1" => "vector_in.in_layer",
            "time_text_embed.text_embedder.linear_2" => "vector_in.out_layer",
            "time_text_embed.guidance_embedder.linear_1" => "guidance_in.in_layer",
            "time_text_embed.guidance_embedder.linear_2" => "guidance_in.out_layer",
            _ => return None,
        };
        whole(own.to_owned())
    }

    fn of_z_image(&self, module: &str) -> Option<DeltaTarget> {
        let of_qkv = |own: &str| ["q", "k", "v"].iter().position(|it| *it == own);
        if let Some((attention, at)) = module.rsplit_once(".to_").and_then(|(it, own)| Some((it, of_qkv(own)?)))
            && attention.ends_with(".attention")
        {
            return self.part(&format!("{attention}.qkv"), at as u64, 3);
        }
        let name = module.replace(".attention.to_out.0", ".attention.out");
        let name = name.replace("all_final_layer.2-1.", "final_layer.").replace("all_x_embedder.2-1", "x_embedder");
        self.find_stem(&name).map(DeltaTarget::whole)
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
        let matrices: Vec<&BaseTensor> = self.tensors.iter().filter(|it| it.shape.len() > 1).collect();
        matrices.get(matrices.len() / 2).map(|tensor| tensor.name)
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

/// Returns the original name of a module of Wan in diffusers.
fn of_wan(module: &str) -> String {
    const NAMES: &[(&str, &str)] = &[
        ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
        ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
        ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
        ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
        ("condition_embedder.time_proj", "time_projection.1"),
        ("condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"),
        ("condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"),
        (".attn1.", ".self_attn."),
        (".attn2.", ".cross_attn."),
        (".to_out.0", ".o"),
        (".to_q", ".q"),
        (".to_k", ".k"),
        (".to_v", ".v"),
        (".add_k_proj", ".k_img"),
        (".add_v_proj", ".v_img"),
        (".ffn.net.0.proj", ".ffn.0"),
        (".ffn.net.2", ".ffn.2"),
        ("proj_out", "head.head"),
    ];
    NAMES.iter().fold(module.to_owned(), |name, (old, new)| name.replace(old, new))
}
