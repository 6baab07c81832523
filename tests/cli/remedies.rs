//! Remedies that name a command or a flag: with the arguments of the line, and never against the user's own files.

use crate::common::gguf::Gguf;
use crate::common::{Bench, fixture};
use crate::gguf::tiny;

/// Runs lines whose remedies have these words.
fn expect_advice(bench: &Bench, lines: &[(&str, &str)]) {
    for (line, word) in lines {
        let outcome = bench.run(line);
        outcome.check_message(word);
        assert!(outcome.code.is_some_and(|code| code > 0), "{line}: {outcome:?}");
    }
}

#[test]
fn an_input_in_the_output_folder_is_not_to_be_removed() {
    let bench = Bench::with("model.safetensors", "mymodel.safetensors");
    for line in ["cast mymodel.safetensors --to f16", "quantize mymodel.safetensors --scheme fp8"] {
        bench.run(&format!("{line} --max-shard-size 20KB -o . -f")).says(1, "", "safetensors");
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
    bench
        .run("cast mymodel.safetensors --to f16 --max-shard-size 20KB -o out -f")
        .check_message("out/other-00001-of-00002.safetensors");

    let bench = tiny();
    std::fs::create_dir(bench.path("out")).unwrap();
    std::fs::rename(bench.path("tiny.gguf"), bench.path("out/tiny.gguf")).unwrap();
    let line = "quantize base --scheme q8_0 --metadata-from out/tiny.gguf --max-shard-size 20KB -o out -f";
    bench.run(line).says(1, "", "tiny");
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
    for command in ["dequantize tiny.gguf", "quantize tiny.gguf --scheme fp8"] {
        bench.run(&format!("{command} --names huggingface --config other -o out -q")).says(1, "", "num_hidden_layers");
    }
    // The sizes of the language model of a model of images and texts count.
    let mut nested = config("base");
    nested["hidden_size"] = 65.into();
    let nested = serde_json::json!({ "model_type": "llava", "hidden_size": 64, "text_config": nested });
    bench.write("other/config.json", nested.to_string().as_bytes());
    bench.run("dequantize tiny.gguf --names huggingface --config other -o out -q").check_message("hidden_size");
    expect_advice(&bench, &[("dequantize tiny.gguf --names huggingface --config base/config.json", "'base'")]);
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
    expect_advice(
        &bench,
        &[
            ("quantize m --scheme int4-asym --layout mlx", "--scheme affine4"),
            ("quantize m --scheme int8 --layout mlx", "--scheme affine8"),
            ("quantize m --scheme 4bit --layout mlx", "tcast quantize m --scheme affine4 --layout mlx"),
            ("quantize m --scheme affine", "tcast quantize m --scheme affine4"),
            ("quantize m --scheme fp8 --rule *.o_proj.*=bf16", "--rule '*.o_proj.*=keep'"),
            (
                "quantize m --scheme fp8 --rule *.o_proj.*=none",
                "tcast quantize m --scheme fp8 --rule '*.o_proj.*=keep'",
            ),
            (
                "quantize m --scheme fp8 --rule=*.o_proj.*=fp16",
                "tcast quantize m --scheme fp8 --rule '*.o_proj.*=keep'",
            ),
            ("quantize m --scheme fp8-block --partial-blocks --layout huggingface", "--layout compressed-tensors"),
            ("quantize m --scheme fp8 --partial-blocks", "--partial-blocks"),
        ],
    );
}

#[test]
fn a_cast_of_codes_is_answered_with_its_own_type_and_output() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    std::fs::copy(fixture("gguf/tiny.gguf"), bench.path("tiny.gguf")).unwrap();
    expect_advice(
        &bench,
        &[
            ("cast q --to f16 -o xx", "tcast dequantize 'q' --to float16 -o 'xx'"),
            ("cast q --to f16", "tcast dequantize 'q' --to float16"),
            ("cast q --to f8e5m2 -o xx", "tcast dequantize 'q'"),
            (
                "cast tiny.gguf --to f16 -o xx.safetensors",
                "tcast dequantize 'tiny.gguf' --to float16 -o 'xx.safetensors'",
            ),
            (
                "cast tiny.gguf --to f16 --names huggingface -o xx",
                "tcast dequantize 'tiny.gguf' --to float16 --names huggingface -o 'xx'",
            ),
            ("dequantize tiny.gguf -o x.gguf", "tcast quantize 'tiny.gguf' --scheme bf16 -o 'x.gguf'"),
            ("dequantize tiny.gguf --to f32 -o x.gguf", "tcast quantize 'tiny.gguf' --scheme f32 -o 'x.gguf'"),
            ("dequantize q -o x.gguf", "tcast quantize 'q' --scheme bf16 --metadata-from MODEL.gguf -o 'x.gguf'"),
        ],
    );
    for line in ["dequantize q --to float16 -o xx -q", "quantize tiny.gguf --scheme bf16 -o x.gguf -q"] {
        bench.run(line).expect(0, "", "");
    }
}

#[test]
fn a_bitcast_of_several_widths_is_answered_with_the_tensors_of_one() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    for (to, bits) in [("f16", 16), ("uint64", 64)] {
        let outcome = bench.run(&format!("bitcast m.safetensors --to {to} -o x.safetensors"));
        outcome.says(1, "", &format!(" {bits} bits with "));
        let flags = outcome.stderr.trim_end().split(" bits with ").nth(1).unwrap().replace('\'', "");
        bench.run(&format!("bitcast m.safetensors --to {to} -o x.safetensors -q -f {flags}")).expect(0, "", "");
    }
    expect_advice(
        &bench,
        &[
            ("bitcast m.safetensors --to f4e2m1 -o x.safetensors -f", "--include"),
            ("bitcast m.safetensors --to f16 --include *_proj* -o x.safetensors -f", "--include"),
            ("bitcast m.safetensors --to f16 --include *down_proj* -o x.safetensors -f", "uint32"),
        ],
    );
}

#[test]
fn a_model_of_other_names_is_compared_by_the_names_of_hugging_face() {
    let bench = tiny();
    bench.run("diff tiny.gguf base").check_message("--names");
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
    bench.run("dequantize tiny.gguf --names huggingface -o d").says(0, "", "--config");
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
            (&format!("{quantize} base"), ".gguf"),
            (&format!("{quantize} sp/{}", parts[1]), &parts[0]),
            ("inspect base --tensor *norm*", "--include '*norm*'"),
        ],
    );
    bench.write("x.npy", &crate::common::npy_f32(&[1.0]));
    let outcome = bench.run("cast x.npy --to nf4");
    outcome.check_message("nf4");
    assert!(!outcome.stderr.contains("complex"), "{outcome:?}");
    std::fs::copy(fixture("onnx_models/knn_surrogate.onnx"), bench.path("m.onnx")).unwrap();
    expect_advice(&bench, &[("cast m.onnx --to int8 -o n.onnx", "quantize")]);
}

#[test]
fn a_failure_of_standard_output_is_not_about_standard_input() {
    let bench = Bench::new();
    bench.write("b.npy", &crate::common::npy_f32(&vec![1.0; 1 << 20]));
    bench.shell("tcast cast b.npy --to f16 -o - 2>error | head -c 10 >/dev/null");
    let error = String::from_utf8(bench.read("error")).unwrap();
    assert_eq!(error, "tcast: error: -: cannot write: broken pipe\n");
    bench.run("cast - --to f16").check_message("standard");
}
