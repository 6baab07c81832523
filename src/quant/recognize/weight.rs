//! Finds the layout of one weight on which its parts, its config and its description agree.

use super::checkpoint::{CheckpointInfo, FoundWeight};
use super::names::{Pair, decoded};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::config::{CheckpointConfig, ModuleConfig, WeightDescription};
use crate::quant::decode::geometry::DecodeGeometry;
use crate::quant::decode::group_index::StoredIntegers;
use crate::quant::libraries::{LayerDescriptions, TensorDescriptions, quant_state};
use crate::quant::{
    CodeValues, Combination, Group, Layout, Names, Packing, Parameters, Role, ScaleOrder, ScaleShape, Zeros,
};
use crate::text::shorten;
use std::collections::HashMap;

/// All that shows how the weights of a checkpoint are stored.
pub(super) struct Evidence<'a> {
    pub(super) source: &'a CheckpointInfo<'a>,
    /// The index of each tensor by its name.
    pub(super) indices: HashMap<&'a str, usize>,
    pub(super) config: CheckpointConfig,
    /// Descriptions of single layers, outside of the config.
    pub(super) layers: LayerDescriptions,
    /// Descriptions of single tensors in the metadata of files.
    pub(super) tensors: TensorDescriptions<'a>,
}

/// A possible layout of a weight, and the description that names it.
#[derive(Clone, Copy)]
struct LayoutCandidate<'a> {
    layout: &'static Layout,
    names: Names,
    description: Option<&'a WeightDescription>,
}

/// The remedy if the tensors alone do not show how a weight is stored.
const NO_CONFIG: &str = "copy the checkpoint's config.json next to the file; it describes the quantization";

impl Evidence<'_> {
    fn show(&self, index: usize) -> String {
        shorten(self.source.tensors[index].name)
    }

    fn dtype(&self, index: usize) -> Option<Dtype> {
        self.source.tensors[index].dtype
    }

    /// Returns the existing parts of a weight with these names.
    pub(super) fn parts(&self, stem: &str, names: Names) -> Vec<(Role, usize)> {
        let place = |(role, suffix): &(Role, &str)| Some((*role, *self.indices.get(&*format!("{stem}{suffix}"))?));
        names.iter().filter_map(place).collect()
    }

    /// Finds the weight with these codes and scales, whose config, description and tensors have to agree.
    pub(super) fn weight(&self, codes: usize, pair: &Pair) -> Result<FoundWeight> {
        let (name, module) = decoded(pair.stem, pair.family.codes);
        let ModuleConfig { ignored, descriptions: of_config } = self.config.describe(&module);
        if let Some((source, entry)) = ignored {
            let (entry, scale) = (shorten(entry), self.show(pair.scale));
            let message = format!("{source} says with '{entry}' that it is not quantized, and '{scale}' that it is");
            return Err(Error::new(message));
        }
        let is_of_marker = pair.family.rows.iter().any(|(layout, _)| layout.has_marker());
        let of_layer = match self.layers.describe(self.source, pair.stem)? {
            None if is_of_marker => self.layers.describe_marked(self.source, self.source.tensors[codes].name),
            description => description,
        };
        if let (Some(description), Some(method)) = (&of_layer, &self.config.method) {
            let message = format!("{}, and the config quant_method '{}'", description.wording, shorten(method));
            return Err(Error::new(message));
        }
        let descriptions: Vec<&WeightDescription> =
            of_layer.iter().chain(of_config.iter().map(|description| &**description)).collect();
        let unnamed = self.config.method.as_ref().map(|_| "the config does not name its module");
        let named = descriptions.first().filter(|description| !description.layouts[0].has_marker());
        let wording = named.map(|description| &*description.wording).or(unnamed);
        let candidates = pair.family.rows.iter().filter_map(|&(layout, names)| {
            let description = descriptions.iter().copied().find(|description| description.layouts.contains(&layout));
            let is_possible = description.is_some() || wording.is_none() && is_identified_by_tensors(layout, pair);
            is_possible.then_some(LayoutCandidate { layout, names, description })
        });
        let candidates: Vec<LayoutCandidate> = candidates.collect();
        // Names of few libraries are named instead: they contradict the config.
        let is_misnamed = candidates.is_empty() && pair.family.rows.len() > 3;
        if let (true, Some(description), Some(method)) = (is_misnamed, named, &self.config.method) {
            return Err(self.misnamed([codes, pair.scale], method, description));
        }
        let candidates = self.fitting(codes, pair, candidates, wording.unwrap_or("there is no config"))?;
        let candidate = match candidates[..] {
            [only] => only,
            _ => self.choose(codes, pair, &candidates)?,
        };
        if wording.is_none() {
            self.check_identified(codes, pair, candidate.layout)?;
        }
        self.tensors.check(candidate.layout, &name, pair.stem, |part| self.indices.contains_key(part))?;
        self.in_layout(&candidate, pair)
    }

    /// Returns the error for codes and a scale that the library of the config gives other names.
    fn misnamed(&self, tensors: [usize; 2], method: &str, description: &WeightDescription) -> Error {
        let ([codes, scale], method) = (tensors.map(|index| self.show(index)), shorten(method));
        let what = format!("'{codes}' and '{scale}' are not called as codes and scales of {method}");
        let error = Error::new(format!("{what}: {}", description.wording));
        error.remedy(format!("decode the model with {method}, and save its values"))
    }

    /// Returns the weight if its parts fit a layout.
    fn in_layout(&self, candidate: &LayoutCandidate, pair: &Pair) -> Result<FoundWeight> {
        let LayoutCandidate { layout, names, description } = *candidate;
        let mut parts = self.parts(pair.stem, names);
        // Activation scales may have an unknown dtype.
        parts.retain(|(role, index)| *role != Role::Activation || self.dtype(*index).is_some());
        let (name, module) = decoded(pair.stem, pair.family.codes);
        let (parameters, shape) = (Parameters::default(), Vec::new());
        let mut weight = FoundWeight { name, module, layout, parameters, shape, parts };
        weight.parameters = self.parameters(&weight, description, pair.stem)?;
        weight.shape = self.check(&weight, description)?;
        Ok(weight)
    }

    /// Returns the candidates whose codes and scales have suitable dtypes.
    fn fitting<'b>(
        &self,
        codes: usize,
        pair: &Pair,
        mut candidates: Vec<LayoutCandidate<'b>>,
        wording: &str,
    ) -> Result<Vec<LayoutCandidate<'b>>> {
        if candidates.is_empty() {
            let [codes, scale] = [codes, pair.scale].map(|index| self.show(index));
            let mut libraries: Vec<&str> = pair.family.rows.iter().map(|(layout, _)| layout.library).collect();
            libraries.dedup();
            let whose = if libraries.len() > 3 { format!("{} layouts", libraries.len()) } else { libraries.join("; ") };
            return Err(Error::new(format!("'{codes}' and '{scale}' are called as in {whose}, and {wording}")));
        }
        for (index, role) in [(codes, Role::Codes), (pair.scale, Role::Scale)] {
            let Some(dtype) = self.dtype(index) else {
                return Err(Error::new(format!("unsupported dtype of '{}'", self.show(index))));
            };
            let dtypes = |candidate: &LayoutCandidate| {
                if role == Role::Codes { candidate.layout.codes.dtypes } else { candidate.layout.scale_dtypes }
            };
            if !candidates.iter().any(|candidate| dtypes(candidate).contains(&dtype)) {
                let mut wanted: Vec<&str> = candidates.iter().flat_map(dtypes).map(|dtype| dtype.name()).collect();
                wanted.sort_unstable();
                wanted.dedup();
                let (name, role, wanted) = (self.show(index), role.describe(), wanted.join(" or "));
                return Err(Error::new(format!("'{name}' is {dtype}, and {wording}, whose {role} are {wanted}")));
            }
            candidates.retain(|candidate| dtypes(candidate).contains(&dtype));
        }
        Ok(candidates)
    }

    /// Chooses the only one of several candidates that the shapes allow.
    fn choose<'b>(&self, codes: usize, pair: &Pair, candidates: &[LayoutCandidate<'b>]) -> Result<LayoutCandidate<'b>> {
        let of = |shape: ScaleShape| {
            let is_it = |layout: &Layout| layout.encoding.is_some_and(|encoding| encoding.scale_shape == shape);
            candidates.iter().copied().find(|candidate| is_it(candidate.layout))
        };
        // The layouts of ModelOpt and of compressed-tensors have the same values, computed by other steps.
        if let (Some(theirs), Some(other)) = (of(ScaleShape::Squeezed), of(ScaleShape::Matrix)) {
            let scale = self.source.tensors[pair.scale].shape;
            let is_theirs = matches!(scale, [] | [_, 1, _, 1]) || matches!(scale, [rows] if *rows != 1);
            return Ok(if is_theirs { theirs } else { other });
        }
        let mut fitting = candidates.iter().filter(|candidate| self.in_layout(candidate, pair).is_ok());
        if let (Some(only), None) = (fitting.next(), fitting.next()) {
            return Ok(*only);
        }
        let libraries: Vec<&str> = candidates.iter().map(|candidate| candidate.layout.library).collect();
        let ([codes, scale], libraries) =
            ([codes, pair.scale].map(|index| self.show(index)), libraries.join("; or of "));
        let error = Error::new(format!("'{codes}' and '{scale}' may be of {libraries}, and nothing says of which"));
        Err(error.remedy(NO_CONFIG))
    }

    /// Refuses a layout that neither a config nor the tensors determine.
    fn check_identified(&self, codes: usize, pair: &Pair, layout: &Layout) -> Result<()> {
        let library = layout.library;
        if layout.needs_config {
            let message = format!("it looks like a weight of {library}, but there is no config.json with the details");
            return Err(Error::new(message).remedy(NO_CONFIG));
        }
        let is_swizzled = |other: &Layout| {
            let has_codes = self.dtype(codes).is_some_and(|dtype| other.codes.dtypes.contains(&dtype));
            other.scale_order == ScaleOrder::Swizzled && other.groups == layout.groups && has_codes
        };
        let [shape, scale] = [codes, pair.scale].map(|index| self.source.tensors[index].shape);
        let has_whole_tiles = matches!((shape, scale), ([rows, _], [_, columns]) if rows.is_multiple_of(128) && columns.is_multiple_of(4));
        let swizzled = pair.family.rows.iter().find(|(other, _)| has_whole_tiles && is_swizzled(other));
        if let Some((other, _)) = swizzled {
            let other = other.library.split(',').next().unwrap_or_default();
            let message = format!("it could be {library} or {other}; without config.json tcast cannot tell");
            return Err(Error::new(message).remedy(NO_CONFIG));
        }
        if !self.layers.is_empty() && pair.family.scale == ".weight_scale" {
            return Err(LayerDescriptions::without_description(&self.show(pair.scale)));
        }
        Ok(())
    }

    /// Collects the parameters from description and small parts.
    fn parameters(
        &self,
        weight: &FoundWeight,
        description: Option<&WeightDescription>,
        stem: &str,
    ) -> Result<Parameters> {
        let mut parameters = description.map(|description| description.parameters.clone()).unwrap_or_default();
        let layout = weight.layout;
        for &(role, index) in &weight.parts {
            match role {
                Role::Shape => parameters.shape = Some(self.read_shape(index)?),
                Role::Description if layout.codes.packing == Packing::Flat => {
                    let is_nested = weight.part(Role::Scale).and_then(|at| self.dtype(at)) == Some(Dtype::Uint8);
                    let name = self.source.tensors[index].name;
                    let in_state = |error: Error| Error::new(format!("'{}': {error}", shorten(name)));
                    parameters = quant_state(&self.source.read_object(index)?, name, is_nested).map_err(in_state)?;
                    let kind = description.and_then(|description| description.quant_type.as_deref());
                    if let Some(kind) = kind.filter(|kind| !name.ends_with(&format!("__{kind}"))) {
                        let (name, kind) = (shorten(name), shorten(kind));
                        let message = format!("'{name}' is its description, and the config says bnb_4bit_quant_type");
                        return Err(Error::new(format!("{message} '{kind}'")));
                    }
                }
                Role::Description if layout.global == Combination::Over127 => self.check_order(index)?,
                _ => {}
            }
        }
        if layout.zeros == Zeros::Offset && parameters.bits.is_none() {
            if let (None, Some(description)) = (parameters.group, description) {
                return Err(Error::new(format!("it has offsets, as in mode 'affine', and {}", description.wording)));
            }
            parameters.bits = self.width(weight, parameters.group);
        }
        if layout.codes.values == CodeValues::Levels {
            parameters.bits = self.width(weight, parameters.group);
        }
        if layout.scale_order == ScaleOrder::Swizzled {
            parameters.shape = self.unpadded(weight, stem);
        }
        Ok(parameters)
    }

    /// Returns the width of codes: the bits of a stored row, divided among its groups of this size.
    fn width(&self, weight: &FoundWeight, group: Option<Group>) -> Option<u32> {
        let last = |role: Role| self.source.tensors[weight.part(role)?].shape.last().copied();
        let Some(Group::Neighbours(size)) = group else { return None };
        let columns = last(Role::Scale)?.checked_mul(size).filter(|columns| *columns > 0)?;
        let bits = self.dtype(weight.codes())?.bits();
        u32::try_from(last(Role::Codes)?.checked_mul(bits.into())? / columns).ok()
    }

    /// Reads `weight_shape` of compressed-tensors.
    fn read_shape(&self, index: usize) -> Result<Vec<u64>> {
        let lengths: Option<Vec<u64>> = match self.dtype(index) {
            Some(dtype @ (Dtype::Int64 | Dtype::Int32)) => {
                let numbers = StoredIntegers { bytes: &self.source.read_description(index)?, dtype };
                (0..numbers.len()).map(|at| u64::try_from(numbers.get(at)?).ok()).collect()
            }
            _ => None,
        };
        let lengths = lengths.filter(|lengths| lengths.len() >= 2);
        lengths.ok_or_else(|| Error::new(format!("'{}' does not hold a shape", self.show(index))))
    }

    /// Checks bitsandbytes' `weight_format`: 0 means plain rows. Other numbers mean the orders of old GPU kernels, and
    /// are refused.
    fn check_order(&self, index: usize) -> Result<()> {
        if self.source.read_description(index)?.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let message = "says that its codes are in the order of a GPU, which tcast does not decode";
        Err(Error::new(format!("'{}' {message}", self.show(index))))
    }

    /// Returns the shape of a padded weight, whose bias shows the number of rows.
    fn unpadded(&self, weight: &FoundWeight, stem: &str) -> Option<Vec<u64>> {
        let bias = self.source.tensors[*self.indices.get(&*format!("{stem}.bias"))?].shape;
        let codes = &self.source.tensors[weight.codes()];
        let wide = if weight.layout.codes.packing == Packing::RowsHighFirst { 2 } else { 1 };
        match (bias, codes.shape) {
            ([rows], [_, columns]) => Some(vec![*rows, columns.checked_mul(wide)?]),
            _ => None,
        }
    }

    /// Compares the parts with each other and with the description; returns the shape of the weight.
    fn check(&self, weight: &FoundWeight, description: Option<&WeightDescription>) -> Result<Vec<u64>> {
        self.check_roles(weight, description)?;
        self.check_dtypes(weight, description)?;
        let FoundWeight { layout, parameters, .. } = weight;
        let geometry = DecodeGeometry::new(weight.layout, parameters, &weight.parts(self.source.tensors))?;
        let ([rows, columns], width) = (geometry.block, geometry.columns);
        let is_in_rows = layout.scale_order == ScaleOrder::Rows && geometry.group_index.is_none();
        // Other libraries also refuse such weights.
        let has_partial = layout.partial_groups && matches!(geometry.group, Some(Group::Block(_)));
        if is_in_rows && rows == 1 && width % columns != 0 && !has_partial {
            return Err(Error::new(format!("its rows of {width} are not whole groups of {columns}")));
        }
        Ok(geometry.shape)
    }

    /// Refuses missing parts, and a global scale that would not be used.
    fn check_roles(&self, weight: &FoundWeight, description: Option<&WeightDescription>) -> Result<()> {
        let layout = weight.layout;
        let missing = |role: &Role| weight.part(*role).is_none();
        let describe = |role: Role| layout.describe_missing(role, self.source.tensors[weight.codes()].name);
        if let Some(description) = description
            && let Some(role) = description.needs.iter().find(|role| missing(role))
        {
            let (part, wording) = (describe(*role), &description.wording);
            return Err(Error::new(format!("it has no {part}, which it needs: {wording}")));
        }
        if layout.global == Combination::Nothing
            && let Some(global) = weight.part(Role::GlobalScale)
        {
            let (global, layout) = (self.show(global), layout.name);
            return Err(Error::new(format!("it has a global scale, '{global}', which the layout {layout} lacks")));
        }
        layout.needs.filter(missing).map_or(Ok(()), |role| {
            Err(Error::new(format!("it has no {}, which the layout {} needs", describe(role), layout.name)))
        })
    }

    /// Refuses parts whose dtypes contradict the description, or are unknown.
    fn check_dtypes(&self, weight: &FoundWeight, description: Option<&WeightDescription>) -> Result<()> {
        let of = |role: Role| weight.part(role).and_then(|index| Some((self.show(index), self.dtype(index)?)));
        if let Some(WeightDescription { codes: wanted, wording, .. }) = description
            && let Some((codes, dtype)) = of(Role::Codes).filter(|(_, dtype)| !wanted.contains(dtype))
            && !wanted.is_empty()
        {
            let wanted = wanted.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" or ");
            return Err(Error::new(format!("'{codes}' is {dtype} and not {wanted}: {wording}")));
        }
        if description.is_some_and(|description| description.no_exponents)
            && let Some((scale, dtype @ (Dtype::Uint8 | Dtype::Float8E8M0))) = of(Role::Scale)
        {
            let message = format!("'{scale}' is {dtype}, which is exponents, and the config says scale_fmt 'float'");
            return Err(Error::new(message));
        }
        let unknown = weight.parts.iter().find(|(_, index)| self.dtype(*index).is_none());
        unknown.map_or(Ok(()), |(role, index)| {
            let (name, role) = (self.show(*index), role.describe());
            Err(Error::new(format!("'{name}', its {role}, has a dtype that tcast does not know")))
        })
    }
}

/// True if a layout can be identified without a config.
fn is_identified_by_tensors(layout: &Layout, pair: &Pair) -> bool {
    let is_in_config = layout.shares_names && pair.family.scale == ".weight_scale";
    !is_in_config && (!layout.is_diffusion || layout.has_marker())
}
