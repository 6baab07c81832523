//! The values of a pickle, as data: a class or function is a name, and an object is its class, arguments and state.
//!
//! Values refer to each other by their numbers in tables, so that deep structures are neither built nor dropped by
//! recursion, and a checkpoint of 100,000 tensors takes few MiB.

use super::harmless::{CodeUse, harmless_use};
use super::meaning::CallMeaning;
use super::types::TorchType;
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::ops::Range;

/// Maximum memory for values: so much for any pickle, and so many times its length. A tensor of 150 bytes takes about 400.
const LEAST_MEMORY: usize = 32 << 20;
const MEMORY_PER_BYTE: usize = 6;
/// Maximum number of bytes that an allocation takes besides its contents.
const ALLOCATION: usize = 16;
/// Maximum length of the full name of a class or function. A pickle can repeat a long one in a few bytes.
const LONGEST_NAME: usize = 1000;
/// Maximum length of the key of a storage. PyTorch numbers them.
const LONGEST_KEY: usize = 255;

/// A value of a pickle. Numbers are places in the tables of [`PickleValues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PickleValue {
    None,
    Bool(bool),
    Int(i32),
    /// An integer of more than 32 bits.
    Long(u32),
    Text(u32),
    /// A text with escapes or in Latin-1, which is not decoded.
    Escaped,
    Tuple(u32),
    List(u32),
    Dict(u32),
    /// The name of a class or function.
    Name(u32),
    Storage(u32),
    Tensor(u32),
    /// An object of a class without a meaning here.
    Object(u32),
    /// A value that never matters: a float, bytes, an integer of more than 64 bits.
    Other,
}

/// A part of the pickle.
pub(super) type PickleRange = Range<u32>;

/// A dict.
#[derive(Debug)]
pub(super) struct Dict {
    pub(super) entries: Vec<(PickleValue, PickleValue)>,
}

/// A class or function that the pickle names.
#[derive(Debug)]
pub(super) struct CodeName {
    module: PickleRange,
    name: PickleRange,
    pub(super) meaning: CallMeaning,
    /// Its use that does no harm.
    pub(super) harmless: Option<CodeUse>,
    /// True if the pickle uses it in another way.
    pub(super) is_misused: bool,
}

/// The arguments of a storage: a persistent identifier of `torch.save`.
#[derive(Debug)]
pub(super) struct StorageUse {
    /// The name of its class, which is the type of its elements.
    pub(super) class: u32,
    pub(super) key: u32,
    /// True if it is on the device `meta`, which has no bytes.
    pub(super) is_meta: bool,
    /// Number of elements.
    pub(super) count: u64,
}

/// A call that rebuilds a tensor.
#[derive(Debug)]
pub(super) struct TensorCall {
    /// The name of the function, or of the class of a tensor that is not plain.
    pub(super) name: u32,
    pub(super) meaning: CallMeaning,
    pub(super) arguments: PickleValue,
    /// True for an array with its state.
    pub(super) is_built: bool,
    /// True for conjugated and for negated elements, compared with the stored ones; `None` if the pickle leaves that open.
    pub(super) flags: Option<[bool; 2]>,
}

/// An object of any class.
#[derive(Debug)]
pub(super) struct Object {
    /// The name of its class, or of the function that made it; `None` for sets.
    pub(super) class: Option<u32>,
    pub(super) arguments: PickleValue,
    pub(super) state: PickleValue,
    /// A dict of its entries, and a list of its elements, if it has some.
    pub(super) entries: PickleValue,
    pub(super) elements: PickleValue,
}

/// The tables of all values.
#[derive(Debug, Default)]
pub(super) struct PickleValues<'a> {
    bytes: &'a [u8],
    longs: Vec<i64>,
    texts: Vec<PickleRange>,
    tuples: Vec<PickleRange>,
    /// The elements of all tuples.
    elements: Vec<PickleValue>,
    lists: Vec<Vec<PickleValue>>,
    pub(super) dicts: Vec<Dict>,
    pub(super) names: Vec<CodeName>,
    pub(super) storages: Vec<StorageUse>,
    pub(super) tensors: Vec<TensorCall>,
    pub(super) objects: Vec<Object>,
    /// The memory that values may still take, in bytes.
    left: usize,
    /// True if the pickle calls anything.
    pub(super) has_calls: bool,
    /// Number of values that were visited to check how names are used.
    pub(super) checks: u32,
}

/// Appends to a table. Returns the place.
fn push<T>(table: &mut Vec<T>, value: T) -> u32 {
    table.push(value);
    table.len() as u32 - 1 // a pickle has fewer than 2^32 bytes, and each adds less than one entry, or is limited by memory
}

/// Returns the bytes by which the capacity of a table grew, beyond the elements that were added.
fn grown<T>(before: usize, table: &Vec<T>, added: usize) -> usize {
    let bytes = (table.capacity() - before).saturating_sub(added) * size_of::<T>();
    bytes + if before == 0 { ALLOCATION } else { 0 }
}

impl<'a> PickleValues<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, left: LEAST_MEMORY + MEMORY_PER_BYTE * bytes.len(), ..Self::default() }
    }

    /// Counts the memory of values that are made, even if they are dropped later. Refuses too much.
    pub(super) fn count<T>(&mut self, made: usize) -> Result<()> {
        self.count_bytes(made.saturating_mul(size_of::<T>()))
    }

    fn count_bytes(&mut self, bytes: usize) -> Result<()> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| {
            Error::new("malformed pickle: its values take more memory than those of any checkpoint of its length")
        })?;
        Ok(())
    }

    /// Appends elements to a list.
    pub(super) fn extend_list(&mut self, list: u32, values: &[PickleValue]) -> Result<()> {
        self.count::<PickleValue>(values.len())?;
        let list = &mut self.lists[list as usize];
        let before = list.capacity();
        list.extend_from_slice(values);
        let grown = grown(before, list, values.len());
        self.count_bytes(grown)
    }

    /// Adds entries to a dict.
    pub(super) fn extend_dict(&mut self, dict: u32, values: Vec<(PickleValue, PickleValue)>) -> Result<()> {
        let added = values.len();
        self.count::<(PickleValue, PickleValue)>(added)?;
        let entries = &mut self.dicts[dict as usize].entries;
        let before = entries.capacity();
        entries.extend(values);
        let grown = grown(before, entries, added);
        self.count_bytes(grown)
    }

    pub(super) fn add_long(&mut self, number: i64) -> Result<PickleValue> {
        if let Ok(number) = i32::try_from(number) {
            return Ok(PickleValue::Int(number));
        }
        self.count::<i64>(1)?;
        Ok(PickleValue::Long(push(&mut self.longs, number)))
    }

    pub(super) fn add_text(&mut self, text: PickleRange) -> Result<PickleValue> {
        self.count::<PickleRange>(1)?;
        Ok(PickleValue::Text(push(&mut self.texts, text)))
    }

    pub(super) fn add_tuple(&mut self, values: &[PickleValue]) -> Result<PickleValue> {
        self.count::<PickleValue>(1 + values.len())?;
        let start = self.elements.len() as u32;
        self.elements.extend_from_slice(values);
        Ok(PickleValue::Tuple(push(&mut self.tuples, start..self.elements.len() as u32)))
    }

    pub(super) fn add_list(&mut self, values: Vec<PickleValue>) -> Result<PickleValue> {
        self.count::<Vec<PickleValue>>(1)?;
        self.count::<PickleValue>(values.capacity())?;
        Ok(PickleValue::List(push(&mut self.lists, values)))
    }

    pub(super) fn add_dict(&mut self, entries: Vec<(PickleValue, PickleValue)>) -> Result<PickleValue> {
        self.count::<Dict>(1)?;
        self.count::<(PickleValue, PickleValue)>(entries.capacity())?;
        Ok(PickleValue::Dict(push(&mut self.dicts, Dict { entries })))
    }

    pub(super) fn add_name(&mut self, module: PickleRange, name: PickleRange) -> Result<PickleValue> {
        self.count::<CodeName>(1)?;
        if module.len() + name.len() > LONGEST_NAME {
            return Err(Error::new(format!("the name of a class has more than {LONGEST_NAME} bytes")));
        }
        let meaning = CallMeaning::of(self.at(&module), self.at(&name));
        let harmless = harmless_use(self.at(&module), self.at(&name));
        let code = CodeName { module, name, meaning, harmless, is_misused: false };
        Ok(PickleValue::Name(push(&mut self.names, code)))
    }

    pub(super) fn add_storage(&mut self, storage: StorageUse) -> Result<PickleValue> {
        self.count::<StorageUse>(1)?;
        if self.text_at(storage.key).len() > LONGEST_KEY {
            return Err(Error::new(format!("the key of a storage has more than {LONGEST_KEY} bytes")));
        }
        Ok(PickleValue::Storage(push(&mut self.storages, storage)))
    }

    pub(super) fn add_tensor(&mut self, tensor: TensorCall) -> Result<PickleValue> {
        self.count::<TensorCall>(1)?;
        Ok(PickleValue::Tensor(push(&mut self.tensors, tensor)))
    }

    pub(super) fn add_object(&mut self, class: Option<u32>, arguments: PickleValue) -> Result<PickleValue> {
        self.count::<Object>(1)?;
        let [state, entries, elements] = [PickleValue::None; 3];
        let object = Object { class, arguments, state, entries, elements };
        Ok(PickleValue::Object(push(&mut self.objects, object)))
    }

    fn at(&self, extent: &PickleRange) -> &'a [u8] {
        &self.bytes[extent.start as usize..extent.end as usize]
    }

    /// Returns a text, which need not be UTF-8; `None` for other values.
    pub(super) fn text(&self, value: PickleValue) -> Option<&'a [u8]> {
        if let PickleValue::Text(at) = value { Some(self.text_at(at)) } else { None }
    }

    pub(super) fn text_at(&self, at: u32) -> &'a [u8] {
        self.at(&self.texts[at as usize])
    }

    /// Returns the place of a text in the pickle.
    pub(super) fn extent(&self, value: PickleValue) -> Option<PickleRange> {
        if let PickleValue::Text(at) = value { Some(self.texts[at as usize].clone()) } else { None }
    }

    pub(super) fn integer(&self, value: PickleValue) -> Option<i64> {
        match value {
            PickleValue::Int(number) => Some(number.into()),
            PickleValue::Long(at) => Some(self.longs[at as usize]),
            _ => None,
        }
    }

    /// Returns the elements of a tuple or list.
    pub(super) fn sequence(&self, value: PickleValue) -> Option<&[PickleValue]> {
        match value {
            PickleValue::Tuple(at) => {
                let Range { start, end } = self.tuples[at as usize];
                Some(&self.elements[start as usize..end as usize])
            }
            PickleValue::List(at) => Some(&self.lists[at as usize]),
            _ => None,
        }
    }

    /// True if the attributes that a tensor gets leave its elements as they are.
    pub(super) fn keeps_elements(&self, state: PickleValue) -> bool {
        let keeps = |state: &PickleValue| match *state {
            PickleValue::None => true,
            PickleValue::Dict(at) => self.dicts[at as usize].entries.iter().all(|(key, _)| {
                let key = self.text(*key);
                key.is_some_and(|key| ![&b"data"[..], b"real", b"imag"].contains(&key) && !key.starts_with(b"__"))
            }),
            _ => false,
        };
        match state {
            PickleValue::Tuple(_) => {
                self.sequence(state).is_some_and(|parts| parts.len() == 2 && parts.iter().all(keeps))
            }
            state => keeps(&state),
        }
    }

    /// True if a tensor has the type of this name.
    pub(super) fn has_type(&self, tensor: PickleValue, name: PickleValue) -> bool {
        let (PickleValue::Tensor(tensor), PickleValue::Name(name)) = (tensor, name) else { return false };
        let TensorCall { meaning, arguments, .. } = self.tensors[tensor as usize];
        let own = match (meaning, self.sequence(arguments)) {
            (CallMeaning::Tensor, Some([PickleValue::Storage(storage), ..])) => {
                let (module, class) = self.code(self.storages[*storage as usize].class);
                TorchType::of_storage(module, class)
            }
            (CallMeaning::TypedTensor, Some([_, _, _, _, _, _, PickleValue::Name(own), ..])) => {
                let (module, own) = self.code(*own);
                TorchType::named(module, own)
            }
            _ => None,
        };
        let (module, name) = self.code(name);
        let named = TorchType::named(module, name);
        own.is_some() && own.map(|own| own.name) == named.map(|named| named.name)
    }

    /// Returns the flags in the metadata of a tensor. PyTorch looks which keys are there, and not at their values.
    pub(super) fn flags(&self, metadata: Option<PickleValue>) -> Option<[bool; 2]> {
        /// Maximum number of entries. PyTorch writes two.
        const MOST_FLAGS: usize = 16;
        let flags = match metadata {
            None | Some(PickleValue::None) => &[],
            Some(PickleValue::Dict(dict)) => &self.dicts[dict as usize].entries[..],
            Some(_) => return None,
        };
        let is_clear = flags.len() <= MOST_FLAGS && flags.iter().all(|(key, _)| self.text(*key).is_some());
        let has = |flag: &[u8]| flags.iter().any(|(key, _)| self.text(*key) == Some(flag));
        is_clear.then(|| [has(b"conj"), has(b"neg")])
    }

    /// Refuses a dict in which an entry replaces another.
    pub(super) fn check_keys(&self) -> Result<()> {
        for Dict { entries } in &self.dicts {
            let mut keys = HashSet::with_capacity(entries.len());
            for (key, _) in entries {
                let number = match *key {
                    PickleValue::Bool(is_true) => Some(is_true.into()),
                    key => self.integer(key),
                };
                let is_known = number.is_some() || *key == PickleValue::None;
                if (is_known || self.text(*key).is_some()) && !keys.insert((self.text(*key), number)) {
                    return Err(Error::new("malformed pickle: a dict has a key twice"));
                }
            }
        }
        Ok(())
    }

    /// Returns the module and the name of a class or function.
    pub(super) fn code(&self, at: u32) -> (&'a [u8], &'a [u8]) {
        let CodeName { module, name, .. } = &self.names[at as usize];
        (self.at(module), self.at(name))
    }

    /// Returns the place of the module of a class or function in the pickle.
    pub(super) fn module_of(&self, at: u32) -> PickleRange {
        self.names[at as usize].module.clone()
    }

    /// Returns the full name of a class or function for messages.
    pub(super) fn full_name(&self, at: u32) -> String {
        let (module, name) = self.code(at);
        format!("{}.{}", String::from_utf8_lossy(module), String::from_utf8_lossy(name))
    }
}
