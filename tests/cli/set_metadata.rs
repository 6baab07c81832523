//! `--set` and `--unset`: metadata of safetensors, GGUF and ONNX.

use crate::common::{Bench, fixture};
use serde_json::{Value, json};
use std::fs;

fn metadata(bench: &Bench, path: &str) -> Value {
    let document: Value = serde_json::from_str(&bench.run(&format!("inspect {path} --json")).stdout).unwrap();
    document["files"][0]["metadata"].clone()
}

fn refused(bench: &Bench, line: &str, error: &str) {
    bench.run(line).says(2, "", error);
}

#[test]
fn metadata_of_safetensors_is_set_and_removed() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    bench.write("note.txt", "from a file\n".as_bytes());
    let line = "cast m.safetensors --set author=me=you --set note=@note.txt -o set.safetensors -q";
    bench.run(line).expect(0, "", "");
    let wanted = json!({ "format": "pt", "note": "from a file\n", "author": "me=you" });
    assert_eq!(metadata(&bench, "set.safetensors"), wanted);
    let back = [
        "cast",
        "set.safetensors",
        "--unset",
        "author",
        "--set",
        "note=random weights, for tests",
        "-o",
        "b.safetensors",
        "-q",
    ];
    bench.run_args(&back).expect(0, "", "");
    bench.run("cast m.safetensors --rename *=* -o same.safetensors -q").expect(0, "", "");
    assert!(bench.read("b.safetensors") == bench.read("same.safetensors"));
    let cast = "cast m.safetensors -o o.safetensors";
    refused(&bench, &format!("{cast} --unset x"), "metadata");
    let owned = "m.safetensors: the metadata key 'tcast' belongs to the format\n  leave --set out";
    refused(&bench, &format!("{cast} --set tcast=1"), owned);
    let typed =
        "m.safetensors: the metadata key 'x' has a type, and only keys of .gguf files have types\n  leave --set out";
    refused(&bench, &format!("{cast} --set x:u32=1"), typed);
    let none = "m.safetensors: a .npz file has no place for metadata\n  leave --set out";
    refused(&bench, "cast m.safetensors -o o.npz --exclude *norm* --to f32 --set x=1", none);
    // All shards of a folder get it.
    bench.add_checkpoint("llama-tiny-bf16", "c");
    bench.run("cast c --set run=7 -o d -q").expect(0, "", "");
    let document: Value = serde_json::from_str(&bench.run("inspect d --json").stdout).unwrap();
    assert!(document["files"].as_array().unwrap().iter().all(|file| file["metadata"]["run"] == "7"));
}

#[test]
fn keys_of_a_gguf_keep_their_types() {
    let bench = Bench::with("gguf/tiny.gguf", "t.gguf");
    let line = "cast t.gguf --set llama.embedding_length=77 --set my.note=hello --set my.count:u16=3 --set my.list:f32=[1,2.5] \
                --set my.flag:bool=true -o o.gguf -q";
    bench.run(line).expect(0, "", "");
    let after = metadata(&bench, "o.gguf");
    assert_eq!(after["llama.embedding_length"], "77");
    assert_eq!(
        (&after["my.note"], &after["my.count"], &after["my.flag"]),
        (&json!("hello"), &json!("3"), &json!("true"))
    );
    let bytes = bench.read("o.gguf");
    let find = |key: &str| bytes.windows(key.len()).position(|text| text == key.as_bytes()).unwrap() + key.len();
    let at = find("my.list");
    let list = [
        &9_u32.to_le_bytes()[..],
        &6_u32.to_le_bytes(),
        &2_u64.to_le_bytes(),
        &1_f32.to_le_bytes(),
        &2.5_f32.to_le_bytes(),
    ];
    assert_eq!(bytes[at..at + 24], list.concat());
    let at = find("llama.embedding_length");
    assert_eq!(bytes[at..at + 8], [4_u32.to_le_bytes(), 77_u32.to_le_bytes()].concat());
    for (set, error) in [
        (
            "llama.embedding_length=x",
            "the metadata key 'llama.embedding_length': its value is of the type u32, and 'x' is not",
        ),
        ("my.small:u8=256", "the metadata key 'my.small': its value is of the type u8, and '256' is not"),
        // Values that the type cannot hold, alone and in a list.
        ("my.f:f32=1e39", "the metadata key 'my.f': its value is of the type f32, and '1e39' is not"),
        ("my.f:f32=-1e39", "the metadata key 'my.f': its value is of the type f32, and '-1e39' is not"),
        ("my.f:f32=[1,1e39]", "the metadata key 'my.f': its value is of the type f32, and '1e+39' is not"),
        ("my.f:f64=1e309", "the metadata key 'my.f': its value is of the type f64, and '1e309' is not"),
        ("my.i:i8=-129", "the metadata key 'my.i': its value is of the type i8, and '-129' is not"),
        (
            "my.u:u64=18446744073709551616",
            "the metadata key 'my.u': its value is of the type u64, and '18446744073709551616' is not",
        ),
        (
            "my.i:i64=9223372036854775808",
            "the metadata key 'my.i': its value is of the type i64, and '9223372036854775808' is not",
        ),
        (
            "tokenizer.ggml.tokens=x",
            "the metadata key 'tokenizer.ggml.tokens': its value is a list, in JSON, and 'x' is not",
        ),
    ] {
        refused(&bench, &format!("cast t.gguf --set {set} -o x.gguf"), &format!("t.gguf: {error}"));
    }
    for owned in ["general.alignment", "split.count"] {
        let error = format!("t.gguf: the metadata key '{owned}' belongs to the format\n  leave --set out");
        refused(&bench, &format!("cast t.gguf --set {owned}:u32=64 -o x.gguf"), &error);
    }
    // Blocks are copied, and the way back gives the same bytes.
    let back =
        "cast o.gguf --unset my.note --unset my.count --unset my.flag --unset my.list --set llama.embedding_length=64";
    bench.run(&format!("{back} -o p.gguf -q")).expect(0, "", "");
    bench.run("cast t.gguf --rename *=* -o same.gguf -q").expect(0, "", "");
    assert!(bench.read("p.gguf") == bench.read("same.gguf"));
    bench.run("diff t.gguf o.gguf").expect(0, "21 tensors are equal\n", "");
}

#[test]
fn properties_of_an_onnx_model_are_set_and_the_rest_stays() {
    let bench = Bench::with("onnx_models/basic_pitch_nmp.onnx", "m.onnx");
    bench.run("cast m.onnx --set author=me --set license=MIT -o a.onnx -q").expect(0, "", "");
    assert_eq!(
        (&metadata(&bench, "a.onnx")["author"], &metadata(&bench, "a.onnx")["license"]),
        (&json!("me"), &json!("MIT"))
    );
    bench.run("cast a.onnx --set author=you --unset license -o b.onnx -q").expect(0, "", "");
    let after = metadata(&bench, "b.onnx");
    assert_eq!((&after["author"], after.get("license")), (&json!("you"), None));
    bench.run("cast b.onnx --unset author -o c.onnx -q").expect(0, "", "");
    assert!(bench.read("c.onnx") == fs::read(fixture("onnx_models/basic_pitch_nmp.onnx")).unwrap());
    let owned = "m.onnx: the metadata key 'ir_version' belongs to the format\n  leave --set out";
    refused(&bench, "cast m.onnx --set ir_version=9 -o x.onnx", owned);
}
