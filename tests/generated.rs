//! `man/` and `completions/` are generated from the command line's definition and checked in.
//!
//! `TCAST_REFRESH=1 cargo test --test generated` writes them anew.

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::fs;
use std::path::Path;

fn check(path: &str, generated: &[u8]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("TCAST_REFRESH").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, generated).unwrap();
    }
    let found = fs::read(&file).unwrap_or_default();
    assert!(found == generated, "{path} is stale: refresh it with TCAST_REFRESH=1 cargo test --test generated");
}

#[test]
fn completions_are_fresh() {
    for shell in Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut tcast::cli::Cli::command(), "tcast", &mut script);
        check(&format!("completions/tcast.{shell}"), &script);
    }
}

#[test]
fn man_pages_are_fresh() {
    let mut command = tcast::cli::Cli::command();
    command.build();
    let mut pages = vec![("tcast".to_owned(), command.clone())];
    let subcommands = command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help");
    pages.extend(subcommands.map(|subcommand| (format!("tcast-{}", subcommand.get_name()), subcommand.clone())));
    for (name, command) in pages {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).unwrap();
        check(&format!("man/{name}.1"), &page);
    }
}
