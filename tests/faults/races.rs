//! Several runs, and other programs, at the same place at the same time.

use super::{content, number, numbers};
use crate::common::promises::record;
use crate::common::{Bench, external_tensor, npy_data, npy_f32, shard, tree};
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
fn of_two_runs_to_one_output_one_wins() {
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
            let message = "tcast: error: out.npy: the output exists already
  add --force to replace it, or name another file with -o\n";
            assert!(*code == Some(4) && said == message, "{ends:?}");
        } else {
            assert_eq!(winners, 2, "{ends:?}");
        }
        fs::remove_file(bench.path("out.npy")).unwrap();
        assert_eq!(bench.files(), before);
    }
    record("of_two_runs_to_one_output_one_wins", &format!("{rounds} races"));
}

#[test]
fn of_two_runs_to_one_folder_one_wins() {
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
            assert!(matches!(code, Some(1 | 4)) && said.contains("tcast: error: out"), "{ends:?}");
        }
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
    record("of_two_runs_to_one_folder_one_wins", &format!("{rounds} races"));
}

/// Somebody swaps the external data of a tensor for a link that leads out of its folder, again and again.
#[test]
fn a_link_in_the_place_of_external_data_is_never_followed() {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    let bench = Bench::new();
    fs::create_dir_all(bench.path("model/real")).unwrap();
    fs::create_dir(bench.path("secret")).unwrap();
    let own = npy_f32(&[1.0, 2.0]);
    bench.write("model/real/w.bin", npy_data(&own));
    bench.write("secret/w.bin", npy_data(&npy_f32(&[8.0, 9.0])));
    bench.write("model/file.pb", &external_tensor(&[("location", "w.bin")]));
    bench.write("model/folder.pb", &external_tensor(&[("location", "data/w.bin")]));
    let (file, folder) = (bench.path("model/w.bin"), bench.path("model/data"));
    let (other, aside) = (bench.path("model/other"), bench.path("model/aside"));
    fs::create_dir(&folder).unwrap();
    fs::copy(bench.path("model/real/w.bin"), folder.join("w.bin")).unwrap();
    let is_over = AtomicBool::new(false);
    let swap = || {
        while !is_over.load(Ordering::Relaxed) {
            fs::hard_link(bench.path("model/real/w.bin"), &other).unwrap();
            fs::rename(&other, &file).unwrap();
            symlink("../secret/w.bin", &other).unwrap();
            fs::rename(&other, &file).unwrap();
            fs::rename(&folder, &aside).unwrap();
            symlink("../secret", &folder).unwrap();
            fs::remove_file(&folder).unwrap();
            fs::rename(&aside, &folder).unwrap();
        }
    };
    let times = number("TCAST_KILLS", 100);
    let ended = std::thread::scope(|scope| {
        scope.spawn(swap);
        let run = |name: &&str| {
            let said = bench.run(&format!("cast model/{name}.pb --to f32 -o out.npy -f -q --no-sync"));
            let written = content(&bench.path("out.npy"));
            let _ = fs::remove_file(bench.path("out.npy"));
            (said, written)
        };
        let ended: Vec<_> = ["file", "folder"].iter().cycle().take(times).map(run).collect();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    for (said, written) in ended {
        let is_own = said.code == Some(0) && written.as_ref() == Some(&own);
        assert!(is_own || said.code == Some(1) && written.is_none(), "{said:?}");
    }
    record("a_link_in_the_place_of_external_data_is_never_followed", &format!("{times} races"));
}
