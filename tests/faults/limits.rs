//! Limits that a system sets: memory, open files, sizes of files, computing time.

use super::{content, in_shell, leftovers, number, numbers, sparse};
use crate::common::promises::record;
use crate::common::{Bench, shard, tree};
use std::fs;

/// Standard allocations that fail end the process at once, whether Rust or the C library makes them; what is under way
/// then is still beside the output, as after a SIGKILL, and the output is what it was.
#[test]
fn with_too_little_memory_the_output_is_old_or_new() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(3 << 20));
    bench.run("cast x.npy --to f16 -o new.npy -q -j2").expect(0, "", "");
    let (old, new) = (numbers(10), bench.read("new.npy"));
    let (mut tried, mut clean, mut aborted, mut done) = (0, 0, 0, 0);
    let steps = number("TCAST_FAULTS", 40) as u64;
    for limit in (0..steps).map(|step| 12_000 + step * 60_000 / steps) {
        bench.write("out.npy", &old);
        let shell = format!("ulimit -v {limit}; ulimit -c 0; exec \"$@\"");
        let said = in_shell(&bench, &shell, "cast x.npy --to f16 -o out.npy -q -f -j2 --no-sync");
        let there = content(&bench.path("out.npy")).unwrap();
        match (said.code, said.stderr.is_empty()) {
            (Some(0), _) => {
                assert!(there == new, "{limit}");
                done += 1;
            }
            // 127: not even the libraries could be loaded. Killed without a message: not even the program.
            (Some(1 | 127), false) | (None, true) => {
                assert!(there == old, "{limit}: {said:?}");
                assert_eq!(bench.files(), ["new.npy", "out.npy", "x.npy"], "{limit}: {said:?}");
                let advised = "out.npy: out of memory\n  use fewer threads with -j";
                assert!(!said.stderr.contains("out of memory") || said.stderr.contains(advised), "{limit}: {said:?}");
                clean += 1;
            }
            (None | Some(134), _) => {
                // The last one is of Rust, before the program begins.
                let known = ["memory allocation of ", "Fatal glibc error: ", "to allocate an alternative stack"];
                assert!(there == old && known.iter().any(|known| said.stderr.contains(known)), "{limit}: {said:?}");
                leftovers(&bench);
                aborted += 1;
            }
            other => panic!("{limit}: {other:?}: {said:?}"),
        }
        tried += 1;
    }
    assert!(done > 0 && clean > 0);
    let figure = format!("{tried} limits: {done} done, {clean} refused, {aborted} aborted");
    record("with_too_little_memory_the_output_is_old_or_new", &figure);
}

#[test]
fn a_thousand_shards_need_no_thousand_open_files() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..1000 {
        let content = shard(&[(&format!("w{number}"), number as f32, 2)]);
        bench.write(&format!("in/s{number:04}.safetensors"), &content);
    }
    let limited = "ulimit -n 64; exec \"$@\"";
    in_shell(&bench, limited, "cast in --to f16 -o out -q --no-sync").expect(0, "", "");
    assert_eq!(tree(&bench.path("out")).len(), 1001);
    in_shell(&bench, limited, "cast in --to f16 -o one.safetensors -q --no-sync").expect(0, "", "");
    in_shell(&bench, limited, "cast one.safetensors --to f16 -o again --max-shard-size 4B -q --no-sync")
        .expect(0, "", "");
    assert_eq!(in_shell(&bench, limited, "diff out again -q").code, Some(0));
    // As few as there can be: standard streams, and one more for whatever is done.
    for files in 3..12 {
        let shell = format!("ulimit -n {files}; exec \"$@\"");
        let said = in_shell(&bench, &shell, "cast one.safetensors --to bf16 -o few.safetensors -q -f --no-sync");
        assert!(matches!(said.code, Some(0 | 1 | 127)), "{files}: {said:?}");
        assert_eq!(bench.path("few.safetensors").exists(), said.code == Some(0), "{files}");
        assert!(!bench.files().iter().any(|name| name.starts_with(".tcast-")), "{files}");
        let _ = fs::remove_file(bench.path("few.safetensors"));
    }
    record("a_thousand_shards_need_no_thousand_open_files", "1,000 shards, 64 open files");
}

#[test]
fn a_file_that_may_not_be_so_long_is_an_error_of_writing() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100_000));
    bench.write("out.npy", b"old");
    for blocks in [0, 1, 100, 380] {
        let shell = format!("ulimit -f {blocks}; exec \"$@\"");
        let said = in_shell(&bench, &shell, "cast x.npy --to f16 -o out.npy -f -q");
        said.expect(1, "", "tcast: error: out.npy: cannot write: file too large\n");
        assert_eq!(bench.read("out.npy"), b"old");
        assert_eq!(bench.files(), ["out.npy", "x.npy"]);
    }
}

#[test]
fn a_report_that_may_not_be_so_long_hides_neither_results_nor_refusals() {
    let bench = Bench::new();
    for name in ["x.npy", "y.npy"] {
        bench.write(name, &numbers(10));
    }
    for inputs in ["x.npy", "x.npy y.npy"] {
        let line = format!("cast {inputs} --to e4m3 --fail-on inexact --json --report r.json -o out -q");
        let said = in_shell(&bench, "ulimit -f 1; exec \"$@\"", &line);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(said.stdout.starts_with("{\"bytes_in\"") && said.stdout.ends_with("}\n"), "{said:?}");
        assert!(said.stderr.contains("r.json: cannot write: file too large\n"), "{said:?}");
        assert!(!said.stderr.contains("the output is complete"), "{said:?}");
        assert_eq!(bench.files(), ["x.npy", "y.npy"]);
    }
}

#[test]
fn the_end_of_computing_time_is_an_interrupt() {
    let bench = Bench::new();
    // More than any machine makes text of in a second.
    sparse(&bench.path("x.npy"), 1 << 36);
    let said = in_shell(&bench, "ulimit -S -t 1; exec \"$@\"", "cast x.npy --to string -o out.npz -q --no-sync");
    said.expect(130, "", "tcast: interrupted, no output was written\n");
    assert_eq!(bench.files(), ["x.npy"]);
}
