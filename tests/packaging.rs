//! What the Python wheel carries beside the program: links into `man/` and `completions/`.
//!
//! A git checkout on Windows may have text in the place of links.
#![cfg(unix)]

use std::fs;
use std::path::Path;

#[test]
fn the_wheel_has_every_man_page_and_the_completions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pairs: Vec<(String, String)> = [
        ("tcast.bash", "bash-completion/completions/tcast"),
        ("tcast.fish", "fish/vendor_completions.d/tcast.fish"),
        ("tcast.zsh", "zsh/site-functions/_tcast"),
    ]
    .map(|(script, installed)| (format!("completions/{script}"), installed.to_owned()))
    .into();
    for page in names(&root.join("man")) {
        pairs.push((format!("man/{page}"), format!("man/man1/{page}")));
    }
    assert!(pairs.len() > 5, "{pairs:?}");
    let share = root.join("packaging/wheel/data/share");
    for (original, installed) in &pairs {
        let link = fs::canonicalize(share.join(installed));
        let link = link.unwrap_or_else(|error| panic!("{installed}: {error}: link it to {original}"));
        assert_eq!(link, fs::canonicalize(root.join(original)).unwrap(), "{installed}");
    }
    assert_eq!(names(&share.join("man/man1")), names(&root.join("man")), "a page is gone: remove its link");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort_unstable();
    names
}
