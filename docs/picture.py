#!/usr/bin/env python3
"""Runs commands in a pseudoterminal and draws their output as docs/terminal.svg, the picture of the README.

    cargo build --release && python3 docs/picture.py

TCAST=/path/to/tcast runs that binary instead. The commands run on copies of fixtures in a temporary folder. The script knows
only the colors that tcast uses.
"""
import html, os, pty, re, subprocess, sys, tempfile, textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMANDS = [
    "tcast cast llama --to float8e4m3fn --protect",
    "tcast bitcast x.npy --bits --range 0..3",
    "tcast cast x.npy --to float8e4m3 -o x.safetensors",
]
TCAST = os.environ.get("TCAST", os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast"))
COLUMNS, FONT, LINE = 124, 13, 18
WIDTH = 7.83  # of a character; textLength below stretches other fonts to it
COLORS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea"}


def output_of(command, folder):
    """The lines that it prints on a terminal, without progress bars."""
    def into_folder():
        os.chdir(folder)

    master, slave = pty.openpty()
    environment = {**os.environ, "PATH": f"{os.path.dirname(TCAST)}:{os.environ['PATH']}", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
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
    # A line that is drawn over was a progress bar.
    lines = [re.sub(r"\x1b\[[0-9;]*[A-HJKf]", "", line.split("\r")[-1]) for line in lines]
    return [row for line in lines if line.strip() for row in wrapped(line)]


def wrapped(line):
    """A line as the rows of a terminal. Lines with colors are short enough."""
    assert len(line) <= COLUMNS or "\x1b" not in line[20:], line
    return textwrap.wrap(line, COLUMNS + line.count("\x1b") * 5, drop_whitespace=False) if len(line) > COLUMNS else [line]


def drawn(line):
    """A row with its colors, as parts of an SVG text."""
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
            elif code in COLORS:
                style["fill"] = COLORS[code]
            else:
                sys.exit(f"no color is known for {code!r} in {line!r}")
    return "".join(parts)


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        examples = f"{folder}/examples"
        subprocess.run([f"{ROOT}/docs/examples.sh", examples], check=True)
        for command in COMMANDS:
            rows += [f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m", *output_of(command, examples), ""]
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
