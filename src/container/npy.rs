//! `.npy`: one array behind a header that is a Python literal (numpy NEP 1).
//!
//! The header is read by a parser of our own for the few literals that numpy writes, bounded in size and depth.
//! Types that numpy lacks are stored so that `np.load(f).view(ml_dtypes.X)` works and the type is not lost: a
//! record of a single field named after the type; bfloat16 as `<V2`, which is what `np.save` itself writes.

pub(super) mod text;

use super::text::MAX_TEXT;
use super::{
    Container, Contents, Data, Elements, FileLayout, Form, Format, FormatInfo, Metadata, NewTensor, Placement, Tensor,
    TextForm, cannot_hold, element_count, position, too_long,
};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::shorten;

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// numpy's own limit on dimensions.
const MAX_RANK: usize = 64;
/// The longest header that is read; numpy itself stops at 10,000 characters unless told otherwise.
const MAX_HEADER: usize = 1 << 20;
/// The longest name of a type that is read: numpy's own have fewer characters, and leading zeros can make any of them long.
const MAX_CODE: usize = 32;
/// The most literals in a header; each takes 16 times as much memory as it takes there, and an array in an archive can
/// have a header of a MiB that is compressed to nothing.
const MAX_LITERALS: usize = 1 << 14;

/// The `.npy` format.
pub(super) struct Npy;

impl Container for Npy {
    fn format_info(&self) -> FormatInfo {
        FormatInfo {
            extension: "npy",
            holds_one: true,
            has_names: false,
            has_fortran_order: true,
            metadata: Metadata::None,
        }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        stores(dtype)
    }
}

impl Format for Npy {
    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    fn read(&self, file: &MappedFile) -> Result<Contents> {
        let mut rest = &**file;
        let array = Array::read(file.len() as u64, &mut |buffer| {
            let (now, later) = rest.split_at_checked(buffer.len()).ok_or_else(|| Error::new("the file ends"))?;
            buffer.copy_from_slice(now);
            rest = later;
            Ok(())
        })?;
        let range = array.header_len..file.len();
        let tensor = array.tensor(String::new(), Data::Mapped { file: 0, range, checksum: None });
        if tensor.elements == Elements::Opaque {
            return Err(tensor.refusal().remedy(other_type(&tensor.stored))); // there is nothing else to be converted
        }
        Ok(Contents { tensors: vec![tensor], ..Contents::default() })
    }

    fn lay_out(&self, tensors: &[&NewTensor], _metadata: Option<&[(String, String)]>) -> Result<FileLayout> {
        let tensor = (self as &dyn Container).only(tensors)?;
        let (header, form) = header_of(tensor)?;
        let start = header.len() as u64;
        let len = form.bytes(tensor.count).and_then(|bytes| start.checked_add(bytes)).ok_or_else(too_long)?;
        let places = vec![Placement { form, range: start..len, crc: None }];
        Ok(FileLayout { literals: vec![(0, header)], places, len })
    }
}

/// What is before an array's data, in a file or in a member of an archive.
pub(super) struct Array {
    elements: Elements,
    shape: Vec<u64>,
    count: u64,
    fortran_order: bool,
    /// The `descr` as the header has it; of an unsupported one what can be shown.
    descr: String,
    /// Where the data starts.
    pub(super) header_len: usize,
}

impl Array {
    /// Reads a header of a file of `file_len` bytes, which `fill` gives from the first one on.
    pub(super) fn read(file_len: u64, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<Self> {
        let (text, header_len) = header_text(file_len, fill)?;
        let header = NpyHeader::parse(&text)?;
        let elements = elements_of(&header.descr)?;
        let rank = header.shape.len();
        if rank > MAX_RANK {
            return Err(Error::new(format!("{rank} dimensions; numpy allows {MAX_RANK}")));
        }
        let count = element_count(&header.shape);
        if elements == Elements::Opaque {
            let (descr, count) = (shorten(&header.descr.text()), file_len);
            return Ok(Self { elements, shape: header.shape, count, fortran_order: false, descr, header_len });
        }
        let (Some(count), Some(size)) = (count, count.and_then(|count| elements.bytes(count))) else {
            return Err(Error::new("the shape in the header asks for more bytes than can be counted"));
        };
        check_text_width(elements.bytes(1).unwrap_or(0))?;
        if count > 0 && size == 0 {
            return Err(Error::new(format!("{count} elements of no width")));
        }
        let held = file_len - header_len as u64;
        if size != held {
            let what = if size > held { "the file is cut short" } else { "bytes follow the array" };
            return Err(Error::new(format!("{what}: the header asks for {size} bytes of data, there are {held}")));
        }
        let fortran_order =
            header.fortran_order && count > 1 && header.shape.iter().filter(|&&length| length != 1).count() > 1;
        Ok(Self { elements, shape: header.shape, count, fortran_order, descr: header.descr.text(), header_len })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Where the elements begin: of an array that can only be copied, the header is among them.
    pub(super) fn data_start(&self) -> usize {
        if self.elements == Elements::Opaque { 0 } else { self.header_len }
    }

    pub(super) fn tensor(self, name: String, data: Data) -> Tensor {
        let Self { elements, shape, count, fortran_order, descr, .. } = self;
        Tensor { name, shape, count, elements, fortran_order, data, stored: descr.into() }
    }
}

/// The header of a new array and how its elements are stored.
pub(super) fn header_of(tensor: &NewTensor) -> Result<(Vec<u8>, Form)> {
    let in_tensor = |error: Error| error.in_tensor(&tensor.name);
    if tensor.shape.len() > MAX_RANK {
        let rank = tensor.shape.len();
        return Err(in_tensor(Error::new(format!("{rank} dimensions; numpy allows {MAX_RANK}"))));
    }
    let (descr, form) = if tensor.dtype == Dtype::String {
        text_form(tensor).map_err(in_tensor)?
    } else {
        let descr = descr_of(tensor.dtype).ok_or_else(|| in_tensor(cannot_hold("npy", tensor.dtype)))?;
        (descr, Form::Numbers(Storage::per_byte(tensor.dtype)))
    };
    Ok((write_header(&descr, tensor.fortran_order, tensor.shape), form))
}

/// How an array of an unsupported type is saved in another one.
fn other_type(descr: &str) -> String {
    let code = descr.trim_start_matches(['<', '>', '|', '=']);
    match code.as_bytes() {
        [b'[', ..] => {
            "save each field with numpy as an array of its own: np.save(\"field.npy\", array[\"field\"])".into()
        }
        [b'M' | b'm', ..] => save_as("int64"),
        [b'c', ..] => save_as("complex128"),
        _ => save_as("float64"),
    }
}

fn save_as(dtype: &str) -> String {
    format!("save it with numpy in a type that tcast reads: np.save(\"new.npy\", array.astype(\"{dtype}\"))")
}

/// Text is as wide as its longest element, and numpy has no width of 0.
fn text_form(tensor: &NewTensor) -> Result<(String, Form)> {
    let text = tensor.text.as_deref().copied().unwrap_or_default();
    if let Some(index) = text.first_with_final_nul {
        let place = position(index, tensor.shape, tensor.fortran_order);
        return Err(Error::new(format!("element {place} ends in a NUL, which numpy's texts cannot"))
            .remedy("name an output that ends in .pb"));
    }
    let width = if text.is_binary { text.longest_bytes.into() } else { 4 * u64::from(text.longest_chars) };
    check_text_width(width)?;
    Ok(if text.is_binary {
        let width = text.longest_bytes.max(1);
        (format!("'|S{width}'"), Form::Texts(TextForm::Bytes { width }))
    } else {
        let width = text.longest_chars.max(1);
        (format!("'<U{width}'"), Form::Texts(TextForm::CodePoints { width, big_endian: false }))
    })
}

/// Every text takes the room of the longest, so that a small file could ask for much memory.
fn check_text_width(bytes: u64) -> Result<()> {
    if bytes > MAX_TEXT {
        return Err(Error::new(format!("texts of {bytes} bytes each; at most {MAX_TEXT} are read and written")));
    }
    Ok(())
}

/// How numpy's formats store a type.
pub(super) fn stores(dtype: Dtype) -> Option<String> {
    if dtype == Dtype::String {
        return Some("<U, |S".to_owned());
    }
    descr_of(dtype).map(|descr| descr.trim_matches('\'').to_owned())
}

/// The header's text and where the data starts.
fn header_text(file_len: u64, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<(String, usize)> {
    let cut_short = || Error::new("the file ends inside its header");
    let mut start = [0; 8];
    fill(&mut start).map_err(|_| cut_short())?;
    if !start.starts_with(MAGIC) {
        return Err(Error::new("does not start as a .npy file does"));
    }
    let [.., major, minor] = start;
    let (length, start) = match (major, minor) {
        (1, 0) => {
            let mut length = [0; 2];
            fill(&mut length).map_err(|_| cut_short())?;
            (u16::from_le_bytes(length).into(), 10)
        }
        (2 | 3, 0) => {
            let mut length = [0; 4];
            fill(&mut length).map_err(|_| cut_short())?;
            (u32::from_le_bytes(length) as usize, 12)
        }
        _ => return Err(Error::new(format!("npy format version {major}.{minor}: there are 1.0, 2.0 and 3.0"))),
    };
    if start as u64 + length as u64 > file_len {
        return Err(cut_short());
    }
    if length > MAX_HEADER {
        return Err(Error::new(format!("a header of {length} bytes; at most {MAX_HEADER} are read")));
    }
    let mut text = vec![0; length];
    fill(&mut text)?;
    let text = if major == 3 {
        String::from_utf8(text).map_err(|_| Error::new("the header is not UTF-8"))?
    } else {
        text.into_iter().map(char::from).collect() // latin-1
    };
    // A file damaged by newline translation has its data moved by a byte: the header no longer ends in one.
    match text.strip_suffix('\n') {
        Some(text) if !text.ends_with('\r') => Ok((text.to_owned(), start + length)),
        _ => Err(Error::new("the header does not end in a newline: was the file copied in text mode?")),
    }
}

/// The three values of a header.
struct NpyHeader {
    descr: PythonLiteral,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl NpyHeader {
    fn parse(text: &str) -> Result<Self> {
        let malformed = |what: &str| Error::new(format!("malformed header: {what}"));
        let mut parser = LiteralParser { rest: text, left: MAX_LITERALS };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        parser.expect('{')?;
        while !parser.accept('}') {
            let PythonLiteral::Text(key) = parser.literal(0)? else { return Err(malformed("a key is not a string")) };
            parser.expect(':')?;
            let value = parser.literal(0)?;
            let slot = match key.as_str() {
                "descr" => &mut descr,
                "fortran_order" => &mut fortran_order,
                "shape" => &mut shape,
                _ => return Err(malformed(&format!("unknown key '{}'", shorten(&key)))),
            };
            if slot.replace(value).is_some() {
                return Err(malformed(&format!("'{key}' stands twice")));
            }
            if !parser.accept(',') {
                parser.expect('}')?;
                break;
            }
        }
        if !parser.rest.trim().is_empty() {
            return Err(malformed("something follows the dictionary"));
        }
        let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
            return Err(malformed("one of 'descr', 'fortran_order' and 'shape' is missing"));
        };
        let PythonLiteral::Bool(fortran_order) = fortran_order else {
            return Err(malformed("'fortran_order' is neither True nor False"));
        };
        let PythonLiteral::Tuple(lengths) = shape else { return Err(malformed("'shape' is not a tuple")) };
        let shape = lengths.into_iter().map(|length| match length {
            PythonLiteral::Int(length) => Ok(length),
            _ => Err(malformed("a length in 'shape' is not a number")),
        });
        Ok(Self { descr, fortran_order, shape: shape.collect::<Result<_>>()? })
    }
}

/// The Python literals that a header is made of.
#[derive(Debug)]
enum PythonLiteral {
    Text(String),
    Bool(bool),
    Int(u64),
    Tuple(Vec<PythonLiteral>),
    List(Vec<PythonLiteral>),
}

impl PythonLiteral {
    /// The strings in it, as far as a `descr` that is read has any.
    fn text(&self) -> String {
        let join = |items: &[Self]| items.iter().map(Self::text).collect::<Vec<_>>().join(" ");
        match self {
            Self::Text(text) => text.clone(),
            Self::Tuple(items) | Self::List(items) => join(items),
            Self::Bool(_) | Self::Int(_) => String::new(),
        }
    }
}

struct LiteralParser<'a> {
    rest: &'a str,
    /// How many more literals are read.
    left: usize,
}

impl LiteralParser<'_> {
    fn accept(&mut self, wanted: char) -> bool {
        self.rest = self.rest.trim_start();
        let rest = self.rest.strip_prefix(wanted);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, wanted: char) -> Result<()> {
        if self.accept(wanted) { Ok(()) } else { Err(self.unexpected(&format!("'{wanted}'"))) }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let found: String = self.rest.chars().take(20).collect();
        Error::new(format!("malformed header: {wanted} expected at '{}'", found.escape_debug()))
    }

    fn literal(&mut self, depth: u32) -> Result<PythonLiteral> {
        /// A record's field is a tuple in a list; nothing that is read lies deeper.
        const MAX_DEPTH: u32 = 4;
        if depth > MAX_DEPTH {
            return Err(Error::new("malformed header: brackets are nested too deep"));
        }
        let Some(left) = self.left.checked_sub(1) else {
            return Err(Error::new(format!("malformed header: more than {MAX_LITERALS} values")));
        };
        self.left = left;
        if self.accept('(') {
            return self.items(')', depth).map(PythonLiteral::Tuple);
        }
        if self.accept('[') {
            return self.items(']', depth).map(PythonLiteral::List);
        }
        for quote in ['\'', '"'] {
            if self.accept(quote) {
                let end = self.rest.find(quote).ok_or_else(|| self.unexpected("a closing quote"))?;
                let text = &self.rest[..end];
                if text.contains('\\') {
                    return Err(self.unexpected("a string without escapes"));
                }
                self.rest = &self.rest[end + 1..];
                return Ok(PythonLiteral::Text(text.to_owned()));
            }
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word {
            "True" => PythonLiteral::Bool(true),
            "False" => PythonLiteral::Bool(false),
            _ => {
                let digits = word.strip_suffix('L').unwrap_or(word); // Python 2 wrote long integers so
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let is_plain = is_number && (digits == "0" || !digits.starts_with('0'));
                if !is_plain {
                    return Err(self.unexpected("a string, number, tuple, list, True or False"));
                }
                PythonLiteral::Int(digits.parse().map_err(|_| self.unexpected("a number of 64 bits"))?)
            }
        };
        self.rest = rest;
        Ok(value)
    }

    fn items(&mut self, close: char, depth: u32) -> Result<Vec<PythonLiteral>> {
        let mut items = Vec::new();
        while !self.accept(close) {
            items.push(self.literal(depth + 1)?);
            if !self.accept(',') {
                self.expect(close)?;
                // `(3)` is a number in Python, not a tuple.
                if close == ')' && items.len() == 1 {
                    return Err(self.unexpected("',' before the bracket"));
                }
                break;
            }
        }
        Ok(items)
    }
}

/// What a `descr` says of the elements.
fn elements_of(descr: &PythonLiteral) -> Result<Elements> {
    match descr {
        PythonLiteral::Text(code) => {
            if let Some(dtype) = Dtype::all().find(|dtype| {
                dtype.ml_dtypes_name() == Some(code) || (dtype.numpy_code().is_some() && dtype.name() == code)
            }) {
                return Ok(numbers(Storage::per_byte(dtype)));
            }
            Ok(elements_of_code(code).unwrap_or(Elements::Opaque))
        }
        // One field that is named after a dtype and as wide as that dtype's elements.
        PythonLiteral::List(fields) => Ok(match fields.as_slice() {
            [PythonLiteral::Tuple(field)] => match field.as_slice() {
                [PythonLiteral::Text(name), PythonLiteral::Text(base)] => {
                    tagged(name, base).unwrap_or(Elements::Opaque)
                }
                _ => Elements::Opaque,
            },
            _ => Elements::Opaque,
        }),
        _ => Err(Error::new("malformed header: 'descr' is neither a string nor a list")),
    }
}

/// A numpy type code: byte order, kind, bytes.
fn elements_of_code(code: &str) -> Option<Elements> {
    if code.len() > MAX_CODE {
        return None;
    }
    let plain = code.strip_prefix(['<', '>', '|', '=']).unwrap_or(code);
    let big_endian = code.starts_with('>');
    let typed = |dtype| Some(numbers(Storage { big_endian, ..Storage::per_byte(dtype) }));
    match plain {
        "V2" => typed(Dtype::Bfloat16),
        "f1" => typed(Dtype::Float8E5M2), // what np.save makes of ml_dtypes.float8_e5m2
        "?" => typed(Dtype::Bool),
        _ => {
            if let Some(dtype) = Dtype::all().find(|dtype| dtype.numpy_code() == Some(plain)) {
                return typed(dtype);
            }
            let kind = plain.chars().next()?;
            let width = plain[kind.len_utf8()..].bytes().all(|byte| byte.is_ascii_digit());
            let width: u32 = width.then(|| plain[kind.len_utf8()..].parse().ok())??;
            match kind {
                'V' if (1..=16).contains(&width) => Some(Elements::Untyped(width)),
                'U' => Some(Elements::Typed(Form::Texts(TextForm::CodePoints { width, big_endian }))),
                'S' => Some(Elements::Typed(Form::Texts(TextForm::Bytes { width }))),
                _ => None,
            }
        }
    }
}

fn numbers(storage: Storage) -> Elements {
    Elements::Typed(Form::Numbers(storage))
}

/// A record of one field: `name` is a dtype's, `base` opaque or an integer of the same width.
fn tagged(name: &str, base: &str) -> Option<Elements> {
    /// The spellings of onnx 1.17 and 1.18.
    const ONNX: &[(&str, Dtype)] = &[
        ("e4m3fn", Dtype::Float8E4M3FN),
        ("e4m3fnuz", Dtype::Float8E4M3FNUZ),
        ("e5m2", Dtype::Float8E5M2),
        ("e5m2fnuz", Dtype::Float8E5M2FNUZ),
    ];
    let by_table =
        Dtype::all().find(|dtype| dtype.ml_dtypes_name().is_some_and(|known| known == name || dtype.name() == name));
    let dtype = by_table.or_else(|| ONNX.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype))?;
    if base.len() > MAX_CODE {
        return None;
    }
    let plain = base.strip_prefix(['<', '>', '|', '=']).unwrap_or(base);
    let width: u32 = plain.strip_prefix(['u', 'i', 'V'])?.parse().ok()?;
    let storage = Storage { big_endian: base.starts_with('>'), ..Storage::per_byte(dtype) };
    (storage.bytes(1) == Some(width.into())).then_some(numbers(storage))
}

/// The `descr` of a dtype of numbers, as Python source.
fn descr_of(dtype: Dtype) -> Option<String> {
    if let Some(code) = dtype.numpy_code() {
        return Some(format!("'{}{code}'", if dtype.bits() == 8 { '|' } else { '<' }));
    }
    if dtype == Dtype::Bfloat16 {
        return Some("'<V2'".to_owned());
    }
    let base = if dtype.class() == (Class::Int { signed: true }) { "|i1" } else { "|u1" };
    dtype.ml_dtypes_name().map(|name| format!("[('{name}', '{base}')]"))
}

/// The header as numpy writes it, byte for byte: room for the first length to grow to 21 digits, then spaces
/// (at least one) up to a multiple of 64 bytes, then a newline.
fn write_header(descr: &str, fortran_order: bool, shape: &[u64]) -> Vec<u8> {
    const ALIGNMENT: usize = 64;
    const GROWTH_DIGITS: usize = 21;
    let lengths: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if lengths.len() == 1 { "," } else { "" };
    let order = if fortran_order { "True" } else { "False" };
    let mut text =
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': ({}{comma}), }}", lengths.join(", "));
    let growing = if fortran_order { lengths.last() } else { lengths.first() };
    if let Some(growing) = growing {
        text.push_str(&" ".repeat(GROWTH_DIGITS - growing.len()));
    }
    let prefix = MAGIC.len() + 4;
    text.push_str(&" ".repeat(ALIGNMENT - (prefix + text.len() + 1) % ALIGNMENT));
    text.push('\n');
    // At 64 dimensions of 20 digits a header has 1500 bytes: version 1.0, with 2 bytes of length, always does.
    [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}
