#!/usr/bin/env python3
"""Whole runs side by side: tcast, the floor, and the usual Python script, on the same file in turn.

    python3 benches/speed.py [--gib 4] [--rounds 5] [--dir DIR] [--python PYTHON_WITH_TORCH]

The job is a float32 checkpoint to float8e4m3fn. The floor is what any converter must do: read the input once
(`cat in > /dev/null`) and write as many bytes as the output has (`dd` of zeros). Each round runs every contender
once, so that a slow moment of the machine meets all of them; what is printed are medians, and ratios to the floor.
The input is read once before, so the page cache is warm; outputs are removed after each run. With --sync the floor
and tcast flush to the disk, otherwise neither does.
"""
import argparse, json, os, statistics, struct, subprocess, sys, tempfile, time

TORCH = """
import sys, torch
from safetensors.torch import load_file, save_file
tensors = load_file(sys.argv[1])
save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, sys.argv[2])
"""


def make_checkpoint(path, gib, tensors):
    """float32 weights, normal with deviation 0.02, drawn once and repeated."""
    import array, random
    random.seed(1)
    block = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 20))).tobytes()
    blocks = max(1, gib * 256 // tensors)
    entries, offset = {}, 0
    for index in range(tensors):
        end = offset + blocks * len(block)
        entries[f"layers.{index}.weight"] = {"dtype": "F32", "shape": [blocks * 1024, 1024], "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(tensors * blocks):
            file.write(block)


def run(command, env=None):
    """Seconds, and the peak of anonymous memory in MiB as /proc tells it."""
    start = time.perf_counter()
    process = subprocess.Popen(command, shell=isinstance(command, str), env=env)
    peak = 0
    while process.poll() is None:
        try:
            with open(f"/proc/{process.pid}/status") as status:
                anonymous = next((line for line in status if line.startswith("RssAnon")), "RssAnon 0 kB")
            peak = max(peak, int(anonymous.split()[1]))
        except (OSError, ValueError):
            pass
        time.sleep(0.005)
    if process.returncode:
        sys.exit(f"failed: {command}")
    return time.perf_counter() - start, peak / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--dir", help="a folder for the files (default: a temporary one)")
    parser.add_argument("--python", help="a Python that has torch and safetensors; without it that contender is left out")
    parser.add_argument("--sync", action="store_true", help="flush outputs to the disk, tcast's and the floor's")
    args = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=root, check=True)
    tcast = os.path.join(root, "target", "release", "tcast")
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        source, output = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        make_checkpoint(source, args.gib, args.tensors)
        size = os.path.getsize(source)
        cast = [tcast, "cast", source, "--to", "float8e4m3fn", "-o", output, "-q"] + ([] if args.sync else ["--no-sync"])
        flush = " conv=fsync" if args.sync else ""
        contenders = {
            "floor": f"cat '{source}' > /dev/null && dd if=/dev/zero of='{output}' bs=1M count={size // 4 >> 20} status=none{flush}",
            "tcast": cast,
            "tcast -j1": cast + ["-j1"],
        }
        if args.python:
            contenders["torch script"] = [args.python, "-c", TORCH, source, output]
        results = {name: [] for name in contenders}
        for attempt in range(args.rounds + 1):
            for name, command in contenders.items():
                result = run(command)
                os.remove(output)
                if attempt > 0:  # the first round warms the page cache
                    results[name].append(result)
        floor = statistics.median(seconds for seconds, _ in results["floor"])
        print(f"{size / 2**30:.1f} GiB float32 -> float8e4m3fn, {args.tensors} tensors, {os.cpu_count()} cores, "
              f"{'synced' if args.sync else 'not synced'}, medians of {args.rounds}\n")
        print("| | seconds | ratio to the floor | GB/s of input | anonymous memory, MiB |")
        print("|---|---|---|---|---|")
        for name, runs in results.items():
            seconds, peak = statistics.median(seconds for seconds, _ in runs), max(peak for _, peak in runs)
            memory = "" if name == "floor" else f"{peak:.0f}"
            print(f"| {name} | {seconds:.2f} | {seconds / floor:.2f} | {size / seconds / 1e9:.1f} | {memory} |")


if __name__ == "__main__":
    main()
