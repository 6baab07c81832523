//! Files: inputs mapped read-only, outputs that appear whole or not at all, and a check that no file is both.

pub(crate) mod advice;
#[cfg(target_os = "linux")]
mod cache_state;
mod destination;
pub(crate) mod identity;
pub(crate) mod in_use;
pub(crate) mod listing;
pub mod map;
mod naming;
pub(crate) mod open;
pub mod output;
mod path;
pub mod sink;
pub(crate) mod temporaries;
