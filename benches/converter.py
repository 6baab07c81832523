#!/usr/bin/env python3
"""Compares one pass of tcast with llama.cpp's converter and quantizer, from a bf16 folder to a GGUF: time, memory, and bytes.

    python3 benches/converter.py --python PYTHON --sources LLAMA_CPP [--gib 4] [--scheme q4_k_m] [--dir DIR]

PYTHON has the libraries of `tests/interop/run.sh --converter`, with cyllama, which binds llama.cpp's quantizer. LLAMA_CPP is the folder
with `convert_hf_to_gguf.py`. Each step is a process of its own, timed as a whole, and runs once. TCAST=/path/to/tcast names the
program; otherwise it is target/release/tcast.
"""
import argparse, json, os, shutil, subprocess, tempfile, time
from pathlib import Path

from mlx import ROOT, TCAST, make

# The converter knows the hashes of whole vocabularies only, and this is a cut one.
CONVERT = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
sys.argv[:2] = [sys.argv[1] + "/convert_hf_to_gguf.py"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
QUANTIZE = """
import sys
from cyllama.llama import llama_cpp
params = llama_cpp.LlamaModelQuantizeParams()
params.ftype, params.nthread = int(sys.argv[3]), int(sys.argv[4])
llama_cpp.model_quantize(sys.argv[1], sys.argv[2], params)
"""
FTYPES = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18, "q8_0": 7}


def timed(name, command):
    """Runs a command; prints seconds of the clock and of the processor, and the most memory of it: its own, and with the pages
    of mapped files, which the system takes back when it needs them."""
    start, own, pid = time.perf_counter(), 0, 0
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=errors)
        while not pid:
            own = max(own, anonymous(process.pid))
            time.sleep(0.05)
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
        errors.seek(0)
        assert status == 0, errors.read()[-2000:]
    print(f"{name:<22} {time.perf_counter() - start:7.1f} s, {used.ru_utime:7.1f} s user, {used.ru_stime:6.1f} s system, "
          f"{own / 1024:6.0f} MiB of its own, {used.ru_maxrss / 1024:6.0f} MiB with mapped files", flush=True)


def anonymous(pid):
    """The memory of a process in KiB without pages of files; 0 after its end."""
    with open(f"/proc/{pid}/status") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--python", required=True)
    options.add_argument("--sources", required=True)
    options.add_argument("--gib", type=float, default=4)
    options.add_argument("--scheme", choices=FTYPES, default="q4_k_m")
    options.add_argument("--dir")
    options = options.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        folder = Path(folder)
        make(folder / "m", int(options.gib * 1024))
        for file in Path(ROOT, "fixtures/hf2gguf/llama-bpe").glob("tokenizer*"):
            shutil.copy(file, folder / "m")
        config = json.loads((folder / "m/config.json").read_text())
        (folder / "m/config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048, "rope_theta": 10000.0}))
        cores = len(os.sched_getaffinity(0))
        print(f"{(folder / 'm/model.safetensors').stat().st_size / 2**30:.2f} GiB, {cores} cores, load {os.getloadavg()[0]:.1f}")
        ours, plain, theirs = folder / "ours.gguf", folder / "bf16.gguf", folder / "theirs.gguf"
        timed("tcast", [TCAST, "quantize", folder / "m", "--layout", "gguf", "--scheme", options.scheme, "--pre-tokenizer", "llama-bpe",
                        "-q", "-o", ours])
        timed("convert_hf_to_gguf.py", [options.python, "-c", CONVERT, options.sources, folder / "m", "--outtype", "bf16", "--outfile", plain])
        timed("llama_model_quantize", [options.python, "-c", QUANTIZE, plain, theirs, FTYPES[options.scheme], cores])
        sizes = [path.stat().st_size for path in (ours, theirs, plain)]
        print(f"files of {sizes[0]:,} and {sizes[1]:,} bytes, and one of {sizes[2]:,} between")
        run = subprocess.run([TCAST, "diff", ours, theirs], capture_output=True, text=True)
        print("tcast diff:", *run.stdout.strip().splitlines()[-1:])
        print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
