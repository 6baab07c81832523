//! Values and decoders that several benchmarks use.

use tcast::{
    dtype::Dtype,
    kernel::{Kernel, Rules, Storage},
    quant::{Arithmetic, CodeType, Decoder, EncodedPart, Parameters, Part, SchemeLayout},
};

/// Returns pseudorandom numbers from 0 to 1.
pub(crate) fn random() -> impl FnMut() -> f32 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 16_777_216.0
    }
}

/// Returns values with the distribution of weights, in a type: roughly normal, with a deviation of 0.02.
pub(crate) fn weights(storage: Storage, count: usize) -> Vec<u8> {
    let mut random = random();
    let mut weight = || (0..12).map(|_| random() - 0.5).sum::<f32>() * 0.02;
    let values: Vec<u8> = (0..count).flat_map(|_| weight().to_le_bytes()).collect();
    let kernel = Kernel::cast(Storage::packed(Dtype::Float32), storage, &Rules::default()).expect("a numeric pair");
    let mut bytes = vec![0; storage.bytes(count as u64).expect("a small size") as usize];
    kernel.run(&values, &mut bytes, count).expect("float32 is well formed");
    bytes
}

/// Returns the decoder of an encoded weight to bfloat16.
pub(crate) fn decoder(stored: &SchemeLayout, parts: &[EncodedPart], shape: [u64; 2]) -> Decoder {
    let bits = if let CodeType::Int { bits, .. } = stored.grid.codes { Some(bits) } else { None };
    let (shape, group) = (Some(shape.to_vec()), Some(stored.grid.group));
    let parameters = Parameters { shape, group, bits, ..Parameters::default() };
    let parts: Vec<Part> = parts
        .iter()
        .map(|part| Part { role: part.role, name: part.suffix, dtype: part.dtype, shape: &part.shape })
        .collect();
    Decoder::new(stored.row, &parameters, &parts, Dtype::Bfloat16, Arithmetic::Library).expect("what was encoded")
}
