//! Schemes that users choose, with their names in vLLM and llm-compressor, and the layouts that can store each.

use super::gguf::GgufScheme;
use super::layout::{CodeNodes, CodeValues, Group, Layout, RotationUse};
use super::rules::Encoding;
use crate::dtype::Dtype;

/// The values that a quantized weight can have: its codes, and the groups of elements that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetGrid {
    pub codes: CodeType,
    /// The elements that share a scale.
    pub group: Group,
    /// The dtype of stored scales; `None` for the dtype of the weight.
    pub scale: Option<Dtype>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeType {
    /// A float of 8 bits or fewer.
    Float(Dtype),
    Int {
        bits: u32,
        /// True if there are no zero points.
        symmetric: bool,
    },
}

impl CodeType {
    pub fn bits(self) -> u32 {
        match self {
            Self::Float(dtype) => dtype.bits(),
            Self::Int { bits, .. } => bits,
        }
    }
}

/// A scheme in one of its layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemeLayout {
    /// The name of the layout for users: the library or engine that reads it.
    pub name: &'static str,
    /// The row of the table of layouts.
    pub row: &'static Layout,
    pub grid: TargetGrid,
    /// Note about engines that do not run it, by their documentation or their libraries.
    pub limits: Option<&'static str>,
}

impl SchemeLayout {
    /// True if groups can have any size.
    pub fn has_group_size(&self) -> bool {
        let is_of_model = self.row.nodes.is_some() && matches!(self.grid.group, Group::Neighbours(_));
        matches!(self.row.codes.values, CodeValues::Unsigned | CodeValues::Levels) || is_of_model
    }

    /// Returns the conversion of values to its codes and scales.
    pub fn encoding(&self) -> Encoding {
        self.row.encoding.expect("schemes have layouts that can be written")
    }
}

/// A way to quantize weights that users can choose.
#[derive(Debug, PartialEq, Eq)]
pub struct Scheme {
    pub name: &'static str,
    /// Its names in vLLM and llm-compressor.
    pub aliases: &'static [&'static str],
    /// Description of its grid.
    pub summary: &'static str,
    /// The layouts with separate codes and scales that can store it, the default first.
    pub layouts: &'static [SchemeLayout],
    /// Its types in GGUF files; `None` if they cannot store it.
    pub gguf: Option<GgufScheme>,
    /// The layouts that can store it in ONNX models, the default first. Tables follow other weights of the layout.
    pub in_model: &'static [SchemeLayout],
}

impl serde::Serialize for Scheme {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl Scheme {
    /// True if `--group-size` may change the groups: groups of integers packed into words, and of levels, can have any size.
    pub fn has_group_size(&self) -> bool {
        self.layouts.iter().any(SchemeLayout::has_group_size)
    }

    /// True if the weights of this scheme can be rotated in the layout of this name.
    pub fn has_rotation(&self, layout: &str) -> bool {
        self.in_layout(Some(layout)).is_some_and(|layout| layout.row.rotation != RotationUse::Never)
    }

    /// True if scales can be searched for its codes.
    pub fn has_search(&self) -> bool {
        self.layouts.iter().any(|layout| layout.grid.codes.bits() <= layout.encoding().scale.searched_bits)
    }

    /// True if a scale of activations can be stored with its weights.
    pub fn has_activation_scale(&self) -> bool {
        self.layouts.iter().any(|layout| layout.encoding().scale.global.is_some())
    }

    /// True if it can have partial blocks in the layout of this name.
    pub fn has_partial_blocks(&self, layout: &str) -> bool {
        let layout = self.in_layout(Some(layout));
        layout.is_some_and(|layout| matches!(layout.grid.group, Group::Block(_)) && layout.encoding().partial_blocks)
    }

    /// Returns the scheme in the layout of this name in ONNX models, or in the default layout if the name is `None`; `None`
    /// if they cannot store the scheme.
    pub fn in_model(&self, name: Option<&str>) -> Option<&'static SchemeLayout> {
        self.in_model.iter().find(|layout| name.is_none_or(|name| layout.name == name))
    }

    /// Returns the scheme in the tables of the layout of this name in ONNX models; `None` if they cannot store it.
    pub fn in_table(&self, name: Option<&str>) -> Option<&'static SchemeLayout> {
        let is_table = |layout: &&SchemeLayout| layout.row.nodes == Some(CodeNodes::Table);
        self.in_model.iter().filter(is_table).find(|layout| Some(layout.name) == name)
    }

    /// Returns the scheme in the layout of this name, or in the default layout if the name is `None`; `None` if the
    /// layout cannot store the scheme.
    pub fn in_layout(&self, name: Option<&str>) -> Option<&'static SchemeLayout> {
        let mut layouts = self.layouts.iter();
        layouts.find(|layout| name.is_none_or(|name| layout.name == name))
    }
}
