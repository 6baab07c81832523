//! tcast converts tensors between number formats, bit for bit as ONNX Cast defines it.
//!
//! The program `tcast` does more than this crate exposes: it writes reports and statistics. A library leaves out the
//! program's feature `cli`, and with it arguments, signals and terminal code:
//! `tcast = { version = "...", default-features = false }`.
//!
//! # Convert a buffer
//!
//! [`slice::cast`] converts a slice to a slice of another element type, and counts the losses:
//!
//! ```
//! use tcast::{kernel::Loss, slice::Float8E4M3FN};
//!
//! let weights = [0.1_f32, -2.5, 1000.0];
//! let mut codes = [Float8E4M3FN::default(); 3];
//! let counts = tcast::slice::cast(&weights, &mut codes)?;
//! assert_eq!(codes.map(Float8E4M3FN::to_bits), [0x1d, 0xc2, 0x7e]);
//! assert_eq!(counts[Loss::Saturated], 1); // 1000 became 448, the largest float8e4m3fn
//! # Ok::<(), tcast::slice::CastError>(())
//! ```
//!
//! If types are known only at run time, it converts [`slice::StoredBytes`] to [`slice::StoredBytesMut`]: see
//! `examples/convert_in_memory.rs`.
//!
//! # Convert, quantize or decode a file
//!
//! [`cast`], [`quantize`] and [`dequantize`] convert a tensor file, or a folder of shards, on all cores and without
//! holding a tensor in memory. They return the report that the program prints with `--json`. [`promote`](promote())
//! converts tensors of several files to the common type that [`common_type`] decides on, and [`bitcast`](bitcast())
//! reinterprets bits. [`Settings`] adds progress and cancellation. Quantized weights can have the layouts of
//! compressed-tensors, `ModelOpt`, GPTQ, AWQ, bitsandbytes, `ComfyUI`, gpt-oss and ONNX. [`TensorFiles`] lists the
//! tensors of a file or a folder, reads their values, and finds their extremes, means and special values;
//! [`diff`](diff()) compares two of them. [`Scheme::encode`] quantizes a weight in memory, and
//! [`EncodedWeight::from_stored`] takes the tensors of one to decode.
//!
//! ```
//! use tcast::{dtype::Dtype, options::{CastOptions, DequantizeOptions, QuantizeOptions}};
//!
//! # let folder = tempfile::tempdir()?;
//! # let [half, decoded, codes] = ["model.bf16.safetensors", "decoded", "codes"].map(|name| folder.path().join(name));
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model.safetensors");
//! # let quantized = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/llama-fp8");
//! tcast::cast(model, half, &CastOptions::to(Dtype::Bfloat16))?;
//! tcast::dequantize(quantized, &decoded, &DequantizeOptions::default())?;
//! tcast::quantize(&decoded, &codes, &QuantizeOptions::scheme("nvfp4")?)?;
//! assert!(tcast::TensorFiles::open(codes)?.tensors().list().iter().any(|tensor| tensor.layout.is_some()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Conventions
//!
//! Lengths and offsets are in bytes where the name says so, and in elements otherwise; shapes are in elements, row-major.
//! Bytes in memory are little endian unless a [`kernel::Storage`] says otherwise. Every error is an [`error::Error`], which
//! names the file, the tensor and the cause; only [`slice::cast`] has a separate error type.
//!
//! Modules that are hidden here serve the program and its tests, and can change at any time.

#![warn(clippy::unwrap_used)]

pub mod error;
pub mod options;
pub mod progress;

// For the program, the tests and the fuzzing.
#[doc(hidden)]
pub mod blocks;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod container;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod io;
#[doc(hidden)]
#[allow(clippy::must_use_candidate, reason = "for users of the crate only")]
pub mod measure;
#[doc(hidden)]
pub mod operator;
#[doc(hidden)]
pub mod plan;
#[doc(hidden)]
#[allow(clippy::must_use_candidate, reason = "for users of the crate only")]
pub mod quant;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod select;
#[doc(hidden)]
pub mod text;

mod conversion;
mod convert;
mod job;
mod lora;
mod read;
mod staging;
mod tensors;
mod threads;

/// Casts of slices, and the element types that Rust lacks.
pub use tcast_slice as slice;
pub use tcast_slice::{dtype, kernel};

use tcast_slice::random;

/// The crate with the element types `f16` and `bf16`, in the version whose types [`slice`](mod@slice) converts.
pub use half;

pub use convert::{
    PromoteReport, PromotedTensor, Settings, bitcast, cast, common_type, dequantize, diff, promote, quantize,
};
pub use job::{FileReport, IfExists, PartReport, QuantizedReport, TensorReport};
pub use measure::accuracy::Accuracy;
pub use measure::compare::{Comparison, DiffFigures, DiffOptions, DiffReport, DiffStatus, FirstDifference, TensorDiff};
pub use measure::distribution::{Distribution, Histogram};
pub use measure::number::Number;
pub use measure::quantized::{CodesOrigin, QuantizedAccuracy};
pub use quant::{EncodedTensor, EncodedWeight, Scheme, StoredPart, WeightElement};
pub use report::Report;
pub use tensors::{TensorFiles, TensorInfo, Tensors};
