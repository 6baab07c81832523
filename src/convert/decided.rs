//! A conversion whose options are decided for its inputs.

use crate::container::checkpoint::Checkpoint;
use crate::container::{GGUF, by_extension};
use crate::dtype::Dtype;
use crate::error::{Error, Kind, Result};
use crate::job::{FailOn, Job, JobInput, Measures};
use crate::kernel::{Condition, Loss, Rules};
use crate::options::{
    CastOptions, Defect, DequantizeOptions, ModelOptions, QuantizeOptions, RecordedOptions, TensorOptions,
};
use crate::plan::{BlockSearch, Decisions, GgufRequest, QuantizePlan, QuantizeRequest};
use crate::progress::Observer;
use crate::quant::gguf::GgufScheme;
use crate::quant::{ONNX, Scheme};
use crate::read::LogicalCheckpoint;
use crate::report::{FileReport, Report};
use crate::select::Selection;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// A conversion of some inputs, with all choices for their tensors.
pub(crate) struct FileConversion<'a> {
    pub(crate) job: Job<'a>,
    pub(crate) inputs: Vec<JobInput<'a>>,
    /// Description of the quantized weights in config.json.
    pub(crate) config: Option<Value>,
    /// Figures of the choice of schemes within a number of bits.
    pub(crate) budget: Option<Value>,
    /// The names of tensors that are left out because engines do not load them.
    pub(crate) left_out: Vec<String>,
}

impl<'a> FileConversion<'a> {
    /// Casts the selected tensors.
    pub(crate) fn cast(
        job: &Job<'a>,
        sources: impl IntoIterator<Item = &'a Checkpoint>,
        options: &CastOptions,
    ) -> Result<Self> {
        let selection = options.selection();
        let format = job.output.and_then(by_extension).filter(|format| format.is(GGUF));
        if let (None, Some(option)) = (format, options.gguf.first_given()) {
            return Err(Error::usage("the output is not a GGUF file: an option has no effect").without(option));
        }
        let request = format.map(|_| gguf_cast(options)).transpose()?;
        let input = |source: &'a Checkpoint| {
            let decisions = match &request {
                Some(request) => Decisions::gguf(&LogicalCheckpoint::open(source)?, request)?,
                None => Decisions::cast(source, &selection)?,
            };
            Ok(JobInput { source, selection: selection.clone(), from: options.tensors.from, decisions })
        };
        let inputs = sources.into_iter().map(input).collect::<Result<_>>()?;
        let job = Job {
            to: options.to,
            format,
            force_codes: options.force_codes,
            model: options.model,
            fail_on: FailOn::from(&*options.fail_on),
            measures: Measures { accuracy: options.stats || job.measures.accuracy, ..job.measures },
            max_shard_size: options.shards.max_bytes(),
            options: RecordedOptions::of(options),
            ..*job
        };
        Ok(Self::new(job, inputs))
    }

    /// Reinterprets the bits of the selected tensors.
    #[cfg(feature = "cli")]
    pub(crate) fn bitcast(
        job: Job<'a>,
        sources: impl IntoIterator<Item = &'a Checkpoint>,
        options: &crate::options::BitcastOptions,
    ) -> Result<Self> {
        let input = |source: &'a Checkpoint| {
            if let Some(tensor) = source.assembled.first() {
                let error =
                    Error::new("has its values in another order than the file, and tcast does not copy its bits");
                return Err(error.of(Kind::Unmapped).in_tensor(&tensor.name).in_file(&source.path));
            }
            let decisions = Decisions::rename(source, &options.tensors.rename)?;
            Ok(JobInput { source, selection: options.selection(), from: options.tensors.from, decisions })
        };
        let inputs = sources.into_iter().map(input).collect::<Result<_>>()?;
        let job =
            Job { to: options.to, force_codes: options.force_codes, options: RecordedOptions::of(options), ..job };
        Ok(Self::new(job, inputs))
    }

    /// Decodes the selected weights of a model, and copies all other tensors.
    pub(crate) fn dequantize(
        job: &Job<'a>,
        model: &LogicalCheckpoint<'a>,
        options: &DequantizeOptions,
    ) -> Result<Self> {
        let to = options.to.or_else(|| (!model.is_model()).then(|| model.default_target()));
        let label = to.or_else(|| model.found.weights.first().map(|weight| model.target_of(weight)));
        let options = &DequantizeOptions { to, ..options.clone() };
        let decisions = Decisions::dequantize(model, options)?;
        let job = Job {
            to,
            label: label.map(Dtype::name),
            model: ModelOptions { external_data: options.external_data, ..ModelOptions::default() },
            fail_on: FailOn::from(&*options.fail_on),
            max_shard_size: options.shards.max_bytes(),
            options: RecordedOptions::of(options),
            ..*job
        };
        Ok(Self::of_weights(job, model, decisions, &options.tensors))
    }

    /// Quantizes weights as decided, and copies all other tensors.
    pub(crate) fn quantize(
        job: &Job<'a>,
        model: &LogicalCheckpoint<'a>,
        options: &QuantizeOptions,
        plan: QuantizePlan<'a>,
    ) -> Self {
        let layout = options.layout_in_effect();
        let layout_in_effect = if model.is_model() { Some(ONNX.name) } else { layout };
        let job = Job {
            label: job.label.or(options.scheme.map(|scheme| scheme.name)).or(layout),
            format: options.is_gguf().then_some(GGUF),
            force_codes: options.force_codes,
            model: options.model,
            fail_on: FailOn {
                conditions: if options.is_gguf() { refused_in_gguf(options) } else { refused_infinite(options) },
                defects: options.fail_on.clone(),
                min_sqnr_db: options.min_sqnr,
                // Only the finished blocks show whether they hold the values.
                changed: options.is_gguf() && keeps_values(options),
            },
            max_shard_size: options.shards.max_bytes(),
            options: RecordedOptions::of(&QuantizeOptions { layout: layout_in_effect, ..options.clone() }),
            ..*job
        };
        let QuantizePlan { config, dropped: left_out, decisions, .. } = plan;
        Self { config: config.block, left_out, ..Self::of_weights(job, model, decisions, &options.tensors) }
    }

    /// Returns the conversion of a model by decisions about its weights, which patterns have chosen. Copies all other
    /// tensors.
    fn of_weights(
        job: Job<'a>,
        model: &LogicalCheckpoint<'a>,
        decisions: Decisions<'a>,
        tensors: &TensorOptions,
    ) -> Self {
        let selection = Selection { renames: tensors.rename.clone(), ..Selection::default() };
        Self::new(job, vec![JobInput { source: model.source, selection, from: None, decisions }])
    }

    fn new(job: Job<'a>, inputs: Vec<JobInput<'a>>) -> Self {
        Self { job, inputs, config: None, budget: None, left_out: Vec::new() }
    }

    /// Reports on an input that was converted to these files, of which `before` existed already.
    pub(crate) fn report(
        &self,
        source: &Checkpoint,
        output: &Path,
        files: Vec<FileReport>,
        before: usize,
        begin: Instant,
    ) -> Report {
        let job = &self.job;
        let bytes_in = match job.partition {
            Some(_) => files.iter().flat_map(|file| &file.tensors).map(|tensor| tensor.bytes_in).sum(),
            None => source.bytes(),
        };
        let time = (!job.dry_run).then(|| begin.elapsed());
        let is_published = time.is_some() && !files.iter().any(|file| file.meets(&job.fail_on));
        Report { bytes_in, files, before, time, is_published, ..self.unwritten(source, output) }
    }

    /// Reports on an input whose output exists and is kept.
    pub(super) fn unwritten(&self, source: &Checkpoint, output: &Path) -> Report {
        Report {
            options: self.job.options.clone(),
            config: self.config.clone(),
            budget: self.budget.clone(),
            left_out: self.left_out.clone(),
            ..Report::empty(self.job.operator.name(), &source.path, output)
        }
    }
}

/// True if no value of a quantized weight may change.
fn keeps_values(options: &QuantizeOptions) -> bool {
    options.only_exact || options.scheme.is_none()
}

/// Returns the condition for values that become infinite, if such values are refused.
fn refused_infinite(options: &QuantizeOptions) -> Vec<Condition> {
    let is_refused = options.fail_on.contains(&Defect::Infinite);
    is_refused.then_some(Condition::Lost(Loss::Infinite)).into_iter().collect()
}

/// Returns the conditions that no value of a GGUF file may meet: too large for its type or, if values are to be kept,
/// changed.
fn refused_in_gguf(options: &QuantizeOptions) -> Vec<Condition> {
    let changed = keeps_values(options).then_some(Condition::Lost(Loss::Inexact));
    [Condition::Lost(Loss::Infinite)].into_iter().chain(changed).collect()
}

/// Returns the types of GGUF files that store a scheme.
fn in_gguf(scheme: &'static Scheme) -> Result<&'static GgufScheme> {
    scheme.gguf.as_ref().ok_or_else(|| Error::usage(format!("GGUF files have no scheme {}", scheme.name)))
}

/// Returns the type of GGUF files for a rule.
fn type_in_gguf(scheme: &'static Scheme) -> Result<&'static GgufScheme> {
    let found = in_gguf(scheme)?;
    if found.is_mix() {
        let error = Error::usage(format!("a rule gives tensors one type, and {} is a mix", scheme.name));
        return Err(error.remedy(format!("name the type: {}", found.format.name.to_ascii_lowercase())));
    }
    Ok(found)
}

/// Returns the GGUF file that a cast makes.
fn gguf_cast(options: &CastOptions) -> Result<GgufRequest<'_>> {
    let scheme = |to: Dtype| match to {
        Dtype::Float32 => Ok("f32"),
        Dtype::Float16 => Ok("f16"),
        Dtype::Bfloat16 => Ok("bf16"),
        other => {
            let error = Error::usage(format!("models in GGUF files are not cast to {other}"));
            Err(error.remedy("cast to f32, f16 or bf16, and quantize to narrower types"))
        }
    };
    let scheme = |to| scheme(to).map(|name| GgufScheme::find(name).expect("plain types have a scheme"));
    let rules = options.rule.iter().map(|rule| Ok((&rule.pattern, rule.target().map(scheme).transpose()?)));
    Ok(GgufRequest {
        scheme: options.to.map(scheme).transpose()?,
        rules: rules.collect::<Result<_>>()?,
        tensors: &options.tensors,
        options: &options.gguf,
        imatrix: None,
        keeps_values: false,
        search: None,
        is_cast: true,
        rules_of_casts: options.attributes.rules(),
        watched: FailOn::from(&*options.fail_on).conditions,
    })
}

/// Refuses a type that weights are not decoded to.
pub(crate) fn check_target(options: &DequantizeOptions) -> Result<()> {
    match options.to.filter(|to| !to.is_weight()) {
        Some(to) => {
            let error = Error::usage(format!("weights are decoded to bfloat16, float16 or float32, not to {to}"));
            Err(error.remedy("decode to one of these, and cast the result"))
        }
        None => Ok(()),
    }
}

/// Opens a model whose weights are quantized. With `force_codes`, a quantization that tcast does not decode is ignored.
/// Refuses an adapter: loaders read its tensors as values, without scales.
pub(crate) fn open_to_quantize<'a>(source: &'a Checkpoint, options: &QuantizeOptions) -> Result<LogicalCheckpoint<'a>> {
    if let Some(tensor) = source.update_of_other_model() {
        let error = Error::new("is an adapter of another model, and loaders take its tensors for values");
        return Err(error.in_file(&source.path).in_tensor(tensor).of(Kind::Adapter));
    }
    let probed = LogicalCheckpoint::probe(source);
    match probed.found.is_undecoded {
        true if options.force_codes => Ok(probed.into_values()),
        true => LogicalCheckpoint::open(source).map_err(|error| error.of(Kind::Undecoded)),
        false => LogicalCheckpoint::open(source),
    }
}

/// Decides how weights are quantized.
pub(crate) fn plan_quantization<'a>(
    model: &LogicalCheckpoint<'a>,
    options: &QuantizeOptions,
    job: &Job,
    observer: &dyn Observer,
) -> Result<QuantizePlan<'a>> {
    // The weights of new shards are not known yet.
    let partition = job.partition.filter(|_| options.shards.max_shard_size.is_none());
    let request = QuantizeRequest { options, partition, threads: job.threads };
    if model.is_model() {
        QuantizePlan::of_model(model, &request)
    } else if options.is_gguf() {
        let rules = options.rule.iter().map(|rule| Ok((&rule.pattern, rule.scheme.map(type_in_gguf).transpose()?)));
        let request = GgufRequest {
            scheme: options.scheme.map(in_gguf).transpose()?,
            rules: rules.collect::<Result<_>>()?,
            tensors: &options.tensors,
            options: &options.gguf,
            imatrix: options.imatrix.as_deref(),
            keeps_values: keeps_values(options),
            search: options.recover.then_some(BlockSearch {
                must_find: options.only_exact,
                threads: job.threads,
                observer,
            }),
            is_cast: false,
            rules_of_casts: Rules::default(),
            watched: refused_in_gguf(options),
        };
        Ok(QuantizePlan { decisions: Decisions::gguf(model, &request)?, ..QuantizePlan::default() })
    } else {
        QuantizePlan::new(model, &request, observer)
    }
}
