//! `man/` and `completions/` are generated from the command line's definition, the README's table of types from the
//! containers, and checked in.
//!
//! `TCAST_REFRESH=1 cargo test --test generated` writes them anew.

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::fs;
use std::path::Path;
use tcast::container::CONTAINERS;
use tcast::dtype::Dtype;

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

#[test]
fn the_table_of_types_is_fresh() {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let extensions = CONTAINERS.iter().map(|container| format!("`.{}`", container.facts().extension));
    let mut table = row(std::iter::once("type".to_owned()).chain(extensions).collect());
    table += &row(vec!["---".to_owned(); CONTAINERS.len() + 1]);
    for dtype in Dtype::all() {
        let stored = CONTAINERS.iter().map(|container| match container.stores(dtype) {
            Some(stored) => format!("`{}`", stored.replace('|', "\\|")),
            None => "-".to_owned(),
        });
        table += &row(std::iter::once(dtype.to_string()).chain(stored).collect());
    }
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let (before, rest) = readme.split_once("<!-- types x containers -->\n\n").expect("the README has the table");
    let (_, after) = rest.split_once("\n<!-- end -->").expect("the table has an end");
    let fresh = format!("{before}<!-- types x containers -->\n\n{table}\n<!-- end -->{after}");
    check("README.md", fresh.as_bytes());
}
