//! Finds the layout of one weight on which its parts, its config and its description agree.

use super::block::Claim;
use super::claims::Claims;
use super::comfy::Layers;
use super::descriptions;
use super::found::{CheckpointInfo, FoundWeight, StoredTensor};
use super::modules::Listed;
use super::names::{Pair, decoded};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::decode::geometry::DecodeGeometry;
use crate::quant::{Combination, Group, Layout, Names, Owner, Packing, Parameters, Role, ScaleOrder};
use crate::text::shorten;
use std::collections::HashMap;

/// Data for finding all weights of a checkpoint.
pub(super) struct Finder<'a> {
    pub(super) source: &'a CheckpointInfo<'a>,
    pub(super) places: HashMap<&'a str, usize>,
    pub(super) claims: Claims,
    pub(super) layers: Layers,
}

/// A possible layout of a weight, and its source.
#[derive(Clone, Copy)]
struct LayoutCandidate<'a> {
    layout: &'static Layout,
    names: Names,
    claim: Option<&'a Claim>,
}

/// The remedy if the tensors alone do not show how a weight is stored.
const NO_CONFIG: &str = "put the config.json of the checkpoint beside it, which says how the weights are quantized";

impl Finder<'_> {
    fn show(&self, index: usize) -> String {
        shorten(self.source.tensors[index].name)
    }

    fn dtype(&self, index: usize) -> Option<Dtype> {
        self.source.tensors[index].dtype
    }

    /// Returns the existing parts of a weight with these names.
    pub(super) fn parts(&self, stem: &str, names: Names) -> Vec<(Role, usize)> {
        let place = |(role, suffix): &(Role, &str)| Some((*role, *self.places.get(&*format!("{stem}{suffix}"))?));
        names.iter().filter_map(place).collect()
    }

    pub(super) fn weigh(&self, codes: usize, pair: &Pair) -> Result<FoundWeight> {
        let (name, module) = decoded(pair.stem, pair.family.codes);
        let in_codes = |error: Error| error.in_tensor(self.source.tensors[codes].name);
        let found = self.candidate(codes, pair, &module).and_then(|(candidate, claim)| {
            let mut parts = self.parts(pair.stem, candidate.names);
            // Activation scales may have an unknown dtype.
            parts.retain(|(role, index)| *role != Role::Activation || self.dtype(*index).is_some());
            let parameters = self.parameters(&candidate, claim.as_ref(), &parts, pair.stem)?;
            let (shape, name) = (self.check(&candidate, claim.as_ref(), &parameters, &parts)?, name);
            Ok(FoundWeight { name, module, layout: candidate.layout, parameters, shape, parts })
        });
        found.map_err(in_codes)
    }

    /// Finds the layout on which config, description and tensors agree.
    fn candidate<'b>(
        &'b self,
        codes: usize,
        pair: &Pair,
        module: &str,
    ) -> Result<(LayoutCandidate<'b>, Option<Claim>)> {
        let said = self.claims.on(module);
        let ignored = match said.ignored {
            Some(Listed::Firmly(entry)) => Some(("the config", entry)),
            _ => self.claims.also_ignored(module),
        };
        if let Some((whose, entry)) = ignored {
            let scale = self.show(pair.scale);
            let message =
                format!("{whose} says with '{}' that it is not quantized, and '{scale}' that it is", shorten(&entry));
            return Err(Error::new(message));
        }
        let described = self.layers.on(self.source, pair.stem)?;
        if let (Some(claim), Some(method)) = (&described, &self.claims.method) {
            return Err(Error::new(format!("{}, and the config quant_method '{}'", claim.said, shorten(method))));
        }
        let claims: Vec<&Claim> = said.claims;
        let told: Option<String> = match (&described, claims.first()) {
            (Some(claim), _) => Some(claim.said.clone()),
            (None, Some(claim)) => Some(claim.said.clone()),
            (None, None) if self.claims.method.is_some() => Some("the config does not name its module".to_owned()),
            (None, None) => None,
        };
        let rows = pair.family.rows.iter();
        let candidates: Vec<LayoutCandidate> = if told.is_some() {
            let of = |&(layout, names): &(&'static Layout, Names)| {
                let says = |claim: &&Claim| claim.layouts.contains(&layout.name);
                let given = claims.iter().copied().find(says);
                let is_said = described.as_ref().map_or(given.is_some(), |claim| says(&claim));
                is_said.then_some(LayoutCandidate { layout, names, claim: given })
            };
            rows.filter_map(of).collect()
        } else {
            let by_tensors = |row: &&(&'static Layout, Names)| is_told_by_tensors(row.0, pair);
            rows.filter(by_tensors).map(|&(layout, names)| LayoutCandidate { layout, names, claim: None }).collect()
        };
        let fitting = self.fitting(codes, pair, candidates, told.as_deref())?;
        let candidate = match fitting[..] {
            [only] => only,
            _ => self.choose(codes, pair, &fitting)?,
        };
        if told.is_none() {
            self.check_told(codes, pair, candidate.layout)?;
        }
        Ok((candidate, described))
    }

    /// Returns the candidates whose codes and scales have suitable dtypes.
    fn fitting<'b>(
        &self,
        codes: usize,
        pair: &Pair,
        mut candidates: Vec<LayoutCandidate<'b>>,
        told: Option<&str>,
    ) -> Result<Vec<LayoutCandidate<'b>>> {
        let told = told.unwrap_or("there is no config");
        if candidates.is_empty() {
            let [codes_name, scale_name] = [codes, pair.scale].map(|index| self.show(index));
            let mut known: Vec<&str> = pair.family.rows.iter().map(|(layout, _)| layout.library).collect();
            known.dedup();
            let whose = if known.len() > 3 { format!("{} layouts", known.len()) } else { known.join("; ") };
            return Err(Error::new(format!("'{codes_name}' and '{scale_name}' are called as in {whose}, and {told}")));
        }
        for index in [codes, pair.scale] {
            let Some(dtype) = self.dtype(index) else {
                return Err(Error::new(format!("unsupported dtype of '{}'", self.show(index))));
            };
            let known = |candidate: &LayoutCandidate| {
                if index == codes { candidate.layout.codes.dtypes } else { candidate.layout.scale_dtypes }
            };
            if !candidates.iter().any(|candidate| known(candidate).contains(&dtype)) {
                let mut wanted: Vec<&str> = candidates.iter().flat_map(known).map(|dtype| dtype.name()).collect();
                wanted.sort_unstable();
                wanted.dedup();
                let (name, wanted) = (self.show(index), wanted.join(" or "));
                let role = if index == codes { "codes" } else { "scales" };
                return Err(Error::new(format!("'{name}' is {dtype}, and {told}, whose {role} are {wanted}")));
            }
            candidates.retain(|candidate| known(candidate).contains(&dtype));
        }
        Ok(candidates)
    }

    /// Chooses the only one of several candidates that the shapes allow.
    fn choose<'b>(&self, codes: usize, pair: &Pair, candidates: &[LayoutCandidate<'b>]) -> Result<LayoutCandidate<'b>> {
        let find = |name: &str| candidates.iter().copied().find(|candidate| candidate.layout.name == name);
        let scale = self.source.tensors[pair.scale].shape;
        // Both layouts have the same values, computed by other steps. ModelOpt stores one scale as a scalar, scales of
        // rows as [rows], and scales of blocks as [_, 1, _, 1].
        if let (Some(theirs), Some(other)) = (find("modelopt-fp8"), find("ct-fp8")) {
            let is_theirs = matches!(scale, [] | [_, 1, _, 1]) || matches!(scale, [rows] if *rows != 1);
            return Ok(if is_theirs { theirs } else { other });
        }
        if let Some(first) = find("ct-mxfp8") {
            return Ok(first); // ModelOpt's has the same values
        }
        let fits = |candidate: &&LayoutCandidate| {
            let parts = self.parts(pair.stem, candidate.names);
            let parameters = self.parameters(candidate, None, &parts, pair.stem);
            parameters.is_ok_and(|parameters| self.check(candidate, None, &parameters, &parts).is_ok())
        };
        let mut fitting = candidates.iter().filter(fits);
        if let (Some(only), None) = (fitting.next(), fitting.next()) {
            return Ok(*only);
        }
        let names: Vec<&str> = candidates.iter().map(|candidate| candidate.layout.library).collect();
        let (codes, scale) = (self.show(codes), self.show(pair.scale));
        let message =
            format!("'{codes}' and '{scale}' may be of {}, and nothing says of which", names.join("; or of "));
        Err(Error::new(message).remedy(NO_CONFIG))
    }

    /// Refuses a layout that neither a config nor the tensors determine.
    fn check_told(&self, codes: usize, pair: &Pair, layout: &Layout) -> Result<()> {
        if layout.is_told_by_config {
            let message = format!("it is stored as by {}, and there is no config to say the rest", layout.library);
            return Err(Error::new(message).remedy(NO_CONFIG));
        }
        // Shapes with whole ComfyUI tiles.
        let [shape, scale] = [codes, pair.scale].map(|index| self.source.tensors[index].shape);
        let is_tiled = matches!(layout.name, "modelopt-nvfp4" | "ct-mxfp8" | "modelopt-mxfp8")
            && matches!((shape, scale), ([rows, _], [_, columns]) if rows.is_multiple_of(128) && columns.is_multiple_of(4));
        if is_tiled {
            let message =
                format!("it may be of {}, or of ComfyUI, and there is no config to say which", layout.library);
            return Err(Error::new(message).remedy(NO_CONFIG));
        }
        if !self.layers.is_empty() && pair.family.scale == ".weight_scale" {
            let scale = self.show(pair.scale);
            return Err(Error::new(format!("it has a scale, '{scale}', and no comfy_quant as other layers")));
        }
        Ok(())
    }

    /// Collects the parameters from config, description and small parts.
    fn parameters(
        &self,
        candidate: &LayoutCandidate,
        described: Option<&Claim>,
        parts: &[(Role, usize)],
        stem: &str,
    ) -> Result<Parameters> {
        let claim = described.or(candidate.claim);
        let mut parameters = claim.map(|claim| claim.parameters.clone()).unwrap_or_default();
        let layout = candidate.layout;
        let is_nested =
            || parts.iter().any(|(role, index)| *role == Role::Scale && self.dtype(*index) == Some(Dtype::Uint8));
        for &(role, index) in parts {
            match role {
                Role::Shape => parameters.shape = Some(descriptions::shape(self.source, index)?),
                Role::Description if layout.codes.packing == Packing::Flat => {
                    parameters = descriptions::quant_state(self.source, index, is_nested())?;
                    if let Some(claim) = claim
                        && let Some(kind) = &claim.quant_type
                        && !self.source.tensors[index].name.ends_with(&format!("__{kind}"))
                    {
                        let (name, kind) = (self.show(index), shorten(kind));
                        let message = format!("'{name}' is its description, and the config says bnb_4bit_quant_type");
                        return Err(Error::new(format!("{message} '{kind}'")));
                    }
                }
                Role::Description if layout.global == Combination::Over127 => {
                    descriptions::check_rows(self.source, index)?;
                }
                _ => {}
            }
        }
        if layout.is_told_by_marker() {
            parameters.has_full_precision = self.layers.has_full_precision(self.source, stem);
        }
        if layout.scale_order == ScaleOrder::Swizzled {
            parameters.shape = self.unpadded(layout, parts, stem);
        }
        Ok(parameters)
    }

    /// Returns the shape of a padded weight, whose bias shows the number of rows.
    fn unpadded(&self, layout: &Layout, parts: &[(Role, usize)], stem: &str) -> Option<Vec<u64>> {
        let bias = self.source.tensors[*self.places.get(&*format!("{stem}.bias"))?].shape;
        let codes = &self.source.tensors[find(parts, Role::Codes)?];
        let wide = if layout.codes.packing == Packing::RowsHighFirst { 2 } else { 1 };
        match (bias, codes.shape) {
            ([rows], [_, columns]) => Some(vec![*rows, columns.checked_mul(wide)?]),
            _ => None,
        }
    }

    /// Refuses missing parts, and a global scale that would not be used.
    fn check_roles(&self, layout: &Layout, claim: Option<&Claim>, parts: &[(Role, usize)]) -> Result<()> {
        if let Some(claim) = claim
            && let Some(role) = claim.needs.iter().find(|role| find(parts, **role).is_none())
        {
            let missing = missing(layout, *role, self.source.tensors, parts);
            return Err(Error::new(format!("it has no {missing}, which it needs: {}", claim.said)));
        }
        if layout.global == Combination::Nothing
            && let Some(global) = find(parts, Role::GlobalScale)
        {
            let message =
                format!("it has a global scale, '{}', which the layout {} lacks", self.show(global), layout.name);
            return Err(Error::new(message));
        }
        // Otherwise the padding in the last byte or word of a row would be decoded as values.
        let needed = match layout.codes.packing {
            Packing::Flat => Some(Role::Description),
            Packing::Rows(4) => Some(Role::Shape),
            _ => None,
        };
        if let Some(role) = needed.filter(|role| find(parts, *role).is_none()) {
            let missing = missing(layout, role, self.source.tensors, parts);
            return Err(Error::new(format!("it has no {missing}, which the layout {} needs", layout.name)));
        }
        Ok(())
    }

    /// Refuses parts whose dtypes contradict the claims, or are unknown.
    fn check_dtypes(&self, layout: &Layout, claim: Option<&Claim>, parts: &[(Role, usize)]) -> Result<()> {
        let Some(codes) = find(parts, Role::Codes) else { return Err(Error::new("it has no codes")) };
        let (wanted, said): (Vec<Dtype>, &str) = match claim {
            Some(claim) if !claim.codes.is_empty() => (claim.codes.clone(), &claim.said),
            _ if layout.is_told_by_marker() => {
                let marked = self.layers.marked(self.source, self.source.tensors[codes].name);
                (marked.into_iter().collect(), "the tensor scaled_fp8 says so")
            }
            _ => (Vec::new(), ""),
        };
        if let Some(dtype) = self.dtype(codes).filter(|dtype| !wanted.is_empty() && !wanted.contains(dtype)) {
            let wanted = wanted.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
            return Err(Error::new(format!("'{}' is {dtype} and not {wanted}: {said}", self.show(codes))));
        }
        if let (Some(claim), Some(scale)) = (claim, find(parts, Role::Scale))
            && let Some(dtype @ (Dtype::Uint8 | Dtype::Float8E8M0)) = self.dtype(scale)
            && claim.no_exponents
        {
            let message = format!("'{}' is {dtype}, which is exponents, and the config says", self.show(scale));
            return Err(Error::new(format!("{message} scale_fmt 'float'")));
        }
        for (role, index) in parts {
            if self.dtype(*index).is_none() {
                return Err(Error::new(format!(
                    "'{}', its {}, has a dtype that tcast does not know",
                    self.show(*index),
                    role.describe()
                )));
            }
        }
        Ok(())
    }

    /// Compares the parts with each other and with the claims; returns the shape of the weight.
    fn check(
        &self,
        candidate: &LayoutCandidate,
        described: Option<&Claim>,
        parameters: &Parameters,
        parts: &[(Role, usize)],
    ) -> Result<Vec<u64>> {
        let (layout, claim) = (candidate.layout, described.or(candidate.claim));
        self.check_roles(layout, claim, parts)?;
        self.check_dtypes(layout, claim, parts)?;
        let weight = FoundWeight {
            name: String::new(),
            module: String::new(),
            layout,
            parameters: parameters.clone(),
            shape: Vec::new(),
            parts: parts.to_vec(),
        };
        let geometry = DecodeGeometry::new(layout, parameters, &weight.parts(self.source.tensors))?;
        let [below, beside] = geometry.block;
        let is_in_rows = layout.scale_order == ScaleOrder::Rows && geometry.group_index.is_none();
        // transformers and DeepSeek have partial blocks at the edges, for any size of a block. Other libraries also
        // refuse such weights.
        let has_partial = layout.owner == Owner::FineGrained && matches!(geometry.group, Some(Group::Block(_)));
        if is_in_rows && below == 1 && geometry.columns % beside != 0 && !has_partial {
            let columns = geometry.columns;
            return Err(Error::new(format!("its rows of {columns} are not whole groups of {beside}")));
        }
        Ok(geometry.shape)
    }
}

/// Returns the index of the part with a role.
fn find(parts: &[(Role, usize)], wanted: Role) -> Option<usize> {
    parts.iter().find(|(role, _)| *role == wanted).map(|(_, index)| *index)
}

fn missing(layout: &Layout, role: Role, tensors: &[StoredTensor], parts: &[(Role, usize)]) -> String {
    let codes = find(parts, Role::Codes).map_or("", |index| tensors[index].name);
    layout.describe_missing(role, codes)
}

/// True if a layout can be identified without a config.
fn is_told_by_tensors(layout: &Layout, pair: &Pair) -> bool {
    let is_of_vllm = layout.owner == Owner::FineGrained && pair.family.scale == ".weight_scale";
    !is_of_vllm && (!layout.is_diffusion() || layout.is_told_by_marker())
}
