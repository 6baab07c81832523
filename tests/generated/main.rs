//! `man/` is generated from the command line's definition, the tables of types and of layouts in `docs/`
//! from those of the source, and checked in. (`completions/` is not: its scripts ask the program, which carries them.)
//!
//! `TCAST_REFRESH=1 cargo test --test generated` writes them anew.

mod man;

use clap::CommandFactory;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use tcast::container::CONTAINERS;
use tcast::dtype::Dtype;
use tcast::quant::{Group, Layout, layouts};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn check(path: &str, generated: &[u8]) {
    let file = root().join(path);
    if std::env::var_os("TCAST_REFRESH").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, generated).unwrap();
    }
    let found = fs::read(&file).unwrap_or_default();
    assert!(found == generated, "{path} is stale: refresh it with TCAST_REFRESH=1 cargo test --test generated");
}

/// The pages by file, the program's own first.
fn man_pages() -> Vec<(String, String)> {
    let mut command = tcast::cli::Cli::command();
    command.build();
    let subcommands = command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help");
    let pages: Vec<(String, &clap::Command)> = std::iter::once(("tcast".to_owned(), &command))
        .chain(subcommands.map(|subcommand| (format!("tcast-{}", subcommand.get_name()), subcommand)))
        .collect();
    let names: Vec<String> = pages.iter().map(|(name, _)| name.clone()).collect();
    let page = |(name, command): &(String, &clap::Command)| {
        let others: Vec<String> = names.iter().filter(|other| *other != name).cloned().collect();
        (format!("man/{name}.1"), man::page(name, command, &others))
    };
    pages.iter().map(page).collect()
}

#[test]
#[cfg(unix)] // the help of Windows names TMP instead of TMPDIR
fn man_pages_are_fresh() {
    for (path, page) in man_pages() {
        check(&path, page.as_bytes());
    }
}

#[test]
fn man_pages_have_every_flag_and_example_of_the_help() {
    let plain = |page: &str| page.replace("\\c\n", "").replace("\\ ", " ").replace("\\-", "-").replace("\\(aq", "'");
    let pages: Vec<(String, String)> = man_pages().into_iter().map(|(path, page)| (path, plain(&page))).collect();
    let mut seen = 0;
    for subcommand in tcast::cli::command().get_subcommands() {
        let path = format!("man/tcast-{}.1", subcommand.get_name());
        let (_, page) = pages.iter().find(|(found, _)| *found == path).unwrap();
        for long in subcommand.get_arguments().filter_map(clap::Arg::get_long) {
            let (_, entry) =
                page.split_once(&format!("\\fB--{long}\\fR")).unwrap_or_else(|| panic!("{path}: --{long}"));
            let body = entry.lines().nth(1).unwrap();
            assert!(!body.is_empty() && !body.starts_with('.'), "{path}: --{long} says nothing");
            seen += 1;
        }
        for example in subcommand.get_after_long_help().unwrap().to_string().lines() {
            let Some(example) = example.strip_prefix("  tcast ") else { continue };
            assert!(page.contains(&format!("\\fBtcast {example}\\fR")), "{path}: {example}");
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen}");
}

/// A list of schemes, or of the values of a flag, is not a paragraph.
#[test]
fn man_pages_list_schemes_and_values_of_flags() {
    let page = fs::read_to_string(root().join("man/tcast-quantize.1")).unwrap().replace("\\-", "-");
    for scheme in tcast::cli::command().find_subcommand("quantize").unwrap().get_arguments() {
        let is_listed = scheme.get_long() == Some("scheme");
        for value in scheme.get_possible_values().iter().filter(|value| is_listed && value.get_name() != "keep") {
            assert!(page.contains(&format!("\n.TP\n\\fB{}\\fR", value.get_name())), "{}", value.get_name());
        }
    }
    for value in ["library", "exact", "amax", "mse"] {
        assert!(page.contains(&format!("\n.TP\n\\fB{value}\\fR\n")), "{value}");
    }
    let description = page.split(".SH DESCRIPTION\n").nth(1).unwrap().split(".SH").next().unwrap();
    assert!(
        description.starts_with("Quantize the weights of a model: ") && description.contains(".PP"),
        "{description}"
    );
    for (page, entry) in [
        ("tcast", "TP\n\\fBTCAST_ISA=NAME\\fR\nUse this "),
        ("tcast-dequantize", "TP\n\\fBhf-fp8\\fR\ntransformers"),
        ("tcast-bitcast", "TP\n\\fB16\\fR bits\nint16, "),
        ("tcast-diff", "IP \\(bu 2\nfigures: null, "),
    ] {
        let text = fs::read_to_string(root().join(format!("man/{page}.1"))).unwrap().replace("\\-", "-");
        assert!(text.contains(&format!("\n.{entry}")), "{page}: {entry}");
    }
}

/// A switch that is not given is off; "false" is no value that a reader could give.
#[test]
fn man_pages_show_no_default_of_a_switch() {
    let mut seen = 0;
    for subcommand in tcast::cli::command().get_subcommands() {
        let page = fs::read_to_string(root().join(format!("man/tcast-{}.1", subcommand.get_name()))).unwrap();
        assert!(!page.contains("[default: false]"), "{}", subcommand.get_name());
        seen += page.matches("[default: ").count();
    }
    assert!(seen > 5, "{seen} defaults of values");
}

/// A program says nothing about the pages, if this machine has it.
fn check_man_pages_with(program: &str, arguments: &[&str]) {
    if std::env::var_os("TCAST_REFRESH").is_some() {
        return; // they are being written
    }
    let pages = man_pages().into_iter().map(|(path, _)| root().join(path));
    match Command::new(program).args(arguments).args(pages).output() {
        Ok(lint) => {
            let said = [lint.stdout, lint.stderr].concat();
            assert!(lint.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
        }
        // Past the capture of the test's output: nobody is to believe that it was checked.
        Err(error) => std::io::stderr()
            .write_all(format!("\nNOT CHECKED: man/ with {program}: cannot run it: {error}\n").as_bytes())
            .unwrap(),
    }
}

#[test]
fn man_pages_are_clean_for_mandoc() {
    check_man_pages_with("mandoc", &["-Tlint"]);
}

/// `-z` checks without printing the pages.
#[test]
fn man_pages_are_clean_for_groff() {
    check_man_pages_with("groff", &["-man", "-ww", "-Tutf8", "-z"]);
}

#[test]
fn the_table_of_types_is_fresh() {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let extensions = CONTAINERS.iter().map(|container| format!("`.{}`", container.format_info().extension));
    let mut table = row(std::iter::once("type".to_owned()).chain(extensions).collect());
    table += &row(vec!["---".to_owned(); CONTAINERS.len() + 1]);
    for dtype in Dtype::all() {
        let stored = CONTAINERS.iter().map(|container| match container.stores(dtype) {
            Some(stored) => format!("`{}`", stored.replace('|', "\\|")),
            None => "-".to_owned(),
        });
        table += &row(std::iter::once(dtype.to_string()).chain(stored).collect());
    }
    check_table("docs/types.md", "types x containers", &table);
}

#[test]
fn the_table_of_layouts_is_fresh() {
    let groups = |layout: &Layout| {
        let mut names: Vec<_> = layout.groups.iter().map(|group| group_name(*group)).collect();
        names.dedup();
        names.join(", ")
    };
    let row = |layout: &Layout| format!("| `{}` | {} | {} |\n", layout.name, layout.library, groups(layout));
    let rows: String = layouts().map(row).collect();
    let table =
        format!("| layout | library, and what its config says | elements that share a scale |\n|---|---|---|\n{rows}");
    check_table("docs/checkpoints.md", "layouts", &table);
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Tensor => "tensor",
        Group::Channel => "row",
        Group::Block(_) => "block",
        Group::Neighbours(_) => "neighbours in a row",
    }
}

/// Checks the table between the comment `<!-- name -->` and the next `<!-- end -->` of a page.
fn check_table(path: &str, name: &str, table: &str) {
    let page = fs::read_to_string(root().join(path)).unwrap();
    let mark = format!("<!-- {name} -->\n\n");
    let (before, rest) = page.split_once(&mark).expect("the page has the table");
    let (_, after) = rest.split_once("<!-- end -->").expect("the table has an end");
    check(path, format!("{before}{mark}{table}\n<!-- end -->{after}").as_bytes());
}
