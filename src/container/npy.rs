//! `.npy`: one array behind a header that is a Python literal (numpy NEP 1).
//!
//! The header is read by a parser of our own for the few literals that numpy writes, bounded in size and depth.
//! Types that numpy lacks are stored so that `np.load(f).view(ml_dtypes.X)` works and the type is not lost: a
//! record of a single field named after the type; bfloat16 as `<V2`, which is what `np.save` itself writes.

use super::{Container, Contents, Elements, FileLayout, NewTensor, Tensor, element_count};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result, shorten};
use crate::kernel::Storage;

const MAGIC: &[u8] = b"\x93NUMPY";
/// numpy's own limit on dimensions.
const MAX_RANK: usize = 64;
/// The longest header that is read; numpy itself stops at 10,000 characters unless told otherwise.
const MAX_HEADER: usize = 1 << 20;

/// The `.npy` format.
pub(super) struct Npy;

impl Container for Npy {
    fn extension(&self) -> &'static str {
        "npy"
    }

    fn holds_one(&self) -> bool {
        true
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    fn read(&self, bytes: &[u8]) -> Result<Contents> {
        let (header, data_start) = header_text(bytes)?;
        let header = Header::parse(&header)?;
        let elements = elements_of(&header.descr)?;
        if header.shape.len() > MAX_RANK {
            return Err(Error::new(format!("{} dimensions; numpy allows {MAX_RANK}", header.shape.len())));
        }
        let count = element_count(&header.shape);
        let size = count.and_then(|count| match elements {
            Elements::Typed(storage) => storage.bytes(count),
            Elements::Untyped(bytes) => count.checked_mul(bytes.into()),
        });
        let held = (bytes.len() - data_start) as u64;
        let (Some(count), Some(size)) = (count, size) else {
            return Err(Error::new("the shape in the header asks for more bytes than can be counted"));
        };
        if size != held {
            let what = if size > held { "the file is cut short" } else { "bytes follow the array" };
            return Err(Error::new(format!("{what}: the header asks for {size} bytes of data, there are {held}")));
        }
        let tensor = Tensor {
            name: String::new(),
            fortran_order: header.fortran_order
                && count > 1
                && header.shape.iter().filter(|&&length| length != 1).count() > 1,
            shape: header.shape,
            count,
            elements,
            bytes: data_start..bytes.len(),
        };
        Ok(Contents { tensors: vec![tensor], metadata: None })
    }

    fn lay_out(&self, tensors: &[NewTensor], _metadata: Option<&[(String, String)]>) -> Result<FileLayout> {
        let [tensor] = tensors else {
            return Err(Error::new(format!("a .npy file holds one tensor, there are {}", tensors.len()))
                .remedy("name an output that ends in .safetensors"));
        };
        let descr = descr_of(tensor.dtype)?;
        if tensor.shape.len() > MAX_RANK {
            let rank = tensor.shape.len();
            return Err(Error::new(format!("{rank} dimensions; numpy allows {MAX_RANK}")).in_tensor(&tensor.name));
        }
        let header = write_header(&descr, tensor.fortran_order, &tensor.shape);
        let storage = Storage::per_byte(tensor.dtype);
        let start = header.len() as u64;
        let end = storage.bytes(tensor.count).and_then(|bytes| start.checked_add(bytes));
        let end = end.ok_or_else(|| Error::new("the output would be longer than a file can be"))?;
        Ok(FileLayout { header, places: vec![(storage, start..end)], len: end })
    }
}

/// The header's text and where the data starts.
fn header_text(bytes: &[u8]) -> Result<(String, usize)> {
    if !bytes.starts_with(MAGIC) {
        return Err(Error::new("does not start as a .npy file does"));
    }
    let cut_short = || Error::new("the file ends inside its header");
    let version = bytes.get(6..8).ok_or_else(cut_short)?;
    let (length, start) = match version {
        [1, 0] => (u16::from_le_bytes(*bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or_else(cut_short)?).into(), 10),
        [2 | 3, 0] => (u32::from_le_bytes(*bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or_else(cut_short)?), 12),
        _ => {
            let [major, minor] = [version[0], version[1]];
            return Err(Error::new(format!("npy format version {major}.{minor}: there are 1.0, 2.0 and 3.0")));
        }
    };
    let end = start + length as usize;
    let text = bytes.get(start..end).ok_or_else(cut_short)?;
    if text.len() > MAX_HEADER {
        return Err(Error::new(format!("a header of {length} bytes; at most {MAX_HEADER} are read")));
    }
    let text = if version[0] == 3 {
        String::from_utf8(text.to_vec()).map_err(|_| Error::new("the header is not UTF-8"))?
    } else {
        text.iter().map(|&byte| char::from(byte)).collect() // latin-1
    };
    // A file damaged by newline translation has its data moved by a byte: the header no longer ends in one.
    match text.strip_suffix('\n') {
        Some(text) if !text.ends_with('\r') => Ok((text.to_owned(), end)),
        _ => Err(Error::new("the header does not end in a newline: was the file copied in text mode?")),
    }
}

/// The three values of a header.
struct Header {
    descr: Literal,
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    fn parse(text: &str) -> Result<Self> {
        let malformed = |what: &str| Error::new(format!("malformed header: {what}"));
        let mut parser = Parser { rest: text };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        parser.expect('{')?;
        while !parser.accept('}') {
            let Literal::Text(key) = parser.literal(0)? else { return Err(malformed("a key is not a string")) };
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
        let Literal::Bool(fortran_order) = fortran_order else {
            return Err(malformed("'fortran_order' is neither True nor False"));
        };
        let Literal::Tuple(lengths) = shape else { return Err(malformed("'shape' is not a tuple")) };
        let shape = lengths.into_iter().map(|length| match length {
            Literal::Int(length) => Ok(length),
            _ => Err(malformed("a length in 'shape' is not a number")),
        });
        Ok(Self { descr, fortran_order, shape: shape.collect::<Result<_>>()? })
    }
}

/// The Python literals that a header is made of.
#[derive(Debug)]
enum Literal {
    Text(String),
    Bool(bool),
    Int(u64),
    Tuple(Vec<Literal>),
    List(Vec<Literal>),
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
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

    fn literal(&mut self, depth: u32) -> Result<Literal> {
        /// A record's field is a tuple in a list; nothing that is read lies deeper.
        const MAX_DEPTH: u32 = 4;
        if depth > MAX_DEPTH {
            return Err(Error::new("malformed header: brackets are nested too deep"));
        }
        if self.accept('(') {
            return self.items(')', depth).map(Literal::Tuple);
        }
        if self.accept('[') {
            return self.items(']', depth).map(Literal::List);
        }
        for quote in ['\'', '"'] {
            if self.accept(quote) {
                let end = self.rest.find(quote).ok_or_else(|| self.unexpected("a closing quote"))?;
                let text = &self.rest[..end];
                if text.contains('\\') {
                    return Err(self.unexpected("a string without escapes"));
                }
                self.rest = &self.rest[end + 1..];
                return Ok(Literal::Text(text.to_owned()));
            }
        }
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        let value = match word {
            "True" => Literal::Bool(true),
            "False" => Literal::Bool(false),
            _ => {
                let digits = word.strip_suffix('L').unwrap_or(word); // Python 2 wrote long integers so
                let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
                let is_plain = is_number && (digits == "0" || !digits.starts_with('0'));
                if !is_plain {
                    return Err(self.unexpected("a string, number, tuple, list, True or False"));
                }
                Literal::Int(digits.parse().map_err(|_| self.unexpected("a number of 64 bits"))?)
            }
        };
        self.rest = rest;
        Ok(value)
    }

    fn items(&mut self, close: char, depth: u32) -> Result<Vec<Literal>> {
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
fn elements_of(descr: &Literal) -> Result<Elements> {
    let unsupported = |what: String| Error::new(format!("dtype {what} is none that tcast converts"));
    match descr {
        Literal::Text(code) => {
            if let Some(dtype) = Dtype::all().find(|dtype| {
                dtype.ml_dtypes_name() == Some(code) || (dtype.numpy_code().is_some() && dtype.name() == code)
            }) {
                return Ok(Elements::Typed(Storage::per_byte(dtype)));
            }
            elements_of_code(code).ok_or_else(|| {
                let meaning = match code.trim_start_matches(['<', '>', '|', '=']).chars().next() {
                    Some('U' | 'S') => " (text)",
                    Some('O') => " (Python objects in a pickle, which can run code and is never opened)",
                    Some('M' | 'm') => " (dates)",
                    _ => "",
                };
                unsupported(format!("'{}'{meaning}", shorten(code)))
            })
        }
        // One field that is named after a dtype and as wide as that dtype's elements.
        Literal::List(fields) => match fields.as_slice() {
            [Literal::Tuple(field)] => match field.as_slice() {
                [Literal::Text(name), Literal::Text(base)] => {
                    tagged(name, base).ok_or_else(|| unsupported(format!("of record field '{}'", shorten(name))))
                }
                _ => Err(unsupported("of a record".to_owned())),
            },
            _ => Err(unsupported(format!("of a record with {} fields", fields.len()))),
        },
        _ => Err(Error::new("malformed header: 'descr' is neither a string nor a list")),
    }
}

/// A numpy type code: byte order, kind, bytes.
fn elements_of_code(code: &str) -> Option<Elements> {
    let plain = code.strip_prefix(['<', '>', '|', '=']).unwrap_or(code);
    let big_endian = code.starts_with('>');
    let typed = |dtype| Some(Elements::Typed(Storage { big_endian, ..Storage::per_byte(dtype) }));
    match plain {
        "V2" => typed(Dtype::Bfloat16),
        "f1" => typed(Dtype::Float8E5M2), // what np.save makes of ml_dtypes.float8_e5m2
        "?" => typed(Dtype::Bool),
        _ => {
            if let Some(dtype) = Dtype::all().find(|dtype| dtype.numpy_code() == Some(plain)) {
                return typed(dtype);
            }
            let bytes: u32 = plain.strip_prefix('V')?.parse().ok()?;
            (1..=16).contains(&bytes).then_some(Elements::Untyped(bytes))
        }
    }
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
    let plain = base.strip_prefix(['<', '>', '|', '=']).unwrap_or(base);
    let width: u32 = plain.strip_prefix(['u', 'i', 'V'])?.parse().ok()?;
    let storage = Storage { big_endian: base.starts_with('>'), ..Storage::per_byte(dtype) };
    (storage.bytes(1) == Some(width.into())).then_some(Elements::Typed(storage))
}

/// The `descr` of a dtype, as Python source.
fn descr_of(dtype: Dtype) -> Result<String> {
    if let Some(code) = dtype.numpy_code() {
        return Ok(format!("'{}{code}'", if dtype.bits() == 8 { '|' } else { '<' }));
    }
    let Some(name) = dtype.ml_dtypes_name() else {
        return Err(Error::new(format!("a .npy file of {dtype} cannot be written")));
    };
    if dtype == Dtype::Bfloat16 {
        return Ok("'<V2'".to_owned());
    }
    let base = if dtype.class() == (Class::Int { signed: true }) { "|i1" } else { "|u1" };
    Ok(format!("[('{name}', '{base}')]"))
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
