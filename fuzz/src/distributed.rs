//! Folders that several processes wrote, whose pickles say where the pieces of tensors are.

use super::elements::{MOST, check_place, values};
use super::pytorch::archive;
use super::trial::{MIB, check_error, in_folder, within};
use std::fs;
use std::path::Path;
use tcast::container::ReadOptions;
use tcast::container::checkpoint::probe;

/// The files of chunks beside each `.metadata`.
const CHUNKS: [(&str, &[u8]); 2] = [
    ("__0_0.distcp", include_bytes!("../../fixtures/pytorch/distributed/dcp/__0_0.distcp")),
    ("__1_0.distcp", include_bytes!("../../fixtures/pytorch/distributed/dcp/__1_0.distcp")),
];

/// Checks a `.metadata` beside files of chunks, or behind a zero byte the pickle of each of two ranks: the folder is read or
/// refused in little memory, no file outside of it is opened, and all elements of a tensor that is read can be read.
pub fn distributed(bytes: &[u8]) {
    in_folder(|folder| {
        let folder = folder.join("distributed");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("the folder is free");
        let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("it can be written to");
        if let Some(pickle) = bytes.strip_prefix(&[0]) {
            let file = archive(pickle);
            for rank in [0, 1] {
                write(&format!("model_world_size_2_rank_{rank}.pt"), &file);
            }
        } else {
            for (name, bytes) in CHUNKS {
                write(name, bytes);
            }
            write(".metadata", bytes);
        }
        check_folder(&folder, 128 * MIB + 512 * bytes.len());
    });
}

fn check_folder(folder: &Path, limit: usize) {
    let found = match within(limit, || probe(folder, &ReadOptions::on(1))) {
        Ok(found) => found,
        Err(error) => return check_error(&error),
    };
    assert!(found.paths().all(|path| path.parent() == Some(folder)));
    for input in &found.shards {
        input.contents.unreadable.iter().for_each(check_error);
        let mut left = MOST;
        for tensor in &input.contents.tensors {
            check_place(tensor, input);
            let bytes = tensor.elements.bytes(tensor.count).expect("they were counted");
            let Some(rest) = left.checked_sub(bytes) else { continue };
            left = rest;
            values(tensor, input).unwrap_or_else(|error| panic!("{} cannot be read: {error}", tensor.name));
        }
    }
}
