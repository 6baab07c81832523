//! Bytes to bytes: converts one tensor's elements from a source type to a target type, and counts losses.
//!
//! There are N decoders and N encoders, not N x N conversions. An element goes through one of three lanes:
//!
//! * **float32** to every float of 16 bits and fewer, E8M0 and bool; also to float32 and to integers of 32 bits
//!   and fewer where the source is exact in float32;
//! * **float64** to float32, float64 and all integers otherwise;
//! * **integer** from integers to integers, to bool, and from 64-bit integers to float64.
//!
//! Wider sources enter a float lane rounded to odd, so that only the encoder's rounding matters (see `lane.rs`). A
//! block of at most 4 KiB of the source is decoded into the lane and encoded out of it while it is in the first-level
//! cache. The code is written once; `isa.rs` compiles it for several instruction sets.
//!
//! `float.rs` describes a float of 16 bits or fewer and rounds float32 to it; `half.rs` lists the conversions of bfloat16
//! and float16. Quantized weights and blocks use both.
//!
//! Most blocks have no special values: no Inf, no NaN, nothing beyond the target's range. Each block is converted under
//! that assumption, in half the steps. The smallest and largest magnitude show afterwards whether the assumption held;
//! if not, the block is converted again by the complete rules. Tests compare both with the same reference
//! implementation, in blocks of either kind.
//!
//! Between bfloat16, float16 and floats of 8 bits and fewer, such blocks pass through lanes of 16 bits, with half as
//! many vectors (`shortcut.rs`). Blocks are prefetched, so that computing and reading overlap.
//!
//! `docs/experiments.md` lists the experiments and their speed.
//!
//! Text does not use the lanes: [`Printer`] widens a block and prints its numbers; [`Parser`] reads decimals and passes
//! them to the lanes as float64 rounded to odd, so that a number is rounded once there too.

#![allow(clippy::must_use_candidate, reason = "most functions are hidden from the documentation")]
#![allow(
    clippy::inline_always,
    clippy::needless_bitwise_bool,
    clippy::float_cmp,
    reason = "a loop vectorises when all of it is inlined and without branches; equality of floats is meant exactly"
)]

mod convert;
mod counts;
mod decimal;
mod decode;
mod encode;
mod float;
#[doc(hidden)] // for loops of quantized weights
pub mod half;
mod integer;
mod isa;
mod lane;
mod look_up;
mod narrow;
mod nearest;
mod pack;
mod parse;
mod print;
mod rules;
mod shortcut;
mod storage;
mod tally;
mod text;

pub use counts::{Condition, Counts, Loss};
pub use rules::{OutOfRange, RoundMode, Rules};
pub use storage::{Storage, SubByteLayout};
#[doc(hidden)] // for what converts files, and for tests
pub use {
    convert::{Kernel, Malformed},
    counts::{First, Firsts},
    float::Minifloat,
    isa::{Isa, Loop, hidden_one, prefetch, prefetch_behind, prefetch_line},
    lane::to_odd,
    look_up::{Derivation, EXPONENT, Table},
    parse::{NotANumber, Parser},
    print::{Printer, shortest},
    text::Texts,
};
