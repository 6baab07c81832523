"""Every source type to every target type, under every attribute that matters, bit for bit, with the counts.

One safetensors file holds tensors of all 25 numeric types: every code of the types of up to 16 bits, edges and noise
of the wider ones, in shapes that do and do not fill whole bytes. Each run of the program casts it to one type.
"""

import functools
import tempfile
from pathlib import Path

import numpy as np

import oracle
from common import Safetensors, report, same_codes, tcast, write_safetensors


@functools.cache
def sources():
    """(tensor, type, shape, codes, values) for every tensor of the input."""
    rng = np.random.default_rng(7)
    tensors = []

    def add(label, name, shape, codes):
        tensors.append((f"{name}.{label}", name, shape, codes, oracle.decode(codes, name)))

    for name, t in oracle.TYPES.items():
        codes = oracle.samples(name)
        add("codes", name, (len(codes),), codes)
        add("scalar", name, (), codes[-1:])
        add("empty", name, (0, 3), codes[:0])
        if t.bits < 16:
            # More than a block of the kernel; the odd ones leave bits of the last byte unused.
            for label, shape in (("even", (3, 350, 8)), ("odd", (3, 347, 3))):
                add(label, name, shape, rng.choice(codes, int(np.prod(shape))))
    return tensors


@functools.cache
def input_file():
    path = Path(tempfile.gettempdir()) / "every-type.safetensors"
    write_safetensors(path, [source[:4] for source in sources()], {"format": "pt", "kept": "as it is"})
    return path


def attributes(target):
    """The combinations of attributes to try, as keywords of the oracle."""
    if target in oracle.FLOAT8:
        return [{"saturate": saturate} for saturate in (True, False)]
    if target == "float8e8m0":
        modes = ("up", "down", "nearest")
        return [{"saturate": saturate, "round_mode": mode} for saturate in (True, False) for mode in modes]
    if oracle.TYPES[target].kind == "int":
        return [{"out_of_range": policy} for policy in ("wrap", "saturate")]
    return [{}]


def flags(rules):
    for name, value in rules.items():
        yield f"--{name.replace('_', '-')}={str(value).lower()}"


def cast_everything(target, rules):
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out.safetensors"
        told = report(tcast(input_file(), "--all", "--to", target, "-o", output, "--json", *flags(rules)))
        result = Safetensors(output)
    tensors = sources()
    assert result.names == [tensor for tensor, *_ in tensors], "another order"
    kept = {key: value for key, value in result.metadata.items() if key != "tcast"}
    assert kept == {"format": "pt", "kept": "as it is"}, f"metadata {kept}"
    wrong = []
    for tensor, source, shape, codes, values in tensors:
        try:
            got = result.codes(tensor, target, shape)
            wanted = oracle.cast(codes, source, target, values=values, **rules)
            same_codes(got, wanted, target, tensor, codes)
            counts = oracle.losses(values, source, wanted, target, rules.get("out_of_range", "wrap"))
            if source == target == "bool":  # each True is one byte, 1, whatever it was
                counts["inexact"] = int(np.count_nonzero(codes > 1))
            reported = {name: told[tensor]["counts"].get(name, 0) for name in oracle.COUNTS}
            assert reported == counts, f"{tensor}: counts {reported}, wanted {counts}"
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n    ".join([f"{len(wrong)} tensors", *wrong[:6]])


def tests():
    input_file()  # before the workers start, so that they share it
    for target in oracle.TYPES:
        for rules in attributes(target):
            yield " ".join(["to", target, *flags(rules)]), functools.partial(cast_everything, target, rules)
