//! A system that refuses: each of its calls is made to fail, one at a time.

use super::{has_strace, leftovers, number, numbers, outcome, traced};
use crate::common::promises::record;
use crate::common::{Bench, shard, tree};
use std::collections::BTreeMap;
use std::fs;

/// Calls, and what each of them may be answered. Not `close`: the standard library panics where that of a folder fails.
const REFUSALS: &[(&str, &[&str])] = &[
    ("openat", &["EACCES", "EMFILE", "EIO"]),
    ("read", &["EIO"]),
    ("fallocate", &["ENOSPC", "EDQUOT", "EFBIG", "EOPNOTSUPP"]),
    ("pwrite64", &["ENOSPC", "EIO", "EDQUOT", "EFBIG"]),
    ("fsync", &["EIO", "ENOSPC"]),
    ("rename", &["EIO", "EACCES"]),
    ("renameat2", &["EIO", "EINVAL"]),
    ("link", &["EPERM", "EIO"]),
    ("linkat", &["EPERM", "EIO"]),
    ("mkdir", &["ENOSPC", "EACCES"]),
    ("mmap", &["ENOMEM"]),
    ("madvise", &["EFAULT", "EINVAL"]),
    ("statx", &["EIO", "EACCES"]),
    ("fstat", &["EIO"]),
    ("newfstatat", &["EIO"]),
    ("statfs", &["EIO"]),
    ("getdents64", &["EIO"]),
    ("flock", &["ENOLCK", "EIO"]),
    ("fchmod", &["EPERM"]),
    ("lseek", &["EIO"]),
    ("fcntl", &["EINVAL"]),
    ("clone3", &["EAGAIN"]),
    ("munmap", &["EINVAL"]),
    ("unlink", &["EIO"]),
    ("socketpair", &["EMFILE"]),
    ("rt_sigaction", &["EINVAL"]),
];

/// How often the program itself makes each call in a run, and how often the loader and the run time have before.
fn counts(bench: &Bench, line: &str) -> BTreeMap<String, [usize; 2]> {
    let output = traced(bench, &["-e", "trace=all"], line).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = String::from_utf8_lossy(&bench.read("trace")).into_owned();
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut phase = 0;
    let main = trace.split(' ').next().unwrap().to_owned();
    // Each thread is counted by itself; all but the listening to signals is done by the first.
    for call in trace.lines().filter_map(|line| line.strip_prefix(&main)) {
        phase = phase.max(usize::from(
            call.contains("SIGBUS, {sa_handler") && call.contains("SA_ONSTACK|SA_SIGINFO") && phase == 0,
        ));
        let name = call.trim_start().split('(').next().unwrap();
        if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            counts.entry(name.to_owned()).or_default()[phase] += 1;
        }
    }
    counts
}

/// Fails calls of a run, as many of each kind as are asked for, and hands over what became of it.
fn fail_each(bench: &Bench, line: &str, prepare: impl Fn(), check: impl Fn(&str, &crate::common::Outcome)) -> usize {
    let most = number("TCAST_FAULTS", 2);
    prepare();
    let counts = counts(bench, line);
    let mut tried = 0;
    for (call, answers) in REFUSALS {
        let Some([before, own]) = counts.get(*call) else { continue };
        let thinned = own.div_ceil(most).max(1);
        for (at, answer) in (1..=*own).step_by(thinned).zip(answers.iter().cycle()) {
            let answers = if most > *own { *answers } else { std::slice::from_ref(answer) };
            for answer in answers {
                prepare();
                let (trace, inject) =
                    (format!("trace={call}"), format!("inject={call}:error={answer}:when={}", before + at));
                let said = outcome(traced(bench, &["-e", &trace, "-e", &inject], line).output().unwrap());
                let what = format!("{call} {at} of {own} answered with {answer}");
                check(&what, &said);
                tried += 1;
            }
        }
    }
    tried
}

#[test]
fn whatever_the_system_refuses_an_output_is_old_or_new() {
    if !has_strace("system calls that fail") {
        return;
    }
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1 << 19));
    let line = "cast x.npy --to bf16 -o out.npz -f -q -j1 --report report.json";
    bench.run(line).expect(0, "", "");
    let new = bench.read("out.npz");
    let prepare = || {
        bench.write("out.npz", b"old");
        let _ = fs::remove_file(bench.path("report.json"));
    };
    let check = |what: &str, said: &crate::common::Outcome| {
        let there = bench.read("out.npz");
        assert!(there == b"old" || there == new, "{what}: the output is neither old nor new");
        match said.code {
            Some(0) => assert!(there == new && said.stderr.is_empty(), "{what}: {said:?}"),
            // The name counts before the folder is flushed, and the report comes after it.
            Some(1) => assert!(said.stderr.starts_with("tcast: error: "), "{what}: {said:?}"),
            // Only where there is no memory for a few bytes.
            _ => {
                assert!(what.starts_with("mmap ") && said.stderr.contains("memory allocation of "), "{what}: {said:?}");
            }
        }
        let left = leftovers(&bench);
        let may_leave = what.starts_with("unlink") || what.starts_with("mmap") && said.code != Some(1);
        assert!(left.is_empty() || may_leave, "{what}: {left:?}");
    };
    let tried = fail_each(&bench, line, prepare, check);
    assert!(tried > 20, "{tried}");
    record("whatever_the_system_refuses_an_output_is_old_or_new", &format!("{tried} calls failed"));
}

#[test]
fn whatever_the_system_refuses_a_folder_can_be_finished() {
    if !has_strace("system calls that fail while a folder is written") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..3 {
        let content = shard(&[(&format!("w{number}"), number as f32, 20)]);
        bench.write(&format!("in/s{number}.safetensors"), &content);
    }
    bench.write("in/config.json", b"{}");
    bench.run("cast in --to f16 -o whole -q").expect(0, "", "");
    let whole = tree(&bench.path("whole"));
    let (out, line) = (bench.path("out"), "cast in --to f16 -o out -q -j1");
    let prepare = || drop(fs::remove_dir_all(&out));
    let check = |what: &str, said: &crate::common::Outcome| {
        let there = if out.exists() { tree(&out) } else { BTreeMap::new() };
        match said.code {
            Some(0) => assert!(there == whole && said.stderr.is_empty(), "{what}: {said:?}"),
            Some(1) => assert!(said.stderr.contains("tcast: error: "), "{what}: {said:?}"),
            _ => {
                assert!(what.starts_with("mmap ") && said.stderr.contains("memory allocation of "), "{what}: {said:?}");
            }
        }
        // What a loader begins with comes last.
        let files = there.keys().filter(|name| !name.starts_with(".tcast")).count();
        assert!(
            !there.contains_key("model.safetensors.index.json") || files == whole.len(),
            "{what}: {:?}",
            there.keys()
        );
        if there != whole {
            let is_begun = there.contains_key(".tcast/manifest.json") || there.contains_key(".tcast.json");
            let resume = if is_begun { " --resume" } else { "" };
            let again = bench.run(&format!("{line}{resume}"));
            assert_eq!(again.code, Some(0), "{what}: {said:?}, then {again:?}");
            assert!(tree(&out) == whole, "{what}");
        }
    };
    let tried = fail_each(&bench, line, prepare, check);
    assert!(tried > 20, "{tried}");
    record("whatever_the_system_refuses_a_folder_can_be_finished", &format!("{tried} calls failed"));
}

#[test]
fn a_side_file_that_the_disk_does_not_give_is_an_error_and_not_left_out() {
    if !has_strace("a side file that the disk does not give") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.write("in/config.json", b"{}");
    let line = "cast in --to f16 -o out -q -j1";
    assert!(traced(&bench, &["-e", "trace=statx"], &format!("{line} -n")).status().unwrap().success());
    let trace = String::from_utf8(bench.read("trace")).unwrap();
    let at = trace.lines().position(|line| line.contains("in/config.json")).unwrap() + 1;
    let inject = format!("inject=statx:error=EIO:when={at}");
    let said = outcome(traced(&bench, &["-e", "trace=statx", "-e", &inject], line).output().unwrap());
    said.expect(1, "", "tcast: error: in/config.json: cannot read: input/output error\n");
    assert!(!bench.path("out").exists());
}
