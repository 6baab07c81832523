"""transformers loads whole checkpoints that were converted, and computes with them what it should."""

import json
import os
import shutil

import safetensors
import safetensors.torch
import torch

from common import FIXTURES, tcast
from files import folder

os.environ["HF_HUB_OFFLINE"] = "1"
LLAMA = FIXTURES / "checkpoints" / "llama-tiny-bf16"


def load(path, **options):
    """The model, which must have got every weight from its files and nothing else."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True, **options)
    # The output head is that of the embeddings, and is in no file.
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not set(info[what]) - {"lm_head.weight"}, (what, info[what])
    return model


def logits(model):
    with torch.no_grad():
        return model.float()(torch.arange(1, 65)[None]).logits


def cast_by_torch(dtype, is_kept):
    """The model with its weights cast and widened again by torch."""
    model = load(LLAMA, dtype=torch.bfloat16)
    for name, weight in model.named_parameters():
        if not is_kept(name, weight):
            weight.data = weight.data.to(dtype).to(torch.float32)
    return model


def is_protected(name, weight):
    return weight.dim() < 2 or "norm" in name or "embed" in name or "lm_head" in name


@folder
def float16_is_loaded_as_such(path):
    """The type that config.json names is taken; the logits are those of the model before, within the type's precision."""
    tcast(LLAMA, "--to", "float16", "-o", path / "out")
    model = load(path / "out")
    assert model.dtype == torch.float16, model.dtype
    assert torch.equal(logits(model), logits(cast_by_torch(torch.float16, lambda name, weight: False)))
    before, after = logits(load(LLAMA)), logits(load(path / "out"))
    worst = (before - after).abs().max() / before.abs().max()
    assert worst < 2**-10, worst


@folder
def float8_with_norms_kept_is_loaded(path):
    tcast(LLAMA, "--to", "float8e4m3fn", "--protect", "-o", path / "out")
    model = load(path / "out")
    assert model.dtype == torch.bfloat16, model.dtype
    assert torch.equal(logits(model), logits(cast_by_torch(torch.float8_e4m3fn, is_protected)))
    before, after = logits(load(LLAMA)), logits(model)
    cosine = torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0)
    assert cosine > 0.99, cosine


@folder
def shards_in_another_division_are_the_same_model(path):
    wanted = logits(load(LLAMA))
    tcast(LLAMA, "--to", "bf16", "--max-shard-size", "300KB", "-o", path / "small")
    tcast(LLAMA, "--to", "bf16", "--max-shard-size", "1GB", "-o", path / "one")
    for part in (3, 1, 2):
        tcast(LLAMA, "--to", "bf16", "--max-shard-size", "300KB", "-o", path / "parts", "--part", f"{part}/3")
    tcast("--finish", path / "parts")
    for name in ("small", "one", "parts"):
        assert torch.equal(logits(load(path / name)), wanted), name


@folder
def shards_of_pytorch_are_the_same_model(path):
    """Two pytorch_model-*.bin with their index, as transformers wrote them before safetensors."""
    (path / "in").mkdir()
    tensors = list(load(LLAMA).state_dict().items())
    weight_map = {}
    for at, part in enumerate((tensors[:10], tensors[10:]), 1):
        name = f"pytorch_model-0000{at}-of-00002.bin"
        torch.save(dict(part), path / "in" / name)
        weight_map |= {tensor: name for tensor, _ in part}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (path / "in" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    shutil.copy(LLAMA / "config.json", path / "in")
    tcast(path / "in", "-o", path / "out")
    assert torch.equal(logits(load(path / "out")), logits(load(LLAMA)))


@folder
def what_transformers_saves_is_read_and_its_index_is_ours(path):
    """save_pretrained with small shards; a cast to the same type writes the same index, and to float32 its like."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(LLAMA)
    model.save_pretrained(path / "saved", max_shard_size="300KB")
    (path / "saved" / "tokenizer_config.json").write_text("{}")
    tcast(path / "saved", "--to", "bf16", "-o", path / "same")
    assert sorted(os.listdir(path / "same")) == sorted(os.listdir(path / "saved"))
    for name in os.listdir(path / "saved"):
        if not name.endswith(".safetensors"):
            assert (path / "same" / name).read_bytes() == (path / "saved" / name).read_bytes(), name
    tcast(path / "saved", "--to", "float32", "-o", path / "wide")
    text = (path / "wide" / "model.safetensors.index.json").read_text()
    index = json.loads(text)
    assert text == json.dumps(index, indent=2, sort_keys=True) + "\n"
    held = {}
    for shard in set(index["weight_map"].values()):
        with safetensors.safe_open(path / "wide" / shard, "pt") as file:
            held |= {name: (shard, file.get_tensor(name)) for name in file.keys()}
    assert {name: shard for name, (shard, _) in held.items()} == index["weight_map"]
    assert sum(tensor.nbytes for _, tensor in held.values()) == index["metadata"]["total_size"]
    assert sum(tensor.numel() for _, tensor in held.values()) == index["metadata"]["total_parameters"]
    assert load(path / "wide").dtype == torch.float32
    # The same model through the library of the format alone.
    merged = path / "merged.safetensors"
    tcast(path / "wide", "--to", "float32", "-o", merged)
    for name, tensor in safetensors.torch.load_file(merged).items():
        assert torch.equal(tensor, held[name][1]), name


def tests():
    for test in (
        float16_is_loaded_as_such,
        float8_with_norms_kept_is_loaded,
        shards_in_another_division_are_the_same_model,
        shards_of_pytorch_are_the_same_model,
        what_transformers_saves_is_read_and_its_index_is_ours,
    ):
        yield test.__name__.replace("_", " "), test
    torch.set_num_threads(1)  # and no threads before the workers are forked
