"""Trials: a loader takes a small model of each kind in each scheme, and its weights and results are compared with those of the
model before."""

import re
import subprocess

import safetensors
import torch

import model_types
from common import TCAST

# The columns of the table: the flags of `tcast quantize`.
TRANSFORMERS = {
    "fp8": "--scheme fp8",
    "int4": "--scheme int4",
    "fp8-block": "--scheme fp8-block --layout huggingface",
    "kept": "--scheme fp8 --exclude LAYER",
    "mixed": "--scheme fp8 --rule LAYER=int8",
}
# For models with experts only: linear layers of the other schemes load as those above do.
OF_EXPERTS = {
    "nvfp4": "--scheme nvfp4",
    "int8": "--scheme int8",
    "ct-fp8-block": "--scheme fp8-block --layout compressed-tensors",
    "banks": "--scheme fp8 --exclude *experts*",
    "int4-banks": "--scheme int4 --exclude *experts*",
    "fp8-block-banks": "--scheme fp8-block --layout huggingface --exclude *experts*",
}
# The largest relative error of a weight. The errors of the schemes are below a half of these.
WORST = 0.3


def quantize(source, flags, output):
    return subprocess.run([TCAST, "quantize", source, *flags.split(), "-o", output, "-q", "-f"], capture_output=True, text=True)


def expanded(scale, shape):
    """Scales of blocks, as many as there are values."""
    while scale.dim() < len(shape):
        scale = scale[..., None]
    for axis, size in enumerate(shape):
        if scale.shape[axis] != size:
            scale = scale.repeat_interleave(-(-size // scale.shape[axis]), axis).narrow(axis, 0, size)
    return scale


def values_of(model):
    """The weights of a model by name, decoded where it holds codes of 8 bits."""
    state = model.state_dict()
    out = {}
    for name, weight in state.items():
        scale = next((state[name + end] for end in ("_scale_inv", "_scale") if name + end in state), None)
        if scale is None or weight.dtype == torch.bfloat16:
            out[name] = weight
            continue
        # The bytes of mxfp8 are exponents.
        scale = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
        out[name] = weight.float() * expanded(scale, weight.shape)
    return out


def load_names(path):
    with safetensors.safe_open(path, "pt") as file:
        return list(file.keys())


def one_layer(names):
    """A pattern for some of the quantized modules of a model."""
    quantized = sorted(name.removesuffix("weight_scale") for name in names if name.endswith(".weight_scale"))
    first = next((name for name in quantized if ".0." in name), quantized[0])
    pattern = first[: first.index(".0.") + 3] if ".0." in first else first
    return pattern + "*" if any(not name.startswith(pattern) for name in quantized) else first + "*"


def difference(found, wanted):
    """The norm of the difference relative to that of the values."""
    if found.shape != wanted.shape:
        return float("inf")
    if found.dtype == wanted.dtype and torch.equal(found, wanted):
        return 0.0
    found, wanted = found.float(), wanted.float()
    error = (found - wanted).norm() / (wanted.norm() + 1e-9)
    if not error.isfinite():
        both = found.isfinite() & wanted.isfinite()
        if not torch.equal(found.isfinite(), wanted.isfinite()):
            return float("inf")
        error = (found - wanted)[both].norm() / (wanted[both].norm() + 1e-9)
    return float(error)


class Source:
    """A small model of a kind, stored in a folder."""

    def __init__(self, kind, folder):
        self.folder = folder / "source"
        model = model_types.build(kind)
        self.architecture = type(model)
        self.config = model.config
        model.save_pretrained(self.folder)
        self.model, info = self.load(self.folder)
        self.info = self.faults(info)
        self.state = {name: value.clone() for name, value in self.model.state_dict().items()}
        # A model that does not survive its own file says nothing about schemes.
        before = model.state_dict()
        lost = [name for name, value in self.state.items() if name in before and difference(value, before[name]) > 1e-3]
        if lost:
            raise RuntimeError(f"not stored: {lost[:3]}")
        self.inputs = None
        self.why = []
        for inputs in model_types.inputs_of(self.model):
            try:
                self.result = model_types.run(self.model, inputs)
                self.inputs = inputs
                break
            except Exception as error:
                self.why.append(repr(error)[:120])

    def load(self, path, **options):
        return self.architecture.from_pretrained(path, dtype=torch.bfloat16, output_loading_info=True, **options)

    @staticmethod
    def faults(info):
        return {key: set(map(str, info[key])) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")}

    def outcome(self, path, **options):
        """(what became of a quantized model, why)."""
        try:
            model, info = self.load(path, **options)
        except Exception as error:
            return "error", f"load: {error!r:.200}"
        model.eval()
        for key, names in self.faults(info).items():
            if names - self.info[key]:
                return "wrong", f"{key}: {sorted(names - self.info[key])[:2]}"
        result = None
        if self.inputs is not None:
            try:
                result = model_types.run(model, self.inputs)
            except Exception as error:
                return "error", f"run: {error!r:.200}"
        found = values_of(model)
        for name, wanted in self.state.items():
            if name not in found:
                return "wrong", f"{name} is missing after a run"
            if not wanted.is_floating_point():
                continue
            error = difference(found[name], wanted)
            if error > WORST:
                return "wrong", f"{name} {found[name].dtype}: {error:.2g}"
        if result is None:
            return "ok", "not run"
        # What the model before computes with the same values.
        try:
            self.model.load_state_dict({name: found[name].to(value.dtype) for name, value in self.state.items()})
            wanted = model_types.run(self.model, self.inputs)
        finally:
            self.model.load_state_dict(self.state)
        error, noise = difference(result, wanted), difference(self.result, wanted)
        return "ok", f"{error:.3f} {noise:.3f}"


def trial(kind, folder):
    """Yields (column, outcome, why) of a kind of model."""
    from transformers import CompressedTensorsConfig, FineGrainedFP8Config

    source = Source(kind, folder)
    names = [name for file in source.folder.glob("*.safetensors") for name in load_names(file)]
    experts = "single" if any(re.search(r"\.experts\.\d", name) for name in names) else "stacked" if any(
        re.search(r"\.experts\.\w+(\.weight)?$", name) for name in names) else "none"
    yield "experts", experts, ""
    yield "source", "run" if source.inputs is not None else "norun", f"{source.architecture.__name__} {source.why[-1:]}"
    layer, refused = None, False
    columns = TRANSFORMERS | (OF_EXPERTS if experts != "none" else {})
    for column, flags in columns.items():
        if refused and "banks" not in column:
            continue
        if "LAYER" in flags:
            flags = flags.replace("LAYER", layer)
        run = quantize(source.folder, flags, folder / "q")
        if run.returncode:
            yield column, "refused", run.stderr.strip().splitlines()[0][-200:]
            refused |= column == "fp8"
            continue
        outcome, why = source.outcome(folder / "q")
        if outcome != "ok":
            of = FineGrainedFP8Config if column in ("fp8-block", "fp8-block-ue8m0", "mxfp8") else CompressedTensorsConfig
            second, _ = source.outcome(folder / "q", quantization_config=of(dequantize=True))
            outcome += "+" if second == "ok" else ""
        yield column, outcome, why
        if column == "fp8":
            layer = one_layer(load_names(folder / "q/model.safetensors"))
            run = subprocess.run([TCAST, "dequantize", folder / "q", "-o", folder / "p", "-q", "-f"], capture_output=True, text=True)
            yield ("plain", *(("refused", run.stderr[-200:]) if run.returncode else source.outcome(folder / "p")))
