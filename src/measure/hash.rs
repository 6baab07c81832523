//! SHA-256 of tensors: of their bytes in a file, decompressed; of texts as the fields of an ONNX tensor.

use crate::container::{Data, Elements, Form, Tensor, TextForm};
use crate::conversion::Conversion;
use crate::error::Result;
use crate::io::map::MappedFile;
use crate::plan::{NewStored, Operation, Plan, source_form};
use crate::progress::Progress;
use crate::read::{MappedBytes, SourceTensor};
use crate::text::hex_digits;
use crate::threads::each;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Number of bytes hashed at a time.
const PIECE: usize = 1 << 20;

/// Form in which texts are hashed, because every container stores them differently.
const HASHED_TEXTS: Form = Form::Texts(TextForm::Fields { tag: 0x32 });

/// Hashes of one tensor, as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hashes {
    /// Hash of its bytes in the input; `None` if their number is unknown.
    pub source: Option<String>,
    /// Hash of the bytes of each stored tensor of the output that its results are or begin.
    pub targets: Vec<String>,
}

/// Computes the hashes of all tensors of a plan whose output is written; each thread takes one tensor at a time.
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
        let target = |stored: Range<u64>| {
            let start = plan.data_start.filter(|start| stored.start >= *start);
            let (file, start) = match (start, data) {
                (Some(start), Some(data)) => (data, start),
                _ => (output, 0),
            };
            let range = (stored.start - start) as usize..(stored.end - start) as usize;
            if let Operation::Convert(conversion) = &step.how
                && let to @ Form::Texts(_) = conversion.to
            {
                let (elements, data) = (Elements::Typed(to), Data::Mapped { file: 0, range, checksum: None });
                let tensor = Tensor { elements, data, ..step.source().clone() };
                let files = std::slice::from_ref(file);
                let written = SourceTensor { files, tensor: &tensor, elements, is_transposed: false };
                return of_texts(&written, to, progress);
            }
            of_mapped(&MappedBytes { file, range, checksum: None }, progress)
        };
        Ok(Hashes {
            source,
            targets: step.results.iter().filter_map(NewStored::stored_range).map(target).collect::<Result<_>>()?,
        })
    };
    let hashes = each(threads, plan.steps.len(), hashes).into_iter().collect::<Result<_>>()?;
    plan.check_unchanged()?;
    Ok(hashes)
}

/// Computes the hash of a tensor in a file; `None` if the number of its bytes is unknown.
pub(crate) fn of_tensor(tensor: &Tensor, files: &[MappedFile], progress: &dyn Progress) -> Result<Option<String>> {
    let source = SourceTensor { files, tensor, elements: tensor.elements, is_transposed: false };
    let form = source_form(tensor, None);
    if let Ok(form @ Form::Texts(_)) = form {
        return of_texts(&source, form, progress).map(Some);
    }
    if let Some(mapped) = source.mapped() {
        return of_mapped(&mapped, progress).map(Some).map_err(|error| source.error(error));
    }
    let mut left = match form {
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

fn of_texts(source: &SourceTensor, form: Form, progress: &dyn Progress) -> Result<String> {
    let conversion = Conversion::copy(form, HASHED_TEXTS).expect("both are texts");
    let mut hasher = Sha256::new();
    let mut hash = |_: &[u8], fields: &[u8], _| {
        hasher.update(fields);
        Ok(())
    };
    conversion.run(source.named(), source.open()?, &mut hash).map_err(|error| source.error(error))?;
    progress.advance(source.stored_len());
    Ok(hex_digits(&hasher.finalize()))
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
