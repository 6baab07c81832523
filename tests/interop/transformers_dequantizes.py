"""transformers, with compressed-tensors, loads and decodes quantized checkpoints that are made here; what `tcast dequantize`
makes of them has the same bytes, and the model the same logits."""

import json
import os

import safetensors.torch
import torch

from common import tcast
from files import folder

os.environ["HF_HUB_OFFLINE"] = "1"

HIDDEN, WIDE = 256, 384


def tiny(path, **options):
    """A Llama of random bfloat16 weights whose linear layers any block and group fits; its tensors and its config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=512, hidden_size=HIDDEN, intermediate_size=WIDE, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, dtype="bfloat16", **options)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(path)
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    return tensors, json.loads((path / "config.json").read_text())


def is_linear(name):
    return name.endswith("_proj.weight")


def save(path, tensors, config, block):
    """A checkpoint of two shards, parts of a weight in either."""
    path.mkdir()
    names = sorted(tensors)
    shards = {f"model-0000{at}-of-00002.safetensors": names[at - 1 :: 2] for at in (1, 2)}
    for shard, members in shards.items():
        safetensors.torch.save_file({name: tensors[name].contiguous() for name in members}, path / shard, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: shard for shard, members in shards.items() for name in members}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": block}))


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 65)[None]).logits


def compare(path, loaded):
    """Holds the folder that tcast decodes against a model that transformers has loaded from the quantized one."""
    from transformers import AutoModelForCausalLM

    tcast(path / "quantized", "-o", path / "values", command="dequantize")
    decoded = AutoModelForCausalLM.from_pretrained(path / "values")
    assert "quantization_config" not in json.loads((path / "values" / "config.json").read_text())
    ours, theirs = decoded.state_dict(), loaded.state_dict()
    compared = 0
    for name, weight in ours.items():
        assert weight.dtype == torch.bfloat16, (name, weight.dtype)
        other = theirs[name]
        assert torch.equal(weight.view(torch.int16), other.to(torch.bfloat16).contiguous().view(torch.int16)), name
        compared += weight.nbytes
    assert compared > 1 << 20
    assert torch.equal(logits(decoded), logits(loaded))


@folder
def block_fp8_is_what_transformers_decodes(path):
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    tensors, config = tiny(path / "source")
    quantized = {}
    for name, weight in tensors.items():
        if not is_linear(name):
            quantized[name] = weight
            continue
        rows, columns = weight.shape
        blocks = weight.float().reshape(rows // 128, 128, columns // 128, 128)
        scale = blocks.abs().amax((1, 3)) / 448
        codes = (blocks / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        quantized[name] = codes.reshape(rows, columns)
        quantized[name + "_scale_inv"] = scale
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
             "modules_to_not_convert": ["lm_head"]}
    save(path / "quantized", quantized, config, block)
    loaded = AutoModelForCausalLM.from_pretrained(
        path / "quantized", quantization_config=FineGrainedFP8Config(dequantize=True), dtype=torch.bfloat16)
    compare(path, loaded)


def compressed(path, form, weights, parts):
    """As compressed-tensors decodes what `parts` makes of each linear layer."""
    from transformers import AutoModelForCausalLM

    tensors, config = tiny(path / "source")
    quantized = {}
    for name, weight in tensors.items():
        if is_linear(name):
            stem = name.removesuffix(".weight")
            quantized |= {f"{stem}.{part}": tensor for part, tensor in parts(weight).items()}
        else:
            quantized[name] = weight
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None, "format": form}
    block = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
             "config_groups": {"group_0": group}}
    save(path / "quantized", quantized, config, block)
    loaded = AutoModelForCausalLM.from_pretrained(path / "quantized", dtype=torch.bfloat16)
    logits(loaded)  # decodes the weights
    compare(path, loaded)


def packed(values, bits):
    """Rows of unsigned codes in int32 words, low bits first."""
    rows, columns = values.shape
    words = values.to(torch.int64).reshape(rows, -1, 32 // bits) << torch.arange(0, 32, bits)
    return words.sum(-1).to(torch.int32)


@folder
def int4_groups_are_what_compressed_tensors_decodes(path):
    def parts(weight):
        rows, columns = weight.shape
        groups = weight.reshape(rows, columns // 128, 128)
        scale = (groups.abs().amax(-1) / 7.5).to(torch.bfloat16)
        codes = (groups / scale[..., None]).round().clamp(-8, 7).reshape(rows, columns) + 8
        return {"weight_packed": packed(codes, 4), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}

    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": False}
    compressed(path, "pack-quantized", weights, parts)


@folder
def float8_channels_are_what_compressed_tensors_decodes(path):
    def parts(weight):
        scale = (weight.abs().amax(-1, keepdim=True) / 448).to(torch.bfloat16)
        return {"weight": (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn), "weight_scale": scale}

    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    compressed(path, "float-quantized", weights, parts)


@folder
def nvfp4_is_what_compressed_tensors_decodes(path):
    def parts(weight):
        torch.manual_seed(weight.shape[0])
        rows, columns = weight.shape
        codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
        scale = (torch.rand(rows, columns // 16) * 400 + 1).to(torch.float8_e4m3fn)
        return {"weight_packed": codes, "weight_scale": scale, "weight_global_scale": torch.tensor([31234.5])}

    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True, "dynamic": False}
    compressed(path, "nvfp4-pack-quantized", weights, parts)


def tiny_gpt_oss(path):
    """A gpt-oss of random bfloat16 weights; its tensors."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(2)
    config = GptOssConfig(
        vocab_size=512, hidden_size=HIDDEN, intermediate_size=WIDE, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=128,
        dtype="bfloat16")
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return safetensors.torch.load_file(path / "model.safetensors")


@folder
def gpt_oss_is_what_transformers_decodes(path):
    from transformers import AutoModelForCausalLM, Mxfp4Config

    tensors = tiny_gpt_oss(path / "source")
    quantized = {}
    for name, weight in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, into, out = weight.shape
            quantized[name + "_blocks"] = torch.randint(0, 256, (experts, out, into // 32, 16), dtype=torch.uint8)
            quantized[name + "_scales"] = torch.randint(115, 123, (experts, out, into // 32), dtype=torch.uint8)
        else:
            quantized[name] = weight
    assert len(quantized) > len(tensors)
    block = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                 "model.embed_tokens", "lm_head"]}
    save(path / "quantized", quantized, json.loads((path / "source" / "config.json").read_text()), block)
    loaded = AutoModelForCausalLM.from_pretrained(
        path / "quantized", quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16)
    compare(path, loaded)


def tests():
    for test in (
        block_fp8_is_what_transformers_decodes,
        int4_groups_are_what_compressed_tensors_decodes,
        float8_channels_are_what_compressed_tensors_decodes,
        nvfp4_is_what_compressed_tensors_decodes,
        gpt_oss_is_what_transformers_decodes,
    ):
        yield test.__name__.replace("_", " "), test
    torch.set_num_threads(1)  # and no threads before the workers are forked
