#!/usr/bin/env python3
"""Compares tcast with mlx-lm on one folder: time, memory, and the bytes of all tensors.

    python3 benches/mlx.py [--python PYTHON] [--mib 512] [--runs 3] [--schemes affine4 mxfp4 ...] [--dir DIR]

PYTHON has mlx (0.32.4) and mlx-lm (0.32.2) installed. mlx-lm loads the model, quantizes it and saves it, on the CPU; this is timed
within the process, without imports. tcast is timed as a whole process, and flushes nothing to the disk, as mlx-lm does. The two take
turns, and the ratio is that of the medians. TCAST=/path/to/tcast names the program; otherwise it is target/release/tcast.
"""
import argparse, json, os, random, shutil, statistics, struct, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCAST = os.environ.get("TCAST", os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast"))
SCHEMES = {"affine4": ("affine", 4, 64), "affine8": ("affine", 8, 64), "affine3": ("affine", 3, 64), "mxfp4": ("mxfp4", 4, 32),
           "mxfp8": ("mxfp8", 8, 32), "nvfp4": ("nvfp4", 4, 16)}
QUANTIZE = """
import resource, sys, time
from pathlib import Path
import mlx.core as mx
from mlx_lm import utils
mx.set_default_device(mx.cpu)
folder, out, mode, bits, group = sys.argv[1:]
start = time.perf_counter()
model, config = utils.load_model(Path(folder), lazy=True)
model, config = utils.quantize_model(model, config, int(group), int(bits), mode=mode)
Path(out).mkdir()
utils.save_model(out, model, donate_model=True)
utils.save_config(config, config_path=Path(out) / "config.json")
print("seconds", time.perf_counter() - start)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make(folder, mib):
    """A Llama of 2048 columns with as many layers as fit, in one shard; normal values with deviation 0.02, repeated."""
    os.makedirs(folder)
    random.seed(1)
    block = b"".join(struct.pack("<f", random.gauss(0, 0.02))[2:] for _ in range(1 << 18))
    hidden, inner, words = 2048, 8192, 8192
    shapes = {f"self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
    shapes |= {"mlp.gate_proj.weight": [inner, hidden], "mlp.up_proj.weight": [inner, hidden], "mlp.down_proj.weight": [hidden, inner]}
    shapes |= {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden]}
    size = lambda shape: 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    layers = max((mib << 20) // sum(map(size, shapes.values())), 1)
    tensors = {f"model.layers.{layer}.{name}": shape for layer in range(layers) for name, shape in shapes.items()}
    tensors |= {"model.embed_tokens.weight": [words, hidden], "model.norm.weight": [hidden]}
    entries, end = {}, 0
    for name, shape in tensors.items():
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size(shape)]}
        end += size(shape)
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        while end > 0:
            end -= out.write(block[:end])
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
              "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": words,
              "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
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
    """Seconds and peak memory in MiB: of the process, or those that it prints."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stdout, stderr = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(command)}\n{stderr[-2000:]}")
    printed = dict(line.split() for line in stdout.splitlines() if line.startswith(("seconds ", "peak ")))
    return float(printed.get("seconds", seconds)), int(printed.get("peak", usage.ru_maxrss)) / 1024


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", default=sys.executable)
    options.add_argument("--mib", type=int, default=512)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    options.add_argument("--dir")
    options = options.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        model, ours, theirs = (os.path.join(folder, name) for name in ("model", "ours", "theirs"))
        make(model, options.mib)
        tensors(model)  # into the page cache
        for scheme in options.schemes:
            mode, bits, group = SCHEMES[scheme]
            runs = []
            for _ in range(options.runs):
                for path in (ours, theirs):
                    shutil.rmtree(path, ignore_errors=True)
                runs.append((
                    timed([TCAST, "quantize", model, "--layout", "mlx", "--scheme", scheme, "-o", ours, "-q", "--no-sync"]),
                    timed([options.python, "-c", QUANTIZE, model, theirs, mode, str(bits), str(group)]),
                ))
            seconds = [statistics.median(run[side][0] for run in runs) for side in (0, 1)]
            peaks = [max(run[side][1] for run in runs) for side in (0, 1)]
            a, b = tensors(ours), tensors(theirs)
            equal = sum(a[name] == b.get(name) for name in a)
            names = "the same names" if a.keys() == b.keys() else f"{len(a.keys() ^ b.keys())} names in one only"
            print(f"{scheme}: tcast {seconds[0]:.2f} s and {peaks[0]:.0f} MiB, mlx-lm {seconds[1]:.2f} s and {peaks[1]:.0f} MiB, "
                  f"ratio {seconds[1] / seconds[0]:.1f}; {equal} of {len(a)} tensors equal, {names}", flush=True)


if __name__ == "__main__":
    main()
