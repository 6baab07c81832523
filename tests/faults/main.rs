//! Faults, one after the other, made on purpose: disks that are full, inputs that change, signals, limits, strange names,
//! systems that refuse. Whatever happens, an output is whole or not there, what was there before is whole, and nothing
//! else is left behind.
//!
//! `TCAST_KILLS=500` kills more often, `TCAST_FAULTS=1000` fails every single system call. `TCAST_REFRESH=1` writes the
//! figures into SECURITY.md. What needs strace or a mount is skipped where that is not to be had, with a line about it on
//! standard error; with `TCAST_NO_SKIP=1` a skip is a failure.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;

mod crash;
mod disk;
mod hold;
mod images;
mod inputs;
mod limits;
mod names;
mod naming;
mod promises;
mod races;
mod refused;
mod signals;
mod surroundings;
mod sync;

use common::{Bench, Outcome};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A number from the environment, or the one for every day.
fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |number| number.parse().unwrap())
}

/// Says aloud, past the capture of the test harness, that something was not tested.
fn skip(what: &str, why: &str) {
    assert!(std::env::var_os("TCAST_NO_SKIP").is_none(), "{what} cannot be skipped: {why}");
    // `eprintln` would be captured.
    std::io::stderr().write_all(format!("SKIPPED: {what}: {why}\n").as_bytes()).unwrap();
}

/// Whether strace is there and may trace; if not, that is told.
fn has_strace(what: &str) -> bool {
    let run = Command::new("strace").args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=none", "true"]).output();
    match run {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            skip(what, &format!("strace may not trace: {}", String::from_utf8_lossy(&output.stderr).trim()));
            false
        }
        Err(error) => {
            skip(what, &format!("strace: {error}"));
            false
        }
    }
}

/// The program under strace, in the folder of a bench; the trace goes to `trace` there.
fn traced(bench: &Bench, flags: &[&str], line: &str) -> Command {
    let mut command = Command::new("strace");
    command.current_dir(bench.path("")).args(["-f", "-qq", "-o", "trace"]).args(flags);
    command.arg(assert_cmd::cargo::cargo_bin!("tcast")).args(line.split(' '));
    command
}

/// The calls in a trace, each with its thread. One that another thread's call interrupts counts when it ends, and a close when it
/// begins: from then on a new file can have its number.
fn calls(trace: &str) -> Vec<(&str, String)> {
    let (mut calls, mut unfinished) = (Vec::new(), BTreeMap::new());
    for line in trace.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        if let Some(begin) = call.strip_suffix(" <unfinished ...>") {
            if begin.starts_with("close(") {
                calls.push((thread, format!("{begin}) = 0")));
            } else {
                unfinished.insert(thread, begin);
            }
        } else if let Some((_, end)) = call.strip_prefix("<... ").and_then(|call| call.split_once(" resumed>")) {
            if let Some(begin) = unfinished.remove(thread) {
                calls.push((thread, format!("{begin}{end}")));
            }
        } else if !call.contains("<detached ...>") {
            // Of a thread that ends while strace attaches to it, the call is unknown.
            calls.push((thread, call.to_owned()));
        }
    }
    calls
}

/// The program behind a line of shell, which ends in `exec "$@"`.
fn in_shell(bench: &Bench, shell: &str, line: &str) -> Outcome {
    bench.run_script(shell, &line.split(' ').collect::<Vec<_>>())
}

/// What a file holds, if it is there.
fn content(path: &Path) -> Option<Vec<u8>> {
    std::fs::read(path).ok()
}

/// The temporary files that are left; they are removed.
fn leftovers(bench: &Bench) -> Vec<String> {
    let mut left = bench.files();
    left.retain(|name| name.starts_with(".tcast-"));
    for name in &left {
        std::fs::remove_file(bench.path(name)).unwrap();
    }
    left
}

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn new() -> Self {
        Self(88172645463325252)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.next() as f64 / u64::MAX as f64
    }
}

/// Random moments within a run. How long it takes is learned along the way: the machine has other things to do.
struct Moments {
    length: Duration,
    random: Random,
}

impl Moments {
    /// Does the work once, to begin with the time that it takes.
    fn within(work: impl FnOnce()) -> Self {
        let start = Instant::now();
        work();
        Self { length: start.elapsed(), random: Random::new() }
    }

    fn next(&mut self) -> Duration {
        self.length.mul_f64(self.random.share() * 1.1)
    }

    /// The run was under way at the last moment, or over: later ones are adjusted.
    fn was_under_way(&mut self, is_under_way: bool) {
        self.length = self.length.mul_f64(if is_under_way { 1.05 } else { 0.85 });
    }
}

/// A file of float32 numbers, `count` of them, of which the disk holds nothing; gives its length.
fn sparse(path: &Path, count: u64) -> u64 {
    let header = common::npy("'<f4'", &format!("({count},)"), &[]);
    let len = header.len() as u64 + count * 4;
    std::fs::write(path, header).unwrap();
    std::fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    len
}

/// A file of float32 numbers that differ.
fn numbers(count: u32) -> Vec<u8> {
    common::npy_f32(&(0..count).map(|number| number as f32 / 7.0).collect::<Vec<_>>())
}
