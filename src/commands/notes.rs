//! The words of notes, on standard error.

use super::engine_notes::engine_notes;
use super::messages::{note, print_error, print_message, print_remedy, warn};
use super::remedies::remedy;
use crate::container::gguf::metadata::{MetadataFacts, TokenizerFacts};
use crate::container::gguf::names::OtherPart;
use crate::container::{PickleFacts, RootInfo};
use crate::io::temporaries::{self, Kept, Start};
use crate::operator::Operator;
use crate::progress::{GgufNote, LoraNote, Misfit, Note, OnnxNote, UseNote};
use crate::quant::{COMFYUI, GGUF, Group, SCHEMES, Scheme, Unfit};
use crate::text::{as_glob, counted, first_few, flag_with, grouped, is, path_text, remove_files, shorten, size};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Prints a note.
pub(super) fn show(shown: &Note) {
    match shown {
        Note::Refused(error) => print_error(error),
        Note::Kept(kept) => print_message(&format!("tcast: {}", describe(kept))),
        Note::Begins(folder) => warn_of_abandoned(folder),
        Note::DoneAgain(error) => warn(&format!("{error}; converting the shard again")),

        Note::Disagreement(disagreement) => warn(&disagreement.text),
        Note::NoArray(name) => warn(&format!("'{}' is not an array and is left out", shorten(name))),
        Note::Pickle(path, facts) => say_what_is_read(path, facts),
        Note::Unreadable(name) => warn(&format!("tensor '{}' cannot be read and is left out", shorten(name))),
        Note::Wrapped(path, prefix) => {
            let (path, rename) = (path_text(path), flag_with("--rename", &format!("{prefix}*=*")));
            note(&format!("all names in {path} begin with '{prefix}', which a wrapper adds: {rename} removes it"));
        }
        Note::Unmatched(pattern) => warn(&format!("the pattern '{pattern}' matches no tensor")),
        Note::NoMetadata(extension) => {
            warn(&format!("the metadata is left out: a .{extension} file has no place for it"));
        }
        Note::NoLists(lists) => {
            let names = first_few(lists.iter().map(|(key, _)| key), 3);
            note(&format!("{} of the metadata left out: {names}", counted(lists.len() as u64, "list")));
        }
        Note::DifferentMetadata(key) => warn(&format!(
            "the inputs have different values of the metadata key '{}': each output keeps that of its first input",
            shorten(key)
        )),
        Note::ScalesLeftOut(names, operator) => {
            let is_decoded = *operator == Operator::Dequantize;
            warn_of_activation_scales(names, if is_decoded { ": --keep-activation-scales keeps them" } else { "" });
        }
        Note::ScalesCast(names) => warn_of_scales(names),

        Note::ModulesCast(files) => {
            note(&format!("also cast, as modules of the model: {}", first_few(files, 5)));
        }
        Note::ModulesCopied(paths) => {
            let paths = first_few(paths.iter().map(path_text), 5);
            note(&format!("copied as they are, as modules of their own: {paths}"));
        }
        Note::LeftOut(paths) => {
            let paths = first_few(paths.iter().map(path_text), 5);
            warn(&format!("left out, because they hold other weights or are not regular files: {paths}"));
        }
        Note::Staying { folder, files } => {
            let (folder, files) = (path_text(folder), first_few(*files, 5));
            warn(&format!("{folder} keeps files that are not of the new checkpoint: {files}"));
        }
        Note::ManySideFiles { folder, count, bytes } => {
            let (folder, bytes) = (path_text(folder), size(*bytes));
            warn(&format!("{folder} holds {count} files besides its shards, {bytes}, which are copied"));
        }
        Note::Onnx(shown) => show_onnx(shown),
        Note::Gguf(shown) => show_gguf(shown),
        Note::Lora(shown) => show_lora(shown),
        Note::Use(shown) => show_use(shown),
    }
}

fn show_onnx(shown: &OnnxNote) {
    match shown {
        OnnxNote::RuleWithoutEffect(pattern, reason) => {
            let (rule, reason) = (shorten(pattern), reason.describe());
            warn(&format!("the rule '{rule}' has no effect: the model keeps its tensors ({reason})"));
        }
        OnnxNote::SecondFile(bytes) => {
            let bytes = size(*bytes);
            warn(&format!("the elements of large tensors go to a second file: a model of {bytes} is too long"));
        }
        OnnxNote::LaterOpset { imported, needed, needy } => {
            warn(&format!("the model now imports opset {needed} instead of {imported}, for {needy}"));
        }
        OnnxNote::LaterIr(version) => warn(&format!("the model now has IR version {version}, which its types need")),
    }
}

fn show_lora(shown: &LoraNote) {
    match shown {
        LoraNote::Unmatched(path, names) => {
            let (count, listed) = (counted(names.len() as u64, "tensor"), first_few(names, 3));
            let matches = if names.len() == 1 { "matches" } else { "match" };
            warn(&format!(
                "{count} of {} {matches} no weight and {} left out: {listed}",
                path_text(path),
                is(names.len() as u64)
            ));
        }
        LoraNote::Twice(path) => warn(&format!("{} is merged more than once", path_text(path))),
        LoraNote::NoEffect(path) => warn(&format!("{} changes nothing: its scale is 0", path_text(path))),
        LoraNote::Residual(path, method) => warn(&format!(
            "{} was initialized with {}: it belongs to the residual base of its training, unless it was converted",
            path_text(path),
            shorten(method)
        )),
        LoraNote::MetadataScale(path, scale) => note(&format!(
            "the metadata of {} gives the scale {scale}, as diffusers reads it; ComfyUI ignores it and takes 1",
            path_text(path)
        )),
        LoraNote::Replaces(name) => {
            note(&format!("the adapter replaces '{}' by another weight", shorten(name)));
        }
        LoraNote::Tied(name, other) => {
            let other = other.as_deref().map_or("the output head".into(), |other| format!("'{}'", shorten(other)));
            note(&format!("'{}' is tied to {other}, which changes too", shorten(name)));
        }
    }
}

fn show_gguf(shown: &GgufNote) {
    match shown {
        GgufNote::Made(facts) => note(&format!("metadata of the folder: {}", metadata(facts))),
        GgufNote::Architecture(name) => {
            note(&format!("the tensors are those of {name}, which becomes general.architecture"));
        }
        GgufNote::PrefixLost(prefix) => note(&format!("tensors lose the prefix '{prefix}'")),
        GgufNote::RowsLeftOut { table, rows, tokens } => {
            let rows = counted(*rows, "row");
            note(&format!("{rows} of {table} are left out: the tokenizer has {tokens} tokens"));
        }
        GgufNote::NoHead => note(
            "the model has no lm_head.weight, and config.json does not tie it to the embeddings, which llama.cpp uses in its place",
        ),
        GgufNote::Factors { name, donor, is_described } => note(&match donor.as_ref().map(path_text) {
            None => format!("{name} is computed from config.json"),
            Some(donor) if *is_described => format!("{name} is copied from {donor}"),
            Some(donor) => format!("{name} is copied from {donor}: config.json does not describe it"),
        }),
        GgufNote::DonorTensorsLeftOut(donor, names) => {
            let (count, donor) = (counted(names.len() as u64, "tensor"), path_text(donor));
            let (are, names) = (is(names.len() as u64), grouped(names.iter().map(String::as_str)));
            note(&format!("the model lacks {count} of {donor}, which {are} left out: {names}"));
        }
        GgufNote::DonorPartsMissing(donor, missing) => {
            let (parts, are, donor) = (counted(*missing as u64, "part"), is(*missing as u64), path_text(donor));
            note(&format!("{parts} of {donor} {are} missing, so its tensors are not all known"));
        }
        GgufNote::TensorsLeftOut { part, names } => {
            let (count, are) = (counted(names.len() as u64, "tensor"), is(names.len() as u64));
            let names = grouped(names.iter().map(String::as_str));
            note(&match part {
                None => format!("{count} {are} left out: {names}"),
                Some(OtherPart::Tower) => format!(
                    "{count} of the tower for images or sound {are} left out: llama.cpp wants them in another file, which \
                     convert_hf_to_gguf.py --mmproj makes: {names}"
                ),
                Some(OtherPart::Prediction) => {
                    format!("{count} of layers that predict several tokens {are} left out: {names}")
                }
            });
        }
        GgufNote::KeysLeftOut(names) => {
            /// Maximum number of names; files have a few.
            const MOST: usize = 100;
            let count = if names.len() == 1 { "metadata key is" } else { "metadata keys are" };
            note(&format!("{} {count} left out: {}", names.len(), first_few(names, MOST)));
        }
        GgufNote::OtherType { wanted, stored, names } => {
            let (verb, their) = if names.len() == 1 { ("becomes", "its") } else { ("become", "their") };
            let (count, examples) = (counted(names.len() as u64, "weight"), first_few(names, 2));
            warn(&format!(
                "{count} {verb} {stored}, because {their} rows are not whole blocks of {wanted}: {examples}"
            ));
        }
        GgufNote::UnknownImportance(names) => {
            let entries = if names.len() == 1 { "entry" } else { "entries" };
            warn(&format!(
                "the importance matrix has {} {entries} for tensors that the model does not have, such as '{}'",
                names.len(),
                shorten(&names[0])
            ));
        }
    }
}

/// Describes the metadata that is made from the folder of a language model.
pub(super) fn metadata(facts: &MetadataFacts) -> String {
    let MetadataFacts { architecture, layers, tokenizer } = facts;
    let TokenizerFacts { kind, tokens, pre_tokenizer, has_template } = tokenizer;
    let pre = pre_tokenizer.as_ref().map(|pre| format!(", pre-tokenizer {}", pre.name)).unwrap_or_default();
    let template = if *has_template { ", chat template" } else { "" };
    format!("{architecture}, {}, {tokens} tokens ({kind}{pre}){template}", counted(*layers, "layer"))
}

fn show_use(shown: &UseNote) {
    match shown {
        UseNote::Misfits { misfits, layout, group_size } => {
            /// Maximum number of shapes that are described.
            const FEW: usize = 3;
            misfits.iter().take(FEW).for_each(|misfit| note(&of_misfit(misfit, layout, *group_size)));
            if let Some(more) = misfits.len().checked_sub(FEW).filter(|more| *more > 0) {
                note(&format!("weights of {more} other shapes are not quantized either; --dry-run lists them"));
            }
        }
        UseNote::OfDiffusion(scheme) => note_diffusion(scheme),
        UseNote::QuantizedEmbedding(name) => note(&format!("few engines load quantized embeddings: {}", shorten(name))),
        UseNote::DecodedStacks(count, first) => {
            let what = format!("decoded: {} of experts, '{}' is one", counted(*count, "stack"), shorten(first));
            note(&format!("{what}; tcast divides and quantizes them without --names file"));
        }
        UseNote::Quantized(forms) => engine_notes(forms).iter().for_each(|text| note(text)),
        UseNote::SharedInputScale => {
            note("all activations have the same global scale; engines lose accuracy where it does not fit");
        }
        UseNote::Unrotated { count, first, columns, size } => {
            let first = shorten(first);
            let which = match count {
                1 => format!("{first} is not rotated: its {columns} columns are"),
                _ => format!("{count} weights are not rotated, such as {first}: their {columns} columns are"),
            };
            note(&format!("{which} not a multiple of {size}"));
        }
        UseNote::GroupsOfInput(size) => note(&format!(
            "weights are quantized again because their groups have {size} values; --group-size {size} keeps codes and scales"
        )),
        UseNote::SlowGroups(size) => {
            note(&format!("vLLM has fast kernels for groups of 32, 64 and 128 values, not of {size}"));
        }
        UseNote::DividedSets(count, names) => note(&of_divided(names, *count)),
        UseNote::UnequalGlobals([first, second]) => note(&format!(
            "engines load '{}' and '{}' as one module with one global scale, and theirs differ: vLLM decodes one of them wrongly",
            shorten(first),
            shorten(second)
        )),
        UseNote::Padded { layout, first, others } => {
            let more = if *others > 0 { format!(" and {}", counted(*others, "more weight")) } else { String::new() };
            note(&format!(
                "ComfyUI pads rows and columns of {} weights to multiples of {}, and the file does not contain their \
                 shapes before that: '{}'{more} may end with zeros",
                layout.name.trim_start_matches("comfy-"),
                layout.codes.padding,
                shorten(first)
            ));
        }
        UseNote::CodesStay(nodes) => note(nodes),
        UseNote::NodesStay(error) => {
            note(&error.to_string());
            if let Some(remedy) = remedy(error) {
                print_remedy(&remedy);
            }
        }
    }
}

/// Describes a set of weights that is divided.
fn of_divided([decoded, left]: &[String; 2], sets: u64) -> String {
    let more = match sets - 1 {
        0 => String::new(),
        more => format!(" (and {} like this)", counted(more, "set")),
    };
    let (decoded, left) = (shorten(decoded), shorten(left));
    format!(
        "engines load '{decoded}' and '{left}' as one module, and may refuse it: the first is plain, and the second \
         is quantized{more}"
    )
}

/// Prints the layout of a scheme for diffusion models, if another one is the default.
fn note_diffusion(scheme: &Scheme) {
    let what = "the tensors are named as in a diffusion model, and ComfyUI loads such models";
    match scheme.in_layout(Some(COMFYUI)) {
        _ if [COMFYUI, GGUF.name].contains(&scheme.default_layout()) => {}
        Some(_) => note(&format!("{what} with --layout {COMFYUI}")),
        None => note(&format!("{what} in other schemes, such as --scheme fp8 --layout {COMFYUI}")),
    }
}

/// Describes why weights of a shape are kept, and the options that would quantize them.
fn of_misfit(Misfit { why, scheme, shape, first, count }: &Misfit, layout: &str, group_size: Option<Group>) -> String {
    let has_columns = |size: &u64| shape.last().is_some_and(|columns| columns.is_multiple_of(*size));
    let most = if let Some(Group::Neighbours(size)) = group_size { size } else { 128 };
    let size = [64, 32].into_iter().find(|size| most > *size && has_columns(size));
    let fits_all = |scheme: &&Scheme| {
        let stored = scheme.in_layout(Some(layout));
        stored.is_some_and(|stored| matches!(stored.grid.group, Group::Channel | Group::Tensor))
    };
    let remedy = match (why, size) {
        (Unfit::Empty, _) => String::new(),
        (Unfit::Columns { .. }, Some(size)) if scheme.has_group_size() => format!("; --group-size {size} fits them"),
        _ if scheme.has_partial_blocks(layout) => "; --partial-blocks quantizes them".to_owned(),
        _ => {
            SCHEMES.iter().find(fits_all).map_or(String::new(), |scheme| format!("; --scheme {} fits any", scheme.name))
        }
    };
    let first = shorten(first);
    match count {
        1 => format!("{first} of shape {shape:?} is not quantized: {why}{remedy}"),
        _ => format!("{count} weights of shape {shape:?} are not quantized, such as {first}: {why}{remedy}"),
    }
}

fn warn_of_abandoned(folder: &Path) {
    const MOST: usize = 20;
    let found = temporaries::abandoned(folder);
    if found.is_empty() {
        return;
    }
    let paths: Vec<&PathBuf> = found.iter().take(MOST).map(|(path, _)| path).collect();
    let files = counted(found.len() as u64, "temporary file");
    let bytes = size(found.iter().map(|(_, len)| len).sum());
    warn(&format!("{files} of runs that were killed, {bytes} in all, can be removed"));
    print_remedy(&remove_files(&paths));
}

/// Warns of scales of activations that are left out, if there are some. `remedy` follows the first of them.
pub(super) fn warn_of_activation_scales(left_out: &[String], remedy: &str) {
    if let Some(first) = left_out.first() {
        let scales = counted(left_out.len() as u64, "scale");
        warn(&format!("left out {scales} of activations, such as '{}'{remedy}", shorten(first)));
    }
}

/// Says which tensors of a checkpoint of PyTorch are read, if the file contains others too, and warns of code.
fn say_what_is_read(path: &Path, facts: &PickleFacts) {
    warn_of_code(path, facts);
    if !facts.arrays.is_empty() {
        let (count, names) = (counted(facts.arrays.len() as u64, "array"), first_few(&facts.arrays, 3));
        warn(&format!("{}: {count} of numpy left out: {names}", path_text(path)));
    }
    let path = path_text(path);
    let names = |roots: &[&RootInfo]| first_few(roots.iter().map(|root| &root.key), 5);
    match &facts.chosen {
        _ if facts.is_requested => {}
        Some(chosen) => {
            let others: Vec<&RootInfo> = facts.roots.iter().filter(|root| !root.is_read).collect();
            let rest = match others.iter().map(|root| root.bytes).sum() {
                _ if others.is_empty() => String::new(),
                bytes => format!(", and not {} ({})", names(&others), size(bytes)),
            };
            note(&format!("{path}: tcast reads the tensors under '{chosen}'{rest}; --root . reads all"));
        }
        None => {
            let weights: Vec<&RootInfo> = facts.roots.iter().filter(|root| root.is_weights).collect();
            let others: Vec<&RootInfo> = facts.roots.iter().filter(|root| !root.is_read).collect();
            if let [first, _, ..] = &weights[..] {
                let one = flag_with("--root", &first.key);
                note(&format!("{path}: tcast reads all tensors under {}; {one} reads only some", names(&weights)));
            }
            if !others.is_empty() {
                let bytes = size(others.iter().map(|root| root.bytes).sum());
                note(&format!("{path}: tcast does not read {} ({bytes}); --root . reads all", names(&others)));
            }
        }
    }
}

/// Warns of names of code that may do harm, if the file has some.
pub(super) fn warn_of_code(path: &Path, facts: &PickleFacts) {
    if facts.suspicious.is_empty() {
        return;
    }
    let names = first_few(facts.suspicious.iter().cloned().collect::<Vec<_>>(), 5);
    let path = path_text(path);
    warn(&format!("{path} names {names}: tcast runs no code, but programs that unpickle the file would call it"));
}

/// Describes what remains of a run that ended early, and how to continue.
pub(super) fn describe(kept: &Kept) -> String {
    match kept {
        Kept::Outputs(what) => what.clone(),
        Kept::Shards { what, start } => {
            let how = match start {
                Start::Part => "", // a part continues its own work
                Start::Anew | Start::Resume => " with --resume",
                Start::Replace => " with --resume instead of --force",
            };
            format!("{what}: the same command{how} continues it")
        }
    }
}

fn warn_of_scales(names: &[&str]) {
    let name = shorten(names[0]);
    let flags: Vec<String> = endings(names).iter().map(|ending| flag_with("--exclude", ending)).collect();
    let flags = flags.join(" ");
    warn(&match names.len() {
        1 => format!("a scale of codes is cast too, '{name}': {flags} keeps it"),
        count if flags.is_empty() => {
            format!("{count} scales of codes are cast too, '{name}' is one: name them with --exclude to keep them")
        }
        count => format!("{count} scales of codes are cast too, '{name}' is one: {flags} keeps them"),
    });
}

/// Returns a few patterns that match all names by their ends; none if many would be needed.
fn endings(names: &[&str]) -> Vec<String> {
    const FEW: usize = 3;
    let parts: BTreeSet<&str> = names.iter().filter_map(|name| name.rsplit('.').next()).collect();
    let glob = |ending: &str| format!("*{}", as_glob(ending));
    if parts.len() <= FEW {
        return parts.into_iter().map(glob).collect();
    }
    let shared = names.iter().fold(names[0], |shared, name| {
        let same = shared.chars().rev().zip(name.chars().rev()).take_while(|(one, other)| one == other);
        &shared[shared.len() - same.map(|(one, _)| one.len_utf8()).sum::<usize>()..]
    });
    shared.find(['.', '_']).map(|start| glob(&shared[start..])).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::endings;

    #[test]
    fn the_patterns_match_all_names() {
        assert_eq!(endings(&["l.0.q.weight_scale", "l.1.k.weight_scale"]), ["*weight_scale"]);
        assert_eq!(endings(&["u_int8_scale", "v_int8_scale"]), ["*u_int8_scale", "*v_int8_scale"]);
        let names = ["u_int8_scale", "v_int8_scale", "w_int8_scale", "x_fp8_scale"];
        assert_eq!(endings(&names), ["*_scale"]);
        assert_eq!(endings(&["u_int8_scale", "v_int8_scale", "w_int8_scale", "x"]), [""; 0]);
    }
}
