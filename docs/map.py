#!/usr/bin/env python3
"""Draws docs/map.png: the map of a report, in Chromium.

    cargo build --release && python3 docs/map.py

TCAST=/path/to/tcast runs that binary instead, and CHROMIUM=/path/to/browser that browser. The model is made up: random
weights, with more outliers in late layers and in `down_proj`.
"""
import json, os, random, struct, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TCAST = os.environ.get("TCAST", os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release", "tcast"))
CHROMIUM = os.environ.get("CHROMIUM", "chromium")
LAYERS, DENSE, EXPERTS = 32, 2, 8
ROWS, COLUMNS = 16, 128
SIZE = "1100,560"


def weights():
    """The names of all weights, and the share of their outliers."""
    yield "model.embed_tokens.weight", 0
    for layer in range(LAYERS):
        late = layer / LAYERS
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"]:
            yield f"model.layers.{layer}.self_attn.{name}.weight", 0.004 * late
        blocks = ["mlp"] if layer < DENSE else [f"mlp.experts.{expert}" for expert in range(EXPERTS)]
        for block in blocks:
            for name, outliers in [("gate_proj", 0.002), ("up_proj", 0.002), ("down_proj", 0.01)]:
                yield f"model.layers.{layer}.{block}.{name}.weight", outliers + 0.02 * late**3
        if layer >= DENSE:
            yield f"model.layers.{layer}.mlp.gate.weight", 0
    yield "lm_head.weight", 0


def write_model(path):
    random.seed(1)
    header, data = {}, bytearray()
    for name, outliers in weights():
        values = [random.gauss(0, 0.02) * (12 if random.random() < outliers else 1) for _ in range(ROWS * COLUMNS)]
        start = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main():
    with tempfile.TemporaryDirectory() as folder:
        model, page = os.path.join(folder, "model.safetensors"), os.path.join(folder, "report.html")
        write_model(model)
        command = [TCAST, "quantize", model, "--scheme", "nvfp4", "--layout", "comfyui", "--report", page, "-q"]
        subprocess.run([*command, "-o", os.path.join(folder, "quantized.safetensors")], check=True)
        with open(page, "a") as file:
            file.write("<style>header, section:not(.map), footer { display: none } h2 { margin: 0 0 10px }</style>")
        picture = os.path.join(ROOT, "docs", "map.png")
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}", f"--screenshot={picture}"]
        subprocess.run([CHROMIUM, *flags, f"--user-data-dir={folder}/profile", f"file://{page}"], check=True, stderr=subprocess.DEVNULL)
        print(os.path.getsize(picture), "bytes")


if __name__ == "__main__":
    sys.exit(main())
