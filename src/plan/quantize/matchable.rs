//! Names that patterns of options can match.

use super::mlx;
use crate::error::Result;
use crate::read::{LogicalCheckpoint, Membership};
use crate::select::experts::{Model, experts};

/// Returns the names that patterns can match: the names of the experts in banks, and of all tensors but those that the
/// layout leaves out.
pub(crate) fn matchable_names(source: &LogicalCheckpoint, layout: &str) -> Result<Vec<String>> {
    let model = Model::read(source.config()?);
    let mut names: Vec<String> = Vec::new();
    for (tensor, membership) in source.tensors.iter().zip(source.memberships()) {
        let (name, shape) = match membership {
            Membership::Plain if mlx::leaves_out(layout, tensor.name, &model) => continue,
            Membership::Plain => (tensor.name, tensor.shape),
            Membership::Codes(weight) => {
                let weight = &source.found.weights[weight];
                (&*weight.name, &weight.shape[..])
            }
            _ => continue,
        };
        names.push(name.to_owned());
        if let Some(Ok(bank)) = experts(&model, name, shape) {
            names.extend(bank.into_iter().map(|expert| expert.name));
        }
    }
    Ok(names)
}
