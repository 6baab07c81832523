//! The files of a crate, and which of them import from which.
//!
//! This is no compiler: it reads the tokens of each file, and follows the paths in `use` declarations and in code from
//! module to module, and through re-exports to the file that defines the item. An item from a macro belongs to the file
//! of its module. Code under `#[cfg(test)]` is left out.
//!
//! Declaring a module is no import, and re-exporting the items of a file's own submodules is none either, unless the
//! file itself uses them: others import from the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files that each file imports from; names are relative to the folder of `lib.rs`.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports of all files of the crate in a folder that its `lib.rs` leads to.
pub(super) fn imports(source: &Path) -> Imports {
    let mut modules = Modules::default();
    modules.read(source, "lib.rs", &[]);
    let mut imports = Imports::new();
    for (at, module) in &modules.0 {
        let used = imports.entry(module.file.clone()).or_default();
        for import in &module.imports {
            let target = modules.resolve(at, &import.path, &mut Vec::new());
            let Some(target) = target.filter(|target| !import.is_exported || !target.starts_with(at)) else { continue };
            let file = &modules.0[&target].file;
            if *file != module.file {
                used.insert(file.clone());
            }
        }
    }
    imports
}

/// The groups of files that import each other, directly or through others, by Tarjan's algorithm.
pub(super) fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let mut search = Search { imports, reached: BTreeMap::new(), open: Vec::new(), circles: Vec::new() };
    for file in imports.keys() {
        search.visit(file);
    }
    search.circles
}

struct Search<'a> {
    imports: &'a Imports,
    /// The number of each file in the order of visits.
    reached: BTreeMap<&'a str, usize>,
    /// Visited files whose group is not complete.
    open: Vec<&'a str>,
    circles: Vec<BTreeSet<String>>,
}

impl<'a> Search<'a> {
    /// Visits a file and all that it imports. Returns the number of the earliest open file that it leads to.
    fn visit(&mut self, file: &'a str) -> usize {
        if let Some(number) = self.reached.get(file) {
            return if self.open.contains(&file) { *number } else { usize::MAX };
        }
        let number = self.reached.len();
        self.reached.insert(file, number);
        let start = self.open.len();
        self.open.push(file);
        let imports = self.imports;
        let earliest = imports[file].iter().map(|next| self.visit(next)).min().unwrap_or(number).min(number);
        if earliest == number {
            let group: BTreeSet<_> = self.open.drain(start..).map(str::to_owned).collect();
            if group.len() > 1 {
                self.circles.push(group);
            }
        }
        earliest
    }
}

/// The path of a module from the root of the crate.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

#[derive(Default)]
struct Module {
    file: String,
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    /// The paths of names from elsewhere.
    names: BTreeMap<String, BTreeSet<Vec<String>>>,
    /// The paths of `use path::*`.
    globs: Vec<Vec<String>>,
    imports: Vec<Import>,
}

/// A path in the code of a module, or in its `use` declarations.
struct Import {
    path: Vec<String>,
    /// True for a re-export of a name that the module does not use.
    is_exported: bool,
}

impl Modules {
    /// Reads a file and the files of its submodules.
    fn read(&mut self, source: &Path, file: &str, path: &[String]) {
        let text = fs::read_to_string(source.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let tokens = without_tests(&tokens(&text));
        let folder = match file.rsplit_once('/') {
            _ if file == "lib.rs" => String::new(),
            Some((folder, "mod.rs")) => format!("{folder}/"),
            _ => format!("{}/", file.trim_end_matches(".rs")),
        };
        let mut at = path.to_vec();
        self.0.insert(at.clone(), Module { file: file.to_owned(), ..Module::default() });
        let mut exports: Vec<(ModulePath, String, Vec<String>)> = Vec::new();
        let mut used: BTreeSet<(ModulePath, String)> = BTreeSet::new();
        // The enclosing braces: true for the body of a module.
        let mut braces = Vec::new();
        let mut next = 0;
        while let Some(token) = tokens.get(next) {
            let before = next.checked_sub(1).map_or("", |before| &tokens[before]);
            next += 1;
            let [after, after_that] = [next, next + 1].map(|at| tokens.get(at).map_or("", String::as_str));
            let is_item = braces.iter().all(|is_module| *is_module);
            match token.as_str() {
                "mod" if after_that == ";" => {
                    let name = after;
                    let child = format!("{folder}{name}.rs");
                    let is_file = source.join(&child).exists();
                    let child = if is_file { child } else { format!("{folder}{name}/mod.rs") };
                    self.read(source, &child, &[at.as_slice(), &[name.to_owned()]].concat());
                    next += 2;
                }
                "mod" if after_that == "{" => {
                    at.push(after.to_owned());
                    self.0.insert(at.clone(), Module { file: file.to_owned(), ..Module::default() });
                    braces.push(true);
                    next += 2;
                }
                "{" => braces.push(false),
                "}" if braces.pop() == Some(true) => drop(at.pop()),
                "use" if before != "<" && before != "," && before != "+" => {
                    let end = next + tokens[next..].iter().position(|token| token == ";").expect("`use` ends");
                    let is_public = before == "pub" || before == ")";
                    let module = self.0.get_mut(&at).expect("the module is being read");
                    for (name, path) in use_tree(&tokens[next..end]) {
                        if is_public && is_item {
                            exports.push((at.clone(), name.clone(), path.clone()));
                        } else {
                            module.imports.push(Import { path: path.clone(), is_exported: false });
                        }
                        if name == "*" {
                            module.globs.push(path[..path.len() - 1].to_vec());
                        } else if name != "_" {
                            module.names.entry(name).or_default().insert(path);
                        }
                    }
                    next = end;
                }
                "fn" | "struct" | "enum" | "trait" | "union" | "type" | "const" | "static" if is_item => {
                    let module = self.0.get_mut(&at).expect("the module is being read");
                    module.items.insert(after.to_owned());
                }
                "macro_rules" if after == "!" => {
                    let module = self.0.get_mut(&at).expect("the module is being read");
                    module.items.insert(after_that.to_owned());
                }
                name if is_name(name) && before != "." && before != "::" && before != "in" => {
                    let mut path = vec![name.to_owned()];
                    while tokens.get(next).is_some_and(|token| token == "::")
                        && tokens.get(next + 1).is_some_and(|token| is_name(token))
                    {
                        path.push(tokens[next + 1].clone());
                        next += 2;
                    }
                    used.insert((at.clone(), name.to_owned()));
                    if path.len() > 1 {
                        let module = self.0.get_mut(&at).expect("the module is being read");
                        module.imports.push(Import { path, is_exported: false });
                    }
                }
                _ => {}
            }
        }
        for (at, name, path) in exports {
            let is_exported = !used.contains(&(at.clone(), name));
            self.0.get_mut(&at).expect("the module was read").imports.push(Import { path, is_exported });
        }
    }

    /// The module that defines what a path in a module leads to; `None` for other crates, and for modules themselves.
    /// `above` contains the paths that are being resolved.
    fn resolve(
        &self,
        from: &[String],
        path: &[String],
        above: &mut Vec<(ModulePath, Vec<String>)>,
    ) -> Option<ModulePath> {
        let question = (from.to_vec(), path.to_vec());
        if above.contains(&question) {
            return None;
        }
        above.push(question);
        let found = self.follow(from, path, above);
        above.pop();
        found
    }

    fn follow(
        &self,
        from: &[String],
        path: &[String],
        above: &mut Vec<(ModulePath, Vec<String>)>,
    ) -> Option<ModulePath> {
        let mut at = from.to_vec();
        let mut is_inside = false;
        for (number, name) in path.iter().enumerate() {
            let rest = &path[number + 1..];
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => {
                    let module = &self.0[&at];
                    let child = [at.as_slice(), std::slice::from_ref(name)].concat();
                    let is_module = self.0.contains_key(&child);
                    // A module and an item can have the same name.
                    if !is_module || rest.is_empty() {
                        if module.items.contains(name) {
                            return Some(at);
                        }
                        let names = module.names.get(name).into_iter().flatten();
                        let mut paths = names.map(|path| [path.as_slice(), rest].concat());
                        if let Some(found) = paths.find_map(|path| self.resolve(&at, &path, above)) {
                            return Some(found);
                        }
                    }
                    if is_module {
                        (at, is_inside) = (child, true);
                        continue;
                    }
                    let mut globs = module.globs.iter().map(|glob| [glob.as_slice(), &path[number..]].concat());
                    let found = globs.find_map(|path| self.resolve(&at, &path, above));
                    // What a macro makes has no definition to find.
                    return found.or_else(|| (is_inside && !module.names.contains_key(name)).then_some(at));
                }
            }
            is_inside = true;
        }
        None
    }
}

/// The names that a `use` declaration brings into scope, with their paths; `*` is the name for all of a module.
fn use_tree(tokens: &[String]) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => {}
            "{" => {
                let mut depth = 0;
                let mut start = at + 1;
                for (end, token) in tokens.iter().enumerate().skip(at) {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    if depth == 0 || (depth == 1 && token == ",") {
                        let part = use_tree(&tokens[start..end]);
                        found.extend(part.into_iter().map(|(name, rest)| (name, [path.as_slice(), &rest].concat())));
                        start = end + 1;
                    }
                }
                // `{self}` is the name of the path before it.
                for (name, path) in found.iter_mut().filter(|(name, path)| name == "self" && path.len() > 1) {
                    path.pop();
                    name.clone_from(&path[path.len() - 1]);
                }
                return found;
            }
            "as" => return vec![(tokens[at + 1].clone(), path)],
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    path.last().cloned().map(|name| (name, path)).into_iter().collect()
}

/// Leaves out the items under `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some((first, after)) = rest.split_first() {
        let start = rest.iter().take(6).map(String::as_str);
        if start.clone().eq(["#", "[", "cfg", "(", "test", ")"])
            || start.take(6).eq(["#", "[", "cfg", "(", "all", "("]) && rest[6] == "test"
        {
            let mut depth = 0;
            let end = rest.iter().position(|token| {
                depth += i32::from("{([".contains(token.as_str())) - i32::from("})]".contains(token.as_str()));
                depth == 0 && matches!(token.as_str(), "}" | ";")
            });
            rest = &rest[end.expect("an item has an end") + 1..];
        } else {
            kept.push(first.clone());
            rest = after;
        }
    }
    kept
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The tokens of some code: names, `::`, other characters one by one, and a `"` for each literal of text. Numbers,
/// lifetimes and comments are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
        let word = &rest[..rest.find(|c| !is_in_word(c)).unwrap_or(rest.len())];
        let after_word = rest[word.len()..].trim_start_matches('#');
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if matches!(word, "r" | "br") && after_word.starts_with('"') {
            let end = format!("\"{}", "#".repeat(rest.len() - word.len() - after_word.len()));
            let start = rest.len() - after_word.len() + 1;
            tokens.push("\"".to_owned());
            start + rest[start..].find(&end).expect("a literal has an end") + end.len()
        } else if !word.is_empty() {
            if is_name(word) {
                tokens.push(word.to_owned());
            }
            word.len()
        } else if first == '"' {
            tokens.push("\"".to_owned());
            quoted_len(rest, '"')
        } else if first == '\'' {
            let mut chars = rest.chars().skip(1);
            let is_char = chars.next() == Some('\\') || chars.next() == Some('\'');
            if is_char { quoted_len(rest, '\'') } else { 1 + rest[1..].find(|c| !is_in_word(c)).unwrap_or(0) }
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[len..];
    }
    tokens
}

/// The length of a literal with its quotes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    end.expect("a literal has an end").0 + 1
}
