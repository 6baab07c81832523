#!/usr/bin/env python3
"""Compares whole runs of tcast with the limit of the machine and with the usual Python scripts, on the same files.

    python3 benches/speed.py [--gib 4] [--rounds 5] [--jobs NAME...] [--dir DIR] [--python PYTHON] [--sync] [--isa ISA] [--docs]

The limit of a job is `limit.c`, with the same number of threads: it reads every byte of the input from a mapping, writes constant
bytes to an output whose space is reserved first, and computes nothing. Each job runs with two threads and with one. Each round runs
every program once, and every other round in the opposite order, so that a slow moment of the machine affects all of them. The
script prints medians of the time, and ratios to the first program of a job; in parentheses the ratio of the times of all
processors, which other work on the machine hardly changes; and how many seconds of the processors tcast takes more than that, in
the program and in the system. It reads the inputs once before the first round, so the page cache
is warm, except in the jobs "cold and flushed", "shards, cold and flushed" and "slow disk", and removes each output just before the
next run. Then it fills and frees as much memory as a run may need, because a virtual machine gets memory slowly from its host.
With --sync, tcast flushes to the disk; the limit never does. The job "slow disk" needs root and cgroups of version 1.

The job "start-up" compares the start of tcast, and the cast of a file of 1 KiB, with `start.c`, which maps the input, writes
constant bytes to a new file and renames it. It runs each a hundred times per round.

The job "PyTorch -> safetensors" changes the format alone, and also runs cp, and torch with --python.

The job "libraries" needs --python PYTHON. It converts float32 to float8e4m3fn with tcast and with those of torch, numpy with
ml_dtypes, and onnxruntime that PYTHON has installed. A library takes its time within the process, after the imports: reading,
converting and writing, and flushing with --sync, as tcast does. tcast and the limit are timed as whole processes. The start of
each program is measured on its own: tcast --version, the imports of a library, and the limit with an empty output.

--gib is the size of the float32 input; inputs of other types and quantized weights have the same number of elements.
--isa avx2 measures what processors without AVX-512 do.
--docs writes the tables of the jobs that ran: that of "libraries" to the README, that of all others to docs/performance.md.
"""
import argparse, mmap, os, re, shlex, shutil, statistics, struct, subprocess, sys, tempfile, threading, time

from slow_disk import lacks, slow_disk

CASTS = [
    ("float32", "float8e4m3fn"), ("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float8e4m3fn"),
    ("float16", "float32"), ("float8e4m3fn", "bfloat16"), ("float64", "float32"), ("float32", "int8"),
    ("float32", "float4e2m1"), ("bfloat16", "float4e2m1"),
]
# Layouts of quantized weights, by the name of the job.
DECODES = ["block FP8 -> bfloat16", "NVFP4 -> bfloat16", "W4A16 -> bfloat16", "GPTQ -> bfloat16", "gpt-oss -> bfloat16"]
# Types of ggml: how a block is made of a scale from 0 to 1, a float16 number, and of random bytes; and the number of its values.
BLOCKS = {
    "Q8_0": (lambda scale, codes: scale + codes(32), 32),
    "Q4_0": (lambda scale, codes: scale + codes(16), 32),
    "Q4_K": (lambda scale, codes: scale + scale + codes(140), 256),
    "Q6_K": (lambda scale, codes: codes(208) + scale, 256),
    "MXFP4": (lambda scale, codes: bytes([100 + codes(1)[0] % 24]) + codes(16), 32),
}
NUMBERS = {"Q8_0": 8, "Q4_0": 2, "Q4_K": 12, "Q6_K": 14, "MXFP4": 39}
GGUFS = [f"GGUF {name} -> bfloat16" for name in BLOCKS]
# Schemes of `tcast quantize`, and a layout if it is not the default: comfyui rotates int8.
ENCODES = ["bfloat16 -> fp8", "bfloat16 -> fp8-block", "bfloat16 -> int4", "bfloat16 -> nvfp4", "bfloat16 -> mxfp4",
           "bfloat16 -> int8 in comfyui"]
# The same of values of which every second group is zeros.
ZEROS = [f"zeros -> {scheme}" for scheme in ("fp8", "int4", "nvfp4", "mxfp4", "affine4 in mlx", "nvfp4 in mlx")]
# Quantized weights whose codes move to another layout.
MOVES = ["block FP8 -> compressed-tensors", "NVFP4 -> modelopt"]
OTHERS = ["PyTorch -> safetensors", "bitcast", "inspect --stats", "diff", "tiny tensors", "a million tensors", "cold and flushed", "shards, cold and flushed",
          "slow disk", "start-up", "libraries"]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCAST = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast")

# The imports of a library, and its work.
LIBRARIES = {
    "torch": ("""
import torch
from safetensors.torch import load_file, save_file
""", """
tensors = load_file(sys.argv[1])
save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, sys.argv[2])
"""),
    "numpy + ml_dtypes": ("""
import numpy, ml_dtypes
from safetensors.numpy import load_file, save_file
""", """
tensors = load_file(sys.argv[1])
save_file({name: tensor.astype(ml_dtypes.float8_e4m3fn).view(numpy.uint8) for name, tensor in tensors.items()}, sys.argv[2])
"""),
    "ONNX Runtime": ("""
import numpy, onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import load_file, save_file
""", """
node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FN)
x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FN, [None, None])
model = helper.make_model(helper.make_graph([node], "cast", [x], [y]), opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
def cast(tensor):
    return session.run_with_ort_values(["y"], {"x": onnxruntime.OrtValue.ortvalue_from_numpy(tensor)})[0].numpy().view(numpy.uint8)
save_file({name: cast(tensor) for name, tensor in load_file(sys.argv[1]).items()}, sys.argv[2])
"""),
}
# The same for a checkpoint of PyTorch that becomes safetensors.
LOADING = ("""
import torch
from safetensors.torch import save_file
""", """
save_file(torch.load(sys.argv[1]), sys.argv[2])
""")
FLUSH = """
with open(sys.argv[2], "rb") as output:
    os.fsync(output.fileno())
"""


class Library(list):
    """A command that prints the seconds of its work, which begins after the imports."""

    def __init__(self, python, program, source, output, flushes):
        imports, work = program
        script = f"import os, sys, time\n{imports}\nbegin = time.perf_counter()\n{work}{FLUSH if flushes else ''}\nprint(time.perf_counter() - begin)"
        super().__init__([python, "-c", script, source, output])
        self.start = [python, "-c", imports]

    def is_installed(self):
        return subprocess.run(self.start, stderr=subprocess.DEVNULL).returncode == 0


def table_of_libraries(gib, seconds, starts):
    """The README's table: the time of the job, how many times that of tcast, and the start of the program."""
    names = {"limit": "reading the input and writing constant bytes, 2 threads", "tcast": "tcast, 2 threads", "tcast -j1": "tcast, 1 thread"}
    rows = [f"| {names.get(name, name)} | {time:.2f} s | {time / seconds['tcast']:.1f} | {starts[name]:.3f} s |"
            for name, time in sorted(seconds.items(), key=lambda entry: entry[1])]
    return "\n".join([f"| {CASTS[0][0]} -> {CASTS[0][1]}, {gib} GiB | job | relative to tcast | start |", "|---|---|---|---|", *rows])


def make_checkpoint(path, mib, tensors):
    """float32 weights, normal with deviation 0.02, drawn once and repeated."""
    import array, json, random
    random.seed(1)
    block = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 18))).tobytes()
    size = (mib << 20) // tensors // 4 * 4
    shape = [1, size // 4] if size % (4 << 12) else [size >> 14, 1 << 12]
    entries = {
        f"layers.{index}.weight": {"dtype": "F32", "shape": shape, "data_offsets": [index * size, (index + 1) * size]}
        for index in range(tensors)
    }
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        left = size * tensors
        while left > 0:
            left -= file.write(block[:left])


def make_pytorch(path, mib, tensors):
    """The zip archive of torch.save, with the weights of `make_checkpoint`."""
    import random, zipfile
    if os.path.exists(path):
        return
    random.seed(1)
    block = struct.pack(f"<{1 << 18}f", *(random.gauss(0, 0.02) for _ in range(1 << 18)))
    rows, columns = (mib << 20) // tensors >> 14, 1 << 12
    text = lambda text: b"X" + struct.pack("<I", len(text)) + text.encode()
    number = lambda number: b"J" + struct.pack("<i", number)
    pickle = b"\x80\x02}("
    for index in range(tensors):
        storage = text("storage") + b"ctorch\nFloatStorage\n" + text(str(index)) + text("cpu") + number(rows * columns)
        shape = number(rows) + number(columns) + b"\x86" + number(columns) + b"K\x01\x86"
        pickle += text(f"layers.{index}.weight") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + storage + b"tQK\x00" + shape
        pickle += b"\x89ccollections\nOrderedDict\n)RtR"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle + b"u.")
        archive.writestr("model/version", "3\n")
        for index in range(tensors):
            with archive.open(f"model/data/{index}", "w", force_zip64=True) as member:
                for _ in range(rows * columns >> 18):
                    member.write(block)


def make_quantized(folder, job, values):
    """A folder of quantized weights with `values` values; codes and scales are ordinary and repeat."""
    import json, random
    if os.path.exists(folder):
        return
    os.makedirs(folder)
    random.seed(1)
    codes = random.randbytes(1 << 20)
    scales = [0.001 + random.random() / 100 for _ in range(1 << 14)]
    floats = {"F32": struct.pack(f"<{len(scales)}f", *scales), "F16": struct.pack(f"<{len(scales)}e", *scales),
              "F8_E4M3": bytes(0x20 + code % 0x40 for code in codes[:1 << 16]), "U8": bytes(100 + code % 40 for code in codes[:1 << 16])}
    floats["BF16"] = b"".join(struct.pack("<f", scale)[2:] for scale in scales)
    rows, columns = 4096, 8192
    group = {"num_bits": 4, "group_size": 128, "strategy": "group", "type": "int", "symmetric": True}
    nvfp4 = {"num_bits": 4, "group_size": 16, "strategy": "tensor_group", "type": "float"}
    compressed = lambda form, weights: {"quant_method": "compressed-tensors", "format": form, "config_groups": {
        "group_0": {"targets": ["Linear"], "format": form, "weights": weights}}}
    shape = ("I64", [2], struct.pack("<2q", rows, columns))
    config, parts = {
        "block": ({"quant_method": "fp8", "weight_block_size": [128, 128]},
                  {".weight": ("F8_E4M3", [rows, columns], bytes(code & 0xBF for code in codes)),
                   ".weight_scale_inv": ("F32", [rows // 128, columns // 128])}),
        "NVFP4": (compressed("nvfp4-pack-quantized", nvfp4),
                  {".weight_packed": ("U8", [rows, columns // 2], codes), ".weight_scale": ("F8_E4M3", [rows, columns // 16]),
                   ".weight_global_scale": ("F32", [1], struct.pack("<f", 1234.5))}),
        "W4A16": (compressed("pack-quantized", group),
                  {".weight_packed": ("I32", [rows, columns // 8], codes), ".weight_scale": ("BF16", [rows, columns // 128]),
                   ".weight_shape": shape}),
        "GPTQ": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
                 {".qweight": ("I32", [columns // 8, rows], codes), ".scales": ("F16", [columns // 128, rows]),
                  ".qzeros": ("I32", [columns // 128, rows // 8], codes)}),
        "gpt-oss": ({"quant_method": "mxfp4"},
                    {"_blocks": ("U8", [4, columns // 4, rows // 32, 16], codes), "_scales": ("U8", [4, columns // 4, rows // 32])}),
    }[job.split(" ")[0]]
    widths = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
    entries, contents, end = {}, [], 0
    for index in range(values // (rows * columns)):
        for part, (dtype, shape_of_part, *content) in parts.items():
            length = widths[dtype]
            for side in shape_of_part:
                length *= side
            entries[f"layers.{index}{part}"] = {"dtype": dtype, "shape": shape_of_part, "data_offsets": [end, end + length]}
            contents.append((content[0] if content else floats[dtype], length))
            end += length
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for content, length in contents:
            while length > 0:
                length -= file.write(content[:length])
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"torch_dtype": "bfloat16", "quantization_config": config}, file)


def make_gguf(path, name, values):
    """A GGUF file of weights of a type, with `values` values; codes and scales are ordinary and repeat."""
    import random
    if os.path.exists(path):
        return
    random.seed(1)
    block, elements = BLOCKS[name]
    rows, columns = 4096, 8192
    content = b"".join(block(struct.pack("<e", 0.001 + random.random() / 100), random.randbytes) for _ in range(1 << 13))
    repeats = rows * columns // elements >> 13
    text = lambda text: struct.pack("<Q", len(text)) + text.encode()
    tensors = range(values // (rows * columns))
    header = b"GGUF" + struct.pack("<I2Q", 3, len(tensors), 1) + text("general.architecture") + struct.pack("<I", 8) + text("flux")
    for index in tensors:
        place = struct.pack("<I2QIQ", 2, columns, rows, NUMBERS[name], index * repeats * len(content))
        header += text(f"layers.{index}.weight") + place
    with open(path, "wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for _ in tensors:
            for _ in range(repeats):
                file.write(content)


def fill_and_free(size):
    """Makes the host of a virtual machine provide so much memory. It takes back what is free for two seconds."""
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(size // mmap.PAGESIZE)


def drop_caches():
    """Frees the memory that files of earlier jobs take, if this is root on Linux: otherwise writing has to wait for it."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
    except OSError:
        pass


def run(command, is_watched=True):
    """Seconds, seconds of all processors in the program and in the system, and the peak of anonymous memory in MiB, from /proc.
    Watching the memory would delay a short program."""
    is_library = isinstance(command, Library)
    start = time.perf_counter()
    process = subprocess.Popen(command, shell=isinstance(command, str), stdout=subprocess.PIPE if is_library else subprocess.DEVNULL)
    peak, is_over = 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.wait(0.005):
            try:
                with open(f"/proc/{process.pid}/status") as status:
                    anonymous = next((line for line in status if line.startswith("RssAnon")), "RssAnon 0 kB")
                peak = max(peak, int(anonymous.split()[1]))
            except (OSError, ValueError):
                pass

    watcher = threading.Thread(target=watch)
    if is_watched:
        watcher.start()
    (_, status, usage), seconds = os.wait4(process.pid, 0), time.perf_counter() - start
    process.returncode = code = os.waitstatus_to_exitcode(status)
    if is_watched:
        is_over.set()
        watcher.join()
    if code:
        sys.exit(f"failed: {command}")
    if is_library:
        with process.stdout as printed:
            seconds = float(printed.read())
    return seconds, usage.ru_utime, usage.ru_stime, peak / 1024


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder, self.rows, self.table_of_libraries = args, folder, [], None
        self.output = os.path.join(folder, "out.safetensors")
        self.sync = [] if args.sync else ["--no-sync"]

    def source(self, dtype, tensors=16, mib=None):
        path = os.path.join(self.folder, f"{dtype}-{tensors}.safetensors")
        if not os.path.exists(path):
            if dtype == "float32":
                make_checkpoint(path, mib or self.args.gib << 10, tensors)
            else:
                cast = [TCAST, "cast", self.source("float32", tensors), "--to", dtype, "-o", path, "-q", "--all"]
                subprocess.run(cast, check=True)
        return path

    def measure(self, contenders, before=lambda: None, are_short=False):
        """Runs all in turn, each after `before`; the results of the rounds by the name of the contender. Short programs need
        little memory and many rounds."""
        results = {name: [] for name in contenders}
        for attempt in range(self.args.rounds * (100 if are_short else 1) + 1):
            for name in list(contenders)[:: 1 if attempt % 2 else -1]:
                before()
                self.remove_output()
                if not are_short:
                    fill_and_free(self.args.gib << 31)
                result = run(contenders[name], is_watched=not are_short)
                if attempt > 0:  # the first round warms the page cache
                    results[name].append(result)
        self.remove_output()
        return results

    def compare(self, job, contenders, before=lambda: None, are_short=False):
        """Compares the others with the first contender."""
        results = self.measure(contenders, before, are_short)
        seconds, program, system = ({name: statistics.median(run[at] for run in runs) for name, runs in results.items()} for at in (0, 1, 2))
        peaks = {name: max(run[3] for run in runs) for name, runs in results.items()}
        first, *others = contenders
        processors = lambda name: program[name] + system[name]
        ratio = lambda name: f"{name} {seconds[name] / seconds[first]:.2f} ({processors(name) / processors(first):.2f})"
        tcast = [name for name in others if name.startswith("tcast")][-1]
        more = f"{program[tcast] - program[first]:+.3f}, {system[tcast] - system[first]:+.3f}"
        memory = max(peak for name, peak in peaks.items() if name.startswith("tcast"))
        row = [job, f"{first} {seconds[first]:.{4 if are_short else 3}f} s", ", ".join(map(ratio, others)), more, "-" if are_short else f"{memory:.0f}"]
        self.rows.append(f"| {' | '.join(row)} |")
        print(self.rows[-1], flush=True)

    def remove_output(self):
        if os.path.isdir(self.output):
            shutil.rmtree(self.output)
        elif os.path.exists(self.output):
            os.remove(self.output)

    def cast(self, source, dtype):
        return [TCAST, "cast", source, "--to", dtype, "-o", self.output, "-q", "--all"] + self.sync

    def against_limit(self, job, source, command, reads_twice=False):
        """Compares a command with the limit, with two threads and with one."""
        subprocess.run(command, check=True)
        size = os.path.getsize(self.output)
        os.remove(self.output)
        for threads in (1, 2):
            limit = self.limit(source, size, threads)
            contenders = {"limit": limit, "tcast": [*command, f"-j{threads}"]}
            if reads_twice:
                contenders["limit after a first reading"] = f"{shlex.join(self.limit(source, 0, threads))} && {shlex.join(limit)}"
            self.compare(f"{job}, {threads} thread{'s' * (threads > 1)}", contenders)

    def libraries(self):
        """Compares the work of tcast and of the libraries that are installed, and the start of each program, in the same rounds."""
        source, command = self.source(CASTS[0][0]), self.cast(self.source(CASTS[0][0]), CASTS[0][1])
        libraries = {name: Library(self.args.python, program, source, self.output, self.args.sync) for name, program in LIBRARIES.items()}
        libraries = {name: library for name, library in libraries.items() if library.is_installed()}
        size = os.path.getsize(source) // 4
        work = {"limit": self.limit(source, size, 2), "tcast": [*command, "-j2"], "tcast -j1": [*command, "-j1"], **libraries}
        version, empty = [TCAST, "--version"], self.limit(self.small(), 0, 2)
        starts = {"limit": empty, "tcast": version, "tcast -j1": version, **{name: library.start for name, library in libraries.items()}}
        results = self.measure({**{(name, "work"): command for name, command in work.items()}, **{(name, "start"): command for name, command in starts.items()}})
        median = lambda part: {name: statistics.median(run[0] for run in runs) for (name, of), runs in results.items() if of == part}
        self.table_of_libraries = table_of_libraries(self.args.gib, median("work"), median("start"))
        print(f"\n{self.table_of_libraries}\n", flush=True)

    def small(self):
        """A file of one small tensor."""
        path = os.path.join(self.folder, "small.safetensors")
        with open(path, "wb") as file:
            header = b'{"x":{"dtype":"F32","shape":[16,16],"data_offsets":[0,1024]}}   '
            file.write(struct.pack("<Q", len(header)) + header + bytes(1024))
        return path

    def limit(self, source, size, threads):
        """A command that reads every byte of a file and writes `size` bytes, with `threads` threads."""
        return [self.compiled("limit"), source, self.output, str(size), str(threads)]

    def compiled(self, name):
        """A program of this folder in C."""
        program = os.path.join(self.folder, name)
        if not os.path.exists(program):
            source = os.path.join(ROOT, "benches", f"{name}.c")
            subprocess.run(["cc", "-O3", "-march=native", source, "-o", program, "-lpthread"], check=True)
        return program

    def starts(self):
        """Compares the start of tcast, and the cast of a small file, with the least that such a program in C does."""
        start, small = self.compiled("start"), self.small()
        self.compare("start-up, --version", {"C": [start], "tcast": [TCAST, "--version"]}, are_short=True)
        cast = self.cast(small, "float8e4m3fn")
        subprocess.run(cast, check=True)
        size = os.path.getsize(self.output)
        contenders = {"C": [start, small, self.output, str(size)], "tcast": cast}
        self.compare("start-up, 1 KiB of float32 -> float8e4m3fn", contenders, are_short=True)

    def quantized(self, job):
        """The quantized weights of a job."""
        folder = os.path.join(self.folder, job.split(" ")[0].lower())
        make_quantized(folder, job, self.args.gib << 28)
        return os.path.join(folder, "model.safetensors")

    def move(self, job):
        """The limit against tcast, with one thread and with two."""
        source, layout = self.quantized(job), job.split(" -> ")[1]
        self.against_limit(job, source, [TCAST, "quantize", source, "--layout", layout, "-o", self.output, "-q"] + self.sync)

    def decode(self, job):
        """The limit against tcast, with one thread and with two."""
        if job in GGUFS:
            name = job.split(" ")[1]
            source = os.path.join(self.folder, f"{name}.gguf")
            make_gguf(source, name, self.args.gib << 28)
        else:
            source = self.quantized(job)
        self.against_limit(job, source, [TCAST, "dequantize", source, "--to", "bfloat16", "-o", self.output, "-q"] + self.sync)

    def quantize(self, job, source):
        """The command that quantizes to the scheme and the layout of a job, and the scheme."""
        scheme, *layout = job.split(" -> ")[1].split(" in ")
        options = ["--scheme", scheme, *(["--layout", *layout] if layout else [])]
        return [TCAST, "quantize", source, *options, "-o", self.output, "-q"] + self.sync, scheme

    def zeros(self, job):
        """Compares values of which every second group of 128 is zeros with the same values without zeros."""
        source, zeros = self.source("bfloat16"), os.path.join(self.folder, "zeros.safetensors")
        if not os.path.exists(zeros):
            with open(source, "rb") as file, open(zeros, "wb") as out:
                header = file.read(8)
                out.write(header + file.read(struct.unpack("<Q", header)[0]))
                while block := file.read(1 << 20):
                    out.write(b"".join(block[at:at + 256] + bytes(256) for at in range(0, len(block), 512)))
        for threads in (1, 2):
            commands = [[*self.quantize(job, path)[0], f"-j{threads}"] for path in (source, zeros)]
            name = f"{job}, {threads} thread{'s' * (threads > 1)}"
            self.compare(name, dict(zip(("tcast, no zeros", "tcast, zeros"), commands)))

    def encode(self, job):
        """The limit against tcast, with one thread and with two."""
        source = self.source("bfloat16")
        command, scheme = self.quantize(job, source)
        # All scales of nvfp4 depend on the largest magnitude of the tensor.
        self.against_limit(job, source, command, reads_twice=scheme == "nvfp4")

    def read(self, job, sources, command):
        """Compares a command that writes nothing with reading alone."""
        for threads in (1, 2):
            reading = " && ".join(shlex.join(self.limit(source, 0, threads)) for source in sources)
            name = f"{job}, {threads} thread{'s' * (threads > 1)}"
            self.compare(name, {"reading": reading, "tcast": [*command, f"-j{threads}"]})

    def flushed(self, job, sources, command):
        """Compares a command that reads files from the disk and writes half as many bytes to it with reading and writing."""
        size = sum(map(os.path.getsize, sources)) // 2
        file = self.output + ".dd"

        def forget():
            if os.path.exists(file):
                os.remove(file)
            for source in sources:
                with open(source, "rb") as opened:
                    os.fsync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        write = f"dd if=/dev/zero of={shlex.quote(file)} bs=1M count={size} iflag=count_bytes conv=fsync status=none"
        read = " && ".join(shlex.join(self.limit(source, 0, 2)) for source in sources)
        tcast = [argument for argument in command if argument != "--no-sync"]
        self.compare(job, {"reading, then writing": f"{read} && {write}", "reading": read, "writing": write, "tcast": tcast}, forget)
        forget()

    def pytorch(self, job):
        """Compares the limit with cp, with tcast, and with torch if there is one."""
        source = os.path.join(self.folder, "model.pt")
        make_pytorch(source, self.args.gib << 10, 16)
        torch = [Library(self.args.python, LOADING, source, self.output, self.args.sync)] if self.args.python else []
        others = {"torch": library for library in torch if library.is_installed()}
        for threads in (1, 2):
            command = [TCAST, "cast", source, "-o", self.output, "-q", f"-j{threads}", *self.sync]
            contenders = {"limit": self.limit(source, os.path.getsize(source), threads), "cp": ["cp", source, self.output]}
            self.compare(f"{job}, {threads} thread{'s' * (threads > 1)}", {**contenders, **others, "tcast": command})

    def many(self, job, count, what):
        """Compares many tensors with one of the same size."""
        many, giant = (self.cast(self.source("float32", tensors, 1000), "float8e4m3fn") for tensors in (count, 1))
        for threads in (1, 2):
            name = f"{job}, {threads} thread{'s' * (threads > 1)}"
            self.compare(name, {"tcast, one giant": [*giant, f"-j{threads}"], f"tcast, {what}": [*many, f"-j{threads}"]})

    def run(self, job):
        if job in DECODES + GGUFS:
            self.decode(job)
        elif job in MOVES:
            self.move(job)
        elif job in ZEROS:
            self.zeros(job)
        elif job in ENCODES:
            self.encode(job)
        elif job.startswith("PyTorch"):
            self.pytorch(job)
        elif "->" in job:
            source, target = job.split(" -> ")
            path = self.source(source)
            self.against_limit(job, path, self.cast(path, target))
        elif job == "bitcast":
            source = self.source("float32")
            self.against_limit(job, source, [TCAST, "bitcast", source, "--to", "int32", "-o", self.output, "-q"] + self.sync)
        elif job == "inspect --stats":
            source = self.source("float32")
            self.read(job, [source], [TCAST, "inspect", source, "--stats", "-q"])
        elif job == "diff":
            source, copy = self.source("float32"), os.path.join(self.folder, "copy.safetensors")
            shutil.copyfile(source, copy)
            self.read(job, [source, copy], [TCAST, "diff", source, copy, "-q"])
            os.remove(copy)
        elif job == "tiny tensors":
            self.many(job, 100_000, "100,000 of 10 KB")
        elif job == "a million tensors":
            self.many(job, 1_000_000, "1,000,000 of 1 KB")
        elif job == "cold and flushed":
            source = self.source("float32")
            self.flushed(job, [source], self.cast(source, "bfloat16"))
        elif job == "shards, cold and flushed":
            folder, self.output = os.path.join(self.folder, "shards"), os.path.join(self.folder, "out")
            if not os.path.exists(folder):
                split = [TCAST, "cast", self.source("float32"), "--to", "float32", "-o", folder, "-q", "--all"]
                subprocess.run([*split, "--max-shard-size", f"{self.args.gib * 1024 // 8}MiB"], check=True)
            sources = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".safetensors")]
            self.flushed(job, sources, self.cast(folder, "bfloat16"))
            self.output = os.path.join(self.folder, "out.safetensors")
        elif job == "slow disk":
            if why := lacks():
                print(f"skipped: {job}: {why}", file=sys.stderr)
                return
            with slow_disk(self.folder, 1 << 30, 200 << 20, 100 << 20) as (place, begin):
                source, self.output = os.path.join(place, "in.safetensors"), os.path.join(place, "out.safetensors")
                make_checkpoint(source, 256, 16)
                begin()
                self.flushed(f"{job}: 200 MiB/s to read, 100 MiB/s to write", [source], self.cast(source, "bfloat16"))
            self.output = os.path.join(self.folder, "out.safetensors")
        elif job == "libraries":
            if self.args.python:
                self.libraries()
            else:
                print("skipped: libraries: name a Python that has them with --python", file=sys.stderr)
        else:
            self.starts()


def main():
    jobs = [f"{source} -> {target}" for source, target in CASTS] + DECODES + GGUFS + ENCODES + ZEROS + MOVES + OTHERS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", choices=jobs, default=jobs, metavar="NAME", help=f"some of {', '.join(jobs)}")
    parser.add_argument("--dir", help="a folder for the files (default: a temporary one)")
    parser.add_argument("--python", help="a Python with the libraries of the job \"libraries\"")
    parser.add_argument("--sync", action="store_true", help="flush outputs to the disk")
    parser.add_argument("--isa", choices=["baseline", "avx2", "avx512"], help="the instruction set of the kernels (default: the best)")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/performance.md and of the README")
    args = parser.parse_args()
    if args.isa:
        os.environ["TCAST_ISA"] = args.isa
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    head = (f"{args.isa.upper() + ', ' if args.isa else ''}{args.gib} GiB of float32 and the same number of elements of other types, {os.cpu_count()} cores, page cache warm, "
            f"{'synced' if args.sync else 'not synced'}, medians of {args.rounds}:\n\n"
            "| job | reference | time (and processor time) relative to the reference | more processor seconds: in the program, in the system | memory in MiB |\n|---|---|---|---|---|\n")
    if args.jobs != ["libraries"]:
        print(head, end="")
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        bench = Bench(args, folder)
        for job in args.jobs:
            drop_caches()
            bench.run(job)
    if args.docs:
        if bench.rows:
            write_table("docs/performance.md", head + "\n".join(bench.rows), args.isa)
        if bench.table_of_libraries:
            write_table("README.md", bench.table_of_libraries)


def write_table(page, table, isa=None):
    """Replaces the text between the marks of a page, or between the marks for an instruction set."""
    path = os.path.join(ROOT, page)
    with open(path) as file:
        text = file.read()
    mark = f"speed {isa}" if isa else "speed"
    marks = f"(?s)(?<=<!-- {mark} -->\n\n).*?(?=\n\n<!-- end -->)"
    text, count = re.subn(marks, lambda found: table, text)
    assert count == 1, f"{page} has no such table"
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
