//! The tensors and the values that the messages of a model define.

use super::super::protobuf::{MessageFields, Value};
use super::super::{MAX_NAME, TensorMessage};
use super::fields::{attribute, function, model};
use super::graph::{Definition, Holder, ModelGraph, Place, PlaceName, TensorRole, label};
use super::messages::{FILE, Message, MessageKind, is_default_domain, messages, numbers_attribute, stored_number};
use super::opsets::is_fnuz;
use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;

impl<'a> ModelGraph<'a> {
    /// Walks over a model.
    pub(super) fn read(file: &'a [u8]) -> Result<Self> {
        let messages = messages(file)?;
        let mut graphs =
            messages.iter().enumerate().filter(|(_, one)| one.kind == MessageKind::Graph && one.parent == FILE);
        let main = match (graphs.next(), graphs.next()) {
            (Some((main, _)), None) => main,
            (None, _) => return Err(Error::new("is not an ONNX model: it has no graph")),
            (_, Some(_)) => {
                return Err(Error::new("the model has two graphs").remedy("load it with onnx.load and save it again"));
            }
        };
        let mut graph = Self { file, messages, main, ..Self::default() };
        for field in graph.fields(FILE).with_ranges() {
            if let (range, model::IR_VERSION, Value::Varint(version)) = field? {
                graph.ir_version = Some((range, version));
            }
        }
        let imports = graph.imports(MessageKind::Model).filter(|import| is_default_domain(import.domain));
        graph.opset = imports.last().map(|import| import.version);
        let mut reader =
            ValueReader { graph, taken: HashSet::new(), constants: HashMap::new(), labels: HashMap::new() };
        for message in 0..reader.graph.messages.len() {
            reader.add(message)?;
        }
        let ValueReader { mut graph, taken, .. } = reader;
        graph.values.sort_unstable();
        graph.fresh = (0..=u32::MAX).find(|number| !taken.contains(number)).unwrap_or_default();
        Ok(graph)
    }
}

/// A graph in the making.
struct ValueReader<'a> {
    graph: ModelGraph<'a>,
    /// Numbers at the end of names that have the form of [`ModelGraph::stored_name`].
    taken: HashSet<u32>,
    /// The outputs of Constant nodes. They are kept, as labels are, because a node can have many attributes.
    constants: HashMap<usize, &'a [u8]>,
    /// The labels of nodes and attributes.
    labels: HashMap<usize, Rc<str>>,
}

impl<'a> ValueReader<'a> {
    /// Adds the tensors and values that a message defines.
    fn add(&mut self, at: usize) -> Result<()> {
        let (file, body) = (self.graph.file, self.graph.body(at));
        let Message { kind, field, parent, number, .. } = self.graph.messages[at];
        let outer = self.graph.messages[parent].kind;
        if outer == MessageKind::Attribute && number > 0 && self.graph.messages[at].is_single_value() {
            return Err(Error::new(format!("attribute '{}' has two values", self.label(parent))));
        }
        match kind {
            MessageKind::Graph | MessageKind::Function => {
                let label = self.label(at);
                self.graph.scopes.push((at, (*label).into()));
            }
            MessageKind::Node => {
                let fields = self.graph.node(at);
                fields.inputs.iter().chain(&fields.outputs).chain([&fields.name]).for_each(|name| self.take(name));
                fields.outputs.iter().try_for_each(|output| self.define(output, true, at))?;
                if fields.operator() == b"Constant" && !fields.outputs.is_empty() {
                    self.constants.insert(at, fields.output());
                }
            }
            MessageKind::Attribute => {
                if let (Some((field, label)), Some(output)) =
                    (numbers_attribute(file, body)?, self.constants.get(&parent))
                {
                    self.add_tensor(at, Holder::Numbers(field, label), PlaceName::Value(output));
                }
            }
            MessageKind::Tensor if outer == MessageKind::Graph => {
                let name = TensorMessage::name_in(file, body);
                self.take(name);
                self.define(name, true, at)?;
                self.add_tensor(at, Holder::Initializer, PlaceName::Value(name));
            }
            MessageKind::Tensor if outer == MessageKind::SparseTensor => {
                let [values] = self.graph.fields(parent).last([1])?;
                let name = match self.graph.messages[self.graph.messages[parent].parent].kind {
                    MessageKind::Graph => PlaceName::Value(TensorMessage::name_in(file, values)),
                    _ => self.name_in_attribute(parent),
                };
                self.add_tensor(at, Holder::Sparse(if field == 1 { ".values" } else { ".indices" }), name);
            }
            MessageKind::Tensor => {
                let name = self.name_in_attribute(at);
                let is_constant = matches!(name, PlaceName::Value(_));
                self.add_tensor(at, if is_constant { Holder::Constant } else { Holder::Attribute }, name);
            }
            MessageKind::Input | MessageKind::Output | MessageKind::Value => {
                let [name, of_type] = self.graph.fields(at).last([1, 2])?;
                let name = &file[name];
                self.take(name);
                self.graph.has_fnuz |= element_type(file, of_type).is_some_and(is_fnuz);
                match kind {
                    MessageKind::Input => self.define(name, false, at)?,
                    MessageKind::Output => self.graph.outputs.push((parent, name)),
                    _ => {}
                }
            }
            MessageKind::Annotation => {
                for field in self.graph.fields(at) {
                    if let (2, Value::Bytes(pair)) = field? {
                        let [name] = MessageFields::new(file, pair).last([2])?;
                        self.give_role(parent, &file[name], TensorRole::Scale);
                    }
                }
            }
            MessageKind::Binding => {
                let [name] = self.graph.fields(at).last([1])?;
                self.give_role(self.graph.main, &file[name], TensorRole::Trained);
            }
            MessageKind::Model | MessageKind::OperatorSet | MessageKind::Training | MessageKind::SparseTensor => {}
        }
        Ok(())
    }

    fn take(&mut self, name: &[u8]) {
        self.taken.extend(taken_number(name));
    }

    fn define(&mut self, name: &'a [u8], is_made: bool, message: usize) -> Result<()> {
        if name.len() > MAX_NAME {
            let len = name.len();
            return Err(Error::new(format!("the name of a value has {len} bytes; at most {MAX_NAME} are read")));
        }
        if let Some(scope) = self.graph.scope_around(message).filter(|_| !name.is_empty()) {
            self.graph.values.push(Definition { name, scope, is_made, message });
        }
        Ok(())
    }

    fn give_role(&mut self, scope: usize, name: &'a [u8], role: TensorRole) {
        self.take(name);
        self.graph.roles.push((scope, name, role));
    }

    /// Adds a tensor. Its role follows from its place, unless it may be a weight.
    fn add_tensor(&mut self, message: usize, holder: Holder, name: PlaceName<'a>) {
        let role = match (holder, self.graph.part(message)) {
            (Holder::Sparse(_), _) => Some(TensorRole::Sparse),
            (_, MessageKind::Function) => Some(TensorRole::Function),
            (_, MessageKind::Training) => Some(TensorRole::Trained),
            (Holder::Numbers(..), _) => Some(TensorRole::List),
            (Holder::Attribute, _) => Some(TensorRole::Attribute),
            (Holder::Initializer | Holder::Constant, _) => None,
        };
        let scope = self.graph.scope_around(message).unwrap_or(self.graph.main);
        self.graph.tensors.push(Place { holder, message, scope, name, role });
    }

    /// Returns the name of a tensor in an attribute: the value of a Constant node has the name of its output.
    fn name_in_attribute(&mut self, tensor: usize) -> PlaceName<'a> {
        let message = &self.graph.messages[tensor];
        let output = self.constants.get(&self.graph.messages[message.parent].parent);
        match output.filter(|_| message.is_single_value()) {
            Some(output) => PlaceName::Value(output),
            None => PlaceName::Label((*self.label(tensor)).into()),
        }
    }

    /// Returns the label of a message in names and paths; empty for the main graph.
    fn label(&mut self, at: usize) -> Rc<str> {
        if let Some(label) = self.labels.get(&at) {
            return Rc::clone(label);
        }
        let Message { kind, field, parent, number, .. } = self.graph.messages[at];
        let label: Rc<str> = match (kind, self.graph.messages[parent].kind) {
            (MessageKind::Node, _) => self.graph.node_label(at).into(),
            (MessageKind::Function, _) => {
                let [name, domain] = self.graph.bytes(at, [function::NAME, function::DOMAIN]).map(label);
                match (&*domain, &*name) {
                    (_, "") => format!("function_{number}").into(),
                    ("", name) => name.into(),
                    (domain, name) => format!("{domain}::{name}").into(),
                }
            }
            (MessageKind::Attribute, _) => {
                let [name] = self.graph.bytes(at, [attribute::NAME]).map(label);
                format!("{}.{name}", self.label(parent)).into()
            }
            (_, MessageKind::Attribute) if self.graph.messages[at].is_single_value() => self.label(parent),
            (_, MessageKind::Attribute) => format!("{}.{number}", self.label(parent)).into(),
            (_, MessageKind::Training) => {
                let graph = if field == 1 { "initialization" } else { "algorithm" };
                format!("training_info_{}.{graph}", self.graph.messages[parent].number).into()
            }
            _ => "".into(),
        };
        if matches!(kind, MessageKind::Node | MessageKind::Attribute) {
            self.labels.insert(at, Rc::clone(&label));
        }
        label
    }
}

/// Returns the number of the dtype in a `TypeProto`: `elem_type` is field 1 of its field 1, `tensor_type`.
fn element_type(file: &[u8], of_type: Range<usize>) -> Option<i64> {
    let [tensor] = MessageFields::new(file, of_type).last([1]).ok()?;
    let fields = MessageFields::new(file, tensor).map_while(Result::ok);
    fields.filter_map(|field| if let (1, Value::Varint(number)) = field { Some(number as i64) } else { None }).last()
}

/// Returns the number of a name like `w_float16_3`, or `w_int8_3_scale`.
fn taken_number(name: &[u8]) -> Option<u32> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let number = &name[..name.len() - digits];
    let ends = [number.strip_suffix(b"_copy_"), name.strip_suffix(b"_scale"), name.strip_suffix(b"_zero_point")];
    stored_number(ends.into_iter().flatten().next().unwrap_or(name))
}
