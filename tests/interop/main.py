"""Runs the tests of the modules that are named, several at a time. `run.sh` is the way to call it."""

import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback

TESTS = []


def run(index):
    """(name of the test, what is wrong or None)."""
    name, test = TESTS[index]
    try:
        test()
    except AssertionError as error:
        return name, str(error) or traceback.format_exc()
    except Exception:
        return name, traceback.format_exc()
    return name, None


def main():
    with tempfile.TemporaryDirectory(prefix="tcast-interop-") as scratch:
        tempfile.tempdir = scratch
        for module in sys.argv[1:]:
            TESTS.extend((f"{module}: {name}", test) for name, test in importlib.import_module(module).tests())
        failed = 0
        # Forked, so that what the modules have prepared is there.
        with multiprocessing.get_context("fork").Pool(min(os.cpu_count() or 1, 8)) as pool:
            for name, wrong in pool.imap_unordered(run, range(len(TESTS))):
                if wrong is not None:
                    failed += 1
                    print(f"FAILED {name}\n    {wrong}", flush=True)
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
