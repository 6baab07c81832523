//! Words of other tools for subcommands, flags, schemes and layouts, and the words of tcast for them.

mod values;

pub(super) use values::{affine, blocks, ending, group_size, means_keep, values};

use super::unmatched::{glob_of_regex, listed};
use crate::text::as_glob;

/// The replacement for a flag that a subcommand lacks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ours {
    /// This flag, with the same value.
    Flag(&'static str),
    /// This flag, with this text before the value.
    Prefixed(&'static str, &'static str),
    /// These words, separated by spaces, without a value.
    Words(&'static str),
    /// This flag, with a pattern that matches the value anywhere in a name; once for each name of a list.
    Pattern(&'static str),
    /// `--rule` for this tensor, with the value as the scheme.
    Rule(&'static str),
    /// `--rule` with the pattern and the scheme of a value such as `NAME=SCHEME`.
    Rules,
    /// The same flag of this subcommand, in a dry run, if an input is a GGUF file.
    DryRun(&'static str),
    /// The same flag of this subcommand, or its replacement there.
    As(&'static str),
    /// This ending of the scheme.
    Ending(&'static str),
    /// The value alone, which is an input.
    Input,
    /// Nothing: tcast does so anyway.
    Nothing,
    /// Nothing, without the value: tcast determines it.
    NoValue,
    /// Nothing, without the value, if it is one of these: tcast does so anyway.
    Default(&'static str),
    /// This flag, with the same value, if that is an adapter. In place of a subcommand, `cast` with this flag for adapters:
    /// it merges them, or the shards of a folder.
    Adapter(&'static str),
    /// No replacement: this says why, and names flags of the subcommand.
    Advice(&'static str),
}

use Ours::{
    Adapter, Advice, As, Default, DryRun, Ending, Flag, Input, NoValue, Nothing, Pattern, Prefixed, Rule, Rules, Words,
};

/// Words of other tools, separated by spaces, and their replacement.
type Row = (&'static str, Ours);

/// Words of other tools for subcommands.
const SUBCOMMANDS: &[Row] = &[
    ("convert converter to export save save-as upcast downcast half retype", Words("cast")),
    ("split shard", Words("cast --max-shard-size 5GB")), // the size of transformers
    ("merge fuse join", Adapter("--lora")),
    ("extract", Advice("for some of the tensors: tcast cast INPUT --only 'NAME' -o OUT")),
    ("rename", Advice("for other names: tcast cast INPUT --rename 'OLD=NEW' -o OUT")),
    ("version", Words("--version")),
    (
        "completion completions man manpage",
        Advice("packages of tcast install completions and man pages; docs/install.md describes where to copy them"),
    ),
    (
        "quant quantise quantization quantizer quantized requantize requantise compress encode ptq awq gptq autogptq llama-quantize",
        Words("quantize"),
    ),
    ("dequant dequantise decompress decode unquantize unquantise", Words("dequantize")),
    ("view hex hexdump bits print reinterpret bit-cast", Words("bitcast")),
    ("info list ls show stats summary describe head keys dump gguf-dump meta metadata scan", Words("inspect")),
    ("compare cmp check verify equal", Words("diff")),
    ("unify common align", Words("promote")),
];

/// Flags of all subcommands that write files.
const WRITING: &[Row] = &[
    (
        "--out --outfile --out-file --output-file --output-path --output-name --output-dir --out-dir --outdir --dst --dest \
         --destination --save --save-path --save-dir --save-directory --save-to --export-path --export-dir --mlx-path \
         --dump-path --pytorch-dump-path --pytorch-dump-output --pytorch-dump-folder-path --quantized-model-dir \
         --quantized-model-path --target-dir --result --write-to",
        Flag("--output"),
    ),
    // Each of these words asks for it.
    ("--overwrite --overwrite-existing --clobber --overwrite-output --allow-overwrite", Flag("--force")),
    ("--no-clobber --no-overwrite --exist-ok --keep-existing", Flag("--skip-existing")),
    ("--dryrun --simulate --what-if --preview --plan", Flag("--dry-run")),
    ("--silent --no-progress --no-progress-bar", Flag("--quiet")),
    ("--verbose -v --progress --yes -y --assume-yes --no-confirm", Nothing),
    (
        "--low-memory --low-cpu-mem-usage --lazy --mmap --safe-serialization --use-safetensors --cpu --cuda --gpu --no-lazy \
         --trust-remote-code --use-temp-file",
        Nothing,
    ),
    ("--device --device-map --revision --token --model-type --task --tokenizer --cache-dir", NoValue),
    ("--in-place --inplace", Advice("tcast never writes over an input: name the output with -o")),
];

/// Flags of all subcommands.
const COMMON: &[Row] = &[
    ("--workers --num-workers --max-workers --jobs --num-threads --nproc --cores --cpus", Flag("--threads")),
    ("--input -i --in --infile --input-path --input-file --src --source --file", Input),
    (
        "--model -m --model-path --model-dir --model-id --model-name --model-name-or-path --model-name-or-dir --checkpoint --path \
         --hf-path --model-input --onnx-model --pretrained-model-dir --pretrained-model-name-or-path --checkpoint-path \
         --pytorch-model --tf-checkpoint --pyt-ckpt-path --ckpt --ckpt-path --weights --base-model",
        Input,
    ),
];

/// Flags of subcommands that convert folders of shards, and merge adapters.
const SHARDS: &[Row] = &[
    ("--shard-size --max-shard --split-size --split-max-size --max-size", Flag("--max-shard-size")),
    ("--continue --restart --resume-download", Flag("--resume")),
    ("--checksum --checksums --sha256", Flag("--hash")),
    ("--html --report-file --log-file", Flag("--report")),
    ("--adapter --adapter-path --lora-path --adapters", Flag("--lora")),
    ("--merge", Adapter("--lora")),
];

/// Flags of subcommands that select tensors.
const PATTERNS: &[Row] = &[
    (
        "--ignore --ignored-layers --ignore-layers --skip --skip-layers --skip-modules --exclude-layers --exclude-modules \
         --modules-to-not-convert --keep --keep-layers --without",
        Pattern("--exclude"),
    ),
    ("--filter --select --layers --modules --tensors --match --pattern --grep", Pattern("--include")),
];

const TO: &[Row] = &[
    (
        "--dtype --type -t -d --target --target-dtype --target-type --output-dtype --out-dtype --outtype --out-type \
         --torch-dtype --precision --as --convert-to",
        Flag("--to"),
    ),
    ("--to-safetensors", Words("--to safetensors")),
    ("--half --fp16 --float16 --f16", Words("--to float16")),
    ("--bf16 --bfloat16", Words("--to bfloat16")),
    ("--fp32 --float32 --f32 --float", Words("--to float32")),
];

const CAST: &[Row] = &[
    // Codes without scales are for a file of one array, which is no model.
    (
        "--scheme --quant --quantize --quantization --bits --wbits --w-bit --int8 --int4 --nvfp4 --mxfp4 --load-in-8bit \
         --load-in-4bit --group-size",
        As("quantize"),
    ),
    ("--format --scheme --quant --quantize --quantization --ftype", Flag("--to")),
    ("--double --fp64 --float64", Words("--to float64")),
    ("--fp8 --float8 --e4m3 --fp8-e4m3 --fp8-e4m3fn --float8-e4m3fn", Words("--to float8e4m3fn")),
    ("--e5m2 --fp8-e5m2 --float8-e5m2", Words("--to float8e5m2")),
    ("--int8", Words("--to int8")),
    ("--overflow", Flag("--out-of-range")),
    ("--tensor --name", Flag("--only")),
    ("--round --rounding-mode", Default("nearest even rne nearest-even half-even round-half-even")),
    ("--round --rounding-mode", Advice("--round-mode is for float8e8m0; other types round to nearest even")),
    ("--clip --clamp", Words("--out-of-range saturate")),
    ("--statistics --metrics --errors", Flag("--stats")),
    ("--layout --group-size", Advice("tcast quantize writes codes and scales; a cast of --to has no scales")),
];

const QUANTIZE: &[Row] = &[
    (
        "--to --dtype --type -t -s --quant --quantize --quantization --quant-type --qtype --qformat --quant-format --preset \
         --recipe --precision --weight-dtype --weight-type --ftype --method --outtype --mode --quantization-method --quant-mode \
         --output-type --q-mode --quantization-type --torch-dtype --target-dtype",
        Flag("--scheme"),
    ),
    ("--format", Flag("--scheme")),
    ("--format --backend --engine --export-format --quant-method --storage", Flag("--layout")),
    ("--fp8 --float8 --e4m3 --fp8-e4m3 --fp8-e4m3fn --float8-e4m3fn", Words("--scheme fp8")),
    ("--fp8-scaled --scaled-fp8 --scaled", Words("--scheme fp8 --layout comfyui")),
    // Of llama-quantize.
    ("--allow-requantize", Nothing),
    ("--tensor-type --custom-q", Rules),
    ("--output-tensor-type", Rule("output.weight")),
    ("--token-embedding-type", Rule("token_embd.weight")),
    ("--leave-output-tensor", Words("--rule output.weight=keep")),
    ("--importance-matrix --imat", Flag("--imatrix")),
    ("--pure", Advice("a scheme without _s, _m or _l at its end, such as q4_k, has one type for all weights")),
    ("--include-weights --exclude-weights", Advice("tcast uses the whole importance matrix of --imatrix")),
    ("--override-kv", Advice("tcast keeps the metadata of the input")),
    ("--int8 --load-in-8bit", Words("--scheme int8")),
    ("--int4 --load-in-4bit", Words("--scheme int4")),
    ("--nvfp4", Words("--scheme nvfp4")),
    ("--mxfp4", Words("--scheme mxfp4")),
    ("--groupsize --blocksize --block-size --q-group-size --q-groupsize --groups --group", Flag("--group-size")),
    ("--mse --optimize", Words("--search mse")),
    ("--all", Advice("--rule '*NAME*=SCHEME' quantizes weights that tcast copies by default")),
    ("--bits --wbits --w-bit --w-bits --num-bits --nbits --weight-bits", Flag("--scheme")),
    ("--q-bits", Prefixed("--scheme", "affine")), // of mlx_lm
    (
        "--calibration --dataset --calib-size --num-samples --nsamples --num-calibration-samples --calib-dataset --calib-data \
         --seqlen --max-seq-length --iters --batch-size --damp-percent --dampening-frac --act-order",
        NoValue,
    ),
    ("--sym --symmetric --no-asym --no-zero-point", Ending("sym")),
    ("--asym --asymmetric --no-sym --no-symmetric --zero-point", Ending("asym")),
    (
        "--sym --symmetric --no-asym --no-zero-point --asym --asymmetric --no-sym --no-symmetric --zero-point",
        Advice(
            "schemes with asym in their names have zero points, those of affine have offsets, and other schemes have neither",
        ),
    ),
    ("--per-channel --desc-act --avx2 --avx512 --avx512-vnni --arm64 --weight-only --static-groups", Nothing),
    (
        "--kv-cache-dtype --kv-cache-qformat --kv-cache-scheme --kv-cache-quant-algo",
        Advice("--scheme is about weights; an engine chooses the type of its KV cache"),
    ),
    ("--nodes-to-exclude --op-types-to-quantize", Advice("--exclude and --include choose weights by their names")),
];

const DEQUANTIZE: &[Row] = &[("--scheme --layout --method --quant-method --from-scheme", NoValue)];

const BITCAST: &[Row] = &[
    ("--slice --index --elements --rows --indices", Flag("--range")),
    ("--name --key", Flag("--tensor")),
    ("--binary --bin", Flag("--bits")),
    ("--hexdump -x", Flag("--hex")),
];

const PROMOTE: &[Row] = &[
    ("--to --dtype --type", Advice("tcast promote finds the type itself, and tcast cast converts to a type")),
    ("--name --key", Flag("--tensor")),
];

const INSPECT: &[Row] = &[
    ("--statistics --histogram --hist --summary", Flag("--stats")),
    ("--names", DryRun("dequantize")),
    ("--verbose -v -l --list --tensors --names --shapes --keys --metadata --header", Nothing),
    ("--name", Pattern("--include")),
    ("--silent", Flag("--quiet")),
];

const DIFF: &[Row] = &[
    ("--atol --abs --abs-tol --absolute-tolerance --tol --eps --epsilon --threshold", Flag("--tolerance")),
    ("--rel --rel-tol --relative-tolerance --reltol", Flag("--rtol")),
    ("--silent --brief -s", Flag("--quiet")),
    ("--verbose -v --stats --equal-nan --values", Nothing),
    ("--name", Pattern("--include")),
];

/// The rows for each subcommand.
const FLAGS: &[(&str, &[&[Row]])] = &[
    ("cast", &[TO, CAST, PATTERNS, SHARDS, WRITING, COMMON]),
    ("dequantize", &[TO, DEQUANTIZE, PATTERNS, SHARDS, WRITING, COMMON]),
    ("quantize", &[QUANTIZE, PATTERNS, SHARDS, WRITING, COMMON]),
    ("bitcast", &[TO, BITCAST, PATTERNS, WRITING, COMMON]),
    ("promote", &[PROMOTE, WRITING, COMMON]),
    ("inspect", &[PATTERNS, INSPECT, COMMON]),
    ("diff", &[DIFF, PATTERNS, COMMON]),
];

/// Returns the replacements of a subcommand for a flag, which is in lower case and has no `_`.
pub(super) fn flags(subcommand: &str, typed: &str) -> impl Iterator<Item = Ours> {
    rows(subcommand).filter(move |(words, _)| has_word(words, typed)).map(|(_, ours)| *ours)
}

fn rows(subcommand: &str) -> impl Iterator<Item = &'static Row> {
    let tables = FLAGS.iter().find(|(name, _)| *name == subcommand).map(|(_, tables)| tables.iter());
    tables.into_iter().flatten().flat_map(|table| table.iter())
}

fn has_word(words: &str, typed: &str) -> bool {
    words.split(' ').any(|word| word == typed)
}

/// Returns the replacement of tcast for a subcommand of other tools.
pub(super) fn subcommand(typed: &str) -> Option<Ours> {
    let typed = plain(typed);
    SUBCOMMANDS.iter().find(|(words, _)| has_word(words, &typed)).map(|(_, ours)| *ours)
}

/// Returns a pattern for each name of a list, which matches it anywhere in the name of a tensor. Patterns stay.
pub(super) fn patterns(names: &str) -> impl Iterator<Item = String> {
    let pattern = |name: &str| {
        let glob = glob_of_regex(name);
        let name = glob.as_deref().unwrap_or(name);
        if name.contains(['*', '{']) { name.to_owned() } else { format!("*{}*", as_glob(name)) }
    };
    listed(names).into_iter().map(pattern)
}

/// True if a value is one of the words.
pub(super) fn is_default(words: &str, value: &str) -> bool {
    has_word(words, &plain(value))
}

/// Converts a word to lower case with hyphens.
pub(super) fn plain(word: &str) -> String {
    word.to_lowercase().replace('_', "-")
}

/// Subcommand of other tools that another one of tcast replaces if a switch was typed.
#[derive(Debug)]
pub(super) struct Switch {
    /// The words for the subcommand.
    pub(super) subcommands: &'static str,
    /// Flags that show the tool.
    pub(super) marks: &'static str,
    /// Flags that ask for the other subcommand.
    pub(super) switches: &'static str,
    /// The flags among them that nothing replaces.
    pub(super) bare: &'static str,
    pub(super) subcommand: &'static str,
    /// Words to add if none of these flags was typed.
    pub(super) schemes: &'static [&'static str],
    pub(super) default: &'static [&'static str],
}

/// The switches of `mlx_lm.convert`, and of other converters.
pub(super) const SWITCHES: &[Switch] = &[
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use clap::Command;

    fn has(command: &Command, flag: &str) -> bool {
        let is_it = |arg: &clap::Arg| match flag.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => arg.get_short() == flag.chars().nth(1),
        };
        flag == "--help" || flag == "-h" || command.get_arguments().any(is_it)
    }

    #[test]
    fn every_flag_of_the_tables_exists_and_no_word_in_its_place_does() {
        let command = cli::command();
        for (name, _) in FLAGS {
            let subcommand = command.find_subcommand(name).expect("the tables name subcommands");
            for (words, ours) in rows(name) {
                let named: Vec<&str> = match ours {
                    Flag(flag) | Pattern(flag) | Prefixed(flag, _) | Adapter(flag) => vec![flag],
                    Words(words) => words.split(' ').filter(|word| word.starts_with('-')).collect(),
                    Advice(text) => {
                        // Words after the name of another subcommand are about that one.
                        let text = text.split("; tcast ").next().unwrap();
                        text.split([' ', ',']).filter(|word| word.starts_with('-')).collect()
                    }
                    DryRun(other) => {
                        let other = command.find_subcommand(other).expect("it is a subcommand");
                        assert!(words.split(' ').all(|word| has(other, word)) && has(other, "--dry-run"), "{words}");
                        Vec::new()
                    }
                    As(other) => {
                        let flags_of_other = |word: &str| flags(other, word).next().is_some();
                        let other = command.find_subcommand(other).expect("it is a subcommand");
                        assert!(words.split(' ').all(|word| has(other, word) || flags_of_other(word)), "{words}");
                        Vec::new()
                    }
                    Ending(_) => vec!["--scheme"],
                    Rule(_) | Rules => vec!["--rule"],
                    Input | Nothing | NoValue | Default(_) => Vec::new(),
                };
                assert!(named.iter().all(|flag| has(subcommand, flag)), "{name}: {words:?} -> {ours:?}");
                let stale = words.split(' ').find(|word| has(subcommand, word));
                assert_eq!(stale, None, "{name} has this flag itself");
                assert_eq!(plain(words), *words);
            }
        }
        for subcommand in command.get_subcommands() {
            assert!(FLAGS.iter().any(|(name, _)| *name == subcommand.get_name()), "{}", subcommand.get_name());
        }
        for (words, ours) in SUBCOMMANDS {
            if let Words(ours) = ours {
                let name = ours.split(' ').next().unwrap();
                assert!(command.find_subcommand(name).is_some() || name == "--version", "{ours}");
            }
            assert!(words.split(' ').all(|word| command.find_subcommand(word).is_none()), "{words}");
        }
    }

    #[test]
    fn lists_of_other_tools_become_one_pattern_for_each_name() {
        for (typed, wanted) in [
            ("lm_head", &["*lm_head*"][..]),
            ("['lm_head']", &["*lm_head*"]),
            (r#"["lm_head", "embed"]"#, &["*lm_head*", "*embed*"]),
            ("(lm_head,embed,)", &["*lm_head*", "*embed*"]),
            ("lm_head,*norm*", &["*lm_head*", "*norm*"]),
            ("layers[0]", &["*layers[[]0[]]*"]),
            ("{a,b}.weight", &["{a,b}.weight"]),
            ("re:.*(q|k),v", &["*{q,k},v*"]),
            ("[]", &[]),
        ] {
            assert_eq!(patterns(typed).collect::<Vec<_>>(), wanted, "{typed}");
        }
    }
}
