"""What `tcast quantize --search mse` gains on the checkpoints of fixtures/: the SQNR of all weights together, with the scales of
the rule and with searched scales.

    python3 benches/search.py [--docs]

--docs writes the table of docs/quantize.md. TCAST=/path/to/tcast takes that program instead of building one.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "quantize.md"
CHECKPOINTS = ["llama-tiny-bf16", "llama-nvfp4a16-source"]
SCHEMES = [["nvfp4"], ["mxfp4"], ["int4"], ["int4", "--group-size", "32"], ["int4-asym"], ["int4-asym", "--group-size", "32"]]


def program():
    if "TCAST" in os.environ:
        return os.environ["TCAST"]
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release" / "tcast"


def quantize(tcast, scheme, search):
    """The mean and the least SQNR of the weights in decibels, and how many there are."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in CHECKPOINTS:
            command = [tcast, "quantize", ROOT / "fixtures" / "checkpoints" / checkpoint, "--scheme", *scheme, "--search", search,
                       "-o", Path(folder) / checkpoint, "--json", "-q"]
            report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            figures = (tensor.get("quantized") for tensor in report["tensors"])
            found += [figure["sqnr_db"] for figure in figures if figure]
    return math.fsum(found) / len(found), min(found), len(found)


def main():
    tcast = program()
    rows = ["| scheme | weights | mean SQNR by the rule | searched | gain | lowest by the rule | searched |", "|---|---|---|---|---|---|---|"]
    for scheme in SCHEMES:
        (mean, least, count), (better, higher, _) = (quantize(tcast, scheme, search) for search in ("amax", "mse"))
        rows.append(f"| `{' '.join(scheme)}` | {count} | {mean:.2f} dB | {better:.2f} dB | {better - mean:.2f} dB | {least:.2f} dB | {higher:.2f} dB |")
    table = "\n".join(rows)
    print(table)
    if "--docs" in sys.argv[1:]:
        before, rest = PAGE.read_text().split("<!-- search -->\n")
        _, after = rest.split("<!-- end -->\n")
        PAGE.write_text(f"{before}<!-- search -->\n\n{table}\n\n<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
