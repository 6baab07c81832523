//! `--opset`: the types, attributes and rules of each version of Cast, as ONNX's own schemas have them.

use crate::common::{Bench, fixture, npy, npy_data, npy_f32, safetensors};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use tcast::dtype::Dtype;
use tcast::operator::cast::{ATTRIBUTES, Opset, VERSIONS};

/// The schemas of ONNX.
fn schemas() -> Value {
    serde_json::from_slice(&fs::read(fixture("cast_versions.json")).unwrap()).unwrap()
}

#[test]
fn every_version_has_the_types_and_attributes_of_onnxs_schema() {
    let schemas = schemas();
    let versions = schemas["Cast"].as_object().unwrap();
    let known: BTreeSet<String> = VERSIONS.iter().map(|version| version.since.to_string()).collect();
    assert_eq!(known, versions.keys().cloned().collect());
    for (index, version) in VERSIONS.iter().enumerate() {
        let schema = &versions[&version.since.to_string()];
        let types: BTreeSet<u64> = VERSIONS[..=index]
            .iter()
            .flat_map(|version| version.added)
            .map(|dtype| dtype.onnx_number().unwrap().into())
            .collect();
        let expected = schema["T_enum"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect();
        assert_eq!(types, expected, "Cast-{}", version.since);
        assert_eq!(schema["T1_equals_T2"], true, "Cast-{}", version.since);
        let attributes = ATTRIBUTES.iter().filter(|(_, since)| *since <= version.since).map(|(name, _)| *name);
        let attributes: BTreeSet<&str> = attributes.chain(["to"]).collect();
        let expected = schema["attributes"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(attributes, expected, "Cast-{}", version.since);
    }
}

#[test]
fn every_opset_selects_the_version_that_onnx_selects() {
    let schemas = schemas();
    let opsets = schemas["opset_to_cast"].as_object().unwrap();
    assert_eq!(opsets.len(), Opset::NEWEST as usize);
    for (opset, version) in opsets {
        let opset: Opset = opset.parse().unwrap();
        assert_eq!(Some(opset.version().into()), version.as_u64(), "{}", opset.number());
    }
}

#[test]
fn every_name_and_number_of_onnxs_enum_is_a_type() {
    let schemas = schemas();
    let types = schemas["datatypes"].as_object().unwrap();
    let mut seen = BTreeSet::new();
    for (name, number) in types.iter().filter(|(name, _)| *name != "UNDEFINED") {
        let dtype: Dtype = name.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(dtype.onnx_number().map(u64::from), number.as_u64(), "{name}");
        assert_eq!(number.to_string().parse(), Ok(dtype), "{name}");
        seen.insert(dtype);
    }
    assert_eq!(seen.len(), 28);
    for none in ["UNDEFINED", "0", "29"] {
        assert!(none.parse::<Dtype>().is_err(), "{none}");
    }
}

/// The error of a run on `x.npy`, one float32 of its own, and what is then in the folder.
fn refusal(flags: &str) -> (Option<i32>, String) {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    let outcome = bench.run(&format!("cast x.npy {flags}"));
    assert_eq!((outcome.stdout.as_str(), bench.files()), ("", vec!["x.npy".to_owned()]), "{flags}");
    (outcome.code, outcome.stderr)
}

#[test]
fn every_type_is_taken_from_its_version_on_and_refused_before() {
    for (before, version) in VERSIONS.iter().zip(&VERSIONS[1..]) {
        for dtype in version.added.iter().filter(|dtype| **dtype != Dtype::String) {
            let (earlier, since) = (before.since, version.since);
            let message = format!(
                "tcast: error: x.npy: Cast-{earlier} has no {dtype}: Cast-{since} is the first with it\n  \
                 choose opset {since} or higher, or leave --opset out\n"
            );
            assert_eq!(refusal(&format!("--to {dtype} --opset {}", since - 1)), (Some(1), message));
            let bench = Bench::new();
            bench.write("x.npy", &npy_f32(&[1.0]));
            bench.run(&format!("cast x.npy --to {dtype} --opset {since} -q -o y.npy")).expect(0, "", "");
            // As a source too.
            bench.run(&format!("cast y.npy --to f32 --opset {since} -q -o z.npy")).expect(0, "", "");
            let outcome = bench.run(&format!("cast y.npy --to f32 --opset {} -q -o w.npy", since - 1));
            assert_eq!(outcome.code, Some(1), "{dtype}");
            outcome.check_message("Cast");
        }
    }
}

#[test]
fn an_attribute_that_the_version_lacks_is_wrong_usage_where_it_was_given() {
    let message = |version, name, since| {
        let message = format!(
            "tcast: error: Cast-{version} has no attribute {name}: Cast-{since} is the first with it\n  \
             choose opset {since} or higher, or leave --opset out\n"
        );
        (Some(2), message)
    };
    for flag in ["--saturate", "--saturate=true", "--saturate=0", "--no-saturate"] {
        assert_eq!(refusal(&format!("--to f16 --opset 18 {flag}")), message(13, "saturate", 19), "{flag}");
    }
    assert_eq!(refusal("--to f16 --opset 23 --round-mode up"), message(23, "round_mode", 24));
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    for flags in [
        "f16 --opset 1",
        "e5m2 --opset 19 --saturate",
        "e8m0 --opset 24 --round-mode down",
        "int8 --opset 1 --out-of-range error",
    ] {
        bench.run(&format!("cast x.npy --to {flags} -f -q")).expect(0, "", "");
    }
}

#[test]
fn opsets_end_at_the_newest_that_is_known() {
    for opset in ["0", "29", "-1", "1.0", "x", ""] {
        let outcome = Bench::new().run_args(&["cast", "x.npy", "--to", "f16", &format!("--opset={opset}")]);
        let message = format!(
            "tcast: error: invalid value '{opset}' for '--opset <N>': an opset is a number from 1 to 28, the newest \
             known\n"
        );
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
        // An empty value is refused in clap's own words.
        assert!(opset.is_empty() || outcome.stderr.starts_with(&message), "{}", outcome.stderr);
    }
}

#[test]
fn tensors_that_are_copied_may_have_any_type() {
    let bench = Bench::new();
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[4,8]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0; 8]));
    bench.run("cast m.safetensors --to f16 --opset 13 -o out.safetensors").says(1, "", "--opset");
    bench.run("cast m.safetensors --to f16 --opset 13 --exclude b -o out.safetensors -q").expect(0, "", "");
}

#[test]
fn complex_types_are_in_no_version() {
    let bench = Bench::new();
    bench.write("c.npy", &npy("'<c8'", "(1,)", &[0; 8]));
    bench.run("cast c.npy --to f16 --opset 1").says(1, "", "--exclude");
}

#[test]
fn infinity_is_nan_in_the_fnuz_types_up_to_cast_23_and_the_largest_number_after() {
    let cases = [
        ("", [0x80, 0x80]),
        ("--opset 19", [0x80, 0x80]),
        ("--opset 23", [0x80, 0x80]),
        ("--opset 24", [0x7f, 0xff]),
        ("--opset 28", [0x7f, 0xff]),
        ("--opset 24 --saturate=false", [0x80, 0x80]),
    ];
    for to in ["float8e4m3fnuz", "float8e5m2fnuz"] {
        for (flags, expected) in cases {
            let bench = Bench::new();
            bench.write("x.npy", &npy_f32(&[f32::INFINITY, f32::NEG_INFINITY]));
            bench.run(&format!("cast x.npy --to {to} {flags} -o y.npy -q")).expect(0, "", "");
            assert_eq!(npy_data(&bench.read("y.npy")), expected, "{to} {flags}");
        }
    }
}

#[test]
fn the_report_has_the_opset_and_the_attributes_in_effect() {
    let cases = [
        ("f16", r#"[null,true,"up"]"#),
        ("e8m0 --opset 24 --no-saturate --round-mode nearest", r#"[24,false,"nearest"]"#),
        ("f16 --opset 18", r#"[18,true,"up"]"#),
    ];
    for (flags, expected) in cases {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        let outcome = bench.run(&format!("cast x.npy --to {flags} --json -q -n"));
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let options = &report["options"];
        let found = serde_json::json!([options["opset"], options["saturate"], options["round_mode"]]);
        assert_eq!(found.to_string(), expected, "{flags}");
    }
}
