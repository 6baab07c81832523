//! A model that is quantized to several schemes in memory: the errors of all, from one reading.

use super::reported;
use crate::engine::Measurement;
use crate::error::{Error, Result};
use crate::job::{self, FailOn, Job, Written};
use crate::options::{QuantizeOptions, RecordedOptions, Task};
use crate::plan::{Plan, PlanFindings};
use crate::progress::{Observer, Silent};
use crate::read::Model;
use crate::report::{FileReport, MeasuredScheme, Report};
use std::time::Instant;

/// Quantizes a model as each of these options says, measures the errors, and writes nothing. The options have different
/// schemes.
pub(crate) fn measure<'a>(
    model: &Model<'a>,
    all: &[QuantizeOptions],
    job: &Job<'a>,
    observer: &dyn Observer,
) -> Result<Vec<MeasuredScheme>> {
    let (start, source) = (Instant::now(), model.source);
    let mut jobs: Vec<(Job, &QuantizeOptions, PlanFindings)> = Vec::new();
    let mut plans: Vec<Vec<Plan>> = Vec::new();
    for options in all {
        let in_scheme = |error: Error| {
            let scheme = options.scheme.map(|scheme| format!("with the scheme {}", scheme.name));
            let details = error.details().iter().cloned().chain(scheme).collect();
            error.with_details(details)
        };
        let (task, fail_on) = (Task::Quantize(options), FailOn::default());
        let job = Job { task, dry_run: true, output: None, fail_on, ..*job };
        // Its notices are about an output that is not written.
        let (mut planned, findings) = job::plan(&job, model, &Silent).map_err(in_scheme)?;
        // Nothing is written, and for many tensors the headers take much memory.
        for plan in &mut planned {
            (plan.literals, plan.entries) = (Vec::new(), Vec::new());
        }
        plans.push(planned);
        jobs.push((job, options, findings));
    }
    let flat: Vec<&Plan> = plans.iter().flatten().collect();
    let measurement = Measurement::new(&flat);
    let progress = observer.progress("measuring", measurement.bytes());
    let outcomes = measurement.run(job.threads, &*progress, job.cancel);
    drop(progress);
    let mut outcomes = outcomes.map_err(|error| error.in_file(&source.path))?.into_iter();
    let measured = jobs.into_iter().zip(plans).map(|((job, options, findings), plans)| {
        let file = |plan: Plan| FileReport::taking(String::new(), plan, outcomes.next());
        let files: Vec<FileReport> = plans.into_iter().map(file).collect();
        let scheme = options.scheme.ok_or_else(|| Error::usage("there is no scheme to measure"))?;
        let written = Written { files, before: 0, finished: 0, all: 0, was_complete: false };
        let report = reported(&job, &findings, (source, &source.path), Some(written), start);
        let report = Report { options: RecordedOptions::default(), ..report };
        let layout = options.layout_in_effect().unwrap_or_default();
        Ok(MeasuredScheme { scheme, layout, report, loaded_together: findings.loaded_together })
    });
    measured.collect()
}
