"""tcast reads what torch.save writes: random checkpoints, whatever their containers, protocols, types and strides."""

import argparse
import collections
import functools
import pathlib
import random

import numpy as np
import torch

from common import NUMPY_NAMES, Safetensors, tcast
from files import folder

CHECKPOINTS = 200
# Names of tcast for the types of torch that are named otherwise.
TYPES = {NUMPY_NAMES.get(name, name): name for name in (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool uint16 uint32 uint64 complex64 complex128 "
    "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0"
).split()} | {"float4_e2m1fn_x2": "float4e2m1"}


def storage(choose, dtype, count):
    """A tensor of random bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.tensor(choose.choices(range(2 if dtype == torch.bool else 256), k=count * size), dtype=torch.uint8)
    return bits.view(dtype) if count else torch.empty(0, dtype=dtype)


def view(choose, tensor):
    """The same elements, or some of them, with other strides."""
    for _ in range(choose.randrange(4)):
        dims = tensor.dim()
        kind = choose.randrange(6)
        if kind == 0 and dims > 1:
            tensor = tensor.permute(choose.sample(range(dims), dims))
        elif kind == 1 and dims and tensor.shape[0] > 1:
            start = choose.randrange(tensor.shape[0])
            tensor = tensor[start : start + choose.randrange(1, 4) : choose.randrange(1, 3)]
        elif kind == 2 and dims:
            tensor = tensor.select(choose.randrange(dims), 0) if min(tensor.shape) else tensor
        elif kind == 3:
            tensor = tensor.unsqueeze(0)
        elif kind == 4 and dims == 4 and tensor.numel():
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        elif kind == 5 and dims and tensor.shape[0] == 1:
            tensor = tensor.expand(choose.randrange(1, 5), *tensor.shape[1:])
    return tensor


def tensor(choose, shared):
    if shared and choose.random() < 0.15:
        return choose.choice(shared)  # tied
    name = choose.choice(list(TYPES))
    shape = [choose.randrange(0, 6) if choose.random() < 0.2 else choose.randrange(1, 6) for _ in range(choose.randrange(5))]
    count = int(np.prod(shape, dtype=int))
    made = storage(choose, getattr(torch, name), count).reshape(shape)
    if name != "float4_e2m1fn_x2":
        made = view(choose, made)
    if made.is_complex() and choose.random() < 0.5:
        made = made.conj()
    shared.append(made)
    if made.is_floating_point() and choose.random() < 0.2 and name in ("float32", "bfloat16"):
        return torch.nn.Parameter(made, requires_grad=choose.random() < 0.5)
    return made


def tree(choose, depth, shared, wanted, name):
    """A value with tensors in it, which are added to `wanted` by their names."""
    kind = choose.randrange(7) if depth else 0
    inner = lambda key: tree(choose, depth - 1, shared, wanted, f"{name}.{key}" if name else str(key))
    count = choose.randrange(5)
    if kind < 3 and name:
        made = tensor(choose, shared)
        wanted[name] = made
        return made
    if kind == 3:
        return [inner(at) for at in range(count)]
    if kind == 4:
        return tuple(inner(at) for at in range(count))
    if kind == 5:
        return argparse.Namespace(**{f"n{at}": inner(f"n{at}") for at in range(count)})
    others = [3, 2.5, None, "text", b"bytes", {1, 2}, np.float64(3), pathlib.PurePosixPath("a/b"), 1 << 80, True]
    keys = choose.sample([*range(20), *(f"key{at}.weight" for at in range(20)), "ä", "x y"], count + 2)
    filled = {key: inner(key) for key in keys}
    filled["other"] = choose.choice(others)
    return collections.OrderedDict(filled) if kind == 6 else filled


def bits(tensor):
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.empty(plain.shape, dtype=plain.dtype).copy_(plain).reshape(-1) if plain.dim() else plain.reshape(1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


@folder
def random_checkpoint(path, seed):
    choose = random.Random(seed)
    wanted = {}
    root = tree(choose, 4, [], wanted, "")
    torch.save(
        root, path / "in.pt", pickle_protocol=choose.choice([2, 3, 4, 5]),
        _use_new_zipfile_serialization=choose.random() < 0.6,
    )
    tcast(path / "in.pt", "--root", ".", "-o", path / "out.safetensors")
    found = Safetensors(path / "out.safetensors")
    assert set(found.names) == set(wanted), set(found.names) ^ set(wanted)
    for name, tensor in wanted.items():
        dtype, shape = found.dtype_and_shape(name)
        pairs = tensor.dtype == torch.float4_e2m1fn_x2
        wanted_shape = (*tensor.shape[:-1], 2 * (tensor.shape[-1] if tensor.dim() else 1)) if pairs else tuple(tensor.shape)
        assert (dtype, shape) == (TYPES[str(tensor.dtype)[6:]], wanted_shape), (name, dtype, shape, tensor.dtype)
        assert bytes(found.tensors[name]["data"]) == bits(tensor), name


def tests():
    for seed in range(CHECKPOINTS):
        yield f"checkpoint {seed}", functools.partial(random_checkpoint, seed)
    torch.set_num_threads(1)  # and no threads before the workers are forked
