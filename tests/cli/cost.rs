//! What a cast cost: counts, figures, hashes, and `--fail-on`.

use super::quantize::model;
use crate::common::{Bench, npy_f32, safetensors};
use serde_json::Value;
use sha2::{Digest, Sha256};

fn report(bench: &Bench, line: &str) -> Value {
    let outcome = bench.run(line);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn nan_and_inf_that_were_there_before_are_counted_apart() {
    let bench = Bench::new();
    let values = [f32::NAN, -f32::NAN, f32::INFINITY, 1e9, -1e9, 1e-9, 1.0, 1.1];
    bench.write("x.npy", &npy_f32(&values));
    let counts = report(&bench, "cast x.npy --to f16 --json -q")["counts"].clone();
    let wanted = serde_json::json!({
        "saturated": 0, "infinite": 2, "nan": 0, "nan_lost": 0, "flushed": 1, "wrapped": 0, "inexact": 4, "input_nan": 2,
        "input_infinite": 1,
    });
    assert_eq!(counts, wanted);
    let told = bench.run("cast x.npy --to f16 -f").stderr;
    let wanted = "\n  2 NaN and 1 Inf came with the input\n    x: 2 NaN, first at [0]; 1 Inf, first at [2]\n";
    assert!(told.ends_with(wanted), "{told}");
}

#[test]
fn nan_that_becomes_zero_has_a_count_of_its_own() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[f32::NAN, -f32::NAN, f32::INFINITY, 1e9, 0.25, 1.0]));
    for (to, saturated, flushed) in [("int8 --out-of-range saturate", 2, 1), ("e2m1", 2, 1), ("e3m2", 2, 0)] {
        let counts = report(&bench, &format!("cast x.npy --to {to} --json -q -f -o out.npy"))["counts"].clone();
        let found = ["nan_lost", "nan", "saturated", "flushed", "input_nan"].map(|name| counts[name].as_u64().unwrap());
        assert_eq!(found, [2, 0, saturated, flushed, 2], "{to}");
        let told = bench.run(&format!("cast x.npy --to {to} -f -o out.npy")).stderr;
        assert!(told.contains("\n  2 of 6 values were NaN and became zero (33.33%)\n"), "{told}");
    }
    let counts = report(&bench, "cast x.npy --to int8 --json -q -f -o out.npy")["counts"].clone();
    assert_eq!((&counts["nan_lost"], &counts["wrapped"]), (&0.into(), &4.into()));
}

#[test]
fn a_bool_byte_of_two_becomes_one_in_every_container_and_the_summary_says_so() {
    let bench = Bench::new();
    bench.write("b.npy", &crate::common::npy("'|b1'", "(3,)", &[0, 1, 2]));
    let header = r#"{"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
    bench.write("b.safetensors", &safetensors(header, &[0, 1, 2]));
    for input in ["b.npy", "b.safetensors"] {
        bench.run(&format!("cast {input} --to bool -f -o out.npy")).says(0, "", "neither");
        assert!(bench.read("out.npy").ends_with(&[0, 1, 1]), "{input}");
    }
    // Of other types it is simply true.
    assert_eq!(report(&bench, "cast b.npy --to int8 --json -q")["counts"]["inexact"], 0);
}

#[test]
fn figures_are_those_of_the_values_for_any_number_of_threads() {
    let bench = Bench::new();
    let values: Vec<f32> = (0..3_000_000_u32).map(|index| (index as f32 * 0.37).sin() * 3.0).collect();
    bench.write("x.npy", &npy_f32(&values));
    let tensor = |threads: u32, to: &str| {
        let line = format!("cast x.npy --to {to} --stats --json -q -f -o out.npy -j{threads}");
        report(&bench, &line)["tensors"][0]["figures"].clone()
    };
    let figures = tensor(1, "bf16");
    for threads in [2, 3, 7] {
        assert_eq!(tensor(threads, "bf16"), figures, "{threads}");
    }
    let cast = |value: f32| f64::from(half::bf16::from_f32(value).to_f32());
    let errors: Vec<f64> = values.iter().map(|&value| cast(value) - f64::from(value)).collect();
    let largest = errors.iter().fold(0.0_f64, |largest, error| largest.max(error.abs()));
    assert_eq!(figures["max_abs_error"].as_f64(), Some(largest));
    let first = errors.iter().position(|error| error.abs() >= largest).unwrap();
    assert_eq!(figures["max_abs_error_at"].as_u64(), Some(first as u64));
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        values.iter().zip(&errors).map(|(&value, &error)| of(f64::from(value), error)).sum()
    };
    let close = |name: &str, wanted: f64| {
        let found = figures[name].as_f64().unwrap();
        assert!((found - wanted).abs() <= 1e-9 * wanted.abs().max(1e-6), "{name}: {found}, not {wanted}");
    };
    let (signal, noise) = (sum(&|x, _| x * x), sum(&|_, error| error * error));
    close("mean_error", sum(&|_, error| error) / values.len() as f64);
    close("sqnr_db", 10.0 * (signal / noise).log10());
    let (product, squares) = (sum(&|x, error| x * (x + error)), sum(&|x, error| (x + error) * (x + error)));
    close("cosine", product / (signal.sqrt() * squares.sqrt()));
    // Nothing lost is no noise, and says so.
    let exact = tensor(2, "f64");
    assert_eq!(
        (&exact["sqnr_db"], &exact["max_abs_error"], &exact["compared"], &exact["is_exact"]),
        (&"Infinity".into(), &0.0.into(), &3_000_000.into(), &true.into())
    );
    let told = bench.run("cast x.npy --to f64 --stats -f -o out.npy").stderr;
    assert!(told.contains("SQNR") && told.contains("exact") && !told.contains(" at "), "{told}");
}

#[test]
fn only_a_tensor_of_which_no_value_changed_is_exact() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0, f32::INFINITY, 0.5]));
    let figures =
        |line: &str| report(&bench, &format!("cast {line} --stats --json -q -f"))["tensors"][0]["figures"].clone();
    let saturated = figures("x.npy --to e4m3");
    let found = ["is_exact", "sqnr_db", "max_abs_error"].map(|name| saturated[name].clone());
    assert_eq!(found, [Value::from(false), "Infinity".into(), 0.0.into()]);
    let told = bench.run("cast x.npy --to e4m3 --stats -f").stderr;
    assert!(told.contains("\n  x  no noise  0  ") && !told.contains("exact"), "{told}");
    assert_eq!(figures("x.npy --to f64")["is_exact"], true);
    // float64 rounds these integers, and is no judge of them.
    let integers: [i64; 2] = [(1 << 53) + 1, 5];
    bench.write("i.npy", &crate::common::npy("'<i8'", "(2,)", &integers.map(i64::to_le_bytes).concat()));
    let rounded = figures("i.npy --to f64");
    assert_eq!((&rounded["is_exact"], &rounded["max_abs_error"]), (&false.into(), &1.0.into()));
    assert_eq!(figures("i.npy --to string -o i.pb"), Value::Null);
    // No signal is no figure, which is not the same as no noise.
    bench.write("z.npy", &crate::common::npy("'<i8'", "(2,)", &[0; 16]));
    assert_eq!(figures("z.npy --to e8m0")["sqnr_db"], Value::Null);
}

#[test]
fn numbers_whose_squares_leave_float64_have_right_figures() {
    let bench = Bench::new();
    for (values, cosine) in [([1e160, 1e160], 1.0), ([1e-200, 3e-200], 4.0 / 20_f64.sqrt())] {
        bench.write("x.npy", &crate::common::npy("'<f8'", "(2,)", &values.map(f64::to_le_bytes).concat()));
        let figures = report(&bench, "cast x.npy --to bool --stats --json -q -f")["tensors"][0]["figures"].clone();
        assert!((figures["cosine"].as_f64().unwrap() - cosine).abs() < 1e-15, "{figures}");
    }
    bench.write("x.npy", &crate::common::npy("'<f8'", "(1,)", &1e-320_f64.to_le_bytes()));
    let figures = report(&bench, "cast x.npy --to bool --stats --json -q -f")["tensors"][0]["figures"].clone();
    assert_eq!(figures["max_rel_error"], "Infinity");
    let told = bench.run("cast x.npy --to bool --stats -f").stderr;
    assert!(told.contains("inf at [0]"), "{told}");
}

#[test]
fn a_column_major_or_compressed_source_has_its_figures_too() {
    for (source, name) in [("fortran_f32.npy", "x.npy"), ("corpus/npz/deflated.npz", "x.npz")] {
        let bench = Bench::with(source, name);
        let tensors = |out: &str| {
            let line = format!("cast {name} --to e4m3 --all --stats --json -q -f -o {out}");
            report(&bench, &line)["tensors"].as_array().unwrap().clone()
        };
        // Transposed or not, the element is named by its row and column.
        for (straight, rows) in tensors("out.npz").iter().zip(tensors("out.safetensors")) {
            assert_eq!(straight["figures"]["max_abs_error_at"], rows["figures"]["max_abs_error_at"], "{source}");
            assert!(straight["figures"]["compared"].as_u64().is_some(), "{source}");
        }
    }
}

#[test]
fn what_fail_on_refuses_publishes_nothing_and_names_the_first_element() {
    let bench = Bench::new();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}"#;
    let values: [f32; 8] = [1.0, 2.0, 0.5, 1e-9, 1000.0, f32::INFINITY, 0.1, 70000.0];
    bench.write("m.safetensors", &safetensors(header, &values.map(f32::to_le_bytes).concat()));
    let cases = [
        ("e4m3", "saturated", "448"),
        ("e4m3", "flushed", "flushed"),
        ("e4m3", "wrapped,inexact", "changed"),
        ("e4m3 --no-saturate", "nan", "--saturate"),
        ("e5m2 --no-saturate", "infinite", "--saturate"),
        ("f16", "infinite", "infinite"),
        ("int8", "wrapped", "--out-of-range saturate"),
    ];
    for (to, loss, what) in cases {
        for threads in ["-j1", "-j3"] {
            let outcome =
                bench.run(&format!("cast m.safetensors --to {to} --fail-on {loss} -o out.safetensors {threads}"));
            outcome.says(3, "", what);
        }
    }
    bench.run("cast m.safetensors --to bf16 --fail-on input-nan,input-infinite").says(3, "", "--rule");
    assert_eq!(bench.files(), ["m.safetensors"]);
    bench.run("cast m.safetensors --to e4m3 --fail-on nan,wrapped --fail-on infinite -q").expect(0, "", "");
    bench.run("cast m.safetensors --to e4m3 --fail-on saturated --rule b.weight=keep -f -q").expect(0, "", "");
    assert_eq!(bench.run("cast m.safetensors --to e4m3 --fail-on lost").code, Some(2));
    // The way out works when it is pasted, whatever the name.
    let header = r#"{"a[0] it's":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    bench.write("odd.safetensors", &safetensors(header, &[1e9_f32, 1.0].map(f32::to_le_bytes).concat()));
    bench.run("cast odd.safetensors --to f16 --fail-on infinite").check_message("--rule");
    let rule =
        ["cast", "odd.safetensors", "--to", "f16", "--fail-on", "infinite", "--rule", "a[[]0[]] it's=keep", "-q"];
    bench.run_args(&rule).expect(0, "", "");
    // Of text the first element too, whatever it lost.
    bench.write(
        "t.npy",
        &crate::common::npy(
            "'<U3'",
            "(2,)",
            &["0.5", "999"]
                .map(|text| text.chars().flat_map(|c| (c as u32).to_le_bytes()).collect::<Vec<_>>())
                .concat(),
        ),
    );
    bench.run("cast t.npy --to int8 --fail-on wrapped,flushed").says(3, "", "0.5");
    // Of text too, and before a shard of a folder is published.
    bench.run("cast m.safetensors --to string -o t.npz -q").expect(0, "", "");
    bench.run("cast t.npz --to f16 --all --fail-on infinite -o t.safetensors").says(3, "", "70000");
    let outcome = bench.run("cast m.safetensors --to f16 --fail-on infinite --max-shard-size 8B -o folder");
    assert!(outcome.code == Some(3) && !bench.path("folder").exists(), "{outcome:?}");
}

#[test]
fn fail_on_lists_every_tensor_that_fails_and_json_has_the_whole_report() {
    let bench = Bench::new();
    let tensor =
        |name: &str, at: u32| format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{at},{}]}}"#, at + 8);
    let header = format!("{{{},{},{}}}", tensor("a", 0), tensor("b", 8), tensor("c", 16));
    let values: [f32; 6] = [1.0, f32::NAN, 1.0, 1.0, 1e9, -1e9];
    bench.write("m.safetensors", &safetensors(&header, &values.map(f32::to_le_bytes).concat()));
    bench.run("cast m.safetensors --to f32 --max-shard-size 8B -o shards -q").expect(0, "", "");
    for (input, how) in
        [("m.safetensors", "-o out.safetensors"), ("m.safetensors", "-o out --max-shard-size 8B"), ("shards", "-o out")]
    {
        let before = bench.files();
        let outcome = bench.run(&format!("cast {input} --to f16 --fail-on infinite,input-nan --json --hash {how}"));
        assert_eq!(outcome.code, Some(3), "{how}");
        outcome.check_message("--rule 'a=keep' --rule 'c=keep'");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!((&report["published"], &report["dry_run"]), (&false.into(), &false.into()));
        assert_eq!(report["counts"]["infinite"], 2);
        let firsts: Vec<&Value> =
            report["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["first_at"]).collect();
        let wanted = [serde_json::json!({ "input_nan": 1 }), Value::Null, serde_json::json!({ "infinite": 0 })];
        assert_eq!(firsts, wanted.each_ref());
        assert_eq!(bench.files(), before, "{how}");
    }
    // Shards that were written before stay, for those who go on.
    let line = "cast shards --to f16 --fail-on infinite -o parts -q --part";
    bench.run(&format!("{line} 1/3")).expect(0, "", "");
    assert_eq!(bench.run(&format!("{line} 3/3")).code, Some(3));
    bench.run(&format!("{line} 2/3")).expect(0, "", "");
    bench.run("cast --finish parts").says(1, "", "shards");
    // NaN that is lost counts as NaN.
    for to in ["int8 --out-of-range saturate", "e2m1"] {
        bench.run(&format!("cast m.safetensors --to {to} --fail-on nan")).check_message("NaN");
    }
    // What goes into a pipe cannot be taken back.
    let outcome = bench.run("cast m.safetensors --to f16 --fail-on infinite -o /dev/stdout");
    assert!(outcome.code == Some(1) && outcome.stdout.is_empty(), "{outcome:?}");
}

#[test]
fn nan_and_inf_of_the_input_are_shown_with_tensor_and_position() {
    let bench = Bench::new();
    let mut values = vec![1.0_f32; 400_000];
    (values[123_456], values[123_457], values[399_999]) = (f32::NAN, f32::NEG_INFINITY, f32::NAN);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.write("x.npy", &crate::common::npy("'<f4'", "(1000, 400)", &bytes));
    for (to, threads) in [("f16", 1), ("f16", 3), ("e4m3", 2), ("int8", 2), ("f64", 2)] {
        let line = format!("cast x.npy --to {to} -f -o out.npy -j{threads}");
        let tensor = report(&bench, &format!("{line} --json -q"))["tensors"][0].clone();
        let (places, indices) = (&tensor["first_at"], &tensor["first_index"]);
        assert_eq!(*places, serde_json::json!({ "input_nan": 123_456, "input_infinite": 123_457 }), "{line}");
        assert_eq!(*indices, serde_json::json!({ "input_nan": [308, 256], "input_infinite": [308, 257] }), "{line}");
        let told = bench.run(&line).stderr;
        let wanted = "\n  2 NaN and 1 Inf came with the input\n    \
                      x: 2 NaN, first at [308, 256]; 1 Inf, first at [308, 257]\n";
        assert!(told.contains(wanted), "{told}");
    }
    // Compressed, as text, and from text; column-major by its rows.
    bench.run("cast x.npy --to string -o s.pb -q").expect(0, "", "");
    for line in ["x.npy --to string -o out.pb", "s.pb --to f32 -o out.npy"] {
        let firsts = report(&bench, &format!("cast {line} -f --json -q"))["tensors"][0]["first_at"].clone();
        assert_eq!(firsts, serde_json::json!({ "input_nan": 123_456, "input_infinite": 123_457 }), "{line}");
    }
    let columns = [1.0, f32::NAN, f32::INFINITY, 1.0, 1.0, 1.0].map(f32::to_le_bytes).concat();
    let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&118_u16.to_le_bytes());
    file.extend_from_slice(format!("{header:<117}\n").as_bytes());
    file.extend_from_slice(&columns);
    bench.write("c.npy", &file);
    for output in ["out.npy", "out.safetensors"] {
        let told = bench.run(&format!("cast c.npy --to f16 -f -o {output}")).stderr;
        assert!(told.contains("1 NaN, first at [1, 0]; 1 Inf, first at [0, 1]\n"), "{told}");
    }
}

#[test]
fn hashes_are_those_of_the_bytes_in_both_files() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let told = report(&bench, "cast m.safetensors --to f16 -o out.safetensors --hash --json -q");
    let hashes = |file: &str| {
        let file = bench.read(file);
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let hash =
            |data: &[u8]| Sha256::digest(data).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        tensors
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, hash(view.data())))
            .collect::<std::collections::HashMap<_, _>>()
    };
    let (before, after) = (hashes("m.safetensors"), hashes("out.safetensors"));
    for tensor in told["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        assert_eq!(
            (&tensor["sha256_in"], &tensor["sha256_out"]),
            (&before[name].clone().into(), &after[name].clone().into())
        );
    }
    // A compressed member is hashed as what it holds.
    let bench = Bench::with("corpus/npz/deflated.npz", "d.npz");
    let told = report(&bench, "cast d.npz --rule *=keep -o s.npz --hash --json -q");
    for tensor in told["tensors"].as_array().unwrap() {
        assert_eq!(tensor["sha256_in"], tensor["sha256_out"], "{tensor}");
    }
    bench.run("cast d.npz --to f16 -o /dev/null --hash --json -q").says(1, "", "cannot");
    assert_eq!(bench.run("cast d.npz --to f16 --hash").code, Some(2));
}

#[test]
fn a_report_is_written_even_if_the_output_is_refused() {
    let bench = Bench::new();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[1.0_f32, 1e9].map(f32::to_le_bytes).concat()));
    bench.run("cast m.safetensors --to f16 -o out.safetensors -q --report r.json").expect(0, "", "");
    let published = || serde_json::from_slice::<Value>(&bench.read("r.json")).unwrap()["published"].clone();
    assert_eq!(published(), true);
    for output in ["-o out.safetensors", "-o folder --max-shard-size 8B"] {
        let line = format!("cast m.safetensors --to f16 --fail-on infinite {output} -f -q --report");
        for report in ["r.json", "r.html"] {
            bench.run(&format!("{line} {report}")).says(3, "", "written");
        }
        assert_eq!(published(), false, "{output}");
        assert!(String::from_utf8(bench.read("r.html")).unwrap().contains("<small>no output was written</small>"));
        std::fs::remove_file(bench.path("r.json")).unwrap();
    }
    bench.write("m.safetensors", &model(&[("a.q_proj.weight", &[128, 256])]));
    let outcome = bench.run("quantize m.safetensors --scheme int4 --min-sqnr 200 -o q.safetensors --report r.json");
    assert_eq!((outcome.code, published()), (Some(3), false.into()), "{outcome:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_has_no_room_says_that_the_output_is_complete() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    std::os::unix::fs::symlink("/dev/full", bench.path("r.json")).unwrap();
    bench.run("cast x.npy --to f16 -o y.npy --report r.json -q").says(1, "", "--report");
    bench.run("diff x.npy y.npy --tolerance 0.01 -q").expect(0, "", "");
    let outcome = bench.run("cast x.npy --to e4m3 --fail-on inexact -o z.npy --report r.json -q -f");
    outcome.says(3, "", "cannot");
    assert!(!outcome.stderr.contains("the output is complete"), "{outcome:?}");
}

#[test]
fn a_report_is_written_as_a_page_or_as_json() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let told = report(&bench, "cast m.safetensors --to e4m3 --report r.json --hash --json -q");
    let written: Value = serde_json::from_slice(&bench.read("r.json")).unwrap();
    assert_eq!(written, told);
    assert!(told["tensors"].as_array().unwrap().iter().any(|tensor| tensor["figures"]["sqnr_db"].is_number()));
    bench.run("cast m.safetensors --to e4m3 --report r.html -o page.safetensors -q").expect(0, "", "");
    let page = String::from_utf8(bench.read("r.html")).unwrap();
    // The noisiest tensors with their exponents before and after.
    for text in ["<!doctype html>", "down_proj", "<figure id=\"spread-3\"", "float8e4m3fn"] {
        assert!(page.to_lowercase().contains(text), "{text}");
    }
    assert!(!page.contains("http://") && !page.contains("https://"));
    // What is refused is refused before any work.
    for (path, message) in
        [("r.txt", "JSON"), ("r.html", "already"), ("no/r.html", "directory"), ("new.safetensors", "JSON")]
    {
        let outcome = bench.run(&format!("cast m.safetensors --to f16 -o new.safetensors --report {path}"));
        outcome.check_message(message);
        assert!(outcome.code != Some(0), "{outcome:?}");
        assert!(!bench.path("new.safetensors").exists());
    }
    // It replaces nothing of the input, nor the output.
    let bench = Bench::with("model.safetensors", "m.json");
    let before = bench.read("m.json");
    for report in ["m.json", "m.float16.json", "./m.float16.json"] {
        let outcome = bench.run(&format!("cast m.json --to f16 --force --report {report}"));
        assert!(outcome.code == Some(1) && outcome.stdout.is_empty(), "{report}: {outcome:?}");
    }
    assert_eq!((bench.files(), bench.read("m.json")), (vec!["m.json".to_owned()], before));
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    let refused =
        [("llama/config.json", "is a file of the input"), ("out/r.json", "the report is, or is in, the output")];
    for (report, message) in refused {
        bench.run(&format!("cast llama --to f16 -o out --force --report {report}")).says(1, "", message);
    }
    assert!(!bench.path("out").exists());
    bench.run("cast llama --to e5m2 --report r.html -q").expect(0, "", "");
    assert!(String::from_utf8(bench.read("r.html")).unwrap().contains("<figure"));
}
