//! The modules of the crates: which may import which, where `unsafe` code may be, and how long files are.

#[path = "common/imports.rs"]
mod imports;

use imports::{circles, imports};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::repeat;
use std::path::{Path, PathBuf};

/// From the top down: a module may import those in the lines after its own.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["commands"],
    &["cli"],
    &["tensors"],
    &["convert"],
    &["report"],
    &["job"],
    &["engine"],
    &["measure"],
    &["plan", "staging"],
    &["lora"],
    &["read"],
    &["options"],
    &["progress"],
    &["select", "conversion", "quant"],
    &["container", "operator"],
    &["blocks"],
    &["kernel"],
    &["dtype", "io", "threads"],
    &["error"],
    &["text", "random"],
];

/// The same of `tcast-slice`, below the root of its crate. `tcast` re-exports the last three.
const SLICE_LAYERS: &[&[&str]] = &[&["codes", "error", "serde", "stored"], &["kernel"], &["dtype"], &["random"]];

#[test]
fn modules_import_downwards_only() {
    for (source, layers) in sources().iter().zip([LAYERS, SLICE_LAYERS]) {
        let mut seen = 0;
        for file in files(source) {
            let name = name(&file, source);
            let module = name.split(['/', '.']).next().unwrap();
            if module == "lib" {
                continue;
            }
            let layer = layers.iter().position(|modules| modules.contains(&module));
            let layer = layer.unwrap_or_else(|| panic!("{name}: add the module to its list of layers"));
            let text = fs::read_to_string(&file).unwrap();
            for used in text.match_indices("crate::").map(|(at, found)| &text[at + found.len()..]) {
                let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                let below = layers[layer + 1..].iter().any(|modules| modules.contains(&used));
                assert!(below || used == module, "{name}: {module} may not import {used}");
                seen += 1;
            }
        }
        assert!(seen > 10);
    }
}

/// Files that import each other in a circle. This list only shrinks: take a file out when its circle is cut.
const CIRCLES: &[&str] = &[
    "blocks/decode/float.rs",
    "blocks/decode/iq.rs",
    "blocks/decode/k_quants.rs",
    "blocks/decode/legacy.rs",
    "blocks/decode/mod.rs",
    "blocks/decode/ternary.rs",
    "blocks/encode/mod.rs",
    "blocks/encode/recover.rs",
    "blocks/encode/weights.rs",
    "blocks/explain.rs",
    "blocks/mod.rs",
    "container/checkpoint/disagreements.rs",
    "container/checkpoint/index.rs",
    "container/checkpoint/missing.rs",
    "container/checkpoint/mod.rs",
    "container/checkpoint/names.rs",
    "container/checkpoint/naming.rs",
    "container/checkpoint/side_files.rs",
    "container/gather.rs",
    "container/gguf/header.rs",
    "container/gguf/mod.rs",
    "container/gguf/split.rs",
    "container/gguf/write.rs",
    "container/input.rs",
    "container/layout.rs",
    "container/mod.rs",
    "container/names.rs",
    "container/npy/descr.rs",
    "container/npy/header.rs",
    "container/npy/mod.rs",
    "container/npy/reread.rs",
    "container/npz/mod.rs",
    "container/onnx/mod.rs",
    "container/onnx/model/list.rs",
    "container/onnx/model/mod.rs",
    "container/onnx/protobuf.rs",
    "container/onnx/typed.rs",
    "container/pytorch/mod.rs",
    "container/reader.rs",
    "container/safetensors/canonical.rs",
    "container/safetensors/mod.rs",
    "container/safetensors/notes.rs",
    "container/safetensors/reread.rs",
    "container/safetensors/write.rs",
    "container/tensor.rs",
    "container/text.rs",
    "quant/transcode/fit.rs",
    "quant/transcode/kept.rs",
    "quant/transcode/mod.rs",
    "quant/transcode/rescale.rs",
    "quant/transcode/source.rs",
];

#[test]
fn files_import_each_other_in_one_direction_only() {
    let imports = sources().map(|source| imports(&source));
    assert!(imports.iter().flat_map(BTreeMap::values).map(BTreeSet::len).sum::<usize>() > 2500);
    let circles: Vec<_> = imports.iter().flat_map(circles).collect();
    let known: BTreeSet<_> = CIRCLES.iter().map(|file| (*file).to_owned()).collect();
    let unknown: Vec<_> = circles.iter().filter(|circle| !circle.is_subset(&known)).collect();
    assert!(unknown.is_empty(), "move what the files share to a file below them: {unknown:#?}");
    let circles = circles.into_iter().flatten().collect();
    let cut: Vec<_> = known.difference(&circles).collect();
    assert!(cut.is_empty() && CIRCLES.len() <= 51, "take these files out of CIRCLES: {cut:?}");
}

#[test]
fn imports_are_followed_to_the_file_that_defines_the_item() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("lib.rs", "mod a; mod b; mod low; mod made; mod open; pub use a::Top;"),
        ("a.rs", "mod inner; pub use inner::Inner; pub struct Top; fn f() { crate::b::run::<u8>(); }"),
        ("a/inner.rs", "pub struct Inner; fn f() { fn g() { use super::super::low::{self, deep::Deep as D}; } }"),
        (
            "b/mod.rs",
            "mod child; pub use child::*; pub fn run<T>() {} // crate::open::Open\n const S: &str = \"low::X\";",
        ),
        (
            "b/child.rs",
            "use crate::{Top, a::{Inner}}; fn f(c: char) -> bool { c == '\"' || c == '{' || made::new() } use crate::made;",
        ),
        ("low/mod.rs", "pub(crate) mod deep; pub use deep::Deep; fn f(d: Deep) {}"),
        ("low/deep.rs", "pub struct Deep<'a>(&'a str); #[cfg(test)] mod tests { use crate::a::Top; }"),
        ("made.rs", "macro_rules! m { () => { pub fn new() -> bool { true } } } m!();"),
        ("open.rs", "mod part { pub(in crate::open) use super::super::b::run; } pub struct Open;"),
    ];
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let expected = [
        ("a.rs", vec!["b/mod.rs"]),
        ("a/inner.rs", vec!["low/deep.rs"]),
        ("b/child.rs", vec!["a.rs", "a/inner.rs", "made.rs"]),
        ("b/mod.rs", vec![]),
        ("lib.rs", vec![]),
        ("low/deep.rs", vec![]),
        ("low/mod.rs", vec!["low/deep.rs"]),
        ("made.rs", vec![]),
        ("open.rs", vec!["b/mod.rs"]),
    ];
    let found = imports(folder.path());
    let found: Vec<_> =
        found.iter().map(|(file, used)| (file.as_str(), used.iter().map(String::as_str).collect())).collect();
    assert_eq!(found, expected);
}

#[test]
fn circles_are_groups_of_files_that_lead_to_each_other() {
    let files = [("a", "b"), ("b", "c d"), ("c", "a"), ("d", "e"), ("e", "d"), ("f", "a e g"), ("g", "")];
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    let found = circles(&files.map(|(file, used)| (file.to_owned(), words(used))).into());
    assert_eq!(found, [words("d e"), words("a b c")]);
}

/// Two types of one name make a reader look twice, and a search find the wrong one. Associated types do not count.
#[test]
fn no_type_name_is_defined_twice() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in sources().iter().flat_map(|source| files(source)) {
        let text = fs::read_to_string(&file).unwrap();
        for (index, line) in text.lines().enumerate() {
            // A visibility such as `pub(in crate::plan)` comes before the word.
            let line = line
                .trim_start()
                .strip_prefix("pub")
                .map_or(line, |line| line.split_once(") ").map_or(line, |(_, line)| line));
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let mut words = words.skip_while(|word| matches!(*word, "crate" | "super" | "self" | "unsafe"));
            let is_type = match words.next() {
                Some("struct" | "enum" | "trait" | "union") => true,
                Some("type") => !line.starts_with(' '),
                _ => false,
            };
            if let Some(name) = words.next().filter(|_| is_type && !line.trim_start().starts_with("//")) {
                places.entry(name.to_owned()).or_default().push(format!("{}:{}", file.display(), index + 1));
            }
        }
    }
    assert!(places.len() > 100);
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

fn stem(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn the_list_in_contributing_is_the_same() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/CONTRIBUTING.md")).unwrap();
    let (_, list) = page.split_once("```text\nmain ").expect("the list of modules begins with main");
    let (list, _) = list.split_once("```").unwrap();
    let lines = format!("main {list}");
    // Two blanks end the modules of a layer.
    let layers: Vec<Vec<&str>> =
        lines.lines().map(|line| line.split("  ").next().unwrap().trim().split(", ").collect()).collect();
    assert_eq!(layers, LAYERS, "the lists of modules in CONTRIBUTING.md and tests/layers.rs differ");
}

#[test]
fn unsafe_code_stands_in_few_files_only() {
    let has_unsafe = |file: &PathBuf| fs::read_to_string(file).unwrap().contains("allow(unsafe_code");
    let names_in = |source: &PathBuf| -> Vec<_> {
        files(source).into_iter().filter(has_unsafe).map(|file| name(&file, source)).collect()
    };
    let names: BTreeSet<_> = sources().iter().flat_map(names_in).collect();
    let known = ["codes.rs", "io/map.rs", "kernel/isa.rs", "kernel/look_up/mod.rs", "kernel/narrow/avx2.rs"];
    assert!(names.iter().eq(&known), "{names:?}");
}

/// How long a file may be without a sentence among its first lines that begins `//! Longer than 800 lines because`.
const LONG: usize = 800;

#[test]
fn long_files_say_why() {
    let is_too_long = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let has_reason = text.lines().take(10).any(|line| line.starts_with("//! Longer than 800 lines because "));
        text.lines().count() > LONG && !has_reason
    };
    let found: Vec<_> = sources().iter().flat_map(|source| files(source)).filter(is_too_long).collect();
    assert!(found.is_empty(), "longer than {LONG} lines: split the file, or say why on its first lines: {found:?}");
}

/// The folders with the files of `tcast` and of `tcast-slice`.
fn sources() -> [PathBuf; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    [root.join("src"), root.join("crates/tcast-slice/src")]
}

/// The path of a file in a folder, as the lists above have it.
fn name(file: &Path, folder: &Path) -> String {
    file.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn modules_below_the_program_know_neither_flags_nor_commands() {
    const PROGRAM: [&str; 3] = ["main", "commands", "cli"];
    let [source, slices] = sources();
    // A subcommand is a file of `cli`.
    let subcommands: Vec<String> = files(&source.join("cli")).iter().map(|file| stem(file)).collect();
    let is_word = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase() || c == '{');
    let is_flag = |word: &str| {
        let word = word.trim_start_matches(['\'', '`', '(']);
        word == "-o" || word.strip_prefix("--").is_some_and(is_word)
    };
    let is_command = |after: &str| {
        let after = subcommands.iter().find_map(|name| after.strip_prefix(name.as_str()));
        after.is_some_and(|after| !is_word(after))
    };
    let mut seen = 0;
    for (file, source) in [&source, &slices].iter().flat_map(|source| files(source).into_iter().zip(repeat(source))) {
        let name = name(&file, source);
        // The page's variables of CSS begin like flags.
        if PROGRAM.contains(&name.split(['/', '.']).next().unwrap()) || name.starts_with("report/html/") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap().lines();
        let is_code = |line: &&str| !["//", "#["].iter().any(|start| line.trim_start().starts_with(start));
        let code: Vec<_> = code.filter(is_code).collect();
        for literal in literals(&code.join("\n")) {
            let has_flag = literal.split_whitespace().any(is_flag);
            let has_command = literal.split("tcast ").skip(1).any(is_command);
            assert!(!has_flag && !has_command, "{name}: this belongs in commands/remedies.rs: {literal:?}");
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen}");
}

/// The string literals of some code, as they are written there.
fn literals(code: &str) -> Vec<&str> {
    let mut literals = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '\'']) {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        let hashes = before.len() - before.trim_end_matches('#').len();
        let end = if rest[at..].starts_with('\'') {
            // A character; a lifetime has no end.
            let mut chars = after.char_indices().skip(1);
            let end = if after.starts_with('\\') { after[2..].find('\'').map(|end| end + 2) } else { None };
            rest =
                &after[end.or(chars.next().filter(|(_, c)| *c == '\'').map(|(at, _)| at)).map_or(0, |end| end + 1)..];
            continue;
        } else if before[..before.len() - hashes].ends_with('r') {
            after.find(&format!("\"{}", "#".repeat(hashes)))
        } else {
            let mut is_escaped = false;
            after.find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            })
        };
        let end = end.expect("a literal has an end");
        literals.push(&after[..end]);
        rest = &after[end + 1..];
    }
    literals
}
