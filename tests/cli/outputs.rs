//! Where outputs go: no input is written over, no output twice, and standard output is a stream.
#![cfg(unix)]

use crate::common::{Bench, npy_f32, shard, tree};
use clap::Parser;
use std::fs;
use std::os::unix::fs::symlink;

/// A bench with two files of numbers.
fn two_files() -> Bench {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0, 2.0]));
    bench.write("b.npy", &npy_f32(&[3.0]));
    bench
}

#[test]
fn standard_input_is_not_read() {
    let bench = Bench::new();
    bench.run("cast - --to f16 -o y.npy").says(1, "", "directory");
    bench.run("inspect -").says(1, "", "directory");
}

#[test]
fn an_output_that_is_a_side_file_of_the_input_by_another_path_is_refused() {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("p/in/in")).unwrap();
    bench.write("p/in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.write("p/in/config.json", b"{}");
    bench.write("p/in/in/config.json", b"{\"inner\": 1}");
    let before = tree(&bench.path("p"));
    bench.run("cast p/in --to f16 -o p -f").says(1, "", "replaced");
    assert_eq!(tree(&bench.path("p")), before);
}

#[test]
fn a_report_that_is_a_file_of_the_input_by_another_path_is_refused() {
    let bench = Bench::new();
    fs::create_dir(bench.path("r")).unwrap();
    bench.write("r/s.safetensors", &shard(&[("w", 1.5, 20)]));
    let configs = ["config.json", "hf_quant_config.json", "quantize_config.json"].map(|name| format!("r/{name}"));
    for config in &configs {
        bench.write(config, b"{}");
    }
    symlink("r", bench.path("rl")).unwrap();
    symlink("r/config.json", bench.path("link.json")).unwrap();
    fs::hard_link(bench.path("r/config.json"), bench.path("hard.json")).unwrap();
    let before = tree(&bench.path("r"));
    for input in ["rl", "r", "r/s.safetensors"] {
        for report in configs.iter().map(|config| &**config).chain(["rl/config.json", "link.json", "hard.json"]) {
            let outcome = bench.run(&format!("cast {input} --to f16 -o o -f --report {report}"));
            assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{input} {report}: {outcome:?}");
            outcome.check_message("input");
        }
    }
    assert_eq!(tree(&bench.path("r")), before);
    assert!(!bench.path("o").exists());
}

#[test]
fn a_report_that_is_the_output_by_another_path_is_refused() {
    let bench = two_files();
    symlink("y.npy", bench.path("r.html")).unwrap();
    fs::create_dir(bench.path("d")).unwrap();
    symlink("d", bench.path("dl")).unwrap();
    symlink("o/r.html", bench.path("in.html")).unwrap();
    for (output, report) in [("y.npy", "r.html"), ("d/r.html.npy", "dl/../r.html"), ("d/x.npy", "dl/x.html")] {
        let outcome = bench.run(&format!("cast a.npy --to f16 -o {output} -f -q --report {report}"));
        if output == "y.npy" {
            let message = "r.html: the report is, or is in, the output\n  name another file with --report\n";
            outcome.expect(1, "", &format!("tcast: error: {message}"));
        } else {
            outcome.expect(0, "", "");
            assert!(bench.read(output).starts_with(b"\x93NUMPY"), "{output}");
        }
    }
    // One that is there already is the same file as well.
    bench.write("y.npy", b"old");
    bench.run("cast a.npy --to f16 -o y.npy -f --report r.html").says(1, "", "report");
    assert_eq!(bench.read("y.npy"), b"old");
}

#[test]
fn two_outputs_that_are_one_file_are_refused() {
    let bench = two_files();
    fs::create_dir(bench.path("o")).unwrap();
    symlink("a.npy", bench.path("o/b.npy")).unwrap();
    bench.run("promote a.npy b.npy -o o -f").says(1, "", "same");
    assert!(!bench.path("o/a.npy").exists());
    // And when it exists.
    bench.write("o/a.npy", b"old");
    bench.run("promote a.npy b.npy -o o -f").says(1, "", "same");
    assert_eq!(bench.read("o/a.npy"), b"old");
}

#[test]
fn standard_output_is_a_stream_whatever_it_is_connected_to() {
    let bench = two_files();
    bench.run("cast a.npy --to f16 -o whole.npy -q").expect(0, "", "");
    let whole = bench.read("whole.npy");
    let around = |before: &[u8], after: &[u8]| [before, &whole, after].concat();
    symlink("/dev/stdout", bench.path("link.npy")).unwrap();
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link.npy"] {
        let cast = format!("tcast cast a.npy --to f16 -q -o {name}");
        for (line, wanted) in [
            (format!("{cast} > y"), around(b"", b"")),
            (format!("{{ printf head; {cast}; printf tail; }} > y"), around(b"head", b"tail")),
            (format!("{{ {cast} -f; printf tail; }} > y"), around(b"", b"tail")),
            (format!("printf log > y; {cast} >> y"), around(b"log", b"")),
            (format!("printf log > y; {cast} -f >> y"), around(b"log", b"")),
            (format!("{cast} | cat > y"), around(b"", b"")),
            // A file that has no name any more.
            (format!("exec 3<> y.tmp 4< y.tmp; rm y.tmp; {cast} >&3; cat <&4 > y"), around(b"", b"")),
        ] {
            bench.shell(&line).expect(0, "", "");
            assert!(bench.read("y") == wanted, "{line}: {:?}", String::from_utf8_lossy(&bench.read("y")));
            fs::remove_file(bench.path("y")).unwrap();
        }
        assert_eq!(bench.files(), ["a.npy", "b.npy", "link.npy", "whole.npy"]);
    }
    bench.run("bitcast a.npy --to int32 -q -o i.npy").expect(0, "", "");
    bench.shell("tcast bitcast a.npy --to int32 -q -o - | cmp - i.npy").expect(0, "", "");
    bench.shell("tcast promote a.npy -q -o - | cmp - a.npy").expect(0, "", "");
    // A file of that name.
    bench.run("cast a.npy --to f16 -q -o ./-").expect(0, "", "");
    assert_eq!(bench.read("-"), whole);
}

#[test]
fn a_folder_on_standard_output_is_one_file() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    bench.run("cast llama --to f16 -o one.safetensors -q").expect(0, "", "");
    bench.shell("tcast cast llama --to f16 -o - -q > two.safetensors").expect(0, "", "");
    assert!(bench.read("one.safetensors") == bench.read("two.safetensors"));
}

#[test]
fn what_cannot_go_to_standard_output_is_refused() {
    let bench = two_files();
    for (line, code, error) in [
        ("tcast cast a.npy --to f16 -o - --json > y", 2, "--json"),
        ("tcast promote a.npy -o /dev/fd/1 --json > y", 2, "--json"),
        ("tcast cast a.npy --to f16 -o - --report r.json --hash > y", 1, "cannot"),
        ("tcast cast a.npy --to f16 -o - --max-shard-size 1KB > y", 2, "limited"),
        ("tcast promote a.npy b.npy -o - > y", 2, "standard"),
        ("tcast cast a.npy --to f16 -o - >> a.npy", 1, "replaced"),
        ("tcast cast a.npy --to f16 -o /dev/fd/3 3> y", 1, "already"),
        ("tcast cast a.npy --to f16 -o - --report y.json -f > y.json", 1, "would be written twice"),
    ] {
        bench.shell(line).says(code, "", error);
        assert!(!bench.path("y").exists() || bench.read("y").is_empty(), "{line}");
    }
    assert_eq!(bench.read("a.npy"), npy_f32(&[1.0, 2.0]));
}

#[test]
fn results_are_not_printed_into_an_input() {
    let bench = two_files();
    bench.write("w.safetensors", &shard(&[("l.0.q.weight", 1.0, 64)]));
    bench.run("cast a.npy --to f16 -o h.npy --hash --report r.json -q").expect(0, "", "");
    symlink("a.npy", bench.path("link.npy")).unwrap();
    let (before, weights) = (bench.read("a.npy"), bench.read("w.safetensors"));
    for (line, code) in [
        ("bitcast a.npy --hex >> a.npy", 1),
        ("bitcast a.npy --bits --json >> link.npy", 1),
        ("bitcast a.npy --to int32 -o i.npy --json >> a.npy", 1),
        ("inspect a.npy >> a.npy", 1),
        ("inspect b.npy link.npy --json >> a.npy", 1),
        ("cast a.npy --to f16 -o b.npy -f --json >> a.npy", 1),
        ("cast a.npy --to f16 -n >> a.npy", 1),
        ("promote a.npy b.npy -n >> a.npy", 1),
        ("diff b.npy a.npy >> a.npy", 2),
        ("diff a.npy --report r.json --json >> a.npy", 2),
        ("quantize w.safetensors --compare int8,fp8 >> w.safetensors", 1),
        ("quantize w.safetensors --scheme int8 -n >> w.safetensors", 1),
    ] {
        bench.shell(&format!("tcast {line}")).says(code, "", "redirected");
        assert!(bench.read("a.npy") == before && bench.read("w.safetensors") == weights, "{line}");
    }
    assert_eq!(bench.read("b.npy"), npy_f32(&[3.0]));
    // Other files may be appended to, and so may an input if nothing is printed.
    bench.shell("tcast inspect a.npy --json >> b.npy").expect(0, "", "");
    bench.shell("tcast cast a.npy --to f16 -o c.npy -q >> a.npy").expect(0, "", "");
    assert_eq!(bench.read("a.npy"), before);
    fs::create_dir(bench.path("m")).unwrap();
    fs::rename(bench.path("w.safetensors"), bench.path("m/model.safetensors")).unwrap();
    bench.write("m/config.json", b"{}");
    bench.shell("tcast inspect m > m/listing.txt").expect(0, "", "");
    assert_eq!(bench.shell("tcast inspect m --json >> m/config.json").code, Some(1));
    assert_eq!(bench.read("m/config.json"), b"{}");
}

#[test]
fn an_input_without_a_folder_of_its_own_asks_for_an_output() {
    let bench = two_files();
    for input in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        bench.shell(&format!("tcast cast {input} --to f16 < a.npy")).says(2, "", "FILE");
        bench.shell(&format!("tcast cast {input} --to f16 -q -o - < a.npy > y.npy")).expect(0, "", "");
        bench.run("cast a.npy --to f16 -q -f -o whole.npy").expect(0, "", "");
        assert_eq!(bench.read("y.npy"), bench.read("whole.npy"));
    }
    assert!(!std::path::Path::new("/dev/stdin.float16").exists());
}

#[test]
fn the_default_output_does_not_join_the_checkpoint_that_the_input_is() {
    for described_by in ["config.json", "model.safetensors.index.json"] {
        let bench = Bench::new();
        fs::create_dir(bench.path("it's")).unwrap();
        bench.write("it's/model.safetensors", &shard(&[("w", 1.5, 20)]));
        bench.write(&format!("it's/{described_by}"), b"{\"weight_map\": {\"w\": \"model.safetensors\"}}");
        let message = |input: &str, elsewhere: &str| {
            format!(
                "tcast: error: {input}: {described_by} describes the folder, and a second .safetensors file would make \
                 it ambiguous\n  name an output elsewhere: -o {elsewhere}\n"
            )
        };
        bench.run_args(&["cast", "it's/model.safetensors", "--to", "f16"]).says(1, "", "model.float16.safetensors");
        let mut command = bench.command();
        command.current_dir(bench.path("it's")).args(["cast", "model.safetensors", "--to", "f16"]);
        let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
        assert_eq!(said, message("model.safetensors", "'./../model.float16.safetensors'"));
        // As the remedy says; other formats do no harm.
        let args = ["cast", "it's/model.safetensors", "--to", "f16", "-q", "-o", "model.float16.safetensors"];
        bench.run_args(&args).expect(0, "", "");
        bench.run_args(&["cast", "it's/model.safetensors", "--to", "f16", "-q", "-o", "it's/x.npz"]).expect(0, "", "");
    }
}

#[test]
fn a_folder_that_an_output_made_ambiguous_says_which_file_that_is() {
    let bench = Bench::new();
    fs::create_dir(bench.path("one")).unwrap();
    bench.write("one/model.safetensors", &shard(&[("w", 1.5, 20)]));
    bench.run("cast one/model.safetensors --to f16 -q").expect(0, "", "");
    let remedy = "mv -n 'one/model.float16.safetensors' 'one/..'";
    bench.run("cast one --to bf16 -q").says(1, "", "tcast");
    bench.shell(remedy).expect(0, "", "");
    bench.run("cast one --to bf16 -q").expect(0, "", "");
    assert_eq!(bench.files(), ["model.float16.safetensors", "one", "one-bfloat16"]);
}

#[test]
fn an_output_of_any_name_that_made_its_folder_ambiguous_is_found_by_its_age() {
    let bench = Bench::new();
    fs::create_dir(bench.path("one")).unwrap();
    bench.write("one/y.safetensors", &shard(&[("w", 1.5, 20)]));
    let time = fs::metadata(bench.path("one/y.safetensors")).unwrap().modified().unwrap();
    bench.run("cast one --to f16 -o one/x.safetensors -q").expect(0, "", "");
    let file = fs::File::options().write(true).open(bench.path("one/x.safetensors")).unwrap();
    file.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
    let remedy = "mv -n 'one/x.safetensors' 'one/..'";
    bench.run("cast one --to bf16 -q").says(1, "", "download");
    // Files of one age do not tell.
    file.set_modified(time).unwrap();
    bench.run("cast one --to bf16 -q").says(1, "", "y.safetensors");
    bench.shell(remedy).expect(0, "", "");
    bench.run("cast one --to bf16 -q").expect(0, "", "");
}

#[test]
fn a_second_run_in_one_process_and_two_at_once_do_their_work() {
    let bench = two_files();
    let path = |name: &str| bench.path(name).to_str().unwrap().to_owned();
    let run = |input: &str, output: &str| {
        let (input, output) = (path(input), path(output));
        let args = ["tcast", "cast", &input, "--to", "f16", "-q", "-o", &output];
        let code = tcast::commands::run(&tcast::cli::Cli::parse_from(args)).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    };
    run("a.npy", "one.npy");
    run("a.npy", "two.npy");
    std::thread::scope(|scope| {
        for output in ["three.npy", "four.npy", "five.npy"] {
            scope.spawn(move || run("a.npy", output));
        }
    });
    for output in ["two.npy", "three.npy", "four.npy", "five.npy"] {
        assert_eq!(bench.read(output), bench.read("one.npy"));
    }
}

#[test]
fn an_existing_report_and_a_link_that_leads_nowhere_come_with_a_remedy() {
    let bench = two_files();
    bench.write("r.json", b"mine");
    bench.run("cast a.npy --to f16 -o out.npy --report r.json").says(4, "", "--force");
    assert_eq!(bench.read("r.json"), b"mine");
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/s.safetensors", &shard(&[("w", 1.5, 20)]));
    symlink("no where", bench.path("link")).unwrap();
    bench.run("cast in --to f16 -o link").says(1, "", "folder");
    fs::create_dir(bench.path("no where")).unwrap();
    bench.run("cast in --to f16 -o link -q").expect(0, "", "");
    assert!(bench.path("no where/s.safetensors").exists());
}

#[test]
fn a_name_that_is_empty_or_contains_an_equals_sign_comes_with_a_remedy() {
    let bench = Bench::new();
    bench.write("nm.safetensors", &shard(&[("", 1e30, 2), ("a=b", 1.0, 1)]));
    let line = "cast nm.safetensors --to f16 -o out.safetensors --fail-on infinite";
    bench.run(line).says(3, "", "--rule");
    bench.run(&format!("{line} --rule =keep -q")).expect(0, "", "");
    bench.run("cast nm.safetensors --to f16 -o x.safetensors --rename a=b=zz").says(2, "", "tensor");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_system_without_room_of_its_own_is_not_a_full_disk() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.run("cast x.npy --to f16 -o /proc/x.npy").says(1, "", "directory");
}

#[test]
fn a_report_whose_name_is_too_long_can_have_another() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    let name = "r".repeat(300);
    bench.run(&format!("cast x.npy --to f16 --report {name}.json -o y.npy")).says(1, "", "--report");
    assert_eq!(bench.files(), ["x.npy"]);
}
