//! Blocks that are found in the values that they decode to.

use super::{encode_rows, format, random};
use half::{bf16, f16};
use tcast::blocks::BlockFormat;
use tcast::dtype::Dtype;
use tcast::kernel::Isa;

const DTYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];

/// The formats with a search.
const SEARCHED: [&str; 8] = ["Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"];

/// Number of blocks.
const COUNT: usize = 40;

/// Values in their type, and as float32.
struct Values {
    dtype: Dtype,
    stored: Vec<u8>,
    wide: Vec<f32>,
}

impl Values {
    fn of(dtype: Dtype, stored: Vec<u8>) -> Self {
        let half = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
        let wide = stored.chunks(dtype.bits() as usize / 8).map(|bytes| match dtype {
            Dtype::Bfloat16 => bf16::from_bits(half(bytes)).to_f32(),
            Dtype::Float16 => f16::from_bits(half(bytes)).to_f32(),
            _ => f32::from_le_bytes(bytes.try_into().unwrap()),
        });
        Self { dtype, wide: wide.collect(), stored }
    }

    fn of_floats(dtype: Dtype, values: &[f32]) -> Self {
        let stored = values.iter().flat_map(|value| match dtype {
            Dtype::Bfloat16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::Float16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        });
        Self::of(dtype, stored.collect())
    }
}

fn decode(format: &BlockFormat, blocks: &[u8], dtype: Dtype) -> Values {
    let elements = blocks.len() / format.bytes as usize * format.elements as usize;
    let mut stored = vec![0; elements * dtype.bits() as usize / 8];
    format.decode(Isa::best(), blocks, None, dtype, &mut stored);
    Values::of(dtype, stored)
}

/// Recovers blocks, which are the same for all instruction sets and decode to the values.
fn recover(format: &BlockFormat, values: &Values) -> Result<Vec<u8>, usize> {
    let run = |isa| {
        let mut out = vec![0xee; values.wide.len() / format.elements as usize * format.bytes as usize];
        format.recover(isa, &values.wide, (values.dtype, &values.stored), &mut out).map(|()| out)
    };
    let found = run(Isa::best());
    for isa in Isa::available() {
        assert!(run(isa) == found, "{} on {isa:?}", format.name);
    }
    if let Ok(blocks) = &found {
        assert!(decode(format, blocks, values.dtype).stored == values.stored, "{} {}", format.name, values.dtype);
    }
    found
}

/// Blocks with random codes. `scale` makes a float16 of a random number.
fn random_blocks(name: &str, seed: u64, scale: fn(u64) -> u16) -> Vec<u8> {
    let format = format(name);
    let mut blocks: Vec<u8> = (0..COUNT as u64 * format.bytes).map(|at| random(seed, at) as u8).collect();
    for (at, block) in blocks.chunks_mut(format.bytes as usize).enumerate() {
        let number = random(seed + 1000, at as u64);
        match name {
            // Values that float16 holds.
            "MXFP4" => block[0] = 110 + (number % 28) as u8,
            "NVFP4" => block[..4].iter_mut().for_each(|byte| *byte = (*byte & 0x7f).min(0x7e)),
            "TQ1_0" | "TQ2_0" => {
                let end = block.len() - 2;
                block[end..].copy_from_slice(&scale(number).to_le_bytes());
            }
            _ => block[..2].copy_from_slice(&scale(number).to_le_bytes()),
        }
    }
    blocks
}

#[test]
fn random_codes_and_scales_are_found_in_each_type() {
    let scales: [fn(u64) -> u16; 3] = [
        |number| ((0x1000 + number % 0x4000) | number >> 32 & 0x8000) as u16,
        |number| ((number % 0x400) | number >> 32 & 0x8000) as u16, // subnormal, or 0
        |_| 0,
    ];
    for name in SEARCHED {
        for (seed, scale) in (1..).zip(scales) {
            let blocks = random_blocks(name, seed, scale);
            for dtype in DTYPES {
                let values = decode(format(name), &blocks, dtype);
                assert!(recover(format(name), &values).is_ok(), "{name} in {dtype}, scales {seed}");
            }
        }
    }
}

#[test]
fn blocks_of_ggml_are_found_with_the_same_bytes_in_float32() {
    let values: Vec<f32> = (0..2048).map(|at| super::normal(5, at)).collect();
    for name in SEARCHED {
        let blocks = encode_rows(Isa::best(), format(name), &values, 256, None);
        let decoded = decode(format(name), &blocks, Dtype::Float32);
        // A search of IQ4_NL and the last bit of a scale of NVFP4 can end elsewhere.
        if ["IQ4_NL", "NVFP4"].contains(&name) {
            recover(format(name), &decoded).unwrap();
        } else {
            assert!(recover(format(name), &decoded) == Ok(blocks), "{name}");
        }
    }
}

#[test]
fn a_changed_value_is_not_found() {
    for name in SEARCHED {
        let format = format(name);
        let blocks = random_blocks(name, 7, |number| 0x2000 + (number % 0x1000) as u16);
        for dtype in DTYPES {
            let mut values = decode(format, &blocks, dtype).wide;
            // The smallest value that is not 0, in the last block but one.
            let first = (COUNT - 2) * format.elements as usize;
            let block = values[first..][..format.elements as usize].iter_mut().filter(|value| **value != 0.0);
            let value = block.min_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
            *value *= 1.4;
            assert_eq!(recover(format, &Values::of_floats(dtype, &values)).err(), Some(first), "{name} in {dtype}");
        }
    }
}

#[test]
fn zeros_of_any_sign_are_found() {
    for name in SEARCHED {
        let elements = format(name).elements as usize;
        for dtype in DTYPES {
            for (kind, signs) in [[0.0, 0.0], [-0.0, -0.0], [0.0, -0.0]].into_iter().enumerate() {
                let zeros: Vec<f32> = (0..elements).map(|at| signs[at % 2]).collect();
                let found = recover(format(name), &Values::of_floats(dtype, &zeros));
                // The smallest scale of MXFP4 is not 0, and only float16 rounds its products to 0.
                let is_missing = name == "MXFP4" && kind > 0 && dtype != Dtype::Float16;
                assert_eq!(found.is_err(), is_missing, "{name} in {dtype}, zeros {kind}");
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_are_not_found() {
    for name in SEARCHED.into_iter().chain(["Q4_1"]) {
        for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut values = vec![0.0; 2 * 1024];
            values[1500] = value;
            for dtype in DTYPES {
                let found = recover(format(name), &Values::of_floats(dtype, &values));
                assert!(found == Err(1500), "{name} in {dtype}");
            }
        }
    }
}

/// ggml's scale is rounded up from bfloat16 values, to Inf.
#[test]
fn the_largest_scale_is_found() {
    let block = [&f16::MAX.to_le_bytes()[..], &[127; 32]].concat();
    let values = decode(format("Q8_0"), &block, Dtype::Bfloat16);
    let refused = format("Q8_0").encode(Isa::best(), &values.wide, 32, None, &mut [0; 34]);
    assert!(refused.is_err() && recover(format("Q8_0"), &values).is_ok());
}

#[test]
fn formats_without_a_search_are_found_if_ggml_writes_the_block_again() {
    let steps: Vec<f32> = (0..32).map(|at| (at % 16) as f32 * 0.25 - 1.0).collect();
    for dtype in DTYPES {
        let values = Values::of_floats(dtype, &steps);
        assert!(recover(format("Q4_1"), &values).is_ok());
        // The largest code does not occur.
        let values = Values::of_floats(dtype, &steps.iter().map(|value| value.min(2.5)).collect::<Vec<f32>>());
        assert_eq!(recover(format("Q4_1"), &values), Err(0));
    }
}
