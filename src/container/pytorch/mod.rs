//! `.pt`, `.pth`, `.bin` and `.ckpt`: checkpoints of `torch.save`, a pickle and the bytes of storages.
//!
//! Loading such a file with Python can run any code. Here the pickle is data: a machine builds its values and calls
//! nothing ([`pickle`]), tensors are found and named by their keys ([`tree`]), and each is a view of a storage ([`view`]),
//! which is mapped where it lies. Files are zip archives, or in the older form pickles followed by the storages. Both are
//! only read.

mod code;
mod meaning;
mod pickle;
mod tree;
mod types;
mod values;
mod view;

use super::names::NameHashes;
use super::zip::{is_zip, member_names, members};
use super::{
    Container, Contents, FileLayout, FormatInfo, NewMetadata, NewTensors, ReadOptions, ShardNames, Tensor, WrittenFiles,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::shorten;
pub(crate) use code::{PickleFacts, RootInfo};
use pickle::Pickle;
use std::collections::HashMap;
use tree::RootEntry;
use values::PickleValue;
use view::StorageTable;

/// The formats of PyTorch.
pub(super) struct PyTorch;

/// The pickle in an archive, after the name of the archive's folder.
const PICKLE: &str = "data.pkl";
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

fn is_pickle(name: &[u8]) -> bool {
    name.strip_suffix(PICKLE.as_bytes()).is_some_and(|folder| folder.is_empty() || folder.ends_with(b"/"))
}

/// True if only archives of PyTorch have a member of this name.
fn is_mark(name: &[u8]) -> bool {
    is_pickle(name) || name.ends_with(b"/.data/serialization_id")
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
}

impl<'a> TorchFile<'a> {
    fn in_archive(file: &'a [u8]) -> Result<Self> {
        let members = members(file)?;
        let mut pickles = members.iter().filter(|member| is_pickle(member.name.as_bytes()));
        let found = match (pickles.next(), pickles.next()) {
            (Some(found), None) => found,
            (None, _) => return Err(Error::new(format!("is a checkpoint of PyTorch without its {PICKLE}"))),
            _ => return Err(Error::new(format!("malformed checkpoint of PyTorch: it has several {PICKLE}"))),
        };
        let folder = found.name.strip_suffix(PICKLE).unwrap_or_default();
        let inside = |name: &str| format!("{folder}{name}");
        let code = inside("code/");
        if members.iter().any(|member| member.name == inside("constants.pkl") || member.name.starts_with(&code)) {
            let error = Error::new("is a TorchScript archive, a program with its weights, which tcast does not read");
            return Err(error.remedy("save the weights alone, with torch.save(model.state_dict(), ...)"));
        }
        let stored = |member: &super::zip::ZipMember| {
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
        let data = inside("data/");
        let mut order = None;
        for member in &members {
            if member.name.starts_with(&data) {
                let range = stored(member)?;
                let key = member.name.as_bytes()[data.len()..].into();
                if storages.ranges.insert(key, range).is_some() {
                    return Err(Error::new(format!("two members are named '{}'", shorten(&member.name))));
                }
            } else if member.name == inside("byteorder") {
                order = Some(stored(member)?);
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
        Ok(Self { form: "zip", pickle, facts, storages })
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
        Ok(Self { form: "legacy", pickle, facts, storages })
    }

    /// Finds the tensors: all of them, or those under a root.
    fn contents(self, root: Option<&str>) -> Result<Contents> {
        let Self { form, pickle: Pickle { values, root: object, protocol, len }, facts, storages } = self;
        // Formats with metadata give their mark to the output.
        let mut contents = Contents { metadata: Some(Vec::new()), ..Contents::default() };
        let mut names = NameHashes::default();
        // The tensors in the order in which they were found, or why one cannot be read.
        let mut found = Vec::new();
        let mut memory = LEAST_MEMORY + MEMORY_PER_BYTE * len;
        let entries = tree::visit(&values, object, &mut |name, tensor| {
            names.add(&name);
            let call = &values.tensors[tensor as usize];
            let needed = view::memory(&values, call) + name.len();
            let left = memory.checked_sub(needed).ok_or_else(|| {
                Error::new("malformed pickle: it refers to its tensors more often than any checkpoint does")
            });
            memory = left?;
            found.push(match view::tensor(name.clone(), &values, call, &storages) {
                Ok(tensor) => Ok(tensor),
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
        let roots: Vec<RootInfo> = entries.iter().map(|entry| RootInfo::of(entry, &found)).collect();
        let chosen = match root {
            None => unwrapped(&entries).map(|entry| entry.key.clone()),
            Some(ALL) => None,
            Some(root) => Some(root.to_owned()),
        };
        let mut is_there = chosen.is_none();
        for found in found {
            let name = name_of(&found);
            let inner = match &chosen {
                None => Some(&*name),
                Some(root) if name == *root => name.rsplit('.').next(),
                Some(root) => name.strip_prefix(&**root).and_then(|rest| rest.strip_prefix('.')),
            };
            let Some(inner) = inner else { continue };
            is_there = true;
            match found {
                Ok(tensor) => contents.tensors.push(Tensor { name: inner.into(), ..tensor }),
                Err(error) => contents.unreadable.push(error.in_tensor(inner)),
            }
        }
        if let Some(root) = chosen.as_ref().filter(|_| !is_there) {
            return Err(code::no_such_root(root, &roots));
        }
        contents.pickle =
            Some(Box::new(PickleFacts { form, protocol, roots, chosen, is_requested: root.is_some(), ..facts }));
        Ok(contents)
    }
}

/// Returns the dict of weights if the root has exactly one under the names that training programs use.
fn unwrapped(entries: &[RootEntry]) -> Option<&RootEntry> {
    let mut candidates = entries.iter().filter(|entry| entry.is_weights());
    candidates.next().filter(|_| candidates.next().is_none())
}
