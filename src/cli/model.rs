//! The arguments about ONNX models.

use crate::plan::ModelOptions;
use clap::Args;

/// Options for ONNX models.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// ONNX models: keep tensors of fewer elements [default: 1024]
    ///
    /// Each tensor that is stored in another type needs a node, which takes about 100 bytes. A tensor that a --rule names
    /// is stored in its type, whatever its size.
    #[arg(long, value_name = "COUNT", value_parser = count, help_heading = "ONNX models", hide_short_help = true)]
    pub min_elements: Option<u64>,

    /// ONNX models: store the elements of initializers in a file next to the model, OUT.data
    ///
    /// A model of more than 2047 MiB always has such a file, because protobuf messages are limited to 2 GiB.
    #[arg(long, help_heading = "ONNX models", hide_short_help = true)]
    pub external_data: bool,

    /// ONNX models: import a later opset if a type needs it and no operator of the model changes
    ///
    /// bfloat16 and integers with a scale for each channel need opset 13, the float8 types and scales of float16 and
    /// bfloat16 19, blocks and types of 4 bits 21.
    /// The error names the operator that prevents it, if there is one.
    #[arg(long, help_heading = "ONNX models", hide_short_help = true)]
    pub raise_opset: bool,
}

fn count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number, 0 or more".to_owned())
}

impl ModelArgs {
    /// Returns the options for the plan.
    #[must_use]
    pub fn options(&self) -> ModelOptions<'static> {
        ModelOptions {
            min_elements: self.min_elements.unwrap_or(ModelOptions::MIN_ELEMENTS),
            external_data: self.external_data,
            raise_opset: self.raise_opset,
            data_file: None,
        }
    }
}
