"""Experts that MLX stacks: of each kind of models of which mlx-lm stacks experts, tcast makes the model that mlx-lm makes, and divides
its stacks. Models are small and have random weights, under the names of Hugging Face; mlx-lm itself reads them from these names."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np

from common import TCAST, folder, tcast
from mlx_models import classes, library, load, raw, same
from mlx_trials import SHARED

ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
FLASH = {"ffn_hidden_size": 384, "expert_ffn_hidden_size": 384, "moe_topk": 2, "zero_expert_num": 0, "attention_method": "MLA",
         "zero_expert_type": "identity", "mla_scale_q_lora": True, "mla_scale_kv_lora": True}
SPARSE = {"index_head_dim": 64, "index_n_heads": 2, "index_topk": 8, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
          "moe_layer_freq": 1, "rope_parameters": ROPE}
WINDOW = {"hybrid_layer_pattern": [0, 1], "moe_layer_freq": [0, 1], "add_swa_attention_sink_bias": True,
          "add_full_attention_sink_bias": False, "sliding_window_size": 16, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
          "layernorm_epsilon": 1e-5, "swa_rope_theta": 10000.0, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
          "swa_head_dim": 64, "swa_v_head_dim": 64}
LINEAR = {"linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 64, "short_conv_kernel_size": 4},
          "model_max_length": 128, "first_k_dense_replace": 1, "num_hidden_layers": 3, "q_lora_rank": None}
MAMBA = {"attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_offset": 0, "expert_layer_period": 1, "mamba_d_conv": 4,
         "mamba_d_state": 16, "mamba_expand": 2}
NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 64, "mamba_proj_bias": False, "ssm_state_size": 64, "conv_kernel": 4, "n_groups": 1,
            "use_conv_bias": True, "hybrid_override_pattern": ["M", "E", "*", "E"], "num_hidden_layers": 4,
            "moe_shared_expert_intermediate_size": 384, "mlp_hidden_act": "relu2"}
LFM = {"use_expert_bias": True, "num_dense_layers": 1, "conv_bias": False, "conv_L_cache": 3, "num_hidden_layers": 3,
       "layer_types": ["conv", "full_attention", "conv"]}
# The kinds, and what their configs have besides the shared sizes.
KINDS = {
    "Klear": {},
    "afmoe": {},
    "bailing_hybrid": {},
    "bailing_moe": {},
    "bailing_moe_linear": {},
    "deepseek": {},
    "deepseek_v2": {"rope_scaling": {"type": "yarn", "factor": 4, "mscale_all_dim": 1, "original_max_position_embeddings": 32}},
    "deepseek_v3": {},
    "deepseek_v32": SPARSE,
    "dots1": {},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "glm_moe_dsa": SPARSE,
    "hunyuan": {"moe_topk": 2, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "use_cla": False, "cla_share_factor": 2,
                "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
    "jamba": MAMBA,
    "joyai_llm_flash": {},
    "kimi_k2": {},
    "kimi_linear": LINEAR,
    "laguna": {},
    "lfm2_moe": LFM,
    "longcat_flash": FLASH,
    "mellum": {"rope_parameters": {"full_attention": ROPE}},
    "mimo_v2_flash": WINDOW,
    "minimax": {"shared_intermediate_size": 384, "rotary_dim": 32},
    "minimax_m2": {"shared_intermediate_size": 384, "rotary_dim": 32},
    "minimax_m3_vl": {},
    "mistral4": {},
    "mixtral": {},
    "nemotron_h": NEMOTRON,
    "olmoe": {},
    "phimoe": {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 32, "long_factor": [1.0] * 32, "short_mscale": 1.0,
                                "long_mscale": 1.0, "original_max_position_embeddings": 64}},
    "qwen2_moe": {"shared_expert_intermediate_size": 384},
    "qwen3_moe": {},
    "solar_open": {},
}
REFUSED = {
    "qwen3_next": "mlx-lm adds 1 to its norms while it stacks experts, and only then",
    "kimi_k3": "mlx-lm packs its experts as MXFP4 while it stacks them",
    "deepseek_v41": "mlx-lm divides and packs other weights of it while it stacks experts",
}
NUMBERED = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
OWN = {"fc1": "up_proj", "fc2": "down_proj"}
# Kinds whose files have banks, which mlx-lm divides.
OF_BANKS = {"mistral4"}
OF_NUMBERS = {"kimi_linear", "lfm2_moe", "minimax", "minimax_m2", "minimax_m3_vl", "mixtral", "phimoe"}
# Names of MLX, and those in files of Hugging Face.
BAILING = [(r"mlp\.gate\.gate_proj\.", "mlp.gate.")]
MODULES = {
    "bailing_hybrid": BAILING,
    "bailing_moe": BAILING,
    "bailing_moe_linear": BAILING,
    "kimi_linear": [(r"mlp\.(shared_experts|switch_mlp|gate)\.", r"block_sparse_moe.\1."),
                    (r"mlp\.e_score_correction_bias", "block_sparse_moe.gate.e_score_correction_bias"), (r"([qkv])_conv\.conv\.", r"\1_conv1d.")],
    "laguna": [(r"mlp\.gate\.proj\.", "mlp.gate."), (r"mlp\.gate\.e_score", "mlp.experts.e_score")],
    "lfm2_moe": [(rf"feed_forward\.{name}\.", f"feed_forward.{own}.") for name, own in NUMBERED.items()],
}
# What tcast leaves as it is and mlx-lm quantizes: parts of weights that it makes of `kv_b_proj`, and weights that other engines keep.
KEPT = re.compile(r"\.(embed_q|unembed_out|indexer\.weights_proj|mamba\.(x|dt)_proj|[fg]_[ab]_proj|b_proj)\.|\.conv1d\.")
# The router of the first kind keeps its name, which MLX changes: another class of the same kind does not. mlx-lm normalizes the heads of
# the others when it loads them, if they are plain.
HEAD = re.compile(r"lm_head\.")
OTHERS_KEPT = {"bailing_hybrid": re.compile(r"\.mlp\.gate\.gate_proj\."), "bailing_moe": HEAD, "bailing_moe_linear": HEAD}
SCHEMES = [("affine4", "affine", 4, 64), ("mxfp8", "mxfp8", 8, 32)]


def config_of(kind):
    config = SHARED | {"n_shared_experts": 1, "num_experts_per_token": 2} | KINDS.get(kind, {}) | {"model_type": kind}
    if kind == "minimax_m3_vl":
        text = config | {"model_type": "minimax_m3_vl_text", "shared_intermediate_size": 384}
        return {"model_type": kind, "text_config": text, "torch_dtype": "bfloat16"}
    return config


def of_hugging_face(kind, tensors, nope):
    """The tensors of a model of mlx-lm, as files of Hugging Face have them."""
    mx = library()
    out = {}
    for name, values in tensors.items():
        if name.endswith(".unembed_out.weight"):
            continue
        if name.endswith(".embed_q.weight"):
            parts = values.swapaxes(-1, -2), tensors[name.replace("embed_q", "unembed_out")]
            assert parts[0].shape[1] == nope
            joined = mx.concatenate(parts, 1)
            out[name.replace("embed_q", "kv_b_proj")] = joined.reshape(-1, joined.shape[-1])
            continue
        expert = re.fullmatch(r"(.*)\.(?:switch_mlp|experts)\.([a-z0-9_]+)\.(weight|bias)", name)
        for pattern, new in MODULES.get(kind, []):
            name = re.sub(pattern, new, name)
        if "conv" in name and values.ndim == 3:
            values = values.swapaxes(1, 2)
        if not expert or values.ndim < 2:
            out[name] = values
            continue
        layer, own, end = re.fullmatch(r"(.*)\.(?:switch_mlp|experts)\.([a-z0-9_]+)\.(weight|bias)", name).groups()
        if kind in OF_BANKS:
            if own != "up_proj":
                parts = [values] if own == "down_proj" else [values, tensors[expert[0].replace("gate_proj", "up_proj")]]
                out[f"{layer}.experts.{own.replace('gate', 'gate_up')}"] = mx.concatenate(parts, 1)
            continue
        own = NUMBERED[own] if kind in OF_NUMBERS else OWN.get(own, own)
        out |= {f"{layer}.experts.{at}.{own}.{end}": values[at] for at in range(values.shape[0])}
    return out


def store(kind, path):
    mx = library()
    from mlx.utils import tree_flatten

    config = config_of(kind)
    model_class, arguments = classes(config)
    model = model_class(arguments.from_dict(config))
    random = np.random.default_rng(len(kind))
    tensors = {}
    for name, array in tree_flatten(model.parameters()):
        values = random.standard_normal(array.shape) * 0.05 + (array.ndim == 1)
        tensors[name] = mx.array(values.astype(np.float32)).astype(mx.bfloat16)
    path.mkdir()
    tensors = of_hugging_face(kind, tensors, SHARED["qk_nope_head_dim"])
    mx.save_safetensors(str(path / "model.safetensors"), tensors, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def divided_as(path, wanted, what):
    """Decodes a model of MLX: it has the tensors of the source, and what was not quantized unchanged."""
    plain = path.with_name(path.name + "-plain")
    tcast(path, "-q", "-o", plain, command="dequantize")
    found = load(plain)
    assert found.keys() == wanted.keys(), f"{what}: {sorted(found.keys() ^ wanted.keys())[:6]}"
    for name, array in wanted.items():
        assert found[name].shape == array.shape, f"{what}: {name}: {found[name].shape} and {array.shape}"
    return found


@folder
def mlx_lm_stacks_the_same_experts(path, kind, scheme, mode, bits, group):
    import mlx_lm.utils as utils
    from mlx.utils import tree_flatten

    what = f"{kind} {scheme}"
    source = store(kind, path / "m")
    tcast(path / "m", "--layout", "mlx", "--scheme", scheme, "-q", "-o", path / "ours", command="quantize")
    stacked = load(path / "ours")
    singles = [name for name in stacked if re.search(r"\.experts\.\d", name)]
    assert not singles, f"{what}: not stacked: {singles[:3]}"
    model, config = utils.load_model(path / "m")
    theirs, config = utils.quantize_model(model, config, group, bits, mode=mode, quant_predicate=getattr(model, "quant_predicate", None))
    ours, _ = utils.load_model(path / "ours")
    found, wanted = (dict(tree_flatten(model.parameters())) for model in (ours, theirs))
    others = OTHERS_KEPT.get(kind, KEPT)
    kept = {name for name in found.keys() | wanted.keys() if KEPT.search(name) or others.search(name)}
    same(*({name: array for name, array in one.items() if name not in kept} for one in (found, wanted)), what)
    # What tcast kept has the values of the source, as mlx-lm reads them.
    plain = dict(tree_flatten(utils.load_model(path / "m")[0].parameters()))
    for name in kept & found.keys() & plain.keys():
        if name.removesuffix("weight") + "scales" not in found:
            assert raw(found[name]) == raw(plain[name]), f"{what}: {name}"
    decoded = divided_as(path / "ours", source, what)
    # mlx-lm's own file has the same experts, if all its tensors have a name in Hugging Face.
    (path / "theirs").mkdir()
    utils.save_model(path / "theirs", theirs)
    (path / "theirs/config.json").write_text(json.dumps(config))
    if any(".embed_q." in name for name in wanted):
        run = subprocess.run([TCAST, "dequantize", path / "theirs", "-o", path / "x"], capture_output=True, text=True)
        assert run.returncode and "is made of other tensors by MLX" in run.stderr, f"{what}: {run.stderr}"
        return
    stored = {name for name in source if ".experts." in name}
    of_theirs = divided_as(path / "theirs", source, f"{what} of mlx-lm")
    same({name: of_theirs[name] for name in stored}, {name: decoded[name] for name in stored}, f"{what} of mlx-lm")


@folder
def a_kind_is_refused_by_name(path, kind, why):
    mx = library()
    path = path / "m"
    path.mkdir()
    weight = mx.zeros((64, 64), dtype=mx.bfloat16)
    names = [f"model.layers.0.mlp.experts.{at}.{own}.weight" for at in range(2) for own in ("gate_proj", "up_proj", "down_proj")]
    mx.save_safetensors(str(path / "model.safetensors"), dict.fromkeys(names, weight))
    (path / "config.json").write_text(json.dumps({"model_type": kind, "num_experts": 2}))
    command = [TCAST, "quantize", path, "--layout", "mlx", "--scheme", "affine4", "-o", Path(f"{path}-o")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1 and f"is a model of type '{kind}', and {why}\n" in run.stderr, run.stderr


def tests():
    for kind in KINDS:
        for scheme in SCHEMES:
            yield f"{kind} {scheme[0]}", lambda case=(kind, *scheme): mlx_lm_stacks_the_same_experts(*case)
    for kind, why in REFUSED.items():
        yield f"{kind} is refused", lambda case=(kind, why): a_kind_is_refused_by_name(*case)
