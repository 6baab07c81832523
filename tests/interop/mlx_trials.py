"""Trials: mlx-lm takes a small model of each kind that it knows, as `tcast quantize --layout mlx` writes it."""

import json
import pkgutil
import re
import subprocess

import numpy as np

from common import TCAST

COLUMNS = {"affine8": "--scheme affine8", "mxfp8": "--scheme mxfp8"}
# The sizes of kinds that transformers does not know.
SHARED = {
    "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 256, "rms_norm_eps": 1e-5, "norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-5, "layer_norm_eps": 1e-5, "post_norm": False, "qk_norm": False, "n_layers": 2,
    "d_model": 256, "n_heads": 4, "sliding_window_pattern": None, "is_moe_layer": [True, True], "moe_num_experts": 4,
    "num_kv_reuse_layers": 0, "layer_group_size": 2, "group_norm_size": 1, "kv_lora_rank": 128, "q_lora_rank": 128,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1, "n_shared_experts": 1, "moe_intermediate_size": 384,
    "first_k_dense_replace": 0, "norm_topk_prob": True, "sliding_window": 16, "sliding_window_layers": [1], "conv_window": 2,
    "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "use_bias": False, "use_qkv_bias": False,
    "qkv_bias": False, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "partial_rotary_factor": 1.0,
    "mlp_only_layers": [], "decoder_sparse_step": 1, "hidden_dim": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
    "score_function": "softmax", "scoring_func": "softmax", "norm_head": True, "moe_shared_expert_intermediate_size": 384,
    "use_qk_norm": False, "rope_scaling": None, "torch_dtype": "bfloat16", "layer_types": ["full_attention"] * 2,
}
# The largest relative error of a weight.
WORST = {"affine8": 0.02, "mxfp8": 0.08}


def kinds():
    import mlx_lm.models

    return sorted(module.name for module in pkgutil.iter_modules(mlx_lm.models.__path__))


def store_ours(kind, path):
    """A model of mlx-lm with random weights, with experts one by one as in files of Hugging Face."""
    import mlx.core as mx
    import mlx_experts
    import mlx_lm.utils
    from mlx.utils import tree_flatten

    if kind in mlx_experts.KINDS:
        mlx_experts.store(kind, path)
        return
    config = SHARED | {"model_type": kind}
    model_class, arguments = mlx_lm.utils._get_classes(config)
    model = model_class(arguments.from_dict(config))
    random = np.random.default_rng(0)
    tensors = {}
    for name, array in tree_flatten(model.parameters()):
        values = random.standard_normal(array.shape) * 0.05 + (array.ndim == 1)
        values = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
        layer, stack, own = name.partition(".switch_mlp.")
        tensors |= {f"{layer}.experts.{at}.{own}": value for at, value in enumerate(values)} if stack else {name: values}
    path.mkdir()
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))


def store(kind, path):
    import model_types
    import shutil

    try:
        model = model_types.build(kind)
        model.save_pretrained(path)
        saved = json.loads((path / "config.json").read_text())
        # transformers 5 has rope_parameters in its place.
        defaults = {key: SHARED[key] for key in ("rope_theta", "rope_scaling", "torch_dtype", "use_qk_norm", "norm_topk_prob")}
        (path / "config.json").write_text(json.dumps(defaults | saved))
        load(path)
        return
    except Exception as error:
        why = error
    shutil.rmtree(path, ignore_errors=True)
    try:
        store_ours(kind, path)
        load(path)
    except Exception as error:
        raise RuntimeError(f"{why!r:.150} / {error!r:.150}")


def load(path):
    import mlx.core as mx
    import mlx_lm.utils

    model, _ = mlx_lm.utils.load_model(path)
    mx.eval(model.parameters())
    return model


def values(model):
    import mlx.core as mx
    from mlx.utils import tree_flatten

    return {name: np.array(array.astype(mx.float32)) for name, array in tree_flatten(model.parameters())}


def logits(model):
    import mlx.core as mx

    return np.array(model(mx.array([[1, 17, 99, 230, 4, 8, 200]])).astype(mx.float32))


def difference(found, wanted):
    if found.shape != wanted.shape:
        return float("inf")
    return float(np.linalg.norm(found - wanted) / (np.linalg.norm(wanted) + 1e-9))


def compare(path, wanted, column):
    import mlx.core as mx
    import mlx_lm.utils

    try:
        model = load(path)
        model.set_dtype(mx.float32)  # on a CPU, mlx multiplies plain experts in no other type
        found = logits(model)
    except Exception as error:
        return "error", f"{error!r:.200}"
    model = mlx_lm.utils.dequantize_model(model)
    decoded = values(model)
    if decoded.keys() != wanted.keys():
        return "wrong", f"{sorted(decoded.keys() ^ wanted.keys())[:3]}"
    for name, value in wanted.items():
        error = difference(decoded[name], value)
        if not error < WORST[column]:
            return "wrong", f"{name}: {error:.2g}"
    error = difference(found, logits(model))
    return ("ok" if error < 0.02 else "wrong"), f"{error:.3f}"


def trial(kind, folder):
    """Yields (column, outcome, why) of a kind of model."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    store(kind, folder / "source")
    names = [name for file in (folder / "source").glob("*.safetensors") for name in mx.load(str(file))]
    experts = "single" if any(re.search(r"\.experts\.\d", name) for name in names) else "other" if any(
        re.search(r"experts", name) for name in names) else "none"
    yield "experts", experts, ""
    model = load(folder / "source")
    wanted = values(model)
    model.set_dtype(mx.float32)
    logits(model)  # or nothing can be said about it
    for column, flags in COLUMNS.items():
        for names in ([], ["--names", "file"]):
            command = [TCAST, "quantize", folder / "source", "--layout", "mlx", *flags.split(), *names, "-o", folder / "q", "-q", "-f"]
            run = subprocess.run(command, capture_output=True, text=True)
            if "--names file" not in run.stderr:
                break
        if run.returncode:
            yield column, "refused", run.stderr[-200:]
            return
        yield column, *compare(folder / "q", wanted, column)
    run = subprocess.run([TCAST, "dequantize", folder / "q", "-o", folder / "p", "-q", "-f"], capture_output=True, text=True)
    yield "plain", *(("refused", run.stderr[-200:]) if run.returncode else compare(folder / "p", wanted, "mxfp8"))
