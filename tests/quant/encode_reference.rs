//! The encoder against a slow reference: each value is rounded by a search in the list of all codes, and scales follow
//! the libraries' formulas one operation at a time.
#![allow(
    clippy::float_cmp,
    clippy::too_many_lines,
    reason = "equality is meant exactly; formulas of all libraries are read side by side"
)]

use super::reference::{Random, number, put, round};
use std::sync::LazyLock;
use tcast::dtype::Dtype;
use tcast::quant::{
    Arithmetic, CodeType, Decoder, EncodeOptions, EncodeTally, Encoder, Extremes, Group, Parameters, Part, Role,
    RotationUse, SCHEMES, ScaleChoice, SchemeLayout, TargetGrid,
};

use Dtype::{Bfloat16, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E8M0, Float16, Float32, Uint8};

/// A weight: its values, which are numbers of its dtype.
struct Weight {
    source: Dtype,
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Weight {
    /// Makes rows and groups of zeros, tiny numbers, outliers, ties and powers of two.
    fn draw(random: &mut Random, source: Dtype, rows: usize, columns: usize) -> Self {
        let mut values = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let uniform = (random.below(1 << 20) as f64 + 0.5) / f64::from(1 << 20);
                let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
                let ordinary = sign * 0.05 * (1.0 / uniform).ln();
                let value = match (row % 11, column / 32 % 7) {
                    (3, _) | (_, 5) => 0.0 * sign,
                    (4, _) => ordinary * if source == Float16 { 1e-6 } else { 1e-30 },
                    (5, 1) => sign * 2_f64.powi(random.below(5) as i32 - 4),
                    (6, _) => sign * f64::from(random.below(64) as u32) / 64.0,
                    (7, 2) => sign * 1.75 * 2_f64.powi(-(random.below(6) as i32)),
                    (8, _) => sign * (2_f64.powi(-9) * (1.0 + random.below(4) as f64 * 2_f64.powi(-23))),
                    (9, _) if column % 67 == 0 => ordinary * 100.0,
                    (10, 3) => ordinary * 1e-4,
                    _ => ordinary,
                };
                values.push(round(value, source) as f32);
            }
        }
        Self { source, rows, columns, values }
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes = |value: &f32| match self.source {
            Bfloat16 => half::bf16::from_f32(*value).to_le_bytes().to_vec(),
            Float16 => half::f16::from_f32(*value).to_le_bytes().to_vec(),
            _ => value.to_le_bytes().to_vec(),
        };
        self.values.iter().flat_map(bytes).collect()
    }

    fn amax(&self) -> f32 {
        self.values.iter().fold(0.0, |amax: f32, value| amax.max(value.abs()))
    }

    /// The values of a group of rows and columns.
    fn group(&self, [rows, columns]: [std::ops::Range<usize>; 2]) -> Vec<f32> {
        rows.flat_map(|row| self.values[row * self.columns..][columns.clone()].to_vec()).collect()
    }
}

/// The positive numbers of a float of 8 bits or fewer.
fn numbers(dtype: Dtype) -> &'static [f64] {
    static LISTS: LazyLock<[Vec<f64>; 3]> = LazyLock::new(|| {
        let list = |dtype, count: u32| (0..count).map(|code| number(dtype, code)).collect();
        [list(Float4E2M1, 8), list(Float6E2M3, 32), list(Float8E4M3FN, 127)]
    });
    match dtype {
        Float4E2M1 => &LISTS[0],
        Float6E2M3 => &LISTS[1],
        Float8E4M3FN => &LISTS[2],
        _ => panic!("{dtype}"),
    }
}

/// The number nearest to a value; in a tie, the one with the even index, or the lower if `ties_down`.
fn nearest(numbers: &[f64], magnitude: f64, ties_down: bool) -> usize {
    let above = numbers.partition_point(|number| *number < magnitude).min(numbers.len() - 1);
    let below = above.saturating_sub(1);
    let [low, high] = [magnitude - numbers[below], numbers[above] - magnitude];
    match low.partial_cmp(&high).unwrap() {
        std::cmp::Ordering::Greater => above,
        std::cmp::Ordering::Equal if above != below && !ties_down && above % 2 == 0 => above,
        _ => below,
    }
}

/// The scale of a group: what is stored, and how a value becomes a number to round.
struct Scale {
    stored: f64,
    zero: f64,
    divide: Box<dyn Fn(f32) -> f64>,
}

fn ceil_log2(value: f32) -> i32 {
    (f64::from(value).log2() as f32).ceil() as i32
}

/// The scale that the library of a layout chooses for a group.
fn scale(layout: &str, grid: &TargetGrid, source: Dtype, values: &[f32], global: f32) -> Scale {
    let t = move |value: f32| round(value.into(), source) as f32;
    let amax = values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()));
    let epsilon = 2_f64.powi(match source {
        Bfloat16 => -7,
        Float16 => -10,
        _ => -23,
    });
    let tiny = 2_f32.powi(if source == Float16 { -14 } else { -126 });
    let over = |scale: f32, divide: Box<dyn Fn(f32) -> f64>| Scale { stored: scale.into(), zero: 0.0, divide };
    let power = move |exponent: i32, in_t: bool| {
        let scale = 2_f64.powi(exponent) as f32;
        let divide = move |value: f32| if in_t { t(value / scale).into() } else { (value / scale).into() };
        Scale { stored: scale.into(), zero: 0.0, divide: Box::new(divide) }
    };
    let e4m3 = |value: f32| {
        let numbers = numbers(Float8E4M3FN);
        numbers[nearest(numbers, value.into(), false)] as f32
    };
    let by = |scale: f32, total: f32| {
        over(scale, Box::new(move |value| if total == 0.0 { 0.0 } else { (value / total).into() }))
    };
    match layout {
        "ct-fp8" | "ct-int8" | "ct-pack" => {
            if let CodeType::Int { bits, symmetric: false } = grid.codes {
                let low = values.iter().fold(0.0_f32, |low, value| low.min(*value));
                let high = values.iter().fold(0.0_f32, |high, value| high.max(*value));
                let (most, least) = ((2_f32.powi(bits as i32)) - 1.0, -(2_f32.powi(bits as i32 - 1)));
                let scale = t(t(high - low) / most);
                let zero = t(least - t(low / scale)).clamp(least, least + most);
                let zero = if zero.is_nan() { 0.0 } else { zero.round_ties_even() };
                let scale = if scale == 0.0 { epsilon as f32 } else { scale };
                let divide = move |value: f32| f64::from(t(t(value / scale) + zero));
                return Scale { stored: scale.into(), zero: zero.into(), divide: Box::new(divide) };
            }
            let largest = match grid.codes {
                CodeType::Float(_) => 448.0,
                CodeType::Int { bits, .. } => (2_f32.powi(bits as i32) - 1.0) / 2.0,
            };
            let scale = t(amax / largest);
            let scale = if scale == 0.0 { epsilon as f32 } else { scale };
            over(scale, Box::new(move |value| t(value / scale).into()))
        }
        "hf-fp8" => {
            let forward = if amax > 0.0 { 1.0 / amax * 448.0 } else { 1.0 };
            let inverse = 1.0 / forward;
            if grid.scale == Some(Float32) {
                return over(inverse, Box::new(move |value| (value * forward).into()));
            }
            power(ceil_log2(inverse.max(2_f32.powi(-126))), false)
        }
        "modelopt-fp8" => {
            let scale = if amax == 0.0 { 1.0 } else { amax.max(tiny) / 448.0 };
            over(scale, Box::new(move |value| (value / scale).into()))
        }
        "comfy-fp8" => {
            let scale = amax / 448.0;
            let scale = if source == Float16 { 1.0 / (1.0 / scale).min(65504.0) } else { scale };
            let factor = t(1.0 / scale);
            over(scale, Box::new(move |value| t(value * factor).into()))
        }
        "comfy-int8" => {
            let scale = (amax / 127.0).max(1e-30);
            over(scale, Box::new(move |value| (value / scale).into()))
        }
        "ct-nvfp4" => {
            let block = e4m3(t(amax / 6.0) * global);
            let block = if block == 0.0 { 0.125 } else { block };
            by(block, block / global)
        }
        "modelopt-nvfp4" => {
            let ratio = amax / (6.0 * global);
            let block = if ratio == 0.0 { 1.0 } else { e4m3(ratio.clamp(2_f32.powi(-9), 448.0)) };
            by(block, block * global)
        }
        "comfy-nvfp4" => {
            let block = e4m3((amax / 6.0 / global).min(448.0));
            by(block, global * block)
        }
        "ct-mxfp4" | "ct-mxfp6" | "ct-mxfp8" => {
            let (threshold, less) = match layout {
                "ct-mxfp6" => (1.9375, 2),
                "ct-mxfp4" => (1.75, 2),
                _ => (1.75, 8),
            };
            if amax == 0.0 {
                return power(if source == Float16 { 0 } else { -127 }, true);
            }
            let exponent = f64::from(amax).log2().floor() as i32;
            let is_up = f64::from(amax) / 2_f64.powi(exponent) >= threshold;
            let tiny = f64::from(tiny).log2() as i32;
            // What is subnormal in T counts as the smallest normal number, or as 0.
            let is_nothing =
                exponent < tiny && !(exponent == tiny - 1 && f64::from(amax) >= 2_f64.powi(tiny) * (threshold - 1.0));
            let exponent = if exponent < tiny { tiny } else { exponent + i32::from(is_up) };
            match (is_nothing, source) {
                (true, Float16) => power(0, true),
                (true, _) => power(-127, true),
                (false, _) => power((exponent - less).max(-127), true),
            }
        }
        "modelopt-mxfp4" | "gptoss-mxfp4" if amax == 0.0 => power(-127, false),
        "modelopt-mxfp4" => power(ceil_log2(amax / 6.0).max(-127), false),
        "modelopt-mxfp8" | "comfy-mxfp8" if amax == 0.0 => {
            if layout == "comfy-mxfp8" {
                by(0.0, 0.0)
            } else {
                power(-127, false)
            }
        }
        "modelopt-mxfp8" | "comfy-mxfp8" => power(ceil_log2(amax / 448.0).max(-127), false),
        "mlx-affine" => {
            let low = values.iter().fold(f32::INFINITY, |low, value| low.min(*value));
            let high = values.iter().fold(f32::NEG_INFINITY, |high, value| high.max(*value));
            let step = ((high - low) / (2_f32.powi(grid.codes.bits() as i32) - 1.0)).max(1e-7);
            let (edge, step) = if low.abs() > high.abs() { (low, step) } else { (high, -step) };
            let count = (edge / step).round_ties_even();
            let (scale, offset) = if count == 0.0 { (step, 0.0) } else { (edge / count, edge) };
            // Codes follow from the numbers before these are rounded for storage.
            let divide = move |value: f32| f64::from((value - offset) / scale);
            Scale { stored: t(scale).into(), zero: t(offset).into(), divide: Box::new(divide) }
        }
        "mlx-mxfp4" | "mlx-mxfp8" => {
            let ratio = t(amax / if layout == "mlx-mxfp4" { 6.0 } else { 448.0 });
            let exponents = (-127..128).find(|exponent| 2_f64.powi(*exponent) >= ratio.into());
            power(if ratio == 0.0 { 0 } else { exponents.unwrap() }, true)
        }
        "mlx-nvfp4" => {
            let block = e4m3(t(amax / 6.0));
            over(block, Box::new(move |value| if block == 0.0 { 0.0 } else { t(value / block).into() }))
        }
        "gptoss-mxfp4" => power((f64::from(amax).log2().floor() as i32 - 2).max(-127), false),
        _ => panic!("{layout}"),
    }
}

/// The scale of exact arithmetic for a group: the scale is rounded once, and quotients are not rounded.
fn exact_scale(layout: &str, grid: &TargetGrid, source: Dtype, values: &[f32], global: f64) -> Option<Scale> {
    let amax = f64::from(values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs())));
    let largest = match grid.codes {
        CodeType::Float(dtype) => *numbers(dtype).last().unwrap(),
        CodeType::Int { bits, symmetric: true } if layout == "comfy-int8" => 2_f64.powi(bits as i32 - 1) - 1.0,
        CodeType::Int { bits, symmetric: true } => (2_f64.powi(bits as i32) - 1.0) / 2.0,
        CodeType::Int { .. } => return None,
    };
    let stored = match grid.scale.unwrap_or(source) {
        Float8E4M3FN => {
            let numbers = numbers(Float8E4M3FN);
            let ratio = if layout == "ct-nvfp4" { amax * global / 6.0 } else { amax / 6.0 / global };
            numbers[nearest(numbers, ratio, false)]
        }
        Uint8 | Float8E8M0 => return None,
        dtype if layout == "comfy-int8" => round(amax / largest, dtype).max(1e-30_f32.into()),
        dtype => round(amax / largest, dtype),
    };
    let times = match layout {
        "ct-nvfp4" => 1.0 / global,
        _ => global,
    };
    let is_divisor = layout == "ct-nvfp4";
    let divide = move |value: f32| {
        if is_divisor { f64::from(value) * global / stored } else { f64::from(value) / (stored * times) }
    };
    (stored != 0.0).then(|| Scale { stored, zero: 0.0, divide: Box::new(divide) })
}

fn is_whole(grid: &TargetGrid) -> bool {
    grid.group == Group::Tensor
}

/// True if values are not rotated before they are encoded: `tests/cli/comfy.rs` compares the other layouts.
fn is_compared(stored: &SchemeLayout) -> bool {
    stored.row.rotation != RotationUse::Always
}

/// The codes and scales of a weight as lists, row by row.
struct Expected {
    codes: Vec<Option<u8>>,
    scales: Vec<Option<f64>>,
    zeros: Vec<f64>,
}

fn expect(stored: &SchemeLayout, weight: &Weight, arithmetic: Arithmetic) -> Expected {
    let (layout, grid) = (stored.row.name, &stored.grid);
    let amax = weight.amax();
    let t = |value: f32| round(value.into(), weight.source) as f32;
    let global = match (layout, arithmetic) {
        ("ct-nvfp4", Arithmetic::Library) => t(t(1.0 / amax) * 2688.0),
        ("ct-nvfp4", Arithmetic::Exact) => (2688.0 / f64::from(amax)) as f32,
        ("comfy-nvfp4", Arithmetic::Library) => t(amax / 2688.0),
        ("modelopt-nvfp4" | "comfy-nvfp4", _) => amax / 2688.0,
        _ => 1.0,
    };
    let global = if global.is_finite() { global } else { 1.0 };
    let [below, beside] = match grid.group {
        Group::Tensor => [weight.rows, weight.columns],
        Group::Channel => [1, weight.columns],
        Group::Block(block) => block.map(|length| length as usize),
        Group::Neighbours(count) => [1, count as usize],
    };
    let mut expected = Expected { codes: vec![None; weight.values.len()], scales: Vec::new(), zeros: Vec::new() };
    for row in (0..weight.rows).step_by(below) {
        for column in (0..weight.columns).step_by(beside) {
            let rows = row..(row + below).min(weight.rows);
            let columns = column..(column + beside).min(weight.columns);
            let values = weight.group([rows.clone(), columns.clone()]);
            let scale = match arithmetic {
                Arithmetic::Library => Some(scale(layout, grid, weight.source, &values, global)),
                Arithmetic::Exact => exact_scale(layout, grid, weight.source, &values, global.into()),
            };
            expected.scales.push(scale.as_ref().map(|scale| scale.stored));
            expected.zeros.push(scale.as_ref().map_or(0.0, |scale| scale.zero));
            let Some(scale) = scale else { continue };
            for (row, column) in rows.flat_map(|row| columns.clone().map(move |column| (row, column))) {
                let at = row * weight.columns + column;
                let value = weight.values[at];
                let quotient = (scale.divide)(value);
                expected.codes[at] = Some(match grid.codes {
                    CodeType::Int { bits, .. } if layout == "mlx-affine" => {
                        quotient.round_ties_even().clamp(0.0, 2_f64.powi(bits as i32) - 1.0) as u8
                    }
                    CodeType::Int { bits, .. } => {
                        let half = 2_f64.powi(bits as i32 - 1);
                        let code = quotient.clamp(-half, half - 1.0).round_ties_even();
                        (if layout == "ct-pack" { code + half } else { code }) as i16 as u8
                    }
                    CodeType::Float(dtype) => {
                        let numbers = numbers(dtype);
                        let has_ties_down = matches!(layout, "modelopt-mxfp4" | "mlx-mxfp4" | "mlx-nvfp4");
                        let magnitude = nearest(numbers, quotient.abs(), has_ties_down) as u8;
                        let is_negative = match layout {
                            "mlx-mxfp4" | "mlx-nvfp4" => quotient < 0.0 && magnitude > 0,
                            "modelopt-mxfp4" => quotient <= 0.0,
                            "ct-fp8" | "ct-mxfp8" | "ct-nvfp4" | "ct-mxfp4" | "modelopt-nvfp4" => quotient < 0.0,
                            _ => quotient.is_sign_negative(),
                        };
                        magnitude | if is_negative { 1 << (dtype.bits() - 1) } else { 0 }
                    }
                });
            }
        }
    }
    expected
}

/// Encodes all rows at once.
fn encode(encoder: &Encoder, weight: &Weight) -> (Vec<Vec<u8>>, EncodeTally) {
    let bytes = weight.bytes();
    let extremes = Extremes::of(weight.source, &bytes, 0);
    let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
    let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
    let mut tally = EncodeTally::default();
    encoder.encode(0..encoder.rows(), &bytes, &extremes, &mut outputs, &mut tally);
    (parts, tally)
}

/// Reads a code from a part, by its row and column in the weight.
fn code(encoder: &Encoder, bytes: &[u8], weight: &Weight, bits: usize, at: usize) -> u8 {
    let part = &encoder.parts()[0];
    let rows = part.shape.iter().rev().skip(1).product::<u64>() as usize;
    let [row, column] = [at / weight.columns, at % weight.columns];
    // gpt-oss has one more dimension, and the same bytes.
    let stride = if encoder.layout().name == "gptoss-mxfp4" { weight.columns / 2 } else { bytes.len() / rows };
    let high_first = encoder.layout().name == "comfy-nvfp4";
    let bit = if high_first { (column * 4) ^ 4 } else { column * bits };
    let stream = &bytes[row * stride..(row + 1) * stride];
    (0..bits).map(|at| (stream[(bit + at) / 8] >> ((bit + at) % 8) & 1) << at).sum()
}

/// Reads a stored scale, by the row and column of its group.
fn stored_scale(encoder: &Encoder, bytes: &[u8], grid: [usize; 2], group: usize) -> f64 {
    let part = &encoder.parts()[1];
    let width = part.dtype.bits() as usize / 8;
    let [row, column] = [group / grid[1], group % grid[1]];
    let at = if encoder.layout().name.starts_with("comfy") && part.shape.len() == 2 && width == 1 {
        let tiles = part.shape[1] as usize / 4;
        512 * (row / 128 * tiles + column / 4) + 16 * (row % 32) + 4 * (row % 128 / 32) + column % 4
    } else {
        group
    };
    let bits = bytes[at * width..][..width].iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte));
    match part.dtype {
        Uint8 if encoder.layout().name == "mlx-nvfp4" => number(Float8E4M3FN, bits),
        Uint8 | Float8E8M0 if encoder.layout().name == "comfy-mxfp8" && bits == 0 => 0.0,
        Uint8 | Float8E8M0 => 2_f64.powi(bits as i32 - 127),
        dtype => number(dtype, bits),
    }
}

/// Reads an element of a tensor of floats.
fn stored_number(dtype: Dtype, bytes: &[u8], at: usize) -> f64 {
    let width = dtype.bits() as usize / 8;
    number(dtype, bytes[at * width..][..width].iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte)))
}

#[test]
fn codes_and_scales_are_those_of_the_formulas() {
    let mut random = Random { state: 0x5eed, is_ordinary: true };
    let mut compared = 0;
    for scheme in SCHEMES {
        for stored in scheme.layouts.iter().filter(|stored| is_compared(stored)) {
            for source in [Bfloat16, Float16, Float32] {
                for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
                    let (rows, columns) =
                        if matches!(stored.grid.group, Group::Block([128, _])) { (256, 256) } else { (44, 256) };
                    let weight = Weight::draw(&mut random, source, rows, columns);
                    let options = EncodeOptions { arithmetic, ..EncodeOptions::default() };
                    let shape = [rows as u64, columns as u64];
                    let encoder = Encoder::new(stored.row, &stored.grid, &shape, source, options).unwrap();
                    let (parts, tally) = encode(&encoder, &weight);
                    let expected = expect(stored, &weight, arithmetic);
                    let what = format!("{} {} {source} {arithmetic:?}", scheme.name, stored.name);
                    let [_, beside] = match stored.grid.group {
                        Group::Neighbours(count) | Group::Block([_, count]) => [1, columns / count as usize],
                        _ => [1, 1],
                    };
                    for (group, scale) in expected.scales.iter().enumerate() {
                        let Some(scale) = scale else { continue };
                        let found = stored_scale(&encoder, &parts[1], [rows, beside], group);
                        assert_eq!(found, *scale, "{what}: scale {group}");
                        compared += 1;
                    }
                    let bits = stored.grid.codes.bits() as usize;
                    for (at, wanted) in expected.codes.iter().enumerate() {
                        let Some(wanted) = wanted else { continue };
                        let found = code(&encoder, &parts[0], &weight, bits, at);
                        let value = weight.values[at];
                        assert_eq!(found, *wanted, "{what}: value {at}, which is {value:e}");
                        compared += 1;
                    }
                    if encoder.parts().iter().any(|part| part.role == Role::ZeroPoint) {
                        let mut zeros = vec![0; parts[2].len()];
                        for (group, zero) in expected.zeros.iter().enumerate() {
                            let [row, column] = [group / beside, group % beside];
                            // Zero points are packed down each column, in words of 32 bits.
                            let mut stream = vec![0; rows * bits / 8 + 8];
                            put(&mut stream, row * bits, bits, (zero + 2_f64.powi(bits as i32 - 1)) as u32);
                            for (word, bytes) in stream[..4 * (rows * bits).div_ceil(32)].chunks(4).enumerate() {
                                let place = 4 * (word * beside + column);
                                zeros[place..].iter_mut().zip(bytes).for_each(|(zero, byte)| *zero |= byte);
                            }
                        }
                        assert!(arithmetic == Arithmetic::Exact || zeros == parts[2], "{what}: zero points");
                    }
                    if encoder.parts().iter().any(|part| part.role == Role::Offset) && arithmetic == Arithmetic::Library
                    {
                        for (group, offset) in expected.zeros.iter().enumerate() {
                            let found = stored_number(encoder.parts()[2].dtype, &parts[2], group);
                            assert_eq!(found, *offset, "{what}: offset {group}");
                        }
                    }
                    assert_eq!(tally.values, weight.values.len() as u64);
                }
            }
        }
    }
    assert!(compared > 1_000_000, "{compared}");
}

/// 0.28125 * 7 / 0.5625 is 3.5, a tie, but 0.5625 / 7 is not a float64.
#[test]
fn an_exact_quotient_with_a_global_divisor_is_rounded_once() {
    let scheme = SCHEMES.iter().find(|scheme| scheme.name == "nvfp4").unwrap();
    let stored = scheme.layouts.iter().find(|stored| stored.row.name == "ct-nvfp4").unwrap();
    let mut values = vec![0.0; 32];
    (values[0], values[16], values[17], values[18]) = (384.0, 0.482, 0.28125, -0.28125);
    let weight = Weight { source: Float32, rows: 1, columns: 32, values };
    let options = EncodeOptions { arithmetic: Arithmetic::Exact, ..EncodeOptions::default() };
    for source in [Float32, Dtype::Float64] {
        let encoder = Encoder::new(stored.row, &stored.grid, &[1, 32], source, options).unwrap();
        let bytes: Vec<u8> = match source {
            Float32 => weight.bytes(),
            _ => weight.values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect(),
        };
        let extremes = Extremes::of(source, &bytes, 0);
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
        encoder.encode(0..1, &bytes, &extremes, &mut outputs, &mut EncodeTally::default());
        assert_eq!(stored_scale(&encoder, &parts[1], [1, 2], 1), 0.5625, "{source}");
        assert_eq!([17, 18].map(|at| code(&encoder, &parts[0], &weight, 4, at)), [6, 14], "{source}");
    }
}

/// The product of a float64 near a tie and the global scale, 7, rounds to the tie.
#[test]
fn an_exact_quotient_of_float64_with_a_global_divisor_is_rounded_once() {
    const NUMBERS: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let scheme = SCHEMES.iter().find(|scheme| scheme.name == "nvfp4").unwrap();
    let stored = scheme.layouts.iter().find(|stored| stored.row.name == "ct-nvfp4").unwrap();
    let options = EncodeOptions { arithmetic: Arithmetic::Exact, ..EncodeOptions::default() };
    let mut of_rounding = 0;
    for (at, pair) in NUMBERS.windows(2).enumerate() {
        let tie = f64::midpoint(pair[0], pair[1]) * 0.5625;
        let near = tie / 7.0;
        let near = [near, near.next_up(), near.next_down()];
        let mut values = [0.0; 32];
        (values[0], values[16]) = (384.0, 0.482);
        values[17..20].copy_from_slice(&near);
        let encoder = Encoder::new(stored.row, &stored.grid, &[1, 32], Dtype::Float64, options).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let extremes = Extremes::of(Dtype::Float64, &bytes, 0);
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
        encoder.encode(0..1, &bytes, &extremes, &mut outputs, &mut EncodeTally::default());
        let weight = Weight { source: Float32, rows: 1, columns: 32, values: vec![0.0; 32] };
        for (place, value) in near.into_iter().enumerate() {
            // All are multiples of 2^-60.
            let [sevenfold, exact_tie] = [value, tie].map(|number| (number * 2_f64.powi(60)) as i128);
            let wanted = match (sevenfold * 7).cmp(&exact_tie) {
                std::cmp::Ordering::Less => at,
                std::cmp::Ordering::Equal => at + at % 2,
                std::cmp::Ordering::Greater => at + 1,
            };
            of_rounding += u32::from(value * 7.0 == tie && wanted != at + at % 2);
            assert_eq!(code(&encoder, &parts[0], &weight, 4, 17 + place), wanted as u8, "{value} {tie}");
        }
    }
    assert!(of_rounding > 2, "{of_rounding}");
}

/// Decodes what an encoder wrote to float32, exactly.
fn decode(encoder: &Encoder, stored: &SchemeLayout, parts: &[Vec<u8>], shape: &[u64]) -> Vec<f32> {
    let names: Vec<Part> = encoder
        .parts()
        .iter()
        .map(|part| Part { role: part.role, name: part.suffix, dtype: part.dtype, shape: &part.shape })
        .collect();
    let bits = match stored.grid.codes {
        CodeType::Int { bits, .. } => Some(bits),
        CodeType::Float(_) => None,
    };
    // A gpt-oss weight decodes to the transpose, and its groups are known from the layout.
    let is_transposed = encoder.layout().name == "gptoss-mxfp4";
    let group = (!is_transposed).then_some(stored.grid.group);
    let parameters =
        Parameters { shape: (!is_transposed).then(|| shape.to_vec()), bits, group, ..Parameters::default() };
    let decoder = Decoder::new(encoder.layout(), &parameters, &names, Float32, Arithmetic::Exact).unwrap();
    let bytes: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    let mut out = vec![0; (decoder.rows() * decoder.row_bytes()) as usize];
    decoder.decode(0..decoder.rows(), &bytes, &mut out).unwrap();
    let values: Vec<f32> = out.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    if !is_transposed {
        return values;
    }
    let [rows, columns] = [0, 1].map(|at| shape[at] as usize);
    (0..rows * columns).map(|at| values[at % columns * rows + at / columns]).collect()
}

/// Half of the largest step of a grid, over its largest number.
fn half_step(codes: CodeType) -> f64 {
    match codes {
        CodeType::Float(dtype) => {
            let numbers = numbers(dtype);
            let last = numbers.len() - 1;
            (numbers[last] - numbers[last - 1]) / 2.0
        }
        CodeType::Int { .. } => 0.5,
    }
}

#[test]
fn decoded_values_are_within_half_a_step_unless_they_are_clipped() {
    let mut random = Random { state: 0xdec0de, is_ordinary: true };
    for scheme in SCHEMES {
        for stored in scheme.layouts.iter().filter(|stored| is_compared(stored)) {
            for source in [Bfloat16, Float16, Float32] {
                let (rows, columns) = (128, 256);
                let weight = Weight::draw(&mut random, source, rows, columns);
                let shape = [rows as u64, columns as u64];
                let options = EncodeOptions { arithmetic: Arithmetic::Exact, ..EncodeOptions::default() };
                let encoder = Encoder::new(stored.row, &stored.grid, &shape, source, options).unwrap();
                let (parts, tally) = encode(&encoder, &weight);
                let decoded = decode(&encoder, stored, &parts, &shape);
                let what = format!("{} {} {source}", scheme.name, stored.name);
                let (mut far, mut largest, mut noise, mut signal) = (0, 0.0_f64, 0.0, 0.0);
                let beside = match stored.grid.group {
                    Group::Neighbours(count) | Group::Block([_, count]) => count as usize,
                    _ => columns,
                };
                let height = match stored.grid.group {
                    Group::Block([count, _]) => count as usize,
                    Group::Tensor => rows,
                    _ => 1,
                };
                let groups_beside = columns / beside;
                let amax_of = |group: usize| {
                    let (row, column) = (group / groups_beside * height, group % groups_beside * beside);
                    let values = weight.group([row..row + height, column..column + beside]);
                    values.iter().fold(0.0_f32, |amax, value| amax.max(value.abs()))
                };
                let amax: Vec<f32> = (0..rows / height * groups_beside).map(amax_of).collect();
                for (at, (value, decoded)) in weight.values.iter().zip(&decoded).enumerate() {
                    let amax = amax[at / columns / height * groups_beside + at % columns / beside];
                    // A scale is at least amax over the largest number, and less than twice that where it is a power of
                    // two.
                    let most = match stored.grid.codes {
                        CodeType::Float(dtype) => *numbers(dtype).last().unwrap(),
                        CodeType::Int { bits, .. } => 2_f64.powi(bits as i32 - 1) - 1.0,
                    };
                    let step = 2.6 * f64::from(amax) / most * half_step(stored.grid.codes);
                    // The least scale of MLX is 1e-7, which float16 rounds by up to 3e-8 for each unit of a code.
                    let step = if stored.row.name == "mlx-affine" { step + 1e-5 } else { step };
                    let error = (f64::from(*value) - f64::from(*decoded)).abs();
                    far += u64::from(error > step);
                    largest = largest.max(error);
                    noise += error * error;
                    signal += f64::from(*value) * f64::from(*value);
                }
                assert!(far <= tally.clipped + tally.underflowed_groups * beside as u64, "{what}: {far} {tally:?}");
                assert!((tally.max_error - largest).abs() <= 3e-5 * largest, "{what}: {largest} {tally:?}");
                let sqnr = 10.0 * f64::log10(signal / noise);
                assert!((tally.sqnr_db().unwrap() - sqnr).abs() < 1e-3, "{what}: {sqnr} {:?}", tally.sqnr_db());
            }
        }
    }
}

#[test]
fn what_was_decoded_encodes_to_the_same_values_where_the_scheme_is_idempotent() {
    let mut random = Random { state: 0x1de, is_ordinary: true };
    let mut changed = Vec::new();
    for scheme in SCHEMES {
        for stored in scheme.layouts.iter().filter(|stored| is_compared(stored)) {
            let (rows, columns) = (128, 256);
            let weight = Weight::draw(&mut random, Float32, rows, columns);
            let shape = [rows as u64, columns as u64];
            let options = EncodeOptions::default();
            let encoder = Encoder::new(stored.row, &stored.grid, &shape, Float32, options).unwrap();
            let (parts, _) = encode(&encoder, &weight);
            let values = decode(&encoder, stored, &parts, &shape);
            let again = Weight { values: values.clone(), ..weight };
            let (parts, tally) = encode(&encoder, &again);
            let second = decode(&encoder, stored, &parts, &shape);
            let count = values.iter().zip(&second).filter(|(first, second)| first != second).count();
            assert!(!tally.is_exact() || count == 0, "{} {}", scheme.name, stored.name);
            changed.push((scheme.name, stored.name, count));
        }
    }
    // With powers of two the second scale is that of the first, unless the largest value was rounded across a
    // threshold.
    for (scheme, layout, count) in &changed {
        let is_idempotent = matches!(
            (*scheme, *layout),
            ("mxfp4", "compressed-tensors" | "gpt-oss") | ("mxfp6" | "fp8-block-ue8m0", _)
        );
        assert!(!is_idempotent || *count == 0, "{scheme} {layout}: {count}");
    }
}

#[test]
fn searched_scales_have_no_more_error_than_those_of_the_rule() {
    let mut random = Random { state: 0x3e, is_ordinary: true };
    let mut gains = Vec::new();
    for scheme in SCHEMES {
        for stored in scheme.layouts.iter().filter(|stored| is_compared(stored)) {
            for source in [Bfloat16, Float32] {
                let (rows, columns) = (44, 256);
                let weight = Weight::draw(&mut random, source, rows, columns);
                let shape = [rows as u64, columns as u64];
                let with = |scale: ScaleChoice| {
                    let options = EncodeOptions { scale, ..EncodeOptions::default() };
                    Encoder::new(stored.row, &stored.grid, &shape, source, options)
                };
                let is_packed = matches!(stored.grid.codes, CodeType::Int { bits: ..8, .. });
                let is_searched = (matches!(scheme.name, "nvfp4" | "mxfp4") || is_packed) && stored.name != "mlx";
                assert_eq!(with(ScaleChoice::Mse).is_ok(), is_searched, "{} {}", scheme.name, stored.name);
                let Ok(encoder) = with(ScaleChoice::Mse) else { continue };
                let (parts, searched) = encode(&encoder, &weight);
                let (_, plain) = encode(&with(ScaleChoice::Amax).unwrap(), &weight);
                let gain = searched.sqnr_db().unwrap() - plain.sqnr_db().unwrap();
                assert!(gain >= 0.0, "{} {} {source}: {gain}", scheme.name, stored.name);
                gains.push((scheme.name, stored.name, gain));
                if scheme.name == "nvfp4" {
                    is_least(&encoder, stored, &weight, &parts);
                }
            }
        }
    }
    assert!(gains.iter().all(|(scheme, _, gain)| *scheme != "nvfp4" || *gain > 1.0), "{gains:?}");
}

/// Tries all scales of NVFP4 for every group.
fn is_least(encoder: &Encoder, stored: &SchemeLayout, weight: &Weight, parts: &[Vec<u8>]) {
    let global = encoder.parts().iter().position(|part| part.role == Role::GlobalScale).unwrap();
    let global = f32::from_le_bytes(parts[global][..4].try_into().unwrap());
    let (blocks, codes) = (numbers(Float8E4M3FN), numbers(Float4E2M1));
    for group in 0..weight.values.len() / 16 {
        let values = &weight.values[16 * group..][..16];
        if values.iter().all(|value| *value == 0.0) {
            continue;
        }
        let error = |block: f64| {
            let block = block as f32;
            let scale = if stored.row.name == "ct-nvfp4" { block / global } else { block * global };
            let errors = values.iter().map(|value| {
                let magnitude = codes[nearest(codes, f64::from((value / scale).abs()), false)];
                (f64::from(value.abs()) - magnitude * f64::from(scale)).powi(2)
            });
            errors.sum::<f64>()
        };
        let found = stored_scale(encoder, &parts[1], [weight.rows, weight.columns / 16], group);
        let least = blocks[1..].iter().rev().map(|block| (error(*block), *block));
        let (least, block) = least.reduce(|best, next| if next.0 < best.0 { next } else { best }).unwrap();
        let own = error(found);
        assert!(own <= least * (1.0 + 1e-12), "{}: group {group}: {found} has {own:e}, {block} {least:e}", stored.name);
    }
}

#[test]
fn infinite_values_and_nan_are_counted_and_found() {
    let mut random = Random { state: 0x0bad, is_ordinary: true };
    for (scheme, stored) in SCHEMES
        .iter()
        .flat_map(|scheme| scheme.layouts.iter().map(move |stored| (scheme, stored)))
        .filter(|(_, stored)| is_compared(stored))
    {
        let mut weight = Weight::draw(&mut random, Float32, 128, 256);
        weight.values[5000] = f32::NAN;
        weight.values[4711] = f32::NEG_INFINITY;
        let encoder = Encoder::new(stored.row, &stored.grid, &[128, 256], Float32, EncodeOptions::default()).unwrap();
        let bytes = weight.bytes();
        let extremes = Extremes::of(Float32, &bytes, 0);
        assert_eq!(extremes.first_special, Some(4711));
        let (_, tally) = encode(&encoder, &weight);
        if !is_whole(&stored.grid) {
            assert_eq!(tally.first_special, Some(4711), "{} {}", scheme.name, stored.name);
        }
    }
}

#[test]
fn a_group_whose_range_overflows_its_type_gets_a_finite_scale() {
    let stored = SCHEMES.iter().find(|scheme| scheme.name == "int4-asym").unwrap().in_layout(None).unwrap();
    for (source, most) in [(Float16, 65504.0), (Bfloat16, 3.38e38), (Float32, f32::MAX)] {
        for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
            for scale in [ScaleChoice::Amax, ScaleChoice::Mse] {
                let value = |at: usize| round(f64::from(most) * (0.9 - 0.1 * (at % 19) as f64), source) as f32;
                let weight = Weight { source, rows: 2, columns: 128, values: (0..256).map(value).collect() };
                let options = EncodeOptions { arithmetic, scale, ..EncodeOptions::default() };
                let encoder = Encoder::new(stored.row, &stored.grid, &[2, 128], source, options).unwrap();
                let (parts, tally) = encode(&encoder, &weight);
                let sqnr = tally.sqnr_db().unwrap();
                assert!((20.0..40.0).contains(&sqnr), "{source} {options:?}: {sqnr}");
                for (decoded, value) in decode(&encoder, stored, &parts, &[2, 128]).iter().zip(&weight.values) {
                    // The step is a fifteenth of the range of 1.8 times the largest number.
                    let error = f64::from(*decoded) - f64::from(*value);
                    assert!(error.abs() < 0.13 * f64::from(most), "{source} {options:?}: {decoded} {value}");
                }
            }
        }
    }
}

#[test]
fn a_scale_that_a_library_cannot_compute_is_finite_and_the_codes_are_zeros() {
    let shape = [128, 128];
    for (scheme, layout, source, amax, wanted) in [
        // ComfyUI bounds the reciprocal in float16, so only the scale of other types would be 0.
        ("fp8", "comfyui", Float16, 0.0, 1.0 / 65504.0),
        ("fp8", "comfyui", Bfloat16, 0.0, 1.0),
        ("fp8", "comfyui", Float32, 0.0, 1.0),
        ("fp8", "comfyui", Float32, 1e-36, 1.0),
        ("fp8-block", "huggingface", Float32, 0.0, 1.0),
        ("fp8-block", "huggingface", Float32, 1e-36, 1.0),
        ("mxfp8", "comfyui", Float32, 1e-36, 0.0),
        ("nvfp4", "modelopt", Float32, 1e-42, 1.0),
        ("nvfp4", "comfyui", Float16, 6e-5, 1.0),
    ] {
        let stored = tcast::quant::Scheme::find(scheme).unwrap().in_layout(Some(layout)).unwrap();
        let encoder = Encoder::new(stored.row, &stored.grid, &shape, source, EncodeOptions::default()).unwrap();
        let values = (0..128 * 128).map(|at| round(amax * f64::from(at % 3 - 1), source) as f32);
        let weight = Weight { source, rows: 128, columns: 128, values: values.collect() };
        let (parts, _) = encode(&encoder, &weight);
        let what = format!("{scheme} {layout} {source} {amax:e}");
        let at = encoder.parts().iter().position(|part| part.role == Role::GlobalScale).unwrap_or(1);
        let found = match encoder.parts()[at].dtype {
            Float32 => f32::from_le_bytes(parts[at][..4].try_into().unwrap()),
            _ => parts[at][0].into(),
        };
        assert_eq!(found, wanted, "{what}");
        let sign = |byte: &u8| byte & if encoder.parts()[0].dtype == Uint8 { 0x77 } else { 0x7f };
        assert!(parts[0].iter().all(|byte| sign(byte) == 0), "{what}");
    }
}

#[test]
fn scales_of_blocks_of_several_rows_are_not_searched() {
    let layout = tcast::quant::find("ct-pack").unwrap();
    let options = EncodeOptions { scale: ScaleChoice::Mse, ..EncodeOptions::default() };
    let unfit = |group| {
        let grid = TargetGrid { codes: CodeType::Int { bits: 4, symmetric: true }, group, scale: None };
        Encoder::new(layout, &grid, &[8, 64], Bfloat16, options).err()
    };
    assert_eq!(unfit(Group::Block([2, 32])), Some(tcast::quant::Unfit::Search));
    assert_eq!(unfit(Group::Block([1, 32])), None);
}

#[test]
fn shapes_that_a_grid_cannot_take_are_refused() {
    let refused = |scheme: &str, layout: &str, shape: &[u64], source: Dtype| {
        let scheme = tcast::quant::Scheme::find(scheme).unwrap();
        let stored = scheme.in_layout(Some(layout)).unwrap();
        let encoder = Encoder::new(stored.row, &stored.grid, shape, source, EncodeOptions::default());
        encoder.err().map(|unfit| unfit.to_string())
    };
    let some = |text: &str| Some(text.to_owned());
    let ct = "compressed-tensors";
    assert_eq!(refused("nvfp4", ct, &[8, 40], Bfloat16), some("its rows of 40 values are not a multiple of 16"));
    assert_eq!(refused("nvfp4", "comfyui", &[8, 40], Bfloat16), None);
    assert_eq!(refused("int4", ct, &[8, 192], Bfloat16), some("its rows of 192 values are not a multiple of 128"));
    assert_eq!(
        refused("fp8-block", "huggingface", &[192, 256], Bfloat16),
        some("its 192 rows are not a multiple of 128")
    );
    assert_eq!(refused("fp8-block", ct, &[192, 200], Bfloat16), None);
    assert_eq!(refused("fp8", ct, &[256], Bfloat16), some("its shape [256] is not that of a matrix"));
    assert_eq!(refused("fp8", ct, &[0, 256], Bfloat16), some("it has no elements"));
    assert_eq!(refused("fp8", ct, &[8, 256], Dtype::Int8), some("its dtype is int8"));
    assert_eq!(
        refused("mxfp8", "comfyui", &[2, 32, 32], Bfloat16),
        some("its shape [2, 32, 32] is not that of a matrix")
    );
    assert_eq!(
        refused("fp8", ct, &[u64::MAX, 3], Bfloat16),
        some(&format!("its shape [{}, 3] is not that of a matrix", u64::MAX))
    );
}
