//! Checks that must hold for any bytes at all. The fuzz targets search for bytes that break one; `cargo test` runs the
//! same checks on all bytes that were found.

mod cast_any;
mod checkpoint;
mod distributed;
mod elements;
mod gguf;
mod models;
mod pytorch;
mod quantized;
mod strings;
mod trial;

pub use cast_any::cast_any;
pub use checkpoint::checkpoint_index;
pub use distributed::distributed;
pub use gguf::gguf_header;
pub use pytorch::pytorch_pickle;
pub use quantized::quantized_config;
pub use strings::string_parsing;

use trial::{MIB, probe};

/// Check that panics if something does not hold.
pub type Check = fn(&[u8]);

/// Every target, by the name that it has in `fuzz_targets` and in `fixtures/fuzz`.
pub static TARGETS: [(&str, Check); 13] = [
    ("npy_header", npy_header),
    ("safetensors_header", safetensors_header),
    ("safetensors_readers", safetensors_readers),
    ("gguf_header", gguf_header),
    ("pytorch_pickle", pytorch_pickle),
    ("distributed", distributed),
    ("onnx_walk", onnx_walk),
    ("onnx_model", onnx_model),
    ("zip_members", zip_members),
    ("checkpoint_index", checkpoint_index),
    ("quantized_config", quantized_config),
    ("string_parsing", string_parsing),
    ("cast_any", cast_any),
];

/// Checks a `.npy` file: it is read or refused in little memory, and a file that was read can be written again with the
/// same content.
pub fn npy_header(bytes: &[u8]) {
    read_and_write("npy", bytes);
}

/// Checks a `.safetensors` file, like [`npy_header`].
pub fn safetensors_header(bytes: &[u8]) {
    read_and_write("safetensors", bytes);
}

/// Checks the JSON of a `.safetensors` header: the general reader accepts all that the reader of usual headers accepts,
/// and both read the same, with any number of threads.
pub fn safetensors_readers(bytes: &[u8]) {
    let json = bytes.get(8..).filter(|json| json.starts_with(b"{")).unwrap_or(bytes); // a whole file, too
    let json = json.iter().rposition(|byte| *byte == b'}').map_or(json, |end| &json[..=end]);
    let all = [1, 2, 3, 7].map(|threads| tcast::container::read_header_twice(json, threads));
    for (usual, general) in all.iter().flatten() {
        let general = general.as_ref().unwrap_or_else(|error| panic!("only one reader refuses it: {error}"));
        assert_eq!(usual, general);
    }
    let is_taken = all[0].is_some();
    assert!(is_taken || all.iter().all(Option::is_none), "threads read what one does not");
}

/// Checks an ONNX tensor, like [`npy_header`].
pub fn onnx_walk(bytes: &[u8]) {
    read_and_write("pb", bytes);
}

/// Checks an ONNX model: it is read or refused in little memory, as is the model with narrower weights that is made
/// from it.
pub fn onnx_model(bytes: &[u8]) {
    if let Some(input) = probe("onnx", bytes, 8 * MIB + 128 * bytes.len()) {
        elements::check_places(&input);
        for tensor in &input.contents.tensors {
            let _ = elements::values(tensor, &input).inspect_err(trial::check_error);
        }
        if input.contents.unreadable.is_empty() {
            models::check_changed(&input, 8 * MIB + 128 * bytes.len());
        }
    }
}

/// Checks a `.npz` archive, like [`npy_header`]; damage to its members is detected when they are read.
pub fn zip_members(bytes: &[u8]) {
    read_and_write("npz", bytes);
}

fn read_and_write(extension: &str, bytes: &[u8]) {
    // A record of a few bytes in the file becomes a tensor, a name or a pair of metadata in memory; the header of an
    // array in an archive can be a MiB, however well it is compressed.
    if let Some(input) = probe(extension, bytes, 8 * MIB + 128 * bytes.len()) {
        elements::check_places(&input);
        elements::check_written_again(&input);
    }
}
