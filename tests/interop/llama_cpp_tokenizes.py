"""llama.cpp finds the tokens of its own tests with the GGUF files that `tcast cast` makes of folders alone.

The sources of llama.cpp have vocabularies as GGUF files, texts, and their tokens. Each vocabulary becomes a folder of Hugging Face
with a tokenizer.json or a tokenizer.model, and a small model. TCAST_LLAMA_CPP names the folder of the sources.
"""

import functools
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file

from common import Skip, folder, tcast

SECTIONS = Path(__file__).parents[2] / "src/container/gguf/metadata/data/sections.json"
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
# Tokenizers that put a token in front of a text, which counts for the hash of the pre-tokenizer.
WITH_BOS = {"llama-bpe", "command-r", "deepseek-llm", "deepseek-coder"}
PIECES = ("llama-spm", "phi-3")
SEPARATOR = "\n__ggml_vocab_test__\n"
TOKENIZE = """
import json, sys
from cyllama.llama import llama_cpp
llama_cpp.llama_backend_init()
llama_cpp.ggml_backend_load_all()
options = llama_cpp.LlamaModelParams()
options.n_gpu_layers = 0
model = llama_cpp.LlamaModel(path_model=sys.argv[1], params=options, verbose=False)
vocabulary = model.get_vocab()
print("tokens", json.dumps([vocabulary.tokenize(text, False, False) for text in json.load(sys.stdin)]))
"""


def tokenizer_json(name, values):
    """The tokenizer.json of a vocabulary of BPE."""
    section = next(section for section in json.loads(SECTIONS.read_text()) if section["name"] == name)
    tokens, types = values("tokens"), values("token_type")
    added = [at for at, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    processor = None
    if name in WITH_BOS:
        bos = values("bos_token_id")
        single = [{"SpecialToken": {"id": tokens[bos], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        special = {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}}
        processor = {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}
    return {
        "added_tokens": [
            {"id": at, "content": tokens[at], "special": types[at] == CONTROL,
             "normalized": types[at] == USER_DEFINED, **flags} for at in added],
        "normalizer": section["normalizer"], "pre_tokenizer": section["pre_tokenizer"], "post_processor": processor,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE", "byte_fallback": False, "ignore_merges": name == "llama-bpe", "merges": values("merges"),
            "vocab": {token: at for at, token in enumerate(tokens) if types[at] != UNUSED}}}


def varint(number):
    text = b""
    while number > 127:
        text, number = text + bytes([number & 127 | 128]), number >> 7
    return text + bytes([number])


def tokenizer_model(values):
    """The tokenizer.model of a vocabulary of SentencePiece: a message of protobuf."""
    message = b""
    for token, score, kind in zip(values("tokens"), values("scores"), values("token_type")):
        text = token.encode()
        piece = b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        message += b"\x0a" + varint(len(piece)) + piece
    return message


@folder
def tokens_are_those_of_the_tests(path, name, sources):
    stored = sources / "models" / f"ggml-vocab-{name}.gguf"
    reader = gguf.GGUFReader(stored)

    def values(key):
        return reader.fields[f"tokenizer.ggml.{key}"].contents()

    count, model = len(values("tokens")), path / "m"
    model.mkdir()
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": count, "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
        "bos_token_id": values("bos_token_id"), "eos_token_id": values("eos_token_id")}
    (model / "config.json").write_text(json.dumps(config))
    if name in PIECES:
        (model / "tokenizer.model").write_bytes(tokenizer_model(values))
    else:
        (model / "tokenizer.json").write_text(json.dumps(tokenizer_json(name, values)))
    (model / "tokenizer_config.json").write_text("{}")
    layer = "model.layers.0."
    matrices = [f"self_attn.{which}_proj" for which in "qkvo"] + [f"mlp.{which}_proj" for which in ("gate", "up", "down")]
    tensors = {f"{layer}{matrix}.weight": torch.zeros(32, 32) for matrix in matrices}
    norms = (f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm")
    tensors |= {f"{norm}.weight": torch.ones(32) for norm in norms} | {"model.embed_tokens.weight": torch.zeros(count, 32)}
    save_file(tensors, model / "model.safetensors")
    # Without --pre-tokenizer: tcast knows it by its hash.
    tcast(model, "--to", "f16", "-o", path / "m.gguf", "-q")
    texts = stored.with_suffix(".gguf.inp").read_text().split(SEPARATOR)[:-1]
    wanted = [[int(token) for token in line.split()] for line in stored.with_suffix(".gguf.out").read_text().splitlines()]
    command = [sys.executable, "-c", TOKENIZE, path / "m.gguf"]
    run = subprocess.run(list(map(str, command)), input=json.dumps(texts), capture_output=True, text=True, timeout=300)
    line = next((line for line in run.stdout.splitlines() if line.startswith("tokens ")), None)
    assert line is not None, f"llama.cpp ends with {run.returncode}: {' '.join(run.stderr.splitlines()[-4:])}"
    found = json.loads(line.removeprefix("tokens "))
    assert len(wanted) == len(texts) > 40, (len(texts), len(wanted))
    different = [(text, ours, theirs) for text, ours, theirs in zip(texts, found, wanted) if ours != theirs]
    assert not different, (len(different), different[0])


def tests():
    sources = Path(os.environ.get("TCAST_LLAMA_CPP", ""))
    if not (sources / "convert_hf_to_gguf.py").is_file():
        assert "TCAST_NO_SKIP" not in os.environ, "TCAST_LLAMA_CPP does not name the sources of llama.cpp"

        def missing():
            raise Skip("TCAST_LLAMA_CPP does not name the sources of llama.cpp")

        yield "tokens of llama.cpp", missing
        return
    names = [section["name"] for section in json.loads(SECTIONS.read_text())]
    for name in (*names, *PIECES):
        if (sources / "models" / f"ggml-vocab-{name}.gguf.out").is_file():
            yield f"tokens of llama.cpp: {name}", functools.partial(tokens_are_those_of_the_tests, name, sources)
