"""Adapters of peft, diffusers and mlx-lm, made here with random values: `tcast cast --lora` merges them to the bytes of a float64
reference that takes the factors out of the library's own layers, and to the library's merge as near as its roundings allow."""

import json
import os

import numpy as np
import safetensors.numpy
import torch

import oracle
from common import codes_of, folder, name_of, tcast

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = os.environ["DIFFUSERS_VERBOSITY"] = "error"

# The share of values that may differ from the library's, and the relative distance of a weight. Libraries that round once differ by the
# order of their sums alone.
ONCE, DELTA, TWICE = (0.001, 1e-3), (0.3, 0.01), (0.45, 0.01)
FLOAT32 = (1.0, 1e-6)


def wide(tensor):
    """The values of a tensor of torch, as float64."""
    return tensor.detach().double().numpy()


def product(left, right):
    """The terms of each sum are added in the order of the inner dimension."""
    total = np.zeros((left.shape[0], right.shape[1]))
    for at in range(left.shape[1]):
        total += left[:, at : at + 1] * right[at : at + 1]
    return total


def lengths(values):
    """The length of each row: squares are added in row-major order."""
    rows = values.reshape(len(values), -1)
    squares = np.zeros(len(rows))
    for at in range(rows.shape[1]):
        squares += rows[:, at] * rows[:, at]
    return np.sqrt(squares)


def rounded(values, dtype):
    """Values of float64 rounded once to a type of numpy, by the reference implementation."""
    codes = oracle.cast(np.ascontiguousarray(values).view(np.uint64).ravel(), "float64", name_of(dtype))
    return codes.astype(f"uint{8 * dtype.itemsize}").view(dtype).reshape(values.shape)


def tensors_of(path):
    loaded = {}
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        loaded |= safetensors.numpy.load_file(file)
    return loaded


def compare(ours, theirs, exact, base, bounds):
    """`exact` has the changed tensors of the reference. All others must be as they were."""
    assert exact, "no weight changes"
    for name, tensor in base.items():
        wanted = exact.get(name, tensor)
        assert ours[name].dtype == wanted.dtype and ours[name].shape == wanted.shape, name
        differ = int((codes_of(ours[name]) != codes_of(wanted)).sum())
        assert not differ, f"{name}: {differ} of {wanted.size} values differ from the reference"
    count = different = 0
    for name, wanted in exact.items():
        own, library = ours[name].astype(np.float64), theirs[name].astype(np.float64)
        assert (own != base[name].astype(np.float64)).any(), f"{name}: no value changes"
        distance = np.linalg.norm(own - library) / np.linalg.norm(library)
        assert distance <= bounds[1], f"{name}: the library's weight is {distance:.2e} away"
        count, different = count + own.size, different + int((own != library).sum())
    # Small models have too few values for a share alone.
    assert different <= max(count * bounds[0], 4), f"{different} of {count} values differ from the library's"


# ---------------------------------------------------------------------------------------- peft


def delta_of(layer, adapter):
    """The delta of a layer of peft before its scale, as a matrix or as the weight is."""
    from peft.tuners.lokr import LoKrLayer
    from peft.tuners.loha import LoHaLayer

    if isinstance(layer, LoHaLayer):
        first, second = (product(wide(getattr(layer, f"hada_w{at}_a")[adapter]), wide(getattr(layer, f"hada_w{at}_b")[adapter])) for at in (1, 2))
        return first * second
    if isinstance(layer, LoKrLayer):
        parts = []
        for at in ("1", "2"):
            whole = getattr(layer, f"lokr_w{at}")
            parts.append(wide(whole[adapter]) if adapter in whole else product(
                wide(getattr(layer, f"lokr_w{at}_a")[adapter]), wide(getattr(layer, f"lokr_w{at}_b")[adapter])))
        return np.kron(*parts)
    if adapter in layer.lora_embedding_A:
        return product(wide(layer.lora_embedding_A[adapter]).T, wide(layer.lora_embedding_B[adapter]).T)
    down, up = wide(layer.lora_A[adapter].weight), wide(layer.lora_B[adapter].weight)
    return product(up.reshape(len(up), -1), down.reshape(len(down), -1))


def add_experts(layer, adapter, strength, values):
    """The deltas of all experts: down has the expert slowest, up has it fastest."""
    down, up = wide(layer.lora_A[adapter].weight), wide(layer.lora_B[adapter].weight)
    experts = len(values)
    rank = len(down) // experts
    deltas = [product(up[:, at::experts], down[at * rank : (at + 1) * rank]) for at in range(experts)]
    # The library says which way the deltas lie in the weight, which shapes alone do not.
    library = strength * wide(layer.get_delta_weight(adapter))
    delta = strength * layer.scaling[adapter] * np.stack(deltas)
    if delta.shape != values.shape or not np.allclose(delta, library, rtol=0.05, atol=0.05 * np.abs(library).max()):
        delta = delta.transpose(0, 2, 1)
    values += delta


def reference(model, strengths):
    """The weights of a model with adapters of these strengths, by the names of the merged model's parameters, as float64."""
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.tuners_utils import BaseTunerLayer

    found = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer) or not hasattr(layer, "scaling"):
            continue
        name = name.replace(".base_layer", "")
        if isinstance(layer, ParamWrapper):
            key = f"{name}.{layer.parameter_name}"
            values = found.setdefault(key, wide(layer.get_param()).copy())
            for adapter, strength in strengths.items():
                add_experts(layer, adapter, strength, values)
            continue
        base = layer.get_base_layer()
        values = wide(base.weight).copy()
        for adapter, strength in strengths.items():
            factor, delta = strength * layer.scaling[adapter], delta_of(layer, adapter)
            # Conv1D of GPT-2 stores [in, out].
            turns = getattr(layer, "fan_in_fan_out", False) and adapter not in getattr(layer, "lora_embedding_A", {})
            values += factor * (delta.T if turns else delta).reshape(values.shape)
            magnitude = getattr(layer, "lora_magnitude_vector", {})
            if adapter in magnitude:
                rows = values.T if turns else values
                ratio = wide(magnitude[adapter].weight).ravel() / lengths(rows)
                rows *= ratio.reshape((-1,) + (1,) * (rows.ndim - 1))
            bias = getattr(layer.lora_B[adapter], "bias", None) if adapter in getattr(layer, "lora_B", {}) else None
            if bias is not None:
                found[f"{name}.bias"] = wide(base.bias) + factor * wide(bias)
        found[f"{name}.weight"] = values
    return found


def randomize(model, seed):
    """Gives all trained parameters values of the size that training gives them."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.requires_grad:
                continue
            if "magnitude" in name:
                weight.mul_(1 + 0.05 * torch.randn_like(weight))
            elif "lora_" in name or "hada_" in name or "lokr_" in name:
                weight.copy_(torch.randn_like(weight) * 0.05)
            else:
                weight.add_(torch.randn_like(weight) * 0.02)


def assign(model, exact):
    """Puts the reference into a merged model, rounded once."""
    parameters = dict(model.named_parameters())
    for name, values in exact.items():
        target = parameters[name]
        kind = {torch.bfloat16: np.dtype("bfloat16"), torch.float16: np.dtype("float16"), torch.float32: np.dtype("float32")}[target.dtype]
        codes = rounded(values, kind).view(f"int{8 * kind.itemsize}")
        target.data = torch.from_numpy(codes.copy()).view(target.dtype)


ALONE = {"one": 1}


@folder
def peft_merges(path, kind, dtype, options, bounds, strengths=ALONE, form=None):
    import peft

    from model_types import build
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = build(kind).to(dtype)
    saved = {} if form is None else {"save_original_format": form == "single"}
    model.save_pretrained(path / "base", **saved)
    options = dict(options)
    config_class = getattr(peft, options.pop("config", "LoraConfig"))
    config = config_class(**options)
    tuned = None
    adapters = list(strengths)
    for at, name in enumerate(adapters):
        if tuned is None:
            tuned = peft.get_peft_model(model, config, adapter_name=name)
        else:
            tuned.add_adapter(name, config_class(**options))
            tuned.base_model.set_adapter(adapters)
        for other, weight in tuned.named_parameters():
            weight.requires_grad_(weight.requires_grad and (len(adapters) == 1 or f".{name}." in other or other.endswith(f".{name}")))
        randomize(tuned, at + 1)
        tuned.save_pretrained(path / "adapters", selected_adapters=[name])
    tuned.base_model.set_adapter(adapters)
    exact = reference(tuned.base_model.model, strengths)
    for layer in tuned.modules():
        for name, strength in strengths.items():
            if strength != 1 and isinstance(layer, peft.tuners.lora.LoraLayer):
                layer.set_scale(name, strength)
    merged = tuned.merge_and_unload()
    merged.save_pretrained(path / "theirs", **saved)
    assign(merged, exact)
    merged.save_pretrained(path / "exact", **saved)
    base, wanted = tensors_of(path / "base"), tensors_of(path / "exact")
    arguments = [argument for name, strength in strengths.items() for argument in ("--lora", f"{path / 'adapters' / name}={strength}")]
    tcast(path / "base", *arguments, "-q", "-o", path / "ours")
    changed = {name: tensor for name, tensor in wanted.items() if tensor.tobytes() != base[name].tobytes()}
    compare(tensors_of(path / "ours"), tensors_of(path / "theirs"), changed, base, bounds)


BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
ATTENTION = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "o_proj"]}
BANK = {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj"]}
BOTH = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
PEFT = {
    "linear layers of llama": ("llama", BF16, {**ATTENTION, "target_modules": "all-linear"}, ONCE),
    "linear layers of llama in float32": ("llama", F32, ATTENTION, FLOAT32),
    "ranks and alphas by pattern": ("llama", F16, {**ATTENTION, "use_rslora": True, "rank_pattern": {r".*\.0\..*q_proj": 7}, "alpha_pattern": {"o_proj": 11}}, ONCE),
    "DoRA on mistral": ("mistral", BF16, {**ATTENTION, "use_dora": True}, ONCE),
    "biases of qwen2": ("qwen2", BF16, {**ATTENTION, "bias": "all"}, ONCE),
    "lora_bias on qwen2": ("qwen2", BF16, {**ATTENTION, "target_modules": ["q_proj", "k_proj"], "lora_bias": True}, ONCE),
    "Conv1D of gpt2": ("gpt2", BF16, {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}, ONCE),
    "DoRA on Conv1D of gpt2": ("gpt2", F32, {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn"], "fan_in_fan_out": True, "use_dora": True}, FLOAT32),
    "embeddings of llama": ("llama", BF16, {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "k_proj"]}, DELTA),
    "modules_to_save of gemma2": ("gemma2", BF16, {**ATTENTION, "modules_to_save": ["post_attention_layernorm"]}, ONCE),
    "trained tokens of qwen3": ("qwen3", BF16, {**ATTENTION, "trainable_token_indices": [1, 5, 77]}, ONCE),
    "LoHa on phi3": ("phi3", BF16, {"config": "LoHaConfig", "r": 4, "alpha": 8, "target_modules": ["qkv_proj", "down_proj"]}, ONCE),
    "LoKr on llama": ("llama", BF16, {"config": "LoKrConfig", "r": 4, "alpha": 8, "target_modules": ["q_proj", "down_proj"]}, ONCE),
    "two adapters on llama": ("llama", BF16, ATTENTION, DELTA, {"one": 0.5, "two": -1.25}),
    "the convolution of vit": ("vit", BF16, {"r": 4, "lora_alpha": 8, "target_modules": ["projection"]}, ONCE),
    "stacked experts of qwen3_moe in stacks": ("qwen3_moe", BF16, BANK | BOTH, DELTA, ALONE, "stacked"),
    "stacked experts of qwen3_moe one by one": ("qwen3_moe", BF16, BANK | BOTH, DELTA, ALONE, "single"),
    "stacked experts of mixtral one by one": ("mixtral", BF16, BANK | BOTH, DELTA, ALONE, "single"),
    "one parameter of the experts of qwen3_moe": ("qwen3_moe", BF16, BANK | {"target_parameters": ["mlp.experts.down_proj"]}, DELTA, ALONE, "stacked"),
    "experts of gpt_oss": ("gpt_oss", BF16, BANK | BOTH, DELTA),
}

# ---------------------------------------------------------------------------------------- diffusers


def small_diffusion(kind):
    import diffusers

    torch.manual_seed(3)
    if kind == "flux":
        return diffusers.FluxTransformer2DModel(
            in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32,
            pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True)
    if kind == "wan":
        return diffusers.WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=32, freq_dim=32, ffn_dim=64, num_layers=2)
    return diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32, attention_head_dim=4, norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))


DIFFUSERS = {
    "flux": ["to_q", "to_k", "to_v", "to_out.0", "proj_mlp", "norm.linear", "norm_out.linear", "x_embedder"],
    "wan": ["to_q", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"],
    "unet": ["to_q", "to_v", "to_out.0", "conv1", "conv2", "conv_shortcut", "proj_in"],
}


@folder
def diffusers_fuses(path, kind, dtype, strength):
    from peft import LoraConfig

    model = small_diffusion(kind).to(dtype)
    model.save_pretrained(path / "base")
    model.add_adapter(LoraConfig(r=4, lora_alpha=6, target_modules=DIFFUSERS[kind]), adapter_name="one")
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
    model.to(torch.float32)  # as trainers keep adapters; the base has the same values
    randomize(model, 5)
    model.save_lora_adapter(path / "adapter", adapter_name="one")

    exact = reference(model, {"one": strength})
    fused = type(model).from_pretrained(path / "base", torch_dtype=dtype)
    fused.load_lora_adapter(str(path / "adapter"), prefix=None, adapter_name="one", weight_name="pytorch_lora_weights.safetensors")
    fused.fuse_lora(lora_scale=strength, adapter_names=["one"])
    fused.unload_lora()
    fused.save_pretrained(path / "theirs")
    base = tensors_of(path / "base")
    wanted = {name: rounded(values, base[name].dtype) for name, values in exact.items()}
    tcast(path / "base", "--lora", f"{path / 'adapter'}={strength}", "-q", "-o", path / "ours")
    compare(tensors_of(path / "ours"), tensors_of(path / "theirs"), wanted, base, FLOAT32 if dtype == F32 else DELTA)


# ---------------------------------------------------------------------------------------- mlx-lm


@folder
def mlx_fuses(path, kind, dtype, keys, use_dora):
    import mlx_lm.utils as utils
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_lm.tuner.utils import linear_to_lora_layers

    import mlx_models

    mx = mlx_models.library()
    mlx_models.hugging_face(kind, path / "source")
    model, config = utils.load_model(path / "source", lazy=False)
    model.set_dtype(getattr(mx, dtype))
    utils.save_model(path / "base", model)
    (path / "base" / "config.json").write_text(json.dumps(config))
    parameters = {"rank": 4, "scale": 2.5, "dropout": 0.0, "keys": keys}
    model.freeze()
    linear_to_lora_layers(model, 2, parameters, use_dora=use_dora)
    mx.random.seed(9)
    adapter = {}
    for name, value in tree_flatten(model.trainable_parameters()):
        noise = mx.random.normal(value.shape).astype(value.dtype)
        adapter[name] = value * (1 + 0.05 * noise) if name.endswith(".m") else 0.05 * noise
    model.load_weights(list(adapter.items()), strict=False)
    (path / "adapter").mkdir()
    mx.save_safetensors(str(path / "adapter" / "adapters.safetensors"), adapter)
    (path / "adapter" / "adapter_config.json").write_text(json.dumps(
        {"fine_tune_type": "dora" if use_dora else "lora", "num_layers": 2, "lora_parameters": parameters}))
    base, exact = tensors_of(path / "base"), {}

    def values(array):
        return np.array(array.astype(mx.float32)).astype(np.float64)

    for name, layer in model.named_modules():
        if not hasattr(layer, "fuse"):
            continue
        down, up, weight = values(layer.lora_a), values(layer.lora_b), base[f"{name}.weight"]
        if weight.ndim == 3:
            delta = np.stack([product(left, right) for left, right in zip(up, down)])
        else:
            delta = product(down, up) if "embed" in name else product(up.T, down.T)
        merged = weight.astype(np.float64) + layer.scale * delta
        if use_dora:
            merged = merged * (values(layer.m) / lengths(merged))[:, None]
        exact[f"{name}.weight"] = rounded(merged, weight.dtype)
    fused = [(name, layer.fuse()) for name, layer in model.named_modules() if hasattr(layer, "fuse")]
    model.update_modules(tree_unflatten(fused))
    mx.save_safetensors(str(path / "theirs.safetensors"), dict(tree_flatten(model.parameters())))
    tcast(path / "base", "--lora", path / "adapter", "-q", "-o", path / "ours")
    compare(tensors_of(path / "ours"), tensors_of(path / "theirs.safetensors"), exact, base, FLOAT32 if dtype == "float32" else TWICE)


ATTENTION_OF_MLX = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"]
MLX = {
    "llama": ("llama", "bfloat16", ATTENTION_OF_MLX, False),
    "llama in float16": ("llama", "float16", ATTENTION_OF_MLX, False),
    "llama in float32 with DoRA": ("llama", "float32", ATTENTION_OF_MLX, True),
    "experts of qwen3_moe": ("qwen3_moe", "bfloat16", [*ATTENTION_OF_MLX, "mlp.switch_mlp.gate_proj", "mlp.switch_mlp.down_proj"], False),
}


def tests():
    for name, case in PEFT.items():
        yield f"peft, {name}", lambda case=case: peft_merges(*case)
    for kind in DIFFUSERS:
        for dtype, strength in [(BF16, 1.0), (BF16, 0.7), (F32, -0.5)]:
            yield f"diffusers, {kind} of {dtype} at {strength}", lambda case=(kind, dtype, strength): diffusers_fuses(*case)
    for name, case in MLX.items():
        yield f"mlx-lm, {name}", lambda case=case: mlx_fuses(*case)
