//! A power failure at any moment: on every disk that it can leave, an output is old, new or says that it is unfinished.

use super::hold::replace_calls;
use super::images::{Image, image_of, record_changes, write_image};
use super::{has_strace, number, numbers};
use crate::common::promises::record;
use crate::common::{Bench, npy, shard, zip};
use std::fs;
use std::process::Command;

/// What one folder of an image has in it.
fn below(image: &Image, folder: &str) -> Image {
    let prefix = format!("{folder}/");
    image.iter().filter_map(|(path, content)| Some((path.strip_prefix(&prefix)?.to_owned(), content.clone()))).collect()
}

/// An image without some things and what is in them.
fn without(image: &Image, is_left_out: impl Fn(&str) -> bool) -> Image {
    let mut image = image.clone();
    image.retain(|path, _| !is_left_out(path.split('/').next().unwrap()));
    image
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(".tcast-")
}

/// Flags of strace for a file system that has no files without names; `None` where no library can be built.
fn named() -> Option<Vec<String>> {
    let command = replace_calls(Command::new("true"), &[("NO_UNNAMED", "1")])?;
    let variables = command.get_envs().map(|(name, value)| (name.to_str().unwrap(), value.unwrap().to_str().unwrap()));
    Some(variables.flat_map(|(name, value)| ["-E".to_owned(), format!("{name}={value}")]).collect())
}

/// Runs that write files: the line, its outputs, and whether they are there already.
const FILES: [(&str, &[&str], bool); 6] = [
    ("cast x.npy --to f16 -o out.npz -j1 -q", &["out.npz"], false),
    ("cast x.npy --to f16 -o out.npz -j1 -q -f", &["out.npz"], true),
    ("cast x.npz --to f16 -o out.npz -j1 -q --report out.json", &["out.npz", "out.json"], false),
    ("cast x.npz --to f16 -o out.npz -j1 -q --report out.json -f", &["out.npz", "out.json"], true),
    ("promote x.npy z.npy -o out -j1 -q", &["out/x.npy", "out/z.npy"], false),
    ("promote x.npy z.npy -o out -j1 -q -f", &["out/x.npy", "out/z.npy"], true),
];

/// The inputs of [`FILES`], and their outputs if they are to be there.
fn files(outputs: &[&str], is_old: bool) -> (Bench, Option<Vec<u8>>) {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(500));
    bench.write("z.npy", &npy("'<f8'", "(2,)", &[1; 16]));
    bench.write("x.npz", &zip(&[("a.npy", &numbers(2000)), ("b.npy", &numbers(100))], true));
    fs::create_dir(bench.path("out")).unwrap();
    let old = is_old.then(|| numbers(10));
    for output in outputs.iter().filter(|_| is_old) {
        bench.write(output, &numbers(10));
    }
    (bench, old)
}

/// All but the outputs and temporary files.
fn others(image: &Image, outputs: &[&str]) -> Image {
    let mut image = image.clone();
    let is_temporary = |path: &str| path.rsplit('/').next().is_some_and(is_temporary);
    image.retain(|path, _| !outputs.contains(&path.as_str()) && !is_temporary(path));
    image
}

#[test]
fn a_power_failure_leaves_the_old_file_or_the_new_one() {
    let what = "disks after a power failure";
    let Some(named) = has_strace(what).then(named).flatten() else { return };
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let mut tried = 0;
    for (line, outputs, is_old) in FILES {
        for flags in [&[][..], &named] {
            let (bench, old) = files(outputs, is_old);
            let before = others(&image_of(&bench.path("")), outputs);
            let recording = record_changes(&bench, flags, line);
            for (image, is_over) in recording.images(number("TCAST_FAULTS", 1000)) {
                assert!(others(&image, outputs) == before, "{line}: {:?}", image.keys());
                for output in outputs {
                    let there = image.get(*output).cloned().flatten();
                    let is_new = there.as_ref() == Some(&bench.read(output));
                    assert!(is_new || there == old && !is_over, "{line}: {output}: {is_over}, {there:?}");
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
    record("a_power_failure_leaves_the_old_file_or_the_new_one", &format!("{tried} disks"));
}

#[test]
fn without_flushes_a_kill_harms_nothing_and_a_power_failure_the_output_alone() {
    if !has_strace("disks after a power failure, without flushes") {
        return;
    }
    let (mut tried, mut damaged) = (0, 0);
    for (line, outputs, is_old) in FILES {
        let (bench, old) = files(outputs, is_old);
        let before = others(&image_of(&bench.path("")), outputs);
        let recording = record_changes(&bench, &[], &format!("{line} --no-sync"));
        let is_whole = |image: &Image| {
            outputs.iter().all(|output| {
                let there = image.get(*output).cloned().flatten();
                there == old || there == Some(bench.read(output))
            })
        };
        assert!(recording.after_kills().iter().all(is_whole), "{line}");
        for (image, _) in recording.images(number("TCAST_FAULTS", 1000)) {
            assert!(others(&image, outputs) == before, "{line}: {:?}", image.keys());
            damaged += usize::from(!is_whole(&image));
            tried += 1;
        }
    }
    // Of a folder that is replaced, nothing that tcast has not written.
    for is_old in [false, true] {
        let bench = checkpoints();
        if is_old {
            with_old_output(&bench);
        }
        let before = image_of(&bench.path(""));
        let force = if is_old { " -f" } else { "" };
        let line = format!("cast second --to f16 -o out -q -j1 --no-sync{force}");
        for (image, _) in record_changes(&bench, &[], &line).images(number("TCAST_FAULTS", 1000)) {
            let is_out = |name: &str| name == "out" || is_temporary(name);
            assert!(without(&image, is_out) == without(&before, is_out), "{:?}", image.keys());
            let is_there = ["mine/notes.txt", "sub/notes.txt"].into_iter().all(|file| {
                let is_it = |(path, content): (&String, &Option<Vec<u8>>)| {
                    path.ends_with(file) && content.as_deref() == Some(b"mine")
                };
                image.iter().any(is_it)
            });
            assert!(is_there || !is_old, "{:?}", image.keys());
            tried += 1;
        }
    }
    assert!(damaged > 10, "the model finds no damage where there must be some");
    let test = "without_flushes_a_kill_harms_nothing_and_a_power_failure_the_output_alone";
    record(test, &format!("{tried} disks, {damaged} with damaged outputs"));
}

/// Two checkpoints, `first` and `second`, with what their cast gives: `first16` and `second16`.
fn checkpoints() -> Bench {
    let bench = Bench::new();
    for (folder, value) in [("first", 1.5), ("second", 2.5)] {
        fs::create_dir_all(bench.path(folder).join("sub")).unwrap();
        for number in 0..2 {
            let content = shard(&[(&format!("w{number}"), value, 20)]);
            bench.write(&format!("{folder}/s{number}.safetensors"), &content);
        }
        bench.write(&format!("{folder}/config.json"), format!("{{\"value\": {value}}}").as_bytes());
        bench.write(&format!("{folder}/sub/note.jinja"), format!("{value}").as_bytes());
        bench.run(&format!("cast {folder} --to f16 -o {folder}16 -q")).expect(0, "", "");
    }
    bench
}

/// With the first one in the place of the output, and files there that are of no checkpoint.
fn with_old_output(bench: &Bench) {
    bench.run("cast first --to f16 -o out -q").expect(0, "", "");
    fs::create_dir(bench.path("out/mine")).unwrap();
    bench.write("out/mine/notes.txt", b"mine");
    bench.write("out/sub/notes.txt", b"mine");
}

/// Whether both of these files are in a folder, and hold what they held.
fn has_mine(folder: &Image) -> bool {
    let is_mine = |path: &str| folder.get(path) == Some(&Some(b"mine".to_vec()));
    is_mine("mine/notes.txt") && is_mine("sub/notes.txt")
}

/// What tcast has written into a folder.
fn written(folder: &Image) -> Image {
    let mut written = without(folder, |name| is_temporary(name) || name == "mine");
    written.remove("sub/notes.txt");
    written
}

#[test]
fn a_power_failure_leaves_the_old_folder_or_the_new_one_or_one_that_can_be_completed() {
    if !has_strace("folders after a power failure") {
        return;
    }
    let without_exchange: &[&str] = &["-e", "inject=renameat2:error=EINVAL"];
    let mut tried = 0;
    for (is_old, flags) in [(false, &[][..]), (true, &[]), (true, without_exchange)] {
        let bench = checkpoints();
        if is_old {
            with_old_output(&bench);
        }
        let before = image_of(&bench.path(""));
        let [old, new] = ["first16", "second16"].map(|folder| below(&before, folder));
        let line = "cast second --to f16 -o out -q -j1";
        let recording = record_changes(&bench, flags, &format!("{line}{}", if is_old { " -f" } else { "" }));
        for (image, is_over) in recording.images(number("TCAST_FAULTS", 40)) {
            let is_out = |name: &str| name == "out" || is_temporary(name);
            assert!(without(&image, is_out) == without(&before, is_out), "{:?}", image.keys());
            for left in bench.files().iter().filter(|name| is_out(name)) {
                fs::remove_dir_all(bench.path(left)).unwrap();
            }
            write_image(&without(&image, |name| !is_out(name)), &bench.path("")); // inputs keep their times
            let out = written(&below(&image, "out"));
            let what = format!("{is_old}, {flags:?}, {is_over}: {:?}", image.keys());
            let is_unfinished = out.contains_key(".tcast");
            let is_checkpoint = out == new || is_old && out == old;
            assert!(is_unfinished || is_checkpoint || !is_old && out.is_empty(), "{what}");
            assert!(out == new || !is_over, "{what}");
            assert_eq!(bench.run("inspect out").code, Some(i32::from(!is_checkpoint)), "{what}");
            // Without a manifest nothing was begun.
            let is_begun = [".tcast/manifest.json", ".tcast/end.json"].iter().any(|name| out.contains_key(*name));
            let flag = if is_begun || out == new { "--resume" } else { "-f" };
            let said = bench.run(&format!("{line} {flag}"));
            assert_eq!(said.code, Some(0), "{what}: {said:?}");
            let after = below(&image_of(&bench.path("")), "out");
            assert!(written(&after) == new && has_mine(&after) == is_old, "{what}");
            tried += 1;
        }
    }
    assert!(tried > 50, "{tried}");
    let test = "a_power_failure_leaves_the_old_folder_or_the_new_one_or_one_that_can_be_completed";
    record(test, &format!("{tried} disks"));
}
