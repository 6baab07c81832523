"""Numbers to text and back: the shortest digits, and one rounding of the exact number that a text denotes.

What text a float becomes is asked of numpy and of Python; what number a text is, of exact fractions.
"""

import functools
import io
import re
from fractions import Fraction

import numpy as np

import oracle
from common import array_of, folder, npy_form, report, same_codes, some_codes, tcast
from tensor_files import Tensor, read, same_tensor, to_array, to_proto, write

U = np.uint64

# ---------------------------------------------------------------------------------------- numbers to text


def positional(value):
    """The shortest digits of a finite float, without an exponent. Python's repr is the second opinion for float64."""
    return np.format_float_positional(value, unique=True, trim="-")


def texts_of(codes, name):
    """What codes become as text."""
    t = oracle.SOURCES[name]
    x = oracle.decode(codes, name)
    if t.kind in ("bool", "int"):
        signs = np.where(x.negative, -1, 1).tolist()
        return [str(sign * magnitude).encode() for sign, magnitude in zip(signs, x.mantissa.tolist())]
    # Narrower floats are widened to float32, which is exact.
    width = "float64" if name == "float64" else "float32"
    wide = oracle.cast(codes, name, width) if width != name else codes
    floats = array_of(wide, width)
    specials = {oracle.NAN: (b"NaN", b"NaN"), oracle.INFINITE: (b"INF", b"-INF")}
    return [
        specials[cls][negative] if cls != oracle.FINITE else positional(value).encode()
        for cls, negative, value in zip(x.cls.tolist(), x.negative.tolist(), floats)
    ]


def same_texts(got, codes, name, what):
    """Asserts that the texts of codes are right."""
    wanted = texts_of(codes, name)
    assert len(got) == len(wanted), f"{what}: {len(got)} texts"
    wrong = []
    for index, (a, b) in enumerate(zip(got, wanted)):
        if a != b:
            wrong.append(f"{int(codes[index]):x} at {index}: {a!r}, not {b!r}")
    assert not wrong, f"{what}: {len(wrong)} of {len(got)} differ: {'; '.join(wrong[:4])}"


@folder
def to_text(path, name):
    """Every code of up to 16 bits, edges and noise of the wider types, to text in each container that holds it."""
    codes = oracle.samples(name, 2000)
    if len(codes) > 40000 and name not in ("float16", "bfloat16"):
        codes = codes[::3]
    write(path / "in.npy", [Tensor("in", name, (len(codes),), codes)])
    # float64's least numbers take 340 characters, four bytes each, in every element of an array.
    targets = (".pb",) if name == "float64" else (".npy", ".npz", ".pb")
    for target in targets:
        output = path / f"out{target}"
        run = tcast(path / "in.npy", "--to", "string", "--json", "-o", output)
        (found,) = read(output, "in")
        assert (found.dtype, found.shape) == ("string", (len(codes),))
        same_texts(found.content, codes, name, f"{name} to {target}")
        told = report(run)["in"]
        assert (told["from"], told["to"], told["cast"]) == (name, "string", True), told
        if target == ".npy":
            array = np.load(output)
            longest = max(len(text) for text in found.content)
            assert array.dtype == np.dtype(f"<U{longest}"), f"{array.dtype}, for {longest} characters"
            assert output.read_bytes() == np_save(array), "other bytes than np.save's"


def np_save(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


# As the ruling on text has them, and a few by hand.
RULED = {
    "float32": [
        (0x3F800000, "1"),
        (0x00000000, "0"),
        (0x80000000, "-0"),
        (0x3DCCCCCD, "0.1"),
        (0x38D1B717, "0.0001"),
        (0x33D6BF95, "0.0000001"),
        (0x60AD78EC, "100000000000000000000"),
        (0x4CEB79A3, "123456790"),
        (0x4B800000, "16777216"),
        (0x7F800000, "INF"),
        (0xFF800000, "-INF"),
        (0x7FC00000, "NaN"),
        (0xFFC00001, "NaN"),
        (0x00000001, "0." + "0" * 44 + "1"),
        (0x7F7FFFFF, "340282350000000000000000000000000000000"),
    ],
    "float64": [
        (0x3FD5555555555555, "0.3333333333333333"),
        (0x7FEFFFFFFFFFFFFF, "17976931348623157" + "0" * 292),
        (0x0000000000000001, "0." + "0" * 323 + "5"),
    ],
    "float16": [(0x2E66, "0.099975586"), (0x7BFF, "65504"), (0x0001, "0.000000059604645")],
    "bfloat16": [(0x3DCD, "0.100097656"), (0x7F7F, "338953140000000000000000000000000000000")],
    "float8e4m3fn": [(0x1D, "0.1015625"), (0x7E, "448"), (0x80, "-0"), (0x7F, "NaN")],
    "float8e8m0": [(0x00, "0.000000000000000000000000000000000000005877472"), (0xFF, "NaN"), (0x7F, "1")],
    "float4e2m1": [(0x1, "0.5"), (0xF, "-6"), (0x8, "-0")],
    "bool": [(0, "0"), (1, "1")],
    "int4": [(0x8, "-8"), (0x7, "7")],
    "uint2": [(3, "3")],
    "int64": [(1 << 63, "-9223372036854775808")],
    "uint64": [((1 << 64) - 1, "18446744073709551615")],
}


@folder
def ruled_texts(path, name):
    codes, texts = zip(*RULED[name])
    tensor = Tensor("x", name, (len(codes),), np.array(codes, U))
    (path / "x.pb").write_bytes(to_proto(tensor).SerializeToString())
    tcast(path / "x.pb", "--to", "string", "-o", path / "out.pb")
    (found,) = read(path / "out.pb")
    same_tensor(found, Tensor("x", "string", tensor.shape, [text.encode() for text in texts]), name)


# ---------------------------------------------------------------------------------------- there and back


def finite_codes(name, codes):
    return codes[oracle.decode(codes, name).cls == oracle.FINITE]


def nearest(name):
    """Shortest digits can lie above a power of two by a hair, and E8M0 rounds up unless told."""
    return ["--round-mode=nearest"] if name == "float8e8m0" else []


def same_after(path, codes, name, container, what):
    """Codes to text in a container and back are the same; returns the texts."""
    np.save(path / "in.npy", npy_form(codes, name, codes.shape))
    texts, back = path / f"texts{container}", path / "back.npy"
    tcast(path / "in.npy", "--to", "string", "-o", texts, "-f", "--no-sync")
    tcast(texts, "--all", "--to", name, *nearest(name), "-o", back, "-f", "--no-sync")
    (found,) = read(back)
    same_codes(found.content, codes, name, what, codes)
    return texts


@folder
def every_value_and_back(path, name):
    """Every finite value of a type of up to 16 bits."""
    codes = finite_codes(name, np.arange(1 << oracle.TYPES[name].bits, dtype=U))
    for container in (".npy", ".pb", ".npz"):
        same_after(path, codes, name, container, f"{name} through {container}")


@folder
def many_values_and_back(path, name, container, seed):
    """A quarter of a million random values: of every magnitude in .pb, and of a width that is kind to .npy there."""
    rng = np.random.default_rng(seed)
    bits = oracle.TYPES[name].bits
    t = oracle.TYPES[name]
    codes = rng.integers(0, 1 << 64, 250_000, dtype=U) >> U(64 - bits)
    if name == "float64":
        # Beyond these magnitudes, texts get long; a tenth of the values in .pb is of any magnitude.
        exponents = rng.integers(t.bias - 40, t.bias + 60, codes.size, dtype=U) << U(t.mantissa_bits)
        near = codes & U((1 << 63) | ((1 << t.mantissa_bits) - 1)) | exponents
        codes = np.where((rng.random(codes.size) < 0.1) & (container == ".pb"), codes, near)
    codes = finite_codes(name, codes)
    texts = same_after(path, codes, name, container, f"{name} through {container}")
    (found,) = read(texts, "in")
    if name == "float32":
        same_texts(found.content, codes, name, container)
        return
    # Python's repr has the shortest digits of a float64 as well, and is quicker to ask.
    floats = array_of(codes, name).tolist()
    wanted = [repr(value).removesuffix(".0").encode() for value in floats]
    others = [index for index, text in enumerate(wanted) if found.content[index] != text]  # 1e-05, and ties
    same_texts([found.content[index] for index in others], codes[others], name, container)


# ---------------------------------------------------------------------------------------- text to numbers

NUMBER = re.compile(r"([+-]?)(?:([0-9]+\.?[0-9]*|\.[0-9]+)(?:e([+-]?[0-9]+))?|(inf|infinity)|(nan))", re.I)


def exact(text):
    """(negative, magnitude) of a text, for oracle.cast_exact."""
    match = NUMBER.fullmatch(text.strip())
    sign, digits, exponent, infinity, nan = match.groups()
    if infinity or nan:
        return sign == "-", "inf" if infinity else "nan"
    # So far beyond every type that it makes no difference how far.
    power = max(min(int(exponent or 0), 5000), -5000)
    return sign == "-", Fraction(digits) * Fraction(10) ** power


def decimal(fraction):
    """All digits of a fraction whose denominator is a power of two."""
    sign = "-" if fraction < 0 else ""
    fraction = abs(fraction)
    places = fraction.denominator.bit_length() - 1
    whole = str(fraction.numerator * 5**places).rjust(places + 1, "0")
    return sign + (whole[:-places] + "." + whole[-places:] if places else whole)


def value_of(code, name):
    x = oracle.decode(np.array([code], U), name)
    assert x.cls[0] == oracle.FINITE
    return Fraction(int(x.mantissa[0])) * Fraction(2) ** int(x.exponent[0])


COMMON = """
0 -0 +0 0.0 -0.0 1 -1 +1 00012 1. .5 5. +5 -.5 1e0 1E8 1e+2 1E-2 1.5e3 -2.5E-1 0e5 0e999999 255 256 -7 300 100.5
INF inf +INF -INF Inf infinity -Infinity INFINITY NaN nan NAN 1e400 -1e400 1e-400 -1e-400 1e-320 1e20 -1e20
1e999999999 1e-999999999 1e99999999999999999999 1e-99999999999999999999 2.5 3.5 -2.5 0.5 1.5 -0.5 -1.5 7.5 -8.5
1.9999999999999999999 2147483647 2147483648 4294967295 4294967296 9223372036854775807 9223372036854775808
-9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 36893488147419103233
123456789012345678901234567890 -123456789012345678901234567890 1e19 12345678901234567890e-3 9007199254740993
9007199254740992.5 1.00390625000000000001 1.00390625 1.0625000000000000001 464 464.00000000000000000001 448
65519.99999999999999999 65520 1.00000005960464477539062501 0.1 0.3333333333333333333333333333333333
3.4028235677973366e38 3.4028235677973365e38 1.7976931348623158e308 1.7976931348623159e308
179769313486231580793e289 4.9e-324 2.4703282292062327e-324 2.4703282292062328e-324
0.0000000000000000000000000000000000000000000000000000000000001e61 1e-5
""".split()
BLANKS = [" 1.5", "1.5 ", "\t2\n", "  -3e0\r\n", " INF "]


def ties(name):
    """Texts of the points between neighbours of a float type, and of what is just beside them, all digits of them."""
    t = oracle.TYPES[name]
    rng = np.random.default_rng(11)
    every = t.max_code if t.bits <= 16 else 0
    below = [0, 1, (1 << t.mantissa_bits) - 1, 1 << t.mantissa_bits, t.max_code - 1]
    below += range(every) if 0 < every < 300 else rng.integers(0, t.max_code, 60).tolist()
    texts = []
    for code in below:
        low, high = value_of(code, name), value_of(code + 1, name)
        tie = decimal((low + high) / 2)
        dotted = tie if "." in tie else tie + "."
        texts += [tie, "-" + tie, dotted + "0" * 30 + "1", decimal(low), decimal(high)]
        # Below the tie by a hair: the last digit one less, and then nines.
        digits = tie.rstrip("0") if "." in tie else tie
        if digits[-1] not in ".0":
            texts.append(digits[:-1] + str(int(digits[-1]) - 1) + ("" if "." in tie else ".") + "9" * 30)
    # Where overflow begins.
    edge = value_of(t.max_code, name) + (value_of(t.max_code, name) - value_of(t.max_code - 1, name)) / 2
    dotted = decimal(edge) if "." in decimal(edge) else decimal(edge) + "."
    return [*texts, decimal(edge), "-" + decimal(edge), dotted + "0" * 40 + "1", decimal(value_of(t.max_code, name))]


def texts_for(name):
    t = oracle.TYPES[name]
    texts = [*COMMON, *BLANKS]
    if t.kind == "float":
        texts += ties(name)
    elif t.kind == "int":
        ends = [1 << t.bits, 1 << (t.bits - 1)]
        texts += [
            f"{sign}{end + add}{rest}"
            for end in ends
            for add in (-1, 0, 1)
            for sign in ("", "-")
            for rest in ("", ".5")
        ]
    rng = np.random.default_rng(12)
    for _ in range(500):
        digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, 40))))
        point = int(rng.integers(0, len(digits) + 1))
        texts.append(f"{rng.choice(['', '-', '+'])}{digits[:point]}.{digits[point:]}e{rng.integers(-60, 40)}")
    if t.kind == "e8m0":
        texts += [decimal(Fraction(2) ** power) for power in range(-130, 130)]
        texts += [
            decimal(Fraction(2) ** power) + ("" if power < 0 else ".") + "0" * 9 + "1" for power in range(-128, 129)
        ]
    return texts


@folder
def from_text(path, name):
    """The exact number is rounded once, by the rule of the target."""
    texts = texts_for(name)
    wanted = oracle.cast_exact([exact(text) for text in texts], name)
    tensor = Tensor("x", "string", (len(texts),), [text.encode() for text in texts])
    write(path / "in.pb", [tensor])
    short = [index for index, text in enumerate(texts) if len(text) < 300]
    write(path / "in.npy", [Tensor("x", "string", (len(short),), [tensor.content[index] for index in short])])
    np.save(path / "bytes.npy", np.array([tensor.content[index] for index in short]))
    every = range(len(texts))
    for source, indices in (("in.pb", every), ("in.npy", short), ("bytes.npy", short)):
        for target in (".npy", ".pb", ".safetensors"):
            tcast(path / source, "--to", name, "-o", path / f"out{target}", "-f")
            (found,) = read(path / f"out{target}", "x")
            different = np.flatnonzero(found.content != wanted[list(indices)])
            shown = [
                f"{texts[indices[i]]!r}: {int(found.content[i]):x}, not {int(wanted[indices[i]]):x}" for i in different
            ]
            assert not shown, f"{source} to {target}: {len(shown)} of {len(indices)} differ: {'; '.join(shown[:5])}"


@folder
def bool_words(path):
    texts = ["true", "false", "1", "0", "-0.0", "NaN", "1e-400", "2", " true ", "-INF"]
    np.save(path / "in.npy", np.array(texts))
    tcast(path / "in.npy", "--to", "bool", "-o", path / "out.npy")
    assert np.load(path / "out.npy").tolist() == [True, False, True, False, False, True, True, True, True, True]


NO_NUMBERS = ["", " ", "abc", "1.5abc", "0x10", "1_000", "1e", "e5", "--1", "+-1", "1,5", ".", "-", "1 2", "1e5.5"]
NO_NUMBERS += ["INF1", "true", "1d", "½", "१", "१.५", "٣", "1\u00a0", "1\0", "\x001", "None", "1.2.3", "infin", "nano", "1f"]


@folder
def no_numbers(path):
    """A text that is not a number is an error that says where, and nothing is written."""
    for text in NO_NUMBERS:
        texts = [b"1", b"2", text.encode(), b"also none"]
        write(path / "in.pb", [Tensor("the tensor", "string", (2, 2), texts)])
        for name in ("float32", "int8", "float8e4m3fn", "bool"):
            if (text, name) == ("true", "bool"):
                continue
            run = tcast(path / "in.pb", "--to", name, "-o", path / "out.npy", code=1)
            first = run.stderr.splitlines()[0]
            assert first.startswith("tcast: error: "), run.stderr
            assert "the tensor" in first and re.search(r"\b2\b|\[1, 0\]", first), f"{text!r}: not told where: {first}"
            visible = text.strip() if text.isascii() and text.isprintable() else ""
            assert visible in first, f"{text!r}: not told what: {first}"
            assert [entry.name for entry in path.iterdir()] == ["in.pb"], "something was left behind"


@folder
def out_of_range_text(path):
    """A number that an integer cannot hold meets the policy that floats meet."""
    texts = ["300", "-129.5", "1e30", "INF", "-INF", "NaN", "127.9", "-128"]
    np.save(path / "in.npy", np.array(texts))
    tcast(path / "in.npy", "--to", "int8", "-o", path / "wrapped.npy")
    wrapped = oracle.cast_exact([exact(text) for text in texts], "int8").astype(np.uint8).view(np.int8)
    assert np.load(path / "wrapped.npy").tolist() == wrapped.tolist()
    tcast(path / "in.npy", "--to", "int8", "--out-of-range", "saturate", "-o", path / "saturated.npy")
    assert np.load(path / "saturated.npy").tolist() == [127, -128, 127, 127, -128, 0, 127, -128]
    run = tcast(path / "in.npy", "--to", "int8", "--out-of-range", "error", "-o", path / "refused.npy", code=1)
    assert not (path / "refused.npy").exists() and "300" in run.stderr, run.stderr


@folder
def unsaturated_text(path):
    """The attributes of float8 hold for text as for numbers."""
    np.save(path / "in.npy", np.array(["448", "464", "464.00000001", "-1e9", "INF", "NaN"]))
    tcast(path / "in.npy", "--to", "float8e4m3fn", "--saturate=false", "-o", path / "out.pb")
    assert read(path / "out.pb")[0].content.tolist() == [0x7E, 0x7E, 0x7F, 0xFF, 0x7F, 0x7F]
    np.save(path / "in.npy", np.array(["1.5", "1.49999", "3", "1e-39"]))
    for mode, wanted in (
        ("up", [0x80, 0x80, 0x81, 0]),
        ("down", [0x7F, 0x7F, 0x80, 0]),
        ("nearest", [0x80, 0x7F, 0x81, 0]),
    ):
        tcast(path / "in.npy", "--to", "float8e8m0", "--round-mode", mode, "-o", path / "out.pb", "-f")
        assert read(path / "out.pb")[0].content.tolist() == wanted, mode


@folder
def text_beside_numbers(path):
    """In a file of many tensors, text stays with a floating target, unless all are asked for."""
    arrays = {"t": np.array(["1.5", "x"]), "f": np.float32([0.5]), "i": np.int8([7])}
    np.savez(path / "in.npz", **arrays)
    told = report(tcast(path / "in.npz", "--to", "float16", "--json", "-o", path / "out.npz"))
    assert {name: tensor["to"] for name, tensor in told.items()} == {"t": "string", "f": "float16", "i": "int8"}
    tcast(path / "in.npz", "--to", "float16", "--all", "-o", path / "all.npz", code=1)
    told = report(tcast(path / "in.npz", "--to", "string", "--all", "--json", "-o", path / "text.npz"))
    assert {tensor["to"] for tensor in told.values()} == {"string"}
    with np.load(path / "text.npz") as found:
        assert (found["f"].tolist(), found["i"].tolist(), found["t"].tolist()) == (["0.5"], ["7"], ["1.5", "x"])


@folder
def shapes_of_text(path):
    """Scalars, empty tensors and Fortran order, to text and from it."""
    for array in (np.float32(2.5), np.zeros((0, 3), np.int32), np.arange(6, dtype=np.float64).reshape(2, 3)):
        for form in (array, np.asfortranarray(array)):
            np.save(path / "in.npy", form)
            for middle in (".npy", ".npz", ".pb"):
                tcast(path / "in.npy", "--to", "string", "-o", path / f"text{middle}", "-f")
                tcast(path / f"text{middle}", "--all", "--to", str(array.dtype), "-o", path / "back.npy", "-f")
                back = np.load(path / "back.npy")
                assert back.shape == form.shape and np.array_equal(back, form), middle
    assert to_array(read(path / "text.npy")[0]).tolist() == [["0", "1", "2"], ["3", "4", "5"]]


@folder
def of_all_types(path):
    """From text to every type and back to text, of values that each has."""
    for name in oracle.TYPES:
        codes = finite_codes(name, some_codes(name, 64))
        write(path / "in.pb", [Tensor("x", name, codes.shape, codes)])
        tcast(path / "in.pb", "--to", "string", "-o", path / "text.pb", "-f")
        tcast(path / "text.pb", "--to", name, *nearest(name), "-o", path / "back.pb", "-f")
        assert (path / "back.pb").read_bytes() == (path / "in.pb").read_bytes(), name


def tests():
    for container in (".npy", ".pb"):
        for name in ("float32", "float64"):
            for seed in range(2):
                # A million of each type: half of them through each container.
                what = f"many {name} to text in {container} and back {seed}"
                yield what, functools.partial(many_values_and_back, name, container, seed)
    for name in oracle.TYPES:
        yield f"{name} to text", functools.partial(to_text, name)
        yield f"text to {name}", functools.partial(from_text, name)
    for name in ("float16", "bfloat16", *oracle.FLOAT8, "float8e8m0", "float4e2m1", "float6e2m3", "float6e3m2"):
        yield f"every {name} to text and back", functools.partial(every_value_and_back, name)
    for name in RULED:
        yield f"{name} as the ruling says", functools.partial(ruled_texts, name)
    for test in (
        bool_words,
        no_numbers,
        out_of_range_text,
        unsaturated_text,
        text_beside_numbers,
        shapes_of_text,
        of_all_types,
    ):
        yield test.__name__.replace("_", " "), test
