//! Checks a planned output as its readers will see it: a name in the model, or a config that came with it, can make the
//! quantized weights of the output unreadable.

use crate::container::checkpoint::{CONFIG, Checkpoint};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::plan::{OTHER_NAME, Operation, Planned, Step, name_instead_of};
use crate::quant::{CheckpointInfo, Problem, StoredTensor, contradictions, is_named_as_part};

/// A tensor of the output: a step, and the index of one of its results.
type NewPart<'p, 'a> = (&'p Step<'a>, usize);

/// Refuses a quantized output whose tensors and config would contradict each other.
pub(super) fn check_recognized(source: &Checkpoint, output: &Planned) -> Result<()> {
    let steps = || output.steps.iter();
    let planned: Vec<NewPart> = steps().flat_map(|step| (0..step.results.len()).map(move |at| (step, at))).collect();
    let stored = |step: &Step, dtype: Dtype| match step.how {
        Operation::Convert(_) => step.source().elements.dtype(), // which tcast may not know
        Operation::Decode(_) | Operation::Encode(_) => Some(dtype),
    };
    let tensors = steps().flat_map(|step| step.new_tensors().map(move |new| (step, new)));
    let tensors = tensors.map(|(step, (name, dtype, shape))| StoredTensor { name, dtype: stored(step, dtype), shape });
    let tensors: Vec<StoredTensor> = tensors.collect();
    let config = output.side_files.iter().find(|(name, _)| *name == CONFIG).and_then(|(_, text)| text.as_deref());
    let block = output.findings.config.as_ref().map(|block| format!("{{\"quantization_config\": {block}}}"));
    let configs: Vec<_> = config.or(block.as_deref()).map(|text| (CONFIG, text)).into_iter().collect();
    let metadata = source.metadata().filter(|(key, _)| !output.changes(key));
    let metadata: Vec<(&str, &str)> = metadata.map(|(key, text)| (key.as_str(), text.as_str())).collect();
    let look = |tensors: &[StoredTensor]| {
        contradictions(&CheckpointInfo {
            tensors,
            folder: source.config_folder(),
            configs: &configs,
            metadata: &metadata,
            read: &|at| small(planned[at]),
        })
    };
    let found = look(&tensors);
    let Some(Problem { tensors: concerned, error }) = found.first() else { return Ok(()) };
    let is_kept = |at: &&usize| matches!(planned[**at].0.how, Operation::Convert(_));
    let is_stray = |at: &&usize| is_kept(at) && is_named_as_part(planned[**at].0.name());
    let kept = concerned.iter().find(is_stray).or_else(|| concerned.iter().find(is_kept));
    let Some(&at) = kept.or(concerned.first()) else {
        let what = format!("tcast could not decode the output with it: {}", error.message());
        let error = Error::new(what).in_file(error.path().unwrap_or(&source.path));
        return Err(error.remedy("correct what is wrong, or remove it"));
    };
    let step = planned[at].0;
    let what = format!("tcast could not decode the output: {}", error.message());
    let error = Error::new(what).in_tensor(step.source_name()).in_file(step.sources[0].files[0].path());
    if kept.is_none() {
        return Err(error.unconvertible());
    }
    if step.name() != step.source_name() {
        return Err(error.remedy(OTHER_NAME));
    }
    let other = name_instead_of(step.name());
    let mut renamed = tensors.clone();
    renamed[at].name = &other;
    let is_solved = !look(&renamed).iter().any(|problem| problem.tensors.contains(&at));
    let is_free = !tensors.iter().any(|tensor| tensor.name == other);
    Err(if is_solved && is_free { error.renaming(step.source_name(), &other) } else { error.unstorable() })
}

/// Returns the bytes of a tensor that describes others.
fn small((step, at): NewPart) -> Result<Vec<u8>> {
    let Some(weight) = step.quantization() else { return step.sources[0].small() };
    let fixed = weight.rows.encoder.parts()[at].fixed();
    fixed.map(<[u8]>::to_vec).ok_or_else(|| Error::new("depends on values").in_tensor(step.name()))
}
