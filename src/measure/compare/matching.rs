//! Matches the tensors of two inputs.

use crate::read::{Model, ModelTensor};
use std::collections::{HashMap, HashSet, VecDeque};

/// A tensor of A, of B, or of both.
pub(super) struct TensorPair<'a> {
    pub(super) name: &'a str,
    pub(super) sides: [Option<ModelTensor<'a>>; 2],
}

#[derive(Clone, Copy)]
struct SideTensor<'a> {
    tensor: ModelTensor<'a>,
    /// True if the other side may lack it: scales of activations are not values of the model.
    is_optional: bool,
    /// Names of the outputs of Cast nodes that convert it, in an ONNX model.
    cast_names: &'a [String],
}

fn tensors_of<'a>(model: &'a Model<'a>) -> Vec<SideTensor<'a>> {
    let scales: HashSet<usize> = model.found.activation_scales.iter().copied().collect();
    let side = |tensor: ModelTensor<'a>| {
        let cast_names = model.found.cast_names.get(&tensor.at).filter(|_| tensor.weight.is_none());
        let cast_names = cast_names.map_or(&[][..], Vec::as_slice);
        SideTensor { tensor, is_optional: scales.contains(&tensor.at), cast_names }
    };
    model.model_tensors(&model.found.activation_scales).map(side).collect()
}

/// Pairs the tensors of both sides by their names, in the order of A; then come the tensors that only B has. `tcast cast`
/// stores the `w` of a model as `w_float16`, and a Cast node converts it to `w`, so the remaining tensors are paired by
/// such names.
pub(super) fn pairs<'a>(models: &'a [Model<'a>; 2]) -> Vec<TensorPair<'a>> {
    let [in_a, in_b] = models.each_ref().map(tensors_of);
    let only = |tensors: &[SideTensor<'a>]| {
        let mut needed = tensors.iter().filter(|one| !one.is_optional).map(|one| one.tensor);
        needed.next().filter(|_| needed.next().is_none())
    };
    if let (Some(a), Some(b)) = (only(&in_a), only(&in_b)) {
        return vec![TensorPair { name: a.name(), sides: [Some(a), Some(b)] }];
    }
    let mut left: Vec<_> = in_b.into_iter().map(Some).collect();
    let mut others: Vec<Option<ModelTensor>> = vec![None; in_a.len()];
    for with_casts in [false, true] {
        let names = |one: &SideTensor<'a>| {
            let cast_names: &'a [String] = if with_casts { one.cast_names } else { &[] };
            std::iter::once(one.tensor.name()).chain(cast_names.iter().map(String::as_str))
        };
        let mut by_name: HashMap<&str, VecDeque<usize>> = HashMap::new();
        for (at, one) in left.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_ref()?))) {
            names(one).for_each(|name| by_name.entry(name).or_default().push_back(at));
        }
        for (one, other) in in_a.iter().zip(&mut others).filter(|(_, other)| other.is_none()) {
            let mut same = names(one).filter_map(|name| left[by_name.get_mut(name)?.pop_front()?].take());
            *other = same.next().map(|same| same.tensor);
        }
    }
    let rows = in_a.iter().zip(others).filter(|(one, other)| other.is_some() || !one.is_optional);
    let rows = rows.map(|(one, other)| TensorPair { name: one.tensor.name(), sides: [Some(one.tensor), other] });
    let rest = left.into_iter().flatten().filter(|one| !one.is_optional);
    rows.chain(rest.map(|one| TensorPair { name: one.tensor.name(), sides: [None, Some(one.tensor)] })).collect()
}
