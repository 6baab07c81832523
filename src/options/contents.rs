//! Options for what an output contains, apart from the types of its tensors.

use super::shared::texts;
use crate::select::Pattern;
use serde::Serialize;

/// Choice of the tensors that an output has.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "cli", derive(clap::Args), command(next_help_heading = "Contents of the output"))]
pub struct ContentOptions {
    /// Write only the tensors whose name matches; repeatable
    ///
    /// The others are left out. The name of a quantized weight stands for all of its parts.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB", hide_short_help = true))]
    pub only: Vec<Pattern>,

    /// Leave out the tensors whose name matches; repeatable
    ///
    /// It applies after --only. The name of a quantized weight stands for all of its parts.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    #[cfg_attr(feature = "cli", arg(long, value_name = "GLOB", hide_short_help = true))]
    pub drop: Vec<Pattern>,
}

impl ContentOptions {
    /// True if the output may have other contents than the input.
    pub(crate) fn changes_contents(&self) -> bool {
        !(self.only.is_empty() && self.drop.is_empty())
    }
}
