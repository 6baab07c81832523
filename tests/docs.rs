//! The examples of `README.md` and `docs/*.md` work and print what the page shows; every link leads somewhere.
//!
//! * A `console` block is a session: bash runs the lines that start with `$ ` in one folder, with the files that
//!   `docs/examples.sh` copies. Where a command is followed by output, standard output and standard error must be that
//!   output; `...` on a line of its own stands for any lines. Times and rates are not compared. A command must succeed,
//!   unless the next one is `echo $?`. `TCAST_REFRESH=1 cargo test --test docs` writes outputs that have changed, except
//!   those with `...`.
//! * An `sh` block is a script that must succeed in such a folder. `sh clone` marks the one that makes the folder.
//!   `sh by-hand` marks what a test cannot run: installation. `sh job` and `yaml job` mark job scripts, which have tests
//!   of their own at the end of this file.
//! * All this holds for each block in a fresh folder, and for all blocks of a page in order, in one folder and one shell.
#![cfg(unix)]

mod common;

use common::Bench;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The README and the pages of `docs/`, by their paths from the root.
fn pages() -> Vec<(String, String)> {
    let docs =
        fs::read_dir(root().join("docs")).unwrap().map(|entry| Path::new("docs").join(entry.unwrap().file_name()));
    let mut paths: Vec<String> = docs
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    paths.push("README.md".to_owned());
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(root().join(path)).unwrap())).collect()
}

/// A code block: what stands behind the three backticks, and its text.
struct Block<'a> {
    info: &'a str,
    text: &'a str,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .map(|block| {
            let (info, text) = block.split_once('\n').unwrap_or((block, ""));
            Block { info, text }
        })
        .collect()
}

/// A folder with the files that the examples are about, and `bin` with the program.
fn folder() -> Bench {
    let bench = Bench::new();
    fs::remove_dir(bench.path("")).unwrap();
    let copied = Command::new(root().join("docs/examples.sh")).arg(bench.path("")).output().unwrap();
    assert!(copied.status.success(), "{}", printed(&copied));
    with_program(bench)
}

/// A folder with what the README uses of a clone of the repository, in `clone`.
fn clone() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("clone")).unwrap();
    for name in ["docs", "fixtures"] {
        symlink(root().join(name), bench.path("clone").join(name)).unwrap();
    }
    with_program(bench)
}

fn with_program(bench: Bench) -> Bench {
    fs::create_dir(bench.path("bin")).unwrap();
    // `.ci/windows` names another one.
    let program = std::env::var_os("TCAST_PROGRAM").map(PathBuf::from);
    symlink(program.unwrap_or_else(|| assert_cmd::cargo::cargo_bin!("tcast").into()), bench.path("bin/tcast")).unwrap();
    bench
}

/// A shell in a folder of a bench, with the program on its path.
fn shell(bench: &Bench, folder: &str) -> Command {
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.current_dir(bench.path(folder)).env("PATH", path).env_remove("NO_COLOR");
    command
}

fn bash(bench: &Bench, script: &str, environment: &[(&str, &str)]) -> Output {
    shell(bench, "").args(["-euo", "pipefail", "-c", script]).envs(environment.iter().copied()).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// Without times and rates, which change from run to run.
fn timeless(text: &str) -> Vec<String> {
    let line = |line: &str| match line.split_once(" in ") {
        Some((before, after)) if after.starts_with(|sign: char| sign.is_ascii_digit()) => before.to_owned(),
        _ => line.trim_end().to_owned(),
    };
    text.lines().map(line).collect()
}

/// Whether the lines are those that are shown, where `...` stands for any.
fn shows(shown: &[String], lines: &[String]) -> bool {
    match shown.split_first() {
        None => lines.is_empty(),
        Some((first, rest)) if first.trim() == "..." => (0..=lines.len()).any(|skipped| shows(rest, &lines[skipped..])),
        Some((first, rest)) => lines.split_first().is_some_and(|(line, others)| first == line && shows(rest, others)),
    }
}

/// The commands of a block, each with the output that the page shows. A script is one command.
fn commands<'a>(block: &Block<'a>) -> Vec<(&'a str, &'a str)> {
    match block.info {
        "console" => {
            let session = block.text.strip_prefix("$ ").expect("a session starts with a command");
            session.split("\n$ ").map(|command| command.split_once('\n').unwrap_or((command, ""))).collect()
        }
        "sh" | "sh clone" => vec![(block.text, "")],
        _ => Vec::new(),
    }
}

/// Runs blocks in one shell, as a reader types them, and adds what is wrong to the failures; the number of commands.
fn run(page: &str, blocks: &[Block<'_>], bench: &Bench, start: &str, failures: &mut Vec<String>) -> usize {
    let (mut script, mut all) = (vec!["exec 2>&1; set -o pipefail\n".to_owned()], Vec::new());
    for block in blocks {
        for (command, shown) in commands(block) {
            // A script ends where a command of it fails, and its shell too.
            let (on, off) = if block.info == "console" { ("", "") } else { ("set -e\n", "set +e\n") };
            script.push(format!("{on}{command}\n{off}code=$?; printf '\\0%s\\0' $code; (exit $code)\n"));
            all.push((command, shown));
        }
    }
    let printed = printed(&shell(bench, start).args(["-c", &script.concat()]).output().unwrap());
    let last = printed.rsplit('\0').next().unwrap_or_default();
    let mut parts = printed.split('\0');
    for (at, (command, shown)) in all.iter().enumerate() {
        let (printed, Some(code)) = (parts.next().unwrap_or_default(), parts.next()) else {
            failures.push(format!("{page}: {command}: fails, or closes the shell\n{last}"));
            break;
        };
        let is_asked = all.get(at + 1).is_some_and(|(next, _)| *next == "echo $?");
        if code != "0" && !is_asked {
            failures.push(format!("{page}: {command}: exit code {code}\n{printed}"));
        }
        if !shown.is_empty() && !shows(&timeless(shown), &timeless(printed)) {
            if std::env::var_os("TCAST_REFRESH").is_some() && !shown.contains("...") {
                let path = root().join(page);
                let fresh = format!("$ {command}\n{}", printed.trim_end());
                let text = fs::read_to_string(&path).unwrap();
                fs::write(path, text.replace(&format!("$ {command}\n{shown}"), &fresh)).unwrap();
            } else {
                failures.push(format!("{page}: {command}\nprints\n{printed}\nbut the page shows\n{shown}\n"));
            }
        }
    }
    all.len()
}

#[test]
fn every_example_works_alone_and_prints_what_the_page_shows() {
    let (mut seen, mut failures) = (BTreeMap::new(), Vec::new());
    for (path, page) in pages() {
        for block in blocks(&page) {
            match block.info {
                "console" | "sh" => {
                    let commands = run(&path, std::slice::from_ref(&block), &folder(), "", &mut failures);
                    *seen.entry(path.clone()).or_insert(0) += commands;
                }
                "sh by-hand" => {
                    let installs = block.text.contains("cargo run") || block.text.contains("pip install");
                    assert!(!block.text.contains("tcast cast") || installs, "{path}: a test can run\n{}", block.text);
                }
                "sh clone" | "sh job" | "yaml job" | "text" | "json" | "rust" | "toml" | "python" => {}
                info => panic!("{path}: a block of {info:?}: see the head of this file"),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(seen["README.md"] >= 8 && seen.values().sum::<usize>() >= 50, "{seen:?}");
}

#[test]
fn every_page_works_from_top_to_bottom_in_one_shell() {
    if std::env::var_os("TCAST_REFRESH").is_some() {
        return; // the pages are being written
    }
    let (mut seen, mut failures) = (0, Vec::new());
    for (path, page) in pages() {
        let blocks = blocks(&page);
        let begins_in_a_clone = blocks.iter().any(|block| block.info == "sh clone");
        assert_eq!(begins_in_a_clone, path == "README.md", "{path} makes the folder of the examples");
        let (bench, start) = if begins_in_a_clone { (clone(), "clone") } else { (folder(), "") };
        seen += run(&path, &blocks, &bench, start, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(seen >= 50, "{seen} commands");
}

#[test]
fn no_example_closes_the_shell_of_its_reader() {
    for (path, page) in pages() {
        for Block { text, .. } in blocks(&page).iter().filter(|block| matches!(block.info, "console" | "sh")) {
            for line in text.lines().filter(|line| line.contains("exit")) {
                let is_a_command = line.split(|sign: char| !sign.is_alphanumeric()).any(|word| word == "exit");
                assert!(!is_a_command || line.starts_with('('), "{path}: {line}: put it into a subshell");
            }
        }
    }
}

/// Of `docs/terminal.svg`, without the blanks, which a terminal has others of.
#[test]
fn the_picture_shows_what_the_program_prints() {
    let picture = fs::read_to_string(root().join("docs/terminal.svg")).unwrap();
    let bare = |row: &str| {
        let text: String = row.split('<').map(|tag| tag.split_once('>').map_or(tag, |(_, text)| text)).collect();
        text.replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&#x27;", "'")
            .replace("&amp;", "&")
    };
    let rows: Vec<String> = picture.lines().filter(|line| line.starts_with("<text ")).map(bare).collect();
    let without_blanks = |lines: &[String]| lines.concat().split_whitespace().collect::<String>();
    let commands: Vec<&str> = rows.iter().filter_map(|row| row.strip_prefix("$ ")).collect();
    assert!(commands.len() >= 3, "{rows:#?}");
    let bench = folder();
    let mut lines = Vec::new();
    for command in commands {
        lines.push(format!("$ {command}"));
        lines.extend(timeless(&printed(&bash(&bench, &format!("exec 2>&1; {command}"), &[]))));
    }
    let shown = without_blanks(&timeless(&rows.join("\n")));
    assert!(shown == without_blanks(&lines), "draw it anew: python3 docs/picture.py\n{rows:#?}\n{lines:#?}");
}

/// A heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign)).collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut paths: Vec<PathBuf> = pages().into_iter().map(|(path, _)| path.into()).collect();
    paths.extend(["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(PathBuf::from));
    let read = |path: &Path| fs::read_to_string(root().join(path)).unwrap();
    let mut linked = BTreeSet::new();
    for path in paths {
        let page = read(&path);
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(root().join(&target).exists(), "{}: {link}", path.display());
            if !heading.is_empty() {
                let headings = read(&target);
                let mut anchors = headings.lines().filter(|line| line.starts_with('#'));
                let is_there = anchors.any(|line| anchor(line.trim_start_matches('#')) == heading);
                assert!(is_there, "{}: {link}", path.display());
            }
            if path == Path::new("README.md") {
                linked.insert(target);
            }
        }
    }
    for (path, _) in pages() {
        assert!(path == "README.md" || linked.contains(Path::new(&path)), "the README has no link to {path}");
    }
}

/// A reader runs the tests by the command of the README, and it is the command that a change must pass.
#[test]
fn one_command_runs_the_tests_and_the_check_of_a_change_runs_it_as_it_stands() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    for page in ["README.md", "CONTRIBUTING.md", "docs/install.md"] {
        assert!(read(page).contains("`cargo test` runs the tests"), "{page}");
    }
    assert_eq!(read(".ci/run").lines().filter(|line| *line == "cargo test").count(), 1);
}

#[test]
fn pages_spell_color_as_the_flag_does() {
    let pages = pages().into_iter().filter(|(_, page)| page.to_lowercase().contains(concat!("colo", "ur")));
    assert_eq!(pages.map(|(path, _)| path).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn the_readme_is_no_longer_than_a_landing_page() {
    let lines = fs::read_to_string(root().join("README.md")).unwrap().lines().count();
    assert!(lines <= 250, "{lines} lines: move details to docs/");
}

/// The imports of a library take longer than its work, and are not part of a conversion.
#[test]
fn the_table_of_speed_has_the_start_of_each_program_in_a_column_of_its_own() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = page.split_once("<!-- speed -->\n\n").unwrap();
    let (table, _) = rest.split_once("\n\n<!-- end -->").unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.trim_matches('|').split(" | ").collect()).collect();
    assert_eq!(rows[0][1..], ["job", "relative to tcast", "start "], "{table}");
    assert!(rows.len() > 4 && rows[2..].iter().all(|row| row.len() == 4 && row[3].ends_with(" s ")), "{table}");
}

/// The job scripts of a section of `docs/checkpoints.md`.
fn jobs(section: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/checkpoints.md")).unwrap();
    let (_, rest) = page.split_once(&format!("\n## {section}\n")).expect("the page has the section");
    let rest = rest.split("\n## ").next().unwrap();
    blocks(rest).into_iter().filter(|block| block.info.ends_with(" job")).map(|block| block.text.to_owned()).collect()
}

fn stand_in(bench: &Bench, name: &str, script: &str) {
    let path = bench.path("bin").join(name);
    fs::write(&path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The files of two folders are the same.
#[track_caller]
fn same(bench: &Bench, a: &str, b: &str) {
    let output = Command::new("diff").arg("-r").args([bench.path(a), bench.path(b)]).output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
}

#[test]
fn the_line_for_gnu_parallel_works() {
    let bench = folder();
    let [line] = <[String; 1]>::try_from(jobs("GNU parallel")).unwrap();
    let version = Command::new("parallel").arg("--version").output();
    if !version.is_ok_and(|output| output.stdout.starts_with(b"GNU parallel")) {
        // The command with each of the words behind `:::` for `{}`, all at once; it fails as one of them does.
        let script = "#!/bin/bash
command=(); while [ \"$1\" != ::: ]; do command+=(\"$1\"); shift; done; shift
for word; do \"${command[@]//'{}'/$word}\" & jobs+=($!); done
for job in \"${jobs[@]}\"; do wait \"$job\" || failed=1; done; exit \"${failed:-0}\"
";
        stand_in(&bench, "parallel", script);
    }
    let output = bash(&bench, &line, &[]);
    assert!(output.status.success(), "{}", printed(&output));
    bench.run("cast llama --to f16 -o whole -q").expect(0, "", "");
    same(&bench, "llama-f16", "whole");
}

/// `tests/interop/jobs.sh` runs it on a real Slurm.
#[test]
fn the_script_for_slurm_works() {
    let bench = folder();
    let [script, start] = <[String; 2]>::try_from(jobs("Slurm")).unwrap();
    bench.write("cast.sh", script.as_bytes());
    // Every task of the array at once, as far as the script asks for them; a wrapped command runs when they are done.
    let sbatch = "#!/bin/bash
if [ \"$1\" = --parsable ]; then
    last=$(sed -n 's/^#SBATCH .*--array=1-\\([0-9]*\\).*/\\1/p' \"$2\")
    for task in $(seq \"$last\"); do SLURM_ARRAY_TASK_ID=$task bash \"$2\" >&2 || exit 1 & jobs+=($!); done
    for job in \"${jobs[@]}\"; do wait \"$job\" || exit 1; done
    echo 17
else
    [ \"$1\" = --dependency=afterok:17 ] && [ \"$2\" = --wrap ] && bash -c \"$3\"
fi
";
    stand_in(&bench, "sbatch", sbatch);
    let output = bash(&bench, &start, &[("SLURM_CPUS_PER_TASK", "1")]);
    assert!(output.status.success(), "{}", printed(&output));
    bench.run("cast llama --to e4m3 --protect -o whole -q").expect(0, "", "");
    same(&bench, "llama-fp8", "whole");
}

/// The commands of the containers, with the index that Kubernetes gives to each: from 0 on.
#[test]
fn the_commands_of_the_kubernetes_jobs_work() {
    let bench = folder();
    let [array, finish] = <[String; 2]>::try_from(jobs("Kubernetes")).unwrap();
    let field = |manifest: &str, name: &str| {
        let (_, value) = manifest.split_once(&format!("{name}: ")).unwrap_or_else(|| panic!("{name} in {manifest}"));
        value.lines().next().unwrap().to_owned()
    };
    let command = |manifest: &str| {
        let [sh, c, script] = serde_json::from_str::<[String; 3]>(&field(manifest, "command")).unwrap();
        assert_eq!((sh.as_str(), c.as_str()), ("sh", "-c"));
        script.replace("/models/", "")
    };
    assert_eq!(field(&array, "completionMode"), "Indexed");
    let completions: usize = field(&array, "completions").parse().unwrap();
    assert!(command(&array).contains(&format!("/{completions}")), "one part for each pod: {array}");
    for index in 0..completions {
        let output = bash(&bench, &command(&array), &[("JOB_COMPLETION_INDEX", &index.to_string())]);
        assert!(output.status.success(), "{}", printed(&output));
    }
    let output = bash(&bench, &command(&finish), &[]);
    assert!(output.status.success(), "{}", printed(&output));
    bench.run("cast llama --to e4m3 --protect -o whole -q").expect(0, "", "");
    same(&bench, "llama-fp8", "whole");
}
