//! What decoding costs, and converting ONNX models: memory does not grow with the size of a weight, and little with their
//! number.
#![cfg(target_os = "linux")] // other systems have no such limit

use crate::common::Bench;
use crate::common::onnx::{field, node, number};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Writes a shard whose tensors are zeros, of which the disk holds nothing.
fn sparse(path: &Path, tensors: &[(String, &str, Vec<u64>)]) {
    let mut entries = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let width = match *dtype {
            "F32" | "I32" => 4,
            "F16" => 2,
            _ => 1,
        };
        let start = end;
        end += width * shape.iter().product::<u64>();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    let file = crate::common::safetensors(&format!("{{{}}}", entries.join(",")), &[]);
    fs::write(path, &file).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_len(file.len() as u64 + end).unwrap();
}

/// Runs a line with so many MiB for everything but the files that are read: heap, stacks of threads, buffers.
fn within(bench: &Bench, limit: u32, line: &str) -> (Option<i32>, String) {
    let program = bench.command();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -d {} && exec \"$0\" \"$@\"", limit << 10)]);
    command.arg(program.get_program()).args(program.get_args()).args(line.split(' ')).current_dir(bench.path(""));
    let done = command.output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap())
}

/// A checkpoint `q` of these tensors.
fn checkpoint(config: &str, tensors: &[(String, &str, Vec<u64>)]) -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    sparse(&bench.path("q/model.safetensors"), tensors);
    bench.write("q/config.json", format!("{{\"quantization_config\": {config}}}").as_bytes());
    bench
}

const FP8: &str = r#"{"quant_method": "fp8", "weight_block_size": [128, 128]}"#;

/// 24 MiB, where the output has twice as much: a row of codes, columns of codes, and a stream of them.
#[test]
fn a_weight_that_is_larger_than_the_memory_is_decoded() {
    let name = |name: &str| format!("w.{name}");
    let gptq = r#"{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false}"#;
    let nvfp4 = r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#;
    for (config, tensors) in [
        (FP8, vec![(name("weight"), "F8_E4M3", vec![2048, 12288]), (name("weight_scale_inv"), "F32", vec![16, 96])]),
        // One row.
        (
            FP8,
            vec![(name("weight"), "F8_E4M3", vec![1, 24 << 20]), (name("weight_scale_inv"), "F32", vec![1, 24 << 13])],
        ),
        (
            nvfp4,
            vec![
                (name("weight"), "U8", vec![2048, 6144]),
                (name("weight_scale"), "F8_E4M3", vec![2048, 768]),
                (name("weight_scale_2"), "F32", vec![]),
            ],
        ),
        (
            gptq,
            vec![
                (name("qweight"), "I32", vec![256, 12288]),
                (name("scales"), "F16", vec![16, 12288]),
                (name("qzeros"), "I32", vec![16, 1536]),
            ],
        ),
        (
            r#"{"quant_method": "mxfp4"}"#,
            vec![
                ("x_blocks".to_owned(), "U8", vec![2, 4096, 96, 16]),
                ("x_scales".to_owned(), "U8", vec![2, 4096, 96]),
            ],
        ),
    ] {
        let bench = checkpoint(config, &tensors);
        let (code, stderr) = within(&bench, 24, "dequantize q -o out.safetensors -q -j2 --no-sync");
        assert_eq!((code, &*stderr), (Some(0), ""), "{tensors:?}");
        let length = fs::metadata(bench.path("out.safetensors")).unwrap().len();
        assert!(length > 48 << 20, "{length}");
    }
}

/// One row of 12 Mi codes, which are 24 MiB as float16.
#[test]
fn a_row_that_is_longer_than_the_memory_is_inspected_compared_and_printed() {
    let name = |name: &str| format!("w.{name}");
    let fp8 = [(name("weight"), "F8_E4M3", vec![1, 12 << 20]), (name("weight_scale_inv"), "F32", vec![1, 12 << 13])];
    let gptq = [
        (name("qweight"), "I32", vec![3 << 19, 1]),
        (name("scales"), "F16", vec![1, 1]),
        (name("qzeros"), "I32", vec![1, 1]),
        (name("g_idx"), "I32", vec![12 << 20]),
    ];
    let config = r#"{"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true}"#;
    let (last, end) = ((12 << 20) - 2, 12 << 20);
    for (config, tensors) in [(FP8, &fp8[..]), (config, &gptq)] {
        let bench = checkpoint(config, tensors);
        sparse(&bench.path("plain.safetensors"), &[(name("weight"), "F16", vec![1, 12 << 20])]);
        for line in [
            "inspect q --stats -q -j2".to_owned(),
            "diff q plain.safetensors --tolerance 0 -q -j2".to_owned(),
            format!("bitcast q --bits --tensor w.weight --range {last}..{end}"),
        ] {
            assert_eq!(within(&bench, 20, &line), (Some(0), String::new()), "{line}");
        }
    }
}

/// Most of what is left is what any conversion keeps of each stored tensor and each result.
#[test]
fn many_small_weights_take_little_more_memory_than_as_many_plain_tensors() {
    let mut tensors = Vec::new();
    for at in 0..10_000 {
        tensors.push((format!("model.layers.{}.experts.{at}.weight", at / 100), "F8_E4M3", vec![2, 16]));
        tensors.push((format!("model.layers.{}.experts.{at}.weight_scale_inv", at / 100), "F32", vec![1, 1]));
    }
    let bench = checkpoint(FP8, &tensors);
    for line in [
        "dequantize q -o out -q -j1 --no-sync",
        "dequantize q -o out.safetensors -q -j1 --no-sync",
        "inspect q --stats -q -j1",
        "diff q q -q -j1",
    ] {
        assert_eq!(within(&bench, 32, line), (Some(0), String::new()), "{line}");
    }
}

/// The header of the output, and the report beside the plan, would each take as much again.
#[test]
fn schemes_of_many_small_weights_are_compared_in_little_memory() {
    let name = |at: u64| format!("model.layers.{at}.mlp.down_proj.weight");
    let tensors: Vec<_> = (0..30_000).map(|at| (name(at), "F16", vec![2, 16])).collect();
    let bench = checkpoint("{}", &tensors);
    let line = "quantize q --compare nvfp4 -q -j1";
    assert_eq!(within(&bench, 75, line), (Some(0), String::new()), "{line}");
}

/// The tables of codes are larger than everything else that is kept of a weight: 38 KiB.
#[test]
fn many_small_weights_that_move_to_another_layout_share_their_tables() {
    let mut tensors = Vec::new();
    for at in 0..4000 {
        tensors.push((format!("model.layers.{at}.mlp.up_proj.weight"), "F8_E4M3", vec![2, 16]));
        tensors.push((format!("model.layers.{at}.mlp.up_proj.weight_scale_inv"), "F32", vec![1, 1]));
    }
    let bench = checkpoint(FP8, &tensors);
    let line = "quantize q --layout compressed-tensors --partial-blocks -o out -q -j1 --no-sync";
    assert_eq!(within(&bench, 24, line), (Some(0), String::new()));
}

/// A weight of 32 MiB in a data file, of which the disk holds nothing.
#[test]
fn an_onnx_model_that_is_larger_than_the_memory_is_converted() {
    let bench = Bench::new();
    let pair = |key: &[u8], value: &[u8]| field(13, &[field(1, key), field(2, value)].concat());
    let dims = vec![1 << 3, 0x80, 0x10, 1 << 3, 0x80, 0x20]; // 2048 x 4096
    let place = [pair(b"location", b"w.data"), number(14, 1)].concat();
    let weight = field(5, &[dims, number(2, 1), field(8, b"w"), place].concat());
    let graph = field(7, &[weight, node("MatMul", &["x", "w"], "y")].concat());
    bench.write("in.onnx", &[number(1, 10), graph, field(8, &number(2, 21))].concat());
    fs::File::create(bench.path("w.data")).unwrap().set_len(32 << 20).unwrap();
    for (line, written, bytes) in [
        ("cast in.onnx --to f16 -o half.onnx", "half.onnx", 16 << 20),
        ("cast in.onnx --to f16 -o half.onnx --external-data -f", "half.onnx.data", 16 << 20),
        ("quantize in.onnx --scheme int8 -o int8.onnx", "int8.onnx", 8 << 20),
        ("quantize in.onnx --scheme int4 -o int4.onnx --external-data", "int4.onnx.data", 4 << 20),
        ("dequantize int8.onnx -o plain.onnx", "plain.onnx", 32 << 20),
        ("dequantize int4.onnx -o plain.onnx --external-data -f", "plain.onnx.data", 32 << 20),
    ] {
        let done = within(&bench, 24, &format!("{line} -q -j2 --no-sync"));
        assert_eq!(done, (Some(0), String::new()), "{line}");
        let length = fs::metadata(bench.path(written)).unwrap().len();
        assert!((bytes..bytes + bytes / 4).contains(&length), "{line}: {length}");
    }
}
