"""What every numeric cast must give, worked out a second time and in another way than the program does.

A code is decoded to an exact sign, integer mantissa and power of two, and encoded once. All arithmetic is on 64-bit
integers: no floating point operation of numpy or of the machine takes part, and no library of number formats.
How many values were lost, and how, is then found by comparing exact values before and after with the exact edges of
the target's range; the encoder is not asked.

Where ONNX Cast leaves room: floats go to 8-bit and wider integers truncated, to 4- and 2-bit integers rounded to
nearest even, and keep their low bits beyond the range (NaN and Inf: 0); NaN in a float4 or float6 is -0, and -NaN
+0; a negative number has no E8M0 code but NaN's; Inf in an FNUZ type is NaN also with saturation (Cast-19 to 23).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

U = np.uint64
I = np.int64
FINITE, INFINITE, NAN = 0, 1, 2


@dataclass(frozen=True)
class Type:
    kind: str  # bool, int, float or e8m0
    bits: int
    signed: bool = False
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    max_code: int = 0  # the largest finite number
    specials: str = ""  # ieee: Inf and NaN; fn: NaN is S.1..1; fnuz: NaN is 80, no -0; finite: neither


def _float(bits, exponent_bits, mantissa_bits, bias, max_code, specials):
    return Type("float", bits, True, exponent_bits, mantissa_bits, bias, max_code, specials)


TYPES = {
    "bool": Type("bool", 8),
    **{f"int{bits}": Type("int", bits, signed=True) for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": Type("int", bits) for bits in (2, 4, 8, 16, 32, 64)},
    "float4e2m1": _float(4, 2, 1, 1, 0x7, "finite"),
    "float6e2m3": _float(6, 2, 3, 1, 0x1F, "finite"),
    "float6e3m2": _float(6, 3, 2, 3, 0x1F, "finite"),
    "float8e4m3fn": _float(8, 4, 3, 7, 0x7E, "fn"),
    "float8e4m3fnuz": _float(8, 4, 3, 8, 0x7F, "fnuz"),
    "float8e5m2": _float(8, 5, 2, 15, 0x7B, "ieee"),
    "float8e5m2fnuz": _float(8, 5, 2, 16, 0x7F, "fnuz"),
    "float8e8m0": Type("e8m0", 8),
    "float16": _float(16, 5, 10, 15, 0x7BFF, "ieee"),
    "bfloat16": _float(16, 8, 7, 127, 0x7F7F, "ieee"),
    "float32": _float(32, 8, 23, 127, 0x7F7FFFFF, "ieee"),
    "float64": _float(64, 11, 52, 1023, 0x7FEFFFFFFFFFFFFF, "ieee"),
}
# Types that ONNX lacks and ml_dtypes has: cast from, never to.
SOURCES = {
    **TYPES,
    "int1": Type("int", 1, signed=True),
    "uint1": Type("int", 1),
    "float8e3m4": _float(8, 3, 4, 3, 0x6F, "ieee"),
    "float8e4m3": _float(8, 4, 3, 7, 0x77, "ieee"),
    "float8e4m3b11fnuz": _float(8, 4, 3, 11, 0x7F, "fnuz"),
}
FLOAT8 = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
COUNTS = ("saturated", "infinite", "nan", "nan_lost", "flushed", "wrapped", "inexact", "input_nan", "input_infinite")


# ---------------------------------------------------------------------------------------- bytes


def unpack(data, name, count=None):
    """Codes out of bytes without gaps, least significant bits first."""
    bits = SOURCES[name].bits
    if bits >= 8:
        return np.frombuffer(data, f"<u{bits // 8}").astype(U)[:count]
    stream = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    count = len(stream) // bits if count is None else count
    weights = (1 << np.arange(bits)).astype(np.uint8)
    return (stream[: count * bits].reshape(count, bits) * weights).sum(axis=1).astype(U)


def pack(codes, name):
    """The inverse of unpack; the last byte is filled with zeros."""
    bits = SOURCES[name].bits
    if bits >= 8:
        return codes.astype(f"<u{bits // 8}").tobytes()
    stream = (codes.astype(np.uint8)[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.ravel(), bitorder="little").tobytes()


# ---------------------------------------------------------------------------------------- values


@dataclass
class Values:
    """Exact values: +-mantissa * 2**exponent where finite."""

    cls: np.ndarray
    negative: np.ndarray
    mantissa: np.ndarray
    exponent: np.ndarray
    payload: np.ndarray  # of a NaN, at the left of 52 bits

    def normalised(self):
        """(exponent, mantissa) with the mantissa's first bit at the left of 64; zero sorts below everything."""
        length = _bit_length(self.mantissa)
        shifted = self.mantissa << np.minimum(64 - length, 63).astype(U)
        zero = self.mantissa == 0
        return np.where(zero, -(10**6), self.exponent + length), np.where(zero, U(0), shifted)


def _bit_length(values):
    length = np.zeros(values.shape, I)
    rest = values.copy()
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= (U(1) << U(step))
        length[big] += step
        rest[big] >>= U(step)
    return length + (rest > 0)


def decode(codes, name):
    t = SOURCES[name]
    codes = np.asarray(codes, U)
    zeros = np.zeros(codes.shape, I)
    finite = np.zeros(codes.shape, np.int8)
    never = np.zeros(codes.shape, bool)
    no_payload = np.zeros(codes.shape, U)
    if t.kind == "bool":
        return Values(finite, never, (codes != 0).astype(U), zeros, no_payload)
    if t.kind == "int":
        negative = ((codes >> U(t.bits - 1)) & U(1) == 1) & t.signed
        magnitude = np.where(negative, (~codes + U(1)) & U((1 << t.bits) - 1), codes)
        return Values(finite, negative, magnitude, zeros, no_payload)
    if t.kind == "e8m0":
        cls = np.where(codes == 255, NAN, FINITE).astype(np.int8)
        return Values(cls, never, np.ones(codes.shape, U), codes.astype(I) - 127, no_payload)
    sign_shift = t.exponent_bits + t.mantissa_bits
    negative = (codes >> U(sign_shift)) & U(1) == 1
    field = ((codes >> U(t.mantissa_bits)) & U((1 << t.exponent_bits) - 1)).astype(I)
    fraction = codes & U((1 << t.mantissa_bits) - 1)
    body = codes & U((1 << sign_shift) - 1)
    cls = finite
    if t.specials == "ieee":
        cls[body == t.max_code + 1] = INFINITE
        cls[body > t.max_code + 1] = NAN
    elif t.specials == "fn":
        cls[body > t.max_code] = NAN
    elif t.specials == "fnuz":
        cls[codes == 1 << sign_shift] = NAN
    mantissa = np.where(field > 0, fraction | U(1 << t.mantissa_bits), fraction)
    exponent = np.maximum(field, 1) - t.bias - t.mantissa_bits
    payload = fraction << U(52 - t.mantissa_bits) if t.bits >= 16 else no_payload
    return Values(cls, negative, mantissa, exponent, payload)


# ---------------------------------------------------------------------------------------- rounding


def _shift_right(mantissa, distance, to_nearest=True):
    """mantissa / 2**distance as an integer; a negative distance must leave the result in 64 bits."""
    capped = np.clip(distance, 0, 63).astype(U)
    is_gone = distance > 63
    kept = np.where(is_gone, U(0), mantissa >> capped)
    if to_nearest:
        rest = mantissa & ((U(1) << capped) - U(1))
        half = np.where(capped > 0, U(1) << (np.maximum(capped, U(1)) - U(1)), U(0))
        up = (capped > 0) & ((rest > half) | ((rest == half) & (kept & U(1) == 1))) & ~is_gone
        # 2**64 * 1/2 is a tie, and goes to the even 0; more than that rounds to 1, and no farther shift does.
        up |= (distance == 64) & (mantissa > U(1 << 63))
        kept = kept + up.astype(U)
    return np.where(distance < 0, mantissa << np.clip(-distance, 0, 63).astype(U), kept)


def _encode_float(x, t, saturate):
    m = t.mantissa_bits
    sign = x.negative.astype(U) << U(t.exponent_bits + m)
    top = x.exponent + _bit_length(x.mantissa) - 1  # floor(log2 |x|)
    unit = np.maximum(top, 1 - t.bias) - m  # the exponent of the target's last place
    rounded = _shift_right(x.mantissa, unit - x.exponent)
    code = ((unit - (1 - t.bias - m)) << I(m)) + rounded.astype(I)
    code = np.where(x.mantissa == 0, 0, code)
    over = (code > t.max_code) & (x.cls == FINITE)
    code = np.where(over, 0, code).astype(U)
    infinite, nan = x.cls == INFINITE, x.cls == NAN
    largest = U(t.max_code)
    if t.specials == "finite":
        code = np.where(over | infinite, largest, code) | sign
        return np.where(nan, np.where(x.negative, U(0), U(1 << (t.bits - 1))), code)
    if t.specials == "fnuz":
        nan_code = U(1 << (t.bits - 1))
        code = np.where(over, largest, code) | sign
        code = np.where(code == nan_code, U(0), code)
        if not saturate:
            code = np.where(over, nan_code, code)
        return np.where(infinite | nan, nan_code, code)
    if t.specials == "fn":
        nan_code = U(t.max_code + 1)
        code = np.where(over | infinite, largest if saturate else nan_code, code)
        return np.where(nan, nan_code, code) | sign
    beyond = largest if t.bits == 8 and saturate else U(t.max_code + 1)
    code = np.where(over | infinite, beyond, code)
    quiet = U(t.max_code + 1) | U(1 << (m - 1))
    return np.where(nan, quiet | (x.payload >> U(52 - m) if t.bits >= 16 else U(0)), code) | sign


def _encode_e8m0(x, saturate, round_mode):
    top, mantissa = x.normalised()
    top = top - 1
    is_power = mantissa == U(1 << 63)
    step = {"up": ~is_power, "down": False, "nearest": mantissa >= U(3 << 62)}[round_mode]
    above = (top > 127) | ((top == 127) & ~is_power) | (x.cls == INFINITE)
    below = (top < -127) & (x.cls == FINITE)
    code = np.where(above | below, 0, top + step + 127)
    code = np.where(above, 254 if saturate else 255, code)
    code = np.where(below, 0 if saturate else 255, code)
    negative = x.negative & ((x.mantissa != 0) | (x.cls == INFINITE))
    return np.where(negative | (x.cls == NAN), 255, code).astype(U)


def _encode_int(x, t, source, out_of_range):
    mask = U((1 << t.bits) - 1)
    to_nearest = t.bits < 8
    # The magnitude modulo 2**64: the mantissa leaves at the left, or is rounded off at the right.
    left = np.where(x.exponent >= 64, U(0), x.mantissa << np.clip(x.exponent, 0, 63).astype(U))
    right = _shift_right(x.mantissa, np.maximum(-x.exponent, 0), to_nearest)
    magnitude = np.where(x.exponent > 0, left, right)
    magnitude = np.where(x.cls == FINITE, magnitude, U(0))
    code = np.where(x.negative, ~magnitude + U(1), magnitude) & mask
    if source.kind in ("float", "e8m0") and out_of_range == "saturate":
        lowest, highest = (U(1 << (t.bits - 1)), mask >> U(1)) if t.signed else (U(0), mask)
        end = np.where(x.negative, lowest, highest)
        code = np.where(_is_beyond(x, t, source) | (x.cls == INFINITE), end, code)
        code = np.where(x.cls == NAN, U(0), code)
    return code


def cast(codes, source, target, saturate=True, round_mode="up", out_of_range="wrap", values=None):
    """The codes that `codes` become. `values` saves decoding them again."""
    codes = np.asarray(codes, U)
    s, t = SOURCES[source], TYPES[target]
    if source == target and source not in FLOAT8 and source != "bool":
        return codes
    x = decode(codes, source) if values is None else values
    if t.kind == "bool":
        return ((x.cls != FINITE) | (x.mantissa != 0)).astype(U)
    if t.kind == "int":
        return _encode_int(x, t, s, out_of_range)
    if t.kind == "e8m0":
        return _encode_e8m0(x, saturate, round_mode)
    return _encode_float(x, t, saturate)


def cast_exact(numbers, target):
    """The codes of exact numbers, each rounded once: (negative, Fraction of the magnitude, or "inf" or "nan").

    A magnitude keeps 62 bits and a last one that tells whether anything was left over. That decides every rounding
    to 60 bits and fewer as the whole number would.
    """
    t = TYPES[target]
    rows = []
    for negative, magnitude in numbers:
        if isinstance(magnitude, str):
            rows.append(({"inf": INFINITE, "nan": NAN}[magnitude], negative, 0, 0))
            continue
        if t.kind == "int":
            # The low bits are asked for, however large the number is.
            whole, rest = divmod(magnitude.numerator, magnitude.denominator)
            if t.bits < 8:
                rest *= 2
                whole += rest > magnitude.denominator or (rest == magnitude.denominator and whole & 1)
            rows.append((FINITE, False, (-whole if negative else whole) & ((1 << t.bits) - 1), 0))
            continue
        if magnitude:  # nothing rounds otherwise for being farther away than this
            magnitude = max(min(magnitude, Fraction(1 << 1024)), Fraction(1, 1 << 1200))
        shift = 62 - magnitude.numerator.bit_length() + magnitude.denominator.bit_length()
        numerator, denominator = magnitude.numerator << max(shift, 0), magnitude.denominator << max(-shift, 0)
        mantissa, rest = divmod(numerator, denominator)
        rows.append((FINITE, negative, mantissa | (rest != 0), -shift))
    cls, negative, mantissa, exponent = zip(*rows) if rows else ((), (), (), ())
    cls = np.array(cls, np.int8)
    x = Values(cls, np.array(negative, bool), np.array(mantissa, U), np.array(exponent, I), np.zeros(len(rows), U))
    if t.kind == "bool":
        return ((x.cls != FINITE) | (x.mantissa != 0)).astype(U)
    if t.kind == "int":
        return np.where(x.cls == FINITE, x.mantissa, U(0))
    if t.kind == "e8m0":
        return _encode_e8m0(x, True, "up")
    return _encode_float(x, t, True)


# ---------------------------------------------------------------------------------------- losses


def _compare(x, edge):
    """-1, 0 or 1 where |x| is less than, equal to or greater than a positive number."""
    edge = Fraction(edge)
    exponent = edge.numerator.bit_length() - edge.denominator.bit_length() + 1
    while edge >= Fraction(2) ** exponent:
        exponent += 1
    while edge < Fraction(2) ** (exponent - 1):
        exponent -= 1
    mantissa = edge * Fraction(2) ** (64 - exponent)
    assert mantissa.denominator == 1
    e, m = x.normalised()
    wanted = U(int(mantissa))
    order = np.where(m > wanted, 1, np.where(m < wanted, -1, 0))
    return np.where(e > exponent, 1, np.where(e < exponent, -1, order))


def _is_beyond(x, t, source):
    """Whether a finite value lies outside of the target's range."""
    finite = x.cls == FINITE
    if t.kind == "bool":
        return finite & False
    if t.kind == "e8m0":
        negative = x.negative & (x.mantissa != 0)
        smallest, largest = Fraction(1, 1 << 127), Fraction(1 << 127)
        return finite & ~negative & ((_compare(x, largest) > 0) | (_compare(x, smallest) < 0))
    if t.kind == "int":
        highest = (1 << (t.bits - t.signed)) - 1
        lowest = 1 << (t.bits - 1) if t.signed else 0
        if source.kind in ("float", "e8m0") and t.bits < 8:
            # Rounded to nearest even: the upper tie leaves the range, the lower one stays in it.
            half = Fraction(1, 2)
            return finite & np.where(x.negative, _compare(x, lowest + half) > 0, _compare(x, highest + half) >= 0)
        return finite & np.where(x.negative, _compare(x, lowest + 1) >= 0, _compare(x, highest + 1) >= 0)
    last = decode(np.array([t.max_code], U), _name(t))
    place = Fraction(2) ** int(last.exponent[0])
    tie = int(last.mantissa[0]) * place + place / 2
    order = _compare(x, tie)
    return finite & ((order > 0) | ((order == 0) & bool(t.max_code & 1)))


def _name(t):
    return next(name for name, other in TYPES.items() if other is t)


def losses(x, source, result, target, out_of_range="wrap"):
    """For each kind of loss, how many values met it. `x` are the decoded values, `result` the target's codes."""
    s, t = SOURCES[source], TYPES[target]
    y = decode(result, target)
    finite, infinite, nan = (x.cls == cls for cls in (FINITE, INFINITE, NAN))
    x_exponent, x_mantissa = x.normalised()
    y_exponent, y_mantissa = y.normalised()
    zero_now = (y.cls == FINITE) & (y.mantissa == 0)
    nonzero = nan | infinite | (x.mantissa != 0)
    same_number = (x_exponent == y_exponent) & (x_mantissa == y_mantissa)
    same_number &= (x.negative == y.negative) | (x.mantissa == 0)
    same_number |= infinite | nan
    same = (x.cls == y.cls) & same_number & ((x.negative == y.negative) | ~infinite)
    beyond = _is_beyond(x, t, s) | infinite
    masks = dict.fromkeys(COUNTS, finite & False)
    masks["inexact"] = ~same
    masks["infinite"] = finite & (y.cls == INFINITE)
    masks["nan"] = ~nan & (y.cls == NAN)
    if t.kind == "int":
        kind = "saturated" if out_of_range == "saturate" and s.kind not in ("int", "bool") else "wrapped"
        masks[kind] = beyond | nan if kind == "wrapped" else beyond & ~nan
        masks["nan_lost"] = nan & (kind == "saturated")
        masks["flushed"] = finite & ~beyond & nonzero & zero_now
    elif t.kind != "bool":
        masks["saturated"] = beyond & (y.cls == FINITE)
        masks["nan_lost"] = nan & (y.cls == FINITE)
        masks["flushed"] = finite & nonzero & zero_now
    # A copy does not look at its values; only float8 and bool are cast to themselves.
    if source != target or (s.kind in ("float", "bool") and s.bits == 8):
        masks["input_nan"], masks["input_infinite"] = nan, infinite
    return {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}


# ---------------------------------------------------------------------------------------- samples


def samples(name, count=8000, seed=1):
    """Codes to try: all of them up to 16 bits, and for wider types edges, ties and their neighbours, and noise."""
    t = TYPES[name]
    if t.bits <= 16:
        return np.arange(1 << t.bits, dtype=U)
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 1 << 64, count, dtype=U) >> U(64 - t.bits)
    if t.kind == "int":
        edges = [sign * (1 << bit) + add for bit in range(t.bits + 1) for sign in (1, -1) for add in range(-2, 3)]
        for mantissa_bits in (1, 2, 3, 7, 10, 23, 52):  # one beside the ties of the float types
            for bit in range(mantissa_bits + 2, t.bits):
                leading = int(rng.integers(0, 1 << mantissa_bits)) << (bit - mantissa_bits)
                tie = (1 << bit) + leading + (1 << (bit - mantissa_bits - 1))
                edges += [sign * tie + add for sign in (1, -1) for add in (-1, 0, 1)]
        edges = np.array([edge & ((1 << t.bits) - 1) for edge in edges], U)
        lengths = rng.integers(0, t.bits, count).astype(U)
        return np.unique(np.concatenate([edges, noise, noise[::-1] >> lengths]))

    m, bias = t.mantissa_bits, t.bias
    edges = [0, 1, 2, (1 << m) - 1, 1 << m, t.max_code, t.max_code + 1, t.max_code + 2, (1 << (t.bits - 1)) - 1]
    for other in TYPES.values():
        if other.kind != "float" or other.mantissa_bits >= m:
            continue
        short = other.mantissa_bits
        top = (other.max_code >> short) - other.bias
        exponents = {*range(-2 - other.bias - short, 4 - other.bias), *range(top - 2, top + 3), -1, 0, 1}
        for exponent in sorted(e for e in exponents if 1 - bias <= e <= bias):
            leading = {0, 1, (1 << short) - 1, *(int(x) for x in rng.integers(0, 1 << short, 4))}
            for lead in sorted(leading):
                for depth in range(max(short - 1, 0), min(short + 3, m)):  # half a place, deeper for subnormals
                    tie = ((exponent + bias) << m) | (lead << (m - short)) | (1 << (m - depth - 1))
                    edges += [tie - 1, tie, tie + 1, tie + (1 << max(m - depth - 2, 0))]
    for exponent in range(-4, 70):  # the ends of the integer types
        for fraction in (0, 1, 1 << (m - 1), (1 << m) - 1, int(rng.integers(0, 1 << m))):
            edges.append(((exponent + bias) << m) | fraction)
    for whole in range(300):  # the ties between small integers
        for value in (whole / 2, whole / 2 + 0.25):
            code = int(np.array([value], f"<f{t.bits // 8}").view(f"<u{t.bits // 8}")[0])
            edges += [code, code + 1, max(code - 1, 0)]
    edges = np.array([edge for edge in edges if 0 <= edge < 1 << (t.bits - 1)], U)
    fractions = noise & U((1 << m) - 1)
    common = np.clip(rng.integers(-20, 70, count) + bias, 0, (1 << t.exponent_bits) - 1).astype(U)
    rare = np.clip(rng.integers(-160, 140, count) + bias, 0, (1 << t.exponent_bits) - 1).astype(U)
    sign = U(1 << (t.bits - 1))
    positive = np.concatenate([edges, (common << U(m)) | fractions, (rare << U(m)) | fractions])
    return np.unique(np.concatenate([positive, positive | sign, noise]))
