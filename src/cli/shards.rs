//! The arguments about folders of shards, which `cast`, `dequantize` and `quantize` share.

use crate::job::Partition;
use clap::{Arg, Args};
use std::path::PathBuf;

/// Options for writing checkpoints. A command applies `of_finish` to all its arguments.
#[derive(Args, Debug)]
#[command(next_help_heading = "Folders of shards")]
pub struct ShardArgs {
    /// Write shards that each hold at most SIZE of tensors: 5GB, 500MB, 2GiB
    #[arg(long, value_name = "SIZE", hide_short_help = true)]
    pub max_shard_size: Option<Size>,

    /// Continue an interrupted run: finished shards are kept, if input and options are the same
    #[arg(long, conflicts_with = "force", hide_short_help = true)]
    pub resume: bool,

    /// Do the I-th of N parts; others may run at the same time, also on other machines
    #[arg(long, value_name = "I/N", conflicts_with = "force", hide_short_help = true)]
    pub part: Option<Partition>,

    /// Complete the folder that all parts were written into
    #[arg(long, value_name = "OUT", hide_short_help = true)]
    pub finish: Option<PathBuf>,
}

impl ShardArgs {
    /// Returns the maximum number of bytes of tensors in a shard.
    pub(crate) fn max_bytes(&self) -> Option<u64> {
        self.max_shard_size.map(|Size(bytes)| bytes)
    }
}

/// Makes an argument of a command conflict with `--finish`, unless it has an effect there too.
pub(super) fn of_finish(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "finish" | "json" | "no_sync" | "quiet" | "threads" => arg,
        _ => arg.conflicts_with("finish"),
    }
}

/// A number of bytes: `5GB`, `500MB`, `2GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u64); 9] = [
            ("KIB", 1 << 10),
            ("MIB", 1 << 20),
            ("GIB", 1 << 30),
            ("TIB", 1 << 40),
            ("KB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("TB", 1_000_000_000_000),
            ("B", 1),
        ];
        let upper = text.trim().to_ascii_uppercase();
        let found = UNITS.iter().find_map(|(unit, factor)| Some((upper.strip_suffix(unit)?, factor)));
        let size = found.and_then(|(number, factor)| number.trim_end().parse::<u64>().ok()?.checked_mul(*factor));
        match size {
            Some(0) | None if text.parse().is_ok_and(|number: u64| number > 0) => {
                Err(format!("'{text}' has no unit: {text}GB, {text}MB, or {text}B for bytes"))
            }
            Some(0) | None => Err("a size is a whole number with a unit: 5GB, 500MB, 2GiB".to_owned()),
            Some(size) => Ok(Self(size)),
        }
    }
}
