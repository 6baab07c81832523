//! `.pb`: one ONNX `TensorProto`, a protobuf message (onnx.proto3, IR version 14).
//!
//! Its elements are in `raw_data`, in one of six typed fields, or in another file of the same folder. The message is
//! traversed, and never held in memory. Written tensors have `raw_data`, or `string_data` for text.

mod external;
pub(crate) mod model;
pub(super) mod protobuf;
mod typed;

use super::{
    Container, Contents, Data, Elements, FileLayout, Form, FormatInfo, Metadata, NewMetadata, NewTensors, Placement,
    ReadOptions, Tensor, TextForm, element_count, only_tensor, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::{counted, quoted, size};
use external::{Externals, LinkRule};
use protobuf::{MessageFields, Value, take_varint};
use std::ops::Range;
use std::path::Path;

/// Fields of `TensorProto`.
const DIMS: u64 = 1;
const DATA_TYPE: u64 = 2;
const SEGMENT: u64 = 3;
const FLOAT_DATA: u64 = 4;
const INT32_DATA: u64 = 5;
const STRING_DATA: u64 = 6;
const INT64_DATA: u64 = 7;
const NAME: u64 = 8;
const RAW_DATA: u64 = 9;
const DOUBLE_DATA: u64 = 10;
const UINT64_DATA: u64 = 11;
const DOC_STRING: u64 = 12;
const EXTERNAL_DATA: u64 = 13;
const DATA_LOCATION: u64 = 14;
const METADATA_PROPS: u64 = 16;

/// The tag of a text in `string_data`.
const TEXT_TAG: u8 = (STRING_DATA << 3) as u8 | 2;
/// The metadata name for `doc_string`.
const DOC_NAME: &str = "doc_string";
/// Maximum number of dimensions, more than any tensor needs; a message full of them is refused before it takes memory.
const MAX_RANK: usize = 1024;
/// Maximum number of pairs of metadata and of external data, as [`MAX_RANK`]: a pair takes only two bytes.
const MAX_PAIRS: usize = 1 << 16;
/// Maximum length of the name of a tensor or another value.
const MAX_NAME: usize = 1 << 20;
/// Maximum length of all names and metadata of a file.
const MAX_TEXTS: usize = 32 << 20;
/// Maximum length of a protobuf message.
const MAX_MESSAGE: u64 = i32::MAX as u64;

/// The ONNX tensor format.
pub(super) struct Onnx;

impl Container for Onnx {
    fn format_info(&self) -> FormatInfo {
        FormatInfo { holds_one: true, metadata: Metadata::Plain, ..FormatInfo::of("pb") }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        dtype.onnx_name().map(str::to_owned)
    }

    fn form(&self, dtype: Dtype) -> Form {
        form(dtype)
    }

    /// A message begins with any of its fields, so the content does not identify it.
    fn recognises(&self, _bytes: &[u8]) -> bool {
        false
    }

    fn read(&self, file: &MappedFile, _options: &ReadOptions) -> Result<Contents> {
        let message = TensorMessage::read(file, 0..file.len());
        let message = message.and_then(|message| message.head().map(|_| message));
        let message = message.map_err(|error| {
            let name = text(TensorMessage::name_in(file, 0..file.len()), "its name", MAX_NAME);
            diagnose(file).unwrap_or_else(|| error.in_tensor(&name.unwrap_or_default()))
        })?;
        let mut externals = Externals::new(file.path(), LinkRule::Never);
        let name = message.name.clone();
        let (tensor, metadata) = message.into_tensor(file, &mut externals).map_err(|error| error.in_tensor(&name))?;
        let metadata = (!metadata.is_empty()).then_some(metadata);
        Ok(Contents { tensors: vec![tensor], metadata, beside: externals.into_files(), ..Contents::default() })
    }

    fn lay_out(&self, tensors: &dyn NewTensors, metadata: &NewMetadata, _threads: usize) -> Result<FileLayout> {
        let tensor = only_tensor(tensors, "pb")?;
        let mut head = Vec::new();
        for &length in tensor.shape {
            if i64::try_from(length).is_err() {
                return Err(Error::new(format!("a dimension of {length}; ONNX counts to 2^63")).in_tensor(&tensor.name));
            }
            head.extend(protobuf::number(DIMS, length));
        }
        let refusal = || self.refusal(tensor.dtype, false).in_tensor(&tensor.name);
        head.extend(protobuf::number(DATA_TYPE, tensor.dtype.onnx_number().ok_or_else(refusal)?.into()));
        let name = if tensor.name.is_empty() { Vec::new() } else { protobuf::bytes(NAME, &*tensor.name) };
        let mut tail = Vec::new();
        let form = form(tensor.dtype);
        let data = if tensor.dtype == Dtype::String {
            tail = name; // fields are written in the order of their numbers
            tensor.text.as_ref().map_or(0, |text| text.field_bytes)
        } else {
            let data = form.bytes(tensor.count).ok_or_else(too_long)?;
            head.extend([name, protobuf::head(RAW_DATA, data)].concat());
            data
        };
        let pairs = || metadata.texts.iter().flatten();
        let docs = pairs().filter(|(key, _)| key == DOC_NAME);
        tail.extend(docs.flat_map(|(_, doc)| protobuf::bytes(DOC_STRING, doc)));
        let others = pairs().filter(|(key, _)| key != DOC_NAME);
        tail.extend(others.flat_map(|(key, value)| protobuf::pair(METADATA_PROPS, key, value)));
        let start = head.len() as u64;
        let end = start.checked_add(data).ok_or_else(too_long)?;
        let len = end.checked_add(tail.len() as u64).ok_or_else(too_long)?;
        if len > MAX_MESSAGE {
            let error = Error::new(format!("an ONNX tensor of {}; protobuf messages are limited to 2 GiB", size(len)));
            return Err(error
                .in_tensor(&tensor.name)
                .with(Opt::OUTPUT, "name an output that ends in .safetensors or .npz"));
        }
        let places = vec![Placement { form, range: start..end, crc: None }];
        Ok(FileLayout { literals: vec![(0, head), (end, tail)], entries: Vec::new(), places, len })
    }
}

/// A `TensorProto` without its elements.
#[derive(Default)]
struct TensorMessage {
    range: Range<usize>,
    dims: Vec<u64>,
    data_type: u64,
    name: String,
    raw_data: Option<Range<usize>>,
    /// The typed field that holds elements.
    typed: Option<u64>,
    is_external: bool,
    external: Vec<(String, String)>,
    metadata: Vec<(String, String)>,
}

impl TensorMessage {
    /// Reads the complete message in `range`.
    fn read(file: &[u8], range: Range<usize>) -> Result<Self> {
        let mut message = Self { range: range.clone(), ..Self::default() };
        let mut doc = None; // the last of several counts
        let mut texts = TextSum::default();
        for field in MessageFields::new(file, range) {
            if message.dims.len() > MAX_RANK {
                return Err(Error::new(format!("more than {MAX_RANK} dimensions")));
            }
            if message.metadata.len().max(message.external.len()) > MAX_PAIRS {
                return Err(Error::new(format!("more than {MAX_PAIRS} pairs of metadata")));
            }
            match field? {
                (DIMS, Value::Varint(length)) => message.dims.push(length),
                (DIMS, Value::Bytes(range)) => {
                    let mut lengths = &file[range];
                    while !lengths.is_empty() && message.dims.len() <= MAX_RANK {
                        message.dims.push(take_varint(&mut lengths)?);
                    }
                }
                (DATA_TYPE, Value::Varint(number)) => message.data_type = number,
                (SEGMENT, Value::Bytes(_)) => {
                    return Err(Error::new("is one segment of a tensor, which no ONNX library reads"));
                }
                (RAW_DATA, Value::Bytes(_)) if message.raw_data.is_some() => {
                    return Err(Error::new("raw_data appears twice"));
                }
                (RAW_DATA, Value::Bytes(range)) => message.raw_data = Some(range),
                (NAME, Value::Bytes(range)) => message.name = text(&file[range], "its name", MAX_NAME)?,
                (DOC_STRING, Value::Bytes(range)) if !range.is_empty() => {
                    texts.add(range.len())?;
                    doc = Some(text(&file[range], "its doc_string", MAX_TEXTS)?);
                }
                (DATA_LOCATION, Value::Varint(location)) => message.is_external = location == 1,
                (EXTERNAL_DATA, Value::Bytes(range)) => message.external.push(pair(file, range, &mut texts)?),
                (METADATA_PROPS, Value::Bytes(range)) => {
                    let pair = pair(file, range, &mut texts)?;
                    if pair.0 == DOC_NAME {
                        return Err(Error::new(format!("a metadata property is named {DOC_NAME}, as a field is")));
                    }
                    message.metadata.push(pair);
                }
                (field @ (FLOAT_DATA | INT32_DATA | STRING_DATA | INT64_DATA | DOUBLE_DATA | UINT64_DATA), value) => {
                    // An empty packed field has no meaning.
                    let is_empty = field != STRING_DATA && matches!(&value, Value::Bytes(range) if range.is_empty());
                    if !is_empty && message.typed.replace(field).is_some_and(|other| other != field) {
                        return Err(Error::new("two fields hold elements, and only one may"));
                    }
                }
                (DIMS..=DATA_LOCATION | METADATA_PROPS, _) => {
                    return Err(Error::new("a field is of the wrong kind for an ONNX tensor"));
                }
                _ => {} // a field of a later version
            }
        }
        if let Some(doc) = doc {
            message.metadata.insert(0, (DOC_NAME.to_owned(), doc));
        }
        Ok(message)
    }

    /// Returns the name in a message, also if it cannot be read as a whole; empty if it has none.
    fn name_in(file: &[u8], range: Range<usize>) -> &[u8] {
        let fields = MessageFields::new(file, range).map_while(Result::ok);
        let names =
            fields.filter_map(|field| if let (NAME, Value::Bytes(name)) = field { Some(&file[name]) } else { None });
        names.last().unwrap_or_default()
    }

    /// Returns type and shape.
    fn head(&self) -> Result<(Dtype, Vec<u64>)> {
        if self.data_type == 0 {
            return Err(Error::new("the tensor's data_type is UNDEFINED"));
        }
        let dtype = Dtype::all().find(|dtype| dtype.onnx_number().map(u64::from) == Some(self.data_type));
        let dtype = dtype.ok_or_else(|| {
            Error::new(format!("data_type {}: the newest that is known is 28, FLOAT6E3M2", self.data_type))
        })?;
        match self.dims.iter().find(|&&length| i64::try_from(length).is_err()) {
            Some(&length) => Err(Error::new(format!("a dimension of {}", length as i64))),
            None => Ok((dtype, self.dims.clone())),
        }
    }

    /// Returns the tensor and its metadata. `externals` opens the files with elements outside of the message.
    fn into_tensor(self, file: &MappedFile, externals: &mut Externals) -> Result<(Tensor, Vec<(String, String)>)> {
        let (dtype, shape) = self.head()?;
        let count =
            element_count(&shape).ok_or_else(|| Error::new("the shape asks for more elements than can be counted"))?;
        let (elements, data) = self.data(file, dtype, count, externals)?;
        let place = match self {
            Self { is_external: true, .. } => "external_data",
            Self { typed: Some(field), .. } => typed::name_of(field),
            _ => "raw_data",
        };
        let stored = format!("{} {place}", dtype.onnx_name().unwrap_or_default()).into();
        let (name, shape) = (self.name.into(), shape.into());
        let tensor = Tensor { name, shape, count, elements, fortran_order: false, data, stored };
        Ok((tensor, self.metadata))
    }

    /// Returns the form of the elements and their location.
    fn data(&self, file: &MappedFile, dtype: Dtype, count: u64, externals: &mut Externals) -> Result<(Elements, Data)> {
        let packed = Storage::packed(dtype);
        let wanted =
            || packed.bytes(count).ok_or_else(|| Error::new("the shape asks for more bytes than can be counted"));
        let mapped = |file: usize, range: Range<usize>| {
            (Elements::numbers(packed), Data::Mapped { file: file as u32, range, checksum: None })
        };
        let own = |range: Range<usize>| -> Result<(Elements, Data)> {
            check_size(range.len() as u64, wanted()?, None)?;
            Ok(mapped(0, range))
        };
        let typed = |field| typed::elements((file, self.range.clone()), dtype, field, count);
        match (&self.raw_data, self.typed, self.is_external) {
            (Some(_), None, false) | (None, None, true) if dtype == Dtype::String => {
                Err(Error::new("is text, which belongs in string_data"))
            }
            (Some(range), None, false) => own(range.clone()),
            (None, None, true) => {
                let (other, range) = externals.find(&self.external, wanted()?)?;
                check_size(range.len() as u64, wanted()?, Some(externals.path(other)))?;
                Ok(mapped(other, range))
            }
            (None, None, false) if count == 0 => {
                if dtype == Dtype::String {
                    return typed(STRING_DATA);
                }
                own(0..0)
            }
            (None, None, false) => {
                Err(Error::new(format!("{}, and no field that holds them", counted(count, "element"))))
            }
            (None, Some(field), false) => typed(field),
            _ => Err(Error::new("two fields hold elements, and only one may")),
        }
    }
}

/// Refuses elements of another size; `external` is their file, if the message is about another one.
fn check_size(held: u64, wanted: u64, external: Option<&Path>) -> Result<()> {
    if held == wanted {
        return Ok(());
    }
    let place = external.map_or(String::new(), |file| format!(" in its external data {}", quoted(file)));
    Err(Error::new(format!("its shape asks for {wanted} bytes, there are {held}{place}")))
}

/// The length of the names and metadata that are kept of a file.
#[derive(Default)]
struct TextSum(usize);

impl TextSum {
    /// Adds a text. Refuses texts that would take too much memory.
    fn add(&mut self, length: usize) -> Result<()> {
        self.0 += length;
        if self.0 <= MAX_TEXTS {
            return Ok(());
        }
        let most = MAX_TEXTS >> 20;
        Err(Error::new(format!("names and metadata take more than {most} MiB, the most that tcast reads")))
    }
}

/// Copies a text of at most `most` bytes.
fn text(bytes: &[u8], what: &str, most: usize) -> Result<String> {
    if bytes.len() > most {
        return Err(Error::new(format!("{what} has {} bytes; at most {most} are read", bytes.len())));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::new(format!("{what} is not UTF-8")))
}

/// Reads a `StringStringEntryProto`.
fn pair(file: &[u8], range: Range<usize>, texts: &mut TextSum) -> Result<(String, String)> {
    let [key, value] = MessageFields::new(file, range).last([1, 2])?;
    texts.add(key.len() + value.len())?;
    Ok((text(&file[key], "a metadata name", MAX_TEXTS)?, text(&file[value], "a metadata value", MAX_TEXTS)?))
}

/// Identifies a message that is not a tensor by the kinds of its fields.
fn diagnose(file: &[u8]) -> Option<Error> {
    let (mut numbers, mut bytes) = (0_u32, 0_u32);
    for (field, value) in MessageFields::new(file, 0..file.len()).map_while(Result::ok) {
        let bit = 1_u32.checked_shl(field as u32).unwrap_or_default();
        match value {
            Value::Varint(_) => numbers |= bit,
            Value::Bytes(_) => bytes |= bit,
            Value::Fixed(_) => {}
        }
    }
    let is_number = |field: u32| numbers >> field & 1 == 1;
    let is_bytes = |field: u32| bytes >> field & 1 == 1;
    let nested = "extract the tensors with onnx.numpy_helper.to_array(onnx.load(...).graph.initializer[i])";
    let (what, remedy) = if is_bytes(1) && is_bytes(2) && is_number(3) {
        ("is a sparse ONNX tensor (SparseTensorProto), not a dense one", "save it as a dense tensor")
    } else if is_bytes(1) && (is_bytes(11) || is_bytes(12)) && !is_number(2) {
        ("is an ONNX graph (GraphProto), not a tensor", nested)
    } else if is_bytes(3) && !is_number(1) && (is_bytes(1) || !is_bytes(9)) {
        ("is an ONNX sequence or optional (SequenceProto, OptionalProto), not a tensor", "save its tensors one by one")
    } else {
        return None;
    };
    Some(Error::new(what).remedy(remedy))
}

/// Form in which a `TensorProto` of tcast stores a type.
fn form(dtype: Dtype) -> Form {
    match dtype {
        Dtype::String => Form::Texts(TextForm::Fields { tag: TEXT_TAG }),
        _ => Form::packed(dtype),
    }
}
