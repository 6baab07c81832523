"""ONNX models: onnx's checker and shape inference accept what the program writes, and ONNX Runtime computes with it what
it computes with the original model whose same tensors were rounded by ml_dtypes, bit for bit.

Without the package onnxruntime, which `--models` installs together with packages that ship models, the models of
`fixtures/` are checked only. `ONNX_MODELS` names a folder with more models.
"""

import functools
import importlib.util
import itertools
import json
import logging
import os
import sysconfig
import tempfile
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import safetensors
from onnx import numpy_helper

from common import FIXTURES, ROOT, Skip, rows, tcast

MODELS = FIXTURES / "onnx_models"
HAS_RUNTIME = importlib.util.find_spec("onnxruntime") is not None

# Packages that ship models, of requirements-models.txt.
PACKAGES = (
    "arabic_name_romanizer basic_pitch faster_whisper magika onnx_asr qonnx silero_vad speechmos swift_f0 text2tashkeel"
).split()

# Changes of operators that no signature shows.
HIDDEN = {
    "AveragePool": 19,
    "Dropout": 13,
    "GroupNormalization": 21,
    "RoiAlign": 16,
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "PRelu": 7,
    "Split": 18,
}


def folder():
    """A new folder, which goes with all others at the end."""
    return Path(tempfile.mkdtemp())


def graphs(model):
    """(path, graph or function, its nodes, its initializers) of everything that can hold weights."""

    def within(path, holder, initializers):
        yield path, holder, initializers
        for number, node in enumerate(holder.node):
            label = node.name[:48] or f"{node.op_type[:48]}_{number}"
            for attribute in node.attribute:
                inner = [attribute.g] if attribute.HasField("g") else attribute.graphs
                for at, graph in enumerate(inner):
                    name = f"{label}.{attribute.name[:48]}" + ("" if attribute.HasField("g") else f".{at}")
                    yield from within(f"{path}{name}/", graph, graph.initializer)

    yield from within("", model.graph, model.graph.initializer)


def tensors(model):
    """name -> the tensor, as the program names it."""
    found = []
    for path, graph, initializers in graphs(model):
        found += [(path, tensor.name, tensor) for tensor in initializers]
        for node in graph.node:
            if node.op_type == "Constant":
                found += [(path, node.output[0], a.t) for a in node.attribute if a.HasField("t")]
    values = {(path, name) for path, name, _ in found}
    for path, graph, _ in graphs(model):
        values |= {(path, name) for node in graph.node for name in node.output}
        values |= {(path, value.name) for value in graph.input}
    names = [name for _, name in values]
    return {name if not path or names.count(name) == 1 else path + name: tensor for path, name, tensor in found}


def rounded(values, dtype):
    """Values as another type and back, by ml_dtypes; float8 saturates."""
    narrow = np.dtype(getattr(ml_dtypes, dtype.replace("float8", "float8_"), None) or dtype)
    if dtype.startswith("float8"):
        largest = float(ml_dtypes.finfo(narrow).max)
        values = np.clip(values, -largest, largest)
    with np.errstate(over="ignore"):
        return values.astype(narrow).astype(values.dtype)


def reference(model, report):
    """The model with the same tensors rounded, in its own types."""
    by_name = tensors(model)
    for row in report["tensors"]:
        if row["cast"]:
            tensor = by_name[row.get("renamed_from", row["name"])]
            values = rounded(numpy_helper.to_array(tensor), row["to"])
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return model


def inputs(session, length, integer, inner):
    """Values for all inputs of a model: unknown dimensions have a length, those before the last another one, and integers a
    value."""
    random = np.random.default_rng(7)
    given = {}
    for entry in session.get_inputs():
        lengths = [1, *[inner] * (len(entry.shape) - 2), length][-len(entry.shape) :]  # the first is a batch
        shape = [dim if isinstance(dim, int) and dim > 0 else new for dim, new in zip(entry.shape, lengths, strict=False)]
        element = entry.type.removeprefix("tensor(").removesuffix(")")
        dtype = {"float": "float32", "double": "float64"}.get(element, element)
        if dtype == "string":
            raise Skip("an input is text")
        is_float = dtype.startswith("float")
        values = random.standard_normal(shape) if is_float else np.full(shape, integer)
        given[entry.name] = values.astype(dtype)
    return given


def run(session):
    """Inputs that a model takes, and its outputs."""
    for length in (1, 16, 128, 512, 576, 16000):
        for integer in (1, length, 16000):
            for inner in (length, 1):
                given = inputs(session, length, integer, inner)
                try:
                    return given, session.run(None, given)
                except Exception:
                    continue
    raise Skip("ONNX Runtime runs the model with no inputs that are made up")


def open_model(path):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def opens(path):
    try:
        return open_model(path)
    except Exception as error:
        raise Skip("ONNX Runtime does not load the model itself") from error


def same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, list):
            same(one, other)
            continue
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape and one.dtype == other.dtype
        bits = f"u{one.dtype.itemsize}"
        is_same = one.view(bits) == other.view(bits) if one.dtype.kind == "f" else one == other
        if one.dtype.kind == "f":
            is_same |= np.isnan(one) & np.isnan(other)
        assert is_same.all(), f"{(~is_same).sum()} of {one.size} values differ"


def check(source, dtype, *flags):
    """Converts a model, checks it and compares what it computes; returns the report."""
    out = folder() / "out.onnx"
    report = json.loads(tcast(source, "--to", dtype, "-o", out, "--json", *flags).stdout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx.checker.check_model(str(out), full_check=True)
        if HAS_RUNTIME:
            model = reference(onnx.load(str(source)), report)
            rewritten = folder() / "reference.onnx"
            onnx.save(model, str(rewritten))
            given, theirs = run(opens(rewritten))
            same(open_model(out).run(None, given), theirs)
    return report


# What onnx or ONNX Runtime refuse in the input, or what cannot run with values that are made up.
REFUSED = {"depth_20", "recursive_function", "no_default_opset", "sparse_initializer", "ext_dotdot_inside", "unknown_group"}


def odd_model(name, expect):
    def test():
        if name in REFUSED or expect == "EITHER":
            tcast(MODELS / f"{name}.onnx", "--to", "float16", "-o", folder() / "out.onnx", code=None)
            return
        report = check(MODELS / f"{name}.onnx", "float16", "--min-elements", "0")
        kept = expect.removeprefix("KEEP ").split() if expect.startswith("KEEP") else []
        cast = {row.get("renamed_from", row["name"]) for row in report["tensors"] if row["cast"]}
        assert not cast & set(kept), f"{cast & set(kept)} are to be kept"
        named = " ".join(row["name"] for row in report["tensors"] if row.get("kept"))
        assert all(name in named for name in kept), f"{named}: {kept}"

    return test


def real_model(path, dtype, *flags):
    def test():
        dry = tcast(path, "--to", dtype, "--dry-run", "-o", folder() / "x.onnx", *flags, code=None)
        if dry.returncode:
            # Only operators that change, older versions and functions are reasons.
            is_known = "needs opset" in dry.stderr or "needs a later IR version" in dry.stderr
            assert is_known and dtype != "float16", dry.stderr
            return
        check(path, dtype, *flags)

    return test


def keeps_unknown_bytes():
    """Messages that are not changed are the same bytes, unknown fields too."""
    source = (MODELS / "unknown_fields.onnx").read_bytes()
    out = folder() / "out.onnx"
    tcast(MODELS / "unknown_fields.onnx", "--to", "float16", "--min-elements", "0", "-o", out)
    result = out.read_bytes()
    for field in range(2000, 2008):
        for kind in (0, 1, 2, 5):
            tag = varint(field << 3 | kind)
            assert source.count(tag) == result.count(tag), (field, kind)


def takes_out_every_value():
    """Tensors that are taken out are those that onnx reads, bit for bit."""
    for name in ("basic_pitch_nmp", "knn_surrogate", "subgraph_capture", "ext_good", "constant_forms"):
        out = folder() / "out.safetensors"
        tcast(MODELS / f"{name}.onnx", "--to", "float32", "--exclude", "*", "-o", out)
        with safetensors.safe_open(str(out), "numpy") as taken:
            for key, tensor in tensors(onnx.load(str(MODELS / f"{name}.onnx"))).items():
                ours, theirs = taken.get_tensor(key), numpy_helper.to_array(tensor)
                assert ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes(), f"{name}: {key}"


def breaks(before, after):
    """Whether a schema breaks what was valid by an earlier one."""
    option = onnx.defs.OpSchema.FormalParameterOption
    if after.deprecated:
        return True
    for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        if len(new) < len(old) or any(one.option == option.Single for one in new[len(old) :]):
            return True
        for one, other in zip(old, new, strict=False):
            is_optional = (one.option, other.option) == (option.Single, option.Optional)
            if one.option != other.option and not is_optional or not set(one.types) <= set(other.types):
                return True
    for name, one in before.attributes.items():
        other = after.attributes.get(name)
        if other is None or one.type != other.type or other.required and not one.required:
            return True
        if one.default_value != other.default_value:
            return True
    return any(one.required for name, one in after.attributes.items() if name not in before.attributes)


def quantizable(dtype, seed):
    """A random model whose weights every scheme of the program takes, of sizes that no block divides."""
    random = np.random.default_rng(seed)
    inputs, hidden, outputs = (int(length) for length in random.integers(1, 200, 3))

    def weight(name, *shape):
        values = random.standard_normal(shape) * 10.0 ** random.uniform(-3, 1)
        if random.random() < 0.3:
            values = random.integers(-16, 17, shape) / 8  # halves of steps, and zeros
        if random.random() < 0.3:
            values[:, ::3] *= -0.0  # whole blocks of zeros, of both signs
        return numpy_helper.from_array(values.astype(dtype), name)

    weights = [weight("w", inputs, hidden), weight("v", outputs, hidden), weight("u", outputs, inputs), weight("k", 6, 4, 3, 3)]
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    value = functools.partial(onnx.helper.make_tensor_value_info, elem_type=element)
    node = onnx.helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Gemm", ["h", "v"], ["m"], transB=1),
        node("Gemm", ["m", "u"], ["y"]),
        node("MatMul", ["x", "w"], ["z"]),
        node("Conv", ["i", "k"], ["c"]),
    ]
    given = [value("x", shape=["b", inputs]), value("i", shape=["b", 4, 8, 8])]
    results = [value("y", shape=["b", inputs]), value("z", shape=["b", hidden]), value("c", shape=["b", 6, 6, 6])]
    graph = onnx.helper.make_graph(nodes, "g", given, results, weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


def initializers(model):
    return {tensor.name: tensor for tensor in model.graph.initializer}


def open_decoding(path):
    """A session that decodes weights once, in float arithmetic."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantizes(scheme, dtype, seed):
    """Quantized models are valid, their codes are those of ONNX Runtime's tools, and decoded they compute the same."""

    def test():
        source, out, plain = (folder() / name for name in ("in.onnx", "out.onnx", "plain.onnx"))
        model, block = quantizable(dtype, seed), [16, 32, 64, 128][seed % 4]
        onnx.save(model, str(source))
        flags = ["--group-size", block] if scheme.startswith("int4") else []
        flags += ["--external-data"] if seed % 3 == 0 else []
        tcast(source, "--scheme", scheme, "-o", out, "--min-elements", "0", *flags, command="quantize")
        tcast(out, "-o", plain, command="dequantize")
        for path in (out, plain):
            onnx.checker.check_model(str(path), full_check=True)
        decoded = onnx.load(str(plain))
        signature = [(node.op_type, list(node.input)) for node in decoded.graph.node]
        assert signature == [(node.op_type, list(node.input)) for node in model.graph.node], signature
        if not HAS_RUNTIME:
            return
        ours = initializers(onnx.load(str(out)))
        if scheme == "int8":
            same_as_quantize_static(model, ours)
        elif scheme != "fp8":
            same_as_nbits(model, ours, block, scheme == "int4")
        given = inputs(open_decoding(plain), 3, 1, 3)
        same(open_decoding(out).run(None, given), open_decoding(plain).run(None, given))

    return test


def same_as_quantize_static(model, ours):
    from onnxruntime.quantization import quant_utils

    for name, axis in (("w", 1), ("v", 0), ("u", 1), ("k", 0)):
        weight = numpy_helper.to_array(initializers(model)[name])
        channels = (weight.take(index, axis).ravel() for index in range(weight.shape[axis]))
        int8 = onnx.TensorProto.INT8
        scales = np.array([quant_utils.compute_data_quant_params(channel, int8, True)[1] for channel in channels])
        scales = scales.astype(weight.dtype)
        theirs = quant_utils.quantize_onnx_initializer(
            initializers(model)[name], int8, np.zeros(len(scales), np.int8), scales, axis
        )
        assert numpy_helper.to_array(ours[f"{name}_int8_scale"]).tobytes() == scales.tobytes(), f"scales of {name}"
        assert ours[f"{name}_int8"].raw_data == theirs.raw_data, f"codes of {name}"


def with_nbits(model, block, is_symmetric, **config):
    """The model as ONNX Runtime's tool quantizes its products."""
    try:
        from onnxruntime.quantization import matmul_nbits_quantizer as tool
    except ModuleNotFoundError as error:
        raise Skip("the tool of ONNX Runtime lacks a package") from error
    logging.disable(logging.INFO)  # it reports every node
    formats = {"quant_format": tool.QuantFormat.QDQ} if not config else config
    config = tool.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=is_symmetric, **formats)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    quantizer = tool.MatMulNBitsQuantizer(copy, algo_config=config)
    quantizer.process()
    return quantizer.model.model


def same_as_nbits(model, ours, block, is_symmetric):
    theirs = initializers(with_nbits(model, block, is_symmetric))
    name = "w_int4" if is_symmetric else "w_uint4"
    pairs = {name: "w_DQ_Q4", f"{name}_scale": "w_DQ_scales"}
    pairs |= {} if is_symmetric else {f"{name}_zero_point": "w_DQ_zero_points"}
    for one, other in pairs.items():
        assert ours[one].raw_data == theirs[other].raw_data, one


def computes_with_codes(bits, is_symmetric, dtype, seed):
    """MatMulNBits has the bytes of ONNX Runtime's tool, and computes what the decoded model computes."""

    def test():
        source, out, plain = (folder() / name for name in ("in.onnx", "out.onnx", "plain.onnx"))
        model, block = quantizable(dtype, seed), [16, 32, 64, 128][seed % 4]
        onnx.save(model, str(source))
        flags = ["--layout", "matmulnbits", "--block-size", block, "--min-elements", "0"]
        scheme = f"int{bits}" if is_symmetric else f"int{bits}-asym"
        tcast(source, "--scheme", scheme, "-o", out, *flags, command="quantize")
        tcast(out, "-o", plain, command="dequantize")
        onnx.checker.check_model(str(plain), full_check=True)
        if not HAS_RUNTIME:
            return
        ours, theirs = onnx.load(str(out)), with_nbits(model, block, is_symmetric, bits=bits)
        length = initializers(model)["w"].dims[0] * bits
        for name, tensor in initializers(theirs).items():
            one = initializers(ours)[name]
            assert (one.data_type, one.dims) == (tensor.data_type, tensor.dims), name
            found = [np.frombuffer(each.raw_data, np.uint8) for each in (one, tensor)]
            if name == f"w_Q{bits}":
                # ONNX Runtime's tool leaves bits of the last byte of a row as they were in memory.
                found = [np.unpackbits(each, bitorder="little").reshape(one.dims[0], -1)[:, :length] for each in found]
            assert np.array_equal(*found), name
        described = [
            [
                (node.op_type, node.domain, list(node.input), list(node.output), sorted(map(str, node.attribute)))
                for node in quantized.graph.node
            ]
            for quantized in (ours, theirs)
        ]
        assert described[0] == described[1], described
        given = inputs(open_decoding(plain), 3, 1, 3)
        results = [open_decoding(path).run(None, given) for path in (out, plain)]
        for one, other in zip(*results, strict=True):
            # The kernel of MatMulNBits adds the products in another order.
            size = np.abs(other.astype(np.float64)).max()
            assert np.allclose(one.astype(np.float64), other, rtol=0, atol=size * (1e-2 if dtype == "float16" else 1e-4))

    return test


def weight_of(path):
    """The weight of a product, as ONNX Runtime computes it without any fusion: each value is a sum with zeros."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    element = {"tensor(float)": np.float32, "tensor(float16)": np.float16}[session.get_inputs()[0].type]
    return session.run(None, {"x": np.eye(session.get_inputs()[0].shape[1], dtype=element)})


def moves_codes(stored, has_zeros, dtype, seed):
    """Codes move from DequantizeLinear to MatMulNBits and back, and ONNX Runtime computes the same weights."""

    def test():
        random, block = np.random.default_rng(seed), [16, 32, 64, 128, 0][seed % 5]
        inputs, outputs = (int(length) for length in random.integers(1, 300, 2))
        bits = 4 if "4" in stored else 8
        low = 0 if stored.startswith("u") else -(1 << bits - 1)

        def codes_of(shape):
            return random.integers(low, low + (1 << bits), shape).astype(getattr(ml_dtypes, stored, stored))

        grid = [-(-inputs // block), outputs] if block else [outputs]
        parts = {"c": codes_of((inputs, outputs)), "s": (random.standard_normal(grid) * 10.0 ** -(seed % 4)).astype(dtype)}
        parts |= {"z": codes_of(grid)} if has_zeros else {}
        attributes = {"axis": 0, "block_size": block} if block else {"axis": 1}
        nodes = [
            onnx.helper.make_node("DequantizeLinear", [*parts], ["w"], **attributes),
            onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        values = [
            [onnx.helper.make_tensor_value_info(name, element, ["n", length])]
            for name, length in (("x", inputs), ("y", outputs))
        ]
        weights = [numpy_helper.from_array(values, name) for name, values in parts.items()]
        graph = onnx.helper.make_graph(nodes, "g", *values, weights)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
        source, moved, back = (folder() / name for name in ("in.onnx", "moved.onnx", "back.onnx"))
        onnx.save(model, str(source))
        scheme = f"int{bits}-asym" if has_zeros or low == 0 else f"int{bits}"
        tcast(source, "--scheme", scheme, "--layout", "matmulnbits", "-o", moved, command="quantize")
        operators = [node.op_type for node in onnx.load(str(moved)).graph.node]
        assert operators == ["MatMulNBits"], operators
        paths = [source, moved]
        if bits == 4:
            tcast(moved, "--scheme", scheme, "-o", back, command="quantize")
            onnx.checker.check_model(str(back), full_check=True)
            paths.append(back)
        plain = [initializers(decoded(path))["w"].raw_data for path in paths]
        assert all(one == plain[0] for one in plain)
        if HAS_RUNTIME:
            # A product turns -0 into +0.
            found = [weight_of(path) for path in paths]
            assert all(np.array_equal(one[0], found[0][0]) for one in found)

    return test


def decoded(path):
    out = folder() / "decoded.onnx"
    tcast(path, "-o", out, command="dequantize")
    return onnx.load(str(out))


def takes_rows_of_codes(is_symmetric, dtype, seed):
    """GatherBlockQuantized has the bytes of ONNX Runtime's tool, and takes the rows of the decoded table."""

    def test():
        random, block = np.random.default_rng(seed), [16, 32, 64, 128][seed % 4]
        shape = [int(length) for length in random.integers(1, 200, 2)]
        values = random.standard_normal(shape) * 10.0 ** random.uniform(-3, 1)
        values = [values, random.integers(-16, 17, shape) / 8, abs(values), -abs(values)][seed // 4 % 4]
        values[::3] *= 0.0
        table = values.astype(getattr(ml_dtypes, dtype, dtype))
        element = onnx.helper.np_dtype_to_tensor_dtype(table.dtype)
        node = onnx.helper.make_node("Gather", ["emb", "ids"], ["y"], name="rows" if seed % 2 else "", axis=0)
        ids = onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])
        rows_of = onnx.helper.make_tensor_value_info("y", element, ["n", shape[1]])
        graph = onnx.helper.make_graph([node], "g", [ids], [rows_of], [numpy_helper.from_array(table, "emb")])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
        source, out, plain = (folder() / name for name in ("in.onnx", "out.onnx", "plain.onnx"))
        onnx.save(model, str(source))
        flags = ["--layout", "matmulnbits", "--include-embeddings", "--block-size", block, "--min-elements", "0"]
        tcast(source, "--scheme", "int4" if is_symmetric else "int4-asym", "-o", out, *flags, command="quantize")
        tcast(out, "-o", plain, command="dequantize")
        onnx.checker.check_model(str(plain), full_check=True)
        if not HAS_RUNTIME:
            return
        ours = onnx.load(str(out))
        theirs = with_nbits(model, block, is_symmetric, bits=4, op_types_to_quantize=("MatMul", "Gather"))
        for name, tensor in initializers(theirs).items():
            one = initializers(ours)[name]
            assert (one.data_type, one.dims) == (tensor.data_type, tensor.dims), name
            found = [np.frombuffer(each.raw_data, np.uint8) for each in (one, tensor)]
            if name == "emb_scales":
                # The sign of a scale of 0 depends on the order in which NumPy compares zeros of both signs.
                found = [numpy_helper.to_array(each) + 0.0 for each in (one, tensor)]
            assert np.array_equal(*found), name
        described = [
            (node.op_type, node.domain, node.name, list(node.input), sorted(map(str, node.attribute)))
            for node in (ours.graph.node[0], theirs.graph.node[0])
        ]
        assert described[0] == described[1], described
        if dtype != "bfloat16":  # ONNX Runtime has no kernel for it on a CPU
            given = {"ids": np.arange(shape[0])}
            same(open_model(out).run(None, given), open_model(plain).run(None, given))

    return test


def decodes_models_of_onnx_runtime():
    """The values that come in the place of codes are those that ONNX Runtime computes."""
    for name in ("ort_static", "ort_nbits"):
        out = folder() / "out.onnx"
        tcast(MODELS / f"{name}.onnx", "-o", out, command="dequantize")
        onnx.checker.check_model(str(out), full_check=True)
        if HAS_RUNTIME:
            given = inputs(open_decoding(out), 96, 1, 8)
            same(open_decoding(MODELS / f"{name}.onnx").run(None, given), open_decoding(out).run(None, given))


def knows_what_every_opset_breaks():
    """The table of operators that `--raise-opset` relies on is that of onnx's schemas."""
    schemas = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, []).append(schema)
    wanted = {}
    for name, versions in schemas.items():
        versions.sort(key=lambda schema: schema.since_version)
        steps = zip(versions, versions[1:], strict=False)
        wanted[name] = {other.since_version for one, other in steps if breaks(one, other)}
        wanted[name] |= {HIDDEN[name]} if name in HIDDEN else set()
    source = (ROOT / "src/container/onnx/model/opsets.rs").read_text()
    table = source.split('OPERATORS: &str = "')[1].split('";')[0].replace("\\\n", " ")
    found = {row.split()[0]: {int(version) for version in row.split()[1:]} for row in table.split(",")}
    assert found == wanted, {name: (found.get(name), wanted.get(name)) for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)}


def varint(number):
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def tests():
    for row in rows("onnx_models/MANIFEST.tsv"):
        yield f"odd {row['path']}", odd_model(row["path"].removesuffix(".onnx"), row["expect"])
    found = sorted(path for path in MODELS.glob("*.onnx") if path.stem in ("knn_surrogate", "basic_pitch_nmp"))
    site = Path(sysconfig.get_paths()["purelib"])
    shipped = [path for package in PACKAGES if HAS_RUNTIME for path in sorted((site / package).rglob("*.onnx"))]
    found += [path for path in shipped if 10_000 < path.stat().st_size < 5_000_000]
    if os.environ.get("ONNX_MODELS"):
        found += sorted(Path(os.environ["ONNX_MODELS"]).glob("*.onnx"))
    for path in found:
        for dtype in ("float16", "bfloat16", "float8e4m3fn"):
            yield f"{path.name} {dtype}", real_model(path, dtype, "--min-elements", "64", "--raise-opset")
        yield f"{path.name} external", real_model(path, "float16", "--min-elements", "64", "--external-data")
    for seed, scheme in enumerate(("int8", "fp8", "int4", "int4-asym") * 6):
        dtype = "float16" if seed % 8 > 3 else "float32"
        yield f"quantize {scheme} {dtype} {seed}", quantizes(scheme, dtype, seed)
    for seed, (dtype, is_symmetric) in enumerate([*itertools.product(("float32", "float16", "bfloat16"), (True, False))] * 4):
        yield f"tables of {dtype} {seed}", takes_rows_of_codes(is_symmetric, dtype, seed)
    for seed, (bits, is_symmetric, dtype) in enumerate(itertools.product((2, 4, 8), (True, False), ("float32", "float16"))):
        yield f"int{bits} in blocks, {is_symmetric} {dtype}", computes_with_codes(bits, is_symmetric, dtype, seed)
    kinds = itertools.product(("int4", "uint4", "int8", "uint8"), (True, False), ("float32", "float16"))
    for seed, (stored, has_zeros, dtype) in enumerate([*kinds] * 2):
        yield f"moves {stored}, {has_zeros} {dtype} {seed}", moves_codes(stored, has_zeros, dtype, seed)
    yield "dequantize", decodes_models_of_onnx_runtime
    yield "unknown fields", keeps_unknown_bytes
    yield "values", takes_out_every_value
    yield "opsets", knows_what_every_opset_breaks
