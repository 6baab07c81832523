//! Notes: what a user needs to know about an input, a plan or a running job.

use crate::container::PickleFacts;
use crate::container::checkpoint::Disagreement;
use crate::container::gguf::metadata::MetadataFacts;
use crate::container::gguf::names::OtherPart;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::io::temporaries::Kept;
use crate::operator::Operator;
use crate::quant::{Group, Layout, Scheme, Unfit};
use crate::select::{KeptReason, Pattern};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Something that a user needs to know, but not an error. The program words it.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum Note<'a> {
    /// The files of a checkpoint contradict each other.
    Disagreement(&'a Disagreement),
    /// A member of an archive is not an array, so it is left out.
    NoArray(&'a str),
    /// An input, given by its path, is a checkpoint of PyTorch with these properties.
    Pickle(&'a Path, &'a PickleFacts),
    /// A tensor that cannot be read is excluded, so it is left out.
    Unreadable(&'a str),
    /// All tensors of an input have a prefix that a wrapper of the model adds.
    Wrapped(&'a Path, &'static str),
    /// A pattern matches no tensor, which the caller allows.
    Unmatched(&'a Pattern),
    /// The output format, given by its extension, cannot hold the metadata of the input.
    NoMetadata(&'static str),
    /// Lists in the metadata, with their first elements, are left out: metadata of other formats are texts.
    NoLists(&'a [(String, String)]),
    /// Inputs have different values of this metadata key, and each output keeps the value of its first input.
    DifferentMetadata(String),
    /// Scales of activations that the operator leaves out.
    ScalesLeftOut(Vec<String>, Operator),
    /// Scales that lose precision while their codes stay the same, and that no rule names.
    ScalesCast(&'a [&'a str]),

    /// Modules of the input that are cast like the model.
    ModulesCast(Vec<&'a str>),
    /// Weights of other modules of the input, which are copied.
    ModulesCopied(&'a [PathBuf]),
    /// Files of an input that are not in the output.
    LeftOut(&'a [PathBuf]),
    /// Files that stay in a folder that is replaced.
    Staying {
        folder: &'a Path,
        files: &'a [String],
    },
    /// An unusual number of files is copied with the shards of a folder.
    ManySideFiles {
        folder: &'a Path,
        count: usize,
        bytes: u64,
    },

    Onnx(OnnxNote),
    Gguf(GgufNote),
    Lora(LoraNote),
    /// This belongs after the result.
    Use(UseNote),

    /// An output is about to be written into a folder.
    Begins(&'a Path),
    /// A finished shard is damaged, and is converted again.
    DoneAgain(&'a Error),
    /// One of several inputs is refused or fails.
    Refused(&'a Error),
    /// The remains of an unfinished conversion, and how to continue it.
    Kept(&'a Kept),
}

/// A note about a changed ONNX model.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum OnnxNote {
    /// A pattern of a rule names only tensors that the ONNX model keeps, the first for this reason.
    RuleWithoutEffect(String, KeptReason),
    /// The elements of an ONNX model of this many bytes go to a second file.
    SecondFile(u64),
    /// An ONNX model needs a later opset, for a type or a scale.
    LaterOpset { imported: u64, needed: u64, needy: String },
    /// An ONNX model needs this later IR version.
    LaterIr(u64),
}

/// A note about a new GGUF file.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum GgufNote {
    /// The metadata of a language model is made from its folder.
    Made(MetadataFacts),
    /// The architecture of a diffusion model, recognized by its tensors.
    Architecture(&'static str),
    /// Tensors lose this prefix.
    PrefixLost(String),
    /// Last rows of a table are left out, because the tokenizer of the model has fewer tokens.
    RowsLeftOut { table: String, rows: u64, tokens: u64 },
    /// The model has no output head, and its config does not tie it to the embeddings.
    NoHead,
    /// Factors of rotary embeddings: from the donor of the metadata, or computed from config.json.
    Factors { name: &'static str, donor: Option<PathBuf>, is_described: bool },
    /// Tensors of the donor of the metadata that the model does not have.
    DonorTensorsLeftOut(PathBuf, Vec<String>),
    /// Number of missing parts of the donor of the metadata.
    DonorPartsMissing(PathBuf, usize),
    /// Tensors of the input that a GGUF file does not have, and the part of the model that they are.
    TensorsLeftOut { part: Option<OtherPart>, names: Vec<String> },
    /// Metadata keys of the input that a GGUF file does not have.
    KeysLeftOut(Vec<String>),
    /// Weights whose rows are not whole blocks of the wanted type, and that are stored in another one.
    OtherType { wanted: &'static str, stored: &'static str, names: Vec<String> },
    /// Entries of the importance matrix without a tensor of the model.
    UnknownImportance(Vec<String>),
}

/// A note about an adapter that is merged.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum LoraNote {
    /// Tensors of an adapter that match no weight, which the caller allows.
    Unmatched(PathBuf, Vec<String>),
    /// An adapter is given a second time.
    Twice(PathBuf),
    /// All scales of an adapter are 0.
    NoEffect(PathBuf),
    /// The adapter was trained on the residual of its base, by this method of initialization.
    Residual(PathBuf, String),
    /// The metadata of an adapter gives this scale, which some programs ignore.
    MetadataScale(PathBuf, f64),
    /// A weight that the adapter should not have changed is replaced.
    Replaces(String),
    /// This tensor is one weight with another, which changes too; with the output head, if that has no tensor.
    Tied(String, Option<String>),
}

/// Advice about the use of an output: what engines may not load, and what other options would change.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program words it"))]
pub(crate) enum UseNote {
    /// Weights that are kept because of their shape, for this layout and group size.
    Misfits { misfits: Vec<Misfit>, layout: &'static str, group_size: Option<Group> },
    /// The names are those of a diffusion model, and the layout for such models is not the scheme's default.
    OfDiffusion(&'static Scheme),
    /// An embedding, the first of those that a rule quantizes.
    QuantizedEmbedding(String),
    /// Number of quantized stacks of experts that are decoded because the names of the file are kept, and the first.
    DecodedStacks(u64, String),
    /// The forms of weights that engines must run to use a quantized model.
    Quantized(Box<QuantizedForms>),
    /// All activations get the same global scale.
    SharedInputScale,
    /// Number of weights that are not rotated because of their columns, the first, its columns, and the number that would be
    /// rotated together.
    Unrotated { count: u64, first: String, columns: u64, size: u64 },
    /// The size of the input's groups, with which the scheme would keep codes and scales that its default replaces.
    GroupsOfInput(u64),
    /// A group size for which engines have no fast kernels.
    SlowGroups(u64),

    /// Number of sets that engines load as one module and that are partly quantized, with a plain and a quantized weight of
    /// the first.
    DividedSets(u64, [String; 2]),
    /// Two weights that engines load as one module, with different global scales.
    UnequalGlobals([String; 2]),
    /// Decoded weights that may have more rows and columns than in the model: their layout, the first, and the number of
    /// others.
    Padded { layout: &'static Layout, first: String, others: u64 },
    /// Nodes of an ONNX model that keep their codes.
    CodesStay(String),
    /// Weights of an ONNX model that keep the nodes of another layout.
    NodesStay(Error),
}

/// Weights of one shape that do not fit the groups of a scheme.
#[derive(Debug)]
pub(crate) struct Misfit {
    pub(crate) why: Unfit,
    pub(crate) scheme: &'static Scheme,
    pub(crate) shape: Vec<u64>,
    /// The name of the first.
    pub(crate) first: String,
    pub(crate) count: u64,
}

impl Misfit {
    /// Counts a weight together with the weights that do not fit for the same reason.
    pub(crate) fn count(all: &mut Vec<Self>, why: &Unfit, scheme: &'static Scheme, name: &str, shape: &[u64]) {
        if let Some(known) =
            all.iter_mut().find(|known| known.why == *why && known.scheme == scheme && known.shape == shape)
        {
            known.count += 1;
        } else {
            let (shape, first) = (shape.to_vec(), name.to_owned());
            all.push(Self { why: why.clone(), scheme, shape, first, count: 1 });
        }
    }
}

/// The forms of the quantized weights of a model that engines depend on.
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "the program compares it with the trials of engines"))]
pub(crate) struct QuantizedForms {
    /// The schemes and layouts in which weights are stored.
    pub(crate) stored: BTreeSet<(&'static str, &'static str)>,
    /// The schemes and layouts in which experts are stored one by one.
    pub(crate) experts: BTreeSet<(&'static str, &'static str)>,
    /// `model_type` of the whole model, and of its language model.
    pub(crate) kinds: Vec<String>,
    /// The type in which engines compute, unless an option names another one.
    pub(crate) computes_in: Option<Dtype>,
    /// True if linear layers are kept that engines identify only by their names.
    pub(crate) has_kept_layers: bool,
}
