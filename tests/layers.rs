//! The modules of `src`: which may import which, where `unsafe` code may be, and how long files are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top down: a module may import those in the lines after its own.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["commands"],
    &["cli"],
    &["convert", "list"],
    &["report"],
    &["job"],
    &["engine"],
    &["measure"],
    &["plan", "staging"],
    &["read"],
    &["options"],
    &["progress", "select", "conversion", "quant", "slice"],
    &["container", "operator"],
    &["blocks"],
    &["kernel"],
    &["dtype", "io", "threads"],
    &["error"],
    &["text", "random"],
];

#[test]
fn modules_import_downwards_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for file in files(&source) {
        let relative = file.strip_prefix(&source).unwrap();
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let layer = LAYERS.iter().position(|modules| modules.contains(&module));
        let layer = layer.unwrap_or_else(|| panic!("src/{}: add the module to LAYERS", relative.display()));
        let text = fs::read_to_string(&file).unwrap();
        for used in text.match_indices("crate::").map(|(at, found)| &text[at + found.len()..]) {
            let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            let below = LAYERS[layer + 1..].iter().any(|modules| modules.contains(&used));
            assert!(below || used == module, "src/{}: {module} may not import {used}", relative.display());
            seen += 1;
        }
    }
    assert!(seen > 20);
}

#[test]
fn files_of_a_folder_import_each_other_in_one_direction_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files(&source);
    let mut seen = 0;
    for folder in files.iter().filter_map(|file| file.parent()).collect::<BTreeSet<_>>() {
        // Where the folder's own file has what all others build on, importing from it is no cycle that can be cut.
        let strict = folder.ends_with("kernel");
        let imports: BTreeMap<String, BTreeSet<String>> = files
            .iter()
            .filter(|file| file.parent() == Some(folder) && folder != source)
            .map(|file| (stem(file), imports(file)))
            .collect();
        seen += imports.values().flatten().count();
        let mut above = Vec::new();
        for file in imports.keys().filter(|file| strict || *file != "mod") {
            find_cycle(file, &imports, &mut above, strict)
                .map_err(|cycle| format!("{}: {}", folder.display(), cycle.join(" -> ")))
                .unwrap();
        }
    }
    assert!(seen > 50);
}

/// Two types of one name make a reader look twice, and a search find the wrong one. Associated types do not count.
#[test]
fn no_type_name_is_defined_twice() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        for (index, line) in text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let mut words =
                words.skip_while(|word| matches!(*word, "pub" | "crate" | "super" | "in" | "self" | "unsafe"));
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

/// The files of its own folder that a file imports from; `mod` where a name is the folder's own.
fn imports(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = code.collect::<Vec<_>>().join("\n");
    let folder = file.parent().unwrap();
    let to_file = |name: &str| {
        let is_file = folder.join(format!("{name}.rs")).exists() || folder.join(name).join("mod.rs").exists();
        if is_file { name.to_owned() } else { "mod".to_owned() }
    };
    let word = |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    if stem(file) == "mod" {
        let lines = text.lines().map(|line| line.trim_start_matches("pub(crate) ").trim_start_matches("pub "));
        let uses = lines.filter_map(|line| line.strip_prefix("use "));
        return uses.flat_map(names_of_group).map(|name| to_file(&word(&name))).filter(|name| name != "mod").collect();
    }
    let supers = text.match_indices("super::").map(|(at, _)| at);
    // `super::super` and `in super` are other folders.
    let own = supers.filter(|at| !text[..*at].ends_with("super::") && !text[at + 7..].starts_with("super"));
    own.flat_map(|at| names_of_group(&text[at + 7..])).map(|name| to_file(&word(&name))).collect()
}

/// The paths in `{a::B, c}`, or the one path that a text starts with.
fn names_of_group(text: &str) -> Vec<String> {
    let Some(group) = text.strip_prefix('{') else { return vec![text.to_owned()] };
    let (mut depth, mut names) = (0, vec![String::new()]);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            c if c.is_whitespace() => {}
            c => names.last_mut().unwrap().push(c),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Follows imports from a file; an error is the way back to it.
fn find_cycle(
    file: &str,
    imports: &BTreeMap<String, BTreeSet<String>>,
    above: &mut Vec<String>,
    strict: bool,
) -> Result<(), Vec<String>> {
    let is_back = above.iter().any(|other| other == file);
    above.push(file.to_owned());
    if is_back {
        return Err(above.clone());
    }
    for next in imports.get(file).into_iter().flatten().filter(|next| strict || *next != "mod") {
        find_cycle(next, imports, above, strict)?;
    }
    above.pop();
    Ok(())
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let has_unsafe = |file: &PathBuf| fs::read_to_string(file).unwrap().contains("allow(unsafe_code");
    let names: BTreeSet<_> = files(&source).into_iter().filter(has_unsafe).map(|file| name(&file, &source)).collect();
    let known = ["io/map.rs", "kernel/isa.rs", "kernel/look_up/mod.rs", "kernel/narrow/avx2.rs"];
    assert!(names.iter().eq(&known), "{names:?}");
}

/// How long a file may be without a sentence among its first lines that begins `//! Longer than 800 lines because`.
const LONG: usize = 800;

#[test]
fn long_files_say_why() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let is_too_long = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        let has_reason = text.lines().take(10).any(|line| line.starts_with("//! Longer than 800 lines because "));
        text.lines().count() > LONG && !has_reason
    };
    let found: Vec<_> = files(&source).into_iter().filter(is_too_long).collect();
    assert!(found.is_empty(), "longer than {LONG} lines: split the file, or say why on its first lines: {found:?}");
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
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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
    for file in files(&source) {
        let name = name(&file, &source);
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
            assert!(!has_flag && !has_command, "src/{name}: this belongs in commands/remedies.rs: {literal:?}");
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
