//! The house: who may import whom. Every room uses only rooms below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the top down; a room may use those in the lines after its own.
const ROOMS: &[&[&str]] = &[
    &["main"],
    &["commands"],
    &["cli"],
    &["report", "convert"],
    &["engine"],
    &["measure"],
    &["plan", "staging"],
    &["read"],
    &["progress", "select", "scaled", "conversion", "quant", "slice"],
    &["container", "operator"],
    &["kernel"],
    &["dtype", "io", "threads"],
    &["error"],
];

#[test]
fn rooms_import_downwards_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for file in files(&source) {
        let relative = file.strip_prefix(&source).unwrap();
        let room = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let floor = ROOMS.iter().position(|rooms| rooms.contains(&room));
        let floor = floor.unwrap_or_else(|| panic!("src/{}: give the room a line in ROOMS", relative.display()));
        let text = fs::read_to_string(&file).unwrap();
        for used in text.match_indices("crate::").map(|(at, found)| &text[at + found.len()..]) {
            let used = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            let below = ROOMS[floor + 1..].iter().any(|rooms| rooms.contains(&used));
            assert!(below || used == room, "src/{}: {room} may not use {used}", relative.display());
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
fn the_picture_of_the_house_is_true() {
    let picture = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/CONTRIBUTING.md")).unwrap();
    let (_, picture) = picture.split_once("```text\nmain ").expect("the list of the rooms begins with main");
    let (picture, _) = picture.split_once("```").unwrap();
    let lines = format!("main {picture}");
    // Two blanks end the rooms of a floor.
    let floors: Vec<Vec<&str>> =
        lines.lines().map(|line| line.split("  ").next().unwrap().trim().split(", ").collect()).collect();
    assert_eq!(floors, ROOMS, "CONTRIBUTING.md lists the rooms as tests/layers.rs has them");
}

#[test]
fn unsafe_code_stands_in_two_files_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let with_unsafe: Vec<PathBuf> = files(&source)
        .into_iter()
        .filter(|file| fs::read_to_string(file).unwrap().contains("allow(unsafe_code"))
        .collect();
    let mut names: Vec<_> =
        with_unsafe.iter().map(|file| file.strip_prefix(&source).unwrap().to_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["io/map.rs", "kernel/isa.rs"]);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
