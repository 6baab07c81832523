"""GGUF models that gguf-py writes: what `tcast inspect`, `dequantize`, `diff` and the exact moves of `quantize` make of them,
against gguf-py's reader and decoder.

gguf-py 0.19 lacks the types Q1_0, Q2_0 and Q8_K; those are in `fixtures/gguf`, which the tests in Rust decode.
"""

import functools
import json
import struct

import gguf
import ml_dtypes
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Kind

import oracle
from common import array_of, codes_of, folder, tcast

TARGETS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
FLOATS = {Type.F32: np.float32, Type.F16: np.float16, Type.F64: np.float64}
INTEGERS = {Type.I8: np.int8, Type.I16: np.int16, Type.I32: np.int32, Type.I64: np.int64}
PLAIN = {Type.F32: "float32", Type.F16: "float16", Type.BF16: "bfloat16", Type.F64: "float64",
         Type.I8: "int8", Type.I16: "int16", Type.I32: "int32", Type.I64: "int64"}
# The types of blocks that gguf-py decodes.
BLOCKS = """Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4 NVFP4
    IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_NL IQ4_XS""".split()
# Those that gguf-py also encodes.
ENCODED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]


def random_tensor(rng, kind, shape):
    """Random bytes as a tensor of this row-major shape, whose last length is in blocks: scales of any kind, NaNs too."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.frombuffer(rng.bytes(int(np.prod(shape)) * size), np.uint8)
    dtype = (FLOATS | INTEGERS).get(kind)
    return data.view(dtype).reshape(shape) if dtype else data.reshape(*shape[:-1], shape[-1] * size)


def encoded_tensor(rng, kind, shape):
    """Ordinary weights of several magnitudes, as gguf-py encodes them; the last length is in blocks."""
    elements, _ = gguf.GGML_QUANT_SIZES[kind]
    weights = rng.standard_normal((*shape[:-1], shape[-1] * elements)) * 10.0 ** rng.integers(-6, 3, (*shape[:-1], 1))
    return gguf.quants.quantize(weights.astype(np.float32), kind)


def write(path, tensors, keys=lambda writer: None, architecture="flux", **options):
    """Writes tensors, which are (name, type, array), in the order of the list; `keys` adds to the metadata."""
    writer = gguf.GGUFWriter(path, architecture, **options)
    keys(writer)
    for name, kind, array in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def values(tensor):
    """The elements of a tensor of gguf-py's reader: numbers, or float32 that its decoder makes of blocks."""
    kind, data, shape = tensor.tensor_type, tensor.data, tensor.shape.tolist()[::-1]
    if kind in FLOATS or kind in INTEGERS:
        return data.reshape(shape)
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, kind).reshape(shape)


def rounded(numbers, target):
    """Floats rounded once to the target."""
    if numbers.dtype == np.float64:
        codes = oracle.cast(codes_of(numbers), "float64", np.dtype(TARGETS[target]).name)
        return array_of(codes, np.dtype(TARGETS[target]).name, numbers.shape)
    with np.errstate(all="ignore"):
        return numbers.astype(np.float32).astype(TARGETS[target])


def same_values(got, wanted, what):
    """Asserts the same type, shape and bits, but that NaNs are only NaNs; returns the number of values."""
    forms = [(array.dtype, array.shape) for array in (got, wanted)]
    assert forms[0] == forms[1], f"{what}: {forms[0]}, not {forms[1]}"
    bits = f"u{got.dtype.itemsize}"
    differ = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(wanted).view(bits)
    if got.dtype.kind != "i":
        with np.errstate(all="ignore"):
            differ &= ~(np.isnan(got) & np.isnan(wanted))
    at = np.argwhere(differ)
    shown = "; ".join(f"at {place.tolist()}: {got[tuple(place)]!r}, not {wanted[tuple(place)]!r}" for place in at[:4])
    assert not at.size, f"{what}: {len(at)} of {got.size} values differ: {shown}"
    return got.size


def compare_values(path, *files, shape_of={}, factors={}):
    """Decodes a model to all three types, and compares all values with gguf-py's; returns their number.

    `files` are the other files of a split model, `shape_of` has the shapes of reshaped tensors, and `factors` the scales that are
    multiplied in, by the names of their weights.
    """
    tensors = [tensor for file in (path, *files) for tensor in gguf.GGUFReader(file).tensors]
    scales = {name.removesuffix("weight") + "scale" for name in factors}
    wanted = {tensor.name: values(tensor) for tensor in tensors if tensor.name not in scales}
    for name, factor in factors.items():
        with np.errstate(all="ignore"):
            wanted[name] = wanted[name] * factor
    count = 0
    for target in TARGETS:
        out = path.with_suffix(f".{target}.safetensors")
        tcast(path, "--to", target, "-o", out, "-q", "-f", command="dequantize")
        decoded = safetensors.numpy.load_file(out)
        assert decoded.keys() == wanted.keys(), decoded.keys() ^ wanted.keys()
        for name, numbers in wanted.items():
            numbers = numbers.reshape(shape_of.get(name, numbers.shape))
            rounding = numbers if numbers.dtype.kind == "i" else rounded(numbers, target)
            count += same_values(decoded[name], rounding, f"{name} to {target}")
    return count


def inspect(path):
    """The JSON document of a listing."""
    return json.loads(tcast(path, "--json", command="inspect").stdout)


def compare_listing(path, *files):
    """Compares the listing of a model with what gguf-py's reader finds in it."""
    listing = inspect(path)
    assert not listing["unreadable"], listing["unreadable"]
    readers = [gguf.GGUFReader(file) for file in (path, *files)]
    found = [tensor for reader in readers for tensor in reader.tensors]
    ours = [(tensor["name"], tensor["dtype"], tensor["shape"], tensor["bytes"]) for tensor in listing["tensors"]]
    theirs = [
        (tensor.name, PLAIN.get(tensor.tensor_type, tensor.tensor_type.name), tensor.shape.tolist()[::-1], tensor.n_bytes)
        for tensor in found
    ]
    assert sorted(ours) == sorted(theirs), set(map(str, ours)) ^ set(map(str, theirs))
    for reader, file in zip(readers, listing["files"], strict=True):
        assert file["container"] == "gguf"
        metadata, lists = file["metadata"], file["lists"]
        # The keys of a split model describe its files, and a listing is of the model.
        left_out = ("GGUF.", "split.") if files else "GGUF."
        fields = {name: field for name, field in reader.fields.items() if not name.startswith(left_out)}
        assert fields.keys() == metadata.keys() | lists.keys() and not metadata.keys() & lists.keys()
        for name, field in fields.items():
            compare_field(name, field, lists.get(name) if name in lists else metadata[name], name in lists)


def compare_field(name, field, text, is_list):
    """Compares a value of the metadata with gguf-py's."""
    kind, wanted = field.types[0], field.contents()
    what = f"{name}: {text!r}, not {wanted!r}"
    assert is_list == (kind == Kind.ARRAY), what
    if kind == Kind.ARRAY:
        # The number of elements, then the first ones; short lists of 32-bit integers are shown whole.
        assert text.startswith("[") or text.split(" ")[0] == str(len(wanted)), what
        for element in wanted[:4]:
            if not isinstance(element, (float, bool)):
                assert str(element) in text, what
    elif kind == Kind.STRING:
        assert text == wanted, what
    elif kind == Kind.BOOL:
        assert text == str(bool(wanted)).lower(), what
    elif kind in (Kind.FLOAT32, Kind.FLOAT64):
        dtype = np.float32 if kind == Kind.FLOAT32 else np.float64
        assert dtype(text) == dtype(wanted) or np.isnan(dtype(text)) and np.isnan(wanted), what
    else:
        assert text == str(wanted), what


def all_keys(writer):
    """Keys with values of all types."""
    for bits in (8, 16, 32, 64):
        for sign, edge in (("u", (1 << bits) - 1), ("", -(1 << bits - 1))):
            name = f"{sign}int{bits}"
            for value in (0, 1, edge):
                getattr(writer, f"add_{name}")(f"number.{name}.{value}", value)
    for at, value in enumerate((0.0, -0.0, 1.1, 1e-45, 3.4028235e38, float("inf"), float("nan"))):
        writer.add_float32(f"number.float32.{at}", value)
        writer.add_float64(f"number.float64.{at}", value)
    writer.add_float64("number.float64.least", 5e-324)
    writer.add_float64("number.float64.most", 1.7976931348623157e308)
    writer.add_bool("is.true", True)
    writer.add_bool("is.false", False)
    for at, text in enumerate(("", "plain", "\u00e4\u4e2d\U0001f600", "two\nlines\t\x1b[31m", "'\"\\", "x" * 70000)):
        writer.add_key_value(f"text.{at}", text, Kind.STRING)
    for count in (1, 3, 5, 6, 1000):
        writer.add_array(f"list.integers.{count}", list(range(count)))
        writer.add_array(f"list.floats.{count}", [at / 7 for at in range(count)])
        writer.add_array(f"list.bools.{count}", [at % 2 == 0 for at in range(count)])
        writer.add_array(f"list.texts.{count}", [f"t{at}" for at in range(count)])
    for kind in (Kind.UINT8, Kind.INT8, Kind.UINT16, Kind.INT16, Kind.UINT32, Kind.UINT64, Kind.INT64, Kind.FLOAT64):
        for count in (1, 9):
            values = [float(at) if kind == Kind.FLOAT64 else at for at in range(count)]
            writer.add_key_value(f"list.{kind.name.lower()}.{count}", values, Kind.ARRAY, sub_type=kind)


# ---------------------------------------------------------------------------------------- values


@folder
def blocks_are_what_gguf_py_decodes(path, name):
    """Random bytes, and weights that gguf-py encodes, in tensors of several sizes."""
    kind, rng = Type[name], np.random.default_rng(BLOCKS.index(name))
    shapes = [(1,), (7,), (1, 1), (5, 3), (3, 4, 2), (2, 3, 2, 1), (1, 300), (300, 1), (512, 8)]
    makers = [random_tensor, encoded_tensor] if name in ENCODED else [random_tensor]
    tensors = [(f"{make.__name__}.{at}", kind, make(rng, kind, shape)) for make in makers for at, shape in enumerate(shapes)]
    write(path / "m.gguf", tensors)
    assert compare_values(path / "m.gguf") > 300_000
    compare_listing(path / "m.gguf")


@folder
def plain_tensors_are_cast_and_integers_copied(path, name):
    kind, rng = Type[name], np.random.default_rng(1)
    shapes = [(1,), (3,), (5, 7), (2, 3, 4), (1, 2, 3, 4), (333, 1001)]
    tensors = [(f"t.{at}", kind, random_tensor(rng, kind, shape)) for at, shape in enumerate(shapes)]
    tensors.append(("blocks", Type.Q8_0, random_tensor(rng, Type.Q8_0, (2, 2))))
    write(path / "m.gguf", tensors)
    assert compare_values(path / "m.gguf") > 990_000
    compare_listing(path / "m.gguf")


@folder
def scales_of_nvfp4_tensors_are_multiplied_in(path):
    rng = np.random.default_rng(5)
    factors = {"one.weight": np.float32(0.0123), "ffn_up_exps.weight": rng.random((3, 1, 1), np.float32)}
    shapes = {"one.weight": (16, 4), "ffn_up_exps.weight": (3, 8, 2), "none.weight": (4, 4)}
    tensors = [(name, Type.NVFP4, random_tensor(rng, Type.NVFP4, shape)) for name, shape in shapes.items()]
    for name, factor in factors.items():
        tensors.append((name.removesuffix("weight") + "scale", Type.F32, np.ravel(factor)))
    write(path / "m.gguf", tensors)
    assert compare_values(path / "m.gguf", factors=factors) > 24_000


@folder
def original_shapes_win(path):
    """Convolutions that a tool for ComfyUI stores as matrices: rows of three elements, and blocks of 256."""
    rng = np.random.default_rng(6)
    shapes = {
        "q4_k": (Type.Q4_K, (9, 1), [64, 4, 3, 3]),
        "q8_0": (Type.Q8_0, (72, 1), [64, 4, 3, 3]),
        "f16": (Type.F16, (36, 64), [64, 4, 3, 3]),
        "q6_k": (Type.Q6_K, (2, 3), [3, 512]),
        "f32": (Type.F32, (6, 35), [5, 2, 3, 7, 1]),
    }

    def keys(writer):
        for name, (_, _, shape) in shapes.items():
            writer.add_array(f"comfy.gguf.orig_shape.{name}", shape)

    tensors = [(name, kind, random_tensor(rng, kind, stored)) for name, (kind, stored, _) in shapes.items()]
    write(path / "m.gguf", tensors, keys)
    assert compare_values(path / "m.gguf", shape_of={name: shape for name, (_, _, shape) in shapes.items()}) > 15_000


def random_model(rng, count):
    """Tensors of random types, shapes and names."""
    kinds = [Type[name] for name in BLOCKS] + list(PLAIN)
    stems = ["blk", "double_blocks", "\u0442\u0435\u043d\u0437\u043e\u0440", "a b", "%s", "0"]
    for at in range(count):
        kind = kinds[rng.integers(len(kinds))]
        shape = tuple(rng.integers(1, 9, rng.integers(1, 5)).tolist())
        name = f"{rng.choice(stems)}.{at}.{rng.choice(['weight', 'bias', 'x'])}"
        yield name, kind, random_tensor(rng, kind, shape)


@folder
def random_models(path, seed):
    """Many types in a file, with another alignment, or split."""
    rng = np.random.default_rng(seed)
    is_split = seed % 3 == 0
    alignment = int(rng.choice([32, 64, 256, 4096]))

    def keys(writer):
        all_keys(writer)
        if alignment != 32:
            writer.add_custom_alignment(alignment)

    tensors = list(random_model(rng, 40))
    write(path / "m.gguf", tensors, keys, **({"split_max_tensors": 7} if is_split else {}))
    files = sorted(path.glob("m*.gguf"))
    assert len(files) == (6 if is_split else 1), files
    assert compare_values(*files) > 10_000
    compare_listing(*files)
    # Any file names the model.
    decoded = path / "again.safetensors"
    tcast(files[-1], "--to", "f32", "-o", decoded, "-q", command="dequantize")
    assert decoded.read_bytes() == files[0].with_suffix(".f32.safetensors").read_bytes()


@folder
def large_tensors(path):
    """Tensors that several threads decode in many pieces, and rows longer than a piece."""
    rng = np.random.default_rng(8)
    shapes = [(Type.Q4_K, (2, 6000)), (Type.Q8_0, (9000, 9)), (Type.MXFP4, (7, 300, 30)), (Type.Q5_0, (70_001,))]
    write(path / "m.gguf", [(kind.name, kind, random_tensor(rng, kind, shape)) for kind, shape in shapes])
    assert compare_values(path / "m.gguf") > 25_000_000
    one, two = (path / f"{threads}.safetensors" for threads in (1, 2))
    for threads, out in ((1, one), (2, two)):
        tcast(path / "m.gguf", "-o", out, "-q", f"-j{threads}", command="dequantize")
    assert one.read_bytes() == two.read_bytes()


@folder
def many_tensors(path):
    rng = np.random.default_rng(9)
    kinds = [Type.Q4_0, Type.F16, Type.Q6_K]
    write(path / "m.gguf", [(f"blk.{at}.weight", kinds[at % 3], random_tensor(rng, kinds[at % 3], (2, 1))) for at in range(6000)])
    assert compare_values(path / "m.gguf") > 1_000_000
    compare_listing(path / "m.gguf")


@folder
def version_2_is_read_and_others_are_refused(path):
    rng = np.random.default_rng(10)
    write(path / "m.gguf", [("x", Type.Q5_1, random_tensor(rng, Type.Q5_1, (3, 3)))], all_keys)
    data = path.joinpath("m.gguf").read_bytes()
    (path / "2.gguf").write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    compare_values(path / "2.gguf")
    compare_listing(path / "2.gguf")
    for version in (0, 1, 4):
        (path / "other.gguf").write_bytes(data[:4] + struct.pack("<I", version) + data[8:])
        tcast(path / "other.gguf", code=1, command="inspect")
    write(path / "big.gguf", [("x", Type.F32, np.ones((2, 2), np.float32))], endianess=gguf.GGUFEndian.BIG)
    assert "big-endian" in tcast(path / "big.gguf", code=1, command="inspect").stderr


# ---------------------------------------------------------------------------------------- other commands


@folder
def diff_finds_each_changed_block(path, name):
    """A model is equal to its decoded values, and a change of a code of one block is found."""
    kind, rng = Type[name], np.random.default_rng(11)
    tensors = [(f"t.{at}", kind, encoded_tensor(rng, kind, (4, 6))) for at in range(4)]
    write(path / "m.gguf", tensors)
    out = path / "values.safetensors"
    tcast(path / "m.gguf", "--to", "f32", "-o", out, "-q", command="dequantize")
    tcast(path / "m.gguf", out, "--tolerance", "0", command="diff")
    tcast(path / "m.gguf", path / "m.gguf", command="diff")
    for at, (tensor, _, array) in enumerate(tensors):
        changed = array.copy()
        changed[at, -1] ^= 1
        before, after = (gguf.quants.dequantize(codes, kind) for codes in (array, changed))
        count = int((before != after).sum())
        write(path / "changed.gguf", [*tensors[:at], (tensor, kind, changed), *tensors[at + 1 :]])
        for other in (out, path / "m.gguf"):
            run = tcast(path / "changed.gguf", other, "--tolerance", "0", "--json", code=1 if count else 0, command="diff")
            found = {row["name"]: row["differing"] for row in json.loads(run.stdout)["tensors"] if row["differing"]}
            assert found == ({tensor: count} if count else {}), (other.name, count, found)


@folder
def exact_moves_keep_all_values(path, name, layout):
    """What is moved to another layout is decoded to gguf-py's values."""
    kind, rng = Type[name], np.random.default_rng(12)
    shape = (64, 8)
    if name in ENCODED:
        array = encoded_tensor(rng, kind, shape)
    else:  # NVFP4: codes of any kind, and positive scales that are finite
        array = random_tensor(rng, kind, shape).copy()
        blocks = array.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
        blocks[:, :4] = rng.integers(1, 0x7F, (len(blocks), 4))
    write(path / "m.gguf", [("blk.0.ffn_up.weight", kind, array)])
    moved = path / "moved" / "model.safetensors"
    moved.parent.mkdir()
    run = tcast(path / "m.gguf", "--layout", layout, "--only-exact", "--json", "-o", moved, command="quantize")
    config = {"quantization_config": json.loads(run.stdout)["quantization_config"]}
    (path / "moved" / "config.json").write_text(json.dumps(config))
    tcast(path / "moved", "--arithmetic", "exact", "--to", "f32", "-o", path / "values", "-q", command="dequantize")
    (shard,) = (path / "values").glob("*.safetensors")
    got = safetensors.numpy.load_file(shard)["blk.0.ffn_up.weight"]
    # A code of 0 times a negative scale is -0 or 0.
    same_values(got + 0, gguf.quants.dequantize(array, kind) + 0, f"{name} in {layout}")


def tests():
    for name in BLOCKS:
        yield f"{name} is what gguf-py decodes", functools.partial(blocks_are_what_gguf_py_decodes, name)
    for kind in PLAIN:
        yield f"{kind.name} is cast or copied", functools.partial(plain_tensors_are_cast_and_integers_copied, kind.name)
    for seed in range(24):
        yield f"random model {seed}", functools.partial(random_models, seed)
    for name in ENCODED:
        yield f"diff finds changes of {name}", functools.partial(diff_finds_each_changed_block, name)
    for name, layout in (("Q8_0", "compressed-tensors"), ("Q4_0", "compressed-tensors"), ("MXFP4", "compressed-tensors"),
                         ("NVFP4", "compressed-tensors"), ("NVFP4", "modelopt")):
        yield f"{name} moves to {layout}", functools.partial(exact_moves_keep_all_values, name, layout)
    for test in (
        scales_of_nvfp4_tensors_are_multiplied_in,
        original_shapes_win,
        large_tensors,
        many_tensors,
        version_2_is_read_and_others_are_refused,
    ):
        yield test.__name__.replace("_", " "), test
