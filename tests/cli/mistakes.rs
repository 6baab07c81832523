//! Mistakes on the command line, and inputs that are not what they should be: each message says what was meant, and every
//! command in it works when it is pasted.
#![cfg(unix)]

use crate::common::pickle::{checkpoint, floats};
use crate::common::{Bench, fixture, npy, npy_f32, safetensors, shard};
use std::fs;

/// A folder with a file of each kind.
fn bench() -> Bench {
    let bench = Bench::with("model.safetensors", "model.safetensors");
    bench.write("x.npy", &npy_f32(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    bench.write("w.npy", &npy_f32(&[1.0, 2.0]));
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    bench.add_checkpoint("llama-fp8", "tiny-fp8");
    for (source, name) in [
        ("pytorch/state_dict.zip.pt", "net.pt"),
        ("gguf/tiny.gguf", "tiny.gguf"),
        ("onnx_models/basic_pitch_nmp.onnx", "net.onnx"),
    ] {
        fs::copy(fixture(source), bench.path(name)).unwrap();
    }
    bench
}

/// Checks that a line is refused with a message that has this word.
#[track_caller]
fn refused(bench: &Bench, line: &str, code: i32, word: &str) {
    bench.shell(&format!("tcast {line}")).says(code, "", word);
}

/// The lines of a message that follow the error.
#[track_caller]
fn told(bench: &Bench, line: &str, code: i32) -> Vec<String> {
    let outcome = bench.shell(&format!("tcast {line}"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{line}: {outcome:?}");
    assert!(outcome.stderr.starts_with("tcast: error: "), "{line}: {outcome:?}");
    outcome.stderr.lines().skip(1).map(|line| line.trim().to_owned()).collect()
}

/// Checks that each wrong line is answered with a command, and that the command works; the failure has all of which one is
/// not so.
#[track_caller]
fn meant(cases: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for (line, command) in cases {
        let bench = bench();
        let said = bench.shell(&format!("tcast {line}"));
        let is_told = said.stderr.starts_with("tcast: error: ")
            && said.stderr.lines().skip(1).any(|told| told.trim().trim_start_matches("or ") == *command);
        let pasted = bench.shell(command);
        if (said.code, &*said.stdout, is_told, pasted.code) != (Some(2), "", true, Some(0)) {
            wrong.push(format!("$ tcast {line}\n{}meant: {command}\n{}", said.stderr, pasted.stderr));
        }
    }
    assert!(wrong.is_empty(), "{} of {} lines:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn a_flag_of_another_tool_is_answered_with_the_command_that_was_meant() {
    meant(&[
        ("quantize llama --dtype fp8", "tcast quantize llama --scheme fp8"),
        ("quantize llama --to fp8", "tcast quantize llama --scheme fp8"),
        ("quantize llama --to=int4 --output_dir q", "tcast quantize llama --scheme=int4 --output q"),
        ("quantize llama --format fp8", "tcast quantize llama --scheme fp8"),
        ("quantize tiny-fp8 --format modelopt", "tcast quantize tiny-fp8 --layout modelopt"),
        ("quantize --model llama --qformat nvfp4", "tcast quantize llama --scheme nvfp4"),
        ("cast x.npy --dtype f16", "tcast cast x.npy --to f16"),
        ("cast x.npy --half", "tcast cast x.npy --to float16"),
        ("cast x.npy --fp8", "tcast cast x.npy --to float8e4m3fn"),
        ("cast x.npy --dtype fp8", "tcast cast x.npy --to float8e4m3fn"),
        ("cast x.npy --to f16 --verbose", "tcast cast x.npy --to f16"),
        ("cast x.npy --to f16 --num_workers=2", "tcast cast x.npy --to f16 --threads=2"),
        ("cast x.npy -to f16", "tcast cast x.npy --to f16"),
        ("cast x.npy \u{2013}to f16", "tcast cast x.npy --to f16"),
        ("cast x.npy --to f16 --outptu y.npy", "tcast cast x.npy --to f16 --output y.npy"),
        ("--to f16 cast x.npy", "tcast cast --to f16 x.npy"),
        ("convert x.npy --type bf16", "tcast cast x.npy --to bf16"),
        ("x.npy --to f16", "tcast cast x.npy --to f16"),
        ("llama --to f16", "tcast cast llama --to f16"),
        ("x.npy", "tcast inspect x.npy"),
        ("ls x.npy", "tcast inspect x.npy"),
        ("inspct 'x.npy'", "tcast inspect x.npy"),
        ("dequantize tiny-fp8 --dtype bf16", "tcast dequantize tiny-fp8 --to bf16"),
        ("dequantize tiny-fp8 --scheme fp8", "tcast dequantize tiny-fp8"),
        ("diff x.npy x.npy --atol 1e-3", "tcast diff x.npy x.npy --tolerance 1e-3"),
        ("diff x.npy x.npy --brief", "tcast diff x.npy x.npy --quiet"),
        ("bitcast x.npy --hex --slice 1..2", "tcast bitcast x.npy --hex --range 1..2"),
    ]);
}

#[test]
fn a_change_of_format_needs_no_type() {
    meant(&[
        ("cast x.npy y.safetensors", "tcast cast x.npy -o y.safetensors"),
        ("convert net.pt out.safetensors", "tcast cast net.pt -o out.safetensors"),
        ("convert net.pt --to-safetensors", "tcast cast net.pt -o net.safetensors"),
        ("cast llama merged.safetensors", "tcast cast llama -o merged.safetensors"),
        ("merge llama merged.safetensors", "tcast cast llama -o merged.safetensors"),
        ("cast x.npy --to y.npz", "tcast cast x.npy -o y.npz"),
        ("cast x.npy y.npy f16", "tcast cast x.npy -o y.npy --to f16"),
        ("cast llama out bf16", "tcast cast llama -o out --to bf16"),
    ]);
}

#[test]
fn a_misspelt_subcommand_is_the_nearest_one_with_all_that_was_typed() {
    meant(&[
        ("quantze llama --scheme fp8", "tcast quantize llama --scheme fp8"),
        ("quantise llama fp8", "tcast quantize llama --scheme fp8"),
        ("dequantise tiny-fp8 out", "tcast dequantize tiny-fp8 -o out"),
        ("dequantize tiny-fp8 --scheme bf16", "tcast dequantize tiny-fp8 --to bf16"),
        ("convert --hf-path llama --mlx-path m -q", "tcast quantize llama --output m --scheme affine4"),
        ("convert --hf-path llama --mlx-path m -q --q-bits 8", "tcast quantize llama --output m --scheme affine8"),
        ("convert --hf-path tiny-fp8 --mlx-path m -d", "tcast dequantize tiny-fp8 --output m"),
        ("convert --hf-path llama --mlx-path m --dtype float16", "tcast cast llama --output m --to float16"),
    ]);
}

#[test]
fn each_format_of_models_has_its_schemes() {
    meant(&[
        ("quantize tiny.gguf out.gguf q8_0", "tcast quantize tiny.gguf -o out.gguf --scheme q8_0"),
        ("quantize tiny.gguf out.gguf Q4_K_M 2", "tcast quantize tiny.gguf -o out.gguf --scheme q4_k_m --threads 2"),
        ("quantize tiny.gguf --type q8_0", "tcast quantize tiny.gguf --scheme q8_0"),
        ("quantize --allow-requantize tiny.gguf Q8_0", "tcast quantize tiny.gguf --scheme q8_0"),
        (
            "quantize --tensor-type attn_v=q8_0 tiny.gguf q4_0",
            "tcast quantize --rule '*attn_v*=q8_0' tiny.gguf --scheme q4_0",
        ),
        (
            "quantize --output-tensor-type q8_0 tiny.gguf q4_0",
            "tcast quantize --rule output.weight=q8_0 tiny.gguf --scheme q4_0",
        ),
        (
            "quantize --leave-output-tensor tiny.gguf q4_0",
            "tcast quantize --rule output.weight=keep tiny.gguf --scheme q4_0",
        ),
        ("quantize net.pt --type fp8", "tcast quantize net.pt --scheme fp8"),
        ("quantize net.onnx", "tcast quantize net.onnx --scheme int8"),
        ("quantize net.onnx --weight_type QInt8", "tcast quantize net.onnx --scheme int8"),
    ]);
    let bench = bench();
    let schemes = told(&bench, "quantize net.onnx", 2).concat();
    assert!(schemes.contains("the schemes are fp8, int8, int4, int4-asym, int2, int2-asym, int8-asym;"), "{schemes}");
    let schemes = told(&bench, "quantize tiny.gguf", 2).concat();
    assert!(schemes.contains("q4_k_m") && !schemes.contains("affine4"), "{schemes}");
    // No scheme of ONNX models.
    let told = told(&bench, "quantize net.onnx --type nvfp4", 2).concat();
    assert!(!told.contains("tcast quantize net.onnx"), "{told}");
}

#[test]
fn a_rule_that_does_not_fit_is_answered_once_for_all_weights() {
    let bench = bench();
    let line = "quantize llama --scheme int4 --rule '*=int4'";
    refused(&bench, line, 1, "--group-size");
    bench.shell(&format!("tcast {line} -q --group-size 32")).expect(0, "", "");
}

#[test]
fn a_word_that_the_shell_did_not_expand_or_that_looks_like_a_flag_is_a_file() {
    let bench = bench();
    fs::copy(bench.path("x.npy"), bench.path("-x.npy")).unwrap();
    for name in ["a 1.npy", "a 2.npy"] {
        fs::copy(bench.path("x.npy"), bench.path(name)).unwrap();
    }
    refused(&bench, "cast 'a ?.npy' --to f16", 1, r"a\ ?.npy");
    bench.shell(r"tcast cast a\ ?.npy --to f16 -q").expect(0, "", "");
    refused(&bench, "cast -x.npy --to f16", 2, "./-x.npy");
    bench.shell("tcast cast ./-x.npy --to f16 -q").expect(0, "", "");
    meant(&[
        (
            "cast model.safetensors --to bf16 --exclude '*norm*' '*mlp*'",
            "tcast cast model.safetensors --to bf16 --exclude '*norm*' --exclude '*mlp*'",
        ),
        (
            "quantize llama --scheme fp8 --exclude '*q_proj*' '*[kv]_proj*'",
            "tcast quantize llama --scheme fp8 --exclude '*q_proj*' --exclude '*[kv]_proj*'",
        ),
    ]);
}

#[test]
fn shards_of_one_folder_are_converted_as_the_folder() {
    let bench = bench();
    refused(&bench, "cast llama/*.safetensors --to f16", 1, "'llama'");
    refused(&bench, "cast llama/*.safetensors --to f16 -o o.safetensors", 2, "'o.safetensors/'");
    bench.shell("tcast cast 'llama' --to f16 -o o.safetensors -q").expect(0, "", "");
}

#[test]
fn several_outputs_that_exist_are_kept_with_one_flag() {
    let bench = bench();
    bench.run("cast x.npy w.npy --to f16 -o out -q").expect(0, "", "");
    let line = "cast x.npy w.npy --to f16 -o out";
    refused(&bench, line, 4, "--skip-existing");
    bench.shell(&format!("tcast {line} --skip-existing -q")).expect(0, "", "");
}

#[test]
fn an_option_without_an_effect_is_refused_as_cast_refuses_it() {
    let bench = bench();
    for (line, flag) in [
        ("cast x.npy --to f16 --round-mode down", "--round-mode"),
        ("cast llama --to f16 --names huggingface", "--names"),
        ("quantize llama --scheme fp8 --names huggingface", "--names"),
        ("quantize llama --scheme fp8 --rule '*mlp*=int8' --exclude '*mlp*'", "--rule"),
        ("quantize net.onnx --scheme int8 --rule '*738=fp8' --exclude '*738'", "--rule"),
    ] {
        refused(&bench, line, 2, flag);
    }
    let line = "quantize x.npy --scheme fp8 --rule x=fp8";
    bench.run(line).says(1, "", "fp8");
    bench.write("m.npy", &npy("'<f4'", "(2, 2)", &[0; 16]));
    bench.run("quantize m.npy --scheme fp8 --rule m=fp8").says(1, "", "fp8");
}

#[test]
fn no_typing_error_leads_to_a_flag_that_destroys() {
    let bench = bench();
    for (line, flag) in
        [("cast x.npy --to f16 --froce", "'--force'?"), ("cast x.npy --to f16 --force-code", "'--force-codes'?")]
    {
        refused(&bench, line, 2, flag);
    }
    let force = |line: &str| told(&bench, line, 2).iter().any(|line| line.contains("--force"));
    assert!(!force("quantize llama --ignore x --scheme fp8"));
    // A flag that asks to replace files leads to it.
    meant(&[("cast x.npy --to f16 --overwrite", "tcast cast x.npy --to f16 --force")]);
    refused(&bench, "cast x.npy --to f16 --in-place", 2, "output");
    let excluded = "tcast quantize llama --exclude '*self_attn*' --scheme fp8";
    meant(&[
        ("quantize llama --ignore self_attn --scheme fp8", excluded),
        ("quantize llama --ignore=*self_attn* --scheme fp8", excluded),
    ]);
}

#[test]
fn a_type_that_is_a_scheme_is_answered_with_both_commands() {
    let bench = bench();
    refused(&bench, "cast model.safetensors --to fp8", 2, "tcast quantize model.safetensors --scheme fp8");
    for command in ["tcast cast llama --to float8e4m3fn", "tcast quantize llama --scheme fp8"] {
        bench.shell(&format!("{command} -q")).expect(0, "", "");
    }
    // An array is no model.
    refused(&bench, "cast x.npy --to fp8", 2, "float8e4m3fn");
    for (scheme, name) in [("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("W4A16", "int4"), ("fp8-dynamic", "fp8")] {
        meant(&[(
            &format!("cast llama --to {scheme} -o out"),
            &format!("tcast quantize llama --scheme {name} -o out"),
        )]);
    }
}

#[test]
fn a_cast_that_leaves_mostly_zeros_names_the_command_that_writes_scales() {
    for (to, scheme) in [("int8", "int8"), ("int4", "int4"), ("fp4", "nvfp4"), ("int32", "int8")] {
        let bench = bench();
        let command = format!("tcast quantize 'llama' --scheme {scheme}");
        bench.run(&format!("cast llama --to {to} -o out")).says(0, "", &command);
        bench.shell(&format!("{command} -q")).expect(0, "", "");
    }
    let bench = bench();
    bench.run("cast llama model.safetensors --to int4 -o out").says(0, "", "int4");
    // Whole numbers that int32 holds are no loss.
    bench.write("i.safetensors", &shard(&[("w", 3.0, 20)]));
    let outcome = bench.run("cast i.safetensors --to int32 -o o.safetensors");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("note"), "{outcome:?}");
}

#[test]
fn a_type_a_scheme_or_an_output_without_its_flag_gets_the_flag() {
    meant(&[
        ("cast model.safetensors bf16", "tcast cast model.safetensors --to bf16"),
        ("cast x.npy f16 -o y.npy", "tcast cast x.npy --to f16 -o y.npy"),
        ("quantize llama fp8", "tcast quantize llama --scheme fp8"),
        ("quantize llama out --scheme fp8", "tcast quantize llama -o out --scheme fp8"),
        ("dequantize tiny-fp8 'o ut'", "tcast dequantize tiny-fp8 -o 'o ut'"),
        ("promote x.npy w.npy out", "tcast promote x.npy w.npy -o out"),
        ("quantize llama", "tcast quantize llama --scheme fp8"),
        ("cast x.npy to f16", "tcast cast x.npy --to f16"),
        ("cast x.npy --to npz", "tcast cast x.npy -o x.npz"),
        ("cast llama --to f16 --max-shard-size 5G", "tcast cast llama --to f16 --max-shard-size 5GB"),
        ("promote x.npy w.npy", "tcast promote x.npy w.npy -o common"),
        ("bitcast x.npy", "tcast bitcast x.npy --bits"),
        ("tcast cast x.npy --to f16", "tcast cast x.npy --to f16"),
    ]);
    let bench = bench();
    refused(&bench, "quantize llama", 2, "nvfp4");
    refused(&bench, "quantize tiny-fp8", 2, "--layout LAYOUT");
    refused(&bench, "quantize llama tiny-fp8 --scheme fp8", 2, "-o");
    refused(&bench, "dequantize tiny-fp8 --to int128", 2, "tcast cast");
    // Any type could round.
    refused(&bench, "cast x.npy", 2, "tcast cast x.npy --to DTYPE");
    refused(&bench, "cast x.npy y.npy", 2, "tcast cast x.npy -o y.npy --to DTYPE");
    refused(&bench, "cast x.npy --to y.npy", 2, "tcast cast x.npy -o y.npy --to DTYPE");
    refused(&bench, "cast llama llama-f16 --to f16", 1, "-o 'llama-f16'");
    bench.shell("tcast cast llama --to f16 -q -o 'llama-f16'").expect(0, "", "");
}

#[test]
fn values_by_the_names_of_other_tools_are_answered_with_ours() {
    meant(&[
        ("quantize llama --scheme FP8-dynamic", "tcast quantize llama --scheme fp8"),
        ("quantize llama --scheme awq", "tcast quantize llama --scheme int4-asym"),
        ("quantize llama --scheme fp8 --layout vllm", "tcast quantize llama --scheme fp8"),
        ("quantize llama --scheme fp8 --layout=sglang", "tcast quantize llama --scheme fp8"),
        ("quantize llama --scheme fp8-block --layout hf", "tcast quantize llama --scheme fp8-block"),
        (
            "quantize llama --scheme nvfp4 --layout TensorRT-LLM",
            "tcast quantize llama --scheme nvfp4 --layout modelopt",
        ),
        ("quantize tiny-fp8 --layout vllm", "tcast quantize tiny-fp8 --layout compressed-tensors"),
        ("cast x.npy --to flaot16", "tcast cast x.npy --to float16"),
        ("cast x.npy --to int8 --out-of-range clip", "tcast cast x.npy --to int8 --out-of-range saturate"),
        ("cast x.npy --to f16 -j many", "tcast cast x.npy --to f16"),
        ("cast x.npy --to f16 --threads=0", "tcast cast x.npy --to f16"),
        ("bitcast x.npy --hex --range 0:5", "tcast bitcast x.npy --hex --range 0..5"),
    ]);
    let bench = bench();
    // No layout is like this one.
    let all = told(&bench, "quantize llama --scheme fp8 --layout exl2", 2).concat();
    assert!(all.contains("[possible values: compressed-tensors,") && !all.contains("tip"), "{all}");
    // A layout that cannot store the scheme is not proposed.
    let all = told(&bench, "quantize llama --scheme int4 --layout tensorrt", 2).concat();
    assert!(!all.contains("tcast quantize"), "{all}");
}

#[test]
fn a_proposed_output_is_free_and_on_this_machine() {
    let bench = bench();
    bench.run("cast model.safetensors --to f16 -o llama").says(1, "", "model.2.safetensors");
    bench.shell("tcast cast model.safetensors --to f16 -q -o 'model.2.safetensors'").expect(0, "", "");
    for (output, elsewhere) in [("s3://b/y.npy", "y.npy"), ("https://h/z.npy", "z.npy")] {
        bench.run(&format!("cast x.npy --to f16 -o {output}")).says(1, "", elsewhere);
        bench.shell(&format!("tcast cast x.npy --to f16 -q -o '{elsewhere}'")).expect(0, "", "");
    }
    let home = bench.path("home");
    fs::create_dir(&home).unwrap();
    let mut command = bench.command();
    let output = command.env("HOME", &home).args(["cast", "x.npy", "--to", "f16", "-o", "~/y.npy"]).output().unwrap();
    let remedy = format!("\n  name an output elsewhere: -o '{}'\n", home.join("y.npy").display());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && stderr.ends_with(&remedy) && !stderr.contains("mkdir"), "{stderr}");
    bench.run("cast x.npy --to f16 -o w.npy/y.npy").says(1, "", "directory");
    assert!(!bench.path("~").exists());
}

#[test]
fn a_file_of_another_format_is_renamed_only_to_what_it_is() {
    let bench = bench();
    bench.write("pt.safetensors", &checkpoint(&floats("0", &[1]), &[("0", &[0; 4])]));
    bench.run("inspect pt.safetensors").says(1, "", "pt.safetensors");
    fs::copy(bench.path("x.npy"), bench.path("y.safetensors")).unwrap();
    let remedy = told(&bench, "inspect y.safetensors", 1);
    assert_eq!(remedy, ["mv -n 'y.safetensors' 'y.npy'"]);
    // The name is taken.
    fs::copy(bench.path("x.npy"), bench.path("x.safetensors")).unwrap();
    refused(&bench, "inspect x.safetensors", 1, ".npy");
    bench.shell(&remedy[0]).expect(0, "", "");
    assert_eq!(bench.shell("tcast inspect y.npy").code, Some(0));
    // JSON beside shards describes them.
    refused(&bench, "inspect llama/config.json", 1, "llama");
}

#[test]
fn a_missing_input_is_answered_with_what_exists() {
    let bench = bench();
    bench.write("gg.safetensors", &safetensors("{}", b""));
    for (line, word) in [
        ("inspect ./llma", "'./llama'"),
        ("inspect llma/model.safetensors.index.json", "'llama/model.safetensors.index.json'"),
        ("cast model.safetensor --to f16", "'model.safetensors'"),
        ("cast model --to f16", "'model.safetensors'"),
        ("cast w.npz --to f16", "'w.npy'"),
        ("inspect org/Name-3.2-1B", "hf download 'org/Name-3.2-1B'"),
        ("inspect hf://org/name", "hf download 'org/name'"),
    ] {
        refused(&bench, line, 1, word);
    }
    assert_eq!(told(&bench, "inspect other.safetensor", 1), [""; 0]);
    let address = "https://example.org/x.npy";
    bench.run(&format!("inspect {address}")).says(1, "", "curl");
}

#[test]
fn a_folder_without_shards_says_what_is_in_it() {
    let bench = bench();
    for folder in ["bins", "ggufs", "onnxs", "npys", "empty", "models--org--x/snapshots/abc", "models--org--x/refs"] {
        fs::create_dir_all(bench.path(folder)).unwrap();
    }
    bench.write("bins/config.json", b"{}");
    bench.write("bins/training_args.bin", b"\x80\x02}q\x00.");
    bench.write("ggufs/m.gguf", b"GGUF\x03\0\0\0");
    fs::copy(fixture("onnx_models/basic_pitch_nmp.onnx"), bench.path("onnxs/model.onnx")).unwrap();
    for name in ["x.npy", "w.npy"] {
        fs::copy(bench.path(name), bench.path(&format!("npys/{name}"))).unwrap();
    }
    fs::copy(bench.path("model.safetensors"), bench.path("models--org--x/snapshots/abc/model.safetensors")).unwrap();
    for (folder, word) in [
        ("bins", "training_args.bin"),
        ("ggufs", "m.gguf"),
        ("onnxs", "'onnxs/model.onnx'"),
        ("npys", "'npys/w.npy' 'npys/x.npy'"),
        ("empty", ".npy"),
        ("models--org--x", "snapshots/abc"),
    ] {
        bench.run(&format!("inspect {folder}")).says(1, "", word);
    }
    bench.shell("tcast cast 'npys/w.npy' 'npys/x.npy' --to f16 -q").expect(0, "", "");
    assert_eq!(bench.shell("tcast inspect 'models--org--x/snapshots/abc'").code, Some(0));
}

#[test]
fn a_regular_expression_is_answered_with_the_pattern_that_matches() {
    let bench = bench();
    for (pattern, glob, count) in [
        ("^model.*", "model*", 12),
        (".*norm.*", "*norm*", 2),
        ("re:.*norm.*", "*norm*", 2),
        (r"model\.norm\.weight$", "*model.norm.weight", 1),
        ("(norm|embed)", "*{norm,embed}*", 3),
    ] {
        let line = format!("cast model.safetensors --to f16 -o o.safetensors --exclude '{pattern}'");
        refused(&bench, &line, 2, &format!("--exclude '{glob}' matches {count}"));
        let outcome =
            bench.shell(&format!("tcast cast model.safetensors --to f16 -n --exclude '{glob}' -o o.safetensors"));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}

#[test]
fn a_value_that_could_mean_a_scheme_is_never_a_cast_to_its_codes() {
    meant(&[
        ("cast llama --to int8_scaled", "tcast quantize llama --scheme int8"),
        ("cast llama --to int4_asym_g32", "tcast quantize llama --scheme int4-asym --group-size 32"),
        ("cast llama --int8", "tcast quantize llama --scheme int8"),
        ("cast llama --quantize fp8", "tcast quantize llama --scheme fp8"),
        ("quantize llama --bits 4 --sym False", "tcast quantize llama --scheme int4-asym"),
        ("quantize llama --scheme int4-asym --sym", "tcast quantize llama --scheme int4"),
        ("quantize llama --scheme fp16", "tcast cast llama --to float16"),
        ("quantize tiny.gguf out.gguf 15", "tcast quantize tiny.gguf -o out.gguf --scheme q4_k_m"),
        ("quantize tiny.gguf out.gguf 2", "tcast quantize tiny.gguf -o out.gguf --scheme q4_0"),
        ("dequantize tiny.gguf --to q8_0", "tcast quantize tiny.gguf --scheme q8_0"),
        (
            "convert --hf-path llama --mlx-path m -q --q-mode mxfp4",
            "tcast quantize llama --output m --scheme mxfp4 --layout mlx",
        ),
        ("cast x.npy --to f16,bf16", "tcast cast x.npy --to bf16"),
    ]);
}

#[test]
fn where_no_command_is_meant_the_message_says_what_to_decide() {
    let bench = bench();
    fs::create_dir(bench.path("docs")).unwrap();
    for (line, code, word) in [
        ("cast llama --to mxfp6-asym", 2, "mxfp6 ("),
        ("cast x.npy --to f16,bf16 -o y.npy", 2, "command"),
        ("cast net.onnx --opset 13", 2, "--to DTYPE"),
        ("quantize llama --scheme fp8 --activations", 2, "--activations"),
        ("quantize llama --scheme fp8 --asym", 2, "affine"),
        ("cast tiny.gguf -o t.safetensors", 1, "tcast dequantize 'tiny.gguf' --to float32 -o 't.safetensors'"),
        ("inspect https://huggingface.co/gpt2", 1, "hf download 'gpt2'"),
        ("cast docs out", 1, ".npy"),
    ] {
        refused(&bench, line, code, word);
    }
}
