"""tcast decodes what libraries write that it does not write itself, to the bytes of the library: torchao, AMD Quark, and int4 in
compressed-tensors' `naive-quantized`. Weights are random; each checkpoint has matrices of several shapes, in a folder with the
config that the library makes."""

import json
import os

import safetensors.torch
import torch

from common import Skip, folder, tcast
from quantized_libraries import DTYPES, equal_bits, tensors_of

os.environ.setdefault("QUARK_LOG_LEVEL", "error")
SHAPES = [(16, 64), (3, 96), (160, 32), (32, 544), (8, 1120)]


def weights(dtype, seed, shapes=SHAPES):
    """Weights with outliers, small rows, zeros, and subnormals of float16."""
    random = torch.Generator().manual_seed(seed)
    for shape in shapes:
        weight = torch.randn(shape, generator=random) * 0.05
        weight *= 2.0 ** torch.randint(-12, 6, (shape[0], 1), generator=random)
        weight[1, 0] *= 40
        weight[2, : shape[1] // 2] = 0
        yield weight.to(dtype)


def linear(weight):
    layer = torch.nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def equal(found, wanted):
    """Whether all values have the same bits; all NaNs are alike."""
    are_nan = wanted.isnan()
    is_same = torch.equal(found.isnan(), are_nan)
    return is_same and equal_bits(found.masked_fill(are_nan, 0), wanted.masked_fill(are_nan, 0).contiguous())


def compare(path, tensors, block, decode, metadata=None):
    """Stores a checkpoint, and compares what tcast decodes with `decode(module, dtype)`, a weight in that type."""
    (path / "q").mkdir()
    tensors = tensors | {"norm.weight": torch.ones(4)}
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, path / "q" / "model.safetensors", {"format": "pt"} | (metadata or {}))
    (path / "q" / "config.json").write_text(json.dumps({"quantization_config": block}))
    compared = 0
    for target, dtype in DTYPES.items():
        tcast(path / "q", "--to", target, "-q", "-o", path / target, command="dequantize")
        ours = tensors_of(path / target)
        with safetensors.safe_open(path / target / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}, file.metadata()
        assert sorted(ours) == sorted([*(f"l.{at}.weight" for at in range(len(SHAPES))), "norm.weight"]), sorted(ours)
        assert "quantization_config" not in json.loads((path / target / "config.json").read_text())
        for at in range(len(SHAPES)):
            found = decode(f"l.{at}", dtype)
            assert equal(ours[f"l.{at}.weight"], found), f"l.{at} {target}"
            compared += found.numel() * found.element_size()
    assert compared > 100_000, compared


def of_torchao():
    import torchao.quantization as library

    row, asymmetric = library.PerRow(), {"mapping_type": library.MappingType.ASYMMETRIC}
    configs = {
        "int8": library.Int8WeightOnlyConfig(granularity=row),
        "int8 of tensors": library.Int8WeightOnlyConfig(granularity=library.PerTensor()),
        "int8 with int8 activations": library.Int8DynamicActivationInt8WeightConfig(),
        "float8": library.Float8WeightOnlyConfig(),
        "float8e5m2": library.Float8WeightOnlyConfig(weight_dtype=torch.float8_e5m2),
    }
    for bits in range(2, 9):
        dtype = getattr(torch, f"int{bits}")
        for name, more in [("", {}), (" with zero points", asymmetric)]:
            configs[f"int{bits}{name}"] = library.IntxWeightOnlyConfig(dtype, library.PerGroup(32), **more)
    configs["int4 of rows"] = library.IntxWeightOnlyConfig(torch.int4, library.PerAxis(0))
    return configs


@folder
def torchao_decodes(path, name, dtype):
    try:
        config = of_torchao()[name]
    except ImportError:
        raise Skip("torchao is not installed") from None
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict, unflatten_tensor_state_dict
    from torchao.quantization import quantize_
    from torchao.quantization.quant_primitives import dequantize_affine

    quantized = {}
    for at, weight in enumerate(weights(DTYPES[dtype], 41)):
        layer = linear(weight)
        quantize_(layer, config)
        quantized[f"l.{at}.weight"] = layer.weight.data
    tensors, metadata = flatten_tensor_state_dict(quantized)
    read, _ = unflatten_tensor_state_dict(tensors, metadata)

    def decode(module, target):
        tensor = read[f"{module}.weight"]
        if tensor.qdata.dtype != torch.int8:
            return tensor.dequantize(target)
        found = dequantize_affine(
            tensor.qdata, tensor.block_size, tensor.scale, tensor.zero_point, torch.int8, output_dtype=target)
        assert target != tensor.dtype or torch.equal(found, tensor.dequantize())
        return found

    block = {"quant_method": "torchao", "quant_type": {"default": config_to_dict(config)}, "modules_to_not_convert": None}
    compare(path, tensors, block, decode, metadata)


def of_quark():
    import quark.torch.quantization.config.config as library

    static = {"is_dynamic": False}
    linear_scale = static | {"scale_type": "float", "round_method": "half_even"}
    groups = linear_scale | {"ch_axis": -1, "group_size": 32}
    return {
        "fp8 of tensors": library.FP8E4M3PerTensorSpec(observer_method="min_max", **static),
        "fp8 of rows": library.FP8E4M3PerChannelSpec(ch_axis=0, **static),
        "int8 of tensors": library.Int8PerTensorSpec(observer_method="min_max", symmetric=True, **linear_scale),
        "int8 of tensors with zero points": library.Int8PerTensorSpec(
            observer_method="min_max", symmetric=False, **linear_scale),
        "int8 of rows": library.Int8PerChannelSpec(ch_axis=0, symmetric=True, **linear_scale),
        "int8 of rows with zero points": library.Int8PerChannelSpec(ch_axis=0, symmetric=False, **linear_scale),
        "uint4 with zero points": library.Uint4PerGroupSpec(symmetric=False, **groups),
        "mxfp4": library.OCP_MXFP4Spec(ch_axis=-1, **static),
    }


QUARK = ["fp8 of tensors", "fp8 of rows", "int8 of tensors", "int8 of tensors with zero points", "int8 of rows",
         "int8 of rows with zero points", "uint4 with zero points", "mxfp4"]


@folder
def quark_decodes(path, name, dtype):
    try:
        spec = of_quark()[name]
    except ImportError:
        raise Skip("amd-quark is not installed") from None
    from quark.torch import ModelQuantizer
    from quark.torch.export.constants import REVERSE_LOAD_MAP
    from quark.torch.export.nn.modules.qparamslinear import QParamsLinear
    from quark.torch.quantization.config.config import QConfig, QLayerConfig

    config = QConfig(global_quant_config=QLayerConfig(weight=spec.to_quantization_spec()))
    shapes = [(rows + -rows % 8, columns) for rows, columns in SHAPES]
    model = torch.nn.Sequential(*map(linear, weights(DTYPES[dtype], 42, shapes)))
    quantizer = ModelQuantizer(config)
    model = quantizer.freeze(quantizer.quantize_model(model, None))
    layers = {f"l.{at}": QParamsLinear(layer, "quark", "reorder") for at, layer in enumerate(model)}
    tensors = {
        f"{module}.{REVERSE_LOAD_MAP.get(part, part)}": tensor.clone()
        for module, layer in layers.items() for part, tensor in layer.state_dict().items()
    }

    def decode(module, target):
        reader = layers[module].weight_quantizer
        reader.float_dtype = target
        return reader(layers[module].weight.data).to(target)

    export = {"pack_method": "reorder", "weight_format": "real_quantized"}
    compare(path, tensors, config.to_dict() | {"quant_method": "quark", "export": export}, decode)


@folder
def naive_decodes(path, bits, symmetric, dtype):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.quantization.utils import calculate_qparams

    arguments = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    group = {"targets": ["Linear"], "format": "naive-quantized", "weights": arguments}
    block = {"quant_method": "compressed-tensors", "format": "naive-quantized", "config_groups": {"group_0": group}}
    scheme = QuantizationConfig.model_validate(block).config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry("naive-quantized")
    tensors, decoded = {}, {}
    for at, weight in enumerate(weights(DTYPES[dtype], 43)):
        groups = weight.unflatten(1, (-1, 32))
        scale, zero = calculate_qparams(groups.amin(2), groups.amax(2), scheme.weights)
        parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero}
        parts = compressor.compress(parts, scheme)
        tensors |= {f"l.{at}.{name}": part for name, part in parts.items()}
        decoded[f"l.{at}"] = compressor.decompress(parts, scheme)["weight"]

    # The library decodes to the type of the scale, which is rounded to others.
    compare(path, tensors, block, lambda module, target: decoded[module].to(target))


def tests():
    try:
        torchao = list(of_torchao())
    except ImportError:
        torchao = ["int8"]
    for dtype in DTYPES:
        for name in torchao:
            yield f"torchao's {name} of {dtype}", lambda case=(name, dtype): torchao_decodes(*case)
        for name in QUARK:
            yield f"AMD Quark's {name} of {dtype}", lambda case=(name, dtype): quark_decodes(*case)
        for bits in range(2, 8):
            for symmetric in (True, False):
                zeros = "" if symmetric else " with zero points"
                yield (f"naive-quantized int{bits}{zeros} of {dtype}",
                       lambda case=(bits, symmetric, dtype): naive_decodes(*case))
    torch.set_num_threads(1)  # and no threads before the workers are forked
