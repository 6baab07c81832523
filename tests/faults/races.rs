//! Several runs, and other programs, at the same place at the same time.

use super::{number, numbers};
use crate::common::promises::record;
use crate::common::{Bench, shard, tree};
use std::fs;
use std::process::{Child, Stdio};

fn start(bench: &Bench, line: &str) -> Child {
    bench.command().args(line.split(' ')).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
}

fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn of_two_runs_to_one_output_one_is_heard() {
    let rounds = number("TCAST_KILLS", 20);
    let bench = Bench::new();
    bench.write("a.npy", &numbers(300_000));
    bench.write("b.npy", &numbers(300_001));
    for name in ["a", "b"] {
        bench.run(&format!("cast {name}.npy --to f16 -o {name}16.npy -q")).expect(0, "", "");
    }
    let (a, b) = (bench.read("a16.npy"), bench.read("b16.npy"));
    let before = bench.files();
    for round in 0..rounds {
        let force = ["", " -f"][round % 2];
        let lines = ["a", "b"].map(|name| format!("cast {name}.npy --to f16 -o out.npy -q --no-sync{force}"));
        let ends = lines.map(|line| start(&bench, &line)).map(end);
        let out = bench.read("out.npy");
        let winners = ends.iter().filter(|(code, _)| *code == Some(0)).count();
        assert!(out == a || out == b, "{ends:?}");
        if force.is_empty() {
            assert_eq!(winners, 1, "{ends:?}");
            assert!(out == if ends[0].0 == Some(0) { &*a } else { &*b });
            let (code, said) = if ends[0].0 == Some(0) { &ends[1] } else { &ends[0] };
            let is_told = said.contains("the output exists already") || said.contains("cannot write: file exists");
            assert!(*code == Some(1) && is_told, "{ends:?}");
        } else {
            assert_eq!(winners, 2, "{ends:?}");
        }
        fs::remove_file(bench.path("out.npy")).unwrap();
        assert_eq!(bench.files(), before);
    }
    record("of_two_runs_to_one_output_one_is_heard", &format!("{rounds} races"));
}

#[test]
fn of_two_runs_to_one_folder_one_is_heard() {
    let rounds = number("TCAST_KILLS", 20);
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..3 {
        bench.write(&format!("in/s{number}.safetensors"), &shard(&[(&format!("w{number}"), 1.5, 2000)]));
    }
    for to in ["f16", "bf16"] {
        bench.run(&format!("cast in --to {to} -o {to} -q")).expect(0, "", "");
    }
    let wholes = ["f16", "bf16"].map(|to| tree(&bench.path(to)));
    for round in 0..rounds {
        let force = ["", " -f"][round % 2];
        let lines = ["f16", "bf16"].map(|to| format!("cast in --to {to} -o out -q --no-sync{force}"));
        let ends = lines.map(|line| start(&bench, &line)).map(end);
        let out = tree(&bench.path("out"));
        assert!(wholes.contains(&out), "{ends:?}: {:?}", out.keys());
        assert!(ends.iter().any(|(code, _)| *code == Some(0)), "{ends:?}");
        for (code, said) in ends.iter().filter(|(code, _)| *code != Some(0)) {
            assert!(*code == Some(1) && said.contains("tcast: error: out"), "{ends:?}");
        }
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
    record("of_two_runs_to_one_folder_one_is_heard", &format!("{rounds} races"));
}
