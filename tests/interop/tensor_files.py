"""Files of all four containers, written and read by the libraries: numpy, safetensors and onnx.

What a tensor holds is kept as codes, one number for each element; complex ones have two, for the real and the
imaginary part, and text is a list of bytes in UTF-8.
"""

import hashlib
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import oracle
from common import (
    PARTS,
    Safetensors,
    array_of,
    codes_of,
    dtype_of,
    name_of,
    npy_form,
    same_codes,
    write_safetensors,
)

CONTAINERS = (".npy", ".npz", ".safetensors", ".pb")

# tcast's name -> the number of TensorProto.DataType, which starts at 1.
ONNX_NUMBERS = """
float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 complex64 complex128 bfloat16
float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 uint2 int2 float6e2m3 float6e3m2
""".split()
ONNX_NUMBERS = {name: number for number, name in enumerate(ONNX_NUMBERS, 1)}
ONNX_NAMES = {number: name for name, number in ONNX_NUMBERS.items()}


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: tuple
    content: object  # codes, or a list of bytes

    @property
    def count(self):
        return int(np.prod(self.shape, dtype=object))


def canonical(tensor):
    """The content as fixtures/corpus/EXPECT.tsv has hashed it."""
    if tensor.dtype == "string":
        return b"".join(struct.pack("<Q", len(text)) + text for text in tensor.content)
    part = PARTS.get(tensor.dtype, tensor.dtype)
    size = max(oracle.SOURCES[part].bits // 8, 1)
    return np.asarray(tensor.content, np.uint64).astype(f"<u{size}").tobytes()


def digest(tensor):
    return hashlib.sha256(canonical(tensor)).hexdigest()


def same_tensor(got, wanted, what):
    """Asserts that type, shape and every bit are the same; the name is the caller's business."""
    form, wanted_form = (got.dtype, tuple(got.shape)), (wanted.dtype, tuple(wanted.shape))
    assert form == wanted_form, f"{what}: {form}, not {wanted_form}"
    if got.dtype == "string":
        assert len(got.content) == len(wanted.content), f"{what}: {len(got.content)} texts, not {len(wanted.content)}"
        pairs = enumerate(zip(got.content, wanted.content))
        different = [f"at {i}: {a!r}, not {b!r}" for i, (a, b) in pairs if a != b]
        assert not different, f"{what}: {len(different)} texts differ: {'; '.join(different[:4])}"
    else:
        same_codes(got.content, wanted.content, PARTS.get(got.dtype, got.dtype), what)


# ---------------------------------------------------------------------------------------- arrays


def to_array(tensor):
    """The array that numpy saves as tcast does."""
    if tensor.dtype == "string":
        try:
            texts = [text.decode() for text in tensor.content]
            dtype = f"U{max(map(len, texts), default=1) or 1}"
        except UnicodeDecodeError:
            texts = tensor.content
            dtype = f"S{max(map(len, texts), default=1) or 1}"
        return np.array(texts, dtype).reshape(tensor.shape)
    if tensor.dtype in PARTS:
        parts = array_of(tensor.content, PARTS[tensor.dtype])
        return parts.view(tensor.dtype).reshape(tensor.shape)
    return npy_form(tensor.content, tensor.dtype, tensor.shape)


def of_array(name, array):
    """The tensor that an array of any order and byte order stands for."""
    if array.dtype.kind in "US":
        texts = np.ascontiguousarray(array).reshape(-1).tolist()
        content = [text.encode() if isinstance(text, str) else text for text in texts]
        return Tensor(name, "string", array.shape, content)
    if array.dtype.kind == "c":
        dtype = array.dtype.name
        parts = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).reshape(-1)
        return Tensor(name, dtype, array.shape, codes_of(parts.view(PARTS[dtype])))
    return Tensor(name, name_of(array.dtype), array.shape, codes_of(array))


# ---------------------------------------------------------------------------------------- ONNX


def to_proto(tensor):
    """The TensorProto with raw_data, or string_data for text."""
    proto = onnx.TensorProto(dims=tensor.shape, data_type=ONNX_NUMBERS[tensor.dtype], name=tensor.name)
    if tensor.dtype == "string":
        proto.string_data.extend(tensor.content)
    else:
        proto.raw_data = oracle.pack(np.asarray(tensor.content, np.uint64), PARTS.get(tensor.dtype, tensor.dtype))
    return proto


def read_proto(path):
    """A TensorProto that tcast wrote, byte for byte as protobuf itself serialises it."""
    data = Path(path).read_bytes()
    proto = onnx.TensorProto.FromString(data)
    assert proto.SerializeToString() == data, f"{Path(path).name}: other bytes than protobuf's"
    onnx.checker.check_tensor(proto)
    return proto


def of_proto(proto):
    """The tensor in a TensorProto with raw_data or string_data, checked against onnx.numpy_helper."""
    dtype, shape = ONNX_NAMES[proto.data_type], tuple(proto.dims)
    fields = {field.name for field, _ in proto.ListFields()} - {"dims", "name", "data_type"}
    about = {"doc_string", "metadata_props"}
    assert fields - about <= {"string_data" if dtype == "string" else "raw_data"}, f"fields {fields}"
    if dtype == "string":
        return Tensor(proto.name, dtype, shape, list(proto.string_data))
    part = PARTS.get(dtype, dtype)
    count = int(np.prod(shape, dtype=object)) * (2 if dtype in PARTS else 1)
    codes = oracle.unpack(proto.raw_data, part, count)
    assert oracle.pack(codes, part) == proto.raw_data, "bytes or bits behind the last element"
    read = numpy_helper.to_array(proto)
    assert read.shape == shape, f"onnx reads the shape {read.shape}"
    found = codes_of(read.reshape(-1).view(PARTS[dtype]) if dtype in PARTS else read, part)
    same_codes(found, codes, part, "as onnx reads it")
    return Tensor(proto.name, dtype, shape, codes)


# ---------------------------------------------------------------------------------------- files


def write(path, tensors):
    """Writes a file by its extension, with the library for it."""
    path = Path(path)
    if path.suffix == ".npz":
        with path.open("wb") as file:
            np.savez(file, **{tensor.name: to_array(tensor) for tensor in tensors})
    elif path.suffix == ".safetensors":
        write_safetensors(path, [(tensor.name, tensor.dtype, tensor.shape, tensor.content) for tensor in tensors])
    else:
        (tensor,) = tensors
        if path.suffix == ".npy":
            np.save(path, to_array(tensor))
        else:
            path.write_bytes(to_proto(tensor).SerializeToString())


def read(path, name=""):
    """The tensors of a file that tcast wrote, in the order of the file. A .npy file does not hold `name`."""
    path = Path(path)
    if path.suffix == ".npy":
        return [of_array(name, np.load(path))]
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".pb":
        return [of_proto(read_proto(path))]
    file = Safetensors(path)
    tensors = []
    for tensor in file.names:
        dtype, shape = file.dtype_and_shape(tensor)
        tensors.append(Tensor(tensor, dtype, shape, file.codes(tensor, dtype, shape)))
    return tensors


def is_deflated(archive):
    """Whether the members of an archive are deflated: all of them are, or all are stored."""
    (kind, *others) = {member.compress_type for member in archive.infolist()} or {zipfile.ZIP_STORED}
    assert not others and kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), [kind, *others]
    return kind == zipfile.ZIP_DEFLATED


def read_npz(path):
    """The arrays of an archive whose checksums, names and order hold."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None, f"{archive.testzip()}: wrong checksum"
        members = archive.infolist()
        is_deflated(archive)
    assert all(member.filename.endswith(".npy") for member in members), [member.filename for member in members]
    with np.load(path) as arrays:
        assert arrays.files == [member.filename.removesuffix(".npy") for member in members], arrays.files
        # By the member's name: for numpy "x.npy" is the array "x" where there is one.
        return [of_array(name, arrays[f"{name}.npy"]) for name in arrays.files]


def untyped(tensor):
    """The array as ml_dtypes has it, which np.save writes without its type."""
    return array_of(tensor.content, tensor.dtype, tensor.shape).view(dtype_of(tensor.dtype))
