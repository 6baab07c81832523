//! Types of `ml_dtypes` that ONNX lacks: read, copied and cast from; to cast to one is refused.

use crate::common::{Bench, fixture, npy, npy_data, npy_f32, safetensors};
use safetensors::{Dtype, SafeTensors};
use std::fs;

const TYPES: [&str; 5] = ["float8_e4m3", "float8_e3m4", "float8_e4m3b11fnuz", "int1", "uint1"];

#[test]
fn opaque_bytes_are_what_from_says() {
    let cases: [(&str, &[u8], &[f32]); 5] = [
        ("float8_e4m3", &[0x38, 0x77, 0xf8, 0x01], &[1.0, 240.0, f32::NEG_INFINITY, 1.0 / 512.0]),
        ("float8_e3m4", &[0x30, 0x6f, 0xf0, 0x01], &[1.0, 15.5, f32::NEG_INFINITY, 1.0 / 64.0]),
        ("float8_e4m3b11fnuz", &[0x58, 0x7f, 0xff, 0x01], &[1.0, 30.0, -30.0, 1.0 / 8192.0]),
        // A signed integer may extend its sign, as numpy does, or not, as ml_dtypes.
        ("int1", &[0, 1, 0xff, 1], &[0.0, -1.0, -1.0, -1.0]),
        ("uint1", &[0, 1, 1, 0], &[0.0, 1.0, 1.0, 0.0]),
    ];
    for (from, codes, values) in cases {
        for descr in ["'<V1'", "'|u1'"] {
            let bench = Bench::new();
            bench.write("x.npy", &npy(descr, "(4,)", codes));
            bench.run(&format!("cast x.npy --from {from} --to f32 -o y.npy -q")).expect(0, "", "");
            let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            assert_eq!(npy_data(&bench.read("y.npy")), expected, "{from} {descr}");
        }
    }
}

#[test]
fn what_npy_files_say_of_themselves_needs_no_flag() {
    for name in TYPES {
        let (tagged, named) = (format!("corpus/npy/tag_{name}.npy"), format!("corpus/npy/named_{name}.npy"));
        let outputs = [tagged, named].map(|file| {
            let bench = Bench::with(&file, "x.npy");
            bench.run("cast x.npy --to f32 -o y.npy -q").expect(0, "", "");
            bench.read("y.npy")
        });
        let bench = Bench::with(&format!("corpus/npy/ml_{name}.npy"), "x.npy");
        bench.run(&format!("cast x.npy --from {name} --to f32 -o y.npy -q")).expect(0, "", "");
        assert!(outputs.iter().all(|output| *output == bench.read("y.npy")), "{name}");
    }
}

#[test]
fn a_copy_keeps_the_type_in_every_container() {
    for name in TYPES {
        let bench = Bench::with(&format!("corpus/npy/tag_{name}.npy"), "x.npy");
        bench.run("cast x.npy --rule *=keep -o a.npy -q").expect(0, "", "");
        bench.run("cast x.npy --rule *=keep -o a.safetensors -q").expect(0, "", "");
        // No --from: the metadata says what the U8 are.
        bench.run("cast a.safetensors --rule *=keep -o b.npy -q").expect(0, "", "");
        assert_eq!(bench.read("a.npy"), bench.read("b.npy"), "{name}");
        assert_eq!(npy_data(&bench.read("a.npy")), npy_data(&bench.read("x.npy")), "{name}");
        bench.run("cast a.safetensors --to f32 --all -o c.npy -q").expect(0, "", "");
        bench.run("cast x.npy --to f32 -o d.npy -q").expect(0, "", "");
        assert_eq!(bench.read("c.npy"), bench.read("d.npy"), "{name}");
        // A cast to the type that it has already is a copy, and tags what --from names.
        let untyped = fs::read(fixture(&format!("corpus/npy/ml_{name}.npy"))).unwrap();
        bench.write("untyped.npy", &untyped);
        bench.run(&format!("cast untyped.npy --from {name} --to {name} -o e.npy -q")).expect(0, "", "");
        assert_eq!(bench.read("e.npy"), bench.read("a.npy"), "{name}");
    }
}

#[test]
fn safetensors_holds_them_as_u8_with_their_type_in_the_metadata() {
    let bench = Bench::with("corpus/npy/tag_float8_e3m4.npy", "x.npy");
    bench.run("cast x.npy --rule *=keep -o a.safetensors -q").expect(0, "", "");
    let file = bench.read("a.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("x").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::U8, &[16, 16][..]));
    assert_eq!(tensor.data(), (0..=255).collect::<Vec<u8>>());
    let (_, metadata) = SafeTensors::read_metadata(&file).unwrap();
    let note = &metadata.metadata().as_ref().unwrap()["tcast"];
    assert_eq!(note, r#"{"tensors":{"x":{"dtype":"float8e3m4","shape":[16,16],"store":"raw8"}},"version":1}"#);

    let bench = Bench::new();
    bench.write(
        "x.npy",
        &npy("[('int1', '|i1')]", "(2, 8)", &[0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]),
    );
    bench.run("cast x.npy --rule *=keep -o a.safetensors -q").expect(0, "", "");
    let file = bench.read("a.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor("x").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape(), tensor.data()), (Dtype::U8, &[2, 1][..], &[0x19, 0x80][..]));
}

#[test]
fn in_a_checkpoint_they_are_cast_as_the_floats_and_integers_that_they_are() {
    let bench = Bench::new();
    let header = r#"{"__metadata__":{"tcast":"{\"tensors\":{\"b\":{\"dtype\":\"int1\",\"shape\":[8],\"store\":\"packed-lsb\"},\"f\":{\"dtype\":\"float8e4m3\",\"shape\":[2],\"store\":\"raw8\"}},\"version\":1}"},"f":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}"#;
    bench.write("m.safetensors", &safetensors(header, &[0x38, 0x77, 0x19]));
    let outcome = bench.run("cast m.safetensors --to f16 -n");
    let table = "f  [2]  float8e4m3 -> float16  2 B -> 4 B\nb  [8]  int1 kept              1 B -> 1 B\n";
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), table));
    outcome.check_message("--all");
}

#[test]
fn a_cast_to_one_is_refused_with_the_nearest_type() {
    for (spelling, near) in [
        ("float8_e4m3", "float8e4m3fn"),
        ("float8e4m3", "float8e4m3fn"),
        ("e3m4", "float8e4m3fn"),
        ("ml_dtypes.float8_e4m3b11fnuz", "float8e4m3fnuz"),
        ("int1", "int2"),
        ("uint1", "uint2"),
    ] {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        bench.run(&format!("cast x.npy --to {spelling}")).says(1, "", near);
        bench.run(&format!("cast x.npy --rule *={spelling} -o y.npy")).says(1, "", near);
        assert_eq!(bench.files(), ["x.npy"]);
    }
    // The short spellings mean what safetensors and OpenVINO mean by them.
    for spelling in ["e4m3", "f8e4m3", "F8_E4M3", "fp8_e4m3"] {
        let bench = Bench::new();
        bench.write("x.npy", &npy_f32(&[1.0]));
        bench.run(&format!("cast x.npy --to {spelling} -q")).expect(0, "", "");
        assert_eq!(bench.files(), ["x.float8e4m3fn.npy", "x.npy"], "{spelling}");
    }
}

#[test]
fn no_opset_has_them() {
    for name in ["int1", "float8_e4m3"] {
        let bench = Bench::with(&format!("corpus/npy/tag_{name}.npy"), "x.npy");
        bench.run("cast x.npy --to f16 --opset 28").says(1, "", "--opset");
    }
}

#[test]
fn i1_and_u1_are_refused_with_both_meanings() {
    for spelling in ["i1", "u1"] {
        let outcome = Bench::new().run(&format!("cast x.npy --to {spelling}"));
        outcome.says(2, "", spelling);
    }
}
