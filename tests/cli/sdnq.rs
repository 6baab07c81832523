//! Models of SDNQ: `fixtures/sdnq` has two rows of each width that the library decoded.

use super::dequantize::shard;
use super::quantize::tensors;
use crate::common::{Bench, fixture};
use std::fs;

fn bench() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    fs::copy(fixture("sdnq/model.safetensors"), bench.path("q/model.safetensors")).unwrap();
    bench
}

fn block(more: &str) -> String {
    format!(r#"{{"quant_method": "sdnq", "modules_to_not_convert": ["norm"]{more}}}"#)
}

fn config(more: &str) -> String {
    format!(r#"{{"_class_name": "Transformer", "quantization_config": {}}}"#, block(more))
}

/// Every kind of entry: the name of a weight, a part of it, its beginning, and a pattern. The first that matches decides.
const DTYPES: &str = r#", "weights_dtype": "UINT8", "modules_dtype_dict": {
    "uint7": ["m.uint7.weight"], "int7": [".m.int7"], "uint6": ["uint6"], "int6": ["*.int6"],
    "uint5": ["m.uint5.weight"], "int5": ["m.int5.*", "m.int4.q.weight"], "uint4": [".m.uint4."], "int4": ["int4"],
    "int8": ["m.int8*"], "uint3": ["m.uint3.weight"], "int3": ["m.int3.weight"], "uint2": ["uint2"],
    "int2": ["m.int2.weight", "m.int4.weight"], "bool": ["uint3"]},
    "modules_quant_config": {"*.uint1": {"weights_dtype": "int1", "use_svd": false}, "uint1": {"weights_dtype": "int4"}}"#;

#[test]
fn every_width_is_decoded_as_by_the_library() {
    let bench = bench();
    bench.write("q/config.json", config(DTYPES).as_bytes());
    bench.write("q/quantization_config.json", block(r#", "weights_dtype": "uint8""#).as_bytes());
    for (name, target) in [("bfloat16", "bf16"), ("float32", "f32")] {
        bench.run(&format!("dequantize q --to {target} -o d -f -q")).expect(0, "", "");
        let wanted = tensors(&fixture(&format!("sdnq/decoded.{name}.safetensors")));
        assert!(tensors(&bench.path("d")) == wanted, "{target}");
        bench.run("diff q d -q").expect(0, "", "");
        let config = fs::read_to_string(bench.path("d/config.json")).unwrap();
        assert!(!config.contains("quantization_config"), "{config}");
        assert!(!bench.path("d/quantization_config.json").exists());
    }
    let outcome = bench.run("inspect q");
    for grid in ["int7, channel", "uint3, 1 x 32", "int8, channel", "sdnq-uint"] {
        assert!(outcome.stdout.contains(grid), "{grid}: {}", outcome.stdout);
    }
}

#[test]
fn decoded_weights_are_listed_by_their_names_in_both_configs() {
    let bench = bench();
    let names: Vec<String> =
        (1..8).map(|bits| format!(r#""uint{bits}": ["uint{bits}"], "int{bits}": ["int{bits}"]"#)).collect();
    let dtypes =
        format!(r#", "weights_dtype": "int8", "modules_dtype_dict": {{{}, "uint8": ["uint8"]}}"#, names.join(", "));
    bench.write("q/config.json", config(&dtypes).as_bytes());
    bench.write("q/quantization_config.json", block(&dtypes).as_bytes());
    bench.run("dequantize q --include m.int* -o d -q").expect(0, "", "");
    for file in ["config.json", "quantization_config.json"] {
        let text = fs::read_to_string(bench.path("d").join(file)).unwrap();
        assert!(text.contains(r#"["norm", "m.int2.weight", "m.int3.weight""#), "{text}");
    }
    bench.run("dequantize d -o e -q").expect(0, "", "");
    bench.run("dequantize q -o whole -q").expect(0, "", "");
    assert!(tensors(&bench.path("e")) == tensors(&bench.path("whole")));
}

#[test]
fn what_is_no_plain_grid_is_refused_by_its_name() {
    let bench = bench();
    let refused = |more: &str, message: &str| {
        bench.write("q/config.json", config(more).as_bytes());
        bench.run("dequantize q -o d -q").says(1, "", message);
    };
    let of_sdnq = |what: &str| format!("the model is quantized with SDNQ ({what}), which tcast does not decode");
    for key in ["use_svd", "use_hadamard", "use_codebook", "quant_conv"] {
        refused(&format!(r#", "{key}": true"#), &of_sdnq(key));
        refused(&format!(r#", "modules_quant_config": {{"m": {{"{key}": true}}}}"#), &of_sdnq(key));
    }
    refused(r#", "scale_dtype": "int8""#, &of_sdnq("scale_dtype 'int8'"));
    refused(r#", "scale_dtype": "none", "zero_point_dtype": "uint8""#, &of_sdnq("zero_point_dtype 'uint8'"));
    refused(r#", "weights_dtype": "float4_e2m1fn""#, &of_sdnq("weights_dtype 'float4_e2m1fn'"));
    refused(r#", "use_quantized_matmul": true"#, &of_sdnq("use_quantized_matmul, which transposes codes of int8"));
    refused(r#", "modules_dtype_dict": {"some bits": ["x"]}"#, "its modules_dtype_dict has the dtype 'some bits'");
    refused(
        r#", "modules_dtype_dict": {"minimum_6bit": ["x"]}, "modules_quant_config": {"y": {"weights_dtype": "int4"}}"#,
        "its modules_dtype_dict has a minimum, and its modules_quant_config a weights_dtype",
    );
    // Codes of 8 bits that the config describes, and others.
    refused("", "'m.int2.weight' is uint8, and the config says quant_method 'sdnq', weights_dtype 'int8'");
    refused(r#", "weights_dtype": "int4""#, "have no shape [16, 3] with scales of the shape [2, 1]");
    fs::remove_file(bench.path("q/config.json")).unwrap();
    let outcome = bench.run("dequantize q -o d -q");
    assert!(outcome.code == Some(1) && outcome.stderr.contains("config.json"), "{}", outcome.stderr);

    let codes = [0; 64];
    for (extra, shape) in [("svd_up", &[8, 2][..]), ("scale_2", &[1]), ("zero_point_scale", &[1])] {
        let (name, extra) = ("m.weight", format!("m.{extra}"));
        let count = 4 * shape.iter().product::<u64>() as usize;
        let parts: [(&str, &str, &[u64], &[u8]); 3] = [
            (name, "U8", &[64], &codes),
            ("m.scale", "F32", &[8, 1], &codes[..32]),
            (&extra, "F32", shape, &codes[..count]),
        ];
        bench.write("q/model.safetensors", &shard(&parts));
        refused(r#", "weights_dtype": "uint4""#, &of_sdnq("a matrix of low rank, or scales that are codes"));
    }
    let parts: [(&str, &str, &[u64], &[u8]); 3] = [
        ("m.weight", "U8", &[16], &codes[..16]),
        ("m.scale", "F32", &[4, 1], &codes[..16]),
        ("m.zero_point", "F32", &[4, 1], &codes[..16]),
    ];
    bench.write("q/model.safetensors", &shard(&parts));
    refused(r#", "weights_dtype": "int4""#, "it has zero points, which the layout sdnq-int does not know");
    bench.write("q/model.safetensors", &shard(&parts[..2]));
    refused(r#", "weights_dtype": "uint4""#, "it has no offsets 'm.zero_point', which");
    // A convolution, whose codes are not [rows, columns].
    let parts: [(&str, &str, &[u64], &[u8]); 2] =
        [("m.weight", "U8", &[32], &codes[..32]), ("m.scale", "F32", &[4, 1, 1, 1], &codes[..16])];
    bench.write("q/model.safetensors", &shard(&parts));
    refused(r#", "weights_dtype": "int4""#, "have no shape [32] with scales of the shape [4, 1, 1, 1]");
}
