//! Tests that all ways to encode give the same bytes and errors.

use super::super::decode::Arithmetic;
use super::super::layout::{Group, Role, RotationUse};
use super::super::libraries::{GATHER, SCHEMES};
use super::super::parts::LinearAxis;
use super::super::scheme::SchemeLayout;
use super::*;
use crate::dtype::Dtype;
use crate::kernel::Isa;
use crate::random::random;

/// Returns weights of ordinary size, with zeros of both signs, subnormal numbers and large numbers among them.
fn weights(dtype: Dtype, count: usize) -> Vec<u8> {
    let exponents = if dtype == Dtype::Float16 { [8, 5, 0, 1, 22, 3, 12] } else { [120, 117, 0, 1, 150, 90, 123] };
    weights_of(dtype, count, exponents)
}

/// Returns weights that are subnormal, the least of their type, or near 1e-38 and 1e-30.
fn tiny_weights(dtype: Dtype, count: usize) -> Vec<u8> {
    let exponents = if dtype == Dtype::Float16 { [0, 1, 0, 2, 0, 3, 1] } else { [0, 1, 0, 2, 27, 3, 26] };
    weights_of(dtype, count, exponents)
}

/// Returns weights whose exponent fields are those of the list and the next two.
fn weights_of(dtype: Dtype, count: usize, exponents: [u32; 7]) -> Vec<u8> {
    let mut next = random(1);
    let mut random = || next() as u32 >> 8;
    let mut bytes = Vec::new();
    for at in 0..count {
        let (bits, range) = (random(), (at / 50) % 7);
        // A run of 50 has numbers of one size, so that all groups of a row differ.
        match dtype {
            Dtype::Float32 => {
                let exponent = exponents[range] + bits % 3;
                let is_zero = bits % 11 == 0;
                let number = if is_zero { 0 } else { exponent << 23 | random() & 0x7f_ffff };
                bytes.extend((number | (bits & 1) << 31).to_le_bytes());
            }
            Dtype::Bfloat16 => {
                let exponent = exponents[range] + bits % 3;
                let number = if bits % 11 == 0 { 0 } else { exponent << 7 | random() & 0x7f };
                bytes.extend(((number | (bits & 1) << 15) as u16).to_le_bytes());
            }
            _ => {
                let exponent = exponents[range] + bits % 3;
                let number = if bits % 11 == 0 { 0 } else { exponent << 10 | random() & 0x3ff };
                bytes.extend(((number | (bits & 1) << 15) as u16).to_le_bytes());
            }
        }
    }
    bytes
}

/// Returns multiples of 1/2 from -8 to 8; odd multiples are ties with a scale of 1.
fn halves(dtype: Dtype, count: usize) -> Vec<u8> {
    let numbers = (0..count).map(|at| ((at * 7919 + at / 50) % 33) as f32 / 2.0 - 8.0);
    match dtype {
        Dtype::Float32 => numbers.flat_map(f32::to_le_bytes).collect(),
        Dtype::Bfloat16 => numbers.flat_map(|number| half::bf16::from_f32(number).to_le_bytes()).collect(),
        _ => numbers.flat_map(|number| half::f16::from_f32(number).to_le_bytes()).collect(),
    }
}

/// Encodes all rows.
fn encoded(encoder: &Encoder, source: &[u8], extremes: &Extremes, tally: &mut EncodeTally) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0xa5; part.byte_len() as usize]).collect();
    let mut outputs: Vec<&mut [u8]> = parts.iter_mut().map(|part| &mut part[..]).collect();
    encoder.encode(0..encoder.rows(), source, extremes, &mut outputs, tally);
    parts
}

/// Compares both ways to encode with every instruction set.
fn check(new: impl Fn() -> Encoder, dtype: Dtype, source: &[u8], name: &str) {
    let mut encoder = new().on(Isa::Baseline);
    let extremes = if encoder.has_column_scales() {
        Extremes::of_columns(dtype, source, 0, encoder.columns())
    } else {
        Extremes::of(dtype, source, 0)
    };
    assert_eq!(extremes.largest, Extremes::of(dtype, source, 0).largest);
    let run = |encoder: &Encoder, skips_errors: bool| {
        let mut tally = EncodeTally { skips_errors, ..EncodeTally::default() };
        (encoded(encoder, source, &extremes, &mut tally), tally)
    };
    (encoder.fused, encoder.narrow) = (None, None);
    let plain = run(&encoder, false);
    assert_eq!(plain.1.first_special, None);
    for isa in Isa::available() {
        let encoder = new().on(isa);
        let fused = run(&encoder, false);
        assert!(fused.0 == plain.0, "{name} {dtype} {isa:?}");
        assert_eq!(fused.1, plain.1, "{name} {dtype} {isa:?}");
        assert!(run(&encoder, true).0 == plain.0, "{name} {dtype} {isa:?}, without errors");
    }
}

/// Returns the layouts of all schemes but those that always rotate.
fn unrotated_layouts() -> impl Iterator<Item = &'static SchemeLayout> {
    let all = SCHEMES.iter().flat_map(|scheme| scheme.layouts);
    all.filter(|stored| stored.row.rotation != RotationUse::Always)
}

#[test]
fn one_loop_and_single_steps_give_the_same_codes_and_errors() {
    let mut fused = 0;
    for stored in unrotated_layouts() {
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let shape = match stored.grid.group {
                Group::Block([rows, _]) => [rows, 1152],
                Group::Neighbours(_) => [32, 1152],
                _ => [3, 2077],
            };
            let options = EncodeOptions::default();
            let new = || Encoder::new(stored.row, &stored.grid, &shape, dtype, options).unwrap();
            let encoder = new();
            fused += usize::from(encoder.fused.is_some());
            let count = (shape[0] * shape[1]) as usize;
            for source in [weights(dtype, count), tiny_weights(dtype, count)] {
                check(new, dtype, &source, stored.name);
            }
        }
    }
    assert!(fused > 50, "{fused}");
}

#[test]
fn rotated_rows_have_the_same_codes_and_errors_in_all_loops_and_in_any_pieces() {
    const SHAPE: [u64; 2] = [14, 1280];
    let rows_at_once = |encoder: &Encoder, source: &[u8], step: u64| {
        let mut parts: Vec<Vec<u8>> = encoder.parts().iter().map(|part| vec![0; part.byte_len() as usize]).collect();
        for start in (0..SHAPE[0]).step_by(step as usize) {
            let rows = start..SHAPE[0].min(start + step);
            let ranges = encoder.part_ranges(rows.clone());
            let ranges = ranges.iter().map(|range| range.start as usize..range.end as usize);
            let mut outputs: Vec<&mut [u8]> = parts.iter_mut().zip(ranges).map(|(part, at)| &mut part[at]).collect();
            let [first, end] = [rows.start, rows.end].map(|row| (row * encoder.row_bytes()) as usize);
            let mut tally = EncodeTally::default();
            encoder.encode(rows, &source[first..end], &Extremes::default(), &mut outputs, &mut tally);
        }
        parts
    };
    let (mut fused, mut levels) = (0, 0);
    let all = SCHEMES.iter().flat_map(|scheme| scheme.layouts);
    for stored in all.filter(|stored| stored.row.rotation != RotationUse::Never) {
        let of_dtype = |dtype| [(dtype, 64, false), (dtype, 256, true)];
        for (dtype, size, keeps_type) in
            [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16].into_iter().flat_map(of_dtype)
        {
            let options = EncodeOptions { rotation: Some(size), keeps_type, ..EncodeOptions::default() };
            let new = || Encoder::new(stored.row, &stored.grid, &SHAPE, dtype, options).unwrap();
            let encoder = new();
            fused += usize::from(encoder.fused.is_some());
            levels += usize::from(encoder.has_levels());
            let count = (SHAPE[0] * SHAPE[1]) as usize;
            for source in [weights(dtype, count), tiny_weights(dtype, count)] {
                check(new, dtype, &source, stored.name);
                assert!(rows_at_once(&encoder, &source, 1) == rows_at_once(&encoder, &source, 14), "{}", stored.name);
            }
        }
    }
    assert_eq!((fused, levels), (18, 12));
}

#[test]
fn codes_are_the_same_whether_or_not_anybody_asks_for_errors() {
    let mut narrow = 0;
    for stored in unrotated_layouts() {
        // A row with numbers up to 1/50, and one with numbers up to 50, whose scales are above 1; zeros of both signs.
        let number = |at: usize| {
            let size = if at < 4608 { 0.02 } else { 50.0 };
            (((at * 7919 + at / 50) % 255) as f32 / 127.0 - 1.0) * size * [1.0, -0.0, 0.3, 0.0, 0.9][at % 5]
        };
        // The segments of blocks have the same length in both cases.
        if matches!(stored.grid.group, Group::Block(_)) {
            continue;
        }
        let source: Vec<u8> = (0..9216).flat_map(|at| half::bf16::from_f32(number(at)).to_le_bytes()).collect();
        let options = EncodeOptions::default();
        let new = || Encoder::new(stored.row, &stored.grid, &[2, 4608], Dtype::Bfloat16, options).unwrap();
        let encoder = new();
        narrow += usize::from(encoder.narrow.is_some());
        check(new, Dtype::Bfloat16, &source, stored.name);
    }
    assert_eq!(narrow, 2);
}

#[test]
fn one_loop_and_single_steps_give_the_same_for_scales_along_columns() {
    let mut with_columns = 0;
    for stored in SCHEMES.iter().filter_map(|scheme| scheme.in_model(Some("onnx"))) {
        for (dtype, shape) in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16]
            .into_iter()
            .flat_map(|dtype| [[64, 1056], [70, 1101], [5, 1]].map(|shape| (dtype, shape)))
        {
            for axis in [0, 1] {
                let block_size = if let Group::Neighbours(size) = stored.grid.group { size } else { 0 };
                let along = (&shape[..], LinearAxis { axis, block_size });
                let options = EncodeOptions::default();
                let new = || Encoder::linear(stored.row, &stored.grid, along.0, along.1, dtype, options).unwrap();
                let encoder = new();
                assert!(encoder.fused.is_some() || shape[1] == 1101, "{}", stored.name);
                with_columns += usize::from(encoder.geometry.block[1] == 1);
                let count = (shape[0] * shape[1]) as usize;
                for source in [weights(dtype, count), halves(dtype, count)] {
                    check(new, dtype, &source, stored.name);
                }
            }
        }
    }
    assert!(with_columns >= 18, "{with_columns}");
}

#[test]
fn values_that_a_global_scale_divides_are_not_changed_by_the_rounding_of_quotients() {
    let stored = SCHEMES.iter().flat_map(|scheme| scheme.layouts).find(|stored| stored.row.name == "ct-nvfp4").unwrap();
    let options = EncodeOptions { arithmetic: Arithmetic::Exact, ..EncodeOptions::default() };
    let encoder = Encoder::new(stored.row, &stored.grid, &[64, 16], Dtype::Float64, options).unwrap();
    for global in [1598.0, 1600.0, 1234.5, 7.0] {
        let number = |at: usize| {
            let scale = if at < 16 { 448.0 } else { (8 + at / 16 % 8) as f64 * [1.0, 0.25, 16.0][at / 128 % 3] };
            [6.0, -4.0, 3.0, 2.0, -1.5, 1.0, 0.5, 0.0][at % 8] * scale / global
        };
        let source: Vec<u8> = (0..1024).flat_map(|at| number(at).to_le_bytes()).collect();
        let mut tally = EncodeTally::default();
        encoded(&encoder, &source, &Extremes::of(Dtype::Float64, &source, 0), &mut tally);
        assert_eq!((tally.values, tally.changed, tally.max_error), (1024, 0, 0.0), "{global}");
    }
}

#[test]
fn errors_far_below_the_largest_scale_of_a_segment_are_summed() {
    let mut stored = SCHEMES.iter().flat_map(|scheme| scheme.layouts);
    let stored = stored.find(|stored| stored.row.name == "ct-mxfp4").unwrap();
    let encoder = Encoder::new(stored.row, &stored.grid, &[1, 64], Dtype::Float32, EncodeOptions::default()).unwrap();
    // A group whose values are codes times 2^120, and a group with numbers between codes.
    let number = |at: usize| if at < 32 { 6.0 * 2_f32.powi(120) } else { [6.0, 5.0][at % 2] * 2_f32.powi(-30) };
    let source: Vec<u8> = (0..64).flat_map(|at| number(at).to_le_bytes()).collect();
    let mut tally = EncodeTally::default();
    encoded(&encoder, &source, &Extremes::default(), &mut tally);
    assert!(!tally.is_exact());
    assert_eq!((tally.max_error, tally.max_error_at), (2_f64.powi(-30), Some(33)));
    let sqnr = 10.0 * (72.0 * 2_f64.powi(300)).log10(); // 32 x (6 x 2^120)^2 over 16 x (2^-30)^2
    assert!((tally.sqnr_db().unwrap() - sqnr).abs() < 1e-9, "{:?}", tally.sqnr_db());
}

#[test]
fn groups_of_zeros_and_of_tiny_values_take_the_loop_of_ordinary_values() {
    const SHAPE: [u64; 2] = [128, 512];
    let ordinary = |at: usize| (((at * 7919) % 255) as f32 / 127.0 - 1.0) * 0.02;
    for stored in unrotated_layouts() {
        for dtype in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16] {
            let encoder = Encoder::new(stored.row, &stored.grid, &SHAPE, dtype, EncodeOptions::default()).unwrap();
            assert!(encoder.fused.is_some(), "{}", stored.name);
            // The least numbers of a type, and numbers of few bits.
            let [least, tiny] = if dtype == Dtype::Float16 { [6e-8, 1e-6] } else { [1e-39, 1e-38] };
            let is_odd = |at: usize| at / 128 % 2 == 1;
            let cases: [(&str, &dyn Fn(usize) -> f32); 8] = [
                ("ordinary values", &ordinary),
                ("zeros", &|_| 0.0),
                ("zeros with a sign", &|at| if at % 3 == 0 { 0.0 } else { -0.0 }),
                ("the least values", &|at| least * [1.0, 3.0, 19.0][at % 3]),
                ("tiny values", &|at| 50.0 * tiny * ordinary(at)),
                ("zeros in between", &|at| if is_odd(at) { -0.0 } else { ordinary(at) }),
                ("the least values in between", &|at| {
                    if is_odd(at) { -least * [1.0, 3.0, 19.0][at % 3] } else { ordinary(at) }
                }),
                ("tiny values in between", &|at| if is_odd(at) { 50.0 * tiny * ordinary(at) } else { ordinary(at) }),
            ];
            for (name, value) in cases {
                let of = |at: usize| match dtype {
                    Dtype::Float32 => value(at).to_le_bytes().to_vec(),
                    Dtype::Bfloat16 => half::bf16::from_f32(value(at)).to_le_bytes().to_vec(),
                    _ => half::f16::from_f32(value(at)).to_le_bytes().to_vec(),
                };
                let source: Vec<u8> = (0..1 << 16).flat_map(of).collect();
                for skips_errors in [false, true] {
                    let mut tally = EncodeTally { skips_errors, ..EncodeTally::default() };
                    let before = steps::RUNS.get();
                    encoded(&encoder, &source, &Extremes::of(dtype, &source, 0), &mut tally);
                    // Of 128 segments or more. The largest error is found step by step.
                    let runs = steps::RUNS.get() - before;
                    // The scales that compressed-tensors computes in float16 suit no loop.
                    let has_loop = (stored.row.name, dtype) != ("ct-nvfp4", Dtype::Float16);
                    assert!(!has_loop || runs <= 12, "{} {dtype}, {name}: {runs}", stored.row.name);
                }
            }
        }
    }
}

#[test]
fn zeros_of_both_signs_have_the_same_scales_in_float64() {
    let mut tried = 0;
    for stored in unrotated_layouts() {
        for arithmetic in [Arithmetic::Library, Arithmetic::Exact] {
            let options = EncodeOptions { arithmetic, ..EncodeOptions::default() };
            let encoder = Encoder::new(stored.row, &stored.grid, &[128, 512], Dtype::Float64, options);
            let Ok(encoder) = encoder else { continue }; // some libraries have no such sources
            tried += 1;
            let [positive, negative] = [0.0_f64, -0.0].map(|zero| {
                let source = zero.to_le_bytes().repeat(128 * 512);
                let extremes = Extremes::of(Dtype::Float64, &source, 0);
                encoded(&encoder, &source, &extremes, &mut EncodeTally::default())
            });
            for ((part, positive), negative) in encoder.parts().iter().zip(positive).zip(negative) {
                let place = format!("{} {arithmetic:?} {}", stored.row.name, part.suffix);
                assert!(part.role == Role::Codes || positive == negative, "{place}");
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn the_distance_of_a_table_of_bfloat16_is_rounded_before_it_is_divided() {
    let is_table = |stored: &&SchemeLayout| stored.row == &GATHER;
    let tables: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.in_model).filter(is_table).collect();
    assert!(!tables.is_empty());
    for stored in tables {
        let along = LinearAxis { axis: 1, block_size: 32 };
        let options = EncodeOptions::default();
        let encoder = Encoder::linear(stored.row, &stored.grid, &[1, 32], along, Dtype::Bfloat16, options).unwrap();
        // The distance 3.0234375 is a tie, which becomes 3.03125; a fifteenth of it is 207 / 1024 in bfloat16.
        let numbers = [-0.0078125, 3.015625].into_iter().cycle().take(32).map(half::bf16::from_f32);
        let source: Vec<u8> = numbers.flat_map(half::bf16::to_le_bytes).collect();
        let extremes = Extremes::of(Dtype::Bfloat16, &source, 0);
        let parts = encoded(&encoder, &source, &extremes, &mut EncodeTally::default());
        let scale = encoder.parts().iter().position(|part| part.role == Role::Scale).unwrap();
        let scale = half::bf16::from_le_bytes(*parts[scale].first_chunk().unwrap());
        assert_eq!(scale.to_f32(), 207.0 / 1024.0);
    }
}
