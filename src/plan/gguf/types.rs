//! The types that weights have, or keep, in a GGUF file.

use crate::blocks::BlockFormat;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::gguf::{GgufScheme, KeptRule};
use crate::quant::{CodeKind, Grid, Group};
use crate::select::KeptReason;

/// Returns the format that can hold the codes and scales of this grid; the result shows whether it does.
pub(super) fn same_format(grid: &Grid) -> Result<&'static BlockFormat> {
    let name = match (grid.codes, grid.group) {
        (CodeKind::Dtype(Dtype::Int8), _) if !grid.has_zero_points => "q8_0",
        (CodeKind::Centered(8), _) => "q8_0",
        (CodeKind::Centered(4), _) => "q4_0",
        (CodeKind::Dtype(Dtype::Float4E2M1), Some(Group::Neighbours(32))) => "mxfp4",
        (CodeKind::Dtype(Dtype::Float4E2M1), Some(Group::Neighbours(16))) => "nvfp4",
        _ => {
            let error = match grid.codes {
                CodeKind::Offset(_) => Error::new("has offsets, which tcast does not move to blocks of GGUF files"),
                _ => Error::new(format!("no type of GGUF files has its codes and groups ({grid})")),
            };
            return Err(error.remedy("choose a scheme to quantize the weights again"));
        }
    };
    Ok(GgufScheme::find(name).expect("the scheme is in the table").format)
}

/// Returns the reason why a tensor is not quantized, in the words of the report.
pub(super) fn reason_of(rule: KeptRule, name: &str) -> KeptReason {
    match rule {
        _ if name.ends_with("bias") => KeptReason::Bias,
        _ if name.contains("norm") => KeptReason::Norm,
        KeptRule::NotAWeight | KeptRule::Dimensions => KeptReason::NoMatrix,
        KeptRule::Name(part) if part.contains("embd") => KeptReason::Embedding,
        KeptRule::Name(part) if part.contains("gate_inp") => KeptReason::Router,
        KeptRule::Name(_) => KeptReason::Library,
    }
}
