#!/usr/bin/env python3
"""Runs the README's first commands in a terminal of its own and draws what they print as docs/terminal.svg.

    cargo build --release && python3 docs/picture.py

The commands run on copies of fixtures, in a folder that is removed afterwards. Only the colours that tcast uses are known.
"""
import html, os, pty, re, shutil, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMANDS = [
    "tcast cast llama --to float8e4m3fn --protect",
    "tcast bitcast x.npy --bits --range 0..3",
    "tcast cast x.npy --to float8e4m3 -o x.safetensors",
]
TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
COLUMNS, FONT, LINE = 124, 13, 18
WIDTH = 7.83  # of a character, where no monospace font is another: textLength below makes it so
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea"}


def output_of(command, folder):
    """What it prints on a terminal, progress bars left out."""
    def into_folder():
        os.chdir(folder)

    master, slave = pty.openpty()
    environment = {**os.environ, "PATH": f"{TARGET}/release:{os.environ['PATH']}", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    process = subprocess.Popen(command.split(), stdout=slave, stderr=slave, stdin=slave, env=environment, preexec_fn=into_folder)
    os.close(slave)
    printed = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        printed += piece
    process.wait()
    os.close(master)
    lines = printed.decode().replace("\r\n", "\n").split("\n")
    # What is drawn over later was a bar.
    lines = [re.sub(r"\x1b\[[0-9;]*[A-HJKf]", "", line.split("\r")[-1]) for line in lines]
    return [line for line in lines if line.strip()]


def drawn(line):
    """A line with its colours, as parts of an SVG text."""
    parts, style = [], {}
    for text, codes in re.findall(r"([^\x1b]*)(?:\x1b\[([0-9;]*)m)?", line):
        if text:
            attributes = "".join(f' {name}="{value}"' for name, value in style.items())
            parts.append(f"<tspan{attributes}>{html.escape(text)}</tspan>")
        for code in (codes or "").split(";"):
            if code in ("", "0"):
                style = {} if codes else style
            elif code == "1":
                style["font-weight"] = "bold"
            elif code == "2":
                style["opacity"] = "0.6"
            elif code in COLOURS:
                style["fill"] = COLOURS[code]
            else:
                sys.exit(f"no colour is known for {code!r} in {line!r}")
    return "".join(parts)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(f"{ROOT}/fixtures/checkpoints/llama-tiny-bf16", f"{folder}/llama")
        shutil.copy(f"{ROOT}/fixtures/weights_f32.npy", f"{folder}/x.npy")
        for command in COMMANDS:
            rows += [f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m", *output_of(command, folder), ""]
    rows.pop()
    height = LINE * len(rows) + 32
    width = round(WIDTH * COLUMNS) + 32
    bare = lambda row: re.sub(r"\x1b\[[0-9;]*m", "", row)
    text = "\n".join(
        f'<text x="16" y="{28 + LINE * at}" textLength="{WIDTH * len(bare(row)):.1f}" xml:space="preserve">{drawn(row)}</text>'
        for at, row in enumerate(rows) if row
    )
    with open(f"{ROOT}/docs/terminal.svg", "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="{FONT}" '
            f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" fill="#e6edf3">\n'
            f'<title>tcast in a terminal</title>\n<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n{text}\n</svg>\n'
        )


if __name__ == "__main__":
    main()
