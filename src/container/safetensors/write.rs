//! Writes headers: the order of the tensors' bytes, and the JSON that describes it.

use super::METADATA;
use super::notes::{ALWAYS_JSON, StoredForm, json, store};
use crate::container::{HeaderEntries, NewTensor, NewTensors, Placement};
use crate::error::Result;
use crate::threads;
use serde::Serialize;
use std::ops::Range;

/// Moves wider types to the front, as the reference writer does, so that no tensor is misaligned.
pub(super) fn align(places: &mut [Placement], tensors: &dyn NewTensors) -> Result<()> {
    let alignment = |at| Ok(store(&tensors.get(at))?.0.alignment);
    let alignments = (0..places.len()).map(alignment).collect::<Result<Vec<u64>>>()?;
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(alignments[at]));
    let mut end = 0;
    for at in order {
        let range = &mut places[at].range;
        *range = end..end + (range.end - range.start); // their sum was checked
        end = range.end;
    }
    Ok(())
}

/// Literal bytes with their offsets, and the entries between them that are written later.
type Header = (Vec<(u64, Vec<u8>)>, Vec<HeaderEntries>);

/// Returns the length and the JSON, padded with spaces to a multiple of 8. The entries of many tensors are only measured, on
/// several threads, if the caller can write them later.
pub(super) fn write_header(
    tensors: &dyn NewTensors,
    places: &[Placement],
    metadata: Option<&[(String, String)]>,
    threads: usize,
) -> Result<Header> {
    /// Number of tensors whose entries are written together. They take about as much as the engine writes at once.
    const PART: usize = 1 << 13;
    let (count, mut head, mut entries) = (places.len(), vec![0; 8], Vec::new());
    head.push(b'{');
    if let Some(pairs) = metadata {
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{}:{}", json(key), json(value))).collect();
        head.extend(format!("{}:{{{}}},", json(METADATA), pairs.join(",")).bytes());
    }
    let write = |header: &mut Vec<u8>, at: usize| write_entry(header, &tensors.get(at), places[at].range.clone());
    if tensors.are_kept() && count > PART {
        let part = |at: usize| at * PART..count.min((at + 1) * PART);
        let measure = |at: usize| {
            let (mut entry, mut len) = (Vec::new(), 0);
            for at in part(at) {
                entry.clear();
                write(&mut entry, at)?;
                len += entry.len() as u64;
            }
            Ok(len)
        };
        let mut start = head.len() as u64;
        for (at, len) in threads::each(threads, count.div_ceil(PART), measure).into_iter().enumerate() {
            let range = start..start + len?;
            start = range.end;
            entries.push(HeaderEntries { range, tensors: part(at), data_start: 0, write: write_entry });
        }
    } else {
        (0..count).try_for_each(|at| write(&mut head, at))?;
    }
    // No comma follows the last entry.
    let end = match entries.last_mut() {
        Some(HeaderEntries { range, .. }) => {
            range.end -= 1;
            range.end
        }
        None => {
            head.pop_if(|last| *last == b',');
            head.len() as u64
        }
    };
    let len = (end + 1).next_multiple_of(8);
    let mut tail = vec![b' '; (len - end) as usize];
    tail[0] = b'}';
    head[..8].copy_from_slice(&(len - 8).to_le_bytes());
    entries.iter_mut().for_each(|entries| entries.data_start = len);
    Ok((vec![(0, head), (end, tail)], entries))
}

/// Appends the entry of a tensor, and a comma.
fn write_entry(header: &mut Vec<u8>, tensor: &NewTensor, range: Range<u64>) -> Result<()> {
    let (StoredForm { dtype, shape, .. }, _) = store(tensor)?; // computed again, because keeping them takes longer
    push_text(header, &tensor.name);
    header.extend_from_slice(br#":{"dtype":"#);
    push_text(header, &dtype);
    header.extend_from_slice(br#","shape":["#);
    for (at, length) in shape.iter().enumerate() {
        if at > 0 {
            header.push(b',');
        }
        push_json(header, length);
    }
    header.extend_from_slice(br#"],"data_offsets":["#);
    push_json(header, &range.start);
    header.push(b',');
    push_json(header, &range.end);
    header.extend_from_slice(b"]},");
    Ok(())
}

/// Appends a text as JSON. Most names have no characters to escape.
fn push_text(header: &mut Vec<u8>, text: &str) {
    if text.bytes().any(|byte| matches!(byte, b'"' | b'\\' | ..0x20)) {
        return push_json(header, text);
    }
    header.push(b'"');
    header.extend_from_slice(text.as_bytes());
    header.push(b'"');
}

fn push_json<T: Serialize + ?Sized>(header: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(header, value).expect(ALWAYS_JSON);
}
