//! The operators' rules over types and attributes; no bytes.

pub mod cast;
