//! What is read of a checkpoint's folder besides its shards: config, index, names. A file that cannot be read is never
//! taken for one that is not there.

#[cfg(unix)]
use crate::common::tree;
use crate::common::{Bench, safetensors, shard};
use std::fs;

/// A folder `q` with float8 weights that a config says are codes.
fn quantized() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let codes = r#"{"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}"#;
    bench.write("q/model.safetensors", &safetensors(codes, &[0x38; 4]));
    bench.write("q/config.json", br#"{"quantization_config":{"quant_method":"fp8"},"dtype":"bfloat16"}"#);
    bench
}

#[test]
fn a_config_that_cannot_be_parsed_is_an_error_and_no_guard_is_off() {
    let bench = quantized();
    for input in ["q", "q/model.safetensors"] {
        bench.run(&format!("cast {input} --to bf16 -o out.safetensors")).says(1, "", "w_scale_inv");
        for config in [
            &b"{\"quantization_config\":{\"quant_method\":\"fp8\"},}"[..],
            b"{\"quantization_config\":{\"quant_method\":\"fp8\"}",
            b"{\"a\": -NaN}",
            b"\"\xff\"",
            b"",
            b"\"x\"",
            b"null",
            b"[{\"quantization_config\":{}}]",
        ] {
            bench.write("q/config.json", config);
            for output in ["out", "out.safetensors"] {
                let outcome = bench.run(&format!("cast {input} --to bf16 -o {output} --max-shard-size 1GB"));
                let file_outcome = bench.run(&format!("cast {input} --to bf16 -o {output}"));
                let outcome = if output == "out" { outcome } else { file_outcome };
                outcome.says(1, "", "config");
                assert_eq!(outcome.stdout, "");
            }
            assert_eq!(bench.files(), ["q"]);
        }
        for odd in ["[1]", "\"x\"", "false"] {
            bench.write("q/config.json", format!("{{\"quantization_config\":{odd}}}").as_bytes());
            bench.run(&format!("cast {input} --to bf16 -o out.safetensors")).says(1, "", "--force-codes");
        }
        // Not needed where codes are meant as numbers.
        bench.run(&format!("cast {input} --to bf16 -o out.safetensors --force-codes -q")).expect(0, "", "");
        fs::remove_file(bench.path("out.safetensors")).unwrap();
        bench.write("q/config.json", br#"{"quantization_config":{"quant_method":"fp8"},"dtype":"bfloat16"}"#);
    }
}

#[test]
fn a_config_of_wide_weights_that_cannot_be_parsed_is_an_error_where_it_would_be_written() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/model.safetensors", &shard(&[("w", 1.5, 4)]));
    bench.write("in/config.json", b"{\"dtype\": \"float32\",}");
    bench.run("cast in --to bf16 -o out").says(1, "", "JSON");
    bench.run("cast in --to bf16 -o out.safetensors -q").expect(0, "", "");
    bench.run("cast in/model.safetensors --to bf16 -o one.safetensors -q").expect(0, "", "");
}

#[test]
fn what_python_writes_for_infinities_is_read_and_kept() {
    let bench = quantized();
    let config = "{\"quantization_config\": {\"quant_method\": \"fp8\", \"x\": NaN}, \"y\": [-Infinity, Infinity],\t\"dtype\": \"float32\"}";
    bench.write("q/config.json", config.as_bytes());
    bench.run("cast q --to bf16 -o out").says(1, "", "fp8");
    bench.run("cast q --to bf16 -o out --force-codes -q").expect(0, "", "");
    let written = String::from_utf8(bench.read("out/config.json")).unwrap();
    assert_eq!(written, config.replace("float32", "bfloat16"));
    // In an index.
    let index =
        r#"{"metadata": {"loss": [NaN, Infinity, -Infinity], "s": "NaN"}, "weight_map": {"w": "model.safetensors"}}"#;
    bench.write("q/model.safetensors.index.json", index.as_bytes());
    bench.run("cast q --to bf16 -o two --force-codes -q").expect(0, "", "");
    let written = String::from_utf8(bench.read("two/model.safetensors.index.json")).unwrap();
    assert!(written.contains("\"loss\": [\n      NaN,\n      Infinity,\n      -Infinity\n    ]"), "{written}");
    assert!(written.contains("\"s\": \"NaN\""), "{written}");
}

#[test]
fn an_index_that_cannot_be_parsed_is_an_error_of_the_shard_beside_it_too() {
    let bench = quantized();
    fs::remove_file(bench.path("q/config.json")).unwrap();
    bench.write("q/model.safetensors.index.json", b"{\"weight_map\": {\"w\": \"model.safetensors\",}}");
    for input in ["q", "q/model.safetensors", "q/model.safetensors.index.json"] {
        bench.run(&format!("cast {input} --to bf16 -o out.safetensors")).says(1, "", "index.json");
    }
    // The index of an output that is to be replaced says what its shards are.
    bench.write("x.safetensors", &shard(&[("w", 1.5, 4)]));
    bench.run("cast x.safetensors --to bf16 --max-shard-size 1GB -o q --force").says(1, "", "index.json");
    assert_eq!(bench.files(), ["q", "x.safetensors"]);
}

#[cfg(unix)]
#[test]
fn a_config_that_may_not_be_read_is_an_error() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let bench = quantized();
    fs::remove_file(bench.path("q/config.json")).unwrap();
    let refused = |message: &str| {
        for input in ["q", "q/model.safetensors"] {
            bench.run(&format!("cast {input} --to bf16 -o out.safetensors")).says(1, "", message);
        }
    };
    symlink("config.json", bench.path("q/config.json")).unwrap();
    refused("symbolic");
    fs::remove_file(bench.path("q/config.json")).unwrap();
    symlink("nowhere", bench.path("q/config.json")).unwrap();
    refused("directory");
    fs::remove_file(bench.path("q/config.json")).unwrap();
    fs::create_dir(bench.path("q/config.json")).unwrap();
    refused("regular");
    fs::remove_dir(bench.path("q/config.json")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(bench.path("q/config.json")).status().unwrap().success());
    refused("regular");
    fs::remove_file(bench.path("q/config.json")).unwrap();
    bench.write("q/config.json", b"{}");
    fs::set_permissions(bench.path("q/config.json"), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(bench.path("q/config.json")).is_err() {
        refused("permission"); // root may read all
    }
}

#[cfg(unix)]
#[test]
fn no_shard_is_left_out_for_its_name() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a:b.safetensors", &shard(&[("x", 1.5, 4)]));
    bench.write("in/B.SAFETENSORS", &shard(&[("y", 1.5, 4)]));
    bench.write("in/c\\d.safetensors", &shard(&[("z", 1.5, 4)]));
    bench.run("cast in --to f16 -o out -q").expect(0, "", "");
    let names: Vec<String> = tree(&bench.path("out")).into_keys().collect();
    assert_eq!(names, ["B.SAFETENSORS", "a:b.safetensors", "c\\d.safetensors", "model.safetensors.index.json"]);
    let outcome = bench.run("inspect out");
    assert!(outcome.code == Some(0) && outcome.stdout.matches("float16").count() == 4, "{outcome:?}");
    bench.run("cast out --to f16 -o again -q").expect(0, "", "");
    assert!(tree(&bench.path("out")) == tree(&bench.path("again")));
    bench.run("cast out --to f32 -o again -q -f").expect(0, "", "");
    // A name that is no text.
    let odd = bench.path("in").join(std::ffi::OsStr::from_bytes(b"\xff.safetensors"));
    fs::write(odd, shard(&[("v", 1.5, 4)])).unwrap();
    for command in ["cast in --to f16 -o odd", "inspect in"] {
        bench.run(command).says(1, "", "UTF-8");
    }
    assert!(!bench.path("odd").exists());
}

#[test]
fn inspect_lists_the_shards_that_can_be_read_and_ends_with_1() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("x", 1.5, 4)]));
    bench.write("in/b.safetensors", b"not a header at all");
    let bad = "in/b.safetensors: ";
    for prepare in [false, true] {
        if prepare {
            let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "c.safetensors"}}"#;
            bench.write("in/model.safetensors.index.json", index.as_bytes());
        }
        let outcome = bench.run("inspect in");
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stdout.contains("\n  x  float32") && outcome.stdout.contains(bad), "{outcome:?}");
        assert!(outcome.stderr.starts_with(&format!("tcast: error: {bad}")), "{outcome:?}");
        let missing = "in/model.safetensors.index.json: names the shard 'c.safetensors', which is missing";
        assert_eq!(outcome.stdout.contains(missing), prepare, "{outcome:?}");
        let outcome = bench.run("inspect in --json");
        let document: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(document["tensors"][0]["name"], "x");
        assert_eq!(document["unreadable"].as_array().unwrap().len(), 1 + usize::from(prepare));
        assert_eq!(outcome.code, Some(1));
        bench.run("bitcast in --hex --tensor x --range 0..1").expect(0, "0  3fc00000\n", "");
        for command in ["bitcast in --hex", "bitcast in --hex --tensor y", "cast in --to f16 -o out", "diff in in"] {
            let outcome = bench.run(command);
            outcome.check_message("safetensors");
            assert!(outcome.code != Some(0), "{command}: {outcome:?}");
        }
        assert!(!bench.path("out").exists());
    }
}
