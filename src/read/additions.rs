//! Tensors that outputs take from another file or folder.

use super::choice::{check_whole, match_pattern};
use super::{Model, ModelTensor};
use crate::container::ReadOptions;
use crate::container::checkpoint::{self, Checkpoint};
use crate::error::{Error, Result};
use crate::options::{Addition, ContentOptions};
use std::collections::{HashMap, HashSet};

/// Adds the tensors of other files to a model, and replaces tensors by theirs.
pub(crate) fn add_tensors(source: Checkpoint, options: &ContentOptions, read: &ReadOptions) -> Result<Checkpoint> {
    let added = options.add.iter().map(|addition| (addition, None));
    let replaced = options.replace.iter().map(|addition| (addition, Some(options.allow_reshape)));
    added.chain(replaced).try_fold(source, |source, (addition, may_reshape)| {
        let mut other = checkpoint::open(&addition.path, read)?;
        if let Some(form) = options.experts {
            other.set_experts(form).map_err(|error| error.in_file(&addition.path))?;
        }
        add(source, other, addition, may_reshape).map_err(|error| error.in_file(&addition.path))
    })
}

/// Adds tensors that the model lacks or, if `may_reshape` is given, replaces tensors that it has, perhaps by others of
/// another shape. Without a pattern, the other tensors are left out; with one, they are errors.
fn add(
    mut source: Checkpoint,
    other: Checkpoint,
    addition: &Addition,
    may_reshape: Option<bool>,
) -> Result<Checkpoint> {
    if [&source, &other].iter().any(|model| model.is_onnx_model() || model.is_gguf()) {
        return Err(Error::usage("tensors are not added to GGUF and ONNX models, nor taken from them"));
    }
    let (own, theirs) = (Model::probe(&source), Model::probe(&other));
    let own_tensors: HashMap<&str, ModelTensor> = entries(&own).map(|entry| (entry.name(), entry)).collect();
    let mut is_taken = vec![addition.pattern.is_none(); theirs.tensors.len()];
    if let Some(pattern) = &addition.pattern {
        match_pattern(pattern, &theirs).for_each(|at| is_taken[at] = true);
        if !is_taken.contains(&true) {
            return Err(Error::usage(format!("the pattern '{pattern}' matches no tensor")));
        }
        check_whole(&theirs, &is_taken)?;
    }
    let mut stays = vec![true; own.tensors.len()];
    for tensor in entries(&theirs) {
        let (name, shape) = (tensor.name(), tensor.shape());
        if tensor.parts().next().is_none_or(|first| !is_taken[first]) {
            continue;
        }
        let what = match (own_tensors.get(name), may_reshape) {
            (None, None) => continue,
            (Some(known), Some(may_reshape)) if may_reshape || known.shape() == shape => {
                known.parts().for_each(|at| stays[at] = false);
                continue;
            }
            (Some(known), Some(_)) => Some(format!("has the shape {shape:?}, and {:?} in the model", known.shape())),
            (Some(_), None) => addition.pattern.as_ref().map(|_| "is in the model already".to_owned()),
            (None, Some(_)) => addition.pattern.as_ref().map(|_| "is not in the model".to_owned()),
        };
        if let Some(what) = what {
            let error = Error::usage(what).in_tensor(name);
            return Err(error.remedy(if may_reshape.is_some() {
                "choose other tensors"
            } else {
                "replace it instead"
            }));
        }
        tensor.parts().for_each(|at| is_taken[at] = false);
    }
    if !is_taken.contains(&true) {
        let what =
            if may_reshape.is_some() { "has no tensor of the model" } else { "has no tensor that the model lacks" };
        return Err(Error::usage(what));
    }
    let was_quantized = !own.found.weights.is_empty();
    let taken = theirs.found.weights.iter().filter(|weight| is_taken[weight.codes()]);
    let taken: Vec<_> = taken.map(|weight| (weight.name.clone(), theirs.found.method.clone())).collect();
    let (mut stays, mut is_taken) = (stays.into_iter(), is_taken.into_iter());
    source.keep(|| stays.next().unwrap_or(true), was_quantized);
    source.append(other, || is_taken.next().unwrap_or(false));
    source.added_weights.extend(taken);
    Ok(source)
}

/// Returns the quantized weights of a model, readable or not, and its other stored tensors.
fn entries<'m>(model: &'m Model<'m>) -> impl Iterator<Item = ModelTensor<'m>> {
    let weights = &model.found.weights;
    let parts: HashSet<usize> = weights.iter().flat_map(|weight| &weight.parts).map(|(_, at)| *at).collect();
    let stored = (0..model.tensors.len()).filter(move |at| !parts.contains(at));
    let weights = weights.iter().map(|weight| (weight.codes(), Some(weight)));
    weights.chain(stored.map(|at| (at, None))).map(move |(at, weight)| ModelTensor { model, at, weight })
}
