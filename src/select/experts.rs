//! Banks of experts: tensors of three dimensions that hold the same weight of each expert.
//!
//! Engines load quantized experts one by one, as matrices [out, in]. A bank [experts, out, in] can be split into these
//! without moving an element, but a transposed bank would be quantized along the wrong dimension. Only the sizes in
//! config.json tell the two apart; a bank is refused if they do not.

use super::heads::heads;
use super::tried::has_banks;
use crate::container::checkpoint::{ExpertNames, PLAIN_EXPERTS, model_type};
use crate::container::{as_json, members};
use crate::error::{Error, Result};
use crate::text::shorten;

/// Keys of config.json for the number of experts.
const EXPERTS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Structure of a model according to config.json.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelFacts {
    /// `model_type`; of the language model if the config describes several models.
    pub kind: Option<String>,
    /// `model_type` of the whole model.
    pub whole: Option<String>,
    /// The number of layers, not counting multi-token prediction heads.
    pub layers: Option<u64>,
    /// True if the output head is the embeddings; `None` if the config does not say so.
    pub ties_head: Option<bool>,
    /// The number of experts in a layer.
    pub experts: Option<u64>,
    hidden: Option<u64>,
    intermediate: Option<u64>,
}

impl ModelFacts {
    /// Reads a config.json; missing values are `None`.
    pub(crate) fn read(config: Option<&str>) -> Self {
        let json = config.map(as_json).unwrap_or_default();
        let Some(outer) = members(&json) else { return Self::default() };
        let inner = outer.get("text_config").and_then(|inner| members(inner.get())).unwrap_or_default();
        let find = |key: &str| inner.get(key).or_else(|| outer.get(key));
        let number = |key: &str| find(key).and_then(|value| serde_json::from_str(value.get()).ok());
        Self {
            kind: config.and_then(model_type),
            whole: outer.get("model_type").and_then(|value| serde_json::from_str(value.get()).ok()),
            layers: number("num_hidden_layers"),
            ties_head: find("tie_word_embeddings").and_then(|value| serde_json::from_str(value.get()).ok()),
            experts: EXPERTS.iter().find_map(|key| number(key)),
            hidden: number("hidden_size"),
            intermediate: number("moe_intermediate_size").or_else(|| number("intermediate_size")),
        }
    }

    /// True if files of this kind of model store the matrices of linear layers as [in, out].
    pub(crate) fn has_transposed_layers(&self) -> bool {
        const TRANSPOSED: [&str; 3] = ["gpt2", "openai-gpt", "imagegpt"];
        self.kind.as_deref().is_some_and(|kind| TRANSPOSED.contains(&kind))
    }

    /// Returns the modules of the output heads. If they share the weight of the embeddings, files do not contain them.
    pub(crate) fn heads(&self) -> &'static [&'static str] {
        heads(self.kind.as_deref())
    }

    /// Returns the name that engines give to a kept module whose class is a linear layer, if it differs from the name
    /// in the file.
    pub(crate) fn other_name(&self, module: &str) -> Option<String> {
        let layer = module.strip_suffix("block_sparse_moe.gate").filter(|_| self.kind.as_deref() == Some("phimoe"))?;
        Some(format!("{layer}mlp.router"))
    }

    /// Returns the `model_type` of the whole model, and of its language model.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.whole.iter().chain(&self.kind).map(String::as_str)
    }

    /// Returns the names of its experts, stacked and single. Fails if the kind of the model is unknown.
    pub(crate) fn expert_names(&self) -> Result<&'static ExpertNames> {
        let known = self.kinds().find_map(ExpertNames::of_kind);
        known.or_else(|| has_banks(self.kinds()).then_some(PLAIN_EXPERTS)).ok_or_else(|| {
            let known = "tcast does not know how its experts are stacked and divided";
            let what = match &self.kind {
                Some(kind) if self.is(TRANSPOSED) => {
                    format!(
                        "files of '{}' store each expert transposed, and transformers has no other form of them",
                        shorten(kind)
                    )
                }
                Some(kind) => format!("is a model of type '{}', and {known}", shorten(kind)),
                None => format!("has no config.json with a model_type, and {known}"),
            };
            Error::new(what)
        })
    }

    fn is(&self, types: &[&str]) -> bool {
        self.kind.as_deref().is_some_and(|own| types.iter().any(|known| own.starts_with(known)))
    }
}

/// The reason for not dividing a bank of another name.
const OTHER_WEIGHTS: &str = "tcast does not know which weights of the experts it holds";

/// The weight of one expert in a bank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expert {
    /// Its name as a single weight.
    pub name: String,
    /// Its first row, counted over all rows of the bank.
    pub first_row: u64,
    /// The distance of its rows: 2 if the rows of two weights alternate.
    pub step: u64,
    pub shape: [u64; 2],
}

/// Returns the weights of the experts in a bank, in the order of their rows. `None` if the tensor is not a bank. Fails
/// if the kind of the bank is unknown, or nothing proves its orientation.
pub(crate) fn experts(model: &ModelFacts, name: &str, shape: &[u64]) -> Option<Result<Vec<Expert>>> {
    let (bank, own) = bank_of(name)?;
    let &[count, rows, columns] = shape else { return None };
    let Some(projections) = PLAIN_EXPERTS.in_stack(own) else { return Some(Err(unknown(OTHER_WEIGHTS))) };
    if rows == 0 || columns == 0 {
        return Some(Err(unknown("its experts have no elements"))); // of which there could be any number
    }
    if model.is(TRANSPOSED) {
        let kind = model.kind.as_deref().unwrap_or_default();
        return Some(Err(unknown(&format!("files of '{kind}' store it transposed"))));
    }
    if let Err(why) = check_orientation(model, own, [rows, columns]) {
        return Some(Err(unknown(&why)));
    }
    Some(Ok(split(bank, projections, [count, rows, columns], false)))
}

/// Checks that a stack of experts in a model of a known kind is [experts, out, in], as transformers has it: the sizes in
/// config.json must not contradict this. `own` is its name in the module of the experts.
pub(crate) fn check_stack(model: &ModelFacts, own: &str, shape: &[u64]) -> Result<()> {
    let &[_, rows, columns] = shape else { return Err(unknown("it does not have three dimensions")) };
    let [turned, other] = [[columns, rows], [rows, columns]].map(|shape| check_orientation(model, own, shape).is_ok());
    if turned && !other { Err(unknown("by the sizes in config.json, it is transposed")) } else { Ok(()) }
}

/// Returns the weights of the experts in a bank of gpt-oss, as its codes are stored: [experts, out, in], where rows of
/// gate and up alternate. `None` if the tensor is not such a bank. Fails if the kind of the bank is unknown.
pub(crate) fn gpt_oss_experts(name: &str, shape: &[u64]) -> Option<Result<Vec<Expert>>> {
    let (bank, own) = bank_of(name)?;
    let &[count, rows, columns] = shape else { return None };
    let known = own == "down_proj" || own == "gate_up_proj" && rows.is_multiple_of(2);
    let projections = PLAIN_EXPERTS.in_stack(own).filter(|_| known).ok_or_else(|| unknown(OTHER_WEIGHTS));
    Some(projections.map(|projections| split(bank, projections, [count, rows, columns], true)))
}

/// Returns the weights of each expert in a bank. The projections follow one another, or their rows alternate.
fn split(bank: &str, projections: &[&str], [count, rows, columns]: [u64; 3], is_interleaved: bool) -> Vec<Expert> {
    let each = rows / projections.len() as u64;
    let (distance, step) = if is_interleaved { (1, projections.len() as u64) } else { (each, 1) };
    let of_expert = |expert: u64| {
        projections.iter().zip(0_u64..).map(move |(projection, number)| Expert {
            name: format!("{bank}.{expert}.{projection}.weight"),
            first_row: expert * rows + number * distance,
            step,
            shape: [each, columns],
        })
    };
    (0..count).flat_map(of_expert).collect()
}

/// Returns the name of the bank's module, and the name of the weight that the bank holds.
pub(crate) fn bank_of(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let (bank, own) = name.rsplit_once('.')?;
    (bank == "experts" || bank.ends_with(".experts")).then_some((bank, own))
}

/// Returns the engines' name for the experts whose weights a tensor of Granite holds, which tcast does not split.
pub(crate) fn unsplit_bank(name: &str) -> Option<String> {
    let name = name.strip_suffix(".weight")?;
    let layer = name.strip_suffix(".input_linear").or_else(|| name.strip_suffix(".output_linear"))?;
    layer.ends_with("block_sparse_moe").then(|| format!("{layer}.experts"))
}

fn unknown(why: &str) -> Error {
    Error::new(format!("is a bank of experts that cannot be divided: {why}"))
}

/// Models whose banks are transposed in their files, regardless of the sizes; gpt-oss also interleaves gate and up.
const TRANSPOSED: &[&str] = &["qwen3_vl_moe", "llama4", "gpt_oss"];

/// Checks that the sizes of a bank's matrix prove that it is [out, in]. If they do not, the error contains the reason.
fn check_orientation(model: &ModelFacts, own: &str, [rows, columns]: [u64; 2]) -> Result<(), String> {
    let (Some(hidden), Some(intermediate)) = (model.hidden, model.intermediate) else {
        return Err("there is no config.json with hidden_size and moe_intermediate_size".to_owned());
    };
    let [out, inner] = match own {
        "gate_up_proj" => [intermediate.saturating_mul(2), hidden],
        "down_proj" => [hidden, intermediate],
        _ => [intermediate, hidden],
    };
    match ([rows, columns] == [out, inner], [columns, rows] == [out, inner]) {
        (true, false) => Ok(()),
        (true, true) => Err(format!("{rows} x {columns} could be transposed as well, by the sizes in config.json")),
        (false, true) => Err(format!("by the sizes in config.json, {rows} x {columns} is transposed")),
        (false, false) => {
            Err(format!("by the sizes in config.json it would be {out} x {inner}, and it is {rows} x {columns}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"{"model_type": "qwen3_5_moe", "tie_word_embeddings": true, "text_config": {"model_type":
        "qwen3_5_moe_text", "hidden_size": 64, "moe_intermediate_size": 48, "num_hidden_layers": 2}}"#;

    fn of(config: &str, name: &str, shape: &[u64]) -> Result<Vec<Expert>, String> {
        let found = experts(&ModelFacts::read(Some(config)), name, shape).expect("it is a bank");
        found.map_err(|error| error.to_string())
    }

    #[test]
    fn a_bank_is_cut_into_matrices_of_one_expert() {
        let expert = |name: &str, first_row, shape| Expert { name: name.to_owned(), first_row, step: 1, shape };
        assert_eq!(
            of(CONFIG, "model.layers.0.mlp.experts.gate_up_proj", &[2, 96, 64]).unwrap(),
            [
                expert("model.layers.0.mlp.experts.0.gate_proj.weight", 0, [48, 64]),
                expert("model.layers.0.mlp.experts.0.up_proj.weight", 48, [48, 64]),
                expert("model.layers.0.mlp.experts.1.gate_proj.weight", 96, [48, 64]),
                expert("model.layers.0.mlp.experts.1.up_proj.weight", 144, [48, 64]),
            ]
        );
        let down = of(CONFIG, "experts.down_proj.weight", &[2, 64, 48]).unwrap();
        assert_eq!(down[1], expert("experts.1.down_proj.weight", 64, [64, 48]));
    }

    #[test]
    fn a_bank_is_refused_where_config_does_not_prove_how_it_lies() {
        let refused = |config: &str, shape: &[u64]| of(config, "a.experts.gate_up_proj", shape).unwrap_err();
        assert!(refused(CONFIG, &[2, 64, 96]).contains("is transposed"));
        assert!(refused(CONFIG, &[2, 64, 64]).contains("would be 96 x 64, and it is 64 x 64"));
        assert!(refused("{}", &[2, 96, 64]).contains("no config.json with hidden_size"));
        let square = CONFIG.replace("48", "32");
        assert!(refused(&square, &[2, 64, 64]).contains("could be transposed as well"));
        let llama = r#"{"model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 48}"#;
        assert!(refused(llama, &[2, 96, 64]).contains("files of 'llama4_text' store it transposed"));
        assert!(of(CONFIG, "a.experts.odd_proj", &[2, 96, 64]).unwrap_err().contains("does not know which weights"));
    }

    #[test]
    fn other_tensors_are_no_banks() {
        let model = ModelFacts::read(Some(CONFIG));
        for (name, shape) in [
            ("a.experts.0.gate_proj.weight", &[96, 64][..]),
            ("a.conv.weight", &[4, 4, 4]),
            ("a.experts.gate_up_proj_bias", &[2, 96]),
        ] {
            assert!(experts(&model, name, shape).is_none(), "{name}");
        }
        assert_eq!(model.layers, Some(2));
    }
}
