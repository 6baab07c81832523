"""llama.cpp's converter and `tcast cast` make the same GGUF of the folders of tiny random models: keys, shapes, types and bytes.

The converter is in the source distribution of llama-cpp-python, which `run.sh` unpacks. TCAST_LLAMA_CPP names the folder.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

import engines_load_gguf
from common import FIXTURES, Skip, folder, tcast
from engines_load_gguf import MODELS, MOE, ROUTED, SIZES, TOKENS_OF_GLM, with_added
from transformers_reads_gguf import saved

LINEAR = {
    "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 64, "layer_types": ["linear_attention", "full_attention"]}
SLIDING = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
MLA = engines_load_gguf.MLA | ROUTED
# The classes of transformers, and what the config has besides the sizes.
MORE = {
    "olmo3": ("Olmo3", SLIDING),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {"head_dim": 64, "eod_token_id": 3}),
    "minimax_m2": ("MiniMaxM2", {
        "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 32, "scoring_func": "sigmoid"}),
    "glm4_moe_lite": ("Glm4MoeLite", MLA),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 32}),
    "lfm2_moe": ("Lfm2Moe", MOE | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "qwen3_next": ("Qwen3Next", LINEAR | MOE | {"shared_expert_intermediate_size": 256}),
    "qwen3_5_text": ("Qwen3_5", LINEAR),
    "qwen3_5_moe_text": ("Qwen3_5Moe", LINEAR | MOE | {"shared_expert_intermediate_size": 256}),
}
# Fields of a config that transformers does not save, or that it names otherwise.
RAW = {
    "cohere2": {"rotary_pct": 0.5},
    "mimo_v2_flash": {
        "swa_head_dim": 8, "swa_v_head_dim": 6, "swa_num_attention_heads": 4, "swa_rope_theta": 10000.0,
        "topk_method": "noaux_tc"},
    # transformers leaves out this number where it equals the one of the other layers.
    "gemma4_moe": {"num_global_key_value_heads": None},
    # The converter knows these numbers only.
    "hunyuan_v1_dense": {"max_position_embeddings": 262144}}
# Models whose tokenizer has to be of SentencePiece. With another one, the converter gives Gemma 3 fewer rows than tokens.
PIECES = engines_load_gguf.PIECES | {"gemma3_text", "phi3"}
# Keys that the converter guesses from names.
GUESSED = {f"general.{name}" for name in ("name", "basename", "finetune", "version", "organization")}
# Models of the fixtures whose config is read as it is: transformers 5 fails for some, and adds fields to others that change
# the architecture.
READ_AS_IT_IS = {"nemotron_h", "kimi_linear", "mimo_v2_flash"}
# The converter asks for a setting of the tokenizer that transformers 5 drops.
NOT_CONVERTED = {"deepseek_v32"}
# Runs the converter with a pre-tokenizer for tokenizers that it does not know.
CONVERT = """
import json, pathlib, runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import ModelBase, TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
if sys.argv.pop(2) == "as it is":
    ModelBase.load_hparams = staticmethod(lambda folder, is_mistral_format: json.loads(pathlib.Path(folder, "config.json").read_text()))
sys.argv[:2] = [sys.argv[1] + "/convert_hf_to_gguf.py"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def contents(path):
    """The keys with types and values, and the tensors with shapes, types and bytes. ggml drops outer lengths of 1."""
    reader = gguf.GGUFReader(path)
    keys = {name: (field.types, field.contents()) for name, field in reader.fields.items() if "." in name}
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(length) for length in tensor.shape]
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        tensors[tensor.name] = (shape, tensor.tensor_type, tensor.data.tobytes())
    return keys, tensors


def difference(ours, theirs):
    """The first elements of two lists that differ, or both values."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return next((pair for pair in zip(ours, theirs) if pair[0] != pair[1]), (len(ours), len(theirs)))
    return ours, theirs


@folder
def a_model_of_transformers(path, name, converter):
    prefix, options = MORE[name] if name in MORE else MODELS[name][::2]
    is_text = name.endswith("_text")
    # transformers adds a token to tokenizers of Qwen that lack it.
    tokenizer = "gemma3" if name in PIECES else "qwen2" if name.startswith("qwen") else "llama-bpe"
    source = FIXTURES / "hf2gguf" / tokenizer
    tokens = json.loads((source / "config.json").read_text())["vocab_size"]
    sizes = SIZES | options | {"vocab_size": tokens, "dtype": "bfloat16"}
    saved(path / "m", f"{prefix}{'Text' if is_text else ''}Config", f"{prefix}ForCausalLM", **sizes)
    for file in source.glob("tokenizer*"):
        shutil.copy(file, path / "m")
    if name.startswith("glm"):
        with_added(path / "m" / "tokenizer.json", TOKENS_OF_GLM)
    the_files_are_equal(path, name, converter)


@folder
def a_model_of_the_fixtures(path, name, converter):
    source, shapes = FIXTURES / "hf2gguf" / name, json.loads((FIXTURES / "hf2gguf" / name / "tensors.json").read_text())
    (path / "m").mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer_config.json"):
        shutil.copy(source / file, path / "m")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token |= {"single_word": False, "lstrip": False, "rstrip": False}
    for part in ("pre_tokenizer", "decoder"):
        if tokenizer[part]["type"] == "ByteLevel":
            tokenizer[part] |= {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (path / "m" / "tokenizer.json").write_text(json.dumps(tokenizer))
    torch.manual_seed(1)
    tensors = {tensor: torch.randn(shape).to(torch.bfloat16) for tensor, shape in shapes.items()}
    save_file(tensors, path / "m" / "model.safetensors")
    the_files_are_equal(path, name, converter)


def the_files_are_equal(path, name, converter):
    if name in RAW:
        config = path / "m" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | RAW[name]))
    how = "as it is" if name in READ_AS_IT_IS else "with defaults"
    command = [
        sys.executable, "-c", CONVERT, converter, how, path / "m", "--outtype", "bf16", "--outfile", path / "theirs.gguf"]
    if name.startswith(("qwen3_next", "qwen3_5", "glm4_moe", "mimo")):
        command.append("--no-nextn")
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, f"the converter ends with {run.returncode}: {' '.join(run.stderr.splitlines()[-3:])}"
    pre = () if name in PIECES or name.startswith("gemma4") else ("--pre-tokenizer", "gpt-2")
    tcast(path / "m", "--to", "bf16", *pre, "-o", path / "ours.gguf", "-q")
    (their_keys, theirs), (our_keys, ours) = (contents(path / f"{which}.gguf") for which in ("theirs", "ours"))
    for keys in (their_keys, our_keys):
        for key in GUESSED:
            keys.pop(key, None)
    assert our_keys.keys() == their_keys.keys(), f"keys: {sorted(our_keys.keys() ^ their_keys.keys())}"
    different = [key for key, value in their_keys.items() if our_keys[key] != value]
    assert not different, [(key, *difference(our_keys[key][1], their_keys[key][1])) for key in different][:3]
    assert ours.keys() == theirs.keys(), f"tensors: {sorted(ours.keys() ^ theirs.keys())}"
    different = [(key, ours[key][:2], value[:2]) for key, value in theirs.items() if not is_equal(ours[key], value, key)]
    assert not different, different[:3]


def is_equal(ours, theirs, name):
    """True if two tensors are equal; but for the last bit of numbers that are `-exp` of others, which torch rounds otherwise."""
    if not name.endswith(".ssm_a"):
        return ours == theirs
    ours, theirs = [(*tensor[:2], np.frombuffer(tensor[2], np.float32)) for tensor in (ours, theirs)]
    return ours[:2] == theirs[:2] and np.allclose(ours[2], theirs[2], rtol=2e-7, atol=0)


def tests():
    converter = os.environ.get("TCAST_LLAMA_CPP")
    if converter is None or not Path(converter, "convert_hf_to_gguf.py").is_file():
        assert "TCAST_NO_SKIP" not in os.environ, "TCAST_LLAMA_CPP does not name the sources of llama.cpp"

        def missing():
            raise Skip("TCAST_LLAMA_CPP does not name the sources of llama.cpp")

        yield "llama.cpp's converter", missing
        return
    for name in MODELS | MORE:
        yield f"llama.cpp's converter: {name}", functools.partial(a_model_of_transformers, name, converter)
    for shapes in sorted((FIXTURES / "hf2gguf").glob("*_*/tensors.json")):
        name = shapes.parent.name
        if name not in NOT_CONVERTED:
            run = functools.partial(a_model_of_the_fixtures, name, converter)
            yield f"llama.cpp's converter: {name} of the fixtures", run
