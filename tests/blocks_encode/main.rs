//! Encoding to ggml's block formats: against files that ggml wrote, and against arithmetic.

#![allow(clippy::float_cmp, reason = "equality of floats is meant exactly")]

mod importance_matrices;
mod recover;
mod reference;

use half::bf16;
use safetensors::SafeTensors;
use std::fs;
use std::path::PathBuf;
use tcast::blocks::{BlockFormat, EncodeRefusal, FORMATS};
use tcast::dtype::Dtype;
use tcast::kernel::Isa;

/// The formats of blocks that are encoded.
const ENCODED: [&str; 16] = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0",
    "TQ2_0", "MXFP4", "NVFP4",
];

#[test]
fn these_formats_are_encoded() {
    let found: Vec<&str> = FORMATS.iter().filter(|format| format.can_encode()).map(|format| format.name).collect();
    let mut expected: Vec<&str> = ENCODED.to_vec();
    expected.sort_by_key(|name| format(name).id);
    assert_eq!(found, expected);
    let ignoring: Vec<&str> = ENCODED.into_iter().filter(|name| !format(name).uses_importance()).collect();
    assert_eq!(ignoring, ["Q8_0", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"]);
}

/// `encode.safetensors` has weights of a model; `encode_edges.safetensors` has ordinary and unusual rows, and matrices
/// with zeros.
#[test]
fn all_bytes_are_those_of_ggml() {
    let mut seen = 0;
    for name in ["encode", "encode_edges"] {
        let file = fixture(name);
        let file = SafeTensors::deserialize(&file).unwrap();
        for (tensor, expected) in file.tensors() {
            let Some((name, importance)) = tensor.split_once('.') else { continue };
            if !ENCODED.contains(&name) {
                continue;
            }
            let columns = file.tensor("input").unwrap().shape()[1];
            let has_importance = file.tensor(importance).is_ok();
            let rows = if has_importance { importance } else { "input" };
            let input = numbers(&file, &if has_importance { format!("input.{rows}") } else { rows.to_owned() })
                .or_else(|| numbers(&file, "input"))
                .unwrap();
            let importance = numbers(&file, importance);
            for isa in Isa::available() {
                let found = encode_rows(isa, format(name), &input, columns, importance.as_deref());
                let bytes = format(name).bytes as usize;
                let differs = |(found, expected): (&[u8], &[u8])| found != expected;
                let differing: Vec<usize> = found
                    .chunks(bytes)
                    .zip(expected.data().chunks(bytes))
                    .enumerate()
                    .filter(|(_, pair)| differs(*pair))
                    .map(|(block, _)| block)
                    .collect();
                assert!(differing.is_empty(), "{tensor} on {isa:?}: blocks {differing:?}");
                assert_eq!(found.len(), expected.data().len());
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 76);
}

/// Random values of several distributions, and unusual groups.
#[test]
fn all_instruction_sets_and_any_rows_give_the_same_bytes() {
    for columns in [256, 768, 1280] {
        let values = rows(columns);
        for weights in [None, Some(importance(1, columns)), Some(importance(2, columns))] {
            let weights = weights.as_deref();
            for format in ENCODED.map(format) {
                let expected = encode_rows(Isa::Baseline, format, &values, columns, weights);
                for isa in Isa::available() {
                    let found = encode_rows(isa, format, &values, columns, weights);
                    assert!(found == expected, "{} with {columns} columns on {isa:?}", format.name);
                }
                for count in [1, 3] {
                    let rows = values.chunks(count * columns);
                    let found: Vec<u8> =
                        rows.flat_map(|rows| encode_rows(Isa::best(), format, rows, columns, weights)).collect();
                    assert!(found == expected, "{} in {count} rows of {columns}", format.name);
                }
            }
        }
    }
}

#[test]
fn formats_without_a_search_ignore_the_importance_matrix() {
    let values = rows(256);
    for format in ENCODED.map(format) {
        let [without, with] =
            [None, Some(&*importance(3, 256))].map(|weights| encode_rows(Isa::best(), format, &values, 256, weights));
        assert_eq!(without != with, format.uses_importance(), "{}", format.name);
    }
}

#[test]
fn searches_find_what_the_reference_implementation_finds() {
    let columns = 512;
    let values = rows(columns);
    for (name, importances) in [
        ("Q4_0", &[1_u64, 2][..]),
        ("Q4_1", &[1, 2]),
        ("Q5_0", &[1, 2]),
        ("Q5_1", &[1, 2]),
        ("Q2_K", &[0, 1, 2]),
        ("Q3_K", &[0, 1, 2]),
        ("Q4_K", &[0, 1, 2]),
        ("Q5_K", &[0, 1, 2]),
        ("Q6_K", &[0, 1, 2]),
    ] {
        let format = format(name);
        for seed in importances {
            let weights = (*seed > 0).then(|| importance(*seed, columns));
            let blocks = encode_rows(Isa::best(), format, &values, columns, weights.as_deref());
            let per_row = columns / format.elements as usize;
            for (row, blocks) in values.chunks(columns).zip(blocks.chunks(per_row * format.bytes as usize)) {
                let expected = reference::encode(name, row, weights.as_deref());
                for (at, expected) in expected.iter().enumerate() {
                    let (block, element) = (at / format.elements as usize, at % format.elements as usize);
                    let found =
                        format.explain(&blocks[block * format.bytes as usize..][..format.bytes as usize], element);
                    assert_eq!(
                        (found.code, found.scale, found.offset),
                        *expected,
                        "{name} element {at}, weights {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn decoded_values_are_near() {
    let values: Vec<f32> = (0..64 * 256).map(|at| normal(5, at) * 0.02).collect();
    let energy = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
    // The noise of normally distributed values, as part of their energy.
    for (name, limit) in [
        ("Q4_0", 0.01),
        ("Q4_1", 0.01),
        ("Q5_0", 0.003),
        ("Q5_1", 0.003),
        ("Q8_0", 0.0001),
        ("Q2_K", 0.12),
        ("Q3_K", 0.035),
        ("Q4_K", 0.01),
        ("Q5_K", 0.003),
        ("Q6_K", 0.001),
        ("IQ4_NL", 0.01),
        ("IQ4_XS", 0.01),
        ("TQ1_0", 0.7),
        ("TQ2_0", 0.7),
        ("MXFP4", 0.02),
        ("NVFP4", 0.015),
    ] {
        let format = format(name);
        for weights in [None, Some(&[1.0; 256][..])] {
            let blocks = encode_rows(Isa::best(), format, &values, 256, weights);
            let mut decoded = vec![0; 4 * values.len()];
            format.decode(Isa::best(), &blocks, None, Dtype::Float32, &mut decoded);
            let decoded = decoded.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let noise = energy(&mut values.iter().zip(decoded).map(|(value, decoded)| value - decoded));
            let noise = noise / energy(&mut values.iter().copied());
            assert!(noise < limit && noise > limit / 10.0, "{name}: {noise}");
        }
    }
}

#[test]
fn zeros_are_encoded_as_by_ggml() {
    for zero in [0.0, -0.0] {
        for (name, start) in [
            ("Q4_0", &[0, 0x80, 0x88][..]),
            ("Q5_0", &[0, 0x80, 0xff, 0xff, 0xff, 0xff, 0]),
            ("Q8_0", &[0, 0, 0]),
            ("IQ4_NL", &[0, 0, 0x88]),
            ("MXFP4", &[0, 0]),
            ("TQ2_0", &[0x55]),
        ] {
            let found = encode_rows(Isa::best(), format(name), &[zero; 256], 256, None);
            assert_eq!(&found[..start.len()], start, "{name} of {zero}");
        }
        let sign = if zero.is_sign_negative() { 0x80 } else { 0 };
        let found = encode_rows(Isa::best(), format("Q4_1"), &[zero; 32], 32, None);
        assert_eq!(found[..5], [0, 0, 0, sign, 0]);
        let found = encode_rows(Isa::best(), format("Q6_K"), &[zero; 256], 256, None);
        assert_eq!(found, [0; 210]);
    }
}

/// ggml takes the exponent from the logarithm in float32, which is rounded up just below some powers of two.
#[test]
fn the_exponent_of_mxfp4_follows_a_rounded_logarithm() {
    let mut rounded_up = 0;
    for power in -148..=128_i32 {
        let bits = |power: i32| if power < -126 { 1 << (power + 149) } else { ((power + 127) as u32) << 23 };
        for below in 0..200_u32 {
            let Some(bits) = bits(power).checked_sub(below).filter(|bits| *bits > 0) else { continue };
            let value = f32::from_bits(bits);
            if !value.is_finite() {
                continue;
            }
            let logarithm = f64::from(value).log2() as f32;
            let expected = (logarithm.floor() as i32 - 2 + 127) as u8;
            rounded_up += u32::from(below > 0 && logarithm == power as f32);
            for sign in [1.0, -1.0] {
                let mut values = [0.0; 32];
                values[17] = value * sign;
                let mut block = [0; 17];
                let result = format("MXFP4").encode(Isa::best(), &values, 32, None, &mut block);
                assert_eq!(block[0], expected, "2^{power} minus {below} steps");
                // Exponents below 0 wrap, and 255 is refused.
                let refused = Err(EncodeRefusal::Scale { element: 0 });
                assert_eq!(result, if expected == 255 { refused } else { Ok(()) });
            }
        }
    }
    assert!(rounded_up > 1000);
}

#[test]
fn values_and_weights_that_are_not_finite_are_refused() {
    for format in FORMATS.iter().filter(|format| format.can_encode()) {
        for (at, value) in [(0, f32::INFINITY), (700, f32::NEG_INFINITY), (1023, f32::INFINITY)] {
            let mut values = rows(512)[..1024].to_vec();
            values[at] = value;
            let mut out = vec![0; format.size(1024).unwrap() as usize];
            let found = format.encode(Isa::best(), &values, 512, None, &mut out);
            assert_eq!(found, Err(EncodeRefusal::Value { element: at, value }), "{}", format.name);
            values[at] = f32::NAN;
            let found = format.encode(Isa::best(), &values, 512, None, &mut out).unwrap_err();
            assert_eq!(found.to_string(), format!("element {at} is NaN"), "{}", format.name);
        }
        let mut weights = importance(1, 256);
        weights[200] = f32::INFINITY;
        let mut out = vec![0; format.size(256).unwrap() as usize];
        let found = format.encode(Isa::best(), &[0.0; 256], 256, Some(&weights), &mut out).unwrap_err();
        assert_eq!(found.to_string(), "the importance of column 200 is inf");
    }
}

#[test]
fn scales_that_are_not_finite_are_refused() {
    for format in FORMATS.iter().filter(|format| format.can_encode()) {
        let mut values = vec![1.0; 4096];
        values[2600] = 3.4e38;
        let mut out = vec![0; format.size(4096).unwrap() as usize];
        let found = format.encode(Isa::best(), &values, 2048, None, &mut out);
        let element = 2600 / format.elements * format.elements;
        // Scales of NVFP4 are limited, and exponents of MXFP4 are large enough. In the others, the squares of a group are
        // infinite; ggml finds no scale for it, and ignores that.
        let is_accepted = ["MXFP4", "NVFP4", "Q3_K", "Q6_K", "IQ4_XS"].contains(&format.name);
        let expected = match format.name {
            _ if is_accepted => Ok(()),
            _ => Err(EncodeRefusal::Scale { element: element as usize }),
        };
        assert_eq!(found, expected, "{}", format.name);
    }
    let found = format("Q8_0").encode(Isa::best(), &[1e8; 32], 32, None, &mut [0; 34]).unwrap_err();
    assert_eq!(found.to_string(), "the block that starts at element 0 has no finite scale");
}

/// Rows of `columns` values: several distributions, and unusual groups of 32.
fn rows(columns: usize) -> Vec<f32> {
    let count = 7 * columns;
    let mut values: Vec<f32> = (0..count as u64)
        .map(|at| {
            let value = normal(columns as u64, at);
            match at as usize / columns {
                0 => bf16::from_f32(value * 0.02).to_f32(),
                1 => value,
                2 => value * value * value * 1e-3,
                3 => f32::from_bits(value.to_bits() & 0xffc0_0000) * 0.25,
                // Unusual groups follow.
                _ => value * 0.1,
            }
        })
        .collect();
    for (kind, group) in values[4 * columns..].chunks_mut(32).enumerate() {
        for (at, value) in group.iter_mut().enumerate() {
            let odd = at % 2 == 1;
            *value = match kind % 20 {
                0 => -0.0,
                1 if odd => -0.0,
                1 | 2 => 0.0,
                3 => 0.75,
                4 => -0.75,
                5 if odd => -1.0,
                5 => 1.0,
                6 if at == 7 => 1000.0,
                7 if at == 31 => -3.0e4,
                8 => 2_f32.powi(at as i32 - 20),
                9 => f32::from_bits(2_f32.powi(at as i32 - 20).to_bits() - 1),
                10 => *value * 1e-41,
                11 => *value * 1e-38,
                12 => *value * 1e-17,
                13 => value.abs(),
                14 => -value.abs(),
                15 => 10.0 + *value,
                16 if at % 16 < 15 => 0.0,
                17 => f32::from_bits(1 + at as u32),
                18 => at as f32 - 15.5,
                _ => *value,
            };
        }
    }
    values
}

/// Weights of columns. The second kind has zeros.
fn importance(kind: u64, columns: usize) -> Vec<f32> {
    (0..columns as u64)
        .map(|at| {
            let weight = normal(kind + 1000, at).powi(2) + 1e-4;
            if kind == 2 && (at % 3 == 0 || at / 32 == 1) { 0.0 } else { weight }
        })
        .collect()
}

/// A number of a distribution near the normal one.
fn normal(seed: u64, index: u64) -> f32 {
    (0..12).map(|at| random(seed, 12 * index + at) as u32 as f32 / 4_294_967_296.0).sum::<f32>() - 6.0
}

/// `SplitMix64`.
fn random(seed: u64, index: u64) -> u64 {
    let state = (seed << 32).wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

fn encode_rows(isa: Isa, format: &BlockFormat, values: &[f32], columns: usize, weights: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0xee; values.len() / format.elements as usize * format.bytes as usize];
    format.encode(isa, values, columns, weights, &mut out).unwrap();
    out
}

fn format(name: &str) -> &'static BlockFormat {
    FORMATS.iter().find(|format| format.name == name).unwrap()
}

fn numbers(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    Some(tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn fixture(name: &str) -> Vec<u8> {
    let path = path(&format!("{name}.safetensors"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/gguf").join(name)
}
