#!/usr/bin/env python3
"""What counting costs: whole casts by the program, and by a build that leaves the counts out, in turn.

    python3 benches/counts.py [--gib 2] [--rounds 7] [--dir DIR]

Each round runs both once on the same file, in turns, so that a slow moment of the machine meets both; what is printed
are medians and their ratio, with one thread and with all. Nothing is flushed to the disk, and the page cache is warm, so
that the work of the processor is as much of the time as it can be.
"""
import argparse, os, statistics, subprocess, tempfile

from speed import make_checkpoint, run

JOBS = ["float8e4m3fn", "bfloat16", "float16", "int8", "float4e2m1"]


def build(root, features):
    folder = os.path.join(root, "target", "counts", features or "counted")
    command = ["cargo", "build", "--release", "--quiet", "--target-dir", folder]
    subprocess.run(command + (["--features", features] if features else []), cwd=root, check=True)
    return os.path.join(folder, "release", "tcast")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dir", help="a folder for the files (default: a temporary one)")
    args = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    programs = {"counted": build(root, ""), "uncounted": build(root, "uncounted")}
    print("| job | threads | with counts, s | without, s | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        source, output = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        make_checkpoint(source, args.gib << 10, 16)
        for job in JOBS:
            for threads in (1, os.cpu_count()):
                seconds = {name: [] for name in programs}
                for attempt in range(args.rounds + 1):
                    # Each goes first in turn: the one that does pays for what the system still writes back.
                    for name, program in sorted(programs.items(), reverse=attempt % 2 == 0):
                        command = [program, "cast", source, "--to", job, "-o", output, "-q", "--no-sync", f"-j{threads}"]
                        taken, _ = run(command)
                        os.remove(output)
                        if attempt > 0:  # the first round warms the page cache
                            seconds[name].append(taken)
                counted, uncounted = (statistics.median(seconds[name]) for name in ("counted", "uncounted"))
                print(f"| float32 -> {job} | {threads} | {counted:.2f} | {uncounted:.2f} | {counted / uncounted:.2f} |", flush=True)


if __name__ == "__main__":
    main()
