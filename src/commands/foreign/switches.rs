//! Subcommands of other tools that a flag turns into another one of tcast.

/// Subcommand of other tools that another one of tcast replaces if a switch was typed.
#[derive(Debug)]
pub(in crate::commands) struct Switch {
    /// The words for the subcommand.
    pub(in crate::commands) subcommands: &'static str,
    /// Flags that show the tool.
    pub(in crate::commands) marks: &'static str,
    /// Flags that ask for the other subcommand.
    pub(in crate::commands) switches: &'static str,
    /// The flags among them that nothing replaces.
    pub(in crate::commands) bare: &'static str,
    pub(in crate::commands) subcommand: &'static str,
    /// Words to add if none of these flags was typed.
    pub(in crate::commands) schemes: &'static [&'static str],
    pub(in crate::commands) default: &'static [&'static str],
}

/// The switches of `mlx_lm.convert`, and of other converters.
pub(in crate::commands) const SWITCHES: &[Switch] = &[
    // Of llama.cpp; without a file, it would name a GGUF file itself.
    Switch {
        subcommands: "convert_hf_to_gguf.py convert_hf_to_gguf convert-hf-to-gguf.py",
        marks: "--outfile",
        switches: "--outfile",
        bare: "",
        subcommand: "cast",
        schemes: &[],
        default: &[],
    },
    Switch {
        subcommands: "convert cast",
        marks: "--q-mode",
        switches: "--q-mode",
        bare: "-q --quantize",
        subcommand: "quantize",
        schemes: &["--layout"],
        default: &["--layout", "mlx"],
    },
    Switch {
        subcommands: "convert cast",
        marks: "--hf-path --mlx-path --q-bits --q-group-size --q-mode",
        switches: "-q --quantize --q-bits --q-group-size --q-mode",
        bare: "-q --quantize",
        subcommand: "quantize",
        schemes: &["--q-bits", "--q-mode", "--scheme"],
        default: &["--scheme", "affine4"],
    },
    Switch {
        subcommands: "convert cast",
        marks: "--hf-path --mlx-path",
        switches: "-d --dequantize",
        bare: "-d --dequantize",
        subcommand: "dequantize",
        schemes: &[],
        default: &[],
    },
];
