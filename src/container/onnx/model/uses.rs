//! The uses of the tensors of a model, and the tensors that are decoded.

use super::super::super::Input;
use super::decoding::copy_of;
use super::frames::Frames;
use super::nodes::{
    CastValue, DecodingNode, Dequantization, NamedValue, NodeInput, NodeKind, Undecoded, UseFinder, WeightUse,
};
use super::parts::{Holder, prefix};
use super::study::{Place, Study, TensorRole};
use super::walk::walk;
use crate::error::Result;
use std::collections::HashSet;
use std::ops::Range;

impl Study {
    /// Finds the uses of all tensors. An unreadable tensor has a place but is not in the list of tensors, so that the
    /// places cannot be matched to the list: in this case, no tensor is decoded.
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
        if !input.contents.unreadable.is_empty() {
            return Ok(());
        }
        for codes in 0..self.places.len() {
            match self.decoded_values(input, codes) {
                Ok(found) => self.dequantizations.extend(found),
                Err(reasons) => self.undecoded.extend(reasons),
            }
        }
        Ok(())
    }

    /// Returns the values that `DequantizeLinear` nodes compute from a tensor of codes. If one of the nodes stays,
    /// returns all of them with the reasons instead.
    fn decoded_values(&self, input: &Input, codes: usize) -> Result<Vec<Dequantization>, Vec<Undecoded>> {
        let uses = &self.uses.of_tensors[codes];
        let decoding = |&(at, slot): &NodeInput| match self.uses.nodes[at].kind {
            NodeKind::Decodes(decoding) if slot == 0 => Some(decoding),
            _ => None,
        };
        let nodes: Vec<usize> = uses.iter().filter_map(decoding).collect();
        let grouped = self.check_codes(codes, nodes.len() == uses.len()).map_err(|reason| (None, reason));
        let grouped = grouped.and_then(|()| self.group(input, codes, &nodes).map_err(|(at, why)| (Some(at), why)));
        grouped.map_err(|(first, reason)| {
            let stays = |at: usize| {
                let reason =
                    if first.is_none_or(|first| first == at) { reason } else { "a node with the same codes stays" };
                Undecoded { codes, node: at, reason }
            };
            nodes.iter().map(|at| stays(*at)).collect()
        })
    }

    /// Checks that values can replace a tensor of codes; otherwise returns the reason.
    fn check_codes(&self, codes: usize, is_decoded_only: bool) -> Result<(), &'static str> {
        let place = &self.places[codes];
        match place.role {
            _ if place.input.is_some() => Err("its codes are an input of the graph"),
            Some(TensorRole::GraphInput) => Err("its codes are an input of the graph"),
            Some(TensorRole::Shadowing) => Err("a value of an outer graph has the name of its codes"),
            _ if self.is_output(codes) => Err("its codes are an output of a graph"),
            None if is_decoded_only && self.is_constant(codes) => Ok(()),
            _ => Err("its codes have other uses"),
        }
    }

    /// Returns the values of a tensor of codes, one for each combination of scales, or the first node that cannot be
    /// computed.
    fn group(
        &self,
        input: &Input,
        codes: usize,
        nodes: &[usize],
    ) -> Result<Vec<Dequantization>, (usize, &'static str)> {
        let mut found: Vec<Dequantization> = Vec::new();
        for &at in nodes {
            let one = self.dequantization(input, codes, at).map_err(|reason| (at, reason))?;
            let parts = |one: &Dequantization| (one.scale, one.zero_point, one.axis);
            match found.iter_mut().find(|known| parts(known) == parts(&one)) {
                Some(known) => known.nodes.extend(one.nodes),
                None => found.push(one),
            }
        }
        // One of the values can have the name of the codes.
        let mut is_name_free = true;
        for (number, one) in found.iter_mut().enumerate() {
            // The output of a graph keeps its name, so it comes first, and there can be only one.
            let is_fixed = |at: &usize| self.uses.outputs.contains(&NamedValue::Decoded(*at));
            one.nodes.sort_by_key(|at| !is_fixed(at));
            if let Some(second) = one.nodes.iter().skip(1).find(|at| is_fixed(at)) {
                return Err((*second, "another node makes the same output of a graph"));
            }
            let first = one.nodes[0];
            let place = &self.places[codes];
            let text = |name: &Range<usize>| {
                let name = std::str::from_utf8(&input.files[0][name.clone()]);
                name.map(str::to_owned).map_err(|_| (first, "a name is not UTF-8"))
            };
            one.name = if one.nodes.iter().all(|at| self.uses.decoding[*at].graph == place.graph) {
                text(&self.uses.decoding[first].output)?
            } else if is_fixed(&first) {
                return Err((first, "its codes are in an outer graph, and its output is one of the graph"));
            } else if std::mem::take(&mut is_name_free) {
                text(&place.name)?
            } else {
                let scales = input.contents.tensors[one.scale].elements.stored_dtype();
                copy_of(&self.stored_name(&text(&place.name)?, scales), number + 1)
            };
        }
        Ok(found)
    }

    /// Returns the value that a node computes from a tensor of codes, or the reason why it cannot be computed.
    fn dequantization(&self, input: &Input, codes: usize, decoding: usize) -> Result<Dequantization, &'static str> {
        let tensors = &input.contents.tensors;
        let DecodingNode { node, attributes: [axis, block_size, output_type], .. } = self.uses.decoding[decoding];
        let inputs = node.map_or(&[][..], |node| &self.uses.nodes[node].inputs);
        let constant = |slot: usize| match inputs.get(slot)?.1? {
            NamedValue::Tensor(tensor) => Some(tensor).filter(|tensor| self.is_constant(*tensor)),
            NamedValue::Decoded(_) => None,
        };
        let scale = constant(1).ok_or("its scale is not a constant")?;
        let zero_point = match inputs.get(2) {
            Some((name, _)) if !name.is_empty() => Some(constant(2).ok_or("its zero point is not a constant")?),
            _ => None,
        };
        if output_type != 0 && tensors[scale].elements.stored_dtype().onnx_number().map(i64::from) != Some(output_type)
        {
            return Err("its output_dtype is not the type of its scale");
        }
        let block_size = u64::try_from(block_size).map_err(|_| "its block_size is negative")?;
        let axis = if axis < 0 { axis + tensors[codes].shape.len() as i64 } else { axis };
        let axis = usize::try_from(axis).unwrap_or(usize::MAX);
        let is_one = tensors[scale].count == 1 && tensors[scale].shape.len() <= 1;
        let axis = (block_size > 0 || !is_one).then_some((axis, block_size));
        Ok(Dequantization { codes, scale, zero_point, axis, name: String::new(), nodes: vec![decoding] })
    }

    /// Returns the reasons why nodes stay although their codes are stored, each with the number of nodes and the label
    /// of one of them.
    pub(crate) fn nodes_that_stay(&self) -> Vec<(&'static str, u64, &str)> {
        let mut found: Vec<(&'static str, u64, &str)> = Vec::new();
        for Undecoded { node, reason, .. } in &self.undecoded {
            match found.iter_mut().find(|(known, ..)| known == reason) {
                Some((_, count, _)) => *count += 1,
                None => found.push((reason, 1, &self.uses.decoding[*node].label)),
            }
        }
        found
    }

    /// Returns the values that Cast nodes compute from tensors that no other node uses: the tensor, the graph and the
    /// name.
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

    /// Returns the graph of the tensor of codes.
    pub(crate) fn graph_of(&self, decoded: &Dequantization) -> usize {
        self.places[decoded.codes].graph
    }

    /// Returns the name of a value, with the path to its graph if other graphs have a value of this name.
    pub(crate) fn unique_name(&self, graph: usize, name: &str) -> String {
        let path =
            if self.ambiguous.contains(name.as_bytes()) { prefix(&self.header.graphs, graph) } else { String::new() };
        path + name
    }

    /// Returns the scales and zero points of decoded tensors that other nodes use too.
    pub(crate) fn parts_of_others(&self, decoded: &[&Dequantization]) -> HashSet<usize> {
        let nodes: HashSet<usize> = decoded.iter().flat_map(|found| &found.nodes).copied().collect();
        let is_gone = |&(at, _): &NodeInput| matches!(self.uses.nodes[at].kind, NodeKind::Decodes(decoding) if nodes.contains(&decoding));
        let parts = decoded.iter().flat_map(|found| [Some(found.scale), found.zero_point]).flatten();
        parts.filter(|part| self.is_output(*part) || !self.uses.of_tensors[*part].iter().all(is_gone)).collect()
    }

    /// Returns the number of nodes that compute with codes, by operator.
    pub(crate) fn quantized_operators(&self) -> impl Iterator<Item = (&str, u64)> {
        self.uses.quantized.iter().map(|(operator, count)| (&**operator, *count))
    }

    /// Returns the use of a tensor as the weight of nodes; `None` if other nodes use it too, or if the uses differ.
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

    fn is_constant(&self, tensor: usize) -> bool {
        let place = &self.places[tensor];
        matches!(place.holder, Holder::Initializer | Holder::Constant)
            && place.input.is_none()
            && matches!(place.role, None | Some(TensorRole::Scale))
    }

    pub(super) fn is_output(&self, tensor: usize) -> bool {
        self.uses.outputs.contains(&NamedValue::Tensor(tensor))
    }
}
