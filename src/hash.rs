//! SHA-256 of tensors: of their bytes as they lie in a file, unpacked where they are compressed.

use crate::container::{Data, Elements, Form, Input, Reader, Tensor};
use crate::error::{Result, hex_digits};
use crate::io::map::MappedFile;
use crate::plan::{Plan, source_form};
use crate::progress::Progress;
use crate::threads::each;
use sha2::{Digest, Sha256};

/// Bytes that are hashed at a time.
const PIECE: usize = 1 << 20;

/// The hashes of one tensor, as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hashes {
    /// Of its bytes in the input; `None` of text.
    pub source: Option<String>,
    /// Of its bytes in the output.
    pub target: String,
}

/// The hashes of all tensors of a plan, whose output is written; a thread takes a tensor at a time.
///
/// # Errors
/// When a source is damaged, or changes meanwhile.
pub(crate) fn of(
    plan: &Plan,
    inputs: &[Input],
    output: &MappedFile,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Hashes>> {
    let hashes = |at: usize| -> Result<Hashes> {
        let tensor = &plan.tensors[at];
        let input = &inputs[tensor.input];
        let source = of_tensor(tensor.source, input, progress)
            .map_err(|error| error.in_tensor(&tensor.source.name).in_file(input.path()))?;
        let target = output.get(tensor.target.start as usize..tensor.target.end as usize).unwrap_or_default();
        Ok(Hashes { source, target: of_bytes(target, progress) })
    };
    let hashes = each(threads, plan.tensors.len(), hashes).into_iter().collect::<Result<_>>()?;
    plan.check_unchanged(inputs)?;
    Ok(hashes)
}

/// The hash of a tensor in a file; `None` of text.
///
/// # Errors
/// When it is damaged.
pub(crate) fn of_tensor(tensor: &Tensor, input: &Input, progress: &dyn Progress) -> Result<Option<String>> {
    if let Data::Mapped { file, range, .. } = &tensor.data {
        return Ok(Some(of_bytes(&input.files[*file][range.clone()], progress)));
    }
    let mut left = match source_form(tensor, None) {
        Ok(Form::Numbers(storage)) => storage.bytes(tensor.count).unwrap_or_default(),
        Err(_) if tensor.elements == Elements::Opaque => tensor.count,
        _ => return Ok(None),
    };
    let mut reader = Reader::open_at_once(tensor, &input.files, false)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; left.min(PIECE as u64) as usize];
    while left > 0 {
        let piece = &mut buffer[..left.min(PIECE as u64) as usize];
        reader.fill(piece)?;
        hasher.update(&*piece);
        left -= piece.len() as u64;
    }
    reader.finish()?;
    progress.advance(tensor.data.stored_len());
    Ok(Some(hex_digits(&hasher.finalize())))
}

fn of_bytes(bytes: &[u8], progress: &dyn Progress) -> String {
    let mut hasher = Sha256::new();
    for piece in bytes.chunks(PIECE) {
        hasher.update(piece);
        progress.advance(piece.len() as u64);
    }
    hex_digits(&hasher.finalize())
}
