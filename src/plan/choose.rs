//! Decides what happens to each logical tensor: it is converted, decoded, quantized, copied or refused.

use super::few::Few;
use super::model;
use super::names::{Logical, new_name, renamed};
use super::quantized::{Quantization, SharedExtremes, TargetWeight, TensorIndex};
use super::source::{check_from, known_dtype, opaque_form, source_form};
use super::weights::{Fate, QuantizedWeight, Weights};
use super::{Codes, Request};
use crate::container::onnx::model::{Dequantization, ModelGraph, TensorRole};
use crate::container::{Elements, Form, Input, NewTensor, Tensor, TextExtent};
use crate::conversion;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::large_buffer;
use crate::operator::Operator;
use crate::quant::{Decoder, EncodedPart, ONNX};
use crate::read::{Share, SourceTensor};
use crate::select::{Candidate, KeptReason};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// A logical tensor, and the decision about it.
pub(super) struct Chosen<'a> {
    /// The stored tensor that it replaces.
    pub place: TensorIndex,
    pub sources: Few<SourceTensor<'a>>,
    pub from: Origin<'a>,
    /// The type to convert to, or the reason for copying the tensor.
    pub target: Result<Dtype, KeptReason>,
    pub name: Cow<'a, str>,
    /// Its type in the output.
    pub dtype: Dtype,
    /// True if its elements will be in column-major order.
    pub fortran_order: bool,
    /// For text, the lengths of the texts.
    text: Option<Box<TextExtent>>,
}

/// Stored form of a logical tensor.
pub(super) enum Origin<'a> {
    Elements(Form),
    /// The parts of a quantized weight.
    Parts(Arc<Decoder>),
    /// The values of a weight to quantize.
    Values(Box<Quantization<'a>>),
}

impl<'a> Chosen<'a> {
    /// Creates a tensor of numbers in row-major order.
    fn new(
        place: TensorIndex,
        sources: Few<SourceTensor<'a>>,
        from: Origin<'a>,
        target: Result<Dtype, KeptReason>,
        name: Cow<'a, str>,
        dtype: Dtype,
    ) -> Self {
        Self { place, sources, from, target, name, dtype, fortran_order: false, text: None }
    }

    /// Returns the number of elements, the product of the shape.
    fn count(&self) -> u64 {
        match &self.from {
            Origin::Elements(_) => self.sources[0].tensor.count,
            Origin::Parts(decoder) => decoder.shape().iter().product(),
            Origin::Values(weight) => weight.rows.encoder.shape().iter().product(),
        }
    }

    /// Returns its bytes in the output.
    pub(super) fn bytes(&self) -> u64 {
        match &self.from {
            Origin::Values(weight) => weight.rows.encoder.parts().iter().map(EncodedPart::byte_len).sum(),
            _ => self.dtype.packed_bytes(self.count()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the tensor for the output, if there is only one.
    pub(super) fn new_tensor(&self) -> NewTensor<'_> {
        let source = self.sources[0].tensor;
        let (shape, opaque) = match &self.from {
            Origin::Elements(_) => {
                (&source.shape[..], (source.elements == Elements::Opaque).then_some(&*source.stored))
            }
            Origin::Parts(decoder) => (decoder.shape(), None),
            Origin::Values(_) => (&[][..], None),
        };
        NewTensor {
            name: Cow::Borrowed(&self.name),
            dtype: self.dtype,
            shape,
            count: self.count(),
            fortran_order: self.fortran_order,
            text: self.text.clone(),
            opaque,
        }
    }
}

/// Decides what happens to every tensor, and refuses impossible conversions.
pub(super) fn choose<'a>(
    request: &Request,
    inputs: &'a [Input],
    model: Option<&ModelGraph>,
) -> Result<Vec<Chosen<'a>>> {
    let stored =
        || inputs.iter().enumerate().flat_map(|(at, input)| (0..input.contents.tensors.len()).map(move |t| (at, t)));
    let tensor = |(input, at): TensorIndex| &inputs[input].contents.tensors[at];
    check_from(stored().map(tensor), request.from)?;
    let needed = model.map(|graph| graph.parts_of_others(&folded(request, graph))).unwrap_or_default();
    let is_scale = |at| model.is_some_and(|graph| graph.role(at) == Some(TensorRole::Scale));
    let undecoded = |at| if is_scale(at) { KeptReason::Role(TensorRole::Scale) } else { KeptReason::Unquantized };
    let all = || {
        stored().flat_map(|place| {
            let plain = |reason| (Some(Logical::Plain(tensor(place), reason)), &[][..], &[][..]);
            let (one, decoded, quantized) = match request.weights.and_then(|weights| weights.tensors.get(&place)) {
                None if matches!(request.operator, Operator::Dequantize) => plain(Some(undecoded(place.1))),
                None => plain(None),
                Some(Fate::Kept(reason)) => plain(Some(*reason)),
                Some(Fate::Decoded(weights)) => (None, &weights[..], &[][..]),
                Some(Fate::Quantized(weights)) => (None, &[][..], &weights[..]),
                Some(Fate::LeftOut) if needed.contains(&place.1) => plain(Some(KeptReason::Role(TensorRole::Scale))),
                Some(Fate::LeftOut) => (None, &[][..], &[][..]),
            };
            let quantized = quantized.iter().map(move |weight| Logical::ToQuantize(place, weight));
            one.into_iter()
                .chain(decoded.iter().map(Logical::Weight))
                .chain(quantized)
                .map(move |logical| (place, logical))
        })
    };
    let of_weights = request.weights.and_then(|weights| weights.renames.as_ref());
    let mut renamed = renamed(inputs, all(), of_weights.unwrap_or(&request.selection.renames))?;
    let mut chosen = large_buffer(stored().count());
    let mut shared = SharedScales::new(request.weights, inputs);
    let mut storable = Vec::new();
    for (at, (place, logical)) in all().enumerate() {
        let input = place.0;
        let renamed = if renamed.is_empty() { None } else { renamed.remove(&at) }; // without hashing each index
        let name = renamed.unwrap_or_else(|| new_name(inputs, input, logical, request.container));
        chosen.push(match logical {
            Logical::Plain(tensor, reason) => {
                let in_place = |error: Error| error.in_tensor(&tensor.name).in_file(inputs[input].path());
                let mut plain = choose_plain(request, inputs, place, tensor, name, &mut storable).map_err(in_place)?;
                if let (Some(graph), Ok(to), Origin::Elements(from)) = (model, plain.target, &plain.from) {
                    let stored = (tensor, inputs[input].name_of(tensor));
                    let kept = model::kept(request, graph.role_for(place.1, to), stored, from.dtype(), to)
                        .map_err(in_place)?;
                    if let Some(reason) = kept {
                        (plain.target, plain.dtype) = (Err(reason), from.dtype());
                    }
                }
                if let Some(error) = request.codes.filter(|_| plain.target.is_ok()).and_then(Codes::undecoded) {
                    return Err(error.in_file(inputs[input].path()));
                }
                if let (Some(reason), Err(kept)) = (reason, &mut plain.target) {
                    *kept = reason;
                }
                plain
            }
            Logical::ToQuantize(place, weight) => {
                let sources = stored_tensors(inputs, &weight.sources(place));
                choose_to_quantize(request, place, sources, weight, name, &mut shared)?
            }
            Logical::Weight(weight) => {
                let sources = stored_tensors(inputs, &weight.parts);
                choose_weight(request, place, sources, weight, name)?
            }
        });
    }
    check_codes(request, inputs, &chosen)?;
    Ok(chosen)
}

/// Refuses a cast of other tensors that leaves codes as they are although no option requests that.
fn check_codes(request: &Request, inputs: &[Input], chosen: &[Chosen]) -> Result<()> {
    let is_cast = || chosen.iter().any(|chosen| chosen.target.is_ok());
    let Some(codes) = request.codes.filter(|_| is_cast()) else { return Ok(()) };
    for chosen in chosen {
        let (input, Err(kept)) = (&inputs[chosen.place.0], chosen.target) else { continue };
        let name = input.name_of(chosen.sources[0].tensor);
        if let Some(error) = codes.half_cast(name, kept, request.selection) {
            return Err(error.in_tensor(name).in_file(input.path()));
        }
    }
    Ok(())
}

fn folded<'g>(request: &Request, graph: &'g ModelGraph) -> Vec<&'g Dequantization> {
    let is_folded = |found: &&Dequantization| {
        let fate = request.weights.and_then(|weights| weights.tensors.get(&(0, found.codes)));
        matches!(fate, Some(Fate::Decoded(_)))
    };
    graph.dequantizations.iter().filter(is_folded).collect()
}

fn stored_tensors<'a>(inputs: &'a [Input], places: &[TensorIndex]) -> Few<SourceTensor<'a>> {
    let stored = |&(input, at): &TensorIndex| {
        let (files, tensor) = (&inputs[input].files[..], &inputs[input].contents.tensors[at]);
        SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false }
    };
    match places {
        [place] => Few::One(stored(place)),
        places => Few::Several(places.iter().map(stored).collect()),
    }
}

/// The weights that share scales, made when the first of a set is needed.
struct SharedScales<'a, 'r> {
    weights: Option<&'r Weights>,
    inputs: &'a [Input],
    known: HashMap<usize, Arc<SharedExtremes<'a>>>,
}

impl<'a, 'r> SharedScales<'a, 'r> {
    fn new(weights: Option<&'r Weights>, inputs: &'a [Input]) -> Self {
        Self { weights, inputs, known: HashMap::new() }
    }

    fn get(&mut self, number: usize) -> Arc<SharedExtremes<'a>> {
        let shared = self.known.entry(number).or_insert_with(|| {
            let all = self.weights.and_then(|weights| weights.shared.get(number)).into_iter().flatten();
            let rows = |(place, weight): &(TensorIndex, TargetWeight)| {
                weight.rows(stored_tensors(self.inputs, &weight.sources(*place)))
            };
            Arc::new(SharedExtremes::new(all.map(rows).collect()))
        });
        Arc::clone(shared)
    }
}

fn choose_to_quantize<'a>(
    request: &Request,
    place: TensorIndex,
    sources: Few<SourceTensor<'a>>,
    weight: &TargetWeight,
    name: Cow<'a, str>,
    shared: &mut SharedScales<'a, '_>,
) -> Result<Chosen<'a>> {
    sources.iter().try_for_each(|source| source.unpack().and_then(|()| check_mapped(source)))?;
    let is_model = request.container.format_info().is_changed_only;
    if !is_model && weight.encoder.layout().name == ONNX.name {
        let error = Error::new("the weights of an ONNX model are quantized in an ONNX model");
        return Err(sources[0].error(error.remedy("name an output that ends in .onnx")));
    }
    if !is_model && request.container.format_info().extension != "safetensors" {
        let error = Error::new("engines read quantized weights from .safetensors files only");
        return Err(sources[0].error(error.remedy("name a .safetensors file or a folder")));
    }
    let mut dtypes = weight.encoder.parts().iter().map(|part| part.dtype);
    if let Some(dtype) = dtypes.find(|dtype| request.container.stores(*dtype).is_none()) {
        return Err(sources[0].error(request.container.refusal(dtype, true)));
    }
    let dtype = weight.encoder.parts()[0].dtype;
    let extremes = weight.shared.map(|number| shared.get(number));
    let from = Origin::Values(Box::new(Quantization {
        name: name.to_string(),
        rows: weight.rows(sources.clone()),
        scheme: weight.scheme,
        extremes,
    }));
    Ok(Chosen::new(place, sources, from, Ok(dtype), name, dtype))
}

/// Refuses a tensor whose bytes cannot be read in any order.
fn check_mapped(part: &SourceTensor) -> Result<()> {
    if part.is_plain() {
        return Ok(());
    }
    Err(part.error(Error::new("quantized weights are read from and made of .safetensors files only")))
}

fn choose_weight<'a>(
    request: &Request,
    place: TensorIndex,
    sources: Few<SourceTensor<'a>>,
    weight: &QuantizedWeight,
    name: Cow<'a, str>,
) -> Result<Chosen<'a>> {
    let stored = sources.iter().enumerate().filter(|(at, _)| weight.decoder.held(*at).is_none());
    stored.map(|(_, part)| part).try_for_each(check_mapped)?;
    let dtype = weight.decoder.target();
    if request.container.stores(dtype).is_none() {
        return Err(sources[0].error(request.container.refusal(dtype, true)));
    }
    Ok(Chosen::new(place, sources, Origin::Parts(Arc::clone(&weight.decoder)), Ok(dtype), name, dtype))
}

/// Decides about a tensor that is not a weight to decode or quantize. `storable` caches the types that the output can
/// store.
fn choose_plain<'a>(
    request: &Request,
    inputs: &'a [Input],
    place: TensorIndex,
    tensor: &'a Tensor,
    new_name: Cow<'a, str>,
    storable: &mut Vec<Dtype>,
) -> Result<Chosen<'a>> {
    let Request { operator, selection, from, container, codes, .. } = *request;
    let input = place.0;
    let (name, dtype) = (inputs[input].name_of(tensor), known_dtype(tensor, from));
    let is_alone = inputs[input].container.format_info().holds_one;
    let target = selection.target(&Candidate { name, dtype, rank: tensor.shape.len(), is_alone });
    let files = &inputs[input].files[..];
    if tensor.elements == Elements::Opaque {
        let formats = [&inputs[input].container.format_info(), &container.format_info()];
        let form = opaque_form(tensor, target.is_ok(), formats)?;
        let source = SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false };
        let (sources, from, target) = (Few::One(source), Origin::Elements(form), Err(KeptReason::LeftOut));
        return Ok(Chosen::new(place, sources, from, target, new_name, form.dtype()));
    }
    // A tensor that is copied keeps its stored type, if it has one.
    let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
    let form = source_form(tensor, from.filter(|_| target.is_ok() || is_untyped))?;
    if let Ok(target) = target
        && (target != form.dtype() || !matches!(operator, Operator::Promote(_)))
    {
        operator.check(form.dtype(), target)?;
    }
    let target = target.and_then(|target| {
        let is_there = target == form.dtype() && operator.keeps(target);
        if is_there { Err(KeptReason::Already) } else { Ok(target) }
    });
    if target.is_ok() {
        // A rule names its tensors explicitly, so it may cast codes.
        let codes = codes.filter(|_| selection.rule(name).is_none());
        if let Some(refusal) = codes.and_then(|codes| codes.refusal(name, selection)) {
            return Err(refusal);
        }
    }
    let dtype = target.unwrap_or(form.dtype());
    if !storable.contains(&dtype) {
        if container.stores(dtype).is_none() {
            let are_several = inputs.iter().map(|input| input.contents.tensors.len()).sum::<usize>() > 1;
            return Err(container.refusal(dtype, are_several));
        }
        storable.push(dtype);
    }
    let fortran_order = tensor.fortran_order && container.format_info().has_fortran_order;
    let is_transposed = tensor.fortran_order != fortran_order;
    let source = SourceTensor { files, tensor, elements: Elements::Typed(form), is_transposed };
    let chosen = Chosen::new(place, Few::One(source), Origin::Elements(form), target, new_name, dtype);
    Ok(Chosen { fortran_order, ..chosen })
}

/// Measures the texts to be written. No file can be laid out without their lengths.
pub(super) fn measure_texts(chosen: &mut [Chosen], measured: &dyn Fn(u64)) -> Result<()> {
    for chosen in chosen.iter_mut().filter(|chosen| chosen.dtype == Dtype::String) {
        let (source, Origin::Elements(form)) = (&chosen.sources[0], &chosen.from) else { continue };
        let mut share = Share::new(source.stored_len(), source.tensor.count);
        let progress = &mut |elements| measured(share.up_to(elements));
        let extent = source.open().and_then(|reader| conversion::measure(*form, source.named(), reader, progress));
        chosen.text = Some(Box::new(extent.map_err(|error| source.error(error))?));
    }
    Ok(())
}
