//! Operators that change when a model imports a later operator set.

use crate::dtype::Dtype;

/// The oldest operator set whose changes are in [`OPERATORS`].
const OLDEST: u64 = 1;
const NEWEST: u64 = 28;

/// Every operator of the default domain, and the operator sets that break nodes of it: an input, output or attribute
/// moves or disappears, a default changes, or the same signature gets another meaning (Softmax 13 no longer flattens,
/// `Resize` 11 counts coordinates from another point, `RoiAlign` 16, Split 18, `AveragePool` 19, `GroupNormalization`
/// 21; `PRelu` 7 applies slopes of channels to the last dimension). `tests/interop/onnx_models.py` compares this list
/// with the schemas of the onnx package.
const OPERATORS: &str = "Abs 6, Acos, Acosh, Add 6 7, AffineGrid, And 7, ArgMax, ArgMin, Asin, Asinh, Atan, Atanh, Attention, AveragePool \
    19, BatchNormalization 6 7 9 14, Bernoulli, BitCast, BitShift, BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor, \
    BlackmanWindow, Cast 6, CastLike, CausalConvWithState, Ceil 6, Celu, CenterCropPad, Clip 6 11, Col2Im, Compress, \
    Concat 4, ConcatFromSequence, Constant, ConstantOfShape, Conv, ConvInteger, ConvTranspose, Cos, Cosh, CumProd, \
    CumSum, DFT 20, DeformConv, DepthToSpace, DequantizeLinear, Det, Div 6 7, Dropout 6 7 10 12 13, \
    DynamicQuantizeLinear, Einsum, Elu 6, Equal 7, Erf 13, Exp 6, Expand, EyeLike, Flatten, Floor 6, GRU 3 7, \
    Gather, GatherElements, GatherND, Gelu, Gemm 7, GlobalAveragePool, GlobalLpPool 2, GlobalMaxPool, Greater 7, \
    GreaterOrEqual, GridSample 20, GroupNormalization 21, HammingWindow, HannWindow, HardSigmoid 6, HardSwish, \
    Hardmax 13, Identity, If, ImageDecoder, InstanceNormalization 6, IsInf, IsNaN, LRN, LSTM 7, LayerNormalization, \
    LeakyRelu 6, Less 7, LessOrEqual, LinearAttention, Log 6, LogSoftmax 13, Loop, LpNormalization, LpPool 2, \
    MatMul, MatMulInteger, Max 6, MaxPool, MaxRoiPool, MaxUnpool, Mean 6, MeanVarianceNormalization, \
    MelWeightMatrix, Min 6, Mish, Mod, Mul 6 7, Multinomial, Neg 6, NegativeLogLikelihoodLoss, NonMaxSuppression, \
    NonZero, Not, OneHot, Optional, OptionalGetElement, OptionalHasElement, Or 7, PRelu 6 7, Pad 2 11, Pow 7, \
    QLinearConv, QLinearMatMul, QuantizeLinear, RMSNormalization, RNN 7, RandomNormal, RandomNormalLike, \
    RandomUniform, RandomUniformLike, Range, Reciprocal 6, ReduceL1 18, ReduceL2 18, ReduceLogSum 18 28, \
    ReduceLogSumExp 18 28, ReduceMax 18, ReduceMean 18, ReduceMin 18, ReduceProd 18, ReduceSum 13, ReduceSumSquare \
    18, RegexFullMatch, Relu 6, Reshape 5, Resize 11, ReverseSequence, RoiAlign 16, RotaryEmbedding, Round, STFT, \
    Scan 9, Scatter 11, ScatterElements, ScatterND, Selu 6, SequenceAt, SequenceConstruct, SequenceEmpty, \
    SequenceErase, SequenceInsert, SequenceLength, SequenceMap, Shape, Shrink, Sigmoid 6, Sign, Sin, Sinh, Size, \
    Slice 10, Softmax 13, SoftmaxCrossEntropyLoss, Softplus, Softsign, SpaceToDepth, Split 2 13 18, SplitToSequence, \
    Sqrt 6, Squeeze 13, StringConcat, StringNormalizer, StringSplit, Sub 6 7, Sum 6, SwiGLU, Swish, Tan, Tanh 6, \
    TensorScatter, TfIdfVectorizer, ThresholdedRelu, Tile 6, TopK 10, Transpose, Trilu, Unique, Unsqueeze 13, \
    Upsample 7 9 10, Where, Xor 7";

/// Reason why nodes of an operator cannot use a later operator set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Break {
    /// The operator, or the operator set that the model imports, is unknown to tcast.
    Unknown,
    /// The meaning of the nodes changes from this operator set on.
    From(u64),
}

/// Returns the reason why nodes of an operator in the operator set `from` cannot use the later set `to`; `None` if they
/// can.
pub(super) fn breaks(operator: &[u8], from: u64, to: u64) -> Option<Break> {
    let found = OPERATORS.split(',').map(str::trim).find_map(|row| {
        let mut words = row.split(' ');
        (words.next()?.as_bytes() == operator).then_some(words)
    });
    let Some(mut versions) = found.filter(|_| (OLDEST..=NEWEST).contains(&from)) else { return Some(Break::Unknown) };
    let first = versions.find_map(|version| version.parse().ok().filter(|version| (from + 1..=to).contains(version)));
    first.map(Break::From)
}

/// Returns the IR version that introduced a type; 0 for types that every version has.
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
        assert_eq!(breaks(b"Relu", 5, NEWEST), Some(Break::From(6)));
        assert_eq!((breaks(b"MatMul", 1, NEWEST), breaks(b"Transpose", 1, NEWEST)), (None, None));
        assert_eq!(breaks(b"Softmax", 12, 13), Some(Break::From(13)));
        assert_eq!(breaks(b"Softmax", 13, NEWEST), None);
        assert_eq!(breaks(b"Split", 13, NEWEST), Some(Break::From(18)));
        assert_eq!(breaks(b"Unheard", 13, 14), Some(Break::Unknown));
    }
}
