"""OpenVINO's own ConvertPromoteTypes-14 against `tcast promote --dry-run`: the type of every pair, or the refusal.

Every ordered pair of the 18 static types that the operator takes, with each input a scalar or not and under all its
attributes. The library infers the type of the node's output; nothing is compiled or run. Where the two refuse a pair,
the reason must be the same. They may differ where `deliberate` says so, and must.
"""

import functools
import itertools
import tempfile
from pathlib import Path

import numpy as np

from common import Skip, has_command, npy_form, tcast

# OpenVINO's name -> tcast's.
NAMES = {
    "boolean": "bool",
    **{f"u{bits}": f"uint{bits}" for bits in (1, 4, 8, 16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    "f8e4m3": "float8e4m3fn",
    "f8e5m2": "float8e5m2",
    "bf16": "bfloat16",
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
}
SHAPES = {"S": (), "D": (2,)}
U64_TARGETS = ("f32", "f64", "i64")

# Why a pair is refused: what OpenVINO says, and what tcast says.
REASONS = {
    "an integer and too narrow a float": (
        "Integer input cannot be safely promoted to floating-point.",
        ("may not hold every",),
    ),
    "a scalar of too wide a type": (
        "Scalar input cannot be PyTorch-like promoted using safe promotion rules.",
        ("cannot promote the scalar",),
    ),
    "signed and unsigned": (
        "Unsigned integer input cannot be safely promoted into any supported signed integer.",
        ("wider than both", "no integer type holds both"),
    ),
    "floats of one width": (
        "Unsupported input element types for ConvertPromoteTypes with given attributes.",
        ("wider than both",),
    ),
}
FOREIGN = "not one of ONNX's types"

# (type of the scalar, type of the other) -> why tcast refuses it. OpenVINO takes an unsigned scalar to a signed type
# of half its bits, where it must be the other way round, and compares nothing but the widths of floats.
LOSSY_SCALARS = {
    ("u4", "i4"): "8 to 15",
    ("u8", "i4"): "8 to 255",
    ("u8", "i8"): "128 to 255",
    ("u16", "i8"): "128 to 65535",
    ("u16", "i16"): "2^15 and above",
    ("u32", "i16"): "2^15 and above",
    ("u32", "i32"): "2^31 and above",
    ("u64", "i32"): "2^31 and above",
    ("u64", "i64"): "2^63 and above",
    ("f16", "bf16"): "three bits of the mantissa",
    ("bf16", "f16"): "2^16 and above, and bits under 2^-24",
    ("f8e4m3", "f8e5m2"): "a bit of the mantissa",
    ("f8e5m2", "f8e4m3"): "512 and above, and bits under 2^-9",
}


def deliberate(a, b, ranks, pytorch, is_unsafe):
    """The reason for which tcast refuses a pair that OpenVINO may take, and why it does; or None."""
    if a != b and "u1" in (a, b):
        return FOREIGN, "ONNX has no uint1: a file of one stays as it is, and mixes with nothing"
    scalar_first = {"SD": (a, b), "DS": (b, a)}.get(ranks)
    if pytorch and not is_unsafe and scalar_first in LOSSY_SCALARS:
        lost = LOSSY_SCALARS[scalar_first]
        return "cannot promote the scalar", f"the operator's text makes safe mode lossless, and this loses {lost}"
    return None


@functools.cache
def openvino():
    """The library, which starts threads: imported by each worker for itself."""
    try:
        import openvino
        import openvino.opset14
    except ImportError as error:
        raise Skip(f"OpenVINO cannot be imported: {error}") from error
    return openvino


def theirs(a, b, ranks, pytorch, is_unsafe, u64_target):
    """(type, None), or (None, the reason for which there is none)."""
    ov = openvino()
    inputs = [ov.opset14.parameter(list(SHAPES[rank]), getattr(ov.Type, name)) for rank, name in zip(ranks, (a, b))]
    try:
        node = ov.opset14.convert_promote_types(*inputs, is_unsafe, pytorch, u64_target)
    except RuntimeError as error:
        said = str(error)
        reasons = [reason for reason, (text, _) in REASONS.items() if text in said]
        assert len(reasons) == 1, said
        return None, reasons[0]
    got = dict(node.get_attributes())
    wanted = {
        "promote_unsafe": is_unsafe,
        "pytorch_scalar_promotion": pytorch,
        "u64_integer_promotion_target": u64_target,
    }
    assert got == wanted, f"the node has the attributes {got}"
    return NAMES[node.get_output_element_type(0).get_type_name()], None


def file(folder, side, rank, name):
    return folder / f"{side}-{rank}-{name}.npy"


@functools.cache
def files():
    """A folder with a file of each type, for either side, with and without dimensions."""
    folder = Path(tempfile.mkdtemp())
    for side, (rank, shape), (name, ours) in itertools.product("ab", SHAPES.items(), NAMES.items()):
        codes = np.ones(int(np.prod(shape)), np.uint64)
        np.save(file(folder, side, rank, name), npy_form(codes, ours, shape))
    return folder


def ours(a, b, ranks, pytorch, is_unsafe, u64_target):
    """(type, None), or (None, what the program says)."""
    # OpenVINO ignores the target without the other attribute, and tcast refuses it then.
    flags = ["--pytorch-scalar"] * pytorch + ["--unsafe", "--u64-target", NAMES[u64_target]] * is_unsafe
    inputs = [file(files(), side, rank, name) for side, rank, name in zip("ab", ranks, (a, b))]
    run = tcast(*inputs, *flags, "--dry-run", command="promote", code=None)
    assert run.returncode in (0, 1), f"exit code {run.returncode}: {run.stderr}"
    if run.returncode == 1:
        assert not run.stdout, f"refused, and on stdout: {run.stdout}"
        return None, run.stderr.strip()
    return run.stdout.removesuffix("\n"), None


def complaint(cell):
    """What is wrong with one cell, or None."""
    their_type, their_reason = theirs(*cell)
    our_type, said = ours(*cell)
    difference = deliberate(*cell[:-1])
    if difference:
        text, why = difference
        if said is None or text not in said:
            return f"{our_type or said}, which must be refused: {why}"
        # Safe mode of OpenVINO refuses some pairs with u1 too.
        if their_type is None and text != FOREIGN:
            return "OpenVINO refuses it too now: no longer a difference"
        return None
    if our_type != their_type:
        return f"{our_type or said}, and by OpenVINO {their_type or their_reason}"
    if our_type is None and not any(text in said for text in REASONS[their_reason][1]):
        return f"refused by OpenVINO for {their_reason}, by tcast otherwise: {said}"
    return None


def cells(a, ranks, pytorch):
    for b, is_unsafe, u64_target in itertools.product(NAMES, (False, True), U64_TARGETS):
        yield a, b, ranks, pytorch, is_unsafe, u64_target


def agrees(a, ranks, pytorch):
    if not has_command("promote"):
        raise Skip("ConvertPromoteTypes: the program has no promote yet")
    complaints = []
    for cell in cells(a, ranks, pytorch):
        wrong = complaint(cell)
        if wrong:
            _, b, _, _, is_unsafe, u64_target = cell
            complaints.append(f"with {b}, {'unsafe' if is_unsafe else 'safe'}, target {u64_target}: {wrong}")
    assert not complaints, f"{len(complaints)} cells: " + "; ".join(complaints[:4])


def tests():
    assert len(NAMES) == 18 and len(LOSSY_SCALARS) == 13
    files()  # before the workers are forked
    for a, ranks, pytorch in itertools.product(NAMES, ("DD", "SD", "DS", "SS"), (False, True)):
        # Without the attribute ranks are not looked at: one case shows it.
        if pytorch or ranks in ("DD", "SD"):
            mode = "as PyTorch does" if pytorch else "plainly"
            yield f"{a} with every type, {ranks}, {mode}", functools.partial(agrees, a, ranks, pytorch)
