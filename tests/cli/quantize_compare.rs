//! `tcast quantize --compare`: several schemes, measured in one reading.

use super::quantize::bench_with;
use super::quantize_choices::expect_refused;
use crate::common::Bench;
use serde_json::Value;

/// The JSON document of a comparison.
fn compared(bench: &Bench, line: &str) -> Vec<Value> {
    let outcome = bench.run(&format!("quantize {line} --json -q"));
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}: {outcome:?}");
    let document: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&document["schema"], &document["operator"]), (&1.into(), &"quantize".into()));
    document["compared"].as_array().unwrap().clone()
}

/// Asserts that a comparison has the figures of the runs that it stands for, and that it writes nothing.
#[track_caller]
fn expect_figures(bench: &Bench, model: &str, schemes: &[&str], options: &str) {
    let before = bench.files();
    let found = compared(bench, &format!("{model} --compare {} {options}", schemes.join(",")));
    assert_eq!(bench.files(), before, "nothing is written");
    assert_eq!(found, compared(bench, &format!("{model} --compare {} {options} -j1", schemes.join(","))));
    assert_eq!(found.len(), schemes.len());
    for (scheme, found) in schemes.iter().zip(&found) {
        let layout = found["layout"].as_str().unwrap();
        let layout = if options.contains("--layout") { String::new() } else { format!("--layout {layout}") };
        let line = format!("quantize {model} --scheme {scheme} {layout} {options} -o alone -f --json -q");
        let outcome = bench.run(&line);
        assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
        let alone: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&found["scheme"], &found["bytes"]), (&Value::from(*scheme), &alone["bytes_out"]), "{line}");
        let weights = |tensors: &Value| -> Vec<[Value; 5]> {
            let fields = ["name", "quantized", "bytes_in", "bytes_out", "kept"];
            let tensors = tensors.as_array().unwrap().iter();
            tensors.map(|tensor| fields.map(|field| tensor[field].clone())).collect()
        };
        assert_eq!(weights(&found["tensors"]), weights(&alone["tensors"]), "{line}");
        let quantized: Vec<&Value> = alone["tensors"].as_array().unwrap().iter().map(|it| &it["quantized"]).collect();
        let ratios = || quantized.iter().filter_map(|weight| weight["sqnr_db"].as_f64());
        let lowest = ratios().min_by(f64::total_cmp);
        assert_eq!(found["lowest_sqnr_db"].as_f64(), lowest, "{line}");
        let mean = (ratios().count() > 0).then(|| ratios().sum::<f64>() / ratios().count() as f64);
        assert_eq!(found["mean_sqnr_db"].as_f64(), mean, "{line}");
        let errors: Vec<f64> = quantized.iter().filter_map(|it| it["relative_squared_error"].as_f64()).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        assert_eq!(
            (found["mean_relative_squared_error"].as_f64(), found["weights"].as_u64()),
            (Some(mean), Some(errors.len() as u64))
        );
    }
}

#[test]
fn the_figures_are_those_of_a_run_for_each_scheme() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    expect_figures(&bench, "m", &["nvfp4", "mxfp4", "int4", "int4-asym"], "--search mse");
    expect_figures(&bench, "m", &["fp8-block", "fp8-tensor", "fp8", "int8", "nvfp4", "mxfp4"], "");
    expect_figures(&bench, "m", &["affine4", "affine8", "mxfp8"], "--layout mlx --rule *.o_proj.*=affine6");
    expect_figures(&bench, "m", &["int2", "int3-asym", "int5", "int6", "int7-asym", "int8-asym"], "--group-size 32");
    expect_figures(&bench, "m", &["int8", "int4", "w4a8", "w6a8"], "--layout comfyui --rotation 64");
    expect_figures(&bench, "m", &["int8", "int4", "w6a8"], "--layout comfyui --rotation 16 --arithmetic kitchen");
    expect_figures(&bench, "m", &["nvfp4", "fp8"], "--layout modelopt --arithmetic exact --exclude *.1.*");
}

#[test]
fn codes_of_a_quantized_model_are_moved_where_a_scheme_can_hold_them() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    expect_figures(&bench, "q", &["fp8-block", "fp8", "nvfp4"], "");
    let found = compared(&bench, "q --compare fp8-block,nvfp4 --layout compressed-tensors");
    assert_eq!((&found[0]["codes"]["exact"], &found[1]["codes"]["requantized"]), (&14.into(), &14.into()));
    assert_eq!((&found[0]["lowest_sqnr_db"], &found[0]["worst"]), (&Value::Null, &Value::Null));
    let outcome = bench.run("quantize q --compare fp8-block,nvfp4 -q");
    let rows: Vec<&str> = outcome.stdout.lines().collect();
    assert!(
        rows[0].contains("  codes  ") && rows[1].contains("  exact  ") && rows[1].contains("  14 exact"),
        "{rows:?}"
    );
    assert!(rows[2].contains("  14 requantized  "), "{rows:?}");
}

#[test]
fn types_and_mixes_of_gguf_files_are_compared_too() {
    let bench = Bench::with("gguf/tiny.gguf", "t.gguf");
    let alone = |scheme: &str| {
        bench.run(&format!("quantize t.gguf --scheme {scheme} --layout gguf -o a-{scheme}.gguf --json -q"))
    };
    let found = compared(&bench, "t.gguf --compare q4_k_m,q4_0,mxfp4 --layout gguf");
    for found in found {
        let outcome = alone(found["scheme"].as_str().unwrap());
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let alone: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&found["layout"], &found["bytes"]), (&"gguf".into(), &alone["bytes_out"]));
        let weights = |tensors: &Value| -> Vec<Value> {
            tensors.as_array().unwrap().iter().map(|tensor| tensor["quantized"].clone()).collect()
        };
        assert_eq!(weights(&found["tensors"]), weights(&alone["tensors"]));
    }
    // A language model of Hugging Face has other names and orders of rows in a GGUF.
    bench.add_checkpoint("../gguf/tiny-llama", "m");
    let found = compared(&bench, "m --compare q8_0,fp8 --metadata-from t.gguf");
    assert_eq!((&found[0]["layout"], &found[1]["layout"]), (&"gguf".into(), &"compressed-tensors".into()));
    assert!(found.iter().all(|scheme| scheme["lowest_sqnr_db"].as_f64().unwrap() > 20.0), "{found:?}");
}

#[test]
fn the_table_has_a_line_for_each_scheme_and_names_the_worst_weight() {
    let bench = bench_with(&[("a.o_proj.weight", &[16, 96]), ("b.o_proj.weight", &[16, 128])], "{}");
    let outcome = bench.run("quantize m --compare fp8,int4");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rows: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let headings = "scheme layout bits size mean SQNR lowest SQNR squared error unfit worst weight";
    assert_eq!(rows[0].join(" "), headings);
    assert_eq!((rows.len(), rows[1][0], rows[2][0]), (3, "fp8", "int4"));
    // A weight of 96 columns has no groups of 128.
    let unfit = |row: &[&str]| (row[row.len() - 2].to_owned(), row[row.len() - 1].to_owned());
    assert_eq!(unfit(&rows[2]), ("1".to_owned(), "b.o_proj.weight".to_owned()));
    assert_eq!(unfit(&rows[1]).0, "0");
    outcome.check_message("KiB");
}

#[test]
fn each_scheme_is_compared_in_the_layout_that_it_would_be_written_in() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let outcome = bench.run("quantize m --compare fp8-block,nvfp4 -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{outcome:?}");
    let layouts: Vec<_> = outcome.stdout.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(layouts, ["layout", "huggingface", "compressed-tensors"]);
    let found = compared(&bench, "m --compare fp8-block,nvfp4");
    for (scheme, found) in ["fp8-block", "nvfp4"].iter().zip(&found) {
        let outcome = bench.run(&format!("quantize m --scheme {scheme} -o {scheme} --json -q"));
        let written: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((outcome.code, &written["bytes_out"]), (Some(0), &found["bytes"]), "{scheme}");
    }
}

#[test]
fn a_report_is_a_page_or_json() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --compare nvfp4,fp8 --report r.json -q").expect(0, &table(&bench), "");
    let report: Value = serde_json::from_slice(&bench.read("r.json")).unwrap();
    assert_eq!(report["compared"].as_array().unwrap().len(), 2);
    bench.run("quantize m --compare nvfp4,fp8 --report r.html -q").expect(0, &table(&bench), "");
    let page = String::from_utf8(bench.read("r.html")).unwrap();
    for part in [
        "<th scope=\"row\">nvfp4</th>",
        "<th scope=\"row\">fp8</th>",
        ">20.53<",
        "data-series=\"[&quot;nvfp4&quot;,&quot;fp8&quot;]\"",
    ] {
        assert!(page.contains(part), "{part}");
    }
    bench.run("quantize m --compare nvfp4,fp8 --report r.html").says(4, "", "--force");
}

fn table(bench: &Bench) -> String {
    bench.run("quantize m --compare nvfp4,fp8 -q").stdout
}

#[test]
fn options_about_an_output_and_schemes_without_codes_are_refused() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let why = "has no effect: --compare writes no model";
    for option in
        ["--dry-run", "--force", "--resume", "--hash --json", "--min-sqnr 20", "--fail-on clipped", "--part 1/2"]
    {
        bench.run(&format!("quantize m --compare fp8,int8 {option}")).says(2, "", "--compare");
    }
    let refused = |line: &str, word: &str| expect_refused(&bench, line, 2, word);
    refused("quantize m --compare fp8,int8", &format!("-o {why}"));
    for (line, message) in [
        ("quantize m --compare q8_0,f16 --layout gguf", "--compare: f16 has no codes and scales"),
        ("quantize m --compare fp8,int8 --group-size 32", "--group-size 32 has no effect"),
    ] {
        let outcome = bench.run(line);
        let is_refused = outcome.code == Some(2) && outcome.stderr.contains(message.split(" 32").next().unwrap());
        assert!(is_refused, "{line}: {outcome:?}");
    }
    bench.run("quantize m --compare nvfp4,q8_0 --layout modelopt").says(2, "", "q8_0");
}

#[test]
fn an_error_names_the_scheme() {
    let bench = bench_with(&[("a.o_proj.weight", &[16, 40])], "{}");
    bench.run("quantize m --compare fp8,int4").says(1, "", "quantized");
}
