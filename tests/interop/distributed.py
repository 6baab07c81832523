"""tcast joins what several processes of torch write: folders of torch.distributed.checkpoint, files of ranks, and pieces in
safetensors files. The processes run on this machine, over 127.0.0.1."""

import functools
import importlib.util
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


def training(rank, world, port, base):
    """A process that trains a model of transformers for a step under FSDP2, and saves it in both ways."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).float()
    mesh = init_device_mesh("cpu", (world,))
    for layer in [*model.model.layers, model]:
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(32).reshape(2, 16)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    with torch.no_grad():
        logits = model.eval()(input_ids=tokens).logits
    if rank == 0:
        model.config.save_pretrained(base / "trained-ranks/huggingface")
        torch.save(logits, base / "logits")
    dist.barrier()
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=base / "trained-dcp")
    torch.save(model.state_dict(), base / f"trained-ranks/model_world_size_{world}_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def computes_the_same(base, kind):
    from common import tcast
    from transformers import LlamaForCausalLM

    output = base / f"trained-{kind}-out"
    tcast(base / f"trained-{kind}", "--config", base / "trained-ranks/huggingface", "-o", output)
    model = LlamaForCausalLM.from_pretrained(output, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.arange(32).reshape(2, 16)).logits
    assert torch.equal(logits, torch.load(base / "logits"))


def make(work, world, base):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (world, port, pathlib.Path(base)), nprocs=world)


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
        subprocess.run([sys.executable, __file__, "process", str(world), str(base)], check=True)
    folders = sorted(path for path in base.iterdir() if path.is_dir())
    for folder in folders:
        yield f"checkpoint {folder.name}", functools.partial(joins, folder)
    if importlib.util.find_spec("transformers"):
        subprocess.run([sys.executable, __file__, "training", "2", str(base)], check=True)
        for kind in ("dcp", "ranks"):
            yield f"a trained model in {kind}", functools.partial(computes_the_same, base, kind)
    torch.set_num_threads(1)  # and no threads before the workers are forked


if __name__ == "__main__":
    make({"process": process, "training": training}[sys.argv[1]], int(sys.argv[2]), sys.argv[3])
