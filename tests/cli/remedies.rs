//! Remedies that name a command or a flag: with the arguments of the line, and never against the user's own files.

use crate::common::Bench;
use crate::gguf::tiny;

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
