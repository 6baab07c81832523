"""ONNX's own tests of Cast, CastLike and BitCast: the input as a file, the expected output bit for bit.

The models carry one node each. Cast is tested at opset 28; CastLike at opset 25, once as the operator and once
expanded to the Cast node of its function. So `--opset` is given what the model imports, and Inf becomes the largest
number of an FNUZ type, as Cast-24 and later say. (Cast-19 to 23, whose table tcast follows unless told, make it NaN;
the tests of that era expected the largest number all the same. Both are looked at below.)
"""

import functools
import importlib
import warnings
from collections import Counter

import numpy as np
import onnx
from onnx.backend.test.case import node as node_tests

import oracle
from common import Skip, folder, has_command, same_codes, tcast
from tensor_files import ONNX_NAMES, of_proto, read, read_proto, write

# How many tests onnx 1.23.2 has, by operator, and where. `collect_testcases()` finds the same 182 among those of all
# operators, and takes ten times as long.
COUNTS = {"Cast": 60, "CastLike": 112, "BitCast": 10}


@functools.cache
def cases():
    """(name, operator, model, input, second input or None, expected output)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about the overflows that the tests are about
        for operator in COUNTS:
            importlib.import_module(f"{node_tests.__name__}.{operator.lower()}")  # collects its tests
    found = []
    for case in node_tests._NodeTestCases:
        operator = {"cast": "Cast", "castlike": "CastLike", "bitcast": "BitCast"}[case.name.split("_")[1]]
        ((inputs, (output,)),) = case.data_sets
        inputs = [as_proto(value) for value in inputs]
        found.append((case.name, operator, case.model, inputs[0], [*inputs, None][1], as_proto(output)))
    counts = Counter(operator for _, operator, *_ in found)
    assert counts == COUNTS and len({name for name, *_ in found}) == 182, counts
    return found


def as_proto(value):
    return value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value)


def node_of(model, operator):
    """(attributes, opset) of the only node, which is the operator or, expanded, a Cast."""
    (node,) = model.graph.node
    ((domain, opset),) = [(entry.domain, entry.version) for entry in model.opset_import]
    assert domain == "" and node.op_type in ("Cast", operator), f"{node.op_type} of {domain!r}"
    values = [(attribute.name, onnx.helper.get_attribute_value(attribute)) for attribute in node.attribute]
    return dict(values), opset


def flags_of(attributes, to):
    for name, value in attributes.items():
        if name == "saturate":
            # The models give it to every Cast; the program refuses it where no target is concerned.
            if ONNX_NAMES[to].startswith("float8"):
                yield f"--saturate={('false', 'true')[value]}"
        elif name == "round_mode":
            yield f"--round-mode={value.decode()}"
        else:
            assert name == "to", f"the attribute {name}"


def compare(path, source, wanted):
    """A file holds the expected tensor: type, dimensions and every bit; a .pb also the name of the input."""
    (got,) = read(path)
    dtype, shape = ONNX_NAMES[wanted.data_type], tuple(wanted.dims)
    assert (got.dtype, got.shape) == (dtype, shape), f"{path.name}: {got.dtype} {got.shape}, not {dtype} {shape}"
    if path.suffix == ".pb":
        proto = read_proto(path)
        assert proto.name == source.name, f"named {proto.name!r}, not {source.name!r}"
        if proto.raw_data == wanted.raw_data:
            return
    same_codes(got.content, oracle.unpack(wanted.raw_data, dtype, got.count), dtype, path.name, codes_in(source))


def codes_in(proto):
    return of_proto(proto).content


@folder
def cast(path, operator, model, source, like, wanted):
    attributes, opset = node_of(model, operator)
    to = attributes.get("to", like and like.data_type)
    assert to == wanted.data_type
    assert wanted.HasField("raw_data") and source.HasField("raw_data")
    (path / "in.pb").write_bytes(source.SerializeToString())
    inputs = [path / "in.pb"]
    # As .npy too: its type is known to numpy, or is told by the record that stands for it.
    tensor = of_proto(source)
    write(path / "in.npy", [tensor])
    inputs.append(path / "in.npy")
    for file in inputs:
        output = path / f"out{file.suffix}"
        # The type by its number, as the model gives it.
        tcast(file, "--to", to, "--opset", opset, *flags_of(attributes, to), "-o", output)
        compare(output, source, wanted)
    tcast(path / "in.pb", "--to", ONNX_NAMES[to], "--opset", opset, *flags_of(attributes, to), "-o", path / "other.npy")
    assert (path / "other.npy").read_bytes() == (path / "out.npy").read_bytes(), "the container decides about values"


@folder
def infinity_before_cast_24(path, source, wanted, flags):
    """With Cast-23 and without --opset, Inf is NaN in the FNUZ types, and nothing else differs."""
    (path / "in.pb").write_bytes(source.SerializeToString())
    dtype = ONNX_NAMES[wanted.data_type]
    expected = oracle.unpack(wanted.raw_data, dtype)
    infinite = oracle.decode(codes_in(source), ONNX_NAMES[source.data_type]).cls == oracle.INFINITE
    assert infinite.any()
    expected = np.where(infinite, np.uint64(0x80), expected)
    for opset in ((), ("--opset", "19"), ("--opset", "21"), ("--opset", "23")):
        tcast(path / "in.pb", "--to", dtype, *opset, *flags, "-o", path / "out.pb", "-f")
        same_codes(of_proto(read_proto(path / "out.pb")).content, expected, dtype, f"{opset or 'no --opset'}")


@folder
def bitcast(path, model, source, wanted):
    attributes, opset = node_of(model, "BitCast")
    assert opset == 26 and set(attributes) == {"to"}
    if not has_command("bitcast"):
        raise Skip("BitCast: the program has no bitcast yet")
    (path / "in.pb").write_bytes(source.SerializeToString())
    write(path / "in.npy", [of_proto(source)])
    for suffix in (".pb", ".npy"):
        output = path / f"out{suffix}"
        tcast(path / f"in{suffix}", "--to", attributes["to"], "-o", output, command="bitcast")
        compare(output, source, wanted)


@folder
def types_of_a_version(path):
    """A type that the opset's Cast lacks is refused, with the version that has it."""
    np.save(path / "in.npy", np.ones(3, np.float32))
    for opset, name, version in ((18, "float8e4m3fn", 19), (20, "int4", 21), (22, "float4e2m1", 23), (24, "int2", 25)):
        run = tcast(path / "in.npy", "--to", name, "--opset", opset, "-o", path / "out.pb", code=1)
        assert str(version) in run.stderr, f"{name} at opset {opset}: no word of {version}: {run.stderr}"
        assert not (path / "out.pb").exists()
        tcast(path / "in.npy", "--to", name, "--opset", version, "-o", path / "out.pb", "-f")
        (path / "out.pb").unlink()


def tests():
    fnuz = 0
    for name, operator, model, source, like, wanted in cases():
        if operator == "BitCast":
            yield name, functools.partial(bitcast, model, source, wanted)
            continue
        yield name, functools.partial(cast, operator, model, source, like, wanted)
        attributes, _ = node_of(model, operator)
        if operator == "Cast" and ONNX_NAMES[wanted.data_type].endswith("fnuz"):
            fnuz += 1
            flags = list(flags_of(attributes, wanted.data_type))
            yield f"{name} by Cast-23", functools.partial(infinity_before_cast_24, source, wanted, flags)
    assert fnuz == 8, fnuz
    yield "types of a version", types_of_a_version
