//! GGUF files that are written: types, bytes and metadata, for inputs that are GGUF files.

use crate::common::gguf::{F32, Gguf, Q4_K, Q8_0};
use crate::common::gguf_reader::parts_of_gguf;
use crate::common::{Bench, fixture};
use ::safetensors::SafeTensors;

const Q5_K: u32 = 13;
const Q6_K: u32 = 14;

/// Names and types of the tensors of a file.
pub(super) fn types(file: &[u8]) -> Vec<(String, u32)> {
    parts_of_gguf(file).1.into_iter().map(|(name, id, ..)| (name, id)).collect()
}

/// The data of a tensor, to the end of the file.
fn data<'f>(file: &'f [u8], wanted: &str) -> &'f [u8] {
    parts_of_gguf(file).1.into_iter().find(|(name, ..)| name == wanted).unwrap().3
}

fn keys(file: &[u8]) -> Vec<String> {
    parts_of_gguf(file).0.into_iter().map(|(name, _)| name).collect()
}

/// The value of a key that is a 32-bit number.
pub(super) fn number(file: &[u8], key: &str) -> Option<u32> {
    let (keys, _) = parts_of_gguf(file);
    let (_, value) = keys.into_iter().find(|(name, _)| name == key)?;
    Some(u32::from_le_bytes(value.try_into().unwrap()))
}

fn wave(count: usize, seed: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |at| ((at * 37 + seed * 11) % 101) as f32 / 64.0 - 0.75)
}

/// A language model of one layer, whose tensors are in another order than those of outputs.
pub(super) fn small() -> Gguf {
    Gguf::of("llama")
        .number("general.file_type", 0)
        .number("llama.block_count", 1)
        .texts("tokenizer.ggml.tokens", &["<s>", "a", "b", "c"])
        .floats("blk.0.ffn_down.weight", &[4, 256], wave(1024, 1))
        .floats("token_embd.weight", &[4, 256], wave(1024, 2))
        .floats("blk.0.attn_q.weight", &[4, 256], wave(1024, 3))
        .floats("blk.0.attn_norm.weight", &[256], wave(256, 4))
        .floats("output_norm.weight", &[256], wave(256, 5))
}

pub(super) const ORDER: [&str; 5] = [
    "output_norm.weight",
    "token_embd.weight",
    "blk.0.attn_norm.weight",
    "blk.0.attn_q.weight",
    "blk.0.ffn_down.weight",
];

/// The types of `small`, where the norms stay as they are.
pub(super) fn typed(token_embd: u32, attn_q: u32, ffn_down: u32) -> Vec<(String, u32)> {
    let types = [F32, token_embd, F32, attn_q, ffn_down];
    ORDER.iter().zip(types).map(|(name, id)| ((*name).to_owned(), id)).collect()
}

pub(super) fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    bench
}

#[test]
fn a_model_gets_the_types_of_a_scheme_and_keeps_its_metadata() {
    let bench = bench();
    let outcome = bench.run("quantize m.gguf --layout gguf --scheme q8_0");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    for line in [
        "quantize 3 tensors to q8_0, copied 2: norms (2)\nm.gguf -> m.q8_0.gguf\n",
        "  output_norm.weight      [256]     float32 kept: norms  1.00 KiB -> 1.00 KiB\n",
        "  blk.0.attn_q.weight     [4, 256]  float32 -> q8_0      4.00 KiB -> 1.06 KiB\n",
        "  8.50 bits per weight; ",
    ] {
        outcome.check_message(line);
    }
    let file = bench.read("m.q8_0.gguf");
    assert_eq!(types(&file), typed(Q8_0, Q8_0, Q8_0));
    assert_eq!(
        keys(&file),
        [
            "general.architecture",
            "llama.block_count",
            "tokenizer.ggml.tokens",
            "general.quantization_version",
            "general.file_type"
        ]
    );
    assert_eq!([number(&file, "general.quantization_version"), number(&file, "general.file_type")], [Some(2), Some(7)]);
    let input = bench.read("m.gguf");
    for key in ["general.architecture", "tokenizer.ggml.tokens"] {
        let value = |file| parts_of_gguf(file).0.into_iter().find(|(name, _)| name == key).unwrap().1.to_vec();
        assert_eq!(value(&file), value(&input), "{key}");
    }
    assert!(data(&file, "output_norm.weight").starts_with(&data(&input, "output_norm.weight")[..1024]));
    bench.run("quantize m.gguf --layout gguf --scheme q8_0").says(4, "", "--force");
    // The layout follows from most schemes, and letter case and separators of their names are free.
    for (line, name) in [("--scheme Q8-0 -o o.gguf", "o.gguf"), ("--layout GGUF --scheme q8-0 -f", "m.q8_0.gguf")] {
        bench.run(&format!("quantize m.gguf {line} -q")).expect(0, "", "");
        assert!(bench.read(name) == file, "{line}");
    }
    bench.run("quantize m.gguf --scheme q8_0 -o o.safetensors").says(1, "", "output");
}

#[test]
fn mixes_choose_types_by_the_role_of_a_weight() {
    let bench = bench();
    // The output has the type of the embeddings, if the model has none of its own.
    for (scheme, file_type, expected) in [
        ("q4_k_m", 15, typed(Q6_K, Q4_K, Q6_K)),
        ("q4_k_s", 14, typed(Q6_K, Q4_K, Q4_K)),
        ("Q5-K-M", 17, typed(Q6_K, Q5_K, Q6_K)),
    ] {
        bench.run(&format!("quantize m.gguf --scheme {scheme} -f -q -o o.gguf")).expect(0, "", "");
        let file = bench.read("o.gguf");
        assert_eq!(types(&file), expected, "{scheme}");
        assert_eq!(number(&file, "general.file_type"), Some(file_type), "{scheme}");
    }
    bench.run("quantize m.gguf --scheme q2_k_s -o none.gguf").says(1, "", "--imatrix");
    assert_eq!(bench.files(), ["m.gguf", "o.gguf"]);
}

#[test]
fn rows_that_are_no_whole_blocks_get_the_fallback_of_llama_cpp() {
    let bench = Bench::with("gguf/tiny.gguf", "tiny.gguf");
    let outcome = bench.run("quantize tiny.gguf --scheme q4_k_m");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
    outcome.check_message("Q5_0");
    let file = bench.read("tiny.q4_k_m.gguf");
    assert_eq!(number(&file, "general.file_type"), Some(15));
    let found = types(&file);
    let of = |name: &str| found.iter().find(|(found, _)| found == name).unwrap().1;
    assert_eq!([of("token_embd.weight"), of("blk.1.ffn_down.weight")], [6, Q8_0]);
}

/// A file of llama-imatrix in which the weights of the columns are these.
pub(super) fn imatrix(tensor: &str, weights: &[f32]) -> Vec<u8> {
    Gguf::of("llama")
        .text("general.type", "imatrix")
        .texts("imatrix.datasets", &["a.txt", "b.txt"])
        .number("imatrix.chunk_count", 7)
        .number("imatrix.chunk_size", 512)
        .floats(&format!("{tensor}.in_sum2"), &[1, weights.len() as u64], weights.iter().copied())
        .floats(&format!("{tensor}.counts"), &[1, 1], [1.0])
        .bytes()
}

#[test]
fn all_bytes_of_blocks_are_those_of_ggml() {
    const WEIGHT: &str = "blk.0.attn_q.weight";
    let mut seen = 0;
    for name in ["encode", "encode_edges"] {
        let bench = Bench::new();
        let file = std::fs::read(fixture("gguf").join(format!("{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&file).unwrap();
        let numbers = |name: &str| -> Vec<f32> {
            file.tensor(name).unwrap().data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        for (tensor, expected) in file.tensors() {
            // Types of importance matrices only, and of no encoder, are not written.
            let Some((scheme, importance)) = tensor.split_once('.') else { continue };
            let is_written = !scheme.starts_with("IQ") || scheme.starts_with("IQ4");
            if !is_written || ["input", "Q1_0", "Q2_0"].contains(&scheme) {
                continue;
            }
            let own = format!("input.{importance}");
            let rows = file.tensor(&own).or_else(|_| file.tensor("input")).unwrap();
            let shape: Vec<u64> = rows.shape().iter().map(|length| *length as u64).collect();
            bench.write("m.gguf", &Gguf::of("llama").tensor(WEIGHT, &shape, F32, rows.data()).bytes());
            let mut line = format!("quantize m.gguf --layout gguf --scheme {scheme} -o o.gguf -f -q");
            if file.tensor(importance).is_ok() {
                bench.write("imatrix.gguf", &imatrix(WEIGHT, &numbers(importance)));
                line.push_str(" --imatrix imatrix.gguf");
            }
            bench.run(&line).expect(0, "", "");
            let found = bench.read("o.gguf");
            let blocks = &data(&found, WEIGHT)[..expected.data().len()];
            assert!(blocks == expected.data(), "{name} {tensor}");
            seen += 1;
        }
    }
    assert_eq!(seen, 76);
}

#[test]
fn facts_about_an_importance_matrix_are_recorded() {
    let bench = bench();
    let weights: Vec<f32> = wave(256, 9).map(|weight| weight * weight + 0.01).collect();
    bench.write("i.gguf", &imatrix("blk.0.attn_q.weight", &weights));
    for (scheme, uses) in [("q4_k", true), ("q8_0", false)] {
        bench.run(&format!("quantize m.gguf --scheme {scheme} -q -o plain.gguf -f")).expect(0, "", "");
        bench.run(&format!("quantize m.gguf --scheme {scheme} --imatrix i.gguf -q -o o.gguf -f")).expect(0, "", "");
        let [plain, file] = ["plain.gguf", "o.gguf"].map(|name| bench.read(name));
        let of = |file, name| data(file, name)[..4 * 144].to_vec();
        assert_eq!(of(&plain, "blk.0.attn_q.weight") != of(&file, "blk.0.attn_q.weight"), uses);
        assert!(of(&plain, "token_embd.weight") == of(&file, "token_embd.weight"));
        assert_eq!(
            keys(&file)[5..],
            ["file", "dataset", "entries_count", "chunks_count"].map(|key| format!("quantize.imatrix.{key}"))
        );
        assert_eq!(number(&file, "quantize.imatrix.entries_count"), Some(1));
        assert_eq!(number(&file, "quantize.imatrix.chunks_count"), Some(7));
    }
    bench.write("more.gguf", &imatrix("blk.9.attn_q.weight", &weights));
    let outcome = bench.run("quantize m.gguf --scheme q4_k --imatrix more.gguf -n");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.check_message("blk.9.attn_q.weight");
    bench.run("quantize m.gguf --scheme q4_k --imatrix m.gguf -o none.gguf").says(1, "", "GGUF");
    bench.write("short.gguf", &imatrix("blk.0.attn_q.weight", &weights[..32]));
    bench.run("quantize m.gguf --scheme q4_k --imatrix short.gguf -o none.gguf").says(1, "", "blk.0.attn_q.weight");
    assert!(!bench.path("none.gguf").exists());
}

#[test]
fn blocks_of_the_same_type_are_copied() {
    let bench = bench();
    for scheme in ["q4_k", "q8_0", "nvfp4", "iq4_xs"] {
        let line = format!("--layout gguf --scheme {scheme}");
        bench.run(&format!("quantize m.gguf {line} -q -o once.gguf -f")).expect(0, "", "");
        let outcome = bench.run(&format!("quantize once.gguf {line} -o twice.gguf -f"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{}", outcome.stderr);
        outcome.check_message("scales");
        assert!(bench.read("once.gguf") == bench.read("twice.gguf"), "{scheme}");
        bench.run(&format!("quantize once.gguf {line} --only-exact -q -o exact.gguf -f")).expect(0, "", "");
        assert!(bench.read("once.gguf") == bench.read("exact.gguf"), "{scheme}");
    }
    // The same codes with an importance matrix, which only encoders use.
    bench.run("quantize m.gguf --scheme q4_k -q -o once.gguf -f").expect(0, "", "");
    bench.write("i.gguf", &imatrix("blk.0.attn_q.weight", &[1.0; 256]));
    bench.run("quantize once.gguf --scheme q4_k --imatrix i.gguf -q -o twice.gguf -f").expect(0, "", "");
    let [once, twice] = ["once.gguf", "twice.gguf"].map(|name| bench.read(name));
    assert!(data(&once, ORDER[0]) == data(&twice, ORDER[0]));
}

/// The tensors of a report, by their names.
fn by_name(bench: &Bench, line: &str) -> Vec<serde_json::Value> {
    let outcome = bench.run(&format!("{line} --json -q"));
    let mut report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let mut tensors: Vec<_> = report["tensors"].as_array_mut().unwrap().drain(..).collect();
    tensors.sort_by_key(|tensor| tensor["name"].to_string());
    tensors
}

/// Checks that the report of a conversion counts the values that a comparison of its input and output counts.
fn check_changed(bench: &Bench, convert: &str, compare: &str) {
    let (reported, compared) = (by_name(bench, convert), by_name(bench, compare));
    assert_eq!(reported.len(), compared.len(), "{convert}");
    let mut changed = 0;
    for (reported, compared) in reported.iter().zip(&compared).filter(|(reported, _)| !reported["quantized"].is_null())
    {
        let own = &reported["quantized"]["changed"];
        assert_eq!(own, &compared["differing"], "{convert}: {reported} {compared}");
        changed += own.as_u64().unwrap();
    }
    assert!(changed > 0, "{convert}");
}

#[test]
fn zeros_that_change_their_sign_are_no_changed_values() {
    let bench = bench();
    // 0 has a sign in Q4_0, where a scale can be negative, and none in MXFP4.
    for (from, to) in [("tq2_0", "q4_0"), ("q4_0", "mxfp4"), ("q4_0", "q8_0")] {
        bench.run(&format!("quantize m.gguf --layout gguf --scheme {from} -o old.gguf -f -q")).expect(0, "", "");
        let convert = format!("quantize old.gguf --layout gguf --scheme {to} -o new.gguf -f");
        check_changed(&bench, &convert, "diff old.gguf new.gguf");
    }
}

#[test]
fn the_products_of_other_layouts_become_blocks() {
    let bench = super::gguf::tiny();
    let read = "--names huggingface --config base";
    // llama.cpp has the rows of attention in another order, which only values change to.
    let plain = "--exclude *.self_attn.* --exclude *embed* --exclude lm_head.*";
    let decode = "dequantize moved --include *.self_attn.* -o half -f -q";
    for scheme in ["q4_0", "q8_0"] {
        let ends = "--rule token_embd.*=f32 --rule output.*=f32";
        bench.run(&format!("quantize tiny.gguf --scheme {scheme} {ends} -o q.gguf -f -q")).expect(0, "", "");
        let line = format!("quantize q.gguf --layout compressed-tensors --only-exact {read} -o moved -f -q");
        bench.run(&line).expect(0, "", "");
        bench.run(decode).expect(0, "", "");
        for options in ["--layout gguf".to_owned(), format!("--scheme {scheme} --only-exact {plain}")] {
            let line = format!("quantize half {options} --metadata-from tiny.gguf -o back.gguf -f -q");
            bench.run(&line).expect(0, "", "");
            let [own, new] = ["q.gguf", "back.gguf"].map(|name| bench.read(name));
            for name in ["blk.0.ffn_up.weight", "blk.1.ffn_down.weight"] {
                let [own, new] =
                    [&own, &new].map(|file| parts_of_gguf(file).1.into_iter().find(|it| it.0 == name).unwrap());
                assert_eq!(own.1, new.1, "{options} {name}");
            }
            bench.run("diff q.gguf back.gguf --include *ffn* --tolerance 0 -q").expect(0, "", "");
        }
    }
    // Code 8 of mxfp4 is -0, which becomes 0.
    bench.run("quantize base --scheme mxfp4 -o moved -f -q").expect(0, "", "");
    bench.run(decode).expect(0, "", "");
    bench.run("quantize half --layout gguf --metadata-from tiny.gguf -o back.gguf -f -q").expect(0, "", "");
    bench.run("diff back.gguf moved --names huggingface --include *mlp* --tolerance 0 -q").expect(0, "", "");
    // Values enter as exact products, whatever the type of the scales.
    bench.run("quantize base --scheme int8a16 --group-size 32 -o moved -f -q").expect(0, "", "");
    bench.run(decode).expect(0, "", "");
    let convert = format!("quantize half --scheme q5_0 --metadata-from tiny.gguf {plain} -o new.gguf -f");
    let reported = by_name(&bench, &convert);
    let compared = by_name(&bench, "diff half new.gguf --names huggingface");
    let total = |tensors: &[serde_json::Value], part: &dyn Fn(&serde_json::Value) -> Option<u64>| -> u64 {
        tensors.iter().filter_map(part).sum()
    };
    let changed = total(&reported, &|tensor| tensor["quantized"]["changed"].as_u64());
    let is_mlp = |tensor: &serde_json::Value| tensor["name"].as_str().is_some_and(|name| name.contains("mlp"));
    let differing = total(&compared, &|tensor| tensor["differing"].as_u64().filter(|_| is_mlp(tensor)));
    assert!(changed > 0 && changed == differing, "{changed} {differing}");
}

#[test]
fn a_run_that_allows_no_change_proposes_a_scheme_or_to_allow_changes() {
    let bench = super::gguf::tiny();
    // float16 does not hold the scales.
    bench.run("cast base --to f32 -o wide -q").expect(0, "", "");
    bench.run("quantize wide --scheme int8a16 --group-size 32 -o q -q").expect(0, "", "");
    bench.run("dequantize q --include *.self_attn.* -o half -q").expect(0, "", "");
    let line = "quantize half --metadata-from tiny.gguf -o o.gguf";
    for (options, remedy, again) in [
        ("--layout gguf", "--scheme q8_0", "--scheme q8_0"),
        ("--layout gguf --only-exact", "allow values to change", "--scheme q8_0"),
        ("--scheme q4_0 --only-exact", "--only-exact", "--scheme q4_0"),
    ] {
        bench.run(&format!("{line} {options} -f")).says(3, "", remedy);
        bench.run(&format!("{line} {again} -q -f")).expect(0, "", "");
    }
}

#[test]
fn only_exact_refuses_weights_that_would_be_quantized_again() {
    let bench = bench();
    bench.run("quantize m.gguf --scheme q4_k -q").expect(0, "", "");
    let outcome = bench.run("quantize m.q4_k.gguf --scheme q8_0 --only-exact -o o.gguf");
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    for name in ["token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        outcome.check_message(name);
    }
    assert!(!bench.path("o.gguf").exists());
}
