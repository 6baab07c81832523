//! `tcast dequantize`: values of quantized weights, through the program. The bytes of every layout are held by
//! `tests/quant/goldens.rs`; here are files, configs and messages.

use super::quantize::tensors;
use crate::common::{Bench, safetensors};
use ::safetensors::SafeTensors;
use std::fs;

/// What a library has stored, and the values that it reads: 130 x 136 codes in blocks of 128 x 128.
const GOLDEN: &str = "fixtures/quantized/hf-fp8-block.codes.130x136.partial-edges-f32-scales.safetensors";

/// Files of one weight `m`, the config beside it, and what the library makes of it: see `fixtures/README.md`.
const LIBRARIES: &str = "fixtures/quantized/libraries";

pub(crate) const CONFIG: &str = "{\"dtype\": \"bfloat16\", \"quantization_config\": {\"quant_method\": \"fp8\", \
                      \"weight_block_size\": [128, 128], \"activation_scheme\": \"dynamic\"}, \"x\": 1}\n";

/// A checkpoint `q` of two shards: the codes of `m.weight` and a norm in the first, the scales in the second.
pub(crate) fn quantized() -> Bench {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let golden = fs::read(GOLDEN).unwrap();
    let (codes, scales) = (bytes_of(&golden, "encoded.weight"), bytes_of(&golden, "encoded.weight_scale_inv"));
    let first = shard(&[("m.weight", "F8_E4M3", &[130, 136], codes), ("norm.weight", "BF16", &[2], &[1, 2, 3, 4])]);
    bench.write("q/model-00001-of-00002.safetensors", &first);
    bench.write("q/model-00002-of-00002.safetensors", &shard(&[("m.weight_scale_inv", "F32", &[2, 2], scales)]));
    let index = r#"{"metadata": {"total_size": 17700}, "weight_map": {"m.weight": "model-00001-of-00002.safetensors",
        "norm.weight": "model-00001-of-00002.safetensors", "m.weight_scale_inv": "model-00002-of-00002.safetensors"}}"#;
    bench.write("q/model.safetensors.index.json", index.as_bytes());
    bench.write("q/config.json", CONFIG.as_bytes());
    bench
}

/// A shard of tensors: names, dtypes, shapes and bytes.
pub(crate) fn shard(tensors: &[(&str, &str, &[u64], &[u8])]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let end = data.len();
        entries.push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#));
    }
    safetensors(&format!("{{{}}}", entries.join(",")), &data)
}

/// The bytes of a tensor.
pub(crate) fn bytes_of<'a>(file: &'a [u8], name: &str) -> &'a [u8] {
    SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data()
}

/// Whether the values of `m.weight` in a file are those that the library reads; which NaN one is does not count.
fn has_values(file: &[u8]) -> bool {
    let golden = fs::read(GOLDEN).unwrap();
    let (found, wanted) = (bytes_of(file, "m.weight"), bytes_of(&golden, "decoded.bfloat16"));
    let is_nan = |bits: [u8; 2]| u16::from_le_bytes(bits) & 0x7fff > 0x7f80;
    let mut pairs = found.as_chunks().0.iter().zip(wanted.as_chunks().0);
    found.len() == wanted.len() && pairs.all(|(a, b)| a == b || is_nan(*a) && is_nan(*b))
}

#[test]
fn weights_become_values_and_the_config_forgets_that_they_were_quantized() {
    let bench = quantized();
    let outcome = bench.run("dequantize q");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stderr.starts_with("dequantize 1 tensor to bfloat16, copied 1\nq -> q-bfloat16, 2 shards\n"));
    assert!(outcome.stderr.contains("[130, 136]  hf-fp8 -> bfloat16"), "{}", outcome.stderr);
    let first = fs::read(bench.path("q-bfloat16/model-00001-of-00002.safetensors")).unwrap();
    assert!(has_values(&first), "the values are those of the library");
    assert_eq!(bytes_of(&first, "norm.weight"), [1, 2, 3, 4]);
    let index = fs::read_to_string(bench.path("q-bfloat16/model.safetensors.index.json")).unwrap();
    assert!(index.contains("\"m.weight\"") && !index.contains("scale"), "{index}");
    let config = fs::read_to_string(bench.path("q-bfloat16/config.json")).unwrap();
    assert_eq!(config, "{\"dtype\": \"bfloat16\", \"x\": 1}\n");
}

#[test]
fn a_file_is_decoded_with_the_config_beside_it_and_threads_change_no_byte() {
    let bench = quantized();
    bench.run("dequantize q -q -j1 -o one.safetensors").expect(0, "", "");
    bench.run("dequantize q -q -j4 -o four.safetensors").expect(0, "", "");
    let one = fs::read(bench.path("one.safetensors")).unwrap();
    assert!(has_values(&one));
    assert!(one == fs::read(bench.path("four.safetensors")).unwrap());
}

#[test]
fn exact_arithmetic_and_other_types_are_a_choice() {
    let bench = quantized();
    let outcome = bench.run("dequantize q --to f32 --arithmetic exact -o exact.safetensors --json -q");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["operator"], &report["options"]["arithmetic"]), (&"dequantize".into(), &"exact".into()));
    let weight = &report["tensors"][0];
    let row = [&weight["name"], &weight["layout"], &weight["to"]];
    assert_eq!(row, [&serde_json::json!("m.weight"), &"hf-fp8".into(), &"float32".into()]);
}

#[test]
fn weights_that_are_left_out_stay_quantized_and_the_config_says_so() {
    let bench = quantized();
    let golden = fs::read(GOLDEN).unwrap();
    let (codes, scales) = (bytes_of(&golden, "encoded.weight"), bytes_of(&golden, "encoded.weight_scale_inv"));
    let more =
        shard(&[("m.weight_scale_inv", "F32", &[2, 2], scales), ("other.weight_scale_inv", "F32", &[2, 2], scales)]);
    bench.write("q/model-00002-of-00002.safetensors", &more);
    let first = [
        ("m.weight", "F8_E4M3", &[130, 136][..], codes),
        ("norm.weight", "BF16", &[2], &[1, 2, 3, 4]),
        ("other.weight", "F8_E4M3", &[130, 136], codes),
    ];
    bench.write("q/model-00001-of-00002.safetensors", &shard(&first));
    fs::remove_file(bench.path("q/model.safetensors.index.json")).unwrap();
    bench.run("dequantize q --exclude m.weight -o out -q").expect(0, "", "");
    let before = bench.read("q/model-00001-of-00002.safetensors");
    let after = bench.read("out/model-00001-of-00002.safetensors");
    assert_eq!(bytes_of(&before, "m.weight"), bytes_of(&after, "m.weight"));
    let kept = bench.read("out/model-00002-of-00002.safetensors");
    let names: Vec<String> = SafeTensors::deserialize(&kept).unwrap().names().into_iter().map(str::to_owned).collect();
    assert_eq!((&*names, bytes_of(&kept, "m.weight_scale_inv")), (&["m.weight_scale_inv".to_owned()][..], scales));
    // Loaders read the codes of the one, and the values of the other.
    let config = fs::read_to_string(bench.path("out/config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let quantization = &config["quantization_config"];
    assert_eq!(
        (&quantization["quant_method"], &quantization["modules_to_not_convert"]),
        (&"fp8".into(), &["other"].into())
    );
    // What is left can be decoded later.
    bench.run("dequantize out -q -o whole.safetensors").expect(0, "", "");
    let whole = bench.read("whole.safetensors");
    assert!(has_values(&whole));
    assert_eq!(bytes_of(&whole, "other.weight"), bytes_of(&whole, "m.weight"));
}

#[test]
fn a_model_of_which_nothing_is_decoded_keeps_its_configs() {
    let bench = Bench::new();
    bench.add_checkpoint("llama-fp8", "fp8");
    bench.add_checkpoint("llama-tiny-bf16", "m");
    bench.run("quantize m --scheme fp8 --layout modelopt -q -o modelopt").expect(0, "", "");
    for model in ["fp8", "modelopt"] {
        bench.run(&format!("cast {model} --to f16 --exclude * -q -o {model}-same")).expect(0, "", "");
        for file in ["config.json", "hf_quant_config.json"] {
            let [before, after] = ["", "-same"].map(|end| fs::read(bench.path(&format!("{model}{end}/{file}"))).ok());
            assert!(before == after, "{model}/{file}");
        }
    }
}

#[test]
fn each_description_of_gptq_says_which_weights_were_decoded() {
    let bench = Bench::new();
    let words: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let scales = [0x00, 0x3c].repeat(32);
    let parts = |name: &'static str| {
        [
            (format!("{name}.qweight"), "I32", [4, 32], &words[..]),
            (format!("{name}.qzeros"), "I32", [1, 4], &[0x77; 16][..]),
            (format!("{name}.scales"), "F16", [1, 32], &scales[..]),
        ]
    };
    let parts = [parts("a.q"), parts("b.q")].concat();
    let tensors: Vec<_> = parts.iter().map(|(name, dtype, shape, data)| (&**name, *dtype, &shape[..], *data)).collect();
    let described = |more: &str| format!("{{\"bits\": 4, \"group_size\": 32, \"desc_act\": false{more}}}");
    let block = described(", \"quant_method\": \"gptq\"");
    for (folder, config) in [("alone", "{}".to_owned()), ("both", format!("{{\"quantization_config\": {block}}}"))] {
        fs::create_dir(bench.path(folder)).unwrap();
        bench.write(&format!("{folder}/model.safetensors"), &shard(&tensors));
        bench.write(&format!("{folder}/config.json"), config.as_bytes());
        bench.write(&format!("{folder}/quantize_config.json"), described("").as_bytes());
        bench.run(&format!("dequantize {folder} -q -o {folder}-all")).expect(0, "", "");
        bench.run(&format!("dequantize {folder} --include a.q.weight -q -o {folder}-some")).expect(0, "", "");
        let text = fs::read_to_string(bench.path(&format!("{folder}-some/quantize_config.json"))).unwrap();
        assert_eq!(text, described(", \"dynamic\": {\"-:^a\\\\.q$\": {}}"));
        let config = fs::read_to_string(bench.path(&format!("{folder}-some/config.json"))).unwrap();
        assert_eq!(config.contains("\"dynamic\""), folder == "both", "{config}");
        bench.run(&format!("dequantize {folder}-some -q -o {folder}-rest")).expect(0, "", "");
        let [all, rest] = ["all", "rest"].map(|end| bench.read(&format!("{folder}-{end}/model.safetensors")));
        assert!(["a.q.weight", "b.q.weight"].iter().all(|name| bytes_of(&all, name) == bytes_of(&rest, name)));
        // Nothing is added where nothing is decoded.
        bench.run(&format!("cast {folder}-some --to f16 --exclude * -q -o {folder}-same")).expect(0, "", "");
        assert_eq!(bench.read(&format!("{folder}-same/quantize_config.json")), text.as_bytes());
    }
}

#[test]
fn awq_is_known_by_its_own_description() {
    let bench = Bench::new();
    let words: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let scales = [0x00, 0x3c].repeat(32);
    let tensors: [(&str, &str, &[u64], &[u8]); 3] = [
        ("a.q.qweight", "I32", &[32, 4], &words),
        ("a.q.qzeros", "I32", &[1, 4], &[0x77; 16]),
        ("a.q.scales", "F16", &[1, 32], &scales),
    ];
    let described = "{\"zero_point\": true, \"q_group_size\": 32, \"w_bit\": 4, \"version\": \"GEMM\"";
    let config = format!("{{\"quantization_config\": {described}, \"quant_method\": \"awq\"}}}}");
    for (folder, file, text) in [("a", "quantize_config.json", format!("{described}}}")), ("b", "config.json", config)]
    {
        fs::create_dir(bench.path(folder)).unwrap();
        bench.write(&format!("{folder}/model.safetensors"), &shard(&tensors));
        bench.write(&format!("{folder}/{file}"), text.as_bytes());
        bench.run(&format!("dequantize {folder} -q -o {folder}.safetensors")).expect(0, "", "");
    }
    assert!(bench.read("a.safetensors") == bench.read("b.safetensors"));
}

#[test]
fn scales_that_are_not_powers_of_two_are_numbers_whatever_scale_fmt_says() {
    // As some weights of DeepSeek-V3.1-Terminus.
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let config =
        r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}"#;
    bench.write("q/config.json", config.as_bytes());
    let (codes, scale) = ([0x38; 16], 0.375_f32.to_le_bytes()); // codes of 1
    let tensors = [("m.weight", "F8_E4M3", &[1, 16][..], &codes[..]), ("m.weight_scale_inv", "F32", &[1, 1], &scale)];
    bench.write("q/model.safetensors", &shard(&tensors));
    bench.run("dequantize q -q --to f32 -o out").expect(0, "", "");
    assert!(bench.read("out/model.safetensors").ends_with(&scale.repeat(16)));
}

#[test]
fn a_shard_alone_is_no_model() {
    let bench = quantized();
    for command in ["dequantize", "quantize --layout compressed-tensors"] {
        let outcome = bench.run(&format!("{command} q/model-00001-of-00002.safetensors -o out.safetensors"));
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(outcome.stderr.ends_with("\n  give the folder of all shards: 'q'\n"), "{}", outcome.stderr);
    }
    let outcome = bench.run("dequantize q/model-00002-of-00002.safetensors -o out.safetensors");
    assert!(outcome.stderr.contains("\n  give the folder of all shards: 'q'\n"), "{}", outcome.stderr);
    let outcome = bench.run("cast q/model-00002-of-00002.safetensors --to f16 -o out.safetensors");
    let message = "tensor 'm.weight_scale_inv': holds scales of codes that are in another shard; casting them as plain values would corrupt the \
                   weights\n  tcast dequantize 'q'\n";
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
    assert_eq!(outcome.code, Some(1));
}

#[test]
fn parts_of_the_work_make_the_folder_of_one_run() {
    let bench = quantized();
    bench.run("dequantize q -q -o whole").expect(0, "", "");
    for part in ["2/2", "1/2"] {
        bench.run(&format!("dequantize q -q -o parts --part {part}")).expect(0, "", "");
    }
    bench.run("dequantize --finish parts -q").expect(0, "", "");
    for file in ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"] {
        let [whole, parts] = ["whole", "parts"].map(|folder| fs::read(bench.path(folder).join(file)).unwrap());
        assert!(whole == parts, "{file}");
    }
}

#[test]
fn an_unfinished_folder_says_with_which_command_it_goes_on() {
    let bench = quantized();
    let line = "dequantize q --arithmetic exact --fail-on infinite,saturated --rename norm.weight=n --to f32 -o out";
    let part = bench.run(&format!("{line} --part 1/2"));
    let next = "shards done: 1 of 2; when all are done: tcast dequantize --finish 'out'\n";
    assert!(part.code == Some(0) && part.stdout.is_empty() && part.stderr.ends_with(next), "{part:?}");
    let q = fs::canonicalize(bench.path("q")).unwrap();
    let command = format!(
        "tcast dequantize '{}' --arithmetic 'exact' --fail-on 'infinite,saturated' --rename 'norm.weight=n' --to \
         'float32' -o 'out' --resume",
        q.display()
    );
    let message = format!("tcast: error: out: an unfinished conversion is in it, in .tcast\n  {command}\n");
    bench.run("inspect out").expect(1, "", &message);
    bench.run(line).expect(
        1,
        "",
        "tcast: error: out: an unfinished conversion is in it\n  add --resume to continue it, or --force to start again\n",
    );
    bench.run(&format!("{line} -q --part 2/2")).expect(0, "", "");
    let message = "an unfinished conversion is in it, in .tcast\n  tcast dequantize --finish 'out'\n";
    bench.run("inspect out").expect(1, "", &format!("tcast: error: out: {message}"));
    let words: Vec<String> = command
        .replace(&format!("'{}'", q.display()), "q")
        .split(' ')
        .skip(1)
        .map(|word| word.replace('\'', ""))
        .collect();
    bench.run(&format!("{} -q", words.join(" "))).expect(0, "", "");
    assert!(!bench.path("out/.tcast").exists());
}

#[test]
fn nan_codes_are_counted_and_can_be_refused() {
    let bench = quantized();
    let codes = vec![0x7f; 130 * 136];
    let first = shard(&[("m.weight", "F8_E4M3", &[130, 136], &codes), ("norm.weight", "BF16", &[2], &[1, 2, 3, 4])]);
    bench.write("q/model-00001-of-00002.safetensors", &first);
    let outcome = bench.run("dequantize q -o out --fail-on input-nan");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(3), ""), "{outcome:?}");
    assert!(outcome.stderr.contains("m.weight"), "{}", outcome.stderr);
    assert!(!bench.path("out/config.json").exists());
    // A NaN that has two causes is one NaN.
    bench.write("q/model-00002-of-00002.safetensors", &shard(&[("m.weight_scale_inv", "F32", &[2, 2], &[0xff; 16])]));
    let outcome = bench.run("dequantize q -o out -q --json");
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""));
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["counts"]["input_nan"], &report["counts"]["nan"]), (&(130 * 136).into(), &0.into()));
}

/// What becomes of a file of `ComfyUI` with one weight of codes and a scale: the exit code, and a report.
fn comfy_fp8(dtype: &str, codes: &[u8], scale: f32, options: &str) -> (Option<i32>, serde_json::Value) {
    let format = format!("{{\"format\":\"float8_{}\"}}", if dtype == "F8_E5M2" { "e5m2" } else { "e4m3fn" });
    let bench = Bench::new();
    let parts: [(&str, &str, &[u64], &[u8]); 3] = [
        ("m.weight", dtype, &[1, codes.len() as u64], codes),
        ("m.weight_scale", "F32", &[], &scale.to_le_bytes()),
        ("m.comfy_quant", "U8", &[format.len() as u64], format.as_bytes()),
    ];
    bench.write("x.safetensors", &shard(&parts));
    let outcome = bench.run(&format!("dequantize x.safetensors -o y.safetensors -q --json {options}"));
    (outcome.code, serde_json::from_str(&outcome.stdout).unwrap())
}

#[test]
fn losses_count_by_the_stored_scale_also_where_the_library_rounds_it_first() {
    let codes = [0x38, 0x40, 0x44, 0x48];
    for (scale, loss) in [(2e-8, "flushed"), (1e5, "infinite")] {
        let (code, report) = comfy_fp8("F8_E4M3", &codes, scale, &format!("--to f16 --fail-on {loss}"));
        assert_eq!(
            (code, &report["counts"][loss], &report["counts"]["input_infinite"]),
            (Some(3), &4.into(), &0.into())
        );
        let (code, report) = comfy_fp8("F8_E4M3", &codes, scale, &format!("--to f32 --fail-on {loss}"));
        assert_eq!((code, &report["counts"][loss]), (Some(0), &0.into()));
    }
}

/// Those of transformers are: `tests/cli/quantize.rs`.
#[test]
fn experts_of_gpt_oss_with_the_names_of_openai_are_not_transposed() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    bench.write("q/config.json", br#"{"model_type": "gpt_oss", "hidden_size": 32}"#);
    let bank = "block.0.mlp.mlp2_weight";
    let [blocks, scales] = ["blocks", "scales"].map(|part| format!("{bank}.{part}"));
    let bytes: Vec<u8> = (0..64).collect();
    let values = [0x3c; 64 * 64 * 2];
    let stored: &[(&str, &str, &[u64], &[u8])] = &[
        (&blocks, "U8", &[2, 2, 1, 16], &bytes),
        (&scales, "U8", &[2, 2, 1], &[127, 128, 129, 126]),
        ("model.layers.0.self_attn.o_proj.weight", "BF16", &[64, 64], &values),
    ];
    bench.write("q/model.safetensors", &shard(stored));
    bench.run("dequantize q --to f32 -q -o d").expect(0, "", "");
    let number = |code: u8| {
        let size = [0.0_f32, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
        if code & 8 == 0 { size } else { -size }
    };
    let scales = [1.0, 2.0, 4.0, 0.5].into_iter().flat_map(|scale| [scale; 16]);
    let pairs = bytes.iter().zip(scales).flat_map(|(byte, scale)| [byte & 15, byte >> 4].map(|code| (code, scale)));
    let wanted: Vec<u8> = pairs.flat_map(|(code, scale)| (number(code) * scale).to_le_bytes()).collect();
    let read = |folder: &str| tensors(&bench.path(folder)).remove(bank).unwrap();
    assert_eq!(read("d"), ("F32".to_owned(), vec![2, 2, 32], wanted.clone()));
    // Beside weights that are quantized, they are decoded too.
    bench.run("quantize q --scheme fp8 --rule *o_proj.weight=fp8 -q -o again").expect(0, "", "");
    let (dtype, shape, found) = read("again");
    assert_eq!((&*dtype, &*shape), ("BF16", &[2, 2, 32][..]));
    assert!(found.chunks(2).eq(wanted.chunks(4).map(|value| &value[2..])));
    let message = "q/model.safetensors: tensor 'block.0.mlp.mlp2_weight.blocks': is quantized already, and tcast writes \
                   the layout gpt-oss from plain models only\n";
    let outcome = bench.run("quantize q --scheme mxfp4 --layout gpt-oss -o none");
    assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
}

#[test]
fn infinite_codes_are_infinite_input() {
    let (code, report) = comfy_fp8("F8_E5M2", &[0x3c, 0x7c, 0xfc, 0], 1.0, "--to f32 --fail-on infinite");
    assert_eq!(
        (code, &report["counts"]["infinite"], &report["counts"]["input_infinite"]),
        (Some(0), &0.into(), &2.into())
    );
    assert_eq!(report["tensors"][0]["first_index"], serde_json::json!({ "input_infinite": [0, 1] }));
}

#[test]
fn the_first_value_of_each_kind_is_named() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let config = CONFIG.replace("[128, 128]", "[1, 2]");
    bench.write("q/config.json", config.as_bytes());
    let scales = |scales: [f32; 3]| scales.map(f32::to_le_bytes).concat();
    for (codes, scales, firsts) in [
        (
            [0x7e, 0x38, 0x38, 0x40, 0x38, 0x38],
            scales([3e38, f32::INFINITY, 1.0]),
            serde_json::json!({ "infinite": [0, 0], "input_infinite": [1, 0] }),
        ),
        (
            [0, 0x38, 0x38, 0x38, 0x38, 0x38],
            scales([f32::INFINITY, 1.0, f32::NAN]),
            serde_json::json!({ "nan": [0, 0], "input_infinite": [0, 1], "input_nan": [2, 0] }),
        ),
    ] {
        let parts = [("m.weight", "F8_E4M3", &[3, 2][..], &codes[..]), ("m.weight_scale_inv", "F32", &[3, 1], &scales)];
        bench.write("q/model.safetensors", &shard(&parts));
        let outcome = bench.run("dequantize q --to f32 --fail-on nan,infinite -o out --json -q");
        assert_eq!(outcome.code, Some(3), "{outcome:?}");
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(report["tensors"][0]["first_index"], firsts);
    }
}

#[test]
fn scales_without_codes_are_named() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    bench.write("q/config.json", CONFIG.as_bytes());
    bench.write("q/model.safetensors", &shard(&[("m.weight_scale_inv", "F32", &[1, 1], &[0; 4])]));
    let details = "  tensor 'm.weight_scale_inv': belongs to codes 'm.weight', which are missing\n";
    let message = format!("tcast: error: q: holds no quantized weights\n{details}");
    bench.run("dequantize q -o out").expect(1, "", &message);
}

#[test]
fn a_set_that_engines_fuse_and_that_is_decoded_in_part_is_named() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let names = ["0.self_attn.q_proj", "0.self_attn.k_proj", "0.mlp.down_proj", "1.mlp.experts.0.up_proj"];
    let names = names.into_iter().chain(["1.mlp.experts.1.up_proj"]).map(|name| format!("model.layers.{name}.weight"));
    let names: Vec<[String; 2]> = names.map(|name| [name.clone(), format!("{name}_scale_inv")]).collect();
    let parts: Vec<(&str, &str, &[u64], &[u8])> = names
        .iter()
        .flat_map(|[codes, scale]| [(&**codes, "F8_E4M3", &[2, 2][..], &[0; 4][..]), (scale, "F32", &[1, 1], &[0; 4])])
        .collect();
    bench.write("q/model.safetensors", &shard(&parts));
    bench.write("q/config.json", CONFIG.as_bytes());
    let note = |options: &str| {
        let outcome = bench.run(&format!("dequantize q -o out -f {options}"));
        assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
        outcome.stderr.lines().find(|line| line.starts_with("tcast: note:")).unwrap_or_default().to_owned()
    };
    let told = |decoded: &str, left: &str, more: &str| {
        format!(
            "tcast: note: engines load 'model.layers.{decoded}.weight' and 'model.layers.{left}.weight' as one module, \
             and may refuse it: the first is decoded, and the second stays quantized{more}"
        )
    };
    assert_eq!(note(""), "");
    assert_eq!(note("--exclude *.0.self_attn.*"), "");
    let [q, k] = ["0.self_attn.q_proj", "0.self_attn.k_proj"];
    assert_eq!(note("--exclude *.k_proj.*"), told(q, k, ""));
    let more = " (and 1 set like this)";
    assert_eq!(note("--include *.k_proj.* --include *.experts.1.*"), told(k, q, more));
}

/// `ComfyUI` loads layers without a description as they are stored.
#[test]
fn plain_float8_beside_quantized_layers_of_comfyui_is_copied() {
    let bench = Bench::new();
    let (codes, scale) = ([0x38; 256], 0.5_f32.to_le_bytes());
    let format = b"{\"format\": \"float8_e4m3fn\"}";
    let length = [format.len() as u64];
    for (scale_name, more) in [
        ("b.0.ffn.weight_scale", ("b.0.ffn.comfy_quant", "U8", &length[..], &format[..])),
        ("b.0.ffn.scale_weight", ("scaled_fp8", "F8_E4M3", &[0], &[])),
    ] {
        let tensors = [
            ("b.0.ffn.weight", "F8_E4M3", &[16, 16][..], &codes[..]),
            (scale_name, "F32", &[], &scale),
            ("b.2.ffn.weight", "F8_E4M3", &[16, 16], &codes),
            more,
        ];
        bench.write("c.safetensors", &shard(&tensors));
        for line in ["dequantize c.safetensors", "quantize c.safetensors --scheme fp8 --layout comfyui"] {
            bench.run(&format!("{line} -o o.safetensors -f -q")).expect(0, "", "");
            assert_eq!(bytes_of(&bench.read("o.safetensors"), "b.2.ffn.weight"), codes);
        }
    }
}

#[test]
fn the_padding_of_comfyui_is_mentioned() {
    let bench = Bench::new();
    let golden = fs::read("fixtures/quantized/comfy-nvfp4.bf16.50x40.safetensors").unwrap();
    let part = |name: &str| bytes_of(&golden, &format!("encoded.{name}"));
    bench.write(
        "x.safetensors",
        &shard(&[
            ("m.weight", "U8", &[64, 24], part("weight")),
            ("m.weight_scale", "F8_E4M3", &[128, 4], part("weight_scale")),
            ("m.weight_scale_2", "F32", &[], part("weight_scale_2")),
            ("m.comfy_quant", "U8", &[18], br#"{"format":"nvfp4"}"#),
        ]),
    );
    let outcome = bench.run("dequantize x.safetensors -o y.safetensors");
    let note = "tcast: note: ComfyUI pads rows and columns of nvfp4 weights to multiples of 16, and the file does not \
                contain their shapes before that: 'm.weight' may end with zeros\n";
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    assert!(outcome.stderr.ends_with(note), "{}", outcome.stderr);
}

#[test]
fn inexact_values_are_reported_only_if_they_are_counted() {
    let bench = Bench::with_checkpoint("llama-fp8", "q");
    let report = |line: &str| -> serde_json::Value { serde_json::from_str(&bench.run(line).stdout).unwrap() };
    let decoded = |report: &serde_json::Value| {
        let tensors = report["tensors"].as_array().unwrap();
        tensors.iter().find(|tensor| tensor["layout"] == "hf-fp8").unwrap().clone()
    };
    let plain = report("dequantize q -o plain --json -q --report page.html");
    for part in [&plain, &decoded(&plain)] {
        assert_eq!((part["counts"].get("inexact"), &part["counts"]["infinite"]), (None, &0.into()), "{part}");
    }
    let page = String::from_utf8(bench.read("page.html")).unwrap();
    assert!(page.contains("<p>Every decoded value is finite.</p>") && !page.contains(">rounded<"), "{page}");
    let counted = report("dequantize q -o counted --json -q --fail-on inexact");
    for part in [&counted, &decoded(&counted)] {
        assert!(part["counts"]["inexact"].as_u64().is_some_and(|count| count > 0), "{part}");
    }
}

/// 0.5 and 1.5 times a scale, of which bfloat16 has every product, or only the first.
#[test]
fn values_that_are_not_the_exact_product_can_be_refused() {
    let bench = Bench::new();
    let write = |scale: f32| {
        let codes = [[0x30; 15], [0x3c; 15]].concat();
        let scale = scale.to_le_bytes();
        let parts = [("m.weight", "F8_E4M3", &[2, 15][..], &codes[..]), ("m.weight_scale_inv", "F32", &[1, 1], &scale)];
        bench.write("q/model.safetensors", &shard(&parts));
    };
    fs::create_dir(bench.path("q")).unwrap();
    bench.write("q/config.json", CONFIG.as_bytes());
    // As many digits as bfloat16 has, and 1.5 times as much needs one more.
    write(f32::from_bits(0x3f81_0000));
    for (to, first, count) in [("bf16", "[1, 0]", 15), ("f16", "", 0), ("f32", "", 0)] {
        for arithmetic in ["library", "exact"] {
            let line = format!("dequantize q --to {to} --arithmetic {arithmetic} --fail-on inexact -o out -f");
            let outcome = bench.run(&format!("{line} --json"));
            let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert_eq!(report["counts"]["inexact"], count, "{line}");
            if count == 0 {
                assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
                continue;
            }
            assert_eq!(outcome.code, Some(3), "{line}: {outcome:?}");
            assert!(outcome.stderr.contains("m.weight") && outcome.stderr.contains(first), "{}", outcome.stderr);
        }
    }
    // float32 has every digit of the first product, and not of the second.
    write(f32::from_bits(0x3f80_0001));
    let outcome = bench.run("dequantize q --to f32 --fail-on inexact -o out.safetensors --json -q");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((outcome.code, &report["counts"]["inexact"]), (Some(3), &15.into()), "{outcome:?}");
    assert!(!bench.path("out.safetensors").exists());
}

#[test]
fn shards_are_as_small_as_wanted_and_hold_the_same_values() {
    let bench = quantized();
    bench.run("dequantize q -q -o whole").expect(0, "", "");
    // The decoded weight has 35,360 bytes.
    bench.run("dequantize q -q -o small --max-shard-size 36000B").expect(0, "", "");
    bench.run("dequantize q -q -o one --max-shard-size 1MB").expect(0, "", "");
    bench.run("dequantize q -q -o smaller --max-shard-size 35361B").expect(0, "", "");
    for folder in ["small", "one", "smaller"] {
        bench.run(&format!("diff whole {folder} -q")).expect(0, "", "");
    }
    let shards = |folder: &str| {
        let names = fs::read_dir(bench.path(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".safetensors")).count()
    };
    assert_eq!(["small", "one", "smaller"].map(shards), [1, 1, 2]);
    let line = "dequantize q -q -o small --max-shard-size 36000B --resume";
    bench.run(line).expect(0, "", "");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let bench = quantized();
    let refused = |line: &str, code: i32, message: &str| {
        let outcome = bench.run(line);
        assert_eq!((outcome.code, &*outcome.stdout), (Some(code), ""), "{line}: {outcome:?}");
        assert!(outcome.stderr.contains(message), "{line}: {}", outcome.stderr);
        assert!(!bench.path("out").exists(), "{line}");
    };
    refused("dequantize q -o out --to int8", 2, "weights are decoded to bfloat16, float16 or float32");
    refused("dequantize q -o out --from e4m3", 2, "--from has no effect");
    refused("dequantize q -o out --include nothing", 2, "--include 'nothing' matches no tensor");
    bench.write("q/model-00002-of-00002.safetensors", &shard(&[("m.weight_scale_inv", "F32", &[3, 2], &[0; 24])]));
    refused("dequantize q -o out", 1, "m.weight_scale_inv");
    bench.write("q/config.json", CONFIG.replace("\"fp8\"", "\"novel\"").as_bytes());
    refused("dequantize q -o out", 1, "novel");
    let plain = Bench::new();
    plain.write("x.safetensors", &shard(&[("x", "F32", &[1], &[0; 4])]));
    let outcome = plain.run("dequantize x.safetensors");
    let remedy = "tcast cast changes the type of plain weights, or tcast quantize quantizes them";
    outcome.expect(1, "", &format!("tcast: error: x.safetensors: holds no quantized weights\n  {remedy}\n"));
}

/// Two weights of torchao as one shard, with the metadata that torchao writes and needs.
fn of_torchao() -> Bench {
    let bench = Bench::new();
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    let entry = r#"{\"_type\": \"Int8Tensor\", \"_data\": {}, \"_tensor_data_names\": [\"qdata\", \"scale\"]}"#;
    entries.push(format!(
        r#""__metadata__":{{"format":"pt","a.weight":"{entry}","b.weight":"{entry}","tensor_names":"[\"a.weight\",\"b.weight\"]"}}"#
    ));
    for module in ["a", "b"] {
        for (part, dtype, shape, bytes) in
            [("qdata", "I8", "[4,8]", vec![7; 32]), ("scale", "F32", "[4,1]", 0.5_f32.to_le_bytes().repeat(4))]
        {
            let (start, end) = (data.len(), data.len() + bytes.len());
            data.extend(bytes);
            entries.push(format!(
                r#""{module}._weight_{part}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#
            ));
        }
    }
    fs::create_dir(bench.path("q")).unwrap();
    bench.write("q/model.safetensors", &safetensors(&format!("{{{}}}", entries.join(",")), &data));
    let config = r#"{"dtype": "bfloat16", "quantization_config": {"quant_method": "torchao", "modules_to_not_convert": null, "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}}"#;
    bench.write("q/config.json", config.as_bytes());
    bench
}

#[test]
fn the_metadata_of_torchao_describes_the_weights_that_stay_quantized_and_is_gone_with_the_last() {
    let bench = of_torchao();
    let metadata = |path: &str| {
        let file = bench.read(path);
        let (_, header) = SafeTensors::read_metadata(&file).unwrap();
        let metadata: std::collections::BTreeMap<String, String> =
            header.metadata().clone().unwrap().into_iter().collect();
        let names: Vec<String> = header.tensors().into_keys().collect();
        (metadata, names.len())
    };
    let (before, _) = metadata("q/model.safetensors");
    bench.run("dequantize q --exclude b.weight -o some -q").expect(0, "", "");
    let (mut some, count) = metadata("some/model.safetensors");
    assert_eq!(
        (some.insert("a.weight".into(), before["a.weight"].clone()), count),
        (Some(r#"{"_type": "Tensor"}"#.into()), 3)
    );
    assert_eq!(some, before);
    let config = fs::read_to_string(bench.path("some/config.json")).unwrap();
    assert!(config.contains(r#""modules_to_not_convert": ["a"]"#), "{config}");
    for (line, count) in [
        ("dequantize some -o all -q -f", 2),
        ("dequantize q -o all -q -f", 2),
        ("quantize q --scheme fp8 --include a.weight -o all -q -f", 3),
    ] {
        bench.run(line).expect(0, "", "");
        let (all, found) = metadata("all/model.safetensors");
        let all: Vec<(&str, &str)> = all.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!((&all[..], found), (&[("format", "pt")][..], count), "{line}");
    }
    let all = bench.read("all/model.safetensors");
    assert_eq!(bytes_of(&all, "b.weight"), 0x4060_u16.to_le_bytes().repeat(32)); // 7 * 0.5
}

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
    assert_eq!((files, compared), (31, 249_856), "files, and decoded bytes that are those of the libraries");
}

#[test]
fn the_shape_of_the_scales_shows_the_groups_of_float4_experts() {
    let bench = Bench::new();
    let codes: Vec<u8> = (0..=255).collect();
    let name = "model.layers.0.ffn.experts.0.w1";
    let (weight, scale) = (format!("{name}.weight"), format!("{name}.scale"));
    // Groups of 32, 128 and 256 values.
    for beside in [8, 2, 1] {
        let exponent = |at: u64| {
            [120, 130][(at / beside) as usize] + if beside == 1 { 0 } else { (at % beside * 2 / beside) as u8 }
        };
        let scales: Vec<u8> = (0..2 * beside).map(exponent).collect();
        let folder = format!("m{beside}");
        fs::create_dir(bench.path(&folder)).unwrap();
        let tensors =
            [(&*weight, "I8", &[2, 128][..], &codes[..]), (&*scale, "F8_E8M0", &[2, beside][..], &scales[..])];
        bench.write(&format!("{folder}/model.safetensors"), &shard(&tensors));
        let config =
            br#"{"expert_dtype":"fp4","quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}"#;
        bench.write(&format!("{folder}/config.json"), config);
        bench.run(&format!("dequantize {folder} --to f32 -o {folder}.safetensors -q")).expect(0, "", "");
    }
    let outcome = bench.run("diff m8.safetensors m2.safetensors");
    assert!(outcome.code == Some(0) && outcome.stdout == "1 tensor is equal\n", "{outcome:?}");
    let outcome = bench.run("diff m8.safetensors m1.safetensors");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}
