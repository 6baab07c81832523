//! `tcast cast` with text on either side, as its users see it.

use crate::common::{Bench, npy, npy_data, npy_f32, zip};
use sha2::{Digest, Sha256};

/// An array of texts as numpy's `<U`, or `>U`.
fn texts(words: &[&str], big_endian: bool) -> Vec<u8> {
    let width = words.iter().map(|word| word.chars().count()).max().unwrap();
    let mut data = Vec::new();
    for word in words {
        let chars = word.chars().map(u32::from).chain(std::iter::repeat(0)).take(width);
        data.extend(chars.flat_map(|char| if big_endian { char.to_be_bytes() } else { char.to_le_bytes() }));
    }
    let order = if big_endian { '>' } else { '<' };
    npy(&format!("'{order}U{width}'"), &format!("({},)", words.len()), &data)
}

/// An ONNX tensor of texts named `t`.
fn onnx_texts(texts: &[&[u8]]) -> Vec<u8> {
    let mut file = vec![0x08, texts.len() as u8, 0x10, 8];
    for text in texts {
        file.extend_from_slice(&[0x32, text.len() as u8]);
        file.extend_from_slice(text);
    }
    file.extend_from_slice(b"\x42\x01t");
    file
}

#[test]
fn a_remedy_names_formats_that_hold_all_tensors() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.run("cast x.npy --to string -o t.npy -q").expect(0, "", "");
    bench.write("both.npz", &zip(&[("t.npy", &bench.read("t.npy")), ("x.npy", &bench.read("x.npy"))], false));
    for extension in ["safetensors", "npy", "pb"] {
        bench.run(&format!("cast both.npz --to f16 -o f.{extension}")).says(1, "", "npz");
    }
    bench.run("cast both.npz --to f16 -o f.npz -q").expect(0, "", "");
}

#[test]
fn numbers_become_the_shortest_digits() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.0, -0.0, 0.1, 1e-7, 123_456_789.0, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN]));
    let words = ["1", "-0", "0.1", "0.0000001", "123456790", "INF", "-INF", "NaN"];
    bench.run("cast x.npy --to string -q").expect(0, "", "");
    assert!(bench.read("x.string.npy") == texts(&words, false));
    bench.run("cast x.npy --to string -o t.pb -q --rename x=t").expect(0, "", "");
    assert!(bench.read("t.pb") == onnx_texts(&words.map(str::as_bytes)));
    bench.run("cast x.npy --to string -o t.npz -q").expect(0, "", "");
    bench.run("cast t.npz --to float32 --all -o back.npy -q").expect(0, "", "");
    let (before, after) = (bench.read("x.npy"), bench.read("back.npy"));
    let (numbers, nan) = after.split_at(after.len() - 4);
    assert!(numbers == &before[..numbers.len()]);
    assert_eq!(nan, [0, 0, 0xc0, 0x7f]); // NaN has no sign as text
}

#[test]
fn a_report_notices_changed_text_in_any_format() {
    let bench = Bench::new();
    bench.write("x.npy", &npy_f32(&[1.5, -2.0, 0.1]));
    bench.run("cast x.npy --to string -o s.npy -q --hash --report s.json").expect(0, "", "");
    let report: serde_json::Value = serde_json::from_slice(&bench.read("s.json")).unwrap();
    let sha256 =
        |data: &[u8]| Sha256::digest(data).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let hash = |number: &str| report["tensors"][0][number].as_str().unwrap().to_owned();
    assert_eq!(hash("sha256_in"), sha256(npy_data(&bench.read("x.npy"))));
    assert_eq!(hash("sha256_out"), sha256(b"\x32\x031.5\x32\x02-2\x32\x030.1"));
    for line in ["-o s.pb", "-o s.npz --hash --report again.json"] {
        bench.run(&format!("cast s.npy --to f16 --exclude * -q {line}")).expect(0, "", "");
    }
    for [report, path] in [["s.json", "s.npy"], ["s.json", "s.pb"], ["s.json", "s.npz"], ["again.json", "s.npy"]] {
        bench.run(&format!("diff --report {report} {path}")).expect(0, "1 tensor is as the report says\n", "");
    }
    bench.write("s.npy", &texts(&["1.5", "-3", "0.1"], false));
    let told = "  x  has other bytes than were written\n1 tensor: 0 as the report says, 1 not\n";
    bench.run("diff --report s.json s.npy").expect(1, told, "");
}

#[test]
fn text_becomes_numbers_rounded_once() {
    let bench = Bench::new();
    let words = ["1.00390625000000000001", " -2.5e0\t", "infinity", "1e400", "0x10"];
    for big_endian in [false, true] {
        bench.write("t.npy", &texts(&words[..4], big_endian));
        bench.run("cast t.npy --to bf16 -o x.npy -f").says(0, "", "infinite");
        assert_eq!(npy_data(&bench.read("x.npy")), [0x81, 0x3f, 0x20, 0xc0, 0x80, 0x7f, 0x80, 0x7f]);
    }
    bench.write("s.npy", &npy("'|S3'", "(2, 2)", b"7\0\0-1\x008.9300"));
    bench.run("cast s.npy --to int8 -q").expect(0, "", "");
    assert_eq!(npy_data(&bench.read("s.int8.npy")), [7, 0xff, 8, 44]);
    bench.write("b.npy", &texts(&["True", "false", "0.0", "nan"], false));
    bench.run("cast b.npy --to bool -q").expect(0, "", "");
    assert_eq!(npy_data(&bench.read("b.bool.npy")), [1, 0, 0, 1]);
}

#[test]
fn the_command_that_reads_numbers_from_text_works() {
    let bench = Bench::new();
    bench.write("s.npy", &texts(&["1", "2"], false));
    bench.write("s.npz", &zip(&[("s.npy", &bench.read("s.npy"))], false));
    for (input, all) in [("s.npy", ""), ("s.npz", " --all")] {
        let command = format!("cast '{input}' --to DTYPE{all}");
        bench.run(&format!("bitcast {input} --hex")).check_message("numbers");
        bench.run(&command.replace('\'', "").replace("DTYPE", "f32 -q")).expect(0, "", "");
    }
    bench.run("cast s.npz --to f32 --include zzz").check_message("--allow-unmatched");
}

#[test]
fn text_that_is_no_number_is_named_and_nothing_is_written() {
    let bench = Bench::new();
    bench.write("s.npy", &npy("'|S3'", "(2, 2)", b"7\0\0-1\x001_0300"));
    bench.run("cast s.npy --to f16").says(1, "", "--exclude");
    bench.run("cast s.npy --to bool").says(1, "", "--exclude");
    bench.write("t.pb", &onnx_texts(&[b"1", b"true"]));
    bench.run("cast t.pb --to int8").says(1, "", "--exclude");
    bench.write("r.npy", &npy("'|S3'", "(2,)", b"127128"));
    bench.run("cast r.npy --to int8 --out-of-range error").says(1, "", "--out-of-range");
    bench.write("u.npy", &npy("'<U1'", "(2,)", &[b'1', 0, 0, 0, 0, 0xd8, 0, 0]));
    bench.run("cast u.npy --to int8").says(1, "", "0xd800");
    assert_eq!(bench.files(), ["r.npy", "s.npy", "t.pb", "u.npy"]);
}

#[test]
fn text_that_stays_text_changes_its_form_only() {
    let bench = Bench::new();
    bench.write("t.npy", &texts(&["日本", "", "a\0b😀"], true));
    bench.run("cast t.npy --to string -o same.npy -q").expect(0, "", "");
    assert!(bench.read("same.npy") == texts(&["日本", "", "a\0b😀"], false));
    bench.run("cast t.npy --to string -o t.pb -q").expect(0, "", "");
    assert!(bench.read("t.pb") == onnx_texts(&["日本".as_bytes(), b"", "a\0b😀".as_bytes()]));
    bench.run("cast t.pb --to string -o back.npy -q").expect(0, "", "");
    assert!(bench.read("back.npy") == bench.read("same.npy"));
    bench.write("bytes.pb", &onnx_texts(&[b"\xff\xfe", b"ok"]));
    bench.run("cast bytes.pb --to string -o bytes.npy -q").expect(0, "", "");
    assert!(bench.read("bytes.npy") == npy("'|S2'", "(2,)", b"\xff\xfeok"));
}

#[test]
fn what_would_lose_text_is_refused() {
    let bench = Bench::new();
    bench.write("t.pb", &onnx_texts(&[b"a", b"b\0"]));
    bench.run("cast t.pb --to string -o t.npy").says(1, "", "NUL");
    bench.run("cast t.pb --to string -o t.safetensors").says(1, "", "safetensors");
    assert_eq!(bench.files(), ["t.pb"]);
}

#[test]
fn text_beside_floats_stays_as_it_is() {
    let bench = Bench::with("corpus/npz/stored.npz", "x.npz");
    let outcome = bench.run("cast x.npz --to f16 --json -q");
    assert_eq!(outcome.code, Some(0));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let cast: Vec<(&str, bool)> = report["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| (tensor["name"].as_str().unwrap(), tensor["cast"].as_bool().unwrap()))
        .collect();
    assert_eq!(cast, [("a", true), ("b", false), ("s", false), ("z", true), ("c", false)]);
}

#[test]
fn wide_texts_are_transposed_whole() {
    for width in [255, 256, 257, 300] {
        for order in ['<', '>'] {
            let text = |word: &'static str| {
                let chars = word.chars().map(u32::from).chain(std::iter::repeat(0)).take(width);
                chars.flat_map(move |char| if order == '<' { char.to_le_bytes() } else { char.to_be_bytes() })
            };
            let data: Vec<u8> = ["11", "21", "12", "22"].into_iter().flat_map(text).collect();
            let file = String::from_utf8_lossy(&npy(&format!("'{order}U{width}'"), "(2, 2)", &[])).into_owned();
            assert!(file.contains("'fortran_order': False"));
            let bench = Bench::new();
            let mut bytes = npy(&format!("'{order}U{width}'"), "(2, 2)", &data);
            let at = bytes.windows(5).position(|window| window == b"False").unwrap();
            bytes[at..at + 5].copy_from_slice(b"True ");
            bench.write("x.npy", &bytes);
            bench.run("cast x.npy --to string -o t.pb -q --rename x=t").expect(0, "", "");
            let wanted = [&[8, 2], &onnx_texts(&[b"11", b"12", b"21", b"22"])[..]].concat();
            assert_eq!(bench.read("t.pb"), [&[8, 2, 8, 2], &wanted[4..]].concat(), "{order}U{width}");
            bench.run("cast x.npy --to int8 -o n.pb -q").expect(0, "", "");
            assert!(bench.read("n.pb").ends_with(&[11, 12, 21, 22]), "{order}U{width}");
        }
    }
}

#[test]
fn a_power_of_two_reads_back_from_its_text_if_it_is_rounded_to_the_nearest() {
    let bench = Bench::new();
    let codes: Vec<u8> = (0..=255).collect();
    bench.write("x.npy", &npy("'|V1'", "(256,)", &codes));
    bench.run("cast x.npy --from e8m0 --to string -o t.pb -q").expect(0, "", "");
    bench.run("cast t.pb --to e8m0 --round-mode nearest -o near.npy -q").expect(0, "", "");
    assert_eq!(npy_data(&bench.read("near.npy")), codes);
    bench.run("cast t.pb --to e8m0 -o up.npy -q").expect(0, "", "");
    assert_ne!(npy_data(&bench.read("up.npy")), codes);
}
