//! The tensors of a model, and their names.

use super::super::super::{Contents, Data, Elements, Tensor};
use super::super::external::{Externals, LinkRule};
use super::super::protobuf::{MessageFields, Value};
use super::super::{Message, typed};
use super::parts::{Context, Found, Frame, Graph, Holder, NameUse, Node, Visitor, attribute, prefix};
use super::walk::walk;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Maximum number of tensors, more than any model has; a file full of empty ones is refused before it takes memory.
const MAX_TENSORS: usize = 1 << 20;

/// Lists the tensors of a model. Refuses names that are missing or appear twice.
pub(super) fn list(file: &MappedFile) -> Result<Contents> {
    let externals = Externals::new(file.path(), LinkRule::Beside);
    let (places, definitions) = (Vec::new(), HashMap::new());
    let mut list = List { file, externals, places, definitions, contents: Contents::default() };
    let header = walk(file, &mut list)?;
    let List { externals, places, definitions, mut contents, .. } = list;
    name_all(&mut contents.tensors, &places, &definitions, &header.graphs)?;
    contents.beside = externals.into_files();
    Ok(contents)
}

struct List<'a> {
    file: &'a MappedFile,
    externals: Externals<'a>,
    /// The graph of each tensor; true if its name is the name of a value.
    places: Vec<(usize, bool)>,
    /// The graph that defines a value as an input or the output of a node; `None` if several graphs do.
    definitions: HashMap<&'a [u8], Option<usize>>,
    contents: Contents,
}

impl Visitor for List<'_> {
    fn node(&mut self, _: &Context, graph: usize, node: &Node) {
        for output in &node.outputs {
            self.define(graph, output.clone());
        }
    }

    fn name(&mut self, _: &Context, graph: usize, usage: NameUse, name: Range<usize>) {
        if usage == NameUse::Input {
            self.define(graph, name);
        }
    }

    fn tensor(&mut self, _: &Context, found: Found) -> Result<()> {
        let output = found.output.clone().map(|name| self.text(name)).transpose()?;
        let name = output.or_else(|| found.label.clone());
        match found.holder {
            Holder::ConstantNumbers(field, label) => {
                let tensor = numbers(self.file, &found.message, (field, label));
                self.add(&found, tensor, name, "");
            }
            Holder::SparseInitializer | Holder::SparseAttribute => {
                let mut parts = [None, None];
                for field in MessageFields::new(self.file, found.message.body.clone()) {
                    if let (part @ (1 | 2), Value::Bytes(body)) = field? {
                        parts[part as usize - 1] = Some(body);
                    }
                }
                let [values, indices] = parts;
                let values = self.message(values.unwrap_or_default(), name.as_deref())?;
                let name = match name.unwrap_or_else(|| values.name.clone()) {
                    name if name.is_empty() => return Err(Error::new("a sparse initializer has no name")),
                    name => Some(name),
                };
                let values = values.into_tensor(self.file, &mut self.externals).map(|(tensor, _)| tensor);
                self.add(&found, values, name.clone(), ".values");
                let indices = Message::read(self.file, indices.unwrap_or_default())
                    .and_then(|message| message.into_tensor(self.file, &mut self.externals));
                self.add(&found, indices.map(|(tensor, _)| tensor), name, ".indices");
            }
            Holder::Initializer | Holder::Constant | Holder::Attribute => {
                let message = self.message(found.message.body.clone(), name.as_deref())?;
                let name = match name.unwrap_or_else(|| message.name.clone()) {
                    name if name.is_empty() => return Err(Error::new("an initializer has no name")),
                    name => Some(name),
                };
                let tensor = message.into_tensor(self.file, &mut self.externals).map(|(tensor, _)| tensor);
                self.add(&found, tensor, name, "");
            }
        }
        if self.places.len() > MAX_TENSORS {
            return Err(Error::new(format!("more than {MAX_TENSORS} tensors")));
        }
        Ok(())
    }
}

impl List<'_> {
    fn define(&mut self, graph: usize, name: Range<usize>) {
        let known = self.definitions.entry(&self.file[name]).or_insert(Some(graph));
        *known = known.filter(|known| *known == graph);
    }

    /// Reads the message of a tensor. An error names the tensor, by its name as a value if it has one.
    fn message(&self, body: Range<usize>, name: Option<&str>) -> Result<Message> {
        Message::read(self.file, body.clone())
            .map_err(|error| error.in_tensor(name.unwrap_or(&Message::name_in(self.file, body))))
    }

    fn text(&self, name: Range<usize>) -> Result<String> {
        super::super::text(self.file, name, "the name of a value")
    }

    /// Adds a tensor, or the error if it cannot be read.
    fn add(&mut self, found: &Found, tensor: Result<Tensor>, name: Option<String>, suffix: &str) {
        let mut name = name.unwrap_or_default();
        name.push_str(suffix);
        match tensor {
            Ok(tensor) => {
                self.contents.tensors.push(Tensor { name, ..tensor });
                self.places.push((found.graph, found.label.is_none()));
            }
            Err(error) => self.contents.unreadable.push(error.in_tensor(&name)),
        }
    }
}

fn numbers(file: &MappedFile, message: &Frame, (field, label): (u64, &'static str)) -> Result<Tensor> {
    let dtype = if matches!(field, attribute::FLOAT | attribute::FLOATS) { Dtype::Float32 } else { Dtype::Int64 };
    let is_list = matches!(field, attribute::FLOATS | attribute::INTS);
    let (count, elements, data): (u64, Elements, Data) =
        typed::numbers((file, message.body.clone()), (field, label), dtype)?;
    if !is_list && count != 1 {
        return Err(Error::new(format!("its {label} has {count} values")));
    }
    let shape = if is_list { vec![count] } else { Vec::new() };
    let stored = format!("{} {label}", dtype.onnx_name().unwrap_or_default()).into();
    Ok(Tensor { name: String::new(), shape, count, elements, fortran_order: false, data, stored })
}

/// Makes all names unique: if several graphs have a value of one name, the path to the graph precedes the name. A value
/// counts regardless of its origin, so that a tensor keeps its path when another one is stored under a new name.
fn name_all(
    tensors: &mut [Tensor],
    places: &[(usize, bool)],
    definitions: &HashMap<&[u8], Option<usize>>,
    graphs: &[Graph],
) -> Result<()> {
    let mut times: HashMap<&str, u64> = HashMap::new();
    let mut values = HashSet::new();
    for (tensor, &(graph, is_value)) in tensors.iter().zip(places) {
        *times.entry(&tensor.name).or_default() += 1;
        if is_value && !values.insert((graph, &*tensor.name)) {
            return Err(Error::new("two tensors of a graph have this name").in_tensor(&tensor.name));
        }
    }
    let is_only = |name: &str, graph| definitions.get(name.as_bytes()).is_none_or(|known| *known == Some(graph));
    let keeps = |tensor: &Tensor, &(graph, is_value): &(usize, bool)| {
        let is_unique = times[&*tensor.name] == 1 && (!is_value || is_only(&tensor.name, graph));
        is_unique || is_value && graphs[graph].is_main()
    };
    let keeps: Vec<bool> = tensors.iter().zip(places).map(|(tensor, place)| keeps(tensor, place)).collect();
    let kept = tensors.iter().zip(&keeps).filter(|(_, keeps)| **keeps);
    let mut used: HashSet<String> = kept.map(|(tensor, _)| tensor.name.clone()).collect();
    let mut numbers: HashMap<String, u64> = HashMap::new();
    for ((tensor, &(graph, _)), _) in tensors.iter_mut().zip(places).zip(keeps).filter(|(_, keeps)| !keeps) {
        let wanted = prefix(graphs, graph) + &tensor.name;
        let mut name = wanted.clone();
        while !used.insert(name.clone()) {
            let number = numbers.entry(wanted.clone()).or_insert(1);
            *number += 1;
            name = format!("{wanted}_{number}");
        }
        tensor.name = name;
    }
    Ok(())
}
