//! Remedies that name a command or a flag: with the arguments of the line, and never against the user's own files.

use crate::common::Bench;
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
    assert!(outcome.stderr.contains("\n  rm 'out/other-00001-of-00002.safetensors', or name another"), "{outcome:?}");

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
