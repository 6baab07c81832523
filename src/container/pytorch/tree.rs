//! Finds the tensors in the value of a pickle, and names them by the keys that lead to them.

use super::meaning::CallMeaning;
use super::values::{Object, PickleValue, PickleValues};
use crate::error::{Error, Result};
use crate::text::shorten;
use std::ops::Range;

/// Maximum depth of nested values.
const DEEPEST: usize = 100;
/// Maximum number of values that hold others, and tensors. A value is visited as often as the pickle refers to it, which a
/// small file can do 2^40 times.
const MOST_NODES: u32 = 1_000_000;
/// Maximum number of values of any kind.
const MOST_VISITS: u32 = 100_000_000;
/// Maximum length of all keys on the way. A key is read as often as its value is visited.
const MOST_KEY_BYTES: usize = 64 << 20;

/// An entry of the dict that a file holds, if it contains tensors and is not one itself.
#[derive(Debug)]
pub(super) struct RootEntry {
    pub(super) key: String,
    /// True if it is a dict.
    pub(super) is_dict: bool,
    /// Range of its tensors in the order in which they were found.
    pub(super) tensors: Range<usize>,
}

/// Keys under which training programs store the weights, next to other contents.
const WEIGHTS: [&str; 10] =
    ["state_dict", "model", "module", "model_state_dict", "params", "params_ema", "net", "generator", "weights", "ema"];

/// True for the usual keys for weights.
pub(super) fn is_key_of_weights(key: &str) -> bool {
    WEIGHTS.contains(&key)
}

impl RootEntry {
    /// True if it is a dict under one of the usual keys for weights.
    pub(super) fn is_weights(&self) -> bool {
        self.is_dict && is_key_of_weights(&self.key)
    }
}

/// Calls `found` with the name of each tensor and its number. Returns the entries of the root that contain tensors, and the
/// names of arrays of numpy.
pub(super) fn visit(
    values: &PickleValues,
    root: PickleValue,
    found: &mut dyn FnMut(String, u32) -> Result<()>,
) -> Result<(Vec<RootEntry>, Vec<String>)> {
    let (name, arrays) = (String::new(), Vec::new());
    let mut walk = TreeWalk { values, name, unnamed: 0, nodes: 0, visits: 0, key_bytes: 0, count: 0, arrays, found };
    let mut entries = Vec::new();
    if walk.is_container(root)? {
        walk.container(root, &mut entries)?;
    }
    Ok((entries, walk.arrays))
}

struct TreeWalk<'v, 'a> {
    values: &'v PickleValues<'a>,
    /// The keys to the current value, joined by dots.
    name: String,
    /// Number of these keys that are neither texts nor integers.
    unnamed: u32,
    nodes: u32,
    visits: u32,
    key_bytes: usize,
    /// Number of tensors so far.
    count: usize,
    /// Names of arrays.
    arrays: Vec<String>,
    found: &'v mut dyn FnMut(String, u32) -> Result<()>,
}

/// A module of torch.
struct Module<'v> {
    dicts: [PickleValue; 3],
    left_out: &'v [PickleValue],
}

/// A key of a child.
enum Key {
    Value(PickleValue),
    Index(usize),
    /// A part of an object, which has no key.
    Part,
}

/// A container whose children are visited.
struct Frame {
    value: PickleValue,
    next: usize,
    /// The name and the number of keys without a name of the parent.
    name_len: usize,
    unnamed: u32,
    /// Number of tensors before.
    count: usize,
}

impl TreeWalk<'_, '_> {
    fn container(&mut self, root: PickleValue, entries: &mut Vec<RootEntry>) -> Result<()> {
        let frame = |walk: &Self, value| {
            let Self { name, unnamed, count, .. } = walk;
            Frame { value, next: 0, name_len: name.len(), unnamed: *unnamed, count: *count }
        };
        let mut frames = vec![frame(self, root)];
        while let Some(parent) = frames.last_mut() {
            let Some((key, child)) = self.child(parent.value, parent.next)? else {
                self.leave(parent.name_len, parent.unnamed);
                if self.count > parent.count && self.has_unclear_keys(parent.value) {
                    let what = "malformed pickle: a dict of tensors has keys that may be equal";
                    return Err(Error::new(what));
                }
                frames.pop();
                if frames.len() == 1 && entries.last().is_some_and(|entry| entry.tensors.start == self.count) {
                    entries.pop();
                } else if let ([_], Some(entry)) = (&frames[..], entries.last_mut()) {
                    entry.tensors.end = self.count;
                }
                continue;
            };
            parent.next += 1;
            self.visits += 1;
            if self.visits > MOST_VISITS {
                return Err(Error::new(format!("malformed pickle: it has more than {MOST_VISITS} values")));
            }
            let inner = frame(self, child);
            // A value that contains itself adds nothing to what is visited. A tensor at the root is its own child.
            let is_tensor = matches!(child, PickleValue::Tensor(_));
            if !self.is_container(child)? || !is_tensor && frames.iter().any(|outer| outer.value == child) {
                continue;
            }
            self.enter(&key)?;
            if let PickleValue::Tensor(number) = child {
                self.add(number)?;
                self.leave(inner.name_len, inner.unnamed);
                continue;
            }
            if frames.len() > DEEPEST {
                return Err(Error::new(format!("malformed pickle: it is nested more than {DEEPEST} levels deep")));
            }
            if frames.len() == 1 && matches!(root, PickleValue::Dict(_)) {
                let is_dict = matches!(child, PickleValue::Dict(_)) || self.module(child).is_some();
                let key = self.name.clone();
                entries.push(RootEntry { key, is_dict, tensors: self.count..self.count });
            }
            frames.push(inner);
        }
        Ok(())
    }

    /// True if a dict has keys that may be equal to others: texts with escapes, objects, and fractions beside integers.
    fn has_unclear_keys(&self, value: PickleValue) -> bool {
        let dicts = self.module(value).map_or([value; 3], |module| module.dicts);
        dicts.iter().any(|dict| match dict {
            PickleValue::Dict(at) => {
                let has = |is: fn(&PickleValue) -> bool| {
                    self.values.dicts[*at as usize].entries.iter().any(|(key, _)| is(key))
                };
                let is_number = |key: &PickleValue| {
                    matches!(key, PickleValue::Bool(_) | PickleValue::Int(_) | PickleValue::Long(_))
                };
                has(|key| matches!(key, PickleValue::Escaped | PickleValue::Object(_)))
                    || has(|key| *key == PickleValue::Other) && has(is_number)
            }
            _ => false,
        })
    }

    /// True for values that contain others, and for tensors. Counts them.
    fn is_container(&mut self, value: PickleValue) -> Result<bool> {
        let is_one = matches!(
            value,
            PickleValue::Tuple(_)
                | PickleValue::List(_)
                | PickleValue::Dict(_)
                | PickleValue::Object(_)
                | PickleValue::Tensor(_)
        );
        self.nodes += u32::from(is_one);
        if self.nodes > MOST_NODES {
            return Err(Error::new(format!("malformed pickle: it has more than {MOST_NODES} nodes")));
        }
        Ok(is_one)
    }

    /// Returns a child of a container.
    fn child(&self, value: PickleValue, at: usize) -> Result<Option<(Key, PickleValue)>> {
        let values = self.values;
        Ok(match value {
            PickleValue::Tuple(_) | PickleValue::List(_) => {
                values.sequence(value).and_then(|all| all.get(at)).map(|child| (Key::Index(at), *child))
            }
            PickleValue::Dict(dict) => {
                values.dicts[dict as usize].entries.get(at).map(|(key, value)| (Key::Value(*key), *value))
            }
            PickleValue::Object(object) => {
                if let Some(module) = self.module(value) {
                    return self.child_of_module(&module, at);
                }
                let Object { arguments, entries, elements, state, .. } = values.objects[object as usize];
                [arguments, entries, elements, state].get(at).map(|part| (Key::Part, *part))
            }
            // The only child of the root, if that is a tensor.
            PickleValue::Tensor(_) => (at == 0).then_some((Key::Part, value)),
            _ => None,
        })
    }

    /// Adds a key to the name.
    fn enter(&mut self, key: &Key) -> Result<()> {
        let text = match *key {
            Key::Part => return Ok(()),
            Key::Index(at) => at.to_string(),
            Key::Value(PickleValue::None) => "None".to_owned(),
            Key::Value(PickleValue::Bool(is_true)) => if is_true { "True" } else { "False" }.to_owned(),
            Key::Value(key) => {
                let text = self.values.text(key);
                self.count_key(text.map_or(0, <[u8]>::len))?;
                let text = text.and_then(|text| std::str::from_utf8(text).ok()).map(str::to_owned);
                text.or_else(|| self.values.integer(key).map(|number| number.to_string())).unwrap_or_else(|| {
                    self.unnamed += 1;
                    "?".to_owned()
                })
            }
        };
        if !self.name.is_empty() {
            self.name.push('.');
        }
        self.name.push_str(&text);
        Ok(())
    }

    /// Counts the bytes of keys.
    fn count_key(&mut self, bytes: usize) -> Result<()> {
        self.key_bytes += bytes;
        if self.key_bytes > MOST_KEY_BYTES {
            return Err(Error::new(format!("malformed pickle: its keys have more than {MOST_KEY_BYTES} bytes")));
        }
        Ok(())
    }

    /// Returns the parameters, buffers and modules of a module, and the names of the buffers that its `state_dict()` lacks;
    /// `None` if a value is not a module.
    fn module(&self, value: PickleValue) -> Option<Module<'_>> {
        /// Maximum number of attributes, and of such buffers: they are read again for each child.
        const MOST: usize = 1000;
        let PickleValue::Object(object) = value else { return None };
        let PickleValue::Dict(state) = self.values.objects[object as usize].state else { return None };
        let entries = &self.values.dicts[state as usize].entries;
        let of = |name: &str| {
            let mut entries = entries.iter().filter(|(key, _)| self.values.text(*key) == Some(name.as_bytes()));
            entries.next_back().map(|(_, value)| *value)
        };
        if entries.len() > MOST {
            return None;
        }
        let dicts = [of("_parameters")?, of("_buffers")?, of("_modules")?];
        let left_out = of("_non_persistent_buffers_set").and_then(|set| {
            let PickleValue::Object(set) = set else { return None };
            let Object { arguments, elements, .. } = &self.values.objects[set as usize];
            let listed =
                self.values.sequence(*arguments).and_then(|arguments| self.values.sequence(*arguments.first()?));
            let left_out = listed.or_else(|| self.values.sequence(*elements))?;
            (left_out.len() <= MOST).then_some(left_out)
        });
        Some(Module { dicts, left_out: left_out.unwrap_or_default() })
    }

    /// Returns a child of a module: its parameters, buffers and modules have their own names, as in its `state_dict()`.
    fn child_of_module(&self, module: &Module, at: usize) -> Result<Option<(Key, PickleValue)>> {
        let mut at = at;
        for (kind, dict) in module.dicts.iter().enumerate() {
            let PickleValue::Dict(number) = *dict else { continue };
            let len = self.values.dicts[number as usize].entries.len();
            if at >= len {
                at -= len;
                continue;
            }
            let child = self.child(*dict, at)?;
            let is_left_out = |key: &Key| match key {
                Key::Value(key) if kind == 1 => {
                    let name = self.values.text(*key);
                    module.left_out.iter().any(|left_out| self.values.text(*left_out) == name)
                }
                _ => false,
            };
            return Ok(
                child.map(|(key, value)| if is_left_out(&key) { (key, PickleValue::None) } else { (key, value) })
            );
        }
        Ok(None)
    }

    /// Removes the last key from the name.
    fn leave(&mut self, name_len: usize, unnamed: u32) {
        self.name.truncate(name_len);
        self.unnamed = unnamed;
    }

    fn add(&mut self, tensor: u32) -> Result<()> {
        if self.values.tensors[tensor as usize].meaning == CallMeaning::Array {
            self.arrays.push(if self.name.is_empty() { "array".to_owned() } else { self.name.clone() });
            return self.count_key(self.name.len());
        }
        self.count += 1;
        let name = if self.name.is_empty() { "tensor".to_owned() } else { self.name.clone() };
        if self.unnamed > 0 {
            let what = format!("the key of the tensor '{}' is neither text nor a number", shorten(&name));
            return Err(Error::new(what));
        }
        (self.found)(name, tensor)
    }
}
