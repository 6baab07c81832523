//! The search for code: files of other formats are searched as Python's readers read them, whatever they look like.

use crate::common::pickle::{Code, call, global, old_checkpoint, old_head, pickle, text};
use crate::common::{Bench, fixture, zip};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};

/// A call that runs a program, and its names in messages.
fn run() -> Code {
    call(&global("posix", "system"), &[text("true")])
}

const NAMED: &str = "names code that is not known to be harmless: posix.system";

/// Writes a folder that holds a model and the given files, which a search covers too.
fn folder() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    fs::copy(fixture("model.safetensors"), bench.path("m/model.safetensors")).unwrap();
    bench.write("m/config.json", b"{}");
    bench
}

/// Checks what a search says about a file, or that it says nothing.
#[track_caller]
fn finds(bench: &Bench, searched: &str, name: &str, what: Option<&str>) {
    let outcome = bench.run(&format!("inspect {searched} --fail-on code -q"));
    let error = what.map(|what| format!("tcast: error: {name}: {what}\n")).unwrap_or_default();
    let code = if what.is_some() { 3 } else { 0 };
    assert_eq!((outcome.code, outcome.stderr), (Some(code), error));
}

/// Checks what a search of a folder says about a file in it.
#[track_caller]
fn finds_beside(name: &str, file: &[u8], what: Option<&str>) {
    let (bench, name) = (folder(), format!("m/{name}"));
    fs::create_dir_all(bench.path(&name).parent().unwrap()).unwrap();
    bench.write(&name, file);
    finds(&bench, "m", &name, what);
}

/// Each is an error for one of Python's two unpicklers at most.
#[test]
fn a_search_goes_on_wherever_an_unpickler_of_python_does() {
    let not_plain =
        Some("is not searched for code in full: malformed pickle: a reference is not in plain digits, at byte 1");
    for (start, what) in [
        (&b"C\x01a\x98"[..], Some(NAMED)),
        (b"\x96\x01\0\0\0\0\0\0\0a\x98", Some(NAMED)),
        (b"I1\0zz\n", Some(NAMED)),
        (b"I\0z\n", Some(NAMED)),
        (b"I\x0b1\n", Some(NAMED)),
        (b"I1\x0c\n", Some(NAMED)),
        (b"I\n", Some(NAMED)),
        (b"L1\0zz\n", Some(NAMED)),
        (b"L\x0b1L\n", Some(NAMED)),
        (b"Np-0\n", not_plain),
        (b"Np0\0z\n", not_plain),
        (b"Np+0\n", not_plain),
        (b"Np5000000000\n", not_plain),
        (b"Ng-0\n", not_plain),
        (b"Ng0\0z\n", not_plain),
        // Errors of both.
        (b"N\x00", None),
        (b"Iz\n", None),
        (b"Npz\n", None),
        (b"p-0\n", None),
        (b"0", None),
        (b"\x98", None),
        (b"ca\0b\nc\n", None),
    ] {
        finds_beside("x.pkl", &[start, &run(), b"."].concat(), what);
    }
    // The one in Python imports a module before it misses the end of the line.
    let cut = "names code that is not known to be harmless: evil.na";
    finds_beside("x.pkl", b"\x80\x02cevil\nna", Some(cut));
    // A module may have any name that a file can have.
    for (name, shown) in [("evil-mod", "evil-mod"), ("evil mod", "evil mod"), ("evile\u{301}", "evile\u{301}")] {
        let what = format!("names code that is not known to be harmless: {shown}.run");
        finds_beside("x.pkl", &pickle(&global(name, "run")), Some(&what));
    }
}

#[test]
fn each_pickle_of_a_file_is_searched() {
    let code = pickle(&run());
    let long = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    for first in [
        b"I119547037146038801333356\n.".to_vec(),
        b"L119547037146038801333356L\n.".to_vec(),
        [b"\x80\x02N0\x8a\x0a", &long[..], b"."].concat(),
        [b"\x80\x02\x8b\x0a\0\0\0", &long[..], b"."].concat(),
        [b"\x80\x02\x8a\x0b", &long[..], b"\0."].concat(),
        pickle(b"N").repeat(3),
    ] {
        for name in ["training_args.bin", "optimizer.pt", "x.ckpt", "x.pkl", "x"] {
            finds_beside(name, &[&first[..], &code].concat(), Some(NAMED));
        }
        finds_beside("x.pkl", &first, None);
    }
}

/// No unpickler stops where the numbers of this machine do.
#[test]
fn what_is_behind_four_gibibytes_counts_as_not_searched() {
    let bench = folder();
    let mut file = File::create(bench.path("m/x.pkl")).unwrap();
    file.write_all(&[&b"\x80\x04\x8e"[..], &(1_u64 << 32).to_le_bytes()].concat()).unwrap();
    file.seek(SeekFrom::Current(1 << 32)).unwrap();
    file.write_all(&[b"0", &run()[..], b"."].concat()).unwrap();
    drop(file);
    let what = "is not searched for code in full: malformed pickle: it ends too early, at byte 2";
    finds(&bench, "m", "m/x.pkl", Some(what));
}

/// A .npy file with this type, and the bytes of its elements.
fn npy(descr: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}");
    header += &" ".repeat(63 - (10 + header.len()) % 64);
    header += "\n";
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn arrays_whose_types_are_not_known_to_be_plain_may_hold_objects() {
    for descr in [
        "'|O'",
        "'object'",
        "'object_'",
        "'T'",
        "'|T16'",
        "'f4,object'",
        "'2object'",
        "'(2,)object'",
        "'object,'",
        "[('a','object')]",
        "[('a','<f4'),('b','object')]",
        "[('a','object',(2,))]",
        "[(('t','a'),'object')]",
        "[('a',[('b','object')])]",
        "[('a','<f8',[('x','O')])]",
        "[('a','<f8','O')]",
        "'float'",
        "'a8'",
    ] {
        let bench = Bench::new();
        bench.write("x.npz", &zip(&[("a.npy", &npy(descr, &pickle(&run())))], false));
        finds(
            &bench,
            "x.npz",
            "x.npz",
            Some("is not searched for code in full: its array 'a' may hold pickled objects"),
        );
        bench.write("x.npz", &zip(&[("a.npy", &npy(descr, &pickle(&run())))], true));
        finds(
            &bench,
            "x.npz",
            "x.npz",
            Some("is not searched for code in full: its array 'a' may hold pickled objects"),
        );
    }
    let many = (0..40).map(|at| format!("('field{at}', '<f4'), ")).collect::<Vec<_>>().concat();
    for descr in [
        "'<M8[D]'",
        "'<m8[25us]'",
        "'<f16'",
        "[('Open','<f4'),('Close','<f4')]",
        "[('a','<f4',(2,)),('b','|S3')]",
        "[(('Object','a'),[('b','<i4'),('O','|b1')])]",
        &format!("[{many}]"),
    ] {
        let bench = Bench::new();
        bench.write("x.npz", &zip(&[("a.npy", &npy(descr, &[0; 160]))], false));
        finds(&bench, "x.npz", "x.npz", None);
        finds_beside("x.npy", &npy(descr, &[0; 160]), None);
    }
    let what = "is not searched for code in full: unsupported dtype 'object'";
    finds_beside("x.npy", &npy("'object'", &pickle(&run())), Some(what));
}

/// Python reads the checksum of a tar header as a number with blanks, underscores, a base and a sign.
#[test]
fn a_tar_header_is_one_whatever_the_spelling_of_its_checksum() {
    let good = old_checkpoint(b"N", &[]);
    // The rest of the first record is a text that the pickle of the system drops.
    let head = [&old_head()[..], b"\x80\x02B", &600_u32.to_le_bytes(), &[0; 600], b"0N."].concat();
    let with = |field: &dyn Fn(i32) -> Vec<u8>, filler: &[u8]| {
        let mut file = [&head[..], &good[good.len() - 6..]].concat();
        file[200..200 + filler.len()].copy_from_slice(filler);
        let others = file[..512].iter().enumerate().filter(|(at, _)| !(148..156).contains(at));
        let sum = 256 + others.map(|(_, byte)| i32::from(*byte as i8)).sum::<i32>();
        file[148..156].copy_from_slice(&field(sum));
        file
    };
    let octal = |start: &'static str, end: &'static [u8]| {
        move |sum: i32| [format!("{start}{sum:05o}").as_bytes(), end].concat().iter().copied().take(8).collect()
    };
    // Makes the signed sum of all bytes zero.
    let zero = |field: &'static [u8; 8]| {
        let mut left = i32::from_str_radix(
            std::str::from_utf8(&with(&|sum| format!("{sum:08o}").into(), b"")[148..156]).unwrap(),
            8,
        )
        .unwrap();
        let filler = std::iter::from_fn(|| {
            let byte = left.min(128);
            left -= byte;
            (byte > 0).then_some((-byte) as i8 as u8)
        });
        let filler: Vec<u8> = filler.collect();
        with(
            &|sum| {
                assert_eq!(sum, 0);
                field.to_vec()
            },
            &filler,
        )
    };
    let files = [
        with(&octal("0", b"\0 "), b""),
        with(&octal("0o", b"\0"), b""),
        with(&octal("0O", b"\0"), b""),
        with(&octal("+0", b"\0"), b""),
        with(&octal("\x0b0", b"\0"), b""),
        with(&octal("\x1c0", b"\0"), b""),
        with(&octal("0", b"\x1f\0"), b""),
        with(&|sum| format!("0{:o}_{:o}\0\0", sum >> 3, sum & 7).into_bytes()[..8].to_vec(), b""),
        with(&|sum| [&[0x80][..], &i64::from(sum).to_be_bytes()[1..]].concat(), b""),
        with(&|sum| [&[0xff][..], &i64::from(sum).to_be_bytes()[1..]].concat(), &[0x80; 200]),
        with(&|sum| format!("-{:06o}\0", -sum).into_bytes(), &[0x80; 200]),
        zero(&[0; 8]),
        zero(b"        "),
        zero(b"-0\0     "),
    ];
    for file in files {
        let bench = Bench::new();
        bench.write("x.pt", &file);
        bench.run("inspect x.pt --fail-on code -q").says(1, "", "PyTorch");
    }
    let other = with(&|sum| format!("{:06o}\0 ", sum + 1).into_bytes(), b"");
    let bench = Bench::new();
    bench.write("x.pt", &other);
    assert_eq!(bench.run("inspect x.pt --fail-on code -q").code, Some(0));
}

#[test]
fn packed_files_are_found_wherever_readers_find_them() {
    let code = pickle(&run());
    let ends = "is not searched for code in full: a zip archive may end it";
    finds_beside("x.pkl.zip", &[b"text\n", &zip(&[("a", &code)], false)[..]].concat(), Some(ends));
    let bench = Bench::new();
    let model = fs::read(fixture("model.safetensors")).unwrap();
    // LZMA with a dictionary of 32 KiB.
    let lzma = [b"\x5d\0\x80\0\0", &[0xff; 8][..], &[0; 20]].concat();
    let unknown = "is not searched for code in full: is not a recognized tensor file";
    let (outcome, bench) = {
        let folder = folder();
        folder.write("m/x.pkl", &lzma);
        (folder.run("inspect m --fail-on code -q"), bench)
    };
    assert!(
        outcome.code == Some(3) && outcome.stderr.starts_with(&format!("tcast: error: m/x.pkl: {unknown}")),
        "{outcome:?}"
    );
    bench.write("x.safetensors", &model);
    finds(&bench, "x.safetensors", "x.safetensors", None);
}

/// Lines of a text are names of modules that nobody has, unless a file beside it has one of them.
#[test]
fn a_text_that_begins_like_a_pickle_is_one_if_it_can_import_a_module_from_its_folder() {
    for (name, text) in [
        ("labels.txt", "cat\ndog\n"),
        ("requirements.txt", "cffi\nnumpy\n"),
        ("vocab.txt", "c\nca\ncab\n"),
        ("modeling_x.py", "import os\nos.system(\"id\")\n"),
        ("LICENSE", "(c) 2024\nfoo\nbar\n"),
    ] {
        finds_beside(name, text.as_bytes(), None);
    }
    let named = Some("names code that is not known to be harmless: at.dog");
    for module in ["m/at.py", "m/at.cpython-311-x86_64-linux-gnu.so", "m/a/at.pyc", "at.py"] {
        let bench = folder();
        fs::create_dir(bench.path("m/a")).unwrap();
        bench.write("m/a/labels.txt", b"cat\ndog\n");
        bench.write(module, b"1");
        finds(&bench, "m", "m/a/labels.txt", named);
    }
    finds_beside("x.txt", b"cposix\nsystem\n(Vtrue\ntR.", Some(NAMED));
}

#[test]
fn only_what_git_compresses_is_left_out() {
    for name in [".git/x.pkl", "a/.git/objects/x.pkl", ".git/hooks/x"] {
        finds_beside(name, &pickle(&run()), Some(NAMED));
    }
    finds_beside(".git/objects/00/x", b"\x78\x01packed", None);
}
