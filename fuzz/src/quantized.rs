//! A checkpoint with quantized weights, which its tensors and its config describe.

use super::trial::{MIB, check_error, in_folder, within};
use std::fs;
use std::path::Path;
use tcast::container::{self, Data, Elements, Input, Tensor};
use tcast::dtype::Dtype;
use tcast::error::{Error, Result};
use tcast::quant::{Arithmetic, CheckpointInfo, Decoder, StoredTensor, probe};

/// Checks a config, followed by a NUL and a `.safetensors` file: every problem is reported in one line, and every
/// recognized weight can be decoded.
pub fn quantized_config(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
    let Ok(config) = std::str::from_utf8(&bytes[..end]) else { return };
    in_folder(|folder| {
        let path = folder.join("quantized.safetensors");
        fs::write(&path, &bytes[end + 1..]).expect("the folder can be written to");
        if let Ok(input) = container::probe(&path) {
            // A pattern of the config may take some MiB.
            within(64 * MIB + 256 * bytes.len(), || recognize(&input, folder, config));
        }
    });
}

fn recognize(input: &Input, folder: &Path, config: &str) {
    let stored = |tensor: &'_ Tensor| match tensor.elements {
        Elements::Typed(form) => Some(form.dtype()),
        _ => None,
    };
    let contents = &input.contents.tensors;
    let tensors: Vec<StoredTensor> = contents
        .iter()
        .map(|tensor| StoredTensor { name: &tensor.name, dtype: stored(tensor), shape: &tensor.shape })
        .collect();
    let metadata = input.contents.metadata.iter().flatten();
    let metadata: Vec<(&str, &str)> = metadata.map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let found = probe(&CheckpointInfo {
        tensors: &tensors,
        folder,
        configs: &[("config.json", config)],
        metadata: &metadata,
        read: &|at| bytes_of(input, at).map(<[u8]>::to_vec),
    });
    found.problems.iter().for_each(|problem| check_error(&problem.error));
    for weight in &found.weights {
        let parts = weight.parts(&tensors);
        let decoder = Decoder::new(weight.layout, &weight.parameters, &parts, Dtype::Bfloat16, Arithmetic::Library)
            .expect("it was found");
        assert_eq!(decoder.shape(), weight.shape);
        if decoder.rows() == 0 || decoder.row_bytes() > MIB as u64 {
            continue;
        }
        let bytes: Result<Vec<&[u8]>> = weight.parts.iter().map(|(_, at)| bytes_of(input, *at)).collect();
        let mut row = vec![0; decoder.row_bytes() as usize];
        for at in [0, decoder.rows() - 1] {
            let bytes = bytes.as_ref().expect("they are in the file");
            let _ = decoder.decode(at..at + 1, bytes, &mut row).inspect_err(check_error);
        }
    }
}

/// Returns the bytes of a tensor.
fn bytes_of(input: &Input, at: usize) -> Result<&[u8]> {
    match &input.contents.tensors[at].data {
        Data::Mapped { file, range, .. } => Ok(&input.files[*file as usize][range.clone()]),
        Data::Streamed(_) => Err(Error::new("is streamed")),
    }
}
