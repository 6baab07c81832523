//! Codes and scales that are moved to another layout: every value, computed in float64, stays the same.
#![allow(clippy::float_cmp, reason = "equality is meant exactly")]

use super::reference::Random;
use std::sync::Arc;
use tcast::dtype::Dtype;
use tcast::quant::{
    Arithmetic, CodeType, Decoder, EncodeOptions, EncodeTally, Encoder, Extremes, Fidelity, Group, Layout, Parameters,
    Part, Role, RowMap, SharedTables, TargetGrid, Transcoder, find,
};

use Dtype::{Bfloat16, Float4E2M1, Float6E2M3, Float8E4M3FN, Float8E8M0, Float32, Uint8};

/// A layout, and a grid that it stores.
#[derive(Clone, Copy, Debug)]
struct Stored {
    layout: &'static str,
    grid: TargetGrid,
}

const fn float(layout: &'static str, codes: Dtype, group: Group, scale: Dtype) -> Stored {
    Stored { layout, grid: TargetGrid { codes: CodeType::Float(codes), group, scale: Some(scale) } }
}

const fn integer(layout: &'static str, bits: u32, symmetric: bool, group: Group) -> Stored {
    Stored { layout, grid: TargetGrid { codes: CodeType::Int { bits, symmetric }, group, scale: Some(Bfloat16) } }
}

const BLOCK: Group = Group::Block([128, 128]);
const FP8: Dtype = Float8E4M3FN;
const HF: Stored = float("hf-fp8", FP8, BLOCK, Float32);
const HF_BF16: Stored = float("hf-fp8", FP8, BLOCK, Bfloat16);
const HF_E8M0: Stored = float("hf-fp8", FP8, BLOCK, Float8E8M0);
const HF_MX: Stored = float("hf-fp8", FP8, Group::Block([1, 32]), Uint8);
const CT_BLOCK: Stored = float("ct-fp8", FP8, BLOCK, Float32);
const CT_BLOCK_BF16: Stored = float("ct-fp8", FP8, BLOCK, Bfloat16);
const CT_TENSOR: Stored = float("ct-fp8", FP8, Group::Tensor, Float32);
const CT_CHANNEL: Stored = float("ct-fp8", FP8, Group::Channel, Float32);
const MO_TENSOR: Stored = float("modelopt-fp8", FP8, Group::Tensor, Float32);
const MO_CHANNEL: Stored = float("modelopt-fp8", FP8, Group::Channel, Float32);
const MO_BLOCK: Stored = float("modelopt-fp8", FP8, BLOCK, Float32);
const COMFY_FP8: Stored = float("comfy-fp8", FP8, Group::Tensor, Float32);
const CT_NV: Stored = float("ct-nvfp4", Float4E2M1, Group::Neighbours(16), Float8E4M3FN);
const MO_NV: Stored = float("modelopt-nvfp4", Float4E2M1, Group::Neighbours(16), Float8E4M3FN);
const COMFY_NV: Stored = float("comfy-nvfp4", Float4E2M1, Group::Neighbours(16), Float8E4M3FN);
const CT_MX4: Stored = float("ct-mxfp4", Float4E2M1, Group::Neighbours(32), Uint8);
const MO_MX4: Stored = float("modelopt-mxfp4", Float4E2M1, Group::Neighbours(32), Uint8);
const OSS: Stored = float("gptoss-mxfp4", Float4E2M1, Group::Neighbours(32), Uint8);
const CT_MX6: Stored = float("ct-mxfp6", Float6E2M3, Group::Neighbours(32), Uint8);
const CT_MX8: Stored = float("ct-mxfp8", FP8, Group::Neighbours(32), Uint8);
const MO_MX8: Stored = float("modelopt-mxfp8", FP8, Group::Neighbours(32), Uint8);
const COMFY_MX8: Stored = float("comfy-mxfp8", FP8, Group::Neighbours(32), Float8E8M0);
const INT8: Stored = integer("ct-int8", 8, true, Group::Channel);
const PACK8_CHANNEL: Stored = integer("ct-pack", 8, true, Group::Channel);
const PACK8: Stored = integer("ct-pack", 8, true, Group::Neighbours(64));
const PACK4: Stored = integer("ct-pack", 4, true, Group::Neighbours(128));
const PACK4_32: Stored = integer("ct-pack", 4, true, Group::Neighbours(32));
const PACK4_ASYM: Stored = integer("ct-pack", 4, false, Group::Neighbours(128));
const PACK4_ASYM_32: Stored = integer("ct-pack", 4, false, Group::Neighbours(32));

/// A quantized weight.
struct Weight {
    stored: Stored,
    encoder: Arc<Encoder>,
    parts: Vec<Vec<u8>>,
}

impl Stored {
    fn layout(self) -> &'static Layout {
        find(self.layout).unwrap()
    }

    fn encoder(self, shape: &[u64]) -> Arc<Encoder> {
        Arc::new(Encoder::new(self.layout(), &self.grid, shape, Float32, EncodeOptions::default()).unwrap())
    }

    /// Quantizes values.
    fn quantize(self, shape: &[u64], values: &[f32]) -> Weight {
        let encoder = self.encoder(shape);
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let extremes = Extremes::of(Float32, &source, 0);
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode(0..encoder.rows(), &source, &extremes, &mut outputs, &mut EncodeTally::default());
        Weight { stored: self, encoder, parts }
    }
}

impl Weight {
    fn bytes(&self) -> Vec<&[u8]> {
        self.parts.iter().map(Vec::as_slice).collect()
    }

    fn decoder(&self) -> Arc<Decoder> {
        let parts = self.encoder.parts().iter();
        let parts: Vec<Part> = parts
            .map(|part| Part { role: part.role, name: part.suffix, dtype: part.dtype, shape: &part.shape })
            .collect();
        let is_fixed = self.stored.layout().fixed_group().is_some();
        let has_words = ["ct-pack", "mlx-affine"].contains(&self.stored.layout);
        let bits = has_words.then(|| self.stored.grid.codes.bits());
        let parameters = Parameters {
            group: Some(self.stored.grid.group).filter(|_| !is_fixed),
            bits,
            shape: Some(self.encoder.shape().to_vec()).filter(|_| self.stored.layout != "gptoss-mxfp4"),
            ..Parameters::default()
        };
        Arc::new(Decoder::of_rows(self.stored.layout(), &parameters, &parts).unwrap())
    }

    /// All values: products in float64, which are exact if the global scale is a multiplier or a power of two.
    fn values(&self) -> Vec<f64> {
        let (decoder, parts) = (self.decoder(), self.bytes());
        let rows = (0..decoder.rows()).flat_map(|row| decoder.explain(row, 0..decoder.columns(), &parts).unwrap());
        rows.map(|value| {
            let number = f64::from(value.number) - f64::from(value.zero_point.unwrap_or(0.0));
            match value.global_scale {
                None => number * value.scale - value.offset.unwrap_or(0.0),
                Some((global, false)) => number * (value.scale * f64::from(global)),
                Some((global, true)) => number * (value.scale / f64::from(global)),
            }
        })
        .collect()
    }

    /// Moves it to another layout; `None` if a value would change.
    fn moved(&self, to: Stored) -> Option<Weight> {
        let (moved, fidelity, tally) = self.settled(to)?;
        if fidelity != Fidelity::Exact {
            return None;
        }
        assert!(tally.is_exact() && tally.changed == 0);
        Some(moved)
    }

    /// Moves it to another layout, in pieces, with what is counted; `None` if its codes do not fit.
    fn settled(&self, to: Stored) -> Option<(Weight, Fidelity, EncodeTally)> {
        let encoder = to.encoder(self.encoder.shape());
        let parts = self.bytes();
        let mut transcoder =
            Transcoder::new(self.decoder(), RowMap::ALL, Arc::clone(&encoder), &parts, &SharedTables::default())
                .unwrap()?;
        let exponent = transcoder.needs_exponent().then(|| transcoder.largest_exponent(&parts)).flatten();
        let fidelity = transcoder.settle(exponent, &parts)?;
        let mut moved: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
        let step = encoder.row_alignment() as usize;
        let mut tally = EncodeTally::default();
        for start in (0..encoder.rows()).step_by(step) {
            let rows = start..(start + step as u64).min(encoder.rows());
            let places = moved.iter_mut().zip(encoder.part_ranges(rows.clone()));
            let mut outputs: Vec<&mut [u8]> =
                places.map(|(part, range)| &mut part[range.start as usize..range.end as usize]).collect();
            transcoder.transcode(rows, &parts, &mut outputs, &mut tally);
        }
        assert_eq!(tally.values, encoder.shape().iter().product::<u64>());
        Some((Weight { stored: to, encoder, parts: moved }, fidelity, tally))
    }
}

impl Weight {
    /// Decodes it, and encodes the values once.
    fn requantized(&self, to: Stored) -> (Weight, EncodeTally) {
        let (decoder, shape) = (self.decoder(), self.encoder.shape());
        let options = EncodeOptions { arithmetic: Arithmetic::Exact, ..EncodeOptions::default() };
        let encoder = Encoder::new(to.layout(), &to.grid, shape, decoder.target(), options).unwrap();
        let mut source = vec![0; (encoder.rows() * encoder.row_bytes()) as usize];
        decoder.decode(0..decoder.rows(), &self.bytes(), &mut source).unwrap();
        let extremes = Extremes::of(decoder.target(), &source, 0);
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
        let mut tally = EncodeTally::default();
        let step = encoder.row_alignment();
        for start in (0..encoder.rows()).step_by(step as usize) {
            let rows = start..(start + step).min(encoder.rows());
            let places = parts.iter_mut().zip(encoder.part_ranges(rows.clone()));
            let mut outputs: Vec<&mut [u8]> =
                places.map(|(part, range)| &mut part[range.start as usize..range.end as usize]).collect();
            let [first, last] = [rows.start, rows.end].map(|row| (row * encoder.row_bytes()) as usize);
            encoder.encode(rows, &source[first..last], &extremes, &mut outputs, &mut tally);
        }
        (Weight { stored: to, encoder: Arc::new(encoder), parts }, tally)
    }
}

/// Values as weights have them, some rows and groups of which are zero.
fn draw(random: &mut Random, rows: u64, columns: u64, tiny: f64) -> Vec<f32> {
    let mut values = Vec::new();
    for row in 0..rows {
        for column in 0..columns {
            let uniform: f64 = (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum();
            let scale = if row % 37 == 5 { tiny } else { 0.02 };
            let is_zero = row % 41 == 3 || column / 32 % 7 == 2 && row % 5 == 0;
            let value = if is_zero { 0.0 } else { (uniform - 6.0) * scale };
            values.push(half::bf16::from_f64(value).to_f32());
        }
    }
    values
}

/// Pairs for which every weight can be moved.
const ALWAYS: &[(Stored, Stored)] = &[
    // Blocks of float8: names, shapes and types of scales.
    (HF, CT_BLOCK),
    (HF_BF16, CT_BLOCK_BF16),
    (HF_BF16, CT_BLOCK),
    (HF_E8M0, CT_BLOCK),
    (HF_E8M0, CT_BLOCK_BF16),
    (HF_E8M0, MO_BLOCK),
    (CT_BLOCK, HF),
    (CT_BLOCK_BF16, HF_BF16),
    (CT_BLOCK_BF16, HF),
    (CT_BLOCK, MO_BLOCK),
    (MO_BLOCK, HF),
    // One scale becomes several.
    (CT_TENSOR, CT_CHANNEL),
    (CT_TENSOR, CT_BLOCK),
    (COMFY_FP8, CT_TENSOR),
    (MO_TENSOR, CT_TENSOR),
    (CT_TENSOR, COMFY_FP8),
    (CT_TENSOR, MO_TENSOR),
    (COMFY_FP8, HF),
    (CT_CHANNEL, MO_CHANNEL),
    (MO_CHANNEL, CT_CHANNEL),
    // NVFP4 with the same kind of global scale.
    (MO_NV, COMFY_NV),
    (COMFY_NV, MO_NV),
    // MX.
    (CT_MX8, COMFY_MX8),
    (MO_MX8, COMFY_MX8),
    (COMFY_MX8, CT_MX8),
    (COMFY_MX8, MO_MX8),
    (CT_MX8, HF_MX),
    (HF_MX, CT_MX8),
    (CT_MX4, MO_MX4),
    (CT_MX4, OSS),
    (MO_MX4, OSS),
    (OSS, CT_MX4),
    (OSS, MO_MX4),
    (CT_MX4, CT_MX8),
    (CT_MX6, CT_MX8),
    (CT_MX4, CT_MX6),
    (CT_MX6, HF_MX),
    // Integers.
    (INT8, PACK8_CHANNEL),
    (PACK8_CHANNEL, INT8),
    (INT8, PACK8),
    (PACK4, PACK4_32),
    (PACK4_ASYM, PACK4_ASYM_32),
    (PACK4, PACK4_ASYM),
    (PACK4, PACK8),
];

#[test]
fn a_weight_that_is_moved_has_the_same_values() {
    let mut random = Random { state: 7, is_ordinary: true };
    let shape = [256, 256];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    for (from, to) in ALWAYS {
        let weight = from.quantize(&shape, &values);
        let moved = weight.moved(*to).unwrap_or_else(|| panic!("{from:?} to {to:?}"));
        assert!(weight.values() == moved.values(), "{from:?} to {to:?}");
    }
}

#[test]
fn codes_move_by_powers_of_two_where_scales_are_powers_of_two() {
    let mut random = Random { state: 11, is_ordinary: true };
    let shape = [256, 256];
    // Whether a spread of the magnitudes of rows by this factor still fits.
    for (tiny, from, to, fits) in [
        (1e-4, CT_MX4, CT_NV, true),
        (1e-4, MO_MX4, MO_NV, true),
        (1e-4, OSS, COMFY_NV, true),
        (1e-30, CT_MX4, CT_NV, false),
        (1e-4, CT_MX4, CT_BLOCK, true),
        (1e-4, MO_MX4, HF_E8M0, true),
        (1e-30, CT_MX4, CT_BLOCK, false),
        (1e-30, CT_MX8, HF_E8M0, false),
        (1e-30, CT_MX4, CT_MX8, true),
    ] {
        let values = draw(&mut random, shape[0], shape[1], tiny);
        let weight = from.quantize(&shape, &values);
        let moved = weight.moved(to);
        assert_eq!(moved.is_some(), fits, "{tiny} {from:?} to {to:?}");
        if let Some(moved) = moved {
            assert!(weight.values() == moved.values(), "{tiny} {from:?} to {to:?}");
        }
    }
}

#[test]
fn the_last_blocks_of_a_matrix_do_not_reach_into_the_next() {
    let mut random = Random { state: 17, is_ordinary: true };
    let (shape, columns) = ([2, 200, 256], 256);
    let mut values = draw(&mut random, shape[0] * shape[1], columns, 1e-4);
    // Rows of the last block could not share a scale with rows of the first.
    let rows = values.chunks_mut(columns as usize).zip(0..);
    for (row, _) in rows.filter(|(_, row)| row % shape[1] >= 128) {
        for value in row.iter_mut() {
            *value *= 2_f32.powi(60);
        }
    }
    let weight = CT_MX4.quantize(&shape, &values);
    let moved = weight.moved(CT_BLOCK).expect("each block has a scale");
    assert!(weight.values() == moved.values());
}

#[test]
fn a_weight_whose_values_are_not_on_the_new_grid_is_not_moved() {
    let mut random = Random { state: 13, is_ordinary: true };
    let shape = [256, 256];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    for (from, to) in [
        (CT_CHANNEL, CT_TENSOR),
        (HF, HF_E8M0),
        (HF, HF_BF16),
        (CT_CHANNEL, CT_BLOCK),
        (INT8, COMFY_FP8),
        (CT_MX8, CT_MX4),
        (PACK4_ASYM, PACK4),
        (PACK4_32, PACK4),
        (CT_NV, CT_MX4),
        (CT_NV, PACK4),
        (INT8, PACK4),
    ] {
        assert!(from.quantize(&shape, &values).moved(to).is_none(), "{from:?} to {to:?}");
    }
}

/// Every layout of this file.
const ALL: &[Stored] = &[
    HF,
    HF_BF16,
    HF_E8M0,
    HF_MX,
    CT_BLOCK,
    CT_BLOCK_BF16,
    CT_TENSOR,
    CT_CHANNEL,
    MO_TENSOR,
    MO_CHANNEL,
    MO_BLOCK,
    COMFY_FP8,
    CT_NV,
    MO_NV,
    COMFY_NV,
    CT_MX4,
    MO_MX4,
    OSS,
    CT_MX6,
    CT_MX8,
    MO_MX8,
    COMFY_MX8,
    INT8,
    PACK8_CHANNEL,
    PACK8,
    PACK4,
    PACK4_32,
    PACK4_ASYM,
    PACK4_ASYM_32,
];

/// Layouts with offsets, for all widths of codes.
const OFFSETS: [Stored; 6] = [
    integer("mlx-affine", 2, false, Group::Neighbours(32)),
    integer("mlx-affine", 3, false, Group::Neighbours(32)),
    integer("mlx-affine", 4, false, Group::Neighbours(32)),
    integer("mlx-affine", 5, false, Group::Neighbours(32)),
    integer("mlx-affine", 6, false, Group::Neighbours(64)),
    integer("mlx-affine", 8, false, Group::Neighbours(64)),
];

#[test]
fn a_weight_keeps_its_values_in_every_layout_that_it_is_moved_to() {
    let mut random = Random { state: 37, is_ordinary: true };
    let shape = [128, 128];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    let layouts = || ALL.iter().chain(&OFFSETS);
    let mut count = 0;
    for from in layouts() {
        let weight = from.quantize(&shape, &values);
        let before = weight.values();
        for (to, moved) in layouts().filter_map(|to| Some((to, weight.moved(*to)?))) {
            assert!(before == moved.values(), "{from:?} to {to:?}");
            count += 1;
        }
    }
    assert!(count > ALL.len() + OFFSETS.len(), "{count}");
}

#[test]
fn a_weight_of_zeros_stays_one_in_every_layout_that_it_is_moved_to() {
    let shape = [128, 128];
    for from in ALL {
        let weight = from.quantize(&shape, &vec![0.0; 128 * 128]);
        assert!(weight.values().iter().all(|value| *value == 0.0));
        let moved = ALL.iter().filter_map(|to| Some((to, weight.moved(*to)?)));
        for (to, moved) in moved {
            assert!(moved.values().iter().all(|value| *value == 0.0), "{from:?} to {to:?}");
        }
    }
}

#[test]
fn the_reciprocal_of_a_global_scale_is_exact_for_powers_of_two_only() {
    let mut random = Random { state: 17, is_ordinary: true };
    let shape = [64, 64];
    for (largest, is_exact) in [(10.5, true), (10.0, false)] {
        let mut values = draw(&mut random, shape[0], shape[1], 0.02);
        values[0] = largest; // 2688 is 10.5 * 2^8
        for (from, to) in [(MO_NV, CT_NV), (CT_NV, MO_NV), (CT_NV, COMFY_NV), (COMFY_NV, CT_NV)] {
            let weight = from.quantize(&shape, &values);
            let moved = weight.moved(to);
            assert_eq!(moved.is_some(), is_exact, "{from:?} to {to:?}");
            if let Some(moved) = moved {
                assert!(weight.values() == moved.values(), "{from:?} to {to:?}");
            }
        }
    }
}

#[test]
fn a_global_scale_is_rounded_where_its_reciprocal_is_not_exact_and_changes_are_counted() {
    let mut random = Random { state: 23, is_ordinary: true };
    let shape = [96, 160];
    let mut all_visible = 0;
    for largest in [10.0, 3.1, 0.017, 1.2578125] {
        let mut values = draw(&mut random, shape[0], shape[1], 1e-4);
        values[77] = -largest;
        for (from, to) in [(MO_NV, CT_NV), (CT_NV, MO_NV), (CT_NV, COMFY_NV), (COMFY_NV, CT_NV)] {
            let weight = from.quantize(&shape, &values);
            let (moved, fidelity, tally) = weight.settled(to).unwrap();
            assert_eq!(fidelity, Fidelity::Rescaled, "{largest} {from:?} to {to:?}");
            let (mut changed, mut visible, mut worst, mut largest_at) = (0, 0, 0.0_f64, (0.0, None));
            let (mut signal, mut noise) = (0.0, 0.0);
            // One rounding, ties to even, of a number that is normal in bfloat16.
            let bfloat16 = |value: f64| (value.to_bits() + ((1 << 44) - 1) + (value.to_bits() >> 45 & 1)) >> 45;
            for (at, (old, new)) in (0..).zip(weight.values().into_iter().zip(moved.values())) {
                changed += u64::from(old != new);
                visible += u64::from(old != new && bfloat16(old) != bfloat16(new));
                let error = (new - old).abs();
                assert!(error <= old.abs() * 2_f64.powi(-24), "{old} {new}");
                worst = worst.max(error);
                if old.abs() > largest_at.0 {
                    largest_at = (old.abs(), Some(at));
                }
                (signal, noise) = (signal + old * old, noise + error * error);
            }
            assert_eq!((tally.changed, tally.changed_bfloat16), (changed, visible), "{largest} {from:?} to {to:?}");
            assert!((tally.max_error / worst - 1.0).abs() < 1e-6, "{tally:?} {worst:?}");
            assert_eq!(tally.max_error_at, largest_at.1, "{largest} {from:?} to {to:?}");
            let sqnr = 10.0 * f64::log10(signal / noise);
            assert!((tally.sqnr_db().unwrap() - sqnr).abs() < 1e-3, "{tally:?} {sqnr}");
            all_visible += visible;
        }
    }
    assert!(all_visible > 0);
}

/// The numbers of all codes of a grid, without their signs, in their order.
fn magnitudes(codes: CodeType) -> Vec<f64> {
    match codes {
        CodeType::Float(FP8) => {
            (0..127_u32).map(|code| f64::from(f32::from_bits(code << 20)) * 2_f64.powi(120)).collect()
        }
        CodeType::Float(_) => vec![0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        CodeType::Int { bits, .. } => (0..1 << (bits - 1)).map(f64::from).collect(),
    }
}

#[test]
fn values_enter_exactly_and_are_rounded_once() {
    let mut random = Random { state: 29, is_ordinary: true };
    let shape = [128, 256];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    // float32 scales and global scales have 24 bits, so that their products with codes are no float32.
    for (from, to) in [
        (HF, CT_CHANNEL),
        (CT_CHANNEL, CT_BLOCK),
        (CT_CHANNEL, CT_TENSOR),
        (COMFY_FP8, MO_NV),
        (MO_NV, CT_CHANNEL),
        (CT_NV, PACK4),
        (HF, INT8),
        (MO_CHANNEL, CT_NV),
        (HF, COMFY_NV),
        (CT_CHANNEL, CT_MX4),
    ] {
        let weight = from.quantize(&shape, &values);
        let (again, tally) = weight.requantized(to);
        let (before, after) = (weight.values(), again.values());
        // 1. Scales: the largest magnitude of the group and the largest code, rounded once.
        let [height, width] = match to.grid.group {
            Group::Tensor => shape,
            Group::Channel => [1, shape[1]],
            Group::Block(block) => block,
            Group::Neighbours(count) => [1, count],
        };
        let decoder = again.decoder();
        let parts = again.bytes();
        let global = decoder.explain(0, 0..1, &parts).unwrap()[0].global_scale;
        let amax_of = |rows: std::ops::Range<u64>, columns: std::ops::Range<u64>| {
            let cells = rows.flat_map(|row| columns.clone().map(move |column| (row * shape[1] + column) as usize));
            cells.map(|at| before[at].abs()).fold(0.0, f64::max)
        };
        let amax = amax_of(0..shape[0], 0..shape[1]);
        let wanted = match to.layout {
            "ct-nvfp4" => Some((2688.0 / amax) as f32),
            "modelopt-nvfp4" | "comfy-nvfp4" => Some((amax / 2688.0) as f32),
            _ => None,
        };
        assert_eq!(global.map(|(global, _)| global), wanted, "{from:?} to {to:?}");
        let magnitudes = magnitudes(to.grid.codes);
        let largest = match to.grid.codes {
            CodeType::Int { bits, .. } => f64::from(1 << (bits - 1)) - 0.5,
            CodeType::Float(_) => magnitudes[magnitudes.len() - 1],
        };
        let mut changed = 0;
        for row in 0..shape[0] {
            for (column, code) in (0..).zip(decoder.explain(row, 0..shape[1], &parts).unwrap()) {
                let at = (row * shape[1] + column) as usize;
                let (top, left) = (row / height * height, column / width * width);
                if column == left && row == top && to.grid.scale == Some(Float32) {
                    let wanted = (amax_of(top..top + height, left..left + width) / largest) as f32;
                    assert!(wanted == 0.0 || code.scale as f32 == wanted, "{from:?} to {to:?}, {row} {column}");
                }
                // 2. Codes: none is nearer.
                let scale = match code.global_scale {
                    None => code.scale,
                    Some((global, false)) => code.scale * f64::from(global),
                    Some((global, true)) => code.scale / f64::from(global),
                };
                let error = (before[at].abs() - after[at].abs()).abs();
                let least = magnitudes.iter().map(|number| (before[at].abs() - number * scale).abs());
                assert!(error <= least.fold(f64::INFINITY, f64::min), "{from:?} to {to:?}, {row} {column}");
                changed += u64::from(before[at] != after[at]);
            }
        }
        assert_eq!(tally.changed, changed, "{from:?} to {to:?}");
    }
}

#[test]
fn what_is_moved_back_has_the_same_bytes() {
    let mut random = Random { state: 19, is_ordinary: true };
    let shape = [128, 128];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    for (from, to) in [(HF, CT_BLOCK), (CT_MX4, OSS), (CT_MX8, COMFY_MX8), (MO_NV, COMFY_NV), (INT8, PACK8_CHANNEL)] {
        let weight = from.quantize(&shape, &values);
        let back = weight.moved(to).and_then(|moved| moved.moved(from)).unwrap();
        assert!(weight.parts == back.parts, "{from:?} to {to:?}");
    }
}

#[test]
fn a_scale_that_one_library_reads_as_zero_keeps_its_value() {
    let mut random = Random { state: 31, is_ordinary: true };
    let shape = [128, 128];
    let values = draw(&mut random, shape[0], shape[1], 1e-4);
    // ComfyUI reads the byte 0 as 0, the others read it as 2^-127.
    let mut comfy = COMFY_MX8.quantize(&shape, &values);
    comfy.parts[1][0] = 0;
    for to in [CT_MX8, MO_MX8, HF_MX] {
        let moved = comfy.moved(to).unwrap();
        assert!(comfy.values() == moved.values() && moved.values()[..32].iter().all(|value| *value == 0.0), "{to:?}");
    }
    for (codes, fits) in [([0x38, 0xb8, 0x40, 0x08], true), ([0x7e, 0x38, 0x01, 0x09], false)] {
        let mut weight = CT_MX8.quantize(&shape, &values);
        weight.parts[1][0] = 0;
        weight.parts[0][..32].fill(0);
        weight.parts[0][..4].copy_from_slice(&codes);
        let moved = weight.moved(COMFY_MX8);
        // The byte 1 serves if the halves of all numbers are numbers.
        assert_eq!(moved.is_some(), fits);
        if let Some(moved) = moved {
            assert!(weight.values() == moved.values());
        }
    }
}

#[test]
fn codes_of_fnuz_types_become_others_with_the_same_values() {
    let shape = [2, 256];
    let parts = [
        Part { role: Role::Codes, name: "w.weight._data", dtype: Dtype::Float8E4M3FNUZ, shape: &shape },
        Part { role: Role::Scale, name: "w.weight._scale", dtype: Float32, shape: &[2, 1] },
    ];
    let parameters = Parameters { group: Some(Group::Channel), ..Parameters::default() };
    let decoder = Arc::new(Decoder::of_rows(find("quanto").unwrap(), &parameters, &parts).unwrap());
    let scales: Vec<u8> = [0.013_f32, 3.7e-5].into_iter().flat_map(f32::to_le_bytes).collect();
    // The largest two numbers have no float8e4m3fn code where the smallest one has.
    for (absent, fits) in [(&[0x7f_u8, 0xff][..], true), (&[], false)] {
        let code = |at: usize| if absent.contains(&(at as u8)) { 0 } else { at as u8 };
        let codes: Vec<u8> = (0..512).map(code).collect();
        let source: [&[u8]; 2] = [&codes, &scales];
        let encoder = CT_CHANNEL.encoder(&shape);
        let mut transcoder =
            Transcoder::new(Arc::clone(&decoder), RowMap::ALL, Arc::clone(&encoder), &source, &SharedTables::default())
                .unwrap()
                .unwrap();
        assert_eq!(transcoder.settle(None, &source), fits.then_some(Fidelity::Exact));
        if !fits {
            continue;
        }
        let mut moved: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        let mut outputs: Vec<&mut [u8]> = moved.iter_mut().map(Vec::as_mut_slice).collect();
        transcoder.transcode(0..shape[0], &source, &mut outputs, &mut EncodeTally::default());
        let moved = Weight { stored: CT_CHANNEL, encoder, parts: moved };
        let mut before = vec![0; 8 * codes.len()];
        decoder.decode(0..shape[0], &source, &mut before).unwrap();
        let after = moved.values();
        for (before, after) in before.as_chunks::<8>().0.iter().zip(after) {
            let before = f64::from_le_bytes(*before);
            assert!(before == after || before.is_nan() && after.is_nan(), "{before} {after}");
        }
    }
}
