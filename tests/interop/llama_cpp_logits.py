"""Writes the logits that llama.cpp computes for a GGUF model: `llama_cpp_logits.py MODEL.gguf OUT.npy TOKEN...`.

A process of its own, because llama.cpp ends the process where it finds an error in a model.
"""

import sys

import numpy as np
from cyllama.llama import llama_cpp

FLOAT32 = 0


class Model(llama_cpp.LlamaModel):
    # cyllama 0.2.18 reads this attribute in `get_logits_ith`, and lacks it.
    n_vocab = property(lambda model: model.get_vocab().n_vocab)


def main(path, out, *tokens):
    llama_cpp.llama_backend_init()
    llama_cpp.ggml_backend_load_all()
    options = llama_cpp.LlamaModelParams()
    options.n_gpu_layers = 0
    model = Model(path_model=path, params=options, verbose=False)
    options = llama_cpp.LlamaContextParams()
    options.n_ctx = options.n_batch = options.n_ubatch = len(tokens)
    options.n_threads = options.n_threads_batch = 1
    options.type_k = options.type_v = FLOAT32
    options.flash_attn_type = 0
    context = llama_cpp.LlamaContext(model, options, verbose=False)
    batch = llama_cpp.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1, verbose=False)
    batch.set_batch([int(token) for token in tokens], 0, True)
    context.decode(batch)
    np.save(out, np.array([context.get_logits_ith(at) for at in range(len(tokens))], np.float32))


if __name__ == "__main__":
    main(*sys.argv[1:])
