//! A machine for pickles that runs nothing: it builds data, and a call of a class or function is data too.
//!
//! It knows the opcodes of Python's `pickletools`, protocols 0 to 5, except the ones that need another program: registered
//! extensions, identifiers as lines, buffers outside of the file.

use super::meaning::CallMeaning;
use super::values::{PickleRange, PickleValue, PickleValues, StorageUse, TensorCall};
use crate::error::{Error, Result};

/// Maximum number of values on the stack. Python writes the elements of lists and dicts in groups of 1000.
const MOST_ON_STACK: usize = 4_000_000;
/// Maximum number of calls in each other that make a tensor an instance of a class. A list of arguments can contain itself.
const MOST_NESTED_CALLS: usize = 10;

/// A pickle that was read.
pub(super) struct Pickle<'a> {
    pub(super) values: PickleValues<'a>,
    pub(super) root: PickleValue,
    /// Number of its bytes.
    pub(super) len: usize,
    pub(super) protocol: u8,
}

/// Reads the pickle at the start of some bytes.
///
/// # Errors
/// When an opcode is unknown or misses its operands, or a limit is exceeded.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle<'_>> {
    let mut machine = Machine::of(bytes);
    let root = machine.run()?;
    let Machine { at: len, values, protocol, .. } = machine;
    Ok(Pickle { values, root, len, protocol })
}

/// Errors after which both unpicklers of Python fail too, the one in C and the one in Python, so no later opcode runs.
const OF_PYTHON: [&str; 10] =
    [NO_OPCODE, ENDS, EMPTY, NO_MARK, NO_QUOTES, NO_DIGITS, NO_PROTOCOL, NO_VALUE, NO_KEY, NO_MODULE];
const NO_OPCODE: &str = "which no checkpoint has";
const ENDS: &str = "it ends too early";
const EMPTY: &str = "it takes a value from an empty stack";
const NO_MARK: &str = "it has no mark";
const NO_QUOTES: &str = "a text has no quotes";
const NO_DIGITS: &str = "a number has other characters than digits";
const NO_REFERENCE: &str = "a reference is not in plain digits";
const NO_MODULE: &str = "the name of a module has a zero byte";
const NO_VALUE: &str = "a key has no value";
const NO_KEY: &str = "it refers to a value that it does not have";
const NO_PROTOCOL: &str = "it has the unknown protocol";

/// End of a search of bytes as a pickle.
pub(super) enum SearchEnd {
    /// With the pickle, after so many bytes.
    Pickle(usize),
    /// With an error of Python.
    Failure,
    /// With an error after which Python may continue.
    Unknown(Error),
}

/// Runs any bytes as Python's unpicklers would, to the end of a pickle or the first error.
pub(super) fn search(bytes: &[u8]) -> (PickleValues<'_>, SearchEnd) {
    let mut machine = Machine::of(bytes);
    let is_cut = machine.bytes.len() < bytes.len();
    let is_of_python = |error: &Error| {
        let is = |what: &&str| error.message().contains(what);
        OF_PYTHON.iter().any(is) && !(is_cut && is(&ENDS))
    };
    let end = match machine.run() {
        Ok(_) => SearchEnd::Pickle(machine.at),
        Err(error) if is_of_python(&error) => SearchEnd::Failure,
        Err(error) => SearchEnd::Unknown(error),
    };
    (machine.values, end)
}

/// Counts the memory of a stack that is full, before a value makes it grow.
fn count_growth<T>(values: &mut PickleValues, stack: &Vec<T>) -> Result<()> {
    if stack.len() == stack.capacity() { values.count::<T>(stack.len().max(4)) } else { Ok(()) }
}

fn malformed<T>(what: &str) -> Result<T> {
    Err(Error::new(what))
}

/// Values that the pickle refers to by number.
#[derive(Default)]
struct Memo {
    slots: Vec<Option<PickleValue>>,
    /// Number of slots that are filled.
    filled: u32,
}

struct Machine<'a> {
    bytes: &'a [u8],
    /// The position of the next opcode or operand.
    at: usize,
    stack: Vec<PickleValue>,
    /// Lengths of the stack at the marks.
    marks: Vec<usize>,
    memo: Memo,
    values: PickleValues<'a>,
    protocol: u8,
}

impl<'a> Machine<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        let (values, memo) = (PickleValues::of(bytes), Memo::default());
        Self { bytes, at: 0, stack: Vec::new(), marks: Vec::new(), memo, values, protocol: 0 }
    }

    /// Runs all opcodes. Returns the result.
    fn run(&mut self) -> Result<PickleValue> {
        loop {
            let start = self.at;
            match self.step() {
                Ok(None) => {}
                Ok(Some(root)) => return Ok(root),
                Err(error) => {
                    let what = error.message().trim_start_matches("malformed pickle: ").to_owned();
                    return Err(Error::new(format!("malformed pickle: {what}, at byte {start}")));
                }
            }
        }
    }

    /// Runs one opcode. Returns the result of the pickle at its end.
    fn step(&mut self) -> Result<Option<PickleValue>> {
        let [opcode] = self.array()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => {
                [self.protocol] = self.array()?;
                if self.protocol > 5 {
                    return Err(Error::new(format!("{NO_PROTOCOL} {}", self.protocol)));
                }
            }
            0x95 => drop(self.array::<8>()?), // FRAME: a hint for readers of streams
            0x98 => drop(self.top()?),        // READONLY_BUFFER: changes no value
            // Stack
            b'(' => {
                if self.marks.len() >= MOST_ON_STACK {
                    return malformed("it has too many marks");
                }
                count_growth(&mut self.values, &self.marks)?;
                self.marks.push(self.stack.len());
            }
            // It also pops a mark.
            b'0' if self.marks.last() == Some(&self.stack.len()) => drop(self.marks.pop()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_to_mark()?),
            // Contents of lists, dicts and sets
            b'a' => {
                let value = self.pop()?;
                self.append(&[value])?;
            }
            b'e' => {
                let values = self.pop_to_mark()?;
                self.append(&values)?;
            }
            0x90 => {
                let values = self.pop_to_mark()?;
                self.values.check_hashed(values.iter().copied())?;
                self.append(&values)?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])?;
            }
            b'u' => {
                let values = self.pop_to_mark()?;
                self.set(&values)?;
            }
            // Memo
            b'p' | b'q' | b'r' | 0x94 => {
                self.top()?; // before the number, which may be anything then
                let slot = if opcode == 0x94 { self.memo.filled } else { self.slot(opcode)? };
                self.memorize(slot)?;
            }
            // Attributes
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                self.values.has_calls = true;
                match target {
                    PickleValue::Object(at) => {
                        self.values.check_state(at, state)?;
                        self.values.objects[at as usize].state = state;
                    }
                    PickleValue::Tensor(at) => self.values.check_array_state(at, state)?,
                    // Of an OrderedDict.
                    PickleValue::Dict(_) if self.is_metadata(state) => {}
                    PickleValue::Dict(_) => return malformed("it sets other attributes of a dict than its metadata"),
                    _ => return malformed("it sets attributes of a value that has none"),
                }
            }
            _ => {
                let value = self.value(opcode)?;
                if self.stack.len() >= MOST_ON_STACK {
                    return malformed("it has too many values on its stack");
                }
                count_growth(&mut self.values, &self.stack)?;
                self.stack.push(value);
            }
        }
        Ok(None)
    }

    /// Returns the value that an opcode pushes.
    fn value(&mut self, opcode: u8) -> Result<PickleValue> {
        match opcode {
            b'2' => self.top(),
            // Constants
            b'N' => Ok(PickleValue::None),
            0x88 => Ok(PickleValue::Bool(true)),
            0x89 => Ok(PickleValue::Bool(false)),
            b'I' => match self.line()? {
                b"00" => Ok(PickleValue::Bool(false)),
                b"01" => Ok(PickleValue::Bool(true)),
                line => self.decimal(line),
            },
            b'L' => {
                let line = self.line()?;
                self.decimal(line.strip_suffix(b"L").unwrap_or(line))
            }
            b'J' => self.array().map(|bytes| PickleValue::Int(i32::from_le_bytes(bytes))),
            b'K' => self.array().map(|[byte]| PickleValue::Int(byte.into())),
            b'M' => self.array().map(|bytes| PickleValue::Int(u16::from_le_bytes(bytes).into())),
            0x8a => {
                let len = self.len::<1>()?;
                self.long(len)
            }
            0x8b => {
                let len = i32::from_le_bytes(self.array()?);
                self.long(u64::try_from(len).or_else(|_| malformed("an integer has a negative length"))?)
            }
            b'F' => self.line().map(|_| PickleValue::Other),
            b'G' => self.array::<8>().map(|_| PickleValue::Other),
            // Texts
            b'S' | b'V' => self.text_line(opcode == b'S'),
            b'X' | b'T' => self.text::<4>(),
            0x8c | b'U' => self.text::<1>(),
            0x8d => self.text::<8>(),
            // Bytes
            b'B' => self.skip::<4>(),
            b'C' => self.skip::<1>(),
            0x8e | 0x96 => self.skip::<8>(),
            // Tuples, lists, dicts and sets
            b')' => self.tuple(0),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            b't' => {
                let values = self.pop_to_mark()?;
                self.values.add_tuple(&values)
            }
            b']' => self.values.add_list(Vec::new()),
            b'l' => {
                let values = self.pop_to_mark()?;
                self.values.add_list(values)
            }
            b'}' => self.values.add_dict(Vec::new()),
            b'd' => {
                let entries = pairs(&self.pop_to_mark()?)?;
                self.values.check_hashed(entries.iter().map(|(key, _)| *key))?;
                self.values.add_dict(entries)
            }
            0x8f => self.values.add_object(None, PickleValue::None),
            0x91 => {
                let values = self.pop_to_mark()?;
                self.values.check_hashed(values.iter().copied())?;
                let set = self.values.add_object(None, PickleValue::None)?;
                self.append_to(set, &values)?;
                Ok(set)
            }
            // Memo
            b'g' | b'h' | b'j' => {
                let slot = self.slot(opcode)? as usize;
                let value = self.memo.slots.get(slot).copied().flatten();
                value.ok_or_else(|| Error::new(NO_KEY))
            }
            // Names of code, and calls, which are not made
            b'c' => self.name(),
            b'i' => {
                let name = self.name()?;
                let arguments = self.pop_to_mark()?;
                self.call_with(name, &arguments)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Some(module), Some(name)) = (self.values.extent(module), self.values.extent(name)) else {
                    return malformed("the name of a class is not text");
                };
                self.add_name(module, name)
            }
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let function = self.pop()?;
                self.values.has_calls = true;
                self.call(function, arguments, opcode == 0x81)
            }
            0x92 => self.call_with_names(),
            b'o' => match self.pop_to_mark()?.split_first() {
                Some((class, arguments)) => self.call_with(*class, arguments),
                None => malformed("a call has no class"),
            },
            b'Q' => {
                let identifier = self.pop()?;
                self.storage(identifier)
            }
            _ => Err(Error::new(format!("it has the opcode {opcode:#04x}, {NO_OPCODE}"))),
        }
    }

    // Operands

    fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let len = usize::try_from(len).ok().filter(|len| *len <= rest.len());
        let len = len.ok_or_else(|| Error::new(ENDS))?;
        self.at += len;
        Ok(&rest[..len])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(*self.bytes(N as u64)?.first_chunk().expect("as many were read"))
    }

    /// Returns a length of `N` bytes.
    fn len<const N: usize>(&mut self) -> Result<u64> {
        let mut len = [0; 8];
        len[..N].copy_from_slice(&self.array::<N>()?);
        Ok(u64::from_le_bytes(len))
    }

    /// Skips bytes after their length of `N` bytes.
    fn skip<const N: usize>(&mut self) -> Result<PickleValue> {
        let len = self.len::<N>()?;
        self.bytes(len).map(|_| PickleValue::Other)
    }

    /// Returns the place of the rest of a line.
    fn line_extent(&mut self) -> Result<PickleRange> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| Error::new(ENDS))?;
        let start = self.at as u32;
        self.at += len + 1;
        Ok(start..start + len as u32)
    }

    fn line(&mut self) -> Result<&'a [u8]> {
        let PickleRange { start, end } = self.line_extent()?;
        Ok(&self.bytes[start as usize..end as usize])
    }

    /// Returns a decimal number.
    fn decimal(&mut self, digits: &[u8]) -> Result<PickleValue> {
        may_be_number(digits)?;
        let unsigned = digits.strip_prefix(b"-").unwrap_or(digits);
        // Other spellings are numbers that never matter.
        let number = if unsigned.iter().all(u8::is_ascii_digit) { std::str::from_utf8(digits).ok() } else { None };
        let number = number.and_then(|digits| digits.parse().ok());
        number.map_or(Ok(PickleValue::Other), |number| self.values.add_long(number))
    }

    /// Returns an integer of so many bytes in two's complement.
    fn long(&mut self, len: u64) -> Result<PickleValue> {
        let bytes = self.bytes(len)?;
        if bytes.len() > 8 {
            return Ok(PickleValue::Other);
        }
        let is_negative = bytes.last().is_some_and(|byte| *byte >= 0x80);
        let mut number = [if is_negative { 0xff } else { 0 }; 8];
        number[..bytes.len()].copy_from_slice(bytes);
        self.values.add_long(i64::from_le_bytes(number))
    }

    /// Returns a text after its length of `N` bytes.
    fn text<const N: usize>(&mut self) -> Result<PickleValue> {
        let len = self.len::<N>()?;
        self.bytes(len)?;
        let end = self.at as u32;
        self.values.add_text(end - len as u32..end)
    }

    /// Returns a text in a line. Texts with escapes, which only protocol 0 has, are not needed.
    fn text_line(&mut self, is_quoted: bool) -> Result<PickleValue> {
        let mut extent = self.line_extent()?;
        let text = &self.bytes[extent.start as usize..extent.end as usize];
        if is_quoted {
            match text {
                [first @ (b'\'' | b'"'), .., last] if first == last => {}
                _ => return malformed(NO_QUOTES),
            }
            extent = extent.start + 1..extent.end - 1;
        }
        // Without quotes, other characters than those of ASCII are in Latin-1.
        let is_plain = !text.contains(&b'\\') && (is_quoted || text.is_ascii());
        if is_plain { self.values.add_text(extent) } else { Ok(PickleValue::Escaped) }
    }

    /// Returns the name of a class or function, whose module and name are lines.
    fn name(&mut self) -> Result<PickleValue> {
        let module = self.line_extent()?;
        let start = self.at as u32;
        let name = self.line_extent();
        // One of Python's unpicklers also imports a module whose name is in the last line.
        let extent = name.as_ref().map_or(start..self.bytes.len() as u32, Clone::clone);
        let value = self.add_name(module, extent)?;
        name.map(|_| value)
    }

    fn add_name(&mut self, module: PickleRange, name: PickleRange) -> Result<PickleValue> {
        if self.bytes[module.start as usize..module.end as usize].contains(&0) {
            return malformed(NO_MODULE);
        }
        self.values.add_name(module, name)
    }

    fn slot(&mut self, opcode: u8) -> Result<u32> {
        match opcode {
            b'q' | b'h' => self.array().map(|[slot]| slot.into()),
            b'r' | b'j' => self.array().map(u32::from_le_bytes),
            _ => {
                let line = self.line()?;
                may_be_number(line)?;
                let digits =
                    std::str::from_utf8(line).ok().filter(|line| line.bytes().all(|byte| byte.is_ascii_digit()));
                digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| Error::new(NO_REFERENCE))
            }
        }
    }

    // Stack and memo

    /// The length of the stack below which no value may be taken.
    fn fence(&self) -> usize {
        self.marks.last().copied().unwrap_or_default()
    }

    fn top(&self) -> Result<PickleValue> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.fence());
        top.copied().ok_or_else(|| Error::new(EMPTY))
    }

    fn pop(&mut self) -> Result<PickleValue> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<PickleValue>> {
        let mark = self.marks.pop().ok_or_else(|| Error::new(NO_MARK))?;
        Ok(self.stack.split_off(mark))
    }

    fn memorize(&mut self, slot: u32) -> Result<()> {
        let (value, at) = (self.top()?, slot as usize);
        // Python numbers them from 0, and each takes some bytes.
        if at >= self.bytes.len() {
            return malformed("a value has a number that is too large");
        }
        if at >= self.memo.slots.len() {
            self.values.count::<Option<PickleValue>>(at + 1 - self.memo.slots.len())?;
            self.memo.slots.resize(at + 1, None);
        }
        self.memo.filled += u32::from(self.memo.slots[at].is_none());
        self.memo.slots[at] = Some(value);
        Ok(())
    }

    // Values

    fn tuple(&mut self, len: usize) -> Result<PickleValue> {
        let start = self.stack.len().checked_sub(len).filter(|start| *start >= self.fence());
        let start = start.ok_or_else(|| Error::new(EMPTY))?;
        let tuple = self.values.add_tuple(&self.stack[start..])?;
        self.stack.truncate(start);
        Ok(tuple)
    }

    fn append(&mut self, values: &[PickleValue]) -> Result<()> {
        self.append_to(self.top()?, values)
    }

    /// Appends elements to a list, or to the elements of an object, such as a set.
    fn append_to(&mut self, target: PickleValue, values: &[PickleValue]) -> Result<()> {
        let list = match target {
            PickleValue::List(at) => at,
            PickleValue::Object(at) => {
                self.values.check_filled(at)?;
                if self.values.objects[at as usize].elements == PickleValue::None {
                    self.values.objects[at as usize].elements = self.values.add_list(Vec::new())?;
                }
                let PickleValue::List(list) = self.values.objects[at as usize].elements else {
                    unreachable!("it is a list")
                };
                list
            }
            _ => return malformed("it appends to a value that is not a list"),
        };
        self.values.extend_list(list, values)
    }

    fn set(&mut self, values: &[PickleValue]) -> Result<()> {
        let entries = pairs(values)?;
        self.values.check_hashed(entries.iter().map(|(key, _)| *key))?;
        let dict = match self.top()? {
            PickleValue::Dict(at) => at,
            PickleValue::Object(at) => {
                self.values.check_filled(at)?;
                if self.values.objects[at as usize].entries == PickleValue::None {
                    self.values.objects[at as usize].entries = self.values.add_dict(Vec::new())?;
                }
                let PickleValue::Dict(dict) = self.values.objects[at as usize].entries else {
                    unreachable!("it is a dict")
                };
                dict
            }
            _ => return malformed("it sets entries of a value that is not a dict"),
        };
        self.values.extend_dict(dict, entries)
    }

    fn call_with(&mut self, function: PickleValue, arguments: &[PickleValue]) -> Result<PickleValue> {
        self.values.has_calls = true;
        let arguments = self.values.add_tuple(arguments)?;
        self.call(function, arguments, false)
    }

    /// Returns what `__new__` makes with named arguments, which no class has that is known here.
    fn call_with_names(&mut self) -> Result<PickleValue> {
        let (named, arguments, class) = (self.pop()?, self.pop()?, self.pop()?);
        self.values.has_calls = true;
        let arguments = self.values.add_tuple(&[arguments, named])?;
        let PickleValue::Name(class) = class else {
            return malformed("it calls a value that is neither a class nor a function");
        };
        self.values.names[class as usize].is_misused = true;
        self.values.add_object(Some(class), arguments)
    }

    /// True if the state of an `OrderedDict` is what `state_dict()` gives to it.
    fn is_metadata(&self, state: PickleValue) -> bool {
        let PickleValue::Dict(state) = state else { return false };
        let mut entries = self.values.dicts[state as usize].entries.iter();
        entries.all(|(key, _)| self.values.text(*key) == Some(b"_metadata"))
    }

    /// Returns the value that stands for the result of a call.
    fn call(&mut self, mut function: PickleValue, mut arguments: PickleValue, is_new: bool) -> Result<PickleValue> {
        for _ in 0..MOST_NESTED_CALLS {
            let PickleValue::Name(name) = function else {
                let class = self.values.class_of_called(function)?;
                return self.values.add_object(Some(class), arguments);
            };
            if let Some(class) = self.values.reconstructed(name, arguments) {
                let none = self.values.add_tuple(&[])?;
                self.values.check_call(class, none, true)?;
                return self.values.add_object(Some(class), arguments);
            }
            if let Some(class) = self.values.class_by_attribute(name, arguments)? {
                return Ok(class);
            }
            self.values.check_call(name, arguments, is_new)?;
            let meaning = self.values.names[name as usize].meaning;
            let argument = |at: usize| self.values.sequence(arguments).and_then(|all| all.get(at)).copied();
            let flags = self.values.flags(argument(if meaning == CallMeaning::TypedTensor { 7 } else { 6 }));
            match (meaning, argument(0)) {
                (CallMeaning::Dict, _) => {
                    let entries = self.entries(name, arguments, is_new)?;
                    return self.values.add_dict(entries);
                }
                (CallMeaning::Sequence, Some(elements)) => {
                    let elements = self.values.sequence(elements).map(<[PickleValue]>::to_vec);
                    let Some(elements) = elements.filter(|_| !is_new || self.values.code(name).1 != b"list") else {
                        return malformed("a list or tuple is made of other values");
                    };
                    if self.values.code(name).1 == b"list" {
                        return self.values.add_list(elements);
                    }
                    return self.values.add_tuple(&elements);
                }
                (CallMeaning::Wrapper | CallMeaning::Subclass, Some(_))
                    if argument(3).is_some_and(|state| !self.values.keeps_elements(state)) =>
                {
                    let meaning = CallMeaning::NotPlain;
                    return self.values.add_tensor(TensorCall { name, meaning, arguments, is_built: false, flags });
                }
                (CallMeaning::Converter, Some(tensor))
                    if !argument(1).is_some_and(|dtype| self.values.has_type(tensor, dtype)) =>
                {
                    let meaning = CallMeaning::NotPlain;
                    return self.values.add_tensor(TensorCall { name, meaning, arguments, is_built: false, flags });
                }
                (CallMeaning::Wrapper | CallMeaning::Converter, Some(tensor)) => return Ok(tensor),
                (CallMeaning::Subclass, Some(inner)) => {
                    let (class, inner_arguments) = (argument(1), argument(2));
                    let is_plain = |class| match class {
                        PickleValue::Name(at) => self.values.names[at as usize].meaning == CallMeaning::TensorClass,
                        _ => false,
                    };
                    match (class, inner_arguments) {
                        (Some(class), Some(inner_arguments)) if is_plain(class) => {
                            (function, arguments) = (inner, inner_arguments);
                        }
                        (Some(PickleValue::Name(name)), Some(_)) => {
                            let meaning = CallMeaning::NotPlain;
                            return self.values.add_tensor(TensorCall {
                                name,
                                meaning,
                                arguments,
                                is_built: false,
                                flags,
                            });
                        }
                        _ => return malformed("a tensor is rebuilt without its class"),
                    }
                }
                (CallMeaning::Array | CallMeaning::Tensor | CallMeaning::TypedTensor | CallMeaning::NotPlain, _) => {
                    return self.values.add_tensor(TensorCall { name, meaning, arguments, is_built: false, flags });
                }
                (CallMeaning::TensorClass, _) => {
                    let meaning = CallMeaning::NotPlain;
                    return self.values.add_tensor(TensorCall { name, meaning, arguments, is_built: false, flags });
                }
                (CallMeaning::None | CallMeaning::ArrayType, _) => {
                    return self.values.add_object(Some(name), arguments);
                }
                (CallMeaning::Sequence | CallMeaning::Wrapper | CallMeaning::Converter | CallMeaning::Subclass, _) => {
                    return malformed("a call misses its arguments");
                }
            }
        }
        malformed("a tensor is rebuilt by too many calls in each other")
    }

    /// Returns the entries of a dict that a call makes.
    fn entries(&mut self, name: u32, arguments: PickleValue, is_new: bool) -> Result<Vec<(PickleValue, PickleValue)>> {
        let values = &self.values;
        let class = values.code(name).1;
        let entries = match values.sequence(arguments).unwrap_or_default() {
            [] => Some(Vec::new()),
            [PickleValue::None | PickleValue::Name(_)] if class == b"defaultdict" => Some(Vec::new()),
            [PickleValue::Dict(dict)] if class != b"defaultdict" && !is_new => {
                Some(values.dicts[*dict as usize].entries.clone())
            }
            [list] if matches!(class, b"dict" | b"OrderedDict") && !is_new => {
                let pair = |pair: &PickleValue| match values.sequence(*pair) {
                    Some([key, value]) => Some((*key, *value)),
                    _ => None,
                };
                values.sequence(*list).and_then(|pairs| pairs.iter().map(pair).collect())
            }
            _ => None,
        };
        entries.ok_or_else(|| Error::new("a dict is made of other values than pairs"))
    }

    /// Returns the storage of a persistent identifier: `('storage', class, key, location, elements)`, and in old files
    /// the view that the storage is of another one.
    fn storage(&mut self, identifier: PickleValue) -> Result<PickleValue> {
        let values = &self.values;
        let (class, key, location, count) = match values.sequence(identifier) {
            Some(&[tag, PickleValue::Name(class), PickleValue::Text(key), location, count, ref view @ ..])
                if values.text(tag) == Some(b"storage") =>
            {
                if !matches!(view, [] | [PickleValue::None]) {
                    return malformed("a storage is a view of another one, as in files of PyTorch before 0.4");
                }
                (class, key, location, count)
            }
            _ => return malformed("a persistent identifier is not that of a storage"),
        };
        let count = values.integer(count).and_then(|count| u64::try_from(count).ok());
        let count = count.ok_or_else(|| Error::new("a storage has no number of elements"))?;
        let is_meta = values.text(location) == Some(b"meta");
        self.values.add_storage(StorageUse { class, key, is_meta, count })
    }
}

/// Refuses a line that is a number for neither of Python's unpicklers. They know blanks, signs, underscores and several
/// bases, and the one in C stops at a zero byte.
fn may_be_number(line: &[u8]) -> Result<()> {
    let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_known = |byte: &u8| byte.is_ascii_hexdigit() || b" \t\x0b\x0c\r_+-xXoOlL".contains(byte);
    if line.iter().all(is_known) { Ok(()) } else { malformed(NO_DIGITS) }
}

/// Returns keys with their values.
fn pairs(values: &[PickleValue]) -> Result<Vec<(PickleValue, PickleValue)>> {
    match values.as_chunks() {
        (pairs, []) => Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect()),
        _ => malformed(NO_VALUE),
    }
}
