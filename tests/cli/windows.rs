//! Names, paths and files in use, where Windows differs. Tests without a condition hold on every system.

use crate::common::{Bench, npy_f32, same, shard, tree};
use std::fs;

/// True if the folder takes names that differ in case for one.
fn ignores_case(bench: &Bench) -> bool {
    bench.write("lower", b"");
    let ignores = bench.path("LOWER").exists();
    fs::remove_file(bench.path("lower")).unwrap();
    ignores
}

#[test]
fn a_temporary_file_in_use_is_not_called_abandoned() {
    let bench = Bench::new();
    for name in ["x.npy", "y.npy"] {
        bench.write(name, &npy_f32(&[1.0, 2.0]));
    }
    let outcome = bench.run("promote x.npy y.npy -o common");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("warning"), "{}", outcome.stderr);
    assert_eq!(tree(&bench.path("common")).len(), 2);
}

#[test]
fn outputs_whose_names_are_one_to_the_file_system_are_refused() {
    let bench = Bench::new();
    let ignores_case = ignores_case(&bench);
    for folder in ["a", "b"] {
        fs::create_dir(bench.path(folder)).unwrap();
    }
    bench.write("a/x.npy", &npy_f32(&[1.0]));
    bench.write("b/X.NPY", &npy_f32(&[2.0]));
    for command in ["cast a/x.npy b/X.NPY --to f16 --force", "promote a/x.npy b/X.NPY --force"] {
        let outcome = bench.run(&format!("{command} -q -o both"));
        if ignores_case {
            outcome.says(1, "", "X.NPY");
            assert!(!bench.path("both").exists());
        } else {
            outcome.expect(0, "", "");
            assert_eq!(tree(&bench.path("both")).len(), 2);
            fs::remove_dir_all(bench.path("both")).unwrap();
        }
    }
}

#[test]
fn two_shards_whose_names_are_one_to_the_file_system_are_refused() {
    let bench = Bench::new();
    let ignores_case = ignores_case(&bench);
    if ignores_case {
        return; // no such folder can be made there
    }
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/a.safetensors", &shard(&[("a", 1.0, 4)]));
    bench.write("in/A.safetensors", &shard(&[("b", 2.0, 4)]));
    bench.run("cast in --to f16 -o out -q").expect(0, "", "");
    assert_eq!(tree(&bench.path("out")).keys().filter(|name| name.ends_with(".safetensors")).count(), 2);
}

#[test]
fn a_name_that_ends_in_a_separator_is_a_folder() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0]));
    let folder = format!("new{}", std::path::MAIN_SEPARATOR);
    bench.run_args(&["cast", "x.npy", "--to", "f16", "-q", "-o", &folder]).expect(0, "", "");
    assert_eq!(tree(&bench.path("new")).keys().collect::<Vec<_>>(), ["x.npy"]);
}

#[test]
fn paths_may_be_longer_than_260_characters() {
    let bench = Bench::new();
    let folder = ["long"; 3].map(|name| name.repeat(25)).join("/");
    let long = bench.path(&folder);
    let made = fs::create_dir_all(&long).is_ok() && fs::write(long.join("x.npy"), npy_f32(&[1.0])).is_ok();
    assert!(made && long.as_os_str().len() > 300, "{}", long.display());
    for force in ["", " --force"] {
        bench.run(&format!("cast {folder}/x.npy --to f16 -q{force} -o {folder}/half.npy")).expect(0, "", "");
    }
    bench.run(&format!("cast {folder}/x.npy --to f16 -q")).expect(0, "", "");
    assert_eq!(tree(&long).keys().collect::<Vec<_>>(), ["half.npy", "x.float16.npy", "x.npy"]);
    fs::create_dir(long.join("in")).unwrap();
    fs::write(long.join("in/model.safetensors"), shard(&[("a", 1.0, 4)])).unwrap();
    for force in ["", " --force"] {
        bench.run(&format!("cast {folder}/in --to f16 -q{force} -o {folder}/out")).expect(0, "", "");
    }
    assert_eq!(tree(&long.join("out")).len(), 1);
}

#[test]
fn a_config_that_begins_with_a_byte_order_mark_is_read() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "plain");
    bench.add_checkpoint("llama-tiny-bf16", "marked");
    let config = bench.read("plain/config.json");
    bench.write("marked/config.json", &[b"\xef\xbb\xbf", &config[..]].concat());
    for folder in ["plain", "marked"] {
        bench.run(&format!("cast {folder} --to f16 -q -o {folder}-f16")).expect(0, "", "");
        bench.run(&format!("quantize {folder} --scheme int8 -q -o {folder}-int8")).expect(0, "", "");
    }
    for made in ["f16", "int8"] {
        same(&tree(&bench.path(&format!("plain-{made}"))), &tree(&bench.path(&format!("marked-{made}"))));
    }
}

#[cfg(windows)]
mod in_use {
    use super::*;
    use crate::common::Outcome;
    use std::fs::File;
    use std::os::windows::fs::OpenOptionsExt;

    const SHARE_READ: u32 = 1;
    const SHARE_DELETE: u32 = 4;

    fn check_refused(outcome: &Outcome, path: &str) {
        let expected = format!(
            "tcast: error: {path}: cannot replace: it is in use by another program\n  close the program that uses it, and \
             run the same command again\n"
        );
        outcome.expect(1, "", &expected);
    }

    #[test]
    fn an_output_in_use_is_refused_before_the_work() {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        bench.write("y.npy", b"old");
        let held = File::options().read(true).share_mode(SHARE_READ).open(bench.path("y.npy")).unwrap();
        check_refused(&bench.run("cast x.npy --to f16 -o y.npy --force"), "y.npy");
        drop(held);
        assert_eq!(
            (bench.files(), bench.read("y.npy")),
            (vec!["x.npy".to_owned(), "y.npy".to_owned()], b"old".to_vec())
        );
        bench.run("cast x.npy --to f16 -o y.npy --force -q").expect(0, "", "");
    }

    #[test]
    fn an_output_that_is_held_for_a_moment_is_waited_for() {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        bench.write("y.npy", b"old");
        let held = File::options().read(true).share_mode(SHARE_READ).open(bench.path("y.npy")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(500));
                drop(held);
            });
            bench.run("cast x.npy --to f16 -o y.npy --force -q").expect(0, "", "");
        });
        assert_eq!(bench.files(), ["x.npy", "y.npy"]);
    }

    #[test]
    fn a_checkpoint_in_use_is_refused_before_the_work() {
        let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
        bench.run("cast in --to f16 -q -o out").expect(0, "", "");
        let before = tree(&bench.path("out"));
        let shard = before.keys().find(|name| name.ends_with(".safetensors")).unwrap();
        let path = format!("out/{shard}");
        let held = File::options().read(true).share_mode(SHARE_READ).open(bench.path(&path)).unwrap();
        check_refused(&bench.run("cast in --to f32 -q -o out --force"), &path);
        drop(held);
        same(&before, &tree(&bench.path("out")));
    }

    #[test]
    fn a_checkpoint_that_others_may_delete_is_replaced_while_they_read_it() {
        let bench = Bench::with_checkpoint("llama-tiny-bf16", "in");
        bench.run("cast in --to f32 -q -o whole").expect(0, "", "");
        bench.run("cast in --to f16 -q -o out").expect(0, "", "");
        let name = tree(&bench.path("out")).into_keys().find(|name| name.ends_with(".safetensors")).unwrap();
        let shared = SHARE_READ | SHARE_DELETE;
        let held = File::options().read(true).share_mode(shared).open(bench.path("out").join(name)).unwrap();
        bench.run("cast in --to f32 -q -o out --force").expect(0, "", "");
        drop(held);
        let mut now = tree(&bench.path("out"));
        now.retain(|name, _| !name.starts_with(".tcast-"));
        same(&tree(&bench.path("whole")), &now);
    }

    #[test]
    fn nobody_writes_to_an_input_while_it_is_read() {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        let writer = File::options().write(true).open(bench.path("x.npy")).unwrap();
        let outcome = bench.run("cast x.npy --to f16");
        assert_eq!(outcome.code, Some(1));
        assert!(outcome.stderr.contains("x.npy: cannot read: it is in use by another program"), "{}", outcome.stderr);
        drop(writer);
        bench.run("cast x.npy --to f16 -q").expect(0, "", "");
    }

    #[test]
    fn patterns_of_inputs_are_expanded() {
        let bench = Bench::new();
        for name in ["a.npy", "b.NPY", "c[1].npy", "d.npz"] {
            bench.write(name, &npy_f32(&[1.0]));
        }
        fs::remove_file(bench.path("d.npz")).unwrap();
        bench.run("cast *.npy --to f16 -q -o half").expect(0, "", "");
        assert_eq!(tree(&bench.path("half")).len(), 3);
        bench.run("cast c[1].n?y --to f16 -q -o one/").expect(0, "", "");
        assert_eq!(tree(&bench.path("one")).len(), 1);
        assert!(bench.run("cast *.pb --to f16").stderr.contains("*.pb: cannot read"));
    }
}
