//! Every command that an error proposes works when it is pasted. `lines.txt` contains command lines with mistakes. The
//! test runs each, pastes each proposal of its error into a shell, and checks that the command succeeds, changes no file
//! that existed before, and proposes `--force` only where an output exists. It also checks that a proposal keeps the output
//! that was typed, chooses no type that nobody named, and keeps whether a scheme has zero points.
//!
//! A proposal is one of these, in the lines below an error:
//! * a command with at least one flag or quoted word, up to the end of the clause;
//! * a flag with its value, which is added to the line, or replaces the value that the line gives it;
//! * `is it 'NAME'?`, which replaces the name that the error is about.
#![cfg(unix)]

#[path = "../common/mod.rs"]
mod common;

use common::gguf::Gguf;
use common::{Bench, Outcome, fixture, npy, npy_f32, safetensors, zip};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use tcast::dtype::Dtype;

/// Subcommands, and the programs of the system that a remedy may begin with.
const PROGRAMS: &[&str] = &["tcast", "mkdir", "mv", "cp", "rm", "ln", "curl", "hf", "aws"];

/// The programs among them that need a network, so the test does not run them.
const DOWNLOADS: &[&str] = &["curl", "hf", "aws"];

/// The flags of proposals without a value.
const SWITCHES: &[&str] = &[
    "--all",
    "--allow-unmatched",
    "--dry-run",
    "--force",
    "--force-codes",
    "--hex",
    "--bits",
    "--partial-blocks",
    "--raise-opset",
    "--resume",
    "--unsafe",
];

/// The flags that may be given several times.
const REPEATABLE: &[&str] = &["--exclude", "--include", "--rename", "--rule"];

/// Values without quotes, digits and marks.
const VALUES: &[&str] = &["-", "comfyui", "gguf", "huggingface", "saturate", "wrap"];

/// Values for the words in capitals of a proposal.
const PLACEHOLDERS: &[(&str, &str)] = &[
    ("BITS", "6"),
    ("INPUT", "llama"),
    ("OLD=NEW", "model.norm.weight=norm"),
    ("DTYPE", "float16"),
    ("SCHEME", "int8"),
    ("FILE.safetensors", "new.safetensors"),
    ("FILE", "new.safetensors"),
    ("NAME", "model.norm.weight"),
    ("OUT", "new"),
];

/// A name and its bytes.
type File<'a> = (&'a str, &'a [u8]);

/// A folder with the files that the lines name.
fn world() -> Bench {
    let bench = Bench::with("model.safetensors", "model.safetensors");
    for (source, name) in [
        ("weights_f32.npy", "x.npy"),
        ("scalar_f64.npy", "s.npy"),
        ("weights_f32.npy", "taken.npy"),
        ("onnx_models/knn_surrogate.onnx", "m.onnx"),
        ("pytorch/state_dict.zip.pt", "net.pt"),
        ("quantized/libraries/gptq.f16.32x128.w4.safetensors", "gptq.safetensors"),
        ("quantized/comfy-nvfp4.bf16.50x40.safetensors", "comfy-nvfp4.safetensors"),
        ("quantized/comfy-scaled-fp8.bf16.32x96.safetensors", "comfy-fp8.safetensors"),
        ("quantized/ct-mxfp4.f32.32x96.safetensors", "mxfp4.safetensors"),
    ] {
        fs::copy(fixture(source), bench.path(name)).unwrap();
    }
    for (source, name) in
        [("llama-tiny-bf16", "llama"), ("llama-fp8", "coded"), ("llama-nvfp4a16", "nvfp4"), ("../lora/style", "style")]
    {
        bench.add_checkpoint(source, name);
    }
    bench.write("text.txt", b"no tensors\n");
    bench.write("empty.npy", b"");
    bench.write("short.npy", &npy_f32(&[1.0, 2.0])[..100]);
    bench.write("broken.safetensors", &bench.read("model.safetensors")[..2000]);
    bench.write("objects.npy", &npy("'|O'", "(2,)", b"\x80\x04K\x01."));
    let pickle = [("net/data.pkl", &b"\x80\x02}q\x00."[..]), ("net/code/net.py", b""), ("net/version", b"3\n")];
    for name in ["net.pth", "net.npz"] {
        bench.write(name, &zip(&pickle, false));
    }
    bench.write("old.ckpt", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.");
    let gguf = fs::read(fixture("gguf/tiny.gguf")).unwrap();
    bench.write("code.gguf", &gguf);
    let weight = Gguf::of("llama").number("llama.block_count", 4).floats("output.weight", &[1, 32], [1.0; 32]);
    bench.write("MODEL.gguf", &weight.bytes());
    let one = safetensors(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, &[0; 8]);
    let folders: [(&str, &[File]); 9] = [
        ("bins", &[("pytorch_model.bin", &zip(&pickle, false)), ("config.json", b"{}")]),
        ("ggufs", &[("tiny-q8_0.gguf", &gguf)]),
        ("onnxs", &[("model.onnx", &fs::read(fixture("onnx_models/knn_surrogate.onnx")).unwrap())]),
        ("npys", &[("x.npy", &npy_f32(&[1.0])), ("z.npy", &npy_f32(&[2.0]))]),
        ("void", &[]),
        ("notes", &[("README.md", b"# Notes\n"), ("config.json", b"{}")]),
        ("pipeline", &[("model_index.json", br#"{"_class_name":"StableDiffusionXLPipeline"}"#)]),
        ("full", &[("old.safetensors", &one)]),
        ("bloom", &[("model.safetensors", &one), ("config.json", br#"{"model_type": "bloom"}"#)]),
    ];
    for (folder, files) in folders {
        fs::create_dir(bench.path(folder)).unwrap();
        for (name, bytes) in files {
            bench.write(&format!("{folder}/{name}"), bytes);
        }
    }
    for part in ["unet", "vae"] {
        fs::create_dir(bench.path("pipeline").join(part)).unwrap();
        bench.write(&format!("pipeline/{part}/diffusion_pytorch_model.safetensors"), &one);
    }
    cache(&bench);
    bench.run("cast llama --to bf16 -o w.safetensors -q").expect(0, "", "");
    bench
}

/// A cache as `huggingface_hub` makes it: a snapshot of links to blobs.
fn cache(bench: &Bench) {
    let model = bench.path("hub/models--org--tiny");
    for folder in ["blobs", "refs", "snapshots/0123abcd"] {
        fs::create_dir_all(model.join(folder)).unwrap();
    }
    fs::write(model.join("refs/main"), "0123abcd").unwrap();
    for entry in fs::read_dir(fixture("checkpoints/llama-nvfp4a16-source")).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        fs::copy(path, model.join("blobs").join(&name)).unwrap();
        symlink(Path::new("../../blobs").join(&name), model.join("snapshots/0123abcd").join(&name)).unwrap();
    }
}

/// When each file of a folder was changed last, and `None` for folders.
fn changes(folder: &Path) -> BTreeMap<PathBuf, Option<SystemTime>> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let data = path.symlink_metadata().unwrap();
            found.insert(path.clone(), (!data.is_dir()).then(|| data.modified().unwrap()));
            if data.is_dir() {
                open.push(path);
            }
        }
    }
    found
}

/// Makes a folder what it was before, from a copy, and returns the files that were changed or removed.
fn restore(folder: &Path, before: &BTreeMap<PathBuf, Option<SystemTime>>, copy: &Path) -> Vec<PathBuf> {
    let after = changes(folder);
    for (path, time) in after.iter().rev().filter(|(path, _)| !before.contains_key(*path)) {
        if time.is_some() { fs::remove_file(path) } else { fs::remove_dir(path) }.unwrap();
    }
    let changed = before.iter().filter(|(path, time)| after.get(*path) != Some(time));
    let restored = changed.map(|(path, time)| {
        let name = path.strip_prefix(folder).unwrap();
        match time {
            Some(time) => {
                fs::copy(copy.join(name), path).unwrap();
                fs::File::open(path).unwrap().set_modified(*time).unwrap();
            }
            None => fs::create_dir(path).unwrap(),
        }
        name.to_owned()
    });
    restored.collect()
}

/// A word of a shell's line: as it is written, and its value.
#[derive(Clone, Debug)]
struct Word<'a> {
    written: &'a str,
    value: String,
    /// Whether it ends a clause: with a comma or another mark outside quotes, which is not part of the word.
    ends: bool,
}

/// The words of a line; quotes are single, and `\'` is a quote, as the program writes them.
fn words(line: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (mut value, mut end, mut quoted, mut chars) = (String::new(), rest.len(), false, rest.char_indices());
        while let Some((at, char)) = chars.next() {
            match char {
                '\'' => quoted = !quoted,
                '\\' if !quoted => value.extend(chars.next().map(|(_, char)| char)),
                ' ' if !quoted => {
                    end = at;
                    break;
                }
                _ => value.push(char),
            }
        }
        let (written, behind) = rest.split_at(end);
        let bare = written.trim_end_matches([',', ';', ':', ')', '?']);
        let ends = bare.len() < written.len();
        value.truncate(value.len() - (written.len() - bare.len()));
        words.push(Word { written: bare, value, ends });
        rest = behind.trim_start();
    }
    words
}

/// The clause of a command or a flag: all words to the next mark, or to a word of prose.
fn clause<'a, 'b>(words: &'b [Word<'a>]) -> &'b [Word<'a>] {
    let prose =
        |word: &Word| ["or", "and", "then", "to", "which", "first", "for", "with", "from"].contains(&word.written);
    let end = words.iter().position(prose).unwrap_or(words.len());
    let mark = words.iter().position(|word| word.ends).map_or(words.len(), |at| at + 1);
    &words[..end.min(mark)]
}

fn joined(words: &[Word]) -> String {
    words.iter().map(|word| word.written).collect::<Vec<_>>().join(" ")
}

/// A line with the flags of a proposal. A flag takes the place of its value where that stands alone in the line, of the
/// same flag, or of the same pattern if the error is about it.
fn with_flags(line: &str, flags: &[Word], error: &str) -> String {
    let mut result = line.to_owned();
    let (mut flags, mut known) = (flags, Vec::new());
    while let Some(flag) = flags.first() {
        let taken = 1 + usize::from(flags.get(1).is_some_and(|value| !is_flag(value)));
        let (name, added) = (flag.written.split('=').next().unwrap(), joined(&flags[..taken]));
        let of_line = words(&result);
        let at = of_line.iter().position(|word| word.written == name);
        let same = at.filter(|_| !known.contains(&name));
        let same = same.filter(|at| !REPEATABLE.contains(&name) || error.contains(&of_line[at + 1].value));
        known.push(name);
        let alone = flags[1..taken].first().and_then(|value| of_line.iter().position(|word| word.value == value.value));
        let (from, to) = match (same, alone) {
            (Some(at), _) => (at, at + taken),
            (None, Some(at)) if at != 2 => (at, at + 1),
            _ => (of_line.len(), of_line.len()),
        };
        result = [&joined(&of_line[..from]), added.as_str(), &joined(&of_line[to..])].join(" ");
        flags = &flags[taken..];
    }
    result
}

fn is_flag(word: &Word) -> bool {
    word.written.starts_with('-') && word.written.len() > 1
}

/// The lines to paste that an error proposes for a line with a mistake.
fn proposals(line: &str, stderr: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut error, mut about, mut unknown) = ("", "", "");
    // Without the usage that follows errors of arguments, which is no proposal.
    for text in stderr.lines().take_while(|text| !text.starts_with("Usage: ")) {
        if let Some(message) = text.strip_prefix("tcast: error: ") {
            error = message;
            about = error.split(": ").next().unwrap();
            unknown =
                error.strip_prefix("unexpected argument '").and_then(|rest| rest.split('\'').next()).unwrap_or("");
        }
        if !text.starts_with("  ") {
            continue;
        }
        let in_place_of = |old: &str, new: &str| line.replacen(old, new.split('\'').next().unwrap(), 1);
        if let Some(name) = text.strip_prefix("  is it '") {
            found.push(in_place_of(about, name));
            continue;
        }
        if let Some(flag) = text.strip_prefix("  tip: a similar argument exists: '") {
            found.push(in_place_of(unknown, flag));
            continue;
        }
        let words = words(text);
        let mut at = 0;
        while at < words.len() {
            let clause = clause(&words[at..]);
            let first = &words[at];
            let is_quoted = |word: &Word| word.value != word.written;
            let taken = if PROGRAMS.contains(&first.written)
                && clause.iter().any(|word| is_quoted(word) || is_flag(word))
            {
                found.extend((!DOWNLOADS.contains(&first.written)).then(|| joined(clause)));
                clause.len()
            } else if is_flag(first) && (at == 0 || words[at - 1].written != "leave") {
                let is_part = |word: &&Word| is_flag(word) || is_quoted(word) || is_value(word.written);
                let flags = &clause[..clause.iter().take_while(is_part).count()];
                let can_be_pasted = flags.len() > 1 || first.written.contains('=') || SWITCHES.contains(&first.written);
                found.extend(can_be_pasted.then(|| with_flags(line, flags, error)));
                flags.len()
            } else {
                1
            };
            at += taken;
        }
    }
    found
}

/// Whether a word of a remedy without quotes is the value of the flag before it, rather than prose.
fn is_value(word: &str) -> bool {
    let is_name = |word: &str| PLACEHOLDERS.iter().any(|(name, _)| *name == word);
    is_name(word) || word.contains(|char: char| char.is_ascii_digit() || "/.".contains(char)) || VALUES.contains(&word)
}

/// Names of other tools for a type.
const ALIASES: &[(&str, Dtype)] = &[("fp8", Dtype::Float8E4M3FN), ("float8", Dtype::Float8E4M3FN)];

/// Returns what a proposal changes that its line and the error do not ask for.
fn unasked(line: &str, proposal: &str, stderr: &str) -> Option<&'static str> {
    let (line, proposed) = (words(line), words(proposal));
    // A promotion needs other inputs first.
    let writes = ["cast", "dequantize", "quantize"].contains(&proposed.get(1)?.written) && line[1].written != "promote";
    let has_output = |words: &[Word]| words.iter().any(|word| ["-o", "--output"].contains(&word.written));
    if writes && has_output(&line) && !has_output(&proposed) && !stderr.contains(" -o") && !stderr.contains("'-o'") {
        return Some("drops -o");
    }
    // A type that no word of the line is a name of; float32 holds the values of all weights.
    let value = |flag: &str| {
        let at = proposed.iter().position(|word| word.written == flag)?;
        proposed.get(at + 1).map(|word| word.value.as_str())
    };
    let to = value("--to").and_then(|to| to.parse::<Dtype>().ok()).filter(|_| proposed[1].written == "cast");
    if let Some(to) = to.filter(|to| *to != Dtype::Float32) {
        let of_alias =
            |part: &str| ALIASES.iter().find(|(alias, _)| part.eq_ignore_ascii_case(alias)).map(|(_, to)| *to);
        let is_it = |part: &str| part.parse().ok().or_else(|| of_alias(part)) == Some(to);
        let is_named = |word: &Word| word.value.trim_start_matches('-').split([',', '/', ' ', '=']).any(is_it);
        let is_spelt_almost_so = to.bits() > 8 && stderr.contains("similar: ");
        if !line.iter().any(is_named) && !is_spelt_almost_so {
            return Some("chooses a type");
        }
    }
    let text = line.iter().map(|word| word.value.to_lowercase().replace('_', "-")).collect::<Vec<_>>().join(" ");
    let has = |marks: &[&str]| marks.iter().any(|mark| text.replace('=', " ").contains(mark));
    let has_zero_points = has(&["asym", "no-sym", "sym false", "symmetric false", "--zero-point true"]);
    let is_symmetric = !has_zero_points && has(&["--sym", "-sym"]) || has(&["asym --sym"]);
    let scheme = value("--scheme").filter(|scheme| scheme.starts_with("int"))?;
    let is_other = if scheme.ends_with("-asym") { is_symmetric } else { has_zero_points && !is_symmetric };
    is_other.then_some("has another scheme's symmetry")
}

#[test]
fn every_command_that_an_error_proposes_works_when_it_is_pasted() {
    let bench = world();
    let copy = world();
    let before = changes(&bench.path(""));
    let restore = || restore(&bench.path(""), &before, &copy.path(""));
    let lines: Vec<_> =
        include_str!("lines.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (mut pasted, mut wrong) = (0, Vec::new());
    for line in &lines {
        let Outcome { code, stderr, .. } = bench.shell(&format!("tcast {line}"));
        let changed = restore();
        let is_told = stderr.contains("tcast: note: ") || stderr.contains("tcast: warning: ");
        if !changed.is_empty() || (code == Some(0) && !is_told) {
            wrong.push(format!("$ tcast {line}\n{stderr}no error, or changes {changed:?}\n"));
        }
        let proposed = if code == Some(0) { Vec::new() } else { proposals(&format!("tcast {line}"), &stderr) };
        for mut proposal in proposed {
            if let Some(what) = unasked(&format!("tcast {line}"), &proposal, &stderr) {
                wrong.push(format!("$ tcast {line}\n{stderr}{what}: {proposal}\n"));
            }
            for (name, value) in PLACEHOLDERS {
                proposal = proposal.replace(name, value);
            }
            pasted += 1;
            let again = bench.shell(&proposal);
            let mut changed = restore();
            if proposal.contains(" --force") {
                changed.retain(|path| !path.starts_with("taken.npy") && !path.starts_with("full"));
            }
            let differs = proposal.starts_with("tcast diff ") && again.code == Some(1);
            if !(again.code == Some(0) || differs) || !changed.is_empty() {
                let again = format!("{}changes {changed:?}", again.stderr);
                wrong.push(format!("$ tcast {line}\n{stderr}pasted: {proposal}\n{again}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {pasted} proposals are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(lines.len() >= 200 && pasted >= 100, "{} lines, {pasted} proposals", lines.len());
}
