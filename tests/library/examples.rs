//! The crate's interface: what `examples/` does with it, and that the program does the same.

#[path = "../../examples/convert_file.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main of its own")]
mod convert_file;
#[path = "../../examples/convert_in_memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main of its own")]
mod convert_in_memory;
#[path = "../../examples/dequantize.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main of its own")]
mod dequantize;
#[path = "../../examples/diff.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main of its own")]
mod diff;
#[path = "../../examples/quantize.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example has a main of its own")]
mod quantize;

use crate::common::{Bench, fixture, npy_data, npy_f32, safetensors, same, tree};
use tcast::dtype::Dtype;
use tcast::error::ErrorKind;
use tcast::kernel::Loss;
use tcast::options::{CastOptions, DequantizeOptions, Group, QuantizeOptions};

/// Where `target/` is elsewhere, as with `CARGO_TARGET_DIR`, and there is nothing but the fixtures.
#[test]
fn the_first_command_of_the_readme_needs_no_folder_of_cargo() {
    let readme = include_str!("../../README.md");
    let line = readme.lines().find_map(|line| line.strip_prefix("cargo run --release -- ")).unwrap();
    let bench = Bench::new();
    std::fs::create_dir(bench.path("fixtures")).unwrap();
    std::fs::copy(fixture("model.safetensors"), bench.path("fixtures/model.safetensors")).unwrap();
    let outcome = bench.run(line);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stderr.starts_with("cast "), "{outcome:?}");
    assert_eq!(bench.files(), ["fixtures", "model.float8e4m3fn.safetensors"]);
}

#[test]
fn a_tensor_in_memory_becomes_what_the_program_makes_of_it() {
    let values = [0.1_f32, -2.5, 1000.0, 1e-9];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let (codes, counts) = convert_in_memory::convert(&bytes, 4, Dtype::Float32, Dtype::Float8E4M3FN).unwrap();
    assert_eq!((counts[Loss::Saturated], counts[Loss::Flushed], counts[Loss::Inexact]), (1, 1, 3));
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&values));
    bench.run("cast x.npy --to float8e4m3fn -o y.npy -q").expect(0, "", "");
    assert_eq!(codes, npy_data(&bench.read("y.npy")));
    let refused = convert_in_memory::convert(&bytes, 4, Dtype::Float32, Dtype::Complex64).unwrap_err();
    assert_eq!(refused.to_string(), "ONNX Cast cannot convert float32 to complex64");
    // The upper half of a byte that holds one FP4 element.
    let (ours, theirs) =
        (tcast::kernel::Storage::per_byte(Dtype::Float4E2M1), tcast::kernel::Storage::packed(Dtype::Float32));
    let rules = tcast::operator::cast::CastAttributes::default().rules();
    let malformed =
        tcast::kernel::Kernel::cast(ours, theirs, &rules).unwrap().run(&[0x10], &mut [0; 4], 1).unwrap_err();
    assert_eq!(malformed.to_string(), "a byte holds more than the one element");
}

#[test]
fn a_file_is_streamed_into_the_one_that_the_program_writes() {
    let bench = Bench::with("model.safetensors", "in.safetensors");
    let [input, output] = ["in.safetensors", "a.safetensors"].map(|name| bench.path(name));
    let (options, progress) = (CastOptions::to(Dtype::Bfloat16), convert_file::Bytes::default());
    let mut settings = tcast::Settings::default();
    settings.progress = &progress;
    let report = settings.cast(&input, &output, &options).unwrap();
    let printed = bench.run("cast in.safetensors --to bf16 -o b.safetensors -q --json").stdout;
    assert!(bench.read("a.safetensors") == bench.read("b.safetensors"));
    assert_eq!(report.tensors().count(), 12);
    // The report is the one that the program prints.
    let [mut ours, mut theirs] =
        [serde_json::to_value(&report).unwrap(), serde_json::from_str::<serde_json::Value>(&printed).unwrap()];
    for report in [&mut ours, &mut theirs] {
        for field in ["seconds", "input", "output", "files"] {
            assert!(report.as_object_mut().unwrap().remove(field).is_some(), "{field}");
        }
    }
    assert_eq!(ours, theirs);
    let header = 8 + u64::from_le_bytes(bench.read("in.safetensors")[..8].try_into().unwrap());
    assert_eq!(progress.0.into_inner(), bench.read("in.safetensors").len() as u64 - header);
    // What exists is never written over.
    let refused = tcast::cast(&input, &output, &options).unwrap_err();
    assert!(refused.to_string().ends_with("a.safetensors: the output exists already"), "{refused}");
    let refused = tcast::cast(&input, bench.path("x.txt"), &options).unwrap_err();
    assert!(refused.to_string().ends_with("x.txt: tcast writes no format of this extension"), "{refused}");
    assert_eq!(bench.files(), ["a.safetensors", "b.safetensors", "in.safetensors"]);
}

#[test]
fn one_call_writes_the_file_that_the_program_writes() {
    let bench = Bench::with("model.safetensors", "in.safetensors");
    let options = CastOptions::to(Dtype::Float8E4M3FN);
    let converted = tcast::cast(bench.path("in.safetensors"), bench.path("a.safetensors"), &options).unwrap();
    bench.run("cast in.safetensors --to float8e4m3fn -o b.safetensors -q").expect(0, "", "");
    assert!(bench.read("a.safetensors") == bench.read("b.safetensors"));
    assert_eq!(converted.tensors().count(), 12);
    let refused = tcast::cast(bench.path("in.safetensors"), bench.path("a.safetensors"), &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
    assert_eq!(bench.files(), ["a.safetensors", "b.safetensors", "in.safetensors"]);
}

#[test]
fn one_call_converts_a_folder_of_shards_and_refuses_codes_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    let options = CastOptions::to(Dtype::Float16);
    tcast::cast(bench.path("llama"), bench.path("a"), &options).unwrap();
    bench.run("cast llama --to float16 -o b -q").expect(0, "", "");
    for file in std::fs::read_dir(bench.path("b")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(bench.read(&format!("a/{name}")) == bench.read(&format!("b/{name}")), "{name}");
    }
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]},"w_scale":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#;
    bench.write("codes.safetensors", &safetensors(header, &[0; 5]));
    let convert =
        |options: &CastOptions| tcast::cast(bench.path("codes.safetensors"), bench.path("values.safetensors"), options);
    let refused = convert(&options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    let advice = refused.advice().iter().map(ToString::to_string).collect::<Vec<_>>();
    let leave = "leave the quantized weights as they are with `exclude` (w), `exclude` (w_scale)";
    assert_eq!(advice, [leave, "cast their codes as numbers with `force_codes`"]);
    let mut forced = options;
    forced.force_codes = true;
    assert_eq!(convert(&forced).unwrap().tensors().count(), 2);
}

#[test]
fn one_call_decodes_a_quantized_checkpoint_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-fp8", "model");
    let convert =
        |output: &str, to| tcast::dequantize(bench.path("model"), bench.path(output), &DequantizeOptions::to(to));
    let converted = convert("a", Dtype::Float16).unwrap();
    assert!(converted.tensors().any(|tensor| tensor.from == Dtype::Float8E4M3FN && tensor.to == Dtype::Float16));
    bench.run("dequantize model --to float16 -o b -q").expect(0, "", "");
    for file in std::fs::read_dir(bench.path("b")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(bench.read(&format!("a/{name}")) == bench.read(&format!("b/{name}")), "{name}");
    }
    let refused = convert("c", Dtype::Float64).unwrap_err();
    assert_eq!(refused.to_string(), "weights are decoded to bfloat16, float16 or float32, not to float64");
    assert!(!bench.path("c").exists());
}

#[test]
fn a_model_is_decoded_to_the_type_of_choice_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-fp8", "model");
    let weights = dequantize::dequantize(&bench.path("model"), "fp16", &bench.path("a")).unwrap();
    bench.run("dequantize model --to float16 -o b -q").expect(0, "", "");
    same(&tree(&bench.path("a")), &tree(&bench.path("b")));
    assert!(!weights.is_empty() && weights.iter().all(|weight| weight.contains(".weight ")), "{weights:?}");
    let refused = dequantize::dequantize(&bench.path("a"), "fp16", &bench.path("c")).unwrap_err();
    assert!(refused.to_string().contains("no quantized weights"), "{refused}");
}

#[test]
fn one_call_quantizes_a_checkpoint_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "model");
    let weights = quantize::quantize(&bench.path("model"), "nvfp4", &bench.path("a")).unwrap();
    assert!(weights.len() == 28 && weights[0].ends_with("[128, 352]"), "{weights:?}");
    bench.run("quantize model --scheme nvfp4 -o b -q").expect(0, "", "");
    same(&tree(&bench.path("a")), &tree(&bench.path("b")));
    let mut options = QuantizeOptions::scheme("W4A16").unwrap();
    options.group_size = Some(Group::Neighbours(32));
    tcast::quantize(bench.path("model"), bench.path("c"), &options).unwrap();
    bench.run("quantize model --scheme int4 --group-size 32 -o d -q").expect(0, "", "");
    same(&tree(&bench.path("c")), &tree(&bench.path("d")));
    let refused = QuantizeOptions::scheme("fp9").unwrap_err().to_string();
    assert!(refused.starts_with("unknown scheme 'fp9': it is one of fp8,"), "{refused}");
    options.layout = Some("modelopt");
    let refused = tcast::quantize(bench.path("model"), bench.path("e"), &options).unwrap_err().to_string();
    assert!(
        refused.ends_with("the layout modelopt has no scheme int4, which is stored as compressed-tensors, comfyui"),
        "{refused}"
    );
}

#[test]
fn one_call_compares_two_checkpoints_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "model");
    bench.run("quantize model --scheme fp8 -o codes -q").expect(0, "", "");
    let [a, b] = ["model", "codes"].map(|name| bench.path(name));
    let differing = diff::differing(&a, &b, 0.01).unwrap();
    assert!(differing.len() == 28 && differing.iter().all(|line| line.ends_with(": ValuesDiffer")), "{differing:?}");
    assert_eq!(diff::differing(&a, &b, 1e9).unwrap(), [""; 0]);
    let mut options = tcast::DiffOptions::default();
    options.rtol = Some(0.01);
    let report = serde_json::to_value(tcast::diff(&a, &b, &options).unwrap()).unwrap();
    let printed = bench.run("diff model codes --rtol 0.01 --json");
    let printed: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
    for field in ["tensors", "counts", "is_equal", "rtol", "tolerance"] {
        assert_eq!(report[field], printed[field], "{field}");
    }
    options.selection.exclude = vec!["*".parse().unwrap()];
    let refused = tcast::diff(&a, &b, &options).unwrap_err();
    assert_eq!(refused.to_string(), "the selection leaves no tensor");
}

#[test]
fn tensors_are_those_that_the_program_lists() {
    let bench = Bench::new();
    for model in ["checkpoints/llama-fp8", "checkpoints/llama-tiny-bf16", "model.safetensors", "weights_f32.npy"] {
        let listed = bench.command().args(["inspect", "--json"]).arg(fixture(model)).output().unwrap().stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
        let rows = listed["tensors"].as_array().unwrap();
        let tensors = tcast::TensorFiles::open(fixture(model)).unwrap();
        let tensors = tensors.tensors().list();
        assert_eq!(tensors.len(), rows.len(), "{model}");
        for (tensor, row) in tensors.iter().zip(rows) {
            assert_eq!((row["name"].as_str(), &row["shape"]), (Some(&*tensor.name), &serde_json::json!(tensor.shape)));
            assert_eq!(row["layout"].as_str(), tensor.layout, "{}", tensor.name);
            assert_eq!(row["bytes"].as_u64(), Some(tensor.bytes), "{}", tensor.name);
        }
    }
    let missing = tcast::TensorFiles::open(bench.path("none.npy")).err().unwrap();
    assert!(missing.to_string().contains("none.npy: cannot read"), "{missing}");
}

#[test]
fn the_program_runs_twice_in_one_process_and_from_two_threads() {
    let bench = Bench::with("model.safetensors", "in.safetensors");
    let run = |to: &str, output: &str| {
        let [input, output] = ["in.safetensors", output].map(|name| bench.path(name).into_os_string());
        let words = ["tcast", "cast", "-q", "--to", to, "-o"].map(std::ffi::OsString::from);
        let arguments = words.into_iter().chain([output, input]);
        let cli = <tcast::cli::Cli as clap::Parser>::try_parse_from(arguments).unwrap();
        // An exit code can only be compared as text.
        assert_eq!(
            format!("{:?}", tcast::commands::run(&cli).unwrap()),
            format!("{:?}", std::process::ExitCode::SUCCESS)
        );
    };
    std::thread::scope(|scope| {
        for (to, outputs) in [("bf16", ["a.safetensors", "b.safetensors"]), ("f16", ["c.safetensors", "d.safetensors"])]
        {
            scope.spawn(move || outputs.into_iter().for_each(|output| run(to, output)));
        }
    });
    for [one, other] in [["a", "b"], ["c", "d"]].map(|names| names.map(|name| format!("{name}.safetensors"))) {
        assert!(bench.read(&one) == bench.read(&other));
    }
    assert!(bench.read("a.safetensors") != bench.read("c.safetensors"));
}
