//! The walk over a model, which fills its [`ModelGraph`].
//!
//! The walk takes time linear in the number of fields, and skips the contents of tensors.
//!
//! Longer than 400 lines because each kind of message has its fields.

use super::super::NAME;
use super::super::protobuf::{MessageFields, Value};
use super::fields::{attribute, function, graph, model};
use super::graph::{
    Definition, Frame, Holder, Import, ModelGraph, ModelPart, Node, NodeFields, Origin, Place, PlaceName, Scope,
    TensorRole, is_default_domain, label, stored_number,
};
use super::opsets::is_fnuz;
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::ops::Range;

/// Maximum nesting of messages: protobuf reads no deeper messages, and neither does any ONNX library.
const MAX_DEPTH: u8 = 100;
/// Maximum number of tensors, more than any model has; a file full of empty ones is refused before it takes memory.
const MAX_TENSORS: usize = 1 << 20;
/// Maximum number of messages in the graph, as [`MAX_TENSORS`].
const MAX_FRAMES: usize = 1 << 22;

/// The file itself, as a message.
pub(super) const FILE: usize = 0;

/// A field of bytes in a message: the position of its tag, and the range of its bytes.
struct Field {
    start: usize,
    body: Range<usize>,
}

/// Returns the fields of bytes in a message, with their numbers.
fn messages(file: &[u8], body: Range<usize>) -> impl Iterator<Item = Result<(u64, Field)>> {
    MessageFields::new(file, body).with_ranges().filter_map(|field| match field {
        Ok((range, field, Value::Bytes(body))) => Some(Ok((field, Field { start: range.start, body }))),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

struct Walk<'a> {
    graph: ModelGraph<'a>,
    /// Numbers at the end of names that have the form of [`ModelGraph::stored_name`].
    taken: HashSet<u32>,
}

impl<'a> ModelGraph<'a> {
    /// Walks over a model.
    pub(super) fn read(file: &'a [u8]) -> Result<Self> {
        let root = Frame { start: 0, body: 0..file.len(), parent: FILE, depth: 0 };
        let graph = Self { file, frames: vec![root], ..Self::default() };
        let mut walk = Walk { graph, taken: HashSet::new() };
        walk.model()?;
        let Walk { mut graph, taken } = walk;
        graph.definitions.sort_unstable();
        graph.fresh = (0..=u32::MAX).find(|number| !taken.contains(number)).unwrap_or_default();
        Ok(graph)
    }
}

impl<'a> Walk<'a> {
    fn model(&mut self) -> Result<()> {
        let file = self.graph.file;
        let (mut main, mut functions, mut training) = (None, 0, 0);
        for field in MessageFields::new(file, 0..file.len()).with_ranges() {
            let (range, number, value) = field?;
            let body = match value {
                Value::Varint(version) if number == model::IR_VERSION => {
                    self.graph.ir_version = Some((range, version));
                    continue;
                }
                Value::Bytes(body) => body,
                _ => continue,
            };
            let field = Field { start: range.start, body };
            match number {
                model::GRAPH if main.is_some() => {
                    let remedy = "load it with onnx.load and save it again";
                    return Err(Error::new("the model has two graphs").remedy(remedy));
                }
                model::GRAPH => main = Some(self.graph(FILE, field, None, ModelPart::Main, String::new())?),
                model::OPSET_IMPORT => {
                    let (domain, range, version) = import(file, &field.body)?;
                    let frame = self.enter(FILE, field)?;
                    self.graph.imports.push(Import { frame, domain, range, version });
                }
                model::TRAINING_INFO => {
                    self.training(field, training, main)?;
                    training += 1;
                }
                model::FUNCTIONS => {
                    self.function(field, functions)?;
                    functions += 1;
                }
                _ => {}
            }
        }
        if main.is_some() { Ok(()) } else { Err(Error::new("is not an ONNX model: it has no graph")) }
    }

    /// Adds a message that another one encloses.
    fn enter(&mut self, parent: usize, Field { start, body }: Field) -> Result<usize> {
        let depth = self.graph.frames[parent].depth + 1;
        if depth > MAX_DEPTH {
            let error = Error::new(format!("is not an ONNX model: its messages are nested more than {MAX_DEPTH} deep"));
            return Err(error.remedy("no ONNX library reads such a file"));
        }
        if self.graph.frames.len() > MAX_FRAMES {
            return Err(Error::new(format!("more than {MAX_FRAMES} nodes, graphs and tensors")));
        }
        self.graph.frames.push(Frame { start, body, parent, depth });
        Ok(self.graph.frames.len() - 1)
    }

    /// Notes the number of a name like `w_float16_3`, or `w_int8_3_scale`.
    fn take(&mut self, name: &[u8]) {
        let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let number = &name[..name.len() - digits];
        let ends = [number.strip_suffix(b"_copy_"), name.strip_suffix(b"_scale"), name.strip_suffix(b"_zero_point")];
        self.taken.extend(stored_number(ends.into_iter().flatten().next().unwrap_or(name)));
    }

    fn define(&mut self, scope: usize, name: &'a [u8], origin: Origin) {
        if !name.is_empty() {
            self.graph.definitions.push(Definition { name, scope, origin });
        }
    }

    fn scope(&mut self, frame: usize, parent: Option<usize>, part: ModelPart, label: String) -> usize {
        let first_node = self.graph.frames[frame].body.end;
        self.graph.scopes.push(Scope { frame, parent, part, label: label.into(), first_node });
        self.graph.scopes.len() - 1
    }

    /// Walks over a graph, and returns its scope.
    fn graph(
        &mut self,
        parent: usize,
        field: Field,
        outer: Option<usize>,
        part: ModelPart,
        label: String,
    ) -> Result<usize> {
        let (file, body) = (self.graph.file, field.body.clone());
        let frame = self.enter(parent, field)?;
        let scope = self.scope(frame, outer, part, label);
        let mut nodes = 0;
        for field in messages(file, body) {
            let (number, field) = field?;
            match number {
                graph::NODE => nodes += usize::from(self.node(frame, field, scope, nodes)?),
                graph::INITIALIZER => {
                    let name = tensor_name(file, field.body.clone())?;
                    self.take(name);
                    let tensor = self.tensor(frame, field, scope, Holder::Initializer, PlaceName::Value(name))?;
                    self.define(scope, name, Origin::Tensor(tensor));
                }
                graph::SPARSE_INITIALIZER => self.sparse(frame, field, scope, None)?,
                graph::INPUT => {
                    let name = self.value_info(&field.body)?;
                    let input = self.enter(frame, field)?;
                    self.define(scope, name, Origin::Input(input));
                }
                graph::OUTPUT => {
                    let name = self.value_info(&field.body)?;
                    self.graph.outputs.push((scope, name));
                }
                graph::VALUE_INFO => _ = self.value_info(&field.body)?,
                graph::QUANTIZATION_ANNOTATION => {
                    for field in messages(file, field.body) {
                        if let (2, pair) = field? {
                            let name = texts(file, pair.body)?[1];
                            self.take(name);
                            self.graph.annotated.push((scope, name));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(scope)
    }

    /// Returns the name in a `ValueInfoProto`, and notes its type.
    fn value_info(&mut self, body: &Range<usize>) -> Result<&'a [u8]> {
        let file = self.graph.file;
        let mut name: &[u8] = b"";
        for field in messages(file, body.clone()) {
            match field? {
                (1, field) => name = &file[field.body],
                // `elem_type` is field 1 of field 1 of a `TypeProto`, `tensor_type`.
                (2, field) => {
                    let types = MessageFields::new(file, field.body).map_while(Result::ok);
                    let tensors = types.filter_map(|field| match field {
                        (1, Value::Bytes(body)) => Some(MessageFields::new(file, body).map_while(Result::ok)),
                        _ => None,
                    });
                    let is_fnuz = |field| matches!(field, (1, Value::Varint(number)) if is_fnuz(number as i64));
                    self.graph.has_fnuz |= tensors.flatten().any(is_fnuz);
                }
                _ => {}
            }
        }
        self.take(name);
        Ok(name)
    }

    /// Walks over a `TrainingInfoProto`, whose graphs use the initializers of the main graph.
    fn training(&mut self, field: Field, number: u64, main: Option<usize>) -> Result<()> {
        let (file, body) = (self.graph.file, field.body.clone());
        let frame = self.enter(FILE, field)?;
        for field in messages(file, body) {
            let (number_of_field, field) = field?;
            match number_of_field {
                1 | 2 => {
                    let kind = ["initialization", "algorithm"][number_of_field as usize - 1];
                    let label = format!("training_info_{number}.{kind}");
                    self.graph(frame, field, main, ModelPart::Training, label)?;
                }
                3 | 4 => {
                    let name = texts(file, field.body)?[0];
                    self.take(name);
                    self.graph.trained.push(name);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn function(&mut self, field: Field, number: u64) -> Result<()> {
        let (file, body) = (self.graph.file, field.body.clone());
        let (mut name, mut domain) = (String::new(), String::new());
        for field in messages(file, body.clone()) {
            let (number, Field { body, .. }) = field?;
            match number {
                function::NAME => name = label(&file[body]),
                function::DOMAIN => domain = label(&file[body]),
                function::OPSET_IMPORT => self.graph.has_functions |= is_default_domain(import(file, &body)?.0),
                _ => {}
            }
        }
        let label = match (&*domain, name) {
            (_, name) if name.is_empty() => format!("function_{number}"),
            ("", name) => name,
            (domain, name) => format!("{domain}::{name}"),
        };
        let frame = self.enter(FILE, field)?;
        let scope = self.scope(frame, None, ModelPart::Function, label);
        let mut nodes = 0;
        for field in messages(file, body) {
            let (number, field) = field?;
            match number {
                function::NODE => nodes += usize::from(self.node(frame, field, scope, nodes)?),
                function::INPUT | function::OUTPUT => self.take(&file[field.body]),
                function::ATTRIBUTE_DEFAULT => _ = self.attribute(frame, field, scope, None)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Walks over a node. Returns true if it counts: nodes that tcast inserted do not, so that paths stay the same.
    fn node(&mut self, parent: usize, field: Field, scope: usize, number: usize) -> Result<bool> {
        let (file, body) = (self.graph.file, field.body.clone());
        let fields = NodeFields::read(file, body.clone())?;
        let first_node = &mut self.graph.scopes[scope].first_node;
        *first_node = field.start.min(*first_node);
        let frame = self.enter(parent, field)?;
        let node = self.graph.nodes.len();
        self.graph.nodes.push(Node { frame, scope, number });
        let mut constant = None;
        for field in messages(file, body) {
            if let (super::fields::node::ATTRIBUTE, field) = field? {
                constant = self.attribute(frame, field, scope, Some((node, &fields)))?.or(constant);
            }
        }
        for name in fields.inputs.iter().chain(&fields.outputs).chain([&fields.name]) {
            self.take(name);
        }
        for (at, name) in fields.outputs.iter().enumerate() {
            let tensor = constant.filter(|_| at == 0);
            self.define(scope, name, tensor.map_or(Origin::Node(node), Origin::Tensor));
        }
        Ok(!fields.is_inserted())
    }

    /// Walks over an attribute of a node, or a default of a function's attribute. Returns the tensor, if it is the
    /// value of a Constant node.
    fn attribute(
        &mut self,
        parent: usize,
        field: Field,
        scope: usize,
        node: Option<(usize, &NodeFields<'a>)>,
    ) -> Result<Option<usize>> {
        let (file, body) = (self.graph.file, field.body.clone());
        let (mut name, mut has_messages): (&[u8], _) = (b"", false);
        for field in messages(file, body.clone()) {
            let (number, field) = field?;
            match number {
                attribute::NAME => name = &file[field.body],
                _ => has_messages |= attribute::MESSAGES.contains(&number),
            }
        }
        let output = node.filter(|(_, fields)| fields.operator() == b"Constant" && !fields.outputs.is_empty());
        let output = output.map(|(node, fields)| (node, fields.output()));
        let numbers = attribute::NUMBERS.iter().find(|(_, number)| number.as_bytes() == name);
        if let (Some((_, output)), Some((field_of_numbers, label))) = (output, numbers) {
            let holder = Holder::Numbers(*field_of_numbers, label);
            return self.tensor(parent, field, scope, holder, PlaceName::Value(output)).map(Some);
        }
        if !has_messages {
            return Ok(None);
        }
        let owner =
            node.map_or_else(|| self.graph.scopes[scope].label.to_string(), |(at, _)| self.graph.node_label(at));
        let label = format!("{owner}.{}", label(name));
        let frame = self.enter(parent, field)?;
        let (mut seen, mut count, mut constant) = ([false; 32], 0_u64, None);
        for field in messages(file, body) {
            let (number, field) = field?;
            let is_list = matches!(number, attribute::TENSORS | attribute::SPARSE_TENSORS | attribute::GRAPHS);
            if !attribute::MESSAGES.contains(&number) {
                continue;
            }
            // protobuf would merge two messages into one.
            if !is_list && std::mem::replace(&mut seen[number as usize], true) {
                return Err(Error::new(format!("attribute '{label}' has two values")));
            }
            let own = if is_list { format!("{label}.{count}") } else { label.clone() };
            count += u64::from(is_list || number == attribute::GRAPH);
            match (number, output) {
                (attribute::TENSOR, Some((node, output))) => {
                    let holder = Holder::Constant(node);
                    constant = Some(self.tensor(frame, field, scope, holder, PlaceName::Value(output))?);
                }
                (attribute::SPARSE_TENSOR, Some((_, output))) => {
                    self.sparse(frame, field, scope, Some(PlaceName::Value(output)))?;
                }
                (attribute::TENSOR | attribute::TENSORS, _) => {
                    self.tensor(frame, field, scope, Holder::Attribute, PlaceName::Label(own.into()))?;
                }
                (attribute::SPARSE_TENSOR | attribute::SPARSE_TENSORS, _) => {
                    self.sparse(frame, field, scope, Some(PlaceName::Label(own.into())))?;
                }
                _ => _ = self.graph(frame, field, Some(scope), self.graph.scopes[scope].part, own)?,
            }
        }
        Ok(constant)
    }

    /// Adds the parts of a `SparseTensorProto`. A sparse initializer has the name of its values.
    fn sparse(&mut self, parent: usize, field: Field, scope: usize, name: Option<PlaceName<'a>>) -> Result<()> {
        let (file, body) = (self.graph.file, field.body.clone());
        let frame = self.enter(parent, field)?;
        let mut parts = [0..0, 0..0];
        for field in messages(file, body) {
            if let (part @ (1 | 2), field) = field? {
                parts[part as usize - 1] = field.body;
            }
        }
        let name = match name {
            Some(name) => name,
            None => PlaceName::Value(tensor_name(file, parts[0].clone())?),
        };
        for (body, suffix) in parts.into_iter().zip([".values", ".indices"]) {
            let field = Field { start: body.start, body };
            self.tensor(frame, field, scope, Holder::Sparse(suffix), name.clone())?;
        }
        Ok(())
    }

    /// Adds a tensor. Its role follows from its place, unless it may be a weight.
    fn tensor(
        &mut self,
        parent: usize,
        field: Field,
        scope: usize,
        holder: Holder,
        name: PlaceName<'a>,
    ) -> Result<usize> {
        let role = match (holder, self.graph.scopes[scope].part) {
            (Holder::Sparse(_), _) => Some(TensorRole::Sparse),
            (_, ModelPart::Function) => Some(TensorRole::Function),
            (_, ModelPart::Training) => Some(TensorRole::Trained),
            (Holder::Numbers(..), _) => Some(TensorRole::List),
            (Holder::Attribute, _) => Some(TensorRole::Attribute),
            (Holder::Initializer | Holder::Constant(_), ModelPart::Main) => None,
        };
        let frame = self.enter(parent, field)?;
        if self.graph.tensors.len() == MAX_TENSORS {
            return Err(Error::new(format!("more than {MAX_TENSORS} tensors")));
        }
        self.graph.tensors.push(Place { holder, scope, frame, name, role });
        Ok(self.graph.tensors.len() - 1)
    }
}

/// Returns the name in a `TensorProto`.
fn tensor_name(file: &[u8], body: Range<usize>) -> Result<&[u8]> {
    let mut name: &[u8] = b"";
    for field in messages(file, body) {
        let field = field.map_err(|error| error.in_tensor(&String::from_utf8_lossy(name)));
        if let (NAME, field) = field? {
            name = &file[field.body];
        }
    }
    Ok(name)
}

/// Returns the texts in a `StringStringEntryProto`.
fn texts(file: &[u8], body: Range<usize>) -> Result<[&[u8]; 2]> {
    let mut texts: [&[u8]; 2] = [b""; 2];
    for field in messages(file, body) {
        if let (number @ (1 | 2), field) = field? {
            texts[number as usize - 1] = &file[field.body];
        }
    }
    Ok(texts)
}

/// Reads an `OperatorSetIdProto`: the domain, and the range of the version and the version.
fn import<'a>(file: &'a [u8], body: &Range<usize>) -> Result<(&'a [u8], Range<usize>, u64)> {
    let (mut domain, mut version): (&[u8], _) = (b"", (body.end..body.end, 0));
    for field in MessageFields::new(file, body.clone()).with_ranges() {
        match field? {
            (_, 1, Value::Bytes(range)) => domain = &file[range],
            (range, 2, Value::Varint(number)) => version = (range, number),
            _ => {}
        }
    }
    Ok((domain, version.0, version.1))
}
