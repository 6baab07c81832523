//! `tcast cast` between containers, as its users see it.

use crate::common::{Bench, as_on_linux, external_tensor, npy, npy_f32, safetensors, zip};
use std::fs;

const COPY: &str = "--to float32 --exclude * -q -f";

#[test]
fn archives_are_numpys_byte_for_byte() {
    for name in ["stored", "names", "tagged", "positional", "ml", "empty"] {
        let bench = Bench::with(&format!("corpus/npz/{name}.npz"), "in.npz");
        bench.run(&format!("cast in.npz {COPY} -o out.npz")).expect(0, "", "");
        assert!(bench.read("out.npz") == bench.read("in.npz"), "{name}");
    }
}

#[test]
fn a_deflated_archive_is_deflated_again() {
    let values: Vec<f32> = (0..300_000).map(|index| (index / 100) as f32).collect();
    let (long, pickle) = (npy_f32(&values), npy("'|O'", "(1,)", b"a pickle of any length"));
    let members: [(&str, &[u8]); 4] = [
        ("long.npy", &long),
        ("größe.npy", &npy_f32(&[1.5, -2.0])),
        ("pickle.npy", &pickle),
        ("empty.npy", &npy("'<f4'", "(0,)", &[])),
    ];
    let bench = Bench::new();
    let named = |name: &str, is_deflated: bool| {
        // The helper's names say no character set.
        let mut archive = zip(&members, is_deflated);
        for at in 0..archive.len() - 4 {
            match archive[at..at + 4] {
                [b'P', b'K', 3, 4] => archive[at + 7] |= 8,
                [b'P', b'K', 1, 2] => archive[at + 9] |= 8,
                _ => {}
            }
        }
        bench.write(name, &archive);
    };
    named("packed.npz", true);
    named("plain.npz", false);
    let report = |line: &str| -> serde_json::Value {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let cast = "--to f16 --exclude pickle --json -q";
    let plain = report(&format!("cast plain.npz {cast} --hash -o plain.out.npz"));
    let packed = report(&format!("cast packed.npz {cast} --hash -j1 -o 1.npz"));
    report(&format!("cast packed.npz {cast} -j2 -o 2.npz"));
    let (one, stored) = (bench.read("1.npz"), bench.read("plain.out.npz"));
    assert!(one == bench.read("2.npz"), "two threads write other bytes");
    assert!(one.len() < stored.len() / 10, "{} of {} bytes", one.len(), stored.len());
    let methods = |archive: &[u8]| -> Vec<u8> {
        let headers = archive.windows(11).filter(|bytes| bytes.starts_with(b"PK\x01\x02"));
        headers.map(|header| header[10]).collect()
    };
    assert_eq!((methods(&one), methods(&stored)), (vec![8; 4], vec![0; 4]));

    // What is in it is what the stored one has, and what the report says.
    let hashes = |report: &serde_json::Value| -> Vec<serde_json::Value> {
        report["tensors"].as_array().unwrap().iter().map(|tensor| tensor["sha256_out"].clone()).collect()
    };
    assert_eq!(hashes(&packed), hashes(&plain));
    assert!(hashes(&packed).iter().all(serde_json::Value::is_string));
    assert_eq!((&packed["bytes_out"], &packed["files"][0]["bytes"]), (&one.len().into(), &one.len().into()));
    assert!(packed["tensors"][0]["bytes_out"].as_u64() < plain["tensors"][0]["bytes_out"].as_u64());
    bench.run("diff 1.npz plain.out.npz --exclude pickle").expect(0, "3 tensors are equal\n", "");
    report("cast 1.npz --to f32 --exclude * --json -q -o again.npz");
    assert!(bench.read("again.npz") == one, "a second time it is the same");
    for (program, arguments) in [("unzip", &["-tq"][..]), ("python3", &["-m", "zipfile", "-t"])] {
        let tested = std::process::Command::new(program).args(arguments).arg(bench.path("1.npz")).output();
        let tested = tested.ok().filter(|tested| tested.status.code() != Some(127)); // which may be missing
        assert!(tested.as_ref().is_none_or(|tested| tested.status.success()), "{tested:?}");
    }

    // What is promoted too.
    report("promote packed.npz -o promoted.npz --tensor long --tensor größe --json -q");
    let promoted = bench.read("promoted.npz");
    assert_eq!(methods(&promoted), vec![8; 4]);
    assert!(promoted.len() < bench.read("plain.npz").len() / 10, "{} bytes", promoted.len());
    bench.run("diff promoted.npz plain.npz --exclude pickle").expect(0, "3 tensors are equal\n", "");

    // Nothing is deflated where nothing is written, and what is refused leaves nothing behind.
    let files = bench.files();
    let told = bench.run("cast packed.npz --to f16 --exclude pickle -n -o dry.npz").stderr;
    assert!(told.contains(" before it is deflated\n"), "{told}");
    let measured = report(&format!("cast packed.npz {cast} -n --stats -o dry.npz"));
    assert_eq!(measured["bytes_out"], stored.len());
    let refused = bench.run("cast packed.npz --to e4m3 --exclude pickle --fail-on saturated -q -o dry.npz");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let piped = bench.run("cast packed.npz --to f16 --exclude pickle -q -o -");
    assert!(piped.code == Some(1) && piped.stderr.contains("a pipe takes bytes in order only"), "{piped:?}");
    assert_eq!(bench.files(), files);
}

#[test]
fn any_number_of_threads_writes_the_same_archive() {
    let bench = Bench::new();
    let values: Vec<f32> = (0..3_000_000).map(|index| (index as f32).sin()).collect();
    bench.write("x.npy", &npy_f32(&values));
    for threads in [1, 2, 5] {
        bench.run(&format!("cast x.npy --to f16 -j{threads} -o {threads}.npz -q")).expect(0, "", "");
        bench.run(&format!("cast {threads}.npz {COPY} -j{threads} -o {threads}.npy")).expect(0, "", "");
        assert!(bench.read(&format!("{threads}.npz")) == bench.read("1.npz"), "{threads} threads");
    }
    bench.run("cast x.npy --to f16 -o y.npy -q").expect(0, "", "");
    assert!(bench.read("5.npy") == bench.read("y.npy"));
}

#[test]
fn a_damaged_archive_is_noticed_and_nothing_is_written() {
    for name in ["ml", "deflated"] {
        let bench = Bench::with(&format!("corpus/npz/{name}.npz"), "in.npz");
        let mut bytes = bench.read("in.npz");
        let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        bytes[directory - 3] ^= 0x40; // in the data of the last member
        bench.write("in.npz", &bytes);
        for extension in ["npz", "safetensors"] {
            let outcome = bench.run(&format!("cast in.npz --to f16 -o out.{extension} -q"));
            assert_eq!(outcome.code, Some(1), "{name} to {extension}");
            assert!(outcome.stderr.starts_with("tcast: error: in.npz: tensor '"), "{}", outcome.stderr);
            assert!(outcome.stderr.contains("': is damaged: "), "{}", outcome.stderr);
            assert_eq!(bench.files(), ["in.npz"]);
        }
    }
}

#[test]
fn a_zip64_record_counts_with_all_its_64_bits() {
    let stored = Bench::with("corpus/npz/stored.npz", "in.npz").read("in.npz");
    let (before, end) = stored.split_at(stored.len() - 22);
    let number = |at: usize| u64::from(u32::from_le_bytes(*end[at..].first_chunk().unwrap()));
    let (count, length, start) = (number(8) & 0xffff, number(12), number(16));
    let with_record_at = |offset: u64| {
        let mut record = [b"PK\x06\x06".as_slice(), &44_u64.to_le_bytes(), &[45, 0, 45, 0], &[0; 8]].concat();
        record.extend([count, count, length, start].map(u64::to_le_bytes).concat());
        let locator = [b"PK\x06\x07".as_slice(), &[0; 4], &offset.to_le_bytes(), &[1, 0, 0, 0]].concat();
        [before, &record, &locator, end].concat()
    };
    let bench = Bench::new();
    bench.write("in.npz", &with_record_at(before.len() as u64));
    bench.run("cast in.npz --to f16 -o out.npz -q").expect(0, "", "");
    // 32 bits of these are the same.
    bench.write("in.npz", &with_record_at(before.len() as u64 + (1 << 32)));
    let message = "tcast: error: in.npz: malformed zip archive: its zip64 record is not where it should be\n";
    bench.run("cast in.npz --to f16 -f -o out.npz -q").expect(1, "", message);
}

#[test]
fn what_is_no_array_is_left_out_and_told() {
    let bench = Bench::with("corpus/npz/extra_member.npz", "in.npz");
    let outcome = bench.run("cast in.npz --to f16 -o out.safetensors");
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stderr.starts_with("tcast: warning: 'README.txt' is not an array and is left out\n"));
    let bench = Bench::with("model.safetensors", "in.safetensors");
    let outcome = bench.run("cast in.safetensors --to f16 -o out.npz");
    assert_eq!(outcome.code, Some(0));
    let warning = "tcast: warning: the metadata is left out: a .npz file has no place for it\n";
    assert!(outcome.stderr.starts_with(warning), "{}", outcome.stderr);
}

#[test]
fn metadata_goes_with_the_tensor_where_both_formats_have_it() {
    let bench = Bench::with("corpus/onnx/float32_doc_metadata.pb", "in.pb");
    bench.run(&format!("cast in.pb {COPY} -o x.safetensors")).expect(0, "", "");
    let header = String::from_utf8_lossy(&bench.read("x.safetensors")).into_owned();
    assert!(header.contains(r#""__metadata__":{"format":"pt","doc_string":""#), "{header}");
    bench.run(&format!("cast x.safetensors {COPY} -o back.pb")).expect(0, "", "");
    bench.run(&format!("cast in.pb {COPY} -o again.pb")).expect(0, "", "");
    assert!(bench.read("back.pb") == bench.read("again.pb"));
    assert!(String::from_utf8_lossy(&bench.read("back.pb")).contains("doc"));
}

#[test]
fn external_data_is_read_from_the_tensors_folder_only() {
    let bench = Bench::new();
    let file = |location: &str| external_tensor(&[("location", location), ("offset", "4")]);
    fs::create_dir_all(bench.path("model/weights")).unwrap();
    let data: Vec<u8> = [9.0_f32, 1.5, -2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.write("model/weights/w.bin", &data);
    bench.write("secret.bin", &data);
    bench.write("model/x.pb", &file("weights/w.bin"));
    bench.run("cast model/x.pb --to f32 -o x.npy -q").expect(0, "", "");
    assert!(bench.read("x.npy") == npy_f32(&[1.5, -2.0]));
    let absolute = bench.path("secret.bin").to_str().unwrap().to_owned();
    let of_windows = cfg!(windows).then_some("C:\\secret.bin");
    for location in ["../secret.bin", "weights/../../secret.bin", &absolute, ""].into_iter().chain(of_windows) {
        bench.write("model/x.pb", &file(location));
        let outcome = bench.run("cast model/x.pb --to f32 -o y.npy -q");
        let message = as_on_linux(&format!("tensor 'x': its external data '{location}' is not in the tensor's folder"));
        assert_eq!(outcome.code, Some(1));
        assert!(outcome.stderr.contains(&message), "{}", outcome.stderr);
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(bench.path("secret.bin"), bench.path("model/link.bin")).unwrap();
        bench.write("model/x.pb", &file("link.bin"));
        let outcome = bench.run("cast model/x.pb --to f32 -o y.npy -q");
        let message = "its external data 'link.bin' is a symbolic link, and is never followed";
        assert!(outcome.code == Some(1) && outcome.stderr.contains(message), "{}", outcome.stderr);
    }
    bench.write("model/x.pb", &file("missing.bin"));
    let outcome = bench.run("cast model/x.pb --to f32 -o y.npy -q");
    assert!(
        outcome.stderr.contains("cannot read its external data 'missing.bin': no such file or directory"),
        "{}",
        outcome.stderr
    );
    for key in ["location", "offset", "length", "note"] {
        bench.write("model/x.pb", &external_tensor(&[("location", "weights/w.bin"), (key, "4"), (key, "4")]));
        let outcome = bench.run("cast model/x.pb --to f32 -o y.npy -q");
        let message = format!("tensor 'x': its external data has the key '{key}' twice");
        assert!(outcome.code == Some(1) && outcome.stderr.contains(&message), "{}", outcome.stderr);
    }
    #[cfg(unix)]
    {
        // A link to a folder, a folder, and a pipe that nobody writes to.
        std::os::unix::fs::symlink("weights", bench.path("model/links")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(bench.path("model/pipe")).status().unwrap();
        assert!(pipe.success());
        for (location, what) in [
            ("links/w.bin", "is a symbolic link, and is never followed"),
            ("weights", "is not a file"),
            ("pipe", "is not a file"),
        ] {
            bench.write("model/x.pb", &file(location));
            let outcome = bench.run("cast model/x.pb --to f32 -o y.npy -q");
            let message = format!("tensor 'x': its external data '{location}' {what}");
            assert!(outcome.code == Some(1) && outcome.stderr.contains(&message), "{}", outcome.stderr);
        }
    }
    // Neither the tensor nor its data is ever written over.
    bench.write("model/x.pb", &file("weights/w.bin"));
    let outcome = bench.run("cast model/x.pb --to f32 -o model/weights/w.bin -q -f");
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert_eq!(bench.read("model/weights/w.bin"), data);
}

#[test]
fn messages_that_are_named_as_others_are_recognised() {
    let bench = Bench::new();
    // ir_version 10, graph {}, opset_import {version: 21}
    bench.write("m.pb", &[0x08, 10, 0x3a, 0, 0x42, 2, 0x10, 21]);
    bench.run("cast m.pb --to f16").expect(
        1,
        "",
        "tcast: error: m.pb: is a .onnx file by its content, and named as a .pb file\n  mv -n 'm.pb' 'm.onnx'\n",
    );
    // dims 1, FLOAT, raw_data
    bench.write("x.onnx", &[0x08, 1, 0x10, 1, 0x4a, 4, 0, 0, 0, 0]);
    bench.run("cast x.onnx --to f16").expect(
        1,
        "",
        "tcast: error: x.onnx: is an ONNX tensor (TensorProto), not a model\n  mv -n 'x.onnx' 'x.pb'\n",
    );
}

#[test]
fn a_file_that_is_named_as_another_format_is_refused() {
    let bench = Bench::new();
    bench.write("x.safetensors", &npy_f32(&[1.0]));
    bench.run("cast x.safetensors --to f16").expect(
        1,
        "",
        "tcast: error: x.safetensors: is a .npy file by its content, and named as a .safetensors file\n  \
         mv -n 'x.safetensors' 'x.npy'\n",
    );
    bench.write("x", &npy_f32(&[1.0]));
    bench.run("cast x --to f16 -q").expect(0, "", "");
    assert_eq!(bench.files(), ["x", "x.float16", "x.safetensors"]);
}

#[test]
fn tensors_get_new_names() {
    let two = |a: &str, b: &str| {
        let entry = |name: &str, at: u8| {
            format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{at},{}]}}", at + 1)
        };
        let mut header = format!("{{{},{}}}", entry(a, 0), entry(b, 1));
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        safetensors(&header, &[1, 2])
    };
    let bench = Bench::new();
    bench.write("x.safetensors", &two("a", "b"));
    bench.run("cast x.safetensors --to u8 --rename a=b --rename b=a -o y.safetensors -q").expect(0, "", "");
    assert!(bench.read("y.safetensors") == two("b", "a"));
    let refused = |flags: &str, message: &str| {
        let outcome = bench.run(&format!("cast x.safetensors --to u8 {flags} -o z.safetensors"));
        assert_eq!((outcome.code, outcome.stderr), (Some(1), format!("tcast: error: x.safetensors: {message}\n")));
    };
    refused("--rename a=b", "tensor 'b': two tensors would have this name: 'a' and 'b'");
    let missing = "tcast: error: x.safetensors: there is no tensor 'c' to rename\n  there are a, b\n";
    bench.run("cast x.safetensors --to u8 --rename c=d -o z.safetensors").expect(2, "", missing);
    // This is reported before tensors that cannot be converted.
    bench.write("c.safetensors", &safetensors(r#"{"a":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}}"#, &[0; 8]));
    let missing = "tcast: error: c.safetensors: there is no tensor 'c' to rename\n  there is a\n";
    bench.run("cast c.safetensors --rule a=f32 --rename c=d -o z.safetensors").expect(2, "", missing);
    refused("--rename a=c --rename a=d", "tensor 'a': is renamed twice");
    assert_eq!(bench.run("cast x.safetensors --to u8 --rename a").code, Some(2));
    let empty = "tcast: error: invalid value 'a=' for '--rename <OLD=NEW>': the new name is empty\n\nFor more information, try '--help'.\n";
    bench.run("cast x.safetensors --to u8 --rename a=").expect(2, "", empty);
    // A .npy file gives its tensor no name: its own stands in.
    bench.write("v.npy", &npy_f32(&[1.0]));
    bench.run("cast v.npy --to f32 --rename v=weight -o v.safetensors -q").expect(0, "", "");
    assert!(String::from_utf8_lossy(&bench.read("v.safetensors")).contains("\"weight\""));
}

#[cfg(target_os = "linux")]
#[test]
fn an_archive_does_not_go_through_a_pipe() {
    let bench = Bench::with("corpus/npz/stored.npz", "in.npz");
    let outcome = bench.run("cast in.npz --to f16 -o /dev/stdout -q");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(
        outcome
            .stderr
            .contains("a pipe takes bytes in order only\n  name a file, or an output that ends in .safetensors"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn an_array_of_unknown_type_is_copied_as_what_from_says() {
    let bench = Bench::with("untyped_e4m3fn.npy", "x.npy");
    let outcome = bench.run("cast x.npy --to f32 --exclude x -o y.safetensors -q");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("say it with --from DTYPE: "), "{}", outcome.stderr);
    bench.run("cast x.npy --to f32 --exclude x --from e4m3 -o y.safetensors -q").expect(0, "", "");
    assert!(String::from_utf8_lossy(&bench.read("y.safetensors")).contains(r#""x":{"dtype":"F8_E4M3""#));
}

#[test]
fn floats_of_a_typed_field_are_read_in_any_mixture_of_forms() {
    let bench = Bench::new();
    let float = |value: f32| value.to_le_bytes();
    let one = |value| [&[0x25][..], &float(value)].concat();
    let two = |a, b| [&[0x22, 8][..], &float(a), &float(b)].concat();
    let mixtures = [
        [two(1.0, 2.0), one(3.0)].concat(),
        [one(1.0), two(2.0, 3.0)].concat(),
        [one(1.0), one(2.0), one(3.0)].concat(),
        [two(1.0, 2.0), vec![0x22, 0], one(3.0)].concat(),
    ];
    for mixture in mixtures {
        bench.write("x.pb", &[&[0x08, 3, 0x10, 1], &mixture[..], b"\x42\x01x"].concat());
        bench.run("cast x.pb --to f32 -o x.npy -q -f").expect(0, "", "");
        assert!(bench.read("x.npy") == npy_f32(&[1.0, 2.0, 3.0]));
    }
    // A number that is cut off behind the last whole one.
    bench.write("x.pb", &[0x08, 1, 0x10, 6, 0x2a, 2, 5, 0x80]);
    let outcome = bench.run("cast x.pb --to f32 -o y.npy -q");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("its int32_data ends inside a value"), "{outcome:?}");
}

#[test]
fn a_file_without_tensors_keeps_its_metadata() {
    let bench = Bench::new();
    let file = crate::common::safetensors(r#"{"__metadata__":{"format":"pt","epoch":"3"}}    "#, &[]);
    bench.write("none.safetensors", &file);
    bench.run("cast none.safetensors --to float16 -q").expect(0, "", "");
    assert_eq!(bench.read("none.float16.safetensors"), file);
}

#[test]
fn shards_with_different_metadata_give_a_warning_when_they_are_merged() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("m")).unwrap();
    for (number, name, more) in [(1, "a", "1"), (2, "b", "2")] {
        let metadata = format!(r#"{{"format":"pt","k":"{more}","only{number}":"x"}}"#);
        let tensor = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
        let shard = crate::common::safetensors(&format!(r#"{{"__metadata__":{metadata},"{name}":{tensor}}}"#), &[0; 4]);
        bench.write(&format!("m/model-0000{number}-of-00002.safetensors"), &shard);
    }
    let index = r#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    bench.write("m/model.safetensors.index.json", index.as_bytes());
    let warning = "tcast: warning: the inputs have different values of the metadata key 'k': each output keeps that of its first input\n";
    let outcome = bench.run("cast m --to f16 -o one.safetensors");
    assert!(outcome.code == Some(0) && outcome.stderr.starts_with(warning), "{outcome:?}");
    assert_eq!(outcome.stderr.matches("warning").count(), 1);
    let merged = r#"{"__metadata__":{"format":"pt","k":"1","only1":"x","only2":"x"},"#;
    assert!(String::from_utf8_lossy(&bench.read("one.safetensors")).contains(merged));
    bench.run("cast m --to f16 -o same -q").expect(0, "", "");
    for line in ["cast m --to f16 -o shards", "cast m --to f16 -o one.npz"] {
        let outcome = bench.run(line);
        assert!(outcome.code == Some(0) && !outcome.stderr.contains("different values"), "{outcome:?}");
    }
}

#[test]
fn metadata_that_cannot_go_along_is_refused() {
    // INT8, raw_data 12, metadata_props
    let file = |pairs: &[(&str, &str)]| {
        let mut file = vec![0x08, 1, 0x10, 3, 0x4a, 1, 12];
        for (key, value) in pairs {
            let pair =
                [&[0x0a, key.len() as u8], key.as_bytes(), &[0x12, value.len() as u8], value.as_bytes()].concat();
            file.extend_from_slice(&[0x82, 0x01, pair.len() as u8]);
            file.extend_from_slice(&pair);
        }
        file
    };
    let bench = Bench::new();
    let cases = [
        (&[("tcast", "{}")][..], "metadata 'tcast' is a name that tcast keeps for itself here"),
        (&[("a", "1"), ("a", "2")], "metadata 'a' appears twice"),
    ];
    for (pairs, message) in cases {
        bench.write("x.pb", &file(pairs));
        bench.run("cast x.pb --to i8 -o x.safetensors").expect(1, "", &format!("tcast: error: x.pb: {message}\n"));
        bench.run("cast x.pb --to i8 -o same.pb -q -f").expect(0, "", "");
        assert!(bench.read("same.pb") == file(pairs));
    }
    bench.write("x.pb", &file(&[("doc_string", "?")]));
    let outcome = bench.run("cast x.pb --to i8 -o y.pb");
    assert!(outcome.stderr.contains("a metadata property is named doc_string, as a field is"), "{outcome:?}");
}

#[test]
fn an_empty_array_is_checked_like_any_other() {
    let bench = Bench::with("corpus/npz/stored.npz", "x.npz");
    let mut bytes = bench.read("x.npz");
    let header = bytes.windows(6).rposition(|window| window == b"(0, 2)").unwrap();
    bytes[header + 20] = b'\t'; // among the spaces behind the shape
    bench.write("x.npz", &bytes);
    let outcome = bench.run("cast x.npz --to f16");
    assert!(outcome.stderr.contains("tensor 'z': is damaged: its checksum is wrong"), "{outcome:?}");
}

#[test]
fn a_nameless_tensor_gets_its_files_name_where_it_needs_one() {
    let bench = Bench::with("corpus/onnx/float32_no_name.pb", "weights.pb");
    for (output, is_named) in [("x.pb", false), ("x.safetensors", true), ("x.npz", true)] {
        bench.run(&format!("cast weights.pb {COPY} -o {output}")).expect(0, "", "");
        assert_eq!(String::from_utf8_lossy(&bench.read(output)).contains("weights"), is_named, "{output}");
    }
}

#[test]
fn a_new_name_is_refused_where_the_output_has_no_place_for_it() {
    let bench = Bench::with("corpus/onnx/float32_no_name.pb", "weights.pb");
    let message = "tcast: error: weights.pb: tensor 'weights': cannot be renamed: a .npy file has no place for a name
  name an output that ends in .npz, .safetensors or .pb, or leave --rename out\n";
    bench.run("cast weights.pb --to f32 --rename weights=w -o x.npy").expect(2, "", message);
    assert_eq!(bench.files(), ["weights.pb"]);
}

#[test]
fn an_archive_of_empty_arrays_only_has_their_checksums() {
    let bench = Bench::with("empty_f32.npy", "x.npy");
    bench.run("cast x.npy --to f16 -o x.npz -q").expect(0, "", "");
    let archive = bench.read("x.npz");
    let [start, end] = [&b"\x93NUMPY"[..], b"PK\x01\x02"]
        .map(|mark| archive.windows(mark.len()).position(|bytes| bytes == mark).unwrap());
    let sum = crc32fast::hash(&archive[start..end]).to_le_bytes();
    assert_eq!((&archive[14..18], &archive[end + 16..end + 20]), (&sum[..], &sum[..]), "local header, directory");
}

#[test]
fn an_array_of_an_unsupported_type_comes_with_how_numpy_saves_another() {
    let bench = Bench::new();
    for (descr, what, remedy) in [
        (
            "'<f16'",
            "'<f16'",
            "save it with numpy in a type that tcast reads: np.save(\"new.npy\", array.astype(\"float64\"))",
        ),
        (
            "'<c32'",
            "'<c32'",
            "save it with numpy in a type that tcast reads: np.save(\"new.npy\", array.astype(\"complex128\"))",
        ),
        (
            "'<M8[s]'",
            "'<M8[s]' (dates)",
            "save it with numpy in a type that tcast reads: np.save(\"new.npy\", array.astype(\"int64\"))",
        ),
    ] {
        bench.write(
            "x.npy",
            &npy(
                descr,
                "(1,)",
                &[0; 32][..if descr.contains("M8") {
                    8
                } else if descr.contains('c') {
                    32
                } else {
                    16
                }],
            ),
        );
        let message = format!("tcast: error: x.npy: unsupported dtype {what}\n  {remedy}\n");
        bench.run("cast x.npy --to f16").expect(1, "", &message);
    }
}

#[test]
fn remedies_name_a_tensor_so_that_the_program_takes_them() {
    let bench = Bench::new();
    let wide = npy("'<f16'", "(1,)", &[0; 16]);
    bench.write("x.npz", &zip(&[("-n.npy", &wide), ("w.npy", &npy_f32(&[1.5]))], false));
    let message =
        "tcast: error: x.npz: tensor '-n': unsupported dtype '<f16'\n  copy it as it is with --exclude='-n'\n";
    bench.run("cast x.npz --to f16 -o y.npz").expect(1, "", message);
    bench.run("cast x.npz --to f16 -o y.npz -q --exclude=-n").expect(0, "", "");
    bench.write("x.npz", &zip(&[("-n.npy", &npy_f32(&[1.5])), ("w.npy", &npy_f32(&[1.5]))], false));
    let outcome = bench.run("cast x.npz --to int8 -o z.npz --fail-on inexact");
    assert!(outcome.code == Some(3) && outcome.stderr.contains("--rule='-n=keep' --rule 'w=keep'"), "{outcome:?}");
    bench.run("cast x.npz --to int8 -o z.npz --fail-on inexact -q --rule=-n=keep --rule w=keep").expect(0, "", "");
    let message = "tcast: error: x.npz: contains 2 tensors; choose one\n  --tensor=NAME, one of -n, w\n";
    bench.run("bitcast x.npz --hex").expect(2, "", message);
    bench.run("bitcast x.npz --hex --tensor=-n").expect(0, "0  3fc00000\n", "");
}

#[test]
fn a_tensor_of_an_unsupported_type_is_copied_when_it_is_left_out() {
    let wide = npy("'<f16'", "(2,)", &[7; 32]);
    let pickle = npy("'|O'", "(1,)", b"a pickle of any length");
    let record = npy("[('a', '<f4'), ('b', '<i8')]", "(1,)", &[9; 12]);
    let members: [(&str, &[u8]); 4] =
        [("wide.npy", &wide), ("w.npy", &npy_f32(&[1.5, -2.0])), ("pickle.npy", &pickle), ("record.npy", &record)];
    for is_deflated in [false, true] {
        let bench = Bench::new();
        bench.write("x.npz", &zip(&members, is_deflated));
        bench.run("cast x.npz --to f16 -q").expect(
            1,
            "",
            "tcast: error: x.npz: tensor 'wide': unsupported dtype '<f16'\n  copy it as it is with --exclude 'wide'\n",
        );
        bench.run("cast x.npz --to f16 -q --exclude wide --exclude record").expect(
            1,
            "",
            "tcast: error: x.npz: tensor 'pickle': unsupported dtype '|O' (Python objects in a pickle, which can run \
             code and is never opened)\n  copy it as it is with --exclude 'pickle'\n",
        );
        bench.run("cast x.npz --to f16 -q --include w -o y.safetensors").expect(
            1,
            "",
            "tcast: error: x.npz: tensor 'wide': unsupported dtype '<f16', which can be copied into a .npz file only\n  \
             name an output that ends in .npz\n",
        );
        for line in ["--include w", "--exclude wide --rule record=keep --exclude p*"] {
            let outcome = bench.run(&format!("cast x.npz --to f16 --hash --json -q -f -o y.npz {line}"));
            assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{outcome:?}");
            let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            let tensor = &report["tensors"][0];
            assert_eq!((&tensor["stored"], &tensor["cast"]), (&"<f16".into(), &false.into()), "{tensor}");
            assert_eq!(tensor["sha256_in"], tensor["sha256_out"]);
            // The members are whole and where they were.
            let members: [(&str, &[u8]); 4] = [
                ("wide.npy", &wide),
                ("w.npy", &npy("'<f2'", "(2,)", &[0, 0x3e, 0, 0xc0])),
                ("pickle.npy", &pickle),
                ("record.npy", &record),
            ];
            bench.write("expected.npz", &zip(&members, is_deflated));
            bench.run("cast expected.npz --to f64 --exclude * -q -f -o expected.float64.npz").expect(0, "", "");
            assert!(bench.read("y.npz") == bench.read("expected.float64.npz"));
        }
        let listed = bench.run("inspect x.npz");
        assert!(listed.code == Some(0) && listed.stdout.contains("unsupported  [2]"), "{listed:?}");
    }
    // A member that is damaged is not copied.
    let bench = Bench::new();
    let mut damaged = zip(&members, false);
    let at = damaged.windows(8).position(|bytes| bytes == b"a pickle").unwrap();
    damaged[at] ^= 1;
    bench.write("x.npz", &damaged);
    let outcome = bench.run("cast x.npz --to f16 --include w -q");
    outcome.expect(1, "", "tcast: error: x.npz: tensor 'pickle': is damaged: its checksum is wrong\n");
    // The same of a type that a later version of safetensors may have.
    let header = r#"{"a":{"dtype":"F7_E\"","shape":[3],"data_offsets":[4,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    bench.write("x.safetensors", &safetensors(header, &[0, 0, 0xc0, 0x3f, 1, 2, 3, 4]));
    bench.run("cast x.safetensors --to f16 -q").expect(
        1,
        "",
        "tcast: error: x.safetensors: tensor 'a': unsupported dtype 'F7_E\"'\n  copy it as it is with --exclude 'a'\n",
    );
    bench.run("cast x.safetensors --to f16 -q --exclude a -o y.safetensors").expect(0, "", "");
    let written = bench.read("y.safetensors");
    let header = r#"{"a":{"dtype":"F7_E\"","shape":[3],"data_offsets":[0,4]},"w":{"dtype":"F16","shape":[1],"data_offsets":[4,6]}}"#;
    assert!(String::from_utf8_lossy(&written).contains(header), "{}", String::from_utf8_lossy(&written));
    assert!(written.ends_with(&[1, 2, 3, 4, 0, 0x3e]));
}

#[test]
fn a_copied_tensor_of_an_unsupported_type_is_found_where_it_was_written() {
    let bench = Bench::new();
    let header =
        r#"{"a":{"dtype":"F7","shape":[3],"data_offsets":[4,8]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/model.safetensors", &safetensors(header, &[0, 0, 0xc0, 0x3f, 1, 2, 3, 4]));
    bench.run("cast m --to f16 --exclude a -o out --hash --report r.json -q").expect(0, "", "");
    bench.run("diff --report r.json out").expect(0, "2 tensors are as the report says\n", "");
    bench.run("cast m --to f16 --exclude a -o out --resume").expect(0, "", "already complete: out\n");
    let outcome = bench.run("cast m --to f32 --include w -o out --resume");
    let what = "is not what this command writes: tensor 'w' is float16 there, and would be float32\n";
    assert!(outcome.code == Some(4) && outcome.stderr.contains(what), "{outcome:?}");
}

#[test]
fn remedies_for_arrays_that_cannot_be_read_work_in_numpy() {
    let bench = Bench::new();
    bench.write("x.npy", &npy("[('a', '<f4'), ('b', '<i4')]", "(1,)", &[0; 8]));
    bench.run("cast x.npy --to f16").expect(
        1,
        "",
        "tcast: error: x.npy: unsupported dtype 'a <f4 b <i4'\n  \
         save each field with numpy as an array of its own: np.save(\"field.npy\", array[\"field\"])\n",
    );
    let mut archive = zip(&[("x.npy", &npy_f32(&[1.0]))], false);
    archive[6] |= 1; // encrypted
    let directory = archive.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    archive[directory + 8] |= 1;
    bench.write("e.npz", &archive);
    bench.run("cast e.npz --to f16").expect(
        1,
        "",
        "tcast: error: e.npz: tensor 'x': is encrypted; stored and deflated members are read\n  \
         unpack it with another program, such as 7z, and convert the .npy files\n",
    );
}
