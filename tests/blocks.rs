//! Decoding of ggml's block formats: against files with the values that ggml decodes, and against arithmetic.

#![allow(clippy::float_cmp, reason = "equality of floats is meant exactly")]

#[path = "common/gguf_reader.rs"]
mod gguf_reader;

use gguf_reader::tensors_of_gguf;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tcast::blocks::{BlockFormat, FORMATS};
use tcast::dtype::Dtype;
use tcast::kernel::Isa;

const TARGETS: [Dtype; 4] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16, Dtype::Float64];

#[test]
fn every_type_has_the_values_of_ggml() {
    let mut seen = BTreeMap::new();
    for name in ["alltypes", "randomcodes"] {
        let file = fixture(&format!("{name}.gguf"));
        let expected = fixture(&format!("{name}.expected.safetensors"));
        let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
        for (tensor, id, _, blocks) in tensors_of_gguf(&file) {
            let format = BlockFormat::by_id(id).unwrap();
            let values = expected.tensor(&tensor).unwrap();
            let blocks = &blocks[..format.size(values.shape().iter().product::<usize>() as u64).unwrap() as usize];
            let target = match format.dtype {
                Some(Dtype::Float16) => Dtype::Float16,
                Some(Dtype::Bfloat16) => Dtype::Bfloat16,
                Some(Dtype::Float64) => Dtype::Float64,
                Some(dtype) if dtype != Dtype::Float32 => {
                    assert!(blocks == values.data(), "{tensor}");
                    continue;
                }
                _ => Dtype::Float32,
            };
            for isa in Isa::available() {
                assert!(decode(format, isa, blocks, None, target).0 == values.data(), "{tensor} on {isa:?}");
            }
            *seen.entry(format.name).or_insert(0) += 1;
        }
    }
    // Files have no Q8_K, and integers were compared as they are.
    let missing: Vec<&str> =
        FORMATS.iter().filter(|format| !seen.contains_key(format.name)).map(|format| format.name).collect();
    assert_eq!(missing, ["Q8_K", "I8", "I16", "I32", "I64"]);
}

/// Random bytes contain every special scale.
#[test]
fn all_targets_are_roundings_of_the_number_times_the_scale() {
    for format in FORMATS {
        let count = 3 * 2048 / format.elements;
        let blocks = random_bytes(u64::from(format.id), (count * format.bytes) as usize);
        for factor in [None, Some(1.0), Some(-0.75), Some(3e-5), Some(1e20), Some(1e-40), Some(f32::NAN)] {
            // One block, and more than one lane, which is not whole.
            let some = if factor.is_none() { [0..1, 1..count as usize] } else { [0..1, 1..17] };
            for blocks in
                some.map(|range| &blocks[range.start * format.bytes as usize..range.end * format.bytes as usize])
            {
                check_all_targets(format, blocks, factor);
            }
        }
    }
}

/// Ordinary scales, which take the short path.
#[test]
fn ordinary_blocks_report_nothing_unusual() {
    for format in FORMATS.iter().filter(|format| format.dtype.is_none()) {
        let count = 5000 / format.elements;
        let mut blocks = random_bytes(100 + u64::from(format.id), (count * format.bytes) as usize);
        for block in blocks.chunks_mut(format.bytes as usize) {
            make_ordinary(format, block);
        }
        // With the last factors, some results become 0 or infinite, and none is NaN.
        for factor in [None, Some(1.5), Some(1e-6), Some(1e8), Some(1e-38)] {
            check_all_targets(format, &blocks, factor);
        }
        let is_unusual = TARGETS.map(|target| decode(format, Isa::Baseline, &blocks, None, target).1);
        assert_eq!(is_unusual, [false; 4], "{}", format.name);
    }
}

fn check_all_targets(format: &BlockFormat, blocks: &[u8], factor: Option<f32>) {
    let elements = format.elements as usize;
    let (mut exact, mut singles) = (Vec::new(), Vec::new());
    let mut nonzero = Vec::new();
    for block in blocks.chunks(format.bytes as usize) {
        for element in 0..elements {
            let value = format.explain(block, element);
            let number = f64::from(value.number) * value.scale - value.offset.unwrap_or(0.0);
            let number = match format.dtype {
                Some(Dtype::Float64) => f64::from_le_bytes(block.try_into().unwrap()),
                Some(Dtype::Int64) => i64::from_le_bytes(block.try_into().unwrap()) as f64,
                Some(Dtype::Int32) => i32::from_le_bytes(block.try_into().unwrap()).into(),
                _ => number,
            };
            let single = number as f32;
            nonzero.push([single != 0.0, number != 0.0]);
            exact.push(factor.map_or(number, |factor| number * f64::from(factor)));
            singles.push(factor.map_or(single, |factor| single * factor));
        }
    }
    for target in TARGETS {
        let expected: Vec<u8> = match target {
            Dtype::Float32 => singles.iter().flat_map(|x| canonical32(*x).to_le_bytes()).collect(),
            Dtype::Bfloat16 => singles.iter().flat_map(|x| bf16::from_f32(canonical32(*x)).to_le_bytes()).collect(),
            Dtype::Float16 => singles.iter().flat_map(|x| f16::from_f32(canonical32(*x)).to_le_bytes()).collect(),
            _ => exact.iter().flat_map(|x| (if x.is_nan() { f64::NAN } else { *x }).to_le_bytes()).collect(),
        };
        let is_unusual = |[single, exact]: &[bool; 2], bytes: &[u8]| {
            let (value, was_nonzero) = match target {
                Dtype::Float32 => (f32::from_le_bytes(bytes.try_into().unwrap()).into(), single),
                Dtype::Bfloat16 => (bf16::from_le_bytes(bytes.try_into().unwrap()).into(), single),
                Dtype::Float16 => (f16::from_le_bytes(bytes.try_into().unwrap()).into(), single),
                _ => (f64::from_le_bytes(bytes.try_into().unwrap()), exact),
            };
            !value.is_finite() || value == 0.0 && *was_nonzero
        };
        let width = target.bits() as usize / 8;
        let unusual = nonzero.iter().zip(expected.chunks(width)).any(|(nonzero, bytes)| is_unusual(nonzero, bytes));
        for isa in Isa::available() {
            let (found, found_unusual) = decode(format, isa, blocks, factor, target);
            let first = found.chunks(width).zip(expected.chunks(width)).position(|(found, expected)| found != expected);
            assert_eq!(first, None, "{} times {factor:?} to {target} on {isa:?}", format.name);
            assert_eq!(found_unusual, unusual, "{} times {factor:?} to {target} on {isa:?}", format.name);
        }
    }
}

#[test]
fn q8_0_multiplies_every_scale_and_every_code() {
    let format = format("Q8_0");
    let mut blocks = Vec::new();
    for scale in 0..=u16::MAX {
        let first = if scale % 64 == 0 { 0 } else { scale as u8 & 0xe0 };
        let last = if scale % 64 == 0 { 255 } else { first | 31 };
        for codes in (first..=last).collect::<Vec<u8>>().chunks(32) {
            blocks.extend(scale.to_le_bytes());
            blocks.extend(codes);
        }
    }
    let (values, _) = decode(format, Isa::best(), &blocks, None, Dtype::Float32);
    for (block, values) in blocks.chunks(34).zip(values.as_chunks::<4>().0.chunks(32)) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (code, value) in block[2..].iter().zip(values) {
            let expected = canonical32(f32::from(*code as i8) * scale);
            assert_eq!(f32::from_le_bytes(*value).to_bits(), expected.to_bits(), "{scale} * {code}");
        }
    }
}

/// Twice the numbers of float4e2m1, as in ggml.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[test]
fn mxfp4_has_every_exponent() {
    let format = format("MXFP4");
    for exponent in 0..=u8::MAX {
        let mut block = vec![exponent];
        block.extend((0..16_u8).map(|code| code | code << 4));
        let scale = 2_f64.powi(i32::from(exponent) - 128);
        let expected: Vec<f64> = (0..32).map(|at| f64::from(E2M1[at % 16]) * scale).collect();
        check_exact(format, &block, &expected);
    }
}

#[test]
fn nvfp4_has_every_scale() {
    let format = format("NVFP4");
    for scale in 0..=u8::MAX {
        let mut block = vec![scale; 4];
        // Each group has eight codes twice, so groups alternate between the lower and the upper eight.
        block.extend((0..32_u8).map(|at| (at % 16) * 0x11));
        let (exponent, mantissa) = (i32::from(scale >> 3 & 15), f64::from(scale & 7));
        let number = match scale {
            0 | 0x7f => 0.0,
            _ if exponent == 0 => mantissa / 512.0,
            _ => (1.0 + mantissa / 8.0) * 2_f64.powi(exponent - 7),
        };
        let expected: Vec<f64> = (0..64).map(|at| f64::from(E2M1[at / 16 % 2 * 8 + at % 8]) * number / 2.0).collect();
        check_exact(format, &block, &expected);
    }
}

fn check_exact(format: &BlockFormat, block: &[u8], expected: &[f64]) {
    for isa in Isa::available() {
        let doubles: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(decode(format, isa, block, None, Dtype::Float64).0 == doubles, "{block:x?}");
        let singles: Vec<u8> = expected.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
        assert!(decode(format, isa, block, None, Dtype::Float32).0 == singles, "{block:x?}");
    }
}

#[test]
fn float64_values_are_exact() {
    for format in FORMATS.iter().filter(|format| format.dtype.is_none() && format.name != "Q8_K") {
        let mut blocks = random_bytes(7, (20 * format.bytes) as usize);
        for block in blocks.chunks_mut(format.bytes as usize) {
            make_ordinary(format, block);
        }
        let (values, _) = decode(format, Isa::best(), &blocks, None, Dtype::Float64);
        let mut values = values.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
        for block in blocks.chunks(format.bytes as usize) {
            for element in 0..format.elements as usize {
                let value = format.explain(block, element);
                // Multiples of 2^-30, as integers.
                let integer = |number: f64| {
                    let integer = number * f64::from(1_u32 << 30);
                    assert_eq!(integer, integer.trunc());
                    integer as i128
                };
                let product = integer(value.number.into()) * integer(value.scale);
                let exact = product - (integer(value.offset.unwrap_or(0.0)) << 30);
                assert_eq!(integer(values.next().unwrap()) << 30, exact, "{}", format.name);
            }
        }
    }
}

#[test]
fn codes_and_scales_give_the_values() {
    let groups = [
        ("Q4_0", 32, 4),
        ("Q4_1", 32, 4),
        ("Q5_0", 32, 5),
        ("Q5_1", 32, 5),
        ("Q8_0", 32, 8),
        ("IQ4_NL", 32, 4),
        ("TQ1_0", 256, 2),
        ("TQ2_0", 256, 2),
        ("MXFP4", 32, 4),
        ("NVFP4", 16, 4),
        ("Q1_0", 128, 1),
        ("Q2_0", 64, 2),
    ];
    let found: Vec<_> = FORMATS
        .iter()
        .filter_map(|format| format.grid().map(|grid| (format.name, grid.group, grid.code_bits)))
        .collect();
    assert_eq!(found, groups);
    for (name, group, bits) in groups {
        let format = format(name);
        let grid = format.grid().unwrap();
        assert_eq!(grid.numbers.len(), 1 << bits);
        assert_eq!(grid.is_integer, grid.numbers.iter().all(|number| number.fract() == 0.0), "{name}");
        let mut blocks = random_bytes(11, (40 * format.bytes) as usize);
        for block in blocks.chunks_mut(format.bytes as usize) {
            make_ordinary(format, block);
        }
        let elements = 40 * format.elements as usize;
        let (mut codes, mut scales) = (vec![0xee; elements], vec![7.0]);
        format.codes(&blocks, &mut codes);
        format.scales(&blocks, &mut scales);
        assert_eq!(scales.remove(0), 7.0);
        assert_eq!(scales.len(), elements / group);
        let mut offsets = Vec::new();
        format.offsets(&blocks, &mut offsets);
        assert_eq!(offsets.len(), if grid.has_offsets { elements / group } else { 0 }, "{name}");
        let number = |code: &u8| f64::from(grid.numbers[usize::from(*code)]);
        let less = |at: usize| offsets.get(at / group).copied().unwrap_or(0.0);
        let values = (0..).zip(&codes).map(|(at, code)| number(code) * scales[at / group] - less(at));
        let values: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
        assert!(decode(format, Isa::best(), &blocks, None, Dtype::Float64).0 == values, "{name}");
        for (at, code) in codes.iter().enumerate() {
            let block = &blocks[at / format.elements as usize * format.bytes as usize..][..format.bytes as usize];
            let value = format.explain(block, at % format.elements as usize);
            assert_eq!((value.code, value.code_bits), (u32::from(*code), bits), "{name}");
        }
    }
    // ggml has no negative zero.
    assert_eq!(format("MXFP4").grid().unwrap().numbers[8].to_bits(), 0);
}

#[test]
fn elements_are_explained() {
    let explain = |name: &str, block: &[u8], element| {
        let mut block = block.to_vec();
        block.resize(format(name).bytes as usize, 0);
        let value = format(name).explain(&block, element);
        (value.code, value.code_bits, value.number, value.scale, value.offset)
    };
    // 0x3c00 is 1 as float16, and 0x4000 is 2.
    assert_eq!(explain("Q4_0", &[0, 0x40, 0x3a], 0), (10, 4, 2.0, 2.0, None));
    assert_eq!(explain("Q4_0", &[0, 0x40, 0x3a], 16), (3, 4, -5.0, 2.0, None));
    assert_eq!(explain("Q4_1", &[0, 0x40, 0, 0x3c, 0x3a], 0), (10, 4, 10.0, 2.0, Some(-1.0)));
    assert_eq!(
        explain("Q4_K", &[0, 0x40, 0, 0x3c, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x3a], 0),
        (10, 4, 10.0, 6.0, Some(5.0))
    );
    assert_eq!(explain("MXFP4", &[128, 0x0f], 0), (15, 4, -6.0, 2.0, None));
    assert_eq!(explain("NVFP4", &[0x38, 0, 0, 0, 0x05], 0), (5, 4, 3.0, 1.0, None));
    // Point 1 begins with 43, and the sign of element 0 is set.
    assert_eq!(explain("IQ2_XXS", &[0, 0x40, 1, 0, 0, 0, 1, 0, 0, 0x10], 0), (1, 8, -43.0, 0.75, None));
    assert_eq!(explain("IQ1_S", &[0, 0x40, 1], 0), (1, 11, 1.125, 2.0, None));
    assert_eq!(explain("F16", &[0, 0x40], 0), (0x4000, 16, 2.0, 1.0, None));
}

fn decode(format: &BlockFormat, isa: Isa, blocks: &[u8], factor: Option<f32>, target: Dtype) -> (Vec<u8>, bool) {
    let elements = blocks.len() / format.bytes as usize * format.elements as usize;
    let mut out = vec![0xee; elements * target.bits() as usize / 8];
    let is_unusual = format.decode(isa, blocks, factor, target, &mut out);
    (out, is_unusual)
}

fn format(name: &str) -> &'static BlockFormat {
    FORMATS.iter().find(|format| format.name == name).unwrap()
}

fn canonical32(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }
}

/// Gives a block scales of ordinary size, where the format has floats.
fn make_ordinary(format: &BlockFormat, block: &mut [u8]) {
    let halves: &[usize] = match format.name {
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        "TQ1_0" => &[52],
        "TQ2_0" => &[64],
        "MXFP4" => {
            block[0] = 110 + block[0] % 20;
            return;
        }
        "NVFP4" => {
            block[..4].fill(0x31);
            return;
        }
        "Q8_K" => {
            block[..4].copy_from_slice(&0.3_f32.to_le_bytes());
            return;
        }
        "IQ1_M" => {
            // The highest bits of four words.
            for (at, digit) in [(49, 0x50), (51, 0x30), (53, 0x40), (55, 0x20)] {
                block[at] = block[at] & 15 | digit;
            }
            return;
        }
        _ => &[0],
    };
    for at in halves {
        block[at + 1] = 0x1c | block[at + 1] & 0x83;
    }
}

/// `SplitMix64`.
fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    };
    (0..count.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(count).collect()
}

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
