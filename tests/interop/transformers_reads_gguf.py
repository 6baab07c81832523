"""transformers loads GGUF models that gguf-py writes of tiny random ones; what `tcast dequantize --names huggingface` makes of them
has the same tensors, and the model the same logits."""

import functools
import os

import gguf
import numpy as np
import safetensors.torch
import torch
from gguf import GGMLQuantizationType as Type

from common import folder, tcast
from gguf_models import write

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TQDM_DISABLE"] = "1"

LAYERS, EXPERTS = 2, 4
SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "dtype": "float32",
}
# The classes of transformers, gguf-py's architecture, and what the config has besides the sizes.
MODELS = {
    "llama": ("Llama", gguf.MODEL_ARCH.LLAMA, {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2", gguf.MODEL_ARCH.QWEN2, {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", gguf.MODEL_ARCH.QWEN3, {"tie_word_embeddings": False, "head_dim": 32}),
    "gemma2": ("Gemma2", gguf.MODEL_ARCH.GEMMA2, {"head_dim": 32, "sliding_window": 32}),
    "gemma3_text": ("Gemma3", gguf.MODEL_ARCH.GEMMA3, {"head_dim": 32, "sliding_window": 32}),
    "qwen3_moe": ("Qwen3Moe", gguf.MODEL_ARCH.QWEN3MOE, {
        "head_dim": 32, "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "tie_word_embeddings": False}),
}


def saved(path, config_class, model_class, **options):
    """Saves a model of random float32 weights; returns its config and its tensors."""
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, config_class)(**options)
    model = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or key.endswith("bias"):
                # 1 can be added to these numbers, and subtracted, without rounding.
                parameter.copy_(torch.randint(-500, 500, parameter.shape) / 1024)
    model.save_pretrained(path)
    return config, safetensors.torch.load_file(path / "model.safetensors")


def classes(prefix, name):
    """The classes of a model type and its config."""
    return f"{prefix}{'Text' if name.endswith('_text') else ''}Config", f"{prefix}ForCausalLM"


def tiny(path, name):
    prefix, _, options = MODELS[name]
    return saved(path, *classes(prefix, name), **SIZES, **options)


def head_pairs(weight, heads):
    """Rows of queries or keys in the order of llama.cpp."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def to_gguf(path, name, config, tensors, kind):
    """Writes a model with the names of llama.cpp, and its matrices as blocks."""
    _, arch, _ = MODELS[name]
    names = gguf.get_tensor_name_map(arch, LAYERS)
    found, experts = [], {}
    for key, tensor in tensors.items():
        array = tensor.numpy()
        if name == "llama" and ("q_proj" in key or "k_proj" in key):
            array = head_pairs(array, config.num_attention_heads if "q_proj" in key else config.num_key_value_heads)
        if name.startswith("gemma") and key.endswith("norm.weight"):
            array = array + np.float32(1)
        if ".experts." in key:
            before, _, rest = key.partition(".experts.")
            number, _, rest = rest.partition(".")
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = array
        else:
            found.append((key, array))
    found += [(key, np.stack([stack[at] for at in range(EXPERTS)])) for key, stack in experts.items()]
    stored = []
    for key, array in found:
        is_kept = array.ndim == 1 or key.endswith("mlp.gate.weight")
        type_of = Type.F32 if is_kept else kind
        stored_name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert stored_name, key
        stored.append((stored_name, type_of, gguf.quants.quantize(np.ascontiguousarray(array), type_of)))
    write(path, stored, functools.partial(keys, config), gguf.MODEL_ARCH_NAMES[arch])


def keys(config, writer):
    """The metadata without a tokenizer."""
    writer.add_block_count(LAYERS)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    if head_dim := getattr(config, "head_dim", None):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(config, "num_experts", None):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def same_tensors(ours, theirs):
    """Asserts that two models have the same tensors, and computes the same logits; returns the number of values."""
    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state.keys() == theirs_state.keys(), ours_state.keys() ^ theirs_state.keys()
    count = 0
    for key, tensor in ours_state.items():
        assert tensor.dtype == torch.float32, (key, tensor.dtype)
        assert torch.equal(tensor, theirs_state[key]), key
        count += tensor.numel()
    assert count > 50_000, count
    tokens = torch.arange(1, 65)[None]
    with torch.no_grad():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)
    return count


@folder
def transformers_loads_the_same_model(path, name, kind):
    from transformers import AutoModelForCausalLM

    config, tensors = tiny(path / "source", name)
    to_gguf(path / "m.gguf", name, config, tensors, Type[kind])
    naming = ("--names", "huggingface")
    arguments = (*naming, "--config", path / "source", "--to", "f32", "-o", path / "values")
    tcast(path / "m.gguf", *arguments, command="dequantize")
    ours, info = AutoModelForCausalLM.from_pretrained(path / "values", dtype=torch.float32, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    theirs = AutoModelForCausalLM.from_pretrained(path, gguf_file="m.gguf", config=config, dtype=torch.float32)
    same_tensors(ours, theirs)
    if kind == "F32":
        same_tensors(ours, AutoModelForCausalLM.from_pretrained(path / "source", dtype=torch.float32))
    tcast(path / "m.gguf", path / "values", *naming, "--tolerance", "0", command="diff")


def tests():
    for name in MODELS:
        for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"):
            yield f"{name} in {kind}", functools.partial(transformers_loads_the_same_model, name, kind)
    torch.set_num_threads(1)  # and no threads before the workers are forked
