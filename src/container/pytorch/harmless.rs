//! The classes and functions that programs use without harm when they load a file, and the uses.

use super::types::TorchType;
use std::borrow::Cow;

/// A use of a class or function that does no harm. Any of them may also be a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeUse {
    /// Only as a value, such as the type of a tensor or the class of an array.
    Value,
    /// Calls with data.
    Call,
    /// `__new__` without arguments, and once a dict of attributes. Some classes look into them when they are set.
    Instance(Holds),
    /// `__new__` without arguments, and entries like those of a dict.
    Filled,
    /// Only the one call of `getattr` that names a class, which was made.
    Attribute,
}

/// Values, besides data, that the attributes of an instance may hold without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Data,
    /// Instances of classes of the same package.
    Family,
    Anything,
}

use CodeUse::{Call, Filled, Instance, Value};
use Holds::{Anything, Data, Family};

/// Modules, their uses, and names in them, separated by spaces. All are exact: a module also contains what it imports, such as
/// functions that open files.
///
/// A list of what is allowed cannot be complete, and a list of what is forbidden cannot be either; only the first is safe.
const HARMLESS: &[(&str, CodeUse, &str)] = &[
    ("torch", Value, "Tensor Generator strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged"),
    ("torch", Call, "Size device"),
    ("torch", Value, "per_tensor_affine per_channel_affine per_tensor_symmetric per_channel_symmetric"),
    ("torch", Value, "preserve_format contiguous_format channels_last channels_last_3d"),
    ("torch.nn.functional", Value, "relu gelu silu mish elu selu leaky_relu tanh sigmoid softmax"),
    ("torch._C._nn", Value, "gelu silu mish leaky_relu log_sigmoid softplus"),
    ("torch.torch_version", Call, "TorchVersion"),
    ("numpy", Value, "bool_ float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64"),
    ("decimal", Call, "Decimal"),
    ("fractions", Call, "Fraction"),
    ("uuid", Instance(Data), "UUID"),
    ("torch.storage", Value, "UntypedStorage TypedStorage"),
    ("torch._utils", Call, "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter"),
    ("torch._utils", Call, "_rebuild_parameter_with_state _rebuild_device_tensor_from_cpu_tensor"),
    ("torch._utils", Call, "_rebuild_device_tensor_from_numpy _rebuild_meta_tensor_no_storage _rebuild_nested_tensor"),
    (
        "torch._utils",
        Call,
        "_rebuild_qtensor _rebuild_sparse_tensor _rebuild_sparse_csr_tensor _rebuild_wrapper_subclass",
    ),
    ("torch._utils", Call, "_rebuild_xla_tensor"),
    ("torch._tensor", Value, "Tensor"),
    ("torch._tensor", Call, "_rebuild_from_type_v2"),
    ("torch.nn.parameter", Value, "Parameter Buffer"),
    ("torch.nn.parameter", Call, "UninitializedParameter UninitializedBuffer"),
    ("torch.serialization", Call, "_get_layout"),
    ("collections", Call, "OrderedDict defaultdict deque Counter"),
    ("numpy", Value, "ndarray"),
    ("numpy", Call, "dtype"),
    ("numpy.core.multiarray", Call, "_reconstruct scalar"),
    ("numpy._core.multiarray", Call, "_reconstruct scalar"),
    ("numpy.core.numeric", Call, "_frombuffer"),
    ("numpy._core.numeric", Call, "_frombuffer"),
    ("_codecs", Call, "encode"),
    ("argparse", Instance(Anything), "Namespace"),
    ("pathlib", Call, "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"),
    ("pathlib._local", Call, "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath"),
    ("typing", Value, "Any Dict List Optional Tuple Union"),
    ("datetime", Call, "date datetime timedelta timezone"),
    ("copyreg", Call, "_reconstructor"),
    ("copy_reg", Call, "_reconstructor"),
    ("lightning_fabric.utilities.data", Filled, "AttributeDict"),
    ("lightning.fabric.utilities.data", Filled, "AttributeDict"),
    ("pytorch_lightning.utilities.parsing", Filled, "AttributeDict"),
    ("lightning.pytorch.callbacks.batch_size_finder", Instance(Anything), "BatchSizeFinder"),
    ("lightning.pytorch.callbacks.callback", Instance(Anything), "Callback"),
    ("lightning.pytorch.callbacks.checkpoint", Instance(Anything), "Checkpoint"),
    ("lightning.pytorch.callbacks.device_stats_monitor", Instance(Anything), "DeviceStatsMonitor"),
    ("lightning.pytorch.callbacks.early_stopping", Call, "EarlyStoppingReason"),
    ("lightning.pytorch.callbacks.early_stopping", Instance(Anything), "EarlyStopping"),
    ("lightning.pytorch.callbacks.finetuning", Instance(Anything), "BackboneFinetuning BaseFinetuning"),
    (
        "lightning.pytorch.callbacks.gradient_accumulation_scheduler",
        Instance(Anything),
        "GradientAccumulationScheduler",
    ),
    ("lightning.pytorch.callbacks.lr_finder", Instance(Anything), "LearningRateFinder"),
    ("lightning.pytorch.callbacks.lr_monitor", Instance(Anything), "LearningRateMonitor"),
    ("lightning.pytorch.callbacks.model_checkpoint", Instance(Anything), "ModelCheckpoint"),
    ("lightning.pytorch.callbacks.model_summary", Instance(Anything), "ModelSummary"),
    ("lightning.pytorch.callbacks.progress.progress_bar", Instance(Anything), "ProgressBar"),
    ("lightning.pytorch.callbacks.progress.rich_progress", Instance(Anything), "RichProgressBar RichProgressBarTheme"),
    ("lightning.pytorch.callbacks.progress.tqdm_progress", Instance(Anything), "TQDMProgressBar"),
    ("lightning.pytorch.callbacks.rich_model_summary", Instance(Anything), "RichModelSummary"),
    ("lightning.pytorch.callbacks.stochastic_weight_avg", Instance(Anything), "StochasticWeightAveraging"),
    ("lightning.pytorch.callbacks.throughput_monitor", Instance(Anything), "ThroughputMonitor"),
    ("lightning.pytorch.callbacks.timer", Call, "Interval"),
    ("lightning.pytorch.callbacks.timer", Instance(Anything), "Timer"),
    ("lightning.pytorch.callbacks.weight_averaging", Instance(Anything), "EMAWeightAveraging WeightAveraging"),
    ("numpy.dtypes", Value, "BoolDType ByteDType BytesDType CLongDoubleDType Complex128DType Complex64DType"),
    ("numpy.dtypes", Value, "DateTime64DType Float16DType Float32DType Float64DType Int16DType Int32DType Int64DType"),
    (
        "numpy.dtypes",
        Value,
        "Int8DType IntDType LongDType LongDoubleDType LongLongDType ObjectDType ShortDType StrDType",
    ),
    ("numpy.dtypes", Value, "StringDType TimeDelta64DType UByteDType UInt16DType UInt32DType UInt64DType UInt8DType"),
    ("numpy.dtypes", Value, "UIntDType ULongDType ULongLongDType UShortDType VoidDType"),
    ("omegaconf._utils", Call, "ValueKind"),
    ("omegaconf.base", Call, "SCMode"),
    ("omegaconf.base", Instance(Data), "ContainerMetadata Metadata"),
    ("omegaconf.base", Instance(Family), "Box Container Node UnionNode"),
    ("omegaconf.basecontainer", Instance(Family), "BaseContainer"),
    ("omegaconf.dictconfig", Instance(Family), "DictConfig"),
    ("omegaconf.listconfig", Instance(Family), "ListConfig"),
    (
        "omegaconf.nodes",
        Instance(Family),
        "AnyNode BooleanNode BytesNode EnumNode FloatNode IntegerNode InterpolationResultNode",
    ),
    ("omegaconf.nodes", Instance(Family), "LiteralNode NoneNode PathNode StringNode ValueNode"),
    ("omegaconf.tupleconfig", Instance(Family), "TupleConfig"),
    (
        "torch.distributed.checkpoint.metadata",
        Instance(Family),
        "Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata BytesStorageMetadata",
    ),
    ("torch.distributed.checkpoint.metadata", Instance(Data), "MetadataIndex StorageMeta"),
    ("torch.distributed.checkpoint.metadata", Call, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", Instance(Data), "_StorageInfo"),
    ("torch.distributed.tensor", Value, "DTensor"),
    ("torch.distributed._tensor.api", Value, "DTensor"),
    ("torch.distributed.tensor._dtensor_spec", Instance(Family), "DTensorSpec"),
    ("torch.distributed.tensor._dtensor_spec", Call, "TensorMeta ShardOrderEntry"),
    ("torch.distributed.tensor.placement_types", Instance(Data), "Shard _StridedShard Replicate Partial"),
    ("torch.distributed._tensor.placement_types", Instance(Family), "DTensorSpec"),
    ("torch.distributed._tensor.placement_types", Call, "TensorMeta"),
    ("torch.distributed._tensor.placement_types", Instance(Data), "Shard Replicate Partial _Partial"),
    ("torch.distributed.device_mesh", Instance(Family), "DeviceMesh"),
    ("torch.distributed._mesh_layout", Instance(Family), "_MeshLayout _FlatLayout"),
    ("torch.distributed._shard.sharded_tensor.api", Value, "ShardedTensor"),
    (
        "torch.distributed._shard.sharded_tensor.api",
        Instance(Data),
        "ProcessGroupState ShardedTensor.ProcessGroupState",
    ),
    ("torch.distributed._shard.sharded_tensor.metadata", Instance(Family), "ShardedTensorMetadata TensorProperties"),
    ("torch.distributed._shard.sharded_tensor.metadata", Call, "MEM_FORMAT_ENCODING"),
    ("torch.distributed._shard.sharded_tensor.shard", Instance(Family), "Shard"),
    ("torch.distributed._shard.metadata", Instance(Family), "ShardMetadata"),
    ("torch.distributed._shard.sharding_spec.api", Instance(Family), "EnumerableShardingSpec"),
    ("torch.distributed._shard.sharding_spec.chunk_sharding_spec", Instance(Family), "ChunkShardingSpec"),
    ("torch.distributed.remote_device", Instance(Data), "_remote_device"),
    (
        "torch.nn.modules.activation",
        Instance(Family),
        "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU",
    ),
    (
        "torch.nn.modules.activation",
        Instance(Family),
        "LogSigmoid LogSoftmax Mish MultiheadAttention PReLU RReLU ReLU ReLU6 SELU SiLU",
    ),
    (
        "torch.nn.modules.activation",
        Instance(Family),
        "Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink",
    ),
    ("torch.nn.modules.activation", Instance(Family), "Threshold"),
    ("torch.nn.modules.adaptive", Instance(Family), "AdaptiveLogSoftmaxWithLoss"),
    (
        "torch.nn.modules.batchnorm",
        Instance(Family),
        "BatchNorm1d BatchNorm2d BatchNorm3d LazyBatchNorm1d LazyBatchNorm2d",
    ),
    ("torch.nn.modules.batchnorm", Instance(Family), "LazyBatchNorm3d SyncBatchNorm _BatchNorm _NormBase"),
    ("torch.nn.modules.channelshuffle", Instance(Family), "ChannelShuffle"),
    (
        "torch.nn.modules.container",
        Instance(Family),
        "Container ModuleDict ModuleList ParameterDict ParameterList Sequential",
    ),
    (
        "torch.nn.modules.conv",
        Instance(Family),
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d",
    ),
    (
        "torch.nn.modules.conv",
        Instance(Family),
        "LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d",
    ),
    ("torch.nn.modules.distance", Instance(Family), "CosineSimilarity PairwiseDistance"),
    (
        "torch.nn.modules.dropout",
        Instance(Family),
        "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    ),
    ("torch.nn.modules.flatten", Instance(Family), "Flatten Unflatten"),
    ("torch.nn.modules.fold", Instance(Family), "Fold Unfold"),
    (
        "torch.nn.modules.instancenorm",
        Instance(Family),
        "InstanceNorm1d InstanceNorm2d InstanceNorm3d LazyInstanceNorm1d",
    ),
    ("torch.nn.modules.instancenorm", Instance(Family), "LazyInstanceNorm2d LazyInstanceNorm3d"),
    ("torch.nn.modules.lazy", Instance(Family), "LazyModuleMixin"),
    (
        "torch.nn.modules.linear",
        Instance(Family),
        "Bilinear Identity LazyLinear Linear NonDynamicallyQuantizableLinear",
    ),
    ("torch.nn.modules.linear_cross_entropy_options", Instance(Family), "LinearCrossEntropyOptions"),
    (
        "torch.nn.modules.loss",
        Instance(Family),
        "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CrossEntropyLoss",
    ),
    (
        "torch.nn.modules.loss",
        Instance(Family),
        "GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss LinearCrossEntropyLoss",
    ),
    (
        "torch.nn.modules.loss",
        Instance(Family),
        "MSELoss MarginRankingLoss MultiLabelMarginLoss MultiLabelSoftMarginLoss",
    ),
    (
        "torch.nn.modules.loss",
        Instance(Family),
        "MultiMarginLoss NLLLoss NLLLoss2d PoissonNLLLoss SmoothL1Loss SoftMarginLoss",
    ),
    ("torch.nn.modules.loss", Instance(Family), "TripletMarginLoss TripletMarginWithDistanceLoss"),
    ("torch.nn.modules.module", Instance(Family), "Module"),
    ("torch.nn.modules.normalization", Instance(Family), "CrossMapLRN2d GroupNorm LayerNorm LocalResponseNorm RMSNorm"),
    (
        "torch.nn.modules.padding",
        Instance(Family),
        "CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d",
    ),
    (
        "torch.nn.modules.padding",
        Instance(Family),
        "ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d",
    ),
    ("torch.nn.modules.padding", Instance(Family), "ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d"),
    ("torch.nn.modules.pixelshuffle", Instance(Family), "PixelShuffle PixelUnshuffle"),
    (
        "torch.nn.modules.pooling",
        Instance(Family),
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d",
    ),
    ("torch.nn.modules.pooling", Instance(Family), "AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d"),
    (
        "torch.nn.modules.pooling",
        Instance(Family),
        "FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d LPPool3d MaxPool1d",
    ),
    ("torch.nn.modules.pooling", Instance(Family), "MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d"),
    ("torch.nn.modules.rnn", Instance(Family), "GRU GRUCell LSTM LSTMCell RNN RNNBase RNNCell RNNCellBase"),
    ("torch.nn.modules.sparse", Instance(Family), "Embedding EmbeddingBag"),
    (
        "torch.nn.modules.transformer",
        Instance(Family),
        "Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder",
    ),
    ("torch.nn.modules.transformer", Instance(Family), "TransformerEncoderLayer"),
    ("torch.nn.modules.upsampling", Instance(Family), "Upsample UpsamplingBilinear2d UpsamplingNearest2d"),
    (
        "torch.optim._multi_tensor",
        Instance(Data),
        "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD",
    ),
    ("torch.optim.adadelta", Instance(Data), "Adadelta"),
    ("torch.optim.adagrad", Instance(Data), "Adagrad"),
    ("torch.optim.adam", Instance(Data), "Adam"),
    ("torch.optim.adamax", Instance(Data), "Adamax"),
    ("torch.optim.adamw", Instance(Data), "AdamW"),
    ("torch.optim.asgd", Instance(Data), "ASGD"),
    ("torch.optim.lbfgs", Instance(Data), "LBFGS"),
    (
        "torch.optim.lr_scheduler",
        Instance(Family),
        "ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts",
    ),
    (
        "torch.optim.lr_scheduler",
        Instance(Family),
        "CyclicLR ExponentialLR LRScheduler LambdaLR LinearLR MultiStepLR MultiplicativeLR",
    ),
    ("torch.optim.lr_scheduler", Instance(Family), "OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR StepLR"),
    ("torch.optim.nadam", Instance(Data), "NAdam"),
    ("torch.optim.optimizer", Instance(Data), "Optimizer"),
    ("torch.optim.radam", Instance(Data), "RAdam"),
    ("torch.optim.rmsprop", Instance(Data), "RMSprop"),
    ("torch.optim.rprop", Instance(Data), "Rprop"),
    ("torch.optim.sgd", Instance(Data), "SGD"),
    ("torch.optim.sparse_adam", Instance(Data), "SparseAdam"),
    ("torch.optim.swa_utils", Instance(Family), "AveragedModel SWALR"),
];

/// Python's own types. Its functions, such as `eval`, are in the same module.
const BUILTINS: &[&str] = &[
    "object",
    "set",
    "frozenset",
    "list",
    "tuple",
    "dict",
    "bytes",
    "bytearray",
    "complex",
    "int",
    "float",
    "bool",
    "str",
    "slice",
    "range",
    "unicode",
    "long",
    "Ellipsis",
    "NotImplemented",
];

/// Returns the harmless use of a class or function, if it has one.
pub(super) fn harmless_use(module: &[u8], name: &[u8]) -> Option<CodeUse> {
    let is = |known: &str, text: &[u8]| known.as_bytes() == text;
    // The older package of Lightning has the same callbacks.
    let callbacks = module.strip_prefix(b"pytorch_lightning.callbacks");
    let module = &*callbacks
        .map_or_else(|| Cow::Borrowed(module), |rest| [b"lightning.pytorch.callbacks", rest].concat().into());
    match module {
        b"builtins" | b"__builtin__" => BUILTINS.iter().any(|known| is(known, name)).then_some(Call),
        _ if TorchType::named(module, name).is_some() || TorchType::of_storage(module, name).is_some() => Some(Value),
        _ => {
            let mut rows = HARMLESS.iter().filter(|(known, ..)| is(known, module));
            rows.find(|(.., names)| names.split(' ').any(|known| is(known, name))).map(|row| row.1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_run_code_are_not_harmless() {
        for (module, name) in [
            ("builtins", "eval"),
            ("__builtin__", "getattr"),
            ("posix", "system"),
            ("torch.storage", "_load_from_bytes"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("numpy.testing._private.utils", "runstring"),
            ("numpy", "load"),
            ("collections", "OrderedDict.__init__.__globals__"),
            ("torch.nn.modules", "Module"),
            ("pathlib", "os.system.Path"),
            ("torchX", "Size"),
            ("torch.nn.modules.module", "register_module_forward_hook"),
            ("omegaconf._utils", "_"),
            ("torch.nn.modules.module", "Any"),
            ("omegaconf.vendor.antlr4.FileStream", "FileStream"),
            ("torch.optim", "X"),
            ("torch._utils", "_rebuild_anything"),
            ("pathlib", "UnsupportedPath"),
            ("torch", "XStorage"),
            ("torch", "Storage"),
        ] {
            assert_eq!(harmless_use(module.as_bytes(), name.as_bytes()), None, "{module}.{name}");
        }
        for (module, name, known) in [
            ("torch", "BFloat16Storage", Value),
            ("torch", "float8_e4m3fn", Value),
            ("torch.nn.modules.linear", "Linear", Instance(Family)),
            ("torch.optim.adam", "Adam", Instance(Data)),
            ("omegaconf.dictconfig", "DictConfig", Instance(Family)),
            ("torch.cuda", "HalfStorage", Value),
            ("pathlib", "PosixPath", Call),
            ("builtins", "set", Call),
            ("torch.nn.functional", "relu", Value),
            ("numpy", "float32", Value),
        ] {
            assert_eq!(harmless_use(module.as_bytes(), name.as_bytes()), Some(known), "{module}.{name}");
        }
    }
}
