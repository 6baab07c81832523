//! GGUF files that are written: rules, reports, parts, casts and refusals.

use super::gguf_out::{ORDER, bench, imatrix, number, small, typed, types};
use crate::common::Bench;
use crate::common::gguf::{F32, Gguf, Q4_0, Q8_0};
use crate::common::gguf_reader::parts_of_gguf;

const BF16: u32 = 30;

#[test]
fn rules_and_patterns_choose_types() {
    let bench = bench();
    let line = "quantize m.gguf --scheme q8_0 --rule *ffn_down*=q4_0 --rule *attn_q*=keep --exclude token_embd.*";
    bench.run(&format!("{line} -o o.gguf -q")).expect(0, "", "");
    assert_eq!(types(&bench.read("o.gguf")), typed(F32, F32, Q4_0));
    let outcome = bench.run(&format!("{line} -o none.gguf -n"));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(
        outcome.stdout,
        "output_norm.weight      [256]     float32 kept: norms                  1.00 KiB -> 1.00 KiB
token_embd.weight       [4, 256]  float32 kept: left out by an option  4.00 KiB -> 4.00 KiB
blk.0.attn_norm.weight  [256]     float32 kept: norms                  1.00 KiB -> 1.00 KiB
blk.0.attn_q.weight     [4, 256]  float32 kept: left out by an option  4.00 KiB -> 4.00 KiB
blk.0.ffn_down.weight   [4, 256]  float32 -> q4_0                      4.00 KiB ->    576 B
"
    );
    outcome.check_message("q4_0");
    assert!(!bench.path("none.gguf").exists());
    for option in ["rule", "include", "exclude"] {
        let value = if option == "rule" { "nothing*=q4_0" } else { "nothing*" };
        bench.run(&format!("quantize m.gguf --scheme q8_0 --{option} {value} -o none.gguf")).says(2, "", "nothing*");
    }
    bench.run("quantize m.gguf --scheme q8_0 --rule *attn_q*=fp8 -o none.gguf").says(2, "", "fp8");
    assert_eq!(bench.files(), ["m.gguf", "o.gguf"]);
}

#[test]
fn a_report_has_the_blocks_of_each_weight() {
    let bench = bench();
    let outcome = bench.run("quantize m.gguf --scheme q4_k_m --json -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let tensors = report["tensors"].as_array().unwrap();
    let find = |name: &str| tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    let weight = find("blk.0.ffn_down.weight");
    assert_eq!(
        weight["quantized"]["parts"],
        serde_json::json!([{"blocks": "Q6_K", "dtype": "uint8", "name": "blk.0.ffn_down.weight", "shape": [4, 256]}])
    );
    assert_eq!((&weight["quantized"]["layout"], &weight["quantized"]["scheme"]), (&"gguf".into(), &"q6_k".into()));
    assert_eq!(find("output_norm.weight")["kept"], "norm");
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    assert_eq!(names, ORDER);
}

#[test]
fn too_much_loss_and_values_without_codes_are_refused() {
    let bench = bench();
    let outcome = bench.run("quantize m.gguf --scheme q4_0 --min-sqnr 40 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""), "{}", outcome.stderr);
    outcome.check_message("written");
    bench.run("quantize m.gguf --scheme q8_0 --min-sqnr 40 -q -o good.gguf").expect(0, "", "");
    // The scale of the third block is too small for float16.
    let values = (0..2048).map(|at| if at / 32 == 2 { 1e-7 } else { 0.5 });
    bench.write("tiny.gguf", &small().floats("blk.0.ffn_up.weight", &[8, 256], values).bytes());
    bench
        .run("quantize tiny.gguf --scheme q8_0 --rule *.ffn_up.*=f16 --fail-on underflowed -o good.gguf -f -q")
        .expect(0, "", "");
    let outcome = bench.run("quantize tiny.gguf --scheme q8_0 --fail-on underflowed -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""), "{}", outcome.stderr);
    for line in [
        "tcast: error: tiny.gguf: 1 tensor has more loss than is allowed: no output was written\n",
        "1 group with a scale too small for its type",
    ] {
        outcome.check_message(line);
    }
    bench.run("quantize m.gguf --scheme q8_0 --fail-on underflowed,clipped -o o.gguf").says(2, "", "--fail-on");
    for (value, scheme) in [(f32::NAN, "q8_0"), (f32::INFINITY, "q4_k_m")] {
        let values = (0..2048).map(|at| if at == 300 { value } else { 0.5 });
        bench.write("nan.gguf", &small().floats("blk.0.ffn_up.weight", &[8, 256], values).bytes());
        bench.run(&format!("quantize nan.gguf --scheme {scheme} -o o.gguf")).says(1, "", "--exclude");
    }
    assert_eq!(bench.files(), ["good.gguf", "m.gguf", "nan.gguf", "tiny.gguf"]);
}

#[test]
fn files_that_are_read_are_never_replaced() {
    let bench = bench();
    let matrix = imatrix("blk.0.attn_q.weight", &[1.0; 256]);
    bench.write("i.gguf", &matrix);
    for line in ["-o i.gguf -f", "-o i.gguf --skip-existing -f", "-o ./i.gguf -f", "-o m.gguf -f"] {
        let outcome = bench.run(&format!("quantize m.gguf --scheme q4_k --imatrix i.gguf {line}"));
        assert_ne!(outcome.code, Some(0), "{line}: {}", outcome.stderr);
    }
    bench.run("quantize m.gguf --scheme q4_k --imatrix i.gguf -o i.gguf -f").says(1, "", "replaced");
    assert!(bench.read("i.gguf") == matrix && bench.read("m.gguf") == small().bytes());
    assert_eq!(bench.files(), ["i.gguf", "m.gguf"]);
}

#[test]
fn a_large_model_is_split_into_parts() {
    let bench = bench();
    let line = "quantize m.gguf --scheme q8_0 --max-shard-size 2500B -o out";
    bench.run(line).says(0, "", "shards");
    let names: Vec<String> = (1..=3).map(|part| format!("out/out-{part:05}-of-00003.gguf")).collect();
    let parts: Vec<Vec<u8>> = names.iter().map(|name| bench.read(name)).collect();
    assert_eq!(std::fs::read_dir(bench.path("out")).unwrap().count(), 3);
    let mut found = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let keys = parts_of_gguf(part).0;
        let value = |key: &str| keys.iter().find(|(name, _)| name == key).unwrap().1;
        assert_eq!(value("split.no"), (at as u16).to_le_bytes());
        assert_eq!(value("split.count"), 3_u16.to_le_bytes());
        assert_eq!(value("split.tensors.count"), 5_i32.to_le_bytes());
        // The metadata of the model is in the first part.
        assert_eq!(keys.iter().any(|(name, _)| name == "tokenizer.ggml.tokens"), at == 0);
        found.extend(types(part));
    }
    assert_eq!(found, typed(Q8_0, Q8_0, Q8_0));
    bench.run("quantize m.gguf --scheme q8_0 -q").expect(0, "", "");
    for name in &names {
        let outcome = bench.run(&format!("inspect {name}"));
        assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
        assert!(outcome.stdout.contains("blk.0.ffn_down.weight") && outcome.stdout.contains("output_norm.weight"));
        bench.run(&format!("diff {name} m.q8_0.gguf")).expect(0, "5 tensors are equal\n", "");
    }
    bench.run(line).says(4, "", "--force");
    bench.run(&format!("{line} --resume")).says(0, "", "complete");
    // Parts that several runs make are the same.
    for part in ["1/2", "2/2"] {
        bench
            .run(&format!("quantize m.gguf --scheme q8_0 --max-shard-size 2500B -o out2 --part {part} -q"))
            .expect(0, "", "");
    }
    bench.run("quantize --finish out2 -q").expect(0, "", "");
    for (name, part) in names.iter().zip(&parts) {
        assert!(bench.read(&name.replace("out", "out2")) == *part, "{name}");
    }
    // Parts of the same model are replaced, whatever their number is. Other files stay, and other models are refused.
    bench.write("out2/README.md", b"notes");
    for (size, parts) in [("1500B", 5), ("1MB", 1), ("2500B", 3)] {
        bench.run(&format!("quantize m.gguf --scheme q8_0 --max-shard-size {size} -o out2 -f -q")).expect(0, "", "");
        let mut found: Vec<String> = std::fs::read_dir(bench.path("out2"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        let mut wanted = vec!["README.md".to_owned()];
        wanted.extend((1..=parts).map(|part| format!("out2-{part:05}-of-{parts:05}.gguf")));
        assert_eq!(found, wanted);
    }
    bench.write("out2/out3-00001-of-00002.gguf", b"");
    bench.run(&format!("{line}2 -f")).says(1, "", "out2/out3-00001-of-00002.gguf");
    // Parts are an input, too.
    bench.run(&format!("quantize {} --scheme q8_0 -o joined.gguf -q", names[1])).expect(0, "", "");
    assert!(bench.read("joined.gguf") == bench.read("m.q8_0.gguf"));
    bench.run("quantize m.gguf --scheme q8_0 --max-shard-size 2500B -o x.gguf").says(2, "", "limited");
}

#[test]
fn a_cast_writes_plain_numbers() {
    let bench = bench();
    bench.run("cast m.gguf --to bf16 -o o.gguf").says(0, "", "bfloat16");
    let file = bench.read("o.gguf");
    assert_eq!(types(&file), typed(BF16, BF16, BF16));
    assert_eq!(number(&file, "general.file_type"), Some(32));
    bench.run("quantize m.gguf --scheme bf16 -o same.gguf -q").expect(0, "", "");
    assert!(file == bench.read("same.gguf"));
    bench.run("cast o.gguf --to f32 -o back.gguf -q").expect(0, "", "");
    bench.run("diff back.gguf m.gguf --tolerance 0.01 -q").expect(0, "", "");
    for to in ["int8", "f64", "e4m3"] {
        let outcome = bench.run(&format!("cast m.gguf --to {to} -o x.gguf"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(2), ""));
        outcome.check_message("GGUF");
    }
    bench.run("quantize m.gguf --scheme q4_0 -o q.gguf -q").expect(0, "", "");
    bench.run("cast q.gguf --to bf16 -o x.gguf").says(1, "", "token_embd.weight");
    // Plain numbers of decoded blocks.
    bench.run("quantize q.gguf --scheme f32 -o decoded.gguf -q").expect(0, "", "");
    bench.run("diff decoded.gguf q.gguf").expect(0, "5 tensors are equal\n", "");
    assert!(!bench.path("x.gguf").exists());
}

#[test]
fn other_commands_and_options_without_a_gguf_output_are_refused() {
    let bench = bench();
    bench.write("i.gguf", &imatrix("blk.0.attn_q.weight", &[1.0; 256]));
    for line in [
        "promote m.gguf --tensor output_norm.weight --tensor token_embd.weight",
        "bitcast m.gguf --to int32",
        "dequantize m.gguf",
    ] {
        bench.run(&format!("{line} -o x.gguf")).says(1, "", "makes");
    }
    for (option, value) in [("--imatrix", "i.gguf"), ("--metadata-from", "m.gguf"), ("--architecture", "flux")] {
        bench.run(&format!("quantize m.gguf --scheme fp8 {option} {value} -o x")).says(2, "", option);
        if option != "--imatrix" {
            bench.run(&format!("cast m.gguf --to bf16 {option} {value} -o x.safetensors")).says(2, "", "GGUF");
        }
    }
    bench.run("quantize m.gguf --scheme q8_0 --metadata-from m.gguf -o x.gguf").says(2, "", "--metadata-from");
    assert_eq!(bench.files(), ["i.gguf", "m.gguf"]);
}

#[test]
fn values_that_would_be_wrong_or_lost_are_refused() {
    let bench = Bench::new();
    // An array in column-major order, as numpy writes it.
    let header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 256), }";
    let header = format!("{header:<117}\n");
    let mut npy = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    npy.extend((0..512_u16).flat_map(|number| f32::from(number).to_le_bytes()));
    bench.write("f.weight.npy", &npy);
    bench.run("quantize f.weight.npy --scheme q8_0 --architecture flux -o o.gguf").says(1, "", "f.weight");
    bench.write("m.gguf", &Gguf::of("flux").floats("x.weight", &[2, 32], [1e6; 64]).bytes());
    bench.run("quantize m.gguf --scheme f16 -o o.gguf").says(3, "", "infinite");
    bench.run("quantize m.gguf --scheme q8_0 --rule x*=q4_k_m -o o.gguf").says(2, "", "q4_k_m");
    assert_eq!(bench.files(), ["f.weight.npy", "m.gguf"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_refused_with_a_remedy_that_helps() {
    let bench = bench();
    bench.run("quantize m.gguf --scheme q8_0 -o /dev/full").says(1, "", "refused");
}
