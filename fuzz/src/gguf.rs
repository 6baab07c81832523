//! A GGUF model, whose header describes blocks of codes and scales.

use super::elements::{MOST, check_places};
use super::trial::{MIB, check_error, in_folder, probe, within};
use std::fs;
use std::path::Path;
use tcast::blocks::BlockFormat;
use tcast::container::checkpoint::Naming;
use tcast::container::{self, Data, Elements, Input, Tensor};
use tcast::dtype::Dtype;
use tcast::kernel::Isa;
use tcast::options::DequantizeOptions;
use tcast::{IfExists, Settings};

/// Checks a `.gguf` file: it is read or refused in little memory, all instruction sets decode its blocks to the same
/// values, and a decoded model has them, with the names and shapes of the file. With the names of Hugging Face, it is
/// decoded or refused.
pub fn gguf_header(bytes: &[u8]) {
    let Some(input) = probe("gguf", bytes, 8 * MIB + 128 * bytes.len()) else { return };
    check_places(&input);
    input.contents.unreadable.iter().for_each(check_error);
    let values = input.contents.tensors.iter().try_fold(0, |sum: u64, tensor| sum.checked_add(tensor.count));
    if values.is_none_or(|values| 8 * values > MOST) {
        return;
    }
    for tensor in &input.contents.tensors {
        if let Some((format, blocks)) = blocks(tensor, &input) {
            check_sets(format, blocks);
        }
    }
    in_folder(|folder| {
        let limit = 64 * MIB + 256 * bytes.len();
        within(limit, || check_listing(&folder.join("in.gguf"), &input));
        let decoded = folder.join("decoded.safetensors");
        if within(limit, || decode(folder, &decoded, Naming::File)) {
            check_decoded(&decoded, &input);
            fs::remove_file(&decoded).expect("it is there");
        }
        let renamed = folder.join("decoded");
        if within(limit, || decode(folder, &renamed, Naming::HuggingFace)) {
            tcast::TensorFiles::open(&renamed).unwrap_or_else(|error| panic!("what was written is refused: {error}"));
            fs::remove_dir_all(&renamed).expect("it is there");
        }
    });
}

/// Returns the format and the bytes of a tensor that consists of blocks.
fn blocks<'a>(tensor: &Tensor, input: &'a Input) -> Option<(&'static BlockFormat, &'a [u8])> {
    let (Elements::Blocks(format), Data::Mapped { file, range, .. }) = (tensor.elements, &tensor.data) else {
        return None;
    };
    Some((format, &input.files[*file as usize][range.clone()]))
}

/// Returns the values of blocks.
fn values(format: &BlockFormat, blocks: &[u8], isa: Isa, target: Dtype) -> Vec<u8> {
    let count = blocks.len() / format.bytes as usize * format.elements as usize;
    let mut values = vec![0; count * target.bits() as usize / 8];
    format.decode(isa, blocks, None, target, &mut values);
    values
}

fn check_sets(format: &BlockFormat, blocks: &[u8]) {
    for target in [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16, Dtype::Float64] {
        let baseline = values(format, blocks, Isa::Baseline, target);
        for isa in Isa::available() {
            assert!(values(format, blocks, isa, target) == baseline, "{} to {target} with {}", format.name, isa.name());
        }
    }
}

/// Checks that a listing has the shapes of the model, if it can be listed.
fn check_listing(path: &Path, input: &Input) {
    match tcast::TensorFiles::open(path) {
        Ok(files) => {
            for tensor in files.tensors().list() {
                let stored = input.contents.tensors.iter().find(|stored| *stored.name == *tensor.name);
                assert_eq!(stored.map(|stored| &*stored.shape), Some(&*tensor.shape), "{}", tensor.name);
            }
        }
        Err(error) => check_error(&error),
    }
}

/// Decodes the file of the trial to float32. Returns true if it is not refused.
fn decode(folder: &Path, output: &Path, names: Naming) -> bool {
    let mut options = DequantizeOptions::to(Dtype::Float32);
    options.tensors.naming.names = Some(names);
    let mut settings = Settings::default();
    (settings.existing, settings.sync) = (IfExists::Replace, false);
    settings.threads = std::num::NonZeroUsize::new(2);
    settings.dequantize(folder.join("in.gguf"), output, &options).inspect_err(check_error).is_ok()
}

/// Checks that every tensor of blocks is in the output with its values, unless another tensor has a scale of them.
fn check_decoded(output: &Path, input: &Input) {
    let output = container::open(output).unwrap_or_else(|error| panic!("what was written is refused: {error}"));
    check_places(&output);
    for tensor in &input.contents.tensors {
        let Some((format, blocks)) = blocks(tensor, input) else { continue };
        let decoded = output.contents.tensors.iter().find(|decoded| decoded.name == tensor.name);
        let decoded = decoded.unwrap_or_else(|| panic!("{} was dropped", tensor.name));
        assert_eq!(decoded.shape, tensor.shape, "{}", tensor.name);
        let scale = tensor.name.strip_suffix(".weight").map(|stem| format!("{stem}.scale"));
        if scale.is_some_and(|scale| input.contents.tensors.iter().any(|other| *other.name == *scale)) {
            continue;
        }
        let Data::Mapped { file, range, .. } = &decoded.data else { panic!("values are stored as they are") };
        let values = values(format, blocks, Isa::Baseline, Dtype::Float32);
        assert!(output.files[*file as usize][range.clone()] == values[..], "{} has other values", tensor.name);
    }
}
