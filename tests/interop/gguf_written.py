"""GGUF files that `tcast quantize` and `tcast cast` write, against gguf-py's reader, encoder and decoder."""

import functools

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from common import folder, tcast
from gguf_models import compare_listing, compare_values, write

COLUMNS = 512
# The types that gguf-py encodes to the bytes of ggml, and their schemes.
ENCODED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0"]


def small_model(path):
    """Writes a language model of float32, and returns its tensors by name."""
    rng = np.random.default_rng(21)
    names = ["token_embd", "output", *(f"blk.{layer}.{stem}" for layer in range(3) for stem in ("attn_q", "attn_v", "ffn_down"))]
    tensors = {f"{name}.weight": rng.standard_normal((32, COLUMNS)).astype(np.float32) * 0.02 for name in names}
    tensors["output_norm.weight"] = rng.standard_normal(COLUMNS).astype(np.float32)

    def keys(writer):
        writer.add_block_count(3)
        writer.add_head_count(8)
        writer.add_token_list([f"t{at}" for at in range(32)])
        writer.add_file_type(0)

    write(path, [(name, Type.F32, array) for name, array in tensors.items()], keys, "llama")
    return tensors


def read(path):
    """The keys of a file but those about its types, and its tensors by name."""
    reader = gguf.GGUFReader(path)
    own = ("GGUF.", "general.file_type", "general.quantization_version")
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith(own)}
    return keys, {tensor.name: tensor for tensor in reader.tensors}, reader


@folder
def blocks_are_those_that_gguf_py_makes(path, scheme):
    """The same bytes as its encoder, and its decoder gives the values of `tcast dequantize`."""
    kind = Type[scheme]
    tensors = small_model(path / "m.gguf")
    tcast(path / "m.gguf", "--scheme", scheme, "-o", path / "o.gguf", "-q", command="quantize")
    keys, found, _ = read(path / "o.gguf")
    assert keys == read(path / "m.gguf")[0], keys
    assert found.keys() == tensors.keys(), found.keys() ^ tensors.keys()
    for name, array in tensors.items():
        if array.ndim == 1:
            assert found[name].tensor_type == Type.F32 and (found[name].data == array).all(), name
            continue
        assert found[name].tensor_type == kind, f"{name}: {found[name].tensor_type}"
        differing = int((found[name].data != gguf.quants.quantize(array, kind)).sum())
        assert not differing, f"{name}: {differing} bytes differ"
    assert compare_values(path / "o.gguf") > 500_000


@folder
def mixes_are_read(path):
    tensors = small_model(path / "m.gguf")
    tcast(path / "m.gguf", "--scheme", "q4_k_m", "-o", path / "o.gguf", "-q", command="quantize")
    _, found, reader = read(path / "o.gguf")
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_K_M
    assert reader.fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION
    assert found["output.weight"].tensor_type == Type.Q6_K
    assert found["blk.1.attn_q.weight"].tensor_type == Type.Q4_K
    for name, array in tensors.items():
        decoded = gguf.quants.dequantize(found[name].data, found[name].tensor_type)
        error = np.sqrt(np.square(decoded - array).mean() / np.square(array).mean())
        assert error < 0.1, f"{name}: {error}"
    compare_values(path / "o.gguf")
    compare_listing(path / "o.gguf")


@folder
def parts_are_read(path):
    small_model(path / "m.gguf")
    tcast(path / "m.gguf", "--scheme", "q8_0", "-o", path / "whole.gguf", "-q", command="quantize")
    line = ("--scheme", "q8_0", "--max-shard-size", "70KB", "-o", path / "out", "-q")
    tcast(path / "m.gguf", *line, command="quantize")
    files = sorted((path / "out").glob("*.gguf"))
    assert len(files) > 2, files
    _, whole, _ = read(path / "whole.gguf")
    found = {}
    for at, file in enumerate(files):
        keys, tensors, _ = read(file)
        numbers = [keys[f"split.{name}"] for name in ("no", "count", "tensors.count")]
        assert numbers == [at, len(files), len(whole)], numbers
        found |= {name: tensor.data.tobytes() for name, tensor in tensors.items()}
    assert found == {name: tensor.data.tobytes() for name, tensor in whole.items()}
    compare_listing(*files)


@folder
def casts_are_read(path):
    tensors = small_model(path / "m.gguf")
    for target, dtype in (("f16", np.float16), ("f32", np.float32)):
        tcast(path / "m.gguf", "--to", target, "-o", path / "o.gguf", "-q", "-f")
        _, found, _ = read(path / "o.gguf")
        for name, array in tensors.items():
            wanted = array if array.ndim == 1 else array.astype(dtype)
            assert (found[name].data == wanted).all() and found[name].data.dtype == wanted.dtype, f"{name} to {target}"


def tests():
    for scheme in ENCODED:
        yield f"{scheme} has the bytes of gguf-py", functools.partial(blocks_are_those_that_gguf_py_makes, scheme)
    for test in (mixes_are_read, parts_are_read, casts_are_read):
        yield test.__name__.replace("_", " "), test
