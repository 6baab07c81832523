//! Finished files, read by the crate `npyz`.

use super::descr::descr_of;
use crate::container::{Rereading, WrittenTensor, is_countable};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use npyz::{DType, NpyHeader, Order};

/// Compares the header of a finished file with the array of its plan. The type of texts is only measured.
///
/// # Errors
/// When the crate refuses the header, or reads another array.
pub(super) fn check(mut file: &[u8], tensors: Rereading) -> Result<()> {
    let refused = |error: std::io::Error| Error::new(shorten(&error.to_string()));
    let len = file.len();
    for WrittenTensor { tensor, range } in tensors.filter(|written| is_countable(written.tensor.shape)) {
        let header = NpyHeader::from_reader(&mut file).map_err(refused)?;
        let bytes = header.dtype().num_bytes().map_or(0, |bytes| bytes as u64 * header.len());
        let is_same_type = match descr_of(tensor.dtype) {
            Some(descr) => header.dtype() == DType::parse(&descr).map_err(refused)?,
            None => tensor.dtype == Dtype::String,
        };
        let order = if tensor.fortran_order { Order::Fortran } else { Order::C };
        let is_same_place = range == ((len - file.len()) as u64..len as u64) && bytes == file.len() as u64;
        if !(is_same_type && is_same_place && header.shape() == tensor.shape && header.order() == order) {
            return Err(Error::new("its dtype, shape, order or place differs"));
        }
    }
    Ok(())
}
