//! Remedies that name a command or a flag: with the arguments of the line, and never against the user's own files.

use crate::common::gguf::Gguf;
use crate::common::{Bench, fixture};
use crate::gguf::tiny;

/// The lines of an error after the first.
fn advice(bench: &Bench, args: &[&str]) -> String {
    let outcome = bench.run_args(args);
    assert!(outcome.code.is_some_and(|code| code > 0), "{args:?}: {outcome:?}");
    let (_, advice) = outcome.stderr.split_once('\n').expect("an error has a line");
    advice.trim_end().to_owned()
}

/// Runs lines, and compares what follows their errors.
fn expect_advice(bench: &Bench, lines: &[(&str, &str)]) {
    for (line, wanted) in lines {
        assert_eq!(advice(bench, &line.split(' ').collect::<Vec<_>>()), format!("  {wanted}"), "{line}");
    }
}

#[test]
fn an_input_in_the_output_folder_is_not_to_be_removed() {
    let bench = Bench::with("model.safetensors", "mymodel.safetensors");
    let refused = |file: &str| {
        format!(
            "tcast: error: {file}: the output folder contains this input, and readers would take it for a part of the \
             output\n  name another folder with -o\n"
        )
    };
    for line in ["cast mymodel.safetensors --to f16", "quantize mymodel.safetensors --scheme fp8"] {
        let outcome = bench.run(&format!("{line} --max-shard-size 20KB -o . -f"));
        outcome.expect(1, "", &refused("./mymodel.safetensors"));
    }
    // Another name of the input is no other file.
    std::os::unix::fs::symlink("mymodel.safetensors", bench.path("link.safetensors")).unwrap();
    let outcome = bench.run("cast link.safetensors --to f16 --max-shard-size 20KB -o . -f");
    assert!(!outcome.stderr.contains("rm "), "{outcome:?}");
    std::fs::remove_file(bench.path("link.safetensors")).unwrap();
    // Files that the run does not read are still proposed.
    bench.write("other.safetensors", &bench.read("mymodel.safetensors"));
    std::fs::create_dir(bench.path("out")).unwrap();
    std::fs::rename(bench.path("other.safetensors"), bench.path("out/other-00001-of-00002.safetensors")).unwrap();
    let outcome = bench.run("cast mymodel.safetensors --to f16 --max-shard-size 20KB -o out -f");
    let proposed =
        "\n  move it out of the folder: mv -n 'out/other-00001-of-00002.safetensors' 'out/..', or name another";
    assert!(outcome.stderr.contains(proposed), "{outcome:?}");

    let bench = tiny();
    std::fs::create_dir(bench.path("out")).unwrap();
    std::fs::rename(bench.path("tiny.gguf"), bench.path("out/tiny.gguf")).unwrap();
    let line = "quantize base --scheme q8_0 --metadata-from out/tiny.gguf --max-shard-size 20KB -o out -f";
    bench.run(line).expect(1, "", &refused("out/tiny.gguf"));
    assert!(bench.path("out/tiny.gguf").exists());
}

#[test]
fn the_config_of_another_model_is_refused() {
    let bench = tiny();
    bench.add_checkpoint("llama-tiny-bf16", "other");
    let config = |folder: &str| -> serde_json::Value {
        serde_json::from_slice(&bench.read(&format!("{folder}/config.json"))).unwrap()
    };
    let layers = config("other")["num_hidden_layers"].as_u64().unwrap();
    assert_ne!(config("base")["num_hidden_layers"].as_u64(), Some(layers));
    let error = format!(
        "tcast: error: other/config.json: describes another model: it has num_hidden_layers {layers}, and tiny.gguf has \
         llama.block_count 2\n  choose the folder of the model that the file was made from\n"
    );
    for command in ["dequantize tiny.gguf", "quantize tiny.gguf --scheme fp8"] {
        bench.run(&format!("{command} --names huggingface --config other -o out -q")).expect(1, "", &error);
    }
    // The sizes of the language model of a model of images and texts count.
    let mut nested = config("base");
    nested["hidden_size"] = 65.into();
    let nested = serde_json::json!({ "model_type": "llava", "hidden_size": 64, "text_config": nested });
    bench.write("other/config.json", nested.to_string().as_bytes());
    let outcome = bench.run("dequantize tiny.gguf --names huggingface --config other -o out -q");
    assert!(
        outcome.stderr.contains("it has hidden_size 65, and tiny.gguf has llama.embedding_length 64"),
        "{outcome:?}"
    );
    expect_advice(
        &bench,
        &[("dequantize tiny.gguf --names huggingface --config base/config.json", "give its folder: 'base'")],
    );
    bench.run("dequantize tiny.gguf --names huggingface --config base -o out -q").expect(0, "", "");
}

#[test]
fn flags_of_other_tools_go_with_their_values() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    std::fs::copy(fixture("gguf/tiny.gguf"), bench.path("tiny.gguf")).unwrap();
    expect_advice(
        &bench,
        &[
            ("inspect tiny.gguf --names huggingface", "tcast dequantize tiny.gguf --names huggingface --dry-run"),
            ("inspect tiny.gguf --names", "tcast inspect tiny.gguf"),
            ("inspect m --names huggingface", "tcast inspect m"),
            ("inspect m --tensors *norm*", "tcast inspect m --include '*norm*'"),
            ("inspect m --tensors", "tcast inspect m"),
            ("inspect m --tensors --json", "tcast inspect m --json"),
            ("inspect m --metadata format", "tcast inspect m"),
            ("inspect --verbose m", "tcast inspect m"),
            ("cast m --to f16 --lazy true", "tcast cast m --to f16"),
            ("cast m --to f16 --progress bar", "tcast cast m --to f16"),
            ("quantize m --scheme fp8 --ignore ['lm_head']", "tcast quantize m --scheme fp8 --exclude '*lm_head*'"),
            (
                "quantize m --scheme fp8 --exclude-modules=lm_head,embed",
                "tcast quantize m --scheme fp8 --exclude '*lm_head*' --exclude '*embed*'",
            ),
            (
                "quantize --hf-path m --mlx-path out --q-bits 4 --q-group-size 64",
                "tcast quantize m --output out --scheme affine4 --group-size 64",
            ),
            ("quantize m --bits 4 --layout mlx", "tcast quantize m --scheme affine4 --layout mlx"),
            ("quantize m --bits 4", "tcast quantize m --scheme int4"),
        ],
    );
}

#[test]
fn schemes_and_rules_are_answered_with_those_of_the_layout() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let last = |line: &str| advice(&bench, &line.split(' ').collect::<Vec<_>>()).lines().last().unwrap().to_owned();
    for (line, wanted) in [
        ("quantize m --scheme int4-asym --layout mlx", "choose --scheme affine4 or --layout compressed-tensors"),
        (
            "quantize m --scheme int8 --layout mlx",
            "choose --scheme affine8 or --layout compressed-tensors or --layout comfyui",
        ),
        ("quantize m --scheme 4bit --layout mlx", "tcast quantize m --scheme affine4 --layout mlx"),
        ("quantize m --scheme affine", "tcast quantize m --scheme affine4"),
        (
            "quantize m --scheme fp8 --rule *.o_proj.*=bf16",
            "leave the weights in their own type with --rule '*.o_proj.*=keep'",
        ),
        ("quantize m --scheme fp8 --rule *.o_proj.*=none", "tcast quantize m --scheme fp8 --rule '*.o_proj.*=keep'"),
        ("quantize m --scheme fp8 --rule=*.o_proj.*=fp16", "tcast quantize m --scheme fp8 --rule '*.o_proj.*=keep'"),
        (
            "quantize m --scheme fp8-block --partial-blocks --layout huggingface",
            "choose --layout compressed-tensors, or leave --partial-blocks out",
        ),
        ("quantize m --scheme fp8 --partial-blocks", "leave --partial-blocks out"),
    ] {
        assert_eq!(last(line), format!("  {wanted}"), "{line}");
    }
}

#[test]
fn a_cast_of_codes_is_answered_with_its_own_type_and_output() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    std::fs::copy(fixture("gguf/tiny.gguf"), bench.path("tiny.gguf")).unwrap();
    let first = |line: &str| advice(&bench, &line.split(' ').collect::<Vec<_>>()).lines().next().unwrap().to_owned();
    for (line, wanted) in [
        ("cast q --to f16 -o xx", "tcast dequantize 'q' --to float16 -o 'xx'"),
        ("cast q --to f16", "tcast dequantize 'q' --to float16"),
        ("cast q --to f8e5m2 -o xx", "tcast dequantize 'q'"),
        ("cast tiny.gguf --to f16 -o xx.safetensors", "tcast dequantize 'tiny.gguf' --to float16 -o 'xx.safetensors'"),
        (
            "cast tiny.gguf --to f16 --names huggingface -o xx",
            "tcast dequantize 'tiny.gguf' --to float16 --names huggingface -o 'xx'",
        ),
        ("dequantize tiny.gguf -o x.gguf", "tcast quantize 'tiny.gguf' --scheme bf16 -o 'x.gguf'"),
        ("dequantize tiny.gguf --to f32 -o x.gguf", "tcast quantize 'tiny.gguf' --scheme f32 -o 'x.gguf'"),
        ("dequantize q -o x.gguf", "tcast quantize 'q' --scheme bf16 --metadata-from MODEL.gguf -o 'x.gguf'"),
    ] {
        assert_eq!(first(line), format!("  {wanted}"), "{line}");
    }
    for line in ["dequantize q --to float16 -o xx -q", "quantize tiny.gguf --scheme bf16 -o x.gguf -q"] {
        bench.run(line).expect(0, "", "");
    }
}

#[test]
fn a_bitcast_of_several_widths_is_answered_with_the_tensors_of_one() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    for (to, bits) in [("f16", 16), ("uint64", 64)] {
        let remedy = advice(&bench, &["bitcast", "m.safetensors", "--to", to, "-o", "x.safetensors"]);
        let start = format!("  choose the tensors of {bits} bits with ");
        let flags = remedy.strip_prefix(&start).unwrap_or_else(|| panic!("{remedy}")).replace('\'', "");
        bench.run(&format!("bitcast m.safetensors --to {to} -o x.safetensors -q -f {flags}")).expect(0, "", "");
    }
    let remedy = "choose tensors of one width with --include, and a type of that width with --to";
    expect_advice(
        &bench,
        &[
            ("bitcast m.safetensors --to f4e2m1 -o x.safetensors -f", remedy),
            ("bitcast m.safetensors --to f16 --include *_proj* -o x.safetensors -f", remedy),
            (
                "bitcast m.safetensors --to f16 --include *down_proj* -o x.safetensors -f",
                "choose one of 32 bits: int32, uint32",
            ),
        ],
    );
}

#[test]
fn a_model_of_other_names_is_compared_by_the_names_of_hugging_face() {
    let bench = tiny();
    let note = "tcast: note: the names differ in kind. With names of Hugging Face: tcast diff 'tiny.gguf' 'base' --names \
                huggingface\n";
    let outcome = bench.run("diff tiny.gguf base");
    assert!(outcome.code == Some(1) && outcome.stderr == note, "{outcome:?}");
    assert_eq!(bench.run("diff tiny.gguf base -q").stderr, "");
    let outcome = bench.run("diff tiny.gguf base --names huggingface");
    assert!(outcome.stderr.is_empty() && outcome.stdout.ends_with(", 0 only in A, 0 only in B\n"), "{outcome:?}");
    bench.write("other.gguf", &Gguf::of("whisper").floats("t", &[2, 2], [1.0; 4]).bytes());
    assert_eq!(bench.run("diff other.gguf base").stderr, "");
}

#[test]
fn a_folder_needs_a_config_and_a_file_has_none() {
    let bench = tiny();
    let note = "the output has no config.json: --config FOLDER takes it";
    let outcome = bench.run("dequantize tiny.gguf --names huggingface -o d.safetensors");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains(note), "{outcome:?}");
    let outcome = bench.run("dequantize tiny.gguf --names huggingface -o d");
    assert!(outcome.code == Some(0) && outcome.stderr.contains(note), "{outcome:?}");
}

#[test]
fn small_mistakes_are_answered_with_what_to_type() {
    let bench = tiny();
    bench.run("quantize tiny.gguf --scheme q8_0 --max-shard-size 20KB -o sp -q").expect(0, "", "");
    let mut parts: Vec<String> =
        std::fs::read_dir(bench.path("sp")).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    parts.sort();
    assert!(parts.len() > 1, "{parts:?}");
    let quantize = "quantize base --scheme q8_0 -o y.gguf --metadata-from";
    expect_advice(
        &bench,
        &[
            (&format!("{quantize} base"), "name a .gguf file of the same model, in any of its types"),
            (&format!("{quantize} sp/{}", parts[1]), &format!("name the first part: 'sp/{}'", parts[0])),
            ("inspect base --tensor *norm*", "--tensor takes a name; a pattern goes with --include '*norm*'"),
        ],
    );
    bench.write("x.npy", &crate::common::npy_f32(&[1.0]));
    let outcome = bench.run("cast x.npy --to nf4");
    let list = "unknown dtype 'nf4'; there are: bool, ";
    assert!(outcome.stderr.contains(list) && !outcome.stderr.contains("complex"), "{outcome:?}");
    std::fs::copy(fixture("onnx_models/knn_surrogate.onnx"), bench.path("m.onnx")).unwrap();
    let remedy = advice(&bench, &["cast", "m.onnx", "--to", "int8", "-o", "n.onnx"]);
    let wanted = "  choose a floating type; the quantize command writes integers";
    assert_eq!(remedy, wanted);
}

#[test]
fn a_failure_of_standard_output_is_not_about_standard_input() {
    let bench = Bench::new();
    bench.write("b.npy", &crate::common::npy_f32(&vec![1.0; 1 << 20]));
    let program = assert_cmd::cargo::cargo_bin!("tcast").display().to_string();
    let script = format!("'{program}' cast b.npy --to f16 -o - 2>error | head -c 10 >/dev/null");
    std::process::Command::new("sh").args(["-c", &script]).current_dir(bench.path("")).status().unwrap();
    let error = String::from_utf8(bench.read("error")).unwrap();
    assert_eq!(error, "tcast: error: -: cannot write: broken pipe\n");
    let outcome = bench.run("cast - --to f16");
    assert!(outcome.stderr.contains("tcast does not read standard input"), "{outcome:?}");
}
