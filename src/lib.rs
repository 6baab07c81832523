//! tcast: tensor files from one number format to another, bit for bit as ONNX Cast defines it.
//!
//! Most people want the program of this name, which can do more than this crate shows: whole checkpoints, reports,
//! statistics, comparisons. The crate has two entry points:
//!
//! * **Elements in memory**: a [`kernel::Kernel`], made of two [`kernel::Storage`]s and the rules of a cast, turns bytes
//!   into bytes and counts what was lost. See below, and `examples/convert_in_memory.rs`.
//! * **Files**: [`container::open`] reads the headers, [`plan::build`] decides what becomes of each tensor and refuses what
//!   cannot be, [`engine::run`] converts on all cores into an [`io::output::Output`], which takes its name when it is whole.
//!   Tensors are never held in memory. See `examples/convert_file.rs`.
//!
//! ```
//! use tcast::{dtype::Dtype, kernel::{Kernel, Storage}, operator::cast::Attributes};
//!
//! let (source, target) = (Storage::packed(Dtype::Float32), Storage::packed(Dtype::Float8E4M3FN));
//! let kernel = Kernel::cast(source, target, &Attributes::default().rules()).expect("both are numbers");
//! let (input, mut output) = ([1.5_f32.to_le_bytes(), 1000_f32.to_le_bytes()].concat(), [0; 2]);
//! let lost = kernel.run(&input, &mut output, 2).expect("float32 has no malformed bytes");
//! assert_eq!(output, [0x3c, 0x7e]); // 1000 became 448, the largest float8e4m3fn
//! assert_eq!(lost[tcast::kernel::Loss::Saturated], 1);
//! ```
//!
//! What is documented here is the crate's interface; modules and items that are hidden serve the program and its tests, and
//! may change at any time.
//!
//! A byte goes one way: file -> [`container`] -> [`plan`] -> [`engine`] ([`kernel`]) -> [`io::output`] -> report. A dtype
//! is a row of one table ([`dtype`]), a file format is one file in `src/container`, a subcommand one in `src/commands`.

#![warn(clippy::unwrap_used)]

pub mod container;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod io;
pub mod kernel;
pub mod operator;
pub mod plan;
pub mod progress;
pub mod select;

// For the program and the tests.
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod quant;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod scaled;

mod conversion;
mod read;
mod staging;
mod threads;
