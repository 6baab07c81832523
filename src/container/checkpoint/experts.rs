//! Stacks of experts. MLX stores the same weight of all experts of a layer as one tensor of a module `switch_mlp`, and its
//! parts too. Most files of Hugging Face have a module for each expert, and some a stack of each weight.

use crate::container::{Data, Tensor};
use crate::error::{Error, Kind, Result};
use crate::text::shorten;
use std::collections::{HashMap, HashSet};

/// The module of stacked experts, between dots.
pub(super) const STACK: &str = ".switch_mlp.";

/// The projections of an expert in MLX, with their names in modules `block_sparse_moe` of Hugging Face, which other modules
/// call as MLX does.
const PROJECTIONS: [(&str, &str); 3] = [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")];

/// The module that has projections of these other names.
const SPARSE_BLOCK: &str = "block_sparse_moe";

/// The form in which files of Hugging Face store the experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum ExpertForm {
    /// Each weight of all experts of a layer is one tensor, and gate and up are one weight
    Stacked,
    /// Each expert has its own tensors
    Single,
}

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

/// Kinds of models with the same names of experts, by `model_type`.
struct ExpertKinds {
    names: &'static ExpertNames,
    /// The stacks of MLX hold what Hugging Face stores for each expert (mlx-lm, `sanitize`).
    in_mlx: &'static [&'static str],
    others: &'static [&'static str],
}

/// All kinds of models whose experts tcast stacks and divides. transformers 5 does the same when it loads and saves
/// (`conversion_mapping.py`).
const KINDS: &[ExpertKinds] = &[
    ExpertKinds {
        names: PLAIN_EXPERTS,
        in_mlx: &[
            "deepseek",
            "deepseek_v2",
            "deepseek_v3",
            "ernie4_5_moe",
            "glm4_moe",
            "kimi_k2",
            "olmoe",
            "qwen2_moe",
            "qwen3_moe",
        ],
        others: &[
            "afmoe",
            "axk1",
            "axk2",
            "bailing_hybrid",
            "beam",
            "cohere2_moe",
            "deepseek_ocr2",
            "deepseek_v32",
            "dots1",
            "exaone_moe",
            "flex_olmo",
            "flint",
            "glm4_moe_lite",
            "glm4v_moe",
            "glm5_next",
            "glm5_next_text",
            "glm_moe_dsa",
            "hunyuan_v1_moe",
            "hy_v3",
            "jamba",
            "kimi_k25",
            "kolibri1",
            "laguna",
            "longcat_flash",
            "mellum",
            "mimo_v2_flash",
            "qwen3_5_moe_text",
            "qwen3_next",
            "qwen3_omni_moe",
            "qwen3_omni_moe_text",
            "qwen3_omni_moe_thinker",
            "qwen4_exp_text",
            "sarvam_mla",
            "sarvam_moe",
            "solar_open",
        ],
    },
    ExpertKinds {
        names: &ExpertNames { modules: &[["block_sparse_moe.", "mlp."]], ..NUMBERED },
        in_mlx: &["minimax", "mixtral"],
        others: &["kimi_linear", "minimax_m2"],
    },
    ExpertKinds {
        names: &ExpertNames {
            modules: &[["block_sparse_moe.gate.", "mlp.router."], ["block_sparse_moe.", "mlp."]],
            ..NUMBERED
        },
        in_mlx: &["phimoe"],
        others: &[],
    },
    ExpertKinds { names: &NUMBERED, in_mlx: &[], others: &["lfm2_moe"] },
    ExpertKinds {
        names: &ExpertNames { up: &["up_proj"], down: &["down_proj"], modules: &[] },
        in_mlx: &[],
        others: &["nemotron_h"],
    },
];

impl ExpertNames {
    /// Returns the names of a kind of models, by `model_type`.
    pub(crate) fn of_kind(kind: &str) -> Option<&'static Self> {
        let row = KINDS.iter().find(|row| row.in_mlx.iter().chain(row.others).any(|known| *known == kind));
        row.map(|row| row.names)
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
    pub(super) fn moved(&self, name: &str, form: ExpertForm, layers: &HashSet<String>) -> Option<String> {
        let layer = name.match_indices('.').map(|(at, _)| &name[..=at]).find(|layer| layers.contains(*layer))?;
        self.modules.iter().find_map(|[single, stacked]| {
            let (from, to) = if form == ExpertForm::Single { (stacked, single) } else { (single, stacked) };
            Some(format!("{layer}{to}{}", name[layer.len()..].strip_prefix(from)?))
        })
    }
}

/// Parts of names of tensors that MLX makes of others: Hugging Face has no such tensors.
const DERIVED: [&str; 2] = [".embed_q.", ".unembed_out."];

/// Returns the module of the stack of an expert's module: `x.switch_mlp.gate_proj` of `x.experts.3.gate_proj`. `None` for
/// other modules.
pub(crate) fn stack_of(module: &str) -> Option<String> {
    let ExpertName { layer, own: projection, .. } = ExpertName::new(module)?;
    let known = PROJECTIONS.iter().find(|(name, other)| projection == projection_in(layer, name, other))?;
    Some(format!("{layer}{STACK}{}", known.0))
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
    pub(crate) fn in_mlx(tensor: &'a str) -> Option<Self> {
        let (module, own) = tensor.rsplit_once('.')?;
        let ExpertName { layer, number, .. } = ExpertName::new(module)?;
        Some(Self { stack: format!("{}.{own}", stack_of(module)?), layer, expert: number, parts: &[], part: 0 })
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

/// Refuses stacks of a model of an unknown type.
pub(crate) fn check_stacked(kind: Option<&str>) -> Result<()> {
    let mut known: Vec<&str> = KINDS.iter().flat_map(|row| row.in_mlx).copied().collect();
    if kind.is_some_and(|kind| known.contains(&kind)) {
        return Ok(());
    }
    known.sort_unstable();
    let what = match kind {
        Some(kind) => format!("is a model of type '{}', and", shorten(kind)),
        None => "has no config.json with a model_type, and".to_owned(),
    };
    let message = format!("{what} tcast knows how MLX stacks the experts of {}", known.join(", "));
    Err(Error::new(message).of(Kind::Unmapped))
}

/// Returns the name of a projection of a layer in checkpoints of Hugging Face.
fn projection_in<'n>(layer: &str, name: &'n str, other: &'n str) -> &'n str {
    if layer.ends_with(SPARSE_BLOCK) { other } else { name }
}

/// The parts of the name of a stacked tensor.
struct StackedName<'a> {
    layer: &'a str,
    projection: &'static str,
    /// Its own name in the module, such as `weight` or `scales`.
    part: &'a str,
}

impl<'a> StackedName<'a> {
    fn new(name: &'a str) -> Option<Self> {
        let (layer, own) = name.split_once(STACK)?;
        let (projection, part) = own.split_once('.')?;
        let (name, other) = PROJECTIONS.iter().find(|(known, _)| *known == projection)?;
        Some(Self { layer, projection: projection_in(layer, name, other), part })
    }

    fn of_expert(&self, number: u64) -> String {
        let Self { layer, projection, part } = self;
        format!("{layer}.experts.{number}.{projection}.{part}")
    }
}

/// Maximum number of experts in a stack, each of which becomes a tensor. No model has nearly as many.
const MOST_EXPERTS: u64 = 1 << 14;

/// The tensors of single experts may be this many, and one more for each [`LEAST_BYTES`] of the checkpoint: their
/// descriptions could otherwise take far more memory than the file. Experts of real models have kilobytes.
const FEW_EXPERTS: u64 = 1 << 10;
const LEAST_BYTES: u64 = 64;

/// Returns the largest number of tensors of single experts in a checkpoint of this many bytes.
pub(super) fn most_experts(bytes: u64) -> u64 {
    FEW_EXPERTS + bytes / LEAST_BYTES
}

/// The experts of a stacked tensor.
pub(super) struct ExpertStack<'a> {
    name: StackedName<'a>,
    pub(super) count: u64,
    /// True if all experts have the same elements.
    is_shared: bool,
    /// The shape of the tensor of an expert.
    shape: &'a [u64],
}

impl<'a> ExpertStack<'a> {
    /// Describes a stack; `None` for another tensor. `counts` has the number of experts of each module with stacks.
    pub(super) fn of(tensor: &'a Tensor, counts: &HashMap<&str, u64>) -> Result<Option<Self>> {
        let unmapped = |what: &str| Err(Error::new(what).of(Kind::Unmapped));
        if DERIVED.iter().any(|part| tensor.name.contains(part)) {
            return unmapped("is made of other tensors by MLX, and Hugging Face has no name for it");
        }
        if !tensor.name.contains(STACK) {
            return Ok(None);
        }
        let Some(name) = StackedName::new(&tensor.name) else {
            return unmapped("is a stack of experts for which Hugging Face has no name");
        };
        let count = tensor.name.rsplit_once('.').and_then(|(module, _)| counts.get(module)).copied();
        let Some(count) = count.filter(|count| (1..=MOST_EXPERTS).contains(count)) else {
            return unmapped("is not a stack of experts");
        };
        let Data::Mapped { range, .. } = &tensor.data else {
            return unmapped("is a stack of experts whose elements are not stored as they are");
        };
        match &tensor.shape[..] {
            [own, ..] if *own == count && range.is_empty() => unmapped("is a stack of experts without elements"),
            [own, shape @ ..] if *own == count && range.len().is_multiple_of(count as usize) => {
                Ok(Some(Self { name, count, is_shared: false, shape }))
            }
            // A global scale can be one number for all experts.
            _ if name.part == "global_scale" && tensor.count == 1 => {
                Ok(Some(Self { name, count, is_shared: true, shape: &[] }))
            }
            _ => unmapped("has parts of another number of experts than the weight of its module"),
        }
    }

    fn expert(&self, tensor: &Tensor, number: u64) -> Tensor {
        let own = if self.is_shared { tensor.clone() } else { tensor.part(number, self.count) };
        Tensor { name: self.name.of_expert(number).into(), shape: self.shape.into(), ..own }
    }
}

/// Returns the tensors of the experts of a stack, or the tensor.
pub(super) fn tensors_of(tensor: &Tensor, stack: Option<&ExpertStack>) -> Vec<Tensor> {
    stack.map_or_else(|| vec![tensor.clone()], |stack| (0..stack.count).map(|at| stack.expert(tensor, at)).collect())
}
