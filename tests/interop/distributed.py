"""tcast joins what several processes of torch write: folders of torch.distributed.checkpoint, files of ranks, and pieces in
safetensors files. The processes run on this machine, over 127.0.0.1."""

import functools
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

import torch

WORLDS = {2: 26, 3: 18, 4: 26}  # processes -> checkpoints
DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.int64, torch.bool, torch.complex64,
]
KINDS = ["dcp", "ranks", "dcp threads", "ranks", "dcp", "hf"]


def original(choose, dtype):
    """A tensor of random bits; lengths of 0 and 1 among them."""
    shape = [choose.choice([0, 1, 1, 2, 3, 5, 6, 7, 10]) if choose.random() < 0.3 else choose.randrange(1, 9) for _ in range(choose.randrange(4))]
    count = 1
    for length in shape:
        count *= length
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.tensor(choose.choices(range(2 if dtype == torch.bool else 256), k=count * size), dtype=torch.uint8)
    return bits.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def same(a, b):
    """Whether two tensors have the same type, shape and bits."""
    flat = lambda tensor: tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else b""
    is_same = (a.dtype, a.shape) == (b.dtype, b.shape)
    return is_same and (not a.numel() or torch.equal(flat(a), flat(b)))


def process(rank, world, port, base):
    """A process of a training, which writes all checkpoints of its world."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    meshes = [init_device_mesh("cpu", (world,))]
    if world == 4:
        meshes.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    for number in range(WORLDS[world]):
        choose = random.Random(100 * world + number)  # the same on all ranks
        kind = KINDS[number % len(KINDS)]
        folder = base / f"{kind.split()[0]}-{world}-{number}"
        tensors, wanted = {}, {}
        for at in range(12):
            dtype = choose.choice(DTYPES[:3] if kind == "hf" else DTYPES)
            whole = original(choose, dtype)
            mesh = choose.choice(meshes)
            placement = lambda: Shard(choose.randrange(whole.dim())) if whole.dim() and choose.random() < 0.8 else Replicate()
            placements = [placement() for _ in range(mesh.ndim)]
            name = f"layers.{at}.weight"
            divided = choose.random() < 0.85
            # Every rank has the whole tensor, so nothing is sent.
            tensors[name] = distribute_tensor(whole, mesh, placements, src_data_rank=None) if divided else whole
            wanted[name] = whole
        if rank == 0:
            folder.mkdir()
            torch.save(wanted, base / f"{folder.name}.expected")
        dist.barrier()
        if kind == "ranks":
            torch.save(tensors, folder / f"model_world_size_{world}_rank_{rank}.pt")
        elif kind == "hf":
            writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True)
            dcp.save(tensors, storage_writer=writer)
        else:
            writer = dcp.FileSystemWriter(folder, single_file_per_rank=kind == "dcp", thread_count=3)
            dcp.save({"model": tensors, "optimizer": {"step": torch.ones(3)}}, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


def make(world, base):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(process, (world, port, pathlib.Path(base)), nprocs=world)


def loaded(folder):
    """What torch itself joins."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    joined = folder.with_suffix(".joined")
    dcp_to_torch_save(folder, joined)
    return torch.load(joined, weights_only=False)["model"]


def joins(folder):
    from common import tcast
    from safetensors.torch import load_file

    output = folder.with_name(folder.name + "-out")
    tcast(folder, "-o", output)
    found = load_file(output / "model.safetensors")
    expected = [torch.load(folder.with_name(folder.name + ".expected"))]
    if folder.name.startswith("dcp"):
        expected.append(loaded(folder))
    for wanted in expected:
        assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
        for name, tensor in wanted.items():
            assert same(found[name], tensor), (name, found[name].dtype, found[name].shape, tensor.dtype, tensor.shape)
    tcast(folder, "--fail-on", "code", "-q", command="inspect")


def tests():
    base = pathlib.Path(tempfile.mkdtemp())
    for world in WORLDS:
        subprocess.run([sys.executable, __file__, str(world), str(base)], check=True)
    for folder in sorted(path for path in base.iterdir() if path.is_dir()):
        yield f"checkpoint {folder.name}", functools.partial(joins, folder)
    torch.set_num_threads(1)  # and no threads before the workers are forked


if __name__ == "__main__":
    make(int(sys.argv[1]), sys.argv[2])
