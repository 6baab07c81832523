//! ONNX BitCast: the same bits as another type.

use crate::dtype::{Class, Dtype};
use crate::error::{Error, Opt, Result};

/// True if BitCast-26, the only version, accepts a type: all ONNX types except text and float6.
pub(crate) fn takes(dtype: Dtype) -> bool {
    dtype.onnx_number().is_some() && dtype.class() != Class::String && dtype.bits() != 6
}

/// Refuses pairs that BitCast does not support: types that it does not accept, and types of different widths.
///
/// # Errors
/// The error names the types that would work.
pub fn check(source: Dtype, target: Dtype) -> Result<()> {
    for dtype in [source, target] {
        if !takes(dtype) {
            return Err(Error::new(format!("ONNX BitCast does not take {dtype}")));
        }
    }
    if source.bits() == target.bits() {
        return Ok(());
    }
    let fitting: Vec<&str> = Dtype::all()
        .filter(|&dtype| takes(dtype) && dtype.bits() == source.bits() && dtype != source)
        .map(Dtype::name)
        .collect();
    let (from, to) = (source.bits(), target.bits());
    let error = Error::new(format!("{source} has {from} bits and {target} has {to}: a bitcast keeps the width"));
    Err(if fitting.is_empty() {
        error.remedy(format!("no other type has {from} bits"))
    } else {
        error.with(Opt::TO, format!("choose one of {from} bits: {}", fitting.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Advice;

    #[test]
    fn the_25_types_of_bitcast_26_are_taken() {
        let numbers: Vec<u8> = Dtype::all().filter(|dtype| takes(*dtype)).filter_map(Dtype::onnx_number).collect();
        let mut sorted = numbers;
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=26).filter(|&number| number != 8).collect::<Vec<u8>>());
    }

    #[test]
    fn pairs_are_those_of_equal_width() {
        let pairs = Dtype::all().flat_map(|source| Dtype::all().map(move |target| (source, target)));
        for (source, target) in pairs.filter(|(source, target)| takes(*source) && takes(*target)) {
            assert_eq!(check(source, target).is_ok(), source.bits() == target.bits(), "{source} {target}");
        }
        let error = check(Dtype::Float64, Dtype::Float32).unwrap_err();
        assert_eq!(error.to_string(), "float64 has 64 bits and float32 has 32: a bitcast keeps the width");
        assert_eq!(
            error.advice(),
            Error::new("").with(Opt::TO, "choose one of 64 bits: int64, uint64, complex64").advice()
        );
        let error = check(Dtype::Complex128, Dtype::Int64).unwrap_err();
        assert_eq!(error.advice(), [Advice::Say("no other type has 128 bits".into())]);
    }
}
