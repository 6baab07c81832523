//! The help as it is read: short enough, in groups, with examples that work.

use crate::common::{Bench, fixture};
use std::fs;

pub(crate) const SUBCOMMANDS: [&str; 7] = ["cast", "dequantize", "quantize", "bitcast", "promote", "inspect", "diff"];

/// The help of a command line, in a terminal of 80 columns.
fn help(line: &str) -> String {
    let output = Bench::new().command().env("COLUMNS", "80").args(line.split_whitespace()).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{line}");
    String::from_utf8(output.stdout).unwrap()
}

/// What `tcast` alone says.
fn overview() -> String {
    let outcome = Bench::new().run("");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    outcome.stderr
}

#[test]
fn the_program_alone_says_what_it_can_do() {
    let overview = overview();
    assert!(overview.lines().count() <= 12, "{overview}");
    assert!(overview.lines().all(|line| line.len() <= 80), "{overview}");
    for subcommand in SUBCOMMANDS {
        assert!(overview.contains(&format!("\n  tcast {subcommand} ")), "{subcommand}");
    }
}

#[test]
fn the_short_help_is_one_screen() {
    for (line, rows) in
        [("-h", 24), ("cast -h", 40), ("bitcast -h", 36), ("promote -h", 36), ("quantize -h", 33), ("inspect -h", 25)]
    {
        let help = help(line);
        assert!(help.lines().count() <= rows, "{line}: {}\n{help}", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{line}: {help}");
        // One line for each flag: an indented line is a flag, an argument, a subcommand or an example.
        let is_entry = |line: &str| line.len() - line.trim_start().len() <= 6 || line.contains("tcast ");
        assert!(help.lines().all(is_entry), "{line}: {help}");
    }
}

#[test]
fn the_short_help_of_quantize_has_the_flags_that_are_often_needed() {
    let help = help("quantize -h");
    for flag in [
        "--scheme",
        "--layout",
        "--compare",
        "--target-bits",
        "--group-size",
        "--recover",
        "--report",
        "-o, --output",
        "-f, --force",
        "--json",
    ] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(flag)), "{flag}: {help}");
    }
}

#[test]
fn the_long_help_fits_a_terminal_and_has_more() {
    for subcommand in SUBCOMMANDS {
        let [short, long] = ["-h", "--help"].map(|flag| help(&format!("{subcommand} {flag}")));
        assert!(long.lines().all(|line| line.chars().count() <= 80), "{long}");
        assert!(2 * long.len() > 3 * short.len() && long.contains("\nExamples:\n"), "{subcommand}");
    }
}

#[test]
fn flags_stand_under_their_headings() {
    let help = help("cast --help");
    let group = |heading: &str| {
        let (_, rest) = help.split_once(&format!("\n{heading}:\n")).unwrap_or_else(|| panic!("{heading}"));
        let entries = rest.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        let flags = entries.filter_map(|line| line.trim_start().split_once("--").filter(|(short, _)| short.len() <= 4));
        flags.map(|(_, flag)| flag.split([' ', '[']).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(group("Options"), ["to", "help", "color"]);
    let selection = [
        "all",
        "protect",
        "force-codes",
        "rule",
        "include",
        "exclude",
        "allow-unmatched",
        "rename",
        "root",
        "take-rank",
    ];
    assert_eq!(group("Which tensors"), selection);
    assert_eq!(group("Values"), ["saturate", "round-mode", "out-of-range", "opset", "fail-on", "no-saturate"]);
    assert_eq!(group("Accuracy and reports"), ["stats", "report", "hash"]);
    assert_eq!(group("Folders of shards"), ["max-shard-size", "resume", "part", "finish"]);
    let file = ["output", "force", "skip-existing", "dry-run", "json", "no-sync", "quiet", "threads", "from"];
    assert_eq!(group("Input and output"), file);
    for choice in ["- wrap: the low bits", "- nearest: the nearest", "- flushed: "] {
        assert!(help.contains(choice), "{choice}: {help}");
    }
}

#[test]
fn no_option_is_under_the_heading_of_others() {
    let headings = [
        ("bitcast", "Printing elements", &["hex", "bits", "tensor", "range"][..]),
        ("bitcast", "GGUF models", &["names", "config"]),
        ("quantize", "GGUF models", &["metadata-from", "architecture", "pre-tokenizer", "imatrix", "names", "config"]),
        ("dequantize", "GGUF models", &["names", "config"]),
        ("promote", "The common type", &["unsafe", "pytorch-scalar", "u64-target", "saturate"]),
        ("promote", "Which tensors", &["root", "tensor"]),
        (
            "quantize",
            "Which weights",
            &["rule", "include", "exclude", "allow-unmatched", "rename", "root", "take-rank"],
        ),
        (
            "dequantize",
            "Which weights",
            &["keep-activation-scales", "include", "exclude", "allow-unmatched", "rename", "root", "take-rank"],
        ),
    ];
    for (command, heading, expected) in headings {
        let help = help(&format!("{command} --help"));
        let (_, section) = help.split_once(&format!("\n{heading}:\n")).unwrap();
        // A section ends where a line is not indented.
        let section = section.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
        let flags =
            section.filter_map(|line| line.trim_start().strip_prefix("--").filter(|_| line.starts_with("      --")));
        let flags: Vec<&str> = flags.map(|flag| flag.split([' ', '[']).next().unwrap()).collect();
        assert_eq!(flags, expected, "{command}: {heading}");
    }
    let help = help("quantize --help");
    let options = help.split_once("\nOptions:\n").unwrap().1.split_once("\nWhich weights:\n").unwrap().0;
    assert!(options.contains("--activations") && options.contains("--input-global-scale"), "{options}");
}

#[test]
fn every_example_of_the_help_works() {
    let lines = SUBCOMMANDS.iter().flat_map(|subcommand| ["-h", "--help"].map(|flag| format!("{subcommand} {flag}")));
    let texts: String = lines.chain(["-h".to_owned(), "--help".to_owned()]).map(|line| help(&line)).collect();
    let texts = texts + &overview();
    // Other lines that begin with "tcast" are sentences.
    let heads = ["Example: tcast ", "  tcast ", "      tcast "];
    let example = |line: &'static str| heads.iter().find_map(|head| line.strip_prefix(head));
    let is_example = |line: &&str| !line.contains("[OPTIONS]") && !line.contains('<');
    let texts: &'static str = texts.leak();
    // In the overview, what a command does stands beside it.
    let examples = texts.lines().filter_map(example).map(|line| line.split("  ").next().unwrap());
    let mut examples: Vec<&str> = examples.filter(is_example).collect();
    examples.sort_unstable();
    examples.dedup();
    assert!(examples.len() >= 40, "{}: {examples:?}", examples.len());
    for example in examples {
        let bench = Bench::with("model.safetensors", "model.safetensors");
        for (name, source) in [("x", "weights_f32.npy"), ("codes", "untyped_e4m3fn.npy"), ("w", "bf16.npy")] {
            fs::copy(fixture(source), bench.path(&format!("{name}.npy"))).unwrap();
        }
        for copy in ["before.npy", "after.npy"] {
            fs::copy(fixture("weights_f32.npy"), bench.path(copy)).unwrap();
        }
        fs::copy(fixture("corpus/npz/deflated.npz"), bench.path("arrays.npz")).unwrap();
        fs::copy(fixture("onnx_models/basic_pitch_nmp.onnx"), bench.path("model.onnx")).unwrap();
        fs::copy(fixture("onnx_models/ort_nbits.onnx"), bench.path("quantized.onnx")).unwrap();
        for name in ["model.pt", "suspicious.pt"] {
            fs::copy(fixture("pytorch/state_dict.zip.pt"), bench.path(name)).unwrap();
        }
        bench.add_checkpoint("llama-tiny-bf16", "llama");
        bench.add_checkpoint("llama-fp8", "llama-fp8");
        bench.add_checkpoint("llama-fp8", "tiny-fp8");
        bench.add_checkpoint("../gguf/tiny-llama", "tiny-llama");
        bench.add_checkpoint("../lora/style", "style");
        fs::copy(fixture("gguf/tiny.gguf"), bench.path("tiny.gguf")).unwrap();
        if example.starts_with("quantize") {
            fs::remove_dir_all(bench.path("llama-fp8")).unwrap(); // which it writes
        }
        if example.starts_with("diff --report") {
            bench.run("cast model.safetensors --to f16 --hash --report r.json -q").expect(0, "", "");
        }
        if example.starts_with("cast --finish") {
            bench.run("cast llama --to f16 -o llama-f16 --part 1/1 -q").expect(0, "", "");
        }
        let words: Vec<String> = example.split_whitespace().map(|word| word.replace(['\'', '"'], "")).collect();
        let outcome = bench.run_args(&words.iter().map(String::as_str).collect::<Vec<_>>());
        // A quantized checkpoint differs from its source.
        let code = i32::from(example.starts_with("diff llama llama-fp8"));
        assert_eq!(outcome.code, Some(code), "{example}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("warning"), "{example}: {}", outcome.stderr);
    }
}

#[test]
fn a_typo_gets_what_was_meant() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let cases = [
        ("casts x.npy", "  tcast cast x.npy --to DTYPE\n"),
        ("inspct x.npy", "  tcast inspect x.npy\n"),
        ("convert x.npy", "  tcast cast x.npy --to DTYPE\n"),
        ("ls x.npy", "  tcast inspect x.npy\n"),
        ("cast x.npy --dtype f16", "  tcast cast x.npy --to f16\n"),
        ("--to f16 cast x.npy", "  tcast cast --to f16 x.npy\n"),
        ("cast x.npy --to f16 --outptu y.npy", "  tcast cast x.npy --to f16 --output y.npy\n"),
        ("cast x.npy --to f16 --saturat", "  tcast cast x.npy --to f16 --saturate\n"),
        ("cast x.npy --to i8 --out-of-range saturat", "  tcast cast x.npy --to i8 --out-of-range saturate\n"),
        ("cast x.npy --to flaot16", "similar: float16"),
        ("cast x.npy --to bfloat", "similar: bfloat16"),
    ];
    for (line, meant) in cases {
        bench.run(line).says(2, "", meant);
    }
    let outcome = bench.run("diff x.npy x.npy --tensor w");
    assert!(outcome.code == Some(2) && !outcome.stderr.contains("tip:"), "no flag is a value: {}", outcome.stderr);
    assert_eq!(bench.files(), ["x.npy"]);
}

#[test]
fn what_was_typed_is_shown_and_is_no_command_to_the_terminal() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let title = "\u{1b}]0;title\u{7}";
    for line in [
        format!("x{title}"),
        format!("inspect x.npy --y{title}"),
        format!("diff x.npy x.npy y{title}"),
        format!("diff x.npy x.npy y{title}.npy"),
        format!("cast x.npy --to f16{title}"),
        format!("cast x.npy --to f16 --round-mode {title}"),
        format!("cast x.npy --to f16 -j {title}"),
        format!("cast x.npy --to f16 --rule {title}"),
        format!("bitcast x.npy --hex --range {title}"),
        format!("diff x.npy x.npy --tolerance {title}"),
    ] {
        let mut command = bench.command();
        // Colors are kept, and so would be what else the terminal understands.
        let outcome = command.env("CLICOLOR_FORCE", "1").args(line.split_whitespace()).output().unwrap();
        let said = String::from_utf8(outcome.stderr).unwrap();
        assert_eq!(outcome.status.code(), Some(2), "{said}");
        assert!(said.contains(r"title\u{7}"), "{said:?}");
        assert!(!said.contains("\u{1b}]") && !said.contains('\u{7}'), "{said:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    for line in [&["--help"][..], &["cast", "-h"], &["--version"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Bench::new().command().args(line).stdout(full).output().unwrap();
        let message = "tcast: error: cannot write to standard output: no space left on device\n";
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(1), message));
    }
}
