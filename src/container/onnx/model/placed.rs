//! Layout of a changed model.

use super::super::super::{FileLayout, Form, Placement, Tensor, too_long};
use super::edit::{FilePart, New};
use crate::dtype::Dtype;
use crate::error::Result;
use std::collections::HashMap;
use std::ops::Range;

/// Alignment of external data, which ONNX Runtime maps in pages.
const ALIGNMENT: u64 = 4096;
/// Size in bytes below which a tensor stays in the model, as with `onnx.save`.
pub(super) const SMALL: u64 = 1024;
/// Layout of the changed model.
#[derive(Debug)]
pub(crate) struct ModelLayout {
    /// Literals and the length. The file with the elements follows the model.
    pub layout: FileLayout,
    /// Index of each tensor in `layout.places`; `None` if it stays in its place.
    pub places: Vec<Option<usize>>,
    /// Ranges of the old file with their offsets.
    pub copies: Vec<(u64, Range<usize>)>,
    /// Start of the file with the elements.
    pub data_start: Option<u64>,
}

/// The tensors that get new places.
#[derive(Default)]
pub(super) struct Placed {
    /// Index of each tensor of the model in `forms`.
    pub index: Vec<Option<usize>>,
    /// Forms and lengths, and offsets in the file next to the model.
    pub forms: Vec<(Form, Range<u64>)>,
    is_beside: Vec<usize>,
    /// End of the file next to the model.
    end: u64,
    /// Offsets of stored elements: tensors that share elements share them in the output too.
    known: HashMap<(usize, usize, Dtype, u64, Dtype), u64>,
}

impl Placed {
    /// Assigns the last tensor a place in the file next to the model, and returns its offset. `stored` holds the source
    /// elements and the target type, if tensors with the same elements and type may share the place.
    pub(super) fn beside(&mut self, stored: Option<(&Tensor, Dtype)>, len: u64) -> u64 {
        let start = self.end.next_multiple_of(ALIGNMENT);
        let offset = stored.and_then(|(tensor, target)| {
            let (file, range) = tensor.mapped_range()?;
            Some(*self.known.entry((file, range.start, tensor.elements.stored_dtype(), len, target)).or_insert(start))
        });
        let offset = offset.unwrap_or(start);
        self.end = self.end.max(offset + len);
        let last = self.forms.len() - 1;
        self.forms[last].1 = offset..offset + len;
        self.is_beside.push(last);
        offset
    }

    /// Lays out the parts of the model, followed by the file next to it.
    pub(super) fn lay_out(self, pieces: Vec<FilePart>) -> Result<ModelLayout> {
        let Self { index, forms, is_beside, end, .. } = self;
        let mut places: Vec<Placement> =
            forms.into_iter().map(|(form, range)| Placement { form, range, crc: None }).collect();
        let mut literals: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut copies = Vec::new();
        let mut offset = 0_u64;
        for piece in pieces {
            let len = match &piece {
                FilePart::Copied(range) => range.len() as u64,
                FilePart::New(new) => new.len(),
            };
            let next = offset.checked_add(len).ok_or_else(too_long)?;
            match piece {
                FilePart::Copied(range) => copies.push((offset, range)),
                FilePart::New(New::Bytes(bytes)) => match literals.last_mut() {
                    Some((start, last)) if *start + last.len() as u64 == offset => last.extend(bytes),
                    _ => literals.push((offset, bytes)),
                },
                FilePart::New(New::Elements(place, _)) => {
                    places[place].range = offset..next;
                }
            }
            offset = next;
        }
        for place in &is_beside {
            let range = &mut places[*place].range;
            *range = range.start + offset..range.end + offset;
        }
        let data_start = (!is_beside.is_empty()).then_some(offset);
        let len = offset.checked_add(end).ok_or_else(too_long)?;
        Ok(ModelLayout { layout: FileLayout { literals, places, len }, places: index, copies, data_start })
    }
}
