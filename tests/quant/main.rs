//! Quantized weights: bytes of the libraries, recognition, configs, errors.

mod config;
mod encode;
mod encode_reference;
mod engine_config;
mod errors;
mod goldens;
mod recognition;
mod reference;
