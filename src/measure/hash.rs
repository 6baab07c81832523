//! SHA-256 of tensors: of their bytes in a file, decompressed.

use crate::container::{Elements, Form, Tensor};
use crate::error::Result;
use crate::io::map::MappedFile;
use crate::plan::{NewStored, Plan, source_form};
use crate::progress::Progress;
use crate::read::{MappedBytes, SourceTensor};
use crate::text::hex_digits;
use crate::threads::each;
use sha2::{Digest, Sha256};

/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;

/// The hashes of one tensor, as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hashes {
    /// Of its bytes in the input; `None` for text.
    pub source: Option<String>,
    /// Of the bytes of each of its results in the output.
    pub targets: Vec<String>,
}

/// The hashes of all tensors of a plan, whose output is written; each thread takes one tensor at a time.
pub(crate) fn of(
    plan: &Plan,
    (output, data): (&MappedFile, Option<&MappedFile>),
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Hashes>> {
    let hashes = |at: usize| -> Result<Hashes> {
        let step = &plan.steps[at];
        let source = of_tensor(step.source(), step.sources[0].files, progress)?;
        if step.stays {
            return Ok(Hashes { targets: source.iter().cloned().collect(), source });
        }
        let target = |result: &NewStored| {
            let start = plan.data_start.filter(|start| result.range.start >= *start);
            let (file, start) = match (start, data) {
                (Some(start), Some(data)) => (data, start),
                _ => (output, 0),
            };
            let range = (result.range.start - start) as usize..(result.range.end - start) as usize;
            of_mapped(&MappedBytes { file, range, checksum: None }, progress)
        };
        Ok(Hashes { source, targets: step.results.iter().map(target).collect::<Result<_>>()? })
    };
    let hashes = each(threads, plan.steps.len(), hashes).into_iter().collect::<Result<_>>()?;
    plan.check_unchanged()?;
    Ok(hashes)
}

/// The hash of a tensor in a file; `None` for text.
pub(crate) fn of_tensor(tensor: &Tensor, files: &[MappedFile], progress: &dyn Progress) -> Result<Option<String>> {
    let source = SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false };
    if let Some(mapped) = source.mapped() {
        return of_mapped(&mapped, progress).map(Some).map_err(|error| source.error(error));
    }
    let mut left = match source_form(tensor, None) {
        Ok(Form::Numbers(storage)) => storage.bytes(tensor.count).unwrap_or_default(),
        Err(_) if tensor.elements == Elements::Opaque => tensor.count,
        _ => return Ok(None),
    };
    let mut read = || -> Result<String> {
        let mut reader = source.open()?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; left.min(PIECE as u64) as usize];
        while left > 0 {
            let piece = &mut buffer[..left.min(PIECE as u64) as usize];
            reader.fill(piece)?;
            hasher.update(&*piece);
            left -= piece.len() as u64;
        }
        reader.finish()?;
        Ok(hex_digits(&hasher.finalize()))
    };
    let digits = read().map_err(|error| source.error(error))?;
    progress.advance(source.stored_len());
    Ok(Some(digits))
}

fn of_mapped(mapped: &MappedBytes, progress: &dyn Progress) -> Result<String> {
    let mut hasher = Sha256::new();
    let len = mapped.range.len();
    for start in (0..len).step_by(PIECE) {
        let piece = mapped.read(start..len.min(start + PIECE))?;
        hasher.update(piece);
        progress.advance(piece.len() as u64);
    }
    Ok(hex_digits(&hasher.finalize()))
}
