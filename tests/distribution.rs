//! The figures of a tensor against the most obvious way to find each, and the picture of a histogram to the letter.
#![allow(clippy::unwrap_used)]

#[path = "common/reference.rs"]
mod reference;

use reference::{Kind, bits, decode, kind, mask, sources, to_bytes};
use std::io::Write;
use tcast::container::{self, Checksum, Data, Elements, Form, Reader, Tensor, TextForm};
use tcast::dtype::Dtype;
use tcast::io::map::MappedFile;
use tcast::kernel::Storage;
use tcast::measure::distribution::{self, Distribution, Histogram};
use tcast::measure::number::Number;
use tcast::progress::Silent;

/// The figures of some bytes on 1, 2 and 7 threads, which must be equal.
fn stats_of_bytes(storage: Storage, bytes: &[u8], count: u64) -> Distribution {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let files = [MappedFile::of(&file).unwrap()];
    let form = Form::Numbers(storage);
    let tensor = Tensor {
        name: "x".into(),
        shape: [count].into(),
        count,
        elements: Elements::Typed(form),
        fortran_order: false,
        data: Data::Mapped { file: 0, range: 0..bytes.len(), checksum: None },
        stored: "".into(),
    };
    let of = |threads| distribution::of(&tensor, form, &files, threads, &Silent).unwrap().unwrap();
    let stats = of(1);
    for threads in [2, 7] {
        let other = of(threads);
        assert_eq!(stats, other);
        assert_eq!(stats.mean.map(f64::to_bits), other.mean.map(f64::to_bits));
    }
    stats
}

fn stats_of(dtype: Dtype, codes: &[u64]) -> Distribution {
    let storage = Storage::packed(dtype);
    stats_of_bytes(storage, &to_bytes(codes.iter().copied(), storage), codes.len() as u64)
}

fn stats_of_float64(numbers: &[f64]) -> Distribution {
    stats_of(Dtype::Float64, &numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>())
}

/// Compares with a look at one number after the other; the mean with a plain sum of plain sums.
fn check(dtype: Dtype, codes: &[u64]) {
    let stats = stats_of(dtype, codes);
    let (width, kind) = kind(dtype);
    let is_integer = matches!(kind, Kind::Bool | Kind::Signed | Kind::Unsigned);
    let normal = if let Kind::Float(format) = kind { format.smallest_normal() } else { i32::MIN };
    let (mut integers, mut floats, mut exponents) = (Vec::new(), Vec::new(), Vec::new());
    let (mut zeros, mut subnormals, mut nan, mut infinite) = (0, 0, 0, [0, 0]);
    for value in codes.iter().map(|&code| decode(dtype, code)) {
        match value.number {
            reference::Number::Nan(_) => nan += 1,
            reference::Number::Infinite => infinite[usize::from(value.negative)] += 1,
            reference::Number::Finite(magnitude) => {
                let is_zero = magnitude.fraction == 0;
                zeros += u64::from(is_zero);
                if !is_zero {
                    subnormals += u64::from(magnitude.top < normal);
                    exponents.push((magnitude.top, 1));
                }
                let sign = if value.negative { -1 } else { 1 };
                // Two steps: 2^(top - 63) alone may be too small.
                let top = if is_zero { 0 } else { magnitude.top };
                let fraction = magnitude.fraction as f64 * 2.0_f64.powi(-63);
                floats.push(fraction * 2.0_f64.powi(top / 2) * 2.0_f64.powi(top - top / 2) * f64::from(sign));
                if is_integer {
                    let integer = if is_zero { 0 } else { magnitude.fraction >> (63 - top) };
                    integers.push(i128::from(integer) * i128::from(sign));
                }
            }
        }
    }
    let float = |number: Option<f64>| number.map(|number| Number::Float(number + 0.0));
    let expected = if is_integer {
        let largest = integers.iter().map(|number| number.abs()).max();
        [integers.iter().min().copied(), integers.iter().max().copied(), largest].map(|x| x.map(Number::Integer))
    } else {
        let magnitudes = floats.iter().map(|number| number.abs());
        [
            float(floats.iter().copied().reduce(f64::min)),
            float(floats.iter().copied().reduce(f64::max)),
            float(magnitudes.reduce(f64::max)),
        ]
    };
    assert_eq!([stats.min, stats.max, stats.abs_max], expected, "{dtype}");
    assert_eq!((stats.count, stats.zeros, stats.subnormals), (codes.len() as u64, zeros, subnormals), "{dtype}");
    assert_eq!((stats.nan, [stats.plus_infinite, stats.minus_infinite]), (nan, infinite), "{dtype}");
    assert_eq!(stats.exponents, exponents.into_iter().collect(), "{dtype} of {width} bits");
    let Some(mean) = stats.mean else { return assert!(floats.is_empty()) };
    let count = floats.len() as f64;
    // By groups, or roundings that all go one way would add up.
    let plain: f64 = floats.chunks(512).map(|group| group.iter().map(|number| number / count).sum::<f64>()).sum();
    let scale: f64 = floats.iter().map(|number| (number / count).abs()).sum();
    assert!((mean - plain).abs() <= scale * 1e-12, "{dtype}: {mean:e}, not {plain:e}");
}

/// Numbers without a pattern.
fn random(count: usize) -> Vec<u64> {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state ^ state >> 29
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn every_code_of_16_bits_and_fewer_is_counted_as_what_it_is() {
    for dtype in sources().filter(|&dtype| bits(dtype) <= 16) {
        let codes: Vec<u64> = (0..=mask(bits(dtype))).collect();
        check(dtype, &codes);
        codes.iter().filter(|_| codes.len() <= 256).for_each(|code| check(dtype, &[*code]));
    }
}

#[test]
fn many_codes_of_16_bits_and_fewer_are_counted_as_what_they_are() {
    for dtype in sources().filter(|&dtype| bits(dtype) <= 16) {
        // Neighbours of every sort, and a rest that is no whole word.
        let codes: Vec<u64> = random((1 << 18) + 13).into_iter().map(|code| code >> (64 - bits(dtype))).collect();
        check(dtype, &codes);
    }
}

#[test]
fn many_big_endian_numbers_have_the_figures_of_the_same_in_little_endian() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Int16, Dtype::Float32, Dtype::Float64] {
        let little = Storage::packed(dtype);
        let codes = random(1 << 18).into_iter().map(|code| code >> (64 - bits(dtype)));
        let mut bytes = to_bytes(codes, little);
        let stats = stats_of_bytes(little, &bytes, 1 << 18);
        bytes.chunks_exact_mut(bits(dtype) as usize / 8).for_each(<[u8]>::reverse);
        assert_eq!(stats, stats_of_bytes(Storage { big_endian: true, ..little }, &bytes, 1 << 18), "{dtype}");
    }
}

#[test]
fn wider_types_are_counted_as_what_they_are() {
    for dtype in sources().filter(|&dtype| bits(dtype) > 16) {
        // Codes of every exponent, with those of zero and of infinity in other blocks than most.
        let codes: Vec<u64> = random(50_000).into_iter().map(|code| code >> (64 - bits(dtype))).collect();
        check(dtype, &codes);
        let near_one = |code: &u64| *code & (mask(bits(dtype)) >> 10) | 1 << (bits(dtype) - 3);
        check(dtype, &codes.iter().map(near_one).collect::<Vec<_>>());
        for end in [0, mask(bits(dtype)), 1 << (bits(dtype) - 1), mask(bits(dtype) - 1)] {
            check(dtype, &[end]);
            check(dtype, &[0, end, 1]);
        }
    }
}

#[test]
fn figures_do_not_depend_on_threads_where_there_is_work_for_them() {
    // Three pieces of a MiB and a bit, which fill the small bins more than once; the next also several blocks.
    check(Dtype::Float32, &random(800_000).into_iter().map(|code| code & 0x1fff_ffff | 1 << 29).collect::<Vec<_>>());
    check(Dtype::Float32, &random(800_000).into_iter().map(|code| code & 0x3fff_ffff).collect::<Vec<_>>());
    check(Dtype::Float64, &random(400_000).into_iter().map(|code| code >> 2).collect::<Vec<_>>());
    check(Dtype::Int64, &random(400_000));
}

#[test]
fn a_small_tensor_has_the_figures_of_one_that_repeats_it() {
    for dtype in [Dtype::Float16, Dtype::Float32, Dtype::Float64, Dtype::Int32] {
        // Numbers near one, small ones, and with the last step those that are none.
        for (shift, count) in [(2, 1), (2, 4), (4, 1023), (1, 1023), (0, 1023)] {
            let codes: Vec<u64> =
                random(count).into_iter().map(|code| code >> (64 - bits(dtype)) >> shift | code & 1).collect();
            let few = stats_of(dtype, &codes);
            // A power of two, so that the mean is rounded alike.
            let repeats = if count < 10 { 8192 } else { 8 };
            let many = stats_of(dtype, &codes.repeat(repeats));
            let times = |count: u64| count * repeats as u64;
            assert_eq!([few.min, few.max, few.abs_max], [many.min, many.max, many.abs_max], "{dtype}");
            assert_eq!(few.mean.map(f64::to_bits), many.mean.map(f64::to_bits), "{dtype}");
            assert_eq!([few.count, few.zeros, few.subnormals].map(times), [many.count, many.zeros, many.subnormals]);
            let beside = |stats: &Distribution| [stats.nan, stats.plus_infinite, stats.minus_infinite];
            assert_eq!(beside(&few).map(times), beside(&many), "{dtype}");
            let exponents = few.exponents.iter().map(|(exponent, count)| (exponent, times(count)));
            assert_eq!(exponents.collect::<Histogram>(), many.exponents, "{dtype}");
        }
    }
}

#[test]
fn a_mean_is_right_where_a_plain_sum_is_not() {
    let mean = |numbers: &[f64]| stats_of_float64(numbers).mean;
    assert_eq!(mean(&[1e300, 1e-300, -1e300]), Some(1e-300 / 3.0));
    assert_eq!(mean(&[f64::MAX; 3]), Some(f64::MAX));
    assert_eq!(mean(&[f64::MAX, f64::MIN, 3.0]), Some(1.0));
    assert_eq!(mean(&[1.0, 1e-17, 1e-17, -1.0]), Some(5e-18));
    assert_eq!(mean(&[5e-324, 5e-324]), Some(5e-324));
    assert_eq!(mean(&[0.1; 1000]), Some(0.1));
    let mean = |numbers: &[f32]| {
        let codes: Vec<u64> = numbers.iter().map(|number| number.to_bits().into()).collect();
        stats_of(Dtype::Float32, &codes.repeat(3000)).mean
    };
    let tiny = 2.0_f32.powi(-120);
    assert_eq!(mean(&[f32::MAX, tiny, f32::MIN, tiny]), Some(f64::from(tiny) / 2.0));
    assert_eq!(mean(&[f32::MIN, -tiny, f32::MAX]), Some(f64::from(-tiny) / 3.0));
    assert_eq!(mean(&[f32::MAX; 3]), Some(f32::MAX.into()));
    assert_eq!(mean(&[f32::from_bits(1), f32::from_bits(1)]), Some(f32::from_bits(1).into()));
    assert_eq!(mean(&[0.1; 7]), Some(0.1_f32.into()));
}

#[test]
fn the_smallest_float64s_have_exponents_of_their_own() {
    let stats = stats_of_float64(&[5e-324, -5e-324, f64::MIN_POSITIVE / 2.0, f64::MIN_POSITIVE, 0.0]);
    assert_eq!(stats.exponents.iter().collect::<Vec<_>>(), [(-1074, 2), (-1023, 1), (-1022, 1)]);
    assert_eq!((stats.zeros, stats.subnormals), (1, 3));
}

#[test]
fn without_a_finite_number_there_are_no_extremes_and_no_mean() {
    for numbers in [&[][..], &[f64::NAN, -f64::NAN], &[f64::INFINITY, f64::NEG_INFINITY]] {
        let stats = stats_of_float64(numbers);
        assert_eq!((stats.min, stats.max, stats.abs_max, stats.mean), (None, None, None, None));
        assert_eq!(stats.nan + stats.plus_infinite + stats.minus_infinite, numbers.len() as u64);
        assert_eq!(stats.exponents.total(), 0);
    }
}

#[test]
fn minus_zero_is_a_zero_and_shown_as_0() {
    for numbers in [&[-0.0][..], &[0.0, -0.0], &[-0.0, 0.0]] {
        let stats = stats_of_float64(numbers);
        assert_eq!(stats.zeros, numbers.len() as u64);
        let Some(Number::Float(min)) = stats.min else { panic!("no minimum") };
        assert!(min.is_sign_positive() && stats.mean.is_some_and(f64::is_sign_positive));
    }
}

#[test]
fn a_complex_number_counts_as_its_two_parts() {
    let bytes: Vec<u8> = [1.0_f32, -2.0, 0.0, f32::NAN].iter().flat_map(|part| part.to_be_bytes()).collect();
    let storage = Storage { big_endian: true, ..Storage::packed(Dtype::Complex64) };
    let stats = stats_of_bytes(storage, &bytes, 2);
    assert_eq!((stats.count, stats.zeros, stats.nan), (4, 1, 1));
    assert_eq!((stats.min, stats.max), (Some(Number::Float(-2.0)), Some(Number::Float(1.0))));
}

#[test]
fn a_compressed_tensor_has_the_figures_of_its_bytes() {
    let input = container::open("fixtures/corpus/npz/deflated.npz".as_ref()).unwrap();
    assert!(!input.contents.tensors.is_empty());
    for tensor in &input.contents.tensors {
        assert!(matches!(tensor.data, Data::Streamed(_)));
        let Elements::Typed(form @ Form::Numbers(storage)) = tensor.elements else { panic!("no numbers") };
        let mut bytes = vec![0; form.bytes(tensor.count).unwrap() as usize];
        Reader::open(tensor, &input.files).unwrap().fill(&mut bytes).unwrap();
        let stats = distribution::of(tensor, form, &input.files, 2, &Silent).unwrap();
        assert_eq!(stats, Some(stats_of_bytes(storage, &bytes, tensor.count)));
    }
}

#[test]
fn damage_and_malformed_elements_are_told_as_a_cast_tells_them() {
    let mut file = tempfile::tempfile().unwrap();
    let mut bytes = vec![0; 3 << 20];
    bytes[2_000_000] = 0x10;
    bytes[2_500_000] = 0x10;
    file.write_all(&bytes).unwrap();
    let files = [MappedFile::of(&file).unwrap()];
    let error = |dtype, checksum| {
        let form = Form::Numbers(Storage::per_byte(dtype));
        let (count, elements) = (bytes.len() as u64, Elements::Typed(form));
        let data = Data::Mapped { file: 0, range: 0..bytes.len(), checksum };
        let tensor = Tensor {
            name: "x".into(),
            shape: [count].into(),
            count,
            elements,
            fortran_order: false,
            data,
            stored: "".into(),
        };
        distribution::of(&tensor, form, &files, 3, &Silent).map_err(|error| error.to_string())
    };
    let malformed = "tensor 'x': element [2000000]: a byte that holds one float4e2m1 has bits above it";
    assert_eq!(error(Dtype::Float4E2M1, None), Err(malformed.to_owned()));
    let checksum = |expected| Some(Box::new(Checksum { before: crc32fast::Hasher::new(), expected }));
    assert!(error(Dtype::Int8, checksum(crc32fast::hash(&bytes))).is_ok());
    assert_eq!(error(Dtype::Int8, checksum(0)), Err("tensor 'x': is damaged: its checksum is wrong".to_owned()));
}

#[test]
fn text_has_no_figures() {
    let form = Form::Texts(TextForm::Bytes { width: 1 });
    let data = Data::Mapped { file: 0, range: 0..0, checksum: None };
    let elements = Elements::Typed(form);
    let tensor = Tensor {
        name: Box::default(),
        shape: [0].into(),
        count: 0,
        elements,
        fortran_order: false,
        data,
        stored: "".into(),
    };
    assert_eq!(distribution::of(&tensor, form, &[], 1, &Silent).unwrap(), None);
}

#[test]
fn a_histogram_is_drawn_beside_the_ranges_of_the_narrow_formats() {
    let histogram: Histogram =
        [(9, 1), (8, 2), (2, 40), (0, 400), (-2, 300), (-6, 200), (-11, 56), (-7, 1)].into_iter().collect();
    assert_eq!(format!("{}\n", distribution::draw(&histogram, 80, false)), include_str!("distribution/small.txt"));
}

#[test]
fn many_exponents_are_drawn_by_twos_and_those_beyond_all_formats_together() {
    let histogram: Histogram = (-149..128).zip(1..).collect();
    assert_eq!(format!("{}\n", distribution::draw(&histogram, 80, false)), include_str!("distribution/wide.txt"));
}

#[test]
fn colors_are_all_that_color_adds() {
    let histogram: Histogram = (-30..20).map(|exponent| (exponent, 1)).collect();
    let colored = distribution::draw(&histogram, 80, true);
    let plain: String = colored
        .split('\x1b')
        .map(|part| part.split_once('m').filter(|(code, _)| code.starts_with('[')).map_or(part, |(_, rest)| rest))
        .collect();
    assert_ne!(colored, plain);
    assert_eq!(plain, distribution::draw(&histogram, 80, false));
}

#[test]
fn a_picture_of_nothing_is_empty_and_a_narrow_one_still_has_bars() {
    assert_eq!(distribution::draw(&Histogram::default(), 80, false), "");
    let histogram: Histogram = [(0, 1)].into_iter().collect();
    assert!(distribution::draw(&histogram, 0, false).contains('█'));
}
