"""transformers, with compressed-tensors, loads what `tcast quantize` writes. Where only weights are quantized, the logits are
those of the checkpoint that `tcast dequantize` decodes; where activations are too, they are near those of the source."""

import json
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


def text(**options):
    return dict(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, **options)


def vision(**options):
    return dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, image_size=28,
        patch_size=14, **options)


def models():
    """Models whose modules have other names than their files, and models whose head is not in the file."""
    import transformers as t

    yield t.Gemma3ForConditionalGeneration, t.Gemma3Config(text_config=text(num_key_value_heads=2, head_dim=32),
        vision_config=vision(), mm_tokens_per_image=4)
    yield t.LlavaForConditionalGeneration, t.LlavaConfig(text_config=t.LlamaConfig(**text()),
        vision_config=t.CLIPVisionConfig(**vision()))
    yield t.Mistral3ForConditionalGeneration, t.Mistral3Config(text_config=t.MistralConfig(**text(num_key_value_heads=2)),
        vision_config=t.PixtralVisionConfig(**vision(head_dim=16)))
    yield t.Gemma2ForCausalLM, t.Gemma2Config(**text(num_key_value_heads=2, head_dim=32))
    yield t.WhisperForConditionalGeneration, t.WhisperConfig(vocab_size=256, d_model=128, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, num_mel_bins=16,
        max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3)
    yield t.RobertaForMaskedLM, t.RobertaConfig(max_position_embeddings=64, **text())
    yield t.BertForMaskedLM, t.BertConfig(max_position_embeddings=64, **text())


@folder
def modules_are_found(path, kind, config):
    torch.manual_seed(0)
    kind(config).to(torch.bfloat16).save_pretrained(path / "source")
    saved = json.loads((path / "source/config.json").read_text())
    saved.pop("tie_word_embeddings", None)  # then the default of the class counts
    (path / "source/config.json").write_text(json.dumps(saved))
    source = kind.from_pretrained(path / "source", dtype="auto").state_dict()
    mixed = ["--scheme", "fp8", "--rule", "*layer*.0.*=int8", "--exclude", "*vision*", "--allow-unmatched"]
    for options in [["--scheme", "fp8"], ["--scheme", "int4", "--group-size", "32"], mixed]:
        tcast(path / "source", *options, "-o", path / "q", "-q", "-f", command="quantize")
        tcast(path / "q", "--include", "*.k*", "-o", path / "part", "-q", "-f", command="dequantize")
        for output in ["q", "part"]:
            model, info = kind.from_pretrained(path / output, dtype="auto", output_loading_info=True)
            assert not info["missing_keys"] and not info["unexpected_keys"], f"{output} {options}: {info}"
            loaded = model.state_dict()
            for name in loaded.keys() & source.keys():
                value, wanted = loaded[name].double(), source[name].double()
                if loaded[name].dtype != source[name].dtype:
                    value *= loaded[f"{name}_scale"].double()  # codes until the first run
                error = (value - wanted).norm() / (wanted.norm() + 1e-9)
                assert error < 0.25, f"{output} {options}: {name} {error}"


def tests():
    for kind, config in models():
        yield f"modules of {kind.__name__} are found", lambda case=(kind, config): modules_are_found(*case)
    yield "mxfp4 in gpt-oss loads", gpt_oss_loads
    for scheme, layout, has_activations in CASES:
        test = lambda case=(scheme, layout, has_activations): loads(*case)
        yield f"{scheme} in {layout} loads", test
    torch.set_num_threads(1)  # and no threads before the workers are forked
