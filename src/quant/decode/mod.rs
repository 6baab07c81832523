//! The decoder of all layouts: the stored bytes of the parts become values.
//!
//! [`Decoder::new`] determines the geometry (`geometry`; `linear` for ONNX) and the arithmetic (`steps`) of a weight
//! once. [`Decoder::decode`] then walks over the rows (`rows`): `codes` unpacks codes, `scales` and `zeros` fetch the
//! scales and zero points of their groups, and `fused` with `tables`, or `lanes`, multiply.

mod blocks;
pub(super) mod buffers;
mod casts;
pub(super) mod codes;
mod division;
mod explain;
mod fused;
pub(super) mod geometry;
pub(super) mod group_index;
mod lanes;
pub(super) mod linear;
pub(super) mod rows;
pub(super) mod scales;
mod segment;
mod steps;
mod tables;
mod tally;
mod weight;
pub(super) mod zeros;

pub use explain::{CodeKind, Explanation, Grid};
pub use steps::Arithmetic;
pub use tally::{DecodeTally, Occurrences};

use super::layout::{Group, Layout, Role, Zeros};
use super::parts::{Parameters, Part, Parts};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::kernel::Isa;
pub(super) use blocks::BlockDecoder;
use casts::{cast, run};
use rows::{DecodeRange, RowDecoder};
use scales::GroupRange;
use std::ops::Range;
use std::sync::Arc;
use steps::DecodeSteps;

/// Turns the stored bytes of a weight into its values.
pub struct Decoder {
    /// The instruction set of its loops: [`Isa::chosen`], unless a test sets another.
    isa: Isa,
    layout: &'static Layout,
    pub(in crate::quant) method: Method,
    part_bytes: Vec<u64>,
    /// The bytes of parts that the file stores in another form.
    held: Vec<Option<Arc<[u8]>>>,
    /// The decoder of exact products, if values are compared with them.
    exact: Option<Box<Self>>,
}

/// Storage of codes and scales, and the computation of values from them.
pub(in crate::quant) enum Method {
    /// Codes, scales and zero points are separate parts.
    Steps(Box<DecodeSteps>),
    /// Blocks hold codes and scales.
    Blocks(Box<BlockDecoder>),
}

impl Decoder {
    /// Creates a decoder for the weight with these `parts`, to `target`: float32, bfloat16 or float16.
    ///
    /// Parts whose roles the layout lacks are ignored if no value depends on them (shape, description, activation
    /// scale), and are errors otherwise. Fails if a part is missing, duplicated, or of a dtype or shape that
    /// contradicts the others or the parameters, or if a parameter is missing or impossible. Errors name the codes, the
    /// part, and the shapes found and expected.
    pub fn new(
        layout: &'static Layout,
        parameters: &Parameters,
        parts: &[Part],
        target: Dtype,
        arithmetic: Arithmetic,
    ) -> Result<Self> {
        let method = match &parameters.blocks {
            Some(blocks) => {
                let parts = Parts { layout, parts };
                Method::Blocks(Box::new(BlockDecoder::new(&parts, parameters, blocks, target, arithmetic)?))
            }
            None => Method::Steps(Box::new(DecodeSteps::new(layout, parameters, parts, target, arithmetic)?)),
        };
        let bytes = |part: &Part| {
            let formats = parameters.blocks.as_ref().map(|blocks| &blocks.formats[..]).unwrap_or_default();
            let count = part.shape.iter().product();
            let format = match part.role {
                Role::Codes => formats.first(),
                Role::OtherCodes => formats.last(),
                _ => None,
            };
            format.map_or(part.dtype.packed_bytes(count), |format| format.size(count)).unwrap_or(u64::MAX)
        };
        let held = |part: &Part| {
            let known = parameters.held.iter().find(|(role, _)| *role == part.role);
            known.map(|(_, bytes)| Arc::clone(bytes))
        };
        let (part_bytes, held) = (parts.iter().map(bytes).collect(), parts.iter().map(held).collect());
        Ok(Self { isa: Isa::chosen(), layout, method, part_bytes, held, exact: None })
    }

    /// Returns the same decoder, with the loops of an instruction set of [`Isa::available`]. Conversions of types run in
    /// kernels, which use the chosen set.
    #[must_use]
    pub fn on(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// Returns the same decoder, which also counts the values that differ from the exact product: `exact` is the
    /// decoder of the same weight to float64, with [`Arithmetic::Exact`].
    #[must_use]
    pub fn watch(self, exact: Self) -> Self {
        Self { exact: Some(Box::new(exact)), ..self }
    }

    /// Creates a decoder of the exact values as float64, with [out, in] as the last dimensions. It differs from others
    /// for gpt-oss and `MatMulNBits`, whose stored matrices are transposed. Values of blocks are those of ggml: the format defines
    /// them in float32. Its counts are all 0.
    pub fn of_rows(layout: &'static Layout, parameters: &Parameters, parts: &[Part]) -> Result<Self> {
        let is_defined = parameters.blocks.is_some();
        let (target, arithmetic) = (Dtype::Float64, if is_defined { Arithmetic::Library } else { Arithmetic::Exact });
        let Some(rows) = layout.untransposed else {
            return Self::new(layout, parameters, parts, target, arithmetic);
        };
        // Other shapes follow from those of the parts.
        let mut shape = parameters.shape.clone().filter(|_| layout.partial_groups);
        if let Some([.., rows, columns]) = shape.as_deref_mut() {
            std::mem::swap(rows, columns);
        }
        let group = match parameters.group {
            Some(Group::Block([size, 1])) => Some(Group::Neighbours(size)),
            _ => None,
        };
        let parameters = Parameters { shape, group, ..parameters.clone() };
        Self::new(rows, &parameters, parts, target, arithmetic)
    }

    /// The bytes of a part that the file stores in another form.
    pub(crate) fn held(&self, part: usize) -> Option<&[u8]> {
        self.held.get(part)?.as_deref()
    }

    /// The layout in which the weight is stored.
    #[must_use]
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The index of the part with zero points, if the config declares the grid symmetric.
    #[must_use]
    pub fn symmetric_part(&self) -> Option<usize> {
        let steps = self.steps()?;
        steps.geometry.zero.filter(|_| steps.zeros.is_symmetric).map(|slot| slot.index)
    }

    /// Refuses zero points that contradict a symmetric grid. `bytes` are the bytes of the part
    /// [`Decoder::symmetric_part`].
    pub fn check_symmetric(&self, bytes: &[u8]) -> Result<()> {
        let Some(DecodeSteps { geometry, zeros, .. }) = self.steps() else { return Ok(()) };
        let [below, beside] = geometry.grid.map(|count| count as usize);
        let middle = zeros.middle(geometry);
        let correction = match zeros.order {
            Zeros::Plain | Zeros::PackedDown => "\"symmetric\" to false",
            Zeros::Awq => "\"zero_point\" to true (AWQ) or \"sym\" to false (auto-round)",
            _ => "\"sym\" to false",
        };
        let v2 = "\"checkpoint_format\" to \"gptq_v2\"";
        let mut row = vec![[0; 4]; beside];
        for (matrix, at) in (0..geometry.matrices as usize).flat_map(|matrix| (0..below).map(move |at| (matrix, at))) {
            zeros.fetch(geometry, bytes, &GroupRange { matrix, below: at, groups: 0..beside }, &mut row);
            if let Some(other) = row.iter().map(|zero| f32::from_le_bytes(*zero)).find(|zero| *zero != middle) {
                let message = format!(
                    "holds the zero point {other}, and the config says that the grid is symmetric, where engines use {middle}"
                );
                // Stored as the middle itself, and not as one less.
                let is_v2 = zeros.more == 1 && other == middle + 1.0;
                let correction = if is_v2 { v2 } else { correction };
                let remedy = format!("if the zero points are right, set {correction} in the config");
                return Err(Error::new(message).remedy(remedy));
            }
        }
        Ok(())
    }

    /// The steps of a weight whose codes and scales are separate parts.
    pub(super) fn steps(&self) -> Option<&DecodeSteps> {
        if let Method::Steps(steps) = &self.method { Some(steps) } else { None }
    }

    /// The shape of the weight.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        match &self.method {
            Method::Steps(steps) => &steps.geometry.shape,
            Method::Blocks(blocks) => &blocks.shape,
        }
    }

    /// The number of rows of the weight: the product of all its lengths except the last.
    #[must_use]
    pub fn rows(&self) -> u64 {
        match &self.method {
            Method::Steps(steps) => steps.geometry.all_rows(),
            Method::Blocks(blocks) => blocks.matrices * blocks.rows,
        }
    }

    /// The number of rows of a matrix of the weight.
    pub(super) fn matrix_rows(&self) -> u64 {
        match &self.method {
            Method::Steps(steps) => steps.geometry.rows,
            Method::Blocks(blocks) => blocks.rows,
        }
    }

    /// True if scales have a scale themselves, or could have one in the layout.
    pub(super) fn has_global_scale(&self) -> bool {
        match &self.method {
            Method::Steps(steps) => steps.geometry.global.is_some(),
            Method::Blocks(blocks) => blocks.has_global_scale(),
        }
    }

    /// True if the weight is one stored tensor of blocks, in the order of its values.
    pub(crate) fn is_stored_in_order(&self) -> bool {
        if let Method::Blocks(blocks) = &self.method { blocks.is_stored_in_order() } else { false }
    }

    /// The number of values in a row.
    #[must_use]
    pub fn columns(&self) -> u64 {
        match &self.method {
            Method::Steps(steps) => steps.geometry.columns,
            Method::Blocks(blocks) => blocks.columns,
        }
    }

    /// The type of the values.
    #[must_use]
    pub fn target(&self) -> Dtype {
        match &self.method {
            Method::Steps(steps) => steps.target,
            Method::Blocks(blocks) => blocks.target,
        }
    }

    /// The columns that are rotated together; `None` if values are not rotated.
    #[must_use]
    pub fn rotation(&self) -> Option<u64> {
        match &self.method {
            Method::Steps(steps) => steps.rotation.map(|size| size as u64),
            Method::Blocks(_) => None,
        }
    }

    /// Bytes of a decoded row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.columns() * u64::from(self.target().bits() / 8)
    }

    /// The alignment of rows for efficient reading: ranges that start at its multiples read the parts most efficiently.
    /// Any range gives the same bytes.
    #[must_use]
    pub fn row_alignment(&self) -> u64 {
        match &self.method {
            Method::Steps(_) => self.layout.codes.packing.line_rows() as u64,
            Method::Blocks(blocks) => blocks.row_alignment(),
        }
    }

    /// Decodes a range of rows: see [`Decoder::decode_values`].
    pub fn decode(&self, rows: Range<u64>, parts: &[&[u8]], out: &mut [u8]) -> Result<DecodeTally> {
        let columns = self.columns();
        self.decode_values(rows.start * columns..rows.end * columns, parts, out)
    }

    /// Decodes values, which are counted in row-major order and divided by [`Decoder::cut`], to `out`. `parts` holds all
    /// stored bytes of each part, in the order of the parts. Both are little endian. Fails if the group index names a group
    /// that does not exist. Panics if the number of parts is wrong, the bytes of a part do not match its shape, the values
    /// are out of range, or the length of `out` is wrong.
    pub fn decode_values(&self, values: Range<u64>, parts: &[&[u8]], out: &mut [u8]) -> Result<DecodeTally> {
        let lengths = parts.iter().map(|bytes| bytes.len() as u64);
        assert!(lengths.eq(self.part_bytes.iter().copied()), "each part has the bytes of its shape");
        let (columns, width) = (self.columns().max(1), u64::from(self.target().bits() / 8));
        let Range { mut start, end: last } = values;
        assert!(start <= last && last <= self.rows() * self.columns(), "the values are those of the weight");
        assert_eq!(out.len() as u64, (last - start) * width, "the output is as long as the values");
        let (mut tally, mut rest) = (DecodeTally::default(), &mut *out);
        while start < last {
            // Whole rows, or columns of one row.
            let column = start % columns;
            let (end, within) = if column == 0 && last - start >= columns {
                (last - last % columns, 0..columns)
            } else {
                let end = last.min(start - column + columns);
                (end, column..column + end - start)
            };
            let (now, later) = rest.split_at_mut(((end - start) * width) as usize);
            let range =
                DecodeRange { isa: self.isa, parts, rows: start / columns..end.div_ceil(columns), columns: within };
            tally += match &self.method {
                Method::Steps(steps) => self.isa.run(RowDecoder::new(steps, &range, now)?),
                Method::Blocks(blocks) => blocks.decode(&range, now),
            };
            (start, rest) = (end, later);
        }
        tally.inexact = self.count_inexact(values, parts, out)?;
        Ok(tally)
    }

    /// Counts the values that differ from the exact ones, if they are watched. A NaN that stays NaN does not count.
    fn count_inexact(&self, values: Range<u64>, parts: &[&[u8]], out: &[u8]) -> Result<Occurrences> {
        let mut inexact = Occurrences::default();
        let Some(exact) = &self.exact else { return Ok(inexact) };
        let Some(widen) = cast(self.target(), Dtype::Float64) else { return Ok(inexact) };
        let (mut numbers, mut wide, mut rest, mut start) = (Vec::new(), Vec::new(), out, values.start);
        while start < values.end {
            let end = self.cut(start, start + (1 << 17)).min(values.end);
            let count = (end - start) as usize;
            let (now, later) = rest.split_at(count * self.target().bits() as usize / 8);
            numbers.resize(8 * count, 0);
            wide.resize(8 * count, 0);
            exact.decode_values(start..end, parts, &mut numbers)?;
            run(&widen, now, &mut wide, count);
            for (at, (exact, value)) in (start..).zip(numbers.as_chunks().0.iter().zip(wide.as_chunks().0)) {
                let [exact, value] = [*exact, *value].map(f64::from_le_bytes);
                if value != exact && !exact.is_nan() {
                    inexact.add(at);
                }
            }
            (start, rest) = (end, later);
        }
        Ok(inexact)
    }

    /// The indices of the parts that hold scales and the global scale.
    pub(crate) fn scale_parts(&self) -> impl Iterator<Item = usize> {
        let (scale, global) = match &self.method {
            Method::Steps(steps) => (Some(steps.geometry.scale.index), steps.geometry.global.map(|slot| slot.index)),
            Method::Blocks(blocks) => (None, blocks.factor.map(|(part, _)| part)),
        };
        scale.into_iter().chain(global)
    }
}
