//! Writes headers: the order of the tensors' bytes, and the JSON that describes it.

use super::METADATA;
use super::notes::{ALWAYS_JSON, StoredForm, json, store};
use crate::container::{HeaderEntries, NewTensor, NewTensors};
use crate::error::Result;
use crate::threads;
use serde::Serialize;
use std::ops::Range;

/// Number of tensors whose entries are written together. They take about as much as the engine writes at once.
pub(super) const PART: usize = 1 << 13;

/// Ranges of the bytes of tensors, relative to the end of the header.
pub(super) enum DataRanges {
    /// In the order of the tensors: the starts of the first of each [`PART`] tensors.
    InOrder(Vec<u64>),
    Listed(Vec<Range<u64>>),
}

impl DataRanges {
    /// Moves wider types to the front, as the reference writer does, so that no tensor is misaligned.
    pub(super) fn aligned(tensors: &dyn NewTensors) -> Result<Self> {
        let stored = |at| Ok(store(&tensors.get(at))?.0).map(|stored| (stored.alignment, stored.bytes));
        let stored = (0..tensors.count()).map(stored).collect::<Result<Vec<(u64, u64)>>>()?;
        let mut order: Vec<usize> = (0..stored.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(stored[at].0));
        let (mut ranges, mut end) = (vec![0..0; stored.len()], 0);
        for at in order {
            ranges[at] = end..end + stored[at].1; // their sum was checked
            end = ranges[at].end;
        }
        Ok(Self::Listed(ranges))
    }

    /// Appends the entries of a part of the tensors, and calls a function after each.
    fn write(
        &self,
        tensors: &dyn NewTensors,
        part: usize,
        header: &mut Vec<u8>,
        mut each: impl FnMut(&mut Vec<u8>),
    ) -> Result<()> {
        let mut end = if let Self::InOrder(starts) = self { starts[part] } else { 0 };
        for at in part_of(tensors, part) {
            let tensor = tensors.get(at);
            let range = match self {
                Self::InOrder(_) => end..end + store(&tensor)?.0.bytes,
                Self::Listed(ranges) => ranges[at].clone(),
            };
            end = range.end;
            write_entry(header, &tensor, range)?;
            each(header);
        }
        Ok(())
    }
}

fn part_of(tensors: &dyn NewTensors, part: usize) -> Range<usize> {
    part * PART..tensors.count().min((part + 1) * PART)
}

/// Literal bytes with their offsets, and the entries between them that are written later.
type Header = (Vec<(u64, Vec<u8>)>, Vec<HeaderEntries>);

/// Returns the length and the JSON, padded with spaces to a multiple of 8. The entries of many tensors are only measured, on
/// several threads, if the caller can write them later.
pub(super) fn write_header(
    tensors: &dyn NewTensors,
    ranges: &DataRanges,
    metadata: Option<&[(String, String)]>,
    threads: usize,
) -> Result<Header> {
    let (mut head, mut entries, parts) = (vec![0; 8], Vec::new(), tensors.count().div_ceil(PART));
    head.push(b'{');
    if let Some(pairs) = metadata {
        let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{}:{}", json(key), json(value))).collect();
        head.extend(format!("{}:{{{}}},", json(METADATA), pairs.join(",")).bytes());
    }
    if tensors.are_kept() && parts > 1 {
        let measure = |part: usize| {
            let (mut entry, mut len) = (Vec::new(), 0);
            let measured = ranges.write(tensors, part, &mut entry, |entry| {
                len += entry.len() as u64;
                entry.clear();
            });
            measured.map(|()| len)
        };
        let mut start = head.len() as u64;
        for (part, len) in threads::each(threads, parts, measure).into_iter().enumerate() {
            let range = start..start + len?;
            start = range.end;
            entries.push(HeaderEntries { range, tensors: part_of(tensors, part), data_start: 0, write: write_entry });
        }
    } else {
        (0..parts).try_for_each(|part| ranges.write(tensors, part, &mut head, |_| ()))?;
    }
    // No comma follows the last entry.
    let end = if let Some(HeaderEntries { range, .. }) = entries.last_mut() {
        range.end -= 1;
        range.end
    } else {
        head.pop_if(|last| *last == b',');
        head.len() as u64
    };
    let len = (end + 1).next_multiple_of(8);
    let mut tail = vec![b' '; (len - end) as usize];
    tail[0] = b'}';
    head[..8].copy_from_slice(&(len - 8).to_le_bytes());
    for part in &mut entries {
        part.data_start = len;
    }
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
    // Without an early exit, the loop vectorizes.
    if text.bytes().fold(false, |found, byte| found | matches!(byte, b'"' | b'\\' | ..0x20)) {
        return push_json(header, text);
    }
    header.push(b'"');
    header.extend_from_slice(text.as_bytes());
    header.push(b'"');
}

fn push_json<T: Serialize + ?Sized>(header: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(header, value).expect(ALWAYS_JSON);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;

    struct KeptTensors(Vec<NewTensor<'static>>);

    impl NewTensors for KeptTensors {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn get(&self, at: usize) -> NewTensor<'_> {
            self.0[at].clone()
        }

        fn are_kept(&self) -> bool {
            true
        }
    }

    /// Returns a header of tensors of 4 bytes, and the number of its parts that are written later.
    fn header(tensors: &dyn NewTensors) -> (Vec<u8>, usize) {
        let starts = (0..tensors.count()).step_by(PART).map(|at| 4 * at as u64).collect();
        let metadata = [("format".to_owned(), "pt".to_owned())];
        let (mut parts, entries) = write_header(tensors, &DataRanges::InOrder(starts), Some(&metadata), 2).unwrap();
        for HeaderEntries { range, tensors: numbers, write, data_start } in &entries {
            let mut bytes = Vec::new();
            for at in numbers.clone() {
                write(&mut bytes, &tensors.get(at), 4 * at as u64..4 * at as u64 + 4).unwrap();
            }
            bytes.truncate((range.end - range.start) as usize);
            parts.push((range.start, bytes));
            assert!(data_start.is_multiple_of(8));
        }
        parts.sort();
        let mut whole = Vec::new();
        for (offset, bytes) in parts {
            assert_eq!(offset, whole.len() as u64);
            whole.extend(bytes);
        }
        (whole, entries.len())
    }

    #[test]
    fn entries_that_are_written_later_give_the_same_header() {
        let tensor = |at: usize| NewTensor {
            name: format!("\"{at}\\\u{1f}é").into(),
            dtype: Dtype::Float32,
            shape: if at.is_multiple_of(3) { &[] } else { &[1, 1] },
            count: 1,
            fortran_order: false,
            text: None,
            opaque: None,
            blocks: None,
        };
        for count in [0, 1, PART, PART + 1, 3 * PART + 5] {
            let tensors: Vec<NewTensor> = (0..count).map(tensor).collect();
            let (at_once, none) = header(&tensors);
            let (later, parts) = header(&KeptTensors(tensors));
            assert!(at_once == later, "{count} tensors");
            assert_eq!((none, parts), (0, if count > PART { count.div_ceil(PART) } else { 0 }));
            let json: serde_json::Value = serde_json::from_slice(&later[8..]).unwrap();
            assert_eq!(json.as_object().unwrap().len(), count + 1);
        }
    }
}
