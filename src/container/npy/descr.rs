//! The `descr` of a .npy header: numpy's names of element types.

use super::header::PythonLiteral;
use crate::container::{Elements, Form, TextForm};
use crate::dtype::{Class, Dtype};
use crate::error::{Error, Result};
use crate::kernel::Storage;

/// Maximum length of the name of a type: numpy's own names are shorter, but leading zeros can make any of them long.
const MAX_CODE: usize = 32;

pub(super) fn elements_of(descr: &PythonLiteral) -> Result<Elements> {
    match descr {
        PythonLiteral::Text(code) => {
            if let Some(dtype) = Dtype::all().find(|dtype| {
                dtype.ml_dtypes_name() == Some(code) || (dtype.numpy_code().is_some() && dtype.name() == code)
            }) {
                return Ok(Elements::numbers(Storage::per_byte(dtype)));
            }
            Ok(elements_of_code(code).unwrap_or(Elements::Opaque))
        }
        // One field, named after a dtype and of that dtype's width.
        PythonLiteral::List(fields) => {
            let [PythonLiteral::Tuple(field)] = &fields[..] else { return Ok(Elements::Opaque) };
            let [PythonLiteral::Text(name), PythonLiteral::Text(base)] = &field[..] else {
                return Ok(Elements::Opaque);
            };
            Ok(tagged(name, base).unwrap_or(Elements::Opaque))
        }
        _ => Err(Error::new("malformed header: 'descr' is neither a string nor a list")),
    }
}

/// Reads a numpy type code: byte order, kind, bytes.
fn elements_of_code(code: &str) -> Option<Elements> {
    if code.len() > MAX_CODE {
        return None;
    }
    let plain = code.strip_prefix(['<', '>', '|', '=']).unwrap_or(code);
    let big_endian = code.starts_with('>');
    let typed = |dtype| Some(Elements::numbers(Storage { big_endian, ..Storage::per_byte(dtype) }));
    match plain {
        "V2" => typed(Dtype::Bfloat16),
        "f1" => typed(Dtype::Float8E5M2), // as np.save writes ml_dtypes.float8_e5m2
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

/// True if each type of a `descr` is known to be one of numbers, texts, dates or bytes. numpy has many spellings of objects.
pub(super) fn is_plain(descr: &PythonLiteral) -> bool {
    let is_shape = |part: &PythonLiteral| match part {
        PythonLiteral::Tuple(lengths) => lengths.iter().all(|length| matches!(length, PythonLiteral::Int(_))),
        part => matches!(part, PythonLiteral::Int(_)),
    };
    match descr {
        PythonLiteral::Text(code) => is_plain_code(code),
        PythonLiteral::List(fields) => fields.iter().all(|field| match field {
            PythonLiteral::Tuple(parts) => match &parts[..] {
                [_, inner] => is_plain(inner),
                [_, inner, shape] => is_plain(inner) && is_shape(shape),
                _ => false,
            },
            _ => false,
        }),
        _ => false,
    }
}

fn is_plain_code(code: &str) -> bool {
    let plain = code.strip_prefix(['<', '>', '|', '=']).unwrap_or(code);
    let Some(rest) = plain.strip_prefix(|kind| "biufcmMSUV?".contains(kind)) else { return false };
    let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    // The unit of dates.
    let unit = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    rest.is_empty() || unit.is_some_and(|unit| unit.chars().all(|c| c.is_ascii_alphanumeric() || c == '/'))
}

/// Reads a record of one field: `name` is the name of a dtype, `base` is opaque or an integer of the same width.
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
    (storage.bytes(1) == Some(width.into())).then_some(Elements::numbers(storage))
}

/// Returns the `descr` of a numeric dtype, as Python source.
pub(super) fn descr_of(dtype: Dtype) -> Option<String> {
    if let Some(code) = dtype.numpy_code() {
        return Some(format!("'{}{code}'", if dtype.bits() == 8 { '|' } else { '<' }));
    }
    if dtype == Dtype::Bfloat16 {
        return Some("'<V2'".to_owned());
    }
    let base = if dtype.class() == (Class::Int { signed: true }) { "|i1" } else { "|u1" };
    dtype.ml_dtypes_name().map(|name| format!("[('{name}', '{base}')]"))
}
