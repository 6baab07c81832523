//! The weight that codes represent: its shape, and the position of its rows in the codes.

use super::super::layout::{CodeValues, Group, Packing};
use super::super::parts::{Parameters, Part, Parts};
use crate::dtype::Dtype;
use crate::error::Result;

/// The shape of the weight, and the position of its rows in the codes.
pub(super) struct WeightShape {
    pub(super) shape: Vec<u64>,
    /// Dimensions before the last two.
    pub(super) leading: Vec<u64>,
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) stride: u64,
    pub(super) matrix_bytes: u64,
}

pub(super) fn bits(parts: &Parts, parameters: &Parameters, stored: Dtype) -> Result<u32> {
    let layout = parts.layout;
    let known: &[u32] = match (layout.codes.values, layout.codes.packing) {
        (CodeValues::Stored, _) => return Ok(stored.bits()),
        (CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) | CodeValues::Signed(dtype), _) => {
            return Ok(dtype.bits());
        }
        (CodeValues::Map, _) => return Ok(4),
        (CodeValues::Levels, _) => &[4, 6],
        (CodeValues::Blocks, _) => return Err(parts.error("the format of its blocks is not known".to_owned())),
        (CodeValues::Unsigned, Packing::AwqWords) => &[4],
        (CodeValues::Unsigned, Packing::TransposedWords) => &[2, 3, 4, 8],
        (CodeValues::Unsigned, _) => &[1, 2, 3, 4, 5, 6, 7, 8],
    };
    match parameters.bits {
        Some(bits) if known.contains(&bits) => Ok(bits),
        Some(bits) => Err(parts.error(format!("the layout {} has no codes of {bits} bits", layout.name))),
        None => Err(parts.error("the config does not say how many bits its codes have".to_owned())),
    }
}

impl WeightShape {
    pub(super) fn new(parts: &Parts, parameters: &Parameters, codes: &Part, bits: u32) -> Result<Self> {
        let wide = u64::from(bits);
        let unfit =
            || parts.error(format!("codes of the layout {} have no shape {:?}", parts.layout.name, codes.shape));
        let given = parameters.shape.as_deref();
        // Elements of a group, which is a block of codes.
        let size = match parts.layout.fixed_group().or(parameters.group) {
            Some(Group::Block([size, _]) | Group::Neighbours(size)) => size,
            _ => 0,
        };
        let padding = match parts.layout.codes.packing {
            Packing::TransposedBlocks => size.max(1),
            _ => parts.layout.codes.padding,
        };
        let (leading, rows, columns, stored) = match (parts.layout.codes.packing, codes.shape) {
            (Packing::Blocks, [leading @ .., rows, groups, bytes])
                if size.checked_mul(wide) == bytes.checked_mul(8) =>
            {
                let columns = given.and_then(<[u64]>::last).copied().unwrap_or(groups * size);
                if columns.div_ceil(size.max(1)) != *groups {
                    return Err(unfit());
                }
                (leading, *rows, columns, (*rows, groups.checked_mul(*bytes)))
            }
            (Packing::Rows(_) | Packing::RowsHighFirst, [width]) => {
                (&[][..], 1, columns(parts, given, codes, *width, bits)?, (1, codes.dtype.packed_bytes(*width)))
            }
            (Packing::Rows(_) | Packing::RowsHighFirst | Packing::Planes, [leading @ .., rows, width]) => {
                let bytes = codes.dtype.packed_bytes(*width);
                (leading, *rows, columns(parts, given, codes, *width, bits)?, (*rows, bytes))
            }
            (Packing::Flat, _) => return Self::flat(parts, given, codes),
            (Packing::TransposedBlocks, [leading @ .., columns, groups, bytes])
                if size.checked_mul(wide) == bytes.checked_mul(8) =>
            {
                (leading, groups * size, *columns, (*columns, groups.checked_mul(*bytes)))
            }
            (Packing::TransposedWords, [leading @ .., words, rows]) if (words * 32).is_multiple_of(wide) => {
                (leading, *rows, words * 32 / wide, (*words, rows.checked_mul(4)))
            }
            (Packing::AwqWords, [leading @ .., columns, words]) => {
                (leading, words * 8, *columns, (*columns, words.checked_mul(4)))
            }
            _ => return Err(unfit()),
        };
        let stride = stored.1.ok_or_else(unfit)?;
        let matrix_bytes = stride.checked_mul(stored.0).ok_or_else(unfit)?;
        let own = if codes.shape.len() == 1 { vec![columns] } else { [leading, &[rows, columns]].concat() };
        let (shape, rows) = match given {
            None => (own, rows),
            Some(shape) => {
                // A padded weight may be shorter; columns were compared above.
                let fits = shape.len() == own.len()
                    && own.iter().zip(shape).rev().enumerate().all(|(at, (stored, wanted))| match at {
                        0 => *wanted == columns,
                        1 => *wanted <= *stored && wanted.next_multiple_of(padding) == *stored,
                        _ => wanted == stored,
                    });
                if !fits {
                    return Err(parts.mismatch(codes, &own, &format!("a weight of {shape:?}")));
                }
                (shape.to_vec(), if shape.len() == 1 { 1 } else { shape[shape.len() - 2] })
            }
        };
        Ok(Self { shape, leading: leading.to_vec(), rows, columns, stride, matrix_bytes })
    }

    /// Determines the shape of a weight stored as one stream, which only the description gives.
    fn flat(parts: &Parts, given: Option<&[u64]>, codes: &Part) -> Result<Self> {
        let Some([leading @ .., columns]) = given else {
            return Err(parts.error("the shape of the weight is not known".to_owned()));
        };
        let product = |lengths: &[u64]| lengths.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
        let rows = product(leading);
        let count = rows.and_then(|rows| rows.checked_mul(*columns));
        let stored = product(codes.shape).and_then(|count| codes.dtype.packed_bytes(count));
        let needed = count.map(|count| count.div_ceil(2));
        let (Some(rows), Some(stored), true) = (rows, stored, needed == stored) else {
            let shape = [leading, &[*columns]].concat();
            return Err(
                parts.error(format!("codes of shape {:?} do not make a weight of shape {shape:?}", codes.shape))
            );
        };
        let shape = [leading, &[*columns]].concat();
        Ok(Self { shape, leading: Vec::new(), rows, columns: *columns, stride: 0, matrix_bytes: stored })
    }
}

/// Returns the number of columns of a weight whose rows have `width` stored elements.
fn columns(parts: &Parts, given: Option<&[u64]>, codes: &Part, width: u64, bits: u32) -> Result<u64> {
    let stored_bits = width * u64::from(codes.dtype.bits());
    if !stored_bits.is_multiple_of(8) {
        return Err(parts.error(format!("rows of {width} codes do not end with a byte")));
    }
    let held = stored_bits / u64::from(bits);
    match given.and_then(<[u64]>::last) {
        None if stored_bits.is_multiple_of(u64::from(bits)) => Ok(held),
        None => Err(parts.error("the shape of the weight is not known".to_owned())),
        Some(&columns) => {
            let Packing::Rows(word) = parts.layout.codes.packing else { return padded(parts, codes, columns, held) };
            if parts.layout.codes.padding > 1 {
                return padded(parts, codes, columns, held);
            }
            let needed = columns.checked_mul(bits.into()).map(|bits| bits.div_ceil(8 * word) * word);
            if needed == Some(stored_bits / 8) {
                return Ok(columns);
            }
            Err(parts.error(format!(
                "codes of the shape {:?} do not make rows of {columns} codes of {bits} bits",
                codes.shape
            )))
        }
    }
}

fn padded(parts: &Parts, codes: &Part, columns: u64, held: u64) -> Result<u64> {
    if columns <= held && columns.next_multiple_of(parts.layout.codes.padding) == held {
        return Ok(columns);
    }
    Err(parts.error(format!("codes of the shape {:?} do not make rows of {columns}", codes.shape)))
}
