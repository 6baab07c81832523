//! Inputs that change while they are read: cut short, written to, replaced, removed, and disks that do not give them.

use super::hold::{Held, hold};
use super::{Moments, has_strace, number, numbers, skip, sparse, traced};
use crate::common::promises::record;
use crate::common::{Bench, Outcome, npy, shard};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

const CUT_SHORT: &str = "tcast: error: x.npy: the file was cut short, or could not be read, during the work\n";
const CUT_SHORT_IN_TENSOR: &str =
    "tcast: error: x.npy: tensor 'x': the file was cut short, or could not be read, during the work\n";
const CHANGED: &str = "tcast: error: x.npy: the file was changed, or another took its name, during the work\n  \
                       start again when nothing writes to it\n";

/// Shortens a file, as somebody does who begins to write it anew.
fn cut(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Runs a cast whose output goes into a pipe; `meanwhile` is done when the program has read a piece and waits for the
/// pipe to be read.
fn while_it_waits(bench: &Bench, mut command: Command, meanwhile: impl FnOnce()) -> Outcome {
    let pipe = bench.path("pipe.npy");
    let _ = fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = File::open(&pipe).unwrap();
    let mut some = [0; 1000];
    reader.read_exact(&mut some).unwrap(); // more than the header: a piece is under way
    meanwhile();
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    Outcome::of(&child.wait_with_output().unwrap())
}

#[test]
fn an_input_cut_short_between_two_pieces_is_an_error() {
    for (to, shape) in [("f16", "(4194304,)"), ("f32", "(4194304,)"), ("string", "(1048576,)")] {
        let bench = Bench::new();
        let data = if to == "string" { 4 << 20 } else { 16 << 20 };
        bench.write("x.npy", &npy("'<f4'", shape, &vec![0; data]));
        let mut command = bench.command();
        command.args(["cast", "x.npy", "--to", to, "--all", "-o", "pipe.npy", "-q", "-j1"]);
        let outcome = while_it_waits(&bench, command, || cut(&bench.path("x.npy"), 5000));
        outcome.expect(1, "", CUT_SHORT_IN_TENSOR);
    }
}

/// The system is made to say that the pages are there, as it does where they went away a moment later. The inputs are in a
/// file system in memory, which does not say what is cached: elsewhere a byte is read at the end of each piece.
#[test]
fn an_input_cut_short_within_a_piece_is_the_same_error_and_no_death_by_a_signal() {
    let bench = Bench::new();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return skip("an input cut short within a piece", "there is no /dev/shm");
    };
    let [x, y] = ["x.npy", "y.npy"].map(|name| memory.path().join(name));
    let cut_short = &CUT_SHORT.replace("x.npy", x.to_str().unwrap());
    for threads in ["-j1", "-j4"] {
        fs::write(&x, npy("'<f4'", "(4194304,)", &vec![0; 16 << 20])).unwrap();
        let mut command = bench.command();
        command.env("BLIND", "1").arg("cast").arg(&x).args(["--to", "f16", "-o", "out.npy", "-q", threads]);
        let Some(held) = hold(command, "pwrite64", 1) else { return };
        cut(&x, 5000);
        held.release().expect(1, "", cut_short);
        assert!(bench.files().is_empty());
    }
    // Of `diff`, 1 would say that the files differ.
    sparse(&x, 1 << 22);
    sparse(&y, 1 << 22);
    let mut command = bench.command();
    command.env("BLIND", "1").arg("diff").args([&x, &y]).arg("-j1");
    let Some(held) = hold(command, "madvise", 4) else { return };
    cut(&x, 5000);
    held.release().expect(2, "", cut_short);
    let test = "an_input_cut_short_within_a_piece_is_the_same_error_and_no_death_by_a_signal";
    record(test, "3 ways, by SIGBUS");
}

/// A conversion to a file, held when it writes the second piece. `None` where that cannot be had.
fn begin(bench: &Bench, more: &[&str]) -> Option<Held> {
    let mut command = bench.command();
    command.args(["cast", "x.npy", "--to", "int8", "-o", "out.npy", "-q", "--no-sync"]).args(more);
    hold(command, "pwrite64", 2)
}

#[test]
fn whatever_happens_to_an_input_is_reported_and_nothing_is_left() {
    let times = number("TCAST_KILLS", 20).div_ceil(20);
    let bench = Bench::new();
    let x = bench.path("x.npy");
    let written_to = || {
        use std::os::unix::fs::FileExt;
        File::options().write(true).open(&x).unwrap().write_at(&[1], 1 << 20).unwrap();
    };
    let replaced = || {
        fs::write(bench.path("new.npy"), numbers(10)).unwrap();
        fs::rename(bench.path("new.npy"), &x).unwrap();
    };
    // A page ends there, and the last one reads as zeros beyond the new end: the change is noticed at the end of the work,
    // or the last byte is missed before its piece is read.
    let shortened = || cut(&x, (1 << 25) + 100);
    let cases: [(&dyn Fn(), &[&str]); 5] = [
        (&written_to, &[CHANGED]),
        (&replaced, &[CHANGED]),
        (&shortened, &[CHANGED, CUT_SHORT_IN_TENSOR]),
        (&|| cut(&x, 100), &[CUT_SHORT, CUT_SHORT_IN_TENSOR]),
        (&|| drop(fs::write(&x, numbers(10))), &[CUT_SHORT, CUT_SHORT_IN_TENSOR, CHANGED]),
    ];
    let mut told = 0;
    for (change, messages) in cases {
        for threads in ["-j2", "-j1"].iter().cycle().take(times) {
            sparse(&x, 1 << 23);
            let Some(held) = begin(&bench, &[threads]) else { return };
            change();
            let said = held.release();
            assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{said:?}");
            assert!(messages.contains(&said.stderr.as_str()), "{said:?}");
            assert_eq!(bench.files(), ["x.npy"]);
            told += 1;
        }
    }
    // What has lost its name keeps its bytes.
    sparse(&x, 1 << 23);
    let Some(held) = begin(&bench, &[]) else { return };
    fs::remove_file(&x).unwrap();
    held.release().expect(0, "", "");
    record("whatever_happens_to_an_input_is_reported_and_nothing_is_left", &format!("{told} changes"));
}

#[test]
fn a_changed_input_is_noticed_whatever_its_time_and_its_name_say() {
    use std::os::unix::fs::FileExt;
    let bench = Bench::new();
    let (x, away) = (bench.path("x.npy"), bench.path("away.npy"));
    let write = |file: &File| assert_eq!(file.write_at(&[1], 1 << 20).unwrap(), 1);
    let open = || File::options().write(true).open(&x).unwrap();
    let with_the_old_time = || {
        let file = open();
        let time = file.metadata().unwrap().modified().unwrap();
        write(&file);
        file.set_modified(time).unwrap();
    };
    let behind_its_name = |hide: &dyn Fn()| {
        let file = open();
        hide();
        write(&file);
    };
    let (remove, rename) = (|| fs::remove_file(&x).unwrap(), || fs::rename(&x, &away).unwrap());
    let harmful: [&dyn Fn(); 4] =
        [&with_the_old_time, &|| behind_its_name(&remove), &|| behind_its_name(&rename), &|| {
            rename();
            fs::write(&x, numbers(10)).unwrap();
        }];
    let link = || fs::hard_link(&x, &away).unwrap();
    let harmless: [&dyn Fn(); 3] = [&remove, &rename, &link];
    let mut tried = 0;
    for (changes, is_harmful) in [(&harmful[..], true), (&harmless[..], false)] {
        for change in changes {
            sparse(&x, 1 << 22);
            std::thread::sleep(std::time::Duration::from_millis(20)); // the system's clock for files ticks so fast
            let mut command = bench.command();
            command.args("cast x.npy --to f16 -o pipe.npy -q -j1".split(' '));
            let said = while_it_waits(&bench, command, change);
            if is_harmful {
                said.expect(1, "", CHANGED);
            } else {
                said.expect(0, "", "");
            }
            let _ = fs::remove_file(&away);
            tried += 1;
        }
    }
    record("a_changed_input_is_noticed_whatever_its_time_and_its_name_say", &format!("{tried} changes"));
}

#[test]
fn an_input_that_is_gone_and_could_not_be_kept_open_is_an_error() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..8 {
        bench.write(&format!("in/s{number}.safetensors"), &shard(&[(&format!("w{number}"), 1.0, 100_000)]));
    }
    std::os::unix::fs::symlink("pipe.npy", bench.path("pipe.safetensors")).unwrap();
    for (files, code) in [(16, 1), (64, 0)] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]);
        command.arg(assert_cmd::cargo::cargo_bin!("tcast")).current_dir(bench.path(""));
        command.args("cast in --to f16 -o pipe.safetensors -q -j1".split(' '));
        let said = while_it_waits(&bench, command, || fs::rename(bench.path("in"), bench.path("moved")).unwrap());
        let what = "tcast: error: in/s4.safetensors: the file was removed or renamed during the work, and nothing else \
                    shows that its bytes stayed\n  allow more open files (ulimit -n), or leave the inputs where they \
                    are\n";
        said.expect(code, "", if code == 1 { what } else { "" });
        fs::rename(bench.path("moved"), bench.path("in")).unwrap();
    }
}

#[test]
fn an_input_cut_short_at_any_moment_is_an_error_or_came_too_late() {
    let times = number("TCAST_KILLS", 20);
    let bench = Bench::new();
    let mut headers = vec![];
    for index in 0..20_000 {
        let at = index * 4;
        headers.push(format!("\"t{index}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{at},{}]}}", at + 4));
    }
    let file = crate::common::safetensors(&format!("{{{}}}", headers.join(",")), &vec![0; 80_000]);
    bench.write("x.safetensors", &file);
    let work = || bench.run("cast x.safetensors --to f16 -o whole.safetensors -q").expect(0, "", "");
    let mut moments = Moments::within(work);
    for _ in 0..times {
        bench.write("x.safetensors", &file);
        let mut command = bench.command();
        command.args("cast x.safetensors --to f16 -o out.safetensors -q -f".split(' '));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(moments.next());
        cut(&bench.path("x.safetensors"), 4096);
        let said = Outcome::of(&child.wait_with_output().unwrap());
        moments.was_under_way(said.code != Some(0));
        match said.code {
            Some(0) => assert!(bench.read("out.safetensors") == bench.read("whole.safetensors")),
            Some(1) => {
                assert_eq!(said.stderr.matches("tcast: error: x.safetensors: ").count(), 1, "{said:?}");
                assert!(!bench.path("out.safetensors").exists());
            }
            _ => panic!("{said:?}"),
        }
        let _ = fs::remove_file(bench.path("out.safetensors"));
        assert_eq!(bench.files(), ["whole.safetensors", "x.safetensors"]);
    }
    record("an_input_cut_short_at_any_moment_is_an_error_or_came_too_late", &format!("{times} moments"));
}

#[test]
fn inputs_are_left_as_they_are() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1000));
    fs::set_permissions(bench.path("x.npy"), std::os::unix::fs::PermissionsExt::from_mode(0o6754)).unwrap();
    let stamp = |name: &str| {
        let metadata = fs::metadata(bench.path(name)).unwrap();
        (metadata.modified().unwrap(), metadata.permissions(), fs::read(bench.path(name)).unwrap())
    };
    let before = stamp("x.npy");
    for line in [
        "cast x.npy --to f16 -o y.npy -f -q",
        "bitcast x.npy --to int32 -o z.npy -q",
        "inspect x.npy --stats",
        "diff x.npy x.npy",
    ] {
        assert_eq!(bench.run(line).code, Some(0), "{line}");
        assert!(stamp("x.npy") == before, "{line}");
    }
}

/// A folder whose config says nothing of codes, and one whose config describes them.
#[test]
fn a_config_is_read_once_and_copied_only_if_it_is_what_was_read() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    // Read, and then copied.
    for (subcommand, config) in [
        ("cast in --to f16", "{\"dtype\": \"float16\", \"x\": 1}"),
        ("bitcast in --to int32", "{\"dtype\": \"auto\", \"x\": 1}"),
    ] {
        bench.write("in/config.json", config.as_bytes());
        let mut command = bench.command();
        command.args(subcommand.split(' ')).args(["-o", "out", "-q", "-j1"]).env("HOLD_FILE", "config.json");
        let Some(held) = hold(command, "open64", 2) else { return };
        bench.write("new.json", config.replace('1', "2").as_bytes());
        fs::rename(bench.path("new.json"), bench.path("in/config.json")).unwrap();
        let message = "tcast: error: in/config.json: the file was changed during the work\n  \
                       start again when nothing writes to it\n";
        held.release().expect(1, "", message);
        assert_eq!(bench.files(), ["in"], "{subcommand}");
    }
    if !has_strace("how often a config is read") {
        return;
    }
    bench.write("in/config.json", b"{\"dtype\": \"float32\"}");
    bench.add_checkpoint("llama-fp8", "fp8");
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    for line in [
        "cast in --to f16 -o a -q",
        "dequantize fp8 -o c -q",
        "dequantize fp8 -o c.safetensors -q",
        "quantize llama --scheme fp8 -o d -q",
        "quantize fp8 --layout modelopt -o e -q",
        "inspect fp8 -q",
        "inspect fp8/model-00001-of-00002.safetensors -q",
    ] {
        let said = Outcome::of(&traced(&bench, &["-e", "trace=openat"], line).output().unwrap());
        assert!(said.code == Some(0), "{line}: {said:?}");
        let trace = fs::read_to_string(bench.path("trace")).unwrap();
        let reads = |name: &str| {
            let is_read = |call: &&str| call.contains(&format!("/{name}\", O_RDONLY")) && !call.contains("/.tcast/");
            trace.lines().filter(is_read).count()
        };
        assert!(reads("config.json") == 1 && reads("hf_quant_config.json") <= 1, "{line}: {trace}");
    }
}
