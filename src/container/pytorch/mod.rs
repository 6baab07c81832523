//! `.pt`, `.pth`, `.bin` and `.ckpt`: checkpoints of `torch.save`, a pickle and the bytes of storages.
//!
//! Loading such a file with Python can run any code. Here the pickle is data: a machine builds its values and calls
//! nothing ([`pickle`]), tensors are found and named by their keys ([`tree`]), and each is a view of a storage ([`view`]),
//! which is mapped where it lies. Files are zip archives, or in the older form pickles followed by the storages. Both are
//! only read.

mod code;
mod distributed;
mod harmless;
mod meaning;
mod pickle;
mod tree;
mod types;
mod uses;
mod values;
mod view;

use super::names::NameHashes;
use super::zip::{ZipMember, check_names, is_zip, member_names, members, without_case};
use super::{
    Container, Contents, FileLayout, FormatInfo, NewMetadata, NewTensors, ReadOptions, ShardNames, Tensor, WrittenFiles,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::shorten;
pub(crate) use code::{PickleFacts, RootInfo};
pub(super) use distributed::{is_part_of_folder, is_shard_of_pieces, open_folder, search_unread};
use pickle::{Pickle, SearchEnd};
use std::collections::{BTreeSet, HashMap};
use tree::RootEntry;
use values::{PickleValue, PickleValues};
use view::StorageTable;

/// The formats of PyTorch.
pub(super) struct PyTorch;

/// The pickle in an archive, after the name of the archive's folder.
const PICKLE: &str = "data.pkl";
/// The members that PyTorch reads besides the storages, after the name of the archive's folder, and folders of members.
const MEMBERS: [&str; 10] = [
    PICKLE,
    "byteorder",
    "version",
    ".format_version",
    ".storage_alignment",
    ".data/serialization_id",
    ".data/version",
    "constants.pkl",
    DATA,
    CODE,
];
const DATA: &str = "data/";
const CODE: &str = "code/";
/// The first pickle of a file in the older form: this number as an integer of 10 bytes.
const MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
/// The second pickle: the version of the form.
const VERSION: i32 = 1001;
/// Memory for the descriptions of tensors: so much for any file, and so many times the length of its pickle. A pickle can
/// refer to one tensor a million times.
const LEAST_MEMORY: usize = 32 << 20;
const MEMORY_PER_BYTE: usize = 16;
/// The root that is everything.
const ALL: &str = ".";

impl Container for PyTorch {
    fn format_info(&self) -> FormatInfo {
        FormatInfo {
            other_extensions: &["pth", "bin", "ckpt"],
            writing: WrittenFiles::Never,
            shards: Some(ShardNames { extension: "bin", part_of_stem: "pytorch_model" }),
            ..FormatInfo::of("pt") // the extension that stands for all of them
        }
    }

    fn stores(&self, _dtype: Dtype) -> Option<String> {
        None
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        is_old(bytes) || is_zip(bytes) && member_names(bytes).is_some_and(|mut names| names.any(is_mark))
    }

    fn read(&self, file: &MappedFile, options: &ReadOptions) -> Result<Contents> {
        let checkpoint = if is_zip(file) { TorchFile::in_archive(file)? } else { TorchFile::in_old_form(file)? };
        checkpoint.contents(options.root)
    }

    fn lay_out(&self, _: &dyn NewTensors, _: &NewMetadata, _: usize) -> Result<FileLayout> {
        Err(Error::new("tcast does not write the format of PyTorch"))
    }
}

/// True if PyTorch takes a member for the pickle: it ignores case.
fn is_pickle(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.strip_suffix(PICKLE.as_bytes()).is_some_and(|folder| folder.is_empty() || folder.ends_with(b"/"))
}

/// True if only archives of PyTorch have a member of this name.
fn is_mark(name: &[u8]) -> bool {
    is_pickle(name) || name.to_ascii_lowercase().ends_with(b"/.data/serialization_id")
}

/// Checks that PyTorch finds the same pickle: it looks in the folder of the first member, and ignores case. Returns the
/// folder, with its slash, in the bytes of the archive: PyTorch compares these.
fn folder_of<'m>(pickle: &'m ZipMember, members: &[ZipMember]) -> Result<&'m [u8]> {
    let first = members.first().map_or(&b""[..], |first| &first.raw_name);
    let first = first.iter().position(|byte| *byte == b'/').map_or(&b""[..], |end| &first[..=end]);
    let refusal = |what: &str| {
        let name = shorten(&pickle.name);
        Error::new(format!("malformed checkpoint of PyTorch: its {PICKLE} is called '{name}', {what}"))
    };
    let folder =
        pickle.raw_name.strip_suffix(PICKLE.as_bytes()).ok_or_else(|| refusal("and only PyTorch ignores case"))?;
    if folder == first { Ok(folder) } else { Err(refusal("which is not in the folder of the first member")) }
}

/// Returns the name of a member in the folder; `None` outside, and if PyTorch does not read a member of this name. Refuses a
/// name that only differs in case from one that is read.
fn name_inside<'m>(member: &'m ZipMember, folder: &[u8]) -> Result<Option<&'m [u8]>> {
    let lower = member.raw_name.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix(&*folder.to_ascii_lowercase()) else { return Ok(None) };
    let is_known = |known: &&&str| {
        if known.ends_with('/') { rest.starts_with(known.as_bytes()) } else { rest == known.as_bytes() }
    };
    let Some(known) = MEMBERS.iter().find(is_known) else { return Ok(None) };
    let name = member.raw_name.strip_prefix(folder).filter(|name| name.starts_with(known.as_bytes()));
    let name = name.ok_or_else(|| {
        let (name, known) = (shorten(&member.name), format!("{}{known}", String::from_utf8_lossy(folder)));
        let known = shorten(&known);
        Error::new(format!(
            "malformed checkpoint of PyTorch: '{name}' differs from '{known}' in case, and only PyTorch ignores case"
        ))
    });
    name.map(Some)
}

/// True if a file has the older form: the magic number as a pickle of protocol 2 or later, which may be in a frame.
fn is_old(bytes: &[u8]) -> bool {
    let Some([0x80, _, rest @ ..]) = bytes.get(..) else { return false };
    let framed = if let [0x95, rest @ ..] = rest { rest.get(8..) } else { None };
    framed.unwrap_or(rest).starts_with(MAGIC)
}

/// A file whose pickle was read.
struct TorchFile<'a> {
    form: &'static str,
    pickle: Pickle<'a>,
    /// Facts about the code that all its pickles name.
    facts: PickleFacts,
    storages: StorageTable,
    /// Names of members that are not read.
    ignored: Vec<String>,
}

impl<'a> TorchFile<'a> {
    fn in_archive(file: &'a [u8]) -> Result<Self> {
        let members = members(file)?;
        check_names(&members, without_case)?;
        let mut pickles = members.iter().filter(|member| is_pickle(member.name.as_bytes()));
        let found = match (pickles.next(), pickles.next()) {
            (Some(found), None) => found,
            (None, _) => return Err(Error::new(format!("is a checkpoint of PyTorch without its {PICKLE}"))),
            _ => return Err(Error::new(format!("malformed checkpoint of PyTorch: it has several {PICKLE}"))),
        };
        let folder = folder_of(found, &members)?;
        let stored = |member: &ZipMember| {
            let what = if member.is_deflated { Some("is compressed") } else { member.obstacle.as_deref() };
            what.map_or_else(
                || Ok(member.range.clone()),
                |what| {
                    let error =
                        Error::new(format!("its member '{}' {what}; torch.save stores members", shorten(&member.name)));
                    Err(error.remedy("unpack it, and pack it again without compression: zip -0 -r"))
                },
            )
        };
        let pickle = stored(found)?;
        let mut storages = StorageTable::default();
        let mut order = None;
        let mut ignored = Vec::new();
        for member in &members {
            match name_inside(member, folder)? {
                Some(b"byteorder") => order = Some(stored(member)?),
                Some(name) if name == b"constants.pkl" || name.starts_with(CODE.as_bytes()) => {
                    let what = "is a TorchScript archive, a program with its weights, which tcast does not read";
                    let remedy = "save the weights alone, with torch.save(model.state_dict(), ...)";
                    return Err(Error::new(what).remedy(remedy));
                }
                Some(name) => {
                    if let Some(key) = name.strip_prefix(DATA.as_bytes()).filter(|key| !key.is_empty()) {
                        storages.ranges.insert(key.into(), stored(member)?);
                    }
                }
                None if member.name.ends_with('/') => {} // a folder
                None => ignored.push(member.name.clone()),
            }
        }
        storages.is_big_endian = match order.map(|range| file[range].trim_ascii()) {
            None | Some(b"little") => false,
            Some(b"big") => true,
            Some(other) => {
                let other = shorten(&String::from_utf8_lossy(other));
                return Err(Error::new(format!("has the unknown byte order '{other}'")));
            }
        };
        let pickle = pickle::read(&file[pickle])?;
        let mut facts = PickleFacts::default();
        facts.add_code(&pickle.values)?;
        Ok(Self { form: "zip", pickle, facts, storages, ignored })
    }

    /// Reads pickles of the magic number, the version and the system, the object, and the keys of the storages. Then come
    /// the storages: a number of elements, and the elements. They are little endian on all systems.
    fn in_old_form(file: &'a [u8]) -> Result<Self> {
        let mut at = 0;
        let mut facts = PickleFacts::default();
        // Other programs run the code of each.
        let mut next = || {
            let pickle = pickle::read(&file[at..])?;
            at += pickle.len;
            facts.add_code(&pickle.values)?;
            Ok::<_, Error>(pickle)
        };
        next()?;
        if next()?.root != PickleValue::Int(VERSION) {
            return Err(Error::new("is a checkpoint of PyTorch in an unknown version of its older form"));
        }
        next()?;
        let (pickle, keys) = (next()?, next()?);
        let mut widths: HashMap<&[u8], u64> = HashMap::new();
        for storage in &pickle.values.storages {
            let (module, class) = pickle.values.code(storage.class);
            if let Some(class) = types::TorchType::of_storage(module, class) {
                widths.insert(pickle.values.text_at(storage.key), class.width);
            }
        }
        let mut storages = StorageTable::default();
        for key in keys.values.sequence(keys.root).unwrap_or_default() {
            let key = keys.values.text(*key);
            let (Some(key), Some(width)) = (key, key.and_then(|key| widths.get(key))) else {
                return Err(Error::new("malformed checkpoint of PyTorch: it has a storage without a class"));
            };
            let place = file.get(at..).and_then(|rest| rest.split_first_chunk()).and_then(|(count, rest)| {
                let len = u64::from_le_bytes(*count).checked_mul(*width)?;
                let len = usize::try_from(len).ok().filter(|len| *len <= rest.len())?;
                Some(at + 8..at + 8 + len)
            });
            let shown = String::from_utf8_lossy(key);
            let place = place.ok_or_else(|| {
                Error::new(format!(
                    "the file is cut short in its storage '{}'; was the download complete?",
                    shorten(&shown)
                ))
            })?;
            at = place.end;
            if storages.ranges.insert(key.into(), place).is_some() {
                return Err(Error::new(format!(
                    "malformed checkpoint of PyTorch: it has two storages '{}'",
                    shorten(&shown)
                )));
            }
        }
        Ok(Self { form: "legacy", pickle, facts, storages, ignored: Vec::new() })
    }

    /// Finds the tensors: all of them, or those under a root.
    fn contents(self, root: Option<&str>) -> Result<Contents> {
        let Self { form, pickle: Pickle { values, root: object, protocol, len }, facts, storages, ignored } = self;
        check_storages(&values)?;
        values.check_keys()?;
        // Formats with metadata give their mark to the output.
        let mut contents = Contents { metadata: Some(Vec::new()), ignored, ..Contents::default() };
        let mut names = NameHashes::default();
        // The tensors in the order in which they were found, or why one cannot be read.
        let mut found = Vec::new();
        let mut memory = LEAST_MEMORY + MEMORY_PER_BYTE * len;
        let (entries, arrays) = tree::visit(&values, object, &mut |name, tensor| {
            names.add(&name);
            let call = &values.tensors[tensor as usize];
            let needed = view::memory(&values, call) + name.len();
            let left = memory.checked_sub(needed).ok_or_else(|| {
                Error::new("malformed pickle: it refers to its tensors more often than any checkpoint does")
            });
            memory = left?;
            found.push(match view::view(&values, call, &storages) {
                Ok(view) => Ok(view.into_tensor(&name)),
                Err(error) => Err(error.if_unreadable(&name)?),
            });
            Ok(())
        })?;
        let name_of = |found: &Result<Tensor>| match found {
            Ok(tensor) => tensor.name.to_string(),
            Err(error) => error.tensor().unwrap_or_default().to_owned(),
        };
        if let Some(name) = names.repeated(found.iter().map(name_of)) {
            return Err(Error::new(format!("two tensors have the name '{}'", shorten(&name))));
        }
        let chosen = match root {
            None => unwrapped(&entries).map(|entry| entry.key.clone()),
            Some(ALL) => None,
            Some(root) => Some(root.to_owned()),
        };
        let roots = entries.iter().map(|entry| RootInfo::of(entry, &found, chosen.as_deref()));
        let roots: Vec<RootInfo> = roots.collect();
        let mut is_there = chosen.is_none();
        let inner = |name: &str| match &chosen {
            None => Some(name.to_owned()),
            Some(root) if name == *root => name.rsplit('.').next().map(str::to_owned),
            Some(root) => name.strip_prefix(&**root).and_then(|rest| rest.strip_prefix('.')).map(str::to_owned),
        };
        let arrays = arrays.iter().filter_map(|name| inner(name)).collect();
        for found in found {
            let Some(inner) = inner(&name_of(&found)) else { continue };
            is_there = true;
            match found {
                Ok(tensor) => contents.tensors.push(Tensor { name: (*inner).into(), ..tensor }),
                Err(error) => contents.unreadable.push(error.in_tensor(&inner)),
            }
        }
        if let Some(root) = chosen.as_ref().filter(|_| !is_there) {
            return Err(code::no_such_root(root, &roots));
        }
        contents.pickle = Some(Box::new(PickleFacts {
            form,
            protocol,
            roots,
            chosen,
            arrays,
            is_requested: root.is_some(),
            ..facts
        }));
        Ok(contents)
    }
}

/// Effects of unpickling a file of another kind.
#[derive(Default)]
pub(super) struct Unpickled {
    /// Suspicious names of code.
    pub(super) names: BTreeSet<String>,
    /// True if they would call something, and not only import modules until an error.
    pub(super) has_calls: bool,
    /// The error behind which there may be more.
    pub(super) error: Option<Error>,
}

/// Searches a file of another kind. Every file may begin like a pickle, unpicklers run what comes before an error, and
/// programs read one pickle after another.
pub(super) fn search_as_pickle(bytes: &[u8]) -> Result<Unpickled> {
    let mut facts = PickleFacts::default();
    let mut has_calls = false;
    let mut rest = bytes;
    let error = loop {
        let (values, end) = pickle::search(rest);
        facts.add_code(&values)?;
        has_calls |= values.has_calls;
        match end {
            SearchEnd::Pickle(len) if len < rest.len() => rest = &rest[len..],
            SearchEnd::Pickle(_) | SearchEnd::Failure => break None,
            SearchEnd::Unknown(error) => break Some(error),
        }
    };
    Ok(Unpickled { names: facts.suspicious, has_calls, error })
}

/// Refuses a storage with bytes that is used with two types: some versions of PyTorch take the first for all tensors.
fn check_storages(values: &PickleValues) -> Result<()> {
    let mut types: HashMap<&[u8], Option<&str>> = HashMap::new();
    for storage in values.storages.iter().filter(|storage| storage.count > 0 && !storage.is_meta) {
        let (module, class) = values.code(storage.class);
        let found = types::TorchType::of_storage(module, class).map(|class| class.name);
        let key = values.text_at(storage.key);
        if *types.entry(key).or_insert(found) != found {
            let key = shorten(&String::from_utf8_lossy(key));
            return Err(Error::new(format!("malformed checkpoint of PyTorch: its storage '{key}' has two types")));
        }
    }
    Ok(())
}

/// Returns the dict of weights if the root has exactly one under the names that training programs use.
fn unwrapped(entries: &[RootEntry]) -> Option<&RootEntry> {
    let mut candidates = entries.iter().filter(|entry| entry.is_weights());
    candidates.next().filter(|_| candidates.next().is_none())
}
