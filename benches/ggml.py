#!/usr/bin/env python3
"""Compares the encoders of tcast with ggml's own quantizer, on one thread of one core: time, and the bytes of all blocks.

    python3 benches/ggml.py [--rounds 9] [--seconds 0.04] [--rows 64] [--cpu N] [--types Q8_0 Q4_K+imatrix ...] [--docs]

ggml is that of the crate llama-cpp-sys-2 (0.1.161: ggml 0.26.0), which cargo fetches. Its `ggml_quantize_chunk` is compiled twice, as
ggml compiles releases (-O3 -DNDEBUG): for x86-64, without fused multiplications, whose bytes tcast writes and which ggml's own build
files choose for this code; and with -march=native, which changes some codes. tcast runs with AVX2 and with the best instruction set.

All four programs read the same float32 (normal, deviation 0.02, bfloat16 precision) and stay in memory. Each round runs every
program for some time, and every other round in the opposite order. The script prints medians in nanoseconds per value, and medians of
the ratios of each round, with half of the distance between their quartiles. It counts the bytes that differ from the first build.
TYPE+imatrix is with an importance matrix. --docs writes the table of docs/performance.md. CC names the compiler.
"""
import argparse, json, os, random, statistics, struct, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CRATE, VERSION = "llama-cpp-sys-2", "0.1.161"
COLUMNS = 4096
TYPES = ["Q8_0", "Q4_0", "Q4_K", "Q4_K+imatrix", "Q6_K", "Q6_K+imatrix", "Q5_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]
# How many times as fast as the first build of ggml tcast is meant to be.
TARGETS = {"Q8_0": 3, "Q4_0": 3, "Q4_K": 2, "Q6_K": 2}
BUILDS = {"ggml x86-64": "-march=x86-64", "ggml native": "-march=native"}
SETS = {"tcast AVX2": "avx2", "tcast best": "best"}


def source(folder):
    """The folder of ggml's sources."""
    os.makedirs(os.path.join(folder, "src"))
    open(os.path.join(folder, "src", "lib.rs"), "w").close()
    with open(os.path.join(folder, "Cargo.toml"), "w") as file:
        file.write(f'[package]\nname = "ggml-source"\nversion = "0.0.0"\n[dependencies]\n{CRATE} = "={VERSION}"\n')
    found = subprocess.run(["cargo", "metadata", "--format-version", "1"], cwd=folder, check=True, capture_output=True)
    manifest = next(package["manifest_path"] for package in json.loads(found.stdout)["packages"] if package["name"] == CRATE)
    return os.path.join(os.path.dirname(manifest), "llama.cpp", "ggml")


def compile_ggml(ggml, flag, program):
    # CMake generates this header.
    folder = os.path.dirname(program)
    with open(os.path.join(folder, "ggml-version.h"), "w") as file:
        file.write('#define GGML_VERSION ""\n#define GGML_COMMIT ""\n')
    sources = [os.path.join(ROOT, "benches", "ggml.c"), *(os.path.join(ggml, "src", name) for name in ("ggml.c", "ggml-quants.c"))]
    # The linker drops all functions that quantizing does not need, and with them what these need of other files.
    flags = ["-O3", "-DNDEBUG", flag, "-std=gnu11", "-w", "-D_GNU_SOURCE", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections",
             "-I", folder, "-I", os.path.join(ggml, "include"), "-I", os.path.join(ggml, "src")]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *sources, "-o", program, "-lm"], check=True)


def build_tcast():
    command = ["cargo", "bench", "--quiet", "--no-default-features", "--bench", "ggml", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    built = (message for message in map(json.loads, lines) if message["reason"] == "compiler-artifact" and message["executable"])
    return next(message["executable"] for message in built if message["target"]["name"] == "ggml")


class Worker:
    """A program that encodes the same values again and again."""

    def __init__(self, command, prefix):
        self.prefix = prefix
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, name, seconds, out="-"):
        kind, _, importance = name.partition("+")
        self.process.stdin.write(f"{self.prefix}{kind} {1 if importance else 0} {seconds} {out}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args[0]} cannot encode {name}")
        return float(answer)


def write_values(path, count, number):
    with open(path, "wb") as file:
        file.write(b"".join(struct.pack("<f", number()) for _ in range(count)))


def weight():
    return struct.unpack("<f", b"\0\0" + struct.pack("<f", random.gauss(0, 0.02))[2:])[0]


def differing(one, other):
    with open(one, "rb") as a, open(other, "rb") as b:
        a, b = a.read(), b.read()
    return sum(x != y for x, y in zip(a, b)) + abs(len(a) - len(b)), len(a)


def measure(workers, name, args, folder):
    """The medians in ns per value, the ratios to the first build in each round, and the differing bytes, by program."""
    paths = {program: os.path.join(folder, program.replace(" ", "-")) for program in workers}
    for program, worker in workers.items():
        worker.run(name, 0, paths[program])
    first = next(iter(workers))
    differences = {program: differing(paths[first], path) for program, path in paths.items()}
    times = {program: [] for program in workers}
    for attempt in range(args.rounds):
        for program in sorted(workers, key=list(workers).index, reverse=attempt % 2 == 1):
            times[program].append(workers[program].run(name, args.seconds) / (args.rows * COLUMNS) * 1e9)
    return times, differences


def ratio(slower, faster):
    ratios = [one / other for one, other in zip(slower, faster)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return middle, (high - low) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.04, help="how long a program encodes in each round (default: 0.04)")
    parser.add_argument("--rows", type=int, default=64, help=f"rows of {COLUMNS} values (default: 64)")
    parser.add_argument("--cpu", type=int, help="the processor (default: the last one)")
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--docs", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ggml, programs = source(os.path.join(folder, "source")), {}
        for program, flag in BUILDS.items():
            programs[program] = os.path.join(folder, program.replace(" ", "") + ".program")
            compile_ggml(ggml, flag, programs[program])
        tcast = build_tcast()
        random.seed(1)
        values, importance = os.path.join(folder, "values"), os.path.join(folder, "importance")
        write_values(values, args.rows * COLUMNS, weight)
        write_values(importance, COLUMNS, lambda: random.gauss(0, 1) ** 2 + 0.01)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if args.cpu is None else args.cpu})
        files = [values, importance, str(COLUMNS)]
        workers = {program: Worker([path, *files], "") for program, path in programs.items()}
        workers |= {program: Worker([tcast, *files], f"{isa} ") for program, isa in SETS.items()}
        # Of the ratios that are printed: the programs.
        pairs = [("ggml x86-64", "tcast AVX2"), ("ggml x86-64", "tcast best"), ("ggml native", "tcast AVX2"), ("ggml native", "tcast best")]
        table = ["| type | " + " | ".join(workers) + " | " + " | ".join(f"{slower} / {faster}" for slower, faster in pairs) + " |"]
        table.append("|---" * (1 + len(workers) + len(pairs)) + "|")
        print("\n".join(table), flush=True)
        notes, missed, differing_types = [], [], []
        for name in args.types:
            times, differences = measure(workers, name, args, folder)
            cells = [name.replace("+imatrix", ", importance matrix")]
            cells += [f"{statistics.median(times[program]):.2f}" for program in workers]
            for slower, faster in pairs:
                middle, spread = ratio(times[slower], times[faster])
                cells.append(f"{middle:.1f} ± {spread:.1f}" if spread >= 0.05 else f"{middle:.1f}")
                if slower == pairs[0][0] and middle < TARGETS.get(name.partition("+")[0], 0):
                    missed.append(f"{name}: {faster} {middle:.2f}, the target is {TARGETS[name.partition('+')[0]]}")
            table.append("| " + " | ".join(cells) + " |")
            print(table[-1], flush=True)
            if any(differences[program][0] for program in SETS):
                differing_types.append(name)
            notes.append(f"{name}: " + ", ".join(f"{program} {count}" for program, (count, _) in list(differences.items())[1:])
                         + f" of {differences[next(iter(workers))][1]} bytes differ")
        print("\nbytes that differ from ggml x86-64\n" + "\n".join(notes))
        print("\ntargets missed\n" + "\n".join(missed) if missed else "\nno target is missed")
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()
    if args.docs:
        page = os.path.join(ROOT, "docs", "performance.md")
        with open(page) as file:
            before, rest = file.read().split("<!-- ggml -->\n")
        _, after = rest.split("<!-- end -->\n")
        with open(page, "w") as file:
            file.write(f"{before}<!-- ggml -->\n\n" + "\n".join(table) + f"\n\n<!-- end -->\n{after}")
    if differing_types:
        sys.exit(f"tcast wrote other bytes than ggml: {', '.join(differing_types)}")


if __name__ == "__main__":
    main()
