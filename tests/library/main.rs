//! The crate, as programs that depend on it call it.

#[path = "../common/mod.rs"]
mod common;

mod convert;
mod examples;
mod slice;
mod tensors;
