//! Folders that the processes of a training wrote together: what is read, by which names, and what is refused.

use crate::common::{Bench, Outcome, fixture};
use std::fs;

/// A bench with copies of these folders.
fn bench(folders: &[&str]) -> Bench {
    let bench = Bench::new();
    for folder in folders {
        bench.add_checkpoint(&format!("../pytorch/distributed/{folder}"), folder);
    }
    bench
}

/// Replaces bytes of a file by as many others, everywhere.
#[track_caller]
fn patch(bench: &Bench, file: &str, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let mut bytes = bench.read(file);
    let places: Vec<usize> = (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old)).collect();
    assert!(!places.is_empty(), "{file} has no such bytes");
    for at in places {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
    bench.write(file, &bytes);
}

#[track_caller]
fn expect_message(outcome: &Outcome, code: i32, part: &str) {
    assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
}

#[test]
fn a_folder_of_torch_becomes_a_folder_of_hugging_face() {
    let bench = bench(&["dcp"]);
    fs::create_dir(bench.path("base")).unwrap();
    bench.write("base/config.json", b"{\"dtype\": \"float32\"}");
    bench.write("base/tokenizer.json", b"{}");
    let note = "tcast: note: dcp/.metadata: tcast reads the tensors under 'app.model', and not app.optim (12 B); --root . \
                reads all\n";
    let outcome = bench.run("cast dcp --to bf16 --config base -o out");
    expect_message(&outcome, 0, note);
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 3);
    assert_eq!(bench.read("out/config.json"), b"{\"dtype\": \"bfloat16\"}");
    bench.run("cast dcp -o same -q").expect(0, "", "");
    bench.run("diff dcp same").expect(0, "2 tensors are equal\n", "");
    // Files of the checkpoint itself are not side files.
    assert_eq!(fs::read_dir(bench.path("same")).unwrap().count(), 1);
}

#[test]
fn all_tensors_have_the_values_that_torch_loads() {
    let bench = bench(&["dcp"]);
    let expected = fixture("pytorch/distributed/dcp.expected.safetensors");
    let outcome = bench.run_args(&["diff", "dcp", expected.to_str().unwrap(), "--root", "."]);
    outcome.expect(0, "3 tensors are equal\n", "");
}

#[test]
fn shards_of_a_given_size_come_with_an_index() {
    let bench = bench(&["dcp"]);
    bench.run("cast dcp -o out --max-shard-size 70B -q --root .").expect(0, "", "");
    let mut names: Vec<String> = fs::read_dir(bench.path("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let shards =
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"];
    assert_eq!(names, shards);
}

#[test]
fn keys_and_not_text_lead_to_a_root() {
    let bench = bench(&["dcp"]);
    let listed = |root: &str| {
        let outcome = bench.run(&format!("cast dcp --root {root} -o out.safetensors -q --force"));
        outcome.expect(0, "", "");
        let text = bench.run("inspect out.safetensors --json").stdout;
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let names =
            json["tensors"].as_array().unwrap().iter().map(|tensor| tensor["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let all = ["app.model.embed.weight", "app.model.buf", "app.optim.state.embed.weight.exp_avg"];
    assert_eq!(listed("."), all);
    assert_eq!(listed("app.optim.state"), ["embed.weight.exp_avg"]);
    assert_eq!(listed("app.model.buf"), ["buf"]);
    let message = "has no tensors under 'app.mod'\n  these have some: 'app', or leave --root out\n";
    expect_message(&bench.run("cast dcp --root app.mod -o out"), 1, message);
    // Without the paths of the planner, a name is flat, and nothing is taken off.
    patch(&bench, "dcp/.metadata", b"planner_data", b"planner_dxta");
    assert_eq!(listed("."), all);
    bench.run("cast dcp -o flat.safetensors -q").expect(0, "", "");
    let outcome = bench.run("inspect flat.safetensors --include app.model.buf");
    assert_eq!((outcome.code, outcome.stdout.contains("app.model.buf")), (Some(0), true));
}

#[test]
fn inspect_lists_shapes_of_whole_tensors_and_what_is_left_out() {
    let bench = bench(&["dcp"]);
    let outcome = bench.run("inspect dcp");
    let text = "dcp: dcp, 2 tensors, 7.62 KiB\n  embed.weight  float32  [5, 3]  60 B  float32, 2 chunks\n";
    assert!(outcome.stdout.starts_with(text), "{}", outcome.stdout);
    let roots = "pickle: dcp, protocol 4\nroot\n  app.model  2 tensors  68 B\n  app.optim  1 tensor   12 B  not read\n";
    assert!(outcome.stdout.contains(roots), "{}", outcome.stdout);
}

#[test]
fn contradictions_name_the_tensor_and_the_file() {
    for (file, old, new, message) in [
        (".metadata", &b"__1_0.distcp"[..], &b"../_0.distcp"[..], "which is not in the folder"),
        (".metadata", b"__1_0.distcp", b"__7_0.distcp", "is in __7_0.distcp, which is missing"),
        (".metadata", b"relative_path", b"relative_pxth", "has no relative_path"),
        ("__0_0.distcp", b"FloatStorage", b"FloatStoragX", "unknown class"),
        ("__0_0.distcp", b"archive/data/0", b"archive/data/1", "lacks its storage '0'"),
    ] {
        let bench = bench(&["dcp"]);
        patch(&bench, &format!("dcp/{file}"), old, new);
        let outcome = bench.run("cast dcp -o out");
        expect_message(&outcome, 1, message);
        assert!(outcome.stderr.contains("tensor '"), "{}", outcome.stderr);
        assert!(!bench.path("out").exists());
    }
    let bench = bench(&["dcp"]);
    fs::remove_file(bench.path("dcp/__1_0.distcp")).unwrap();
    expect_message(
        &bench.run("cast dcp -o out"),
        1,
        "__1_0.distcp, which is missing\n  copy or download the whole folder",
    );
}

#[test]
fn code_is_searched_in_every_pickle_of_the_folder() {
    let bench = bench(&["dcp", "code"]);
    let outcome = bench.run("inspect dcp --fail-on code -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    expect_message(
        &bench.run("inspect code --fail-on code -q"),
        3,
        "names code that is not known to be harmless: posix.system",
    );
    expect_message(&bench.run("cast code -o out"), 0, "names posix.system: tcast runs no code");
    // A tensor of the optimizer, which is not read.
    patch(&bench, "dcp/__1_0.distcp", b"_rebuild_tensor_v2", b"_rebuild_tensor_vX");
    expect_message(&bench.run("inspect dcp --fail-on code -q"), 3, "torch._utils._rebuild_tensor_vX");
}

#[test]
fn other_folders_of_processes_are_refused_with_the_reason() {
    for (files, message) in [
        (&["__0_0.distcp", ".metadata", "common.pt", "metadata.json"][..], "is a checkpoint of Megatron (torch_dist)"),
        (
            &["__0_0.distcp", "__0.metadata"],
            "each process saved on its own (use_collectives=False), such as __0.metadata",
        ),
        (&["__0_0.distcp", ".metadata.tmp"], "without its .metadata: it was not saved completely"),
        (&["zero_pp_rank_0_mp_rank_00_model_states.pt"], "holds the partitions of DeepSpeed ZeRO-3"),
    ] {
        let bench = Bench::new();
        fs::create_dir(bench.path("in")).unwrap();
        files.iter().for_each(|file| bench.write(&format!("in/{file}"), b"\x80\x04N."));
        let outcome = bench.run("cast in -o out");
        expect_message(&outcome, 1, message);
        assert!(outcome.stderr.starts_with("tcast: error: in: "), "{}", outcome.stderr);
    }
}
