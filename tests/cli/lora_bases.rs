//! Adapters on bases that store, tie or transpose a weight in their own way: PEFT defines the result.

use super::gguf_out_folders;
use super::lora::{values, write};
use crate::common::pickle::{checkpoint, dict, f32s, storage, view};
use crate::common::{Bench, fixture, safetensors};
use serde_json::json;
use std::fs;

#[test]
fn a_gguf_that_divides_a_weight_is_not_made_with_a_part_of_its_delta() {
    let bench = Bench::new();
    gguf_out_folders::add(&bench, "deepseek-v3", "m");
    let module = "model.layers.0.self_attn.kv_b_proj";
    let (down, up) = (format!("{module}.lora_A.weight"), format!("{module}.lora_B.weight"));
    write(&bench, "a.safetensors", &[(&down, &[1, 32], &[1.0; 32]), (&up, &[128, 1], &[1.0; 128])]);
    for (line, first) in [("quantize", "--scheme"), ("cast", "--to")] {
        let line = format!("{line} m --lora a.safetensors {first} f32 --pre-tokenizer gpt-2 -o out.gguf");
        let what = "adapters change it, and this conversion does not merge them into such a weight";
        let remedy = "merge the adapters first with tcast cast 'm' --lora ADAPTER, and convert the result";
        bench.run(&line).expect(1, "", &format!("tcast: error: m: tensor '{module}.weight': {what}\n  {remedy}\n"));
    }
    bench.run("cast m --lora a.safetensors --to f32 -o merged -q").expect(0, "", "");
    bench.run("cast merged --pre-tokenizer gpt-2 -o out.gguf -q").expect(0, "", "");
}

#[test]
fn a_head_that_is_tied_to_the_embeddings_changes_with_them() {
    let (table, head) = ("model.embed_tokens.weight", "lm_head.weight");
    let tied = "\"tie_word_embeddings\": true";
    let (config, outer) = ("{\"text_config\": {\"a\": NaN, TIED}}", "{TIED}");
    // The values of both, what config.json says, and whether both change.
    let cases = [
        ([2.0, 2.0], outer, tied, true),
        ([2.0, 2.0], config, tied, true),
        ([2.0, 3.0], outer, tied, false),
        ([2.0, 2.0], outer, "\"tie_word_embeddings\": false", false),
    ];
    for (values_before, config, ties, are_one) in cases {
        let bench = Bench::new();
        fs::create_dir(bench.path("m")).unwrap();
        let [one, two] = values_before;
        write(&bench, "m/model.safetensors", &[(head, &[1, 1], &[two]), (table, &[1, 1], &[one])]);
        bench.write("m/config.json", config.replace("TIED", ties).as_bytes());
        let lora: [(&str, &[u64], &[f32]); 2] =
            [("lm_head.lora_A.weight", &[1, 1], &[4.0]), ("lm_head.lora_B.weight", &[1, 1], &[8.0])];
        write(&bench, "a.safetensors", &lora);
        let outcome = bench.run("cast m --lora a.safetensors -o out");
        let note = format!("tcast: note: '{head}' is tied to '{table}', which changes too\n");
        assert_eq!((outcome.code, outcome.stderr.contains(&note)), (Some(0), are_one), "{}", outcome.stderr);
        let wanted = [two + 32.0, if are_one { one + 32.0 } else { one }];
        assert_eq!(values(&bench, "out/model.safetensors"), wanted, "{config} {ties}");
    }
    let bench = Bench::new();
    fs::create_dir(bench.path("m")).unwrap();
    write(&bench, "m/model.safetensors", &[(head, &[1, 1], &[1.0]), (table, &[1, 1], &[1.0])]);
    bench.write("m/config.json", b"{}");
    let lora: [(&str, &[u64], &[f32]); 2] =
        [("model.embed_tokens.lora_A.weight", &[1, 1], &[4.0]), ("model.embed_tokens.lora_B.weight", &[1, 1], &[8.0])];
    write(&bench, "a.safetensors", &lora);
    let what = "has the values of 'lm_head.weight', and config.json does not say whether they are one weight";
    let text = format!("a.safetensors: tensor '{table}': {what}\n  set tie_word_embeddings in config.json\n");
    bench.run("cast m --lora a.safetensors -o out").expect(1, "", &format!("tcast: error: {text}"));
    // Without a tensor of its own, the head is the embeddings.
    write(&bench, "m/model.safetensors", &[(table, &[1, 1], &[1.0])]);
    let outcome = bench.run("cast m --lora a.safetensors -o out");
    let note = format!("tcast: note: '{table}' is tied to the output head, which changes too\n");
    assert!(outcome.code == Some(0) && outcome.stderr.contains(&note), "{}", outcome.stderr);
}

/// Writes an adapter of PEFT of rank 1 for a module: `lora_B @ lora_A` is [[0, 1], [0, 0]].
fn write_peft(bench: &Bench, config: &str, module: &str, more: &[(&str, &[u64], &[f32])]) {
    fs::create_dir_all(bench.path("a")).unwrap();
    let config = format!("{{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1{config}}}");
    bench.write("a/adapter_config.json", config.as_bytes());
    let names = ["lora_A.weight", "lora_B.weight"].map(|part| format!("base_model.model.{module}.{part}"));
    let own: [(&str, &[u64], &[f32]); 2] = [(&names[0], &[1, 2], &[0.0, 1.0]), (&names[1], &[2, 1], &[1.0, 0.0])];
    write(bench, "a/adapter_model.safetensors", &[&own, more].concat());
}

#[test]
fn the_class_of_a_layer_decides_whether_it_is_transposed() {
    for (kind, layer, is_transposed) in [("gpt2", "c_attn", true), ("gpt2", "score", false), ("llama", "c_attn", false)]
    {
        for flag in [true, false] {
            let bench = Bench::new();
            fs::create_dir(bench.path("m")).unwrap();
            bench.write("m/config.json", format!("{{\"model_type\": \"{kind}\"}}").as_bytes());
            write(&bench, "m/model.safetensors", &[(&format!("h.{layer}.weight"), &[2, 2], &[0.0; 4])]);
            write_peft(&bench, &format!(", \"fan_in_fan_out\": {flag}"), &format!("h.{layer}"), &[]);
            bench.run("cast m --lora a -o out -q").expect(0, "", "");
            let wanted = if is_transposed { [0.0, 0.0, 1.0, 0.0] } else { [0.0, 1.0, 0.0, 0.0] };
            assert_eq!(values(&bench, "out/model.safetensors"), wanted, "{kind} {layer} {flag}");
        }
    }
}

#[test]
fn a_magnitude_and_the_config_of_its_adapter_must_agree() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("l.weight", &[2, 2], &[1.0, 0.0, 0.0, 1.0])]);
    let name = "base_model.model.l.lora_magnitude_vector";
    let magnitude: (&str, &[u64], &[f32]) = (name, &[2], &[1.0, 1.0]);
    let start = "tcast: error: a: tensor 'base_model.model.l.lora_A.weight': adapter_config.json";
    let end = "\n  download the adapter again, with its own adapter_config.json\n";
    for config in ["", ", \"use_dora\": false"] {
        write_peft(&bench, config, "l", &[magnitude]);
        let what = format!("does not set use_dora, without which peft ignores '{name}'");
        bench.run("cast m.safetensors --lora a -o o.safetensors").expect(1, "", &format!("{start} {what}{end}"));
    }
    write_peft(&bench, ", \"use_dora\": true", "l", &[]);
    let what = "sets use_dora, and the module has no lora_magnitude_vector";
    bench.run("cast m.safetensors --lora a -o o.safetensors").expect(1, "", &format!("{start} {what}{end}"));
}

#[test]
fn square_experts_are_turned_as_peft_turns_the_stack_of_the_model() {
    for (version, is_turned) in [("0.18.1", true), ("0.19.1", false)] {
        for is_stacked in [true, false] {
            let bench = Bench::new();
            let half: (&[u64], &[f32]) = (&[1, 2], &[0.0, 0.0]);
            let [gate, up] = ["gate_proj", "up_proj"].map(|part| format!("mlp.experts.0.{part}.weight"));
            let singles = [(&*gate, half.0, half.1), (&*up, half.0, half.1)];
            let stack: [(&str, &[u64], &[f32]); 1] = [("mlp.experts.gate_up_proj", &[1, 2, 2], &[0.0; 4])];
            write(&bench, "m.safetensors", if is_stacked { &stack } else { &singles });
            let listed = "\"target_parameters\": [\"mlp.experts.gate_up_proj\"]";
            write_peft(&bench, &format!(", {listed}, \"peft_version\": \"{version}\""), "mlp.experts", &[]);
            bench.run("cast m.safetensors --lora a -o o.safetensors -q").expect(0, "", "");
            let wanted = if is_turned { [0.0, 0.0, 1.0, 0.0] } else { [0.0, 1.0, 0.0, 0.0] };
            assert_eq!(values(&bench, "o.safetensors"), wanted, "{version} {is_stacked}");
        }
    }
}

#[test]
fn options_of_a_config_that_peft_reads_in_another_way_are_refused() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("l.weight", &[2, 2], &[0.0; 4])]);
    for value in ["1", "\"true\""] {
        write_peft(&bench, &format!(", \"use_rslora\": {value}"), "l", &[]);
        let outcome = bench.run("cast m.safetensors --lora a -o o.safetensors");
        let what = format!("use_rslora is {value}, neither true nor false\n  set it to true or false");
        assert!(outcome.code == Some(1) && outcome.stderr.contains(&what), "{}", outcome.stderr);
    }
    let config = r#"{"peft_type": "LOKR", "r": 1, "alpha": 2, "lora_alpha": 8}"#;
    bench.write("a/adapter_config.json", config.as_bytes());
    let tensors: [(&str, &[u64], &[f32]); 3] = [
        ("base_model.model.l.lokr_w1", &[1, 1], &[1.0]),
        ("base_model.model.l.lokr_w2_a", &[2, 1], &[1.0, 0.0]),
        ("base_model.model.l.lokr_w2_b", &[1, 2], &[0.0, 1.0]),
    ];
    write(&bench, "a/adapter_model.safetensors", &tensors);
    bench.run("cast m.safetensors --lora a -o o.safetensors -q").expect(0, "", "");
    assert_eq!(values(&bench, "o.safetensors"), [0.0, 2.0, 0.0, 0.0]);
}

#[test]
fn metadata_gives_each_component_its_own_scale() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("l.weight", &[1, 1], &[0.0])]);
    let names = |component: &str| ["lora_A.weight", "lora_B.weight"].map(|part| format!("{component}.l.{part}"));
    // The module of the other component comes first.
    let (encoder, model) = (names("text_encoder"), names("transformer"));
    let entry = |at: u64| json!({ "dtype": "F32", "shape": [1, 1], "data_offsets": [4 * at, 4 * at + 4] });
    let run = |metadata: &str, more: &str| {
        let mut header = json!({ "__metadata__": { "lora_adapter_metadata": metadata } });
        for (name, at) in encoder.iter().chain(&model).zip(0..) {
            header[name] = entry(at);
        }
        bench.write("a.safetensors", &safetensors(&header.to_string(), &1.0_f32.to_le_bytes().repeat(4)));
        bench.run(&format!("cast m.safetensors --lora a.safetensors -o o.safetensors --force --allow-unmatched{more}"))
    };
    let both =
        r#"{"text_encoder.r": 1, "text_encoder.lora_alpha": 16, "transformer.r": 1, "transformer.lora_alpha": 4}"#;
    assert_eq!(run(both, "").code, Some(0));
    for (metadata, wanted) in [
        (r#"{"text_encoder.r": 1, "text_encoder.lora_alpha": 16}"#, "which is for text_encoder\n  remove"),
        (r#"{"transformer.r": 8, "transformer.lora_alpha": 4}"#, "has the rank 1, and its metadata 8\n"),
    ] {
        let outcome = run(metadata, "");
        assert!(outcome.code == Some(1) && outcome.stderr.contains(wanted), "{}", outcome.stderr);
    }
    assert_eq!(run(both, " -q").code, Some(0));
    // One of the components has the module.
    assert_eq!(values(&bench, "o.safetensors"), [4.0]);
}

#[test]
fn merged_experts_are_stacked_in_the_same_run() {
    let bench = Bench::new();
    let moe = fixture("checkpoints/qwen3-moe-tiny").display().to_string();
    let names = ["A", "B"].map(|part| format!("model.layers.0.mlp.experts.1.down_proj.lora_{part}.weight"));
    let (down, up) = (&[0.5; 16][..], &[0.25; 32][..]);
    write(&bench, "a.safetensors", &[(&names[0], &[1, 16], down), (&names[1], &[32, 1], up)]);
    bench.run(&format!("cast {moe} --lora a.safetensors -o merged -q")).expect(0, "", "");
    bench.run("cast merged --experts stacked -o wanted -q").expect(0, "", "");
    bench.run(&format!("cast {moe} --lora a.safetensors --experts stacked -o out -q")).expect(0, "", "");
    assert_eq!(bench.read("out/model.safetensors"), bench.read("wanted/model.safetensors"));
    assert_eq!(bench.run(&format!("diff {moe} merged -q")).code, Some(1));
}

#[test]
fn a_tensor_of_pytorch_is_read_whatever_its_strides() {
    let bench = Bench::new();
    write(&bench, "m.safetensors", &[("l.weight", &[2, 2], &[0.0; 4])]);
    fs::create_dir(bench.path("a")).unwrap();
    bench.write("a/adapter_config.json", br#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2}"#);
    let [down, up] = ["A", "B"].map(|part| format!("base_model.model.l.lora_{part}.weight"));
    // A transposed matrix, and one whose rows are the same.
    let transposed = view(storage("Float", "0", 4), 0, &[2, 2], &[1, 2]);
    let expanded = view(storage("Float", "1", 2), 0, &[2, 2], &[0, 1]);
    let (one, two) = (f32s(&[1.0, 2.0, 3.0, 4.0]), f32s(&[1.0, 10.0]));
    let file = checkpoint(&dict(&[(&down, transposed), (&up, expanded)]), &[("0", &one), ("1", &two)]);
    bench.write("a/adapter_model.bin", &file);
    bench.run("cast m.safetensors --lora a -o o.safetensors -q").expect(0, "", "");
    assert_eq!(values(&bench, "o.safetensors"), [21.0, 43.0, 21.0, 43.0]);
}

#[test]
fn a_quantized_weight_that_stays_so_gets_no_delta() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let style = fixture("lora/style").display().to_string();
    bench.run("quantize m --scheme int4 -o q -q").expect(0, "", "");
    let outcome = bench.run(&format!("dequantize q --include *o_proj* --lora {style} -o out"));
    let what =
        "tensor 'model.layers.0.self_attn.q_proj.weight': adapters change it, and this conversion does not merge them";
    assert!(outcome.code == Some(1) && outcome.stderr.contains(what), "{}", outcome.stderr);
    assert_eq!(bench.files(), ["m", "q"]);
}
