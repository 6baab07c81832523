//! What the program answers the scripts of `completions/`; `completions/run.py` presses Tab in the shells themselves.

use super::help::SUBCOMMANDS;
use crate::common::{Bench, Outcome, fixture, npy_f32, safetensors};
use std::fs;

/// The answer to a request, as the script of a shell makes it.
fn ask(bench: &Bench, shell: &str, words: &[&str]) -> Outcome {
    Outcome::of(&bench.command().env("TCAST_COMPLETE", shell).arg("--").args(words).output().unwrap())
}

/// The words that a command line, split at blanks, is completed to; the last word is that at the cursor.
#[track_caller]
fn completed(bench: &Bench, line: &str) -> Vec<String> {
    let outcome = ask(bench, "zsh", &line.split(' ').collect::<Vec<_>>());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{line}");
    outcome.stdout.lines().map(|line| line.split_once('\t').expect("a tab").0.to_owned()).collect()
}

#[test]
fn the_program_prints_the_script_of_each_shell() {
    let bench = Bench::new();
    let scripts = ["bash", "zsh", "fish", "elvish:elv", "powershell:ps1"];
    for (shell, extension) in scripts.map(|name| name.split_once(':').unwrap_or((name, name))) {
        let output = bench.command().env("TCAST_COMPLETE", shell).output().unwrap();
        let script = fixture(&format!("../completions/tcast.{extension}"));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), fs::read_to_string(script).unwrap());
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{shell}");
    }
    ask(&bench, "tcsh", &["tcast", ""]).says(2, "", "TCAST_COMPLETE");
}

#[test]
fn subcommands_and_flags_are_known() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    assert_eq!(completed(&bench, "tcast "), [&SUBCOMMANDS[..], &["help"]].concat());
    assert_eq!(completed(&bench, "tcast b"), ["bitcast"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --no"), ["--no-saturate", "--no-sync"]);
    // Rare flags are hidden from -h, and complete all the same.
    assert_eq!(completed(&bench, "tcast cast x.npy --max"), ["--max-shard-size"]);
    assert!(completed(&bench, "tcast inspect -").contains(&"--stats".to_owned()));
    assert_eq!(completed(&bench, "tcast quantize m --scheme nv"), ["nvfp4"]);
    assert_eq!(completed(&bench, "tcast quantize m --layout m"), ["modelopt", "matmulnbits", "mlx", "mxfp8"]);
    assert_eq!(completed(&bench, "tcast quantize m --rule a.*=int8"), ["a.*=int8", "a.*=int8a16", "a.*=int8-asym"]);
    // Flags are not in the way of files.
    assert_eq!(completed(&bench, "tcast inspect "), ["x.npy"]);
    let outcome = ask(&bench, "fish", &["tcast", "inspect", "--js"]);
    outcome.expect(0, "--json\tPrint JSON\n", "");
}

#[test]
fn dtypes_are_those_that_the_flag_takes() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    let all = completed(&bench, "tcast cast x.npy --to ");
    assert!(all.len() == 26 && all.contains(&"string".to_owned()) && !all.contains(&"complex64".to_owned()), "{all:?}");
    let same_bits = completed(&bench, "tcast bitcast x.npy --to ");
    assert!(same_bits.len() == 25 && same_bits.contains(&"complex64".to_owned()), "{same_bits:?}");
    let stored = completed(&bench, "tcast cast x.npy --from float8e");
    assert!(stored.contains(&"float8e3m4".to_owned()) && stored.len() == 8, "{stored:?}");
    assert!(!completed(&bench, "tcast promote x.npy --u64-target ").contains(&"float8e8m0".to_owned()));
    assert_eq!(completed(&bench, "tcast cast x.npy --to bf"), ["bfloat16"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --to bf1"), ["bf16"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --to F8_E4M3FNU"), ["F8_E4M3FNUZ"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --to=bfl"), ["--to=bfloat16"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --rule *norm*=bfl"), ["*norm*=bfloat16"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --rule *norm*=k"), ["*norm*=keep"]);
    ask(&bench, "fish", &["tcast", "cast", "x.npy", "--to", "hal"]).expect(0, "half\tfloat16\n", "");
}

#[test]
fn choices_are_known() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    assert_eq!(completed(&bench, "tcast cast x.npy --round-mode "), ["up", "down", "nearest"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --out-of-range s"), ["saturate"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --fail-on nan,w"), ["nan,wrapped"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --saturate=f"), ["--saturate=false"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --opset 2"), ["21", "23", "24", "25", "28"]);
    // The value of --saturate stands behind an =, so it is no word.
    assert!(!completed(&bench, "tcast cast --saturate ").contains(&"true".to_owned()));
}

#[test]
fn inputs_are_files_of_the_known_formats_and_folders() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    for name in ["x.txt", "x.json", "x.npz", "x.safetensors", "x.pb", "x.html"] {
        bench.write(name, b"");
    }
    fs::create_dir(bench.path("xs")).unwrap();
    bench.write("xs/y.npy", b"");
    let folder = format!("xs{}", std::path::MAIN_SEPARATOR);
    assert_eq!(completed(&bench, "tcast cast x"), ["x.npy", "x.npz", "x.pb", "x.safetensors", &folder]);
    assert_eq!(completed(&bench, "tcast diff x.npy xs/"), ["xs/y.npy"]);
    assert_eq!(completed(&bench, "tcast cast x.npy --report x."), ["x.html", "x.json"]);
    assert_eq!(completed(&bench, "tcast cast --finish x"), [folder]);
}

#[test]
fn tensors_are_those_of_the_files_on_the_line() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    assert_eq!(completed(&bench, "tcast bitcast m.safetensors --tensor model.").len(), 12);
    assert_eq!(completed(&bench, "tcast bitcast m.safetensors --bits --tensor model.no"), ["model.norm.weight"]);
    assert_eq!(completed(&bench, "tcast inspect m.safetensors --include model.no"), ["model.norm.weight"]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --rename model.no"), ["model.norm.weight="]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --drop model.no"), ["model.norm.weight"]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --set "), ["format=", "note="]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --unset n"), ["note"]);
    assert_eq!(
        completed(&bench, "tcast cast m.safetensors --add lla"),
        [format!("llama{}", std::path::MAIN_SEPARATOR)]
    );
    assert_eq!(completed(&bench, "tcast cast m.safetensors --add llama:model.no"), ["llama:model.norm.weight"]);
    assert_eq!(completed(&bench, "tcast cast llama --lora m.s"), ["m.safetensors"]);
    assert_eq!(completed(&bench, "tcast quantize llama --imatrix m.s"), ["m.safetensors"]);
    // Keys that a format owns cannot be set.
    fs::copy(fixture("onnx_models/basic_pitch_nmp.onnx"), bench.path("model.onnx")).unwrap();
    assert_eq!(completed(&bench, "tcast cast model.onnx --unset "), [""; 0]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --rule model.no"), ["model.norm.weight="]);
    assert_eq!(completed(&bench, "tcast bitcast llama --tensor model.").len(), 38);
    // Both have it, and it is offered once.
    assert_eq!(completed(&bench, "tcast diff llama m.safetensors --include model.no"), ["model.norm.weight"]);
}

#[test]
fn a_name_with_characters_of_patterns_becomes_a_pattern_for_it() {
    let bench = Bench::new();
    let header = r#"{"a[0]*":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0]));
    assert_eq!(completed(&bench, "tcast bitcast m.safetensors --tensor a"), ["a[0]*"]);
    assert_eq!(completed(&bench, "tcast inspect m.safetensors --include a"), ["a[[]0[]][*]"]);
    assert_eq!(completed(&bench, "tcast cast m.safetensors --rule a"), ["a[[]0[]][*]="]);
}

#[test]
fn what_cannot_be_read_gives_nothing() {
    let bench = Bench::new();
    fs::create_dir(bench.path("folder")).unwrap();
    bench.write("broken.safetensors", &[0xff; 100]);
    bench.write("broken.npy", b"\x93NUMPY\x01\x00\xff\xff");
    bench.write("empty.pb", b"");
    for input in ["broken.safetensors", "broken.npy", "empty.pb", "folder", "missing.npy", "--to"] {
        assert_eq!(completed(&bench, &format!("tcast bitcast {input} --tensor ")), [""; 0], "{input}");
    }
    // Names that no line of an answer can hold, or that a terminal would show as others.
    for name in [r"a\u001b[31m\nb", r"a\u202eb", r"a\u200bb"] {
        let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
        bench.write("hostile.safetensors", &safetensors(&header, &[0; 4]));
        for flag in ["--tensor ", "--include ", "--rule ", "--rename "] {
            assert_eq!(completed(&bench, &format!("tcast bitcast hostile.safetensors {flag}")), [""; 0], "{name}");
        }
    }
    bench.write("a\u{202e}b.npy", &npy_f32(&[1.0]));
    assert_eq!(completed(&bench, "tcast inspect a"), [""; 0]);
    assert_eq!(completed(&bench, "tcast"), [""; 0]);
    assert_eq!(completed(&bench, "tcast quux "), completed(&bench, "tcast "));
}

#[cfg(unix)]
#[test]
fn a_pipe_on_the_line_is_not_waited_for() {
    let bench = Bench::new();
    assert!(std::process::Command::new("mkfifo").arg(bench.path("pipe.npy")).status().unwrap().success());
    assert_eq!(completed(&bench, "tcast bitcast pipe.npy --tensor "), [""; 0]);
}

#[test]
fn bash_gets_what_it_puts_in_behind_its_last_break() {
    let bench = Bench::new();
    bench.write("my weights.npy", &npy_f32(&[1.0]));
    let asked = |line: &str| ask(&bench, "bash", &[line, " \t\n\"'><=;|&(:"]).stdout;
    assert_eq!(asked("tcast cast --to=bfl"), "bfloat16\t\n");
    assert_eq!(asked("tcast cast --rule '*a*'=bfl"), "bfloat16\t\n");
    assert_eq!(asked("tcast cast my"), "my\\ weights.npy\t\n");
    assert_eq!(asked("tcast cast 'my"), "my weights.npy\t\n");
    assert_eq!(asked("tcast bitcast my\\ weights.npy --tensor "), "my\\ weights\t\n");
}

#[test]
fn fish_leaves_quotes_to_the_program_and_powershell_marks_the_last_word() {
    let bench = Bench::new();
    bench.write("my weights.npy", &npy_f32(&[1.0]));
    ask(&bench, "fish", &["tcast", "cast", "'my w"]).expect(0, "my weights.npy\t\n", "");
    ask(&bench, "powershell", &["tcast", "cast", "=my"]).expect(0, "my weights.npy\t\n", "");
    ask(&bench, "powershell", &["tcast", "cast", "="]).expect(0, "my weights.npy\t\n", "");
}
