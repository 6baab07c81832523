//! A system that refuses: each of its calls is made to fail, one at a time.

use super::{Outcome, calls, has_strace, leftovers, number, numbers, traced};
use crate::common::promises::record;
use crate::common::{Bench, fixture, shard, tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Calls, and what each of them may be answered.
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
    ("getdents64", &["ENOENT", "EIO"]),
    ("close", &["EIO"]),
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

/// By call, the numbers of those that the program itself makes in a run, not the loader and the run time before it. strace counts
/// each thread by itself, so a number is that of one call in each thread.
fn own_calls(bench: &Bench, line: &str) -> BTreeMap<String, BTreeSet<usize>> {
    let output = traced(bench, &["-e", "trace=all"], line).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = String::from_utf8_lossy(&bench.read("trace")).into_owned();
    let calls = calls(&trace);
    let main = calls[0].0;
    // The other thread that matters writes shards to the disk; one more listens to signals.
    let flushes = calls.iter().filter(|(_, call)| call.starts_with("fsync("));
    let matter: BTreeSet<&str> = flushes.map(|(thread, _)| *thread).chain([main]).collect();
    let (mut counts, mut before, mut own) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let mut is_begun = false;
    for (thread, call) in calls.iter().filter(|(thread, _)| matter.contains(thread)) {
        is_begun |= call.contains("SIGBUS, {sa_handler") && call.contains("SA_ONSTACK|SA_SIGINFO");
        let name = call.split('(').next().unwrap();
        if name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
            let count = counts.entry((thread, name)).or_insert(0);
            *count += 1;
            if !is_begun {
                before.insert(name, *count);
            } else if before.get(name).is_none_or(|before| *count > *before) {
                own.entry(name.to_owned()).or_insert_with(BTreeSet::new).insert(*count);
            }
        }
    }
    own
}

/// Fails calls of a run, as many of each kind as are asked for, and hands over what became of it.
fn fail_each(bench: &Bench, line: &str, prepare: impl Fn(), check: impl Fn(&str, &crate::common::Outcome)) -> usize {
    let most = number("TCAST_FAULTS", 2);
    prepare();
    let own = own_calls(bench, line);
    let mut tried = 0;
    for (call, answers) in REFUSALS {
        let Some(own) = own.get(*call) else { continue };
        let thinned = own.len().div_ceil(most).max(1);
        for (at, answer) in own.iter().step_by(thinned).zip(answers.iter().cycle()) {
            let answers = if most > own.len() { *answers } else { std::slice::from_ref(answer) };
            for answer in answers {
                prepare();
                let (trace, inject) = (format!("trace={call}"), format!("inject={call}:error={answer}:when={at}"));
                let said = Outcome::of(&traced(bench, &["-e", &trace, "-e", &inject], line).output().unwrap());
                let what = format!("{call} {at} of {own:?} answered with {answer}");
                check(&what, &said);
                tried += 1;
            }
        }
    }
    tried
}

#[test]
fn a_folder_that_may_not_be_searched_is_named_itself() {
    if !has_strace("a folder without permission") {
        return;
    }
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    let flags = ["-P", "in/.tcast", "-e", "trace=statx", "-e", "inject=statx:error=EACCES"];
    for line in ["inspect in", "cast in --to f16 -o out", "cast --finish in"] {
        let said = Outcome::of(&traced(&bench, &flags, line).output().unwrap());
        let message = "tcast: error: in: cannot read: permission denied\n";
        assert_eq!((said.code, &*said.stdout, &*said.stderr), (Some(1), "", message), "{line}");
    }
}

#[test]
fn whatever_the_system_refuses_a_model_and_its_data_appear_both_or_not() {
    if !has_strace("system calls that fail") {
        return;
    }
    let bench = Bench::new();
    fs::copy(fixture("onnx_models/basic_pitch_nmp.onnx"), bench.path("in.onnx")).unwrap();
    let line = "cast in.onnx --to f16 -o out.onnx -q -j1 --external-data";
    bench.run(line).expect(0, "", "");
    let new = [bench.read("out.onnx"), bench.read("out.onnx.data")];
    let prepare = || {
        for name in ["out.onnx", "out.onnx.data"] {
            let _ = fs::remove_file(bench.path(name));
        }
    };
    let check = |what: &str, said: &crate::common::Outcome| {
        let files: Vec<String> = bench.files().into_iter().filter(|name| name.starts_with("out")).collect();
        if files.is_empty() {
            assert_ne!(said.code, Some(0), "{what}: {said:?}");
        } else if what.starts_with("unlink ") && files == ["out.onnx.data"] {
            // What cannot be removed stays.
        } else {
            assert_eq!(files, ["out.onnx", "out.onnx.data"], "{what}: {said:?}");
            assert!(
                [bench.read("out.onnx"), bench.read("out.onnx.data")] == new,
                "{what}: one of the files is not whole"
            );
        }
    };
    let tried = fail_each(&bench, line, prepare, check);
    assert!(tried > 20, "{tried}");
    record("whatever_the_system_refuses_a_model_and_its_data_appear_both_or_not", &format!("{tried} failing calls"));
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
    for number in 0..6 {
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
            let again = bench.run(&format!("{line} --resume"));
            assert_eq!(again.code, Some(0), "{what}: {said:?}, then {again:?}");
            assert!(tree(&out) == whole, "{what}");
        }
    };
    let tried = fail_each(&bench, line, prepare, check);
    assert!(tried > 20, "{tried}");
    record("whatever_the_system_refuses_a_folder_can_be_finished", &format!("{tried} calls failed"));
}

/// By an exchange of folders, and where there is none by moves: then the folder may be a mixture, which says so.
#[test]
fn whatever_the_system_refuses_a_replaced_folder_is_old_or_new_or_can_be_finished() {
    if !has_strace("system calls that fail while a folder is replaced") {
        return;
    }
    let bench = Bench::new();
    for (folder, value) in [("first", 1.5), ("second", 2.5)] {
        fs::create_dir(bench.path(folder)).unwrap();
        for number in 0..3 {
            let content = shard(&[(&format!("w{number}"), value, 20)]);
            bench.write(&format!("{folder}/s{number}.safetensors"), &content);
        }
        bench.write(&format!("{folder}/config.json"), format!("{{\"value\": {value}}}").as_bytes());
        bench.run(&format!("cast {folder} --to f16 -o {folder}16 -q")).expect(0, "", "");
    }
    let wholes = ["first16", "second16"].map(|folder| tree(&bench.path(folder)));
    let (out, line) = (bench.path("out"), "cast second --to f16 -o out -q -j1 -f");
    let prepare = || {
        let _ = fs::remove_dir_all(&out);
        bench.run("cast first --to f16 -o out -q --no-sync").expect(0, "", "");
        bench.write("out/notes.txt", b"mine");
        let _ = fs::remove_file(bench.path("trace"));
        for left in bench.files().iter().filter(|name| name.starts_with(".tcast-")) {
            fs::remove_dir_all(bench.path(left)).unwrap();
        }
    };
    let check = |what: &str, said: &crate::common::Outcome| {
        let there = tree(&out);
        let mut visible = there.clone();
        visible.retain(|name, _| !name.starts_with(".tcast") && name != "notes.txt");
        let is_unfinished = out.join(".tcast").exists();
        let can_mix = what.starts_with("renameat2") && is_unfinished;
        assert!(wholes.contains(&visible) || can_mix, "{what}: {said:?}: {:?}", there.keys());
        let inspected = bench.run("inspect out");
        assert_eq!(inspected.code, Some(i32::from(is_unfinished)), "{what}: {inspected:?}");
        if said.code == Some(0) {
            assert!(visible == wholes[1] && !is_unfinished, "{what}: {said:?}");
        } else {
            let is_new = is_unfinished || visible == wholes[1];
            let line = line.replace(" -f", if is_new { " --resume" } else { " -f" });
            let mut again = bench.run(&line);
            if again.code != Some(0) {
                again = bench.run(&line.replace(" --resume", " -f")); // nothing was begun
            }
            assert_eq!(again.code, Some(0), "{what}: {said:?}, then {again:?}");
        }
        let mut there = tree(&out);
        assert_eq!(there.remove("notes.txt").as_deref(), Some(&b"mine"[..]), "{what}");
        assert!(there == wholes[1], "{what}: {:?}", there.keys());
        let left = bench.files().into_iter().find(|name| name.starts_with(".tcast-"));
        assert!(left.is_none(), "{what}: {left:?} is left");
    };
    let tried = fail_each(&bench, line, prepare, check);
    assert!(tried > 20, "{tried}");
    // A system without exchanges.
    prepare();
    let refuse = ["-e", "trace=renameat2", "-e", "inject=renameat2:error=EINVAL"];
    Outcome::of(&traced(&bench, &refuse, line).output().unwrap()).expect(0, "", "");
    assert_eq!(fs::read(out.join("notes.txt")).unwrap(), b"mine");
    fs::remove_file(out.join("notes.txt")).unwrap();
    assert!(tree(&out) == wholes[1]);
    let test = "whatever_the_system_refuses_a_replaced_folder_is_old_or_new_or_can_be_finished";
    record(test, &format!("{tried} calls failed"));
}

#[test]
fn a_read_that_fails_once_or_always_is_an_error_whatever_file_it_is_of() {
    if !has_strace("reads that fail") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let codes = r#"{"w":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]}}"#;
    bench.write("q/model.safetensors", &crate::common::safetensors(codes, &[0x38; 4]));
    bench.write("q/model.safetensors.index.json", br#"{"weight_map":{"w":"model.safetensors"}}"#);
    bench.write("q/config.json", br#"{"quantization_config":{"quant_method":"fp8"}}"#);
    let mut tried = 0;
    for input in ["q", "q/model.safetensors"] {
        for file in ["q/config.json", "q/model.safetensors.index.json", "q/model.safetensors", "q"] {
            for (call, answers) in
                [("openat", ["EIO", "EACCES"]), ("read", ["EIO", "EINTR"]), ("getdents64", ["EIO", "EIO"])]
            {
                for (answer, when) in answers.into_iter().flat_map(|answer| [(answer, ":when=1"), (answer, "")]) {
                    if answer == "EINTR" && when.is_empty() {
                        continue; // for ever
                    }
                    let inject = format!("inject={call}:error={answer}{when}");
                    let flags = ["-P", file, "-e", &format!("trace={call}"), "-e", &inject];
                    let line = format!("cast {input} --to bf16 -o out.safetensors");
                    let said = Outcome::of(&traced(&bench, &flags, &line).output().unwrap());
                    let what = format!("{line}: {call} of {file} answered with {answer}{when}: {said:?}");
                    assert_eq!(said.code, Some(1), "{what}");
                    assert!(said.stderr.contains("tcast: error: q"), "{what}"); // strace has a word to say, too
                    assert!(!bench.path("out.safetensors").exists(), "{what}");
                    tried += 1;
                }
            }
        }
    }
    let test = "a_read_that_fails_once_or_always_is_an_error_whatever_file_it_is_of";
    record(test, &format!("{tried} reads failed"));
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
    assert!(traced(&bench, &["-e", "trace=statx"], &line.replace("out", "first")).status().unwrap().success());
    let trace = String::from_utf8(bench.read("trace")).unwrap();
    // A config that cannot be read does not matter to plain values: the first two calls are made to look at it.
    let mut calls = trace.lines().enumerate().filter(|(_, line)| line.contains("in/config.json"));
    let at = calls.nth(2).unwrap().0 + 1;
    let inject = format!("inject=statx:error=EIO:when={at}");
    let said = Outcome::of(&traced(&bench, &["-e", "trace=statx", "-e", &inject], line).output().unwrap());
    let message = "tcast: error: in/config.json: cannot read: input/output error
  make it a file that can be read, or download it again\n";
    said.expect(1, "", message);
    assert!(!bench.path("out").exists());
}

#[test]
fn a_header_that_never_reaches_the_file_is_found_before_the_output_appears() {
    if !has_strace("writes that do nothing") {
        return;
    }
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    bench.write("x.npy", &numbers(1 << 10));
    for (line, output) in [
        ("cast x.npy --to bf16 -o out.npy -q -j1", "out.npy"),
        ("cast x.npy --to bf16 -o out.safetensors -q -j1", "out.safetensors"),
        ("cast in --to f16 -o out -q -j1", "out/model.safetensors"),
    ] {
        let whole = traced(&bench, &["-e", "trace=pwrite64"], line).output().unwrap();
        assert!(whole.status.success(), "{line}: {whole:?}");
        let trace = String::from_utf8_lossy(&bench.read("trace")).into_owned();
        // The write of the header, by its number among those of its thread; the system claims that it was done.
        let all = calls(&trace);
        let is_header = |call: &str| call.contains("NUMPY") || call.contains(r"\0\0{");
        let at = all.iter().position(|(_, call)| is_header(call)).unwrap();
        let number = all[..=at].iter().filter(|(thread, _)| *thread == all[at].0).count();
        let len = all[at].1.rsplit("= ").next().unwrap().trim();
        let inject = format!("inject=pwrite64:retval={len}:when={number}");
        let _ = fs::remove_file(bench.path(output));
        let _ = fs::remove_dir_all(bench.path("out"));
        let said = Outcome::of(&traced(&bench, &["-e", "trace=pwrite64", "-e", &inject], line).output().unwrap());
        assert_eq!((said.code, &*said.stdout), (Some(1), ""), "{line}: {said:?}");
        let start = format!("tcast: error: {}", output.split('/').next().unwrap());
        assert!(said.stderr.starts_with(&start) && said.stderr.contains("internal error: another reader"), "{said:?}");
        assert_eq!(bench.files(), ["in", "trace", "x.npy"], "{line}");
    }
}
