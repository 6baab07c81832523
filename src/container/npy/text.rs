//! numpy's texts, all of one width: `<U`, code points of 4 bytes each, and `|S`, bytes, both padded with NULs.

use super::super::text::{Fill, TextError, read_bytes};

/// Number of code points that are decoded at a time.
const CHUNK: usize = 256;

/// Reads `<U`. NULs are appended only when another character follows them, so that memory depends on the text and not
/// on its width.
pub(in super::super) fn read_code_points(
    width: u32,
    big_endian: bool,
    fill: &mut Fill,
    text: &mut Vec<u8>,
) -> Result<(), TextError> {
    let mut left = width as usize;
    let mut nuls = 0;
    let mut chunk = [0; 4 * CHUNK];
    while left > 0 {
        let taken = left.min(CHUNK);
        fill(&mut chunk[..4 * taken])?;
        left -= taken;
        for bytes in chunk[..4 * taken].as_chunks().0 {
            let code = if big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
            if code == 0 {
                nuls += 1;
                continue;
            }
            let Some(char) = char::from_u32(code) else {
                return Err(TextError::Malformed(format!("{code:#x} is not a Unicode character")));
            };
            text.resize(text.len() + std::mem::take(&mut nuls), 0);
            text.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    Ok(())
}

/// Reads `|S`.
pub(in super::super) fn read_padded(width: u32, fill: &mut Fill, text: &mut Vec<u8>) -> Result<(), TextError> {
    read_bytes(width.into(), fill, text)?;
    let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    text.truncate(end);
    Ok(())
}

/// Appends a text as `<U`.
pub(in super::super) fn write_code_points(width: u32, text: &[u8], output: &mut Vec<u8>) {
    let end = output.len() + 4 * width as usize;
    for char in String::from_utf8_lossy(text).chars() {
        output.extend_from_slice(&u32::from(char).to_le_bytes());
    }
    output.resize(end, 0);
}

/// Appends a text as `|S`.
pub(in super::super) fn write_padded(width: u32, text: &[u8], output: &mut Vec<u8>) {
    let end = output.len() + width as usize;
    output.extend_from_slice(text);
    output.resize(end, 0);
}
