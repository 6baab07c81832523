//! Describes a job to the program before it runs.

use super::place::{self, Route};
use super::{Job, JobInput, JobWork, Prepared, check};
use crate::container::checkpoint::Checkpoint;
use crate::dtype::{Class, Dtype};
use crate::error::Result;
use crate::operator::Operator;
use crate::plan::{Plan, PlanFindings, Spread, Step};
use crate::progress::Observer;
use std::path::{Path, PathBuf};
use std::slice;

/// Plans an output that has no place, with all checks of its contents.
pub(crate) fn plan<'a>(
    job: &Job,
    input: JobInput<'_, 'a>,
    observer: &dyn Observer,
) -> Result<(Vec<Plan<'a>>, PlanFindings)> {
    let source = input.source;
    let is_folder = job.task.max_shard_size().is_some() || source.is_folder() && job.format().is_none();
    let route = Route { output: source.path.clone(), input, is_named: false, is_module: false };
    if is_folder {
        let (plans, planned, _) = check::plans_of_shards(job, &route, observer)?;
        return Ok((plans, planned.findings));
    }
    let container = place::container(job, &route)?;
    let (plans, planned) = check::plans(job, &route, (container, Spread::One), observer, |_| Ok(()))?;
    Ok((plans, planned.findings))
}

/// Returns the output of the only input: as named, or by a name of its own.
pub(crate) fn output_path(job: &Job, source: &Checkpoint) -> Result<PathBuf> {
    place::output_path(job, source, None, true)
}

impl<'a> Prepared<'a> {
    /// Returns the steps of all outputs.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step<'a>> {
        let plans = self.outputs.iter().flat_map(|output| match &output.work {
            JobWork::Skip => &[],
            JobWork::File(file) => slice::from_ref(&file.plan),
            JobWork::Folder(folder) => &folder.plans[..],
        });
        plans.flat_map(|plan| &plan.steps)
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Path> {
        self.outputs.iter().map(|output| &*output.path)
    }

    /// Returns the inputs whose outputs are folders.
    pub(crate) fn sources_of_folders(&self) -> impl Iterator<Item = &Checkpoint> {
        self.outputs.iter().filter(|output| matches!(output.work, JobWork::Folder(_))).map(|output| output.source)
    }

    /// True if there is an output that is not skipped.
    pub(crate) fn has_work(&self) -> bool {
        self.outputs.iter().any(|output| !matches!(output.work, JobWork::Skip))
    }

    /// True if earlier runs have written everything that this run should write.
    pub(crate) fn is_done(&self) -> bool {
        self.outputs.iter().all(|output| matches!(&output.work, JobWork::Folder(folder) if folder.is_done()))
    }

    /// Returns the type of the first weight that a cast makes narrow in a .safetensors file, without a scale.
    pub(crate) fn unscaled(&self, job: &Job) -> Option<Dtype> {
        let is_cast = matches!(job.operator(), Operator::Cast(_)) && !job.task.forces_codes();
        self.outputs.iter().filter(|_| is_cast).find_map(|output| match &output.work {
            JobWork::Skip => None,
            JobWork::File(file) => file.unscaled(),
            JobWork::Folder(folder) => folder.plans.iter().find_map(unscaled),
        })
    }
}

/// Returns the new type of the first weight that becomes an integer, or a float of at most 8 bits: engines expect
/// scales then.
pub(super) fn unscaled(plan: &Plan) -> Option<Dtype> {
    let is_weight =
        |step: &&Step| step.is_converted() && step.source().shape.len() >= 2 && step.dtypes().0.is_floating();
    let mut weights = plan.steps.iter().filter(is_weight).map(|step| step.dtypes().1);
    weights.find(|to| match to.class() {
        Class::Int { .. } => true,
        _ => to.is_floating() && to.bits() <= 8,
    })
}
