#!/usr/bin/env python3
"""Compares tcast with llm-compressor and compressed-tensors on one folder: time, and the bytes of all tensors.

    python3 benches/llm_compressor.py [--python PYTHON] [--mib 512] [--schemes FP8_DYNAMIC NVFP4A16 ...] [--dir DIR]

PYTHON has llmcompressor (0.14.0.1) and compressed-tensors (0.20.0) installed; its `model_free_ptq` and `convert_checkpoint` are
timed within the process, without imports, on the CPU. tcast is timed as a whole process, and flushes nothing to the disk, as they
do. TCAST=/path/to/tcast names the program; otherwise it is target/release/tcast.
"""
import argparse, json, os, random, shutil, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCAST = os.environ.get("TCAST", os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast"))
QUANTIZE = """
import sys, time
from llmcompressor import model_free_ptq
start = time.perf_counter()
model_free_ptq(sys.argv[1], sys.argv[2], scheme=sys.argv[3], ignore=["lm_head", "re:.*embed_tokens"], max_workers=2, device="cpu")
print("seconds", time.perf_counter() - start)
"""
DEQUANTIZE = """
import sys, time
from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer, convert_checkpoint
start = time.perf_counter()
converter = CompressedTensorsDequantizer(sys.argv[1], ignore=["lm_head", "re:.*embed_tokens", "re:.*norm"])
convert_checkpoint(sys.argv[1], sys.argv[2], converter, max_workers=2)
print("seconds", time.perf_counter() - start)
"""


def make(folder, mib):
    """A Llama of 2048 columns with as many layers as fit, in two shards; normal values with deviation 0.02, repeated."""
    os.makedirs(folder)
    random.seed(1)
    block = b"".join(struct.pack("<f", random.gauss(0, 0.02))[2:] for _ in range(1 << 18))
    hidden, inner = 2048, 8192
    shapes = {f"self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
    shapes |= {"mlp.gate_proj.weight": [inner, hidden], "mlp.up_proj.weight": [inner, hidden], "mlp.down_proj.weight": [hidden, inner]}
    layers = max((mib << 20) // sum(2 * rows * columns for rows, columns in shapes.values()), 2)
    index = {}
    for shard in range(2):
        file, entries, end = f"model-{shard + 1:05}-of-00002.safetensors", {}, 0
        for layer in range(layers * shard // 2, layers * (shard + 1) // 2):
            for name, (rows, columns) in shapes.items():
                name = f"model.layers.{layer}.{name}"
                entries[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [end, end + 2 * rows * columns]}
                index[name], end = file, end + 2 * rows * columns
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(struct.pack("<Q", len(header)) + header)
            while end > 0:
                end -= out.write(block[:end])
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {}, "weight_map": index}, out)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32, "dtype": "bfloat16"}
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out)


def tensors(folder):
    """The type, shape and bytes of every tensor, by name."""
    found = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            start = file.tell()
            header.pop("__metadata__", None)
            for tensor, entry in header.items():
                first, end = entry["data_offsets"]
                file.seek(start + first)
                found[tensor] = (entry["dtype"], entry["shape"], file.read(end - first))
    return found


def timed(command):
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    inner = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    return float(inner[-1].split()[1]) if inner else time.perf_counter() - start


def report(job, ours, theirs, a, b):
    a, b = tensors(a), tensors(b)
    equal = sum(a[name] == b.get(name) for name in a)
    names = "the same names" if a.keys() == b.keys() else f"{len(a.keys() ^ b.keys())} names in one only"
    print(f"{job}: tcast {ours:.2f} s, library {theirs:.2f} s, ratio {theirs / ours:.1f}; {equal} of {len(a)} tensors equal, {names}", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--mib", type=int, default=512)
    options.add_argument("--schemes", nargs="+", default=["FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16"])
    options.add_argument("--dir")
    options = options.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        model = os.path.join(folder, "model")
        make(model, options.mib)
        tensors(model)  # into the page cache
        for scheme in options.schemes:
            ours, theirs = (os.path.join(folder, name) for name in ("ours", "theirs"))
            seconds = timed([TCAST, "quantize", model, "--scheme", scheme, "--layout", "compressed-tensors", "-o", ours, "-q", "--no-sync"])
            library = timed([options.python, "-c", QUANTIZE, model, theirs, scheme])
            report(f"quantize to {scheme}", seconds, library, ours, theirs)
            plain, plain_too = (os.path.join(folder, name) for name in ("plain", "plain_too"))
            seconds = timed([TCAST, "dequantize", ours, "-o", plain, "-q", "--no-sync"])
            library = timed([options.python, "-c", DEQUANTIZE, ours, plain_too])
            report(f"dequantize {scheme}", seconds, library, plain, plain_too)
            for path in (ours, theirs, plain, plain_too):
                shutil.rmtree(path)


main()
