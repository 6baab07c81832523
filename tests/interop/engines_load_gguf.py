"""transformers and llama.cpp load the GGUF files that `tcast quantize` and `tcast cast` make of tiny random language models.

transformers computes the logits of `tcast dequantize --names huggingface` of the same file, bit for bit. llama.cpp computes them
within a tolerance: it rounds activations to the type that its kernels multiply weights with, such as q8_0.
"""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch

from common import FIXTURES, Skip, folder, tcast
from transformers_reads_gguf import classes, saved

ARCH = gguf.MODEL_ARCH
TOKENS = list(range(270, 318))
# Rows of whole superblocks, so that K-quants fit.
SIZES = {
    "vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "dtype": "float32", "initializer_range": 0.06,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1}
MLA = {"q_lora_rank": 256, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
       "num_key_value_heads": 4}
UNTIED = {"tie_word_embeddings": False}
# The classes of transformers, gguf-py's architecture, and what the config has besides the sizes.
MODELS = {
    "llama": ("Llama", ARCH.LLAMA, UNTIED),
    "mistral": ("Mistral", ARCH.LLAMA, {"sliding_window": None}),
    "mixtral": ("Mixtral", ARCH.LLAMA, {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", ARCH.QWEN2, {"tie_word_embeddings": True}),
    "qwen2_moe": ("Qwen2Moe", ARCH.QWEN2MOE, MOE | {"shared_expert_intermediate_size": 512, "decoder_sparse_step": 1}),
    "qwen3": ("Qwen3", ARCH.QWEN3, UNTIED | {"head_dim": 128}),
    "qwen3_moe": ("Qwen3Moe", ARCH.QWEN3MOE, MOE | UNTIED | {"head_dim": 128, "norm_topk_prob": True}),
    "gemma2": ("Gemma2", ARCH.GEMMA2, {"head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": 32}),
    # llama.cpp needs a layer that attends to all tokens: the sixth here, the fourth of cohere2.
    "gemma3_text": ("Gemma3", ARCH.GEMMA3, {
        "head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": 32, "num_hidden_layers": 6}),
    "phi3": ("Phi3", ARCH.PHI3, {}),
    "starcoder2": ("Starcoder2", ARCH.STARCODER2, {"sliding_window": None}),
    "olmo2": ("Olmo2", ARCH.OLMO2, {}),
    "olmoe": ("Olmoe", ARCH.OLMOE, {
        "num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": None, "num_key_value_heads": 4}),
    "granite": ("Granite", ARCH.GRANITE, {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.125}),
    "granitemoe": ("GraniteMoe", ARCH.GRANITE_MOE, {
        "num_local_experts": 4, "num_experts_per_tok": 2, "embedding_multiplier": 3.0, "logits_scaling": 2.0,
        "residual_multiplier": 0.5, "attention_multiplier": 0.125}),
    "smollm3": ("SmolLM3", ARCH.SMOLLM3, {}),
    "cohere2": ("Cohere2", ARCH.COHERE2, {"sliding_window": 32, "logit_scale": 0.5, "num_hidden_layers": 4}),
    "exaone4": ("Exaone4", ARCH.EXAONE4, {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "seed_oss": ("SeedOss", ARCH.SEED_OSS, {"head_dim": 64}),
    "ernie4_5": ("Ernie4_5", ARCH.ERNIE4_5, {"head_dim": 64}),
    "nemotron": ("Nemotron", ARCH.NEMOTRON, {}),
    # llama.cpp's converter knows models with these numbers only.
    "phi": ("Phi", ARCH.PHI2, {"num_key_value_heads": 4, "intermediate_size": 1024}),
    "stablelm": ("StableLm", ARCH.STABLELM, {}),
    "glm4": ("Glm4", ARCH.GLM4, {"head_dim": 64}),
    "glm4_moe": ("Glm4Moe", ARCH.GLM4_MOE, ROUTED | {"head_dim": 64}),
    "gpt_oss": ("GptOss", ARCH.GPT_OSS, {
        "head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}),
    "deepseek_v2": ("DeepseekV2", ARCH.DEEPSEEK2, MLA | ROUTED | {"topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3", ARCH.DEEPSEEK2, MLA | ROUTED | {"rope_interleave": True}),
}
# transformers does not read the files of these, and leaves out the experts of gpt-oss.
NOT_IN_TRANSFORMERS = {
    "mixtral", "olmo2", "olmoe", "granite", "granitemoe", "smollm3", "cohere2", "exaone4", "seed_oss", "ernie4_5", "phi",
    "glm4", "glm4_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"}
# Models whose tokenizer has to be of SentencePiece.
PIECES = {"gemma2", "nemotron", "ernie4_5"}
# Tokens that llama.cpp's converter looks for in tokenizers of GLM.
TOKENS_OF_GLM = ("<|endoftext|>", "[gMASK]", "<|user|>", "<|observation|>")
FLOATS = ("f32", "f16", "bf16")
FEW = (*FLOATS, "q8_0", "q4_0", "q4_k_m")
SCHEMES = (*FEW, *"""q4_1 q5_0 q5_1 q2_k q3_k q3_k_s q3_k_m q3_k_l q4_k q4_k_s q5_k q5_k_s q5_k_m q6_k iq4_nl iq4_xs
    tq1_0 tq2_0 mxfp4 nvfp4""".split())
# Relative errors of the logits of llama.cpp; 0.06 for other schemes.
TOLERANCES = {"f32": 1e-5, "f16": 2e-3, "bf16": 0.015, "q8_0": 0.04, "q4_0": 0.04}


def donor(path, name, config):
    """Writes the metadata and the tokenizer that llama.cpp's converter gives a model."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[MODELS[name][1]])
    value = functools.partial(getattr, config)
    head_size = value("head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rank := value("kv_lora_rank", None):
        # All heads share the keys and values that llama.cpp caches.
        writer.add_head_count_kv(1)
        writer.add_key_length(rank + config.qk_rope_head_dim)
        writer.add_value_length(rank)
        writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
        writer.add_value_length_mla(config.v_head_dim)
        writer.add_rope_dimension_count(config.qk_rope_head_dim)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
        writer.add_rope_dimension_count(int(head_size * rope.get("partial_rotary_factor", 1)))
    if name in ("deepseek_v3", "glm4_moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    # The first attribute that a config has is written.
    for write, *attributes in (
        (writer.add_layer_norm_rms_eps, "rms_norm_eps"),
        (writer.add_layer_norm_eps, "layer_norm_eps", "norm_epsilon", "norm_eps"),
        (writer.add_expert_count, "n_routed_experts", "num_experts", "num_local_experts"),
        (writer.add_expert_used_count, "num_experts_per_tok"),
        (writer.add_expert_shared_count, "n_shared_experts"),
        (writer.add_expert_feed_forward_length, "moe_intermediate_size"),
        (writer.add_expert_shared_feed_forward_length, "shared_expert_intermediate_size"),
        (writer.add_expert_weights_scale, "routed_scaling_factor"),
        (writer.add_leading_dense_block_count, "first_k_dense_replace"),
        (writer.add_q_lora_rank, "q_lora_rank"),
        (writer.add_kv_lora_rank, "kv_lora_rank"),
        (writer.add_sliding_window, "sliding_window"),
        (writer.add_attn_logit_softcapping, "attn_logit_softcapping"),
        (writer.add_final_logit_softcapping, "final_logit_softcapping"),
        (writer.add_embedding_scale, "embedding_multiplier"),
        (writer.add_residual_scale, "residual_multiplier"),
        (writer.add_attention_scale, "attention_multiplier"),
        (writer.add_logit_scale, "logits_scaling", "logit_scale"),
        (writer.add_parallel_residual, "use_parallel_residual"),
    ):
        found = [got for got in (value(attribute, None) for attribute in attributes) if got is not None]
        if found:
            write(found[0])
    if name == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    # A tokenizer of bytes and letters.
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [chr(ord("A") + at) for at in range(config.vocab_size - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def loaded(folder):
    """The model in a folder of Hugging Face, which must have all of its tensors."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    check_loaded(info)
    return model.eval()


def check_loaded(info):
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0]


def with_added(file, texts):
    """Adds special tokens to a tokenizer."""
    tokenizer = json.loads(file.read_text())
    start = 1 + max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])])
    for at, text in enumerate(texts, start):
        tokenizer["added_tokens"].append({
            "id": at, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True})
    file.write_text(json.dumps(tokenizer))


def written(path, name, scheme, *options, is_alone=False):
    """Makes a model and its GGUF, and returns the config, the GGUF, and the model that `tcast dequantize` makes of it. The
    metadata is that of its folder alone, or of another GGUF."""
    prefix, _, choices = MODELS[name]
    tokens = {"vocab_size": 336} if is_alone else {}
    config, _ = saved(path / "source", *classes(prefix, name), **SIZES | choices | tokens)
    if is_alone:
        for file in (FIXTURES / "hf2gguf/llama-bpe").glob("tokenizer*"):
            shutil.copy(file, path / "source")
        if name.startswith("glm"):
            with_added(path / "source/tokenizer.json", TOKENS_OF_GLM)
        metadata = ("--pre-tokenizer", "llama-bpe")
    else:
        donor(path / "donor.gguf", name, config)
        metadata = ("--metadata-from", path / "donor.gguf")
    line = ("--to", scheme) if scheme in FLOATS else ("--scheme", scheme, "--layout", "gguf")
    command = "cast" if scheme in FLOATS else "quantize"
    out = path / ("m" if options else "m.gguf")
    line = (*line, *metadata, *options, "-o", out, "-q")
    tcast(path / "source", *line, command=command)
    out = min(out.iterdir()) if options else out
    line = ("--names", "huggingface", "--config", path / "source", "--to", "f32", "-o", path / "values", "-q")
    tcast(out, *line, command="dequantize")
    ours = loaded(path / "values")
    if scheme == "f32":
        assert torch.equal(logits(ours), logits(loaded(path / "source")))
    return config, out, ours


@folder
def transformers_loads_the_file(path, name, scheme):
    from transformers import AutoModelForCausalLM

    config, file, ours = written(path, name, scheme)
    options = {} if name == "mistral" else {"config": config}  # for transformers, the file is a Llama
    theirs, info = AutoModelForCausalLM.from_pretrained(
        path, gguf_file=file.name, dtype=torch.float32, output_loading_info=True, **options)
    check_loaded(info)
    assert torch.equal(logits(ours), logits(theirs.eval()))


def llama_cpp_logits(file, out):
    if importlib.util.find_spec("cyllama") is None:
        assert "TCAST_NO_SKIP" not in os.environ, "cyllama is not installed"
        raise Skip("cyllama, which binds llama.cpp, is not installed")
    command = [sys.executable, Path(__file__).with_name("llama_cpp_logits.py"), file, out, *map(str, TOKENS)]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", timeout=120)
    assert run.returncode == 0, f"llama.cpp ends with {run.returncode}: {' '.join(run.stderr.splitlines()[-4:])}"
    return np.load(out)


@folder
def llama_cpp_loads_the_file(path, name, scheme, *options):
    llama_cpp_computes(path, name, scheme, *options)


@folder
def llama_cpp_loads_the_file_of_a_folder(path, name, scheme):
    llama_cpp_computes(path, name, scheme, is_alone=True)


def llama_cpp_computes(path, name, scheme, *options, is_alone=False):
    """Compares the logits of llama.cpp with those of the values that `tcast dequantize` makes."""
    config, file, ours = written(path, name, scheme, *options, is_alone=is_alone)
    wanted, found = logits(ours).numpy(), llama_cpp_logits(file, path / "logits.npy")
    assert wanted.shape == found.shape and np.ptp(wanted) > 0.1, (wanted.shape, found.shape, np.ptp(wanted))
    errors = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    # llama.cpp computes GELU from a table of float16 numbers.
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    allowed = 1e-3 if activation.startswith("gelu") and scheme == "f32" else TOLERANCES.get(scheme, 0.06)
    # A rounded activation can choose another expert for a token, so single tokens can differ more.
    error = float(np.median(errors))
    if "TCAST_SHOW" in os.environ:
        print(f"{name} {scheme}: {error:.2g}, at most {errors.max():.2g}", flush=True)
    assert error <= allowed, f"the median of the relative errors is {error}, above {allowed}"


def tests():
    for name in MODELS:
        for scheme in SCHEMES if name == "llama" else FEW:
            if name not in NOT_IN_TRANSFORMERS:
                yield f"transformers: {name} in {scheme}", functools.partial(transformers_loads_the_file, name, scheme)
            yield f"llama.cpp: {name} in {scheme}", functools.partial(llama_cpp_loads_the_file, name, scheme)
        if name not in PIECES:
            run = functools.partial(llama_cpp_loads_the_file_of_a_folder, name, "q8_0")
            yield f"llama.cpp: {name} in q8_0, from its folder alone", run
    parts = ("--max-shard-size", "300KB")
    yield "llama.cpp: a model in parts", functools.partial(llama_cpp_loads_the_file, "llama", "q4_k_m", *parts)
    torch.set_num_threads(1)  # and no threads before the workers are forked
