//! Every pair of numeric types, on every instruction set, against the reference implementation: bytes and counts.
//!
//! Sources of 16 bits and fewer give every code. Wider ones give every threshold of the target, the codes on
//! either side of it, and random codes that lie close to a tie more often than chance would have it.
#![allow(clippy::unwrap_used)]

#[path = "common/reference.rs"]
mod reference;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use reference::{
    Kind, Losses, Magnitude, NUMERIC, Number, ONLY_SOURCES, Outcome, Reference, bits, decode, kind, mask, sources,
    to_bytes,
};
use tcast::dtype::{Class, Dtype};
use tcast::kernel::{Counts, Isa, Kernel, Loss, Malformed, OutOfRange, RoundMode, Rules, Storage};

/// Random codes per pair, of each of two sorts.
const RANDOM: usize = 2_500;

const RULES: Rules =
    Rules { saturate: true, infinity_saturates_fnuz: false, round_mode: RoundMode::Up, out_of_range: OutOfRange::Wrap };

/// Everything else than in [`RULES`], for targets to which none of it matters.
const OTHER_RULES: Rules = Rules {
    saturate: false,
    infinity_saturates_fnuz: true,
    round_mode: RoundMode::Down,
    out_of_range: OutOfRange::Saturate,
};

/// Every set of rules that could make a difference to a target.
fn all_rules(target: Dtype) -> Vec<Rules> {
    let saturate = [true, false];
    match kind(target) {
        (8, Kind::Float(_)) => saturate
            .into_iter()
            .flat_map(|saturate| {
                [false, true].map(|infinity_saturates_fnuz| Rules { saturate, infinity_saturates_fnuz, ..RULES })
            })
            .collect(),
        (_, Kind::Scale) => saturate
            .into_iter()
            .flat_map(|saturate| {
                [RoundMode::Up, RoundMode::Down, RoundMode::Nearest].map(|round_mode| Rules {
                    saturate,
                    round_mode,
                    ..RULES
                })
            })
            .collect(),
        (_, Kind::Signed | Kind::Unsigned) => [OutOfRange::Wrap, OutOfRange::Saturate, OutOfRange::Error]
            .map(|out_of_range| Rules { out_of_range, ..RULES })
            .into(),
        _ => vec![RULES, OTHER_RULES],
    }
}

/// The ways in which elements of a type can lie.
fn layouts(dtype: Dtype) -> Vec<Storage> {
    if bits(dtype) < 8 { vec![Storage::packed(dtype), Storage::per_byte(dtype)] } else { vec![Storage::packed(dtype)] }
}

/// As [`layouts`], big endian too.
fn source_storages(dtype: Dtype) -> Vec<Storage> {
    let big_endian = Storage { big_endian: true, ..Storage::packed(dtype) };
    layouts(dtype).into_iter().chain((bits(dtype) > 8).then_some(big_endian)).collect()
}

fn run(kernel: &Kernel, isa: Isa, input: &[u8], target: Storage, count: usize) -> (Vec<u8>, Counts) {
    let mut output = vec![0xee; target.bytes(count as u64).unwrap() as usize];
    let counts = kernel.run_on(isa, input, &mut output, count).unwrap();
    (output, counts)
}

/// Casts the codes with the kernel in every storage and on every instruction set, and with the reference implementation.
fn check(source: Dtype, target: Dtype, rules: Rules, codes: &[u64]) {
    let reference = Reference::new(source, target, rules);
    let outcomes: Vec<Outcome> = codes.iter().map(|&code| reference.cast(code)).collect();
    let inputs = source_storages(source).into_iter().map(|storage| (storage, to_bytes(codes.iter().copied(), storage)));
    let inputs: Vec<_> = inputs.collect();
    for target in layouts(target) {
        for (source, input) in &inputs {
            Pair::new(*source, target, rules).check(input, codes, &outcomes);
        }
    }
    check_counts_by_kind(&Pair::new(Storage::packed(source), Storage::packed(target), rules), codes, &outcomes);
}

/// Values that lose the same, together: no error in one count can make up for another then, since each count
/// must be all or nothing.
fn check_counts_by_kind(pair: &Pair, codes: &[u64], outcomes: &[Outcome]) {
    let mut groups = vec![(Vec::new(), Vec::new()); Losses::SETS];
    for (&code, outcome) in codes.iter().zip(outcomes) {
        let (codes, outcomes) = &mut groups[outcome.losses.index()];
        codes.push(code);
        outcomes.push(*outcome);
    }
    for (codes, outcomes) in groups.iter().filter(|(codes, _)| !codes.is_empty()) {
        pair.check(&to_bytes(codes.iter().copied(), pair.source), codes, outcomes);
    }
}

/// A kernel, and what it was made of.
struct Pair {
    source: Storage,
    target: Storage,
    rules: Rules,
    kernel: Kernel,
}

impl Pair {
    fn new(source: Storage, target: Storage, rules: Rules) -> Self {
        let kernel = Kernel::cast(source, target, &rules).expect("every numeric pair has a cast");
        Self { source, target, rules, kernel }
    }

    /// Runs the kernel on every instruction set. `input` is the bytes of `codes`, of which the reference makes `outcomes`.
    fn check(&self, input: &[u8], codes: &[u64], outcomes: &[Outcome]) {
        let expected = to_bytes(outcomes.iter().map(|outcome| outcome.code), self.target);
        let expected_counts = reference::counts(outcomes);
        for isa in Isa::available() {
            let (output, counts) = run(&self.kernel, isa, input, self.target, codes.len());
            if output != expected || counts != expected_counts {
                self.fail(isa, &output, codes, outcomes);
                panic!("{} on {isa:?}: expected {expected_counts:?}, got {counts:?}", self.name());
            }
        }
    }

    /// Panics at the first code whose result is wrong by itself.
    fn fail(&self, isa: Isa, output: &[u8], codes: &[u64], outcomes: &[Outcome]) {
        let expected = to_bytes(outcomes.iter().map(|outcome| outcome.code), self.target);
        for (index, (code, outcome)) in codes.iter().zip(outcomes).enumerate() {
            let [expected, got] = [&expected[..], output].map(|bytes| reference::element(bytes, self.target, index));
            assert!(expected == got, "{} on {isa:?}: {code:x} -> expected {expected:x}, got {got:x}", self.name());
            let (_, counts) = run(&self.kernel, isa, &to_bytes([*code], self.source), self.target, 1);
            let expected = outcome.losses.counts(1);
            assert!(
                expected == counts,
                "{} on {isa:?}: {code:x} -> expected {expected:?}, got {counts:?}",
                self.name()
            );
        }
    }

    fn name(&self) -> String {
        format!("{:?} -> {:?} by {:?}", self.source, self.target, self.rules)
    }
}

fn check_every_code(source: Dtype) {
    let codes: Vec<u64> = (0..=mask(bits(source))).collect();
    for target in NUMERIC {
        for rules in all_rules(target) {
            check(source, target, rules, &codes);
        }
    }
}

#[test]
fn every_type_of_the_table_has_a_line_in_the_reference() {
    let numbers = Dtype::all().filter(|dtype| !matches!(dtype.class(), Class::Complex | Class::String));
    let (to_and_from, only_from): (Vec<_>, Vec<_>) = numbers.partition(|dtype| dtype.onnx_number().is_some());
    assert_eq!((&to_and_from[..], &only_from[..]), (&NUMERIC[..], &ONLY_SOURCES[..]));
}

#[test]
fn every_code_of_8_bits_and_fewer_casts_as_the_reference_does() {
    sources().filter(|&source| bits(source) <= 8).for_each(check_every_code);
}

#[test]
fn every_float16_casts_as_the_reference_does() {
    check_every_code(Dtype::Float16);
}

#[test]
fn every_bfloat16_casts_as_the_reference_does() {
    check_every_code(Dtype::Bfloat16);
}

#[test]
fn every_int16_casts_as_the_reference_does() {
    check_every_code(Dtype::Int16);
}

#[test]
fn every_uint16_casts_as_the_reference_does() {
    check_every_code(Dtype::Uint16);
}

/// A fixed sequence that looks random (Steele, Lea & Flood, "Fast splittable pseudorandom number generators").
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn within(&mut self, range: RangeInclusive<i32>) -> i32 {
        range.start() + (self.next() % (range.end() - range.start() + 1) as u64) as i32
    }
}

/// Where a target's results change, and numbers that are special to any.
fn thresholds(target: Dtype) -> Vec<Magnitude> {
    let mut thresholds = vec![Magnitude::ZERO];
    if let (..=16, Kind::Float(_)) = kind(target) {
        thresholds.extend(reference::numbers(target));
        thresholds.extend(reference::midpoints(target));
    }
    // Powers of two, which E8M0 has, and what is halfway between them.
    thresholds.extend((-1080..1030).flat_map(|exponent| [1, 3].map(|mantissa| Magnitude::new(mantissa, exponent))));
    // The limits of the integers, one more, one less, and what rounds there.
    let quarters =
        |power: u32| (-6..=6).map(move |quarter| Magnitude::new((1_u64 << power).wrapping_add_signed(quarter), -2));
    thresholds.extend((3..64).flat_map(quarters));
    thresholds.extend((1..=64).map(|bits| Magnitude::new(mask(bits), 0)));
    // Halves up to where 8-bit integers and more end.
    thresholds.extend((0..1200).map(|halves| Magnitude::new(halves, -1)));
    thresholds
}

/// The largest code of a source that is not negative and not above a magnitude.
fn floor(source: Dtype, magnitude: Magnitude) -> u64 {
    let end = match kind(source) {
        (bits, Kind::Unsigned) => mask(bits),
        (bits, _) => 1 << (bits - 1),
    };
    let is_at_most = |code| matches!(decode(source, code).number, Number::Finite(number) if number <= magnitude);
    reference::count_leading(end, is_at_most).saturating_sub(1)
}

/// The code of the opposite number, where there is one.
fn negated(source: Dtype, code: u64) -> u64 {
    match kind(source) {
        (bits, Kind::Float(_)) => code ^ 1 << (bits - 1),
        (bits, _) => code.wrapping_neg() & mask(bits),
    }
}

/// The exponents of a target's range and somewhat more, as far as a source has them.
fn exponents(source: Dtype, target: Dtype) -> RangeInclusive<i32> {
    let exponents = match kind(target) {
        (bits, Kind::Signed | Kind::Unsigned) => -3..=bits as i32 + 2,
        (8, Kind::Bool) => -3..=3,
        (..=8, Kind::Float(_)) => -21..=18,
        (16, Kind::Float(_)) if target == Dtype::Float16 => -28..=18,
        (64, _) => -1080..=1023,
        _ => -152..=130,
    };
    match kind(source) {
        (_, Kind::Float(_)) => exponents,
        (bits, _) => -1..=(bits as i32).min(*exponents.end()),
    }
}

/// Codes of a source of more than 16 bits on which its casts to a target may go wrong.
fn difficult_codes(source: Dtype, target: Dtype, random_codes: usize) -> Vec<u64> {
    let mask = mask(bits(source));
    let mut codes = Vec::new();
    for threshold in thresholds(target) {
        let floor = floor(source, threshold);
        codes.extend([floor.wrapping_sub(1), floor, floor + 1, floor.wrapping_add(2)].map(|code| code & mask));
    }
    let mut random = Random(u64::from(source as u8) << 8 | u64::from(target as u8));
    if let Kind::Float(_) = kind(source).1 {
        let infinity = reference::max_finite(source) + 1;
        let payload_bits = infinity.trailing_zeros();
        codes.extend((0..payload_bits).map(|bit| infinity | 1 << bit));
        codes.extend((0..1000).map(|_| infinity | random.next() >> (64 - payload_bits)));
    }
    let exponents = exponents(source, target);
    for _ in 0..random_codes {
        codes.push(random.next() & mask);
        // A number of some digits, or a tie of them, or next to one; often with as many as float32 or float64 has.
        let digits = [24, 53, random.within(1..=63), random.within(1..=63)][random.within(0..=3) as usize];
        let number = (1 << 63 | random.next()) >> (63 - digits);
        let magnitude = Magnitude::new(number, random.within(exponents.clone()) - digits);
        let beside = [0, 0, 1, u64::MAX][random.within(0..=3) as usize];
        codes.push(floor(source, magnitude).wrapping_add(beside) & mask);
    }
    codes.sort_unstable();
    codes.dedup();
    let opposite: Vec<u64> = codes.iter().map(|&code| negated(source, code)).collect();
    codes.extend(opposite);
    codes
}

fn check_difficult_codes(source: Dtype, random_codes: usize) {
    for target in NUMERIC {
        let codes = difficult_codes(source, target, random_codes);
        for rules in all_rules(target) {
            check(source, target, rules, &codes);
        }
    }
}

#[test]
fn float32_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Float32, RANDOM);
}

#[test]
fn float64_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Float64, RANDOM);
}

#[test]
fn int32_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Int32, RANDOM);
}

#[test]
fn uint32_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Uint32, RANDOM);
}

#[test]
fn int64_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Int64, RANDOM);
}

#[test]
fn uint64_thresholds_and_random_values_cast_as_the_reference_does() {
    check_difficult_codes(Dtype::Uint64, RANDOM);
}

#[test]
fn double_rounding_counterexamples_are_rounded_once() {
    use Dtype as D;
    const NO_SATURATION: Rules = Rules { saturate: false, ..RULES };
    const NEAREST: Rules = Rules { round_mode: RoundMode::Nearest, ..RULES };
    // On the way over float32 (the last but one: float64) each would end one code away.
    let counterexamples = [
        (D::Float64, 0x3ff0020000000001, D::Float16, RULES, 0x3c01),
        (D::Float64, 0x40effdffffffffff, D::Float16, RULES, 0x7bff),
        (D::Float64, 0x3ff0100000000001, D::Bfloat16, RULES, 0x3f81),
        (D::Float64, 0xc7efefffffffffff, D::Bfloat16, RULES, 0xff7f),
        (D::Float64, 0x3ff1000000000001, D::Float8E4M3FN, RULES, 0x39),
        (D::Float64, 0x3ff2000000000001, D::Float8E5M2, RULES, 0x3d),
        (D::Float64, 0x40edffffffffffff, D::Float8E5M2, NO_SATURATION, 0x7b),
        (D::Float64, 0x3ff4000000000001, D::Float4E2M1, RULES, 0x3),
        (D::Float64, 0x3ff1000000000001, D::Float6E2M3, RULES, 0x9),
        (D::Float64, 0x3ff2000000000001, D::Float6E3M2, RULES, 0xd),
        (D::Float64, 0x3ff0000000000001, D::Float8E8M0, RULES, 0x80),
        (D::Int32, 0x01010001, D::Bfloat16, RULES, 0x4b81),
        (D::Int64, 0x01010001, D::Bfloat16, RULES, 0x4b81),
        (D::Int64, 0x4000004000000001, D::Float32, RULES, 0x5e800001),
        (D::Uint32, 0xbfffffff, D::Float8E8M0, NEAREST, 0x9e),
    ];
    for (source, code, target, rules, expected) in counterexamples {
        let (source, target) = (Storage::packed(source), Storage::packed(target));
        let pair = Pair::new(source, target, rules);
        for isa in Isa::available() {
            let (output, _) = run(&pair.kernel, isa, &to_bytes([code], source), target, 1);
            let got = reference::element(&output, target, 0);
            assert!(got == expected, "{} on {isa:?}: {code:x} -> expected {expected:x}, got {got:x}", pair.name());
        }
        check(source.dtype, target.dtype, rules, &[code]);
    }
}

/// Every pair of storages, each with the rules and the rules that are unlike them.
fn for_every_pair(mut check: impl FnMut(&Pair)) {
    for source in sources().flat_map(source_storages) {
        for target in NUMERIC.into_iter().flat_map(layouts) {
            for rules in [RULES, OTHER_RULES] {
                check(&Pair::new(source, target, rules));
            }
        }
    }
}

fn random_codes(dtype: Dtype, count: usize) -> Vec<u64> {
    let mut random = Random(u64::from(dtype as u8));
    (0..count).map(|_| random.next() & mask(bits(dtype))).collect()
}

#[test]
fn every_instruction_set_agrees_with_the_baseline() {
    const COUNT: usize = 4099;
    for_every_pair(|pair| {
        let codes = random_codes(pair.source.dtype, COUNT);
        let input = to_bytes(codes.iter().copied(), pair.source);
        let expected = run(&pair.kernel, Isa::Baseline, &input, pair.target, COUNT);
        for isa in Isa::available() {
            let got = run(&pair.kernel, isa, &input, pair.target, COUNT);
            if expected == got {
                continue;
            }
            for (index, code) in codes.iter().enumerate() {
                let [expected, got] = [&expected, &got].map(|(bytes, _)| reference::element(bytes, pair.target, index));
                assert!(expected == got, "{} on {isa:?}: {code:x} -> expected {expected:x}, got {got:x}", pair.name());
            }
            panic!("{} on {isa:?}: expected {:?}, got {:?}", pair.name(), expected.1, got.1);
        }
        let mut output = vec![0xee; expected.0.len()];
        let counts = pair.kernel.run(&input, &mut output, COUNT).unwrap();
        assert!(expected == (output, counts), "{} on its own choice of instruction set", pair.name());
    });
}

#[test]
fn any_length_at_any_address_gives_the_same_as_one_long_run() {
    const LONGEST: usize = 2100;
    for_every_pair(|pair| {
        let codes = random_codes(pair.source.dtype, LONGEST);
        let reference = Reference::new(pair.source.dtype, pair.target.dtype, pair.rules);
        let outcomes: Vec<Outcome> = codes.iter().map(|&code| reference.cast(code)).collect();
        for length in (0..=70).chain([1023, 1024, 1025, 2047, 2048, 2049]) {
            // Packed elements can only be cut where a byte begins.
            let start = length % 5 * 8;
            let (codes, outcomes) = (&codes[start..][..length], &outcomes[start..][..length]);
            let (before_input, before_output) = (length % 7, length % 3);
            let mut input = vec![0xee; before_input];
            input.extend(to_bytes(codes.iter().copied(), pair.source));
            let mut expected = vec![0xee; before_output];
            expected.extend(to_bytes(outcomes.iter().map(|outcome| outcome.code), pair.target));
            expected.extend([0xee; 3]); // nothing is written behind the last element
            let expected_counts = reference::counts(outcomes);
            for isa in Isa::available() {
                let mut output = vec![0xee; expected.len()];
                let (input, into) = (&input[before_input..], &mut output[before_output..]);
                let counts = pair.kernel.run_on(isa, input, into, length).unwrap();
                let name = || format!("{} on {isa:?}, elements {start}..{}: {codes:x?}", pair.name(), start + length);
                assert!(output == expected, "{}: expected {expected:x?}, got {output:x?}", name());
                assert!(counts == expected_counts, "{}: expected {expected_counts:?}, got {counts:?}", name());
            }
        }
    });
}

#[test]
fn a_byte_with_more_than_one_float_is_refused() {
    for source in [Dtype::Float4E2M1, Dtype::Float6E2M3, Dtype::Float6E3M2] {
        for target in NUMERIC {
            let pair = Pair::new(Storage::per_byte(source), Storage::packed(target), RULES);
            for (isa, byte) in Isa::available().into_iter().flat_map(|isa| (0..=255).map(move |byte| (isa, byte))) {
                let is_one = u64::from(byte) <= mask(bits(source));
                let mut input = [0; 40];
                input[39] = byte;
                let result = pair.kernel.run_on(isa, &input, &mut [0; 320], 40);
                let got = result.map(|_| ());
                let expected = if is_one { Ok(()) } else { Err(Malformed) };
                assert!(got == expected, "{} on {isa:?}: {byte:x} -> expected {expected:?}, got {got:?}", pair.name());
            }
        }
    }
}

#[test]
fn bits_above_an_integer_in_a_byte_are_ignored() {
    for source in [Dtype::Int1, Dtype::Int2, Dtype::Int4, Dtype::Uint1, Dtype::Uint2, Dtype::Uint4] {
        for target in NUMERIC {
            let pair = Pair::new(Storage::per_byte(source), Storage::packed(target), RULES);
            let bytes: Vec<u8> = (0..=255).collect();
            let codes: Vec<u64> = bytes.iter().map(|&byte| u64::from(byte) & mask(bits(source))).collect();
            let reference = Reference::new(source, target, RULES);
            let outcomes: Vec<Outcome> = codes.iter().map(|&code| reference.cast(code)).collect();
            pair.check(&bytes, &codes, &outcomes);
        }
    }
}

#[test]
fn only_floats_to_integers_can_be_refused() {
    let rules = Rules { out_of_range: OutOfRange::Error, ..RULES };
    let is_integer = |dtype| matches!(kind(dtype).1, Kind::Bool | Kind::Signed | Kind::Unsigned);
    for source in sources() {
        for target in NUMERIC.into_iter().filter(|&target| is_integer(target) && target != Dtype::Bool) {
            let expected = (!is_integer(source)).then_some(Loss::Wrapped);
            let got = Pair::new(Storage::packed(source), Storage::packed(target), rules).kernel.refuses();
            assert!(got == expected, "{source} -> {target}: expected {expected:?}, got {got:?}");
        }
    }
}

#[test]
fn complex_numbers_and_text_have_no_cast() {
    for other in sources() {
        for none in [Dtype::Complex64, Dtype::Complex128, Dtype::String] {
            for (source, target) in [(none, other), (other, none), (none, none)] {
                let kernel = Kernel::cast(Storage::packed(source), Storage::packed(target), &RULES);
                assert!(kernel.is_none(), "{source} -> {target}");
            }
        }
    }
}

#[test]
fn types_that_onnx_lacks_are_cast_to_themselves_only_and_keep_every_bit() {
    for (source, target) in sources()
        .flat_map(source_storages)
        .flat_map(|source| ONLY_SOURCES.into_iter().flat_map(layouts).map(move |target| (source, target)))
    {
        let Some(kernel) = Kernel::cast(source, target, &RULES) else {
            assert!(source.dtype != target.dtype, "{source:?} -> {target:?} has no cast");
            continue;
        };
        assert!(source.dtype == target.dtype, "{source:?} -> {target:?} has a cast");
        let codes: Vec<u64> = (0..=mask(bits(source.dtype))).collect();
        let expected = to_bytes(codes.iter().copied(), target);
        for isa in Isa::available() {
            let (output, counts) = run(&kernel, isa, &to_bytes(codes.iter().copied(), source), target, codes.len());
            assert!(output == expected && counts.is_lossless(), "{source:?} -> {target:?} on {isa:?}");
        }
    }
}

#[test]
fn a_copy_keeps_every_bit() {
    const COUNT: usize = 1029;
    for (source, target) in sources().flat_map(|source| sources().map(move |target| (source, target))) {
        let codes = random_codes(source, COUNT);
        for (source, target) in source_storages(source)
            .into_iter()
            .flat_map(|source| layouts(target).into_iter().map(move |target| (source, target)))
        {
            let Some(kernel) = Kernel::copy(source, target) else {
                assert!(bits(source.dtype) != bits(target.dtype), "{source:?} -> {target:?} has no copy");
                continue;
            };
            assert!(bits(source.dtype) == bits(target.dtype), "{source:?} -> {target:?} has a copy");
            let expected = to_bytes(codes.iter().copied(), target);
            for isa in Isa::available() {
                let (output, counts) = run(&kernel, isa, &to_bytes(codes.iter().copied(), source), target, COUNT);
                assert!(output == expected && counts.is_lossless(), "{source:?} -> {target:?} on {isa:?}");
            }
        }
    }
}

#[test]
fn complex_numbers_swap_their_parts_one_by_one() {
    let cases: [(Dtype, &[u8]); 2] = [
        (Dtype::Complex64, &[4, 3, 2, 1, 8, 7, 6, 5]),
        (Dtype::Complex128, &[8, 7, 6, 5, 4, 3, 2, 1, 16, 15, 14, 13, 12, 11, 10, 9]),
    ];
    for (dtype, expected) in cases {
        let big_endian = Storage { big_endian: true, ..Storage::packed(dtype) };
        let kernel = Kernel::copy(big_endian, Storage::packed(dtype)).unwrap();
        let input: Vec<u8> = (1..=expected.len() as u8).collect();
        for isa in Isa::available() {
            let (output, _) = run(&kernel, isa, &input, Storage::packed(dtype), 1);
            assert!(output == expected, "{dtype} on {isa:?}: {input:x?} -> expected {expected:x?}, got {output:x?}");
        }
    }
}

#[test]
#[ignore = "a hundred times as many random values, minutes"]
fn many_random_values_cast_as_the_reference_does() {
    let sources = [Dtype::Float32, Dtype::Float64, Dtype::Int32, Dtype::Uint32, Dtype::Int64, Dtype::Uint64];
    for source in sources {
        check_difficult_codes(source, 100 * RANDOM);
    }
}

#[test]
#[ignore = "2^32 inputs, minutes"]
#[allow(clippy::print_stdout, reason = "many minutes pass between two lines")]
fn every_float32_casts_as_the_reference_does() {
    const BLOCK: u64 = 1 << 16;
    // One of each way in which a kernel can go: by rounding, range, zeros and width.
    let floats = [Dtype::Float8E4M3FN, Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2, Dtype::Float16, Dtype::Bfloat16];
    let others = [Dtype::Float4E2M1, Dtype::Float8E8M0, Dtype::Int8, Dtype::Uint16, Dtype::Int32, Dtype::Int4];
    for target in floats.into_iter().chain(others) {
        let next = AtomicU64::new(0);
        let check_blocks = || {
            let reference = Reference::new(Dtype::Float32, target, RULES);
            let pair = Pair::new(Storage::packed(Dtype::Float32), Storage::packed(target), RULES);
            loop {
                let start = next.fetch_add(BLOCK, Ordering::Relaxed);
                if start > mask(32) {
                    break;
                }
                let codes: Vec<u64> = (start..start + BLOCK).collect();
                let outcomes: Vec<Outcome> = codes.iter().map(|&code| reference.cast(code)).collect();
                pair.check(&to_bytes(codes.iter().copied(), pair.source), &codes, &outcomes);
            }
        };
        thread::scope(|scope| {
            for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(check_blocks);
            }
        });
        println!("float32 -> {target}: all 2^32 are equal");
    }
}
