"""MLX: tcast quantizes to the bytes of mlx and decodes to its values, and mlx-lm loads what tcast writes. Models are small and have
random weights; all runs on a CPU."""

import json
from pathlib import Path

import numpy as np

from common import folder, tcast

AFFINE = [("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MODES = [*AFFINE, ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
DTYPES = ("float32", "float16", "bfloat16")
SHARED = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "max_position_embeddings": 512, "torch_dtype": "bfloat16"}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1,
           "mlp_only_layers": [], "norm_topk_prob": True}
MODELS = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {"model_type": "qwen3_moe", "tie_word_embeddings": False} | EXPERTS,
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}
SCHEMES = [("affine4", "affine", 4, 64), ("affine8", "affine", 8, 64), ("affine3", "affine", 3, 64),
           ("mxfp4", "mxfp4", 4, 32), ("mxfp8", "mxfp8", 8, 32), ("nvfp4", "nvfp4", 4, 16)]


def library():
    # mlx does not survive a fork, so each process imports it for itself.
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    return mx


def raw(array):
    """The bytes of an array of mlx, with its type and shape."""
    mx = library()
    width = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[array.dtype.size]
    return str(array.dtype), tuple(array.shape), np.array(array.view(width)).tobytes()


def load(path):
    mx = library()
    found = {}
    for shard in sorted(Path(path).glob("*.safetensors")):
        found |= mx.load(str(shard))
    return found


def same(ours, theirs, what):
    assert ours.keys() == theirs.keys(), f"{what}: {sorted(ours.keys() ^ theirs.keys())[:6]}"
    for name, array in theirs.items():
        (a, b) = raw(ours[name]), raw(array)
        assert a[:2] == b[:2], f"{what}: {name}: {a[:2]} and {b[:2]}"
        if a[2] != b[2]:
            count = sum(x != y for x, y in zip(a[2], b[2]))
            raise AssertionError(f"{what}: {name}: {count} of {len(b[2])} bytes differ")


def weight(random, dtype, mode):
    """Rows of all kinds: normal ones of many sizes, ties, one sign, constants, zeros, outliers, subnormals, large numbers."""
    rows, columns = 44, 256
    values = random.standard_normal((rows, columns)) * 0.05
    values *= 2.0 ** random.integers(-12, 6, (rows, 1))
    for row in range(rows):
        match row % 11:
            case 1: values[row] = random.integers(-64, 64, columns) / 64
            case 2: values[row] = np.abs(values[row])
            case 3: values[row] = -np.abs(values[row])
            case 4: values[row] = values[row, 0]
            case 5: values[row, : columns // 2] = 0
            case 6: values[row, ::67] *= 100
            # mlx wraps exponents below those of a byte around, so that tiny groups become huge; tcast does not.
            case 7: values[row] *= 1e-7 if dtype == "float16" else 1e-37 if mode == "affine" else 1e-31
            case 8: values[row] *= 1e3
            case 9: values[row] = 2.0 ** random.integers(-6, 3, columns) * random.choice([-1.75, -1, 1, 1.5], columns)
            case 10: values[row] = -0.0
    return values.astype(np.float32)


@folder
def weights_have_the_bytes_and_the_values_of_mlx(path, mode, bits, group):
    mx = library()
    random = np.random.default_rng(bits * 1000 + group)
    for dtype in DTYPES:
        arrays = [mx.array(weight(random, dtype, mode)).astype(getattr(mx, dtype)) for _ in range(3)]
        (path / dtype).mkdir()
        mx.save_safetensors(str(path / dtype / "model.safetensors"), {f"layers.{at}.m.weight": w for at, w in enumerate(arrays)})
        (path / dtype / "config.json").write_text(json.dumps({"torch_dtype": dtype}))
        scheme = f"affine{bits}" if mode == "affine" else mode
        size = ["--group-size", group] if mode == "affine" else []
        out = path / f"{dtype}-q"
        tcast(path / dtype, "--layout", "mlx", "--scheme", scheme, *size, "-q", "-o", out, command="quantize")
        wanted, values = {}, {}
        for at, array in enumerate(arrays):
            parts = mx.quantize(array, group_size=group, bits=bits, mode=mode)
            wanted |= {f"layers.{at}.m.{name}": part for name, part in zip(("weight", "scales", "biases"), parts)}
            values[f"layers.{at}.m.weight"] = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode)
        same(load(out), wanted, f"{mode} {bits} {group} {dtype}")
        target = next(iter(values.values())).dtype
        plain = path / f"{dtype}-plain"
        tcast(out, "--to", str(target).removeprefix("mlx.core."), "-q", "-o", plain, command="dequantize")
        same(load(plain), values, f"{mode} {bits} {group} {dtype} decoded")


@folder
def codes_of_any_kind_decode_to_the_values_of_mlx(path, mode, bits, group):
    """Arbitrary codes with scales of both signs and of all sizes, which no encoder writes."""
    mx = library()
    random = np.random.default_rng(bits + group)
    rows, columns = 32, 512
    for dtype in DTYPES if mode == "affine" else ("bfloat16",):
        codes = random.integers(0, 1 << 32, (rows, columns * bits // 32), dtype=np.uint32)
        shape = (rows, columns // group)
        if mode == "affine":
            scales, biases = (random.standard_normal(shape) * 10.0 ** random.integers(-6, 2, shape) for _ in range(2))
            parts = [mx.array(part.astype(np.float32)).astype(getattr(mx, dtype)) for part in (scales, biases)]
        else:
            if mode == "mxfp8":
                of_bytes = codes.view(np.uint8)
                of_bytes[(of_bytes & 0x7F) == 0x7F] ^= 1
            scales = random.integers(0, 0x7F if mode == "nvfp4" else 250, shape).astype(np.uint8)
            parts = [mx.array(scales)]
        codes = mx.array(codes)
        tensors = {"m.weight": codes} | {f"m.{name}": part for name, part in zip(("scales", "biases"), parts)}
        (path / dtype).mkdir()
        mx.save_safetensors(str(path / dtype / "model.safetensors"), tensors)
        block = {"group_size": group, "bits": bits, "mode": mode}
        (path / dtype / "config.json").write_text(json.dumps({"quantization": block}))
        values = mx.dequantize(codes, *parts, group_size=group, bits=bits, mode=mode)
        tcast(path / dtype, "--to", dtype, "-q", "-o", path / f"{dtype}-plain", command="dequantize")
        same(load(path / f"{dtype}-plain"), {"m.weight": values}, f"{mode} {bits} {group} {dtype}")


def classes(config):
    import mlx_lm.utils

    return mlx_lm.utils._get_classes(config)


def hugging_face(name, path):
    """Writes a model with random weights in the form of Hugging Face: experts are separate."""
    mx = library()
    from mlx.utils import tree_flatten

    config = SHARED | MODELS[name]
    model_class, arguments = classes(config)
    model = model_class(arguments.from_dict(config))
    random = np.random.default_rng(len(name))
    tensors = {}
    for key, array in tree_flatten(model.parameters()):
        shape = array.shape
        values = random.standard_normal(shape) * (0.1 if len(shape) > 1 else 0.05) + (len(shape) == 1)
        values = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
        if ".switch_mlp." not in key:
            tensors[key] = values
            continue
        layer, projection = key.removesuffix(".weight").split(".switch_mlp.")
        own = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}[projection] if name == "mixtral" else projection
        tensors |= {f"{layer}.experts.{at}.{own}.weight": values[at] for at in range(shape[0])}
    path.mkdir()
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))


def logits_and_tokens(model):
    mx = library()
    prompt = mx.array([[1, 17, 99, 230, 4, 8, 200]])
    logits = model(prompt).astype(mx.float32)
    tokens = prompt
    for _ in range(8):
        tokens = mx.concatenate([tokens, mx.argmax(model(tokens)[:, -1:], -1)], 1)
    return raw(logits), tokens.tolist()


def block_of(block):
    """A description of modules without entries that say what holds anyway. An entry without a mode is affine."""
    main = {key: block[key] for key in ("group_size", "bits", "mode")}
    entries = {key: {"mode": "affine"} | value for key, value in block.items() if isinstance(value, dict)}
    return main | {key: value for key, value in entries.items() if value != main}


@folder
def mlx_lm_loads_the_model_that_it_would_make_itself(path, name, scheme, mode, bits, group):
    import mlx_lm.utils as utils
    from mlx.utils import tree_flatten

    mx = library()
    hugging_face(name, path / "m")
    tcast(path / "m", "--layout", "mlx", "--scheme", scheme, "-q", "-o", path / "ours", command="quantize")
    model, config = utils.load_model(path / "m")
    predicate = getattr(model, "quant_predicate", None)
    theirs, described = utils.quantize_model(model, config, group, bits, mode=mode, quant_predicate=predicate)
    ours, loaded = utils.load_model(path / "ours")
    what = f"{name} {scheme}"
    same(dict(tree_flatten(ours.parameters())), dict(tree_flatten(theirs.parameters())), what)
    wanted = block_of(described["quantization"])
    for key in ("quantization", "quantization_config"):
        assert block_of(loaded[key]) == wanted, f"{what}: {key} is {loaded[key]}, not {wanted}"
    assert logits_and_tokens(ours) == logits_and_tokens(theirs), f"{what}: other logits or tokens"
    # The model that tcast decodes is the model that mlx-lm decodes.
    tcast(path / "ours", "-q", "-o", path / "plain", command="dequantize")
    plain, _ = utils.load_model(path / "plain")
    decoded = utils.dequantize_model(theirs)
    same(dict(tree_flatten(plain.parameters())), dict(tree_flatten(decoded.parameters())), f"{what} decoded")
    for model in (plain, decoded):
        model.set_dtype(mx.float32)  # on a CPU, mlx multiplies plain experts in no other type
    assert logits_and_tokens(plain) == logits_and_tokens(decoded), f"{what} decoded: other logits or tokens"


def tests():
    for mode in MODES:
        yield "weights {} {} {}".format(*mode), lambda mode=mode: weights_have_the_bytes_and_the_values_of_mlx(*mode)
        yield "codes {} {} {}".format(*mode), lambda mode=mode: codes_of_any_kind_decode_to_the_values_of_mlx(*mode)
    for name in MODELS:
        for scheme in SCHEMES:
            yield f"{name} {scheme[0]}", lambda name=name, scheme=scheme: mlx_lm_loads_the_model_that_it_would_make_itself(name, *scheme)
