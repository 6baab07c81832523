//! Disks that are full, that fail, that may not be written to, or go away.

use super::hold::hold;
use super::{content, has_strace, in_shell, number, numbers, skip};
use crate::common::promises::record;
use crate::common::{Bench, shard, tree};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs a script with a mount namespace of its own, as root or as somebody who is it in there. `None` where the system
/// does not let us, which is told.
fn with_mounts(bench: &Bench, what: &str, script: &str) -> Option<String> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-ec", script, "sh"]).arg(assert_cmd::cargo::cargo_bin!("tcast"));
        command.current_dir(bench.path("")).output()
    };
    fs::create_dir_all(bench.path("disk")).unwrap();
    match shell("mount -t tmpfs tmpfs disk") {
        Ok(output) if output.status.success() => {}
        refused => {
            skip(what, &format!("a tmpfs cannot be mounted: {refused:?}"));
            return None;
        }
    }
    let output = shell(script).unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Converts to a small disk of `unit` (size or number of files) after the other, and copies what is on it then to
/// `after.N`, exit code and standard error to `code.N` and `error.N`.
fn sweep(unit: &str, line: &str, prepare: &str, sizes: &[usize], around: &str) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    format!(
        "for size in {}; do
           mount -t tmpfs -o {unit}=$size tmpfs disk
           {prepare}
           code=0; {around} \"$1\" {line} 2> error.$size || code=$?
           echo $code > code.$size; cp -a disk after.$size; umount disk
         done",
        sizes.join(" ")
    )
}

fn text(bench: &Bench, name: &str) -> String {
    String::from_utf8(bench.read(name)).unwrap()
}

/// The sizes of disks to try: some of them every day, all of them on request.
fn sizes(from: usize, to: usize, step: usize) -> Vec<usize> {
    let all: Vec<usize> = (from..=to).step_by(step).collect();
    let thinned = all.len().div_ceil(number("TCAST_FAULTS", 12));
    let last = all.len() - 1;
    all.into_iter().enumerate().filter(|(at, _)| at % thinned == 0 || *at == last).map(|(_, size)| size).collect()
}

#[test]
fn a_disk_that_fills_up_at_any_byte_leaves_the_old_output_or_the_new_one() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(60_000));
    bench.run("cast x.npy --to bf16 -o whole.npy -q").expect(0, "", "");
    let (old, whole) = (numbers(10), bench.read("whole.npy"));
    bench.write("old.npy", &old);
    let what = "writing to a disk that fills up";
    // The system does not tell how much room there is: then it is found out by writing.
    let blind = "strace -f -qq -o /dev/null -e trace=statfs,fstatfs -e inject=statfs,fstatfs:error=ENOSYS";
    let mut tried = 0;
    for around in ["", blind] {
        if around == blind && !has_strace(what) {
            continue;
        }
        let sizes = sizes(8 << 10, whole.len() + (16 << 10), 4 << 10);
        let line = "cast x.npy --to bf16 -o disk/out.npy -f -q";
        let script = sweep("size", line, "cp old.npy disk/out.npy", &sizes, around);
        if with_mounts(&bench, what, &script).is_none() {
            return;
        }
        let mut codes = [0, 0];
        for size in &sizes {
            let (code, error) = (text(&bench, &format!("code.{size}")), text(&bench, &format!("error.{size}")));
            let there = tree(&bench.path(&format!("after.{size}")));
            let mut there: Vec<(&str, &Vec<u8>)> =
                there.iter().map(|(name, content)| (name.as_str(), content)).collect();
            let (name, content) = there.pop().unwrap();
            assert!(there.is_empty() && name == "out.npy", "{size}: {there:?}");
            match code.trim() {
                "0" => assert!(*content == whole && error.is_empty(), "{size}: {error}"),
                "1" => {
                    assert!(*content == old, "{size}: the old output is gone");
                    let message = if around == blind { "cannot write: no space left" } else { "not enough disk space" };
                    assert!(
                        error.contains("tcast: error: disk/out.npy: ") && error.contains(message),
                        "{size}: {error}"
                    );
                }
                other => panic!("{size}: {other}: {error}"),
            }
            codes[usize::from(code.trim() == "1")] += 1;
            fs::remove_dir_all(bench.path(&format!("after.{size}"))).unwrap();
        }
        assert!(codes[0] > 0 && codes[1] > 2, "{codes:?}");
        tried += codes[1];
    }
    record("a_disk_that_fills_up_at_any_byte_leaves_the_old_output_or_the_new_one", &format!("{tried} full disks"));
}

#[test]
fn a_folder_on_a_full_disk_is_resumed_when_there_is_room() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..4 {
        let content = shard(&[(&format!("w{number}"), number as f32 / 3.0, 4000)]);
        bench.write(&format!("in/s{number}.safetensors"), &content);
    }
    bench.write("in/config.json", b"{}");
    bench.run("cast in --to f16 -o whole -q").expect(0, "", "");
    let whole = tree(&bench.path("whole"));
    let what = "folders on a disk that fills up";
    let mut full = 0;
    // Of room, and of files: each of them is the one that has no place.
    for (unit, sizes) in [("size", sizes(4 << 10, 140 << 10, 4 << 10)), ("nr_inodes", sizes(2, 24, 1))] {
        let script = sweep(unit, "cast in --to f16 -o disk/out -q", "", &sizes, "");
        if with_mounts(&bench, what, &script).is_none() {
            return;
        }
        let mut failed = 0;
        for size in &sizes {
            let (code, error) = (text(&bench, &format!("code.{size}")), text(&bench, &format!("error.{size}")));
            let after = format!("after.{size}");
            let out = bench.path(&format!("{after}/out"));
            let there = if out.exists() { tree(&out) } else { BTreeMap::new() };
            if code.trim() == "1" {
                assert!(error.contains("space"), "{size}: {error}");
                assert!(!there.keys().any(|name| name.contains(".tcast-")), "{size}: {there:?}");
                failed += 1;
            } else {
                assert_eq!((code.trim(), error.as_str()), ("0", ""), "{size}");
                assert!(there == whole, "{size}");
            }
            let resume = if there.is_empty() { "" } else { " --resume" };
            if there != whole {
                // What a loader begins with comes last.
                let visible = there.keys().filter(|name| !name.starts_with(".tcast")).count();
                assert!(
                    !there.contains_key("model.safetensors.index.json") || visible == whole.len(),
                    "{size}: {:?}",
                    there.keys()
                );
                bench.run(&format!("cast in --to f16 -o {after}/out -q{resume}")).expect(0, "", "");
                assert!(tree(&out) == whole, "{size}");
            }
            fs::remove_dir_all(bench.path(&after)).unwrap();
        }
        assert!(failed > 2 && failed < sizes.len(), "{unit}: {failed} of {} failed", sizes.len());
        full += failed;
    }
    record("a_folder_on_a_full_disk_is_resumed_when_there_is_room", &format!("{full} full disks"));
}

#[test]
fn a_folder_that_may_not_be_written_to_is_told() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(10));
    let line = "cast x.npy --to f16 -o disk/out.npy";
    let script = format!("mount -t tmpfs -o ro tmpfs disk; \"$1\" {line} 2>&1 || echo $?");
    if let Some(said) = with_mounts(&bench, "a disk that is read-only", &script) {
        assert_eq!(said, "tcast: error: disk/out.npy: cannot write: read-only file system\n1\n");
    }
    fs::set_permissions(bench.path("disk"), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write anywhere, unless it gives its powers up.
    let powerless =
        "[ $(id -u) != 0 ] || powerless='setpriv --bounding-set=-all --inh-caps=-all'; exec $powerless \"$@\"";
    let message = "tcast: error: disk/out.npy: cannot write: permission denied\n";
    in_shell(&bench, powerless, line).expect(1, "", message);
    let message = "tcast: error: disk/out: cannot make the folder: permission denied\n";
    in_shell(&bench, powerless, "cast x.npy --to f16 --max-shard-size 1KB -o disk/out").expect(1, "", message);
    assert_eq!(fs::read_dir(bench.path("disk")).unwrap().count(), 0);
}

#[test]
fn a_folder_that_goes_away_is_told_and_what_took_its_place_is_left_alone() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    super::sparse(&bench.path("x.npy"), 1 << 22);
    fs::create_dir(bench.path("out")).unwrap();
    let mut command = bench.command();
    command.args("cast x.npy --to int8 -j1 -q --no-sync -o out/y.npy".split(' ')).env("NO_UNNAMED", "1");
    let Some(held) = hold(command, "pwrite64", 2) else { return };
    let temporary = fs::read_dir(bench.path("out")).unwrap().next().unwrap().unwrap().path();
    assert!(temporary.file_name().unwrap().as_bytes().starts_with(b".tcast-"));
    fs::remove_dir_all(bench.path("out")).unwrap();
    fs::create_dir(bench.path("out")).unwrap();
    bench.write("out/mine", b"mine");
    held.release().expect(1, "", "tcast: error: out/y.npy: cannot write: no such file or directory\n");
    assert_eq!(tree(&bench.path("out")).into_keys().collect::<Vec<_>>(), ["mine"]);
    assert_eq!(content(&bench.path("out/mine")).unwrap(), b"mine");
}
