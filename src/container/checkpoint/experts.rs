//! Stacks of experts. MLX stores the same weight of all experts of a layer as one tensor of a module `switch_mlp`, and its
//! parts too. Most files of Hugging Face have a module for each expert, and some a stack of each weight.

use super::naming::model_type;
use super::{CONFIG, Checkpoint, ExpertForm};
use crate::container::{Data, Tensor};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};

/// The names of the experts of a kind of models in both forms.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpertNames {
    /// The weights of an expert whose rows follow one another in a stack: gate and up, or up alone.
    up: &'static [&'static str],
    down: &'static [&'static str],
    /// Beginnings of names in a layer with experts: in files with single experts, and with stacks. The first that fits
    /// counts.
    modules: &'static [[&'static str; 2]],
}

/// The usual names.
pub(crate) const PLAIN_EXPERTS: &ExpertNames =
    &ExpertNames { up: &["gate_proj", "up_proj"], down: &["down_proj"], modules: &[] };

const NUMBERED: ExpertNames = ExpertNames { up: &["w1", "w3"], down: &["w2"], modules: &[] };

/// Names the experts of a kind of models in MLX, and the modules next to them (mlx-lm 0.32.2, `sanitize`).
#[derive(Debug, PartialEq, Eq)]
pub struct MlxStacks {
    /// The module of the stacks, in place of `experts`.
    module: &'static str,
    /// The weights of an expert: their names in files of Hugging Face, and in MLX.
    weights: &'static [[&'static str; 2]],
    /// Beginnings of names in a layer: in files of Hugging Face, and in MLX. The first that fits counts.
    modules: &'static [[&'static str; 2]],
}

const SWITCH: MlxStacks = MlxStacks {
    module: "switch_mlp",
    weights: &[["gate_proj", "gate_proj"], ["down_proj", "down_proj"], ["up_proj", "up_proj"]],
    modules: &[],
};

const NUMBERED_SWITCH: MlxStacks =
    MlxStacks { weights: &[["w1", "gate_proj"], ["w2", "down_proj"], ["w3", "up_proj"]], ..SWITCH };

/// The forms of MLX, by `model_type`. mlx-lm stacks the experts of some more kinds, which it changes in another way too:
/// see [`REFUSED`].
const MLX_KINDS: &[(MlxStacks, &[&str])] = &[
    (
        SWITCH,
        &[
            "bailing_hybrid",
            "deepseek",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "ernie4_5_moe",
            "exaone_moe",
            "glm4_moe",
            "glm4_moe_lite",
            "glm_moe_dsa",
            "hunyuan",
            "jamba",
            "joyai_llm_flash",
            "kimi_k2",
            "longcat_flash",
            "mellum",
            "mimo_v2_flash",
            "mistral4",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
            "solar_open",
        ],
    ),
    (NUMBERED_SWITCH, &["minimax", "minimax_m2", "minimax_m3_vl_text", "mixtral", "phimoe"]),
    (MlxStacks { module: "experts", ..SWITCH }, &["Klear", "afmoe", "dots1"]),
    (
        MlxStacks {
            modules: &[["mlp.gate.expert_bias", "mlp.gate.expert_bias"], ["mlp.gate.", "mlp.gate.gate_proj."]],
            ..SWITCH
        },
        &["bailing_moe", "bailing_moe_linear"],
    ),
    (
        MlxStacks {
            modules: &[
                ["mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
                ["mlp.gate.", "mlp.gate.proj."],
            ],
            ..SWITCH
        },
        &["laguna"],
    ),
    (
        MlxStacks {
            modules: &[
                ["block_sparse_moe.gate.e_score_correction_bias", "mlp.e_score_correction_bias"],
                ["block_sparse_moe.gate.", "mlp.gate."],
                ["block_sparse_moe.shared_experts.", "mlp.shared_experts."],
                ["block_sparse_moe.switch_mlp.", "mlp.switch_mlp."],
            ],
            ..NUMBERED_SWITCH
        },
        &["kimi_linear"],
    ),
    (
        MlxStacks {
            modules: &[
                ["feed_forward.w1.", "feed_forward.gate_proj."],
                ["feed_forward.w2.", "feed_forward.down_proj."],
                ["feed_forward.w3.", "feed_forward.up_proj."],
            ],
            ..NUMBERED_SWITCH
        },
        &["lfm2_moe"],
    ),
    (MlxStacks { weights: &[["down_proj", "fc2"], ["up_proj", "fc1"]], ..SWITCH }, &["nemotron_h"]),
];

/// Kinds of models whose experts mlx-lm stacks, and what else it does with them that has no place in a file.
const REFUSED: &[(&str, &str)] = &[
    ("deepseek_v41", "mlx-lm divides and packs other weights of it while it stacks experts"),
    ("deepseek_v41_text", "mlx-lm divides and packs other weights of it while it stacks experts"),
    ("kimi_k3", "mlx-lm packs its experts as MXFP4 while it stacks them"),
    ("qwen3_next", "mlx-lm adds 1 to its norms while it stacks experts, and only then"),
];

/// Kinds of models with the same names of experts, by `model_type`: all whose stacks and single experts transformers 5 makes
/// of each other when it loads and saves (`conversion_mapping.py`), and older ones of the same form.
const KINDS: &[(&ExpertNames, &[&str])] = &[
    (
        PLAIN_EXPERTS,
        &[
            "afmoe",
            "axk1",
            "axk2",
            "bailing_hybrid",
            "beam",
            "cohere2_moe",
            "deepseek",
            "deepseek_ocr2",
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "ernie4_5_moe",
            "exaone_moe",
            "flex_olmo",
            "flint",
            "glm4_moe",
            "glm4_moe_lite",
            "glm4v_moe",
            "glm5_next",
            "glm5_next_text",
            "glm_moe_dsa",
            "hunyuan_v1_moe",
            "hy_v3",
            "jamba",
            "kimi_k2",
            "kimi_k25",
            "kolibri1",
            "laguna",
            "longcat_flash",
            "mellum",
            "mimo_v2_flash",
            "olmoe",
            "qwen2_moe",
            "qwen3_5_moe_text",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_omni_moe",
            "qwen3_omni_moe_text",
            "qwen3_omni_moe_thinker",
            "qwen4_exp_text",
            "sarvam_mla",
            "sarvam_moe",
            "solar_open",
        ],
    ),
    (
        &ExpertNames { modules: &[["block_sparse_moe.", "mlp."]], ..NUMBERED },
        &["kimi_linear", "minimax", "minimax_m2", "mixtral"],
    ),
    (
        &ExpertNames {
            modules: &[["block_sparse_moe.gate.", "mlp.router."], ["block_sparse_moe.", "mlp."]],
            ..NUMBERED
        },
        &["phimoe"],
    ),
    (
        &ExpertNames {
            modules: &[
                ["block_sparse_moe.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
                ["block_sparse_moe.", "mlp."],
            ],
            ..NUMBERED
        },
        &["minimax_m3_vl"],
    ),
    (&ExpertNames { modules: &[["ffn.", "mlp."]], ..NUMBERED }, &["deepseek_v4"]),
    (&NUMBERED, &["lfm2_moe"]),
    (&ExpertNames { up: &["up_proj"], down: &["down_proj"], modules: &[] }, &["nemotron_h"]),
];

/// Returns the row of a kind of models.
fn of_kind<T>(rows: &'static [(T, &[&str])], kind: &str) -> Option<&'static T> {
    rows.iter().find(|(_, kinds)| kinds.contains(&kind)).map(|(row, _)| row)
}

impl ExpertNames {
    /// Returns the names of a kind of models, by `model_type`.
    pub(crate) fn of_kind(kind: &str) -> Option<&'static Self> {
        of_kind(KINDS, kind).copied()
    }

    /// Returns the weights of an expert that a stack of this name holds; `None` for other names.
    pub(crate) fn in_stack(&self, stack: &str) -> Option<&'static [&'static str]> {
        match (stack, self.up) {
            ("gate_up_proj", [_, _]) => Some(self.up),
            ("gate_proj", [_, _]) => Some(&self.up[..1]),
            ("up_proj", _) => Some(&self.up[self.up.len() - 1..]),
            ("down_proj", _) => Some(self.down),
            _ => None,
        }
    }

    /// Returns the name of the stack that holds a weight of an expert, and all weights that it holds.
    fn stack_of(&self, own: &str) -> Option<(&'static str, &'static [&'static str])> {
        let up = if self.up.len() == 1 { "up_proj" } else { "gate_up_proj" };
        let stacks = [(up, self.up), ("down_proj", self.down)];
        stacks.into_iter().find(|(_, weights)| weights.contains(&own))
    }

    /// Returns the name that a tensor has in this form, if its module has another name there. `layers` has the beginnings of
    /// the names of layers with experts, with their last dots.
    fn moved(&self, name: &str, form: ExpertForm, layers: &HashSet<String>) -> Option<String> {
        let layer = name.match_indices('.').map(|(at, _)| &name[..=at]).find(|layer| layers.contains(*layer))?;
        moved(self.modules, layer, &name[layer.len()..], form)
    }
}

/// Parts of names of tensors that MLX makes of others: Hugging Face has no such tensors.
const DERIVED: [&str; 2] = [".embed_q.", ".unembed_out."];

impl MlxStacks {
    /// Returns the form of a kind of models in MLX. Fails if tcast does not know it.
    pub(crate) fn of_kind(kind: Option<&str>) -> Result<&'static Self> {
        if let Some(form) = kind.and_then(|kind| of_kind(MLX_KINDS, kind)) {
            return Ok(form);
        }
        let what = match kind {
            Some(kind) => {
                let reason = REFUSED.iter().find(|(refused, _)| *refused == kind).map(|(_, reason)| *reason);
                let reason = reason.unwrap_or("tcast does not know how MLX stacks its experts");
                format!("is a model of type '{}', and {reason}", shorten(kind))
            }
            None => "has no config.json with a model_type, which determines how MLX stacks experts".to_owned(),
        };
        Err(Error::new(what).keeping_names())
    }

    /// Returns the module of the stack of an expert's module: `x.switch_mlp.gate_proj` of `x.experts.3.gate_proj`. `None`
    /// for other modules.
    fn stack_of(&self, module: &str) -> Option<String> {
        let ExpertName { layer, own, .. } = ExpertName::new(module)?;
        let [_, stacked] = self.weights.iter().find(|[single, _]| *single == own)?;
        let stack = format!("{layer}.{}.{stacked}", self.module);
        Some(self.moved(&stack, ExpertForm::Stacked).unwrap_or(stack))
    }

    /// Returns the name of a module in MLX, if it is another.
    pub(crate) fn module_of(&self, module: &str) -> Option<String> {
        let moved = || Some(self.name_of(&format!("{module}."))?.trim_end_matches('.').to_owned());
        self.stack_of(module).or_else(moved)
    }

    /// Returns the name in MLX of a tensor that is no part of an expert, if it is another.
    pub(crate) fn name_of(&self, tensor: &str) -> Option<String> {
        self.moved(tensor, ExpertForm::Stacked)
    }

    /// Returns the name in this form of a tensor in a layer of the other form, if it is another.
    fn moved(&self, name: &str, form: ExpertForm) -> Option<String> {
        let layer = layer_in(name).filter(|_| !self.modules.is_empty())?;
        moved(self.modules, layer, &name[layer.len()..], form).filter(|new| new != name)
    }

    /// Splits the name of a tensor of a stack into the layer, the name of the weight in files of Hugging Face, and the part
    /// of it, such as `weight` or `scales`. `None` for other tensors.
    fn parts_of<'n>(&self, stack: &'n str) -> Option<(&'n str, &'static str, &'n str)> {
        let (module, part) = stack.rsplit_once('.')?;
        let (module, own) = module.rsplit_once('.')?;
        let layer = module.strip_suffix(self.module)?.strip_suffix('.')?;
        let [single, _] = self.weights.iter().find(|[_, stacked]| *stacked == own)?;
        Some((layer, single, part))
    }
}

/// Returns the names that MLX could have for a module.
pub(crate) fn names_in_mlx(module: &str) -> impl Iterator<Item = String> {
    MLX_KINDS.iter().filter_map(|(form, _)| form.module_of(module))
}

/// Returns the module of the stack that MLX could have for an expert's module; `None` for other modules.
pub(crate) fn stack_of(module: &str) -> Option<String> {
    MLX_KINDS.iter().find_map(|(form, _)| form.stack_of(module))
}

/// Returns the beginning of a name in a layer up to the number of the layer, with the dot behind it.
fn layer_in(name: &str) -> Option<&str> {
    let mut ends = name.match_indices('.').map(|(at, _)| &name[..=at]);
    ends.find(|layer| layer[..layer.len() - 1].rsplit('.').next().is_some_and(|number| number.parse::<u32>().is_ok()))
}

/// Returns the name in this form of `own` in a layer, if a row fits.
fn moved(rows: &[[&str; 2]], layer: &str, own: &str, form: ExpertForm) -> Option<String> {
    rows.iter().find_map(|[single, stacked]| {
        let (from, to) = if form == ExpertForm::Single { (stacked, single) } else { (single, stacked) };
        Some(format!("{layer}{to}{}", own.strip_prefix(from)?))
    })
}

/// The place of a tensor of an expert in a stack.
pub(crate) struct PlaceInStack<'a> {
    /// The name of the stacked tensor.
    pub stack: String,
    /// The layer of the expert, such as `x` in `x.experts.3.gate_proj`.
    pub layer: &'a str,
    /// The number of the expert.
    pub expert: u64,
    /// The tensors of an expert that follow one another in the stack, and the number of this one.
    pub parts: &'static [&'static str],
    pub part: u64,
}

impl<'a> PlaceInStack<'a> {
    /// Returns the place in MLX: in `x.switch_mlp.gate_proj.scales` for `x.experts.3.gate_proj.scales`. `None` for other
    /// tensors.
    pub(crate) fn in_mlx(tensor: &'a str, form: &MlxStacks) -> Option<Self> {
        let (module, own) = tensor.rsplit_once('.')?;
        let ExpertName { layer, number, .. } = ExpertName::new(module)?;
        Some(Self { stack: format!("{}.{own}", form.stack_of(module)?), layer, expert: number, parts: &[], part: 0 })
    }

    /// Returns the place in a bank of Hugging Face: the second half of an expert in `x.experts.gate_up_proj` for
    /// `x.experts.3.up_proj.weight`, and in `x.experts.gate_up_proj_scale_inv` for its `weight_scale_inv`. `None` for other
    /// tensors.
    pub(crate) fn in_bank(tensor: &'a str, names: &ExpertNames) -> Option<Self> {
        let ExpertName { layer, number: expert, own } = ExpertName::new(tensor)?;
        let (own, end) = own.split_once('.')?;
        let (stack, parts) = names.stack_of(own)?;
        let part = parts.iter().position(|part| *part == own)? as u64;
        Some(Self {
            stack: format!("{layer}.experts.{stack}{}", end.strip_prefix("weight")?),
            layer,
            expert,
            parts,
            part,
        })
    }

    /// Returns the number of parts of an expert.
    pub(crate) fn count(&self) -> u64 {
        self.parts.len().max(1) as u64
    }
}

/// Returns the name of the tensor of another expert that is this part of it, given a tensor of the same stack.
pub(crate) fn name_of_expert(tensor: &str, number: u64, part: Option<&str>) -> Option<String> {
    let ExpertName { layer, own, .. } = ExpertName::new(tensor)?;
    let (weight, end) = own.split_once('.')?;
    Some(format!("{layer}.experts.{number}.{}.{end}", part.unwrap_or(weight)))
}

/// Returns the module that holds the experts of a layer, such as `x` of `x.experts.3.up_proj.weight`. `None` for other
/// tensors.
pub(crate) fn layer_of_expert(tensor: &str) -> Option<&str> {
    ExpertName::new(tensor).map(|name| name.layer)
}

/// The parts of the name of an expert's module or tensor: `x`, 3 and `gate_proj` of `x.experts.3.gate_proj`.
struct ExpertName<'a> {
    layer: &'a str,
    number: u64,
    own: &'a str,
}

impl<'a> ExpertName<'a> {
    fn new(name: &'a str) -> Option<Self> {
        let (layer, rest) = name.split_once(".experts.")?;
        let (number, own) = rest.split_once('.')?;
        Some(Self { layer, number: number.parse().ok()?, own })
    }
}

impl Checkpoint {
    /// True if MLX stored the checkpoint: it says so in the metadata of its files, or one of its weights has the form of a
    /// quantized weight of MLX.
    pub(super) fn is_of_mlx(&self) -> bool {
        let is_codes = |tensor: &Tensor| tensor.elements.dtype() == Some(Dtype::Uint32);
        let stems: HashSet<&str> = self
            .tensors()
            .filter(|(_, tensor)| is_codes(tensor))
            .filter_map(|(_, tensor)| tensor.name.strip_suffix(".weight"))
            .collect();
        let is_scale = |tensor: &Tensor| tensor.name.strip_suffix(".scales").is_some_and(|stem| stems.contains(stem));
        self.metadata().any(|(key, value)| key == "format" && value == "mlx")
            || self.tensors().any(|(_, tensor)| is_scale(tensor))
    }

    /// Divides the stacks of experts of a checkpoint of MLX into the tensors of single experts, as Hugging Face has them.
    /// After an error, all stacks are whole.
    ///
    /// # Errors
    /// When Hugging Face has no name for a tensor.
    pub(crate) fn divide_stacks(&mut self) -> Result<()> {
        if !self.is_of_mlx() {
            return Ok(());
        }
        let kind = self.side_file(CONFIG)?.and_then(model_type);
        let form = match MlxStacks::of_kind(kind.as_deref()) {
            Ok(form) => form,
            Err(_) if !self.tensors().any(|(_, tensor)| tensor.name.contains(".switch_mlp.")) => return Ok(()),
            Err(error) => return Err(error.in_file(&self.path)),
        };
        // The names without those that MLX gives to modules next to the experts.
        let single =
            |tensor: &Tensor| form.moved(&tensor.name, ExpertForm::Single).unwrap_or_else(|| tensor.name.to_string());
        let names: Vec<Vec<String>> =
            self.shards.iter().map(|shard| shard.contents.tensors.iter().map(single).collect()).collect();
        let tensors =
            || (self.shards.iter().zip(&names)).map(|(shard, names)| shard.contents.tensors.iter().zip(names));
        let weights = tensors().flatten().filter_map(|(tensor, name)| {
            let is_weight = form.parts_of(name).is_some_and(|(.., part)| part == "weight");
            Some((module_of(name), *tensor.shape.first().filter(|_| is_weight)?))
        });
        let counts: HashMap<&str, u64> = weights.collect();
        let divided: Result<Vec<Vec<Divided>>> = tensors()
            .map(|shard| {
                let divided = shard.map(|(tensor, name)| {
                    let divided = Divided::of(tensor, name, form, &counts);
                    divided.map_err(|error| error.in_tensor(&tensor.name).in_file(&self.path))
                });
                divided.collect()
            })
            .collect();
        let divided = divided?;
        self.check_count(
            divided.iter().flatten().filter_map(|divided| divided.stack.as_ref()).map(|stack| stack.count).sum(),
        )?;
        let divided: Vec<Vec<Tensor>> =
            divided.iter().map(|shard| shard.iter().flat_map(Divided::tensors).collect()).collect();
        for (shard, tensors) in self.shards.iter_mut().zip(divided) {
            shard.contents.tensors = tensors;
        }
        Ok(())
    }

    /// Refuses more tensors of single experts than the bytes of the checkpoint can have.
    pub(crate) fn check_count(&self, experts: u64) -> Result<()> {
        if experts <= FEW_EXPERTS + self.bytes() / LEAST_BYTES {
            return Ok(());
        }
        let message = format!("holds {experts} tensors of single experts in {} bytes, far too few", self.bytes());
        Err(Error::new(message).keeping_names().in_file(&self.path))
    }

    /// Gives the modules of layers with single experts the names that they have in this form.
    pub(crate) fn move_modules(&mut self, names: &ExpertNames, form: ExpertForm) {
        let of_layer = |(_, tensor): (_, &Tensor)| {
            let (parent, _) = layer_of_expert(&tensor.name)?.rsplit_once('.')?;
            Some(format!("{parent}."))
        };
        let layers: HashSet<String> = self.tensors().filter_map(of_layer).collect();
        for tensor in self.shards.iter_mut().flat_map(|shard| &mut shard.contents.tensors) {
            let Some(new) = names.moved(&tensor.name, form, &layers) else { continue };
            for (at, _) in tensor.name.match_indices('.') {
                let (module, end) = tensor.name.split_at(at);
                let moved = new.strip_suffix(end).filter(|moved| *moved != module);
                self.moved.extend(moved.map(|moved| (module.to_owned(), moved.to_owned())));
            }
            tensor.name = new.into();
        }
    }
}

/// Maximum number of experts in a stack, each of which becomes a tensor. No model has nearly as many.
const MOST_EXPERTS: u64 = 1 << 14;

/// The tensors of single experts may be this many, and one more for each [`LEAST_BYTES`] of the checkpoint: their
/// descriptions could otherwise take far more memory than the file. Experts of real models have kilobytes.
const FEW_EXPERTS: u64 = 1 << 10;
const LEAST_BYTES: u64 = 64;

/// A tensor of MLX with its name in files of Hugging Face, and the experts in it if it is a stack.
struct Divided<'a> {
    tensor: &'a Tensor,
    name: &'a str,
    stack: Option<ExpertStack<'a>>,
}

/// The experts of a stacked tensor.
struct ExpertStack<'a> {
    /// The layer, the name of the weight, and the part of it.
    name: (&'a str, &'static str, &'a str),
    count: u64,
    /// True if all experts have the same elements.
    is_shared: bool,
    /// The shape of the tensor of an expert.
    shape: &'a [u64],
}

impl<'a> Divided<'a> {
    /// Describes a tensor. `counts` has the number of experts of each module with stacks.
    fn of(tensor: &'a Tensor, name: &'a str, form: &MlxStacks, counts: &HashMap<&str, u64>) -> Result<Self> {
        let unmapped = |what: &str| Err(Error::new(what).keeping_names());
        if DERIVED.iter().any(|part| name.contains(part)) {
            return unmapped("is made of other tensors by MLX, and Hugging Face has no name for it");
        }
        let Some(parts) = form.parts_of(name) else {
            if name.contains(".switch_mlp.") {
                return unmapped("is a stack of experts for which Hugging Face has no name");
            }
            return Ok(Self { tensor, name, stack: None });
        };
        let Some(count) = counts.get(module_of(name)).copied().filter(|count| (1..=MOST_EXPERTS).contains(count))
        else {
            return unmapped("is not a stack of experts");
        };
        let Data::Mapped { range, .. } = &tensor.data else {
            return unmapped("is a stack of experts whose elements are not stored as they are");
        };
        let (is_shared, shape) = match &tensor.shape[..] {
            [own, ..] if *own == count && range.is_empty() => {
                return unmapped("is a stack of experts without elements");
            }
            [own, shape @ ..] if *own == count && range.len().is_multiple_of(count as usize) => (false, shape),
            // A global scale can be one number for all experts.
            _ if parts.2 == "global_scale" && tensor.count == 1 => (true, &[][..]),
            _ => return unmapped("has parts of another number of experts than the weight of its module"),
        };
        Ok(Self { tensor, name, stack: Some(ExpertStack { name: parts, count, is_shared, shape }) })
    }

    /// Returns the tensors of the experts, or the tensor. mlx-lm moves the one channel of kernels of Hugging Face,
    /// [channels, 1, width], to the end, which moves no element.
    fn tensors(&self) -> Vec<Tensor> {
        let Some(ExpertStack { name: (layer, own, part), count, is_shared, shape }) = self.stack else {
            let shape = match self.tensor.shape[..] {
                [channels, width, 1] if self.name.contains("conv") => [channels, 1, width].into(),
                _ => self.tensor.shape.clone(),
            };
            return vec![Tensor { name: self.name.into(), shape, ..self.tensor.clone() }];
        };
        let expert = |number| {
            let tensor = if is_shared { self.tensor.clone() } else { self.tensor.part(number, count) };
            Tensor { name: format!("{layer}.experts.{number}.{own}.{part}").into(), shape: shape.into(), ..tensor }
        };
        (0..count).map(expert).collect()
    }
}

/// Returns the module of a tensor: its name without the part behind the last dot.
fn module_of(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or("", |(module, _)| module)
}
