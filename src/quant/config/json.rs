//! Changes to the text of JSON objects. Unchanged parts keep their bytes and their order.

use crate::container::{as_json, members};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// Receives the key and the value of a member, and returns its new value; `None` removes the member.
pub(in crate::quant) type ValueEdit<'e> = dyn for<'t> FnMut(&str, &'t str) -> Option<Cow<'t, str>> + 'e;

/// A member of an object: its key, and the positions of key and value.
struct JsonMember<'a> {
    key: Cow<'a, str>,
    start: usize,
    value: Range<usize>,
}

/// Changes members of an object, and adds others at its end. `None` if the text is not an object.
pub(in crate::quant) fn edited(text: &str, added: &[(&str, String)], edit: &mut ValueEdit) -> Option<String> {
    let json = as_json(text);
    let members = scan(&json)?;
    let (Some(first), Some(last)) = (members.first(), members.last()) else {
        let body: Vec<String> = added.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        return Some(if body.is_empty() { text.to_owned() } else { format!("{{{}}}", body.join(", ")) });
    };
    let mut changed = text[..first.start].to_owned();
    let (mut end, mut is_first) = (first.start, true);
    for JsonMember { key, start, value } in &members {
        if let Some(new) = edit(key, &text[value.clone()]) {
            changed.extend([&text[if is_first { *start } else { end }..value.start], &*new]);
            is_first = false;
        }
        end = value.end;
    }
    // Uses the whitespace between the brace and the first member.
    let space = text[..first.start].rsplit('{').next().filter(|space| !space.is_empty()).unwrap_or(" ");
    for (key, value) in added {
        let joint = if is_first { String::new() } else { format!(",{space}") };
        changed.extend([&joint, "\"", key, "\": ", value]);
        is_first = false;
    }
    Some(changed + &text[last.value.end..])
}

/// Returns the members of an object, in order.
fn scan(json: &str) -> Option<Vec<JsonMember<'_>>> {
    let value = |at: usize| {
        let mut stream = serde_json::Deserializer::from_str(&json[at..]).into_iter::<&RawValue>();
        let value = stream.next()?.ok()?.get();
        Some((value, at + stream.byte_offset()))
    };
    let mut members = Vec::new();
    let mut end = json.len() - json.trim_start().strip_prefix('{')?.len();
    loop {
        let start = end + json[end..].find(|c: char| c != ',' && !c.is_whitespace())?;
        if json[start..].starts_with('}') {
            return Some(members);
        }
        let (key, after_key) = value(start)?;
        let (text, after) = value(after_key + json[after_key..].find(':')? + 1)?;
        members.push(JsonMember { key: serde_json::from_str(key).ok()?, start, value: after - text.len()..after });
        end = after;
    }
}

/// Adds a member at the end of an object, in place of a member with the same key. `None` if the text is not an object.
pub(in crate::quant) fn with_member(text: &str, key: &str, value: String) -> Option<String> {
    edited(text, &[(key, value)], &mut |name, value| (name != key).then_some(value.into()))
}

/// Replaces the value of this key in an object, unless `new` returns `None`.
pub(in crate::quant) fn with_new(text: &str, key: &str, new: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    edited(text, &[], &mut |name, value| {
        let changed = if name == key { new(value) } else { None };
        Some(changed.map_or(value.into(), Cow::Owned))
    })
}

/// Removes the members of an object with these names.
pub(in crate::quant) fn without_members(text: &str, names: &HashSet<&str>) -> Option<String> {
    edited(text, &[], &mut |name, value| (!names.contains(name)).then_some(value.into()))
}

/// Removes names from the lists and objects of a text, at any depth.
pub(super) fn without_names<'t>(text: &'t str, is_gone: &dyn Fn(&str) -> bool) -> Cow<'t, str> {
    if text.starts_with('{') {
        let kept = |key: &str, value: &str| (!is_gone(key)).then(|| without_names(value, is_gone).into_owned().into());
        return edited(text, &[], &mut |key, value| kept(key, value)).map_or(text.into(), Cow::Owned);
    }
    let is_name = |item: &str| serde_json::from_str::<String>(item).is_ok_and(|name| is_gone(&name));
    let Some(items) = items(text).filter(|items| items.iter().any(|item| is_name(&text[item.clone()]))) else {
        return text.into();
    };
    let mut kept = text[..items[0].start].to_owned();
    let (mut end, mut is_first) = (items[0].start, true);
    for item in &items {
        if !is_name(&text[item.clone()]) {
            kept += &text[if is_first { item.start } else { end }..item.end];
            is_first = false;
        }
        end = item.end;
    }
    if is_first { "[]".into() } else { Cow::Owned(kept + &text[end..]) }
}

/// Returns the places of the items of a list. `None` if the text is not a list.
fn items(text: &str) -> Option<Vec<Range<usize>>> {
    let items: Vec<&RawValue> = serde_json::from_str(text).ok().filter(|_| text.starts_with('['))?;
    let place = |item: &&RawValue| {
        let start = item.get().as_ptr() as usize - text.as_ptr() as usize;
        start..start + item.get().len()
    };
    Some(items.iter().map(place).collect())
}

/// Adds entries to the lists of an object under these keys, or a list under the first key.
pub(in crate::quant) fn listed<S: AsRef<str>>(text: &str, keys: &[&str], entries: &[S]) -> Option<String> {
    let missing = |list: &str| {
        let listed: HashSet<String> = serde_json::from_str(list).unwrap_or_default();
        let new = entries.iter().map(AsRef::as_ref).filter(|entry| !listed.contains(*entry));
        new.map(|entry| serde_json::json!(entry).to_string()).collect::<Vec<_>>()
    };
    let has_list = members(&as_json(text))?.keys().any(|key| keys.contains(&&**key));
    let all = missing("[]");
    let added = if has_list || all.is_empty() { None } else { Some((keys[0], format!("[{}]", all.join(", ")))) };
    edited(text, added.as_slice(), &mut |key, list| {
        let items = if keys.contains(&key) { missing(list) } else { Vec::new() };
        if items.is_empty() {
            return Some(list.into());
        }
        let inner = list.trim().strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or_default();
        let body = inner.trim_end();
        let space = &body[..body.len() - body.trim_start().len()];
        let joint = format!(",{}", if space.is_empty() { " " } else { space });
        Some(Cow::Owned(match body {
            "" => format!("[{}]", items.join(", ")),
            body => format!("[{body}{joint}{}{}]", items.join(&joint), &inner[body.len()..]),
        }))
    })
}

/// Adds members in front of the members of the inner object under this key.
pub(in crate::quant) fn with_members<'v>(
    text: &str,
    key: &str,
    entries: impl Iterator<Item = (String, &'v str)>,
) -> Option<String> {
    let json = as_json(text);
    let names = members(&json)?;
    let old = names.get(key).and_then(|value| members(value.get())).unwrap_or_default();
    let new = entries.filter(|(key, _)| !old.contains_key(&**key));
    let new: Vec<String> = new.map(|(key, value)| format!("{}: {value}", serde_json::json!(key))).collect();
    let new = new.join(", ");
    if new.is_empty() {
        return Some(text.to_owned());
    }
    if !names.contains_key(key) {
        return edited(text, &[(key, format!("{{{new}}}"))], &mut |_, value| Some(value.into()));
    }
    with_new(text, key, &|text| match text.trim().strip_prefix('{') {
        Some(inner) if !old.is_empty() => Some(format!("{{{new}, {}", inner.trim_start())),
        _ => Some(format!("{{{new}}}")),
    })
}
