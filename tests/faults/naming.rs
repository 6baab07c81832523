//! How an output gets its name, where file systems differ, and what is left of runs that were killed.

use super::hold::{hold, replace_calls};
use super::{Outcome, has_strace, leftovers, numbers, skip, sparse, traced};
use crate::common::promises::record;
use crate::common::{Bench, shard, tree};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

/// A run of a line with some calls replaced.
fn replaced(bench: &Bench, line: &str, variables: &[(&str, &str)]) -> Option<crate::common::Outcome> {
    let mut command = bench.command();
    command.args(line.split(' '));
    Some(Outcome::of(&replace_calls(command, variables)?.output().unwrap()))
}

/// Whether files can be made that have no name.
fn has_unnamed(bench: &Bench) -> bool {
    let file = fs::File::options().write(true).custom_flags(libc::O_TMPFILE).open(bench.path(""));
    if let Err(error) = &file {
        skip("files without names", &error.to_string());
    }
    file.is_ok()
}

#[test]
fn a_failing_close_is_an_error_and_gives_no_new_output() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(100));
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.write("in/config.json", b"{}");
    let remove_new = || {
        for new in ["y.npy", "o.npy", "z.npy", "r.json"] {
            let _ = fs::remove_file(bench.path(new));
        }
        let _ = fs::remove_dir_all(bench.path("out"));
    };
    let mut failed = 0;
    for line in [
        "cast x.npy --to f16 -o y.npy -q --no-sync",
        "cast x.npy --to f16 -o y.npy -q -f",
        "promote x.npy -o o.npy -q",
        "cast in --to f16 -o out -q --no-sync",
        "cast x.npy --to f16 -o z.npy -q --report r.json",
    ] {
        for unnamed in [&[][..], &[("NO_UNNAMED", "1")]] {
            let before = tree(&bench.path(""));
            let mut seen = 0;
            // More than there are; of those that do not count one is the lock's.
            for at in 1..=12 {
                let at = at.to_string();
                let variables = [&[("CLOSE_AT", at.as_str())], unnamed].concat();
                let Some(said) = replaced(&bench, line, &variables) else { return };
                if said.code == Some(0) {
                    remove_new();
                    continue;
                }
                assert_eq!(
                    (said.code, said.stderr.matches("tcast: error: ").count()),
                    (Some(1), 1),
                    "{line}: {said:?}"
                );
                assert!(said.stderr.contains("quota exceeded"), "{said:?}");
                if line.contains("--report") {
                    let _ = fs::remove_file(bench.path("z.npy")); // the report comes after it
                }
                if line.contains("in --to") {
                    let there =
                        if bench.path("out").exists() { tree(&bench.path("out")) } else { tree(&bench.path("in")) };
                    let shards = there.keys().filter(|name| !name.contains(".tcast"));
                    assert!(shards.count() <= 2, "{there:?}");
                    let _ = fs::remove_dir_all(bench.path("out"));
                }
                assert_eq!(tree(&bench.path("")), before, "{line}, {at}: {said:?}");
                seen += 1;
            }
            assert!(seen > 0, "{line}");
            failed += seen;
        }
    }
    assert!(failed > 10, "{failed}");
    record("a_failing_close_is_an_error_and_gives_no_new_output", &format!("{failed} closes"));
}

#[test]
fn a_run_that_is_killed_leaves_nothing_where_files_need_no_names() {
    let bench = Bench::new();
    if !has_unnamed(&bench) {
        return;
    }
    sparse(&bench.path("x.npy"), 1 << 22);
    for line in ["cast x.npy --to int8 -j1 --no-sync -o y.npy", "cast x.npy --to int8 -j1 --no-sync -f -o x.int8.npy"] {
        let mut command = bench.command();
        command.args(line.split(' '));
        let Some(held) = hold(command, "pwrite64", 2) else { return };
        assert_eq!(held.signal("KILL").code, None);
        assert_eq!(bench.files(), ["x.npy"]);
    }
}

#[test]
fn temporary_files_of_killed_runs_are_named_and_those_of_live_ones_are_not() {
    let bench = Bench::new();
    sparse(&bench.path("x.npy"), 1 << 22);
    bench.write("small.npy", &numbers(10));
    let begin = || {
        let mut command = bench.command();
        command.args("cast x.npy --to int8 -j1 --no-sync -o y.npy".split(' ')).env("NO_UNNAMED", "1");
        hold(command, "pwrite64", 2)
    };
    let Some(live) = begin() else { return };
    let said = bench.run("cast small.npy --to f16 -o a.npy");
    assert!(said.code == Some(0) && !said.stderr.contains("killed"), "{said:?}");
    assert_eq!(live.signal("KILL").code, None);
    let left: Vec<String> = bench.files().into_iter().filter(|name| name.starts_with(".tcast-")).collect();
    let [name] = &left[..] else { panic!("{left:?}") };
    let warning = |folder: &str| {
        format!(
            "tcast: warning: 1 temporary file of runs that were killed, 4.00 MiB in all, can be removed\n  \
             rm '{folder}{name}'\n"
        )
    };
    for (line, folder) in [("cast small.npy --to f16 -o b.npy", "./"), ("promote small.npy -o ./c.npy", "./")] {
        let said = bench.run(line);
        assert!(said.code == Some(0) && said.stderr.starts_with(&warning(folder)), "{said:?}");
    }
    bench.run("cast small.npy --to f16 -o d.npy -q").expect(0, "", "");
    let remedy = warning("").lines().nth(1).unwrap().trim().to_owned();
    assert!(Command::new("sh").args(["-c", &remedy]).current_dir(bench.path("")).status().unwrap().success());
    assert!(!bench.run("cast small.npy --to f16 -o e.npy").stderr.contains("warning"));
}

#[test]
fn a_new_output_is_written_where_the_file_system_has_neither_links_nor_a_careful_rename() {
    let bench = Bench::new();
    bench.write("x.npy", &numbers(1000));
    bench.run("cast x.npy --to f16 -o whole.npy -q").expect(0, "", "");
    let whole = bench.read("whole.npy");
    for variables in [&[("NO_LINKS", "1")][..], &[("NO_LINKS", "1"), ("NO_UNNAMED", "1")]] {
        for line in ["cast x.npy --to f16 -o y.npy -q", "cast x.npy --to f16 -o y.npy -q -f"] {
            let Some(said) = replaced(&bench, line, variables) else { return };
            said.expect(0, "", "");
            assert!(bench.read("y.npy") == whole, "{line}");
        }
        let Some(said) = replaced(&bench, "cast x.npy --to f16 -o y.npy -q", variables) else { return };
        assert!(said.stderr.contains("the output exists already"), "{said:?}");
        fs::remove_file(bench.path("y.npy")).unwrap();
        assert_eq!(leftovers(&bench), [""; 0]);
    }
    if has_strace("a rename that is refused") {
        for answer in ["EINVAL", "EPERM", "EOPNOTSUPP"] {
            let inject = format!("inject=renameat2,link,linkat:error={answer}");
            let flags = ["-e", "trace=renameat2,link,linkat", "-e", &inject];
            Outcome::of(&traced(&bench, &flags, "cast x.npy --to f16 -o y.npy -q").output().unwrap()).expect(0, "", "");
            assert!(bench.read("y.npy") == whole, "{answer}");
            fs::remove_file(bench.path("y.npy")).unwrap();
            fs::remove_file(bench.path("trace")).unwrap();
            assert_eq!(leftovers(&bench), [""; 0]);
        }
    }
}
