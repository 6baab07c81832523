"""transformers, with compressed-tensors, loads what `tcast quantize` writes. Where only weights are quantized, the logits are
those of the checkpoint that `tcast dequantize` decodes; where activations are too, they are near those of the source."""

import os

import torch

from common import tcast
from files import folder
from transformers_dequantizes import tiny, tiny_gpt_oss

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


@folder
def gpt_oss_loads(path):
    from transformers import AutoModelForCausalLM, Mxfp4Config

    tiny_gpt_oss(path / "source")
    tcast(path / "source", "--scheme", "mxfp4", "--layout", "gpt-oss", "-o", path / "q", "-q", command="quantize")
    tcast(path / "q", "-o", path / "plain", "-q", command="dequantize")
    loaded = AutoModelForCausalLM.from_pretrained(path / "q", quantization_config=Mxfp4Config(dequantize=True), dtype="auto")
    plain = AutoModelForCausalLM.from_pretrained(path / "plain", dtype="auto")
    experts = [name for name in plain.state_dict() if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]
    assert len(experts) == 4
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    source = AutoModelForCausalLM.from_pretrained(path / "source", dtype="auto").state_dict()
    for name in experts:
        before, after = source[name].double(), plain.state_dict()[name].double()
        decibels = 10 * torch.log10((before**2).sum() / ((after - before) ** 2).sum())
        assert decibels > 15, f"{name}: {decibels:.1f} dB"


def tests():
    yield "mxfp4 in gpt-oss loads", gpt_oss_loads
    for scheme, layout, has_activations in CASES:
        test = lambda case=(scheme, layout, has_activations): loads(*case)
        yield f"{scheme} in {layout} loads", test
    torch.set_num_threads(1)  # and no threads before the workers are forked
