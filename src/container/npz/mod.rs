//! `.npz`: a zip archive of `.npy` members, as numpy's `savez` and `savez_compressed` write it.
//!
//! Members are read in place, deflated ones as a stream; the archive is never read as a whole. The layout equals the
//! output of `np.savez`, byte for byte: nothing is compressed, because every length must be known before the data. If
//! the input was compressed, [`deflate()`] turns the result into the output of `np.savez_compressed`.

mod deflate;

pub(crate) use deflate::deflate;

use super::names::NameHashes;
use super::zip::{CRC_IN_CENTRAL, CRC_IN_LOCAL, NewMember, ZipMember, end_records, is_zip, members};
use super::{
    Checksum, Container, Contents, Data, Elements, FileLayout, Form, FormatInfo, NewMetadata, NewTensors, PendingCrc,
    Placement, ReadOptions, Stream, Streamed, Tensor, npy, sum_of, too_long,
};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use std::collections::HashSet;
use std::sync::Arc;

/// The `.npz` format.
pub(super) struct Npz;

impl Container for Npz {
    fn format_info(&self) -> FormatInfo {
        FormatInfo { has_fortran_order: true, ..FormatInfo::of("npz") }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        npy::stores(dtype)
    }

    fn form(&self, dtype: Dtype) -> Form {
        npy::form(dtype)
    }

    fn recognises(&self, bytes: &[u8]) -> bool {
        is_zip(bytes)
    }

    fn read(&self, file: &MappedFile, _options: &ReadOptions) -> Result<Contents> {
        let members = members(file)?;
        let mut contents = Contents::default();
        let mut names = HashSet::new();
        for member in &members {
            let in_member = |error: Error| error.in_tensor(array_name(member).unwrap_or(&member.name));
            let tensor = match array_in(member, file) {
                Ok(Some(tensor)) => tensor,
                Ok(None) => {
                    contents.ignored.push(member.name.clone());
                    continue;
                }
                Err(error) => {
                    contents.unreadable.push(in_member(error));
                    continue;
                }
            };
            if !names.insert(tensor.name.clone()) {
                return Err(in_member(Error::new("two members are arrays of this name")));
            }
            contents.tensors.push(tensor);
        }
        if contents.tensors.is_empty() && contents.unreadable.is_empty() && !members.is_empty() {
            return Err(Error::new("is a zip archive without a .npy file in it"));
        }
        Ok(contents)
    }

    fn lay_out(&self, tensors: &dyn NewTensors, _metadata: &NewMetadata, _threads: usize) -> Result<FileLayout> {
        let mut literals = Vec::with_capacity(tensors.count() + 1);
        let mut places = Vec::with_capacity(tensors.count());
        let mut directory = Vec::new();
        let mut names = NameHashes::with_capacity(tensors.count());
        let mut end = 0_u64;
        for tensor in tensors.iter() {
            let refuse = |message: &str| Err(Error::new(message).in_tensor(&tensor.name));
            let name = format!("{}.npy", tensor.name);
            if name.len() > usize::from(u16::MAX) {
                return refuse("the name is too long for a zip archive");
            }
            if name.contains('\0') {
                return refuse("a zip archive cannot hold a name with a NUL in it");
            }
            names.add(&tensor.name);
            // An array that is copied includes its header.
            let (array, form) = match tensor.opaque {
                Some(_) => (Vec::new(), npy::form(tensor.dtype)),
                None => npy::header_of(&tensor)?,
            };
            let data = form.bytes(tensor.count).ok_or_else(too_long)?;
            let size = data.checked_add(array.len() as u64).ok_or_else(too_long)?;
            let entry = NewMember { name: &name, size, deflated: None, crc32: 0, start: end };
            let before = sum_of(&array);
            let local = [entry.local_header(), array].concat();
            let start = end + local.len() as u64;
            literals.push((end, local));
            end = start.checked_add(data).ok_or_else(too_long)?;
            // The checksum is in the directory too, but the start of the directory is not known yet.
            let offsets = [entry.start + CRC_IN_LOCAL, directory.len() as u64 + CRC_IN_CENTRAL];
            places.push(Placement { form, range: start..end, crc: Some(Box::new(PendingCrc { before, offsets })) });
            directory.extend_from_slice(&entry.central_header());
        }
        names.check_new(tensors)?;
        for crc in places.iter_mut().filter_map(|place| place.crc.as_mut()) {
            crc.offsets[1] += end;
        }
        let tail = [directory.as_slice(), &end_records(tensors.count() as u64, directory.len() as u64, end)].concat();
        let len = end.checked_add(tail.len() as u64).ok_or_else(too_long)?;
        literals.push((end, tail));
        Ok(FileLayout { literals, entries: Vec::new(), places, len })
    }
}

/// Returns numpy's name of an array: the member's name without its extension.
fn array_name(member: &ZipMember) -> Option<&str> {
    member.name.strip_suffix(".npy")
}

/// Returns the array in a member; `None` if numpy would not see one, neither by its name nor by its content.
fn array_in(member: &ZipMember, file: &MappedFile) -> Result<Option<Tensor>> {
    let name = array_name(member);
    let mut start = vec![0; npy::MAGIC.len()];
    let is_read = member.obstacle.is_none() && member.open(file).fill(&mut start).is_ok();
    if name.is_none() && !(is_read && npy::Npy.recognises(&start)) {
        return Ok(None);
    }
    if let Some(obstacle) = &member.obstacle {
        let error = Error::new(format!("{obstacle}; stored and deflated members are read"));
        return Err(error.remedy("unpack it with another program, such as 7z, and convert the .npy files"));
    }
    let mut bytes = member.open(file);
    let (array, header_len) = npy::read_header(member.size, &mut |buffer| bytes.fill(buffer))?;
    if array.count == 0 {
        bytes.finish()?; // no other code will read it to its end
    }
    // An array that can only be copied includes its header.
    let skipped = if array.elements == Elements::Opaque { 0 } else { header_len };
    let data = if member.is_deflated {
        Data::Streamed(Arc::new(Deflated { member: member.clone(), header_len: skipped }))
    } else {
        let range = member.range.start + skipped..member.range.end;
        let checksum = bytes.sum.map(|(checksum, header)| Checksum {
            before: if skipped == 0 { checksum.before } else { header },
            expected: checksum.expected,
        });
        Data::Mapped { file: 0, range, checksum: checksum.map(Box::new) }
    };
    Ok(Some(Tensor { name: name.unwrap_or(&member.name).into(), data, ..array }))
}

/// An array in a deflated member.
#[derive(Debug)]
struct Deflated {
    member: ZipMember,
    /// Number of unpacked bytes before the data.
    header_len: usize,
}

impl Streamed for Deflated {
    fn open<'a>(&self, files: &'a [MappedFile]) -> Result<Box<dyn Stream + 'a>> {
        let mut bytes = self.member.open(&files[0]);
        bytes.fill(&mut vec![0; self.header_len])?;
        Ok(Box::new(bytes))
    }

    fn stored_len(&self) -> u64 {
        self.member.range.len() as u64
    }
}
