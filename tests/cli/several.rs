//! Several inputs in one run, and a folder as the output of files.

use crate::common::{Bench, as_on_linux, npy, npy_data, npy_f32};
use serde_json::Value;
use std::fs;

/// `a.npy` and `b.npy`, of one float32 each.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0]));
    bench.write("b.npy", &npy_f32(&[2.0]));
    bench
}

fn in_folder(bench: &Bench, name: &str) -> Vec<String> {
    let names = fs::read_dir(bench.path(name)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn several_inputs_have_an_output_each_in_the_folder_that_is_named() {
    let bench = bench();
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines[0], "a.npy -> out/a.npy: cast 1 tensor to float16, 132 B -> 130 B");
    assert!(lines.contains(&"b.npy -> out/b.npy: cast 1 tensor to float16, 132 B -> 130 B"), "{outcome:?}");
    assert!(lines.last().unwrap().starts_with("cast 2 of 2 inputs, 264 B -> 260 B in "), "{outcome:?}");
    assert_eq!(in_folder(&bench, "out"), ["a.npy", "b.npy"]);
    assert_eq!(npy_data(&bench.read("out/b.npy")), [0x00, 0x40]);
    // Each is what it is alone, also with a slash behind the folder, or where it is there.
    bench.run("cast a.npy --to f16 -o alone.npy -q").expect(0, "", "");
    assert_eq!(bench.read("alone.npy"), bench.read("out/a.npy"));
    bench.run("bitcast a.npy b.npy --to int32 -o bits/ -q").expect(0, "", "");
    assert_eq!(in_folder(&bench, "bits"), ["a.npy", "b.npy"]);
}

#[test]
fn several_inputs_without_a_folder_have_their_outputs_beside_them() {
    let bench = bench();
    bench.run("cast a.npy b.npy --to f16 -q").expect(0, "", "");
    assert_eq!(bench.files(), ["a.float16.npy", "a.npy", "b.float16.npy", "b.npy"]);
}

#[test]
fn one_file_goes_into_a_folder_that_is_there_or_named_with_a_slash() {
    let bench = bench();
    fs::create_dir(bench.path("out")).unwrap();
    bench.run("cast a.npy --to f16 -o out -q").expect(0, "", "");
    bench.run("cast b.npy --to f16 -o new/ -q").expect(0, "", "");
    assert_eq!((in_folder(&bench, "out"), in_folder(&bench, "new")), (vec!["a.npy".into()], vec!["b.npy".into()]));
    let outcome = bench.run("cast a.npy --to f16 -o .");
    outcome.says(1, "", "input");
    assert!(!outcome.stderr.contains("--force"), "{outcome:?}");
}

#[test]
fn folders_of_shards_are_among_several_inputs() {
    let bench = bench();
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    bench.run("cast llama a.npy --to f16 -o out -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o alone -q").expect(0, "", "");
    assert_eq!(in_folder(&bench, "out"), ["a.npy", "llama"]);
    assert_eq!(in_folder(&bench, "out/llama"), in_folder(&bench, "alone"));
}

#[test]
fn all_inputs_are_checked_before_the_first_output_is_written() {
    let bench = bench();
    bench.write("c.npy", b"no array");
    let outcome = bench.run("cast a.npy c.npy missing.npy b.npy --to f16 -o out");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    for part in ["error: c.npy: ", "error: missing.npy: ", "error: 2 of 4 inputs are refused, nothing was written\n"] {
        outcome.check_message(part);
    }
    assert_eq!(bench.files(), ["a.npy", "b.npy", "c.npy"]);

    fs::create_dir(bench.path("sub")).unwrap();
    bench.write("sub/a.npy", &npy_f32(&[3.0]));
    bench.run("cast a.npy sub/a.npy --to f16 -o out").says(1, "", "written");
    assert!(!bench.path("out").exists());

    bench.run("cast a.npy b.npy --to f16 -o c.npy").says(2, "", "outputs");
    for name in ["x.npy", "x.bin"] {
        bench.run(&format!("cast a.npy b.npy --to f16 -o {name}")).says(2, "", "outputs");
        assert!(!bench.path(name).exists());
        bench.run(&format!("cast a.npy b.npy --to f16 -q -o {name}/")).expect(0, "", "");
        assert_eq!(in_folder(&bench, name), ["a.npy", "b.npy"]);
    }
    bench.run("cast a.npy b.npy --to f16 -q -o llama-3.1").expect(0, "", "");
    // What was meant as the output is an input here.
    bench.run("cast a.npy y.npy --to f16").says(1, "", "y.npy");
}

#[test]
fn outputs_that_exist_are_refused_together_or_skipped() {
    let bench = bench();
    fs::create_dir(bench.path("out")).unwrap();
    bench.write("out/a.npy", b"mine");
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(4), ""));
    assert_eq!(in_folder(&bench, "out"), ["a.npy"]);
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out --skip-existing");
    outcome.says(0, "", "exists");
    assert!(outcome.stderr.trim_end().ends_with(", 1 skipped"), "{outcome:?}");
    assert_eq!(bench.read("out/a.npy"), b"mine");
}

#[test]
fn an_input_that_fails_does_not_stop_the_others() {
    let bench = bench();
    // Damaged where only its elements show it.
    bench.write("0.npy", &npy("[('float4_e2m1fn', '|u1')]", "(1,)", &[0x17]));
    let outcome = bench.run("cast 0.npy a.npy b.npy --to f16 -o out --json");
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.starts_with("tcast: error: 0.npy: "), "{outcome:?}");
    outcome.check_message("inputs");
    assert_eq!(in_folder(&bench, "out"), ["a.npy", "b.npy"]);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert!(report["inputs"][0]["error"].as_str().unwrap().contains("0.npy"), "{report}");
    assert_eq!(report["inputs"][2]["output"], "out/b.npy");
    assert_eq!(bench.run("cast 0.npy --to f16 -o new/ -q").code, Some(1));
    assert!(!bench.path("new").exists());
}

#[test]
fn the_report_of_several_inputs_is_one_document() {
    let bench = bench();
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out --json -q --report r.json");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["schema"], &report["bytes_in"], &report["dry_run"]), (&1.into(), &264.into(), &false.into()));
    let written: Value = serde_json::from_str(&as_on_linux(str::from_utf8(&bench.read("r.json")).unwrap())).unwrap();
    assert_eq!(written, report);
    // Each is the document of its input alone.
    let mut one: Value =
        serde_json::from_str(&bench.run("cast a.npy --to f16 -o y.npy --json -q --stats").stdout).unwrap();
    let mut among = report["inputs"][0].clone();
    for document in [&mut one, &mut among] {
        let fields = document.as_object_mut().unwrap();
        let _ = ["seconds", "output", "files"].map(|field| fields.remove(field));
    }
    assert_eq!(one, among);
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out -f --report r.html");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
}

#[test]
fn a_dry_run_of_several_inputs_shows_all_and_makes_no_folder() {
    let bench = bench();
    let outcome = bench.run("cast a.npy b.npy --to f16 -o out -n");
    let table = "a  [1]  float32 -> float16  4 B -> 2 B\nb  [1]  float32 -> float16  4 B -> 2 B\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), table));
    let told = |text: &str| outcome.stderr.lines().any(|line| line.starts_with(text));
    assert!(
        told("a.npy -> out/a.npy: would cast 1 tensor to float16, ") && told("would cast 2 of 2 inputs, "),
        "{outcome:?}"
    );
    assert_eq!(bench.files(), ["a.npy", "b.npy"]);
    assert_eq!(bench.run("cast a.npy a.npy --to f16 -o out -n").code, Some(1));
}

#[test]
fn a_pattern_has_to_match_in_one_of_several_inputs() {
    let bench = bench();
    bench.run("cast a.npy b.npy --to f16 -o out --exclude a -q").expect(0, "", "");
    assert_eq!(bench.run("cast a.npy b.npy --to f16 -o more --exclude c -q").code, Some(2));
}

#[cfg(unix)]
#[test]
fn there_may_be_more_inputs_than_files_that_are_open_by_default() {
    let bench = Bench::new();
    let names: Vec<String> = (0..100).map(|at| format!("{at}.npy")).collect();
    for name in &names {
        bench.write(name, &npy_f32(&[1.0]));
    }
    let program = bench.command().get_program().to_owned();
    let script = format!("ulimit -S -n 64; exec \"$0\" cast {} --to f16 -o out -q --no-sync", names.join(" "));
    let mut shell = std::process::Command::new("sh");
    let output = shell.arg("-c").arg(&script).arg(&program).current_dir(bench.path("")).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    assert_eq!(in_folder(&bench, "out").len(), 100);
}

#[test]
fn a_bitcast_reports_the_widths_before_the_output_that_exists() {
    let bench = bench();
    bench.write("y.npy", b"mine");
    bench.run("bitcast a.npy --to int16 -o y.npy").says(1, "", "float32");
}

#[test]
fn outputs_whose_names_are_taken_come_with_another_place() {
    let bench = bench();
    let refused = |names: [&str; 2]| {
        let lines = names.map(|name| {
            format!(
                "tcast: error: ./{name}: is a file of the input ({name}), and would be replaced
  name another folder with -o, or leave it out: then the type is in the names of the outputs\n"
            )
        });
        lines.concat() + "tcast: error: 2 of 2 inputs are refused, nothing was written\n"
    };
    bench.run("cast a.npy b.npy --to f16 -o .").expect(1, "", &refused(["a.npy", "b.npy"]));
    bench.run("cast a.npy a.npy --to f16").says(1, "", "a.float16.npy");
    fs::copy(bench.path("a.npy"), bench.path("a.float16.npy")).unwrap();
    bench.run("cast a.npy a.float16.npy --to f16 -f").says(1, "", "replaced");
}

#[test]
fn inputs_that_are_complete_are_said_to_be() {
    let bench = bench();
    for name in ["one", "two"] {
        bench.add_checkpoint("llama-tiny-bf16", name);
    }
    let line = "cast one two --to f16 -o out --resume";
    let outcome = bench.run(&format!("{line} -q"));
    outcome.expect(0, "", "");
    bench.run(line).says(0, "", "complete");
    let outcome = bench.run(&format!("{line} --json -q"));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["inputs"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["inputs"][1]["tensors_cast"], 38);
}

#[test]
fn outputs_that_have_no_place_in_a_folder_are_told_to_go_to_another_folder() {
    let bench = bench();
    bench.run("promote a.npy b.npy -o .").says(1, "", "replaced");
    bench.run("promote a.npy b.npy -o out -q").expect(0, "", "");
    let there = |name| {
        format!(
            "tcast: error: out/{name}: the output exists already\n  add --force to replace it, or name another folder with -o\n"
        )
    };
    bench.run("promote a.npy b.npy -o out").expect(4, "", &there("a.npy"));
    let refused = "tcast: error: 2 of 2 inputs are refused, nothing was written\n  add --skip-existing to keep these outputs and convert the other inputs, or --force to replace them\n";
    let all = format!("{}{}{refused}", there("a.npy"), there("b.npy"));
    bench.run("cast a.npy b.npy --to f16 -o out").expect(4, "", &all);
    bench.run("promote a.npy a.npy -o twice").says(1, "", "written");
}

#[test]
fn parts_of_several_folders_say_how_to_complete_each() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "one");
    bench.add_checkpoint("llama-tiny-bf16", "two");
    for part in ["1/2", "2/2"] {
        let outcome = bench.run(&format!("cast one two --to f16 -o out --part {part}"));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
        outcome.check_message("--finish");
    }
    for name in ["one", "two"] {
        assert_eq!(bench.run(&format!("cast --finish out/{name}")).code, Some(0));
    }
    let quiet = bench.run("cast one two --to f16 -o quiet --part 1/2 -q");
    quiet.expect(0, "", "");
}
