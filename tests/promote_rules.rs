//! The types of `OpenVINO` ConvertPromoteTypes-14: its text, its table with the types it lacks, and what follows.
#![allow(clippy::unwrap_used)]

mod common;

use common::fixture;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use tcast::commands::{exit_code, remedy};
use tcast::dtype::{Class, Dtype};
use tcast::kernel::{Kernel, Loss, Storage};
use tcast::operator::cast;
use tcast::operator::promote::{PromoteAttributes, PromoteInput, PromoteRule, check_u64_target, promote};

const SAFE: PromoteAttributes =
    PromoteAttributes { is_unsafe: false, pytorch_scalar: false, u64_target: Dtype::Float32 };
const UNSAFE: PromoteAttributes = PromoteAttributes { is_unsafe: true, ..SAFE };
const SAFE_SCALAR: PromoteAttributes = PromoteAttributes { pytorch_scalar: true, ..SAFE };
const UNSAFE_SCALAR: PromoteAttributes = PromoteAttributes { is_unsafe: true, ..SAFE_SCALAR };
const MODES: [PromoteAttributes; 4] = [SAFE, UNSAFE, SAFE_SCALAR, UNSAFE_SCALAR];

/// `f16`, or `S(f16)` for a scalar: inputs named A, B, C.
fn inputs<'a>(types: &[&str]) -> Vec<PromoteInput<'a>> {
    let names = ["A", "B", "C", "D"];
    let of = |(name, spelled): (&'a str, &&str)| {
        let inner = spelled.strip_prefix("S(").and_then(|rest| rest.strip_suffix(')'));
        PromoteInput { name, dtype: inner.unwrap_or(spelled).parse().unwrap(), is_scalar: inner.is_some() }
    };
    names.into_iter().zip(types).map(of).collect()
}

fn decided(types: &[&str], attributes: PromoteAttributes) -> (Dtype, PromoteRule) {
    let decision = promote(&inputs(types), &attributes).unwrap();
    (decision.dtype, decision.rule)
}

/// What is said, and what would do, on two lines.
fn refusal(types: &[&str], attributes: PromoteAttributes) -> String {
    let error = promote(&inputs(types), &attributes).unwrap_err();
    format!("{error}\n{}", remedy(&error).unwrap_or_default())
}

/// The common type of dimensioned inputs.
fn of_types(dtypes: &[Dtype], attributes: PromoteAttributes) -> Option<Dtype> {
    let inputs: Vec<_> = dtypes.iter().map(|&dtype| PromoteInput { name: "", dtype, is_scalar: false }).collect();
    promote(&inputs, &attributes).ok().map(|decision| decision.dtype)
}

/// ONNX's types of numbers, and bool.
fn numeric() -> Vec<Dtype> {
    Dtype::all().filter(|dtype| dtype.onnx_number().is_some() && *dtype != Dtype::String).collect()
}

/// The table's word for a refusal.
fn class(message: &str) -> &'static str {
    let words = [
        ("2 x ", "E_INT_TO_FLOAT"),
        ("wider than both", "E_WIDENS"),
        ("no integer type", "E_U64_SIGNED"),
        ("has no zero", "E_NO_ZERO"),
    ];
    words.iter().find(|(words, _)| message.contains(words)).unwrap_or_else(|| panic!("{message}")).1
}

#[test]
fn every_cell_of_the_table_in_both_orders_and_modes() {
    let table: Value = serde_json::from_slice(&fs::read(fixture("promote_table.json")).unwrap()).unwrap();
    let cells = table["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 378);
    for cell in cells {
        let (a, b) = (cell["a"].as_str().unwrap(), cell["b"].as_str().unwrap());
        for (attributes, mode) in [(&SAFE, "safe"), (&UNSAFE, "unsafe")] {
            for pair in [[a, b], [b, a]] {
                let expected = cell[mode].as_str().unwrap();
                match promote(&inputs(&pair), attributes) {
                    Ok(decision) => assert_eq!(Ok(decision.dtype), expected.parse(), "{a} {b} {mode}"),
                    Err(error) => assert_eq!(class(&error.to_string()), expected, "{a} {b} {mode}"),
                }
            }
        }
    }
}

#[test]
fn the_examples_of_openvinos_text_hold() {
    let examples: [(&str, [&str; 2], PromoteAttributes, &str, PromoteRule); 13] = [
        ("regular 1", ["i8", "f32"], SAFE, "f32", PromoteRule::IntFloat),
        ("regular 2", ["i32", "u8"], SAFE, "i32", PromoteRule::UnsignedSigned),
        ("unsafe 1", ["f16", "i64"], UNSAFE, "f16", PromoteRule::IntFloat),
        ("unsafe 2", ["f64", "u64"], UNSAFE, "f64", PromoteRule::IntFloat),
        ("unsafe 3", ["i8", "u8"], UNSAFE, "i16", PromoteRule::UnsignedSigned),
        ("unsafe 4", ["f16", "bf16"], UNSAFE, "f32", PromoteRule::Floats),
        ("unsafe 5", ["f8e4m3", "f8e5m2"], UNSAFE, "f16", PromoteRule::Floats),
        ("unsafe 6", ["u64", "i8"], UNSAFE, "f32", PromoteRule::U64Target),
        ("PyTorch 1", ["S(i64)", "u8"], UNSAFE_SCALAR, "u8", PromoteRule::Scalar),
        ("PyTorch 2", ["S(f16)", "i8"], SAFE_SCALAR, "f16", PromoteRule::IntFloat),
        ("XML 1, floats", ["f16", "f32"], SAFE, "f32", PromoteRule::Wider),
        ("XML 2, integers unsafe", ["i16", "u32"], UNSAFE, "i64", PromoteRule::UnsignedSigned),
        ("XML 3, u64 and signed unsafe", ["i16", "u64"], UNSAFE, "f32", PromoteRule::U64Target),
    ];
    for (name, pair, attributes, expected, rule) in examples {
        assert_eq!(decided(&pair, attributes), (expected.parse().unwrap(), rule), "{name}");
        // "Promotions that will cause exceptions when promote_unsafe will be set to false"
        if attributes.is_unsafe {
            assert!(promote(&inputs(&pair), &PromoteAttributes { is_unsafe: false, ..attributes }).is_err(), "{name}");
        }
    }
}

#[test]
fn scalars_that_the_dimensioned_type_cannot_hold_are_refused_in_safe_mode() {
    // OpenVINO's text refuses these 13 and its program takes them.
    let pairs = "u4 i4, u8 i4, u8 i8, u16 i8, u16 i16, u32 i16, u32 i32, u64 i32, u64 i64, f16 bf16, bf16 f16, \
                 f8e4m3 f8e5m2, f8e5m2 f8e4m3";
    for pair in pairs.split(", ") {
        let (scalar, dimensioned) = pair.split_once(' ').unwrap();
        for pair in [[&format!("S({scalar})"), dimensioned], [dimensioned, &format!("S({scalar})")]] {
            assert!(refusal(&pair, SAFE_SCALAR).contains("cannot promote the scalar"), "{pair:?}");
            assert_eq!(decided(&pair, UNSAFE_SCALAR), (dimensioned.parse().unwrap(), PromoteRule::Scalar), "{pair:?}");
        }
    }
}

#[test]
fn scalars_decide_where_nothing_else_is_of_their_kind() {
    for attributes in [SAFE_SCALAR, UNSAFE_SCALAR] {
        assert_eq!(decided(&["S(f32)", "i8", "u8"], attributes).0, Dtype::Float32);
        assert_eq!(decided(&["S(i32)", "bool"], attributes).0, Dtype::Int32);
        assert_eq!(decided(&["S(c128)", "f32"], attributes).0, Dtype::Complex128);
        assert_eq!(decided(&["S(i8)", "S(i16)"], attributes).0, Dtype::Int16);
        assert_eq!(decided(&["S(u8)", "i16", "i8"], attributes).0, Dtype::Int16);
        assert_eq!(decided(&["S(f16)", "f16", "f32"], attributes), (Dtype::Float32, PromoteRule::Scalar));
        assert_eq!(decided(&["S(bool)", "f8e8m0", "f32"], attributes), (Dtype::Float32, PromoteRule::Wider));
    }
    assert_eq!(decided(&["S(f64)", "c64"], UNSAFE_SCALAR), (Dtype::Complex64, PromoteRule::Scalar));
    assert!(refusal(&["S(f64)", "c64"], SAFE_SCALAR).contains("complex64 does not hold every float64"));
    assert_eq!(decided(&["S(i64)", "f16", "i8"], UNSAFE_SCALAR), (Dtype::Float16, PromoteRule::IntFloat));
    assert_eq!(decided(&["S(f16)", "f8e8m0"], UNSAFE_SCALAR), (Dtype::Float8E8M0, PromoteRule::Scalar));
    // A scalar takes part in nothing: the dimensioned ones alone widen.
    assert!(refusal(&["S(i16)", "i8", "u8"], SAFE_SCALAR).contains("wider than both"));
    assert_eq!(decided(&["S(u64)", "i8"], UNSAFE_SCALAR).0, Dtype::Int8);
    assert_eq!(decided(&["S(i8)", "u64", "i8"], UNSAFE_SCALAR), (Dtype::Float32, PromoteRule::U64Target));
}

#[test]
fn more_inputs_than_two_are_promoted_in_one_step() {
    assert_eq!(decided(&["u8", "i8", "i16"], SAFE), (Dtype::Int16, PromoteRule::UnsignedSigned));
    assert_eq!(decided(&["f16", "bf16", "f32"], SAFE), (Dtype::Float32, PromoteRule::Wider));
    assert_eq!(decided(&["u64", "i8", "f16"], UNSAFE), (Dtype::Float16, PromoteRule::IntFloat));
    assert_eq!(decided(&["f8e4m3", "f8e5m2", "bf16"], UNSAFE), (Dtype::Bfloat16, PromoteRule::Wider));
    assert_eq!(decided(&["f8e8m0", "i8", "f32"], SAFE), (Dtype::Float32, PromoteRule::Wider));
    assert_eq!(decided(&["bool", "bool", "u4"], SAFE), (Dtype::Uint4, PromoteRule::Bool));
    assert_eq!(decided(&["c64", "f16", "i8"], SAFE), (Dtype::Complex64, PromoteRule::Complex));
    assert_eq!(decided(&["c64", "f64", "i8"], UNSAFE), (Dtype::Complex128, PromoteRule::Complex));
    assert_eq!(decided(&["u8"], SAFE), (Dtype::Uint8, PromoteRule::Equal));
}

#[test]
fn the_target_for_uint64_counts_where_uint64_meets_a_signed_integer() {
    let attributes = PromoteAttributes { u64_target: Dtype::Int64, ..UNSAFE };
    assert_eq!(decided(&["u64", "i8"], attributes), (Dtype::Int64, PromoteRule::U64Target));
    assert_eq!(decided(&["u64", "bool", "i8"], attributes), (Dtype::Int64, PromoteRule::U64Target));
    assert_eq!(decided(&["u64", "u8"], attributes), (Dtype::Uint64, PromoteRule::Wider));
    assert_eq!(decided(&["u32", "i8"], attributes), (Dtype::Int64, PromoteRule::UnsignedSigned));
    assert_eq!(decided(&["u64", "f16"], attributes), (Dtype::Float16, PromoteRule::IntFloat));
    assert!(promote(&inputs(&["u64", "i8"]), &PromoteAttributes { is_unsafe: false, ..attributes }).is_err());
}

#[test]
fn order_and_repetition_decide_nothing() {
    for attributes in MODES {
        for &a in &numeric() {
            assert_eq!(of_types(&[a, a], attributes), Some(a));
            for &b in &numeric() {
                let ab = of_types(&[a, b], attributes);
                assert_eq!(ab, of_types(&[b, a], attributes), "{a} {b}");
                assert_eq!(ab, of_types(&[a, b, a, b], attributes), "{a} {b}");
                for &c in &numeric() {
                    let abc = of_types(&[a, b, c], attributes);
                    for other in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
                        assert_eq!(abc, of_types(&other, attributes), "{a} {b} {c}");
                    }
                    // Whatever two steps in some order would take is taken, and is the same type.
                    if !attributes.is_unsafe
                        && let Some(folded) = ab.and_then(|ab| of_types(&[ab, c], attributes))
                    {
                        assert_eq!(abc, Some(folded), "{a} {b} {c}");
                    }
                }
            }
        }
    }
}

#[test]
fn one_step_takes_92_of_openvinos_680_triples_that_two_steps_in_some_order_refuse() {
    let table: Value = serde_json::from_slice(&fs::read(fixture("promote_table.json")).unwrap()).unwrap();
    let names = table["openvino_types"].as_array().unwrap();
    let types: Vec<Dtype> = names.iter().map(|name| name.as_str().unwrap().parse().unwrap()).collect();
    let (mut triples, mut gained) = (0, 0);
    for (at, &a) in types.iter().enumerate() {
        for (to, &b) in types.iter().enumerate().skip(at + 1) {
            for &c in &types[to + 1..] {
                let folded = |one, two, last| of_types(&[of_types(&[one, two], SAFE)?, last], SAFE);
                let every_order = [folded(a, b, c), folded(a, c, b), folded(b, c, a)].iter().all(Option::is_some);
                triples += 1;
                gained += u32::from(of_types(&[a, b, c], SAFE).is_some() && !every_order);
            }
        }
    }
    assert_eq!((triples, gained), (680, 92));
}

#[test]
fn order_decides_nothing_whichever_are_scalars() {
    for attributes in [SAFE_SCALAR, UNSAFE_SCALAR] {
        let all: Vec<PromoteInput> = numeric()
            .into_iter()
            .flat_map(|dtype| [false, true].map(|is_scalar| PromoteInput { name: "", dtype, is_scalar }))
            .collect();
        let of = |inputs: &[PromoteInput]| promote(inputs, &attributes).ok();
        for (&a, &b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
            assert_eq!(of(&[a, b]), of(&[b, a]), "{a:?} {b:?}");
            for &c in &all {
                let abc = of(&[a, b, c]);
                assert!(abc == of(&[b, c, a]) && abc == of(&[b, a, c]), "{a:?} {b:?} {c:?}");
            }
        }
    }
}

/// Codes of a type: all of them up to 16 bits, of wider ones those of at most two runs of equal bits and their like.
fn codes(dtype: Dtype) -> Vec<u64> {
    let bits = dtype.bits();
    if dtype == Dtype::Bool {
        return vec![0, 1];
    }
    if bits <= 16 {
        return (0..1 << bits).collect();
    }
    let mask = u64::MAX >> (64 - bits);
    let ones = |low: u32, high: u32| (u64::MAX >> (64 - high)) & (u64::MAX << low) & mask;
    let runs = (0..bits).flat_map(|low| (low + 1..=bits).map(move |high| ones(low, high)));
    let pairs = (0..bits).flat_map(|low| (0..bits).map(move |high| 1 << low | 1 << high));
    runs.chain(pairs).flat_map(|code| [code, !code & mask]).chain([0]).collect()
}

/// How many values of a type another one lacks.
fn lost(source: Dtype, target: Dtype) -> u64 {
    let rules = cast::CastAttributes::default().rules();
    let (from, to) = (Storage::per_byte(source), Storage::per_byte(target));
    let kernel = Kernel::cast(from, to, &rules).unwrap_or_else(|| panic!("{source} {target}"));
    let codes = codes(source);
    let width = (source.bits() as usize).div_ceil(8);
    let input: Vec<u8> = codes.iter().flat_map(|code| code.to_le_bytes()[..width].to_vec()).collect();
    let mut output = vec![0; codes.len() * (target.bits() as usize).div_ceil(8)];
    let counts = kernel.run(&input, &mut output, codes.len()).unwrap();
    counts[Loss::Inexact]
}

#[test]
fn a_safe_type_holds_every_value_of_every_input() {
    // The rule of twice the width has these exceptions: 9, 11, 13 and 15 need four digits.
    let exceptions = [(Dtype::Uint4, Dtype::Float8E5M2), (Dtype::Uint4, Dtype::Float8E5M2FNUZ)];
    let mut lossy = BTreeMap::new();
    let mut checked = 0;
    for &a in &numeric() {
        for &b in &numeric() {
            for (attributes, is_scalar) in [(SAFE, false), (SAFE_SCALAR, true)] {
                let pair = [
                    PromoteInput { name: "A", dtype: a, is_scalar },
                    PromoteInput { name: "B", dtype: b, is_scalar: false },
                ];
                let Ok(decision) = promote(&pair, &attributes) else { continue };
                // A complex type's parts are what must hold the values.
                let (source, target) = (a.part(), decision.dtype.part());
                // A tensor that has the type already is not cast: Cast-19 makes Inf of float8e5m2 its largest number.
                let count = if source == target { 0 } else { lost(source, target) };
                checked += 1;
                if count > 0 {
                    lossy.insert((source, target), count);
                }
            }
        }
    }
    assert_eq!(lossy, exceptions.map(|pair| (pair, 4)).into());
    assert!(checked > 800, "{checked}");
}

#[test]
fn a_type_holds_another_exactly_when_no_value_is_lost() {
    // 0 and -1; 0 and 1.
    assert!(Dtype::Float32.holds(Dtype::Int1) && Dtype::Float32.holds(Dtype::Uint1));
    let is_comparable = |a: Dtype, b: Dtype| {
        let is_int = |dtype: Dtype| matches!(dtype.class(), Class::Int { .. });
        (is_int(a) && is_int(b)) || (a.is_floating() && b.is_floating()) || (is_int(a) && b.is_floating())
    };
    for target in numeric() {
        for source in numeric().into_iter().filter(|&source| is_comparable(source, target) && source != target) {
            assert_eq!(target.holds(source), lost(source, target) == 0, "{source} {target}");
        }
    }
}

#[test]
fn an_integer_in_a_float_too_narrow_is_refused() {
    assert_eq!(
        refusal(&["int64", "float16"], SAFE),
        "cannot promote int64 (A) and float16 (B): the common type float16 may not hold every int64 \
         (a float needs 2 x 64 bits)\nuse --unsafe to convert to float16 anyway, or cast one input first"
    );
    assert_eq!(
        refusal(&["bf16", "u16"], SAFE),
        "cannot promote uint16 (B) and bfloat16 (A): the common type bfloat16 may not hold every uint16 \
         (a float needs 2 x 16 bits)\nuse --unsafe to convert to bfloat16 anyway, or cast A to float32 first"
    );
    assert_eq!(
        refusal(&["i8", "i16", "f8e5m2"], SAFE),
        "cannot promote int8 (A) and float8e5m2 (C): the common type float8e5m2 may not hold every int8 \
         (a float needs 2 x 8 bits)\nuse --unsafe to convert to float8e5m2 anyway, or cast C to float32 first"
    );
    assert!(refusal(&["i4", "f4e2m1"], SAFE).ends_with("or cast B to float8e4m3fn first"));
    assert_eq!(
        refusal(&["i32", "c64"], SAFE),
        "cannot promote int32 (A) and complex64 (B): the common type complex64 may not hold every int32 \
         (its parts need 2 x 32 bits)\nuse --unsafe to convert to complex64 anyway, or cast one input first"
    );
}

#[test]
fn the_cast_that_is_advised_mends_the_pair() {
    let mut mended = 0;
    for (a, b) in numeric().into_iter().flat_map(|a| numeric().into_iter().map(move |b| (a, b))) {
        let pair = [(a, "A"), (b, "B")].map(|(dtype, name)| PromoteInput { name, dtype, is_scalar: false });
        let Err(error) = promote(&pair, &SAFE) else { continue };
        let message = remedy(&error).unwrap_or_default();
        let Some(float) = message.split("cast B to ").nth(1).and_then(|rest| rest.strip_suffix(" first")) else {
            continue;
        };
        let float: Dtype = float.parse().unwrap();
        let is_mended = of_types(&[a, float], SAFE) == Some(float) || b == Dtype::Float8E8M0;
        assert!(is_mended && float.holds(b), "{message}");
        mended += 1;
    }
    assert!(mended > 50, "{mended}");
}

#[test]
fn a_type_wider_than_all_inputs_is_refused() {
    assert_eq!(
        refusal(&["uint8", "int8"], SAFE),
        "cannot promote uint8 (A) and int8 (B): the smallest type that holds both is int16, wider than both\n\
         use --unsafe to convert both to int16"
    );
    assert_eq!(
        refusal(&["f8e4m3", "f8e5m2", "f16", "bf16"], SAFE),
        "cannot promote float16 (C) and bfloat16 (D): the smallest type that holds both is float32, wider than both\n\
         use --unsafe to convert all to float32"
    );
    assert!(refusal(&["u8", "i8", "f16", "bf16"], SAFE).starts_with("cannot promote float16 (C) and bfloat16 (D)"));
}

#[test]
fn uint64_with_a_signed_integer_is_refused() {
    assert_eq!(
        refusal(&["uint64", "int8"], SAFE),
        "cannot promote uint64 (A) and int8 (B): no integer type holds both\nuse --unsafe to convert both to float32 \
         (24 bits of precision), or --unsafe --u64-target TYPE to choose the type"
    );
    assert_eq!(
        refusal(&["u8", "int8", "u64"], PromoteAttributes { u64_target: Dtype::Int64, ..SAFE }),
        "cannot promote uint64 (C) and int8 (B): no integer type holds both\nuse --unsafe to convert all to int64, \
         or --unsafe --u64-target TYPE to choose the type"
    );
}

#[test]
fn a_scalar_that_does_not_fit_is_refused() {
    assert_eq!(
        refusal(&["S(int64)", "uint8"], SAFE_SCALAR),
        "cannot promote the scalar A (int64) to uint8, the type of B: uint8 does not hold every int64\n\
         use --unsafe to convert it anyway, or leave --pytorch-scalar out"
    );
    assert_eq!(
        refusal(&["i8", "S(u8)"], SAFE_SCALAR),
        "cannot promote the scalar B (uint8) to int8, the type of A: int8 does not hold every uint8\n\
         use --unsafe to convert it anyway"
    );
}

#[test]
fn float8e8m0_with_what_needs_a_zero_is_refused_in_every_mode() {
    for attributes in MODES {
        assert_eq!(
            refusal(&["int8", "float8e8m0"], attributes),
            "cannot promote int8 (A) and float8e8m0 (B): float8e8m0 has no zero and no negative values\n\
             cast B to bfloat16 first"
        );
        assert!(refusal(&["f8e8m0", "S(bool)"], attributes).contains("no zero"));
    }
}

#[test]
fn text_is_refused_in_every_mode() {
    for attributes in MODES {
        for types in [&["string", "int8"][..], &["string", "string"], &["string"]] {
            assert_eq!(
                refusal(types, attributes),
                "cannot promote string (A): only numeric and bool tensors have a common type\n\
                 cast it to numbers first"
            );
        }
    }
}

#[test]
fn types_that_onnx_lacks_are_promoted_to_themselves_only() {
    let foreign = || Dtype::all().filter(|dtype| dtype.onnx_number().is_none());
    assert!(foreign().any(|dtype| dtype == Dtype::Int1));
    for attributes in MODES {
        for dtype in foreign() {
            assert_eq!(of_types(&[dtype, dtype], attributes), Some(dtype));
            for other in Dtype::all().filter(|&other| other != dtype) {
                assert_eq!(of_types(&[dtype, other], attributes), None, "{dtype} {other}");
                assert_eq!(of_types(&[other, dtype], attributes), None, "{dtype} {other}");
            }
        }
    }
    assert_eq!(
        refusal(&["int8", "int1"], UNSAFE),
        "cannot promote int1 (B) and int8 (A): int1 is not one of ONNX's types, and has no common type with others\n\
         cast B to one of ONNX's types first"
    );
}

#[test]
fn nothing_has_no_common_type() {
    let error = promote(&[], &SAFE).unwrap_err();
    assert_eq!(error.to_string(), "promote needs at least one input");
    assert_eq!(exit_code(&error.into()), 2);
}

#[test]
fn the_target_for_uint64_is_a_number_or_bool() {
    let refused: Vec<&str> = Dtype::all().filter(|it| check_u64_target(*it).is_err()).map(Dtype::name).collect();
    let foreign = Dtype::all().filter(|dtype| dtype.onnx_number().is_none()).map(Dtype::name);
    assert_eq!(refused, ["float8e8m0", "string"].into_iter().chain(foreign).collect::<Vec<_>>());
    let error = check_u64_target(Dtype::String).unwrap_err();
    assert_eq!(error.to_string(), "uint64 with a signed integer cannot become string");
    assert!(error.advice()[0].to_string().starts_with("use one of: bool, int2, int4, int8, "));
    assert_eq!(exit_code(&error.into()), 2);
}

#[test]
fn long_and_hostile_names_are_shortened() {
    let name = "x\u{1b}".repeat(1000);
    let pair = [
        PromoteInput { name: &name, dtype: Dtype::Uint8, is_scalar: false },
        PromoteInput { name: "B", dtype: Dtype::Int8, is_scalar: false },
    ];
    let message = promote(&pair, &SAFE).unwrap_err().to_string();
    assert!(message.len() < 2000 && !message.contains('\u{1b}'), "{message}");
}
