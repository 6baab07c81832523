"""The table of what loaders make of small models of each kind, which the program reads: `src/select/tried.txt`.

The tests compare a tenth of its rows with trials, or with `TCAST_KINDS=all` all of them, which takes an hour. To write the table:

    PYTHON tests/interop/kinds_of_models.py transformers|mlx-lm [KIND...]
"""

import os
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

TABLE = Path(__file__).parents[2] / "src/select/tried.txt"
COLUMNS = {
    "transformers": "fp8 int4 fp8-block kept mixed nvfp4 int8 ct-fp8-block banks int4-banks fp8-block-banks int4-asym plain".split(),
    "mlx-lm": "affine8 mxfp8 plain".split(),
}
LETTERS = {"ok": ".", "error": "e", "error+": "E", "wrong": "x", "wrong+": "X"}
SECONDS = 600


def trials_of(loader):
    """The module with the trials of a loader, and the kinds of models that the loader knows."""
    if loader == "mlx-lm":
        import mlx_trials

        return mlx_trials.trial, mlx_trials.kinds
    import model_trials
    import model_types

    return model_trials.trial, model_types.kinds


def row(loader, kind):
    """The row of a kind, after its name; `None` if no small model of the kind can be made and quantized."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcomes = {column: outcome for column, outcome, _ in trials_of(loader)[0](kind, Path(folder))}
        except Exception as error:
            print(f"{kind}: {error!r:.200}", file=sys.stderr)
            return None
    has_run = outcomes.get("source") != "norun"
    cells = "".join(LETTERS.get(outcomes.get(column), "-") for column in COLUMNS[loader])
    if not has_run:
        cells = cells.replace(".", "?").replace("E", "e").replace("X", "x")
    experts = outcomes["experts"]
    if experts == "stacked":
        experts = "banks" if outcomes.get("fp8", "refused") != "refused" else "other"
    return f"{experts} {cells}" if set(cells) != {"-"} else None


def read():
    """The head of the table, and for each loader its lines of head and its rows."""
    head, *parts = TABLE.read_text().split("\nloader ")
    loaders = {}
    for part in parts:
        name, columns, *rows = part.splitlines()
        assert columns == "columns " + " ".join(COLUMNS[name.split()[0]]), columns
        loaders[name] = dict(line.split(" ", 1) for line in rows if line)
    return head, loaders


def write(loader, kinds):
    head, loaders = read()
    with get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=20) as pool:
        pending = {kind: pool.apply_async(row, (loader, kind)) for kind in kinds or trials_of(loader)[1]()}
        rows = next(rows for name, rows in loaders.items() if name.startswith(loader))
        for kind, result in pending.items():
            found = result.get()
            rows.pop(kind, None)
            if found:
                rows[kind] = found
            parts = (
                f"\nloader {name}\ncolumns {' '.join(COLUMNS[name.split()[0]])}\n"
                + "".join(f"{kind} {text}\n" for kind, text in sorted(rows.items()))
                for name, rows in loaders.items()
            )
            TABLE.write_text(head + "".join(parts))


def holds(loader, kind, wanted):
    found = row(loader, kind)
    assert found == wanted, f"{kind}: {found}, and the table has {wanted}"


def of_loader(loader):
    """Tests of the rows of a loader."""
    _, loaders = read()
    rows = next(rows for name, rows in loaders.items() if name.startswith(loader))
    step = 1 if os.environ.get("TCAST_KINDS") == "all" else 10
    for kind in sorted(rows.keys() - {"*"})[::step]:
        yield f"{kind} loads as the table says", lambda case=(loader, kind, rows[kind]): holds(*case)


def tests():
    return of_loader("transformers")


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2:])
