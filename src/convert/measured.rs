//! A model that is quantized to several schemes in memory: the errors of all, from one reading.

use super::decided::{FileConversion, plan_quantization};
use crate::engine::Measurement;
use crate::error::{Error, Result};
use crate::job::{self, FailOn, Job};
use crate::options::{QuantizeOptions, RecordedOptions};
use crate::plan::Plan;
use crate::progress::{Notice, Observer, Progress, ShardProgress};
use crate::read::LogicalCheckpoint;
use crate::report::{FileReport, MeasuredScheme};
use std::time::Instant;

/// Quantizes a model as each of these options says, measures the errors, and writes nothing. The options have different
/// schemes.
pub(crate) fn measure<'a>(
    model: &LogicalCheckpoint<'a>,
    all: &[QuantizeOptions],
    job: &Job<'a>,
    observer: &dyn Observer,
) -> Result<Vec<MeasuredScheme>> {
    let (start, source) = (Instant::now(), model.source);
    let (fail_on, recorded) = (FailOn::default(), RecordedOptions::default());
    let job = Job { dry_run: true, output: None, fail_on, options: recorded, ..*job };
    let (mut conversions, mut plans): (Vec<_>, Vec<Vec<Plan>>) = (Vec::new(), Vec::new());
    for options in all {
        let in_scheme = |error: Error| {
            let scheme = options.scheme.map(|scheme| format!("with the scheme {}", scheme.name));
            let details = error.details().iter().cloned().chain(scheme).collect();
            error.with_details(details)
        };
        let mut plan = plan_quantization(model, options, &job, &Unheard(observer)).map_err(in_scheme)?;
        let together = std::mem::take(&mut plan.loaded_together);
        let mut conversion = FileConversion::quantize(&job, model, options, plan);
        let mut planned =
            job::plan(&conversion.job, &mut conversion.inputs[0], &Unheard(observer)).map_err(in_scheme)?;
        // Nothing is written, and for many tensors the headers take much memory.
        for plan in &mut planned {
            (plan.literals, plan.entries) = (Vec::new(), Vec::new());
        }
        plans.push(planned);
        conversions.push((options, conversion, together));
    }
    let flat: Vec<&Plan> = plans.iter().flatten().collect();
    let measurement = Measurement::new(&flat);
    let progress = observer.progress("measuring", measurement.bytes());
    let outcomes = measurement.run(job.threads, &*progress, job.cancel);
    drop(progress);
    let mut outcomes = outcomes.map_err(|error| error.in_file(&source.path))?.into_iter();
    let measured = conversions.into_iter().zip(plans).map(|((options, conversion, loaded_together), plans)| {
        let file = |plan: Plan| FileReport::new(String::new(), &plan, outcomes.next());
        let files: Vec<FileReport> = plans.into_iter().map(file).collect();
        let scheme = options.scheme.ok_or_else(|| Error::usage("there is no scheme to measure"))?;
        Ok(MeasuredScheme {
            scheme,
            layout: options.layout_in_effect().unwrap_or_default(),
            report: conversion.report(source, &source.path, files, 0, start),
            loaded_together,
        })
    });
    measured.collect()
}

/// An observer that forwards progress and drops notices, because no output is written.
struct Unheard<'o>(&'o dyn Observer);

impl Observer for Unheard<'_> {
    fn notice(&self, _notice: Notice) {}

    fn progress(&self, what: &'static str, bytes: u64) -> Box<dyn Progress + '_> {
        self.0.progress(what, bytes)
    }

    fn checkpoint(&self, bytes: u64) -> Box<dyn ShardProgress + '_> {
        self.0.checkpoint(bytes)
    }
}
