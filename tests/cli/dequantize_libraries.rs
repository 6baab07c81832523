//! `tcast dequantize` of checkpoints that the libraries wrote, with the values that they read from them.

use crate::common::Bench;
use ::safetensors::SafeTensors;
use std::fs;

/// Files of one weight `m`, the config beside it, and what the library makes of it: see `fixtures/README.md`.
const LIBRARIES: &str = "fixtures/quantized/libraries";

#[test]
fn checkpoints_of_libraries_decode_to_their_bytes() {
    let (mut files, mut compared) = (0, 0);
    for entry in fs::read_dir(LIBRARIES).unwrap() {
        let path = entry.unwrap().path();
        let bench = Bench::new();
        let file = fs::read(&path).unwrap();
        bench.write("m.safetensors", &file);
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        let metadata = header.metadata().clone().unwrap();
        if metadata["config"] != "null" {
            bench.write("config.json", metadata["config"].as_bytes());
        }
        let file = SafeTensors::deserialize(&file).unwrap();
        let decoded = file.names().into_iter().filter_map(|name| name.strip_prefix("decoded."));
        for dtype in decoded {
            let outcome = bench.run(&format!("dequantize m.safetensors --to {dtype} -o out.safetensors -f -q --json"));
            assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{}", path.display());
            let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            let layouts = report["tensors"].as_array().unwrap().iter().filter_map(|tensor| tensor["layout"].as_str());
            assert_eq!(layouts.collect::<Vec<_>>(), [metadata["layout"].as_str()], "{}", path.display());
            let out = bench.read("out.safetensors");
            let out = SafeTensors::deserialize(&out).unwrap();
            let [ours, theirs] = ["m.weight", &format!("decoded.{dtype}")].map(|name| out.tensor(name).unwrap());
            assert_eq!(ours.shape(), theirs.shape(), "{}", path.display());
            assert!(ours.data() == theirs.data(), "{}: {dtype}", path.display());
            compared += ours.data().len();
        }
        files += 1;
    }
    assert_eq!((files, compared), (18, 155_648), "files, and decoded bytes that are those of the libraries");
}
