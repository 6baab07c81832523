#!/usr/bin/env python3
"""Compares quantizing with a merged adapter with quantizing alone, and with peft's merge: time, processor time, and memory.

    python3 benches/lora.py [--python PYTHON] [--mib 4096] [--rank 16] [--runs 1] [--scheme int4] [--threads N] [--dir DIR]

The model is a Llama in bfloat16, the adapter changes all of its linear layers. With --python, which has peft (0.21.2), transformers and
torch installed, peft loads the model, merges the adapter and saves the result in bfloat16, on the CPU; this is timed within the
process, without imports, and without quantizing. The programs take turns. TCAST=/path/to/tcast names the program; otherwise it is
target/release/tcast. The folder needs three times the size of the model.
"""
import argparse, json, os, random, shutil, statistics, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCAST = os.environ.get("TCAST", os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast"))
HIDDEN, INNER, WORDS = 2048, 8192, 8192
LINEAR = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
LINEAR |= {"mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER)}
MERGE = """
import resource, sys, time
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, out, threads = sys.argv[1:]
if threads != "0":
    torch.set_num_threads(int(threads))
start, processor = time.perf_counter(), time.process_time()
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(out)
print("seconds", time.perf_counter() - start)
print("processor", time.process_time() - processor)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def write(path, tensors, kind, deviation):
    """A file of tensors of these shapes; normal values, repeated."""
    random.seed(1)
    pack = {"BF16": lambda value: struct.pack("<f", value)[2:], "F32": lambda value: struct.pack("<f", value)}[kind]
    block = b"".join(pack(random.gauss(0, deviation)) for _ in range(1 << 18))
    entries, end, width = {}, 0, {"BF16": 2, "F32": 4}[kind]
    for name, shape in tensors.items():
        size = width * shape[0] * (shape[1] if len(shape) > 1 else 1)
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries | {"__metadata__": {"format": "pt"}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        while end > 0:
            end -= out.write(block[:end])


def make(model, adapter, mib, rank):
    """A model with as many layers as fit, and an adapter for it."""
    layers = max((mib << 20) // sum(2 * rows * columns for rows, columns in LINEAR.values()), 1)
    modules = {f"model.layers.{layer}.{name}": shape for layer in range(layers) for name, shape in LINEAR.items()}
    tensors = {f"{name}.weight": shape for name, shape in modules.items()}
    norms = ("input_layernorm", "post_attention_layernorm")
    tensors |= {f"model.layers.{layer}.{name}.weight": [HIDDEN] for layer in range(layers) for name in norms}
    tensors |= {"model.embed_tokens.weight": [WORDS, HIDDEN], "model.norm.weight": [HIDDEN]}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": WORDS,
              "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    factors = {f"base_model.model.{name}.lora_A.weight": [rank, columns] for name, (_, columns) in modules.items()}
    factors |= {f"base_model.model.{name}.lora_B.weight": [rows, rank] for name, (rows, _) in modules.items()}
    described = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": "",
                 "target_modules": sorted({name.rsplit(".", 1)[1] for name in modules})}
    for folder, file, own, kind, deviation, name, values in (
        (model, "model.safetensors", tensors, "BF16", 0.02, "config.json", config),
        (adapter, "adapter_model.safetensors", factors, "F32", 0.005, "adapter_config.json", described),
    ):
        os.makedirs(folder)
        write(os.path.join(folder, file), own, kind, deviation)
        with open(os.path.join(folder, name), "w") as out:
            json.dump(values, out)


def timed(command):
    """Seconds, seconds of all processors, and peak memory in MiB: of the process, or those that it prints."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stdout, stderr = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)}\n{stderr[-2000:]}")
    printed = dict(line.split() for line in stdout.splitlines() if line.startswith(("seconds ", "processor ", "peak ")))
    found = {"seconds": seconds, "processor": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss} | printed
    return [float(found["seconds"]), float(found["processor"]), float(found["peak"]) / 1024]


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python")
    options.add_argument("--mib", type=int, default=4096)
    options.add_argument("--rank", type=int, default=16)
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--scheme", default="int4")
    options.add_argument("--threads", type=int, default=0)
    options.add_argument("--dir")
    options = options.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        model, adapter, out = (os.path.join(folder, name) for name in ("model", "adapter", "out"))
        make(model, adapter, options.mib, options.rank)
        quantize = [TCAST, "quantize", model, "--scheme", options.scheme, "-o", out, "-q", "--no-sync"]
        quantize += ["--threads", str(options.threads)] if options.threads else []
        commands = {"quantize": quantize, "merge and quantize": [*quantize, "--lora", adapter]}
        if options.python:
            commands["peft's merge"] = [options.python, "-c", MERGE, model, adapter, out, str(options.threads)]
        runs = {name: [] for name in commands}
        for _ in range(options.runs):
            for name, command in commands.items():
                shutil.rmtree(out, ignore_errors=True)
                runs[name].append(timed(command))
        for name, own in runs.items():
            seconds, processor, peak = (statistics.median(figures) for figures in zip(*own))
            print(f"{name}: {seconds:.1f} s, {processor:.1f} s of processors, {peak:.0f} MiB at most", flush=True)
    print("load of the machine at the end: {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()), f"on {os.cpu_count()} processors")


main()
