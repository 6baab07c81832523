"""The four containers: the libraries read what was written, and what they write is read, in every form."""

import functools
import io
import os
import zipfile

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

import oracle
from common import (
    PARTS,
    Safetensors,
    array_of,
    codes_of,
    dtype_of,
    folder,
    report,
    same_codes,
    some_codes,
    tcast,
)
from tensor_files import (
    CONTAINERS,
    ONNX_NUMBERS,
    Tensor,
    is_deflated,
    of_array,
    of_proto,
    read,
    read_proto,
    same_tensor,
    to_array,
    to_proto,
    write,
)

SHAPES = ((24,), (3, 5), (2, 3, 8), (), (0, 3))
COPY = ("--to", "float32", "--exclude", "*", "-q", "--no-sync")
TEXTS = [b"", b"a", "h\u00e9llo".encode(), b" 1.5 ", "\u65e5\u672c \U0001f600".encode(), b"a\0b", b"-INF", b"x" * 40]


def a_tensor(name, dtype, shape):
    """A tensor with values of every kind."""
    count = int(np.prod(shape, dtype=object))
    if dtype == "string":
        return Tensor(name, dtype, shape, (TEXTS * (count // len(TEXTS) + 1))[:count])
    if dtype in PARTS:
        return Tensor(name, dtype, shape, some_codes(PARTS[dtype], 2 * count))
    return Tensor(name, dtype, shape, some_codes(dtype, count))


def types(suffix):
    """The types that a container holds."""
    every = [*oracle.TYPES, *PARTS]
    return every if suffix == ".safetensors" else [*every, "string"]


def np_savez(arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def stored(path):
    """The bytes of an archive; those of a deflated one as they are where np.savez stores the same members."""
    with zipfile.ZipFile(path) as archive:
        if not is_deflated(archive):
            return path.read_bytes()
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as copy:
            for member in archive.infolist():
                with copy.open(member.filename, "w", force_zip64=True) as output:
                    output.write(archive.read(member))
        return stream.getvalue()


# ---------------------------------------------------------------------------------------- from each to each


@folder
def there_and_back(path, dtype, source):
    """From one container to every other one and back: the same tensor, and at the end the same file."""
    for shape in SHAPES:
        tensor = a_tensor("some tensor", dtype, shape)
        # The stem names the tensor of a .npy file.
        first = path / f"some tensor{source}"
        write(first, [tensor])
        for target in CONTAINERS:
            what = f"{source} to {target}, {shape}"
            middle = path / f"middle{target}"
            if dtype not in types(target):
                run = tcast(first, *COPY, "-o", middle, code=1)
                assert "some tensor" in run.stderr and not middle.exists(), f"{what}: {run.stderr}"
                continue
            tcast(first, *COPY, "-o", middle, "-f")
            (found,) = read(middle, "some tensor")
            assert found.name == "some tensor", f"{what}: named {found.name!r}"
            same_tensor(found, tensor, what)
            back = path / f"back{source}"
            tcast(middle, *COPY, "-o", back, "-f")
            if target == ".npy" and source != ".npy":
                # A .npy file names nothing: its name is the tensor's.
                (found,) = read(back)
                assert found.name == "middle", f"{what}: named {found.name!r}"
                same_tensor(found, tensor, f"{what} and back")
            elif (source, target) == (".pb", ".safetensors"):
                # The `format` that came with a note on the type may stay as a property.
                proto = read_proto(back)
                assert [(entry.key, entry.value) for entry in proto.metadata_props] in ([], [("format", "pt")])
                proto.ClearField("metadata_props")
                assert proto.SerializeToString() == first.read_bytes(), f"{what} and back: another tensor"
            else:
                assert back.read_bytes() == first.read_bytes(), f"{what} and back: another file"


@folder
def cast_between(path, seed):
    """A cast on the way from one container to another gives the same bits as within one."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        dtype, to = rng.choice(list(oracle.TYPES), 2)
        source, target = rng.choice(CONTAINERS, 2)
        shape = tuple(int(length) for length in rng.integers(0, 9, rng.integers(0, 4)))
        tensor = a_tensor("x", str(dtype), shape)
        write(path / f"x{source}", [tensor])
        what = f"{dtype} in {source} to {to} in {target}, {shape}"
        run = tcast(path / f"x{source}", "--all", "--to", to, "--no-sync", "--json", "-o", path / f"out{target}", "-f")
        (found,) = read(path / f"out{target}", "x")
        values = oracle.decode(tensor.content, tensor.dtype)
        wanted = oracle.cast(tensor.content, tensor.dtype, str(to), values=values)
        same_tensor(found, Tensor("x", str(to), shape, wanted), what)
        counts = oracle.losses(values, tensor.dtype, wanted, str(to))
        reported = {name: report(run)["x"]["counts"].get(name, 0) for name in oracle.COUNTS}
        assert reported == counts, f"{what}: counts {reported}, wanted {counts}"


# ---------------------------------------------------------------------------------------- order


@folder
def fortran_order(path, dtype):
    """Fortran order stays where a container has it, and is undone where it has not; big-endian bytes are swapped."""
    for shape in ((3, 5), (2, 3, 4), (4, 1)):
        tensor = a_tensor("x", dtype, shape)
        array = to_array(tensor)
        forms = {"Fortran": np.asfortranarray(array)}
        if array.dtype.names is None and array.dtype.itemsize > 1 and array.dtype.kind != "S":
            letter = f"V{array.dtype.itemsize}" if dtype == "bfloat16" else array.dtype.str[1:]
            swapped = array.view("<u2").astype(">u2") if dtype == "bfloat16" else array.astype(f">{letter}")
            forms["big endian"] = swapped
            forms["big endian, Fortran"] = np.asfortranarray(swapped)
        for what, form in forms.items():
            stream = io.BytesIO()
            np.save(stream, form)
            data = stream.getvalue()
            if dtype == "bfloat16" and what != "Fortran":
                assert b"'>u2'" in data[:128]
                data = data.replace(b"'>u2'", b"'>V2'", 1)
            (path / "x.npy").write_bytes(data)
            with zipfile.ZipFile(path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("x.npy", data)
            little = np.asfortranarray(array) if "Fortran" in what else array
            in_npy = io.BytesIO()
            np.save(in_npy, little)
            for source in ("x.npy", "x.npz"):
                for target in CONTAINERS:
                    if dtype not in types(target):
                        continue
                    output = path / f"out{target}"
                    tcast(path / source, *COPY, "-o", output, "-f")
                    (found,) = read(output, "x")
                    same_tensor(found, tensor, f"{what}, {source} to {target}, {shape}")
                    if target == ".npy":
                        assert output.read_bytes() == in_npy.getvalue(), f"{what}, {source}, {shape}: other bytes"
                    elif target == ".npz":
                        assert stored(output) == np_savez({"x": little}), f"{what}, {source}, {shape}: other bytes"


# ---------------------------------------------------------------------------------------- .npz


@folder
def npz_is_that_of_savez(path, dtype):
    """An archive is byte for byte what np.savez makes of the same arrays, copied and cast."""
    tensors = [a_tensor(f"{number}", dtype, shape) for number, shape in enumerate(SHAPES)]
    arrays = {tensor.name: to_array(tensor) for tensor in tensors}
    arrays["in Fortran order"] = np.asfortranarray(arrays["1"])
    wanted = np_savez(arrays)
    (path / "in.npz").write_bytes(wanted)
    np.savez_compressed(path / "deflated.npz", **arrays)
    for source in ("in.npz", "deflated.npz"):
        tcast(path / source, *COPY, "-o", path / "out.npz", "-f")
        assert stored(path / "out.npz") == wanted, f"{source}: other bytes"
        with zipfile.ZipFile(path / "out.npz") as archive:
            assert is_deflated(archive) == (source == "deflated.npz"), source
    assert [tensor.name for tensor in read(path / "out.npz")] == list(arrays)
    if dtype in PARTS or dtype == "string":
        return
    to = "int4" if dtype == "bfloat16" else "bfloat16"
    for tensor in tensors:
        cast = Tensor(tensor.name, to, tensor.shape, oracle.cast(tensor.content, dtype, to))
        arrays[tensor.name] = to_array(cast)
    arrays["in Fortran order"] = np.asfortranarray(arrays["1"])
    tcast(path / "in.npz", "--all", "--to", to, "-o", path / "cast.npz")
    assert (path / "cast.npz").read_bytes() == np_savez(arrays), f"cast to {to}: other bytes"
    # From another container, the same tensors in the same order make the same archive.
    write(path / "in.safetensors", tensors)
    tcast(path / "in.safetensors", *COPY, "-o", path / "other.npz")
    assert (path / "other.npz").read_bytes() == np_savez({t.name: to_array(t) for t in tensors})


@folder
def names_in_npz(path):
    """Names are text: paths, dots, other scripts and .npy at the end mean nothing."""
    names = ["a/b/c", "../up", "/abs", "x.npy", "x", "日本 😀", "é", "e\u0301", "with space", "dot.", "arr_0", "a\\b"]
    names += ["quote'\"", "\n", "n" * 3000, "__metadata__", "A", "a", ".npy", "*", ""]
    arrays = {name: np.arange(number, dtype=np.float32) for number, name in enumerate(names)}
    (path / "in.npz").write_bytes(np_savez(arrays))
    told = report(tcast(path / "in.npz", *COPY, "--json", "-o", path / "out.npz"))
    assert list(told) == sorted(told, key=names.index) and set(told) == set(names), list(told)
    assert (path / "out.npz").read_bytes() == np_savez(arrays)
    with np.load(path / "out.npz") as found:
        assert found.files == names, found.files
        for name, array in arrays.items():
            assert np.array_equal(found[f"{name}.npy"], array), name
    # A tensor of that name would be the metadata of a safetensors file.
    run = tcast(path / "in.npz", *COPY, "-o", path / "out.safetensors", code=1)
    assert "__metadata__" in run.stderr, run.stderr
    tcast(path / "in.npz", *COPY, "--rename", "__metadata__=metadata", "-o", path / "out.safetensors")
    after = Safetensors(path / "out.safetensors")
    assert after.names == ["metadata" if name == "__metadata__" else name for name in names], after.names
    tcast(path / "out.safetensors", *COPY, "--rename", "metadata=__metadata__", "-o", path / "back.npz")
    assert (path / "back.npz").read_bytes() == np_savez(arrays)


@folder
def many_members(path):
    """More members than a plain end record can count: what np.savez writes for them then, byte for byte."""
    stream = io.BytesIO()
    np.save(stream, np.float32(1.5))
    count = 66_000
    with zipfile.ZipFile(path / "in.npz", "w") as archive:
        for number in range(count):
            with archive.open(f"layer/{number}.npy", "w", force_zip64=True) as member:  # as np.savez does
                member.write(stream.getvalue())
    tcast(path / "in.npz", *COPY, "-o", path / "out.npz")
    # np.savez would be slow; it writes members as above.
    assert (path / "out.npz").read_bytes() == (path / "in.npz").read_bytes()
    with np.load(path / "out.npz") as arrays:
        assert len(arrays.files) == count and arrays["layer/65999"] == 1.5
    tcast(path / "out.npz", "--to", "float16", "-o", path / "out.safetensors", "-q")
    after = Safetensors(path / "out.safetensors")
    assert after.names == [f"layer/{number}" for number in range(count)]


@folder
def odd_archives(path):
    """Archives that other programs make: streamed, commented, with members that are no arrays, or none at all."""
    array = np.arange(7, dtype=np.float64).reshape(7, 1)
    data = io.BytesIO()
    np.save(data, array)

    class Pipe(io.RawIOBase):  # a file that cannot go back, so that sizes follow the data
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        pipe = Pipe()
        with zipfile.ZipFile(pipe, "w", compression) as archive:
            archive.writestr("a.npy", data.getvalue())
            archive.writestr("README.txt", "no array\n")
            archive.writestr("folder/", "")
            archive.writestr("b.npy", data.getvalue())
            archive.comment = b"made by hand"
        (path / "in.npz").write_bytes(pipe.data)
        tcast(path / "in.npz", *COPY, "-o", path / "out.npz", "-f")
        assert stored(path / "out.npz") == np_savez({"a": array, "b": array})
    (path / "empty.npz").write_bytes(np_savez({}))
    tcast(path / "empty.npz", *COPY, "-o", path / "out.npz", "-f")
    assert (path / "out.npz").read_bytes() == np_savez({})


@folder
def a_large_archive(path, compressed):
    """Arrays of more than one chunk, cast straight out of the archive."""
    rng = np.random.default_rng(5)
    arrays = {
        "zeros": np.zeros((1000, 3001), np.float32),
        "noise": rng.standard_normal((700, 2003)).astype(np.float32),
        "columns": np.asfortranarray(rng.standard_normal((1003, 777))),
    }
    (np.savez_compressed if compressed else np.savez)(path / "in.npz", **arrays)
    tcast(path / "in.npz", "--to", "bfloat16", "-o", path / "out.npz")
    tcast(path / "in.npz", "--to", "bfloat16", "-o", path / "one.npz", "-j", "1")
    data = (path / "out.npz").read_bytes()
    assert data == (path / "one.npz").read_bytes(), "depends on threads"
    wanted = {}
    for name, array in arrays.items():
        codes = oracle.cast(codes_of(array), array.dtype.name, "bfloat16")
        cast = array_of(codes, "bfloat16", array.shape)
        wanted[name] = np.asfortranarray(cast) if name == "columns" else cast
    assert stored(path / "out.npz") == np_savez(wanted), "other bytes"


# ---------------------------------------------------------------------------------------- ONNX


def varint(number):
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def field(number, value):
    """A field of a protobuf message: a number or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


@folder
def every_field(path, dtype):
    """The typed fields, raw_data, scalars, empty tensors, with and without a name: all are read alike."""
    for shape in SHAPES:
        tensor = a_tensor("x", dtype, shape)
        raw = to_proto(tensor)
        protos = {"raw": raw}
        typed = typed_proto(tensor)
        if dtype == "string" or oracle.SOURCES.get(dtype, oracle.SOURCES["float16"]).kind in ("bool", "int"):
            values = tensor.content if dtype == "string" else numpy_helper.to_array(raw).reshape(-1)
            by_library = onnx.helper.make_tensor("x", raw.data_type, shape, values, raw=False)
            assert by_library.SerializeToString() == typed.SerializeToString(), "the library has another typed form"
        protos["typed"] = typed
        if tensor.count == 0:
            protos["no data"] = onnx.TensorProto(dims=shape, data_type=raw.data_type, name="x")
        for what, proto in protos.items():
            for name in ("x", ""):
                proto.name = name
                proto.doc_string = "kept"
                (path / "stem.pb").write_bytes(proto.SerializeToString())
                tcast(path / "stem.pb", *COPY, "-o", path / "out.pb", "-f")
                (found,) = read(path / "out.pb")
                assert found.name == name, f"{what}: named {found.name!r}"
                same_tensor(found, tensor, f"{what} {shape}")
                assert read_proto(path / "out.pb").doc_string == "kept", f"{what}: the description is lost"
    tcast(path / "stem.pb", *COPY, "--rename", "stem=y", "-o", path / "out.pb", "-f")
    assert read(path / "out.pb")[0].name == "y"


def typed_proto(tensor):
    """The TensorProto with the typed field that onnx.proto names for the type; values as they are, NaNs too."""
    proto = onnx.TensorProto(dims=tensor.shape, data_type=ONNX_NUMBERS[tensor.dtype], name=tensor.name)
    if tensor.dtype == "string":
        proto.string_data.extend(tensor.content)
        return proto
    part = PARTS.get(tensor.dtype, tensor.dtype)
    bits = oracle.TYPES[part].bits
    codes = np.asarray(tensor.content, np.uint64)
    if part in ("float32", "float64"):
        # Not through Python's floats, which would quiet signalling NaNs.
        proto.MergeFromString(field(4 if part == "float32" else 10, oracle.pack(codes, part)))
    elif part == "int64":
        proto.int64_data.extend(codes.view(np.int64).tolist())
    elif part in ("uint32", "uint64"):
        proto.uint64_data.extend(codes.tolist())
    elif bits in (2, 4):
        proto.int32_data.extend(oracle.pack(codes, part))  # as many elements as fit a byte in each entry
    elif part in ("int8", "int16", "int32"):
        proto.int32_data.extend(codes.astype(f"u{bits // 8}").view(f"i{bits // 8}").tolist())
    else:
        proto.int32_data.extend(codes.tolist())
    return proto


@folder
def external_data(path, dtype):
    """Data in a file beside the tensor's, as onnx saves it: the whole file, or a part of it."""
    tensor = a_tensor("x", dtype, (3, 8))
    for offset, has_length in ((0, False), (0, True), (4096, True), (13, True)):
        proto = to_proto(tensor)
        data = proto.raw_data
        external_data_helper.set_external_data(proto, "weights.bin", offset or None, len(data) if has_length else None)
        proto.ClearField("raw_data")
        rest = b"\xff" * 9 if has_length else b""
        (path / "weights.bin").write_bytes(b"\xee" * offset + data + rest)
        (path / "in.pb").write_bytes(proto.SerializeToString())
        loaded = onnx.TensorProto()
        loaded.CopyFrom(proto)
        external_data_helper.load_external_data_for_tensor(loaded, str(path))
        assert loaded.raw_data == data
        for target in CONTAINERS:
            tcast(path / "in.pb", *COPY, "-o", path / f"out{target}", "-f")
            (found,) = read(path / f"out{target}", "x")
            same_tensor(found, tensor, f"offset {offset} to {target}")
        # From another folder too: the data lies beside the file, not where one happens to be.
        other = path / "elsewhere"
        other.mkdir(exist_ok=True)
        tcast(path / "in.pb", *COPY, "-o", other / "out.pb", "-f")
        assert (other / "out.pb").read_bytes() == (path / "out.pb").read_bytes()


@folder
def external_data_that_is_refused(path):
    """Only a plain file in the same folder is read, and only if it holds what is asked for."""
    data = np.arange(6, dtype=np.float32).tobytes()
    folder = path / "model"
    (folder / "below").mkdir(parents=True)
    for file in (path / "outside.bin", folder / "inside.bin", folder / "below/inner.bin", folder / "a\\b.bin"):
        file.write_bytes(data)
    (folder / "link.bin").symlink_to(folder / "inside.bin")
    os.mkfifo(folder / "pipe.bin")

    def proto(location, **entries):
        tensor = onnx.TensorProto(dims=[6], data_type=1, name="x", data_location=onnx.TensorProto.EXTERNAL)
        for key, value in {"location": location, **entries}.items():
            if value is not None:
                tensor.external_data.add(key=key, value=str(value))
        return tensor

    refused = {
        "above": proto("../outside.bin"),
        "absolute": proto(str(folder / "inside.bin")),
        "roundabout": proto("../model/inside.bin"),
        "missing": proto("missing.bin"),
        "empty": proto(""),
        "none": proto(None),
        "the folder": proto("."),
        "a folder": proto("below"),
        "a link": proto("link.bin"),
        "a pipe": proto("pipe.bin"),
        "too short": proto("inside.bin", length=20),
        "too long": proto("inside.bin", length=28),
        "past the end": proto("inside.bin", offset=4),
        "far away": proto("inside.bin", offset=2**64 - 4, length=24),
        "negative": proto("inside.bin", offset=-4, length=24),
        "words": proto("inside.bin", offset="four", length=24),
        "with a NUL": proto("inside.bin\0"),
    }
    both = proto("inside.bin")
    both.raw_data = data
    refused["both"] = both
    for what, tensor in refused.items():
        (folder / "in.pb").write_bytes(tensor.SerializeToString())
        before = sorted(entry.name for entry in folder.iterdir())
        run = tcast(folder / "in.pb", "--to", "float16", "-o", folder / "out.pb", code=1)
        assert run.stderr.startswith("tcast: error: "), f"{what}: {run.stderr}"
        assert sorted(entry.name for entry in folder.iterdir()) == before, f"{what}: something was left behind"
    (folder / "in.pb").write_bytes(proto("inside.bin", offset=0, length=24).SerializeToString())
    tcast(folder / "in.pb", "--to", "float16", "-o", folder / "out.pb")


@folder
def external_data_is_no_output(path):
    """The file that the data comes from is an input too: never written over."""
    (path / "w.npy").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    tensor = onnx.TensorProto(dims=[6], data_type=1, name="x", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.npy")
    (path / "in.pb").write_bytes(tensor.SerializeToString())
    tcast(path / "in.pb", "--to", "float16", "-f", "-o", path / "w.npy", code=1)
    assert (path / "w.npy").read_bytes() == np.arange(6, dtype=np.float32).tobytes()


@folder
def forms_of_protobuf(path):
    """What protobuf allows and few writers do: packed dims, unpacked data, split fields, unknown ones, any order."""
    head = field(2, 6) + field(8, b"x")
    values = [1, -1, 300, -(2**31), 2**31 - 1, 0]
    numbers = [value % 2**64 for value in values]
    packed = b"".join(map(varint, numbers))
    first, rest = b"".join(map(varint, numbers[:2])), b"".join(map(varint, numbers[2:]))
    forms = {
        "unpacked": field(1, 2) + field(1, 3) + head + b"".join(field(5, number) for number in numbers),
        "packed dims": field(1, b"\2\3") + head + field(5, packed),
        "in two parts": field(1, 2) + field(5, first) + head + field(1, 3) + field(5, rest),
        "mixed": field(5, first) + field(1, b"\2\3") + head + b"".join(field(5, number) for number in numbers[2:]),
        "unknown fields": field(99, b"what") + field(1, 2) + field(1, 3) + field(98, 7) + head + field(5, packed),
        "long varints": field(1, 2) + b"\x08\x83\x80\x00" + head + field(5, packed),
        "fixed fields": b"\xa1\x06" + b"\0" * 8 + b"\xa5\x06" + b"\0" * 4 + field(1, b"\2\3") + head + field(5, packed),
        "the name twice": field(8, b"not this") + field(1, b"\2\3") + head + field(5, packed),
    }
    wanted = np.array(values, np.int32).reshape(2, 3)
    for what, data in forms.items():
        assert np.array_equal(numpy_helper.to_array(onnx.TensorProto.FromString(data)), wanted), what
        (path / "in.pb").write_bytes(data)
        tcast(path / "in.pb", *COPY, "-o", path / "out.npy", "-f")
        assert np.array_equal(np.load(path / "out.npy"), wanted), what


@folder
def a_large_tensor(path):
    """More than one chunk, and a varint of three bytes for the length."""
    array = np.random.default_rng(4).standard_normal((1009, 1013)).astype(np.float32)
    proto = onnx.numpy_helper.from_array(array, "w")
    (path / "in.pb").write_bytes(proto.SerializeToString())
    tcast(path / "in.pb", "--to", "int4", "-o", path / "out.pb")
    wanted = oracle.cast(codes_of(array), "float32", "int4")
    found = of_proto(read_proto(path / "out.pb"))
    same_codes(found.content, wanted, "int4", "raw")
    typed = onnx.TensorProto(dims=array.shape, data_type=1, name="w", float_data=array.reshape(-1).tolist())
    (path / "typed.pb").write_bytes(typed.SerializeToString())
    tcast(path / "typed.pb", "--to", "int4", "-o", path / "out2.pb")
    assert (path / "out2.pb").read_bytes() == (path / "out.pb").read_bytes()


# ---------------------------------------------------------------------------------------- text and names


@folder
def text_in_every_form(path):
    """Text of any byte order and width, from arrays and from ONNX, to every container that has it."""
    texts = ["", "a", "héllo", "日本 😀", "a\0b", " blank ", "1.5", "x" * 99, "\U0010ffff"]
    wanted = Tensor("x", "string", (3, 3), [text.encode() for text in texts])
    array = np.array(texts).reshape(3, 3)
    wide = array.astype("<U200")
    forms = {"little": array, "big": array.astype(">U99"), "Fortran": np.asfortranarray(array), "wide": wide}
    for what, form in forms.items():
        np.save(path / "x.npy", form)
        for target in (".npy", ".npz", ".pb"):
            tcast(path / "x.npy", *COPY, "-o", path / f"out{target}", "-f")
            (found,) = read(path / f"out{target}", "x")
            same_tensor(found, wanted, f"{what} to {target}")
        # To text from text: nothing changes, whatever the text.
        tcast(path / "x.npy", "--to", "string", "-o", path / "out.pb", "-f")
        same_tensor(read(path / "out.pb")[0], wanted, f"{what} to string")
        run = tcast(path / "x.npy", *COPY, "-o", path / "out.safetensors", code=1)
        assert "text" in run.stderr or "string" in run.stderr, run.stderr
    # Bytes of no known encoding stay bytes.
    raw = np.array([b"ok", b"\xff\xfe", b"", b"a\0b"], "S9")
    np.save(path / "x.npy", raw)
    wanted = Tensor("x", "string", (4,), raw.tolist())
    for target in (".pb", ".npz", ".npy"):
        tcast(path / "x.npy", *COPY, "-o", path / f"out{target}", "-f")
        (found,) = read(path / f"out{target}", "x")
        same_tensor(found, wanted, f"bytes to {target}")
    write(path / "bytes.pb", [wanted])
    tcast(path / "bytes.pb", *COPY, "-o", path / "back.npy")
    (found,) = read(path / "back.npy", "x")
    same_tensor(found, wanted, "bytes from .pb")
    assert np.load(path / "back.npy").dtype.kind == "S"
    # NULs at the end are padding in an array: text that ends in one cannot be told apart there.
    write(path / "nul.pb", [Tensor("x", "string", (2,), [b"a\0", b"b"])])
    for target in (".npy", ".npz"):
        run = tcast(path / "nul.pb", *COPY, "-o", path / f"nul{target}", code=1)
        assert not (path / f"nul{target}").exists(), run.stderr
    tcast(path / "nul.pb", *COPY, "-o", path / "nul2.pb")
    assert read(path / "nul2.pb")[0].content == [b"a\0", b"b"]


@folder
def renaming(path):
    """Tensors get other names; two of one name, and a name that is not there, are refused."""
    arrays = {"a": np.float32([1, 2]), "b": np.float32([3]), "c=d": np.float32([4])}
    (path / "in.npz").write_bytes(np_savez(arrays))
    tcast(path / "in.npz", *COPY, "--rename", "a=x/y", "--rename", "b=a", "-o", path / "out.npz")
    wanted = {"x/y": arrays["a"], "a": arrays["b"], "c=d": arrays["c=d"]}
    assert (path / "out.npz").read_bytes() == np_savez(wanted)
    for clash in (("a=b",), ("a=q", "b=q"), ("missing=q",)):
        flags = [flag for rename in clash for flag in ("--rename", rename)]
        run = tcast(path / "in.npz", *COPY, *flags, "-o", path / "refused.npz", code=None)
        assert run.returncode in (1, 2) and not (path / "refused.npz").exists(), clash
    np.save(path / "x.npy", arrays["a"])
    tcast(path / "x.npy", *COPY, "--rename", "x=weight", "-o", path / "x.pb")
    assert read(path / "x.pb")[0].name == "weight"


@folder
def one_tensor_only(path):
    """Many tensors do not go into .npy or .pb, nor does none; one of an archive does."""
    one, two = np.float32([1, 2]), np.int8([3])
    (path / "two.npz").write_bytes(np_savez({"one": one, "two": two}))
    (path / "one.npz").write_bytes(np_savez({"one": one}))
    (path / "none.npz").write_bytes(np_savez({}))
    for target in (".npy", ".pb"):
        for source in ("two.npz", "none.npz"):
            tcast(path / source, *COPY, "-o", path / f"out{target}", code=1)
            assert not (path / f"out{target}").exists()
        tcast(path / "one.npz", *COPY, "-o", path / f"out{target}")
        (found,) = read(path / f"out{target}", "one")
        assert found.name == "one"
        same_tensor(found, of_array("one", one), target)
    # In a container of many tensors integers stay, also where there are no others.
    np.savez(path / "int.npz", two)
    for flags, to in (([], "int8"), (["--all"], "float16")):
        told = report(tcast(path / "int.npz", "--to", "float16", *flags, "--json", "-f", "-o", path / "int_out.npz"))
        assert told["arr_0"]["to"] == to
    told = report(tcast(path / "two.npz", "--to", "float16", "--json", "-o", path / "two_out.npz"))
    assert (told["one"]["to"], told["two"]["to"]) == ("float16", "int8")


@folder
def types_beyond_onnx(path, dtype):
    """What ml_dtypes has and ONNX has not is cast from, in every form that holds it."""
    codes = np.arange(1 << oracle.SOURCES[dtype].bits, dtype=np.uint64)
    wanted = oracle.cast(codes, dtype, "float32")
    np.save(path / "untyped.npy", array_of(codes, dtype))
    record = np.array(codes.astype(np.uint8)).view([(dtype_of(dtype).name, "u1")])
    np.save(path / "record.npy", record)
    np.savez(path / "record.npz", x=record)
    for source, told in (("untyped.npy", ("--from", dtype)), ("record.npy", ()), ("record.npz", ())):
        for target in CONTAINERS:
            tcast(path / source, *told, "--all", "--to", "float32", "-o", path / f"out{target}", "-f")
            (found,) = read(path / f"out{target}", "x")
            same_codes(found.content, wanted, "float32", f"{source} to {target}", codes)
    run = tcast(path / "record.npy", *COPY, "-o", path / "refused.pb", code=1)
    assert not (path / "refused.pb").exists(), run.stderr


def tests():
    for dtype in [*oracle.TYPES, *PARTS, "string"]:
        for source in CONTAINERS:
            if dtype in types(source):
                name = f"{dtype} in {source} to every container and back"
                yield name, functools.partial(there_and_back, dtype, source)
        yield f"{dtype} in other orders", functools.partial(fortran_order, dtype)
        yield f"{dtype} as np.savez writes it", functools.partial(npz_is_that_of_savez, dtype)
        yield f"{dtype} in every field of ONNX", functools.partial(every_field, dtype)
        if dtype != "string":
            yield f"{dtype} as external data", functools.partial(external_data, dtype)
    for seed in range(8):
        yield f"casts between containers {seed}", functools.partial(cast_between, seed)
    for dtype in sorted(set(oracle.SOURCES) - set(oracle.TYPES)):
        yield f"{dtype} is cast from", functools.partial(types_beyond_onnx, dtype)
    for compressed in (False, True):
        yield f"a large archive, {compressed=}", functools.partial(a_large_archive, compressed)
    for test in (
        many_members,
        names_in_npz,
        odd_archives,
        external_data_that_is_refused,
        external_data_is_no_output,
        forms_of_protobuf,
        a_large_tensor,
        text_in_every_form,
        renaming,
        one_tensor_only,
    ):
        yield test.__name__.replace("_", " "), test
