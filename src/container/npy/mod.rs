//! `.npy`: one array after a header that is a Python literal (numpy NEP 1).
//!
//! A dedicated parser reads the few literals that numpy writes in a header, with limits on size and depth. Types that
//! numpy lacks are stored so that `np.load(f).view(ml_dtypes.X)` works and the type is not lost: a record of a single
//! field named after the type; bfloat16 as `<V2`, as `np.save` itself writes it.

mod descr;
mod header;
mod reread;

use super::text::MAX_TEXT;
use super::{
    Container, Contents, Data, Elements, FileLayout, Form, FormatInfo, NewMetadata, NewTensor, NewTensors, Placement,
    ReadOptions, Rereading, Tensor, TextForm, element_count, only_tensor, position, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use crate::kernel::Storage;
use crate::text::shorten;
use descr::{descr_of, elements_of};
use header::{NpyHeader, header_text, write_header};
use std::io::Read;

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// numpy's own limit on dimensions.
const MAX_RANK: usize = 64;

/// The `.npy` format.
pub(super) struct Npy;

impl Container for Npy {
    fn format_info(&self) -> FormatInfo {
        FormatInfo { holds_one: true, has_names: false, has_fortran_order: true, ..FormatInfo::of("npy") }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        stores(dtype)
    }

    fn form(&self, dtype: Dtype) -> Form {
        form(dtype)
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    fn read(&self, file: &MappedFile, _options: &ReadOptions) -> Result<Contents> {
        let mut rest = &**file;
        let mut take = |buffer: &mut [u8]| rest.read_exact(buffer).map_err(|_| Error::new("the file ends"));
        let (mut tensor, start) = read_header(file.len() as u64, &mut take)?;
        tensor.data = Data::plain(start..file.len());
        if tensor.elements == Elements::Opaque {
            return Err(tensor.refusal().remedy(other_type(&tensor.stored))); // the file has nothing else to convert
        }
        Ok(Contents { tensors: vec![tensor], ..Contents::default() })
    }

    fn reread(&self, file: &[u8], tensors: Rereading) -> Result<()> {
        reread::check(file, tensors)
    }

    fn lay_out(&self, tensors: &dyn NewTensors, _metadata: &NewMetadata, _threads: usize) -> Result<FileLayout> {
        let tensor = only_tensor(tensors, "npy")?;
        let (header, form) = header_of(&tensor)?;
        let start = header.len() as u64;
        let len = form.bytes(tensor.count).and_then(|bytes| start.checked_add(bytes)).ok_or_else(too_long)?;
        let places = vec![Placement { form, range: start..len, crc: None }];
        Ok(FileLayout { literals: vec![(0, header)], entries: Vec::new(), places, len })
    }
}

/// Reads the header of a file of `file_len` bytes, or of a member of an archive, which `fill` provides from the start.
/// Returns an array without name and data, and the length of the header.
pub(super) fn read_header(file_len: u64, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<(Tensor, usize)> {
    let (text, header_len) = header_text(file_len, fill)?;
    let NpyHeader { descr, shape, fortran_order } = NpyHeader::parse(&text)?;
    let elements = elements_of(&descr)?;
    let rank = shape.len();
    if rank > MAX_RANK {
        return Err(Error::new(format!("{rank} dimensions; numpy allows {MAX_RANK}")));
    }
    let count = element_count(&shape);
    let fortran_order = fortran_order && count > Some(1) && shape.iter().filter(|&&length| length != 1).count() > 1;
    let (name, data) = (Box::default(), Data::plain(0..0));
    let (shape, stored) = (shape.into(), descr.text().into());
    let mut array = Tensor { name, shape, count: file_len, elements, fortran_order, data, stored };
    if elements == Elements::Opaque {
        (array.fortran_order, array.stored) = (false, shorten(&array.stored).into());
        return Ok((array, header_len));
    }
    let (Some(count), Some(size)) = (count, count.and_then(|count| elements.bytes(count))) else {
        return Err(Error::new("the shape in the header asks for more bytes than can be counted"));
    };
    array.count = count;
    check_text_width(elements.bytes(1).unwrap_or(0))?;
    if count > 0 && size == 0 {
        return Err(Error::new(format!("{count} elements of no width")));
    }
    let held = file_len - header_len as u64;
    if size != held {
        let what = if size > held { "the file is cut short" } else { "bytes follow the array" };
        return Err(Error::new(format!("{what}: the header asks for {size} bytes of data, there are {held}")));
    }
    Ok((array, header_len))
}

/// True if numpy reads all elements of an array as they are stored, and none from a pickle.
pub(super) fn is_plain(file_len: u64, fill: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<bool> {
    Ok(descr::is_plain(&NpyHeader::parse(&header_text(file_len, fill)?.0)?.descr))
}

/// Returns the header of a new array and the form of its elements.
pub(super) fn header_of(tensor: &NewTensor) -> Result<(Vec<u8>, Form)> {
    let in_tensor = |error: Error| error.in_tensor(&tensor.name);
    if tensor.shape.len() > MAX_RANK {
        let rank = tensor.shape.len();
        return Err(in_tensor(Error::new(format!("{rank} dimensions; numpy allows {MAX_RANK}"))));
    }
    let (descr, form) = if tensor.dtype == Dtype::String {
        text_form(tensor).map_err(in_tensor)?
    } else {
        let descr = descr_of(tensor.dtype).ok_or_else(|| in_tensor(Npy.refusal(tensor.dtype, false)))?;
        (descr, form(tensor.dtype))
    };
    Ok((write_header(&descr, tensor.fortran_order, tensor.shape), form))
}

/// Returns the remedy for an unsupported type: a way to save the array in another type.
fn other_type(descr: &str) -> String {
    let code = descr.trim_start_matches(['<', '>', '|', '=']);
    match code.as_bytes() {
        _ if descr.contains(' ') => {
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

/// Returns the `descr` and the form of texts. All texts have the width of the longest, and numpy has no width of 0.
fn text_form(tensor: &NewTensor) -> Result<(String, Form)> {
    let text = tensor.text.as_deref().copied().unwrap_or_default();
    if let Some(index) = text.first_with_final_nul {
        let place = position(index, tensor.shape, tensor.fortran_order);
        return Err(Error::new(format!("element {place} is a text that ends in NUL, which numpy cannot store"))
            .with(Opt::OUTPUT, "name an output that ends in .pb"));
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

/// Refuses texts that are too wide. Every text takes as much space as the longest, so a small file could require much
/// memory.
fn check_text_width(bytes: u64) -> Result<()> {
    if bytes > MAX_TEXT {
        return Err(Error::new(format!("texts of {bytes} bytes each; at most {MAX_TEXT} are read and written")));
    }
    Ok(())
}

/// Form in which numpy's formats store a type.
pub(super) fn form(dtype: Dtype) -> Form {
    match dtype {
        Dtype::String => Form::Texts(TextForm::CodePoints { width: 0, big_endian: false }),
        _ => Form::Numbers(Storage::per_byte(dtype)),
    }
}

/// Name of the stored form of a type in numpy's formats.
pub(super) fn stores(dtype: Dtype) -> Option<String> {
    if dtype == Dtype::String {
        return Some("<U, |S".to_owned());
    }
    descr_of(dtype).map(|descr| descr.trim_matches('\'').to_owned())
}
