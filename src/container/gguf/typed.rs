//! Values of keys that are given as text, with the type of each.

use super::header::{LIST, STRING};
use super::write::put_text;
use crate::error::{Error, Result};
use crate::text::shorten;
use serde_json::Value;

/// The types of values by their names, with their numbers.
const KINDS: [(&str, u32); 12] = [
    ("u8", 0),
    ("i8", 1),
    ("u16", 2),
    ("i16", 3),
    ("u32", 4),
    ("i32", 5),
    ("f32", 6),
    ("bool", 7),
    ("str", STRING),
    ("u64", 10),
    ("i64", 11),
    ("f64", 12),
];

/// True if it is the name of a type of values.
pub(crate) fn is_kind(name: &str) -> bool {
    KINDS.iter().any(|(known, _)| *known == name)
}

/// Returns a value as stored, with its type: that of the value `before`, or the named one, or text. A list is JSON.
pub(crate) fn value_of_text(text: &str, kind: Option<&str>, before: Option<&[u8]>) -> Result<Vec<u8>> {
    let named = kind.and_then(|name| KINDS.iter().find(|(known, _)| *known == name)).map(|(_, number)| *number);
    let number = |at: usize| Some(u32::from_le_bytes(before?.get(at..)?.first_chunk().copied()?));
    let (is_list, kind) = match (named, number(0)) {
        (Some(kind), _) => (text.starts_with('[') && kind != STRING, kind),
        (None, Some(LIST)) => (true, number(4).unwrap_or(STRING)),
        (None, other) => (false, other.unwrap_or(STRING)),
    };
    let mut value = Vec::new();
    if !is_list {
        value.extend(kind.to_le_bytes());
        let json = if kind == STRING { Some(Value::from(text)) } else { serde_json::from_str(text).ok() };
        put(&mut value, kind, &json.unwrap_or_default()).ok_or_else(|| wrong(text, kind))?;
        return Ok(value);
    }
    let not_list = || Error::usage(format!("its value is a list, in JSON, and '{}' is not", shorten(text)));
    let items: Vec<Value> = serde_json::from_str(text).map_err(|_| not_list())?;
    value.extend([LIST, kind].into_iter().flat_map(u32::to_le_bytes));
    value.extend((items.len() as u64).to_le_bytes());
    for item in &items {
        put(&mut value, kind, item).ok_or_else(|| wrong(&item.to_string(), kind))?;
    }
    Ok(value)
}

fn wrong(text: &str, kind: u32) -> Error {
    let name = KINDS.iter().find(|(_, number)| *number == kind).map_or("known", |(name, _)| name);
    Error::usage(format!("its value is of the type {name}, and '{}' is not", shorten(text)))
}

/// Appends an element; `None` if it is not of this type.
fn put(bytes: &mut Vec<u8>, kind: u32, value: &Value) -> Option<()> {
    let integer = || value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    match kind {
        0 => bytes.extend(u8::try_from(integer()?).ok()?.to_le_bytes()),
        1 => bytes.extend(i8::try_from(integer()?).ok()?.to_le_bytes()),
        2 => bytes.extend(u16::try_from(integer()?).ok()?.to_le_bytes()),
        3 => bytes.extend(i16::try_from(integer()?).ok()?.to_le_bytes()),
        4 => bytes.extend(u32::try_from(integer()?).ok()?.to_le_bytes()),
        5 => bytes.extend(i32::try_from(integer()?).ok()?.to_le_bytes()),
        6 => bytes.extend(Some(value.as_f64()? as f32).filter(|number| number.is_finite())?.to_le_bytes()),
        7 => bytes.push(value.as_bool()?.into()),
        STRING => put_text(bytes, value.as_str()?),
        10 => bytes.extend(value.as_u64()?.to_le_bytes()),
        11 => bytes.extend(value.as_i64()?.to_le_bytes()),
        12 => bytes.extend(value.as_f64()?.to_le_bytes()),
        _ => return None,
    }
    Some(())
}
