"""Models with experts of each kind: transformers loads what `tcast cast --experts` makes of the files that it has saved in either
form, and the way back gives the bytes before."""

import os
import re
import shutil

import safetensors.torch
import torch

import model_types
from common import Skip, folder, tcast

os.environ["HF_HUB_OFFLINE"] = "1"

# Kinds of models, of each way to name experts at least one.
KINDS = ["mixtral", "phimoe", "minimax_m2", "kimi_linear", "qwen3_moe", "deepseek_v3", "nemotron_h"]
# All kinds whose experts tcast stacks and divides, by `model_type`.
OTHERS = """afmoe axk1 axk2 bailing_hybrid beam cohere2_moe deepseek_ocr2 deepseek_v2 deepseek_v32 deepseek_v4 dots1 ernie4_5_moe exaone_moe flex_olmo
    flint glm4_moe glm4_moe_lite glm4v_moe glm5_next glm5_next_text glm_moe_dsa hunyuan_v1_moe hy_v3 jamba kimi_k25 kolibri1
    laguna lfm2_moe longcat_flash mellum mimo_v2_flash minimax minimax_m3_vl olmoe qwen2_moe qwen3_5_moe_text qwen3_next qwen3_omni_moe qwen3_omni_moe_thinker
    qwen4_exp_text sarvam_mla sarvam_moe solar_open""".split()


def load(path, architecture):
    """The model of a folder, and its tensors; nothing may be missing or left over."""
    model, info = architecture.from_pretrained(path, dtype=torch.bfloat16, output_loading_info=True)
    faults = {key: sorted(map(str, info[key]))[:3] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(key)}
    return model.eval(), faults


def same(model, other, what):
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys(), what
    for name, tensor in ours.items():
        assert torch.equal(tensor.nan_to_num(), theirs[name].nan_to_num()), (what, name)


def results(model):
    """The result of the first inputs that the model takes."""
    for inputs in model_types.inputs_of(model):
        try:
            return model_types.run(model, inputs)
        except Exception:
            continue
    return None


def experts(path):
    """The weights of experts of a file, by their names from the number of the layer on."""
    tensors = safetensors.torch.load_file(path / "model.safetensors")
    found = ((re.search(r"\d+\.\w+\.experts\.(\d+\.)?(w\d|\w+_proj).*", name), tensor) for name, tensor in tensors.items())
    return {name[0]: tensor for name, tensor in found if name}


@folder
def both_forms_load(path, kind):
    try:
        source = model_types.build(kind)
    except RuntimeError as error:
        raise Skip(f"no small model with experts: {kind}") from error
    source.save_pretrained(path / "single")
    source.save_pretrained(path / "stacked", save_original_format=False)
    wanted, faults = load(path / "single", type(source))
    if faults or not experts(path / "single"):
        raise Skip(f"no small model with experts: {kind}")
    for form, other in [("stacked", "single"), ("single", "stacked")]:
        made = path / f"to-{form}"
        tcast(path / other, "--experts", form, "-o", made)
        loaded, faults = load(made, type(source))
        assert not faults, (kind, form, faults)
        same(loaded, wanted, (kind, form))
        before, after = results(wanted), results(loaded)
        assert (before is None) == (after is None) and (before is None or torch.equal(before.nan_to_num(), after.nan_to_num())), (kind, form)
        # Names and values of the experts are those of transformers, which also has other names for the whole model.
        theirs, ours = experts(path / form), experts(made)
        assert theirs.keys() == ours.keys(), (kind, form, sorted(theirs.keys() ^ ours.keys())[:3])
        assert theirs and all(torch.equal(ours[name], theirs[name]) for name in theirs), (kind, form)
        tcast(made, "--experts", other, "-o", path / "back")
        assert (path / "back" / "model.safetensors").read_bytes() == (path / other / "model.safetensors").read_bytes(), (kind, form)
        shutil.rmtree(path / "back")


def tests():
    all_kinds = KINDS + OTHERS if os.environ.get("TCAST_KINDS") == "all" else KINDS
    return [(f"both forms of {kind}", lambda kind=kind: both_forms_load(kind)) for kind in all_kinds]
