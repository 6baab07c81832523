//! The quantized weights of an ONNX model: its graph determines which tensors are codes, not their names.

use super::Model;
use crate::container::Input;
use crate::container::onnx::model::{CodesForm, Dequantization, ModelGraph};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{
    FoundWeight, GATHER, Group, LinearAxis, MATMUL_NBITS, MATMUL_NBITS_SCALED, ONNX, Parameters, Problem, Recognized,
    Role, SIGNED_GATHER,
};
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum bytes of parts that are held in memory, because the file stores them as numbers of a variable length.
const MOST: u64 = 64 << 20;

impl<'a> Model<'a> {
    /// Finds the weights that nodes decode, or compute with.
    pub(super) fn recognize_model(&mut self, input: &'a Input) -> Result<Recognized> {
        let mut found = Recognized::default();
        let graph = &*self.graph.insert(Arc::new(ModelGraph::of(input)?)).clone();
        if input.contents.unreadable.is_empty() {
            let names = (0..self.tensors.len()).map(|at| (at, graph.cast_names(at)));
            found.cast_names = names.filter(|(_, names)| !names.is_empty()).collect();
        }
        let (mut parts, mut left) = (HashSet::new(), MOST);
        for folded in &graph.dequantizations {
            let weight = self.folded_weight(folded, graph.decoded_name(folded), &mut left);
            let checked = weight.and_then(|weight| weight.grid(&self.tensors).map(|_| weight));
            match checked {
                Ok(weight) => {
                    parts.extend(weight.parts.iter().map(|(_, at)| *at));
                    found.weights.push(weight);
                }
                Err(error) => found.problems.push(Problem { tensors: vec![folded.codes], error }),
            }
        }
        found.left = graph.quantized_operators().into_iter().collect();
        found.nodes_that_stay = graph.nodes_that_stay();
        found.codes_that_stay = graph.undecoded.iter().map(|node| node.codes).collect();
        found.plain = (0..self.tensors.len()).filter(|at| !parts.contains(at)).collect();
        Ok(found)
    }

    /// Describes the nodes of a model that keep their codes.
    pub(crate) fn nodes_with_codes(&self) -> impl Iterator<Item = String> {
        self.found.nodes_that_stay.iter().cloned().chain(self.found.left.iter().map(|(operator, count)| match count {
            1 => format!("1 node of type {operator} keeps its codes"),
            count => format!("{count} nodes of type {operator} keep their codes"),
        }))
    }

    fn folded_weight(&self, folded: &Dequantization, name: String, left: &mut u64) -> Result<FoundWeight> {
        let linear = |axis, block_size| Parameters::linear(Some(LinearAxis { axis, block_size }));
        let (layout, mut parameters) = match folded.form {
            CodesForm::Linear(None) => (&ONNX, Parameters::linear(None)),
            CodesForm::Linear(Some((axis, block_size))) => (&ONNX, linear(axis, block_size)),
            CodesForm::Gather { axis, block_size, unsigned_bits } => {
                let layout = if unsigned_bits.is_some() { &GATHER } else { &SIGNED_GATHER };
                (layout, Parameters { bits: unsigned_bits, ..linear(axis, block_size) })
            }
            CodesForm::Product { shape, bits, block_size } => {
                let zero_point = folded.zero_point.and_then(|at| self.tensors[at].dtype);
                let is_packed = folded.group_index.is_none() && zero_point.is_none_or(|dtype| dtype == Dtype::Uint8);
                let (bits, group) = (Some(bits), Some(Group::Block([block_size, 1])));
                let parameters = Parameters { shape: Some(shape.to_vec()), bits, group, ..Parameters::default() };
                (if is_packed { &MATMUL_NBITS } else { &MATMUL_NBITS_SCALED }, parameters)
            }
        };
        let mut parts = vec![(Role::Codes, folded.codes), (Role::Scale, folded.scale)];
        parts.extend(folded.zero_point.map(|at| (Role::ZeroPoint, at)));
        parts.extend(folded.group_index.map(|at| (Role::GroupIndex, at)));
        for &(role, at) in &parts {
            let stored = self.stored(at);
            if stored.mapped().is_some() {
                continue;
            }
            let len = stored.elements.bytes(stored.tensor.count).filter(|len| *len <= *left);
            let Some(len) = len else {
                let error = Error::new(format!("its {} are too many for a typed field", role.describe()));
                return Err(error.in_tensor(&name).remedy("load the model with onnx.load and save it again"));
            };
            *left -= len;
            let mut bytes = vec![0; len as usize];
            stored.open()?.fill(&mut bytes).map_err(|error| stored.error(error))?;
            parameters.held.push((role, Arc::from(bytes)));
        }
        let shape = folded.form.shape(self.stored(folded.codes).tensor);
        Ok(FoundWeight { module: name.clone(), name, layout, parameters, shape, parts })
    }
}
