//! Files and folders that people give in place of tensor files.

use crate::common::{Bench, safetensors, shard};
use std::fs;

#[test]
fn a_text_or_another_format_in_place_of_a_tensor_file_is_named() {
    let text =
        |line: &str| format!("is text, not a tensor file; it begins with '{line}'\n  download the file itself\n");
    let html = "is an HTML page, not a tensor file\n  download the file itself\n".to_owned();
    let json = "is JSON, not a tensor file\n  download the file itself\n".to_owned();
    let xml = "is an XML document, not a tensor file\n  download the file itself\n".to_owned();
    let pointer = "is a git-lfs pointer, not the file itself\n  git -C '.' lfs pull\n".to_owned();
    let ggml =
        "is a GGML file, the format of llama.cpp before GGUF, which tcast does not read\n  download the model as \
                a .gguf or .safetensors file\n"
            .to_owned();
    let zeros = "begins with zeros, as a file that was not downloaded completely\n  download it again\n".to_owned();
    let compressed = |with: &str| format!("is compressed with {with}\n  decompress it first\n");
    let bench = Bench::new();
    for (bytes, message) in [
        (&b"Entry not found"[..], text("Entry not found")),
        (b"Entry not found\n", text("Entry not found")),
        (b"\xef\xbb\xbf\r\nInvalid username or password.\r\n", text("Invalid username or password.")),
        (b"404: Not Found", text("404: Not Found")),
        ("Repository is gated: \u{e9}".as_bytes(), text("Repository is gated: \u{e9}")),
        (b"<!doctype html>\n<html>", html.clone()),
        (b"\n  <!DOCTYPE HTML PUBLIC", html.clone()),
        (b"<HTML><body>", html),
        (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", xml),
        (b"{\"error\":\"Repository not found\"}", json.clone()),
        (b"\n {\"weight_map\": {}}", json),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", pointer.clone()),
        (b"version https://hawser.github.com/spec/v1\noid sha256:0\nsize 1\n", pointer),
        (b"lmgg\x01\0\0\0\0\0\0\0", ggml.clone()),
        (b"fmgg\x01\0\0\0\0\0\0\0", ggml.clone()),
        (b"tjgg\x03\0\0\0\0\0\0\0", ggml.clone()),
        (b"algg\x01\0\0\0\0\0\0\0", ggml),
        (&[0; 8], zeros.clone()),
        (&[0; 5000], zeros),
        (b"\xfd7zXZ\0\0\x04", compressed("xz")),
        (b"BZh91AY&SY", compressed("bzip2")),
        (b"\x28\xb5\x2f\xfd\0\0", compressed("zstd")),
    ] {
        for name in ["x.safetensors", "x.bin", "x"] {
            bench.write(name, bytes);
            let message = format!("tcast: error: {name}: {message}");
            for line in ["cast NAME --to f16 -o out.npy", "inspect NAME"] {
                bench.run(&line.replace("NAME", name)).expect(1, "", &message);
            }
        }
    }
    // A folder with such a file says the same.
    fs::create_dir(bench.path("in")).unwrap();
    bench.write("in/model.safetensors", b"Entry not found");
    bench.run("cast in --to f16 -o out").says(1, "", "found");
    // Long text is shortened, also in the middle of a character.
    bench.write("x.safetensors", format!("a{}", "\u{e9}".repeat(400)).as_bytes());
    bench.run("cast x.safetensors --to f16").says(1, "", "tensor");
    // Bytes that are not text.
    bench.write("x.safetensors", b"Entry\x01\xff");
    bench.run("cast x.safetensors --to f16").says(1, "", "safetensors");
}

#[test]
fn a_header_of_safetensors_that_ends_with_nul_bytes_is_refused_by_its_cause() {
    let bench = Bench::new();
    let header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    for padding in ["\0", "\0\0\0\0\0\0\0", " \0"] {
        bench.write("x.safetensors", &safetensors(&format!("{header}{padding}"), &[0; 4]));
        bench.run("cast x.safetensors --to f16").says(1, "", "NUL");
    }
    bench.write("x.safetensors", &safetensors(&format!("{header}  "), &[0; 4]));
    bench.run("cast x.safetensors --to f16 -q").expect(0, "", "");
}

#[test]
fn distributed_checkpoints_are_recognized_by_the_names_in_the_folder() {
    let bench = Bench::new();
    fs::create_dir(bench.path("dcp")).unwrap();
    bench.write("dcp/__0_0.distcp", b"PK\x03\x04");
    bench.write("dcp/.metadata", b"\x80\x04N.");
    bench.run("cast dcp --to f16").says(1, "", "distributed");
    for name in ["dcp/__0_0.distcp", "dcp/.metadata"] {
        bench.run(&format!("cast {name} --to f16")).says(1, "", "dcp");
        bench.run(&format!("inspect {name}")).says(1, "", "dcp");
    }
    fs::remove_file(bench.path("dcp/.metadata")).unwrap();
    bench.run("cast dcp --to f16").says(1, "", "completely");
    // A usual model in the folder is converted.
    bench.write("dcp/model.safetensors", &shard(&[("a", 1.5, 2)]));
    assert_eq!(bench.run("cast dcp --to f16 -q").code, Some(0));
}

#[test]
fn shards_with_pieces_of_tensors_are_refused() {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    let header = r#"{"__metadata__":{"DCP_SHARDING_INFO":"{\"a\":{\"saved_offsets\":[0]}}"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for number in [1, 2] {
        let name = format!("in/shard-0000{number}-model-00001-of-00001.safetensors");
        bench.write(&name, &safetensors(header, &[0; 4]));
        bench.run(&format!("cast {name} --to f16 -o out.safetensors")).says(1, "", "pieces");
    }
    bench.run("cast in --to f16 -o out").says(1, "", "shard-00001-model-00001-of-00001.safetensors");
}
