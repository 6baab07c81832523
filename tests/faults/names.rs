//! Names, modes and kinds of files that are rarely thought of.

use super::{Outcome, in_shell, numbers, skip};
use crate::common::promises::record;
use crate::common::{Bench, fixture, tree};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// What a file can be called; every one without its extension.
fn odd_names() -> Vec<OsString> {
    let texts = [
        " ",
        "two words",
        "line\nbreak",
        "tab\tand\r",
        "quote'and\"",
        "back\\slash",
        "$HOME`id`$(id);&|",
        "*?[a]{b,c}",
        "#!",
        "-o",
        "--to",
        "~",
        "...",
        "%s%n%d",
        "{}",
        "\u{1b}[31mred",
        "\u{202e}txt",
        "\u{85}\u{9b}31m\u{2028}\u{200b}\u{2066}\u{feff}",
        "e\u{301}",
        "\u{1f980}",
        "CON",
        "a:b",
        "a=b",
    ];
    let bytes: [&[u8]; 4] = [b"\xff\xfe", b"half \xe2\x82", b"\x80", b"\x01\x02\x7f"];
    let long = [OsString::from("n".repeat(250)), OsString::from("\u{e9}".repeat(125))];
    let bytes = bytes.map(|name| OsString::from_vec(name.to_vec()));
    texts.into_iter().map(OsString::from).chain(bytes).chain(long).collect()
}

/// Whether a text has a character in it that a terminal obeys, or that shows other text than there is.
fn deceives(text: &str) -> bool {
    let is_format =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    text.chars().any(|c| c.is_control() && c != '\n' || is_format(c))
}

#[test]
fn a_remedy_can_be_pasted_into_a_shell_whatever_the_names_are() {
    if !Command::new("bash").args(["-c", ":"]).status().is_ok_and(|status| status.success()) {
        return skip("remedies in a shell", "there is no bash");
    }
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1));
    let names = odd_names();
    for name in names.iter().filter(|name| name.len() < 240) {
        let folder = bench.path("").join("deep").join(name);
        let output = std::path::Path::new("deep").join(name).join("out.npy");
        let said =
            Outcome::of(&bench.command().args(["cast", "x.npy", "--to", "f16", "-o"]).arg(output).output().unwrap());
        assert!(said.code == Some(1) && !deceives(&said.stderr), "{said:?}");
        let remedy = said.stderr.lines().last().unwrap();
        assert!(remedy.starts_with("  mkdir -p "), "{said:?}");
        let pasted = Command::new("bash").args(["-c", remedy]).current_dir(bench.path("")).status().unwrap();
        assert!(pasted.success() && folder.is_dir(), "{name:?}: {remedy}");
        fs::remove_dir_all(bench.path("deep")).unwrap();
    }
    assert_eq!(bench.files(), ["x.npy"]);
    record("a_remedy_can_be_pasted_into_a_shell_whatever_the_names_are", &format!("{} names", names.len()));
}

fn with(name: &OsStr, ending: &str) -> OsString {
    let mut whole = OsString::from("./");
    whole.push(name);
    whole.push(ending);
    whole
}

#[test]
fn any_name_that_a_file_can_have_is_read_and_written() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100));
    bench.run("cast x.npy --to f16 -o y.npy -q").expect(0, "", "");
    let wanted = bench.read("y.npy");
    let names = odd_names();
    for name in &names {
        let (input, folder) = (with(name, ".npy"), with(name, ""));
        fs::copy(bench.path("x.npy"), bench.path("").join(&input)).unwrap();
        fs::create_dir(bench.path("").join(&folder)).unwrap();
        let output = bench.path("").join(&folder).join(&input);
        let said = Outcome::of(
            &bench.command().args(["cast", "--to", "f16", "-o"]).arg(&output).arg("--").arg(&input).output().unwrap(),
        );
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{name:?}: {said:?}");
        // Nothing of a name reaches the terminal as a command to it.
        assert!(!deceives(&said.stderr), "{name:?}: {said:?}");
        assert!(fs::read(&output).unwrap() == wanted, "{name:?}");
        // An error shows it as well, and a report.
        let refused = Outcome::of(
            &bench.command().args(["cast", "--to", "f16", "-o"]).arg(&output).arg(&input).output().unwrap(),
        );
        assert_eq!(refused.code, Some(4));
        assert!(!deceives(&refused.stderr), "{name:?}: {refused:?}");
        assert_eq!(refused.stderr.lines().count(), 2, "{name:?}: {refused:?}");
        let json = Outcome::of(
            &bench.command().args(["cast", "-n", "-q", "--json", "--to", "f32"]).arg(&input).output().unwrap(),
        );
        assert!(!deceives(&json.stdout), "{name:?}: {json:?}");
        if name.len() < 240 {
            assert!(serde_json::from_str::<serde_json::Value>(&json.stdout).is_ok(), "{name:?}: {json:?}");
        }
        // Beside the input, with the type in its name: too long for some.
        let beside = Outcome::of(&bench.command().args(["cast", "--to", "f16", "-q"]).arg(&input).output().unwrap());
        if name.len() < 240 {
            beside.expect(0, "", "");
            assert!(fs::read(bench.path("").join(with(name, ".float16.npy"))).unwrap() == wanted, "{name:?}");
        } else {
            assert!(
                beside.code == Some(1)
                    && beside.stderr.ends_with("file name too long\n  name another output with -o\n"),
                "{name:?}: {beside:?}"
            );
        }
        fs::remove_dir_all(bench.path("").join(&folder)).unwrap();
    }
    assert!(!bench.files().iter().any(|name| name.starts_with(".tcast-")));
    record("any_name_that_a_file_can_have_is_read_and_written", &format!("{} names", names.len()));
}

#[test]
fn a_folder_of_any_name_becomes_a_folder_of_any_name() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    bench.run("cast in --to f16 -o whole -q").expect(0, "", "");
    let wanted = tree(&bench.path("whole"));
    for name in odd_names() {
        let (input, output) = (with(&name, ".in")[..].to_owned(), with(&name, ".o"));
        if name.len() > 240 {
            continue;
        }
        fs::rename(bench.path("in"), bench.path("").join(&input)).unwrap();
        let mut command = bench.command();
        command.args(["cast", "--to", "f16", "-q", "--no-sync", "-o"]).arg(&output).arg("--").arg(&input);
        Outcome::of(&command.output().unwrap()).expect(0, "", "");
        assert!(tree(&bench.path("").join(&output)) == wanted, "{name:?}");
        fs::rename(bench.path("").join(&input), bench.path("in")).unwrap();
    }
}

#[test]
fn names_in_a_file_never_become_paths() {
    // A tensor may be called anything: nothing is made of it but an entry of a header.
    let bench = Bench::new();
    let names = ["../up", "/tmp/abs", "a/../../b", "..", ".", "a\\u0000b", "\\u001b[2J", "C:\\\\x", "x/y"];
    let entry = |(at, name): (usize, &&str)| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}", at * 4, at * 4 + 4)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    fs::create_dir(bench.path("deep")).unwrap();
    let file = crate::common::safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; names.len() * 4]);
    bench.write("deep/x.safetensors", &file);
    for output in ["y.safetensors", "folder --max-shard-size 4B"] {
        let said = bench.run(&format!("cast deep/x.safetensors --to f16 -o deep/{output} --no-sync"));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(!said.stderr.chars().any(|c| c.is_control() && c != '\n'), "{said:?}");
    }
    // `promote` names files after tensors.
    let said = bench.run("promote deep/x.safetensors --tensor ../up --tensor /tmp/abs -o deep/promoted");
    assert!(matches!(said.code, Some(0..=2)), "{said:?}");
    // An archive's members, likewise.
    let said = bench.run("cast deep/x.safetensors --to f16 -o deep/z.npz");
    assert!(matches!(said.code, Some(0 | 1)), "{said:?}");
    assert_eq!(bench.files(), ["deep"]);
    assert!(!std::path::Path::new("/tmp/abs").exists());
    // An index and a manifest name files, and those must lie beside them.
    for stray in ["../x.safetensors", "/etc/passwd", "sub/../../x.safetensors", ".."] {
        fs::create_dir_all(bench.path("in")).unwrap();
        bench.write("x.safetensors", &file);
        bench.write("in/a.safetensors", &crate::common::shard(&[("w", 1.0, 2)]));
        let index = format!("{{\"weight_map\":{{\"w\":\"{stray}\"}}}}");
        bench.write("in/model.safetensors.index.json", index.as_bytes());
        let said = bench.run("cast in --to f16 -o out");
        assert!(said.code == Some(1) && !bench.path("out").exists(), "{stray}: {said:?}");
    }
}

#[test]
fn the_mode_of_an_output_is_that_of_a_new_file_whatever_was_there() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
    bench.write("x.npy", &numbers(100));
    let set = |name: &str, mode| fs::set_permissions(bench.path(name), fs::Permissions::from_mode(mode)).unwrap();
    let mode = |name: &str| fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o7777;
    set("x.npy", 0o6755);
    for name in ["config.json", "model-00001-of-00003.safetensors"] {
        set(&format!("in/{name}"), 0o4755);
    }
    for (umask, wanted) in [("022", 0o644), ("077", 0o600), ("002", 0o664), ("000", 0o666), ("777", 0)] {
        let shell = format!("umask {umask}; exec \"$@\"");
        in_shell(&bench, &shell, "cast x.npy --to f16 -o y.npy -q --report y.json").expect(0, "", "");
        assert_eq!((mode("y.npy"), mode("y.json")), (wanted, wanted), "{umask}");
        // Over one that had more rights.
        set("y.npy", 0o6777);
        in_shell(&bench, &shell, "cast x.npy --to f16 -o y.npy -q -f").expect(0, "", "");
        assert_eq!(mode("y.npy"), wanted, "{umask}");
        fs::remove_file(bench.path("y.npy")).unwrap();
        fs::remove_file(bench.path("y.json")).unwrap();
        if umask != "777" {
            in_shell(&bench, &shell, "cast in --to f16 -o out -q --no-sync").expect(0, "", "");
            for entry in fs::read_dir(bench.path("out")).unwrap() {
                let entry = entry.unwrap();
                assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o7777, wanted, "{umask}: {entry:?}");
            }
            fs::remove_dir_all(bench.path("out")).unwrap();
        }
    }
    assert_eq!((mode("x.npy"), mode("in/config.json")), (0o6755, 0o4755));
}

/// Those of an input stay. Those of a replaced output say something about the old bytes (a checksum, where they came
/// from) and go with them; where the run fails they stay.
#[test]
fn extended_attributes_of_inputs_and_of_what_is_not_replaced_stay() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100));
    bench.write("out.npy", b"old");
    let python = |code: &str| {
        let run =
            Command::new("python3").args(["-c", &format!("import os\n{code}")]).current_dir(bench.path("")).output();
        match run {
            Ok(output) if output.status.success() => Ok(String::from_utf8(output.stdout).unwrap()),
            other => Err(format!("python3 sets none: {other:?}")),
        }
    };
    let set = "for name in 'x.npy', 'out.npy', '.': os.setxattr(name, 'user.origin', b'here')";
    if let Err(why) = python(set) {
        return skip("extended attributes", &why);
    }
    let get = || python("for name in 'x.npy', 'out.npy', '.': print(name, *os.listxattr(name))").unwrap();
    let all = "x.npy user.origin\nout.npy user.origin\n. user.origin\n";
    assert_eq!(get(), all);
    assert_eq!(bench.run("cast x.npy --to f16 -o out.npy").code, Some(4));
    assert_eq!(bench.run("cast x.npy --to int8 --out-of-range error -o out.npy -f --fail-on inexact").code, Some(3));
    in_shell(&bench, "ulimit -f 0; exec \"$@\"", "cast x.npy --to f16 -o out.npy -f -q");
    assert_eq!(get(), all);
    bench.run("cast x.npy --to f16 -o out.npy -f -q").expect(0, "", "");
    assert_eq!(get(), "x.npy user.origin\nout.npy\n. user.origin\n");
}

#[test]
fn what_is_no_plain_file_is_written_in_place_or_refused() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1 << 20));
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, bench.path(name)).unwrap();
    link("/dev/null", "null.npy");
    link("/dev/full", "full.npy");
    link("loop-b.npy", "loop-a.npy");
    link("loop-a.npy", "loop-b.npy");
    link("no/where.npy", "dangling.npy");
    let _listener = std::os::unix::net::UnixListener::bind(bench.path("socket.npy")).unwrap();
    assert!(Command::new("mkfifo").arg(bench.path("pipe.npy")).status().unwrap().success());
    let before = bench.files();
    let cast = |output: &str| bench.run(&format!("cast x.npy --to f16 -o {output} -f -q"));
    for device in ["null.npy", "/dev/null"] {
        assert_eq!(cast(device).code, Some(0), "{device}");
    }
    let remedy = "free some space, or name an output on another disk with -o";
    let full = format!("tcast: error: full.npy: cannot write: no space left on device\n  {remedy}\n");
    cast("full.npy").expect(1, "", &full);
    cast("socket.npy").expect(1, "", "tcast: error: socket.npy: cannot write: no such device or address\n");
    for (output, wrong) in [
        ("loop-a.npy", "too many levels of symbolic links"),
        ("dangling.npy", "the output's directory does not exist"),
        (".", "is a file of the input (x.npy)"),
        ("x.npy/y.npy", "not a directory"),
        ("no/y.npy", "the output's directory does not exist"),
    ] {
        let said = cast(output);
        assert!(said.code == Some(1) && said.stderr.contains(wrong), "{output}: {said:?}");
    }
    // Who reads from a pipe may go away.
    let mut command = bench.command();
    command.args("cast x.npy --to f16 -o pipe.npy -q".split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    drop(fs::File::open(bench.path("pipe.npy")).unwrap());
    let said = Outcome::of(&child.wait_with_output().unwrap());
    said.expect(1, "", "tcast: error: pipe.npy: cannot write: broken pipe\n");
    // As inputs.
    for (input, wrong) in [
        ("/dev/zero", "is not a regular file"),
        ("pipe.npy", "is not a regular file"),
        ("socket.npy", "is not a regular file"),
        ("loop-a.npy", "too many levels of symbolic links"),
        ("dangling.npy", "no such file or directory"),
        ("/proc/self/status", "the file is empty"),
        ("/proc/self/mem", "the file is empty"),
        ("x.npy/", "not a directory"),
    ] {
        let said = bench.run(&format!("cast {input} --to f16 -o y.npy"));
        assert!(said.code == Some(1) && said.stderr.contains(wrong), "{input}: {said:?}");
        assert_eq!(said.stderr.matches("error").count(), 1, "{input}: {said:?}");
    }
    assert_eq!(bench.files(), before);
}

#[test]
fn a_link_beside_the_output_is_not_followed() {
    // The name of a temporary file cannot be known, and is made anew or not at all.
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100));
    bench.write("victim", b"mine");
    for number in 0..50 {
        std::os::unix::fs::symlink("victim", bench.path(&format!(".tcast-{number:06}.tmp"))).unwrap();
    }
    bench.run("cast x.npy --to f16 -o y.npy -q").expect(0, "", "");
    assert_eq!(bench.read("victim"), b"mine");
    assert!(fs::symlink_metadata(bench.path("y.npy")).unwrap().is_file());
    assert!(OsStr::from_bytes(b"y.npy").len() == 5 && fixture("model.safetensors").exists());
}
