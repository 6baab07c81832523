//! GGUF files of language models whose metadata is made from their folders.
//!
//! `fixtures/hf2gguf` has configs and tokenizers, the names and shapes of the tensors, and the keys that llama.cpp's
//! converter writes.

use super::gguf::tiny;
use crate::common::gguf_reader::parts_of_gguf;
use crate::common::{Bench, fixture, safetensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;

/// Copies a model, whose weights are zeros, to `name`.
pub(super) fn add(bench: &Bench, source: &str, name: &str) {
    fs::create_dir(bench.path(name)).unwrap();
    for entry in fs::read_dir(fixture("hf2gguf").join(source)).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if !["keys.json", "tensors.json"].contains(&&*file) {
            fs::copy(fixture("hf2gguf").join(source).join(&file), bench.path(name).join(&file)).unwrap();
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (tensor, shape) in listed(source, "tensors.json").as_object().unwrap() {
        let next = end + 2 * shape.as_array().unwrap().iter().map(|length| length.as_u64().unwrap()).product::<u64>();
        header.insert(tensor.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [end, next]}));
        end = next;
    }
    let data = vec![0; end as usize];
    bench.write(&format!("{name}/model.safetensors"), &safetensors(&Value::Object(header).to_string(), &data));
}

fn listed(source: &str, file: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture("hf2gguf").join(source).join(file)).unwrap()).unwrap()
}

/// The bytes of a value, without its type.
fn bytes_of(kind: &str, value: &Value) -> Vec<u8> {
    match kind {
        "string" => {
            let text = value.as_str().unwrap();
            [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
        }
        "u32" | "f32" => (value.as_u64().unwrap() as u32).to_le_bytes().to_vec(),
        "i32" => (value.as_i64().unwrap() as i32).to_le_bytes().to_vec(),
        "bool" => vec![value.as_bool().unwrap().into()],
        other => panic!("{other}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The bytes of a key.
fn key<'f>(file: &'f [u8], name: &str) -> Option<&'f [u8]> {
    parts_of_gguf(file).0.into_iter().find(|(known, _)| known == name).map(|(_, bytes)| bytes)
}

fn texts(file: &[u8], name: &str) -> Vec<String> {
    let (mut rest, mut all) = (&key(file, name).unwrap()[12..], Vec::new());
    while let Some((length, tail)) = rest.split_first_chunk::<8>() {
        let (text, tail) = tail.split_at(u64::from_le_bytes(*length) as usize);
        all.push(String::from_utf8_lossy(text).into_owned());
        rest = tail;
    }
    all
}

fn numbers(file: &[u8], name: &str) -> Vec<u32> {
    key(file, name).unwrap()[12..].as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

#[test]
fn the_keys_are_those_of_llama_cpps_converter() {
    for (model, pre) in [
        ("llama-bpe", "--pre-tokenizer llama-bpe"),
        ("llama-spm", ""),
        ("qwen2", "--pre-tokenizer qwen2"),
        ("phi3", ""),
        ("gemma3", ""),
        ("deepseek-v3", "--pre-tokenizer deepseek-llm"),
        ("olmo3", "--pre-tokenizer gpt-2"),
        ("glm4_moe_lite", "--pre-tokenizer gpt-2"),
        ("deepseek_v32", "--pre-tokenizer gpt-2"),
        ("glm_moe_dsa", "--pre-tokenizer gpt-2"),
        ("hunyuan_v1_dense", "--pre-tokenizer gpt-2"),
        ("minimax_m2", "--pre-tokenizer gpt-2"),
        ("mimo_v2_flash", "--pre-tokenizer gpt-2"),
        ("gemma4_text", ""),
        ("gemma4_moe", ""),
        ("lfm2", "--pre-tokenizer gpt-2"),
        ("lfm2_moe", "--pre-tokenizer gpt-2"),
        ("qwen3_next", "--pre-tokenizer gpt-2"),
        ("qwen3_5_text", "--pre-tokenizer gpt-2"),
        ("qwen3_5_moe_text", "--pre-tokenizer gpt-2"),
        ("nemotron_h", "--pre-tokenizer gpt-2"),
        ("nemotron_h_moe", "--pre-tokenizer gpt-2"),
        ("kimi_linear", "--pre-tokenizer gpt-2"),
    ] {
        let bench = Bench::new();
        add(&bench, model, "my-model-v1.5");
        bench.run(&format!("cast my-model-v1.5 --to bf16 -o o.gguf {pre} -q")).expect(0, "", "");
        bench.run("diff o.gguf my-model-v1.5 --names huggingface --tolerance 0 -q").expect(0, "", "");
        let file = bench.read("o.gguf");
        let mut found: BTreeMap<String, &[u8]> = parts_of_gguf(&file).0.into_iter().collect();
        let wanted = listed(model, "keys.json");
        for (name, value) in wanted.as_object().unwrap() {
            let bytes = found.remove(name).unwrap_or_else(|| panic!("{model} lacks {name}"));
            match value[0].as_str().unwrap() {
                "sha256" => assert_eq!(hex(bytes), value[1].as_str().unwrap(), "{model} {name}"),
                kind => assert_eq!(bytes, bytes_of(kind, &value[1]), "{model} {name}"),
            }
        }
        let more: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(more, ["general.file_type", "general.name", "general.quantization_version"], "{model}");
        if model != "llama-spm" {
            assert_eq!(found["general.name"], bytes_of("string", &json!("My Model v1.5")), "{model}");
        }
    }
}

#[test]
fn logarithms_of_linear_attention_become_negative_exponentials_in_the_order_of_llama_cpp() {
    let bench = Bench::new();
    add(&bench, "qwen3_5_text", "m");
    let mut file = bench.read("m/model.safetensors");
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let place = |name: &str| 8 + length + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // Two key heads with three value heads each.
    let (logarithms, at) = ([0.0f32, 0.5, 1.0, 1.5, 2.0, -1.0], place("model.layers.0.linear_attn.A_log"));
    for (value, bytes) in logarithms.iter().zip(file[at..].chunks_mut(2)) {
        bytes.copy_from_slice(&value.to_le_bytes()[2..]);
    }
    // Row 0 of a weight whose columns are value heads of 8: column c has the value c.
    let at = place("model.layers.0.linear_attn.out_proj.weight");
    for (column, bytes) in file[at..].chunks_mut(2).take(48).enumerate() {
        bytes.copy_from_slice(&(column as f32).to_le_bytes()[2..]);
    }
    bench.write("m/model.safetensors", &file);
    bench.run("cast m --to bf16 -o o.gguf --pre-tokenizer gpt-2 -q").expect(0, "", "");
    bench.run("diff o.gguf m --names huggingface --tolerance 0 -q").expect(0, "", "");
    let file = bench.read("o.gguf");
    let data = |name: &str| parts_of_gguf(&file).1.into_iter().find(|(known, ..)| known == name).unwrap().3;
    let order = [0, 3, 1, 4, 2, 5];
    let wanted = order.map(|head| -f64::from(logarithms[head]).exp() as f32);
    assert_eq!(data("blk.0.ssm_a").as_chunks().0[..6], wanted.map(f32::to_le_bytes));
    let columns = order.iter().flat_map(|head| 8 * head..8 * head + 8).map(|column| column as f32);
    let wanted: Vec<u8> = columns.flat_map(|column| column.to_le_bytes()[2..].to_vec()).collect();
    assert_eq!(data("blk.0.ssm_out.weight")[..96], wanted);
}

#[test]
fn one_command_quantizes_a_folder_and_says_what_its_metadata_is() {
    let bench = Bench::new();
    add(&bench, "llama-bpe", "m");
    let outcome = bench.run("quantize m --layout gguf --scheme q8_0 --pre-tokenizer llama-bpe");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    for line in [
        "tcast: note: metadata of the folder: llama, 2 layers, 336 tokens (BPE, pre-tokenizer llama-bpe), chat template\n",
        "tcast: note: rope_freqs.weight is computed from config.json\n",
        "\nm -> m.q8_0.gguf\n",
    ] {
        outcome.check_message(line);
    }
    bench.run("diff m.q8_0.gguf m --names huggingface --tolerance 0 -q").expect(0, "", "");
    // The metadata of another GGUF wins.
    bench
        .run("quantize m --scheme q8_0 --metadata-from m.q8_0.gguf --set general.name=x -o n.gguf -q")
        .expect(0, "", "");
    bench.run("quantize m --scheme q8_0 --metadata-from n.gguf -o o.gguf -q").expect(0, "", "");
    assert_eq!(key(&bench.read("o.gguf"), "general.name"), Some(&*bytes_of("string", &json!("x"))));
}

#[test]
fn towers_and_layers_that_predict_are_left_out_and_named() {
    let bench = Bench::new();
    add(&bench, "qwen2", "m");
    let file = bench.read("m/model.safetensors");
    let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let (mut renamed, mut data) = (serde_json::Map::new(), file[8 + length..].to_vec());
    for (name, tensor) in std::mem::take(&mut header) {
        let name = name.strip_prefix("model.").map_or(name.clone(), |rest| format!("model.language_model.{rest}"));
        renamed.insert(name, tensor);
    }
    for name in ["model.visual.blocks.0.attn.qkv.weight", "model.visual.blocks.1.attn.qkv.weight", "mtp.fc.weight"] {
        let tensor = json!({"dtype": "BF16", "shape": [1, 2], "data_offsets": [data.len(), data.len() + 4]});
        renamed.insert(name.to_owned(), tensor);
        data.extend([0; 4]);
    }
    bench.write("m/model.safetensors", &safetensors(&Value::Object(renamed).to_string(), &data));
    let outcome = bench.run("cast m --to bf16 -o o.gguf --pre-tokenizer qwen2");
    for line in [
        "2 tensors of the tower for images or sound are left out: llama.cpp wants them in another file, which \
         convert_hf_to_gguf.py --mmproj makes: model.visual.blocks.*.attn.qkv.weight",
        "1 tensor of layers that predict several tokens is left out: mtp.fc.weight",
    ] {
        outcome.says(0, "", line);
    }
    add(&bench, "qwen2", "plain");
    bench.run("cast plain --to bf16 -o p.gguf --pre-tokenizer qwen2 -q").expect(0, "", "");
    bench.run("diff o.gguf p.gguf -q").expect(0, "", "");
}

#[test]
fn a_tokenizer_with_byte_fallback_is_read_from_json() {
    let bench = Bench::new();
    add(&bench, "llama-spm", "m");
    fs::remove_file(bench.path("m/tokenizer.model")).unwrap();
    fs::copy(fixture("hf2gguf/phi3/tokenizer.json"), bench.path("m/tokenizer.json")).unwrap();
    bench.run("cast m --to bf16 -o o.gguf -q").says(1, "", "--metadata-from");
    let mut file: Value = serde_json::from_slice(&bench.read("m/tokenizer.json")).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    added.retain(|token| token["id"].as_u64().unwrap() < 499);
    added.push(json!({"id": 499, "content": "<extra>", "special": true}));
    file["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < 499);
    bench.write("m/tokenizer.json", file.to_string().as_bytes());
    bench.run("cast m --to bf16 -o o.gguf -q").expect(0, "", "");
    let made = bench.read("o.gguf");
    assert_eq!(key(&made, "tokenizer.ggml.model"), Some(&*bytes_of("string", &json!("llama"))));
    let (tokens, kinds) = (texts(&made, "tokenizer.ggml.tokens"), numbers(&made, "tokenizer.ggml.token_type"));
    let kind = |text: &str| kinds[tokens.iter().position(|token| token == text).unwrap()];
    // The tokens that tokenizer_config.json names are special; others are not, whatever tokenizer.json says.
    assert_eq!((kind("<s>"), kind("<0x0A>"), kind("<extra>"), tokens.len()), (3, 6, 4, 500));
    assert!(numbers(&made, "tokenizer.ggml.scores").iter().all(|score| *score == (-1000_f32).to_bits()));
}

#[test]
fn a_known_tokenizer_needs_no_name_and_an_unknown_one_is_refused_with_the_section_that_is_equal() {
    let bench = Bench::new();
    add(&bench, "qwen2", "m");
    bench.run("cast m --to bf16 -o o.gguf").check_message("--pre-tokenizer");
    let mut file: Value = serde_json::from_slice(&bench.read("m/tokenizer.json")).unwrap();
    file["pre_tokenizer"] = json!({"type": "Whitespace"});
    bench.write("m/tokenizer.json", file.to_string().as_bytes());
    bench.run("cast m --to bf16 -o o.gguf").check_message("sha256");
    let outcome = bench.run("cast m --to bf16 -o o.gguf --pre-tokenizer qwen");
    assert_eq!(outcome.code, Some(2));
    outcome.check_message("qwen");
    // The library tokenizers ignores the number of an added token that is not the next one.
    fs::copy(fixture("hf2gguf/hash/gpt-2.json"), bench.path("m/tokenizer.json")).unwrap();
    bench.run("cast m --to bf16 -o o.gguf").says(1, "", "--metadata-from");
}

#[test]
fn an_option_that_has_no_effect_is_refused() {
    let bench = tiny();
    add(&bench, "llama-spm", "m");
    for line in [
        "cast m --to bf16 -o o.gguf",
        "cast m --to bf16 --metadata-from tiny.gguf -o o.gguf",
        "quantize tiny.gguf --scheme q8_0 -o o.gguf",
        "cast m --to bf16 -o o",
    ] {
        bench.run(&format!("{line} --pre-tokenizer qwen2")).says(2, "", "--pre-tokenizer");
    }
}

#[test]
fn hostile_files_of_a_tokenizer_are_refused_at_once() {
    let bench = Bench::new();
    add(&bench, "qwen2", "m");
    add(&bench, "llama-spm", "s");
    let own: Value = serde_json::from_slice(&bench.read("m/tokenizer.json")).unwrap();
    let changed = |pointer: &str, value: Value| {
        let mut file = own.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        file.to_string()
    };
    let step = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
    let steps = |pattern: &str, count: usize| json!({"type": "Sequence", "pretokenizers": vec![step(pattern); count]});
    for (what, text) in [
        ("no JSON", "{".to_owned()),
        ("depth", "[".repeat(100_000)),
        ("a list", "[]".to_owned()),
        ("no model", "{}".to_owned()),
        ("another kind", changed("/model/type", json!("WordPiece"))),
        ("a large number", changed("/model/vocab", json!({"a": 4_000_000_000_u32}))),
        ("a negative number", changed("/model/vocab", json!({"a": -1}))),
        ("a list of tokens", changed("/model/vocab", json!([["a", 1.5]]))),
        ("no merge", changed("/model/merges", json!(["a"]))),
        ("a large pattern", changed("/pre_tokenizer", step(&r"\p{L}{1000}".repeat(1000)))),
        ("many patterns", changed("/pre_tokenizer", steps(r"\w{50}", 10_000))),
        ("a nested pattern", changed("/pre_tokenizer", step(&"(".repeat(10_000)))),
        (
            "long replacements",
            changed(
                "/normalizer",
                json!({"type": "Sequence", "normalizers": vec![json!({"type": "Replace", "pattern": {"String": "e"},
                "content": "e".repeat(1000)}); 50]}),
            ),
        ),
    ] {
        bench.write("m/tokenizer.json", text.as_bytes());
        let outcome = bench.run("cast m --to bf16 -o o.gguf");
        assert!(outcome.code == Some(1) && outcome.stderr.starts_with("tcast: error: m"), "{what}: {}", outcome.stderr);
    }
    bench.write("m/tokenizer.json", own.to_string().as_bytes());
    for (field, value) in [
        ("vocab_size", json!(4_000_000_000_u64)),
        ("vocab_size", json!(-1)),
        ("num_attention_heads", json!("four")),
        ("max_position_embeddings", json!(1e300)),
        ("eos_token_id", json!(-1)),
        ("architectures", json!(["Qwen2ForSequenceClassification"])),
    ] {
        let mut config = serde_json::from_slice::<Value>(&bench.read("m/config.json")).unwrap();
        let before = std::mem::replace(&mut config[field], value.clone());
        bench.write("m/config.json", config.to_string().as_bytes());
        let outcome = bench.run("cast m --to bf16 -o o.gguf --pre-tokenizer qwen2");
        assert!(
            outcome.code == Some(1) && outcome.stderr.starts_with("tcast: error: m"),
            "{value}: {}",
            outcome.stderr
        );
        config[field] = before;
        bench.write("m/config.json", config.to_string().as_bytes());
    }
    let model = bench.read("s/tokenizer.model");
    for bytes in [
        model[..model.len() - 3].to_vec(),
        Vec::new(),
        vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
        vec![0x0a, 2, 0x18, 9],
    ] {
        bench.write("s/tokenizer.model", &bytes);
        bench.run("cast s --to bf16 -o o.gguf").says(1, "", "tokenizer");
    }
}

#[test]
fn inspect_says_in_a_line_which_metadata_a_folder_gives_or_what_is_missing() {
    let bench = Bench::new();
    add(&bench, "llama-spm", "m");
    let lines = |line: &str| -> Vec<String> {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
        outcome.stdout.lines().filter(|line| line.contains("GGUF")).map(str::to_owned).collect()
    };
    let found =
        || serde_json::from_str::<Value>(&bench.run("inspect m --json").stdout).unwrap()["gguf_metadata"].take();
    assert_eq!(lines("inspect m"), ["GGUF metadata is complete: llama, 2 layers, 500 tokens (SentencePiece)"]);
    let facts = json!({"is_complete": true, "architecture": "llama", "layers": 2, "tokenizer": "SentencePiece",
        "tokens": 500, "pre_tokenizer": null, "has_chat_template": false});
    assert_eq!(found(), facts);
    // The line is about the whole model.
    assert!(lines("inspect m --include *norm*").is_empty() && lines("inspect m/model.safetensors").is_empty());
    fs::remove_file(bench.path("m/tokenizer.model")).unwrap();
    let (error, remedy) = (
        "m: has no tokenizer.json and no tokenizer.model",
        "add --metadata-from MODEL.gguf, which is any GGUF of the same model",
    );
    assert_eq!(lines("inspect m"), [format!("GGUF metadata is incomplete: {error}; {remedy}")]);
    assert_eq!(found(), json!({"is_complete": false, "error": error, "remedy": remedy}));
    // What is first is what the conversion refuses.
    let refused = bench.run("cast m --to bf16 -o o.gguf").stderr;
    assert_eq!(refused, format!("tcast: error: {error}\n  {remedy}\n"));
    let mut config: Value = serde_json::from_slice(&bench.read("m/config.json")).unwrap();
    config["model_type"] = json!("bert");
    bench.write("m/config.json", config.to_string().as_bytes());
    let start =
        "GGUF metadata is incomplete: tcast has no GGUF names for the model type 'bert'; make a GGUF with llama.cpp's ";
    let found_lines = lines("inspect m");
    assert!(found_lines.len() == 1 && found_lines[0].starts_with(start), "{found_lines:?}");
    // A config of something else, and no config, say nothing.
    for config in [Some("{\"_class_name\": \"UNet\"}"), None] {
        fs::remove_file(bench.path("m/config.json")).unwrap();
        if let Some(text) = config {
            bench.write("m/config.json", text.as_bytes());
        }
        assert!(lines("inspect m").is_empty() && found().is_null());
    }
}

#[test]
fn inspect_names_the_pre_tokenizer_that_is_missing() {
    let bench = Bench::new();
    add(&bench, "qwen2", "m");
    let outcome = bench.run("inspect m");
    let start = "\nGGUF metadata is incomplete: m: its pre-tokenizer is not one that llama.cpp knows (sha256 ";
    let end = "); its pre_tokenizer section is that of qwen2: add --pre-tokenizer qwen2, or add --metadata-from MODEL.gguf, which \
               is any GGUF of the same model\n";
    assert!(
        outcome.code == Some(0) && outcome.stdout.contains(start) && outcome.stdout.contains(end),
        "{}",
        outcome.stdout
    );
}

/// Changes a JSON file; null removes a member.
fn edit(bench: &Bench, file: &str, changes: &Value) {
    let mut value: Value = serde_json::from_slice(&bench.read(file)).unwrap();
    let members = value.as_object_mut().unwrap();
    for (name, change) in changes.as_object().unwrap() {
        match change {
            Value::Null => members.remove(name),
            change => members.insert(name.clone(), change.clone()),
        };
    }
    bench.write(file, value.to_string().as_bytes());
}

#[test]
fn what_a_folder_cannot_give_is_refused_by_name_with_a_remedy() {
    const DONOR: &str = "add --metadata-from MODEL.gguf, which is any GGUF of the same model";
    const CONVERTER: &str =
        "make a GGUF with llama.cpp's convert_hf_to_gguf.py, and quantize it: tcast quantize MODEL.gguf --scheme q8_0";
    let config = |changes: Value| move |bench: &Bench| edit(bench, "m/config.json", &changes);
    let without = |file: &'static str| move |bench: &Bench| fs::remove_file(bench.path(file)).unwrap();
    let of_kind = |kind: &'static str| {
        move |bench: &Bench| edit(bench, "m/tokenizer.json", &json!({"model": {"type": kind, "vocab": {}}}))
    };
    let python = |bench: &Bench| {
        edit(bench, "m/tokenizer_config.json", &json!({"auto_map": {"AutoTokenizer": ["t.T", null]}}));
        fs::remove_file(bench.path("m/tokenizer.json")).unwrap();
    };
    let tekken = |bench: &Bench| {
        fs::rename(bench.path("m/tokenizer.json"), bench.path("m/tekken.json")).unwrap();
    };
    let appended = |bench: &Bench| edit(bench, "m/tokenizer_config.json", &json!({"pad_token": "<|other|>"}));
    let card = |bench: &Bench| bench.write("m/README.md", b"# Qwen3-Reranker-0.6B\n");
    #[allow(clippy::type_complexity, reason = "a table of this test")]
    let rows: [(&str, &dyn Fn(&Bench), &str, &str); 18] = [
        (
            "qwen2",
            &config(json!({"architectures": ["Qwen2VisionModel"]})),
            "the class Qwen2VisionModel does not ",
            CONVERTER,
        ),
        (
            "qwen2",
            &config(json!({"architectures": ["Qwen2Model"]})),
            "the class Qwen2Model does not generate",
            CONVERTER,
        ),
        (
            "qwen2",
            &config(json!({"architectures": ["Qwen2ForSequenceClassification"]})),
            "the class Qwen2For",
            CONVERTER,
        ),
        ("qwen3_next", &card, "ranks texts, and its GGUF file needs an output", CONVERTER),
        ("qwen2", &config(json!({"model_type": "bert"})), "has no GGUF names for the model type 'bert'", CONVERTER),
        ("qwen2", &config(json!({"quantization_config": {"quant_method": "aqlm"}})), "is quantized with AQLM", ""),
        ("qwen2", &without("m/tokenizer.json"), "has no tokenizer.json and no tokenizer.model", DONOR),
        ("gemma3", &without("m/tokenizer.model"), "has no tokenizer.json and no tokenizer.model", DONOR),
        ("qwen2", &of_kind("WordPiece"), "has a tokenizer.json of the kind WordPiece, which llama.cpp does not", DONOR),
        ("qwen2", &of_kind("Unigram"), "has a tokenizer.json of the kind Unigram, which llama.cpp does not", DONOR),
        ("qwen2", &python, "has a tokenizer that is Python code, which tcast does not run", DONOR),
        ("qwen2", &tekken, "has its tokenizer in tekken.json alone, which tcast does not read", DONOR),
        ("qwen2", &appended, "has the pad_token <|other|>, which tokenizer.json does not have", DONOR),
        ("qwen3_next", &config(json!({"mlp_only_layers": [0]})), "config.json has mlp_only_layers, and ", CONVERTER),
        (
            "qwen3_5_moe_text",
            &config(json!({"mlp_only_layers": [1]})),
            "config.json has mlp_only_layers, and ",
            CONVERTER,
        ),
        ("qwen3_next", &config(json!({"layer_types": ["linear_attention"]})), "has 1 layer_types for 2 layers", ""),
        ("deepseek-v3", &config(json!({"scoring_func": "odd"})), "the router function 'odd' is not one of", CONVERTER),
        ("kimi_linear", &config(json!({"kv_lora_rank": null})), "config.json has no kv_lora_rank, which llama.cpp", ""),
    ];
    for (source, change, error, remedy) in rows {
        let bench = Bench::new();
        add(&bench, source, "m");
        change(&bench);
        let outcome = bench.run("cast m --to bf16 -o o.gguf");
        assert_eq!(outcome.code, Some(1), "{source}: {error}: {}", outcome.stderr);
        let (said, proposed) = outcome.stderr.split_once('\n').unwrap();
        assert!(said.starts_with("tcast: error: m") && said.contains(error), "{error}: {said}");
        assert_eq!(proposed.trim(), remedy, "{error}");
        assert!(!bench.path("o.gguf").exists());
    }
}

#[test]
fn a_config_that_does_not_fit_the_tensors_makes_no_gguf() {
    for (changes, wanted) in [
        (json!({"intermediate_size": 999}), "feed_forward_length is 999"),
        (json!({"num_local_experts": 8}), "expert_count is 8, and there are none"),
    ] {
        let bench = Bench::new();
        add(&bench, "llama-bpe", "m");
        edit(&bench, "m/config.json", &changes);
        let outcome = bench.run("cast m --to bf16 --pre-tokenizer llama-bpe -o o.gguf");
        assert!(outcome.code == Some(1) && outcome.stderr.contains(wanted), "{outcome:?}");
    }
}

#[test]
fn an_adapter_alone_makes_no_gguf() {
    let bench = Bench::new();
    fs::create_dir(bench.path("style")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(fixture("lora/style").join(file), bench.path("style").join(file)).unwrap();
    }
    for line in ["cast style --to bf16 -o o.gguf", "quantize style --layout gguf --scheme q8_0 -o o.gguf"] {
        bench.run(line).says(1, "", "--lora");
    }
}
