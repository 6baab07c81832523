//! Clocks, locales and environments as they are found on other machines.

use super::{Outcome, in_shell, numbers, skip};
use crate::common::promises::record;
use crate::common::{Bench, tree};
use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, SystemTime};

#[test]
fn the_bytes_are_the_same_in_any_locale_and_time_zone() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    let line = "cast m.safetensors --to f16 -o out.npz -f --report out.json --stats --no-sync";
    let said = bench.run(line);
    let (npz, words) = (bench.read("out.npz"), said.stderr.lines().next().unwrap().to_owned());
    let settings = [
        "LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8",
        "LC_ALL=de_DE.UTF-8 LC_NUMERIC=de_DE.UTF-8",
        "LC_ALL=C LANG=C",
        "LC_ALL=ja_JP.SJIS",
        "LC_ALL=no such locale",
        "TZ=Pacific/Kiritimati",
        "TZ=/etc/shadow",
        "SOURCE_DATE_EPOCH=0",
        "SOURCE_DATE_EPOCH=-1",
        "TERM=dumb",
        "TERM=",
        "COLUMNS=0 LINES=0",
        "COLUMNS=99999999999999999999",
        "RUST_BACKTRACE=full",
        "HOME=",
        "TMPDIR=/nowhere",
        "PATH=",
    ];
    for setting in settings {
        let mut command = bench.command();
        command.args(line.split(' '));
        let pairs = setting.split(' ').filter_map(|pair| pair.split_once('='));
        command.envs(pairs);
        let said = Outcome::of(&command.output().unwrap());
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{setting}: {said:?}");
        assert_eq!(said.stderr.lines().next(), Some(&*words), "{setting}");
        assert!(bench.read("out.npz") == npz, "{setting}");
        assert!(serde_json::from_slice::<serde_json::Value>(&bench.read("out.json")).is_ok(), "{setting}");
    }
    let mut bare = bench.command();
    assert_eq!(Outcome::of(&bare.env_clear().args(line.split(' ')).output().unwrap()).code, Some(0));
    assert!(bench.read("out.npz") == npz);
    record("the_bytes_are_the_same_in_any_locale_and_time_zone", &format!("{} settings", settings.len() + 1));
}

/// A library that stands before the system's and tells another time.
const CLOCK: &str = "
#define _GNU_SOURCE
#include <stdlib.h>
#include <time.h>
static long calls;
int clock_gettime(clockid_t clock, struct timespec *now) {
    const char *kind = getenv(\"CLOCK\");
    calls++;
    now->tv_nsec = 0;
    now->tv_sec = kind[0] == 'b' ? 1000000 - calls : kind[0] == 's' ? 1000 : calls * 100000000;
    if (clock == CLOCK_REALTIME && kind[0] == 's') now->tv_sec = -86400L * 365 * 200;
    return 0;
}
";

#[test]
fn a_clock_that_stands_still_runs_back_or_is_before_1970_does_no_harm() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    bench.write("clock.c", CLOCK.as_bytes());
    bench.write("x.npy", &numbers(1000));
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o", "clock.so", "clock.c"]).current_dir(bench.path("")).output();
    match built {
        Ok(output) if output.status.success() => {}
        other => return skip("clocks that are wrong", &format!("cc builds no library: {other:?}")),
    }
    bench.run("cast in --to f16 -o whole -q --no-sync").expect(0, "", "");
    bench.run("cast x.npy --to f16 -o whole.npz -q").expect(0, "", "");
    for kind in ["backwards", "still", "leaping"] {
        let with_clock = |line: &str| {
            let mut command = bench.command();
            command.env("LD_PRELOAD", bench.path("clock.so")).env("CLOCK", kind).args(line.split(' '));
            Outcome::of(&command.output().unwrap())
        };
        let said = with_clock("cast in --to f16 -o out --json --no-sync");
        assert_eq!(said.code, Some(0), "{kind}: {said:?}");
        assert!(serde_json::from_str::<serde_json::Value>(&said.stdout).is_ok(), "{kind}: {said:?}");
        assert!(!said.stderr.contains("NaN") && !said.stderr.contains("inf"), "{kind}: {said:?}");
        assert!(tree(&bench.path("out")) == tree(&bench.path("whole")), "{kind}");
        fs::remove_dir_all(bench.path("out")).unwrap();
        with_clock("cast x.npy --to f16 -o out.npz -q -f").expect(0, "", "");
        assert!(bench.read("out.npz") == bench.read("whole.npz"), "{kind}");
    }
    record("a_clock_that_stands_still_runs_back_or_is_before_1970_does_no_harm", "3 clocks");
}

#[test]
fn inputs_of_any_time_are_known_again() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    let name = "in/model-00001-of-00003.safetensors";
    let set =
        |time: SystemTime| File::options().write(true).open(bench.path(name)).unwrap().set_modified(time).unwrap();
    let second = Duration::from_secs(1);
    let epoch = SystemTime::UNIX_EPOCH;
    let times = [epoch - 1000 * second, epoch - Duration::from_nanos(1), epoch, epoch + (1_u32 << 31) * second];
    for time in times {
        set(time);
        bench.run("cast in --to f16 -o out --part 1/2 -q --no-sync").expect(0, "", "");
        // A second later it is another file, on either side of 1970.
        set(time + second);
        let said = bench.run("cast in --to f16 -o out --resume");
        assert!(said.code == Some(1) && said.stderr.contains("was changed since"), "{time:?}: {said:?}");
        set(time);
        bench.run("cast in --to f16 -o out --resume -q --no-sync").expect(0, "", "");
        fs::remove_dir_all(bench.path("out")).unwrap();
    }
}

#[test]
fn closed_streams_and_a_folder_that_is_gone_do_no_harm() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1000));
    bench.run("cast x.npy --to f16 -o whole.npy -q").expect(0, "", "");
    let whole = bench.read("whole.npy");
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        // What is opened next must not become the place of messages.
        let shell = format!("exec \"$@\" {closed}");
        let said = in_shell(&bench, &shell, "cast x.npy --to f16 -o out.npy -f --json");
        assert_eq!(said.code, Some(0), "{closed}: {said:?}");
        assert!(bench.read("out.npy") == whole, "{closed}");
    }
    let full = in_shell(&bench, "exec \"$@\" > /dev/full", "cast x.npy --to f16 -o out.npy -f --json -q");
    full.expect(1, "", "tcast: error: cannot write to standard output: no space left on device\n");
    assert_eq!(in_shell(&bench, "exec \"$@\" 2> /dev/full", "cast x.npy --to f16 -o out.npy -f").code, Some(0));
    fs::create_dir(bench.path("gone")).unwrap();
    let (from, to) = (bench.path("x.npy"), bench.path("out.npy"));
    let line = format!("cast {} --to f16 -q -f -o {}", from.display(), to.display());
    in_shell(&bench, "cd gone; rmdir ../gone; exec \"$@\"", &line).expect(0, "", "");
    fs::create_dir(bench.path("gone")).unwrap();
    let said =
        in_shell(&bench, "cd gone; rmdir ../gone; exec \"$@\"", &format!("cast {} --to f16 -o y.npy", from.display()));
    assert!(said.code == Some(1) && said.stderr.starts_with("tcast: error: y.npy: "), "{said:?}");
}
