//! The steps of a plan, which planners make in the order of the stored tensors.

use super::plain::{cannot_hold_blocks, check_from, known_dtype, opaque_form, source_form};
use super::quantization::CodesSource;
use super::renaming::no_tensor;
use super::step::{Operation, Step, TensorIndex};
use super::stored::Few;
use super::weight_rows::{Changes, WeightRows, WeightValues, changes};
use super::{Codes, Conversions, PlanFindings, Planned, Request, rewrite};
use crate::container::names::NameHashes;
use crate::container::onnx::model::{ModelGraph, TensorRole};
use crate::container::{Elements, Form, Input};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Opt, Result};
use crate::io::map::large_buffer;
use crate::lora::Merge;
use crate::operator::Operator;
use crate::quant::{PlainWeight, WeightEncoder};
use crate::read::SourceTensor;
use crate::select::{Candidate, KeptReason, Rename, Renames};
use crate::text::shorten;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// A plan with the steps that a planner has made so far. Refuses impossible conversions.
pub(super) struct Steps<'r, 'a> {
    request: &'r Request<'r>,
    pub planned: Planned<'a>,
    /// Types that the output is known to store.
    storable: Vec<Dtype>,
}

impl<'r, 'a> Steps<'r, 'a> {
    /// `graph` is that of the inputs, if they are an ONNX model and it was read before.
    pub(super) fn new(
        request: &'r Request<'r>,
        inputs: &'a [Input],
        graph: Option<&Arc<ModelGraph<'a>>>,
    ) -> Result<Self> {
        let is_model = request.container.format_info().is_changed_only();
        let graph = is_model.then(|| rewrite::graph(request, inputs, graph)).transpose()?;
        check_from(inputs.iter().flat_map(|input| &input.contents.tensors), request.from)?;
        let planned = Planned {
            inputs,
            graph,
            steps: large_buffer(inputs.iter().map(|input| input.contents.tensors.len()).sum()),
            conversions: Conversions::new(request),
            metadata: HashMap::new(),
            set: Vec::new(),
            keys: Vec::new(),
            computed: Vec::new(),
            side_files: Vec::new(),
            findings: PlanFindings::default(),
        };
        Ok(Self { request, planned, storable: Vec::new() })
    }

    /// Returns all stored tensors, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = TensorIndex> + use<'a> {
        let inputs = self.planned.inputs.iter().enumerate();
        inputs.flat_map(|(at, input)| (0..input.contents.tensors.len()).map(move |tensor| (at, tensor)))
    }

    /// Casts or copies all stored tensors, with their new names. Refuses wrong new names first.
    pub(super) fn values(&mut self, renames: &[Rename], must_match: bool) -> Result<()> {
        let new_names = Renames::new(renames);
        let input_names =
            self.planned.inputs.iter().flat_map(|input| input.contents.tensors.iter().map(|it| input.name_of(it)));
        if !renames.is_empty() {
            check_new_names(&input_names, (&new_names, renames), must_match)?; // containers refuse duplicate names
        }
        for (place, name) in self.places().zip(input_names) {
            self.plain(place, None)?;
            if let (Some(new), Some(step)) = (new_names.new_name(name), self.planned.steps.last_mut()) {
                step.rename(new);
            }
        }
        Ok(())
    }

    /// Casts or copies a tensor. If it is copied, `reason` takes precedence over the reason of the options.
    pub(super) fn plain(&mut self, place: TensorIndex, reason: Option<KeptReason>) -> Result<()> {
        let input = &self.planned.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let in_place = |error: Error| error.in_tensor(&tensor.name).in_file(input.path());
        let (source, form, target) = self.target(place).map_err(in_place)?;
        if let Some(error) = self.request.codes.filter(|_| target.is_ok()).and_then(Codes::undecoded) {
            return Err(error.in_file(input.path()));
        }
        // A nameless tensor stays nameless if it is the only one in the output too.
        let is_nameless = input.container.format_info().has_names && self.request.container.format_info().holds_one;
        let name = if is_nameless { &*tensor.name } else { input.name_of(tensor) };
        let to = self.request.container.form(target.unwrap_or(form.dtype()));
        if let Some(merge) = self.merge_of(input.name_of(tensor)) {
            let kept = target.err().and(reason);
            let step = self.merged((place, source), (name, &tensor.shape), merge, to, kept);
            self.planned.steps.push(step.map_err(in_place)?);
            return Ok(());
        }
        let conversion =
            self.planned.conversions.get(form, to, target.is_ok()).map_err(|error| error.in_tensor(name))?;
        let kept = target.err().map(|own| reason.unwrap_or(own));
        let mut step = Step::convert(place, source, Cow::Borrowed(name), conversion, kept);
        step.fortran_order = tensor.fortran_order && !source.is_transposed;
        self.planned.steps.push(step);
        Ok(())
    }

    /// Returns the form in which the output stores elements of a type.
    pub(super) fn form(&self, dtype: Dtype) -> Form {
        self.request.container.form(dtype)
    }

    /// Returns the changes that adapters make to a tensor of the input.
    pub(super) fn merge_of(&self, name: &str) -> Option<&'r Arc<Merge>> {
        self.request.merges?.of(name)
    }

    /// Makes the step for a tensor that adapters change.
    fn merged(
        &self,
        (place, source): (TensorIndex, SourceTensor<'a>),
        (name, shape): (&str, &[u64]),
        merge: &Arc<Merge>,
        to: Form,
        kept: Option<KeptReason>,
    ) -> Result<Step<'a>> {
        if !source.is_plain() {
            return Err(Error::new(
                "is compressed or in another order, and adapters are merged into plain tensors only",
            ));
        }
        let dtype = source.elements.dtype();
        if dtype.is_none_or(|dtype| !dtype.is_weight() && dtype != Dtype::Float64) {
            let what = dtype.map_or("text", Dtype::name);
            let error = Error::new(format!("holds {what}, and adapters are merged into floats of 16 bits and more"));
            return Err(error.of(Kind::UnusedAdapter).remedy("decode the weights that adapters change"));
        }
        let source = (place, Few::One(source), WeightValues::Rows(0));
        self.merged_cast(source, changes([Some(merge)]), (name, shape), to, kept)
    }

    /// Makes the step for values that adapters change, and that become plain numbers.
    pub(super) fn merged_cast(
        &self,
        (place, sources, values): (TensorIndex, Few<SourceTensor<'a>>, WeightValues),
        changes: Changes,
        (name, shape): (&str, &[u64]),
        to: Form,
        kept: Option<KeptReason>,
    ) -> Result<Step<'a>> {
        let encoder = WeightEncoder::Plain(Arc::new(PlainWeight::new(shape, Dtype::Float64, to.dtype())));
        let rows = WeightRows { sources, values, changes: Some(changes), encoder };
        let codes = CodesSource::Cast(Arc::new(self.planned.conversions.of_merged(to)?));
        let kept = kept.filter(|reason| *reason != KeptReason::Already);
        Ok(Step::encode(place, (name.to_owned(), to.dtype().name()), rows, codes, kept))
    }

    /// Casts a tensor, or copies it without a type, with another name and shape. `kept` is the reason for not
    /// quantizing it, or for copying it.
    pub(super) fn stored(
        &mut self,
        place: TensorIndex,
        (name, shape): (&str, &[u64]),
        to: Option<Dtype>,
        kept: Option<KeptReason>,
    ) -> Result<()> {
        let input = &self.planned.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let in_place = |error: Error| error.in_tensor(input.name_of(tensor)).in_file(input.path());
        let form = source_form(tensor, None).map_err(in_place)?;
        let source = SourceTensor {
            files: &input.files,
            tensor,
            elements: tensor.elements,
            is_transposed: tensor.fortran_order,
        };
        let target = to.unwrap_or(form.dtype());
        if self.request.container.stores(target).is_none() {
            return Err(in_place(self.request.container.refusal(target, true)));
        }
        let merge = self.merge_of(input.name_of(tensor));
        if let Some(merge) = merge.filter(|_| *shape == *tensor.shape) {
            let to = self.request.container.form(target);
            let step = self.merged((place, source), (name, shape), merge, to, kept).map_err(in_place)?;
            self.planned.steps.push(step);
            return Ok(());
        }
        let conversion = self.planned.conversions.get(form, self.request.container.form(target), to.is_some());
        let name = Cow::Owned(name.to_owned());
        let mut step = Step::convert(place, source, name, conversion.map_err(in_place)?, kept);
        if *shape != *tensor.shape {
            step.results[0].extra.get_or_insert_default().shape = Some(shape.into());
        }
        self.planned.steps.push(step);
        Ok(())
    }

    /// Adds a step that decodes or quantizes a weight. Refuses a weight that cannot be read in pieces, or that the output
    /// cannot store.
    pub(super) fn weight(&mut self, step: Step<'a>) -> Result<()> {
        let container = self.request.container;
        let held = |part: usize| matches!(&step.how, Operation::Decode(decoder) if decoder.held(part).is_some());
        for (_, source) in step.sources.iter().enumerate().filter(|(part, _)| !held(*part)) {
            source.unpack()?;
            if !source.is_plain() {
                let message = "quantized weights are read from and made of .safetensors files only";
                return Err(source.error(Error::new(message)));
            }
        }
        let refuse = |error: Error| Err(step.sources[0].error(error));
        let quantization = step.quantization();
        // The planner of GGUF files has chosen a format for weights without a grid.
        if quantization.is_none_or(|weight| weight.rows.encoder.grid().is_some()) {
            if let Some(weight) = quantization
                && !container.format_info().is_changed_only()
            {
                if weight.rows.encoder.layout().nodes.is_some() {
                    let error = Error::new("the weights of an ONNX model are quantized in an ONNX model");
                    return refuse(error.with(Opt::OUTPUT, "name an output that ends in .onnx"));
                }
                if container.format_info().extension != "safetensors" {
                    let error = Error::new("engines read quantized weights from .safetensors files only");
                    return refuse(error.with(Opt::OUTPUT, "name a .safetensors file or a folder"));
                }
            }
            let mut dtypes = step.new_tensors().map(|(_, dtype, _)| dtype);
            if let Some(dtype) = dtypes.find(|dtype| container.stores(*dtype).is_none()) {
                return refuse(container.refusal(dtype, true));
            }
        }
        self.planned.steps.push(step);
        Ok(())
    }

    /// Returns the role of a tensor of an ONNX model if it is a scale.
    pub(super) fn role_of_scale(&self, place: TensorIndex) -> Option<KeptReason> {
        let role = self.planned.graph.as_ref()?.role(place.1)?;
        (role == TensorRole::Scale).then_some(KeptReason::Role(role))
    }

    /// Gives the tensors their new names, and returns the plan. A pattern of names must match if `must_match`. Refuses a cast
    /// that leaves codes as they are although no option requests that.
    pub(super) fn finish(mut self, renames: &[Rename], must_match: bool) -> Result<Planned<'a>> {
        if !renames.is_empty() {
            let new_names = Renames::new(renames);
            check_new_names(&self.planned.steps.iter().map(Step::name), (&new_names, renames), must_match)?;
            for step in &mut self.planned.steps {
                if let Some(new) = new_names.new_name(step.name()) {
                    step.rename(new);
                }
            }
        }
        self.drop_tensors_of_model()?;
        self.check_codes()?;
        if let Some(rounding) = self.request.rounding {
            for step in &mut self.planned.steps {
                if let Operation::Encode(weight) = &mut step.how {
                    weight.round_at_random(rounding).map_err(|error| step.sources[0].error(error))?;
                }
            }
        }
        Ok(self.planned)
    }

    /// Leaves out the steps for tensors of ONNX models that the output does not have.
    fn drop_tensors_of_model(&mut self) -> Result<()> {
        let dropped =
            |place: TensorIndex| self.planned.inputs[place.0].contents.dropped.binary_search(&place.1).is_ok();
        self.planned.steps.retain(|step| !dropped(step.place));
        let (Some(graph), [input]) = (&self.planned.graph, self.planned.inputs) else { return Ok(()) };
        match input.contents.dropped.iter().find(|at| !graph.is_unused(**at)) {
            Some(used) => {
                let error = Error::new("cannot be left out of an ONNX model: its nodes or outputs use it");
                Err(error.in_tensor(input.name_of(&input.contents.tensors[*used])))
            }
            None => Ok(()),
        }
    }

    fn check_codes(&self) -> Result<()> {
        let Some(codes) = self.request.codes else { return Ok(()) };
        let has_cast = self.planned.steps.iter().any(Step::is_converted);
        if !has_cast && !matches!(self.request.operator, Operator::Cast(_)) {
            return Ok(());
        }
        for step in &self.planned.steps {
            let (input, Some(kept)) = (&self.planned.inputs[step.place.0], step.kept) else { continue };
            let name = input.name_of(step.source());
            if let Some(error) = codes.left_by_cast(name, kept, has_cast, self.request.selection) {
                return Err(error.in_tensor(name).in_file(input.path()));
            }
        }
        Ok(())
    }

    /// Decides about a tensor: how it is read, and its new type or the reason for copying it.
    fn target(&mut self, place: TensorIndex) -> Result<(SourceTensor<'a>, Form, Result<Dtype, KeptReason>)> {
        let Request { operator, selection, from, container, codes, .. } = *self.request;
        let input = &self.planned.inputs[place.0];
        let tensor = &input.contents.tensors[place.1];
        let (name, dtype) = (input.name_of(tensor), known_dtype(tensor, from));
        let is_alone = input.container.format_info().holds_one;
        let target = selection.target(&Candidate { name, dtype, rank: tensor.shape.len(), is_alone });
        let files = &input.files[..];
        if tensor.elements == Elements::Opaque {
            let formats = [&input.container.format_info(), &container.format_info()];
            let form = opaque_form(tensor, target.is_ok(), formats)?;
            let source = SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false };
            return Ok((source, form, Err(KeptReason::LeftOut)));
        }
        if let Elements::Blocks(format) = tensor.elements {
            let refusal = codes.and_then(|codes| codes.refusal(name, selection));
            return Err(refusal.unwrap_or_else(|| cannot_hold_blocks(container, format)));
        }
        // A tensor that is copied keeps its stored type, if it has one.
        let is_untyped = matches!(tensor.elements, Elements::Untyped(_));
        let form = source_form(tensor, from.filter(|_| target.is_ok() || is_untyped))?;
        if let Ok(target) = target
            && (target != form.dtype() || !matches!(operator, Operator::Promote(_)))
        {
            operator.check(form.dtype(), target)?;
        }
        let mut target = target.and_then(|target| {
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
        if !self.storable.contains(&dtype) {
            if container.stores(dtype).is_none() {
                let are_several =
                    self.planned.inputs.iter().map(|input| input.contents.tensors.len()).sum::<usize>() > 1;
                return Err(container.refusal(dtype, are_several));
            }
            self.storable.push(dtype);
        }
        if let (Some(graph), Ok(to)) = (&self.planned.graph, target) {
            let role = graph.role_for(place.1, to);
            if let Some(reason) = rewrite::kept(self.request, role, (tensor, name), form.dtype(), to)? {
                target = Err(reason);
            }
        }
        let is_transposed = tensor.fortran_order && !container.format_info().has_fortran_order;
        Ok((SourceTensor { files, tensor, elements: Elements::Typed(form), is_transposed }, form, target))
    }
}

/// Refuses names and, if `must_match`, patterns that no tensor has, and two tensors of one new name.
fn check_new_names<'n>(
    names: &(impl Iterator<Item = &'n str> + Clone),
    (renames, list): (&Renames, &[Rename]),
    must_match: bool,
) -> Result<()> {
    let new_name = |name: &'n str| renames.new_name(name).map_or(Cow::Borrowed(name), Cow::Owned);
    let mut is_used = vec![false; list.len()];
    // There may be a million names, so only their hashes are kept.
    let mut hashes = NameHashes::default();
    for name in names.clone() {
        renames.fitting(name).for_each(|at| is_used[at] = true);
        let new = new_name(name);
        if new.is_empty() && !name.is_empty() {
            return Err(Error::new("its new name would be empty").in_tensor(name));
        }
        hashes.add(&new);
    }
    if let Some(repeated) = renames.repeated().filter(|repeated| renames.fitting(repeated).any(|at| is_used[at])) {
        return Err(Error::new("is renamed twice").in_tensor(repeated));
    }
    let is_wrong = |(rename, is_used): &(&Rename, bool)| !is_used && (must_match || !rename.is_pattern());
    if let Some((rename, _)) = list.iter().zip(is_used).find(is_wrong) {
        return Err(no_tensor(rename, names.clone()));
    }
    let Some(clash) = hashes.repeated(names.clone().map(new_name)) else { return Ok(()) };
    let of_clash = names.clone().filter(|name| new_name(name) == clash).take(2);
    let both: Vec<String> = of_clash.map(|name| format!("'{}'", shorten(name))).collect();
    Err(Error::new(format!("two tensors would have this name: {}", both.join(" and "))).in_tensor(&clash))
}
