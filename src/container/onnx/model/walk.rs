//! The walk over a model: every graph, node and tensor, in the order of the file.
//!
//! The walk takes time linear in the number of fields, skips the contents of tensors, and holds only the messages that
//! enclose the current one.

use super::super::protobuf::{MessageFields, Value};
use super::parts::{
    Context, Found, Frame, Graph, Header, Holder, ModelPart, NameUse, Node, Visitor, attribute, function, graph,
    is_default_domain, is_inserted, model, node,
};
use crate::error::{Error, Result};
use std::ops::Range;

/// Maximum nesting of messages: protobuf reads no deeper messages, and neither does any ONNX library.
const MAX_DEPTH: usize = 100;
pub(super) fn walk(file: &[u8], visitor: &mut dyn Visitor) -> Result<Header> {
    let mut walk = Walk { context: Context { file, enclosing: Vec::new(), graphs: Vec::new() }, visitor };
    let (mut header, mut has_graph) = (Header::default(), false);
    let (mut functions, mut training) = (0_u64, 0_u64);
    for field in MessageFields::new(file, 0..file.len()).with_ranges() {
        let (range, field, value) = field?;
        let start = range.start;
        match (field, value) {
            (model::IR_VERSION, Value::Varint(version)) => header.ir_version = Some((range, version)),
            (model::GRAPH, Value::Bytes(_)) if has_graph => {
                return Err(Error::new("the model has two graphs").remedy("load it with onnx.load and save it again"));
            }
            (model::GRAPH, Value::Bytes(body)) => {
                has_graph = true;
                walk.graph(Frame { start, body }, None, ModelPart::Main, "")?;
            }
            (model::OPSET_IMPORT, Value::Bytes(body)) => {
                let (domain, version) = import(file, &body)?;
                header.imports.push((Frame { start, body }, domain, version));
            }
            (model::TRAINING_INFO, Value::Bytes(body)) => {
                walk.training(Frame { start, body }, training)?;
                training += 1;
            }
            (model::FUNCTIONS, Value::Bytes(body)) => {
                header.has_functions |= walk.function(Frame { start, body }, functions)?;
                functions += 1;
            }
            _ => {}
        }
    }
    header.graphs = walk.context.graphs;
    if has_graph { Ok(header) } else { Err(Error::new("is not an ONNX model: it has no graph")) }
}

/// Reads the domain and the version in an `OperatorSetIdProto`.
pub(super) fn import(file: &[u8], body: &Range<usize>) -> Result<(Range<usize>, u64)> {
    let (mut domain, mut version) = (0..0, 0);
    for field in MessageFields::new(file, body.clone()) {
        match field? {
            (1, Value::Bytes(range)) => domain = range,
            (2, Value::Varint(number)) => version = number,
            _ => {}
        }
    }
    Ok((domain, version))
}

/// Returns the fields of bytes in a message, as messages.
fn messages(file: &[u8], body: Range<usize>) -> impl Iterator<Item = Result<(u64, Frame)>> {
    MessageFields::new(file, body).with_ranges().filter_map(|field| match field {
        Ok((range, field, Value::Bytes(body))) => Some(Ok((field, Frame { start: range.start, body }))),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

struct Walk<'a, 'v> {
    context: Context<'a>,
    visitor: &'v mut dyn Visitor,
}

impl Walk<'_, '_> {
    fn within<T>(&mut self, frame: Frame, what: impl FnOnce(&mut Self, Range<usize>) -> Result<T>) -> Result<T> {
        if self.context.enclosing.len() == MAX_DEPTH {
            let error = Error::new(format!("is not an ONNX model: its messages are nested more than {MAX_DEPTH} deep"));
            return Err(error.remedy("no ONNX library reads such a file"));
        }
        let body = frame.body.clone();
        self.context.enclosing.push(frame);
        let result = what(self, body)?;
        self.context.enclosing.pop();
        Ok(result)
    }

    fn new_graph(&mut self, parent: Option<usize>, part: ModelPart, label: &str) -> usize {
        self.context.graphs.push(Graph { parent, part, label: label.into() });
        self.context.graphs.len() - 1
    }

    fn graph(&mut self, frame: Frame, parent: Option<usize>, part: ModelPart, label: &str) -> Result<()> {
        let graph = self.new_graph(parent, part, label);
        self.within(frame, |walk, body| {
            let mut nodes = 0;
            for field in messages(walk.context.file, body) {
                let (field, frame) = field?;
                match field {
                    graph::NODE => {
                        nodes += u64::from(walk.node(frame, graph, nodes)?);
                    }
                    graph::INITIALIZER => walk.found(graph, Holder::Initializer, frame, None, None)?,
                    graph::SPARSE_INITIALIZER => walk.found(graph, Holder::SparseInitializer, frame, None, None)?,
                    graph::INPUT => walk.named(graph, NameUse::Input, frame)?,
                    graph::OUTPUT => walk.named(graph, NameUse::Output, frame)?,
                    graph::VALUE_INFO => walk.named(graph, NameUse::Other, frame)?,
                    graph::QUANTIZATION_ANNOTATION => walk.annotation(graph, &frame.body)?,
                    _ => {}
                }
            }
            walk.visitor.graph_end(&walk.context, graph);
            Ok(())
        })
    }

    /// Visits the name of a `ValueInfoProto`, and its type.
    fn named(&mut self, graph: usize, usage: NameUse, frame: Frame) -> Result<()> {
        self.within(frame, |walk, body| {
            for field in MessageFields::new(walk.context.file, body) {
                match field? {
                    (1, Value::Bytes(name)) => walk.visitor.name(&walk.context, graph, usage, name),
                    (2, Value::Bytes(body)) => walk.tensor_type(body),
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Visits the dtype in a `TypeProto`: `elem_type` is field 1 of its field 1, `tensor_type`.
    fn tensor_type(&mut self, body: Range<usize>) {
        for field in MessageFields::new(self.context.file, body).map_while(Result::ok) {
            let (1, Value::Bytes(body)) = field else { continue };
            for field in MessageFields::new(self.context.file, body).map_while(Result::ok) {
                if let (1, Value::Varint(number)) = field {
                    self.visitor.value_type(number);
                }
            }
        }
    }

    /// Visits the scales and zero points of a `TensorAnnotation`.
    fn annotation(&mut self, graph: usize, body: &Range<usize>) -> Result<()> {
        for field in MessageFields::new(self.context.file, body.clone()) {
            if let (2, Value::Bytes(pair)) = field? {
                self.pair(graph, NameUse::QuantizationParameter, 2, &pair)?;
            }
        }
        Ok(())
    }

    /// Visits a name in a `StringStringEntryProto`: the key is field 1, the value field 2.
    fn pair(&mut self, graph: usize, usage: NameUse, which: u64, body: &Range<usize>) -> Result<()> {
        for field in MessageFields::new(self.context.file, body.clone()) {
            match field? {
                (field, Value::Bytes(name)) if field == which => {
                    self.visitor.name(&self.context, graph, usage, name);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn training(&mut self, frame: Frame, number: u64) -> Result<()> {
        self.within(frame, |walk, body| {
            for field in messages(walk.context.file, body) {
                let (field, frame) = field?;
                match field {
                    1 | 2 => {
                        let label =
                            format!("training_info_{number}.{}", ["initialization", "algorithm"][field as usize - 1]);
                        walk.graph(frame, None, ModelPart::Training, &label)?;
                    }
                    // The keys name initializers of the main graph.
                    3 | 4 => walk.pair(0, NameUse::Trained, 1, &frame.body)?,
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Walks over a function. Returns true if it uses operators of the default domain.
    fn function(&mut self, frame: Frame, number: u64) -> Result<bool> {
        let (mut name, mut domain, mut is_default) = (0..0, 0..0, false);
        let file = self.context.file;
        for field in MessageFields::new(file, frame.body.clone()) {
            match field? {
                (function::NAME, Value::Bytes(range)) => name = range,
                (function::DOMAIN, Value::Bytes(range)) => domain = range,
                (function::OPSET_IMPORT, Value::Bytes(body)) => {
                    is_default |= is_default_domain(&file[import(file, &body)?.0]);
                }
                _ => {}
            }
        }
        let label = match (self.context.label(&domain), self.context.label(&name)) {
            (_, name) if name.is_empty() => format!("function_{number}"),
            (domain, name) if domain.is_empty() => name,
            (domain, name) => format!("{domain}::{name}"),
        };
        let graph = self.new_graph(None, ModelPart::Function, &label);
        self.within(frame, |walk, body| {
            let mut nodes = 0;
            for field in messages(file, body) {
                let (field, frame) = field?;
                match field {
                    function::NODE => {
                        nodes += u64::from(walk.node(frame, graph, nodes)?);
                    }
                    function::INPUT | function::OUTPUT => {
                        walk.visitor.name(&walk.context, graph, NameUse::Other, frame.body);
                    }
                    function::ATTRIBUTE_DEFAULT => walk.attribute(frame, graph, &label, &Node::default())?,
                    _ => {}
                }
            }
            walk.visitor.graph_end(&walk.context, graph);
            Ok(())
        })?;
        Ok(is_default)
    }

    /// Walks over a node. Returns true if it counts: nodes that tcast inserted do not, so that paths stay the same.
    fn node(&mut self, frame: Frame, graph: usize, number: u64) -> Result<bool> {
        let file = self.context.file;
        let mut found = Node { frame_start: frame.start, body: frame.body.clone(), number, ..Node::default() };
        for field in MessageFields::new(file, frame.body.clone()) {
            match field? {
                (node::INPUT, Value::Bytes(name)) => found.inputs.push(name),
                (node::OUTPUT, Value::Bytes(name)) => found.outputs.push(name),
                (node::NAME, Value::Bytes(name)) => found.name = name,
                (node::OP_TYPE, Value::Bytes(name)) => found.op_type = name,
                (node::DOMAIN, Value::Bytes(name)) => found.domain = name,
                _ => {}
            }
        }
        self.visitor.node(&self.context, graph, &found);
        let counts = !is_inserted(file, &found);
        let label = self.context.node_label(&found);
        self.within(frame, |walk, body| {
            for field in messages(file, body) {
                if let (node::ATTRIBUTE, frame) = field? {
                    walk.attribute(frame, graph, &label, &found)?;
                }
            }
            Ok(counts)
        })
    }

    /// Walks over an attribute of a node, or a default of a function's attribute.
    fn attribute(&mut self, frame: Frame, graph: usize, owner: &str, node: &Node) -> Result<()> {
        let file = self.context.file;
        let is_constant = &file[node.op_type.clone()] == b"Constant" && is_default_domain(&file[node.domain.clone()]);
        let output = node.outputs.first().filter(|_| is_constant);
        let mut name = 0..0;
        for field in MessageFields::new(file, frame.body.clone()) {
            if let (attribute::NAME, Value::Bytes(range)) = field? {
                name = range;
            }
        }
        let label = format!("{owner}.{}", self.context.label(&name));
        let numbers = match (&file[name.clone()], output) {
            (b"value_float", Some(_)) => Some((attribute::FLOAT, "value_float")),
            (b"value_floats", Some(_)) => Some((attribute::FLOATS, "value_floats")),
            (b"value_int", Some(_)) => Some((attribute::INT, "value_int")),
            (b"value_ints", Some(_)) => Some((attribute::INTS, "value_ints")),
            _ => None,
        };
        if let Some((field, name)) = numbers {
            return self.found(graph, Holder::ConstantNumbers(field, name), frame, output.cloned(), None);
        }
        let mut tensors = 0_u64;
        let part = self.context.graphs[graph].part;
        self.within(frame, |walk, body| {
            let mut singles = [false; 32];
            for field in messages(file, body) {
                let (field, inner) = field?;
                // protobuf would merge two messages into one.
                if matches!(field, attribute::TENSOR | attribute::GRAPH | attribute::SPARSE_TENSOR)
                    && std::mem::replace(&mut singles[field as usize], true)
                {
                    return Err(Error::new(format!("attribute '{label}' has two values")));
                }
                match field {
                    attribute::TENSOR if output.is_some() => {
                        walk.found(graph, Holder::Constant, inner, output.cloned(), None)?;
                    }
                    attribute::TENSOR => walk.found(graph, Holder::Attribute, inner, None, Some(label.clone()))?,
                    attribute::SPARSE_TENSOR => {
                        let label = output.is_none().then(|| label.clone());
                        walk.found(graph, Holder::SparseAttribute, inner, output.cloned(), label)?;
                    }
                    attribute::TENSORS | attribute::SPARSE_TENSORS => {
                        let is_sparse = field == attribute::SPARSE_TENSORS;
                        let holder = if is_sparse { Holder::SparseAttribute } else { Holder::Attribute };
                        walk.found(graph, holder, inner, None, Some(format!("{label}.{tensors}")))?;
                        tensors += 1;
                    }
                    attribute::GRAPH | attribute::GRAPHS => {
                        let label =
                            if field == attribute::GRAPH { label.clone() } else { format!("{label}.{tensors}") };
                        tensors += 1;
                        walk.graph(inner, Some(graph), part, &label)?;
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    fn found(
        &mut self,
        graph: usize,
        holder: Holder,
        message: Frame,
        output: Option<Range<usize>>,
        label: Option<String>,
    ) -> Result<()> {
        self.visitor.tensor(&self.context, Found { graph, holder, message, output, label })
    }
}
