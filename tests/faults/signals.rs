//! Signals: SIGKILL at any moment, and those that ask the program to end.

use super::hold::hold;
use super::{Moments, Outcome, has_strace, leftovers, number, numbers, skip, sparse, traced};
use crate::common::promises::record;
use crate::common::{Bench, long_decoding, long_encoding, long_work, npy, same, shard, tree};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Ends a run after some time.
fn end(bench: &Bench, line: &str, signal: &str, after: Duration) -> Output {
    let mut command = bench.command();
    command.args(line.split(' ')).stderr(Stdio::piped()).stdout(Stdio::null());
    let child = command.spawn().unwrap();
    std::thread::sleep(after);
    let _ = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    child.wait_with_output().unwrap()
}

/// What a loader sees of a folder.
fn visible(mut there: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    there.retain(|name, _| !name.starts_with(".tcast"));
    there
}

/// Nobody takes a folder for a checkpoint while work is going on in it.
fn check_refused(bench: &Bench, there: &BTreeMap<String, Vec<u8>>) {
    if bench.path("out/.tcast").exists() {
        let said = bench.run("inspect out");
        assert!(said.code == Some(1) && said.stderr.contains("an unfinished conversion is in it"), "{said:?}");
    } else if !visible(there.clone()).is_empty() {
        assert_eq!(bench.run("inspect out").code, Some(0));
    }
}

#[test]
fn a_run_that_is_killed_at_any_moment_can_be_resumed() {
    let mut killed = 0;
    let few = number("TCAST_KILLS", 10);
    for (work, kills) in [(long_work(), number("TCAST_KILLS", 20)), (long_decoding(), few), (long_encoding(), few)] {
        killed += kill_and_resume(work, kills);
    }
    record("a_run_that_is_killed_at_any_moment_can_be_resumed", &format!("{killed} kills"));
}

/// Kills a run at random moments, and the runs that resume it; gives how often.
fn kill_and_resume((bench, line): (Bench, &str), kills: usize) -> usize {
    let timed = format!("{} --no-sync", line.replace("-o out", "-o timed"));
    let line = format!("{line} --no-sync");
    let whole = tree(&bench.path("whole"));
    let mut moments = Moments::within(|| bench.run(&timed).expect(0, "", ""));
    let mut killed = 0;
    while killed < kills {
        // As long as it is killed, each time at another moment.
        let mut resume = "";
        loop {
            let outcome = end(&bench, &format!("{line}{resume}"), "KILL", moments.next());
            moments.was_under_way(outcome.status.code().is_none());
            if outcome.status.code().is_some() {
                let error = String::from_utf8(outcome.stderr).unwrap();
                // The run before may have been killed between its last deed and its end.
                let is_done = outcome.status.success() || error.contains("the output exists already");
                assert!(is_done, "{killed}: {error}");
                break;
            }
            killed += 1;
            let there = if bench.path("out").exists() { tree(&bench.path("out")) } else { BTreeMap::new() };
            // Nothing, or all.
            let visible = visible(there.clone());
            assert!(visible.is_empty() || visible == whole, "{:?}", there.keys());
            check_refused(&bench, &there);
            let is_begun = there.contains_key(".tcast/manifest.json") || there.contains_key(".tcast/end.json");
            resume = if is_begun || !visible.is_empty() { " --resume" } else { "" };
        }
        same(&tree(&bench.path("out")), &whole);
        fs::remove_dir_all(bench.path("out")).unwrap();
        assert_eq!(bench.files(), ["in", "timed", "whole"]);
    }
    killed
}

#[test]
fn an_interrupt_keeps_whole_shards_for_a_resume_and_nothing_else() {
    for (bench, line) in [long_work(), long_decoding(), long_encoding()] {
        interrupt_and_resume(&bench, line);
    }
}

fn interrupt_and_resume(bench: &Bench, line: &str) {
    // The call that writes the second shard, and later ones.
    for at in [9, 20] {
        let mut command = bench.command();
        command.args(line.split(' ')).arg("-j1");
        let Some(held) = hold(command, "pwrite64", at) else { return };
        held.signal("INT").expect(
            130,
            "",
            "tcast: interrupted, finished shards are kept in out/.tcast: the same command with --resume continues it\n",
        );
        let left: Vec<String> = tree(&bench.path("out/.tcast")).into_keys().collect();
        assert!(!left.iter().any(|name| name.contains(".tcast-")), "{left:?}");
        assert!(left.iter().any(|name| name.ends_with(".safetensors")), "{left:?}");
        bench.run(line).expect(
            1,
            "",
            "tcast: error: out: an unfinished conversion is in it\n  \
             add --resume to continue it, or --force to start again\n",
        );
        bench.run(&format!("{line} --resume")).expect(0, "", "");
        same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
    // Before there is a whole shard, nothing is worth keeping.
    let mut command = bench.command();
    command.args(line.split(' ')).arg("-j1");
    let Some(held) = hold(command, "pwrite64", 1) else { return };
    held.signal("INT").expect(130, "", "tcast: interrupted, no output was written\n");
    assert_eq!(bench.files(), ["in", "whole"]);
}

/// The signals that ask to end. What this process was told to ignore, as by nohup, its children ignore too.
fn heeded() -> Vec<&'static str> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let maybe = [
        ("HUP", 1),
        ("QUIT", 3),
        ("USR1", 10),
        ("USR2", 12),
        ("ALRM", 14),
        ("VTALRM", 26),
        ("PROF", 27),
        ("IO", 29),
        ("PWR", 30),
        ("34", 34),
        ("64", 64),
    ];
    let is_heeded = |(name, number): &(&str, u32)| {
        let is_ignored = ignored >> (number - 1) & 1 == 1;
        if is_ignored {
            skip(&format!("SIG{name}"), "it is ignored, as under nohup");
        }
        !is_ignored
    };
    let maybe = maybe.into_iter().filter(is_heeded).map(|(name, _)| name);
    ["INT", "TERM", "XCPU"].into_iter().chain(maybe).collect()
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let bench = Bench::new();
    sparse(&bench.path("a.npy"), 1 << 22);
    bench.write("b.npy", &npy("'<f8'", "(1,)", &[0; 8]));
    for signal in heeded() {
        for line in ["cast a.npy --to int8", "promote a.npy b.npy -o out"] {
            let mut command = bench.command();
            command.args(line.split(' ')).args(["-j1", "--no-sync"]).env("NO_UNNAMED", "1");
            let Some(held) = hold(command, "pwrite64", 2) else { return };
            held.signal(signal).expect(130, "", "tcast: interrupted, no output was written\n");
            assert_eq!(bench.files(), ["a.npy", "b.npy"], "SIG{signal}");
        }
    }
}

#[test]
fn an_output_is_old_or_new_whenever_the_run_is_killed() {
    let kills = number("TCAST_KILLS", 40);
    let bench = Bench::new();
    bench.write("x.npy", &numbers(400_000));
    let line = "cast x.npy --to f16 -o out.npz -f -q";
    let mut moments = Moments::within(|| bench.run(line).expect(0, "", ""));
    let (old, new) = (numbers(1000), bench.read("out.npz"));
    let (mut killed, mut replaced) = (0, 0);
    while killed < kills {
        bench.write("out.npz", &old);
        let outcome = end(&bench, line, "KILL", moments.next());
        moments.was_under_way(outcome.status.code().is_none());
        let there = bench.read("out.npz");
        assert!(there == old || there == new, "killed {killed} times: the output is neither old nor new");
        let left = leftovers(&bench);
        if outcome.status.code().is_some() {
            assert!(outcome.status.success() && there == new && left.is_empty(), "{outcome:?}");
            continue;
        }
        killed += 1;
        replaced += usize::from(there == new);
        assert!(left.len() <= 1, "{left:?}");
    }
    let figure = format!("{killed} kills: {} old, {replaced} new", killed - replaced);
    record("an_output_is_old_or_new_whenever_the_run_is_killed", &figure);
}

#[test]
fn a_folder_that_is_being_replaced_is_the_old_one_or_the_new_one_and_a_resume_completes_it() {
    let kills = number("TCAST_KILLS", 20);
    let bench = Bench::new();
    for (folder, value) in [("first", 1.5), ("second", 2.5)] {
        fs::create_dir(bench.path(folder)).unwrap();
        for number in 0..4 {
            let content = shard(&[(&format!("w{number}"), value, 20_000)]);
            bench.write(&format!("{folder}/s{number}.safetensors"), &content);
        }
        bench.run(&format!("cast {folder} --to f16 -o {folder}16 -q")).expect(0, "", "");
    }
    let wholes = ["first16", "second16"].map(|folder| tree(&bench.path(folder)));
    let work = || bench.run("cast second --to f16 -o first16 -q -f --no-sync").expect(0, "", "");
    let (mut moments, mut killed) = (Moments::within(work), 0);
    while killed < kills {
        let _ = fs::remove_dir_all(bench.path("out"));
        bench.run("cast first --to f16 -o out -q --no-sync").expect(0, "", "");
        fs::create_dir(bench.path("out/notes")).unwrap();
        bench.write("out/notes/mine.txt", b"mine");
        let before = bench.files();
        let mut line = "cast second --to f16 -o out -q -f --no-sync".to_owned();
        loop {
            let outcome = end(&bench, &line, "KILL", moments.next());
            moments.was_under_way(outcome.status.code().is_none());
            let there = tree(&bench.path("out"));
            let mut visible = visible(there.clone());
            let mine = visible.remove("notes/mine.txt");
            assert!(wholes.contains(&visible), "the folder is neither old nor new: {:?}", there.keys());
            check_refused(&bench, &there);
            if outcome.status.code().is_some() {
                let said = String::from_utf8(outcome.stderr).unwrap();
                assert!(outcome.status.success() || said.contains("the output exists already"), "{said}");
                break;
            }
            killed += 1;
            // What is not of a checkpoint moves over when the new one is there already.
            assert!(mine.is_some() || there.contains_key(".tcast/end.json"), "{:?}", there.keys());
            let is_begun = there.contains_key(".tcast/manifest.json") || there.contains_key(".tcast/end.json");
            let is_new = visible == wholes[1];
            let flag = if is_begun || is_new { " --resume" } else { " -f" };
            line = format!("cast second --to f16 -o out -q --no-sync{flag}");
        }
        let mut there = tree(&bench.path("out"));
        assert_eq!(there.remove("notes/mine.txt").as_deref(), Some(&b"mine"[..]));
        same(&there, &wholes[1]);
        assert_eq!(bench.files(), before, "something is left beside the folder");
    }
    let test = "a_folder_that_is_being_replaced_is_the_old_one_or_the_new_one_and_a_resume_completes_it";
    record(test, &format!("{killed} kills"));
}

#[test]
fn an_interrupt_after_two_folders_are_exchanged_waits_until_the_old_one_is_gone() {
    if !has_strace("an interrupt while folders are exchanged") {
        return;
    }
    let bench = Bench::new();
    for (folder, value) in [("old", 1.5), ("new", 2.5)] {
        fs::create_dir(bench.path(folder)).unwrap();
        bench.write(&format!("{folder}/s.safetensors"), &shard(&[("w", value, 20)]));
    }
    bench.run("cast old --to f16 -o out -q").expect(0, "", "");
    bench.run("cast new --to f16 -o whole -q").expect(0, "", "");
    let flags = ["-e", "trace=renameat2", "-e", "inject=renameat2:signal=INT:when=1"];
    let said = Outcome::of(&traced(&bench, &flags, "cast new --to f16 -o out -f -q").output().unwrap());
    let end = (said.code, said.stderr.as_str());
    assert!([(Some(0), ""), (Some(130), "tcast: interrupted, the output was complete\n")].contains(&end), "{said:?}");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
    assert_eq!(bench.files(), ["new", "old", "out", "trace", "whole"]);
}

#[test]
fn an_old_checkpoint_without_its_new_one_is_found_before_anything_is_converted() {
    if !has_strace("a run that is killed when folders are exchanged") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.run("cast in --to f16 -o out -q").expect(0, "", "");
    // Killed as the old folder is removed.
    let flags = ["-e", "trace=unlinkat", "-e", "inject=unlinkat:signal=KILL:when=1"];
    traced(&bench, &flags, "cast in --to bf16 -o out -f -q").output().unwrap();
    let left = bench.files().into_iter().find(|name| name.starts_with(".tcast-")).unwrap();
    fs::rename(bench.path("out/s.safetensors"), bench.path(&left).join("s.safetensors")).unwrap();
    fs::remove_dir_all(bench.path("out")).unwrap();
    let said = bench.run("cast in --to f16 -o out --part 1/1");
    let message = format!("{left}: is in the way, and cannot be removed: directory not empty\n  look into it, ");
    assert!(said.code == Some(1) && said.stderr.contains(&message), "{said:?}");
    assert!(!bench.path("out/.tcast/done/0.json").exists());
    assert!(bench.path(&left).join("s.safetensors").exists());
}

#[test]
fn an_outer_output_that_is_replaced_keeps_the_old_files_of_an_inner_one() {
    if !has_strace("a run that is killed when folders are exchanged") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    let mine = |number: usize| format!("a/b/mine{number}.txt");
    for output in ["a", "a/b"] {
        bench.run(&format!("cast in --to f16 -o {output} -q")).expect(0, "", "");
    }
    (0..9).for_each(|number| bench.write(&mine(number), b"mine"));
    bench.run("cast in --to bf16 -o whole -q").expect(0, "", "");
    // Killed when the inner folder is new, and all that the old one had is beside it.
    let flags = ["-e", "trace=?rename,renameat", "-e", "inject=?rename,renameat:signal=KILL:when=2"];
    traced(&bench, &flags, "cast in --to bf16 -o a/b -f -q").output().unwrap();
    assert!(!bench.path(&mine(0)).exists());
    bench.run("cast in --to bf16 -o a -f -q").expect(0, "", "");
    bench.run("cast --finish a/b -q").expect(0, "", "");
    (0..9).for_each(|number| assert_eq!(bench.read(&mine(number)), b"mine"));
    (0..9).for_each(|number| fs::remove_file(bench.path(&mine(number))).unwrap());
    same(&tree(&bench.path("a/b")), &tree(&bench.path("whole")));
    fs::remove_dir_all(bench.path("a/b")).unwrap();
    same(&tree(&bench.path("a")), &tree(&bench.path("whole")));
}

#[test]
fn the_rest_of_a_run_that_was_killed_as_it_removed_the_old_folder_is_removed_by_the_next() {
    if !has_strace("a run that is killed while it removes the old folder") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    for when in 1..=4 {
        let flag = format!("inject=unlinkat:signal=KILL:when={when}");
        traced(&bench, &["-e", "trace=unlinkat", "-e", &flag], "cast in --to bf16 -o out -q").output().unwrap();
        assert!(bench.files().iter().any(|name| name.starts_with(".tcast-")), "{when}");
        fs::remove_dir_all(bench.path("out")).unwrap();
        bench.run("cast in --to bf16 -o out -q").expect(0, "", "");
        assert_eq!(bench.files(), ["in", "out", "trace"], "{when}");
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
}

#[test]
fn whoever_asks_a_run_to_end_finds_the_old_output_or_the_new_one() {
    let times = number("TCAST_KILLS", 30);
    let bench = Bench::new();
    bench.write("x.npy", &numbers(400_000));
    let line = "cast x.npy --to f16 -o out.npy -f -q";
    let mut moments = Moments::within(|| bench.run(line).expect(0, "", ""));
    let (old, new) = (b"old".to_vec(), bench.read("out.npy"));
    let (mut asked, signals) = (0, heeded());
    while asked < times {
        let signal = signals[asked % signals.len()];
        bench.write("out.npy", &old);
        let said = Outcome::of(&end(&bench, line, signal, moments.next()));
        moments.was_under_way(said.code != Some(0));
        let there = bench.read("out.npy");
        assert_eq!(bench.files(), ["out.npy", "x.npy"], "{signal}: {said:?}");
        match (said.code, said.stderr.as_str()) {
            (Some(130), "tcast: interrupted, no output was written\n") => assert!(there == old, "{signal}"),
            (Some(130), "tcast: interrupted, the output was complete\n") | (Some(0), "") => {
                assert!(there == new, "{signal}");
            }
            (None, "") => {
                assert!(there == old, "{signal}"); // before it could listen
                continue;
            }
            _ => panic!("{signal}: {said:?}"),
        }
        asked += 1;
    }
    record("whoever_asks_a_run_to_end_finds_the_old_output_or_the_new_one", &format!("{asked} signals"));
}
