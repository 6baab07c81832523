//! Disks that are full, that fail, that may not be written to, or go away.

use super::hold::hold;
use super::{Random, content, has_strace, in_shell, number, numbers, skip};
use crate::common::promises::record;
use crate::common::{Bench, npy_f32, quantized_shards, shard, tree, zip};
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

/// Casts to disks of all these sizes that have an old output, which is there afterwards, or the new one. Gives how many
/// were large enough and how many were not; `None` where nothing can be mounted.
fn fill_disks(bench: &Bench, input: &str, sizes: &[usize], around: &str, message: &str) -> Option<[usize; 2]> {
    let (old, whole) = (bench.read("old.npz"), bench.read("whole.npz"));
    let line = format!("cast {input} --to bf16 -o disk/out.npz -f -q");
    let script = sweep("size", &line, "cp old.npz disk/out.npz", sizes, around);
    with_mounts(bench, "writing to a disk that fills up", &script)?;
    let mut codes = [0, 0];
    for size in sizes {
        let (code, error) = (text(bench, &format!("code.{size}")), text(bench, &format!("error.{size}")));
        let there = tree(&bench.path(&format!("after.{size}")));
        let mut there: Vec<(&str, &Vec<u8>)> = there.iter().map(|(name, content)| (name.as_str(), content)).collect();
        let (name, content) = there.pop().unwrap();
        assert!(there.is_empty() && name == "out.npz", "{size}: {there:?}");
        match code.trim() {
            "0" => assert!(*content == whole && error.is_empty(), "{size}: {error}"),
            "1" => {
                assert!(*content == old, "{size}: the old output is gone");
                assert!(error.starts_with("tcast: error: disk/out.npz: "), "{size}: {error}");
                assert!(error.contains(message), "{size}: {error}");
            }
            other => panic!("{size}: {other}: {error}"),
        }
        codes[usize::from(code.trim() == "1")] += 1;
        fs::remove_dir_all(bench.path(&format!("after.{size}"))).unwrap();
    }
    Some(codes)
}

/// The system does not say how much room there is: then it is found out by writing.
const BLIND: &str = "strace -f -qq -o /dev/null -e trace=statfs,fstatfs -e inject=statfs,fstatfs:error=ENOSYS";
const ANNOUNCED: &str = "not enough disk space";
const FOUND_OUT: &str = "cannot write: no space left";

#[test]
fn a_disk_that_fills_up_at_any_byte_leaves_the_old_output_or_the_new_one() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(60_000));
    bench.write("old.npz", &numbers(10));
    bench.run("cast x.npy --to bf16 -o whole.npz -q").expect(0, "", "");
    let mut tried = 0;
    for (around, message) in [("", ANNOUNCED), (BLIND, FOUND_OUT)] {
        if around == BLIND && !has_strace("writing to a disk that fills up") {
            continue;
        }
        let sizes = sizes(8 << 10, bench.read("whole.npz").len() + (16 << 10), 4 << 10);
        let Some(codes) = fill_disks(&bench, "x.npy", &sizes, around, message) else { return };
        assert!(codes[0] > 0 && codes[1] > 2, "{codes:?}");
        tried += codes[1];
    }
    record("a_disk_that_fills_up_at_any_byte_leaves_the_old_output_or_the_new_one", &format!("{tried} full disks"));
}

/// It is written twice: stored, and then deflated into a second file.
#[test]
fn a_disk_that_fills_up_while_an_archive_is_deflated_leaves_the_old_output_or_the_new_one() {
    let bench = Bench::new();
    let mut random = Random::new();
    // Numbers from 0 to 2 that hardly deflate.
    let values: Vec<f32> = (0..40_000).map(|_| f32::from_bits(random.next() as u32 >> 2)).collect();
    bench.write("x.npz", &zip(&[("a.npy", &npy_f32(&values))], true));
    bench.write("old.npz", &numbers(10));
    bench.run("cast x.npz --to bf16 -o whole.npz -q").expect(0, "", "");
    bench.write("stored.npy", &npy_f32(&values));
    bench.run("cast stored.npy --to bf16 -o stored.npz -q").expect(0, "", "");
    let [stored, deflated] = ["stored.npz", "whole.npz"].map(|name| bench.read(name).len());
    // Announced is the room for two archives that are not deflated. Blind, there is room for the first file, and then for
    // more and more of the second.
    let [announced, blind] = [(0, 2 * stored), (stored, stored + deflated)]
        .map(|(from, to)| sizes(from + (8 << 10), to + (24 << 10), 4 << 10));
    let mut tried = 0;
    for (around, sizes, message) in [("", announced, ANNOUNCED), (BLIND, blind, FOUND_OUT)] {
        if around == BLIND && !has_strace("writing an archive to a disk that fills up") {
            continue;
        }
        let Some(codes) = fill_disks(&bench, "x.npz", &sizes, around, message) else { return };
        assert!(codes[0] > 0 && codes[1] > 2, "{around}: {codes:?} of {sizes:?}");
        tried += codes[1];
    }
    let test = "a_disk_that_fills_up_while_an_archive_is_deflated_leaves_the_old_output_or_the_new_one";
    record(test, &format!("{tried} full disks"));
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
    let cast = fill_folders(&bench, "cast in --to f16");
    let bench = Bench::new();
    quantized_shards(&bench, "in", 4, [40, 100]);
    let decoded = fill_folders(&bench, "dequantize in");
    let bench = Bench::new();
    quantized_shards(&bench, "codes", 4, [40, 96]);
    bench.run("dequantize codes -q -o in").expect(0, "", "");
    let encoded = fill_folders(&bench, "quantize in --scheme mxfp8");
    let (Some(cast), Some(decoded), Some(encoded)) = (cast, decoded, encoded) else { return };
    let all = cast + decoded + encoded;
    record("a_folder_on_a_full_disk_is_resumed_when_there_is_room", &format!("{all} full disks"));
}

/// Runs a line that writes a folder to disks of many sizes, and where one was full again with more room; gives how many were
/// full. `None` where nothing can be mounted.
fn fill_folders(bench: &Bench, line: &str) -> Option<usize> {
    bench.run(&format!("{line} -o whole -q")).expect(0, "", "");
    let whole = tree(&bench.path("whole"));
    let what = "folders on a disk that fills up";
    let mut full = 0;
    // Of room, and of files: each of them is the one that has no place.
    for (unit, sizes) in [("size", sizes(4 << 10, 140 << 10, 4 << 10)), ("nr_inodes", sizes(2, 24, 1))] {
        let script = sweep(unit, &format!("{line} -o disk/out -q"), "", &sizes, "");
        with_mounts(bench, what, &script)?;
        let mut failed = 0;
        for size in &sizes {
            let (code, error) = (text(bench, &format!("code.{size}")), text(bench, &format!("error.{size}")));
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
                bench.run(&format!("{line} -o {after}/out -q{resume}")).expect(0, "", "");
                assert!(tree(&out) == whole, "{size}");
            }
            fs::remove_dir_all(bench.path(&after)).unwrap();
        }
        assert!(failed > 2 && failed < sizes.len(), "{unit}: {failed} of {} failed", sizes.len());
        full += failed;
    }
    Some(full)
}

#[test]
fn a_folder_without_write_permission_is_an_error() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(10));
    let line = "cast x.npy --to f16 -o disk/out.npy";
    let script = format!("mount -t tmpfs -o ro tmpfs disk; \"$1\" {line} 2>&1 || echo $?");
    let remedy = "  name an output in a folder that you can write to, with -o\n";
    if let Some(said) = with_mounts(&bench, "a disk that is read-only", &script) {
        assert_eq!(said, format!("tcast: error: disk/out.npy: cannot write: read-only file system\n{remedy}1\n"));
    }
    fs::set_permissions(bench.path("disk"), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write anywhere, unless it gives its powers up.
    let powerless =
        "[ $(id -u) != 0 ] || powerless='setpriv --bounding-set=-all --inh-caps=-all'; exec $powerless \"$@\"";
    let message = format!("tcast: error: disk/out.npy: cannot write: permission denied\n{remedy}");
    in_shell(&bench, powerless, line).expect(1, "", &message);
    let message = format!("tcast: error: disk/out: cannot make the folder: permission denied\n{remedy}");
    in_shell(&bench, powerless, "cast x.npy --to f16 --max-shard-size 1KB -o disk/out").expect(1, "", &message);
    let line = "cast x.npy --to f16 -q -o out.npy --report disk/r.json";
    let message = "tcast: error: disk/r.json: cannot write: permission denied
  the output is complete; only its report is missing
  name a report in a folder that you can write to, with --report\n";
    in_shell(&bench, powerless, line).expect(1, "", message);
    assert_eq!(fs::read_dir(bench.path("disk")).unwrap().count(), 0);
}

#[test]
fn a_folder_that_disappears_is_an_error_and_its_replacement_is_left_alone() {
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
