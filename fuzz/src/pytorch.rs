//! A checkpoint of PyTorch, whose pickle describes views of storages.

use super::elements::{MOST, Values, check_place, values};
use super::trial::{MIB, check_error, in_folder, probe, within};
use std::collections::HashSet;
use std::fs;
use tcast::container::{self, Input};
use tcast::options::CastOptions;
use tcast::{IfExists, Settings};

/// Maximum number of tensors that are read.
const MOST_TENSORS: usize = 200;

/// Checks a checkpoint of PyTorch, or the pickle of one with two storages, `0` of 64 bytes and `1` of 8: it is read or
/// refused in little memory, names are distinct, and a cast writes all tensors with the elements that are read.
pub fn pytorch_pickle(bytes: &[u8]) {
    let is_file = bytes.starts_with(b"PK") || bytes.get(2) == Some(&0x8a);
    let file = if is_file { bytes.to_vec() } else { archive(bytes) };
    let Some(input) = probe("pt", &file, 64 * MIB + 256 * file.len()) else { return };
    input.contents.unreadable.iter().for_each(check_error);
    let tensors = &input.contents.tensors;
    for tensor in tensors {
        check_place(tensor, &input);
    }
    let names: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names.len(), tensors.len(), "two tensors have one name");
    let size = tensors.iter().try_fold(0, |sum: u64, tensor| sum.checked_add(tensor.elements.bytes(tensor.count)?));
    if tensors.len() <= MOST_TENSORS && size.is_some_and(|size| size <= MOST) && input.contents.unreadable.is_empty() {
        check_cast(&input, 64 * MIB + 256 * file.len());
    }
}

/// Checks that a cast changes only the format.
fn check_cast(input: &Input, limit: usize) {
    in_folder(|folder| {
        let output = folder.join("cast.safetensors");
        let mut settings = Settings::default();
        (settings.existing, settings.sync) = (IfExists::Replace, false);
        settings.threads = std::num::NonZeroUsize::new(2);
        let cast = || settings.cast(folder.join("in.pt"), &output, &CastOptions::default()).map(|_| ());
        if let Err(error) = within(limit, cast) {
            return check_error(&error); // safetensors cannot hold all names and types
        }
        let written = container::open(&output).unwrap_or_else(|error| panic!("what was written is refused: {error}"));
        assert_eq!(written.contents.tensors.len(), input.contents.tensors.len());
        for tensor in &input.contents.tensors {
            let after = written.contents.tensors.iter().find(|after| after.name == tensor.name);
            let after = after.unwrap_or_else(|| panic!("{} was dropped", tensor.name));
            assert_eq!(after.shape, tensor.shape, "{}", tensor.name);
            let read = values(tensor, input);
            assert_eq!(numbers(values(after, &written)), numbers(read), "{} has other elements", tensor.name);
        }
        drop(written);
        fs::remove_file(&output).expect("it is there");
    });
}

/// Returns the elements, all of which are numbers.
fn numbers(values: tcast::error::Result<Values>) -> Vec<u8> {
    match values {
        Ok(Values::Numbers(_, bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

/// An archive of this pickle and two storages.
pub(super) fn archive(pickle: &[u8]) -> Vec<u8> {
    let storages: Vec<u8> = (0..72_u8).map(|byte| byte.wrapping_mul(31)).collect();
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    let members = [("a/data.pkl", pickle), ("a/data/0", &storages[..64]), ("a/data/1", &storages[64..])];
    for (name, bytes) in members {
        let len = (bytes.len() as u32).to_le_bytes();
        // Version, flags, method, time, sum, lengths; the sum is not looked at.
        let common =
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &len, &len, &[name.len() as u8, 0, 0, 0]].concat();
        let start = (file.len() as u32).to_le_bytes();
        directory.extend([b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &start, name.as_bytes()].concat());
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), bytes].concat());
    }
    let place = [directory.len() as u32, file.len() as u32].map(u32::to_le_bytes).concat();
    let end = [b"PK\x05\x06", &[0, 0, 0, 0, 3, 0, 3, 0][..], &place, &[0, 0]].concat();
    [file, directory, end].concat()
}
