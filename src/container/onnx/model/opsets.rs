//! Which operators change when a model imports a later operator set.

use crate::dtype::Dtype;

/// The oldest operator set whose changes are in [`OPERATORS`].
pub(super) const OLDEST: u64 = 8;
/// The newest one.
pub(super) const NEWEST: u64 = 28;

/// Every operator of the default domain, and the operator sets from 9 on that break nodes of it: an input, output or
/// attribute moves or disappears, a default changes, or the same signature means something else (Softmax 13 flattens,
/// `Resize` 11 counts coordinates from another point, `RoiAlign` 16, Split 18, `AveragePool` 19, `GroupNormalization` 21).
/// `tests/interop/onnx_models.py` compares this list with the schemas of the onnx package.
const OPERATORS: &str = "Abs, Acos, Acosh, Add, AffineGrid, And, ArgMax, ArgMin, Asin, Asinh, Atan, Atanh, Attention, AveragePool 19, \
    BatchNormalization 9 14, Bernoulli, BitCast, BitShift, BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, \
    BlackmanWindow, Cast, CastLike, CausalConvWithState, Ceil, Celu, CenterCropPad, Clip 11, Col2Im, Compress, \
    Concat, ConcatFromSequence, Constant, ConstantOfShape, Conv, ConvInteger, ConvTranspose, Cos, Cosh, CumProd, \
    CumSum, DFT 20, DeformConv, DepthToSpace, DequantizeLinear, Det, Div, Dropout 10 12 13, DynamicQuantizeLinear, \
    Einsum, Elu, Equal, Erf 13, Exp, Expand, EyeLike, Flatten, Floor, GRU, Gather, GatherElements, GatherND, Gelu, \
    Gemm, GlobalAveragePool, GlobalLpPool, GlobalMaxPool, Greater, GreaterOrEqual, GridSample 20, \
    GroupNormalization 21, HammingWindow, HannWindow, HardSigmoid, HardSwish, Hardmax 13, Identity, If, ImageDecoder, \
    InstanceNormalization, IsInf, IsNaN, LRN, LSTM, LayerNormalization, LeakyRelu, Less, LessOrEqual, \
    LinearAttention, Log, LogSoftmax 13, Loop, LpNormalization, LpPool, MatMul, MatMulInteger, Max, MaxPool, \
    MaxRoiPool, MaxUnpool, Mean, MeanVarianceNormalization, MelWeightMatrix, Min, Mish, Mod, Mul, Multinomial, Neg, \
    NegativeLogLikelihoodLoss, NonMaxSuppression, NonZero, Not, OneHot, Optional, OptionalGetElement, \
    OptionalHasElement, Or, PRelu, Pad 11, Pow, QLinearConv, QLinearMatMul, QuantizeLinear, RMSNormalization, RNN, \
    RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike, Range, Reciprocal, ReduceL1 18, ReduceL2 18, \
    ReduceLogSum 18 28, ReduceLogSumExp 18 28, ReduceMax 18, ReduceMean 18, ReduceMin 18, ReduceProd 18, \
    ReduceSum 13, ReduceSumSquare 18, RegexFullMatch, Relu, Reshape, Resize 11, ReverseSequence, RoiAlign 16, \
    RotaryEmbedding, Round, STFT, Scan 9, Scatter 11, ScatterElements, ScatterND, Selu, SequenceAt, \
    SequenceConstruct, SequenceEmpty, SequenceErase, SequenceInsert, SequenceLength, SequenceMap, Shape, Shrink, \
    Sigmoid, Sign, Sin, Sinh, Size, Slice 10, Softmax 13, SoftmaxCrossEntropyLoss, Softplus, Softsign, SpaceToDepth, \
    Split 13 18, SplitToSequence, Sqrt, Squeeze 13, StringConcat, StringNormalizer, StringSplit, Sub, Sum, SwiGLU, \
    Swish, Tan, Tanh, TensorScatter, TfIdfVectorizer, ThresholdedRelu, Tile, TopK 10, Transpose, Trilu, Unique, \
    Unsqueeze 13, Upsample 9 10, Where, Xor";

/// The first operator set after `from`, up to `to`, that breaks nodes of an operator; `from` + 1 for one that is not
/// known.
pub(super) fn breaks(operator: &[u8], from: u64, to: u64) -> Option<u64> {
    let found = OPERATORS.split(',').map(str::trim).find_map(|row| {
        let mut words = row.split(' ');
        (words.next()?.as_bytes() == operator).then_some(words)
    });
    let Some(versions) = found else { return Some(from + 1) };
    versions.filter_map(|version| version.parse().ok()).find(|version| (from + 1..=to).contains(version))
}

/// The IR version that introduced a type; 0 for types that every version has.
pub(super) fn ir_version(dtype: Dtype) -> u64 {
    match dtype {
        dtype if dtype.is_float8() => 9,
        Dtype::Int4 | Dtype::Uint4 => 10,
        Dtype::Float4E2M1 => 11,
        Dtype::Float8E8M0 => 12,
        Dtype::Float6E2M3 | Dtype::Float6E3M2 => 14,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_breaks_where_its_signature_or_its_meaning_changes() {
        assert_eq!(breaks(b"Relu", 8, NEWEST), None);
        assert_eq!(breaks(b"Softmax", 12, 13), Some(13));
        assert_eq!(breaks(b"Softmax", 13, NEWEST), None);
        assert_eq!(breaks(b"Split", 13, NEWEST), Some(18));
        assert_eq!(breaks(b"Unheard", 13, 14), Some(14));
    }
}
