//! Turns the modules of an adapter into changes of the base's weights.

use super::adapter::{Adapter, AdapterModule, AdapterPart, AdapterTensor, Dialect};
use super::deltas::RawDelta;
use super::matrix::{Delta, Matrix};
use super::merge::{Decompose, How, WeightChange};
use super::names::{BaseNames, BaseTensor, DeltaTarget, NameRule};
use super::scale::Scales;
use crate::error::{Error, Kind, Result};
use crate::progress::LoraNote;
use crate::read::Model;
use crate::text::{first_few, shorten};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The changes of all weights, by the index of the base's tensor.
pub(super) struct Changes<'b, 'm> {
    pub base: &'b BaseNames<'m>,
    pub model: &'b Model<'m>,
    pub of: BTreeMap<usize, Vec<WeightChange>>,
    pub notes: Vec<LoraNote>,
}

/// The changes of an adapter, for its description.
#[derive(Default)]
pub(super) struct Changed {
    rank: Option<[u64; 2]>,
    scale: Option<[f64; 2]>,
    /// The name of the module that is being added.
    module: String,
    mapping: Vec<MappedModule>,
    /// The names of the adapter's tensors that match nothing.
    pub unmatched: Vec<String>,
}

impl Changed {
    fn count(&mut self, weight: &BaseTensor, rank: Option<u64>, scale: f64) {
        self.map(weight, rank, Some(scale));
        if let Some(rank) = rank {
            let [least, most] = self.rank.unwrap_or([rank; 2]);
            self.rank = Some([least.min(rank), most.max(rank)]);
        }
        let [least, most] = self.scale.unwrap_or([scale; 2]);
        self.scale = Some([least.min(scale), most.max(scale)]);
    }

    fn map(&mut self, weight: &BaseTensor, rank: Option<u64>, scale: Option<f64>) {
        self.mapping.push(MappedModule { module: self.module.clone(), weight: weight.name.to_owned(), rank, scale });
    }

    /// Returns the facts for reports.
    pub(super) fn finish(self, adapter: &Adapter, strength: f64) -> AdapterSummary {
        let method = adapter.config["peft_type"].as_str().or(adapter.config["fine_tune_type"].as_str());
        let distinct = |is_replaced: bool| {
            let mapping = self.mapping.iter().filter(|module| module.scale.is_none() == is_replaced);
            mapping.map(|module| &module.weight).collect::<BTreeSet<_>>().len()
        };
        AdapterSummary {
            path: adapter.path.clone(),
            dialect: adapter.dialect.name(),
            method: method.unwrap_or("lora").to_lowercase(),
            strength,
            rank: self.rank,
            scale: self.scale,
            weights: distinct(false),
            replaced: distinct(true),
            mapping: self.mapping,
            unmatched: self.unmatched,
        }
    }
}

/// A module or a tensor of an adapter, with a weight that it changes.
#[derive(Clone, Debug, Serialize)]
pub struct MappedModule {
    pub module: String,
    /// The name of the weight in the base.
    pub weight: String,
    pub rank: Option<u64>,
    /// The factor of its delta, without the strength; `None` if it replaces values.
    pub scale: Option<f64>,
}

/// Facts about an adapter for reports.
#[derive(Clone, Debug)]
pub struct AdapterSummary {
    pub path: PathBuf,
    pub dialect: &'static str,
    /// The method, such as `LORA`.
    pub method: String,
    pub strength: f64,
    /// The smallest and the largest rank, if the method has one.
    pub rank: Option<[u64; 2]>,
    /// The smallest and the largest scale.
    pub scale: Option<[f64; 2]>,
    /// The number of weights that get deltas.
    pub weights: usize,
    /// The number of weights that are replaced, or some rows of them.
    pub replaced: usize,
    pub mapping: Vec<MappedModule>,
    /// The names of its tensors that match nothing.
    pub unmatched: Vec<String>,
}

impl AdapterSummary {
    /// Describes the adapter for JSON.
    pub(crate) fn json(&self) -> Value {
        let range = |name: [&str; 2], [least, most]: [Value; 2]| json!({ name[0]: least, name[1]: most });
        json!({
            "path": self.path.to_string_lossy(),
            "dialect": self.dialect,
            "method": self.method,
            "strength": self.strength,
            "rank": self.rank.map(|rank| range(["min", "max"], rank.map(Value::from))),
            "scale": self.scale.map(|scale| range(["min", "max"], scale.map(Value::from))),
            "weights": self.weights,
            "replaced": self.replaced,
        })
    }
}

/// The matrix that a module changes: a tensor of the base, or a part of it.
struct ChangedMatrix {
    tensor: usize,
    start: u64,
    rows: u64,
    columns: u64,
    swaps_halves: bool,
}

/// An adapter with what all of its modules share.
struct Context<'a> {
    adapter: &'a Adapter,
    strength: f64,
    rule: Option<NameRule>,
    scales: Option<Scales>,
}

impl Context<'_> {
    /// Returns the name of a module without its prefix, as configs name it.
    fn name(&self, module: &str) -> Option<String> {
        match self.rule {
            Some(rule) => rule.apply(&module.replace(".base_layer", "")),
            None => Some(module.to_owned()),
        }
    }
}

impl Changes<'_, '_> {
    /// Adds the changes of an adapter. Returns its summary, and the names of the tensors that match nothing.
    pub(super) fn add(&mut self, adapter: &Adapter, strength: f64) -> Result<Changed> {
        let rule = matches!(adapter.dialect, Dialect::Peft | Dialect::Mlx | Dialect::Dotted).then(|| {
            let modules: Vec<String> = adapter.modules.iter().map(|it| it.name.replace(".base_layer", "")).collect();
            let whole = adapter.whole.iter().filter_map(|it| it.name.rsplit_once('.').map(|(module, _)| module));
            self.base.rule(modules.iter().map(String::as_str).chain(whole))
        });
        let scales = Scales::of(adapter)?;
        let context = &Context { adapter, strength, rule, scales };
        let mut summary = Changed::default();
        for tensor in &adapter.whole {
            summary.module.clone_from(&tensor.name);
            if !self.add_whole(context, tensor, &mut summary)? {
                summary.unmatched.push(tensor.name.clone());
            }
        }
        for module in &adapter.modules {
            summary.module.clone_from(&module.name);
            if !self.add_module(context, module, &mut summary).map_err(|error| module.explain(error))? {
                let names = module.parts.values().map(|tensor| tensor.name.clone());
                let mut names: Vec<String> = names.collect();
                names.sort();
                summary.unmatched.extend(names);
            }
        }
        let init = adapter.config["init_lora_weights"].as_str().unwrap_or_default();
        if ["pissa", "corda", "olora", "loftq", "mica"].iter().any(|name| init.starts_with(name)) {
            self.notes.push(LoraNote::Residual(adapter.path.clone(), init.to_owned()));
        }
        if summary.scale == Some([0.0, 0.0]) {
            self.notes.push(LoraNote::NoEffect(adapter.path.clone()));
        }
        Ok(summary)
    }

    fn push(&mut self, place: &ChangedMatrix, how: How) {
        let &ChangedMatrix { tensor, start, rows, columns, .. } = place;
        let change = WeightChange { start, rows, columns, how };
        self.of.entry(tensor).or_default().push(change);
    }

    /// Returns the matrix of a target: the first dimension and all others; of an expert, its own.
    fn place(&self, target: &DeltaTarget) -> Result<ChangedMatrix> {
        let base = &self.base.tensors[target.tensor];
        let shape = if target.expert.is_some() { &base.shape[1..] } else { base.shape };
        let rows = shape.first().copied().unwrap_or(1);
        let columns: u64 = shape.iter().skip(1).product();
        let (first, count) = target.rows.unwrap_or((0, rows));
        if target.swaps_halves && !rows.is_multiple_of(2) {
            return Err(Error::new("belongs to rows of which two halves cannot be made"));
        }
        let start = target.expert.unwrap_or(0) * rows * columns + first * columns;
        Ok(ChangedMatrix { tensor: target.tensor, start, rows: count, columns, swaps_halves: target.swaps_halves })
    }

    /// Adds a tensor that takes the place of one of the base. False if there is none.
    fn add_whole(&mut self, context: &Context, tensor: &AdapterTensor, summary: &mut Changed) -> Result<bool> {
        let Context { adapter, strength, .. } = *context;
        if adapter.dialect != Dialect::Peft {
            return Ok(false);
        }
        let Some(name) = context.name(&tensor.name) else { return Ok(false) };
        let stem = name.strip_suffix(".weight").and_then(|stem| self.base.dotted(stem)).map(|target| target.tensor);
        let Some(at) = self.base.find(&name).or(stem) else { return Ok(false) };
        let base = &self.base.tensors[at];
        if *base.shape != *tensor.shape {
            let what = format!("has the shape {:?}, and {:?} in the model", tensor.shape, base.shape);
            let error = Error::new(what).in_tensor(&tensor.name);
            return Err(error.remedy("resize the embeddings of the model first, or take another base"));
        }
        self.check_values(at)?;
        if self.is_same(at, tensor)? {
            return Ok(true); // a copy of the frozen base
        }
        if strength.to_bits() != 1.0_f64.to_bits() {
            let error = Error::new("is a whole weight, for which a strength other than 1 has no meaning");
            return Err(error.in_tensor(&tensor.name).remedy("take the strength 1"));
        }
        if tensor.name.contains(".base_layer.weight") {
            self.notes.push(LoraNote::Replaces(base.name.to_owned()));
        }
        let place = self.place(&DeltaTarget::whole(at))?;
        summary.map(&self.base.tensors[at], None, None);
        self.push(&place, How::Replace(Delta::Whole(tensor.matrix.clone())));
        Ok(true)
    }

    /// True if a stored tensor of the base has the values of a tensor.
    fn is_same(&self, at: usize, tensor: &AdapterTensor) -> Result<bool> {
        /// Elements that are compared at a time.
        const STEP: u64 = 1 << 16;
        let base = &self.base.tensors[at];
        let (Some(stored), Some(dtype)) = (base.stored, base.dtype) else { return Ok(false) };
        let source = self.model.stored(stored);
        let Some(mapped) = source.mapped().filter(|_| source.is_plain()) else { return Ok(false) };
        let width = dtype.bits() as usize / 8;
        let all = tensor.matrix.reshaped([1, tensor.count()]);
        let (mut own, mut theirs) = (Vec::new(), Vec::new());
        for start in (0..all.columns).step_by(STEP as usize) {
            let end = all.columns.min(start + STEP);
            own.resize((end - start) as usize, 0.0);
            all.read(0, start..end, &mut own);
            let bytes = mapped.read(start as usize * width..end as usize * width)?;
            super::matrix::widen(dtype, bytes, &mut theirs);
            if own != theirs {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses a tensor of the base that holds codes as if they were values.
    fn check_values(&self, at: usize) -> Result<()> {
        let base = &self.base.tensors[at];
        match base.dtype {
            Some(dtype) if !super::matrix::is_plain(dtype) => {
                let what = format!("of the model is stored as {dtype}, without scales: codes are not values");
                Err(Error::new(what).in_tensor(base.name).remedy("dequantize the model first, with its config.json"))
            }
            _ => Ok(()),
        }
    }

    /// Adds the changes of a module. False if the base has no place for it.
    fn add_module(&mut self, context: &Context, module: &AdapterModule, summary: &mut Changed) -> Result<bool> {
        let adapter = context.adapter;
        if module.parts.keys().all(|part| matches!(part, AdapterPart::Alpha | AdapterPart::Reshape)) {
            return Ok(false);
        }
        let Some(name) = context.name(&module.name) else { return Ok(false) };
        let target = match adapter.dialect {
            Dialect::Gguf => self.base.find(&module.name).map(DeltaTarget::whole),
            Dialect::Kohya => self.base.underscored(&module.name)?,
            Dialect::Peft | Dialect::Mlx | Dialect::Dotted => self.base.dotted(&name),
        };
        if let Some(tokens) = module.part(AdapterPart::Tokens) {
            return match target {
                Some(target) => self.add_tokens(context, (&name, tokens), &target, summary).map(|()| true),
                None => Ok(false),
            };
        }
        let given = match (adapter.dialect, &context.scales) {
            (Dialect::Peft, Some(scales)) => Some(scales.get(&name)?),
            _ => None,
        };
        if let (None, Some(bank), Some((scale, _))) = (&target, self.base.bank(&name), given)
            && module.has(AdapterPart::Down)
        {
            return self.add_experts(context, module, (&name, &bank), scale, summary).map(|()| true);
        }
        let Some(target) = target else { return Ok(false) };
        self.check_values(target.tensor)?;
        match adapter.dialect {
            Dialect::Mlx => self.add_mlx(context, module, &name, &target, summary)?,
            Dialect::Gguf => self.add_gguf(context, module, &target, summary)?,
            Dialect::Peft | Dialect::Kohya | Dialect::Dotted => {
                self.add_common(context, module, &name, &target, given, summary)?;
            }
        }
        Ok(true)
    }

    /// Adds a module of PEFT, kohya or diffusers. `given` is the scale and the rank that a config gives.
    fn add_common(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        name: &str,
        target: &DeltaTarget,
        given: Option<(f64, f64)>,
        summary: &mut Changed,
    ) -> Result<()> {
        let (place, strength) = (self.place(target)?, context.strength);
        self.add_differences(context, module, &place, summary)?;
        let Some(RawDelta { delta, rank }) = module.delta()? else {
            let is_known =
                [AdapterPart::Diff, AdapterPart::DiffBias, AdapterPart::Set].iter().any(|part| module.has(*part));
            return if is_known { Ok(()) } else { Err(module.incomplete()) };
        };
        let is_lora = matches!(delta, Delta::Product(..)) && !module.has(AdapterPart::Mid);
        if let (Some((_, wanted)), Some(rank)) = (given, rank)
            && context.adapter.config["peft_type"] == "LORA"
            && wanted.to_bits() != (rank as f64).to_bits()
        {
            let what = format!("lora_A has the rank {rank}, and the config says {wanted}: the scale would be wrong");
            return Err(Error::new(what).remedy("download the adapter again, with its own adapter_config.json"));
        }
        let scale = match given {
            Some((scale, _)) => scale,
            None => self.scale_of_file(context, module, name, rank)?,
        };
        if !scale.is_finite() {
            return Err(Error::new(format!("its scale would be {scale}")));
        }
        let is_table = module.has(AdapterPart::EmbeddingDown);
        let shape = [place.rows, place.columns];
        let fits = |delta: &Delta| delta.shape() == shape;
        let is_flagged = context.adapter.config["fan_in_fan_out"] == true && !is_table;
        let is_matrix = self.base.tensors[target.tensor].shape.len() == 2 && context.adapter.dialect == Dialect::Peft;
        let is_transposed = is_flagged || is_matrix && is_lora && !fits(&delta) && fits(&delta.transposed());
        let delta = if is_transposed { delta.transposed() } else { delta };
        self.check_fit(&place, &delta)?;
        summary.count(&self.base.tensors[target.tensor], rank, scale);
        if let Some(magnitude) = module.part(AdapterPart::Magnitude) {
            let is_peft = context.adapter.dialect == Dialect::Peft;
            // PEFT scales the delta within the decomposition, and ComfyUI the whole change.
            let is_whole = is_peft || strength.to_bits() == 1.0_f64.to_bits();
            let parts = (if is_peft { scale * strength } else { scale }, (!is_whole).then_some(strength));
            // In one dimension, each place of the kernel of a convolution has the length of its channel.
            let area = self.base.tensors[target.tensor].shape.iter().skip(2).product::<u64>().max(1);
            let is_of_columns = !is_peft && is_of_columns(magnitude, shape, area);
            let columns_each = if is_transposed { Some(1) } else { is_of_columns.then_some(area) };
            self.decompose(&place, delta, parts, (magnitude, columns_each))?;
        } else {
            self.add_delta(&place, delta, scale * strength)?;
        }
        if let Some(bias) = module.part(AdapterPart::Bias) {
            self.add_bias(target, bias, scale * strength)?;
        }
        Ok(())
    }

    /// Returns the scale that the tensors or the metadata of a file give to a module.
    fn scale_of_file(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        name: &str,
        rank: Option<u64>,
    ) -> Result<f64> {
        let divided = |alpha: f64| rank.map_or(1.0, |rank| alpha / rank as f64);
        match (module.part(AdapterPart::Alpha), &context.scales) {
            (Some(alpha), _) if alpha.count() == 1 => Ok(divided(alpha.matrix.scalar())),
            (Some(alpha), _) => Err(Error::new("has more than one value").in_tensor(&alpha.name)),
            (None, Some(scales)) => {
                let (scale, _) = scales.get(name)?;
                let is_noted = self.notes.iter().any(|note| matches!(note, LoraNote::MetadataScale(..)));
                if !is_noted && scale.to_bits() != 1.0_f64.to_bits() {
                    self.notes.push(LoraNote::MetadataScale(context.adapter.path.clone(), scale));
                }
                Ok(scale)
            }
            (None, None) => Ok(1.0),
        }
    }

    /// Adds differences and whole weights of a module, and differences of its bias.
    fn add_differences(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        place: &ChangedMatrix,
        summary: &mut Changed,
    ) -> Result<()> {
        let shape = [place.rows, place.columns];
        for part in [AdapterPart::Set, AdapterPart::Diff] {
            let Some(tensor) = module.part(part) else { continue };
            if tensor.count() != place.rows * place.columns {
                return Err(self.misfit(&Delta::Whole(tensor.matrix.clone()), place.tensor, shape));
            }
            let delta = Delta::Whole(tensor.matrix.reshaped(shape));
            if part == AdapterPart::Set {
                summary.map(&self.base.tensors[place.tensor], None, None);
                self.push(place, How::Replace(delta));
            } else {
                summary.count(&self.base.tensors[place.tensor], None, 1.0);
                self.add_delta(place, delta, context.strength)?;
            }
        }
        if let Some(bias) = module.part(AdapterPart::DiffBias) {
            let rows = Some((place.start / place.columns.max(1), place.rows)).filter(|_| place.start > 0);
            let target = DeltaTarget { rows, swaps_halves: place.swaps_halves, ..DeltaTarget::whole(place.tensor) };
            summary.count(&self.base.tensors[place.tensor], None, 1.0);
            self.add_bias(&target, bias, context.strength)?;
        }
        Ok(())
    }

    fn misfit(&self, delta: &Delta, tensor: usize, [rows, columns]: [u64; 2]) -> Error {
        let base = &self.base.tensors[tensor];
        let ([high, wide], whole) = (delta.shape(), base.shape);
        let of = if whole.len() == 2 && whole == [rows, columns] {
            format!("'{}' of the model is {whole:?}", shorten(base.name))
        } else {
            format!("its place in '{}' {whole:?} of the model is [{rows}, {columns}]", shorten(base.name))
        };
        Error::new(format!("makes a delta of [{high}, {wide}], and {of}"))
            .remedy("the adapter belongs to another base, or to one with another vocabulary")
    }

    /// Refuses a delta of another shape than its place.
    fn check_fit(&self, place: &ChangedMatrix, delta: &Delta) -> Result<()> {
        let shape = [place.rows, place.columns];
        if delta.shape() == shape { Ok(()) } else { Err(self.misfit(delta, place.tensor, shape)) }
    }

    /// Adds a delta of the shape of its place, times a factor.
    fn add_delta(&mut self, place: &ChangedMatrix, delta: Delta, factor: f64) -> Result<()> {
        self.check_fit(place, &delta)?;
        self.push(place, How::Add { delta, factor, swaps_halves: place.swaps_halves });
        Ok(())
    }

    /// Adds a delta to the bias of a layer.
    fn add_bias(&mut self, target: &DeltaTarget, bias: &AdapterTensor, factor: f64) -> Result<()> {
        let Some(tensor) = self.base.bias_of(target.tensor) else {
            return Err(Error::new("is for a bias, and the layer of the model has none").in_tensor(&bias.name));
        };
        self.check_values(tensor)?;
        let place = self.place(&DeltaTarget { tensor, expert: None, ..target.clone() })?;
        if bias.count() != place.rows * place.columns {
            return Err(self.misfit(&Delta::Whole(bias.matrix.clone()), tensor, [place.rows, place.columns]));
        }
        self.add_delta(&place, Delta::Whole(bias.matrix.reshaped([place.rows, place.columns])), factor)
    }

    fn decompose(
        &mut self,
        place: &ChangedMatrix,
        delta: Delta,
        (factor, share): (f64, Option<f64>),
        (magnitude, columns_each): (&AdapterTensor, Option<u64>),
    ) -> Result<()> {
        let wanted = columns_each.map_or(place.rows, |each| place.columns / each);
        if magnitude.count() != wanted {
            let what = format!("has {} values, and the weight {wanted} rows or columns", magnitude.count());
            return Err(Error::new(what).in_tensor(&magnitude.name));
        }
        if place.swaps_halves {
            return Err(Error::new("is a decomposed delta of rows that change places, which is not supported"));
        }
        let magnitude = magnitude.matrix.reshaped([1, magnitude.count()]).all();
        let decompose = Decompose { delta, factor, magnitude, columns_each, share, ratios: OnceLock::new() };
        self.push(place, How::Decompose(Box::new(decompose)));
        Ok(())
    }

    /// Adds rows of trained tokens: despite their name, they are the new rows.
    fn add_tokens(
        &mut self,
        context: &Context,
        (name, tokens): (&str, &AdapterTensor),
        target: &DeltaTarget,
        summary: &mut Changed,
    ) -> Result<()> {
        let wrong = |what: String| Err(Error::new(what).in_tensor(&tokens.name));
        let indices = match &context.adapter.config["trainable_token_indices"] {
            Value::Object(by_module) => by_module.iter().find(|(key, _)| name.ends_with(key.as_str())).map(|it| it.1),
            other => Some(other),
        };
        let indices = indices.and_then(Value::as_array);
        let indices: Option<Vec<u64>> = indices.and_then(|all| all.iter().map(Value::as_u64).collect());
        let place = self.place(target)?;
        self.check_values(target.tensor)?;
        let Some(indices) = indices.filter(|indices| indices.len() as u64 == tokens.matrix.rows) else {
            return wrong(format!("has {} rows, and its config gives other tokens", tokens.matrix.rows));
        };
        if let Some(most) = indices.iter().max().filter(|most| **most >= place.rows) {
            return wrong(format!("is for the token {most}, and the model has {} tokens", place.rows));
        }
        if tokens.matrix.columns != place.columns {
            return Err(self.misfit(&Delta::Whole(tokens.matrix.clone()), target.tensor, [place.rows, place.columns]));
        }
        let rows = indices.into_iter().zip(0..).collect();
        summary.map(&self.base.tensors[target.tensor], None, None);
        self.push(&place, How::ReplaceRows(rows, tokens.matrix.clone()));
        Ok(())
    }

    /// Adds a module of MLX: a linear layer, an embedding, or the experts of a switch layer.
    fn add_mlx(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        name: &str,
        target: &DeltaTarget,
        summary: &mut Changed,
    ) -> Result<()> {
        let parameters = &context.adapter.config["lora_parameters"];
        let scale = parameters["scale"].as_f64().filter(|scale| scale.is_finite());
        let scale = scale.ok_or_else(|| Error::new("its config has no lora_parameters.scale"))?;
        let (down, up) = (module.need(AdapterPart::Down)?, module.need(AdapterPart::Up)?);
        let factor = scale * context.strength;
        let place = self.place(target)?;
        if let (&[_, rank, _], &[experts, _, _]) = (&down.shape[..], &up.shape[..]) {
            summary.count(&self.base.tensors[target.tensor], Some(rank), scale);
            return self
                .add_stack(target.tensor, factor, experts, &|expert| (slice_of(up, expert), slice_of(down, expert)));
        }
        let is_table = name.ends_with("embed_tokens");
        let RawDelta { delta, rank } = if is_table {
            module.product(&down.matrix, &up.matrix)?
        } else {
            module.product(&up.matrix.transposed(), &down.matrix.transposed())?
        };
        if let (Some(rank), Some(wanted)) = (rank, parameters["rank"].as_u64())
            && rank != wanted
        {
            return Err(Error::new(format!("has the rank {rank}, and the config says {wanted}")));
        }
        self.check_fit(&place, &delta)?;
        summary.count(&self.base.tensors[target.tensor], rank, scale);
        match module.part(AdapterPart::Magnitude) {
            Some(magnitude) => self.decompose(&place, delta, (factor, None), (magnitude, None)),
            None => self.add_delta(&place, delta, factor),
        }
    }

    /// Adds a module of a GGUF adapter.
    fn add_gguf(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        target: &DeltaTarget,
        summary: &mut Changed,
    ) -> Result<()> {
        let (down, up) = (module.need(AdapterPart::Down)?, module.need(AdapterPart::Up)?);
        let alpha = context.adapter.metadata("adapter.lora.alpha").and_then(|text| text.parse::<f64>().ok());
        let rank = up.shape.last().copied().unwrap_or(1);
        // llama.cpp takes the scale 1 for an alpha of 0.
        let scale = alpha.filter(|alpha| *alpha != 0.0).map_or(1.0, |alpha| alpha / rank as f64);
        if !scale.is_finite() {
            return Err(Error::new("adapter.lora.alpha is not finite"));
        }
        let factor = scale * context.strength;
        summary.count(&self.base.tensors[target.tensor], Some(rank), scale);
        if let (&[_, _, _], &[experts, _, _]) = (&down.shape[..], &up.shape[..]) {
            return self
                .add_stack(target.tensor, factor, experts, &|expert| (slice_of(up, expert), slice_of(down, expert)));
        }
        let is_table = module.name.starts_with("token_embd");
        let down = if is_table { down.matrix.transposed() } else { down.matrix.clone() };
        let RawDelta { delta, .. } = module.product(&up.matrix, &down)?;
        self.add_delta(&self.place(target)?, delta, factor)
    }

    /// Adds a delta for each matrix of a stack, `[out, in]` as in the base. `of` returns the factors of an expert.
    fn add_stack(
        &mut self,
        tensor: usize,
        factor: f64,
        experts: u64,
        of: &dyn Fn(u64) -> (Matrix, Matrix),
    ) -> Result<()> {
        let base = &self.base.tensors[tensor];
        if base.shape.len() != 3 || base.shape[0] != experts {
            let what = format!("has {experts} experts, and '{}' of the model is {:?}", shorten(base.name), base.shape);
            return Err(Error::new(what));
        }
        for expert in 0..experts {
            let place = self.place(&DeltaTarget { expert: Some(expert), ..DeltaTarget::whole(tensor) })?;
            let (up, down) = of(expert);
            if up.columns != down.rows {
                return Err(Error::new(format!("its matrices have the ranks {} and {}", down.rows, up.columns)));
            }
            self.add_delta(&place, Delta::Product(up, down), factor)?;
        }
        Ok(())
    }

    /// Adds the parameters of all experts that PEFT adapts with two matrices: down is `[experts * rank, in]`, the expert
    /// slowest, and up is `[out, rank * experts]`, the expert fastest.
    fn add_experts(
        &mut self,
        context: &Context,
        module: &AdapterModule,
        (name, bank): (&str, &str),
        scale: f64,
        summary: &mut Changed,
    ) -> Result<()> {
        const BOTH: [&str; 2] = ["gate_up_proj", "down_proj"];
        let (down, up) = (module.need(AdapterPart::Down)?, module.need(AdapterPart::Up)?);
        let config = &context.adapter.config;
        let listed: Vec<&str> =
            config["target_parameters"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_wanted = |name: &&str| listed.iter().any(|it| it.rsplit('.').next() == Some(*name));
        let mut order: Vec<&str> = BOTH.into_iter().filter(|name| is_wanted(name)).collect();
        if order.is_empty() {
            order = BOTH.to_vec();
        }
        // PEFT wraps the parameters in their order in the module, so the first is the innermost.
        let depth = module.name.matches(".base_layer").count();
        let Some(parameter) = order.len().checked_sub(depth + 1).map(|at| order[at]) else {
            return Err(Error::new("wraps more parameters than its config lists"));
        };
        let rank =
            context.scales.as_ref().and_then(|scales| scales.rank.of_first(&[&format!("{name}.{parameter}"), name]));
        let rank = rank.filter(|rank| *rank >= 1.0 && *rank <= 4096.0 && rank.fract() == 0.0).map(|rank| rank as u64);
        let Some(rank) = rank.filter(|rank| down.matrix.rows == up.matrix.columns && down.matrix.rows % rank == 0)
        else {
            let what = format!("lora_A has {} rows, and lora_B {} columns", down.matrix.rows, up.matrix.columns);
            return Err(Error::new(format!("{what}, which are not a rank times a number of experts")));
        };
        let experts = down.matrix.rows / rank;
        let delta_of = |expert: u64| {
            let inputs = down.matrix.columns;
            let down = down.matrix.viewed([rank, inputs], expert * rank * inputs, [inputs, 1]);
            let up = up.matrix.viewed([up.matrix.rows, rank], expert, [rank * experts, experts]);
            Delta::Product(up, down)
        };
        let factor = scale * context.strength;
        if let Some(tensor) = self.base.find_stem(&format!("{bank}.{parameter}")) {
            self.check_values(tensor)?;
            let base = &self.base.tensors[tensor];
            let &[count, high, wide] = base.shape else {
                return Err(Error::new(format!("is for experts, and '{}' is no stack", shorten(base.name))));
            };
            if count != experts {
                return Err(Error::new(format!("has {experts} experts, and the model has {count}")));
            }
            let shape = delta_of(0).shape();
            let (is_as_stored, is_turned) = (shape == [high, wide], shape == [wide, high]);
            if !is_as_stored && !is_turned {
                return Err(self.misfit(&delta_of(0), tensor, [high, wide]));
            }
            // Square matrices do not show it: PEFT always turned them before 0.19.1, and some models store [in, out].
            let is_turned = if is_as_stored && is_turned { self.turns_square(config)? } else { is_turned };
            summary.count(&self.base.tensors[tensor], Some(rank), scale);
            for expert in 0..experts {
                let place = self.place(&DeltaTarget { expert: Some(expert), ..DeltaTarget::whole(tensor) })?;
                let delta = delta_of(expert);
                self.add_delta(&place, if is_turned { delta.transposed() } else { delta }, factor)?;
            }
            return Ok(());
        }
        let singles = self.base.singles(bank).map_or(0, |numbers| numbers.len() as u64);
        if singles != experts || !self.base.singles(bank).is_some_and(|all| (0..experts).all(|at| all.contains(&at))) {
            return Err(Error::new(format!("has {experts} experts, and the model has {singles}")));
        }
        let names = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];
        let has = |name: &str| self.base.find_stem(&format!("{bank}.0.{name}")).is_some();
        let Some([gate, above, below]) = names.into_iter().find(|names| has(names[0])) else {
            return Err(Error::new("is for experts whose names in the model are not known"));
        };
        let own = if parameter == "down_proj" { vec![below] } else { vec![gate, above] };
        for expert in 0..experts {
            let delta = delta_of(expert);
            let find = |name: &str| {
                let tensor = self.base.find_stem(&format!("{bank}.{expert}.{name}"));
                tensor.ok_or_else(|| Error::new(format!("the model lacks expert {expert} of '{}'", shorten(bank))))
            };
            let tensors = own.iter().map(|name| find(name)).collect::<Result<Vec<usize>>>()?;
            let &[high, wide] = self.base.tensors[tensors[0]].shape else {
                return Err(Error::new("is for experts that are no matrices in the model"));
            };
            let full = [high * tensors.len() as u64, wide];
            let delta = if delta.shape() == full { delta } else { delta.transposed() };
            if delta.shape() != full {
                return Err(self.misfit(&delta, tensors[0], full));
            }
            let Delta::Product(up, down) = delta else { unreachable!("it was made as a product") };
            for (part, tensor) in (0..).zip(tensors) {
                self.check_values(tensor)?;
                let place = self.place(&DeltaTarget::whole(tensor))?;
                if [place.rows, place.columns] != [high, wide] {
                    return Err(Error::new("is for experts of different shapes"));
                }
                let delta = Delta::Product(up.rows_from(part * high, high), down.clone());
                summary.count(&self.base.tensors[tensor], Some(rank), scale);
                self.add_delta(&place, delta, factor)?;
            }
        }
        Ok(())
    }

    /// True if PEFT turns the delta of experts with square matrices.
    fn turns_square(&self, config: &Value) -> Result<bool> {
        const TURNED: [&str; 4] = ["gpt_oss", "aria", "aria_text", "openai_privacy_filter"];
        let version = config["peft_version"].as_str().unwrap_or("0");
        let numbers: Vec<u64> =
            version.split(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect();
        if numbers[..numbers.len().min(3)] < [0, 19, 1][..] {
            return Ok(true);
        }
        let model: Option<Value> = self.model.config()?.and_then(|text| serde_json::from_str(text).ok());
        let kind = model.as_ref().and_then(|model| model["model_type"].as_str()).unwrap_or_default();
        Ok(TURNED.contains(&kind))
    }
}

/// True if the lengths of a decomposition belong to the columns of a weight: `[1, columns, ...]`. `area` columns share one.
fn is_of_columns(magnitude: &AdapterTensor, [rows, columns]: [u64; 2], area: u64) -> bool {
    let is_wide = magnitude.shape.len() > 1 && magnitude.shape[0] == 1;
    is_wide && rows != 1 && magnitude.count() == columns / area
}

/// Returns a matrix of a tensor of three dimensions.
fn slice_of(tensor: &AdapterTensor, at: u64) -> Matrix {
    let [_, rows, columns] = tensor.shape[..] else { unreachable!("the caller has matched the shape") };
    tensor.matrix.viewed([rows, columns], at * rows * columns, [columns, 1])
}

/// Returns the error for tensors that match nothing, with a name of either side.
pub(super) fn unmatched(all: usize, names: &[String], adapter: &Adapter, base: &BaseNames) -> Error {
    let modules = adapter.modules.get(adapter.modules.len() / 2).map(|module| module.name.as_str());
    let example = modules.or(adapter.whole.first().map(|tensor| tensor.name.as_str())).unwrap_or_default();
    let (count, listed) = (names.len(), first_few(names, 3));
    let what = format!(
        "{count} of {all} tensors of the adapter match no weight: {listed}; the adapter has names like '{}', and the model '{}'",
        shorten(example),
        shorten(base.example().unwrap_or_default()),
    );
    Error::new(what).in_file(&adapter.path).of(Kind::UnmatchedAdapter)
}
