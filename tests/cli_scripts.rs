//! What scripts rely on: exit codes, and what is accepted or refused before any work.

mod common;

use common::{Bench, npy_f32, safetensors};

const FLOATS: &str = r#"{"a.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a.mlp.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;

fn with_floats() -> Bench {
    let bench = Bench::new();
    bench.write("m.safetensors", &safetensors(FLOATS, &[0; 8]));
    bench
}

#[test]
fn an_output_that_exists_has_an_exit_code_of_its_own() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.write("there.npy", b"something");
    let expected = "tcast: error: there.npy: the output exists already
  add --force to replace it, or name another file with -o\n";
    for command in ["cast x.npy --to f16", "bitcast x.npy --to int32", "promote x.npy"] {
        bench.run(&format!("{command} -o there.npy")).expect(4, "", expected);
    }
    assert_eq!(bench.read("there.npy"), b"something");

    bench.add_checkpoint("llama-tiny-bf16", "llama");
    std::fs::create_dir(bench.path("out")).unwrap();
    bench.write("out/config.json", b"{}");
    bench.run("cast llama --to f16 -o out").expect(
        4,
        "",
        "tcast: error: out: the output exists already
  add --force to replace it, or name another folder with -o\n",
    );
}

#[test]
fn an_output_that_exists_can_be_skipped() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    for command in ["cast x.npy --to f16 -o", "bitcast x.npy --to int32 -o", "promote x.npy -o"] {
        let line = format!("{command} y.npy --skip-existing");
        assert_eq!(bench.run(&line).code, Some(0));
        let written = bench.read("y.npy");
        let outcome = bench.run(&line);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
        assert!(outcome.stderr.ends_with("skipped: y.npy exists\n"), "{}", outcome.stderr);
        bench.run(&format!("{line} -q")).expect(0, "", "");
        assert_eq!(bench.read("y.npy"), written);
        std::fs::remove_file(bench.path("y.npy")).unwrap();
    }
    assert_eq!(bench.run("cast x.npy --to f16 --skip-existing --force").code, Some(2));
}

#[test]
fn what_was_skipped_is_in_the_json() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.write("y.npy", b"something");
    let document = |line: &str| {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
    };
    let report = document("cast x.npy --to f16 -o y.npy --skip-existing --json -q");
    let expected = serde_json::json!({
        "schema": 1, "tcast": env!("CARGO_PKG_VERSION"), "operator": "cast", "input": "x.npy", "output": "y.npy",
        "skipped": true,
    });
    assert_eq!(report, expected);
    let report = document("promote x.npy -o y.npy --skip-existing --json -q");
    assert_eq!((&report["skipped"], &report["outputs"]), (&serde_json::json!(["y.npy"]), &serde_json::json!([])));
}

#[test]
fn a_folder_that_exists_can_be_skipped_and_an_unfinished_one_cannot() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    let line = "cast llama --to f16 -o out --skip-existing -q";
    bench.run(line).expect(0, "", "");
    bench.run(line).expect(0, "", "");
    assert_eq!(bench.run("cast llama --to f16 -o parts --part 1/2 -q").code, Some(0));
    let outcome = bench.run("cast llama --to f16 -o parts --skip-existing -q");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("unfinished"), "{}", outcome.stderr);
}

#[test]
fn a_pattern_that_matches_nothing_is_refused_with_near_names() {
    let bench = with_floats();
    for (flags, message) in [
        (
            "--exclude norm",
            "--exclude 'norm' matches no tensor
  a pattern matches the whole name: --exclude '*norm*' matches 1",
        ),
        (
            "--include *.nrom.*",
            "--include '*.nrom.*' matches no tensor
  near it: a.norm.weight; --allow-unmatched accepts it",
        ),
        (
            "--rule *vision*=keep",
            "--rule '*vision*' matches no tensor
  there are a.norm.weight, a.mlp.weight; --allow-unmatched accepts it",
        ),
    ] {
        let line = format!("cast m.safetensors --to f16 {flags}");
        bench.run(&line).expect(2, "", &format!("tcast: error: m.safetensors: {message}\n"));
    }
    let line = "m.safetensors --exclude norm";
    let message = "tcast: error: m.safetensors: --exclude 'norm' matches no tensor
  a pattern matches the whole name: --exclude '*norm*' matches 1\n";
    bench.run(&format!("inspect {line}")).expect(2, "", message);
    bench.run(&format!("bitcast {line} --to int32")).expect(2, "", message);
    let outcome = bench.run(&format!("diff m.safetensors {line}"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    assert_eq!(bench.files(), ["m.safetensors"]);
}

#[test]
fn a_pattern_that_matches_nothing_can_be_allowed() {
    let bench = with_floats();
    let outcome = bench.run("cast m.safetensors --to f16 --exclude *bias* --allow-unmatched");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    let warning = "tcast: warning: --exclude '*bias*' matches no tensor\n";
    assert!(outcome.stderr.starts_with(warning), "{}", outcome.stderr);
    bench.run("cast m.safetensors --to f16 --exclude *bias* --allow-unmatched -f -q").expect(0, "", "");
    for command in ["inspect m.safetensors", "diff m.safetensors m.safetensors"] {
        let outcome = bench.run(&format!("{command} --exclude *bias* --allow-unmatched"));
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), warning));
    }
}

#[test]
fn integers_stay_in_a_container_of_many_tensors_though_they_are_alone_in_it() {
    let bench = Bench::new();
    let header = r#"{"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#;
    let data: Vec<u8> = [70_000_i64, 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    bench.write("ids.safetensors", &safetensors(header, &data));
    let outcome = bench.run("cast ids.safetensors --to f16 -o out.safetensors");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    let first = outcome.stderr.lines().next();
    assert_eq!(first, Some("cast no tensor, copied 1: 1 not floating (--all casts them)"));
    assert!(bench.read("out.safetensors").ends_with(&data));

    let outcome = bench.run("cast ids.safetensors --to f16 -o all.safetensors --all");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float16"));
    // A file of one tensor is that tensor.
    assert_eq!(bench.run("cast ids.safetensors --to int64 -o ids.npy -q").code, Some(0));
    let outcome = bench.run("cast ids.npy --to f16");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float16"));
}

#[test]
fn a_tensor_that_has_the_type_already_is_copied_and_said_to_be() {
    let bench = with_floats();
    let outcome = bench.run("cast m.safetensors --to f32 -o out.safetensors");
    assert_eq!(outcome.stderr.lines().next(), Some("cast no tensor, copied 2: 2 already float32"));
    assert!(bench.read("out.safetensors").ends_with(&[0; 8]));
    let outcome = bench.run("cast m.safetensors --to f32 -n --json -q");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["tensors"][0]["cast"], &report["tensors"][0]["kept"]), (&false.into(), &"already".into()));
    assert_eq!((&report["tensors_cast"], &report["tensors_copied"]), (&0.into(), &2.into()));

    // A cast of a float8 to itself follows the table of float8: Inf saturates.
    let header = r#"{"w":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}}"#;
    bench.write("w.safetensors", &safetensors(header, &[0x7c]));
    let outcome = bench.run("cast w.safetensors --to f8e5m2 -o same.safetensors");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float8e5m2"));
    assert!(bench.read("same.safetensors").ends_with(&[0x7b]));
}
