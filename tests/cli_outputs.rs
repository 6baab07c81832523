//! Where outputs go: no input is written over, no output twice, and standard output is a stream.
#![cfg(unix)]

mod common;

use common::{Bench, npy_f32, shard, tree};
use std::fs;
use std::os::unix::fs::symlink;

/// A bench with two files of numbers.
fn two_files() -> Bench {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0, 2.0]));
    bench.write("b.npy", &npy_f32(&[3.0]));
    bench
}

#[test]
fn an_output_that_is_a_side_file_of_the_input_by_another_path_is_refused() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("p/in/in")).unwrap();
    bench.write("p/in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.write("p/in/config.json", b"{}");
    bench.write("p/in/in/config.json", b"{\"inner\": 1}");
    let before = tree(&bench.path("p"));
    bench.run("cast p/in --to f16 -o p -f").expect(
        1,
        "",
        "tcast: error: p/in/config.json: is a file of the input, and would be replaced\n  name another folder with -o\n",
    );
    assert_eq!(tree(&bench.path("p")), before);
}

#[test]
fn a_report_that_is_a_file_of_the_input_by_another_path_is_refused() {
    let bench = Bench::new();
    fs::create_dir(bench.path("r")).unwrap();
    bench.write("r/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.write("r/config.json", b"{}");
    symlink("r", bench.path("rl")).unwrap();
    symlink("r/config.json", bench.path("link.json")).unwrap();
    fs::hard_link(bench.path("r/config.json"), bench.path("hard.json")).unwrap();
    let before = tree(&bench.path("r"));
    for input in ["rl", "r", "r/s.safetensors"] {
        for report in ["r/config.json", "rl/config.json", "link.json", "hard.json"] {
            let outcome = bench.run(&format!("cast {input} --to f16 -o o -f --report {report}"));
            assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{input} {report}: {outcome:?}");
            let start = format!("tcast: error: {report}: is a file of the input");
            assert!(outcome.stderr.starts_with(&start), "{input} {report}: {outcome:?}");
        }
    }
    assert_eq!(tree(&bench.path("r")), before);
    assert!(!bench.path("o").exists());
}

#[test]
fn a_report_that_is_the_output_by_another_path_is_refused() {
    let bench = two_files();
    symlink("y.npy", bench.path("r.html")).unwrap();
    fs::create_dir(bench.path("d")).unwrap();
    symlink("d", bench.path("dl")).unwrap();
    symlink("o/r.html", bench.path("in.html")).unwrap();
    for (output, report) in [("y.npy", "r.html"), ("d/r.html.npy", "dl/../r.html"), ("d/x.npy", "dl/x.html")] {
        let outcome = bench.run(&format!("cast a.npy --to f16 -o {output} -f -q --report {report}"));
        if output == "y.npy" {
            let message = "r.html: the report is, or lies in, the output\n  name another file with --report\n";
            outcome.expect(1, "", &format!("tcast: error: {message}"));
        } else {
            outcome.expect(0, "", "");
            assert!(bench.read(output).starts_with(b"\x93NUMPY"), "{output}");
        }
    }
    // One that is there already is the same file as well.
    bench.write("y.npy", b"old");
    let outcome = bench.run("cast a.npy --to f16 -o y.npy -f --report r.html");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("the report is, or lies in, the output"), "{outcome:?}");
    assert_eq!(bench.read("y.npy"), b"old");
}

#[test]
fn two_outputs_that_are_one_file_are_refused() {
    let bench = two_files();
    fs::create_dir(bench.path("o")).unwrap();
    symlink("a.npy", bench.path("o/b.npy")).unwrap();
    let message = "tcast: error: o/b.npy: would be written twice: o/a.npy is the same file\n  name another file\n";
    bench.run("promote a.npy b.npy -o o -f").expect(1, "", message);
    assert!(!bench.path("o/a.npy").exists());
    // And when it exists.
    bench.write("o/a.npy", b"old");
    bench.run("promote a.npy b.npy -o o -f").expect(1, "", message);
    assert_eq!(bench.read("o/a.npy"), b"old");
}
