//! Work that goes on where another run ended: what is in a work folder counts only as far as it is what was written.

use crate::common::{Bench, Outcome, as_on_linux, long_work, same, shard, tree};
use std::fs;

const LLAMA: &str = "llama-tiny-bf16";

/// A folder of which two of three shards are done.
fn begun() -> Bench {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f16 -o whole -q").expect(0, "", "");
    bench.run("cast llama --to f16 -o out --part 1/2 -q").expect(0, "", "");
    bench
}

/// The lock cannot be looked at, which is no sign of another run.
#[cfg(unix)]
#[test]
fn too_few_open_files_are_not_another_run() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 4)]));
    let mut failed = 0;
    for most in 4..14 {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n $0; exec \"$@\"", &most.to_string()]).current_dir(bench.path(""));
        command.arg(assert_cmd::cargo::cargo_bin!("tcast")).args(["cast", "in", "--to", "f16", "-q", "-j1"]);
        let said = String::from_utf8(command.args(["-o", &most.to_string()]).output().unwrap().stderr).unwrap();
        assert!(!said.contains("another tcast"), "{most}: {said}");
        if said.contains("too many open files") {
            failed += 1;
            // Only a finished shard is worth keeping.
            let out = bench.path(&most.to_string());
            assert!(!out.exists() || out.join(".tcast/done/0.json").exists(), "{most}: {said}");
        } else {
            assert!(said.is_empty(), "{most}: {said}");
        }
    }
    assert!(failed > 0);
}

#[test]
fn a_manifest_that_leads_elsewhere_is_refused() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    bench.run("cast llama --to f16 -o out --part 1/1 -q").expect(0, "", "");
    bench.write("precious.json", b"mine");
    let manifest = String::from_utf8(bench.read("out/.tcast/manifest.json")).unwrap();
    for (from, to) in [
        ("\"generation_config.json\"", "\"../precious.json\""),
        ("\"model-00001-of-00003.safetensors\",\"bytes\":731096", "\"/tmp/x\",\"bytes\":731096"),
        ("\"replaced\":[]", "\"replaced\":[\"../precious.json\"]"),
        ("\"index\":\"model", "\"index\":\"../model"),
        ("\"texts\":{", "\"texts\":{ \"../precious.json\":\"theirs\","),
        ("\"texts\":{", "\"texts\":{ \"/tmp/tcast-precious\":\"theirs\","),
        ("\"replaced\":[]", "\"replaced\":[\"notes.txt\"]"),
    ] {
        assert!(manifest.contains(from), "{manifest}");
        bench.write("out/.tcast/manifest.json", manifest.replace(from, to).as_bytes());
        for line in
            ["cast --finish out", "cast llama --to f16 -o out --resume", "cast llama --to f16 -o out --part 1/1"]
        {
            bench.run(line).says(1, "", "folder");
        }
    }
    bench.write("out/.tcast/manifest.json", b"[]");
    bench.run("cast --finish out").says(1, "", "written");
    assert_eq!(bench.read("precious.json"), b"mine");
}

#[test]
fn a_staged_shard_that_was_damaged_is_done_again() {
    let bench = begun();
    let done: Vec<String> = fs::read_dir(bench.path("out/.tcast/files"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let shard = done.iter().find(|name| name.ends_with(".safetensors")).unwrap();
    let path = format!("out/.tcast/files/{shard}");
    let whole = bench.read(&path);
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (flag, damaged) in [(" --part 1/2", &flipped), (" --part 1/2", &vec![0; whole.len()]), (" --resume", &flipped)]
    {
        bench.write(&path, damaged);
        for text in ["config.json", "generation_config.json", "model.safetensors.index.json"] {
            let text = format!("out/.tcast/files/{text}");
            let len = bench.read(&text).len();
            bench.write(&text, &vec![b' '; len]);
        }
        bench.run(&format!("cast llama --to f16 -o out{flag}")).says(0, "", "converting");
    }
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
}

#[test]
fn finish_names_what_is_damaged_and_how_it_is_done_again() {
    let bench = begun();
    bench.run("cast llama --to f16 -o out --part 2/2 -q").expect(0, "", "");
    let path = "out/.tcast/files/model-00002-of-00003.safetensors";
    let whole = bench.read(path);
    bench.write(path, &vec![0; whole.len()]);
    bench.run("cast --finish out").says(1, "", "--finish");
    bench.write(path, &whole);
    let side = "out/.tcast/files/generation_config.json";
    let content = bench.read(side);
    bench.write(side, &vec![b' '; content.len()]);
    bench.run("cast --finish out").says(1, "", "--finish");
    assert!(!bench.path("out/config.json").exists());
    bench.run("cast llama --to f16 -o out --part 1/2 -q").expect(0, "", "");
    bench.run("cast --finish out -q").expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
}

#[cfg(unix)]
#[test]
fn links_pipes_and_devices_in_a_work_folder_are_not_followed_or_waited_for() {
    use std::os::unix::fs::symlink;
    let bench = begun();
    let lines = ["cast llama --to f16 -o out --resume", "cast llama --to f16 -o out --part 2/2", "cast --finish out"];
    let refused = |word: &str| {
        for line in lines {
            bench.run(line).says(1, "", word);
        }
        bench.run("inspect out").says(1, "", "out");
        assert_eq!(bench.read("precious"), b"mine");
    };
    bench.write("precious", b"mine");
    let manifest = bench.read("out/.tcast/manifest.json");
    let path = bench.path("out/.tcast/manifest.json");
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    refused("regular");
    fs::remove_file(&path).unwrap();
    for target in ["/dev/zero", "../../precious"] {
        symlink(target, &path).unwrap();
        refused("symbolic");
        fs::remove_file(&path).unwrap();
    }
    fs::write(&path, &manifest).unwrap();
    // A file without end.
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    refused("longer");
    fs::write(&path, "{").unwrap();
    refused("version");
    fs::write(&path, &manifest).unwrap();
    // The record of a conversion of which all is in its place.
    let end = bench.path("out/.tcast/end.json");
    for what in ["[", "{}"] {
        fs::write(&end, what).unwrap();
        refused("end.json");
    }
    fs::remove_file(&end).unwrap();
    fs::create_dir(bench.path("elsewhere")).unwrap();
    for folder in ["files", "done"] {
        let path = bench.path("out/.tcast").join(folder);
        fs::rename(&path, bench.path("kept")).unwrap();
        symlink("../../elsewhere", &path).unwrap();
        refused(folder);
        fs::remove_file(&path).unwrap();
        fs::rename(bench.path("kept"), &path).unwrap();
    }
    assert!(tree(&bench.path("elsewhere")).is_empty());
    let lock = bench.path("out/.tcast/lock");
    fs::remove_file(&lock).unwrap();
    symlink("../../precious", &lock).unwrap();
    refused("lock");
    fs::remove_file(&lock).unwrap();
    // Of the records and the shards, such ones do not count.
    let record = fs::read_dir(bench.path("out/.tcast/done")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&record).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&record).status().unwrap().success());
    for entry in fs::read_dir(bench.path("out/.tcast/files")).unwrap() {
        let path = entry.unwrap().path();
        fs::remove_file(&path).unwrap();
        symlink("../../../precious", &path).unwrap();
    }
    bench.run("cast llama --to f16 -o out --resume -q").expect(0, "", "");
    same(&tree(&bench.path("out")), &tree(&bench.path("whole")));
    assert_eq!(bench.read("precious"), b"mine");
}

#[test]
fn an_unfinished_folder_is_no_checkpoint_to_any_command() {
    let bench = begun();
    bench.run("cast llama --to f32 -o old -q").expect(0, "", "");
    fs::rename(bench.path("out/.tcast"), bench.path("old/.tcast")).unwrap();
    let llama = fs::canonicalize(bench.path("llama")).unwrap();
    let command = format!("tcast cast '{}' --to 'float16' -o 'old' --resume", llama.display());
    let error = format!(
        "old: an unfinished conversion is in it, in .tcast\n  {command}\n  \
         or drop it, and keep the checkpoint that is there: rm -r 'old/.tcast'\n"
    );
    for line in [
        "cast old --to bf16 -o x",
        "cast old --to bf16 -o x.safetensors",
        "cast old/model.safetensors.index.json --to bf16 -o x",
        "inspect old",
        "inspect old --stats",
        "inspect old/model.safetensors.index.json",
        "diff old whole",
        "diff whole old",
        "bitcast old --to int32 -o x",
        "bitcast old --hex --tensor model.norm.weight",
        "promote old --tensor model.norm.weight -o x",
    ] {
        let outcome = bench.run(line);
        let is_told = outcome.stderr == as_on_linux(&format!("tcast: error: {error}"));
        assert!(outcome.code != Some(0) && is_told && outcome.stdout.is_empty(), "{line}: {outcome:?}");
    }
    // Once a file of the old checkpoint may have been moved, nothing is offered that would lose it.
    fs::create_dir(bench.path("old/.tcast/old")).unwrap();
    let outcome = bench.run("inspect old");
    assert!(outcome.code == Some(1) && outcome.stderr.ends_with(" --resume\n"), "{outcome:?}");
    fs::remove_dir(bench.path("old/.tcast/old")).unwrap();
    fs::remove_dir_all(bench.path("old/.tcast")).unwrap();
    let outcome = bench.run("diff old whole -q");
    assert!(outcome.code != Some(2) && outcome.stderr.is_empty(), "{outcome:?}");
    // With all shards there, one command is shorter.
    bench.run("cast llama --to f16 -o ready --part 1/1 -q").expect(0, "", "");
    bench.run("inspect ready").check_message("--finish");
    bench.run("cast --finish ready -q").expect(0, "", "");
    assert_eq!(bench.run("inspect ready -q").code, Some(0));
}

/// Words of a manifest are in quotes, behind flags of ours.
#[test]
fn the_command_that_goes_on_is_no_way_into_a_shell() {
    let bench = begun();
    let manifest = String::from_utf8(bench.read("out/.tcast/manifest.json")).unwrap();
    let evil = manifest
        .replace("\"input_at\":\"", "\"input_at\":\"x'; touch PWN; '\\u001b[2J\",\"x\":\"")
        .replace("\"exclude\":[]", "\"exclude\":[\"$(touch PWN)\"]");
    assert_ne!(manifest, evil);
    bench.write("out/.tcast/manifest.json", evil.as_bytes());
    let outcome = bench.run("inspect out");
    outcome.says(1, "", "--exclude");
    assert!(outcome.stderr.chars().all(|c| !c.is_control() || c == '\n'), "{outcome:?}");
    #[cfg(unix)]
    {
        let command = outcome.stderr.lines().last().unwrap();
        let _ = std::process::Command::new("bash").args(["-c", command]).current_dir(bench.path("")).output();
        assert_eq!(bench.files(), ["llama", "out", "whole"]);
    }
    bench.write("out/.tcast/manifest.json", manifest.replace("\"all\":", "\"all; x\":").as_bytes());
    let outcome = bench.run("inspect out");
    assert!(outcome.code == Some(1) && !outcome.stderr.contains("all; x"), "{outcome:?}");
}

#[test]
fn what_is_complete_is_success_to_the_same_command() {
    let (bench, line) = long_work();
    bench.run(line).expect(0, "", "");
    let before = tree(&bench.path("out"));
    let line = line.replace(" -q", "");
    for flags in ["--resume", "--part 2/3", "--part 1/1"] {
        bench.run(&format!("{line} {flags}")).says(0, "", "complete");
        bench.run(&format!("{line} {flags} -q")).expect(0, "", "");
    }
    bench.run("cast --finish out").says(0, "", "checkpoint");
    // The report is that of the same command, and is made anew.
    for _ in 0..2 {
        bench.run(&format!("{line} --resume --report r.json")).says(0, "", "complete");
    }
    std::fs::remove_file(bench.path("r.json")).unwrap();
    let report = bench.run(&format!("{line} --resume --json --hash -q"));
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["tensors_cast"], 12);
    let finish = bench.run("cast --finish out --json -q");
    assert_eq!((finish.code, finish.stderr.as_str()), (Some(0), ""));
    let finish: serde_json::Value = serde_json::from_str(&finish.stdout).unwrap();
    assert_eq!((&finish["published"], &finish["output"]), (&false.into(), &"out".into()));
    same(&tree(&bench.path("out")), &before);
    assert_eq!(bench.files(), ["in", "out", "whole"]);
    // Anything else is not.
    let refused = |line: &str, what: &str| bench.run(line).says(4, "", what);
    refused(&format!("{line} --resume --rule w3=bf16"), "bfloat16");
    refused(&format!("{line} --part 1/2 --rename w3=x"), "missing");
    refused(&line.replace("cast in", "cast whole").replace("f16", "f32 --resume"), "w0");
    bench.write("out/config.json", b"{}");
    refused(&format!("{line} --resume"), "config.json");
    bench.write("out/config.json", &before["config.json"]);
    fs::remove_file(bench.path("out/config.json")).unwrap();
    refused(&format!("{line} --resume"), "config.json");
    bench.write("out/config.json", &before["config.json"]);
    // Options that show in values only.
    let mut other = before["s03.safetensors"].clone();
    *other.last_mut().unwrap() ^= 1;
    bench.write("out/s03.safetensors", &other);
    bench.run(&format!("{line} --resume")).says(4, "", "--force");
    assert!(bench.read("out/s03.safetensors") == other);
}

#[test]
fn an_option_that_only_values_show_is_not_taken_for_the_same() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("w", 1e6, 4)]));
    bench.run("cast in --to e4m3 -o out -q").expect(0, "", "");
    bench.run("cast in --to e4m3 -o out -q --resume").expect(0, "", "");
    bench.run("cast in --to e4m3 -o out -q --resume --no-saturate").says(4, "", "command");
}

#[cfg(unix)]
#[test]
fn a_folder_that_is_replaced_keeps_its_rights_and_what_else_is_in_it() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    fs::create_dir(bench.path("llama/templates")).unwrap();
    bench.write("llama/templates/x.jinja", b"new");
    bench.run("cast llama --to f16 -o whole -q").expect(0, "", "");
    bench.run("cast llama --to f32 --max-shard-size 500KB -o real -q").expect(0, "", "");
    symlink("real", bench.path("out")).unwrap();
    bench.write("real/notes.txt", b"mine");
    bench.write("real/templates/y.jinja", b"mine");
    fs::create_dir_all(bench.path("real/logs/deep")).unwrap();
    bench.write("real/logs/deep/log", b"mine");
    symlink("nowhere", bench.path("real/link")).unwrap();
    fs::set_permissions(bench.path("real"), fs::Permissions::from_mode(0o750)).unwrap();
    let mine = ["notes.txt", "templates/y.jinja", "logs/deep/log"];
    let check = || {
        assert!(bench.path("out").is_symlink() && bench.path("out/link").is_symlink());
        assert_eq!(fs::metadata(bench.path("real")).unwrap().permissions().mode() & 0o7777, 0o750);
        fs::remove_file(bench.path("real/link")).unwrap();
        let mut there = tree(&bench.path("real"));
        for name in mine {
            assert_eq!(there.remove(name).as_deref(), Some(&b"mine"[..]), "{name}");
        }
        same(&there, &tree(&bench.path("whole")));
        assert_eq!(bench.files(), ["llama", "out", "real", "whole"]);
        symlink("nowhere", bench.path("real/link")).unwrap();
    };
    bench.run("cast llama --to f16 -o out --force -q").expect(0, "", "");
    check();
    // From within: the folder cannot be exchanged, or whoever is in it would be in the old one.
    let mut command = bench.command();
    command.current_dir(bench.path("real")).args(["cast", "../llama", "--to", "f16", "-o", ".", "--force", "-q"]);
    let outcome = command.output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    check();
}

#[test]
fn the_command_that_goes_on_is_the_same_in_any_folder() {
    let bench = begun();
    fs::create_dir(bench.path("below")).unwrap();
    let mut command = bench.command();
    let output = command.current_dir(bench.path("below")).args(["inspect", "../out"]).output().unwrap();
    let outcome = Outcome::of_line("inspect ../out", &output);
    outcome.says(1, "", "--to");
    // What the reports have as the input is still what the command had.
    bench.run("cast llama --to f16 -o out --part 2/2 -q").expect(0, "", "");
    let finish = bench.run("cast --finish out --json -q");
    let finish: serde_json::Value = serde_json::from_str(&finish.stdout).unwrap();
    assert_eq!((&finish["input"], &finish["published"]), (&"llama".into(), &true.into()));
}

#[cfg(unix)]
#[test]
fn the_command_that_goes_on_has_the_bytes_of_the_input() {
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let odd = bench.path("").join(std::ffi::OsStr::from_bytes(b"odd\xff"));
    if fs::rename(bench.path("llama"), &odd).is_err() {
        return; // the file system takes only names that are text
    }
    let mut command = bench.command();
    let args = ["--to", "f16", "-o", "out", "-q", "--part", "1/2"];
    let outcome = command.arg("cast").arg(odd.file_name().unwrap()).args(args).output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    let outcome = bench.run("inspect out");
    outcome.says(1, "", "--to");
    let command = outcome.stderr.lines().last().unwrap().trim_start().strip_prefix("tcast ").unwrap();
    let program = assert_cmd::cargo::cargo_bin!("tcast");
    let mut shell = std::process::Command::new("bash");
    let done = shell.args(["-c", &format!("\"$0\" {command}")]).arg(program).current_dir(bench.path("")).output();
    assert!(done.is_err() || done.is_ok_and(|done| done.status.success()), "{command}");
}

#[test]
fn a_part_that_is_run_again_makes_its_own_report_anew_and_no_other() {
    let bench = Bench::with_checkpoint(LLAMA, "llama");
    let part = |number: u64| format!("cast llama --to f16 -o out -q --part {number}/2 --report r.json");
    bench.run(&part(1)).expect(0, "", "");
    bench.write("r.json", b"old");
    bench.run(&part(1)).expect(0, "", "");
    let report = bench.read("r.json");
    assert!(report.starts_with(b"{"));
    // The second part to name the same report is refused: it would replace the report of the first.
    bench.run(&part(2)).says(4, "", "--report");
    assert_eq!(bench.read("r.json"), report);
    bench.run("cast llama --to f16 -o out -q --part 2/2").expect(0, "", "");
    bench.run("cast --finish out -q").expect(0, "", "");
    bench.run(&part(1)).expect(0, "", "");
}

#[test]
fn a_run_that_was_killed_before_it_recorded_anything_can_be_repeated() {
    let bench = begun();
    for line in ["cast llama --to f16 -o new --resume -q", "cast llama --to f16 -o new -q"] {
        fs::create_dir_all(bench.path("new/.tcast")).unwrap();
        bench.write("new/.tcast/lock", b"");
        bench.run(line).expect(0, "", "");
        same(&tree(&bench.path("new")), &tree(&bench.path("whole")));
        fs::remove_dir_all(bench.path("new")).unwrap();
    }
    // Nothing says that an older checkpoint may be replaced.
    bench.run("cast llama --to f32 -o old -q").expect(0, "", "");
    let before = tree(&bench.path("old"));
    fs::create_dir(bench.path("old/.tcast")).unwrap();
    bench.write("old/.tcast/lock", b"");
    bench.run("cast llama --to f16 -o old --resume -q").says(1, "", "--force");
    fs::remove_dir_all(bench.path("old/.tcast")).unwrap();
    same(&tree(&bench.path("old")), &before);
}
