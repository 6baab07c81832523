//! The weight that codes represent: its shape, and the position of its rows in the codes.

use super::super::layout::{CodeValues, Group, Packing, Role, codes_in_bytes};
use super::super::parts::{Parameters, Part, Parts};
use super::geometry::DecodeGeometry;
use crate::dtype::Dtype;
use crate::error::Result;

impl Parts<'_> {
    /// Returns the width of codes of a stored dtype.
    pub(super) fn code_bits(&self, parameters: &Parameters, stored: Dtype) -> Result<u32> {
        let known: &[u32] = match (self.layout.codes.values, self.layout.codes.packing) {
            (CodeValues::Stored, _) => return Ok(stored.bits()),
            (CodeValues::Float(dtype) | CodeValues::FloatWithoutNegativeZero(dtype) | CodeValues::Signed(dtype), _) => {
                return Ok(dtype.bits());
            }
            (CodeValues::Map, _) => return Ok(4),
            (CodeValues::Levels, _) => &[4, 6],
            (CodeValues::Blocks, _) => return Err(self.error("the format of its blocks is not known".to_owned())),
            (CodeValues::Unsigned, Packing::AwqWords) => &[4],
            (CodeValues::Unsigned, Packing::TransposedWords) => &[2, 3, 4, 8],
            (CodeValues::Unsigned, _) => &[1, 2, 3, 4, 5, 6, 7, 8],
        };
        match parameters.bits {
            Some(bits) if known.contains(&bits) => Ok(bits),
            Some(bits) => Err(self.error(format!("the layout {} has no codes of {bits} bits", self.layout.name))),
            None => Err(self.error("the config does not say how many bits its codes have".to_owned())),
        }
    }

    /// Returns a shape of scales or offsets without the dimension of the elements of a group (SDNQ).
    pub(super) fn group_shape<'a>(&self, shape: &'a [u64]) -> &'a [u64] {
        // Linear layers with one group for each row have a shape of two dimensions, and only convolutions one of three.
        match shape {
            [_, groups, 1] if *groups > 1 && self.layout.codes.packing == Packing::Units => &shape[..2],
            _ => shape,
        }
    }
}

impl DecodeGeometry {
    /// Determines the shape of the weight and the position of its rows in the codes; all other fields are defaults.
    pub(super) fn of_codes(parts: &Parts, parameters: &Parameters, codes: &Part, bits: u32) -> Result<Self> {
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
            (Packing::Units, _) => return Self::units(parts, codes, bits),
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
        let matrices = leading.iter().product();
        Ok(Self { shape, matrices, rows, columns, stride, matrix_bytes, ..Self::default() })
    }

    /// Determines the shape of a weight stored as one stream, which only the description gives.
    fn flat(parts: &Parts, given: Option<&[u64]>, codes: &Part) -> Result<Self> {
        let Some(shape @ [leading @ .., columns]) = given else {
            return Err(parts.error("the shape of the weight is not known".to_owned()));
        };
        let product = |lengths: &[u64]| lengths.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
        let rows = product(leading);
        let count = rows.and_then(|rows| rows.checked_mul(*columns));
        let stored = product(codes.shape).and_then(|count| codes.dtype.packed_bytes(count));
        let needed = count.map(|count| count.div_ceil(2));
        let (Some(rows), Some(stored), true) = (rows, stored, needed == stored) else {
            return Err(
                parts.error(format!("codes of shape {:?} do not make a weight of shape {shape:?}", codes.shape))
            );
        };
        let shape = shape.to_vec();
        Ok(Self { shape, matrices: 1, rows, columns: *columns, matrix_bytes: stored, ..Self::default() })
    }

    /// Determines the shape of a weight stored in units, whose scales show its rows.
    fn units(parts: &Parts, codes: &Part, bits: u32) -> Result<Self> {
        let unit = codes_in_bytes(bits);
        let scale = parts.group_shape(parts.need(Role::Scale)?.1.shape);
        let count: u64 = codes.shape.iter().product();
        let width = u64::from(codes.dtype.bits() / 8);
        let found = match (bits, codes.shape, scale) {
            (8, [rows, columns], _) => Some((*rows, count, *columns)),
            (8, [rows, groups, _], [_, scales]) if groups == scales => Some((*rows, count, count / (*rows).max(1))),
            // One byte in each element, which has 8 bytes for codes of one bit.
            (1 | 2 | 4, [_], [rows, _]) if width == 1 || bits == 1 => Some((*rows, count * unit, width)),
            (3 | 5..=7, [_, bytes], [rows, _]) if bytes * 8 == unit * u64::from(bits) => {
                Some((*rows, count / bytes * unit, *bytes))
            }
            _ => None,
        };
        let stored = codes.dtype.packed_bytes(count);
        let (Some((rows, codes_in_all, stride)), Some(matrix_bytes)) = (found, stored) else {
            let (layout, [shape, scale]) = (parts.layout.name, [codes.shape, scale]);
            return Err(parts.error(format!(
                "codes of {bits} bits of the layout {layout} have no shape {shape:?} with scales of the shape {scale:?}"
            )));
        };
        if rows == 0 || !codes_in_all.is_multiple_of(rows) {
            return Err(parts.error(format!("{codes_in_all} codes do not make {rows} rows")));
        }
        let columns = codes_in_all / rows;
        let shape = vec![rows, columns];
        Ok(Self { shape, matrices: 1, rows, columns, stride, matrix_bytes, ..Self::default() })
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
