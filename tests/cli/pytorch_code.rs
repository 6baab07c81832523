//! Code in checkpoints of PyTorch is never run, and always named.

use crate::common::pickle::{
    Code, archive, call, checkpoint, dict, f32s, floats, global, instance, int, list, old_checkpoint, old_head, pickle,
    text, tuple,
};
use crate::common::{Bench, fixture, zip};

/// A file that exists if any code ran.
const CANARY: &str = "canary";

/// Values that create the file where they are unpickled, with the names of code that are reported.
#[allow(clippy::too_many_lines, reason = "a table of payloads")]
fn payloads(canary: &str) -> Vec<(&'static str, Code, Vec<&'static str>)> {
    let touch = || text(&format!("touch {canary}"));
    let python = || text(&format!("open('{canary}', 'w')"));
    let stack_global = |module: &str, name: &str| [text(module), text(name), vec![0x93]].concat();
    let short_global = |module: &str, name: &str| {
        let text = |text: &str| [&[0x8c, text.len() as u8], text.as_bytes()].concat();
        [text(module), text(name), vec![0x93]].concat()
    };
    let getattr =
        call(&global("builtins", "getattr"), &[call(&global("builtins", "__import__"), &[text("os")]), text("system")]);
    let object = || instance("argparse", "Namespace");
    let set_state = dict(&[("__setstate__", global("posix", "system"))]);
    let reconstruct = call(
        &global("copyreg", "_reconstructor"),
        &[global("subprocess", "Popen"), global("builtins", "object"), vec![b'N']],
    );
    vec![
        ("REDUCE", call(&global("posix", "system"), &[touch()]), vec!["posix.system"]),
        (
            "REDUCE of a list",
            [global("posix", "system"), list(&[touch()]), b"R".to_vec()].concat(),
            vec!["posix.system"],
        ),
        ("exec", call(&global("builtins", "exec"), &[python()]), vec!["builtins.exec"]),
        ("eval of Python 2", call(&global("__builtin__", "eval"), &[python()]), vec!["__builtin__.eval"]),
        ("STACK_GLOBAL", call(&stack_global("os", "system"), &[touch()]), vec!["os.system"]),
        ("STACK_GLOBAL of short texts", call(&short_global("nt", "system"), &[touch()]), vec!["nt.system"]),
        (
            "a name in the memo",
            [
                text("posix"),
                b"q\x000".to_vec(),
                text("system"),
                b"q\x010h\x00h\x01\x93".to_vec(),
                tuple(&[touch()]),
                b"R".to_vec(),
            ]
            .concat(),
            vec!["posix.system"],
        ),
        ("INST", [b"(".to_vec(), touch(), b"iposix\nsystem\n".to_vec()].concat(), vec!["posix.system"]),
        (
            "OBJ",
            [b"(".to_vec(), global("subprocess", "Popen"), touch(), b"o".to_vec()].concat(),
            vec!["subprocess.Popen"],
        ),
        ("NEWOBJ", [global("subprocess", "Popen"), tuple(&[touch()]), vec![0x81]].concat(), vec!["subprocess.Popen"]),
        (
            "NEWOBJ_EX",
            [global("subprocess", "Popen"), tuple(&[touch()]), dict(&[("shell", vec![0x88])]), vec![0x92]].concat(),
            vec!["subprocess.Popen"],
        ),
        ("a chain of getattr", call(&getattr, &[touch()]), vec!["builtins.__import__", "builtins.getattr"]),
        (
            "an attribute of a class",
            call(&stack_global("collections", "OrderedDict.fromkeys"), &[touch()]),
            vec!["collections.OrderedDict.fromkeys"],
        ),
        (
            "BUILD with __setstate__",
            [object(), set_state, b"b".to_vec(), touch(), b"b".to_vec()].concat(),
            vec!["argparse.Namespace", "posix.system"],
        ),
        (
            "BUILD with slots",
            [object(), tuple(&[vec![b'N'], dict(&[("f", global("posix", "system"))])]), b"b".to_vec()].concat(),
            vec!["argparse.Namespace", "posix.system"],
        ),
        ("copyreg", reconstruct, vec!["subprocess.Popen"]),
        (
            "a key",
            [b"}".to_vec(), call(&global("posix", "system"), &[touch()]), b"Ns".to_vec()].concat(),
            vec!["posix.system"],
        ),
        (
            "a value that is popped",
            [call(&global("posix", "system"), &[touch()]), b"0N".to_vec()].concat(),
            vec!["posix.system"],
        ),
        (
            "values that are popped to a mark",
            [b"(".to_vec(), call(&global("posix", "system"), &[touch()]), b"1N".to_vec()].concat(),
            vec!["posix.system"],
        ),
        (
            "the function of a default dict",
            call(&global("collections", "defaultdict"), &[global("posix", "system")]),
            vec!["posix.system"],
        ),
        (
            "a pickle in a pickle",
            call(&global("torch.storage", "_load_from_bytes"), &[text("x")]),
            vec!["torch.storage._load_from_bytes"],
        ),
        (
            "a name that imitates another",
            call(&global("torch", "FloatStorage.__init__"), &[]),
            vec!["torch.FloatStorage.__init__"],
        ),
        (
            "a function beside classes",
            call(&global("torch.nn.modules.module", "register_module_forward_hook"), &[]),
            vec!["torch.nn.modules.module.register_module_forward_hook"],
        ),
        (
            "a name with control characters",
            call(&stack_global("posix\n\u{1b}[31m", "system"), &[]),
            vec!["posix\\n\\u{1b}[31m.system"],
        ),
        ("a module that is not UTF-8", [b"c\xff\nsystem\n)R".to_vec()].concat(), vec!["\u{fffd}.system"]),
    ]
}

/// Checks all commands on a file with a float32 tensor `w`, and these suspicious names.
#[track_caller]
fn check(bench: &Bench, what: &str, names: &[&str]) {
    let warning = format!(
        "tcast: warning: x.pt names {}: tcast runs no code, but programs that unpickle the file would call it\n",
        names.join(", ")
    );
    for (line, code) in [
        ("cast x.pt --to bf16 -f -o y.safetensors", 0),
        ("cast x.pt --root . -f -o y.safetensors", 0),
        ("quantize x.pt --scheme fp8 -f -o y.safetensors", 1),
        ("dequantize x.pt -f -o y.safetensors", 1),
        ("bitcast x.pt --to uint32 -f -o y.safetensors", 0),
        ("bitcast x.pt --hex --tensor w", 0),
        ("promote x.pt --tensor w -f -o y.safetensors", 0),
        ("diff x.pt x.pt", 0),
        ("inspect x.pt --stats", 0),
        ("inspect x.pt", 0),
    ] {
        let outcome = bench.run(line);
        assert_eq!(outcome.code, Some(code), "{what}: {line}: {outcome:?}");
        let is_warned = outcome.stderr.contains(&warning);
        assert!(
            is_warned || line.starts_with("bitcast x.pt --hex") || line.starts_with("diff"),
            "{what}: {line}: {outcome:?}"
        );
    }
    let outcome = bench.run("inspect x.pt --fail-on code");
    let error = format!("tcast: error: x.pt: names code that is not known to be harmless: {}\n", names.join(", "));
    assert_eq!((outcome.code, outcome.stderr), (Some(3), format!("{warning}{error}")), "{what}");
    for name in names {
        assert!(outcome.stdout.contains(&format!("  {name}  may do harm\n")), "{what}: {}", outcome.stdout);
    }
    bench.run("inspect x.pt --fail-on code -q --json");
    let outcome = bench.run("inspect x.pt --json -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{what}");
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(json["suspicious"].as_array().unwrap().len(), names.len(), "{what}");
    assert!(!bench.path(CANARY).exists(), "{what}");
}

#[test]
fn code_is_not_run_by_any_command_and_is_named() {
    let bench = Bench::new();
    let canary = bench.path(CANARY).display().to_string();
    let bytes = f32s(&[1.0, 2.0]);
    for (what, payload, names) in payloads(&canary) {
        let value = dict(&[("w", floats("0", &[2])), ("x", payload)]);
        bench.write("x.pt", &checkpoint(&value, &[("0", &bytes)]));
        check(&bench, what, &names);
        bench.write("x.pt", &old_checkpoint(&value, &[("0", 2, &bytes)]));
        check(&bench, what, &names);
    }
}

/// The pickles around the value are loaded by other programs in the same way.
#[test]
fn code_in_any_pickle_of_the_older_form_is_named() {
    let bench = Bench::new();
    let canary = bench.path(CANARY).display().to_string();
    let bytes = [&2_u64.to_le_bytes()[..], &f32s(&[1.0, 2.0])].concat();
    let payload = call(&global("posix", "system"), &[text(&format!("touch {canary}"))]);
    let popped = [&payload[..], b"0"].concat();
    let value = dict(&[("w", floats("0", &[2]))]);
    let keys = list(&[text("0")]);
    let magic = &old_head()[..15];
    let version = int(1001);
    let system = dict(&[]);
    for infected in 0..4 {
        let pickles: Vec<u8> = [&version, &system, &value, &keys]
            .iter()
            .enumerate()
            .flat_map(|(at, value)| {
                pickle(&if at == infected { [&popped[..], value].concat() } else { (*value).clone() })
            })
            .collect();
        bench.write("x.pt", &[magic, &pickles, &bytes].concat());
        check(&bench, &format!("pickle {infected}"), &["posix.system"]);
    }
}

#[test]
fn several_files_are_searched_and_the_first_error_counts() {
    let bench = Bench::new();
    let bytes = f32s(&[1.0, 2.0]);
    let good = dict(&[("w", floats("0", &[2]))]);
    let bad = dict(&[("w", floats("0", &[2])), ("x", global("os", "system"))]);
    bench.write("a.pt", &checkpoint(&good, &[("0", &bytes)]));
    bench.write("b.pt", &checkpoint(&bad, &[("0", &bytes)]));
    assert_eq!(bench.run("inspect a.pt --fail-on code").code, Some(0));
    assert_eq!(bench.run("inspect a.pt b.pt --fail-on code -q").code, Some(3));
    let outcome = bench.run("inspect a.pt b.pt");
    assert_eq!(outcome.code, Some(0));
    outcome.check_message("programs");
    // In a folder, and without a message if that is requested.
    std::fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/pytorch_model.bin", &checkpoint(&bad, &[("0", &bytes)]));
    assert_eq!(bench.run("inspect m --fail-on code -q").code, Some(3));
    bench.run("cast m --to bf16 -o out -q").expect(0, "", "");
    assert_eq!(bench.run("inspect a.pt --fail-on losses").code, Some(2));
}

/// Torch ignores the case of members; readers of archives take the first or the last of two members, and different ends.
#[test]
fn archives_about_which_readers_disagree_are_refused() {
    let bytes = f32s(&[1.0, 2.0]);
    let good = pickle(&dict(&[("w", floats("0", &[2]))]));
    let evil = pickle(&call(&global("posix", "system"), &[text("true")]));
    let with = |more: &[(&str, &[u8])]| {
        let plain: [(&str, &[u8]); 2] = [("ok/data.pkl", &good), ("ok/data/0", &bytes)];
        zip(&[&plain[..], more].concat(), false)
    };
    let plain = with(&[]);
    let end = [&plain[..plain.len() - 2], &[22, 0], b"PK\x05\x06", &[0; 18]].concat();
    let mut tar = [old_head(), vec![0; 1024]].concat();
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|byte| u32::from(*byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    for (file, word) in [
        (with(&[("ok/DATA.PKL", &evil)]), "ok/DATA.PKL"),
        (with(&[("ok/DATA/0", &bytes)]), "ok/DATA/0"),
        (with(&[("ok/byteorder", b"little"), ("ok/byteorder", b"big")]), "ok/byteorder"),
        (with(&[("ok/BYTEORDER", b"big")]), "ok/BYTEORDER"),
        (zip(&[("ok/DATA.PKL", &evil), ("ok/a.npy", &bytes)], false), "ok/DATA.PKL"),
        (zip(&[("a/version", b"3"), ("b/data.pkl", &evil)], false), "b/data.pkl"),
        (end, "directory"),
        (tar, "PyTorch"),
    ] {
        let bench = Bench::new();
        bench.write("x.pt", &file);
        bench.run("inspect x.pt --fail-on code").says(1, "", word);
    }
}

/// numpy reads the bytes of a folder, and PyTorch does not. Python compresses folders, as all members.
#[test]
fn folders_of_an_archive_have_no_bytes() {
    let array = std::fs::read(fixture("weights_f32.npy")).unwrap();
    let archive = |content: &[u8], is_deflated| zip(&[("a.npy", &array), ("folder/", content)], is_deflated);
    let bench = Bench::new();
    for is_deflated in [false, true] {
        bench.write("x.npz", &archive(b"", is_deflated));
        bench.run("cast x.npz --to f16 -f -q").expect(0, "", "");
        bench.write("x.npz", &archive(b"x", is_deflated));
        bench.run("cast x.npz --to f16 -f").says(1, "", "folder/");
    }
    // The directory says that it is empty, and a reader that ignores this finds a byte.
    let file = archive(b"x", true);
    let packed = [3, 0, 0, 0, 1, 0, 0, 0]; // both lengths, in both headers
    let places: Vec<usize> = (0..file.len() - 8).filter(|&at| file[at..].starts_with(&packed)).collect();
    assert_eq!(places.len(), 2, "the lengths of a deflated byte");
    let mut hidden = file.clone();
    for at in places {
        hidden[at + 4] = 0;
    }
    bench.write("x.npz", &hidden);
    let outcome = bench.run("cast x.npz --to f16 -f");
    outcome.says(1, "", "folder");
    assert!(outcome.stdout.is_empty());
}

/// What is not searched may contain code, and other files of a folder are searched.
#[test]
fn what_is_not_searched_for_code_is_refused() {
    let bytes = f32s(&[1.0, 2.0]);
    let evil = pickle(&call(&global("posix", "system"), &[text("true")]));
    let good = dict(&[("w", floats("0", &[2]))]);
    let bench = Bench::new();
    bench.write(
        "x.npz",
        &zip(&[("a.npy", &std::fs::read(fixture("weights_f32.npy")).unwrap()), ("b.pkl", &evil)], false),
    );
    assert_eq!(bench.run("inspect x.npz -q").code, Some(0));
    bench.run("inspect x.npz --fail-on code").check_message("b.pkl");
    std::fs::create_dir_all(bench.path("m/inner")).unwrap();
    std::fs::copy(fixture("model.safetensors"), bench.path("m/model.safetensors")).unwrap();
    bench.write("m/config.json", b"{}");
    bench.write("m/optimizer.pt", &checkpoint(&good, &[("0", &bytes)]));
    let outcome = bench.run("inspect m --fail-on code");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    for (name, file) in [
        ("m/pytorch_model.bin", archive(&evil, &[])),
        ("m/inner/training_args.bin", archive(&evil, &[])),
        ("m/inner/scheduler.pkl", evil.clone()),
        ("m/.state.pkl", b"cposix\nsystem\n(Vtrue\ntR.".to_vec()),
    ] {
        bench.write(name, &file);
        bench.run("inspect m --fail-on code").check_message(name);
        assert_eq!(bench.run("inspect m -q").code, Some(0));
        std::fs::remove_file(bench.path(name)).unwrap();
    }
}

#[test]
fn values_that_are_dropped_count_too() {
    let bench = Bench::new();
    for opcodes in [&b"}0"[..], b"]0", b"]K\x01a0"] {
        bench.write(
            "x.pt",
            &archive(&[b"\x80\x02", &opcodes.repeat(10_000_000 / opcodes.len())[..], b"N."].concat(), &[]),
        );
        bench.run_within(400, "inspect x.pt").says(1, "", "checkpoint");
    }
}
