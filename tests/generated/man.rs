//! A man page of a command: everything that its help says, in the macros of `man(7)`, such that `mandoc -Tlint` has nothing
//! to say of it. `clap_mangen` makes pages that lint does find fault with, and runs the examples together.

use clap::{Arg, Command};
use std::fmt::Write as _;

/// The day that the pages show; the program's version stands beside it.
const DATE: &str = "2026-11-21";
/// The longest line that lint lets pass.
const WIDTH: usize = 80;

/// The page of a command that was built; `name` is as in `tcast-cast`.
pub(crate) fn page(name: &str, command: &Command, see_also: &[String]) -> String {
    let version = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = format!(".TH {} 1 {DATE} \"{version}\" \"User Commands\"\n", escape(&name.to_uppercase()));
    page += &section("Name", &text(&format!("{name} - {about}")));
    page += &section("Synopsis", &synopsis(command));
    let description = command.get_long_about().map_or(about, ToString::to_string);
    page += &section("Description", &paragraphs(&description));
    let commands: String = command.get_subcommands().filter(|found| found.get_name() != "help").map(entry_of).collect();
    if !commands.is_empty() {
        page += &section("Commands", &commands);
    }
    page += &options(command);
    let help = command.get_after_long_help().or(command.get_after_help());
    page += &rest(&help.map(ToString::to_string).unwrap_or_default());
    let others: Vec<String> = see_also.iter().map(|other| format!("\\fB{}\\fR(1)", escape(other))).collect();
    page += &section("See also", &fill(others.join(", ").split(' ')));
    // Nothing is to be parted from a heading, or twice.
    let page = page.split_inclusive('\n').scan("", |before, line| Some((std::mem::replace(before, line), line)));
    let is_needless = |(before, line): &(&str, &str)| {
        before.starts_with(".SH") && *line == ".PP\n" || *before == ".sp\n" && *line == ".br\n"
    };
    page.filter(|lines| !is_needless(lines)).map(|(_, line)| line).collect()
}

fn section(title: &str, body: &str) -> String {
    format!(".SH {}\n{body}", quoted(&title.to_uppercase()))
}

fn quoted(title: &str) -> String {
    if title.contains(' ') { format!("\"{}\"", escape(title)) } else { escape(title) }
}

/// Each form on a line of its own, the command in bold.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let name = command.get_bin_name().unwrap_or_default();
    let forms = usage.trim_start_matches("Usage:").lines().map(str::trim);
    let forms =
        forms.map(|form| format!("\\fB{}\\fR{}\n", escape(name), escape(form.strip_prefix(name).unwrap_or(form))));
    forms.collect::<Vec<_>>().join(".br\n")
}

fn entry_of(subcommand: &Command) -> String {
    let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
    format!(".TP\n\\fBtcast\\-{}\\fR(1)\n{}", escape(subcommand.get_name()), text(&about))
}

/// The arguments under their headings, which stand in the order of the help.
fn options(command: &Command) -> String {
    let mut groups: Vec<(&str, String)> = vec![("Arguments", String::new()), ("Options", String::new())];
    // What all subcommands take is last, as in the help.
    let mut arguments: Vec<&Arg> = command.get_arguments().collect();
    arguments
        .sort_by_key(|arg| (["help", "version"].iter().position(|last| arg.get_id() == last), arg.is_global_set()));
    for arg in arguments {
        let heading = arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" });
        match groups.iter_mut().find(|(known, _)| *known == heading) {
            Some((_, entries)) => *entries += &option(arg),
            None => groups.push((heading, option(arg))),
        }
    }
    groups.retain(|(_, entries)| !entries.is_empty());
    groups.iter().map(|(heading, entries)| section(heading, entries)).collect()
}

fn option(arg: &Arg) -> String {
    let spelling = arg.to_string(); // --output <PATH>, [INPUT]
    let value = if arg.is_positional() { 0 } else { spelling.find([' ', '[']).unwrap_or(spelling.len()) };
    let (flag, value) = spelling.split_at(value);
    let mut entry = ".TP\n".to_owned();
    if let Some(short) = arg.get_short() {
        let _ = write!(entry, "\\fB\\-{short}\\fR, ");
    }
    if !flag.is_empty() {
        let _ = write!(entry, "\\fB{}\\fR", escape(flag));
    }
    if !value.is_empty() {
        let _ = write!(entry, "\\fI{}\\fR", escape(value));
    }
    entry.push('\n');
    let mut help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let shows_default = arg.get_action().takes_values() && !arg.is_hide_default_value_set();
    if shows_default && !arg.get_default_values().is_empty() {
        let _ = write!(help, " [default: {}]", arg.get_default_values()[0].display());
    }
    let shows_values = arg.get_action().takes_values() && !arg.is_hide_possible_values_set();
    let values = if shows_values { arg.get_possible_values() } else { Vec::new() };
    let (described, named): (Vec<_>, Vec<_>) =
        values.iter().filter(|value| !value.is_hide_set()).partition(|value| value.get_help().is_some());
    if !named.is_empty() {
        let words: Vec<&str> = named.iter().map(|value| value.get_name()).collect();
        let _ = write!(help, " [possible values: {}]", words.join(", "));
    }
    for (line, place) in help.lines().zip(0..) {
        match line.strip_prefix("- ") {
            Some(choice) => entry.extend([".br\n", &text(choice)]),
            None if place > 0 => entry.extend([".sp\n", &text(line)]),
            None => entry += &text(line),
        }
    }
    if !described.is_empty() {
        entry += ".RS\n";
        for value in described {
            let what = value.get_help().map(ToString::to_string).unwrap_or_default();
            let _ = write!(entry, ".TP\n\\fB{}\\fR\n{}", escape(value.get_name()), text(&what));
        }
        entry += ".RE\n";
    }
    entry
}

/// What stands below the options in the help: `Title:`, then lines that are indented.
fn rest(help: &str) -> String {
    let mut page = String::new();
    for part in help.split("\n\n") {
        let (title, body) = part.split_once(":\n").unwrap_or_else(|| panic!("no title: {part}"));
        page += &match title {
            "Examples" | "Reports" => section(title, &examples(body)),
            "Exit codes" => section("Exit status", &paragraphs(body)),
            "Environment" | "Layouts" => section(title, &list(body, "  ")),
            "Types of equal width" => section(title, &list(body, ": ")),
            _ if title.starts_with("Schemes") => section(title, &list(body, ": ")),
            "JSON" => section(title, &outline(body)),
            _ => section(title, &paragraphs(body)),
        };
    }
    page
}

/// Entries, each with a name and what it is; then more about it, by six blanks or without a name.
fn list(body: &str, separator: &str) -> String {
    let mut page = String::new();
    for line in body.lines() {
        let words = line.trim_start();
        match words.split_once(separator).filter(|_| line.len() - words.len() < 6) {
            Some((name, what)) => {
                let (name, aliases) = name.split_at(name.find(' ').unwrap_or(name.len()));
                let _ = write!(page, ".TP\n\\fB{}\\fR{}\n{}", escape(name), escape(aliases), text(what));
            }
            // The layouts of a scheme.
            None if separator == ": " && line.starts_with("      ") => page.extend([".br\n", &text(words)]),
            None => page += &text(words),
        }
    }
    page
}

/// Paragraphs by two blanks, the items of a list by four, more about an item by six.
fn outline(body: &str) -> String {
    let mut parts: Vec<(usize, String)> = Vec::new();
    for line in body.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        match parts.last_mut() {
            Some((last, part)) if indent > 4 || indent < 4 && *last < 4 => part.extend([" ", words]),
            _ => parts.push((indent, words.to_owned())),
        }
    }
    let part = |(indent, words): &(usize, String)| {
        let start = if *indent < 4 { ".PP\n" } else { ".IP \\(bu 2\n" };
        start.to_owned() + &text(words)
    };
    parts.iter().map(part).collect()
}

/// Commands by two blanks, what they do by six.
fn examples(body: &str) -> String {
    let mut page = String::new();
    let mut lines = body.lines().peekable();
    while let Some(command) = lines.next() {
        let words = command.split_whitespace().map(escape).collect::<Vec<_>>().join("\\ ");
        // A command that is longer than the line cannot be adjusted, and groff warns of it.
        let _ = write!(page, ".PP\n.nf\n\\fB{}\\fR\n.fi\n", break_long(&words));
        let mut what = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("      ")) {
            let _ = write!(what, "{} ", line.trim());
        }
        if !what.is_empty() {
            let _ = write!(page, ".RS 4\n{}.RE\n", text(&what));
        }
    }
    page
}

/// A command may be longer than a line of the page's source: `\c` goes on without a blank.
fn break_long(words: &str) -> String {
    let mut lines = vec![String::new()];
    for word in words.split_inclusive("\\ ") {
        if lines[lines.len() - 1].len() + word.len() > WIDTH - 10 {
            lines.push(String::new());
        }
        lines.last_mut().expect("there is one").push_str(word);
    }
    lines.join("\\c\n")
}

fn paragraphs(body: &str) -> String {
    let joined = body.split("\n\n").map(|part| part.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    joined.map(|part| text(&part)).collect::<Vec<_>>().join(".PP\n")
}

fn text(plain: &str) -> String {
    fill(plain.split_whitespace().map(escape).collect::<Vec<_>>().iter().map(String::as_str))
}

/// Words in lines that are short enough, none of which can be taken for a macro.
fn fill<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH - 2 => {
                line.push(' ');
                line.push_str(word);
            }
            _ if word.starts_with('.') => lines.push(format!("\\&{word}")),
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect()
}

fn escape(plain: &str) -> String {
    let mut escaped = String::new();
    for letter in plain.chars() {
        match letter {
            '\\' => escaped += "\\e",
            '-' => escaped += "\\-",
            '\'' => escaped += "\\(aq",
            '`' => escaped += "\\(ga",
            '^' => escaped += "\\(ha",
            '~' => escaped += "\\(ti",
            _ => escaped.push(letter),
        }
    }
    escaped
}
