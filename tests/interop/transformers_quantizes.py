"""transformers, with compressed-tensors, loads what `tcast quantize` writes. Where only weights are quantized, the logits are
those of the checkpoint that `tcast dequantize` decodes; where activations are too, they are near those of the source."""

import json
import os
import re

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


# Tied weights that are not linear layers of their own, or are linear layers that share the weight of another one.
# `lm_head` of BLT, GPT's double heads and codec heads of Qwen are in the file, and the embedding is not.
OTHER_TIES = (
    "embed", "shared", "class_embed", "bbox_embed", "bbox_predictor", "pos", "patch", "relative", "tokens_embed",
    "ctc_head", "codec_head", "decoder.layers", "norm", "audio_model", "video_model", "audio_video_encoder", "bias",
)


def classes_with_ties():
    """The classes of transformers whose output head shares the weight of the embeddings, by their names."""
    import importlib
    import inspect
    import pkgutil

    import transformers

    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = importlib.import_module(f"transformers.models.{package.name}")
        for module in pkgutil.iter_modules(folder.__path__):
            if not module.name.startswith("modeling_"):
                continue
            try:
                module = importlib.import_module(f"{folder.__name__}.{module.name}")
            except ImportError:  # of a library that is not installed
                continue
            for name, kind in vars(module).items():
                is_model = inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedModel)
                ties = getattr(kind, "_tied_weights_keys", None)
                if is_model and kind.__module__ == module.__name__ and isinstance(ties, dict) and kind.config_class:
                    yield kind, [key.removesuffix(".weight") for key in ties if key.endswith(".weight")]


@folder
def heads_are_known(path):
    """Each tied head of each class is in the list of modules that are not quantized, or one of `OTHER_TIES`."""
    from safetensors.torch import save_file

    (path / "m").mkdir()
    save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(128, 128)}, path / "m/model.safetensors")
    ignored, unknown, checked = {}, [], 0
    for kind, heads in classes_with_ties():
        heads = [head for head in heads if not any(tie in head for tie in OTHER_TIES)]
        try:
            config = kind.config_class().to_json_string(use_diff=False)
        except Exception:  # the class has no default config
            continue
        if not heads:
            continue
        if config not in ignored:
            (path / "m/config.json").write_text(config)
            run = tcast(path / "m", "--scheme", "fp8", "-o", path / "q", "-q", "-f", code=None, command="quantize")
            if "store the weights transposed" in run.stderr:
                continue
            assert run.returncode == 0, run.stderr
            ignored[config] = json.loads((path / "q/config.json").read_text())["quantization_config"]["ignore"]
        patterns = ignored[config]
        for head in heads:
            checked += 1
            if not any(head == entry or entry.startswith("re:") and re.match(entry[3:], head) for entry in patterns):
                unknown.append(f"{kind.__name__}: {head}")
    assert checked > 100 and not unknown, (checked, unknown)


def small(kind, **options):
    """A model of two small layers whose config has these options."""
    torch.manual_seed(0)
    return kind(kind.config_class(**options))


def partly_loaded():
    """Models that transformers does not load as they are, and the schemes; with `dequantize=True`, it loads all of these."""
    import transformers as t

    layers = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256)
    yield "int4", small(t.FalconForCausalLM, **layers)
    yield "nvfp4", small(t.MambaForCausalLM, hidden_size=128, num_hidden_layers=2, vocab_size=256, state_size=16)
    yield "mxfp4", small(t.T5ForConditionalGeneration, d_model=128, d_kv=32, d_ff=256, num_layers=1, num_heads=4,
        vocab_size=256)
    yield "int4", small(t.RwkvForCausalLM, hidden_size=128, attention_hidden_size=128, num_hidden_layers=2, vocab_size=256)


def with_hidden_names():
    """Models with a head, layers or a router that transformers calls by names that are not in the file."""
    import transformers as t

    yield t.BioGptForCausalLM, t.BioGptConfig(max_position_embeddings=64, **text())
    yield t.Zamba2ForCausalLM, t.Zamba2Config(**text() | dict(num_hidden_layers=4, num_mem_blocks=1, n_mamba_heads=8,
        layers_block_type=["mamba", "hybrid"] * 2, mamba_headdim=32, mamba_ngroups=1, mamba_d_state=16, chunk_size=16,
        attention_hidden_size=256, attention_head_dim=64, use_shared_attention_adapter=False))
    yield t.PhimoeForCausalLM, t.PhimoeConfig(num_local_experts=4, num_key_value_heads=4, **text())


@folder
def nothing_is_missing(path, kind, config):
    torch.manual_seed(0)
    kind(config).to(torch.bfloat16).save_pretrained(path / "source")
    for scheme in ["fp8", "int4"]:
        tcast(path / "source", "--scheme", scheme, "-o", path / "q", "-q", "-f", command="quantize")
        model, info = kind.from_pretrained(path / "q", dtype="auto", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], f"{scheme}: {info}"
        with torch.no_grad():
            assert model(torch.arange(1, 17)[None]).logits.isfinite().all(), scheme


@folder
def obstacles_are_real(path, scheme, model):
    from transformers import CompressedTensorsConfig

    kind = type(model)
    model.to(torch.bfloat16).save_pretrained(path / "source")
    options = ["--group-size", "32"] if scheme == "int4" else []
    run = tcast(path / "source", "--scheme", scheme, *options, "-o", path / "q", command="quantize")
    assert "only with quantization_config=CompressedTensorsConfig(dequantize=True)" in run.stderr, run.stderr
    try:
        kind.from_pretrained(path / "q", dtype="auto")
    except AttributeError as error:
        assert "has no attribute" in str(error), error
    else:
        raise AssertionError("transformers loads it now: update its row in src/select/tried.txt")
    loaded = kind.from_pretrained(path / "q", dtype="auto", quantization_config=CompressedTensorsConfig(dequantize=True))
    source = model.state_dict()
    for name, value in loaded.state_dict().items():
        error = (value.double() - source[name].double()).norm() / (source[name].double().norm() + 1e-9)
        assert error < 0.25, f"{name} {error}"


@folder
def other_dtypes_need_bfloat16(path, scheme):
    from transformers import AutoModelForCausalLM

    tiny(path / "source")
    tcast(path / "source", "--to", "float32", "-o", path / "wide", "-q")
    layout = ["--layout", "compressed-tensors"]
    run = tcast(path / "wide", "--scheme", scheme, *layout, "-o", path / "q", command="quantize")
    assert "load the model with dtype=torch.bfloat16" in run.stderr, run.stderr
    try:
        logits(path / "q")
    except RuntimeError as error:
        assert "same dtype" in str(error), error
    else:
        raise AssertionError("transformers computes with it now: remove the note from src/commands/engine_notes.rs")
    model = AutoModelForCausalLM.from_pretrained(path / "q", dtype=torch.bfloat16).eval()
    with torch.no_grad():
        assert model(torch.arange(1, 17)[None]).logits.isfinite().all()


def tests():
    yield "heads of all classes are known", heads_are_known
    for kind, config in with_hidden_names():
        yield f"nothing of {kind.__name__} is missing", lambda case=(kind, config): nothing_is_missing(*case)
    for scheme, model in partly_loaded():
        yield f"{scheme} of {type(model).__name__} loads decoded", lambda case=(scheme, model): obstacles_are_real(*case)
    for scheme in ["nvfp4", "mxfp4", "mxfp6", "mxfp8"]:
        yield f"{scheme} of float32 computes in bfloat16", lambda scheme=scheme: other_dtypes_need_bfloat16(scheme)
    for kind, config in models():
        yield f"modules of {kind.__name__} are found", lambda case=(kind, config): modules_are_found(*case)
    yield "mxfp4 in gpt-oss loads", gpt_oss_loads
    for scheme, layout, has_activations in CASES:
        test = lambda case=(scheme, layout, has_activations): loads(*case)
        yield f"{scheme} in {layout} loads", test
    torch.set_num_threads(1)  # and no threads before the workers are forked
