"""Runs the tests of the modules that are named, several at a time. `run.sh` is the way to call it."""

import importlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections import Counter

from common import Skip

TESTS = []


def run(index):
    """(name of the test, seconds, what became of it, and why)."""
    name, test = TESTS[index]
    start = time.perf_counter()
    outcome, why = "passed", ""
    try:
        test()
    except Skip as reason:
        outcome, why = "skipped", str(reason)
    except AssertionError as error:
        outcome, why = "failed", str(error) or traceback.format_exc()
    except Exception:
        outcome, why = "failed", traceback.format_exc()
    return name, time.perf_counter() - start, outcome, why


def main():
    with tempfile.TemporaryDirectory(prefix="tcast-interop-") as scratch:
        tempfile.tempdir = scratch
        for module in sys.argv[1:]:
            TESTS.extend((f"{module}: {name}", test) for name, test in importlib.import_module(module).tests())
        outcomes, skipped, seconds = Counter(), Counter(), Counter()
        # Forked, so that what the modules have prepared is there.
        with multiprocessing.get_context("fork").Pool(min(os.cpu_count() or 1, 8)) as pool:
            for name, taken, outcome, why in pool.imap_unordered(run, range(len(TESTS))):
                outcomes[outcome] += 1
                seconds[name.split(":")[0]] += taken
                if outcome == "failed":
                    print(f"FAILED {name}\n    {why}", flush=True)
                elif outcome == "skipped":
                    skipped[why] += 1
    for why, count in skipped.items():
        print(f"skipped {count}: {why}")
    print(", ".join(f"{module} {taken:.0f} s" for module, taken in seconds.items()), "of one core's time")
    print(", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped")))
    return 1 if outcomes["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
