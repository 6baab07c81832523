//! The arguments about folders of shards, which `cast`, `dequantize` and `quantize` share.

use crate::plan::Partition;
use clap::{Arg, Args};
use std::path::PathBuf;

/// Options for writing checkpoints. A command applies `of_finish` to all its arguments.
#[derive(Args, Debug)]
#[command(next_help_heading = "Folders of shards")]
pub struct ShardArgs {
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

/// Makes an argument of a command conflict with `--finish`, unless it has an effect there too.
pub(super) fn of_finish(arg: Arg) -> Arg {
    match arg.get_id().as_str() {
        "finish" | "json" | "no_sync" | "quiet" | "threads" => arg,
        _ => arg.conflicts_with("finish"),
    }
}
