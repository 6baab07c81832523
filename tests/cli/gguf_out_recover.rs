//! `tcast quantize --recover` to GGUF files: blocks of weights that were decoded. `tests/blocks_encode/recover.rs` checks the
//! formats.

use super::gguf::tiny;
use crate::common::gguf::{Gguf, NVFP4, Q8_0, nvfp4, q8_0};
use crate::common::{Bench, safetensors};
use serde_json::Value;

/// The types of `tiny.gguf`.
const TYPES: &str = "--scheme q4_0 --rule token_embd.weight=q8_0 --rule output.weight=q8_0";

/// `tiny.gguf`, decoded to a type in a GGUF.
fn decoded(dtype: &str) -> Bench {
    let bench = tiny();
    bench.run(&format!("quantize tiny.gguf --layout gguf --scheme {dtype} -q -o plain.gguf")).expect(0, "", "");
    bench
}

/// Names of the weights, the origins of their codes, and the places of their first elements without blocks.
fn origins(stdout: &str) -> Vec<(String, String, Value)> {
    let report: Value = serde_json::from_str(stdout).unwrap();
    let tensors = report["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["quantized"].is_object());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    tensors
        .map(|tensor| {
            let quantized = &tensor["quantized"];
            (text(&tensor["name"]), text(&quantized["codes"]), quantized["unrecovered_index"].clone())
        })
        .collect()
}

#[test]
fn decoded_weights_get_blocks_with_the_same_values() {
    for dtype in ["f32", "bf16", "f16"] {
        let bench = decoded(dtype);
        let outcome = bench.run(&format!("quantize plain.gguf {TYPES} --recover --only-exact -o back.gguf"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
        for line in [
            "\n  16 weights: recovered, codes and scales decode to the same bits\n",
            "\n  4.97 bits per weight; every value came through unchanged\n",
        ] {
            outcome.check_message(line);
        }
        bench.run(&format!("quantize back.gguf --layout gguf --scheme {dtype} -q -o again.gguf")).expect(0, "", "");
        bench.run("diff again.gguf plain.gguf -q").expect(0, "", "");
        // Any number of threads writes the same bytes.
        bench.run(&format!("quantize plain.gguf {TYPES} --recover -j1 -q -o one.gguf")).expect(0, "", "");
        assert!(bench.read("one.gguf") == bench.read("back.gguf"), "{dtype}");
        let outcome = bench.run(&format!("quantize plain.gguf {TYPES} --recover --json -q -o json.gguf"));
        outcome.expect(0, &outcome.stdout, "");
        let origins = origins(&outcome.stdout);
        assert!(origins.len() == 16 && origins.iter().all(|(_, codes, at)| codes == "recovered" && at.is_null()));
    }
}

#[test]
fn a_checkpoint_of_hugging_face_gets_the_first_values_back() {
    let bench = tiny();
    bench.run("dequantize tiny.gguf --names huggingface --config base -q -o decoded").expect(0, "", "");
    let line = format!("quantize decoded {TYPES} --metadata-from tiny.gguf --recover --only-exact -q -o back.gguf");
    bench.run(&line).expect(0, "", "");
    for name in ["tiny", "back"] {
        let outcome = bench.run(&format!("dequantize {name}.gguf -q -o {name}.safetensors"));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
    bench.run("diff tiny.safetensors back.safetensors").expect(0, "21 tensors are equal\n", "");
}

#[test]
fn weights_that_were_trained_since_are_quantized_and_the_others_recovered() {
    let bench = decoded("bf16");
    // 0.3 in the middle of a weight: the file ends with ffn_up of the last layer, of 64 columns.
    let mut file = bench.read("plain.gguf");
    let end = file.len();
    file[end - 2 * 64 * 32..][..2].copy_from_slice(&[0x9a, 0x3e]);
    bench.write("plain.gguf", &file);
    let outcome = bench.run(&format!("quantize plain.gguf {TYPES} --recover --json -q -o out.gguf"));
    outcome.expect(0, &outcome.stdout, "");
    let others: Vec<_> = origins(&outcome.stdout).into_iter().filter(|(_, codes, _)| codes != "recovered").collect();
    let [(name, codes, at)] = &others[..] else { panic!("{others:?}") };
    assert_eq!((&**codes, at), ("quantized", &serde_json::json!([64, 0])));
    // It has the bytes that it gets without the option.
    bench.run(&format!("quantize plain.gguf {TYPES} -q -o usual.gguf")).expect(0, "", "");
    bench.run(&format!("diff out.gguf usual.gguf --include {name} -q")).expect(0, "", "");
    bench.run(&format!("quantize plain.gguf {TYPES} --recover --only-exact -o exact.gguf")).says(1, "", "--only-exact");
    assert!(!bench.path("exact.gguf").exists());
}

#[test]
fn float8_values_are_quantized_as_usual() {
    let bench = Bench::new();
    let header =
        r#"{"double_blocks.0.img_attn.proj.weight":{"dtype":"F8_E4M3","shape":[8,256],"data_offsets":[0,2048]}}"#;
    bench.write("f8.safetensors", &safetensors(header, &[0x38; 2048]));
    let line = "quantize f8.safetensors --layout gguf --scheme q8_0 --architecture flux --recover -o f8.gguf";
    let outcome = bench.run(line);
    outcome.says(0, "", "q8_0");
    assert!(!outcome.stderr.contains("recovered"));
}

#[test]
fn weights_that_are_quantized_are_refused() {
    tiny().run("quantize tiny.gguf --scheme q8_0 --recover -o out.gguf").says(2, "", "--recover");
}

/// The encoders of ggml expect the largest code in every block, and choose another scale.
#[test]
fn weights_of_other_layouts_keep_their_values_without_the_largest_code() {
    let bench = Bench::new();
    let q8: Vec<u8> = (0..128).flat_map(|_| q8_0(0x3800, |at| at as i8 - 20)).collect();
    let nv: Vec<u8> = (0..64).flat_map(|row| nvfp4([0x39, 0x40 + row % 8, 0x33, 0x7e], |at| (at % 7) as u8)).collect();
    for (scheme, kind, blocks, layout) in [("q8_0", Q8_0, q8, "compressed-tensors"), ("nvfp4", NVFP4, nv, "modelopt")] {
        let name = "double_blocks.0.img_attn.proj.weight";
        bench.write("first.gguf", &Gguf::of("x").tensor(name, &[64, 64], kind, &blocks).bytes());
        std::fs::create_dir(bench.path(scheme)).unwrap();
        let outcome = bench.run(&format!("quantize first.gguf --layout {layout} --json -q -o {scheme}/m.safetensors"));
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let config = serde_json::json!({ "quantization_config": report["quantization_config"] });
        bench.write(&format!("{scheme}/config.json"), config.to_string().as_bytes());
        let line = format!("quantize {scheme} --layout gguf --scheme f16 --rule *proj.*={scheme} --architecture flux");
        bench.run(&format!("{line} --only-exact -q -f -o back.gguf")).expect(0, "", "");
        bench.run("diff first.gguf back.gguf -q").expect(0, "", "");
        // Without the option, ggml's encoder chooses the blocks.
        bench.run(&format!("{line} -q -f -o back.gguf")).expect(0, "", "");
        assert_eq!(bench.run("diff first.gguf back.gguf -q").code, Some(1), "{scheme}");
    }
}
