//! The house: who may import whom. Every room uses only rooms below it.

use std::fs;
use std::path::{Path, PathBuf};

/// From the top down; a room may use those in the lines after its own.
const ROOMS: &[&[&str]] = &[
    &["main"],
    &["commands"],
    &["cli"],
    &["report"],
    &["compare", "engine", "hash", "stats"],
    &["progress", "plan", "staging"],
    &["select", "scaled", "conversion", "bits", "figures"],
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
