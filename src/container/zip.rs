//! Zip archives, as far as numpy writes and reads them (PKWARE APPNOTE 6.3).
//!
//! The central directory is authoritative: every member must be at the place that the directory gives, before the
//! directory, and without overlaps. Readers disagree about archives with several ends, parts, members of one name, or
//! headers that differ: such archives are refused.

use super::Checksum;
use super::reader::RangeStream;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::text::shorten;
use std::cmp::Ordering;
use std::ops::Range;

/// Signatures of the records.
const LOCAL: &[u8] = b"PK\x03\x04";
const CENTRAL: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const LOCAL_LEN: usize = 30;
const CENTRAL_LEN: usize = 46;
const END_LEN: usize = 22;
const END_64_LEN: usize = 56;
const LOCATOR_64_LEN: usize = 20;
/// Placeholders of 32 and 16 bits for a number that is in the zip64 field.
const ELSEWHERE: u32 = u32::MAX;
const ELSEWHERE_16: u16 = u16::MAX;
/// Tag of the zip64 field.
const ZIP64: u16 = 1;
/// Flags of a member.
const ENCRYPTED: u16 = 1;
const UTF_8: u16 = 1 << 11;
/// The lengths follow the member, and may be missing in its local header.
const LENGTHS_FOLLOW: u16 = 1 << 3;
/// The attribute of a folder, for which some readers return no bytes.
const FOLDER: u64 = 0x10;
/// Nothing, compressed: Python and Java deflate folders, too.
const EMPTY: &[u8] = &[3, 0];
/// Compression methods.
const STORED: u16 = 0;
const DEFLATED: u16 = 8;

/// A member, as described by the central directory.
#[derive(Clone, Debug)]
pub(super) struct ZipMember {
    pub(super) name: String,
    /// The name as bytes of the archive.
    pub(super) raw_name: Box<[u8]>,
    /// Range of the member's bytes in the archive.
    pub(super) range: Range<usize>,
    pub(super) is_deflated: bool,
    /// Reason why the member cannot be read, as words that follow its name.
    pub(super) obstacle: Option<String>,
    pub(super) crc32: u32,
    /// Length of the unpacked member.
    pub(super) size: u64,
}

fn malformed(what: &str) -> Error {
    Error::new(format!("malformed zip archive: {what}"))
}

/// Reads little endian numbers from the front of a slice.
struct RecordFields<'a>(&'a [u8]);

impl<'a> RecordFields<'a> {
    fn bytes(&mut self, length: usize) -> Result<&'a [u8]> {
        self.0.split_off(..length).ok_or_else(|| malformed("a record is cut short"))
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.bytes(N)?);
        Ok(u64::from_le_bytes(bytes))
    }
}

/// True if a file begins like an archive, including an empty one.
pub(super) fn is_zip(bytes: &[u8]) -> bool {
    bytes.starts_with(LOCAL) || bytes.starts_with(END)
}

/// True if readers that look for an archive at the end of any file may find one.
pub(super) fn may_be_zip(bytes: &[u8]) -> bool {
    let earliest = bytes.len().saturating_sub(END_LEN + usize::from(u16::MAX));
    bytes[earliest..].windows(END.len()).any(|bytes| bytes == END)
}

/// Reads the central directory and checks that its members come before it, without overlaps.
pub(super) fn members(file: &[u8]) -> Result<Vec<ZipMember>> {
    let (directory, count) = directory(file)?;
    let mut fields = RecordFields(&file[directory.clone()]);
    let mut members = Vec::new();
    let mut spans = Vec::new();
    for _ in 0..count {
        let (member, span) = read_member(&mut fields, &file[..directory.start])?;
        spans.push(span);
        members.push(member);
    }
    if !fields.0.is_empty() {
        return Err(malformed("its directory has more members than it counts"));
    }
    spans.sort_by_key(|span| span.start);
    if spans.windows(2).any(|pair| pair[0].end > pair[1].start) {
        return Err(malformed("two members share bytes"));
    }
    check_names(&members, <[u8]>::cmp)?;
    Ok(members)
}

/// Refuses two members of one name, as text or as bytes: readers disagree which one counts.
pub(super) fn check_names(members: &[ZipMember], compare: fn(&[u8], &[u8]) -> Ordering) -> Result<()> {
    let keys: [fn(&ZipMember) -> &[u8]; 2] = [|member| member.name.as_bytes(), |member| &member.raw_name];
    for key in keys {
        let mut sorted: Vec<&ZipMember> = members.iter().collect();
        sorted.sort_by(|a, b| compare(key(a), key(b)));
        let equal = sorted.windows(2).find(|pair| compare(key(pair[0]), key(pair[1])).is_eq());
        if let Some([a, b]) = equal {
            let [a, b] = [a, b].map(|member| format!("'{}'", shorten(&member.name)));
            let names = if a == b { a } else { format!("{a} and {b}, which many readers take for one") };
            return Err(Error::new(format!("two members are named {names}")));
        }
    }
    Ok(())
}

/// Compares names without regard to the case of ASCII letters.
pub(super) fn without_case(a: &[u8], b: &[u8]) -> Ordering {
    let lower = |name: &[u8]| name.iter().map(u8::to_ascii_lowercase).collect::<Vec<_>>();
    lower(a).cmp(&lower(b))
}

/// Returns the names in the central directory, without any check of the members; `None` if there is no directory.
pub(super) fn member_names(file: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let mut fields = RecordFields(&file[directory(file).ok()?.0]);
    Some(std::iter::from_fn(move || {
        let mut lengths = RecordFields(fields.bytes(CENTRAL_LEN).ok()?.get(28..)?);
        let (name, extra, comment) = (lengths.number::<2>(), lengths.number::<2>(), lengths.number::<2>());
        let name = fields.bytes(name.ok()? as usize).ok()?;
        fields.bytes((extra.ok()? + comment.ok()?) as usize).ok()?;
        Some(name)
    }))
}

/// Finds the central directory. Returns its range and its number of members.
fn directory(file: &[u8]) -> Result<(Range<usize>, u64)> {
    // The end record is last, followed only by a comment of the given length.
    let earliest = file.len().saturating_sub(END_LEN + usize::from(u16::MAX));
    let is_end = |&at: &usize| {
        let record = &file[at..];
        let comment = record.get(20..22).map(|length| usize::from(u16::from_le_bytes([length[0], length[1]])));
        record.starts_with(END) && comment == Some(record.len().wrapping_sub(END_LEN))
    };
    let at = (earliest..=file.len().saturating_sub(END_LEN)).rev().find(is_end);
    let at = at.ok_or_else(|| malformed("it has no directory at its end; was the file cut short?"))?;
    if file[at + 1..].windows(END.len()).any(|bytes| bytes == END) {
        return Err(malformed("it has several ends, and readers disagree which one counts"));
    }
    let mut fields = RecordFields(&file[at + 4..]);
    let disks = [fields.number::<2>()?, fields.number::<2>()?];
    let counts = [fields.number::<2>()?, fields.number::<2>()?];
    let (mut length, mut start) = (fields.number::<4>()?, fields.number::<4>()?);
    let mut count = counts[1];
    let mut end = at;
    if disks != [0, 0] || counts[0] != counts[1] {
        return Err(malformed("it is one of several parts"));
    }
    let locator = at.checked_sub(LOCATOR_64_LEN).filter(|&at| file[at..].starts_with(LOCATOR_64));
    if let Some(locator) = locator {
        let mut fields = RecordFields(&file[locator + 4..]);
        let (disk, record, disks) = (fields.number::<4>()?, fields.number::<8>()?, fields.number::<4>()?);
        let expected = locator.checked_sub(END_64_LEN);
        let record = expected.filter(|&at| at as u64 == record && file[at..].starts_with(END_64));
        let record = record.ok_or_else(|| malformed("its zip64 record is not where it should be"))?;
        let mut fields = RecordFields(&file[record + 4..]);
        let record_len = fields.number::<8>()?;
        fields.bytes(4)?; // versions
        let own_disks = [fields.number::<4>()?, fields.number::<4>()?];
        let counts = [fields.number::<8>()?, fields.number::<8>()?];
        if (disk, disks) != (0, 1) || own_disks != [0, 0] || counts[0] != counts[1] {
            return Err(malformed("it is one of several parts"));
        }
        let short = [count, length, start];
        count = counts[1];
        (length, start) = (fields.number::<8>()?, fields.number::<8>()?);
        let limits: [u64; 3] = [ELSEWHERE_16.into(), ELSEWHERE.into(), ELSEWHERE.into()];
        let mut numbers = short.into_iter().zip([count, length, start]).zip(limits);
        let is_clear = numbers.all(|((short, long), elsewhere)| short == long || short == elsewhere);
        if !is_clear || record_len != END_64_LEN as u64 - 12 {
            return Err(malformed("its two ends differ, and readers disagree which one counts"));
        }
        end = record;
    }
    if start.checked_add(length) != Some(end as u64) {
        return Err(malformed("its directory is not where it should be; does something stand before the archive?"));
    }
    Ok((start as usize..end, count))
}

/// Reads one entry of the directory; `file` ends where the directory starts. Also returns the range of bytes that the
/// member covers.
fn read_member(fields: &mut RecordFields, file: &[u8]) -> Result<(ZipMember, Range<usize>)> {
    let record = fields.bytes(CENTRAL_LEN).map_err(|_| malformed("its directory has fewer members than it counts"))?;
    if !record.starts_with(CENTRAL) {
        return Err(malformed("its directory is damaged"));
    }
    let mut record = RecordFields(&record[8..]);
    let (flags, method) = (record.number::<2>()? as u16, record.number::<2>()? as u16);
    record.bytes(4)?; // date and time
    let crc32 = record.number::<4>()? as u32;
    let (mut packed, mut size) = (record.number::<4>()?, record.number::<4>()?);
    let (name_len, extra_len) = (record.number::<2>()? as usize, record.number::<2>()? as usize);
    let comment_len = record.number::<2>()? as usize;
    let (disk, _, attributes) = (record.number::<2>()?, record.number::<2>()?, record.number::<4>()?);
    let mut start = record.number::<4>()?;
    let raw_name = fields.bytes(name_len)?;
    let name = if flags & UTF_8 == 0 { Some(cp437(raw_name)) } else { String::from_utf8(raw_name.to_vec()).ok() };
    let name = name.ok_or_else(|| malformed("a member's name is not UTF-8"))?;
    let in_member = |error: Error| error.in_tensor(name.strip_suffix(".npy").unwrap_or(&name));
    let mut extra = RecordFields(fields.bytes(extra_len)?);
    fields.bytes(comment_len)?;
    while !extra.0.is_empty() {
        let (tag, length) = (extra.number::<2>()? as u16, extra.number::<2>()? as usize);
        let mut part = RecordFields(extra.bytes(length)?);
        if tag == ZIP64 {
            for number in [&mut size, &mut packed, &mut start] {
                if *number == u64::from(ELSEWHERE) {
                    *number = part.number::<8>()?;
                }
            }
        }
    }
    if name.contains('\0') {
        return Err(in_member(malformed("there is a NUL in the name")));
    }
    if disk != 0 {
        return Err(in_member(malformed("a member is in another part")));
    }
    let obstacle = match method {
        _ if flags & ENCRYPTED != 0 => Some("is encrypted".to_owned()),
        STORED | DEFLATED => None,
        12 => Some("is compressed with bzip2".to_owned()),
        14 => Some("is compressed with lzma".to_owned()),
        93 => Some("is compressed with zstd".to_owned()),
        other => Some(format!("is compressed with method {other}")),
    };
    let is_deflated = method == DEFLATED;
    if method == STORED && packed != size {
        return Err(in_member(malformed("a stored member has two lengths")));
    }
    let range = data_range(file, start, [packed, size], raw_name, [flags, method]).map_err(in_member)?;
    // numpy returns the bytes of a folder, PyTorch finds no such member or returns whatever is in memory.
    let is_folder = attributes & FOLDER != 0 || name.ends_with('/');
    if is_folder && (size > 0 || ![&[][..], EMPTY].contains(&&file[range.clone()])) {
        return Err(in_member(malformed("a folder has bytes")));
    }
    let span = start as usize..range.end;
    Ok((ZipMember { name, raw_name: raw_name.into(), range, is_deflated, obstacle, crc32, size }, span))
}

/// Decodes a name that is not marked as UTF-8: it is in code page 437 (APPNOTE, appendix D).
fn cp437(name: &[u8]) -> String {
    const UPPER: &str = "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐\
                         └┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}";
    let decode = |&byte: &u8| match byte.checked_sub(0x80) {
        None => char::from(byte),
        Some(index) => UPPER.chars().nth(index.into()).unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    name.iter().map(decode).collect()
}

/// Returns the range of a member's bytes, after its local header, which must agree with the directory: lengths, name,
/// flags and method.
fn data_range(file: &[u8], start: u64, lengths: [u64; 2], name: &[u8], kind: [u16; 2]) -> Result<Range<usize>> {
    let outside = || malformed("a member lies outside the archive");
    let local = usize::try_from(start).ok().and_then(|start| file.get(start..)).ok_or_else(outside)?;
    let mut header =
        RecordFields(local.get(..LOCAL_LEN).filter(|header| header.starts_with(LOCAL)).ok_or_else(outside)?);
    header.bytes(6)?; // signature and version
    let [flags, method] = [header.number::<2>()? as u16, header.number::<2>()? as u16];
    if (flags ^ kind[0]) & ENCRYPTED != 0 || method != kind[1] {
        return Err(malformed("a member is packed in two ways"));
    }
    header.bytes(8)?; // date, time and checksum
    for length in lengths {
        let own = header.number::<4>()?;
        let is_elsewhere = own == u64::from(ELSEWHERE) || own == 0 && flags & LENGTHS_FOLLOW != 0;
        if own != length && !is_elsewhere {
            return Err(malformed("a member has two lengths"));
        }
    }
    let (name_len, extra_len) = (header.number::<2>()? as usize, header.number::<2>()? as usize);
    if local.get(LOCAL_LEN..LOCAL_LEN + name_len) != Some(name) {
        return Err(malformed("a member has two names"));
    }
    let begin = start + (LOCAL_LEN + name_len + extra_len) as u64;
    let end = begin.checked_add(lengths[0]).filter(|&end| end <= file.len() as u64).ok_or_else(outside)?;
    Ok(begin as usize..end as usize)
}

impl ZipMember {
    /// Opens the unpacked bytes of the member.
    pub(super) fn open<'a>(&self, file: &'a MappedFile) -> RangeStream<'a> {
        let checksum = Checksum { before: crc32fast::Hasher::new(), expected: self.crc32 };
        RangeStream::new(file, self.range.clone(), self.is_deflated, Some(Box::new(checksum)))
    }
}

/// The offset of the checksum in either header of a member.
pub(super) const CRC_IN_LOCAL: u64 = 14;
pub(super) const CRC_IN_CENTRAL: u64 = 16;

/// A member to write.
pub(super) struct NewMember<'a> {
    pub(super) name: &'a str,
    pub(super) size: u64,
    /// Length of the deflated member; `None` if it is stored.
    pub(super) deflated: Option<u64>,
    /// Checksum; zero until it is computed.
    pub(super) crc32: u32,
    /// Offset of the local header.
    pub(super) start: u64,
}

impl NewMember<'_> {
    /// Size in the archive.
    fn packed(&self) -> u64 {
        self.deflated.unwrap_or(self.size)
    }

    /// Fields that both headers share: flags, method, date and time (1980-01-01), and checksum.
    fn common(&self) -> Vec<u8> {
        let flags = if self.name.is_ascii() { 0 } else { UTF_8 };
        let method = if self.deflated.is_some() { DEFLATED } else { STORED };
        [&flags.to_le_bytes()[..], &method.to_le_bytes(), &[0, 0, 0x21, 0], &self.crc32.to_le_bytes()].concat()
    }

    /// Serializes the local header as Python's zipfile does with `force_zip64`, which numpy uses: the lengths are in
    /// the extra field.
    pub(super) fn local_header(&self) -> Vec<u8> {
        let (name, lengths) = (self.name.as_bytes(), [self.name.len() as u16, 20].map(u16::to_le_bytes));
        let sizes = [self.size, self.packed()].map(u64::to_le_bytes);
        let extra = [[ZIP64, 16].map(u16::to_le_bytes).as_flattened(), sizes.as_flattened()].concat();
        [LOCAL, &[45, 0], &self.common(), &[0xff; 8], lengths.as_flattened(), name, &extra].concat()
    }

    /// Serializes the entry of the central directory. The lengths, or the offset, are in the extra field only if one of
    /// them exceeds 2^31 - 1.
    pub(super) fn central_header(&self) -> Vec<u8> {
        let mut extra = Vec::new();
        let is_long = self.size.max(self.packed()) > u64::from(i32::MAX as u32);
        let [packed, size] = if is_long {
            extra.extend_from_slice(&self.size.to_le_bytes());
            extra.extend_from_slice(&self.packed().to_le_bytes());
            [ELSEWHERE; 2]
        } else {
            [self.packed() as u32, self.size as u32]
        };
        let start = if self.start > u64::from(i32::MAX as u32) {
            extra.extend_from_slice(&self.start.to_le_bytes());
            ELSEWHERE
        } else {
            self.start as u32
        };
        if !extra.is_empty() {
            let head = [ZIP64.to_le_bytes(), (extra.len() as u16).to_le_bytes()].concat();
            extra.splice(0..0, head);
        }
        let sizes = [packed, size].map(u32::to_le_bytes);
        let lengths = [self.name.len() as u16, extra.len() as u16, 0, 0, 0].map(u16::to_le_bytes); // no comment, first disk
        let rest = [0o600 << 16, start].map(u32::to_le_bytes);
        let head = [CENTRAL, &[45, 3, 45, 0], &self.common(), sizes.as_flattened(), lengths.as_flattened()].concat();
        [&head, rest.as_flattened(), self.name.as_bytes(), &extra].concat()
    }
}

/// Returns the records after the directory, which begins at `start`.
pub(super) fn end_records(count: u64, length: u64, start: u64) -> Vec<u8> {
    let limit = u64::from(i32::MAX as u32);
    let is_long = count > u64::from(ELSEWHERE_16) || length > limit || start > limit;
    let long = if is_long {
        let numbers = [count, count, length, start].map(u64::to_le_bytes);
        let head = [END_64, &(END_64_LEN as u64 - 12).to_le_bytes(), &[45, 0, 45, 0], &[0; 8], numbers.as_flattened()];
        let locator = [LOCATOR_64, &[0; 4], &(start + length).to_le_bytes(), &1_u32.to_le_bytes()];
        [head.concat(), locator.concat()].concat()
    } else {
        Vec::new()
    };
    let counts = [count.min(ELSEWHERE_16.into()) as u16; 2].map(u16::to_le_bytes);
    let place = [length, start].map(|number| (number.min(ELSEWHERE.into()) as u32).to_le_bytes());
    [&long, END, &[0; 4], counts.as_flattened(), place.as_flattened(), &[0; 2]].concat()
}
