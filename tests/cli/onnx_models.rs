//! ONNX models: what is in them, and how tensors come out of them.

use crate::common::onnx::{field, initializer, model, node, number};
use crate::common::{Bench, external_tensor, fixture};
use std::fs;

/// The listing of a fixture, without its first line.
fn listing(name: &str) -> Vec<String> {
    let bench = Bench::new();
    let outcome = bench.run(&format!("inspect {}", fixture("onnx_models").join(name).display()));
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let lines = outcome.stdout.lines().skip(1).take_while(|line| line.starts_with("  "));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_model_lists_the_tensors_of_all_graphs_and_constants() {
    assert_eq!(
        listing("subgraph_capture.onnx"),
        [
            "ec float32 [8, 8] 256 B FLOAT raw_data",
            "ib float32 [8] 32 B FLOAT raw_data",
            "tb float32 [8] 32 B FLOAT raw_data",
            "w float32 [8, 8] 256 B FLOAT raw_data",
        ]
    );
    // The same name in two branches.
    assert_eq!(
        listing("sibling_same_name.onnx"),
        [
            "If_0.else_branch/k float32 [8, 8] 256 B FLOAT raw_data",
            "If_0.then_branch/k float32 [8, 8] 256 B FLOAT raw_data",
        ]
    );
    let forms = listing("constant_forms.onnx");
    assert!(forms.iter().any(|line| line.ends_with("FLOAT value_floats")), "{forms:?}");
    assert!(forms.iter().any(|line| line.ends_with("FLOAT float_data")), "{forms:?}");
    let sparse = listing("sparse_initializer.onnx");
    assert!(
        sparse[0].starts_with("w.values float32 [3]") && sparse[1].starts_with("w.indices int64 [3]"),
        "{sparse:?}"
    );
}

#[test]
fn tensors_of_a_model_are_taken_out_compared_and_printed() {
    let bench = Bench::new();
    for name in ["int4_odd.onnx", "ext_good.onnx", "ext.data", "knn_surrogate.onnx"] {
        fs::copy(fixture("onnx_models").join(name), bench.path(name)).unwrap();
    }
    let printed = bench.run("bitcast int4_odd.onnx --bits --tensor q");
    let values: Vec<&str> = printed.stdout.lines().filter_map(|line| line.split_whitespace().rev().nth(1)).collect();
    assert!(
        values.ends_with(&["-8", "7", "-1", "0", "1", "2", "3", "4", "5", "6", "-7", "-6", "-5", "-4", "-3"]),
        "{values:?}"
    );
    for (name, out) in [("ext_good", "safetensors"), ("knn_surrogate", "npz"), ("int4_odd", "safetensors")] {
        bench.run(&format!("cast {name}.onnx --to f64 -o {name}.{out} -q")).expect(0, "", "");
        let differs = bench.run(&format!("diff {name}.onnx {name}.{out}"));
        assert_eq!((differs.code, &*differs.stderr), (Some(1), ""), "{}", differs.stdout); // other types
        assert!(!differs.stdout.contains("values differ"), "{}", differs.stdout);
    }
    let stats = bench.run("inspect knn_surrogate.onnx --stats --include coefficient");
    assert!(stats.code == Some(0) && stats.stdout.contains("min"), "{}", stats.stdout);
    assert_eq!(fs::read(fixture("onnx_models/ext.data")).unwrap(), bench.read("ext.data"));
}

#[test]
fn messages_nested_too_deep_are_refused_at_once() {
    // If nodes in If nodes, as deep as 200 kB allow.
    let mut graph = Vec::new();
    while graph.len() < 200_000 {
        let attribute = [field(1, b"then_branch"), field(6, &graph)].concat();
        let node = [field(4, b"If"), field(5, &attribute)].concat();
        graph = field(1, &node);
    }
    let bench = Bench::new();
    bench.write("deep.onnx", &model(&graph));
    bench.run("cast deep.onnx --to f16").says(1, "", "ONNX");
    bench.run("inspect deep.onnx").says(1, "", "ONNX");
}

#[test]
fn a_model_whose_data_is_missing_is_listed_and_not_converted() {
    let bench = Bench::new();
    fs::copy(fixture("bad/onnx_models/ext_missing.onnx"), bench.path("m.onnx")).unwrap();
    let listed = bench.run("inspect m.onnx");
    assert!(
        listed.stdout.contains("tensor 'w': cannot read its external data 'absent.data': no such file or directory"),
        "{}",
        listed.stdout
    );
    listed.check_message("absent.data");
    bench.run("cast m.onnx --to f16 -o m.safetensors").says(1, "", "absent.data");
}

#[test]
fn external_data_whose_location_names_a_folder_is_refused() {
    let bench = Bench::new();
    bench.write("d.bin", &[0; 8]);
    for (location, is_refused) in [("d.bin/", true), ("d.bin/.", true), ("d.bin//", true), ("./d.bin", false)] {
        let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
        let tensor = [&number(1, 2)[..], &number(2, 1), &field(8, b"w"), &field(13, &entry), &number(14, 1)].concat();
        bench.write("t.pb", &tensor);
        bench.write("m.onnx", &model(&field(5, &tensor)));
        for input in ["t.pb", "m.onnx"] {
            let outcome = bench.run(&format!("cast {input} --to f16 -o out.npy -f -q"));
            if is_refused {
                let message = format!("{input}: tensor 'w': its external data '{location}' is not a file");
                outcome.expect(1, "", &format!("tcast: error: {message}\n"));
            } else {
                outcome.expect(0, "", "");
            }
        }
    }
}

#[test]
fn external_data_of_another_length_is_an_error_of_the_file_that_names_it() {
    let bench = Bench::new();
    bench.write("d.bin", &[0; 8]);
    let tensor = external_tensor(&[("location", "d.bin"), ("length", "4")]);
    bench.write("t.pb", &tensor);
    bench.write("m.onnx", &model(&field(5, &tensor)));
    for input in ["t.pb", "m.onnx"] {
        let message =
            format!("{input}: tensor 'x': its shape asks for 8 bytes, there are 4 in its external data 'd.bin'");
        bench.run(&format!("cast {input} --to f16 -o out.npy")).expect(1, "", &format!("tcast: error: {message}\n"));
    }
}

#[test]
fn an_error_about_the_fields_of_a_tensor_names_the_tensor() {
    let bench = Bench::new();
    let segment = field(3, &[number(1, 0), number(2, 2)].concat());
    let tensor = [&number(1, 2)[..], &number(2, 1), &segment, &field(8, b"w"), &field(9, &[0; 8])].concat();
    let said = |input: &str, name: &str| {
        let message = format!("{input}: tensor '{name}': is one segment of a tensor, which no ONNX library reads");
        bench.run(&format!("inspect {input}")).expect(1, "", &format!("tcast: error: {message}\n"));
    };
    bench.write("t.pb", &tensor);
    said("t.pb", "w");
    bench.write("initializer.onnx", &model(&field(5, &tensor)));
    said("initializer.onnx", "w");
    bench.write("sparse.onnx", &model(&field(15, &field(1, &tensor))));
    said("sparse.onnx", "w");
    // The output of a Constant node names the tensor, whatever its own name is.
    let value = [field(1, b"value"), field(5, &tensor), vec![0xa0, 1, 4]].concat();
    let constant = field(1, &[field(2, b"out"), field(4, b"Constant"), field(5, &value)].concat());
    bench.write("constant.onnx", &model(&constant));
    said("constant.onnx", "out");
}

#[test]
fn options_for_models_are_refused_for_other_inputs() {
    let bench = Bench::with("weights_f32.npy", "x.npy");
    bench.add_checkpoint("llama-tiny-bf16", "m");
    for command in ["cast x.npy --to f16 -o out.npy", "quantize m --scheme fp8 -o out"] {
        for option in ["--min-elements 2", "--external-data", "--raise-opset"] {
            bench.run(&format!("{command} {option}")).says(2, "", "ONNX");
        }
    }
    assert!(!bench.path("out.npy").exists() && !bench.path("out").exists());
    // A model whose tensors go to shards.
    fs::copy(fixture("onnx_models/opset17_fp8.onnx"), bench.path("m.onnx")).unwrap();
    for option in ["--min-elements 2", "--external-data", "--raise-opset"] {
        let line = format!("cast m.onnx --to f16 --max-shard-size 1MB -o out {option}");
        bench.run(&line).says(2, "", option.split(' ').next().unwrap());
    }
    assert!(!bench.path("out").exists());
}

#[cfg(unix)]
#[test]
fn links_to_the_data_of_a_model_are_followed_where_a_cache_keeps_both() {
    use std::os::unix::fs::symlink;
    let bench = Bench::new();
    for folder in ["blobs", "snapshot", "other"] {
        fs::create_dir(bench.path(folder)).unwrap();
    }
    fs::copy(fixture("onnx_models/ext_good.onnx"), bench.path("blobs/1")).unwrap();
    fs::copy(fixture("onnx_models/ext.data"), bench.path("blobs/2")).unwrap();
    symlink("../blobs/1", bench.path("snapshot/m.onnx")).unwrap();
    symlink("../blobs/2", bench.path("snapshot/ext.data")).unwrap();
    bench.run("cast snapshot/m.onnx --to f16 -o a.safetensors -q").expect(0, "", "");
    // Any other link leads out of the folder.
    fs::copy(fixture("onnx_models/ext_good.onnx"), bench.path("other/m.onnx")).unwrap();
    symlink("../blobs/2", bench.path("other/ext.data")).unwrap();
    bench.run("cast other/m.onnx --to f16 -o b.safetensors").says(1, "", "ext.data");
}

#[test]
fn a_file_full_of_empty_tensors_is_refused_before_it_takes_memory() {
    // TensorProto {dims: 0, data_type: FLOAT, name: "x"} as an attribute of a node.
    let tensor = field(5, &field(5, &[0x08, 0, 0x10, 1, 0x42, 1, b'x']));
    let graph = field(1, &tensor.repeat(1_100_000));
    let bench = Bench::new();
    bench.write("many.onnx", &model(&graph));
    bench.run("inspect many.onnx").says(1, "", "1048576");
}

#[test]
fn tensors_of_the_graph_keep_their_names_wherever_it_is_in_the_file() {
    let bench = Bench::new();
    let weight = initializer("w", 1, &[2], &[0; 8]);
    let graph = [node("f", &["x"], "y"), weight].concat();
    let value =
        [vec![0x0a, 5], b"value".to_vec(), field(5, &[&[8, 1, 0x10, 1][..], &field(9, &[0; 4])].concat())].concat();
    let constant = [field(2, b"w"), field(4, b"Constant"), field(5, &[value, vec![0xa0, 1, 4]].concat())].concat();
    let function = [field(1, b"f"), field(7, &constant)].concat();
    let function = [&[0xca, 1, function.len() as u8][..], &function].concat();
    let names = |model: Vec<u8>| {
        bench.write("m.onnx", &model);
        let outcome = bench.run("inspect m.onnx --json");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let listing: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let tensors = listing["tensors"].as_array().unwrap().iter();
        let mut names: Vec<String> = tensors.map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    let (graph, opset) = (field(7, &graph), field(8, &[0x10, 16]));
    assert_eq!(names([&[8, 8][..], &graph, &opset, &function].concat()), ["f/w", "w"]);
    assert_eq!(names([&[8, 8][..], &opset, &function, &graph].concat()), ["f/w", "w"]);
}

#[test]
fn bits_that_are_stored_as_negative_numbers_are_the_low_bits() {
    let bench = Bench::new();
    // -56 and 127 in int32_data, as bytes with and without a sign.
    let negative = [0xc8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0x7f];
    for (data_type, name, is_read) in
        [(22, "int4", true), (21, "uint4", true), (17, "float8e4m3fn", true), (2, "uint8", false)]
    {
        let count = if name.ends_with('4') { 4 } else { 2 };
        let head = [number(1, count), number(2, data_type), field(8, b"w")].concat();
        bench.write("signed.pb", &[&head[..], &field(5, &negative)].concat());
        bench.write("unsigned.pb", &[&head[..], &field(5, &[0xc8, 1, 0x7f])].concat());
        let outcome = bench.run("diff signed.pb unsigned.pb");
        if is_read {
            assert!(outcome.code == Some(0) && outcome.stdout == "1 tensor is equal\n", "{name}: {outcome:?}");
        } else {
            outcome.check_message("int32_data");
            assert!(outcome.code != Some(0), "{outcome:?}");
        }
    }
}
