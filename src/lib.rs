//! tcast: tensor files from one number format to another, bit for bit as ONNX Cast defines it.
//!
//! Most people want the program of this name, which can do more than this crate shows: whole checkpoints, reports,
//! statistics, comparisons. The crate has two entry points:
//!
//! * **Elements in memory**: [`cast`] converts a slice of one element type to a slice of another and counts what was
//!   lost. Where types are known only when the program runs, a [`kernel::Kernel`], made of two [`kernel::Storage`]s and
//!   the rules of a cast, does the same from bytes to bytes. See below, and `examples/convert_in_memory.rs`.
//! * **Files**: [`convert`](convert()) converts a file in one call, on all cores. Its steps can be taken one by one:
//!   [`container::open`] reads the headers, [`plan::build`] decides what becomes of each tensor and refuses what cannot
//!   be, [`engine::run`] converts into an [`io::output::Output`], which takes its name when it is whole. Tensors are
//!   never held in memory. See `examples/convert_file.rs`.
//!
//! The feature `cli`, on by default, is the program. Libraries leave it out, and with it arguments, signals and the
//! terminal: `tcast = { version = "...", default-features = false }`.
//!
//! ```
//! use tcast::{dtype::Dtype, kernel::{Kernel, Storage}, operator::cast::CastAttributes};
//!
//! let (source, target) = (Storage::packed(Dtype::Float32), Storage::packed(Dtype::Float8E4M3FN));
//! let kernel = Kernel::cast(source, target, &CastAttributes::default().rules()).expect("both are numbers");
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
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unreachable_pub, unused_imports, reason = "the program uses more than the crate shows")
)]

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
pub mod slice;

// For the program and the tests.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod commands;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod quant;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod text;

mod conversion;
mod convert;
mod job;
mod read;
mod staging;
mod threads;

pub use convert::{Converted, Options, convert};
pub use job::Cancel;
pub use slice::cast;
