//! `tcast promote`, as its users see it.

use crate::common::onnx::{initializer, model};
use crate::common::{Bench, npy, npy_data, npy_f32, safetensors};

fn int8(values: &[i8]) -> Vec<u8> {
    npy("'|i1'", &format!("({},)", values.len()), &values.iter().map(|&value| value as u8).collect::<Vec<_>>())
}

fn float16(bits: &[u16]) -> Vec<u8> {
    let data: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
    npy("'<f2'", &format!("({},)", bits.len()), &data)
}

#[test]
fn the_tensors_of_a_model_are_taken_out_before_they_are_promoted() {
    let bench = Bench::new();
    bench.write("a.onnx", &model(&initializer("w", 1, &[1], &[0; 4])));
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.run("promote a.onnx x.npy -o out").says(1, "", "--to");
    let args = ["cast", "a.onnx", "--to", "float32", "--exclude", "*", "-o", "a.safetensors", "-q"];
    bench.run_args(&args).expect(0, "", "");
    bench.run("promote a.safetensors x.npy -o out -q").expect(0, "", "");
}

#[test]
fn codes_are_not_promoted_as_values() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let codes = "model.layers.0.self_attn.o_proj.weight";
    bench.run(&format!("promote q --tensor {codes} --tensor model.norm.weight -o out")).says(1, "", "casting");
    // Other tensors of the model, and types that need no conversion, are promoted as before.
    bench.run("promote q --tensor model.norm.weight --tensor lm_head.weight -q -o out").expect(0, "", "");
    bench.run(&format!("promote q --tensor {codes} -q -o same")).expect(0, "", "");
}

#[test]
fn inputs_get_the_common_type_under_their_own_names() {
    let bench = Bench::new();
    bench.write("a.npy", &int8(&[1, -2, 127]));
    bench.write("b.npy", &float16(&[0x3c00]));
    let outcome = bench.run("promote a.npy b.npy -o common");
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), ""), "{outcome:?}");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        lines[0].starts_with("promote 1 of 2 tensors to float16: integers give way to floats, in "),
        "{}",
        outcome.stderr
    );
    assert_eq!(lines[1..], ["a.npy -> common/a.npy", "b.npy -> common/b.npy"]);
    assert_eq!(npy_data(&bench.read("common/a.npy")), [0x00, 0x3c, 0x00, 0xc0, 0xf0, 0x57]);
    assert!(bench.read("common/b.npy") == bench.read("b.npy"));
}

#[test]
fn a_dry_run_prints_the_type_alone() {
    let bench = Bench::new();
    bench.write("a.npy", &int8(&[1]));
    bench.write("b.npy", &npy_f32(&[1.0]));
    bench.run("promote a.npy b.npy --dry-run").expect(0, "float32\n", "");
    bench.run("promote b.npy a.npy -n").expect(0, "float32\n", "");
    let outcome = bench.run("promote a.npy b.npy -n --json");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["dtype"], "float32");
    assert_eq!((&report["inputs"][0]["dtype"], &report["inputs"][0]["can_lose"]), (&"int8".into(), &false.into()));
    assert!(report["rule"].is_string());
    assert_eq!(bench.files(), ["a.npy", "b.npy"]);
}

#[test]
fn what_could_lose_is_refused_with_the_way_out_and_told_when_it_is_allowed() {
    let bench = Bench::new();
    let values: Vec<u8> = [16_777_217_i64, 1].iter().flat_map(|value| value.to_le_bytes()).collect();
    bench.write("a.npy", &npy("'<i8'", "(2,)", &values));
    bench.write("b.npy", &npy_f32(&[1.0]));
    for line in ["promote a.npy b.npy -o out", "promote a.npy b.npy -n"] {
        bench.run(line).says(1, "", "int64");
    }
    assert_eq!(bench.files(), ["a.npy", "b.npy"]);
    bench.run("promote a.npy b.npy -o out --unsafe").says(0, "", "otherwise");
}

#[test]
fn scalars_and_uint64_follow_the_attributes() {
    let bench = Bench::new();
    bench.write("scalar.npy", &npy("'<f8'", "()", &1.0_f64.to_le_bytes()));
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.run("promote scalar.npy x.npy -n").expect(0, "float64\n", "");
    bench.run("promote scalar.npy x.npy -n --pytorch-scalar --unsafe").expect(0, "float32\n", "");
    bench.write("u.npy", &npy("'<u8'", "(1,)", &[0; 8]));
    bench.write("i.npy", &int8(&[1]));
    bench.run("promote u.npy i.npy -n --unsafe").expect(0, "float32\n", "");
    bench.run("promote u.npy i.npy -n --unsafe --u64-target float64").expect(0, "float64\n", "");
    assert_eq!(bench.run("promote u.npy i.npy -n --unsafe --u64-target string").code, Some(2));
    assert_eq!(bench.run("promote u.npy i.npy -n").code, Some(1));
}

#[test]
fn tensors_of_one_file_are_brought_to_one_type_and_the_others_copied() {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},"c":{"dtype":"BF16","shape":[1],"data_offsets":[6,8]}}"#;
    let bench = Bench::new();
    bench.write("m.safetensors", &safetensors(header, &[0, 0, 0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f]));
    bench.run("promote m.safetensors -o out.safetensors").says(2, "", "contains");
    let outcome = bench.run("promote m.safetensors --tensor a --tensor b -o out.safetensors --json -q");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let types: Vec<_> =
        report["outputs"][0]["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["to"]).collect();
    assert_eq!(types, ["float32", "float32", "bfloat16"]);
    for tensors in ["--tensor a --tensor z", "--tensor z"] {
        bench.run(&format!("promote m.safetensors {tensors} -o z.safetensors")).says(1, "", "tensor");
    }
    assert_eq!(bench.files(), ["m.safetensors", "out.safetensors"]);
    // The only tensor of a file takes part, whatever its name.
    bench.write("x.npy", &npy("'<f8'", "(1,)", &[0; 8]));
    bench.run("promote x.npy m.safetensors --tensor b -o both -q").expect(0, "", "");
    let report: serde_json::Value =
        serde_json::from_str(&bench.run("inspect both/m.safetensors --json").stdout).unwrap();
    let types: Vec<_> = report["tensors"].as_array().unwrap().iter().map(|tensor| &tensor["dtype"]).collect();
    assert_eq!(types, ["float32", "float64", "bfloat16"]);
}

#[test]
fn all_outputs_appear_or_none() {
    let bench = Bench::new();
    bench.write("a.npy", &npy_f32(&[1.0]));
    // The second input is damaged where only its elements show it.
    bench.write("b.npy", &npy("[('float4_e2m1fn', '|u1')]", "(1,)", &[0x17]));
    bench.run("promote a.npy b.npy -o out").says(1, "", "above");
    assert_eq!(bench.files(), ["a.npy", "b.npy"]);
    // Nor is anything written over.
    bench.write("b.npy", &int8(&[1]));
    bench.run("promote a.npy b.npy -o . -f").says(1, "", "input");
    std::fs::create_dir(bench.path("out")).unwrap();
    std::fs::write(bench.path("out/b.npy"), "mine").unwrap();
    assert_eq!(bench.run("promote a.npy b.npy -o out").code, Some(4));
    assert!(!bench.path("out/a.npy").exists());
    assert_eq!(std::fs::read(bench.path("out/b.npy")).unwrap(), b"mine");
}

#[test]
fn real_numbers_become_complex_with_no_imaginary_part() {
    let bench = Bench::new();
    bench.write("r.npy", &npy_f32(&[1.5, -2.0]));
    let part = |value: f32| value.to_be_bytes();
    bench.write("c.npy", &npy("'>c8'", "(1,)", &[part(3.0), part(-4.0)].concat()));
    bench.run("promote r.npy c.npy -o out -q").expect(0, "", "");
    let floats = |name: &str| -> Vec<f32> {
        npy_data(&bench.read(name)).chunks(4).map(|bytes| f32::from_le_bytes(*bytes.first_chunk().unwrap())).collect()
    };
    assert_eq!(floats("out/r.npy"), [1.5, 0.0, -2.0, 0.0]);
    assert_eq!(floats("out/c.npy"), [3.0, -4.0]);
    bench.write("f4.npy", &npy("[('float4_e2m1fn', '|u1')]", "(3,)", &[2, 7, 0x17]));
    bench.run("promote f4.npy c.npy -o bad").says(1, "", "f4");
    bench.write("d.npy", &npy("'<c16'", "(1,)", &[0; 16]));
    bench.run("promote c.npy d.npy -o wide -q").expect(0, "", "");
    let wide: Vec<f64> = npy_data(&bench.read("wide/c.npy"))
        .chunks(8)
        .map(|bytes| f64::from_le_bytes(*bytes.first_chunk().unwrap()))
        .collect();
    assert_eq!(wide, [3.0, -4.0]);
}

#[test]
fn remedies_for_outputs_work_and_json_names_each_tensor() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("a")).unwrap();
    bench.write("a/x.npy", &npy_f32(&[1.0]));
    bench.write("x.npy", &npy_f32(&[1.0]));
    bench.run("promote x.npy a/x.npy -o pr").says(1, "", "written");
    bench.write("file", b"");
    bench.run("promote x.npy a/x.npy -o file").says(2, "", "outputs");
    bench.write("y.npy", &npy_f32(&[1.0]));
    let document: serde_json::Value =
        serde_json::from_str(&bench.run("promote x.npy y.npy --dry-run --json").stdout).unwrap();
    assert_eq!((&document["inputs"][0]["tensor"], &document["inputs"][1]["tensor"]), (&"x".into(), &"y".into()));
}
