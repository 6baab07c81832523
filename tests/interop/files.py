"""Files: numpy and safetensors read what was written, byte for byte; everything they write is read."""

import functools
import io

import ml_dtypes  # noqa: F401  safetensors.numpy needs it imported to load BF16
import numpy as np
import safetensors
import safetensors.numpy

import oracle
from common import (
    FIXTURES,
    ML_DTYPES,
    SAFETENSORS_NAMES,
    Safetensors,
    array_of,
    codes_of,
    dtype_of,
    folder,
    name_of,
    npy_form,
    report,
    same_codes,
    some_codes,
    tcast,
    write_safetensors,
)

SHAPES = [(), (7,), (0, 3), (3, 0), (3, 5), (2, 3, 8), (1, 1), (1,) * 31 + (3,), (1,) * 64]


def np_save(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_file(descr, data, shape, fortran=False, version=(1, 0)):
    """A .npy file with a header of one's own choice."""
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}".encode()
    width = 2 if version[0] == 1 else 4
    header += b" " * (63 - (8 + width + len(header)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(header).to_bytes(width, "little") + header + data


# ---------------------------------------------------------------------------------------- .npy


@folder
def numpy_reads(path, name):
    """np.load without flags gives the values, and the file is the one that np.save would have written."""
    for number, shape in enumerate(SHAPES):
        source = np.random.default_rng(number).standard_normal(shape) * 3
        np.save(path / "in.npy", source)
        tcast(path / "in.npy", "--to", name, "-o", path / "out.npy", "-f")
        wanted = oracle.cast(codes_of(source), "float64", name)
        loaded = np.load(path / "out.npy")
        assert loaded.shape == shape, f"shape {loaded.shape}, not {shape}"
        values = loaded.view(dtype_of(name))
        same_codes(codes_of(values), wanted, name, f"shape {shape}")
        assert (path / "out.npy").read_bytes() == np_save(npy_form(wanted, name, shape)), f"shape {shape}: other bytes"


def npy_inputs(name, array):
    """(what it is, bytes of the file, whether its type must be told) for each way to store an array."""
    codes, shape = codes_of(array, name), array.shape
    in_npy = npy_form(codes, name, shape)
    column_major = np.asfortranarray(in_npy)
    yield "as tcast writes it", np_save(in_npy), False
    yield "in Fortran order", np_save(column_major), False
    descr = np.lib.format.dtype_to_descr(in_npy.dtype)
    yield "version 2", npy_file(descr, in_npy.tobytes(), shape, version=(2, 0)), False
    yield "version 3", npy_file(descr, in_npy.tobytes(), shape, version=(3, 0)), False
    if name in ML_DTYPES:
        of_library = np_save(array)
        yield "np.save of ml_dtypes", of_library, b"V1" in of_library[:128]
        yield "the name as descr", npy_file(dtype_of(name).name, array.tobytes(), shape), False
    size = array.dtype.itemsize
    if size > 1:
        letter = "V" if name == "bfloat16" else array.dtype.kind
        words = codes.astype(f">u{size}")
        yield "big endian", npy_file(f">{letter}{size}", words.tobytes(), shape), False
        words = words.reshape(shape).tobytes(order="F")
        yield "big endian in Fortran order", npy_file(f">{letter}{size}", words, shape, fortran=True), False


@folder
def reads_npy(path, name):
    for shape in ((3, 5), (2, 3, 4)):
        count = int(np.prod(shape))
        array = array_of(some_codes(name, count), name, shape)
        codes = codes_of(array, name)
        for what, data, is_untyped in npy_inputs(name, array):
            (path / "in.npy").write_bytes(data)
            what = f"{what}, shape {shape}"
            told = []
            if is_untyped:
                run = tcast(path / "in.npy", "--to", "float32", "-o", path / "refused.npy", code=1)
                assert "--from" in run.stderr, f"{what}: no word of --from: {run.stderr}"
                told = ["--from", name]
            for target in ("float32", name):
                tcast(path / "in.npy", *told, "--to", target, "-o", path / "out.npy", "-f")
                loaded = np.load(path / "out.npy")
                assert loaded.shape == shape, f"{what}: shape {loaded.shape}"
                wanted = oracle.cast(codes, name, target)
                same_codes(codes_of(loaded, target), wanted, target, f"{what}, to {target}")
                as_numpy = npy_form(wanted, target, shape)
                if loaded.flags.f_contiguous:
                    as_numpy = np.asfortranarray(as_numpy)
                assert (path / "out.npy").read_bytes() == np_save(as_numpy), f"{what}, to {target}: other bytes"


@folder
def round_trip(path, name):
    """.npy -> .safetensors -> .npy gives the first file again."""
    for shape in ((24,), (3, 5), (2, 3, 8), (), (0, 3), (4, 1)):
        codes = some_codes(name, int(np.prod(shape)))
        np.save(path / "some tensor.npy", npy_form(codes, name, shape))
        tcast(path / "some tensor.npy", "--to", name, "-o", path / "middle.safetensors", "-f")
        middle = Safetensors(path / "middle.safetensors")
        assert middle.names == ["some tensor"], middle.names
        same_codes(middle.codes("some tensor", name, shape), codes, name, f"shape {shape} in safetensors")
        tcast(path / "middle.safetensors", "--to", name, "-o", path / "back.npy", "-f")
        first, back = (path / "some tensor.npy").read_bytes(), (path / "back.npy").read_bytes()
        assert first == back, f"shape {shape}: another file came back"


@folder
def fortran_order_to_safetensors(path):
    """safetensors has row-major tensors only: either they come out so, or the file is refused."""
    array = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    np.save(path / "in.npy", array)
    output = path / "out.safetensors"
    try:
        run = tcast(path / "in.npy", "--to", "float16", "-o", output, code=1)
    except AssertionError:
        tcast(path / "in.npy", "--to", "float16", "-o", output, "-f")
        assert np.array_equal(safetensors.numpy.load_file(output)["in"], array), "elements in another order"
    else:
        assert "Fortran" in run.stderr and not output.exists(), run.stderr


# ---------------------------------------------------------------------------------------- safetensors


@folder
def every_tensor_of_the_library(path):
    """Of a file with every type, floats are cast and the rest is copied; names and their order stay."""
    fixture = FIXTURES / "all_dtypes.safetensors"
    before = Safetensors(fixture)
    told = report(tcast(fixture, "--to", "bf16", "-o", path / "out.safetensors", "--json"))
    after = Safetensors(path / "out.safetensors")
    assert after.names == before.names, after.names
    assert after.metadata is None, after.metadata
    assert set(told) == set(before.names), told.keys()
    types = {stored: name for name, stored in SAFETENSORS_NAMES.items()}
    for tensor in before.names:
        stored = before.tensors[tensor]
        name = types.get(stored["dtype"])
        if name is None or not name.startswith(("float", "bfloat")):
            assert after.tensors[tensor] == stored, f"{tensor} was changed"
            continue
        codes = oracle.unpack(bytes(stored["data"]), name)
        wanted = oracle.cast(codes, name, "bfloat16")
        same_codes(after.codes(tensor, "bfloat16", stored["shape"]), wanted, "bfloat16", tensor)


@folder
def checkpoint(path, target):
    """The small checkpoint, cast as people cast one."""
    fixture = FIXTURES / "model.safetensors"
    before = Safetensors(fixture)
    told = report(tcast(fixture, "--to", target, "-o", path / "out.safetensors", "--json"))
    after = Safetensors(path / "out.safetensors")
    assert after.names == before.names, after.names
    kept = {key: value for key, value in after.metadata.items() if key != "tcast"}
    assert kept == before.metadata, kept
    types = {stored: name for name, stored in SAFETENSORS_NAMES.items()}
    floating = 0
    for tensor in before.names:
        stored = before.tensors[tensor]
        name = types[stored["dtype"]]
        if name in ("int64", "bool"):
            assert after.tensors[tensor] == stored, f"{tensor} was changed"
            continue
        floating += 1
        codes = oracle.unpack(bytes(stored["data"]), name)
        wanted = oracle.cast(codes, name, target)
        same_codes(after.codes(tensor, target, stored["shape"]), wanted, target, tensor, codes)
        counts = oracle.losses(oracle.decode(codes, name), name, wanted, target)
        reported = {kind: told[tensor]["counts"].get(kind, 0) for kind in oracle.COUNTS}
        assert reported == counts, f"{tensor}: counts {reported}, wanted {counts}"
    assert floating == 10


@folder
def the_library_loads_by_name(path):
    """safetensors.numpy and safe_open, as users call them."""
    fixture = FIXTURES / "model.safetensors"
    # The library knows by name the types that numpy has, and bfloat16 where ml_dtypes is imported.
    for target in ("float16", "bfloat16", "float32", "float64"):
        output = path / f"{target}.safetensors"
        tcast(fixture, "--to", target, "-o", output)
        loaded = safetensors.numpy.load_file(output)
        original = safetensors.numpy.load_file(fixture)
        assert list(loaded) and set(loaded) == set(original)
        for tensor, array in loaded.items():
            source = original[tensor]
            assert array.shape == source.shape, tensor
            name = name_of(source.dtype)
            wanted = target if name in ("float32", "bfloat16") else name
            assert name_of(array.dtype) == wanted, f"{tensor} is {array.dtype}"
            same_codes(codes_of(array), oracle.cast(codes_of(source), name, wanted), wanted, tensor)
        with safetensors.safe_open(output, "numpy") as file:
            assert file.metadata() == {"format": "pt", "note": "random weights, for tests"}, file.metadata()
            part = file.get_slice("model.embed_tokens.weight")[3:5]
            assert np.array_equal(part, loaded["model.embed_tokens.weight"][3:5], equal_nan=True)


@folder
def order_of_the_header_stays(path):
    fixture = FIXTURES / "order_differs.safetensors"
    before = Safetensors(fixture)
    tcast(fixture, "--to", "float16", "-o", path / "out.safetensors")
    after = Safetensors(path / "out.safetensors")
    assert after.names == before.names == ["third.in.data", "first.in.data", "second.in.data"], after.names
    values = {tensor: bytes(found["data"]) for tensor, found in after.tensors.items()}
    assert values["first.in.data"] == np.arange(6, dtype=np.float16).tobytes()
    assert values["second.in.data"] == np.arange(4, dtype=np.float16).tobytes()
    assert values["third.in.data"] == (-1).to_bytes(8, "little", signed=True)


@folder
def odd_names_and_metadata(path):
    """Names and metadata are text: whatever they hold comes out again."""
    names = ["", "a/b", "../up", "日本 😀", 'quote " and \\', "new\nline", "tab\tand nul\0", "é", "x" * 3000, "metadata"]
    codes = np.arange(4, dtype=np.uint64)
    metadata = {"z": "first", "format": "pt", "a": 'quotes " \\ and\nlines', "": "no name", "ключ": "значение"}
    write_safetensors(path / "in.safetensors", [(name, "float32", (2, 2), codes) for name in names], metadata)
    tcast(path / "in.safetensors", "--to", "float64", "-o", path / "out.safetensors")
    after = Safetensors(path / "out.safetensors")
    assert after.names == names, after.names
    assert after.metadata == metadata, after.metadata
    # The name of the only tensor is its own too, even where it is empty.
    write_safetensors(path / "in.safetensors", [("", "float32", (2, 2), codes)])
    tcast(path / "in.safetensors", "--to", "float64", "-o", path / "out.safetensors", "-f")
    assert Safetensors(path / "out.safetensors").names == [""]


@folder
def a_file_without_metadata(path):
    """None is added, unless a type must be noted: then with the `format` that loaders ask for."""
    codes = np.arange(6, dtype=np.uint64)
    write_safetensors(path / "in.safetensors", [("x", "float32", (2, 3), codes)])
    tcast(path / "in.safetensors", "--to", "float16", "-o", path / "half.safetensors")
    assert Safetensors(path / "half.safetensors").metadata is None
    tcast(path / "in.safetensors", "--to", "int4", "-o", path / "int4.safetensors")
    metadata = Safetensors(path / "int4.safetensors").metadata
    assert set(metadata) == {"format", "tcast"} and metadata["format"] == "pt", metadata
    # The note goes with the type.
    tcast(path / "int4.safetensors", "--all", "--to", "int8", "-o", path / "int8.safetensors")
    after = Safetensors(path / "int8.safetensors")
    assert "tcast" not in (after.metadata or {}), after.metadata
    after.codes("x", "int8", (2, 3))


@folder
def a_note_that_no_longer_fits(path):
    """A tool that keeps metadata and changes tensors leaves a note that lies: refused."""
    write_safetensors(path / "in.safetensors", [("x", "int4", (2, 4), np.arange(8, dtype=np.uint64))])
    data = (path / "in.safetensors").read_bytes()
    changed = data.replace(b'\\"shape\\":[2,4]', b'\\"shape\\":[3,4]')
    assert changed != data
    (path / "in.safetensors").write_bytes(changed)
    tcast(path / "in.safetensors", "--all", "--to", "int8", "-o", path / "out.safetensors", code=1)


@folder
def data_at_odd_offsets(path):
    """Neither the input's data nor the header needs to be aligned."""
    tensors = [("odd", "uint8", (3,), np.arange(3, dtype=np.uint64))]
    for name in ("bfloat16", "float16", "float32", "float64", "int64"):
        tensors.append((name, name, (5,), some_codes(name, 5)))
    write_safetensors(path / "in.safetensors", tensors)
    tcast(path / "in.safetensors", "--all", "--to", "float8e5m2", "-o", path / "out.safetensors")
    after = Safetensors(path / "out.safetensors")
    for tensor, name, shape, codes in tensors:
        wanted = oracle.cast(codes, name, "float8e5m2")
        same_codes(after.codes(tensor, "float8e5m2", shape), wanted, "float8e5m2", tensor)


@folder
def random_checkpoint(path, seed):
    """Tensors of all types and sizes in one file, some cast and some copied: every one lands where the header says."""
    rng = np.random.default_rng(seed)
    tensors = []
    for number in range(int(rng.integers(1, 40))):
        name = str(rng.choice(list(oracle.TYPES)))
        most = 300_000 if rng.random() < 0.1 else int(rng.choice([3, 20, 2000]))
        shape = tuple(int(x) for x in rng.integers(1, 9, int(rng.integers(0, 3)))) + (int(rng.integers(0, most)),)
        bits = oracle.TYPES[name].bits
        codes = rng.integers(0, 1 << 64, int(np.prod(shape)), np.uint64) >> np.uint64(64 - bits)
        tensors.append((f"{number}.{name}", name, shape, codes))
    write_safetensors(path / "in.safetensors", tensors, {"format": "pt"} if seed % 2 else None)
    target = str(rng.choice(list(oracle.TYPES)))
    everything = len(tensors) == 1 or bool(rng.random() < 0.3)
    flags = ["--all"] if everything else []
    tcast(path / "in.safetensors", "--to", target, *flags, "-o", path / "out.safetensors")
    tcast(path / "in.safetensors", "--to", target, *flags, "-o", path / "one.safetensors", "-j", "1")
    assert (path / "out.safetensors").read_bytes() == (path / "one.safetensors").read_bytes(), "depends on threads"
    after = Safetensors(path / "out.safetensors")
    assert after.names == [tensor for tensor, *_ in tensors], after.names
    for tensor, name, shape, codes in tensors:
        stays = target.startswith(("float", "bfloat")) and not name.startswith(("float", "bfloat")) and not everything
        result = name if stays else target
        wanted = codes if stays else oracle.cast(codes, name, target)
        same_codes(after.codes(tensor, result, shape), wanted, result, f"{tensor} of {shape} to {result}", codes)


@folder
def several_tensors_do_not_go_into_npy(path):
    output = path / "out.npy"
    tcast(FIXTURES / "model.safetensors", "--to", "float16", "-o", output, code=1)
    assert not output.exists()


# ---------------------------------------------------------------------------------------- values


@folder
def out_of_range_error(path):
    """Nothing is written where a value is lost and the user asked for an error."""
    for value in (128.0, -129.0, np.nan, np.inf):
        np.save(path / "in.npy", np.array([1.0, value], np.float32))
        tcast(path / "in.npy", "--to", "int8", "--out-of-range", "error", "-o", path / "out.npy", code=1)
        assert [entry.name for entry in path.iterdir()] == ["in.npy"], "something was left behind"
    np.save(path / "in.npy", np.array([127.9, -128.9], np.float32))
    tcast(path / "in.npy", "--to", "int8", "--out-of-range", "error", "-o", path / "out.npy")
    assert np.load(path / "out.npy").tolist() == [127, -128]


@folder
def a_large_tensor(path, source, target):
    """More than one thread's share, and a number of elements that fills no byte, block or chunk."""
    count = 3_000_017
    rng = np.random.default_rng(8)
    bits = oracle.TYPES[source].bits
    codes = rng.integers(0, 1 << 64, count, np.uint64) >> np.uint64(64 - bits)
    write_safetensors(path / "in.safetensors", [("x", source, (count,), codes)])
    told = report(tcast(path / "in.safetensors", "--all", "--to", target, "-o", path / "out.safetensors", "--json"))
    values = oracle.decode(codes, source)
    wanted = oracle.cast(codes, source, target, values=values)
    same_codes(Safetensors(path / "out.safetensors").codes("x", target, (count,)), wanted, target, "x", codes)
    counts = oracle.losses(values, source, wanted, target)
    reported = {name: told["x"]["counts"].get(name, 0) for name in oracle.COUNTS}
    assert reported == counts, f"counts {reported}, wanted {counts}"


# ---------------------------------------------------------------------------------------- fixtures


@folder
def cast_fixture(path, source, flags):
    """The results of the real libraries, file for file."""
    stem = source.name.removesuffix(".in.npy")
    expected = sorted(other for other in source.parent.glob(f"{stem}.*.npy") if other != source)
    assert expected
    for wanted in expected:
        target = wanted.name.split(".")[1]
        tcast(source, "--to", target, *flags, "-o", path / wanted.name)
        if (path / wanted.name).read_bytes() != wanted.read_bytes():
            got, want = np.load(path / wanted.name), np.load(wanted)
            same_codes(codes_of(got, target), codes_of(want, target), target, wanted.name, codes_of(np.load(source)))
            raise AssertionError(f"{wanted.name}: another header")


def tests():
    for name in oracle.TYPES:
        yield f"numpy reads {name}", functools.partial(numpy_reads, name)
        yield f"{name} in .npy is read in every form", functools.partial(reads_npy, name)
        yield f"{name} to safetensors and back", functools.partial(round_trip, name)
    for test in (
        fortran_order_to_safetensors,
        every_tensor_of_the_library,
        the_library_loads_by_name,
        order_of_the_header_stays,
        odd_names_and_metadata,
        a_file_without_metadata,
        a_note_that_no_longer_fits,
        data_at_odd_offsets,
        several_tensors_do_not_go_into_npy,
        out_of_range_error,
    ):
        yield test.__name__.replace("_", " "), test
    for seed in range(24):
        yield f"random checkpoint {seed}", functools.partial(random_checkpoint, seed)
    for target in ("float8e4m3fn", "float8e5m2", "bfloat16", "float4e2m1", "float8e8m0"):
        yield f"the checkpoint to {target}", functools.partial(checkpoint, target)
    for source, target in (("float32", "float8e4m3fn"), ("bfloat16", "int4"), ("float6e3m2", "float4e2m1")):
        yield f"a large tensor, {source} to {target}", functools.partial(a_large_tensor, source, target)
    for folder_name, flags in (("casts", []), ("casts/unsaturated", ["--saturate=false"])):
        for source in sorted((FIXTURES / folder_name).glob("*.in.npy")):
            yield f"{folder_name}/{source.name}", functools.partial(cast_fixture, source, flags)
