//! Reasons for keeping tensors, and the names of tensors that suffer most from narrow types.

use crate::container::onnx::model::TensorRole;
use globset::{Glob, GlobSet};
use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Tensors that `--protect` keeps, in addition to every tensor of fewer than two dimensions, and that are never
/// quantized: they suffer most from narrow types and save the least space.
pub(crate) const GROUPS: &[(KeptReason, &[&str])] = &[
    (KeptReason::Norm, &["*norm*", "*ln_*", "*.ln?.*"]),
    // Embeddings of tokens, positions, times and labels; T5 and BART name theirs `shared`, CTRL names it `w`.
    (
        KeptReason::Embedding,
        &[
            "*embed",
            "*embed.*",
            "*embed_*",
            "*embedding*",
            "*_emb.*",
            "*_embd.*",
            "*.emb.*",
            "emb.*",
            "*wte*",
            "*wpe*",
            "shared.weight",
            "*.shared.weight",
            "transformer.w.weight",
        ],
    ),
    (
        KeptReason::Head,
        &[
            "*lm_head*",
            "head.*",
            "*.head.*",
            "output.weight",
            "*language_model.output.weight",
            "*output_layer*",
            "proj_out.weight",
            "*classifier*",
            "score.*",
            "cls.*",
        ],
    ),
    (
        KeptReason::Router,
        &["*router*", "*mlp.gate.*", "*moe.gate.*", "*ffn.gate.*", "*ffn_gate_inp*", "*shared_expert_gate.*"],
    ),
    (KeptReason::Bias, &["*bias*"]),
];

pub(crate) fn protected() -> impl Iterator<Item = &'static str> {
    GROUPS.iter().flat_map(|(_, patterns)| patterns.iter().copied())
}

/// Compiles some of the program's own patterns to a set.
pub(super) fn glob_set<T: AsRef<str>>(patterns: impl Iterator<Item = T>) -> GlobSet {
    let globs = patterns.map(|text| Glob::new(text.as_ref()).expect("the list holds patterns"));
    GlobSet::new(globs).expect("the patterns are few and small")
}

pub(super) static PROTECTED_SET: LazyLock<GlobSet> = LazyLock::new(|| glob_set(protected()));

/// Reason for keeping a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeptReason {
    /// A pattern, a rule or `--protect` excludes it.
    LeftOut,
    /// It holds integers, bools, text or complex numbers, and the target is floating.
    NotFloating,
    /// It holds floats of a type that is not quantized.
    OtherFloat,
    Already,
    Norm,
    Embedding,
    Head,
    Router,
    Bias,
    /// A head that predicts several tokens.
    Draft,
    /// A vision or audio tower, or a module that connects it to the language model.
    Tower,
    /// A small projection of linear attention.
    LinearAttention,
    /// The small projection of a sparse attention's indexer.
    Indexer,
    /// Several layers share it.
    Shared,
    /// Engines absorb it into other weights.
    Absorbed,
    /// An input, output or modulation layer of a diffusion model.
    Edge,
    /// A text encoder or an autoencoder.
    Encoder,
    /// It is a bank of experts that is not split.
    Bank,
    /// It is not the matrix of a module.
    NoMatrix,
    /// Its shape does not fit the grid.
    Shape,
    /// It is fused with a weight that is kept.
    Fused,
    /// It has too few elements to be worth a Cast node.
    Small,
    /// The target is at least as wide as its type.
    NotNarrower,
    /// It is not a weight of `MatMul`, Gemm or Conv, or other nodes use it too.
    NoWeight,
    /// The layout stores nothing but experts.
    NoExpert,
    /// Other weights of the model are quantized already, and it is not.
    Unquantized,
    /// Nodes of an ONNX model that are not computed decode it.
    Codes,
    /// llama.cpp or `ComfyUI-GGUF` needs it unquantized.
    Library,
    /// It has this role in an ONNX model.
    #[serde(untagged)]
    Role(TensorRole),
}

impl KeptReason {
    /// Reasons for which the tensors of ONNX models are kept.
    #[cfg(feature = "cli")]
    pub(crate) const OF_MODELS: [Self; 13] = [
        Self::Small,
        Self::NotNarrower,
        Self::Role(TensorRole::GraphInput),
        Self::Role(TensorRole::Scale),
        Self::Role(TensorRole::Parameter),
        Self::Role(TensorRole::Function),
        Self::Role(TensorRole::Trained),
        Self::Role(TensorRole::List),
        Self::Role(TensorRole::Constant),
        Self::Role(TensorRole::Attribute),
        Self::Role(TensorRole::Sparse),
        Self::Role(TensorRole::Shadowing),
        Self::Codes,
    ];

    /// Describes one tensor that is kept for this reason.
    #[cfg(feature = "cli")]
    pub(crate) fn describe_one(self) -> &'static str {
        match self {
            Self::Role(TensorRole::GraphInput) => "graph input",
            Self::Role(TensorRole::Scale) => "scale of quantized values",
            Self::Role(TensorRole::Parameter) => "shape, index, bound or statistic",
            Self::Role(TensorRole::Trained) => "variable of training",
            Self::Role(TensorRole::List) => "list in a Constant node",
            Self::Role(TensorRole::Constant) => "Constant node, which cannot hold float6",
            Self::Role(TensorRole::Attribute) => "attribute of a node",
            _ => self.describe(),
        }
    }

    /// Describes the tensors that are kept for this reason.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::LeftOut => "left out by an option",
            Self::NotFloating => "not floating",
            Self::OtherFloat => "not float32, bfloat16 or float16",
            Self::Already => "of that type already",
            Self::Norm => "norms",
            Self::Embedding => "embeddings",
            Self::Head => "output heads",
            Self::Router => "routers",
            Self::Bias => "biases",
            Self::Draft => "multi-token prediction",
            Self::Tower => "vision or audio",
            Self::LinearAttention => "small projections of linear attention",
            Self::Indexer => "small projections of indexers",
            Self::Shared => "shared by several layers",
            Self::Absorbed => "kv_b_proj, which engines absorb",
            Self::Edge => "inputs, outputs and modulation of a diffusion model",
            Self::Encoder => "text encoders and autoencoders",
            Self::Bank => "banks of experts that tcast does not split",
            Self::NoMatrix => "not weight matrices",
            Self::Shape => "of shapes that do not fit the groups",
            Self::Fused => "fused with a kept weight",
            Self::Small => "too small",
            Self::NotNarrower => "of a type as narrow",
            Self::Role(TensorRole::GraphInput) => "graph inputs",
            Self::Role(TensorRole::Scale) => "scales of quantized values",
            Self::Role(TensorRole::Parameter) => "shapes, indices, bounds and statistics",
            Self::Role(TensorRole::Function) => "in function bodies",
            Self::Role(TensorRole::Trained) => "variables of training",
            Self::Role(TensorRole::List) => "lists in Constant nodes",
            Self::Role(TensorRole::Constant) => "in Constant nodes, which cannot hold float6",
            Self::Role(TensorRole::Attribute) => "attributes of nodes",
            Self::Role(TensorRole::Sparse) => "sparse",
            Self::Role(TensorRole::Shadowing) => "with the name of an outer value",
            Self::NoWeight => "not weights of MatMul, Gemm and Conv alone",
            Self::NoExpert => "not experts",
            Self::Unquantized => "not quantized in the input",
            Self::Codes => "codes of nodes that stay",
            Self::Library => "unquantized in llama.cpp or ComfyUI-GGUF",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptReason, TensorRole};

    #[test]
    fn roles_have_the_same_names_as_other_reasons_and_are_read_back() {
        for (reason, name) in
            [(KeptReason::NotNarrower, "not_narrower"), (KeptReason::Role(TensorRole::GraphInput), "graph_input")]
        {
            assert_eq!(serde_json::to_value(reason).unwrap(), name);
        }
        for reason in KeptReason::OF_MODELS {
            let text = serde_json::to_string(&reason).unwrap();
            assert_eq!(serde_json::from_str::<KeptReason>(&text).unwrap(), reason);
        }
        assert!(serde_json::from_str::<KeptReason>("\"kept\"").is_err());
    }
}
