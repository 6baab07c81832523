//! What a cast cost: counts, figures, hashes, and `--fail-on`.

mod common;

use common::{Bench, npy_f32, safetensors};
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
    assert!(told.ends_with("\n  2 NaN and 1 Inf came with the input\n"), "{told}");
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
    bench.write("b.npy", &common::npy("'|b1'", "(3,)", &[0, 1, 2]));
    let header = r#"{"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}"#;
    bench.write("b.safetensors", &safetensors(header, &[0, 1, 2]));
    for input in ["b.npy", "b.safetensors"] {
        let outcome = bench.run(&format!("cast {input} --to bool -f -o out.npy"));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
        assert!(outcome.stderr.ends_with("\n  1 byte of bools was neither 0 nor 1 and became 1\n"), "{outcome:?}");
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
    assert!(told.contains("SQNR") && told.contains("exact") && told.contains("0 at [0]"), "{told}");
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
    assert!(told.contains("  x  no noise  0 at [0]") && !told.contains("exact"), "{told}");
    assert_eq!(figures("x.npy --to f64")["is_exact"], true);
    // float64 rounds these integers, and is no judge of them.
    let integers: [i64; 2] = [(1 << 53) + 1, 5];
    bench.write("i.npy", &common::npy("'<i8'", "(2,)", &integers.map(i64::to_le_bytes).concat()));
    let rounded = figures("i.npy --to f64");
    assert_eq!((&rounded["is_exact"], &rounded["max_abs_error"]), (&false.into(), &1.0.into()));
    assert_eq!(figures("i.npy --to string -o i.pb"), Value::Null);
    // No signal is no figure, which is not the same as no noise.
    bench.write("z.npy", &common::npy("'<i8'", "(2,)", &[0; 16]));
    assert_eq!(figures("z.npy --to e8m0")["sqnr_db"], Value::Null);
}

#[test]
fn numbers_whose_squares_leave_float64_have_right_figures() {
    let bench = Bench::new();
    for (values, cosine) in [([1e160, 1e160], 1.0), ([1e-200, 3e-200], 4.0 / 20_f64.sqrt())] {
        bench.write("x.npy", &common::npy("'<f8'", "(2,)", &values.map(f64::to_le_bytes).concat()));
        let figures = report(&bench, "cast x.npy --to bool --stats --json -q -f")["tensors"][0]["figures"].clone();
        assert!((figures["cosine"].as_f64().unwrap() - cosine).abs() < 1e-15, "{figures}");
    }
    bench.write("x.npy", &common::npy("'<f8'", "(1,)", &1e-320_f64.to_le_bytes()));
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
fn what_fail_on_forbids_publishes_nothing_and_names_the_first_element() {
    let bench = Bench::new();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}"#;
    let values: [f32; 8] = [1.0, 2.0, 0.5, 1e-9, 1000.0, f32::INFINITY, 0.1, 70000.0];
    bench.write("m.safetensors", &safetensors(header, &values.map(f32::to_le_bytes).concat()));
    let keep = "leave the tensor as it is with --rule 'b.weight=keep', or choose a wider type\n";
    let clamp = "clamp such values with --saturate, or ";
    let cases = [
        ("e4m3", "saturated", "element [0, 2]: 1000 saturated (448 in float8e4m3fn)", ""),
        ("e4m3", "flushed", "element [0, 1]: 0.000000001 flushed to zero (0 in float8e4m3fn)", ""),
        ("e4m3", "wrapped,inexact", "element [0, 1]: 0.000000001 rounded or otherwise changed (0 in float8e4m3fn)", ""),
        ("e4m3 --no-saturate", "nan", "element [0, 2]: 1000 became NaN (NaN in float8e4m3fn)", clamp),
        ("e5m2 --no-saturate", "infinite", "element [1, 2]: 70000 became infinite (INF in float8e5m2)", clamp),
        ("f16", "infinite", "element [1, 2]: 70000 became infinite (INF in float16)", ""),
        (
            "int8",
            "wrapped",
            "element [0, 2]: 1000 wrapped (-24 in int8)",
            "clamp such values with --out-of-range saturate, or ",
        ),
    ];
    for (to, loss, what, remedy) in cases {
        for threads in ["-j1", "-j3"] {
            let outcome =
                bench.run(&format!("cast m.safetensors --to {to} --fail-on {loss} -o out.safetensors {threads}"));
            let stderr = format!("tcast: error: m.safetensors: tensor 'b.weight': {what}\n  {remedy}{keep}");
            outcome.expect(3, "", &stderr);
        }
    }
    assert_eq!(bench.files(), ["m.safetensors"]);
    bench.run("cast m.safetensors --to e4m3 --fail-on nan,wrapped --fail-on infinite -q").expect(0, "", "");
    bench.run("cast m.safetensors --to e4m3 --fail-on saturated --rule b.weight=keep -f -q").expect(0, "", "");
    assert_eq!(bench.run("cast m.safetensors --to e4m3 --fail-on lost").code, Some(2));
    // The way out works when it is pasted, whatever the name.
    let header = r#"{"a[0] it's":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    bench.write("odd.safetensors", &safetensors(header, &[1e9_f32, 1.0].map(f32::to_le_bytes).concat()));
    let outcome = bench.run("cast odd.safetensors --to f16 --fail-on infinite");
    assert!(outcome.stderr.contains(r"with --rule 'a[[]0[]] it'\''s=keep', or"), "{outcome:?}");
    let rule =
        ["cast", "odd.safetensors", "--to", "f16", "--fail-on", "infinite", "--rule", "a[[]0[]] it's=keep", "-q"];
    bench.run_args(&rule).expect(0, "", "");
    // Of text the first element too, whatever it lost.
    bench.write(
        "t.npy",
        &common::npy(
            "'<U3'",
            "(2,)",
            &["0.5", "999"]
                .map(|text| text.chars().flat_map(|c| (c as u32).to_le_bytes()).collect::<Vec<_>>())
                .concat(),
        ),
    );
    let outcome = bench.run("cast t.npy --to int8 --fail-on wrapped,flushed");
    assert!(outcome.code == Some(3) && outcome.stderr.contains("element [0]: '0.5' flushed to zero"), "{outcome:?}");
    // Of text too, and before a shard of a folder is published.
    bench.run("cast m.safetensors --to string -o t.npz -q").expect(0, "", "");
    let outcome = bench.run("cast t.npz --to f16 --all --fail-on infinite -o t.safetensors");
    assert!(outcome.code == Some(3) && outcome.stderr.contains("'70000' became infinite (in float16)"), "{outcome:?}");
    let outcome = bench.run("cast m.safetensors --to f16 --fail-on infinite --max-shard-size 8B -o folder");
    assert!(outcome.code == Some(3) && !bench.path("folder").exists(), "{outcome:?}");
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
    let outcome = bench.run("cast d.npz --to f16 -o /dev/null --hash --json -q");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("cannot be read again"), "{outcome:?}");
    assert_eq!(bench.run("cast d.npz --to f16 --hash").code, Some(2));
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
    for (path, message) in [
        ("r.txt", "r.txt: a report is a page or JSON\n  name it something.html or something.json"),
        ("r.html", "r.html: the output exists already"),
        ("no/r.html", "no/r.html: the output's directory does not exist"),
        ("new.safetensors", "new.safetensors: a report is a page or JSON"),
    ] {
        let outcome = bench.run(&format!("cast m.safetensors --to f16 -o new.safetensors --report {path}"));
        assert!(outcome.code != Some(0) && outcome.stderr.contains(message), "{outcome:?}");
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
        [("llama/config.json", "is a file of the input"), ("out/r.json", "the report is, or lies in, the output")];
    for (report, message) in refused {
        let outcome = bench.run(&format!("cast llama --to f16 -o out --force --report {report}"));
        assert!(outcome.code == Some(1) && outcome.stderr.contains(message), "{outcome:?}");
    }
    assert!(!bench.path("out").exists());
    bench.run("cast llama --to e5m2 --report r.html -q").expect(0, "", "");
    assert!(String::from_utf8(bench.read("r.html")).unwrap().contains("<figure"));
}
