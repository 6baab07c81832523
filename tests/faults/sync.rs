//! What is flushed to the disk, and when: data before a name counts, the name before the run is over.

use super::hold::{hold, replace_calls};
use super::{Outcome, calls, has_strace, numbers, traced};
use crate::common::promises::record;
use crate::common::{Bench, same, shard, tree};
use std::fs;
use std::time::{Duration, Instant};

/// The calls that matter, in their order: flushes with the name of what is flushed, and renames as `FROM -> TO`.
fn calls_of(bench: &Bench, line: &str) -> Vec<String> {
    let flags = ["-y", "-s", "4096", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,link,linkat"];
    let output = traced(bench, &flags, line).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    let trace = String::from_utf8(bench.read("trace")).unwrap();
    let folder = fs::canonicalize(bench.path("")).unwrap();
    let folder = folder.to_str().unwrap();
    let relative = |path: &str| match path.strip_prefix(folder).unwrap_or(path) {
        path if path.starts_with("/proc/") => path.to_owned(),
        path => path.trim_matches('/').trim_start_matches("./").to_owned(),
    };
    let call = |(_, text): (&str, String)| {
        let (name, arguments) = text.split_once('(').unwrap();
        assert!(arguments.contains(" = 0"), "{text}");
        if name.ends_with("sync") {
            let (number, path) = arguments.split_once('<').unwrap();
            let path = path.rsplit_once('>').unwrap().0;
            // A file without a name, which is linked by the number that it is open under.
            return match path.rsplit_once('/') {
                Some((_, name)) if name.starts_with('#') => format!("sync /proc/self/fd/{number}"),
                _ => format!("sync {}", relative(path)),
            };
        }
        let mut paths = arguments.split('"').skip(1).step_by(2).map(relative);
        format!("{} -> {}", paths.next().unwrap(), paths.next().unwrap())
    };
    // A file without a name is linked to its own where that is free, and else to a temporary one.
    let is_call =
        |(_, text): &(&str, String)| !["exited with", "---", " = -1 EEXIST"].iter().any(|other| text.contains(other));
    calls(&trace).into_iter().filter(is_call).map(call).collect()
}

/// Temporary names, wherever they are, and numbers of open files are all called `*`.
fn without_names(calls: Vec<String>) -> Vec<String> {
    let plain = |path: &str| {
        let is_temporary = path.contains(".tcast-") || path.starts_with("/proc/self/fd/");
        if is_temporary { "*".to_owned() } else { path.to_owned() }
    };
    let call = |call: String| match (call.strip_prefix("sync "), call.split_once(" -> ")) {
        (Some(path), _) => format!("sync {}", plain(path)),
        (None, Some((from, to))) => format!("{} -> {}", plain(from), plain(to)),
        (None, None) => call,
    };
    calls.into_iter().map(call).filter(|call| call != "* -> *").collect()
}

#[test]
fn data_are_flushed_before_the_name_and_the_name_before_the_end() {
    if !has_strace("the order of flushes") {
        return;
    }
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100));
    fs::create_dir(bench.path("sub")).unwrap();
    let calls = |line: &str| without_names(calls_of(&bench, line));
    assert_eq!(calls("cast x.npy --to f16 -o sub/y.npy -q"), ["sync *", "* -> sub/y.npy", "sync sub"]);
    assert_eq!(calls("cast x.npy --to f16 -o y.npy -q"), ["sync *", "* -> y.npy", "sync "]);
    let replaced = calls("cast x.npy --to f16 -o sub/y.npy -f -q");
    assert_eq!(replaced, ["sync *", "* -> sub/y.npy", "sync sub"]);
    assert_eq!(calls("bitcast x.npy --to int32 -o z.npy -q"), ["sync *", "* -> z.npy", "sync "]);
    let with_report = calls("cast x.npy --to f16 -o sub/y.npy -f -q --report r.html");
    assert_eq!(with_report[3..], ["sync *", "* -> r.html", "sync "]);
    for line in ["cast x.npy --to f16 -o sub/y.npy -f -q", "bitcast x.npy --to int32 -o z.npy -q -f"] {
        let unsynced = calls(&format!("{line} --no-sync"));
        assert!(unsynced.len() == 1 && unsynced[0].contains(" -> "), "{unsynced:?}");
    }
    record("data_are_flushed_before_the_name_and_the_name_before_the_end", "every flush and rename of 5 runs");
}

/// No rename without a flush of what is renamed before it, and of the folder after it.
#[test]
fn of_a_folder_every_file_is_flushed_before_it_counts() {
    if !has_strace("the order of flushes in a folder") {
        return;
    }
    let bench = Bench::new();
    fs::create_dir_all(bench.path("in/sub")).unwrap();
    for number in 0..3 {
        let content = shard(&[(&format!("w{number}"), number as f32, 20)]);
        bench.write(&format!("in/s{number}.safetensors"), &content);
    }
    bench.write("in/config.json", b"{}");
    bench.write("in/sub/chat.jinja", b"{{ x }}");
    let calls = calls_of(&bench, "cast in --to f16 -o out -q");
    let folder = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let mut synced: Vec<&str> = Vec::new();
    let mut renames = 0;
    for (at, call) in calls.iter().enumerate() {
        if let Some(path) = call.strip_prefix("sync ") {
            synced.push(path);
            continue;
        }
        let (from, to) = call.split_once(" -> ").unwrap();
        if to.ends_with(".tcast-done.tmp") {
            continue; // what is removed need not be flushed
        }
        assert!(synced.contains(&from), "{from} becomes {to} and was not flushed: {calls:#?}");
        synced.retain(|path| !from.starts_with("/proc/") || *path != from); // the number can become that of another file
        synced.push(to);
        let later = |wanted: &str| calls[at..].iter().any(|call| call.strip_prefix("sync ") == Some(wanted));
        assert!(later(&folder(to)), "the folder of {to} is not flushed: {calls:#?}");
        renames += 1;
    }
    // Manifest, index, two side files; three shards with their records: each first under its name in the work folder.
    assert!(renames >= 10, "{calls:#?}");
    // All of it is flushed before the folder gets its place, and that is flushed before anything is removed.
    let position = |wanted: &str| calls.iter().position(|call| call.ends_with(wanted)).unwrap();
    let (last, removed) = (position(" -> out"), position("-> out/.tcast-done.tmp"));
    assert!(calls[last..removed].contains(&"sync ".to_owned()), "{calls:#?}");
    for folder in ["out/.tcast/files", "out/.tcast/files/sub", "out/.tcast/files/.tcast"] {
        assert!(calls[..last].contains(&format!("sync {folder}")), "{folder}: {calls:#?}");
    }
    let unsynced = calls_of(&bench, "cast in --to f16 -o out2 -q --no-sync");
    assert!(!unsynced.iter().any(|call| call.starts_with("sync")), "{unsynced:?}");
    record("of_a_folder_every_file_is_flushed_before_it_counts", &format!("{renames} renames"));
}

/// Three shards, none of whose values are 0, and what a cast makes of them, in `whole`.
fn three_shards() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..3 {
        let content = shard(&[(&format!("w{number}"), 1.5 + number as f32, 2000)]);
        bench.write(&format!("in/s{number}.safetensors"), &content);
    }
    bench.run("cast in --to f16 -o whole -q").expect(0, "", "");
    bench
}

/// The flush of the first shard: that of the manifest and of the index come before it.
const FIRST_SHARD: usize = 3;

#[test]
fn the_next_shard_is_written_while_one_is_flushed() {
    let bench = three_shards();
    let mut command = bench.command();
    command.args("cast in --to f16 -o out -q -j1".split(' ')).env("NO_UNNAMED", "1");
    let Some(held) = hold(command, "fsync", FIRST_SHARD) else { return };
    let begin = Instant::now();
    let files = loop {
        let files = tree(&bench.path("out/.tcast/files"));
        let is_written = |(name, content): &(&String, &Vec<u8>)| {
            name.starts_with(".tcast-") && content.last().is_some_and(|last| *last != 0)
        };
        if files.iter().filter(is_written).count() == 2 {
            break files;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "only these were written: {:?}", files.keys());
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(!files.keys().any(|name| name.ends_with(".safetensors")), "{:?}", files.keys());
    held.release().expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
}

#[test]
fn a_flush_that_fails_is_an_error_of_its_shard_although_the_next_was_begun() {
    let bench = three_shards();
    let line = "cast in --to f16 -o out -q -j1";
    let at = (FIRST_SHARD + 2).to_string(); // the record of the first shard comes between
    let Some(mut command) = replace_calls(bench.command(), &[("FSYNC_AT", &at)]) else { return };
    let said = Outcome::of(&command.args(line.split(' ')).output().unwrap());
    said.expect(
        1,
        "",
        "tcast: 1 of 3 shards are done and kept in out/.tcast: the same command with --resume continues it\n\
         tcast: error: out/.tcast/files/s1.safetensors: cannot write: input/output error\n",
    );
    bench.run(&format!("{line} --resume")).expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
    // A run that replaces a checkpoint is resumed without --force.
    let Some(mut command) = replace_calls(bench.command(), &[("FSYNC_AT", &at)]) else { return };
    let said = Outcome::of(&command.args(line.split(' ')).arg("--force").output().unwrap());
    let kept = "are done and kept in out/.tcast: the same command with --resume instead of --force continues it\n";
    assert!(said.code == Some(1) && said.stderr.contains(kept), "{said:?}");
    bench.run(&format!("{line} --resume")).expect(0, "", "");
}
