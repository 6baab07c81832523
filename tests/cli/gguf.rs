//! GGUF models: what is read, decoded, renamed and moved to other layouts, and malformed files.

use crate::common::gguf::{F16, F32, Gguf, I32, MXFP4, NVFP4, Q4_0, Q4_1, Q4_K, Q8_0, mxfp4, nvfp4, q4_0, q8_0, text};
use crate::common::{Bench, check_hostile, fixture};
use ::safetensors::{Dtype, SafeTensors};

/// The bits of float16 numbers.
const ONE: u16 = 0x3c00;
const HALF: u16 = 0x3800;

/// The float32 numbers of a tensor.
fn floats(file: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
    tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn names(file: &[u8]) -> Vec<String> {
    let mut names: Vec<String> =
        SafeTensors::deserialize(file).unwrap().names().into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

/// A model with a weight in blocks of each of two types, a plain one, a norm and integers.
fn small() -> Gguf {
    Gguf::of("flux")
        .number("general.file_type", 7)
        .texts("tokenizer.ggml.tokens", &["<s>", "a", "b", "c", "d"])
        .tensor("a.weight", &[2, 32], Q8_0, &[q8_0(HALF, |at| at as i8), q8_0(ONE, |at| -(at as i8))].concat())
        .tensor("b.weight", &[1, 32], Q4_0, &q4_0(ONE, |at| at as u8 % 16))
        .tensor("c.weight", &[2, 2], F16, &[0, 0x3c, 0, 0xbc, 0, 0x40, 0, 0])
        .floats("norm.weight", &[2], [1.0, 0.1])
        .tensor("ids", &[2], I32, &[1, 0, 0, 0, 2, 0, 0, 0])
}

#[test]
fn a_listing_has_the_types_of_ggml_and_the_metadata_with_long_lists_shortened() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    bench.run("inspect m.gguf").expect(
        0,
        "m.gguf: gguf, 5 tensors (2 quantized), 640 B
  a.weight     Q8_0     [2, 32]  68 B  gguf, 8.50 bits per weight
  b.weight     Q4_0     [1, 32]  18 B  gguf, 4.50 bits per weight
  c.weight     float16  [2, 2]    8 B  F16
  norm.weight  float32  [2]       8 B  F32
  ids          int32    [2]       8 B  I32
totals
  Q4_0     1 tensor  32 elements  18 B  gguf
  Q8_0     1 tensor  64 elements  68 B  gguf
  float16  1 tensor  4 elements    8 B
  float32  1 tensor  2 elements    8 B
  int32    1 tensor  2 elements    8 B
metadata
  general.architecture: flux
  general.file_type: 7
  tokenizer.ggml.tokens: 5 texts: '<s>', 'a', 'b', 'c', ...
",
        "",
    );
}

#[test]
fn weights_are_decoded_plain_floats_are_cast_and_integers_are_copied() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    let outcome = bench.run("dequantize m.gguf --to f32");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    outcome.check_message("tokenizer");
    let file = bench.read("m.float32.safetensors");
    assert_eq!(names(&file), ["a.weight", "b.weight", "c.weight", "ids", "norm.weight"]);
    let a: Vec<f32> = (0..32).map(|at| at as f32 / 2.0).chain((0..32).map(|at| 0.0 - at as f32)).collect();
    assert_eq!(floats(&file, "a.weight"), a);
    assert_eq!(floats(&file, "b.weight"), (0..32).map(|at| (at % 16 - 8) as f32).collect::<Vec<_>>());
    assert_eq!(floats(&file, "c.weight"), [1.0, -1.0, 2.0, 0.0]);
    assert_eq!(floats(&file, "norm.weight"), [1.0, 0.1]);
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("ids").unwrap().dtype(), Dtype::I32);
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    assert_eq!((metadata["format"].as_str(), metadata["general.file_type"].as_str()), ("pt", "7"));
    assert!(!metadata.contains_key("tokenizer.ggml.tokens"));
    // The default is bfloat16, also of plain floats.
    bench.run("dequantize m.gguf -q").expect(0, "", "");
    let file = bench.read("m.bfloat16.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    for name in ["a.weight", "c.weight", "norm.weight"] {
        assert_eq!(tensors.tensor(name).unwrap().dtype(), Dtype::BF16, "{name}");
    }
}

#[test]
fn a_cast_refuses_codes_and_converts_plain_tensors() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    bench.run("cast m.gguf --to bf16").says(1, "", "--to");
    bench.run("cast m.gguf --to bf16 --exclude *.weight -o out.safetensors").says(1, "", "--to");
    let plain = Gguf::of("flux").floats("x", &[2], [1.0, 2.0]);
    bench.write("plain.gguf", &plain.bytes());
    bench.run("cast plain.gguf --to bf16 -q").expect(0, "", "");
    assert_eq!(names(&bench.read("plain.bfloat16.safetensors")), ["x"]);
}

#[test]
fn models_with_the_same_blocks_are_equal_and_others_are_compared_by_their_values() {
    let bench = Bench::new();
    let model = |code: i8| {
        let blocks = [q8_0(HALF, |at| at as i8), q8_0(ONE, |at| if at == 3 { code } else { 0 })].concat();
        Gguf::of("flux").tensor("a.weight", &[2, 32], Q8_0, &blocks).bytes()
    };
    bench.write("a.gguf", &model(5));
    bench.write("same.gguf", &model(5));
    bench.write("other.gguf", &model(7));
    bench.run("diff a.gguf same.gguf").expect(0, "1 tensor is equal\n", "");
    bench.run("diff a.gguf other.gguf --tolerance 2").expect(0, "1 tensor is equal within 2\n", "");
    let outcome = bench.run("diff a.gguf other.gguf --tolerance 1");
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("a.weight"), "{}", outcome.stdout);
}

#[test]
fn bits_show_code_scale_and_value() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    let outcome = bench.run("bitcast m.gguf --tensor a.weight --bits --range 31..34");
    outcome.expect(
        0,
        "31  00011111  31 * 0.5 = 15.5
32  00000000  0 * 1 = 0
33  11111111  -1 * 1 = -1
",
        "",
    );
    // 2 * q - 1, times the scale of the tensor.
    let block = [&0x4000_u16.to_le_bytes()[..], &0xbc00_u16.to_le_bytes(), &[0x73; 16]].concat();
    let model = Gguf::of("x").tensor("a.weight", &[1, 32], Q4_1, &block).floats("a.scale", &[1], [3.0]);
    bench.write("scaled.gguf", &model.bytes());
    let outcome = bench.run("bitcast scaled.gguf --tensor a.weight --bits --range 15..17");
    outcome.expect(0, "15  0011  3 * 2 * 3 - 3 = 15\n16  0111  7 * 2 * 3 - 3 = 39\n", "");
}

#[test]
fn plain_floats_can_be_chosen_and_blocks_cannot_stay() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    bench.run("dequantize m.gguf --exclude norm.weight --exclude c.weight -q").expect(0, "", "");
    let file = bench.read("m.bfloat16.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let types = ["a.weight", "c.weight", "norm.weight"].map(|name| tensors.tensor(name).unwrap().dtype());
    assert_eq!(types, [Dtype::BF16, Dtype::F16, Dtype::F32]);
    bench.run("dequantize m.gguf --exclude a.weight -o x.safetensors").says(1, "", "a.weight");
}

#[test]
fn a_split_model_is_named_by_any_of_its_files() {
    let bench = Bench::new();
    let part = |number: u16| {
        let keys = Gguf::of("flux").small("split.no", number).small("split.count", 2);
        let keys = keys.key("split.tensors.count", 5, &2_i32.to_le_bytes());
        keys.tensor(&format!("w{number}.weight"), &[1, 32], Q8_0, &q8_0(ONE, |at| at as i8 + number as i8))
    };
    bench.write("m-00001-of-00002.gguf", &part(0).bytes());
    bench.run("dequantize m-00001-of-00002.gguf").says(1, "", "m-00002-of-00002.gguf");
    bench.write("m-00002-of-00002.gguf", &part(1).bytes());
    for given in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"] {
        bench.run(&format!("dequantize {given} --to f32 -q -f")).expect(0, "", "");
        let file = bench.read("m.float32.safetensors");
        assert_eq!(names(&file), ["w0.weight", "w1.weight"]);
        assert_eq!(floats(&file, "w1.weight")[..3], [1.0, 2.0, 3.0]);
    }
    // The keys of a part do not describe the output.
    bench.run("diff m.float32.safetensors m-00002-of-00002.gguf -q").expect(0, "", "");
    bench.run("dequantize m-00002-of-00002.gguf --max-shard-size 100B -q").expect(0, "", "");
    assert_eq!(bench.files().len(), 4);
    assert!(bench.path("m-bfloat16/model.safetensors.index.json").exists());
    // A part with another number of tensors.
    let more = part(1).tensor("other.weight", &[1, 32], Q8_0, &q8_0(ONE, |_| 0));
    bench.write("m-00002-of-00002.gguf", &more.bytes());
    bench.run("inspect m-00001-of-00002.gguf").says(1, "", "m-00001-of-00002.gguf");
    // A part of another model.
    bench.write("m-00002-of-00002.gguf", &part(0).bytes());
    bench.run("inspect m-00001-of-00002.gguf").says(1, "", "part");
}

#[test]
fn the_scale_of_a_tensor_is_multiplied_in_and_left_out() {
    let bench = Bench::new();
    let block = nvfp4([0x38, 0x40, 0, 0x7f], |at| (at % 8) as u8);
    let model = Gguf::of("llama")
        .tensor("blk.0.ffn_up.weight", &[1, 64], NVFP4, &block)
        .floats("blk.0.ffn_up.scale", &[1], [0.5])
        .floats("blk.0.ffn_up.input_scale", &[1], [3.0])
        .tensor("blk.0.ffn_up_exps.weight", &[2, 1, 64], NVFP4, &[&block[..], &block].concat())
        .floats("blk.0.ffn_up_exps.scale", &[2], [2.0, 4.0]);
    bench.write("m.gguf", &model.bytes());
    let outcome = bench.run("dequantize m.gguf --to f32");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let file = bench.read("m.float32.safetensors");
    assert_eq!(names(&file), ["blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"]);
    // The scales 1, 2, 0 and 0.
    let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let wanted = |factor: f32| -> Vec<f32> {
        let scale = |at: usize| [1.0, 2.0, 0.0, 0.0][at / 16] * factor;
        (0..64).map(|at| numbers[at % 8] * scale(at)).collect()
    };
    assert_eq!(floats(&file, "blk.0.ffn_up.weight"), wanted(0.5));
    assert_eq!(floats(&file, "blk.0.ffn_up_exps.weight"), [wanted(2.0), wanted(4.0)].concat());
}

#[test]
fn an_original_shape_wins() {
    let bench = Bench::new();
    let rows: Vec<u8> = (0..4).flat_map(|row| q8_0(ONE, move |at| (row * 32 + at) as i8)).collect();
    let model = Gguf::of("sd1").integers("comfy.gguf.orig_shape.conv.weight", &[8, 4, 2, 2]).tensor(
        "conv.weight",
        &[4, 32],
        Q8_0,
        &rows,
    );
    bench.write("m.gguf", &model.bytes());
    bench.run("dequantize m.gguf --to f32 -q").expect(0, "", "");
    let file = bench.read("m.float32.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("conv.weight").unwrap().shape(), [8, 4, 2, 2]);
    assert_eq!(floats(&file, "conv.weight"), (0..128).map(|at| f32::from(at as i8)).collect::<Vec<_>>());
    // Rows of 48 are one block and a half.
    let rows: Vec<u8> = (0..96).flat_map(|row| q8_0(ONE, move |at| (row * 7 + at * 5) as i8)).collect();
    let model = Gguf::of("sd1").integers("comfy.gguf.orig_shape.proj.weight", &[64, 48]).tensor(
        "proj.weight",
        &[96, 32],
        Q8_0,
        &rows,
    );
    bench.write("rows.gguf", &model.bytes());
    bench.run("quantize rows.gguf --scheme fp8 -o fp8.safetensors -q").expect(0, "", "");
    bench.run("diff rows.gguf fp8.safetensors --rtol 0.07 -q").expect(0, "", "");
    // Groups of 16 are the same in any shape.
    bench.write("whole.gguf", &Gguf::of("sd1").tensor("proj.weight", &[96, 32], Q8_0, &rows).bytes());
    let quantized = ["rows", "whole"].map(|name| {
        bench.run(&format!("quantize {name}.gguf --scheme nvfp4 -o {name}.safetensors -f -q")).expect(0, "", "");
        bench.read(&format!("{name}.safetensors"))
    });
    let [codes, scales] = ["proj.weight_packed", "proj.weight_scale"].map(|part| {
        let of = |file: &Vec<u8>| SafeTensors::deserialize(file).unwrap().tensor(part).unwrap().data().to_vec();
        of(&quantized[0]) == of(&quantized[1])
    });
    assert!(codes && scales);
    let wrong = Gguf::of("sd1").integers("comfy.gguf.orig_shape.conv.weight", &[8, 4, 2, 3]).tensor(
        "conv.weight",
        &[4, 32],
        Q8_0,
        &rows,
    );
    bench.write("wrong.gguf", &wrong.bytes());
    bench.run("inspect wrong.gguf").says(1, "", "conv.weight");
}

#[test]
fn codes_and_scales_move_to_layouts_with_the_same_grid() {
    let bench = Bench::new();
    let codes = |at: usize| (at % 16) as u8;
    let rows = |block: &dyn Fn(usize) -> Vec<u8>| (0..64).flat_map(block).collect::<Vec<u8>>();
    let q8 = rows(&|row| [q8_0(HALF, |at| at as i8), q8_0(0x0401 + row as u16, |at| -(at as i8))].concat());
    bench.write("q8.gguf", &Gguf::of("x").tensor("a.weight", &[64, 64], Q8_0, &q8).bytes());
    let q4 = rows(&|row| [q4_0(HALF, codes), q4_0(0x3001 + row as u16, codes)].concat());
    bench.write("q4.gguf", &Gguf::of("x").tensor("a.weight", &[64, 64], Q4_0, &q4).bytes());
    let mx = rows(&|row| [mxfp4(120 + row as u8 % 8, codes), mxfp4(127, codes)].concat());
    bench.write("mx.gguf", &Gguf::of("x").tensor("a.weight", &[64, 64], MXFP4, &mx).bytes());
    let nv = rows(&|row| nvfp4([0x38, 0x40 + row as u8 % 8, 0x30, 0x7e], codes));
    let nv = Gguf::of("x").tensor("a.weight", &[64, 64], NVFP4, &nv).floats("a.scale", &[1], [0.25]);
    bench.write("nv.gguf", &nv.bytes());
    for (file, layout) in [
        ("q8", "compressed-tensors"),
        ("q4", "compressed-tensors"),
        ("mx", "compressed-tensors"),
        ("mx", "modelopt"),
        ("nv", "modelopt"),
    ] {
        let folder = format!("{file}-{layout}");
        std::fs::create_dir(bench.path(&folder)).unwrap();
        let output = format!("{folder}/model.safetensors");
        let outcome = bench.run(&format!("quantize {file}.gguf --layout {layout} --only-exact --json -o {output}"));
        assert_eq!(outcome.code, Some(0), "{file} {layout}: {}{}", outcome.stdout, outcome.stderr);
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        let config = serde_json::json!({ "quantization_config": report["quantization_config"] });
        bench.write(&format!("{folder}/config.json"), config.to_string().as_bytes());
        bench.run(&format!("dequantize {file}.gguf --to f32 -q -f -o {file}.safetensors")).expect(0, "", "");
        let decoded = format!("dequantize {file}-{layout} --arithmetic exact --to f32 -q -f -o {file}-decoded");
        bench.run(&decoded).expect(0, "", "");
        bench.run(&format!("diff {file}.safetensors {file}-decoded -q")).expect(0, "", "");
    }
    // Scales of scales have no counterpart.
    let k = Gguf::of("x").tensor("a.weight", &[64, 256], Q4_K, &[0; 64 * 144]);
    bench.write("k.gguf", &k.bytes());
    bench.run("quantize k.gguf --scheme int4 --only-exact -o k").says(1, "", "int4");
}

#[test]
fn a_quantized_gguf_model_is_quantized_again_from_the_values_of_ggml() {
    let bench = Bench::new();
    let blocks: Vec<u8> = (0..64 * 144).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x2f).collect();
    bench.write("k.gguf", &Gguf::of("x").tensor("a.weight", &[64, 256], Q4_K, &blocks).bytes());
    bench.run("quantize k.gguf --scheme mxfp4 -q -o direct").expect(0, "", "");
    bench.run("dequantize k.gguf --to f32 -q -o values.safetensors").expect(0, "", "");
    bench.run("quantize values.safetensors --scheme mxfp4 -q -o twice").expect(0, "", "");
    bench.run("diff direct twice -q").expect(0, "", "");
}

/// A folder with the model of `fixtures/gguf`, and the model that it was made from.
pub(crate) fn tiny() -> Bench {
    let bench = Bench::with("gguf/tiny.gguf", "tiny.gguf");
    std::fs::create_dir(bench.path("base")).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        std::fs::copy(fixture("gguf/tiny-llama").join(file), bench.path("base").join(file)).unwrap();
    }
    bench
}

#[test]
fn names_of_hugging_face_come_with_its_order_of_rows_and_the_files_of_the_original_model() {
    let bench = tiny();
    bench.run("dequantize tiny.gguf --to f32 -q").expect(0, "", "");
    bench.run("dequantize tiny.gguf --names huggingface --config base --to f32 -o out -q").expect(0, "", "");
    assert_eq!(
        std::fs::read_dir(bench.path("out")).unwrap().count(),
        3,
        "config.json, model.safetensors and tokenizer_config.json"
    );
    assert_eq!(bench.read("out/tokenizer_config.json"), bench.read("base/tokenizer_config.json"));
    let config: serde_json::Value = serde_json::from_slice(&bench.read("out/config.json")).unwrap();
    assert_eq!((config["torch_dtype"].as_str(), config["model_type"].as_str()), (Some("float32"), Some("llama")));
    let (own, new) = (bench.read("tiny.float32.safetensors"), bench.read("out/model.safetensors"));
    assert_eq!(floats(&own, "blk.1.ffn_up.weight"), floats(&new, "model.layers.1.mlp.up_proj.weight"));
    // Rows of the halves of a head of 16 alternate in the file.
    for (stem, module, heads) in [("attn_q", "q_proj", 4), ("attn_k", "k_proj", 2)] {
        let stored = floats(&own, &format!("blk.0.{stem}.weight"));
        let rows: Vec<&[f32]> = stored.chunks(64).collect();
        let row = |at: usize| rows[at / 16 * 16 + at % 16 % 8 * 2 + at % 16 / 8];
        let wanted: Vec<f32> = (0..heads * 16).flat_map(|at| row(at).to_vec()).collect();
        assert!(floats(&new, &format!("model.layers.0.self_attn.{module}.weight")) == wanted, "{stem}");
    }
    bench.run("diff out base --tolerance 0.02 -q").expect(0, "", "");
    bench.run("diff tiny.gguf base --names huggingface --tolerance 0.02 -q").expect(0, "", "");
    let outcome = bench.run("diff tiny.gguf base --names huggingface");
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stdout.contains("model.layers.0.self_attn.q_proj.weight          values differ"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.contains("SQNR 21."), "{}", outcome.stdout);
}

#[test]
fn codes_move_with_their_rows() {
    let bench = tiny();
    let line =
        "quantize tiny.gguf --layout compressed-tensors --only-exact --names huggingface --config base -o out -q";
    bench.run(line).expect(0, "", "");
    bench.run("dequantize out --arithmetic exact --to f32 -o values -q").expect(0, "", "");
    bench.run("dequantize tiny.gguf --names huggingface --to f32 -o wanted -q").expect(0, "", "");
    bench.run("diff values wanted").expect(0, "21 tensors are equal\n", "");
}

#[test]
fn plain_tensors_in_another_order_stay_plain_when_codes_move() {
    let bench = tiny();
    let rules =
        "--rule *.attn_q.*=f16 --rule *.attn_k.*=f16 --rule *.attn_v.*=f16 --rule token_embd.*=f16 --rule output.*=f16";
    bench.run(&format!("quantize tiny.gguf --scheme q8_0 {rules} -o mixed.gguf -q")).expect(0, "", "");
    for options in
        ["", "--only-exact", "--scheme int8a16 --group-size 32 --include *.mlp.* --include *.o_proj.* --only-exact"]
    {
        let line = "quantize mixed.gguf --layout compressed-tensors --names huggingface --config base -o out -f -q";
        bench.run(&format!("{line} {options}")).expect(0, "", "");
        bench.run("diff mixed.gguf out --names huggingface --tolerance 0 -q").expect(0, "", "");
    }
    // Norms of Gemma are stored with 1 added.
    std::fs::create_dir(bench.path("gemma")).unwrap();
    let config = r#"{"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "hidden_size": 32}"#;
    bench.write("gemma/config.json", config.as_bytes());
    let codes = (0..32).flat_map(|row| q8_0(HALF, move |at| (row + at) as i8)).collect::<Vec<u8>>();
    let mut model = Gguf::of("gemma2")
        .number("gemma2.block_count", 1)
        .floats("token_embd.weight", &[4, 32], [1.0; 128])
        .floats("output_norm.weight", &[32], [2.0; 32]);
    for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"] {
        model = model.tensor(&format!("blk.0.{part}.weight"), &[32, 32], Q8_0, &codes);
    }
    for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
        model = model.floats(&format!("blk.0.{norm}.weight"), &[32], [1.5; 32]);
    }
    bench.write("gemma.gguf", &model.bytes());
    let line = "quantize gemma.gguf --layout compressed-tensors --only-exact --names huggingface --config gemma";
    bench.run(&format!("{line} -o gemma-out -q")).expect(0, "", "");
    let file = bench.read("gemma-out/model.safetensors");
    assert_eq!(floats(&file, "model.norm.weight"), [1.0; 32]);
    assert_eq!(floats(&file, "model.layers.0.input_layernorm.weight"), [0.5; 32]);
    // They were never codes.
    let names = "--names huggingface --config gemma -o counted -f";
    for (line, heading) in [
        ("quantize gemma.gguf --scheme fp8", "quantize 7 tensors to fp8, copied 6: embeddings (1), norms (5)\n"),
        ("dequantize gemma.gguf --exclude *norm*", "dequantize 8 tensors to bfloat16, copied 5"),
    ] {
        let outcome = bench.run(&format!("{line} {names}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        let is_right = outcome.stderr.starts_with(heading) && !outcome.stderr.contains("decoded, because");
        assert!(is_right, "{outcome:?}");
    }
}

#[test]
fn plain_tensors_are_cast_in_their_new_order() {
    let bench = Bench::new();
    let weight = |at: usize| at as f32;
    let head = |model: Gguf, name: &str, rows: u64| model.floats(name, &[rows, 4], (0..rows as usize * 4).map(weight));
    let mut model = Gguf::of("llama")
        .number("llama.block_count", 1)
        .number("llama.attention.head_count", 2)
        .number("llama.attention.head_count_kv", 1);
    for (name, rows) in [
        ("token_embd", 8),
        ("blk.0.attn_q", 8),
        ("blk.0.attn_k", 4),
        ("blk.0.attn_v", 4),
        ("blk.0.attn_output", 4),
        ("blk.0.ffn_gate", 4),
        ("blk.0.ffn_up", 4),
        ("blk.0.ffn_down", 4),
    ] {
        model = head(model, &format!("{name}.weight"), rows);
    }
    for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
        model = model.floats(&format!("{name}.weight"), &[4], [1.0; 4]);
    }
    bench.write("m.gguf", &model.bytes());
    bench.run("cast m.gguf --to f32 --names huggingface -o out").says(0, "", "--config");
    let file = bench.read("out/model.safetensors");
    let row = |at: usize| (0..4).map(move |column| (at * 4 + column) as f32);
    let wanted: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7].into_iter().flat_map(row).collect();
    assert_eq!(floats(&file, "model.layers.0.self_attn.q_proj.weight"), wanted);
    assert_eq!(floats(&file, "model.layers.0.self_attn.v_proj.weight"), (0..16).map(weight).collect::<Vec<_>>());
    // Tensors that are not chosen keep their type, and get the names and the order, too.
    bench.run("dequantize m.gguf --names huggingface --exclude *q_proj* -o kept -q").expect(0, "", "");
    assert_eq!(floats(&bench.read("kept/model.safetensors"), "model.layers.0.self_attn.q_proj.weight"), wanted);
    bench.run("cast m.gguf --to bf16 --names huggingface --exclude *q_proj* -o cast -q").expect(0, "", "");
    bench.run("diff cast kept").expect(0, "11 tensors are equal\n", "");
    bench.run("quantize m.gguf --scheme int8 --names huggingface -o quantized -q").expect(0, "", "");
    bench.run("quantize out --scheme int8 -o wanted -q").expect(0, "", "");
    bench.run("diff quantized wanted -q").expect(0, "", "");
    bench.run("bitcast m.gguf --to int32 --names huggingface -o bits").says(1, "", "--names");
    // The files of the original model that describe its quantization are left out.
    std::fs::create_dir(bench.path("base")).unwrap();
    bench.write("base/config.json", br#"{"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}"#);
    bench.write("base/hf_quant_config.json", b"{}");
    for line in ["cast m.gguf --to bf16", "dequantize m.gguf"] {
        bench.run(&format!("{line} --names huggingface --config base -o plain -f -q")).expect(0, "", "");
        let config = String::from_utf8(bench.read("plain/config.json")).unwrap();
        assert!(!config.contains("quantization_config"), "{config}");
        assert!(!bench.path("plain/hf_quant_config.json").exists(), "{line}");
    }
    bench.run("cast m.gguf --to e4m3 --names huggingface -o narrow").says(
        1,
        "",
        "model.layers.0.self_attn.q_proj.weight",
    );
}

#[test]
fn names_that_cannot_be_mapped_are_errors() {
    let bench = tiny();
    bench.write("other.gguf", &Gguf::of("whisper").floats("x", &[1], [1.0]).bytes());
    bench.run("dequantize other.gguf --names huggingface -o out").says(1, "", "whisper");
    let missing = Gguf::of("llama").number("llama.block_count", 1).floats("token_embd.weight", &[2, 2], [1.0; 4]);
    bench.write("missing.gguf", &missing.bytes());
    bench.run("diff missing.gguf base --names huggingface").says(2, "", "weight");
    bench.run("dequantize tiny.gguf --config base -o out").says(2, "", "--config");
    bench.run("dequantize tiny.gguf --names huggingface --config nowhere -o out").says(1, "", "folder");
}

#[test]
fn a_malformed_file_causes_one_error() {
    let bench = Bench::new();
    let list = |kind: u32, count: u64, rest: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), rest].concat();
    let one = || Gguf::of("x").floats("t", &[2, 2], [1.0; 4]);
    let with = |bytes: &[u8], at: usize, new: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let whole = one().bytes();
    // The place of the entry of the tensor: its name, dimensions, type and offset.
    let entry = whole.windows(9).position(|bytes| bytes == [1, 0, 0, 0, 0, 0, 0, 0, b't']).unwrap();
    let nested = (0..6).fold(vec![0; 8], |inner, _| list(9, 1, &inner));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("no counts", whole[..12].to_vec(), "cut short within its header"),
        ("version 1", one().bytes_of_version(1), "is GGUF of version 1"),
        ("version 4", one().bytes_of_version(4), "is GGUF of version 4"),
        ("big endian", one().bytes_of_version(0x0300_0000), "is a big-endian GGUF file"),
        (
            "many tensors",
            with(&whole, 8, &(1_u64 << 60).to_le_bytes()),
            "malformed header: it has 1152921504606846976 tensors",
        ),
        (
            "many keys",
            with(&whole, 16, &(1_u64 << 60).to_le_bytes()),
            "malformed header: it has 1152921504606846976 keys",
        ),
        (
            "long name of a key",
            with(&whole, 24, &(1_u64 << 40).to_le_bytes()),
            "malformed header: it has a text of 1099511627776 bytes",
        ),
        ("unknown value", one().key("k", 99, &[]).bytes(), "key 'k': has a value of the unknown type 99"),
        ("wrong bool", one().key("k", 7, &[2]).bytes(), "key 'k': has the bool 2"),
        (
            "long list",
            one().key("k", 9, &list(4, 1 << 61, &[])).bytes(),
            "key 'k': malformed header: it has 2305843009213693952 elements",
        ),
        (
            "long list of texts",
            one().key("k", 9, &list(8, 1 << 40, &[])).bytes(),
            "malformed header: it has 1099511627776 elements",
        ),
        (
            "long text in a list",
            one().key("k", 9, &list(8, 1, &(1_u64 << 50).to_le_bytes())).bytes(),
            "malformed header: it has a text of 1125899906842624 bytes",
        ),
        ("unknown elements", one().key("k", 9, &list(77, 1, &[0; 8])).bytes(), "unknown type 77"),
        ("deep lists", one().key("k", 9, &list(9, 1, &nested)).bytes(), "key 'k': has lists in lists deeper than 4"),
        ("two keys", one().number("k", 1).number("k", 2).bytes(), "the key 'k' appears twice"),
        ("alignment 0", Gguf::of("x").number("general.alignment", 0).bytes(), "general.alignment is 0"),
        ("alignment 1", Gguf::of("x").number("general.alignment", 1).bytes(), "general.alignment is 1"),
        ("alignment 48", Gguf::of("x").number("general.alignment", 48).bytes(), "general.alignment is 48"),
        ("large alignment", one().number("general.alignment", 1 << 31).bytes(), "cut short"),
        (
            "text as alignment",
            Gguf::of("x").text("general.alignment", "32").bytes(),
            "general.alignment is not a whole number",
        ),
        ("no dimensions", with(&whole, entry + 9, &[0]), "has 0 dimensions"),
        ("many dimensions", with(&whole, entry + 9, &[6]), "has 6 dimensions"),
        ("length 0", with(&whole, entry + 13, &[0]), "no dimension can be 0"),
        ("large shape", with(&whole, entry + 13, &[0xff; 16]), "is too large"),
        ("offset between", with(&whole, entry + 33, &[4]), "is not a multiple of the alignment 32"),
        ("offset past the end", with(&whole, entry + 33, &[32]), "cut short"),
        ("offset overflow", with(&whole, entry + 33, &(u64::MAX - 31).to_le_bytes()), "cut short"),
        (
            "half a block",
            Gguf::of("x").tensor("t", &[1, 48], Q8_0, &[0; 51]).bytes(),
            "its rows of 48 are not whole blocks of 32",
        ),
        ("two names", one().floats("t", &[1], [2.0]).bytes(), "the tensor 't' appears twice"),
        ("name that is not text", with(&whole, entry + 8, &[0xff]), "the name of a tensor is not UTF-8 text"),
        ("short data", whole[..whole.len() - 17].to_vec(), "cut short"),
    ];
    for (what, bytes, message) in cases {
        bench.write("m.gguf", &bytes);
        let outcome = bench.run("inspect m.gguf");
        assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{what}");
        assert!(outcome.stderr.starts_with("tcast: error: m.gguf: "), "{what}: {}", outcome.stderr);
        outcome.check_message(message);
        check_hostile(&bench.path("m.gguf"), &[1], what);
    }
    // The same bytes twice.
    let mut two = Gguf::of("x").floats("s", &[8], [1.0; 8]).floats("t", &[8], [2.0; 8]).bytes();
    let second = two.windows(9).position(|bytes| bytes == [1, 0, 0, 0, 0, 0, 0, 0, b't']).unwrap();
    two[second + 25] = 0;
    bench.write("m.gguf", &two);
    bench.run("inspect m.gguf").says(1, "", "common");
    // Missing padding at the end is usual.
    bench.write("m.gguf", &whole[..whole.len() - 16]);
    assert_eq!(bench.run("inspect m.gguf").code, Some(0));
    assert_eq!(F32, 0);
    assert_eq!(text("a").len(), 9);
}

#[test]
fn a_tensor_of_an_unknown_type_is_named_and_the_others_are_listed() {
    let bench = Bench::new();
    for (kind, message) in [(31, "Q4_0_4_4"), (99, "has the unknown type 99")] {
        let model = Gguf::of("x").tensor("odd", &[32], kind, &[0; 32]).floats("even", &[1], [1.0]);
        bench.write("m.gguf", &model.bytes());
        let outcome = bench.run("inspect m.gguf");
        assert!(outcome.stdout.contains("even  float32"), "{}", outcome.stdout);
        assert!(outcome.stdout.contains(message), "{}", outcome.stdout);
        bench.run("cast m.gguf --to bf16").says(1, "", message);
    }
}

#[test]
fn all_types_have_the_values_of_ggml() {
    for file in ["alltypes", "randomcodes"] {
        let bench = Bench::new();
        let input = fixture("gguf").join(format!("{file}.gguf"));
        bench.write("m.gguf", &std::fs::read(&input).unwrap());
        let expected = std::fs::read(fixture("gguf").join(format!("{file}.expected.safetensors"))).unwrap();
        bench.run("dequantize m.gguf --to f32 -q").expect(0, "", "");
        let file = bench.read("m.float32.safetensors");
        let (ours, theirs) = (SafeTensors::deserialize(&file).unwrap(), SafeTensors::deserialize(&expected).unwrap());
        let mut compared = 0;
        for (name, tensor) in theirs.tensors() {
            let own = ours.tensor(&name).unwrap();
            assert_eq!(own.shape(), tensor.shape(), "{name}");
            if tensor.dtype() == Dtype::F32 {
                assert!(own.data() == tensor.data(), "{name}");
                compared += 1;
            }
        }
        assert!(compared > 20, "{compared}");
    }
}

#[test]
fn what_blocks_cannot_be_is_refused_with_the_command_that_decodes_them() {
    let bench = Bench::new();
    bench.write("m.gguf", &small().bytes());
    let decode = "\n  to get their values: tcast dequantize 'm.gguf' --to float32\n";
    let no_values = "tcast: error: m.gguf: tensor 'b.weight': holds codes and scales in blocks of Q4_0, and no values";
    bench.run("bitcast m.gguf --hex --tensor b.weight").expect(1, "", &format!("{no_values}{decode}"));
    bench.run("promote m.gguf --tensor b.weight --tensor norm.weight -o out.safetensors").expect(
        1,
        "",
        &format!("{no_values}{decode}"),
    );
    let cannot = "tcast: error: m.gguf: tensor 'a.weight': .safetensors cannot hold blocks of Q8_0";
    for line in ["cast m.gguf --to bf16 --force-codes", "bitcast m.gguf --to int8"] {
        bench.run(&format!("{line} -o out.safetensors")).expect(1, "", &format!("{cannot}{decode}"));
    }
    assert_eq!(bench.files(), ["m.gguf"]);
}

#[test]
fn a_value_that_the_type_cannot_hold_is_counted_and_can_be_refused() {
    let bench = Bench::new();
    // 2^14 * 127 and NaN, and an exponent that float16 flushes to 0.
    let blocks = [q8_0(0x7400, |at| if at == 3 { 127 } else { 1 }), q8_0(0x7e00, |at| at as i8)].concat();
    let small = mxfp4(80, |_| 1);
    let model = Gguf::of("x").tensor("a.weight", &[2, 32], Q8_0, &blocks).tensor("b.weight", &[1, 32], MXFP4, &small);
    bench.write("m.gguf", &model.bytes());
    let outcome = bench.run("dequantize m.gguf --to f16");
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let counts = bench.run("dequantize m.gguf --to f16 --json -f -q");
    let report: serde_json::Value = serde_json::from_str(&counts.stdout).unwrap();
    let count = |name: &str| report["counts"][name].as_u64().unwrap();
    assert_eq!([count("infinite"), count("input_nan"), count("flushed"), count("nan")], [1, 32, 32, 0]);
    bench.run("dequantize m.gguf --to f16 --fail-on infinite -o other.safetensors -q").says(3, "", "written");
}
