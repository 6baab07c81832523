//! Rounding of merged values: as mlx-lm rounds them, and up or down at random.

use crate::common::{Bench, fixture, safetensors};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const ROWS: usize = 1024;
const COLUMNS: usize = 1030;
/// Three tenths of the way from 1 to the bfloat16 that follows it.
const VALUE: f32 = 1.0 + 0.3 / 128.0;

/// Writes a base of zeros, in several pieces, and an adapter that makes all of them the same value, four times this value in
/// the first column, but for the first row.
fn write_case(bench: &Bench) {
    let header =
        json!({ "w.weight": { "dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": [0, 4 * ROWS * COLUMNS] } });
    bench.write("m.safetensors", &safetensors(&header.to_string(), &vec![0; 4 * ROWS * COLUMNS]));
    let up = (0..ROWS).map(|row| if row == 0 { 0.0 } else { VALUE });
    let values = up
        .chain((0..COLUMNS).map(|column| if column == 0 { 4.0 } else { 1.0 }))
        .flat_map(f32::to_le_bytes)
        .collect::<Vec<u8>>();
    let header = json!({
        "w.lora_up.weight": { "dtype": "F32", "shape": [ROWS, 1], "data_offsets": [0, 4 * ROWS] },
        "w.lora_down.weight": { "dtype": "F32", "shape": [1, COLUMNS], "data_offsets": [4 * ROWS, 4 * (ROWS + COLUMNS)] }
    });
    bench.write("a.safetensors", &safetensors(&header.to_string(), &values));
}

fn run(bench: &Bench, line: &str) {
    bench.run(&format!("{line} -q --force")).expect(0, "", "");
}

/// The files and hashes are those of mlx-lm 0.32.2, `LoRALinear.fuse`.
#[test]
fn a_base_of_mlx_gets_the_words_that_mlx_lm_fuses() {
    let bench = Bench::new();
    let path = |name: &str| fixture(&format!("lora/mlx-quantized/{name}")).display().to_string();
    let wanted: Value = serde_json::from_str(&std::fs::read_to_string(path("fused.json")).unwrap()).unwrap();
    let hashes = |command: &str, arithmetic: &str| {
        let (base, adapter) = (path("base"), path("adapter"));
        let line = format!("{command} {base} --lora {adapter} {arithmetic} -o out --force --json --hash");
        let report: Value = serde_json::from_str(&bench.run(&line).stdout).unwrap();
        let tensors = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["lora"].is_null());
        let parts = tensors.flat_map(|tensor| match tensor["quantized"]["parts"].as_array() {
            Some(parts) => parts.iter().map(|part| (part["name"].clone(), part["sha256"].clone())).collect(),
            None => vec![(tensor["name"].clone(), tensor["sha256_out"].clone())],
        });
        parts.map(|(name, hash)| (name.as_str().unwrap().to_owned(), hash)).collect::<serde_json::Map<_, _>>()
    };
    for (command, case) in [("quantize --layout mlx", "requantized"), ("dequantize", "dequantized")] {
        let wanted = wanted[case].as_object().unwrap();
        assert_eq!(&hashes(command, ""), wanted, "{case}");
        assert_eq!(&hashes(command, "--arithmetic library"), wanted, "{case}");
        // One rounding gives others, and so does rounding at random.
        for other in ["--arithmetic exact", "--rounding stochastic"] {
            let found = hashes(command, other);
            assert!(found.keys().eq(wanted.keys()) && found != *wanted, "{case} {other}");
        }
    }
}

#[test]
fn each_value_becomes_one_of_its_neighbours_and_their_mean_is_the_value() {
    let bench = Bench::new();
    write_case(&bench);
    run(&bench, "cast m.safetensors --to bf16 --lora a.safetensors --rounding stochastic -o out.safetensors");
    let bytes = bench.read("out.safetensors");
    let codes = bytes[bytes.len() - 2 * ROWS * COLUMNS..].as_chunks().0.iter().map(|code| u16::from_le_bytes(*code));
    let mut ups = Vec::new();
    for (at, code) in codes.enumerate() {
        // Exact values stay: the delta of the first row is 0.
        let scale = if at % COLUMNS == 0 { 0x100 } else { 0 };
        let neighbours: &[u16] = if at < COLUMNS { &[0] } else { &[0x3f80 + scale, 0x3f81 + scale] };
        assert!(neighbours.contains(&code), "{at} {code:x}");
        if at >= COLUMNS {
            ups.push(code & 1 == 1);
        }
    }
    let share = ups.iter().filter(|is_up| **is_up).count() as f64 / ups.len() as f64;
    // Four standard deviations.
    assert!((share - 0.3).abs() < 4.0 * (0.3 * 0.7 / ups.len() as f64).sqrt(), "{share}");
    bench.run(
        "cast m.safetensors --to bf16 --lora a.safetensors --rounding stochastic -o x.safetensors --fail-on inexact",
    ).says(3, "", "otherwise");
    // Neighbours are independent.
    let pairs = ups.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64 / ups.len() as f64;
    assert!((pairs - 0.09).abs() < 0.002, "{pairs}");
}

#[test]
fn the_bytes_depend_on_the_seed_and_on_nothing_else() {
    let bench = Bench::new();
    write_case(&bench);
    for what in ["cast m.safetensors --to bf16", "quantize m.safetensors --scheme int8"] {
        let line = format!("{what} --lora a.safetensors --rounding stochastic");
        run(&bench, &format!("{line} -o first.safetensors -j 1"));
        let first = bench.read("first.safetensors");
        for threads in 2..5 {
            run(&bench, &format!("{line}=0 -o other.safetensors -j {threads}"));
            assert!(bench.read("other.safetensors") == first, "{line} {threads}");
        }
        for isa in ["baseline", "avx2", "avx512"] {
            let line = format!("{line} -o other.safetensors --force -q");
            let outcome = bench.command().env("TCAST_ISA", isa).args(line.split(' ')).output().unwrap();
            // A machine may lack an instruction set.
            assert!(!outcome.status.success() || bench.read("other.safetensors") == first, "{line} {isa}");
        }
        run(&bench, &format!("{line}=1 -o other.safetensors"));
        assert!(bench.read("other.safetensors") != first, "{line}");
    }
    // Another name has other random numbers.
    run(
        &bench,
        "cast m.safetensors --to bf16 --lora a.safetensors --rounding stochastic --rename w.weight=v -o v.safetensors",
    );
    run(&bench, "cast m.safetensors --to bf16 --lora a.safetensors --rounding stochastic -o w.safetensors");
    let tail = |name: &str| bench.read(name).split_off(bench.read(name).len() - 2 * ROWS * COLUMNS);
    assert!(tail("v.safetensors") != tail("w.safetensors"));
}

#[test]
fn a_quantized_base_keeps_the_delta_that_it_swallows_otherwise() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    for scheme in ["int4", "nvfp4", "fp8"] {
        run(&bench, &format!("quantize m --scheme {scheme} -o base"));
        let figures = |rounding: &str| {
            let line = format!(
                "quantize base --layout compressed-tensors --lora {style}=0.1 -o out --force --json {rounding}"
            );
            let report: Value = serde_json::from_str(&bench.run(&line).stdout).unwrap();
            let tensors = report["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["lora"]);
            let figures: Vec<[f64; 2]> = tensors
                .filter(|figures| !figures.is_null())
                .map(|it| ["kept", "delta_energy"].map(|key| it[key].as_f64().unwrap()))
                .collect();
            assert_eq!(figures.len(), 8);
            let all: f64 = figures.iter().map(|[_, energy]| energy).sum();
            (figures.iter().map(|[kept, energy]| kept * energy).sum::<f64>() / all, report["options"].clone())
        };
        let (nearest, stochastic) = (figures(""), figures("--rounding stochastic=3"));
        assert!(nearest.0 < 0.5 && (stochastic.0 - 1.0).abs() < 0.3, "{scheme}: {nearest:?} {stochastic:?}");
        assert_eq!((&nearest.1["rounding"], &stochastic.1["rounding"]), (&Value::Null, &json!("stochastic=3")));
    }
    let summary = bench.run(&format!("cast m --lora {style} --rounding stochastic -o b")).stderr;
    assert!(summary.contains("\nmerged 1 adapter into 8 weights, rounding stochastic=0\n"), "{summary}");
    let report = bench.run(&format!("cast m --lora {style} -o c --report page.html --json"));
    let total: Value = serde_json::from_str::<Value>(&report.stdout).unwrap()["lora_total"].take();
    assert!((total["kept"].as_f64().unwrap() - 1.0).abs() < 0.01, "{total}");
    let snr = format!("delta SNR {:.1} dB", total["delta_snr"].as_f64().unwrap());
    report.check_message("SNR");
    let page = String::from_utf8(bench.read("page.html")).unwrap();
    assert!(page.contains(&snr) && page.contains("&quot;title&quot;:&quot;delta SNR&quot;"), "{page}");
    // Weights that no adapter changes are as without the option.
    run(&bench, &format!("quantize m --scheme int4 --lora {style} --rounding stochastic -o one"));
    run(&bench, &format!("quantize m --scheme int4 --lora {style} -o other"));
    let report: Value = serde_json::from_str(&bench.run("diff one other --json").stdout).unwrap();
    let names: BTreeSet<&str> = report["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["status"] != "equal")
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert!(
        !names.is_empty() && names.iter().all(|name| name.contains("q_proj") || name.contains("v_proj")),
        "{names:?}"
    );
}

#[test]
fn special_values_follow_the_rules_of_the_type() {
    let bench = Bench::new();
    let values = [500.0, -1e9, f32::INFINITY, f32::NAN, 0.0, -0.0, 448.0, 2.0_f32.powi(-9)];
    let one = |name: &str, shape: &[usize], start: usize, len: usize| {
        (name.to_owned(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, start + len] }))
    };
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    let header: Value = serde_json::Map::from_iter([one("w.weight", &[2, 4], 0, 32)]).into();
    bench.write("m.safetensors", &safetensors(&header.to_string(), &bytes));
    let header: Value =
        serde_json::Map::from_iter([one("w.lora_up.weight", &[2, 1], 0, 8), one("w.lora_down.weight", &[1, 4], 8, 16)])
            .into();
    bench.write("a.safetensors", &safetensors(&header.to_string(), &[0; 24]));
    for rules in ["", "--saturate=false"] {
        let line = format!("cast m.safetensors --to e4m3 {rules} --lora a.safetensors");
        run(&bench, &format!("{line} -o nearest.safetensors"));
        run(&bench, &format!("{line} --rounding stochastic -o random.safetensors"));
        assert_eq!(bench.read("nearest.safetensors"), bench.read("random.safetensors"), "{rules}");
    }
}

#[test]
fn a_type_without_neighbours_is_not_rounded_at_random() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    let tiny = fixture("gguf/tiny-llama").display().to_string();
    let gguf = fixture("gguf/tiny.gguf").display().to_string();
    let lora = format!("--lora {style} --rounding stochastic");
    let header = json!({
        "model.layers.0.self_attn.q_proj.lora_up.weight": { "dtype": "F32", "shape": [64, 1], "data_offsets": [0, 256] },
        "model.layers.0.self_attn.q_proj.lora_down.weight": { "dtype": "F32", "shape": [1, 64], "data_offsets": [256, 512] }
    });
    bench.write("a.safetensors", &safetensors(&header.to_string(), &[0; 512]));
    for line in [
        format!("cast m --to int8 {lora} -o out"),
        format!("cast m --to e8m0 {lora} -o out"),
        format!("quantize m --scheme int8 --layout comfyui --rotation 64 {lora} -o out"),
        format!(
            "quantize {tiny} --scheme q4_0 --metadata-from {gguf} --lora a.safetensors --rounding stochastic -o out.gguf"
        ),
    ] {
        bench.run(&line).says(2, "", "--rounding");
    }
    for (line, what) in [
        ("cast m --to bf16 --rounding stochastic -o out".to_owned(), "--lora"),
        (format!("cast m --lora {style} --rounding up -o out"), "it is stochastic, or stochastic=SEED"),
        (
            format!("cast m --lora {style} --rounding stochastic=-1 -o out"),
            "with a seed from 0 to 18446744073709551615",
        ),
    ] {
        bench.run(&line).says(2, "", what);
    }
    assert_eq!(bench.files(), ["a.safetensors", "m"]);
}
