//! Studies a model before it is changed: finds the place of each tensor, and its role in the nodes that use it.

use super::super::super::{Input, Tensor};
use super::super::NAME;
use super::super::protobuf::{MessageFields, Value};
use super::frames::{Enclosed, Frames};
use super::nodes::{Dequantization, Undecoded, Uses, integers};
use super::parts::{
    Context, Found, Header, Holder, ModelPart, NameUse, Node, Visitor, ancestors, is_default_domain, stored_number,
};
use super::walk::walk;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Role of a tensor of a model that is not a plain weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TensorRole {
    /// The default of a graph's input, whose type callers rely on.
    GraphInput,
    /// A scale or zero point.
    Scale,
    /// A shape, an index, a bound or a statistic, which engines need as a constant.
    Parameter,
    /// In the body of a function.
    Function,
    /// Training writes it, or it belongs to a graph of training.
    Trained,
    /// A list of numbers in a Constant node, which has one type.
    List,
    /// In a Constant node, and the target is a type that Constant lacks up to opset 28: float6.
    Constant,
    /// An attribute of another node, whose type is part of the meaning.
    Attribute,
    /// Part of a sparse tensor.
    Sparse,
    /// A value of an enclosing graph has this name too.
    Shadowing,
}

/// Place of a tensor.
pub(super) struct Place {
    pub holder: Holder,
    pub graph: usize,
    /// The index of its message in [`Study::frames`]; the messages that enclose it are its ancestors.
    pub message: usize,
    /// The name of its value.
    pub name: Range<usize>,
    /// The message of the graph's input with this name, if it gets the new name and type too.
    pub input: Option<usize>,
    pub role: Option<TensorRole>,
}

/// The place at which a new node precedes all other nodes of a graph.
#[derive(Clone, Copy)]
pub(super) struct FirstNode {
    pub position: usize,
    /// The message of the graph.
    pub parent: usize,
}

/// A model and the places of its tensors, in the order of `Contents::tensors`.
pub(crate) struct Study {
    pub(super) header: Header,
    pub(super) places: Vec<Place>,
    pub(super) frames: Vec<Enclosed>,
    pub(super) first_nodes: Vec<FirstNode>,
    /// The names of values that several graphs define.
    pub(super) ambiguous: HashSet<Vec<u8>>,
    /// A number that makes the names of [`Study::stored_name`] unique.
    fresh: u32,
    /// The name of the first node of each type of the default domain.
    pub(super) operators: HashMap<Vec<u8>, String>,
    /// The name and the operator of the first node that casts to a FNUZ float8 type with saturation.
    pub(super) fnuz_cast: Option<(String, &'static str)>,
    /// The outputs of `DequantizeLinear` nodes, with their graphs.
    pub(super) decoded: Vec<(usize, Range<usize>)>,
    /// Filled by [`Study::find_uses`].
    pub(super) uses: Uses,
    /// The values of tensors of codes that only `DequantizeLinear` nodes use, with constants as scale and zero point, in the
    /// order of the tensors; filled by [`Study::find_uses`].
    pub(crate) dequantizations: Vec<Dequantization>,
    /// The other nodes whose codes are stored; filled by [`Study::find_uses`].
    pub(crate) undecoded: Vec<Undecoded>,
}

impl Study {
    /// Studies the model in an input.
    pub(crate) fn of(input: &Input) -> Result<Self> {
        let file: &[u8] = &input.files[0];
        let mut scout = Scout { file, ..Scout::default() };
        let header = walk(file, &mut scout)?;
        let Scout { mut places, frames, first_nodes, uses, inputs, definitions, taken, operators, decoded, .. } = scout;
        if let Some(name) = scout.repeated {
            let name = shorten(&String::from_utf8_lossy(name));
            let error = Error::new(format!("two nodes or initializers of a graph define the value '{name}'"));
            return Err(error.remedy("onnx.checker.check_model describes what is wrong with the model"));
        }
        let is_visible = |place: &Place| {
            let graphs = definitions.get(&file[place.name.clone()]).map_or(&[][..], |graphs| graphs);
            let mut ancestors = ancestors(&header.graphs, place.graph).skip(1);
            !graphs.is_empty() && ancestors.any(|graph| graphs.contains(&graph))
        };
        for place in places.iter_mut().filter(|place| place.role.is_none()) {
            let name = &file[place.name.clone()];
            // Up to IR version 3, every initializer is an input and nevertheless a constant.
            let input = inputs.get(&(place.graph, name)).copied();
            place.input = input.flatten().filter(|_| matches!(header.ir_version, Some((_, 1..=3))));
            place.role = if input.is_some() && place.input.is_none() {
                Some(TensorRole::GraphInput)
            } else if is_visible(place) {
                Some(TensorRole::Shadowing)
            } else {
                uses.get(name).copied()
            };
        }
        let ambiguous = definitions.iter().filter(|(_, graphs)| graphs.len() > 1);
        let ambiguous = ambiguous.map(|(name, _)| name.to_vec()).collect();
        let fresh = (0..=u32::MAX).find(|number| !taken.contains(number)).unwrap_or_default();
        // CastLike takes the type of another value.
        let is_fnuz = |tensor: &Tensor| tensor.elements.dtype().is_some_and(|dtype| FNUZ.contains(&dtype));
        let has_fnuz = scout.has_fnuz || input.contents.tensors.iter().any(is_fnuz);
        let cast_like = scout.cast_like.filter(|_| has_fnuz);
        let fnuz_cast = scout.fnuz_cast.or_else(|| Some((cast_like?, "CastLike")));
        let (frames, uses) = (frames.all, Uses::default());
        Ok(Self {
            header,
            places,
            frames,
            first_nodes,
            ambiguous,
            fresh,
            operators,
            fnuz_cast,
            decoded,
            uses,
            dequantizations: Vec::new(),
            undecoded: Vec::new(),
        })
    }

    /// True if a tensor is also an input of the graph, as all initializers are up to IR version 3.
    pub(crate) fn is_input(&self, tensor: usize) -> bool {
        self.places[tensor].input.is_some()
    }

    /// Returns the role of a tensor for a target type, if it is not a plain weight.
    pub(crate) fn role_for(&self, tensor: usize, to: Dtype) -> Option<TensorRole> {
        let is_constant = self.places[tensor].holder == Holder::Constant && to.bits() == 6;
        if is_constant { Some(TensorRole::Constant) } else { self.role(tensor) }
    }

    /// Returns the role of a tensor, if it is not a plain weight.
    pub(crate) fn role(&self, tensor: usize) -> Option<TensorRole> {
        self.places[tensor].role
    }

    /// Returns the name under which a tensor is stored in another type: `w_float16`. No name of a value or node of the
    /// model ends in this way.
    pub(crate) fn stored_name(&self, name: &str, dtype: Dtype) -> String {
        if self.fresh == 0 { format!("{name}_{dtype}") } else { format!("{name}_{dtype}_{}", self.fresh) }
    }
}

#[derive(Default)]
struct Scout<'a> {
    file: &'a [u8],
    places: Vec<Place>,
    frames: Frames,
    first_nodes: Vec<FirstNode>,
    /// The role of a value in the nodes that use it, if this role protects the value.
    uses: HashMap<&'a [u8], TensorRole>,
    /// The inputs of graphs, with their messages in the main graph.
    inputs: HashMap<(usize, &'a [u8]), Option<usize>>,
    /// The graphs that define a name.
    definitions: HashMap<&'a [u8], Vec<usize>>,
    /// The outputs of nodes and the initializers, with their graphs.
    made: HashSet<(usize, &'a [u8])>,
    /// The first name in `made` that its graph defines twice; no ONNX library runs such a graph.
    repeated: Option<&'a [u8]>,
    /// Numbers at the end of names that have the form of new values' names.
    taken: HashSet<u32>,
    operators: HashMap<Vec<u8>, String>,
    fnuz_cast: Option<(String, &'static str)>,
    /// The first `CastLike` node with saturation.
    cast_like: Option<String>,
    /// True if a value has a type of [`FNUZ`].
    has_fnuz: bool,
    decoded: Vec<(usize, Range<usize>)>,
}

impl Scout<'_> {
    /// Records the number of a name like `w_float16_3`, or `w_int8_3_scale`.
    fn take(&mut self, name: &[u8]) {
        let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let number = &name[..name.len() - digits];
        let ends = [number.strip_suffix(b"_copy_"), name.strip_suffix(b"_scale"), name.strip_suffix(b"_zero_point")];
        self.taken.extend(stored_number(ends.into_iter().flatten().next().unwrap_or(name)));
    }

    fn define(&mut self, graph: usize, name: Range<usize>) {
        let graphs = self.definitions.entry(&self.file[name]).or_default();
        if graphs.last() != Some(&graph) {
            graphs.push(graph);
        }
    }

    /// Records the definition of an output of a node, or of an initializer.
    fn make(&mut self, graph: usize, name: Range<usize>) {
        let bytes = &self.file[name.clone()];
        if !bytes.is_empty() && !self.made.insert((graph, bytes)) {
            self.repeated.get_or_insert(bytes);
        }
        self.define(graph, name);
    }

    fn protect(&mut self, name: Range<usize>, role: TensorRole) {
        let known = self.uses.entry(&self.file[name]).or_insert(role);
        // Another role can only replace `Parameter`.
        if *known == TensorRole::Parameter {
            *known = role;
        }
    }
}

impl Visitor for Scout<'_> {
    fn node(&mut self, context: &Context, graph: usize, node: &Node) {
        if self.first_nodes.len() <= graph {
            let parent = self.frames.enclose(&context.enclosing);
            // Graphs that have ended, and graphs that enclose this one, already have entries. Only a function can lack
            // one, if a default of its attributes precedes its nodes; no node is inserted into functions.
            self.first_nodes.resize(graph, FirstNode { position: 0, parent });
            self.first_nodes.push(FirstNode { position: node.frame_start, parent });
        }
        let file = self.file;
        for name in node.inputs.iter().chain(&node.outputs).chain([&node.name]) {
            self.take(&file[name.clone()]);
        }
        for name in &node.outputs {
            self.make(graph, name.clone());
        }
        let (op, domain) = (&file[node.op_type.clone()], &file[node.domain.clone()]);
        if op == b"DequantizeLinear" && is_default_domain(domain) && context.graphs[graph].part == ModelPart::Main {
            let output = node.outputs.first().filter(|output| !output.is_empty());
            self.decoded.extend(output.map(|output| (graph, output.clone())));
        }
        if is_default_domain(domain) && !self.operators.contains_key(op) {
            self.operators.insert(op.to_vec(), context.node_label(node));
        }
        if is_default_domain(domain) {
            let wanted = [("to", 0), ("output_dtype", 0), ("saturate", 1)]; // attributes of Cast and of QuantizeLinear
            let [to, output, saturate] = integers(file, &node.body, wanted);
            self.has_fnuz |= is_fnuz(to) || is_fnuz(output);
            match op {
                b"Cast" if saturate != 0 && is_fnuz(to) && self.fnuz_cast.is_none() => {
                    self.fnuz_cast = Some((context.node_label(node), "Cast"));
                }
                b"CastLike" if saturate != 0 && self.cast_like.is_none() => {
                    self.cast_like = Some(context.node_label(node));
                }
                _ => {}
            }
        }
        for (index, name) in node.inputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            if let Some(role) = role_of_input(op, domain, index) {
                self.protect(name.clone(), role);
            }
        }
    }

    fn name(&mut self, context: &Context, graph: usize, usage: NameUse, name: Range<usize>) {
        self.take(&self.file[name.clone()]);
        match usage {
            NameUse::Input => {
                let message = context.graphs[graph].is_main().then(|| self.frames.enclose(&context.enclosing));
                self.inputs.insert((graph, &self.file[name.clone()]), message);
                self.define(graph, name);
            }
            NameUse::QuantizationParameter => self.protect(name, TensorRole::Scale),
            NameUse::Trained => self.protect(name, TensorRole::Trained),
            NameUse::Output | NameUse::Other => {}
        }
    }

    fn value_type(&mut self, number: u64) {
        self.has_fnuz |= i64::try_from(number).is_ok_and(is_fnuz);
    }

    fn graph_end(&mut self, context: &Context, graph: usize) {
        if self.first_nodes.len() <= graph {
            let parent = self.frames.enclose(&context.enclosing);
            let position = self.frames.all[parent].frame.body.end;
            self.first_nodes.resize(graph + 1, FirstNode { position, parent });
        }
    }

    fn tensor(&mut self, context: &Context, found: Found) -> Result<()> {
        let mut enclosing = context.enclosing.clone();
        enclosing.push(found.message.clone());
        let message = self.frames.enclose(&enclosing);
        let mut name = found.output.clone().unwrap_or_default();
        if found.holder == Holder::Initializer {
            for field in MessageFields::new(self.file, found.message.body.clone()) {
                if let (NAME, Value::Bytes(range)) = field? {
                    name = range;
                }
            }
            self.make(found.graph, name.clone());
            self.take(&self.file[name.clone()]);
        }
        let role = match (&found.holder, context.graphs[found.graph].part) {
            (Holder::SparseInitializer | Holder::SparseAttribute, _) => Some(TensorRole::Sparse),
            (_, ModelPart::Function) => Some(TensorRole::Function),
            (_, ModelPart::Training) => Some(TensorRole::Trained),
            (Holder::ConstantNumbers(..), _) => Some(TensorRole::List),
            (Holder::Attribute, _) => Some(TensorRole::Attribute),
            (Holder::Initializer | Holder::Constant, ModelPart::Main) => None,
        };
        let is_sparse = role == Some(TensorRole::Sparse);
        for _ in 0..if is_sparse { 2 } else { 1 } {
            let place = Place {
                holder: found.holder.clone(),
                graph: found.graph,
                message,
                name: name.clone(),
                input: None,
                role,
            };
            self.places.push(place);
        }
        Ok(())
    }
}

/// Target types whose casts changed in opset 24.
const FNUZ: [Dtype; 2] = [Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2FNUZ];

/// True if this is the ONNX number of a type of [`FNUZ`].
fn is_fnuz(number: i64) -> bool {
    FNUZ.iter().any(|dtype| dtype.onnx_number().is_some_and(|own| i64::from(own) == number))
}

/// Returns the role of an operator's input, if it is not a plain weight.
fn role_of_input(op: &[u8], domain: &[u8], input: usize) -> Option<TensorRole> {
    let op = std::str::from_utf8(op).ok()?;
    if domain == b"com.microsoft" {
        let is_quantized = op.starts_with('Q')
            || op.starts_with("DynamicQuantize")
            || matches!(op, "MatMulNBits" | "GatherBlockQuantized" | "MatMulIntegerToFloat" | "DequantizeLinear");
        return (is_quantized && input > 0).then_some(TensorRole::Scale);
    }
    if !is_default_domain(domain) {
        return None;
    }
    let is_scale = match op {
        "QuantizeLinear" | "DequantizeLinear" => (1..=2).contains(&input),
        "QLinearConv" | "QLinearMatMul" => matches!(input, 1 | 2 | 4..=7),
        "MatMulInteger" | "ConvInteger" => (2..=3).contains(&input),
        _ => false,
    };
    if is_scale {
        return Some(TensorRole::Scale);
    }
    let is_parameter = match op {
        "Reshape" | "Expand" | "Tile" | "Gather" | "GatherElements" | "GatherND" | "Scatter" | "ScatterElements"
        | "ScatterND" | "Squeeze" | "Unsqueeze" | "Split" | "SplitToSequence" | "TopK" | "Compress" | "Upsample"
        | "CumSum" | "Trilu" | "AffineGrid" | "CenterCropPad" => input == 1,
        "ConstantOfShape" | "Loop" | "HannWindow" | "HammingWindow" | "BlackmanWindow" => input == 0,
        "Col2Im" | "Dropout" | "DFT" | "Clip" => (1..=2).contains(&input),
        "MaxUnpool" | "RoiAlign" => input == 2,
        "Slice" | "BatchNormalization" => (1..=4).contains(&input),
        "Pad" | "Resize" => (1..=3).contains(&input),
        "STFT" => matches!(input, 1 | 3),
        "OneHot" | "Range" => input <= 2,
        "NonMaxSuppression" => (2..=4).contains(&input),
        "MelWeightMatrix" => true,
        _ => op.starts_with("Reduce") && input == 1,
    };
    is_parameter.then_some(TensorRole::Parameter)
}
