//! The program, as its users run it: files, messages, exit codes. One file a command or a concern; one crate, because each
//! links for itself.

#[path = "../common/mod.rs"]
mod common;

mod adapters;
mod banks;
mod bitcast;
mod caches;
mod cast;
mod checkpoints;
mod complete;
mod containers;
mod cost;
mod dequantize;
mod dequantize_cost;
mod dequantize_malformed;
mod diff;
mod folders;
mod foreign;
mod gguf;
mod gguf_out;
mod gguf_out_casts;
mod gguf_out_choices;
mod gguf_out_diffusion;
mod gguf_out_donors;
mod gguf_out_models;
mod gguf_out_recover;
mod help;
mod inspect;
mod manifest;
mod many;
mod mistakes;
mod mlx;
mod mlx_experts;
mod mlx_moves;
mod models_in_folders;
mod not_tensors;
mod onnx_casts;
mod onnx_models;
mod onnx_quantize;
mod onnx_quantized;
mod opset;
mod outputs;
mod promote;
mod pytorch;
mod pytorch_code;
mod pytorch_malformed;
mod quantize;
mod quantize_budget;
mod quantize_choices;
mod quantize_compare;
mod quantize_infinite;
mod quantize_notes;
mod quantize_recover;
mod quantized;
#[cfg(unix)] // in its quotes
mod remedies;
mod renames;
mod scripts;
mod several;
mod staging;
mod text;
mod transcode;
mod undecoded;
mod windows;
