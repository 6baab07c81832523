#!/usr/bin/env python3
"""Counts the instructions that the kernels take per value, with NEON and with AVX2, and checks that NEON's are vector code.

    python3 benches/instructions.py

Runs `benches/instructions.rs` under the emulators of both processors, which log each block of instructions that they execute. Each
job runs with two numbers of values, and the difference of the counts belongs to the difference of the values. A job that only makes
the values is subtracted. An emulator has no time, so this says how much work a loop is, not how long it takes.

On Debian: apt install qemu-user gcc-aarch64-linux-gnu; and: rustup target add aarch64-unknown-linux-gnu
"""
import collections, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARM = "aarch64-unknown-linux-gnu"
CASTS = [("float32", "float8e4m3fn"), ("float32", "bfloat16"), ("bfloat16", "float8e4m3fn"), ("bfloat16", "float4e2m1")]
QUANTIZED = [("fp8", "ct-fp8"), ("fp8-block", "hf-fp8"), ("nvfp4", "ct-nvfp4"), ("mxfp4", "ct-mxfp4"), ("int4", "ct-pack")]
# Values of the two runs, in rows of 4096: 128 rows share scales of fp8-block.
FEW, MANY = 1 << 19, 1 << 20
# A loop without vectors takes more instructions than this for any of the jobs.
SCALAR = 12.0


def build(target):
    environment = dict(os.environ, CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="aarch64-linux-gnu-gcc")
    command = ["cargo", "build", "--release", "--quiet", "--no-default-features", "--bench", "instructions", "--message-format=json"]
    command += ["--target", target] if target else []
    messages = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.findall(r'"executable":"([^"]+/instructions-[^"]+)"', messages)[-1]


def executed(emulator, program, arguments):
    """The number of instructions that a run executes."""
    with tempfile.NamedTemporaryFile("r") as log:
        command = [*emulator, "-d", "in_asm,exec,nochain", "-D", log.name, program, *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lengths, runs, start = {}, collections.Counter(), None
        for line in log:
            if line.startswith("IN:"):
                start, length = None, 0
            elif line.startswith("0x"):
                address = int(line.split(":")[0], 16)
                start, length = (address, 1) if start is None else (start, length + 1)
                lengths[start] = length
            elif line.startswith("Trace"):
                runs[int(re.search(r"\[[0-9a-f]+/([0-9a-f]+)/", line).group(1), 16)] += 1
        return sum(lengths.get(start, 0) * count for start, count in runs.items())


def per_value(emulator, program, job, first, second):
    few, many = (executed(emulator, program, [job, first, second, count]) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def main():
    machines = [(["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], build(ARM)), (["qemu-x86_64", "-cpu", "max"], build(None))]
    lines, slow = ["| job | NEON | AVX2 |", "|---|---|---|"], []
    def row(name, counts):
        lines.append(f"| {name} | {counts[0]:.2f} | {counts[1]:.2f} |")
        print(lines[-1], flush=True)
        if counts[0] > SCALAR:
            slow.append(name)
    print(*lines, sep="\n")
    # Making the values takes part in every job, so a job that does nothing else is subtracted.
    made = {source: [per_value(*machine, "none", source, source) for machine in machines] for source in ("float32", "bfloat16")}
    for source, target in CASTS:
        counts = [per_value(*machine, "cast", source, target) for machine in machines]
        row(f"{source} -> {target}", [count - base for count, base in zip(counts, made[source])])
    for scheme, layout in QUANTIZED:
        encoding = [per_value(*machine, "encode", scheme, layout) for machine in machines]
        decoding = [per_value(*machine, "decode", scheme, layout) for machine in machines]
        row(f"bfloat16 -> {scheme}", [count - base for count, base in zip(encoding, made["bfloat16"])])
        row(f"{scheme} -> bfloat16", [count - base for count, base in zip(decoding, encoding)])
    if slow:
        sys.exit(f"more than {SCALAR} instructions per value, so not vector code: {', '.join(slow)}")


if __name__ == "__main__":
    main()
