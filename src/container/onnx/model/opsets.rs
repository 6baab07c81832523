//! The operator set and the IR version of a model, and the obstacles to later ones.

use super::super::protobuf::Value;
use super::graph::ModelGraph;
use super::messages::{Message, MessageKind, is_default_domain};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::text::shorten;
use std::collections::BTreeMap;
use std::ops::Range;

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

/// Target types whose casts changed in opset 24.
const FNUZ: [Dtype; 2] = [Dtype::Float8E4M3FNUZ, Dtype::Float8E5M2FNUZ];

/// Reason why nodes of an operator cannot use a later operator set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Break {
    /// The operator, or the operator set that the model imports, is unknown to tcast.
    Unknown,
    /// The meaning of the nodes changes from this operator set on.
    From(u64),
}

/// The import of a set of operators.
pub(super) struct Import<'a> {
    pub message: usize,
    pub domain: &'a [u8],
    /// The range of the version in the file.
    pub range: Range<usize>,
    pub version: u64,
}

impl ModelGraph<'_> {
    /// Returns the imports of the model itself, or of its functions.
    pub(super) fn imports(&self, importer: MessageKind) -> impl Iterator<Item = Import<'_>> {
        let is_import = move |message: &Message| {
            message.kind == MessageKind::OperatorSet && self.messages[message.parent].kind == importer
        };
        self.messages.iter().enumerate().filter(move |(_, message)| is_import(message)).map(|(at, _)| {
            let [domain] = self.bytes(at, [1]);
            let mut import = Import { message: at, domain, range: 0..0, version: 0 };
            for field in self.fields(at).with_ranges().map_while(Result::ok) {
                if let (range, 2, Value::Varint(version)) = field {
                    (import.range, import.version) = (range, version);
                }
            }
            import
        })
    }

    /// Returns the operator set that the model imports, if `needy`, a type or a scale, needs the later set `wanted`.
    /// Fails if the model cannot import that set, or if `may_raise` is false; `remedy` helps without another version.
    pub(crate) fn older_opset(
        &self,
        (needy, wanted): (&str, u64),
        remedy: Option<&str>,
        may_raise: bool,
    ) -> Result<Option<u64>> {
        const OWN_DOMAIN: &str = "if the operator is not one of ONNX, its nodes need a domain of their own";
        const CONVERTER: &str = "onnx.version_converter converts models to later opsets";
        const INLINER: &str = "onnx.inliner.inline_local_functions puts the nodes of functions into the graph";
        let Some(imported) = self.opset else {
            let what = "the model imports no operators of the default domain, and Cast is one of them";
            return Err(Error::new(what).with(Opt::OUTPUT, "name an output that ends in .safetensors"));
        };
        if imported >= wanted {
            return Ok(None);
        }
        let what = format!("{needy} needs opset {wanted}, and the model imports {imported}");
        let has_functions = self.imports(MessageKind::Function).any(|import| is_default_domain(import.domain));
        let (why, advice) = if has_functions {
            ("its functions import opsets of their own, so tcast does not raise it".to_owned(), INLINER)
        } else {
            match self.first_break(imported, wanted) {
                Some((Break::From(first), node)) => {
                    (format!("{node} means something else from opset {first} on"), CONVERTER)
                }
                Some((Break::Unknown, node)) => {
                    (format!("{node} is of an operator that tcast does not know"), OWN_DOMAIN)
                }
                None if may_raise => return Ok(Some(imported)),
                None => {
                    return Err(
                        Error::new(what).with(Opt::RAISE_OPSET, "add {}: no operator of the model changes on the way")
                    );
                }
            }
        };
        let remedies: Vec<&str> = remedy.into_iter().chain([advice]).collect();
        Err(Error::new(format!("{what}: {why}")).remedy(remedies.join("; ")))
    }

    /// Returns the first reason why the model cannot import a later operator set, with the node.
    fn first_break(&self, imported: u64, wanted: u64) -> Option<(Break, String)> {
        let mut operators: BTreeMap<&[u8], usize> = BTreeMap::new();
        for at in self.nodes() {
            let node = self.node(at);
            if is_default_domain(node.domain) {
                operators.entry(node.op_type).or_insert(at);
            }
        }
        let breaks = operators.iter().filter_map(|(operator, at)| Some((breaks(operator, imported, wanted)?, *at)));
        // With saturation, infinity becomes NaN in these types up to Cast-23, and the largest number from Cast-24 on.
        let fnuz = (imported + 1..=wanted).contains(&24).then(|| self.fnuz_cast()).flatten();
        let breaks = breaks.chain(fnuz.map(|at| (Break::From(24), at)));
        let (why, name, at) = breaks.map(|(why, at)| (why, self.node_label(at), at)).min()?;
        Some((why, format!("node '{name}' ({})", shorten(&String::from_utf8_lossy(self.node(at).op_type)))))
    }

    /// Returns the first node that casts to a FNUZ float8 type with saturation. `CastLike` takes the type of another
    /// value.
    fn fnuz_cast(&self) -> Option<usize> {
        let (mut like, mut has_fnuz) = (None, self.has_fnuz);
        for at in self.nodes().filter(|at| is_default_domain(self.node(*at).domain)) {
            let [to, output, saturate] = self.integers(at, [("to", 0), ("output_dtype", 0), ("saturate", 1)]);
            has_fnuz |= is_fnuz(to) || is_fnuz(output);
            match self.node(at).op_type {
                b"Cast" if saturate != 0 && is_fnuz(to) => return Some(at),
                b"CastLike" if saturate != 0 => like = like.or(Some(at)),
                _ => {}
            }
        }
        like.filter(|_| has_fnuz)
    }

    /// Fails if the IR version is so old that all initializers have to be inputs, so that there can be no new ones for
    /// `needy`, a type or a scale.
    pub(crate) fn check_new_initializers(&self, needy: &str) -> Result<()> {
        let version = self.ir_number();
        if version > 3 { Ok(()) } else { Err(too_old(version, needy)) }
    }

    /// Returns the IR version that a type needs, if the model has an older one. Fails if raising it would change the
    /// meaning of the model: in IR versions up to 3, initializers are constants although they are inputs of the graph.
    pub(crate) fn later_ir(&self, dtype: Dtype) -> Result<Option<u64>> {
        let wanted = match dtype {
            dtype if dtype.is_float8() => 9,
            Dtype::Int4 | Dtype::Uint4 => 10,
            Dtype::Float4E2M1 => 11,
            Dtype::Float8E8M0 => 12,
            Dtype::Float6E2M3 | Dtype::Float6E3M2 => 14,
            _ => 0,
        };
        match self.ir_number() {
            version if version >= wanted => Ok(None),
            version @ 0..=3 => Err(too_old(version, dtype.name())),
            _ => Ok(Some(wanted)),
        }
    }

    pub(super) fn ir_number(&self) -> u64 {
        self.ir_version.as_ref().map_or(0, |(_, version)| *version)
    }
}

fn too_old(version: u64, needy: &str) -> Error {
    let what = "in which callers could override the initializers";
    Error::new(format!("{needy} needs a later IR version than {version}, {what}"))
}

/// True if this is the ONNX number of a type of [`FNUZ`].
pub(super) fn is_fnuz(number: i64) -> bool {
    FNUZ.iter().any(|dtype| dtype.onnx_number().is_some_and(|own| i64::from(own) == number))
}

/// Returns the reason why nodes of an operator in the operator set `from` cannot use the later set `to`; `None` if they
/// can.
fn breaks(operator: &[u8], from: u64, to: u64) -> Option<Break> {
    let found = OPERATORS.split(',').map(str::trim).find_map(|row| {
        let mut words = row.split(' ');
        (words.next()?.as_bytes() == operator).then_some(words)
    });
    let Some(mut versions) = found.filter(|_| (OLDEST..=NEWEST).contains(&from)) else { return Some(Break::Unknown) };
    let first = versions.find_map(|version| version.parse().ok().filter(|version| (from + 1..=to).contains(version)));
    first.map(Break::From)
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
