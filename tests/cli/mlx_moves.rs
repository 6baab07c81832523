//! Codes and scales that move between other layouts and MLX. `tests/quant/transcode.rs` checks the values.

use super::quantize::{assert_same, config, tensors};
use crate::common::{Bench, Outcome, fixture};
use serde_json::Value;

/// The tensors of a report that were quantized.
fn quantized(bench: &Bench, line: &str) -> Vec<Value> {
    let outcome = bench.run(&format!("{line} --json -q"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let tensors = report["tensors"].as_array().unwrap().iter().map(|tensor| tensor["quantized"].clone());
    tensors.filter(|quantized| !quantized.is_null()).collect()
}

#[test]
fn symmetric_integers_move_to_offsets_and_back() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for (scheme, bits, size) in [("int4", 4, 32), ("int8a16", 8, 64)] {
        bench.run(&format!("quantize m --scheme {scheme} --group-size {size} -o q -f -q")).expect(0, "", "");
        let moved = quantized(&bench, "quantize q --layout mlx --only-exact -o x -f");
        assert!(!moved.is_empty() && moved.iter().all(|weight| weight["codes"] == "exact"), "{moved:?}");
        assert_eq!(config(&bench, "x")["quantization"]["bits"], bits);
        assert_eq!(config(&bench, "x")["quantization"]["group_size"], size);
        let outcome = bench.run("diff q x");
        assert!(outcome.code == Some(0) && outcome.stdout.ends_with("tensors are equal\n"), "{outcome:?}");
        bench.run("quantize x --layout compressed-tensors --only-exact -o back -f -q").expect(0, "", "");
        assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("q")));
        bench.run("quantize q --layout mlx -o x -f").says(0, "", "differently");
    }
}

#[test]
fn a_checkpoint_of_another_layout_has_no_metadata_of_mlx() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --layout mlx --scheme affine4 -o x -q").expect(0, "", "");
    bench.run("quantize x --scheme int4 --group-size 32 -o q -q").expect(0, "", "");
    let file = bench.read("q/model-00001-of-00003.safetensors");
    assert!(String::from_utf8_lossy(&file[8..80]).contains(r#""format":"pt""#));
}

#[test]
fn zero_points_become_offsets_that_are_rounded_once_and_counted() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme int4-asym --group-size 64 -o q -q").expect(0, "", "");
    bench.run("quantize q --layout mlx -o x").says(0, "", "unchanged");
    let mut largest = 0.0_f64;
    for weight in quantized(&bench, "quantize q --layout mlx -o x -f") {
        largest = largest.max(weight["max_abs_error"].as_f64().unwrap());
        assert_eq!((&weight["codes"], &weight["exact"]), (&"rounded_offsets".into(), &false.into()), "{weight}");
        let [changed, visible] = ["changed", "changed_bfloat16"].map(|key| weight[key].as_u64().unwrap());
        assert!(changed > 0 && visible <= changed, "{weight}");
        assert!(weight["sqnr_db"].as_f64().unwrap() > 40.0, "{weight}");
    }
    // The codes are those of the input: only the offsets are rounded.
    bench.run("quantize q --layout mlx --only-exact -o y").says(1, "", "offsets");
    // Values differ by the error that the report names, and not by less. Decoded to float32, they are rounded.
    for folder in ["q", "x"] {
        bench
            .run(&format!("dequantize {folder} --to float32 --arithmetic exact -o {folder}-values -q"))
            .expect(0, "", "");
    }
    for (tolerance, code) in [(1.0001 * largest, 0), (0.9999 * largest, 1)] {
        bench.run(&format!("diff q-values x-values --tolerance {tolerance} -q")).expect(code, "", "");
    }
}

#[test]
fn wider_codes_keep_offsets_or_make_them_exact() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let is_equal = |outcome: &Outcome| outcome.code == Some(0) && outcome.stdout.ends_with("tensors are equal\n");
    bench.run("quantize m --scheme affine4 -o q -q").expect(0, "", "");
    let before = tensors(&bench.path("q"));
    for scheme in ["affine5", "affine6", "affine8"] {
        bench.run(&format!("quantize q --layout mlx --scheme {scheme} --only-exact -o x -f -q")).expect(0, "", "");
        let mut after = tensors(&bench.path("x"));
        after.retain(|name, _| !name.ends_with(".weight") || name.ends_with("norm.weight"));
        assert!(after.iter().all(|(name, tensor)| before[name] == *tensor) && after.len() > 9, "{scheme}");
        let outcome = bench.run("diff q x");
        assert!(is_equal(&outcome), "{scheme}: {outcome:?}");
    }
    // Codes and zero points move until the zero point is 16, because bfloat16 stores 16 times any scale.
    bench.run("quantize m --scheme int4-asym --group-size 64 -o q -f -q").expect(0, "", "");
    for scheme in ["affine5", "affine8"] {
        bench.run(&format!("quantize q --layout mlx --scheme {scheme} --only-exact -o x -f -q")).expect(0, "", "");
        for folder in ["q", "x"] {
            let line = format!("dequantize {folder} --to float32 --arithmetic exact -o {folder}-values -f -q");
            bench.run(&line).expect(0, "", "");
        }
        let outcome = bench.run("diff q-values x-values");
        assert!(is_equal(&outcome), "{scheme}: {outcome:?}");
    }
}

#[test]
fn offsets_become_zero_points_only_where_they_are_multiples_of_the_scale() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme affine4 -o x -q").expect(0, "", "");
    bench.run("quantize x --layout compressed-tensors -o q").says(1, "", "int4-asym");
    let requantized = quantized(&bench, "quantize x --scheme int4 -o q");
    assert!(requantized.iter().all(|weight| weight["codes"] == "requantized"), "{requantized:?}");
}

#[test]
fn groups_are_divided_without_a_change() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme affine4 --group-size 64 -o x -q").expect(0, "", "");
    bench.run("quantize x --scheme affine4 --group-size 32 --only-exact -o y -q").expect(0, "", "");
    let outcome = bench.run("diff x y");
    assert!(outcome.code == Some(0) && outcome.stdout.ends_with("tensors are equal\n"), "{outcome:?}");
}

#[test]
fn floats_with_exponents_move_both_ways_and_global_scales_do_not() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    for scheme in ["mxfp4", "mxfp8"] {
        bench.run(&format!("quantize m --scheme {scheme} -o q -f -q")).expect(0, "", "");
        bench.run("quantize q --layout mlx --only-exact -o x -f -q").expect(0, "", "");
        bench.run("quantize x --layout compressed-tensors --only-exact -o back -f -q").expect(0, "", "");
        assert_same(&tensors(&bench.path("back")), &tensors(&bench.path("q")));
    }
    bench.run("quantize m --scheme nvfp4 --layout mlx -o x -f -q").expect(0, "", "");
    bench.run("quantize x --layout compressed-tensors --only-exact -o q -f -q").expect(0, "", "");
    bench.run("quantize m --scheme nvfp4 -o q -f -q").expect(0, "", "");
    bench.run("quantize q --layout mlx -o x -f").says(1, "", "nvfp4");
    bench.run("quantize q --layout mlx --scheme nvfp4 -o x -f -q").expect(0, "", "");
}

#[test]
fn blocks_of_gguf_files_move_to_offsets() {
    let bench = Bench::with("gguf/tiny.gguf", "m.gguf");
    std::fs::create_dir(bench.path("base")).unwrap();
    std::fs::copy(fixture("gguf/tiny-llama/config.json"), bench.path("base/config.json")).unwrap();
    for (scheme, own) in [("q4_0", "affine4"), ("q4_1", "affine4"), ("q5_1", "affine5"), ("q8_0", "affine8")] {
        bench.run(&format!("quantize m.gguf --scheme {scheme} -o q.gguf -f -q")).expect(0, "", "");
        let moved =
            quantized(&bench, "quantize q.gguf --layout mlx --only-exact --names huggingface --config base -o x -f");
        assert!(!moved.is_empty(), "{scheme}");
        for weight in moved {
            assert_eq!((&weight["codes"], &weight["scheme"]), (&"exact".into(), &own.into()), "{scheme}");
        }
        bench.run("diff q.gguf x --names huggingface --tolerance 0 -q").expect(0, "", "");
    }
    // There is no way back, except for values. llama.cpp has the rows of attention in another order.
    bench.run("dequantize x --include *.self_attn.* -o y -q").expect(0, "", "");
    bench.run("quantize y --layout gguf --metadata-from m.gguf -o y.gguf").says(1, "", "GGUF");
}

#[test]
fn blocks_that_move_keep_their_values_and_the_others_are_refused() {
    let bench = Bench::with("gguf/tiny.gguf", "m.gguf");
    std::fs::create_dir(bench.path("base")).unwrap();
    std::fs::copy(fixture("gguf/tiny-llama/config.json"), bench.path("base/config.json")).unwrap();
    let offsets = [2, 3, 4, 5, 6, 8].map(|bits| (format!("affine{bits}"), "q", "mlx"));
    let others = ["int4", "int4-asym", "int8a16"].map(|scheme| (scheme.to_owned(), "plain-ends", "compressed-tensors"));
    let schemes: Vec<_> = offsets.into_iter().chain(others).collect();
    for format in ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "nvfp4"] {
        // compressed-tensors has no quantized embeddings and heads.
        let ends = "--rule token_embd.*=f32 --rule output.*=f32";
        for (file, rules) in [("q", ""), ("plain-ends", ends)] {
            bench
                .run(&format!("quantize m.gguf --layout gguf --scheme {format} {rules} -o {file}.gguf -f -q"))
                .expect(0, "", "");
        }
        let mut moved = Vec::new();
        for (scheme, file, layout) in &schemes {
            let line = format!(
                "quantize {file}.gguf --layout {layout} --scheme {scheme} --group-size 32 --names huggingface --config base \
                 -o x -f"
            );
            let outcome = bench.run(&format!("{line} --only-exact -q"));
            if outcome.code == Some(0) {
                moved.push(&**scheme);
                let diff = bench.run(&format!("diff {file}.gguf x --names huggingface --tolerance 0 -q"));
                assert_eq!(diff.code, Some(0), "{format} {scheme}: {diff:?}");
                continue;
            }
            outcome.says(1, "", "scales");
            for weight in quantized(&bench, &line) {
                let place = format!("{format} {scheme}: {weight}");
                assert_eq!(weight["codes"], "requantized", "{place}");
                assert!(weight["sqnr_db"].as_f64().unwrap() > 3.0, "{place}");
            }
        }
        match format {
            "q4_0" => assert!(moved.contains(&"affine4") && moved.contains(&"int4"), "{moved:?}"),
            // Its numbers, -127 to 113, are 16, but take 8 bits.
            "iq4_nl" => assert_eq!(moved, ["affine8", "int8a16"]),
            _ => {}
        }
    }
}

#[test]
fn scales_of_rows_are_quantized_again_to_offsets() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme fp8 -o q -q").expect(0, "", "");
    for weight in quantized(&bench, "quantize q --scheme affine8 -o x") {
        assert_eq!(weight["codes"], "requantized");
        assert!(weight["sqnr_db"].as_f64().unwrap() > 40.0, "{weight}");
    }
}
