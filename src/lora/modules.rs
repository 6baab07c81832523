//! Turns the modules of an adapter into changes of the base's weights.

use super::adapter::AdapterPart::{Alpha, Bias, Core, Diff, DiffBias, Down, Magnitude, Reshape, Set, Tokens, Up};
use super::adapter::FactorPair::{Embedding, Lora};
use super::adapter::{Adapter, AdapterModule, AdapterTensor, Dialect};
use super::deltas::RawDelta;
use super::matrix::{Delta, Matrix, is_plain};
use super::merge::{Decompose, How, WeightChange};
use super::names::{BaseNames, MergePlace, NameRule};
use super::summary::{AdapterSummary, MappedModule};
use super::tied::TiedWeights;
use crate::error::{Error, Opt, Result};
use crate::progress::LoraNote;
use crate::select::experts::ModelFacts;
use crate::text::{first_few, shorten};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// An adapter whose changes are found.
pub(super) struct AdapterChanges<'a, 'm> {
    pub adapter: &'a Adapter,
    pub strength: f64,
    pub base: &'a BaseNames<'m>,
    /// Facts from the config of the model.
    pub facts: &'a ModelFacts,
    pub tied: &'a TiedWeights,
    /// The rule for the names of its modules, if they have dots.
    pub rule: Option<NameRule>,
    /// The changes of all weights, by the index of the base's tensor. Those of this adapter are added.
    pub of: &'a mut BTreeMap<usize, Vec<WeightChange>>,
    pub notes: &'a mut Vec<LoraNote>,
    pub summary: AdapterSummary,
}

impl AdapterChanges<'_, '_> {
    /// Adds the changes of the adapter. Returns its summary, with the names of the tensors that match nothing.
    pub(super) fn add(mut self) -> Result<AdapterSummary> {
        let adapter = self.adapter;
        if matches!(adapter.dialect, Dialect::Peft | Dialect::Mlx | Dialect::Dotted) {
            let modules: Vec<String> = adapter.modules.iter().map(|it| it.name.replace(".base_layer", "")).collect();
            let whole = adapter.whole.iter().filter_map(|it| it.name.rsplit_once('.').map(|(module, _)| module));
            self.rule = Some(self.base.rule(modules.iter().map(String::as_str).chain(whole)));
        }
        for tensor in &adapter.whole {
            if !self.add_whole(tensor)? {
                self.summary.unmatched.push(tensor.name.clone());
            }
        }
        for module in &adapter.modules {
            if !self.add_module(module).map_err(|error| module.explain(error))? {
                let mut names: Vec<String> = module.parts.values().map(|tensor| tensor.name.clone()).collect();
                names.sort();
                self.summary.unmatched.extend(names);
            }
        }
        let init = adapter.config["init_lora_weights"].as_str().unwrap_or_default();
        if ["pissa", "corda", "olora", "loftq", "mica"].iter().any(|name| init.starts_with(name)) {
            self.notes.push(LoraNote::Residual(adapter.path.clone(), init.to_owned()));
        }
        if self.summary.scale() == Some([0.0, 0.0]) {
            self.notes.push(LoraNote::NoEffect(adapter.path.clone()));
        }
        Ok(self.summary)
    }

    /// Returns the name of a module without its prefix, as configs name it.
    fn name(&self, module: &str) -> Option<String> {
        match self.rule {
            Some(rule) => rule.apply(&module.replace(".base_layer", "")),
            None => Some(module.to_owned()),
        }
    }

    /// Records that a module changes a weight; without a scale, it replaces values.
    fn map(&mut self, module: &str, tensor: usize, rank: Option<u64>, scale: Option<f64>) {
        let weight = self.base.tensors[tensor].name().to_owned();
        self.summary.mapping.push(MappedModule { module: module.to_owned(), weight, rank, scale });
    }

    /// Adds a change of a weight, and of its copies. A weight that PEFT replaces is one of its own, unless it ties both.
    fn push(&mut self, place: MergePlace, how: How) -> Result<()> {
        let is_own = matches!(how, How::Replace(_)) && self.adapter.config["ensure_weight_tying"] != true;
        let copies = if is_own { Vec::new() } else { self.tied.copies(place.tensor, self.base)? };
        for tensor in copies {
            let [name, other] = [place.tensor, tensor].map(|at| self.base.tensors[at].name().to_owned());
            self.notes.push(LoraNote::Tied(name, Some(other)));
            let place = MergePlace { tensor, ..place };
            self.of.entry(tensor).or_default().push(WeightChange { place, how: how.clone() });
        }
        self.of.entry(place.tensor).or_default().push(WeightChange { place, how });
        Ok(())
    }

    /// Adds a tensor that takes the place of one of the base. False if there is none.
    fn add_whole(&mut self, tensor: &AdapterTensor) -> Result<bool> {
        let name = self.name(&tensor.name).filter(|_| self.adapter.dialect == Dialect::Peft);
        let Some(name) = name else { return Ok(false) };
        let stem = name.strip_suffix(".weight").and_then(|stem| self.base.dotted(stem)).map(|place| place.tensor);
        let Some(at) = self.base.find(&name).or(stem) else { return Ok(false) };
        let base = self.base.tensors[at];
        if *base.shape() != *tensor.shape {
            let what = format!("has the shape {:?}, and {:?} in the model", tensor.shape, base.shape());
            let error = Error::new(what).in_tensor(&tensor.name);
            return Err(error.remedy("resize the embeddings of the model first, or take another base"));
        }
        self.check_values(at)?;
        if self.is_same(at, tensor)? {
            return Ok(true); // a copy of the frozen base
        }
        if self.strength.to_bits() != 1.0_f64.to_bits() {
            let error = Error::new("is a whole weight, for which a strength other than 1 has no meaning");
            return Err(error.in_tensor(&tensor.name).remedy("take the strength 1"));
        }
        if tensor.name.contains(".base_layer.weight") {
            self.notes.push(LoraNote::Replaces(base.name().to_owned()));
        }
        self.map(&tensor.name, at, None, None);
        self.push(self.base.whole(at), How::Replace(Delta::Whole(tensor.matrix.clone())))?;
        Ok(true)
    }

    /// True if a stored tensor of the base has the values of a tensor.
    fn is_same(&self, at: usize, tensor: &AdapterTensor) -> Result<bool> {
        let base = self.base.tensors[at];
        let (Some(source), Some(dtype)) = (base.stored(), base.dtype()) else { return Ok(false) };
        let Some(mapped) = source.mapped().filter(|_| source.is_plain()) else { return Ok(false) };
        let (width, mut theirs) = (dtype.bits() as usize / 8, Vec::new());
        tensor.matrix.all_pieces(|range, own| {
            super::matrix::widen(dtype, mapped.read(range.start * width..range.end * width)?, &mut theirs);
            Ok(own == theirs)
        })
    }

    /// Refuses a tensor of the base that holds codes as if they were values.
    fn check_values(&self, at: usize) -> Result<()> {
        let base = self.base.tensors[at];
        match base.dtype() {
            Some(dtype) if !is_plain(dtype) => {
                let what = format!("of the model is stored as {dtype}, without scales: codes are not values");
                Err(Error::new(what).in_tensor(base.name()).remedy("dequantize the model first, with its config.json"))
            }
            _ => Ok(()),
        }
    }

    /// Adds the changes of a module. False if the base has no place for it.
    fn add_module(&mut self, module: &AdapterModule) -> Result<bool> {
        let adapter = self.adapter;
        if module.parts.keys().all(|part| matches!(part, Alpha | Reshape)) {
            return Ok(false);
        }
        let Some(name) = self.name(&module.name) else { return Ok(false) };
        let place = match adapter.dialect {
            Dialect::Gguf => self.base.find(&module.name).map(|at| self.base.whole(at)),
            Dialect::Kohya => self.base.underscored(&module.name)?,
            Dialect::Peft | Dialect::Mlx | Dialect::Dotted => self.base.dotted(&name),
        };
        module.check_methods()?;
        if let Some(tokens) = module.part(Tokens) {
            return place.map_or(Ok(false), |place| self.add_tokens(module, (&name, tokens), place).map(|()| true));
        }
        let scales = if adapter.dialect == Dialect::Peft { adapter.scales(module)? } else { None };
        let given = scales.map(|scales| scales.get(&name)).transpose()?;
        if let (None, Some(bank), Some((scale, _))) = (&place, self.base.bank(&name), given)
            && module.has(Down(Lora))
        {
            return self.add_bank(module, (&name, &bank), scale).map(|()| true);
        }
        let Some(place) = place else { return Ok(false) };
        self.check_values(place.tensor)?;
        self.add_differences(module, place)?;
        match module.delta(adapter.dialect)? {
            Some(delta) => self.add_layer(module, &name, place, delta)?,
            None if [Diff, DiffBias, Set].iter().any(|part| module.has(*part)) => {}
            None => return Err(module.incomplete()),
        }
        Ok(true)
    }

    /// Adds the delta of a module, with a decomposition and a bias if it has them.
    fn add_layer(&mut self, module: &AdapterModule, name: &str, place: MergePlace, found: RawDelta) -> Result<()> {
        let (adapter, strength) = (self.adapter, self.strength);
        let RawDelta { delta, rank } = found;
        self.check_rank(module, name, rank)?;
        let scale = adapter.scale(module, name, rank)?;
        let is_of_metadata = adapter.config.is_null() && adapter.scales(module)?.is_some();
        let is_noted = self.notes.iter().any(|note| matches!(note, LoraNote::MetadataScale(..)));
        if is_of_metadata && !is_noted && scale.to_bits() != 1.0_f64.to_bits() {
            self.notes.push(LoraNote::MetadataScale(adapter.path.clone(), scale));
        }
        let base = &self.base.tensors[place.tensor];
        if let Some(experts) = module.experts(adapter.dialect) {
            if base.shape().len() != 3 || base.shape()[0] != experts {
                let (name, shape) = (shorten(base.name()), base.shape());
                return Err(Error::new(format!("has {experts} experts, and '{name}' of the model is {shape:?}")));
            }
            let places = |expert| Ok(vec![self.base.matrix(place.tensor, expert)]);
            let factors = |expert| module.factors(adapter.dialect, expert);
            return self.add_experts(module, (experts, rank, scale), &places, &factors);
        }
        let is_peft = adapter.dialect == Dialect::Peft;
        let shape = [place.rows, place.columns];
        let fits = |delta: &Delta| delta.shape() == shape;
        let is_lora = matches!(delta, Delta::Product(..)) && is_peft && base.shape().len() == 2;
        let is_flagged = !module.has_any(Embedding) && self.is_stored_transposed(base.name());
        let is_transposed = is_lora && (is_flagged || !fits(&delta) && fits(&delta.transposed()));
        if is_peft {
            self.check_magnitude(module)?;
        }
        let delta = if is_transposed { delta.transposed() } else { delta };
        self.map(&module.name, place.tensor, rank, Some(scale));
        match module.part(Magnitude) {
            Some(magnitude) => self.decompose(place, (delta, scale), magnitude, is_transposed)?,
            None => self.add_delta(place, delta, scale * strength)?,
        }
        let bias = module.part(Bias);
        bias.map_or(Ok(()), |bias| self.add_bias(place, bias, scale * strength))
    }

    /// True if a weight of two dimensions is `[in, out]`. The class of its layer decides: PEFT corrects `fan_in_fan_out`,
    /// which counts only if the model is not known.
    fn is_stored_transposed(&self, weight: &str) -> bool {
        const LAYERS: [&str; 4] = ["c_attn.weight", "c_fc.weight", "c_proj.weight", "q_attn.weight"];
        let is_conv1d = self.facts.has_transposed_layers() && LAYERS.iter().any(|layer| weight.ends_with(layer));
        is_conv1d || self.facts.kind.is_none() && self.adapter.config["fan_in_fan_out"] == true
    }

    /// Refuses a magnitude that PEFT would ignore, and a lack of one that PEFT would fill with the lengths of the weight.
    fn check_magnitude(&self, module: &AdapterModule) -> Result<()> {
        let what = match (module.part(Magnitude), &self.adapter.config["use_dora"]) {
            (Some(_), Value::Bool(true)) | (None, Value::Bool(false) | Value::Null) => return Ok(()),
            (Some(tensor), _) => {
                let name = shorten(&tensor.name);
                format!("adapter_config.json does not set use_dora, without which peft ignores '{name}'")
            }
            (None, _) => "adapter_config.json sets use_dora, and the module has no lora_magnitude_vector".to_owned(),
        };
        Err(Error::new(what).remedy("download the adapter again, with its own adapter_config.json"))
    }

    /// Refuses a rank that is not that of a config or of metadata: the scale would be wrong.
    fn check_rank(&self, module: &AdapterModule, name: &str, rank: Option<u64>) -> Result<()> {
        let config = &self.adapter.config;
        let scales = self.adapter.scales(module)?.filter(|_| config.is_null() || config["peft_type"] == "LORA");
        let wanted = match scales {
            Some(scales) => Some(scales.get(name)?.1),
            None => config["lora_parameters"]["rank"].as_u64().map(|rank| rank as f64),
        };
        let (Some(rank), Some(wanted)) = (rank, wanted) else { return Ok(()) };
        if wanted.to_bits() == (rank as f64).to_bits() {
            return Ok(());
        }
        let what = format!("has the rank {rank}, and the config says {wanted}");
        Err(match scales {
            Some(_) if config.is_null() => Error::new(format!("has the rank {rank}, and its metadata {wanted}"))
                .remedy("download the adapter again"),
            Some(_) => Error::new(format!("lora_A {what}: the scale would be wrong"))
                .remedy("download the adapter again, with its own adapter_config.json"),
            None => Error::new(what),
        })
    }

    /// Adds differences and whole weights of a module, and differences of its bias.
    fn add_differences(&mut self, module: &AdapterModule, place: MergePlace) -> Result<()> {
        for part in [Set, Diff] {
            let Some(tensor) = module.part(part) else { continue };
            if tensor.count() != place.rows * place.columns {
                return Err(self.misfit([tensor.matrix.rows, tensor.matrix.columns], place));
            }
            let delta = Delta::Whole(tensor.matrix.reshaped([place.rows, place.columns]));
            if part == Set {
                self.map(&module.name, place.tensor, None, None);
                self.push(place, How::Replace(delta))?;
            } else {
                self.map(&module.name, place.tensor, None, Some(1.0));
                self.add_delta(place, delta, self.strength)?;
            }
        }
        let Some(bias) = module.part(DiffBias) else { return Ok(()) };
        self.map(&module.name, place.tensor, None, Some(1.0));
        self.add_bias(place, bias, self.strength)
    }

    fn misfit(&self, [high, wide]: [u64; 2], place: MergePlace) -> Error {
        let (base, [rows, columns]) = (&self.base.tensors[place.tensor], [place.rows, place.columns]);
        let (name, whole) = (shorten(base.name()), base.shape());
        let of = if *whole == [rows, columns] {
            format!("'{name}' of the model is {whole:?}")
        } else {
            format!("its place in '{name}' {whole:?} of the model is [{rows}, {columns}]")
        };
        Error::new(format!("makes a delta of [{high}, {wide}], and {of}"))
            .remedy("the adapter belongs to another base, or to one with another vocabulary")
    }

    /// Refuses a delta of another shape than its place.
    fn check_fit(&self, place: MergePlace, delta: &Delta) -> Result<()> {
        let shape = delta.shape();
        if shape == [place.rows, place.columns] { Ok(()) } else { Err(self.misfit(shape, place)) }
    }

    /// Adds a delta of the shape of its place, times a factor.
    fn add_delta(&mut self, place: MergePlace, delta: Delta, factor: f64) -> Result<()> {
        self.check_fit(place, &delta)?;
        if place.swaps_halves && !place.rows.is_multiple_of(2) {
            return Err(Error::new("belongs to rows of which two halves cannot be made"));
        }
        self.push(place, How::Add { delta, factor })
    }

    /// Adds a delta to the bias of a layer: an element for each row of its weight.
    fn add_bias(&mut self, place: MergePlace, bias: &AdapterTensor, factor: f64) -> Result<()> {
        let Some(tensor) = self.base.bias_of(place.tensor) else {
            return Err(Error::new("is for a bias, and the layer of the model has none").in_tensor(&bias.name));
        };
        self.check_values(tensor)?;
        let place = MergePlace { tensor, start: place.start / place.columns.max(1), columns: 1, ..place };
        let count: u64 = self.base.tensors[tensor].shape().iter().product();
        if bias.count() != place.rows || place.start + place.rows > count {
            return Err(self.misfit([bias.matrix.rows, bias.matrix.columns], place));
        }
        self.add_delta(place, Delta::Whole(bias.matrix.reshaped([place.rows, 1])), factor)
    }

    /// Adds a delta, after which rows or columns get the lengths of a tensor. `is_transposed` is true of the delta.
    fn decompose(
        &mut self,
        place: MergePlace,
        (delta, scale): (Delta, f64),
        magnitude: &AdapterTensor,
        is_transposed: bool,
    ) -> Result<()> {
        self.check_fit(place, &delta)?;
        // PEFT and MLX scale the delta within the decomposition, and ComfyUI the whole change.
        let is_within = matches!(self.adapter.dialect, Dialect::Peft | Dialect::Mlx);
        let factor = if is_within { scale * self.strength } else { scale };
        let share = (!is_within && self.strength.to_bits() != 1.0_f64.to_bits()).then_some(self.strength);
        // In one dimension, each place of the kernel of a convolution has the length of its channel.
        let area = self.base.tensors[place.tensor].shape().iter().skip(2).product::<u64>().max(1);
        let is_wide = magnitude.shape.len() > 1 && magnitude.shape[0] == 1 && place.rows != 1;
        let is_of_columns = !is_within && is_wide && magnitude.count() == place.columns / area;
        let columns_each = if is_transposed { Some(1) } else { is_of_columns.then_some(area) };
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
        self.push(place, How::Decompose(Box::new(decompose)))
    }

    /// Adds rows of trained tokens: despite their name, they are the new rows.
    fn add_tokens(
        &mut self,
        module: &AdapterModule,
        (name, tokens): (&str, &AdapterTensor),
        place: MergePlace,
    ) -> Result<()> {
        let wrong = |what: String| Err(Error::new(what).in_tensor(&tokens.name));
        let indices = match &self.adapter.config["trainable_token_indices"] {
            Value::Object(by_module) => by_module.iter().find(|(key, _)| name.ends_with(key.as_str())).map(|it| it.1),
            other => Some(other),
        };
        let indices = indices.and_then(Value::as_array);
        let indices: Option<Vec<u64>> = indices.and_then(|all| all.iter().map(Value::as_u64).collect());
        self.check_values(place.tensor)?;
        let Matrix { rows, columns, .. } = tokens.matrix;
        let Some(indices) = indices.filter(|indices| indices.len() as u64 == rows) else {
            return wrong(format!("has {rows} rows, and its config gives other tokens"));
        };
        if let Some(most) = indices.iter().max().filter(|most| **most >= place.rows) {
            return wrong(format!("is for the token {most}, and the model has {} tokens", place.rows));
        }
        if columns != place.columns {
            return Err(self.misfit([rows, columns], place));
        }
        self.map(&module.name, place.tensor, None, None);
        self.push(place, How::ReplaceRows(indices.into_iter().zip(0..).collect(), tokens.matrix.clone()))
    }

    /// Adds the deltas of experts. `places` returns those of an expert, which share the rows of its delta: a matrix of a
    /// stack, or weights. `factors` returns the matrices whose product is the delta.
    fn add_experts(
        &mut self,
        module: &AdapterModule,
        (experts, rank, scale): (u64, Option<u64>, f64),
        places: &dyn Fn(u64) -> Result<Vec<MergePlace>>,
        factors: &dyn Fn(u64) -> Result<[Matrix; 2]>,
    ) -> Result<()> {
        if [Magnitude, Bias, Core(Lora)].iter().any(|part| module.has(*part)) {
            return Err(Error::new("belongs to experts, and has a magnitude, bias or core, which would be left out"));
        }
        for expert in 0..experts {
            let ([left, right], places) = (factors(expert)?, places(expert)?);
            let rows = places.iter().map(|place| place.rows).sum();
            if [left.rows, right.columns] != [rows, places[0].columns] {
                return Err(self.misfit([left.rows, right.columns], MergePlace { rows, ..places[0] }));
            }
            let mut first = 0;
            for place in &places {
                self.check_values(place.tensor)?;
                if [place.rows, place.columns] != [places[0].rows, places[0].columns] {
                    return Err(Error::new("is for experts of different shapes"));
                }
                if place.start == 0 {
                    self.map(&module.name, place.tensor, rank, Some(scale));
                }
                let delta = Delta::Product(left.rows_from(first, place.rows), right.clone());
                self.add_delta(*place, delta, scale * self.strength)?;
                first += place.rows;
            }
        }
        Ok(())
    }

    /// Adds the parameters of all experts that PEFT adapts with two matrices: down is `[experts * rank, in]`, the expert
    /// slowest, and up is `[out, rank * experts]`, the expert fastest.
    fn add_bank(&mut self, module: &AdapterModule, (name, bank): (&str, &str), scale: f64) -> Result<()> {
        let base = self.base;
        let (down, up) = (&module.need(Down(Lora))?.matrix, &module.need(Up(Lora))?.matrix);
        let listed: Vec<&str> = self.adapter.target_parameters().map(|(_, parameter)| parameter).collect();
        let mut order = vec!["gate_up_proj", "down_proj"];
        if order.iter().any(|parameter| listed.contains(parameter)) {
            order.retain(|parameter| listed.contains(parameter));
        }
        // PEFT wraps the parameters in their order in the module, so the first is the innermost.
        let depth = module.name.matches(".base_layer").count();
        let Some(parameter) = order.into_iter().rev().nth(depth) else {
            return Err(Error::new("wraps more parameters than its config lists"));
        };
        let own = format!("{name}.{parameter}");
        let rank = self.adapter.scales(module)?.and_then(|scales| scales.rank.of_first(&[&own, name]));
        let rank = rank.filter(|rank| *rank >= 1.0 && *rank <= 4096.0 && rank.fract() == 0.0).map(|rank| rank as u64);
        let Some(rank) = rank.filter(|rank| down.rows == up.columns && down.rows % rank == 0) else {
            let what = format!("lora_A has {} rows, and lora_B {} columns", down.rows, up.columns);
            return Err(Error::new(format!("{what}, which are not a rank times a number of experts")));
        };
        let experts = down.rows / rank;
        let wrong_number = |count| Error::new(format!("has {experts} experts, and the model has {count}"));
        let stack = base.find_stem(&format!("{bank}.{parameter}"));
        let mut names = Vec::new();
        if let Some(tensor) = stack {
            self.check_values(tensor)?;
            let &[count, _, _] = base.tensors[tensor].shape() else {
                let name = shorten(base.tensors[tensor].name());
                return Err(Error::new(format!("is for experts, and '{name}' is no stack")));
            };
            if count != experts {
                return Err(wrong_number(count));
            }
        } else {
            let singles = base.singles(bank).filter(|all| (0..experts).all(|at| all.contains(&at)));
            if singles.is_none_or(|all| all.len() as u64 != experts) {
                return Err(wrong_number(base.singles(bank).map_or(0, |all| all.len() as u64)));
            }
            let has = |name: &str| base.find_stem(&format!("{bank}.0.{name}")).is_some();
            let own = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]].into_iter().find(|own| has(own[0]));
            let own = own.ok_or_else(|| Error::new("is for experts whose names in the model are not known"))?;
            names = if parameter == "down_proj" { own[2..].to_vec() } else { own[..2].to_vec() };
        }
        let places = |expert| {
            let of_name = |name: &&str| {
                let tensor = base.find_stem(&format!("{bank}.{expert}.{name}"));
                let tensor = tensor
                    .ok_or_else(|| Error::new(format!("the model lacks expert {expert} of '{}'", shorten(bank))))?;
                match base.tensors[tensor].shape().len() {
                    2 => Ok(base.whole(tensor)),
                    _ => Err(Error::new("is for experts that are no matrices in the model")),
                }
            };
            stack.map_or_else(|| names.iter().map(of_name).collect(), |stack| Ok(vec![base.matrix(stack, expert)]))
        };
        // Square matrices do not show it: PEFT always turned them before 0.19.1, and some models store [in, out].
        let first = places(0)?;
        let (whole, made) = ([first.iter().map(|it| it.rows).sum(), first[0].columns], [up.rows, down.columns]);
        // Its model has the stack, whatever the file has.
        let is_turned = made != whole || whole[0] == whole[1] && self.turns_square();
        let is_turned = is_turned && [made[1], made[0]] == whole;
        let factors = |expert| {
            let right = down.viewed([rank, down.columns], expert * rank * down.columns, [down.columns, 1]);
            let left = up.viewed([up.rows, rank], expert, [rank * experts, experts]);
            Ok(if is_turned { [right.transposed(), left.transposed()] } else { [left, right] })
        };
        self.add_experts(module, (experts, Some(rank), scale), &places, &factors)
    }

    /// True if PEFT turns the delta of experts with square matrices.
    fn turns_square(&self) -> bool {
        const TURNED: [&str; 4] = ["gpt_oss", "aria", "aria_text", "openai_privacy_filter"];
        let version = self.adapter.config["peft_version"].as_str().unwrap_or("0");
        let numbers: Vec<u64> =
            version.split(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok()).collect();
        if numbers[..numbers.len().min(3)] < [0, 19, 1][..] {
            return true;
        }
        self.facts.kinds().any(|kind| TURNED.contains(&kind))
    }
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
    Error::new(what)
        .in_file(&adapter.path)
        .remedy("take the base of the adapter")
        .with(Opt::ALLOW_UNMATCHED, "leave such tensors out with {}")
}
