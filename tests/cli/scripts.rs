//! What scripts rely on: exit codes, and what is accepted or refused before any work.

use crate::common::{Bench, npy_f32, safetensors};

const FLOATS: &str = r#"{"a.norm.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a.mlp.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;

fn with_floats() -> Bench {
    let bench = Bench::new();
    bench.write("m.safetensors", &safetensors(FLOATS, &[0; 8]));
    bench
}

#[test]
fn an_output_that_exists_has_an_exit_code_of_its_own() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.write("there.npy", b"something");
    for command in ["cast x.npy --to f16", "bitcast x.npy --to int32", "promote x.npy"] {
        bench.run(&format!("{command} -o there.npy")).says(4, "", "--force");
    }
    assert_eq!(bench.read("there.npy"), b"something");

    bench.add_checkpoint("llama-tiny-bf16", "llama");
    std::fs::create_dir(bench.path("out")).unwrap();
    bench.write("out/config.json", b"{}");
    bench.run("cast llama --to f16 -o out").says(4, "", "--force");
}

#[test]
fn an_output_that_exists_can_be_skipped() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    for command in ["cast x.npy --to f16 -o", "bitcast x.npy --to int32 -o", "promote x.npy -o"] {
        let line = format!("{command} y.npy --skip-existing");
        assert_eq!(bench.run(&line).code, Some(0));
        let written = bench.read("y.npy");
        bench.run(&line).says(0, "", "exists");
        bench.run(&format!("{line} -q")).expect(0, "", "");
        assert_eq!(bench.read("y.npy"), written);
        std::fs::remove_file(bench.path("y.npy")).unwrap();
    }
    assert_eq!(bench.run("cast x.npy --to f16 --skip-existing --force").code, Some(2));
}

#[test]
fn what_was_skipped_is_in_the_json() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.write("y.npy", b"something");
    let document = |line: &str| {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
        serde_json::from_str::<serde_json::Value>(&outcome.stdout).unwrap()
    };
    let report = document("cast x.npy --to f16 -o y.npy --skip-existing --json -q");
    let expected = serde_json::json!({
        "schema": 1, "tcast": env!("CARGO_PKG_VERSION"), "operator": "cast", "input": "x.npy", "output": "y.npy",
        "skipped": true,
    });
    assert_eq!(report, expected);
    let report = document("promote x.npy -o y.npy --skip-existing --json -q");
    assert_eq!((&report["skipped"], &report["outputs"]), (&serde_json::json!(["y.npy"]), &serde_json::json!([])));
}

#[test]
fn a_folder_that_exists_can_be_skipped_and_an_unfinished_one_cannot() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    let line = "cast llama --to f16 -o out --skip-existing -q";
    bench.run(line).expect(0, "", "");
    bench.run(line).expect(0, "", "");
    // A folder without shards is no output.
    std::fs::create_dir(bench.path("other")).unwrap();
    bench.write("other/readme", b"");
    bench.run("cast llama --to f16 -o other --skip-existing").says(4, "", "--force");
    assert_eq!(bench.run("cast llama --to f16 -o parts --part 1/2 -q").code, Some(0));
    let outcome = bench.run("cast llama --to f16 -o parts --skip-existing -q");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("unfinished"), "{}", outcome.stderr);
}

#[test]
fn a_pattern_that_matches_nothing_is_refused_with_near_names() {
    let bench = with_floats();
    for (flags, message) in
        [("--exclude norm", "--exclude"), ("--include *.nrom.*", "--include"), ("--rule *vision*=keep", "--rule")]
    {
        let line = format!("cast m.safetensors --to f16 {flags}");
        bench.run(&line).says(2, "", message);
    }
    let line = "m.safetensors --exclude norm";
    bench.run(&format!("inspect {line}")).says(2, "", "--exclude");
    bench.run(&format!("bitcast {line} --to int32")).says(2, "", "--exclude");
    let outcome = bench.run(&format!("diff m.safetensors {line}"));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""));
    assert_eq!(bench.files(), ["m.safetensors"]);
}

#[test]
fn a_pattern_that_matches_nothing_can_be_allowed() {
    let bench = with_floats();
    let outcome = bench.run("cast m.safetensors --to f16 --exclude *bias* --allow-unmatched");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    outcome.check_message("--exclude");
    bench.run("cast m.safetensors --to f16 --exclude *bias* --allow-unmatched -f -q").expect(0, "", "");
    for command in ["inspect m.safetensors", "diff m.safetensors m.safetensors"] {
        bench.run(&format!("{command} --exclude *bias* --allow-unmatched")).check_message("--exclude");
    }
}

#[test]
fn integers_stay_in_a_container_of_many_tensors_though_they_are_alone_in_it() {
    let bench = Bench::new();
    let header = r#"{"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}}"#;
    let data: Vec<u8> = [70_000_i64, 3].iter().flat_map(|id| id.to_le_bytes()).collect();
    bench.write("ids.safetensors", &safetensors(header, &data));
    let outcome = bench.run("cast ids.safetensors --to f16 -o out.safetensors");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""));
    let first = outcome.stderr.lines().next();
    assert_eq!(first, Some("cast no tensor, copied 1: 1 not floating (--all casts them)"));
    assert!(bench.read("out.safetensors").ends_with(&data));

    let outcome = bench.run("cast ids.safetensors --to f16 -o all.safetensors --all");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float16"));
    // A file of one tensor is that tensor.
    assert_eq!(bench.run("cast ids.safetensors --to int64 -o ids.npy -q").code, Some(0));
    let outcome = bench.run("cast ids.npy --to f16");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float16"));
}

#[test]
fn a_tensor_that_has_the_type_already_is_copied_and_said_to_be() {
    let bench = with_floats();
    let outcome = bench.run("cast m.safetensors --to f32 -o out.safetensors");
    assert_eq!(outcome.stderr.lines().next(), Some("cast no tensor, copied 2: 2 already float32"));
    assert!(bench.read("out.safetensors").ends_with(&[0; 8]));
    let outcome = bench.run("cast m.safetensors --to f32 -n --json -q");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["tensors"][0]["cast"], &report["tensors"][0]["kept"]), (&false.into(), &"already".into()));
    assert_eq!((&report["tensors_cast"], &report["tensors_copied"]), (&0.into(), &2.into()));

    // A cast of a float8 to itself follows the table of float8: Inf saturates.
    let header = r#"{"w":{"dtype":"F8_E5M2","shape":[1],"data_offsets":[0,1]}}"#;
    bench.write("w.safetensors", &safetensors(header, &[0x7c]));
    let outcome = bench.run("cast w.safetensors --to f8e5m2 -o same.safetensors");
    assert_eq!(outcome.stderr.lines().next(), Some("cast 1 tensor to float8e5m2"));
    assert!(bench.read("same.safetensors").ends_with(&[0x7b]));
}

#[test]
fn attributes_of_cast_that_do_not_apply_are_ignored_as_in_onnx() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, 300.0]));
    for (to, flags) in [("int8", "--saturate=false"), ("f16", "--no-saturate")] {
        bench.run(&format!("cast x.npy --to {to} -o plain.npy -q -f")).expect(0, "", "");
        bench.run(&format!("cast x.npy --to {to} {flags} -o flags.npy -q -f")).expect(0, "", "");
        assert_eq!(bench.read("plain.npy"), bench.read("flags.npy"), "{flags}");
    }
}

#[test]
fn a_flag_without_effect_is_refused() {
    let bench = with_floats();
    bench.write("x.npy", &npy_f32(&[1.0]));
    for (line, message) in [
        ("cast x.npy --to bool --out-of-range wrap", "--out-of-range"),
        ("cast x.npy --to f16 --stats -q", "--quiet"),
        ("promote x.npy -o out --saturate", "--saturate"),
    ] {
        bench.run(line).says(2, "", message);
    }
    for line in [
        "cast m.safetensors --rule *=f16 --protect",
        "cast m.safetensors --rule *=f16 --all",
        "cast x.npy --to f16 -n --hash --json",
        "promote x.npy -o out --u64-target float16",
    ] {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{line}");
    }
    assert_eq!(bench.files(), ["m.safetensors", "x.npy"]);
    // A rule's target counts as well.
    let line = "cast m.safetensors --to f16 --rule *norm*=int8 --rule *mlp*=e8m0 -o out.safetensors -q";
    bench.run(&format!("{line} --out-of-range saturate --round-mode down --saturate=false")).expect(0, "", "");
}

#[test]
fn a_dry_run_measures_what_it_is_asked_for_and_writes_no_output() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0, 1e9, 0.1]));
    bench.run("cast x.npy --to e4m3 --stats -n").check_message("saturated");
    let outcome = bench.run("cast x.npy --to e4m3 --report r.json -n -q");
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_slice(&bench.read("r.json")).unwrap();
    assert_eq!((&report["dry_run"], &report["counts"]["saturated"]), (&true.into(), &1.into()));
    assert!(report["tensors"][0]["figures"]["max_abs_error"].is_number());
    assert_eq!(bench.run("cast x.npy --to e4m3 --report r.html -n").code, Some(0));
    let outcome = bench.run("cast x.npy --to e4m3 --fail-on saturated -n");
    assert_eq!(outcome.code, Some(3));
    assert_eq!(bench.files(), ["r.html", "r.json", "x.npy"]);
    // The same figures as those of the run itself.
    let figures = |line: &str| {
        let report: serde_json::Value = serde_json::from_str(&bench.run(line).stdout).unwrap();
        (report["tensors"].clone(), report["counts"].clone())
    };
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    let line = "cast llama --to e4m3 --stats --json -q";
    assert_eq!(figures(&format!("{line} -n")), figures(line));
    assert_eq!(figures(&format!("{line} -o one.safetensors -n")), figures(&format!("{line} -o one.safetensors")));
}

#[test]
fn a_value_of_saturate_may_follow_a_blank_and_no_file_is_taken_for_one() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[500.0]));
    for (flags, byte) in [("--saturate false", 0x7f), ("--saturate 1", 0x7e), ("--saturate", 0x7e)] {
        bench.run(&format!("cast --to e4m3 {flags} x.npy -o y.npy -f -q")).expect(0, "", "");
        assert_eq!(bench.read("y.npy").last(), Some(&byte), "{flags}");
    }
    bench.write("false", &npy_f32(&[500.0]));
    bench.run("cast --to e4m3 -o y.npy -f -q --saturate -- false").expect(0, "", "");
    assert_eq!(bench.read("y.npy").last(), Some(&0x7e));
}

#[test]
fn colors_are_chosen_by_flag_and_environment() {
    let bench = Bench::new();
    let is_colored = |flag: &str, variable: Option<(&str, &str)>| {
        let mut command = bench.command();
        command.args(["inspect", "missing.npy"]).args(flag.split_whitespace());
        command.env_remove("CLICOLOR_FORCE").env_remove("CLICOLOR").env("TERM", "xterm").envs(variable);
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
        output.stderr.contains(&0x1b)
    };
    assert!(!is_colored("", None) && !is_colored("--color auto", None));
    assert!(is_colored("--color always", None) && is_colored("--color=always", Some(("NO_COLOR", "1"))));
    assert!(is_colored("", Some(("CLICOLOR_FORCE", "1"))));
    assert!(!is_colored("--color never", Some(("CLICOLOR_FORCE", "1"))));
    // Mistakes in the arguments too.
    let outcome = bench.run("cast --no-such-flag --color always");
    assert!(outcome.code == Some(2) && outcome.stderr.contains('\u{1b}'), "{outcome:?}");
    bench.run("inspect x.npy --color sometimes").says(2, "", "always");
}

#[test]
fn a_size_wants_a_unit_and_a_width_that_no_type_has_is_answered_with_the_next() {
    let bench = with_floats();
    bench.run("cast m.safetensors --to f16 --max-shard-size 5").says(2, "", "5GB");
    for (name, near) in [("fp9", "float8e4m3fn"), ("int24", "int16, int32"), ("uint3", "uint2, uint4")] {
        bench.run(&format!("cast m.safetensors --to {name}")).says(2, "", near);
    }
}

#[test]
fn integers_wrap_into_integers_whatever_out_of_range_says() {
    let bench = Bench::new();
    bench.write("x.npy", &crate::common::npy("'<i8'", "(1,)", &300_i64.to_le_bytes()));
    for policy in ["wrap", "saturate", "error"] {
        bench.run(&format!("cast x.npy --to int8 --out-of-range {policy} -o y.npy -f -q")).expect(0, "", "");
        assert_eq!(bench.read("y.npy").last(), Some(&44), "{policy}");
    }
}

#[test]
fn elements_are_chosen_by_coordinates_as_figures_show_them() {
    let bench = Bench::new();
    let data: Vec<u8> = (0..12_u8).collect();
    bench.write("x.npy", &crate::common::npy("'|u1'", "(3, 4)", &data));
    let printed = |range: &str| {
        let outcome = bench.run_args(&["bitcast", "x.npy", "--hex", "--range", range]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{range}");
        outcome.stdout
    };
    assert_eq!(printed("1,2"), "6  06\n");
    assert_eq!(printed("[1, 2]"), "6  06\n");
    assert_eq!(printed("6"), "6  06\n");
    assert_eq!(printed("1,2..2,0"), printed("6..8"));
    assert_eq!(printed("1,2..1,4"), printed("6..8"));
    assert_eq!(printed("..0,2"), printed("0..2"));
    assert_eq!(printed("2,2.."), printed("10..12"));
    for (range, code, message) in [
        ("1,4", 1, "--range"),
        ("0,1,2", 1, "--range"),
        ("2,0..1,0", 2, "--range ends before it starts"),
        ("9999..", 1, "--range"),
        ("12", 1, "--range"),
        ("10..13", 1, "--range"),
    ] {
        bench.run_args(&["bitcast", "x.npy", "--hex", "--range", range]).says(code, "", message);
    }
    assert_eq!(bench.run("bitcast x.npy --hex --range a..b").code, Some(2));
}

#[test]
fn without_a_terminal_progress_is_a_line_now_and_then() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&vec![1.0; 1 << 20]));
    bench.add_checkpoint("llama-tiny-bf16", "llama");
    for (line, what) in [("cast x.npy --to f16", "tcast: 100%, "), ("cast llama --to f16", "tcast: checkpoint: 100%, ")]
    {
        let run = |quiet: &[&str]| {
            let args = line.split_whitespace().chain(["-j", "1", "-f"]).chain(quiet.iter().copied());
            let output = bench.command().args(args).env("TCAST_PROGRESS_SECONDS", "0").output().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]));
            String::from_utf8(output.stderr).unwrap()
        };
        let said = run(&[]);
        assert!(said.lines().any(|line| line.starts_with(what) && line.ends_with(" s left")), "{said}");
        assert_eq!(run(&["-q"]), "");
        let outcome = bench.run(&format!("{line} -f"));
        assert!(outcome.code == Some(0) && !outcome.stderr.contains("s left"), "{outcome:?}");
    }
}
