"""`inspect --fail-on code` against torch.load: whatever torch runs is refused, and whatever both read has the same values.

Each archive is made by hand. Its payload appends a line to a file, so that a run of it shows. For each archive one of these
holds: torch runs nothing, or `tcast inspect --fail-on code` fails; and if tcast accepts an archive and torch loads it, their
tensors are equal, or torch does not load it at all.
"""

import functools
import io
import os
import pickle
import struct
import tarfile
import warnings
import zlib

import numpy as np
import torch

from common import Safetensors, tcast
from files import folder

def load(file):
    """What torch finds in a file, or why it finds nothing. The payloads are harmless, so they may run in this process."""
    try:
        found = torch.load(file, weights_only=False, map_location="cpu")
    except BaseException as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    entries = dict.items(found) if isinstance(found, dict) else ()
    plain = lambda value: value.detach().resolve_conj().resolve_neg().contiguous().numpy().tobytes()
    return {"tensors": {key: plain(value) for key, value in entries if isinstance(value, torch.Tensor)}}


CANARY = "canary"


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def run():
    """The opcodes of a call that leaves a file behind, and of its result."""
    return name("builtins", "open") + text(CANARY) + text("a") + b"\x86R"


def tensor(key="0", count=4, kind="Float", view=b""):
    storage = b"(" + text("storage") + name("torch", f"{kind}Storage") + text(key) + text("cpu")
    storage += b"K" + bytes([count]) + view + b"tQ"
    size = b"K" + bytes([count]) + b"\x85K\x01\x85"
    return name("torch._utils", "_rebuild_tensor_v2") + b"(" + storage + b"K\x00" + size + b"\x89" + \
        name("collections", "OrderedDict") + b")RtR"


def pickled(*entries):
    return b"\x80\x02}" + b"".join(text(key) + value + b"s" for key, value in entries) + b"."


GOOD = pickled(("w", tensor()))
EVIL = b"\x80\x02" + run() + b"0" + GOOD[2:]
# In the older form, storages have a view.
OLD = pickled(("w", tensor(view=b"N")))
EVIL_OLD = b"\x80\x02" + run() + b"0" + OLD[2:]
VALUES = np.arange(4, dtype="<f4").tobytes()
OTHER = np.full(4, 9, dtype="<f4").tobytes()


class Zip:
    """An archive whose every field can be wrong."""

    def __init__(self, prefix=b""):
        self.file, self.directory, self.count, self.prefix = prefix, b"", 0, len(prefix)

    def add(self, member, data, *, method=0, flags=0, local=None, extra=b"", attributes=0, disk=0, listed=True, lengths=None):
        member = member.encode() if isinstance(member, str) else member
        local = {"name": member, "method": method, "flags": flags, **(local or {})}
        packed = data
        if method == 8:
            packer = zlib.compressobj(wbits=-15)
            packed = packer.compress(data) + packer.flush()
        sizes = lengths or (len(packed), len(data))
        common = lambda kind, flag, lengths: struct.pack(
            "<HHHHHIII", 20, flag, kind, 0, 33, zlib.crc32(data), *lengths)
        start = len(self.file)
        self.file += b"PK\3\4" + common(local["method"], local["flags"], local.get("lengths", sizes))
        self.file += struct.pack("<HH", len(local["name"]), 0) + local["name"] + packed
        if listed:
            self.directory += b"PK\1\2\x14\0" + common(method, flags, sizes)
            self.directory += struct.pack("<HHHHHII", len(member), len(extra), 0, disk, 0, attributes, start) + member + extra
            self.count += 1
        return self

    def end(self, comment=b"", *, disks=(0, 0), count=None, zip64=None, said=None, tail=b"", between=b"", marker=None):
        start, length = len(self.file) - 0, len(self.directory)
        count = self.count if count is None else count
        out = self.file + self.directory + between
        if zip64 is not None:
            options = {"disk": 0, "disks": 1, "start": start, "length": length, "count": count, "place": len(out), **zip64}
            out += b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, options["count"], options["count"],
                                           options["length"], options["start"])
            out += b"PK\6\7" + struct.pack("<IQI", options["disk"], options["place"], options["disks"])
        said = said or (start, length)
        out += b"PK\5\6" + struct.pack("<HHHHIIH", *disks, count, count, said[1], said[0], len(comment)) + comment
        return out + tail


def members(archive="ok", code=GOOD, data=VALUES):
    return [(f"{archive}/data.pkl", code), (f"{archive}/byteorder", b"little"), (f"{archive}/data/0", data),
            (f"{archive}/version", b"3\n")]


def archive(*listed, **options):
    made = Zip()
    for member in listed:
        made.add(*member[:2], **(member[2] if len(member) > 2 else {}))
    return made.end(**options)


def with_extra(*extra, at=None, base=None):
    listed = list(base or members())
    listed[at if at is not None else len(listed):at if at is not None else len(listed)] = extra
    return archive(*listed)


def renamed(old, new, base=None):
    return archive(*[(new if member == old else member, data) for member, data in base or members()])


def legacy(code=None, head=b"", keys=None, version=b"\x80\x02M\xe9\x03.", system=b"\x80\x02}."):
    code = code or OLD
    magic = b"\x80\x02" + head + b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    keys = keys or b"\x80\x02]" + text("0") + b"a."
    return magic + version + system + code + keys + struct.pack("<q", 4) + VALUES


def tar(first, pickle_of_storages=EVIL):
    """A tar archive whose first header is also the start of another file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for member, data in (("pad", b""), ("storages", pickle_of_storages), ("tensors", b""), ("pickle", b"")):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    out = bytearray(stream.getvalue())
    out[:len(first)] = first
    out[148:156] = b" " * 8
    out[148:156] = b"%06o\0 " % sum(out[:512])
    return bytes(out)


def tar_of_legacy(field):
    """A checkpoint of the older form whose first record is a tar header with a checksum in this spelling."""
    out = tar(b"")
    head = legacy()[:15] + b"\x80\x02M\xe9\x03.\x80\x02}.\x80\x02B"
    head += struct.pack("<I", len(out) - len(head) - 4)
    out = bytearray(head + out[len(head):])
    out[148:156] = b" " * 8
    out[148:156] = field(sum(out[:512]))
    return bytes(out) + b"0" + OLD[2:] + b"\x80\x02]" + text("0") + b"a." + struct.pack("<q", 4) + VALUES


CHECKSUMS = {
    "0o": lambda total: b"0o%05o\0" % total,
    "0O": lambda total: b"0O%05o\0" % total,
    "+": lambda total: b"+%06o\0" % total,
    "_": lambda total: b"%03o_%03o\0" % (total >> 9, total & 511),
    "a control character": lambda total: b"\x0b%06o\0" % total,
    "a separator": lambda total: b"\x1c%06o\0" % total,
    "a separator at the end": lambda total: b"%06o\x1f\0" % total,
    "base 256": lambda total: b"\x80" + struct.pack(">Q", total)[1:],
}


def two_ends():
    """The directory of the last end names a pickle that the directory of the fitting end does not."""
    hidden = Zip()
    for member, data in members(code=EVIL):
        hidden.add(member, data)
    plain = Zip(hidden.file)
    for member, data in members():
        plain.add(member, data)
    # The first end has a comment up to the end of the file; the second one does not fit.
    comment = hidden.directory
    start = len(plain.file) + len(plain.directory) + 22
    last = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, hidden.count, hidden.count, len(hidden.directory), start, 9)
    return plain.end(comment + last)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


class Opens:
    def __reduce__(self):
        return open, (CANARY, "a")


def polyglot():
    """A .safetensors file that is also a pickle: its length begins with an opcode for a text, which ends in the header."""
    skip = 126
    length = 0x58 + 256 * 5
    # The text of 5 bytes ends after the brace and the quote: the next opcode is the first letter of the key.
    header = '{"' + "".join(["U~" + "k" * 126] * 10) + 'U~":{"dtype":"U8","shape":[LEN],"data_offsets":[0,LEN]}'
    payload = run() + b"."
    at = 10
    while at < 8 + length:
        at += 2 + skip
    data = b"\0" * (at - 8 - length) + payload
    data += b"\0" * (-len(data) % 8)
    header = header.replace("LEN", str(len(data))) + "}"
    assert len(header) <= length, len(header)
    header += " " * (length - len(header))
    return struct.pack("<Q", length) + header.encode() + data


def zip64(**options):
    made = Zip()
    for member, data in members():
        made.add(member, data)
    return made.end(zip64=options)


def zip64_elsewhere(**said):
    """The zip64 record gives another directory than the short one."""
    hidden = Zip()
    for member, data in members(code=EVIL):
        hidden.add(member, data)
    start, length = len(hidden.file), len(hidden.directory)
    made = Zip(hidden.file + hidden.directory)
    for member, data in members():
        made.add(member, data)
    return made.end(zip64={"start": start, "length": length, **said})


def storage(key="0", kind="Float", count=4):
    return b"(" + text("storage") + name("torch", f"{kind}Storage") + text(key) + text("cpu") + b"K" + bytes([count]) + b"tQ"


def rebuilt(stored, size=b"K\x04\x85", metadata=None, function="_rebuild_tensor_v2", dtype=b""):
    metadata = metadata or b""
    return name("torch._utils", function) + b"(" + stored + b"K\x00" + size + b"K\x01\x85\x89" + \
        name("collections", "OrderedDict") + b")R" + dtype + metadata + b"tR"


def changed(code, data=OTHER):
    """A checkpoint with this code, and a second storage."""
    return archive(*members(code=b"\x80\x02" + code + b"."), ("ok/data/1", data))


def entry(value, key=text("w")):
    return b"}" + key + value + b"s"


LINEAR = name("torch.nn.modules.linear", "Identity")
ORDERED = name("collections", "OrderedDict")
NEG = text("neg")
PAIR = lambda value, key="w": text(key) + value + b"\x86"
# Checkpoints whose values depend on the use of a harmless name, or on the time of a change.
USES = {
    "a call of an object": entry(tensor() + b"q\x01") + LINEAR + b")Rh\x01\x85R0",
    "an object that sets elements": entry(tensor() + b"q\x01") + LINEAR + b")Rh\x01\x85RK\x00K\x07s0",
    "a module that sets elements": entry(tensor() + b"q\x01") + name("torch.nn.modules.activation", "Threshold") +
        b"(K\x02K\x09\x88tRh\x01\x85R0",
    "a parameter that sets elements": entry(tensor() + b"q\x01") + name("torch.nn.parameter", "Parameter") +
        b"h\x01\x89\x86RK\x00K\x07s0",
    "the state of a tensor": entry(tensor() + b"(" + storage("1") + b"K\x00K\x04\x85K\x01\x85tb"),
    "the data of a parameter": entry(name("torch._utils", "_rebuild_parameter_with_state") + b"(" + tensor() + b"\x89" +
        ORDERED + b")R}" + text("data") + tensor("1") + b"stR"),
    "the data of a subclass": entry(name("torch._tensor", "_rebuild_from_type_v2") + b"(" +
        name("torch._utils", "_rebuild_tensor_v2") + name("torch._tensor", "Tensor") + tensor()[tensor().index(b"("):-1] +
        b"}" + text("data") + tensor("1") + b"stR"),
    "another type": entry(name("torch._utils", "_rebuild_device_tensor_from_cpu_tensor") + b"(" + tensor() +
        name("torch", "float16") + text("cpu") + b"\x89tR"),
    "neg": entry(rebuilt(storage(), metadata=b"}" + NEG + b"\x88s")),
    "neg that is false": entry(rebuilt(storage(), metadata=b"}" + NEG + b"\x89s")),
    "neg that is a number": entry(rebuilt(storage(), metadata=b"}" + NEG + b"K\x01s")),
    "neg of pairs": entry(rebuilt(storage(), metadata=ORDERED + b"]" + NEG + b"\x88\x86a\x85R")),
    "neg of a dict": entry(rebuilt(storage(), metadata=name("builtins", "dict") + b"}" + NEG + b"\x88s\x85R")),
    "neg by another key": entry(rebuilt(storage(), metadata=b"}" + name("builtins", "str") + NEG + b"\x85R\x88s")),
    "neg that is set later": entry(rebuilt(storage(), metadata=b"}q\x01") + b"h\x01" + NEG + b"\x88s0"),
    "dict of pairs": name("builtins", "dict") + b"]" + PAIR(tensor()) + b"a\x85R",
    "OrderedDict of a dict": ORDERED + b"}" + text("w") + tensor() + b"s\x85R",
    "OrderedDict of pairs": ORDERED + b"]" + PAIR(tensor()) + b"a\x85R",
    "OrderedDict of pairs by __new__": ORDERED + b"]" + PAIR(tensor()) + b"a\x85\x81",
    "OrderedDict of a list that grows": b"]q\x01" + PAIR(tensor()) + b"a0" + ORDERED + b"h\x01\x85Rh\x01" +
        PAIR(tensor("1"), "x") + b"a0",
    "defaultdict of pairs": name("collections", "defaultdict") + b"N]" + PAIR(tensor()) + b"a\x86R",
    "Counter": name("collections", "Counter") + b"}" + text("w") + tensor() + b"s\x85R",
    "a key that is replaced": entry(tensor()) + text("w") + b"K\x01s",
    "a key that is replaced by a tensor": entry(tensor()) + text("w") + tensor("1") + b"s",
    "a key with an escape that is replaced": entry(tensor()) + b"V\\u0077\nK\x01s",
    "a pair that is replaced": ORDERED + b"]" + PAIR(tensor()) + b"a" + PAIR(b"K\x01") + b"a\x85R",
    "a shape that grows": entry(rebuilt(storage(), size=b"]q\x01K\x02a") + b"h\x01K\x02a0"),
    "items of a dict": ORDERED + b")R" + text("w") + tensor() + b"s}" + text("items") + ORDERED + b")Rsb",
    "a key in Latin-1": entry(tensor(), b"V\xc3\xa9\n"),
}


def big_endian(kind, dtype, size):
    code = b"\x80\x02" + entry(rebuilt(storage(kind=kind, count=16 if kind == "Untyped" else 4), size=b"K" + bytes([size]) +
        b"\x85", function="_rebuild_tensor_v3", dtype=name("torch", dtype))) + b"."
    code = code.replace(b"ctorch\nUntypedStorage", b"ctorch.storage\nUntypedStorage")
    return archive(*[(member, BIG if member == "ok/byteorder" else data) for member, data in members(code=code)])


BIG = b"big"
PLAIN = members()
TABLE = {
    # What torch.save writes, in its variants.
    "plain": archive(*PLAIN),
    "legacy": legacy(),
    "big": archive(*[(member, BIG if member == "ok/byteorder" else data) for member, data in PLAIN]),
    "no byteorder": archive(*[member for member in PLAIN if member[0] != "ok/byteorder"]),
    "zip64": zip64(),
    "folders listed": with_extra(("ok/", b""), at=0),
    "serialization id": with_extra(("ok/.data/serialization_id", b"1" * 40)),
    "format version": with_extra(("ok/.format_version", b"1"), ("ok/.storage_alignment", b"64")),
    # Code, where torch finds it.
    "code": archive(*members(code=EVIL)),
    "code in legacy": legacy(EVIL_OLD),
    "code before the magic number": legacy(head=run() + b"0"),
    "code instead of the magic number": b"\x80\x02" + run() + b".",
    "code in protocol 0": name("builtins", "open") + b"(V" + CANARY.encode() + b"\nVa\ntR.",
    "code in the version": legacy(version=EVIL[:-1] + b"0M\xe9\x03."),
    "code in the system": legacy(system=b"\x80\x02" + run() + b"0}."),
    "code in the keys": legacy(keys=b"\x80\x02" + run() + b"0]" + text("0") + b"a."),
    "code that is popped": archive(*members(code=EVIL[:-1] + run() + b"0.")),
    "code before an error": archive(*members(code=EVIL[:-1] + b"\x00.")),
    "code after the pop of a mark": archive(*members(code=b"\x80\x02(0" + EVIL[2:])),
    "code after a large number in the memo": archive(*members(code=b"\x80\x02Nr\x00\x00\x01\x000" + EVIL[2:])),
    "code after an empty number": archive(*members(code=b"\x80\x02I\n0" + EVIL[2:])),
    "code in another pickle": archive(*members(code=GOOD), ("ok/other.pkl", EVIL)),
    "nested pickle": archive(*members(code=pickled(("w", tensor()), ("x", name("pickle", "loads") + b"C" + bytes(
        [len(EVIL)]) + EVIL + b"\x85R"))[:-1] + b".")),
    "class of a module that opens files": archive(*members(code=pickled(("w", tensor()), (
        "x", name("omegaconf.vendor.antlr4.FileStream", "FileStream") + text("canary") + b"\x85R")))),
    # Case: torch's archives ignore it.
    **{f"case {number} {where}": with_extra((f"ok/{other}", EVIL), at=at)
       for number, other in enumerate(["DATA.PKL", "Data.pkl", "data.PKL"]) for where, at in (("before", 0), ("after", None))},
    "case of the only pickle": renamed("ok/data.pkl", "ok/DATA.PKL", members(code=EVIL)),
    "case of the folder": with_extra(("OK/data.pkl", EVIL)),
    "case of the folder of all": renamed("ok/data.pkl", "OK/data.pkl", members(code=EVIL)[1:] + members(code=EVIL)[:1]),
    "case of a storage": with_extra(("ok/DATA/0", OTHER)),
    "case of the only storage": renamed("ok/data/0", "ok/Data/0"),
    "case of a key": archive(*[("ok/data/a", VALUES) if member == "ok/data/0" else (member, pickled(
        ("w", tensor("a"))) if member == "ok/data.pkl" else data) for member, data in PLAIN], ("ok/data/A", OTHER)),
    "case of the byte order": renamed("ok/byteorder", "ok/BYTEORDER", [
        (member, BIG if member == "ok/byteorder" else data) for member, data in PLAIN]),
    "case of the version": renamed("ok/version", "ok/VERSION"),
    "npz with a pickle in capitals": archive(("ok/DATA.PKL", EVIL), ("ok/version", b"3\n"), ("ok/a.npy", npy(np.ones(3)))),
    "npz with a pickle": archive(("ok/a.npy", npy(np.ones(3))), *members(code=EVIL)),
    # Duplicates.
    "two pickles": with_extra(("ok/data.pkl", EVIL)),
    "two pickles, code first": with_extra(("ok/data.pkl", EVIL), at=0),
    "two storages": with_extra(("ok/data/0", OTHER)),
    "two storages, other first": with_extra(("ok/data/0", OTHER), at=0),
    "two byte orders": with_extra(("ok/byteorder", BIG)),
    "two byte orders, big first": with_extra(("ok/byteorder", BIG), at=0),
    "two versions": with_extra(("ok/version", b"99\n")),
    "two names of one text": with_extra(("ok/data/ä", OTHER), ("ok/data/ä", OTHER, {"flags": 1 << 11})),
    # Folders.
    "folder of the first member": archive(("evil/version", b"3\n"), ("evil/data.pkl", EVIL), *PLAIN),
    "folder of the first member without a pickle": archive(("evil/version", b"3\n"), *PLAIN),
    "pickle in a deeper folder": archive(*members("ok"), ("ok/in/data.pkl", EVIL)),
    "only pickle in a deeper folder": archive(*members("ok/in")),
    "pickle without a folder": archive(*[(member[3:], data) for member, data in members(code=EVIL)]),
    "a backslash": archive(*members(), ("ok\\data.pkl", EVIL)),
    # Ends.
    "two ends": two_ends(),
    "an end in the comment": archive(*PLAIN, comment=b"PK\5\6" + bytes(18)),
    "a short end in the comment": archive(*PLAIN, comment=b"PK\5\6"),
    "a comment": archive(*PLAIN, comment=b"words"),
    "trailing bytes": archive(*members(code=EVIL), tail=b"\0" * 9),
    "trailing archive": archive(*members(code=EVIL)) + archive(*PLAIN),
    "leading archive": archive(*PLAIN) + archive(*members(code=EVIL)),
    "leading bytes": b"\x80\x02" + run() + b"." + archive(*PLAIN),
    "bytes before the end": archive(*PLAIN, between=b"\0" * 4),
    "several disks": archive(*PLAIN, disks=(1, 1)),
    "a member on another disk": archive(*PLAIN[:2], (*PLAIN[2], {"disk": 1}), PLAIN[3]),
    "no members": Zip().end(),
    "too many members": archive(*PLAIN, count=5),
    "too few members": archive(*PLAIN, count=3),
    # zip64.
    **{f"zip64 with {disks} disks": zip64(disks=disks) for disks in (0, 2)},
    "zip64 on another disk": zip64(disk=1),
    "zip64 with another directory": zip64_elsewhere(),
    "zip64 record elsewhere": zip64(place=0),
    "zip64 count": zip64(count=3),
    # Headers that differ.
    "another name in the local header": archive(("ok/data.pkl", EVIL, {"local": {"name": b"ok/data.txt"}}), *PLAIN[1:]),
    "another method in the local header": archive((*PLAIN[0], {"local": {"method": 8}}), *PLAIN[1:]),
    "another length in the local header": archive(*PLAIN[:2], (*PLAIN[2], {"local": {"lengths": (8, 8)}}), PLAIN[3]),
    "two lengths of a stored member": archive(*PLAIN[:2], (*PLAIN[2], {"lengths": (16, 12)}), PLAIN[3]),
    "a member that is not listed": archive(*PLAIN, ("ok/DATA.PKL", EVIL, {"listed": False})),
    "a compressed pickle": archive(("ok/data.pkl", EVIL, {"method": 8}), *PLAIN[1:]),
    "a compressed storage": archive(*PLAIN[:2], (*PLAIN[2], {"method": 8}), PLAIN[3]),
    "a storage that is a folder": archive(*PLAIN[:2], (*PLAIN[2], {"attributes": 16}), PLAIN[3]),
    "encrypted": archive((*PLAIN[0], {"flags": 1}), *PLAIN[1:]),
    # Storages.
    "one storage of two types": archive(*members(code=pickled(("w", tensor()), ("v", tensor(kind="Int"))))),
    "a storage that is too long": archive(*members(data=VALUES + b"\0" * 4)),
    "a storage that is too short": archive(*members(data=VALUES[:12])),
    # TorchScript.
    "TorchScript": with_extra(("ok/constants.pkl", b"\x80\x02)."), ("ok/code/__torch__.py", b"")),
    "TorchScript in capitals": with_extra(("ok/CONSTANTS.PKL", b"\x80\x02).")),
    # Files of other kinds that torch unpickles, or takes for tar.
    "tar": tar(b""),
    "tar and legacy": tar(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."),
    "tar and GGUF": tar(b"GGUF\3\0\0\0"),
    "safetensors and a pickle": polyglot(),
    **{f"tar and legacy, with {spelling} in the checksum": tar_of_legacy(field) for spelling, field in CHECKSUMS.items()},
    # Uses of names, and the time of changes.
    **{f"use: {what}": changed(code) for what, code in USES.items()},
    **{f"big endian {kind} as {dtype}": big_endian(kind, dtype, size) for kind, dtype, size in (
        ("Untyped", "uint16", 8), ("Untyped", "float32", 4), ("Float", "float32", 4), ("Float", "int64", 2),
        ("Float", "int16", 8))},
    "a key that is not marked as UTF-8": archive(
        ("ok/data.pkl", pickled(("w", tensor("├⌐")))), ("ok/data/é", VALUES), ("ok/data/├⌐", OTHER)),
    "npy": npy(np.ones(3)),
    "npy of objects": npy(np.array([Opens(), 1], dtype=object)),
}
def array(descr):
    """An array with a pickle in place of its elements."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}".encode()
    header += b" " * (63 - (10 + len(header)) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + EVIL


OBJECTS = ("'object'", "'object_'", "'T'", "'f4,object'", "'2object'", "'object,'", "[('a','object')]",
           "[('a','<f4'),('b','object')]", "[('a',[('b','object')])]", "[('a','<f8','O')]")
# Files of other formats with pickles in them: numpy's readers would run these.
SEARCHED = {
    **{f"objects{at}.npz": archive(("a.npy", array(descr))) for at, descr in enumerate(OBJECTS)},
    "objects.npz": archive(("a.npy", npy(np.array([Opens(), 1], dtype=object)))),
    "member.npz": archive(("a.npy", npy(np.ones(3))), ("b.pkl", EVIL)),
    "named.npy": EVIL,
    "named.npz": EVIL,
}


@folder
def agrees(path, what):
    file = path / "x.pt"
    file.write_bytes(TABLE[what])
    before = os.getcwd()
    os.chdir(path)
    try:
        told = load("x.pt")
    finally:
        os.chdir(before)
    ran = (path / CANARY).exists()
    (path / CANARY).unlink(missing_ok=True)
    run = tcast(file, "--fail-on", "code", "-q", command="inspect", code=None)
    assert run.returncode in (0, 1, 3), run
    is_accepted = run.returncode == 0
    assert not (ran and is_accepted), f"torch runs it ({told}), and tcast accepts it"
    if is_accepted and "tensors" in told:
        cast = tcast(file, "-o", path / "out.safetensors", "--root", ".", "-q", code=None)
        # A tensor whose values are not clear is refused.
        assert cast.returncode == 0 or cast.returncode == 1 and what not in EXPECTED, cast
        if cast.returncode == 0:
            found = Safetensors(path / "out.safetensors")
            ours = {name: bytes(found.tensors[name]["data"]) for name in found.names}
            assert ours == told["tensors"], f"torch has {told}, and tcast {ours}"
    assert not (path / CANARY).exists(), "tcast ran it"
    expected = EXPECTED.get(what)
    assert expected is None or (ran, is_accepted) == expected, (ran, is_accepted, told, run.stderr)


# (torch runs it, tcast accepts it), where the test must not become empty.
EXPECTED = {
    **{what: (False, True) for what in ("plain", "legacy", "big", "no byteorder", "zip64", "folders listed",
                                        "serialization id", "format version", "a comment")},
    **{what: (True, False) for what in ("code", "code in legacy", "code before the magic number", "code in the keys",
                                        "code in protocol 0", "case of the only pickle", "two ends",
                                        "trailing bytes", "tar and legacy", "safetensors and a pickle",
                                        "npz with a pickle in capitals")},
    **{f"tar and legacy, with {spelling} in the checksum": (True, False) for spelling in CHECKSUMS},
    **{f"use: {what}": (False, True) for what in ("neg", "neg that is false", "neg that is set later", "dict of pairs",
                                                 "OrderedDict of pairs", "OrderedDict of a list that grows", "Counter")},
}


@folder
def is_searched(path, what):
    (path / what).write_bytes(SEARCHED[what])
    run = tcast(path / what, "--fail-on", "code", "-q", command="inspect", code=None)
    assert run.returncode in (1, 3), run


@folder
def a_folder_is_searched(path, beside, content):
    model = path / "model"
    (model / os.path.dirname(beside)).mkdir(parents=True)
    tcast(write(path / "x.pt", TABLE["plain"]), "-o", model / "model.safetensors", "-q")
    (model / "config.json").write_text("{}")
    (model / "README.md").write_text("# A model\n")
    (model / "vocab.txt").write_text("[PAD]\n[UNK]\ncat\ndog\n")
    tcast(write(model / "scheduler.pt", TABLE["plain"]), "--fail-on", "code", "-q", command="inspect")
    tcast(model, "--fail-on", "code", "-q", command="inspect")
    write(model / beside, content)
    tcast(model, "--fail-on", "code", "-q", command="inspect", code=3)


@folder
def what_python_runs_is_found(path, what):
    """One of Python's two unpicklers runs the code, or neither does and nothing is found."""
    content = b"\x80\x05" + UNPICKLED[what] + b"0" + run() + b"."
    before, ran = os.getcwd(), False
    os.chdir(path)
    try:
        for reader in (pickle.loads, lambda content: pickle._Unpickler(io.BytesIO(content)).load()):
            try:
                reader(content)
            except Exception:  # noqa: BLE001
                pass
            ran = ran or os.path.exists(CANARY)
    finally:
        os.chdir(before)
    (path / CANARY).unlink(missing_ok=True)
    model = path / "model"
    model.mkdir()
    tcast(write(path / "x.pt", TABLE["plain"]), "-o", model / "model.safetensors", "-q")
    write(model / "x.pkl", content)
    found = tcast(model, "--fail-on", "code", "-q", command="inspect", code=None)
    assert found.returncode == 3 if ran else found.returncode in (0, 3), (ran, found)


# Starts of pickles, which one of the unpicklers may refuse.
UNPICKLED = {
    "nothing": b"N",
    "READONLY_BUFFER": b"C\x01a\x98",
    "READONLY_BUFFER of a bytearray": b"\x96\x01\0\0\0\0\0\0\0a\x98",
    **{f"INT {line!r}": b"I" + line + b"\n" for line in (b"1\0z", b"\0z", b"\x0b1", b"1\x0c", b"", b"0x1", b"0b1", b"1_0", b"z")},
    **{f"LONG {line!r}": b"L" + line + b"\n" for line in (b"1\0z", b"\x0b1L", b"1LL", b"+1", b"")},
    **{f"PUT {line!r}": b"Np" + line + b"\n" for line in (b"-0", b"0\0z", b"\x0b0", b"+0", b"1_0", b"5000000000", b"", b"x")},
    **{f"GET {line!r}": b"Nq\x00g" + line + b"\n" for line in (b"-0", b"0\0z", b"\x0b0", b"+0", b"1", b"")},
    "POP of nothing": b"0N",
    "TUPLE1 of nothing": b"\x85",
    "APPENDS of nothing": b"N(e",
    "SETITEMS of nothing": b"N(u",
    "FRAME": b"\x95\x02\0\0\0\0\0\0\0N",
    "another pickle": b"N.N",
}


def write(path, content):
    path.write_bytes(content)
    return path


BESIDE = {
    "pytorch_model.bin": TABLE["code"],
    "training_args.bin": TABLE["code"],
    "optimizer.pt": TABLE["code in legacy"],
    "a/b/scheduler.pt": TABLE["case 1 after"],
    "state.pkl": EVIL,
    "text.pkl": TABLE["code in protocol 0"],
    "objects.npy": TABLE["npy of objects"],
    "objects.npz": SEARCHED["objects.npz"],
    "packed.pkl": zlib.compress(EVIL),
    ".hidden/x.bin": EVIL,
    "tar.bin": TABLE["tar and legacy"],
    "polyglot.safetensors.txt": TABLE["safetensors and a pickle"],
    # Other spellings of the magic number, behind which torch reads more pickles.
    **{f"{at}/training_args.bin": magic + EVIL for at, magic in enumerate((
        b"I119547037146038801333356\n.", b"L119547037146038801333356L\n.",
        b"\x80\x02N0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
        b"\x80\x02\x8b\x0a\0\0\0\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."))},
    "x.pkl.zip": b"text\n" + archive(("a", EVIL)),
    ".git/x.pkl": EVIL,
    "evil-mod.pkl": b"\x80\x02cevil-mod\nrun\n)R.",
}


def tests():
    assert len(TABLE) >= 60
    for what in TABLE:
        yield f"torch and tcast: {what}", functools.partial(agrees, what)
    for what in SEARCHED:
        yield f"searched: {what}", functools.partial(is_searched, what)
    for beside, content in BESIDE.items():
        yield f"beside: {beside}", functools.partial(a_folder_is_searched, beside, content)
    for what in UNPICKLED:
        yield f"unpickled: {what}", functools.partial(what_python_runs_is_found, what)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
