//! Experts that MLX stacks, and heads that it leaves out, through the program.

use super::quantize::{assert_same, bench_with, tensors};
use crate::common::{Bench, Outcome};
use crate::dequantize::shard;
use serde_json::{Value, json};
use std::fs;

const LAYER: &str = "model.layers.0.mlp";
const STACK: &str = "model.layers.0.mlp.switch_mlp";

/// A folder `m` with experts of one layer and a router, without the tensors that `is_missing` names.
fn bench_of_experts(count: u64, config: &str, is_missing: impl Fn(&str) -> bool) -> Bench {
    let of = |expert: u64| {
        ["gate_proj", "up_proj", "down_proj"].map(|name| (format!("{LAYER}.experts.{expert}.{name}.weight"), [64, 64]))
    };
    let others = [(format!("{LAYER}.gate.weight"), [count, 64]), ("model.embed_tokens.weight".to_owned(), [32, 64])];
    let all: Vec<(String, [u64; 2])> = (0..count).flat_map(of).chain(others).collect();
    let stored = all.iter().filter(|(name, _)| !is_missing(name)).map(|(name, shape)| (&**name, &shape[..]));
    bench_with(&stored.collect::<Vec<_>>(), config)
}

fn moe(count: u64) -> Bench {
    bench_of_experts(count, &json!({ "model_type": "qwen3_moe", "num_experts": count }).to_string(), |_| false)
}

#[track_caller]
fn is_refused(outcome: &Outcome, message: &str) {
    let error = format!("tcast: error: {message}");
    let is_error = matches!(outcome.code, Some(1 | 2)) && outcome.stdout.is_empty(); // diff ends with 2
    assert!(is_error && outcome.stderr.starts_with(&error), "{outcome:?}");
}

#[test]
fn a_stack_without_one_of_its_experts_is_refused() {
    let qwen = |count: u64| json!({ "model_type": "qwen3_moe", "num_experts": count }).to_string();
    for (config, missing, stack, tensor) in [
        ("{}".to_owned(), "experts.3.up_proj", "up_proj.weight", "experts.3.up_proj.weight"),
        (qwen(5), "nothing", "", "experts.4."),
        ("{}".to_owned(), "experts.1.down_proj", "down_proj.weight", "experts.1.down_proj.weight"),
    ] {
        let config = if config == "{}" { r#"{"model_type": "qwen3_moe"}"#.to_owned() } else { config };
        let bench = bench_of_experts(4, &config, |name| name.contains(missing));
        let outcome = bench.run("quantize m --layout mlx --scheme affine4 -o o");
        is_refused(&outcome, &format!("m: tensor '{STACK}.{stack}"));
        outcome.check_message(tensor);
        assert_eq!(bench.files(), ["m"]);
        bench.run("quantize m --layout mlx --scheme affine4 -o o --names file -q").expect(0, "", "");
    }
}

#[test]
fn the_config_names_the_modules_that_the_file_has() {
    let bench = moe(2);
    let line = "quantize m --layout mlx --scheme affine4 --rule *.up_proj.*=affine8 -q";
    for (flags, folder, module) in [("", "o", STACK), (" --names file", "f", "model.layers.0.mlp.experts.1")] {
        bench.run(&format!("{line} -o {folder}{flags}")).expect(0, "", "");
        let config: Value = serde_json::from_slice(&bench.read(&format!("{folder}/config.json"))).unwrap();
        assert_eq!(config["quantization"][format!("{module}.up_proj")]["bits"], 8, "{config}");
        assert!(tensors(&bench.path(folder)).contains_key(&format!("{module}.up_proj.scales")));
    }
}

#[test]
fn a_head_that_is_the_embeddings_is_left_out_and_one_that_is_not_is_refused() {
    let shapes: [(&str, &[u64]); 3] = [
        ("lm_head.weight", &[64, 128]),
        ("model.embed_tokens.weight", &[64, 128]),
        ("model.layers.0.q.weight", &[64, 64]),
    ];
    let config = r#"{"model_type": "llama", "tie_word_embeddings": true}"#;
    let bench = bench_with(&shapes, config);
    let line = "quantize m --layout mlx --scheme affine4 -o o";
    let outcome = bench.run(line);
    let message = "m/model.safetensors: tensor 'lm_head.weight': is left out, because config.json says with \
                   tie_word_embeddings that the embeddings are the head too, and has other values than these\n  \
                   set tie_word_embeddings to false in config.json\n";
    is_refused(&outcome, message);
    assert_eq!(bench.files(), ["m"]);
    // The same bytes.
    let weight = vec![0x3c; 2 * 64 * 128];
    let (head, other) = (["lm_head.weight", "model.embed_tokens.weight"], vec![0x3c; 2 * 64 * 64]);
    let stored = head.map(|name| (name, "BF16", &[64, 128][..], &weight[..]));
    let frequencies = ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[4][..], &other[..16]);
    let all = [&stored[..], &[("model.layers.0.q.weight", "BF16", &[64, 64], &other), frequencies]].concat();
    bench.write("m/model.safetensors", &shard(&all));
    bench.run(line).says(0, "", "affine4");
    assert!(!tensors(&bench.path("o")).keys().any(|name| name.contains("lm_head") || name.contains("inv_freq")));
    let outcome = bench.run(&format!("{line} -f -q --json"));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!(report["left_out"], json!(["lm_head.weight", frequencies.0]));
    // No option can keep it.
    for (option, what) in
        [("--exclude lm_head*", "--exclude 'lm_head*'"), ("--rule lm_head*=affine8", "--rule 'lm_head*=affine8'")]
    {
        bench.run(&format!("{line} -f {option}")).says(2, "", what);
    }
}

#[test]
fn a_cast_keeps_stacks_and_a_part_of_the_experts_is_not_decoded() {
    let bench = moe(2);
    bench.run("quantize m --layout mlx --scheme affine4 -o q -q").expect(0, "", "");
    bench.run("cast q --to float16 --include *.norm.weight --allow-unmatched -o c -q").expect(0, "", "");
    assert_same(&tensors(&bench.path("c")), &tensors(&bench.path("q")));
    let outcome = bench.run("dequantize q --include *embed* -o o");
    let what = "is one of the experts that MLX stacks, and MLX loads it only under the names of the file";
    is_refused(&outcome, &format!("q: tensor '{LAYER}.experts.0.gate_proj.weight': {what}\n"));
    bench.run("dequantize q --include *embed* --names file -o o -q").expect(0, "", "");
    assert!(tensors(&bench.path("o")).contains_key(&format!("{STACK}.up_proj.scales")));
    bench.run("diff q o").expect(0, "8 tensors are equal\n", "");
}

#[test]
fn stacks_that_are_decoded_because_of_their_names_are_noted() {
    let bench = moe(2);
    bench.run("quantize m --layout mlx --scheme affine4 -o q -q").expect(0, "", "");
    bench.run("quantize q --layout mlx --scheme affine8 --names file -o o").says(0, "", "--names");
    let outcome = bench.run("quantize q --layout mlx --scheme affine8 --only-exact -o x");
    assert!(outcome.code == Some(0) && !outcome.stderr.contains("decoded: "), "{outcome:?}");
}

#[test]
fn finished_stacks_are_recognized_and_their_report_is_checked() {
    let bench = moe(3);
    // A bias of each expert stays as it is, and is stacked too.
    let mut model: Vec<_> = tensors(&bench.path("m")).into_iter().collect();
    let bias = |expert: u8| {
        (format!("{LAYER}.experts.{expert}.up_proj.bias"), ("BF16".to_owned(), vec![64], vec![expert; 128]))
    };
    model.extend((0..3).map(bias));
    let shapes: Vec<Vec<u64>> =
        model.iter().map(|(_, (_, shape, _))| shape.iter().map(|it| *it as u64).collect()).collect();
    let stored =
        model.iter().zip(&shapes).map(|((name, (dtype, _, bytes)), shape)| (&**name, &**dtype, &shape[..], &bytes[..]));
    bench.write("m/model.safetensors", &shard(&stored.collect::<Vec<_>>()));
    let line = "quantize m --layout mlx --scheme affine4 -o q -q";
    bench.run(&format!("{line} --hash --report r.json --max-shard-size 20KB")).expect(0, "", "");
    assert_eq!(tensors(&bench.path("q"))[&format!("{STACK}.up_proj.bias")].1, [3, 64]);
    let before = tensors(&bench.path("q"));
    let outcome = bench.run("diff q --report r.json");
    assert!(outcome.code == Some(0) && outcome.stdout == "16 tensors are as the report says\n", "{outcome:?}");
    for flags in ["--resume", "--part 1/1"] {
        let outcome = bench.run(&format!("{line} --max-shard-size 20KB {flags}"));
        assert_eq!(outcome.code, Some(0), "{flags}: {outcome:?}");
        assert_same(&tensors(&bench.path("q")), &before);
    }
    let file = fs::read_dir(bench.path("q")).unwrap().map(|entry| entry.unwrap().path());
    let file = file.filter(|path| path.extension().is_some_and(|end| end == "safetensors")).max().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let outcome = bench.run("diff q --report r.json");
    assert!(outcome.code == Some(1) && outcome.stdout.contains("has other bytes than were written"), "{outcome:?}");
}

#[test]
fn stacks_of_more_experts_than_bytes_are_refused_at_once() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let config = json!({ "model_type": "qwen3_moe", "quantization": { "group_size": 64, "bits": 4 } });
    bench.write("q/config.json", config.to_string().as_bytes());
    let name = |layer: u64, part: &str| format!("model.layers.{layer}.mlp.switch_mlp.up_proj.{part}");
    let parts = [("weight", "U32"), ("scales", "BF16"), ("biases", "BF16")];
    let all: Vec<_> = (0..300).flat_map(|layer| parts.map(|(part, dtype)| (name(layer, part), dtype))).collect();
    let empty: Vec<_> = all.iter().map(|(name, dtype)| (&**name, *dtype, &[16384, 0, 8][..], &[][..])).collect();
    bench.write("q/model.safetensors", &shard(&empty));
    for line in ["diff q q", "dequantize q -o o"] {
        let outcome = bench.run_within(1000, line);
        is_refused(
            &outcome,
            "q: tensor 'model.layers.0.mlp.switch_mlp.up_proj.weight': is a stack of experts without elements\n",
        );
    }
    let outcome = bench.run_within(1000, "inspect q");
    assert!(outcome.code == Some(0) && outcome.stdout.contains(STACK), "{outcome:?}");
    // A few bytes for each expert.
    let bytes = vec![0; 4 * 16384];
    let few: Vec<_> = parts
        .iter()
        .zip(&all)
        .map(|((_, dtype), (name, _))| {
            let width = if *dtype == "U32" { 4 } else { 2 };
            (&**name, *dtype, &[16384, 1, 1][..], &bytes[..width * 16384])
        })
        .collect();
    bench.write("q/model.safetensors", &shard(&few));
    let outcome = bench.run_within(1000, "diff q q");
    is_refused(&outcome, "q: holds 49152 tensors of single experts in ");
}

#[test]
fn the_type_of_the_language_model_decides_in_both_directions() {
    let config =
        json!({ "model_type": "qwen3_vl_moe", "text_config": { "model_type": "qwen3_moe", "num_experts": 2 } });
    let bench = bench_of_experts(2, &config.to_string(), |_| false);
    bench.run("quantize m --layout mlx --scheme affine4 -o q -q").expect(0, "", "");
    bench.run("quantize m --layout mlx --scheme affine4 -o q -f").says(0, "", "qwen3_vl_moe");
    bench.run("dequantize q -o d -q").expect(0, "", "");
    assert!(tensors(&bench.path("d")).keys().eq(tensors(&bench.path("m")).keys()));
}

/// The model of a kind whose names differ from those of MLX in more than the stacks.
struct Renamed {
    kind: &'static str,
    /// Tensors of Hugging Face, of 64 x 64 elements where nothing else is said, and their names in MLX.
    names: &'static [[&'static str; 2]],
    stacks: [&'static str; 2],
    experts: [&'static str; 2],
}

const RENAMED: &[Renamed] = &[
    Renamed {
        kind: "afmoe",
        names: &[["mlp.router.gate.weight", "mlp.router.gate.weight"], ["mlp.expert_bias", "mlp.expert_bias"]],
        stacks: ["mlp.experts.up_proj", "mlp.experts.down_proj"],
        experts: ["mlp.experts.*.up_proj", "mlp.experts.*.down_proj"],
    },
    Renamed {
        kind: "bailing_moe",
        names: &[
            ["mlp.gate.weight", "mlp.gate.gate_proj.weight"],
            ["mlp.gate.expert_bias", "mlp.gate.expert_bias"],
            ["mlp.gate_proj.weight", "mlp.gate_proj.weight"],
        ],
        stacks: ["mlp.switch_mlp.up_proj", "mlp.switch_mlp.down_proj"],
        experts: ["mlp.experts.*.up_proj", "mlp.experts.*.down_proj"],
    },
    Renamed {
        kind: "kimi_linear",
        names: &[
            ["block_sparse_moe.gate.weight", "mlp.gate.weight"],
            ["block_sparse_moe.gate.e_score_correction_bias", "mlp.e_score_correction_bias"],
            ["block_sparse_moe.shared_experts.up_proj.weight", "mlp.shared_experts.up_proj.weight"],
            ["self_attn.kv_b_proj.weight", "self_attn.kv_b_proj.weight"],
        ],
        stacks: ["mlp.switch_mlp.up_proj", "mlp.switch_mlp.down_proj"],
        experts: ["block_sparse_moe.experts.*.w3", "block_sparse_moe.experts.*.w2"],
    },
    Renamed {
        kind: "lfm2_moe",
        names: &[["feed_forward.w1.weight", "feed_forward.gate_proj.weight"], ["conv.conv.weight", "conv.conv.weight"]],
        stacks: ["feed_forward.switch_mlp.up_proj", "feed_forward.switch_mlp.down_proj"],
        experts: ["feed_forward.experts.*.w3", "feed_forward.experts.*.w2"],
    },
    Renamed {
        kind: "nemotron_h",
        names: &[["mixer.gate.weight", "mixer.gate.weight"]],
        stacks: ["mixer.switch_mlp.fc1", "mixer.switch_mlp.fc2"],
        experts: ["mixer.experts.*.up_proj", "mixer.experts.*.down_proj"],
    },
];

#[test]
fn kinds_with_other_names_are_stacked_and_divided_again() {
    for Renamed { kind, names, stacks, experts } in RENAMED {
        let in_layer = |name: &str| format!("model.layers.3.{name}");
        let shape = |name: &str| match name {
            _ if name.contains("conv") => vec![64, 1, 3],
            _ if name.ends_with("bias") => vec![4],
            _ => vec![64, 64],
        };
        let of_expert = |expert: u64| experts.map(|name| in_layer(&name.replace('*', &expert.to_string())) + ".weight");
        let others = names.iter().map(|[name, _]| in_layer(name));
        let all: Vec<String> = (0..4).flat_map(of_expert).chain(others).collect();
        let shapes: Vec<Vec<u64>> = all.iter().map(|name| shape(name)).collect();
        let stored: Vec<(&str, &[u64])> =
            all.iter().map(|name| &**name).zip(shapes.iter().map(|shape| &**shape)).collect();
        let config = json!({ "model_type": kind, "num_experts": 4 }).to_string();
        let bench = bench_with(&stored, &config);
        let line = "quantize m --layout mlx --scheme affine4 -o q -q";
        bench.run(line).expect(0, "", "");
        let found = tensors(&bench.path("q"));
        for [_, name] in *names {
            assert!(found.contains_key(&in_layer(name)), "{kind}: {name} of {:?}", found.keys());
        }
        for stack in stacks {
            for part in ["weight", "scales", "biases"] {
                assert_eq!(found[&in_layer(&format!("{stack}.{part}"))].1[0], 4, "{kind}: {stack}");
            }
        }
        let plain = found.keys().filter(|name| name.ends_with(".weight")).count();
        assert_eq!(plain, 2 + names.iter().filter(|[name, _]| name.ends_with(".weight")).count(), "{:?}", found.keys());
        // The routers of some kinds have 8 bits, which the config says under their new names.
        bench.run("dequantize q -o d -q").expect(0, "", "");
        let shapes = |folder| tensors(&bench.path(folder)).into_iter().map(|(name, (_, shape, _))| (name, shape));
        assert!(shapes("d").eq(shapes("m")), "{kind}: {:?}", shapes("d").collect::<Vec<_>>());
        bench.run(&format!("{line} --resume")).expect(0, "", "");
        assert_same(&tensors(&bench.path("q")), &found);
    }
}

#[test]
fn codes_that_mlx_lm_would_quantize_again_are_not_written() {
    let shapes: [(&str, &[u64]); 2] = [
        ("model.layers.0.self_attn.kv_b_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
    ];
    for (kind, scheme, is_quantized) in
        [("deepseek_v3", "affine8", false), ("deepseek_v3", "affine4", false), ("deepseek_v2", "affine4", true)]
    {
        let bench = bench_with(&shapes, &json!({ "model_type": kind }).to_string());
        bench.run(&format!("quantize m --layout mlx --scheme {scheme} -o q -q")).expect(0, "", "");
        let found = tensors(&bench.path("q"));
        assert_eq!(found.contains_key("model.layers.0.self_attn.kv_b_proj.scales"), is_quantized, "{kind} {scheme}");
    }
}

#[test]
fn the_one_channel_of_a_kernel_of_mlx_is_moved_back() {
    let bench = Bench::new();
    fs::create_dir(bench.path("q")).unwrap();
    let (stack, kernel) =
        ("model.layers.0.feed_forward.switch_mlp.up_proj.weight", "model.layers.0.mamba.conv1d.weight");
    let header = format!(
        r#"{{"__metadata__":{{"format":"mlx"}},"{stack}":{{"dtype":"BF16","shape":[2,2,4],"data_offsets":[0,32]}},"{kernel}":{{"dtype":"BF16","shape":[4,3,1],"data_offsets":[32,56]}}}}"#
    );
    let bytes: Vec<u8> = (0..56).collect();
    bench.write("q/model.safetensors", &crate::common::safetensors(&header, &bytes));
    bench.write("q/config.json", br#"{"model_type": "jamba"}"#);
    bench.run("quantize q --scheme fp8 -o o -q").expect(0, "", "");
    let (dtype, shape, values) = &tensors(&bench.path("o"))[kernel];
    assert_eq!((&**dtype, &shape[..], &values[..]), ("BF16", &[4, 1, 3][..], &bytes[32..]));
}

#[test]
fn plain_stacks_of_mlx_are_divided_and_inspect_names_what_other_commands_name() {
    let bench = Bench::new();
    fs::create_dir(bench.path("p")).unwrap();
    let bytes = vec![0x3c; 2 * 2 * 64 * 64];
    let entry = |name: &str| format!(r#""{STACK}.{name}.weight":{{"dtype":"BF16","shape":[2,64,64],"data_offsets":"#);
    let size = bytes.len();
    let entries = ["down_proj", "gate_proj", "up_proj"].iter().enumerate();
    let entries = entries.map(|(at, name)| format!("{}[{},{}]}}", entry(name), at * size, (at + 1) * size));
    let header = format!(r#"{{"__metadata__":{{"format":"mlx"}},{}}}"#, entries.collect::<Vec<_>>().join(","));
    bench.write("p/model.safetensors", &crate::common::safetensors(&header, &bytes.repeat(3)));
    for (kind, name) in
        [("qwen3_moe", format!("{LAYER}.experts.1.up_proj.weight")), ("novel", format!("{STACK}.up_proj.weight"))]
    {
        bench.write("p/config.json", json!({ "model_type": kind }).to_string().as_bytes());
        let outcome = bench.run("inspect p");
        assert!(outcome.code == Some(0) && outcome.stdout.contains(&name), "{outcome:?}");
    }
    bench.write("p/config.json", json!({ "model_type": "qwen3_moe" }).to_string().as_bytes());
    bench.run("quantize p --layout mlx --scheme affine4 -o q -q").expect(0, "", "");
    assert_eq!(tensors(&bench.path("q"))[&format!("{STACK}.up_proj.weight")].1, [2, 64, 8]);
    bench.run("quantize p --scheme int4 --group-size 32 -o i -q").expect(0, "", "");
    assert!(tensors(&bench.path("i")).contains_key(&format!("{LAYER}.experts.1.up_proj.weight_packed")));
}
