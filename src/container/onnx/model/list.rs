//! The tensors of a model, and their names.

use super::super::super::{Contents, Tensor};
use super::super::external::{Externals, LinkRule};
use super::super::{MAX_NAME, TensorMessage, TextSum, text, typed};
use super::fields::attribute;
use super::graph::{Holder, ModelGraph, Place, PlaceName};
use super::messages::MessageKind;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Lists the tensors of a model. Refuses names that are missing or appear twice.
pub(super) fn list(file: &MappedFile, graph: &ModelGraph) -> Result<Contents> {
    let mut externals = Externals::new(file.path(), LinkRule::Beside);
    let (mut contents, mut places) = (Contents::default(), Vec::new());
    let mut texts = TextSum::default();
    for place in &graph.tensors {
        let body = graph.body(place.message);
        let name = match &place.name {
            PlaceName::Value(name) => text(name, "the name of a value", MAX_NAME)?,
            PlaceName::Label(label) => label.to_string(),
        };
        texts.add(name.len())?;
        let (suffix, kind) = match place.holder {
            Holder::Sparse(suffix) => (suffix, "a sparse initializer"),
            _ => ("", "an initializer"),
        };
        if name.is_empty() {
            return Err(Error::new(format!("{kind} has no name")));
        }
        let tensor = match place.holder {
            Holder::Numbers(field, attribute) => numbers(file, body, (field, attribute)),
            _ => TensorMessage::read(file, body)
                .map_err(|error| error.in_tensor(&name))?
                .into_tensor(file, &mut externals)
                .map(|(tensor, _)| tensor),
        };
        let name = name + suffix;
        match tensor {
            Ok(tensor) => {
                contents.tensors.push(Tensor { name: name.into(), ..tensor });
                places.push(place);
            }
            Err(error) => contents.unreadable.push(error.in_tensor(&name)),
        }
    }
    for (at, _) in graph.messages.iter().enumerate().filter(|(_, message)| message.kind == MessageKind::SparseTensor) {
        if graph.messages.iter().skip(at + 1).take(2).filter(|part| part.parent == at).count() < 2 {
            contents.unreadable.push(Error::new("a sparse tensor lacks its values or its indices"));
        }
    }
    name_all(&mut contents.tensors, &places, graph)?;
    contents.beside = externals.into_files();
    Ok(contents)
}

/// Reads the numbers in an attribute of a Constant node.
fn numbers(file: &MappedFile, body: Range<usize>, (field, label): (u64, &'static str)) -> Result<Tensor> {
    let dtype = if matches!(field, attribute::FLOAT | attribute::FLOATS) { Dtype::Float32 } else { Dtype::Int64 };
    let is_list = matches!(field, attribute::FLOATS | attribute::INTS);
    let (count, elements, data) = typed::numbers((file, body), (field, label), dtype)?;
    if !is_list && count != 1 {
        return Err(Error::new(format!("its {label} has {count} values")));
    }
    let shape = if is_list { [count].into() } else { Arc::default() };
    let stored = format!("{} {label}", dtype.onnx_name().unwrap_or_default()).into();
    Ok(Tensor { name: Box::default(), shape, count, elements, fortran_order: false, data, stored })
}

/// Makes all names unique: if several scopes have a value of one name, the path to the scope precedes the name. A value
/// counts regardless of its origin, so that a tensor keeps its path when another one is stored under a new name.
fn name_all(tensors: &mut [Tensor], places: &[&Place], graph: &ModelGraph) -> Result<()> {
    let mut times: HashMap<&str, u64> = HashMap::new();
    let mut values = HashSet::new();
    let is_value = |place: &Place| matches!(place.name, PlaceName::Value(_));
    for (tensor, place) in tensors.iter().zip(places) {
        *times.entry(&tensor.name).or_default() += 1;
        if is_value(place) && !values.insert((place.scope, &*tensor.name)) {
            return Err(Error::new("two tensors of a graph have this name").in_tensor(&tensor.name));
        }
    }
    let keeps = |(tensor, place): (&Tensor, &&Place)| {
        let is_only = || !is_value(place) || graph.is_only_in(place.scope, tensor.name.as_bytes());
        let is_unique = times[&*tensor.name] == 1 && is_only();
        is_unique || is_value(place) && place.scope == graph.main
    };
    let keeps: Vec<bool> = tensors.iter().zip(places).map(keeps).collect();
    let kept = tensors.iter().zip(&keeps).filter(|(_, keeps)| **keeps);
    let mut used: HashSet<String> = kept.map(|(tensor, _)| tensor.name.to_string()).collect();
    let mut numbers: HashMap<String, u64> = HashMap::new();
    for ((tensor, place), _) in tensors.iter_mut().zip(places).zip(keeps).filter(|(_, keeps)| !keeps) {
        let wanted = graph.prefix(place.scope) + &tensor.name;
        let mut name = wanted.clone();
        while !used.insert(name.clone()) {
            let number = numbers.entry(wanted.clone()).or_insert(1);
            *number += 1;
            name = format!("{wanted}_{number}");
        }
        tensor.name = name.into();
    }
    Ok(())
}
