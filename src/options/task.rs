//! The task of a job: an operator with its options.

use super::{
    AdapterOption, BitcastOptions, CastOptions, ContentOptions, DequantizeOptions, ModelOptions, NamingOptions,
    PromoteOptions, QuantizeOptions, RecordedOptions, ShardOptions, TensorOptions,
};
use crate::container::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::operator::Operator;
use crate::operator::cast::CastAttributes;
use crate::quant::ONNX;
use crate::select::Selection;
use std::borrow::Cow;

/// An operation on the tensors of a job's inputs, with its options.
#[derive(Clone, Copy)]
pub(crate) enum Task<'o> {
    Cast(&'o CastOptions),
    BitCast(&'o BitcastOptions),
    /// The options name the common type.
    Promote(&'o PromoteOptions),
    /// The options name the type, unless it differs between the weights of a model.
    Dequantize(&'o DequantizeOptions),
    Quantize(&'o QuantizeOptions),
}

impl<'o> Task<'o> {
    pub(crate) fn operator(self) -> Operator {
        match self {
            Self::Cast(options) => Operator::Cast(options.attributes),
            Self::BitCast(_) => Operator::BitCast,
            Self::Promote(options) => {
                Operator::Promote(CastAttributes { saturate: options.saturate, ..CastAttributes::default() })
            }
            Self::Dequantize(_) => Operator::Dequantize,
            Self::Quantize(_) => Operator::Quantize,
        }
    }

    /// Returns the type that names outputs, which at least one tensor must get.
    pub(crate) fn to(self) -> Option<Dtype> {
        match self {
            Self::Cast(options) => options.to,
            Self::BitCast(options) => options.to,
            Self::Dequantize(options) => options.to,
            Self::Promote(_) | Self::Quantize(_) => None,
        }
    }

    /// Returns the word that names outputs.
    pub(crate) fn label(self) -> Option<&'static str> {
        match self {
            Self::Quantize(options) => options.scheme.map(|scheme| scheme.name).or(options.layout_in_effect()),
            _ => self.to().map(Dtype::name),
        }
    }

    /// True if codes of quantized weights are taken for values.
    pub(crate) fn forces_codes(self) -> bool {
        match self {
            Self::Cast(options) => options.force_codes,
            Self::BitCast(options) => options.force_codes,
            Self::Quantize(options) => options.force_codes,
            Self::Promote(_) | Self::Dequantize(_) => false,
        }
    }

    pub(crate) fn model_options(self) -> ModelOptions {
        match self {
            Self::Cast(options) => options.model,
            Self::Quantize(options) => options.model,
            Self::Dequantize(options) => {
                ModelOptions { external_data: options.external_data, ..ModelOptions::default() }
            }
            Self::BitCast(_) | Self::Promote(_) => ModelOptions::default(),
        }
    }

    /// Returns the attribute of new `MatMulNBits` nodes that chooses the arithmetic of their kernels.
    pub(crate) fn accuracy_level(self) -> Option<u8> {
        if let Self::Quantize(options) = self { options.accuracy_level } else { None }
    }

    /// Returns the maximum bytes of tensors in a shard, if tensors are distributed over new shards.
    pub(crate) fn max_shard_size(self) -> Option<u64> {
        match self {
            Self::Cast(CastOptions { shards, .. })
            | Self::Dequantize(DequantizeOptions { shards, .. })
            | Self::Quantize(QuantizeOptions { shards, .. }) => ShardOptions::max_bytes(*shards),
            Self::BitCast(_) | Self::Promote(_) => None,
        }
    }

    /// Returns the options for the contents of outputs; `None` if these have the tensors of the inputs.
    pub(crate) fn contents(self) -> Option<&'o ContentOptions> {
        match self {
            Self::Cast(CastOptions { contents, .. })
            | Self::Dequantize(DequantizeOptions { contents, .. })
            | Self::Quantize(QuantizeOptions { contents, .. }) => Some(contents),
            Self::BitCast(_) | Self::Promote(_) => None,
        }
    }

    /// Returns the adapters to merge.
    pub(crate) fn adapters(self) -> &'o [AdapterOption] {
        self.contents().map_or(&[], |contents| &contents.lora)
    }

    /// Returns the choice of tensors, and the names of a model's tensors.
    pub(crate) fn tensors(self) -> Cow<'o, TensorOptions> {
        match self {
            Self::Cast(CastOptions { tensors, .. })
            | Self::BitCast(BitcastOptions { tensors, .. })
            | Self::Dequantize(DequantizeOptions { tensors, .. })
            | Self::Quantize(QuantizeOptions { tensors, .. }) => Cow::Borrowed(tensors),
            Self::Promote(options) => {
                let naming = NamingOptions { root: options.root.clone(), ..NamingOptions::default() };
                Cow::Owned(TensorOptions { naming, ..TensorOptions::default() })
            }
        }
    }

    /// Returns the type of untyped elements.
    pub(crate) fn from(self) -> Option<Dtype> {
        match self {
            Self::Cast(options) => options.tensors.from,
            Self::BitCast(options) => options.tensors.from,
            Self::Promote(options) => options.from,
            Self::Dequantize(_) | Self::Quantize(_) => None,
        }
    }

    /// Returns the choice of the tensors of an input that are cast; planners choose weights themselves.
    pub(crate) fn selection(self, source: &Checkpoint) -> Selection {
        let renamed = |renames: &'o [_]| Selection { renames: renames.to_vec(), ..Selection::default() };
        match self {
            Self::Cast(options) => options.selection(),
            Self::BitCast(options) => options.selection(),
            Self::Promote(options) => {
                Selection { to: options.to, all: true, only: options.only(source), ..Selection::default() }
            }
            Self::Dequantize(options) => renamed(&options.tensors.rename),
            Self::Quantize(options) => renamed(&options.tensors.rename),
        }
    }

    /// Returns the options that influence the bytes of the output, as they are in effect.
    pub(crate) fn recorded(self, source: &Checkpoint) -> RecordedOptions {
        match self {
            Self::Cast(options) => RecordedOptions::of(options),
            Self::BitCast(options) => RecordedOptions::of(options),
            Self::Promote(options) => RecordedOptions::of(options),
            Self::Dequantize(options) => RecordedOptions::of(options),
            Self::Quantize(options) => {
                let of_model = options.layout.unwrap_or(ONNX.name);
                let layout = if source.is_onnx_model() { Some(of_model) } else { options.layout_in_effect() };
                RecordedOptions::of(&QuantizeOptions { layout, ..options.clone() })
            }
        }
    }
}
