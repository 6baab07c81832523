//! Who uses which tensors of a model, and which of them are decoded.

use super::super::super::Input;
use super::frames::Frames;
use super::nodes::{CastValue, Dequantization, NamedValue, NodeInput, NodeKind, UseFinder, WeightUse};
use super::parts::{Holder, path};
use super::study::{Place, Study, TensorRole};
use super::walk::walk;
use crate::error::Result;
use std::collections::HashSet;

impl Study {
    /// Finds out who uses which tensors. An unreadable tensor has a place and is in no list, so that the places cannot be
    /// matched to the list: then no tensor is decoded.
    ///
    /// # Errors
    /// When it is not a model.
    pub(crate) fn find_uses(&mut self, input: &Input) -> Result<()> {
        let file: &[u8] = &input.files[0];
        let is_value = |place: &Place| place.role != Some(TensorRole::Sparse);
        let tensors = self.places.iter().enumerate().filter(|(_, place)| is_value(place));
        let tensors = tensors.map(|(at, place)| (at, (place.graph, place.name.clone())));
        let mut finder =
            UseFinder::new(file, tensors, &self.decoded, Frames::reopened(std::mem::take(&mut self.frames)));
        let found = walk(file, &mut finder);
        let (frames, mut uses) = finder.into_found();
        uses.of_tensors.resize(self.places.len(), Vec::new());
        (self.frames, self.uses) = (frames.all, uses);
        found?;
        if input.contents.unreadable.is_empty() {
            let all = 0..self.places.len();
            self.dequantizations = all.filter_map(|codes| self.dequantization(input, codes)).collect();
        }
        Ok(())
    }

    fn dequantization(&self, input: &Input, codes: usize) -> Option<Dequantization> {
        let tensors = &input.contents.tensors;
        let uses = &self.uses.of_tensors[codes];
        if uses.is_empty() || self.places[codes].role.is_some() || !self.is_constant(codes) || self.is_output(codes) {
            return None;
        }
        let mut found: Option<Dequantization> = None;
        for &(at, slot) in uses {
            let node = &self.uses.nodes[at];
            let NodeKind::Decodes(decoding) = node.kind else { return None };
            let constant = |slot: usize| match node.inputs.get(slot)?.1? {
                NamedValue::Tensor(tensor) => Some(tensor).filter(|tensor| self.is_constant(*tensor)),
                NamedValue::Decoded(_) => None,
            };
            let scale = constant(1)?;
            let zero_point = match node.inputs.get(2) {
                Some((name, _)) if !name.is_empty() => Some(constant(2)?),
                _ => None,
            };
            let [axis, block_size, output_type] = self.uses.decoding[decoding].attributes;
            let is_own_type = tensors[scale].elements.stored_dtype().onnx_number().map(i64::from) == Some(output_type);
            let is_known = block_size >= 0 && (output_type == 0 || is_own_type);
            let shape = &tensors[codes].shape;
            let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
            let axis = usize::try_from(axis).unwrap_or(usize::MAX);
            let is_one = tensors[scale].count == 1 && tensors[scale].shape.len() <= 1;
            let axis = (block_size > 0 || !is_one).then_some((axis, block_size as u64));
            let is_same = found
                .as_ref()
                .is_none_or(|known| (known.scale, known.zero_point, known.axis) == (scale, zero_point, axis));
            if slot != 0 || !is_known || !is_same {
                return None;
            }
            let known = found.get_or_insert_with(|| {
                let nodes = Vec::new();
                Dequantization { codes, scale, zero_point, axis, name: String::new(), nodes }
            });
            known.nodes.push(decoding);
        }
        let mut found = found?;
        // The output of a graph keeps its name, so it comes first, and there can be one only.
        let is_fixed = |at: &usize| self.uses.outputs.contains(&NamedValue::Decoded(*at));
        found.nodes.sort_by_key(|at| !is_fixed(at));
        if found.nodes.iter().skip(1).any(is_fixed) {
            return None;
        }
        let first = &self.uses.decoding[found.nodes[0]];
        let is_elsewhere = |at: &usize| self.uses.decoding[*at].graph != self.places[codes].graph;
        let name = if found.nodes.iter().any(is_elsewhere) {
            if is_fixed(&found.nodes[0]) {
                return None;
            }
            self.places[codes].name.clone()
        } else {
            first.output.clone()
        };
        found.name = String::from_utf8(input.files[0][name].to_vec()).ok()?;
        Some(found)
    }

    /// The values that Cast nodes make of tensors that no other node uses: the tensor, the graph and the name.
    pub(crate) fn cast_values(&self, input: &Input) -> Vec<(usize, usize, String)> {
        let is_only_cast = |tensor: usize| match self.uses.of_tensors[tensor][..] {
            [(node, _)] => self.uses.nodes[node].kind == NodeKind::Casts && !self.is_output(tensor),
            _ => false,
        };
        if !input.contents.unreadable.is_empty() {
            return Vec::new();
        }
        let file: &[u8] = &input.files[0];
        let casts = self.uses.casts.iter().filter(|cast| is_only_cast(cast.tensor));
        let name = |cast: &CastValue| String::from_utf8(file[cast.name.clone()].to_vec()).ok();
        casts.filter_map(|cast| Some((cast.tensor, cast.graph, name(cast)?))).collect()
    }

    /// The graph of the tensor of codes.
    pub(crate) fn graph_of(&self, decoded: &Dequantization) -> usize {
        self.places[decoded.codes].graph
    }

    /// The name of a value with the path to its graph.
    pub(crate) fn name_in_graph(&self, graph: usize, name: &str) -> String {
        match path(&self.header.graphs, graph) {
            Some(path) if !path.is_empty() => format!("{path}/{name}"),
            _ => name.to_owned(),
        }
    }

    /// Of some tensors that are decoded, the parts that other nodes use as well.
    pub(crate) fn parts_of_others(&self, decoded: &[&Dequantization]) -> HashSet<usize> {
        let nodes: HashSet<usize> = decoded.iter().flat_map(|found| &found.nodes).copied().collect();
        let is_gone = |&(at, _): &NodeInput| matches!(self.uses.nodes[at].kind, NodeKind::Decodes(decoding) if nodes.contains(&decoding));
        let parts = decoded.iter().flat_map(|found| [Some(found.scale), found.zero_point]).flatten();
        parts.filter(|part| self.is_output(*part) || !self.uses.of_tensors[*part].iter().all(is_gone)).collect()
    }

    /// How many nodes compute with codes, by operator.
    pub(crate) fn quantized_operators(&self) -> impl Iterator<Item = (&str, u64)> {
        self.uses.quantized.iter().map(|(operator, count)| (&**operator, *count))
    }

    /// How nodes use a tensor as their weight; `None` if others use it too, or differently.
    pub(crate) fn weight_use(&self, tensor: usize) -> Option<WeightUse> {
        if !self.is_constant(tensor) || self.is_output(tensor) {
            return None;
        }
        let mut found = None;
        for &(at, slot) in &self.uses.of_tensors[tensor] {
            let NodeKind::Multiplies(usage) = self.uses.nodes[at].kind else { return None };
            if slot != 1 || found.replace(usage).is_some_and(|known| known != usage) {
                return None;
            }
        }
        found
    }

    /// Whether a tensor is a constant that can be replaced.
    fn is_constant(&self, tensor: usize) -> bool {
        let place = &self.places[tensor];
        matches!(place.holder, Holder::Initializer | Holder::Constant)
            && place.input.is_none()
            && matches!(place.role, None | Some(TensorRole::Scale))
    }

    /// Whether a tensor is an output of a graph.
    pub(super) fn is_output(&self, tensor: usize) -> bool {
        self.uses.outputs.contains(&NamedValue::Tensor(tensor))
    }
}
