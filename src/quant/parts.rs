//! The parts of a weight, as described in file headers.

use super::layout::{Group, Layout, Role};
use crate::blocks::{Assembly, BlockFormat};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use std::sync::Arc;

/// A stored tensor that belongs to a weight.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub role: Role,
    /// The tensor's name, for messages.
    pub name: &'a str,
    pub dtype: Dtype,
    /// Its shape in elements; for packed tensors, the shape in the file.
    pub shape: &'a [u64],
}

/// Properties of a weight that the shapes of its parts do not show. They come from config.json, the names of the
/// layout, or tensors of a few bytes.
#[allow(clippy::struct_excessive_bools, reason = "each is a statement of a config, independent of the others")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// The shape of the weight if the shape of the codes does not determine it: `weight_shape` of compressed-tensors,
    /// `shape` of bitsandbytes' `quant_state`, or the model's shape of a padded `ComfyUI` weight.
    pub shape: Option<Vec<u64>>,
    /// The width of integer codes in int32 words.
    pub bits: Option<u32>,
    /// The elements that share a scale; for bitsandbytes, `blocksize` as [`Group::Neighbours`].
    pub group: Option<Group>,
    /// True if stored zero points are one less, modulo the range of codes: GPTQ's default `checkpoint_format` `gptq`,
    /// but not `gptq_v2`.
    pub zeros_are_one_less: bool,
    /// True if the config declares the grid symmetric. Engines then ignore zero points.
    pub is_symmetric: bool,
    /// True if the config declares that columns are in the order of their groups, regardless of a group index.
    pub is_in_order: bool,
    /// bitsandbytes' `nested_blocksize`; 256 if not given.
    pub nested_group: Option<u64>,
    /// bitsandbytes' `nested_offset`.
    pub nested_offset: f32,
    /// `ComfyUI`'s `convrot_groupsize`, if the weight is rotated: 4, 16, 64, 256 or 1024.
    pub rotation: Option<u64>,
    /// True if `ComfyUI` multiplies by the weight in full precision.
    pub has_full_precision: bool,
    /// The original type of the weight, if the library converts to it first: bitsandbytes' `dtype`.
    pub weight_dtype: Option<Dtype>,
    /// The axis of the scales of ONNX's `DequantizeLinear`; `None` if there is one scale.
    pub linear: Option<LinearAxis>,
    /// The formats of blocks that hold codes and scales, and the way in which the weight is made of them (GGUF).
    pub blocks: Option<BlockParameters>,
    /// The bytes of parts that the file stores in another form, such as ONNX's `int32_data`.
    pub held: Vec<(Role, Arc<[u8]>)>,
}

impl Parameters {
    /// Returns the parameters of a `DequantizeLinear` node.
    #[must_use]
    pub fn linear(axis: Option<LinearAxis>) -> Self {
        Self { linear: axis, ..Self::default() }
    }
}

/// The formats of the blocks of a weight, and the way in which the weight is assembled from them.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockParameters {
    /// The format of each tensor of codes: one or two.
    pub formats: Vec<&'static BlockFormat>,
    pub assembly: Assembly,
}

/// Position of the groups of `DequantizeLinear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAxis {
    /// The dimension along which scales vary.
    pub axis: usize,
    /// The attribute `block_size`: the elements along the axis that share a scale; 0 if a scale is for a whole index.
    pub block_size: u64,
}

/// A part without its name, as kept by the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its index among the parts.
    pub(super) index: usize,
    pub(super) dtype: Dtype,
    pub(super) count: u64,
}

/// A placeholder, until the part is found.
impl Default for Slot {
    fn default() -> Self {
        Self { index: 0, dtype: Dtype::Uint8, count: 0 }
    }
}

/// The parts of a weight by role, and errors about them.
pub(super) struct Parts<'a> {
    pub(super) layout: &'static Layout,
    pub(super) parts: &'a [Part<'a>],
}

impl<'a> Parts<'a> {
    pub(super) fn find(&self, role: Role) -> Result<Option<(Slot, Part<'a>)>> {
        let mut found = self.parts.iter().enumerate().filter(|(_, part)| part.role == role);
        let Some((index, &part)) = found.next() else { return Ok(None) };
        if let Some((_, other)) = found.next() {
            return Err(self.error(format!(
                "'{}' and '{}' are both its {}",
                part.show(),
                other.show(),
                role.describe()
            )));
        }
        let count = part.shape.iter().product();
        Ok(Some((Slot { index, dtype: part.dtype, count }, part)))
    }

    /// Refuses shapes whose products overflow.
    pub(super) fn check_shapes(&self, weight: Option<&[u64]>) -> Result<()> {
        if let Some(shape) = weight.filter(|shape| !is_possible(shape)) {
            return Err(self.error(format!("the shape {shape:?} of the weight is too large")));
        }
        let Some(part) = self.parts.iter().find(|part| !is_possible(part.shape)) else { return Ok(()) };
        Err(self.error(format!("the shape {:?} of '{}' is too large", part.shape, part.show())))
    }

    /// Returns the part with a role that the layout requires.
    pub(super) fn need(&self, role: Role) -> Result<(Slot, Part<'a>)> {
        let codes = self.parts.iter().find(|part| part.role == Role::Codes).map_or("", |codes| codes.name);
        let missing = || {
            let what = self.layout.describe_missing(role, codes);
            self.error(format!("it has no {what}, which the layout {} needs", self.layout.name))
        };
        self.find(role)?.ok_or_else(missing)
    }

    /// Returns the part if it has one of these dtypes, and an error otherwise.
    pub(super) fn typed(&self, (slot, part): (Slot, Part<'a>), dtypes: &[Dtype]) -> Result<(Slot, Part<'a>)> {
        if dtypes.contains(&part.dtype) {
            return Ok((slot, part));
        }
        let names: Vec<&str> = dtypes.iter().map(|dtype| dtype.name()).collect();
        let (what, layout) = (part.role.describe(), self.layout.name);
        Err(self.error(format!(
            "'{}' is {}, and the layout {layout} stores its {what} as {}",
            part.show(),
            part.dtype,
            names.join(" or ")
        )))
    }

    pub(super) fn error(&self, message: String) -> Error {
        let codes = self.parts.iter().find(|part| part.role == Role::Codes);
        Error::new(message).in_tensor(codes.map_or("", |codes| codes.name))
    }

    /// Returns the error for a part whose shape does not fit the codes.
    pub(super) fn mismatch(&self, part: &Part, expected: &[u64], why: &str) -> Error {
        self.error(format!("'{}' has the shape {:?}, but {why} needs {expected:?}", part.show(), part.shape))
    }
}

/// True if the size of a shape, ignoring zero lengths, can be counted in bits.
pub(super) fn is_possible(shape: &[u64]) -> bool {
    let all = shape.iter().try_fold(1_u64, |product, length| product.checked_mul((*length).max(1)));
    all.is_some_and(|all| all < 1 << 56)
}

impl Part<'_> {
    pub(super) fn show(&self) -> String {
        shorten(self.name)
    }
}
