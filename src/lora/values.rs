//! Values of any float type as float64, and back.

use crate::dtype::Dtype;
use crate::kernel::{Kernel, Rules, Storage};

/// Widens floats to float64.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    let count = bytes.len() / (dtype.bits() as usize / 8);
    values.resize(count, 0.0);
    match dtype {
        Dtype::Float64 => {
            values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| *value = f64::from_le_bytes(*bytes));
        }
        Dtype::Float32 => {
            let numbers = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            values.iter_mut().zip(numbers).for_each(|(value, number)| *value = number.into());
        }
        Dtype::Bfloat16 => {
            let halves = bytes.as_chunks().0.iter().map(|bytes| u32::from(u16::from_le_bytes(*bytes)));
            values.iter_mut().zip(halves).for_each(|(value, half)| *value = f32::from_bits(half << 16).into());
        }
        _ => {
            let [from, to] = [dtype, Dtype::Float64].map(Storage::packed);
            let kernel = Kernel::cast(from, to, &Rules::LOSSLESS).expect("floats become float64");
            let mut wide = vec![0; 8 * count];
            kernel.run(bytes, &mut wide, count).expect("floats of whole bytes are never malformed");
            widen(Dtype::Float64, &wide, values);
        }
    }
}

/// Writes values as float64 or float32.
pub(crate) fn narrow(values: &[f64], dtype: Dtype, bytes: &mut Vec<u8>) {
    bytes.resize(values.len() * dtype.bits() as usize / 8, 0);
    if dtype == Dtype::Float32 {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = (*value as f32).to_le_bytes());
    } else {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
    }
}
