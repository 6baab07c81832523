#!/bin/sh
# Copies the files that the examples of README.md and docs/ use into a new folder: docs/examples.sh FOLDER
set -eu
fixtures=$(cd "$(dirname "$0")/../fixtures" && pwd -P)
mkdir "${1:?usage: docs/examples.sh FOLDER}"
cd "$1"
cp "$fixtures/model.safetensors" model.safetensors
cp "$fixtures/weights_f32.npy" x.npy
cp "$fixtures/untyped_e4m3fn.npy" codes.npy
cp "$fixtures/corpus/npz/deflated.npz" arrays.npz
cp "$fixtures/onnx_models/basic_pitch_nmp.onnx" basic_pitch.onnx
cp "$fixtures/onnx_models/ort_nbits.onnx" quantized.onnx
cp "$fixtures/onnx_models/matmulnbits/f32.onnx" products.onnx
cp -R "$fixtures/checkpoints/llama-tiny-bf16" llama
cp -R "$fixtures/checkpoints/llama-fp8" tiny-fp8
cp -R "$fixtures/checkpoints/qwen3-moe-tiny" tiny-moe
cp -R "$fixtures/lora/style" style
cp "$fixtures/gguf/tiny.gguf" tiny.gguf
cp -R "$fixtures/mlx/checkpoint" mlx-mixed
cp "$fixtures/pytorch/state_dict.zip.pt" model.pt
cp "$fixtures/pytorch/training.zip.pt" training.pt
cp "$fixtures/bad/pytorch/os_system.pt" suspicious.pt
cp -R "$fixtures/pytorch/tiny-bin" tiny-bin
cp -R "$fixtures/pytorch/distributed/dcp" step-100
cp -R "$fixtures/pytorch/distributed/differ" step-7
cp -R "$fixtures/gguf/tiny-llama" tiny-llama
mkdir -p weights/more
for name in "first layer" head more/bias; do
    cp "$fixtures/weights_f32.npy" "weights/$name.npy"
done
