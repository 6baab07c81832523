"""transformers, with compressed-tensors, loads what `tcast quantize` writes. Where only weights are quantized, the logits are
those of the checkpoint that `tcast dequantize` decodes; where activations are too, they are near those of the source."""

import os

import torch

from common import tcast
from files import folder
from transformers_dequantizes import tiny

os.environ["HF_HUB_OFFLINE"] = "1"

# Schemes and layouts, and whether the engine quantizes activations as well. transformers 5.23.0 expects zero points that are not
# packed, so it does not load int4-asym.
CASES = [
    ("fp8", "compressed-tensors", True),
    ("fp8-tensor", "compressed-tensors", True),
    ("fp8-block", "compressed-tensors", True),
    ("fp8-block", "huggingface", False),
    ("int8", "compressed-tensors", True),
    ("int4", "compressed-tensors", False),
    ("nvfp4", "compressed-tensors", False),
    ("mxfp4", "compressed-tensors", False),
    ("mxfp8", "compressed-tensors", True),
]


def logits(path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
    with torch.no_grad():
        return model(torch.arange(1, 17)[None]).logits.double()


@folder
def loads(path, scheme, layout, has_activations):
    tiny(path / "source")
    tcast(path / "source", "--scheme", scheme, "--layout", layout, "-o", path / "q", "-q", command="quantize")
    found = logits(path / "q")
    if has_activations:
        source = logits(path / "source")
        decibels = 10 * torch.log10((source**2).sum() / ((found - source) ** 2).sum())
        assert decibels > 12, f"{decibels:.1f} dB"
    else:
        tcast(path / "q", "-o", path / "plain", "-q", command="dequantize")
        assert torch.equal(found, logits(path / "plain"))


def tests():
    for scheme, layout, has_activations in CASES:
        test = lambda case=(scheme, layout, has_activations): loads(*case)
        yield f"{scheme} in {layout} loads", test
    torch.set_num_threads(1)  # and no threads before the workers are forked
