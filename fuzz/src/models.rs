//! Models that are made from other models.

use super::elements::{MOST, Values, values, write};
use super::trial::{check_error, within};
use std::slice;
use tcast::container::Input;
use tcast::dtype::Dtype;
use tcast::operator::{Operator, cast::CastAttributes};
use tcast::plan::{self, Request, Spread, Step};
use tcast::select::Selection;

/// Checks that a model with narrower weights is planned in little memory. It has as many tensors, in the same order;
/// tensors that are kept have the same values.
pub(crate) fn check_changed(input: &Input, limit: usize) {
    let selection = Selection { to: Some(Dtype::Float16), ..Selection::default() };
    let mut request = Request::new(Operator::Cast(CastAttributes::default()), &selection, input.container);
    request.model.min_elements = 0;
    let inputs = slice::from_ref(input);
    let mut plans = match within(limit, || plan::build(&request, inputs, Spread::One, &|_| ())) {
        Ok(plans) => plans,
        Err(error) => return check_error(&error),
    };
    let plan = plans.remove(0);
    let before: Vec<_> = input.contents.tensors.iter().map(|tensor| values(tensor, input)).collect();
    if plan.len > MOST || before.iter().any(|values| matches!(values, Ok(Values::TooMany) | Err(_))) {
        return;
    }
    let again = match write(&plan, inputs, 1, "onnx") {
        Ok((again, _)) => again,
        Err(error) => return check_error(&error),
    };
    assert_eq!(again.contents.tensors.len(), before.len());
    for ((tensor, before), step) in again.contents.tensors.iter().zip(before).zip(&plan.steps) {
        assert_eq!(*tensor.shape, *step.shape());
        let after = values(tensor, &again).expect("it was just written");
        match (step.is_converted(), after) {
            (true, Values::Numbers(dtype, _)) => assert_eq!(dtype, Step::dtypes(step).1),
            (true, _) => panic!("'{}' is converted to something else", step.name()),
            (false, after) => assert_eq!(after, before.expect("all are sound")),
        }
    }
}
