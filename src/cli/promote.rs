//! The arguments of `tcast promote`.

use super::shared::{FileArgs, with_note};
use crate::container::known_formats;
use crate::options::PromoteOptions;
use clap::{Arg, Args};
use std::path::PathBuf;

/// The arguments of `tcast promote`.
#[derive(Args, Debug)]
#[command(
    mut_args(of_outputs),
    long_about = "Convert tensors to their common type, as OpenVINO's ConvertPromoteTypes-14 defines it.

Bool gives way to numbers and integers to floats; of two integers or two floats, the wider type wins. tcast refuses a type \
that could lose values or is wider than all inputs, and names the flags that allow it; with --unsafe, it converts and \
reports the losses. Only types and ranks decide, never values, and the order of the inputs does not matter.",
    override_usage = "tcast promote [OPTIONS] <INPUT>... -o <DIR>
       tcast promote [OPTIONS] <INPUT> --tensor <NAME>... -o <FILE>
       tcast promote [OPTIONS] <INPUT>... --dry-run",
    after_help = "Example: tcast promote x.npy w.npy -o common
--help has all flags and more examples.",
    after_long_help = "Examples:
  tcast promote x.npy w.npy -o common
      writes common/x.npy and common/w.npy
  tcast promote x.npy w.npy --dry-run
      prints the common type, and writes nothing
  tcast promote arrays.npz --tensor w --tensor zeros -n
      the common type of two tensors of a file; with -o FILE, the others are copied
  tcast promote x.npy codes.npy --from float8e4m3fn --unsafe -o common
      allows a type that could lose values
  tcast promote x.npy w.npy --dry-run --json
      shows which rule decided, and what each input could lose

Exit codes:
  0 done, 1 failed or refused, 2 wrong usage, 4 an output exists,
  130 interrupted."
)]
pub struct PromoteArgs {
    /// Inputs that get the common type.
    #[arg(required = true, value_name = "INPUT", help = format!("{} files", known_formats()),
          long_help = with_note(&format!("{} files", known_formats()), "Their tensors get one type. With --tensor also \
                                one folder of .safetensors shards."))]
    pub inputs: Vec<PathBuf>,

    /// Options of the operation.
    #[command(flatten)]
    pub options: PromoteOptions,

    /// Output options.
    #[command(flatten)]
    pub file: FileArgs,
}

/// Rewords an argument about files for a command that writes several.
fn of_outputs(arg: Arg) -> Arg {
    let output = "The folder to write to; with one input, the file";
    match arg.get_id().as_str() {
        "output" => arg
            .required_unless_present("dry_run")
            .help(output)
            .long_help(with_note(output, "The folder gets a file for each input, with its name.")),
        "force" => arg.help("Replace existing outputs"),
        "skip_existing" => arg.help("Keep outputs that exist, and exit with 0"),
        "dry_run" => arg.help("Print the common type, and write nothing"),
        "no_sync" => arg.help("Do not flush the outputs to the disk before they take their names"),
        "quiet" => arg.help("Print no progress or summary, only errors"),
        _ => arg,
    }
}
