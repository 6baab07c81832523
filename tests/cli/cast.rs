//! `tcast cast` as its users run it: files, messages, exit codes.

use crate::common::{Bench, fixture, npy, npy_data, npy_f32, safetensors, shard};
use safetensors::{Dtype, SafeTensors};
use std::fs;

/// The summary without its time and rate, which change from run to run.
fn timeless(summary: &str) -> String {
    let line = |line: &str| line.split(" in ").next().unwrap_or_default().to_owned();
    summary.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_checkpoint_is_cast_and_what_is_not_floating_is_copied() {
    let bench = Bench::with("model.safetensors", "model.safetensors");
    let outcome = bench.run("cast model.safetensors --to float8e4m3fn");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    assert_eq!(
        timeless(&outcome.stderr),
        "cast 10 tensors to float8e4m3fn, copied 2: 2 not floating (--all casts them)
model.safetensors -> model.float8e4m3fn.safetensors
44.73 KiB -> 13.62 KiB
  model.position_ids                      [1, 16]   int64 kept                    128 B ->    128 B
  model.layers.0.mlp.down_proj.weight     [32, 80]  float32 -> float8e4m3fn   10.00 KiB -> 2.50 KiB
  model.layers.0.mlp.gate_proj.weight     [80, 32]  float32 -> float8e4m3fn   10.00 KiB -> 2.50 KiB
  model.layers.0.mlp.up_proj.weight       [80, 32]  float32 -> float8e4m3fn   10.00 KiB -> 2.50 KiB
  model.layers.0.self_attn.o_proj.weight  [32, 32]  float32 -> float8e4m3fn    4.00 KiB -> 1.00 KiB
  model.layers.0.self_attn.q_proj.weight  [32, 32]  float32 -> float8e4m3fn    4.00 KiB -> 1.00 KiB
  model.norm.weight                       [32]      float32 -> float8e4m3fn       128 B ->     32 B
  model.rope_theta                        []        float32 -> float8e4m3fn         4 B ->      1 B
  model.layers.0.input_layernorm.weight   [32]      bfloat16 -> float8e4m3fn       64 B ->     32 B
  model.layers.0.self_attn.v_proj.weight  [16, 32]  bfloat16 -> float8e4m3fn   1.00 KiB ->    512 B
  model.embed_tokens.weight               [64, 32]  bfloat16 -> float8e4m3fn   4.00 KiB -> 2.00 KiB
  model.layers.0.self_attn.mask           [16, 16]  bool kept                     256 B ->    256 B
  7 of 12353 values saturated (0.06%)
  474 of 12353 values flushed to zero (3.84%)
  1 NaN and 1 Inf came with the input
    model.layers.0.mlp.down_proj.weight: 1 NaN, first at [9, 1]; 1 Inf, first at [7, 0]
tcast: note: the float8 weights have no scales. ComfyUI and other tools that read plain float8 load such a file. \
vLLM and transformers need scales, which tcast quantize writes."
    );
    assert_eq!(bench.files(), ["model.float8e4m3fn.safetensors", "model.safetensors"]);

    let (before, after) = (bench.read("model.safetensors"), bench.read("model.float8e4m3fn.safetensors"));
    let (_, metadata_before) = SafeTensors::read_metadata(&before).unwrap();
    let (_, metadata_after) = SafeTensors::read_metadata(&after).unwrap();
    assert_eq!(metadata_before.metadata(), metadata_after.metadata());
    let (before, after) = (SafeTensors::deserialize(&before).unwrap(), SafeTensors::deserialize(&after).unwrap());
    for (name, tensor) in before.tensors() {
        let cast = after.tensor(&name).unwrap();
        assert_eq!(cast.shape(), tensor.shape());
        if matches!(tensor.dtype(), Dtype::I64 | Dtype::BOOL) {
            assert_eq!((cast.dtype(), cast.data()), (tensor.dtype(), tensor.data()), "{name}");
        } else {
            assert_eq!(cast.dtype(), Dtype::F8_E4M3, "{name}");
        }
    }
}

#[test]
fn tensors_keep_the_order_of_the_header() {
    let bench = Bench::with("order_differs.safetensors", "m.safetensors");
    bench.run("cast m.safetensors --to float64 -o out.safetensors -q").expect(0, "", "");
    let names = |name: &str| {
        let file = bench.read(name);
        let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let text = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
        let mut places: Vec<(usize, String)> = SafeTensors::deserialize(&file)
            .unwrap()
            .names()
            .iter()
            .map(|name| (text.find(&format!("\"{name}\"")).unwrap(), (*name).to_owned()))
            .collect();
        places.sort();
        places.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(names("m.safetensors"), names("out.safetensors"));
    assert!(names("out.safetensors").len() > 1);
}

#[test]
fn wider_types_come_first_where_one_would_lie_unaligned() {
    let bench = Bench::new();
    let header = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0; 20]));
    bench.run("cast m.safetensors --to e4m3 -q").expect(0, "", "");
    let file = bench.read("m.float8e4m3fn.safetensors");
    let text = String::from_utf8_lossy(&file[8..]).into_owned();
    assert!(text.starts_with(
        r#"{"a":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[8,11]},"b":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#
    ));
}

#[test]
fn the_output_is_the_same_for_any_number_of_threads() {
    let bench = Bench::new();
    let values: Vec<f32> = (0..3_000_001_u32).map(|i| f32::from_bits(i.wrapping_mul(2654435761))).collect();
    bench.write("x.npy", &npy_f32(&values));
    for to in ["float8e4m3fn", "float6e2m3", "int4", "float64"] {
        let outputs: Vec<(Vec<u8>, String)> = [1, 2, 3, 7]
            .map(|threads| {
                let out = format!("{threads}.safetensors");
                let line = format!("cast x.npy --to {to} -o {out} -f --json -q --no-sync -j {threads}");
                let outcome = bench.run(&line);
                assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
                let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
                (bench.read(&out), report["counts"].to_string())
            })
            .to_vec();
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{to}");
    }
}

#[test]
fn many_tensors_are_the_same_for_any_number_of_threads_and_with_or_without_a_report() {
    const COUNT: usize = 40_000; // so many that several threads read and write the header
    let bench = Bench::new();
    let header = |dtype: &str, bytes: usize| {
        let entry = |at: usize| {
            let (start, end) = (at * bytes, at * bytes + bytes);
            format!(r#""layers.{at}.weight":{{"dtype":"{dtype}","shape":[1,3],"data_offsets":[{start},{end}]}}"#)
        };
        format!("{{{}}}", (0..COUNT).map(entry).collect::<Vec<_>>().join(","))
    };
    let data: Vec<u8> = (0..3 * COUNT as u32).flat_map(|value| (value as f32).to_le_bytes()).collect();
    bench.write("m.safetensors", &safetensors(&header("F32", 12), &data));
    let outputs = [("1", " -q"), ("2", " -q"), ("3", " -q --json"), ("7", "")].map(|(threads, more)| {
        let out = format!("{threads}.safetensors");
        let outcome = bench.run(&format!("cast m.safetensors --to bf16 -o {out} --no-sync -j {threads}{more}"));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.is_empty(), more.contains("-q"), "{}", outcome.stderr);
        assert_eq!(outcome.stdout.contains("layers.39999.weight"), more.contains("json"));
        bench.read(&out)
    });
    assert!(outputs.iter().all(|output| *output == outputs[0]));
    let (length, rest) = outputs[0].split_first_chunk().unwrap();
    let written = &rest[..u64::from_le_bytes(*length) as usize];
    assert!(String::from_utf8_lossy(written).trim_end() == header("BF16", 6));
    let values = rest[written.len()..].as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
    assert!(values.eq((0..3 * COUNT as u32).map(|value| half::bf16::from_f32(value as f32).to_bits())));
    let refused = bench.run("cast m.safetensors --to int8 -o i.safetensors -q --no-sync --fail-on wrapped");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(3), ""));
    assert!(refused.stderr.contains("wrapped"), "{}", refused.stderr);
    assert!(!bench.files().contains(&"i.safetensors".to_owned()));
}

#[test]
fn a_json_report_is_one_document_with_exact_counts() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0, 1e9, f32::INFINITY, f32::NAN, 1e-9, 1.1, -1e9]));
    let outcome = bench.run("cast x.npy --to e4m3 --json -q");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["options"]["saturate"], true);
    assert_eq!(report["tensors"][0]["from"], "float32");
    let counts = &report["tensors"][0]["counts"];
    assert_eq!((&counts["saturated"], &counts["flushed"]), (&3.into(), &1.into()));
    assert_eq!((&counts["inexact"], &counts["nan"]), (&5.into(), &0.into()));
    assert_eq!(counts, &report["counts"]);
}

#[test]
fn tensors_whose_values_become_infinite_are_named_in_color_and_marked_in_the_figures() {
    let bench = Bench::new();
    bench.write("x.safetensors", &shard(&[("a", 70000.0, 2), ("b", 1.0, 2), ("c", -1e6, 4)]));
    let lines = "  6 of 8 values became infinite (75.00%)\n    a: 2, first at [0, 0]\n    c: 4, first at [0, 0]\n";
    bench.run("cast x.safetensors --to f16 -f").says(0, "", "infinite");
    let outcome = bench.run("cast x.safetensors --to f16 -f --stats");
    // The table comes before the losses.
    let (table, _) = outcome.stderr.split_once(lines).unwrap_or((&outcome.stderr, ""));
    let row = |name: &str| table.lines().rfind(|line| line.trim_start().starts_with(name)).unwrap_or_default();
    let marked = |name: &str| row(name).contains(" became infinite");
    outcome.says(0, "", lines);
    assert!(marked("a ") && marked("c ") && !marked("b "), "{}", outcome.stderr);
    bench.run("cast x.safetensors --to f16 -f --color always").says(0, "", "33m6 of 8 values");
}

#[test]
fn the_first_value_that_becomes_infinite_or_nan_is_named() {
    let bench = Bench::new();
    let mut values = vec![1.0; 3 << 20];
    (values[2_500_000], values[2_600_001]) = (1e9, 1e9);
    bench.write(
        "x.npy",
        &npy("'<f4'", "(3072, 1024)", &values.iter().flat_map(|x: &f32| x.to_le_bytes()).collect::<Vec<_>>()),
    );
    for threads in [1, 4] {
        let outcome = bench.run(&format!("cast x.npy --to f16 -f -j{threads} --json"));
        outcome.check_message("3145728");
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let tensor = &report["tensors"][0];
        assert_eq!(tensor["first_at"], serde_json::json!({ "infinite": 2_500_000 }));
        assert_eq!(tensor["first_index"], serde_json::json!({ "infinite": [2441, 416] }));
    }
    // Float8 without infinities: the result is NaN. Float4 without NaN: it is zero.
    let special = [1.0_f32, 2.0, f32::NAN, 1e9].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    bench.write("y.npy", &npy("'<f4'", "(2, 2)", &special));
    for (line, wanted) in [
        ("--to e4m3 --saturate=false", r#"{"nan": 3, "input_nan": 2}"#),
        ("--to float4e2m1", r#"{"nan_lost": 2, "input_nan": 2}"#),
    ] {
        let outcome = bench.run(&format!("cast y.npy {line} -f -q --json -o y.safetensors"));
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let wanted: serde_json::Value = serde_json::from_str(wanted).unwrap();
        assert_eq!((outcome.code, &*outcome.stderr, &report["tensors"][0]["first_at"]), (Some(0), "", &wanted));
    }
}

#[test]
fn attributes_reach_the_kernels() {
    let cases: [(&str, &[f32], &[u8]); 9] = [
        ("--to e4m3 --saturate=false", &[500.0], &[0x7f]),
        ("--to e4m3 --no-saturate", &[500.0], &[0x7f]),
        ("--to e4m3 --saturate", &[500.0], &[0x7e]),
        ("--to e4m3 --saturate=1", &[500.0], &[0x7e]),
        ("--to e8m0", &[1.1], &[0x80]),
        ("--to e8m0 --round-mode down", &[1.1], &[0x7f]),
        ("--to e8m0 --round-mode nearest", &[1.5], &[0x80]),
        ("--to int8", &[300.0, -1.9], &[0x2c, 0xff]),
        ("--to int8 --out-of-range saturate", &[300.0, f32::NAN], &[0x7f, 0x00]),
    ];
    for (flags, input, output) in cases {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(input));
        bench.run(&format!("cast x.npy {flags} -o out.npy -q")).expect(0, "", "");
        assert_eq!(npy_data(&bench.read("out.npy")), output, "{flags}");
    }
}

#[test]
fn a_value_out_of_range_is_an_error_that_names_it_and_nothing_is_written() {
    let bench = Bench::new();
    let data: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 300.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.write("x.npy", &npy("'<f4'", "(2, 3)", &data));
    bench.run("cast x.npy --to int8 --out-of-range error").says(1, "", "--out-of-range");
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn the_container_follows_the_extension_and_comes_back_the_same() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    for to in ["bfloat16", "int4", "uint2", "float4e2m1", "float6e3m2", "float8e4m3fn", "float8e8m0", "bool", "uint64"]
    {
        bench.run(&format!("cast x.npy --to {to} -o a.npy -f -q")).expect(0, "", "");
        bench.run(&format!("cast x.npy --to {to} -o a.safetensors -f -q")).expect(0, "", "");
        // No --from: what a container lacks is read back without a flag.
        bench.run(&format!("cast a.safetensors --to {to} -o b.npy -f -q")).expect(0, "", "");
        assert_eq!(bench.read("a.npy"), bench.read("b.npy"), "{to}");
    }
}

#[test]
fn opaque_bytes_need_from() {
    let bench = Bench::with("untyped_e4m3fn.npy", "x.npy");
    bench.run("cast x.npy --to float32").says(1, "", "elements");
    bench.run("cast x.npy --from e4m3 --to float32 -q").expect(0, "", "");
    let wide = bench.run("cast x.npy --from float32 --to float16");
    assert_eq!(wide.code, Some(1));
    wide.check_message("--from");
}

#[test]
fn a_byte_that_holds_more_than_one_small_integer_is_refused() {
    for descr in ["'|V1'", "'|u1'"] {
        for (from, good, bad) in
            [("int4", [0x0f, 0xff, 0x07, 0xf8], 0xf7), ("uint4", [0, 1, 14, 15], 0xff), ("int1", [0, 1, 255, 0], 2)]
        {
            let bench = Bench::new();
            bench.write("x.npy", &npy(descr, "(4,)", &good));
            bench.run(&format!("cast x.npy --from {from} --to int8 -q")).expect(0, "", "");
            bench.write("y.npy", &npy(descr, "(2,)", &[good[1], bad]));
            bench.run(&format!("cast y.npy --from {from} --to int8 -q")).says(1, "", "holds");
        }
    }
    // numpy and ml_dtypes ignore the upper bits where the array names the type.
    let bench = Bench::new();
    bench.write("x.npy", &npy("[('uint4', '|u1')]", "(2,)", &[0xf1, 0x0f]));
    bench.run("cast x.npy --to uint8 -q -o y.npy").expect(0, "", "");
    assert_eq!(npy_data(&bench.read("y.npy")), [1, 15]);
    let header = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0x3c, 0x7e]));
    bench.run("cast m.safetensors --from uint4 --to f32").says(1, "", "--from");
}

#[test]
fn from_leaves_alone_what_is_not_cast() {
    let bench = Bench::new();
    let header =
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0x3c, 0x7e, 0x3c, 0x7e]));
    let outcome = bench.run("cast m.safetensors --from e4m3 --to f32 --rule a=keep -o out.safetensors --json -q");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["tensors"][0]["to"], &report["tensors"][1]["from"]), (&"uint8".into(), &"float8e4m3fn".into()));
    let file = bench.read("out.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("a").unwrap().data(), [0x3c, 0x7e]);
    assert_eq!(tensors.tensor("b").unwrap().data(), [1.5_f32.to_le_bytes(), 448_f32.to_le_bytes()].concat());
}

#[cfg(unix)]
#[test]
fn a_pipe_as_input_is_refused_and_does_not_hang() {
    let bench = Bench::new();
    assert!(std::process::Command::new("mkfifo").arg(bench.path("pipe")).status().unwrap().success());
    bench.run("cast pipe --to f16").says(1, "", "mapped");
}

#[test]
fn an_output_of_a_format_that_is_not_written_is_refused() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.run("cast x.npy --to f16 -o x.onnx").says(1, "", "tensors");
    for out in ["x.pt", "x.bin"] {
        bench.run(&format!("cast x.npy --to f16 -o {out}")).says(1, "", "extension");
    }
    // An ONNX model can become another one.
    let model = fixture("onnx_models/ort_nbits.onnx");
    let model = model.to_str().unwrap();
    for (command, formats) in [("cast --to f16", ".npz, .safetensors or .onnx"), ("quantize --scheme int8", ".onnx")] {
        let args: Vec<&str> = command.split(' ').chain([model, "-o", "x.bin"]).collect();
        bench.run_args(&args).check_message(formats);
    }
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn hostile_headers_give_short_messages_and_plans() {
    let bench = Bench::new();
    let rank = vec!["1"; 200_000].join(",");
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{rank}],"data_offsets":[0,4]}}}}"#);
    bench.write("rank.safetensors", &safetensors(&header, &[0; 4]));
    let outcome = bench.run("cast rank.safetensors --to f16 -n");
    assert!(outcome.code == Some(0) && outcome.stdout.len() < 1000, "{}", outcome.stderr.len());
    let header = format!(r#"{{"a":{{"dtype":"\u001b[31m{}","shape":[1],"data_offsets":[0,4]}}}}"#, "Q".repeat(100_000));
    bench.write("long.safetensors", &safetensors(&header, &[0; 4]));
    let outcome = bench.run("cast long.safetensors --to f16 -n");
    assert!(outcome.code == Some(1) && outcome.stderr.len() < 1000 && !outcome.stderr.contains('\u{1b}'));
    let header = format!(
        r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{}{}}}}}"#,
        "[".repeat(5000),
        "]".repeat(5000)
    );
    bench.write("deep.safetensors", &safetensors(&header, &[0; 4]));
    bench.run("cast deep.safetensors --to f16").says(1, "", "brackets");
}

#[test]
fn globs_and_rules_choose_tensors() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let args = ["cast", "m.safetensors", "--to", "e4m3", "--exclude", "*norm*", "--rule", "*embed*=bf16"];
    let outcome = bench.run_args(&[&args[..], &["--rule", "*proj*=keep", "--json", "-q"]].concat());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    for tensor in report["tensors"].as_array().unwrap() {
        let name = tensor["name"].as_str().unwrap();
        let is_cast = tensor["cast"].as_bool().unwrap();
        match name {
            _ if name.contains("norm") || name.contains("proj") => assert!(!is_cast, "{name}"),
            _ if name.contains("embed") => assert_eq!(tensor["to"], "bfloat16", "{name}"),
            _ if tensor["from"] == "int64" || tensor["from"] == "bool" => assert!(!is_cast, "{name}"),
            _ => assert_eq!(tensor["to"], "float8e4m3fn", "{name}"),
        }
    }
}

#[test]
fn a_dry_run_shows_the_plan_and_writes_nothing() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let outcome = bench.run("cast x.npy --to bf16 -n");
    let table = "x  [24, 40]  float32 -> bfloat16  3.75 KiB -> 1.88 KiB\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), table));
    let summary = "would cast 1 tensor to bfloat16\nx.npy -> x.bfloat16.npy\n3.88 KiB -> 2.00 KiB\n";
    let room = outcome.stderr.strip_prefix(summary).unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(room.starts_with("2.00 KiB of disk space are needed, ") && room.ends_with(" are available\n"), "{room}");
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn an_existing_output_is_kept_unless_forced() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.write("out.npy", b"precious");
    bench.run("cast x.npy --to bf16 -o out.npy").says(4, "", "--force");
    assert_eq!(bench.read("out.npy"), b"precious");
    bench.run("cast x.npy --to bf16 -o out.npy -f -q").expect(0, "", "");
    assert_ne!(bench.read("out.npy"), b"precious");
}

#[cfg(unix)]
#[test]
fn an_output_that_is_the_input_is_refused_under_any_name() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let before = bench.read("x.npy");
    std::os::unix::fs::symlink("x.npy", bench.path("link.npy")).unwrap();
    fs::hard_link(bench.path("x.npy"), bench.path("hard.npy")).unwrap();
    for out in ["x.npy", "./x.npy", "link.npy", "hard.npy"] {
        bench.run(&format!("cast x.npy --to bf16 -f -o {out}")).says(1, "", "replaced");
    }
    assert_eq!(bench.read("x.npy"), before);
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_is_followed_and_stays() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    fs::create_dir(bench.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere/real.npy", bench.path("link.npy")).unwrap();
    bench.run("cast x.npy --to bf16 -o link.npy -q").expect(0, "", "");
    assert!(fs::symlink_metadata(bench.path("link.npy")).unwrap().is_symlink());
    assert!(bench.path("elsewhere/real.npy").is_file());
}

#[cfg(unix)]
#[test]
fn the_mode_follows_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.write("plain", b""); // made with this process's umask
    bench.run("cast x.npy --to bf16 -o out.npy -q").expect(0, "", "");
    let mode = |name: &str| fs::metadata(bench.path(name)).unwrap().permissions().mode();
    assert_eq!(mode("out.npy"), mode("plain"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_and_a_device_are_written_in_place() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    bench.run("cast m.safetensors --to f64 -o out.safetensors -q").expect(0, "", "");
    let output = bench.command().args("cast m.safetensors --to f64 -o /dev/stdout -q".split(' ')).output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, bench.read("out.safetensors"));
    bench.run("cast m.safetensors --to f64 -o /dev/null -q").expect(0, "", "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.run("cast x.npy --to f64 -o /dev/full").says(1, "", "device");
}

#[test]
fn wrong_usage_exits_with_2() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let cases = [
        ("cast x.npy --to float8e4m4", "unknown dtype 'float8e4m4'; similar: float8e4m3fn"),
        (
            "cast x.npy --to fp8",
            "'fp8' could be float8e4m3fn, float8e5m2, float8e4m3fnuz, float8e5m2fnuz, float8e8m0; choose one",
        ),
        ("cast x.npy", "--to <DTYPE> is missing"),
        ("cast x.npy --to f16 --saturate=maybe", "invalid value 'maybe' for '--saturate[=<BOOL>]'"),
        ("cast x.npy --to f16 --round-mode UP", "invalid value 'UP' for '--round-mode <MODE>'"),
        ("cast x.npy --to f16 --rule w", "a rule is GLOB=DTYPE or GLOB=keep"),
        ("cast x.npy --rule *=f16", "without a type the output has no name of its own\n  name the output with -o"),
        ("cast x.npy --too f16", "unexpected argument '--too'"),
        ("casts x.npy", "unrecognized subcommand 'casts'"),
        ("cast x.npy --to f16 -j 0", "a number from 1 to 1024; without this flag, tcast uses all cores"),
    ];
    for (line, message) in cases {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(outcome.stderr.starts_with("tcast: error: "), "{line}: {}", outcome.stderr);
        outcome.check_message(message);
    }
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn a_folder_of_folders_of_shards_is_an_error_that_names_them() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("pipe/scheduler")).unwrap();
    for folder in ["unet", "text encoder"] {
        fs::create_dir(bench.path(&format!("pipe/{folder}"))).unwrap();
        fs::copy(crate::common::fixture("model.safetensors"), bench.path(&format!("pipe/{folder}/model.safetensors")))
            .unwrap();
    }
    bench.run("cast pipe --to f16 -o out").says(1, "", "pipe/unet");
    bench.run("cast pipe/unet --to f16 -o out -q").expect(0, "", "");
}

#[test]
fn bad_inputs_get_one_clear_error_each() {
    let bench = Bench::new();
    let model = fs::read(crate::common::fixture("model.safetensors")).unwrap();
    bench.write("truncated.safetensors", &model[..model.len() - 1]);
    bench.write("short.safetensors", &model[..100]);
    bench.write("long.safetensors", &[&100_000_001_u64.to_le_bytes()[..], &model[8..]].concat());
    bench.write("empty.safetensors", b"");
    let unknown = r#"{"a":{"dtype":"F7","shape":[1],"data_offsets":[0,4]}}"#;
    bench.write("unknown.safetensors", &safetensors(unknown, &[0; 4]));
    bench.write("text.txt", b"hello, this is not a tensor");
    bench.write("bytes.dat", b"\x01\x02\x03\x04\xff");
    bench.write("complex.npy", &npy("'<c8'", "(1,)", &[0; 8]));
    fs::create_dir(bench.path("folder.safetensors")).unwrap();
    let cases = [
        ("truncated.safetensors", "short"),
        ("short.safetensors", "short"),
        ("long.safetensors", "100000001"),
        ("empty.safetensors", "empty"),
        ("unknown.safetensors", "--exclude 'a'"),
        ("folder.safetensors", "folder"),
        ("missing.npy", "directory"),
        ("text.txt", "'hello, this is not a tensor'"),
        ("bytes.dat", "recognized"),
        ("complex.npy", "complex64"),
    ];
    bench.write("x.npy", &npy_f32(&[1.0]));
    let files = bench.files();
    for (name, word) in cases {
        bench.run(&format!("cast {name} --to f16 -o out.safetensors")).says(1, "", word);
    }
    bench.run("cast x.npy --to f16 -o no/out.npy").says(1, "", "mkdir -p 'no'");
    assert_eq!(bench.files(), files);
}

#[test]
fn a_name_that_npy_cannot_hold_is_no_loss_and_many_tensors_are_refused() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    bench.run("cast m.safetensors --to f16 -o out.npy").says(1, "", ".npz");
}

#[test]
fn slips_of_the_command_line_get_the_command_that_was_meant() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.run("x.npy --to f16").says(2, "", "--to");
    bench.run("cast x.npy y.npy --to f16").says(1, "", "y.npy");
    bench.run_args(&["cast", "x.npy", "a;b.npy", "--to", "f16"]).check_message("output");
    bench.run("cast x.npy --weights.npy --to f16").check_message("--weights");
    bench.write("weights.npy", b"");
    bench.run("cast wieghts.npy --to f16").says(1, "", "weights.npy");
    bench.run("cast other.npy --to f16").says(1, "", "directory");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("nowhere", bench.path("link.npy")).unwrap();
        bench.run("cast link.npy --to f16").says(1, "", "directory");
    }
    bench.run("cast x.npy --to f16 --json -o /dev/stdout").says(2, "", "--json");
    bench.run("cast x.npy --to complex64").check_message("complex64");
    bench.run("cast x.npy --to f16 -o .npz -q").expect(0, "", "");
    assert!(bench.read(".npz").starts_with(b"PK"));
}

#[test]
fn a_rule_that_reaches_nothing_is_refused() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let outcome =
        bench.run_args(&["cast", "m.safetensors", "--to", "f16", "--exclude", "*norm*", "--rule", "*norm*=bf16", "-n"]);
    outcome.says(2, "", "--rule");
}

#[test]
fn the_report_has_what_decided() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let line =
        "cast m.safetensors --to f16 --include model.* --rule *.norm*=keep --rename model.rope_theta=theta --json -q";
    let report: serde_json::Value = serde_json::from_str(&bench.run(line).stdout).unwrap();
    let options = &report["options"];
    assert_eq!(options["include"], serde_json::json!(["model.*"]));
    assert_eq!(options["rules"], serde_json::json!(["*.norm*=keep"]));
    assert_eq!(options["renames"], serde_json::json!(["model.rope_theta=theta"]));
    let renamed = report["tensors"].as_array().unwrap().iter().filter(|tensor| !tensor["renamed_from"].is_null());
    assert_eq!(renamed.map(|tensor| &tensor["name"]).collect::<Vec<_>>(), ["theta"]);
}

#[test]
fn a_note_says_who_can_use_float8_weights_without_scales() {
    let bench = Bench::with("model.safetensors", "model.safetensors");
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    let notes = |line: &str| {
        let outcome = bench.run(line);
        assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
        outcome.stderr.matches("tcast: note:").count()
    };
    bench.run("cast model.safetensors --to e4m3 -o a.safetensors").says(0, "", "float8");
    // Once in a run.
    assert_eq!(notes("cast llama --to e5m2 -o b"), 1);
    assert_eq!(notes("cast llama model.safetensors --to e4m3 -o several"), 1);
    bench.run("cast model.safetensors --to e4m3fnuz -o c.safetensors").check_message("float8");
    // Not of other types, of other formats, of vectors alone, nor where nothing is to be printed.
    assert_eq!(notes("cast model.safetensors --to bf16 -o d.safetensors"), 0);
    assert_eq!(notes("cast x.npy --to e4m3 -o e.npy"), 0);
    assert_eq!(notes("cast x.npy --to e4m3 -o f.safetensors"), 0);
    bench.run("cast model.safetensors --to e4m3 -o g.safetensors -q").expect(0, "", "");
}

#[test]
fn an_output_is_not_named_after_a_type_that_no_tensor_gets() {
    let bench = Bench::new();
    bench.write("c.npy", &npy("'<c8'", "(1,)", &[0; 8]));
    bench.run("cast c.npy --to f32 --exclude c").says(2, "", "float32");
    assert_eq!(bench.files(), ["c.npy"]);
    bench.run("cast c.npy --to f32 --exclude c -o d.npy -q").expect(0, "", "");
    // A tensor that has the type already counts.
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.run("cast x.npy --to f32 -q").expect(0, "", "");
    assert_eq!(bench.files(), ["c.npy", "d.npy", "x.float32.npy", "x.npy"]);
}
