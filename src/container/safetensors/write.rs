//! Writes headers: the order of the tensors' bytes, and the JSON that describes it.

use super::METADATA;
use super::notes::{ALWAYS_JSON, StoredForm, json, store};
use crate::container::{NewTensor, NewTensors, Placement};
use crate::error::Result;
use crate::io::map::large_buffer;
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

/// Returns the length and the JSON, padded with spaces to a multiple of 8, in parts with their offsets: each thread
/// writes one part.
pub(super) fn write_header(
    tensors: &dyn NewTensors,
    places: &[Placement],
    metadata: Option<&[(String, String)]>,
    threads: usize,
) -> Result<Vec<(u64, Vec<u8>)>> {
    /// Minimum number of tensors for each thread.
    const PART: usize = 1 << 14;
    let (count, parts) = (places.len(), threads.min(places.len() / PART).max(1));
    let range = |at: usize| count * at / parts..count * (at + 1) / parts;
    let write = |at: usize| {
        let mut part = large_buffer(range(at).map(|at| tensors.get(at).name.len() + ENTRY).sum());
        if at == 0 {
            part.extend([0; 8]);
            part.push(b'{');
            if let Some(pairs) = metadata {
                let pairs: Vec<String> =
                    pairs.iter().map(|(key, value)| format!("{}:{}", json(key), json(value))).collect();
                part.extend(format!("{}:{{{}}},", json(METADATA), pairs.join(",")).bytes());
            }
        }
        write_entries(&mut part, range(at).map(|at| (tensors.get(at), &places[at].range))).map(|()| part)
    };
    let parts = threads::each(parts, parts, write).into_iter().collect::<Result<Vec<_>>>()?;
    let mut end = 0;
    let offset = |part: Vec<u8>| {
        let offset = end;
        end += part.len() as u64;
        (offset, part)
    };
    let mut parts: Vec<(u64, Vec<u8>)> = parts.into_iter().map(offset).collect();
    let (offset, last) = parts.last_mut().expect("the first part is always there");
    last.pop_if(|last| *last == b',');
    last.push(b'}');
    let len = (*offset + last.len() as u64).next_multiple_of(8);
    last.resize((len - *offset) as usize, b' ');
    parts[0].1[..8].copy_from_slice(&(len - 8).to_le_bytes());
    Ok(parts)
}

/// The approximate length of an entry without its name.
const ENTRY: usize = 80;

fn write_entries<'a>(
    header: &mut Vec<u8>,
    tensors: impl Iterator<Item = (NewTensor<'a>, &'a Range<u64>)>,
) -> Result<()> {
    for (tensor, range) in tensors {
        let (StoredForm { dtype, shape, .. }, _) = store(&tensor)?; // computed again, because keeping them takes longer
        push_json(header, &*tensor.name);
        header.extend_from_slice(br#":{"dtype":"#);
        push_json(header, &*dtype);
        header.extend_from_slice(br#","shape":"#);
        push_json(header, &*shape);
        header.extend_from_slice(br#","data_offsets":"#);
        push_json(header, &[range.start, range.end]);
        header.extend_from_slice(b"},");
    }
    Ok(())
}

fn push_json<T: Serialize + ?Sized>(header: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(header, value).expect(ALWAYS_JSON);
}
