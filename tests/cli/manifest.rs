//! The manifest of unfinished work, edited in every way: each run that continues refuses it, or writes what an honest run
//! writes.

use crate::common::{Bench, same, shard, tree};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const LINE: &str = "cast in --to f16 --exclude *.b -q --no-sync";

/// A checkpoint of two shards, what becomes of it, and the work on it: `begun` with one of two shards, `ready` with both,
/// and `ended` with everything in its place.
fn work() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("x.w", 1.5, 4)]));
    bench.write("in/b.safetensors", &shard(&[("y.w", 2.5, 4), ("y.b", 2.5, 4)]));
    let index = json!({"metadata": {"note": 1}, "weight_map": {"x.w": "a.safetensors", "y.w": "b.safetensors", "y.b": "b.safetensors"}});
    bench.write("in/model.safetensors.index.json", index.to_string().as_bytes());
    bench.write("in/config.json", br#"{"dtype": "float32"}"#);
    bench.write("in/tokenizer.json", b"{}");
    bench.run(&format!("{LINE} -o whole")).expect(0, "", "");
    bench.run(&format!("{LINE} -o begun --part 1/2")).expect(0, "", "");
    bench.run(&format!("{LINE} -o ready --part 1/1")).expect(0, "", "");
    copy(&bench.path("whole"), &bench.path("ended"));
    fs::create_dir(bench.path("ended/.tcast")).unwrap();
    let done = |number: usize| read(&bench, &format!("ready/.tcast/done/{number}.json"));
    let end = json!({
        "manifest": read(&bench, "ready/.tcast/manifest.json"),
        "done": {"a.safetensors": done(0), "b.safetensors": done(1)},
    });
    write(&bench, "ended/.tcast/end.json", &end);
    for folder in ["begun", "ready", "ended"] {
        bench.write(&format!("{folder}/notes.txt"), b"mine");
    }
    bench
}

fn read(bench: &Bench, path: &str) -> Value {
    serde_json::from_slice(&bench.read(path)).unwrap()
}

fn write(bench: &Bench, path: &str, value: &Value) {
    bench.write(path, value.to_string().as_bytes());
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() { copy(&from, &to) } else { _ = fs::copy(from, to).unwrap() }
    }
}

/// The paths of all values in a document, its own excepted.
fn paths(value: &Value, path: &str, all: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => {
            members.iter().map(|(name, inner)| (name.replace('~', "~0").replace('/', "~1"), inner)).collect()
        }
        Value::Array(items) => items.iter().enumerate().map(|(at, inner)| (at.to_string(), inner)).collect(),
        _ => return,
    };
    for (name, inner) in inner {
        let path = format!("{path}/{name}");
        paths(inner, &path, all);
        all.push(path);
    }
}

/// Other values of a field.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => vec![json!("x"), json!(1)],
        Value::Bool(is_set) => vec![json!(!is_set)],
        Value::Number(number) => vec![json!(number.as_u64().unwrap_or(0) + 1), json!(0)],
        Value::String(text) => vec![json!(text.replace("float", "bfloat")), json!(format!("{text}x")), json!("")],
        Value::Array(items) => vec![json!([]), json!([items.clone(), vec![json!("c.safetensors")]].concat())],
        Value::Object(members) => {
            let mut more = members.clone();
            more.insert("notes.txt".to_owned(), json!("theirs"));
            vec![json!({}), Value::Object(more)]
        }
    }
}

/// All documents that differ from one in a field: without it, or with another value.
fn edited(document: &Value, below: &str) -> Vec<(String, Value)> {
    let (mut all, mut documents) = (Vec::new(), Vec::new());
    paths(document.pointer(below).unwrap(), below, &mut all);
    for path in all {
        for value in others(document.pointer(&path).unwrap()) {
            let mut changed = document.clone();
            *changed.pointer_mut(&path).unwrap() = value;
            if changed != *document {
                documents.push((format!("{path}: {}", changed.pointer(&path).unwrap()), changed));
            }
        }
        let (parent, name) = path.rsplit_once('/').unwrap();
        let mut changed = document.clone();
        match changed.pointer_mut(parent).unwrap() {
            Value::Object(members) => _ = members.remove(&name.replace("~1", "/").replace("~0", "~")),
            Value::Array(items) => _ = items.remove(name.parse().unwrap()),
            _ => unreachable!(),
        }
        documents.push((format!("{path}: absent"), changed));
    }
    documents
}

/// Runs commands in a folder whose manifest is edited, until one refuses. Returns whether all succeed; then the folder
/// holds what an honest run writes.
fn is_honest_or_refused(bench: &Bench, lines: &[String], what: &str) -> bool {
    let visible = || {
        let mut there = tree(&bench.path("out"));
        there.retain(|name, _| !name.starts_with(".tcast"));
        there
    };
    let before = visible();
    for line in lines {
        let outcome = bench.run(line);
        if outcome.code != Some(0) {
            assert!(
                [Some(1), Some(4)].contains(&outcome.code) && outcome.stderr.starts_with("tcast: error: "),
                "{what}: {outcome:?}"
            );
            assert!(visible() == before, "{what}: {:?}", visible().keys());
            return false;
        }
    }
    let mut there = tree(&bench.path("out"));
    assert_eq!(there.remove("notes.txt").as_deref(), Some(&b"mine"[..]), "{what}");
    assert!(there == tree(&bench.path("whole")), "{what}: {:?}", there.keys());
    true
}

#[test]
fn a_manifest_with_any_field_edited_is_refused_or_changes_no_byte() {
    let bench = work();
    let [resume, part] = ["--resume", "--part 2/2"].map(|flag| format!("{LINE} -o out {flag}"));
    let finish = "cast --finish out -q --no-sync".to_owned();
    let [resume, part, finish] = [vec![resume], vec![part, finish.clone()], vec![finish]];
    let (mut refused, mut done) = (0, 0);
    for (state, file, below, ways) in [
        ("begun", ".tcast/manifest.json", "", vec![&resume, &part]),
        ("ready", ".tcast/manifest.json", "", vec![&finish]),
        ("ended", ".tcast/end.json", "/manifest", vec![&resume, &finish]),
    ] {
        let honest = read(&bench, &format!("{state}/{file}"));
        for &lines in &ways {
            copy(&bench.path(state), &bench.path("out"));
            assert!(is_honest_or_refused(&bench, lines, "nothing"), "{state}: {lines:?}");
        }
        // A field is edited in several ways, so it meets each command.
        for ((what, document), lines) in edited(&honest, below).into_iter().zip(ways.into_iter().cycle()) {
            copy(&bench.path(state), &bench.path("out"));
            write(&bench, &format!("out/{file}"), &document);
            let what = format!("{state}, {what}, {}", lines[0]);
            *(if is_honest_or_refused(&bench, lines, &what) { &mut done } else { &mut refused }) += 1;
        }
    }
    assert!(refused > 300 && done > 10, "{refused}, {done}");
}

#[test]
fn a_manifest_cannot_name_what_is_removed_for_the_new_checkpoint() {
    let bench = work();
    bench.run("cast whole --to bf16 -o old -q --no-sync").expect(0, "", "");
    fs::remove_file(bench.path("old/tokenizer.json")).unwrap();
    bench.write("old/notes.txt", b"mine");
    let mut replaced: Vec<String> = tree(&bench.path("old")).into_keys().collect();
    replaced.retain(|name| name != "notes.txt");
    // A run with --force that was killed.
    let begin = |replaced: &[String]| {
        copy(&bench.path("old"), &bench.path("out"));
        copy(&bench.path("begun/.tcast"), &bench.path("out/.tcast"));
        let mut manifest = read(&bench, "out/.tcast/manifest.json");
        manifest["replaced"] = json!(replaced);
        write(&bench, "out/.tcast/manifest.json", &manifest);
    };
    let line = [format!("{LINE} -o out --resume")];
    begin(&replaced);
    assert!(is_honest_or_refused(&bench, &line, "nothing"));
    // What came later is not replaced, whatever its name is.
    for later in ["tokenizer.json", "mine.safetensors", "mine.safetensors.index.json"] {
        begin(&replaced);
        bench.write(&format!("out/{later}"), b"mine");
        bench.run(&line[0]).says(1, "", "conversion");
        assert_eq!(bench.read(&format!("out/{later}")), b"mine");
    }
    for at in 0..replaced.len() {
        let mut fewer = replaced.clone();
        fewer.remove(at);
        begin(&fewer);
        assert!(!is_honest_or_refused(&bench, &line, &replaced[at]));
    }
    // The list alone does not make a shard one of the older checkpoint.
    begin(&[&replaced[..], &["mine.safetensors".to_owned()]].concat());
    bench.write("out/mine.safetensors", &shard(&[("mine", 1.5, 4)]));
    bench.run(&line[0]).says(1, "", "out/mine.safetensors");
    assert!(bench.path("out/mine.safetensors").exists());
    begin(&[&replaced[..], &["mine.safetensors".to_owned(), "tokenizer.json".to_owned()]].concat());
    assert!(is_honest_or_refused(&bench, &line, "more"));
}

/// Files that a killed run leaves beside a folder belong to that folder's output, also if they are in another output.
#[test]
fn replacing_a_folder_keeps_what_other_outputs_have_in_it() {
    let bench = work();
    bench.run("cast whole --to bf16 -o old -q --no-sync").expect(0, "", "");
    fs::create_dir_all(bench.path("old/.tcast-0123456789abcdef.tmp/.tcast")).unwrap();
    let others = [".tcast-0123456789abcdef.tmp/.tcast/lock", ".tcast-0123456789abcdef.tmp/notes.txt", ".tcast-abc.tmp"];
    for name in others {
        bench.write(&format!("old/{name}"), b"theirs");
    }
    bench.run(&format!("{LINE} -o old --force")).expect(0, "", "");
    let mut there = tree(&bench.path("old"));
    for name in others {
        assert_eq!(there.remove(name).as_deref(), Some(&b"theirs"[..]), "{name}");
    }
    same(&there, &tree(&bench.path("whole")));
}

#[test]
fn what_others_put_among_the_new_files_does_not_become_a_part_of_the_checkpoint() {
    let bench = work();
    bench.write("ready/.tcast/files/c.safetensors", b"theirs");
    fs::create_dir(bench.path("ready/.tcast/files/inner")).unwrap();
    bench.write("ready/.tcast/files/inner/.tcast-abc.tmp", b"left");
    bench.run("cast --finish ready -q --no-sync").expect(0, "", "");
    fs::remove_file(bench.path("ready/notes.txt")).unwrap();
    same(&tree(&bench.path("ready")), &tree(&bench.path("whole")));
}
