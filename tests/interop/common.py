"""What the tests share: the program, files as bytes, and codes out of arrays."""

import csv
import functools
import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors

import oracle

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
TCAST = os.environ.get("TCAST", str(TARGET / "release/tcast"))

# tcast's name -> the name numpy or ml_dtypes gives the type.
NUMPY_NAMES = {
    "float4e2m1": "float4_e2m1fn",
    "float6e2m3": "float6_e2m3fn",
    "float6e3m2": "float6_e3m2fn",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float8e3m4": "float8_e3m4",
    "float8e4m3": "float8_e4m3",
    "float8e4m3b11fnuz": "float8_e4m3b11fnuz",
}
TCAST_NAMES = {ours: name for name, ours in NUMPY_NAMES.items()}
ML_DTYPES = {*NUMPY_NAMES, "bfloat16", "int1", "int2", "int4", "uint1", "uint2", "uint4"}

SAFETENSORS_NAMES = {
    "bool": "BOOL",
    "float4e2m1": "F4",
    "float6e2m3": "F6_E2M3",
    "float6e3m2": "F6_E3M2",
    "float8e4m3fn": "F8_E4M3",
    "float8e4m3fnuz": "F8_E4M3FNUZ",
    "float8e5m2": "F8_E5M2",
    "float8e5m2fnuz": "F8_E5M2FNUZ",
    "float8e8m0": "F8_E8M0",
    "bfloat16": "BF16",
    "complex64": "C64",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}


class Skip(Exception):
    """Raised by a test of something that the program does not have."""


def has_command(name):
    """Whether the program has a subcommand."""
    return subprocess.run([TCAST, name, "--help"], capture_output=True).returncode == 0


def tcast(*arguments, code=0, command="cast"):
    """Runs a subcommand of tcast, which must exit with `code`, unless that is None."""
    command = [TCAST, command, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = run.stderr.strip().splitlines()[:3]
    assert code is None or run.returncode == code, (
        f"exit code {run.returncode}, not {code}: {' '.join(command)}: {told}"
    )
    assert "panicked" not in run.stderr, told
    return run


def rows(name):
    """The rows of a table of fixtures/."""
    with (FIXTURES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def report(run):
    """The tensors of a `--json` report by name."""
    return {tensor["name"]: tensor for tensor in json.loads(run.stdout)["tensors"]}


# ---------------------------------------------------------------------------------------- arrays


def dtype_of(name):
    """The numpy dtype with which values of this type can be used in Python."""
    ours = NUMPY_NAMES.get(name, name)
    return np.dtype(getattr(ml_dtypes, ours) if name in ML_DTYPES else ours)


def name_of(dtype):
    """tcast's name of a numpy dtype: a native one, ml_dtypes' own, or the form they have in a .npy file."""
    if dtype.names:
        (ours,) = dtype.names
    else:
        ours = "bfloat16" if dtype.str[1:] == "V2" else dtype.name
    return TCAST_NAMES.get(ours, ours)


def tagged(name):
    """The dtype that a .npy file of tcast has."""
    if name == "bfloat16" or name not in ML_DTYPES:
        return dtype_of(name)
    return np.dtype([(NUMPY_NAMES.get(name, name), "i1" if name in ("int1", "int2", "int4") else "u1")])


def array_of(codes, name, shape=None):
    """Codes as numpy or ml_dtypes values."""
    dtype = dtype_of(name)
    array = np.asarray(codes, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
    return array if shape is None else array.reshape(shape)


def codes_of(array, name=None):
    """The codes of an array of any form, in the order of its elements."""
    name = name or name_of(array.dtype)
    if array.dtype.names:
        array = array[array.dtype.names[0]]
    order = array.dtype.str[0]
    array = np.ascontiguousarray(array).reshape(-1)
    codes = array.view(f"{order if order in '<>' else '<'}u{array.dtype.itemsize}").astype(np.uint64)
    bits = oracle.SOURCES[name].bits
    return codes & np.uint64((1 << bits) - 1)


def npy_form(codes, name, shape):
    """The array that np.save turns into the file that tcast writes."""
    array = array_of(codes, name, shape)
    if name in ("int2", "int4"):
        array = array.astype(np.int8)
    return array if name == "bfloat16" or name not in ML_DTYPES else array.view(tagged(name))


def same_codes(got, wanted, target, what, source_codes=None):
    """Asserts equality to the bit, with the first differences in the message."""
    got, wanted = np.asarray(got, np.uint64), np.asarray(wanted, np.uint64)
    assert got.shape == wanted.shape, f"{what}: {got.size} elements, not {wanted.size}"
    different = np.flatnonzero(got != wanted)
    if not different.size:
        return
    x, y = oracle.decode(got, target), oracle.decode(wanted, target)
    numbers = np.flatnonzero((got != wanted) & ~((x.cls == y.cls) & (x.cls == oracle.NAN) & (x.negative == y.negative)))
    kind = "differ" if numbers.size else "differ in the payload of NaNs only"
    first = numbers if numbers.size else different
    digits = (oracle.TYPES[target].bits + 3) // 4
    shown = [
        ("" if source_codes is None else f"{int(source_codes[i]):x} ")
        + f"at {i}: got {int(got[i]):0{digits}x}, wanted {int(wanted[i]):0{digits}x}"
        for i in first[:4]
    ]
    raise AssertionError(f"{what}: {different.size} of {got.size} codes {kind}: {'; '.join(shown)}")


def folder(test):
    """Gives a test a folder of its own."""

    @functools.wraps(test)
    def with_folder(*arguments):
        with tempfile.TemporaryDirectory() as path:
            test(Path(path), *arguments)

    return with_folder


def some_codes(name, count):
    """Codes of every kind of value; of float8 only those that the cast to their own type leaves as they are."""
    codes = oracle.samples(name)
    codes = codes[oracle.cast(codes, name, name) == codes]
    picked = np.concatenate([codes[:3], codes[-3:], np.random.default_rng(count).choice(codes, count)])
    return picked[:count]


# ---------------------------------------------------------------------------------------- safetensors


# The types of the parts of complex numbers.
PARTS = {"complex64": "float32", "complex128": "float64"}


def stored_form(name, shape):
    """How a tensor is stored: dtype, shape, and how a note must say that its true type is stored."""
    if name == "complex64":
        return "C64", list(shape), None
    if name == "complex128":
        return "F64", [*shape, 2], "real-imag"
    bits = oracle.TYPES[name].bits
    count = int(np.prod(shape, dtype=object))
    last = shape[-1] if shape else None
    if name == "float4e2m1":
        is_native = last is not None and last % 2 == 0
    else:
        is_native = name in SAFETENSORS_NAMES and count * bits % 8 == 0
    if is_native:
        return SAFETENSORS_NAMES[name], list(shape), None
    if last is not None and last * bits % 8 == 0:
        return "U8", [*shape[:-1], last * bits // 8], "packed-lsb"
    return "U8", [-(-count * bits // 8)], "packed-lsb"


def write_safetensors(path, tensors, metadata=None):
    """`tensors` are (name, type, shape, codes); types that the format lacks get a note, as tcast reads it."""
    header, notes, data, at = {}, {}, [], 0
    for tensor, name, shape, codes in tensors:
        dtype, stored_shape, store = stored_form(name, shape)
        payload = oracle.pack(codes, PARTS.get(name, name))
        header[tensor] = {"dtype": dtype, "shape": stored_shape, "data_offsets": [at, at + len(payload)]}
        if store:
            notes[tensor] = {"dtype": name, "shape": list(shape), "store": store}
        data.append(payload)
        at += len(payload)
    if notes:
        note = json.dumps({"tensors": notes, "version": 1}, separators=(",", ":"))
        metadata = {**(metadata or {"format": "pt"}), "tcast": note}
    if metadata is not None:
        header = {"__metadata__": metadata, **header}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(b"".join([struct.pack("<Q", len(text)), text, *data]))


class Safetensors:
    """A file as the safetensors library reads it, with its header as text."""

    def __init__(self, path):
        data = Path(path).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        self.metadata = header.pop("__metadata__", None)
        self.header = header
        self.names = list(header)  # in the order of the header
        self.tensors = dict(safetensors.deserialize(data))  # checks the whole file
        assert set(self.names) == set(self.tensors)
        notes = (self.metadata or {}).get("tcast")
        self.notes = json.loads(notes)["tensors"] if notes else {}

    def dtype_and_shape(self, tensor):
        """What a tensor is, by the note on it where there is one."""
        if tensor in self.notes:
            return self.notes[tensor]["dtype"], tuple(self.notes[tensor]["shape"])
        found = self.tensors[tensor]
        names = {stored: name for name, stored in SAFETENSORS_NAMES.items()}
        return names[found["dtype"]], tuple(found["shape"])

    def codes(self, tensor, name, shape):
        """The codes of a tensor, which must be stored as this type and shape are."""
        dtype, stored_shape, store = stored_form(name, shape)
        found = self.tensors[tensor]
        form = found["dtype"], found["shape"], tensor in self.notes
        assert form == (dtype, stored_shape, store is not None), f"{tensor}: stored as {form}"
        if store:
            note = self.notes[tensor]
            wanted = {"dtype": name, "shape": list(shape), "store": store}
            assert note == wanted, f"{tensor}: noted as {note}"
        part = PARTS.get(name, name)
        count = int(np.prod(shape, dtype=object)) * (1 if part == name else 2)
        data = bytes(found["data"])
        codes = oracle.unpack(data, part, count)
        assert oracle.pack(codes, part) == data, f"{tensor}: bits set behind the last element"
        return codes
