//! Deflates the members of an archive that was written with stored members.

use super::super::Stream;
use super::super::zip::{NewMember, ZipMember, end_records, members};
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::sink::{Appended, Sink};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{self, Write};

/// Number of bytes that are deflated at a time. It has no other effect on the result.
const PIECE: u64 = 1 << 16;

/// Rewrites an archive of stored members with every member deflated; `done` receives the number of bytes read. Returns
/// the length of the result, and the deflated lengths of its members.
pub(crate) fn deflate(archive: &MappedFile, output: &dyn Sink, done: &dyn Fn(u64)) -> Result<(u64, Vec<u64>)> {
    let mut directory = Vec::new();
    let mut lengths = Vec::new();
    let mut end = 0;
    for member in members(archive)? {
        let ZipMember { name, size, crc32, .. } = &member;
        let mut new = NewMember { name, size: *size, deflated: Some(0), crc32: *crc32, start: end };
        let data = end + new.local_header().len() as u64;
        let mut encoder = DeflateEncoder::new(Appended { output, end: data }, Compression::new(6));
        let mut bytes = member.open(archive);
        let mut piece = vec![0; PIECE as usize];
        let mut left = *size;
        while left > 0 {
            let now = &mut piece[..left.min(PIECE) as usize];
            bytes.fill(now)?;
            encoder.write_all(now).map_err(unwritten)?;
            done(now.len() as u64);
            left -= now.len() as u64;
        }
        bytes.finish()?;
        end = encoder.finish().map_err(unwritten)?.end;
        new.deflated = Some(end - data);
        output.put(new.start, &new.local_header())?;
        directory.extend_from_slice(&new.central_header());
        lengths.push(end - data);
    }
    let records = end_records(lengths.len() as u64, directory.len() as u64, end);
    directory.extend_from_slice(&records);
    output.put(end, &directory)?;
    Ok((end + directory.len() as u64, lengths))
}

/// Recovers the error of the output that the compressor passed on.
fn unwritten(error: io::Error) -> Error {
    error.downcast().unwrap_or_else(|error| Error::io("cannot deflate", &error))
}
