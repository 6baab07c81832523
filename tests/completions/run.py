#!/usr/bin/env python3
"""Presses Tab in every shell that is installed, and looks at the words of the command that comes of it.

    python3 tests/completions/run.py [bash zsh fish elvish pwsh]

Each shell reads its script of completions/ and gets a terminal of its own; a stand-in for the program writes down what
it is run with. Shells that are missing are told. TCAST=/path/to/tcast tests that binary instead of building one.
"""

import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # for one command; other jobs may have the machine

# What is typed before Tab, and the words that the program is run with then. {q} is a blank as the shell quotes it.
CASES = [
    ("tcast insp", ["inspect"]),
    ("tcast cast --out-of-r", ["cast", "--out-of-range"]),
    ("tcast cast x.npy --force-c", ["cast", "x.npy", "--force-codes"]),
    ("tcast cast x.npy --to float8e4m3fnu", ["cast", "x.npy", "--to", "float8e4m3fnuz"]),
    ("tcast cast x.npy --to bf1", ["cast", "x.npy", "--to", "bf16"]),
    ("tcast cast x.npy --to F8_E5M2F", ["cast", "x.npy", "--to", "F8_E5M2FNUZ"]),
    ("tcast cast x.npy --to=bfl", ["cast", "x.npy", "--to=bfloat16"]),
    ("tcast cast x.npy --from uint6", ["cast", "x.npy", "--from", "uint64"]),
    ("tcast cast x.npy --round-mode ne", ["cast", "x.npy", "--round-mode", "nearest"]),
    ("tcast cast x.npy --fail-on saturated,inf", ["cast", "x.npy", "--fail-on", "saturated,infinite"]),
    ("tcast cast x.npy --saturate=f", ["cast", "x.npy", "--saturate=false"]),
    ("tcast cast mod", ["cast", "model.safetensors"]),  # and not model.txt
    ("tcast cast arr", ["cast", "arrays.npz"]),
    ("tcast cast ten", ["cast", "tensor.pb"]),
    ("tcast cast lla", ["cast", "llama/"]),
    ("tcast cast llama/model-00001", ["cast", "llama/model-00001-of-00003.safetensors"]),
    ("tcast cast my", ["cast", "my weights.npy"]),
    ("tcast diff x.npy my", ["diff", "x.npy", "my weights.npy"]),
    ("tcast bitcast model.safetensors --tensor model.norm", ["bitcast", "model.safetensors", "--tensor", "model.norm.weight"]),
    ("tcast bitcast 'my weights.npy' --tensor my", ["bitcast", "my weights.npy", "--tensor", "my weights"]),
    ("tcast bitcast llama --tensor model.norm", ["bitcast", "llama", "--tensor", "model.norm.weight"]),
    ("tcast cast model.safetensors --exclude model.norm", ["cast", "model.safetensors", "--exclude", "model.norm.weight"]),
    ("tcast cast model.safetensors --rule model.norm.weight=bfl",
     ["cast", "model.safetensors", "--rule", "model.norm.weight=bfloat16"]),
    ("tcast cast model.safetensors --rule model.norm", ["cast", "model.safetensors", "--rule", "model.norm.weight="]),
    ("tcast cast x.npy --report rep", ["cast", "x.npy", "--report", "report.html"]),
    ("tcast bitcast broken.safetensors --tensor ", ["bitcast", "broken.safetensors", "--tensor"]),
]
# An open quote; elvish takes such a word for what it is and completes it as well, but not where it is an argument of =.
OPEN_QUOTE = ("tcast cast x.npy --rule '*norm*=bfl", ["cast", "x.npy", "--rule", "*norm*=bfloat16"])

START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ["source {scripts}/tcast.bash"]),
    # As it is installed: a file _tcast in a folder of $fpath.
    "zsh": (["zsh", "-f", "-i"], ["fpath=({fpath} $fpath); autoload -Uz compinit; compinit -u -D"]),
    "fish": (["fish", "--no-config", "-i"], ["source {scripts}/tcast.fish"]),
    "elvish": (["elvish", "-norc"], ["eval (slurp < {scripts}/tcast.elv)"]),
}


def make_folder(folder: Path) -> None:
    """Files to complete, the program's stand-in, and a folder of functions for zsh."""
    fixtures = ROOT / "fixtures"
    work = folder / "work"
    work.mkdir()
    shutil.copy(fixtures / "model.safetensors", work)
    for name in ("x.npy", "my weights.npy"):
        shutil.copy(fixtures / "weights_f32.npy", work / name)
    shutil.copytree(fixtures / "checkpoints/llama-tiny-bf16", work / "llama")
    (work / "broken.safetensors").write_bytes(b"\xff" * 100)
    for name in ("model.txt", "arrays.npz", "arrays.zip", "tensor.pb", "tensor.csv", "report.html", "report.txt"):
        (work / name).touch()
    (folder / "home").mkdir()
    (folder / "fpath").mkdir()
    shutil.copy(ROOT / "completions/tcast.zsh", folder / "fpath/_tcast")
    stand_in = folder / "bin/tcast"
    stand_in.parent.mkdir()
    stand_in.write_text(
        "#!/bin/sh\n"
        'if [ -n "$TCAST_COMPLETE" ]; then exec "$REAL_TCAST" "$@"; fi\n'
        'for word; do printf "%s\\0" "$word"; done > "$SEEN.part" && mv "$SEEN.part" "$SEEN"\n'
    )
    stand_in.chmod(0o755)


class Terminal:
    """A shell in a terminal of 24 lines, whose output is kept."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, env)
        import fcntl
        import termios

        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                return
            if not piece:
                return
            self.output += piece
            if b"\x1b[6n" in piece:  # elvish asks where the cursor is
                os.write(self.fd, b"\x1b[1;1R")

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def settle(self, quiet: float = 0.3) -> None:
        """Waits until nothing is printed any longer."""
        end = time.monotonic() + SECONDS
        length = -1
        while length != len(self.output) and time.monotonic() < end:
            length = len(self.output)
            time.sleep(quiet)

    def close(self) -> None:
        try:
            os.kill(self.pid, 9)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def environment(folder: Path, tcast: str) -> dict[str, str]:
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "TERM": "xterm",
        "LANG": "C.UTF-8",
        "REAL_TCAST": tcast,
        "SEEN": str(folder / "seen"),
        "PS1": "$ ",
    }


def words_run(seen: Path) -> list[str] | None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if seen.exists():
            words = seen.read_bytes().decode().split("\0")[:-1]
            seen.unlink()
            return words
        time.sleep(0.02)
    return None


def check_shell(shell: str, tcast: str, patience: int = 1) -> list[str]:
    """What is wrong with the completions of a shell. Nothing says when a shell is ready for more but its silence, which is
    waited for `patience` times as long."""
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_folder(folder)
        command, setup = START[shell]
        terminal = Terminal(command, folder / "work", environment(folder, tcast))
        terminal.settle(1.0 * patience)
        for line in setup:
            terminal.send(line.format(scripts=ROOT / "completions", fpath=folder / "fpath") + "\r")
        terminal.settle(1.0 * patience)
        for typed, expected in CASES + ([OPEN_QUOTE] if shell != "elvish" else []):
            before = len(terminal.output)
            terminal.send(typed)
            terminal.settle(0.1 * patience)
            terminal.send("\t")
            terminal.settle(0.4 * patience)
            terminal.send("\r")
            if shell == "elvish":
                # Words that need quotes are put into a list of one, where Enter takes the word and the next one runs it.
                terminal.settle(0.4 * patience)
                terminal.send("\r")
            words = words_run(folder / "seen")
            if words != expected:
                screen = terminal.output[before:].decode(errors="replace")
                wrong.append(f"{shell}: {typed!r}: {words} instead of {expected}; the terminal had {screen!r}")
                if patience == 1:
                    break
                print(wrong[-1], flush=True)
                terminal.send("\x03")
            terminal.settle(0.1 * patience)
        terminal.close()
    # On a busy machine, a shell may be silent for a while before it is ready.
    return check_shell(shell, tcast, 8) if wrong and patience == 1 else wrong


def check_powershell(tcast: str) -> list[str]:
    """The same, by the function that PowerShell itself calls at Tab."""
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_folder(folder)
        for typed, expected in CASES:
            quoted = typed.replace("'", "''")
            script = (
                f". '{ROOT}/completions/tcast.ps1'; $line = '{quoted}'; "
                "ConvertTo-Json -Compress @((TabExpansion2 $line $line.Length).CompletionMatches.CompletionText)"
            )
            done = subprocess.run(
                ["pwsh", "-NoProfile", "-NonInteractive", "-Command", script],
                cwd=folder / "work", env=environment(folder, tcast), capture_output=True, text=True, timeout=SECONDS,
            )
            found = [] if not done.stdout.strip() else json.loads(done.stdout)
            found = [word.strip("'") for word in found if word]
            wanted = [] if typed.endswith("--tensor ") else expected[-1:]
            if found != wanted:
                wrong.append(f"pwsh: {typed!r}: {found} instead of {wanted}; {done.stderr!r}")
                print(wrong[-1], flush=True)
    return wrong


def check(shell: str, tcast: str) -> list[str]:
    return check_powershell(tcast) if shell == "pwsh" else check_shell(shell, tcast)


def main() -> int:
    shells = sys.argv[1:] or [*START, "pwsh"]
    tcast = os.environ.get("TCAST")
    if not tcast:
        subprocess.run(["cargo", "build", "--quiet"], cwd=ROOT, check=True)
        tcast = str(ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/tcast")
    tcast = str(Path(tcast).resolve())
    present = [shell for shell in shells if shutil.which(shell)]
    missing = [shell for shell in shells if shell not in present]
    wrong = []
    with ProcessPoolExecutor(max(len(present), 1)) as pool:  # they wait for their terminals most of the time
        for shell, found in zip(present, pool.map(check, present, repeat(tcast))):
            print(f"completions in {shell}: {len(CASES) - len(found)} of {len(CASES)} right" if found else
                  f"completions in {shell}: right", flush=True)
            wrong += found
    if missing:
        print(f"NOT CHECKED, for they are not installed: completions in {', '.join(missing)}", file=sys.stderr)
    return 1 if wrong or len(missing) == len(shells) else 0


if __name__ == "__main__":
    sys.exit(main())
