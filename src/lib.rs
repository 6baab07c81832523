//! tcast: tensor files from one number format to another, bit for bit as ONNX Cast defines it.
//!
//! A byte goes one way: file -> [`container`] -> [`plan`] -> [`engine`] ([`kernel`]) -> [`io::output`] ->
//! [`report`]. A dtype is a row of one table ([`dtype`]), a file format is one file in [`container`], a
//! subcommand is one file in [`commands`].
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

#![warn(clippy::unwrap_used)]

pub mod bits;
pub mod cli;
pub mod commands;
pub mod compare;
pub mod container;
pub mod conversion;
pub mod dtype;
pub mod engine;
pub mod error;
pub mod figures;
pub mod hash;
pub mod io;
pub mod kernel;
pub mod operator;
pub mod plan;
pub mod progress;
pub mod report;
pub mod scaled;
pub mod select;
pub mod staging;
pub mod stats;
pub mod threads;
