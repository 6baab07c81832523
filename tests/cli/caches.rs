//! Outputs without a name whose inputs are in a cache of Hugging Face.
#![cfg(unix)]

use crate::common::{Bench, shard, tree};
use std::fs;
use std::os::unix::fs::symlink;

/// A cache of Hugging Face with one revision of a checkpoint, whose files are links.
fn cached(repository: &str, revision: &str) -> Bench {
    let bench = Bench::new();
    let [blobs, snapshot] = ["blobs".to_owned(), format!("snapshots/{revision}")].map(|name| {
        let folder = format!("hub/{repository}/{name}");
        fs::create_dir_all(bench.path(&folder)).unwrap();
        folder
    });
    bench.write(&format!("{blobs}/0"), &shard(&[("model.layers.0.mlp.up_proj.weight", 1.5, 2048)]));
    bench.write(&format!("{blobs}/1"), b"{\"torch_dtype\": \"float32\"}");
    for (name, blob) in [("model.safetensors", "0"), ("config.json", "1")] {
        symlink(format!("../../blobs/{blob}"), bench.path(&snapshot).join(name)).unwrap();
    }
    bench
}

#[test]
fn no_output_goes_into_a_cache_of_hugging_face_unless_it_is_named() {
    let bench = cached("models--org--llama", "abc");
    let snapshot = "hub/models--org--llama/snapshots/abc";
    symlink("hub/models--org--llama/snapshots", bench.path("revisions")).unwrap();
    symlink(snapshot, bench.path("mine")).unwrap();
    let quantized = "hub/models--org--llama/snapshots/def";
    bench.add_checkpoint("llama-fp8", quantized);
    let before = tree(&bench.path("hub"));
    let refused = |line: &str, proposed: &str| {
        bench.run(line).says(1, "", &format!("-o './{proposed}'"));
    };
    for input in [snapshot, "revisions/abc", "./hub/../revisions/abc/", "mine/."] {
        if input != "mine/." {
            refused(&format!("cast {input} --to f16"), "llama-float16");
        }
        let file = format!("{input}/model.safetensors");
        refused(&format!("cast {file} --to f16 -n"), "llama-model.float16.safetensors");
    }
    refused(&format!("bitcast {snapshot} --to int32"), "llama-int32");
    refused(&format!("dequantize {quantized}"), "llama-bfloat16");
    refused(&format!("quantize {snapshot} --scheme fp8"), "llama-fp8");
    let file = format!("{snapshot}/model.safetensors");
    refused(&format!("cast {file} --to f16 --max-shard-size 1MB"), "llama-model-float16");
    // What it proposes works, and so does an output that is named.
    bench.run(&format!("cast {snapshot} --to f16 -q -o ./llama-float16")).expect(0, "", "");
    assert_eq!(tree(&bench.path("hub")), before);
    // A link elsewhere is no part of the cache.
    bench.run("cast mine --to f16 -q").expect(0, "", "");
    assert!(bench.path("mine-float16").is_dir());
    bench.run(&format!("cast {snapshot} --to f16 -q -o {snapshot}-named")).expect(0, "", "");
    assert!(bench.path(&format!("{snapshot}-named")).is_dir());
}

#[test]
fn a_proposal_made_in_a_cache_leads_out_of_it() {
    let bench = cached("models--gpt2", "abc");
    let snapshot = bench.path("hub/models--gpt2/snapshots/abc");
    let outcome = |line: &str| {
        let mut command = bench.command();
        let command = command.current_dir(&snapshot).env("HOME", bench.path("home")).args(line.split_whitespace());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (line, proposed) in [
        ("cast . --to f16", "gpt2-float16"),
        ("cast ../abc --to bf16", "gpt2-bfloat16"),
        ("cast model.safetensors --to f16", "gpt2-model.float16.safetensors"),
    ] {
        let (code, said) = outcome(line);
        let remedy = format!("\n  name an output elsewhere: -o '{}'\n", bench.path("home").join(proposed).display());
        assert!(code == Some(1) && said.ends_with(&remedy), "{line}: {said}");
    }
    // Of several inputs each output needs its own name.
    let (code, said) = outcome("cast . model.safetensors --to f16");
    assert!(code == Some(1) && said.contains("\n  name another folder with -o\n"), "{said}");
    assert_eq!(tree(&bench.path("hub")).len(), 4);
}

#[test]
fn a_folder_that_is_only_called_like_a_cache_gets_outputs() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "models--org--llama");
    bench.run("cast models--org--llama --to f16 -q").expect(0, "", "");
    assert!(bench.path("models--org--llama-float16").is_dir());
}
