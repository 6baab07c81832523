#!/usr/bin/env python3
"""Compares ways to read an input and to write an output, with `io.c`, which computes nothing.

    python3 benches/io.py IN OUT [--threads 1 2] [--rounds 7] [--groups NAME...]

IN is any large file, OUT a file to be written on the file system to examine. The plain way is that of tcast: to read from a
mapping, and to write from a buffer that is used again into space that is reserved. Each round runs every way once, and every
other round in the opposite order; each row is the median of the ratios to the plain way of the same round, and the quartiles of
these. The page cache is warm, and nothing is flushed.
"""
import argparse, os, statistics, subprocess, tempfile

MIB = 1 << 20
# Ways by group: the plain one first; how to read, how to write, bytes of a piece, and how far pieces are shifted.
GROUPS = {
    "read": {
        "mapped": ("mapped", "none", MIB, 0),
        "MADV_POPULATE_READ for each piece": ("populated", "none", MIB, 0),
        "each piece mapped with MAP_POPULATE": ("piece-mapped", "none", MIB, 0),
        "MADV_HUGEPAGE": ("huge", "none", MIB, 0),
        "read into a reused buffer": ("copied", "none", MIB, 0),
        "read into a reused buffer, pieces of 256 KiB": ("copied", "none", MIB // 4, 0),
    },
    "write": {
        "plain": ("mapped", "plain", MIB, 4096),
        "space not reserved": ("mapped", "unreserved", MIB, 4096),
        "pieces that end with large pages": ("mapped", "plain", MIB, 0),
        "pieces of 256 KiB": ("mapped", "plain", MIB // 4, 4096),
        "pieces of 4 MiB": ("mapped", "plain", 4 * MIB, 4096),
        "buffer in huge pages": ("mapped", "huge-buffer", MIB, 4096),
        "through a mapping": ("mapped", "mapped", MIB, 4096),
        "through a mapping, MADV_POPULATE_WRITE": ("mapped", "populated", MIB, 4096),
        "io_uring, registered buffers": ("mapped", "ring", MIB, 4096),
        "vmsplice and splice": ("mapped", "spliced", MIB, 4096),
    },
    "both": {
        "mapped, plain": ("mapped", "plain", MIB, 4096),
        "MADV_POPULATE_READ": ("populated", "plain", MIB, 4096),
        "read into a reused buffer": ("copied", "plain", MIB, 4096),
        "read into a reused buffer, pieces of 256 KiB": ("copied", "plain", MIB // 4, 4096),
        "O_DIRECT": ("mapped", "direct", MIB, 4096),
        "io_uring and O_DIRECT": ("mapped", "direct-ring", MIB, 4096),
    },
    "copy": {
        "from the mapping": ("none", "source", MIB, 4096),
        "copy_file_range": ("none", "range", MIB, 4096),
    },
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    args = parser.parse_args()
    size = os.path.getsize(args.input)
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "io")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "io.c")
        subprocess.run(["cc", "-O3", "-march=native", source, "-o", program, "-lpthread"], check=True)

        def seconds(way, threads, size_of_output):
            read, write, piece, shift = way
            command = [program, args.input, args.output, size_of_output, threads, read, write, piece, shift]
            run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
            if run.returncode not in (0, 77):
                raise SystemExit(f"failed: {command}: {run.stderr}")
            return None if run.returncode else float(run.stdout)

        print("| way | threads | relative to the plain way | quartiles |\n|---|---|---|---|")
        for group in args.groups:
            ways, size_of_output = GROUPS[group], size if group == "copy" else size // 2
            plain, *others = ways
            for threads in args.threads:
                rounds = []
                for attempt in range(args.rounds + 1):
                    order = list(ways)[:: 1 if attempt % 2 else -1]
                    rounds.append({name: seconds(ways[name], threads, size_of_output) for name in order})
                rounds = rounds[1:]  # the first warms the page cache
                middle = statistics.median(times[plain] for times in rounds)
                print(f"| {group}: {plain} | {threads} | {middle:.3f} s | |", flush=True)
                for name in others:
                    ratios = [times[name] / times[plain] for times in rounds if times[name]]
                    if not ratios:
                        print(f"| {name} | {threads} | the system lacks it | |")
                        continue
                    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                    print(f"| {name} | {threads} | {middle:.2f} | {low:.2f} to {high:.2f} |", flush=True)
    if os.path.exists(args.output):
        os.remove(args.output)


if __name__ == "__main__":
    main()
