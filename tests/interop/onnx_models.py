"""ONNX models: onnx's checker and shape inference accept what the program writes, and ONNX Runtime computes with it what
it computes with the original model whose same tensors were rounded by ml_dtypes, bit for bit.

Without the package onnxruntime, which `--models` installs together with packages that ship models, the models of
`fixtures/` are checked only. `ONNX_MODELS` names a folder with more models.
"""

import importlib.util
import json
import os
import sysconfig
import tempfile
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from common import FIXTURES, Skip, rows, tcast

MODELS = FIXTURES / "onnx_models"
HAS_RUNTIME = importlib.util.find_spec("onnxruntime") is not None

# Models that packages ship, as paths in site-packages: the packages are in requirements-models.txt.
SHIPPED = [
    "silero_vad/data/silero_vad.onnx",
    "silero_vad/data/silero_vad_16k_op15.onnx",
    "silero_vad/data/silero_vad_half.onnx",
    "magika/models/standard_v3_3/model.onnx",
    "onnx_asr/preprocessors/data/wespeaker.onnx",
    "onnx_asr/preprocessors/data/nemo80.onnx",
    "onnx_asr/preprocessors/data/whisper80.onnx",
    "onnx_asr/preprocessors/data/kaldi.onnx",
    "speechmos/aecmos.onnx",
    "speechmos/dnsmos.onnx",
    "speechmos/plcmos.onnx",
    "rapidocr/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "rapidocr/models/ch_PP-OCRv4_det_infer.onnx",
    "swift_f0/model.onnx",
]


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
    names = [name for _, name, _ in found]
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


# Shapes and values of inputs with unknown dimensions, where a length of 1 is too short.
SHAPES = {
    "silero": {"input": (1, 512), "state": (2, 1, 128), "sr": np.array(16000, np.int64), "h": (2, 1, 64), "c": (2, 1, 64)},
}


def inputs(session, source):
    """Values for all inputs of a model."""
    random = np.random.default_rng(7)
    given = {}
    known = next((shapes for name, shapes in SHAPES.items() if name in source.stem), {})
    for entry in session.get_inputs():
        shape = known.get(entry.name, [dim if isinstance(dim, int) and dim > 0 else 1 for dim in entry.shape])
        if isinstance(shape, np.ndarray):
            given[entry.name] = shape
            continue
        element = entry.type.removeprefix("tensor(").removesuffix(")")
        dtype = {"float": "float32", "double": "float64"}.get(element, element)
        if dtype == "string":
            raise Skip("an input is text")
        values = random.standard_normal(shape) if dtype.startswith("float") else np.ones(shape)
        given[entry.name] = values.astype(dtype)
    return given


def open_model(path):
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


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


def check(source, dtype, *flags, code=0):
    """Converts a model, checks it and compares what it computes; returns the report."""
    out = folder() / "out.onnx"
    run = tcast(source, "--to", dtype, "-o", out, "--json", *flags, code=code)
    if run.returncode:
        return None
    report = json.loads(run.stdout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx.checker.check_model(str(out), full_check=True)
        if HAS_RUNTIME:
            model = reference(onnx.load(str(source)), report)
            rewritten = folder() / "reference.onnx"
            onnx.save(model, str(rewritten))
            session = open_model(rewritten)
            given = inputs(session, source)
            same(open_model(out).run(None, given), session.run(None, given))
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
        run = tcast(path, "--to", dtype, "--dry-run", "-o", folder() / "x.onnx", *flags, code=None)
        if run.returncode:
            # Only operators that change, older versions and functions are reasons.
            assert "needs opset" in run.stderr and dtype != "float16", run.stderr
            return
        assert any(row["cast"] for row in check(path, dtype, *flags)["tensors"])

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
    found += [site / path for path in SHIPPED if (site / path).exists()]
    if os.environ.get("ONNX_MODELS"):
        found += sorted(Path(os.environ["ONNX_MODELS"]).glob("*.onnx"))
    for path in found:
        for dtype in ("float16", "bfloat16", "float8e4m3fn"):
            yield f"{path.name} {dtype}", real_model(path, dtype, "--min-elements", "64", "--raise-opset")
        yield f"{path.name} external", real_model(path, "float16", "--min-elements", "64", "--external-data")
    yield "unknown fields", keeps_unknown_bytes
