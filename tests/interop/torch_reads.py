"""PyTorch loads what was written, and agrees about the values."""

import functools

import numpy as np
import safetensors
import safetensors.torch
import torch

import oracle
from common import FIXTURES, NUMPY_NAMES, Safetensors, array_of, same_codes, tcast, write_safetensors
from files import folder

# Types that PyTorch has; FP4 is a type of pairs there.
TARGETS = (
    *("float64", "float32", "float16", "bfloat16"),
    *("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
)


def torch_dtype(name):
    return getattr(torch, NUMPY_NAMES.get(name, name))


def codes_of_tensor(tensor, name):
    data = tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return oracle.unpack(data, name)


@folder
def loads_a_cast_checkpoint(path, target):
    """load_file and safe_open: name, type, shape and every bit, of all tensors."""
    fixture = FIXTURES / "model.safetensors"
    names = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int64: "int64", torch.bool: "bool"}
    before = safetensors.torch.load_file(fixture)
    tcast(fixture, "--all", "--to", target, "-o", path / "out.safetensors")
    after = safetensors.torch.load_file(path / "out.safetensors")
    assert set(after) == set(before)
    with safetensors.safe_open(path / "out.safetensors", "pt") as file:
        assert set(file.keys()) == set(before)
        for tensor, source in before.items():
            result = after[tensor]
            assert result.dtype == torch_dtype(target), f"{tensor} is {result.dtype}"
            assert result.shape == source.shape, f"{tensor}: {result.shape}"
            name = names[source.dtype]
            wanted = oracle.cast(codes_of_tensor(source, name), name, target)
            same_codes(codes_of_tensor(result, target), wanted, target, tensor)
            same_codes(codes_of_tensor(file.get_tensor(tensor), target), wanted, target, tensor)


@folder
def float4_is_loaded_as_pairs(path):
    shape = (5, 8)
    codes = np.random.default_rng(9).integers(0, 16, 40, np.uint64)
    write_safetensors(path / "in.safetensors", [("x", "float4e2m1", shape, codes)])
    tcast(path / "in.safetensors", "--to", "float32", "-o", path / "wide.safetensors")
    tcast(path / "wide.safetensors", "--to", "float4e2m1", "-o", path / "out.safetensors")
    loaded = safetensors.torch.load_file(path / "out.safetensors")["x"]
    assert loaded.dtype == torch.float4_e2m1fn_x2 and loaded.shape == (5, 4), (loaded.dtype, loaded.shape)
    pairs = loaded.view(torch.uint8)
    unpacked = torch.stack([pairs & 15, pairs >> 4], -1).flatten(-2)
    assert np.array_equal(unpacked.numpy().ravel(), codes)


@folder
def int4_is_unpacked_in_two_lines(path):
    source = torch.arange(-8, 8, dtype=torch.float32).reshape(2, 8)
    safetensors.torch.save_file({"x": source}, path / "in.safetensors")
    tcast(path / "in.safetensors", "--to", "int4", "-o", path / "out.safetensors")
    x = safetensors.torch.load_file(path / "out.safetensors")["x"]
    assert x.dtype == torch.uint8 and x.shape == (2, 4), (x.dtype, x.shape)
    values = torch.stack([x & 15, x >> 4], -1).flatten(-2).to(torch.int8)
    assert torch.equal((values ^ 8) - 8, source.to(torch.int8))


@folder
def npy_through_numpy(path):
    """The one-line recipes for .npy files."""
    source = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)) * 100
    np.save(path / "in.npy", source.numpy())
    for name in ("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz", "float8e8m0"):
        tcast(path / "in.npy", "--to", name, "-o", path / f"{name}.npy")
        x = np.load(path / f"{name}.npy")
        tensor = torch.from_numpy(x[NUMPY_NAMES[name]]).view(torch_dtype(name))
        wanted = oracle.cast(codes_of_tensor(source, "float32"), "float32", name)
        same_codes(codes_of_tensor(tensor, name), wanted, name, name)
    tcast(path / "in.npy", "--to", "bf16", "-o", path / "bf16.npy")
    x = np.load(path / "bf16.npy")
    assert torch.equal(torch.from_numpy(x.view("i2")).view(torch.bfloat16), source.bfloat16())


@folder
def agrees_with_torch_casts(path):
    """Where both round once and saturate alike: float32 to the halves, and to float8_e4m3fn."""
    codes = oracle.samples("float32")
    codes = codes[oracle.decode(codes, "float32").cls != oracle.NAN]  # torch makes one NaN of all
    source = torch.from_numpy(array_of(codes, "float32").copy())
    safetensors.torch.save_file({"x": source}, path / "in.safetensors")
    for name in ("float16", "bfloat16", "float8e4m3fn"):
        tcast(path / "in.safetensors", "--to", name, "-o", path / f"{name}.safetensors")
        loaded = safetensors.torch.load_file(path / f"{name}.safetensors")["x"]
        theirs = codes_of_tensor(source.to(torch_dtype(name)), name)
        same_codes(codes_of_tensor(loaded, name), theirs, name, name, codes)


@folder
def reads_what_torch_writes(path):
    """A file of safetensors.torch, with every type that it writes; then torch reads it back."""
    tensors = {}
    for name in TARGETS:
        width = oracle.TYPES[name].bits // 8
        data = np.arange(6 * width, dtype=np.uint8) % 2 if name == "bool" else np.arange(6 * width, dtype=np.uint8)
        tensors[name] = torch.from_numpy(data).view(torch_dtype(name)).reshape(2, 3)
    safetensors.torch.save_file(tensors, path / "in.safetensors", {"format": "pt"})
    tcast(path / "in.safetensors", "--all", "--to", "float64", "-o", path / "out.safetensors")
    loaded = safetensors.torch.load_file(path / "out.safetensors")
    for name, tensor in tensors.items():
        wanted = oracle.cast(codes_of_tensor(tensor, name), name, "float64")
        same_codes(codes_of_tensor(loaded[name], "float64"), wanted, "float64", name)


@folder
def loads_data_at_an_odd_offset(path):
    """safetensors and torch themselves do not ask for alignment, which a copied uint8 tensor can spoil."""
    codes = np.arange(0x3F80, 0x3F80 + 12, dtype=np.uint64)
    tensors = [("odd", "uint8", (3,), np.arange(3, dtype=np.uint64)), ("x", "bfloat16", (3, 4), codes)]
    write_safetensors(path / "in.safetensors", tensors)
    loaded = safetensors.torch.load_file(path / "in.safetensors")["x"]
    assert loaded.data_ptr() % 2 == 1, "the library has begun to align: this test shows nothing"
    assert np.array_equal(codes_of_tensor(loaded, "bfloat16"), codes)
    assert torch.equal(loaded @ loaded.T, loaded.clone() @ loaded.clone().T)
    # What tcast lays out itself keeps every tensor aligned to its element.
    tcast(path / "in.safetensors", "--to", "float32", "-o", path / "out.safetensors")
    start = Safetensors(path / "out.safetensors").header["x"]["data_offsets"][0]
    assert start % 4 == 0, start


def tests():
    for target in TARGETS:
        yield f"torch loads the checkpoint as {target}", functools.partial(loads_a_cast_checkpoint, target)
    for test in (
        float4_is_loaded_as_pairs,
        int4_is_unpacked_in_two_lines,
        npy_through_numpy,
        agrees_with_torch_casts,
        reads_what_torch_writes,
        loads_data_at_an_odd_offset,
    ):
        yield test.__name__.replace("_", " "), test
    torch.set_num_threads(1)  # and no threads before the workers are forked
