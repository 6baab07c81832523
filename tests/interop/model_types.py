"""Small models with random weights of every kind that transformers knows, made from the default config of the kind."""

import importlib
import re

import torch

# A key of a config, and the number that it gets. The first row that matches counts. Sizes are multiples of 128 where a layer can
# be quantized in blocks; no two sizes of a bank of experts are the same, so that it cannot be transposed.
SIZES = [
    (r"num_feat_extract_layers|num_conv_.*", None),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|n_dense_layers|num_initial_dense_layers", 1),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_ssm", 512),
    (r"mamba_d_head|mamba_head_dim", 64),
    (r"(num_|n_)?(hidden_)?layers|n_layer|num_blocks|depth|n_layers|num_.*_layers|(encoder|decoder|entity)_layers|.*num_layers", 2),
    (r"(.*_)?(num_)?attention_heads|n_heads?|num_heads|(.*_)?num_.*heads|.*_heads|n_head_kv|multi_query_group_num", 4),
    (r"head_dim|.*_head_dim|d_kv|head_size|kv_channels", 64),
    (r"(q|kv|o)_lora_rank|.*lora_rank.*|.*_lora_dim", 128),
    (r".*vocab_size.*", 256),
    (r"(.*_)?moe_intermediate_size|expert_.*size|expert_ffn_hidden_size|shared_.*intermediate_size", 384),
    (r"(.*_)?intermediate_size|.*ffn_dim|d_ff|d_inner|n_inner|ffn_hidden_size|.*ffn.*size|ff_dim", 384),
    (r"num_(local_|routed_)?experts|n_routed_experts|num_.*experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|num_selected_experts|moe_topk|top_k_experts|moe_k|experts_per_token", 2),
    (r"n_shared_experts|num_shared_experts|n_group|topk_group|num_expert_group", 1),
    (r"max_position_embeddings|n_positions|n_ctx|max_.*position.*|max_seq_len.*|seq_length|context_length", 128),
    (r"hidden_size_per_layer_input", 128),
    (r"(.*_)?hidden_size|d_model|n_embd|.*embed_dim|.*hidden_dim|model_dim|embedding_size|dim|emb_dim|.*width|projection_dim", 256),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"sliding_window|attention_window|window_size|chunk_size|attention_chunk_size|local_attention", 16),
]
SOME = re.compile(r"num_key_value_heads|n_head_kv|num_kv_heads|num_.*_key_value_heads|multi_query_group_num")
TOKEN = re.compile(r".*token_id$|.*token_index$|.*_id$")
DEFAULTS = {"head_dim": 64, "num_key_value_heads": 4, "num_experts_per_tok": 2, "n_routed_experts": 4}
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def shrunk(values):
    """A dict of a config with small sizes."""
    out = {}
    heads = next((values[key] for key in ("num_attention_heads", "n_head", "n_heads") if isinstance(values.get(key), int)), None)
    for key, value in values.items():
        if value is None:
            value = DEFAULTS.get(key)
        out[key] = value
        if isinstance(value, dict) and key not in ("id2label", "label2id"):
            out[key] = shrunk(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            if TOKEN.fullmatch(key):
                out[key] = value if value < 100 else 100 + sum(map(ord, key)) % 150
            elif SOME.fullmatch(key) and heads and value < heads and value > 1:
                out[key] = 2
            else:
                size = next((size for pattern, size in SIZES if re.fullmatch(pattern, key)), None)
                out[key] = min(value, size) if size and value > 0 else value
    before, layers = ((next((config[key] for key in LAYERS if isinstance(config.get(key), int)), None)) for config in (values, out))
    for key, value in out.items():
        if isinstance(value, list) and layers and (len(value) == before or len(value) > layers and "layer" in key):
            kinds = list(dict.fromkeys(map(str, value)))
            picked = [next(v for v in value if str(v) == kind) for kind in kinds][:layers]
            out[key] = (picked + value)[:layers]
        elif key == "mrope_section":
            out[key] = [8, 12, 12]
    if out.get("per_layer_config"):
        out["per_layer_config"] = {key: value for key, value in out["per_layer_config"].items() if int(key) < (layers or 0)}
    if "stage_names" in out:
        for key in ("stage_names", "out_features", "out_indices", "_out_features", "_out_indices"):
            out.pop(key, None)
    return out


QWEN_VL = {"text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}}}
# What the defaults of a kind lack.
EXTRA = {
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "qwen2_vl": QWEN_VL,
    "qwen2_5_vl": QWEN_VL,
    "colqwen2": {"vlm_config": QWEN_VL},
    "gemma4_text+experts": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 384},
    "gemma4+experts": {"text_config": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 384}},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "mamba2": {"num_heads": 8, "head_dim": 64, "hidden_size": 256},
    "falcon_h1": {"mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_expand": 2},
    "glm4v_moe_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6], "partial_rotary_factor": 0.5}},
    "xmod": {"default_language": "en_XX"},
}


def merged(values, extra):
    for key, value in extra.items():
        values[key] = merged(dict(values.get(key) or {}), value) if isinstance(value, dict) else value
    return values


def architectures(kind):
    """The classes of a kind of model, those with a head first."""
    from transformers.models.auto import modeling_auto as auto

    order = ["CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "MASKED_LM", "SPEECH_SEQ_2_SEQ", "PRETRAINING", "CTC",
             "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "SEQUENCE_CLASSIFICATION"]
    names = [f"MODEL_FOR_{name}_MAPPING_NAMES" for name in order] + ["MODEL_MAPPING_NAMES"]
    found = []
    for name in names:
        value = getattr(auto, name, {}).get(kind)
        for value in [value] if isinstance(value, str) else value or []:
            if value not in found:
                found.append(value)
    import transformers

    return [getattr(transformers, name) for name in found if hasattr(transformers, name)]


def kinds():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def tiny_config(kind):
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind.split("+")[0]]
    config = config_class()
    values = shrunk(config.to_dict())
    values = merged(values, EXTRA.get(kind, {}))
    values.pop("transformers_version", None)
    if "use_cache" in values:
        values["use_cache"] = False
    return config_class.from_dict(values)


def build(kind):
    """A small model of a kind, in bfloat16."""
    config = tiny_config(kind)
    errors = []
    for architecture in architectures(kind.split("+")[0]):
        try:
            with torch.device("meta"):
                count = sum(p.numel() for p in architecture(config).parameters())
        except Exception as error:
            errors.append(f"{architecture.__name__}: {error!r:.200}")
            continue
        if count > 40e6:
            errors.append(f"{architecture.__name__}: {count / 1e6:.0f} M parameters")
            continue
        torch.manual_seed(0)
        try:
            model = architecture(config).eval()
        except Exception as error:
            errors.append(f"{architecture.__name__}: {error!r:.200}")
            continue
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() > 1 and weight.float().std() < 1e-4:
                    weight.normal_(0, 0.02)
        return model.to(torch.bfloat16)
    raise RuntimeError("; ".join(errors) or "no architecture")


def found(config, *keys):
    """The first value of a key in a config or the configs inside it."""
    values = config.to_dict()
    inner = [values, *(value for value in values.values() if isinstance(value, dict))]
    for key in keys:
        for one in inner:
            if isinstance(one.get(key), int):
                return one[key]
    return None


def inputs_of(model):
    """Candidates for the inputs of a model."""
    import inspect

    names = set(inspect.signature(model.forward).parameters)
    config = model.config
    ids = torch.arange(3, 19)[None]
    text = {"input_ids": ids}
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = ids
    size = found(config, "image_size") or 32
    size = size if isinstance(size, int) else 32
    channels = found(config, "num_channels", "in_channels", "in_chans") or 3
    torch.manual_seed(1)
    pixels = torch.randn(1, channels, size, size, dtype=torch.bfloat16)
    mel = found(config, "num_mel_bins", "input_feat_per_channel") or 80
    frames = 2 * (found(config, "max_source_positions") or 64)
    if "input_ids" in names:
        yield text
    if "pixel_values" in names:
        yield {"pixel_values": pixels}
        if "input_ids" in names:
            yield text | {"pixel_values": pixels}
    if "input_values" in names:
        yield {"input_values": torch.randn(1, 4000, dtype=torch.bfloat16)}
    if "input_features" in names:
        for shape in [(1, mel, frames), (1, 64, mel)]:
            features = torch.randn(shape, dtype=torch.bfloat16)
            extra = {"decoder_input_ids": ids} if "decoder_input_ids" in names else {}
            yield {"input_features": features} | extra
    if "inputs_embeds" in names:
        yield {"inputs_embeds": torch.randn(1, 16, found(config, "hidden_size", "d_model") or 256, dtype=torch.bfloat16)}


def first_floats(output):
    if torch.is_tensor(output):
        return output if output.is_floating_point() else None
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else []
    for value in values:
        tensor = first_floats(value)
        if tensor is not None:
            return tensor
    return None


def run(model, inputs):
    torch.manual_seed(2)
    with torch.no_grad():
        return first_floats(model(**inputs)).double()
