//! Checks how a pickle uses the classes and functions that it names: a name on the list of harmless ones still does harm in
//! other uses. Python looks up attributes, keys and elements of what it calls, hashes and builds, so what these hold counts.

use super::harmless::{CodeUse, Holds};
use super::meaning::CallMeaning;
use super::values::{PickleValue, PickleValues, TensorCall};
use crate::error::{Error, Result};
use std::collections::HashSet;

/// Maximum number of values that are visited for all checks of a pickle.
const MOST_CHECKS: u32 = 50_000_000;

impl PickleValues<'_> {
    /// Marks a class or function as one that may do harm.
    fn misuse(&mut self, name: Option<u32>) {
        if let Some(name) = name {
            self.names[name as usize].is_misused = true;
        }
    }

    /// Checks a call, or a creation by `__new__`.
    pub(super) fn check_call(&mut self, name: u32, arguments: PickleValue, is_new: bool) -> Result<()> {
        let has_arguments = self.sequence(arguments).is_none_or(|arguments| !arguments.is_empty());
        let is_harmless = match self.names[name as usize].harmless {
            // A name that is not on the list may do harm itself.
            Some(CodeUse::Value | CodeUse::Attribute) | None => false,
            Some(CodeUse::Call) => match self.class_of_distributed(name, arguments) {
                Some(class) => self.holds_only(arguments, Holds::Family, Some(class))?,
                None => self.is_data(arguments)? && self.are_arguments(name, arguments),
            },
            Some(CodeUse::Instance(_) | CodeUse::Filled) => is_new && !has_arguments,
        };
        if !is_harmless {
            self.misuse(Some(name));
        }
        Ok(())
    }

    /// True if the arguments of some functions are what numpy and Python write: other types of arrays lead to any memory.
    fn are_arguments(&self, name: u32, arguments: PickleValue) -> bool {
        let arguments = self.sequence(arguments).unwrap_or_default();
        match (self.names[name as usize].meaning, self.code(name).1, arguments) {
            (CallMeaning::ArrayType, _, &[code, is_aligned, is_copy]) => {
                let is_bool = |value, expected: bool| {
                    value == PickleValue::Bool(expected) || value == PickleValue::Int(expected.into())
                };
                self.array_type(code).is_some() && is_bool(is_aligned, false) && is_bool(is_copy, true)
            }
            (_, b"_reconstruct", &[PickleValue::Name(class), shape, _]) => {
                self.code(class) == (b"numpy", b"ndarray") && self.sequence(shape) == Some(&[PickleValue::Int(0)])
            }
            (_, b"encode", &[_, code]) => matches!(self.text(code), Some(b"latin1" | b"latin-1")),
            (CallMeaning::ArrayType, ..) | (_, b"_reconstruct" | b"encode", _) => false,
            _ => true,
        }
    }

    /// Returns the class of a tensor of several processes that a call rebuilds with its parts, which are objects.
    fn class_of_distributed(&self, name: u32, arguments: PickleValue) -> Option<u32> {
        let is_rebuilding = self.code(name) == (b"torch._tensor", b"_rebuild_from_type_v2");
        match self.sequence(arguments).filter(|_| is_rebuilding)? {
            &[PickleValue::Name(function), PickleValue::Name(class), ..] => {
                let is_wrapper = self.code(function) == (b"torch._utils", b"_rebuild_wrapper_subclass");
                (is_wrapper && self.is_distributed(class)).then_some(class)
            }
            _ => None,
        }
    }

    /// True for a harmless class of torch.distributed.
    fn is_distributed(&self, class: u32) -> bool {
        self.names[class as usize].harmless.is_some() && self.code(class).0.starts_with(b"torch.distributed.")
    }

    /// Returns the class that a call of `getattr` names, if it is the one that torch writes: `ProcessGroupState` of
    /// `ShardedTensor`.
    pub(super) fn class_by_attribute(&mut self, name: u32, arguments: PickleValue) -> Result<Option<PickleValue>> {
        let is_getattr = matches!(self.code(name), (b"builtins" | b"__builtin__", b"getattr"));
        let Some(&[PickleValue::Name(class), attribute]) = self.sequence(arguments).filter(|_| is_getattr) else {
            return Ok(None);
        };
        let is_class = self.code(class) == (b"torch.distributed._shard.sharded_tensor.api", b"ShardedTensor");
        let extent = self.extent(attribute).filter(|_| self.text(attribute) == Some(b"ProcessGroupState"));
        let Some(extent) = extent.filter(|_| is_class) else { return Ok(None) };
        self.names[name as usize].harmless = Some(CodeUse::Attribute);
        self.add_name(self.module_of(class), extent).map(Some)
    }

    /// Returns the letter and the width of the code of an array's type.
    fn array_type(&self, code: PickleValue) -> Option<(u8, i64)> {
        let (letter, width) = self.text(code)?.split_first()?;
        let is_plain = b"biufcmMSUVO".contains(letter) && width.iter().all(u8::is_ascii_digit);
        is_plain.then_some((*letter, std::str::from_utf8(width).ok()?.parse().ok()?))
    }

    /// Returns the object that `copyreg._reconstructor` makes, if it makes one like `__new__` without arguments.
    pub(super) fn reconstructed(&self, name: u32, arguments: PickleValue) -> Option<u32> {
        let is_it = matches!(self.code(name), (b"copyreg" | b"copy_reg", b"_reconstructor"));
        match self.sequence(arguments) {
            Some(&[PickleValue::Name(class), PickleValue::Name(base), PickleValue::None]) if is_it => {
                matches!(self.code(base), (b"builtins" | b"__builtin__", b"object")).then_some(class)
            }
            _ => None,
        }
    }

    /// Returns the class of an object that is called, if it may do harm anyway. No other object is called in a checkpoint.
    pub(super) fn class_of_called(&self, function: PickleValue) -> Result<u32> {
        let class = self.class_in_object(function).filter(|class| self.names[*class as usize].harmless.is_none());
        class.ok_or_else(|| Error::new("it calls a value that is neither a class nor a function"))
    }

    /// Checks keys of dicts and elements of sets, which Python hashes and compares.
    pub(super) fn check_hashed(&mut self, values: impl Iterator<Item = PickleValue>) -> Result<()> {
        for value in values {
            if !self.is_data(value)? && !self.is_place_of_chunk(value) {
                self.misuse(self.class_in(value));
            }
        }
        Ok(())
    }

    /// True for a key of the chunks of torch.distributed.checkpoint. Python hashes its attributes, which are data.
    fn is_place_of_chunk(&self, value: PickleValue) -> bool {
        let class = self.class_in_object(value).map(|class| self.code(class));
        class == Some((b"torch.distributed.checkpoint.metadata", b"MetadataIndex"))
    }

    /// Returns the class of an instance, or of one in a tuple.
    fn class_in(&self, value: PickleValue) -> Option<u32> {
        match value {
            PickleValue::Object(at) => self.objects[at as usize].class,
            value => self.sequence(value)?.iter().find_map(|value| self.class_in_object(*value)),
        }
    }

    fn class_in_object(&self, value: PickleValue) -> Option<u32> {
        if let PickleValue::Object(at) = value { self.objects[at as usize].class } else { None }
    }

    /// Refuses entries and elements of an object that does not take them as a dict or list does.
    pub(super) fn check_filled(&self, object: u32) -> Result<()> {
        let harmless = self.objects[object as usize].class.and_then(|class| self.names[class as usize].harmless);
        match harmless {
            Some(CodeUse::Instance(_) | CodeUse::Value) => Err(Error::new("it sets entries of an instance")),
            _ => Ok(()),
        }
    }

    /// Checks the state that an object gets.
    pub(super) fn check_state(&mut self, object: u32, state: PickleValue) -> Result<()> {
        let object = &self.objects[object as usize];
        let Some(class) = object.class else {
            return Err(Error::new("it sets attributes of a value that has none"));
        };
        let (is_first, arguments) = (object.state == PickleValue::None, object.arguments);
        let name = &self.names[class as usize];
        let is_harmless = is_first
            && match (name.harmless, name.meaning) {
                (Some(CodeUse::Instance(holds)), _) => self.are_attributes(class, state, holds)?,
                (_, CallMeaning::ArrayType) => self.is_type_state(arguments, state) && self.is_data(state)?,
                (harmless, _) => harmless.is_none(),
            };
        if !is_harmless {
            self.misuse(Some(class));
        }
        Ok(())
    }

    /// True for a dict of attributes that an instance may hold.
    fn are_attributes(&mut self, class: u32, state: PickleValue, holds: Holds) -> Result<bool> {
        let dict = match state {
            PickleValue::Dict(dict) => dict,
            // With slots, or with a method of its own that takes a tuple.
            PickleValue::Tuple(_) if self.is_distributed(class) => {
                return self.holds_only(state, holds, Some(class));
            }
            _ => return Ok(false),
        };
        let entries = &self.dicts[dict as usize].entries;
        // OmegaConf reads attributes of the metadata of its containers.
        let is_known = |(key, value): &(PickleValue, PickleValue)| match self.text(*key) {
            Some(b"_metadata") => self.class_in_object(*value).is_none_or(|class| {
                let harmless = self.names[class as usize].harmless;
                matches!(harmless, Some(CodeUse::Instance(Holds::Data)))
            }),
            text => text.is_some(),
        };
        Ok((holds == Holds::Anything || entries.iter().all(is_known)) && self.holds_only(state, holds, Some(class))?)
    }

    /// True if the state of a type of arrays belongs to its code, and has no fields: numpy believes the sizes and flags in it.
    fn is_type_state(&self, arguments: PickleValue, state: PickleValue) -> bool {
        let code = self.sequence(arguments).and_then(|arguments| self.array_type(*arguments.first()?));
        let (Some((letter, width)), Some(state)) = (code, self.sequence(state)) else { return false };
        let &[
            _,
            order,
            PickleValue::None,
            PickleValue::None,
            PickleValue::None,
            size,
            alignment,
            flags,
            ref units @ ..,
        ] = state
        else {
            return false;
        };
        let numbers = [size, alignment, flags].map(|number| self.integer(number));
        let [Some(size), Some(alignment), Some(flags)] = numbers else { return false };
        let expected = match letter {
            b'S' | b'V' => width,
            b'U' => 4 * width,
            _ => -1,
        };
        let has_objects = flags & 7 != 0;
        let is_kind = if letter == b'O' { flags == 63 } else { !has_objects && (0..128).contains(&flags) };
        let has_units = !units.is_empty();
        self.text(order).is_some()
            && size == expected
            && matches!(alignment, -1 | 1..=64)
            && is_kind
            && (!has_units || b"mM".contains(&letter))
    }

    /// Checks the state that a tensor or array gets: that of an array of a known type. Any other changes what was read.
    pub(super) fn check_array_state(&mut self, tensor: u32, state: PickleValue) -> Result<()> {
        let TensorCall { name, meaning, is_built, .. } = self.tensors[tensor as usize];
        if meaning == CallMeaning::NotPlain {
            return Ok(());
        }
        if meaning != CallMeaning::Array {
            return Err(Error::new("it sets the state of a tensor"));
        }
        let is_type = |value: PickleValue| match value {
            PickleValue::Object(at) => {
                let object = &self.objects[at as usize];
                let is_it = |class: u32| self.names[class as usize].meaning == CallMeaning::ArrayType;
                object.class.is_some_and(is_it) && object.state != PickleValue::None
            }
            _ => false,
        };
        let is_known = match self.sequence(state) {
            Some(&[_, shape, class, _, data]) => {
                let lengths = self.sequence(shape);
                let is_data = match data {
                    PickleValue::Object(at) => self.objects[at as usize]
                        .class
                        .is_some_and(|class| matches!(self.code(class), (b"_codecs", b"encode"))),
                    data => matches!(
                        data,
                        PickleValue::Other | PickleValue::Text(_) | PickleValue::Escaped | PickleValue::List(_)
                    ),
                };
                lengths.is_some_and(|all| all.iter().all(|length| self.integer(*length).is_some()))
                    && is_type(class)
                    && is_data
            }
            _ => false,
        };
        if is_built || !is_known || self.code(name).1 != b"_reconstruct" {
            self.misuse(Some(name));
        }
        self.tensors[tensor as usize].is_built = true;
        Ok(())
    }

    /// True if a value holds no instances.
    pub(super) fn is_data(&mut self, value: PickleValue) -> Result<bool> {
        self.holds_only(value, Holds::Data, None)
    }

    /// True if a value holds no instances but those that an instance of the class may hold.
    fn holds_only(&mut self, value: PickleValue, holds: Holds, class: Option<u32>) -> Result<bool> {
        let family = |name: u32| {
            let module = self.code(name).0;
            (module.split(|byte| *byte == b'.').next(), module.starts_with(b"torch.distributed."))
        };
        let is_allowed = |other: u32| {
            let name = &self.names[other as usize];
            match name.harmless {
                Some(CodeUse::Instance(_) | CodeUse::Filled) => {
                    holds == Holds::Family && class.is_some_and(|class| family(class) == family(other))
                }
                Some(CodeUse::Call | CodeUse::Value | CodeUse::Attribute) | None => true,
            }
        };
        let is_holder = |value: PickleValue| {
            let is_dict = matches!(value, PickleValue::Dict(_) | PickleValue::Object(_));
            is_dict || matches!(value, PickleValue::Tuple(_) | PickleValue::List(_))
        };
        if holds == Holds::Anything || !is_holder(value) {
            return Ok(true);
        }
        let (mut next, mut seen, mut checks) = (vec![value], HashSet::new(), self.checks);
        while let Some(value) = next.pop() {
            checks += 1;
            if checks > MOST_CHECKS {
                return Err(Error::new("its objects hold each other more often than those of any checkpoint"));
            }
            if !is_holder(value) || !seen.insert(value) {
                continue;
            }
            match value {
                PickleValue::Tuple(_) | PickleValue::List(_) => {
                    next.extend(self.sequence(value).unwrap_or_default());
                }
                PickleValue::Dict(at) => {
                    next.extend(self.dicts[at as usize].entries.iter().flat_map(|(key, value)| [*key, *value]));
                }
                PickleValue::Object(at) => {
                    let object = &self.objects[at as usize];
                    let is_unfinished =
                        object.class.is_some_and(|class| self.names[class as usize].meaning == CallMeaning::ArrayType)
                            && object.state == PickleValue::None;
                    if is_unfinished || object.class.is_some_and(|class| !is_allowed(class)) {
                        self.checks = checks;
                        return Ok(false);
                    }
                    next.extend([object.arguments, object.entries, object.elements, object.state]);
                }
                _ => {}
            }
        }
        self.checks = checks;
        Ok(true)
    }
}
