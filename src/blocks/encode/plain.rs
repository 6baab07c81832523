//! Plain numbers.

use super::EncodeRefusal;
use super::lanes::to_half;
use crate::dtype::Dtype;
use crate::kernel::{Isa, Loop, to_bfloat16};

/// True if ggml writes numbers of this type.
pub(super) fn can_encode(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16)
}

/// Rounds finite values to nearest even.
pub(super) fn encode(isa: Isa, dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<(), EncodeRefusal> {
    let width = dtype.bits() as usize / 8;
    for (start, (values, out)) in (0..).step_by(1024).zip(values.chunks(1024).zip(out.chunks_mut(1024 * width))) {
        if !isa.run(EncodePlain { dtype, values, out }) {
            let highest = if dtype == Dtype::Bfloat16 { 0x7f } else { 0x7c };
            let is_infinite =
                |bytes: &[u8]| bytes[1] & 0x7f == highest && (dtype == Dtype::Float16 || bytes[0] == 0x80);
            let at = out.chunks(2).position(is_infinite).expect("a number is infinite");
            return Err(EncodeRefusal::Overflow { element: start + at, value: values[at] });
        }
    }
    Ok(())
}

/// The loop that rounds values. It returns false if a result is infinite.
struct EncodePlain<'a> {
    dtype: Dtype,
    values: &'a [f32],
    out: &'a mut [u8],
}

impl Loop for EncodePlain<'_> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { dtype, values, out } = self;
        let mut largest = 0;
        match dtype {
            Dtype::Float16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                    let bits = to_half(*value);
                    largest = largest.max((bits & 0x7fff) as i16);
                    *out = bits.to_le_bytes();
                }
                largest < 0x7c00
            }
            Dtype::Bfloat16 => {
                for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                    let bits = to_bfloat16(*value);
                    largest = largest.max((bits & 0x7fff) as i16);
                    *out = bits.to_le_bytes();
                }
                largest < 0x7f80
            }
            _ => {
                for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
                    *out = value.to_le_bytes();
                }
                true
            }
        }
    }
}
