"""The files of fixtures/corpus are read as what they are, and those of fixtures/bad refused.

Each file of the corpus is converted without a cast to every container that can hold it, and read again by the library
for that one; what it then holds must have the checksum that was made from the file by the library that wrote it.
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

import oracle
from common import (
    FIXTURES,
    PARTS,
    TCAST,
    TCAST_NAMES,
    array_of,
    codes_of,
    rows,
    same_codes,
    tcast,
)
from tensor_files import CONTAINERS, ONNX_NUMBERS, Tensor, digest, read

# Of these files the table has some tensors only; one that it leaves out is too long for numpy, though empty.
SAMPLED = {"safetensors/many_300.safetensors", "safetensors/compat_empty_tensor_huge_dim.safetensors"}

# Compressed with what numpy reads too and tcast may refuse, if it says what it is.
OTHER_METHODS = {"npz/bzip2.npz": "bzip2", "npz/lzma.npz": "lzma"}


def type_of(row):
    """tcast's name of the type of a row; None where a file has no tensor."""
    return TCAST_NAMES.get(row["dtype"], row["dtype"]) or None


def name_in(row, path, output):
    """What the tensor of a row is called in another file: .npy files give it no name, ONNX ones need not."""
    name = row["tensor"].replace("\\n", "\n").replace("\\0", "\0")
    stays_nameless = path.suffix in (".safetensors", ".npz") or path.suffix == output.suffix == ".pb"
    return name or ("" if stays_nameless else path.stem)


def shape_of(row):
    return () if row["shape"] == "scalar" else tuple(int(length) for length in row["shape"].split("x"))


def is_known_to_onnx(dtype):
    return dtype in ONNX_NUMBERS


def how(path, tensors):
    """Flags that copy, and the flags that name the type where the file does not."""
    (row, *_) = tensors
    if row["storage"].endswith("V1"):
        # Only what is cast is renamed by --from; to its own type every value stays as it is.
        dtype = type_of(row)
        return ["--from", dtype, "--to", dtype if is_known_to_onnx(dtype) else "float32"]
    return ["--to", "float32", "--exclude", "*"]


def holds(suffix, tensors):
    """Whether a container can hold these tensors."""
    if suffix in (".npy", ".pb") and (len(tensors) != 1 or not type_of(tensors[0])):
        return False
    if suffix == ".safetensors":
        return all(type_of(row) != "string" and row["tensor"] != "__metadata__" for row in tensors)
    return suffix == ".npy" or "\\0" not in "".join(row["tensor"] for row in tensors)


def file_of_the_corpus(name, tensors):
    source = FIXTURES / "corpus" / name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if name in OTHER_METHODS:
            command = [TCAST, "cast", source, "--to", "float32", "-o", path / "out.npz"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode == 1:
                assert OTHER_METHODS[name] in run.stderr.lower(), f"no word of the method: {run.stderr}"
                assert not list(path.iterdir()), "something was written"
                return
        check_report(source, tensors)
        beyond_onnx = [row for row in tensors if type_of(row) and not is_known_to_onnx(type_of(row))]
        if beyond_onnx:
            check_beyond_onnx(path, source, tensors)
        elif source.suffix == ".npy" and tensors[0]["storage"].endswith("V1"):
            run = tcast(source, "--to", "float32", "-o", path / "refused.npy", code=1)
            assert "--from" in run.stderr, run.stderr
        is_too_long = name == "safetensors/compat_empty_tensor_huge_dim.safetensors"
        for suffix in () if beyond_onnx else (".safetensors",) if is_too_long else CONTAINERS:
            output = path / f"out{suffix}"
            arguments = (source, *how(source, tensors), "-q", "--no-sync", "-o", output)
            if holds(suffix, tensors):
                tcast(*arguments)
                check_content(output, source, tensors)
            else:
                tcast(*arguments, code=1)
                assert not output.exists()


def check_report(source, tensors):
    """A dry run tells names, types and shapes, in the order of the file."""
    output = "unwritten.npz" if holds(".npz", tensors) else "unwritten.safetensors"
    run = tcast(source, *how(source, tensors), "--json", "--dry-run", "-q", "-o", output)
    told = json.loads(run.stdout)["tensors"]
    found = {tensor["name"]: (tensor["from"], tuple(tensor["shape"])) for tensor in told}
    wanted = {name_in(row, source, Path(output)): (type_of(row), shape_of(row)) for row in tensors if type_of(row)}
    is_sampled = tensors[0]["path"] in SAMPLED
    assert wanted.items() <= found.items() and (is_sampled or len(wanted) == len(found)), f"told {found}, not {wanted}"


def check_content(output, source, tensors):
    wanted = {name_in(row, source, output): row for row in tensors if type_of(row)}
    found = {tensor.name: tensor for tensor in read(output, next(iter(wanted), ""))}
    is_sampled = tensors[0]["path"] in SAMPLED
    assert wanted.keys() <= found.keys() and (is_sampled or len(wanted) == len(found)), f"{output.suffix}: {set(found)}"
    for name, row in wanted.items():
        tensor = found[name]
        form, wanted_form = (tensor.dtype, tuple(tensor.shape)), (type_of(row), shape_of(row))
        assert form == wanted_form, f"{output.suffix} {name}: {form}, not {wanted_form}"
        assert len(tensor.content) == int(row["n"]) * (1 + (tensor.dtype in PARTS)), f"{output.suffix} {name}"
        if row["sha256"]:
            assert digest(tensor) == row["sha256"], f"{output.suffix} {name}: other content"
        elif tensor.dtype == "string":
            assert tensor.content == [b"ok", b"\xff\xfe"], tensor.content
        else:
            assert [code != 0 for code in tensor.content] == [False, True, True], tensor.content


def check_beyond_onnx(path, source, tensors):
    """The types that ONNX lacks are cast from; `float32` holds all their values."""
    (row,) = tensors
    dtype, shape = type_of(row), shape_of(row)
    codes = np.frombuffer(source.read_bytes()[-int(row["n"]) :], np.uint8).astype(np.uint64)
    codes &= np.uint64((1 << oracle.SOURCES[dtype].bits) - 1)
    assert digest(Tensor("", dtype, shape, codes)) == row["sha256"]
    with np.errstate(all="ignore"):
        by_library = codes_of(array_of(codes, dtype).astype(np.float32))
    wanted = oracle.cast(codes, dtype, "float32")
    numbers = oracle.decode(codes, dtype).cls != oracle.NAN
    assert np.array_equal(by_library[numbers], wanted[numbers]), "ml_dtypes sees other values"
    told = ["--from", dtype] if row["storage"].endswith("V1") else []
    tcast(source, *told, "--to", "float32", "-o", path / "out.pb")
    (found,) = read(path / "out.pb")
    assert found.shape == shape
    same_codes(found.content, wanted, "float32", dtype, codes)
    refused = tcast(path / "out.pb", "--to", dtype, "-o", path / "back.npy", code=None)
    assert refused.returncode in (1, 2), f"cast to {dtype}: exit code {refused.returncode}"


# ---------------------------------------------------------------------------------------- fixtures/bad

# Runs a program and writes what it took to the file that the first argument names. A process of its own: the peak of
# a child counts from before the program is loaded, when it still is a copy of this one with all its libraries.
MEASURE = """
import os, sys, time
start = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ), 0)
with open(sys.argv[1], "w") as file:
    print(os.waitstatus_to_exitcode(status), time.perf_counter() - start, usage.ru_maxrss, file=file)
"""


def bad_file(name, expect):
    """Refused with one error, or read; without a panic, a delay or much memory."""
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as measured:
        output = Path(folder) / "out.npz"
        command = [TCAST, "cast", FIXTURES / "bad" / name, "--to", "float16", "-q", "-o", output]
        measure = [sys.executable, "-ISc", MEASURE, measured.name]
        run = subprocess.run([*measure, *map(str, command)], capture_output=True, text=True, timeout=120)
        code, seconds, peak = measured.read().split()
        left = [entry.name for entry in Path(folder).iterdir()]
        if int(code) == 0:
            np.load(output).close()
    code, stderr = int(code), run.stderr
    assert "panicked" not in stderr and not run.stdout, stderr
    assert float(seconds) < 1, f"{float(seconds):.1f} s"
    mebibytes = int(peak) / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    assert mebibytes < 256, f"{mebibytes:.0f} MiB of memory"
    allowed = {"ACCEPT": (0,), "EITHER": (0, 1)}.get(expect, (1,))
    assert code in allowed, f"{expect}, and exit code {code}: {stderr}"
    if code == 0:
        assert left == ["out.npz"], left
        return
    assert not left, f"left behind: {left}"
    # The file itself, or the one beside it that holds its data.
    assert f"{FIXTURES}/bad/{os.path.dirname(name)}/" in stderr.split("\n")[0], f"no word of the file: {stderr!r}"
    assert re.match(r"tcast: error: [^\n]+\n(  [^\n]+\n)*\Z", stderr), f"not one error: {stderr!r}"


def tests():
    files = defaultdict(list)
    for row in rows("corpus/EXPECT.tsv"):
        files[row["path"]].append(row)
    assert len(files) == 342 and sum(map(len, files.values())) == 433, (len(files), sum(map(len, files.values())))
    for name, tensors in files.items():
        yield f"corpus/{name}", functools.partial(file_of_the_corpus, name, tensors)
    for row in rows("bad/MANIFEST.tsv"):
        yield f"bad/{row['path']}", functools.partial(bad_file, row["path"], row["expect"])
