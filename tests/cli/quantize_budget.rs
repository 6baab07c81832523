//! `tcast quantize --target-bits`: a scheme for each weight, within a number of bits.

use super::quantize::{config, tensors};
use super::quantize_choices::expect_refused;
use crate::common::{Bench, safetensors, same, tree};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Bfloat16 values of many magnitudes; each weight has other ones.
fn values(seed: u64, count: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let spread = next() % 6;
    let value = |bits: u64| ((bits & 0x807f) | (0x3d00 + ((bits >> 20) % (1 + 0x80 * spread)))) as u16;
    (0..count).flat_map(|_| value(next()).to_le_bytes()).collect()
}

/// A folder `m` with a file of random weights, and a config.json.
fn bench_of(weights: &[(&str, [u64; 2])], config: &str) -> Bench {
    let bench = Bench::new();
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for ((name, shape), seed) in weights.iter().zip(3..) {
        let start = data.len();
        data.extend(values(seed, shape[0] * shape[1]));
        entries
            .push(format!(r#""{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{start},{}]}}"#, data.len()));
    }
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/model.safetensors", &safetensors(&format!("{{{}}}", entries.join(",")), &data));
    bench.write("m/config.json", config.as_bytes());
    bench
}

/// Seven weights in five modules of engines.
const WEIGHTS: &[(&str, [u64; 2])] = &[
    ("model.layers.0.self_attn.q_proj.weight", [64, 128]),
    ("model.layers.0.self_attn.k_proj.weight", [32, 128]),
    ("model.layers.0.self_attn.v_proj.weight", [32, 128]),
    ("model.layers.0.self_attn.o_proj.weight", [128, 64]),
    ("model.layers.0.mlp.down_proj.weight", [128, 256]),
    ("model.layers.1.mlp.down_proj.weight", [128, 256]),
    ("model.layers.2.mlp.down_proj.weight", [128, 384]),
    ("model.embed_tokens.weight", [16, 128]),
];

fn json(bench: &Bench, line: &str) -> Value {
    let outcome = bench.run(&format!("{line} --json -q"));
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}: {outcome:?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// The words of the command that a dry run prints.
fn printed(bench: &Bench, line: &str) -> Vec<String> {
    let outcome = bench.run(&format!("{line} --dry-run -q"));
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line}: {outcome:?}");
    // Words are quoted as for a shell, and contain no quotes.
    let parts = outcome.stdout.trim_end().split(['\'', '"']).enumerate();
    let words = parts.flat_map(|(at, part)| if at % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
    words.map(str::to_owned).collect()
}

/// All files of an output.
fn contents(bench: &Bench, output: &str) -> BTreeMap<String, Vec<u8>> {
    let path = bench.path(output);
    if path.is_dir() { tree(&path) } else { BTreeMap::from([(String::new(), bench.read(output))]) }
}

/// Asserts that the printed rules give the bytes of the choice, and returns the report of the choice.
#[track_caller]
fn expect_reproduced(bench: &Bench, model: &str, choice: &str, options: &str, output: &str) -> Value {
    let line = format!("quantize {model} {choice} {options}");
    let report = json(bench, &format!("{line} -o {output} -f"));
    let again = format!("again-{output}");
    let command = printed(bench, &format!("{line} -o {again} -f"));
    assert!(command[0] == "tcast" && !command.contains(&"--target-bits".to_owned()), "{command:?}");
    let line: Vec<&str> = command[1..].iter().map(String::as_str).chain(["-q", "-f"]).collect();
    let outcome = bench.run_args(&line);
    assert_eq!((outcome.code, &*outcome.stderr), (Some(0), ""), "{line:?}: {outcome:?}");
    let [chosen, ruled] = [output, &again].map(|output| contents(bench, output));
    assert!(chosen == ruled, "{line:?}: {:?}", chosen.keys());
    expect_within(&report);
    report
}

/// Asserts that the figures of a choice are those of the output.
#[track_caller]
fn expect_within(report: &Value) {
    let budget = &report["budget"];
    let number = |field: &str| budget[field].as_f64().unwrap();
    assert!(number("bits_per_weight") <= number("target_bits"), "{budget}");
    assert!(number("smallest_bits") <= number("bits_per_weight"), "{budget}");
    assert!(number("lower_bound") <= number("relative_squared_errors") * (1.0 + 1e-12), "{budget}");
    let errors = report["tensors"].as_array().unwrap().iter();
    let sum: f64 = errors.filter_map(|tensor| tensor["quantized"]["relative_squared_error"].as_f64()).sum();
    assert!((sum - number("relative_squared_errors")).abs() <= 1e-12 * sum, "{sum}, not {budget}");
}

#[test]
fn the_printed_rules_give_the_same_bytes() {
    let bench = bench_of(WEIGHTS, r#"{"model_type": "llama"}"#);
    for (choice, options) in [
        ("--target-bits 6 --scheme nvfp4,fp8,keep", ""),
        ("--target-bits 9 --scheme fp8,nvfp4,keep", "--search mse"),
        ("--target-bits 7 --scheme fp8-block,mxfp4,keep", "--rule *.o_proj.*=fp8"),
        ("--target-bits 6.5 --scheme int4,int8a16", "--group-size 32 --exclude *.2.mlp*"),
        ("--target-bits 5.5 --scheme affine3,affine8,mxfp4", "--layout mlx --rule *embed*=keep"),
        ("--target-bits 4.5 --scheme int2,int3-asym,int6,int8-asym", "--group-size 32"),
        ("--target-bits 6 --scheme int8,int4,w4a8,w6a8", "--layout comfyui --rotation 16"),
        ("--target-bits 6 --scheme nvfp4,fp8", "--layout modelopt --arithmetic exact"),
    ] {
        expect_reproduced(&bench, "m", choice, options, "out");
    }
    let shards = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let report = expect_reproduced(&shards, "m", "--target-bits 6 --scheme nvfp4,fp8,keep", "", "out");
    let rules = [
        "model.layers.{0,3}.mlp.down_proj.weight=fp8",
        "model.layers.*.self_attn.{k_proj,o_proj,q_proj,v_proj}.weight=fp8",
    ];
    assert_eq!(report["budget"]["rules"], Value::from(rules.to_vec()));
    assert_eq!(report["options"]["rules"], Value::from(rules.to_vec()));
    // Kept weights of a quantized model are decoded, and in a GGUF they stay.
    let quantized = Bench::with_checkpoint("llama-fp8", "q");
    expect_reproduced(&quantized, "q", "--target-bits 7 --scheme nvfp4,fp8-block,keep", "", "out");
    let gguf = Bench::with("gguf/tiny.gguf", "t.gguf");
    expect_reproduced(&gguf, "t.gguf", "--target-bits 5.5 --scheme q4_k,q6_k,keep", "", "out.gguf");
    expect_reproduced(&gguf, "t.gguf", "--target-bits 4.9 --scheme q3_k_m,q8_0,keep", "", "out.gguf");
    gguf.add_checkpoint("../gguf/tiny-llama", "m");
    let options = "--metadata-from t.gguf --rule *attn_output*=q5_1";
    expect_reproduced(&gguf, "m", "--target-bits 6 --scheme q4_0,q8_0,keep", options, "out.gguf");
}

#[test]
fn weights_of_an_onnx_model_have_a_choice_too() {
    let bench = Bench::with("onnx_models/knn_surrogate.onnx", "m.onnx");
    let measured = bench.run("quantize m.onnx --compare int8,int4 --group-size 16 --json -q");
    if measured.code == Some(0) {
        expect_reproduced(&bench, "m.onnx", "--target-bits 14 --scheme int8,int4,keep", "--group-size 16", "out.onnx");
    } else {
        panic!("{measured:?}");
    }
}

/// The least sum of errors of all choices, from the figures of a comparison. `sets` are the weights that must be alike.
fn by_trying_all(schemes: &[Value], sets: &[Vec<&str>], bits: f64, keeps: bool) -> f64 {
    let mut figures: Vec<BTreeMap<&str, (u64, f64)>> = Vec::new();
    let mut elements: BTreeMap<&str, u64> = BTreeMap::new();
    let mut kept: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    for scheme in schemes {
        let mut own = BTreeMap::new();
        for tensor in scheme["tensors"].as_array().unwrap() {
            let Some(error) = tensor["quantized"]["relative_squared_error"].as_f64() else { continue };
            let name = tensor["name"].as_str().unwrap();
            own.insert(name, (tensor["bytes_out"].as_u64().unwrap(), error));
            kept.insert(name, (tensor["bytes_in"].as_u64().unwrap(), 0.0));
            elements.insert(name, tensor["shape"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).product());
        }
        figures.push(own);
    }
    if keeps {
        figures.push(kept);
    }
    let limit = bits * elements.values().sum::<u64>() as f64 / 8.0;
    let mut best = f64::INFINITY;
    for number in 0..figures.len().pow(sets.len() as u32) {
        let (mut rest, mut bytes, mut error) = (number, 0, 0.0);
        for name in sets.iter().flat_map(|set| {
            let scheme = rest % figures.len();
            rest /= figures.len();
            set.iter().map(move |name| (scheme, *name))
        }) {
            let (size, own) = figures[name.0][name.1];
            (bytes, error) = (bytes + size, error + own);
        }
        if bytes as f64 <= limit && error < best {
            best = error;
        }
    }
    best
}

#[test]
fn the_choice_is_the_best_of_all() {
    let bench = bench_of(WEIGHTS, r#"{"model_type": "llama"}"#);
    let schemes = json(&bench, "quantize m --compare nvfp4,mxfp4,fp8 --layout compressed-tensors");
    let names: Vec<&str> = WEIGHTS[..7].iter().map(|(name, _)| *name).collect();
    let sets: Vec<Vec<&str>> =
        std::iter::once(names[..3].to_vec()).chain(names[3..].iter().map(|it| vec![*it])).collect();
    let mut sums = BTreeSet::new();
    for bits in ["4.3", "4.6", "5", "5.5", "6", "6.7", "7.5", "8.2", "9", "11", "14"] {
        let report = json(&bench, &format!("quantize m --target-bits {bits} --scheme nvfp4,mxfp4,fp8,keep -n"));
        let found = report["budget"]["relative_squared_errors"].as_f64().unwrap();
        let best = by_trying_all(schemes["compared"].as_array().unwrap(), &sets, bits.parse().unwrap(), true);
        assert!((found - best).abs() <= 1e-12 * best, "{bits} bits: {found}, not {best}");
        sums.insert(found.to_bits());
    }
    assert!(sums.len() > 8, "the choices differ");
}

#[test]
fn weights_that_engines_load_as_one_module_get_the_same_scheme() {
    let names: Vec<String> = (0..2)
        .flat_map(|layer| {
            let experts = (0..3).flat_map(move |expert| {
                ["gate_proj", "up_proj", "down_proj"].map(|own| format!("mlp.experts.{expert}.{own}"))
            });
            let others = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
            experts.chain(others.map(str::to_owned)).map(move |own| format!("model.layers.{layer}.{own}.weight"))
        })
        .collect();
    let weights: Vec<(&str, [u64; 2])> = names.iter().map(|name| (&**name, [64, 64])).collect();
    let bench = bench_of(&weights, r#"{"model_type": "qwen3_moe"}"#);
    for bits in ["5", "6.5", "7", "9"] {
        let choice = format!("--target-bits {bits} --scheme nvfp4,fp8,keep");
        let report = expect_reproduced(&bench, "m", &choice, "", "out");
        let scheme = |name: &str| {
            let mut tensors = report["tensors"].as_array().unwrap().iter();
            tensors.find(|tensor| tensor["name"] == name).unwrap()["quantized"]["scheme"].clone()
        };
        for layer in 0..2 {
            for (part, own) in [("mlp.experts.", "mlp.experts.0.up_proj"), ("self_attn.", "self_attn.q_proj")] {
                let members =
                    names.iter().filter(|name| name.contains(&format!(".{layer}.{part}")) && !name.contains("o_proj"));
                for name in members {
                    assert_eq!(scheme(name), scheme(&format!("model.layers.{layer}.{own}.weight")), "{name}");
                }
            }
        }
        // Experts are named by one pattern.
        assert!(report["budget"]["rules"].as_array().unwrap().len() <= 8, "{}", report["budget"]);
    }
}

#[test]
fn threads_parts_and_a_second_run_make_the_same_choice() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let line = "quantize m --target-bits 6 --scheme nvfp4,fp8,keep -q";
    bench.run(&format!("{line} -j1 -o one")).expect(0, "", "");
    bench.run(&format!("{line} -j4 -o four")).expect(0, "", "");
    for part in ["2/3", "3/3", "1/3"] {
        bench.run(&format!("{line} -o parts --part {part}")).expect(0, "", "");
    }
    bench.run("quantize --finish parts -q").expect(0, "", "");
    same(&tree(&bench.path("one")), &tree(&bench.path("four")));
    same(&tree(&bench.path("one")), &tree(&bench.path("parts")));
    // The manifest records the rules, so another number of bits does not continue the run.
    bench.run(&format!("{line} -o one --resume")).expect(0, "", "");
    bench.run(&format!("{line} -o rest --part 1/3")).expect(0, "", "");
    bench.run("quantize m --target-bits 7 --scheme nvfp4,fp8,keep -q -o rest --resume").says(1, "", "rules");
    bench.run(&format!("{line} -o rest --resume")).expect(0, "", "");
    same(&tree(&bench.path("one")), &tree(&bench.path("rest")));
}

#[test]
fn rules_of_the_user_are_no_part_of_the_choice() {
    let bench = bench_of(WEIGHTS, "{}");
    let options = "--rule *.o_proj.*=keep --rule *.1.mlp.*=mxfp4";
    let report = expect_reproduced(&bench, "m", "--target-bits 6 --scheme nvfp4,fp8,keep", options, "out");
    let block = &config(&bench, "out")["quantization_config"];
    assert!(block["ignore"].as_array().unwrap().contains(&"model.layers.0.self_attn.o_proj".into()), "{block}");
    assert!(tensors(&bench.path("out"))["model.layers.1.mlp.down_proj.weight_scale"].0 == "U8");
    assert_eq!(report["budget"]["weights"]["mxfp4"], 1);
}

#[test]
fn the_summary_names_the_choice_and_the_options_that_make_it() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let line = "quantize m --target-bits 6 --scheme nvfp4,fp8,keep";
    let choice = "chose fp8 for 18 weights, nvfp4 for 10 weights: 5.90 bits per weight; \
                  the relative squared errors sum to 0.094847, and cannot sum to less than 0.0911185\n";
    let rules = [
        "model.layers.{0,3}.mlp.down_proj.weight=fp8",
        "model.layers.*.self_attn.{k_proj,o_proj,q_proj,v_proj}.weight=fp8",
    ];
    let command = format!("tcast quantize 'm' --rule '{}' --rule '{}' --scheme 'nvfp4' -o 'out'\n", rules[0], rules[1]);
    bench.run(&format!("{line} --dry-run -o out")).says(0, &command, "fp8");
    let outcome = bench.run(&format!("{line} -o out"));
    assert_eq!((outcome.code, &*outcome.stdout), (Some(0), ""), "{outcome:?}");
    let note = "tcast: note: this command makes the same choice without measuring:\n";
    let end = format!("{choice}{note}  {command}");
    assert!(outcome.stderr.ends_with(&end), "{}", outcome.stderr);
}

#[test]
fn an_output_without_a_name_is_named_by_the_bits() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "m");
    let line = "quantize m --target-bits 6 --scheme nvfp4,fp8,keep";
    let planned = bench.run(&format!("{line} --dry-run"));
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert!(planned.stdout.ends_with(" --scheme 'nvfp4' -o 'm-6bits'\n"), "{}", planned.stdout);
    let outcome = bench.run(line);
    outcome.says(0, "", "m-6bits");
    assert!(outcome.stderr.ends_with(&planned.stdout), "{}", outcome.stderr);
    assert_eq!(bench.files(), ["m", "m-6bits"]);
}

#[test]
fn a_choice_that_is_impossible_or_means_nothing_is_refused() {
    let bench = bench_of(WEIGHTS, "{}");
    let refused = |line: &str, code: i32, word: &str| expect_refused(&bench, line, code, word);
    refused("quantize m --target-bits 4.3 --scheme nvfp4,fp8", 1, "--target-bits");
    bench.run("quantize m --target-bits 4.51 --scheme nvfp4,fp8 -q -o least").expect(0, "", "");
    refused("quantize m --target-bits 16 --scheme nvfp4,fp8,keep", 1, "--target-bits");
    refused("quantize m --scheme nvfp4,fp8", 2, "--scheme");
    refused("quantize m --scheme keep", 2, "scheme");
    refused("quantize m --target-bits 5 --scheme nvfp4", 2, "chooses");
    refused("quantize m --target-bits 5 --scheme nvfp4,fp8 --recover", 2, "--recover");
    refused("quantize m --target-bits 5 --scheme nvfp4,fp8 --only-exact", 2, "--only-exact");
    refused("quantize m --target-bits 5 --scheme q4_0,f16", 2, "--target-bits");
    refused("quantize m --target-bits 5 --scheme nvfp4,q4_0 --layout modelopt", 2, "q4_0");
    refused("quantize m --target-bits 5 --scheme fp8-block-ue8m0,nvfp4", 2, "nvfp4");
    refused("quantize m --target-bits 5 --scheme nvfp4,fp8 --rename a=b", 2, "--target-bits");
}
