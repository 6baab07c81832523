//! Changes to the text of JSON objects. Unchanged parts keep their bytes and their order.

use crate::container::{as_json, members};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// Change of a member.
pub(super) enum Edit {
    Keep,
    Remove,
    Replace(String),
}

/// A member of an object: its key, and the positions of key and value.
struct JsonMember<'a> {
    key: Cow<'a, str>,
    start: usize,
    value: Range<usize>,
}

/// Changes members of an object, which `edit` receives as keys and values, and adds others at its end. `None` if the
/// text is not an object.
pub(super) fn edited(text: &str, added: &[(&str, String)], edit: &mut dyn FnMut(&str, &str) -> Edit) -> Option<String> {
    let json = as_json(text);
    let members = scan(&json)?;
    let Some(first) = members.first() else {
        let body: Vec<String> = added.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
        return Some(if body.is_empty() { text.to_owned() } else { format!("{{{}}}", body.join(", ")) });
    };
    let mut changed = text[..first.start].to_owned();
    let (mut end, mut is_first) = (first.start, true);
    for member in &members {
        let value = member.value.clone();
        let replaced = match edit(&member.key, &text[value.clone()]) {
            Edit::Remove => {
                end = value.end;
                continue;
            }
            Edit::Keep => None,
            Edit::Replace(value) => Some(value),
        };
        let start = if is_first { member.start } else { end };
        changed += &text[start..value.start];
        changed += replaced.as_deref().unwrap_or(&text[value.clone()]);
        (end, is_first) = (value.end, false);
    }
    // Uses the whitespace between the brace and the first member.
    let before = text[..first.start].rsplit('{').next().unwrap_or_default();
    for (key, value) in added {
        let joint = if is_first { String::new() } else { format!(",{}", if before.is_empty() { " " } else { before }) };
        changed.extend([&joint, "\"", key, "\": ", value]);
        is_first = false;
    }
    let last = members.last().map_or(0, |member| member.value.end);
    Some(changed + &text[last..])
}

/// Returns the members of an object, in order.
fn scan(json: &str) -> Option<Vec<JsonMember<'_>>> {
    let value = |at: usize| {
        let mut stream = serde_json::Deserializer::from_str(&json[at..]).into_iter::<&RawValue>();
        let value = stream.next()?.ok()?.get();
        Some((value, at + stream.byte_offset()))
    };
    let mut found = Vec::new();
    let mut end = json.len() - json.trim_start().strip_prefix('{')?.len();
    loop {
        let start = end + json[end..].find(|c: char| c != ',' && !c.is_whitespace())?;
        if json[start..].starts_with('}') {
            return Some(found);
        }
        let (key, after_key) = value(start)?;
        let (text, after) = value(after_key + json[after_key..].find(':')? + 1)?;
        found.push(JsonMember { key: serde_json::from_str(key).ok()?, start, value: after - text.len()..after });
        end = after;
    }
}

/// Adds a member at the end of an object, in place of a member with the same key. `None` if the text is not an object.
pub(super) fn with_member(text: &str, key: &str, value: &str) -> Option<String> {
    edited(text, &[(key, value.to_owned())], &mut |name, _| if name == key { Edit::Remove } else { Edit::Keep })
}

/// Replaces the value of this key in an object, unless `new` returns `None`.
pub(super) fn with_new(text: &str, key: &str, new: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    edited(text, &[], &mut |name, text| {
        if name == key { new(text).map_or(Edit::Keep, Edit::Replace) } else { Edit::Keep }
    })
}

/// Removes the members of an object with these names.
pub(super) fn without_members(text: &str, names: &HashSet<&str>) -> Option<String> {
    edited(text, &[], &mut |key, _| if names.contains(key) { Edit::Remove } else { Edit::Keep })
}

/// Adds entries to the lists of an object under these keys, or a list under the first key.
pub(super) fn listed<S: AsRef<str>>(text: &str, keys: &[&str], entries: &[S]) -> Option<String> {
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
            return Edit::Keep;
        }
        let inner = list.trim().strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or_default();
        let body = inner.trim_end();
        let before = &body[..body.len() - body.trim_start().len()];
        let joint = format!(",{}", if before.is_empty() { " " } else { before });
        Edit::Replace(match body {
            "" => format!("[{}]", items.join(", ")),
            body => format!("[{body}{joint}{}{}]", items.join(&joint), &inner[body.len()..]),
        })
    })
}

/// Adds members in front of the members of the inner object under this key.
pub(super) fn with_members<'v>(
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
        return edited(text, &[(key, format!("{{{new}}}"))], &mut |_, _| Edit::Keep);
    }
    with_new(text, key, &|text| match text.trim().strip_prefix('{') {
        Some(inner) if !old.is_empty() => Some(format!("{{{new}, {}", inner.trim_start())),
        _ => Some(format!("{{{new}}}")),
    })
}
