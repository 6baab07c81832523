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
    assert!(outcome.stderr.starts_with("would quantize 1 tensor to q4_0, copy 4: "), "{}", outcome.stderr);
    assert!(!bench.path("none.gguf").exists());
    for option in ["rule", "include", "exclude"] {
        let value = if option == "rule" { "nothing*=q4_0" } else { "nothing*" };
        bench.run(&format!("quantize m.gguf --scheme q8_0 --{option} {value} -o none.gguf")).expect(
            2,
            "",
            &format!("tcast: error: m.gguf: the pattern 'nothing*' matches no tensor\n  leave --{option} out\n"),
        );
    }
    let outcome = bench.run("quantize m.gguf --scheme q8_0 --rule *attn_q*=fp8 -o none.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(2), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("tcast: error: the layout gguf has no scheme fp8, "), "{}", outcome.stderr);
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
    let error = "tcast: error: m.gguf: 3 tensors have more loss than is allowed: no output was written\n";
    assert!(outcome.stderr.starts_with(error), "{}", outcome.stderr);
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
        assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    }
    bench.run("quantize m.gguf --scheme q8_0 --fail-on underflowed,clipped -o o.gguf").expect(
        2,
        "",
        "tcast: error: --fail-on clipped has no effect: tcast counts no such values in the blocks of GGUF files; --min-sqnr refuses a bad result
  leave --fail-on out
",
    );
    for (value, scheme) in [(f32::NAN, "q8_0"), (f32::INFINITY, "q4_k_m")] {
        let values = (0..2048).map(|at| if at == 300 { value } else { 0.5 });
        bench.write("nan.gguf", &small().floats("blk.0.ffn_up.weight", &[8, 256], values).bytes());
        bench.run(&format!("quantize nan.gguf --scheme {scheme} -o o.gguf")).expect(
            1,
            "",
            "tcast: error: nan.gguf: tensor 'blk.0.ffn_up.weight': 1 of 2048 elements is infinite or NaN, which codes and scales cannot represent: the first is [1, 44]
  copy it as it is with --exclude 'blk.0.ffn_up.weight'
",
        );
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
    bench.run("quantize m.gguf --scheme q4_k --imatrix i.gguf -o i.gguf -f").expect(
        1,
        "",
        "tcast: error: i.gguf: is a file of the input, and would be replaced\n  name another file\n",
    );
    assert!(bench.read("i.gguf") == matrix && bench.read("m.gguf") == small().bytes());
    assert_eq!(bench.files(), ["i.gguf", "m.gguf"]);
}

#[test]
fn a_large_model_is_split_into_parts() {
    let bench = bench();
    let line = "quantize m.gguf --scheme q8_0 --max-shard-size 2500B -o out";
    let outcome = bench.run(line);
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\nm.gguf -> out, 3 shards\n"), "{}", outcome.stderr);
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
    let exists =
        "tcast: error: out: the output exists already\n  add --force to replace it, or name another folder with -o\n";
    bench.run(line).expect(4, "", exists);
    bench.run(&format!("{line} --resume")).expect(0, "", "already complete: out\n");
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
    bench.run(&format!("{line}2 -f")).expect(
        1,
        "",
        "tcast: error: out2/out3-00001-of-00002.gguf: is not a shard of the checkpoint that is to be replaced, and would stay
  move it out of the folder: mv -n 'out2/out3-00001-of-00002.gguf' 'out2/..', or name another folder with -o
",
    );
    // Parts are an input, too.
    bench.run(&format!("quantize {} --scheme q8_0 -o joined.gguf -q", names[1])).expect(0, "", "");
    assert!(bench.read("joined.gguf") == bench.read("m.q8_0.gguf"));
    bench.run("quantize m.gguf --scheme q8_0 --max-shard-size 2500B -o x.gguf").expect(
        2,
        "",
        "tcast: error: x.gguf: is one file, and shards of a limited size go into a folder\n  name a folder with -o\n",
    );
}

#[test]
fn a_cast_writes_plain_numbers() {
    let bench = bench();
    let outcome = bench.run("cast m.gguf --to bf16 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("cast 3 tensors to bfloat16, copied 2\n"), "{}", outcome.stderr);
    let file = bench.read("o.gguf");
    assert_eq!(types(&file), typed(BF16, BF16, BF16));
    assert_eq!(number(&file, "general.file_type"), Some(32));
    bench.run("quantize m.gguf --scheme bf16 -o same.gguf -q").expect(0, "", "");
    assert!(file == bench.read("same.gguf"));
    bench.run("cast o.gguf --to f32 -o back.gguf -q").expect(0, "", "");
    bench.run("diff back.gguf m.gguf --tolerance 0.01 -q").expect(0, "", "");
    for (to, name) in [("int8", "int8"), ("f64", "float64"), ("e4m3", "float8e4m3fn")] {
        let outcome = bench.run(&format!("cast m.gguf --to {to} -o x.gguf"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(2), ""));
        let error = format!("tcast: error: models in GGUF files are not cast to {name}\n  cast to f32, f16 or bf16, ");
        assert!(outcome.stderr.starts_with(&error), "{}", outcome.stderr);
    }
    bench.run("quantize m.gguf --scheme q4_0 -o q.gguf -q").expect(0, "", "");
    let outcome = bench.run("cast q.gguf --to bf16 -o x.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""));
    assert!(
        outcome.stderr.starts_with(
            "tcast: error: q.gguf: tensor 'token_embd.weight': holds codes and scales, and no values to cast\n"
        ),
        "{}",
        outcome.stderr
    );
    // Plain numbers of decoded blocks.
    bench.run("quantize q.gguf --scheme f32 -o decoded.gguf -q").expect(0, "", "");
    bench.run("diff decoded.gguf q.gguf").expect(0, "5 tensors are equal\n", "");
    assert!(!bench.path("x.gguf").exists());
}

#[test]
fn other_commands_and_options_without_a_gguf_output_are_refused() {
    let bench = bench();
    bench.write("i.gguf", &imatrix("blk.0.attn_q.weight", &[1.0; 256]));
    let formats = "name an output that ends in .npz or .safetensors";
    for (line, remedy) in [
        ("promote m.gguf --tensor output_norm.weight --tensor token_embd.weight", formats),
        ("bitcast m.gguf --to int32", formats),
        ("dequantize m.gguf", "tcast quantize 'm.gguf' --scheme bf16 -o 'x.gguf'"),
    ] {
        let command = line.split(' ').next().unwrap();
        let error = format!("tcast: error: x.gguf: {command} makes no .gguf files\n  {remedy}\n");
        bench.run(&format!("{line} -o x.gguf")).expect(1, "", &error);
    }
    for (option, value) in [("--imatrix", "i.gguf"), ("--metadata-from", "m.gguf"), ("--architecture", "flux")] {
        let remedy = format!("  leave {option} out\n");
        bench.run(&format!("quantize m.gguf --scheme fp8 {option} {value} -o x")).expect(
            2,
            "",
            &format!("tcast: error: {option} has no effect with the layout compressed-tensors\n{remedy}"),
        );
        if option != "--imatrix" {
            let error = format!("tcast: error: the output is not a GGUF file: an option has no effect\n{remedy}");
            bench.run(&format!("cast m.gguf --to bf16 {option} {value} -o x.safetensors")).expect(2, "", &error);
        }
    }
    bench.run("quantize m.gguf --scheme q8_0 --metadata-from m.gguf -o x.gguf").expect(
        2,
        "",
        "tcast: error: m.gguf: is a GGUF file, which has metadata\n  leave --metadata-from out\n",
    );
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
    bench.run("quantize f.weight.npy --scheme q8_0 --architecture flux -o o.gguf").expect(
        1,
        "",
        "tcast: error: f.weight.npy: tensor 'f.weight': GGUF files are made from .safetensors and .gguf files\n  \
         cast the input to .safetensors first\n",
    );
    bench.write("m.gguf", &Gguf::of("flux").floats("x.weight", &[2, 32], [1e6; 64]).bytes());
    let outcome = bench.run("quantize m.gguf --scheme f16 -o o.gguf");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""));
    assert!(outcome.stderr.contains("x.weight: 64 of 64 values became infinite"), "{}", outcome.stderr);
    let outcome = bench.run("quantize m.gguf --scheme q8_0 --rule x*=q4_k_m -o o.gguf");
    let error = "tcast: error: a rule gives tensors one type, and q4_k_m is a mix\n  name the type: q4_k\n";
    outcome.expect(2, "", error);
    assert_eq!(bench.files(), ["f.weight.npy", "m.gguf"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_refused_with_a_remedy_that_helps() {
    let bench = bench();
    bench.run("quantize m.gguf --scheme q8_0 -o /dev/full").expect(
        1,
        "",
        "tcast: error: /dev/full: is not a file, so the output cannot be undone if a value is refused at the end\n  name a file\n",
    );
}
