//! Float16 weights whose codes and scales stand for numbers beyond float16: `tcast quantize` counts and names them.

use crate::common::onnx::{field, node, number};
use crate::common::{Bench, safetensors};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use tcast::quant::SCHEMES;

const WEIGHT: &str = "model.layers.0.mlp.up_proj.weight";

/// A folder `m` with a float16 weight of small numbers, and some near the largest float16.
fn bench_with_large([rows, columns]: [usize; 2], is_large: impl Fn(usize) -> bool) -> Bench {
    let value = |at: usize| {
        let sign = if at.is_multiple_of(3) { -1.0 } else { 1.0 };
        let magnitude = if is_large(at) { 48_000 + at * 977 % 17_505 } else { at * 31 % 997 };
        half::f16::from_f32(sign * magnitude as f32)
    };
    let data: Vec<u8> = (0..rows * columns).flat_map(|at| value(at).to_le_bytes()).collect();
    let header =
        format!(r#"{{"{WEIGHT}":{{"dtype":"F16","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#, data.len());
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/model.safetensors", &safetensors(&header, &data));
    bench.write("m/config.json", br#"{"model_type":"llama","torch_dtype":"float16"}"#);
    bench
}

/// Runs a command and returns its report.
#[track_caller]
fn report(bench: &Bench, command: &str) -> Value {
    let outcome = bench.run(&format!("{command} --json -q"));
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{command}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// Quantizes the weight, and asserts that the counts are those of decoding to float16; returns the count.
#[track_caller]
fn count(bench: &Bench, flags: &str) -> u64 {
    let quantized = report(bench, &format!("quantize m {flags} -o out"));
    let decoded = report(bench, "dequantize out --to f16 -o plain");
    fs::remove_dir_all(bench.path("out")).unwrap();
    fs::remove_dir_all(bench.path("plain")).unwrap();
    let of = |report: &Value| report["tensors"][0]["counts"]["infinite"].clone();
    assert_eq!(of(&quantized), of(&decoded), "{flags}");
    let first = |report: &Value| report["tensors"][0]["first_at"]["infinite"].clone();
    assert_eq!(first(&quantized), first(&decoded), "{flags}");
    assert_eq!(quantized["counts"]["infinite"], of(&quantized), "{flags}");
    of(&quantized).as_u64().unwrap()
}

#[test]
fn values_that_decode_to_infinity_are_counted_as_dequantize_counts_them() {
    let bench = bench_with_large([128, 256], |at| at.is_multiple_of(7));
    let mut met = BTreeSet::new();
    for scheme in SCHEMES {
        // Libraries decode GGUF files to float32, and the layout of gpt-oss holds experts.
        for layout in scheme.layout_names().filter(|name| !["gguf", "gpt-oss"].contains(name)) {
            for arithmetic in ["library", "exact"] {
                let flags = format!("--scheme {} --layout {layout} --arithmetic {arithmetic}", scheme.name);
                if count(&bench, &flags) > 0 {
                    met.insert(scheme.name);
                }
            }
        }
    }
    for scheme in ["mxfp4", "mxfp6", "mxfp8", "nvfp4", "int4", "int4-asym", "int8", "fp8-block-ue8m0", "affine8"] {
        assert!(met.contains(scheme), "{scheme}: {met:?}");
    }
}

#[test]
fn values_far_from_the_scale_of_the_whole_weight_are_counted_too() {
    // The large values are in the last of several pieces that are quantized apart.
    let bench = bench_with_large([1280, 1024], |at| at >= 1270 * 1024 && at.is_multiple_of(7));
    for flags in [
        "--scheme nvfp4 --layout compressed-tensors",
        "--scheme int4-asym --layout compressed-tensors",
        "--scheme mxfp8 --layout comfyui",
    ] {
        assert!(count(&bench, flags) > 0, "{flags}");
    }
}

#[test]
fn weights_of_onnx_models_are_counted() {
    let bench = Bench::new();
    let value = |at: usize| if at.is_multiple_of(7) { half::f16::MAX } else { half::f16::from_f32(at as f32) };
    let bytes: Vec<u8> = (0..64 * 8).flat_map(|at| value(at).to_le_bytes()).collect();
    let weight = [number(1, 64), number(1, 8), number(2, 10), field(8, b"w"), field(9, &bytes)].concat();
    let graph = [field(5, &weight), node("MatMul", &["x", "w"], "y")].concat();
    bench.write("in.onnx", &[&number(1, 10)[..], &field(7, &graph), &field(8, &number(2, 21))].concat());
    for scheme in ["int8", "fp8"] {
        let quantized = report(&bench, &format!("quantize in.onnx --scheme {scheme} --min-elements 0 -o out.onnx -f"));
        let decoded = report(&bench, "dequantize out.onnx --to f16 -o plain.onnx -f");
        let of = |report: &Value| report["tensors"][0]["counts"]["infinite"].clone();
        assert_eq!(of(&quantized), of(&decoded), "{scheme}");
        assert_eq!(of(&quantized), 74, "{scheme}");
    }
}

#[test]
fn a_summary_names_the_weights_and_the_page_counts_their_values() {
    let bench = bench_with_large([2, 32], |at| at == 35);
    let outcome = bench.run("quantize m --scheme mxfp4 -o out --report page.html");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    let line = "1 of 64 values became infinite when decoded to float16 (1.56%)";
    outcome.check_message("first");
    let page = String::from_utf8(bench.read("page.html")).unwrap();
    assert!(page.contains(&format!("<li>{line}</li>")) && page.contains("became infinite"), "{page}");
    // 60000 fits bfloat16.
    bench.run("cast m --to bf16 -o wide -q").expect(0, "", "");
    let wide = report(&bench, "quantize wide --scheme mxfp4 -o other");
    assert_eq!(wide["counts"]["infinite"], 0);
}

#[test]
fn weights_that_decode_to_infinity_are_refused_on_request() {
    let bench = bench_with_large([2, 32], |at| at == 35);
    bench.run("quantize m --scheme mxfp4 -o out --fail-on infinite -q").says(3, "", "float16");
    bench.run("quantize m --scheme mxfp8 -o out --fail-on infinite --dry-run -q").says(3, "", "float16");
    assert!(!bench.path("out").exists());
    bench.run("quantize m --scheme fp8 -o out --fail-on infinite -q").expect(0, "", "");
    bench.run("quantize m --scheme q8_0 --layout gguf -o out.gguf --fail-on infinite").says(2, "", "--fail-on");
}
