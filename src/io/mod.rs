//! Files: inputs mapped read-only, outputs that appear whole or not at all.

pub mod map;
pub mod output;
