"""The libraries that define the layouts read what `tcast quantize` writes: compressed-tensors parses each config and decodes each
weight to the bits of `tcast dequantize`, and so does comfy-kitchen for the layouts of ComfyUI, whose own codes are those of
`--arithmetic kitchen`. tcast decodes what SDNQ writes. The versions of compressed-tensors that vLLM 0.33.0 and SGLang 0.5.23 pin
parse the configs too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import safetensors.torch
import torch

from common import Skip, tcast
from files import folder

PINNED = {"vLLM 0.33.0": "0.17.0", "SGLang 0.5.23": "0.18.0"}
TOO_NEW = {"mxfp6"}  # for these versions
SCHEMES = [
    ["fp8"], ["fp8-tensor"], ["fp8-block"], ["fp8-block", "--partial-blocks"], ["int8"], ["int8a16"],
    ["int8a16", "--group-size", "32"], ["int4"], ["int4", "--group-size", "32"], ["int4-asym"],
    ["int4-asym", "--group-size", "32"], ["int2"], ["int3"], ["int5"], ["int6"], ["int7"], ["int2-asym"],
    ["int3-asym", "--group-size", "32"], ["int5-asym", "--group-size", "32"], ["int6-asym"], ["int7-asym"], ["int8-asym"], ["nvfp4"], ["mxfp4"], ["mxfp6"], ["mxfp8"],
]
SEARCHED = {"int2", "int4", "int4-asym", "nvfp4", "mxfp4"}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LLAMA = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2}
MIXED = ["--scheme", "fp8", "--rule", "*.mlp.*=nvfp4", "--rule", "lm_head.weight=fp8", "--rule", "*.o_proj.*=int4"]
EXPERTS = {"model_type": "qwen3_moe", "hidden_size": 128, "moe_intermediate_size": 256, "tie_word_embeddings": True}


def save(path, tensors, config):
    path.mkdir()
    safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))


def llama(path, dtype=torch.bfloat16):
    """Weights with outliers, small rows and zeros."""
    torch.manual_seed(7)
    tensors = {"model.embed_tokens.weight": torch.randn(64, 256), "lm_head.weight": torch.randn(64, 256)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for name, shape in [
            ("self_attn.q_proj", (128, 256)), ("self_attn.k_proj", (64, 256)), ("self_attn.v_proj", (64, 256)),
            ("self_attn.o_proj", (256, 128)), ("mlp.gate_proj", (384, 256)), ("mlp.up_proj", (384, 256)),
            ("mlp.down_proj", (256, 384)),
        ]:
            weight = torch.randn(shape) * 0.05
            weight[3] *= 40
            weight[5] *= 2.0**-9
            weight[7, :128] = 0
            tensors[f"{prefix}{name}.weight"] = weight
        tensors[f"{prefix}input_layernorm.weight"] = torch.ones(256)
    save(path, {name: tensor.to(dtype) for name, tensor in tensors.items()}, LLAMA)


def experts(path):
    torch.manual_seed(8)
    prefix = "model.layers.0.mlp."
    tensors = {
        "model.embed_tokens.weight": torch.randn(64, 128),
        f"{prefix}gate.weight": torch.randn(2, 128),
        f"{prefix}experts.gate_up_proj": torch.randn(2, 512, 128),
        f"{prefix}experts.down_proj": torch.randn(2, 128, 256),
        "model.layers.0.self_attn.o_proj.weight": torch.randn(128, 128),
    }
    save(path, {name: tensor.bfloat16() for name, tensor in tensors.items()}, EXPERTS)


def tensors_of(path):
    loaded = {}
    for file in sorted(path.glob("*.safetensors")):
        loaded |= safetensors.torch.load_file(file)
    return loaded


def block_of(path):
    return json.loads((path / "config.json").read_text())["quantization_config"]


def equal_bits(found, wanted):
    width = {2: torch.int16, 4: torch.int32}[found.element_size()]
    return found.dtype == wanted.dtype and torch.equal(found.view(width), wanted.view(width))


@folder
def library_decodes(path, scheme, dtype, more=()):
    """Each weight is decompressed by the compressor that the config names, and is equal to what tcast decodes."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    llama(path / "source", DTYPES[dtype])
    tcast(path / "source", "--scheme", *scheme, "--layout", "compressed-tensors", *more, "-q", "-o", path / "q",
          command="quantize")
    config = QuantizationConfig.model_validate(block_of(path / "q"))
    (group,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(group.format or config.format)
    stored, decoded = tensors_of(path / "q"), {}
    modules = {name.rsplit(".", 1)[0] for name in stored if name.endswith(".weight_scale")}
    for module in modules:
        own = {name.rsplit(".", 1)[1]: tensor for name, tensor in stored.items() if name.rsplit(".", 1)[0] == module}
        decoded[module] = compressor.decompress(own, group)["weight"]
    assert len(modules) >= 8, sorted(modules)  # fp8-block takes no matrix of 64 rows
    for target, type_of in DTYPES.items():
        if any(weight.dtype == type_of for weight in decoded.values()):
            tcast(path / "q", "--to", target, "-q", "-o", path / target, command="dequantize")
            ours = tensors_of(path / target)
            for module, weight in decoded.items():
                if weight.dtype == type_of:
                    assert equal_bits(ours[f"{module}.weight"], weight), module


def configs(path, schemes):
    """A config for each of these schemes, for several groups, for experts that are split, and for experts that are kept."""
    llama(path / "llama")
    experts(path / "experts")
    cases = [["llama", "--scheme", *scheme] for scheme in schemes]
    cases += [["llama", *MIXED], ["experts", "--scheme", "fp8"], ["experts", "--scheme", "nvfp4"],
              ["experts", "--scheme", "fp8", "--exclude", "*.experts.*"]]
    for at, (source, *options) in enumerate(cases):
        tcast(path / source, *options, "--layout", "compressed-tensors", "-q", "-o", path / f"{at}", command="quantize")
        yield block_of(path / f"{at}")


# Prints how many configs on standard input the library takes.
PARSE = """
import json, sys
from compressed_tensors.quantization import QuantizationConfig
from importlib.metadata import version
blocks = json.load(sys.stdin)
for block in blocks:
    config = QuantizationConfig.model_validate(block)
    assert config.ignore == block["ignore"], block
    for name, group in config.config_groups.items():
        assert group.targets == block["config_groups"][name]["targets"], block
        assert group.weights.num_bits == block["config_groups"][name]["weights"]["num_bits"], block
print(version("compressed-tensors"), len(blocks))
"""


@folder
def parses(path, version, libraries, schemes=SCHEMES):
    blocks = list(configs(path, schemes))
    paths = [str(libraries)] if libraries else []
    run = subprocess.run(
        [sys.executable, "-c", PARSE], input=json.dumps(blocks), capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == [version, str(len(blocks))], run.stdout


def parses_pinned(version):
    libraries = Path(os.environ.get("TCAST_PINNED", "")) / f"compressed-tensors-{version}"
    if not libraries.is_dir():
        raise Skip(f"compressed-tensors {version} is not in the folder that TCAST_PINNED names")
    parses(version, libraries, [scheme for scheme in SCHEMES if scheme[0] not in TOO_NEW])


# A unit in the last place of a power of two, relative to it.
PRECISION = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-22}


def close(found, wanted, dtype):
    """True if values differ by the order of float32 sums alone: tcast adds the values of a rotated group in float64."""
    found, wanted = found.double(), wanted.double()
    largest = wanted.abs().amax(1, keepdim=True)
    return bool(((found - wanted).abs() <= PRECISION[dtype] * wanted.abs() + 2e-6 * largest).all())


@folder
def kitchen_decodes(path, scheme, dtype, more=()):
    """Each weight in ComfyUI's layout is decoded by comfy-kitchen as by tcast; both know the padded shape only."""
    try:
        import comfy_kitchen
    except ImportError:
        raise Skip("comfy-kitchen is not installed") from None
    llama(path / "source", DTYPES[dtype])
    tcast(path / "source", "--scheme", scheme, "--layout", "comfyui", *more, "-q", "-o", path / "q", command="quantize")
    tcast(path / "q", "--to", dtype, "-q", "-o", path / "values", command="dequantize")
    stored, ours, count = tensors_of(path / "q"), tensors_of(path / "values"), 0
    for name in [name for name in stored if name.endswith(".comfy_quant")]:
        module, wanted = name.removesuffix(".comfy_quant"), DTYPES[dtype]
        description = json.loads(bytes(stored[name].tolist()))
        kind, size = description["format"], description.get("convrot_groupsize")
        weight, scale = stored[f"{module}.weight"], stored.get(f"{module}.weight_scale")
        if kind == "nvfp4":
            found = comfy_kitchen.dequantize_nvfp4(weight, stored[f"{module}.weight_scale_2"], scale, wanted)
        elif kind == "mxfp8":
            found = comfy_kitchen.dequantize_mxfp8(weight, scale.view(torch.float8_e8m0fnu), wanted)
        elif kind == "convrot_w4a4":
            found = comfy_kitchen.dequantize_convrot_w4a4_weight(
                weight, scale, convrot_groupsize=size, output_dtype=wanted)
        elif kind == "asym_w4a8_int8":
            found = comfy_kitchen.dequantize_w4a8_int8_weight(
                weight, stored[f"{module}.weight_s_rel"], stored[f"{module}.weight_s_channel"],
                stored.get(f"{module}.weight_codebook"), group_size=description["group_size"], convrot_groupsize=size,
                output_dtype=wanted)
        elif size:
            found = torch.ops.comfy_kitchen.dequantize_int8_convrot_weight(weight, scale, size).to(wanted)
        elif kind == "int8_tensorwise":
            found = comfy_kitchen.dequantize_int8_simple(weight, scale).to(wanted)
        else:
            found = comfy_kitchen.dequantize_per_tensor_fp8(weight, scale, wanted)
        own = ours[f"{module}.weight"]
        assert close(own, found, dtype) if size else equal_bits(own, found), f"{module} {kind}"
        count += 1
    assert count >= 10, count


# The most bytes of which one may differ: sums of float32 depend on their order.
ORDER_OF_SUMS = 20_000


@folder
def kitchen_encodes(path, scheme, dtype, size):
    """Weights have the codes that comfy-kitchen computes in their type."""
    try:
        import comfy_kitchen
    except ImportError:
        raise Skip("comfy-kitchen is not installed") from None
    llama(path / "source", DTYPES[dtype])
    tcast(path / "source", "--scheme", scheme, "--layout", "comfyui", "--rotation", size or "none", "--arithmetic", "kitchen", "-q",
          "-o", path / "q", command="quantize")
    stored, source = tensors_of(path / "q"), tensors_of(path / "source")
    differing = count = 0
    for name in [name for name in stored if name.endswith(".comfy_quant")]:
        module = name.removesuffix(".comfy_quant")
        weight, table = source[f"{module}.weight"], None
        if scheme == "int4":
            codes, _ = comfy_kitchen.quantize_convrot_w4a4_weight(weight, convrot_groupsize=size)
        elif scheme == "int8" and size:
            codes, _ = torch.ops.comfy_kitchen.quantize_int8_convrot_weight(weight, size)
        elif scheme == "int8":
            codes, _ = comfy_kitchen.quantize_int8_rowwise(weight)
        else:
            codes, _, _, _, table = comfy_kitchen.quantize_w4a8_int8_weight(
                weight, group_size=16, convrot_groupsize=size, bits=int(scheme[1]))
        own = stored[f"{module}.weight"]
        # The library fits a table to some tensors.
        if table is None or torch.equal(table, stored[f"{module}.weight_codebook"]):
            differing += int((codes.view(torch.uint8) != own.view(torch.uint8)).sum())
            count += own.numel()
    assert count > 50_000 and differing <= count / ORDER_OF_SUMS, f"{differing} of {count}"


@folder
def decodes_sdnq(path, weights_dtype, group_size, has_wide_scales):
    """Linear layers that SDNQ quantizes are decoded to its values."""
    try:
        from sdnq.quantizer import sdnq_quantize_layer_weight
    except ImportError:
        raise Skip("sdnq is not installed") from None
    torch.manual_seed(9)
    tensors, decoders = {}, {}
    for at, shape in enumerate([(64, 256), (48, 96), (32, 1024)]):
        weight = (torch.randn(shape) * torch.randn(shape[0], 1).exp() * 0.02).bfloat16()
        decoder, parts = sdnq_quantize_layer_weight(
            weight, layer_class_name="Linear", weights_dtype=weights_dtype, group_size=group_size,
            dequantize_fp32=has_wide_scales)
        parts = {name: part for name, part in parts.items() if part is not None}
        tensors |= {f"l.{at}.{name}": part.contiguous() for name, part in parts.items()}
        decoders[f"l.{at}"] = (decoder, parts)
    save(path / "q", tensors, {"quantization_config": {"quant_method": "sdnq", "weights_dtype": weights_dtype}})
    for target, wanted in DTYPES.items():
        tcast(path / "q", "--to", target, "-q", "-o", path / target, command="dequantize")
        ours = tensors_of(path / target)
        for module, (decoder, parts) in decoders.items():
            found = decoder(**parts, dtype=wanted, skip_compile=True)
            assert equal_bits(ours[f"{module}.weight"], found), f"{module} {target}"


def tests():
    for scheme in SCHEMES:
        for dtype in DTYPES:
            name = f"compressed-tensors decodes {' '.join(scheme)} of {dtype}"
            yield name, lambda case=(scheme, dtype): library_decodes(*case)
        if scheme[0] in SEARCHED:
            name = f"compressed-tensors decodes {' '.join(scheme)} with searched scales"
            yield name, lambda scheme=scheme: library_decodes(scheme, "bfloat16", ["--search", "mse"])
    yield "compressed-tensors parses every config", lambda: parses("0.20.0", None)
    for engine, version in PINNED.items():
        yield f"compressed-tensors of {engine} parses every config", lambda version=version: parses_pinned(version)
    for scheme in ["fp8", "fp8-tensor", "int8", "nvfp4", "mxfp8"]:
        for dtype in DTYPES:
            yield f"comfy-kitchen decodes {scheme} of {dtype}", lambda case=(scheme, dtype): kitchen_decodes(*case)
    for scheme, *more in [
        ["int8", "--rotation", "none"], ["int4"], ["int4", "--rotation", "64"], ["w4a8"], ["w4a8", "--group-size", "32"],
        ["w6a8"],
    ]:
        name = f"comfy-kitchen decodes {' '.join([scheme, *more])}"
        yield name, lambda case=(scheme, "bfloat16", more): kitchen_decodes(*case)
    for scheme, size in [("int8", None), ("int8", 64), ("int8", 16), ("int4", 64), ("w4a8", 64), ("w6a8", 16)]:
        for dtype in DTYPES:
            name = f"comfy-kitchen encodes {scheme} of {dtype} rotated by {size}"
            yield name, lambda case=(scheme, dtype, size): kitchen_encodes(*case)
    plain = [*(f"int{bits}" for bits in range(2, 9)), *(f"uint{bits}" for bits in range(1, 9)), "float8_e4m3fn", "float8_e5m2"]
    for at, weights_dtype in enumerate(plain):
        for group_size in [-1, 0, 32]:
            name = f"tcast decodes {weights_dtype} of SDNQ in groups of {group_size}"
            case = (weights_dtype, group_size, at % 2 == 0)
            yield name, lambda case=case: decodes_sdnq(*case)
    torch.set_num_threads(1)  # and no threads before the workers are forked
