//! Finished files, read by the crate `safetensors`, which most programs use.

use super::header_length;
use super::notes::{StoredForm, store};
use crate::container::{Rereading, WrittenTensor, is_countable};
use crate::error::{Error, Result};
use crate::text::shorten;
use safetensors::{Dtype, SafeTensors};

/// Longer headers are not read again: it would take long, and much memory.
const MAX_HEADER: usize = 8 << 20;

/// Compares the header of a finished file with the tensors of its plan.
///
/// # Errors
/// When the crate refuses the file, or reads other tensors.
pub(super) fn check(file: &[u8], tensors: Rereading) -> Result<()> {
    if header_length(file)? > MAX_HEADER {
        return Ok(());
    }
    let (header, read) = match SafeTensors::read_metadata(file) {
        Ok((header, read)) => (8 + header as u64, read),
        Err(_) if tensors.map(|written| is_readable(&written)).any(|is_readable| !is_readable) => return Ok(()),
        Err(error) => return Err(Error::new(shorten(&error.to_string()))),
    };
    let mut count = 0;
    for WrittenTensor { tensor, range } in tensors {
        let (StoredForm { dtype, shape, .. }, _) = store(&tensor)?;
        let is_same = read.info(&tensor.name).is_some_and(|found| {
            let offsets = header + found.data_offsets.0 as u64..header + found.data_offsets.1 as u64;
            let found_shape = found.shape.iter().map(|&length| length as u64);
            found.dtype.to_string() == dtype && found_shape.eq(shape.iter().copied()) && offsets == range
        });
        if !is_same {
            return Err(Error::new("its name, dtype, shape or place differs").in_tensor(&tensor.name));
        }
        count += 1;
    }
    if read.offset_keys().len() == count { Ok(()) } else { Err(Error::new("the number of tensors differs")) }
}

/// True if the crate knows the dtype, and can count the bits, which it does even if one of the lengths is 0.
fn is_readable(WrittenTensor { tensor, .. }: &WrittenTensor) -> bool {
    let Ok((StoredForm { dtype, shape, .. }, _)) = store(tensor) else { return false };
    serde_json::from_value::<Dtype>((&*dtype).into()).is_ok() && is_countable(&shape)
}
